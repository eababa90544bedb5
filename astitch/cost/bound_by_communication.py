"""A graph and the ops that no kernel computes -> is a step as long as its communication?

What may run beside a collective neither waits for it nor it for that.  Where all of this takes less time than the
collectives do, devices wait for each other, and work that moves beside a collective costs no time.
"""

from __future__ import annotations

from collections.abc import Collection

from astitch.cost.product_bounds import count_product_flops, peak_gflops
from astitch.cost.speed_of_light import count_needed
from astitch.device.gpu import Gpu
from astitch.graph.collectives import communicates, find_awaited, find_awaiting, find_combined
from astitch.graph.dimensions import array_of, is_embedded
from astitch.graph.ir import ArrayType, Graph, Node
from astitch.graph.ops import OPS, Kind
from astitch.graph.storage import stored_value


def is_bound_by_communication(graph: Graph, outside: Collection[str], gpu: Gpu) -> bool:
    """Do a graph's collectives take longer than what can run beside them?

    outside: ops that no kernel computes.  Both are projected as least times: of what a device sends, of products, and
    of what kernels read and write of others.  A loop that may run beside a collective counts as longer than all.
    """
    sending = [name for name in graph.nodes if communicates(graph[name])]
    if not sending:
        return False
    sent_us = sum(_count_sent(graph, graph[name]) for name in sending) / gpu.link_gbs / 1e3
    beside_us = 0.0
    awaited, awaiting = find_awaited(graph), find_awaiting(graph)
    every = (1 << len(find_combined(graph))) - 1
    for node in graph:
        if node.name in sending or awaited[node.name] | awaiting[node.name] == every:
            continue
        if OPS[node.op].kind is Kind.CONTROL:
            return False
        beside_us += _project(graph, node, outside, gpu)
    return beside_us < sent_us


def _count_sent(graph: Graph, node: Node) -> int:
    """The least bytes that a device sends or receives: what it gathers or scatters is partly its own."""
    given, made = sum(_bytes(graph[o]) for o in node.operands), _bytes(node)
    return abs(given - made) or made


def _project(graph: Graph, node: Node, outside: Collection[str], gpu: Gpu) -> float:
    """The least us of an op; of one in a kernel that for what the kernel reads and writes."""
    row = OPS[node.op]
    if row.kind in (Kind.SOURCE, Kind.PROJECTION) or row.is_view or is_embedded(graph, node.name):
        return 0.0
    flops = count_product_flops(graph, node)
    rate = peak_gflops(gpu, array_of(graph[node.operands[0]]).dtype.value) if flops else 1.0
    moved = _count_moved(graph, node, outside)
    return max(moved / gpu.bandwidth_gbs, flops / rate) / 1e3


def _count_moved(graph: Graph, node: Node, outside: Collection[str]) -> int:
    if node.name in outside:
        return _bytes(node) + sum(_bytes(graph[o]) for o in node.operands)
    is_read = any(user in outside for user in graph.users[node.name])
    moved = _bytes(node) if is_read or node.name in graph.outputs else 0
    for number, operand in enumerate(node.operands):
        base = stored_value(graph, operand)
        if base in outside or OPS[graph[base].op].kind is Kind.SOURCE:
            read = array_of(graph[operand])
            needed = count_needed(graph, node, number, array_of(node).size)
            moved += min(needed * read.dtype.bytes, read.bytes)
    return moved


def _bytes(node: Node) -> int:
    return node.type.bytes if isinstance(node.type, ArrayType) else 0
