"""optimization-barrier: what a program computes again, held apart from what it computed before (jax.checkpoint).

Takes a Graph in which a barrier is one op that hands on all of its operands.  Hands on the Graph in which its readers
read these operands themselves, and each Barrier.  The idea: a barrier keeps equal ops two, and what is behind it late.
Both are decided once every op has its stage; inside a kernel nothing is left of it, only XLA is told of it again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from astitch.graph.edit import free_name, keep_live_nodes
from astitch.graph.ir import ArrayType, GetTupleElementAttrs, Graph, Node
from astitch.graph.ops import OPS, Kind


@dataclass(frozen=True, slots=True)
class Held:
    """An operand of a barrier.  value: the name of the node that computes it.  behind: where the operand is itself the
    result of another barrier, that barrier's name; else empty."""

    value: str
    behind: str = ""


@dataclass(frozen=True, slots=True)
class Barrier:
    """One optimization-barrier.  waits: its operands.  reads: (reader, value) for each op that reads a result of the
    barrier, the value being the operand that the result is equal to.  stage: see stitch_scope.py."""

    name: str
    waits: tuple[Held, ...]
    reads: frozenset[tuple[str, str]]
    stage: int = 0


@dataclass(frozen=True, slots=True)
class Opened:
    """graph: without barriers.  barriers: those that were in it, in their order."""

    graph: Graph
    barriers: tuple[Barrier, ...]


def is_barrier(node: Node) -> bool:
    return OPS[node.op].kind is Kind.BARRIER


def is_held(graph: Graph, node: Node) -> bool:
    """Is the node a barrier, or one result of a barrier?"""
    projects = isinstance(node.attrs, GetTupleElementAttrs)
    return is_barrier(node) or (projects and is_barrier(graph[node.operands[0]]))


def value_behind(graph: Graph, node: Node) -> str:
    """The operand of the barrier that a result of the barrier is equal to.  node: a result, or a barrier with one."""
    if not isinstance(node.attrs, GetTupleElementAttrs):
        return node.operands[0]
    return graph[node.operands[0]].operands[node.attrs.index]


def open_barriers(graph: Graph) -> Opened:
    """The graph in which readers of a barrier's results read the barrier's operands.  Regions keep their barriers."""
    if not any(map(is_barrier, graph)):
        return Opened(graph, ())
    held: dict[str, Held] = {}  # by what a barrier hands on: the value, and that barrier
    nodes: dict[str, Node] = {}
    waits: dict[str, tuple[Held, ...]] = {}
    reads: dict[str, set[tuple[str, str]]] = {}

    def value_of(name: str) -> str:
        return held[name].value if name in held else name

    for node in graph:
        if is_barrier(node):
            waits[node.name] = tuple(held.get(o, Held(o)) for o in node.operands)
        if is_held(graph, node):
            if isinstance(node.type, ArrayType):
                barrier = node.name if is_barrier(node) else node.operands[0]
                held[node.name] = Held(value_of(value_behind(graph, node)), barrier)
            continue
        for operand in node.operands:
            if operand in held:
                pair = node.name, held[operand].value
                reads.setdefault(held[operand].behind, set()).add(pair)
        nodes[node.name] = node.read(tuple(map(value_of, node.operands)))
    outputs = tuple(map(value_of, graph.outputs))
    live = keep_live_nodes(nodes, outputs)
    opened = Graph(graph.name, live, graph.parameters, outputs, graph.aliases)
    barriers = (
        Barrier(
            name,
            _find_live(nodes, live, all_),
            frozenset(pair for pair in reads.get(name, ()) if pair[0] in live),
        )
        for name, all_ in waits.items()
    )
    return Opened(opened, tuple(barriers))


def _find_live(
    nodes: Mapping[str, Node], live: Mapping[str, Node], waits: Sequence[Held]
) -> tuple[Held, ...]:
    """The live values that a barrier waits for.  In place of one that is not live stand the values that it is computed
    from."""
    found: dict[Held, None] = {}
    pending, seen = list(reversed(waits)), set[str]()
    while pending:
        held = pending.pop()
        if held.value in live:
            found[held] = None
        elif held.value not in seen:
            seen.add(held.value)
            pending += (Held(o) for o in nodes[held.value].operands)
    return tuple(found)


def find_behind(barriers: Sequence[Barrier]) -> dict[tuple[str, str], str]:
    """The barrier behind which somebody reads a value, by (reader, value)."""
    return {pair: barrier.name for barrier in barriers for pair in barrier.reads}


def close_barriers(graph: Graph, names: Collection[str], barriers: Sequence[Barrier]) -> Graph:
    """The graph in which the nodes `names` have a barrier of their own before what they read behind a barrier."""
    behind = {pair: name for pair, name in find_behind(barriers).items() if pair[0] in names}
    if not behind:
        return graph
    nodes: dict[str, Node] = {}
    made: dict[tuple[str, str], str] = {}
    taken = set(graph.nodes)
    for node in graph:
        operands = list(node.operands)
        for number, operand in enumerate(node.operands):
            barrier = behind.get((node.name, operand))
            if barrier is None:
                continue
            if (barrier, operand) not in made:
                name = free_name(f"{operand}.{barrier}", taken)
                taken.add(name)
                type_ = graph[operand].type
                nodes[name] = Node(name, "optimization-barrier", type_, (operand,))
                made[barrier, operand] = name
            operands[number] = made[barrier, operand]
        nodes[node.name] = node.read(tuple(operands))
    return replace(graph, nodes=nodes)
