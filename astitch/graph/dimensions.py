"""Which dimensions of which nodes are the same loop: Graph -> Dimensions.

Every dimension of every node becomes a row of *atoms* (major to minor).  Element-wise ops, broadcasts,
transposes, reduces and whole-dimension slices identify atoms of operand and result; a reshape splits them
until both sides agree.  One thread can compute two nodes at one index if their atoms agree.  The propagation of a
thread mapping (paper section 4.3) asks for that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from astitch.graph import index as ix
from astitch.graph.index import Linear, Symbol
from astitch.graph.ir import ArrayType, Graph, Node, SliceAttrs, TupleType
from astitch.graph.ops import OPS, Kind

Atoms = tuple[Symbol, ...]

MOST_ALIGNED = 4
"""Rows of other arrays that are looked at for each value."""


def array_of(node: Node) -> ArrayType:
    """The (first) result array of a node; all results of a variadic reduce share one shape."""
    return node.type.elements[0] if isinstance(node.type, TupleType) else node.type


def is_uniform(graph: Graph, name: str) -> bool:
    """A scalar repeated: it has one value at every index, so its readers share no loop through it."""
    node = graph[name]
    return OPS[node.op].is_broadcast and array_of(graph[node.operands[0]]).size == 1


def is_embedded(graph: Graph, name: str) -> bool:
    """A value that its index alone tells: a scalar constant, an iota, or one of them moved and repeated.

    Every reader writes it into its own text; it has a buffer only where a library or the caller wants one.
    """
    return name in graph.embedded


@dataclass(frozen=True)
class Dimensions:
    """atoms[node][d] = the atoms of dimension d, major to minor; empty for an extent of 1."""

    atoms: Mapping[str, tuple[Atoms, ...]]

    def space(self, node: str) -> Atoms:
        """All atoms of a node, major to minor: its iteration space."""
        return tuple(atom for dimension in self.atoms[node] for atom in dimension)

    def canonical_index(self, node: str) -> tuple[Linear, ...]:
        """The index at which a thread that stands at the atoms computes the node."""
        index = []
        for dimension in self.atoms[node]:
            position = ix.ZERO
            for atom in dimension:
                position = ix.add(ix.scale(position, atom.extent), ix.of_symbol(atom))
            index.append(position)
        return tuple(index)


class _Union:
    """Union-find over atoms, in which an atom may also be split into a major and a minor part."""

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.extent: list[int] = []
        self.parts: list[tuple[int, int] | None] = []
        self.nodes: list[set[str]] = []

    def fresh(self, extent: int, nodes: Iterable[str]) -> int:
        self.parent.append(len(self.parent))
        self.extent.append(extent)
        self.parts.append(None)
        self.nodes.append(set(nodes))
        return len(self.parent) - 1

    def root(self, atom: int) -> int:
        while self.parent[atom] != atom:
            self.parent[atom] = self.parent[self.parent[atom]]
            atom = self.parent[atom]
        return atom

    def leaves(self, atoms: Iterable[int]) -> list[int]:
        found: list[int] = []
        for atom in atoms:
            root = self.root(atom)
            parts = self.parts[root]
            found.extend([root] if parts is None else self.leaves(parts))
        return found

    def split(self, atom: int, minor: int) -> None:
        """Cut a leaf into (extent / minor, minor)."""
        self.parts[atom] = (
            self.fresh(self.extent[atom] // minor, self.nodes[atom]),
            self.fresh(minor, self.nodes[atom]),
        )

    def may_merge(self, a: int, b: int) -> bool:
        """May two leaves be one?  No node may have one atom twice."""
        a, b = self.root(a), self.root(b)
        return a == b or self.nodes[a].isdisjoint(self.nodes[b])

    def merge(self, a: int, b: int) -> bool:
        """Make two leaves one; refused when a node would then have one atom twice."""
        if not self.may_merge(a, b):
            return False
        a, b = self.root(a), self.root(b)
        if a == b:
            return True
        if len(self.nodes[a]) < len(self.nodes[b]):
            a, b = b, a
        self.parent[b] = a
        self.nodes[a] |= self.nodes[b]
        return True

    def merge_rows(self, one: Sequence[int], other: Sequence[int]) -> None:
        """Make two rows of leaves one, if the lengths are the same and no leaf is refused: half a row is of no use."""
        if [self.extent[a] for a in one] != [self.extent[a] for a in other]:
            return
        pairs = list(zip(one, other, strict=True))
        if all(self.may_merge(a, b) for a, b in pairs):
            for a, b in pairs:
                self.merge(a, b)

    def unify(self, left: Sequence[int], right: Sequence[int]) -> None:
        """Identify two rows of atoms from the minor end, splitting where one extent divides the other."""
        if len(left) == len(right) == 1:  # mostly two leaves
            x, y = self.root(left[0]), self.root(right[0])
            if x == y:
                return
            if self.parts[x] is self.parts[y] is None and self.extent[x] == self.extent[y]:
                self.merge(x, y)
                return
        while True:
            a, b = self.leaves(left), self.leaves(right)
            shared = 0
            while shared < min(len(a), len(b)) and a[-1 - shared] == b[-1 - shared]:
                shared += 1
            if shared in (len(a), len(b)):
                return
            x, y = a[-1 - shared], b[-1 - shared]
            if self.extent[x] == self.extent[y]:
                if not self.merge(x, y):
                    return
            elif self.extent[x] % self.extent[y] == 0:
                self.split(x, self.extent[y])
            elif self.extent[y] % self.extent[x] == 0:
                self.split(y, self.extent[x])
            else:
                return


def _is_regrouped(graph: Graph, reshape: Node, inside: Collection[str]) -> bool:
    """An array in memory, or a reduce's result on its way through memory, that is reduced in other groups.  Only its
    address counts; the reduce keeps its dimensions whole, as wide accesses need them."""
    users = [user for user in graph.users[reshape.name] if user in inside]
    while len(users) == 1 and OPS[graph[users[0]].op].kind is Kind.ELEMENTWISE:
        users = [user for user in graph.users[users[0]] if user in inside]
    if not users or any(not OPS[graph[user].op].is_reduce for user in users):
        return False
    source = reshape.operands[0]
    while source in inside and _is_cut(graph[source]):
        source = graph[source].operands[0]
    return source not in inside or OPS[graph[source].op].is_reduce


def _is_cut(node: Node) -> bool:
    """Is it a slice, or another view of a buffer?"""
    return OPS[node.op].is_view or isinstance(node.attrs, SliceAttrs)


def _align_rows(
    graph: Graph, members: Iterable[str], raw: Mapping[str, list[list[int]]], union: _Union
) -> None:
    """Identifies the atoms along which rows are reduced with those along which the results are repeated.

    `y * mean(x)` has rows of two arrays.  Where they have one length the threads of a row of x hold one of y too, and
    the mean stays with them.  reduced: by value, the rows from which it is computed.
    """
    reduced: dict[str, tuple[tuple[int, ...], ...]] = {}
    for name in members:
        node, op = graph[name], OPS[graph[name].op]
        behind = dict.fromkeys(row for o in node.operands for row in reduced.get(o, ()))
        if op.is_reduce:
            row = _find_minor(union, raw[node.operands[0]], raw[name])
            reduced[name] = (row,) if row else ()
        elif op.is_broadcast and behind and not is_uniform(graph, name):
            row = _find_minor(union, raw[name], raw[node.operands[0]])
            for other in behind:
                union.merge_rows(row, other)
        elif op.kind in (Kind.ELEMENTWISE, Kind.PROJECTION) or op.is_view:
            reduced[name] = tuple(behind)[:MOST_ALIGNED]


def _find_minor(union: _Union, wide: list[list[int]], narrow: list[list[int]]) -> tuple[int, ...]:
    """The atoms that a wide array has beside those of a narrow one; empty where they are not its last."""
    known = set(union.leaves(a for d in narrow for a in d))
    atoms = union.leaves(a for d in wide for a in d)
    along = tuple(a for a in atoms if a not in known)
    return along if along == tuple(atoms[len(atoms) - len(along) :]) else ()


def find_dimensions(
    graph: Graph, members: Iterable[str], *, align_rows: bool = False
) -> Dimensions:
    """Atoms of the members and of everything they read, by one walk in topological order.

    align_rows: rows of one length are walked together where a number of the one is needed all along the other.
    """
    inside = list(members)
    known = frozenset(inside)
    union = _Union()
    raw: dict[str, list[list[int]]] = {}

    def make(name: str) -> list[list[int]]:
        if name not in raw:
            shape = array_of(graph[name]).shape
            raw[name] = [[union.fresh(extent, (name,))] if extent != 1 else [] for extent in shape]
        return raw[name]

    for name in inside:
        node = graph[name]
        result = make(name)
        for number, operand in enumerate(node.operands):
            source = make(operand)
            if is_uniform(graph, operand) or is_embedded(graph, operand):
                continue
            if OPS[node.op].is_view:
                if array_of(node).size and not _is_regrouped(graph, node, known):
                    union.unify([a for d in source for a in d], [a for d in result for a in d])
                continue
            shapes = array_of(graph[operand]).shape, array_of(node).shape
            for d, r in OPS[node.op].pairs(node, *shapes, number):
                union.unify(source[d], result[r])
            if OPS[node.op].is_reduce and 0 < number < len(node.operands) // 2:
                for first, other in zip(make(node.operands[0]), source, strict=True):
                    union.unify(first, other)
    if align_rows:
        _align_rows(graph, inside, raw, union)
    named: dict[int, Symbol] = {}

    def symbol(atom: int) -> Symbol:
        if atom not in named:
            named[atom] = Symbol(f"d{len(named)}", union.extent[atom])
        return named[atom]

    atoms = {
        name: tuple(
            tuple(symbol(leaf) for leaf in union.leaves(dimension)) for dimension in dimensions
        )
        for name, dimensions in raw.items()
    }
    return Dimensions(atoms)
