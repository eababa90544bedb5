"""Programs whose convolutions cuDNN does: on the host in its place, and on a GPU every form that it has."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_cudnn import FakeCudnn
from fake_cupy import Fake
from jax import lax

from astitch import cudnn
from astitch.compile import compile_hlo
from astitch.executor import GpuExecutor
from astitch.host_engine import HostEngine
from astitch.program import LibraryStep, Program
from tests.hlo_runner import lower

executor_module = importlib.import_module("astitch.executor")

LAST, FIRST = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")


def whole(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Small whole numbers: sums of their products are exact in TF32 and in any order."""
    return np.random.default_rng(sum(shape)).integers(-2, 3, shape).astype(dtype)


def compile_fn(fn: Any, *arguments: Any) -> Program:
    return compile_hlo(lower(fn, *arguments), gpu="h100").program


# ---- in the library's place on the host --------------------------------------------------------------------------


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCudnn:
    """CuPy and cuDNN on the host's memory."""
    fake, library = Fake(), FakeCudnn("eng0")
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cudnn, "open_cache", cudnn.open_cache.__wrapped__)
    monkeypatch.setattr(executor_module, "import_cupy", lambda: fake)
    bindings = cudnn.Bindings(library, library.handle)
    monkeypatch.setattr(cudnn, "find_bindings", lambda _: bindings)
    return library


def check(program: Program, *arguments: np.ndarray) -> None:
    results = GpuExecutor(program).run(arguments)
    for result, want in zip(results, HostEngine(program).run(list(arguments)), strict=True):
        np.testing.assert_array_equal(result.to_numpy(), want)


def layer(x: Any, k: Any, layout: Any = LAST, stride: Any = (1, 1), **options: Any) -> Any:
    return lax.conv_general_dilated(x, k, stride, "SAME", dimension_numbers=layout, **options)


X, K = whole(2, 6, 5, 4), whole(3, 3, 4, 8)


def test_a_convolution_of_a_program_is_cudnns(library: FakeCudnn) -> None:
    program = compile_fn(layer, X, K)
    assert [type(step) for step in program.steps] == [LibraryStep]
    check(program, X, K)
    assert library.launched == ["eng0"]


def test_what_cudnn_has_not_is_an_island(library: FakeCudnn) -> None:
    library.names = ()
    check(compile_fn(layer, X, K), X, K)
    integers = compile_fn(layer, X.astype(np.int32), K.astype(np.int32))
    check(integers, X.astype(np.int32), K.astype(np.int32))
    assert library.launched == []


def test_what_does_not_run_is_an_island_from_then_on(library: FakeCudnn) -> None:
    library.names = ("eng0", "eng1")
    library.broken = {"eng0", "eng1"}
    program = compile_fn(layer, X, K)
    executor = GpuExecutor(program)
    (want,) = HostEngine(program).run([X, K])
    for _ in range(2):
        np.testing.assert_array_equal(executor.run([X, K])[0].to_numpy(), want)
