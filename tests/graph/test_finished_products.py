"""find_finished: what XLA computes as it multiplies is left to it where that moves no more, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.graph.check import check_graph
from astitch.graph.finished_products import Finished, find_finished
from astitch.graph.ir import Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.expand import expand
from astitch.rewrite.simplify import simplify
from astitch.stitch_scope import Left, choose_stages, find_scopes

ROWS, DEPTH, COLUMNS = 2048, 96, 768
BF16, F32 = jnp.bfloat16, jnp.float32
X, W, R = (ROWS, DEPTH), (DEPTH, COLUMNS), (ROWS, COLUMNS)
B, C = (COLUMNS,), (ROWS,)


def lower(fn: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = BF16) -> Graph:
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    module = jax.jit(fn, keep_unused=True).lower(*arguments).compiler_ir("hlo")
    return expand(simplify(import_hlo(module.as_serialized_hlo_module_proto())))


def find(fn: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = BF16) -> Finished:
    found = find_finished(lower(fn, *shapes, dtype=dtype))
    check_graph(found.graph)
    return found


def list_taken(found: Finished) -> list[str]:
    """The opcodes of what products take in, without repetitions."""
    ops = (found.graph[name].op for name in found.products)
    return sorted(op for op in ops if op != "broadcast")


def norm(x: Any) -> Any:
    wide = x.astype(F32)
    return (wide / jnp.sqrt((wide * wide).mean(-1, keepdims=True))).astype(x.dtype)


WHOLE = {
    "bias of rows": (lambda x, w, b: x @ w + b, (X, W, B), ["add"]),
    "bias of columns": (lambda x, w, c: x @ w + c[:, None], (X, W, C), ["add"]),
    "residual": (lambda x, w, r: x @ w + r, (X, W, R), ["add"]),
    "relu": (lambda x, w, b: jax.nn.relu(x @ w + b), (X, W, B), ["add", "maximum"]),
    "relu, then residual": (
        lambda x, w, b, r: r + jax.nn.relu(x @ w + b),
        (X, W, B, R),
        ["add", "add", "maximum"],
    ),
    "scaled": (lambda x, w: jnp.tanh((x @ w) * 0.125), (X, W), ["multiply", "tanh"]),
    "a number is computed": (lambda x, w, s: (x @ w) * (s * 2), (X, W, ()), ["multiply"] * 2),
    "gate": (lambda x, w, r: (x @ w) * r, (X, W, R), ["multiply"]),
    "narrowed": (
        lambda x, w: (jnp.matmul(x, w, preferred_element_type=F32) * 0.5).astype(BF16),
        (X, W),
        ["convert", "multiply"],
    ),
    "another shape": (
        lambda x, w, b: jax.nn.relu((x @ w + b).reshape(ROWS, 8, COLUMNS // 8)),
        (X, W, B),
        ["add", "maximum"],
    ),
    "of batches": (
        lambda x, w, b: jnp.einsum("bij,bjk->bik", x, w) + b[:, None],
        ((4, *X), (4, *W), (4, *B)),
        ["add"],
    ),
    "sum of two products": (
        lambda x, w, v: jax.nn.relu(x @ w) + jax.nn.relu(x[::-1] @ v),
        (X, W, W),
        ["add", "maximum", "maximum"],
    ),
    "a slice of it": (
        lambda x, w: jax.nn.softmax((x @ w)[::3], -1),
        (X, W),
        ["slice"],
    ),
    "the last words of each sequence": (
        lambda x, w: norm((x @ w).reshape(16, -1, COLUMNS)[:, -2:]),
        (X, W),
        ["slice"],
    ),
    "adapters of low rank": (
        lambda x, w, a, b: jax.nn.silu(x @ w + x @ a @ b),
        (X, W, (DEPTH, 16), (16, COLUMNS)),
        ["add"],
    ),
    "a gate of them": (
        lambda x, w, a, b: jax.nn.gelu(x @ w + x @ a @ b) * jnp.tanh(x @ w[::-1] + x @ a[::-1] @ b),
        (X, W, (DEPTH, 16), (16, COLUMNS)),
        ["add", "add"],
    ),
    "read by a product": (
        lambda x, w, b: jax.nn.relu(x @ w + b) @ w.T,
        (X, W, B),
        ["add", "maximum"],
    ),
    "the sum is a result too": (
        lambda x, w, b: (lambda s: (s, norm(s)))(x @ w + b),
        (X, W, B),
        ["add"],
    ),
    "residual of a stream": (
        lambda x, w, v, r: (lambda s: s + norm(s) @ v)(r + x @ w),
        (X, W, (COLUMNS, COLUMNS), R),
        ["add", "add"],
    ),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_is_computed_with_the_product(name: str, dtype: Any) -> None:
    fn, shapes, ops = WHOLE[name]
    assert list_taken(find(fn, *shapes, dtype=dtype)) == ops


PARTS = {
    "gelu reads the sum twice": (lambda x, w, b: jax.nn.gelu(x @ w + b), (X, W, B)),
    "a norm alone reads the sum": (lambda x, w, b: norm(x @ w + b), (X, W, B)),
    "a square": (lambda x, w: jnp.square(x @ w), (X, W)),
    "the product is a result": (lambda x, w, b: (lambda s: (s, s + b))(x @ w), (X, W, B)),
    "the residual is computed": (lambda x, w, r: x @ w + jnp.tanh(r), (X, W, R)),
    "a mask is computed": (lambda x, w, r: jnp.where(r > 0, x @ w, 0), (X, W, R)),
    "places": (lambda x, w: x @ w + jnp.arange(COLUMNS, dtype=x.dtype), (X, W)),
    "one row": (lambda x, w, b: x @ w + b, ((1, DEPTH), W, B)),
    "a tiny product": (lambda x, w, b: x @ w + b, ((4, 8), (8, 4), (4,))),
    "most of it": (lambda x, w: norm((x @ w)[8:]), (X, W)),
    "two slices": (lambda x, w: (lambda y: norm(y[:8]) + y[8:16])(x @ w), (X, W)),
    "no form for tiles": (lambda x, w: jnp.sign(x @ w), (X, W)),
}


@pytest.mark.parametrize("name", PARTS)
def test_stays_with_kernels(name: str) -> None:
    fn, shapes = PARTS[name]
    assert list_taken(find(fn, *shapes)) == []


def test_where_xla_adds_no_products_a_kernel_does() -> None:
    fn, shapes, _ = WHOLE["adapters of low rank"]
    found = find_finished(lower(fn, *shapes), adds_products=False)
    assert list_taken(found) == []


def test_a_wider_result_is_computed_where_it_is_read() -> None:

    def fn(x: Any, w: Any) -> Any:
        return norm((x @ w).astype(F32) + 1)

    assert list_taken(find(fn, X, W)) == []


def test_a_kernel_gets_the_narrower_value() -> None:
    """A norm that reads bf16 in place of the product's f32."""

    def fn(x: Any, w: Any) -> Any:
        return norm((jnp.matmul(x, w, preferred_element_type=F32) * 0.5).astype(BF16))

    assert list_taken(find(fn, X, W)) == ["convert", "multiply"]


@pytest.mark.parametrize("rows, taken", [(8 * ROWS, ["add"]), (8, [])])
def test_a_bias_that_is_computed_is_written_for_a_large_product(
    rows: int, taken: list[str]
) -> None:
    """By a kernel in front of it, which is worth as many bytes as a launch takes."""

    def by_features(x: Any, w: Any, b: Any) -> Any:
        return x @ w + jnp.tanh(b)

    def by_rows(x: Any, w: Any, b: Any) -> Any:
        return x @ w - (x * x).sum(1, keepdims=True)

    for fn, op in ((by_features, "add"), (by_rows, "subtract")):
        assert list_taken(find(fn, (rows, DEPTH), W, B)) == [op] * len(taken)


def test_little_is_not_worth_a_cut() -> None:
    """Where there is a kernel anyway, the bytes that are spared must be worth a part of a microsecond."""

    def fn(x: Any, w: Any, b: Any) -> Any:
        sum_ = x @ w + b
        return sum_, norm(sum_)

    assert list_taken(find(fn, (128, DEPTH), (DEPTH, 128), (128,))) == []


def test_what_others_read_too_is_repeated() -> None:
    """A bias that a kernel adds as well: it reads no array of repetitions."""

    def fn(x: Any, w: Any, b: Any, r: Any) -> Any:
        return x @ w + b, norm(r + b)

    found = find(fn, X, W, B, R)
    assert list_taken(found) == ["add"]
    for name in found.products:
        if found.graph[name].op == "broadcast":
            assert all(user in found.products for user in found.graph.users[name])


def convolve(x: Any, k: Any) -> Any:
    numbers = ("NHWC", "OHWI", "NHWC")
    return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=numbers)


I, K, F = (4, 32, 32, 64), (64, 3, 3, 64), (64,)
CONVOLUTIONS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "bias": (lambda x, k, b, r: convolve(x, k) + b, ["add"]),
    "relu": (lambda x, k, b, r: jax.nn.relu(convolve(x, k) + b), ["add", "maximum"]),
    "residual": (
        lambda x, k, b, r: jax.nn.relu(convolve(x, k) * 0.5 + r + b),
        ["add", "add", "maximum", "multiply"],
    ),
    "silu": (lambda x, k, b, r: jax.nn.silu(convolve(x, k) + b), []),
    "tanh": (lambda x, k, b, r: jnp.tanh(convolve(x, k) + b), []),
    "no bias": (lambda x, k, b, r: jax.nn.relu(convolve(x, k) + r), []),
    "a scale of features": (lambda x, k, b, r: jax.nn.relu(convolve(x, k) * b + b), []),
    "behind relu": (lambda x, k, b, r: jax.nn.relu(convolve(x, k) + b) + r, []),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_of_convolutions(name: str) -> None:
    fn, ops = CONVOLUTIONS[name]
    assert list_taken(find(fn, I, K, F, I)) == ops


BEFORE: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], list[str]]] = {
    "function": (lambda x, w: jnp.tanh(jnp.exp(x)) @ w, (X, W), ["exponential", "tanh"]),
    "bias": (lambda x, w, b: (x + b) @ w, (X, W, (DEPTH,)), ["add"]),
    "scale of rows": (lambda x, w, c: (x * c[:, None]) @ w, (X, W, C), ["multiply"]),
    "casts of parameters": (lambda x, w: x @ w.astype(F32), (X, W), ["convert", "convert"]),
    "for two products": (
        lambda x, w, g: (jax.nn.relu(x) @ w, jax.nn.relu(x).T @ g),
        (X, W, R),
        ["maximum", "maximum"],
    ),
    "of a sum that a product gives": (
        lambda x, w, b, v: (lambda h: (jax.nn.relu(h) @ v, norm(h)))(x @ w + b),
        (X, W, B, (COLUMNS, COLUMNS)),
        ["add", "maximum"],
    ),
    "two arrays": (lambda x, w, y: (x * y) @ w, (X, W, X), []),
    "read twice": (lambda x, w: jax.nn.silu(x) @ w, (X, W), []),
    "a result": (lambda x, w: (lambda y: (y @ w, y))(jnp.tanh(x)), (X, W), []),
    "of a norm": (lambda x, w: jnp.tanh(norm(x)) @ w, (X, W), []),
    "a kernel reads it": (lambda x, w: (lambda y: (y @ w, y.sum(0)))(jnp.tanh(x)), (X, W), []),
}


@pytest.mark.parametrize("name", BEFORE)
def test_in_front_of_products(name: str) -> None:
    fn, shapes, ops = BEFORE[name]
    found = find(fn, *shapes)
    assert list_taken(found) == ops
    order = list(found.graph.nodes)
    for taken, product in found.products.items():
        if order.index(taken) < order.index(product) and taken not in found.graph.embedded:
            readers = found.graph.users[taken]
            assert all(found.products.get(user, user) == product for user in readers)


def test_a_product_and_what_it_takes_in_are_one_step() -> None:
    """Stages count products, so that kernels of one stage still meet."""

    def fn(x: Any, w: Any, b: Any, v: Any) -> Any:
        return norm(jax.nn.relu(x @ w + b) @ w.T), norm(x @ v)

    found = find(fn, X, W, B, W)
    reasons = {name: f"with %{product}" for name, product in found.products.items()}
    staged = choose_stages(Left(found.graph, reasons, found.products))
    assert max(staged.stage.values()) == 2
    scopes = find_scopes(staged)
    assert {scope.stage for scope in scopes.scopes} <= {1, 2}
    assert all(name not in scope.members for scope in scopes.scopes for name in found.products)


def test_the_graph_computes_the_same() -> None:
    def fn(x: Any, w: Any, b: Any, r: Any) -> Any:
        return jax.nn.relu(x @ w + b) + r, jnp.tanh(r + b)

    graph = lower(fn, (32, 64), (64, 48), (48,), (32, 48), dtype=F32)
    found = find_finished(graph)
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal(graph[p].shape).astype(np.float32) for p in graph.parameters]
    for one, other in zip(
        run_graph(graph, arguments), run_graph(found.graph, arguments), strict=True
    ):
        np.testing.assert_array_equal(one, other)
