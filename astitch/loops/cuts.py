"""How the work of a loop is cut: which block has which units and rows, what it keeps on chip, and how long it takes.

Groups of blocks have rows of their own and never talk.  Within a group every block gets whole rows before a product.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from astitch.device.gpu import ACCESS_BYTES, Gpu
from astitch.graph.ir import ArrayType, Graph
from astitch.graph.ops import OPS
from astitch.loops.analysis import Carried, Loop, Role, Stack
from astitch.loops.axes import Axes, Axis, Form
from astitch.loops.schedule import Multiply, Steps

MAX_BLOCK = 512

MAX_ROWS = 16
"""Rows of a group: each takes registers for its sums."""

MANY_STAGES = 3

ELEMENTWISE_BLOCKS = (32, 64, 128, 256)
"""Threads of a block of a loop whose elements never meet: few, so that small arrays are on many SMs."""

ELEMENTWISE_REGISTERS = 24
"""Registers of a thread of such a loop besides what it reads and computes."""

MAX_CROSSING = 64
"""Elements of the matrices between units and small columns that a thread keeps in registers."""

MATRIX_REGISTERS = 128
"""Registers of a thread for its share of the matrices."""

OTHER_REGISTERS = 64
"""Registers of a thread besides matrices, sums and what it reads.  With fewer the compiler spills and takes long."""

TURN_CYCLES, PRODUCT_CYCLES = 4950, 8910
"""Cycles of a turn of XLA's loop.  On an H100 it takes 7 us with one small product and 11 to 12 with two."""

ASKED_US = 5.0
"""What the host takes in each turn to ask whether there is another: an estimate."""

STEP_CYCLES = 3000
"""Cycles of a kernel of XLA's in a turn, for what waits for a sum or for elements at other places: 1.5 us on an H100,
by estimate."""

ALONE = 10
"""How much longer a warp takes that has its part of an SM alone, whose ops wait for each other: an estimate."""

LEAST_MOVES = 3
"""Instructions for a row, if not of whole vectors, that are worth a copy through shared memory (staged_rows.py)."""

BATCH_BYTES = 160
"""Shared memory for a row of what is copied at the same time, if it is more than one state."""

BANK_BYTES = 4
"""Of a bank of shared memory.  Narrower numbers would be copied in pieces of less than a line."""

WARP = 32

START_US = 3.2
"""Besides the launch: until all blocks of a loop run and have read what stays on chip, and the way back."""

CLOCK_SHARE = 1.75 / 1.98
"""The share of the device's clock with which the cycles of a turn were fitted on an H100."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How the work is cut: `members` blocks a group share the units, each group has `rows` rows.

    A group of `lanes` lanes has `width` units: its lanes split k, then the (row, unit) pairs.
    """

    members: int
    rows: int
    width: int
    lanes: int
    groups: int
    units: int
    small: int = 1
    least_block: int = 32

    @property
    def own_units(self) -> int:
        """Units of a block."""
        return -(-self.units // self.members)

    @property
    def block(self) -> int:
        """Threads of a block."""
        threads = -(-self.own_units // self.width) * self.lanes
        return max(-(-threads // 32) * 32, self.least_block)

    @property
    def grid(self) -> int:
        return self.members * self.groups

    def exchanges(self, steps: Steps) -> bool:
        """Do blocks of a group tell each other something?"""
        return self.members > 1 and bool(steps.moved or steps.crossings)

    @property
    def owned(self) -> int:
        """Pairs of a thread."""
        return max(1, self.rows * self.width // self.lanes)

    @property
    def copies(self) -> int:
        """Threads that compute the same pair."""
        return max(1, self.lanes // (self.rows * self.width))

    @property
    def small_width(self) -> int:
        """Lanes for the small columns of a row."""
        return 1 << (self.small - 1).bit_length()

    @property
    def small_owned(self) -> int:
        """Pairs of a row and a small column of a thread."""
        return -(-self.rows * self.small_width // self.block)

    @property
    def sums(self) -> int:
        """Pairs of a row and a small column whose parts a block adds up for its group."""
        return -(-self.rows * self.small // self.members)

    @property
    def vectors(self) -> int:
        """Vectors of four k of a part that a lane has."""
        return -(-self.units // (4 * self.lanes))

    @property
    def stride(self) -> int:
        """Elements between the rows of a part in shared memory, the last ones zero."""
        return 4 * self.lanes * self.vectors


@dataclass(frozen=True)
class Share:
    """A part of a loop that has nothing to do with the others, and blocks of its own.

    used: the parts of the final state that it makes.  held: by product, how many vectors of its matrix stay in
    registers; the others are in shared memory.  resident: blocks on an SM.  us: its projection.
    """

    axes: Axes
    steps: Steps
    cut: Cut
    used: tuple[int, ...]
    held: tuple[int, ...]
    resident: int
    us: float

    def __str__(self) -> str:
        cut, steps = self.cut, self.steps
        return (
            f"{cut.groups} groups of {cut.members} blocks, {cut.rows} rows a group, {cut.own_units} units a block, "
            f"{cut.lanes} lanes a team; {len(steps.products)} products in {steps.stages} stages"
        )


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a Moved is in shared memory: at byte `offset`, the rows of `buffers` turns.

    reused: others use the same bytes, so the block must meet before it fills them.
    """

    offset: int
    buffers: int
    reused: bool


def place_slots(steps: Steps, cut: Cut) -> tuple[tuple[Slot, ...], int]:
    """The slot of each Moved, and all bytes.

    Where a turn has many stages rows live for one stage only.  Else there are rows of two turns.  One turn's rows do if
    the block meets anyway between the last product that reads them and the words of the next turn.
    """
    meetings = {m.stage for m in steps.moved} | {m.stage for m in steps.crossings}
    placed: list[tuple[int, int, bool]] = []
    reused: dict[int, int] = {}
    offset = 0
    for number, moved in enumerate(steps.moved):
        size = len(moved.parts) * cut.rows * cut.stride * 4
        last = max(m.stage for m in steps.products if any(at == number for at, _ in m.left))
        # Where rows are padded with zeros they keep their place.
        many = steps.stages >= MANY_STAGES and cut.stride == cut.units
        if cut.members > 1 and many and last == moved.stage:
            placed.append((reused.get(last, 0), 1, True))
            reused[last] = reused.get(last, 0) + size
        else:
            met = max(meetings) > last or moved.stage > min(meetings)
            buffers = 1 if met and cut.members > 1 else 2
            placed.append((offset, buffers, False))
            offset += buffers * size
    most = max(reused.values(), default=0)
    slots = [Slot(at if shared else at + most, count, shared) for at, count, shared in placed]
    return tuple(slots), most + offset


def count_crossing(multiply: Multiply, cut: Cut) -> int:
    """Elements of the matrix of a product to or from small columns that a thread keeps."""
    if multiply.product.form is Form.COLLECT:
        return cut.small_owned * cut.own_units * len(multiply.own)
    return cut.owned * -(-cut.small // cut.copies) * multiply.parts


def crossing_floats(multiply: Multiply, cut: Cut) -> tuple[int, int, int]:
    """Shared memory of such a product in one turn: its left side, the parts that the block adds up, the sums of all."""
    if multiply.product.form is Form.SPREAD:
        return cut.rows * cut.small_width, 0, 0
    left = len(multiply.own) * cut.rows * cut.own_units
    return (
        (left, cut.sums * cut.members, cut.rows * cut.small_width)
        if cut.members > 1
        else (left, 0, 0)
    )


def count_crossing_bytes(steps: Steps, cut: Cut) -> int:
    """The same of all products, two turns' worth."""
    floats = sum(-(-2 * n // 4) * 4 for m in steps.crossings for n in crossing_floats(m, cut))
    return 4 * floats


@dataclass(frozen=True, slots=True)
class StagedRow:
    """A state whose rows warps move through shared memory.  numbers: of a row.  bytes: of a number.  offset: in shared
    memory, in bytes of a row.  batch: rows of one batch are there at the same time."""

    numbers: int
    bytes: int
    offset: int
    batch: int

    @property
    def stride(self) -> int:
        """Elements from row to row: odd, so that the numbers of 32 rows are in banks of their own."""
        return self.numbers | 1


def find_staged(
    loop: Loop, axes: Axes, steps: Steps, used: Sequence[int], cut: Cut
) -> tuple[dict[int, StagedRow], dict[int, StagedRow]]:
    """The states that are staged when they are read, and when they are written: of loops that turn once, whose threads
    have a row each."""
    alone = axes.units == cut.owned == cut.copies == 1 and cut.lanes % WARP == 0
    if loop.trips != 1 or not alone:
        return {}, {}
    reads = {r.state: r.name for r in steps.reads if r.state not in loop.starts and not r.small}
    roles = {state: loop.roles[state] for state in used}
    writes = {state: role.value for state, role in roles.items() if isinstance(role, Carried)}
    return _stage(loop, axes, reads), _stage(loop, axes, writes)


def _stage(loop: Loop, axes: Axes, values: dict[int, str]) -> dict[int, StagedRow]:
    staged: dict[int, StagedRow] = {}
    batch = offset = 0
    for state, value in sorted(values.items()):
        count, size = _count_staged(loop, axes, state, value), loop.types[state].dtype.bytes
        if not count:
            continue
        if offset and offset + (count | 1) * size > BATCH_BYTES:
            batch, offset = batch + 1, 0
        staged[state] = StagedRow(count, size, offset, batch)
        offset += (count | 1) * size
    return staged


def count_staged_bytes(staged: Iterable[dict[int, StagedRow]]) -> int:
    """Bytes of shared memory of a warp, which waits for no other: each batch in turn has all of it."""
    ends = (row.offset + row.stride * row.bytes for rows in staged for row in rows.values())
    return WARP * max(ends, default=0)


def _count_staged(loop: Loop, axes: Axes, state: int, value: str) -> int:
    """The numbers of a row of a state; 0 where they do not lie side by side, or one instruction moves them."""
    shape, dtype = loop.body[loop.body.parameters[state]].shape, loop.types[state].dtype
    places = (axes.dimension(value, Axis.ROW), axes.dimension(value, Axis.COLUMN))
    if places != (0, 1) or len(shape) != 2 or shape[0] != axes.rows:
        return 0
    count, width = shape[1], 1
    while count % (2 * width) == 0 and 2 * width * dtype.bytes <= ACCESS_BYTES:
        width *= 2
    if width * dtype.bytes == ACCESS_BYTES:
        return count if count > width and dtype.bytes >= BANK_BYTES else 0
    return count if count >= LEAST_MOVES * width else 0


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn of XLA's loop has kernels of its own for.

    products: of matrices.  turns: of inner loops.  steps: that wait for each other (count_steps).
    """

    products: int = 0
    turns: int = 0
    steps: int = 0


def project_xla(loop: Loop, turn: Turn, gpu: Gpu, warp_cycles: float = 0.0) -> float:
    """Microseconds of XLA's loop.  Kernels of products are so short that the clock decides; a turn without any also
    reads and writes its state, which may be large, and does the arithmetic of all its warps."""
    cycles = TURN_CYCLES * (1 + turn.turns) + PRODUCT_CYCLES * turn.products
    # XLA has two in one kernel at times: the sums of a softmax, pieces that are put together twice.
    cycles += STEP_CYCLES * (turn.steps // 2)
    turn_us = cycles / gpu.clock_ghz / 1e3
    if not turn.products:
        state = sum(2 * t.bytes for t, r in _list_roles(loop) if isinstance(r, Carried))
        turn_us += state / (gpu.l2_gbs * 1e3) + _stacked_us(loop, gpu)
        turn_us += warp_cycles / gpu.sms / (gpu.clock_ghz * CLOCK_SHARE * 1e3)
    if loop.asked is not None:
        turn_us += gpu.launch_us + ASKED_US
    return loop.trips * turn_us


def count_steps(body: Graph, live: Collection[str]) -> int:
    """How many reductions of a turn, and arrays that are put together of others, wait for each other."""
    depth: dict[str, int] = {}
    for node in body:
        if node.name in live:
            before = max((depth.get(operand, 0) for operand in node.operands), default=0)
            row = OPS[node.op]
            ends = row.is_reduce or row.chooses
            depth[node.name] = before + ends
    return max(depth.values(), default=0)


def _list_roles(loop: Loop) -> Iterator[tuple[ArrayType, Role]]:
    return zip(loop.types, loop.roles, strict=True)


def _stacked_us(loop: Loop, gpu: Gpu) -> float:
    """Microseconds to read and write the slices of stacks of one turn."""
    body = loop.body
    written = (body[role.value].array for role in loop.roles if isinstance(role, Stack))
    arrays = [body[name].array for name in loop.slices] + list(written)
    return sum(array.bytes for array in arrays) / (gpu.bandwidth_gbs * 1e3)


def list_cuts(axes: Axes, gpu: Gpu) -> Iterator[Cut]:
    if not axes.products and axes.small == 1:
        for block in ELEMENTWISE_BLOCKS:
            members = -(-axes.units // block)
            if (lanes := block // axes.units) > 1 and axes.rows > 1:
                # Few units a row: the lanes of a unit have rows of their own.
                yield Cut(1, lanes, 1, lanes, -(-axes.rows // lanes), axes.units)
            for rows in (1, 2, 4):
                if rows < 2 * axes.rows:
                    yield Cut(members, rows, 1, 1, -(-axes.rows // rows), axes.units)
        return
    if not axes.products:
        for rows in (1, 2, 4):
            cut = Cut(1, rows, 1, 1, -(-axes.rows // rows), axes.units, axes.small)
            yield replace(cut, least_block=max(32, rows * cut.small_width))
        return
    for members in (m for m in range(1, gpu.sms + 1) if axes.units % m == 0):
        own = axes.units // members
        for width in (1, 2, 4, 8):
            if own % width:
                continue
            for lanes in (1, 2, 4, 8, 16, 32):
                for rows in (1, 2, 4, 8, 16):
                    if rows > MAX_ROWS or rows >= 2 * axes.rows:
                        continue
                    groups = -(-axes.rows // rows)
                    cut = Cut(members, rows, width, lanes, groups, axes.units, axes.small)
                    if cut.block <= MAX_BLOCK and cut.vectors <= 64:
                        yield cut


def meets(steps: Steps, cut: Cut) -> bool:
    """Do elements of different pairs meet in a turn?"""
    return bool(steps.products or steps.crossings or cut.small > 1)


@functools.cache
def _count_registers(gpu: Gpu, block: int, resident: int) -> int:
    return min(gpu.max_registers(block, resident), 255)


def try_cut(
    loop: Loop,
    axes: Axes,
    steps: Steps,
    used: tuple[int, ...],
    gpu: Gpu,
    cut: Cut,
) -> Share | None:
    """A share by a cut, if it fits the device."""
    columns = [m.parts * cut.width for m in steps.products]
    most, block = max(columns, default=1), cut.block
    summed = cut.rows if columns or cut.small > 1 else cut.owned
    if most * summed > 64 or cut.small_width > block:
        return None
    if cut.exchanges(steps) and cut.grid > gpu.sms:
        return None
    turns_held = 2 if steps.prefetches_stacks else 1
    meeting = meets(steps, cut)
    other = (
        (OTHER_REGISTERS if meeting else ELEMENTWISE_REGISTERS)
        + cut.owned * (turns_held * steps.loaded + 8)
        + summed * (most + 4)
    )
    if cut.small > 1:
        crossing = sum(count_crossing(multiply, cut) for multiply in steps.crossings)
        if crossing > MAX_CROSSING:
            return None
        other += cut.small_owned * (turns_held * steps.small_loaded + 4) + crossing
    if _count_registers(gpu, block, 1) < other:
        return None
    staged = block // WARP * count_staged_bytes(find_staged(loop, axes, steps, used, cut))
    fixed = place_slots(steps, cut)[1] + count_crossing_bytes(steps, cut) + staged
    found: list[Share] = []
    for resident in (1, 2) if meeting else (1, 2, 4, 8, 16):
        registers = _count_registers(gpu, block, resident)
        room = min(registers - other, MATRIX_REGISTERS)
        if room < 0:
            continue
        held: list[int] = []
        left = 0
        for multiply, count in zip(steps.products, columns, strict=True):
            total = cut.vectors * len(multiply.left)
            fit = min(total, max(0, room) // (4 * count))
            held.append(fit)
            room -= 4 * count * fit
            left += (total - fit) * 16 * count * block
        bps = gpu.blocks_per_sm(block, registers, left + fixed)
        if bps < resident:
            continue
        us = _project(loop, axes, steps, used, cut, gpu, resident, columns, held)
        found.append(Share(axes, steps, cut, used, tuple(held), resident, us))
    return min(found, key=lambda share: share.us, default=None)


def once_us(loop: Loop, steps: Steps, used: Sequence[int], gpu: Gpu) -> float:
    """Microseconds to read and write the state of a loop that turns once."""
    states = {*used, *(r.state for r in steps.reads if r.state not in loop.starts)}
    moved = sum(loop.types[state].bytes for state in states)
    return moved / (gpu.bandwidth_gbs * 1e3)


NEAR_BYTES = 128 << 10
"""Of tables that an SM's own cache keeps, by estimate."""

NEAR_NS = 25
"""The latency of that cache, by estimate."""

SECTOR, BESIDE = 32, 12
"""Bytes that are read of others for a number, and, by estimate, for one more of the same table: corners of a cell, and
components of a vector, lie side by side."""


def table_bytes(loop: Loop, steps: Steps) -> int:
    """Of the tables that a turn reads, together."""
    return sum(loop.body[table].array.bytes for table in {*steps.lookups})


def _lookup_us(loop: Loop, axes: Axes, steps: Steps, gpu: Gpu, waves: int) -> tuple[float, float]:
    """Microseconds that a turn's lookups wait for each other, and that memory takes for them."""
    if not steps.lookups:
        return 0.0, 0.0
    size = table_bytes(loop, steps)
    if size <= NEAR_BYTES:
        return steps.waits * NEAR_NS / 1e3, 0.0
    far = size > gpu.l2_bytes // 2
    latency = gpu.dram_latency_ns if far else gpu.l2_latency_ns
    speed = gpu.bandwidth_gbs if far else gpu.l2_gbs
    tables = len({*steps.lookups})
    each = tables * SECTOR + (len(steps.lookups) - tables) * BESIDE
    moved = axes.rows * axes.units * each
    return steps.waits * latency / 1e3, moved / (speed * 1e3) / waves


def _project(
    loop: Loop,
    axes: Axes,
    steps: Steps,
    used: Sequence[int],
    cut: Cut,
    gpu: Gpu,
    resident: int,
    columns: Sequence[int],
    held: Sequence[int],
) -> float:
    """Microseconds of the whole loop."""
    together = min(resident, -(-cut.grid // gpu.sms))  # blocks that share an SM
    waves = -(-cut.grid // (gpu.sms * together))
    warps = cut.block // 32 * together
    cycles = 0.0
    for multiply, count, kept in zip(steps.products, columns, held, strict=True):
        vectors = cut.vectors * len(multiply.left)
        adds = vectors * 4 * count * cut.rows / 4
        words = vectors * cut.rows * max(1, cut.lanes / 8) + (vectors - kept) * count * 4
        shuffles, pairs, lanes = 0, cut.rows * cut.width, cut.lanes
        while lanes > 1:
            pairs = max(1, pairs // 2)
            lanes //= 2
            shuffles += pairs * multiply.parts
        cycles += warps * (1.3 * max(adds, words) + shuffles)
    cycles += warps * cut.owned * steps.cycles
    clock = gpu.clock_ghz * CLOCK_SHARE * 1e3
    turn_us = cycles / clock
    turn_us += 0.05 + steps.stages * (0.05 + 0.04 * math.log2(cut.lanes))
    for multiply in steps.crossings:
        turn_us += 0.15
        if multiply.product.form is Form.COLLECT and cut.members > 1:
            turn_us += 0.8 + 0.004 * cut.members
    if cut.members > 1:
        for moved in steps.moved:
            words = len(moved.parts) * cut.rows * cut.units / cut.block
            turn_us += 0.25 + 0.075 * words + 0.001 * cut.members
    if not meets(steps, cut):
        # Nothing but the next turn's slices is waited for; blocks of an SM wait at the same time.
        if steps.stacked:
            turn_us = max(turn_us, gpu.dram_latency_ns / 1e3)
        turn_us = max(turn_us, cut.owned * steps.cycles * ALONE / clock)
        turn_us = max(turn_us, *_lookup_us(loop, axes, steps, gpu, waves))
        turn_us = max(turn_us, _stacked_us(loop, gpu) / waves)
        if loop.trips == 1:
            turn_us = max(turn_us, once_us(loop, steps, used, gpu) / waves)
    loaded = sum(v * 16 * c for v, c in zip(held, columns, strict=True)) * cut.block
    return gpu.launch_us + START_US + waves * (loop.trips * turn_us + loaded / 40e3)
