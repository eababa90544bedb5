"""Which buffer holds a value: reshapes share their operand's, results of one op are numbered `op#0`, `op#1` ...

No name of a module holds `#` (the importer sees to that), so these names never meet others.
"""

from __future__ import annotations

from collections.abc import Iterator

from astitch.graph.dimensions import array_of
from astitch.graph.ir import ArrayType, GetTupleElementAttrs, Graph
from astitch.graph.ops import OPS


def stored_value(graph: Graph, name: str) -> str:
    """The op whose buffer holds `name`: a reshape is another view of its operand's row-major buffer."""
    while OPS[graph[name].op].is_view:
        name = graph[name].operands[0]
    return name


def list_readers(graph: Graph, name: str) -> Iterator[str]:
    """The ops that read a value, as it is or in another shape."""
    for user in graph.users[name]:
        if OPS[graph[user].op].is_view:
            yield from list_readers(graph, user)
        else:
            yield user


def is_result(graph: Graph, name: str) -> bool:
    """Is a value a result of the graph, as it is or in another shape?"""
    views = (user for user in graph.users[name] if OPS[graph[user].op].is_view)
    return name in graph.outputs or any(is_result(graph, view) for view in views)


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
