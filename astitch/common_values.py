"""Kernel statements -> the same, what several task loops of a level compute alike computed once before them all.

A task loop computes what all of its elements share before its first task: a learning rate, a norm over all tensors.  In
a kernel of many tensors that is the same in each loop, and no compiler sees it, for what the loops store might be what
they load.  Where blocks would come by it twice or more, it stands before the loops instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from astitch import kernel_ir as k

LEAST_STATEMENTS = 3
"""Of a value, with those that it is computed from: a single load is not worth a register in all loops."""

MOST_HELD = 8
"""Values that all loops of a level hold for each other."""

LEAST_TIMES = 2.0
"""How often a block comes by a value, on average."""


def share_values(
    body: Sequence[k.Statement], parameters: Set[str], blocks: int
) -> tuple[k.Statement, ...]:
    """The body of a kernel.  parameters: names of its arrays outside of shared memory.  blocks: of its grid."""
    shared: list[k.Statement] = []
    level: list[k.Statement] = []
    for statement in body:
        if isinstance(statement, k.Barrier) and statement.level == "global":
            shared += [*_share_in_level(level, parameters, blocks), statement]
            level = []
        else:
            level.append(statement)
    return (*shared, *_share_in_level(level, parameters, blocks))


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


Names = Mapping[tuple[int, str], str]
"""By loop and the name that a candidate has there, the name that it has in the first loop."""


def _share_in_level(
    level: Sequence[k.Statement], parameters: Set[str], blocks: int
) -> Sequence[k.Statement]:
    sections = [s for s in level if isinstance(s, k.Section)]
    if len(sections) < LEAST_TIMES:
        return level
    candidates, names = _find_candidates(sections, parameters, blocks)
    wanted = _choose(candidates)
    if not wanted:
        return level
    common = k.Common(tuple(c.statement for name, c in candidates.items() if name in wanted))
    return [
        common,
        *(_without(s, wanted, names) if isinstance(s, k.Section) else s for s in level),
    ]


def _find_candidates(
    sections: Sequence[k.Section], parameters: Set[str], blocks: int
) -> tuple[dict[str, _Candidate], Names]:
    """What each loop computes of nothing that its own level stores or that differs from thread to thread; operands
    first."""
    stored = {
        s.array for s in k.list_statements(sections) if isinstance(s, k.Store | k.StoreVector)
    }
    arrays = parameters - stored
    candidates: dict[str, _Candidate] = {}
    names: dict[tuple[int, str], str] = {}
    known: dict[k.Load | k.Value, str] = {}  # nameless
    for section in sections:
        times = _count_times(section, blocks)
        for statement in section.body:
            own = {name: names.get((section.number, name)) for name in k.list_read(statement)}
            operands = {name: first for name, first in own.items() if first}
            if _is_common(statement, arrays) and len(operands) == len(own):
                assert isinstance(statement, k.Load | k.Value)
                renamed = _rename(statement, operands)
                name = known.setdefault(replace(renamed, name=""), statement.name)
                found = candidates.setdefault(
                    name, _Candidate(renamed, frozenset(operands.values()))
                )
                found.times += times
                names[section.number, statement.name] = name
                for operand in found.operands:
                    candidates[operand].users.add(name)
            else:
                for operand in operands.values():
                    candidates[operand].held = True
    return candidates, names


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


def _rename(statement: k.Load | k.Value, names: Mapping[str, str]) -> k.Load | k.Value:
    def renamed(expr: k.Expr) -> k.Expr:
        if isinstance(expr, k.Call):
            return replace(expr, operands=tuple(map(renamed, expr.operands)))
        return k.Name(names[expr.name]) if isinstance(expr, k.Name) else expr

    if isinstance(statement, k.Load):
        return statement
    return replace(statement, expr=renamed(statement.expr))


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
    ends = [
        name
        for name, inner in behind.items()
        if len(inner) >= LEAST_STATEMENTS and not candidates[name].users & behind.keys()
    ]
    wanted = frozenset[str]()
    for name in sorted(ends, key=lambda name: -len(behind[name])):
        more = wanted | behind[name]
        held = (n for n in more if candidates[n].held or candidates[n].users - more)
        if len(tuple(held)) <= MOST_HELD:
            wanted = more
    return wanted


def _without(section: k.Section, wanted: Set[str], names: Names) -> k.Section:
    """The loop without the values that are computed before it, which keep the names that it has for them."""
    own = {
        name: first
        for (number, name), first in names.items()
        if number == section.number and first in wanted
    }
    computed = [s for s in section.body if isinstance(s, k.Load | k.Value) and s.name in own]
    moved = {s.name for s in computed}
    left = [s for s in section.body if not (isinstance(s, k.Load | k.Value) and s.name in moved)]
    read = set(k.list_read(tuple(left)))
    aliases = [
        k.Value(s.name, s.dtype, k.Name(own[s.name]))
        for s in computed
        if s.name in read and s.name != own[s.name]
    ]
    return replace(section, body=(*aliases, *left))
