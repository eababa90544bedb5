"""A LoopPlan -> the CUDA text of its kernel, and how it is launched.

The text is one loop over the turns: what each stage computes for a thread's pairs, the rows that blocks tell each
other, the products.  cuda/loops.cuh has the words for the last two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from astitch import kernel_ir as k
from astitch.emit_cuda import STORAGE, comment, compute_type, spell_call, spell_number
from astitch.ir import ConstantAttrs, Node
from astitch.loop_analysis import Affine, Carried, Place, Stack
from astitch.loop_axes import Axis
from astitch.loop_plan import (
    MAX_WORDS,
    LoopPlan,
    Moved,
    Part,
    Read,
    Resolver,
    Share,
    count_parts,
    count_slot_bytes,
)
from astitch.program import CudaKernel

TAGGED_WORDS = 128
"""Barrier words before the tagged ones (see cuda/astitch.cuh)."""

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
        barrier_words=TAGGED_WORDS + 2 * words if words else 0,
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
            for number in range(multiply.parts):
                self.stage_of[Part(multiply.product.name, number)] = multiply.stage + 1
        self.reads: Mapping[str, Read] = {read.name: read for read in self.steps.reads}
        self.lines: list[str] = []
        self.operands: dict[int, str] = {}
        self.results = {state: f"result_{state}" for state in share.used}
        self.exchanges = self.cut.members > 1
        self.slots, self.weights, self.shared_bytes = self.place_slots()
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
        return f"{self.names[part.name]}_{part.number}"

    def operand(self, state: int) -> str:
        return self.operands.setdefault(state, f"state_{state}")

    def parts_of(self, name: str) -> list[Part]:
        return [self.resolve(name, i) for i in range(count_parts(self.loop, self.axes, name))]

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
        terms = f"turn * {value.scale} + {value.offset}" if value.scale else str(value.offset)
        return f"({STORAGE[node.dtype]})({terms})"

    def find_locals(self) -> set[Part]:
        used: dict[Part, set[int]] = {}
        for stage, parts in enumerate(self.steps.computed):
            for part in parts:
                for operand in self.body[part.name].operands:
                    used.setdefault(self.resolve(operand, part.number), set()).add(stage)
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
        return _Access(
            strides[row] if row is not None else 0,
            strides[column] if column is not None else 0,
            strides[place.dimension] if place else 0,
            place.index if place else None,
        )

    def load(self, read: Read, part: Part, turn: str, q: str = "q") -> str:
        access = self.access(read.name, read.state, read.place)
        dtype = self.body[read.name].dtype
        column = f"(unit[{q}] + {part.number * self.cut.units})" if part.number else f"unit[{q}]"
        at = access.spell(f"row[{q}]", column, turn)
        return f"load_as<{compute_type(dtype)}>({self.operand(read.state)}[{at}])"

    def read_parts(self, read: Read) -> list[Part]:
        return [Part(read.name, i) for i in range(count_parts(self.loop, self.axes, read.name))]

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
    def group_words(self) -> int:
        """Tagged words of a group."""
        parts = sum(2 * len(m.parts) for m in self.steps.moved)
        return parts * self.cut.rows * self.cut.units if self.exchanges else 0

    @property
    def all_words(self) -> int:
        return self.group_words * self.cut.groups

    def place_slots(self) -> tuple[list[int], list[int], int]:
        """Offsets of the rows of each Moved, of the shared shares of each product, and all bytes."""
        cut, offset = self.cut, 0
        slots, weights = [], []
        for moved in self.steps.moved:
            slots.append(offset)
            offset += 2 * len(moved.parts) * cut.rows * cut.stride * 4
        assert offset == count_slot_bytes(self.steps, cut)
        for multiply, held in zip(self.steps.products, self.share.held, strict=True):
            weights.append(offset)
            left = cut.vectors * len(multiply.left) - held
            offset += left * 16 * multiply.parts * cut.width * cut.block
        return slots, weights, offset

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
            count = 2 * self.slot_elements(moved)
            self.out(1, f"ASTITCH_SHARED(float, rows_{number}, {self.slots[number]}, {count});")
        for number, multiply in enumerate(steps.products):
            if left := self.shared_vectors(number):
                count = left * 4 * multiply.parts * cut.width * cut.block
                self.out(
                    1, f"ASTITCH_SHARED(float, matrix_{number}, {self.weights[number]}, {count});"
                )
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
        for number in range(len(steps.products)):
            self.load_matrix(number)
        for read in steps.reads:
            dtype = compute_type(self.body[read.name].dtype)
            for part in self.read_parts(read):
                self.out(1, f"{dtype} {self.variable(part)}[{q}];")
        self.out(1, "#pragma unroll")
        self.out(1, f"for (int q = 0; q < {q}; ++q) {{")
        for read in steps.reads:
            for part in self.read_parts(read):
                self.out(2, f"{self.variable(part)}[q] = {self.load(read, part, '0')};")
        self.out(1, "}")
        self.start_rows()

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
            form = f"{first}, {count}, {cut.units}, {cut.lanes}, {cut.width}, {multiply.parts}"
            self.out(
                1,
                f"load_matrix<{form}>([&](int i, int e, int c, float w) {{ {put} }}, {self.operand(state)}, "
                f"{part * cut.units}, {k_stride}, {column_stride}, first_unit, end_unit, lane);",
            )

    def start_rows(self) -> None:
        """Zeros where rows are padded, and the rows of the first turn."""
        cut = self.cut
        for number, moved in enumerate(self.steps.moved):
            count = 2 * self.slot_elements(moved)
            if cut.stride > cut.units:
                self.out(
                    1,
                    f"for (int i = int(threadIdx.x); i < {count}; i += {cut.block}) rows_{number}[i] = 0.0f;",
                )
        if any(cut.stride > cut.units and m.carried for m in self.steps.moved):
            self.out(1, "__syncthreads();")
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
                value = f"{self.operand(read.state)}[{access.spell('r', 'u', '0')}]"
                to = f"{at * cut.rows * cut.stride} + i / {cut.units} * {cut.stride} + i % {cut.units}"
                self.out(2, f"rows_{number}[{to}] = load_as<float>({value});")
                self.out(1, "}")

    def turn(self) -> None:
        steps, q = self.steps, self.cut.owned
        # What the next turn reads is asked for now, and arrives while this one waits.
        stacked = [
            (read, part) for read in steps.reads if read.place for part in self.read_parts(read)
        ]
        if stacked:
            self.out(2, f"const int next = min(turn + 1, {self.loop.trips - 1});")
            for read, part in stacked:
                dtype = compute_type(self.body[read.name].dtype)
                self.out(2, f"{dtype} next_{self.variable(part)}[{q}];")
            self.out(2, "#pragma unroll")
            self.out(2, f"for (int q = 0; q < {q}; ++q) {{")
            for read, part in stacked:
                self.out(3, f"next_{self.variable(part)}[q] = {self.load(read, part, 'next')};")
            self.out(2, "}")
        for stage in range(steps.stages + 1):
            self.compute(stage)
            if stage < steps.stages:
                self.receive(stage)
                self.multiply(stage)
        self.hand_on(stacked)

    def compute(self, stage: int) -> None:
        """What a stage computes for the thread's pairs, tells the others and stores."""
        q = self.cut.owned
        for part in self.steps.computed[stage]:
            if not self.is_local(part):
                dtype = compute_type(self.body[part.name].dtype)
                self.out(2, f"{dtype} {self.variable(part)}[{q}];")
        body: list[str] = []
        for part in self.steps.computed[stage]:
            body.append(self.spell_computed(part))
        body += self.tell(stage)
        body += self.store(stage)
        if body:
            self.out(2, "#pragma unroll")
            self.out(2, f"for (int q = 0; q < {q}; ++q) {{")
            self.lines += [f"      {line}" for line in body]
            self.out(2, "}")

    def spell_computed(self, part: Part) -> str:
        node = self.body[part.name]
        operands = [self.resolve(o, part.number) for o in node.operands]
        dtypes = tuple(self.body[o].dtype for o in node.operands)
        call = k.Call(node.op, node.dtype, (), dtypes, node.attrs)
        text = spell_call(call, [self.spell(o) for o in operands])
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

    def store(self, stage: int) -> Iterator[str]:
        """The slices of stacks that are ready after a stage."""
        for state in self.share.used:
            role = self.loop.roles[state]
            if not isinstance(role, Stack):
                continue
            access = self.access(role.value, state, role.place)
            for number in range(count_parts(self.loop, self.axes, role.value)):
                value = self.resolve(role.value, number)
                if self.stage_of_value(value) == stage:
                    yield self.spell_store(state, role.value, access, number, value, "turn")

    def spell_store(
        self, state: int, name: str, access: _Access, number: int, value: Part, turn: str
    ) -> str:
        column = f"(unit[q] + {number * self.cut.units})" if number else "unit[q]"
        dtype = self.body[name].dtype
        at = access.spell("row[q]", column, turn)
        stored = f"store_as<{STORAGE[dtype]}>({self.spell(value)})"
        # A value without columns, or without rows, is one thread's to store.
        alone = "" if access.column else " && unit[q] == 0"
        alone += "" if access.row or self.axes.rows == 1 else " && row[q] == 0"
        return f"if (stored[q]{alone}) {self.results[state]}[{at}] = {stored};"

    def receive(self, stage: int) -> None:
        """The rows that a stage's products read."""
        cut = self.cut
        here = [(i, m) for i, m in enumerate(self.steps.moved) if m.stage == stage]
        if not here:
            return
        if self.exchanges:
            for number, moved in here:
                count = len(moved.parts) * cut.rows
                each = -(-count * cut.units // cut.block)
                chunk = min(each, CHUNK if each > MAX_WORDS else MAX_WORDS)
                form = f"{count}, {cut.units}, {cut.stride}, {cut.block}, {chunk}"
                area, size = self.word_offset(number), count * cut.units
                call = (
                    f"receive_rows<{form}>(rows_{number}, turn % 2 * {self.slot_elements(moved)}, "
                    f"words + {area} + turn % 2 * {size}, tag + unsigned(turn));"
                )
                self.out(2, f"if (turn > 0) {call}" if moved.carried else call)
        self.out(2, "__syncthreads();  // the rows are there")

    def multiply(self, stage: int) -> None:
        cut, q = self.cut, self.cut.owned
        for number, multiply in enumerate(self.steps.products):
            if multiply.stage != stage:
                continue
            columns = multiply.parts * cut.width
            dtype = self.body[multiply.product.name].dtype
            parts = [Part(multiply.product.name, i) for i in range(multiply.parts)]
            for part in parts:
                self.out(2, f"float {self.variable(part)}[{q}];")
            self.out(2, "{")
            self.out(3, f"float sum[{cut.rows * columns}] = {{}};")
            for part_number, first, count, kept, registers in self.spans(number):
                source, at = multiply.left[part_number]
                start = (
                    f"turn % 2 * {self.slot_elements(self.steps.moved[source])} + "
                    f"{at * cut.rows * cut.stride}"
                )
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
            values: list[str] = []
            for i, part in enumerate(parts):
                value = f"sum[q * {multiply.parts} + {i}]"
                if dtype.is_narrow_float:
                    value = f"round_to<{STORAGE[dtype]}>({value})"
                values.append(f"{self.variable(part)}[q] = {value};")
            self.out(3, "#pragma unroll")
            self.out(3, f"for (int q = 0; q < {q}; ++q) {{")
            self.lines += [f"        {value}" for value in values]
            self.out(3, "}")
            self.out(2, "}")

    def hand_on(self, stacked: Sequence[tuple[Read, Part]]) -> None:
        """The state of the next turn."""
        moves: list[tuple[str, str]] = []
        for parameter, role in self.roles.items():
            if not isinstance(role, Carried) or parameter not in self.reads:
                continue
            for i in range(count_parts(self.loop, self.axes, parameter)):
                moves.append(
                    (self.variable(Part(parameter, i)), self.spell(self.resolve(role.value, i)))
                )
        for _, part in stacked:
            moves.append((self.variable(part), f"next_{self.variable(part)}[q]"))
        self.finals()
        if moves:
            self.out(2, "#pragma unroll")
            self.out(2, f"for (int q = 0; q < {self.cut.owned}; ++q) {{")
            for i, (_, value) in enumerate(moves):
                self.out(3, f"const auto new_{i} = {value};")
            for i, (to, _) in enumerate(moves):
                self.out(3, f"{to}[q] = new_{i};")
            self.out(2, "}")

    def finals(self) -> None:
        """The carried states that somebody reads after the loop."""
        lines: list[str] = []
        for state in self.share.used:
            role = self.loop.roles[state]
            if isinstance(role, Carried):
                access = self.access(self.body.parameters[state], state, None)
                for number in range(count_parts(self.loop, self.axes, role.value)):
                    value = self.resolve(role.value, number)
                    lines.append(self.spell_store(state, role.value, access, number, value, "0"))
        if lines:
            self.out(2, f"if (turn == {self.loop.trips - 1}) {{")
            self.out(3, "#pragma unroll")
            self.out(3, f"for (int q = 0; q < {self.cut.owned}; ++q) {{")
            self.lines += [f"        {line}" for line in lines]
            self.out(3, "}")
            self.out(2, "}")
