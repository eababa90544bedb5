"""Library calls, tuned by XLA while the kernels around them are planned.

Takes a Graph, has XLA compile its products and convolutions alone, each kind once.  The idea: XLA measures by which
algorithm each runs best, which takes most of its time, and remembers the answers while the process lives: when the
whole program comes to it they are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from astitch.hlo_export import ModuleBuilder
from astitch.ir import Graph
from astitch.nvrtc import count_threads
from astitch.ops import OPS, Kind
from astitch.xla_island import AROUND_KERNELS, compile_module

LEAST_CORES = 4
"""Processors from which it pays: XLA works beside the planner and the CUDA compiler."""


def export_library_calls(graph: Graph) -> bytes | None:
    """The library calls of a graph as a module of their own, each kind once; None where there is none.

    Each has parameters of its own, as it mostly has in the program, where kernels that XLA cannot look into make its
    operands.  Where XLA does fuse something into it there, it measures again.
    """
    builder = ModuleBuilder("library_calls")
    known = set[object]()
    names: list[str] = []
    for node in graph:
        if OPS[node.op].kind is not Kind.COMPUTE:
            continue
        types = tuple(graph[operand].array for operand in node.operands)
        kind = node.op, node.attrs, node.type, types
        if kind in known:
            continue
        known.add(kind)
        number = len(names)
        operands = tuple(f"operand.{number}.{index}" for index in range(len(types)))
        for operand, type_ in zip(operands, types, strict=True):
            builder.add_parameter(operand, type_)
        names.append(f"call.{number}")
        builder.add_node(replace(node, name=names[-1], operands=operands))
    return builder.finish(names) if names else None


@contextmanager
def tune_ahead(device: Any) -> Iterator[Callable[[Graph], None]]:
    """Hands on what begins to tune the library calls of a graph; the end of the block waits for it.

    So nothing else is measured on the GPU at that time.  An error in the block does not wait, and one of the tuning is
    not told: the program compiles without it, and what XLA refuses it refuses again.  device: JAX's; with None nothing
    is tuned.  Nor is it where JAX runs in several processes: XLA has them share the measurements, and not all of them
    need compile.
    """
    import jax

    begun: list[Future[Any]] = []
    pool = ThreadPoolExecutor(1, "astitch-tune")

    def begin(graph: Graph) -> None:
        if device is None or count_threads() < LEAST_CORES or jax.process_count() > 1:
            return
        begun.append(pool.submit(_tune, graph, device))

    try:
        yield begin
        for job in begun:
            job.exception()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _tune(graph: Graph, device: Any) -> None:
    if module := export_library_calls(graph):
        compile_module(module, device, AROUND_KERNELS)
