"""Ops -> Work: what a device cannot do without, and the least time that takes (the first of PAI V2's cost models).

Every input is read once, and of it only the part that somebody needs; every output is written once; every element
is computed once.  A time is the longer of moving the bytes and doing the arithmetic, and the launches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from astitch.device.gpu import Gpu
from astitch.graph.dimensions import array_of, is_embedded
from astitch.graph.ir import Graph, Node, TupleType
from astitch.graph.joint_regions import MOMENTS, joint_kind
from astitch.graph.ops import OPS, Kind
from astitch.graph.storage import storage_name, storage_type


@dataclass(frozen=True, slots=True)
class Work:
    """read_bytes, written_bytes: traffic with memory.  flops: operations on scalars, a transcendental counting as the
    op table says.  launches: kernels."""

    read_bytes: int
    written_bytes: int
    flops: int
    launches: int = 1

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.written_bytes

    def memory_us(self, gpu: Gpu) -> float:
        """Time of the traffic at the bandwidth of a large copy."""
        return self.bytes / gpu.bandwidth_gbs / 1e3

    def compute_us(self, gpu: Gpu) -> float:
        """Time of the arithmetic with every lane busy.  No multiply-adds: one op a lane and cycle."""
        return self.flops / (gpu.fp32_gflops / 2) / 1e3

    def bound_us(self, gpu: Gpu) -> float:
        """The speed of light: no program that does this work on the device takes less."""
        return max(self.memory_us(gpu), self.compute_us(gpu)) + self.launches * gpu.launch_us

    def __str__(self) -> str:
        return (
            f"reads {self.read_bytes} B, writes {self.written_bytes} B, {self.flops} flops, "
            f"{self.launches} launches"
        )


MOMENTS_FLOPS = 4
"""Operations of a mean and a variance for each element: an addition; a subtraction, a square and its addition.  How two
sets are joined is the kernel's affair."""


def count_flops(node: Node) -> int:
    """Operations for one element: of the result, or for a reduce of its operand.  Moving data costs none."""
    if OPS[node.op].is_reduce and joint_kind(node.regions[0]) == MOMENTS:
        return MOMENTS_FLOPS
    if OPS[node.op].is_reduce:
        return sum(count_flops(inner) for inner in node.regions[0])
    row = OPS[node.op]
    return row.flops if row.kind is Kind.ELEMENTWISE else 0


def count_needed(graph: Graph, node: Node, number: int, needed: int) -> int:
    """Elements of operand `number` that `needed` elements of the node's result depend on (never more than it has)."""
    sizes = [array_of(graph[operand]).size for operand in node.operands]
    if not needed or not sizes[number]:
        return 0
    most = OPS[node.op].needed(needed, sizes, array_of(node).size, number)
    return min(most, sizes[number])


def measure_work(graph: Graph, members: Iterable[str]) -> Work:
    """The work of one kernel that computes `members` (names in topological order).

    Several parts read of one input are taken to be different parts of it.
    """
    names = list(members)
    inside = set(names)
    wanted = set(graph.outputs)
    needed = dict.fromkeys(names, 0)
    written: dict[str, int] = {}
    read: dict[str, int] = {}
    flops = 0
    for name in reversed(names):
        node = graph[name]
        size = array_of(node).size
        if not isinstance(node.type, TupleType):
            stored = storage_name(graph, name)
            # A view of what another op stores is no work for those who read it.
            is_made = stored.partition("#")[0] in inside
            if is_made and (name in wanted or any(u not in inside for u in graph.users[name])):
                needed[name] = size
                written[stored] = storage_type(graph, stored).bytes
        count = needed[name]
        per_element = count_flops(node)
        if OPS[node.op].is_reduce:
            flops += per_element * count_needed(graph, node, 0, count)
        else:
            flops += per_element * count
        for number, operand in enumerate(node.operands):
            part = count_needed(graph, node, number, count)
            if operand in inside:
                needed[operand] = min(needed[operand] + part, array_of(graph[operand]).size)
            elif not is_embedded(graph, operand):
                stored = storage_name(graph, operand)
                array = storage_type(graph, stored)
                so_far = read.get(stored, 0)
                read[stored] = min(so_far + part * array.dtype.bytes, array.bytes)
    return Work(sum(read.values()), sum(written.values()), flops)
