"""MLIR's attributes as text: what XLA reads of a custom call of API_VERSION_TYPED_FFI."""

from __future__ import annotations

import re

TYPED_FFI = 4
"""The custom call's API version: its backend_config is an MLIR dictionary."""


def quote(data: bytes) -> str:
    """An MLIR string literal: what is not printable ASCII goes by its byte's number; of what is no text every byte."""
    if b"\0" in data:
        return '"\\' + data.hex("\\") + '"'
    for character in b'\\"\n\t':  # most of them, the backslash first
        data = data.replace(b"%c" % character, b"\\%02x" % character)
    escaped = _UNPRINTABLE.sub(lambda found: b"\\%02x" % ord(found[0]), data)
    return f'"{escaped.decode()}"'


_UNPRINTABLE = re.compile(rb"[^ -~]")
