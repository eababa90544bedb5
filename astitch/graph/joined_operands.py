"""Which concatenations XLA computes as it multiplies: astitch leaves them where kernels would store a part twice.

Products that share an operand are one product of a concatenation.  XLA's kernels of products read it from its parts.
See finished_products.py for what else XLA computes with a product.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from astitch.graph.dimensions import array_of, is_embedded
from astitch.graph.edit import find_later
from astitch.graph.finished_products import Finished, set_apart
from astitch.graph.ir import IN_HOST, DimensionAttrs, DotAttrs, DType, Graph, Node, OpaqueAttrs
from astitch.graph.ops import OPS, Kind
from astitch.graph.stitchable import why_not_stitchable
from astitch.graph.storage import is_result, list_readers, stored_value

TILE = 64
"""What divides each part along the dimension: a tile of XLA's kernel lies in one part."""

LEAST_BYTES = 64 << 10
"""Smaller results cost a kernel less than XLA a launch, should it not read the parts."""

KEPT_LESS = 2
"""How many times fewer bytes must be stored for parts than for a concatenation, where that is stored too."""

JOINED_DTYPES = frozenset({DType.F32, DType.BF16, DType.F16, DType.S8, DType.U8})
"""Element types of parts that XLA's kernel reads side by side.  Integers it converts as it loads them."""


def find_joined_operands(graph: Graph, left: Collection[str] = ()) -> Finished:
    """The concatenations that products alone read and of which memory holds a part anyway, once for each product.

    left: ops that XLA computes in any case.  A concatenation that others read first is one for them, and another for
    the products that come behind: the gradient of its weights reads the parts that memory holds meanwhile.
    """
    units = [
        (read.product, (node.name, *read.between), ())
        for node in graph
        for read in _choose_reads(graph, node, left)
    ]
    return set_apart(graph, units) if units else Finished(graph, {})


@dataclass(frozen=True, slots=True)
class _Read:
    """How an op reads a concatenation.

    operand: through this conversion or reshape, or the concatenation itself.  between: from there on, it included.
    dimension: of the operand, along which the parts lie; None where a reshape cuts or merges it.
    """

    product: str
    operand: str
    between: tuple[str, ...]
    dimension: int | None


def _list_reads(graph: Graph, joined: Node) -> Iterator[_Read]:
    assert isinstance(joined.attrs, DimensionAttrs)
    waiting = [_Read("", joined.name, (), joined.attrs.dimension)]
    while waiting:
        read = waiting.pop()
        source = array_of(graph[read.operand])
        for user in graph.users[read.operand]:
            node = graph[user]
            widens = OPS[node.op].is_conversion and node.array.bytes >= source.bytes
            if user not in graph.outputs and (widens or OPS[node.op].is_view):
                dimension = _follow(read.dimension, source.shape, node.shape)
                waiting.append(_Read("", user, (*read.between, user), dimension))
            else:
                yield replace(read, product=user)


def _follow(dimension: int | None, source: tuple[int, ...], target: tuple[int, ...]) -> int | None:
    """Which dimension of a reshaped array is one of the array's."""
    if dimension is None:
        return None
    before = math.prod(source[:dimension])
    for place, extent in enumerate(target):
        if math.prod(target[:place]) == before and extent == source[dimension]:
            return place
    return None


def _choose_reads(graph: Graph, node: Node, left: Collection[str]) -> Sequence[_Read]:
    """The products that read a concatenation from its parts."""
    if not isinstance(node.attrs, DimensionAttrs):
        return ()
    if node.name in left or node.name in graph.outputs:
        return ()
    reads = list(_list_reads(graph, node))
    found = [read for read in reads if _reads_in_parts(graph, read, node)]
    if not found or any(_comes_from_host(graph, part) for part in node.operands):
        return ()
    stored = [part for part in {*node.operands} if not _is_kept(graph, part, node.name, left)]
    if len(found) == len(reads):
        return found if len(stored) < len({*node.operands}) else ()
    if KEPT_LESS * sum(array_of(graph[part]).bytes for part in stored) > array_of(node).bytes:
        return ()
    later = find_later(graph, {read.product for read in reads} - {read.product for read in found})
    return [read for read in found if read.product in later]


def _reads_in_parts(graph: Graph, read: _Read, joined: Node) -> bool:
    """May XLA's kernel of a product read a concatenation from its parts?

    They lie along the only dimension of the operand that is free.
    """
    attrs, joint, array = graph[read.product].attrs, joined.attrs, array_of(joined)
    if not isinstance(attrs, DotAttrs) or not isinstance(joint, DimensionAttrs):
        return False
    if attrs.algorithm or any(p != "DEFAULT" for p in attrs.precision):
        return False
    if array.dtype not in JOINED_DTYPES or array.bytes < LEAST_BYTES:
        return False
    first, second = graph[read.product].operands
    if first == second:
        return False
    taken = {*attrs.lhs_contracting, *attrs.lhs_batch}
    if second == read.operand:
        taken = {*attrs.rhs_contracting, *attrs.rhs_batch}
    if {*range(array_of(graph[read.operand]).rank)} - taken != {read.dimension}:
        return False
    widths = [array_of(graph[part]).shape[joint.dimension] for part in joined.operands]
    return all(width % TILE == 0 for width in widths)


def _comes_from_host(graph: Graph, part: str) -> bool:
    """Is it a value that was kept in the host's memory?

    With such a part left to XLA, it has planned three arrays of the host's memory for four layers' values where two
    are enough.
    """
    attrs = graph[stored_value(graph, part)].attrs
    return isinstance(attrs, OpaqueAttrs) and attrs.reason == IN_HOST


def _is_kept(graph: Graph, part: str, joined: str, left: Collection[str]) -> bool:
    """Does memory hold a part for another reader, or because no kernel computes it?"""
    if is_embedded(graph, part):
        return False

    def is_stitched(name: str) -> bool:
        is_source = OPS[graph[name].op].kind is Kind.SOURCE
        return not (is_source or name in left or why_not_stitchable(graph, graph[name]))

    base = stored_value(graph, part)
    if not is_stitched(base):
        return True
    others = (reader for reader in list_readers(graph, base) if reader != joined)
    return is_result(graph, base) or not all(map(is_stitched, others))
