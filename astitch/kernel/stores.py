"""Stores of elements: to memory, to a lane of a vector that is written at once, to a shared buffer."""

from __future__ import annotations

from astitch.graph import index as ix
from astitch.graph.dimensions import array_of
from astitch.graph.ir import DType
from astitch.graph.ops.access import Guard, Index
from astitch.graph.storage import storage_name, storage_type
from astitch.kernel import kernel_ir as k
from astitch.kernel.guards import guarded, leader_guard, outer_guard, tile_guard
from astitch.kernel.loop_nest import LoopNest
from astitch.kernel.nest import Depth, at_first_lane
from astitch.kernel.shared_buffers import SharedBuffers
from astitch.kernel.states import space_axes
from astitch.kernel.values import Values
from astitch.mapping.stitch_scheme import Placement


class Stores:
    """Stores what a loop's nests compute."""

    def __init__(self, nest: LoopNest, values: Values, buffers: SharedBuffers) -> None:
        self.nest, self.values, self.buffers = nest, values, buffers
        self.declarations = nest.declarations
        self.graph, self.mapping = nest.graph, nest.mapping

    def lower_pointwise(self, place: Placement) -> None:
        """Compute a root that is no reduce, and store it."""
        root, m = place.root, self.mapping
        expr, depth = self.values.root_value(root.name, root.index)
        row, col = space_axes(m, place)
        leader = leader_guard(m, row=row, col=col, in_nest=True)
        guards = (*outer_guard(m), *leader)
        if place.stored:
            target = storage_name(self.graph, root.name)
            tile = tile_guard(m, row=row, col=col)
            self.store(target, root.result_index, expr, depth, (*guards, *tile), row=row, col=col)
        if place.shared:
            leader = leader_guard(m, row=row, col=col, in_nest=True, in_each_tile=True)
            dtype = self.graph[root.name].dtype
            self.store_shared(place, 0, dtype, expr, max(depth, Depth.TASK), leader)

    def store_shared(
        self,
        place: Placement,
        number: int,
        dtype: DType,
        expr: k.Expr,
        depth: Depth,
        guards: tuple[Guard, ...],
    ) -> None:
        """Write one element of a result to its shared buffer."""
        slot = self.buffers.declare(place, number)
        form = self.buffers.position(place, place.root.result_index)
        at, where = self.nest.position(form)
        store = k.Store(slot, self.buffers.with_packed_row(place, at), dtype, expr)
        for statement in guarded(guards, (store,)):
            self.nest.emit(max(depth, where), statement)

    def store(
        self,
        target: str,
        index: Index,
        expr: k.Expr,
        depth: Depth,
        guards: tuple[Guard, ...],
        *,
        row: bool,
        col: bool,
    ) -> None:
        """Write one element to memory, or a lane of a vector that is written at once."""
        array_type = storage_type(self.graph, target)
        array = self.declarations.array(target, array_type.dtype, write=True)
        base, _, _ = target.partition("#")
        form = ix.linearize(index, array_of(self.graph[base]).shape)
        if self.nest.is_vector(form):
            position, _ = self.nest.position(form)
            aligned = at_first_lane(position)
            vector = self.nest.fresh(f"{target}_w")
            self.nest.emit(
                Depth.COLUMN, k.VectorVariable(vector, array_type.dtype, self.mapping.vector)
            )
            self.nest.emit(Depth.LANE, k.StoreLane(vector, array_type.dtype, expr))
            whole = k.StoreVector(array, aligned, vector, array_type.dtype, self.mapping.vector)
            for statement in guarded(guards, (whole,)):
                self.nest.emit(Depth.AFTER, statement)
            return
        position, where = self.nest.position(form)
        lane_depth = Depth.LANE if self.mapping.vector > 1 else Depth.COLUMN
        level = lane_depth if col else Depth.ROW if row else Depth.TASK
        level = max(level, depth, where)
        for statement in guarded(guards, (k.Store(array, position, array_type.dtype, expr),)):
            self.nest.emit(level, statement)
