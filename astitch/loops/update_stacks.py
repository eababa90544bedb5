"""Graph -> Graph: a loop that updates the slices of a stack updates the stack, where it lies.

    caches of all layers ── slice i ── update of a row ──┬── all other reads
                                                         └── slice i of another stack (lax.scan) or of the same one

A turn would copy a slice of a stack, change a row of the copy, and copy all of it to its place.  Here it writes the
row, and reads the slice behind that.  lax.scan reads one stack and writes another: if nobody reads the first one after
the loop, and each slice is written, both are one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from astitch.graph.edit import free_name, keep_parts, sort_nodes
from astitch.graph.ir import (
    ArrayType,
    Attrs,
    BroadcastAttrs,
    DimensionAttrs,
    DType,
    DynamicSliceAttrs,
    GetTupleElementAttrs,
    Graph,
    NoAttrs,
    Node,
    ScatterAttrs,
    TupleType,
)
from astitch.graph.ops import OPS, is_slice_update
from astitch.loops.analysis import (
    Affine,
    Place,
    count_turns,
    find_integers,
    find_place,
    find_used,
)
from astitch.loops.merge import find_ancestors
from astitch.rewrite.ranges import Range
from astitch.rewrite.simplify import simplify

LEAST_BYTES = 64 << 10
"""Of a slice.  A smaller one is copied in less time than a launch takes: an estimate."""

MOST_UPDATES = 64
"""Of one slice, one behind the other."""


def update_stacks(graph: Graph, is_kernel: Callable[[Graph, Node], bool]) -> Graph:
    """The same function, in nested loops too.  is_kernel: will a while be one kernel, which keeps its state on chip?"""
    nodes: dict[str, Node] = {}
    numbers: dict[str, Mapping[int, int]] = {}
    for node in graph:
        if OPS[node.op].is_loop and not is_kernel(graph, node):
            node, numbers[node.name] = _change_loop(graph, node, is_kernel)
        elif isinstance(node.attrs, GetTupleElementAttrs) and node.operands[0] in numbers:
            kept = numbers[node.operands[0]]
            if kept:
                node = replace(node, attrs=GetTupleElementAttrs(kept[node.attrs.index]))
        nodes[node.name] = node
    changed = any(nodes[name] is not node for name, node in graph.nodes.items())
    return replace(graph, nodes=nodes) if changed else graph


def _change_loop(
    graph: Graph, node: Node, is_kernel: Callable[[Graph, Node], bool]
) -> tuple[Node, Mapping[int, int]]:
    """(the loop, the new numbers of the parts of its state where it carries fewer)."""
    condition, body = node.regions
    inner = simplify_body(graph, node, update_stacks(body, is_kernel))
    if inner is not body:
        node = replace(node, regions=(condition, inner))
    node, numbers = _join_stacks(graph, node)
    condition, body = node.regions
    trips, integers = _find_integers(graph, node)
    changed = body
    for name in body.outputs:
        changed = _update_in_place(changed, name, integers, trips)
    if changed is not body:
        node = replace(node, regions=(condition, changed))
    return node, numbers


def simplify_body(graph: Graph, node: Node, body: Graph) -> Graph:
    """The body with what follows from the bounds of its counters: an index is not negative, and within its array."""
    turns = count_turns(graph, node)
    if turns is None or not turns[0]:
        return body
    trips, counters = turns
    ranges = {}
    for number, counter in counters.items():
        ends = sorted((counter.at(0), counter.at(trips - 1)))
        ranges[body.parameters[number]] = Range.of(*ends)
    simpler = simplify(body, ranges=ranges)
    return body if simpler.key == body.key else simpler


def _find_integers(graph: Graph, node: Node) -> tuple[int, Mapping[str, Affine]]:
    """(turns of a loop, the integers of its body that the turn decides); nothing where its turns are not known."""
    turns = count_turns(graph, node)
    if turns is None:
        return 0, {}
    trips, counters = turns
    body = node.regions[1]
    given = {body.parameters[number]: counter for number, counter in counters.items()}
    return trips, find_integers(body, given, trips)


# ---- two stacks as one


def _join_stacks(graph: Graph, node: Node) -> tuple[Node, Mapping[int, int]]:
    """The loop with each stack that it writes in the memory of the stack whose slices it updates."""
    projected = all(
        isinstance(graph[u].attrs, GetTupleElementAttrs) for u in graph.users[node.name]
    )
    if not projected or node.name in graph.outputs:
        return node, {}
    pairs = dict(_find_pairs(graph, node, *_find_integers(graph, node)))
    if not pairs or not isinstance(node.type, TupleType):
        return node, {}
    condition, body = node.regions
    renamed = {body.parameters[read]: body.parameters[written] for written, read in pairs.items()}
    nodes = {
        name: inner.read(tuple(renamed.get(o, o) for o in inner.operands))
        for name, inner in body.nodes.items()
    }
    operands = list(node.operands)
    for written, read in pairs.items():
        operands[written] = operands[read]
    kept = [number for number in range(len(operands)) if number not in pairs.values()]
    regions = (
        keep_parts(condition, kept, is_state=False),
        keep_parts(replace(body, nodes=nodes), kept, is_state=True),
    )
    made = replace(
        node,
        type=TupleType(tuple(node.type.elements[number] for number in kept)),
        operands=tuple(operands[number] for number in kept),
        regions=regions,
    )
    return made, {number: place for place, number in enumerate(kept)}


def _find_pairs(
    graph: Graph, node: Node, trips: int, integers: Mapping[str, Affine]
) -> Iterator[tuple[int, int]]:
    """(number of a stack that is written, number of the one whose slices are updated)."""
    condition, body = node.regions
    used = find_used(graph, node)
    taken: set[int] = set()
    for written, output in enumerate(body.outputs):
        chain = _find_chain(body, output, body.parameters[written], integers)
        if chain is None or body.users[body.parameters[written]] != (output,):
            continue
        if body.users[output]:
            continue  # slices that are not written yet would be those of the other stack
        if condition.users[condition.parameters[written]] or body.outputs.count(output) > 1:
            continue
        source = chain.slice.operands[0]
        if source not in body.parameters or source == body.parameters[written]:
            continue
        read = body.parameters.index(source)
        update = body[output]
        sizes = body[update.operands[1]].shape
        place = find_place(body, update, update.operands[2:], sizes, integers, trips)
        if place is None or not _is_whole(body, update, place, trips) or read in taken | {*used}:
            continue
        if _is_only_sliced(node, read, place, integers) and _dies(graph, node, read):
            taken.add(read)
            yield written, read


def _is_whole(body: Graph, update: Node, place: Place, trips: int) -> bool:
    """Is each slice of the stack written once?"""
    return abs(place.index.scale) == 1 and update.shape[place.dimension] == trips


def _is_only_sliced(node: Node, number: int, place: Place, integers: Mapping[str, Affine]) -> bool:
    """Does the loop read nothing of a part of its state but in the slice of the turn?"""
    condition, body = node.regions
    name, tested = body.parameters[number], condition.parameters[number]
    if body.outputs[number] != name or body.outputs.count(name) > 1:
        return False
    if condition.users[tested] or tested in condition.outputs:
        return False
    d = place.dimension
    return all(
        isinstance(user.attrs, DynamicSliceAttrs)
        and user.operands[0] == name
        and user.attrs.sizes[d] == 1
        and integers.get(user.operands[1 + d]) == place.index
        for user in map(body.__getitem__, body.users[name])
    )


def _dies(graph: Graph, node: Node, number: int) -> bool:
    """Is the loop the last to read what it starts from?"""
    name = node.operands[number]
    return (
        graph.users[name] == (node.name,)
        and node.operands.count(name) == 1
        and name not in graph.outputs
    )


# ---- updates in the stack


@dataclass(frozen=True, slots=True)
class _Chain:
    """A slice of a stack, and its updates in order.  inside: these, the slice, and their shapes in between."""

    slice: Node
    updates: tuple[Node, ...]
    inside: tuple[str, ...]


def _find_chain(
    body: Graph, output: str, stack: str, integers: Mapping[str, Affine]
) -> _Chain | None:
    """What an update of a stack writes, if it is an updated slice of one at the same place."""
    written = body[output]
    if not _is_update(written) or written.operands[0] != stack:
        return None
    name = written.operands[1]
    updates: list[Node] = []
    inside: list[str] = []
    while True:
        node = body[name]
        if name in body.outputs or (updates and not set(body.users[name]) <= {*inside}):
            return None
        inside.append(name)
        if isinstance(node.attrs, DynamicSliceAttrs):
            break
        if _is_update(node) or _is_scatter(node):
            updates.append(node)
        elif not (OPS[node.op].is_view and not OPS[node.op].is_bitcast):
            return None
        name = node.operands[0]
    if not 0 < len(updates) <= MOST_UPDATES or node.array.bytes < LEAST_BYTES:
        return None
    sliced = _find_sliced(body, written, node, integers)
    if sliced is None or not all(_fits(update, node, sliced) for update in updates):
        return None
    return _Chain(node, tuple(reversed(updates)), tuple(inside))


def _is_update(node: Node) -> bool:
    """Is it a dynamic-update-slice whose stack it reads for nothing else?"""
    return is_slice_update(node) and _writes_first(node)


def _is_scatter(node: Node) -> bool:
    """Is it one of one array, without dimensions of batches?"""
    a = node.attrs
    one = isinstance(a, ScatterAttrs) and not a.input_batching_dims
    return one and _writes_first(node) and len(node.operands) == len(("array", "places", "updates"))


def _writes_first(node: Node) -> bool:
    """Does it write into its first operand, which it reads for nothing else?"""
    return OPS[node.op].writes_into and node.operands.count(node.operands[0]) == 1


def _fits(update: Node, slice_: Node, sliced: int) -> bool:
    """Has it an index of its own for each dimension of the slice, but for those of one element?"""
    if _is_scatter(update):
        return (1, *update.shape) == slice_.shape and sliced == 0
    return _squeeze(update.shape) == _squeeze(slice_.shape)


def _squeeze(shape: Sequence[int]) -> list[int]:
    return [extent for extent in shape if extent > 1]


def _find_sliced(
    body: Graph, written: Node, read: Node, integers: Mapping[str, Affine]
) -> int | None:
    """The dimension along which one slice is read, and written back where it was; None where there is more to it."""
    value = body[written.operands[1]]
    if value.array != read.array or written.array != body[read.operands[0]].array:
        return None
    found = []
    for d, (extent, size) in enumerate(zip(written.shape, read.shape, strict=True)):
        one, other = written.operands[2 + d], read.operands[1 + d]
        same = one == other or (one in integers and integers[one] == integers.get(other))
        if size != extent:
            if size > 1 or not same:
                return None
            found.append(d)
    return found[0] if len(found) == 1 else None


def _update_in_place(body: Graph, output: str, integers: Mapping[str, Affine], trips: int) -> Graph:
    """The body with updates of a slice as updates of its stack; the same where there are none."""
    written = body[output]
    if not _is_update(written):
        return body
    stack = written.operands[0]
    chain = _find_chain(body, output, stack, integers)
    if chain is None or chain.slice.operands[0] != stack:
        return body
    others = {*body.users[stack]} - {output, chain.slice.name}
    if others and not others <= find_ancestors(body, chain.updates[0].name):
        return body  # it would be read behind the update: XLA copies it before
    sliced = _find_sliced(body, written, chain.slice, integers)
    assert sliced is not None
    index = integers.get(written.operands[2 + sliced])
    is_inside = index is not None and _is_inside(index, trips, written.shape[sliced])
    for update in chain.updates:
        if _is_scatter(update):
            places = body[update.operands[1]].dtype
            if not is_inside or not _holds(places, written.shape[sliced] - 1):
                return body
        elif _type_starts(body, update, chain.slice) is None:
            return body
    return _Place(body, written, chain, sliced).put()


def _is_inside(index: Affine, trips: int, extent: int) -> bool:
    """Is a slice within its stack in each turn?  Scatters drop what is outside, slices are moved."""
    return all(0 <= index.at(turn) < extent for turn in (0, trips - 1))


def _holds(dtype: DType, number: int) -> bool:
    return number <= int(np.iinfo(dtype.numpy).max)


def _type_starts(body: Graph, update: Node, slice_: Node) -> DType | None:
    """The type for the starts of both: one of theirs that holds all numbers of the other; None where neither does."""
    one, other = (body[name].dtype for name in (slice_.operands[1], update.operands[2]))
    if np.can_cast(other.numpy, one.numpy):
        return one
    return other if np.can_cast(one.numpy, other.numpy) else None


class _Place:
    """Where the updates of one slice are written as updates of its stack."""

    def __init__(self, body: Graph, written: Node, chain: _Chain, sliced: int) -> None:
        self.body, self.written, self.chain, self.sliced = body, written, chain, sliced
        self.nodes = dict(body.nodes)

    def put(self) -> Graph:
        stack = self.written.operands[0]
        updates = self.chain.updates
        for update in updates:
            is_last = update is updates[-1]
            name = self.written.name if is_last else self._free(f"{update.name}.in_stack")
            put = self._put_scatter if _is_scatter(update) else self._put_update
            put(name, stack, update)
            stack = name
        whole = replace(
            self.chain.slice,
            name=self._free(f"{self.chain.slice.name}.behind"),
            operands=(stack, *self.chain.slice.operands[1:]),
        )
        self.nodes[whole.name] = whole
        # What reads the updated slice reads it in the stack.
        for name in self._list_values():
            self._read_instead(name, whole.name)
        for name in self.chain.inside:
            del self.nodes[name]
        kept = [name for name in self.body.nodes if name in self.nodes]
        return replace(self.body, nodes=sort_nodes(self.nodes, kept, {}))

    def _list_values(self) -> Iterator[str]:
        """The updated slice in each shape that it has between its last update and the write."""
        name = self.written.operands[1]
        yield name
        while name != self.chain.updates[-1].name:
            name = self.body[name].operands[0]
            yield name

    def _read_instead(self, name: str, whole: str) -> None:
        """Readers of a value, but for the chain, read this in its place, in its shape."""
        node = self.body[name]
        inner = {self.written.name, *self.chain.inside}
        readers = [user for user in self.body.users[name] if user not in inner]
        if not readers:
            return
        other = whole
        if node.shape != self.nodes[whole].shape:
            other = self._add("reshape", node.array, (whole,))
        for reader in readers:
            old = self.nodes[reader]
            self.nodes[reader] = old.read(tuple(other if o == name else o for o in old.operands))

    def _put_update(self, name: str, stack: str, update: Node) -> None:
        """A dynamic-update-slice of the slice as one of the stack."""
        _, value, *starts = update.operands
        part, sliced = self.body[value], self.chain.slice
        shape, where = [1] * len(sliced.shape), list(sliced.operands[1:])
        own = iter([d for d, extent in enumerate(update.shape) if extent > 1])
        for d, extent in enumerate(sliced.shape):
            if extent > 1:
                inner = next(own)
                shape[d], where[d] = part.shape[inner], starts[inner]
        dtype = _type_starts(self.body, update, sliced)
        assert dtype is not None
        where = [self._convert(start, dtype) for start in where]
        value = self._reshape(value, shape)
        self.nodes[name] = replace(self.written, name=name, operands=(stack, value, *where))

    def _put_scatter(self, name: str, stack: str, update: Node) -> None:
        """A scatter into the slice, the first index of a stack, as one into the stack."""
        a = update.attrs
        assert isinstance(a, ScatterAttrs)
        _, places, updates = update.operands
        given = self.body[places].array
        shape = list(given.shape)
        if a.index_vector_dim == len(shape):
            shape.append(1)
        of_one = [*shape]
        of_one[a.index_vector_dim] = 1
        layer = self._convert(self.written.operands[2 + self.sliced], given.dtype)
        layers = self._add(
            "broadcast", ArrayType(given.dtype, tuple(of_one)), (layer,), BroadcastAttrs(())
        )
        both = list(shape)
        both[a.index_vector_dim] += 1
        joined = self._add(
            "concatenate",
            ArrayType(given.dtype, tuple(both)),
            (layers, self._reshape(places, shape)),
            DimensionAttrs(a.index_vector_dim),
        )
        attrs = replace(
            a,
            inserted_window_dims=(0, *(d + 1 for d in a.inserted_window_dims)),
            scatter_dims_to_operand_dims=(0, *(d + 1 for d in a.scatter_dims_to_operand_dims)),
        )
        self.nodes[name] = replace(
            update,
            name=name,
            type=self.written.type,
            operands=(stack, joined, updates),
            attrs=attrs,
        )

    def _free(self, name: str) -> str:
        return free_name(name, self.nodes)

    def _add(
        self, op: str, type_: ArrayType, operands: tuple[str, ...], attrs: Attrs = NoAttrs()
    ) -> str:
        origin = self.written
        name = self._free(f"{origin.name}.{op}")
        self.nodes[name] = Node(name, op, type_, operands, attrs, (), origin.op_name, origin.source)
        return name

    def _reshape(self, value: str, shape: Sequence[int]) -> str:
        array = self.nodes[value].array
        if array.shape == tuple(shape):
            return value
        return self._add("reshape", ArrayType(array.dtype, tuple(shape)), (value,))

    def _convert(self, start: str, dtype: DType) -> str:
        """Starts of one op have one type."""
        array = self.nodes[start].array
        if array.dtype is dtype:
            return start
        return self._add("convert", ArrayType(dtype, array.shape), (start,))
