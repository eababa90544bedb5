"""The corpus on a GPU: against the reference, against XLA on the same device, and from run to run."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np
import pytest

from astitch.compile import compile_hlo
from astitch.device.gpu import Gpu, from_device
from astitch.graph.ir import Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.run.executor import GpuExecutor
from astitch.show.compilation import Compilation
from tests.programs import PROGRAMS, TF32_SCALE, Program, Tolerance, assert_matches, load

pytestmark = pytest.mark.gpu


@functools.cache
def device() -> Gpu:
    return from_device()


@functools.cache
def compile_for_device(name: str) -> Compilation:
    return compile_hlo(load(name), gpu=device())


@functools.cache
def executor_of(name: str) -> GpuExecutor:
    return GpuExecutor(compile_for_device(name).program)


XLA_DIFFERS = {
    "reductions_with_nan": "argmax among several NaNs: HLO fixes no order, XLA's names another than the first",
    "quantise_f8": "XLA drops the rounding of f32 -> f8 -> f32 (it allows excess precision)",
}
"""Programs on which XLA for the GPU does not do what the HLO says, or the HLO leaves it open."""


def has_product(graph: Graph) -> bool:
    return any(n.op in ("dot", "convolution") or any(map(has_product, n.regions)) for n in graph)


def tolerate(name: str) -> Program:
    """The program with the tolerance of its products, and one unit of what it rounds to integers."""
    program = PROGRAMS[name]
    if not has_product(compile_for_device(name).graph):
        return program
    tolerance = Tolerance(max(program.tolerance.scale, TF32_SCALE), program.tolerance.steps)
    return dataclasses.replace(program, tolerance=tolerance)


def run(name: str, seed: int) -> list[np.ndarray]:
    outputs = executor_of(name).run(PROGRAMS[name].make_inputs(seed))
    return [output.to_numpy() for output in outputs]


@pytest.mark.parametrize("name", PROGRAMS)
def test_device_agrees_with_reference(name: str) -> None:
    for seed in (0, 1):
        with np.errstate(all="ignore"):
            want = run_graph(import_hlo(load(name)), PROGRAMS[name].make_inputs(seed))
        assert_matches(tolerate(name), run(name, seed), want)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in XLA_DIFFERS])
def test_device_agrees_with_xla(name: str) -> None:
    if jax.default_backend() != "gpu":
        pytest.skip("jax sees no GPU: pip install jax[cuda13]")
    assert_matches(
        tolerate(name), run(name, 0), PROGRAMS[name].run_jax(PROGRAMS[name].make_inputs(0))
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_runs_are_bitwise_equal(name: str) -> None:
    first = run(name, 2)
    for _ in range(3):
        again = run(name, 2)
        assert [a.tobytes() for a in again] == [a.tobytes() for a in first]
