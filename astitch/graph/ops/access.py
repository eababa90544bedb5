"""What an element of an op's result is computed from: which operands, at which index, under which guard."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from astitch.graph import index as ix
from astitch.graph.index import Linear, Symbol
from astitch.graph.ir import Graph, Node

Index = tuple[Linear, ...]


@dataclass(frozen=True, slots=True)
class Within:
    """low <= form < high."""

    form: Linear
    low: int
    high: int

    def verdict(self) -> bool | None:
        """True or False when the bounds of the form decide it, else None."""
        least, most = ix.bounds(self.form)
        if self.low <= least and most < self.high:
            return True
        return False if most < self.low or least >= self.high else None


@dataclass(frozen=True, slots=True)
class Divisible:
    """form % by == 0, for a form that is not negative."""

    form: Linear
    by: int

    def verdict(self) -> bool | None:
        rest = ix.modulo(self.form, self.by)
        return rest.constant == 0 if rest.is_constant else None


Guard = Within | Divisible


@dataclass(frozen=True, slots=True)
class Read:
    """operand is needed at index."""

    operand: str
    index: Index


@dataclass(frozen=True, slots=True)
class Dynamic:
    """symbol = the value of operand at index, clamped to [0, symbol.extent - 1]: a start index known at run time."""

    symbol: Symbol
    operand: str
    index: Index


@dataclass(frozen=True, slots=True)
class Choice:
    """If all guards hold, the value is computed from these reads."""

    guards: tuple[Guard, ...]
    reads: tuple[Read, ...]


@dataclass(frozen=True, slots=True)
class Access:
    """What a value at an index is made of.  The first choice whose guards hold applies; the last has none."""

    choices: tuple[Choice, ...]
    dynamics: tuple[Dynamic, ...] = ()


def forward(operand: str, index: Iterable[Linear]) -> Access:
    return Access((Choice((), (Read(operand, tuple(index)),)),))


def decide(choices: Iterable[Choice], dynamics: tuple[Dynamic, ...] = ()) -> Access:
    """Drop guards that always hold and choices that never apply."""
    kept = []
    for choice in choices:
        verdicts = [(guard, guard.verdict()) for guard in choice.guards]
        if any(v is False for _, v in verdicts):
            continue
        kept.append(Choice(tuple(g for g, v in verdicts if v is None), choice.reads))
        if not kept[-1].guards:
            break
    return Access(tuple(kept), dynamics)


def read_at_same_index(graph: Graph, node: Node, index: Index) -> Access:
    """Element-wise; clamp's bounds and select's predicate may be scalars."""
    nodes, rank = graph.nodes, len(index)
    reads = [Read(o, index if nodes[o].array.rank == rank else ()) for o in node.operands]
    return Access((Choice((), tuple(reads)),))
