"""Numbers that a turn looks up in an array that no turn changes, at places that it computes itself.

Takes a body, hands on its Lookups.  The array stays in memory, where no element of a thread meets another one's: so a
lookup is an op on its places, as an element-wise one is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from astitch.graph.ir import GatherAttrs, Graph, Node
from astitch.graph.ops import OPS


@dataclass(frozen=True, slots=True)
class Lookup:
    """One number for each of some places.  table: a parameter or constant.  places: the operand that says where."""

    name: str
    table: str
    places: str


LOOKED_UP = GatherAttrs((), (0,), (0,), 0, (1,))
"""What a lookup says of an array of one dimension, but for the rank of its places."""

MOST_IN_TABLE = 2**31 - 1
"""Elements of a table: integers of 32 bits say where in it."""


def read_lookup(body: Graph, node: Node) -> Lookup | None:
    """A gather of single numbers from an array of one dimension, as spell_out writes it; None: another op."""
    attrs = node.attrs
    if not isinstance(attrs, GatherAttrs) or attrs.slice_sizes != LOOKED_UP.slice_sizes:
        return None
    source, places = node.operands
    if attrs.offset_dims or attrs.index_vector_dim != body[places].array.rank:
        return None
    table = find_table(body, source)
    if table is None or body[table].array.size > MOST_IN_TABLE:
        return None
    return Lookup(node.name, table, places)


def find_table(body: Graph, name: str) -> str | None:
    """The state that no turn changes, or the constant, whose elements a value has in their order; None: there is
    none."""
    while OPS[body[name].op].keeps_order:
        name = body[name].operands[0]
    node = body[name]
    if node.is_parameter:
        handed_on = body.outputs[body.parameters.index(name)] == name
        return name if handed_on else None
    return name if node.is_constant and node.array.size > 1 else None


def find_lookups(body: Graph, live: Collection[str]) -> Mapping[str, Lookup]:
    """The lookups among live values, by name."""
    found = (read_lookup(body, body[name]) for name in live)
    return {lookup.name: lookup for lookup in found if lookup is not None}


def list_tables(
    body: Graph, live: Collection[str], lookups: Mapping[str, Lookup]
) -> frozenset[str]:
    """The values that only lookups read: tables, and the same in other shapes.  What the next turn gets as another
    state is none: threads write it."""
    states = zip(body.parameters, body.outputs, strict=True)
    written = {output for parameter, output in states if output != parameter}
    tables: set[str] = set()
    for node in reversed(list(body)):
        users = [user for user in body.users[node.name] if user in live]
        looked_up = [user in lookups and body[user].operands[0] == node.name for user in users]
        reshaped = [user in tables for user in users]
        alone = (
            users
            and node.name not in written
            and all(a or b for a, b in zip(looked_up, reshaped, strict=True))
        )
        if alone and node.name in live and find_table(body, node.name) is not None:
            tables.add(node.name)
    return frozenset(tables)
