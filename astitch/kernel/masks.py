"""Input -> the elements of it that anybody needs: reads behind a select whose predicate is index arithmetic.

A causal mask selects by comparing positions.  An array that nobody else reads need not be loaded where the mask hides
it.  The guards found here say which elements are needed, before any of them is known.
"""

from __future__ import annotations

from collections.abc import Collection

from astitch.graph import index as ix
from astitch.graph.index import Linear
from astitch.graph.ir import CompareAttrs, ConstantAttrs, Graph, IotaAttrs, Node
from astitch.graph.ops import OPS, Kind
from astitch.graph.ops.access import Index, Within
from astitch.graph.propagation import access

FAR = 1 << 31
"""A distance beyond any difference of two positions."""

LARGEST = (1 << 31) - 1
"""Index arithmetic beyond it may wrap around in HLO, not here."""


def find_mask(
    graph: Graph, name: str, index: Index, inside: Collection[str], stored: Collection[str]
) -> tuple[Within, ...]:
    """Guards under which somebody needs `name[index]`; none where it may always be needed.

    inside: the ops of the kernel.  stored: those whose every element it writes.  Only element-wise ops may lie
    between the value and the select.
    """
    while True:
        users = [user for user in graph.users[name] if user in inside]
        if len(users) != 1 or (name in inside and name in stored):
            return ()
        node = graph[users[0]]
        if node.op == "select" and node.operands.count(name) == 1 and node.operands[0] != name:
            return _guards_of(graph, node.operands[0], index, wanted=node.operands[1] == name)
        if OPS[node.op].kind is not Kind.ELEMENTWISE or node.array.rank != len(index):
            return ()
        name = node.name


def _guards_of(graph: Graph, name: str, index: Index, *, wanted: bool) -> tuple[Within, ...]:
    """Guards that hold wherever the predicate `name[index]` is `wanted`."""
    node = graph[name]
    if node.op == "and" and wanted:
        return tuple(
            g for operand in node.operands for g in _guards_of(graph, operand, index, wanted=True)
        )
    if OPS[node.op].negates:
        return _guards_of(graph, node.operands[0], index, wanted=not wanted)
    if OPS[node.op].kind in (Kind.INDEX, Kind.BROADCAST):
        behind = _read_of(graph, node, index)
        return _guards_of(graph, behind[0], behind[1], wanted=wanted) if behind else ()
    if not isinstance(node.attrs, CompareAttrs):
        return ()
    forms = [_position_of(graph, operand, index) for operand in node.operands]
    if forms[0] is None or forms[1] is None:
        return ()
    difference = ix.add(forms[0], ix.scale(forms[1], -1))
    opposite = {"LT": "GE", "GE": "LT", "GT": "LE", "LE": "GT", "EQ": "NE", "NE": "EQ"}
    direction = node.attrs.direction if wanted else opposite[node.attrs.direction]
    ranges = {"LT": (-FAR, 0), "LE": (-FAR, 1), "GT": (1, FAR), "GE": (0, FAR), "EQ": (0, 1)}
    return (Within(difference, *ranges[direction]),) if direction in ranges else ()


def _read_of(graph: Graph, node: Node, index: Index) -> tuple[str, Index] | None:
    """The one element that an element of a view is."""
    found = access(graph, node, index)
    if len(found.choices) != 1 or found.dynamics:
        return None
    read = found.choices[0].reads[0]
    return read.operand, read.index


def _position_of(graph: Graph, name: str, index: Index) -> Linear | None:
    """The integer `name[index]` as a form over positions, None where it depends on data or may wrap around."""
    node = graph[name]
    row = OPS[node.op]
    form: Linear | None = None
    if not node.dtype.is_integer:
        return None
    if isinstance(node.attrs, IotaAttrs):
        form = index[node.attrs.dimension]
    elif isinstance(node.attrs, ConstantAttrs):
        values = node.attrs.value.numpy()
        form = ix.constant(int(values.flat[0])) if values.size == 1 else None
    elif sign := row.addend_sign:
        a, b = (_position_of(graph, operand, index) for operand in node.operands)
        if a is not None and b is not None:
            form = ix.add(a, ix.scale(b, sign))
    elif row.kind is Kind.ELEMENTWISE and (row.is_conversion or row.keeps_order):
        form = _position_of(graph, node.operands[0], index)
    elif row.kind in (Kind.INDEX, Kind.BROADCAST):
        behind = _read_of(graph, node, index)
        form = _position_of(graph, *behind) if behind else None
    if form is None:
        return None
    least, most = ix.bounds(form)
    low = 0 if node.dtype.is_unsigned else -LARGEST
    narrow = node.dtype.bytes < 4 and not (least >= -128 and most <= 127)
    return form if low <= least and most <= LARGEST and not narrow else None
