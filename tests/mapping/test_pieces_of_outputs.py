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
from astitch.device.schedule import DEFAULT, Schedule
from astitch.dominant import choose_dominants, find_pieces
from astitch.errors import AstitchError, IllegalProduct
from astitch.hlo_import import import_hlo
from astitch.kernel.check_kernel import check_kernel
from astitch.kernel.pieces import spread_parameter
from astitch.profiling.ablation import separate_dominants
from astitch.rewrite.simplify import simplify
from astitch.run.host_engine import HostEngine
from astitch.scope.remote_stitch import stitch_remotely
from astitch.search import plan as planning
from astitch.search.plan import Plan, plan_groups, plan_scope, rank_plans
from astitch.xla.memory_reuse import find_plan_in_place
from tests.hlo_runner import lower
from tests.scopes import find_scopes
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


def joined_again(u: Any) -> Any:
    """As `stacked`, but that the result is a view of what is put together."""
    return stacked(u).reshape(-1, u.shape[-1])


def both_ways(u: Any) -> Any:
    found = stacked(u)
    return found, found.reshape(-1)


@pytest.mark.parametrize("function", [joined_again, both_ways])
def test_views_of_a_whole_are_not_reads(function: Callable[[Any], Any]) -> None:
    assert len(pieces_of(plan(function, np.zeros((3, 2048, 2048), np.float32)))) == 3
    given = np.random.default_rng(0).standard_normal((3, 128, 128)).astype(np.float32)
    graph = import_hlo(lower(function, given))
    (scope,) = stitch_remotely(find_scopes(simplify(graph))).scopes
    assert find_pieces(simplify(graph), scope)
    results = HostEngine(compile_graph(graph, FEW).program, check=True).run([given])
    for got, want in zip(results, jax.tree.leaves(jax.jit(function)(given)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def in_two(u: Any) -> Any:
    a = jnp.tanh(u[0]) * u[1]
    return jnp.stack([a, jnp.exp(u[1]) * a]), jnp.stack([jnp.sin(a) + u[2], a])


def test_a_piece_of_two_outputs_lies_in_the_first() -> None:
    graph = simplify(import_hlo(lower(in_two, np.zeros((3, 256, 256), np.float32))))
    (scope,) = stitch_remotely(find_scopes(graph)).scopes
    for outputs in (scope.outputs, scope.outputs[::-1]):
        found = find_pieces(graph, replace(scope, outputs=outputs))
        assert {piece.whole for piece in found.values()} == {outputs[0]}


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


@pytest.mark.parametrize("refused", [True, False])
def test_one_of_both_that_fits_is_enough(refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """refused: the schedule that no kernel fits, in pieces or not."""
    works = planning.plan_groups

    def refuse(graph: Any, groups: Any, gpu: Any, schedule: Schedule) -> Plan:
        if schedule.pieces is refused:
            raise IllegalProduct("it does not fit")
        return works(graph, groups, gpu, schedule)

    monkeypatch.setattr(planning, "plan_groups", refuse)
    found = plan(stacked, np.zeros((3, 2048, 2048), np.float32))
    assert bool(pieces_of(found)) is not refused


def test_other_plans_are_in_pieces_where_the_first_is() -> None:
    graph = simplify(import_hlo(lower(stacked, np.zeros((3, 2048, 2048), np.float32))))
    (scope,) = stitch_remotely(find_scopes(graph)).scopes
    for schedule in (DEFAULT, replace(DEFAULT, pieces=False)):
        first = plan_scope(graph, scope, H100, schedule)
        for other, _ in rank_plans(graph, scope, H100, budget=2, default=first):
            assert other.schedule.pieces == bool(pieces_of(other)) == schedule.pieces


def test_without_merging_there_are_pieces_too() -> None:
    graph = simplify(import_hlo(lower(stacked, np.zeros((3, 256, 256), np.float32))))
    (scope,) = stitch_remotely(find_scopes(graph)).scopes
    found = plan_groups(graph, separate_dominants(choose_dominants(graph, scope)), H100, DEFAULT)
    assert len(pieces_of(found)) == 3
    assert found.kernel.writes_bytes == 3 * 256 * 256 * 4 and not found.kernel.scratch


def of_their_own(u: Any) -> Any:
    """Moments that have nothing in common: each element may be written where it was read."""
    old, square = u[:1], u[1:]
    return jnp.concatenate([0.9 * old + jnp.sin(old), 0.99 * square + jnp.cos(square)])


def test_a_whole_that_may_lie_over_its_argument_stays_one() -> None:
    found = plan(of_their_own, np.zeros((2, 2048, 2048), np.float32))
    assert not pieces_of(found) and find_plan_in_place(found, [True])


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
