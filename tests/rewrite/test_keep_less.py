"""keep_less, keep_within: what is computed again for a memory limit keeps less, and the function stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_arguments, random_graphs

from astitch.graph.check import check_graph
from astitch.graph.ir import Graph
from astitch.graph.ops import OPS, Kind
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.expand import expand
from astitch.rewrite.keep_less import Price, find_fullest, keep_less
from astitch.rewrite.recompute import Staged, recompute
from astitch.rewrite.simplify import simplify
from astitch.search.keep_within import keep_within
from astitch.stitch_scope import Left, choose_stages
from tests.hlo_runner import lower

ROWS, WIDTH = 512, 256
HIGH = Price(64, 64)


def stages_of(fn: Callable[..., Any], *arguments: Any) -> Staged:
    return choose_stages(Left(expand(simplify(import_hlo(lower(fn, *arguments))))))


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def network(act: Callable[[jax.Array], jax.Array]) -> Callable[..., Any]:
    """A gradient of three layers: each weight's wants the input of its layer, at the end."""

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = act(x @ w)
        return jnp.square(x.astype(jnp.float32)).sum()

    return jax.grad(loss)


def measure(staged: Staged) -> int:
    """The most bytes that are kept for later stages."""
    return find_fullest(recompute(staged)).bytes


def norm(x: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def shuffle(x: jax.Array) -> jax.Array:
    """A GELU whose rows are turned in groups of four, as patches of an image are: no product reads it that way."""
    rows, width = x.shape
    turned = jax.nn.gelu(x).reshape(rows // 4, 4, width // 4, 4).transpose(0, 2, 1, 3)
    return turned.reshape(rows, width)


ACTS = {
    "gelu": jax.nn.gelu,
    "shuffle": shuffle,
    "silu": jax.nn.silu,
    "norm": norm,
    "softmax": jax.nn.softmax,
    "cast": lambda x: jnp.tanh(x.astype(jnp.float32)).astype(x.dtype),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_late_operands_are_computed_again(act: str, dtype: Any) -> None:
    """Kept are results of products, and not also what the next product reads.  Bits stay."""
    arguments = [[normal(WIDTH, WIDTH, dtype=dtype)] * 3, normal(ROWS, WIDTH, dtype=dtype)]
    staged = stages_of(network(ACTS[act]), *arguments)
    usual = measure(staged)
    less = recompute(keep_within(staged, 0, measure))
    layer = ROWS * WIDTH * np.dtype(dtype).itemsize
    # Three layers' results, of the last its activation too; the first layer's input is an argument.
    assert find_fullest(less).bytes < 4.5 * layer
    if act != "cast" or dtype == np.float16:  # of tanh the result is enough
        assert find_fullest(less).bytes < usual
        assert any(note.to_fit for note in less.recomputed)
    leaves = jax.tree.leaves(arguments)
    after = run_graph(check_graph(less.graph), leaves)
    for got, wanted in zip(after, run_graph(staged.graph, leaves), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_products_and_reductions_are_not_computed_again() -> None:
    staged = stages_of(network(norm), [normal(WIDTH, WIDTH)] * 3, normal(ROWS, WIDTH))
    less = keep_less(staged, find_fullest(staged).stage, HIGH)
    for kind in (Kind.COMPUTE, Kind.REDUCE):
        before, after = (
            sum(OPS[node.op].kind is kind for node in graph) for graph in (staged.graph, less.graph)
        )
        assert before == after


def test_a_low_price_keeps_what_is_dear_to_compute() -> None:
    """Ten logarithms cost more than one byte, and less than 64."""

    def act(x: jax.Array) -> jax.Array:
        for _ in range(10):
            x = jnp.log(jnp.square(x) + 1)
        return x

    staged = stages_of(network(act), [normal(WIDTH, WIDTH)] * 3, normal(ROWS, WIDTH))
    behind = find_fullest(staged).stage
    cheap, dear = (
        find_fullest(recompute(keep_less(staged, behind, Price(p, p)))).bytes for p in (0.25, 64)
    )
    assert dear < cheap


def test_no_more_is_computed_again_than_the_limit_asks_for() -> None:
    """Of equal layers, some pay the price: the least share of them that fits."""
    staged = stages_of(network(jax.nn.gelu), [normal(WIDTH, WIDTH)] * 8, normal(ROWS, WIDTH))

    def count(found: Staged) -> int:
        return len(found.graph.nodes)

    least = keep_within(staged, 0, measure)
    usual, lowest = measure(staged), measure(least)
    assert lowest < 0.75 * usual
    middle = keep_within(staged, (usual + lowest) / 2, measure)
    assert lowest < measure(middle) <= (usual + lowest) / 2
    assert count(staged) < count(middle) < count(least)
    assert keep_within(staged, usual, measure) is staged


def test_a_donated_state_is_not_read_once_it_is_written_over() -> None:
    """Memory holds the new state in the place of the old one: XLA would copy that first."""

    def step(state: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        old = jnp.tanh(state)
        new = old + 1
        return new, jnp.sin(new @ w) @ w @ w * old

    staged = stages_of(step, normal(ROWS, WIDTH), normal(WIDTH, WIDTH))
    graph = staged.graph
    behind = staged.stage[next(n.name for n in graph if n.op == "tanh")]

    def reads_late(found: Staged) -> bool:
        state = found.graph.parameters[0]
        return any(found.stage[u] > behind for u in found.graph.users[state])

    plain = keep_less(staged, behind, HIGH)
    donated = keep_less(replace(staged, graph=replace(graph, aliases=((0, 0),))), behind, HIGH)
    assert reads_late(plain) and not reads_late(donated)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(random_graphs(25), st.integers(0, 3), st.data())
def test_any_cut_keeps_the_function(graph: Graph, seed: int, data: st.DataObject) -> None:
    simple = simplify(graph)
    outside = {
        node.name: "drawn"
        for node in simple
        if OPS[node.op].kind is not Kind.SOURCE and data.draw(st.integers(0, 3)) == 0
    }
    stage: dict[str, int] = {}
    for node in simple:
        before = max((stage[o] for o in node.operands), default=0)
        stage[node.name] = before + (node.name in outside)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("astitch.rewrite.keep_less.LEAST_BYTES", 1)
        behind = data.draw(st.integers(0, max(stage.values(), default=0)))
        price = Price(64, data.draw(st.integers(0, 64)), data.draw(st.floats(0, 1)))
        less = keep_less(Staged(simple, stage, outside), behind, price)
    after = check_graph(less.graph)
    assert after.parameters == simple.parameters and after.outputs == simple.outputs
    assert set(less.stage) == set(after.nodes)
    for node in after:
        before = max((less.stage[o] for o in node.operands), default=0)
        assert less.stage[node.name] >= before + (node.name in outside)
    arguments = random_arguments(graph, seed)
    with np.errstate(all="ignore"):
        for a, b in zip(run_graph(after, arguments), run_graph(simple, arguments), strict=True):
            np.testing.assert_array_equal(a, b)
