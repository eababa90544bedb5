"""Whole programs whose products cuBLASLt finishes: on the host in its place, and on a GPU every form that it gets."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_cublaslt import Compute, FakeLt, Types
from fake_cublaslt import finish as finish_sum
from fake_cupy import Fake

from astitch.compile import compile_hlo
from astitch.device import launch_time
from astitch.graph.ir import ArrayType, DotAttrs, DType, Node
from astitch.graph.reference import eval_node
from astitch.library import cublaslt
from astitch.program.steps import Activation, KernelStep, Program
from astitch.run import gpu_products
from astitch.run.executor import GpuExecutor
from astitch.run.gpu_call import PreparedStep
from astitch.run.gpu_kernels import KernelSteps
from tests.hlo_runner import lower, run_xla
from tests.stepped_programs import dot_program

executor_module = importlib.import_module("astitch.run.executor")

F32, F16, BF16 = jnp.float32, jnp.float16, jnp.bfloat16


def arrays(*shapes: tuple[int, ...], dtype: Any = F32) -> list[Any]:
    """Small whole numbers: sums of their products are exact in TF32 and in any order."""
    rng = np.random.default_rng(0)
    return [rng.integers(-3, 4, shape).astype(dtype) for shape in shapes]


def block(x: Any, w: Any, b: Any, v: Any) -> Any:
    return jax.nn.relu(x @ w + b) @ v + x


BLOCK = arrays((24, 16), (16, 40), (40,), (40, 16))


# ---- in the library's place on the host ------------------------------------------------------------------------


def at(address: int, type_: ArrayType) -> np.ndarray:
    """The array of f32 in memory."""
    data = (ctypes.c_uint8 * type_.bytes).from_address(address)
    return np.frombuffer(data, np.float32).reshape(type_.shape)


@pytest.fixture
def lt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeLt:
    """CuPy and cuBLASLt on the host's memory; kernels compute what their Epilogues say, and count."""
    fake, lt = Fake(), FakeLt(1)
    lt.kernels, lt.times = 0, iter(())
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("ASTITCH_GRAPHS", "0")
    monkeypatch.setattr(cublaslt, "open_cache", cublaslt.open_cache.__wrapped__)
    monkeypatch.setattr(executor_module, "import_cupy", lambda: fake)
    bindings = cublaslt.Bindings(lt, Types, Compute)
    monkeypatch.setattr(gpu_products, "find_bindings", lambda _: bindings)

    def prepare(kernels: KernelSteps, step: KernelStep) -> PreparedStep:
        epilogues = kernels.program.epilogues
        (epilogue,) = (e for e in epilogues if e.kernel == step.kernel.name)
        types = {v.buffer: v.type for v in step.arguments}

        def launch(call: Any) -> None:
            lt.kernels += 1
            total = at(call.addresses[epilogue.product], types[epilogue.product])
            for view in (epilogue.residual, epilogue.bias):
                total = (
                    total if view is None else total + at(call.addresses[view.buffer], view.type)
                )
            relu = 2 if epilogue.activation is Activation.RELU else 0
            result = at(call.addresses[epilogue.result.buffer], epilogue.result.type)
            result[...] = finish_sum(relu, total)

        return PreparedStep(launch)

    def time_launch(_: Any, launch: Callable[[int, bool], None]) -> float:
        launch(0, False)
        return float(next(lt.times))

    monkeypatch.setattr(KernelSteps, "_load", lambda _: {})
    monkeypatch.setattr(KernelSteps, "prepare", prepare)
    monkeypatch.setattr(launch_time, "time_launch", time_launch)
    return lt


@pytest.fixture(scope="module")
def program() -> Program:
    program = compile_hlo(lower(block, *BLOCK), gpu="h100").program
    assert len(program.epilogues) == len(program.kernels) == 2
    return program


def check(executor: GpuExecutor) -> None:
    x, w, b, v = BLOCK
    (got,) = executor.run(BLOCK)
    np.testing.assert_array_equal(got.to_numpy(), np.maximum(x @ w + b, 0) @ v + x)


def test_no_kernel_runs_where_products_are_finished(lt: FakeLt, program: Program) -> None:
    check(GpuExecutor(program))  # one algorithm each: nothing to choose
    assert (lt.kernels, len(lt.launched)) == (0, 2)


@pytest.mark.parametrize(("apart_us", "kernels", "launched"), [(9.0, 0, 2), (3.0, 2, 2)])
def test_the_first_call_times_both(
    apart_us: float, kernels: int, launched: int, lt: FakeLt, program: Program
) -> None:
    lt.count = 2
    # Plain: two algorithms.  Finished: two algorithms, and both steps apart.  So for each of two products.
    lt.times = iter(2 * [5.0, 4.0, 5.0, 4.0, apart_us])
    executor = GpuExecutor(program)
    check(executor)
    lt.kernels, lt.launched = 0, []
    check(executor)
    assert (lt.kernels, len(lt.launched)) == (kernels, launched)
    lt.kernels, lt.launched = 0, []
    check(GpuExecutor(program))  # a later process: nothing is timed
    assert (lt.kernels, len(lt.launched)) == (kernels, launched)


@pytest.mark.parametrize("missing", ["bindings", "algorithms"])
def test_without_the_library_the_kernels_run(
    missing: str, lt: FakeLt, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "bindings":
        monkeypatch.setattr(gpu_products, "find_bindings", lambda _: None)
    lt.count = 0
    check(GpuExecutor(program))
    assert (lt.kernels, lt.launched) == (2, [])


# ---- on a device -----------------------------------------------------------------------------------------------


class Counted:
    """nvmath's module, whose products are counted."""

    def __init__(self, lt: Any) -> None:
        self.lt, self.launched = lt, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lt, name)

    def matmul(self, *given: Any) -> Any:
        self.launched += 1
        return self.lt.matmul(*given)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Counted:
    """cuBLASLt by nvmath-python with nothing kept on disk."""
    bindings = cublaslt.find_bindings(0)
    if bindings is None:
        pytest.skip("nvmath-python is not installed")
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cublaslt, "open_cache", cublaslt.open_cache.__wrapped__)
    counted = Counted(bindings.lt)
    monkeypatch.setattr(bindings, "lt", counted)
    return counted


PLAIN = {
    "nn": (DotAttrs((1,), (0,)), (64, 96), (96, 32), (64, 32)),
    "nt": (DotAttrs((1,), (1,)), (64, 96), (32, 96), (64, 32)),
    "tn": (DotAttrs((0,), (0,)), (96, 64), (96, 32), (64, 32)),
    "tt": (DotAttrs((0,), (1,)), (96, 64), (32, 96), (64, 32)),
    "batched": (DotAttrs((2,), (1,), (0,), (0,)), (5, 64, 32), (5, 32, 48), (5, 64, 48)),
    "heads": (DotAttrs((2,), (2,), (1,), (1,)), (64, 4, 32), (48, 4, 32), (4, 64, 48)),
    "vector": (DotAttrs((1,), (0,)), (64, 96), (96,), (64,)),
    "odd": (DotAttrs((1,), (0,)), (7, 13), (13, 5), (7, 5)),
}
TYPES = {
    "f32": (DType.F32, DType.F32),
    "f64": (DType.F64, DType.F64),
    "f16": (DType.F16, DType.F16),
    "bf16": (DType.BF16, DType.BF16),
    "bf16 to f32": (DType.BF16, DType.F32),
    "c64": (DType.C64, DType.C64),
    "s8": (DType.S8, DType.S32),
    "e4m3": (DType.F8E4M3FN, DType.F32),
    "e4m3 to bf16": (DType.F8E4M3FN, DType.BF16),
}


MATMUL = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 14, ctypes.c_size_t, ctypes.c_void_p)


def test_what_c_calls_a_product_with(
    lt: FakeLt, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Python calls it; nothing where nvmath-python does not tell where cublasLtMatmul is."""
    executor = GpuExecutor(program)
    kernels = [n for n, step in enumerate(program.steps) if isinstance(step, KernelStep)]
    assert [executor.find_product(n) is None for n in range(4)] == [n in kernels for n in range(4)]
    found = executor.find_product(0)
    assert found is not None and (found.lhs, found.rhs) == tuple(
        view.buffer for view in program.steps[0].operands
    )
    monkeypatch.setattr(cublaslt.Bindings, "matmul_address", 0)
    assert found.matmul.find_call() is None
    monkeypatch.setattr(cublaslt.Bindings, "matmul_address", 77)
    call = found.matmul.find_call()
    assert call is not None
    given: list[Any] = []
    monkeypatch.setattr(lt, "matmul", lambda *arguments: given.append(arguments))
    found.matmul.launch(cublaslt.Addresses(lhs=1, rhs=2, result=3, workspace=4), stream=5)
    ((handle, operation, one, b, a_layout, a, b_layout, zero, c, *rest),) = given
    assert (handle, operation, one, zero) == (call.handle, call.operation, call.one, call.zero)
    assert (a, b, c, a_layout, b_layout) == (1, 2, 3, call.a, call.b)
    same = [call.result, 3, call.result, call.algorithm, 4, call.workspace_bytes, 5]
    assert (call.function, rest) == (77, same)


@pytest.mark.gpu
def test_a_product_that_c_launches(counted: Counted) -> None:
    import cupy

    attrs, lhs, rhs, shape = PLAIN["nt"]
    a, b = arrays(lhs, rhs)
    executor = GpuExecutor(
        dot_program(*(ArrayType(DType.F32, s) for s in (lhs, rhs, shape)), attrs)
    )
    executor.run([a, b])
    found = executor.find_product(0)
    assert found is not None
    call = found.matmul.find_call()
    assert call is not None, "nvmath-python does not tell where cublasLtMatmul is"
    left, right, result = cupy.asarray(a), cupy.asarray(b), cupy.zeros(shape, np.float32)
    workspace = cupy.cuda.alloc(max(call.workspace_bytes, 1))
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    launched = counted.launched
    assert not MATMUL(call.function)(
        call.handle,
        call.operation,
        call.one,
        right.data.ptr,
        call.a,
        left.data.ptr,
        call.b,
        call.zero,
        result.data.ptr,
        call.result,
        result.data.ptr,
        call.result,
        call.algorithm,
        workspace.ptr,
        call.workspace_bytes,
        stream.ptr,
    )
    stream.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(result), a @ b.T)
    assert counted.launched == launched


@pytest.mark.gpu
@pytest.mark.parametrize("form", PLAIN)
@pytest.mark.parametrize("types", TYPES)
def test_plain_products(types: str, form: str, counted: Counted) -> None:
    """What cuBLASLt has not, other libraries compute."""
    attrs, lhs, rhs, shape = PLAIN[form]
    dtype, result = TYPES[types]
    a, b = arrays(lhs, rhs, dtype=np.int8)
    whole = np.complex128 if dtype.is_complex else np.float64
    node = Node("dot", "dot", ArrayType(DType.of(whole), shape), ("lhs", "rhs"), attrs)
    (want,) = eval_node(node, [a.astype(whole), b.astype(whole)])
    types_ = ArrayType(dtype, lhs), ArrayType(dtype, rhs), ArrayType(result, shape)
    executor = GpuExecutor(dot_program(*types_, attrs))
    for _ in range(2):
        (got,) = executor.run([a.astype(dtype.numpy), b.astype(dtype.numpy)])
        tolerance = 1e-2 if result.bytes == 2 else 0
        np.testing.assert_allclose(got.to_numpy().astype(whole), want, rtol=tolerance)
    if dtype.bytes > 1 or form in ("nn", "nt", "tn", "tt"):
        assert counted.launched, "cuBLASLt did not multiply"


def in_f32(x: Any, w: Any) -> Any:
    return jnp.matmul(x, w, preferred_element_type=F32)


def gelu(x: Any) -> Any:
    return jax.nn.gelu(x, approximate=True)


def scaled(dtype: Any, *shapes: tuple[int, ...]) -> list[Any]:
    """The same in 64ths, but for the first: where GELU bends."""
    first, *others = arrays(*shapes, dtype=dtype)
    return [first, *(np.asarray(array / 64, array.dtype) for array in others)]


XW, R, B = ((64, 96), (96, 32)), (64, 32), (32,)
FINISHED: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "bias": (lambda x, w, b: x @ w + b, arrays(*XW, B)),
    "relu": (lambda x, w: jax.nn.relu(x @ w), arrays(*XW)),
    "bias relu": (lambda x, w, b: jax.nn.relu(x @ w + b), arrays(*XW, B)),
    "gelu": (lambda x, w: gelu(x @ w), scaled(F32, *XW)),
    "bias gelu": (lambda x, w, b: gelu(x @ w + b), scaled(F32, *XW, B)),
    "residual": (lambda x, w, r: x @ w + r, arrays(*XW, R)),
    "residual bias": (lambda x, w, r, b: (x @ w + r) + b, arrays(*XW, R, B)),
    "residual bias relu": (lambda x, w, r, b: jax.nn.relu((x @ w + r) + b), arrays(*XW, R, B)),
    "residual bias gelu": (lambda x, w, r, b: gelu((x @ w + r) + b), scaled(F32, *XW, R, B)),
    "odd sizes": (lambda x, w, b: jax.nn.relu(x @ w + b), arrays((7, 13), (13, 5), (5,))),
    "transposed": (
        lambda x, w, b: jax.nn.relu(jnp.einsum("ka,dk->ad", x, w) + b),
        arrays((96, 64), (32, 96), (32,)),
    ),
    "batched residual": (
        lambda x, w, r: jnp.einsum("abk,akd->abd", x, w) + r,
        arrays((5, 64, 32), (5, 32, 48), (5, 64, 48)),
    ),
    "batched relu": (
        lambda x, w: jax.nn.relu(jnp.einsum("abk,akd->abd", x, w)),
        arrays((5, 64, 32), (5, 32, 48)),
    ),
    "bf16 relu": (
        lambda x, w, b: jax.nn.relu(in_f32(x, w) + b).astype(BF16),
        arrays(*XW, B, dtype=BF16),
    ),
    "bf16 gelu": (
        lambda x, w, b: gelu(in_f32(x, w) + b).astype(BF16),
        scaled(BF16, *XW, B),
    ),
    "f16 residual": (
        lambda x, w, r: (in_f32(x, w) + r).astype(F16),
        arrays(*XW, R, dtype=F16),
    ),
    "bf16 to f32": (
        lambda x, w, b: jax.nn.relu(in_f32(x, w) + b),
        [*arrays(*XW, dtype=BF16), *arrays(B)],
    ),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", FINISHED)
def test_finished_products(name: str, counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """By cuBLASLt, even where two steps are faster; skipped where it names no algorithm, after a look at the result."""
    from astitch.device.gpu import from_device

    fn, arguments = FINISHED[name]
    program = compile_hlo(lower(fn, *arguments), gpu=from_device()).program
    assert len(program.epilogues) == len(program.kernels) == 1
    launch, launched = cublaslt.Matmul.launch, list[bool]()

    def launch_always(matmul: Any, addresses: Any, stream: int, apart: Any = None) -> None:
        launch(matmul, addresses, stream)
        launched.append(apart is not None)

    monkeypatch.setattr(cublaslt.Matmul, "launch", launch_always)
    (want,) = run_xla(lower(fn, *arguments), arguments)
    executor = GpuExecutor(program)
    for _ in range(2):
        (got,) = executor.run(arguments)
        loose = 1e-2 if want.itemsize == 2 else 1e-5
        close = {"rtol": loose, "atol": loose} if "gelu" in name else {"rtol": 0}
        np.testing.assert_allclose(np.float32(got.to_numpy()), np.float32(want), **close)
    assert counted.launched
    if not launched[-1]:
        pytest.skip("cuBLASLt has no algorithm that finishes it")


@pytest.mark.gpu
def test_a_block_of_products_again_and_again(counted: Counted, program: Program) -> None:
    """Whatever the first call finds faster; a later process takes the same."""
    for executor in (GpuExecutor(program), GpuExecutor(program)):
        for _ in range(4):
            check(executor)
    assert counted.launched
