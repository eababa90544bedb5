"""Arrangement -> Kernel: every decision about the text of a kernel is taken here.

A task loop becomes: indices of the task; then for each phase the values a task needs once, the nest of row,
column and lane loops over the thread's elements, and the reductions across threads.  Every value is placed in the
outermost *zone* (kernel, task, row, column, lane) in which all it depends on is known, and computed once there
(PAI V2's value cache and index cache).  Values of one phase that a later phase needs stay on chip (residency).
"""

from __future__ import annotations

import contextlib
import enum
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from astitch import index as ix
from astitch import kernel_ir as k
from astitch.dimensions import array_of
from astitch.dominant import stored_value
from astitch.index import Linear, Quotient, Remainder, Symbol
from astitch.ir import (
    ArrayType,
    ConstantAttrs,
    DType,
    GetTupleElementAttrs,
    Graph,
    IotaAttrs,
    Literal,
)
from astitch.ops import OPS, Kind, monoid_of
from astitch.propagation import Dynamic, Guard, Index, Read, Within, access
from astitch.stitch_scheme import (
    Arrangement,
    Placement,
    RootKind,
    Scheme,
    Span,
    TaskLoop,
    reduce_behind,
    root_starts,
    shared_elements,
    why_not_block_local,
)

MAX_UNROLLED_STEPS = 16
"""A nest of at most this many (row, column) steps is unrolled, so that kept values are registers."""

REGISTERS_FOR_CODE = 28
"""Registers that a kernel needs beside what it keeps: addresses, temporaries, accumulators."""

LANE = Symbol("lane", 1 << 30)
"""The number of an element within a vector; its true extent never matters, for lanes are only ever added."""


class Zone(enum.IntEnum):
    """Where a statement stands: each zone is a loop inside the one before."""

    KERNEL = 0
    TASK = 1
    ROW = 2
    COLUMN = 3
    LANE = 4
    AFTER = 5  # after the lanes of a vector: stores


def storage_name(graph: Graph, name: str) -> str:
    """The buffer that holds a value: reshapes share their operand's, results of one op are numbered."""
    name = stored_value(graph, name)
    node = graph[name]
    if isinstance(node.attrs, GetTupleElementAttrs):
        return f"{node.operands[0]}#{node.attrs.index}"
    return name


def storage_type(graph: Graph, name: str) -> ArrayType:
    """The array type under a storage name."""
    base, _, number = name.partition("#")
    node_type = graph[base].type
    if number and not isinstance(node_type, ArrayType):
        return node_type.elements[int(number)]
    return array_of(graph[base])


# ---- reducers --------------------------------------------------------------------------------------------------


def _extreme(dtype: DType, *, largest: bool) -> np.ndarray:
    if dtype is DType.PRED:
        return np.array(largest)
    if dtype.is_float:
        return np.array(np.inf if largest else -np.inf).astype(dtype.numpy)
    limits = np.iinfo(dtype.numpy)
    return np.array(limits.max if largest else limits.min, dtype.numpy)


def make_reducer(graph: Graph, name: str, number: int) -> k.Reducer:
    """The combiner of a reduce.  Sums and products of f16 and bf16 accumulate in f32, as XLA's do."""
    node = graph[name]
    region = node.regions[0]
    count = len(node.operands) // 2
    dtypes = [array_of(graph[o]).dtype for o in node.operands[:count]]
    op = monoid_of(region)
    if op is None:
        inits = [graph[o].attrs for o in node.operands[count:]]
        values = tuple(a.value for a in inits if isinstance(a, ConstantAttrs))
        return k.Reducer(number, tuple(dtypes), region, values)
    dtype = dtypes[0]
    wide = dtype in (DType.F16, DType.BF16) and op in ("add", "multiply")
    state = DType.F32 if wide else dtype
    identities = {
        "add": np.zeros((), state.numpy),
        "or": np.zeros((), state.numpy),
        "xor": np.zeros((), state.numpy),
        "multiply": np.ones((), state.numpy),
        "maximum": _extreme(state, largest=False),
        "minimum": _extreme(state, largest=True),
        "and": np.array(True) if state is DType.PRED else np.array(-1).astype(state.numpy),
    }
    return k.Reducer(number, (state,), region, (Literal.of(identities[op]),))


# ---- residency -------------------------------------------------------------------------------------------------

Key = tuple[str, Index]


@dataclass(frozen=True, slots=True)
class Kept:
    """A value that stays on chip across the phases of a task.  raw: in its storage type; shared: not in registers."""

    name: str
    key: Key
    dtype: DType
    raw: bool
    shared: bool
    zone: Zone


@dataclass
class _Frame:
    statements: list[k.Statement] = field(default_factory=list)
    cache: dict[object, object] = field(default_factory=dict)


class _Axis:
    """One axis of a mapping and the variable that holds the thread's flat position on it."""

    def __init__(self, name: str, atoms: Sequence[Symbol], zone: Zone):
        self.name, self.atoms, self.zone = name, tuple(atoms), zone
        self.size = math.prod(a.extent for a in atoms)
        self.variable = Symbol(name, self.size)


class _LoopLowering:
    """Lowers one task loop; asks its parent for parameters, slots and names."""

    def __init__(self, parent: _KernelLowering, loop: TaskLoop, offset: int):
        self.parent, self.loop, self.offset = parent, loop, offset
        self.graph = parent.graph
        self.mapping = loop.mapping
        self.places = [p for p in parent.arrangement.placements.values() if p.loop == loop.number]
        m = loop.mapping
        self.axes = (
            _Axis("outer", m.outer, Zone.TASK),
            _Axis("row", m.row, Zone.ROW),
            _Axis("col", m.col, Zone.COLUMN),
        )
        self.axis_of = {atom: (axis, i) for axis in self.axes for i, atom in enumerate(axis.atoms)}
        self.frames = {zone: _Frame() for zone in Zone}
        self.conditionals: list[_Frame] = []
        self.phase = 0
        self.kept: dict[Key, Kept] = {}
        self.filled: set[Key] = set()
        self.unrolled = m.row_steps * m.col_steps <= MAX_UNROLLED_STEPS
        self.evaluating: str = ""
        self.states: dict[str, str] = {}
        self.slots_of: dict[str, str] = {}
        self.syncs = 0

    # -- statements and caches ---------------------------------------------------------------------------------

    def emit(self, zone: Zone, statement: k.Statement) -> None:
        frame = self.conditionals[-1] if self.conditionals else self.frames[zone]
        frame.statements.append(statement)

    def remember(self, zone: Zone, key: object, value: object) -> None:
        frame = self.conditionals[-1] if self.conditionals else self.frames[zone]
        frame.cache[key] = value

    def recall(self, key: object) -> object | None:
        for frame in (*reversed(self.conditionals), *(self.frames[z] for z in Zone)):
            if key in frame.cache:
                return frame.cache[key]
        return None

    def fresh(self, hint: str) -> str:
        return self.parent.fresh(hint)

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

    def run(self, axis: _Axis, first: int, last: int) -> Symbol:
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

    def zone_of(self, form: Linear) -> Zone:
        return self.spell(form)[1]

    def position(self, form: Linear) -> tuple[Linear, Zone]:
        """An address: its base is computed once (index cache), the lane is added where it is used."""
        spelled, where = self.spell_base(form)
        lane = spelled.coefficient(LANE)
        base = Linear(spelled.constant, tuple((t, c) for t, c in spelled.terms if t != LANE))
        if LANE in ix.symbols(base):
            return spelled, Zone.LANE
        if len(base.terms) > 1 or (base.terms and not isinstance(base.terms[0][0], Symbol)):
            known = self.recall(("index", base))
            if not isinstance(known, Symbol):
                known = Symbol(self.fresh("at"), 1 << 62)
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
        kept = self.kept.get(key)
        if kept is not None and key in self.filled:
            return self.define(
                key,
                kept.dtype,
                k.Element(kept.name, self.kept_position(kept), kept.dtype, kept.raw),
                kept.zone,
            )
        result = self.compute(key)
        expr, zone = result
        if kept is not None and not self.conditionals:
            self.emit(
                kept.zone,
                k.KeepSet(kept.name, self.kept_position(kept), kept.dtype, expr, kept.raw),
            )
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
        inside = name in self.parent.inside
        reduce, number = reduce_behind(self.graph, name)
        root = reduce if inside and reduce in self.parent.arrangement.placements else None
        if root is not None and root != self.evaluating:
            place = self.parent.arrangement.placements[root]
            own = index == place.root.result_index
            here = place.loop == self.loop.number and place.span is Span.TASK
            if place.root.kind is RootKind.POINTWISE and here and own:
                pass  # one-to-one: the register that already holds it, or computed again in this phase
            elif here and own:
                return self.read_state(key, place, number)
            elif (
                here
                and place.shared
                and why_not_block_local(place.root, self.mapping, index) is None
            ):
                return self.read_shared(key, place, number)
            elif place.inline:
                return self.read_partials(key, place, number)
            else:
                return self.load(key, self.result_name(root, number), node.dtype)
        if isinstance(node.attrs, IotaAttrs):
            form, zone = self.position(index[node.attrs.dimension])
            return self.define(key, node.dtype, k.Position(form, node.dtype), zone)
        if not inside:
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
        zone = max((zone for _, zone in values), default=Zone.KERNEL)
        dtypes = tuple(self.graph[read.operand].dtype for read in reads)
        return self.define(
            key,
            node.dtype,
            k.Call(node.op, node.dtype, tuple(e for e, _ in values), dtypes, node.attrs),
            zone,
        )

    def choose(self, key: Key, choices: Sequence[object]) -> tuple[k.Expr, Zone]:
        """pad, concatenate, dynamic-update-slice: only the branch that applies touches memory."""
        node = self.graph[key[0]]
        zone = Zone.KERNEL
        branches = []
        for choice in choices:
            guards = [self.guard(g) for g in choice.guards]  # type: ignore[attr-defined]
            frame = _Frame()
            self.conditionals.append(frame)
            read = choice.reads[0]  # type: ignore[attr-defined]
            expr, where = self.value(read.operand, read.index)
            self.conditionals.pop()
            zone = max(zone, where, *(z for _, z in guards), Zone.KERNEL)
            branches.append(k.Branch(tuple(g for g, _ in guards), tuple(frame.statements), expr))
        variable = self.fresh(key[0])
        self.emit(zone, k.Choose(variable, node.dtype, tuple(branches)))
        return k.Name(variable), zone

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
        array = self.parent.array(source, dtype, read=True)
        if self.is_vector(form) and not self.conditionals:
            vector = self.recall(("vector", source, form))
            if not isinstance(vector, str):
                position, _ = self.position(form)
                vector = self.fresh(f"{name}_v")
                base = Linear(
                    position.constant, tuple((t, c) for t, c in position.terms if t != LANE)
                )
                self.emit(
                    Zone.COLUMN, k.LoadVector(vector, dtype, array, base, self.mapping.vector)
                )
                self.remember(Zone.COLUMN, ("vector", source, form), vector)
            return self.define(key, dtype, k.Lane(vector, dtype), Zone.LANE)
        position, zone = self.position(form)
        variable = self.fresh(name)
        self.emit(zone, k.Load(variable, dtype, array, position))
        return k.Name(variable), zone

    def is_vector(self, form: Linear) -> bool:
        """The `vector` lanes lie side by side in memory and start at a multiple of `vector`."""
        width = self.mapping.vector
        if width == 1 or not self.mapping.col or self.spell_base(form)[1] > Zone.COLUMN:
            return False
        minor = self.mapping.col[-1]
        if form.coefficient(minor) != 1 or form.constant % width:
            return False
        for term, coefficient in form.terms:
            if term == minor:
                continue
            if not isinstance(term, Symbol) and minor in ix.symbols(term.dividend):
                return False
            if coefficient % width:
                return False
        return True

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
        kept = frozenset(place.root.space.kept)
        return any(a in kept for a in self.mapping.row), any(a in kept for a in self.mapping.col)

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
        reducer = self.parent.reducer(place.root.name)
        part = Symbol("part", place.partials)
        arrays = self.parent.partial_arrays(place, write=False)
        self.emit(zone, k.States(state, reducer.number, 1))
        form = ix.add(ix.scale(ix.of_symbol(part), elements), at)
        body = (k.AccumulateState(state, ix.ZERO, reducer.number, arrays, form),)
        self.emit(zone, k.Loop(part.name, place.partials, place.partials <= 8, body))
        self.finish(zone, place, state, 1)
        return self.define(key, self.graph[key[0]].dtype, k.Field(state, ix.ZERO, number), zone)

    def finish(self, zone: Zone, place: Placement, state: str, count: int) -> None:
        """Apply the init value, unless it is the identity."""
        node = self.graph[place.root.name]
        reducer = self.parent.reducer(place.root.name)
        inits = node.operands[len(node.operands) // 2 :]
        if monoid_of(node.regions[0]) is None:
            return  # the init value took part already: it is what idle lanes hold
        attrs = self.graph[inits[0]].attrs
        if isinstance(attrs, ConstantAttrs):
            as_state = attrs.value.numpy().astype(reducer.fields[0].numpy)
            if Literal.of(as_state) == reducer.identity[0] or not node.operands:
                return
            if monoid_of(node.regions[0]) == "add" and not as_state.any():
                return  # -0.0 as the init of a sum: adding it changes nothing
        exprs = tuple(self.value(init, ())[0] for init in inits)
        self.emit(zone, k.Finish(state, count, reducer.number, exprs))

    # -- residency -----------------------------------------------------------------------------------------------

    def kept_position(self, kept: Kept) -> Linear:
        m = self.mapping
        steps = ix.add(
            ix.scale(ix.of_symbol(Symbol("k", m.row_steps)), m.col_steps),
            ix.of_symbol(Symbol("l", m.col_steps)),
        )
        if kept.zone is Zone.ROW:
            steps = ix.of_symbol(Symbol("k", m.row_steps))
        width = m.vector if kept.zone is Zone.LANE else 1
        if kept.shared:
            steps = ix.add(ix.scale(steps, m.block), ix.of_symbol(Symbol("thread", m.block)))
        form = ix.scale(steps, width)
        return ix.add(form, ix.of_symbol(LANE)) if width > 1 else form

    def phase_roots(self, phase: int) -> list[Placement]:
        return [p for p in self.places if p.phase == phase]

    def demand(
        self,
        phase: int,
        available: Mapping[Key, bool],
        found: dict[Key, bool],
        hits: dict[Key, None],
        leaves_only: bool,
    ) -> None:
        """Which element values (op or load, index) a phase computes; those already `available` go to `hits`."""
        placements = self.parent.arrangement.placements
        seen: set[Key] = set()
        stack: list[tuple[Read, str]] = [
            (read, p.root.name if p.root.kind is RootKind.POINTWISE else "")
            for p in self.phase_roots(phase)
            for read in root_starts(self.graph, p.root)
        ]
        while stack:
            read, own = stack.pop()
            key: Key = (read.operand, read.index)
            if key in seen:
                continue
            seen.add(key)
            node = self.graph[read.operand]
            if (OPS[node.op].kind is Kind.SOURCE and read.operand in self.parent.inside) or (
                node.op == "constant" and node.array.rank == 0
            ):
                continue
            reduce, _ = reduce_behind(self.graph, read.operand)
            place = placements.get(reduce) if read.operand in self.parent.inside else None
            if place is not None and place.root.name != own:
                local = place.loop == self.loop.number and place.span is Span.TASK
                if local and (
                    place.root.kind is RootKind.REDUCE or read.index != place.root.result_index
                ):
                    continue  # a state or a shared buffer
                if place.inline:
                    continue
                if not local:
                    if self.is_element(read.index):
                        self.note(key, True, available, found, hits)
                    continue
            if not self.is_element(read.index):
                continue
            if read.operand not in self.parent.inside:
                self.note(key, True, available, found, hits)
                continue
            forwards = OPS[node.op].kind in (Kind.INDEX, Kind.BROADCAST)
            opened = access(self.graph, node, read.index)
            if not forwards or len(opened.choices) > 1:
                if key in available and not leaves_only:
                    hits[key] = None
                    continue
                found[key] = False
            if len(opened.choices) > 1 and leaves_only and key in available:
                hits[key] = None
                continue
            stack.extend((r, own) for c in opened.choices for r in c.reads)

    def note(
        self,
        key: Key,
        leaf: bool,
        available: Mapping[Key, bool],
        found: dict[Key, bool],
        hits: dict[Key, None],
    ) -> None:
        if key in available:
            hits[key] = None
        else:
            found[key] = leaf

    def is_element(self, index: Index) -> bool:
        """Does the index vary within a task?  Otherwise the value is computed once for a task anyway."""
        inner = frozenset((*self.mapping.row, *self.mapping.col))
        return any(s in inner for form in index for s in ix.symbols(form))

    def choose_kept(self, phases: int, registers: int, shared_bytes: int) -> None:
        """Row residency: what later phases need again stays in registers, else in shared memory, else is read again.

        Two cuts through the expressions are compared: the values that later phases ask for first, or the loads
        below them; the one with fewer bytes is kept.
        """
        if phases < 2:
            return
        cuts = [self.cut(phases, leaves_only) for leaves_only in (False, True)]
        peaks = [self.peak_bytes(cut, phases) for cut in cuts]
        best = 0 if peaks[0] <= peaks[1] else 1
        cut, leaves = cuts[best], cuts[1]
        if not cut:
            return
        elements = self.mapping.row_steps * self.mapping.col_steps
        fits = peaks[best] * elements <= registers * 4
        if not fits:
            # What is the same for every task comes from the caches anyway: keep the rest.
            leaves = {key: kept for key, kept in leaves.items() if self.varies_with_task(key)}
            cut = leaves
            fits = self.peak_bytes(cut, phases) * elements <= registers * 4
        in_registers = self.unrolled and fits and bool(cut)
        tile = sum(self.kept_bytes(key, True) for key in leaves) * elements
        total = tile * self.mapping.block
        in_shared = not in_registers and 0 < total <= shared_bytes
        if not in_registers and not in_shared:
            self.parent.notes.append(
                f"loop {self.loop.number}: {tile} B a thread do not fit on chip: read again"
            )
            return
        for key, (leaf, _, _) in (cut if in_registers else leaves).items():
            dtype = self.graph[key[0]].dtype
            zone = self.key_zone(key)
            kept = Kept(
                self.fresh(f"{key[0]}_kept"), key, dtype, leaf or in_shared, in_shared, zone
            )
            self.kept[key] = kept
            if in_shared:
                width = self.mapping.vector if zone is Zone.LANE else 1
                self.parent.add_slot(
                    kept.name,
                    dtype,
                    None,
                    elements * self.mapping.block * width,
                    dtype.bytes,
                    (self.loop.number, 0),
                    (self.loop.number, phases),
                )

    def varies_with_task(self, key: Key) -> bool:
        """Does the index move on from task to task?  gamma[column] of a row mapping does not."""
        m = self.mapping
        moving = {
            *m.outer,
            *(m.row if m.row_tiles > 1 else ()),
            *(m.col if m.col_tiles > 1 else ()),
        }
        return any(
            s in moving or s not in self.axis_of for form in key[1] for s in ix.symbols(form)
        )

    def cut(self, phases: int, leaves_only: bool) -> dict[Key, tuple[bool, int, int]]:
        """The values to keep: whether each is a load, the phase that computes it and the last one that reads it."""
        available: dict[Key, bool] = {}
        computed: dict[Key, int] = {}
        cut: dict[Key, tuple[bool, int, int]] = {}
        for phase in range(phases):
            found: dict[Key, bool] = {}
            hits: dict[Key, None] = {}
            self.demand(phase, available, found, hits, leaves_only)
            for key in hits:
                cut[key] = (available[key], computed[key], phase)
            available.update(found)
            for key in found:
                computed.setdefault(key, phase)
        return cut

    def peak_bytes(self, cut: Mapping[Key, tuple[bool, int, int]], phases: int) -> int:
        """The most bytes that one step of a thread keeps across any border between phases."""
        return max(
            (
                sum(
                    self.kept_bytes(key, leaf)
                    for key, (leaf, first, last) in cut.items()
                    if first <= border < last
                )
                for border in range(phases - 1)
            ),
            default=0,
        )

    def key_zone(self, key: Key) -> Zone:
        """The zone of a value by the atoms of its index alone (run-time starts never reach further in)."""
        zone = Zone.TASK
        for form in key[1]:
            for symbol in ix.symbols(form):
                if symbol in self.axis_of:
                    axis, i = self.axis_of[symbol]
                    where = axis.zone
                    if axis.name == "col" and i == len(axis.atoms) - 1 and self.mapping.vector > 1:
                        where = Zone.LANE
                    zone = max(zone, where)
                else:
                    zone = max(zone, Zone.LANE if self.mapping.vector > 1 else Zone.COLUMN)
        return zone

    def kept_bytes(self, key: Key, leaf: bool) -> int:
        dtype = self.graph[key[0]].dtype
        width = self.mapping.vector if self.key_zone(key) is Zone.LANE else 1
        return (dtype.bytes if leaf else max(dtype.bytes, 4)) * width

    # -- the loop ------------------------------------------------------------------------------------------------

    def lower(self) -> k.Section:
        m = self.mapping
        phases = max((p.phase for p in self.places), default=0) + 1
        self.choose_kept(phases, self.parent.keep_registers, self.parent.keep_shared_bytes)
        across = [p for p in self.places if p.span is Span.LOOP]
        before: list[k.Statement] = []
        for kept in self.kept.values():
            if not kept.shared:
                width = m.vector if kept.zone is Zone.LANE else 1
                steps = m.row_steps if kept.zone is Zone.ROW else m.row_steps * m.col_steps
                before.append(k.Keep(kept.name, kept.dtype, steps * width, kept.raw))
        for place in across:
            before.append(self.declare_state(place))
        body: list[k.Statement] = list(self.task_indices())
        for phase in range(phases):
            self.phase = phase
            body += self.lower_phase(phase)
        once = m.tasks <= self.parent.grid
        # A slot is read after the barrier that follows its writes.  Where a task has two exchanges, the barrier of
        # each keeps the next task's writes to the other's slot behind the reads; a single exchange, or a Regional
        # buffer that is read until the end, needs a barrier of its own.
        if not once and (self.syncs == 1 or any(p.shared for p in self.places)):
            body.append(
                k.Barrier(
                    "block", "the next task writes the shared memory that this one still reads"
                )
            )
        loop = k.TaskLoop(m.tasks, once, tuple(body))
        after: list[k.Statement] = []
        for place in across:
            after += self.store_loop_partials(place)
        kernel_zone = self.frames[Zone.KERNEL].statements
        return k.Section(
            self.loop.number,
            str(m),
            self.offset,
            m.outer_threads,
            m.row_threads,
            m.col_threads,
            (*kernel_zone, *before, loop, *after),
        )

    def task_indices(self) -> Iterator[k.Statement]:
        m = self.mapping
        tiles = m.row_tiles * m.col_tiles
        task = ix.of_symbol(Symbol("task", m.tasks))
        outer_tile = ix.divide(task, tiles)
        if m.outer_size > 1:
            if m.outer_threads > 1:
                to = ix.of_symbol(Symbol("to", m.outer_threads))
                raw = ix.add(ix.scale(outer_tile, m.outer_threads), to)
                if m.outer_size % m.outer_threads:
                    yield k.Index("outer_raw", raw)
                    yield k.Index(
                        "outer",
                        ix.of_symbol(Symbol(f"min(outer_raw, {m.outer_size - 1})", m.outer_size)),
                    )
                else:
                    yield k.Index("outer", raw)
            else:
                yield k.Index("outer", outer_tile)
        if m.row_tiles > 1:
            yield k.Index("row_tile", ix.modulo(ix.divide(task, m.col_tiles), m.row_tiles))
        if m.col_tiles > 1:
            yield k.Index("col_tile", ix.modulo(task, m.col_tiles))

    @property
    def outer_guard(self) -> tuple[Guard, ...]:
        """Threads beyond the last packed row compute along with it but must not store or count."""
        m = self.mapping
        if m.outer_threads > 1 and m.outer_size == 1:
            return (Within(ix.of_symbol(Symbol("to", m.outer_threads)), 0, 1),)
        if m.outer_threads > 1 and m.outer_size % m.outer_threads:
            return (
                Within(
                    ix.of_symbol(Symbol("outer_raw", m.tasks * m.outer_threads)), 0, m.outer_size
                ),
            )
        return ()

    def leader_guard(self, *, row: bool, col: bool, in_nest: bool = False) -> tuple[Guard, ...]:
        """One thread of those that stand at the same element: along axes that the value does not vary over.

        in_nest: the statement stands inside the row loop if it varies along the columns.
        """
        m = self.mapping
        guards: list[Guard] = []
        if not col and m.col_threads > 1:
            guards.append(Within(ix.of_symbol(Symbol("tx", m.col_threads)), 0, 1))
        if in_nest and col and not row and m.row_size > 1:
            guards.append(Within(ix.of_symbol(Symbol("row", 1 << 62)), 0, 1))
        elif not row and m.row_threads > 1:
            guards.append(Within(ix.of_symbol(Symbol("ty", m.row_threads)), 0, 1))
        return tuple(guards)

    def tile_guard(self, *, row: bool, col: bool) -> tuple[Guard, ...]:
        """One tile of those that would compute the same value."""
        m = self.mapping
        guards: list[Guard] = []
        if not row and m.row_tiles > 1:
            guards.append(Within(ix.of_symbol(Symbol("row_tile", m.row_tiles)), 0, 1))
        if not col and m.col_tiles > 1:
            guards.append(Within(ix.of_symbol(Symbol("col_tile", m.col_tiles)), 0, 1))
        return tuple(guards)

    def result_guard(self, place: Placement) -> tuple[Guard, ...]:
        """One thread of those that hold an element of a reduce's result."""
        row, col = self.kept_axes(place)
        leaders = self.leader_guard(row=row, col=col)
        if any(a in place.root.space.kept for a in self.mapping.outer):
            return (*self.outer_guard, *leaders)
        if self.mapping.outer_threads == 1:
            return leaders
        return (Within(ix.of_symbol(Symbol("to", self.mapping.outer_threads)), 0, 1), *leaders)

    @contextlib.contextmanager
    def inner_frames(self) -> Iterator[None]:
        """Fresh row, column and lane zones: nothing in them outlives the nest."""
        for zone in (Zone.ROW, Zone.COLUMN, Zone.LANE, Zone.AFTER):
            self.frames[zone] = _Frame()
        yield

    def nest(self, *, row: bool = True, unroll: bool | None = None) -> list[k.Statement]:
        """The loops over a thread's elements around what the inner zones hold."""
        m = self.mapping
        frames = self.frames
        lanes = frames[Zone.LANE].statements
        column = [*frames[Zone.COLUMN].statements]
        if lanes:
            column.append(k.Loop("lane", m.vector, True, tuple(lanes)))
        column += frames[Zone.AFTER].statements
        full = self.unrolled if unroll is None else unroll
        inner: list[k.Statement] = [*frames[Zone.ROW].statements]
        if column:
            inner.append(k.Loop("l", m.col_steps, full, tuple(self.enter_column(column))))
        if not inner:
            return []
        if not row:
            return inner
        return [k.Loop("k", m.row_steps, full, tuple(self.enter_row(inner)))]

    def enter_row(self, body: list[k.Statement]) -> Iterator[k.Statement]:
        m = self.mapping
        if m.row_size == 1:
            yield from body
            return
        form = ix.add(
            ix.scale(ix.of_symbol(Symbol("k", m.row_steps)), m.row_threads),
            ix.of_symbol(Symbol("ty", m.row_threads)),
        )
        guards = []
        if m.row_tiles > 1:
            form = ix.add(form, ix.scale(ix.of_symbol(Symbol("row_tile", m.row_tiles)), m.row_tile))
        yield k.Index("row", form)
        if m.row_tile % m.row_threads and m.row_tiles > 1:
            raise AssertionError("a split row tile is a multiple of its threads")
        if m.row_tiles * m.row_steps * m.row_threads > m.row_size:
            guards.append(Within(ix.of_symbol(Symbol("row", 1 << 62)), 0, m.row_size))
        yield from self.guarded(tuple(guards), body)

    def enter_column(self, body: list[k.Statement]) -> Iterator[k.Statement]:
        m = self.mapping
        step = ix.of_symbol(Symbol("l", m.col_steps))
        form = ix.add(ix.scale(step, m.col_threads), ix.of_symbol(Symbol("tx", m.col_threads)))
        form = ix.scale(form, m.vector)
        if m.col_tiles > 1:
            form = ix.add(form, ix.scale(ix.of_symbol(Symbol("col_tile", m.col_tiles)), m.col_tile))
        yield k.Index("col", form)
        guards = []
        if m.col_tiles * m.col_steps * m.col_threads * m.vector > m.col_size:
            guards.append(Within(ix.of_symbol(Symbol("col", 1 << 62)), 0, m.col_size))
        yield from self.guarded(tuple(guards), body)

    @staticmethod
    def guarded(guards: tuple[Guard, ...], body: Iterable[k.Statement]) -> Iterator[k.Statement]:
        statements = tuple(body)
        if not statements:
            return
        if guards:
            yield k.If(guards, statements)
        else:
            yield from statements

    # -- phases ------------------------------------------------------------------------------------------------

    def lower_phase(self, phase: int) -> list[k.Statement]:
        roots = self.phase_roots(phase)
        before: list[k.Statement] = []
        reduces = [p for p in roots if p.root.kind is not RootKind.POINTWISE]
        for place in reduces:
            if place.span is not Span.LOOP:
                before.append(self.declare_state(place))
        self.frames[Zone.TASK].statements = []
        with self.inner_frames():
            for place in roots:
                if place.root.kind is RootKind.POINTWISE:
                    self.lower_pointwise(place)
                else:
                    self.lower_accumulation(place)
            nest = self.nest()
            self.filled |= {key for key in self.kept if self.was_computed(key)}
        task = self.frames[Zone.TASK].statements
        result: list[k.Statement] = [*self.entry_barrier(phase), *before, *task, *nest]
        for place in reduces:
            if place.span is not Span.LOOP:
                result += self.complete(place)
        return result

    def entry_barrier(self, phase: int) -> Iterator[k.Statement]:
        """Shared buffers that an earlier phase filled are read from here on."""
        ready = [p for p in self.places if p.shared and p.phase == phase - 1]
        if ready:
            self.syncs += 1
            names = ", ".join("%" + p.root.name for p in ready)
            yield k.Barrier("block", f"Regional: {names} is read by other threads of the block")

    def was_computed(self, key: Key) -> bool:
        return any(
            key in self.frames[z].cache for z in (Zone.TASK, Zone.ROW, Zone.COLUMN, Zone.LANE)
        )

    def lower_pointwise(self, place: Placement) -> None:
        name = place.root.name
        previous, self.evaluating = self.evaluating, name
        expr, zone = self.value(name, place.root.index)
        self.evaluating = previous
        here = frozenset(place.root.space.atoms)
        row = any(a in here for a in self.mapping.row)
        col = any(a in here for a in self.mapping.col)
        leader = self.leader_guard(row=row, col=col, in_nest=True)
        guards = (*self.outer_guard, *leader)
        if place.stored:
            target = storage_name(self.graph, name)
            tile = self.tile_guard(row=row, col=col)
            self.store(
                target, place.root.result_index, expr, zone, (*guards, *tile), row=row, col=col
            )
        if place.shared:
            slot = self.shared_slot(place, 0)
            position, where = self.position(self.shared_position(place, place.root.result_index))
            position = self.with_packed_row(place, position)
            store = k.Store(slot, position, self.graph[name].dtype, expr)
            level = max(zone, where, Zone.TASK)
            for statement in self.guarded(leader, (store,)):
                self.emit(level, statement)

    def shared_slot(self, place: Placement, number: int) -> str:
        key = f"{place.root.name}#{number}"
        if key not in self.slots_of:
            dtype = storage_type(self.graph, self.result_name(place.root.name, number)).dtype
            count = shared_elements(place, self.mapping)
            name = self.fresh(f"{place.root.name}_shared")
            last = max((p.phase for p in self.places), default=0) + 1
            self.parent.add_slot(
                name,
                dtype,
                None,
                count,
                dtype.bytes,
                (self.loop.number, place.phase),
                (self.loop.number, last),
            )
            self.slots_of[key] = name
        return self.slots_of[key]

    def store(
        self,
        target: str,
        index: Index,
        expr: k.Expr,
        zone: Zone,
        guards: tuple[Guard, ...],
        *,
        row: bool,
        col: bool,
    ) -> None:
        """Write one element to memory, or a lane of a vector that is written at once."""
        array_type = storage_type(self.graph, target)
        array = self.parent.array(target, array_type.dtype, write=True)
        base, _, _ = target.partition("#")
        form = ix.linearize(index, array_of(self.graph[base]).shape)
        if self.is_vector(form):
            position, _ = self.position(form)
            aligned = Linear(
                position.constant, tuple((t, c) for t, c in position.terms if t != LANE)
            )
            vector = self.fresh(f"{target}_w")
            self.emit(Zone.COLUMN, k.VectorVariable(vector, array_type.dtype, self.mapping.vector))
            self.emit(Zone.LANE, k.StoreLane(vector, array_type.dtype, expr))
            whole = k.StoreVector(array, aligned, vector, array_type.dtype, self.mapping.vector)
            for statement in self.guarded(guards, (whole,)):
                self.emit(Zone.AFTER, statement)
            return
        position, where = self.position(form)
        lane_zone = Zone.LANE if self.mapping.vector > 1 else Zone.COLUMN
        level = lane_zone if col else Zone.ROW if row else Zone.TASK
        level = max(level, zone, where)
        for statement in self.guarded(guards, (k.Store(array, position, array_type.dtype, expr),)):
            self.emit(level, statement)

    def declare_state(self, place: Placement) -> k.Statement:
        reducer = self.parent.reducer(place.root.name)
        name = self.fresh(f"{place.root.name}_state")
        self.states[place.root.name] = name
        return k.States(name, reducer.number, self.state_count(place))

    def lower_accumulation(self, place: Placement) -> None:
        root = place.root
        here = frozenset(root.space.atoms)
        row = any(a in here for a in self.mapping.row)
        col = any(a in here for a in self.mapping.col)
        outer_reduced = any(a in root.space.reduced for a in self.mapping.outer)
        guards = (
            *(self.outer_guard if outer_reduced or not self.mapping.outer else ()),
            *self.leader_guard(row=row, col=col, in_nest=True),
            *self.tile_guard(row=row, col=col),
        )
        reducer = self.parent.reducer(root.name)
        state = self.states[root.name]
        position, _ = self.slot_position(place)
        lane_zone = Zone.LANE if self.mapping.vector > 1 else Zone.COLUMN
        zone = lane_zone if col else Zone.ROW if row else Zone.TASK
        statement: k.Statement
        if root.kind is RootKind.COMBINE:
            shape = array_of(self.graph[root.name]).shape
            elements = math.prod(shape)
            form = ix.add(ix.scale(root.index[0], elements), ix.linearize(root.result_index, shape))
            at, where = self.position(form)
            zone = max(zone, where)
            split = self.parent.arrangement.placements[root.name]
            arrays = self.parent.partial_arrays(split, write=False)
            statement = k.AccumulateState(state, position, reducer.number, arrays, at)
        else:
            reads = root_starts(self.graph, root)
            values = [self.value(read.operand, read.index) for read in reads]
            zone = max(zone, *(z for _, z in values))
            statement = k.Accumulate(state, position, reducer.number, tuple(e for e, _ in values))
        for guarded in self.guarded(guards, (statement,)):
            self.emit(zone, guarded)

    def reduce_across(self, place: Placement) -> Iterator[k.Statement]:
        """Combine over the thread axes along which the result does not vary, minor axes first."""
        m = self.mapping
        row_kept, col_kept = self.kept_axes(place)
        outer_reduced = any(a in place.root.space.reduced for a in m.outer)
        axes = [
            (m.col_threads, not col_kept),
            (m.row_threads, not row_kept),
            (m.outer_threads, outer_reduced),
        ]
        stride = 1
        position = 0
        while position < len(axes):
            size, reduced = axes[position]
            if not reduced or size == 1:
                stride *= size
                position += 1
                continue
            threads = 1
            while position < len(axes) and (axes[position][1] or axes[position][0] == 1):
                threads *= axes[position][0]
                position += 1
            yield self.reduce_step(place, threads, stride)
            stride *= threads

    def reduce_step(self, place: Placement, threads: int, stride: int) -> k.Statement:
        reducer = self.parent.reducer(place.root.name)
        count = self.state_count(place)
        state = self.states[place.root.name]
        slot = ""
        if threads * stride > 32:
            slot = self.fresh(f"{place.root.name}_slot")
            if stride == 1:
                states = count * max(self.mapping.block // 32, 1)
            else:
                states = min(count, k.STRIDED_CHUNK) * self.mapping.block
            step = (self.loop.number, place.phase)
            self.parent.add_slot(
                slot, None, reducer.number, states, reducer.state_bytes, step, step
            )
            self.syncs += 1
            if place.scheme is Scheme.REGIONAL:
                self.parent.block_barriers += 1
        return k.ReduceAcross(state, count, reducer.number, threads, stride, slot)

    def complete(self, place: Placement) -> list[k.Statement]:
        """After the nest: across threads, then the init value, then memory."""
        result: list[k.Statement] = list(self.reduce_across(place))
        if place.span is Span.TILE:
            return result + self.store_partials(place, self.tile_part(place))
        state = self.states[place.root.name]
        self.frames[Zone.TASK].statements = result
        self.finish(Zone.TASK, place, state, self.state_count(place))
        row, col = self.kept_axes(place)
        guards = (*self.result_guard(place), *self.tile_guard(row=row, col=col))
        if place.stored or place.shared:
            with self.inner_frames():
                for number, name in self.wanted_results(place):
                    position, zone = self.slot_position(place)
                    dtype = storage_type(self.graph, name).dtype
                    variable = self.fresh(place.root.name)
                    self.emit(zone, k.Value(variable, dtype, k.Field(state, position, number)))
                    if place.stored:
                        self.store(
                            name,
                            place.root.result_index,
                            k.Name(variable),
                            zone,
                            guards,
                            row=row,
                            col=col,
                        )
                    if place.shared:
                        slot = self.shared_slot(place, number)
                        at, where = self.position(
                            self.shared_position(place, place.root.result_index)
                        )
                        store = k.Store(
                            slot, self.with_packed_row(place, at), dtype, k.Name(variable)
                        )
                        for s in self.guarded(self.leader_guard(row=row, col=col), (store,)):
                            self.emit(max(zone, where), s)
                self.frames[Zone.TASK].statements += self.nest(row=row)
        return self.frames[Zone.TASK].statements

    def wanted_results(self, place: Placement) -> list[tuple[int, str]]:
        """(field number, storage name) of the results that somebody reads."""
        name = place.root.name
        if isinstance(self.graph[name].type, ArrayType):
            return [(0, storage_name(self.graph, name))]
        numbers = {
            attrs.index
            for user in self.graph.users[name]
            if isinstance(attrs := self.graph[user].attrs, GetTupleElementAttrs)
        }
        return [(n, f"{name}#{n}") for n in sorted(numbers)]

    def tile_part(self, place: Placement) -> Linear:
        """The number of this task's partial among those of one result element."""
        m = self.mapping
        part = ix.ZERO
        axes = (
            ("outer", m.outer, m.outer_tiles),
            ("row", m.row, m.row_tiles),
            ("col", m.col, m.col_tiles),
        )
        for name, atoms, tiles in axes:
            if tiles > 1 and any(a in place.root.space.reduced for a in atoms):
                if name == "outer":
                    task = ix.of_symbol(Symbol("task", m.tasks))
                    number = ix.divide(task, m.row_tiles * m.col_tiles)
                else:
                    number = ix.of_symbol(Symbol(f"{name}_tile", tiles))
                part = ix.add(ix.scale(part, tiles), number)
        return part

    def store_loop_partials(self, place: Placement) -> list[k.Statement]:
        rank = ix.of_symbol(Symbol("first", place.partials))
        taking_part = Within(rank, 0, place.partials)
        # Accumulators of blocks without a task hold identities; they only keep the barriers inside uniform.
        self.frames[Zone.TASK].statements = []
        return [
            *self.reduce_across(place),
            k.If((taking_part,), tuple(self.store_partials(place, rank))),
        ]

    def store_partials(self, place: Placement, part: Linear) -> list[k.Statement]:
        """partials[part][result element] = state, by one thread of those that hold it."""
        name = place.root.name
        state = self.states[name]
        shape = array_of(self.graph[name]).shape
        row, _ = self.kept_axes(place)
        guards = self.result_guard(place)
        saved = self.frames[Zone.TASK].statements
        self.frames[Zone.TASK].statements = []
        with self.inner_frames():
            form = ix.add(
                ix.scale(part, math.prod(shape)),
                self.spell(ix.linearize(place.root.result_index, shape))[0],
            )
            slot, zone = self.slot_position(place)
            level = max(zone, Zone.TASK)
            arrays = self.parent.partial_arrays(place, write=True)
            stores = [
                k.Store(array, form, dtype, k.Field(state, slot, number))
                for number, (array, dtype) in enumerate(
                    zip(arrays, self.parent.reducer(name).fields, strict=True)
                )
            ]
            for statement in self.guarded(guards, stores):
                self.emit(level, statement)
            nest = self.nest(row=row)
        result = [*self.frames[Zone.TASK].statements, *nest]
        self.frames[Zone.TASK].statements = saved
        return result


class _KernelLowering:
    """Lowers one arrangement: parameters, scratch, slots and the sequence of levels."""

    def __init__(
        self,
        arrangement: Arrangement,
        name: str,
        grid: int,
        blocks_per_sm: int,
        keep_registers: int,
        keep_shared_bytes: int,
    ):
        self.arrangement, self.name, self.grid, self.blocks_per_sm = (
            arrangement,
            name,
            grid,
            blocks_per_sm,
        )
        self.graph = arrangement.graph
        self.inside = set(arrangement.groups.scope.members)
        self.keep_registers, self.keep_shared_bytes = keep_registers, keep_shared_bytes
        self.parameters: dict[str, k.Parameter] = {}
        self.scratch: dict[str, k.Scratch] = {}
        self.reducers: dict[object, k.Reducer] = {}
        self.reducer_of: dict[str, k.Reducer] = {}
        self.slots: list[k.Slot] = []
        self.taken: set[str] = set()
        self.numbers: dict[str, int] = {}
        self.block_barriers = 0
        self.notes: list[str] = []
        self.outputs = {storage_name(self.graph, o) for o in arrangement.groups.scope.outputs}

    def fresh(self, hint: str) -> str:
        """A C identifier that no other variable has, close to the HLO name.

        It ends in _ and a digit, which no keyword, macro or function of the device library does.
        """
        base = "".join(c if c.isascii() and c.isalnum() else "_" for c in hint[:MAX_NAME]).strip(
            "_"
        )
        base = base if base[:1].isalpha() else f"v_{base}".rstrip("_")
        base = base if _NUMBERED.search(base) else f"{base}_0"
        name = base
        while name in self.taken:
            self.numbers[base] = self.numbers.get(base, 0) + 1
            name = f"{base}__{self.numbers[base]}"
        self.taken.add(name)
        return name

    def array(self, source: str, dtype: DType, *, read: bool = False, write: bool = False) -> str:
        known = self.parameters.get(source)
        if known is None:
            known = k.Parameter(self.fresh(f"p_{source}"), dtype, source, False, False)
            inner = source.partition("#")[0] in self.inside
            if inner and source not in self.outputs:
                self.scratch[source] = k.Scratch(source, storage_type(self.graph, source))
        self.parameters[source] = replace(
            known, written=known.written or write, read=known.read or read
        )
        return known.name

    def partial_arrays(self, place: Placement, *, write: bool) -> tuple[str, ...]:
        names = []
        size = array_of(self.graph[place.root.name]).size
        for number, dtype in enumerate(self.reducer(place.root.name).fields):
            source = f"{place.root.name}#partial{number}"
            if source not in self.parameters:
                self.parameters[source] = k.Parameter(
                    self.fresh(f"p_{source}"), dtype, source, False, False
                )
                self.scratch[source] = k.Scratch(source, ArrayType(dtype, (place.partials, size)))
            known = self.parameters[source]
            self.parameters[source] = replace(
                known, written=known.written or write, read=known.read or not write
            )
            names.append(known.name)
        return tuple(names)

    def reducer(self, root: str) -> k.Reducer:
        if root not in self.reducer_of:
            made = make_reducer(self.graph, root, len(self.reducers))
            key = (made.fields, made.region.key, made.identity)
            self.reducer_of[root] = self.reducers.setdefault(key, made)
        return self.reducer_of[root]

    def add_slot(
        self,
        name: str,
        dtype: DType | None,
        reducer: int | None,
        count: int,
        unit: int,
        first: tuple[int, int],
        last: tuple[int, int],
    ) -> None:
        self.slots.append(k.Slot(name, dtype, reducer, count, count * unit, first, last))

    def lower(self) -> tuple[k.Kernel, tuple[str, ...]]:
        body: list[k.Statement] = []
        level, offset, shared_in_level = 0, 0, False
        for loop in self.arrangement.loops:
            if loop.level != level:
                waiting = [
                    p.root.name
                    for p in self.arrangement.placements.values()
                    if p.scheme is Scheme.GLOBAL
                    and self.arrangement.loops[p.loop].level < loop.level
                ]
                names = ", ".join("%" + n for n in waiting[-3:])
                for _ in range(loop.level - level):
                    body.append(k.Barrier("global", f"Global: {names} before level {loop.level}"))
                level, offset, shared_in_level = loop.level, 0, False
            slots = len(self.slots)
            section = _LoopLowering(self, loop, offset % self.grid).lower()
            if len(self.slots) > slots:
                if shared_in_level:
                    body.append(
                        k.Barrier("block", "the next task loop takes over the shared memory")
                    )
                shared_in_level = True
            body.append(section)
            offset += loop.mapping.tasks
        inputs = [p for s, p in self.parameters.items() if s not in self.scratch and not p.written]
        outputs = [p for s, p in self.parameters.items() if s in self.outputs]
        types = [storage_type(self.graph, p.source) for p in (*inputs, *outputs)]
        types += [s.type for s in self.scratch.values()]
        visited = [
            l.mapping.tasks * l.mapping.block * l.mapping.elements_per_thread
            for l in self.arrangement.loops
        ]
        largest = max((*(t.size for t in types), *visited), default=0)
        ordered = sorted(
            self.parameters.values(), key=lambda p: (p.source in self.scratch, p.written)
        )
        sources = dict.fromkeys(
            n.op_name
            for n in (self.graph[m] for m in self.arrangement.groups.scope.members)
            if n.op_name
        )
        return (
            k.Kernel(
                name=self.name,
                parameters=tuple(ordered),
                scratch=tuple(self.scratch.values()),
                reducers=tuple(self.reducers.values()),
                slots=tuple(self.slots),
                body=tuple(body),
                grid=self.grid,
                block=self.arrangement.block,
                shared_bytes=0,
                blocks_per_sm=self.blocks_per_sm,
                global_barriers=self.arrangement.levels - 1,
                block_barriers=self.block_barriers + _count_block_barriers(body),
                wide_index=largest >= 1 << 31,
                pointer_table=len(ordered) + 1 > MAX_POINTERS,
                reads_bytes=sum(storage_type(self.graph, p.source).bytes for p in inputs),
                writes_bytes=sum(storage_type(self.graph, p.source).bytes for p in outputs),
                sources=tuple(sources),
            ),
            tuple(self.notes),
        )


MAX_POINTERS = 500
"""Pointers that fit the 4 KB of kernel parameters; beyond it a kernel gets the address of a table of pointers."""

MAX_NAME = 48
"""Characters of an HLO name that go into a variable's name."""

_NUMBERED = re.compile(r"_[0-9]+$")


def _count_block_barriers(body: Sequence[k.Statement]) -> int:
    count = 0
    for statement in body:
        if isinstance(statement, k.Barrier) and statement.level == "block":
            count += 1
        elif isinstance(statement, k.Section | k.TaskLoop | k.Loop | k.If):
            count += _count_block_barriers(statement.body)
    return count


def lower(
    arrangement: Arrangement,
    name: str,
    *,
    grid: int,
    blocks_per_sm: int,
    keep_registers: int,
    keep_shared_bytes: int,
) -> tuple[k.Kernel, tuple[str, ...]]:
    """The kernel of an arrangement and notes for people.

    grid: blocks.  keep_registers: 32-bit registers a thread may keep across phases.
    keep_shared_bytes: shared memory a block may use to keep values across phases.
    """
    return _KernelLowering(
        arrangement, name, grid, blocks_per_sm, keep_registers, keep_shared_bytes
    ).lower()
