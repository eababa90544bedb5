"""Graph -> Graph: numbers of four bits that kernels read, unpacked from words of eight.

A kernel has no type of four bits: XLA would convert a whole array of weights for it, to two or four bytes each.  In
memory eight of them are a 32-bit word, in the order of their bits; as words an array is the same buffer.
"""

from __future__ import annotations

from collections.abc import Mapping

from astitch.graph.ir import DType, Graph, IotaAttrs, Node
from astitch.graph.ops import OPS, Kind
from astitch.graph.stitchable import is_computed
from astitch.rewrite.draft import Draft, Log
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.simplify import rewrite_graph

PACKED = frozenset({DType.S4, DType.U4})
"""Types of four bits, which XLA packs in memory."""

BITS, IN_A_WORD = 4, 8


def unpack_words(graph: Graph, log: Log | None = None) -> Graph:
    """The same function, to the bit; conversions of four bits that kernels read are shifts of words.

    What a product reads stays a conversion: XLA computes it as it multiplies.  `log` hears of every conversion.
    """
    heard: Log = log or (lambda rule, node: None)
    found = {node.name for node in graph if is_unpackable(graph, node)}
    wanted = {name for name in found if _meets_kernel_alone(graph, name)}
    if not wanted:
        return graph

    def unpack(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        if node.name not in wanted:
            return None
        heard("unpack_words", node.name)
        return _put_shifts(DraftOps(node, draft))

    return rewrite_graph(graph, heard, unpack)


def is_unpackable(graph: Graph, node: Node) -> bool:
    """Is it a conversion of whole words of four-bit numbers?"""
    if not is_unknown_conversion(graph, node) or graph[node.operands[0]].dtype not in PACKED:
        return False
    shape = node.shape
    return bool(shape) and shape[-1] % IN_A_WORD == 0


def is_unknown_conversion(graph: Graph, node: Node) -> bool:
    """Is it a conversion from a type that no kernel knows to one that they know?"""
    row = OPS.get(node.opcode)
    if row is None or not row.is_conversion or node.dtype.is_opaque:
        return False
    return graph[node.operands[0]].dtype.is_opaque


def _meets_kernel_alone(graph: Graph, name: str) -> bool:
    """Does a kernel reduce or store the numbers, and no product read them?"""
    waiting, seen, computed = [name], {name}, False
    while waiting:
        for user in graph.users[waiting.pop()]:
            node = graph[user]
            kind = OPS[node.op].kind
            if kind is Kind.COMPUTE:
                return False
            computed |= is_computed(graph, node)
            if kind in (Kind.ELEMENTWISE, Kind.INDEX, Kind.BROADCAST) and user not in seen:
                seen.add(user)
                waiting.append(user)
    return computed


def _put_shifts(ops: DraftOps) -> str:
    """Number j of a word: its bits moved to the upper end and down again, which repeats the sign of an s4."""
    node, draft = ops.origin, ops.draft
    packed = node.operands[0]
    signed = draft[packed].dtype is DType.S4
    word, right = (
        (DType.S32, "shift-right-arithmetic") if signed else (DType.U32, "shift-right-logical")
    )
    *outer, last = node.shape
    shape = (*outer, last // IN_A_WORD, IN_A_WORD)
    words = ops.add("bitcast-convert", word, shape[:-1], (ops.reshape(packed, shape),))
    spread = ops.broadcast(words, shape, range(len(shape) - 1))
    number = ops.add("iota", word, shape, (), IotaAttrs(len(shape) - 1))
    above = ops.splat(BITS * (IN_A_WORD - 1), word, shape)
    below = ops.both("multiply", number, ops.splat(BITS, word, shape))
    moved = ops.both("shift-left", spread, ops.both("subtract", above, below))
    value = ops.reshape(ops.both(right, moved, above), node.shape)
    # A type of eight bits says that the number is exact in any float.
    return ops.convert(ops.convert(value, DType.S8 if signed else DType.U8), node.dtype)
