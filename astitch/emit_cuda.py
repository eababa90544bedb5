"""Kernel -> CUDA text.  Decides nothing: one match over the statement grammar, printed.

Names, metadata and strings from the HLO reach the text only through `comment` and the identifiers that
declarations.py made, so nothing a module contains can leave its comment or its name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from astitch.device.gpu import ACCESS_BYTES
from astitch.graph import index as ix
from astitch.graph.index import Linear, Quotient, Remainder, Symbol, Term
from astitch.graph.ir import (
    CompareAttrs,
    ConstantAttrs,
    DType,
    Graph,
    Literal,
    ReducePrecisionAttrs,
)
from astitch.graph.ops import OPS
from astitch.graph.propagation import Divisible, Guard, Within
from astitch.kernel import kernel_ir as k
from astitch.kernel.nest import LANE

STORAGE = {
    DType.PRED: "bool",
    DType.S8: "signed char",
    DType.S16: "short",
    DType.S32: "int",
    DType.S64: "long long",
    DType.U8: "unsigned char",
    DType.U16: "unsigned short",
    DType.U32: "unsigned int",
    DType.U64: "unsigned long long",
    DType.F16: "f16",
    DType.BF16: "bf16",
    DType.F32: "float",
    DType.F64: "double",
    DType.F8E4M3FN: "f8e4m3fn",
    DType.F8E5M2: "f8e5m2",
}
"""The C++ type of an element in memory."""

F8 = frozenset({DType.F8E4M3FN, DType.F8E5M2})
"""Types whose vectors wait as floats (Lanes) until they are stored: conversion takes two elements at once."""


SCALARS_TOGETHER = 32
"""Single elements that a thread may load before it needs the first: half of the registers of a crowded SM's threads."""

MANY_SECTIONS = 4
"""Sections of different blocks that are not worth a search."""


def compute_type(dtype: DType) -> str:
    """The C++ type of a value in a register: floats of 8 and 16 bits are held as float."""
    return "float" if dtype.is_narrow_float else STORAGE[dtype]


def comment(text: str) -> str:
    """Text that is safe after //: printable ASCII, no backslash (it would continue the line), bounded."""
    safe = "".join(c if c.isascii() and c.isprintable() and c != "\\" else "." for c in text)
    return safe if len(safe) <= 160 else safe[:157] + "..."


# ---- expressions -----------------------------------------------------------------------------------------------


def spell_term(term: Term) -> str:
    match term:
        case Symbol(name, _):
            return name
        case Quotient(dividend, divisor):
            if is_cut(dividend, divisor):
                return f"({spell_form(dividend)}) >> {divisor.bit_length() - 1}"
            return f"({spell_form(dividend)}) / {divisor}"
        case Remainder(dividend, divisor):
            if is_cut(dividend, divisor):
                return f"({spell_form(dividend)}) & {divisor - 1}"
            return f"({spell_form(dividend)}) % {divisor}"


def is_cut(dividend: Linear, divisor: int) -> bool:
    """Do quotient and remainder consist of the dividend's bits?  The compiler would ask a signed one for its sign."""
    return divisor & (divisor - 1) == 0 and ix.bounds(dividend)[0] >= 0


def spell_form(form: Linear) -> str:
    parts = []
    # Lanes and loop counters are ints: what they are multiplied with, and the first term of a sum, say how wide it is.
    wide = not _is_int(form)
    for number, (term, coefficient) in enumerate(form.terms):
        text = spell_term(term)
        if not isinstance(term, Symbol):
            text = f"({text})"
        if wide and (number == 0 or not _is_int(Linear(0, ((term, coefficient),)))):
            text = f"{text} * {coefficient}LL"
        elif coefficient != 1:
            text = f"{text} * {coefficient}"
        parts.append(text)
    if form.constant or not parts:
        parts.append(spell_integer(form.constant))
    return " + ".join(parts).replace("+ -", "- ")


def _is_int(form: Linear) -> bool:
    """Does a sum of ints give it, also before the constant is added?  A symbol without a bound is a variable,
    as wide as its declaration says."""
    bounded = tuple(
        (_LANE if term == LANE else term, coefficient)
        for term, coefficient in form.terms
        if all(s.extent < ix.UNBOUNDED for s in ix.symbols(Linear(0, ((term, 1),))))
    )
    low, high = ix.bounds(Linear(0, bounded))
    reached = (low, high, low + form.constant, high + form.constant)
    return all(-(2**31) < value < 2**31 for value in reached)


_LANE = Symbol(LANE.name, ACCESS_BYTES)
"""No vector has more lanes."""


def spell_integer(value: int) -> str:
    """As an int, or as a long long, of which hlo_math.cuh knows the type; C++ would take long for it."""
    return str(value) if -(2**31) < value < 2**31 else f"{value}LL"


def spell_number(literal: Literal) -> str:
    """A literal that the compiler reads back to exactly the same bits (NaNs: a NaN)."""
    dtype, value = literal.dtype, literal.numpy().reshape(())
    if dtype is DType.PRED:
        return "true" if value else "false"
    if dtype.is_integer:
        number = int(value)
        suffix = {DType.U32: "u", DType.S64: "ll", DType.U64: "ull"}.get(dtype, "")
        text = f"(-{-(number + 1)}{suffix} - 1)" if number < 0 else f"{number}{suffix}"
        narrow = dtype.bytes < 4
        return f"({STORAGE[dtype]})({text})" if narrow else text
    wide = dtype is DType.F64
    number_f = float(value)
    if not math.isfinite(number_f):
        bits = np.asarray(number_f, np.float64 if wide else np.float32)
        return (
            f"same_bits<double>({int(bits.view(np.uint64)):#x}ull)"
            if wide
            else f"same_bits<float>({int(bits.view(np.uint32)):#x}u)"
        )
    text = repr(number_f) if wide else str(np.float32(number_f))
    if "." not in text and "e" not in text:
        text += ".0"
    return text if wide else text + "f"


def spell_call(call: k.Call, operands: Sequence[str]) -> str:
    match call.op, call.attrs:
        case "compare", CompareAttrs(direction, total_order):
            suffix = "_total" if total_order else ""
            return f"hlo_compare_{direction.lower()}{suffix}({', '.join(operands)})"
        case "convert", _:
            return f"hlo_convert<{STORAGE[call.dtype]}, {STORAGE[call.operand_dtypes[0]]}>({operands[0]})"
        case "bitcast-convert", _:
            to, source = call.dtype, call.operand_dtypes[0]
            kind = (
                "" if to.bytes == source.bytes else "_part" if to.bytes < source.bytes else "_join"
            )
            return f"hlo_bitcast{kind}<{STORAGE[to]}, {STORAGE[source]}>({', '.join(operands)})"
        case "reduce-precision", ReducePrecisionAttrs(exponent, mantissa):
            own = f", {STORAGE[call.dtype]}" if call.dtype.is_narrow_float else ""
            return f"hlo_reduce_precision<{exponent}, {mantissa}{own}>({operands[0]})"
    if call.shared_divisor:
        return f"hlo_divide_shared({', '.join(operands)})"
    row = OPS[call.op]
    if row.narrow_cuda and call.ends_narrow:
        return row.narrow_cuda.format(*operands, T=STORAGE[DType.F16])
    if row.narrow_cuda and call.dtype in (DType.F16, DType.BF16):
        return row.narrow_cuda.format(*operands, T=STORAGE[call.dtype])
    return row.cuda.format(*operands)


def spell_store(dtype: DType, expr: k.Expr) -> str:
    """The element of storage type that holds the expression; a name is a value of `dtype` already."""
    exact = dtype is DType.BF16 and isinstance(expr, k.Name | k.Number | k.Lane)
    return f"{'store_exact' if exact else 'store_as'}<{STORAGE[dtype]}>({spell(expr)})"


def spell(expr: k.Expr) -> str:
    """A scalar in its compute type."""
    match expr:
        case k.Name(name):
            return name
        case k.Number(value):
            return spell_number(value)
        case k.Call():
            return spell_call(expr, [spell(o) for o in expr.operands])
        case k.Position(form, dtype):
            return f"hlo_convert<{STORAGE[dtype]}>({spell_form(form)})"
        case k.Lane(vector, DType.BF16):
            return f"bf16_lane({vector}, lane)"
        case k.Lane(vector, dtype):
            return f"load_as<{compute_type(dtype)}>({vector}.v[lane])"
        case k.Element(array, position, dtype, raw):
            element = f"{array}[{spell_form(position)}]"
            return f"load_as<{compute_type(dtype)}>({element})" if raw else element
        case k.Field(state, position, number):
            return f"{state}[{spell_form(position)}].f{number}"


def spell_value(dtype: DType, expr: k.Expr) -> str:
    """The expression, rounded once to its HLO dtype."""
    narrow = dtype.is_narrow_float
    exact = (isinstance(expr, k.Call) and expr.op in k.EXACT) or isinstance(
        expr, k.Lane | k.Element | k.Name | k.Number
    )
    text = spell(expr)
    return f"round_to<{STORAGE[dtype]}>({text})" if narrow and not exact else text


def spell_guard(guard: Guard) -> str:
    match guard:
        case Within(form, low, high):
            least, most = ix.bounds(form)
            text = spell_form(form)
            tests = [f"{text} >= {low}"] if least < low else []
            tests += [f"{text} < {high}"] if most >= high or not tests else []
            return " && ".join(tests)
        case Divisible(form, by):
            return f"({spell_form(form)}) % {by} == 0"


def spell_guards(guards: Sequence[Guard]) -> str:
    return " && ".join(spell_guard(g) for g in guards)


# ---- statements ------------------------------------------------------------------------------------------------


def _fetches(body: Sequence[k.Statement]) -> Iterator[k.Fetch]:
    for statement in body:
        if isinstance(statement, k.Fetch):
            yield statement
        elif isinstance(statement, k.Loop | k.If):
            yield from _fetches(statement.body)
        elif isinstance(statement, k.Switch):
            yield from _fetches(statement.cases)


class _Printer:
    def __init__(self, kernel: k.Kernel):
        self.kernel = kernel
        self.slot_names = frozenset(slot.name for slot in kernel.slots)
        self.integer = "long long" if kernel.wide_index else "int"
        self.blocks: range | None = None  # of the section that is printed, see own_blocks

    def block(self, body: Sequence[k.Statement], depth: int) -> Iterator[str]:
        scalars = 0
        for statement in body:
            if isinstance(statement, k.Load) and not statement.position.terms:
                if scalars and scalars % SCALARS_TOGETHER == 0:
                    yield f"{'  ' * depth}part_loads();"
                scalars += 1
            yield from self.statement(statement, depth)

    def statement(self, statement: k.Statement, depth: int) -> Iterator[str]:
        pad = "  " * depth
        match statement:
            case k.Index(name, form):
                yield f"{pad}const {self.integer} {name} = {spell_form(form)};"
            case k.ChooseIndex(name, cases):
                *tests, (_, last) = cases
                chosen = [f"{spell_guards(g)} ? {spell_form(form)} : " for g, form in tests]
                yield f"{pad}const {self.integer} {name} = {''.join(chosen)}{spell_form(last)};"
            case k.Start(name, expr, dtype, limit):
                value = spell(expr)
                # Unsigned starts are never negative, but may exceed what an int holds.
                size = "int" if dtype.bytes <= 4 and limit < 1 << 31 else "long long"
                kind = f"unsigned {size}" if dtype.is_unsigned else size
                clamped = f"hlo_clamp(({kind})0, ({kind}){value}, ({kind}){limit})"
                yield f"{pad}const {self.integer} {name} = ({self.integer}){clamped};"
            case k.Value(name, dtype, expr):
                yield f"{pad}const {compute_type(dtype)} {name} = {spell_value(dtype, expr)};"
            case k.Load(name, dtype, array, position):
                kind = compute_type(dtype)
                yield f"{pad}const {kind} {name} = load_as<{kind}>({array}[{spell_form(position)}]);"
            case k.LoadVector(name, dtype, array, position, width, guards):
                vector = f"Vec<{STORAGE[dtype]}, {width}>"
                at = f"{array} + ({spell_form(position)})"
                if guards:
                    yield f"{pad}{vector} {name}{{}};"
                    yield f"{pad}if ({spell_guards(guards)}) {name} = *reinterpret_cast<const {vector}*>({at});"
                else:
                    yield f"{pad}const {vector} {name} = *reinterpret_cast<const {vector}*>({at});"
            case k.VectorVariable(name, dtype, width, unrounded):
                kind = "Lanes" if unrounded or dtype in F8 else "Vec"
                yield f"{pad}{kind}<{STORAGE[dtype]}, {width}> {name};"
            case k.StoreLane(vector, dtype, expr, unrounded):
                value = spell(expr) if unrounded or dtype in F8 else spell_store(dtype, expr)
                yield f"{pad}{vector}.v[lane] = {value};"
            case k.StoreVector(array, position, vector, dtype, _, unrounded) if (
                unrounded or dtype in F8
            ):
                yield f"{pad}store_lanes({array} + ({spell_form(position)}), {vector});"
            case k.StoreVector(array, position, vector, dtype, width):
                kind = f"Vec<{STORAGE[dtype]}, {width}>"
                yield f"{pad}*reinterpret_cast<{kind}*>({array} + ({spell_form(position)})) = {vector};"
            case k.Store(array, position, dtype, expr):
                yield f"{pad}{array}[{spell_form(position)}] = {spell_store(dtype, expr)};"
            case k.Ahead(name, dtype, width, count):
                yield f"{pad}words_of<Vec<{STORAGE[dtype]}, {width}>>::type {name}[{count}];"
            case k.KeepVector(target, at, dtype, vector, width):
                if target in self.slot_names:
                    place = f"shared_vec<{STORAGE[dtype]}, {width}>({target}, ({spell_form(at)}) * {width})"
                    yield f"{pad}{place} = {vector};"
                else:
                    yield f"{pad}{target}[{spell_form(at)}] = to_words({vector});"
            case k.Advance(target, source, count):
                yield f"{pad}#pragma unroll"
                yield f"{pad}for (int i = 0; i < {count}; ++i) {target}[i] = {source}[i];"
            case k.Prefetch():
                yield from self.prefetch(statement, depth)
            case k.Fetch(target, at, dtype, array, position, width):
                kind = f"Vec<{STORAGE[dtype]}, {width}>"
                source = f"{array} + ({spell_form(position)})"
                if target in self.slot_names:
                    to = f"shared_vec<{STORAGE[dtype]}, {width}>({target}, ({spell_form(at)}) * {width})"
                    yield f"{pad}copy_async(&{to}, {source});"
                else:
                    words = f"words_of<{kind}>::type"
                    yield f"{pad}{target}[{spell_form(at)}] = *reinterpret_cast<const {words}*>({source});"
            case k.CopyWait(None):
                yield f"{pad}copy_commit();"
                yield f"{pad}copy_wait<0>();"
            case k.CopyWait(pending):
                yield f"{pad}copy_wait<{pending}>();"
            case k.TakeVector(name, dtype, source, at, width):
                kind = f"Vec<{STORAGE[dtype]}, {width}>"
                taken = f"from_words<{kind}>({source}[{spell_form(at)}])"
                if source in self.slot_names:
                    taken = f"shared_vec<{STORAGE[dtype]}, {width}>({source}, ({spell_form(at)}) * {width})"
                yield f"{pad}const {kind} {name} = {taken};"
            case k.Keep(name, dtype, count, raw):
                yield f"{pad}{STORAGE[dtype] if raw else compute_type(dtype)} {name}[{count}];"
            case k.KeepSet(name, position, dtype, expr, raw):
                value = spell_store(dtype, expr) if raw else spell(expr)
                yield f"{pad}{name}[{spell_form(position)}] = {value};"
            case k.States(name, reducer, count):
                yield f"{pad}Reduce{reducer}::State {name}[{count}];"
                yield f"{pad}#pragma unroll"
                yield f"{pad}for (int i = 0; i < {count}; ++i) {name}[i] = Reduce{reducer}::identity();"
            case k.Accumulate(state, position, reducer, values):
                at = f"{state}[{spell_form(position)}]"
                fields = ", ".join(spell(v) for v in values)
                yield f"{pad}{at} = Reduce{reducer}::combine({at}, Reduce{reducer}::State{{{fields}}});"
            case k.AccumulateProduct(state, position, a, b):
                field = f"{state}[{spell_form(position)}].f0"
                yield f"{pad}{field} = hlo_multiply_add({spell(a)}, {spell(b)}, {field});"
            case k.AccumulateElement(state, position, reducer, value):
                kind = self.kernel.reducers[reducer].joint
                yield f"{pad}add_to_{kind}({state}[{spell_form(position)}], {spell(value)});"
            case k.Batch(name, dtype, width):
                yield f"{pad}{compute_type(dtype)} {name}[{width}];"
            case k.BatchSet(name, _, expr):
                yield f"{pad}{name}[lane] = {spell(expr)};"
            case k.AccumulateBatch(state, position, reducer, batch):
                kind = self.kernel.reducers[reducer].joint
                yield f"{pad}add_batch_to_{kind}({state}[{spell_form(position)}], {batch});"
            case k.AccumulateState(state, position, reducer, arrays, where):
                at = f"{state}[{spell_form(position)}]"
                dtypes = self.kernel.reducers[reducer].fields
                fields = ", ".join(
                    f"load_as<{compute_type(d)}>({a}[{spell_form(where)}])"
                    for a, d in zip(arrays, dtypes, strict=True)
                )
                yield f"{pad}{at} = Reduce{reducer}::combine({at}, Reduce{reducer}::State{{{fields}}});"
            case k.ReduceAcross():
                for line in self.reduction(statement):
                    yield pad + line
            case k.ScanAcross():
                yield pad + self.scan(statement)
            case k.Rounds(variable, count, backward, body):
                loop = f"int {variable} = 0; {variable} < {count}; ++{variable}"
                if backward:
                    loop = f"int {variable} = {count - 1}; {variable} >= 0; --{variable}"
                yield f"{pad}#pragma unroll 1"
                yield f"{pad}for ({loop}) {{"
                yield from self.block(body, depth + 1)
                yield f"{pad}}}"
            case k.FetchRound(first, variable, count, backward, body):
                if first:
                    yield f"{pad}{{"
                    yield f"{pad}  const int {variable} = {count - 1 if backward else 0};"
                else:
                    step = (
                        f"{variable} - 1; next >= 0"
                        if backward
                        else f"{variable} + 1; next < {count}"
                    )
                    yield f"{pad}if (const int next = {step}) {{"
                    yield f"{pad}  const int {variable} = next;"
                yield from self.block(body, depth + 1)
                yield f"{pad}}}"
                yield f"{pad}copy_commit();"
            case k.Finish(state, count, reducer, inits):
                fields = ", ".join(spell(v) for v in inits)
                yield f"{pad}#pragma unroll"
                yield (
                    f"{pad}for (int i = 0; i < {count}; ++i) {state}[i] = "
                    f"Reduce{reducer}::combine(Reduce{reducer}::State{{{fields}}}, {state}[i]);"
                )
            case k.Loop(variable, count, unroll, body, bound, together):
                if bound is not None:
                    end = spell_form(bound)
                    yield f"{pad}#pragma unroll {together}"
                    yield (
                        f"{pad}for (int {variable} = 0, {variable}_end = {end} < {count} ? {end} : {count}; "
                        f"{variable} < {variable}_end; ++{variable}) {{"
                    )
                elif count == 1:
                    yield f"{pad}{{"
                    yield f"{pad}  const int {variable} = 0;"
                else:
                    yield f"{pad}#pragma unroll{'' if unroll else f' {together}'}"
                    yield f"{pad}for (int {variable} = 0; {variable} < {count}; ++{variable}) {{"
                yield from self.block(body, depth + 1)
                yield f"{pad}}}"
            case k.If(guards, body):
                yield f"{pad}if ({spell_guards(guards)}) {{"
                yield from self.block(body, depth + 1)
                yield f"{pad}}}"
            case k.Switch(cases):
                for number, found in enumerate(cases):
                    head = "" if number == 0 else "} else "
                    test = f"if ({spell_guards(found.guards)}) " if found.guards else ""
                    yield f"{pad}{head}{test}{{"
                    yield from self.block(found.body, depth + 1)
                yield f"{pad}}}"
            case k.Choose(name, dtype, branches):
                yield f"{pad}{compute_type(dtype)} {name};"
                for number, branch in enumerate(branches):
                    head = "" if number == 0 else "} else "
                    test = f"if ({spell_guards(branch.guards)}) " if branch.guards else ""
                    yield f"{pad}{head}{test}{{"
                    yield from self.block(branch.body, depth + 1)
                    yield f"{pad}  {name} = {spell(branch.result)};"
                yield f"{pad}}}"
            case k.Section():
                yield from self.section(statement, depth)
            case k.Common(body):
                yield from self.block(body, depth)
            case k.TaskLoop(tasks, once, body, ring, lag):
                if once:
                    yield f"{pad}{self.taking_part(tasks)}{{"
                    yield f"{pad}  const {self.integer} task = first;"
                else:
                    if ring:
                        yield f"{pad}int turn = {ring - 1};"
                    end = f"{tasks} + {lag} * gridDim.x" if lag else f"{tasks}"
                    yield f"{pad}for ({self.integer} task = first; task < {end}; task += gridDim.x) {{"
                    if ring:
                        yield f"{pad}  turn = turn == {ring - 1} ? 0 : turn + 1;"
                yield from self.block(body, depth + 1)
                yield f"{pad}}}"
            case k.Barrier("global", reason):
                yield f"{pad}ASTITCH_GLOBAL_BARRIER(barrier);  // {comment(reason)}"
            case k.Current(tasks, body):
                yield f"{pad}if (task < {tasks}) {{"
                yield from self.block(body, depth + 1)
                yield f"{pad}}} else __syncthreads();  // parts what comes before from what comes after, as inside"
            case k.Previous(ring, body, lag):
                back = f"{lag} * int(gridDim.x)"
                yield f"{pad}if (task - {back} >= first) {{"
                yield f"{pad}  const {self.integer} last_task = task - {back};"
                yield f"{pad}  const int last_turn = turn < {lag} ? turn + {ring - lag} : turn - {lag};"
                yield f"{pad}  {{"
                yield f"{pad}    const {self.integer} task = last_task;"
                yield f"{pad}    const int turn = last_turn;"
                yield from self.block(body, depth + 2)
                yield f"{pad}  }}"
                yield f"{pad}}} else __syncthreads();"
            case k.Publish(area, element, part, state, at, reducer):
                each, other = area.strides
                slot = ix.offset(
                    ix.add(ix.scale(element, each), ix.scale(part, other)), area.offset
                )
                to = f"exchange + ({spell_form(slot)})"
                yield f"{pad}Reduce{reducer}::publish({state}[{spell_form(at)}], {to}, tag);"
            case k.Collect(area, element, state, at, reducer, members, rank):
                each, other = area.strides
                start = ix.offset(ix.scale(element, each), area.offset)
                arguments = f"{state}[{spell_form(at)}], exchange + ({spell_form(start)}), {spell_form(rank)}, tag"
                yield f"{pad}collect_parts<Reduce{reducer}, {members}, {area.parts}, {other}>({arguments});"
            case k.Meeting():
                yield from self.meeting(statement, depth)
            case k.Barrier(_, reason):
                yield f"{pad}__syncthreads();  // {comment(reason)}"

    def prefetch(self, prefetch: k.Prefetch, depth: int) -> Iterator[str]:
        pad = "  " * depth
        asynchronous = any(s.target in self.slot_names for s in _fetches(prefetch.body))
        start, ahead, ring = "first" if prefetch.first else "task", prefetch.ahead, prefetch.ring
        blocks = "gridDim.x" if ahead == 1 else f"{ahead} * gridDim.x"
        later = f"{start} + {blocks}" if ahead else start
        yield f"{pad}if (const {self.integer} next = {later}; next < {prefetch.tasks}) {{"
        yield f"{pad}  const {self.integer} task = next;"
        if asynchronous and prefetch.first:
            yield f"{pad}  const int next_turn = {ahead};"
        elif asynchronous:
            place = f"turn < {ring - ahead} ? turn + {ahead} : turn - {ring - ahead}"
            yield f"{pad}  const int next_turn = {place};"
        yield from self.block(prefetch.body, depth + 1)
        yield f"{pad}}}"
        if asynchronous:
            yield f"{pad}copy_commit();"

    def meeting(self, meeting: k.Meeting, depth: int) -> Iterator[str]:
        pad = "  " * depth
        ago = f", {meeting.lag} tasks ago" if meeting.lag else ""
        warps = max(self.kernel.block // 32, 1)
        yield f"{pad}// parts of {meeting.team} blocks{ago}"
        if meeting.packed <= warps:
            yield f"{pad}if (const int warp = thread / 32; warp < {meeting.packed}) {{"
        else:
            yield f"{pad}for (int warp = thread / 32; warp < {meeting.packed}; warp += {warps}) {{"
        yield f"{pad}  const int to = warp;"
        yield from self.block(meeting.body, depth + 1)
        for total in meeting.totals:
            yield f"{pad}  if (thread % 32 == 0) {total.slot}[to] = {total.found}[0];"
        yield f"{pad}}}"
        yield f"{pad}__syncthreads();"
        for total in meeting.totals:
            yield f"{pad}Reduce{total.reducer}::State {total.state}[1] = {{{total.slot}[to]}};"

    def own_blocks(self, statement: k.Statement) -> range | None:
        """The blocks that have a task of a section, each one; None where others have something to do there too."""
        if not isinstance(statement, k.Section) or not statement.body:
            return None
        loop = statement.body[-1]
        if not isinstance(loop, k.TaskLoop) or not loop.once:
            return None
        end = statement.offset + loop.tasks
        return range(statement.offset, end) if end <= self.kernel.grid else None

    def taking_part(self, tasks: int) -> str:
        """What a block with a task of the section satisfies."""
        if self.blocks is None:
            return f"if (first < {tasks}) "
        tests = ["first >= 0"] if self.blocks.start else []
        tests += [f"first < {tasks}"] if self.blocks.stop < self.kernel.grid else []
        return f"if ({' && '.join(tests)}) " if tests else ""

    def sections(self, body: Sequence[k.Statement], depth: int) -> Iterator[str]:
        """Many sections of blocks of their own, one after the other, are found by halves: a block that passed by all
        those of others would be late.

        No block has shared memory of two of them to part by a barrier; but of one of them, and of what came before
        them all, so that a barrier between them goes in front.
        """
        run: list[k.Statement] = []
        within: list[k.Statement] = []  # barriers between sections of the run
        behind: list[k.Statement] = []  # and after the last
        stop, parted = 0, True  # does a barrier, or nothing at all, come before the run?
        for statement in body:
            blocks = self.own_blocks(statement)
            if run and isinstance(statement, k.Barrier) and statement.level == "block":
                behind.append(statement)
                continue
            if run and (blocks is None or blocks.start < stop):
                yield from self.block(within[:1] if not parted else (), depth)
                yield from self.halves(run, depth)
                yield from self.block(behind, depth)
                run, within, parted = [], [], bool(behind)
            else:
                within += behind
            behind = []
            if blocks is None:
                yield from self.statement(statement, depth)
                if not isinstance(statement, k.Common):  # which touches no shared memory
                    parted = isinstance(statement, k.Barrier)
            else:
                run.append(statement)
                stop = blocks.stop
        yield from self.block(within[:1] if not parted else (), depth)
        yield from self.halves(run, depth)
        yield from self.block(behind, depth)

    def halves(self, run: Sequence[k.Statement], depth: int) -> Iterator[str]:
        if len(run) < MANY_SECTIONS:
            yield from self.block(run, depth)
            return
        pad, middle = "  " * depth, len(run) // 2
        later = run[middle]
        assert isinstance(later, k.Section)
        yield f"{pad}if (blockIdx.x < {later.offset}) {{"
        yield from self.halves(run[:middle], depth + 1)
        yield f"{pad}}} else {{"
        yield from self.halves(run[middle:], depth + 1)
        yield f"{pad}}}"

    def section(self, section: k.Section, depth: int) -> Iterator[str]:
        pad = "  " * depth
        rows, cols = section.row_threads, section.col_threads
        yield f"{pad}{{  // loop {section.number}: {comment(section.title)}"
        inner = pad + "  "
        yield f"{inner}const int thread = threadIdx.x;"
        outer = section.outer_threads
        places = {"tx": (cols, 1), "ty": (rows, cols), "to": (outer, rows * cols)}
        if section.packed_inside:
            places = {"tx": (cols, 1), "to": (outer, cols), "ty": (rows, outer * cols)}
        for name, (threads, stride) in places.items():
            yield f"{inner}const int {name} = {self.place(threads, stride)};"
        if not section.offset:
            yield f"{inner}const int first = blockIdx.x;"
        elif self.own_blocks(section):
            yield f"{inner}const int first = int(blockIdx.x) - {section.offset};"
        else:
            later = f"blockIdx.x < {section.offset} ? gridDim.x : 0"
            yield f"{inner}const int first = blockIdx.x - {section.offset} + ({later});"
        self.blocks = self.own_blocks(section)
        yield from self.block(section.body, depth + 1)
        yield f"{pad}}}"

    def place(self, threads: int, stride: int) -> str:
        """Where a thread stands among `threads`, a power of two, that are `stride` apart: of an unsigned number."""
        if threads == 1:
            return "0"
        major = stride * threads == self.kernel.block
        text = "threadIdx.x" if stride == 1 else f"threadIdx.x / {stride}"
        return text if major else f"{text} % {threads}"

    def reduction(self, step: k.ReduceAcross) -> Iterator[str]:
        across = step.stride == 1 and step.threads > 32
        if across:
            yield from self.reduction_of_warps(step)
            return
        for part in step.parts:
            reducer = f"Reduce{part.reducer}"
            if not part.slot:
                yield f"reduce_lanes<{reducer}, {step.threads}, {step.stride}>({part.state});"
            else:
                ways = (
                    f"{'true' if step.butterfly else 'false'}, {'true' if step.alone else 'false'}"
                )
                sizes = (
                    f"{step.threads}, {step.stride}, {self.kernel.block}, {k.STRIDED_CHUNK}, {ways}"
                )
                yield f"reduce_strided<{reducer}, {sizes}>({part.state}, {part.slot});"

    def scan(self, step: k.ScanAcross) -> str:
        arguments = ", ".join((step.state, step.slot or "nullptr", step.carry or "no_carry()"))
        sizes = f"{step.steps}, {step.width}, {step.threads}"
        given = step.handover
        backward = "true" if step.backward else "false"
        if given is not None:
            each, _ = given.area.strides
            start = ix.offset(ix.scale(given.element, each), given.area.offset)
            arguments += (
                f", exchange + ({spell_form(start)}), {spell_form(given.part)}, {given.slot}, tag"
            )
            if step.columns:
                sizes += f", {step.stride}"
            kinds = f"Reduce{step.reducer}, {sizes}, {backward}, {given.area.parts}"
            return f"scan_{'columns' if step.columns else 'row'}_of_team<{kinds}>({arguments});"
        if not step.columns:
            return f"scan_row<Reduce{step.reducer}, {sizes}, {backward}>({arguments});"
        sizes += f", {step.stride}, {backward}"
        return f"scan_columns<Reduce{step.reducer}, {sizes}>({arguments});"

    def reduction_of_warps(self, step: k.ReduceAcross) -> Iterator[str]:
        """Parts with one slot are reduced together."""
        slots: dict[str, list[k.Part]] = {}
        for part in step.parts:
            slots.setdefault(part.slot, []).append(part)
        way = f"{step.threads}, {'true' if step.butterfly else 'false'}"
        second = []
        for slot, parts in slots.items():
            reducer, states = f"Reduce{parts[0].reducer}", ", ".join(p.state for p in parts)
            if len(parts) == 1:
                yield f"reduce_warps<{reducer}>({states}, {slot});"
                second.append(f"combine_warps<{reducer}, {way}>({states}, {slot});")
            else:
                yield f"reduce_warps_together<{reducer}>({slot}, {states});"
                second.append(
                    f"combine_warps_together<{reducer}, {step.threads}>({slot}, {states});"
                )
        yield "__syncthreads();"
        if step.alone:
            yield f"if (thread < 32) {{ {' '.join(second)} }}"
        else:
            yield from second

    # -- declarations --------------------------------------------------------------------------------------------

    def reducer(self, reducer: k.Reducer) -> Iterator[str]:
        fields = list(enumerate(reducer.fields))
        yield f"struct Reduce{reducer.number} {{"
        commutative = "true" if reducer.commutative else "false"
        yield f"  static constexpr bool commutative = {commutative};"
        joint = f"JOINT_{reducer.joint.upper() or 'NONE'}"
        yield f"  static constexpr Joint joint = {joint};"
        members = " ".join(f"{compute_type(d)} f{i};" for i, d in fields)
        yield f"  struct State {{ {members} }};"
        values = ", ".join(spell_number(v) for v in reducer.identity)
        yield f"  static __device__ __forceinline__ State identity() {{ return State{{{values}}}; }}"
        yield "  static __device__ __forceinline__ State combine(const State a, const State b) {"
        yield from self.region(reducer)
        yield "  }"
        if self.kernel.teams:
            yield from self.exchanged_fields(reducer)
        taken = ", ".join(f"value_of_lane(s.f{i}, lane)" for i, _ in fields)
        yield "  static __device__ __forceinline__ State take(const State s, int lane) {"
        yield f"    return State{{{taken}}};"
        yield "  }"
        shuffled = ", ".join(f"shuffle_value(s.f{i}, mask)" for i, _ in fields)
        yield "  static __device__ __forceinline__ State shuffle(const State s, int mask) {"
        yield f"    return State{{{shuffled}}};"
        yield "  }"
        yield "};"

    @staticmethod
    def exchanged_fields(reducer: k.Reducer) -> Iterator[str]:
        """A state as tagged words and back."""
        kinds = [compute_type(d) for d in reducer.fields]
        yield f"  static constexpr int payload = {reducer.payload}, words = {reducer.words};"
        yield "  static __device__ __forceinline__ void publish(const State s, unsigned long long* to, unsigned tag) {"
        yield "    unsigned words[payload], *next = words;"
        for number, _ in enumerate(kinds):
            yield f"    words_of_field(next, s.f{number});"
        yield "    publish_words(to, words, tag);"
        yield "  }"
        yield "  static __device__ __forceinline__ State state_of(const unsigned* words) {"
        for number, kind in enumerate(kinds):
            yield f"    const {kind} f{number} = field_of_words<{kind}>(words);"
        names = ", ".join(f"f{number}" for number, _ in enumerate(kinds))
        yield f"    return State{{{names}}};"
        yield "  }"

    def region(self, reducer: k.Reducer) -> Iterator[str]:
        if reducer.joint:
            yield f"    return join_{reducer.joint}(a, b);"
            return
        region: Graph = reducer.region
        count = len(reducer.fields)
        names: dict[str, str] = {}
        for number, parameter in enumerate(region.parameters):
            names[parameter] = f"a.f{number}" if number < count else f"b.f{number - count}"
        for node in region:
            if node.op == "parameter":
                continue
            if isinstance(node.attrs, ConstantAttrs):
                names[node.name] = spell_number(node.attrs.value)
                continue
            dtypes = tuple(region[o].dtype for o in node.operands)
            operands = tuple(k.Name(names[o]) for o in node.operands)
            call = k.Call(node.op, node.dtype, operands, dtypes, node.attrs)
            # A wider accumulator than the region's type (sums of f16 and bf16) is not rounded at every step.
            widened = reducer.fields[0] is not region[region.outputs[0]].dtype
            text = spell(call) if widened else spell_value(node.dtype, call)
            names[node.name] = f"v{len(names)}"
            yield f"    const {compute_type(node.dtype)} {names[node.name]} = {text};"
        yield f"    return State{{{', '.join(names[o] for o in region.outputs)}}};"

    def parameter(self, parameter: k.Parameter) -> str:
        kind = STORAGE[parameter.dtype]
        if not parameter.written:
            return f"const {kind}* __restrict__ {parameter.name}"
        # What is written and read again goes through plain pointers: other blocks write it too.
        return (
            f"{kind}* {parameter.name}"
            if parameter.read
            else f"{kind}* __restrict__ {parameter.name}"
        )

    def text(self) -> Iterator[str]:
        kernel = self.kernel
        yield '#include "astitch.cuh"'
        yield f"// {kernel.name}: grid {kernel.grid} x {kernel.block} threads, {kernel.shared_bytes} B shared"
        for source in kernel.sources[:8]:
            yield f"//   {comment(source)}"
        if len(kernel.sources) > 8:
            yield f"//   and {len(kernel.sources) - 8} more"
        for reducer in kernel.reducers:
            yield from self.reducer(reducer)
        bounds = (
            f"{kernel.block}, {kernel.blocks_per_sm}" if kernel.blocks_per_sm else f"{kernel.block}"
        )
        parameters = [self.parameter(p) for p in kernel.arguments]
        if kernel.scratch:
            parameters.append("unsigned char* scratch")
        if kernel.cooperative:
            parameters.append("unsigned int* barrier")
        head = f'extern "C" __global__ void __launch_bounds__({bounds}) {kernel.name}('
        if kernel.pointer_table:
            yield f"{head}unsigned char* const* pointers) {{"
            for number, declared in enumerate(parameters):
                kind, _, name = declared.rpartition(" ")
                plain = kind.replace(" __restrict__", "")
                yield f"  {kind} const {name} = reinterpret_cast<{plain}>(pointers[{number}]);"
        else:
            yield head
            for number, declared in enumerate(parameters):
                yield f"    {declared}{',' if number + 1 < len(parameters) else ') {'}"
        named = {p.source: p for p in kernel.parameters}
        for array in kernel.scratch:
            kind, name = STORAGE[named[array.source].dtype], named[array.source].name
            yield f"  {kind}* const {name} = reinterpret_cast<{kind}*>(scratch + {array.offset});"
        yield f"  assume_threads<{kernel.block}>();"
        if kernel.shared_bytes:
            yield f"  ASTITCH_SHARED_ARENA({kernel.shared_bytes});"
        for slot in kernel.slots:
            kind = (
                f"Reduce{slot.reducer}::State"
                if slot.reducer is not None
                else STORAGE[slot.dtype or DType.F32]
            )
            yield f"  ASTITCH_SHARED({kind}, {slot.name}, {slot.offset}, {slot.count});"
        if kernel.teams:
            yield "  const unsigned tag = astitch_launch_tag(barrier);"
            yield "  unsigned long long* const exchange = astitch_tagged_words(barrier);"
        yield from self.sections(kernel.body, 1)
        if kernel.teams:
            yield "  astitch_end_launch(barrier);"
        yield "}"


def emit_cuda(kernel: k.Kernel) -> str:
    """The translation unit of a kernel; equal kernels give equal bytes."""
    return "\n".join(_Printer(kernel).text()) + "\n"
