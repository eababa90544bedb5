"""Kernel statements -> the same, what several task loops of a level compute alike computed once before them all.

A task loop computes what all of its elements share before its first task: a learning rate, a norm over all tensors.  In
a kernel of many tensors that is the same in each loop, and as long as the loops themselves.  Where blocks would come by
it twice or more, it stands before the loops instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace

from astitch.kernel import kernel_ir as k
from astitch.kernel.visit_statements import find_read, find_written, rename_read

LEAST_STATEMENTS = 3
"""The fewest statements of a common value, with those that it is computed from.  A single load is not worth a register
in all loops."""

MOST_HELD = 8
"""Values that all loops of a level hold for each other."""

LEAST_TIMES = 2.0
"""How often a block comes by a value, on average."""


def share_values(
    body: Sequence[k.Statement],
    parameters: Set[str],
    blocks: int,
    written: Set[str] | None = None,
) -> tuple[k.Statement, ...]:
    """The body of a kernel.  parameters: names of its arrays outside of shared memory.  blocks: of its grid.
    written: the arrays that some loop of the kernel stores to; None: perhaps all."""
    written = parameters if written is None else written
    shared: list[k.Statement] = []
    level: list[k.Statement] = []
    for statement in body:
        if isinstance(statement, k.Barrier) and statement.level == "global":
            shared += [*_share_in_level(level, parameters, blocks, written), statement]
            level = []
        else:
            level.append(statement)
    return (*shared, *_share_in_level(level, parameters, blocks, written))


@dataclass(slots=True)
class _Candidate:
    """A value that loops compute before their first task.

    statement: of the first of them, in the names that it has there.  operands: the candidates that it is computed from.
    times: how often a block comes by it.  users: candidates that are computed from it; held: a loop reads it otherwise.
    """

    statement: k.Load | k.Value
    operands: frozenset[str]
    times: float = 0.0
    users: set[str] = field(default_factory=set)
    held: bool = False


@dataclass(slots=True)
class _Loop:
    """A task loop.  names: of its candidates, and how the first loop that has one calls it; others: the statements that
    are none; read: what these read."""

    section: k.Section
    names: dict[str, str] = field(default_factory=dict)
    others: list[k.Statement] = field(default_factory=list)
    read: set[str] = field(default_factory=set)


def _share_in_level(
    level: Sequence[k.Statement], parameters: Set[str], blocks: int, written: Set[str]
) -> Sequence[k.Statement]:
    sections = [s for s in level if isinstance(s, k.Section)]
    if len(sections) < LEAST_TIMES:
        return level
    candidates, loops = _find_candidates(sections, parameters, blocks, written)
    if all(candidate.times < LEAST_TIMES for candidate in candidates.values()):
        return level
    for loop in loops:
        loop.read = find_read(*loop.others)
        for name in loop.read & loop.names.keys():
            candidates[loop.names[name]].held = True
    wanted = _choose(candidates)
    if not wanted:
        return level
    common = k.Common(tuple(c.statement for name, c in candidates.items() if name in wanted))
    rewritten = {loop.section.number: _without(loop, wanted) for loop in loops}
    return [
        common,
        *(rewritten[s.number] if isinstance(s, k.Section) else s for s in level),
    ]


def _find_candidates(
    sections: Sequence[k.Section], parameters: Set[str], blocks: int, written: Set[str]
) -> tuple[dict[str, _Candidate], list[_Loop]]:
    """What each loop computes of nothing that its own level stores or that differs from thread to thread; operands
    first."""
    loaded = {s.array for section in sections for s in section.body if isinstance(s, k.Load)}
    # To look through all loops takes longer than what follows, and an optimizer's rate is an argument.
    arrays = parameters - find_written(sections) if loaded & written else loaded & parameters
    candidates: dict[str, _Candidate] = {}
    known: dict[tuple[object, ...], str] = {}  # nameless
    loops: list[_Loop] = []
    for section in sections:
        loop = _Loop(section)
        for statement in section.body:
            read = find_read(statement) if _is_common(statement, arrays) else None
            if read is None or not read <= loop.names.keys():
                loop.others.append(statement)
                continue
            assert isinstance(statement, k.Load | k.Value)
            operands = frozenset(loop.names[name] for name in read)
            own = all(loop.names[name] == name for name in read)
            renamed = statement if own else rename_read(statement, loop.names)
            nameless = (getattr(renamed, f.name) for f in fields(renamed) if f.name != "name")
            name = known.setdefault((type(renamed), *nameless), statement.name)
            candidates.setdefault(name, _Candidate(renamed, operands))
            for operand in operands:
                candidates[operand].users.add(name)
            loop.names[statement.name] = name
        # Once for each loop, however often it renders a value: what that is computed from is in as many loops.
        times = _count_times(section, blocks)
        for name in set(loop.names.values()):
            candidates[name].times += times
        loops.append(loop)
    return candidates, loops


def _is_common(statement: k.Statement, arrays: Set[str]) -> bool:
    """Is what it computes the same in all threads, if its operands are?  arrays: those that no loop stores to."""
    match statement:
        case k.Load(array=array, position=position):
            return array in arrays and not position.terms
        case k.Value(expr=expr):
            return _is_of_names(expr)
    return False


def _is_of_names(expr: k.Expr) -> bool:
    if isinstance(expr, k.Call):
        return all(map(_is_of_names, expr.operands))
    return isinstance(expr, k.Name | k.Number)


def _count_times(section: k.Section, blocks: int) -> float:
    """How often a block comes by what stands before the loop, on average: those without a task may pass it by."""
    loop = next((s for s in section.body if isinstance(s, k.TaskLoop)), None)
    return min(loop.tasks / blocks, 1.0) if loop is not None and loop.once else 1.0


def _choose(candidates: Mapping[str, _Candidate]) -> frozenset[str]:
    """The values to share, with all that they are computed from."""
    behind: dict[str, frozenset[str]] = {}  # with what each is computed from
    for name, candidate in candidates.items():
        if candidate.times >= LEAST_TIMES:
            inner = (behind[operand] for operand in candidate.operands)
            behind[name] = frozenset({name}).union(*inner)

    def is_end(name: str) -> bool:
        return len(behind[name]) >= LEAST_STATEMENTS

    ends = [name for name in behind if is_end(name) and not candidates[name].users & behind.keys()]
    wanted = frozenset[str]()
    tried = set(ends)
    while ends:
        ends.sort(key=lambda name: len(behind[name]))
        name = ends.pop()
        more = wanted | behind[name]
        held = (n for n in more if candidates[n].held or candidates[n].users - more)
        if len(tuple(held)) <= MOST_HELD:
            wanted = more
        else:  # a part of it may do
            parts = {o for o in candidates[name].operands - tried if is_end(o)}
            ends += sorted(parts)
            tried |= parts
    return wanted


def _without(loop: _Loop, wanted: Set[str]) -> k.Section:
    """The loop without the values that are computed before it.  They keep their names."""
    body: list[k.Statement] = []
    left = set(loop.read)
    for statement in reversed(loop.section.body):  # readers first
        if not isinstance(statement, k.Load | k.Value) or statement.name not in loop.names:
            body.append(statement)
            continue
        first = loop.names[statement.name]
        if first not in wanted:
            body.append(statement)
            left |= find_read(statement)
        elif statement.name in left and statement.name != first:
            body.append(k.Value(statement.name, statement.dtype, k.Name(first)))
    return replace(loop.section, body=tuple(reversed(body)))
