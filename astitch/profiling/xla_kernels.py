"""XLA's optimized module -> its kernels: what one call launches, of which class, with what least work.

Takes the serialized HloModuleProto after XLA's own passes, scheduled.  A fusion is a kernel, a library's custom
call one, a loop's body as many times as XLA knows that it turns.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from astitch.cost.product_bounds import bound_product, contracted_by_library
from astitch.cost.speed_of_light import Work
from astitch.device.gpu import Gpu
from astitch.graph.ops import OPS, Kind
from astitch.hlo.schema import ELEMENT_TYPES, HloModuleProto
from astitch.hlo.tile_call import TRITON
from astitch.hlo_import import find_source
from astitch.profiling.report import COPY, MEMORY, PRODUCT, Kernel
from astitch.profiling.wording import shorten_path
from astitch.tile.narrow_product import NARROW_PRODUCT

FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all partition-id replica-id "
    "add-dependency opt-barrier async-done copy-done all-reduce-done domain".split()
)
"""Opcodes of an optimized module that launch nothing."""

LIBRARY = re.compile(r"gemm|cublas|cudnn|matmul|conv|cutlass", re.IGNORECASE)

TAKES_PART = frozenset({"slice", "dynamic-slice", "gather"})
"""Readers that need no more of an operand than their own result."""

LAYERED_RANKS = {NARROW_PRODUCT: 4, "attention_forward": 5}
"""Dimensions of what a kernel of tiles reads one layer of, by what its name begins with."""

WIDTHS = {"pred": 8, "token": 0, "opaque": 0, "tuple": 0, "s4": 4, "u4": 4, "f4e2m1fn": 4}


@dataclass(frozen=True, slots=True)
class Launches:
    """kernels: in the order of the schedule, each instruction one.  unknown_loops: whose turns XLA does not know; they
    are counted as one turn.  conditionals: of which the first branch is counted.  once: names of the kernels that run
    exactly once in every call, in the schedule's place: outside loops, branches and what runs beside the rest.
    libraries: names of products that are calls of a library."""

    kernels: tuple[Kernel, ...]
    unknown_loops: int = 0
    conditionals: int = 0
    once: frozenset[str] = frozenset()
    libraries: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Found:
    kernels: list[Kernel] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    conditionals: list[str] = field(default_factory=list)
    once: set[str] = field(default_factory=set)
    libraries: set[str] = field(default_factory=set)


def read_xla_kernels(module: bytes, gpu: Gpu) -> Launches:
    """What one call of an optimized module launches."""
    return _Reader(HloModuleProto.FromString(module), gpu).read()


class _Reader:
    def __init__(self, proto: Any, gpu: Gpu) -> None:
        self.proto, self.gpu = proto, gpu
        self.computations: Mapping[int, Any] = {c.id: c for c in proto.computations}
        self.schedule: Mapping[int, Sequence[int]] = {
            s.computation_id: s.sequence.instruction_ids for s in proto.schedule.sequences
        }

    def read(self) -> Launches:
        found = _Found()
        self._walk(self.computations[self.proto.entry_computation_id], 1.0, found, once=True)
        named = Counter(kernel.name for kernel in found.kernels)
        return Launches(
            tuple(found.kernels),
            len(found.unknown),
            len(found.conditionals),
            frozenset(name for name in found.once if named[name] == 1),
            frozenset(found.libraries),
        )

    def _walk(self, computation: Any, times: float, found: _Found, *, once: bool) -> None:
        by_id = {i.id: i for i in computation.instructions}
        # A module's instructions are written operands first; the order in which they run is beside them.
        for number in self.schedule.get(computation.id, by_id):
            instruction = by_id[number]
            opcode = instruction.opcode.decode()
            called = [self.computations[n] for n in instruction.called_computation_ids]
            if opcode in FREE:
                continue
            match opcode:
                case "while":
                    turns = _count_turns(instruction)
                    if turns is None:
                        found.unknown.append(instruction.name.decode())
                    for inner in called:
                        self._walk(inner, times * (turns or 1), found, once=False)
                case "call" | "async-start" | "conditional":
                    # Of a conditional one branch runs: the first is as good a guess as any.
                    if opcode == "conditional":
                        found.conditionals.append(instruction.name.decode())
                    for inner in called[:1]:
                        self._walk(inner, times, found, once=once and opcode == "call")
                case _:
                    kernel = self._describe(instruction, opcode, called, by_id, times)
                    found.kernels.append(kernel)
                    if once:
                        found.once.add(kernel.name)
                    if _is_library(instruction):
                        found.libraries.add(kernel.name)

    def _describe(
        self,
        instruction: Any,
        opcode: str,
        called: list[Any],
        by_id: Mapping[int, Any],
        times: float,
    ) -> Kernel:
        inside, among = [instruction], by_id
        if opcode == "fusion":
            inside = list(called[0].instructions)
            among = {i.id: i for i in inside}
        dtype = ""
        flops = 0
        for inner in inside:
            name = inner.opcode.decode()
            operands = [among[n].shape for n in inner.operand_ids if n in among]
            if name in ("dot", "convolution") or _is_library(inner):
                flops += _product_flops(inner, operands)
                dtype = ELEMENT_TYPES.get(operands[0].element_type, "") if operands else ""
            elif name in OPS and OPS[name].kind is Kind.ELEMENTWISE:
                flops += OPS[name].flops * _elements(inner.shape)
            elif name == "reduce" and operands:
                flops += _elements(operands[0])
        root = called[0].root_id if opcode == "fusion" else instruction.id
        read, written = self._traffic(instruction, opcode, inside, by_id, root)
        work = Work(read, written, flops)
        if dtype or _is_library(instruction):
            kind = PRODUCT
            bound, limit = bound_product(work, self.gpu, dtype)
        elif _is_narrow_product(instruction):
            kind, bound, limit = PRODUCT, work.bound_us(self.gpu), name_limit(work, self.gpu)
        else:
            kind = COPY if opcode in ("copy", "copy-start") or _is_memcpy(instruction) else MEMORY
            bound = work.bound_us(self.gpu)
            limit = name_limit(work, self.gpu)
        name = _name_of_ours(instruction)
        return Kernel(
            name=name or instruction.name.decode(),
            kind=kind,
            launches=times,
            bound_us=bound * times,
            limit=limit if name is None else "",  # what it computes is not in the module
            read_bytes=round(read * times),
            written_bytes=round(written * times),
            flops=round(flops * times),
            ours=name is not None,
            source=tuple(dict.fromkeys(self._sources(instruction, inside))),
        )

    def _traffic(
        self,
        instruction: Any,
        opcode: str,
        inside: list[Any],
        by_id: Mapping[int, Any],
        root: int,
    ) -> tuple[int, int]:
        """(bytes read once, written once).  root: of a fusion's computation."""
        if opcode != "fusion":
            shapes = [by_id[n].shape for n in dict.fromkeys(instruction.operand_ids)]
            written = count_bytes(instruction.shape)
            if rank := _find_layered_rank(instruction):
                x, *others = shapes
                return count_bytes(x) + sum(_bytes_of_layer(o, rank) for o in others), written
            return sum(map(count_bytes, shapes)), written
        members = {i.id: i for i in inside}
        read = 0
        in_place = {
            _behind_bitcasts(members, member.operand_ids[0]).id
            for member in inside
            if member.opcode == b"dynamic-update-slice"
        }
        for parameter in inside:
            if parameter.opcode != b"parameter":
                continue
            users = [i for i in inside if parameter.id in i.operand_ids]
            whole = count_bytes(parameter.shape)
            if users and all(u.opcode.decode() in TAKES_PART for u in users):
                whole = min(whole, sum(count_bytes(u.shape) for u in users))
            read += 0 if parameter.id in in_place else whole
        results = [members[root]]
        if results[0].opcode == b"tuple":
            results = [members[n] for n in results[0].operand_ids]
        written = 0
        for result in results:
            made = _behind_bitcasts(members, result.id)
            part = made.opcode == b"dynamic-update-slice"
            written += count_bytes(members[made.operand_ids[1]].shape if part else result.shape)
        return read, written

    def _sources(self, instruction: Any, inside: list[Any]) -> Iterator[str]:
        for inner in (instruction, *inside):
            name = inner.metadata.op_name.decode(errors="replace")
            line = shorten_path(find_source(self.proto, inner.metadata))
            if name or line:
                yield f"{line} {name}".strip()


def name_limit(work: Work, gpu: Gpu) -> str:
    """What takes most of the least time."""
    launch_us = work.launches * gpu.launch_us
    memory_us, compute_us = work.memory_us(gpu), work.compute_us(gpu)
    if launch_us > max(memory_us, compute_us):
        return "launch"
    return "DRAM" if memory_us >= compute_us else "fp32"


def _name_of_ours(instruction: Any) -> str | None:
    """The name of the kernel in a custom call of astitch's; None for other instructions."""
    if not instruction.custom_call_target.endswith(b".ptx"):
        return None
    brought = re.search(rb'[{ ]name = "([^"]+)"', instruction.backend_config)
    return str(brought[1].decode()) if brought else None


def _behind_bitcasts(members: Mapping[int, Any], number: int) -> Any:
    """The instruction whose elements an instruction has."""
    while members[number].opcode == b"bitcast":
        number = members[number].operand_ids[0]
    return members[number]


def _is_narrow_product(instruction: Any) -> bool:
    """Is it a kernel of ours that reads one layer of weights (hlo/narrow_product.py)?"""
    return _name_of_tiles(instruction).startswith(NARROW_PRODUCT)


def _find_layered_rank(instruction: Any) -> int:
    """How many dimensions an operand has of which a kernel of tiles reads one layer; 0: it reads all of each."""
    name = _name_of_tiles(instruction)
    return next((rank for kind, rank in LAYERED_RANKS.items() if name.startswith(kind)), 0)


def _name_of_tiles(instruction: Any) -> str:
    """The name of a kernel that takes a product in; empty for other instructions."""
    if instruction.custom_call_target != TRITON.encode():
        ours = _name_of_ours(instruction) or ""
        return ours if ours.startswith(NARROW_PRODUCT) else ""
    found = re.search(rb'name = "([^"]+)"', instruction.backend_config)
    return found[1].decode() if found else ""


def _bytes_of_layer(shape: Any, rank: int) -> int:
    """Of an operand beside the first."""
    layers = shape.dimensions[0] if len(shape.dimensions) == rank else 1
    return count_bytes(shape) // layers


def _is_library(instruction: Any) -> bool:
    return instruction.opcode == b"custom-call" and bool(
        LIBRARY.search(instruction.custom_call_target.decode())
    )


def _is_memcpy(instruction: Any) -> bool:
    return instruction.opcode == b"fusion" and b"dynamic_memcpy" in instruction.backend_config


def _count_turns(instruction: Any) -> int | None:
    try:
        return int(json.loads(instruction.backend_config)["known_trip_count"]["n"])
    except (ValueError, KeyError, TypeError):
        return None


def _elements(shape: Any) -> int:
    array = shape.tuple_shapes[0] if shape.tuple_shapes else shape
    return int(math.prod(array.dimensions))


def count_bytes(shape: Any) -> int:
    """Of an array, or of all arrays of a tuple."""
    if shape.tuple_shapes:
        return sum(count_bytes(part) for part in shape.tuple_shapes)
    name = ELEMENT_TYPES.get(shape.element_type, "opaque")
    digits = re.match(r"[a-z]+(\d+)", name)
    bits = WIDTHS.get(name, int(digits[1]) if digits else 0)
    return int(math.prod(shape.dimensions)) * bits // 8


def _product_flops(instruction: Any, operands: list[Any]) -> int:
    """Operations of a dot, a convolution, or a library's call of either."""
    if not operands:
        return 0
    result = (
        instruction.shape.tuple_shapes[0] if instruction.shape.tuple_shapes else instruction.shape
    )
    numbers = instruction.convolution_dimension_numbers
    if len(numbers.kernel_spatial_dimensions) and len(operands) > 1:
        kernel = operands[1].dimensions
        taps = kernel[numbers.kernel_input_feature_dimension] * math.prod(
            kernel[d] for d in numbers.kernel_spatial_dimensions
        )
        return int(2 * math.prod(result.dimensions) * taps)
    contracted = tuple(instruction.dot_dimension_numbers.lhs_contracting_dimensions)
    contracted = contracted or contracted_by_library(instruction.backend_config)
    shape = operands[0].dimensions
    if any(d >= len(shape) for d in contracted):
        return 0
    return int(2 * math.prod(result.dimensions) * math.prod(shape[d] for d in contracted))
