"""reduce_few_rows: scatters to few rows as reductions over all updates."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.graph.check import check_graph
from astitch.graph.ir import Graph, ScatterAttrs
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.expand import expand
from astitch.rewrite.few_rows import FEW, FEW_WAITING, reduce_few_rows
from astitch.rewrite.simplify import simplify
from astitch.run.host_engine import HostEngine

COUNT = 1100
TYPES = (np.float32, np.float16, jnp.bfloat16, np.float64, np.int32, np.uint8, np.int64)
OPS = ("add", "max", "min", "multiply")


def lower(fn: Any, *arguments: np.ndarray) -> Graph:
    module = jax.jit(fn, keep_unused=True).lower(*arguments).compiler_ir("hlo")
    return expand(simplify(check_graph(import_hlo(module.as_serialized_hlo_module_proto()))))


def draw(dtype: Any, shape: tuple[int, ...], seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    if jnp.issubdtype(dtype, jnp.floating):
        return random.uniform(0.97, 1.03, shape).astype(dtype)
    return random.integers(0, 9, shape).astype(dtype)


def scatter(op: str) -> Any:
    return lambda x, i, u: getattr(x.at[i], op)(u, mode="drop")


def has_scatter(graph: Graph) -> bool:
    return any(isinstance(node.attrs, ScatterAttrs) for node in graph)


def check_values(op: str, dtype: Any, x: np.ndarray, i: np.ndarray, u: np.ndarray) -> None:
    """As near f64 as a sum of 16 bits may be; the bits of integers, and of the largest and smallest."""
    with jax.enable_x64(True):
        graph = lower(scatter(op), x, i, u)
        wide = [a.astype(np.float64) if jnp.issubdtype(dtype, jnp.floating) else a for a in (x, u)]
        exact = np.asarray(jax.jit(scatter(op))(wide[0], i, wide[1]))
    reduced = check_graph(reduce_few_rows(graph))
    assert not has_scatter(reduced)
    (found,) = run_graph(reduced, [x, i, u])
    assert found.dtype == x.dtype
    if jnp.issubdtype(dtype, jnp.floating) and op in ("add", "multiply"):
        scale = np.finfo(np.float64).eps if dtype is np.float64 else float(jnp.finfo(dtype).eps)
        scale = max(scale, 3e-5 if dtype is np.float32 else 0.0, 1e-4 if scale > 1e-4 else 0.0)
        np.testing.assert_allclose(found.astype(np.float64), exact, rtol=max(scale, 1e-12))
    else:
        assert (found == exact.astype(found.dtype)).all()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", TYPES)
def test_values(dtype: Any, op: str) -> None:
    i = np.random.default_rng(1).integers(-2, 6, COUNT).astype(np.int32)
    check_values(op, dtype, draw(dtype, (4, 3), 2), i, draw(dtype, (COUNT, 3), 3))


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_random_scatters(data: Any) -> None:
    """Shapes, types, indices of one or two dimensions, in any order or sorted."""
    dtype, op = data.draw(st.sampled_from(TYPES)), data.draw(st.sampled_from(OPS))
    rows, row = data.draw(st.integers(1, FEW)), data.draw(st.sampled_from([(), (1,), (5,), (2, 3)]))
    seed = data.draw(st.integers(0, 99))
    i = np.random.default_rng(seed).integers(-1, rows + 1, 64 * rows + 7).astype(np.int32)
    if data.draw(st.booleans()):
        i = np.sort(i)
    check_values(op, dtype, draw(dtype, (rows, *row), seed), i, draw(dtype, (*i.shape, *row), seed))


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int32])
def test_with_what_stands_around_it_one_kernel(dtype: Any) -> None:
    """Means of segments, each value less the mean of its own."""

    def centre(i: Any, u: Any) -> Any:
        u = u * 2
        sums = jax.ops.segment_sum(u, i, 8)
        counts = jax.ops.segment_sum(jnp.ones_like(i), i, 8)
        return u - (sums // counts.astype(sums.dtype))[i]

    i = np.random.default_rng(1).integers(0, 8, COUNT).astype(np.int32)
    u = draw(dtype, (COUNT,), 4)
    compilation = compile_graph(lower(centre, i, u), preset("h100"))
    assert len(compilation.plans) == 1
    assert not compilation.program.outside
    (found,) = HostEngine(compilation.program).run([i, u])
    np.testing.assert_allclose(
        np.asarray(found, np.float64), np.asarray(centre(i, u), np.float64), atol=0.02
    )


def test_an_infinity_stays_in_its_row() -> None:
    x, i = np.zeros(3, np.float32), (np.arange(COUNT) % 3).astype(np.int32)
    u = np.ones(COUNT, np.float32)
    u[0], u[1] = np.inf, np.nan
    (found,) = run_graph(reduce_few_rows(lower(scatter("add"), x, i, u)), [x, i, u])
    assert np.isinf(found[0])
    assert np.isnan(found[1])
    assert found[2] == (COUNT - 2) // 3


def test_what_stays() -> None:
    def stays(rows: int, row: tuple[int, ...], count: int, op: str = "add", **options: Any) -> bool:
        x, u = np.ones((rows, *row), np.float32), np.ones((count, *row), np.float32)
        graph = lower(scatter(op), x, np.zeros(count, np.int32), u)
        return has_scatter(reduce_few_rows(graph, **options))

    assert not stays(FEW, (8,), 64 * FEW)
    assert stays(FEW, (8,), 64 * FEW - 1), "few threads meet"
    assert stays(FEW, (1000,), 64 * FEW), "a GPU adds to many elements at once"
    assert not stays(100, (), 6400)
    assert stays(200, (), 12800)
    assert not stays(FEW_WAITING, (40,), 64 * FEW_WAITING, "multiply")
    assert stays(FEW_WAITING, (40,), 64 * FEW_WAITING, "max")
    assert not stays(100, (), 500, in_order=True), "beside a sort"
    assert stays(200, (), 500, in_order=True)
