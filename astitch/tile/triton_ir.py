"""Tile program -> Triton IR as text, in MLIR's dialects tt, arith, math and scf.

XLA compiles it as a custom call's kernel.  The operations are those that Triton's own front end writes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astitch.errors import IllegalProduct
from astitch.graph.ir import DType
from astitch.tile.program import (
    COMPARISONS,
    Compute,
    Loop,
    Shape,
    Statement,
    Store,
    TileProgram,
    TileType,
    Value,
)

_ALIGNMENT = 16
"""What the address of an array is a multiple of, in bytes; of a part of one too, as XLA makes parts."""

_ELEMENTS = {
    DType.F32: "f32",
    DType.BF16: "bf16",
    DType.F16: "f16",
    DType.S32: "i32",
    DType.S16: "i16",
    DType.S8: "i8",
    DType.U8: "i8",
    DType.PRED: "i1",
}

_FLOATS = {
    "add": "arith.addf",
    "subtract": "arith.subf",
    "multiply": "arith.mulf",
    "divide": "arith.divf",
    "maximum": "arith.maxnumf",
    "minimum": "arith.minnumf",
    "maximum-or-nan": "arith.maximumf",
    "minimum-or-nan": "arith.minimumf",
}
_INTEGERS = {
    "add": "arith.addi",
    "subtract": "arith.subi",
    "multiply": "arith.muli",
    "divide": "arith.divsi",
    "remainder": "arith.remsi",
    "maximum": "arith.maxsi",
    "minimum": "arith.minsi",
    "and": "arith.andi",
    "or": "arith.ori",
    "xor": "arith.xori",
    "shift-right": "arith.shrsi",
}
_PREDICATES = {
    "less": ("slt", "olt"),
    "less-equal": ("sle", "ole"),
    "greater-equal": ("sge", "oge"),
    "equal": ("eq", "oeq"),
    "not-equal": ("ne", "une"),
}
"""Of integers, and of floats."""

_FUNCTIONS = {
    "abs": "fabsf",
    "ceil": "ceilf",
    "erf": "erff",
    "expm1": "expm1f",
    "floor": "floorf",
    "log1p": "log1pf",
    "rsqrt": "rsqrtf",
    "sqrt": "sqrtf",
    "tanh": "tanhf",
}
"""By code: the function of CUDA's library for devices."""

_AXES = "xyz"


def write_triton_ir(program: TileProgram) -> str:
    """The module, with one function of the program's name."""
    return _Writer(program).write()


def write_type(type_: TileType) -> str:
    return _tensor(_ELEMENTS[type_.dtype], type_.shape)


class _Writer:
    def __init__(self, program: TileProgram) -> None:
        self.program = program
        self.lines: list[str] = []
        self.depth = 2
        self.extra = 0
        self.names: dict[Value, str] = {}

    def write(self) -> str:
        aligned = f"{{tt.divisibility = {_ALIGNMENT} : i32}}"
        parameters = ", ".join(
            f"%p{number}: {_pointer(parameter.dtype)} {aligned}"
            for number, parameter in enumerate(self.program.parameters)
        )
        self._write_all(self.program.body)
        head = ["module {", f"  tt.func public @{self.program.name}({parameters}) {{"]
        return "\n".join([*head, *self.lines, "    tt.return", "  }", "}", ""])

    def _line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def _fresh(self) -> str:
        self.extra += 1
        return f"%t{self.extra}"

    def _name(self, value: Value) -> str:
        return self.names.get(value, f"%v{value.number}")

    def _write_all(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            if isinstance(statement, Loop):
                self._write_loop(statement)
            elif isinstance(statement, Store):
                self._write_store(statement)
            elif statement.code in ("load", "load-one-of"):
                self._write_load(statement)
            elif statement.code.startswith("reduce-"):
                self._write_reduction(statement)
            else:
                given = list(map(self._name, statement.operands))
                self._line(f"{self._name(statement.result)} = {_render(statement, given)}")

    def _choose(self, first: int, count: int, number: str) -> str:
        """The address of one of these parameters."""
        pointer = _pointer(self.program.parameters[first].dtype)
        chosen = f"%p{first}"
        for other in range(1, count):
            index, condition, before = self._fresh(), self._fresh(), chosen
            chosen = self._fresh()
            self._line(f"{index} = arith.constant {other} : i32")
            self._line(f"{condition} = arith.cmpi eq, {number}, {index} : i32")
            self._line(
                f"{chosen} = arith.select {condition}, %p{first + other}, {before} : {pointer}"
            )
        return chosen

    def _point(self, parameter: int, offsets: Value, base: str = "") -> tuple[str, str]:
        """(the addresses of these elements, their type).  base: of the parameter, where it is chosen."""
        pointer = _pointer(self.program.parameters[parameter].dtype)
        type_, base = pointer, base or f"%p{parameter}"
        if offsets.type.shape:
            type_ = _tensor(pointer, offsets.type.shape)
            base, plain = self._fresh(), base
            self._line(f"{base} = tt.splat {plain} : {pointer} -> {type_}")
        addresses = self._fresh()
        at = f"{base}, {self._name(offsets)} : {type_}, {write_type(offsets.type)}"
        self._line(f"{addresses} = tt.addptr {at}")
        return addresses, type_

    def _write_load(self, c: Compute) -> None:
        operands, base = list(c.operands), ""
        if c.code == "load-one-of":
            base = self._choose(c.parameter, c.count, self._name(operands.pop(0)))
        given, type_ = self._point(c.parameter, operands[0], base)
        dtype, shape = c.result.type.dtype, c.result.type.shape
        kind = _tensor(_in_memory(dtype), shape)
        zero = self._fresh()
        number = "0.0" if dtype.is_float else "0"
        self._line(f"{zero} = {_constant(_in_memory(dtype), shape, number)}")
        if len(operands) > 1:
            given += f", {self._name(operands[1])}, {zero}"
        if dtype is DType.PRED:
            bytes_ = self._fresh()
            self._line(f"{bytes_} = tt.load {given} : {type_}")
            self._line(f"{self._name(c.result)} = arith.cmpi ne, {bytes_}, {zero} : {kind}")
        else:
            self._line(f"{self._name(c.result)} = tt.load {given} : {type_}")

    def _write_store(self, s: Store) -> None:
        addresses, type_ = self._point(s.parameter, s.offsets)
        mask = f", {self._name(s.mask)}" if s.mask else ""
        value = self._name(s.value)
        if s.value.type.dtype is DType.PRED:
            value, bits = self._fresh(), value
            kind = _tensor(_in_memory(DType.PRED), s.value.type.shape)
            self._line(f"{value} = arith.extui {bits} : {write_type(s.value.type)} to {kind}")
        self._line(f"tt.store {addresses}, {value}{mask} : {type_}")

    def _write_reduction(self, c: Compute) -> None:
        (x,) = c.operands
        element = _ELEMENTS[x.type.dtype]
        op = (_FLOATS if x.type.dtype.is_float else _INTEGERS)[c.code.removeprefix("reduce-")]
        left, right, both = self._fresh(), self._fresh(), self._fresh()
        name = self._name(c.result)
        self._line(f'{name} = "tt.reduce"({self._name(x)}) <{{axis = {c.axis} : i32}}> ({{')
        self._line(f"^bb0({left}: {element}, {right}: {element}):")
        self._line(f"  {both} = {op} {left}, {right} : {element}")
        self._line(f"  tt.reduce.return {both} : {element}")
        self._line(f"}}) : ({write_type(x.type)}) -> {write_type(c.result.type)}")

    def _write_loop(self, loop: Loop) -> None:
        step, results = self._fresh(), self._fresh()
        self._line(f"{step} = arith.constant {loop.step} : i32")
        pairs = ", ".join(
            f"{self._name(inner)} = {self._name(outer)}"
            for inner, outer in zip(loop.carried, loop.initial, strict=True)
        )
        types = ", ".join(write_type(v.type) for v in loop.initial)
        bounds = f"{self._name(loop.index)} = {self._name(loop.lower)} to {self._name(loop.upper)}"
        names, carried = "", ""
        if loop.results:
            names = f"{results}:{len(loop.results)} = "
            carried = f" iter_args({pairs}) -> ({types})"
        self._line(f"{names}scf.for {bounds} step {step}{carried} : i32 {{")
        self.depth += 1
        self._write_all(loop.body)
        if loop.results:
            self._line(f"scf.yield {', '.join(map(self._name, loop.yielded))} : {types}")
        self.depth -= 1
        self._line("}")
        self.names |= {v: f"{results}#{number}" for number, v in enumerate(loop.results)}


def _render(c: Compute, given: Sequence[str]) -> str:
    """The right side of what one operation computes."""
    type_, result = c.result.type, write_type(c.result.type)
    listed = ", ".join(given)
    match c.code:
        case "program-id":
            return f"tt.get_program_id {_AXES[c.axis]} : i32"
        case "range":
            return f"tt.make_range {{end = {type_.shape[0]} : i32, start = 0 : i32}} : {result}"
        case "constant":
            return _constant(_ELEMENTS[type_.dtype], type_.shape, _number(type_.dtype, c.number))
    x = c.operands[0].type
    before = write_type(x)
    match c.code:
        case "expand":
            return f"tt.expand_dims {listed} {{axis = {c.axis} : i32}} : {before} -> {result}"
        case "broadcast":
            return f"{'tt.broadcast' if x.shape else 'tt.splat'} {listed} : {before} -> {result}"
        case "transpose":
            return f"tt.trans {listed} {{order = array<i32: 1, 0>}} : {before} -> {result}"
        case "convert":
            return f"{_find_conversion(x.dtype, type_.dtype)} {listed} : {before} to {result}"
        case "bitcast":
            return f"tt.bitcast {listed} : {before} -> {result}"
        case "round-to-tf32":
            inputs = '{constraints = "=r,r", packed_element = 1 : i32, pure = true}'
            return (
                f'tt.elementwise_inline_asm "cvt.rna.tf32.f32 $0, $1;" {inputs} {listed} : '
                f"{before} -> {result}"
            )
        case "select":
            return f"arith.select {listed} : {before}, {result}"
        case "dot":
            types = f"{before} * {write_type(c.operands[1].type)} -> {result}"
            return f"tt.dot {listed}, inputPrecision = {c.precision} : {types}"
        case "exp2" | "log2":
            return f"math.{c.code} {listed} : {result}"
    if c.code in _FUNCTIONS:
        library = (
            f'{{libname = "", libpath = "", pure = true, symbol = "__nv_{_FUNCTIONS[c.code]}"}}'
        )
        types = ", ".join(write_type(operand.type) for operand in c.operands)
        return f"tt.extern_elementwise {listed} {library} : ({types}) -> {result}"
    if c.code in COMPARISONS:
        name = f"arith.cmp{'f' if x.dtype.is_float else 'i'}"
        return f"{name} {_PREDICATES[c.code][x.dtype.is_float]}, {listed} : {before}"
    return f"{(_FLOATS if x.dtype.is_float else _INTEGERS)[c.code]} {listed} : {result}"


def _find_conversion(before: DType, after: DType) -> str:
    """The op that converts elements; raises IllegalProduct where there is none."""
    widens = before.bytes < after.bytes
    if before.is_float and after.is_float and before.bytes != after.bytes:
        return "arith.extf" if widens else "arith.truncf"
    if not before.is_float and not after.is_float and widens:
        return "arith.extui" if before is DType.U8 else "arith.extsi"
    if before is DType.S32 and after is DType.F32:
        return "arith.sitofp"
    raise IllegalProduct(f"no conversion from {before.value} to {after.value}")


def _tensor(element: str, shape: Shape) -> str:
    return f"tensor<{'x'.join(map(str, shape))}x{element}>" if shape else element


def _in_memory(dtype: DType) -> str:
    return "i8" if dtype is DType.PRED else _ELEMENTS[dtype]


def _pointer(dtype: DType) -> str:
    return f"!tt.ptr<{_in_memory(dtype)}>"


def _constant(element: str, shape: Shape, number: str) -> str:
    if element == "i1" and not shape:
        return f"arith.constant {number}"  # MLIR reads no type behind true and false
    value = f"dense<{number}>" if shape else number
    return f"arith.constant {value} : {_tensor(element, shape)}"


def _number(dtype: DType, number: float) -> str:
    """Floats by their bits, so that all of them can be written."""
    if dtype is DType.PRED:
        return "true" if number else "false"
    if not dtype.is_float:
        return str(int(number))
    bits = np.array(number).astype(dtype.numpy).tobytes()[::-1].hex().upper()
    return f"0x{bits}"
