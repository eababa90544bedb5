"""The loops over a thread's elements: rows, columns and lanes, their bounds and their guards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from astitch.graph import index as ix
from astitch.graph.index import Linear, Symbol
from astitch.graph.ops.access import Within
from astitch.kernel import kernel_ir as k
from astitch.kernel.guards import guard_sums, guarded
from astitch.kernel.loop_nest import LoopNest
from astitch.kernel.nest import Depth
from astitch.kernel.on_chip import OnChip
from astitch.kernel.residency import MAX_UNROLLED_STEPS
from astitch.kernel.states import kept_axes
from astitch.kernel.task_indices import clamp, count_steps_inside
from astitch.mapping.roots import RootKind
from astitch.mapping.stitch_scheme import Placement
from astitch.tiling.columns import FEW_COLUMNS
from astitch.tiling.space import Mapping, ceil_div

ELEMENTS_TOGETHER = 24
"""Elements that a thread of a column reduction loads before it adds the first.  Where rows do not fill its turns, a
last turn alone would cost as much time as all others."""

LONG_TEXT = frozenset({"sine", "cosine", "tan", "remainder"})
"""Ops of floats that may be far from zero, which takes two hundred instructions.  64 copies take NVRTC 1.7 s."""

MOST_COPIES = 32
"""Of such ops together, in one loop over rows.  No GPU has timed what fewer loads in flight cost."""

MOST_CASES = 64
"""Of switches over the pieces of concatenations, in one loop over elements.  288 take NVRTC 1 to 3 s."""


def is_unrolled(m: Mapping) -> bool:
    """Are the steps of a thread so few that all are written out?"""
    return m.row_steps * m.col_steps <= MAX_UNROLLED_STEPS


class ElementLoops:
    """Builds the loops around what a nest holds at its inner depths.

    backward: steps go from the end: what was read last is still in the L2, and a second reading starts there.  clamps:
    columns beyond the end are taken for the last.  sums_rows: all that the loop over rows does is adding to sums.
    """

    def __init__(self, nest: LoopNest, on_chip: OnChip, *, backward: bool) -> None:
        self.nest, self.on_chip, self.mapping = nest, on_chip, nest.mapping
        self.backward = backward
        self.unrolled = is_unrolled(nest.mapping)
        self.clamps = self.sums_rows = self.in_whole_tile = False

    def for_another_task(self, nest: LoopNest) -> ElementLoops:
        """The same loops around a nest of another task, for which nothing is on chip."""
        return ElementLoops(nest, OnChip(nest), backward=self.backward)

    # -- ways through the steps ----------------------------------------------------------------------------------

    def choose_way(self, roots: Sequence[Placement]) -> None:
        """Fix how the loops of a phase treat steps beyond the end, by the roots that it computes."""
        own = all(map(self.is_own_column, roots))
        self.clamps = own and not self.on_chip.prefetched
        self.sums_rows = self.clamps and self.only_sums_rows(roots)

    def leave_way(self) -> None:
        """Back to guards, once the loops of the phase are built."""
        self.clamps = self.sums_rows = False

    def is_own_column(self, place: Placement) -> bool:
        """Does the nest only add to sums of a thread's own columns?

        Beyond the last column it may then add the last one's elements to sums that nobody reads.  Without a branch
        around them the loads of many rows start early.
        """
        sums = place.root.kind not in (RootKind.POINTWISE, RootKind.RUNNING)
        return sums and kept_axes(self.mapping, place)[1]

    def only_sums_rows(self, roots: Sequence[Placement]) -> bool:
        """Is all that the nest does, row by row, adding to sums?"""
        m = self.mapping
        few = m.col_threads == 1 and m.col_steps < FEW_COLUMNS and self.col_bound is None
        columns = m.col_steps == 1 or few
        walks = m.row_size > 1 and m.row_tiles == 1 and columns and not m.rows_together
        walks = walks and not self.backward
        return walks and not any(kept_axes(m, place)[0] for place in roots)

    # -- the nest ------------------------------------------------------------------------------------------------

    def build(self, *, row: bool = True) -> list[k.Statement]:
        """The loops over a thread's elements around what the inner depths hold.

        Where rows are split over blocks and only the last tile ends early, no other tile tests each row.  A branch
        around each load would make the loads wait for each other.
        """
        m = self.mapping
        nest = self.build_once(row=row)
        whole = m.row_size // m.row_tile if m.row_tiles > 1 and m.row_steps > 1 else 0
        loads = [
            *self.nest.frames[Depth.COLUMN].statements,
            *self.nest.frames[Depth.LANE].statements,
        ]
        waits = any(isinstance(s, k.LoadVector | k.Load) for s in loads)
        if not (waits and row and whole and self.unrolled and self.row_bound is not None):
            return nest
        self.in_whole_tile = True
        inside = Within(ix.of_symbol(Symbol("row_tile", m.row_tiles)), 0, whole)
        cases = (k.If((inside,), tuple(self.build_once(row=row))), k.If((), tuple(nest)))
        self.in_whole_tile = False
        return [k.Switch(cases)]

    def build_once(self, *, row: bool) -> list[k.Statement]:
        """The same, whichever tile it is.  row: with the loop over rows."""
        m = self.mapping
        frames = self.nest.frames
        lanes = frames[Depth.LANE].statements
        column = [*frames[Depth.COLUMN].statements]
        if lanes:
            column.append(k.Loop("lane", m.vector, True, tuple(lanes)))
        column += frames[Depth.AFTER].statements
        full = self.unrolled
        if any(isinstance(s, k.LoadVector) and s.name in self.on_chip.taken_before for s in column):
            return self.build_in_parts(column)
        inner: list[k.Statement] = [*frames[Depth.ROW].statements]
        if column:
            loop = self.loop_over("l", m.col_steps, self.col_bound, full, self.enter_column, column)
            inner.append(self.limit(loop, column))
        if not inner:
            return []
        if not row:
            return inner
        if self.sums_rows:
            return list(self.sum_rows(inner))
        loop = self.loop_over("k", m.row_steps, self.row_bound, full, self.enter_row, inner)
        return [self.limit(loop, inner)]

    def limit(self, loop: k.Loop, body: Sequence[k.Statement]) -> k.Loop:
        """The loop over steps; fewer turns are written out where its body is long.

        All are written out if registers hold something of each of them.
        """
        chip = self.on_chip
        if chip.prefetched or not all(kept.shared for kept in chip.kept.values()):
            return loop
        together = loop.count if loop.unroll else loop.together
        turns = together
        for counted, most in ((count_long, MOST_COPIES), (count_cases, MOST_CASES)):
            if copies := count_copies(body, counted):
                turns = min(turns, max(most // copies, 1))
        return replace(loop, unroll=False, together=turns) if turns < together else loop

    def build_in_parts(self, column: Sequence[k.Statement]) -> list[k.Statement]:
        """The steps whose vectors an earlier task loop kept, then all others."""
        taken = [
            self.on_chip.taken_before.get(s.name, s) if isinstance(s, k.LoadVector) else s
            for s in column
        ]
        kept, rows, full = self.on_chip.carried_steps, self.mapping.row_steps > 1, self.unrolled
        parts = [(taken, 0, kept), (column, kept, self.mapping.walked_steps - kept)]
        first_row = self.nest.frames[Depth.ROW].statements

        def columns(body: Sequence[k.Statement]) -> k.Statement:
            steps, bound = self.mapping.col_steps, self.col_bound
            with self.forward():  # as the loop that kept them
                return self.loop_over("l", steps, bound, full, self.enter_column, [*body])

        if rows:
            return [self.steps_from([*first_row, columns(b)], at, n) for b, at, n in parts if n]
        inner = [*first_row, *(self.steps_from(b, at, n) for b, at, n in parts if n)]
        return [self.loop_over("k", 1, self.row_bound, full, self.enter_row, inner)]

    def steps_from(self, body: Sequence[k.Statement], first: int, count: int) -> k.Statement:
        """A loop over `count` steps from the step `first` on."""
        rows, full = self.mapping.row_steps > 1, self.unrolled
        enter = self.enter_row if rows else self.enter_column
        bound = self.row_bound if rows else self.col_bound
        early = bound is not None and not full
        step = self.step_of("turn", count, bound)
        with self.forward():
            inside = tuple(enter([*body], bound is not None and not early))
        index = k.Index(self.nest.step_symbol.name, ix.offset(step, first))
        end = ix.offset(bound, -first) if bound is not None and early else None
        return k.Loop("turn", count, full, (index, *inside), end)

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Steps go by their numbers, also where the loop begins at the end."""
        backward, self.backward = self.backward, False
        yield
        self.backward = backward

    @staticmethod
    def loop_over(
        variable: str,
        count: int,
        bound: Linear | None,
        full: bool,
        enter: Callable[[list[k.Statement], bool], Iterator[k.Statement]],
        body: list[k.Statement],
    ) -> k.Loop:
        """A loop over steps, some of which may lie beyond the end.

        A few steps have a guard each.  Many end the loop early instead, so that loads need not wait for a branch.
        """
        if full or count == 1 or bound is None:
            return k.Loop(variable, count, full, tuple(enter(body, bound is not None)))
        return k.Loop(variable, count, False, tuple(enter(body, False)), bound)

    def step_of(self, variable: str, count: int, bound: Linear | None) -> Linear:
        """The step of a loop's turn: turn by turn, or from the end where the loop is long and reads again."""
        turn = ix.of_symbol(Symbol(variable, count))
        if not self.backward or self.unrolled:
            return turn
        last = ix.constant(count - 1)
        if bound is not None and (count > 1 or variable == "turn"):
            last = ix.offset(ix.of_symbol(Symbol(f"{variable}_end", count + 1)), -1)
        return ix.add(last, ix.scale(turn, -1))

    def sum_rows(self, body: list[k.Statement]) -> Iterator[k.Statement]:
        """The loop over rows where it only adds to sums: as many loads at once as there are registers for.

        All threads load a last row that only some have; only those count it.
        """
        steps = self.mapping.row_steps
        elements = self.mapping.vector * self.mapping.col_steps
        parts = ceil_div(steps, max(ELEMENTS_TOGETHER // elements, k.PARTLY))
        together = ceil_div(steps, parts)
        turns = (parts - 1) * together
        inside = tuple(self.enter_row(body, False))
        if turns:
            yield k.Loop("k", turns, False, inside, None, together)
        cut = self.row_bound is not None
        if steps - turns - cut:
            step = k.Index("k", ix.offset(ix.of_symbol(Symbol("turn", steps)), turns))
            yield k.Loop("turn", steps - turns - cut, True, (step, *inside))
        if cut:
            last = k.Index("k", ix.constant(steps - 1))
            yield k.Loop("turn", 1, True, (last, *self.enter_last_row(body)))

    def enter_last_row(self, body: list[k.Statement]) -> Iterator[k.Statement]:
        """The body at a last row that only some threads have."""
        m = self.mapping
        thread = ix.of_symbol(Symbol("ty", m.row_threads))
        step = ix.of_symbol(Symbol("k", m.row_steps))
        yield k.Index("row_raw", ix.add(ix.scale(step, m.row_threads), thread))
        yield k.Index("row", clamp("row_raw", m.row_size - 1))
        inside = Within(ix.of_symbol(Symbol("row_raw", ix.UNBOUNDED)), 0, m.row_size)
        yield from guard_sums(body, inside)

    # -- bounds and indices --------------------------------------------------------------------------------------

    @property
    def row_bound(self) -> Linear | None:
        """Steps over rows that lie inside; None where all do."""
        m = self.mapping
        tiles = m.rounds * m.abreast if m.carried == "row" else m.row_tiles
        if (
            self.in_whole_tile
            or m.row_size == 1
            or tiles * m.row_steps * m.row_threads <= m.row_size
        ):
            return None
        tile = ix.scale(ix.of_symbol(Symbol("row_tile", m.row_tiles)), -m.row_tile)
        return count_steps_inside(
            m.row_size, tile if m.row_tiles > 1 else ix.ZERO, "ty", m.row_threads
        )

    @property
    def col_bound(self) -> Linear | None:
        """Steps over the vectors of a row that lie inside; None where all do."""
        m = self.mapping
        tiles = m.rounds * m.abreast if m.carried == "col" else m.col_tiles
        if tiles * m.col_steps * m.col_threads * m.vector <= m.col_size:
            return None
        tile = ix.scale(ix.of_symbol(Symbol("col_tile", m.col_tiles)), -(m.col_tile // m.vector))
        vectors = ceil_div(m.col_size, m.vector)
        return count_steps_inside(
            vectors, tile if m.col_tiles > 1 else ix.ZERO, "tx", m.col_threads
        )

    def enter_row(self, body: list[k.Statement], guard: bool) -> Iterator[k.Statement]:
        """The body at the row of a step.  guard: it may lie beyond the end."""
        m = self.mapping
        if m.row_size == 1:
            yield from body
            return
        step = self.step_of("k", m.row_steps, self.row_bound)
        thread = ix.of_symbol(Symbol("ty", m.row_threads))
        form = ix.add(ix.scale(step, m.row_threads), thread)
        if m.rows_together:
            form = ix.add(ix.scale(thread, m.row_steps), step)
        guards = []
        if m.row_tiles > 1:
            form = ix.add(form, ix.scale(ix.of_symbol(Symbol("row_tile", m.row_tiles)), m.row_tile))
        yield k.Index("row", form)
        if m.row_tile % m.row_threads and m.row_tiles > 1:
            raise AssertionError("a split row tile is a multiple of its threads")
        if guard:
            guards.append(Within(ix.of_symbol(Symbol("row", ix.UNBOUNDED)), 0, m.row_size))
        yield from guarded(tuple(guards), body)

    def enter_column(self, body: list[k.Statement], guard: bool) -> Iterator[k.Statement]:
        """The body at the columns of a step.  guard: they may lie beyond the end."""
        m = self.mapping
        step = self.step_of("l", m.col_steps, self.col_bound)
        form = ix.add(ix.scale(step, m.col_threads), ix.of_symbol(Symbol("tx", m.col_threads)))
        form = ix.scale(form, m.vector)
        if m.col_tiles > 1:
            form = ix.add(form, ix.scale(ix.of_symbol(Symbol("col_tile", m.col_tiles)), m.col_tile))
        guards = []
        if guard and self.clamps:
            yield k.Index("col_raw", form)
            yield k.Index("col", clamp("col_raw", m.col_size - m.vector))
        else:
            yield k.Index("col", form)
        if guard and not self.clamps:
            guards.append(Within(ix.of_symbol(Symbol("col", ix.UNBOUNDED)), 0, m.col_size))
        yield from guarded(tuple(guards), body)


def count_copies(body: Iterable[k.Statement], count_in: Callable[[k.Statement], int]) -> int:
    """What is counted in the statements of a body, as often as loops write it out."""
    count = 0
    for statement in body:
        count += count_in(statement)
        turns = statement.count if isinstance(statement, k.Loop) and statement.unroll else 1
        count += turns * sum(count_copies(inner, count_in) for inner in statement.bodies)
    return count


def count_long(statement: k.Statement) -> int:
    """Ops with long text."""
    if not (isinstance(statement, k.Value) and isinstance(statement.expr, k.Call)):
        return 0
    return int(statement.expr.op in LONG_TEXT and statement.expr.dtype.is_float)


def count_cases(statement: k.Statement) -> int:
    return len(statement.cases) if isinstance(statement, k.Switch) else 0
