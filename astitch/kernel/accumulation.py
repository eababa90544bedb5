"""Accumulation: what each step of a thread adds to the states of a reduce."""

from __future__ import annotations

import math
from collections.abc import Sequence

from astitch.graph import index as ix
from astitch.graph.dimensions import array_of
from astitch.graph.index import Linear
from astitch.graph.ir import DType
from astitch.graph.joint_regions import MOMENTS
from astitch.graph.ops import monoid_of
from astitch.graph.ops.access import Guard
from astitch.kernel import kernel_ir as k
from astitch.kernel.guards import guarded, leader_guard, outer_guard, tile_guard
from astitch.kernel.loop_nest import LoopNest
from astitch.kernel.nest import LANE, Depth
from astitch.kernel.states import States, find_state, space_axes
from astitch.kernel.values import Values
from astitch.mapping.roots import RootKind, root_starts
from astitch.mapping.stitch_scheme import Placement, ReductionScope


class Accumulation:
    """Lowers the accumulating part of a loop's reduces, inside the nest."""

    def __init__(self, nest: LoopNest, values: Values, states: States) -> None:
        self.nest, self.values, self.states = nest, values, states
        self.declarations = nest.declarations
        self.graph, self.mapping = nest.graph, nest.mapping

    def lower(self, place: Placement) -> None:
        """Add the element at which the nest stands, in one of the threads that hold it."""
        root = place.root
        row, col = space_axes(self.mapping, place)
        outer_reduced = any(a in root.space.reduced for a in self.mapping.outer)
        guards = (
            *(outer_guard(self.mapping) if outer_reduced or not self.mapping.outer else ()),
            *leader_guard(
                self.mapping,
                row=row,
                col=col,
                in_nest=True,
                in_each_tile=place.reduction_scope is ReductionScope.TASK,
            ),
            # Summed over all tasks it counts in one tile only; complete within a task, every tile has it.
            *(
                tile_guard(self.mapping, row=row, col=col)
                if place.reduction_scope is ReductionScope.LOOP
                else ()
            ),
        )
        reducer = self.declarations.reducer(root.name)
        state = self.states.names[root.name]
        position, _ = find_state(self.mapping, place)
        lane_depth = Depth.LANE if self.mapping.vector > 1 else Depth.COLUMN
        depth = lane_depth if col else Depth.ROW if row else Depth.TASK
        statement: k.Statement
        if root.kind is RootKind.COMBINE:
            shape = array_of(self.graph[root.name]).shape
            elements = math.prod(shape)
            form = ix.add(ix.scale(root.index[0], elements), ix.linearize(root.result_index, shape))
            at, where = self.nest.position(form)
            depth = max(depth, where)
            split = self.nest.placements[root.name]
            arrays = self.declarations.partial_arrays(split, write=False)
            statement = k.AccumulateState(state, position, reducer.number, arrays, at)
        else:
            reads = root_starts(self.graph, root)
            values = [self.values.value(read.operand, read.index) for read in reads]
            depth = max(depth, *(known for _, known in values))
            if reducer.joint and self.lower_joint(reducer, state, position, values, depth, guards):
                return
            statement = k.Accumulate(state, position, reducer.number, tuple(e for e, _ in values))
            product = self.product_of(values[0]) if self.is_sum(reducer) else None
            if product is not None:
                statement = k.AccumulateProduct(state, position, *product)
        for behind in guarded(guards, (statement,)):
            self.nest.emit(depth, behind)

    @staticmethod
    def is_sum(reducer: k.Reducer) -> bool:
        """A sum of f32 or f64, which a product may join without being rounded."""
        wide = reducer.fields[0] in (DType.F32, DType.F64)
        return wide and len(reducer.fields) == 1 and monoid_of(reducer.region) == "add"

    def product_of(self, value: tuple[k.Expr, Depth]) -> tuple[k.Expr, k.Expr] | None:
        """The factors of a value that was just computed as an f32 or f64 product."""
        expr, depth = value
        found = self.nest.frames[depth].statements[-1:]
        match found:
            case [k.Value(name, DType.F32 | DType.F64, k.Call("multiply", _, (a, b)))]:
                return (a, b) if expr == k.Name(name) else None
        return None

    def lower_joint(
        self,
        reducer: k.Reducer,
        state: str,
        position: Linear,
        values: Sequence[tuple[k.Expr, Depth]],
        depth: Depth,
        guards: tuple[Guard, ...],
    ) -> bool:
        """Add elements of a joint reduction without its region: the lanes of a vector at once, or one by one.

        False where they are not the elements that reassociate.py makes.
        """
        numbers = [float(e.value.numpy()) for e, _ in values if isinstance(e, k.Number)]
        elements = [e for e, _ in values if not isinstance(e, k.Number)]
        expected = [1.0, 0.0, 0.0] if reducer.joint == MOMENTS else [1.0]
        if len(elements) != 1 or numbers != expected:
            return False
        (element,) = elements
        dtype = reducer.fields[0]
        whole = depth is Depth.LANE and LANE not in ix.symbols(position)
        if whole:
            batch = self.nest.fresh(f"{state}_batch")
            self.nest.emit(Depth.COLUMN, k.Batch(batch, dtype, self.mapping.vector))
            self.nest.emit(Depth.LANE, k.BatchSet(batch, dtype, element))
            depth = Depth.AFTER
            statement: k.Statement = k.AccumulateBatch(state, position, reducer.number, batch)
        else:
            statement = k.AccumulateElement(state, position, reducer.number, element)
        for behind in guarded(guards, (statement,)):
            self.nest.emit(depth, behind)
        return True
