"""Batch and heads: how the parts of the scores become the four dimensions of a library's attention.

The library takes any order of batch, heads, positions and features, and fewer heads of k and v than of q.  The split is
chosen that moves the least in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import prod

from astitch.attention.operands import (
    FEATURES,
    Tensor,
    batch_parts,
    count_features,
    query_parts,
)
from astitch.attention.rows import Label, Parts, RowFunctions
from astitch.graph.ir import Order

POSITIONS_FIRST: Order = (0, 2, 1, 3)
"""Batch, positions, heads, features: where the heads of a position lie as one product gives them."""


@dataclass(frozen=True)
class Classes:
    """Of which parts the batch, the heads, the positions and the features of an array are made, outer ones first."""

    parts: tuple[Label, Label, Label, Label]

    def class_of(self, part: int) -> int:
        return next(c for c, label in enumerate(self.parts) if part in label)

    def lacking(self, parts: Sequence[int]) -> Label:
        """What an array of these parts has to be repeated along."""
        return tuple(p for label in self.parts for p in label if p not in parts)

    def places(self, parts: Sequence[int]) -> tuple[int, ...] | None:
        """The classes in the order in which an array of these parts lies; None where it must be moved.

        It must where a class is not together, where one is repeated, and where the features are not innermost.
        """
        found = list(dict.fromkeys(self.class_of(part) for part in parts))
        lies = [part for c in found for part in self.parts[c]]
        if lies != list(parts) or self.lacking(parts) or found[-1] != 3:
            return None
        if 1 not in found:  # beside the positions, so that one head lies as it would among several
            found.insert(found.index(2 if 2 in found else 3), 1)
        return (*(c for c in range(4) if c not in found), *found)


@dataclass(frozen=True)
class Split:
    """heads: of q; the innermost are `shared`: so many heads of q read one head of k and v.

    groups: the innermost of those that are shared, which the scores have as queries, not as heads.
    """

    batch: Label
    heads: Label
    shared: Label
    groups: Label
    positions: Label
    keys: Label

    def resolve(self, parts: Parts) -> Split:
        """With the finest parts."""
        fields = ("batch", "heads", "shared", "groups", "positions", "keys")
        return replace(self, **{name: parts.resolve(getattr(self, name)) for name in fields})

    @property
    def repeated(self) -> Label:
        """The heads that the program gives k and v by a repetition, and that the library does not need."""
        return self.shared[: len(self.shared) - len(self.groups)]

    @property
    def of_queries(self) -> Classes:
        return Classes((self.batch, self.heads, self.positions, FEATURES))

    @property
    def of_keys(self) -> Classes:
        return self._of_keys(self.shared)

    @property
    def of_repeated_keys(self) -> Classes:
        """Where k and v are repeated as the program says."""
        return self._of_keys(self.groups)

    def _of_keys(self, shared: Label) -> Classes:
        own = self.heads[: len(self.heads) - len(shared)]
        return Classes((self.batch, own, self.keys, FEATURES))


def choose_split(
    rows: RowFunctions,
    positions: Label,
    queries: Sequence[Tensor],
    keys: Sequence[Tensor],
    added: Sequence[Sequence[Label]],
) -> Split:
    """The split for which the least is moved.

    queries: q and, where there is one, the gradient of the result.  keys: k and v.  added: the parts along which each
    mask or bias varies.
    """
    parts = rows.parts
    positions = parts.resolve(positions)
    groups = tuple(p for p in query_parts(rows) if p not in positions)
    outer = batch_parts(rows) + groups
    tensors = [tensor.resolve(parts) for tensor in (*queries, *keys)]
    held = {p for tensor in tensors[len(queries) :] for p in tensor.parts}
    missing = tuple(p for p in batch_parts(rows) if p not in held)
    orders = [outer]
    for tensor in tensors:
        lies = [p for p in tensor.parts if p in outer]
        orders.append((*lies, *(p for p in outer if p not in lies)))
    for order in tuple(orders):
        for last in (groups, missing + groups):
            orders.append(
                (
                    *(p for p in order if p not in last),
                    *(p for p in order if p in last and p not in groups),
                    *groups,
                )
            )
    known = (positions, parts.resolve(rows.key))
    splits = [
        split
        for order in dict.fromkeys(orders)
        for split in _list_splits(order, frozenset(missing), groups, *known)
    ]

    def rank(split: Split) -> tuple[int, bool, bool, int]:
        moved = _count_moved(rows, split, tensors[: len(queries)], tensors[len(queries) :])
        moved += sum(2 * count_added(rows, split, labels) for labels in added)
        own = split.of_keys.parts[1]
        return moved, not split.batch, not own, -len(split.batch)

    return min(splits, key=rank)


def _list_splits(
    order: Label, missing: frozenset[int], groups: Label, positions: Label, keys: Label
) -> Iterator[Split]:
    if order[len(order) - len(groups) :] != groups:
        return
    for count in range(len(order) - len(groups) + 1):
        heads = order[count:]
        own = heads[: len(heads) - len(groups)]
        repeated = tuple(takewhile(missing.__contains__, reversed(own)))[::-1]
        yield Split(order[:count], heads, repeated + groups, groups, positions, keys)


def _count_moved(
    rows: RowFunctions, split: Split, queries: Sequence[Tensor], keys: Sequence[Tensor]
) -> int:
    """The elements that are read and written in front of the call and behind it.

    Each result lies as what it belongs to: the gradient of q as q does, and so on.
    """
    moved = 0
    # The result lies as q, and so must its gradient.
    wanted = None
    for classes, tensors in ((split.of_queries, queries), (split.of_keys, keys)):
        for tensor in tensors:
            features = count_features(rows.graph, tensor)
            whole = features * prod(rows.parts.extents[p] for c in classes.parts[:3] for p in c)
            places = classes.places(tensor.parts)
            if tensor is queries[0]:
                moved += 0 if places else 4 * whole
                wanted = places or POSITIONS_FIRST
            elif classes.lacking(tensor.parts):
                moved += whole
            elif places is None or (tensor in queries and places != wanted):
                moved += 2 * whole
    return moved


def count_added(
    rows: RowFunctions, split: Split, added: Sequence[Label], *, of_library: bool = True
) -> int:
    """The elements of a mask or bias that varies along these parts.

    Batch, heads, positions and keys are each repeated as a whole or not at all; the library repeats the first two.
    """
    varying = {p for label in added for p in rows.parts.resolve(label)}
    repeated = [split.batch, split.heads]
    whole = [split.positions, split.keys]
    if not of_library:
        repeated, whole = [*repeated, *whole], []
    labels = [label for label in repeated if varying.intersection(rows.parts.resolve(label))]
    return prod(
        rows.parts.extents[p] for label in (*labels, *whole) for p in rows.parts.resolve(label)
    )
