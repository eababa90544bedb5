"""reduce_sorted_rows: scatters whose indices are sorted as reductions of each row over its own updates."""

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
from astitch.rewrite import sorted_scatters
from astitch.rewrite.expand import expand
from astitch.rewrite.simplify import simplify
from astitch.rewrite.sorted_scatters import reduce_sorted_rows
from astitch.run.host_engine import HostEngine

TYPES = (np.float32, np.float16, jnp.bfloat16, np.int32, np.uint32, np.int8, np.uint16)
OPS = ("add", "max", "min", "multiply")


def lower(fn: Any, *arguments: np.ndarray) -> Graph:
    module = jax.jit(fn, keep_unused=True).lower(*arguments).compiler_ir("hlo")
    return expand(simplify(check_graph(import_hlo(module.as_serialized_hlo_module_proto()))))


def scatter(op: str) -> Any:
    def fn(x: Any, i: Any, u: Any) -> Any:
        return getattr(x.at[i], op)(
            u, mode="drop", indices_are_sorted=True, wrap_negative_indices=False
        )

    return fn


def has_scatter(graph: Graph) -> bool:
    return any(isinstance(node.attrs, ScatterAttrs) for node in graph)


def draw(dtype: Any, shape: tuple[int, ...], seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    if jnp.issubdtype(dtype, jnp.floating):
        return random.uniform(0.97, 1.03, shape).astype(dtype)
    return random.integers(0, 5, shape).astype(dtype)


def draw_sorted(rows: int, count: int, skew: float, seed: int, index: Any = np.int32) -> np.ndarray:
    """Some before and behind all rows; skew: how many of them go to one row."""
    random = np.random.default_rng(seed)
    low = -2 if np.iinfo(index).min < 0 else 0
    i = random.integers(low, min(rows + 2, np.iinfo(index).max), count)
    i[random.random(count) < skew] = rows // 2
    return np.sort(i).astype(index)


def combine(op: str, x: np.ndarray, i: np.ndarray, u: np.ndarray) -> np.ndarray:
    """In f64 or s64, in order."""
    wide = np.float64 if jnp.issubdtype(x.dtype, jnp.floating) else np.int64
    found = x.astype(wide)
    step = {"add": np.add, "max": np.maximum, "min": np.minimum, "multiply": np.multiply}[op]
    with np.errstate(over="ignore"):
        for place, update in zip(i.tolist(), u.astype(wide), strict=True):
            if 0 <= place < len(x):
                found[place] = step(found[place], update)
    return found


def check_values(op: str, x: np.ndarray, i: np.ndarray, u: np.ndarray, found: np.ndarray) -> None:
    exact = combine(op, x, i, u)
    assert found.dtype == x.dtype
    if jnp.issubdtype(x.dtype, jnp.floating):
        tolerance = 2e-6 if x.dtype == np.float32 else float(jnp.finfo(x.dtype).eps)
        np.testing.assert_allclose(found.astype(np.float64), exact, rtol=tolerance)
    else:
        assert (found == exact.astype(x.dtype)).all()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", TYPES)
def test_values(dtype: Any, op: str) -> None:
    x, u = draw(dtype, (7, 3), 2), draw(dtype, (100, 3), 3)
    i = draw_sorted(7, 100, 0.2, 4)
    graph = lower(scatter(op), x, i, u)
    reduced = check_graph(reduce_sorted_rows(graph, in_order=True))
    assert not has_scatter(reduced)
    (found,) = run_graph(reduced, [x, i, u])
    check_values(op, x, i, u, found)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_random_scatters(data: Any) -> None:
    """Rows that are empty, short, longer than many pieces, all in one; indices of any type."""
    dtype, op = data.draw(st.sampled_from(TYPES)), data.draw(st.sampled_from(OPS))
    rows = data.draw(st.integers(1, 40))
    count = data.draw(st.integers(4 * rows, 300))
    row = data.draw(st.sampled_from([(), (1,), (5,), (2, 3)]))
    skew = data.draw(st.sampled_from([0.0, 0.3, 0.9, 1.0]))
    index = data.draw(st.sampled_from([np.int32, np.uint32, np.int8, np.uint8]))
    seed = data.draw(st.integers(0, 999))
    i = draw_sorted(rows, count, skew, seed, index)
    x, u = draw(dtype, (rows, *row), seed), draw(dtype, (count, *row), seed + 1)
    (found,) = run_graph(reduce_sorted_rows(lower(scatter(op), x, i, u), in_order=True), [x, i, u])
    check_values(op, x, i, u, found)


@pytest.mark.parametrize(("rows", "count"), [(50, 3000), (700, 5000)])
@pytest.mark.parametrize("row", [(), (6,)])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_emulated(dtype: Any, row: tuple[int, ...], rows: int, count: int) -> None:
    """In kernels, with what comes before and after; no sort and no scatter is left."""

    def centre(i: Any, u: Any) -> Any:
        u = u * 2
        return u - jax.ops.segment_max(u, i, rows, indices_are_sorted=True)[i]

    i = np.clip(draw_sorted(rows, count, 0.1, 1), 0, rows - 1)
    u = draw(dtype, (count, *row), 5)
    compilation = compile_graph(lower(centre, i, u), preset("h100"))
    assert not compilation.program.outside
    (found,) = HostEngine(compilation.program).run([i, u])
    assert (np.asarray(found) == np.asarray(jax.jit(centre)(i, u))).all()


def test_an_infinity_stays_in_its_row() -> None:
    x, i = np.zeros(3, np.float32), np.repeat(np.arange(3, dtype=np.int32), 50)
    u = np.ones(150, np.float32)
    u[3], u[70] = np.inf, np.nan
    (found,) = run_graph(reduce_sorted_rows(lower(scatter("add"), x, i, u)), [x, i, u])
    assert np.isinf(found[0])
    assert np.isnan(found[1])
    assert found[2] == 50


def test_more_updates_than_pieces_can_number_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    x, i, u = np.zeros(3, np.float32), np.zeros(100, np.int32), np.ones(100, np.float32)
    graph = lower(scatter("max"), x, i, u)
    assert not has_scatter(reduce_sorted_rows(graph))
    monkeypatch.setattr(sorted_scatters, "MOST_UPDATES", 99)
    assert has_scatter(reduce_sorted_rows(graph))


def test_what_stays() -> None:
    def stays(count: int, op: str = "max", dtype: Any = np.float32, **options: Any) -> bool:
        row = options.pop("row", ())
        x, u = np.zeros((20, *row), dtype), np.ones((count, *row), dtype)
        hint = options.pop("indices_are_sorted", True)

        def fn(x: Any, i: Any, u: Any) -> Any:
            return getattr(x.at[i], op)(u, indices_are_sorted=hint)

        graph = lower(fn, x, np.zeros(count, np.int32), u)
        return has_scatter(reduce_sorted_rows(graph, **options))

    assert not stays(80)
    assert stays(79), "few updates a row"
    assert not stays(40, in_order=True)
    assert not stays(80, "add")
    assert stays(319, "add", row=(32,)), (
        "a GPU adds in one instruction, and no threads of a warp meet"
    )
    assert not stays(320, "add", row=(32,))
    assert not stays(80, "add", jnp.bfloat16)
    assert stays(80, indices_are_sorted=False)
    with jax.enable_x64(True):
        assert stays(80, dtype=np.float64)
