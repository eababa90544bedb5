"""Reductions across the threads of a block, and the shared memory in which threads hand each other states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from astitch.kernel import kernel_ir as k
from astitch.kernel.loop_nest import LoopNest
from astitch.kernel.states import States, count_states, kept_axes
from astitch.mapping.stitch_scheme import Placement, ReductionScope, Scheme

MAX_OWN_STATES = 16
"""States of other warps that each thread combines by itself; one that is no simple sum or extreme counts for four."""

MAX_TOGETHER = 4
"""Reductions of a row that share one butterfly."""


class ThreadExchange:
    """What the threads of a block tell each other in one task loop.

    count: exchanges so far.  latest: the set of slots that the last one took.  slots: by reducer, set, and number of
    the reduction in the exchange.
    """

    def __init__(self, nest: LoopNest, states: States) -> None:
        self.nest, self.states = nest, states
        self.declarations, self.mapping = nest.declarations, nest.mapping
        self.count, self.latest = 0, -1
        self.slots: dict[tuple[int, int, int], str] = {}

    def find_slot(
        self, reducer: k.Reducer, states: int, number: int, *, apart: bool = False
    ) -> str:
        """Shared states for reduction `number` of an exchange between threads.

        The exchanges of a loop take two sets of slots in turns.  So the barrier of each exchange keeps its successor's
        writes behind the reads of the one before.  A loop whose last exchange took the first set ends with a barrier.
        apart: a third set in place of the first, if there were exchanges before.
        """
        self.latest = 2 if apart and self.count and self.count % 2 == 0 else self.count % 2
        key = (reducer.number, self.latest, number)
        if key not in self.slots:
            name = self.nest.fresh(f"exchange_{reducer.number}_{key[1]}")
            self.slots[key] = name
            step = (self.nest.loop.number, 0)
            self.declarations.add_slot(
                name, None, reducer.number, 0, reducer.state_bytes, step, step
            )
        name = self.slots[key]
        self.declarations.grow_slot(name, states, reducer.state_bytes)
        return name

    def reduce_across(
        self, places: Sequence[Placement], *, publish: bool = True
    ) -> Iterator[k.Statement]:
        """Combine over threads; independent reductions of a row share their barriers.

        publish: what cooperating blocks reduce goes to the other blocks next, and no other thread needs it.
        """
        rounds = [self.thread_sets(place) for place in places]
        for turn in range(max(map(len, rounds), default=0)):
            sets: dict[tuple[int, int], list[Placement]] = {}
            for place, steps in zip(places, rounds, strict=True):
                if turn < len(steps):
                    sets.setdefault(steps[turn], []).append(place)
            for (threads, stride), together in sets.items():
                if stride == 1:
                    yield self.reduce_step(together, threads, stride, publish)
                else:  # these exchange whole columns: one after the other, in the same shared memory
                    for place in together:
                        yield self.reduce_step([place], threads, stride, publish)

    def thread_sets(self, place: Placement) -> list[tuple[int, int]]:
        """(threads, stride) of the sets to combine over, one after the other.

        They are the thread axes along which the result does not vary, minor axes first.
        """
        m = self.mapping
        row_kept, col_kept = kept_axes(self.mapping, place)
        outer_reduced = any(a in place.root.space.reduced for a in m.outer)
        axes = [
            (m.col_threads, not col_kept),
            (m.row_threads, not row_kept),
            (m.outer_threads, outer_reduced),
        ]
        if m.packed_inside:
            axes[1:] = axes[:0:-1]
        sets: list[tuple[int, int]] = []
        stride = 1
        position = 0
        while position < len(axes):
            size, reduced = axes[position]
            if not reduced or size == 1:
                stride *= size
                position += 1
                continue
            threads = 1
            while position < len(axes) and (axes[position][1] or axes[position][0] == 1):
                threads *= axes[position][0]
                position += 1
            sets.append((threads, stride))
            stride *= threads
        return sets

    def reduce_step(
        self, places: Sequence[Placement], threads: int, stride: int, publish: bool
    ) -> k.Statement:
        """Combine some reductions over one set of threads."""
        parts = []
        shared = threads * stride > 32
        together = self.reduced_together(places) if shared and stride == 1 else []
        for number, place in enumerate(places):
            reducer = self.declarations.reducer(place.root.name)
            count = count_states(self.mapping, place)
            slot = ""
            if place in together:
                states = len(together) * (self.mapping.block // 32)
                slot = self.find_slot(reducer, states, places.index(together[0]))
            elif shared:
                if stride == 1:
                    states = count * max(self.mapping.block // 32, 1)
                else:
                    lines = k.count_lines(self.mapping.block, stride)
                    states = min(count, k.STRIDED_CHUNK) * lines
                slot = self.find_slot(reducer, states, number)
            parts.append(k.Part(self.states.names[place.root.name], count, reducer.number, slot))
        if shared:
            self.count += 1
            self.declarations.block_barriers += any(p.scheme is Scheme.REGIONAL for p in places)
        reducers = [self.declarations.reducer(p.root.name) for p in places]
        work = sum(
            p.count * (1 if r.commutative else 4) for p, r in zip(parts, reducers, strict=True)
        )
        if stride == 1:
            butterfly = work * (threads // 32) > MAX_OWN_STATES
        else:
            butterfly = (
                not reducers[0].commutative and 8 <= threads * stride // max(stride, 32) <= 32
            )
        alone = shared and publish and threads * stride == self.mapping.block
        alone = alone and self.first_warp_suffices(places, stride)
        return k.ReduceAcross(tuple(parts), threads, stride, butterfly, alone)

    def first_warp_suffices(self, places: Sequence[Placement], stride: int) -> bool:
        """Do only threads of the first warp need what the whole block combines, to hand it on?"""
        if all(place.reduction_scope is ReductionScope.BLOCK_GROUP for place in places):
            return self.publishes_alone
        last = max(place.phase for place in self.nest.places)
        for place in places:
            ends = place.reduction_scope in (ReductionScope.TILE, ReductionScope.LOOP)
            ends |= (
                place.reduction_scope is ReductionScope.TASK
                and place.phase == last
                and not place.shared
            )
            if not ends:
                return False
        return self.mapping.outer_threads == 1 and stride <= 32

    @property
    def publishes_alone(self) -> bool:
        """Do all threads that publish something belong to the first warp?"""
        m = self.mapping
        if m.packed_inside or m.rows_last:  # those of the first row
            return m.outer_threads * m.col_threads <= 32
        return m.outer_threads == 1

    def reduced_together(self, places: Sequence[Placement]) -> list[Placement]:
        """The first reductions, up to four, of one simple kind with one state each; none if there is only one."""
        kinds: dict[int, list[Placement]] = {}
        for place in places:
            reducer = self.declarations.reducer(place.root.name)
            if reducer.commutative and count_states(self.mapping, place) == 1:
                kinds.setdefault(reducer.number, []).append(place)
        most = max(kinds.values(), key=len, default=[])
        return most[:MAX_TOGETHER] if len(most) > 1 else []
