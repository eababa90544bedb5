"""Results of reduces, once their threads have combined: init values, stores, and partials for later readers."""

from __future__ import annotations

import math

from astitch.graph import index as ix
from astitch.graph.dimensions import array_of
from astitch.graph.index import Linear, Symbol
from astitch.graph.ir import ArrayType, GetTupleElementAttrs
from astitch.graph.ops.access import Within
from astitch.graph.storage import storage_name, storage_type
from astitch.kernel import kernel_ir as k
from astitch.kernel.element_loops import ElementLoops
from astitch.kernel.guards import guarded, leader_guard, result_guard, tile_guard
from astitch.kernel.loop_nest import LoopNest
from astitch.kernel.nest import Depth, at_first_lane
from astitch.kernel.states import States, count_states, find_state, kept_axes, space_axes
from astitch.kernel.stores import Stores
from astitch.kernel.task_indices import number_partial
from astitch.kernel.values import Values
from astitch.mapping.stitch_scheme import Placement, ReductionScope


class Results:
    """Completes the reduces of a loop."""

    def __init__(
        self, nest: LoopNest, loops: ElementLoops, values: Values, states: States, stores: Stores
    ) -> None:
        self.nest, self.loops, self.values = nest, loops, values
        self.states, self.stores = states, stores
        self.declarations = nest.declarations
        self.graph, self.mapping = nest.graph, nest.mapping

    def complete(self, place: Placement) -> list[k.Statement]:
        """The statements behind the nest and the exchange between threads: add the init value, then store."""
        m, nest = self.mapping, self.nest
        if place.reduction_scope is ReductionScope.TILE:
            return self.store_partials(place, number_partial(m, place))
        result: list[k.Statement] = []
        state = self.states.names[place.root.name]
        nest.frames[Depth.TASK].statements = result
        self.values.finish(Depth.TASK, place, state, count_states(m, place))
        row, col = kept_axes(m, place)
        leaders = leader_guard(m, row=row, col=col)
        guards = (*result_guard(m, place), *tile_guard(m, row=row, col=col))
        if place.stored or place.shared:
            nest.clear_elements()
            for number, name in self.wanted_results(place):
                position, depth = find_state(m, place)
                dtype = storage_type(self.graph, name).dtype
                variable = k.Name(nest.fresh(place.root.name))
                nest.emit(depth, k.Value(variable.name, dtype, k.Field(state, position, number)))
                if place.stored:
                    index = place.root.result_index
                    self.stores.store(name, index, variable, depth, guards, row=row, col=col)
                if place.shared:
                    self.stores.store_shared(place, number, dtype, variable, depth, leaders)
            nest.frames[Depth.TASK].statements += self.loops.build(row=row)
        return nest.frames[Depth.TASK].statements

    def wanted_results(self, place: Placement) -> list[tuple[int, str]]:
        """(field number, storage name) of the results that somebody reads."""
        name = place.root.name
        if isinstance(self.graph[name].type, ArrayType):
            return [(0, storage_name(self.graph, name))]
        numbers = {
            attrs.index
            for user in self.graph.users[name]
            if isinstance(attrs := self.graph[user].attrs, GetTupleElementAttrs)
        }
        return [(n, f"{name}#{n}") for n in sorted(numbers)]

    def store_loop_partials(self, place: Placement) -> list[k.Statement]:
        """A partial for each block that had a task, after the task loop."""
        rank = ix.of_symbol(Symbol("first", place.partials))
        taking_part = Within(rank, 0, place.partials)
        self.nest.frames[Depth.TASK].statements = []
        return [k.If((taking_part,), tuple(self.store_partials(place, rank)))]

    def store_partials(self, place: Placement, part: Linear) -> list[k.Statement]:
        """partials[part][result element] = state, by one thread of those that hold it.

        Cooperating blocks publish it instead.
        """
        name = place.root.name
        state = self.states.names[name]
        shape = array_of(self.graph[name]).shape
        row, _ = kept_axes(self.mapping, place)
        guards = result_guard(self.mapping, place)
        if place.reduction_scope is not ReductionScope.LOOP:
            in_row, in_col = space_axes(self.mapping, place)
            guards += tile_guard(self.mapping, row=in_row, col=in_col)
        saved = self.nest.frames[Depth.TASK].statements
        self.nest.frames[Depth.TASK].statements = []
        self.nest.clear_elements()
        results = ix.linearize(place.root.result_index, shape)
        element = self.nest.express(results)[0]
        slot, depth = find_state(self.mapping, place)
        level = max(depth, Depth.TASK)
        reducer = self.declarations.reducer(name)
        stores: list[k.Statement] = []
        if place.reduction_scope is ReductionScope.BLOCK_GROUP:
            area = self.declarations.area(place)
            stores.append(k.Publish(area, element, part, state, slot, reducer.number))
        else:
            form = ix.add(ix.scale(part, math.prod(shape)), element)
            arrays = self.declarations.partial_arrays(place, write=True)
            width = self.mapping.vector
            whole = (
                depth is Depth.LANE
                and math.prod(shape) % width == 0
                and self.nest.is_vector(results)
            )
            for number, (array, dtype) in enumerate(zip(arrays, reducer.fields, strict=True)):
                field = k.Field(state, slot, number)
                if not whole:
                    stores.append(k.Store(array, form, dtype, field))
                    continue
                # One element at a time a warp would touch a sector of the memory for each of its threads.
                vector = self.nest.fresh(f"{array}_w")
                self.nest.emit(Depth.COLUMN, k.VectorVariable(vector, dtype, width))
                self.nest.emit(Depth.LANE, k.StoreLane(vector, dtype, field))
                at_once = k.StoreVector(array, at_first_lane(form), vector, dtype, width)
                for statement in guarded(guards, (at_once,)):
                    self.nest.emit(Depth.AFTER, statement)
        for statement in guarded(guards, stores):
            self.nest.emit(level, statement)
        nest = self.loops.build(row=row)
        result = [*self.nest.frames[Depth.TASK].statements, *nest]
        self.nest.frames[Depth.TASK].statements = saved
        return result
