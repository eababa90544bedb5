"""Loops that turn by themselves, through XLA's hook: at the top of a program, and in the turn of another loop."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from astitch.graph.ir import Graph
from astitch.graph.ops import OPS
from tests.ahead_of_time import devices, needs_hook
from tests.emulated_xla import normal
from tests.hook_evaluation import stitch_through_hook

pytestmark = needs_hook

MATRIX = normal(12, 12) @ normal(12, 12).T / 24 + np.eye(12, dtype=np.float32)


def solve(b: Any) -> Any:
    def turn(state: Any) -> Any:
        x, _, count = state
        rest = MATRIX @ x - b
        return x - 0.1 * rest, jnp.linalg.norm(rest), count + 1

    start = jnp.zeros(12), jnp.float32(1e9), 0
    return lax.while_loop(lambda s: (s[1] > 1e-1) & (s[2] < 20), turn, start)[0]


def solve_often(b: Any, w: Any) -> Any:
    """Each turn of the outer loop sorts more than a kernel does, so that it stays XLA's."""

    def turn(state: Any, _: Any) -> Any:
        b, w = state
        return (solve(b) + 1, jnp.sort(w) * 1.1), b.sum()

    return lax.scan(turn, (b, w), None, length=5)


def count_loops(graph: Graph) -> int:
    return sum(OPS[node.op].is_loop + sum(map(count_loops, node.regions)) for node in graph)


def assert_computes(fn: Any, *arguments: Any, loops: int) -> None:
    devices()
    hooked = stitch_through_hook(fn, *arguments)
    assert hooked.stitching and count_loops(hooked.graph) == loops
    with jax.default_device(jax.devices("cpu")[0]):
        wanted = jax.tree.leaves(jax.jit(fn)(*arguments))
    for a, b in zip(hooked.run(jax.tree.leaves(arguments)), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3)


def test_a_loop_of_a_program() -> None:
    assert_computes(solve, normal(12), loops=0)


def test_a_loop_in_the_turn_of_another() -> None:
    assert_computes(solve_often, normal(12), normal(40_000), loops=1)
