"""A LoopPlan -> the CUDA text of its kernel, and how it is launched.

The text is one loop over the turns: what each stage computes for a thread's pairs, the rows that blocks tell each
other, the products.  cuda/loops.cuh has the words for the last two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from astitch.device.gpu import ACCESS_BYTES
from astitch.emit_cuda import list_headers
from astitch.graph.ir import Literal
from astitch.kernel import kernel_ir as k
from astitch.kernel.cuda_text import STORAGE, comment
from astitch.kernel.entry import CUPY, Entry, LaunchAbi, Pointer, render_entry
from astitch.loops.analysis import Carried, Loop, Stack
from astitch.loops.computed import Computed
from astitch.loops.crossings import Crossings
from astitch.loops.cuts import Share
from astitch.loops.emit_turns import TurnsPlan, emit_turns
from astitch.loops.in_place import find_in_place
from astitch.loops.layout import Layout
from astitch.loops.plan import LoopPlan
from astitch.loops.products import RowProducts
from astitch.loops.rows import RowExchange
from astitch.loops.schedule import Part, Read, is_small
from astitch.loops.share_text import Access, ShareText
from astitch.loops.staged_rows import StagedRows
from astitch.loops.vectors import list_runs, load_parts, render_stored
from astitch.program.steps import CudaKernel


@dataclass(frozen=True)
class LoopKernel:
    """A loop's kernel.  operands: which of the while's operands it reads.  results: which parts of the final state it
    writes.  constants: arrays that it reads besides.  scratch_bytes: memory that it writes besides.  in_place: which of
    the results lie where which of the operands lay, by their numbers.
    Parameters: the operands, the constants, the results, the scratch if there is some, the barrier words if its blocks
    wait for each other.
    """

    plan: LoopPlan | TurnsPlan
    kernel: CudaKernel
    operands: tuple[int, ...]
    results: tuple[int, ...]
    constants: tuple[Literal, ...] = ()
    scratch_bytes: int = 0
    in_place: tuple[tuple[int, int], ...] = ()


def emit_loop(plan: LoopPlan | TurnsPlan, name: str, abi: LaunchAbi = CUPY) -> LoopKernel:
    """The kernel of a plan under a name, in the form that a launcher of this ABI takes."""
    if isinstance(plan, TurnsPlan):
        made = emit_turns(plan, name, abi)
        return LoopKernel(
            plan, made.kernel, made.operands, plan.used, made.constants, made.scratch_bytes
        )
    emitters = [_Emitter(plan.loop, share) for share in plan.shares]
    lines, first, words = [], 0, 0
    for number, emitter in enumerate(emitters):
        body = emitter.emit(first, words)
        first += emitter.cut.grid
        words += emitter.layout.all_words
        if len(emitters) > 1:
            last = number == len(emitters) - 1
            opening = "if" if number == 0 else "} else if"
            body = [f"  {line}" for line in body]
            lines.append("  } else {" if last else f"  {opening} (int(blockIdx.x) < {first}) {{")
        lines += body
    if len(emitters) > 1:
        lines.append("  }")
    shared = max(emitter.shared_bytes for emitter in emitters)
    if shared:
        lines.insert(
            0, f"  {abi.declare_arena(shared, max(plan.blocks_per_sm, 1) if words else 0)}"
        )
    if words:
        lines.append("  astitch_end_launch(barrier);")
    operands = sorted({state for emitter in emitters for state in emitter.text.operands})
    types = plan.loop.types
    pairs = dict(find_in_place(plan.loop, plan.shares))
    apart = {i: i not in pairs and i not in pairs.values() for i in (*operands, *plan.used)}
    pointers = [
        Pointer(f"const {STORAGE[types[i].dtype]}", f"state_{i}", apart[i]) for i in operands
    ]
    tables = {
        name: value for emitter in emitters for name, value in emitter.text.constant_tables.items()
    }
    pointers += [Pointer(f"const {STORAGE[v.dtype]}", name, True) for name, v in tables.items()]
    pointers += [Pointer(STORAGE[types[i].dtype], f"result_{i}", apart[i]) for i in plan.used]
    barrier_words = k.FIRST_TAGGED_WORD + 2 * words if words else 0
    bounds = f"{plan.block}, {plan.blocks_per_sm}"
    head = [
        *list_headers(lines),
        '#include "loops.cuh"',
        "",
        f"// {comment(str(plan))}",
        *render_entry(Entry(name, bounds, tuple(pointers), barrier_words), abi),
    ]
    kernel = CudaKernel(
        name,
        "\n".join([*head, *lines, "}"]) + "\n",
        plan.grid,
        plan.block,
        shared,
        0,
        plan.blocks_per_sm,
        barrier_words=barrier_words,
    )
    in_place = tuple(
        (plan.used.index(written), operands.index(read)) for written, read in pairs.items()
    )
    constants = tuple(tables.values())
    return LoopKernel(plan, kernel, tuple(operands), plan.used, constants, in_place=in_place)


class _Emitter:
    """Writes one share of a loop."""

    def __init__(self, loop: Loop, share: Share) -> None:
        self.share, self.loop, self.body = share, loop, loop.body
        self.axes, self.steps, self.cut = share.axes, share.steps, share.cut
        self.prefetches = self.steps.prefetches_stacks
        self.text = ShareText(loop, share)
        self.layout = Layout(share)
        self.rows = RowExchange(self.text, self.layout)
        self.products = RowProducts(self.text, self.layout)
        self.crossings = Crossings(self.text, self.layout)
        self.computed = Computed(self.text)
        self.staged = StagedRows(loop, share)

    @property
    def shared_bytes(self) -> int:
        """Of a block: what threads tell each other, then the rows that warps move."""
        return self._staged_offset + self.staged.bytes

    @property
    def _staged_offset(self) -> int:
        return -(-self.layout.shared_bytes // ACCESS_BYTES) * ACCESS_BYTES

    def emit(self, first_block: int, first_word: int) -> list[str]:
        """The lines of the share, whose blocks and tagged words begin at the given ones."""
        self.prologue(first_block, first_word)
        self.text.out(1, "#pragma unroll 1")
        limit = f" turn < {self.loop.trips}" if self.loop.limited else ""
        self.text.out(1, f"for (int turn = 0;{limit}; ++turn) {{")
        self.turn()
        self.text.out(1, "}")
        return self.text.lines

    # ---- before the turns ------------------------------------------------------------------------------------------

    def prologue(self, first_block: int, first_word: int) -> None:
        """Shared memory, the thread's place, its share of matrices, and what it reads before the first turn."""
        self.rows.declare()
        self.products.declare()
        self.crossings.declare()
        self.find_place(first_block, first_word)
        self.staged.declare(self.text, self._staged_offset)
        self.find_pairs()
        if self.cut.small > 1:
            self.find_small_pairs()
        for number in range(len(self.steps.products)):
            self.products.load_matrix(number)
        for number in range(len(self.steps.crossings)):
            self.crossings.load_crossing(number)
        self.load_first()
        self.rows.start_rows()

    def find_place(self, first_block: int, first_word: int) -> None:
        """The thread's group of lanes, its block and its words."""
        cut = self.cut
        self.text.out(1, f"const int lane = int(threadIdx.x) % {cut.lanes};")
        self.text.out(1, f"const int team = int(threadIdx.x) / {cut.lanes};")
        block = f"(int(blockIdx.x) - {first_block})" if first_block else "int(blockIdx.x)"
        self.text.out(1, f"const int member = {block} % {cut.members};")
        self.text.out(1, f"const int group = {block} / {cut.members};")
        if self.layout.exchanges:
            start = f"{first_word} + group * {self.layout.group_words}"
            self.text.out(
                1,
                f"unsigned long long* const words = astitch_tagged_words(barrier) + {start};",
            )
            self.text.out(
                1,
                f"const unsigned tag = astitch_launch_tag(barrier) * {self.loop.trips + 1}u + 1u;  // of turn 0",
            )

    def find_pairs(self) -> None:
        """The thread's pairs of a row and a unit."""
        cut = self.cut
        rows, units, own = self.axes.rows, cut.units, cut.own_units
        self.text.out(1, f"const int first_unit = member * {own} + team * {cut.width};")
        self.text.out(
            1, f"const int end_unit = min(member * {own} + {own}, {units});  // of the block's"
        )
        q = cut.owned
        self.text.out(1, f"int row[{q}], unit[{q}], inside[{q}];  // the thread's pairs")
        self.text.out(
            1, f"bool told[{q}], stored[{q}];  // of several threads with a pair the first"
        )
        self.text.out(1, "#pragma unroll")
        self.text.out(1, f"for (int q = 0; q < {q}; ++q) {{")
        pair = f"lane * {q} + q" if cut.copies == 1 else f"lane / {cut.copies}"
        self.text.out(2, f"const int pair = {pair};")
        self.text.out(2, f"const int own_row = group * {cut.rows} + pair / {cut.width};")
        self.text.out(2, f"const int own_unit = first_unit + pair % {cut.width};")
        self.text.out(2, f"inside[q] = pair / {cut.width};")
        self.text.out(2, f"row[q] = min(own_row, {rows - 1});")
        self.text.out(2, f"unit[q] = min(own_unit, {units - 1});")
        first = "" if cut.copies == 1 else f" && lane % {cut.copies} == 0"
        self.text.out(2, f"told[q] = own_unit < end_unit{first};")
        self.text.out(2, f"stored[q] = told[q] && own_row < {rows};")
        self.text.out(1, "}")

    def find_small_pairs(self) -> None:
        """The thread's pairs of a row and a small column."""
        cut, q = self.cut, self.cut.small_owned
        self.text.out(1, f"int small_row[{q}], small_place[{q}], small_inside[{q}];")
        self.text.out(1, f"bool small_live[{q}], small_stored[{q}];")
        lines = [
            f"const int pair = int(threadIdx.x) + q * {cut.block};",
            f"const int own_row = pair / {cut.small_width}, own_place = pair % {cut.small_width};",
            f"small_inside[q] = min(own_row, {cut.rows - 1});",
            f"small_row[q] = min(group * {cut.rows} + small_inside[q], {self.axes.rows - 1});",
            f"small_place[q] = min(own_place, {cut.small - 1});",
            f"small_live[q] = own_row < {cut.rows} && own_place < {cut.small};",
            f"small_stored[q] = small_live[q] && member == 0 && group * {cut.rows} + own_row < {self.axes.rows};",
        ]
        self.text.pairs(1, True, lines)

    def load_first(self) -> None:
        """What the first turn reads of states."""
        for small in (False, True):
            parts = [
                (r, p)
                for r in self.steps.reads
                if r.small is small
                for p in self.text.read_parts(r)
            ]
            once = self.loop.trips == 1 and not small
            for _, part in parts:
                self.text.declare(1, part, start=" = {}" if once else "")
            alone = [(read, part) for read, part in parts if read.state not in self.staged.reads]
            lines = [*load_parts(self.text, alone, "0")]
            if once:
                # Another thread may write what it read: nobody reads it in that one's place.
                lines = [f"if (stored[q]) {line}" for line in lines]
                lines += self.staged.load(self.text, [read for read, _ in parts])
            self.text.pairs(1, small, lines)

    # ---- a turn ----------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """What a turn does, stage by stage."""
        stacked = [
            (read, part)
            for read in self.steps.reads
            if read.place
            for part in self.text.read_parts(read)
        ]
        if stacked:
            self.read_stacks(stacked)
        for stage in range(self.steps.stages + 1):
            self.compute(stage)
            if stage < self.steps.stages:
                self.rows.receive(stage)
                self.products.multiply(stage)
                self.crossings.cross(stage)
        self.hand_on(stacked if self.prefetches else [])

    def read_stacks(self, stacked: Sequence[tuple[Read, Part]]) -> None:
        """Slices of stacks: those of the next turn, which arrive while this one waits, or this turn's own."""
        prefix, turn, depth = ("next_", "next", 2) if self.prefetches else ("", "turn", 3)
        if self.prefetches:
            self.text.out(2, f"const int next = min(turn + 1, {self.loop.trips - 1});")
            for _, part in stacked:
                self.text.declare(2, part, prefix)
        else:
            self.text.out(2, "if (turn > 0) {")
        for small in (False, True):
            parts = [(read, part) for read, part in stacked if part.small is small]
            self.text.pairs(depth, small, [*load_parts(self.text, parts, turn, prefix)])
        if not self.prefetches:
            self.text.out(2, "}")

    def compute(self, stage: int) -> None:
        """What a stage computes for the thread's pairs, tells the others and stores."""
        for part in self.steps.computed[stage]:
            if not self.text.is_local(part):
                self.text.declare(2, part)
        for small in (False, True):
            parts = [part for part in self.steps.computed[stage] if part.small is small]
            lines = [self.computed.render(part) for part in parts]
            lines += [] if small else self.rows.tell(stage)
            lines += self.crossings.put_aside(stage, small)
            lines += self.store(stage, small)
            self.text.pairs(2, small, lines)

    def store(self, stage: int, small: bool) -> Iterator[str]:
        """The slices of stacks that are ready after a stage."""
        for state in self.share.used:
            role = self.loop.roles[state]
            if not isinstance(role, Stack):
                continue
            access = self.text.access(role.value, state, role.place)
            if is_small(self.loop, self.axes, role.value) is not small:
                continue
            for run, values in self.list_stored(role.value, access, small):
                if self.text.stage_of_value(values[0]) == stage:
                    where = Part(role.value, run[0], small)
                    yield self.render_store(state, where, access, values, "turn")

    def list_stored(
        self, value: str, access: Access, small: bool
    ) -> Iterator[tuple[range, Sequence[Part]]]:
        """The parts of a value in runs that are stored at once, and what each of them is."""
        parts = self.text.parts_of(value)
        dtype = self.body[value].dtype
        runs = [range(i, i + 1) for i in range(len(parts))]
        if not small and len({self.text.stage_of_value(part) for part in parts}) == 1:
            runs = [*list_runs(self.text, dtype, access, len(parts))]
        for run in runs:
            yield run, [parts[i] for i in run]

    def render_store(
        self, state: int, where: Part, access: Access, values: Sequence[Part], turn: str
    ) -> str:
        """The store of parts of a state.  where: the first as the state has it; values: what they are."""
        dtype = self.body[where.name].dtype
        row, column = self.text.place(where)
        at = access.render(row, column, turn)
        rendered = [self.text.render(value) for value in values]
        # A value without columns, or without rows, is one thread's to store.
        mine = "stored[q]"
        if where.small:
            mine = f"small_stored[q] && {self.text.live(where.name)}"
        alone = "" if access.column else f" && {column} == 0"
        alone += "" if access.row or self.axes.rows == 1 else f" && {row} == 0"
        stored = render_stored(dtype, self.text.results[state], at, rendered)
        return f"if ({mine}{alone}) {stored}"

    def hand_on(self, stacked: Sequence[tuple[Read, Part]]) -> None:
        """The state of the next turn."""
        moves: dict[bool, list[tuple[str, str]]] = {False: [], True: []}
        for parameter, role in self.text.roles.items():
            read = self.text.reads.get(parameter)
            if not isinstance(role, Carried) or read is None:
                continue
            for part in self.text.read_parts(read):
                value = self.text.resolve(role.value, part.number, part.small)
                moves[part.small].append((self.text.variable(part), self.text.render(value)))
        for _, part in stacked:
            moves[part.small].append(
                (self.text.variable(part), f"next_{self.text.variable(part)}[q]")
            )
        self.finals()
        for small, all_ in moves.items():
            lines = [f"const auto new_{i} = {value};" for i, (_, value) in enumerate(all_)]
            lines += [f"{to}[q] = new_{i};" for i, (to, _) in enumerate(all_)]
            self.text.pairs(2, small, lines)

    def finals(self) -> None:
        """The carried states that somebody reads after the loop."""
        lines: dict[bool, list[str]] = {False: [], True: []}
        staged: dict[int, list[str]] = {}
        for state in self.share.used:
            role = self.loop.roles[state]
            if isinstance(role, Carried):
                # The parameter has no axes where no turn reads what the one before left there.
                access = self.text.access(role.value, state, None)
                small = is_small(self.loop, self.axes, role.value)
                if state in self.staged.writes:
                    staged[state] = [self.text.render(p) for p in self.text.parts_of(role.value)]
                    continue
                for run, values in self.list_stored(role.value, access, small):
                    where = Part(role.value, run[0], small)
                    lines[small].append(self.render_store(state, where, access, values, "0"))
        lines[False] += self.staged.store(self.text, staged)
        if self.loop.asked is not None:
            self.text.out(2, "bool asked = false;  // does a row of the thread?")
            self.text.pairs(2, False, [f"asked = asked || {each};" for each in self.list_asked()])
        if any(lines.values()):
            last = [f"turn == {self.loop.trips - 1}"] if self.loop.limited else []
            last += [] if self.loop.asked is None else ["!asked"]
            self.text.out(2, f"if ({' || '.join(last)}) {{")
            for small, all_ in lines.items():
                self.text.pairs(3, small, all_)
            self.text.out(2, "}")
        if self.loop.asked is not None:
            self.text.out(2, "if (!asked) break;")

    def list_asked(self) -> list[str]:
        """What says which of the thread's rows asked for the turn."""
        assert self.loop.asked is not None
        role = self.loop.roles[self.loop.asked]
        assert isinstance(role, Carried)
        return [self.text.render(part) for part in self.text.parts_of(role.value)]
