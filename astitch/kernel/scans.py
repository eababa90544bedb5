"""Running reductions across threads, tiles and cooperating blocks."""

from __future__ import annotations

from dataclasses import replace

from astitch.graph import index as ix
from astitch.graph.index import Symbol
from astitch.kernel import kernel_ir as k
from astitch.kernel.loop_nest import LoopNest
from astitch.kernel.states import States
from astitch.kernel.task_indices import number_part
from astitch.kernel.thread_exchange import ThreadExchange
from astitch.mapping.stitch_scheme import Placement


class Scans:
    """Lowers the running reductions of a loop.  carried: the states that each tile hands on to the next."""

    def __init__(self, nest: LoopNest, states: States, exchange: ThreadExchange) -> None:
        self.nest, self.states, self.exchange = nest, states, exchange
        self.declarations, self.mapping = nest.declarations, nest.mapping
        self.carried: list[k.Statement] = []

    def scan_across(self, place: Placement) -> k.Statement:
        """A running reduction along the threads that share a row or columns, from what earlier tiles carry on."""
        if place.root.space.running == "sorted":
            return self.sort_across(place)
        m, name = self.mapping, place.root.name
        reducer = self.declarations.reducer(name)
        columns = bool(m.row)
        width = m.col_steps * m.vector if columns else m.vector
        step = k.ScanAcross(
            self.states.names[name],
            m.row_steps if columns else m.col_steps,
            width,
            reducer.number,
            m.row_threads if columns else m.col_threads,
            m.col_threads if columns else 1,
            "",
            place.root.space.running == "backward",
            columns=columns,
        )
        shared = k.count_scanned(step, m.block)
        if shared:
            step = replace(step, slot=self.exchange.find_slot(reducer, shared, 0))
            self.exchange.count += 1
            self.declarations.block_barriers += 1
        if m.carried:
            carry = self.nest.fresh(f"{name}_carry")
            states = k.States(carry, reducer.number, width if columns else 1)
            self.carried.append(states)
            step = replace(step, carry=carry)
        if m.abreast > 1:
            step = replace(step, handover=self.handover(name, reducer, step))
        return step

    def sort_across(self, place: Placement) -> k.Statement:
        """A sort of each row among the threads that share it."""
        m, name = self.mapping, place.root.name
        reducer = self.declarations.reducer(name)
        state = self.states.names[name]
        step = k.SortAcross(state, m.col_steps, m.vector, reducer.number, m.col_threads, "")
        shared = k.count_sorted(step, m.block)
        if shared:
            step = replace(step, slot=self.exchange.find_slot(reducer, shared, 0))
            self.exchange.count += 1
            self.declarations.block_barriers += 1
        return step

    def handover(self, name: str, reducer: k.Reducer, step: k.ScanAcross) -> k.Handover:
        """What cooperating blocks hand on, in each round of each row or tile of columns."""
        m = self.mapping
        columns = step.stride * step.width if step.columns else 1
        groups = m.tasks // m.abreast
        results = groups * m.rounds * columns
        area = self.declarations.handover_area(name, results, m.abreast)
        group = ix.divide(ix.of_symbol(Symbol("task", m.tasks)), m.abreast)
        turn = ix.of_symbol(Symbol("round", m.rounds))
        if groups > 1:
            turn = ix.add(ix.scale(group, m.rounds), turn)
        slot = self.exchange.find_slot(reducer, k.count_handed(step), 0)
        self.exchange.count += 1
        self.declarations.block_barriers += 1
        return k.Handover(area, ix.scale(turn, columns), number_part(self.mapping), slot)
