"""As much of nvmath.bindings.cublasLt as products need, on the host's memory, by the descriptions that it is given."""

from __future__ import annotations

import ctypes
import enum
from typing import Any

import numpy as np


class Attribute(enum.IntEnum):
    TRANSA = 3
    TRANSB = 4
    BATCH_COUNT = 5
    STRIDED_BATCH_OFFSET = 6
    EPILOGUE = 7
    BIAS_POINTER = 8
    MAX_WORKSPACE_BYTES = 101
    REDUCTION_SCHEME_MASK = 103
    MIN_ALIGNMENT_A_BYTES = 105
    MIN_ALIGNMENT_B_BYTES = 106
    MIN_ALIGNMENT_C_BYTES = 107
    MIN_ALIGNMENT_D_BYTES = 108


class Types(enum.IntEnum):
    CUDA_R_32F = 0
    CUDA_R_64F = 1


class Compute(enum.IntEnum):
    COMPUTE_32F = 68
    COMPUTE_64F = 70
    COMPUTE_32F_FAST_TF32 = 77


class Scheme(enum.IntEnum):
    INPLACE = 1
    OUTPUT_TYPE = 4
    MASK = 7


class Epilogue(enum.IntEnum):
    RELU = 2
    BIAS = 4
    RELU_BIAS = 6
    GELU = 32
    GELU_BIAS = 36


class FakeLt:
    """The module.  count: algorithms that it names for each product, 10 and up.  broken: those that fail."""

    class cuBLASLtError(Exception):  # noqa: N801  (the library's name)
        pass

    MatmulDescAttribute = MatrixLayoutAttribute = MatmulPreferenceAttribute = Attribute
    ReductionScheme, Epilogue = Scheme, Epilogue
    matmul_algo_dtype = np.dtype([("data_", "<u8", (8,))])
    matmul_heuristic_result_dtype = np.dtype(
        [
            ("algo", matmul_algo_dtype),
            ("workspace_size", "<u8"),
            ("state", "<i4"),
            ("waves_count", "<f4"),
            ("reserved", "<i4", (4,)),
        ]
    )

    def __init__(self, count: int = 3) -> None:
        self.count = count
        self.objects: dict[int, dict[Any, Any]] = {}
        self.launched: list[int] = []
        self.broken: set[int] = set()
        self.asked: dict[Any, Any] = {}

    def _new(self, **fields: Any) -> int:
        self.objects[len(self.objects) + 1] = fields
        return len(self.objects)

    def create(self) -> int:
        return 1234

    def get_version(self) -> int:
        return 130000

    def matrix_layout_create(self, type_: int, rows: int, columns: int, leading: int) -> int:
        assert leading >= rows, "rows of a column-major matrix overlap"
        return self._new(type=type_, rows=rows, columns=columns, leading=leading)

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        return self._new(compute=compute, scale=scale)

    def matmul_preference_create(self) -> int:
        return self._new()

    def matmul_preference_destroy(self, preference: int) -> None:
        self.asked = self.objects[preference]

    def _dtype(self, attribute: Attribute) -> type[np.generic]:
        wide = (
            Attribute.STRIDED_BATCH_OFFSET,
            Attribute.MAX_WORKSPACE_BYTES,
            Attribute.BIAS_POINTER,
        )
        return np.int64 if attribute in wide else np.int32

    get_matrix_layout_attribute_dtype = get_matmul_desc_attribute_dtype = _dtype
    get_matmul_preference_attribute_dtype = _dtype

    def _set(self, object_: int, attribute: Attribute, address: int, size: int) -> None:
        data = (ctypes.c_uint8 * size).from_address(address)
        self.objects[object_][attribute] = int(np.frombuffer(data, self._dtype(attribute))[0])

    matrix_layout_set_attribute = matmul_desc_set_attribute = _set
    matmul_preference_set_attribute = _set

    def matmul_algo_get_heuristic(self, *given: Any) -> None:
        *_, most, results, count = given
        named = min(self.count, most)
        data = (ctypes.c_uint8 * (96 * most)).from_address(results)
        rows = np.frombuffer(data, self.matmul_heuristic_result_dtype)
        for i in range(named):
            rows["algo"]["data_"][i, 0] = 10 + i
            rows["workspace_size"][i] = 100 * i
        ctypes.c_int32.from_address(count).value = named

    def matmul_algo_check(self, *given: Any) -> None:
        *_, algorithm, result = given
        if ctypes.c_uint64.from_address(algorithm).value in self.broken:
            raise self.cuBLASLtError("NOT_SUPPORTED")
        row = np.frombuffer(
            (ctypes.c_uint8 * 96).from_address(result), self.matmul_heuristic_result_dtype
        )
        row["workspace_size"][0] = 64

    def matmul(self, *given: Any) -> None:
        (_, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout) = given[:12]
        algorithm, _, _, _ = given[12:]
        number = ctypes.c_uint64.from_address(algorithm).value
        if number in self.broken:
            raise self.cuBLASLtError("EXECUTION_FAILED")
        self.launched.append(number)
        description = self.objects[operation]
        real = np.float64 if description["scale"] == Types.CUDA_R_64F else np.float32
        scale = [
            np.frombuffer((ctypes.c_uint8 * 8).from_address(x), real)[0] for x in (alpha, beta)
        ]
        assert scale[0] == 1
        layouts = [self.objects[layout] for layout in (a_layout, b_layout, c_layout, d_layout)]
        epilogue = description.get(Attribute.EPILOGUE, 1)
        for i in range(layouts[3].get(Attribute.BATCH_COUNT, 1)):
            left, right, other, out = (
                read(address, layout, i)
                for address, layout in zip((a, b, c, d), layouts, strict=True)
            )
            left = left.T if description[Attribute.TRANSA] else left
            right = right.T if description[Attribute.TRANSB] else right
            total = left @ right
            if scale[1]:
                total = total + scale[1] * other
            if epilogue & Epilogue.BIAS:
                rows = len(out)
                data = (ctypes.c_uint8 * (out.itemsize * rows)).from_address(
                    description[Attribute.BIAS_POINTER]
                )
                total = total + np.frombuffer(data, out.dtype)[:, None]
            out[...] = finish(epilogue & ~Epilogue.BIAS, total)


def finish(epilogue: int, x: np.ndarray) -> np.ndarray:
    """The function of an epilogue without its bias."""
    if epilogue == Epilogue.RELU:
        return np.maximum(x, 0)
    if epilogue == Epilogue.GELU:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x


def read(address: int, layout: dict[Any, Any], number: int) -> np.ndarray:
    """Matrix `number` of a column-major layout, a view of the memory."""
    dtype = np.dtype(np.float64 if layout["type"] == Types.CUDA_R_64F else np.float32)
    rows, columns, leading = (layout[name] for name in ("rows", "columns", "leading"))
    start = address + dtype.itemsize * number * layout.get(Attribute.STRIDED_BATCH_OFFSET, 0)
    flat = (ctypes.c_uint8 * (dtype.itemsize * ((columns - 1) * leading + rows))).from_address(
        start
    )
    steps = (dtype.itemsize, dtype.itemsize * leading)
    return np.lib.stride_tricks.as_strided(np.frombuffer(flat, dtype), (rows, columns), steps)
