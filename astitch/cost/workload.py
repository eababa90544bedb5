"""Kernel -> Workload: what its threads execute and move, counted from the statements, without compiling them.

Walks the statements with trip counts.  A memory access is judged by the addresses of one warp, its index forms being
evaluated for 32 threads at once: how many sectors of 32 bytes it touches, and over how many bytes it ranges.
"""

from __future__ import annotations

import enum
import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from astitch.graph.index import Linear, Quotient, Remainder, Symbol, Term
from astitch.graph.ir import DType
from astitch.graph.joint_regions import MOMENTS
from astitch.graph.ops import OPS, Cost, Kind
from astitch.graph.propagation import Guard, Within
from astitch.kernel import kernel_ir as k

SECTOR_BYTES = 32
LINE_BYTES = 128
WARP = 32


@functools.lru_cache(maxsize=256)
def _list_threads(count: int, cols: int, rows: int) -> Mapping[str, np.ndarray]:
    """By the names of their coordinates, where the first `count` threads of a block stand."""
    thread = np.arange(count)
    places = {
        "thread": thread,
        "tx": thread % cols,
        "ty": thread // cols % rows,
        "to": thread // (rows * cols),
    }
    for place in places.values():
        place.flags.writeable = False
    return places


class Unit(enum.Enum):
    """What executes an instruction."""

    FP32 = "fp32"
    INTEGER = "integer"
    SPECIAL = "special function"
    CONVERSION = "conversion"
    FP64 = "fp64"
    SHUFFLE = "shuffle"
    SHARED = "shared memory"
    MEMORY = "global memory"


Mix = dict[Unit, float]
"""Instructions of one thread by unit."""

_F, _I, _S, _C, _D = Unit.FP32, Unit.INTEGER, Unit.SPECIAL, Unit.CONVERSION, Unit.FP64

# Instructions of one f32 op, read off the SASS of cuda/hlo_math.cuh for sm_90 (--fmad=false), rounded.
_F32_COSTS: Mapping[str, Mix] = {
    "divide": {_F: 6, _I: 2, _S: 1},
    "remainder": {_F: 20, _I: 20, _S: 1},
    "power": {_F: 45, _I: 15, _S: 3},
    "atan2": {_F: 25, _I: 6, _S: 1},
    "exponential": {_F: 6, _I: 2, _S: 1},
    "exponential-minus-one": {_F: 18, _I: 4, _S: 1},
    "log": {_F: 18, _I: 5},
    "log-plus-one": {_F: 20, _I: 6},
    "logistic": {_F: 14, _I: 4, _S: 2},
    "tanh": {_F: 18, _I: 4, _S: 2},
    "sqrt": {_F: 6, _I: 4, _S: 1},
    "rsqrt": {_F: 3, _I: 1, _S: 1},
    "cbrt": {_F: 10, _I: 4, _S: 2},
    "erf": {_F: 22, _I: 4, _S: 1},
    "sine": {_F: 20, _I: 12},
    "cosine": {_F: 20, _I: 12},
    "tan": {_F: 26, _I: 12, _S: 1},
    "sign": {_F: 1, _I: 3},
    "clamp": {_F: 2},
}
# Where the result is rounded to f16 or bf16 (narrow_exp ... in hlo_math.cuh).
_NARROW_COSTS: Mapping[str, Mix] = {
    "divide": {_F: 1, _S: 1},
    "exponential": {_F: 1, _S: 1},
    "log": {_F: 1, _S: 1},
    "logistic": {_F: 2, _S: 2},
    "tanh": {_F: 2, _S: 1},
}
_FREE = frozenset({"copy", "bitcast-convert"})
_NARROW = (DType.F16, DType.BF16)


def price_op(op: str, dtype: DType, operand_dtypes: Sequence[DType]) -> Mix:
    """Instructions of one element-wise op that gives `dtype`, its rounding included."""
    if op in _FREE:
        return {}
    source = operand_dtypes[0] if operand_dtypes else dtype
    if op == "convert":
        if DType.F64 in (dtype, source):
            return {_C: 1, _D: 1}
        if source in _NARROW and dtype not in _NARROW:
            return {_I: 1}
        return {_C: 1, _I: 1} if dtype is not source else {}
    if op in ("compare", "select"):
        return {_I: 2 if source.bytes == 8 else 1}
    if dtype is DType.F64:
        return {_D: 12.0 if OPS[op].cost is Cost.HEAVY else 1.0}
    if not (dtype.is_integer or dtype is DType.PRED):
        narrow = dtype in _NARROW
        known = (_NARROW_COSTS.get(op) if narrow else None) or _F32_COSTS.get(op)
        mix = dict(known or {_F: 20.0 if OPS[op].cost is Cost.HEAVY else 1.0})
        if dtype.bytes < 4:
            mix[_C] = mix.get(_C, 0) + 1
            mix[_I] = mix.get(_I, 0) + 1
        return mix
    heavy = {"divide": 20, "remainder": 20, "power": 40, "multiply": 2, "mulhi": 2}.get(op, 1)
    return {_I: float(heavy * (3 if dtype.bytes == 8 else 1))}


def price_form(form: Linear, wide: bool) -> float:
    """Integer instructions of an index form; divisors are constants."""
    total = 0.0
    for term, coefficient in form.terms:
        total += 1 if coefficient != 1 or len(form.terms) > 1 else 0.5
        if not isinstance(term, Symbol):
            power = term.divisor & (term.divisor - 1) == 0
            total += (2 if power else 5) + price_form(term.dividend, wide)
    return total * (2 if wide else 1)


@dataclass
class Access:
    """All executions of one load or store statement, over the whole kernel.

    level: number of global barriers before it.  bytes: asked for by threads.  sector_bytes: 32 for each sector that a
    warp touches.  wavefronts: cycles of the load/store unit.  range_bytes: extent of the addresses, so that no more
    than that is different memory.  task_bytes: different memory in one task of one block.
    backward: by a loop that runs from the end of the array.  in_task: not outside of the task loop, where every block
    executes it once.
    """

    array: str
    level: int
    section: int
    write: bool
    bytes: float
    sector_bytes: float
    wavefronts: float
    range_bytes: float
    task_bytes: float
    vector_bytes: int
    backward: bool = False
    in_task: bool = True

    @property
    def unique_bytes(self) -> float:
        return min(self.bytes, self.range_bytes)


@dataclass
class LoopWork:
    """One task loop.  tasks: of all blocks, the first of them with block number `offset`.  mix: of a thread for one
    task (the average of the block's threads).  once_mix: before and after the loop, for each block.

    chain_cycles: of a warp through one task, were it alone and memory at no distance.  batches: how often it then waits
    for memory that it touches for the first time; rereads: for memory that this section touched before; near: for small
    arrays that every task reads.
    barriers: block barriers of one task.  meetings: of the `team` blocks that share a task's row; exchanged_bytes: of
    their parts, which a block reads from the L2 for one task.
    load_bytes: what a thread asks for before it waits, the most; kept_words: what its registers hold meanwhile.
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
    team: int = 0
    exchanged_bytes: float = 0.0
    load_bytes: float = 0.0
    kept_words: float = 0.0
    once_batches: float = 0.0
    offset: int = 0
    prefetched: bool = False


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
            loop.mix.get(unit, 0.0) * loop.tasks + loop.once_mix.get(unit, 0.0) * grid
            for loop in self.loops
        )


_LATENCY = {_F: 4.0, _I: 4.0, _S: 20.0, _C: 8.0, _D: 16.0}
"""Cycles from an instruction to one that needs its result."""

CHAINED_SHARE = 0.5
"""Of the instructions of a combination of two states, those that wait for each other."""

_MOMENTS: Mapping[str, Mix] = {
    "combine": {_F: 36.0, _I: 3.0, _S: 3.0},
    "element": {_F: 9.0, _I: 2.0, _S: 1.0},
    "batch": {_F: 21.0, _I: 3.0, _S: 1.0},
    "each": {_F: 3.0},
}
"""What joins two states of MOMENTS, adds an element, a batch, and each element of a batch (cuda/collectives.cuh)."""

_CHAIN = {_F: 2.0, _I: 1.5, _S: 6.0, _C: 3.0, _D: 8.0}
"""Cycles that an instruction adds to a thread's own chain: 4 to 20 of latency, of which neighbours hide a part."""

SHUFFLE_CYCLES, BARRIER_CYCLES, SHARED_CYCLES = 26.0, 40.0, 30.0
BASE_REGISTERS = 16
"""Addresses, indices and temporaries of a thread."""

HELD_SHARE = 0.25
"""What values that are held need beside themselves: copies in other types, addresses, partial results."""

LOADED_WORDS, LEAST_LOADED_WORDS = 32, 8
"""Words of vectors that the compiler keeps in flight where registers suffice, and where they do not."""

TAGGED_BYTES, TURNS_TOGETHER, L2_CYCLES = 8, 4, 300.0
"""Of a word that teams exchange; parts that a thread asks for at once (cuda/collectives.cuh), and until they come."""

LATE_SHARE = 0.25
"""Of a meeting's cost: what waiting costs blocks that arrived a task earlier, and the share of that a task before."""

NEAR_BYTES = 64 * 1024
"""Arrays of no more than this that all tasks read stay in the L1."""

ALWAYS = 1 << 30


def _of_type(mix: Mix, reducer: k.Reducer) -> Mix:
    """Instructions on f32 as those on the reducer's type."""
    if reducer.fields[0] is not DType.F64:
        return mix
    return {_D: mix[_F] + 12 * mix[_S], _I: 2 * mix[_I]}


class _Exchanges:
    """What one reduction across threads executes.  mix: of a thread, filled by of_part."""

    def __init__(self, reducer: k.Reducer, combine: Mix) -> None:
        self.joint = bool(reducer.joint)
        self.combine = combine
        self.fields = math.ceil(reducer.state_bytes / 4)
        self.mix: Mix = {}

    def add(self, unit: Unit, count: float) -> None:
        self.mix[unit] = self.mix.get(unit, 0.0) + count

    def add_combinations(self, count: float) -> None:
        for unit, instructions in self.combine.items():
            self.add(unit, instructions * count)

    @property
    def latency(self) -> float:
        """Cycles from one combination to the next."""
        found = CHAINED_SHARE * sum(_LATENCY[unit] * n for unit, n in self.combine.items())
        return max(found, _LATENCY[_F])

    def butterfly(self, rounds: float, count: float) -> float:
        """Cycles of `rounds` exchanges of `count` states each.  Joint states take two passes of plain sums or extremes,
        and one combination between them."""
        self.add(Unit.SHUFFLE, self.fields * rounds * count)
        self.add(_I, 2 * rounds * count)
        if not self.joint:
            self.add_combinations(rounds * count)
            return rounds * (SHUFFLE_CYCLES + self.latency)
        self.add(_F, self.fields * rounds * count)
        self.add_combinations(count)
        return 2 * rounds * (SHUFFLE_CYCLES + _LATENCY[_F]) + self.latency

    def of_part(self, step: k.ReduceAcross, count: int, together: int) -> tuple[float, float]:
        """(cycles, block barriers) of `count` states.  together: parts that share a slot halve the exchanges."""
        rounds = max(step.threads - 1, 0).bit_length()
        if step.stride != 1:
            return self.of_strided(step, count, rounds)
        if step.threads <= WARP:
            return self.butterfly(rounds, count), 0
        warps = step.threads // WARP
        inner = 5.0
        if together > 1:
            inner = (together - 1 + math.log2(WARP / together)) / together
        chain = self.butterfly(inner, count) * together + 2 * SHARED_CYCLES
        if together > 1:
            turns = math.ceil(together * warps / WARP)
            chain += self.butterfly(rounds - 5, turns / together) * turns + SHUFFLE_CYCLES
            self.add(Unit.SHUFFLE, self.fields)
            self.add(Unit.SHARED, 1.0 + turns / together)
        elif step.butterfly:
            chain += self.butterfly(rounds - 5, count)
            self.add(Unit.SHARED, 2.0 * count)
        else:
            self.add(Unit.SHARED, (1.0 + warps) * count)
            self.add_combinations((warps - 1) * count)
            chain += warps * self.latency
        return chain, 1

    def of_strided(self, step: k.ReduceAcross, count: int, rounds: int) -> tuple[float, float]:
        """Threads that own the same columns: through shared memory unless they are of one warp."""
        if step.threads * step.stride <= WARP:
            return self.butterfly(rounds, count), 0
        turns = math.ceil(count / k.STRIDED_CHUNK)
        if step.butterfly:
            chain = self.butterfly(rounds, count)
            self.add(Unit.SHARED, (3.0 + 1.0 / step.threads) * count)
            return turns * (4 * SHARED_CYCLES + chain), 4 * turns - 1
        self.add(Unit.SHARED, (1.0 + step.threads) * count)
        self.add_combinations((step.threads - 1) * count)
        return turns * (2 * SHARED_CYCLES + step.threads * (self.latency + 2)), 2 * turns - 1


class _Counter:
    def __init__(self, kernel: k.Kernel):
        self.kernel = kernel
        self.block = kernel.block
        self.dtypes = {p.name: p.dtype for p in kernel.parameters}
        self.slots = {s.name for s in kernel.slots}
        self.reducers = {r.number: r for r in kernel.reducers}
        self.loops: list[LoopWork] = []
        self.accesses: list[Access] = []
        self.level = 0
        self.static = 0.0
        self.values: dict[str, np.ndarray] = {}
        self.spans: dict[str, tuple[int, int]] = {}
        self.still: dict[str, tuple[int, int]] = {}  # within one task
        self.threads: Mapping[str, np.ndarray] = {}
        self.loop = LoopWork(0, 1, True)
        self.in_task = False
        self.common: tuple[k.Statement, ...] = ()  # counted with the section that comes next
        self.lag = 0  # tasks that blocks are behind what they published
        self.prefetching = False
        self.touched: set[str] = set()
        self.waiting_near = False  # for what the L1 has
        self.waiting: dict[str, float] = {}  # arrays loaded since the last wait -> batches
        self.asked = 0.0
        self.words: dict[str, float] = {}  # of kept arrays and states
        self.born: dict[str, int] = {}
        self.dies: dict[str, int] = {}
        self.loaded: dict[int, float] = {}  # words of vectors by turn
        self.turn = 0  # counts the waits
        self.lanes = 1
        self.batches: dict[str, int] = {}  # elements of each
        self.falling: set[str] = set()  # indices that fall as loops run
        self.turning: set[str] = set()  # variables of loops

    # -- where a warp stands -----------------------------------------------------------------------------------------

    def set_threads(self, section: k.Section) -> None:
        cols, rows = section.col_threads, section.row_threads
        self.values = {**_list_threads(min(WARP, self.block), cols, rows)}
        self.spans = {
            "thread": (0, self.block - 1),
            "tx": (0, cols - 1),
            "ty": (0, rows - 1),
            "to": (0, section.outer_threads - 1),
            "first": (0, self.kernel.grid - 1),
        }
        self.still = {**self.spans, "first": (0, 0)}
        self.threads = _list_threads(self.block, cols, rows)

    def evaluate(self, form: Linear) -> np.ndarray:
        """The form's value for each lane of a vector and each thread of a warp."""
        total: np.ndarray = np.asarray(form.constant)
        for term, coefficient in form.terms:
            total = np.asarray(total + coefficient * self.evaluate_term(term))
        return total

    def evaluate_term(self, term: Term) -> np.ndarray:
        match term:
            case Quotient(dividend, divisor):
                return np.asarray(self.evaluate(dividend) // divisor)
            case Remainder(dividend, divisor):
                return np.asarray(self.evaluate(dividend) % divisor)
        if term.name == "lane":
            return np.arange(self.lanes)[:, None]
        if term.name.startswith("clamped("):
            inner = self.values.get(
                term.name.removeprefix("clamped(").partition(",")[0], np.asarray(0)
            )
            return np.asarray(np.minimum(inner, term.extent - 1))
        return self.values.get(term.name, np.asarray(0))

    def falls(self, form: Linear) -> bool:
        """Does the form's value fall as the loops around it run?"""
        for term, coefficient in form.terms:
            if isinstance(term, Symbol):
                if term.name in self.falling or (term.name in self.turning and coefficient < 0):
                    return True
            elif self.falls(term.dividend):
                return True
        return False

    def bounds(self, form: Linear, spans: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
        """Smallest and largest value of the form, names being within `spans`."""
        low = high = form.constant
        for term, coefficient in form.terms:
            match term:
                case Quotient(dividend, divisor):
                    a, b = self.bounds(dividend, spans)
                    a, b = a // divisor, b // divisor
                case Remainder(dividend, divisor):
                    a, b = self.bounds(dividend, spans)
                    a, b = (a, b) if a >= 0 and b < divisor else (0, divisor - 1)
                case Symbol(name, extent):
                    most = (self.lanes if name == "lane" else extent) - 1
                    a, b = spans.get(name, (0, most))
                    b = min(b, most)
            low += min(a * coefficient, b * coefficient)
            high += max(a * coefficient, b * coefficient)
        return low, max(high, low)

    def passing(self, guards: Sequence[Guard]) -> tuple[float, float]:
        """(share of threads, share of warps) for which the guards hold."""
        threads, warps = 1.0, 1.0
        mask: np.ndarray | None = None
        for guard in guards:
            if not isinstance(guard, Within):
                threads /= guard.by
                continue
            names = {t.name for t, _ in guard.form.terms if isinstance(t, Symbol)}
            if names and names <= set(self.threads):
                position = np.full(self.block, guard.form.constant)
                for term, c in guard.form.terms:
                    if isinstance(term, Symbol):
                        position += c * self.threads[term.name]
                inside = (position >= guard.low) & (position < guard.high)
                mask = inside if mask is None else mask & inside
                continue
            low, high = self.bounds(guard.form, self.spans)
            share = (min(high + 1, guard.high) - max(low, guard.low)) / (high - low + 1)
            share = min(max(share, 0.0), 1.0)
            threads, warps = threads * share, warps * share
        if mask is None:
            return threads, warps
        padded = np.zeros(-(-self.block // WARP) * WARP, bool)
        padded[: self.block] = mask
        return threads * float(mask.mean()), warps * float(padded.reshape(-1, WARP).any(1).mean())

    # -- counting ----------------------------------------------------------------------------------------------------

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
        self.turn += 1
        self.loop.load_bytes = max(self.loop.load_bytes, self.asked)
        self.asked = 0.0

    def access(
        self, array: str, position: Linear, size: int, width: int, write: bool, frame: _Frame
    ) -> None:
        """A load or store of `width` elements of `size` bytes at a form."""
        if array in self.slots:
            self.add({Unit.SHARED: 1, _I: price_form(position, False)}, frame.trips, frame.copies)
            return
        scalar_lanes = self.lanes if frame.in_lanes else 1
        self.add(
            {
                Unit.MEMORY: math.ceil(size * width / 16),
                _I: price_form(position, self.kernel.wide_index) / scalar_lanes,
            },
            frame.trips,
            frame.copies,
        )
        # Lanes of a scalar access touch the same sectors again, which the L1 still has.
        address = np.broadcast_to(self.evaluate(position), (self.lanes, len(self.values["tx"])))
        if not frame.in_lanes:
            address = address[:1]
        # Some dozens of numbers, for which np.unique takes five times as long.
        at = set(address.ravel().tolist())
        sectors = len({element * size // SECTOR_BYTES for element in at})
        if width > 1:
            sectors = max(sectors, math.ceil(len(at) * size * width / SECTOR_BYTES))
        lines = len({element * size // LINE_BYTES for element in address[0].tolist()})
        threads = self.block * (self.loop.tasks if self.in_task else self.kernel.grid)
        asked = frame.threads * threads * size * width
        requests = frame.trips * threads / WARP
        low, high = self.bounds(position, self.spans)
        span = (high - low + width) * size
        low, high = self.bounds(position, self.still)
        in_task = min((high - low + width) * size, frame.threads * self.block * size * width)
        cycles = max(lines, min(WARP, self.block) * size * width / LINE_BYTES) if len(at) > 1 else 1
        self.accesses.append(
            Access(
                array,
                self.level,
                len(self.loops),
                write,
                asked,
                sectors * SECTOR_BYTES * requests / scalar_lanes,
                cycles * requests,
                span,
                in_task,
                size * width,
                self.falls(position),
                self.in_task,
            )
        )
        if not write and not self.prefetching:
            if self.in_task and span <= NEAR_BYTES:
                self.waiting_near = True
            else:
                self.waiting[array] = max(self.waiting.get(array, 0.0), frame.batches)
                self.asked += frame.together * size * width

    def expression(self, expr: k.Expr) -> Mix:
        mix: Mix = {}
        stack: list[k.Expr] = [expr]
        while stack:
            item = stack.pop()
            if isinstance(item, k.Call):
                priced = price_op(item.op, item.dtype, item.operand_dtypes)
                if item.shared_divisor:  # the reciprocal is computed once for many elements
                    priced = {**priced, _F: 2.0, _I: priced.get(_I, 0.0) / 2, _S: 0.0}
                for unit, count in priced.items():
                    mix[unit] = mix.get(unit, 0.0) + count
                stack.extend(item.operands)
            elif isinstance(item, k.Lane | k.Element) and item.dtype in _NARROW:
                mix[_I] = mix.get(_I, 0.0) + 0.5
            elif isinstance(item, k.Position):
                mix[_I] = mix.get(_I, 0.0) + price_form(item.form, False)
            if isinstance(item, k.Element):
                self.dies[item.array] = self.turn
                if item.array in self.slots:
                    mix[Unit.SHARED] = mix.get(Unit.SHARED, 0.0) + 1
            elif isinstance(item, k.Field):
                self.dies[item.state] = self.turn
        return mix

    def combine(self, number: int) -> Mix:
        """One combination of two states."""
        reducer = self.reducers[number]
        if reducer.joint == MOMENTS:
            return _of_type(_MOMENTS["combine"], reducer)
        mix: Mix = {}
        for node in reducer.region:
            if OPS[node.op].kind is Kind.ELEMENTWISE:
                dtype = reducer.fields[0] if node.dtype in _NARROW else node.dtype
                for unit, count in price_op(node.op, dtype, [dtype]).items():
                    mix[unit] = mix.get(unit, 0.0) + count
        return mix

    def add_element(self, number: int) -> Mix:
        """One element to a joint state."""
        reducer = self.reducers[number]
        if reducer.joint == MOMENTS:
            return _of_type(_MOMENTS["element"], reducer)
        return {unit: n / 2 for unit, n in self.combine(number).items()}

    def add_batch(self, number: int, elements: int) -> Mix:
        """A batch to a joint state: one combination of states, and a part of one for each element."""
        reducer = self.reducers[number]
        if reducer.joint == MOMENTS:
            mix = dict(_MOMENTS["batch"])
            for unit, n in _MOMENTS["each"].items():
                mix[unit] += n * elements
            return _of_type(mix, reducer)
        share = 1 + elements / 4
        return {unit: n * share for unit, n in self.combine(number).items()}

    def walk(self, body: Sequence[k.Statement], frame: _Frame) -> None:
        for statement in body:
            self.statement(statement, frame)

    def statement(self, statement: k.Statement, frame: _Frame) -> None:
        match statement:
            case k.Index(name, form):
                self.values[name] = self.evaluate(form)
                self.spans[name] = self.bounds(form, self.spans)
                self.still[name] = self.bounds(form, self.still)
                if self.falls(form):
                    self.falling.add(name)
                self.add({_I: price_form(form, self.kernel.wide_index)}, frame.trips, frame.copies)
            case k.ChooseIndex(name, cases):
                forms = [form for _, form in cases]
                self.values[name] = self.evaluate(forms[0])  # the others' are much alike
                for known in (self.spans, self.still):
                    lows, highs = zip(*(self.bounds(form, known) for form in forms), strict=True)
                    known[name] = (min(lows), max(highs))
                price = sum(price_form(form, self.kernel.wide_index) + 1 for form in forms)
                self.add({_I: price}, frame.trips, frame.copies)
            case k.Start(_, expr, _, _):
                self.add({**self.expression(expr), _I: 4}, frame.trips, frame.copies)
            case k.Value(_, dtype, expr) | k.KeepSet(_, _, dtype, expr, _):
                mix = self.expression(expr)
                if isinstance(statement, k.KeepSet):
                    self.born.setdefault(statement.name, self.turn)
                    if statement.name in self.slots:
                        mix[Unit.SHARED] = mix.get(Unit.SHARED, 0.0) + 1
                self.add(mix, frame.trips, frame.copies)
            case k.Load(_, dtype, array, position):
                self.access(array, position, dtype.bytes, 1, False, frame)
                self.load(max(dtype.bytes, 4) / 4 * min(frame.together, 8))
            case k.LoadVector(_, dtype, array, position, width, guards):
                if guards:
                    frame = frame.scaled(*self.passing(guards))
                self.access(array, position, dtype.bytes, width, False, frame)
                self.load(width * dtype.bytes / 4 * frame.together)
            case k.StoreLane(_, dtype, expr):
                mix = self.expression(expr)
                if dtype in _NARROW:
                    mix[_I] = mix.get(_I, 0.0) + 0.5
                self.add(mix, frame.trips, frame.copies)
            case k.StoreVector(array, position, _, dtype, width):
                self.access(array, position, dtype.bytes, width, True, frame)
            case k.Store(array, position, dtype, expr):
                self.add(self.expression(expr), frame.trips, frame.copies)
                self.access(array, position, dtype.bytes, 1, True, frame)
            case k.Keep(name, dtype, count, raw):
                self.words[name] = count * (dtype.bytes if raw else max(dtype.bytes, 4)) / 4
            case k.Ahead(name, dtype, width, count):
                self.words[name] = count * width * dtype.bytes / 4
                self.born[name], self.dies[name] = self.turn, ALWAYS
            case k.Advance(target, _, _):
                self.add({_I: self.words[target]}, frame.trips, frame.copies)
            case k.KeepVector(target, _, dtype, _, width):
                if target in self.slots:
                    self.add({Unit.SHARED: width * dtype.bytes / 16}, frame.trips, frame.copies)
                else:
                    self.add({_I: self.words[target]}, frame.trips, frame.copies)
            case k.CopyWait():
                self.add({_I: 1.0}, frame.trips)
            case k.Prefetch(first, _, inner, ahead):
                self.loop.prefetched = True
                self.prefetching = True
                if first:  # waited for, but counted with the others
                    self.loop.once_batches += ahead == 0
                else:
                    self.walk(inner, frame)
                self.prefetching = False
            case k.Fetch(_, _, dtype, array, position, width):
                self.access(array, position, dtype.bytes, width, False, frame)
            case k.TakeVector(_, dtype, source, _, width):
                if source in self.slots:
                    self.add({Unit.SHARED: width * dtype.bytes / 16}, frame.trips, frame.copies)
            case k.States(name, reducer, count):
                self.words[name] = count * self.reducers[reducer].state_bytes / 4
                self.born[name] = self.turn
                if not self.in_task:
                    self.dies[name] = ALWAYS
            case k.Accumulate(_, _, reducer, values):
                mix = self.combine(reducer)
                for value in values:
                    for unit, n in self.expression(value).items():
                        mix[unit] = mix.get(unit, 0.0) + n
                self.add(mix, frame.trips, frame.copies)
            case k.AccumulateProduct(_, _, a, b):
                mix = self.expression(a)
                for unit, n in (*self.expression(b).items(), (Unit.FP32, 1.0)):
                    mix[unit] = mix.get(unit, 0.0) + n
                self.add(mix, frame.trips, frame.copies)
            case k.AccumulateElement(_, _, reducer, value):
                mix = self.expression(value)
                for unit, n in self.add_element(reducer).items():
                    mix[unit] = mix.get(unit, 0.0) + n
                self.add(mix, frame.trips, frame.copies)
            case k.Batch(name, _, width):
                self.batches[name] = width
            case k.BatchSet(_, _, expr):
                self.add(self.expression(expr), frame.trips, frame.copies)
            case k.AccumulateBatch(_, _, reducer, batch):
                mix = self.add_batch(reducer, self.batches.get(batch, 1))
                self.add(mix, frame.trips, frame.copies)
            case k.AccumulateState(_, _, reducer, arrays, at):
                for array, dtype in zip(arrays, self.reducers[reducer].fields, strict=True):
                    self.access(array, at, dtype.bytes, 1, False, frame)
                self.add(self.combine(reducer), frame.trips, frame.copies)
            case k.ReduceAcross():
                self.reduce(statement, frame)
            case k.ScanAcross():
                self.scan(statement, frame)
            case k.Rounds(variable, count, _, inner):
                self.spans[variable] = self.still[variable] = (0, count - 1)
                self.turning.add(variable)
                self.values[variable] = np.asarray(0)
                self.walk(inner, frame.repeated(count, 1))
            case k.FetchRound(first, _, _, _, inner):
                self.loop.prefetched = self.prefetching = True
                if first:
                    self.loop.once_batches += 1
                else:
                    self.walk(inner, frame)
                self.prefetching = False
            case k.Finish(_, count, reducer, _):
                mix = {unit: n * count for unit, n in self.combine(reducer).items()}
                self.add(mix, frame.trips, frame.copies)
            case k.Loop():
                self.repeat(statement, frame)
            case k.If(guards, inner):
                threads, warps = self.passing(guards)
                self.add({_I: 1.0 + len(guards)}, frame.trips, frame.copies)
                self.walk(inner, frame.scaled(threads, warps))
            case k.Switch(cases):
                self.choices([(found.guards, found.body) for found in cases], frame)
            case k.Choose(_, _, branches):
                self.choices([(branch.guards, branch.body) for branch in branches], frame)
            case k.Barrier(level="global"):
                self.level += 1
            case k.Barrier():
                self.sync(frame, 1)
            case k.Publish(area):
                self.add({_I: 3.0 * area.words}, frame.trips)
            case k.Collect(area, _, _, _, reducer, members, _):
                # Columns are collected where they are needed, without a Meeting.
                self.loop.meetings = max(self.loop.meetings, LATE_SHARE**self.lag)
                self.loop.team = max(self.loop.team, area.parts)
                turns = math.ceil(area.parts / members)
                self.loop.exchanged_bytes += (
                    frame.threads * self.kernel.block * turns * area.words * TAGGED_BYTES
                )
                self.delay(L2_CYCLES * (math.ceil(turns / TURNS_TOGETHER) - 1) * frame.trips)
                mix = {unit: n * turns for unit, n in self.combine(reducer).items()}
                mix[_I] = mix.get(_I, 0.0) + 3.0 * area.words * turns
                self.add(mix, frame.trips, frame.copies)
            case k.Meeting(team, lag, packed, inner):
                self.sync(frame, 1)
                # Blocks that wait tasks after they arrived find the others there already, most of the time.
                met = self.loop.meetings + frame.trips * LATE_SHARE**lag
                share = packed * 32 / self.kernel.block
                self.walk(inner, frame.scaled(share, share))
                self.loop.meetings, self.loop.team = met, max(self.loop.team, team)
            case k.Section():
                self.section(statement)
            case k.Common(inner):
                self.common = inner
            case k.TaskLoop():
                self.tasks(statement)
            case k.Current(_, inner):
                self.add({_I: 2.0}, frame.trips)
                self.walk(inner, frame)
            case k.Previous(_, inner, lag):
                self.add({_I: 2.0}, frame.trips)
                self.lag = lag
                self.walk(inner, frame)
                self.lag = 0
            case k.VectorVariable():
                pass
            case _:
                raise AssertionError(f"no price for {type(statement).__name__}")

    def choices(
        self, cases: Sequence[tuple[Sequence[Guard], Sequence[k.Statement]]], frame: _Frame
    ) -> None:
        """The first case whose guards hold; the last one gets the threads that the others left."""
        left = 1.0
        for guards, body in cases:
            threads, warps = self.passing(guards) if guards else (left, left)
            left = max(left - threads, 0.0)
            self.add({_I: 2.0}, frame.trips, frame.copies)
            self.walk(body, frame.scaled(threads, warps))

    def load(self, words: float) -> None:
        self.loaded[self.turn] = self.loaded.get(self.turn, 0.0) + words

    def held_words(self, turn: int, *, last: bool = False) -> float:
        """Words of a thread that live from before a wait until after it.  last: of those that are not needed later."""
        return sum(
            words
            for name, words in self.words.items()
            if self.born.get(name, 0) < turn <= (dies := self.dies.get(name, 0))
            and (dies == turn or not last)
        )

    def peak_words(self, loads: float) -> float:
        """Most words of a thread that live at once, up to `loads` of them vectors just loaded.

        What is loaded to be kept lies where it is kept.
        """
        peak = 0.0
        for turn in range(self.turn + 1):
            dying = self.held_words(turn, last=True)
            new = sum(w for n, w in self.words.items() if self.born.get(n, 0) == turn)
            # New values take the places of those that they are computed from.
            changing = max(dying, new, min(self.loaded.get(turn, 0.0), loads))
            peak = max(peak, self.held_words(turn) - dying + changing)
        return peak

    def sync(self, frame: _Frame, barriers: float) -> None:
        self.wait()
        if barriers:
            self.delay(BARRIER_CYCLES * barriers * frame.trips)
            if self.in_task:
                self.loop.barriers += barriers * frame.trips

    def reduce(self, step: k.ReduceAcross, frame: _Frame) -> None:
        """Butterflies within a warp, then an exchange through shared memory."""
        barriers = 0.0
        longest = 0.0
        by_slot = Counter(part.slot for part in step.parts if part.slot)
        for part in step.parts:
            exchanges = _Exchanges(self.reducers[part.reducer], self.combine(part.reducer))
            chain, waits = exchanges.of_part(step, part.count, by_slot.get(part.slot, 1))
            barriers = max(barriers, waits)
            longest = max(longest, chain)
            self.add_quietly(exchanges.mix, frame)
        self.sync(frame, barriers)
        self.delay(longest * (1 + 0.2 * (len(step.parts) - 1)) * frame.trips)

    def scan(self, step: k.ScanAcross, frame: _Frame) -> None:
        """Each thread's own states one after the other, then the totals of its steps."""
        exchanges = _Exchanges(self.reducers[step.reducer], self.combine(step.reducer))
        exchanges.add_combinations(2 * step.count)
        chain = (step.steps if step.columns else step.width) * exchanges.latency
        shared = k.count_scanned(step, self.block) > 0
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
            self.loop.meetings += frame.trips
            self.loop.team = max(self.loop.team, parts)
            turns = math.ceil(parts / WARP)
            exchanges.add(_I, 6.0 * turns)
            exchanges.add_combinations(turns)
            chain += exchanges.butterfly(10, 1) + 2 * SHARED_CYCLES
        self.dies[step.state] = self.turn
        if step.carry:
            self.dies[step.carry] = ALWAYS
        self.add_quietly(exchanges.mix, frame)
        self.sync(frame, float(shared) + (step.handover is not None))
        self.delay(chain * frame.trips)

    def add_quietly(self, mix: Mix, frame: _Frame) -> None:
        """Instructions whose latency is counted apart."""
        target = self.loop.mix if self.in_task else self.loop.once_mix
        for unit, count in mix.items():
            target[unit] = target.get(unit, 0.0) + count * frame.trips
            self.static += count

    def repeat(self, loop: k.Loop, frame: _Frame) -> None:
        if loop.count == 0:
            return
        self.spans[loop.variable] = self.still[loop.variable] = (0, loop.count - 1)
        self.turning.add(loop.variable)
        self.values[loop.variable] = np.asarray(0)
        copies = loop.count if loop.unroll else min(loop.count, loop.together)
        inner = frame.repeated(loop.count, copies)
        if loop.variable == "lane":
            outer_lanes, self.lanes = self.lanes, loop.count
            self.walk(loop.body, inner.with_lanes())
            self.lanes = outer_lanes
            return
        if not loop.unroll and loop.count > 1:
            self.add({_I: 2.0}, inner.trips / loop.together)
        # Vectors that lanes are taken from are known before the lane loop.
        self.walk(loop.body, inner)

    def section(self, section: k.Section) -> None:
        # States of the sections before are gone.
        self.dies = {n: min(t, self.turn) for n, t in self.dies.items()}
        self.set_threads(section)
        self.touched = set()
        first_turn = self.turn
        self.loop = LoopWork(self.level, 1, True, offset=section.offset)
        self.in_task = False
        self.walk((*self.common, *section.body), _Frame())
        self.common = ()
        self.wait()
        self.loop.kept_words = max(
            self.held_words(turn) for turn in range(first_turn, self.turn + 1)
        )
        self.loops.append(self.loop)

    def tasks(self, tasks: k.TaskLoop) -> None:
        self.loop.tasks, self.loop.once = tasks.tasks, tasks.once
        self.spans["task"], self.still["task"] = (0, tasks.tasks - 1), (0, 0)
        self.wait()
        self.in_task = True
        self.walk(tasks.body, _Frame())
        self.wait()
        self.in_task = False

    def result(self) -> Workload:
        return Workload(
            tuple(self.loops),
            tuple(self.accesses),
            int(BASE_REGISTERS + self.peak_words(LOADED_WORDS)),
            int(
                BASE_REGISTERS
                + self.peak_words(LEAST_LOADED_WORDS)
                + HELD_SHARE * max((loop.kept_words for loop in self.loops), default=0.0)
            ),
            int(self.static),
        )


@dataclass(frozen=True, slots=True)
class _Frame:
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

    def scaled(self, threads: float, warps: float) -> _Frame:
        """Behind a condition: loads of one turn of a loop do not run ahead of the next turn's condition."""
        return replace(
            self,
            trips=self.trips * warps,
            threads=self.threads * threads,
            batches=self.turns,
            together=self.together * self.batches / self.turns,
        )

    def repeated(self, count: int, copies: int) -> _Frame:
        return replace(
            self,
            trips=self.trips * count,
            threads=self.threads * count,
            copies=self.copies * copies,
            batches=self.batches * math.ceil(count / copies),
            together=self.together * copies,
            turns=self.turns * (count if copies < count else 1),
        )

    def with_lanes(self) -> _Frame:
        return replace(self, in_lanes=True)


def count_workload(kernel: k.Kernel) -> Workload:
    """What the kernel's threads execute and move."""
    counter = _Counter(kernel)
    counter.walk(kernel.body, _Frame())
    return counter.result()
