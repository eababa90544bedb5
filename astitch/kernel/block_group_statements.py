"""Statements by which the members of a block group exchange the states of a reduction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from astitch.graph.index import Linear
from astitch.kernel.statement import (
    NAMES_OF_A_TASK,
    Body,
    Define,
    Effect,
    Held,
    Nest,
    Statement,
    Together,
    Use,
    evaluate_all,
)


@dataclass(frozen=True, slots=True)
class Total:
    """State of `reducer` that the gathering threads of a Meeting find in `found` and every thread gets in `state`,
    through the shared states `slot`."""

    found: str
    state: str
    reducer: int
    slot: str


@dataclass(frozen=True, slots=True)
class Area:
    """Where the members of a block group exchange the states of one reduction: `results` elements with `parts` parts
    each.

    It starts `offset` tagged words after the words of the grid's barrier; a state takes `words` of them.  The parts
    of an element lie side by side, or with elements_inside all elements of a part.
    """

    offset: int
    results: int
    parts: int
    words: int
    elements_inside: bool = False

    @property
    def strides(self) -> tuple[int, int]:
        """Tagged words from one element to the next, and from one part to the next."""
        if self.elements_inside:
            return self.words, self.results * self.words
        return self.parts * self.words, self.words


@dataclass(frozen=True, slots=True)
class Publish(Statement):
    """Part number `part` of result `element` is state[at], for all members of the block group."""

    area: Area
    element: Linear
    part: Linear
    state: str
    at: Linear
    reducer: int

    def effects(self) -> Iterator[Effect]:
        yield Use(self.state, Held.STATE)
        yield from evaluate_all((self.element, self.part, self.at))


@dataclass(frozen=True, slots=True)
class Collect(Statement):
    """state[at] joins parts rank, rank + members ... of result `element`, each as soon as its block has published
    it."""

    area: Area
    element: Linear
    state: str
    at: Linear
    reducer: int
    members: int
    rank: Linear

    def effects(self) -> Iterator[Effect]:
        yield Use(self.state, Held.STATE)
        yield from evaluate_all((self.element, self.rank, self.at))


@dataclass(frozen=True, slots=True)
class Meeting(Nest):
    """The warps of a block gather what the blocks of a group published `delay` tasks ago.  Each of the `packed` rows of
    a task has one warp, in turns.

    body: what a warp does for row `to`.
    """

    blocks: int
    delay: int
    packed: int
    body: tuple[Statement, ...]
    totals: tuple[Total, ...]

    def effects(self) -> Iterator[Effect]:
        yield Together("a meeting of blocks where not all threads come by")
        yield Body(self.body, ("task", "to"), uniform=True, hidden=(*NAMES_OF_A_TASK, "to"))
        for total in self.totals:
            yield Define(total.state, Held.STATE)
