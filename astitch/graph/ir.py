"""The Graph: what to compute.  Frozen values, validated where they are made.

    Graph  = (name, nodes in topological order, parameters, outputs)
    Node   = (name, op, type, operands, attributes, regions, op_name)
    Type   = ArrayType(dtype, shape) | TupleType(arrays)

Tuples are flat and exist only as the result of a node with several results (variadic reduce, while,
sort ...); `get-tuple-element` projects one.  A region (the body of a reduce, while, scatter ...) is a
Graph too: its parameters and outputs are flat lists of arrays.  Layouts do not exist here: a value is a
function of its logical index, and buffers at the edge of a program are row-major.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TypeAlias

import ml_dtypes
import numpy as np

from astitch.errors import IllegalProduct, UnsupportedType
from astitch.system.forks import cached_property


class DType(enum.Enum):
    """Element types, named as HLO text names them."""

    PRED = "pred"
    S8 = "s8"
    S16 = "s16"
    S32 = "s32"
    S64 = "s64"
    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"
    F8E4M3FN = "f8e4m3fn"
    F8E5M2 = "f8e5m2"
    C64 = "c64"
    C128 = "c128"
    # Opaque: XLA alone computes with them.
    S2 = "s2"
    S4 = "s4"
    U2 = "u2"
    U4 = "u4"
    F4E2M1FN = "f4e2m1fn"
    F8E3M4 = "f8e3m4"
    F8E4M3 = "f8e4m3"
    F8E4M3B11FNUZ = "f8e4m3b11fnuz"
    F8E4M3FNUZ = "f8e4m3fnuz"
    F8E5M2FNUZ = "f8e5m2fnuz"
    F8E8M0FNU = "f8e8m0fnu"
    TOKEN = "token"  # an order of effects, without a value

    # Types are parts of many keys, and an Enum's own hash is that of its name, in Python.
    __hash__ = object.__hash__

    @property
    def numpy(self) -> np.dtype:
        """The NumPy dtype (from ml_dtypes where NumPy has none)."""
        return _NUMPY[self]

    @property
    def bytes(self) -> int:
        """Size of one element in memory, in bytes; 1 for types of fewer bits, which NumPy does not pack."""
        return self.numpy.itemsize

    @property
    def bits(self) -> int:
        """Size of one element in memory of XLA's, which packs types of four and two bits."""
        return _PACKED_BITS.get(self, 8 * self.bytes)

    @property
    def is_opaque(self) -> bool:
        """A type that only XLA computes with: no kernel, no rule and no meaning in NumPy knows it."""
        return self in _OPAQUE

    @property
    def is_float(self) -> bool:
        return self in _FLOATS

    @property
    def is_narrow_float(self) -> bool:
        """A float of less than 32 bits: registers hold it as f32, rounded after every op."""
        return self.is_float and self.bytes < 4

    @property
    def is_complex(self) -> bool:
        return self in (DType.C64, DType.C128)

    @property
    def is_signed(self) -> bool:
        return self in (DType.S8, DType.S16, DType.S32, DType.S64)

    @property
    def is_unsigned(self) -> bool:
        return self in (DType.U8, DType.U16, DType.U32, DType.U64)

    @property
    def is_integer(self) -> bool:
        return self.is_signed or self.is_unsigned

    @staticmethod
    def of(dtype: np.dtype | type) -> DType:
        """The DType of a NumPy dtype.  Raises UnsupportedType."""
        try:
            return _OF_NUMPY[np.dtype(dtype)]
        except KeyError:
            raise UnsupportedType(
                f"dtype {np.dtype(dtype)} has no HLO element type in astitch"
            ) from None


_NUMPY: dict[DType, np.dtype] = {
    DType.PRED: np.dtype(np.bool_),
    DType.S8: np.dtype(np.int8),
    DType.S16: np.dtype(np.int16),
    DType.S32: np.dtype(np.int32),
    DType.S64: np.dtype(np.int64),
    DType.U8: np.dtype(np.uint8),
    DType.U16: np.dtype(np.uint16),
    DType.U32: np.dtype(np.uint32),
    DType.U64: np.dtype(np.uint64),
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
    DType.F32: np.dtype(np.float32),
    DType.F64: np.dtype(np.float64),
    DType.F8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    DType.F8E5M2: np.dtype(ml_dtypes.float8_e5m2),
    DType.C64: np.dtype(np.complex64),
    DType.C128: np.dtype(np.complex128),
    DType.S2: np.dtype(ml_dtypes.int2),
    DType.S4: np.dtype(ml_dtypes.int4),
    DType.U2: np.dtype(ml_dtypes.uint2),
    DType.U4: np.dtype(ml_dtypes.uint4),
    DType.F4E2M1FN: np.dtype(ml_dtypes.float4_e2m1fn),
    DType.F8E3M4: np.dtype(ml_dtypes.float8_e3m4),
    DType.F8E4M3: np.dtype(ml_dtypes.float8_e4m3),
    DType.F8E4M3B11FNUZ: np.dtype(ml_dtypes.float8_e4m3b11fnuz),
    DType.F8E4M3FNUZ: np.dtype(ml_dtypes.float8_e4m3fnuz),
    DType.F8E5M2FNUZ: np.dtype(ml_dtypes.float8_e5m2fnuz),
    DType.F8E8M0FNU: np.dtype(ml_dtypes.float8_e8m0fnu),
    DType.TOKEN: np.dtype("V1"),
}
_PACKED_BITS = {DType.S4: 4, DType.U4: 4, DType.F4E2M1FN: 4, DType.S2: 2, DType.U2: 2}
_OF_NUMPY = {v: k for k, v in _NUMPY.items()}
_FLOATS = frozenset({DType.F16, DType.BF16, DType.F32, DType.F64, DType.F8E4M3FN, DType.F8E5M2})
_OPAQUE = frozenset(
    {
        DType.S2,
        DType.S4,
        DType.U2,
        DType.U4,
        DType.F4E2M1FN,
        DType.F8E3M4,
        DType.F8E4M3,
        DType.F8E4M3B11FNUZ,
        DType.F8E4M3FNUZ,
        DType.F8E5M2FNUZ,
        DType.F8E8M0FNU,
        DType.TOKEN,
    }
)


@dataclass(frozen=True, slots=True)
class ArrayType:
    """An array of `shape` (elements along each dimension, row-major) of `dtype`."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements (1 for a scalar, 0 if a dimension is empty)."""
        return math.prod(self.shape)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * self.dtype.bytes

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class TupleType:
    """The results of a node with several results.  Flat: no tuple inside a tuple."""

    elements: tuple[ArrayType, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.elements))})"


Type = ArrayType | TupleType


@dataclass(frozen=True, slots=True)
class Literal:
    """The value of a constant: row-major bytes, comparable and hashable."""

    dtype: DType
    shape: tuple[int, ...]
    data: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.data) != math.prod(self.shape) * self.dtype.bytes:
            raise IllegalProduct(
                f"literal of {self.dtype.value}{list(self.shape)} has {len(self.data)} bytes"
            )

    @staticmethod
    def of(array: np.ndarray) -> Literal:
        array = np.asarray(array)
        return Literal(DType.of(array.dtype), array.shape, array.tobytes())

    def numpy(self) -> np.ndarray:
        """A read-only array of the literal's shape and dtype."""
        return np.frombuffer(self.data, self.dtype.numpy).reshape(self.shape)


# ---- attributes: one frozen dataclass for each family of ops -------------------------------------------------


@dataclass(frozen=True, slots=True)
class NoAttrs:
    """An op whose operands and type say everything (element-wise ops, reshape, dot-free ops ...)."""


@dataclass(frozen=True, slots=True)
class ParameterAttrs:
    index: int


@dataclass(frozen=True, slots=True)
class ConstantAttrs:
    value: Literal


@dataclass(frozen=True, slots=True)
class IotaAttrs:
    dimension: int


@dataclass(frozen=True, slots=True)
class BroadcastAttrs:
    """dimensions[i] = the result dimension that operand dimension i becomes."""

    dimensions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TransposeAttrs:
    """result dimension i = operand dimension permutation[i]."""

    permutation: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DimensionsAttrs:
    """reduce, reverse, map: the dimensions acted on."""

    dimensions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DimensionAttrs:
    """concatenate: the one dimension acted on."""

    dimension: int


@dataclass(frozen=True, slots=True)
class SliceAttrs:
    starts: tuple[int, ...]
    limits: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PadAttrs:
    """Edge padding may be negative; interior padding goes between elements."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    interior: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CompareAttrs:
    """direction: EQ NE LT LE GT GE.  total_order: -NaN < -inf < ... < -0 < +0 < ... < inf < NaN."""

    direction: str
    total_order: bool = False


@dataclass(frozen=True, slots=True)
class DynamicSliceAttrs:
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GatherAttrs:
    """XLA gather.  Out-of-range start indices are clamped."""

    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    index_vector_dim: int
    slice_sizes: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()
    indices_are_sorted: bool = False


@dataclass(frozen=True, slots=True)
class ScatterAttrs:
    """XLA scatter.  Updates whose window is out of range are dropped."""

    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    index_vector_dim: int
    input_batching_dims: tuple[int, ...] = ()
    scatter_indices_batching_dims: tuple[int, ...] = ()
    indices_are_sorted: bool = False
    unique_indices: bool = False


@dataclass(frozen=True, slots=True)
class DotAttrs:
    """dot_general.  Result dimensions: batch, left free, right free.

    precision: DEFAULT, HIGH or HIGHEST for each operand.  algorithm: XLA's number of a chosen algorithm, 0 for none.
    """

    lhs_contracting: tuple[int, ...]
    rhs_contracting: tuple[int, ...]
    lhs_batch: tuple[int, ...] = ()
    rhs_batch: tuple[int, ...] = ()
    precision: tuple[str, ...] = ("DEFAULT", "DEFAULT")
    algorithm: int = 0


@dataclass(frozen=True, slots=True)
class WindowDimension:
    size: int
    stride: int = 1
    padding_low: int = 0
    padding_high: int = 0
    window_dilation: int = 1
    base_dilation: int = 1
    reversed: bool = False


@dataclass(frozen=True, slots=True)
class WindowAttrs:
    """reduce-window, select-and-scatter."""

    window: tuple[WindowDimension, ...]


@dataclass(frozen=True, slots=True)
class ConvolutionAttrs:
    """XLA convolution: dimension numbers, window over the spatial dimensions, groups."""

    window: tuple[WindowDimension, ...]
    input_batch: int
    input_feature: int
    input_spatial: tuple[int, ...]
    kernel_input_feature: int
    kernel_output_feature: int
    kernel_spatial: tuple[int, ...]
    output_batch: int
    output_feature: int
    output_spatial: tuple[int, ...]
    feature_group_count: int = 1
    batch_group_count: int = 1
    precision: tuple[str, ...] = ("DEFAULT", "DEFAULT")


@dataclass(frozen=True, slots=True)
class GetTupleElementAttrs:
    index: int


@dataclass(frozen=True, slots=True)
class SortAttrs:
    dimension: int
    is_stable: bool


@dataclass(frozen=True, slots=True)
class TopKAttrs:
    """topk: the k largest (or smallest) along the last dimension, sorted, and their indices (s32)."""

    k: int
    largest: bool


@dataclass(frozen=True, slots=True)
class RngAttrs:
    """rng: distribution is RNG_UNIFORM or RNG_NORMAL; operands are its two parameters."""

    distribution: str


@dataclass(frozen=True, slots=True)
class RngBitGeneratorAttrs:
    """algorithm: RNG_DEFAULT, RNG_THREE_FRY or RNG_PHILOX."""

    algorithm: str


@dataclass(frozen=True, slots=True)
class ReducePrecisionAttrs:
    exponent_bits: int
    mantissa_bits: int


@dataclass(frozen=True, slots=True)
class BatchNormAttrs:
    epsilon: float
    feature_index: int


@dataclass(frozen=True, slots=True)
class FftAttrs:
    """kind: FFT, IFFT, RFFT, IRFFT."""

    kind: str
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TriangularSolveAttrs:
    left_side: bool
    lower: bool
    unit_diagonal: bool
    transpose_a: str


@dataclass(frozen=True, slots=True)
class CholeskyAttrs:
    lower: bool


@dataclass(frozen=True, slots=True)
class LuAttrs:
    """P a = l u, by a library."""


@dataclass(frozen=True, slots=True)
class PivotsAttrs:
    """Exchanges of rows as one permutation, by a library."""


Factorization: TypeAlias = CholeskyAttrs | TriangularSolveAttrs | LuAttrs | PivotsAttrs
"""What graph/factorizations.py knows of a call."""


@dataclass(frozen=True, slots=True)
class ConditionalAttrs:
    """operand_counts[i] = how many of the operands after the selector belong to branch i."""

    operand_counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RngStateAttrs:
    """rng-get-and-update-state: what is added to the state of the device."""

    delta: int


@dataclass(frozen=True, slots=True)
class CustomCallAttrs:
    """What XLA needs to call `target`.

    aliases: (result, operand) pairs that share memory.  operand_layouts, result_layouts: the dimensions of each from
    minor to major; both empty: as XLA likes them, of tile programs row-major.  api_version, schedule: XLA's numbers.
    latency_ns: how long XLA's scheduler shall think that it takes; 0: XLA's own number.
    """

    target: str
    backend_config: bytes = b""
    api_version: int = 0
    has_side_effect: bool = False
    aliases: tuple[tuple[int, int], ...] = ()
    operand_layouts: tuple[tuple[int, ...], ...] = ()
    result_layouts: tuple[tuple[int, ...], ...] = ()
    schedule: int = 0
    latency_ns: int = 0


Order: TypeAlias = tuple[int, int, int, int]
"""Which dimension of an array is its batch, its heads, its positions, its features."""


@dataclass(frozen=True, slots=True)
class AttentionAttrs:
    """attention, attention-gradient: softmax(scale q k^T) v for each batch and head (graph/ops/attention.py).

    causal: position i of q sees positions j <= i of k.  window: with causal, only j > i - window; 0: all.
    q, k, v: how the dimensions of these operands are ordered.  The result and its gradient are ordered as q is.
    tiles: kernels of our own compute it (tile/attention.py), f32 at this precision: tf32 or tf32x3; "": a library does.
    through_masks: a score that a condition leaves out has a gradient, in rows without any other score.
    cap: scaled scores s are cap * tanh(s / cap); 0: they are s.
    gain: of `drop`: probabilities are multiplied by this times a number or condition.
    arrays: what the last operands are, see graph/ops/attention.py.
    gives: what the gradient gives beside those of q, k and v: "bias" or "scores"; "": nothing.
    low: what a score is that masks leave out, in f32.  low_first: the bias is added to that too.
    share: of few queries (tile/few_queries.py): a block has so many keys, and another kernel joins what blocks give;
        0: of many.
    scales: how the dimensions of k-scale and v-scale are ordered.
    page: positions of a page, which tables find; 0: there are none.
    """

    scale: float
    causal: bool
    window: int
    q: Order
    k: Order
    v: Order
    tiles: str = ""
    through_masks: bool = False
    cap: float = 0.0
    gain: float = 0.0
    arrays: tuple[str, ...] = ()
    low: float = 0.0
    low_first: bool = False
    gives: str = ""
    share: int = 0
    scales: tuple[Order, ...] = ()
    page: int = 0


@dataclass(frozen=True, slots=True)
class NarrowProductAttrs:
    """narrow-product: a product of few rows by a kernel of our own (graph/ops/narrow_product.py).

    weights: their type; of four bits they lie in bytes.  matrices: how many lie side by side along the columns.
    transposed: each has its depth along the unit stride.  share: elements of depth that one part of the sum has.
    offset, scale: are there arrays of them?  scales_transposed: they lie [columns, groups].
    layer: is one of several layers read, whose number is the last operand?
    """

    weights: DType
    share: int
    matrices: int = 1
    transposed: bool = False
    offset: bool = False
    scale: bool = False
    scales_transposed: bool = False
    layer: bool = False


@dataclass(frozen=True, slots=True)
class RowRegionAttrs:
    """row-region: ops on rows of narrow arrays by a kernel of our own (graph/ops/row_region.py).

    rows: of each array of rows.  sums: so many of the last outputs are sums over all rows.  parts: of each sum.
    """

    rows: int
    sums: int = 0
    parts: int = 1


Tree: TypeAlias = "tuple[Tree, ...] | None"
"""How an HLO value is made of arrays: None is one array, a tuple is a tuple."""


IN_HOST = "its value lies in the host's memory"
"""The reason of an OpaqueAttrs that moves a value from or to the host's memory, or reads one there."""


@dataclass(frozen=True, slots=True)
class OpaqueAttrs:
    """An instruction of HLO's that astitch hands on to XLA as it is (hlo/opaque.py).

    opcode: its own.  reason: why no kernel computes it.  instruction: a serialized HloInstructionProto without name and
    operands.  operands: of what arrays each of its operands is made; the node's operands are these arrays.
    computations: serialized HloComputationProtos, which the instruction and the later ones call by their numbers here.
    has_effect: it speaks to the host or to other devices, so that nobody may leave it out, repeat it or merge it.
    communicates: one of the computations exchanges data with other devices.
    waits: so many of the node's last operands are no operands of the instruction, which only runs after them.
    kin: XLA may make one collective of those that have the same text here; "": of this one and another never.
    """

    opcode: str
    reason: str
    instruction: bytes = field(repr=False)
    operands: tuple[Tree, ...] = ()
    computations: tuple[bytes, ...] = field(default=(), repr=False)
    has_effect: bool = False
    communicates: bool = field(default=False, repr=False)
    waits: int = 0
    kin: str = field(default="", repr=False)


Attrs = (
    NoAttrs
    | ParameterAttrs
    | ConstantAttrs
    | IotaAttrs
    | BroadcastAttrs
    | TransposeAttrs
    | DimensionsAttrs
    | DimensionAttrs
    | SliceAttrs
    | PadAttrs
    | CompareAttrs
    | DynamicSliceAttrs
    | GatherAttrs
    | ScatterAttrs
    | DotAttrs
    | WindowAttrs
    | ConvolutionAttrs
    | GetTupleElementAttrs
    | SortAttrs
    | TopKAttrs
    | RngAttrs
    | RngBitGeneratorAttrs
    | RngStateAttrs
    | ReducePrecisionAttrs
    | BatchNormAttrs
    | FftAttrs
    | TriangularSolveAttrs
    | CholeskyAttrs
    | LuAttrs
    | PivotsAttrs
    | ConditionalAttrs
    | CustomCallAttrs
    | AttentionAttrs
    | NarrowProductAttrs
    | RowRegionAttrs
    | OpaqueAttrs
)


@dataclass(frozen=True, slots=True)
class Node:
    """One instruction.

    name: unique in its Graph.  operands: names of earlier nodes.  regions: reduce, scatter, sort, map,
    reduce-window, select-and-scatter: the combiner(s); while: (condition, body); conditional: the branches.
    op_name, source: where the op came from in the user's program (HLO metadata), for messages only.
    """

    name: str
    op: str
    type: Type
    operands: tuple[str, ...] = ()
    attrs: Attrs = NoAttrs()
    regions: tuple[Graph, ...] = ()
    op_name: str = ""
    source: str = ""

    def read(self, operands: tuple[str, ...]) -> Node:
        """The node with these operands: itself where it has them."""
        if operands == self.operands:
            return self
        return Node(
            self.name,
            self.op,
            self.type,
            operands,
            self.attrs,
            self.regions,
            self.op_name,
            self.source,
        )

    @property
    def is_parameter(self) -> bool:
        return self.op == "parameter"

    @property
    def is_constant(self) -> bool:
        return self.op == "constant"

    @property
    def opcode(self) -> str:
        """What HLO calls the op."""
        return self.attrs.opcode if isinstance(self.attrs, OpaqueAttrs) else self.op

    @property
    def array(self) -> ArrayType:
        """The type of a node that has one result.  Raises IllegalProduct for a tuple."""
        if isinstance(self.type, TupleType):
            raise IllegalProduct(
                f"%{self.name} = {self.op} has a tuple type {self.type}, an array was expected"
            )
        return self.type

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> DType:
        return self.array.dtype

    def __str__(self) -> str:
        attrs = "" if isinstance(self.attrs, NoAttrs) else f" {_show_attrs(self.attrs)}"
        regions = "".join(f" region={r.name}" for r in self.regions)
        return f"%{self.name} = {self.type} {self.op}({', '.join('%' + o for o in self.operands)}){attrs}{regions}"


def _show_attrs(attrs: Attrs) -> str:
    if isinstance(attrs, ConstantAttrs):
        value = attrs.value
        return (
            str(value.numpy().tolist()) if len(value.data) <= 64 else f"<{len(value.data)} bytes>"
        )
    told = {
        f.name: getattr(attrs, f.name)
        for f in fields(attrs)
        if f.repr and getattr(attrs, f.name) != f.default
    }
    return f"({', '.join(f'{name}={value!r}' for name, value in told.items())})"


_MOVES = frozenset({"broadcast", "reshape", "transpose", "slice", "reverse"})


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order.  `parameters[i]` is the node of argument i; `outputs` may repeat a node.

    aliases: (output index, parameter index) pairs that the caller donates: the output may reuse the buffer.
    """

    name: str
    nodes: Mapping[str, Node]
    parameters: tuple[str, ...]
    outputs: tuple[str, ...]
    aliases: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", MappingProxyType(dict(self.nodes)))

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def users(self) -> Mapping[str, tuple[str, ...]]:
        """For each node the names of the nodes that read it, each once, in topological order."""
        users: dict[str, dict[str, None]] = {name: {} for name in self.nodes}
        for node in self:
            for operand in node.operands:
                users[operand][node.name] = None
        return MappingProxyType({k: tuple(v) for k, v in users.items()})

    @cached_property
    def order(self) -> Mapping[str, int]:
        """The number of each node in topological order."""
        return MappingProxyType({name: number for number, name in enumerate(self.nodes)})

    @cached_property
    def embedded(self) -> frozenset[str]:
        """Nodes that are a scalar constant or an iota, or one of them moved and repeated."""
        found: set[str] = set()
        for node in self:
            if node.op in _MOVES:
                told = node.operands[0] in found
            else:
                scalar = isinstance(node.attrs, ConstantAttrs) and node.array.rank == 0
                told = scalar or node.op == "iota"
            if told:
                found.add(node.name)
        return frozenset(found)

    @cached_property
    def key(self) -> tuple[object, ...]:
        """What the graph computes, without names: equal keys compute the same function."""
        number = {name: i for i, name in enumerate(self.nodes)}
        rows = tuple(
            (
                n.op,
                n.type,
                tuple(number[o] for o in n.operands),
                n.attrs,
                tuple(r.key for r in n.regions),
            )
            for n in self
        )
        return (
            rows,
            tuple(number[p] for p in self.parameters),
            tuple(number[o] for o in self.outputs),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        head = f"graph {self.name} (parameters: {', '.join('%' + p for p in self.parameters)})"
        body = "".join(f"\n  {node}" for node in self)
        seen: dict[str, Graph] = {}
        for node in self:
            for region in node.regions:
                seen.setdefault(region.name, region)
        regions = "".join(
            "\n" + "\n".join("  | " + line for line in str(r).splitlines()) for r in seen.values()
        )
        return f"{head}{body}\n  return {', '.join('%' + o for o in self.outputs)}{regions}"
