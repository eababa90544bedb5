"""Bytes or text -> the message of an HLO module, whatever form it was given in."""

from __future__ import annotations

import re
from typing import Any

from google.protobuf.message import DecodeError

from astitch.errors import MalformedHlo
from astitch.hlo import schema


def parse_module(data: bytes | str) -> Any:
    """The HloModuleProto of a serialized HloModuleProto or HloProto, or of HLO text.  Raises MalformedHlo."""
    if isinstance(data, bytes) and _is_text(data):
        data = data.decode(errors="replace")
    return _parse_message(_parse_text(data) if isinstance(data, str) else data)


def _is_text(data: bytes) -> bool:
    """HLO text opens with `HloModule` or comments, a proto with the tag byte of its name."""
    return data.lstrip()[:9] == b"HloModule" or data.lstrip()[:2] in (b"//", b"/*")


def _parse_text(text: str) -> bytes:
    elided = re.search(r"(\S+) = [^\n]*?constant\(\{\.\.\.\}\)", text)
    if elided:
        raise MalformedHlo(
            f"HLO text, instruction {elided[1]}: the text elides large constants; dump the proto "
            "instead: XLA_FLAGS=--xla_dump_hlo_as_proto"
        )
    try:
        from jax._src.lib import xla_client  # type: ignore[attr-defined]
    except ImportError as error:
        raise MalformedHlo(
            "HLO text is read by jaxlib's parser, and jax is not installed: install jax, or pass "
            "the serialized HloModuleProto instead (XLA_FLAGS=--xla_dump_hlo_as_proto)"
        ) from error
    try:
        hlo: Any = xla_client.hlo  # type: ignore[attr-defined]
        return bytes(hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())
    except Exception as error:  # jaxlib raises its own runtime error for a syntax error
        raise MalformedHlo(
            f"HLO text: {error}\n  correct the text, or pass the module as a proto"
        ) from error


def _parse_message(data: bytes) -> Any:
    """An HloModuleProto, also when an HloProto wraps it: an HloProto has no entry computation."""
    if not data:
        raise MalformedHlo("HLO module: the input is empty; pass the contents of an HLO dump")
    try:
        module = schema.HloModuleProto.FromString(data)
        if module.entry_computation_id or module.entry_computation_name:
            return module
    except DecodeError:
        pass
    try:
        wrapped = schema.HloProto.FromString(data)
    except DecodeError as error:
        raise MalformedHlo(
            f"HLO module: {len(data)} bytes are no serialized HloModuleProto, or it is truncated; "
            "write the dump again (XLA_FLAGS=--xla_dump_to=DIR --xla_dump_hlo_as_proto)"
        ) from error
    if not wrapped.hlo_module.computations:
        raise MalformedHlo(
            f"HLO module: {len(data)} bytes hold no entry computation: no HloModuleProto, or it "
            "is truncated; write the dump again (XLA_FLAGS=--xla_dump_to=DIR "
            "--xla_dump_hlo_as_proto)"
        )
    return wrapped.hlo_module


def shorten_ids(module: Any) -> None:
    """Instruction ids as they are within their computations: the lower 32 bits.

    TensorFlow's builder puts the computation's id into the upper ones, but not in the ids of operands.
    """
    for computation in module.computations:
        if computation.root_id <= _LOCAL_ID:
            continue
        computation.root_id &= _LOCAL_ID
        for instruction in computation.instructions:
            instruction.id &= _LOCAL_ID
            instruction.operand_ids[:] = [id_ & _LOCAL_ID for id_ in instruction.operand_ids]


_LOCAL_ID = (1 << 32) - 1
