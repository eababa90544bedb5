"""Products as libraries read them: what is merged, what is transposed, that nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.compile import compile_graph, compile_hlo
from astitch.device.gpu import preset
from astitch.graph.ir import DotAttrs, Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.pipeline import Launcher, Target
from astitch.rewrite.products import MERGED_BYTES, arrange_products
from astitch.rewrite.simplify import simplify
from astitch.run.host_engine import HostEngine
from astitch.xla.left_to_products import find_moves

Function = Callable[..., Any]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape, np.float32)


def read(fn: Function, *arguments: Any) -> bytes:
    module: bytes = (
        jax.jit(fn).lower(*arguments).compiler_ir("hlo").as_serialized_hlo_module_proto()
    )
    return module


def graph_of(fn: Function, *arguments: Any) -> Graph:
    return simplify(import_hlo(read(fn, *arguments)))


def heard(graph: Graph) -> list[str]:
    rules: list[str] = []
    arrange_products(graph, lambda rule, node: rules.append(rule))
    return [rule for rule in rules if rule in ("merge_products", "transpose_operand")]


def dots(graph: Graph) -> list[DotAttrs]:
    return [node.attrs for node in graph if isinstance(node.attrs, DotAttrs)]


def attend(x: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, b: jax.Array) -> jax.Array:
    """Self-attention of [batch, places, width] by heads, with a bias for each head."""
    query, key, value = (jnp.einsum("bnd,dhk->bnhk", x, w) + b for w in (q, k, v))
    weights = jax.nn.softmax(jnp.einsum("bnhk,bmhk->bhnm", query, key), -1)
    return jnp.einsum("bhnm,bmhk->bnhk", weights, value) * 2


HEADS = (normal(2, 5, 6), *(normal(6, 3, 4, seed=s) for s in (1, 2, 3)), normal(3, 4))


def two_sides(x: jax.Array, a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.tanh(x @ a), jnp.exp(x @ b).sum(-1)


def shared_right(a: jax.Array, b: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.tanh(a @ w), jnp.tanh(b @ w) + 1


def transposed_weights(x: jax.Array, a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.tanh(x @ a.T), jnp.tanh(x @ b.T)


CASES: dict[str, tuple[Function, tuple[np.ndarray, ...], list[str]]] = {
    "attention": (attend, HEADS, ["merge_products", *["transpose_operand"] * 3]),
    "two widths": (two_sides, (normal(7, 6), normal(6, 4), normal(6, 9)), ["merge_products"]),
    "rows beside each other": (
        shared_right,
        (normal(5, 6), normal(3, 6), normal(6, 4)),
        ["merge_products"],
    ),
    "the last dimension contracted": (
        transposed_weights,
        (normal(7, 6), normal(4, 6), normal(9, 6)),
        ["merge_products"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_products_are_arranged_and_stay_the_same(name: str) -> None:
    fn, arguments, rules = CASES[name]
    graph = graph_of(fn, *arguments)
    assert heard(graph) == rules
    arranged = arrange_products(graph)
    merged = rules.count("merge_products")
    parts = 3 if name == "attention" else 2
    assert len(dots(arranged)) == len(dots(graph)) - merged * (parts - 1)
    wanted = [np.asarray(w) for w in jax.tree.leaves(jax.jit(fn)(*arguments))]
    found = compile_hlo(read(fn, *arguments), gpu=preset("h100"))
    for results in (run_graph(arranged, arguments), HostEngine(found.program).run(list(arguments))):
        for got, want in zip(results, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)


def test_operands_are_one_batch_of_matrices_afterwards() -> None:
    """Batches first: what a strided batch of a library needs."""
    arranged = arrange_products(graph_of(attend, *HEADS))
    batched = [attrs for attrs in dots(arranged) if attrs.lhs_batch]
    assert len(batched) == 2
    assert all(attrs.lhs_batch == attrs.rhs_batch == (0, 1) for attrs in batched)


def test_cuts_and_transposes_are_part_of_the_kernels() -> None:
    """Nothing is left that only moves elements around a product, but what another product takes from one."""
    found = compile_hlo(read(attend, *HEADS), gpu=preset("h100"))
    assert len(found.program.kernels) <= 4
    assert not found.program.outside


def test_once_arranged_nothing_changes() -> None:
    arranged = arrange_products(graph_of(attend, *HEADS))
    assert not heard(arranged)


def deep(x: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    """The second product waits for the first."""
    first = jnp.tanh(x @ a)
    return jnp.tanh(x @ (b * first.sum()))


def handed_out(x: jax.Array, a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x @ a, jnp.tanh(x @ b)


def multiplied_on(x: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    """A product of a product: a cut between them would be a copy."""
    return (x @ a) @ jnp.tanh(x @ b)


def of_parameters(x: jax.Array, y: jax.Array) -> jax.Array:
    """No kernel of ours writes these operands."""
    return jnp.tanh(jnp.einsum("bnhk,bmhk->bhnm", x, y))


def by_precision(x: jax.Array, a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.tanh(x @ a), jnp.tanh(jnp.matmul(x, b, precision="highest"))


SQUARES = (normal(6, 6), normal(6, 6, seed=1), normal(6, 6, seed=2))
SIDE = int((MERGED_BYTES / 12) ** 0.5) + 16
LARGE = tuple(jax.ShapeDtypeStruct((SIDE, SIDE), jnp.float32) for _ in range(3))


@pytest.mark.parametrize(
    ("fn", "arguments"),
    [
        (deep, SQUARES),
        (handed_out, SQUARES),
        (multiplied_on, SQUARES),
        (of_parameters, (normal(2, 5, 3, 4), normal(2, 6, 3, 4))),
        (by_precision, SQUARES),
        (two_sides, LARGE),  # each fills a GPU by itself
    ],
)
def test_others_stay(fn: Function, arguments: tuple[Any, ...]) -> None:
    graph = graph_of(fn, *arguments)
    assert not heard(graph)
    assert arrange_products(graph) is graph


def test_weights_beside_each_other_are_left_to_the_product() -> None:
    """XLA reads them where they are; no kernel of the stage around them has them, whatever else it does."""
    x, q, k, v, b = HEADS

    def with_others(x: jax.Array, *weights: jax.Array) -> jax.Array:
        return attend(jnp.tanh(x), *weights)  # tanh is of the same stage as the weights

    module = import_hlo(read(with_others, x, q, k, v, b))
    compilation = compile_graph(module, preset("h100"), Target(launcher=Launcher.XLA))
    graph = compilation.scopes.graph
    kernels = {p.kernel.name: [graph[m].op for m in p.scope.members] for p in compilation.plans}
    (alone,) = (name for name, ops in kernels.items() if "concatenate" in ops)
    assert set(kernels[alone]) <= {"reshape", "concatenate"}
    assert list(find_moves(compilation)) == [alone]
    together = compile_graph(module, preset("h100"))
    assert len(together.plans) < len(compilation.plans) and find_moves(together) == {}


def test_what_kernels_compute_is_laid_out_by_kernels() -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(x @ jnp.concatenate([jnp.tanh(w), w], 1))

    compilation = compile_hlo(read(fn, normal(7, 6), normal(6, 4)), gpu="h100")
    assert len(compilation.plans) == 2 and find_moves(compilation) == {}
