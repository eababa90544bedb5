"""Running reductions and gradients of poolings, written out as XLA's simplifier does, are what they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from astitch.graph.ir import Graph
from astitch.graph.ops.windows import Running, find_running
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.restore_windows import restore_windows
from astitch.rewrite.simplify import simplify
from tests.hlo_runner import lower

RNG = np.random.default_rng(11)


@dataclass(frozen=True)
class Tree:
    """How a running reduction is written out.  base: elements of a piece.  The rest are faults to put in."""

    op: Callable = lax.add
    start: float = 0.0
    backward: bool = False
    base: int = 16
    combine: Callable | None = None
    shift: int = 0
    fill: float | None = None
    other_totals: bool = False

    def windows(self, x, size, low, high):
        ones = (1,) * (x.ndim - 1)
        edges = ((0, 0),) * (x.ndim - 1) + ((low, high),)
        return lax.reduce_window(
            x, np.array(self.start, x.dtype), self.op, (*ones, size), (1,) * x.ndim, edges
        )

    def pad(self, x, low, high):
        fill = self.start if self.fill is None else self.fill
        none = ((0, 0, 0),) * (x.ndim - 1)
        return lax.pad(x, np.array(fill, x.dtype), (*none, (low, high, 0)))

    def before(self, totals):
        """For each piece the reduction of those before it."""
        n = totals.shape[-1]
        first = (1 if self.backward else 0) + self.shift
        if n <= self.base:
            low, high = (0, n) if self.backward else (n, 0)
            longer = self.windows(totals, n, low, high)
        else:
            longer = self.pad(self.run(totals), int(not self.backward), int(self.backward))
        return longer[..., first : first + n]

    def run(self, x):
        n, b = x.shape[-1], self.base
        pieces = -(-n // b)
        x = self.pad(x, 0, pieces * b - n).reshape(*x.shape[:-1], pieces, b)
        inner = self.windows(x, b, *((0, b - 1) if self.backward else (b - 1, 0)))
        last = 0 if self.backward else b - 1
        totals = (x if self.other_totals else inner)[..., last]
        before = jnp.broadcast_to(self.before(totals)[..., None], inner.shape)
        both = (self.combine or self.op)(inner, before)
        return both.reshape(*x.shape[:-2], pieces * b)[..., :n]


def restore(fn: Callable, *arguments: np.ndarray) -> Graph:
    return restore_windows(simplify(import_hlo(lower(fn, *arguments))))


def find_windows(graph: Graph) -> list[Running | None]:
    return [find_running(node) for node in graph if node.op == "reduce-window"]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("op", "start", "reference"),
    [
        (lax.add, 0.0, np.add),
        (lax.mul, 1.0, np.multiply),
        (lax.max, -np.inf, np.maximum),
        (lax.min, np.inf, np.minimum),
    ],
)
@pytest.mark.parametrize("extent", [33, 100, 256, 1000, 5000])
def test_a_tree_is_one_running_reduction(op, start, reference, extent, backward):
    x = (1 + RNG.standard_normal((3, extent)) / 50).astype(np.float32)
    graph = restore(Tree(op, start, backward).run, x)
    assert find_windows(graph) == [Running(1, backward)]
    assert not [node for node in graph if node.op in ("pad", "slice")]
    (result,) = run_graph(graph, (x,))
    want = x[:, ::-1] if backward else x
    want = reference.accumulate(want.astype(np.float64), axis=1)
    np.testing.assert_allclose(result, want[:, ::-1] if backward else want, rtol=2e-5)


def test_along_another_dimension_nothing_is_transposed():
    x = RNG.standard_normal((200, 3)).astype(np.float32)
    graph = restore(lambda x: Tree().run(x.T).T, x)
    assert find_windows(graph) == [Running(0, False)]
    assert {node.op for node in graph} == {"parameter", "constant", "reduce-window"}
    np.testing.assert_allclose(run_graph(graph, (x,))[0], np.cumsum(x, 0), rtol=1e-4, atol=1e-4)


def test_behind_other_ops_of_its_elements_nothing_is_transposed():
    """XLA negates a gradient's running sum in the shape of its pieces."""
    x = RNG.standard_normal((200, 3)).astype(np.float32)

    def fn(x):
        return (-(Tree().run(x.T).reshape(3, 20, 10)) * 2).reshape(3, 200).T

    graph = restore(fn, x)
    assert find_windows(graph) == [Running(0, False)]
    assert not any(node.op == "transpose" for node in graph)
    want = -2 * np.cumsum(x, 0)
    np.testing.assert_allclose(run_graph(graph, (x,))[0], want, rtol=1e-4, atol=1e-4)


def test_one_that_is_cut_after_a_transposition():
    x = RNG.standard_normal((199, 3)).astype(np.float32)

    def fn(x):
        return Tree().run(jnp.pad(x.T, ((0, 0), (0, 9)))).T[:199]

    graph = restore(fn, x)
    assert find_windows(graph) == [Running(0, False)]
    np.testing.assert_allclose(run_graph(graph, (x,))[0], np.cumsum(x, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "tree",
    [
        Tree(combine=lax.mul),
        Tree(combine=lax.sub),
        Tree(shift=1),
        Tree(backward=True, shift=-1),
        Tree(other_totals=True),
        Tree(fill=1.0),
        Tree(start=1.0, fill=0.0),
    ],
)
@pytest.mark.parametrize("extent", [100, 1000])
def test_what_is_not_quite_a_tree_keeps_its_values(tree, extent):
    x = RNG.standard_normal((2, extent)).astype(np.float32)
    graph = simplify(import_hlo(lower(tree.run, x)))
    restored = restore_windows(graph)
    (want,), (result,) = run_graph(graph, (x,)), run_graph(restored, (x,))
    np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-4)


# ---- poolings ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pooling:
    """How the gradient of a pooling is written out.  The last three are faults to put in."""

    window: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    start: float = 0.0
    nowhere: int = -1
    keeps_without_second: bool = True
    swapped: bool = False

    def choose(self, one, two):
        (a, *places), (b, *others) = one, two
        keep = (a >= b) & (places[0] != -1)
        keep = keep | (others[0] == -1) if self.keeps_without_second else keep
        return tuple(lax.select(keep, p, q) for p, q in zip(one, two, strict=True))

    def gradient(self, x, updates, shape=None, base=None):
        rank = x.ndim
        places = [lax.broadcasted_iota(jnp.int32, x.shape, d) for d in range(rank)]
        if self.swapped:
            places[-2:] = places[-1], places[-2]
        starts = (jnp.zeros((), x.dtype), *[np.int32(self.nowhere)] * rank)
        found = lax.reduce_window(
            (x, *places), starts, self.choose, self.window, self.strides, self.padding
        )
        where = jnp.stack(found[1:], axis=-1).reshape(-1, rank)
        numbers = lax.ScatterDimensionNumbers(tuple(range(1, rank + 1)), (), tuple(range(rank)))
        if base is None:
            base = jnp.full(shape or x.shape, self.start, updates.dtype)
        each = updates.reshape(-1, *[1] * rank)
        return lax.scatter_add(
            base, where, each, numbers, mode="drop" if shape else "promise_in_bounds"
        )

    def pool(self, x):
        return lax.reduce_window(x, -np.inf, lax.max, self.window, self.strides, self.padding)

    def reference(self, x, updates):
        """By JAX's own gradient of the pooling."""
        return jax.vjp(self.pool, x)[1](updates)[0] + self.start

    def draw(self, shape):
        x = RNG.permutation(np.prod(shape)).reshape(shape).astype(np.float32)
        out = jax.eval_shape(
            lambda x: lax.reduce_window(
                x, -np.inf, lax.max, self.window, self.strides, self.padding
            ),
            x,
        )
        return x, RNG.standard_normal(out.shape).astype(np.float32)


NONE = (0, 0)


@pytest.mark.parametrize(
    ("pooling", "shape"),
    [
        (Pooling((1, 2, 2, 1), (1, 2, 2, 1), (NONE,) * 4), (2, 6, 8, 3)),
        (Pooling((1, 3, 3, 1), (1, 2, 2, 1), (NONE, (0, 1), (0, 1), NONE)), (1, 6, 8, 3)),
        (Pooling((1, 1, 3, 3), (1, 1, 2, 2), (NONE, NONE, (1, 1), (1, 1))), (2, 3, 7, 7)),
        (Pooling((1, 4), (1, 4), (NONE,) * 2, start=2.0), (5, 16)),
        (Pooling((3,), (1,), (NONE,)), (9,)),
    ],
)
def test_a_scattered_pooling_is_elementwise(pooling, shape):
    x, updates = pooling.draw(shape)
    graph = restore(pooling.gradient, x, updates)
    assert not {"scatter", "reduce-window", "gather"} & {node.op for node in graph}
    (result,) = run_graph(graph, (x, updates))
    np.testing.assert_allclose(result, pooling.reference(x, updates), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_a_pooling_is_scattered_into_another_gradient(dtype):
    """XLA adds a gradient as it scatters another one."""
    pooling = Pooling((1, 2, 2, 1), (1, 2, 2, 1), (NONE,) * 4)
    x, updates = (a.astype(dtype) for a in pooling.draw((2, 6, 8, 3)))
    other = RNG.standard_normal(x.shape).astype(dtype)

    def fn(x, updates, other):
        return pooling.gradient(x, updates, base=other * 2)

    graph = restore(fn, x, updates, other)
    assert not {"scatter", "reduce-window"} & {node.op for node in graph}
    (result,) = run_graph(graph, (x, updates, other))
    wanted = other * 2 + pooling.reference(x, updates)
    np.testing.assert_array_equal(result.astype(np.float32), wanted.astype(np.float32))


def test_negative_zeros_of_another_gradient_stay():
    """In an element that no window chose, and in one whose update is -0."""
    pooling = Pooling((2, 2), (2, 2), (NONE,) * 2)
    x, updates = pooling.draw((6, 8))
    updates[0] = -0.0
    zeros = np.zeros(x.shape, np.float32)

    def fn(x, updates, zeros):
        return pooling.gradient(x, updates, base=-zeros)

    (result,) = run_graph(restore(fn, x, updates, zeros), (x, updates, zeros))
    wanted = jax.jit(fn)(x, updates, zeros)
    np.testing.assert_array_equal(np.signbit(result), np.signbit(wanted))


def test_what_is_scattered_behind_the_end_is_dropped():
    pooling = Pooling((3, 3), (2, 2), ((0, 1), (0, 1)))
    padded = replace(pooling, padding=(NONE, NONE))
    x, updates = pooling.draw((8, 6))

    def fn(x, updates):
        longer = jnp.pad(x, ((0, 1), (0, 1)), constant_values=-np.inf)
        return padded.gradient(longer, updates, x.shape)

    graph = restore(fn, x, updates)
    assert not {"scatter", "reduce-window"} & {node.op for node in graph}
    (result,) = run_graph(graph, (x, updates))
    np.testing.assert_allclose(result, pooling.reference(x, updates), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "pooling",
    [
        Pooling((2, 2), (2, 2), (NONE,) * 2, nowhere=0),
        Pooling((2, 2), (2, 2), (NONE,) * 2, keeps_without_second=False),
        Pooling((2, 2), (2, 2), (NONE,) * 2, swapped=True),
    ],
)
def test_other_scatters_stay(pooling):
    x, updates = pooling.draw((6, 6))
    graph = restore(pooling.gradient, x, updates)
    assert "scatter" in {node.op for node in graph}
