"""Loops as kernels in the emulation: their plan, their launch, and what the reference says that comes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from astitch.device.gpu import preset
from astitch.graph.ir import Graph, Node
from astitch.graph.reference import eval_node
from astitch.hlo_import import import_hlo
from astitch.loops.cuts import Cut, try_cut
from astitch.loops.emit import LoopKernel, emit_loop
from astitch.loops.plan import LoopPlan, LoopPlanner
from astitch.rewrite.simplify import simplify
from astitch.run.emulate import compile_host
from tests.hlo_runner import lower

H100 = preset("h100")


def read(fn: Callable[..., Any], arguments: Any) -> Graph:
    return simplify(import_hlo(lower(fn, *arguments, keep_unused=True)))


def loops_of(graph: Graph) -> list[Node]:
    return [node for node in graph if node.op == "while"]


def plan(graph: Graph, node: Node, cut: Sequence[int] | None = None) -> LoopPlan:
    """cut: members, rows, width, lanes; None: as planned."""
    found = LoopPlanner(H100).plan(graph, node)
    assert isinstance(found, LoopPlan), found
    if cut is None:
        return found
    members, rows, width, lanes = cut
    (share,) = found.shares
    groups = -(-share.axes.rows // rows)
    shape = Cut(members, rows, width, lanes, groups, share.axes.units, share.axes.small)
    forced = try_cut(found.loop, share.axes, share.steps, share.used, H100, shape)
    assert forced is not None
    return dataclasses.replace(found, shares=(forced,))


def evaluate(graph: Graph, arguments: Any) -> dict[str, tuple[np.ndarray, ...]]:
    values: dict[str, tuple[np.ndarray, ...]] = {}
    for name, argument in zip(graph.parameters, jax.tree.leaves(arguments), strict=True):
        values[name] = (np.asarray(argument),)
    for node in graph:
        if node.op == "get-tuple-element":
            values[node.name] = (values[node.operands[0]][node.attrs.index],)  # type: ignore[union-attr]
        elif node.op != "parameter":
            values[node.name] = eval_node(node, [values[o][0] for o in node.operands])
    return values


def launch(
    made: LoopKernel, operands: Sequence[np.ndarray], *, check: bool, launches: int = 1, **how: Any
) -> list[np.ndarray]:
    kernel, types = made.kernel, made.plan.loop.types
    results = [np.full(types[i].shape, 77, types[i].dtype.numpy) for i in made.results]
    arrays = [np.ascontiguousarray(operands[i]) for i in made.operands] + results
    if kernel.barrier_words:
        arrays.append(np.zeros(kernel.barrier_words, np.uint32))
    module = compile_host(kernel.source, check=check)
    for _ in range(launches):
        for result in results:
            result[...] = 77
        module.launch(
            kernel.name,
            kernel.grid,
            kernel.block,
            arrays,
            shared_bytes=kernel.shared_bytes,
            cooperative=kernel.cooperative,
            **how,
        )
    return results


def assert_as_xla(
    fn: Callable[..., Any],
    arguments: Any,
    cut: Sequence[int] | None = None,
    tolerance: float = 1e-5,
    graph: Graph | None = None,
    **how: Any,
) -> None:
    """graph: of the function, if it is not what JAX writes for a CPU."""
    graph = graph or read(fn, arguments)
    values = evaluate(graph, arguments)
    (node,) = loops_of(graph)
    made = emit_loop(plan(graph, node, cut), "loop_0")
    results = launch(made, [values[o][0] for o in node.operands], **how)
    for state, result in zip(made.results, results, strict=True):
        want = values[node.name][state]
        wide = np.complex128 if want.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(
            result.astype(wide), want.astype(wide), rtol=tolerance, atol=tolerance
        )
