"""Real models (tests/data/hlo) through the whole compiler: what is stitched, how far, and the values."""

from __future__ import annotations

import collections
import functools

import numpy as np
import pytest

from astitch.compile import compile_hlo
from astitch.graph.dimensions import is_embedded
from astitch.graph.reference import run_graph
from astitch.graph.stitchable import why_not_stitchable
from astitch.hlo_import import import_hlo
from astitch.program.steps import KernelStep, LibraryStep
from astitch.run.host_engine import HostEngine
from astitch.show.compilation import Compilation
from astitch.stitch_scope import is_memory_op
from tests.hlo_runner import random_arguments
from tests.real_modules import read_module

# model: (stitch ops for an H100, library calls, ops that are interpreted for want of an emitted form)
STEPS: dict[str, tuple[int, int, dict[str, int]]] = {
    "bert_layer_fwd": (7, 6, {}),
    "bert_infer": (14, 13, {}),
    "bert_infer_bf16_erfgelu": (14, 17, {}),
    "dien_infer": (7, 5, {"while": 2}),
    "crnn_infer": (14, 11, {"while": 4}),
    "tf_keras_infer": (8, 7, {"while": 2}),
    "bert_train": (29, 53, {}),
}

MOST_KERNELS_OF_A_BERT_LAYER = 7


@functools.cache
def compile_model(name: str, gpu: str) -> Compilation:
    return compile_hlo(read_module(name), gpu=gpu)


def count_library(compiled: Compilation) -> int:
    return sum(isinstance(step, LibraryStep) for step in compiled.program.steps)


def count_interpreted(compiled: Compilation) -> collections.Counter[str]:
    return collections.Counter(op.op for op in compiled.program.outside)


def count_stitch_ops(compiled: Compilation) -> int:
    """Kernels, the parts of a split one counting as one: which spill depends on the CUDA compiler."""
    return len({"_".join(k.name.split("_")[:2]) for k in compiled.program.kernels})


@pytest.mark.parametrize("name", STEPS)
def test_steps(name: str) -> None:
    compiled = compile_model(name, "h100")
    assert count_stitch_ops(compiled) == len(compiled.program.kernels) or compiled.splits
    found = count_stitch_ops(compiled), count_library(compiled), count_interpreted(compiled)
    assert found == STEPS[name], compiled.explain()


@pytest.mark.parametrize("name", STEPS)
def test_every_stitchable_op_is_stitched(name: str) -> None:
    """What stays outside is named with its reason, and is of a kind that no kernel computes."""
    compiled = compile_model(name, "h100")
    graph, scopes = compiled.graph, compiled.scopes
    members = {member for scope in scopes.scopes for member in scope.members}
    inside = members | {member.partition(".again")[0] for member in members}
    outside = {refusal.producer for refusal in scopes.outside}
    assert not inside & outside
    ops = [n for n in graph if is_memory_op(n) and not is_embedded(graph, n.name)]
    left = [n for n in ops if n.name not in inside]
    assert [n.name for n in left if why_not_stitchable(graph, n) is None] == []
    assert {n.name for n in left} <= outside
    assert all(refusal.reason for refusal in scopes.outside)


def test_a_bert_layer_is_few_kernels_and_products() -> None:
    compiled = compile_model("bert_layer_fwd", "h100")
    assert len(compiled.program.kernels) <= MOST_KERNELS_OF_A_BERT_LAYER, compiled.explain()
    assert not count_interpreted(compiled)
    steps = compiled.program.steps
    assert {s.node.op for s in steps if isinstance(s, LibraryStep)} == {"dot"}


def test_a_training_step_leaves_only_products_outside() -> None:
    compiled = compile_model("bert_train", "h100")
    assert {compiled.graph[r.producer].op for r in compiled.scopes.outside} == {"dot"}


@pytest.mark.parametrize("name", STEPS)
def test_a_program_names_every_buffer_it_uses(name: str) -> None:
    """Each view fits its buffer, is written before it is read, and no two live buffers overlap."""
    program = compile_model(name, "h100").program
    written = {view.buffer for view in program.parameters} | {n for n, _ in program.constants}
    for step in program.steps:
        if isinstance(step, KernelStep):
            reads = tuple(v for i, v in enumerate(step.arguments) if i not in step.written)
            writes = tuple(step.arguments[i] for i in step.written)
        else:
            reads, writes = step.operands, step.results
        for view in (*reads, *writes):
            assert view.type.bytes == program.buffers[view.buffer].type.bytes, view
        assert {view.buffer for view in reads} <= written
        written |= {view.buffer for view in writes}
    assert {view.buffer for view in program.outputs} <= written


def draw_arguments(name: str) -> list[np.ndarray]:
    """Floats up to 0.1 so that nothing saturates; positive where some are variances."""
    graph = import_hlo(read_module(name))
    positive = not name.startswith("bert_infer_bf16")
    return [
        (np.abs(a) if positive else a) * a.dtype.type(0.1) if graph[p].dtype.is_float else a
        for p, a in zip(graph.parameters, random_arguments(graph), strict=True)
    ]


def assert_emulated_is_reference(name: str, tolerance: float, *, check: bool = False) -> None:
    """tolerance: of an element, relative to the largest of its array."""
    arguments = draw_arguments(name)
    engine = HostEngine(compile_model(name, "host").program, check=check)
    with np.errstate(all="ignore"):
        results = engine.run(arguments)
        wanted = run_graph(import_hlo(read_module(name)), arguments)
    for number, (got, want) in enumerate(zip(results, wanted, strict=True)):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if want.dtype.kind in "biu":
            np.testing.assert_array_equal(got, want, err_msg=f"result {number}")
            continue
        g, w = got.astype(np.float64), want.astype(np.float64)
        scale = np.abs(w[np.isfinite(w)]).max(initial=1e-30)
        np.testing.assert_allclose(g / scale, w / scale, 0, tolerance, err_msg=f"result {number}")


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        ("bert_layer_fwd", 2e-5),
        ("bert_infer", 1e-4),
        ("bert_infer_bf16_erfgelu", 0.03),
        ("dien_infer", 1e-4),
        ("tf_keras_infer", 1e-5),
    ],
)
def test_values(name: str, tolerance: float) -> None:
    assert_emulated_is_reference(name, tolerance)


@pytest.mark.slow
def test_values_of_a_training_step() -> None:
    """The others in test_real_modules.py, beside XLA."""
    assert_emulated_is_reference("dien_train", 1e-3)
