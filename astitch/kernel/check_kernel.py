"""Takes a Kernel; hands it on unchanged, or raises IllegalProduct with a sentence.

The idea: a kernel is legal when its text would be.  Names are defined once and before use, all threads pass barriers,
and no two threads race for shared memory.  These rules read what statements say of themselves; what a kind of statement
needs beside them is its own function, in RULES.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from astitch.device.gpu import ACCESS_BYTES, MOST_BLOCKS
from astitch.errors import IllegalProduct
from astitch.graph import index as ix
from astitch.graph.index import Linear
from astitch.graph.ir import DType
from astitch.graph.ops import OPS
from astitch.kernel import kernel_ir as k
from astitch.kernel.shared_memory import SLOT_ALIGNMENT_BYTES, list_loops
from astitch.kernel.statement import (
    Body,
    Compute,
    Define,
    Effect,
    Evaluate,
    Expression,
    Held,
    Read,
    Synchronize,
    Together,
    Use,
    UseOwn,
    Write,
)
from astitch.tiling.space import ceil_div

ADVICE = "\n  the stage that handed this on has a bug; print its input and report both"
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_KNOWN_FUNCTIONS = frozenset({"clamped"})


def check_kernel(kernel: k.Kernel) -> k.Kernel:
    """The same kernel, if its statements make a sound program.

    Names are defined before use and once in a scope; barriers stand where all threads of a block come by;
    what other blocks wrote is read behind a global barrier; what other threads of the block wrote in shared
    memory is read, and written over, behind a block barrier; every output is stored by one statement.
    Raises IllegalProduct with the first fault.
    """
    KernelCheck(kernel).run()
    return kernel


@dataclass(frozen=True, slots=True)
class _Variable:
    held: Held
    dtype: DType | None = None


@dataclass(frozen=True, slots=True)
class SlotUse:
    """An access of a slot.  kind: read or write by any thread of the block, or private to each thread."""

    slot: str
    kind: str


Trace = list[SlotUse | None]
"""What a block does to its shared memory, in order; None is a block barrier."""


class KernelCheck:
    """The rules for all statements, and what they have seen of the kernel so far.

    scopes: variables by name, innermost last.  level: global barriers passed; meetings: with those of block groups.
    stores: the arrays of write_levels, in the order of the stores.
    """

    def __init__(self, kernel: k.Kernel):
        self.kernel = kernel
        self.parameters = {p.name: p for p in kernel.parameters}
        self.slots = {s.name: s for s in kernel.slots}
        self.reducers = {r.number: r for r in kernel.reducers}
        self.scopes: list[dict[str, _Variable]] = [{}]
        self.level = 0
        self.meetings = 0
        self.longest_distance = 0
        self.published: set[k.Area] = set()
        self.collected: set[k.Area] = set()
        self.section = -1
        self.read_levels: dict[str, list[int]] = {}
        self.write_levels: dict[str, list[int]] = {}
        self.stores: list[str] = []

    def fault(self, sentence: str) -> IllegalProduct:
        where = f", loop {self.section}" if self.section >= 0 else ""
        return IllegalProduct(f"kernel {self.kernel.name}{where}: {sentence}{ADVICE}")

    def require(self, condition: bool, sentence: str) -> None:
        if not condition:
            raise self.fault(sentence)

    def run(self) -> None:
        self.check_head()
        self.check_slots()
        pending: list[SlotUse] = []
        for statement in self.kernel.body:
            match statement:
                case k.Section():
                    self.section = statement.number
                    trace = check_section(self, statement)
                    # A block without a task passes by whatever barriers stand inside.
                    pending += self.check_trace([*pending, *trace])
                    self.section = -1
                case k.Common(body):
                    for value in body:
                        what = type(value).__name__
                        self.require(
                            isinstance(value, k.Load | k.Value), f"{what} outside a section"
                        )
                        self.check_statement(value, True)
                case k.Barrier(level, _):
                    self.require(level in ("global", "block"), f"a barrier of level {level!r}")
                    self.level += level == "global"
                    self.meetings += level == "global"
                    pending = []
                case _:
                    raise self.fault(f"{type(statement).__name__} outside a section")
        self.require(
            self.level == self.kernel.global_barriers,
            f"{self.level} global barriers are written, {self.kernel.global_barriers} are declared",
        )
        self.require(self.published == self.collected, "a part is published or collected in vain")
        ends = 0
        for area in sorted(self.published, key=lambda a: a.offset):
            self.require(area.offset >= ends, f"{area} overlaps the one before")
            ends = area.offset + area.results * area.parts * area.words
        self.check_memory()

    # -- declarations

    def check_head(self) -> None:
        kernel = self.kernel
        names = [kernel.name, *(p.name for p in kernel.parameters), *(s.name for s in kernel.slots)]
        names += ["scratch"] * bool(kernel.scratch) + ["barrier"] * kernel.cooperative
        taken: set[str] = set()
        for name in names:
            self.require(_IDENTIFIER.fullmatch(name) is not None, f"{name!r} is not an identifier")
            self.require(name not in taken, f"two things are named {name}")
            taken.add(name)
        sources: set[str] = set()
        for source in (p.source for p in kernel.parameters):
            self.require(source not in sources, f"%{source} is passed twice")
            sources.add(source)
        for scratch in kernel.scratch:
            self.require(scratch.source in sources, f"scratch %{scratch.source} has no name")
            self.require(
                scratch.offset >= 0 and scratch.offset % ACCESS_BYTES == 0,
                f"scratch %{scratch.source} at byte {scratch.offset}",
            )
        self.require(
            0 < kernel.grid <= MOST_BLOCKS and 0 < kernel.block <= 1024,
            f"a launch of {kernel.grid} x {kernel.block}",
        )
        for number, reducer in enumerate(kernel.reducers):
            self.require(
                reducer.number == number, f"reducer {reducer.number} stands in place {number}"
            )
            self.require(
                len(reducer.identity) == len(reducer.fields) == len(reducer.region.outputs),
                f"reducer {number} has {len(reducer.fields)} fields and {len(reducer.identity)} identities",
            )

    def check_slots(self) -> None:
        used_in: dict[int, list[k.Slot]] = {}  # those before, by loop
        for slot in self.kernel.slots:
            self.require(
                slot.offset % SLOT_ALIGNMENT_BYTES == 0, f"slot {slot.name} at byte {slot.offset}"
            )
            self.require(
                slot.offset >= 0 and slot.offset + slot.bytes <= self.kernel.shared_bytes,
                f"slot {slot.name} ends at byte {slot.offset + slot.bytes} of {self.kernel.shared_bytes}",
            )
            self.require(
                (slot.dtype is None) != (slot.reducer is None),
                f"slot {slot.name} has no element type",
            )
            self.require(
                slot.reducer is None or slot.reducer in self.reducers,
                f"slot {slot.name}: no such reducer",
            )
            for loop in list_loops(slot):
                for other in used_in.get(loop, ()):
                    self.require(
                        not _overlap(slot, other),
                        f"slots {other.name} and {slot.name} overlap and are live together",
                    )
                used_in.setdefault(loop, []).append(slot)

    # -- names

    def define(self, name: str, variable: _Variable) -> None:
        self.require(_IDENTIFIER.fullmatch(name) is not None, f"{name!r} is not an identifier")
        taken = name in self.parameters or name in self.slots
        self.require(not taken, f"{name} is a variable and an array")
        self.require(
            all(name not in scope for scope in self.scopes), f"{name} is defined twice in one scope"
        )
        self.scopes[-1][name] = variable

    def find(self, name: str, held: Held, dtype: DType | None = None) -> _Variable:
        for scope in reversed(self.scopes):
            if name in scope:
                variable = scope[name]
                self.require(
                    variable.held is held,
                    f"{name} is used as {held.value}, it is {variable.held.value}",
                )
                self.require(
                    dtype is None or variable.dtype is dtype,
                    f"{name} of {_render(variable.dtype)} is used as {_render(dtype)}",
                )
                return variable
        raise self.fault(f"{name} is used before it is defined")

    def check_form(self, form: Linear) -> None:
        for symbol in ix.symbols(form):
            words = _IDENTIFIER.findall(symbol.name)
            self.require(bool(words), f"{symbol.name!r} names nothing")
            for word in words:
                if word not in _KNOWN_FUNCTIONS:
                    self.find(word, Held.INTEGER)

    # -- arrays

    def use_array(self, array: str, dtype: DType | None, *, write: bool) -> Trace:
        done, not_done = ("written", "read") if write else ("read", "written")
        if array in self.slots:
            self.check_type(array, dtype, done)
            return [SlotUse(array, "write" if write else "read")]
        parameter = self.parameters.get(array)
        if parameter is None:
            raise self.fault(f"array {array} is {done} and does not exist")
        self.require(
            parameter.written if write else parameter.read,
            f"{array} is {done}, though it is declared as only {not_done}",
        )
        self.check_type(array, dtype, done)
        levels = self.write_levels if write else self.read_levels
        levels.setdefault(array, []).append(self.meetings)
        if write:
            self.stores.append(array)
        return []

    def check_type(self, array: str, dtype: DType | None, done: str) -> None:
        own = self.slots[array].dtype if array in self.slots else self.parameters[array].dtype
        self.require(
            dtype is None or own is dtype,
            f"{array} of {_render(own)} is {done} as {_render(dtype)}",
        )

    def use_own(self, use: UseOwn) -> Trace:
        if use.name not in self.slots:
            self.find(use.name, use.held, use.dtype)
            return []
        self.check_type(use.name, use.dtype, "used")
        return [SlotUse(use.name, "private")]

    def check_memory(self) -> None:
        """Outputs and scratch: stored by one statement, and read only behind the barrier that follows it."""
        wholes = self.kernel.wholes
        for parameter in self.kernel.parameters:
            if parameter.source in wholes:
                self.check_pieces(parameter)
                continue
            reads, writes = (
                self.read_levels.get(parameter.name, []),
                self.write_levels.get(parameter.name, []),
            )
            self.require(
                bool(reads) == parameter.read, f"{parameter.name} is declared as read and never is"
            )
            if not parameter.written:
                self.require(bool(reads), f"{parameter.name} is passed and not used")
                continue
            self.require(
                len(writes) == 1,
                f"{parameter.name} is stored by {len(writes)} statements, not by one",
            )
            self.require(
                not reads or min(reads) > writes[0],
                f"{parameter.name} is written at level {writes[0]} and read at level {min(reads, default=0)}: "
                "no global barrier lies between",
            )

        self.check_scratch()

    def check_pieces(self, whole: k.Parameter) -> None:
        """No statement names the whole; what its pieces do is declared of it; they begin behind each other."""
        pieces = [p for p in self.kernel.parameters if p.whole == whole.source]
        used = {*self.read_levels, *self.write_levels}
        self.require(whole.name not in used, f"{whole.name} is used beside its pieces")
        self.require(
            (whole.read, whole.written)
            == (any(p.read for p in pieces), any(p.written for p in pieces)),
            f"{whole.name} is not declared as its pieces are used",
        )
        starts = sorted(p.start for p in pieces)
        size = starts[-1] // max(len(starts) - 1, 1)  # they have one shape
        self.require(
            starts == [n * size for n in range(len(starts))] and size > 0,
            f"pieces of {whole.name} begin at {starts}",
        )
        self.require(
            all(p.dtype is whole.dtype for p in pieces), f"pieces of {whole.name} have other types"
        )

    def check_scratch(self) -> None:
        """Arrays of scratch that are used at one level, or between two at which one of them is, share no byte."""
        names = {p.source: p.name for p in self.kernel.parameters}
        placed: list[tuple[int, int, int, int, str]] = []
        for scratch in self.kernel.scratch:
            name = names[scratch.source]
            levels = self.write_levels.get(name, []) + self.read_levels.get(name, [])
            if levels and scratch.type.bytes:
                end = scratch.offset + scratch.type.bytes
                placed.append((scratch.offset, end, min(levels), max(levels), scratch.source))
        placed.sort()
        open_: list[tuple[int, int, int, int, str]] = []
        for row in placed:
            open_ = [other for other in open_ if other[1] > row[0]]
            for _, _, first, last, source in open_:
                self.require(
                    last < row[2] or row[3] < first,
                    f"scratch %{row[4]} at byte {row[0]} overlaps %{source}, which is in use",
                )
            open_.append(row)

    def forget_stores_since(self, start: int) -> None:
        """Forget stores of arrays that were stored before: the other case of a choice, or other steps of a nest, store
        them too.  start: how many stores there were before."""
        since = Counter(self.stores[start:])
        again = {name for name, count in since.items() if len(self.write_levels[name]) > count}
        for name in again:
            del self.write_levels[name][-since[name] :]
        if again:
            self.stores[start:] = [name for name in self.stores[start:] if name not in again]

    # -- statements

    def check_statement(self, statement: k.Statement, uniform: bool) -> Trace:
        """uniform: do all threads of the block execute it?"""
        rule = RULES.get(type(statement))
        return rule(self, statement, uniform) if rule else self.follow(statement, uniform)

    def follow(self, statement: k.Statement, uniform: bool) -> Trace:
        """The rules for all statements."""
        trace: Trace = []
        stored: int | None = None  # before the first of several bodies
        for effect in statement.effects():
            match effect:
                case Together(otherwise):
                    self.require(uniform, otherwise)
                case Synchronize():
                    trace.append(None)
                case Body():
                    before, stored = stored, len(self.stores)
                    trace += self.check_body(effect)
                    if before is not None:
                        self.forget_stores_since(stored)
                case _:
                    trace += self.check_effect(effect)
        return trace

    def check_body(self, body: Body) -> Trace:
        outside = self.scopes
        self.scopes = [
            {n: v for n, v in scope.items() if n not in body.hidden} if body.hidden else scope
            for scope in outside
        ]
        self.scopes.append({})
        for name in body.integers:
            self.define(name, _Variable(Held.INTEGER))
        trace: Trace = []
        before: k.Statement | None = None
        for statement in body.statements:
            stored = len(self.stores)
            trace += self.check_statement(statement, body.uniform)
            if _goes_on(before, statement):
                self.forget_stores_since(stored)
            before = statement
        if body.result is not None:
            trace += self.check_expr(body.result)
        self.scopes = outside
        return [*trace, *trace] if body.repeated else trace

    def check_effect(self, effect: Effect) -> Trace:
        match effect:
            case Define(name, held, dtype, width):
                self.check_width(name, dtype, width)
                self.define(name, _Variable(held, dtype))
            case Use(name, held, dtype, width):
                self.check_width(name, dtype, width)
                self.find(name, held, dtype)
            case UseOwn(name, _, dtype, width):
                self.check_width(name, dtype, width)
                return self.use_own(effect)
            case Evaluate(form):
                self.check_form(form)
            case Compute(expr):
                return self.check_expr(expr)
            case Read(array, dtype, position):
                self.check_form(position)
                return self.use_array(array, dtype, write=False)
            case Write(array, dtype, position):
                self.check_form(position)
                return self.use_array(array, dtype, write=True)
        return []

    def check_width(self, name: str, dtype: DType | None, width: int | None) -> None:
        self.require(
            width is None or (width > 1 and width & (width - 1) == 0),
            f"{name} is a vector of {width} {_render(dtype)}",
        )

    def check_expr(self, expr: Expression) -> Trace:
        match expr:
            case k.Number(value):
                self.require(value.shape == (), f"a number of shape {list(value.shape)}")
            case k.Call():
                self.require(expr.op in OPS, f"there is no op {expr.op!r}")
                self.require(
                    len(expr.operands) == len(expr.operand_dtypes),
                    f"{expr.op} with operands of no type",
                )
        trace: Trace = []
        for effect in expr.effects():
            trace += self.check_effect(effect)
        return trace

    # -- shared memory

    def check_trace(self, trace: Trace) -> list[SlotUse]:
        """No two threads may meet in shared memory between two barriers, unless all of them read.

        Returns what comes after the last barrier.
        """
        pending: list[SlotUse] = []
        for use in trace:
            if use is None:
                pending = []
                continue
            for earlier in pending:
                self.check_pair(earlier, use)
            if use not in pending:
                pending.append(use)
        return pending

    def check_pair(self, a: SlotUse, b: SlotUse) -> None:
        if a.slot == b.slot:
            clash = {a.kind, b.kind} == {"read", "write"} or (a.kind == "private") != (
                b.kind == "private"
            )
        else:
            clash = _overlap(self.slots[a.slot], self.slots[b.slot])
        self.require(
            not clash,
            f"shared {a.slot} ({a.kind}) and {b.slot} ({b.kind}) meet in one place: no block barrier lies between",
        )


def _goes_on(before: k.Statement | None, statement: k.Statement) -> bool:
    """Are they two parts of one nest, each with some of its steps?"""
    parts = (before, statement)
    return all(isinstance(part, k.Loop) and part.variable == "turn" for part in parts)


def _overlap(a: k.Slot, b: k.Slot) -> bool:
    return a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes


def _render(dtype: DType | None) -> str:
    return dtype.value if dtype is not None else "no type"


# ---- what a kind of statement needs beside the rules for all -----------------------------------------------------


def check_section(check: KernelCheck, section: k.Section) -> Trace:
    threads = section.outer_threads * section.row_threads * section.col_threads
    check.require(
        threads == check.kernel.block, f"{threads} threads in a block of {check.kernel.block}"
    )
    check.require(0 <= section.offset < check.kernel.grid, f"it starts {section.offset} blocks on")
    return check.follow(section, True)


def _refuse_section(check: KernelCheck, section: k.Section, uniform: bool) -> Trace:
    raise check.fault(f"section {section.number} inside a section")


def _refuse_common(check: KernelCheck, common: k.Common, uniform: bool) -> Trace:
    raise check.fault("values of all sections inside a section")


def _check_choose_index(check: KernelCheck, choice: k.ChooseIndex, uniform: bool) -> Trace:
    chosen = bool(choice.cases) and not choice.cases[-1][0]
    check.require(chosen, f"{choice.name} may be left without a value")
    return check.follow(choice, uniform)


def _check_start(check: KernelCheck, start: k.Start, uniform: bool) -> Trace:
    check.require(start.limit >= 0, f"{start.name} is clamped to {start.limit}")
    return check.follow(start, uniform)


def _check_prefetch_registers(
    check: KernelCheck, registers: k.PrefetchRegisters, uniform: bool
) -> Trace:
    check.require(registers.count > 0, f"{registers.name} holds {registers.count} vectors")
    return check.follow(registers, uniform)


def _check_keep(check: KernelCheck, keep: k.Keep, uniform: bool) -> Trace:
    check.require(keep.count > 0, f"{keep.name} keeps {keep.count} values")
    return check.follow(keep, uniform)


def _check_advance(check: KernelCheck, step: k.Advance, uniform: bool) -> Trace:
    target, source = (check.find(n, Held.PREFETCHED).dtype for n in (step.target, step.source))
    check.require(target is source, f"{step.source} and {step.target} hold different types")
    return check.follow(step, uniform)


# -- reductions


def _check_states(check: KernelCheck, states: k.States, uniform: bool) -> Trace:
    check.require(
        states.reducer in check.reducers and states.count > 0,
        f"{states.name}: {states.count} states of reducer {states.reducer}",
    )
    return check.follow(states, uniform)


def _check_accumulate(check: KernelCheck, step: k.Accumulate, uniform: bool) -> Trace:
    fields = len(check.reducers[step.reducer].fields)
    check.require(
        len(step.values) == fields, f"{len(step.values)} values for {fields} fields of {step.state}"
    )
    return check.follow(step, uniform)


def _check_joint(
    check: KernelCheck, step: k.AccumulateElement | k.AccumulateBatch, uniform: bool
) -> Trace:
    joint = bool(check.reducers[step.reducer].joint)
    check.require(joint, f"{step.state} is no joint reduction")
    return check.follow(step, uniform)


def _check_accumulate_state(check: KernelCheck, step: k.AccumulateState, uniform: bool) -> Trace:
    trace = check.follow(step, uniform)
    for array, dtype in zip(step.arrays, check.reducers[step.reducer].fields, strict=True):
        check.check_type(array, dtype, "read")
    return trace


def _check_reduction(check: KernelCheck, step: k.ReduceAcross, uniform: bool) -> Trace:
    check.follow(step, uniform)
    powers = all(n > 0 and n & (n - 1) == 0 for n in (step.threads, step.stride))
    within = step.threads * step.stride <= check.kernel.block
    first = step.parts[0].state
    check.require(
        powers and within,
        f"{first}: a reduction of {step.threads} threads {step.stride} apart",
    )
    turns = [_trace_part(check, step, part) for part in step.parts]
    if not turns[0]:
        return []
    if step.stride == 1:  # all write, one barrier, all read
        return [*(t[0] for t in turns), None, *(t[2] for t in turns)]
    joined: Trace = []
    for turn in turns:
        joined += [*turn, None]
    return joined[:-1]


def _trace_part(check: KernelCheck, step: k.ReduceAcross, part: k.Part) -> Trace:
    """The uses of shared memory of one reduction, barriers between them."""
    if not part.slot:
        in_warp = step.threads * step.stride <= 32
        check.require(
            in_warp, f"{part.state} is reduced over several warps and has no shared memory"
        )
        return []
    slot = check.slots.get(part.slot)
    if slot is None:
        raise check.fault(f"{part.state} is reduced through {part.slot}, which does not exist")
    check.require(
        slot.reducer == part.reducer, f"slot {slot.name} holds other states than {part.state}"
    )
    chunk = min(part.count, k.STRIDED_CHUNK)
    together = sum(p.slot == part.slot for p in step.parts)
    states = (
        part.count * together * max(check.kernel.block // 32, 1)
        if step.stride == 1
        else chunk * k.count_lines(check.kernel.block, step.stride)
    )
    check.require(
        slot.count >= states,
        f"slot {slot.name} has {slot.count} states, {states} are exchanged",
    )
    turns = 1 if step.stride == 1 else ceil_div(part.count, k.STRIDED_CHUNK)
    turn: Trace = [SlotUse(slot.name, "write"), None, SlotUse(slot.name, "read"), None]
    if step.stride > 1 and step.butterfly:  # there and back
        turn *= 2
    return (turn * turns)[:-1]


def _check_scan(check: KernelCheck, step: k.ScanAcross, uniform: bool) -> Trace:
    check.follow(step, uniform)
    check.require(step.carry != step.state, f"{step.state} is carried along in itself")
    powers = all(n > 0 and n & (n - 1) == 0 for n in (step.threads, step.stride))
    within = step.threads * step.stride <= check.kernel.block
    check.require(
        powers
        and within
        and step.steps > 0
        and step.width > 0
        and (step.columns or step.stride == 1),
        f"{step.state}: a scan of {step.threads} threads {step.stride} apart, "
        f"{step.steps} x {step.width} states each",
    )
    states = k.count_scanned(step, check.kernel.block)
    trace = _exchange_through(check, step, step.slot, states) if states else []
    return [*trace, *_check_handover(check, step, step.handover)] if step.handover else trace


def _check_sort(check: KernelCheck, step: k.SortAcross, uniform: bool) -> Trace:
    check.follow(step, uniform)
    powers = all(n > 0 and n & (n - 1) == 0 for n in (step.threads, step.width))
    check.require(
        powers and step.threads <= check.kernel.block and step.steps > 0,
        f"{step.state}: a sort by {step.threads} threads, {step.steps} x {step.width} states each",
    )
    states = k.count_sorted(step, check.kernel.block)
    if not states:
        return []
    # The last exchange is read behind a barrier, and another follows it.
    return [*_exchange_through(check, step, step.slot, states), None]


def _exchange_through(
    check: KernelCheck, step: k.ScanAcross | k.SortAcross, name: str, states: int
) -> Trace:
    slot = check.slots.get(name)
    if slot is None:
        raise check.fault(f"{step.state} is scanned over several warps and has no shared memory")
    check.require(
        slot.reducer == step.reducer, f"slot {slot.name} holds other states than {step.state}"
    )
    check.require(
        slot.count >= states,
        f"slot {slot.name} has {slot.count} states, {states} are exchanged",
    )
    return [SlotUse(slot.name, "write"), None, SlotUse(slot.name, "read")]


def _check_handover(check: KernelCheck, step: k.ScanAcross, given: k.Handover) -> Trace:
    _check_area(check, given.area, step.reducer)
    check.published.add(given.area)
    check.collected.add(given.area)
    parts = given.area.parts
    whole = step.threads * step.stride == check.kernel.block and step.carry
    check.require(
        bool(whole) and check.reducers[step.reducer].commutative,
        f"{step.state} is handed on by a block that has more than one row, or no carry",
    )
    check.require(check.kernel.grid % parts == 0, f"{step.state} is handed on in {parts} blocks")
    check.require(given.slot != step.slot, f"{given.slot} is read and written over")
    return _exchange_through(check, step, given.slot, k.count_handed(step))


# -- block groups


def _check_area(check: KernelCheck, area: k.Area, reducer: int) -> None:
    end = area.offset + area.results * area.parts * area.words
    check.require(
        area.words == check.reducers[reducer].words and end <= check.kernel.tagged_words,
        f"{area} does not lie in {check.kernel.tagged_words} tagged words",
    )
    check.require(
        area.words == 1 or area.offset % 2 == area.words % 2 == 0,
        f"{area} does not lie in whole pairs of tagged words",
    )


def _check_publish(check: KernelCheck, step: k.Publish, uniform: bool) -> Trace:
    _check_area(check, step.area, step.reducer)
    check.published.add(step.area)
    return check.follow(step, uniform)


def _check_collect(check: KernelCheck, step: k.Collect, uniform: bool) -> Trace:
    _check_area(check, step.area, step.reducer)
    check.collected.add(step.area)
    check.require(step.members > 0, f"{step.members} threads collect")
    return check.follow(step, uniform)


def _check_meeting(check: KernelCheck, meeting: k.Meeting, uniform: bool) -> Trace:
    """All threads write and read the shared totals, a block barrier between."""
    check.require(check.kernel.grid % meeting.blocks == 0, f"a meeting of {meeting.blocks} blocks")
    check.require(check.kernel.block % 32 == 0, f"warps of {check.kernel.block} threads gather")
    check.meetings += 1
    trace = check.follow(meeting, uniform)
    found = {s.name for s in meeting.body if isinstance(s, k.States)}
    check.require(found >= {t.found for t in meeting.totals}, "a total that no warp gathers")
    for total in meeting.totals:
        slot = check.slots.get(total.slot)
        check.require(
            slot is not None and slot.reducer == total.reducer,
            f"{total.state} comes through {total.slot}, which holds no such states",
        )
    trace += [SlotUse(total.slot, "write") for total in meeting.totals]
    return [*trace, None, *(SlotUse(total.slot, "read") for total in meeting.totals)]


# -- nests


def _check_loop(check: KernelCheck, loop: k.Loop, uniform: bool) -> Trace:
    check.require(loop.count > 0, f"a loop of {loop.count} over {loop.variable}")
    return check.follow(loop, uniform)


def _check_if(check: KernelCheck, statement: k.If, uniform: bool) -> Trace:
    check.require(bool(statement.guards), "an If without a guard")
    return check.follow(statement, uniform)


def _check_switch(check: KernelCheck, switch: k.Switch, uniform: bool) -> Trace:
    check.require(bool(switch.cases), "a choice of nothing")
    return check.follow(switch, uniform)


def _check_choose(check: KernelCheck, choice: k.Choose, uniform: bool) -> Trace:
    chosen = bool(choice.branches) and not choice.branches[-1].guards
    check.require(chosen, f"{choice.name} may be left without a value")
    return check.follow(choice, uniform)


def _check_rounds(check: KernelCheck, rounds: k.Rounds, uniform: bool) -> Trace:
    check.require(rounds.count > 0, f"{rounds.count} rounds over {rounds.variable}")
    return check.follow(rounds, uniform)


def _check_fetch_round(check: KernelCheck, fetch: k.FetchRound, uniform: bool) -> Trace:
    sentence = f"{fetch.count} rounds over {fetch.variable} are prefetched"
    check.require(fetch.count > 1, sentence)
    return check.follow(fetch, uniform)


def _check_task_loop(check: KernelCheck, loop: k.TaskLoop, uniform: bool) -> Trace:
    tasks, once, buffers, delay = loop.tasks, loop.once, loop.buffers, loop.delay
    check.require(
        buffers != 1 and not (once and (buffers or delay)), f"a circular buffer of {buffers}"
    )
    check.require(not delay or delay < buffers, f"{delay} tasks of delay with {buffers} buffers")
    check.require(tasks > 0, f"a loop of {tasks} tasks")
    fits = not once or tasks <= check.kernel.grid
    check.require(fits, f"{tasks} tasks at once on {check.kernel.grid} blocks")
    check.longest_distance = 0
    trace = check.follow(loop, uniform)
    room = buffers >= delay + check.longest_distance
    check.require(
        not delay or room,
        f"{delay} of delay and {check.longest_distance} of prefetch with {buffers}",
    )
    return trace


def _check_previous(check: KernelCheck, previous: k.Previous, uniform: bool) -> Trace:
    delay, buffers = previous.delay, previous.buffers
    check.require(0 < delay < buffers, f"{delay} tasks of delay with {buffers} buffers")
    return check.follow(previous, uniform)


def _check_prefetch(check: KernelCheck, prefetch: k.Prefetch, uniform: bool) -> Trace:
    distance, buffers = prefetch.distance, prefetch.buffers
    check.require(prefetch.tasks > 0, f"a prefetch of {prefetch.tasks} tasks")
    check.require(prefetch.first or distance > 0, "a prefetch of the task itself")
    check.require(
        not buffers or distance < buffers,
        f"a prefetch distance of {distance} with {buffers} buffers",
    )
    check.longest_distance = max(check.longest_distance, distance)
    return check.follow(prefetch, uniform)


def _check_barrier(check: KernelCheck, barrier: k.Barrier, uniform: bool) -> Trace:
    inside = f"a {barrier.level} barrier inside a section: {barrier.reason}"
    check.require(barrier.level == "block", inside)
    return check.follow(barrier, uniform)


RULES: dict[type[k.Statement], Callable[[KernelCheck, Any, bool], Trace]] = {
    k.Section: _refuse_section,
    k.Common: _refuse_common,
    k.ChooseIndex: _check_choose_index,
    k.Start: _check_start,
    k.PrefetchRegisters: _check_prefetch_registers,
    k.Keep: _check_keep,
    k.Advance: _check_advance,
    k.States: _check_states,
    k.Accumulate: _check_accumulate,
    k.AccumulateElement: _check_joint,
    k.AccumulateBatch: _check_joint,
    k.AccumulateState: _check_accumulate_state,
    k.ReduceAcross: _check_reduction,
    k.ScanAcross: _check_scan,
    k.SortAcross: _check_sort,
    k.Publish: _check_publish,
    k.Collect: _check_collect,
    k.Meeting: _check_meeting,
    k.Loop: _check_loop,
    k.If: _check_if,
    k.Switch: _check_switch,
    k.Choose: _check_choose,
    k.Rounds: _check_rounds,
    k.FetchRound: _check_fetch_round,
    k.TaskLoop: _check_task_loop,
    k.Previous: _check_previous,
    k.Prefetch: _check_prefetch,
    k.Barrier: _check_barrier,
}
"""The rule of a statement, by its class.  The others have only the rules of all."""
