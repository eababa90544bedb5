"""Which dimensions are the same loop: one row for each op, then merges that must be refused."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from graphs import GraphBuilder
from hypothesis import given, settings
from strategies import random_graphs

from astitch.graph import index as ix
from astitch.graph.dimensions import Dimensions, array_of, find_dimensions
from astitch.graph.ir import DynamicSliceAttrs, GatherAttrs, Graph

Build = Callable[[GraphBuilder, str], str]


def dimensions_of(graph: Graph) -> Dimensions:
    return find_dimensions(graph, graph.nodes)


def show(dimensions: Dimensions, name: str, letters: dict[str, str]) -> str:
    """The atoms of each dimension, `ab` for two in one dimension, `-` for an extent of 1."""
    words = []
    for atoms in dimensions.atoms[name]:
        for atom in atoms:
            letters.setdefault(atom.name, chr(ord("a") + len(letters)))
        words.append("".join(letters[atom.name] for atom in atoms) or "-")
    return " ".join(words)


def embed(g: GraphBuilder, x: str) -> str:
    starts = g.parameter("s32[4,1]")
    attrs = GatherAttrs((1, 2), (0,), (0,), 1, (1, 6, 2))
    return g.op("gather", "f32[4,6,2]", x, starts, attrs=attrs)


def dynamic_slice(g: GraphBuilder, x: str) -> str:
    starts = [g.constant(0, "s32") for _ in range(3)]
    return g.op("dynamic-slice", "f32[4,3,2]", x, *starts, attrs=DynamicSliceAttrs((4, 3, 2)))


def dynamic_update(g: GraphBuilder, x: str) -> str:
    starts = [g.constant(0, "s32") for _ in range(3)]
    return g.op("dynamic-update-slice", "f32[4,6,2]", x, g.parameter("f32[4,3,2]"), *starts)


TABLE: list[tuple[str, Build, str]] = [
    ("element-wise", lambda g, x: g.same("exponential", x), "a b c"),
    ("convert", lambda g, x: g.convert(x, "bf16"), "a b c"),
    ("compare", lambda g, x: g.compare("LT", x, x), "a b c"),
    ("broadcast", lambda g, x: g.broadcast(x, (4, 5, 6, 2), (0, 2, 3)), "a d b c"),
    ("transpose", lambda g, x: g.transpose(x, (2, 0, 1)), "c a b"),
    ("reduce rows", lambda g, x: g.reduce(x, (2,), "add"), "a b"),
    ("reduce columns", lambda g, x: g.reduce(x, (0, 1), "add"), "c"),
    ("reduce all", lambda g, x: g.reduce(x, (0, 1, 2), "add"), ""),
    ("reverse", lambda g, x: g.reverse(x, (1,)), "a d c"),
    ("slice", lambda g, x: g.slice(x, (0, 1, 0), (4, 6, 2)), "a d c"),
    ("strided slice", lambda g, x: g.slice(x, (0, 0, 0), (4, 6, 2), (1, 2, 1)), "a d c"),
    ("pad", lambda g, x: g.pad(x, g.constant(0.0, "f32"), (0, 1, 0), (0, 0, 0)), "a d c"),
    ("interior pad", lambda g, x: g.pad(x, g.constant(0.0, "f32"), (0, 0, 0), (0, 0, 0), (1, 0, 0)), "d b c"),
    ("concatenate", lambda g, x: g.concatenate([x, x], 1), "a d c"),
    ("dynamic-slice", dynamic_slice, "a d c"),
    ("dynamic-update-slice", dynamic_update, "a b c"),
    ("gather", embed, "d b c"),
    ("merging reshape", lambda g, x: g.reshape(x, (24, 2)), "ab c"),
    ("reshape with ones", lambda g, x: g.reshape(x, (1, 4, 6, 1, 2)), "- a b - c"),
    ("splitting reshape", lambda g, x: g.reshape(x, (4, 3, 2, 2)), "a b c d"),
    ("flat", lambda g, x: g.reshape(x, (48,)), "abc"),
    ("iota", lambda g, x: g.iota("s32[4,6,2]", 1), "d e f"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_what_an_op_keeps(build: Build, expected: str) -> None:
    g = GraphBuilder()
    x = g.parameter("f32[4,6,2]")
    y = build(g, x)
    dimensions = dimensions_of(g.build(y))
    letters: dict[str, str] = {}
    show(dimensions, x, letters)
    assert show(dimensions, y, letters) == expected


def test_a_splitting_reshape_splits_the_operand_too() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[4,6,2]")
    y = g.reshape(g.same("exponential", x), (4, 3, 2, 2))
    dimensions = dimensions_of(g.build(y))
    letters: dict[str, str] = {}
    assert show(dimensions, x, letters) == "a bc d"
    assert show(dimensions, y, letters) == "a b c d"
    minor = dimensions.space(y)[2]
    assert dimensions.canonical_index(x)[1].coefficient(minor) == 1
    assert dimensions.canonical_index(x)[1].coefficient(dimensions.space(y)[1]) == 2


def test_a_reshape_that_fits_nowhere_leaves_the_rest_apart() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[4,6]")
    y = g.reshape(x, (3, 8))
    dimensions = dimensions_of(g.build(y))
    letters: dict[str, str] = {}
    # From the minor end: 8 against 6 shares nothing by division.
    assert show(dimensions, x, letters) == "a b"
    assert show(dimensions, y, letters) == "c d"


def test_a_transpose_added_to_its_operand_is_not_one_loop() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[8,8]")
    t = g.transpose(x, (1, 0))
    y = g.same("add", x, t)
    dimensions = dimensions_of(g.build(y))
    assert len(set(dimensions.space(y))) == 2
    assert len(set(dimensions.space(x))) == 2
    assert dimensions.space(t) == dimensions.space(x)[::-1]
    # The addition could go along with only one of its operands' orders.
    assert dimensions.space(y) in (dimensions.space(x), dimensions.space(t))


def test_no_node_has_one_atom_twice() -> None:
    g = GraphBuilder()
    v = g.parameter("f32[8]")
    outer = g.same("add", g.broadcast(v, (8, 8), (0,)), g.broadcast(v, (8, 8), (1,)))
    dimensions = dimensions_of(g.build(outer))
    assert len(set(dimensions.space(outer))) == 2


@pytest.mark.parametrize(
    ("along", "reduced", "other", "expected"),
    [
        ((6,), (1,), (4, 6), "a b"),
        ((5,), (1,), (4, 6), "a c"),
        ((3, 2), (1, 2), (4, 3, 2), "a b c"),
        ((3, 2), (1, 2), (4, 6), "a d"),
    ],
)
def test_rows_of_one_length_are_walked_together(
    along: tuple[int, ...], reduced: tuple[int, ...], other: tuple[int, ...], expected: str
) -> None:
    """y * tanh(sum(x)): along: the rows of x, other: the shape of y."""
    g = GraphBuilder()
    x = g.parameter(f"f32[{','.join(map(str, (4, *along)))}]")
    total = g.same("tanh", g.reduce(x, reduced, "add"))
    y = g.parameter(f"f32[{','.join(map(str, other))}]")
    graph = g.build(g.same("multiply", y, g.broadcast(total, other, (0,))))
    dimensions = find_dimensions(graph, graph.nodes, align_rows=True)
    letters: dict[str, str] = {}
    show(dimensions, x, letters)
    assert show(dimensions, y, letters) == expected
    apart = dimensions_of(graph)
    assert set(apart.space(x)) & set(apart.space(y)) == {apart.space(x)[0]}


def test_all_rows_behind_a_value_are_walked_together() -> None:
    """z * (sum(x) + max(y))"""
    g = GraphBuilder()
    x, y, z = (g.parameter("f32[4,6]") for _ in range(3))
    both = g.same("add", g.reduce(x, (1,), "add"), g.reduce(y, (1,), "maximum"))
    graph = g.build(g.same("multiply", z, g.broadcast(both, (4, 6), (0,))))
    dimensions = find_dimensions(graph, graph.nodes, align_rows=True)
    assert dimensions.space(x) == dimensions.space(y) == dimensions.space(z)


def test_a_row_is_walked_together_wholly_or_not_at_all() -> None:
    """A table of all pairs of last columns keeps these apart, and so the first columns too."""
    g = GraphBuilder()
    x, y = g.parameter("f32[4,5,6]"), g.parameter("f32[4,5,6]")
    total = g.broadcast(g.reduce(x, (1, 2), "add"), (4, 5, 6), (0,))
    one, other = (g.reduce(v, (0, 1), "maximum") for v in (x, y))
    table = g.same("add", g.broadcast(one, (6, 6), (0,)), g.broadcast(other, (6, 6), (1,)))
    graph = g.build(g.same("multiply", y, total), table)
    dimensions = find_dimensions(graph, graph.nodes, align_rows=True)
    assert set(dimensions.space(x)) & set(dimensions.space(y)) == {dimensions.space(x)[0]}


def test_columns_are_not_walked_together() -> None:
    g = GraphBuilder()
    x, y = g.parameter("f32[6,4]"), g.parameter("f32[6,4]")
    repeated = g.broadcast(g.reduce(x, (0,), "add"), (6, 4), (1,))
    graph = g.build(g.same("multiply", y, repeated))
    dimensions = find_dimensions(graph, graph.nodes, align_rows=True)
    assert dimensions.space(x)[0] != dimensions.space(y)[0]
    assert dimensions.space(x)[1] == dimensions.space(y)[1]


def test_a_table_of_all_pairs_keeps_rows_and_columns_apart() -> None:
    """x[i] + sum(y[j]) has both dimensions: they are not one loop, whatever their lengths."""
    g = GraphBuilder()
    x = g.parameter("f32[8,8]")
    total = g.broadcast(g.reduce(x, (1,), "add"), (8, 8), (1,))
    graph = g.build(g.same("add", x, total))
    dimensions = find_dimensions(graph, graph.nodes, align_rows=True)
    assert len(set(dimensions.space(x))) == 2


def test_inputs_of_a_variadic_reduce_share_their_loops() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[4,6]")
    y = g.parameter("s32[4,6]")
    winner = g.arg_max(x, y, (1,))
    graph = g.build(g.element(winner, 0), g.element(winner, 1))
    dimensions = dimensions_of(graph)
    assert dimensions.space(x) == dimensions.space(y)
    assert dimensions.space(winner) == dimensions.space(x)[:1]


def test_a_broadcast_of_an_extent_of_one_is_a_new_loop() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[4,1]")
    y = g.broadcast(x, (4, 6), (0, 1))
    dimensions = dimensions_of(g.build(y))
    assert dimensions.space(y)[:1] == dimensions.space(x)
    assert len(dimensions.space(y)) == 2


@settings(max_examples=60, deadline=None, derandomize=True)
@given(random_graphs(10))
def test_atoms_of_random_graphs_are_a_factorisation_of_every_shape(graph: Graph) -> None:
    dimensions = dimensions_of(graph)
    for node in graph:
        shape = array_of(node).shape
        atoms = dimensions.atoms[node.name]
        if node.op != "constant" or node.name in dimensions.atoms:
            assert tuple(math.prod(a.extent for a in row) for row in atoms) == shape
        space = dimensions.space(node.name)
        assert len(set(space)) == len(space)
        assert all(atom.extent != 1 for atom in space)
        for position, extent in zip(dimensions.canonical_index(node.name), shape, strict=True):
            assert ix.bounds(position) == (0, max(extent - 1, 0))
