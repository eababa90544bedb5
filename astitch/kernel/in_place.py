"""Statements -> may a kernel write a result over an argument: the proof that no thread reads what another has written.

Takes a pair of a kernel's parameters, answers from the statements that load the one and store the other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from astitch.graph.index import Symbol
from astitch.kernel import kernel_ir as k
from astitch.kernel.visit_statements import find_own_names, list_statements

LEAST_BYTES_AGAIN = 16 << 20
"""The least size of a temporary array whose memory a result takes over.  Below, the peak hardly moves, and two pointers
that may be one leave the compiler less freedom."""

LEAST_BYTES_OVER = 1 << 20
"""The same in a program that would take more memory than it may."""


@dataclass(frozen=True, slots=True)
class InPlace:
    """A kernel that may write its argument `written` over its argument `read`, which was donated."""

    read: int
    written: int


def writes_where_it_read(read: str, written: str, uses: Mapping[str, Uses]) -> bool:
    """Is each element of one parameter read only by the thread that writes that element of the other, and before?

    Seen from the statements: a load of the one and a store of the other stand in one body, at one position, the load
    first; or in two nests of equal loops and guards, in the turn of a task, or the load in one that is fetched ahead of
    that turn.  The positions must be the same function of these loops.  (Each element is stored once: that is the law
    of mappings.  So no other store meets the load, and whoever reads the element again wants the new one.)  Where only
    some threads store, what the others loaded, maybe too late, must be of no use to them.
    What is loaded before a barrier of the grid that all stores come behind may be loaded anywhere.
    """
    loads = uses[read]
    stores = [
        use for use in uses[written] if not isinstance(use[-1].statement, k.Load | k.LoadVector)
    ]
    if not stores or not loads:
        return False
    return all(
        all(_meets_before(load, store) for store in stores)
        or any(_precedes(load[-1], store) or _in_equal_nests(load, store) for store in stores)
        for load in loads
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """A statement, and where it stands in its body."""

    body: tuple[Any, ...]
    number: int

    @property
    def statement(self) -> Any:
        return self.body[self.number]


_STEPS = ("k", "l")
"""The names of the steps in which a thread walks over the rows and columns of a task."""

_WALKS = (*_STEPS, "turn")
"""The variables of loops over them."""

Uses = list[tuple[_Place, ...]]
"""The statements that name an array, each behind its enclosing statements, the outermost first."""


def find_uses(body: tuple[Any, ...], names: Collection[str]) -> dict[str, Uses]:
    """The uses of each array."""
    found: dict[str, Uses] = {name: [] for name in names}
    _collect_uses(body, (), found)
    return found


def _collect_uses(
    body: tuple[Any, ...], around: tuple[_Place, ...], found: dict[str, Uses]
) -> None:
    for number, statement in enumerate(body):
        place = (*around, _Place(body, number))
        for inside in statement.bodies:
            _collect_uses(inside, place, found)
        for name in find_own_names(statement) & found.keys():
            found[name].append(place)


def _meets_before(load: tuple[_Place, ...], store: tuple[_Place, ...]) -> bool:
    """Do all threads of the grid wait for each other between load and store?"""
    between = store[0].body[load[0].number + 1 : store[0].number]
    return any(isinstance(s, k.Barrier) and s.level == "global" for s in between)


def _precedes(load: _Place, store: tuple[_Place, ...]) -> bool:
    """Does the thread that stores an element load it before, and nobody use a load that may come later?"""
    if not _moves_alike(load.statement, store[-1].statement):
        return False
    for depth, place in enumerate(store):
        if place.body is load.body and load.number < place.number:
            inside = store[depth:]
            if len(inside) == 1:
                return True
            guard = place.statement
            return (
                len(inside) == 2
                and isinstance(guard, k.If)
                and _stays_under(load.body[load.number + 1 :], {load.statement.name}, guard.guards)
            )
    return False


def _stays_under(body: Sequence[Any], tainted: set[str], guards: tuple[Any, ...]) -> bool:
    """Do only bodies under these guards use the names, and what is computed from them?  tainted: grows."""
    for statement in body:
        if not _names(statement, tainted):
            continue
        match statement:
            case k.If() if statement.guards == guards:
                pass
            case k.Value(name=name) | k.StoreLane(vector=name):
                tainted.add(name)
            case k.Loop():
                if not _stays_under(statement.body, tainted, guards):
                    return False
            case _:
                return False
    return True


def _in_equal_nests(load: tuple[_Place, ...], store: tuple[_Place, ...]) -> bool:
    """Do load and store stand in nests of one task, the load's first, that visit the same positions in each thread?"""
    depth = 0
    while load[depth].body is store[depth].body and load[depth].number == store[depth].number:
        depth += 1
        if depth == min(len(load), len(store)):
            return False
    if load[depth].body is not store[depth].body:
        return False
    one, other = load[depth].statement, store[depth].statement
    # Fetched ahead of the task's turn, or a turn before the one that stores.
    ahead = isinstance(one, k.Prefetch) or (
        isinstance(one, k.Current) and isinstance(other, k.Previous)
    )
    if load[depth].number > store[depth].number and not ahead:
        return False
    turns = any(isinstance(place.statement, k.TaskLoop) for place in store[:depth])
    if not turns and not (ahead and isinstance(other, k.TaskLoop)):
        return False
    own = store[depth].body[: store[depth].number] if turns and isinstance(one, k.Prefetch) else ()
    read, written = _render_nest(load[depth:]), _render_nest(store[depth:], own)
    return read is not None and read == written


def _render_nest(path: tuple[_Place, ...], before: tuple[Any, ...] = ()) -> tuple[Any, ...] | None:
    """Guards, loops and the position, in which each index that the nest defines is written out; None where something
    else stands in it.

    Left out is what says of which task a body is, and over which of its steps a thread walks, in which order: an
    element has one task, thread and step.
    before: statements that define indices of the task.
    """
    known: dict[str, Any] = {}
    rendered: list[Any] = []
    _add_indices(before, known)
    for depth, place in enumerate(path[:-1]):
        match statement := place.statement:
            case k.Loop(variable=variable) if variable in _WALKS:
                pass
            case k.Loop(variable=variable):
                known[variable] = ("turn", len(rendered))
                rendered.append(("loop", statement.count, _render(statement.bound, known)))
            case k.If(guards=guards):
                rendered.append(("if", _render(guards, known)))
            case k.TaskLoop() | k.Current() | k.Previous() | k.Prefetch():
                pass
            case _:
                return None
        inner = path[depth + 1]
        _add_indices(inner.body[: inner.number], known)
    match path[-1].statement:
        case k.Load(position=position) | k.Store(position=position):
            return (*rendered, 1, _render(position, known))
        case k.LoadVector(position=position, width=w) | k.StoreVector(position=position, width=w):
            return (*rendered, w, _render(position, known))
        case k.Fetch(position=position, width=w):
            # In such a nest into registers, for a later phase.
            return (*rendered, w, _render(position, known))
    return None


def _add_indices(body: Sequence[Any], known: dict[str, Any]) -> None:
    """known: gets the indices that statements define, written out."""
    for statement in body:
        if isinstance(statement, k.Index) and statement.name not in _STEPS:
            known[statement.name] = _render(statement.form, known)


def _render(value: Any, known: Mapping[str, Any]) -> Any:
    """A part of a statement as nested tuples.  known: what stands for a symbol."""
    if isinstance(value, Symbol):
        return known.get(value.name, value.name)
    if isinstance(value, tuple):
        return tuple(_render(part, known) for part in value)
    if is_dataclass(value):
        names = (field.name for field in fields(value) if field.compare)
        return (type(value).__name__, *(_render(getattr(value, name), known) for name in names))
    return value


def _moves_alike(load: k.Statement, store: k.Statement) -> bool:
    match load, store:
        case k.Load(position=a), k.Store(position=b):
            return a == b
        case k.LoadVector(position=a, width=w), k.StoreVector(position=b, width=v):
            return a == b and w == v
    return False


def _names(statement: k.Statement, names: Collection[str]) -> bool:
    """Does a statement, or one inside of it, name one of these?"""
    return any(not find_own_names(s).isdisjoint(names) for s in list_statements((statement,)))
