"""Real HLO modules, as JAX and TensorFlow gave them, by every engine: against XLA on the same device, products in
f32."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch import xla_engine
from astitch.compile import compile_hlo
from astitch.gpu import Gpu, from_device
from astitch.hlo_import import import_hlo
from astitch.hlo_schema import HloModuleProto
from astitch.host_engine import HostEngine
from astitch.ir import Graph
from astitch.xla_engine import Stitched
from astitch.xla_island import EXACT, compile_module, find_device, put_array
from tests.hlo_runner import random_arguments, run_xla
from tests.test_hlo_import import COUNTS, read_module

HIGHEST = 2
"""The number of PrecisionConfig.Precision."""

TOLERANCE, TOLERANCE_16 = 1e-2, 2e-2
"""Of an output's norm.  XLA for the CPU differs from itself, optimised or not: by 2.5e-3 in the gradients of CRNN's
first filters, behind seven convolutions, by 2e-4 in DIEN's, by 3e-3 where a module computes in bf16, else by 1e-6."""

NOISE = 1e-3
"""An output this much smaller than those of its kind may be rounding and nothing else: the gradient of a bias in front
of a norm or a softmax is."""

INDICES: Mapping[str, Mapping[str, int]] = {
    "bert_infer": {"ids": 30522},
    "bert_infer_bf16_erfgelu": {"ids": 30522},
    "bert_train": {"args_0_": 30522, "args_3_": 128, "args_4_": 30522},
    "crnn_train": {"args_2_": 37},
}
"""How large integer parameters may be, where it is more than the smallest dimension that an index goes to."""


def read_exactly(name: str) -> bytes:
    """A module whose products are computed in f32, so that what differs is ours."""
    module = HloModuleProto()
    module.ParseFromString(read_module(name))
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode in ("dot", "convolution"):
                del instruction.precision_config.operand_precision[:]
                instruction.precision_config.operand_precision.extend([HIGHEST, HIGHEST])
    return bytes(module.SerializeToString())


def make_arguments(name: str, graph: Graph) -> list[np.ndarray]:
    """Weights of a usual size, gains around 1, first moments 0, second ones positive, masks of leading ones."""
    rng = np.random.default_rng(0)
    arguments = random_arguments(graph)
    for number, (parameter, drawn) in enumerate(zip(graph.parameters, arguments, strict=True)):
        made, shape = drawn, drawn.shape
        limits = [n for prefix, n in INDICES.get(name, {}).items() if parameter.startswith(prefix)]
        if drawn.dtype == np.uint32:  # a key of random bits
            made = rng.integers(0, 2**32, shape, np.uint32)
        elif limits:
            made = rng.integers(0, limits[0], shape)
        elif drawn.dtype != np.float32:
            continue
        elif "mu__" in parameter:
            made = np.zeros(shape)
        elif "nu__" in parameter:
            made = rng.uniform(1e-4, 1e-3, shape)
        elif re.match("args_|a_[1-9]|mask", parameter) and len(shape) == 2:
            made = np.arange(shape[1]) < rng.integers(shape[1] // 2, shape[1] + 1, (shape[0], 1))
        elif re.search("__b__", parameter):
            made = 0.1 * rng.normal(size=shape)
        elif len(shape) < 2:
            made = 1 + 0.1 * rng.normal(size=shape)
        elif not re.match("args_|arg0|x", parameter):
            made = rng.normal(size=shape) / np.sqrt(np.prod(shape[:-1]))
        arguments[number] = np.asarray(made, drawn.dtype)
    return arguments


def kinds_of(graph: Graph) -> list[str]:
    """Of each output: a training step gives its state back in the order in which it took it."""
    outputs = len(graph.outputs)
    if not any("mu__" in name for name in graph.parameters):
        return ["output"] * outputs
    found = [re.search("params|mu|nu|count", name) for name in graph.parameters[:outputs]]
    return [match[0] if match else "loss" for match in found]


def assert_agree(name: str, found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> None:
    """Each output by its norm, which counts as no smaller than NOISE of the largest of its kind."""
    kinds = kinds_of(import_hlo(read_exactly(name)))
    tolerance = TOLERANCE_16 if "bf16" in name else TOLERANCE
    arrays = [np.asarray(array, np.float64) for array in wanted]
    sizes = [float(np.sqrt(np.mean(array**2))) for array in arrays]
    errors = {}
    for number, (kind, got, want) in enumerate(zip(kinds, found, arrays, strict=True)):
        assert np.isfinite(want).all(), f"output {number}"
        largest = max(size for size, other in zip(sizes, kinds, strict=True) if other == kind)
        error = float(np.sqrt(np.mean((np.asarray(got, np.float64) - want) ** 2)))
        errors[f"{kind} {number}"] = error / max(sizes[number], NOISE * largest)
    assert {key: error for key, error in errors.items() if not error < tolerance} == {}


@pytest.mark.parametrize("name", COUNTS)
def test_emulated_kernels_compute_what_xla_does(name: str) -> None:
    hlo = read_exactly(name)
    arguments = make_arguments(name, import_hlo(hlo))
    found = HostEngine(compile_hlo(hlo).program).run(arguments)
    assert_agree(name, found, run_xla(hlo, arguments))


class Lowered:
    """A module in the place of a function that JAX has lowered."""

    def __init__(self, hlo: bytes) -> None:
        self.hlo = hlo

    def compiler_ir(self, dialect: str) -> Lowered:
        assert dialect == "hlo"
        return self

    def as_serialized_hlo_module_proto(self) -> bytes:
        return self.hlo


def call_inside_xla(hlo: bytes, gpu: Gpu, arguments: Sequence[np.ndarray]) -> Any:
    """A function of the arguments that JAX can compile for CUDA, of the program with kernels."""
    graph = import_hlo(hlo)
    types = [graph[name].array for name in graph.outputs]
    empty = lambda *_: [jnp.zeros(t.shape, t.dtype.numpy) for t in types]  # noqa: E731
    none = (False,) * len(arguments)
    stitched = Stitched(Lowered(hlo), jax.make_jaxpr(empty)(*arguments), none, gpu, None, False)
    return jax.jit(lambda *given: xla_engine._primitive().bind(*given, stitched=stitched))


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["executor", "xla"])
@pytest.mark.parametrize("name", COUNTS)
def test_a_gpu_computes_what_xla_does(name: str, engine: str) -> None:
    from astitch.executor import GpuExecutor

    device = find_device("gpu")
    if device is None:
        pytest.skip("jax sees no GPU: pip install jax[cuda13]")
    hlo = read_exactly(name)
    arguments = make_arguments(name, import_hlo(hlo))
    by_xla = compile_module(hlo, device, EXACT)
    results = by_xla.execute_sharded([put_array(a, device) for a in arguments])
    wanted = [np.asarray(shard[0]) for shard in results.disassemble_into_single_device_arrays()]
    if engine == "executor":
        executor = GpuExecutor(compile_hlo(hlo, gpu=from_device()).program)
        call = lambda *given: [output.to_numpy() for output in executor.run(given)]  # noqa: E731
    else:
        call = call_inside_xla(hlo, from_device(), arguments)
    for _ in range(3):  # what a call leaves behind does not matter to the next
        assert_agree(name, [np.asarray(a) for a in call(*arguments)], wanted)
