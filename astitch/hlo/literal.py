"""Literals: the elements of a constant, read from and written to the field of their type."""

from __future__ import annotations

from typing import Any

import numpy as np

from astitch.errors import MalformedHlo
from astitch.graph.ir import ArrayType, DType, Literal
from astitch.hlo import schema
from astitch.hlo.shapes import layout_order, write_shape


def read_literal(literal: Any, type_: ArrayType, where: str) -> Literal:
    """A literal's elements, in the order of its layout, are in a field for each type."""
    stored = getattr(literal, f"{type_.dtype.value}s")
    if isinstance(stored, bytes):
        flat = np.frombuffer(
            stored[: len(stored) // type_.dtype.bytes * type_.dtype.bytes], type_.dtype.numpy
        )
    elif type_.dtype.is_complex:
        part = np.float32 if type_.dtype is DType.C64 else np.float64
        flat = np.array(stored, part)
        flat = flat[: len(flat) // 2 * 2].view(type_.dtype.numpy)
    else:
        flat = np.array(stored, type_.dtype.numpy)
    if flat.size != type_.size:
        raise MalformedHlo(
            f"{where}: the literal has {flat.size} of {type_.size} elements; the dump elides "
            "large constants, write it again as a proto: XLA_FLAGS=--xla_dump_hlo_as_proto"
        )
    order = layout_order(literal.shape, where)
    if order != tuple(range(type_.rank)) and len(order) == type_.rank:
        physical = flat.reshape([type_.shape[d] for d in order])
        flat = physical.transpose([order.index(d) for d in range(type_.rank)])
    return Literal(type_.dtype, type_.shape, flat.tobytes())


def write_literal(literal: Literal) -> Any:
    """The elements in the field of their type.

    Where the wire holds words of a fixed size the bytes go there as they are: Python's float would quiet a NaN.
    """
    proto = schema.LiteralProto()
    name = f"{literal.dtype.value}s"
    number = schema.LiteralProto.DESCRIPTOR.fields_by_name[name].number
    if literal.dtype in _VARINT:
        getattr(proto, name).extend(literal.numpy().ravel().tolist())
    elif literal.data:
        proto.MergeFromString(
            _write_varint(number << 3 | 2) + _write_varint(len(literal.data)) + literal.data
        )
    proto.shape.CopyFrom(write_shape(ArrayType(literal.dtype, literal.shape)))
    return proto


_VARINT = (DType.PRED, DType.S32, DType.S64, DType.U32, DType.U64)


def _write_varint(value: int) -> bytes:
    """Protocol buffers' integers: seven bits a byte, the lowest first, the high bit set on all but the last."""
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
