"""Narrow column reductions as wide ones: what is regrouped, that nothing changes, and that accesses are wide."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.compile import compile_hlo
from astitch.device.gpu import preset
from astitch.graph.ir import Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.narrow_reductions import reshape_narrow_reductions
from astitch.rewrite.reassociate import reassociate
from astitch.rewrite.simplify import simplify
from astitch.run.host_engine import HostEngine
from astitch.show.compilation import Compilation

Function = Callable[..., jax.Array]


@pytest.fixture(autouse=True)
def small_arrays_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the L2 is too much for a test."""
    monkeypatch.setattr("astitch.rewrite.narrow_reductions.LEAST_BYTES", 4 << 20)


def read(fn: Function, *arguments: np.ndarray) -> bytes:
    module: bytes = (
        jax.jit(fn).lower(*arguments).compiler_ir("hlo").as_serialized_hlo_module_proto()
    )
    return module


def graph_of(fn: Function, *arguments: np.ndarray) -> Graph:
    return reassociate(simplify(import_hlo(read(fn, *arguments))))


def regrouped(graph: Graph) -> list[str]:
    heard: list[str] = []
    reshape_narrow_reductions(
        graph,
        lambda rule, node: heard.append(node) if rule == "reshape_narrow_reductions" else None,
    )
    return heard


def normal(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def column_sum(x: jax.Array) -> jax.Array:
    return x.sum(0)


def column_max(x: jax.Array) -> jax.Array:
    return x.max(0)


def sum_of_squares(x: jax.Array) -> jax.Array:
    return jnp.square(x.astype(jnp.float32) * 2 + 1).sum(0)


def all_positive(x: jax.Array) -> jax.Array:
    return (x > -3).all(0)


def sum_of_two(x: jax.Array) -> jax.Array:
    return x.sum((0, 1))


WIDENED: dict[str, tuple[Function, np.ndarray]] = {
    "17 columns": (column_sum, normal(150_000, 17)),
    "3 columns": (column_sum, normal(500_001, 3)),
    "33 columns, a prime of rows": (column_sum, normal(100_003, 33)),
    "18 columns": (column_max, normal(120_001, 18)),
    "bf16 through f32": (sum_of_squares, normal(300_007, 9, dtype=jnp.bfloat16)),
    "predicates": (all_positive, normal(400_000, 13)),
    "two dimensions": (sum_of_two, normal(300, 500, 21)),
}


@pytest.mark.parametrize("name", WIDENED)
def test_a_narrow_reduction_is_regrouped_and_stays_the_same(name: str) -> None:
    fn, x = WIDENED[name]
    graph = graph_of(fn, x)
    assert len(regrouped(graph)) == 1
    want = np.asarray(jax.jit(fn)(x))
    (by_reference,) = run_graph(reshape_narrow_reductions(graph), [x])
    found = compile_hlo(read(fn, x), gpu=preset("h100"))
    (by_kernels,) = HostEngine(found.program).run([x])
    for got in (by_reference, by_kernels):
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-2)


def test_the_long_part_is_read_in_whole_accesses() -> None:
    fn, x = WIDENED["17 columns"]
    found: Compilation = compile_hlo(read(fn, x), gpu=preset("h100"))
    (kernel,) = found.program.kernels
    assert "Vec<float, 4>" in kernel.source
    mapping = found.plans[0].arrangement.loops[0].mapping
    assert mapping.vector == 4 and mapping.col_size % 17 == 0 and mapping.col_size > 1000


def softmax_over_rows(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x, 0)


def with_bias(x: jax.Array, b: jax.Array) -> jax.Array:
    return (x + b).sum(0)


def from_five(x: jax.Array) -> jax.Array:
    return jax.lax.reduce(x, jnp.float32(5), jax.lax.add, (0,))


def stored_too(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = x * 2
    return y, y.sum(0)


@pytest.mark.parametrize(
    ("fn", "arguments"),
    [
        (column_sum, (normal(150_000, 16),)),  # rows are whole accesses
        (column_sum, (normal(2000, 17),)),  # small: it lies in the L2
        (column_sum, (normal(3000, 1023),)),  # too few wide rows
        (column_sum, (normal(150_000, 17, dtype=jnp.bfloat16) * 0 + 1,)),
        (softmax_over_rows, (normal(150_000, 17),)),  # read again
        (with_bias, (normal(150_000, 17), normal(17))),  # columns differ
        (from_five, (normal(150_000, 17),)),  # an init that counts once
        (stored_too, (normal(150_000, 17),)),
    ],
)
def test_others_stay(fn: Function, arguments: tuple[np.ndarray, ...]) -> None:
    graph = graph_of(fn, *arguments)
    if arguments[0].dtype == np.float32:
        assert not regrouped(graph)
        assert reshape_narrow_reductions(graph) is graph
    else:  # XLA sums bf16 in f32: the convert is part of the chain
        results = zip(
            run_graph(reshape_narrow_reductions(graph), arguments),
            [jax.jit(fn)(*arguments)],
            strict=True,
        )
        for got, want in results:
            np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
