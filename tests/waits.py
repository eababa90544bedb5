"""What each collective of a compiled program waits for and what runs beside it, in ops of the module before.

Kernels hold other ops than XLA's fusions, and take less time.  So work has one price: what the plain program's kernels
take.  A program is compiled from the module whose instructions say their names (`label_ops`), which XLA and astitch
hand on.  So each kernel of the plain program is found in the kernels that compute what it stores.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    project_took,
    read_compiled,
    read_prices,
)

Ops = frozenset[str]
"""Names of instructions of the module that XLA hands over."""

_LABEL = re.compile(r"@([\w.\-]+)")
_STORED = re.compile(r"=@([\w.\-]+)")

PRODUCTS = frozenset({b"convolution", b"dot"})
"""Opcodes that a kernel is known by, whatever it computes besides."""


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
    """The module with kernels, whose calls carry the names of all their ops; "=" is in front of those they store."""
    members: dict[str, set[str]] = {}
    for compilation in _list_compilations(stitching.compilation):
        graph = compilation.scopes.graph
        for plan in compilation.plans:
            for name in plan.scope.members:
                mark = "=@" if name in plan.scope.outputs else "@"
                found = (mark + label for label in _LABEL.findall(graph[name].op_name))
                members.setdefault(plan.kernel.name, set()).update(found)
    assert stitching.module is not None
    module = read_module(stitching.module)
    for computation in module.computations:
        for instruction in computation.instructions:
            symbol = re.search(rb'[{ ]name = "([^"]+)"', instruction.backend_config)
            if symbol and (names := members.get(decode(symbol[1]))):
                labels = "".join(f"{name} " for name in sorted(names))
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
    end.  hidden: those that it has beside another collective for which this one waits.  launches: the names of the
    instructions between its start and its end.  took_us: its own projected time.  name: of the instruction that starts
    it.
    """

    kind: str
    names: Ops
    before: Ops
    behind: Ops
    beside: Ops
    hidden: Ops
    launches: Ops = frozenset()
    took_us: float = 0.0
    name: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """One scheduled instruction that takes time.

    computes: its ops.  stores: of these its products, if it has any, else those whose values it writes.  us: of one
    turn.  turns: how often it runs.
    """

    computes: Ops
    stores: Ops
    us: float
    turns: int


@dataclass(frozen=True, slots=True)
class Waits:
    """exchanged: the collectives of a program, in the order of its schedules, those of loops once a turn.

    prices: us of each op, its share of the kernel that computes it; of several kernels the mean.  launches: by name.
    """

    exchanged: tuple[Exchanged, ...]
    prices: Mapping[str, float]
    launches: Mapping[str, Launch] = field(default_factory=dict)


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
    launches: dict[str, Launch] = {}
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
                if us := price(instruction):
                    stores = covered.list_stored(instruction)
                    launches[decode(instruction.name)] = Launch(ops, stores, us, times)
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
                    frozenset(decode(i.name) for i in _list_inner(between, computations)),
                    project_took(instruction, by_id, kind, gpu),
                    decode(instruction.name),
                )
                exchanged += [found] * times
    return Waits(tuple(exchanged), {name: fmean(us) for name, us in parts.items()}, launches)


def _list_inner(instructions: Iterable[Any], computations: Mapping[int, Any]) -> Iterator[Any]:
    """Instructions, with those of the loops and branches among them."""
    for instruction in instructions:
        yield instruction
        if instruction.opcode in HOLDERS:
            for number in instruction.called_computation_ids:
                yield from _list_inner(computations[number].instructions, computations)


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
        self.computations = computations
        self.labels = {
            i.id: _find_labels(i, computations)
            for scheduled in module.schedule.sequences
            for i in computations[scheduled.computation_id].instructions
        }
        self.products = _join(
            self.find_products(i)
            for scheduled in module.schedule.sequences
            for i in computations[scheduled.computation_id].instructions
        )
        for scheduled in module.schedule.sequences:
            for i in computations[scheduled.computation_id].instructions:
                self.labels[i.id] -= self.products & _find_moved(i, computations)
        self.guests: dict[str, set[str]] = {}
        for name, homes in origin.find_homes(_join(self.labels.values())).items():
            for home in homes:
                self.guests.setdefault(home, set()).add(name)

    def list_stored(self, instruction: Any) -> Ops:
        """See Launch.stores."""
        ops = self.list_ops(instruction)
        marked = frozenset(_STORED.findall(decode(instruction.metadata.op_name)))
        stored = (marked or _find_results(instruction, self.computations)) & ops
        if products := ops & self.find_products(instruction):
            return products
        # A sum of a product's parts has the product's name.
        return (stored - self.products) or (ops if not stored else frozenset())

    def find_products(self, instruction: Any) -> Ops:
        """The products among the ops that an instruction computes; a sum of a product's parts is none."""
        inner = [
            i for n in instruction.called_computation_ids for i in self.computations[n].instructions
        ]
        found = (_find_labels(i, self.computations) for i in inner if i.opcode in PRODUCTS)
        return _join(found)

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


MOVES = frozenset({b"bitcast", b"copy", b"reshape", b"transpose"})
"""What XLA puts in front of a product, with the product's name."""


def _find_moved(instruction: Any, computations: Mapping[int, Any]) -> Ops:
    """The ops whose names only moves of an instruction have."""
    called = instruction.called_computation_ids
    inner = [i for number in called for i in computations[number].instructions] or [instruction]
    computed = _join(_find_labels(i, computations) for i in inner if i.opcode not in MOVES)
    return _find_labels(instruction, computations) - computed


def _find_results(instruction: Any, computations: Mapping[int, Any]) -> Ops:
    """The ops whose values an instruction writes: the last of a fusion that say their names."""
    if instruction.opcode != b"fusion":
        return frozenset(_LABEL.findall(decode(instruction.metadata.op_name)))
    computation = computations[instruction.called_computation_ids[0]]
    by_id = {i.id: i for i in computation.instructions}
    found, pending, seen = set[str](), [computation.root_id], set[int]()
    while pending:
        number = pending.pop()
        if number in seen:
            continue
        seen.add(number)
        labels = _find_labels(by_id[number], computations)
        if not labels or by_id[number].opcode == b"tuple":
            pending += by_id[number].operand_ids
        found |= labels
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
    """Of a program without kernels and with them, both in what the kernels of the former take, us.

    beside: the work between starts and ends of collectives (share_out).  covered: of that at most what each collective
    takes.  room: the work that could be there, since it neither waits for a collective nor the collective for it; the
    mean of the collectives before XLA combines them.  longer: what they wait for with kernels only, the most of one.
    later: of that what does not run beside another collective for which they wait, and so makes them start later.
    """

    beside: tuple[float, float]
    covered: tuple[float, float]
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
    more = [other[name].before - one[name].before for name in shared]
    longer = max(map(price, more), default=0.0)
    exposed = [ops - other[name].hidden for name, ops in zip(shared, more, strict=True)]
    later = max(map(price, exposed), default=0.0)
    beside = [list_beside(plain, waits, stitched) for waits in (plain, stitched)]
    covered = [
        sum(min(us, e.took_us) for us, e in zip(found, waits.exchanged, strict=True))
        for found, waits in zip(beside, (plain, stitched), strict=True)
    ]
    return Comparison(
        (sum(beside[0]), sum(beside[1])),
        (covered[0], covered[1]),
        (rooms[0], rooms[1]),
        longer,
        later,
    )


def list_beside(plain: Waits, waits: Waits, stitched: Waits) -> list[float]:
    """For each collective of a program, plain or stitched, the us of the plain program's kernels that run beside it.

    A kernel of which the stitched program computes nothing, as a copy, counts in neither.
    """
    shares = share_out(plain, waits, stitched)
    return [sum(shares.get(name, 0.0) for name in e.launches) for e in waits.exchanged]


def share_out(plain: Waits, waits: Waits, stitched: Waits) -> Mapping[str, float]:
    """For each launch of a program the us that the plain program's kernels take for the same, in one turn.

    What a kernel takes is divided among the ops that it stores, and of each among the launches that store it; where
    none does, among those that compute it.  So both programs have as much work.
    """
    known = frozenset[str]().union(*(launch.computes for launch in stitched.launches.values()))
    if waits is plain:
        return {
            name: launch.us * len(launch.stores & known) / len(launch.stores)
            for name, launch in plain.launches.items()
            if launch.stores
        }
    stored, computed = _list_homes(waits, "stores"), _list_homes(waits, "computes")
    shares = Counter[str]()
    for launch in plain.launches.values():
        for op in launch.stores:
            homes = stored.get(op) or computed.get(op, [])
            turns = sum(waits.launches[home].turns for home in homes)
            for home in homes:
                shares[home] += launch.us * launch.turns / len(launch.stores) / turns
    return shares


def _list_homes(waits: Waits, how: str) -> dict[str, list[str]]:
    """By op the launches that store or compute it."""
    homes: dict[str, list[str]] = {}
    for name, launch in waits.launches.items():
        for op in getattr(launch, how):
            homes.setdefault(op, []).append(name)
    return homes
