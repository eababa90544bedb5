"""Reductions that walk as their operands lie in memory: which ones turn, and that they give what they gave."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.graph.ir import DimensionsAttrs, Graph, TransposeAttrs
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.kernel import kernel_ir as k
from astitch.kernel.in_place import find_uses
from astitch.rewrite.order_reductions import order_reductions
from astitch.rewrite.simplify import simplify
from tests.graphs import GraphBuilder
from tests.hlo_runner import lower

Function = Callable[..., jax.Array]


@pytest.fixture
def small_arrays_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astitch.rewrite.order_reductions.LEAST_BYTES", 0)


def turned(graph: Graph) -> tuple[Graph, list[str]]:
    heard: list[str] = []
    found = order_reductions(
        graph, lambda rule, node: heard.append(node) if rule == "order_reductions" else None
    )
    return found, heard


def normal(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def weighted_values(p: jax.Array, v: jax.Array) -> jax.Array:
    """[batch, heads, keys], [batch, keys, heads, features] as XLA writes the product out."""
    return (p[:, :, None] * v.transpose(0, 2, 3, 1)).astype(jnp.float32).sum(-1)


def with_an_iota(x: jax.Array) -> jax.Array:
    along = jax.lax.broadcasted_iota(jnp.float32, (x.shape[1], x.shape[0]), 1)
    return (jnp.tanh(x.T) * along).max(1)


def with_a_vector(x: jax.Array, w: jax.Array) -> jax.Array:
    return (x.transpose(2, 0, 1) * w[:, None, None] + 1).sum((0, 2))


def result_turns(x: jax.Array) -> jax.Array:
    """[a, b, c] -> [c, a]: neither order of the result is that of the array."""
    return jnp.exp(x.transpose(2, 0, 1)).sum(2)


def beside_a_smaller_one(x: jax.Array, y: jax.Array) -> jax.Array:
    return (x.transpose(1, 0, 2).astype(jnp.float32) + y).min(2)


TURNED: dict[str, tuple[Function, tuple[np.ndarray, ...]]] = {
    "weighted values": (weighted_values, (normal(2, 3, 8), normal(2, 8, 3, 4))),
    "in 16 bits": (
        weighted_values,
        (normal(2, 3, 8, dtype=np.float16), normal(2, 8, 3, 4, dtype=np.float16)),
    ),
    "an iota": (with_an_iota, (normal(5, 7),)),
    "a vector": (with_a_vector, (normal(3, 4, 5), normal(5))),
    "the result": (result_turns, (normal(3, 4, 5),)),
    "a smaller one": (beside_a_smaller_one, (normal(3, 4, 5), normal(4, 3, 5, dtype=np.float16))),
}


@pytest.mark.usefixtures("small_arrays_count")
@pytest.mark.parametrize("name", TURNED)
def test_a_reduction_walks_as_its_operand_lies(name: str) -> None:
    fn, arguments = TURNED[name]
    graph = simplify(import_hlo(lower(fn, *arguments)))
    found, heard = turned(graph)
    assert len(heard) == 1
    for node in found:
        if isinstance(node.attrs, TransposeAttrs):
            assert node.array.bytes < max(a.nbytes for a in arguments)
    rtol = 1e-3 if arguments[0].dtype == np.float16 else 1e-5
    for one, other in zip(run_graph(found, arguments), run_graph(graph, arguments), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-5)


def read_twice(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A softmax over what is transposed reads it three times: one reduction alone would walk apart from the rest."""
    t = jnp.tanh(x.T)
    return t.max(1), t * 2


def beside_a_larger_one(x: jax.Array, y: jax.Array) -> jax.Array:
    return (x.transpose(1, 0, 2).astype(jnp.float32) * y).sum(2)


LEFT: dict[str, tuple[Callable[..., object], tuple[np.ndarray, ...]]] = {
    "read twice": (read_twice, (normal(5, 7),)),
    "a larger one": (beside_a_larger_one, (normal(3, 4, 5, dtype=np.float16), normal(4, 3, 5))),
    "in order": (lambda x: jnp.exp(x).sum(1), (normal(5, 7),)),
}


@pytest.mark.usefixtures("small_arrays_count")
@pytest.mark.parametrize("name", LEFT)
def test_others_stay(name: str) -> None:
    fn, arguments = LEFT[name]
    graph = simplify(import_hlo(lower(fn, *arguments)))
    found, heard = turned(graph)
    assert found is graph
    assert heard == []


def test_small_arrays_stay() -> None:
    graph = simplify(import_hlo(lower(result_turns, normal(3, 4, 5))))
    assert order_reductions(graph) is graph


@pytest.mark.usefixtures("small_arrays_count")
def test_the_dimensions_are_those_of_the_array() -> None:
    g = GraphBuilder()
    x = g.op("tanh", "f32[6,4,5]", g.transpose(g.parameter("f32[4,5,6]"), (2, 0, 1)))
    found, _ = turned(g.build(g.reduce(x, (0, 2), "add")))
    (reduce,) = (node for node in found if node.op == "reduce")
    assert reduce.attrs == DimensionsAttrs((1, 2))
    assert not any(isinstance(node.attrs, TransposeAttrs) for node in found)


def test_values_of_a_cache_are_read_in_vectors() -> None:
    """One query for each of 16 heads against 1,024 keys: a thread loads several features of a value at once."""
    p, v = np.zeros((8, 16, 1024), np.float16), np.zeros((8, 1024, 16, 64), np.float16)
    graph = simplify(import_hlo(lower(weighted_values, p, v)))
    compilation = compile_graph(graph, preset("h100"))
    (plan,) = compilation.plans
    values = plan.kernel.arguments[1]
    assert not values.written
    loads = [use[-1].statement for use in find_uses(plan.kernel.body, {values.name})[values.name]]
    assert loads
    assert all(isinstance(load, k.LoadVector) and load.width >= 4 for load in loads)
