"""Communication between devices: which ops of a Graph communicate, which they wait for, which XLA joins to them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence

from astitch.graph.ir import ArrayType, DynamicSliceAttrs, Graph, Node, OpaqueAttrs
from astitch.graph.ops import OPS, Kind

COLLECTIVES = frozenset(
    "all-gather all-gather-done all-gather-start all-reduce all-reduce-done all-reduce-start all-to-all "
    "collective-broadcast collective-permute collective-permute-done collective-permute-start "
    "ragged-all-to-all recv recv-done reduce-scatter send send-done".split()
)
"""Opcodes of HLO by which devices exchange data."""


def communicates(node: Node) -> bool:
    """Does the op, or one in its regions, exchange data with other devices?"""
    if isinstance(node.attrs, OpaqueAttrs):
        return node.attrs.opcode in COLLECTIVES or node.attrs.communicates
    return any(communicates(inner) for region in node.regions for inner in region)


COLLECTIVE_BLOCKS = 32
"""Blocks of the largest collective: NCCL's default for CTAs of a communicator.  Each may take an SM of its own."""

COMBINED = frozenset({"all-gather", "all-reduce", "collective-permute", "reduce-scatter"})
"""Collectives of which XLA's combiners make one."""

COMBINED_BYTES = 30 << 20
"""The most bytes of results that XLA combines by default (xla_gpu_all_reduce_combine_threshold_bytes and its like)."""


def find_combined(graph: Graph) -> list[list[str]]:
    """The collectives, as XLA's combiners will put them together: each by its name, in groups of one and more.

    As in XLA (collective_combiner_utils.h): the first of a kind and those that follow, up to one that waits for one of
    them, or that makes the group too large.  Those whose results XLA adds up are one before (find_sums).
    No two groups wait for each other: a group is looked at with all that were made before it.
    """
    sums = _list_sums(graph)
    units = [members for members, _ in sums]
    looks = [_look_at(graph, members, end) for members, end in sums]
    made = [[number] for number, (kin, _) in enumerate(looks) if not kin]
    waiting = {number: look for number, look in enumerate(looks) if look[0]}
    before = _find_before(graph, units)
    waits = [functools.reduce(int.__or__, map(before.__getitem__, unit)) for unit in units]
    while waiting:
        first, (kin, size) = next(iter(waiting.items()))
        group, mask, reached = [first], 1 << first, waits[first]
        for number, (other, count) in waiting.items():
            if number == first or other != kin or count > COMBINED_BYTES:
                continue
            size += count
            # By a group of another kind one of these may wait for what follows it.
            if waits[number] & mask or reached >> number & 1 or size > COMBINED_BYTES:
                break
            group.append(number)
            mask, reached = mask | 1 << number, reached | waits[number]
        made.append(group)
        waiting = {number: look for number, look in waiting.items() if number not in group}
        if len(group) > 1:  # what waits for one of them waits for all
            waits = [one | mask | reached if one & mask else one for one in waits]
    return [[name for number in group for name in units[number]] for group in made]


def _list_sums(graph: Graph) -> list[tuple[list[str], str]]:
    """The collectives in the order in which XLA comes to them; as one those whose results it adds up.

    Each with the value that it hands on: its result, or the sum.
    """
    sums = _trace_sums(graph)[1]
    last = {name: end for end, members in sums.items() for name in members}  # the largest sum
    found: list[tuple[list[str], str]] = []
    for node in graph:
        if communicates(node) and node.name not in last:
            found.append(([node.name], node.name))
        elif node.name in sums and all(last[name] == node.name for name in sums[node.name]):
            found.append((sums[node.name], node.name))
    return found


def _find_before(graph: Graph, groups: Sequence[Sequence[str]]) -> dict[str, int]:
    """For each op the groups of collectives that it waits for: an int with a bit for each of the groups.

    What waits for one of a group waits for all that the group waits for.
    """
    return _spread([*graph], lambda node: node.operands, groups)


def _spread(
    nodes: Sequence[Node],
    list_beside: Callable[[Node], Iterable[str]],
    groups: Sequence[Sequence[str]],
) -> dict[str, int]:
    """For each op the groups that it reaches.  A group is reached as a whole, with all that any of it reaches.

    nodes: each behind those that list_beside names for it.
    """
    of = {name: number for number, group in enumerate(groups) for name in group}
    reached = [1 << number for number in range(len(groups))]  # each group, with those it reaches
    found: dict[str, int] = {}
    changed = True
    while changed:
        changed = False
        for node in nodes:
            bits = 0
            for name in list_beside(node):
                bits |= found[name] | (reached[of[name]] if name in of else 0)
            found[node.name] = bits
            if node.name in of and bits & ~reached[of[node.name]]:
                reached[of[node.name]] |= bits
                changed = True
    return found


def _look_at(graph: Graph, members: Sequence[str], end: str) -> tuple[str, int]:
    """With what XLA combines a collective, and the bytes of its result; ("", 0) where with nothing.

    members, end: see _list_sums.  XLA combines no collective of several arrays.  Of an all-reduce of which a device
    reads only its part it makes a reduce-scatter before, whose result is the part.
    """
    node = graph[members[0]]
    if not isinstance(node.attrs, OpaqueAttrs) or not isinstance(node.type, ArrayType):
        return "", 0
    if node.attrs.opcode == "all-reduce" and node.attrs.kin:
        for name in (node.name, end):
            if part := _find_part(graph, name):
                return node.attrs.kin + " scattered", part.array.size * node.type.dtype.bytes
    return node.attrs.kin, node.type.bytes if node.attrs.kin else 0


def _find_part(graph: Graph, name: str) -> Node | None:
    """The slice of a collective's result, if nothing else of it is read."""
    while is_read_once(graph, name):
        reader = graph[graph.users[name][0]]
        if not OPS[reader.op].is_view and not OPS[reader.op].is_conversion:
            is_part = isinstance(reader.attrs, DynamicSliceAttrs) and name == reader.operands[0]
            return reader if is_part else None
        name = reader.name
    return None


def find_awaited(graph: Graph) -> dict[str, int]:
    """For each op the collectives that wait for it: an int with a bit for each group of find_combined.

    What waits for one of a group waits for all of the group.
    """
    return _spread([*graph][::-1], lambda node: graph.users[node.name], find_combined(graph))


def find_awaiting(graph: Graph) -> dict[str, int]:
    """For each op the collectives that it waits for: an int with a bit for each group of find_combined."""
    return _find_before(graph, find_combined(graph))


SLICED = frozenset({"all-reduce", "all-reduce-done", "all-gather", "all-gather-done"})
"""What XLA turns into less communication where each device reads only its own part of the result."""

ADDED = frozenset({"all-reduce", "all-gather", "reduce-scatter"})
"""Collectives of which XLA makes one where only an op of both results is read."""

COMMUTATIVE = frozenset({"add", "multiply", "minimum", "maximum", "and", "or"})
"""Such ops of two results."""

NARROWED = frozenset({"all-gather", "all-to-all", "collective-broadcast", "collective-permute"})
"""Collectives past which XLA moves conversions, so that it sends the narrower type."""

FORMATS = frozenset({"reshape", "slice"})
"""Ops between a collective and a conversion that XLA moves along."""


def find_joined(graph: Graph) -> dict[str, str]:
    """The ops that XLA's later passes join to a collective or move past one, each with the reason.

    No kernel may compute them, since XLA would then send more bytes.  docs/decisions/0030-communication.md has the
    passes.
    """
    found: dict[str, str] = {}
    if any(map(communicates, graph)):
        for rule in (find_spread, find_conversions, find_sums, find_scattered):
            found |= rule(graph)
    return found


def find_sums(graph: Graph) -> dict[str, str]:
    """Sums of the results of two collectives, with what stands between: XLA adds what is sent.

    add(all-reduce(x), all-reduce(y)) -> all-reduce(add(x, y)), where nothing else reads the two.  The sum is then a
    collective's result itself.  A slice of an all-reduce, where nothing else reads that, becomes a reduce-scatter.
    """
    return _trace_sums(graph)[0]


def _trace_sums(graph: Graph) -> tuple[dict[str, str], dict[str, list[str]]]:
    """What find_sums says; by each such sum, the collectives whose results it adds up."""
    reasons: dict[str, str] = {}
    results: dict[str, str] = {}  # values that collectives hand on, each with its opcode
    added: dict[str, list[str]] = {}  # the collectives that each of them comes from
    for node in graph:
        if isinstance(node.attrs, OpaqueAttrs):
            opcode = node.attrs.opcode.removesuffix("-done")
            if opcode in ADDED:
                results[node.name], added[node.name] = opcode, [node.name]
        elif isinstance(node.attrs, DynamicSliceAttrs):
            path = _trace_result(graph, node.operands[0], results)
            if path and results[path[-1]] == "all-reduce":
                results[node.name], added[node.name] = "reduce-scatter", added[path[-1]]
        elif node.op in COMMUTATIVE:
            one, other = (_trace_result(graph, o, results) for o in node.operands)
            if one and other and results[one[-1]] == results[other[-1]]:
                opcode = results[node.name] = results[one[-1]]
                added[node.name] = [*added[one[-1]], *added[other[-1]]]
                reason = f"XLA makes one {opcode} of it, %{one[-1]} and %{other[-1]}"
                between = {n for n in (*one, *other) if n not in results}
                reasons |= dict.fromkeys([*sorted(between), node.name], reason)
    return reasons, {name: added[name] for name in reasons if name in added}


def _trace_result(graph: Graph, name: str, results: Collection[str]) -> list[str]:
    """From a value back to the collective's result that it is, reshaped or converted; empty where it is none.

    Each value on the way has one reader.
    """
    path = [name]
    while is_read_once(graph, path[-1]):
        node = graph[path[-1]]
        if node.name in results:
            return path
        if not (OPS[node.op].is_view or OPS[node.op].is_conversion or node.op in ("slice", "pad")):
            break
        path.append(node.operands[0])
    return []


def is_read_once(graph: Graph, name: str) -> bool:
    """Has a value one reader, which is no result of the graph?"""
    return len(graph.users[name]) == 1 and name not in graph.outputs


def find_conversions(graph: Graph) -> dict[str, str]:
    """Conversions to a narrower type behind a collective, or to a wider one before it, with what stands between.

    convert(all-gather(x)) -> all-gather(convert(x)).  A factor and a clamp may stand between, as of a quantization.
    """
    reasons: dict[str, str] = {}
    for node in graph:
        if not isinstance(node.attrs, OpaqueAttrs) or len(node.operands) != 1:
            continue
        if node.attrs.opcode.removesuffix("-done") in NARROWED:
            reason = f"XLA moves the conversion to the other side of %{node.name}"
            for path in (_list_before(graph, node.operands[0]), _list_behind(graph, node.name)):
                spread = [o for n in path for o in graph[n].operands if _is_spread(graph[o])]
                reasons |= dict.fromkeys([*spread, *path], reason)
    return reasons


def widens_before(graph: Graph, name: str) -> bool:
    """Would XLA move a conversion to the other side of a collective that alone read what it sends?"""
    return bool(_list_before(graph, name, alone=False))


def _list_before(graph: Graph, name: str, *, alone: bool = True) -> list[str]:
    """The ops from a conversion to a wider type on, up to what is sent; empty where there is none.

    alone: each has one reader.
    """
    path: list[str] = []
    while not alone or is_read_once(graph, name):
        node = graph[name]
        path.append(name)
        if OPS[node.op].is_conversion:
            return path if _widens(graph, node) else []
        scaled = node.op in ("multiply", "divide") and _is_spread(graph[node.operands[1]])
        if node.op not in FORMATS and not scaled:
            break
        name = node.operands[0]
    return []


def _list_behind(graph: Graph, name: str) -> list[str]:
    """The ops behind what is received, up to a conversion to a narrower type; empty where there is none."""
    path: list[str] = []
    while is_read_once(graph, name):
        node = graph[graph.users[name][0]]
        path.append(node.name)
        if OPS[node.op].is_conversion:
            return path if _widens(graph, node, -1) else []
        if node.op not in FORMATS and node.op not in ("multiply", "divide", "clamp"):
            break
        name = node.name
    return []


def _widens(graph: Graph, node: Node, direction: int = 1) -> bool:
    """Has a conversion's result more bytes than its operand?  direction=-1: less."""
    before, behind = graph[node.operands[0]].type, node.type
    assert isinstance(before, ArrayType) and isinstance(behind, ArrayType)
    return direction * (behind.bytes - before.bytes) > 0


def _is_spread(node: Node) -> bool:
    return OPS[node.op].kind is Kind.BROADCAST


def find_spread(graph: Graph) -> dict[str, str]:
    """Broadcasts that an all-gather sends: XLA sends what is broadcast."""
    return {
        name: f"XLA broadcasts behind %{node.name}"
        for node in graph
        if isinstance(node.attrs, OpaqueAttrs) and node.attrs.opcode.startswith("all-gather")
        for name in node.operands
        if _is_spread(graph[name]) and is_read_once(graph, name)
    }


def find_scattered(graph: Graph) -> dict[str, str]:
    """The ops by which a device reads its part of a collective's result, each with the reason.

    These are the slices, what stands between, and what computes the offsets from the device's number.
    """
    reasons: dict[str, str] = {}
    collective: dict[str, str] = {}  # by value, which it is, as it came or reshaped
    for node in graph:
        if isinstance(node.attrs, OpaqueAttrs) and node.attrs.opcode in SLICED:
            collective[node.name] = node.name
            continue
        source = collective.get(node.operands[0], "") if node.operands else ""
        if source and (OPS[node.op].is_view or OPS[node.op].is_conversion):
            collective[node.name] = source
        elif source and isinstance(node.attrs, DynamicSliceAttrs):
            reason = f"XLA communicates only the part that it reads of %{source}"
            reasons[node.name] = reason
            reasons.update(dict.fromkeys(_list_passed(graph, node.operands[0], source), reason))
            offsets = dict.fromkeys(_list_scalars(graph, node.operands[1:]), reason)
            reasons = offsets | reasons
    return reasons


def _list_passed(graph: Graph, name: str, source: str) -> list[str]:
    """The values from `name` back to the collective `source` that it comes from, without `source`."""
    passed: list[str] = []
    while name != source:
        passed.append(name)
        name = graph[name].operands[0]
    return passed


def _list_scalars(graph: Graph, names: tuple[str, ...]) -> list[str]:
    """What offsets are computed from, small values all, without parameters, constants and the device's number."""
    found: dict[str, None] = {}
    pending = list(names)
    while pending:
        node = graph[pending.pop()]
        is_source = node.is_parameter or node.is_constant or isinstance(node.attrs, OpaqueAttrs)
        small = isinstance(node.type, ArrayType) and node.type.size <= _MOST_OFFSETS
        if node.name not in found and small and not is_source:
            found[node.name] = None
            pending += node.operands
    return list(found)


_MOST_OFFSETS = 4096
"""Elements of a table with a number for each device."""
