"""The values of a task loop, each computed once in its zone: PAI V2's value cache and index cache.

`Values.value(op, index)` hands on the expression of a scalar and the zone in which it is known, and emits what it
takes into the zones of the loop nest.  lower_loop.py builds the nest around them.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from astitch.graph import index as ix
from astitch.graph.dimensions import array_of, is_embedded
from astitch.graph.index import Linear, Quotient, Remainder, Symbol
from astitch.graph.ir import ArrayType, ConstantAttrs, DType, IotaAttrs, Literal
from astitch.graph.ops import OPS, Kind, monoid_of
from astitch.graph.propagation import Choice, Dynamic, Guard, Index, Within, access
from astitch.graph.storage import storage_name
from astitch.kernel import kernel_ir as k
from astitch.kernel.declarations import Declarations
from astitch.kernel.masks import find_mask
from astitch.kernel.nest import LANE, Axis, Key, Zone, at_first_lane, make_axes
from astitch.mapping.stitch_scheme import (
    Placement,
    RootKind,
    TaskLoop,
    combine_name,
    reduce_behind,
    shared_elements,
    why_not_block_local,
)


@dataclass(frozen=True, slots=True)
class Kept:
    """A value that stays on chip across the phases of a task.  raw: in its storage type; shared: not in registers."""

    name: str
    key: Key
    dtype: DType
    raw: bool
    shared: bool
    zone: Zone


@dataclass(frozen=True, slots=True)
class VectorLoad:
    """A vector that each step of a thread loads.  form: its position in the array `source`, over atoms."""

    key: Key
    source: str
    form: Linear
    dtype: DType


class Stage(enum.Enum):
    """Where a vector lies when a task's turn comes, or when one of its later phases does."""

    FIRST = "registers, loaded in the first phase"
    STILL = "registers, loaded once: it is the same in every task"
    STILL_SHARED = "shared memory, copied once"
    AHEAD = "registers, loaded while the task before is worked on"
    RING = "a ring in shared memory, copied while the task before is worked on"


MAX_AHEAD, MAX_LAG = 2, 3
"""Tasks whose copies are on their way, and tasks that wait for the other blocks of a team."""

MAX_RING = MAX_AHEAD + MAX_LAG
"""Tasks in a ring.  A copy starts when the oldest task has left its place: the one worked on needs no more."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A VectorLoad that is done before the turn of its task.  name: of the registers or the shared slot."""

    load: VectorLoad
    name: str
    stage: Stage


@dataclass
class Frame:
    statements: list[k.Statement] = field(default_factory=list)
    cache: dict[object, object] = field(default_factory=dict)


@dataclass
class Conditional:
    """What only one branch of a choice computes.  vector: the choice is one for all lanes of a vector; what differs
    between them stands in `lanes`, else everything in `outside`.  shared: loads of the first branch, in whose variables
    this one may have its own from the same arrays."""

    outside: Frame
    lanes: Frame
    vector: bool
    shared: list[k.LoadVector] = field(default_factory=list)

    def take_variable(self, array: str) -> str | None:
        found = next((load for load in self.shared if load.array == array), None)
        if found is None:
            return None
        self.shared.remove(found)
        return found.name

    def frame(self, zone: Zone) -> Frame:
        return self.lanes if zone is Zone.LANE else self.outside


class Values:
    """The values of one task loop: where each is computed, and what the zones hold already."""

    def __init__(self, declarations: Declarations, loop: TaskLoop):
        self.declarations, self.loop = declarations, loop
        self.graph = declarations.graph
        self.mapping = loop.mapping
        self.placements = declarations.arrangement.placements
        self.axes = make_axes(loop.mapping)
        self.axis_of = {atom: axis for axis in self.axes for atom in axis.atoms}
        self.frames = {zone: Frame() for zone in Zone}
        self.conditionals: list[Conditional] = []
        self.kept: dict[Key, Kept] = {}
        self.filled: set[Key] = set()
        self.kept_whole: set[Key] = set()  # kept as vectors, not lane by lane
        self.vector_loads: dict[tuple[str, Linear], VectorLoad] = {}
        self.staged: dict[tuple[str, Linear], Staged] = {}
        self.first_fetched = False  # is Stage.FIRST on its way?
        # What stays in shared memory across a global barrier, of so many first steps: slots by value.
        self.keeps_for_later: dict[Key, str] = {}
        self.kept_before: dict[Key, str] = {}
        self.carried_steps = 0
        self.taken_before: dict[str, k.TakeVector] = {}  # by vector: instead of its load
        self.evaluating: str = ""
        self.states: dict[str, str] = {}
        self.slots_of: dict[str, str] = {}

    # -- statements and caches ---------------------------------------------------------------------------------

    def frame(self, zone: Zone) -> Frame:
        """Where a statement of the zone stands now."""
        return self.conditionals[-1].frame(zone) if self.conditionals else self.frames[zone]

    def emit(self, zone: Zone, statement: k.Statement) -> None:
        self.frame(zone).statements.append(statement)

    def remember(self, zone: Zone, key: object, value: object) -> None:
        self.frame(zone).cache[key] = value

    def recall(self, key: object) -> object | None:
        before_lanes = False  # the choice of a vector stands before the loop over its lanes
        for conditional in reversed(self.conditionals):
            inside, outside = conditional.lanes, conditional.outside
            for frame in (outside,) if before_lanes else (inside, outside):
                if key in frame.cache:
                    return frame.cache[key]
            before_lanes |= conditional.vector
        hidden = (Zone.LANE, Zone.AFTER) if before_lanes else ()
        for zone, frame in self.frames.items():  # from the outermost
            if zone not in hidden and key in frame.cache:
                return frame.cache[key]
        return None

    def fresh(self, hint: str) -> str:
        return self.declarations.fresh(hint)

    # -- indices -----------------------------------------------------------------------------------------------

    def spell(self, form: Linear) -> tuple[Linear, Zone]:
        """A form over atoms as a form over variables of the kernel, and the zone in which it is known."""
        spelled, zone = self.spell_base(form)
        return spelled, max(zone, Zone.LANE) if LANE in ix.symbols(spelled) else zone

    def spell_base(self, form: Linear) -> tuple[Linear, Zone]:
        """As `spell`, with the zone in which the form without its lane is known."""
        zone = Zone.KERNEL
        parts = [Linear(form.constant)]
        coefficients: dict[Symbol, int] = {}
        for term, coefficient in form.terms:
            if isinstance(term, Symbol) and term in self.axis_of:
                coefficients[term] = coefficient
                continue
            if isinstance(term, Symbol):
                known = self.recall(("symbol", term))
                assert isinstance(known, tuple), (
                    f"run-time index {term} is used before it is computed"
                )
                symbol, where = known
                parts.append(ix.scale(ix.of_symbol(symbol), coefficient))
            else:
                inner, where = self.spell_base(term.dividend)
                kind = Quotient if isinstance(term, Quotient) else Remainder
                parts.append(Linear(0, ((kind(inner, term.divisor), coefficient),)))
            zone = max(zone, where)
        for axis in self.axes:
            last = len(axis.atoms) - 1
            while last >= 0:
                factor = coefficients.get(axis.atoms[last], 0)
                if not factor:
                    last -= 1
                    continue
                first, extent = last, axis.atoms[last].extent
                while first and coefficients.get(axis.atoms[first - 1], 0) == factor * extent:
                    first -= 1
                    extent *= axis.atoms[first].extent
                parts.append(ix.scale(ix.of_symbol(self.run(axis, first, last)), factor))
                if axis.name == "col" and last == len(axis.atoms) - 1 and self.mapping.vector > 1:
                    parts.append(ix.scale(ix.of_symbol(LANE), factor))
                zone = max(zone, axis.zone)
                last = first - 1
        return ix.add(*parts), zone

    def run(self, axis: Axis, first: int, last: int) -> Symbol:
        """The variable that holds the flat position along atoms first..last of an axis."""
        if first == 0 and last == len(axis.atoms) - 1:
            return axis.variable
        key = ("run", axis.name, first, last)
        known = self.recall(key)
        if isinstance(known, Symbol):
            return known
        minor = math.prod(a.extent for a in axis.atoms[last + 1 :])
        extent = math.prod(a.extent for a in axis.atoms[first : last + 1])
        form = ix.of_symbol(axis.variable)
        if minor > 1:
            form = ix.of_symbol(Quotient(form, minor))
        if first:
            form = ix.of_symbol(Remainder(form, extent))
        symbol = Symbol(self.fresh(f"{axis.name}_{first}"), extent)
        self.emit(axis.zone, k.Index(symbol.name, form))
        self.remember(axis.zone, key, symbol)
        return symbol

    def position(self, form: Linear) -> tuple[Linear, Zone]:
        """An address: its base is computed once (index cache), the lane is added where it is used."""
        spelled, where = self.spell_base(form)
        lane = spelled.coefficient(LANE)
        base = at_first_lane(spelled)
        if LANE in ix.symbols(base):
            return spelled, Zone.LANE
        if len(base.terms) > 1 or (base.terms and not isinstance(base.terms[0][0], Symbol)):
            known = self.recall(("index", base))
            if not isinstance(known, Symbol):
                known = Symbol(self.fresh("at"), ix.UNBOUNDED)
                self.emit(where, k.Index(known.name, base))
                self.remember(where, ("index", base), known)
            base = ix.of_symbol(known)
        zone = max(where, Zone.LANE) if lane else where
        return ix.add(base, ix.scale(ix.of_symbol(LANE), lane)), zone

    def guard(self, guard: Guard) -> tuple[Guard, Zone]:
        form, zone = self.spell(guard.form)
        return replace(guard, form=form), zone

    # -- values ------------------------------------------------------------------------------------------------

    def value(self, name: str, index: Index) -> tuple[k.Expr, Zone]:
        """The scalar `name[index]`: found in a cache, or computed in the outermost zone that knows its index."""
        node = self.graph[name]
        if isinstance(node.attrs, ConstantAttrs) and node.array.rank == 0:
            return k.Number(node.attrs.value), Zone.KERNEL
        key: Key = (name, index)
        known = self.recall(key)
        if isinstance(known, tuple):
            return known
        # Operands first, with a stack of our own: chains of ops are longer than Python's.
        stack: list[tuple[Key, bool]] = [(key, False)]
        while True:
            current, ready = stack.pop()
            if ready:
                result = self.evaluate(current)
                if not stack:
                    return result
            elif not stack or self.recall(current) is None:
                stack.append((current, True))
                stack.extend((operand, False) for operand in reversed(self.operand_keys(current)))

    def operand_keys(self, key: Key) -> list[Key]:
        """The values that `key` is computed from in the same thread; none where it is read or chosen,
        or where a start index must be computed first."""
        name, index = key
        node = self.graph[name]
        if isinstance(node.attrs, ConstantAttrs | IotaAttrs) or self.is_input(name):
            return []
        if key in self.filled or self.kept_elsewhere(key) is not None:
            return []
        found = access(self.graph, node, index)
        if len(found.choices) > 1 or found.dynamics:
            return []
        return [(read.operand, read.index) for read in found.choices[0].reads]

    def is_input(self, name: str) -> bool:
        """Read from memory that another step wrote."""
        return name not in self.declarations.inside and not is_embedded(self.graph, name)

    def kept_elsewhere(self, key: Key) -> tuple[Placement, int] | None:
        """The placement and result number of a root that is read where it is kept, not computed again here."""
        name, index = key
        if name not in self.declarations.inside or is_embedded(self.graph, name):
            return None
        reduce, number = reduce_behind(self.graph, name)
        place = self.placements.get(reduce)
        if place is None or reduce == self.evaluating:
            return None
        combine = self.placements.get(combine_name(reduce))
        if combine is not None and combine.loop == self.loop.number:
            place = combine
        here = place.loop == self.loop.number and place.in_task
        if place.root.kind is RootKind.POINTWISE and here and index == place.root.result_index:
            return None  # one-to-one: the register that already holds it, or computed again in this phase
        return place, number

    def evaluate(self, key: Key) -> tuple[k.Expr, Zone]:
        """Compute a value whose operands are known, and remember it."""
        node = self.graph[key[0]]
        if isinstance(node.attrs, ConstantAttrs) and node.array.rank == 0:
            return k.Number(node.attrs.value), Zone.KERNEL
        kept = self.kept.get(key)
        if kept is not None and key in self.filled:
            shared = kept.shared and kept.zone is Zone.LANE and self.mapping.vector > 1
            if shared or key in self.kept_whole:
                vector = self.fresh(f"{key[0]}_v")
                width = self.mapping.vector
                at = self.own_vector() if kept.shared else self.own_step()
                self.emit(Zone.COLUMN, k.TakeVector(vector, kept.dtype, kept.name, at, width))
                return self.define(key, kept.dtype, k.Lane(vector, kept.dtype), Zone.LANE)
            element = k.Element(kept.name, self.kept_position(kept), kept.dtype, kept.raw)
            return self.define(key, kept.dtype, element, kept.zone)
        result = self.compute(key)
        expr, zone = result
        if kept is not None and not self.conditionals and key not in self.kept_whole:
            position = self.kept_position(kept)
            self.emit(kept.zone, k.KeepSet(kept.name, position, kept.dtype, expr, kept.raw))
        self.remember(zone, key, result)
        return result

    def define(self, key: Key, dtype: DType, expr: k.Expr, zone: Zone) -> tuple[k.Expr, Zone]:
        variable = self.fresh(key[0])
        self.emit(zone, k.Value(variable, dtype, expr))
        result = (k.Name(variable), zone)
        self.remember(zone, key, result)
        return result

    def compute(self, key: Key) -> tuple[k.Expr, Zone]:
        name, index = key
        node = self.graph[name]
        elsewhere = self.kept_elsewhere(key)
        if elsewhere is not None:
            return self.read_root(key, *elsewhere)
        if isinstance(node.attrs, IotaAttrs):
            form, zone = self.position(index[node.attrs.dimension])
            return self.define(key, node.dtype, k.Position(form, node.dtype), zone)
        if self.is_input(name):
            return self.load(key, storage_name(self.graph, name), node.dtype)
        found = access(self.graph, node, index)
        for dynamic in found.dynamics:
            self.start(dynamic)
        if len(found.choices) > 1:
            return self.choose(key, found.choices)
        reads = found.choices[0].reads
        values = [self.value(read.operand, read.index) for read in reads]
        if OPS[node.op].kind in (Kind.INDEX, Kind.BROADCAST):
            return values[0]
        dtypes = tuple(self.graph[read.operand].dtype for read in reads)
        if node.op == "bitcast-convert" and node.dtype.bytes < dtypes[0].bytes:
            part, where = self.position(index[-1])
            values.append((k.Position(part, DType.S32), where))
            dtypes = (*dtypes, DType.S32)
        zone = max((zone for _, zone in values), default=Zone.KERNEL)
        shared = node.op == "divide" and node.dtype is DType.F32 and values[1][1] < zone
        narrow = name in self.declarations.narrow_ends
        operands = tuple(e for e, _ in values)
        call = k.Call(node.op, node.dtype, operands, dtypes, node.attrs, shared, narrow)
        return self.define(key, node.dtype, call, zone)

    def read_root(self, key: Key, place: Placement, number: int) -> tuple[k.Expr, Zone]:
        """A root's value: from the thread's state, shared memory, partials or global memory."""
        here = place.loop == self.loop.number and place.in_task
        if here and key[1] == place.root.result_index:
            return self.read_state(key, place, number)
        local = why_not_block_local(place.root, self.mapping, key[1]) is None
        if here and place.shared and local:
            return self.read_shared(key, place, number)
        if place.inline:
            return self.read_partials(key, place, number)
        return self.load(key, self.result_name(place.root.name, number), self.graph[key[0]].dtype)

    def choose(self, key: Key, choices: Sequence[Choice]) -> tuple[k.Expr, Zone]:
        """pad, concatenate, dynamic-update-slice: only the branch that applies touches memory."""
        guards_of = [[self.guard_of_vector(g) for g in choice.guards] for choice in choices]
        if self.is_whole(key) and all(g is not None for guards in guards_of for g in guards):
            return self.choose_vector(key, choices, guards_of)
        node = self.graph[key[0]]
        zone = Zone.KERNEL
        branches = []
        for choice in choices:
            guards = [self.guard(g) for g in choice.guards]
            frame = Frame()
            self.conditionals.append(Conditional(frame, frame, False))
            read = choice.reads[0]
            expr, where = self.value(read.operand, read.index)
            self.conditionals.pop()
            zone = max(zone, where, *(z for _, z in guards), Zone.KERNEL)
            branches.append(k.Branch(tuple(g for g, _ in guards), tuple(frame.statements), expr))
        variable = self.fresh(key[0])
        self.emit(zone, k.Choose(variable, node.dtype, tuple(branches)))
        return k.Name(variable), zone

    def choose_vector(
        self, key: Key, choices: Sequence[Choice], guards_of: Sequence[Sequence[Guard | None]]
    ) -> tuple[k.Expr, Zone]:
        """The same where all lanes of a vector take the same branch: its loads are vectors too."""
        dtype, width = self.graph[key[0]].dtype, self.mapping.vector
        chosen = self.fresh(f"{key[0]}_lanes")
        cases: list[k.If] = []
        for choice, guards in zip(choices, guards_of, strict=True):
            branch = Conditional(Frame(), Frame(), True, self.loads_to_share(cases))
            self.conditionals.append(branch)
            read = choice.reads[0]
            expr, _ = self.value(read.operand, read.index)
            self.conditionals.pop()
            put = k.KeepSet(chosen, ix.of_symbol(LANE), dtype, expr, False)
            lanes = k.Loop("lane", width, True, (*branch.lanes.statements, put))
            known = tuple(g for g in guards if g is not None)
            cases.append(k.If(known, (*branch.outside.statements, lanes)))
        self.emit(Zone.COLUMN, k.Keep(chosen, dtype, width, False))
        self.emit(Zone.COLUMN, k.Switch(tuple(self.load_before(cases))))
        return k.Element(chosen, ix.of_symbol(LANE), dtype, False), Zone.LANE

    def loads_to_share(self, cases: Sequence[k.If]) -> list[k.LoadVector]:
        """What a further case of a choice may load into the variables of the first."""
        if self.conditionals or not cases:
            return []
        return [s for s in cases[0].body if isinstance(s, k.LoadVector)]

    def load_before(self, cases: Sequence[k.If]) -> list[k.If]:
        """The cases of a choice.  Where each loads as many vectors from the same arrays, the loads stand before the
        choice and only their positions are chosen: threads of a warp that part would wait for each case's loads in
        turn."""
        loads = [[s for s in c.body if isinstance(s, k.LoadVector)] for c in cases]
        first, *others = ({load.name: load for load in of} for of in loads)
        plain = (k.LoadVector, k.Index)
        inner = [s for c in cases for s in c.body[:-1] if not isinstance(s, plain)]
        alike = all(other.keys() == first.keys() for other in others)
        if self.conditionals or cases[-1].guards or inner or not first or not alike:
            return list(cases)
        for case in cases:
            for statement in case.body:
                if isinstance(statement, k.Index):
                    self.emit(Zone.COLUMN, statement)
        for name, load in first.items():
            positions = [load.position, *(other[name].position for other in others)]
            if any(position != load.position for position in positions):
                at = Symbol(self.fresh("at"), ix.UNBOUNDED)
                starts = zip((case.guards for case in cases), positions, strict=True)
                self.emit(Zone.COLUMN, k.ChooseIndex(at.name, tuple(starts)))
                load = replace(load, position=ix.of_symbol(at))
            self.emit(Zone.COLUMN, load)
        return [k.If(case.guards, case.body[-1:]) for case in cases]

    def is_whole(self, key: Key) -> bool:
        """May the lanes of a vector choose together?  They must be different elements, and stand in no branch of a
        single one; and no start index may be known in the loop over the lanes only, which stands behind the choice."""
        together = all(conditional.vector for conditional in self.conditionals)
        if self.mapping.vector == 1 or not self.mapping.col or not together:
            return False
        symbols = {symbol for form in key[1] for symbol in ix.symbols(form)}
        starts = [self.recall(("symbol", s)) for s in symbols if s not in self.axis_of]
        if any(isinstance(start, tuple) and start[1] >= Zone.LANE for start in starts):
            return False
        return self.mapping.col[-1] in symbols

    def guard_of_vector(self, guard: Guard) -> Guard | None:
        """A guard that holds for all lanes of a vector or for none, as one of the first lane; None where it may part
        them."""
        if not self.mapping.col:
            return None
        if self.mapping.col[-1] in ix.symbols(guard.form):
            width = self.mapping.vector
            if not isinstance(guard, Within) or guard.low % width or guard.high % width:
                return None
            if not self.is_vector(guard.form):
                return None
        elif self.spell_base(guard.form)[1] > Zone.COLUMN:
            return None
        spelled, _ = self.spell_base(guard.form)
        return replace(guard, form=at_first_lane(spelled))

    def start(self, dynamic: Dynamic) -> None:
        """A start index known at run time, clamped as HLO says."""
        if self.recall(("symbol", dynamic.symbol)) is not None:
            return
        expr, zone = self.value(dynamic.operand, dynamic.index)
        symbol = Symbol(self.fresh("start"), dynamic.symbol.extent)
        dtype = self.graph[dynamic.operand].dtype
        self.emit(zone, k.Start(symbol.name, expr, dtype, dynamic.symbol.extent - 1))
        self.remember(zone, ("symbol", dynamic.symbol), (symbol, zone))

    def load(self, key: Key, source: str, dtype: DType) -> tuple[k.Expr, Zone]:
        """An element of an array in memory: a lane of a vector access where the elements are adjacent."""
        name, index = key
        shape = array_of(self.graph[name]).shape
        form = ix.linearize(index, shape)
        array = self.declarations.array(source, dtype, read=True)
        if self.is_vector(form) and all(c.vector for c in self.conditionals):
            vector = self.recall(("vector", source, form))
            if not isinstance(vector, str):
                position, _ = self.position(form)
                taken = self.conditionals[-1].take_variable(array) if self.conditionals else None
                vector = taken or self.fresh(f"{name}_v")
                base = at_first_lane(position)
                width = self.mapping.vector
                if not self.conditionals:  # else it may lie outside of the array
                    self.vector_loads[source, form] = VectorLoad(key, source, form, dtype)
                staged = self.staged.get((source, form))
                if staged is None or (staged.stage is Stage.FIRST and not self.first_fetched):
                    needed = () if self.conditionals else self.needed_lanes(key)
                    load = k.LoadVector(vector, dtype, array, base, width, needed)
                    self.emit(Zone.COLUMN, load)
                    kept = self.kept.get(key) if not self.conditionals else None
                    if kept is not None and not kept.shared and kept.zone is Zone.LANE:
                        keep = k.KeepVector(kept.name, self.own_step(), dtype, vector, width)
                        self.emit(Zone.COLUMN, keep)
                        self.kept_whole.add(key)
                    if not self.conditionals:
                        self.carry_over(key, load)
                else:
                    at = self.staged_position(staged, self.turn)
                    self.emit(Zone.COLUMN, k.TakeVector(vector, dtype, staged.name, at, width))
                self.remember(Zone.COLUMN, ("vector", source, form), vector)
            return self.define(key, dtype, k.Lane(vector, dtype), Zone.LANE)
        if self.is_own_element(form):
            self.vector_loads[source, form] = VectorLoad(key, source, form, dtype)
            staged = self.staged.get((source, form))
            if staged is not None:
                at = self.staged_position(staged, self.turn)
                return self.define(key, dtype, k.Element(staged.name, at, dtype, True), Zone.COLUMN)
        position, zone = self.position(form)
        variable = self.fresh(name)
        self.emit(zone, k.Load(variable, dtype, array, position))
        return k.Name(variable), zone

    def carry_over(self, key: Key, load: k.LoadVector) -> None:
        """Keep a vector for a task loop behind a global barrier, or remember where an earlier one kept it."""
        at, width = self.own_vector(), self.mapping.vector
        if slot := self.keeps_for_later.get(key):
            keep: k.Statement = k.KeepVector(slot, at, load.dtype, load.name, width)
            if self.carried_steps < self.mapping.walked_steps:
                inside = Within(ix.of_symbol(self.step_symbol), 0, self.carried_steps)
                keep = k.If((inside,), (keep,))
            self.emit(Zone.COLUMN, keep)
        elif slot := self.kept_before.get(key):
            taken = k.TakeVector(load.name, load.dtype, slot, at, width)
            self.taken_before[load.name] = taken

    @property
    def step_symbol(self) -> Symbol:
        return Symbol("k" if self.mapping.row_steps > 1 else "l", self.mapping.walked_steps)

    def is_vector(self, form: Linear) -> bool:
        """The `vector` lanes lie side by side in memory and start at a multiple of `vector`."""
        width = self.mapping.vector
        if width == 1 or not self.mapping.col or self.spell_base(form)[1] > Zone.COLUMN:
            return False
        minor = self.mapping.col[-1]
        if form.coefficient(minor) != 1 or form.constant % width:
            return False
        col = self.mapping.col
        if form == ix.linearize([ix.of_symbol(a) for a in col], [a.extent for a in col]):
            return True  # of a whole array: a vector may go on in the next row
        for term, coefficient in form.terms:
            if term == minor:
                continue
            if not isinstance(term, Symbol) and minor in ix.symbols(term.dividend):
                return False
            if coefficient % width:
                return False
        return True

    def needed_lanes(self, key: Key) -> tuple[Guard, ...]:
        """Guards that hold where somebody needs a lane of the vector, see masks.py."""
        inside, kept = self.declarations.inside, self.declarations.outputs
        found = []
        for guard in find_mask(self.graph, *key, inside, kept):
            form, zone = self.spell_base(guard.form)
            last = form.coefficient(LANE) * (self.mapping.vector - 1)
            base = at_first_lane(form)
            if zone <= Zone.COLUMN and LANE not in ix.symbols(base):
                found.append(Within(base, guard.low - max(last, 0), guard.high - min(last, 0)))
        return tuple(found)

    def is_own_element(self, form: Linear) -> bool:
        """A single element for each step of a thread, where a team may copy it ahead as it does vectors."""
        team = self.mapping.team and self.mapping.vector == 1 and not self.conditionals
        return team and self.spell_base(form)[1] is Zone.COLUMN

    # -- values of other roots -----------------------------------------------------------------------------------

    def result_name(self, root: str, number: int) -> str:
        several = not isinstance(self.graph[root].type, ArrayType)
        return f"{root}#{number}" if several else storage_name(self.graph, root)

    def slot_position(self, place: Placement) -> tuple[Linear, Zone]:
        """Which of the thread's states holds the element at which the nest stands."""
        rows, cols = self.kept_axes(place)
        form, zone = ix.ZERO, Zone.TASK
        if rows:
            form = ix.of_symbol(Symbol("k", self.mapping.row_steps))
            zone = Zone.ROW
        if cols:
            vector = self.mapping.vector
            form = ix.scale(form, self.mapping.col_steps * vector)
            form = ix.add(form, ix.scale(ix.of_symbol(Symbol("l", self.mapping.col_steps)), vector))
            zone = Zone.COLUMN
            if vector > 1:
                form, zone = ix.add(form, ix.of_symbol(LANE)), Zone.LANE
        return form, zone

    def kept_axes(self, place: Placement) -> tuple[bool, bool]:
        """Does the result still vary along (row, col)?"""
        kept = frozenset(place.root.result_atoms)
        return any(a in kept for a in self.mapping.row), any(a in kept for a in self.mapping.col)

    def space_axes(self, place: Placement) -> tuple[bool, bool]:
        """Does the root's space have (row, col) at all?  `kept_axes` says no for an axis that it reduces, this yes."""
        here = frozenset(place.root.space.atoms)
        return any(a in here for a in self.mapping.row), any(a in here for a in self.mapping.col)

    def state_count(self, place: Placement) -> int:
        rows, cols = self.kept_axes(place)
        count = self.mapping.row_steps if rows else 1
        return count * (self.mapping.col_steps * self.mapping.vector if cols else 1)

    def read_state(self, key: Key, place: Placement, number: int) -> tuple[k.Expr, Zone]:
        position, zone = self.slot_position(place)
        dtype = self.graph[key[0]].dtype
        return self.define(
            key, dtype, k.Field(self.states[place.root.name], position, number), zone
        )

    def shared_position(self, place: Placement, index: Index) -> Linear:
        """Position in the shared buffer of a root: the packed outer rows, then the dimensions inside the task."""
        outer = frozenset(self.mapping.outer)
        shape = array_of(self.graph[place.root.name]).shape
        form = ix.ZERO
        for mine, theirs, extent in zip(place.root.result_index, index, shape, strict=True):
            if extent != 1 and not any(s in outer for s in ix.symbols(mine)):
                form = ix.add(ix.scale(form, extent), theirs)
        return form

    def read_shared(self, key: Key, place: Placement, number: int) -> tuple[k.Expr, Zone]:
        slot = self.slots_of[f"{place.root.name}#{number}"]
        position, zone = self.position(self.shared_position(place, key[1]))
        position = self.with_packed_row(place, position)
        variable = self.fresh(key[0])
        zone = max(zone, Zone.TASK)
        self.emit(zone, k.Load(variable, self.graph[key[0]].dtype, slot, position))
        return k.Name(variable), zone

    def with_packed_row(self, place: Placement, position: Linear) -> Linear:
        inner = shared_elements(place, self.mapping) // self.mapping.outer_threads
        return ix.add(
            position, ix.scale(ix.of_symbol(Symbol("to", self.mapping.outer_threads)), inner)
        )

    def read_partials(self, key: Key, place: Placement, number: int) -> tuple[k.Expr, Zone]:
        """Add the few partials of a split reduce where its value is needed."""
        state = self.fresh(f"{place.root.name}_sum")
        shape = array_of(self.graph[place.root.name]).shape
        elements = math.prod(shape)
        at, zone = self.position(ix.linearize(key[1], shape))
        reducer = self.declarations.reducer(place.root.name)
        part = Symbol("part", place.partials)
        arrays = self.declarations.partial_arrays(place, write=False)
        self.emit(zone, k.States(state, reducer.number, 1))
        form = ix.add(ix.scale(ix.of_symbol(part), elements), at)
        body = (k.AccumulateState(state, ix.ZERO, reducer.number, arrays, form),)
        self.emit(zone, k.Loop(part.name, place.partials, place.partials <= 8, body))
        self.finish(zone, place, state, 1)
        return self.define(key, self.graph[key[0]].dtype, k.Field(state, ix.ZERO, number), zone)

    def finish(self, zone: Zone, place: Placement, state: str, count: int) -> None:
        """Apply the init value, unless it is the identity."""
        node = self.graph[place.root.name]
        reducer = self.declarations.reducer(place.root.name)
        inits = node.operands[len(node.operands) // 2 :]
        if monoid_of(node.regions[0]) is None:
            return  # the init value took part already: it is what idle lanes hold
        attrs = self.graph[inits[0]].attrs
        if isinstance(attrs, ConstantAttrs):
            as_state = attrs.value.numpy().astype(reducer.fields[0].numpy)
            if Literal.of(as_state) == reducer.identity[0]:
                return
            if monoid_of(node.regions[0]) == "add" and not as_state.any():
                return  # -0.0 as the init of a sum: adding it changes nothing
        exprs = tuple(self.value(init, ())[0] for init in inits)
        self.emit(zone, k.Finish(state, count, reducer.number, exprs))

    @property
    def turn(self) -> Linear:
        """The place of the nest's task in a ring; rounds take two in turns."""
        if self.mapping.carried:
            return ix.modulo(ix.of_symbol(Symbol("round", self.mapping.rounds)), 2)
        return ix.of_symbol(Symbol("turn", MAX_RING))

    def staged_position(self, staged: Staged, turn: Linear) -> Linear:
        """The number of the vector at which the nest stands: of the thread's own, or in the ring's place `turn`."""
        m = self.mapping
        step = self.own_step()
        if staged.stage is Stage.STILL_SHARED:
            return self.own_vector()
        if staged.stage is not Stage.RING:
            return step
        place = ix.scale(turn, m.row_steps * m.col_steps)
        return ix.add(
            ix.scale(ix.add(place, step), m.block), ix.of_symbol(Symbol("thread", m.block))
        )

    # -- residency ---------------------------------------------------------------------------------------------

    def own_vector(self) -> Linear:
        """The number of the vector at which the nest stands, in a shared slot where each thread has its own."""
        m = self.mapping
        return ix.add(ix.scale(self.own_step(), m.block), ix.of_symbol(Symbol("thread", m.block)))

    def own_step(self) -> Linear:
        """The number of the step at which the nest stands."""
        m = self.mapping
        return ix.add(
            ix.scale(ix.of_symbol(Symbol("k", m.row_steps)), m.col_steps),
            ix.of_symbol(Symbol("l", m.col_steps)),
        )

    def kept_position(self, kept: Kept) -> Linear:
        m = self.mapping
        steps = self.own_step()
        if kept.zone is Zone.ROW:
            steps = ix.of_symbol(Symbol("k", m.row_steps))
        width = m.vector if kept.zone is Zone.LANE else 1
        if kept.shared:
            steps = ix.add(ix.scale(steps, m.block), ix.of_symbol(Symbol("thread", m.block)))
        form = ix.scale(steps, width)
        return ix.add(form, ix.of_symbol(LANE)) if width > 1 else form
