"""combine_natively: the same scatters in types that a GPU combines in one instruction."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.graph.check import check_graph
from astitch.graph.ir import Graph, ScatterAttrs
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite import native_scatters
from astitch.rewrite.expand import expand
from astitch.rewrite.native_scatters import combine_natively
from astitch.rewrite.simplify import simplify

COUNT = 300


def lower(fn: Any, *arguments: np.ndarray) -> Graph:
    module = jax.jit(fn, keep_unused=True).lower(*arguments).compiler_ir("hlo")
    return expand(simplify(check_graph(import_hlo(module.as_serialized_hlo_module_proto()))))


@pytest.fixture(autouse=True)
def _any_scatter_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_scatters, "LEAST_SIZE", 0)


def find_words(graph: Graph) -> list[str]:
    return [node.dtype.value for node in graph if isinstance(node.attrs, ScatterAttrs)]


def draw(dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    random = np.random.default_rng(len(shape))
    if jnp.issubdtype(dtype, jnp.floating):
        x = random.normal(size=shape).astype(dtype)
        flat = x.reshape(-1)
        special = np.asarray([np.inf, -np.inf, 0.0, -0.0, 1e-41, -1e-41], np.float64).astype(dtype)
        flat[: special.size] = special[: flat.size]
        return x
    if dtype is np.bool_:
        return random.random(shape) < 0.3
    info = np.iinfo(dtype)
    return random.integers(info.min, info.max, shape, endpoint=True).astype(dtype)


@pytest.mark.parametrize("row", [(), (3,)])
@pytest.mark.parametrize(
    ("dtype", "op", "word"),
    [
        (jnp.bfloat16, "max", "s32"),
        (np.float16, "min", "s32"),
        (np.float32, "max", "s32"),
        (np.float32, "min", "s32"),
        (np.float64, "max", "s64"),
        (np.float64, "min", "s64"),
        (np.int8, "add", "s32"),
        (np.uint8, "add", "s32"),
        (np.uint16, "max", "s32"),
        (np.int16, "min", "s32"),
        (np.bool_, "max", "s32"),
        (np.bool_, "min", "s32"),
    ],
)
def test_the_same_bits(dtype: Any, op: str, word: str, row: tuple[int, ...]) -> None:
    with jax.enable_x64(True):
        x, u = draw(dtype, (9, *row)), draw(dtype, (COUNT, *row))
        i = np.random.default_rng(0).integers(-2, 11, COUNT).astype(np.int32)

        def fn(x: Any, i: Any, u: Any) -> Any:
            return getattr(x.at[i], op)(u, mode="drop")

        graph = lower(fn, x, i, u)
        native = check_graph(combine_natively(graph))
        assert find_words(native) == [word]
        (wanted,), (found,) = run_graph(graph, [x, i, u]), run_graph(native, [x, i, u])
        expected = np.asarray(jax.jit(fn)(x, i, u))
    assert found.dtype == wanted.dtype
    assert (found == expected).all()
    assert (found == wanted).all()


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16])
def test_a_nan_is_the_result(dtype: Any, op: str) -> None:
    """Of either sign, in what is scattered to and in an update."""
    x, u = draw(dtype, (4,)), draw(dtype, (COUNT,))
    i = (np.arange(COUNT) % 3).astype(np.int32)
    x[3], u[7], u[8] = np.nan, np.nan, -np.nan
    graph = lower(lambda x, i, u: getattr(x.at[i], op)(u), x, i, u)
    (found,) = run_graph(combine_natively(graph), [x, i, u])
    assert np.isnan(found).tolist() == [False, True, True, True]


def test_sums_of_narrow_floats_are_rounded_once() -> None:
    u = np.full(COUNT, 1.001, jnp.bfloat16)
    x, i = np.zeros(2, jnp.bfloat16), np.zeros(COUNT, np.int32)
    graph = lower(lambda x, i, u: x.at[i].add(u), x, i, u)
    native = combine_natively(graph)
    assert find_words(native) == ["f32"]
    (found,) = run_graph(native, [x, i, u])
    assert found.dtype == jnp.bfloat16
    assert found.tolist() == [np.float32(COUNT * float(u[0])).astype(jnp.bfloat16), 0]


def test_what_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is native already, what nothing combines natively, what does not pay, and what a loop carries."""
    i = np.zeros(COUNT, np.int32)

    def stays(dtype: Any, op: str, rows: int = 9, **options: Any) -> bool:
        x, u = np.zeros(rows, dtype), np.ones(COUNT, dtype)
        graph = lower(lambda x, i, u: getattr(x.at[i], op)(u), x, i, u)
        return find_words(combine_natively(graph, **options)) == find_words(graph)

    assert stays(np.float32, "add")
    assert stays(np.int32, "max")
    assert stays(np.float32, "multiply")
    assert not stays(np.float32, "max")
    assert stays(np.float32, "max", only_splats=True)
    assert not stays(np.float32, "max", rows=8 * COUNT), "a small result is converted at once"
    assert stays(np.float32, "max", rows=9 * COUNT)
    assert not stays(np.float32, "max", room=-1), "it takes little room"
    monkeypatch.setattr(native_scatters, "SMALL", 0)
    assert stays(np.float32, "max", rows=3 * COUNT)
    assert not stays(np.float32, "max", rows=2 * COUNT)
    assert not stays(jnp.bfloat16, "add", rows=100, room=400)
    assert stays(jnp.bfloat16, "add", rows=101, room=400), "its result in f32 has no room"
    assert stays(jnp.bfloat16, "add", room=-1)
    monkeypatch.setattr(native_scatters, "LEAST_SIZE", COUNT + 1)
    assert stays(np.float32, "max")
    assert not stays(np.float32, "max", rows=2), "threads that meet wait for each other"


def test_a_number_repeated_is_taken_in_a_loop() -> None:
    i, u = np.zeros(COUNT, np.int32), np.ones(COUNT, np.float32)
    graph = lower(lambda i, u: jnp.zeros(9).at[i].max(u), i, u)
    assert find_words(combine_natively(graph, only_splats=True)) == ["s32"]
