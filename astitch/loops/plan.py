"""How a whole loop runs as one kernel: which block has which units and rows, and what blocks tell each other when.

Takes a Loop and its Axes, hands on a LoopPlan or a refusal.  The idea: a thread owns a few (row, unit) pairs and
computes all parts of them, so element-wise work is local; only the left sides of products cross units.  Each product
begins a stage, before which every block of a group gets whole rows; groups have rows of their own and never talk.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from astitch.device.gpu import Gpu
from astitch.faults import FaultLog
from astitch.graph.edit import free_name, keep_live_nodes
from astitch.graph.ir import (
    BroadcastAttrs,
    DimensionAttrs,
    DType,
    Graph,
    Node,
    SliceAttrs,
)
from astitch.graph.ops import OPS, Cost, Kind
from astitch.loops.analysis import (
    VIEWS,
    Carried,
    Invariant,
    Loop,
    LoopKey,
    LoopRefusal,
    Place,
    Stack,
    analyse_loop,
    find_numbered_stack,
    find_starts,
    loop_key,
)
from astitch.loops.axes import Axes, Axis, Form, Product, find_axes, find_live
from astitch.loops.hoist import hoist_loops
from astitch.loops.merge import merge_loops
from astitch.rewrite.barriers import open_barriers

FLOATS = frozenset({DType.F32, DType.BF16, DType.F16})
"""What products take: their sums are f32."""

HELD = FLOATS | {DType.PRED, DType.S32, DType.U32}
"""What a thread can hold of a value."""

MAX_BLOCK = 512
MAX_ROWS = 16
"""Rows of a group: each takes registers for its sums."""

MAX_WORDS = 16
"""Words that a thread waits for at once; beyond it waits more often."""

LEAST_TRIPS = 4

START = "the start of a loop"
"""Why a number that is repeated is left to XLA."""

MANY_STAGES = 3

MOST_AHEAD = 16
"""Parts that a thread reads a turn ahead, in registers."""

MAX_CROSSING = 64
"""Elements of the matrices between units and small columns that a thread keeps in registers."""

MATRIX_REGISTERS = 128
"""Of a thread, for its share of the matrices."""

OTHER_REGISTERS = 64
"""What a thread needs besides matrices, sums and what it reads: tighter, and the compiler spills and takes long."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a value: of its columns those from number * units on; the value itself where it has no columns.

    small: it is held for small columns, by every block, not for units.
    """

    name: str
    number: int
    small: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """A value that comes from memory: an invariant, the first of a carried state, or in each turn a slice of a stack.

    state: which of the loop's state.  small: see Part.
    """

    name: str
    state: int
    place: Place | None
    small: bool = False


@dataclass(frozen=True, slots=True)
class Moved:
    """Parts of which every block of a group gets whole rows before the products of `stage`.

    carried: they are a state's, told at the end of the turn before; else this turn computes them before the stage.
    """

    stage: int
    carried: bool
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Multiply:
    """A product of a stage.  left: for each of its k parts the number of the Moved and the place in it.

    own: the k parts themselves, which a product to or from small columns takes from its own block.  first, parts: which
    parts of the result somebody needs.
    """

    product: Product
    stage: int
    left: tuple[tuple[int, int], ...]
    own: tuple[Part, ...]
    first: int
    parts: int


@dataclass(frozen=True, slots=True)
class Steps:
    """What one turn does, for a thread's pairs.

    loaded, stacked: parts that a pair reads at all, and in each turn; small_loaded: the same of small columns.
    products: by whole rows.  crossings: those to and from small columns.  computed: by stage, the parts of element-wise
    ops and sums that are computed before its products.  stages: how many products follow each other.  heavy: special
    functions of a pair.
    """

    reads: tuple[Read, ...]
    loaded: int
    stacked: int
    small_loaded: int
    moved: tuple[Moved, ...]
    products: tuple[Multiply, ...]
    crossings: tuple[Multiply, ...]
    computed: tuple[tuple[Part, ...], ...]
    heavy: int

    @property
    def stages(self) -> int:
        return len(self.computed) - 1

    @property
    def reads_ahead(self) -> bool:
        """Does a turn ask for what the next one reads of stacks?"""
        return self.stacked <= MOST_AHEAD

    @property
    def shape(self) -> tuple[object, ...]:
        """What decides how the steps are cut: everything but names."""
        return (
            (self.loaded, self.stacked, self.small_loaded, self.heavy),
            tuple((m.stage, m.carried, len(m.parts)) for m in self.moved),
            tuple((m.stage, m.left, m.parts) for m in self.products),
            tuple((m.stage, m.product.form, len(m.own), m.parts) for m in self.crossings),
            tuple(map(len, self.computed)),
        )


@dataclass(frozen=True, slots=True)
class Cut:
    """How the work is cut: `members` blocks a group share the units, each group has `rows` rows.

    A team of `lanes` lanes has `width` units: its lanes split k, then the (row, unit) pairs.
    """

    members: int
    rows: int
    width: int
    lanes: int
    groups: int
    units: int
    small: int = 1
    least_block: int = 32

    @property
    def own_units(self) -> int:
        """Units of a block."""
        return -(-self.units // self.members)

    @property
    def block(self) -> int:
        """Threads of a block."""
        threads = -(-self.own_units // self.width) * self.lanes
        return max(-(-threads // 32) * 32, self.least_block)

    @property
    def grid(self) -> int:
        return self.members * self.groups

    @property
    def owned(self) -> int:
        """Pairs of a thread."""
        return max(1, self.rows * self.width // self.lanes)

    @property
    def copies(self) -> int:
        """Threads that compute the same pair."""
        return max(1, self.lanes // (self.rows * self.width))

    @property
    def small_width(self) -> int:
        """Lanes for the small columns of a row."""
        return 1 << (self.small - 1).bit_length()

    @property
    def small_owned(self) -> int:
        """Pairs of a row and a small column of a thread."""
        return -(-self.rows * self.small_width // self.block)

    @property
    def sums(self) -> int:
        """Pairs of a row and a small column whose parts a block adds up for its group."""
        return -(-self.rows * self.small // self.members)

    @property
    def vectors(self) -> int:
        """Vectors of four k of a part that a lane has."""
        return -(-self.units // (4 * self.lanes))

    @property
    def stride(self) -> int:
        """Elements between the rows of a part in shared memory, the last ones zero."""
        return 4 * self.lanes * self.vectors


@dataclass(frozen=True)
class Share:
    """A part of a loop that has nothing to do with the others, and blocks of its own.

    used: the parts of the final state that it makes.  held: by product, how many vectors of its matrix stay in
    registers; the others are in shared memory.  resident: blocks on an SM.  us: its projection.
    """

    axes: Axes
    steps: Steps
    cut: Cut
    used: tuple[int, ...]
    held: tuple[int, ...]
    resident: int
    us: float

    def __str__(self) -> str:
        cut, steps = self.cut, self.steps
        return (
            f"{cut.groups} groups of {cut.members} blocks, {cut.rows} rows a group, {cut.own_units} units a block, "
            f"{cut.lanes} lanes a team; {len(steps.products)} products in {steps.stages} stages"
        )


@dataclass(frozen=True)
class LoopPlan:
    """A loop as one kernel, whose shares run side by side.  used: the parts of the final state that are its results.
    us: the projection; xla_us: of XLA's loop.
    """

    loop: Loop
    shares: tuple[Share, ...]
    used: tuple[int, ...]
    xla_us: float

    @property
    def us(self) -> float:
        return max(share.us for share in self.shares)

    @property
    def block(self) -> int:
        """Threads of a block."""
        return self.shares[0].cut.block

    @property
    def grid(self) -> int:
        return sum(share.cut.grid for share in self.shares)

    @property
    def blocks_per_sm(self) -> int:
        return min(share.resident for share in self.shares)

    def __str__(self) -> str:
        shares = " | ".join(map(str, self.shares))
        return (
            f"%{self.loop.node.name}: {self.loop.trips} turns in one kernel of {self.grid} blocks of {self.block} "
            f"threads: {shares}; {self.us:.0f} us projected, {self.xla_us:.0f} as XLA's loop"
        )


class _Refused(Exception):
    """Why a loop has no plan."""


class LoopPlanner:
    """Plans whiles for one device, each that computes the same once: for as long as one program is compiled.

    faults: keeps the errors that leave a loop to XLA.
    """

    def __init__(self, gpu: Gpu, faults: FaultLog | None = None) -> None:
        self.gpu = gpu
        self.faults = faults or FaultLog()
        self._plans: dict[LoopKey, LoopPlan | LoopRefusal] = {}
        self._cuts: dict[tuple[object, ...], tuple[Cut, ...]] = {}

    def plan(self, graph: Graph, node: Node) -> LoopPlan | LoopRefusal:
        """A plan for a while that beats XLA's loop, or why there is none.  graph: where the while stands."""
        key = loop_key(graph, node)
        found = self._plans.get(key)
        if found is None:
            inside = tuple(open_barriers(region).graph for region in node.regions)
            opened = replace(node, regions=inside)
            found = self._plans[key] = self.faults.attempt(
                lambda: self._plan(graph, opened, key.used),
                lambda: LoopRefusal(node.name, "an error inside astitch while it was planned"),
                stage="plan a loop",
                subject=f"%{node.name}",
                cost="XLA runs the loop",
            )
        if isinstance(found, LoopRefusal):
            return replace(found, name=node.name)
        # Its shares go by the names in the regions that were planned.
        own = replace(node, regions=found.loop.node.regions)
        return replace(found, loop=replace(found.loop, node=own))

    def find_plans(self, graph: Graph) -> list[LoopPlan]:
        """Of the whiles that are one kernel each."""
        plans = [self.plan(graph, node) for node in graph if node.op == "while"]
        return [plan for plan in plans if isinstance(plan, LoopPlan)]

    def _plan(self, graph: Graph, node: Node, used: Collection[int]) -> LoopPlan | LoopRefusal:
        loop = analyse_loop(graph, node)
        if isinstance(loop, LoopRefusal):
            return loop
        results = tuple(i for i in sorted(used) if isinstance(loop.roles[i], Carried | Stack))
        try:
            if loop.trips < LEAST_TRIPS:
                raise _Refused(f"it turns {loop.trips} times only")
            if (stack := find_numbered_stack(loop, results)) is not None:
                raise _Refused(f"%{stack} makes a stack of numbers that the turn decides")
            parts = split_loop(loop, results)
            plan = self._plan_parts(loop, parts, results)
            if isinstance(plan, LoopPlan) and len(parts) > 1:
                # Or blocks that take a turn of all parts at once, and wait for each other once.
                joint = self._plan_parts(loop, (results,), results)
                if isinstance(joint, LoopPlan) and joint.us < plan.us:
                    plan = joint
        except _Refused as refused:
            return LoopRefusal(node.name, str(refused))
        if isinstance(plan, LoopRefusal):
            return plan
        if plan.us >= plan.xla_us:
            reason = f"{plan.us:.0f} us projected, XLA's loop takes {plan.xla_us:.0f}"
            return LoopRefusal(node.name, reason)
        return plan

    def _plan_parts(
        self, loop: Loop, parts: Sequence[tuple[int, ...]], used: tuple[int, ...]
    ) -> LoopPlan | LoopRefusal:
        """The plan of a loop in the given parts, each with blocks of its own."""
        shares = []
        for part in parts:
            axes = find_axes(loop, part)
            if isinstance(axes, LoopRefusal):
                return axes
            _check_types(loop, axes)
            shares.append((axes, _Scheduler(loop, axes, part).schedule(), part))
        products = sum(len(axes.products) for axes, _, _ in shares)
        xla_us = project_xla(loop, products, self.gpu)
        return LoopPlan(loop, self._choose_cuts(loop, shares), used, xla_us)

    def _choose_cuts(
        self, loop: Loop, parts: Sequence[tuple[Axes, Steps, tuple[int, ...]]]
    ) -> tuple[Share, ...]:
        """For each part of a loop its fastest cut on its share of the device, all with blocks of one size."""
        own = replace(self.gpu, sms=self.gpu.sms // len(parts))
        by_block: dict[int, list[Share]] = {}
        for number, (axes, steps, used) in enumerate(parts):
            found = self._find_cuts(loop, axes, steps, used, own, len(parts) > 1)
            for block, share in found.items():
                if len(by_block.setdefault(block, [])) == number:
                    by_block[block].append(share)
        whole = [shares for shares in by_block.values() if len(shares) == len(parts)]
        if not whole:
            raise _Refused("its matrices do not fit the registers and shared memory of the blocks")
        return tuple(min(whole, key=lambda shares: max(share.us for share in shares)))

    def _find_cuts(
        self,
        loop: Loop,
        axes: Axes,
        steps: Steps,
        used: tuple[int, ...],
        gpu: Gpu,
        beside: bool,
    ) -> dict[int, Share]:
        """The fastest share for each size of a block.  beside: others run at the same time.

        The cuts that were best are known by what decides them: the loops of a model's layers are alike.
        """
        key = (loop.trips, axes.rows, axes.units, axes.small, steps.shape, gpu, beside)
        cuts = self._cuts.get(key)
        found: dict[int, Share] = {}
        for cut in _list_cuts(axes, gpu) if cuts is None else cuts:
            if beside and cut.grid > gpu.sms:
                continue
            share = try_cut(loop, axes, steps, used, gpu, cut)
            if share is None:
                continue
            if cut.block not in found or share.us < found[cut.block].us:
                found[cut.block] = share
        self._cuts[key] = tuple(share.cut for share in found.values())
        return found


def hoist_planned(graph: Graph, planner: LoopPlanner) -> Graph:
    """The graph in which the loops that can be one kernel do only what must wait for the turn before, two at once where
    that is faster."""

    def is_kernel(made: Graph, node: Node) -> bool:
        return isinstance(planner.plan(made, node), LoopPlan)

    return _merge_planned(hoist_loops(graph, is_kernel), planner)


def describe_loops(graph: Graph, gpu: Gpu) -> list[str]:
    """What would become of each while in a program of XLA's: its kernel, or why it has none."""
    planner = LoopPlanner(gpu)
    made = hoist_planned(graph, planner)
    return [str(planner.plan(made, node)) for node in made if node.op == "while"]


def find_planned(graph: Graph, planner: LoopPlanner) -> set[str]:
    """The whiles that are one kernel each, and the numbers that they start with."""
    found: set[str] = set()
    for plan in planner.find_plans(graph):
        node = plan.loop.node
        found |= {node.name, *(node.operands[number] for number in plan.loop.starts)}
    return found


def leave_starts(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """The graph in which whiles have the numbers that their state starts with for themselves, and those nodes with the
    reason why they are left to XLA: a loop that is one kernel needs no array of zeros for the stacks that it writes."""
    nodes: dict[str, Node] = {}
    names: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for node in graph:
        operands = list(node.operands)
        starts = find_starts(graph, node) if node.op == "while" else {}
        for number in starts:
            start = graph[operands[number]]
            if start.op == "broadcast" and graph[start.operands[0]].op == "constant":
                if start.name not in names:
                    names[start.name] = free_name(f"{start.name}.start", {*graph.nodes, *nodes})
                operands[number] = names[start.name]
                nodes[operands[number]] = replace(start, name=operands[number])
                reasons[operands[number]] = START
        nodes[node.name] = node.read(tuple(operands))
    live = keep_live_nodes(nodes, graph.outputs)
    return replace(graph, nodes=live), reasons


def _merge_planned(graph: Graph, planner: LoopPlanner) -> Graph:
    """Two loops become one where they take less time side by side."""
    plans = planner.find_plans(graph)
    alone = {plan.loop.node.name: plan for plan in plans}
    while alone:
        first, found = alone.popitem()
        for second, other in reversed(alone.items()):
            if other.loop.trips != found.loop.trips:
                continue
            made = merge_loops(graph, second, first)
            if made is None:
                continue
            both = planner.plan(made, made[first])
            if isinstance(both, LoopPlan) and both.us < found.us + other.us:
                graph = made
                del alone[second]
                break
    return graph


def split_loop(loop: Loop, used: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The used parts of the final state in sets that share no value but invariants; those without products join one
    that has some."""
    body = loop.body
    fixed = {
        p
        for p, role in zip(body.parameters, loop.roles, strict=True)
        if isinstance(role, Invariant)
    }
    sets: list[tuple[set[str], list[int]]] = []
    for state in used:
        live = {
            name
            for name in find_live(loop, (state,))
            if name not in fixed and name not in body.embedded
        }
        states = [state]
        for other in [s for s in sets if s[0] & live]:
            live |= other[0]
            states = other[1] + states
            sets.remove(other)
        sets.append((live, states))
    with_products = [s for s in sets if any(body[name].op == "dot" for name in s[0])]
    without = [state for s in sets if s not in with_products for state in s[1]]
    parts = [sorted(states) for _, states in with_products] or [[]]
    parts[0] = sorted(parts[0] + without)
    return tuple(map(tuple, parts))


def _check_types(loop: Loop, axes: Axes) -> None:
    body = loop.body
    for name in axes.of:
        type_ = body[name].array
        if type_.dtype not in HELD:
            raise _Refused(f"%{name} is {type_}")
        if type_.size >= 2**31:
            raise _Refused(f"%{name} has {type_.size} elements")
    for product in axes.products.values():
        for name in (product.name, product.left, product.matrix):
            if body[name].dtype not in FLOATS:
                raise _Refused(f"the product %{product.name} has {body[name].array}")


def count_parts(loop: Loop, axes: Axes, name: str) -> int:
    """Parts of a value: 1 where it has no columns."""
    if name not in axes.of:
        return 1
    column = axes.dimension(name, Axis.COLUMN)
    return 1 if column is None else loop.body[name].shape[column] // axes.units


def is_small(loop: Loop, axes: Axes, name: str) -> bool:
    """Is a value held for small columns: has it some, or is it made of sums over them?"""
    pending, seen = [name], set[str]()
    while pending:
        name = pending.pop()
        if name in seen or name not in axes.of or Axis.COLUMN in axes.of[name]:
            continue
        seen.add(name)
        if Axis.SMALL in axes.of[name]:
            return True
        node = loop.body[name]
        if name not in loop.slices and name not in axes.products:
            pending += node.operands
    return False


def is_shift(axes: Axes, node: Node) -> bool:
    """Does an op move small columns?"""
    if node.op == "pad":
        return True
    if not isinstance(node.attrs, SliceAttrs):
        return False
    small = axes.dimension(node.name, Axis.SMALL)
    return small is not None and node.attrs.starts[small] > 0


class Resolver:
    """Where a part of a value really comes from, behind the ops that only move."""

    def __init__(self, loop: Loop, axes: Axes) -> None:
        self.loop, self.axes, self.body = loop, axes, loop.body

    def resolve(self, name: str, number: int, small: bool = False) -> Part:
        """The op, read or constant that a part is a part of.  small: where a value without columns is wanted."""
        while True:
            if name in self.loop.integers or name in self.body.embedded:
                return self.find_constant(name)
            axes = self.axes.of.get(name, ())
            small = Axis.SMALL in axes or (small and Axis.COLUMN not in axes)
            if name in self.axes.of and self.axes.dimension(name, Axis.COLUMN) is None:
                number = 0
            node = self.body[name]
            match node.op, node.attrs:
                case "slice", SliceAttrs(starts) if is_shift(self.axes, node):
                    return Part(name, number, small)
                case "slice", SliceAttrs(starts):
                    column = self.axes.dimension(name, Axis.COLUMN)
                    source = self.axes.dimension(node.operands[0], Axis.COLUMN)
                    if column is not None and source is not None:
                        number += starts[source] // self.axes.units
                    name = node.operands[0]
                case "concatenate", DimensionAttrs():
                    for operand in node.operands:
                        parts = count_parts(self.loop, self.axes, operand)
                        if number < parts:
                            name = operand
                            break
                        number -= parts
                case ("broadcast", BroadcastAttrs()) | ("transpose", _):
                    name = node.operands[0]
                case op, _ if op in VIEWS:
                    name = node.operands[0]
                case _:
                    return Part(name, number, small)

    def find_constant(self, name: str) -> Part:
        while name not in self.loop.integers and self.body[name].op != "constant":
            name = self.body[name].operands[0]
        return Part(name, 0)


class _Scheduler:
    """Puts the ops of a body into stages."""

    def __init__(self, loop: Loop, axes: Axes, used: Sequence[int]) -> None:
        self.loop, self.axes, self.body, self.used = loop, axes, loop.body, used
        self.resolve = Resolver(loop, axes).resolve
        self.roles = dict(zip(self.body.parameters, loop.roles, strict=True))
        self.stages: dict[Part, int] = {}
        self.reads: dict[tuple[str, bool], Read] = {}

    def stage_of(self, part: Part) -> int:
        """How many stages of products must be over before a part is there."""
        if part in self.stages:
            return self.stages[part]
        node = self.body[part.name]
        if part.name in self.loop.integers or node.op == "constant":
            stage = 0
        elif part.name in self.roles or part.name in self.loop.slices:
            self.add_read(node, part.small)
            stage = 0
        elif part.name in self.axes.products:
            product = self.axes.products[part.name]
            if part.small != (product.form is Form.COLLECT):
                raise _Refused(
                    f"%{node.name} has no columns, and is wanted for units and for small columns"
                )
            stage = 1 + max(self.stage_of(p) for p in self.parts_of(product.left))
        elif node.op == "reduce" and not part.small:
            raise _Refused(f"%{node.name} is a sum over small columns, and is wanted for units")
        elif OPS[node.op].kind in (Kind.ELEMENTWISE, Kind.REDUCE) or is_shift(self.axes, node):
            stage = max((self.stage_of(p) for p in self.operands_of(part)), default=0)
        else:
            raise _Refused(f"%{node.name} is a {node.op}")
        self.stages[part] = stage
        return stage

    def parts_of(self, name: str) -> list[Part]:
        count = count_parts(self.loop, self.axes, name)
        small = is_small(self.loop, self.axes, name)
        return [self.resolve(name, i, small) for i in range(count)]

    def operands_of(self, part: Part) -> list[Part]:
        return [self.resolve(o, part.number, part.small) for o in self.body[part.name].operands]

    def add_read(self, node: Node, small: bool) -> None:
        if node.name in self.loop.slices:
            state, place = self.body.parameters.index(node.operands[0]), self.loop.slices[node.name]
            self.reads[node.name, small] = Read(node.name, state, place, small)
        else:
            role = self.roles[node.name]
            if isinstance(role, Stack):
                raise _Refused(f"%{node.name} is read as a whole and written in slices")
            if isinstance(role, Carried) and small != is_small(self.loop, self.axes, role.value):
                raise _Refused(f"%{node.name} is handed on for units and wanted for small columns")
            state = self.body.parameters.index(node.name)
            self.reads[node.name, small] = Read(node.name, state, None, small)

    def schedule(self) -> Steps:
        """The stages.  Raises _Refused."""
        results = [
            part
            for role in self.loop.roles
            if isinstance(role, Carried | Stack) and role.value in self.axes.live
            for part in self.parts_of(role.value)
        ]
        for part in results:
            self.stage_of(part)
        made = {part.name for part in self.stages}
        products = [p for n, p in self.axes.products.items() if n in made]
        last = max(self.stages[part] for part in self.stages)
        computed: list[list[Part]] = [[] for _ in range(last + 1)]
        order = {name: i for i, name in enumerate(self.body.nodes)}
        for part in sorted(self.stages, key=lambda p: (order[p.name], p.number, p.small)):
            node = self.body[part.name]
            inner = OPS[node.op].kind in (Kind.ELEMENTWISE, Kind.REDUCE) or is_shift(
                self.axes, node
            )
            if inner and part.name not in self.loop.integers:
                computed[self.stages[part]].append(part)
        moved, multiplies = self.move([p for p in products if p.form is Form.ROWS])
        crossings = [self.multiply(p, ()) for p in products if p.form is not Form.ROWS]
        heavy = sum(
            OPS[self.body[p.name].op].cost is Cost.HEAVY for stage in computed for p in stage
        )
        reads = tuple(self.reads.values())
        counts = {r: count_parts(self.loop, self.axes, r.name) for r in reads}
        return Steps(
            reads,
            sum(count for read, count in counts.items() if not read.small),
            sum(count for read, count in counts.items() if read.place),
            sum(count for read, count in counts.items() if read.small),
            moved,
            multiplies,
            tuple(crossings),
            tuple(map(tuple, computed)),
            heavy,
        )

    def move(self, products: Sequence[Product]) -> tuple[tuple[Moved, ...], tuple[Multiply, ...]]:
        groups: dict[tuple[int, bool], dict[Part, None]] = {}
        keys: dict[Part, tuple[int, bool]] = {}
        for product in products:
            for part in self.parts_of(product.left):
                carried = isinstance(self.roles.get(part.name), Carried)
                if carried:
                    self.check_handed_on(part)
                key = 0 if carried else self.stages[part], carried
                groups.setdefault(key, {})[part] = None
                keys[part] = key
        numbers = {key: i for i, key in enumerate(sorted(groups, key=lambda k: (k[0], not k[1])))}
        moved = tuple(Moved(*key, tuple(groups[key])) for key in numbers)
        multiplies = []
        for product in products:
            parts = self.parts_of(product.left)
            left = tuple((numbers[keys[p]], moved[numbers[keys[p]]].parts.index(p)) for p in parts)
            multiplies.append(self.multiply(product, left))
        return moved, tuple(sorted(multiplies, key=lambda m: m.stage))

    def multiply(self, product: Product, left: tuple[tuple[int, int], ...]) -> Multiply:
        made = {p.number: s - 1 for p, s in self.stages.items() if p.name == product.name}
        first, count = min(made), max(made) - min(made) + 1
        own = tuple(self.parts_of(product.left))
        return Multiply(product, made[first], left, own, first, count)

    def check_handed_on(self, part: Part) -> None:
        """A state that blocks tell each other must wait for a product: two buffers are enough only then."""
        role = self.roles[part.name]
        assert isinstance(role, Carried)
        if self.stage_of(self.resolve(role.value, part.number)) == 0:
            raise _Refused(
                f"%{part.name} is a side of a product, and its next value waits for none"
            )


# ---- cost ----------------------------------------------------------------------------------------------------------


TURN_CYCLES, PRODUCT_CYCLES = 4950, 8910
"""Of XLA's loop: on an H100 its turn takes 7 us with one small product and 11 to 12 with two."""

START_US = 3.2
"""Besides the launch: until all blocks of a loop run and have read what stays on chip, and the way back."""

CLOCK_SHARE = 1.75 / 1.98
"""Of the device's clock: what the cycles of a turn were fitted with on an H100."""


def project_xla(loop: Loop, products: int, gpu: Gpu) -> float:
    """Microseconds of XLA's loop: its kernels are so short that the clock decides."""
    return loop.trips * (TURN_CYCLES + PRODUCT_CYCLES * products) / gpu.clock_ghz / 1e3


def _list_cuts(axes: Axes, gpu: Gpu) -> Iterator[Cut]:
    if not axes.products:
        for rows in (1, 2, 4):
            cut = Cut(1, rows, 1, 1, -(-axes.rows // rows), axes.units, axes.small)
            yield replace(cut, least_block=max(32, rows * cut.small_width))
        return
    for members in (m for m in range(1, gpu.sms + 1) if axes.units % m == 0):
        own = axes.units // members
        for width in (1, 2, 4, 8):
            if own % width:
                continue
            for lanes in (1, 2, 4, 8, 16, 32):
                for rows in (1, 2, 4, 8, 16):
                    if rows > MAX_ROWS or rows >= 2 * axes.rows:
                        continue
                    groups = -(-axes.rows // rows)
                    cut = Cut(members, rows, width, lanes, groups, axes.units, axes.small)
                    if cut.block <= MAX_BLOCK and cut.vectors <= 64:
                        yield cut


@functools.cache
def _count_registers(gpu: Gpu, block: int, resident: int) -> int:
    return min(gpu.max_registers(block, resident), 255)


def try_cut(
    loop: Loop,
    axes: Axes,
    steps: Steps,
    used: tuple[int, ...],
    gpu: Gpu,
    cut: Cut,
) -> Share | None:
    """A share by a cut, if it fits the device."""
    columns = [m.parts * cut.width for m in steps.products]
    most, block = max(columns, default=1), cut.block
    if most * cut.rows > 64 or cut.small_width > block:
        return None
    if cut.members > 1 and cut.grid > gpu.sms:
        return None
    ahead = 2 if steps.reads_ahead else 1
    other = OTHER_REGISTERS + cut.owned * (ahead * steps.loaded + 8) + cut.rows * (most + 4)
    if cut.small > 1:
        crossing = sum(count_crossing(multiply, cut) for multiply in steps.crossings)
        if crossing > MAX_CROSSING:
            return None
        other += cut.small_owned * (ahead * steps.small_loaded + 4) + crossing
    if _count_registers(gpu, block, 1) < other:
        return None
    fixed = place_slots(steps, cut)[1] + count_crossing_bytes(steps, cut)
    found: list[Share] = []
    for resident in (1, 2):
        registers = _count_registers(gpu, block, resident)
        room = min(registers - other, MATRIX_REGISTERS)
        if room < 0:
            continue
        held: list[int] = []
        left = 0
        for multiply, count in zip(steps.products, columns, strict=True):
            total = cut.vectors * len(multiply.left)
            fit = min(total, max(0, room) // (4 * count))
            held.append(fit)
            room -= 4 * count * fit
            left += (total - fit) * 16 * count * block
        bps = gpu.blocks_per_sm(block, registers, left + fixed)
        if bps < resident:
            continue
        us = _project(loop, steps, cut, gpu, resident, columns, held)
        found.append(Share(axes, steps, cut, used, tuple(held), resident, us))
    return min(found, key=lambda share: share.us, default=None)


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a Moved is in shared memory: at byte `offset`, the rows of `buffers` turns.  lent: it shares its place with
    others, so the block must meet before it is filled."""

    offset: int
    buffers: int
    lent: bool


def place_slots(steps: Steps, cut: Cut) -> tuple[tuple[Slot, ...], int]:
    """The slot of each Moved, and all bytes.

    Where a turn has many stages rows live for one stage only.  Else there are rows of two turns, unless the block meets
    anyway between the last product that reads them and the words of the next turn.
    """
    meetings = {m.stage for m in steps.moved} | {m.stage for m in steps.crossings}
    placed: list[tuple[int, int, bool]] = []
    lent: dict[int, int] = {}
    offset = 0
    for number, moved in enumerate(steps.moved):
        size = len(moved.parts) * cut.rows * cut.stride * 4
        last = max(m.stage for m in steps.products if any(at == number for at, _ in m.left))
        # Where rows are padded with zeros they keep their place.
        many = steps.stages >= MANY_STAGES and cut.stride == cut.units
        if cut.members > 1 and many and last == moved.stage:
            placed.append((lent.get(last, 0), 1, True))
            lent[last] = lent.get(last, 0) + size
        else:
            met = max(meetings) > last or moved.stage > min(meetings)
            buffers = 1 if met and cut.members > 1 else 2
            placed.append((offset, buffers, False))
            offset += buffers * size
    most = max(lent.values(), default=0)
    slots = [Slot(at if shared else at + most, count, shared) for at, count, shared in placed]
    return tuple(slots), most + offset


def count_crossing(multiply: Multiply, cut: Cut) -> int:
    """Elements of the matrix of a product to or from small columns that a thread keeps."""
    if multiply.product.form is Form.COLLECT:
        return cut.small_owned * cut.own_units * len(multiply.own)
    return cut.owned * -(-cut.small // cut.copies) * multiply.parts


def crossing_floats(multiply: Multiply, cut: Cut) -> tuple[int, int, int]:
    """Shared memory of such a product in one turn: its left side, the parts that the block adds up, the sums of all."""
    if multiply.product.form is Form.SPREAD:
        return cut.rows * cut.small_width, 0, 0
    left = len(multiply.own) * cut.rows * cut.own_units
    return (
        (left, cut.sums * cut.members, cut.rows * cut.small_width)
        if cut.members > 1
        else (left, 0, 0)
    )


def count_crossing_bytes(steps: Steps, cut: Cut) -> int:
    """The same of all products, two turns' worth."""
    floats = sum(-(-2 * n // 4) * 4 for m in steps.crossings for n in crossing_floats(m, cut))
    return 4 * floats


def _project(
    loop: Loop,
    steps: Steps,
    cut: Cut,
    gpu: Gpu,
    resident: int,
    columns: Sequence[int],
    held: Sequence[int],
) -> float:
    """Microseconds of the whole loop."""
    together = min(resident, -(-cut.grid // gpu.sms))  # blocks that share an SM
    waves = -(-cut.grid // (gpu.sms * together))
    warps = cut.block // 32 * together
    cycles = 0.0
    for multiply, count, kept in zip(steps.products, columns, held, strict=True):
        vectors = cut.vectors * len(multiply.left)
        adds = vectors * 4 * count * cut.rows / 4
        words = vectors * cut.rows * max(1, cut.lanes / 8) + (vectors - kept) * count * 4
        shuffles, pairs, lanes = 0, cut.rows * cut.width, cut.lanes
        while lanes > 1:
            pairs = max(1, pairs // 2)
            lanes //= 2
            shuffles += pairs * multiply.parts
        cycles += warps * (1.3 * max(adds, words) + shuffles)
    cycles += warps * cut.owned * (6 * steps.heavy + 0.3 * sum(map(len, steps.computed)))
    turn_us = cycles / (gpu.clock_ghz * CLOCK_SHARE) / 1e3
    turn_us += 0.05 + steps.stages * (0.05 + 0.04 * math.log2(cut.lanes))
    for multiply in steps.crossings:
        turn_us += 0.15
        if multiply.product.form is Form.COLLECT and cut.members > 1:
            turn_us += 0.8 + 0.004 * cut.members
    if cut.members > 1:
        for moved in steps.moved:
            words = len(moved.parts) * cut.rows * cut.units / cut.block
            turn_us += 0.25 + 0.075 * words + 0.001 * cut.members
    loaded = sum(v * 16 * c for v, c in zip(held, columns, strict=True)) * cut.block
    return gpu.launch_us + START_US + waves * (loop.trips * turn_us + loaded / 40e3)
