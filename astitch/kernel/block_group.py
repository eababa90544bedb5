"""Reductions across cooperating blocks: each publishes its parts, then all gather those of the others."""

from __future__ import annotations

from collections.abc import Sequence

from astitch.graph import index as ix
from astitch.graph.dimensions import array_of
from astitch.graph.index import Symbol
from astitch.kernel import kernel_ir as k
from astitch.kernel.element_loops import ElementLoops
from astitch.kernel.loop_nest import LoopNest
from astitch.kernel.nest import Depth
from astitch.kernel.states import States, find_state
from astitch.kernel.task_indices import index_task
from astitch.kernel.thread_exchange import ThreadExchange
from astitch.mapping.stitch_scheme import Placement


class BlockGroup:
    """Gathers what the cooperating blocks of a task have published."""

    def __init__(
        self, nest: LoopNest, loops: ElementLoops, states: States, exchange: ThreadExchange
    ) -> None:
        self.nest, self.loops, self.states, self.exchange = nest, loops, states, exchange
        self.declarations, self.graph = nest.declarations, nest.graph
        self.mapping = nest.mapping

    def gather(self, places: Sequence[Placement], delay: int) -> list[k.Statement]:
        """The parts of all blocks: each row of the task has a warp, whose lanes take some each and combine them.

        delay: tasks between a block's part and its meeting with the others.
        """
        m = self.mapping
        if m.rows_last:
            return [s for place in places for s in self.gather_columns(place)]
        other = (
            self.nest.for_another_task()
        )  # the warp's row is not the one at which its threads stand
        gathering: list[k.Statement] = []
        totals = []
        lane = ix.modulo(ix.of_symbol(Symbol("thread", m.block)), 32)
        for number, place in enumerate(places):
            gathering.append(self.states.declare(place))
            name = place.root.name
            shape = array_of(self.graph[name]).shape
            at, _ = other.position(ix.linearize(place.root.result_index, shape))
            reducer = self.declarations.reducer(name)
            found, area = self.states.names[name], self.declarations.area(place)
            gathering.append(k.Collect(area, at, found, ix.ZERO, reducer.number, 32, lane))
            part_of = k.Part(found, 1, reducer.number, "")
            gathering.append(k.ReduceAcross((part_of,), 32, 1))
            self.states.names[name] = self.nest.fresh(f"{name}_total")
            slot = self.exchange.find_slot(reducer, m.outer_threads, number, apart=delay > 0)
            totals.append(k.Total(found, self.states.names[name], reducer.number, slot))
        self.exchange.count += 1
        frames = other.frames
        indices = [*frames[Depth.KERNEL].statements, *frames[Depth.TASK].statements]
        body = (*index_task(self.mapping), *indices, *gathering)
        return [k.Meeting(m.parts, delay, m.outer_threads, body, tuple(totals))]

    def gather_columns(self, place: Placement) -> list[k.Statement]:
        """The parts of a thread's own columns: the threads that share them take some each, then combine."""
        m = self.mapping
        name = place.root.name
        reducer, area = self.declarations.reducer(name), self.declarations.area(place)
        declared = self.states.declare(place)
        shape = array_of(self.graph[name]).shape
        self.nest.frames[Depth.TASK].statements = []
        rank = ix.of_symbol(Symbol("ty", m.row_threads))
        self.nest.clear_elements()
        element, level = self.nest.express(ix.linearize(place.root.result_index, shape))
        slot, depth = find_state(self.mapping, place)
        state = self.states.names[name]
        members = m.row_threads
        collect = k.Collect(area, element, state, slot, reducer.number, members, rank)
        self.nest.emit(max(depth, level), collect)
        nest = self.loops.build(row=False)
        task = self.nest.frames[Depth.TASK].statements
        return [declared, *task, *nest, *self.exchange.reduce_across([place], publish=False)]
