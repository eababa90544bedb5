"""Kernel -> Workload: what its threads execute and move, counted from the statements, without compiling them.

Walks the statements with trip counts.  A memory access is judged by the addresses of one warp: its index forms are
evaluated for 32 threads at once.  They say how many sectors of 32 bytes it touches, and over how many bytes it ranges.
What a statement computes, loads and stores is counted from what it says of itself; PRICES has the statements that cost
more.
"""

from __future__ import annotations

import math
from collections import Counter as Multiset
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from astitch.cost.instructions import NARROW, Mix, Unit, price_form, price_op
from astitch.cost.reductions import (
    SHARED_CYCLES,
    WARP,
    Exchanges,
    price_batch,
    price_combination,
    price_element,
)
from astitch.cost.registers import Registers
from astitch.cost.warp import Warp
from astitch.graph.index import Linear
from astitch.graph.ops.access import Guard
from astitch.kernel import kernel_ir as k
from astitch.kernel.statement import Body, Compute, Expression, Read, Write

SECTOR_BYTES = 32
LINE_BYTES = 128

MOST_SHORT = 8
"""Turns of a short loop."""

_F, _I, _S, _C, _D = Unit.FP32, Unit.INTEGER, Unit.SPECIAL, Unit.CONVERSION, Unit.FP64


@dataclass
class Access:
    """All executions of one load or store statement, over the whole kernel.

    level: number of global barriers before it.  bytes: asked for by threads.  sector_bytes: 32 for each sector that a
    warp touches.  sector_share: the part of those that the warp wants, or its block by and by.  lone_sectors: does that
    touch one in each line?
    wavefronts: cycles of the load/store unit.  start: the first byte.  range_bytes: extent of the addresses, so that no
    more than that is different memory.  task_bytes: different memory in one task of one block.
    backward: by a loop that runs from the end of the array.  in_task: not outside of the task loop, where every block
    executes it once.
    """

    array: str
    level: int
    section: int
    write: bool
    bytes: float
    sector_bytes: float
    sector_share: float
    lone_sectors: bool
    wavefronts: float
    start: float
    range_bytes: float
    task_bytes: float
    vector_bytes: int
    backward: bool = False
    in_task: bool = True

    @property
    def unique_bytes(self) -> float:
        return min(self.bytes, self.range_bytes)


def distinct_bytes(accesses: Iterable[Access]) -> float:
    """How much different memory accesses to one array touch: those that start apart touch parts of their own, as far as
    all of them fit their range."""
    of_start: dict[float, float] = {}
    low, high = math.inf, -math.inf
    for access in accesses:
        at = access.start // SECTOR_BYTES
        of_start[at] = max(of_start.get(at, 0.0), access.unique_bytes)
        low, high = min(low, access.start), max(high, access.start + access.range_bytes)
    return min(sum(of_start.values()), high - low) if of_start else 0.0


@dataclass
class LoopWork:
    """One task loop.  tasks: of all blocks, the first of them with block number `offset`.  mix: of a thread for one
    task (the average of the block's threads).  once_mix: before and after the loop, for each block.

    chain_cycles: of a warp through one task, were it alone and memory at no distance.  batches: how often it then waits
    for memory that it touches for the first time; rereads: for memory that this section touched before; near: for small
    arrays that every task reads.
    barriers: block barriers of one task.  meetings: of the `group_blocks` blocks that share a task's row;
    exchanged_bytes: of their parts, which a block reads from the L2 for one task.
    load_bytes: what a thread asks for before it waits, the most; kept_words: what its registers hold meanwhile.
    needed_registers: with which a thread can do without spilling, estimated.
    once_batches: waits for memory before the loop.
    prefetched: the next task's loads are under way while a task is worked on.
    """

    level: int
    tasks: int
    once: bool
    mix: Mix = field(default_factory=dict)
    once_mix: Mix = field(default_factory=dict)
    chain_cycles: float = 0.0
    once_cycles: float = 0.0
    batches: float = 0.0
    rereads: float = 0.0
    near: float = 0.0
    barriers: float = 0.0
    meetings: float = 0.0
    group_blocks: int = 0
    exchanged_bytes: float = 0.0
    load_bytes: float = 0.0
    kept_words: float = 0.0
    needed_registers: float = 0.0
    once_batches: float = 0.0
    offset: int = 0
    prefetched: bool = False

    def has_own_blocks(self, grid: int) -> bool:
        """Do only blocks with a task come by the loop?  grid: blocks of the kernel."""
        return self.once and self.offset + self.tasks <= grid


@dataclass(frozen=True)
class Workload:
    """loops in order; accesses to global memory.  registers: what a thread would use, needed_registers: with which it
    can do without spilling.  instructions: static size of the code.  The last three are estimates."""

    loops: tuple[LoopWork, ...]
    accesses: tuple[Access, ...]
    registers: int
    needed_registers: int
    instructions: int

    def total(self, unit: Unit, grid: int, block: int) -> float:
        """Instructions of all threads of the kernel."""
        return block * sum(
            loop.mix.get(unit, 0.0) * loop.tasks
            + loop.once_mix.get(unit, 0.0) * (loop.tasks if loop.has_own_blocks(grid) else grid)
            for loop in self.loops
        )


_CHAIN = {_F: 2.0, _I: 1.5, _S: 6.0, _C: 3.0, _D: 8.0}
"""Cycles that an instruction adds to a thread's own chain: 4 to 20 of latency, of which neighbours hide a part."""

BARRIER_CYCLES = 40.0
BASE_REGISTERS = 16
"""Addresses, indices and temporaries of a thread."""

HELD_SHARE = 0.25
"""Held values need this share of their own size besides: copies in other types, addresses, partial results."""

LOADED_WORDS, LEAST_LOADED_WORDS = 32, 8
"""Words of vectors that the compiler keeps in flight where registers suffice, and where they do not."""

TAGGED_BYTES, TURNS_TOGETHER, L2_CYCLES = 8, 4, 300.0
"""Bytes of a word that block groups exchange; parts that a thread asks for at once (cuda/collectives.cuh); cycles until
they come."""

LATE_SHARE = 0.25
"""The share of a meeting's cost that is left for each task of pipeline delay."""

NEAR_BYTES = 64 * 1024
"""Arrays of no more than this that all tasks read stay in the L1."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Where the walk stands within a task.  trips: executions by a warp of the block, on average; threads: by a thread.
    copies: in the code.  batches: how many waits a load here means.  together: loads of a thread before it waits.
    turns: of the loops that are not unrolled."""

    trips: float = 1.0
    threads: float = 1.0
    copies: float = 1.0
    batches: float = 1.0
    together: float = 1.0
    turns: float = 1.0
    in_lanes: bool = False

    def scaled(self, threads: float, warps: float) -> Frame:
        """The frame behind a condition: loads of a turn do not start before the condition of the turn is known."""
        return replace(
            self,
            trips=self.trips * warps,
            threads=self.threads * threads,
            batches=self.turns,
            together=self.together * self.batches / self.turns,
        )

    def repeated(self, count: int, copies: int) -> Frame:
        return replace(
            self,
            trips=self.trips * count,
            threads=self.threads * count,
            copies=self.copies * copies,
            batches=self.batches * math.ceil(count / copies),
            together=self.together * copies,
            turns=self.turns * (count if copies < count else 1),
        )

    def with_lanes(self) -> Frame:
        return replace(self, in_lanes=True)


@dataclass(frozen=True, slots=True)
class _Touched:
    """What a warp touches of an array in one access.  elements, sectors, lines: how many, lines by the first lane and
    all_lines by all.  new_sectors: that no other turn of a short loop touches, a part of those that several do.
    span, in_task: smallest and largest position, over the whole kernel and within a task."""

    elements: int
    sectors: int
    new_sectors: float
    lines: int
    all_lines: int
    span: tuple[int, int]
    in_task: tuple[int, int]
    falls: bool


def _find_touched(warp: Warp, position: Linear, size: int, width: int, in_lanes: bool) -> _Touched:
    address = np.broadcast_to(warp.evaluate(position), (warp.lanes, len(warp.values["tx"])))
    # Lanes of a scalar access touch the same sectors again, which the L1 still has.
    if not in_lanes:
        address = address[:1]
    # Some dozens of numbers, for which np.unique takes five times as long.
    at = set(address.ravel().tolist())
    sectors = len({element * size // SECTOR_BYTES for element in at})
    if width > 1:
        sectors = max(sectors, math.ceil(len(at) * size * width / SECTOR_BYTES))
    new_sectors: float = sectors
    if not in_lanes and warp.steps[1] > 1:
        turns = [
            set((at * size // SECTOR_BYTES).ravel().tolist()) for at in _first_lanes(warp, position)
        ]
        new_sectors = sectors * len(set().union(*turns)) / max(sum(map(len, turns)), 1)
    return _Touched(
        len(at),
        sectors,
        new_sectors,
        len({element * size // LINE_BYTES for element in address[0].tolist()}),
        len({element * size // LINE_BYTES for element in at}),
        warp.bounds(position, warp.spans),
        warp.bounds(position, warp.still),
        warp.falls(position),
    )


def _first_lanes(warp: Warp, position: Linear) -> Iterator[np.ndarray]:
    """The position of a vector's first lane, in each turn of the short loop."""
    shape = (warp.lanes, len(warp.values["tx"]))
    for found in warp.evaluate_steps(position):
        yield np.broadcast_to(found, shape)[:1]


class Counter:
    """What is counted of a kernel so far, and where the walk over its statements stands.

    common: statements that are counted with the section that comes next.
    meeting_delay: tasks between a block's publishing and its meeting.
    touched: arrays that the section has loaded before.
    waiting: arrays loaded since the last wait, with their batches; waiting_near: for what the L1 has.
    batches: elements of each.
    """

    def __init__(self, kernel: k.Kernel):
        self.kernel = kernel
        self.block = kernel.block
        self.slots = {s.name for s in kernel.slots}
        self.reducers = {r.number: r for r in kernel.reducers}
        self.warp = Warp(kernel.grid, kernel.block)
        self.registers = Registers()
        self.loops: list[LoopWork] = []
        self.accesses: list[Access] = []
        self.level = 0
        self.static = 0.0
        self.loop = LoopWork(0, 1, True)
        self.in_task = False
        self.common: tuple[k.Statement, ...] = ()
        self.meeting_delay = 0
        self.prefetching = False
        self.touched: set[str] = set()
        self.waiting_near = False
        self.waiting: dict[str, float] = {}
        self.asked = 0.0
        self.batches: dict[str, int] = {}

    # -- the walk

    def walk(self, body: Sequence[k.Statement], frame: Frame) -> None:
        for statement in body:
            PRICES.get(type(statement), price_described)(self, statement, frame)

    def walk_prefetched(self, body: Sequence[k.Statement], frame: Frame) -> None:
        """Statements for a later task or round, for which nobody waits here."""
        self.loop.prefetched = self.prefetching = True
        self.walk(body, frame)
        self.prefetching = False

    def walk_alternatives(
        self, cases: Iterable[tuple[Sequence[Guard], Sequence[k.Statement]]], frame: Frame
    ) -> None:
        """The first case whose guards hold; the last one gets the threads that the others left."""
        left = 1.0
        for guards, body in cases:
            threads, warps = self.warp.passing(guards) if guards else (left, left)
            left = max(left - threads, 0.0)
            self.add({_I: 2.0}, frame.trips, frame.copies)
            self.walk(body, frame.scaled(threads, warps))

    # -- counting

    def add(self, mix: Mapping[Unit, float], trips: float, copies: float = 1.0) -> None:
        """Instructions executed `trips` times by the average thread, `copies` of them in the code."""
        target = self.loop.mix if self.in_task else self.loop.once_mix
        cycles = 0.0
        for unit, count in mix.items():
            target[unit] = target.get(unit, 0.0) + count * trips
            cycles += _CHAIN.get(unit, 0.0) * count
            self.static += count * copies
        self.delay(cycles * trips)

    def delay(self, cycles: float) -> None:
        if self.prefetching:
            return
        if self.in_task:
            self.loop.chain_cycles += cycles
        else:
            self.loop.once_cycles += cycles

    def wait(self) -> None:
        """What was loaded before is needed from here on."""
        new = max((b for a, b in self.waiting.items() if a not in self.touched), default=0.0)
        old = max((b for a, b in self.waiting.items() if a in self.touched), default=0.0)
        self.loop.near += 1.0 if self.in_task and self.waiting_near else 0.0
        self.waiting_near = False
        if not self.in_task:
            self.loop.once_batches += max(new, old)
        elif new:
            self.loop.batches += new
        else:
            self.loop.rereads += old
        self.touched |= set(self.waiting)
        self.waiting = {}
        self.registers.turn += 1
        self.loop.load_bytes = max(self.loop.load_bytes, self.asked)
        self.asked = 0.0

    def access(
        self, array: str, position: Linear, size: int, width: int, write: bool, frame: Frame
    ) -> None:
        """A load or store of `width` elements of `size` bytes at a form."""
        if array in self.slots:
            self.add({Unit.SHARED: 1, _I: price_form(position, False)}, frame.trips, frame.copies)
            return
        scalar_lanes = self.warp.lanes if frame.in_lanes else 1
        self.add(
            {
                Unit.MEMORY: math.ceil(size * width / 16),
                _I: price_form(position, self.kernel.wide_index) / scalar_lanes,
            },
            frame.trips,
            frame.copies,
        )
        key = position, size, width, self.warp.lanes, frame.in_lanes
        touched = self.warp.keep(
            key, lambda: _find_touched(self.warp, position, size, width, frame.in_lanes)
        )
        elements, sectors = touched.elements, touched.sectors
        threads = self.block * (self.loop.tasks if self.in_task else self.kernel.grid)
        asked = frame.threads * threads * size * width
        requests = frame.trips * threads / WARP
        low, high = touched.span
        start, span = low * size, (high - low + width) * size
        low, high = touched.in_task
        task_range, wanted = (high - low + width) * size, frame.threads * self.block * size * width
        in_task = min(task_range, wanted)
        # Other accesses of the task soon want the rest of the sectors: the L1 and the L2 put them together.
        filled = task_range <= 2 * wanted
        moved = min(WARP, self.block) * size * width
        cycles = max(touched.lines, moved / LINE_BYTES) if elements > 1 else 1
        self.accesses.append(
            Access(
                array,
                self.level,
                len(self.loops),
                write,
                asked,
                touched.new_sectors * SECTOR_BYTES * requests / scalar_lanes,
                1.0 if filled else min(elements * size * width / (sectors * SECTOR_BYTES), 1.0),
                sectors == touched.all_lines > 1 and not filled,
                cycles * requests,
                start,
                span,
                in_task,
                size * width,
                touched.falls,
                self.in_task,
            )
        )
        if not write and not self.prefetching:
            if self.in_task and span <= NEAR_BYTES:
                self.waiting_near = True
            else:
                self.waiting[array] = max(self.waiting.get(array, 0.0), frame.batches)
                self.asked += frame.together * size * width

    def expression(self, expr: Expression) -> Mix:
        mix: Mix = {}
        stack: list[Expression] = [expr]
        while stack:
            item = stack.pop()
            if isinstance(item, k.Call):
                priced = price_op(item.op, item.dtype, item.operand_dtypes)
                if item.shared_divisor:  # the reciprocal is computed once for many elements
                    priced = {**priced, _F: 2.0, _I: priced.get(_I, 0.0) / 2, _S: 0.0}
                for unit, count in priced.items():
                    mix[unit] = mix.get(unit, 0.0) + count
                stack.extend(item.operands)
            elif isinstance(item, k.Lane | k.Element) and item.dtype in NARROW:
                mix[_I] = mix.get(_I, 0.0) + 0.5
            elif isinstance(item, k.Position):
                mix[_I] = mix.get(_I, 0.0) + price_form(item.form, False)
            if isinstance(item, k.Element):
                self.registers.use(item.array)
                if item.array in self.slots:
                    mix[Unit.SHARED] = mix.get(Unit.SHARED, 0.0) + 1
            elif isinstance(item, k.Field):
                self.registers.use(item.state)
        return mix

    def combine(self, number: int) -> Mix:
        """One combination of two states of a reducer."""
        return price_combination(self.reducers[number])

    def sync(self, frame: Frame, barriers: float) -> None:
        self.wait()
        if barriers:
            self.delay(BARRIER_CYCLES * barriers * frame.trips)
            if self.in_task:
                self.loop.barriers += barriers * frame.trips

    def add_quietly(self, mix: Mix, frame: Frame) -> None:
        """Instructions whose latency is counted apart."""
        target = self.loop.mix if self.in_task else self.loop.once_mix
        for unit, count in mix.items():
            target[unit] = target.get(unit, 0.0) + count * frame.trips
            self.static += count

    def result(self) -> Workload:
        return Workload(
            tuple(self.loops),
            tuple(self.accesses),
            int(BASE_REGISTERS + self.registers.peak_words(LOADED_WORDS)),
            int(max((loop.needed_registers for loop in self.loops), default=BASE_REGISTERS)),
            int(self.static),
        )


def price_described(counter: Counter, statement: k.Statement, frame: Frame) -> None:
    """What a statement says that it computes, loads and stores, and the statements inside."""
    assert isinstance(statement, k.Statement), f"no price for {type(statement).__name__}"
    for effect in statement.effects():
        match effect:
            case Compute(expr):
                counter.add(counter.expression(expr), frame.trips, frame.copies)
            case Read(array, dtype, position, width):
                assert dtype is not None
                counter.access(array, position, dtype.bytes, width, False, frame)
            case Write(array, dtype, position, width):
                counter.access(array, position, dtype.bytes, width, True, frame)
            case Body(body):
                counter.walk(body, frame)


# ---- elements


def _price_index(counter: Counter, index: k.Index, frame: Frame) -> None:
    counter.warp.define(index.name, (index.form,), falls=counter.warp.falls(index.form))
    price = price_form(index.form, counter.kernel.wide_index)
    counter.add({_I: price}, frame.trips, frame.copies)


def _price_choose_index(counter: Counter, choice: k.ChooseIndex, frame: Frame) -> None:
    forms = [form for _, form in choice.cases]
    counter.warp.define(choice.name, forms)
    price = sum(price_form(form, counter.kernel.wide_index) + 1 for form in forms)
    counter.add({_I: price}, frame.trips, frame.copies)


def _price_start(counter: Counter, start: k.Start, frame: Frame) -> None:
    counter.add({**counter.expression(start.expr), _I: 4}, frame.trips, frame.copies)


def _price_load(counter: Counter, load: k.Load, frame: Frame) -> None:
    price_described(counter, load, frame)
    counter.registers.load(max(load.dtype.bytes, 4) / 4 * min(frame.together, 8))


def _price_load_vector(counter: Counter, load: k.LoadVector, frame: Frame) -> None:
    if load.guards:
        frame = frame.scaled(*counter.warp.passing(load.guards))
    price_described(counter, load, frame)
    counter.registers.load(load.width * load.dtype.bytes / 4 * frame.together)


def _price_store_lane(counter: Counter, store: k.StoreLane, frame: Frame) -> None:
    mix = counter.expression(store.expr)
    if store.dtype in NARROW:
        mix[_I] = mix.get(_I, 0.0) + 0.5
    counter.add(mix, frame.trips, frame.copies)


def _price_keep(counter: Counter, keep: k.Keep, frame: Frame) -> None:
    size = keep.dtype.bytes if keep.raw else max(keep.dtype.bytes, 4)
    counter.registers.keep(keep.name, keep.count * size / 4)


def _price_keep_set(counter: Counter, keep: k.KeepSet, frame: Frame) -> None:
    mix = counter.expression(keep.expr)
    counter.registers.fill(keep.name)
    if keep.name in counter.slots:
        mix[Unit.SHARED] = mix.get(Unit.SHARED, 0.0) + 1
    counter.add(mix, frame.trips, frame.copies)


# ---- prefetches


def _price_prefetch_registers(
    counter: Counter, registers: k.PrefetchRegisters, frame: Frame
) -> None:
    words = registers.count * registers.width * registers.dtype.bytes / 4
    counter.registers.hold(registers.name, words, always=True)


def _price_advance(counter: Counter, step: k.Advance, frame: Frame) -> None:
    counter.add({_I: counter.registers.words[step.target]}, frame.trips, frame.copies)


def _price_keep_vector(counter: Counter, keep: k.KeepVector, frame: Frame) -> None:
    if keep.target in counter.slots:
        mix: Mix = {Unit.SHARED: keep.width * keep.dtype.bytes / 16}
    else:
        mix = {_I: counter.registers.words[keep.target]}
    counter.add(mix, frame.trips, frame.copies)


def _price_take_vector(counter: Counter, take: k.TakeVector, frame: Frame) -> None:
    if take.source in counter.slots:
        mix: Mix = {Unit.SHARED: take.width * take.dtype.bytes / 16}
        counter.add(mix, frame.trips, frame.copies)


def _price_copy_wait(counter: Counter, wait: k.CopyWait, frame: Frame) -> None:
    counter.add({_I: 1.0}, frame.trips)


def _price_prefetch(counter: Counter, prefetch: k.Prefetch, frame: Frame) -> None:
    if prefetch.first:  # waited for, but counted with the others
        counter.loop.once_batches += prefetch.distance == 0
    counter.walk_prefetched(() if prefetch.first else prefetch.body, frame)


def _price_fetch_round(counter: Counter, fetch: k.FetchRound, frame: Frame) -> None:
    counter.loop.once_batches += fetch.first
    counter.walk_prefetched(() if fetch.first else fetch.body, frame)


# ---- reductions


def _price_states(counter: Counter, states: k.States, frame: Frame) -> None:
    words = states.count * counter.reducers[states.reducer].state_bytes / 4
    counter.registers.hold(states.name, words, always=not counter.in_task)


def _price_accumulate(counter: Counter, step: k.Accumulate, frame: Frame) -> None:
    mix = counter.combine(step.reducer)
    for value in step.values:
        _join(mix, counter.expression(value))
    counter.add(mix, frame.trips, frame.copies)


def _price_product(counter: Counter, step: k.AccumulateProduct, frame: Frame) -> None:
    mix = counter.expression(step.a)
    _join(mix, counter.expression(step.b))
    _join(mix, {Unit.FP32: 1.0})
    counter.add(mix, frame.trips, frame.copies)


def _price_element(counter: Counter, step: k.AccumulateElement, frame: Frame) -> None:
    mix = counter.expression(step.value)
    _join(mix, price_element(counter.reducers[step.reducer]))
    counter.add(mix, frame.trips, frame.copies)


def _join(mix: Mix, other: Mapping[Unit, float]) -> None:
    for unit, count in other.items():
        mix[unit] = mix.get(unit, 0.0) + count


def _price_batch(counter: Counter, batch: k.Batch, frame: Frame) -> None:
    counter.batches[batch.name] = batch.width


def _price_accumulate_batch(counter: Counter, step: k.AccumulateBatch, frame: Frame) -> None:
    elements = counter.batches.get(step.batch, 1)
    mix = price_batch(counter.reducers[step.reducer], elements)
    counter.add(mix, frame.trips, frame.copies)


def _price_accumulate_state(counter: Counter, step: k.AccumulateState, frame: Frame) -> None:
    for array, dtype in zip(step.arrays, counter.reducers[step.reducer].fields, strict=True):
        counter.access(array, step.at, dtype.bytes, 1, False, frame)
    counter.add(counter.combine(step.reducer), frame.trips, frame.copies)


def _price_finish(counter: Counter, step: k.Finish, frame: Frame) -> None:
    mix = {unit: n * step.count for unit, n in counter.combine(step.reducer).items()}
    counter.add(mix, frame.trips, frame.copies)


def _price_reduction(counter: Counter, step: k.ReduceAcross, frame: Frame) -> None:
    """Butterflies within a warp, then an exchange through shared memory."""
    barriers = 0.0
    longest = 0.0
    by_slot = Multiset(part.slot for part in step.parts if part.slot)
    for part in step.parts:
        exchanges = Exchanges(counter.reducers[part.reducer])
        chain, waits = exchanges.of_part(step, part.count, by_slot.get(part.slot, 1))
        barriers = max(barriers, waits)
        longest = max(longest, chain)
        counter.add_quietly(exchanges.mix, frame)
    counter.sync(frame, barriers)
    counter.delay(longest * (1 + 0.2 * (len(step.parts) - 1)) * frame.trips)


def _price_scan(counter: Counter, step: k.ScanAcross, frame: Frame) -> None:
    """Each thread's own states one after the other, then the totals of its steps."""
    exchanges = Exchanges(counter.reducers[step.reducer])
    exchanges.add_combinations(2 * step.count)
    chain = (step.steps if step.columns else step.width) * exchanges.latency
    shared = k.count_scanned(step, counter.block) > 0
    if not step.columns:
        lanes = min(step.threads, WARP)
        chain += exchanges.butterfly(math.log2(lanes) + 1, step.steps)
        if shared:
            turns = math.ceil(step.steps * step.threads / WARP / WARP)
            chain += exchanges.butterfly(5, turns) * turns + 2 * SHARED_CYCLES
            exchanges.add(Unit.SHARED, 1.0 + turns)
            exchanges.add(Unit.SHUFFLE, exchanges.fields * step.steps)
    else:
        lines = max(step.threads * step.stride // max(step.stride, WARP), 1)
        if lines < step.threads:
            chain += exchanges.butterfly(math.log2(step.threads / lines) + 1, step.width)
        if shared:
            exchanges.add(Unit.SHARED, (1.0 + lines) * step.width)
            exchanges.add_combinations(lines * step.width)
            chain += 2 * SHARED_CYCLES + lines * exchanges.latency
    if step.handover is not None:
        parts = step.handover.area.parts
        counter.loop.meetings += frame.trips
        counter.loop.group_blocks = max(counter.loop.group_blocks, parts)
        turns = math.ceil(parts / WARP)
        exchanges.add(_I, 6.0 * turns)
        exchanges.add_combinations(turns)
        chain += exchanges.butterfly(10, 1) + 2 * SHARED_CYCLES
    counter.registers.use(step.state)
    if step.carry:
        counter.registers.carry(step.carry)
    counter.add_quietly(exchanges.mix, frame)
    counter.sync(frame, float(shared) + (step.handover is not None))
    counter.delay(chain * frame.trips)


def _price_sort(counter: Counter, step: k.SortAcross, frame: Frame) -> None:
    """Rounds of a bitonic network: within a thread, between the lanes of a warp, and through shared memory."""
    exchanges = Exchanges(counter.reducers[step.reducer])
    words = exchanges.fields * counter.reducers[step.reducer].state_bytes / 4
    count = step.padded
    bits = int(math.log2(count * step.threads))
    own, lanes = int(math.log2(step.width)), int(math.log2(step.threads))
    across = sum(min(max(level - own, 0), lanes) for level in range(1, bits + 1))
    rounds = bits * (bits + 1) // 2
    warps = max(lanes - 5, 0)
    shared = sum(max(min(level - own - 5, warps), 0) for level in range(1, bits + 1))
    exchanges.add_combinations(rounds * count)
    exchanges.add(_I, 2.0 * words * rounds * count)
    exchanges.add(Unit.SHUFFLE, words * (across - shared) * count)
    exchanges.add(Unit.SHARED, 2.0 * words * shared * count)
    chain = (rounds - shared) * exchanges.butterfly(1, count)
    chain += shared * (2 * SHARED_CYCLES + exchanges.latency) * math.ceil(count / k.SORTED_CHUNK)
    counter.registers.use(step.state)
    counter.add_quietly(exchanges.mix, frame)
    counter.sync(frame, 2.0 * shared * math.ceil(count / k.SORTED_CHUNK))
    counter.delay(chain * frame.trips)


# ---- block groups


def _price_publish(counter: Counter, step: k.Publish, frame: Frame) -> None:
    counter.add({_I: 3.0 * step.area.words}, frame.trips)


def _price_collect(counter: Counter, step: k.Collect, frame: Frame) -> None:
    area, loop = step.area, counter.loop
    # Columns are collected where they are needed, without a Meeting.
    loop.meetings = max(loop.meetings, LATE_SHARE**counter.meeting_delay)
    loop.group_blocks = max(loop.group_blocks, area.parts)
    turns = math.ceil(area.parts / step.members)
    loop.exchanged_bytes += frame.threads * counter.kernel.block * turns * area.words * TAGGED_BYTES
    counter.delay(L2_CYCLES * (math.ceil(turns / TURNS_TOGETHER) - 1) * frame.trips)
    mix = {unit: n * turns for unit, n in counter.combine(step.reducer).items()}
    mix[_I] = mix.get(_I, 0.0) + 3.0 * area.words * turns
    counter.add(mix, frame.trips, frame.copies)


def _price_meeting(counter: Counter, meeting: k.Meeting, frame: Frame) -> None:
    counter.sync(frame, 1)
    # Blocks that wait tasks after they arrived find the others there already, most of the time.
    met = counter.loop.meetings + frame.trips * LATE_SHARE**meeting.delay
    share = meeting.packed * 32 / counter.kernel.block
    counter.walk(meeting.body, frame.scaled(share, share))
    counter.loop.meetings, counter.loop.group_blocks = (
        met,
        max(counter.loop.group_blocks, meeting.blocks),
    )


# ---- nests


def _price_loop(counter: Counter, loop: k.Loop, frame: Frame) -> None:
    if loop.count == 0:
        return
    counter.warp.repeat(loop.variable, loop.count)
    copies = loop.count if loop.unroll else min(loop.count, loop.together)
    inner = frame.repeated(loop.count, copies)
    if loop.variable == "lane":
        outer_lanes, counter.warp.lanes = counter.warp.lanes, loop.count
        counter.walk(loop.body, inner.with_lanes())
        counter.warp.lanes = outer_lanes
        return
    if not loop.unroll and loop.count > 1:
        counter.add({_I: 2.0}, inner.trips / loop.together)
    before = counter.warp.steps, counter.warp.by_step
    counter.warp.enter_steps(*_short_loop(loop))
    # Vectors that lanes are taken from are known before the lane loop.
    counter.walk(loop.body, inner)
    counter.warp.steps, counter.warp.by_step = before


def _short_loop(loop: k.Loop) -> tuple[str, int]:
    """Its variable and turns, where few turns follow each other closely: what one touches the L1 has for the next."""
    short = 1 < loop.count <= MOST_SHORT and not any(
        isinstance(s, k.Loop) and s.variable != "lane" for s in loop.body
    )
    return (loop.variable, loop.count) if short else ("", 1)


def _price_rounds(counter: Counter, rounds: k.Rounds, frame: Frame) -> None:
    counter.warp.repeat(rounds.variable, rounds.count)
    counter.walk(rounds.body, frame.repeated(rounds.count, 1))


def _price_if(counter: Counter, statement: k.If, frame: Frame) -> None:
    threads, warps = counter.warp.passing(statement.guards)
    counter.add({_I: 1.0 + len(statement.guards)}, frame.trips, frame.copies)
    counter.walk(statement.body, frame.scaled(threads, warps))


def _price_switch(counter: Counter, switch: k.Switch, frame: Frame) -> None:
    counter.walk_alternatives(((case.guards, case.body) for case in switch.cases), frame)


def _price_choose(counter: Counter, choice: k.Choose, frame: Frame) -> None:
    counter.walk_alternatives(((b.guards, b.body) for b in choice.branches), frame)


def _price_barrier(counter: Counter, barrier: k.Barrier, frame: Frame) -> None:
    if barrier.level == "global":
        counter.level += 1
    else:
        counter.sync(frame, 1)


def _price_section(counter: Counter, section: k.Section, frame: Frame) -> None:
    registers = counter.registers
    registers.forget()
    counter.warp.set_threads(section)
    counter.touched = set()
    first_turn = registers.turn
    counter.loop = LoopWork(counter.level, 1, True, offset=section.offset)
    counter.in_task = False
    counter.walk((*counter.common, *section.body), Frame())
    counter.common = ()
    counter.wait()
    counter.loop.kept_words = registers.kept_words(first_turn)
    counter.loop.needed_registers = (
        BASE_REGISTERS
        + registers.peak_words(LEAST_LOADED_WORDS, first_turn)
        + HELD_SHARE * counter.loop.kept_words
    )
    counter.loops.append(counter.loop)


def _price_common(counter: Counter, common: k.Common, frame: Frame) -> None:
    counter.common = common.body


def _price_task_loop(counter: Counter, tasks: k.TaskLoop, frame: Frame) -> None:
    counter.loop.tasks, counter.loop.once = tasks.tasks, tasks.once
    counter.warp.set_tasks(tasks.tasks)
    counter.wait()
    counter.in_task = True
    counter.walk(tasks.body, Frame())
    counter.wait()
    counter.in_task = False


def _price_current(counter: Counter, current: k.Current, frame: Frame) -> None:
    counter.add({_I: 2.0}, frame.trips)
    counter.walk(current.body, frame)


def _price_previous(counter: Counter, previous: k.Previous, frame: Frame) -> None:
    counter.add({_I: 2.0}, frame.trips)
    counter.meeting_delay = previous.delay
    counter.walk(previous.body, frame)
    counter.meeting_delay = 0


PRICES: dict[type[k.Statement], Callable[[Counter, Any, Frame], None]] = {
    k.Index: _price_index,
    k.ChooseIndex: _price_choose_index,
    k.Start: _price_start,
    k.Load: _price_load,
    k.LoadVector: _price_load_vector,
    k.StoreLane: _price_store_lane,
    k.Keep: _price_keep,
    k.KeepSet: _price_keep_set,
    k.PrefetchRegisters: _price_prefetch_registers,
    k.Advance: _price_advance,
    k.KeepVector: _price_keep_vector,
    k.TakeVector: _price_take_vector,
    k.CopyWait: _price_copy_wait,
    k.Prefetch: _price_prefetch,
    k.FetchRound: _price_fetch_round,
    k.States: _price_states,
    k.Accumulate: _price_accumulate,
    k.AccumulateProduct: _price_product,
    k.AccumulateElement: _price_element,
    k.Batch: _price_batch,
    k.AccumulateBatch: _price_accumulate_batch,
    k.AccumulateState: _price_accumulate_state,
    k.ReduceAcross: _price_reduction,
    k.ScanAcross: _price_scan,
    k.SortAcross: _price_sort,
    k.Finish: _price_finish,
    k.Publish: _price_publish,
    k.Collect: _price_collect,
    k.Meeting: _price_meeting,
    k.Loop: _price_loop,
    k.Rounds: _price_rounds,
    k.If: _price_if,
    k.Switch: _price_switch,
    k.Choose: _price_choose,
    k.Barrier: _price_barrier,
    k.Section: _price_section,
    k.Common: _price_common,
    k.TaskLoop: _price_task_loop,
    k.Current: _price_current,
    k.Previous: _price_previous,
}
"""The price of a statement, by its class.  The others cost what they say of themselves."""


def count_workload(kernel: k.Kernel) -> Workload:
    """What the kernel's threads execute and move."""
    counter = Counter(kernel)
    counter.walk(kernel.body, Frame())
    return counter.result()
