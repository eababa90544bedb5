"""Calls of tile programs, computed without a GPU: `recorded` keeps the program of each call that is written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from astitch.graph.ir import CustomCallAttrs, Node, TupleType
from astitch.hlo import tile_call
from astitch.hlo.tile_call import TRITON
from astitch.tile.interpret import interpret
from astitch.tile.program import TileProgram

_PROGRAMS: dict[bytes, TileProgram] = {}
"""By the configuration of their calls."""

_write_config = tile_call.write_config


def _record(program: TileProgram) -> bytes:
    config = _write_config(program)
    _PROGRAMS[config] = program
    return config


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Within the block, calls that are written can be run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_call, "write_config", _record)
        yield


def is_tile_call(node: Node) -> bool:
    return isinstance(node.attrs, CustomCallAttrs) and node.attrs.target == TRITON


def run_tile_call(node: Node, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    assert isinstance(node.attrs, CustomCallAttrs)
    types = node.type.elements if isinstance(node.type, TupleType) else (node.type,)
    results = interpret(_PROGRAMS[node.attrs.backend_config], operands)
    return [x.reshape(t.shape) for x, t in zip(results, types, strict=True)]
