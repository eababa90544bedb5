"""find_fallback_operands: what XLA computes as it scatters or sorts is left to it, and nothing else."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from strategies import random_arguments

from astitch.graph.fallback_operands import find_fallback_operands
from astitch.graph.ir import Graph
from astitch.graph.reference import run_graph
from astitch.graph.storage import stored_value
from astitch.hlo_import import import_hlo
from astitch.rewrite.expand import expand
from astitch.rewrite.simplify import simplify
from astitch.stitch_scope import Left, choose_stages, find_scopes

X = np.zeros((500, 8), np.float32)
IDS = np.zeros(500, np.int32)
TABLE = np.zeros((40, 8), np.float32)


def lower(fn: Callable[..., Any], *arguments: np.ndarray) -> Graph:
    module = jax.jit(fn, keep_unused=True).lower(*arguments).compiler_ir("hlo")
    return expand(simplify(import_hlo(module.as_serialized_hlo_module_proto())))


def segment_sum(x: Any, ids: Any) -> Any:
    return jax.ops.segment_sum(x, ids, num_segments=40)


def share(x: Any, ids: Any, most: Any) -> Any:
    """The indices are an array that is also read for each update: it is loaded once."""
    shares = jnp.exp(x - most[ids])
    return shares / segment_sum(shares, ids)[ids]


def turn(x: Any, rows: int) -> Any:
    """Small matrices, transposed."""
    return jnp.swapaxes(x.reshape(len(x), rows, -1), 1, 2)


ALL = {
    "function": (lambda x, i, t: segment_sum(jnp.tanh(x), i), (X, IDS, TABLE)),
    "half": (lambda x, i, t: segment_sum(x.astype(jnp.bfloat16) * 2, i), (X, IDS, TABLE)),
    "largest": (lambda x, i, t: jax.ops.segment_max(x + 1, i, num_segments=40), (X, IDS, TABLE)),
    "messages": (lambda x, i, t: segment_sum(t[i] * x, i[::-1]), (X, IDS, TABLE)),
    "messages that others read": (
        lambda x, i, t: (segment_sum(t[i] * x[:, :1], i[::-1]), (t[i] * x[:, :1] * x).sum(1)),
        (X, IDS, TABLE),
    ),
    "sums of eight terms": (
        lambda x, i, t: segment_sum((t[i][:, :, None] * x[:, None]).sum(1), i[::-1]),
        (X, IDS, TABLE),
    ),
    "places": (lambda x, i, t: segment_sum(x, (i + 3) % 40), (X, IDS, TABLE)),
    "index vectors": (
        lambda x, i, t: t.at[i, i % 8].add(x[:, 0] * 2),
        (X, IDS, TABLE),
    ),
    "counted rows": (
        lambda x, i, t: x.at[jnp.arange(500)[::-1], i % 8].max(x[:, 0] * 2),
        (X, IDS, TABLE),
    ),
    "a norm": (lambda x, i, t: segment_sum(x / x.sum(1, keepdims=True), i), (X, IDS, TABLE)),
    "a function that others read": (
        lambda x, i, t: (segment_sum(t[i] * (y := jnp.tanh(x)), i), y.sum()),
        (X, IDS, TABLE),
    ),
    "shares of segments": (
        lambda x, i, t: share(jnp.tile(x[:, 0], 9), jnp.tile(i, 9), t[:, 0]),
        (X, IDS, TABLE),
    ),
    "columns": (
        lambda x, i, t: jax.vmap(lambda k: segment_sum(x, k), in_axes=1)(
            t[:8].T.repeat(63, 0)[:500].astype(int) + i[:, None]
        ),
        (X, IDS, TABLE),
    ),
    "a turned array": (lambda x, i, t: segment_sum(turn(x, 2) * 2, i), (X, IDS, TABLE)),
    "planes": (
        lambda x, i, t: segment_sum(turn(x, 1) + turn(x[::-1], 1), i),
        (X, IDS, TABLE),
    ),
    "scalars": (lambda x, i, t: segment_sum(x[:, 0] * t[0, 0], i), (X, IDS, TABLE)),
}
NONE = {
    "read twice": lambda x, i, t: (segment_sum(y := jnp.tanh(x), i), y),
    "read twice, and as large": lambda x, i, t: (segment_sum(y := x * 2 + t[0], i), jnp.sin(y), y),
    "read by a product too": lambda x, i, t: (segment_sum(y := t[i] / x[:, :1], i), y @ t.T),
    "a softmax": lambda x, i, t: segment_sum(jax.nn.softmax(x), i),
    "sums of many terms": lambda x, i, t: segment_sum((t[i][:, None] * t).sum(1), i),
    "no update": lambda x, i, t: segment_sum(x, i) + jnp.tanh(t),
    "turned arrays": lambda x, i, t: segment_sum(
        turn(x, 2) * jnp.tanh(x).reshape(500, 4, 2) + turn(x[::-1], 2), i
    ),
}


@pytest.mark.parametrize("name", ALL)
def test_no_kernel_writes_what_only_a_scatter_reads(name: str) -> None:
    fn, arguments = ALL[name]
    graph = lower(fn, *arguments)
    found = find_fallback_operands(graph, ())
    graph, reasons = found.graph, found.products
    assert reasons
    scopes = find_scopes(choose_stages(Left(graph, reasons))).scopes
    (scatter,) = (node for node in graph if node.op == "scatter")
    stored = {name for scope in scopes for name in scope.outputs}
    assert not stored & {stored_value(graph, operand) for operand in scatter.operands[1:]}


def test_a_small_part_of_the_updates_is_looked_up_again() -> None:
    """The updates are in memory nowhere, so what they are computed from need not be."""

    def fn(x: Any, i: Any, t: Any) -> Any:
        rows = jnp.where(i[:, None] > 3, t[i], 0)[:, None]
        return segment_sum(rows * x[:, :, None], i), (rows * jnp.tanh(x)[:, :, None]).sum()

    found = find_fallback_operands(lower(fn, X, IDS, TABLE), ())
    assert {"select", "gather"} <= {found.graph[name].op for name in found.products}


@pytest.mark.parametrize("name", NONE)
def test_what_kernels_need_or_reduce_stays_with_them(name: str) -> None:
    graph = lower(NONE[name], X, IDS, TABLE)
    found = find_fallback_operands(graph, ())
    taken = {found.graph[n].op for n in found.products}
    assert not taken & {"tanh", "divide", "reduce", "exponential"}


def test_what_is_left_already_is_not_named_again() -> None:
    graph = lower(ALL["function"][0], X, IDS, TABLE)
    found = find_fallback_operands(graph, ())
    named = found.products.keys()
    assert named and not find_fallback_operands(found.graph, named).products.keys() & named


def test_a_sort_counts_what_it_sorts() -> None:
    graph = lower(lambda x: (jnp.argsort(-x, 0), jnp.argsort(x), jnp.arange(8) * x), X)
    found = find_fallback_operands(graph, ())
    sorts = [node for node in found.graph if node.op == "sort"]
    assert len(sorts) == 2
    for sort in sorts:
        (counted,) = (o for o in sort.operands if o in found.products)
        assert found.products[counted] == sort.name
        assert found.graph.users[counted] == (sort.name,)
    assert {found.graph[name].op for name in found.products} <= {"iota", "broadcast"}


def test_no_donated_parameter_is_read_again() -> None:
    """XLA would copy it for the result that takes over its memory."""

    def step(x: Any, i: Any, t: Any) -> Any:
        y = t[i] * x
        return x + y * jnp.tanh(x).sum(), segment_sum(y, i[::-1])

    graph = lower(step, X, IDS, TABLE)
    assert find_fallback_operands(graph, ()).graph != graph
    donated = replace(graph, aliases=((0, 0),))
    assert find_fallback_operands(donated, ()).graph == donated


@pytest.mark.parametrize(("rows", "own"), [(40, False), (8192, True)])
def test_scatters_share_no_large_zeros(rows: int, own: bool) -> None:
    """XLA would copy them, and a kernel would have them in memory long before."""

    def fn(x: Any, i: Any) -> Any:
        first = jax.ops.segment_sum(x, i, rows)
        return jax.ops.segment_sum(jnp.sin(first)[i], i[::-1], rows)

    graph = lower(fn, np.zeros((500, 32), np.float32), IDS)
    found = find_fallback_operands(graph, ())
    targets = [node.operands[0] for node in found.graph if node.op == "scatter"]
    assert len({*targets}) == (2 if own else 1)
    assert found.products.keys().isdisjoint(targets) == (not own)


def stored_for_scatters(graph: Graph, most_bytes: float = math.inf) -> int:
    """Bytes that kernels store for updates and places of scatters.  The function must stay the same."""
    found = find_fallback_operands(graph, (), most_bytes)
    scopes = find_scopes(choose_stages(Left(found.graph, found.products))).scopes
    stored = {name for scope in scopes for name in scope.outputs}
    scatters = [node for node in found.graph if node.op == "scatter"]
    stored -= {node.operands[0] for node in scatters}
    readers = {*found.products, *(node.name for node in scatters)}
    arguments = random_arguments(graph, 0)
    for got, wanted in zip(
        run_graph(found.graph, arguments), run_graph(graph, arguments), strict=True
    ):
        np.testing.assert_array_equal(got, wanted)
    return sum(found.graph[n].array.bytes for n in stored if readers & {*found.graph.users[n]})


@pytest.mark.parametrize("in_batches", [False, True])
def test_scatters_share_what_is_stored_for_them(in_batches: bool) -> None:
    """The gradient of samples between corners of a grid: a sample's is stored once, and each corner's weight."""

    def sample(image: Any, at: Any) -> Any:
        low = jnp.floor(at).astype(int)
        x, y, (wx, wy) = low[:, 0], low[:, 1], jnp.split(at - low, 2, 1)
        upper = image[y, x] * (1 - wx) + image[y, x + 1] * wx
        lower = image[y + 1, x] * (1 - wx) + image[y + 1, x + 1] * wx
        return upper * (1 - wy) + lower * wy

    def loss(image: Any, at: Any) -> Any:
        return jnp.tanh((jax.vmap(sample) if in_batches else sample)(image, at)).sum()

    batch = (3,) if in_batches else ()
    image, at = np.zeros((*batch, 8, 8, 32), np.float32), np.zeros((*batch, 500, 2), np.float32)
    graph = lower(jax.grad(loss, (0, 1)), image, at)
    updates = 500 * 32 * 4 * (3 if in_batches else 1)
    assert stored_for_scatters(graph) < 2 * updates


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("axes", [2, 3])
def test_distances_are_measured_again(axes: int, dtype: Any) -> None:
    """Forces between neighbours: a number for each pair is stored, and not its vector.  The place may be donated: the
    new one waits for the force."""

    def step(x: Any, near: Any) -> Any:
        def energy(x: Any) -> Any:
            apart = x[near] - x[:, None]
            return (1 / ((apart * apart).sum(-1) + 1) ** 3).sum()

        return x - jax.grad(energy)(x)

    graph = lower(step, np.zeros((300, axes), dtype), np.zeros((300, 32), np.int32))
    number = 300 * 32 * np.dtype(dtype).itemsize
    donated = replace(graph, aliases=((0, 0),))
    assert stored_for_scatters(graph) < 1.5 * number
    assert stored_for_scatters(donated) < 1.5 * number


@pytest.mark.parametrize("features", [1, 2, 4])
@pytest.mark.parametrize("is_hashed", [False, True])
def test_corners_are_found_again_where_memory_is_short(features: int, is_hashed: bool) -> None:
    """The gradient of features looked up at the corners of a cell: each corner has an index and a weight of its own."""

    def look_up(table: Any, at: Any) -> Any:
        low = jnp.floor(at * 5)
        part, cell, found = at * 5 - low, low.astype(jnp.uint32), 0
        for bits in itertools.product((0, 1), repeat=3):
            corner = jnp.array(bits, jnp.uint32)
            x, y, z = (cell + corner)[:, 0], (cell + corner)[:, 1], (cell + corner)[:, 2]
            if is_hashed:
                index = (x ^ y * jnp.uint32(2654435761) ^ z * jnp.uint32(805459861)) % 64
            else:
                index = x + 6 * (y + 6 * z)
            weight = jnp.where(corner == 1, part, 1 - part).prod(-1)
            found += weight[:, None] * table[index.astype(jnp.int32)]
        return found

    def loss(table: Any, at: Any) -> Any:
        return jnp.tanh(look_up(table, at)).sum()

    table = np.zeros((216, features), np.float32)
    graph = lower(jax.grad(loss), table, np.zeros((2048, 3), np.float32))
    much = stored_for_scatters(graph)
    few = stored_for_scatters(graph, 20 * 2048 * 4)
    assert few < 0.85 * much


def test_windows_of_several_arrays_count_places_themselves() -> None:
    """The gradient of a pooling that is told by its places: no kernel writes how they are numbered."""

    def fn(x: Any) -> Any:
        places = jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)

        def larger(one: Any, two: Any) -> Any:
            keep = one[0] >= two[0]
            return tuple(jax.lax.select(keep, a, b) for a, b in zip(one, two, strict=True))

        starts = (np.float32(-np.inf), np.int32(-1))
        return jax.lax.reduce_window((x, places), starts, larger, (2, 2), (2, 2), "VALID")

    graph = lower(fn, np.zeros((64, 64), np.float32))
    found = find_fallback_operands(graph, ())
    (window,) = (node for node in found.graph if node.op == "reduce-window")
    (places,) = (found.graph[o] for o in window.operands if o in found.products)
    assert found.graph[places.operands[0] if places.operands else places.name].op == "iota"
    assert set(found.products.values()) == {window.name}


@pytest.mark.parametrize("act", [jnp.sin, jnp.exp, lambda x: jnp.tanh(x) + 1])
def test_each_scatter_computes_places_that_another_reads(
    act: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ends of an edge are scattered to, and messages are gathered by both: no kernel stores the places."""
    monkeypatch.setattr("astitch.stitch_scope.LEAST_MOVED_BACK", 0)

    def fn(table: Any, source: Any, target: Any) -> Any:
        message = jnp.clip(act(table[source] - table[target]), -4, 4)
        return table.at[source].add(0.1 * message).at[target].add(-0.1 * message)

    found = find_fallback_operands(lower(fn, TABLE[:, :2], IDS, IDS), {})
    scopes = find_scopes(choose_stages(Left(found.graph, found.products)))
    stored = {o for scope in scopes.scopes for o in scope.outputs}
    large = [name for name in stored if scopes.graph[name].array.bytes >= IDS.nbytes]
    assert len(large) == 1, stored  # the message once, and nothing on its way
    assert len(scopes.scopes) == 1
