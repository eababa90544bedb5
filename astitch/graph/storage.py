"""Which buffer holds a value: reshapes share their operand's, results of one op are numbered `op#0`, `op#1` ...

No name of a module holds `#` (the importer sees to that), so these names never meet others.
"""

from __future__ import annotations

from astitch.graph.dimensions import array_of
from astitch.graph.ir import ArrayType, GetTupleElementAttrs, Graph
from astitch.graph.ops import OPS


def stored_value(graph: Graph, name: str) -> str:
    """The op whose buffer holds `name`: a reshape is another view of its operand's row-major buffer."""
    while OPS[graph[name].op].is_view:
        name = graph[name].operands[0]
    return name


def storage_name(graph: Graph, name: str) -> str:
    """The buffer that holds a value: reshapes share their operand's, results of one op are numbered."""
    name = stored_value(graph, name)
    node = graph[name]
    if isinstance(node.attrs, GetTupleElementAttrs):
        return f"{node.operands[0]}#{node.attrs.index}"
    return name


def storage_type(graph: Graph, name: str) -> ArrayType:
    """The array type under a storage name."""
    base, _, number = name.partition("#")
    node_type = graph[base].type
    if number and not isinstance(node_type, ArrayType):
        return node_type.elements[int(number)]
    return array_of(graph[base])
