"""Which loops run as one kernel each, and how.

Takes a Graph with a while, hands on a LoopPlan or a refusal.  schedule.py puts what a turn does into stages, cuts.py
shares it out to blocks.  Parts of a loop that have nothing to do with each other get blocks of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from astitch.device.gpu import Gpu
from astitch.directives import FOLLOWED, NOTHING, Directives
from astitch.faults import FaultLog
from astitch.graph.edit import free_name, keep_live_nodes
from astitch.graph.factorizations import find_factorization
from astitch.graph.ir import DotAttrs, DType, Graph, IotaAttrs, Node
from astitch.graph.ops import OPS
from astitch.loops.analysis import (
    UNKNOWN,
    Carried,
    Counter,
    Invariant,
    Loop,
    LoopKey,
    LoopRefusal,
    Stack,
    analyse_loop,
    find_numbered_stack,
    find_starts,
    loop_key,
)
from astitch.loops.axes import Axes, find_axes, find_live, join_dimensions
from astitch.loops.cuts import (
    Cut,
    Share,
    Turn,
    count_steps,
    list_cuts,
    once_us,
    project_xla,
    table_bytes,
    try_cut,
)
from astitch.loops.emit_turns import TurnsPlan
from astitch.loops.hoist import hoist_loops
from astitch.loops.merge import merge_loops
from astitch.loops.part_products import part_products
from astitch.loops.project_elements import project_elements
from astitch.loops.row_conditions import analyse_rows, find_row_loop
from astitch.loops.row_dimensions import NotSpelled
from astitch.loops.schedule import NoPlan, Scheduler, Steps, is_shift
from astitch.loops.spell_out import LEAST_ROWS, Rows, find_rows, spell_out
from astitch.loops.unroll import unroll_inner
from astitch.rewrite.barriers import open_barriers
from astitch.rewrite.batched_gathers import batch_gathers

FLOATS = frozenset({DType.F32, DType.BF16, DType.F16})
"""The types of a product's operands; its sums are f32."""

INTEGERS = frozenset(t for t in DType if t.is_integer and t.bits >= 8)
HELD = FLOATS | INTEGERS | {DType.PRED, DType.F64, DType.C64, DType.C128}
"""The types of values that a thread can hold."""

TOLD = FLOATS | {DType.PRED, DType.S32, DType.U32, DType.S64, DType.U64}
"""Those that threads can tell each other."""

LEAST_TRIPS = 4

BLOCKS_PER_SM = 4
"""Blocks that keep an SM busy, whatever their size."""

START = "the start of a loop"
"""Why a number that is repeated is left to XLA."""


@dataclass(frozen=True)
class LoopPlan:
    """A loop as one kernel, whose shares run side by side.  used: the parts of the final state that are its results.
    us: the projection; xla_us: of XLA's loop, or of other kernels for a loop that turns once.
    """

    loop: Loop
    shares: tuple[Share, ...]
    used: tuple[int, ...]
    xla_us: float

    @property
    def us(self) -> float:
        return max(share.us for share in self.shares)

    @property
    def spared_us(self) -> float:
        """Microseconds less than what it would be else, as projected."""
        return self.xla_us - self.us

    @property
    def is_faster(self) -> bool:
        """Than what it would be else."""
        return self.us < self.xla_us

    @property
    def looks_up(self) -> bool:
        """Does a turn read tables at places that it computes?"""
        return any(share.steps.lookups for share in self.shares)

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
        once = self.loop.trips == 1
        what = "row by row" if once else f"{self.loop.trips} turns"
        if self.loop.asked is not None:
            how = "at most" if self.loop.limited else "by estimate"
            what = f"as many turns as each row asks for, {how} {self.loop.trips},"
        other = "other kernels" if once else "XLA's loop"
        return (
            f"%{self.loop.node.name}: {what} in one kernel of {self.grid} blocks of {self.block} threads: {shares}; "
            f"{self.us:.0f} us projected, {self.xla_us:.0f} as {other}"
        )


Planned = dict[tuple[LoopKey, bool], LoopPlan | LoopRefusal]
"""What comes of loops, by what each computes and whether a directive keeps it."""


class LoopPlanner:
    """Plans whiles for one device, each that computes the same once: for as long as one program is compiled.

    faults: keeps the errors that leave a loop to XLA.  directives: those that hold for the program.  planned: gets what
    comes of each loop, and has it where the program was compiled before, for this device.
    """

    def __init__(
        self,
        gpu: Gpu,
        faults: FaultLog | None = None,
        directives: Directives = NOTHING,
        planned: Planned | None = None,
    ) -> None:
        self.gpu, self.directives = gpu, directives
        self.faults = faults or FaultLog()
        self.turns: dict[tuple[LoopKey, bool], TurnsPlan | LoopRefusal] = {}  # xla/stitch_loops.py
        # What an error left to XLA is known to this planner alone: the next compilation tries again, and says so.
        self._plans: Planned = {}
        self._planned: Planned = {} if planned is None else planned
        self._cuts: dict[tuple[object, ...], tuple[Cut, ...]] = {}

    def leaves(self, name: str) -> bool:
        """Is the loop of this name to be XLA's?"""
        return self.directives.covers("leave-loops", [name])

    def keeps(self, name: str) -> bool:
        """Is the loop of this name to be a kernel, whatever it takes?"""
        return bool(self.directives.find("keep", [name]))

    def note_kept(self, name: str, refused: LoopRefusal | None) -> None:
        """What came of the directives that keep a loop.  refused: why it is no kernel all the same."""
        outcome = f"not followed: {refused.reason}" if refused else FOLLOWED
        for line in self.directives.find("keep", [name]):
            self.directives.note(line, outcome)

    def plan(self, graph: Graph, node: Node) -> LoopPlan | LoopRefusal:
        """A plan for a while that beats XLA's loop or is kept, or why there is none.  graph: where the while stands."""
        if self.leaves(node.name):
            return LoopRefusal(node.name, "a directive leaves it to XLA")
        what, kept = loop_key(graph, node), self.keeps(node.name)
        key = what, kept
        found = self._plans.get(key)
        if found is None:
            inside = tuple(open_barriers(region).graph for region in node.regions)
            opened = replace(node, regions=inside)
            found = self._plans[key] = self.faults.attempt(
                lambda: self._plan_once(graph, opened, key),
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

    def is_kernel(self, graph: Graph, node: Node) -> bool:
        """Is a while one kernel?"""
        return isinstance(self.plan(graph, node), LoopPlan)

    def stays(self, graph: Graph, node: Node) -> bool:
        """Is a while one kernel that gains nothing where it is written out?"""
        plan = self.plan(graph, node)
        return isinstance(plan, LoopPlan) and not plan.looks_up

    def find_plans(self, graph: Graph) -> list[LoopPlan]:
        """The plans of the whiles that are one kernel each."""
        plans = [self.plan(graph, node) for node in graph if OPS[node.op].is_loop]
        return [plan for plan in plans if isinstance(plan, LoopPlan)]

    def _plan_once(
        self, graph: Graph, node: Node, key: tuple[LoopKey, bool]
    ) -> LoopPlan | LoopRefusal:
        """What _plan says, also of an earlier compilation."""
        if key not in self._planned:
            what, kept = key
            self._planned[key] = self._plan(graph, node, what.used, kept)
        return self._planned[key]

    def _plan(
        self, graph: Graph, node: Node, used: Collection[int], kept: bool
    ) -> LoopPlan | LoopRefusal:
        loop = analyse_loop(graph, node)
        if isinstance(loop, LoopRefusal) and (rows := find_row_loop(graph, node, used)) is not None:
            graph, loop = rows
        refused = loop if isinstance(loop, LoopRefusal) else None
        if refused:
            loop = analyse_loop(graph, node, carries=True)
        if isinstance(loop, LoopRefusal):
            return loop
        results = tuple(i for i in sorted(used) if isinstance(loop.roles[i], Carried | Stack))
        factors = any(find_factorization(inner) for inner in loop.body)
        # XLA leaves no loop that turns once: it is a group of ops (row_groups.py).
        if 1 < loop.trips < LEAST_TRIPS and not factors and not kept:
            return LoopRefusal(node.name, f"it turns {loop.trips} times only", is_choice=True)
        if (stack := find_numbered_stack(loop, results)) is not None:
            reason = f"%{stack} makes a stack of numbers that the turn decides"
            return LoopRefusal(node.name, reason)
        plan: LoopPlan | LoopRefusal = refused or LoopRefusal(node.name, "it turns once")
        if loop.trips > 1 and not refused:
            steps = count_steps(loop.body, find_live(loop, results))
            plan = self._plan_loop(loop, results, Turn(steps=steps))
        if isinstance(plan, LoopPlan) and plan.is_faster:
            return plan
        spelled = self._plan_spelled(graph, loop, results)
        plans = [p for p in (plan, spelled) if isinstance(p, LoopPlan) and (p.is_faster or kept)]
        if plans:
            return min(plans, key=lambda plan: plan.us)
        first, other = map(_refuse_slower, (plan, spelled))
        if loop.asked is not None:
            first = LoopRefusal(node.name, f"{UNKNOWN}; {first.reason}", first.is_choice)
        return LoopRefusal(
            node.name,
            f"{first.reason}; row by row: {other.reason}",
            is_choice=first.is_choice or other.is_choice,
        )

    def _plan_spelled(
        self, graph: Graph, loop: Loop, results: tuple[int, ...]
    ) -> LoopPlan | LoopRefusal:
        """The plan of a loop whose rows are spelled out, and the turns of loops in it; the last one, if none is faster
        than XLA's."""
        condition, body = loop.node.regions
        unrolled, turns = unroll_inner(body)
        parted = part_products(batch_gathers(unrolled))
        if parted is not body:
            node = replace(loop.node, regions=(condition, parted))
            found = _analyse_again(graph, node, loop, carries=True)
            if isinstance(found, LoopRefusal):
                return found
            loop = found
        live = find_live(loop, results)
        # XLA computes some products of so few numbers in its kernels of other ops: half of them, by estimate.
        products = sum(isinstance(loop.body[name].attrs, DotAttrs) for name in live) // 2
        # A library's call is two kernels, by estimate: pointers to the matrices are written first.
        calls = sum(find_factorization(loop.body[name]) is not None for name in live)
        turn = Turn(products + 2 * calls, turns, count_steps(loop.body, live))
        whole = loop if loop.trips == 1 and not calls else None
        plan: LoopPlan | LoopRefusal = LoopRefusal(loop.node.name, "")
        tried: list[Rows] = []
        # A group's rows are all dimensions along which no elements meet.
        for least in reversed(LEAST_ROWS) if whole else LEAST_ROWS:
            try:
                rows = find_rows(loop, live, least)
                if rows in tried:
                    continue
                tried.append(rows)
                spelled = _analyse_again(graph, spell_out(loop, live, rows), loop)
            except NotSpelled as why:
                if isinstance(plan, LoopRefusal):
                    plan = LoopRefusal(loop.node.name, str(why))
                continue
            if isinstance(spelled, LoopRefusal):
                return spelled
            if any(type(spelled.roles[i]) is not type(loop.roles[i]) for i in results):
                return LoopRefusal(loop.node.name, "a turn leaves a state as it is")
            plan = self._plan_loop(spelled, results, turn, whole)
            if isinstance(plan, LoopPlan) and plan.is_faster:
                return plan
        return plan

    def _plan_loop(
        self,
        loop: Loop,
        results: tuple[int, ...],
        turn: Turn,
        whole: Loop | None = None,
    ) -> LoopPlan | LoopRefusal:
        """The plan of a loop, which may be slower than XLA's.

        turn: XLA's, besides the products of the loop.  whole: a group of ops before its rows were spelled out.
        """
        node = loop.node
        try:
            loop = join_dimensions(loop, results)
            parts = split_loop(loop, results) if loop.asked is None else (results,)
            plan = self._plan_parts(loop, parts, results, turn, whole)
            if isinstance(plan, LoopPlan) and len(parts) > 1:
                # Or blocks that take a turn of all parts at once, and wait for each other once.
                joint = self._plan_parts(loop, (results,), results, turn, whole)
                if isinstance(joint, LoopPlan) and joint.us < plan.us:
                    plan = joint
        except NoPlan as refused:
            return LoopRefusal(node.name, str(refused))
        return plan

    def _plan_parts(
        self,
        loop: Loop,
        parts: Sequence[tuple[int, ...]],
        used: tuple[int, ...],
        turn: Turn,
        whole: Loop | None,
    ) -> LoopPlan | LoopRefusal:
        """The plan of a loop in the given parts, each with blocks of its own."""
        shares = []
        for part in parts:
            axes = find_axes(loop, part)
            if isinstance(axes, LoopRefusal):
                return axes
            _check_types(loop, axes)
            steps = Scheduler(loop, axes, part).schedule()
            if loop.asked is not None and (steps.products or steps.crossings or axes.small > 1):
                raise NoPlan(
                    "its rows end by themselves, and elements of one meet in other threads"
                )
            shares.append((axes, steps, part))
        own = sum(len(axes.products) for axes, _, _ in shares)
        turn = replace(turn, products=turn.products + own)
        pairs = ((axes.rows * axes.units, steps.cycles) for axes, steps, _ in shares)
        cycles = sum(-(-count // 32) * of_warp for count, of_warp in pairs)
        if whole:
            xla_us = project_elements(whole, loop, shares, self.gpu)
        else:
            xla_us = project_xla(loop, turn, self.gpu, cycles)
            if loop.trips == 1:
                xla_us += sum(once_us(loop, steps, part, self.gpu) for _, steps, part in shares)
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
            raise NoPlan("its matrices do not fit the registers and shared memory of the blocks")
        # Large blocks where a loop that turns once fills the device: each has to be started.
        least = 0 if loop.trips > 1 else BLOCKS_PER_SM * self.gpu.sms

        def rank(shares: Iterable[Share]) -> tuple[float, int]:
            shares = tuple(shares)
            grid = sum(share.cut.grid for share in shares)
            large = shares[0].cut.block if least and grid >= least else 0
            return max(share.us for share in shares), -large

        return tuple(min(whole, key=rank))

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
        tables = table_bytes(loop, steps)
        key = (loop.trips, axes.rows, axes.units, axes.small, steps.shape, tables, gpu, beside)
        cuts = self._cuts.get(key)
        found: dict[int, Share] = {}
        for cut in list_cuts(axes, gpu) if cuts is None else cuts:
            if beside and cut.grid > gpu.sms:
                continue
            share = try_cut(loop, axes, steps, used, gpu, cut)
            if share is None:
                continue
            if cut.block not in found or share.us < found[cut.block].us:
                found[cut.block] = share
        self._cuts[key] = tuple(share.cut for share in found.values())
        return found


def _refuse_slower(plan: LoopPlan | LoopRefusal) -> LoopRefusal:
    """Why a plan that is slower than XLA's loop is not taken."""
    if isinstance(plan, LoopRefusal):
        return plan
    reason = f"{plan.us:.0f} us projected, XLA's loop takes {plan.xla_us:.0f}"
    return LoopRefusal(plan.loop.node.name, reason, is_choice=True)


def hoist_planned(graph: Graph, planner: LoopPlanner, no_arrays: bool = False) -> Graph:
    """The graph in which loops that can be one kernel do only what must wait for the turn before.  Two loops become one
    where that is faster.  no_arrays: what would need an array of all turns stays, where the loop is a kernel so."""
    return _merge_planned(hoist_loops(graph, planner.is_kernel, no_arrays), planner)


def describe_loops(graph: Graph, gpu: Gpu) -> list[str]:
    """What would become of each while in a program of XLA's: its kernel, or why it has none."""
    planner = LoopPlanner(gpu)
    made = hoist_planned(graph, planner)
    return [str(planner.plan(made, node)) for node in made if OPS[node.op].is_loop]


def find_planned(graph: Graph, planner: LoopPlanner) -> set[str]:
    """The whiles that are one kernel each, and the numbers that they start with."""
    found: set[str] = set()
    for plan in planner.find_plans(graph):
        node = plan.loop.node
        found |= {node.name, *(node.operands[number] for number in plan.loop.starts)}
    return found


def leave_starts(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """The graph in which whiles have their own copies of the numbers that their state starts with; and these copies,
    each with the reason why it is left to XLA.  A loop that is one kernel needs no array of zeros for the stacks that
    it writes."""
    nodes: dict[str, Node] = {}
    names: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for node in graph:
        operands = list(node.operands)
        starts = find_starts(graph, node) if OPS[node.op].is_loop else {}
        for number in starts:
            start = graph[operands[number]]
            if OPS[start.op].is_broadcast and graph[start.operands[0]].is_constant:
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


def _analyse_again(
    graph: Graph, node: Node, loop: Loop, *, carries: bool = False
) -> Loop | LoopRefusal:
    """The roles of a loop that was written anew."""
    if loop.asked is not None:
        counters = {i: r.value for i, r in enumerate(loop.roles) if isinstance(r, Counter)}
        return analyse_rows(graph, node, loop.trips if loop.limited else None, counters)
    return analyse_loop(graph, node, carries=carries)


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
    with_products = [
        s for s in sets if any(isinstance(body[name].attrs, DotAttrs) for name in s[0])
    ]
    without = [state for s in sets if s not in with_products for state in s[1]]
    parts = [sorted(states) for _, states in with_products] or [[]]
    parts[0] = sorted(parts[0] + without)
    return tuple(map(tuple, parts))


def _check_types(loop: Loop, axes: Axes) -> None:
    body = loop.body
    for name in axes.of:
        type_ = body[name].array
        if type_.dtype not in HELD:
            raise NoPlan(f"%{name} is {type_}")
        if type_.dtype.is_complex and isinstance(body[name].attrs, IotaAttrs):
            raise NoPlan(f"%{name} numbers places by complex numbers")
        if type_.size >= 2**31:
            raise NoPlan(f"%{name} has {type_.size} elements")
        if type_.dtype not in TOLD and (OPS[body[name].op].is_reduce or is_shift(axes, body[name])):
            raise NoPlan(f"%{name} is {type_}, which threads do not tell each other")
    for product in axes.products.values():
        for name in (product.name, product.left, product.matrix):
            if body[name].dtype not in FLOATS:
                raise NoPlan(f"the product %{product.name} has {body[name].array}")
