"""Graph -> Graph: merges, folds, and one canonical form of broadcasts, reshapes and transposes.

The idea: a rule is a small function whose docstring is the equation; it looks only at a node and at what lies below it.
So one bottom-up pass that puts every new node through the rules is a fixpoint.  No rule changes a bit of a result (the
payload of a NaN excepted, which HLO leaves open).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from astitch.graph.edit import keep_live_nodes
from astitch.graph.ir import (
    Graph,
    Node,
)
from astitch.graph.ops import OPS, Kind
from astitch.rewrite.control_rules import choose_known_result, project_known_result
from astitch.rewrite.draft import Draft, Log, Rule, Rules
from astitch.rewrite.elementwise_rules import (
    cancel_involution,
    choose_branch,
    compare_random_bits,
    drop_copy,
    drop_identity,
    drop_neutral_operand,
    drop_zero_beside_sum,
    fold_constants,
    fold_empty,
    fold_splats,
    lift_reshape_over_elementwise,
    merge_bitcast_converts,
    merge_converts,
    merge_equal_operands,
    spread_splat_constant,
    take_absorbing_operand,
    zero_short_iota,
)
from astitch.rewrite.movement_rules import (
    absorb_transpose_into_broadcast,
    drop_empty_pad,
    drop_empty_pieces,
    drop_full_update,
    drop_identity_broadcast,
    drop_trivial_reverse,
    drop_trivial_transpose,
    merge_broadcasts,
    merge_reshapes,
    merge_reverses,
    merge_slices,
    merge_transposes,
    reshape_constant,
    sink_reshape_below_broadcast,
    sink_slice_below_broadcast,
    sink_transpose_below_outer,
    slice_one_piece,
    slice_statically,
    sort_broadcast_dimensions,
    squeeze_broadcast_operand,
    start_iota_at_index,
    tighten_slice,
)
from astitch.rewrite.ranges import Range, decide_by_range, drop_wide_bounds
from astitch.rewrite.reduction_rules import (
    absorb_merged_transpose_into_dot,
    absorb_reverse_into_convolution,
    absorb_transpose_into_dot,
    absorb_transpose_into_reduce,
    drop_trivial_reduce,
    sort_reduced_dimensions,
    start_empty_reduce,
    sum_below_transposes,
)


def simplify(
    graph: Graph, log: Log | None = None, ranges: Mapping[str, Range] | None = None
) -> Graph:
    """The same function of the same parameters with fewer and simpler nodes.

    Parameters stay, dead ones too; so do the number and order of outputs, and the name, op_name
    and source of every node that survives.  Regions are simplified as well.  Applying it again
    changes nothing.  `log` hears of every rule that fires, in regions too.
    ranges: what integer parameters lie between, where the caller knows more than their types say.
    """
    return _simplify_graph(graph, log or _ignore, {}, ranges or {})


def _ignore(rule: str, node: str) -> None:
    """The log of a caller who does not want one."""


def _simplify_graph(
    graph: Graph, log: Log, regions: dict[int, Graph], ranges: Mapping[str, Range]
) -> Graph:
    """`regions`: id of a region of the source graph -> its simplified form."""
    draft = start_draft(graph, log)
    draft.ranges.update(ranges)
    values: dict[str, str] = {}
    for node in graph:
        for region in node.regions:
            if id(region) not in regions:
                regions[id(region)] = _simplify_graph(region, log, regions, {})
        operands = tuple(values[o] for o in node.operands)
        node_regions = tuple(regions[id(r)] for r in node.regions)
        if operands != node.operands or node_regions:
            node = replace(node, operands=operands, regions=node_regions)
        values[node.name] = draft.put(node)
    outputs = tuple(values[o] for o in graph.outputs)
    nodes = keep_live_nodes(draft.nodes, outputs)
    for name in draft.nodes:
        if name in graph.nodes and name not in nodes:
            log("drop_dead_nodes", name)
    return Graph(graph.name, nodes, graph.parameters, outputs, graph.aliases)


def start_draft(graph: Graph, log: Log, rules: Rules | None = None) -> Draft:
    """A graph in the making that takes nodes in the simplest form by the rules below, or by others."""
    return Draft(graph, log, rules or find_rules)


Change = Callable[[Node, "Draft", Mapping[str, str]], str | None]
"""(node with its new operands, draft, new values by old name) -> the value that stands for it, or None: itself."""


def rewrite_graph(
    graph: Graph,
    log: Log,
    change: Change,
    order: Iterable[Node] | None = None,
    rules: Rules | None = None,
) -> Graph:
    """The graph with what `change` makes of each node, in simplest form; dead nodes are gone.

    order: of the graph's nodes, operands first; the graph's own where it is None.  rules: by which nodes get their
    simplest form; those of simplify where it is None.
    """
    draft = start_draft(graph, log, rules)
    values: dict[str, str] = {}
    for node in graph if order is None else order:
        moved = node.read(tuple([values[o] for o in node.operands]))
        changed = change(moved, draft, values)
        values[node.name] = draft.put(moved) if changed is None else changed
    outputs = tuple(values[o] for o in graph.outputs)
    nodes = keep_live_nodes(draft.nodes, outputs)
    return Graph(graph.name, nodes, graph.parameters, outputs, graph.aliases)


# ---- the table

_NO_RULES: tuple[Rule, ...] = (fold_empty,)

_OWN_RULES: dict[str, tuple[Rule, ...]] = {
    "parameter": (),
    "constant": (spread_splat_constant,),
    "iota": (zero_short_iota,),
    "add": (drop_neutral_operand, drop_zero_beside_sum),
    "subtract": (drop_neutral_operand,),
    "multiply": (drop_neutral_operand, take_absorbing_operand),
    "divide": (drop_neutral_operand,),
    "shift-left": (drop_neutral_operand,),
    "shift-right-arithmetic": (drop_neutral_operand,),
    "shift-right-logical": (drop_neutral_operand,),
    "xor": (drop_neutral_operand,),
    "and": (drop_neutral_operand, take_absorbing_operand, merge_equal_operands),
    "or": (drop_neutral_operand, take_absorbing_operand, merge_equal_operands),
    "maximum": (drop_neutral_operand, merge_equal_operands, decide_by_range, drop_wide_bounds),
    "minimum": (drop_neutral_operand, merge_equal_operands, decide_by_range, drop_wide_bounds),
    "clamp": (decide_by_range, drop_wide_bounds),
    "negate": (cancel_involution,),
    "not": (cancel_involution,),
    "copy": (drop_copy,),
    "select": (choose_branch, decide_by_range),
    "compare": (decide_by_range, compare_random_bits),
    "convert": (drop_identity, merge_converts),
    "bitcast-convert": (drop_identity, merge_bitcast_converts),
    "broadcast": (
        merge_broadcasts,
        squeeze_broadcast_operand,
        sort_broadcast_dimensions,
        drop_identity_broadcast,
    ),
    "reshape": (
        drop_identity,
        merge_reshapes,
        reshape_constant,
        sink_reshape_below_broadcast,
    ),
    "transpose": (
        merge_transposes,
        drop_trivial_transpose,
        absorb_transpose_into_broadcast,
        sink_transpose_below_outer,
    ),
    "slice": (
        drop_identity,
        merge_slices,
        sink_slice_below_broadcast,
        slice_one_piece,
        tighten_slice,
        decide_by_range,
    ),
    "pad": (drop_empty_pad,),
    "concatenate": (drop_empty_pieces,),
    "reverse": (drop_trivial_reverse, merge_reverses),
    "dynamic-slice": (slice_statically, start_iota_at_index),
    "dynamic-update-slice": (drop_full_update,),
    "reduce": (
        start_empty_reduce,
        drop_trivial_reduce,
        absorb_transpose_into_reduce,
        sum_below_transposes,
        sort_reduced_dimensions,
        decide_by_range,
    ),
    "dot": (absorb_transpose_into_dot, absorb_merged_transpose_into_dot),
    "convolution": (absorb_reverse_into_convolution,),
    "while": (choose_known_result,),
    "conditional": (choose_known_result,),
    "get-tuple-element": (project_known_result,),
}


def _rules_of(op: str) -> tuple[Rule, ...]:
    if op == "parameter" or op not in OPS:
        return ()
    own, kind = _OWN_RULES.get(op, ()), OPS[op].kind
    if kind is Kind.ELEMENTWISE:
        return (fold_empty, *own, fold_splats, fold_constants, lift_reshape_over_elementwise)
    if op == "constant":
        return own
    if kind in (Kind.INDEX, Kind.REDUCE):
        return (fold_empty, *own, fold_constants)
    return (fold_empty, *own)


RULES: Mapping[str, tuple[Rule, ...]] = {op: _rules_of(op) for op in OPS}
"""For each op the rules that may apply.  Their order does not matter for what they arrive at."""


def find_rules(op: str) -> tuple[Rule, ...]:
    return RULES.get(op, _NO_RULES)


_ARRANGED: Mapping[str, tuple[Rule, ...]] = {**RULES, "dot": ()}


def find_arranged_rules(op: str) -> tuple[Rule, ...]:
    """The rules once products are arranged: in which order a product reads its operands is decided."""
    return _ARRANGED.get(op, _NO_RULES)
