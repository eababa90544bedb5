"""Few launches of a loop's turn become a CUDA graph of XLA's.

Takes the module that JAX has compiled and its compile options, changes the options.  XLA makes a graph from five
launches on.  A stitched turn has fewer, so that each would be launched alone, turn after turn (decision 44).
"""

from __future__ import annotations

import os
from typing import Any

from astitch.xla.marks import MARK

FLAG = "xla_gpu_graph_min_graph_size"
"""XLA's flag: the least launches that are worth a graph."""

FEWEST = "2"
"""One launch needs no graph."""

_LOOP, _ATTRIBUTES = "stablehlo.while", "mhlo.frontend_attributes"


def prefer_graphs_in_loops(module: Any, compile_options: Any, *, everything: bool) -> None:
    """From two launches on, where the module (of MLIR's) has a loop and the user has not set XLA's flag.

    everything: without marks too (astitch.enable); else a function of astitch.jit must be in it.
    """
    given = list(compile_options.env_option_overrides)
    if FLAG in os.environ.get("XLA_FLAGS", "") or any(name == FLAG for name, _ in given):
        return
    if _has_loop(module, marked=everything):
        compile_options.env_option_overrides = [*given, (FLAG, FEWEST)]


def _has_loop(module: Any, *, marked: bool) -> bool:
    """Has it a loop, and a marked op unless `marked` already?"""
    from jaxlib.mlir import ir

    loop = False

    def look(operation: Any) -> Any:
        nonlocal loop, marked
        loop = loop or operation.name == _LOOP
        marked = marked or _is_marked(operation)
        return ir.WalkResult.INTERRUPT if loop and marked else ir.WalkResult.ADVANCE

    module.operation.walk(look)
    return loop and marked


def _is_marked(operation: Any) -> bool:
    attributes = operation.attributes
    return _ATTRIBUTES in attributes and MARK in attributes[_ATTRIBUTES]
