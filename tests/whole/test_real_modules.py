"""Real HLO modules, as JAX and TensorFlow gave them, by every engine, products in f32: beside what XLA computes in f64.
`pytest -m gpu -rP` prints how far each engine is from that."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.compile import compile_hlo
from astitch.device.gpu import Gpu, from_device
from astitch.graph.ir import ConvolutionAttrs, DotAttrs, Graph
from astitch.hlo.schema import HloModuleProto
from astitch.hlo_import import import_hlo
from astitch.library.xla_fallback import (
    AROUND_KERNELS,
    EXACT,
    compile_module,
    find_device,
    put_array,
)
from astitch.run.host_engine import HostEngine
from astitch.xla import stitched_call
from astitch.xla.stitched_call import Stitched
from tests.hlo_runner import random_arguments, run_xla
from tests.real_modules import COUNTS, read_module

HIGHEST = 2
"""The number of PrecisionConfig.Precision."""

F32, F64 = 11, 12
"""Numbers of PrimitiveType."""

LIMIT = 1e-5
"""How far from f64 an output is at most, of its norm.  In f32 they are 2e-6 away; products in TF32 would be 2e-4."""

LIMITS: Mapping[str, float] = {
    "bert_infer_bf16_erfgelu": 1e-2,
    # With XLA for the CPU the gradient of the second GRU's bias is 2.6e-4 away.
    "dien_train": 1e-3,
    # Where two terms of a maximum are closer than a rounding the gradient takes the other way: with XLA for the CPU the
    # first filters', behind seven convolutions, are 2.6e-3 away.
    "crnn_train": 1e-2,
}

WORST = 1e-3
"""How far from f64 an element is at most, of the largest of its output."""

TIMES_XLA = 2
"""Or how many times as far as XLA in f32 on the same device."""

NO_TRITON = {"xla_gpu_enable_triton_gemm": False}
"""To XLA's compiler: products by libraries only.  Its own kernels for f32 take minutes to measure, and are not what is
tested."""

NOISE = 1e-3
"""An output this much smaller than those of its kind may be nothing but rounding.  The gradient of a bias in front of a
norm or a softmax is such an output."""

INDICES: Mapping[str, Mapping[str, int]] = {
    "bert_infer": {"ids": 30522},
    "bert_infer_bf16_erfgelu": {"ids": 30522},
    "bert_train": {"args_0_": 30522, "args_3_": 128, "args_4_": 30522},
    "crnn_train": {"args_2_": 37},
}
"""How large integer parameters may be, where it is more than the smallest dimension that an index goes to."""


def parse(name: str) -> Any:
    module = HloModuleProto()
    module.ParseFromString(read_module(name))
    return module


def write(module: Any) -> bytes:
    return bytes(module.SerializeToString())


def read_exactly(name: str) -> bytes:
    """A module whose products are computed in f32.  Its copies are reshapes: a plugin's StableHLO has no copy."""
    module = parse(name)
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode in (b"dot", b"convolution"):
                del instruction.precision_config.operand_precision[:]
                instruction.precision_config.operand_precision.extend([HIGHEST, HIGHEST])
            elif instruction.opcode == b"copy":
                instruction.opcode = b"reshape"
    assert find_precisions(import_hlo(write(module))) == {"HIGHEST"}
    return write(module)


def find_precisions(graph: Graph) -> set[str]:
    """Of all products, in loops too."""
    found = set()
    for node in graph:
        if isinstance(node.attrs, DotAttrs | ConvolutionAttrs):
            found |= {*node.attrs.precision}
        for region in node.regions:
            found |= find_precisions(region)
    return found


def read_in_f64(name: str) -> bytes:
    """A module with f64 in the place of f32; 16-bit floats stay."""
    module = parse(name)
    fresh = itertools.count(1 + max(i.id for c in module.computations for i in c.instructions))
    for computation in module.computations:
        for place, instruction in reversed([*enumerate(computation.instructions)]):
            if instruction.opcode == b"bitcast-convert" and instruction.shape.element_type == F32:
                bits = type(instruction)()  # stays f32, and what was it converts
                bits.CopyFrom(instruction)
                bits.id, bits.name = next(fresh), bits.name + b".bits"
                instruction.opcode, instruction.operand_ids[:] = b"convert", [bits.id]
                computation.instructions.insert(place, bits)
            widen_shape(instruction.shape)
            if instruction.HasField("literal"):
                widen_literal(instruction.literal)
    for program in (module.host_program_shape, *(c.program_shape for c in module.computations)):
        for shape in (*program.parameters, program.result):
            widen_shape(shape)
    return write(module)


def widen_shape(shape: Any) -> None:
    shape.element_type = F64 if shape.element_type == F32 else shape.element_type
    for part in shape.tuple_shapes:
        widen_shape(part)


def widen_literal(literal: Any) -> None:
    widen_shape(literal.shape)
    literal.f64s.extend(literal.f32s)
    del literal.f32s[:]


def compute_in_f64(name: str, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """By XLA for the CPU."""
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in arguments]
    return run_xla(read_in_f64(name), wide, optimise=True)


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


def find_errors(
    kinds: Sequence[str], found: Sequence[np.ndarray], exact: Sequence[np.ndarray]
) -> list[float]:
    """Of each output, of its norm, which counts as no smaller than NOISE of the largest of its kind."""
    arrays = [np.asarray(array, np.float64) for array in exact]
    sizes = [float(np.sqrt(np.mean(array**2))) for array in arrays]
    errors = []
    for kind, got, want, size in zip(kinds, found, arrays, sizes, strict=True):
        assert np.shape(got) == want.shape and np.isfinite(want).all()
        largest = max(other for other, its in zip(sizes, kinds, strict=True) if its == kind)
        error = float(np.sqrt(np.mean((np.asarray(got, np.float64) - want) ** 2)))
        errors.append(error / max(size, NOISE * largest))
    return errors


def find_worst(
    kinds: Sequence[str], found: Sequence[np.ndarray], exact: Sequence[np.ndarray]
) -> list[float]:
    """Of each output, its largest error, of its largest element, which counts as no smaller than in find_errors."""
    arrays = [np.asarray(array, np.float64) for array in exact]
    sizes = [float(np.abs(array).max(initial=0)) for array in arrays]
    worst = []
    for kind, got, want, size in zip(kinds, found, arrays, sizes, strict=True):
        largest = max(other for other, its in zip(sizes, kinds, strict=True) if its == kind)
        error = float(np.abs(np.asarray(got, np.float64) - want).max(initial=0))
        worst.append(error / max(size, NOISE * largest))
    return worst


@pytest.mark.parametrize("name", COUNTS)
def test_emulated_kernels_compute_what_xla_does(name: str) -> None:
    hlo = read_exactly(name)
    graph = import_hlo(hlo)
    arguments = make_arguments(name, graph)
    found = HostEngine(compile_hlo(hlo).program).run(arguments)
    exact = compute_in_f64(name, arguments)
    kinds = kinds_of(graph)
    errors = find_errors(kinds, found, exact)
    limit = LIMITS.get(name, LIMIT)
    assert {n: error for n, error in enumerate(errors) if not error < limit} == {}
    if name not in LIMITS:
        worst = find_worst(kinds, found, exact)
        assert {n: error for n, error in enumerate(worst) if not error < WORST} == {}


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
    none = (False,) * len(arguments)

    def typed(*_: Any) -> Any:
        return [jnp.zeros(t.shape, t.dtype.numpy) for t in types]

    stitched = Stitched(Lowered(hlo), jax.make_jaxpr(typed)(*arguments), none, gpu, None, False)

    def inside(*given: Any) -> Any:
        return stitched_call._primitive().bind(*given, stitched=stitched)

    return jax.jit(inside, compiler_options={**AROUND_KERNELS, **NO_TRITON})


def call_executor(hlo: bytes, gpu: Gpu) -> Any:
    from astitch.run.executor import GpuExecutor

    executor = GpuExecutor(compile_hlo(hlo, gpu=gpu).program)
    return lambda *given: [output.to_numpy() for output in executor.run(given)]


@pytest.mark.gpu
@pytest.mark.parametrize("name", COUNTS)
def test_a_gpu_computes_what_xla_does(name: str) -> None:
    device = find_device("gpu")
    if device is None:
        pytest.skip("jax sees no GPU: pip install jax[cuda13]")
    hlo = read_exactly(name)
    graph, gpu = import_hlo(hlo), from_device()
    arguments = make_arguments(name, graph)
    exact = compute_in_f64(name, arguments)
    kinds = kinds_of(graph)
    results = compile_module(hlo, device, {**EXACT, **NO_TRITON}).execute_sharded(
        [put_array(a, device) for a in arguments]
    )
    shards = results.disassemble_into_single_device_arrays()
    by_xla = find_errors(kinds, [np.asarray(shard[0]) for shard in shards], exact)
    limit = LIMITS.get(name, LIMIT)
    calls = {"executor": call_executor(hlo, gpu), "xla": call_inside_xla(hlo, gpu, arguments)}
    worst = {"XLA": max(by_xla)}
    wrong = {}
    for engine, call in calls.items():
        for turn in range(3):  # what a call leaves behind does not matter to the next
            errors = find_errors(kinds, [np.asarray(a) for a in call(*arguments)], exact)
            worst[engine] = max(worst.get(engine, 0.0), *errors)
            for n, (error, xla) in enumerate(zip(errors, by_xla, strict=True)):
                if not error < max(limit, TIMES_XLA * xla):
                    wrong[engine, turn, f"{kinds[n]} {n}"] = (error, xla)
    print(name, {engine: f"{error:.1e}" for engine, error in worst.items()})
    assert wrong == {}
