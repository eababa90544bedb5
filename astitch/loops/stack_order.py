"""Graph -> Graph: a loop that is one kernel reads and writes its stacks as they lie outside.

`vmap` of a scan is given [rows, turns, numbers] and gives that back.  JAX's scan goes along the first dimension, so the
arrays are transposed in front of the loop and behind it: each is there twice.  XLA's layout assignment lets its own
loops read and write them as they lie.  Here the loop carries them so; its slices lie along another dimension.
"""

from __future__ import annotations

import math

from astitch.cost.workload import SECTOR_BYTES
from astitch.graph.ir import (
    DynamicSliceAttrs,
    GetTupleElementAttrs,
    Graph,
    Node,
    TransposeAttrs,
    TupleType,
)
from astitch.graph.ops import OPS
from astitch.loops.carry import State, carry
from astitch.loops.plan import LoopPlan, LoopPlanner
from astitch.rewrite.draft import ascends
from astitch.rewrite.simplify import simplify

LEAST_BYTES = 256 << 10
"""A smaller array costs little memory, and its transpose less time than a launch takes: an estimate."""

SECTOR_SHARE = 3
"""A transpose reads and writes an array once more.  So what a row has side by side may be a third of a sector: at the
worst a turn moves whole sectors for it."""

SLOWER = 1.02
"""What a loop's projection may grow by."""


def carry_as_given(graph: Graph, planner: LoopPlanner) -> Graph:
    """The same function."""
    for name in [node.name for node in graph if OPS[node.op].is_loop]:
        states = _find_states(graph, graph[name])
        before = planner.plan(graph, graph[name]) if states else None
        if not isinstance(before, LoopPlan):
            continue
        carried = simplify(carry(graph, graph[name], states))
        after = planner.plan(carried, carried[name]) if name in carried.nodes else None
        if isinstance(after, LoopPlan) and after.us <= SLOWER * before.us:
            graph = carried
    return graph


def _find_states(graph: Graph, loop: Node) -> dict[int, State]:
    """By its number, the stacks that are transposed in front of a loop or behind it."""
    users = [graph[user] for user in graph.users[loop.name]]
    projected = all(isinstance(user.attrs, GetTupleElementAttrs) for user in users)
    if not isinstance(loop.type, TupleType) or not projected or loop.name in graph.outputs:
        return {}
    condition, body = loop.regions
    found: dict[int, State] = {}
    for number, parameter in enumerate(body.parameters):
        counted = condition.parameters[number]
        if condition.users[counted] or counted in condition.outputs:
            continue
        parts = [user for user in users if _number_of(user) == number]
        transpose = graph[loop.operands[number]]
        state = _find_read(body, parameter, number)
        if state is None:
            state = _find_written(body, parameter, number)
            readers = {reader for part in parts for reader in graph.users[part.name]}
            if state is None or len(readers) != 1 or any(p.name in graph.outputs for p in parts):
                continue
            transpose = graph[readers.pop()]
        elif parts:
            continue
        attrs = transpose.attrs
        if not isinstance(attrs, TransposeAttrs) or transpose.array.bytes < LEAST_BYTES:
            continue
        order = attrs.permutation
        if transpose.name == loop.operands[number]:
            order = tuple(order.index(d) for d in range(len(order)))
        if _moves_turns_alone(body[parameter], order):
            found[number] = State(order, *state)
    return found


def _number_of(node: Node) -> int:
    assert isinstance(node.attrs, GetTupleElementAttrs)
    return node.attrs.index


Held = tuple[frozenset[str], frozenset[str]]
"""Of a body: the state and its updates; what reads it."""


def _find_read(body: Graph, parameter: str, number: int) -> Held | None:
    """What reads slices of an array that no turn changes, if nothing else does."""
    users = body.users[parameter]
    is_whole = body.outputs[number] == parameter and body.outputs.count(parameter) == 1
    slices = (isinstance(body[user].attrs, DynamicSliceAttrs) for user in users)
    if not is_whole or not users or not all(slices):
        return None
    if any(body[user].operands[0] != parameter or body[user].shape[0] != 1 for user in users):
        return None
    return frozenset({parameter}), frozenset(users)


def _find_written(body: Graph, parameter: str, number: int) -> Held | None:
    """The update of an array of which each turn writes a slice, if nothing else reads it."""
    update = body[body.outputs[number]]
    is_update = OPS[update.op].writes_into and not update.regions
    if not is_update or update.operands[0] != parameter or body.users[update.name]:
        return None
    if [*body.users[parameter]] != [update.name] or body.outputs.count(update.name) != 1:
        return None
    if body[update.operands[1]].shape[0] != 1:
        return None
    return frozenset({parameter, update.name}), frozenset()


def _moves_turns_alone(stack: Node, order: tuple[int, ...]) -> bool:
    """Does a stack in an order have rows and numbers as before, and a row's numbers side by side?"""
    if not ascends([d for d in order if d]):
        return False
    beside = math.prod(stack.shape[d] for d in order[order.index(0) + 1 :])
    return SECTOR_SHARE * beside * stack.dtype.bytes >= SECTOR_BYTES
