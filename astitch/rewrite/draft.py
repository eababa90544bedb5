"""The graph in the making: nodes already in simplest form, and what is known of a value in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from astitch.graph.edit import free_name, is_pure
from astitch.graph.ir import (
    ArrayType,
    Attrs,
    BroadcastAttrs,
    ConstantAttrs,
    DimensionAttrs,
    Graph,
    NoAttrs,
    Node,
)
from astitch.graph.ops import OPS, Kind

if TYPE_CHECKING:
    from astitch.rewrite.ranges import Range

Log = Callable[[str, str], None]
"""Called with (name of the rule, name of the node) each time that a rule fires."""


FOLD_RESULT_ELEMENTS = 1024
"""A constant is folded into its user as long as the result has no more elements than this."""


FOLD_OPERAND_ELEMENTS = 65536
"""... and no operand has more than this: folding must stay quicker than compiling."""


def _may_merge(node: Node) -> bool:
    """Whether equal nodes may be one.  Behind barriers stands what shall be computed again."""
    return OPS[node.op].kind is not Kind.BARRIER and is_pure(node)


class Draft:
    """Nodes already in simplest form.  `put` is the only way in.

    ranges: what integers lie between, as far as somebody asked (ranges.py).
    """

    def __init__(self, source: Graph, log: Log, rules: Rules) -> None:
        self._rules = rules
        self.nodes: dict[str, Node] = {}
        self._log = log
        self._taken = set(source.nodes)
        self._users = source.users
        self._known: dict[tuple[object, ...], str] = {}
        self._edges: dict[str, list[int]] = {}
        self.ranges: dict[str, Range] = {}

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def is_read_once(self, name: str) -> bool:
        """Does one op of the graph before read a value, and was it there?"""
        return len(self._users.get(name, ())) == 1

    def put(self, node: Node) -> str:
        """Append the simplest form of `node`, whose operands are here; the name of its value."""
        simpler = self._apply_rules(node)
        if isinstance(simpler, str):
            return simpler
        key = (
            simpler.op,
            simpler.type,
            simpler.operands,
            simpler.attrs,
            tuple(region.key for region in simpler.regions),
        )
        if simpler.is_parameter or not _may_merge(simpler):
            self.nodes[simpler.name] = simpler
            return simpler.name
        name = self._known.setdefault(key, simpler.name)
        if name == simpler.name:
            self.nodes[name] = simpler
        else:
            self._log("merge_equal_nodes", simpler.name)
        return name

    def _apply_rules(self, node: Node) -> Node | str:
        while True:
            for rule in self._rules(node.op):
                result = rule(node, self)
                if result is None:
                    continue
                self._log(rule.__name__, node.name)
                if isinstance(result, str):
                    return result
                node = result
                break
            else:
                return node

    def add(
        self,
        origin: Node,
        op: str,
        type: ArrayType,
        operands: tuple[str, ...] = (),
        attrs: Attrs = NoAttrs(),
        regions: tuple[Graph, ...] = (),
    ) -> str:
        """Put a new node that a rule needs on the way to `origin`; the name of its value."""
        name = self.fresh(f"{origin.name}.{op}")
        return self.put(
            Node(name, op, type, operands, attrs, regions, origin.op_name, origin.source)
        )

    def edges(self, concatenation: Node) -> list[int]:
        """Where its pieces start along the dimension, and where the last one ends."""
        assert isinstance(concatenation.attrs, DimensionAttrs)
        d = concatenation.attrs.dimension
        if concatenation.name not in self._edges:
            extents = (self[piece].shape[d] for piece in concatenation.operands)
            self._edges[concatenation.name] = [0, *accumulate(extents)]
        return self._edges[concatenation.name]

    def fresh(self, name: str) -> str:
        """`name`, or `name` and a number if that is taken.  Used up by this call."""
        unique = free_name(name, self._taken)
        self._taken.add(unique)
        return unique


Rule = Callable[[Node, Draft], Node | str | None]
"""The value or the simpler node that may stand for the node, of its type; None: does not apply."""

Rules = Callable[[str], Sequence[Rule]]
"""The rules that may apply to an op."""


def become(
    node: Node,
    op: str,
    operands: tuple[str, ...] = (),
    attrs: Attrs = NoAttrs(),
) -> Node:
    """`node` computed in another way: same name and type."""
    return replace(node, op=op, operands=operands, attrs=attrs, regions=())


def read_constant(draft: Draft, name: str) -> np.ndarray | None:
    """The elements of a constant, or of a small broadcast of one."""
    node = draft[name]
    if isinstance(node.attrs, ConstantAttrs):
        return node.attrs.value.numpy() if node.array.size <= FOLD_OPERAND_ELEMENTS else None
    if isinstance(node.attrs, BroadcastAttrs) and node.array.size <= FOLD_RESULT_ELEMENTS:
        value = read_constant(draft, node.operands[0])
        return None if value is None else broadcast(value, node.shape, node.attrs.dimensions)
    return None


def broadcast(value: np.ndarray, shape: tuple[int, ...], dimensions: tuple[int, ...]) -> np.ndarray:
    """`dimensions` ascend, as they do in every broadcast in simplest form."""
    spread = [1] * len(shape)
    for extent, d in zip(value.shape, dimensions, strict=True):
        spread[d] = extent
    return np.broadcast_to(value.reshape(spread), shape)


def read_splat(draft: Draft | Graph, name: str) -> np.ndarray | None:
    """The scalar (rank 0) that every element of the value is; None if that is not known."""
    node = draft[name]
    if OPS[node.op].is_broadcast:
        node = draft[node.operands[0]]
    if isinstance(node.attrs, ConstantAttrs) and node.array.size == 1:
        return node.attrs.value.numpy().reshape(())
    return None


def is_zero(draft: Draft | Graph, name: str) -> bool:
    """Is every element of the value known to be zero?"""
    number = read_splat(draft, name)
    return number is not None and not number


def same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    return x.dtype == y.dtype and x.tobytes() == y.tobytes()


def squeeze(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def ascends(numbers: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(numbers))


def is_run(numbers: Sequence[int]) -> bool:
    return all(b == a + 1 for a, b in pairwise(numbers))
