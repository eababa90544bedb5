"""find_joined_operands: XLA concatenates what its products read in parts, where a part is in memory anyway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.graph.ir import Graph
from astitch.graph.joined_operands import find_joined_operands
from astitch.hlo_import import import_hlo
from astitch.rewrite.expand import expand
from astitch.rewrite.simplify import simplify
from astitch.stitch_scope import Left, choose_stages, find_scopes

X = np.zeros((256, 128), np.float32)
W = np.zeros((128, 192), np.float32)
V = np.zeros((128, 64), np.float32)
BYTES = (np.zeros((256, 512), np.float32), *(np.zeros((512, n), np.int8) for n in (192, 64)))


def lower(fn: Callable[..., Any], *arguments: np.ndarray) -> Graph:
    module = jax.jit(fn, keep_unused=True).lower(*arguments).compiler_ir("hlo")
    return expand(simplify(import_hlo(module.as_serialized_hlo_module_proto())))


def columns(x: Any, w: Any, v: Any) -> Any:
    """Both parts are read by products of their own, as gradients of a gate are."""
    a, b = jnp.tanh(w), jnp.exp(v)
    return x @ jnp.concatenate([a, b], 1), x @ a, x @ b


def rows(x: Any, w: Any, v: Any) -> Any:
    a = jnp.tanh(x)
    return jnp.concatenate([a, x * 2]) @ w, a @ v


def half(x: Any, w: Any, v: Any) -> Any:
    a, b = w.astype(jnp.bfloat16), v.astype(jnp.bfloat16)
    return x.astype(jnp.bfloat16) @ jnp.hstack([a, b]), b


def weights(x: Any, w: Any, v: Any) -> Any:
    return jnp.tanh(x) @ jnp.concatenate([w, v], axis=-1)


def two_products(x: Any, w: Any, v: Any) -> Any:
    both = jnp.concatenate([w, v], 1)
    return x @ both, jnp.tanh(x) @ both


def bytes_(x: Any, w: Any, v: Any) -> Any:
    """Weights of eight bits side by side, converted together."""
    return jnp.tanh(x) @ jnp.hstack([w, v]).astype(x.dtype)


def in_parts(x: Any, w: Any, v: Any) -> Any:
    """A product whose sum is cut in two."""
    both = jnp.hstack([w, v]).reshape(2, 64, 256)
    return jnp.einsum("mpk,pkn->pmn", jnp.tanh(x).reshape(256, 2, 64), both)


LEFT = {
    "bytes": bytes_,
    "in parts": in_parts,
    "columns": columns,
    "rows": rows,
    "half": half,
    "weights": weights,
    "two products": two_products,
}


def contracted(x: Any, w: Any, v: Any) -> Any:
    y = jnp.tanh(x)
    return jnp.concatenate([y, x], 1) @ jnp.concatenate([w, w])


def ragged(x: Any, w: Any, v: Any) -> Any:
    return x @ jnp.concatenate([w, v[:, :63]], 1)


def read_by_a_kernel(x: Any, w: Any, v: Any) -> Any:
    both = jnp.concatenate([w, v], 1)
    return x @ both, jnp.tanh(both)


def stored_once(x: Any, w: Any, v: Any) -> Any:
    return x @ jnp.concatenate([jnp.tanh(w), jnp.exp(v)], 1)


def precise(x: Any, w: Any, v: Any) -> Any:
    return jnp.dot(x, jnp.concatenate([w, v], 1), precision="highest")


KEPT = {
    "contracted": contracted,
    "ragged": ragged,
    "read by a kernel": read_by_a_kernel,
    "stored once": stored_once,
    "precise": precise,
}


def find_concatenations(graph: Graph) -> set[str]:
    return {node.name for node in graph if node.op == "concatenate"}


@pytest.mark.parametrize("name", LEFT)
def test_no_kernel_stores_a_part_twice(name: str) -> None:
    graph = lower(LEFT[name], *(BYTES if name == "bytes" else (X, W, V)))
    assert find_concatenations(graph)
    found = find_joined_operands(graph)
    apart, products = found.graph, found.products
    assert find_concatenations(apart) <= products.keys()
    for name, product in products.items():
        (reader,) = apart.users[name]
        assert reader == product or products.get(reader) == product or apart[reader].op == "reshape"
    scopes = find_scopes(choose_stages(Left(apart, products, products))).scopes
    assert not {o for scope in scopes for o in scope.outputs} & products.keys()


def test_a_concatenation_delays_nothing() -> None:
    """A product of weights side by side can run at once, and what reads it in one kernel with what reads another."""

    def fn(x: Any, w: Any, v: Any) -> Any:
        y, z = x @ jnp.concatenate([w, v], 1), x @ w
        return jnp.tanh(y[:, :192]) * jnp.exp(z)

    found = find_joined_operands(lower(fn, X, W, V))
    assert found.products
    staged = choose_stages(Left(found.graph, found.products, found.products))
    assert {staged.stage[product] for product in found.products.values()} == {1}
    assert max(staged.stage.values()) == 1


@pytest.mark.parametrize("name", KEPT)
def test_others_stay_with_kernels(name: str) -> None:
    graph = lower(KEPT[name], X, W, V)
    assert find_concatenations(graph)
    found = find_joined_operands(graph)
    assert found.graph is graph and not found.products


def test_what_is_left_already_is_not_named_again() -> None:
    graph = lower(columns, X, W, V)
    assert not find_joined_operands(graph, find_concatenations(graph)).products


@pytest.mark.parametrize("kept", [True, False], ids=["parts in memory", "parts computed"])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_what_comes_behind_reads_the_parts(kept: bool, dtype: Any) -> None:
    """A skip connection: its product reads both arrays side by side, the gradient of the weights each by itself."""

    def loss(w: Any, x: Any, v: Any) -> Any:
        a, b = (x, x @ v) if kept else (jnp.tanh(x), jnp.exp(x))
        return jnp.tanh(jnp.concatenate([a, b], 1) @ w).sum()

    w, x, v = (np.zeros(s, dtype) for s in [(256, 128), (256, 128), (128, 128)])
    graph = lower(jax.grad(loss), w, x, v)
    found = find_joined_operands(graph)
    joined = [node for node in found.graph if node.op == "concatenate"]
    left = [node for node in joined if node.name in found.products]
    assert (len(joined), len(left)) == ((2, 1) if kept else (1, 0))
    for node in left:
        assert found.graph[found.products[node.name]].op == "dot"
    at_once = lower(lambda x, w: (jnp.hstack([x, x]) @ w, x.T @ jnp.hstack([x, x])), x, w)
    assert not find_joined_operands(at_once).products
