"""Outputs that are put together of computed arrays: each is written where it will lie, by one loop over all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.device.schedule import DEFAULT
from astitch.errors import AstitchError, IllegalProduct
from astitch.hlo_import import import_hlo
from astitch.kernel.check_kernel import check_kernel
from astitch.kernel.pieces import spread_parameter
from astitch.run.host_engine import HostEngine
from astitch.search.plan import Plan
from astitch.xla.memory_reuse import find_plan_in_place
from tests.hlo_runner import lower
from tests.small_gpu import few_sms

H100 = preset("h100")
FEW = few_sms(4)


def stacked(u: Any) -> Any:
    """u: [3, y, x].  What all three share is computed once for an element."""
    shared = jnp.tanh(u[0]) * u[1] / (1 + u[2] * u[2])
    return jnp.stack([shared + u[2], jnp.roll(shared, 1, 0) * u[0], jnp.exp(-shared) - u[1]])


def joined(u: Any) -> Any:
    total = jnp.tanh(u).sum(0)
    scale = total / (1 + total * total)
    parts = [scale[None] * u[:1], jnp.exp(-scale)[None] + u[1:2], (scale + u[2])[None]]
    return jnp.concatenate(parts)


def normalized(u: Any) -> Any:
    """Pieces that wait for the statistics of a row."""
    v, w = u[0] * u[1], u[2]
    v = v - v.mean(-1, keepdims=True)
    v = v * jax.lax.rsqrt((v * v).mean(-1, keepdims=True) + 1e-5)
    return jnp.stack([v * w, v + w, jnp.sin(v)])


def read_again(u: Any) -> Any:
    """A piece that others read at many places, behind a barrier of the grid."""
    x = jnp.sin(u[0]) * jnp.exp(u[1]) + jnp.tanh(u[2]) * jnp.cos(u[1])
    y = sum(jnp.roll(x, k, 1) * jnp.roll(x, k - 5, 0) for k in range(8))
    return jnp.stack([x, y]), y.mean()


def of_rows(u: Any) -> Any:
    """Rows behind each other."""
    a = jnp.tanh(u[0]) * u[1]
    return jnp.concatenate([a + u[2], a * u[2]], 0)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "stack": stacked,
    "concatenate": joined,
    "behind a norm": normalized,
    "read again": read_again,
    "rows": of_rows,
}


def plan(function: Callable[[Any], Any], given: np.ndarray, gpu: Any = H100) -> Plan:
    (found,) = compile_graph(import_hlo(lower(function, given)), gpu).plans
    return found


def pieces_of(plan: Plan) -> dict[str, int]:
    return {p.name: p.start for p in plan.arrangement.groups.pieces.values()}


@pytest.mark.parametrize("shape", [(3, 128, 128), (3, 130, 132), (3, 127, 136)])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str, dtype: Any, shape: tuple[int, ...]) -> None:
    given = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    compiled = compile_graph(import_hlo(lower(FUNCTIONS[name], given)), FEW)
    results = HostEngine(compiled.program, check=True).run([given])
    wanted = jax.tree.leaves(jax.jit(FUNCTIONS[name])(given.astype(np.float32)))
    for got, want in zip(results, wanted, strict=True):
        distance = np.linalg.norm(np.asarray(got, np.float64) - np.asarray(want, np.float64))
        assert distance <= (1e-6 if dtype is np.float32 else 2e-2) * np.linalg.norm(want)


@pytest.mark.parametrize("name", ["stack", "concatenate", "rows"])
def test_pieces_share_a_loop(name: str) -> None:
    given = np.zeros((3, 2048, 2048), np.float32)
    found = plan(FUNCTIONS[name], given)
    assert len(pieces_of(found)) == (2 if name == "rows" else 3)
    assert {*pieces_of(found).values()} == {n * 2048 * 2048 for n in range(len(pieces_of(found)))}
    assert len(found.arrangement.loops) == 1 and found.kernel.scratch_bytes == 0
    (written,) = (p for p in found.kernel.arguments if p.written)
    assert written.source in found.kernel.wholes
    assert found.kernel.writes_bytes == given.nbytes * len(pieces_of(found)) // 3


def last(u: Any) -> Any:
    a = jnp.tanh(u[0]) * u[1]
    return jnp.stack([a + u[2], a * u[2]], -1)


def returned_too(u: Any) -> Any:
    a = jnp.tanh(u[0]) * u[1]
    return jnp.stack([a, a * u[2]]), a


def twice(u: Any) -> Any:
    a = jnp.tanh(u[0]) * u[1]
    return jnp.stack([a, a, a * u[2]])


def beside_inputs(u: Any, v: Any) -> Any:
    return jnp.concatenate([v, jnp.tanh(u[0]) * u[1] + v])


def used_inside(u: Any) -> Any:
    a = jnp.tanh(u[0]) * u[1]
    both = jnp.stack([a + u[2], a * u[2]])
    return both, jnp.sin(both).sum()


BESIDES = {"last dimension": last, "returned": returned_too, "twice": twice, "used": used_inside}


@pytest.mark.parametrize("name", BESIDES)
def test_others_stay_whole(name: str) -> None:
    """What does not lie in one stretch, has a place of its own too, or is read as a whole."""
    given = np.zeros((3, 2048, 2048), np.float32)
    compiled = compile_graph(import_hlo(lower(BESIDES[name], given)), H100)
    assert not any(pieces_of(p) for p in compiled.plans)


def test_inputs_short_and_unaligned_pieces_stay_whole() -> None:
    v = np.zeros((2048, 2048), np.float32)
    graph = import_hlo(lower(beside_inputs, np.zeros((3, 2048, 2048), np.float32), v))
    assert not any(pieces_of(p) for p in compile_graph(graph, H100).plans)
    for shape in ((3, 64, 64), (3, 2049, 2049)):
        assert not pieces_of(plan(stacked, np.zeros(shape, np.float32)))


def test_a_kernel_of_pieces_is_checked() -> None:
    kernel = plan(stacked, np.zeros((3, 2048, 2048), np.float32)).kernel
    check_kernel(kernel)
    first, second = [n for n, p in enumerate(kernel.parameters) if p.whole][:2]
    same = list(kernel.parameters)
    same[second] = replace(same[second], start=same[first].start)
    with pytest.raises(AstitchError, match="begin at"):
        check_kernel(replace(kernel, parameters=tuple(same)))
    only_read = [
        replace(p, written=False, read=True) if p.source in kernel.wholes else p
        for p in kernel.parameters
    ]
    with pytest.raises(AstitchError, match="not declared as its pieces are used"):
        check_kernel(replace(kernel, parameters=tuple(only_read)))


def test_no_memory_is_taken_over_and_none_spread() -> None:
    """Other threads still read what lies where a piece is written."""
    found = plan(stacked, np.zeros((3, 2048, 2048), np.float32))
    assert not find_plan_in_place(found, [True])
    (number,) = (n for n, p in enumerate(found.kernel.arguments) if p.written)
    with pytest.raises(IllegalProduct, match="pieces"):
        spread_parameter(found.kernel, number, 2048, 4096)


def test_a_schedule_says_so() -> None:
    assert str(replace(DEFAULT, pieces=False)) == "no pieces"


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(3, 2048, 2048), (3, 1030, 2052)])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_on_a_gpu(name: str, dtype: Any, shape: tuple[int, ...]) -> None:
    import astitch

    def turns(u: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, v: stacked(v), u)

    given = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    for function in (FUNCTIONS[name], turns):
        with astitch.enabled():
            results = jax.tree.leaves(jax.jit(lambda u, fn=function: fn(u))(given))
        wanted = jax.tree.leaves(jax.jit(function)(given.astype(np.float32)))
        for got, want in zip(results, wanted, strict=True):
            distance = np.linalg.norm(np.asarray(got, np.float64) - np.asarray(want, np.float64))
            bound = 1e-5 if dtype is np.float32 else 5e-2
            assert distance <= bound * np.linalg.norm(want)
