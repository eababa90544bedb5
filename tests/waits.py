"""What each collective of a compiled program waits for and what runs beside it, in ops of the module before.

Kernels hold other ops than XLA's fusions, and take less time.  Ops of one module with one price each compare the two: a
program is compiled from the module whose instructions say their names (`label_ops`).  XLA and astitch hand these on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from astitch.device.gpu import Gpu
from astitch.graph.ops import OPS, Kind
from astitch.hlo.schema import decode
from astitch.show.compilation import Compilation
from astitch.xla.hook import Stitching, read_module
from tests.exchanges import (
    HOLDERS,
    count_turns,
    find_kind,
    list_until_done,
    read_compiled,
    read_prices,
)

Ops = frozenset[str]
"""Names of instructions of the module that XLA hands over."""

_LABEL = re.compile(r"@([\w.\-]+)")


def label_ops(data: bytes) -> bytes:
    """A module whose instructions carry their names, where else the place in the user's program is.

    Those of reducers carry none: several ops call one.  data: a serialized HloModuleProto.
    """
    module = read_module(data)
    reducers = {
        number
        for computation in module.computations
        for instruction in computation.instructions
        if instruction.opcode not in HOLDERS
        for number in instruction.called_computation_ids
    }
    for computation in module.computations:
        if computation.id in reducers:
            continue
        for instruction in computation.instructions:
            instruction.metadata.op_name = b"@" + instruction.name
    return bytes(module.SerializeToString())


def label_kernels(stitching: Stitching) -> bytes:
    """The module with kernels, whose calls carry the names of all their ops."""
    members: dict[str, set[str]] = {}
    for compilation in _list_compilations(stitching.compilation):
        graph = compilation.scopes.graph
        for plan in compilation.plans:
            names = (graph[name].op_name for name in plan.scope.members)
            members.setdefault(plan.kernel.name, set()).update(_LABEL.findall("".join(names)))
    assert stitching.module is not None
    module = read_module(stitching.module)
    for computation in module.computations:
        for instruction in computation.instructions:
            symbol = re.search(rb'[{ ]name = "([^"]+)"', instruction.backend_config)
            if symbol and (names := members.get(decode(symbol[1]))):
                labels = "".join(f"@{name} " for name in sorted(names))
                instruction.metadata.op_name += labels.encode()
    return bytes(module.SerializeToString())


def _list_compilations(compilation: Compilation) -> Iterator[Compilation]:
    yield compilation
    for body in compilation.bodies:
        yield from _list_compilations(body.compilation)


@dataclass(frozen=True, slots=True)
class Exchanged:
    """One collective of a scheduled module.

    names: the collectives of the module before, of which XLA made it.  before: the ops that it waits for, here or in
    the module before.  behind: those that wait for it.  beside: those that the schedule has between its start and its
    end.  hidden: those that it has beside another collective for which this one waits.
    """

    kind: str
    names: Ops
    before: Ops
    behind: Ops
    beside: Ops
    hidden: Ops


@dataclass(frozen=True, slots=True)
class Waits:
    """exchanged: the collectives of a program, in the order of its schedules, those of loops once a turn.

    prices: us of each op, its share of the kernel that computes it; of several kernels the mean.
    """

    exchanged: tuple[Exchanged, ...]
    prices: Mapping[str, float]


def read_waits(compiled: Any, data: bytes, gpu: Gpu) -> Waits:
    """Of a program that was compiled from labelled modules.

    compiled: a jax.stages.Compiled.  data: the module as XLA handed it over, serialized.
    """
    origin = _Origin(read_module(data))
    module = read_compiled(compiled)
    price = read_prices(compiled, gpu)
    computations = {c.id: c for c in module.computations}
    covered = _Covered(module, computations, origin)
    parts: dict[str, list[float]] = {}
    exchanged: list[Exchanged] = []
    turns = count_turns(module)
    for scheduled in module.schedule.sequences:
        by_id = {i.id: i for i in computations[scheduled.computation_id].instructions}
        times = turns.get(scheduled.computation_id, 1)
        order = [by_id[number] for number in scheduled.sequence.instruction_ids]
        before, behind = _find_order(order, covered)
        beside: dict[int, Ops] = {}
        for place, instruction in enumerate(order):
            ops = covered.list_ops(instruction)
            if instruction.opcode not in HOLDERS:  # what is in them is scheduled itself
                for name in ops:
                    parts.setdefault(name, []).append(price(instruction) / len(ops))
            if kind := find_kind(instruction, computations):
                between = list_until_done(instruction.id, order[place + 1 :])
                beside[instruction.id] = _join(map(covered.list_ops, between))
                names = covered.labels[instruction.id] & origin.collectives
                reached = _reach(instruction.id, by_id)
                found = Exchanged(
                    kind,
                    names,
                    before[instruction.id] | origin.find_before(names),
                    behind[instruction.id],
                    beside[instruction.id],
                    _join(ops for number, ops in beside.items() if number in reached),
                )
                exchanged += [found] * times
    return Waits(tuple(exchanged), {name: fmean(us) for name, us in parts.items()})


def _join(sets: Iterable[Ops]) -> Ops:
    return frozenset[str]().union(*sets)


def _reach(start: int, by_id: Mapping[int, Any]) -> set[int]:
    """The instructions for which one waits."""
    found, pending = set[int](), [start]
    while pending:
        instruction = by_id[pending.pop()]
        for number in (*instruction.operand_ids, *instruction.control_predecessor_ids):
            if number not in found:
                found.add(number)
                pending.append(number)
    return found


def _find_order(
    order: Sequence[Any], covered: _Covered
) -> tuple[Mapping[int, Ops], Mapping[int, Ops]]:
    """For each instruction of a computation the ops that it waits for, and those that wait for it."""
    before: dict[int, Ops] = {}
    found: dict[int, Ops] = {}
    operands = {i.id: (*i.operand_ids, *i.control_predecessor_ids) for i in order}
    for instruction in order:
        before[instruction.id] = _join(found[o] for o in operands[instruction.id])
        found[instruction.id] = before[instruction.id] | covered.list_ops(instruction)
    behind: dict[int, Ops] = {i.id: frozenset() for i in order}
    for instruction in reversed(order):
        later = behind[instruction.id] | covered.list_ops(instruction)
        for operand in operands[instruction.id]:
            behind[operand] |= later
    return before, behind


class _Covered:
    """Which ops each instruction of a scheduled module computes."""

    def __init__(self, module: Any, computations: Mapping[int, Any], origin: _Origin) -> None:
        self.origin = origin
        self.labels = {
            i.id: _find_labels(i, computations)
            for scheduled in module.schedule.sequences
            for i in computations[scheduled.computation_id].instructions
        }
        self.guests: dict[str, set[str]] = {}
        for name, homes in origin.find_homes(_join(self.labels.values())).items():
            for home in homes:
                self.guests.setdefault(home, set()).add(name)

    def list_ops(self, instruction: Any) -> Ops:
        own = self.labels[instruction.id]
        whole = own.union(*(self.guests.get(name, ()) for name in own))
        return self.origin.expand(whole) - self.origin.collectives


def _find_labels(instruction: Any, computations: Mapping[int, Any]) -> Ops:
    """The ops that an instruction says, and those of what it calls."""
    found = set(_LABEL.findall(decode(instruction.metadata.op_name)))
    for number in instruction.called_computation_ids:
        for inner in computations[number].instructions:
            found |= _find_labels(inner, computations)
    return frozenset(found)


class _Origin:
    """The module that XLA hands over: which ops hold others, and who reads them."""

    def __init__(self, module: Any) -> None:
        computations = {c.id: c for c in module.computations}
        self.inside: dict[str, set[str]] = {}
        self.users: dict[str, list[str]] = {}
        self.operands: dict[str, list[str]] = {}
        self.collectives = frozenset(
            decode(i.name)
            for c in module.computations
            for i in c.instructions
            if find_kind(i, computations)
        )
        self.order: list[str] = []
        sources: set[str] = set()
        for computation in module.computations:
            names = {i.id: decode(i.name) for i in computation.instructions}
            for instruction in computation.instructions:
                name = decode(instruction.name)
                self.order.append(name)
                row = OPS.get(decode(instruction.opcode))
                if instruction.opcode in (b"tuple", b"get-tuple-element") or (
                    row is not None and row.kind is Kind.SOURCE
                ):
                    sources.add(name)
                for operand in instruction.operand_ids:
                    self.users.setdefault(names[operand], []).append(name)
                    self.operands.setdefault(name, []).append(names[operand])
                if instruction.opcode in HOLDERS:
                    self.inside[name] = {
                        decode(inner.name)
                        for number in instruction.called_computation_ids
                        for inner in computations[number].instructions
                    }
        self.sources = sources

    def expand(self, names: Iterable[str]) -> Ops:
        """Ops, and those inside of loops and branches, without parameters, constants and tuples."""
        found, pending = set[str](), list(names)
        while pending:
            name = pending.pop()
            if name not in found:
                found.add(name)
                pending += self.inside.get(name, ())
        return frozenset(found - self.sources)

    def find_before(self, names: Iterable[str]) -> Ops:
        """The ops for which some wait."""
        found, pending = set[str](), list(names)
        while pending:
            for operand in self.operands.get(pending.pop(), ()):
                if operand not in found:
                    found.add(operand)
                    pending.append(operand)
        return self.expand(found) - self.collectives

    def find_homes(self, labels: Ops) -> dict[str, Ops]:
        """For ops that no instruction says any more: those that do and compute them, as readers of theirs."""
        homes: dict[str, Ops] = {}
        for name in reversed(self.order):  # operands come first
            if name not in labels and name not in self.sources:
                readers = self.users.get(name, [])
                homes[name] = _join(
                    frozenset({reader}) if reader in labels else homes.get(reader, frozenset())
                    for reader in readers
                )
        return homes


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of a program without kernels and with them, both in prices of the former, us.

    beside: the work between starts and ends of collectives.  room: the work that could be there, since it neither waits
    for a collective nor the collective for it; the mean of the collectives before XLA combines them.  longer: what they
    wait for with kernels only, the most of one.  later: of that what does not run beside another collective for which
    they wait, and so makes them start later.
    """

    beside: tuple[float, float]
    room: tuple[float, float]
    longer: float
    later: float


def compare_waits(plain: Waits, stitched: Waits) -> Comparison:
    def price(ops: Iterable[str]) -> float:
        return sum(plain.prices.get(name, 0.0) for name in ops)

    whole = frozenset(plain.prices)
    one, other = (
        {name: e for e in waits.exchanged for name in e.names} for waits in (plain, stitched)
    )
    shared = sorted(one.keys() & other.keys())
    rooms = [
        fmean([price(whole - e[name].before - e[name].behind) for name in shared] or [0.0])
        for e in (one, other)
    ]
    beside = [sum(price(e.beside) for e in waits.exchanged) for waits in (plain, stitched)]
    more = [other[name].before - one[name].before for name in shared]
    longer = max(map(price, more), default=0.0)
    exposed = [ops - other[name].hidden for name, ops in zip(shared, more, strict=True)]
    later = max(map(price, exposed), default=0.0)
    return Comparison((beside[0], beside[1]), (rooms[0], rooms[1]), longer, later)
