"""Programs whose convolutions cuDNN does: on the host in its place, and on a GPU every form that it has."""

from __future__ import annotations

import gzip
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

from astitch.compile import compile_hlo
from astitch.graph.convolution import CanonicalConvolution, canonical_convolution
from astitch.graph.ir import ArrayType, ConvolutionAttrs, Node
from astitch.hlo.export import export_call
from astitch.hlo_import import import_hlo
from astitch.library import cudnn
from astitch.library.xla_fallback import compile_fallback, find_device, put_array
from astitch.program.steps import LibraryStep, Program
from astitch.run.executor import GpuExecutor
from astitch.run.gpu_call import Call, PreparedStep
from astitch.run.gpu_fallbacks import OutsideSteps
from astitch.run.host_engine import HostEngine
from tests.hlo_runner import lower, run_xla

executor_module = importlib.import_module("astitch.run.executor")

LAST, FIRST = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")

OWN = ("NHWC", "OHWI", "NHWC")
"""cuDNN's: no kernel stands around the convolution."""

VOLUMES = ("NDHWC", "DHWIO", "NDHWC")


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


def layer(x: Any, k: Any, layout: Any = OWN, stride: Any = None, **options: Any) -> Any:
    stride = stride or (1,) * (x.ndim - 2)
    return lax.conv_general_dilated(x, k, stride, "SAME", dimension_numbers=layout, **options)


X, K = whole(2, 6, 5, 4), whole(8, 3, 3, 4)


def test_a_convolution_of_a_program_is_cudnns(library: FakeCudnn) -> None:
    program = compile_fn(layer, X, K)
    assert [type(step) for step in program.steps] == [LibraryStep]
    check(program, X, K)
    assert library.launched == ["eng0"]


def test_what_no_kernel_lays_out_is_copied(library: FakeCudnn) -> None:
    x, k = whole(2, 4, 6, 5, 4), whole(3, 3, 3, 4, 8)
    compilation = compile_hlo(lower(lambda x, k: layer(x, k, VOLUMES), x, k), gpu="h100")
    assert [type(step) for step in compilation.program.steps] == [LibraryStep]
    assert "conv_fprop, right operand copied" in compilation.explain()
    check(compilation.program, x, k)
    assert library.launched == ["eng0"]


def test_explain_says_what_cudnn_does() -> None:
    def convolve(x: Any, k: Any) -> Any:
        back = layer(x, k, stride=(2, 2), precision="highest")
        spread = jnp.int32(layer(x.astype(jnp.int32), k.astype(jnp.int32)))
        return back, spread, jax.grad(lambda x: jnp.sum(layer(x, k, stride=(2, 2))))(x)

    text = compile_hlo(lower(convolve, X, K), gpu="h100").explain()
    (start,) = (i for i, line in enumerate(text.splitlines()) if line.startswith("convolutions,"))
    shown = [line.split(": ", 1)[1] for line in text.splitlines()[start + 1 : start + 4]]
    assert sorted(shown) == [
        "XLA's: s32, for which cuDNN is not asked",
        "conv_dgrad, nothing copied",
        "conv_fprop, nothing copied",
    ]


def test_what_cudnn_has_not_is_a_fallback(library: FakeCudnn) -> None:
    library.names = ()
    check(compile_fn(layer, X, K), X, K)
    integers = compile_fn(layer, X.astype(np.int32), K.astype(np.int32))
    check(integers, X.astype(np.int32), K.astype(np.int32))
    assert library.launched == []


def test_what_does_not_run_is_a_fallback_from_then_on(library: FakeCudnn) -> None:
    library.names = ("eng0", "eng1")
    library.broken = {"eng0", "eng1"}
    program = compile_fn(layer, X, K)
    executor = GpuExecutor(program)
    (want,) = HostEngine(program).run([X, K])
    for _ in range(2):
        np.testing.assert_array_equal(executor.run([X, K])[0].to_numpy(), want)
    call = Call((), {}, {}, 0, [])
    with pytest.raises(RuntimeError, match="in no graph"), executor._memory.working_in_rooms(None):
        executor._steps[0].launch(call)


def test_what_xla_convolves_lies_where_it_would_have(
    library: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs of other steps were made for that place."""
    library.names = ("eng0",)
    program = compile_fn(layer, X, K)
    (want,) = HostEngine(program).run([X, K])

    def prepare(_: OutsideSteps, step: LibraryStep) -> PreparedStep:
        (result,) = step.results

        def run(call: Call) -> None:
            call.addresses[result.buffer] = want.ctypes.data
            call.outputs[result.buffer] = want

        return PreparedStep(run)

    def fail(*_: Any) -> None:
        raise cudnn.NoCudnnPlan("none runs")

    monkeypatch.setattr(OutsideSteps, "prepare_library", prepare)
    monkeypatch.setattr(cudnn.Convolution, "launch", fail)
    executor = GpuExecutor(program)
    for _ in range(2):
        (result,) = executor.run([X, K])
        assert result.pointer == result.owner.ptr != want.ctypes.data
        np.testing.assert_array_equal(result.to_numpy(), want)


# ---- on a GPU ----------------------------------------------------------------------------------------------------

MODULES = Path(__file__).parents[1] / "data" / "hlo"

F16, BF16, F32, F64 = jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64


def run_with_cudnn(
    program: Program, arguments: list[np.ndarray], convolutions: int
) -> list[np.ndarray]:
    """The results, of the first call and of a graph; nothing is left to XLA."""
    pytest.importorskip("cudnn")
    executor = GpuExecutor(program)
    found = [step for step in program.steps if isinstance(step, LibraryStep)]
    assert len(found) == convolutions
    first = [result.to_numpy() for result in executor.run(arguments)]
    placed = [executor.cupy.asarray(a) if a.dtype != BF16 else a for a in arguments]
    for _ in range(4):
        again = [result.to_numpy() for result in executor.run(placed)]
        for one, other in zip(first, again, strict=True):
            np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))
    assert executor._convolutions._convolutions and not executor._fallbacks.made_by_xla
    return first


def assert_near(found: np.ndarray, want: np.ndarray, error: float) -> None:
    """error: of the largest number."""
    found, want = found.astype(np.float64), np.asarray(want).astype(np.float64)
    assert np.isfinite(found).all()
    assert np.abs(found - want).max() <= error * max(np.abs(want).max(), 1)


def step_of(**options: Any) -> Any:
    """A layer and both of its gradients."""

    def step(x: Any, k: Any, y: Any) -> Any:
        result, pull = jax.vjp(lambda x, k: lax.conv_general_dilated(x, k, **options), x, k)
        return result, *pull(y)

    return step


def layer_case(
    x: Any, k: Any, layout: Any = LAST, stride: Any = (1, 1), padding: Any = "SAME", **more: Any
) -> Any:
    return {"window_strides": stride, "padding": padding, "dimension_numbers": layout, **more}, x, k


LAYERS = {
    "last": layer_case((4, 12, 20, 16), (3, 3, 16, 32)),
    "first": layer_case((4, 16, 12, 20), (32, 16, 3, 3), FIRST),
    "strided": layer_case((4, 13, 20, 16), (3, 3, 16, 32), stride=(2, 3)),
    "strided, first": layer_case((4, 16, 13, 20), (32, 16, 3, 3), FIRST, stride=(2, 2)),
    "asymmetric": layer_case((4, 12, 20, 16), (3, 2, 16, 32), padding=((0, 2), (1, 0))),
    "dilated": layer_case((4, 12, 20, 16), (3, 3, 16, 32), rhs_dilation=(2, 3)),
    "transposed": layer_case(
        (4, 12, 10, 16), (3, 3, 16, 32), padding=((1, 2), (2, 1)), lhs_dilation=(2, 2)
    ),
    "groups": layer_case((4, 12, 20, 16), (3, 3, 4, 32), feature_group_count=4),
    "depthwise": layer_case((4, 12, 20, 16), (3, 3, 1, 16), feature_group_count=16),
    "few channels": layer_case((4, 32, 20, 1), (3, 3, 1, 3)),
    "other orders": layer_case((16, 12, 20, 4), (16, 3, 32, 3), ("CHWN", "IHOW", "HNWC")),
    "1-d": layer_case((4, 40, 16), (5, 16, 24), ("NWC", "WIO", "NWC"), (2,)),
    "3-d": layer_case((2, 6, 7, 8, 8), (3, 3, 3, 8, 16), VOLUMES, (1, 1, 1)),
    "1 x 1": layer_case((4, 12, 20, 16), (1, 1, 16, 32)),
    "patches": layer_case((4, 32, 32, 3), (8, 8, 3, 48), stride=(8, 8), padding="VALID"),
}


def lower_layer(name: str, dtype: Any) -> tuple[bytes, list[np.ndarray]]:
    """The layer with its gradients, and arguments of whole numbers."""
    options, x_shape, k_shape = LAYERS[name]
    x, k = whole(*x_shape, dtype=dtype), whole(*k_shape, dtype=dtype)
    with jax.enable_x64(dtype is F64):
        shape = jax.eval_shape(lambda x, k: lax.conv_general_dilated(x, k, **options), x, k).shape
        arguments = [x, k, whole(*shape, dtype=dtype)]
        return lower(step_of(**options), *arguments), arguments


def find_convolutions(hlo: bytes) -> list[tuple[Node, list[ArrayType]]]:
    graph = import_hlo(hlo)
    return [
        (node, [graph[operand].array for operand in node.operands])
        for node in graph
        if isinstance(node.attrs, ConvolutionAttrs)
    ]


@pytest.mark.parametrize("name", LAYERS)
def test_layers_and_their_gradients_have_forms(name: str) -> None:
    found = find_convolutions(lower_layer(name, F32)[0])
    assert len(found) == 3
    for node, types in found:
        assert isinstance(node.attrs, ConvolutionAttrs)
        reading = canonical_convolution(node.attrs, *types, node.array)
        assert isinstance(reading, CanonicalConvolution), reading


def run_layer(name: str, dtype: Any) -> None:
    hlo, arguments = lower_layer(name, dtype)
    found = run_with_cudnn(compile_hlo(hlo, gpu="h100").program, arguments, 3)
    error = {F16: 2e-3, BF16: 2e-2, F32: 1e-3, F64: 1e-12}[dtype]
    for one, other in zip(found, run_xla(hlo, arguments), strict=True):
        assert_near(one, other, error)


@pytest.mark.gpu
@pytest.mark.parametrize("name", LAYERS)
def test_layers_and_their_gradients(name: str) -> None:
    run_layer(name, F32)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [F16, BF16, F64])
@pytest.mark.parametrize("name", ["last", "first", "strided"])
def test_types(name: str, dtype: Any) -> None:
    run_layer(name, dtype)


@pytest.mark.gpu
def test_the_highest_precision_is_f32s() -> None:
    rng = np.random.default_rng(0)
    x, k = (rng.normal(size=s).astype(np.float32) for s in ((4, 12, 20, 16), (3, 3, 16, 32)))
    hlo = lower(lambda x, k: layer(x, k, LAST, precision="highest"), x, k)
    (found,) = run_with_cudnn(compile_hlo(hlo, gpu="h100").program, [x, k], 1)
    assert_near(found, run_xla(hlo, [x, k])[0], 1e-5)


@pytest.mark.gpu
def test_the_convolutions_of_a_training_step_of_crnn() -> None:
    found = find_convolutions(gzip.decompress((MODULES / "crnn_train.hlo.pb.gz").read_bytes()))
    assert len(found) == 20
    device = find_device("gpu")
    if device is None:
        pytest.skip("needs JAX on the GPU")
    for node, types in found:
        hlo = export_call(node, types)
        arguments = [whole(*t.shape) for t in types]
        (result,) = run_with_cudnn(compile_hlo(hlo, gpu="h100").program, arguments, 1)
        fallback = compile_fallback(hlo, device, node.name)
        (want,) = fallback.run([put_array(a, device) for a in arguments])
        assert_near(result, np.asarray(want), 1e-3)
