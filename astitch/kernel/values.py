"""The values of a task loop, each computed once at the outermost depth that knows its index.

`Values.value(op, index)` hands on the expression of a scalar and the depth at which it is known, and emits into the
nest what it takes.
"""

from __future__ import annotations

import math

from astitch.graph import index as ix
from astitch.graph.dimensions import array_of, is_embedded
from astitch.graph.index import Symbol
from astitch.graph.ir import ConstantAttrs, DType, IotaAttrs, Literal
from astitch.graph.ops import OPS, Kind, monoid_of
from astitch.graph.ops.access import Dynamic, Index
from astitch.graph.propagation import access
from astitch.graph.storage import storage_name
from astitch.kernel import kernel_ir as k
from astitch.kernel.choices import Choices
from astitch.kernel.declarations import Declarations
from astitch.kernel.loads import Loads
from astitch.kernel.loop_nest import LoopNest
from astitch.kernel.nest import Depth, Key
from astitch.kernel.on_chip import OnChip
from astitch.kernel.shared_buffers import SharedBuffers, name_result
from astitch.kernel.states import States, find_state
from astitch.mapping.roots import RootKind, reduce_behind
from astitch.mapping.stitch_scheme import Placement, combine_name, why_not_block_local


def is_input(declarations: Declarations, name: str) -> bool:
    """Read from memory that another step wrote."""
    return name not in declarations.inside and not is_embedded(declarations.graph, name)


class Values:
    """The values of one task loop.  evaluating: the root that is computed, not read from where it is kept."""

    def __init__(
        self, nest: LoopNest, on_chip: OnChip, states: States, buffers: SharedBuffers
    ) -> None:
        self.nest, self.on_chip, self.states, self.buffers = nest, on_chip, states, buffers
        self.declarations = nest.declarations
        self.graph, self.mapping = nest.graph, nest.mapping
        self.loads = Loads(nest, on_chip)
        self.choices = Choices(nest, self.value)
        self.evaluating = ""

    def root_value(self, name: str, index: Index) -> tuple[k.Expr, Depth]:
        """The value of a root where it is computed."""
        previous, self.evaluating = self.evaluating, name
        result = self.value(name, index)
        self.evaluating = previous
        return result

    def value(self, name: str, index: Index) -> tuple[k.Expr, Depth]:
        """The scalar `name[index]`: found in a cache, or computed in the outermost depth that knows its index."""
        node = self.graph[name]
        if isinstance(node.attrs, ConstantAttrs) and node.array.rank == 0:
            return k.Number(node.attrs.value), Depth.KERNEL
        key: Key = (name, index)
        known = self.nest.recall(key)
        if isinstance(known, tuple):
            return known
        # Operands first, with a stack of our own: chains of ops are longer than Python's.
        stack: list[tuple[Key, bool]] = [(key, False)]
        while True:
            current, ready = stack.pop()
            if ready:
                result = self.evaluate(current)
                if not stack:
                    return result
            elif not stack or self.nest.recall(current) is None:
                stack.append((current, True))
                stack.extend((operand, False) for operand in reversed(self.operand_keys(current)))

    def operand_keys(self, key: Key) -> list[Key]:
        """The values that `key` is computed from in the same thread; none where it is read or chosen,
        or where a start index must be computed first."""
        name, index = key
        node = self.graph[name]
        if isinstance(node.attrs, ConstantAttrs | IotaAttrs) or is_input(self.declarations, name):
            return []
        if key in self.on_chip.filled or self.kept_elsewhere(key) is not None:
            return []
        found = access(self.graph, node, index)
        if len(found.choices) > 1 or found.dynamics:
            return []
        return [(read.operand, read.index) for read in found.choices[0].reads]

    def kept_elsewhere(self, key: Key) -> tuple[Placement, int] | None:
        """The placement and result number of a root that is read where it is kept, not computed again here."""
        name, index = key
        if name not in self.declarations.inside or is_embedded(self.graph, name):
            return None
        reduce, number = reduce_behind(self.graph, name)
        place = self.nest.placements.get(reduce)
        if place is None or reduce == self.evaluating:
            return None
        combine = self.nest.placements.get(combine_name(reduce))
        if combine is not None and combine.loop == self.nest.loop.number:
            place = combine
        here = place.loop == self.nest.loop.number and place.in_task
        if place.root.kind is RootKind.POINTWISE and here and index == place.root.result_index:
            return None  # one-to-one: the register that already holds it, or computed again in this phase
        return place, number

    def evaluate(self, key: Key) -> tuple[k.Expr, Depth]:
        """Compute a value whose operands are known, and remember it."""
        node = self.graph[key[0]]
        if isinstance(node.attrs, ConstantAttrs) and node.array.rank == 0:
            return k.Number(node.attrs.value), Depth.KERNEL
        kept = self.on_chip.kept.get(key)
        if kept is not None and key in self.on_chip.filled:
            return self.on_chip.take(kept)
        result = self.compute(key)
        expr, depth = result
        if kept is not None and not self.nest.conditionals and key not in self.on_chip.kept_whole:
            self.on_chip.put(kept, expr)
        self.nest.remember(depth, key, result)
        return result

    def compute(self, key: Key) -> tuple[k.Expr, Depth]:
        """A value by the op that makes it, or read where it is kept."""
        name, index = key
        node = self.graph[name]
        elsewhere = self.kept_elsewhere(key)
        if elsewhere is not None:
            return self.read_root(key, *elsewhere)
        if isinstance(node.attrs, IotaAttrs):
            form, depth = self.nest.position(index[node.attrs.dimension])
            return self.nest.define(key, node.dtype, k.Position(form, node.dtype), depth)
        if is_input(self.declarations, name):
            return self.loads.load(key, storage_name(self.graph, name), node.dtype)
        found = access(self.graph, node, index)
        for dynamic in found.dynamics:
            self.start(dynamic)
        if len(found.choices) > 1:
            return self.choices.choose(key, found.choices)
        reads = found.choices[0].reads
        values = [self.value(read.operand, read.index) for read in reads]
        if OPS[node.op].kind in (Kind.INDEX, Kind.BROADCAST):
            return values[0]
        dtypes = tuple(self.graph[read.operand].dtype for read in reads)
        if node.op == "bitcast-convert" and node.dtype.bytes < dtypes[0].bytes:
            part, where = self.nest.position(index[-1])
            values.append((k.Position(part, DType.S32), where))
            dtypes = (*dtypes, DType.S32)
        depth = max((depth for _, depth in values), default=Depth.KERNEL)
        shared = node.op == "divide" and node.dtype is DType.F32 and values[1][1] < depth
        narrow = name in self.declarations.narrow_ends
        operands = tuple(e for e, _ in values)
        call = k.Call(node.op, node.dtype, operands, dtypes, node.attrs, shared, narrow)
        return self.nest.define(key, node.dtype, call, depth)

    def start(self, dynamic: Dynamic) -> None:
        """A start index known at run time, clamped as HLO says."""
        if self.nest.recall(("symbol", dynamic.symbol)) is not None:
            return
        expr, depth = self.value(dynamic.operand, dynamic.index)
        symbol = Symbol(self.nest.fresh("start"), dynamic.symbol.extent)
        dtype = self.graph[dynamic.operand].dtype
        self.nest.emit(depth, k.Start(symbol.name, expr, dtype, dynamic.symbol.extent - 1))
        self.nest.remember(depth, ("symbol", dynamic.symbol), (symbol, depth))

    # -- values of other roots -----------------------------------------------------------------------------------

    def read_root(self, key: Key, place: Placement, number: int) -> tuple[k.Expr, Depth]:
        """A root's value: from the thread's state, shared memory, partials or global memory."""
        here = place.loop == self.nest.loop.number and place.in_task
        if here and key[1] == place.root.result_index:
            return self.read_state(key, place, number)
        local = why_not_block_local(place.root, self.mapping, key[1]) is None
        if here and place.shared and local:
            return self.read_shared(key, place, number)
        if place.inline:
            return self.read_partials(key, place, number)
        return self.loads.load(
            key, name_result(self.graph, place.root.name, number), self.graph[key[0]].dtype
        )

    def read_state(self, key: Key, place: Placement, number: int) -> tuple[k.Expr, Depth]:
        """A field of the thread's own state."""
        position, depth = find_state(self.mapping, place)
        dtype = self.graph[key[0]].dtype
        return self.nest.define(
            key, dtype, k.Field(self.states.names[place.root.name], position, number), depth
        )

    def read_shared(self, key: Key, place: Placement, number: int) -> tuple[k.Expr, Depth]:
        """An element of a root's shared buffer."""
        slot = self.buffers.find_slot(place, number)
        position, depth = self.nest.position(self.buffers.position(place, key[1]))
        position = self.buffers.with_packed_row(place, position)
        variable = self.nest.fresh(key[0])
        depth = max(depth, Depth.TASK)
        self.nest.emit(depth, k.Load(variable, self.graph[key[0]].dtype, slot, position))
        return k.Name(variable), depth

    def read_partials(self, key: Key, place: Placement, number: int) -> tuple[k.Expr, Depth]:
        """Add the few partials of a split reduce where its value is needed."""
        state = self.nest.fresh(f"{place.root.name}_sum")
        shape = array_of(self.graph[place.root.name]).shape
        elements = math.prod(shape)
        at, depth = self.nest.position(ix.linearize(key[1], shape))
        reducer = self.declarations.reducer(place.root.name)
        part = Symbol("part", place.partials)
        arrays = self.declarations.partial_arrays(place, write=False)
        self.nest.emit(depth, k.States(state, reducer.number, 1))
        form = ix.add(ix.scale(ix.of_symbol(part), elements), at)
        body = (k.AccumulateState(state, ix.ZERO, reducer.number, arrays, form),)
        self.nest.emit(depth, k.Loop(part.name, place.partials, place.partials <= 8, body))
        self.finish(depth, place, state, 1)
        return self.nest.define(
            key, self.graph[key[0]].dtype, k.Field(state, ix.ZERO, number), depth
        )

    def finish(self, depth: Depth, place: Placement, state: str, count: int) -> None:
        """Apply the init value, unless it is the identity."""
        node = self.graph[place.root.name]
        reducer = self.declarations.reducer(place.root.name)
        inits = node.operands[len(node.operands) // 2 :]
        if monoid_of(node.regions[0]) is None:
            return  # the init value took part already: it is what idle lanes hold
        attrs = self.graph[inits[0]].attrs
        if isinstance(attrs, ConstantAttrs):
            as_state = attrs.value.numpy().astype(reducer.fields[0].numpy)
            if Literal.of(as_state) == reducer.identity[0]:
                return
            if monoid_of(node.regions[0]) == "add" and not as_state.any():
                return  # -0.0 as the init of a sum: adding it changes nothing
        exprs = tuple(self.value(init, ())[0] for init in inits)
        self.nest.emit(depth, k.Finish(state, count, reducer.number, exprs))
