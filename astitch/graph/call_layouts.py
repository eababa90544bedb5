"""Arrays that a library's call wants column by column: kernels write and read them so.

A kernel has its arrays row by row.  XLA would copy them before such a call, and the results behind it.  Its own fusions
write and read them as the library wants.  So a kernel gives the transposed array, and XLA's transpose of that is but
another name for the same memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from astitch.graph.edit import free_name, is_pure, sort_nodes
from astitch.graph.ir import (
    ArrayType,
    CholeskyAttrs,
    CustomCallAttrs,
    DotAttrs,
    GetTupleElementAttrs,
    Graph,
    Node,
    TransposeAttrs,
    TriangularSolveAttrs,
)
from astitch.graph.ops import OPS
from astitch.graph.stitchable import why_not_stitchable

Order = tuple[int, ...]
"""The dimensions of an array, from the one whose elements are farthest apart in memory."""


def lay_out_calls(graph: Graph, left: Collection[str]) -> tuple[Graph, Mapping[str, str]]:
    """The same function; and the transposes in it that are left to XLA, each with its reason.

    left: ops that no kernel computes.
    """
    made = _Writer(graph, left)
    for node in graph:
        operands, results = list_orders(node)
        for number, order in operands.items():
            made.give(node, number, order)
        for number, order in results.items():
            made.take(node, number, order)
    return made.finish()


def list_orders(node: Node) -> tuple[dict[int, Order], dict[int, Order]]:
    """The orders of operands and of results, by their numbers, that a call wants other than row by row."""
    match node.attrs:
        case CustomCallAttrs(operand_layouts=operands, result_layouts=results):
            orders = [[layout[::-1] for layout in layouts] for layouts in (operands, results)]
        case TriangularSolveAttrs() | CholeskyAttrs():
            last = node.array.rank - 1
            columns = (*range(last - 1), last, last - 1)
            orders = [[columns] * len(node.operands), [columns]]
        case _:
            return {}, {}
    given, made = ({i: o for i, o in enumerate(side) if list(o) != sorted(o)} for side in orders)
    return given, made


class _Writer:
    def __init__(self, graph: Graph, left: Collection[str]) -> None:
        self.graph, self.left = graph, left
        self.nodes = dict(graph.nodes)
        self.reasons: dict[str, str] = {}
        self.laid: dict[tuple[str, Order], str] = {}

    def finish(self) -> tuple[Graph, Mapping[str, str]]:
        if not self.reasons:
            return self.graph, {}
        graph = self.graph
        first = {p: self.nodes[p] for p in graph.parameters}
        effects = [node.name for node in graph if not is_pure(node)]
        ordered = sort_nodes(self.nodes, (*effects, *graph.outputs), first)
        return replace(graph, nodes=ordered), self.reasons

    def add(self, source: str, permutation: Sequence[int], reason: str = "") -> str:
        """A transpose.  reason: why it is left to XLA; none where a kernel computes it."""
        name = free_name(f"{source}.laid", self.nodes)
        array = self.nodes[source].array
        type_ = ArrayType(array.dtype, tuple(array.shape[d] for d in permutation))
        attrs = TransposeAttrs(tuple(permutation))
        self.nodes[name] = Node(name, "transpose", type_, (source,), attrs)
        if reason:
            self.reasons[name] = reason
        return name

    def is_kernels(self, name: str) -> bool:
        """Is a value made by a kernel of ours, through views or not?"""
        node = self.graph[name]
        while OPS[node.op].is_view:
            node = self.graph[node.operands[0]]
        if node.is_parameter or node.is_constant or node.name in self.left:
            return False
        return why_not_stitchable(self.graph, node) is None

    def give(self, call: Node, number: int, order: Order) -> None:
        """The operand of a call in an order."""
        source = call.operands[number]
        if not self.is_kernels(source):
            return
        key = source, order
        if key not in self.laid:
            reason = f"another name for the memory that %{call.name} reads"
            inverse = _invert(order)
            before = self.graph[source]
            if isinstance(before.attrs, TransposeAttrs) and before.attrs.permutation == inverse:
                laid = before.operands[0]
            else:
                laid = self.add(source, order)
            self.laid[key] = self.add(laid, inverse, reason)
            # A product of XLA's reads an array in any order: so none is stored for it alone.
            for user in self.graph.users[source]:
                if isinstance(self.graph[user].attrs, DotAttrs):
                    self.read(user, source, self.laid[key])
        node = self.nodes[call.name]
        operands = (*node.operands[:number], self.laid[key], *node.operands[number + 1 :])
        self.nodes[call.name] = node.read(operands)

    def read(self, reader: str, value: str, other: str) -> None:
        """Has an op read another value in place of one."""
        node = self.nodes[reader]
        self.nodes[reader] = node.read(tuple(other if o == value else o for o in node.operands))

    def take(self, call: Node, number: int, order: Order) -> None:
        """The result of a call in an order, for the kernels that read it."""
        for name in self.list_results(call, number):
            readers = [u for u in self.graph.users[name] if self.is_read_by_kernel(u)]
            if not readers:
                continue
            laid = self.add(name, order, f"another name for the memory that %{call.name} writes")
            back = self.add(laid, _invert(order))
            for reader in readers:
                self.read(reader, name, back)

    def list_results(self, call: Node, number: int) -> Iterator[str]:
        if isinstance(call.type, ArrayType):
            yield call.name
            return
        for user in self.graph.users[call.name]:
            attrs = self.graph[user].attrs
            if isinstance(attrs, GetTupleElementAttrs) and attrs.index == number:
                yield user

    def is_read_by_kernel(self, name: str) -> bool:
        node = self.graph[name]
        return name not in self.left and why_not_stitchable(self.graph, node) is None


def _invert(order: Order) -> Order:
    return tuple(sorted(range(len(order)), key=order.__getitem__))
