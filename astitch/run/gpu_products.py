"""The matrix products of a program on a GPU: through cuBLASLt where its bindings are installed, else through cuBLAS.

Takes LibrarySteps of dots, hands on what launches them.  A product that cuBLASLt can finish is launched in place of the
kernel behind it, where the first call finds that to be faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from astitch.device.launch_time import time_when_ready
from astitch.graph.ir import DotAttrs
from astitch.graph.matmul import (
    CanonicalDot,
    DotOperand,
    ProductTypes,
    canonical_dot,
    choose_product_types,
)
from astitch.library.cublaslt import (
    PLAIN,
    Addresses,
    Finish,
    Matmul,
    NoAlgorithm,
    Product,
    find_bindings,
)
from astitch.program.steps import Epilogue, LibraryStep, Program, View
from astitch.run.device_memory import DeviceMemory
from astitch.run.gpu_call import Call, DirectProduct, Launch, PreparedStep
from astitch.run.program_binding import name_step


@dataclass(frozen=True, slots=True)
class JoinedSteps:
    """A program's steps.  read: the buffers that products read in place of kernels, by the kernel's name."""

    steps: list[PreparedStep]
    read: dict[str, list[str]]


class ProductSteps:
    """Launches the products of a program.  device: CUDA's number of the current device."""

    def __init__(self, memory: DeviceMemory, cupy: Any, device: int) -> None:
        self._memory, self._cupy, self._device = memory, cupy, device
        self._matmuls: dict[tuple[CanonicalDot, ProductTypes, Finish], Matmul] = {}

    def prepare(self, step: LibraryStep, attrs: DotAttrs) -> PreparedStep | None:
        """What launches the product; None where neither library has it."""
        (lhs, rhs), (result,) = step.operands, step.results
        types = choose_product_types(attrs, lhs.type.dtype, rhs.type.dtype, result.type.dtype)
        if types is None:
            return None
        dot = canonical_dot(attrs, lhs.type, rhs.type, contiguous_depth=types.only_lt)
        runtime = self._cupy.cuda.runtime
        if not result.type.size or not dot.k:

            def clear(call: Call) -> None:
                if result.type.size:
                    runtime.memsetAsync(
                        call.addresses[result.buffer], 0, result.type.bytes, call.stream
                    )

            return PreparedStep(clear, can_capture=True)
        other = None if types.only_lt else self._prepare_gemm(dot, types, lhs, rhs, result)
        matmul = self._find_matmul(dot, types)
        if matmul is not None:
            return self._prepare_matmul(matmul, dot, lhs, rhs, result, other)
        return None if other is None else PreparedStep(other)

    def _find_matmul(
        self, dot: CanonicalDot, types: ProductTypes, finish: Finish = PLAIN
    ) -> Matmul | None:
        """cuBLASLt's product, one for equal products; None without the bindings or an algorithm."""
        bindings = find_bindings(self._device)
        if bindings is None:
            return None
        found = self._matmuls.get((dot, types, finish))
        if found is None:
            properties = self._cupy.cuda.runtime.getDeviceProperties(self._device)
            product = Product(dot, types, properties["name"].decode(), finish)
            try:
                found = Matmul(bindings, product, partial(time_when_ready, self._cupy))
            except NoAlgorithm:
                return None
            self._matmuls[dot, types, finish] = found
        return found

    def _prepare_matmul(
        self,
        matmul: Matmul,
        dot: CanonicalDot,
        lhs: View,
        rhs: View,
        result: View,
        other: Launch | None,
    ) -> PreparedStep:
        """other: where none of cuBLASLt's algorithms turns out to run."""

        def multiply(call: Call) -> None:
            a, a_memory = self._transpose(call, lhs, dot.lhs)
            b, b_memory = self._transpose(call, rhs, dot.rhs)
            memory = self._memory.allocate(matmul.workspace_bytes, "a product's workspace")
            addresses = Addresses(a, b, call.addresses[result.buffer], int(memory.ptr))
            try:
                matmul.launch(addresses, call.stream)
            except NoAlgorithm:
                if other is None:
                    raise
                other(call)
            # To the pool, which hands them on in the order of the stream.
            del a_memory, b_memory, memory

        copied = dot.lhs.permutation is not None or dot.rhs.permutation is not None
        names = (lhs.buffer, rhs.buffer, result.buffer)
        direct = None if copied else DirectProduct(matmul, *names)
        return PreparedStep(multiply, can_capture=True, product=direct)

    def join_epilogues(self, program: Program, prepared: Sequence[PreparedStep]) -> JoinedSteps:
        """Launches products that cuBLASLt can finish in place of the kernels behind them."""
        places = {name_step(step): number for number, step in enumerate(program.steps)}
        joined = list(prepared)
        read: dict[str, list[str]] = {}
        for epilogue in program.epilogues:
            first, second = places[epilogue.product], places[epilogue.kernel]
            step = program.steps[first]
            assert isinstance(step, LibraryStep)
            apart = prepared[first].launch, prepared[second].launch
            both = self._prepare_epilogue(step, epilogue, *apart)
            if both is not None:
                joined[first], joined[second] = (PreparedStep(b, can_capture=True) for b in both)
                read[epilogue.kernel] = [view.buffer for view in step.operands]
        return JoinedSteps(joined, read)

    def _prepare_epilogue(
        self, step: LibraryStep, epilogue: Epilogue, product: Launch, kernel: Launch
    ) -> tuple[Launch, Launch] | None:
        """What to do in place of the product and of the kernel; None without cuBLASLt or an algorithm."""
        (lhs, rhs), result, attrs = step.operands, epilogue.result, step.node.attrs
        assert isinstance(attrs, DotAttrs)
        types = choose_product_types(attrs, lhs.type.dtype, rhs.type.dtype, result.type.dtype)
        dot = canonical_dot(attrs, lhs.type, rhs.type)
        residual, bias = epilogue.residual, epilogue.bias
        finish = Finish(residual is not None, bias is not None, epilogue.activation)
        if types is None or not result.type.size or not dot.k:
            return None
        matmul = self._find_matmul(dot, types, finish)
        if matmul is None:
            return None
        # Until the first call has timed both, the product is written first, for the kernel.
        is_joined, is_apart = matmul.is_settled, False

        def multiply(call: Call) -> None:
            if not is_joined:
                product(call)

        def multiply_and_finish(call: Call) -> None:
            nonlocal is_joined, is_apart
            if is_apart:
                kernel(call)
                return
            a, a_memory = self._transpose(call, lhs, dot.lhs)
            b, b_memory = self._transpose(call, rhs, dot.rhs)
            memory = self._memory.allocate(matmul.workspace_bytes, "a product's workspace")
            addresses = Addresses(
                a,
                b,
                call.addresses[result.buffer],
                int(memory.ptr),
                call.addresses[residual.buffer] if residual else 0,
                call.addresses[bias.buffer] if bias else 0,
            )

            def launch_apart(stream: int) -> None:
                there = replace(call, stream=stream)
                product(there)
                kernel(there)

            try:
                matmul.launch(addresses, call.stream, launch_apart)
                is_joined = True
            except NoAlgorithm:
                is_apart = True
                kernel(call)
            # To the pool, which hands them on in the order of the stream.
            del a_memory, b_memory, memory

        return multiply, multiply_and_finish

    def _prepare_gemm(
        self, dot: CanonicalDot, types: ProductTypes, lhs: View, rhs: View, result: View
    ) -> Launch:
        runtime, cublas = self._cupy.cuda.runtime, self._cupy.cuda.cublas
        left, right, product = (
            getattr(runtime, name) for name in (types.lhs, types.rhs, types.result)
        )
        compute, algorithm = getattr(cublas, types.compute), cublas.CUBLAS_GEMM_DEFAULT
        operations = {False: cublas.CUBLAS_OP_N, True: cublas.CUBLAS_OP_T}
        one, zero = np.ones(1, types.scalar), np.zeros(1, types.scalar)

        def multiply(call: Call) -> None:
            a, a_memory = self._transpose(call, lhs, dot.lhs)
            b, b_memory = self._transpose(call, rhs, dot.rhs)
            # cuBLAS is column-major, where our row-major product is its transpose: rhs^T lhs^T.
            cublas.gemmStridedBatchedEx(
                self._cupy.cuda.device.get_cublas_handle(),
                operations[dot.rhs.transposed],
                operations[dot.lhs.transposed],
                dot.n,
                dot.m,
                dot.k,
                one.ctypes.data,
                b,
                right,
                dot.rhs.leading,
                dot.rhs.stride,
                a,
                left,
                dot.lhs.leading,
                dot.lhs.stride,
                zero.ctypes.data,
                call.addresses[result.buffer],
                product,
                dot.n,
                dot.m * dot.n,
                dot.batch,
                compute,
                algorithm,
            )
            del a_memory, b_memory  # to the pool, which hands them on in the order of the stream

        return multiply

    def _transpose(self, call: Call, view: View, operand: DotOperand) -> tuple[int, Any]:
        """The address of an operand in the order it needs, and the memory of the copy if there is one."""
        pointer, type_ = call.addresses[view.buffer], view.type
        if operand.permutation is None:
            return pointer, None
        word = _WORD[type_.dtype.bytes]
        memory = self._cupy.cuda.UnownedMemory(pointer, type_.bytes, self)
        array = self._cupy.ndarray(type_.shape, word, self._cupy.cuda.MemoryPointer(memory, 0))
        array = array.transpose(operand.permutation)
        room = self._memory.allocate(type_.bytes, f"{view.buffer} in the order of the product")
        copy = self._cupy.ndarray(array.shape, word, room)
        copy[...] = array
        return int(copy.data.ptr), copy


_WORD = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
"""A type of so many bytes whose copies keep the bits."""
