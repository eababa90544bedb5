"""Products through cuBLASLt, which nvmath-python binds, by the algorithm that is the fastest on this GPU.

Takes a Product, hands on a Matmul that launches it.  cuBLASLt's heuristic names candidates; the first call times them
on its own arrays.  The winner is kept on disk, so that later processes neither measure nor get other bits.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from astitch import options
from astitch.graph.matmul import CanonicalDot, DotOperand, ProductTypes
from astitch.library.algorithm_choice import (
    CANDIDATES,
    ENDLESS,
    LIMIT_BYTES,
    SUFFIX,
    ChoiceCache,
    Launch,
    TimeLaunch,
    choose_fastest,
    hash_problem,
    load_bindings,
    time_candidate,
)
from astitch.program.steps import Activation

WORKSPACE_BYTES = 32 << 20
"""The workspace that an algorithm may use; NVIDIA's advice for Hopper."""

ALIGNMENT_BYTES = 16
"""The addresses of all operands are multiples of this."""

FORMAT = "astitch product 3"

SOME_BIAS = 256
"""An address for the heuristic, which wants to see one, aligned as all are; nothing lies there."""


class NoAlgorithm(Exception):
    """cuBLASLt has nothing for a product of these types, sizes and strides, or nothing that is worth it."""


@dataclass(frozen=True, slots=True)
class Finish:
    """What is done to a sum before it is written: activation(sum + residual + bias), in this order.

    residual: an array like the product.  bias: a number for each of its n columns.
    """

    residual: bool = False
    bias: bool = False
    activation: Activation = Activation.NONE


PLAIN = Finish()


@dataclass(frozen=True, slots=True)
class Product:
    """All that decides how fast an algorithm is.  device: name of the GPU."""

    dot: CanonicalDot
    types: ProductTypes
    device: str
    finish: Finish = PLAIN


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the arrays of a product lie; 0 for those that its Finish has not."""

    lhs: int
    rhs: int
    result: int
    workspace: int
    residual: int = 0
    bias: int = 0


@dataclass(frozen=True, slots=True)
class MatmulCall:
    """What cublasLtMatmul gets for a product, but for the arrays and the workspace, so that C++ can call it.

    function: its address.  a, b, result: layouts of the right and the left operand and of the result, which the product
    is written over.  All of it lives as long as the Matmul.
    """

    function: int
    handle: int
    operation: int
    one: int
    a: int
    b: int
    zero: int
    result: int
    algorithm: int
    workspace_bytes: int


class ProductCache(ChoiceCache):
    """Algorithms that won, by product."""

    form = FORMAT
    lost = "the next process measures its products anew"


@functools.cache
def open_cache() -> ProductCache:
    """The cache at its place on disk."""
    return ProductCache(options.cache_dir() / "products", LIMIT_BYTES, SUFFIX)


@functools.cache
def find_bindings(device: int) -> Bindings | None:
    """nvmath-python's cuBLASLt for the current device, which has this number; None where it is not installed, or does
    not work, which a RuntimeWarning tells."""
    return load_bindings(
        _load_bindings, "nvmath", "nvmath-python", "cuBLASLt", instead="cuBLAS multiplies"
    )


def _load_bindings() -> Bindings:
    types = importlib.import_module("nvmath")
    lt = importlib.import_module("nvmath.bindings.cublasLt")
    compute = importlib.import_module("nvmath.bindings.cublas")
    return Bindings(lt, types.CudaDataType, compute.ComputeType)


OLDEST = 110_000
"""The least that cublasLtGetVersion may return: CUDA 11."""


class Bindings:
    """cuBLASLt with a handle of its own.  lt, data_types, compute_types: as nvmath-python has them."""

    def __init__(self, lt: Any, data_types: Any, compute_types: Any) -> None:
        self.lt = lt
        # Asked first.  TensorFlow's wheels for GPUs have functions of these names, which nvmath-python finds before
        # cuBLASLt's; without the libraries they are for they give an error's number, for a text's address, too.
        self.version = int(lt.get_version())
        if self.version < OLDEST:
            raise RuntimeError(
                f"its version is said to be {self.version}: another library, TensorFlow's say, stands before it"
            )
        self.handle = lt.create()
        self._data_types, self._compute_types = data_types, compute_types

    @functools.cached_property
    def matmul_address(self) -> int:
        """The address of the cublasLtMatmul that nvmath-python calls; 0 where its internal table of functions lacks
        it."""
        try:
            internal = importlib.import_module("nvmath.bindings._internal.cublasLt")
            return int(internal._inspect_function_pointer("__cublasLtMatmul"))
        except Exception:  # another version's
            return 0

    def data_type(self, name: str) -> int:
        """cudaDataType by its name, CUDA_R_32F say."""
        return int(self._data_types[name])

    def compute_type(self, name: str) -> int:
        """cublasComputeType_t by its name, CUBLAS_COMPUTE_32F say."""
        return int(self._compute_types[name.removeprefix("CUBLAS_")])

    def make_layout(self, type_: int, rows: int, columns: int, leading: int, batch: Batch) -> int:
        """Matrices of `rows` x `columns`, column-major."""
        layout = int(self.lt.matrix_layout_create(type_, rows, columns, leading))
        if batch.count > 1:
            attribute = self.lt.MatrixLayoutAttribute
            self._set("matrix_layout", layout, attribute.BATCH_COUNT, batch.count)
            self._set("matrix_layout", layout, attribute.STRIDED_BATCH_OFFSET, batch.stride)
        return layout

    def make_operation(
        self, types: ProductTypes, scale: int, a: bool, b: bool, finish: Finish = PLAIN
    ) -> int:
        """The product's description; a, b: is the operand transposed?"""
        lt = self.lt
        operation = int(lt.matmul_desc_create(self.compute_type(types.compute), scale))
        for attribute, transposed in (
            (lt.MatmulDescAttribute.TRANSA, a),
            (lt.MatmulDescAttribute.TRANSB, b),
        ):
            self._set("matmul_desc", operation, attribute, int(transposed))  # CUBLAS_OP_N 0, T 1
        parts = [*_ACTIVATION_NAME[finish.activation], *(["BIAS"] if finish.bias else [])]
        if parts:
            epilogue = int(lt.Epilogue["_".join(parts)])
            self._set("matmul_desc", operation, lt.MatmulDescAttribute.EPILOGUE, epilogue)
        if finish.bias:
            self.set_bias(operation, SOME_BIAS)
        return operation

    def set_bias(self, operation: int, address: int) -> None:
        """Where the bias lies: of the result's type, a number for each row of the column-major result, so each column
        of ours."""
        self._set("matmul_desc", operation, self.lt.MatmulDescAttribute.BIAS_POINTER, address)

    def make_preference(self, finish: Finish = PLAIN) -> int:
        """What algorithms are asked for: such that give the same bits in each run."""
        lt = self.lt
        preference = int(lt.matmul_preference_create())
        attribute, scheme = lt.MatmulPreferenceAttribute, lt.ReductionScheme
        # In place, parts of a split sum are added in the order in which they come.
        ordered = int(scheme.MASK) & ~int(scheme.INPLACE)
        if finish != PLAIN:  # parts are not rounded to the result's type before the rest is done
            ordered &= ~int(scheme.OUTPUT_TYPE)
        self._set("matmul_preference", preference, attribute.REDUCTION_SCHEME_MASK, ordered)
        self._set("matmul_preference", preference, attribute.MAX_WORKSPACE_BYTES, WORKSPACE_BYTES)
        for operand in "ABCD":
            name = getattr(attribute, f"MIN_ALIGNMENT_{operand}_BYTES")
            self._set("matmul_preference", preference, name, ALIGNMENT_BYTES)
        return preference

    def _set(self, what: str, object_: int, attribute: Any, value: int) -> None:
        dtype = getattr(self.lt, f"get_{what}_attribute_dtype")(attribute)
        word = np.array([value], dtype)
        getattr(self.lt, f"{what}_set_attribute")(object_, attribute, word.ctypes.data, word.nbytes)


@dataclass(frozen=True, slots=True)
class Batch:
    """Matrices of one array: how many, and the elements from one to the next."""

    count: int
    stride: int


class Matmul:
    """One product.  Raises NoAlgorithm.

    time_launch: asked in the first call.
    """

    def __init__(
        self,
        bindings: Bindings,
        product: Product,
        time_launch: TimeLaunch,
        cache: ChoiceCache | None = None,
    ) -> None:
        self._bindings, self._time_launch = bindings, time_launch
        self._cache = open_cache() if cache is None else cache
        self._key = key_of_product(product, bindings.version)
        dot, types = product.dot, product.types
        self._finish = product.finish
        self._one = np.ones(1, types.scalar)
        self._beta = np.full(1, product.finish.residual, types.scalar)
        lhs, rhs, result = map(bindings.data_type, (types.lhs, types.rhs, types.result))
        scale = bindings.data_type(_SCALE_TYPE[np.dtype(types.scalar).name])
        # cuBLAS is column-major, where our row-major product is its transpose: rhs^T lhs^T.
        self._operation = bindings.make_operation(
            types, scale, dot.rhs.transposed, dot.lhs.transposed, product.finish
        )
        self._layouts = (
            _operand_layout(bindings, rhs, dot.rhs, dot.n, dot.k, dot.batch),
            _operand_layout(bindings, lhs, dot.lhs, dot.k, dot.m, dot.batch),
            bindings.make_layout(result, dot.n, dot.m, dot.n, Batch(dot.batch, dot.m * dot.n)),
        )
        self._candidates = self._load() or self._ask()
        self._chosen = self._candidates[0] if len(self._candidates) == 1 else None

    @property
    def is_settled(self) -> bool:
        """Is the algorithm chosen?"""
        return self._chosen is not None

    @property
    def workspace_bytes(self) -> int:
        """What a launch needs now; less after the first."""
        if self._chosen is not None:
            return int(self._chosen["workspace_size"][0])
        return max((int(c["workspace_size"][0]) for c in self._candidates), default=0)

    def find_call(self) -> MatmulCall | None:
        """How C++ launches it; None before the algorithm is chosen, or where only Python can."""
        function = self._bindings.matmul_address
        if self._chosen is None or self._finish != PLAIN or not function:
            return None
        return MatmulCall(
            function,
            int(self._bindings.handle),
            self._operation,
            self._one.ctypes.data,
            self._layouts[0],
            self._layouts[1],
            self._beta.ctypes.data,
            self._layouts[2],
            self._chosen["algo"].ctypes.data,
            self.workspace_bytes,
        )

    def launch(self, addresses: Addresses, stream: int, apart: Launch | None = None) -> None:
        """Enqueue the product; the first call chooses the algorithm, and waits.

        apart: enqueues on a stream what gives the same arrays without this product; where that is faster, which is kept
        too, this one has no algorithm.  Raises NoAlgorithm in the first call if no candidate runs, and in all then.
        """
        if self._chosen is None:
            self._chosen = self._choose(addresses, stream, apart)
        self._launch(self._chosen, addresses, stream)

    def _launch(self, candidate: np.ndarray, addresses: Addresses, stream: int) -> None:
        a, b, d = self._layouts
        if self._finish.bias:
            self._bindings.set_bias(self._operation, addresses.bias)
        self._bindings.lt.matmul(
            self._bindings.handle,
            self._operation,
            self._one.ctypes.data,
            addresses.rhs,
            a,
            addresses.lhs,
            b,
            self._beta.ctypes.data,
            addresses.residual or addresses.result,
            d,
            addresses.result,
            d,
            candidate["algo"].ctypes.data,
            addresses.workspace,
            int(candidate["workspace_size"][0]),
            stream,
        )

    def _ask(self) -> list[np.ndarray]:
        """The heuristic's candidates, the best first."""
        lt = self._bindings.lt
        found = np.zeros(CANDIDATES, lt.matmul_heuristic_result_dtype)
        count = np.zeros(1, np.int32)
        preference = self._bindings.make_preference(self._finish)
        a, b, d = self._layouts
        try:
            lt.matmul_algo_get_heuristic(
                self._bindings.handle,
                self._operation,
                a,
                b,
                d,
                d,
                preference,
                CANDIDATES,
                found.ctypes.data,
                count.ctypes.data,
            )
        except lt.cuBLASLtError as error:
            raise NoAlgorithm(str(error)) from None
        finally:
            lt.matmul_preference_destroy(preference)
        usable = [found[i : i + 1].copy() for i in range(int(count[0])) if not found["state"][i]]
        if not usable:
            raise NoAlgorithm("cuBLASLt names none")
        return usable

    def _load(self) -> list[np.ndarray]:
        """The algorithm that won in an earlier process, if cuBLASLt still takes it.  Raises NoAlgorithm if none did."""
        lt = self._bindings.lt
        entry = self._cache.load_choice(self._key)
        if not entry:
            return []
        try:
            if entry["algorithm"] == "":
                raise NoAlgorithm(_SLOWER)
            kept = np.zeros(1, lt.matmul_heuristic_result_dtype)
            algorithm = np.frombuffer(bytes.fromhex(entry["algorithm"]), lt.matmul_algo_dtype)
            kept["algo"] = algorithm
            checked = np.zeros(1, lt.matmul_heuristic_result_dtype)
            a, b, d = self._layouts
            lt.matmul_algo_check(
                self._bindings.handle,
                self._operation,
                a,
                b,
                d,
                d,
                kept["algo"].ctypes.data,
                checked.ctypes.data,
            )
        except (ValueError, TypeError, KeyError, lt.cuBLASLtError):
            return []
        size = int(checked["workspace_size"][0])
        if checked["state"][0] or size > WORKSPACE_BYTES:
            return []
        kept["workspace_size"] = size
        return [kept]

    def _choose(self, addresses: Addresses, stream: int, apart: Launch | None) -> np.ndarray:
        """The algorithm that is kept by now, or the fastest, which is kept then."""
        kept = [c for c in self._load() if c["workspace_size"][0] <= self.workspace_bytes]
        if kept:
            return kept[0]
        launches = [functools.partial(self._launch, c, addresses) for c in self._candidates]
        fastest = choose_fastest(launches, stream, self._time_launch, self._errors)
        if fastest is None:
            self._candidates = []
            raise NoAlgorithm("none of those that cuBLASLt names runs")
        chosen = self._candidates[fastest.number]
        choice: dict[str, Any] = {"algorithm": chosen["algo"].tobytes().hex(), **fastest.measured}
        if apart:
            apart_us = time_candidate(apart, stream, self._time_launch, self._errors)
            if apart_us < ENDLESS:
                choice["apart_us"] = round(apart_us, 2)
            if apart_us < fastest.time_us:
                choice["algorithm"], self._candidates = "", []
        self._cache.store_choice(self._key, choice)
        if not self._candidates:
            raise NoAlgorithm(_SLOWER)
        return chosen

    @property
    def _errors(self) -> tuple[type[Exception], ...]:
        """What a launch that fails raises: cuBLASLt's error, or CuPy's."""
        return self._bindings.lt.cuBLASLtError, RuntimeError


_SLOWER = "the product and the kernel behind it are faster apart"

_ACTIVATION_NAME = {
    Activation.NONE: (),
    Activation.RELU: ("RELU",),
    Activation.GELU: ("GELU",),
}

_SCALE_TYPE = {
    "int32": "CUDA_R_32I",
    "float32": "CUDA_R_32F",
    "float64": "CUDA_R_64F",
    "complex64": "CUDA_C_32F",
    "complex128": "CUDA_C_64F",
}


def _operand_layout(
    bindings: Bindings, type_: int, operand: DotOperand, rows: int, columns: int, batch: int
) -> int:
    """The layout of the column-major operand [rows, columns], as it is stored."""
    stored = (columns, rows) if operand.transposed else (rows, columns)
    return bindings.make_layout(type_, *stored, operand.leading, Batch(batch, operand.stride))


def key_of_product(product: Product, version: int) -> str:
    """Hash of the product and of cuBLASLt's version, whose algorithms have numbers of its own."""
    fields = {
        "dot": dataclasses.asdict(product.dot),
        "types": {**dataclasses.asdict(product.types), "scalar": product.types.scalar.__name__},
        "finish": [product.finish.residual, product.finish.bias, product.finish.activation.value],
        "device": product.device,
        "version": version,
        "format": FORMAT,
    }
    return hash_problem(fields)
