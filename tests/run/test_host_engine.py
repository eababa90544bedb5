"""The engine without a GPU, on programs written by hand."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
import stepped_programs as programs

from astitch.errors import ArgumentMismatch, KernelFault
from astitch.graph.ir import ArrayType, DotAttrs, DType
from astitch.program.steps import ALIGNMENT_BYTES, KernelStep, Program
from astitch.run.host_engine import HostEngine, allocate_aligned

X = np.random.default_rng(0).standard_normal((10, 20), np.float32)


@pytest.fixture(params=[False, True], ids=["fast", "checked"])
def check(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_a_kernel_and_outputs_that_are_no_buffer_of_their_own(check: bool) -> None:
    scaled, same, factor, other_shape = HostEngine(programs.scale_program(), check=check).run([X])
    np.testing.assert_array_equal(scaled, X * 3)
    np.testing.assert_array_equal(same, X.reshape(200))
    np.testing.assert_array_equal(factor, np.float32(3))
    np.testing.assert_array_equal(other_shape, (X * 3).reshape(20, 10))
    arrays = [X, scaled, same, factor, other_shape]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])
    assert all(a.flags.writeable for a in arrays)


def test_a_global_barrier_from_call_to_call(check: bool) -> None:
    engine = HostEngine(programs.centre_program(), check=check)
    for scale in (1, -5, 100):  # the generation in the barrier word is carried over
        x = scale * np.arange(200, dtype=np.float32)
        np.testing.assert_allclose(engine.run([x])[0], x - x.mean(), rtol=1e-5, atol=1e-3)


def test_a_table_of_pointers(check: bool) -> None:
    a, b, c = X[:3]
    (y,) = HostEngine(programs.table_program(), check=check).run([a, b, c])
    np.testing.assert_array_equal(y, a + b + c)


def test_library_and_reference_steps(check: bool) -> None:
    (joined,) = HostEngine(programs.chain_program(), check=check).run([X])
    np.testing.assert_allclose(joined, np.concatenate([X @ X.T] * 2), rtol=1e-5, atol=1e-5)


def test_empty_arrays() -> None:
    (y,) = HostEngine(programs.empty_program()).run([np.zeros((0, 5), np.float32)])
    assert y.shape == (0, 5)


def test_narrow_floats_go_through_a_dot() -> None:
    bf16 = ArrayType(DType.BF16, (4, 4))
    program = programs.dot_program(bf16, bf16, bf16, DotAttrs((1,), (0,)))
    eye = np.eye(4, dtype=ml_dtypes.bfloat16)
    (product,) = HostEngine(program).run([eye, eye])
    assert product.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(product.astype(np.float32), np.eye(4))


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(X),
        np.repeat(X, 2, axis=1)[:, ::2],
        X.astype(">f4"),
        np.frombuffer(b"\0" + X.tobytes(), np.uint8)[1:].view(np.float32).reshape(10, 20),
    ],
    ids=["column-major", "strided", "big-endian", "unaligned"],
)
def test_arguments_as_they_come(array: np.ndarray) -> None:
    np.testing.assert_array_equal(HostEngine(programs.scale_program()).run([array])[0], X * 3)


def test_arguments_stay_as_they_are() -> None:
    frozen = X.copy()
    frozen.flags.writeable = False
    HostEngine(programs.scale_program()).run([frozen])
    np.testing.assert_array_equal(frozen, X)
    assert not frozen.flags.writeable


def test_wrong_arguments_are_named() -> None:
    engine = HostEngine(programs.table_program())
    row = X[0]
    with pytest.raises(ArgumentMismatch) as caught:
        engine.run([row, row])
    assert str(caught.value) == (
        "program table takes 3 arguments, 2 were given\n"
        "  pass one array for each parameter, in the order of the parameters"
    )
    with pytest.raises(ArgumentMismatch) as caught:
        engine.run([row, row, row[:5]])
    assert str(caught.value) == (
        "program table, argument 2 (%c): f32[20] was compiled for, f32[5] was given\n"
        "  convert the argument, or compile again for this shape"
    )
    with pytest.raises(
        ArgumentMismatch, match=r"argument 1 \(%b\): f32\[20\] was compiled for, f64"
    ):
        engine.run([row, row.astype(np.float64), row])
    with pytest.raises(ArgumentMismatch, match=r"argument 0: dtype object has no HLO element type"):
        engine.run([np.array([None] * 20), row, row])


def with_kernel_text(program: Program, old: str, new: str) -> Program:
    (step,) = program.steps
    assert isinstance(step, KernelStep) and old in step.kernel.source
    kernel = dataclasses.replace(step.kernel, source=step.kernel.source.replace(old, new))
    return dataclasses.replace(program, steps=(dataclasses.replace(step, kernel=kernel),))


def test_a_fault_says_which_step() -> None:
    program = with_kernel_text(programs.scale_program(), "i < 200", "i < 201")
    with pytest.raises(KernelFault, match="scale") as caught:
        HostEngine(program, check=True).run([X])
    assert caught.value.__notes__ == ["in step 0 of 1 of program scale"]


def test_a_read_of_scratch_nobody_wrote_is_a_fault() -> None:
    program = with_kernel_text(
        programs.centre_program(), "if (threadIdx.x == 0)", "if (threadIdx.x == 99)"
    )
    with pytest.raises(KernelFault, match="partial"):
        HostEngine(program, check=True).run([X.reshape(200)])


def test_threads_take_turns() -> None:
    engine = HostEngine(programs.centre_program())
    arrays = [np.full(200, i, np.float32) + np.arange(200, dtype=np.float32) for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda x: engine.run([x])[0], arrays))
    for result in results:
        np.testing.assert_allclose(result, np.arange(200) - 99.5, atol=1e-3)


@pytest.mark.parametrize("count", [1, 255, 4096])
def test_allocations_are_aligned(count: int) -> None:
    memory = allocate_aligned(count)
    assert memory.shape == (count,)
    assert memory.ctypes.data % ALIGNMENT_BYTES == 0
