"""Products of few rows: which become kernels of their own, in which spellings, and what they compute then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from astitch.device.gpu import Gpu, preset
from astitch.graph.check import check_graph
from astitch.graph.ir import Graph, NarrowProductAttrs, Node
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.narrow_products import write_narrow_products
from astitch.rewrite.simplify import simplify
from tests.hlo_runner import lower

H100 = preset("h100")
RNG = np.random.default_rng(0)
DEPTH, COLUMNS, GROUP, LAYERS = 1024, 2048, 128, 2
GROUPS = DEPTH // GROUP
BF16 = jnp.bfloat16


def normal(*shape: int, dtype: Any = ml_dtypes.bfloat16) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def integers(dtype: Any, *shape: int) -> np.ndarray:
    low = 0 if np.dtype(dtype) in (np.dtype(np.uint8), np.dtype(ml_dtypes.uint4)) else -7
    return RNG.integers(low, 8, shape).astype(np.int8).astype(dtype)


def rewrite(fn: Callable[..., Any], *arguments: Any, gpu: Gpu = H100) -> tuple[Graph, Graph]:
    graph = simplify(check_graph(import_hlo(lower(fn, *arguments))))
    return graph, check_graph(write_narrow_products(graph, gpu))


def narrow(graph: Graph) -> list[Node]:
    return [node for node in graph if isinstance(node.attrs, NarrowProductAttrs)]


def attrs_of(node: Node) -> NarrowProductAttrs:
    assert isinstance(node.attrs, NarrowProductAttrs)
    return node.attrs


def of_layer(x: Any, ws: Any, i: Any) -> Any:
    return x @ lax.dynamic_index_in_dim(ws, i, keepdims=False)


def of_heads(x: Any, ws: Any, i: Any) -> Any:
    w = lax.dynamic_slice_in_dim(ws, i, 1).reshape(DEPTH, 16, COLUMNS // 16)
    return jnp.einsum("bd,dhf->bhf", x, w)


def transposed(x: Any, ws: Any, i: Any) -> Any:
    return jnp.einsum(
        "bk,nk->nb", x, lax.dynamic_index_in_dim(ws.swapaxes(1, 2), i, keepdims=False)
    )


def of_two(x: Any, ws: Any, i: Any) -> Any:
    w = lax.dynamic_index_in_dim(ws, i, keepdims=False)
    return x @ jnp.concatenate([w, w], 1)


def of_bytes(x: Any, ws: Any, i: Any) -> Any:
    return x @ lax.dynamic_index_in_dim(ws, i, keepdims=False).astype(x.dtype)


def between(x: Any, ws: Any, i: Any) -> Any:
    """The depth stands between two dimensions of the columns."""
    w = lax.dynamic_index_in_dim(ws.reshape(LAYERS, 16, DEPTH, -1), i, keepdims=False)
    return jnp.einsum("bd,hdk->bhk", x, w).reshape(len(x), -1)


LAYERED = {
    "depth between": between,
    "plain": of_layer,
    "heads": of_heads,
    "transposed": transposed,
    "side by side": of_two,
}


@pytest.mark.parametrize("rows", [1, 5, 64])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("name", LAYERED)
def test_a_layer_is_read_where_it_lies(name: str, dtype: Any, rows: int) -> None:
    x, ws = normal(rows, DEPTH, dtype=dtype), normal(LAYERS, DEPTH, COLUMNS, dtype=dtype)
    for layer in (1, 5):  # beyond the last: bounded
        arguments = (x, ws, np.int32(layer))
        graph, changed = rewrite(LAYERED[name], *arguments)
        (product,) = narrow(changed)
        assert attrs_of(product).layer
        assert not any(node.op == "dynamic-slice" for node in changed)
        compare(graph, changed, arguments)


def compare(graph: Graph, changed: Graph, arguments: tuple[Any, ...]) -> None:
    (want,), (got,) = (run_graph(g, list(arguments)) for g in (graph, changed))
    assert got.dtype == want.dtype and got.shape == want.shape
    distance = np.linalg.norm(np.asarray(got, np.float64) - np.asarray(want, np.float64))
    assert distance <= 2e-2 * np.linalg.norm(np.asarray(want, np.float64))


def test_a_layer_of_bytes_is_converted_as_it_is_read() -> None:
    arguments = (normal(4, DEPTH), integers(np.int8, LAYERS, DEPTH, COLUMNS), np.int32(1))
    graph, changed = rewrite(of_bytes, *arguments)
    (product,) = narrow(changed)
    assert changed[product.operands[1]].dtype.numpy == np.int8
    compare(graph, changed, arguments)


def by_reshape(x: Any, q: Any, s: Any) -> Any:
    return x @ (q.reshape(GROUPS, GROUP, -1).astype(x.dtype) * s[:, None]).reshape(q.shape)


def by_repeat(x: Any, q: Any, s: Any) -> Any:
    return x @ (jnp.repeat(s, GROUP, axis=0) * q.astype(x.dtype))


def with_zeros(x: Any, q: Any, s: Any, z: Any) -> Any:
    grouped = q.reshape(GROUPS, GROUP, -1).astype(x.dtype)
    return x @ ((grouped - z[:, None]) * s[:, None]).reshape(q.shape)


def in_f32(x: Any, q: Any, s: Any) -> Any:
    """Scaled in f32, then rounded."""
    w = q.reshape(GROUPS, GROUP, -1).astype(jnp.float32) * s[:, None].astype(jnp.float32)
    return x @ w.reshape(q.shape).astype(x.dtype)


def columns_first(x: Any, q: Any, s: Any) -> Any:
    """[columns, depth], and scales [columns, groups]."""
    w = q.T.reshape(-1, GROUPS, GROUP).astype(x.dtype) * s.T[..., None]
    return jnp.einsum("bk,nk->bn", x, w.reshape(q.T.shape))


GROUPED = {
    "reshape": by_reshape,
    "repeat": by_repeat,
    "zeros": with_zeros,
    "in f32": in_f32,
    "columns first": columns_first,
}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("name", GROUPED)
def test_groups_are_scaled_as_they_are_added(name: str, dtype: Any) -> None:
    q = integers(dtype, DEPTH, COLUMNS)
    beside = [normal(GROUPS, COLUMNS) for _ in range(1 + (name == "zeros"))]
    arguments = (normal(4, DEPTH), q, *beside)
    graph, changed = rewrite(GROUPED[name], *arguments)
    (product,) = narrow(changed)
    attrs = attrs_of(product)
    assert attrs.scale and attrs.offset == (name == "zeros")
    assert changed[product.operands[1]].dtype.numpy == q.dtype
    compare(graph, changed, arguments)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize("name", GROUPED)
def test_numbers_of_four_bits_are_read_as_bytes(name: str, dtype: Any, rows: int) -> None:
    """Against NumPy: conversions of such types are XLA's."""
    fn, given, want = draw_grouped(name, dtype, rows)
    _, changed = rewrite(fn, *given)
    assert len(narrow(changed)) == 1
    (got,) = run_graph(changed, list(given))
    distance = np.linalg.norm(np.asarray(got, np.float64) - want)
    assert distance <= 1e-2 * np.linalg.norm(want)


def draw_grouped(
    name: str, dtype: Any, rows: int
) -> tuple[Callable[..., Any], tuple[np.ndarray, ...], np.ndarray]:
    """(function, arguments as they lie in memory, its value in f64)."""
    x, q, s = normal(rows, DEPTH), integers(dtype, DEPTH, COLUMNS), normal(GROUPS, COLUMNS)
    numbers = q.astype(np.float64)
    given: tuple[np.ndarray, ...] = (x, q, s)
    fn = GROUPED[name]
    if name == "zeros":
        given = (*given, normal(GROUPS, COLUMNS))
        numbers -= np.repeat(given[-1], GROUP, 0).astype(np.float64)
    if name == "columns first":
        given = (x, q.T.copy(), s.T.copy())

        def fn(x: Any, q: Any, s: Any) -> Any:
            return columns_first(x, q.T, s.T)

    return fn, given, x.astype(np.float64) @ (numbers * np.repeat(s, GROUP, 0).astype(np.float64))


def in_memory(x: Any, ws: Any, i: Any) -> Any:
    return x @ ws[0]


def computed(x: Any, ws: Any, i: Any) -> Any:
    return x @ jnp.tanh(lax.dynamic_index_in_dim(ws, i, keepdims=False))


def at_highest(x: Any, ws: Any, i: Any) -> Any:
    w = lax.dynamic_index_in_dim(ws, i, keepdims=False)
    return jnp.dot(x, w, precision=lax.Precision.HIGHEST)


def part_of_a_layer(x: Any, ws: Any, i: Any) -> Any:
    return x @ lax.dynamic_slice(ws, (i, 0, 7), (1, DEPTH, COLUMNS - 8))[0]


LEFT = {
    "in memory": (in_memory, 4),
    "computed": (computed, 4),
    "exact": (at_highest, 4),
    "a part": (part_of_a_layer, 4),
    "many rows": (of_layer, 65),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_stays_a_product(name: str) -> None:
    fn, rows = LEFT[name]
    arguments = (
        normal(rows, DEPTH, dtype=np.float32),
        normal(LAYERS, DEPTH, COLUMNS, dtype=np.float32),
        np.int32(1),
    )
    graph, changed = rewrite(fn, *arguments)
    assert changed is graph


def test_weights_that_a_loop_computes_are_read_from_its_result() -> None:
    """The loop's result is a tuple, which no array is: they are in memory as its element."""

    def fn(x: Any, ws: Any, i: Any) -> Any:
        w, _ = lax.while_loop(lambda s: s[1] < i, lambda s: (s[0] * 2, s[1] + 1), (ws[0], 0))
        return x @ w

    arguments = (normal(4, DEPTH), normal(LAYERS, DEPTH, COLUMNS), np.int32(1))
    graph, changed = rewrite(fn, *arguments)
    (product,) = narrow(changed)
    assert not attrs_of(product).layer
    compare(graph, changed, arguments)


def multiply(x: Any, w: Any) -> Any:
    return x @ w


def multiply_transposed(x: Any, w: Any) -> Any:
    return x @ w.T


def multiply_experts(x: Any, w: Any) -> Any:
    return jnp.einsum("ebk,ekn->ebn", x, w)


IN_MEMORY = {
    "few numbers": (multiply, (2, 1024), (1024, 1024), True),
    "few numbers, transposed": (multiply_transposed, (8, 2048), (1024, 2048), True),
    "layer of a number in the text": (lambda x, ws: x @ ws[1], (4, 1024), (2, 1024, 1024), True),
    "heads": (
        lambda x, w: jnp.einsum("bd,dhf->bhf", x, w),
        (4, 1024),
        (1024, 16, 128),
        True,
    ),
    "depth between the columns": (
        lambda x, w: jnp.einsum("bd,hdk->bhk", x, w),
        (4, 1024),
        (16, 1024, 128),
        True,
    ),
    "depth between the columns, weights first": (
        lambda x, w: jnp.einsum("hdk,bd->hkb", w, x),
        (5, 1024),
        (16, 1024, 128),
        True,
    ),
    "many numbers, depth between the columns": (
        lambda x, w: jnp.einsum("bd,hdk->bhk", x, w),
        (4, 1024),
        (128, 1024, 128),
        True,
    ),
    "many numbers, some rows": (multiply, (32, 2048), (2048, 8192), True),
    "many numbers, few rows": (multiply, (8, 2048), (2048, 8192), False),
    "one row": (multiply, (1, 2048), (2048, 8192), True),
    "one row, transposed": (multiply_transposed, (1, 2048), (8192, 2048), True),
    "too many numbers": (multiply, (32, 1024), (1024, 128 * 1024), False),
    "too many rows": (multiply, (65, 1024), (1024, 1024), False),
    "too few numbers": (multiply, (8, 1024), (1024, 512), False),
    "experts": (multiply_experts, (4, 8, 2048), (4, 2048, 1024), True),
    "small experts": (multiply_experts, (16, 8, 512), (16, 512, 1024), False),
}


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
@pytest.mark.parametrize("name", IN_MEMORY)
def test_weights_in_memory(name: str, dtype: Any) -> None:
    """Floats of 16 bits: XLA's products in f32 are as fast, but for weights that it transposes."""
    fn, rows, weights, taken = IN_MEMORY[name]
    arguments = (np.zeros(rows, dtype), np.zeros(weights, dtype))
    _, changed = rewrite(fn, *arguments)
    is_transposed = "between" in name
    assert len(narrow(changed)) == (taken and (is_transposed or dtype is not np.float32))


def sum_products(x: Any, *weights: Any) -> Any:
    """As XLA writes a product of one row."""
    wide = x.astype(jnp.float32)
    sums = [(wide[:, None] * w.astype(jnp.float32)).sum(0).astype(x.dtype) for w in weights]
    return jnp.concatenate([jnp.tanh(s) for s in sums])


def sum_transposed(x: Any, *weights: Any) -> Any:
    wide = x.astype(jnp.float32)
    sums = [(w.astype(jnp.float32) * wide).sum(1) for w in weights]
    return jnp.concatenate([jnp.tanh(s) for s in sums])


def sum_heads(x: Any, *weights: Any) -> Any:
    return sum_products(x, *(w.reshape(DEPTH, 4, -1) for w in weights))


SUMS = {"columns": sum_products, "transposed": sum_transposed}


@pytest.mark.parametrize("columns", [(2048,), (1024, 256, 256), (512, 512, 512, 512, 1024)])
@pytest.mark.parametrize("name", SUMS)
def test_sums_that_xla_wrote_are_products_again(name: str, columns: tuple[int, ...]) -> None:
    """Those of one row are one product, of at most four matrices."""
    shapes = [(n, DEPTH) if name == "transposed" else (DEPTH, n) for n in columns]
    arguments = (normal(DEPTH), *(normal(*shape) for shape in shapes))
    graph, changed = rewrite(SUMS[name], *arguments)
    assert sum(attrs_of(node).matrices for node in narrow(changed)) == len(columns)
    assert len(narrow(changed)) == -(-len(columns) // 4)
    assert not any(node.op == "reduce" and node.shape != () for node in unsplit(changed))
    compare(graph, changed, arguments)


def unsplit(graph: Graph) -> list[Node]:
    """All but what adds the parts of products."""
    parts = {node.name for node in narrow(graph)}
    return [node for node in graph if not parts & {*node.operands}]


def sum_computed(x: Any, w: Any) -> Any:
    return sum_products(x, jnp.tanh(w))


def sum_twice(x: Any, w: Any) -> Any:
    """Weights of which something else is read beside the sum."""
    return sum_products(x, w) + jnp.abs(w).max(0)


def sum_few(x: Any, w: Any) -> Any:
    return sum_products(x, w[:, :256])


@pytest.mark.parametrize("fn", [sum_computed, sum_twice, sum_few])
def test_sums_that_a_kernel_computes_better_stay(fn: Callable[..., Any]) -> None:
    graph, changed = rewrite(fn, normal(DEPTH), normal(DEPTH, COLUMNS))
    assert changed is graph


@pytest.mark.parametrize(
    "name",
    [
        "few numbers, transposed",
        "layer of a number in the text",
        "depth between the columns",
        "depth between the columns, weights first",
    ],
)
def test_weights_in_memory_give_the_same(name: str) -> None:
    fn, rows, weights, _ = IN_MEMORY[name]
    arguments = (normal(*rows), normal(*weights))
    compare(*rewrite(fn, *arguments), arguments)


def test_few_numbers_stay_a_product() -> None:
    arguments = (normal(4, 256), normal(LAYERS, 256, 1024), np.int32(1))
    graph, changed = rewrite(of_layer, *arguments)
    assert changed is graph


def test_where_nothing_was_measured_all_stays() -> None:
    arguments = (normal(4, DEPTH), normal(LAYERS, DEPTH, COLUMNS), np.int32(1))
    graph, changed = rewrite(of_layer, *arguments, gpu=preset("a100"))
    assert changed is graph


@pytest.mark.parametrize(
    ("rows", "transposed", "taken"),
    [
        (1, False, True),
        (8, False, True),
        (9, False, False),
        (64, False, False),
        (1, True, False),
        (8, True, False),
        (9, True, True),
        (32, True, True),
        (33, True, False),
    ],
)
def test_bytes_scaled_by_columns(rows: int, transposed: bool, taken: bool) -> None:
    """XLA converts them as it multiplies: they are taken where a kernel fed from registers is faster."""

    def fn(x: Any, q: Any, s: Any) -> Any:
        wide = q.astype(x.dtype)
        return (x @ (wide.T if transposed else wide)) * s

    columns = 2 * COLUMNS
    shape = (columns, DEPTH) if transposed else (DEPTH, columns)
    arguments = (normal(rows, DEPTH), integers(np.int8, *shape), normal(columns))
    graph, changed = rewrite(fn, *arguments)
    assert len(narrow(changed)) == taken
    compare(graph, changed, arguments)


def scale_columns(x: Any, q: Any, s: Any) -> Any:
    return x @ (q.astype(x.dtype) * s)


def scale_columns_first(x: Any, q: Any, s: Any) -> Any:
    return jnp.einsum("bk,nk->bn", x, q.T.astype(x.dtype) * s[:, None])


def scale_heads(x: Any, q: Any, s: Any) -> Any:
    return jnp.einsum("bd,dhf->bhf", x, (s * q.astype(x.dtype)).reshape(DEPTH, 16, -1))


def scale_two(x: Any, q: Any, s: Any) -> Any:
    """As XLA writes two products of the same rows."""
    wide = [q.astype(x.dtype) * s, q.astype(x.dtype) * (2 * s)]
    return x @ jnp.concatenate(wide, 1)


@pytest.mark.parametrize("fn", [scale_columns, scale_columns_first, scale_heads, scale_two])
def test_four_bits_scaled_by_columns(fn: Callable[..., Any]) -> None:
    """XLA would write all of them to memory."""
    q, s = integers(ml_dtypes.int4, DEPTH, 2 * COLUMNS), normal(2 * COLUMNS)
    _, changed = rewrite(fn, normal(4, DEPTH), q, s)
    assert len(narrow(changed)) == 1
    _, alone = rewrite(fn, normal(1, DEPTH), q, s)
    assert len(narrow(alone)) == 1


def test_bytes_scaled_by_columns_side_by_side() -> None:
    arguments = (normal(4, DEPTH), integers(np.int8, DEPTH, COLUMNS), normal(COLUMNS))
    graph, changed = rewrite(scale_two, *arguments)
    assert len(narrow(changed)) == 1
    compare(graph, changed, arguments)
    _, single = rewrite(scale_columns, normal(16, DEPTH), *arguments[1:])
    assert not narrow(single)  # its scales stand behind XLA's product


def test_experts_have_a_product_each() -> None:
    """A batch dimension, of one layer of several."""

    def fn(x: Any, ws: Any, i: Any) -> Any:
        return jnp.einsum("ebk,ekn->ebn", x, lax.dynamic_index_in_dim(ws, i, keepdims=False))

    arguments = (normal(4, 3, 512), normal(LAYERS, 4, 512, 1024), np.int32(1))
    graph, changed = rewrite(fn, *arguments)
    assert len(narrow(changed)) == 1
    compare(graph, changed, arguments)


def multiply_layer(x: Any, ws: Any, i: Any) -> Any:
    """Batch dimensions in another order in the weights."""
    w = lax.dynamic_index_in_dim(ws, i, keepdims=False)
    return lax.dot_general(x, w, (((3,), (2,)), ((0, 1), (1, 0))))


def test_batch_dimensions_in_another_order() -> None:
    arguments = (normal(2, 2, 3, 512), normal(LAYERS, 2, 2, 512, 1024), np.int32(1))
    compare(*rewrite(multiply_layer, *arguments), arguments)


@pytest.mark.parametrize("layer", [np.uint32(3_000_000_000), np.int64(-(2**40)), np.int64(2**40)])
def test_numbers_of_layers_are_bounded_in_their_type(layer: Any) -> None:
    with jax.enable_x64(layer.dtype == np.int64):
        arguments = (normal(1, DEPTH), normal(LAYERS, DEPTH, COLUMNS), layer)
        graph, changed = rewrite(of_layer, *arguments)
    assert narrow(changed)
    compare(graph, changed, arguments)


def test_results_in_f32_are_not_rounded() -> None:
    """Neither those of one part: as many columns have blocks for all SMs."""

    def fn(x: Any, ws: Any, i: Any) -> Any:
        w = lax.dynamic_index_in_dim(ws, i, keepdims=False)
        return jnp.dot(x, w, preferred_element_type=jnp.float32)

    arguments = (normal(1, 256), normal(LAYERS, 256, 16384), np.int32(1))
    graph, changed = rewrite(fn, *arguments)
    (product,) = narrow(changed)
    assert product.shape[0] == 1 and product.dtype.numpy == np.float32
    (want,), (got,) = (run_graph(g, list(arguments)) for g in (graph, changed))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1, 1e-6])
def test_scales_in_f32_are_not_rounded(size: float) -> None:
    """In f16 small ones would be none."""

    def fn(x: Any, q: Any, s: Any) -> Any:
        w = q.reshape(GROUPS, GROUP, -1).astype(jnp.float32) * s[:, None]
        return x @ w.reshape(q.shape).astype(x.dtype)

    scales = (size * RNG.random((GROUPS, COLUMNS))).astype(np.float32)
    x, q = normal(4, DEPTH, dtype=np.float16), integers(np.int8, DEPTH, COLUMNS)
    _, changed = rewrite(fn, x, q, scales)
    assert narrow(changed)
    (got,) = run_graph(changed, [x, q, scales])
    weights = q.astype(np.float64) * np.repeat(scales, GROUP, 0)
    want = (x.astype(np.float64) @ weights).astype(np.float16).astype(np.float64)
    assert np.linalg.norm(np.asarray(got, np.float64) - want) <= 1e-3 * np.linalg.norm(want)


def rounded_to_bytes(x: Any, ws: Any, i: Any) -> Any:
    w = lax.dynamic_index_in_dim(ws, i, keepdims=False)
    return x @ w.astype(jnp.float8_e4m3fn).astype(x.dtype)


def with_exact_zeros(x: Any, ws: Any, i: Any) -> Any:
    """Offsets of more bits than x: 128.3 is 128 in bf16."""
    q = lax.dynamic_index_in_dim(ws, i, keepdims=False).astype(jnp.int8)
    zeros = jnp.full((GROUPS, 1, COLUMNS), 128.3) * i.astype(jnp.float32)
    w = q.reshape(GROUPS, GROUP, COLUMNS).astype(jnp.float32) - zeros
    return x @ w.reshape(q.shape).astype(x.dtype)


@pytest.mark.parametrize("fn", [rounded_to_bytes, with_exact_zeros])
def test_what_would_be_other_numbers_stays(fn: Callable[..., Any]) -> None:
    graph, changed = rewrite(fn, normal(4, DEPTH), normal(LAYERS, DEPTH, COLUMNS), np.int32(1))
    assert changed is graph


def exact(*arrays: np.ndarray) -> list[Any]:
    """In f32, on the processor: exact beside products in TF32."""
    place = jax.devices("cpu")[0]
    return [jax.device_put(array.astype(np.float32), place) for array in arrays]


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 5, 33, 64, 200])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("name", LAYERED)
def test_layers_of_a_scan_on_a_gpu(name: str, dtype: Any, rows: int) -> None:
    import astitch

    def fn(x: Any, ws: Any) -> Any:
        def turn(h: Any, i: Any) -> tuple[Any, Any]:
            return h, LAYERED[name](h, ws, i)

        return lax.scan(turn, x, jnp.arange(LAYERS))[1]

    x = normal(rows, DEPTH, dtype=dtype)
    ws = normal(LAYERS, DEPTH, COLUMNS, dtype=dtype)
    with astitch.enabled():
        got = jax.jit(lambda x, ws: fn(x, ws))(x, ws)
    want = np.stack([np.asarray(LAYERED[name](*exact(x, ws), i)) for i in range(LAYERS)])
    distance = np.linalg.norm(np.asarray(got, np.float64) - want)
    assert distance <= 5e-3 * np.linalg.norm(want)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 4, 32])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize("name", GROUPED)
def test_groups_on_a_gpu(name: str, dtype: Any, rows: int) -> None:
    import astitch

    fn, given, want = draw_grouped(name, dtype, rows)
    with astitch.enabled():
        got = jax.jit(lambda *arguments: fn(*arguments))(*given)
    distance = np.linalg.norm(np.asarray(got, np.float64) - want)
    assert distance <= 1e-2 * np.linalg.norm(want)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("name", [name for name in IN_MEMORY if IN_MEMORY[name][-1]])
def test_weights_in_memory_on_a_gpu(name: str, dtype: Any) -> None:
    import astitch

    fn, rows, weights, _ = IN_MEMORY[name]
    arguments = (normal(*rows, dtype=dtype), normal(*weights, dtype=dtype))
    with astitch.enabled():
        got = jax.jit(lambda *given: fn(*given))(*arguments)
    want = np.asarray(fn(*exact(*arguments)))
    distance = np.linalg.norm(np.asarray(got, np.float64) - want)
    assert distance <= 5e-3 * np.linalg.norm(want)


@pytest.mark.gpu
@pytest.mark.parametrize("name", SUMS)
def test_sums_on_a_gpu(name: str) -> None:
    import astitch

    columns = (1024, 256, 256)
    shapes = [(n, DEPTH) if name == "transposed" else (DEPTH, n) for n in columns]
    arguments = (normal(DEPTH), *(normal(*shape) for shape in shapes))
    with astitch.enabled():
        got = jax.jit(lambda *given: SUMS[name](*given))(*arguments)
    want = np.asarray(SUMS[name](*exact(*arguments)))
    distance = np.linalg.norm(np.asarray(got, np.float64) - want)
    assert distance <= 2e-2 * np.linalg.norm(want)
