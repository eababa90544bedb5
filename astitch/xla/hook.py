"""XLA's module in the middle of its compilation -> the same with our kernels in it.

Takes what XLA hands to its transformation hook: one device's module, simplified, before layouts and fusion.  Hands on
the module that XLA compiles in its place, or the reason why it stays as it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from astitch.device.gpu import Gpu
from astitch.directives import Directives, read_directives
from astitch.errors import UnsupportedOp
from astitch.faults import FaultLog
from astitch.graph.ir import Graph
from astitch.hlo import schema
from astitch.hlo.attention import FORWARD, GRADIENT
from astitch.hlo.schema import decode
from astitch.hlo.shapes import TUPLE
from astitch.hlo.tile_call import TRITON
from astitch.hlo_import import import_from_compiler
from astitch.rewrite.narrow_products import LEAST_NUMBERS
from astitch.show.compilation import Compilation
from astitch.show.share import NOT_ASKED
from astitch.toolchain.driver_assembly import Unit
from astitch.xla.compile_module import Found, compile_for_xla
from astitch.xla.double_buffer import Doubled, double_buffer
from astitch.xla.instructions import ELEMENTWISE
from astitch.xla.keep_in_turn import keep_in_turn
from astitch.xla.marks import find_unmarked
from astitch.xla.order_transposes import order_transposes
from astitch.xla.prepare_kernels import Code
from astitch.xla.rivals import TimePairs
from astitch.xla.room_for_collectives import leave_room
from astitch.xla.run_beside import run_beside
from astitch.xla.run_late import run_late
from astitch.xla.run_straight import run_straight
from astitch.xla.tell_latencies import tell_latencies
from astitch.xla.write_module import TARGET

NOTHING = "nothing in it is worth a kernel"
TURNS_ALONE = f"{NOTHING}, but several turns of its loops are one"
LEFT_BY_DIRECTIVES = "directives leave nothing in it to be stitched"


@dataclass(frozen=True, slots=True)
class Stitching:
    """What became of a module.

    module: what XLA is to compile; None: the module as it was.  kernels: how many calls of them are in it, those in
    bodies of loops and branches among them.  reason: why it stays as it was.
    """

    compilation: Compilation
    module: bytes | None
    kernels: int = 0
    reason: str = ""


def read_module(data: bytes) -> Any:
    """The HloModuleProto that XLA hands over."""
    return schema.HloModuleProto.FromString(data)


_CALLED = frozenset({b"triangular-solve"})
"""Ops that XLA has a library compute: one alone is several launches."""


def is_worth(module: Any, alone: Collection[bytes] = frozenset({b"scatter"}) | _CALLED) -> bool:
    """Can a module gain?  XLA makes one kernel of what is element-wise only, or of a single op but a narrow product.

    module: an HloModuleProto.  alone: ops that may gain by themselves, by being written in another way.  Takes some
    microseconds for the module of an eager op.
    """
    opcodes = [i.opcode for c in module.computations for i in c.instructions]
    if any(opcode in _LOOPS or opcode in alone for opcode in opcodes):
        return True
    entry = next(c for c in module.computations if c.id == module.entry_computation_id)
    ops = [i.opcode for i in entry.instructions if i.opcode not in _FREE]
    if ops == [b"dot"]:
        return _has_narrow_product(entry)
    return len(ops) > 1 and any(opcode not in _FUSED for opcode in ops)


def _has_narrow_product(entry: Any) -> bool:
    """Are the weights of the one product so much larger than its rows that they take its time?"""
    sizes = {i.id: math.prod(i.shape.dimensions) for i in entry.instructions}
    dot = next(i for i in entry.instructions if i.opcode == b"dot")
    fewer, weights = sorted(sizes[number] for number in dot.operand_ids)
    least = max(LEAST_NUMBERS, _NARROW * fewer, _NARROW * sizes[dot.id])
    return bool(weights >= least)


_NARROW = 4


_LOOPS = frozenset({b"while", b"conditional", b"call"})
_FREE = frozenset(
    b"parameter constant tuple get-tuple-element bitcast reshape broadcast iota copy".split()
)
_FUSED = ELEMENTWISE | frozenset(b"slice transpose pad reverse dynamic-slice".split())
"""What XLA always fuses into one loop over the result."""


def count_kernels(module: Any) -> int:
    """How many calls of kernels are in an HloModuleProto, those in its loops and branches among them."""
    target = TARGET.encode()
    return sum(i.custom_call_target == target for c in module.computations for i in c.instructions)


def count_attentions(module: Any) -> int:
    """How many calls of cuDNN's attention and of Triton IR, as ours is, are in an HloModuleProto."""
    targets = {target.encode() for target in (*FORWARD, *GRADIENT, TRITON)}
    return sum(i.custom_call_target in targets for c in module.computations for i in c.instructions)


def list_scatters(module: Any) -> list[int]:
    """The element types of what an HloModuleProto scatters to, in order."""
    return sorted(
        i.shape.element_type
        for c in module.computations
        for i in c.instructions
        if i.opcode == b"scatter"
    )


def stitch_module(
    module: Any,
    gpu: Gpu,
    *,
    only_marked: bool = False,
    tune: bool = False,
    strict: bool = False,
    attention: bool = True,
    code: Code = Code.PTX,
    hand_out: Callable[[Sequence[Unit]], object] = lambda units: None,
    time_both: TimePairs | None = None,
    stitch: str = "",
    found: Found | None = None,
) -> Stitching:
    """The module with kernels, for a device.

    module: an HloModuleProto of XLA's, simplified and not yet scheduled.  only_marked: leave as it is what no function
    of astitch.jit holds (see marks.py).  stitch: directives, after those of ASTITCH_STITCHES.
    The other arguments: see compile_for_xla.
    Raises AstitchError for what astitch does not read.
    """
    _refuse_forms(module)
    kept = dict.fromkeys(find_unmarked(module), NOT_ASKED) if only_marked else {}
    graph = import_from_compiler(module, kept)
    told = read_directives(stitch).of(decode(module.name))
    gpu = leave_room(gpu, graph)
    compilation, written = compile_for_xla(
        graph,
        gpu,
        find_donated(module, graph),
        tune=tune,
        strict=strict,
        code=code,
        simplified=True,
        attention=attention,
        hand_out=hand_out,
        time_both=time_both,
        directives=told,
        found=found,
    )
    new = read_module(written)
    kernels = count_kernels(new) + count_attentions(new) - count_attentions(module)
    faults = FaultLog(strict or None)
    stays = list_scatters(new) == list_scatters(module) and not (
        kernels and is_worth(module, _CALLED)
    )
    if stays:
        new, kernels = read_module(module.SerializeToString()), 0
    if not kept:
        compilation = _double_buffer(new, compilation, gpu, told, faults)
    if stays:
        compilation = replace(compilation, faults=(*compilation.faults, *faults.found))
        if compilation.doubled:
            return Stitching(compilation, bytes(new.SerializeToString()), reason=TURNS_ALONE)
        return Stitching(compilation, None, reason=LEFT_BY_DIRECTIVES if told else NOTHING)
    for name, passed, cost in (
        ("tell_latencies", lambda: tell_latencies(new, gpu), "uses its own times of products"),
        ("run_beside", lambda: run_beside(new, gpu), "runs kernels later than it could"),
        ("run_straight", lambda: run_straight(new), "runs products where they hide nothing"),
        ("keep_in_turn", lambda: keep_in_turn(new, gpu), "carries what a loop sends over turns"),
        ("run_late", lambda: run_late(new), "runs kernels earlier than memory needs"),
    ):
        faults.attempt(
            passed, lambda: None, stage=name, subject=graph.name, cost=f"XLA's scheduler {cost}"
        )
    compilation = replace(compilation, faults=(*compilation.faults, *faults.found))
    return Stitching(compilation, graft(module, new), kernels)


def _double_buffer(
    module: Any, compilation: Compilation, gpu: Gpu, told: Directives, faults: FaultLog
) -> Compilation:
    """The compilation with notes on the loops of a module that take several turns in one from now on."""
    none: list[Doubled] = []
    changed = read_module(module.SerializeToString())
    doubled = faults.attempt(
        lambda: double_buffer(changed, gpu, lambda name: _leaves_loop(told, name)),
        lambda: none,
        stage="double_buffer",
        subject=decode(module.name),
        cost="XLA copies what a turn reads at shifted places",
    )
    if doubled:
        module.CopyFrom(changed)
    return replace(compilation, doubled=tuple(map(str, doubled)))


def double_buffer_alone(module: Any, gpu: Gpu) -> bytes | None:
    """A module whose loops take several turns in one, and that is without kernels; None where it has no such loop.

    module: an HloModuleProto of XLA's."""
    changed = read_module(module.SerializeToString())
    return bytes(changed.SerializeToString()) if double_buffer(changed, gpu) else None


def _leaves_loop(told: Directives, name: str) -> bool:
    """Do directives leave a loop to XLA as it is?  name: in the module, where it ends in that of the program's loop."""
    parts = name.split("_")
    names = ["_".join(parts[n:]) for n in range(len(parts))]
    return told.covers("leave", ()) or told.covers("leave-loops", names)


def find_donated(module: Any, graph: Graph) -> list[bool]:
    """For each parameter whether its memory may hold a result.  Raises UnsupportedOp for parameters that are tuples."""
    donated = {parameter for _, parameter in graph.aliases}
    donated |= {entry.parameter_number for entry in module.buffer_donor.entries}
    return [number in donated for number in range(len(graph.parameters))]


def graft(module: Any, new: Any) -> bytes:
    """The module with the computations of another, which takes and gives the same.

    All else stays: the layouts of the entry, donation, stack frames, the partitioning of parameters and results.
    module, new: HloModuleProtos; the new one's root is a tuple.
    """
    grafted = schema.HloModuleProto()
    grafted.CopyFrom(module)
    grafted.ClearField("computations")
    grafted.computations.extend(new.computations)
    grafted.entry_computation_id = new.entry_computation_id
    grafted.entry_computation_name = new.entry_computation_name
    entry = next(c for c in grafted.computations if c.id == new.entry_computation_id)
    _state_layouts(entry, module.host_program_shape)
    order_transposes(entry)
    if module.host_program_shape.result.element_type != TUPLE:
        _unwrap_root(entry)
    return bytes(grafted.SerializeToString())


def _state_layouts(entry: Any, shapes: Any) -> None:
    """Parameters and results as the caller has them in memory: XLA reads it off the computation.

    entry: an HloComputationProto whose root is a tuple.  shapes: the ProgramShapeProto of the module before.
    """
    for instruction in entry.instructions:
        if instruction.opcode == b"parameter":
            shape = shapes.parameters[instruction.parameter_number]
            instruction.shape.CopyFrom(shape)
            entry.program_shape.parameters[instruction.parameter_number].CopyFrom(shape)
    _bar_host_memory(entry)
    results = shapes.result.tuple_shapes if shapes.result.element_type == TUPLE else [shapes.result]
    root = next(i for i in entry.instructions if i.id == entry.root_id)
    for held in (root.shape, entry.program_shape.result):
        del held.tuple_shapes[:]
        held.tuple_shapes.extend(results)


def _bar_host_memory(entry: Any) -> None:
    """Puts a barrier behind each parameter in the host's memory.

    XLA's layout assignment gives what moves a value the layout of its operand, as it stands: with the memory that only
    parameters and results of a program may say at that point.  entry: an HloComputationProto.
    """
    ids = itertools.count(1 + max(i.id for i in entry.instructions))
    ordered: list[Any] = []
    barred: dict[int, int] = {}
    for instruction in entry.instructions:
        instruction.operand_ids[:] = [barred.get(i, i) for i in instruction.operand_ids]
        ordered.append(instruction)
        if instruction.opcode == b"parameter" and instruction.shape.layout.memory_space:
            name = instruction.name + b".barrier"
            barrier = type(instruction)(id=next(ids), name=name, opcode=b"opt-barrier")
            barrier.shape.CopyFrom(instruction.shape)
            barrier.shape.layout.memory_space = 0
            barrier.operand_ids.append(instruction.id)
            barred[instruction.id] = barrier.id
            ordered.append(barrier)
    if barred:
        del entry.instructions[:]
        entry.instructions.extend(ordered)


def _unwrap_root(entry: Any) -> None:
    """The one element of the root tuple becomes the root; by a copy where it lies in another order.

    entry: an HloComputationProto.
    """
    root = next(i for i in entry.instructions if i.id == entry.root_id)
    element = next(i for i in entry.instructions if i.id == root.operand_ids[0])
    wanted = root.shape.tuple_shapes[0]
    entry.program_shape.result.CopyFrom(wanted)
    if element.shape.layout == wanted.layout:
        entry.root_id = element.id
        entry.instructions.remove(root)
        return
    copy = type(root)(id=root.id, name=root.name, opcode=b"copy", shape=wanted)
    copy.operand_ids.append(element.id)
    root.CopyFrom(copy)


def _refuse_forms(module: Any) -> None:
    """Raises UnsupportedOp for modules of other forms than JAX's."""
    name, shapes = decode(module.name), module.host_program_shape
    arrays = [*shapes.parameters, *(shapes.result.tuple_shapes or [shapes.result])]
    if any(shape.element_type == TUPLE for shape in arrays):
        raise UnsupportedOp(f"HLO module {name}: a parameter is a tuple, or a result in a tuple is")
    if module.schedule.sequences:
        raise UnsupportedOp(f"HLO module {name}: it is scheduled")
