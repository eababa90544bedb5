"""What passes over an HloModuleProto ask of its instructions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from astitch.hlo.schema import decode
from astitch.hlo.shapes import read_type, shape_leaves
from astitch.xla.write_module import TARGET

SOURCES, VIEWS = (b"parameter", b"constant"), (b"bitcast", b"reshape")

ELEMENTWISE = frozenset(
    b"abs add and atan2 cbrt ceil clamp compare complex convert bitcast-convert cosine count-leading-zeros divide erf "
    b"exponential exponential-minus-one floor imag is-finite log log-plus-one logistic maximum minimum multiply "
    b"negate not or popcnt power real reduce-precision remainder round-nearest-afz round-nearest-even rsqrt select "
    b"shift-left shift-right-arithmetic shift-right-logical sign sine sqrt subtract tan tanh xor".split()
)
"""The opcodes of ops that XLA always fuses, and that read their operands at the place of the result's element."""


def is_kernel(instruction: Any) -> bool:
    """Is it a call of a kernel of ours?"""
    is_call = instruction.opcode == b"custom-call"
    return bool(is_call and decode(instruction.custom_call_target) == TARGET)


def count_bytes(instruction: Any) -> int:
    """The bytes of its results."""
    leaves = shape_leaves(instruction.shape)
    return sum(getattr(read_type(leaf, "a kernel"), "bytes", 0) for leaf, _ in leaves)


def set_instructions(computation: Any, instructions: Iterable[Any]) -> None:
    """A computation gets these instructions, in this order.  They may be its own."""
    copies = [type(i).FromString(i.SerializeToString()) for i in instructions]
    del computation.instructions[:]
    computation.instructions.extend(copies)


def find_base(by_id: Mapping[int, Any], number: int, views: Collection[bytes] = VIEWS) -> int:
    """The id of the instruction of which another is a view.  views: the opcodes of views."""
    while by_id[number].opcode in views:
        number = by_id[number].operand_ids[0]
    return number


def list_readers(
    by_id: Mapping[int, Any],
    users: Mapping[int, Sequence[int]],
    number: int,
    views: Collection[bytes] = VIEWS,
) -> list[int]:
    """The ids of the instructions that read one or a view of it.  users: by id, those that name it."""
    found: list[int] = []
    pending = [number]
    while pending:
        for user in users[pending.pop()]:
            (pending if by_id[user].opcode in views else found).append(user)
    return found
