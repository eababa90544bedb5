"""How much of a program's memory-intensive time runs in stitched kernels, and why the rest does not.

Takes a Compilation, hands on a Share.  All times are of a launch or turn as often as it is known to happen.  Stitched
kernels have their projection.  What is left has its speed of light, as one kernel for each part and reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from astitch.cost.call_times import project_call
from astitch.cost.projected_latency import project
from astitch.cost.speed_of_light import Work, measure_work
from astitch.device.gpu import Gpu
from astitch.errors import UnsupportedOp
from astitch.graph.fallback_operands import AS_ITS_OPERAND
from astitch.graph.ir import (
    IN_HOST,
    ArrayType,
    AttentionAttrs,
    CustomCallAttrs,
    Graph,
    NarrowProductAttrs,
    Node,
    OpaqueAttrs,
    RowRegionAttrs,
    TupleType,
)
from astitch.graph.ops import OPS, Kind
from astitch.graph.storage import stored_value
from astitch.loops.analysis import count_turns
from astitch.program.steps import FallbackStep, OutsideOp, ReferenceStep
from astitch.system.forks import ForkLock

if TYPE_CHECKING:
    from astitch.show.compilation import Compilation

LITTLE = 0.5
"""A program of which less than this share is stitched is spoken of."""

WORTH_SAYING_US = 20.0
"""If what is left takes so long: next to it the host's part of a call is no longer all."""

FEWEST_OPS = 3
"""If nothing of a program is stitched, and so many ops are left."""

MOST_LISTED = 8
"""Reasons, and ops of one, that are listed."""

NOT_ASKED = "outside of astitch.jit's functions"
"""The reason of what nobody wanted stitched."""

ONLY_MOVES = "it only moves elements"
SINGLE = "it works on single elements"
ONE_SIZE = "it has no reduction and results of one size"
AS_WELL = frozenset({ONLY_MOVES, SINGLE, ONE_SIZE})
"""Reasons to leave what XLA's fusions compute as well as kernels do."""


class LittleStitchedWarning(RuntimeWarning):
    """Less than half of a program's projected memory-intensive time runs in stitched kernels."""


@dataclass(frozen=True, slots=True)
class LeftPart:
    """What is left for one reason.  us: in one run of the program.  ops: their names."""

    reason: str
    us: float
    ops: tuple[str, ...]

    def __str__(self) -> str:
        listed = ", ".join(f"%{name}" for name in self.ops[:MOST_LISTED])
        more = len(self.ops) - MOST_LISTED
        return (
            f"{self.us:.1f} us: {self.reason} ({listed}{f' and {more} more' if more > 0 else ''})"
        )


@dataclass(frozen=True, slots=True)
class Share:
    """kernels: that are launched at different places of the program, loops that are one among them.

    stitched_us: their time in one run of the program.  left: the largest first.
    """

    kernels: int
    stitched_us: float
    left: tuple[LeftPart, ...]

    @property
    def left_us(self) -> float:
        return sum(part.us for part in self.left)

    @property
    def lost_us(self) -> float:
        """Of what is left, what a kernel might do better."""
        return sum(part.us for part in self.left if part.reason not in AS_WELL)

    @property
    def value(self) -> float:
        """Of all memory-intensive time, 0 to 1; 1 where there is none."""
        total = self.stitched_us + self.left_us
        return self.stitched_us / total if total else 1.0

    @property
    def headline(self) -> str:
        if not self.stitched_us + self.left_us:
            return "no memory-intensive time"
        return (
            f"{100 * self.value:.0f} % of the projected memory-intensive time "
            f"({self.stitched_us:.1f} of {self.stitched_us + self.left_us:.1f} us) runs in "
            f"{self.kernels} stitched {'kernel' if self.kernels == 1 else 'kernels'}"
        )

    @property
    def lines(self) -> list[str]:
        """The headline, and what is left."""
        lines = [self.headline, *(f"  left to XLA: {part}" for part in self.left[:MOST_LISTED])]
        if others := self.left[MOST_LISTED:]:
            us = sum(part.us for part in others)
            lines.append(f"  left to XLA: {us:.1f} us for {len(others)} more reasons")
        return lines


def measure_share(compilation: Compilation) -> Share:
    """The share of a compilation, the bodies of its loops and branches included."""
    kernels, stitched_us, parts = 0, 0.0, list[LeftPart]()
    for found, times in _walk(compilation, 1.0):
        gpu = found.gpu
        for plan in found.plans:
            if reason := found.refused.get(plan.kernel.name):
                names = [n for n in plan.scope.members if is_light(found.scopes.graph[n])]
                us = times * measure_part(found.scopes.graph, names, gpu)
                parts.append(LeftPart(reason, us, tuple(names)))
            else:
                kernels += 1
                stitched_us += times * project(plan.kernel, gpu, work=plan.work).time_us
        kernels += len(found.loop_us)
        stitched_us += times * sum(found.loop_us)
        for node in found.scopes.graph:
            if isinstance(node.attrs, RowRegionAttrs):
                kernels += 1
                operands = [found.scopes.graph[o].array for o in node.operands]
                stitched_us += times * project_call(node, operands, gpu)
        parts += (
            LeftPart(part.reason, times * part.us, part.ops) for part in _list_left(found, gpu)
        )
    return Share(kernels, stitched_us, _join(parts))


def _walk(compilation: Compilation, times: float) -> Iterator[tuple[Compilation, float]]:
    """A compilation and those of its bodies, with how often each runs."""
    yield compilation, times
    for body in compilation.bodies:
        if body.runs:
            yield from _walk(body.compilation, times * sum(body.runs.values()))


def _join(parts: Iterable[LeftPart]) -> tuple[LeftPart, ...]:
    """One part for each reason, the largest first."""
    joined: dict[str, LeftPart] = {}
    for part in parts:
        before = joined.get(part.reason, LeftPart(part.reason, 0.0, ()))
        joined[part.reason] = LeftPart(part.reason, before.us + part.us, before.ops + part.ops)
    return tuple(
        sorted((p for p in joined.values() if p.us), key=lambda part: (-part.us, part.reason))
    )


def _list_left(compilation: Compilation, gpu: Gpu) -> Iterator[LeftPart]:
    """What the steps of a program leave to XLA or the reference; loops that were compiled as bodies are not in it."""
    graph = compilation.scopes.graph
    taken = {owner for body in compilation.bodies for owner in body.runs}
    known: list[tuple[int, OutsideOp]] = []
    for number, step in enumerate(compilation.program.steps):
        if isinstance(step, FallbackStep):
            known += ((number, op) for op in step.ops)
        elif isinstance(step, ReferenceStep):
            known.append((number, OutsideOp(step.node.name, step.node.opcode, step.reason)))
    known = [(number, op) for number, op in known if _is_counted(op) and op.name in graph.nodes]
    homes = {op.name: (number, op.reason) for number, op in known}
    by_home: dict[tuple[int, str], list[str]] = {}
    for number, op in known:
        if is_light(graph[op.name]):
            reader = op.reason.removeprefix(AS_ITS_OPERAND)  # one fusion with it
            by_home.setdefault(homes.get(reader, (number, op.reason)), []).append(op.name)
    for (_, reason), names in by_home.items():
        yield LeftPart(reason, measure_part(graph, names, gpu), tuple(names))
    for _, op in known:
        node = graph[op.name]
        if node.regions and not is_light(node) and op.name not in taken:
            yield LeftPart(op.reason, measure_regions(graph, node, gpu), (op.name,))


def _is_counted(op: OutsideOp) -> bool:
    return op.reason != NOT_ASKED and not op.product


def measure_regions(graph: Graph, node: Node, gpu: Gpu) -> float:
    """Microseconds of the memory-intensive ops in a loop or branch that XLA runs."""
    us = 0.0
    for region, times in list_regions(graph, node):
        names = [inner.name for inner in region if is_light(inner)]
        us += times * measure_part(region, names, gpu)
        for inner in region:
            if inner.regions and not is_light(inner):
                us += times * measure_regions(region, inner, gpu)
    return us


def list_regions(graph: Graph, node: Node) -> list[tuple[Graph, float]]:
    """What a loop or conditional runs, and how often: a loop as often as is known, at least once; branches in turns."""
    if OPS[node.op].is_loop:
        turns = count_turns(graph, node)
        return [(region, float(turns[0] if turns else 1)) for region in node.regions[1:]]
    if OPS[node.op].kind is Kind.CONTROL:
        return [(region, 1.0 / len(node.regions)) for region in node.regions]
    return []


_CALLED = (CustomCallAttrs, AttentionAttrs, NarrowProductAttrs, RowRegionAttrs)
_LIGHT = (Kind.ELEMENTWISE, Kind.BROADCAST, Kind.INDEX, Kind.REDUCE)


def is_light(node: Node) -> bool:
    """Is it memory-intensive work?  Calls of others, communication and moves to the host are not."""
    arrays = node.type.elements if isinstance(node.type, TupleType) else (node.type,)
    if max((array.size for array in arrays), default=0) <= 1:
        return OPS[node.op].kind is Kind.REDUCE
    if isinstance(node.attrs, OpaqueAttrs):
        row = OPS.get(node.attrs.opcode)
        return row is not None and row.kind in _LIGHT and node.attrs.reason != IN_HOST
    kind = OPS[node.op].kind
    if kind is Kind.OTHER:
        called = isinstance(node.attrs, _CALLED)
        return not called and bool(node.operands)
    return kind in _LIGHT and not OPS[node.op].is_view and not OPS[node.op].is_bitcast


def measure_part(graph: Graph, names: Sequence[str], gpu: Gpu) -> float:
    """Microseconds of ops as one kernel: its speed of light.  XLA updates arrays where they lie."""
    if not names:
        return 0.0
    plain = [name for name in names if _has_plain_work(graph[name])]
    others = [name for name in names if not _has_plain_work(graph[name])]
    works = [measure_work(graph, plain)] if plain else []
    works += [_work_of_one(graph, graph[name]) for name in others]
    read, written = (sum(getattr(w, f) for w in works) for f in ("read_bytes", "written_bytes"))
    handed = _count_handed(graph, {*plain}, others)
    flops = sum(work.flops for work in works)
    return Work(read - handed, written - handed, flops).bound_us(gpu)


def _count_handed(graph: Graph, plain: set[str], others: Sequence[str]) -> int:
    """Bytes that element-wise ops give the others and nobody else: a scatter computes its updates."""
    given = {stored_value(graph, o) for name in others for o in graph[name].operands} & plain
    readers = {*plain, *others}

    def is_read_inside(name: str) -> bool:
        users = graph.users[name]
        inside = (u in readers or (OPS[graph[u].op].is_view and is_read_inside(u)) for u in users)
        return name not in graph.outputs and all(inside)

    return sum(_bytes(graph[name].type) for name in given if is_read_inside(name))


def _has_plain_work(node: Node) -> bool:
    row = OPS[node.op]
    return row.kind in _LIGHT and not row.writes_into


def _work_of_one(graph: Graph, node: Node) -> Work:
    """An op that nothing is known of but its arrays; of an update in place what is updated."""
    operands = [graph[operand].type for operand in node.operands]
    opcode = node.attrs.opcode if isinstance(node.attrs, OpaqueAttrs) else node.op
    row = OPS.get(opcode)
    if row is not None and row.writes_into:
        moved = sum(map(_bytes, operands[1:]))
        return Work(moved, moved, 0)
    return Work(sum(map(_bytes, operands)), _bytes(node.type), 0)


def _bytes(type_: ArrayType | TupleType) -> int:
    return sum(a.bytes for a in (type_.elements if isinstance(type_, TupleType) else (type_,)))


# ---- what is said of it ------------------------------------------------------------------------------------------

_told: set[str] = set()
_lock = ForkLock()

ADVICE = """\
  explain() of the compiled function, or of its entry in astitch.report(), lists all of it with the reasons.  Move the
  largest part out of the function, or write it with ops that kernels compute; else XLA computes it as ever.
  strict=0.9 raises where less than 90 % is stitched; this is said once for each function"""


def warn_of_little(name: str, compilation: Compilation, stacklevel: int = 2) -> None:
    """Says once for each function (LittleStitchedWarning) that less than half of its time is stitched.

    name: the function's.  Programs of little memory-intensive time are not spoken of, nor those of an op or two, as of
    jnp.sort: nothing could be stitched in them.  What XLA computes as well as a kernel does is not missed.
    """
    share = compilation.share
    few = not share.kernels and sum(len(part.ops) for part in share.left) < FEWEST_OPS
    mostly = share.lost_us <= (1 - LITTLE) * (share.stitched_us + share.left_us)
    if mostly or share.lost_us < WORTH_SAYING_US or few:
        return
    with _lock:
        if name in _told:
            return
        _told.add(name)
    said = "\n".join([f"astitch: {name}: {share.lines[0]}", *share.lines[1:], ADVICE])
    warnings.warn(said, LittleStitchedWarning, stacklevel=stacklevel + 1)


def is_whole(strict: bool | float) -> bool:
    """Does strict forbid whatever only XLA computes?"""
    return strict is True


def least_share(strict: bool | float) -> float:
    """The share of the memory-intensive time that strict wants stitched; 0 where it names none."""
    return 0.0 if isinstance(strict, bool) else float(strict)


def refuse_less(compilation: Compilation, least: float) -> None:
    """Raises UnsupportedOp if less than a share of the projected memory-intensive time is stitched.

    least: 0 to 1.
    """
    if not least:
        return
    share = compilation.share
    if share.value < least:
        raise UnsupportedOp(
            "\n".join(
                [
                    f"program {compilation.program.name}: strict={least:g} was asked for, and {share.lines[0]}",
                    *share.lines[1:],
                    "  rewrite what is left, or ask for less",
                ]
            )
        )
