"""A Program as bytes, for a cache on disk.

Takes a Program, hands on bytes, and the other way round.  The idea: values are dataclasses, enumerations and plain
data, and bytes name only classes of programs and graphs: what was read can be nothing else.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from astitch.graph import ir
from astitch.program import steps as programs
from astitch.program.steps import Program

MAGIC = b"astitch program 2\n"

_LENGTH_BYTES = 8
_CLASSES: dict[str, Any] = {
    name: value
    for module in (ir, programs)
    for name, value in vars(module).items()
    if isinstance(value, type) and (is_dataclass(value) or issubclass(value, enum.Enum))
}


def pack_program(program: Program) -> bytes:
    """The bytes of a program: a header in JSON, then the bytes of its constants and fallbacks."""
    blobs: list[bytes] = []
    tree = _write(program, blobs)
    header = json.dumps([tree, [len(blob) for blob in blobs]], separators=(",", ":")).encode()
    return b"".join([MAGIC, len(header).to_bytes(_LENGTH_BYTES, "little"), header, *blobs])


def unpack_program(data: bytes) -> Program | None:
    """The program of these bytes, which are as they were written; None if another version of astitch wrote them."""
    if not data.startswith(MAGIC):
        return None
    start = len(MAGIC) + _LENGTH_BYTES
    end = start + int.from_bytes(data[len(MAGIC) : start], "little")
    tree, sizes = json.loads(data[start:end])
    blobs = []
    for size in sizes:
        blobs.append(data[end : end + size])
        end += size
    program = _read(tree, blobs)
    return program if isinstance(program, Program) else None


def _write(value: Any, blobs: list[bytes]) -> Any:
    """Plain numbers and text as they are; tuples as lists; anything else as an object of one field, its kind."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return [_write(item, blobs) for item in value]
    if isinstance(value, bytes):
        blobs.append(value)
        return {"bytes": len(blobs) - 1}
    if isinstance(value, frozenset):
        return {"set": [_write(item, blobs) for item in sorted(value)]}
    if isinstance(value, Mapping):
        return {"map": [[_write(key, blobs), _write(item, blobs)] for key, item in value.items()]}
    name = type(value).__name__
    if _CLASSES.get(name) is not type(value):
        raise TypeError(f"{name} is no part of a program")
    if isinstance(value, enum.Enum):
        return {name: value.name}
    return {name: [_write(getattr(value, f.name), blobs) for f in fields(value) if f.init]}


def _read(tree: Any, blobs: list[bytes]) -> Any:
    if isinstance(tree, list):
        return tuple(_read(item, blobs) for item in tree)
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    match kind:
        case "bytes":
            return blobs[content]
        case "set":
            return frozenset(_read(item, blobs) for item in content)
        case "map":
            return {_read(key, blobs): _read(item, blobs) for key, item in content}
    class_ = _CLASSES[kind]
    if issubclass(class_, enum.Enum):
        return class_[content]
    names = (f.name for f in fields(class_) if f.init)
    given = (_read(item, blobs) for item in content)
    return class_(**dict(zip(names, given, strict=True)))
