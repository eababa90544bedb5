"""Parts that XLA computes: right on both engines, as few as the order allows, listed with their reasons, or refused."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import astitch
from astitch.compile import compile_hlo
from astitch.errors import EngineUnavailable, FallbackRefused, UnsupportedOp
from astitch.library import xla_fallback
from astitch.library.xla_fallback import (
    compile_fallback,
    default_gpu,
    find_device,
    host_device,
    put_array,
)
from astitch.program.steps import FallbackStep, KernelStep, LibraryStep, ReferenceStep
from astitch.run.host_engine import HostEngine
from astitch.show.compilation import Compilation
from tests.hlo_runner import lower, run_xla

pytestmark = pytest.mark.usefixtures("sorts_left")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 8)).astype(np.float32)
V = RNG.normal(size=32).astype(np.float32)
IMAGE = RNG.normal(size=(2, 8, 8, 3)).astype(np.float32)


def sort_rows(x):
    return jnp.sort(jnp.tanh(x), axis=1) * 2


def sort_pairs(v):
    order = jnp.argsort(-v)
    return order, v[order] + 1


def take_largest(x):
    values, indices = jax.lax.top_k((x * 2).reshape(4, 16), 9)
    return values + 1, indices


def halve_until_small(v):
    """As many turns as the data asks for."""
    start = jnp.exp(v)
    turns, small = jax.lax.while_loop(
        lambda s: jnp.max(s[1]) > 0.01, lambda s: (s[0] + 1, s[1] * 0.5), (0, start)
    )
    return turns, small + start


def transform(x):
    return jnp.abs(jnp.fft.fft(x * 3)), jnp.fft.irfft(jnp.fft.rfft(x))


def factorise(x):
    """In full precision: by default a GPU may round a product's factors to TF32, or not."""
    squared = jnp.matmul(x, x.T, precision="highest")
    return jnp.linalg.cholesky(squared + 8 * jnp.eye(8, dtype=x.dtype))


def solve(x):
    lower = jnp.tril(x) + 4 * jnp.eye(8, dtype=x.dtype)
    return jax.scipy.linalg.solve_triangular(lower, x + 1, lower=True)


def pool_gradient(image):
    """Of a window with too many elements for a kernel."""

    def pooled(x):
        window = (1, 6, 6, 2)
        return jnp.sum(jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "SAME") ** 2)

    return jax.grad(pooled)(jnp.sin(image))


def multiply_colliding(v):
    rows = (jnp.arange(32) * 7) % 5
    return jnp.ones(5).at[rows].multiply(v / 2) + 1


def choose_branch(v):
    return jax.lax.cond(v[0] > 0, lambda a: jnp.sort(a), lambda a: -jnp.sort(-a), v * 2) + 1


def sort_narrow(v):
    half = jnp.sort((v * 4).astype(jnp.bfloat16))
    eighth = jnp.sort((v * 4).astype(jnp.float8_e4m3fn).astype(jnp.float16))
    flags = jnp.sort(v > 0)
    return half + 1, eighth, flags, jnp.sort(v.astype(jnp.float8_e5m2).astype(jnp.float32))


# function: its arguments and an op that XLA must compute in it
CASES: dict[Callable[..., Any], tuple[tuple[np.ndarray, ...], str]] = {
    sort_rows: ((X,), "sort"),
    sort_pairs: ((V,), "sort"),
    take_largest: ((X,), "topk"),
    halve_until_small: ((V,), "while"),
    transform: ((X,), "fft"),
    factorise: ((X,), "custom-call"),
    solve: ((X,), "custom-call"),
    pool_gradient: ((IMAGE,), "select-and-scatter"),
    multiply_colliding: ((V,), "scatter"),
    choose_branch: ((V,), "conditional"),
    sort_narrow: ((V,), "sort"),
}


def compile_fn(fn: Callable[..., Any], *arguments: np.ndarray, **options: Any) -> Compilation:
    return compile_hlo(lower(fn, *arguments), **options)


def fallbacks(compilation: Compilation) -> list[FallbackStep]:
    return [s for s in compilation.program.steps if isinstance(s, FallbackStep)]


def assert_close(results: Sequence[Any], wanted: Sequence[Any]) -> None:
    for result, want in zip(results, wanted, strict=True):
        got, expected = np.asarray(result), np.asarray(want)
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        if got.dtype.kind in "iub":
            np.testing.assert_array_equal(got, expected)
        else:
            wide = np.complex128 if got.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(
                got.astype(wide), expected.astype(wide), rtol=2e-5, atol=2e-5
            )


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_what_xla_computes_agrees_with_jax(fn):
    arguments, op = CASES[fn]
    compilation = compile_fn(fn, *arguments)
    assert op in {o.op for o in compilation.program.outside}
    assert not any(isinstance(s, ReferenceStep) for s in compilation.program.steps)
    engine = HostEngine(compilation.program, check=True)
    wanted = jax.tree.leaves(jax.jit(fn)(*arguments))
    assert_close(engine.run(arguments), wanted)
    assert_close(engine.run(arguments), wanted)


def test_ops_that_jax_leaves_to_lapack_on_the_cpu_run_as_ops_of_hlo():
    text = """HloModule m
ENTRY e { a = f32[8,8] parameter(0)
 b = f32[8,3] parameter(1)
 c = f32[8,8] cholesky(a), lower=true
 ROOT r = f32[8,3] triangular-solve(c, b), left_side=true, lower=true, transpose_a=NO_TRANSPOSE }"""
    matrix, right = X @ X.T + 8 * np.eye(8, dtype=np.float32), X[:, :3].copy()
    compilation = compile_hlo(text)
    (fallback,) = fallbacks(compilation)
    assert [op.op for op in fallback.ops] == ["cholesky", "triangular-solve"]
    (out,) = HostEngine(compilation.program).run([matrix, right])
    want = np.linalg.solve(np.linalg.cholesky(matrix), right)
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_what_xla_computes_agrees_with_jax_on_the_gpu(fn):
    arguments, _ = CASES[fn]
    exact = {"xla_allow_excess_precision": False}  # else XLA leaves out conversions there and back
    by_jax = jax.jit(fn).lower(*arguments).compile(compiler_options=exact)
    wanted = jax.tree.leaves(by_jax(*arguments))
    compiled = astitch.jit(fn).lower(*arguments).compile()
    assert any(isinstance(s, FallbackStep) for s in compiled.program.steps)
    for _ in range(3):  # the memory of earlier calls is used again
        assert_close(jax.tree.leaves(compiled(*arguments)), wanted)


@pytest.mark.gpu
def test_results_of_xla_on_the_gpu_outlive_the_call_and_are_arguments_again():
    from astitch.run.executor import GpuExecutor

    compilation = compile_fn(lambda v: jnp.sort(v), V)
    executor = GpuExecutor(compilation.program)
    (once,) = executor.run([V])
    copy = once.to_cupy()
    (twice,) = executor.run([once])
    del once
    np.testing.assert_array_equal(copy.get(), np.sort(V))
    np.testing.assert_array_equal(twice.to_numpy(), np.sort(V))
    np.testing.assert_array_equal(np.asarray(twice.to_jax()), np.sort(V))


@pytest.mark.gpu
def test_work_before_and_after_a_fallback_is_in_order_on_every_stream():
    import cupy

    from astitch.run.executor import GpuExecutor

    x = RNG.normal(size=(64, 4096)).astype(np.float32)
    fn = lambda x: jnp.cumsum(jnp.sort(jnp.exp(x), axis=1), axis=1) * 2  # noqa: E731
    executor = GpuExecutor(compile_fn(fn, x, gpu="h100").program)
    results = []
    for i in range(8):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            results.append((executor.run([cupy.asarray(x) * (i + 1)])[0], stream))
    for i, (result, stream) in enumerate(results):
        with stream:
            want = np.cumsum(np.sort(np.exp(x * np.float32(i + 1)).astype(np.float64)), axis=1) * 2
            np.testing.assert_allclose(result.to_numpy(), want, rtol=1e-3)


@pytest.mark.gpu
def test_a_convolution_on_the_gpu_runs_through_xla():
    from astitch.run.executor import GpuExecutor

    kernel = RNG.normal(size=(3, 3, 3, 4)).astype(np.float32)

    def convolve(x, k):
        dims = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, k, (1, 1), "SAME", dimension_numbers=dims, precision="highest"
        )

    program = compile_fn(convolve, IMAGE, kernel).program
    (result,) = GpuExecutor(program).run([IMAGE, kernel])
    (want,) = HostEngine(program).run([IMAGE, kernel])
    np.testing.assert_allclose(result.to_numpy(), want, rtol=1e-4, atol=1e-4)


# ---- what a fallback holds ------------------------------------------------------------------------


def test_ops_that_follow_each_other_are_one_fallback():
    def chain(x):
        return jnp.sort(jnp.sort(x, axis=0).reshape(64), axis=0), jax.lax.top_k(x, 9)

    x = X.reshape(4, 16)
    compilation = compile_fn(chain, x)
    (fallback,) = fallbacks(compilation)
    assert sorted(op.op for op in fallback.ops) == ["sort", "sort", "topk"]
    # The sort in the middle is nobody else's: it has no buffer.
    assert len(fallback.results) == 3 and [v.buffer for v in fallback.operands] == [
        compilation.graph.parameters[0]
    ]
    assert_close(HostEngine(compilation.program).run([x]), jax.tree.leaves(jax.jit(chain)(x)))


def test_a_kernel_that_reads_a_fallback_parts_it_from_the_next():
    def chain(x):
        return jnp.sort(jnp.exp(jnp.sort(x, axis=0)), axis=1)

    compilation = compile_fn(chain, X)
    kinds = [type(s) for s in compilation.program.steps]
    assert kinds == [FallbackStep, KernelStep, FallbackStep]


def test_a_kernel_and_a_product_that_do_not_wait_go_before_the_fallback():
    def model(x):
        first = jnp.sort(x, axis=0)
        other = jnp.exp(x @ x)
        return jnp.fft.rfft(first), jnp.sort(other, axis=1)

    compilation = compile_fn(model, X)
    kinds = [type(s) for s in compilation.program.steps]
    assert kinds == [LibraryStep, KernelStep, FallbackStep]
    assert_close(HostEngine(compilation.program).run([X]), jax.tree.leaves(jax.jit(model)(X)))


@pytest.mark.parametrize("count", [4, 4096])
def test_small_constants_are_part_of_the_fallback_and_large_ones_are_operands(count):
    rows = (np.arange(count, dtype=np.int32) % 3)[:, None]

    def keep_least(v):
        dimensions = jax.lax.ScatterDimensionNumbers((), (0,), (0,))
        ones = jnp.asarray(np.linspace(1, 1, count, dtype=np.float32))
        return jax.lax.scatter_min(v, jnp.asarray(rows), ones, dimensions)

    v = RNG.normal(size=300).astype(np.float32)
    compilation = compile_fn(keep_least, v)
    (fallback,) = fallbacks(compilation)
    constants = {name for name, _ in compilation.program.constants}
    assert bool(constants & {v.buffer for v in fallback.operands}) == (count > 4)
    (out,) = HostEngine(compilation.program).run([v])
    np.testing.assert_array_equal(out, np.where(np.arange(300) < 3, np.minimum(v, 1), v))


def test_the_module_of_a_fallback_runs_alone():
    (fallback,) = fallbacks(compile_fn(sort_rows, X))
    operand = np.tanh(X)
    (out,) = run_xla(fallback.hlo, [operand])
    np.testing.assert_array_equal(out, np.sort(operand, axis=1))


# ---- what is said --------------------------------------------------------------------------------


def test_explain_lists_fallbacks_with_reasons():
    compilation = compile_fn(sort_rows, X)
    (fallback,) = fallbacks(compilation)
    (op,) = fallback.ops
    assert str(op) == f"%{op.name} = sort: 'sort' has no emitted form" == fallback.reason
    assert f"XLA fallbacks: 1\n  island_1: 1 ops\n    {op}" in compilation.explain()


def test_without_jax_the_reference_computes_and_explain_says_so(monkeypatch):
    monkeypatch.setattr("astitch.pipeline.has_jax", lambda: False)
    compilation = compile_fn(sort_rows, X)
    assert [type(s) for s in compilation.program.steps] == [
        KernelStep,
        ReferenceStep,
        KernelStep,
    ]
    assert "other ops: 1 (the NumPy reference runs them" in compilation.explain()
    assert_close(HostEngine(compilation.program).run([X]), [jax.jit(sort_rows)(X)])


def test_strict_names_the_ops_and_the_reasons():
    proto = lower(take_largest, X)
    with pytest.raises(UnsupportedOp) as caught:
        compile_hlo(proto, strict=True)
    (op,) = compile_hlo(proto).program.outside
    assert str(caught.value) == (
        f"program {compile_hlo(proto).program.name}: strict was asked for, and no stitched kernel or library computes\n"
        f"  {op}\n  rewrite them, or leave strict out: XLA computes them then"
    )


def test_strict_jit_refuses_and_lets_pass():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(UnsupportedOp, match="%.* = sort: 'sort' has no emitted form"):
            astitch.jit(sort_rows, strict=True)(X)
        strictly = astitch.jit(strict=True)(lambda x: jnp.tanh(x) + 1)
        np.testing.assert_allclose(strictly(X), np.tanh(X) + 1, rtol=1e-5)
        assert_close([astitch.jit(sort_rows)(X)], [jax.jit(sort_rows)(X)])


def test_a_fallback_that_xla_refuses_is_named_with_xlas_words():
    text = """HloModule m
ENTRY e { x = f32[4] parameter(0)
 ROOT r = f32[4] custom-call(x), custom_call_target="nobody_has_this", api_version=API_VERSION_TYPED_FFI }"""
    program = compile_hlo(text).program
    with pytest.raises(FallbackRefused) as caught:
        HostEngine(program)
    message = str(caught.value)
    assert message.startswith(f"{program.name}, island_1: XLA refuses to compile it for ")
    assert "nobody_has_this" in message and "strict=True" in message


def test_what_a_gpu_has_no_product_for_is_compiled_again_for_libraries(monkeypatch):
    def compile_module(hlo, device, settings):
        if settings.get("xla_gpu_enable_triton_gemm", True):
            raise jax.errors.JaxRuntimeError("INTERNAL: No supported config found for HLO")
        return settings

    monkeypatch.setattr(xla_fallback, "compile_module", compile_module)
    gpu = SimpleNamespace(platform="gpu")
    found = xla_fallback._compile.__wrapped__(b"", gpu)
    assert dict(found).items() >= dict(xla_fallback.REPEATABLE).items()
    with pytest.raises(jax.errors.JaxRuntimeError):
        xla_fallback._compile.__wrapped__(b"", SimpleNamespace(platform="cpu"))


TILINGS = """
from astitch.hlo.schema import CompileOptionsProto
from astitch.library.xla_fallback import choose_options
options = choose_options(0, {"xla_allow_excess_precision": False}, tilings=3)
debug = CompileOptionsProto.FromString(options.SerializeAsString()).executable_build_options.debug_options
for entry in debug.xla_gpu_experimental_cost_model_gemm_tiling_options:
    print(entry.key.decode(), entry.value.decode())
print(options.env_option_overrides)
"""


@pytest.mark.parametrize(
    "wish, top",
    [("", "3"), ("top=7", "7")],
    ids=["as many as asked for", "XLA_FLAGS have another wish"],
)
def test_few_tilings_of_a_product_are_measured(wish, top):
    flags = f"--xla_gpu_experimental_cost_model_gemm_tiling_options={wish}" if wish else ""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    found = subprocess.run(
        [sys.executable, "-c", TILINGS], env=environment, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert sorted(found.stdout.splitlines()) == [
        "[('xla_allow_excess_precision', False)]",
        f"top {top}",
        "top_from_default 1",
    ]


def test_a_module_is_compiled_with_few_tilings():
    (step,) = fallbacks(compile_fn(sort_rows, X))
    module = xla_fallback.compile_module(step.hlo, host_device(), xla_fallback.EXACT, tilings=2)
    (result,) = xla_fallback.FallbackSubgraph("sorted", host_device(), module).run(
        [put_array(X, host_device())]
    )
    np.testing.assert_array_equal(result, np.sort(X))


# ---- the runner ----------------------------------------------------------------------------------


def test_devices_of_jax_are_found_or_missed(monkeypatch):
    assert find_device("cpu").platform == "cpu"
    assert find_device("cpu") == host_device()
    assert find_device("nonesuch") is None
    monkeypatch.setattr(xla_fallback, "find_device", lambda platform: None)
    with pytest.raises(EngineUnavailable, match=r"install astitch\[jax\]"):
        xla_fallback.host_device()


def test_arrays_keep_their_dtype_and_fallbacks_are_compiled_once():
    for dtype in (np.int64, np.float64, np.uint8, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, bool):
        array = np.ones((2, 3), dtype)
        assert put_array(array, host_device()).dtype == array.dtype
    (step,) = fallbacks(compile_fn(sort_rows, X))
    compiled = functools.partial(compile_fallback, step.hlo, host_device())
    first, second = compiled("a"), compiled("b")
    assert first.executable is second.executable and (first.what, second.what) == ("a", "b")


TWO_DEVICES = """
import jax, jax.numpy as jnp, numpy as np
from astitch.library.xla_fallback import compile_fallback, put_array
from tests.hlo_runner import lower
device, x = jax.devices()[1], np.array([3, 1, 2], np.float32)
(result,) = compile_fallback(lower(jnp.sort, x), device, "sort").run([put_array(x, device)])
assert result.devices() == {device} and result.tolist() == [1, 2, 3]
"""


def test_a_fallback_runs_on_the_device_that_it_was_compiled_for():
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-c", TWO_DEVICES], check=True, cwd=root, env={**os.environ, **flags}
    )


def test_a_fallback_runs_with_empty_arrays_and_64_bit_numbers():
    with jax.enable_x64(True):
        proto = lower(
            lambda e, n: (jnp.sort(e), jnp.sort(n)), np.zeros((0, 3)), np.arange(3)[::-1] + 2**40
        )
    program = compile_hlo(proto).program
    empty, numbers = HostEngine(program).run([np.zeros((0, 3)), np.arange(3)[::-1] + 2**40])
    assert empty.shape == (0, 3) and empty.dtype == np.float64
    np.testing.assert_array_equal(numbers, np.arange(3) + 2**40)


@pytest.mark.parametrize(("wanted", "found"), [(None, "a"), ("b", "b"), ("cpu", "a")])
def test_the_gpu_that_jax_computes_on(
    wanted: str | None, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "local_devices", lambda backend: ["a", "b"])
    settings = SimpleNamespace(jax_default_device=wanted)
    monkeypatch.setattr(jax, "config", settings)
    assert default_gpu() == found


def test_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(backend: str) -> None:
        raise RuntimeError(f"no {backend}")

    monkeypatch.setattr(jax, "local_devices", refuse)
    assert default_gpu() is None
