"""Graph, the ops of a kernel -> how often a thread evaluates each of them, for an element of what it stores.

An op that is stored nowhere is evaluated wherever something reads it.  Readers at one index share an evaluation; each
slice, window or piece of a concatenation reads at an index of its own.  So chains of such readers multiply: of a
filter bank's last level, the op at the first is evaluated as often as the filters' lengths multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from astitch.graph.dimensions import array_of
from astitch.graph.ir import ArrayType, DimensionAttrs, Graph, Node
from astitch.graph.ops import OPS

MANY_INDICES = 8
"""So many alternatives of a concatenation count as one evaluation, since a thread takes one of them.  Beyond that each
counts: the text has all of them, and would double from level to level."""

LONG_RUN = 128
"""Elements side by side that come from one operand of a concatenation, in the mean, from which on a warp's threads take
one of its branches: 32 threads of four elements each.  In shorter runs a warp goes through all branches."""


class Evaluations:
    """Ops are visited readers first: `begin` what is computed once and stored, `count` every other.

    inside: the ops of the kernel.  most: indices of an op are told apart up to so many.
    """

    def __init__(self, graph: Graph, inside: Collection[str], most: int) -> None:
        self._graph, self._inside, self._most = graph, inside, most
        self._counts: dict[str, int] = {}
        # Indices have numbers, by the reader and its own index.  Of those in the text, the ones that a thread goes to.
        self._text: dict[str, set[int]] = {}
        self._executed: dict[str, set[int]] = {}
        self._numbers: dict[tuple[int, str, int], int] = {}
        self._diverging: set[str] = set()

    def begin(self, name: str) -> None:
        """The op is evaluated once, by a loop of its own."""
        self._diverging.discard(name)
        self._counts[name] = 1
        self._text[name] = {self._number(-1, name, 0)}
        # What is stored side by side has one loop, and so have a reduction and what else is read as its operand is.
        node = self._graph[name]
        walked = self._graph[node.operands[0]] if OPS[node.op].is_reduce else node
        size = walked.array.size if isinstance(walked.type, ArrayType) else 0
        self._executed[name] = {self._number(-1, "", size)}

    def count(self, name: str) -> int:
        """How often the op is evaluated, where its readers were visited."""
        same, other = 0, 0
        text: set[int] = set()
        executed: set[int] = set()
        for user in self._graph.users[name]:
            if user not in self._inside:
                continue
            node = self._graph[user]
            if user in self._diverging or _interleaves(self._graph, node):
                self._diverging.add(name)
            if not OPS[node.op].reindexes:
                same = max(same, self._counts[user])
                text |= self._text[user]
                executed |= self._executed[user]
                continue
            edges = [i for i, o in enumerate(node.operands) if o == name]
            other += len(edges) * self._counts[user]
            text.update(self._number(at, user, i) for at in self._text[user] for i in edges)
            ways = edges if _measure_run(self._graph, node) < LONG_RUN else [-1]
            executed.update(self._number(at, user, i) for at in self._executed[user] for i in ways)
        if not text:
            self.begin(name)
            return 1
        # One more than what is kept in any case says as much as all of them.
        self._text[name] = set(sorted(text)[: self._most + 1])
        self._executed[name] = set(sorted(executed)[: self._most + 1])
        count = max(same + other, len(self._executed[name]))
        if len(self._text[name]) > MANY_INDICES:
            count = max(count, len(self._text[name]))
        self._counts[name] = count
        return count

    def diverges(self, name: str) -> bool:
        """Is the op evaluated in branches of which a warp's threads take different ones?"""
        return name in self._diverging

    def _number(self, at: int, reader: str, operand: int) -> int:
        """A number for the index at which a reader, evaluated at index `at`, reads an operand."""
        return self._numbers.setdefault((at, reader, operand), len(self._numbers))


def _interleaves(graph: Graph, node: Node) -> bool:
    return 0 < _measure_run(graph, node) < LONG_RUN


def _measure_run(graph: Graph, node: Node) -> int:
    """Elements side by side of a concatenation that come from one operand, in the mean; of other ops 0.

    Of a rotation that is half a row, although one piece may have a single element: few warps see where it begins.
    """
    if not OPS[node.op].chooses or not isinstance(node.attrs, DimensionAttrs):
        return 0
    return math.prod(array_of(node).shape[node.attrs.dimension :]) // len(node.operands)
