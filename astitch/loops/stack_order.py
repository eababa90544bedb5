"""Graph -> Graph: a loop that is one kernel reads and writes its stacks as they lie outside.

`vmap` of a scan is given [rows, turns, numbers] and gives that back.  JAX's scan goes along the first dimension, so the
arrays are transposed in front of the loop and behind it: each is there twice.  XLA's layout assignment lets its own
loops read and write them as they lie.  Here the loop carries them so; its slices lie along another dimension.
"""

from __future__ import annotations

import math
from dataclasses import replace

from astitch.cost.workload import SECTOR_BYTES
from astitch.graph.ir import (
    DynamicSliceAttrs,
    GetTupleElementAttrs,
    Graph,
    Node,
    TransposeAttrs,
)
from astitch.graph.ops import OPS
from astitch.loops.carry import Permutation, State, carry, invert, list_movable
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
    """The same function; the graph itself where no loop changes."""
    for name in [node.name for node in graph if OPS[node.op].is_loop]:
        states = _find_states(graph, graph[name])
        before = planner.plan(graph, graph[name]) if states else None
        if not isinstance(before, LoopPlan):
            continue
        carried = carry(graph, graph[name], states)
        condition, body = carried[name].regions
        loop = replace(carried[name], regions=(condition, simplify(body)))
        carried = replace(carried, nodes={**carried.nodes, name: loop})
        after = planner.plan(carried, loop)
        if isinstance(after, LoopPlan) and after.us <= SLOWER * before.us:
            graph = carried
    return graph


def _find_states(graph: Graph, loop: Node) -> dict[int, State]:
    """By its number, the stacks that are transposed in front of a loop or behind it."""
    found: dict[int, State] = {}
    for number in list_movable(graph, loop):
        stack = loop.regions[1][loop.regions[1].parameters[number]]
        state = _find_given(graph, loop, number) or _find_wanted(graph, loop, number)
        is_large = state is not None and stack.array.bytes >= LEAST_BYTES
        if state is not None and is_large and _moves_turns_alone(stack, state.permutation):
            found[number] = state
    return found


def _find_given(graph: Graph, loop: Node, number: int) -> State | None:
    """An array that is transposed in front of the loop; turns read slices of it, and nobody else does."""
    transpose, body = graph[loop.operands[number]], loop.regions[1]
    parameter = body.parameters[number]
    users = [body[user] for user in body.users[parameter]]
    stays = body.outputs[number] == parameter and body.outputs.count(parameter) == 1
    if not isinstance(transpose.attrs, TransposeAttrs) or not stays:
        return None
    if not users or _list_parts(graph, loop, number):
        return None
    if not all(
        isinstance(u.attrs, DynamicSliceAttrs) and u.operands[0] == parameter for u in users
    ):
        return None
    if any(user.shape[0] != 1 for user in users):
        return None
    readers = frozenset(user.name for user in users)
    return State(invert(transpose.attrs.permutation), frozenset({parameter}), readers)


def _find_wanted(graph: Graph, loop: Node, number: int) -> State | None:
    """An array of which turns write slices; it is transposed behind the loop, and nobody else reads it."""
    parts, body = _list_parts(graph, loop, number), loop.regions[1]
    readers = {reader for part in parts for reader in graph.users[part]}
    if len(readers) != 1 or {*parts} & {*graph.outputs}:
        return None
    parameter, update = body.parameters[number], body[body.outputs[number]]
    attrs = graph[readers.pop()].attrs
    if not isinstance(attrs, TransposeAttrs) or not OPS[update.op].writes_into or update.regions:
        return None
    if body.users[parameter] != (update.name,) or update.operands[0] != parameter:
        return None
    if body.users[update.name] or body.outputs.count(update.name) != 1:
        return None
    if body[update.operands[1]].shape[0] != 1:
        return None
    return State(attrs.permutation, frozenset({parameter, update.name}), frozenset())


def _list_parts(graph: Graph, loop: Node, number: int) -> list[str]:
    """What reads a part of a loop's final state by its number."""
    users = (graph[user] for user in graph.users[loop.name])
    return [user.name for user in users if user.attrs == GetTupleElementAttrs(number)]


def _moves_turns_alone(stack: Node, order: Permutation) -> bool:
    """Does a stack in an order have rows and numbers as before, and a row's numbers side by side?"""
    if not ascends([d for d in order if d]):
        return False
    beside = math.prod(stack.shape[d] for d in order[order.index(0) + 1 :])
    return SECTOR_SHARE * beside * stack.dtype.bytes >= SECTOR_BYTES
