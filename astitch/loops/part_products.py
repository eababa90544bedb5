"""Body of a loop -> the same with products that XLA merged each for itself again, and each dimension for itself.

XLA multiplies what has an operand in common as one: it puts rows of several values one behind the other, merges
dimensions, and cuts the result.  Then a dimension holds rows and numbers of a row together.  Where a thread is to have
all numbers of a row, `F @ P` of [rows, 4, 4] and `F @ x` of [rows, 4] want the same rows.

rewrite/merged_rows.py parts matrices for kernels on tiles, where each piece is cut out again as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps

from astitch.graph.ir import ArrayType, DimensionAttrs, DotAttrs, Graph, Node
from astitch.graph.matmul import label_product
from astitch.graph.ops import OPS, Kind
from astitch.rewrite.draft import Draft, Rule, become
from astitch.rewrite.elementwise_rules import lift_reshape_over_elementwise
from astitch.rewrite.movement_rules import group_dimensions
from astitch.rewrite.simplify import find_rules, rewrite_graph

MOST_NUMBERS = 64
"""Elements of a matrix that a thread has for itself."""


def part_products(body: Graph) -> Graph:
    """The same function; the body itself where it has nothing to part."""
    products = (node for node in body if isinstance(node.attrs, DotAttrs))
    if not any(OPS[body[o].op].lays_out for node in products for o in node.operands):
        return body
    return rewrite_graph(
        body, lambda rule, node: None, lambda node, draft, values: None, rules=_find_rules
    )


def part_small_products(graph: Graph) -> Graph:
    """The same function, in which only products with matrices of few numbers are parted."""
    rules = partial(_find_rules, own=_SMALL_RULES)
    return rewrite_graph(
        graph, lambda rule, node: None, lambda node, draft, values: None, rules=rules
    )


def _if_small(rule: Rule) -> Rule:
    @wraps(rule)
    def part(node: Node, draft: Draft) -> Node | str | None:
        is_small = any(draft[operand].array.size <= MOST_NUMBERS for operand in node.operands)
        return rule(node, draft) if is_small else None

    return part


def part_joined_operand(node: Node, draft: Draft) -> Node | str | None:
    """dot(concatenate(x, y), w) -> concatenate(dot(x, w), dot(y, w)), where no sum crosses the pieces"""
    assert isinstance(node.attrs, DotAttrs)
    for side, labels in enumerate(_label(node, draft)):
        joined = draft[node.operands[side]]
        if joined.op != "concatenate" or not isinstance(joined.attrs, DimensionAttrs):
            continue
        dimension = labels[joined.attrs.dimension]
        if not len(node.attrs.lhs_batch) <= dimension < node.array.rank:
            continue
        parts = []
        for piece in joined.operands:
            operands = _put_at(node.operands, side, piece)
            shape = list(node.shape)
            shape[dimension] = draft[piece].shape[joined.attrs.dimension]
            type_ = ArrayType(node.dtype, tuple(shape))
            parts.append(draft.add(node, "dot", type_, operands, node.attrs))
        return become(node, "concatenate", tuple(parts), DimensionAttrs(dimension))
    return None


def lift_reshape_over_dot(node: Node, draft: Draft) -> Node | str | None:
    """dot(reshape(x), w) -> reshape(dot(x, w)), where the reshape merges or parts no dimension that is summed"""
    assert isinstance(node.attrs, DotAttrs)
    batches = (node.attrs.lhs_batch, node.attrs.rhs_batch)
    summed = (node.attrs.lhs_contracting, node.attrs.rhs_contracting)
    for side, labels in enumerate(_label(node, draft)):
        reshaped = draft[node.operands[side]]
        if reshaped.op != "reshape":
            continue
        source = draft[reshaped.operands[0]]
        place = {
            after[0]: before[0]
            for before, after in group_dimensions(source.shape, reshaped.shape)
            if len(before) == len(after) == 1
        }
        if not all(d in place for d in (*batches[side], *summed[side])):
            continue
        batch, contracting = (tuple(place[d] for d in dims[side]) for dims in (batches, summed))
        if side == 0:
            attrs = replace(node.attrs, lhs_batch=batch, lhs_contracting=contracting)
        else:
            attrs = replace(node.attrs, rhs_batch=batch, rhs_contracting=contracting)
        free = [n for d, n in enumerate(source.shape) if d not in (*batch, *contracting)]
        at = [number for number in sorted(labels) if _is_free(node, number)]
        shape = (*node.shape[: at[0]], *free, *node.shape[at[-1] + 1 :]) if at else None
        if shape is None or shape == node.shape:
            continue
        operands = _put_at(node.operands, side, source.name)
        product = draft.add(node, "dot", ArrayType(node.dtype, shape), operands, attrs)
        return become(node, "reshape", (product,))
    return None


def lift_merging_reshape(node: Node, draft: Draft) -> Node | str | None:
    """f(reshape(x), reshape(y)) -> reshape(f(x, y)), for x and y of one shape"""
    return lift_reshape_over_elementwise(node, draft, merges=True)


def _is_free(node: Node, label: int) -> bool:
    assert isinstance(node.attrs, DotAttrs)
    return len(node.attrs.lhs_batch) <= label < node.array.rank


def _label(node: Node, draft: Draft) -> Sequence[tuple[int, ...]]:
    assert isinstance(node.attrs, DotAttrs)
    lhs, rhs = (draft[operand].array.rank for operand in node.operands)
    return label_product(node.attrs, lhs, rhs)


def _put_at(operands: tuple[str, ...], side: int, name: str) -> tuple[str, ...]:
    return (*operands[:side], name, *operands[side + 1 :])


_RULES: dict[str, tuple[Rule, ...]] = {"dot": (part_joined_operand, lift_reshape_over_dot)}
_SMALL_RULES = {op: tuple(map(_if_small, rules)) for op, rules in _RULES.items()}


def _find_rules(op: str, own: Mapping[str, tuple[Rule, ...]] = _RULES) -> tuple[Rule, ...]:
    """own: in place of simplify's rules, which merge dimensions."""
    found = own.get(op) or find_rules(op)
    row = OPS.get(op)
    is_elementwise = row is not None and row.kind is Kind.ELEMENTWISE
    return (*found, lift_merging_reshape) if is_elementwise else found
