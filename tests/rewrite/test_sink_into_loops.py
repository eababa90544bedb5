"""Values that follow from their indices, in loops: the same function, and a loop that carries less."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from astitch.graph.check import check_graph
from astitch.graph.ir import Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.simplify import simplify
from astitch.rewrite.sink_into_loops import sink_into_loops
from tests.hlo_runner import lower


def step(carry, _):
    turn, mask, x = carry
    return (turn + 1, mask, jnp.where(mask, x * 2, x + 1)), None


def run(x):
    mask = jnp.tril(jnp.ones(x.shape, bool))
    return lax.scan(step, (0, mask, x), None, length=3)[0][2]


def nested(x):
    mask = jnp.arange(x.shape[0])[:, None] >= jnp.arange(x.shape[1])

    def outer(carry, _):
        mask, x = carry
        x = lax.scan(step, (0, mask, x), None, length=2)[0][2]
        return (mask, x), None

    return lax.scan(outer, (mask, x), None, length=2)[0][1]


def find_loops(graph: Graph) -> list:
    inner = [loop for n in graph for region in n.regions for loop in find_loops(region)]
    return [*(n for n in graph if n.op == "while"), *inner]


def check(function, x: np.ndarray) -> Graph:
    graph = simplify(import_hlo(lower(function, x)))
    sunk = simplify(check_graph(sink_into_loops(graph)))
    (expected,), (found,) = run_graph(graph, [x]), run_graph(sunk, [x])
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found, np.asarray(jax.jit(function)(x)))
    return sunk


def carries_conditions(graph: Graph) -> bool:
    return any(
        loop.regions[1][p].dtype.value == "pred" and loop.regions[1][p].array.rank
        for loop in find_loops(graph)
        for p in loop.regions[1].parameters
    )


def test_a_mask_is_computed_in_the_body() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert not carries_conditions(check(run, x))
    assert not carries_conditions(check(nested, x))


def by_rows(x):
    mask = (jnp.sum(x, 1) > 0)[:, None] == (jnp.sum(x, 0) > 0)
    return lax.scan(step, (0, mask, x), None, length=3)[0][2]


def by_rows_in_two_loops(x):
    ids = jnp.sum(x, 1) > 0
    mask = ids[:, None] == ids

    def outer(carry, _):
        mask, x = carry
        x = lax.scan(step, (0, mask, x), None, length=2)[0][2]
        return (mask, x + jnp.sum(ids)), None

    return lax.scan(outer, (mask, x), None, length=2)[0][1]


def test_a_mask_of_far_smaller_arrays_is_computed_in_the_body() -> None:
    random = np.random.default_rng(0)
    for function in (by_rows, by_rows_in_two_loops):
        graph = check(function, random.standard_normal((256, 256)).astype(np.float32))
        masks = [
            loop.regions[1][p].shape
            for loop in find_loops(graph)
            for p in loop.regions[1].parameters
            if loop.regions[1][p].dtype.value == "pred"
        ]
        assert (256, 256) not in masks
    # Of 12 numbers it is not worth to carry 7.
    x = random.standard_normal((3, 4)).astype(np.float32)
    assert carries_conditions(check(by_rows, x))


def test_what_is_read_elsewhere_is_carried_on() -> None:
    """A part of the state that the loop returns twice, that its condition reads, or that is read after it."""

    def twice(x):
        def body(state):
            turn, x, mask, other = state
            return turn + 1, x * other + jnp.sum(mask), mask, mask

        ones = jnp.ones(x.shape, bool)
        start = (0, x, jnp.tril(ones), ones)
        return lax.while_loop(lambda state: state[0] < 3, body, start)[1]

    def tested(x):
        def runs(state):
            return (state[0] < 3) & state[2][0, 0]

        def body(state):
            turn, x, mask = state
            return turn + 1, jnp.where(mask, x * 2, x + 1), mask

        return lax.while_loop(runs, body, (0, x, jnp.tril(jnp.ones(x.shape, bool))))[1]

    def after(x):
        mask = jnp.tril(jnp.ones(x.shape, bool))
        _, carried, x = lax.scan(step, (0, mask, x), None, length=3)[0]
        return jnp.where(carried, x, 0)

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for function in (twice, tested, after):
        check(function, x)


def test_what_follows_from_data_is_carried() -> None:
    def given(x):
        return lax.scan(step, (0, x > 1, x), None, length=3)[0][2]

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert carries_conditions(check(given, x))


def test_a_graph_without_loops_stays() -> None:
    graph = import_hlo(lower(jnp.sin, np.ones(3, np.float32)))
    assert sink_into_loops(graph) is graph
