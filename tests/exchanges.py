"""What the devices of a compiled program exchange, read off XLA's scheduled module."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from astitch.device.gpu import Gpu
from astitch.hlo.schema import decode
from astitch.hlo.shapes import read_type, shape_leaves
from astitch.profiling.xla_kernels import read_xla_kernels
from astitch.xla.hook import read_module
from astitch.xla.run_beside import LEAST_US

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One collective.

    kind: its opcode.  operands: bytes that a device gives to it.  hidden_us: projected work that XLA's schedule has
    between its start and its end; 0 for a collective that the schedule does not split.  took_us: its own projected
    time.
    """

    kind: str
    operands: int
    hidden_us: float
    took_us: float

    @property
    def covered_us(self) -> float:
        """The time of the collective in which other work runs."""
        return min(self.hidden_us, self.took_us)


def read_compiled(compiled: Any) -> Any:
    """The HloModuleProto that XLA made of a program, scheduled.  compiled: a jax.stages.Compiled."""
    return read_module(_serialize(compiled))


def read_exchanges(compiled: Any, gpu: Gpu) -> list[Exchange]:
    """The collectives of a program, those in bodies of loops as often as these have turns, as far as XLA knows.

    compiled: a jax.stages.Compiled.
    """
    module = read_compiled(compiled)
    price = read_prices(compiled, gpu)
    schedule = {s.computation_id: s.sequence.instruction_ids for s in module.schedule.sequences}
    computations = {c.id: c for c in module.computations}
    found: list[Exchange] = []
    turns = count_turns(module)
    for computation in module.computations:
        by_id = {i.id: i for i in computation.instructions}
        order = [by_id[number] for number in schedule.get(computation.id, by_id)]
        for place, instruction in enumerate(order):
            if kind := find_kind(instruction, computations):
                between = list_until_done(instruction.id, order[place + 1 :])
                hidden = sum(map(price, between))
                given = _count_bytes(instruction, by_id)
                took = project_took(instruction, by_id, kind, gpu)
                times = turns.get(computation.id, 1)
                found += [Exchange(kind, given, hidden, took)] * times
    return found


def project_took(instruction: Any, by_id: Mapping[int, Any], kind: str, gpu: Gpu) -> float:
    """The projected us of a collective of the kind: its bytes over NVLink.  by_id: the instructions beside it."""
    given = _count_bytes(instruction, by_id)
    sent = 2 * given if kind == "all-reduce" else max(given, _count_result(instruction))
    return LEAST_US + sent / gpu.link_gbs / 1e3


def count_turns(module: Any) -> dict[int, int]:
    """How often each computation runs that the program runs once or in loops with so many turns; not those of branches.

    What such a computation wraps, as an asynchronous collective, is not among them.
    """
    computations = {c.id: c for c in module.computations}
    found = {module.entry_computation_id: 1}
    pending = [module.entry_computation_id]
    while pending:
        number = pending.pop()
        for instruction in computations[number].instructions:
            turns = _KNOWN_TURNS.search(instruction.backend_config)
            if instruction.opcode == b"while" and turns:
                for called in instruction.called_computation_ids:
                    found[called] = found[number] * int(turns[1])
                    pending.append(called)
    return found


_KNOWN_TURNS = re.compile(rb'"known_trip_count":\{"n":"(\d+)"')


def count_exchanges(compiled: Any) -> Counter[tuple[str, int]]:
    """How often each kind of collective sends how many bytes; see count_collectives.

    compiled: a jax.stages.Compiled.
    """
    return count_collectives(read_compiled(compiled))


def count_collectives(module: Any) -> Counter[tuple[str, int]]:
    """How often each kind of collective sends how many bytes, in an HloModuleProto at any point of XLA's compilation.

    Those in bodies of loops count as often as these have turns.  Those in branches, and in loops of which XLA does not
    know this, count once, under names of their own.
    """
    computations = {c.id: c for c in module.computations}
    counts: Counter[tuple[str, int]] = Counter()
    turns = count_turns(module)
    for computation in module.computations:
        by_id = {i.id: i for i in computation.instructions}
        for instruction in computation.instructions:
            if kind := find_kind(instruction, computations):
                place = "" if computation.id in turns else " in a body"
                given = _count_bytes(instruction, by_id)
                counts[kind + place, given] += turns.get(computation.id, 1)
    return counts


def _serialize(compiled: Any) -> bytes:
    module = compiled.runtime_executable().hlo_modules()[0]
    return bytes(module.as_serialized_hlo_module_proto())


def find_kind(instruction: Any, computations: Mapping[int, Any]) -> str:
    """The collective that an instruction starts; '' for any other.

    One that XLA wraps in an asynchronous computation is counted where it starts.
    """
    opcode = instruction.opcode.decode()
    if opcode == "async-start":
        inner = computations[instruction.called_computation_ids[0]].instructions
        return next((k for i in inner for k in KINDS if i.opcode.decode() == k), "")
    kind = opcode.removesuffix("-start")
    # The wrapped instruction itself stands in a computation of parameters and nothing else.
    return kind if kind in KINDS and not _is_wrapped(instruction, computations) else ""


def _is_wrapped(instruction: Any, computations: Mapping[int, Any]) -> bool:
    for computation in computations.values():
        if any(i is instruction for i in computation.instructions):
            return any(
                computation.id in i.called_computation_ids and i.opcode == b"async-start"
                for c in computations.values()
                for i in c.instructions
            )
    return False


def _count_bytes(instruction: Any, by_id: Mapping[int, Any]) -> int:
    return sum(_size(by_id[number].shape) for number in instruction.operand_ids)


def _count_result(instruction: Any) -> int:
    """Bytes that a device receives.  The result of a start holds its operands first."""
    is_start = instruction.opcode.endswith(b"-start")
    return _size(instruction.shape.tuple_shapes[1] if is_start else instruction.shape)


def _size(shape: Any) -> int:
    return sum(
        getattr(read_type(leaf, "a collective"), "bytes", 0) for leaf, _ in shape_leaves(shape)
    )


def list_until_done(start: int, rest: Iterable[Any]) -> list[Any]:
    """The instructions between a start and its end; none where the schedule does not split them."""
    between: list[Any] = []
    for instruction in rest:
        if instruction.opcode.endswith(b"-done") and start in instruction.operand_ids:
            return between
        between.append(instruction)
    return []


def read_prices(compiled: Any, gpu: Gpu) -> Callable[[Any], float]:
    """The projected us of an instruction of a program; of a loop those of all its turns.

    compiled: a jax.stages.Compiled.
    """
    launched = read_xla_kernels(_serialize(compiled), gpu).kernels
    prices = {kernel.name: kernel.bound_us or 0.0 for kernel in launched}
    computations = {c.id: c for c in read_compiled(compiled).computations}

    def price(instruction: Any) -> float:
        if instruction.opcode in HOLDERS:
            called = (computations[number] for number in instruction.called_computation_ids)
            return sum(price(inner) for computation in called for inner in computation.instructions)
        for entry in instruction.frontend_attributes.map:
            if entry.key == b"latency_metadata":
                return int(entry.value) / 1e3
        return prices.get(decode(instruction.name), 0.0)

    return price


HOLDERS = (b"while", b"conditional", b"call")
"""What runs other computations, step by step."""


def sum_hidden(exchanges: Iterable[Exchange]) -> float:
    """Microseconds of work that the schedule has beside collectives."""
    return sum(e.hidden_us for e in exchanges)


def sum_covered(exchanges: Iterable[Exchange]) -> float:
    """Microseconds of collectives in which other work runs."""
    return sum(e.covered_us for e in exchanges)
