"""The corpus through the whole compiler: values, steps, text, determinism, registers.

Every program runs in emulation as it was planned for the host; STEPS pins what it was compiled to
and tests/golden the CUDA text of the common patterns for an H100.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from astitch.compile import compile_hlo
from astitch.device.gpu import Gpu
from astitch.errors import KernelCompileError
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.program.steps import CudaKernel, KernelStep, LibraryStep
from astitch.run.host_engine import HostEngine
from astitch.show.compilation import Compilation
from astitch.toolchain.nvrtc import CompiledKernel, Request, choose_nvrtc, compile_many_cuda
from tests.programs import BF16, E4M3, E5M2, F16, F32, F64, PROGRAMS, load
from tests.small_gpu import few_sms

GOLDEN = Path(__file__).parents[1] / "golden"

STEPS: dict[str, tuple[int, int, int]] = {
    # (kernels, library calls, XLA fallbacks); each program that is not here is one kernel
    "dropout_add_layer_norm": (2, 0, 1),
    "lstm_cell_dots": (1, 2, 0),
    "lstm_scan": (1, 0, 1),
    "small_products": (1, 1, 0),
    "dense_residual_norm": (1, 1, 0),
    "bert_layer": (7, 6, 0),
    "bert_layer_backward": (13, 22, 0),
    "windows": (1, 0, 0),
    "convolution_batch_norm": (2, 1, 0),
    "branches": (2, 0, 1),
    "newton_loop": (1, 0, 1),
    "complex_products": (2, 0, 1),
}

ALWAYS_ONE_KERNEL = """
    softmax_last softmax_middle softmax_first softmax_long_rows softmax_one_row softmax_short_rows
    softmax_bf16 softmax_f16 log_softmax_backward attention_mask_softmax attention_softmax_backward
    layer_norm layer_norm_backward layer_norm_backward_bf16 rms_norm rms_norm_backward
    batch_norm_training_nhwc batch_norm_training_nchw batch_norm_backward_nhwc group_norm_nhwc
    gelu_tanh gelu_erf cross_entropy_one_hot cross_entropy_gather cross_entropy_bf16
    cross_entropy_integer_labels row_and_column_sum adam_with_clip
    sgd_momentum lstm_cell astitch_golden
""".split()
"""What a stitching compiler is for: one kernel whatever the row length and the number of tensors."""

GOLDENS = """
    softmax_last softmax_middle softmax_first softmax_long_rows softmax_one_row softmax_short_rows
    softmax_33x257 softmax_1x1 softmax_bf16 softmax_f16 softmax_f64 log_softmax_backward
    attention_mask_softmax causal_mask_softmax column_standardise_softmax
    layer_norm layer_norm_backward layer_norm_bf16 layer_norm_backward_mixed layer_norm_33x257
    rms_norm rms_norm_backward rms_norm_backward_3x12000
    batch_norm_training_nhwc batch_norm_training_nchw group_norm_nhwc
    embedding_layer_norm dropout_add_layer_norm_cuda gelu_tanh gelu_erf gelu_tanh_bf16 swiglu
    cross_entropy_one_hot cross_entropy_gather cross_entropy_bf16 cross_entropy_integer_labels
    column_sum column_sum_narrow row_and_column_sum full_sum reduces_of_reduces arg_extrema
    reductions_with_nan integer_reductions empty_arrays scalars_only
    adam_with_clip sgd_momentum lstm_cell dense_residual_norm split_heads transposes
    dynamic_slices pads concatenate_reverse_iota gathers indexed_updates converts quantise_int8 quantise_f8
    f8_storage astitch_golden
    power_broadcast_add dien_reduce transformer_reduce cumsum_softmax places_of_tokens long_running_sum pooling
""".split()

LARGE_GRIDS = """
    softmax_long_rows softmax_one_row layer_norm_backward layer_norm_4x20000 rms_norm_backward_3x12000
    cross_entropy_gather row_and_column_sum full_sum mean_square_and_largest
    adam_with_clip softmax_long_rows_bf16 group_norm_many_pixels
""".split()
"""Programs whose plan for 132 SMs is another than for the host's few."""

FEW_SMS = {
    "layer_norm_backward": 2,  # the next task's vectors in registers
    "layer_norm_backward_mixed": 2,  # and gamma in shared memory
    "softmax_long_rows": 8,  # blocks wait for their block group a task later; a circular buffer of three
    "group_norm_many_pixels": 8,  # three tasks later, for groups; neighbours packed inside
    "batch_norm_training_nhwc": 2,  # a block group for columns; a part of each is exchanged
    "layer_norm_4x20000": 16,  # a block group that meets once, one task a block
}
"""Programs that an H100 of so few SMs runs with many tasks a block, or with blocks that meet as block groups."""

LIMIT = {F64: 1e-13, F32: 1e-5, F16: 2 * 2.0**-10, BF16: 2 * 2.0**-7, E4M3: 2.0**-3, E5M2: 2.0**-2}
"""Largest error of an element relative to its size, or to the mean size of its array."""

LOOSER: dict[str, float] = {}
"""Programs whose results magnify a rounding: a multiple of LIMIT."""


@functools.cache
def compile_program(name: str, gpu: str | Gpu = "host") -> Compilation:
    return compile_hlo(load(name), gpu=gpu)


@functools.cache
def reference_of(name: str) -> tuple[np.ndarray, ...]:
    with np.errstate(all="ignore"):
        return tuple(run_graph(import_hlo(load(name)), PROGRAMS[name].make_inputs(0)))


def measure_error(got: np.ndarray, want: np.ndarray) -> float:
    """The largest error as LIMIT counts it; infinite where one is NaN or infinite and the other is not so."""
    exact = np.complex128 if want.dtype.kind == "c" else np.float64
    g, w = got.astype(exact), want.astype(exact)
    same = (g == w) | (np.isnan(g) & np.isnan(w))
    finite = np.isfinite(g) & np.isfinite(w)
    if not np.all(same | finite):
        return float("inf")
    size = np.abs(np.where(finite, w, 0.0))
    size = np.maximum(size, size.mean() if size.size else 0.0)
    wrong = finite & ~same
    with np.errstate(divide="ignore"):
        return float(np.max(np.abs(g[wrong] - w[wrong]) / size[wrong], initial=0.0))


def assert_agrees(name: str, got: list[np.ndarray], want: tuple[np.ndarray, ...]) -> float:
    """Integers to the bit, floats to LIMIT.  Returns the largest error of a float."""
    assert len(got) == len(want)
    largest = 0.0
    for number, (g, w) in enumerate(zip(got, want, strict=True)):
        where = f"{name}, result {number} ({w.dtype}{list(w.shape)})"
        assert g.shape == w.shape and g.dtype == w.dtype, f"{where}: {g.dtype}{list(g.shape)}"
        if w.dtype in LIMIT:
            error = measure_error(g, w)
            limit = LIMIT[w.dtype] * LOOSER.get(name, 1.0)
            assert error <= limit, f"{where}: error {error:.2e}, at most {limit:.2e} is right"
            largest = max(largest, error)
        else:
            np.testing.assert_array_equal(g, w, err_msg=where)
    return largest


def run_emulated(name: str, gpu: str | Gpu, *, check: bool) -> list[np.ndarray]:
    engine = HostEngine(compile_program(name, gpu).program, check=check)
    with np.errstate(all="ignore"):
        return engine.run(PROGRAMS[name].make_inputs(0))


# ---- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(PROGRAMS)[::4])
def test_unchecked_is_reference(name: str) -> None:
    """The same text without the checks, which cost no value: of every fourth program."""
    assert_agrees(name, run_emulated(name, "host", check=False), reference_of(name))


@pytest.mark.parametrize("name", PROGRAMS)
def test_emulated_is_reference(name: str, record_property: pytest.RecordProperty) -> None:
    """Races, bounds, uninitialised reads, barriers that some threads miss: check mode raises."""
    got = run_emulated(name, "host", check=True)
    record_property("largest_error", assert_agrees(name, got, reference_of(name)))


@pytest.mark.parametrize("name", LARGE_GRIDS)
def test_plans_for_many_sms(name: str) -> None:
    host, h100 = compile_program(name), compile_program(name, "h100")

    def count_threads(compiled: Compilation) -> int:
        return max(k.grid * k.block for k in compiled.program.kernels)

    assert count_threads(h100) > count_threads(host)
    assert_agrees(name, run_emulated(name, "h100", check=False), reference_of(name))


@pytest.mark.parametrize("name", FEW_SMS)
def test_many_tasks_a_block(name: str) -> None:
    got = run_emulated(name, few_sms(FEW_SMS[name]), check=True)
    assert_agrees(name, got, reference_of(name))


def test_a_program_runs_again_with_other_arguments() -> None:
    """Barrier words and the arena carry over from call to call."""
    name = "layer_norm_backward"
    engine = HostEngine(compile_program(name).program)
    graph = import_hlo(load(name))
    for seed in (1, 2, 3):
        arguments = PROGRAMS[name].make_inputs(seed)
        assert_agrees(name, engine.run(arguments), tuple(run_graph(graph, arguments)))


# ---- steps ---------------------------------------------------------------------------------------


def count_steps(compiled: Compilation) -> tuple[int, int, int]:
    """(kernels, library calls, XLA fallbacks)"""
    steps = compiled.program.steps
    kernels = sum(isinstance(s, KernelStep) for s in steps)
    library = sum(isinstance(s, LibraryStep) for s in steps)
    return kernels, library, len(steps) - kernels - library


@pytest.mark.parametrize("gpu", ["host", "h100"])
def test_steps(gpu: str) -> None:
    found = {name: count_steps(compile_program(name, gpu)) for name in PROGRAMS}
    wanted = {name: STEPS.get(name, (1, 0, 0)) for name in PROGRAMS}
    wrong = {name: (found[name], wanted[name]) for name in PROGRAMS if found[name] != wanted[name]}
    assert wrong == {}, "program: (found, pinned)"
    assert set(STEPS) <= set(PROGRAMS)


@pytest.mark.parametrize("gpu", ["t4", "v100", "a100", "h100", "b200", "host"])
@pytest.mark.parametrize("name", ALWAYS_ONE_KERNEL)
def test_one_kernel_on_every_gpu(name: str, gpu: str) -> None:
    compiled = compile_program(name, gpu)
    kernels = SPLIT.get((name, gpu), 1)
    assert count_steps(compiled) == (kernels, 0, 0), compiled.explain()


SPLIT = {("astitch_golden", "t4"): 3, ("astitch_golden", "v100"): 3}
"""Where a barrier of the grid takes longer than two launches."""


# ---- text ----------------------------------------------------------------------------------------


def text_of(compiled: Compilation) -> str:
    return "\n".join(kernel.source for kernel in compiled.program.kernels)


@pytest.mark.parametrize("name", GOLDENS)
def test_golden_text(name: str, update_golden: bool) -> None:
    """pytest tests/whole/test_corpus.py -k golden --update-golden writes them again."""
    assert_golden(compile_program(name, "h100"), name, update_golden)


@pytest.mark.parametrize("name", FEW_SMS)
def test_golden_text_for_few_sms(name: str, update_golden: bool) -> None:
    compiled = compile_program(name, few_sms(FEW_SMS[name]))
    assert_golden(compiled, f"{name}_on_few_sms", update_golden)


def assert_golden(compiled: Compilation, name: str, update_golden: bool) -> None:
    text = text_of(compiled)
    path = GOLDEN / f"{name}.cu"
    if update_golden:
        path.write_text(text)
        return
    assert path.exists(), f"no {path.name} in tests/golden: run with --update-golden"
    stored = path.read_text()
    if text != stored:
        lines = difflib.unified_diff(
            stored.splitlines(),
            text.splitlines(),
            f"tests/golden/{name}.cu",
            "emitted",
            lineterm="",
        )
        pytest.fail("\n".join(lines), pytrace=False)


def test_goldens_are_those_listed_and_small() -> None:
    names = {*GOLDENS, *(f"{name}_on_few_sms" for name in FEW_SMS)}
    assert {path.name for path in GOLDEN.glob("*.cu")} == {f"{name}.cu" for name in names}
    assert sum(path.stat().st_size for path in GOLDEN.glob("*.cu")) < 1_500_000


def fingerprint(*compilations: Compilation) -> str:
    """A hash of all that an engine reads of programs."""
    texts = []
    for program in (compiled.program for compiled in compilations):
        texts += [*(kernel.source for kernel in program.kernels), repr(program)]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def fingerprint_corpus(every: int = 1) -> dict[str, str]:
    """Of programs compiled anew, for the host and for an H100."""
    return {
        name: fingerprint(*(compile_hlo(load(name), gpu=gpu) for gpu in ("host", "h100")))
        for name in sorted(PROGRAMS)[::every]
    }


def test_compiling_again_gives_the_same_bytes() -> None:
    """In this process, and in another whose sets and dictionaries of strings are ordered otherwise."""
    here = {
        name: fingerprint(*(compile_program(name, gpu) for gpu in ("host", "h100")))
        for name in PROGRAMS
    }
    assert fingerprint_corpus(every=4).items() <= here.items()
    script = "import json; from tests.whole.test_corpus import fingerprint_corpus as f; print(json.dumps(f()))"
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    there = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": seed},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(there.stdout) == here


# ---- NVRTC ---------------------------------------------------------------------------------------

SPILLS = frozenset({"batch_norm_backward_nhwc", "double_statistics", "adam_with_clip"})
"""Programs that may spill registers on an H100: by 4 to 36 bytes a thread, in f64 around a call of the math library."""

REGISTERS_PER_SM = 65536


def compile_with_nvrtc(
    names: list[str], gpu: str, arch: str
) -> list[tuple[str, CudaKernel, CompiledKernel]]:
    try:
        choose_nvrtc(arch)
    except KernelCompileError as error:
        pytest.skip(str(error).splitlines()[0])
    found = [(name, k) for name in names for k in compile_program(name, gpu).program.kernels]
    compiled = compile_many_cuda([Request(k.source, arch) for _, k in found], threads=2)
    return [(name, k, c) for (name, k), c in zip(found, compiled, strict=True)]


def assert_launchable(compiled: list[tuple[str, CudaKernel, CompiledKernel]]) -> None:
    """What the launch assumes of registers holds: all of its blocks fit on an SM."""
    for name, kernel, built in compiled:
        registers = built.kernels[kernel.name].registers
        blocks = max(1, kernel.blocks_per_sm if kernel.global_barriers else 1)
        assert registers * kernel.block * blocks <= REGISTERS_PER_SM, (name, kernel.name, registers)


@pytest.mark.parametrize("part", range(4))
def test_nvrtc_compiles_all_for_an_h100(part: int) -> None:
    compiled = compile_with_nvrtc(list(PROGRAMS)[part::4], "h100", "sm_90")
    assert_launchable(compiled)
    spilling = {name for name, k, c in compiled if c.kernels[k.name].spill_store_bytes}
    assert spilling <= SPILLS


@pytest.mark.parametrize(("gpu", "arch", "part"), [("v100", "sm_70", 0), ("a100", "sm_80", 1)])
def test_nvrtc_compiles_for_older_gpus(gpu: str, arch: str, part: int) -> None:
    assert_launchable(compile_with_nvrtc(list(PROGRAMS)[part::5], gpu, arch))
