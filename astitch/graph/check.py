"""Takes the product of a stage; hands it on unchanged, or raises IllegalProduct around the fault.

The idea: an op's legality is the rule in its row (graph/ops), `infer_type(node, operand types)`.  So a stage may build
any graph it likes, and the first wrong node is named here, not five stages later.  The importer asks the same rules of
each instruction: what breaks one there is the input's fault.
"""

from __future__ import annotations

from collections.abc import Sequence

from astitch.errors import IllegalProduct
from astitch.graph.ir import ArrayType, Graph, Node, ParameterAttrs, TupleType, Type
from astitch.graph.ops import OPS, Op
from astitch.graph.ops.rules import BrokenRule, Part, attrs_of, elements_of, require

_LINES_AROUND = 3


def check_graph(graph: Graph, before: Graph | None = None) -> Graph:
    """The same graph, if it keeps the rules of ir.py and the rule in every op's row.

    Order is topological; operands, parameters and outputs exist; parameters are numbered; counts,
    types and regions fit the op.  Regions are checked too.  before: a graph that was checked; what
    is in both, with operands of the same types, is not asked again for the rule in its row.
    Raises IllegalProduct with the lines around the first fault.
    """
    if graph is not before:
        _check_nodes(graph, {}, before)
    return graph


def infer_type(node: Node, operand_types: Sequence[Type]) -> Type:
    """The type that the op's rule gives the node.

    What an op leaves open (the dtype of convert, dot or iota; the shape of broadcast or reshape;
    everything of custom-call) is taken from the node's own type, once that is found possible.
    Raises BrokenRule with a sentence where operands, attributes or regions break the rule.
    """
    _check_region_count(node)
    return _find_row(node).rule(node, operand_types)


def _find_row(node: Node) -> Op:
    row = OPS.get(node.op)
    if row is None:
        raise BrokenRule(f"there is no op {node.op!r} in astitch/graph/ops", Part.ATTRIBUTES)
    return row


def check_node(node: Node, operand_types: Sequence[Type]) -> None:
    """Raises BrokenRule where the node breaks its op's rule, or has another type than the rule gives it."""
    inferred = infer_type(node, operand_types)
    if inferred != node.type and elements_of(inferred) != elements_of(node.type):
        raise BrokenRule(f"the operands give {inferred}", Part.TYPE)


# ---- the graph as a whole


def _check_nodes(graph: Graph, checked: dict[int, Graph], before: Graph | None = None) -> None:
    if id(graph) in checked:
        return
    checked[id(graph)] = graph  # keeps it alive, so that its id stays its own
    known = before.nodes if before else {}
    types: dict[str, Type] = {}
    for key, node in graph.nodes.items():
        try:
            if key != node.name:
                raise IllegalProduct(f"is stored under the name {key!r}")
            for operand in node.operands:
                if operand not in types:
                    late = operand in graph.nodes
                    what = "comes after its user" if late else "does not exist"
                    raise IllegalProduct(f"operand %{operand} {what}")
            _check_parameter(graph, node)
            same = known.get(key) is node and all(known[o].type is types[o] for o in node.operands)
            if not same:
                check_node(node, [types[o] for o in node.operands])
        except IllegalProduct as fault:
            raise IllegalProduct(_show_fault(graph, node, str(fault))) from None
        for region in () if same else node.regions:
            _check_nodes(region, checked)
        types[node.name] = node.type
    _check_edges(graph)


def _check_parameter(graph: Graph, node: Node) -> None:
    if not node.is_parameter:
        return
    attrs = attrs_of(node, ParameterAttrs)
    require(isinstance(node.type, ArrayType), "a parameter is an array")
    require(
        attrs.index in range(len(graph.parameters)) and graph.parameters[attrs.index] == node.name,
        f"the graph does not list it as parameter {attrs.index}",
    )


def _check_edges(graph: Graph) -> None:
    def refuse(sentence: str) -> None:
        raise IllegalProduct(f"graph {graph.name}: {sentence}{_ADVICE}")

    numbers: dict[str, int] = {}
    for i, name in enumerate(graph.parameters):
        if name not in graph.nodes or not graph[name].is_parameter:
            refuse(f"parameter {i}, %{name}, is not a parameter node")
        if numbers.setdefault(name, i) != i:
            refuse(f"%{name} is listed as parameter {numbers[name]} and {i}")
    for i, name in enumerate(graph.outputs):
        if name not in graph.nodes:
            refuse(f"output {i}, %{name}, does not exist")
        if isinstance(graph[name].type, TupleType):
            refuse(f"output {i}, %{name}, is a tuple; outputs are arrays")
    for output, parameter in graph.aliases:
        if output not in range(len(graph.outputs)) or parameter not in range(len(graph.parameters)):
            refuse(f"alias of output {output} to parameter {parameter} names what does not exist")


_ADVICE = "\n  the stage that handed on this graph has a bug; print its input and report both"


def _show_fault(graph: Graph, node: Node, sentence: str) -> str:
    names = list(graph.nodes)
    at = next(i for i, name in enumerate(names) if graph.nodes[name] is node)
    lines = [
        f"  {'>' if i == at else ' '} {graph.nodes[names[i]]}"
        for i in range(max(0, at - _LINES_AROUND), min(len(names), at + _LINES_AROUND + 1))
    ]
    return f"graph {graph.name}, %{node.name}: {sentence}\n" + "\n".join(lines) + _ADVICE


# ---- words shared by the rules


def _check_region_count(node: Node) -> None:
    """A conditional may have any number, each checked by its rule; what a custom-call calls nobody here knows."""
    row = OPS.get(node.op)
    count = 0 if row is None else row.regions
    if count is not None and len(node.regions) != count:
        raise BrokenRule(
            f"{node.op} needs {count} regions, it has {len(node.regions)}", Part.REGIONS
        )
