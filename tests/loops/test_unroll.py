"""unroll_searches: short loops in which each element goes its own way are written out."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.graph.check import check_graph
from astitch.graph.ir import Graph
from astitch.graph.ops import OPS
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.loops.unroll import MOST_INNER_BYTES, MOST_TURNS, unroll_inner, unroll_searches
from astitch.rewrite.simplify import simplify
from astitch.run.host_engine import HostEngine

EDGES = np.sort(np.random.default_rng(0).normal(size=37)).astype(np.float32)
X = np.random.default_rng(1).normal(size=(6, 50)).astype(np.float32)


def lower(fn: Any, *arguments: np.ndarray) -> Graph:
    module = jax.jit(fn, keep_unused=True).lower(*arguments).compiler_ir("hlo")
    return simplify(check_graph(import_hlo(module.as_serialized_hlo_module_proto())))


def has_loop(graph: Graph) -> bool:
    return any(OPS[node.op].is_loop for node in graph)


def unroll(graph: Graph, *, kernels: bool = False) -> Graph:
    return check_graph(unroll_searches(graph, lambda graph, node: kernels))


SEARCHES = {
    "left": lambda e, x: jnp.searchsorted(e, x),
    "right": lambda e, x: jnp.searchsorted(e, x, side="right"),
    "whole numbers": lambda e, x: jnp.searchsorted(jnp.arange(0, 90, 3), (x * 20).astype(int)),
    "digitize": lambda e, x: jnp.digitize(x, e),
    "interp": lambda e, x: jnp.interp(x, e, e * 2 + 1),
    "histogram": lambda e, x: jnp.histogram(x, e)[0],
    "vmap": lambda e, x: jax.vmap(jnp.searchsorted)(jnp.stack([e, e * 2]), x[:2]),
    "of a function": lambda e, x: jnp.searchsorted(jnp.exp(e), jnp.exp(x)) * 2,
}


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_are_kernels(name: str) -> None:
    fn = SEARCHES[name]
    unrolled = unroll(lower(fn, EDGES, X))
    assert not has_loop(unrolled)
    wanted = np.asarray(jax.jit(fn)(EDGES, X))
    np.testing.assert_allclose(run_graph(unrolled, [EDGES, X])[0], wanted, rtol=1e-6, atol=1e-6)
    compilation = compile_graph(lower(fn, EDGES, X), preset("h100"))
    (found,) = HostEngine(compilation.program).run([EDGES, X])
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-6, atol=1e-6)


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 300), st.integers(0, 99), st.sampled_from([np.float32, np.int32, np.float16]))
def test_any_number_of_edges(count: int, seed: int, dtype: Any) -> None:
    random = np.random.default_rng(seed)
    edges = np.sort(random.integers(-20, 20, count)).astype(dtype)
    x = random.integers(-22, 22, 40).astype(dtype)
    for side in ("left", "right"):
        graph = lower(lambda e, x, side=side: jnp.searchsorted(e, x, side=side), edges, x)
        (found,) = run_graph(unroll(graph), [edges, x])
        assert (found == np.searchsorted(edges, x, side=side)).all()


def walk(turns: int) -> Any:
    """From place to place, as a table says."""
    return lambda t, i: lax.fori_loop(0, turns, lambda _, i: t[i], i)


def test_what_stays() -> None:
    table = np.random.default_rng(2).permutation(20).astype(np.int32)
    start = np.arange(20, dtype=np.int32)

    def stays(fn: Any, **options: Any) -> bool:
        return has_loop(unroll(lower(fn, table, start), **options))

    assert not stays(walk(3))
    assert stays(walk(MOST_TURNS + 1))
    assert stays(walk(3), kernels=True), "one kernel as it stands"
    # Elements of what changes from turn to turn are others'.
    assert stays(lambda t, i: lax.fori_loop(0, 3, lambda _, i: i[t], i))
    assert stays(lambda t, i: lax.fori_loop(0, 3, lambda _, i: t[i] % i.max(), i))
    assert stays(lambda t, i: lax.while_loop(lambda i: i[0] > 0, lambda i: t[i] - 1, i))
    assert stays(lambda t, i: lax.scan(lambda i, _: (t[i], i), i, None, length=3))
    assert stays(lambda t, i: lax.fori_loop(0, 3, lambda _, i: i + 1, i)), "no search"


@pytest.mark.parametrize("large", [False, True])
def test_inner_loops_of_large_states_stay(large: bool) -> None:
    """Written out, ten steps of a stencil would take long to plan, for launches that take no time beside them."""
    size = MOST_INNER_BYTES // 4 + 1 if large else 64

    def steps(x: Any) -> Any:
        return lax.fori_loop(0, 10, lambda i, x: x + 0.1 * jnp.roll(x, 1), x)

    body, turns = unroll_inner(lower(steps, np.ones(size, np.float32)))
    assert (has_loop(body), turns) == ((True, 0) if large else (False, 10))
