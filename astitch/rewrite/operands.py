"""Graph, stages -> Graph, stages: operands of late products that XLA computes again where the product reads them.

The backward half of a training step reads what its forward half multiplied: the product for a weight's gradient wants
the operand of the product with the weight.  Where collectives cut the backward half, a kernel that reads nearly the
same value waits beside that product until the end.  Memory then holds both.  So the product gets ops of its own that
compute its operand from the other value.  XLA fuses them into the product.

Where the same collectives wait for the kernel and the product, XLA's scheduler has no reason to run the product late.
An op that the product alone reads would give it one: it runs late what has other ops become ready, counted backwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from astitch.graph.collectives import find_awaited
from astitch.graph.dimensions import array_of, is_embedded
from astitch.graph.edit import free_name, keep_live_nodes
from astitch.graph.ir import ArrayType, Graph, Node
from astitch.graph.ops import OPS, Kind
from astitch.graph.ops.row import Cost
from astitch.graph.storage import stored_value
from astitch.rewrite.recompute import LEAST_BYTES, Staged

MOST_SOURCES = 4
"""Values that a product's operand may be computed from: XLA fuses no more into one operand."""

MOST_OPS = 4
"""Ops that compute elements of an operand."""

SMALL_SHARE = 16
"""How many times smaller than the operand all of those values but one are."""


def give_operands(staged: Staged) -> Staged:
    """The same function; products compute operands again that memory would hold for them alone.

    Where no collective cuts a stage, nothing changes.
    """
    if not staged.parts:
        return staged
    search = _Search(staged)
    nodes: dict[str, Node] = {}
    stage, outside = dict(staged.stage), dict(staged.outside)
    taken = set(staged.graph.nodes)
    for node in staged.graph:
        operands = list(node.operands)
        for place, operand in enumerate(node.operands if search.is_product(node.name) else ()):
            again = search.find_again(node, operand)
            known: dict[str, str] = {}
            for name in again:
                known[name] = free_name(f"{name}.operand", taken)
                taken.add(known[name])
                old = staged.graph[name]
                read = tuple(known.get(o, o) for o in old.operands)
                nodes[known[name]] = replace(old, name=known[name], operands=read)
                stage[known[name]] = stage[node.name]
                outside[known[name]] = f"%{node.name} computes its operand, which is not kept"
            operands[place] = known.get(operand, operand)
        nodes[node.name] = replace(node, operands=tuple(operands))
    graph = staged.graph
    live = keep_live_nodes(nodes, graph.outputs)
    written = Graph(graph.name, live, graph.parameters, graph.outputs, graph.aliases)
    return replace(
        staged,
        graph=written,
        stage={name: stage[name] for name in live},
        outside={name: reason for name, reason in outside.items() if name in live},
    )


class _Search:
    """Which operands are worth it."""

    def __init__(self, staged: Staged) -> None:
        self.graph, self.stage, self.outside = staged.graph, staged.stage, staged.outside
        self.uncut = staged.uncut
        self.awaited = find_awaited(staged.graph)
        self.readers: dict[str, list[str]] = {}
        for node in staged.graph:
            for operand in dict.fromkeys(node.operands):
                if not OPS[node.op].permutes:
                    base = self.find_base(operand)
                    self.readers.setdefault(base, []).append(node.name)
        for output in staged.graph.outputs:
            self.readers.setdefault(self.find_base(output), []).append("")

    def whole(self, name: str) -> int:
        """The stage of an op, before collectives cut it."""
        number = self.stage[name]
        return self.uncut.get(number, number)

    def is_product(self, name: str) -> bool:
        return name in self.outside and OPS[self.graph[name].op].kind is Kind.COMPUTE

    def is_stitched(self, name: str) -> bool:
        return name not in self.outside and OPS[self.graph[name].op].kind is not Kind.SOURCE

    def find_base(self, name: str) -> str:
        """The value of which another is a permutation."""
        while OPS[self.graph[name].op].permutes:
            name = self.graph[name].operands[0]
        return name

    def find_again(self, product: Node, operand: str) -> list[str]:
        """The ops that the product computes again for an operand, in order; empty where that saves no memory.

        The operand is kept only for such products, since the last product of an earlier stage.  What it is computed
        from is small, but for one value that a kernel of a later stage keeps too.
        """
        base = self.find_base(operand)
        node = self.graph[base]
        if not self.may_repeat(node) or array_of(node).bytes < LEAST_BYTES:
            return []
        others = [r for r in self.readers[base] if r != product.name]
        earlier = [
            r for r in others if self.is_product(r) and self.whole(r) < self.whole(product.name)
        ]
        if not earlier or any(r not in earlier and not self.ends_with(base, r) for r in others):
            return []
        since = max(map(self.whole, earlier))
        ops, sources = self.expand(base, since)
        large = [s for s in sources if SMALL_SHARE * self.bytes_of(s) > self.bytes_of(base)]
        if len(sources) > MOST_SOURCES or len(large) != 1:
            return []
        if self.bytes_of(large[0]) > self.bytes_of(base):
            return []  # XLA would not fuse it: the product would read more
        # XLA computes with the product what comes from one array.
        alone = not sources[1:] or self.stays(large[0], since, product.name)
        if not alone or not self.stays(large[0], since):
            return []
        path = list(self.list_path(operand, base))
        order = {name: place for place, name in enumerate(self.graph.nodes)}
        return sorted({*ops, *path}, key=order.__getitem__)

    def ends_with(self, base: str, reader: str) -> bool:
        """Does a reader belong to the kernel that computes a value, so that it keeps nothing?"""
        return bool(reader) and self.is_stitched(reader) and self.stage[reader] == self.stage[base]

    def expand(self, base: str, since: int) -> tuple[list[str], list[str]]:
        """The ops from large values that stay in memory, or small ones, to a value, and these values."""
        ops, sources, pending = [base], dict[str, None](), [*self.graph[base].operands]
        while pending and len(ops) <= 2 * MOST_OPS:
            name = pending.pop()
            node = self.graph[name]
            if name in ops or is_embedded(self.graph, name) or node.is_constant:
                continue
            small = SMALL_SHARE * self.bytes_of(name) <= self.bytes_of(base)
            if small or not self.may_repeat(node) or self.stays(name, since):
                sources[name] = None
            else:
                ops.append(name)
                pending += node.operands
        computed = [n for n in ops if OPS[self.graph[n].op].kind is Kind.ELEMENTWISE]
        return (ops, list(sources)) if not pending and len(computed) <= MOST_OPS else ([], [])

    def stays(self, name: str, since: int, product: str = "") -> bool:
        """Does a kernel of a later stage read a value, so that memory holds it anyway?

        product: does such a kernel run before this product, since a collective waits for the kernel only?
        """
        found = self.readers.get(stored_value(self.graph, name), ())
        later = [r for r in found if r and self.is_stitched(r) and self.whole(r) > since]
        if product:
            later = [r for r in later if self.awaited[r] & ~self.awaited[product]]
        return bool(later)

    def may_repeat(self, node: Node) -> bool:
        row = OPS[node.op]
        if not self.is_stitched(node.name) or not isinstance(node.type, ArrayType):
            return False
        light = row.kind is Kind.ELEMENTWISE and row.cost is Cost.LIGHT
        return light or row.kind is Kind.BROADCAST or row.permutes

    def bytes_of(self, name: str) -> int:
        return array_of(self.graph[name]).bytes

    def list_path(self, operand: str, base: str) -> Iterator[str]:
        while operand != base:
            yield operand
            operand = self.graph[operand].operands[0]
