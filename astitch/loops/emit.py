"""A LoopPlan -> the CUDA text of its kernel, and how it is launched.

The text is one loop over the turns: what each stage computes for a thread's pairs, the rows that blocks tell each
other, the products.  cuda/loops.cuh has the words for the last two.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from astitch.emit_cuda import STORAGE, comment, compute_type, spell_call, spell_number
from astitch.graph.ir import ConstantAttrs, Literal, Node, PadAttrs, SliceAttrs
from astitch.graph.ops import OPS, monoid_of
from astitch.kernel import kernel_ir as k
from astitch.loops.analysis import Affine, Carried, Place, Stack
from astitch.loops.axes import NEUTRAL, Axis, Form
from astitch.loops.plan import (
    MAX_WORDS,
    LoopPlan,
    Moved,
    Multiply,
    Part,
    Read,
    Resolver,
    Share,
    Slot,
    count_crossing,
    count_parts,
    crossing_floats,
    is_shift,
    is_small,
    place_slots,
)
from astitch.program.steps import CudaKernel

TILES = ("left", "parts", "sums")
"""What a block keeps of a product to or from small columns: its left side, the parts it adds up, the sums of all."""

CHUNK = 8
"""Words that a thread asks for in one round."""


@dataclass(frozen=True)
class LoopKernel:
    """A loop's kernel.  operands: which of the while's operands it reads.  results: which parts of the final state it
    writes.  Parameters: the operands, the results, the barrier words if its blocks wait for each other.
    """

    plan: LoopPlan
    kernel: CudaKernel
    operands: tuple[int, ...]
    results: tuple[int, ...]


def emit_loop(plan: LoopPlan, name: str) -> LoopKernel:
    """The kernel of a plan under a name."""
    emitters = [_Emitter(plan, share) for share in plan.shares]
    lines, first, words = [], 0, 0
    for number, emitter in enumerate(emitters):
        body = emitter.emit(first, words)
        first += emitter.cut.grid
        words += emitter.all_words
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
        lines.insert(0, f"  ASTITCH_SHARED_ARENA({shared});")
    if words:
        lines.append("  astitch_end_launch(barrier);")
    operands = sorted({state for emitter in emitters for state in emitter.operands})
    types = plan.loop.types
    parameters = [f"const {STORAGE[types[i].dtype]}* __restrict__ state_{i}" for i in operands]
    parameters += [f"{STORAGE[types[i].dtype]}* __restrict__ result_{i}" for i in plan.used]
    if words:
        parameters.append("unsigned int* barrier")
    head = [
        '#include "astitch.cuh"',
        '#include "loops.cuh"',
        "",
        f"// {comment(str(plan))}",
        f'extern "C" __global__ void __launch_bounds__({plan.block}, {plan.blocks_per_sm}) {name}(',
        *(f"    {parameter}," for parameter in parameters[:-1]),
        f"    {parameters[-1]}) {{",
    ]
    kernel = CudaKernel(
        name,
        "\n".join([*head, *lines, "}"]) + "\n",
        plan.grid,
        plan.block,
        shared,
        0,
        plan.blocks_per_sm,
        barrier_words=k.FIRST_TAGGED_WORD + 2 * words if words else 0,
    )
    return LoopKernel(plan, kernel, tuple(operands), plan.used)


@dataclass(frozen=True, slots=True)
class _Access:
    """Where an element of a value lies in an array: strides of rows, columns and turns; index: of the turn."""

    row: int
    column: int
    turn: int
    index: Affine | None

    def spell(self, row: str, column: str, turn: str) -> str:
        terms = [_times(row, self.row), _times(column, self.column)]
        if self.index is not None:
            index = self.index
            at = str(index.offset) if not index.scale else f"{turn} * {index.scale}"
            if index.scale and index.offset:
                at += f" + {index.offset}"
            terms.append(f"({at}) * {self.turn}")
        return " + ".join(term for term in terms if term) or "0"


def _times(name: str, stride: int) -> str:
    return "" if not stride else name if stride == 1 else f"{name} * {stride}"


class _Emitter:
    """Writes one share of a loop."""

    def __init__(self, plan: LoopPlan, share: Share) -> None:
        self.share, self.loop, self.body = share, plan.loop, plan.loop.body
        self.axes, self.steps, self.cut = share.axes, share.steps, share.cut
        self.resolve = Resolver(self.loop, self.axes).resolve
        self.roles = dict(zip(self.body.parameters, self.loop.roles, strict=True))
        self.names: dict[str, str] = {}
        self.taken: set[str] = set()
        self.stage_of = {p: s for s, parts in enumerate(self.steps.computed) for p in parts}
        for multiply in self.steps.products:
            for part in product_parts(multiply):
                self.stage_of[part] = multiply.stage + 1
        for multiply in self.steps.crossings:
            for part in product_parts(multiply):
                self.stage_of[part] = multiply.stage + 1
        self.reads: Mapping[str, Read] = {read.name: read for read in self.steps.reads}
        self.ahead = self.steps.reads_ahead
        self.lines: list[str] = []
        self.operands: dict[int, str] = {}
        self.results = {state: f"result_{state}" for state in share.used}
        self.exchanges = self.cut.members > 1
        self.slots, self.weights, self.tiles, self.shared_bytes = self.place_shared()
        self.handed = {
            part
            for role in self.loop.roles
            if isinstance(role, Carried) and role.value in self.axes.live
            for part in self.parts_of(role.value)
        }

    # ---- names and values ------------------------------------------------------------------------------------------

    def out(self, depth: int, text: str) -> None:
        self.lines.append("  " * depth + text)

    def fresh(self, hint: str) -> str:
        base = re.sub(r"\W", "_", hint, flags=re.ASCII)[:40].strip("_")
        base = base if base[:1].isalpha() else f"v_{base}"
        name, number = f"{base}_v", 0
        while name in self.taken:
            number += 1
            name = f"{base}_v{number}"
        self.taken.add(name)
        return name

    def variable(self, part: Part) -> str:
        """The array or local that holds a part for a thread's pairs."""
        if part.name not in self.names:
            self.names[part.name] = self.fresh(part.name)
        return f"{self.names[part.name]}_{'s' if part.small else ''}{part.number}"

    def owned(self, small: bool) -> int:
        """Pairs of a thread."""
        return self.cut.small_owned if small else self.cut.owned

    def pairs(self, depth: int, small: bool, lines: Sequence[str]) -> None:
        """Lines for each pair of a thread."""
        if lines:
            self.out(depth, "#pragma unroll")
            self.out(depth, f"for (int q = 0; q < {self.owned(small)}; ++q) {{")
            self.lines += ["  " * (depth + 1) + line for line in lines]
            self.out(depth, "}")

    def declare(self, depth: int, part: Part, prefix: str = "") -> None:
        dtype = compute_type(self.body[part.name].dtype)
        self.out(depth, f"{dtype} {prefix}{self.variable(part)}[{self.owned(part.small)}];")

    def operand(self, state: int) -> str:
        return self.operands.setdefault(state, f"state_{state}")

    def parts_of(self, name: str) -> list[Part]:
        count = count_parts(self.loop, self.axes, name)
        small = is_small(self.loop, self.axes, name)
        return [self.resolve(name, i, small) for i in range(count)]

    def is_local(self, part: Part) -> bool:
        """Is a computed part used in its own stage only, so that it needs no array?"""
        return part in self.locals

    def spell(self, part: Part, q: str = "q") -> str:
        """The value of a part for pair q."""
        node = self.body[part.name]
        if part.name in self.loop.integers:
            return self.spell_integer(node, self.loop.integers[part.name])
        if isinstance(node.attrs, ConstantAttrs):
            value = node.attrs.value
            return spell_number(type(value)(value.dtype, (), value.data))
        name = self.variable(part)
        return name if self.is_local(part) else f"{name}[{q}]"

    def spell_integer(self, node: Node, value: Affine) -> str:
        turn, ending = ("(long long)turn", "LL") if node.dtype.bytes == 8 else ("turn", "")
        terms = f"{value.offset}{ending}"
        if value.scale:
            terms = f"{turn} * {value.scale}{ending} + {terms}"
        return f"({STORAGE[node.dtype]})({terms})"

    def find_locals(self) -> set[Part]:
        used: dict[Part, set[int]] = {}
        for stage, parts in enumerate(self.steps.computed):
            for part in parts:
                for operand in self.body[part.name].operands:
                    source = self.resolve(operand, part.number, part.small)
                    used.setdefault(source, set()).add(stage)
        for multiply in self.steps.crossings:
            for part in multiply.own:
                used.setdefault(part, set()).add(multiply.stage)
        return {
            part
            for part, stage in self.stage_of.items()
            if part.name not in self.axes.products
            and used.get(part, set()) <= {stage}
            and part not in self.handed
        }

    # ---- memory ----------------------------------------------------------------------------------------------------

    def access(self, name: str, state: int, place: Place | None) -> _Access:
        """Where the elements of a value of the body are in an array of the state."""
        shape = self.loop.types[state].shape
        strides = [1] * len(shape)
        for d in range(len(shape) - 2, -1, -1):
            strides[d] = strides[d + 1] * shape[d + 1]
        row, column = (self.axes.dimension(name, axis) for axis in (Axis.ROW, Axis.COLUMN))
        if column is None:
            column = self.axes.dimension(name, Axis.SMALL)
        return _Access(
            strides[row] if row is not None else 0,
            strides[column] if column is not None else 0,
            strides[place.dimension] if place else 0,
            place.index if place else None,
        )

    def load(self, read: Read, part: Part, turn: str, q: str = "q") -> str:
        if (start := self.loop.starts.get(read.state)) is not None:
            return spell_number(start)
        access = self.access(read.name, read.state, read.place)
        dtype = self.body[read.name].dtype
        at = access.spell(*self.place(part, q), turn)
        return f"load_as<{compute_type(dtype)}>({self.operand(read.state)}[{at}])"

    def read_parts(self, read: Read) -> list[Part]:
        count = count_parts(self.loop, self.axes, read.name)
        return [Part(read.name, i, read.small) for i in range(count)]

    def small_extent(self, name: str) -> int:
        """Small columns of a value; all where it has none."""
        dimension = self.axes.dimension(name, Axis.SMALL)
        return self.cut.small if dimension is None else self.body[name].shape[dimension]

    def live(self, name: str) -> str:
        """Does the thread have an element of a value of small columns?"""
        extent = self.small_extent(name)
        more = "" if extent == self.cut.small else f" && small_place[q] < {extent}"
        return f"small_live[q]{more}"

    def place(self, part: Part, q: str = "q") -> tuple[str, str]:
        """Row and column of a pair."""
        if part.small:
            extent = self.small_extent(part.name)
            place = f"small_place[{q}]"
            return (
                f"small_row[{q}]",
                place if extent == self.cut.small else f"min({place}, {extent - 1})",
            )
        more = part.number * self.cut.units
        return f"row[{q}]", f"(unit[{q}] + {more})" if more else f"unit[{q}]"

    # ---- the kernel ------------------------------------------------------------------------------------------------

    def emit(self, first_block: int, first_word: int) -> list[str]:
        """The lines of the share, whose blocks and tagged words begin at the given ones."""
        self.locals = self.find_locals()
        self.prologue(first_block, first_word)
        self.out(1, "#pragma unroll 1")
        self.out(1, f"for (int turn = 0; turn < {self.loop.trips}; ++turn) {{")
        self.turn()
        self.out(1, "}")
        return self.lines

    @property
    def moved_words(self) -> int:
        """Tagged words of a group for rows."""
        parts = sum(2 * len(m.parts) for m in self.steps.moved)
        return parts * self.cut.rows * self.cut.units

    @property
    def collect_words(self) -> tuple[int, int]:
        """Tagged words of a group for a sum over units, in one turn: of the parts, of the sums."""
        return self.cut.sums * self.cut.members**2, self.cut.rows * self.cut.small

    @property
    def group_words(self) -> int:
        """Tagged words of a group."""
        collects = sum(m.product.form is Form.COLLECT for m in self.steps.crossings)
        words = self.moved_words + 2 * collects * sum(self.collect_words)
        return words if self.exchanges else 0

    @property
    def all_words(self) -> int:
        return self.group_words * self.cut.groups

    def place_shared(self) -> tuple[tuple[Slot, ...], list[int], list[tuple[int, int, int]], int]:
        """Slots of rows, offsets of the shared shares of products, of what each crossing keeps, and all bytes."""
        cut = self.cut
        slots, offset = place_slots(self.steps, cut)
        weights, tiles = [], []
        for multiply, held in zip(self.steps.products, self.share.held, strict=True):
            weights.append(offset)
            left = cut.vectors * len(multiply.left) - held
            offset += left * 16 * multiply.parts * cut.width * cut.block
        for multiply in self.steps.crossings:
            places = []
            for floats in crossing_floats(multiply, cut):
                places.append(offset)
                offset += -(-2 * floats // 4) * 16
            tiles.append((places[0], places[1], places[2]))
        return slots, weights, tiles, offset

    def slot_elements(self, moved: Moved) -> int:
        """Of one turn."""
        return len(moved.parts) * self.cut.rows * self.cut.stride

    def word_offset(self, number: int) -> int:
        """Of the first word of a Moved in its group's."""
        before = self.steps.moved[:number]
        return sum(2 * len(m.parts) for m in before) * self.cut.rows * self.cut.units

    def prologue(self, first_block: int, first_word: int) -> None:
        cut, steps = self.cut, self.steps
        rows, units = self.axes.rows, cut.units
        for number, moved in enumerate(steps.moved):
            slot = self.slots[number]
            count = slot.buffers * self.slot_elements(moved)
            self.out(1, f"ASTITCH_SHARED(float, rows_{number}, {slot.offset}, {count});")
        for number, multiply in enumerate(steps.products):
            if left := self.shared_vectors(number):
                count = left * 4 * multiply.parts * cut.width * cut.block
                self.out(
                    1, f"ASTITCH_SHARED(float, matrix_{number}, {self.weights[number]}, {count});"
                )
        for number, multiply in enumerate(steps.crossings):
            kept = zip(TILES, self.tiles[number], crossing_floats(multiply, cut), strict=True)
            for name, place, floats in kept:
                if floats:
                    self.out(1, f"ASTITCH_SHARED(float, {name}_{number}, {place}, {2 * floats});")
        self.out(1, f"const int lane = int(threadIdx.x) % {cut.lanes};")
        self.out(1, f"const int team = int(threadIdx.x) / {cut.lanes};")
        block = f"(int(blockIdx.x) - {first_block})" if first_block else "int(blockIdx.x)"
        self.out(1, f"const int member = {block} % {cut.members};")
        self.out(1, f"const int group = {block} / {cut.members};")
        if self.exchanges:
            start = f"{first_word} + group * {self.group_words}"
            self.out(
                1,
                f"unsigned long long* const words = astitch_tagged_words(barrier) + {start};",
            )
            self.out(
                1,
                f"const unsigned tag = astitch_launch_tag(barrier) * {self.loop.trips + 1}u + 1u;  // of turn 0",
            )
        own = cut.own_units
        self.out(1, f"const int first_unit = member * {own} + team * {cut.width};")
        self.out(
            1, f"const int end_unit = min(member * {own} + {own}, {units});  // of the block's"
        )
        q = cut.owned
        self.out(1, f"int row[{q}], unit[{q}], inside[{q}];  // the thread's pairs")
        self.out(1, f"bool told[{q}], stored[{q}];  // of several threads with a pair the first")
        self.out(1, "#pragma unroll")
        self.out(1, f"for (int q = 0; q < {q}; ++q) {{")
        pair = f"lane * {q} + q" if cut.copies == 1 else f"lane / {cut.copies}"
        self.out(2, f"const int pair = {pair};")
        self.out(2, f"const int own_row = group * {cut.rows} + pair / {cut.width};")
        self.out(2, f"const int own_unit = first_unit + pair % {cut.width};")
        self.out(2, f"inside[q] = pair / {cut.width};")
        self.out(2, f"row[q] = min(own_row, {rows - 1});")
        self.out(2, f"unit[q] = min(own_unit, {units - 1});")
        first = "" if cut.copies == 1 else f" && lane % {cut.copies} == 0"
        self.out(2, f"told[q] = own_unit < end_unit{first};")
        self.out(2, f"stored[q] = told[q] && own_row < {rows};")
        self.out(1, "}")
        if cut.small > 1:
            self.small_pairs()
        for number in range(len(steps.products)):
            self.load_matrix(number)
        for number in range(len(steps.crossings)):
            self.load_crossing(number)
        for small in (False, True):
            parts = [(r, p) for r in steps.reads if r.small is small for p in self.read_parts(r)]
            for _, part in parts:
                self.declare(1, part)
            self.pairs(
                1, small, [f"{self.variable(p)}[q] = {self.load(r, p, '0')};" for r, p in parts]
            )
        self.start_rows()

    def small_pairs(self) -> None:
        """The thread's pairs of a row and a small column."""
        cut, q = self.cut, self.cut.small_owned
        self.out(1, f"int small_row[{q}], small_place[{q}], small_inside[{q}];")
        self.out(1, f"bool small_live[{q}], small_stored[{q}];")
        lines = [
            f"const int pair = int(threadIdx.x) + q * {cut.block};",
            f"const int own_row = pair / {cut.small_width}, own_place = pair % {cut.small_width};",
            f"small_inside[q] = min(own_row, {cut.rows - 1});",
            f"small_row[q] = min(group * {cut.rows} + small_inside[q], {self.axes.rows - 1});",
            f"small_place[q] = min(own_place, {cut.small - 1});",
            f"small_live[q] = own_row < {cut.rows} && own_place < {cut.small};",
            f"small_stored[q] = small_live[q] && member == 0 && group * {cut.rows} + own_row < {self.axes.rows};",
        ]
        self.pairs(1, True, lines)

    def load_crossing(self, number: int) -> None:
        """A thread's share of a matrix between units and small columns."""
        cut, multiply = self.cut, self.steps.crossings[number]
        product = multiply.product
        state = self.body.parameters.index(product.matrix)
        shape = self.loop.types[state].shape
        strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
        row, k_stride, column = (
            strides[d] if d is not None else 0
            for d in (product.row_dimension, product.k_dimension, product.column_dimension)
        )
        matrix = self.operand(state)
        self.out(1, f"float cross_{number}[{count_crossing(multiply, cut)}];")
        if product.form is Form.COLLECT:
            own, k = cut.own_units, len(multiply.own)
            at = (
                f"small_row[q] * {row} + small_place[q] * {column} + "
                f"((i / {own}) * {cut.units} + member * {own} + i % {own}) * {k_stride}"
            )
            lines = [
                "#pragma unroll",
                f"for (int i = 0; i < {k * own}; ++i)",
                f"  cross_{number}[q * {k * own} + i] = load_as<float>({matrix}[{at}]);",
            ]
            self.pairs(1, True, lines)
            return
        turns = -(-cut.small // cut.copies)
        at = (
            f"row[q] * {row} + k * {k_stride} + "
            f"(({multiply.first} + i % {multiply.parts}) * {cut.units} + unit[q]) * {column}"
        )
        lines = [
            "#pragma unroll",
            f"for (int i = 0; i < {turns * multiply.parts}; ++i) {{",
            f"  const int k = i / {multiply.parts} * {cut.copies} + lane % {cut.copies};",
            f"  cross_{number}[q * {turns * multiply.parts} + i] = "
            f"k < {cut.small} ? load_as<float>({matrix}[{at}]) : 0.0f;",
            "}",
        ]
        self.pairs(1, False, lines)

    def shared_vectors(self, number: int) -> int:
        multiply = self.steps.products[number]
        return self.cut.vectors * len(multiply.left) - self.share.held[number]

    def spans(self, number: int) -> Iterator[tuple[int, int, int, int, bool]]:
        """A product's vectors: part of k, first vector of it, how many, where they are kept, in registers?"""
        vectors, held, seen = self.cut.vectors, self.share.held[number], 0
        for part in range(len(self.steps.products[number].left)):
            inside = min(vectors, max(0, held - seen))
            if inside:
                yield part, 0, inside, seen, True
            if inside < vectors:
                yield part, inside, vectors - inside, max(0, seen + inside - held), False
            seen += vectors

    def load_matrix(self, number: int) -> None:
        multiply, cut = self.steps.products[number], self.cut
        state = self.body.parameters.index(multiply.product.matrix)
        extents = self.loop.types[state].shape
        k_stride = extents[1] if multiply.product.k_dimension == 0 else 1
        column_stride = extents[1] if multiply.product.column_dimension == 0 else 1
        columns = multiply.parts * cut.width
        if self.share.held[number]:
            self.out(1, f"float weights_{number}[{self.share.held[number] * 4 * columns}];")
        for part, first, count, kept, registers in self.spans(number):
            if registers:
                put = f"weights_{number}[(({kept} + i) * 4 + e) * {columns} + c] = w;"
            else:
                at = f"((({kept} + i) * {columns} + c) * {cut.block} + int(threadIdx.x)) * 4 + e"
                put = f"matrix_{number}[{at}] = w;"
            exact = cut.stride == cut.units and cut.block * cut.width == cut.own_units * cut.lanes
            form = (
                f"{first}, {count}, {cut.units}, {cut.lanes}, {cut.width}, {multiply.parts}, "
                f"{str(exact).lower()}"
            )
            self.out(
                1,
                f"load_matrix<{form}>([&](int i, int e, int c, float w) {{ {put} }}, {self.operand(state)}, "
                f"{part * cut.units}, {k_stride}, {column_stride}, {multiply.first}, first_unit, end_unit, lane);",
            )

    def start_rows(self) -> None:
        """Zeros where rows are padded, and the rows of the first turn."""
        cut = self.cut
        for number, moved in enumerate(self.steps.moved):
            count = self.slots[number].buffers * self.slot_elements(moved)
            if cut.stride > cut.units:
                self.out(
                    1,
                    f"for (int i = int(threadIdx.x); i < {count}; i += {cut.block}) rows_{number}[i] = 0.0f;",
                )
        if cut.stride > cut.units and self.steps.moved:
            self.out(1, "__syncthreads();  // the zeros are there")
        for number, moved in enumerate(self.steps.moved):
            if not moved.carried:
                continue
            for at, part in enumerate(moved.parts):
                read = self.reads[part.name]
                access = self.access(read.name, read.state, None)
                self.out(
                    1,
                    f"for (int i = int(threadIdx.x); i < {cut.rows * cut.units}; i += {cut.block}) {{",
                )
                self.out(
                    2,
                    f"const int r = min(group * {cut.rows} + i / {cut.units}, {self.axes.rows - 1}), "
                    f"u = i % {cut.units} + {part.number * cut.units};",
                )
                start = self.loop.starts.get(read.state)
                value = (
                    spell_number(start)
                    if start is not None
                    else f"load_as<float>({self.operand(read.state)}[{access.spell('r', 'u', '0')}])"
                )
                to = f"{at * cut.rows * cut.stride} + i / {cut.units} * {cut.stride} + i % {cut.units}"
                self.out(2, f"rows_{number}[{to}] = {value};")
                self.out(1, "}")

    def turn(self) -> None:
        steps = self.steps
        stacked = [
            (read, part) for read in steps.reads if read.place for part in self.read_parts(read)
        ]
        if stacked and self.ahead:
            # What the next turn reads is asked for now, and arrives while this one waits.
            self.out(2, f"const int next = min(turn + 1, {self.loop.trips - 1});")
            for _, part in stacked:
                self.declare(2, part, "next_")
            for small in (False, True):
                lines = [
                    f"next_{self.variable(part)}[q] = {self.load(read, part, 'next')};"
                    for read, part in stacked
                    if part.small is small
                ]
                self.pairs(2, small, lines)
        elif stacked:
            self.out(2, "if (turn > 0) {")
            for small in (False, True):
                lines = [
                    f"{self.variable(part)}[q] = {self.load(read, part, 'turn')};"
                    for read, part in stacked
                    if part.small is small
                ]
                self.pairs(3, small, lines)
            self.out(2, "}")
        for stage in range(steps.stages + 1):
            self.compute(stage)
            if stage < steps.stages:
                self.receive(stage)
                self.multiply(stage)
                self.cross(stage)
        self.hand_on(stacked if self.ahead else [])

    def compute(self, stage: int) -> None:
        """What a stage computes for the thread's pairs, tells the others and stores."""
        for part in self.steps.computed[stage]:
            if not self.is_local(part):
                self.declare(2, part)
        for small in (False, True):
            parts = [part for part in self.steps.computed[stage] if part.small is small]
            lines = [self.spell_computed(part) for part in parts]
            lines += [] if small else self.tell(stage)
            lines += self.put_aside(stage, small)
            lines += self.store(stage, small)
            self.pairs(2, small, lines)

    def put_aside(self, stage: int, small: bool) -> Iterator[str]:
        """The left sides of products to and from small columns, where the block's threads find them."""
        cut = self.cut
        for number, multiply in enumerate(self.steps.crossings):
            spread = multiply.product.form is Form.SPREAD
            if multiply.stage != stage or spread is not small:
                continue
            size = crossing_floats(multiply, cut)[0]
            for at, part in enumerate(multiply.own):
                if spread:
                    condition = "small_live[q]"
                    place = f"small_inside[q] * {cut.small_width} + small_place[q]"
                else:
                    condition, own = "told[q]", cut.own_units
                    place = f"({at * cut.rows} + inside[q]) * {own} + unit[q] - member * {own}"
                yield f"if ({condition}) left_{number}[turn % 2 * {size} + {place}] = {self.spell(part)};"

    def spell_computed(self, part: Part) -> str:
        node = self.body[part.name]
        operands = [self.resolve(o, part.number, part.small) for o in node.operands]
        if node.op == "reduce":
            return self.spell_sum(part, operands[0])
        if is_shift(self.axes, node):
            return self.spell_shift(part, operands)
        dtypes = tuple(self.body[o].dtype for o in node.operands)
        call = k.Call(node.op, node.dtype, (), dtypes, node.attrs)
        text = spell_call(call, [self.spell(o) for o in operands])
        if node.dtype.is_narrow_float:
            text = f"round_to<{STORAGE[node.dtype]}>({text})"
        if self.is_local(part):
            return f"const {compute_type(node.dtype)} {self.variable(part)} = {text};"
        return f"{self.variable(part)}[q] = {text};"

    def spell_shift(self, part: Part, operands: Sequence[Part]) -> str:
        """Small columns of a row by other lanes than before."""
        node, width = self.body[part.name], self.cut.small_width
        dimension = self.axes.dimension(node.name, Axis.SMALL)
        assert dimension is not None
        source = self.body[node.operands[0]]
        value = self.spell(operands[0])
        if isinstance(node.attrs, PadAttrs):
            low, extent = node.attrs.low[dimension], source.shape[dimension]
            edge = self.spell(operands[1])
            text = f"shift_row<{width}, {low}, {extent}>({value}, {edge})"
        else:
            assert isinstance(node.attrs, SliceAttrs)
            start, extent = node.attrs.starts[dimension], source.shape[dimension]
            text = f"shift_row<{width}, {-start}, {extent}>({value}, {value})"
        dtype = compute_type(node.dtype)
        if self.is_local(part):
            return f"const {dtype} {self.variable(part)} = {text};"
        return f"{self.variable(part)}[q] = {text};"

    def spell_sum(self, part: Part, operand: Part) -> str:
        """A reduction over the small columns of a row, by the lanes that have them."""
        node = self.body[part.name]
        op = monoid_of(node.regions[0])
        assert op is not None
        neutral = spell_number(Literal.of(np.asarray(NEUTRAL[op], np.float32)))
        combine = f"[](float a, float b) {{ return {OPS[op].cuda.format('a', 'b')}; }}"
        value = f"{self.live(node.operands[0])} ? {self.spell(operand)} : {neutral}"
        text = f"reduce_row<{self.cut.small_width}>({value}, {combine})"
        if node.dtype.is_narrow_float:
            text = f"round_to<{STORAGE[node.dtype]}>({text})"
        if self.is_local(part):
            return f"const {compute_type(node.dtype)} {self.variable(part)} = {text};"
        return f"{self.variable(part)}[q] = {text};"

    def stage_of_value(self, part: Part) -> int:
        return self.stage_of.get(part, 0)

    def tell(self, stage: int) -> Iterator[str]:
        """The parts that others multiply by, to them: in shared memory, or as tagged words."""
        cut = self.cut
        for number, moved in enumerate(self.steps.moved):
            for at, part in enumerate(moved.parts):
                if moved.carried:
                    role = self.roles[part.name]
                    assert isinstance(role, Carried)
                    value, when = self.resolve(role.value, part.number), "turn + 1"
                    condition = f"told[q] && turn + 1 < {self.loop.trips}"
                else:
                    value, when, condition = part, "turn", "told[q]"
                if self.stage_of_value(value) != stage:
                    continue
                side = f"({when}) % 2"
                text = self.spell(value)
                if self.exchanges:
                    area = self.word_offset(number)
                    size = len(moved.parts) * cut.rows * cut.units
                    to = f"words + {area} + {side} * {size} + ({at * cut.rows} + inside[q]) * {cut.units} + unit[q]"
                    send = f"astitch_publish_word({to}, same_bits<unsigned>({text}), tag + unsigned({when}));"
                else:
                    size = self.slot_elements(moved)
                    to = f"{side} * {size} + ({at * cut.rows} + inside[q]) * {cut.stride} + unit[q]"
                    send = f"rows_{number}[{to}] = {text};"
                yield f"if ({condition}) {send}"

    def store(self, stage: int, small: bool) -> Iterator[str]:
        """The slices of stacks that are ready after a stage."""
        for state in self.share.used:
            role = self.loop.roles[state]
            if not isinstance(role, Stack):
                continue
            access = self.access(role.value, state, role.place)
            if is_small(self.loop, self.axes, role.value) is not small:
                continue
            for number, value in enumerate(self.parts_of(role.value)):
                if self.stage_of_value(value) == stage:
                    where = Part(role.value, number, small)
                    yield self.spell_store(state, where, access, value, "turn")

    def spell_store(self, state: int, where: Part, access: _Access, value: Part, turn: str) -> str:
        """where: the part as the state has it; value: what it is."""
        dtype = self.body[where.name].dtype
        row, column = self.place(where)
        at = access.spell(row, column, turn)
        stored = f"store_as<{STORAGE[dtype]}>({self.spell(value)})"
        # A value without columns, or without rows, is one thread's to store.
        mine = "stored[q]"
        if where.small:
            mine = f"small_stored[q] && {self.live(where.name)}"
        alone = "" if access.column else f" && {column} == 0"
        alone += "" if access.row or self.axes.rows == 1 else f" && {row} == 0"
        return f"if ({mine}{alone}) {self.results[state]}[{at}] = {stored};"

    def receive(self, stage: int) -> None:
        """The rows that a stage's products read."""
        cut = self.cut
        here = [(i, m) for i, m in enumerate(self.steps.moved) if m.stage == stage]
        crossings = any(m.stage == stage for m in self.steps.crossings)
        if not here and not crossings:
            return
        if self.exchanges:
            if any(self.slots[number].lent for number, _ in here):
                self.out(2, "__syncthreads();  // the rows of the stage before are read")
            for number, moved in here:
                count = len(moved.parts) * cut.rows
                each = -(-count * cut.units // cut.block)
                chunk = min(each, CHUNK if each > MAX_WORDS else MAX_WORDS)
                form = f"{count}, {cut.units}, {cut.stride}, {cut.block}, {chunk}"
                area, size = self.word_offset(number), count * cut.units
                call = (
                    f"receive_rows<{form}>(rows_{number}, {self.slot_start(number)}, "
                    f"words + {area} + turn % 2 * {size}, tag + unsigned(turn));"
                )
                self.out(2, f"if (turn > 0) {call}" if moved.carried else call)
        self.out(2, "__syncthreads();  // the rows are there")

    def slot_start(self, number: int) -> str:
        """Where the turn's rows of a Moved begin in their slot."""
        size = self.slot_elements(self.steps.moved[number])
        return f"turn % 2 * {size}" if self.slots[number].buffers == 2 else "0"

    def cross(self, stage: int) -> None:
        """The products of a stage to and from small columns."""
        for number, multiply in enumerate(self.steps.crossings):
            if multiply.stage == stage and multiply.product.form is Form.SPREAD:
                self.spread(number, multiply)
        for number, multiply in enumerate(self.steps.crossings):
            if multiply.stage == stage and multiply.product.form is Form.COLLECT:
                self.collect(number, multiply)

    def round(self, name: str, value: str) -> str:
        dtype = self.body[name].dtype
        return f"round_to<{STORAGE[dtype]}>({value})" if dtype.is_narrow_float else value

    def spread(self, number: int, multiply: Multiply) -> None:
        """From small columns, which every block has, to units: the copies of a pair share them, and add up."""
        cut, parts = self.cut, product_parts(multiply)
        turns, width = -(-cut.small // cut.copies), cut.small_width
        size = crossing_floats(multiply, cut)[0]
        for part in parts:
            self.declare(2, part)
        lines = [f"float sum[{len(parts)}] = {{}};", "#pragma unroll"]
        lines += [
            f"for (int i = 0; i < {turns}; ++i) {{",
            f"  const int k = min(i * {cut.copies} + lane % {cut.copies}, {cut.small - 1});",
            f"  const float x = left_{number}[turn % 2 * {size} + inside[q] * {width} + k];",
        ]
        for g in range(len(parts)):
            weight = f"cross_{number}[(q * {turns} + i) * {len(parts)} + {g}]"
            lines.append(f"  sum[{g}] = fmaf(x, {weight}, sum[{g}]);")
        lines.append("}")
        for g, part in enumerate(parts):
            value = f"add_copies<{cut.copies}>(sum[{g}])"
            lines.append(f"{self.variable(part)}[q] = {self.round(part.name, value)};")
        self.pairs(2, False, lines)

    def collect(self, number: int, multiply: Multiply) -> None:
        """From units to small columns: each block adds up what its units give, then its share of all pairs over the
        blocks of the group, and everyone gets the sums."""
        cut, (part,) = self.cut, product_parts(multiply)
        own, k, name = cut.own_units, len(multiply.own), multiply.product.name
        left, parts, sums = crossing_floats(multiply, cut)
        self.declare(2, part)
        at = f"left_{number}[turn % 2 * {left} + ((i / {own}) * {cut.rows} + small_inside[q]) * {own} + i % {own}]"
        lines = [
            "float sum = 0.0f;",
            "#pragma unroll",
            f"for (int i = 0; i < {k * own}; ++i) sum = fmaf({at}, cross_{number}[q * {k * own} + i], sum);",
        ]
        if not self.exchanges:
            self.pairs(2, True, [*lines, f"{self.variable(part)}[q] = {self.round(name, 'sum')};"])
            return
        before = sum(m.product.form is Form.COLLECT for m in self.steps.crossings[:number])
        part_words, sum_words = self.collect_words
        area = self.moved_words + 2 * before * (part_words + sum_words)
        to_parts = f"words + {area} + turn % 2 * {part_words}"
        to_sums = f"words + {area + 2 * part_words} + turn % 2 * {sum_words}"
        pair = f"(small_inside[q] * {cut.small} + small_place[q])"
        send = (
            f"if (small_live[q]) astitch_publish_word({to_parts} + {pair} * {cut.members} + member, "
            "same_bits<unsigned>(sum), tag + unsigned(turn));"
        )
        self.pairs(2, True, [*lines, send])
        pairs, mine = cut.rows * cut.small, f"member * {cut.sums}"
        self.out(
            2,
            f"const int sums_{number}_count = max(0, min({cut.sums}, {pairs} - {mine}));",
        )
        words, chunk = cut.sums * cut.members, min(CHUNK, -(-cut.sums * cut.members // cut.block))
        self.out(
            2,
            f"receive_words<{words}, {cut.block}, {chunk}>(parts_{number}, turn % 2 * {parts}, "
            f"{to_parts} + {mine} * {cut.members}, sums_{number}_count * {cut.members}, tag + unsigned(turn));",
        )
        self.out(2, "__syncthreads();  // the parts of all blocks are there")
        self.out(
            2,
            f"add_parts<{cut.members}, {cut.block}>(parts_{number}, turn % 2 * {parts}, {to_sums} + {mine}, "
            f"sums_{number}_count, tag + unsigned(turn));",
        )
        each = -(-pairs // cut.block)
        form = f"{cut.rows}, {cut.small}, {cut.small_width}, {cut.block}, {min(each, CHUNK)}"
        self.out(
            2,
            f"receive_rows<{form}>(sums_{number}, turn % 2 * {sums}, {to_sums}, tag + unsigned(turn));",
        )
        self.out(2, "__syncthreads();  // the sums are there")
        value = f"sums_{number}[turn % 2 * {sums} + small_inside[q] * {cut.small_width} + small_place[q]]"
        self.pairs(2, True, [f"{self.variable(part)}[q] = {self.round(name, value)};"])

    def multiply(self, stage: int) -> None:
        cut = self.cut
        for number, multiply in enumerate(self.steps.products):
            if multiply.stage != stage:
                continue
            columns = multiply.parts * cut.width
            parts = product_parts(multiply)
            for part in parts:
                self.declare(2, part)
            self.out(2, "{")
            self.out(3, f"float sum[{cut.rows * columns}] = {{}};")
            for part_number, first, count, kept, registers in self.spans(number):
                source, at = multiply.left[part_number]
                start = f"{self.slot_start(source)} + {at * cut.rows * cut.stride}"
                form = f"{first}, {count}, {cut.rows}, {columns}, {cut.lanes}, {cut.stride}"
                if registers:
                    self.out(
                        3,
                        f"add_product<{kept}, {form}>(sum, weights_{number}, rows_{source}, {start}, lane);",
                    )
                else:
                    place = kept * columns * cut.block * 4
                    self.out(
                        3,
                        f"add_shared_product<{form}, {cut.block}>(sum, matrix_{number}, {place}, "
                        f"rows_{source}, {start}, lane);",
                    )
            pairs = cut.rows * cut.width
            self.out(3, f"share_pairs<{cut.lanes}, {pairs}, {multiply.parts}>(sum, lane);")
            values = [f"sum[q * {multiply.parts} + {i}]" for i in range(multiply.parts)]
            lines = [
                f"{self.variable(part)}[q] = {self.round(part.name, value)};"
                for part, value in zip(parts, values, strict=True)
            ]
            self.pairs(3, False, lines)
            self.out(2, "}")

    def hand_on(self, stacked: Sequence[tuple[Read, Part]]) -> None:
        """The state of the next turn."""
        moves: dict[bool, list[tuple[str, str]]] = {False: [], True: []}
        for parameter, role in self.roles.items():
            read = self.reads.get(parameter)
            if not isinstance(role, Carried) or read is None:
                continue
            for part in self.read_parts(read):
                value = self.resolve(role.value, part.number, part.small)
                moves[part.small].append((self.variable(part), self.spell(value)))
        for _, part in stacked:
            moves[part.small].append((self.variable(part), f"next_{self.variable(part)}[q]"))
        self.finals()
        for small, all_ in moves.items():
            lines = [f"const auto new_{i} = {value};" for i, (_, value) in enumerate(all_)]
            lines += [f"{to}[q] = new_{i};" for i, (to, _) in enumerate(all_)]
            self.pairs(2, small, lines)

    def finals(self) -> None:
        """The carried states that somebody reads after the loop."""
        lines: dict[bool, list[str]] = {False: [], True: []}
        for state in self.share.used:
            role = self.loop.roles[state]
            if isinstance(role, Carried):
                # The parameter has no axes where no turn reads what the one before left there.
                access = self.access(role.value, state, None)
                small = is_small(self.loop, self.axes, role.value)
                for number, value in enumerate(self.parts_of(role.value)):
                    where = Part(role.value, number, small)
                    lines[small].append(self.spell_store(state, where, access, value, "0"))
        if any(lines.values()):
            self.out(2, f"if (turn == {self.loop.trips - 1}) {{")
            for small, all_ in lines.items():
                self.pairs(3, small, all_)
            self.out(2, "}")


def product_parts(multiply: Multiply) -> list[Part]:
    """The parts of a product's result that somebody needs."""
    name, small = multiply.product.name, multiply.product.form is Form.COLLECT
    return [Part(name, multiply.first + i, small) for i in range(multiply.parts)]
