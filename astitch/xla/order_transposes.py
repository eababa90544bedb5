"""HloModuleProto -> in which order its entry transposes what a loop carries: memory holds one array twice, not all.

Behind the transpose of a donated argument nothing is in its memory until its result is written, and XLA puts there what
lives no longer than that.  The arrays are transposed one after the other in front of the loop, and back in reverse
order: each but the first finds room in the one before.  XLA orders instructions by control dependencies.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any


def order_transposes(entry: Any) -> None:
    """Adds control dependencies to an HloComputationProto whose root is a tuple, and puts its instructions in order."""
    instructions = {i.id: i for i in entry.instructions}
    chained: set[int] = set()  # of equal transposes one stands for all, also in several loops
    waiting: list[Any] = []
    for loop in entry.instructions:
        if loop.opcode == b"while":
            before, after = _find_transposes(instructions, entry.root_id, loop)
            order = sorted(before, key=lambda n: (-math.prod(before[n].shape.dimensions), n))
            first = {before[number].id: before[number] for number in order}
            last = {after[n].id: after[n] for n in reversed(order) if n in after}
            for chain in (first, last):
                new = [made for number, made in chain.items() if number not in chained]
                chained.update(chain)
                for one, other in pairwise(new):
                    other.control_predecessor_ids.append(one.id)
                    waiting.append(other)
    if not waiting:
        return
    ordered = list(_sort(entry.instructions))
    if len(ordered) < len(entry.instructions):  # they wait for each other
        for other in waiting:
            del other.control_predecessor_ids[-1]
        return
    del entry.instructions[:]
    entry.instructions.extend(ordered)


def _find_transposes(
    instructions: dict[int, Any], root: int, loop: Any
) -> tuple[dict[int, Any], dict[int, Any]]:
    """By the number in a loop's state: the transposes of parameters in front of it, and those behind it that only the
    root reads."""
    state = instructions[loop.operand_ids[0]]
    before: dict[int, Any] = {}
    if state.opcode == b"tuple":
        for number, operand in enumerate(state.operand_ids):
            made = instructions[operand]
            if _is_transpose_of(instructions, made, b"parameter"):
                before[number] = made
    users: dict[int, list[Any]] = {}
    for instruction in instructions.values():
        for operand in instruction.operand_ids:
            users.setdefault(operand, []).append(instruction)
    after: dict[int, Any] = {}
    for part in users.get(loop.id, []):
        for made in users.get(part.id, []) if part.opcode == b"get-tuple-element" else []:
            if made.opcode == b"transpose" and [u.id for u in users.get(made.id, [])] == [root]:
                after[part.tuple_index] = made
    return before, after


def _is_transpose_of(instructions: dict[int, Any], made: Any, opcode: bytes) -> bool:
    read = instructions[made.operand_ids[0]] if made.operand_ids else None
    return made.opcode == b"transpose" and read is not None and bool(read.opcode == opcode)


def _sort(instructions: Any) -> Iterator[Any]:
    """Each behind its operands and control dependencies; else in the order that they have."""
    numbers = {i.id: number for number, i in enumerate(instructions)}
    waits = [{*i.operand_ids, *i.control_predecessor_ids} for i in instructions]
    users: dict[int, list[int]] = {}
    for number, ids in enumerate(waits):
        for before in ids:
            users.setdefault(numbers[before], []).append(number)
    left = [len(ids) for ids in waits]
    ready = [number for number, count in enumerate(left) if not count]
    heapq.heapify(ready)
    copies = [type(i).FromString(i.SerializeToString()) for i in instructions]
    while ready:
        number = heapq.heappop(ready)
        yield copies[number]
        for user in users.get(number, []):
            left[user] -= 1
            if not left[user]:
                heapq.heappush(ready, user)
