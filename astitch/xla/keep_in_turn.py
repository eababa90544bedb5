"""An HloModuleProto -> which reduce-scatters of its loops end in the turn in which they start.

XLA moves a reduce-scatter at the end of a loop's turn to the start of the next one (collective-pipeliner).  The loop
then carries what is sent, and memory holds it for a whole turn.  Where products for the next one run beside it, XLA
copies it first.  A turn that has work behind those products runs that beside the reduce-scatters: so they stay there,
by a barrier behind each, past which XLA moves nothing.

Where a turn sends one array, XLA's scheduler runs the next product beside it in the plain program too, and copies it
there.  Where it sends several, it runs the products behind them, and copies nothing.  So these are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from astitch.device.gpu import Gpu
from astitch.xla.control_dependencies import list_before
from astitch.xla.instructions import count_bytes, set_instructions
from astitch.xla.run_beside import project_sent, read_us

LEAST_SHARE = 0.25
"""The least work of a turn that can run beside its reduce-scatters, as a share of their time."""

LEAST_SENT = 2
"""How many arrays a turn must send."""

LEAST_BYTES = 1 << 20
"""What is sent takes little memory below."""

MOVED = frozenset((b"bitcast", b"reshape", b"convert", b"transpose", b"copy"))
"""What XLA moves with a reduce-scatter."""

SUMS = (b"reduce-scatter", b"all-reduce")
"""XLA makes the former of the latter, where a device reads a slice of it."""


def keep_in_turn(module: Any, gpu: Gpu) -> None:
    """Puts barriers behind reduce-scatters that loops write into stacks.  module: one whose ops tell their times."""
    bodies = {
        number
        for computation in module.computations
        for instruction in computation.instructions
        if instruction.opcode == b"while"
        for number in instruction.called_computation_ids
    }
    free = 1 + max(i.id for c in module.computations for i in c.instructions)
    for computation in module.computations:
        if computation.id in bodies:
            ends = dict(_find_ends(computation.instructions))
            if ends and _has_work(computation.instructions, set(ends.values()), gpu):
                free = _bar(computation, ends, free)


def _find_ends(instructions: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """The reduce-scatters whose results a loop writes into a stack that it carries: (result, collective), by id.

    The result is a slice where XLA makes the reduce-scatter of it.
    """
    by_id = {i.id: i for i in instructions}
    users: dict[int, list[int]] = {}
    for i in instructions:
        for operand in i.operand_ids:
            users.setdefault(operand, []).append(i.id)
    for i in instructions:
        if i.opcode != b"dynamic-update-slice":
            continue
        found = by_id[i.operand_ids[1]]
        while found.opcode in MOVED and len(users[found.id]) == 1:
            found = by_id[found.operand_ids[0]]
        sent = by_id[found.operand_ids[0]] if found.opcode == b"dynamic-slice" else found
        kinds = SUMS if sent is not found else SUMS[:1]
        if sent.opcode in kinds and len(users[sent.id]) == len(users[found.id]) == 1:
            yield found.id, sent.id


def _has_work(instructions: Sequence[Any], sent: set[int], gpu: Gpu) -> bool:
    """Does a turn have work beside its reduce-scatters?  Each waits for what the others send: XLA combines them."""
    if len(sent) < LEAST_SENT:
        return False
    by_id = {i.id: i for i in instructions}
    given = {o for number in sent for o in by_id[number].operand_ids}
    if sum(count_bytes(by_id[number]) for number in given) < LEAST_BYTES:
        return False
    place = {number: 1 << at for at, number in enumerate(by_id)}
    before: dict[int, int] = {}
    for i in instructions:
        before[i.id] = 0
        for other in list_before(i):
            before[i.id] |= before[other] | place[other]
    group, awaited = 0, 0
    for number in sent:
        group, awaited = group | place[number], awaited | before[number]
    free = (i for i in instructions if not (place[i.id] & awaited or group & before[i.id]))
    beside = sum(read_us(i, 0.0) for i in free)
    return beside >= LEAST_SHARE * sum(project_sent(by_id[n], by_id, gpu) for n in sent)


def _bar(computation: Any, ends: Collection[int], free: int) -> int:
    """Puts a barrier behind each of the instructions; the first id that is free then.  free: the same before."""
    ordered: list[Any] = []
    barred: dict[int, int] = {}
    for instruction in computation.instructions:
        instruction.operand_ids[:] = [barred.get(o, o) for o in instruction.operand_ids]
        ordered.append(instruction)
        if instruction.id in ends:
            barrier = type(instruction)(
                id=free, name=instruction.name + b".in_turn", opcode=b"opt-barrier"
            )
            barrier.shape.CopyFrom(instruction.shape)
            barrier.operand_ids.append(instruction.id)
            ordered.append(barrier)
            barred[instruction.id], free = free, free + 1
    set_instructions(computation, ordered)
    return free
