"""Graph -> Graph: an all-to-all cuts its array along the first dimension, as kernels store it.

XLA wants what is sent to another device in one piece.  Of an array that is cut along another dimension it changes the
layout, and its own fusions write and read that at once.  Kernels have the layouts of the graph, so that XLA would copy
what they store, and copy again what they read.  With transposes in the graph kernels write and read the pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from astitch.graph.ir import ArrayType, Graph, Node, OpaqueAttrs
from astitch.graph.ops import OPS, Kind
from astitch.graph.sent_operands import choose_sent_operands
from astitch.graph.stitchable import why_not_stitchable
from astitch.graph.storage import is_result, list_readers, stored_value
from astitch.hlo import schema
from astitch.rewrite.draft import Draft, Log
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.simplify import rewrite_graph


def arrange_exchanges(graph: Graph, log: Log | None = None) -> Graph:
    """The same function; `log` hears of each all-to-all whose array is transposed.

    Those stay as they are whose arrays no kernel stores, or that others than kernels read.  So do those that are sent
    late (graph/sent_operands.py): XLA computes what they send, and lays it out at once.
    """
    heard: Log = log or (lambda rule, node: None)
    cut = {node.name: place for node in graph if (place := _find_cut(graph, node))}
    late = choose_sent_operands(graph, ()) if cut else {}
    cut = {name: place for name, place in cut.items() if name not in late}
    if not cut:
        return graph

    def arrange(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        if node.name not in cut:
            return None
        heard("arrange_exchange", node.name)
        return _put_first(node, draft, cut[node.name])

    return rewrite_graph(graph, heard, arrange)


def _find_cut(graph: Graph, node: Node) -> int:
    """Along which dimension an all-to-all cuts what a kernel stores; 0: it stays as it is."""
    attrs = node.attrs
    if not isinstance(attrs, OpaqueAttrs) or attrs.opcode != "all-to-all" or attrs.waits:
        return 0
    if len(node.operands) != 1 or attrs.computations or not isinstance(node.type, ArrayType):
        return 0
    dimensions = schema.HloInstructionProto.FromString(attrs.instruction).dimensions
    between_kernels = _is_stored(graph, node.operands[0]) and _is_read(graph, node.name)
    return dimensions[0] if len(dimensions) == 1 and between_kernels else 0


def _is_stored(graph: Graph, name: str) -> bool:
    """Does a kernel compute the value?"""
    node = graph[stored_value(graph, name)]
    return OPS[node.op].kind is Kind.ELEMENTWISE and why_not_stitchable(graph, node) is None


def _is_read(graph: Graph, name: str) -> bool:
    """Do kernels alone read the value?"""
    readers = [graph[reader] for reader in list_readers(graph, name)]
    return not is_result(graph, name) and all(
        why_not_stitchable(graph, reader) is None and OPS[reader.op].kind is not Kind.COMPUTE
        for reader in readers
    )


def _put_first(node: Node, draft: Draft, cut: int) -> str:
    """transpose(all-to-all along the first dimension(transpose(x)))."""
    assert isinstance(node.attrs, OpaqueAttrs)
    at = DraftOps(node, draft)
    rank = len(node.shape)
    forth = (cut, *(d for d in range(rank) if d != cut))
    back = tuple(forth.index(d) for d in range(rank))
    given = at.transpose(node.operands[0], forth)
    instruction = schema.HloInstructionProto.FromString(node.attrs.instruction)
    instruction.dimensions[:] = [0]
    instruction.shape.dimensions[:] = [node.shape[d] for d in forth]
    instruction.shape.layout.minor_to_major[:] = range(rank)[::-1]
    attrs = replace(
        node.attrs, instruction=bytes(instruction.SerializeToString(deterministic=True))
    )
    type_ = ArrayType(node.array.dtype, tuple(node.shape[d] for d in forth))
    sent = draft.add(node, node.op, type_, (given,), attrs)
    return at.transpose(sent, back)
