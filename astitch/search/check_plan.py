"""Takes a Plan or a Kernel; hands it on unchanged, or raises IllegalProduct with a sentence.

The idea: a plan is legal when every value is where its readers look for it, and a kernel is legal when its
text would be: names defined once and before use, barriers where all threads pass, shared memory never raced for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from astitch.device.gpu import ACCESS_BYTES, MOST_BLOCKS
from astitch.errors import IllegalProduct
from astitch.graph import index as ix
from astitch.graph.dimensions import is_embedded
from astitch.graph.index import Linear
from astitch.graph.ir import DType, Graph
from astitch.graph.ops import OPS
from astitch.graph.propagation import Guard, Read, walk_reads
from astitch.graph.storage import stored_value
from astitch.kernel import kernel_ir as k
from astitch.kernel.shared_memory import SLOT_ALIGNMENT_BYTES
from astitch.mapping.stitch_scheme import (
    Arrangement,
    Placement,
    RootKind,
    Scheme,
    Span,
    combine_name,
    reduce_behind,
    root_starts,
    why_not_block_local,
)
from astitch.search.plan import Plan
from astitch.thread_mapping import ceil_div

_ADVICE = "\n  the stage that handed this on has a bug; print its input and report both"
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_KNOWN_FUNCTIONS = frozenset({"clamped"})


def check_plan(plan: Plan) -> Plan:
    """The same plan, if every value is computed, kept and read where its readers can find it.

    Also checks the plan's kernel.  Raises IllegalProduct with the op and the rule that it breaks.
    """
    _PlanCheck(plan).run()
    check_kernel(plan.kernel)
    return plan


def check_kernel(kernel: k.Kernel) -> k.Kernel:
    """The same kernel, if its statements make a sound program.

    Names are defined before use and once in a scope; barriers stand where all threads of a block come by;
    what other blocks wrote is read behind a global barrier; what other threads of the block wrote in shared
    memory is read, and written over, behind a block barrier; every output is stored by one statement.
    Raises IllegalProduct with the first fault.
    """
    _KernelCheck(kernel).run()
    return kernel


# ---- plans ------------------------------------------------------------------------------------------------------


class _PlanCheck:
    def __init__(self, plan: Plan):
        self.plan = plan
        self.arrangement: Arrangement = plan.arrangement
        self.graph: Graph = plan.arrangement.graph
        self.placements: Mapping[str, Placement] = plan.arrangement.placements
        self.inside = set(plan.scope.members)

    def fault(self, sentence: str) -> IllegalProduct:
        return IllegalProduct(f"plan {self.plan.scope.name}: {sentence}{_ADVICE}")

    def require(self, condition: bool, sentence: str) -> None:
        if not condition:
            raise self.fault(sentence)

    def run(self) -> None:
        self.check_loops()
        self.check_launch()
        for candidate in self.arrangement.groups.candidates:
            self.require(
                candidate.name in self.placements, f"candidate %{candidate.name} has no placement"
            )
        for key, place in self.placements.items():
            self.check_placement(key, place)
        for key, place in self.placements.items():
            self.check_reads(key, place)
        for output in self.plan.scope.outputs:
            self.check_output(output)

    def check_launch(self) -> None:
        plan, kernel = self.plan, self.plan.kernel
        barriers = self.arrangement.levels - 1
        self.require(
            kernel.global_barriers == max(barriers, 0),
            f"{kernel.global_barriers} global barriers in the kernel, {barriers + 1} levels in the arrangement",
        )
        self.require(
            plan.launch.block == kernel.block == self.arrangement.block,
            f"blocks of {plan.launch.block}, {self.arrangement.block} and {kernel.block} threads",
        )
        parts = self.arrangement.team_parts
        teams = kernel.grid // parts if parts > 1 else 0
        self.require(
            kernel.teams == teams and kernel.grid % parts == 0,
            f"{kernel.grid} blocks in {kernel.teams} teams of {parts}",
        )
        if kernel.cooperative:
            self.require(
                kernel.grid <= plan.launch.wave,
                f"{kernel.grid} blocks meet at a global barrier, {plan.launch.wave} fit the device",
            )
            self.require(
                0 < kernel.blocks_per_sm <= plan.launch.blocks_per_sm,
                f"launch bounds of {kernel.blocks_per_sm} blocks an SM do not promise the "
                f"{plan.launch.blocks_per_sm} that the wave counts on",
            )

    def check_loops(self) -> None:
        level = 0
        for number, loop in enumerate(self.arrangement.loops):
            self.require(loop.number == number, f"loop {loop.number} stands in place {number}")
            self.require(
                loop.level in (level, level + 1),
                f"loop {number} of level {loop.level} follows level {level}",
            )
            self.require(number > 0 or loop.level == 0, f"the first loop is of level {loop.level}")
            self.require(
                loop.mapping.block == self.arrangement.block,
                f"loop {number} has {loop.mapping.block} threads, the block {self.arrangement.block}",
            )
            level = loop.level

    def level_of(self, place: Placement) -> int:
        return self.arrangement.loops[place.loop].level

    def check_placement(self, key: str, place: Placement) -> None:
        exists = 0 <= place.loop < len(self.arrangement.loops)
        self.require(exists, f"%{key} is placed in loop {place.loop}, which does not exist")
        expected = (
            combine_name(place.root.name)
            if place.root.kind is RootKind.COMBINE
            else place.root.name
        )
        self.require(
            key == expected, f"the placement of %{expected} is stored under the name {key!r}"
        )
        if place.span is Span.TEAM:
            team = self.arrangement.loops[place.loop].mapping.team
            self.require(team, f"%{key} is split over a team, and its loop has none")
            return
        if place.span is Span.TASK:
            stored = place.stored or place.scheme is not Scheme.GLOBAL
            self.require(stored, f"%{key} is Global and not stored")
            return
        self.require(
            place.scheme is Scheme.GLOBAL, f"%{key} is split over tasks and {place.scheme.value}"
        )
        blocks = self.plan.kernel.grid
        self.require(
            place.span is not Span.LOOP or place.partials <= blocks,
            f"%{key} has {place.partials} partials, one of each block, and there are {blocks} blocks",
        )
        combine = self.placements.get(combine_name(key))
        self.require(place.inline or combine is not None, f"nobody adds the partials of %{key}")
        if combine is not None:
            self.require(
                self.level_of(combine) > self.level_of(place),
                f"the partials of %{key} are added at level {self.level_of(combine)}, where they are computed",
            )

    def check_output(self, output: str) -> None:
        stored = stored_value(self.graph, output)
        if stored not in self.inside:
            return  # another view of an input
        name, _ = reduce_behind(self.graph, stored)
        place = self.placements.get(combine_name(name)) or self.placements.get(name)
        self.require(place is not None and place.stored, f"output %{output} is not stored")

    # -- readers

    def reads_of(self, place: Placement) -> list[Read]:
        """Reads of other roots that the computation of this one starts from."""
        own = place.root.name if place.root.kind is RootKind.POINTWISE else ""
        found: list[Read] = []

        def stops(name: str) -> bool:
            if name == own:
                return False
            kept = reduce_behind(self.graph, name)[0] in self.placements
            return name not in self.inside or kept or is_embedded(self.graph, name)

        def visit(read: Read, stopped: bool) -> None:
            root, _ = reduce_behind(self.graph, read.operand)
            kept = read.operand in self.inside and root in self.placements
            if stopped and kept and not is_embedded(self.graph, read.operand):
                found.append(Read(root, read.index))

        walk_reads(self.graph, root_starts(self.graph, place.root), stops, visit)
        return found

    def check_reads(self, key: str, place: Placement) -> None:
        for read in self.reads_of(place):
            producer = self.placements[read.operand]
            if not producer.in_task and not producer.inline:
                producer = self.placements[combine_name(read.operand)]
            if not self.finds_on_chip(producer, place, read):
                self.check_global_read(producer, key, place, read)

    def finds_on_chip(self, producer: Placement, reader: Placement, read: Read) -> bool:
        if producer.loop != reader.loop or not producer.in_task:
            return False
        own = read.index == producer.root.result_index
        mapping = self.arrangement.loops[producer.loop].mapping
        if not own and (
            not producer.shared or why_not_block_local(producer.root, mapping, read.index)
        ):
            return False
        later = reader.phase > producer.phase
        same_register = (
            own and producer.root.kind is RootKind.POINTWISE and reader.phase == producer.phase
        )
        self.require(
            later or same_register,
            f"%{reader.root.name} of phase {reader.phase} reads %{producer.root.name}, "
            f"which phase {producer.phase} of the same task computes",
        )
        allowed = (Scheme.LOCAL, Scheme.REGIONAL, Scheme.GLOBAL)
        sentence = (
            f"%{producer.root.name} is {producer.scheme.value} and read by %{reader.root.name}"
        )
        self.require(producer.scheme in allowed, sentence)
        return True

    def check_global_read(
        self, producer: Placement, key: str, reader: Placement, read: Read
    ) -> None:
        name = read.operand
        self.require(
            producer.scheme is Scheme.GLOBAL,
            f"%{name} is {producer.scheme.value}, and %{key} reads it from another task",
        )
        self.require(
            producer.stored or producer.inline, f"%{name} is not stored, and %{key} reads it"
        )
        self.require(
            self.level_of(producer) < self.level_of(reader),
            f"%{key} of level {self.level_of(reader)} reads %{name}, which level {self.level_of(producer)} writes: "
            "no global barrier lies between",
        )


# ---- kernels ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Variable:
    """kind: integer, value, vector, state, kept, ahead, batch."""

    kind: str
    dtype: DType | None = None


@dataclass
class _Scope:
    names: dict[str, _Variable] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Use:
    """An access of a slot.  kind: read or write by any thread of the block, or private to each thread."""

    slot: str
    kind: str


_Trace = list[_Use | None]
"""What a block does to its shared memory, in order; None is a block barrier."""


class _KernelCheck:
    def __init__(self, kernel: k.Kernel):
        self.kernel = kernel
        self.parameters = {p.name: p for p in kernel.parameters}
        self.slots = {s.name: s for s in kernel.slots}
        self.reducers = {r.number: r for r in kernel.reducers}
        self.scopes: list[_Scope] = [_Scope()]
        self.level = 0
        self.meetings = 0
        self.most_ahead = 0
        self.published: set[k.Area] = set()
        self.collected: set[k.Area] = set()
        self.section = -1
        self.read_levels: dict[str, list[int]] = {}
        self.write_levels: dict[str, list[int]] = {}

    def fault(self, sentence: str) -> IllegalProduct:
        where = f", loop {self.section}" if self.section >= 0 else ""
        return IllegalProduct(f"kernel {self.kernel.name}{where}: {sentence}{_ADVICE}")

    def require(self, condition: bool, sentence: str) -> None:
        if not condition:
            raise self.fault(sentence)

    def run(self) -> None:
        self.check_head()
        self.check_slots()
        pending: list[_Use] = []
        for statement in self.kernel.body:
            match statement:
                case k.Section():
                    self.section = statement.number
                    trace = self.check_section(statement)
                    # A block without a task passes by whatever barriers stand inside.
                    pending += self.check_trace([*pending, *trace])
                    self.section = -1
                case k.Common(body):
                    for value in body:
                        what = type(value).__name__
                        self.require(
                            isinstance(value, k.Load | k.Value), f"{what} outside a section"
                        )
                        self.check_statement(value, True)
                case k.Barrier(level, _):
                    self.require(level in ("global", "block"), f"a barrier of level {level!r}")
                    self.level += level == "global"
                    self.meetings += level == "global"
                    pending = []
                case _:
                    raise self.fault(f"{type(statement).__name__} outside a section")
        self.require(
            self.level == self.kernel.global_barriers,
            f"{self.level} global barriers are written, {self.kernel.global_barriers} are announced",
        )
        self.require(self.published == self.collected, "a part is published or collected in vain")
        ends = 0
        for area in sorted(self.published, key=lambda a: a.offset):
            self.require(area.offset >= ends, f"{area} overlaps the one before")
            ends = area.offset + area.results * area.parts * area.words
        self.check_memory()

    # -- declarations

    def check_head(self) -> None:
        kernel = self.kernel
        names = [kernel.name, *(p.name for p in kernel.parameters), *(s.name for s in kernel.slots)]
        names += ["scratch"] * bool(kernel.scratch) + ["barrier"] * kernel.cooperative
        for number, name in enumerate(names):
            self.require(_IDENTIFIER.fullmatch(name) is not None, f"{name!r} is not an identifier")
            self.require(name not in names[:number], f"two things are named {name}")
        sources = [p.source for p in kernel.parameters]
        for number, source in enumerate(sources):
            self.require(source not in sources[:number], f"%{source} is passed twice")
        end = 0
        for scratch in kernel.scratch:
            self.require(scratch.source in sources, f"scratch %{scratch.source} has no name")
            self.require(
                scratch.offset >= end and scratch.offset % ACCESS_BYTES == 0,
                f"scratch %{scratch.source} at byte {scratch.offset}",
            )
            end = scratch.offset + scratch.type.bytes
        self.require(
            0 < kernel.grid <= MOST_BLOCKS and 0 < kernel.block <= 1024,
            f"a launch of {kernel.grid} x {kernel.block}",
        )
        for number, reducer in enumerate(kernel.reducers):
            self.require(
                reducer.number == number, f"reducer {reducer.number} stands in place {number}"
            )
            self.require(
                len(reducer.identity) == len(reducer.fields) == len(reducer.region.outputs),
                f"reducer {number} has {len(reducer.fields)} fields and {len(reducer.identity)} identities",
            )

    def check_slots(self) -> None:
        slots = self.kernel.slots
        for number, slot in enumerate(slots):
            self.require(
                slot.offset % SLOT_ALIGNMENT_BYTES == 0, f"slot {slot.name} at byte {slot.offset}"
            )
            self.require(
                slot.offset >= 0 and slot.offset + slot.bytes <= self.kernel.shared_bytes,
                f"slot {slot.name} ends at byte {slot.offset + slot.bytes} of {self.kernel.shared_bytes}",
            )
            self.require(
                (slot.dtype is None) != (slot.reducer is None),
                f"slot {slot.name} has no element type",
            )
            self.require(
                slot.reducer is None or slot.reducer in self.reducers,
                f"slot {slot.name}: no such reducer",
            )
            for other in slots[:number]:
                together = slot.first[0] <= other.last[0] and other.first[0] <= slot.last[0]
                self.require(
                    not (together and _overlap(slot, other)),
                    f"slots {other.name} and {slot.name} overlap and are live together",
                )

    # -- names

    def define(self, name: str, variable: _Variable) -> None:
        self.require(_IDENTIFIER.fullmatch(name) is not None, f"{name!r} is not an identifier")
        taken = name in self.parameters or name in self.slots
        self.require(not taken, f"{name} is a variable and an array")
        self.require(
            all(name not in s.names for s in self.scopes), f"{name} is defined twice in one scope"
        )
        self.scopes[-1].names[name] = variable

    def find(self, name: str, kind: str) -> _Variable:
        for scope in reversed(self.scopes):
            if name in scope.names:
                variable = scope.names[name]
                self.require(
                    variable.kind == kind, f"{name} is used as {kind}, it is {variable.kind}"
                )
                return variable
        raise self.fault(f"{name} is used before it is defined")

    def check_form(self, form: Linear) -> None:
        for symbol in ix.symbols(form):
            words = _IDENTIFIER.findall(symbol.name)
            self.require(bool(words), f"{symbol.name!r} names nothing")
            for word in words:
                if word not in _KNOWN_FUNCTIONS:
                    self.find(word, "integer")

    def check_guards(self, guards: Iterable[Guard]) -> None:
        for guard in guards:
            self.check_form(guard.form)

    # -- arrays

    def read_array(self, array: str, dtype: DType) -> _Trace:
        if array in self.slots:
            self.require(self.slots[array].dtype is dtype, f"{array} is read as {dtype.value}")
            return [_Use(array, "read")]
        parameter = self.parameters.get(array)
        if parameter is None:
            raise self.fault(f"array {array} is read and does not exist")
        self.require(parameter.read, f"{array} is read, though it is announced as only written")
        self.require(
            parameter.dtype is dtype, f"{array} of {parameter.dtype.value} is read as {dtype.value}"
        )
        self.read_levels.setdefault(array, []).append(self.meetings)
        return []

    def write_array(self, array: str, dtype: DType) -> _Trace:
        if array in self.slots:
            self.require(self.slots[array].dtype is dtype, f"{array} is written as {dtype.value}")
            return [_Use(array, "write")]
        parameter = self.parameters.get(array)
        if parameter is None:
            raise self.fault(f"array {array} is written and does not exist")
        self.require(parameter.written, f"{array} is written, though it is announced as only read")
        self.require(
            parameter.dtype is dtype,
            f"{array} of {parameter.dtype.value} is written as {dtype.value}",
        )
        self.write_levels.setdefault(array, []).append(self.meetings)
        return []

    def check_memory(self) -> None:
        """Outputs and scratch: stored by one statement, and read only behind the barrier that follows it."""
        for parameter in self.kernel.parameters:
            reads, writes = (
                self.read_levels.get(parameter.name, []),
                self.write_levels.get(parameter.name, []),
            )
            self.require(
                bool(reads) == parameter.read, f"{parameter.name} is announced as read and never is"
            )
            if not parameter.written:
                self.require(bool(reads), f"{parameter.name} is passed and not used")
                continue
            self.require(
                len(writes) == 1,
                f"{parameter.name} is stored by {len(writes)} statements, not by one",
            )
            self.require(
                not reads or min(reads) > writes[0],
                f"{parameter.name} is written at level {writes[0]} and read at level {min(reads, default=0)}: "
                "no global barrier lies between",
            )

    # -- statements

    def check_section(self, section: k.Section) -> _Trace:
        threads = section.outer_threads * section.row_threads * section.col_threads
        self.require(
            threads == self.kernel.block, f"{threads} threads in a block of {self.kernel.block}"
        )
        self.require(
            0 <= section.offset < self.kernel.grid, f"it starts {section.offset} blocks on"
        )
        names = dict.fromkeys(("thread", "tx", "ty", "to", "first"), _Variable("integer"))
        return self.check_body(section.body, names, uniform=True)

    def check_body(
        self, body: Sequence[k.Statement], names: dict[str, _Variable], *, uniform: bool
    ) -> _Trace:
        self.scopes.append(_Scope())
        for name, variable in names.items():
            self.define(name, variable)
        trace: _Trace = []
        before: k.Statement | None = None
        for statement in body:
            stored = self.count_stores()
            trace += self.check_statement(statement, uniform)
            if _goes_on(before, statement):
                self.forget_stores_since(stored)
            before = statement
        self.scopes.pop()
        return trace

    def count_stores(self) -> dict[str, int]:
        return {name: len(levels) for name, levels in self.write_levels.items()}

    def forget_stores_since(self, stored: dict[str, int]) -> None:
        """Of arrays that were stored before: the other case of a choice, or other steps of a nest, stores them too."""
        for name, levels in self.write_levels.items():
            if stored.get(name):
                del levels[stored[name] :]

    def check_statement(self, statement: k.Statement, uniform: bool) -> _Trace:
        integer = _Variable("integer")
        trace: _Trace = []
        match statement:
            case k.Index(name, form):
                self.check_form(form)
                self.define(name, integer)
            case k.ChooseIndex(name, cases):
                self.require(
                    bool(cases) and not cases[-1][0], f"{name} may be left without a value"
                )
                for guards, form in cases:
                    self.check_guards(guards)
                    self.check_form(form)
                self.define(name, integer)
            case k.Start(name, expr, _, limit):
                self.require(limit >= 0, f"{name} is clamped to {limit}")
                trace = self.check_expr(expr)
                self.define(name, integer)
            case k.Value(name, dtype, expr):
                trace = self.check_expr(expr)
                self.define(name, _Variable("value", dtype))
            case k.Load(name, dtype, array, position):
                self.check_form(position)
                trace = self.read_array(array, dtype)
                self.define(name, _Variable("value", dtype))
            case k.LoadVector(name, dtype, array, position, width, guards):
                self.check_width(name, dtype, width)
                self.check_guards(guards)
                self.check_form(position)
                trace = self.read_array(array, dtype)
                self.define(name, _Variable("vector", dtype))
            case k.VectorVariable(name, dtype, width):
                self.check_width(name, dtype, width)
                self.define(name, _Variable("vector", dtype))
            case k.StoreLane(vector, dtype, expr):
                self.check_lane(vector, dtype)
                trace = self.check_expr(expr)
            case k.StoreVector(array, position, vector, dtype, width):
                self.check_width(vector, dtype, width)
                self.check_form(position)
                self.require(
                    self.find(vector, "vector").dtype is dtype,
                    f"{vector} is stored as {dtype.value}",
                )
                trace = self.write_array(array, dtype)
            case k.Store(array, position, dtype, expr):
                self.check_form(position)
                trace = [*self.check_expr(expr), *self.write_array(array, dtype)]
            case k.Ahead(name, dtype, width, count):
                self.check_width(name, dtype, width)
                self.require(count > 0, f"{name} holds {count} vectors")
                self.define(name, _Variable("ahead", dtype))
            case k.KeepVector(target, at, dtype, vector, width):
                self.check_form(at)
                self.check_width(vector, dtype, width)
                trace = self.use_ahead(target, dtype)
                self.require(
                    self.find(vector, "vector").dtype is dtype,
                    f"{vector} is kept in {target} as {dtype.value}",
                )
            case k.Advance(target, source, _):
                same = self.find(target, "ahead").dtype is self.find(source, "ahead").dtype
                self.require(same, f"{source} and {target} hold different types")
            case k.Prefetch(first, tasks, body, ahead, ring):
                self.require(uniform, "a prefetch where not all threads come by")
                self.require(tasks > 0, f"a prefetch of {tasks} tasks")
                self.require(first or ahead > 0, "a prefetch of the task itself")
                self.require(not ring or ahead < ring, f"a task {ahead} ahead in a ring of {ring}")
                self.most_ahead = max(self.most_ahead, ahead)
                trace = self.check_other_task(body, ("task", "next_turn"), uniform=False)
            case k.Fetch(target, at, dtype, array, position, width):
                if width != 1:
                    self.check_width(target, dtype, width)
                self.check_form(position)
                self.check_form(at)
                trace = [*self.read_array(array, dtype), *self.use_ahead(target, dtype)]
            case k.CopyWait():
                pass
            case k.TakeVector(name, dtype, source, at, width):
                self.check_width(name, dtype, width)
                self.check_form(at)
                trace = self.use_ahead(source, dtype)
                self.define(name, _Variable("vector", dtype))
            case k.Keep(name, dtype, count, _):
                self.require(count > 0, f"{name} keeps {count} values")
                self.define(name, _Variable("kept", dtype))
            case k.KeepSet(name, position, _, expr, _):
                self.check_form(position)
                trace = [*self.check_expr(expr), *self.use_kept(name)]
            case k.States(name, reducer, count):
                self.require(
                    reducer in self.reducers and count > 0,
                    f"{name}: {count} states of reducer {reducer}",
                )
                self.define(name, _Variable("state"))
            case k.Accumulate(state, position, reducer, values):
                self.find(state, "state")
                self.check_form(position)
                fields = len(self.reducers[reducer].fields)
                self.require(
                    len(values) == fields, f"{len(values)} values for {fields} fields of {state}"
                )
                for value in values:
                    trace += self.check_expr(value)
            case k.AccumulateProduct(state, position, a, b):
                self.find(state, "state")
                self.check_form(position)
                trace = [*self.check_expr(a), *self.check_expr(b)]
            case k.AccumulateElement(state, position, reducer, value):
                self.find(state, "state")
                self.check_form(position)
                self.require(bool(self.reducers[reducer].joint), f"{state} is no joint reduction")
                trace = self.check_expr(value)
            case k.Batch(name, dtype, width):
                self.check_width(name, dtype, width)
                self.define(name, _Variable("batch", dtype))
            case k.BatchSet(name, dtype, expr):
                self.find("lane", "integer")
                same = self.find(name, "batch").dtype is dtype
                self.require(same, f"{name} is filled with {dtype.value}")
                trace = self.check_expr(expr)
            case k.AccumulateBatch(state, position, reducer, batch):
                self.find(state, "state")
                self.find(batch, "batch")
                self.check_form(position)
                self.require(bool(self.reducers[reducer].joint), f"{state} is no joint reduction")
            case k.AccumulateState(state, position, reducer, arrays, at):
                self.find(state, "state")
                self.check_form(position)
                self.check_form(at)
                for array, dtype in zip(arrays, self.reducers[reducer].fields, strict=True):
                    trace += self.read_array(array, dtype)
            case k.ReduceAcross():
                for part in statement.parts:
                    self.require(
                        uniform,
                        f"{part.state} is reduced across threads where not all of them come by",
                    )
                    self.find(part.state, "state")
                trace = self.check_reduction(statement)
            case k.ScanAcross():
                self.require(
                    uniform,
                    f"{statement.state} is scanned across threads where not all of them come by",
                )
                trace = self.check_scan(statement)
            case k.Rounds(variable, count, _, body):
                self.require(uniform, f"rounds over {variable} where not all threads come by")
                self.require(count > 0, f"{count} rounds over {variable}")
                turn = self.check_body(body, {variable: integer}, uniform=True)
                trace = [*turn, *turn]
                self.check_trace(trace)
            case k.FetchRound(first, variable, count, _, body):
                self.require(uniform, f"a round of {variable} is fetched where not all come by")
                self.require(count > 1, f"{count} rounds over {variable} are fetched ahead")
                if not first:
                    self.find(variable, "integer")
                outside = self.scopes
                # It works on another tile than what stands around it.
                own = {variable, *(s.name for s in body if isinstance(s, k.Index))}
                self.scopes = [
                    _Scope({n: v for n, v in scope.names.items() if n not in own})
                    for scope in outside
                ]
                trace = self.check_body(body, {variable: integer}, uniform=False)
                self.scopes = outside
            case k.Finish(state, _, _, inits):
                self.find(state, "state")
                for init in inits:
                    trace += self.check_expr(init)
            case k.Loop(variable, count, _, body, bound):
                if bound is not None:
                    self.check_form(bound)
                self.require(count > 0, f"a loop of {count} over {variable}")
                names = {variable: integer} | ({f"{variable}_end": integer} if bound else {})
                trace = self.check_body(body, names, uniform=False)
            case k.If(guards, body):
                self.require(bool(guards), "an If without a guard")
                self.check_guards(guards)
                trace = self.check_body(body, {}, uniform=False)
            case k.Switch(cases):
                self.require(bool(cases), "a choice of nothing")
                for number, found in enumerate(cases):
                    self.check_guards(found.guards)
                    stored = self.count_stores()
                    trace += self.check_body(found.body, {}, uniform=False)
                    if number:
                        self.forget_stores_since(stored)
            case k.Choose(name, dtype, branches):
                self.require(
                    bool(branches) and not branches[-1].guards,
                    f"{name} may be left without a value",
                )
                for branch in branches:
                    self.check_guards(branch.guards)
                    trace += self.check_branch(branch)
                self.define(name, _Variable("value", dtype))
            case k.TaskLoop(tasks, once, body, ring, lag):
                self.most_ahead = 0
                self.require(ring != 1 and not (once and (ring or lag)), f"a ring of {ring}")
                self.require(not lag or lag < ring, f"{lag} tasks behind in a ring of {ring}")
                self.require(uniform, "a task loop where not all threads come by")
                self.require(tasks > 0, f"a loop of {tasks} tasks")
                fits = not once or tasks <= self.kernel.grid
                self.require(fits, f"{tasks} tasks at once on {self.kernel.grid} blocks")
                names = {"task": integer}
                if ring:
                    names |= {"turn": integer}
                turn = self.check_body(body, names, uniform=True)
                room = ring >= lag + self.most_ahead
                self.require(not lag or room, f"{lag} behind, {self.most_ahead} ahead in {ring}")
                trace = turn if once else [*turn, *turn]
                self.check_trace(trace)
            case k.Current(tasks, body):
                self.require(uniform, "a current task where not all threads come by")
                trace = self.check_body(body, {}, uniform=True)
            case k.Previous(ring, body, lag):
                self.require(0 < lag < ring, f"{lag} tasks behind in a ring of {ring}")
                self.require(uniform, "a previous task where not all threads come by")
                trace = self.check_other_task(body, ("task", "turn"), uniform=True)
            case k.Barrier(level, reason):
                self.require(level == "block", f"a {level} barrier inside a section: {reason}")
                self.require(uniform, f"a barrier where not all threads come by: {reason}")
                trace = [None]
            case k.Publish(area, element, part, state, at, reducer):
                self.check_area(area, reducer)
                self.published.add(area)
                self.find(state, "state")
                for form in (element, part, at):
                    self.check_form(form)
            case k.Collect(area, element, state, at, reducer, members, rank):
                self.check_area(area, reducer)
                self.collected.add(area)
                self.find(state, "state")
                self.require(members > 0, f"{members} threads collect")
                for form in (element, rank, at):
                    self.check_form(form)
            case k.Meeting():
                trace = self.check_meeting(statement, uniform)
            case k.Section():
                raise self.fault(f"section {statement.number} inside a section")
            case k.Common():
                raise self.fault("values of all sections inside a section")
        return trace

    def check_area(self, area: k.Area, reducer: int) -> None:
        end = area.offset + area.results * area.parts * area.words
        self.require(
            area.words == self.reducers[reducer].words and end <= self.kernel.tagged_words,
            f"{area} does not lie in {self.kernel.tagged_words} tagged words",
        )
        self.require(
            area.words == 1 or area.offset % 2 == area.words % 2 == 0,
            f"{area} does not lie in whole pairs of tagged words",
        )

    def check_meeting(self, meeting: k.Meeting, uniform: bool) -> _Trace:
        """All threads write and read the shared totals, a block barrier between."""
        self.require(uniform, "a meeting of blocks where not all threads come by")
        self.require(self.kernel.grid % meeting.team == 0, f"a meeting of {meeting.team} blocks")
        self.require(self.kernel.block % 32 == 0, f"warps of {self.kernel.block} threads gather")
        self.meetings += 1
        trace = self.check_other_task(meeting.body, ("task", "to"), uniform=True)
        found = {s.name for s in meeting.body if isinstance(s, k.States)}
        self.require(found >= {t.found for t in meeting.totals}, "a total that no warp gathers")
        for total in meeting.totals:
            slot = self.slots.get(total.slot)
            if slot is None or slot.reducer != total.reducer:
                raise self.fault(
                    f"{total.state} comes through {total.slot}, which holds no such states"
                )
            self.define(total.state, _Variable("state"))
        trace += [_Use(total.slot, "write") for total in meeting.totals]
        return [*trace, None, *(_Use(total.slot, "read") for total in meeting.totals)]

    def check_branch(self, branch: k.Branch) -> _Trace:
        self.scopes.append(_Scope())
        trace: _Trace = []
        for statement in branch.body:
            trace += self.check_statement(statement, uniform=False)
        trace += self.check_expr(branch.result)
        self.scopes.pop()
        return trace

    def check_width(self, name: str, dtype: DType, width: int) -> None:
        self.require(
            width > 1 and width & (width - 1) == 0, f"{name} is a vector of {width} {dtype.value}"
        )

    def check_lane(self, vector: str, dtype: DType) -> None:
        self.find("lane", "integer")
        self.require(
            self.find(vector, "vector").dtype is dtype,
            f"a lane of {vector} is used as {dtype.value}",
        )

    def check_other_task(
        self, body: Sequence[k.Statement], names: Sequence[str], *, uniform: bool
    ) -> _Trace:
        """A body that stands in a task loop but works for another task: it has the names of a task for itself."""
        outside = self.scopes
        own = ("task", "turn", "next_turn", "to", "outer", "outer_raw", "row_tile", "col_tile")
        hidden = [n for n in own if n != "to" or n in names]
        self.scopes = [
            _Scope({n: v for n, v in scope.names.items() if n not in hidden}) for scope in outside
        ]
        trace = self.check_body(body, dict.fromkeys(names, _Variable("integer")), uniform=uniform)
        self.scopes = outside
        return trace

    def use_ahead(self, name: str, dtype: DType) -> _Trace:
        if name in self.slots:
            self.require(self.slots[name].dtype is dtype, f"{name} is used as {dtype.value}")
            return [_Use(name, "private")]
        self.require(
            self.find(name, "ahead").dtype is dtype, f"{name} is used as vectors of {dtype.value}"
        )
        return []

    def use_kept(self, name: str) -> _Trace:
        if name in self.slots:
            return [_Use(name, "private")]
        self.find(name, "kept")
        return []

    def check_expr(self, expr: k.Expr) -> _Trace:
        trace: _Trace = []
        match expr:
            case k.Name(name):
                self.find(name, "value")
            case k.Number(value):
                self.require(value.shape == (), f"a number of shape {list(value.shape)}")
            case k.Call():
                self.require(expr.op in OPS, f"there is no op {expr.op!r}")
                self.require(
                    len(expr.operands) == len(expr.operand_dtypes),
                    f"{expr.op} with operands of no type",
                )
                for operand in expr.operands:
                    trace += self.check_expr(operand)
            case k.Position(form, _):
                self.check_form(form)
            case k.Lane(vector, dtype):
                self.check_lane(vector, dtype)
            case k.Element(array, position, _, _):
                self.check_form(position)
                trace = self.use_kept(array)
            case k.Field(state, position, _):
                self.find(state, "state")
                self.check_form(position)
        return trace

    def check_reduction(self, step: k.ReduceAcross) -> _Trace:
        powers = all(n > 0 and n & (n - 1) == 0 for n in (step.threads, step.stride))
        within = step.threads * step.stride <= self.kernel.block
        first = step.parts[0].state
        self.require(
            powers and within,
            f"{first}: a reduction of {step.threads} threads {step.stride} apart",
        )
        turns = [self.check_part(step, part) for part in step.parts]
        if not turns[0]:
            return []
        if step.stride == 1:  # all write, one barrier, all read
            return [*(t[0] for t in turns), None, *(t[2] for t in turns)]
        joined: _Trace = []
        for turn in turns:
            joined += [*turn, None]
        return joined[:-1]

    def check_scan(self, step: k.ScanAcross) -> _Trace:
        self.find(step.state, "state")
        if step.carry:
            self.find(step.carry, "state")
        self.require(step.carry != step.state, f"{step.state} is carried along in itself")
        powers = all(n > 0 and n & (n - 1) == 0 for n in (step.threads, step.stride))
        within = step.threads * step.stride <= self.kernel.block
        self.require(
            powers
            and within
            and step.steps > 0
            and step.width > 0
            and (step.columns or step.stride == 1),
            f"{step.state}: a scan of {step.threads} threads {step.stride} apart, "
            f"{step.steps} x {step.width} states each",
        )
        states = k.count_scanned(step, self.kernel.block)
        trace = self.exchange_through(step, step.slot, states) if states else []
        return [*trace, *self.check_handover(step, step.handover)] if step.handover else trace

    def exchange_through(self, step: k.ScanAcross, name: str, states: int) -> _Trace:
        slot = self.slots.get(name)
        if slot is None:
            raise self.fault(f"{step.state} is scanned over several warps and has no shared memory")
        self.require(
            slot.reducer == step.reducer, f"slot {slot.name} holds other states than {step.state}"
        )
        self.require(
            slot.count >= states,
            f"slot {slot.name} has {slot.count} states, {states} are exchanged",
        )
        return [_Use(slot.name, "write"), None, _Use(slot.name, "read")]

    def check_handover(self, step: k.ScanAcross, given: k.Handover) -> _Trace:
        self.check_area(given.area, step.reducer)
        self.published.add(given.area)
        self.collected.add(given.area)
        self.check_form(given.element)
        self.check_form(given.part)
        parts = given.area.parts
        whole = step.threads * step.stride == self.kernel.block and step.carry
        self.require(
            bool(whole) and self.reducers[step.reducer].commutative,
            f"{step.state} is handed on by a block that has more than one row, or no carry",
        )
        self.require(self.kernel.grid % parts == 0, f"{step.state} is handed on in {parts} blocks")
        self.require(given.slot != step.slot, f"{given.slot} is read and written over")
        return self.exchange_through(step, given.slot, k.count_handed(step))

    def check_part(self, step: k.ReduceAcross, part: k.Part) -> _Trace:
        """The uses of shared memory of one reduction, barriers between them."""
        if not part.slot:
            in_warp = step.threads * step.stride <= 32
            self.require(
                in_warp, f"{part.state} is reduced over several warps and has no shared memory"
            )
            return []
        slot = self.slots.get(part.slot)
        if slot is None:
            raise self.fault(f"{part.state} is reduced through {part.slot}, which does not exist")
        self.require(
            slot.reducer == part.reducer, f"slot {slot.name} holds other states than {part.state}"
        )
        chunk = min(part.count, k.STRIDED_CHUNK)
        together = sum(p.slot == part.slot for p in step.parts)
        states = (
            part.count * together * max(self.kernel.block // 32, 1)
            if step.stride == 1
            else chunk * k.count_lines(self.kernel.block, step.stride)
        )
        self.require(
            slot.count >= states,
            f"slot {slot.name} has {slot.count} states, {states} are exchanged",
        )
        turns = 1 if step.stride == 1 else ceil_div(part.count, k.STRIDED_CHUNK)
        turn: _Trace = [_Use(slot.name, "write"), None, _Use(slot.name, "read"), None]
        if step.stride > 1 and step.butterfly:  # there and back
            turn *= 2
        return (turn * turns)[:-1]

    # -- shared memory

    def check_trace(self, trace: _Trace) -> list[_Use]:
        """No two threads may meet in shared memory between two barriers, unless all of them read.

        Returns what comes after the last barrier.
        """
        pending: list[_Use] = []
        for use in trace:
            if use is None:
                pending = []
                continue
            for earlier in pending:
                self.check_pair(earlier, use)
            if use not in pending:
                pending.append(use)
        return pending

    def check_pair(self, a: _Use, b: _Use) -> None:
        if a.slot == b.slot:
            clash = {a.kind, b.kind} == {"read", "write"} or (a.kind == "private") != (
                b.kind == "private"
            )
        else:
            clash = _overlap(self.slots[a.slot], self.slots[b.slot])
        self.require(
            not clash,
            f"shared {a.slot} ({a.kind}) and {b.slot} ({b.kind}) meet in one place: no block barrier lies between",
        )


def _goes_on(before: k.Statement | None, statement: k.Statement) -> bool:
    """Are they two parts of one nest, each with some of its steps?"""
    parts = (before, statement)
    return all(isinstance(part, k.Loop) and part.variable == "turn" for part in parts)


def _overlap(a: k.Slot, b: k.Slot) -> bool:
    return a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes
