"""The GPU executor: products in cuBLAS's form everywhere, programs on a device where there is one."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import importlib
import itertools
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_cupy
import numpy as np
import pytest
import stepped_programs as programs
from fake_cublaslt import Compute, FakeLt, Types
from fake_cupy import Fake
from interrupt_at import interrupt_at

from astitch.compile import compile_hlo
from astitch.device import launch_time
from astitch.errors import (
    ArgumentMismatch,
    EngineUnavailable,
    FallbackRefused,
    LaunchRefused,
    OtherDevice,
    OutOfMemory,
    UnsupportedType,
)
from astitch.graph.ir import ArrayType, DotAttrs, DType, Node
from astitch.graph.reference import eval_node
from astitch.library import cublaslt
from astitch.program.steps import KernelStep, LibraryStep, Program, Space
from astitch.run import (
    device_array,
    device_memory,
    gpu_arguments,
    gpu_fallbacks,
    gpu_products,
    graph_runs,
    program_binding,
    stream_turns,
)
from astitch.run.device_array import DeviceArray, JaxHandover, _RenamedDlpack
from astitch.run.executor import GpuExecutor, count_gpus
from astitch.run.result_memory import give_back_all

executor_module = importlib.import_module("astitch.run.executor")

WORKING = (
    executor_module,
    device_array,
    device_memory,
    gpu_arguments,
    gpu_products,
    graph_runs,
    program_binding,
    stream_turns,
)
"""The modules that a call of a program of products goes through."""

F32 = DType.F32


# ---- without a device ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F8E4M3FN, DType.F8E5M2], ids=str)
def test_narrow_floats_travel_through_dlpack_as_words(dtype: DType) -> None:
    """NumPy's words here, CuPy's on a GPU: JAX takes them for what they are said to be."""
    import jax

    values = np.arange(6).astype(dtype.numpy)

    class Words:
        array = values.view(f"u{dtype.bytes}")

        def __dlpack__(self, *, stream: Any = None) -> Any:
            return self.array.__dlpack__()

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    back = jax.dlpack.from_dlpack(_RenamedDlpack(Words(), dtype))
    assert back.dtype == dtype.numpy
    np.testing.assert_array_equal(np.asarray(back), values)


def test_managed_memory_travels_through_dlpack_as_a_gpu_s() -> None:
    class Managed:
        array = np.arange(6, dtype=np.float32)

        def __dlpack__(self, *, stream: Any = None) -> Any:
            capsule = self.array.__dlpack__()
            read_device(capsule).value = 13
            return capsule

        def __dlpack_device__(self) -> Any:
            return 13, 1

    def read_device(capsule: Any) -> ctypes.c_int32:
        find = ctypes.pythonapi.PyCapsule_GetPointer
        find.restype, find.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        return ctypes.c_int32.from_address(find(capsule, b"dltensor") + 8)

    renamed = _RenamedDlpack(Managed(), F32)
    assert renamed.__dlpack_device__() == (2, 1)
    assert read_device(renamed.__dlpack__()).value == 2


def product_program(name: str = "main", dtype: DType = F32) -> Program:
    """x [3, 4, 5, 2], y [3, 4, 6, 2] -> their product over 4 for each of 3 and 2, after copies; and that by itself."""
    x, y = programs.view("x", 3, 4, 5, 2, dtype=dtype), programs.view("y", 3, 4, 6, 2, dtype=dtype)
    z, w = programs.view("z", 3, 2, 5, 6, dtype=dtype), programs.view("w", 3, 2, 5, 5, dtype=dtype)
    first = DotAttrs((1,), (1,), (0, 3), (0, 3))
    second = DotAttrs((3,), (3,), (0, 1), (0, 1))
    return Program(
        name,
        programs.buffers(
            (x, Space.PARAMETER, 0),
            (y, Space.PARAMETER, 1),
            (z, Space.ARENA, 0),
            (w, Space.OUTPUT, 0),
        ),
        (x, y),
        (),
        (
            LibraryStep(Node("z", "dot", z.type, ("x", "y"), first), (x, y), (z,)),
            LibraryStep(Node("w", "dot", w.type, ("z", "z"), second), (z, z), (w,)),
        ),
        (w,),
        z.type.bytes,
    )


def count_up(*shape: int) -> np.ndarray:
    return np.arange(1.0, math.prod(shape) + 1).reshape(shape) % 11


def product_arguments() -> tuple[list[np.ndarray], np.ndarray]:
    x, y = count_up(3, 4, 5, 2).astype(np.float32), count_up(3, 4, 6, 2).astype(np.float32)
    z = np.einsum("bkml,bknl->blmn", x, y)
    return [x, y], z @ z.swapaxes(-1, -2)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """CuPy on the host's memory; JAX has no GPU."""
    fake = Fake()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(executor_module, "import_cupy", lambda: fake)
    for module in (device_array, gpu_fallbacks):
        monkeypatch.setattr(module, "find_device", lambda *_: None)
    monkeypatch.setattr(gpu_products, "find_bindings", lambda _: None)
    return fake


@pytest.fixture
def lt(fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeLt:
    """cuBLASLt beside it, which names two algorithms; the second is faster."""
    lt = FakeLt(2)
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cublaslt, "open_cache", cublaslt.open_cache.__wrapped__)
    monkeypatch.setattr(
        gpu_products, "find_bindings", lambda _: cublaslt.Bindings(lt, Types, Compute)
    )
    times = itertools.cycle([5.0, 3.0])

    def time_launch(_: Any, launch: Any) -> float:
        launch(0, False)
        return next(times)

    monkeypatch.setattr(launch_time, "time_launch", time_launch)
    return lt


def test_products_through_cublaslt(fake: Fake, lt: FakeLt) -> None:
    arguments, want = product_arguments()
    fake.cuda.cublas.gemmStridedBatchedEx = lambda *_: 1 / 0
    executor = GpuExecutor(product_program())
    for _ in range(2):
        np.testing.assert_array_equal(executor.run(arguments)[0].to_numpy(), want)
    assert set(lt.launched) == {10, 11}
    assert lt.launched[-2:] == [11, 11]


@pytest.mark.parametrize("missing", ["none named", "none runs"])
def test_products_without_an_algorithm_go_through_cublas(
    missing: str, fake: Fake, lt: FakeLt
) -> None:
    arguments, want = product_arguments()
    if missing == "none named":
        lt.count = 0
    lt.broken = {10, 11}
    np.testing.assert_array_equal(GpuExecutor(product_program()).run(arguments)[0].to_numpy(), want)
    assert not lt.launched


def test_a_step_alone_on_buffers_of_the_caller(fake: Fake) -> None:
    arguments, want = product_arguments()
    program = product_program()
    executor = GpuExecutor(program)
    held = {
        name: upload(fake, np.zeros(buffer.type.shape, buffer.type.dtype.numpy))
        for name, buffer in program.buffers.items()
    }
    for view, array in zip(program.parameters, arguments, strict=True):
        held[view.buffer] = upload(fake, array)
    for number in range(len(program.steps)):
        executor.run_step(number, {name: memory.ptr for name, memory in held.items()}, stream=0)
    (output,) = program.outputs
    result = DeviceArray(held[output.buffer].ptr, output.type, None).to_numpy()
    np.testing.assert_array_equal(result, want)


def test_out_of_memory_in_the_middle_is_named_and_the_next_call_works(fake: Fake) -> None:
    arguments, want = product_arguments()
    executor = GpuExecutor(product_program())
    held = [
        DeviceArray(m.ptr, ArrayType(F32, a.shape), m) for a in arguments for m in [upload(fake, a)]
    ]
    before = fake.used
    failures = []
    for room in range(before, before + 5000, 40):
        fake.room = room
        try:
            (result,) = executor.run(held)
        except OutOfMemory as error:
            failures.append(str(error))
        else:
            np.testing.assert_array_equal(result.to_numpy(), want)
            break
        assert fake.used == before  # nothing of the call that failed is kept
    names = list(
        dict.fromkeys(
            text.partition(": no room for ")[2].partition(": Out")[0] for text in failures
        )
    )
    assert names == [
        "w, 600 bytes",
        "x in the order of the product, 480 bytes",
        "y in the order of the product, 576 bytes",
    ]
    assert all(text.startswith("program main: no room for ") for text in failures)
    assert all(
        "Out of memory allocating " in text and "free arrays, call " in text for text in failures
    )
    del result
    for _ in range(2):
        np.testing.assert_array_equal(executor.run(held)[0].to_numpy(), want)


def test_no_room_for_arguments_of_the_host(fake: Fake) -> None:
    arguments, want = product_arguments()
    executor = GpuExecutor(product_program())
    fake.room = fake.used + 500
    with pytest.raises(OutOfMemory, match="no room for argument 1, 576 bytes: Out of memory"):
        executor.run(arguments)
    fake.room = 1 << 40
    np.testing.assert_array_equal(executor.run(arguments)[0].to_numpy(), want)


def test_no_room_for_the_arena(fake: Fake) -> None:
    fake.room = 100
    with pytest.raises(OutOfMemory, match="no room for the arena, 720 bytes"):
        GpuExecutor(product_program())


@pytest.mark.parametrize(
    ("words", "step"),
    [
        ("CUDA_ERROR_OUT_OF_MEMORY: out of memory", 0),
        ("cudaErrorMemoryAllocation: out of memory", 1),
        ("CUBLAS_STATUS_ALLOC_FAILED", 1),
    ],
)
def test_what_the_driver_and_cublas_have_no_room_for(
    words: str, step: int, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, want = product_arguments()
    executor = GpuExecutor(product_program())
    multiply, calls = fake.cuda.cublas.gemmStridedBatchedEx, []

    def fail(*given: Any) -> None:
        calls.append(given)
        if len(calls) == step + 1:
            raise RuntimeError(words)
        multiply(*given)

    fake.cuda.cublas.gemmStridedBatchedEx = fail
    with pytest.raises(OutOfMemory, match=f"no room for step {step}, {'zw'[step]}: {words}"):
        executor.run(arguments)
    np.testing.assert_array_equal(executor.run(arguments)[0].to_numpy(), want)
    fake.cuda.cublas.gemmStridedBatchedEx = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        executor.run(arguments)


def test_products_without_types_of_cublas_go_through_xla_on_the_host(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And through NumPy only without JAX, which is told."""
    x, y = (count_up(*shape).astype(np.int32) for shape in ((3, 4, 5, 2), (3, 4, 6, 2)))
    z = np.einsum("bkml,bknl->blmn", x, y)
    with pytest.warns(RuntimeWarning, match="main, %[zw]: JAX has no GPU here, so XLA computes"):
        executor = GpuExecutor(product_program(dtype=DType.S32))
    np.testing.assert_array_equal(executor.run([x, y])[0].to_numpy(), z @ z.swapaxes(-1, -2))
    monkeypatch.setattr(gpu_fallbacks, "has_jax", lambda: False)
    with pytest.warns(RuntimeWarning, match="main, %[zw]: JAX is not installed, so NumPy computes"):
        executor = GpuExecutor(product_program(dtype=DType.S32))
    np.testing.assert_array_equal(executor.run([x, y])[0].to_numpy(), z @ z.swapaxes(-1, -2))


@pytest.mark.parametrize("refused_by", ["the GPU", "all"])
def test_what_xla_refuses_for_the_gpu_runs_on_the_host(
    refused_by: str, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, compile_one = object(), gpu_fallbacks.compile_fallback

    def compile_fallback(hlo: bytes, device: Any, what: str, *_: Any) -> Any:
        if device is gpu or refused_by == "all":
            where = "the GPU" if device is gpu else "the host"
            raise FallbackRefused(f"{what}: XLA refuses to compile it for {where}")
        return compile_one(hlo, device, what)

    monkeypatch.setattr(gpu_fallbacks, "find_device", lambda *_: gpu)
    monkeypatch.setattr(gpu_fallbacks, "compile_fallback", compile_fallback)
    if refused_by == "all":
        with pytest.raises(FallbackRefused, match="main, %[zw]: .* for the GPU"):
            GpuExecutor(product_program(dtype=DType.S32))
        return
    x, y = (count_up(*shape).astype(np.int32) for shape in ((3, 4, 5, 2), (3, 4, 6, 2)))
    z = np.einsum("bkml,bknl->blmn", x, y)
    with pytest.warns(RuntimeWarning, match="for the GPU\n  until then XLA .* on the host"):
        executor = GpuExecutor(product_program(dtype=DType.S32))
    np.testing.assert_array_equal(executor.run([x, y])[0].to_numpy(), z @ z.swapaxes(-1, -2))


def test_arrays_of_jax_are_known_again_only_as_what_they_are(fake: Fake) -> None:
    """JAX's CPU stands for its GPU."""
    import jax

    arguments, want = product_arguments()
    executor = GpuExecutor(product_program())
    executor._arguments._is_here[jax.device_put(arguments[0]).sharding] = True
    x, y, z = (jax.device_put(a) for a in (*arguments, arguments[0] * 2))
    for _ in range(2):
        with pytest.raises(ArgumentMismatch, match="argument 1"):
            executor.run([x, x])
        with pytest.raises(ArgumentMismatch, match="takes 2 arguments, 1 were given"):
            executor.run([z])
        np.testing.assert_array_equal(executor.run([x, y])[0].to_numpy(), want)
        np.testing.assert_array_equal(executor.run([z, y])[0].to_numpy(), want * 4)
    y.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        executor.run([x, y])


def test_an_interrupted_call_leaves_nothing_to_the_next(fake: Fake) -> None:
    """At whichever line of a call: what it knows of arguments may be half an old call's and half a new one's."""
    import jax

    arguments, want = product_arguments()
    executor = GpuExecutor(product_program())
    executor._arguments._is_here[jax.device_put(arguments[0]).sharding] = True
    x, y = (jax.device_put(a) for a in arguments)
    for number in itertools.count():
        z = jax.device_put(arguments[0] * 2)
        np.testing.assert_array_equal(executor.run([x, y])[0].to_numpy(), want)
        if not interrupt_at(number, WORKING, lambda z=z: executor.run([z, y])):
            break
        np.testing.assert_array_equal(executor.run([z, y])[0].to_numpy(), want * 4)
    assert number > 50


def test_the_gpu_comes_to_rest_after_an_interrupted_call(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end may not have been recorded, and a call on another stream waits for that."""
    arguments, want = product_arguments()
    executor = GpuExecutor(product_program())
    waited: list[int] = []
    monkeypatch.setattr(fake.cuda.runtime, "deviceSynchronize", lambda: waited.append(1))

    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(executor._turns, "end", SimpleNamespace(record=interrupt))
        with pytest.raises(KeyboardInterrupt):
            executor.run(arguments)
    for _ in range(2):
        np.testing.assert_array_equal(executor.run(arguments)[0].to_numpy(), want)
        assert waited == [1]


@pytest.mark.parametrize("works", [True, False], ids=["back door", "front door"])
def test_results_go_to_jax_behind_one_event(
    works: bool, fake: Fake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """JAX's CPU stands for its GPU."""
    import jax
    from jax._src.lib import _jax

    arguments, want = product_arguments()
    asked: list[Any] = []
    take = _jax.dlpack_managed_tensor_to_buffer

    class Gpu:
        def get_stream_for_external_ready_events(self) -> int:
            return 77

    def adopt(capsule: Any, device: Any, queue: int, copy: Any, kind: int) -> Any:
        if not works:
            raise TypeError("another number of arguments")
        asked.append((queue, copy, kind))
        return take(capsule, jax.devices()[0], None, copy, 1)

    class Words:
        def __init__(self, array: DeviceArray) -> None:
            self.array = array.to_numpy()

        def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
            asked.append(stream)
            return self.array.__dlpack__()

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    monkeypatch.setattr(_jax, "dlpack_managed_tensor_to_buffer", adopt)
    monkeypatch.setattr(DeviceArray, "_to_dlpack", lambda array: Words(array))
    monkeypatch.setattr(DeviceArray, "share_with_jax", lambda a, **_: jax.device_put(a.to_numpy()))
    monkeypatch.setattr(JaxHandover, "device", Gpu())
    waits: list[Any] = []
    fake.cuda.runtime.streamWaitEvent = lambda *given: waits.append(given)
    executor = GpuExecutor(product_program())
    for _ in range(3):
        (result,) = executor.run_to_jax(arguments)
        assert isinstance(result, jax.Array)
        np.testing.assert_array_equal(np.asarray(result), want)
    assert asked[:2] == ([-1, (77, None, 2)] if works else [-1])
    assert len(waits) == (3 if works else 1) and len(caplog.records) == (not works)


def test_memory_that_jax_may_still_read_is_written_behind_jax(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX lets go of an array as soon as what reads it is enqueued, on a stream of its own."""
    from jax._src.lib import _jax

    class Gpu:
        def get_stream_for_external_ready_events(self) -> int:
            return 77

    class Words(fake_cupy.Array):
        def __dlpack__(self, **_: Any) -> Any:
            return self

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    class Adopted:
        def __init__(self, capsule: Any) -> None:
            self.capsule, self.where = capsule, capsule.data.ptr

    done: list[Any] = []
    multiply = fake.cuda.cublas.gemmStridedBatchedEx
    fake.cuda.cublas.gemmStridedBatchedEx = lambda *given: (done.append("write"), multiply(*given))
    fake.cuda.UnownedMemory = lambda pointer, _, owner: SimpleNamespace(ptr=pointer, owner=owner)
    fake.cuda.runtime.streamWaitEvent = lambda *_: None
    fake.ndarray = Words
    monkeypatch.setattr(_jax, "dlpack_managed_tensor_to_buffer", lambda c, *_: Adopted(c))
    monkeypatch.setattr(JaxHandover, "device", Gpu())
    monkeypatch.setattr(device_memory, "wait_for_jax", lambda *given: done.append(given))
    executor, (arguments, _) = GpuExecutor(product_program()), product_arguments()
    done.clear()
    (result,) = executor.run_to_jax(arguments)
    (kept,) = executor.run_to_jax(arguments)
    assert done == ["write"] * 4
    where = result.where
    del result
    (result,) = executor.run_to_jax(arguments)
    assert result.where == where != kept.where
    assert done[4:] == [(0, 0), "write", "write"]
    executor.run_to_jax(arguments)
    del kept
    done.clear()
    GpuExecutor(product_program()).run(arguments)  # whose memory may be any program's
    assert done[0] == (0, 0) and done.count((0, 0)) == 1


@pytest.mark.parametrize("known", [True, False])
def test_arrays_that_were_put_elsewhere(
    known: bool, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX's CPU is not the GPU; known: has JAX that one?"""
    import jax

    monkeypatch.setattr(JaxHandover, "device", "cuda:0" if known else None)
    arguments, want = product_arguments()
    anywhere = [jax.device_put(a) for a in arguments]
    put = [jax.device_put(a, jax.devices()[0]) for a in arguments]
    staying = GpuExecutor(product_program(), moves=False)
    if known:
        with pytest.raises(
            OtherDevice, match=r"argument 0 .* lies on .*; astitch runs on cuda:0\n"
        ):
            staying.run(put)
    else:
        np.testing.assert_array_equal(staying.run(put)[0].to_numpy(), want)
    for executor, given in [(staying, anywhere), (GpuExecutor(product_program()), put)]:
        np.testing.assert_array_equal(executor.run(given)[0].to_numpy(), want)


def test_an_array_of_a_wrong_type_is_never_known_again(fake: Fake) -> None:
    """Not even where its call ended for another reason before its type was checked."""
    import jax

    (x, y), _ = product_arguments()
    executor = GpuExecutor(product_program())
    wrong = jax.device_put(x[:1])
    executor._arguments._is_here[wrong.sharding] = True
    fake.room = fake.used
    with pytest.raises(OutOfMemory):
        executor.run([wrong, y])
    fake.room = 1 << 40
    with pytest.raises(ArgumentMismatch, match="argument 0"):
        executor.run([wrong, y])


def upload(fake: Fake, array: np.ndarray) -> Any:
    memory = fake.cuda.alloc(array.nbytes)
    fake.cuda.runtime.memcpyAsync(memory.ptr, array.ctypes.data, array.nbytes)
    return memory


def test_buffers_that_cupy_has_no_arrays_of_are_refused_and_others_may_hide_them(
    fake: Fake,
) -> None:
    def compile_text(text: str) -> Program:
        return compile_hlo(f"HloModule m\nENTRY e {{ {text} }}").program

    given = compile_text("x = s4[8] parameter(0)\n ROOT y = f32[8] convert(x)")
    with pytest.raises(
        UnsupportedType, match=r"program e: %x is s4\[8\], which CuPy has no arrays"
    ):
        GpuExecutor(given)
    inside = compile_text(
        "x = f32[8] parameter(0)\n y = s4[8] convert(x)\n ROOT z = f32[8] convert(y)"
    )
    x = np.arange(8, dtype=np.float32) - 4
    with pytest.warns(RuntimeWarning, match="XLA computes this on the host"):
        executor = GpuExecutor(inside)
        (result,) = executor.run([x])
    np.testing.assert_array_equal(result.to_numpy(), x)


def test_without_a_gpu_the_executor_says_so() -> None:
    if count_gpus():
        assert GpuExecutor(programs.scale_program()).device.id == 0
    else:
        with pytest.raises(EngineUnavailable, match="the GPU engine"):
            GpuExecutor(programs.scale_program())


# ---- on a device -----------------------------------------------------------------------------------------------

X = np.random.default_rng(0).standard_normal((10, 20), np.float32)


def run(program: Program, *arguments: Any) -> list[np.ndarray]:
    return [array.to_numpy() for array in GpuExecutor(program).run(arguments)]


@pytest.mark.gpu
def test_a_kernel_and_outputs_that_are_no_buffer_of_their_own() -> None:
    scaled, same, factor, other_shape = run(programs.scale_program(), X)
    np.testing.assert_array_equal(scaled, X * 3)
    np.testing.assert_array_equal(same, X.reshape(200))
    np.testing.assert_array_equal(factor, np.float32(3))
    np.testing.assert_array_equal(other_shape, (X * 3).reshape(20, 10))


@pytest.mark.gpu
def test_a_global_barrier_from_call_to_call() -> None:
    executor = GpuExecutor(programs.centre_program())
    for scale in (1, -5, 100):
        x = scale * np.arange(200, dtype=np.float32)
        (centred,) = executor.run([x])
        np.testing.assert_allclose(centred.to_numpy(), x - x.mean(), rtol=1e-5, atol=1e-3)


@pytest.mark.gpu
def test_a_table_of_pointers() -> None:
    np.testing.assert_array_equal(run(programs.table_program(), *X[:3])[0], X[0] + X[1] + X[2])


@pytest.mark.gpu
def test_library_and_reference_steps() -> None:
    (joined,) = run(programs.chain_program(), X)
    np.testing.assert_allclose(joined, np.concatenate([X @ X.T] * 2), rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
def test_empty_arrays() -> None:
    assert run(programs.empty_program(), np.zeros((0, 5), np.float32))[0].shape == (0, 5)


@pytest.fixture(params=["cublas", "cublaslt"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of them multiplies."""
    name = str(request.param)
    if name == "cublas":
        monkeypatch.setattr(gpu_products, "find_bindings", lambda _: None)
    elif cublaslt.find_bindings(0) is None:
        pytest.skip("nvmath-python is not installed")
    return name


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "precision", "tolerance"),
    [
        (DType.F32, "HIGHEST", 1e-6),
        (DType.F32, "DEFAULT", 2e-3),
        (DType.F64, "DEFAULT", 1e-12),
        (DType.F16, "DEFAULT", 2e-3),
        (DType.BF16, "DEFAULT", 1e-2),
        (DType.C64, "HIGHEST", 1e-6),
        (DType.S32, "DEFAULT", 0.0),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("attrs", "lhs", "rhs", "shape"),
    [
        (DotAttrs((1,), (0,)), (50, 70), (70, 30), (50, 30)),
        (DotAttrs((0,), (1,)), (70, 50), (30, 70), (50, 30)),
        (DotAttrs((2,), (2,), (1,), (1,)), (50, 4, 16), (60, 4, 16), (4, 50, 60)),
        (DotAttrs((0, 2), (0, 2), (1,), (1,)), (2, 4, 5, 8), (2, 4, 5, 6), (4, 8, 6)),
        (DotAttrs((1,), (0,)), (5, 0), (0, 3), (5, 3)),
    ],
    ids=["nn", "tt", "heads", "copied", "empty sum"],
)
def test_dots(
    library: str,
    dtype: DType,
    precision: str,
    tolerance: float,
    attrs: DotAttrs,
    lhs: Any,
    rhs: Any,
    shape: Any,
) -> None:
    attrs = dataclasses.replace(attrs, precision=(precision, precision))
    rng = np.random.default_rng(1)
    a, b = ((4 * rng.standard_normal(s)).astype(dtype.numpy) for s in (lhs, rhs))
    types = ArrayType(dtype, lhs), ArrayType(dtype, rhs), ArrayType(dtype, shape)
    (product,) = run(programs.dot_program(*types, attrs), a, b)
    wide = np.complex128 if dtype.is_complex else np.float64
    (want,) = eval_node(
        Node("dot", "dot", ArrayType(DType.of(wide), shape), ("lhs", "rhs"), attrs),
        [a.astype(wide), b.astype(wide)],
    )
    scale = np.abs(want).max() + 1
    np.testing.assert_allclose(product.astype(wide) / scale, want / scale, rtol=0, atol=tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        (DType.S8, DType.S32),
        (DType.F8E4M3FN, DType.F32),
        (DType.F8E4M3FN, DType.BF16),
        (DType.F8E5M2, DType.F32),
    ],
    ids=str,
)
@pytest.mark.parametrize("sizes", [(64, 48, 32), (5, 7, 3)], ids=["whole", "odd"])
def test_dots_of_8_bits(
    library: str, dtype: DType, result: DType, sizes: tuple[int, int, int]
) -> None:
    """By cuBLASLt where it has them, else by XLA."""
    m, k, n = sizes
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-8, 8, shape).astype(dtype.numpy) for shape in ((m, k), (k, n)))
    attrs = DotAttrs((1,), (0,))
    types = ArrayType(dtype, (m, k)), ArrayType(dtype, (k, n)), ArrayType(result, (m, n))
    (product,) = run(programs.dot_program(*types, attrs), a, b)
    want = (a.astype(np.float64) @ b.astype(np.float64)).astype(result.numpy)
    np.testing.assert_array_equal(product.astype(np.float64), want.astype(np.float64))


@pytest.mark.gpu
def test_arrays_of_every_library() -> None:
    import cupy
    import jax

    executor = GpuExecutor(programs.scale_program())
    on_device = executor.run([X])[0]
    for argument in (
        cupy.asarray(X),
        cupy.asfortranarray(cupy.asarray(X)),
        cupy.asarray(np.repeat(X, 2, axis=1))[:, ::2],
        jax.device_put(X),
        np.asfortranarray(X),
        X.astype(">f4"),
    ):
        np.testing.assert_array_equal(executor.run([argument])[0].to_numpy(), X * 3)
    np.testing.assert_array_equal(executor.run([on_device])[0].to_numpy(), X * 3 * 3)
    np.testing.assert_array_equal(cupy.asnumpy(on_device.to_cupy()), X * 3)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "dtype", [DType.F32, DType.BF16, DType.F16, DType.F8E4M3FN, DType.PRED, DType.S32], ids=str
)
def test_results_become_jax_arrays(dtype: DType) -> None:
    import jax

    type_ = ArrayType(dtype, (4, 3))
    view = programs.view("x", 4, 3, dtype=dtype)
    program = Program(
        "same",
        programs.buffers((view, programs.Space.PARAMETER, 0)),
        (view,),
        (),
        (),
        (view,),
        0,
    )
    x = (np.arange(12).reshape(4, 3) % 3).astype(dtype.numpy)
    (result,) = GpuExecutor(program).run([jax.device_put(x)])
    assert result.type == type_
    back = result.to_jax()
    assert isinstance(back, jax.Array) and back.dtype == dtype.numpy
    np.testing.assert_array_equal(np.asarray(back).view(np.uint8), x.view(np.uint8))


@pytest.mark.gpu
def test_streams_share_the_arena_in_turn() -> None:
    import cupy

    executor = GpuExecutor(programs.centre_program())
    results = []
    for i in range(20):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            x = cupy.arange(200, dtype=cupy.float32) * i
            results.append((executor.run([x])[0], stream))
    for i, (result, stream) in enumerate(results):
        with stream:
            want = (np.arange(200) - 99.5) * i
            np.testing.assert_allclose(result.to_numpy(), want, rtol=1e-4, atol=1e-3)


@pytest.mark.gpu
def test_out_of_memory_on_a_gpu_is_named_and_the_next_call_works() -> None:
    import cupy

    arguments, want = product_arguments()
    on_device = [cupy.asarray(a) for a in arguments]
    executor = GpuExecutor(product_program())
    pool = cupy.get_default_memory_pool()
    give_back_all()  # what programs of other tests keep for results
    (first,) = executor.run(on_device)  # kept: its memory would be the next result's
    np.testing.assert_allclose(first.to_numpy(), want, rtol=1e-2)
    gc.collect()  # CuPy does so before it gives up: what tests before left must not be its room
    pool.free_all_blocks()
    held = [cupy.empty(512, cupy.uint8) for _ in range(pool.free_bytes() // 512)]  # of split ones
    try:
        pool.set_limit(size=pool.total_bytes())
        with pytest.raises(
            OutOfMemory, match=r"program main: no room for .*, \d+ bytes: Out of memory"
        ):
            executor.run(on_device)
    finally:
        pool.set_limit(size=0)
    del held
    for _ in range(3):
        np.testing.assert_allclose(executor.run(on_device)[0].to_numpy(), want, rtol=1e-2)


def with_launch(program: Program, **changes: Any) -> Program:
    (step,) = program.steps
    assert isinstance(step, KernelStep)
    step = dataclasses.replace(step, kernel=dataclasses.replace(step.kernel, **changes))
    return dataclasses.replace(program, steps=(step,))


@pytest.mark.gpu
def test_blocks_that_cannot_be_resident_are_not_launched() -> None:
    with pytest.raises(
        LaunchRefused, match=r"centre has a global barrier and 1000000 blocks, but only"
    ):
        GpuExecutor(with_launch(programs.centre_program(), grid=1_000_000))
    with pytest.raises(
        LaunchRefused, match=r"1000000 bytes of shared memory a block, this device has"
    ):
        GpuExecutor(with_launch(programs.scale_program(), shared_bytes=1_000_000))


@pytest.mark.gpu
def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ArgumentMismatch, match=r"argument 2 \(%c\): f32\[20\] was compiled for"):
        GpuExecutor(programs.table_program()).run([X[0], X[0], X[0, :5]])
