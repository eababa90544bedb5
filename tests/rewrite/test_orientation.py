"""Products turned to the order of the kernels around them: which, in whatever spelling, and that nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.graph.ir import DotAttrs, Graph, TransposeAttrs
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.pipeline import Launcher, Target
from astitch.rewrite.products import arrange_products
from astitch.rewrite.simplify import find_arranged_rules, rewrite_graph, simplify
from astitch.search.plan import Plan

Function = Callable[..., Any]
DTYPES = (jnp.bfloat16, jnp.float16, jnp.float32)


def specs(*shapes: tuple[int, ...], dtype: Any = jnp.bfloat16) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]


def graph_of(fn: Function, *arguments: Any) -> Graph:
    module = jax.jit(fn).trace(*arguments).lower(lowering_platforms=("cuda",)).compiler_ir("hlo")
    return simplify(import_hlo(module.as_serialized_hlo_module_proto()))


def heard(graph: Graph) -> list[str]:
    rules: list[str] = []
    arrange_products(graph, lambda rule, node: rules.append(rule))
    return sorted(rule for rule in rules if rule in ("turn_product", "turn_operand"))


def plans_of(graph: Graph) -> tuple[Plan, ...]:
    return compile_graph(graph, preset("h100"), Target(launcher=Launcher.XLA)).plans


def across(plans: tuple[Plan, ...]) -> Iterator[str]:
    """The arrays of some size that a warp reads or writes in parts of sectors."""
    from astitch.cost.workload import count_workload

    for plan in plans:
        for access in count_workload(plan.kernel).accesses:
            if access.bytes > 1 << 20 and access.sector_share < 0.5:
                yield f"{plan.kernel.name}: {access.array}"


def norm(x: jax.Array) -> jax.Array:
    y = x.astype(jnp.float32)
    return (y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype)


# ---- a layer whose weights stand on the left, in several spellings


def by_vmap(x: jax.Array, w: jax.Array) -> jax.Array:
    return norm(x + jax.vmap(lambda row: w @ row)(x))


def by_einsum(x: jax.Array, w: jax.Array) -> jax.Array:
    return norm(x + jnp.einsum("of,tf->ot", w, x).T)


def by_transposes(x: jax.Array, w: jax.Array) -> jax.Array:
    return norm(x + (w @ x.T).T)


def by_batches(x: jax.Array, w: jax.Array) -> jax.Array:
    parts = x.reshape(4, -1, x.shape[-1])
    return norm(parts + jax.vmap(jax.vmap(lambda row: w @ row))(parts)).reshape(x.shape)


@pytest.mark.parametrize("layer", [by_vmap, by_einsum, by_transposes, by_batches])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_reads_the_products_result_along_its_rows(layer: Function, dtype: Any) -> None:
    graph = graph_of(layer, *specs((2048, 1024), (1024, 1024), dtype=dtype))
    assert heard(graph) in (["turn_product"], [])  # JAX may write the product the other way round
    plans = plans_of(graph)
    assert len(plans) == 1 and plans[0].kernel.global_barriers == 0
    assert not list(across(plans))


def losses(x: jax.Array, w: jax.Array) -> jax.Array:
    """The gradient of a cross-entropy over vmapped logits."""
    logits = jax.vmap(lambda row: w @ row)(x).astype(jnp.float32)
    return jnp.exp(logits - jax.nn.logsumexp(logits, -1, keepdims=True)) - 1.0


@pytest.mark.parametrize("words", [8192, 6000])
def test_logits_of_weights_on_the_left_are_reduced_by_rows(words: int) -> None:
    graph = graph_of(losses, *specs((2048, 512), (words, 512)))
    assert heard(graph) == ["turn_product"]
    assert not list(across(plans_of(graph)))


# ---- norms of each channel over places, behind a product of channels


def normed_places(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    y = jax.nn.gelu(x @ w)
    size = jnp.linalg.norm(y.astype(jnp.float32), axis=(1, 2), keepdims=True)
    return (y * (size / size.mean(-1, keepdims=True)).astype(y.dtype)) @ v


def normed_words(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    y = jnp.einsum("bhwc,cd->bdhw", x, w).astype(jnp.float32)
    y = (y - y.mean((2, 3), keepdims=True)) * jax.lax.rsqrt(y.var((2, 3), keepdims=True) + 1e-5)
    return jnp.einsum("bdhw,dc->bhwc", jax.nn.relu(y).astype(x.dtype), v)


def excited(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    y = jax.vmap(lambda image: jax.nn.silu(image.reshape(-1, image.shape[-1]) @ w))(x)
    gates = jax.nn.softmax(y.astype(jnp.float32).max(1), -1).astype(y.dtype)
    return (y * gates[:, None]) @ v


@pytest.mark.parametrize("layer", [normed_places, normed_words, excited])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gradient", [False, True])
def test_norms_over_places_are_read_along_them(layer: Function, dtype: Any, gradient: bool) -> None:
    def loss(*arguments: jax.Array) -> jax.Array:
        return jnp.square(layer(*arguments).astype(jnp.float32)).mean()

    shapes = specs((16, 56, 56, 96), (96, 384), (384, 96), dtype=dtype)
    graph = graph_of(jax.grad(loss, argnums=(0, 1, 2)) if gradient else layer, *shapes)
    assert not list(across(plans_of(graph)))


# ---- what is kept for the backward pass lies as it was computed


def gated(x: jax.Array, g: jax.Array, u: jax.Array, d: jax.Array) -> jax.Array:
    def one(row: jax.Array) -> jax.Array:
        return d @ (jax.nn.silu(g @ row) * (u @ row))

    return jnp.square(norm(x + jax.vmap(one)(x)).astype(jnp.float32)).sum()


def test_gradients_of_a_gated_layer_lie_along_one_direction() -> None:
    shapes = specs((4096, 1024), (2816, 1024), (2816, 1024), (1024, 2816))
    graph = graph_of(jax.grad(gated, argnums=(0, 1, 2, 3)), *shapes)
    assert "turn_product" in heard(graph)
    assert not list(across(plans_of(graph)))


# ---- attention: operands


def grouped(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Heads in groups that share keys: [batch, places, group, head, size], [batch, places, head, size]."""
    logits = jnp.einsum("btghd,bshd->bghts", q, k).astype(jnp.float32)
    return jnp.einsum("bghts,bshd->btghd", jax.nn.softmax(logits, -1).astype(q.dtype), v)


def test_what_a_product_of_a_softmax_reads_is_written_along_the_rows() -> None:
    q, k, v = specs((2, 512, 2, 4, 64), (2, 512, 4, 64), (2, 512, 4, 64))

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.square(grouped(q, k, v).astype(jnp.float32)).sum()

    plans = plans_of(graph_of(jax.grad(loss, argnums=(0, 1, 2)), q, k, v))
    assert not list(across(plans))


# ---- nothing changes


@pytest.mark.parametrize(("small", "large"), [(256, 512), (384, 1024), (640, 1280)])
@pytest.mark.parametrize(("precision", "turned"), [("default", True), ("highest", False)])
def test_only_tensor_cores_have_operands_turned(
    small: int, large: int, precision: str, turned: bool
) -> None:
    """Weights of an image that is resized: their sum runs along what the product contracts."""

    def fn(x: jax.Array) -> jax.Array:
        return jax.image.resize(jnp.tanh(x), (large, large), "linear", precision=precision)

    (x,) = specs((small, small), dtype=jnp.float32)
    assert ("turn_operand" in heard(graph_of(fn, x))) is turned


def squares_of_features(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Sums of each mean's weighted features, and of their products."""
    products = (x[:, :, None] * x[:, None, :]).reshape(len(x), -1)
    both = jnp.concatenate([jnp.tanh(x).T, products.T])
    return jnp.einsum("fn,nk->fk", both, jnp.tanh(weights))


def features_on_the_right(x: jax.Array, weights: jax.Array) -> jax.Array:
    both = jnp.concatenate([jnp.sin(x).T, jnp.exp(x[:, ::2]).T])
    return jax.lax.dot_general(jnp.tanh(weights), both, (((0,), (1,)), ((), ())))


def batched_features(x: jax.Array, weights: jax.Array) -> jax.Array:
    x, weights = (a.reshape(2, -1, a.shape[-1]) for a in (x, weights))
    moved = jnp.stack([jnp.sin(x), jnp.cos(x)]).transpose(1, 0, 3, 2).reshape(2, -1, x.shape[1])
    return jax.lax.dot_general(moved, weights, (((2,), (1,)), ((0,), (0,))))


@pytest.mark.parametrize("fn", [squares_of_features, features_on_the_right, batched_features])
@pytest.mark.parametrize(("columns", "turned"), [(8, True), (64, True), (512, False)])
def test_products_of_few_results_read_32_bits_as_their_kernel_writes(
    fn: Function, columns: int, turned: bool
) -> None:
    """Features of points that lie row by row, and are contracted along the points."""
    graph = graph_of(fn, *specs((16384, 8), (16384, columns), dtype=jnp.float32))
    assert ("turn_operand" in heard(graph)) is turned
    if turned:
        assert not list(across(plans_of(graph)))


def test_the_results_stay_the_same() -> None:
    rng = np.random.default_rng(0)
    shapes = [(96, 160), (352, 160), (352, 160), (160, 352)]
    arrays = [rng.standard_normal(shape, np.float32) for shape in shapes]
    graph = graph_of(jax.grad(gated, argnums=(0, 1, 2, 3)), *specs(*shapes, dtype=jnp.float32))
    changed = force(graph)
    for got, want in zip(run_graph(changed, arrays), run_graph(graph, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


def force(graph: Graph) -> Graph:
    """The graph with its products arranged as if all arrays were large."""
    from astitch.rewrite import orientation

    before = orientation.LEAST_GAIN_BYTES
    orientation.LEAST_GAIN_BYTES = 1
    try:
        return arrange_products(graph)
    finally:
        orientation.LEAST_GAIN_BYTES = before


@st.composite
def programs(draw: st.DrawFn) -> tuple[Function, list[np.ndarray]]:
    """Products with their operands in any order, cut, put together and reshaped between element-wise ops."""
    rows, depth, cols = (draw(st.sampled_from([2, 4, 6])) for _ in range(3))
    left, right, back, split, cut, joined = (draw(st.booleans()) for _ in range(6))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    a = rng.standard_normal((depth, rows) if left else (rows, depth), np.float32)
    b = rng.standard_normal((cols, depth) if right else (depth, cols), np.float32)
    c = rng.standard_normal((rows, cols), np.float32)

    def fn(a: jax.Array, b: jax.Array, c: jax.Array) -> Any:
        x, y = a.T if left else a, b.T if right else b
        product = (y.T @ x.T) if back else (x @ y)
        value = jnp.exp(product * 0.1)
        value = value.T if back else value
        if split:
            value = value.reshape(2, rows // 2, cols)
            value = (value - value.max(-1, keepdims=True)).reshape(rows, cols)
        if cut:
            value = jnp.concatenate([value[:, cols // 2 :] * 2, value[:, : cols // 2]], 1)
        if joined:
            value = value + c
        again = jnp.tanh(value) @ c.T
        return again.T * 2, value.sum(0), value.T @ again

    return fn, [a, b, c]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(programs())
def test_any_program_computes_the_same(program: tuple[Function, list[np.ndarray]]) -> None:
    fn, arrays = program
    graph = graph_of(fn, *arrays)
    changed = force(graph)
    for got, want in zip(run_graph(changed, arrays), run_graph(graph, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_merged_transpose_with_a_one_behind_it_stays() -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.dot_general(x.T.reshape(4, 6, 1), w, (((1,), (0,)), ((), ())))

    x, w = np.arange(24, dtype=np.float32).reshape(6, 4), np.ones((6, 5), np.float32)
    (found,) = run_graph(graph_of(fn, x, w), [x, w])
    np.testing.assert_array_equal(found, np.asarray(fn(x, w)))


def test_later_passes_leave_the_order_of_operands() -> None:
    graph = graph_of(losses, *specs((2048, 512), (8192, 512)))
    arranged = arrange_products(graph)
    again = rewrite_graph(
        arranged,
        lambda rule, node: None,
        lambda node, draft, values: None,
        rules=find_arranged_rules,
    )
    kinds = [
        [n.attrs for n in g if isinstance(n.attrs, DotAttrs | TransposeAttrs)]
        for g in (arranged, again)
    ]
    assert kinds[0] == kinds[1]


def test_results_of_the_program_and_small_arrays_stay() -> None:
    shapes = specs((2048, 1024), (1024, 1024))
    assert heard(graph_of(lambda x, w: (w @ x.T, norm(x)), *shapes)) == []
    assert heard(graph_of(by_vmap, *specs((16, 16), (16, 16)))) == []
