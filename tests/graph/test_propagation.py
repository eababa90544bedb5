"""Index propagation against the reference: every op, read through `access`, gives the reference's values."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from graphs import GraphBuilder
from hypothesis import given, settings
from strategies import random_arguments, random_graphs

from astitch.graph import index as ix
from astitch.graph.index import Symbol
from astitch.graph.ir import DynamicSliceAttrs, GatherAttrs, Graph, Node, TupleType
from astitch.graph.ops import OPS, Kind
from astitch.graph.ops.access import Choice, Divisible, Guard, Read, Within
from astitch.graph.propagation import access, walk_reads
from astitch.graph.reference import run_graph

Build = Callable[[GraphBuilder], str]


def holds(guard: Guard, at: Mapping[Symbol, int]) -> bool:
    value = ix.evaluate(guard.form, at)
    if isinstance(guard, Within):
        return guard.low <= value < guard.high
    return value % guard.by == 0


def read_elements(graph: Graph, node: Node, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """The node's value, fetched element by element from its operands.  For ops that only move elements."""
    symbols = [Symbol(f"i{d}", n) for d, n in enumerate(node.shape)]
    found = access(graph, node, tuple(ix.of_symbol(s) for s in symbols))
    result = np.empty(node.shape, node.dtype.numpy)
    for place in np.ndindex(*node.shape):
        at = dict(zip(symbols, place, strict=True))
        for dynamic in found.dynamics:
            start = tuple(ix.evaluate(f, at) for f in dynamic.index)
            at[dynamic.symbol] = int(
                np.clip(values[dynamic.operand][start], 0, dynamic.symbol.extent - 1)
            )
        choice = first_choice(found.choices, at)
        (read,) = choice.reads
        where = tuple(ix.evaluate(f, at) for f in read.index)
        assert all(0 <= i < n for i, n in zip(where, values[read.operand].shape, strict=True))
        result[place] = values[read.operand][where]
    return result


def first_choice(choices: tuple[Choice, ...], at: Mapping[Symbol, int]) -> Choice:
    assert not choices[-1].guards, "the last choice always applies"
    return next(c for c in choices if all(holds(g, at) for g in c.guards))


def every_value(graph: Graph, arguments: list[np.ndarray]) -> dict[str, np.ndarray]:
    names = [n.name for n in graph if not isinstance(n.type, TupleType)]
    everything = Graph(graph.name, graph.nodes, graph.parameters, tuple(names))
    return dict(zip(names, run_graph(everything, arguments), strict=True))


def scalars(g: GraphBuilder, *values: int) -> list[str]:
    return [g.constant(v, "s32") for v in values]


def dynamic_slice(*starts: int) -> Build:
    def build(g: GraphBuilder) -> str:
        x = g.parameter("f32[4,6]")
        attrs = DynamicSliceAttrs((4, 2))
        return g.op("dynamic-slice", "f32[4,2]", x, *scalars(g, *starts), attrs=attrs)

    return build


def dynamic_update(*starts: int) -> Build:
    def build(g: GraphBuilder) -> str:
        x, update = g.parameter("f32[4,6]"), g.parameter("f32[2,6]")
        return g.op("dynamic-update-slice", "f32[4,6]", x, update, *scalars(g, *starts))

    return build


def gather(type: str, starts: list[object], attrs: GatherAttrs) -> Build:
    def build(g: GraphBuilder) -> str:
        return g.op("gather", type, g.parameter("f32[5,6]"), g.constant(starts, "s32"), attrs=attrs)

    return build


def pad(low: tuple[int, ...], high: tuple[int, ...], interior: tuple[int, ...]) -> Build:
    return lambda g: g.pad(g.parameter("f32[3,4]"), g.constant(7.0, "f32"), low, high, interior)


ROWS = GatherAttrs((1,), (0,), (0,), 1, (1, 6))
CASES: dict[str, Build] = {
    "broadcast": lambda g: g.broadcast(g.parameter("f32[4]"), (3, 4, 2), (1,)),
    "broadcast of one": lambda g: g.broadcast(g.parameter("f32[1,4]"), (3, 4), (0, 1)),
    "transpose": lambda g: g.transpose(g.parameter("f32[2,3,4]"), (2, 0, 1)),
    "slice": lambda g: g.slice(g.parameter("f32[7,5]"), (1, 0), (7, 4), (2, 3)),
    "reverse": lambda g: g.reverse(g.parameter("f32[3,4]"), (1,)),
    "reshape": lambda g: g.reshape(g.parameter("f32[4,6]"), (8, 3)),
    "reshape without a common factor": lambda g: g.reshape(g.parameter("f32[10,3]"), (6, 5)),
    "reshape of a reverse": lambda g: g.reverse(g.reshape(g.parameter("f32[3,4]"), (12,)), (0,)),
    "concatenate": lambda g: g.concatenate(
        [g.parameter("f32[2,3]"), g.parameter("f32[2,0]"), g.parameter("f32[2,4]")], 1
    ),
    "pad": pad((1, 0), (2, 3), (0, 0)),
    "negative pad": pad((-1, 2), (1, -3), (0, 0)),
    "interior pad": pad((1, 2), (0, 1), (2, 1)),
    "negative interior pad": pad((-2, 0), (0, -2), (1, 2)),
    "dynamic-slice": dynamic_slice(0, 3),
    "dynamic-slice beyond the end": dynamic_slice(2, 99),
    "dynamic-slice before the start": dynamic_slice(-5, -1),
    "dynamic-update-slice": dynamic_update(1, 0),
    "dynamic-update-slice beyond the end": dynamic_update(9, 2),
    "dynamic-update-slice before the start": dynamic_update(-9, 0),
    "gather rows": gather("f32[3,6]", [[4], [0], [9]], ROWS),
    "gather rows by scalars": gather("f32[3,6]", [4, -2, 1], GatherAttrs((1,), (0,), (0,), 1, (1, 6))),
    "gather windows": gather("f32[2,2,3]", [[3, 1], [9, 9]], GatherAttrs((1, 2), (), (1, 0), 1, (2, 3))),
    "gather with the vector first": gather(
        "f32[3]", [[0, 1, 2], [5, 4, 9]], GatherAttrs((), (0, 1), (0, 1), 0, (1, 1))
    ),
    "batched gather": gather("f32[5,2]", [[0], [1], [2], [3], [9]], GatherAttrs((1,), (), (1,), 1, (1, 2), (0,), (0,))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_op_reads_what_it_should(name: str) -> None:
    g = GraphBuilder()
    graph = g.build(CASES[name](g))
    rng = np.random.default_rng(3)
    arguments = [
        rng.permutation(graph[p].array.size).astype(np.float32).reshape(graph[p].shape)
        for p in graph.parameters
    ]
    values = every_value(graph, arguments)
    moved = [n for n in graph if n.op != "constant" and n.op != "parameter"]
    for node in moved:
        np.testing.assert_array_equal(read_elements(graph, node, values), values[node.name])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(random_graphs(10))
def test_ops_of_random_graphs_read_what_they_should(graph: Graph) -> None:
    values = every_value(graph, random_arguments(graph, 5))
    for node in graph:
        if OPS[node.op].kind in (Kind.INDEX, Kind.BROADCAST) and node.array.size:
            found = read_elements(graph, node, values)
            assert found.tobytes() == values[node.name].tobytes()


# ---- guards

I = Symbol("i", 10)


@pytest.mark.parametrize(
    ("guard", "verdict"),
    [
        (Within(ix.of_symbol(I), 0, 10), True),
        (Within(ix.of_symbol(I), 0, 9), None),
        (Within(ix.of_symbol(I), 10, 12), False),
        (Within(ix.offset(ix.of_symbol(I), -20), 0, 5), False),
        (Divisible(ix.scale(ix.of_symbol(I), 4), 2), True),
        (Divisible(ix.offset(ix.scale(ix.of_symbol(I), 4), 1), 2), False),
        (Divisible(ix.of_symbol(I), 2), None),
    ],
)
def test_a_guard_is_decided_where_it_can_be(guard: Guard, verdict: bool | None) -> None:
    assert guard.verdict() is verdict


def test_choices_that_never_apply_are_dropped() -> None:
    g = GraphBuilder()
    x, y = g.parameter("f32[4]", "x"), g.parameter("f32[6]", "y")
    graph = g.build(
        g.concatenate([x, y], 0, "z"), g.pad(x, g.constant(0.0, "f32"), (0,), (0,), name="same")
    )
    low, high = Symbol("low", 4), Symbol("high", 6)
    (first,) = access(graph, graph["z"], (ix.of_symbol(low),)).choices
    assert first == Choice((), (Read("x", (ix.of_symbol(low),)),))
    (second,) = access(graph, graph["z"], (ix.offset(ix.of_symbol(high), 4),)).choices
    assert second == Choice((), (Read("y", (ix.of_symbol(high),)),))
    (whole,) = access(graph, graph["same"], (ix.of_symbol(low),)).choices
    assert whole.reads[0].operand == "x"


def test_a_start_that_cannot_move_is_not_read() -> None:
    g = GraphBuilder()
    build = dynamic_slice(0, 0)
    graph = g.build(build(g))
    node = list(graph)[-1]
    found = access(
        graph, node, tuple(ix.of_symbol(Symbol(f"i{d}", n)) for d, n in enumerate(node.shape))
    )
    assert [d.operand for d in found.dynamics] == [node.operands[2]]


def test_a_walk_visits_each_index_once() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[8]", "x")
    y = g.same("negate", x, name="y")
    z = g.same("add", y, g.reverse(y, (0,), "r"), name="z")
    graph = g.build(g.same("multiply", z, z, name="w"))
    at = (ix.of_symbol(Symbol("i", 8)),)
    seen: list[tuple[str, bool]] = []
    walk_reads(graph, [Read("w", at)], lambda n: n == "x", lambda r, s: seen.append((r.operand, s)))
    assert sorted(seen) == sorted(
        [
            ("w", False),
            ("z", False),
            ("r", False),
            ("y", False),
            ("y", False),
            ("x", True),
            ("x", True),
        ]
    )
