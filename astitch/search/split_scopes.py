"""Scopes -> Scopes and Plans: a stitch op whose kernel shows a symptom is split, if that projects faster.

Stitching is exhaustive, and nearly always right.  Where a plan spills, loses occupancy, is too long, meets too often
or is far from the speed of light, the explorer proposes parts; one cost rates both, and the cheaper one is taken.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from astitch.cost.projected_latency import Projection
from astitch.cost.speed_of_light import Work, measure_work
from astitch.device.gpu import Gpu
from astitch.errors import IllegalProduct
from astitch.faults import FaultLog
from astitch.graph.ir import Graph
from astitch.kernel import kernel_ir as k
from astitch.kernel.fold import count_folded
from astitch.scope.structure import Structure, structure_of
from astitch.search.fusion_explorer import (
    MAX_STATEMENTS,
    Cover,
    choose_cover,
    choose_xla_cover,
    divide_scope,
    estimate_penalty,
    make_xla_parts,
    replace_scope,
)
from astitch.search.part_times import list_handed, sum_times, time_of
from astitch.search.patterns import each_vertex, estimate_statements, make_fusion_graph
from astitch.search.peak_memory import (
    MemorySteps,
    MemoryUse,
    keeps_to,
    list_steps,
    measure_regions,
    schedule,
)
from astitch.search.plan import LONG_CODE, SPILLED_BYTES, Decided, Observe, Plan, count_statements
from astitch.search.shifted_reads import propose_steps
from astitch.search.xla_fusions import Proposal, propose_each, propose_thrifty, read_vertices
from astitch.stitch_scope import Scope, Scopes
from astitch.toolchain.compile_pool import CompilePool
from astitch.toolchain.nvrtc import Resources

SURELY_LONG = 2 * LONG_CODE
"""A scope of more statements, by estimate, is split before it is planned.  A plan of thousands of ops takes many times
as long as plans of its parts, and is longer than estimated."""

UNSEEN_STATEMENTS = 1300
"""Statements by estimate of the parts of such a scope: kernels of reductions over many blocks are 1.8 times as long."""

MANY_BARRIERS, BARRIER_SHARE = 5, 1 / 3
"""Global barriers from which a kernel is looked at, if they take this share of its time."""

LEAST_OCCUPANCY = 0.125
"""Share of an SM's threads below which memory latency shows."""

FAR_FACTOR, FAR_US = 4.0, 20.0
"""A kernel is far from the speed of light if it takes more than this many times as long, and so much longer."""

OBSERVED_STATEMENTS = 300
"""Kernels from this length on (see count_at_once) are compiled before it is decided: shorter ones stay within their
registers."""

WORTH, SPILL_WORTH, CODE_SIZE_WORTH = 0.95, 0.6, 1.02
"""A split must project to less than this share of the whole's time.  Of a spilling kernel: projections were 1.3 to 2.1
times what was measured on an H100, so that less than 0.6 is sure.  Of a long one: a launch more is worth the seconds
that it takes to compile."""

XLA_WORTH, XLA_GAIN_US, GAIN_OF_TURN_US = 0.9, 2.0, 0.5
"""The same for XLA's fusions in the place of a healthy kernel, and what they must gain; the latter in each turn of a
loop: a cell of an LSTM with a barrier took 200 turns 0.5 ms longer on an H100 than two fusions.
Of kernels with barriers projections are up to a tenth too slow: a batch norm's two kernels took 0.9 of the time of one
where 0.8 is projected, those of a small norm's gradient as long as one where 0.9 is."""

DRAFT_SHARE = 0.8
"""A planned and compiled split takes at least this share of its draft's time.  For splits of spilling kernels of five
training steps it was 0.99 and more.  (Splits of kernels far from the speed of light gain up to 70 % by a search.)"""

SHORTER = 0.6
"""Share of a too long kernel's statements that one of its parts may have."""

MEMORY_WORTH, MEETING_WORTH = 1.1, 1.0
"""What a split may take, as a share of the whole's time, where the whole's scratch takes the program's memory above its
limit.  The latter of kernels that meet often: of 14 barriers one took 101 us on an H100 where 141 are projected."""

MUCH_MEMORY, MUCH_SHARE = 16 << 20, 0.1
"""Bytes above the limit from which a split may take as long as XLA's fusions.  A share of the limit, arguments counted,
is enough where the kernel does not meet often."""

LEAST_SAVED = 2 << 20
"""Bytes of scratch that are worth such a split."""

MOST_SAVED = 4
"""Kernels of a program that are looked at for their scratch."""

SAVING_STATEMENTS = (MAX_STATEMENTS, 600, 300, 150)
"""Statements of the parts that such a split tries.  Without the shorter ones the fusions are joined to nearly the whole
again, which does not fit, or not at all: four steps of a lattice took 1,039 us in 53 kernels, and 823 in six."""

ROUNDS = 3
"""How often a part may be split again."""

MakePlan = Callable[[Graph, Scope], Plan | None]
Finalize = Callable[[Plan], object]
"""Is told of a plan that will hardly be replaced."""

Projector = Callable[[Plan, Resources | None], Projection]
"""The projection of a plan's kernel, with what the CUDA compiler says of it where it was asked."""


class Symptom(enum.Enum):
    """What a plan can suffer from."""

    NO_PLAN = "no kernel"
    CODE_SIZE = "code size"
    SPILL = "register spill"
    OCCUPANCY = "occupancy"
    BARRIERS = "global barriers"
    FAR = "far from the speed of light"
    XLA = "slower than XLA's fusions"
    MEMORY = "memory"
    ASKED = "a directive"


_BY_LENGTH = frozenset({Symptom.NO_PLAN, Symptom.CODE_SIZE, Symptom.SPILL})
"""Symptoms of too much in one kernel: the parts must be shorter than the whole."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A symptom and its numbers."""

    symptom: Symptom
    detail: str

    def __str__(self) -> str:
        return f"{self.symptom.value}: {self.detail}"


UNPLANNED = Reason(Symptom.CODE_SIZE, "it is not planned as a whole")

SCRATCH_DETAIL = "{:.1f} MB of scratch at a peak of {:.1f} MB, of which {:.1f} are XLA's"


@dataclass(frozen=True, slots=True)
class Split:
    """A decision.  scope: what was looked at, and reason: why.  whole_us: infinite if it has no plan as a whole.
    parts: the stitch ops that replace it, none if it stays.  parts_us: the best split, as drafted where that was reason
    enough; infinite if none was found.  is_too_large: does it stay since no split that is worth it fits in memory?"""

    scope: str
    reason: Reason
    whole_us: float
    parts: tuple[str, ...]
    parts_us: float
    is_too_large: bool = False

    @property
    def undo(self) -> str:
        """The directive that has it decided the other way."""
        return f"keep {self.scope}" if self.parts else f"split {self.scope}"

    def __str__(self) -> str:
        what = f"split into {', '.join(self.parts)}" if self.parts else "kept whole"
        if self.is_too_large:
            what += ", as its parts would hold more than memory allows"
        return (
            f"{self.scope}: {self.reason}: {what} "
            f"(whole {self.whole_us:.2f} us, best split {self.parts_us:.2f} us)"
        )


@dataclass(frozen=True)
class PlannedScopes:
    """plans: one for each scope that needs a kernel.  splits: what was looked at, in order.
    left: scopes that need a kernel and have no plan, by name, each with the reason."""

    scopes: Scopes
    plans: tuple[Plan, ...]
    splits: tuple[Split, ...]
    left: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        decisions = [str(split) for split in self.splits] or ["no kernel shows a symptom"]
        return "\n".join([*decisions, *map(str, self.scopes.scopes)])


def count_at_once(kernel: k.Kernel) -> int:
    """Statements that may take registers from each other.  They are all of a kernel whose registers are bounded so that
    its blocks fit an SM together; of another kernel, its longest section."""
    statements = count_statements(kernel.body)
    if kernel.blocks_per_sm:
        return statements
    sections = [count_statements((s,)) for s in kernel.body if isinstance(s, k.Section)]
    return statements - sum(sections) + max(sections, default=0)


def work_of(plan: Plan) -> Work:
    """What the plan's kernel cannot do without."""
    return measure_work(plan.arrangement.graph, plan.scope.members)


def list_stored(plan: Plan | None) -> frozenset[str]:
    """The ops whose values the plan's kernel keeps in global memory for itself."""
    if plan is None:
        return frozenset()
    placed = plan.arrangement.placements.values()
    stored = frozenset(place.root.name for place in placed if place.stored)
    return stored - {*plan.scope.outputs, *plan.arrangement.groups.pieces}


def occupancy(plan: Plan, gpu: Gpu, projection: Projection) -> float:
    """Share of an SM's threads that can be resident."""
    return projection.blocks_per_sm * plan.kernel.block / gpu.max_threads_per_sm


def why_split(plan: Plan, gpu: Gpu, projection: Projection) -> Reason | None:
    """The symptom of a plan that is worth a look, None for a healthy one.

    projection: of its kernel, with the compiler's registers or estimated ones.
    """
    kernel, time_us = plan.kernel, projection.time_us
    statements = count_folded(kernel)
    if statements > LONG_CODE:
        detail = f"{statements} statements, at most {LONG_CODE} compile fast"
        return Reason(Symptom.CODE_SIZE, detail)
    how = "compiled" if projection.compiled else "estimated"
    if projection.spill_bytes >= SPILLED_BYTES:
        detail = f"{projection.spill_bytes} B a thread at {projection.registers} registers ({how})"
        return Reason(Symptom.SPILL, detail)
    share = occupancy(plan, gpu, projection)
    if share < LEAST_OCCUPANCY and kernel.grid >= gpu.sms:
        used = f"{projection.registers} registers ({how}) and {kernel.shared_bytes} B shared"
        return Reason(Symptom.OCCUPANCY, f"{used} leave {share:.0%} of an SM's threads")
    if kernel.global_barriers >= MANY_BARRIERS and projection.barriers_us > time_us * BARRIER_SHARE:
        spent = f"{kernel.global_barriers} take {projection.barriers_us:.1f} of {time_us:.1f} us"
        return Reason(Symptom.BARRIERS, spent)
    light_us = work_of(plan).bound_us(gpu)
    if time_us > FAR_FACTOR * light_us and time_us > light_us + FAR_US:
        detail = f"{time_us:.1f} us where {light_us:.1f} us are possible"
        return Reason(Symptom.FAR, detail)
    return None


@dataclass(frozen=True, slots=True)
class _Best:
    """The best split that was found for a structure.  limit: statements of a part.  cover, parts: of `scope`, as they
    are in `graph`.  parts_us: of all of them; as drafted where that was reason enough to keep the scope.
    reason, whole_us: why it was looked for, and the time of one kernel.  bound_us: what a split must stay below.
    scratch: bytes of one kernel."""

    limit: int
    cover: Cover
    graph: Graph
    scope: Scope
    parts: Scopes
    parts_us: float
    reason: Reason
    whole_us: float
    bound_us: float = math.inf
    scratch: int = 0

    @property
    def is_worth(self) -> bool:
        return self.parts_us < self.bound_us


@dataclass(frozen=True, slots=True)
class Decisions:
    """What was found of structures.  A program that is compiled again for less memory finds it again, with the same
    donated arguments.

    schedules: see Planner.  judged: projections.  drafted_us, drafted_scratch, planned_us: of parts.  best, unplanned:
    splits.  proposals, thrifty: XLA's fusions.  reasons: symptoms.
    """

    schedules: Decided = field(default_factory=dict)
    judged: dict[Structure, Projection] = field(default_factory=dict)
    drafted_us: dict[Structure, float] = field(default_factory=dict)
    drafted_scratch: dict[Structure, int] = field(default_factory=dict)
    planned_us: dict[Structure, float] = field(default_factory=dict)
    best: dict[Structure, _Best] = field(default_factory=dict)
    unplanned: dict[Structure, _Best] = field(default_factory=dict)
    proposals: dict[tuple[Structure, bool], tuple[Proposal, ...]] = field(default_factory=dict)
    thrifty: dict[Structure, tuple[Proposal, ...]] = field(default_factory=dict)
    reasons: dict[Structure, Reason | None] = field(default_factory=dict)


class _Splitter:
    """Plans scope after scope of one graph, which grows by repeated broadcasts."""

    def __init__(
        self,
        scopes: Scopes,
        gpu: Gpu,
        plan: MakePlan,
        draft: MakePlan,
        project: Projector,
        observe: Observe,
        finalize: Finalize | None,
        pool: CompilePool,
        faults: FaultLog,
        whole: Callable[[Scope], bool],
        divided: Callable[[Scope], bool],
        gain_us: float,
        most_bytes: float,
        found: Decisions,
    ) -> None:
        self.stays_whole, self.is_divided, self.gain_us = whole, divided, gain_us
        self.most_bytes, self.found = most_bytes, found
        self.scopes, self.gpu = scopes, gpu
        self.planner, self.draft, self.project, self.observe = plan, draft, project, observe
        self.finalize, self.pool, self.faults = finalize, pool, faults
        self.left: dict[str, str] = {}
        self.finalized: set[Structure] = set()
        self.plans: list[Plan] = []
        self.splits: list[Split] = []
        self.known: dict[tuple[Structure, Scope], Plan | None] = {}

    def start_planning(self, graph: Graph, scopes: Iterable[Scope], rounds: int = 0) -> None:
        """Begins to plan and judge scopes that will be asked for, those that take longest first.

        rounds: with some left it is looked for the best split of those with a symptom, too.
        """
        for scope in scopes:
            structure, work = structure_of(graph, scope), self.prepare
            if estimate_statements(graph, scope) > SURELY_LONG:
                if not rounds:
                    continue
                work = self.prepare_unplanned
            job = partial(work, graph, scope, structure, rounds)
            self.pool.start(structure, job, len(scope.members))

    def prepare(self, graph: Graph, scope: Scope, structure: Structure, rounds: int) -> None:
        """Plans and judges a scope; its kernel is compiled if it will do."""
        plan = self.find_plan(graph, scope, structure)
        if plan is None:
            return
        projection = self.find_projection(plan, structure)
        reason = self.find_reason(plan, structure, projection) if rounds else None
        reason = reason or why_split(plan, self.gpu, projection)
        if reason and rounds:
            whole_us = projection.time_us
            best = self.find_best(graph, scope, structure, reason, whole_us, plan)
            if best.is_worth:
                return
        if self.finalize and (reason is None or rounds) and structure not in self.finalized:
            self.finalized.add(structure)
            self.finalize(plan)

    def prepare_unplanned(
        self, graph: Graph, scope: Scope, structure: Structure, rounds: int
    ) -> None:
        """Plans and judges the parts of a scope that is surely too long for one kernel."""
        parts = self.find_unplanned(graph, scope, structure).parts
        self.start_planning(parts.graph, parts.scopes, rounds - 1)

    def judge(self, plan: Plan) -> Projection:
        """The projection, with the compiler's registers where they may be too many."""
        structure = structure_of(plan.arrangement.graph, plan.scope)
        self.pool.finish(structure)
        return self.find_projection(plan, structure)

    def find_reason(
        self, plan: Plan, structure: Structure, projection: Projection
    ) -> Reason | None:
        """A symptom; or that XLA's fusions may be faster, for all that is known without planning them.  It is looked
        for once in each structure."""
        if structure not in self.found.reasons:
            self.found.reasons[structure] = self.look_for_reason(plan, structure, projection)
        return self.found.reasons[structure]

    def look_for_reason(
        self, plan: Plan, structure: Structure, projection: Projection
    ) -> Reason | None:
        if reason := why_split(plan, self.gpu, projection):
            return reason
        bound_us = self.find_bound_us(Symptom.XLA, projection.time_us)
        if bound_us <= work_of(plan).bound_us(self.gpu):
            return None  # several kernels move no less
        proposals = self.find_proposals(plan.arrangement.graph, plan.scope, structure, plan)
        proposal = min(proposals, key=lambda p: p.least_us, default=None)
        if proposal is None or proposal.least_us >= bound_us:
            return None
        detail = (
            f"{projection.time_us:.1f} us where {len(proposal.fusions)} fusions may take "
            f"{proposal.least_us:.1f} us"
        )
        return Reason(Symptom.XLA, detail)

    def find_bound_us(self, symptom: Symptom, whole_us: float) -> float:
        """What a split must stay below."""
        match symptom:
            case Symptom.SPILL:
                return whole_us * SPILL_WORTH
            case Symptom.CODE_SIZE:
                return whole_us * CODE_SIZE_WORTH
            case Symptom.XLA:
                return min(whole_us * XLA_WORTH, whole_us - self.gain_us)
        return whole_us * WORTH

    def find_proposals(
        self, graph: Graph, scope: Scope, structure: Structure, whole: Plan | None = None
    ) -> tuple[Proposal, ...]:
        """What XLA would make of a scope, also where it ended at what the plan `whole` stores, and its steps; none that
        would take long to find, or are one fusion."""
        key = structure, whole is not None
        if key not in self.found.proposals:
            fusion = make_fusion_graph(graph, scope, self.gpu)
            stored = list_stored(whole)
            found = propose_each(graph, scope, fusion, self.gpu, stored)
            steps = propose_steps(fusion, read_vertices(graph, scope, fusion), self.gpu)
            self.found.proposals[key] = (*found, steps) if steps else found
        return self.found.proposals[key]

    def find_projection(self, plan: Plan, structure: Structure) -> Projection:
        if structure not in self.found.judged:
            projection = self.project(plan, None)
            in_doubt = projection.spill_bytes or count_at_once(plan.kernel) >= OBSERVED_STATEMENTS
            observed = in_doubt and count_folded(plan.kernel) <= LONG_CODE
            resources = self.observe(plan) if observed else None
            self.found.judged[structure] = (
                self.project(plan, resources) if resources else projection
            )
        return self.found.judged[structure]

    def make_plan(self, graph: Graph, scope: Scope) -> Plan | None:
        """The plan, made once for each scope, whatever graph it is in.  Raises IllegalProduct."""
        structure = structure_of(graph, scope)
        self.pool.finish(structure)
        return self.find_plan(graph, scope, structure)

    def find_plan(self, graph: Graph, scope: Scope, structure: Structure) -> Plan | None:
        key = structure, scope
        if key not in self.known:
            self.known[key] = self.planner(graph, scope)
        return self.known[key]

    def rate_draft(self, parts: Scopes, most_us: float) -> float:
        """The time of all kernels of a split without searching; infinite if it is none, a part has no plan, or it is
        more than `most_us`."""
        return sum_times(parts, self.time_draft, self.found.drafted_us, most_us)

    def time_draft(self, graph: Graph, scope: Scope) -> float:
        """The time of a draft; its scratch is noted.  Raises IllegalProduct."""
        structure = structure_of(graph, scope)
        plan = self.draft(graph, scope)
        self.found.drafted_scratch[structure] = plan.kernel.scratch_bytes if plan else 0
        return self.project(plan, None).time_us if plan else 0.0

    def time_plan(self, graph: Graph, scope: Scope) -> float:
        """The time of a plan.  Raises IllegalProduct."""
        plan = self.make_plan(graph, scope)
        return self.judge(plan).time_us if plan else 0.0

    def rate_parts(self, parts: Scopes) -> float:
        """The time of all kernels of a split as they will be."""
        self.start_planning(parts.graph, parts.scopes)
        return sum_times(parts, self.time_plan, self.found.planned_us)

    def add(self, scope: Scope, rounds: int) -> None:
        """The plan of a scope, or those of its parts; a part may be split `rounds` more times.  Where a fault stops it
        the scope has no plan and is among those left."""
        self.faults.attempt(
            lambda: self.add_plans(scope, rounds),
            lambda: self.leave(scope),
            stage="plan",
            subject=str(scope),
            cost="its ops are left to XLA",
        )

    def leave(self, scope: Scope) -> None:
        self.left[scope.name] = "an error inside astitch while its kernel was planned"

    def add_plans(self, scope: Scope, rounds: int) -> None:
        """What `add` does where no fault stops it."""
        whole_asked = rounds > 0 and self.stays_whole(scope)
        known = rounds and not whole_asked
        if known and (self.split_unplanned(scope, rounds) or self.split_as_known(scope, rounds)):
            return
        try:
            plan = self.make_plan(self.scopes.graph, scope)
        except IllegalProduct as error:
            reason = Reason(Symptom.NO_PLAN, str(error))
            if not rounds or not self.split(scope, reason, math.inf, rounds):
                raise
            return
        if plan is None:
            return
        if rounds and not whole_asked:
            whole = plan
            split = self.faults.attempt(
                lambda: self.split_plan(whole, rounds),
                lambda: False,
                stage="split",
                subject=str(scope),
                cost="it stays one kernel",
            )
            if split:
                return
        self.plans.append(plan)
        self.begin_to_finalize(plan)

    def split_plan(self, plan: Plan, rounds: int) -> bool:
        """Replaces a scope that has a plan by its parts, if the plan shows a symptom and the parts are faster."""
        projection = self.judge(plan)
        structure = structure_of(plan.arrangement.graph, plan.scope)
        found = self.find_reason(plan, structure, projection)
        if self.is_divided(plan.scope):
            found = Reason(Symptom.ASKED, "it asks for parts")
        return found is not None and self.split(plan.scope, found, projection.time_us, rounds, plan)

    def begin_to_finalize(self, plan: Plan) -> None:
        """Begins to compile the kernel of a plan in the background, once for its structure."""
        structure = structure_of(plan.arrangement.graph, plan.scope)
        if self.finalize and structure not in self.finalized:
            self.finalized.add(structure)
            self.pool.start(plan.kernel.name, partial(self.finalize, plan))

    def split_unplanned(self, scope: Scope, rounds: int) -> bool:
        """Replaces a scope by its parts of the largest gain, if it is surely too long for one kernel."""
        graph = self.scopes.graph
        statements = estimate_statements(graph, scope)
        if statements <= SURELY_LONG:
            return False
        structure = structure_of(graph, scope)
        self.pool.finish(structure)
        best = self.find_unplanned(graph, scope, structure)
        parts = self.divide(graph, scope, best)
        if len(parts.scopes) < 2:
            return False
        parts = self.divide_within_memory(scope, best) or parts
        detail = f"about {statements} statements, at most {LONG_CODE} compile fast"
        self.take(scope, Reason(Symptom.CODE_SIZE, detail), math.inf, parts, rounds)
        return True

    def find_unplanned(self, graph: Graph, scope: Scope, structure: Structure) -> _Best:
        """The split of the largest gain, or into its steps where they are faster; found once for each structure."""
        if structure not in self.found.unplanned:
            penalty = estimate_penalty(self.gpu, max_statements=UNSEEN_STATEMENTS)
            cover = choose_cover(graph, scope, self.gpu, penalty, width=1)
            parts = divide_scope(graph, scope, self.gpu, penalty, cover)
            if steps := _find_steps(graph, scope, self.gpu):
                stepped = divide_scope(graph, scope, self.gpu, penalty, steps)
                stepped_us = self.rate_draft(stepped, math.inf)
                if stepped_us < self.rate_draft(parts, stepped_us):
                    cover, parts = steps, stepped
            self.found.unplanned[structure] = _Best(
                UNSEEN_STATEMENTS, cover, graph, scope, parts, math.inf, UNPLANNED, math.inf
            )
        return self.found.unplanned[structure]

    def split_as_known(self, scope: Scope, rounds: int) -> bool:
        """Replaces a scope by its parts, if one of its structure was: then it needs no plan as a whole."""
        graph = self.scopes.graph
        structure = structure_of(graph, scope)
        self.pool.finish(structure)
        best = self.found.best.get(structure)
        if best is None or not best.is_worth:
            return False
        parts = self.divide_within_memory(scope, best)
        if parts is not None:
            self.take(scope, best.reason, best.whole_us, parts, rounds)
        return parts is not None

    def divide(self, graph: Graph, scope: Scope, best: _Best) -> Scopes:
        """The parts of a scope of the structure for which `best` was found, in a graph in which others may be divided
        since."""
        if best.graph is graph and best.scope == scope:
            return best.parts
        penalty = estimate_penalty(self.gpu, max_statements=best.limit)
        names = dict(zip(best.scope.members, scope.members, strict=True))
        cover = [[names[name] for name in part] for part in best.cover]
        return divide_scope(graph, scope, self.gpu, penalty, cover)

    def split(
        self, scope: Scope, reason: Reason, whole_us: float, rounds: int, whole: Plan | None = None
    ) -> bool:
        """Replaces a scope by its parts, if they are faster.  whole: the plan that it keeps otherwise."""
        graph = self.scopes.graph
        best = self.find_best(graph, scope, structure_of(graph, scope), reason, whole_us, whole)
        asked = reason.symptom is Symptom.ASKED and best.parts_us < math.inf
        parts = None
        if asked:
            parts = self.divide(graph, scope, best)
        elif best.is_worth:
            parts = self.divide_within_memory(scope, best)
        if parts is not None:
            self.take(scope, reason, whole_us, parts, rounds)
            return True
        if reason.symptom is not Symptom.XLA or best.parts_us < whole_us:
            kept = Split(scope.name, reason, whole_us, (), best.parts_us, best.is_worth)
            self.splits.append(kept)
        return False

    def find_best(
        self,
        graph: Graph,
        scope: Scope,
        structure: Structure,
        reason: Reason,
        whole_us: float,
        whole: Plan | None,
    ) -> _Best:
        """The best split, found once for each structure; its parts are not planned if their drafts are too slow
        already."""
        if structure in self.found.best:
            return self.found.best[structure]
        limit = MAX_STATEMENTS
        if reason.symptom in _BY_LENGTH:
            length = sum(make_fusion_graph(graph, scope, self.gpu).statements)
            limit = min(limit, math.ceil(SHORTER * length))
        penalty = estimate_penalty(self.gpu, max_statements=limit)
        as_xla = reason.symptom is Symptom.XLA
        bound_us = self.find_bound_us(reason.symptom, whole_us)
        most_us = bound_us / DRAFT_SHARE if as_xla else math.inf
        drafted_us = [most_us]

        def rate(parts: Scopes) -> float:
            drafted_us.append(self.rate_draft(parts, min(drafted_us)))
            return drafted_us[-1]

        proposals = self.find_proposals(graph, scope, structure, whole)
        cover = (
            choose_xla_cover(graph, scope, self.gpu, (penalty,), rate, proposals)
            if as_xla and proposals
            else choose_cover(graph, scope, self.gpu, penalty, latency=rate, proposals=proposals)
        )
        parts = divide_scope(graph, scope, self.gpu, penalty, cover)
        parts_us = self.rate_draft(parts, most_us)
        scratch = whole.kernel.scratch_bytes if whole else 0
        best = _Best(
            limit, cover, graph, scope, parts, parts_us, reason, whole_us, bound_us, scratch
        )
        if whole and bound_us <= best.parts_us:
            self.begin_to_finalize(whole)  # it will hardly be split
        hopeless = bound_us <= best.parts_us * DRAFT_SHARE
        if reason.symptom is Symptom.SPILL:
            hopeless &= best.parts_us < math.inf
        if not (hopeless and (as_xla or reason.symptom is Symptom.SPILL)):
            best = replace(best, parts_us=self.rate_parts(parts))
        self.found.best[structure] = best
        return best

    def save_memory(self) -> None:
        """Splits kernels whose scratch takes the program's peak above its limit, where parts take about as long."""
        kept = {plan.scope.name for plan in self.plans if self.stays_whole(plan.scope)}
        tried = set(kept)
        while len(tried) < MOST_SAVED + len(kept):
            use, plan = self.find_heaviest(tried)
            if plan is None:
                return
            tried.add(plan.scope.name)
            self.faults.attempt(
                partial(self.save_scratch, plan, use.peak),
                lambda: None,
                stage="split",
                subject=str(plan.scope),
                cost="it stays one kernel, and keeps its scratch",
            )

    def find_heaviest(self, tried: Collection[str]) -> tuple[MemoryUse, Plan | None]:
        """The program's use of memory, and the plan with scratch while most is alive; of those the most scratch.

        Only what is alive at the peak can lower it."""
        program = list_steps(self.scopes, self.list_scratch(), self.regions)
        use = schedule(program)
        plans = {plan.scope.name: plan for plan in self.plans}
        full = [
            (alive, program.steps[n])
            for n, alive in zip(use.order, use.alive, strict=True)
            if alive > self.most_bytes
        ]
        heavy = [
            (alive, step)
            for alive, step in full
            if step.scratch >= LEAST_SAVED and step.name in plans and step.name not in tried
        ]
        if not heavy:
            return use, None
        _, first = max(heavy, key=lambda found: (found[0], found[1].scratch))
        return use, plans[first.name]

    def save_scratch(self, whole: Plan, peak: int) -> None:
        """Replaces a plan by those of XLA's fusions, if they fit and take about as long.

        Fusions are joined again as long as that is faster, and they fit.
        """
        graph, scope, most_bytes = self.scopes.graph, whole.scope, self.most_bytes
        fits = max(most_bytes, peak - whole.kernel.scratch_bytes / 4)
        proposals = self.find_proposals(graph, scope, structure_of(graph, scope), whole)
        if not proposals:
            return
        whole_us = self.judge(whole).time_us
        meets = whole.kernel.global_barriers >= MANY_BARRIERS
        bound_us = whole_us * (MEETING_WORTH if meets else MEMORY_WORTH)
        given = sum(graph[name].array.bytes for name in graph.parameters)
        share = math.inf if meets else MUCH_SHARE * (given + most_bytes)
        if peak - most_bytes >= min(MUCH_MEMORY, share):
            bound_us = math.inf

        def rate(parts: Scopes) -> float:
            fitting = self.keeps_to(fits, scope, parts, drafted=False)
            fitting = fitting and self.keeps_to(fits, scope, parts)
            return self.rate_draft(parts, math.inf) if fitting else math.inf

        penalty = estimate_penalty(self.gpu)
        lengths = [estimate_penalty(self.gpu, max_statements=most) for most in SAVING_STATEMENTS]
        cover = choose_xla_cover(graph, scope, self.gpu, lengths, rate, proposals)
        parts = divide_scope(graph, scope, self.gpu, penalty, cover)
        parts_us = rate(parts)
        mega = [bytes_ / 1e6 for bytes_ in (whole.kernel.scratch_bytes, peak, most_bytes)]
        reason = Reason(Symptom.MEMORY, SCRATCH_DETAIL.format(*mega))
        if math.isinf(parts_us) or parts_us > bound_us:
            self.splits.append(Split(scope.name, reason, whole_us, (), parts_us))
            return
        self.take(scope, reason, whole_us, parts, 1)  # parts stay whole
        self.plans.remove(whole)

    @cached_property
    def regions(self) -> Mapping[str, int]:
        """See measure_regions; parts of stitch ops add none."""
        return measure_regions(self.scopes.graph)

    def list_scratch(self) -> dict[str, int]:
        return {p.scope.name: p.kernel.scratch_bytes for p in self.plans}

    def find_peak(self, scope: Scope, parts: Scopes) -> int:
        """The most bytes alive with these parts in the place of a scope, as they are drafted."""
        return schedule(self.list_divided(scope, parts)).peak

    def keeps_to(self, most: float, scope: Scope, parts: Scopes, *, drafted: bool = True) -> bool:
        """Is that at most so much?  drafted=False: as if no part had scratch, below which it does not stay."""
        return keeps_to(self.list_divided(scope, parts, drafted=drafted), most)

    def list_divided(self, scope: Scope, parts: Scopes, *, drafted: bool = True) -> MemorySteps:
        scratch = self.list_scratch()
        for part in parts.scopes if drafted else ():
            scratch[part.name] = self.find_scratch(parts.graph, part)
        return list_steps(replace_scope(self.scopes, scope.name, parts), scratch, self.regions)

    def find_scratch(self, graph: Graph, scope: Scope) -> int:
        """The bytes of scratch of a draft, made once for each structure; 0 where there is no plan."""
        structure = structure_of(graph, scope)
        if structure not in self.found.drafted_scratch:
            self.found.drafted_us[structure] = time_of(self.time_draft, graph, scope)
        return self.found.drafted_scratch.setdefault(structure, 0)

    def divide_within_memory(self, scope: Scope, best: _Best) -> Scopes | None:
        """The parts of the best split; others, where these would hand each other more than memory allows.  None: no
        split that fits is worth it."""
        graph = self.scopes.graph
        parts = self.divide(graph, scope, best)
        if math.isinf(self.most_bytes):
            return parts
        scratch = {**self.list_scratch(), scope.name: best.scratch}
        whole = schedule(list_steps(self.scopes, scratch, self.regions)).peak
        least = max(self.most_bytes, whole)
        handed = sum(list_handed(parts, scope))
        if whole + handed <= least or self.keeps_to(least, scope, parts):
            return parts
        known = self.find_proposals(graph, scope, structure_of(graph, scope))
        limit = max(least, self.find_peak_of_fusions(scope, known))
        thrifty = _find_thrifty(self, graph, scope)
        lower = max(least, self.find_peak_of_fusions(scope, thrifty)) if thrifty else limit
        fitting = None
        if lower < limit:
            fitting = _choose_fitting(self, scope, best, thrifty, lower)
        if fitting is None:
            fitting = _choose_fitting(self, scope, best, known, limit)
        return parts if fitting is None and math.isinf(best.whole_us) else fitting

    def find_peak_of_fusions(self, scope: Scope, proposals: Sequence[Proposal]) -> int:
        """The most bytes alive where fusions of the first proposal compute a scope; 0 where there is none."""
        parts = make_xla_parts(self.scopes.graph, scope, self.gpu, proposals[:1])
        return self.find_peak(scope, parts) if parts else 0

    def take(
        self, scope: Scope, reason: Reason, whole_us: float, parts: Scopes, rounds: int
    ) -> None:
        """Puts the parts in the place of the scope."""
        names = tuple(part.name for part in parts.scopes)
        self.splits.append(Split(scope.name, reason, whole_us, names, self.rate_parts(parts)))
        self.scopes = replace_scope(self.scopes, scope.name, parts)
        for part in parts.scopes:
            self.add(part, rounds - 1)


def _find_thrifty(splitter: _Splitter, graph: Graph, scope: Scope) -> tuple[Proposal, ...]:
    """See propose_thrifty; found once for each structure."""
    structure = structure_of(graph, scope)
    if structure not in splitter.found.thrifty:
        splitter.found.thrifty[structure] = propose_thrifty(graph, scope, splitter.gpu)
    return splitter.found.thrifty[structure]


def _choose_fitting(
    splitter: _Splitter, scope: Scope, best: _Best, proposals: Sequence[Proposal], limit: float
) -> Scopes | None:
    """The fastest parts with which at most so many bytes are alive; None: none of them is worth it."""
    graph, gpu = splitter.scopes.graph, splitter.gpu

    def rate(parts: Scopes) -> float:
        drafted_us = splitter.rate_draft(parts, best.bound_us)
        if math.isinf(drafted_us) or not splitter.keeps_to(limit, scope, parts):
            return math.inf
        return drafted_us

    penalty = estimate_penalty(gpu, max_statements=best.limit)
    cover = choose_cover(graph, scope, gpu, penalty, latency=rate, proposals=proposals)
    fitting = divide_scope(graph, scope, gpu, penalty, cover)
    return fitting if math.isfinite(rate(fitting)) else None


def _find_steps(graph: Graph, scope: Scope, gpu: Gpu) -> Cover:
    """The ops of each of a scope's steps (propose_steps); none where there is one, or one is too long to plan."""
    fusion = make_fusion_graph(graph, scope, gpu)
    proposal = propose_steps(fusion, read_vertices(graph, scope, fusion), gpu)
    parts = [[*each_vertex(part)] for part in proposal.fusions] if proposal else []
    if any(sum(fusion.statements[v] for v in part) > SURELY_LONG for part in parts):
        return []
    return [[name for v in part for name in fusion.members[v]] for part in parts]


def split_scopes(
    scopes: Scopes,
    gpu: Gpu,
    *,
    plan: MakePlan,
    project: Projector,
    draft: MakePlan | None = None,
    observe: Observe = lambda _: None,
    finalize: Finalize | None = None,
    pool: CompilePool | None = None,
    faults: FaultLog | None = None,
    most_bytes: float = math.inf,
    whole: Callable[[Scope], bool] = lambda scope: False,
    divided: Callable[[Scope], bool] = lambda scope: False,
    in_loop: bool = False,
    found: Decisions | None = None,
) -> PlannedScopes:
    """A plan for every scope; those with a symptom split where the parts project faster.

    draft: a quicker planner, to rank splits with.
    finalize: has the kernels of plans that will stay compiled meanwhile, one of each structure.
    pool: plans scopes before their turn, with the same result.
    most_bytes: that the program may take beside its arguments, as far as that is a matter of its kernels' scratch.
    in_loop: the kernels are launched in each turn of a loop.
    faults: keeps the errors that leave a scope without a plan; where it raises them, IllegalProduct for a scope that no
    kernel and no split of it can compute.
    whole: is a stitch op to stay whole?  divided: is it to be split, whatever that costs?
    found: gets what is found of structures, and has what an earlier call found.
    """
    splitter = _Splitter(
        scopes,
        gpu,
        plan,
        draft or plan,
        project,
        observe,
        finalize,
        pool or CompilePool(0),
        faults or FaultLog(),
        whole,
        divided,
        GAIN_OF_TURN_US if in_loop else XLA_GAIN_US,
        most_bytes,
        found or Decisions(),
    )
    splitter.start_planning(scopes.graph, scopes.scopes, ROUNDS)
    for scope in scopes.scopes:
        splitter.add(scope, ROUNDS)
    if most_bytes < math.inf:
        splitter.save_memory()
    return PlannedScopes(
        splitter.scopes, tuple(splitter.plans), tuple(splitter.splits), splitter.left
    )
