"""The nest of a task loop while it is built: statements and known values by depth, and indices in its variables.

Everything that lowers a task loop emits into one LoopNest.  `recall` finds what is already known at the depth at which
the nest stands: PAI V2's value cache and index cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from astitch.graph import index as ix
from astitch.graph.index import Linear, Quotient, Symbol
from astitch.graph.ir import DType
from astitch.graph.ops.access import Guard
from astitch.kernel import kernel_ir as k
from astitch.kernel.declarations import Declarations
from astitch.kernel.nest import LANE, Axis, Depth, Key, at_first_lane, make_axes
from astitch.mapping.stitch_scheme import Placement, TaskLoop


@dataclass
class Frame:
    """What stands at one depth.  cache: the values and indices known there."""

    statements: list[k.Statement] = field(default_factory=list)
    cache: dict[object, object] = field(default_factory=dict)


@dataclass
class Conditional:
    """What only one branch of a choice computes.

    vector: the choice is one for all lanes of a vector; what differs between them stands in `lanes`, else everything in
    `outside`.  shared: loads of the first branch, in whose variables this one may have its own from the same arrays.
    """

    outside: Frame
    lanes: Frame
    vector: bool
    shared: list[k.LoadVector] = field(default_factory=list)

    def take_variable(self, array: str) -> str | None:
        """A variable of the first branch for a load from an array, each once."""
        found = next((load for load in self.shared if load.array == array), None)
        if found is None:
            return None
        self.shared.remove(found)
        return found.name

    def frame(self, depth: Depth) -> Frame:
        """Where a statement of a depth stands."""
        return self.lanes if depth is Depth.LANE else self.outside


class LoopNest:
    """What all that lowers one task loop shares.

    frames: by depth.  conditionals: the branches that the nest stands in, the innermost last.  places: the roots that
    the loop computes.
    """

    def __init__(self, declarations: Declarations, loop: TaskLoop) -> None:
        self.declarations, self.loop = declarations, loop
        self.graph = declarations.graph
        self.mapping = loop.mapping
        self.placements = declarations.arrangement.placements
        self.places = declarations.arrangement.places[loop.number]
        self.axes = make_axes(loop.mapping)
        self.axis_of = {atom: axis for axis in self.axes for atom in axis.atoms}
        self.frames = {depth: Frame() for depth in Depth}
        self.conditionals: list[Conditional] = []
        self.remembered: set[object] = set()  # what any frame knows or has known

    def phase_roots(self, phase: int) -> list[Placement]:
        """The roots that a phase computes."""
        return [p for p in self.places if p.phase == phase]

    @property
    def phases(self) -> int:
        """Phases of a task."""
        return max((p.phase for p in self.places), default=0) + 1

    def for_another_task(self) -> LoopNest:
        """An empty nest for positions of a task that is not the current one: nothing is known yet at any depth."""
        return LoopNest(self.declarations, self.loop)

    # -- statements and caches ---------------------------------------------------------------------------------

    def frame(self, depth: Depth) -> Frame:
        """Where a statement of a depth stands now."""
        return self.conditionals[-1].frame(depth) if self.conditionals else self.frames[depth]

    def emit(self, depth: Depth, statement: k.Statement) -> None:
        """Add a statement at a depth."""
        self.frame(depth).statements.append(statement)

    def remember(self, depth: Depth, key: object, value: object) -> None:
        """Count something as known from here on, at a depth and inside it."""
        self.frame(depth).cache[key] = value
        self.remembered.add(key)

    def recall(self, key: object) -> object | None:
        """The value remembered under a key, if it is known where the nest stands."""
        if key not in self.remembered:
            return None
        before_lanes = False  # the choice of a vector stands before the loop over its lanes
        for conditional in reversed(self.conditionals):
            inside, outside = conditional.lanes, conditional.outside
            for frame in (outside,) if before_lanes else (inside, outside):
                if key in frame.cache:
                    return frame.cache[key]
            before_lanes |= conditional.vector
        hidden = (Depth.LANE, Depth.AFTER) if before_lanes else ()
        for depth, frame in self.frames.items():  # from the outermost
            if depth not in hidden and key in frame.cache:
                return frame.cache[key]
        return None

    def fresh(self, hint: str) -> str:
        """A name that no other variable of the kernel has."""
        return self.declarations.fresh(hint)

    def define(self, key: Key, dtype: DType, expr: k.Expr, depth: Depth) -> tuple[k.Expr, Depth]:
        """Put a value into a variable at a depth, and remember it."""
        variable = self.fresh(key[0])
        self.emit(depth, k.Value(variable, dtype, expr))
        result = (k.Name(variable), depth)
        self.remember(depth, key, result)
        return result

    def clear_elements(self) -> None:
        """Begin a nest over a thread's elements: nothing inside one outlives it."""
        for depth in (Depth.ROW, Depth.COLUMN, Depth.LANE, Depth.AFTER):
            self.frames[depth] = Frame()

    # -- indices -----------------------------------------------------------------------------------------------

    def express(self, form: Linear) -> tuple[Linear, Depth]:
        """A form over atoms as a form over variables of the kernel, and the depth at which it is known."""
        expressed, depth = self.express_base(form)
        return expressed, max(depth, Depth.LANE) if LANE in ix.symbols(expressed) else depth

    def express_base(self, form: Linear) -> tuple[Linear, Depth]:
        """As `express`, with the depth at which the form without its lane is known."""
        depth = Depth.KERNEL
        parts = [ix.constant(form.constant)]
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
                inner, where = self.express_base(term.dividend)
                of = ix.quotient if isinstance(term, Quotient) else ix.remainder
                parts.append(ix.scale(of(inner, term.divisor), coefficient))
            depth = max(depth, where)
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
                parts.append(ix.scale(ix.of_symbol(self.find_run(axis, first, last)), factor))
                if axis.name == "col" and last == len(axis.atoms) - 1 and self.mapping.vector > 1:
                    parts.append(ix.scale(ix.of_symbol(LANE), factor))
                depth = max(depth, axis.depth)
                last = first - 1
        return ix.add(*parts), depth

    def find_run(self, axis: Axis, first: int, last: int) -> Symbol:
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
            form = ix.quotient(form, minor)
        if first:
            form = ix.remainder(form, extent)
        symbol = Symbol(self.fresh(f"{axis.name}_{first}"), extent)
        self.emit(axis.depth, k.Index(symbol.name, form))
        self.remember(axis.depth, key, symbol)
        return symbol

    def position(self, form: Linear) -> tuple[Linear, Depth]:
        """An address, and the depth that knows it: its base is computed once, the lane is added where it is used."""
        expressed, where = self.express_base(form)
        lane = expressed.coefficient(LANE)
        base = at_first_lane(expressed)
        if LANE in ix.symbols(base):
            return expressed, Depth.LANE
        if len(base.terms) > 1 or (base.terms and not isinstance(base.terms[0][0], Symbol)):
            known = self.recall(("index", base))
            if not isinstance(known, Symbol):
                known = Symbol(self.fresh("at"), ix.UNBOUNDED)
                self.emit(where, k.Index(known.name, base))
                self.remember(where, ("index", base), known)
            base = ix.of_symbol(known)
        depth = max(where, Depth.LANE) if lane else where
        return ix.add(base, ix.scale(ix.of_symbol(LANE), lane)), depth

    def express_guard(self, guard: Guard) -> tuple[Guard, Depth]:
        """A guard over atoms as one over variables, and the depth at which it is known."""
        form, depth = self.express(guard.form)
        return replace(guard, form=form), depth

    def is_vector(self, form: Linear) -> bool:
        """The `vector` lanes lie side by side in memory and start at a multiple of `vector`."""
        width = self.mapping.vector
        if width == 1 or not self.mapping.col or self.express_base(form)[1] > Depth.COLUMN:
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

    # -- steps of a thread -------------------------------------------------------------------------------------

    @property
    def step_symbol(self) -> Symbol:
        return Symbol("k" if self.mapping.row_steps > 1 else "l", self.mapping.walked_steps)

    def own_step(self) -> Linear:
        """The number of the step at which the nest stands."""
        m = self.mapping
        return ix.add(
            ix.scale(ix.of_symbol(Symbol("k", m.row_steps)), m.col_steps),
            ix.of_symbol(Symbol("l", m.col_steps)),
        )

    def own_vector(self) -> Linear:
        """The number of the vector at which the nest stands, in a shared slot where each thread has its own."""
        m = self.mapping
        return ix.add(ix.scale(self.own_step(), m.block), ix.of_symbol(Symbol("thread", m.block)))
