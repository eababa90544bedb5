"""Ops that are steps of their own: random numbers, batch norm, linear algebra, Fourier, top-k, custom calls."""

# NumPy's stubs give Any for arithmetic on arrays of an unknown dtype, which is what all of this is.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from astitch.graph.ir import (
    ArrayType,
    BatchNormAttrs,
    CholeskyAttrs,
    CustomCallAttrs,
    DType,
    FftAttrs,
    Node,
    OpaqueAttrs,
    RngAttrs,
    RngBitGeneratorAttrs,
    RngStateAttrs,
    TopKAttrs,
    TriangularSolveAttrs,
    TupleType,
    Type,
)
from astitch.graph.ops.arrays import (
    Array,
    array_types,
    convert,
    reciprocal_root,
    total_order_key,
    widen_more,
)
from astitch.graph.ops.hlo_fields import NUMBERS, TEXT, Attributes, Field, Form, one_of
from astitch.graph.ops.row import Kind, Op
from astitch.graph.ops.rules import (
    PART_TYPES,
    WHOLE_TYPES,
    BrokenRule,
    Part,
    array_of_result,
    arrays_of,
    attrs_of,
    check_distinct,
    elements_of,
    require,
    require_operands,
)
from astitch.graph.random_bits import generate_philox_bits, generate_threefry_bits


def _infer_batch_norm(node: Node, operands: Sequence[Type]) -> Type:
    """training: (x, scale, offset) -> (y, mean, variance).
    inference: (x, scale, offset, mean, variance) -> y.
    grad: (x, scale, mean, variance, dy) -> (dx, dscale, doffset).
    """
    inference, training = node.op == "batch-norm-inference", node.op == "batch-norm-training"
    x, *rest = arrays_of(operands, 3 if training else 5)
    feature_index = attrs_of(node, BatchNormAttrs).feature_index
    check_distinct("feature_index", (feature_index,), x.rank)
    features = x.shape[feature_index]
    vectors = rest if inference or training else rest[:-1]
    for i, vector in enumerate(vectors, 1):
        require_operands(
            vector.shape == (features,), f"operand {i} is {vector}, {features} features"
        )
    if node.op == "batch-norm-grad":
        require_operands(rest[-1].shape == x.shape, f"dy is {rest[-1]}, x is {x}")
    return x if inference else TupleType((x, vectors[0], vectors[0]))


def _infer_cholesky(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = arrays_of(operands, 1)
    attrs_of(node, CholeskyAttrs)
    _check_square(x)
    return x


def _infer_triangular_solve(node: Node, operands: Sequence[Type]) -> Type:
    a, b = arrays_of(operands, 2)
    left = attrs_of(node, TriangularSolveAttrs).left_side
    _check_square(a)
    if (
        b.dtype is not a.dtype
        or b.rank != a.rank
        or b.shape[:-2] != a.shape[:-2]
        or b.shape[-2 if left else -1] != a.shape[-1]
    ):
        raise BrokenRule(f"{a} and {b} are no system with its right-hand sides")
    return b


def _check_square(x: ArrayType) -> None:
    if x.rank < 2 or x.shape[-1] != x.shape[-2] or not (x.dtype.is_float or x.dtype.is_complex):
        raise BrokenRule(f"operand 0 is {x}, not square matrices of floats")


def _infer_fft(node: Node, operands: Sequence[Type]) -> Type:
    """The lengths are those of the last dimensions: of the operand, for IRFFT of the result.

    RFFT keeps n // 2 + 1 of the n elements of the last one, IRFFT takes as many.
    """
    (x,) = arrays_of(operands, 1)
    a = attrs_of(node, FftAttrs)
    rank = len(a.lengths)
    require(
        1 <= rank <= min(3, x.rank) and all(n >= 0 for n in a.lengths),
        f"lengths {a.lengths} over {x}: one for each of the last dimensions, 1 to 3 of them",
    )
    half = (*a.lengths[:-1], a.lengths[-1] // 2 + 1 if a.lengths[-1] else 0)
    taken = half if a.kind == "IRFFT" else a.lengths
    if x.shape[-rank:] != taken:
        raise BrokenRule(
            f"{a.kind} of lengths {a.lengths} takes {taken}, the operand is {x}", Part.ATTRIBUTES
        )
    given = half if a.kind == "RFFT" else a.lengths
    types = {"RFFT": WHOLE_TYPES, "IRFFT": PART_TYPES}.get(a.kind, {c: c for c in PART_TYPES})
    require_operands(x.dtype in types, f"{a.kind} of {x.dtype.value} has no meaning")
    return ArrayType(types[x.dtype], (*x.shape[:-rank], *given))


def _infer_topk(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = arrays_of(operands, 1)
    k = attrs_of(node, TopKAttrs).k
    require_operands(x.rank >= 1 and not x.dtype.is_complex, f"topk of {x} has no meaning")
    require(0 <= k <= x.shape[-1], f"the {k} first of {x.shape[-1]} elements")
    shape = (*x.shape[:-1], k)
    return TupleType((ArrayType(x.dtype, shape), ArrayType(DType.S32, shape)))


def _infer_rng(node: Node, operands: Sequence[Type]) -> Type:
    result = array_of_result(node)
    scalar = ArrayType(result.dtype, ())
    if arrays_of(operands, 2) != [scalar, scalar]:
        raise BrokenRule(f"operands are {operands[0]} and {operands[1]}, not both {scalar}")
    normal = attrs_of(node, RngAttrs).distribution == "RNG_NORMAL"
    require(
        result.dtype.is_float or (result.dtype.is_integer and not normal),
        f"{'normal' if normal else 'uniform'} numbers of {result.dtype.value} have no meaning",
        Part.TYPE,
    )
    return result


_STATES = (
    ArrayType(DType.U64, (2,)),
    ArrayType(DType.U64, (3,)),
    ArrayType(DType.U32, (4,)),
    ArrayType(DType.U32, (6,)),
)


def _infer_random_bits(node: Node, operands: Sequence[Type]) -> Type:
    """(the new state, the bits); Threefry has a state of two 64-bit words, Philox of two or three."""
    (state,) = arrays_of(operands, 1)
    states = [t for t in _STATES if t.bytes == 16 or not _is_threefry(node)]
    if state not in states:
        raise BrokenRule(f"the state is {state}, not one of {', '.join(map(str, states))}")
    elements = elements_of(node.type)
    require(
        len(elements) == 2 and elements[1].dtype.is_integer,
        f"the result is {node.type}, not a state and integers",
        Part.TYPE,
    )
    return TupleType((state, elements[1]))


def _is_threefry(node: Node) -> bool:
    return attrs_of(node, RngBitGeneratorAttrs).algorithm == "RNG_THREE_FRY"


def _infer_random_state(node: Node, operands: Sequence[Type]) -> Type:
    arrays_of(operands, 0)
    attrs_of(node, RngStateAttrs)
    return array_of_result(node)


def _infer_custom_call(node: Node, operands: Sequence[Type]) -> Type:
    """Any operands and results; layouts order the dimensions of each, aliases name a result and an operand."""
    arrays, results = arrays_of(operands), elements_of(node.type)
    a = attrs_of(node, CustomCallAttrs)
    for what, types, layouts in (
        ("operand", arrays, a.operand_layouts),
        ("result", results, a.result_layouts),
    ):
        require(
            not layouts or len(layouts) == len(types),
            f"{len(layouts)} {what} layouts for {len(types)} {what}s",
        )
        for i, (type_, layout) in enumerate(zip(types, layouts, strict=False)):
            require(
                sorted(layout) == list(range(type_.rank)),
                f"the layout {layout} of {what} {i} does not order {type_.rank} dimensions",
            )
    for result, operand in a.aliases:
        require(
            result in range(len(results)) and operand in range(len(arrays)),
            f"result {result} shares memory with operand {operand}: one does not exist",
        )
    return node.type


_TRANSFORMS: dict[str, Callable[..., Array]] = {
    "FFT": np.fft.fftn,
    "IFFT": np.fft.ifftn,
    "RFFT": np.fft.rfftn,
    "IRFFT": np.fft.irfftn,
}


def meaning_of_fft(node: Node, x: Array) -> Array:
    a = attrs_of(node, FftAttrs)
    axes = tuple(range(x.ndim - len(a.lengths), x.ndim))
    wide = widen_more(x)
    if 0 in node.shape or 0 in x.shape:
        return np.zeros(node.shape, node.dtype.numpy)
    return _TRANSFORMS[a.kind](wide, a.lengths, axes).astype(node.dtype.numpy)


def _adjoint(x: Array) -> Array:
    return np.conj(np.swapaxes(x, -1, -2))


def meaning_of_cholesky(node: Node, x: Array) -> Array:
    """Reads one triangle; a matrix that is not positive definite gives NaN."""
    lower = attrs_of(node, CholeskyAttrs).lower
    wide = widen_more(x)
    matrices = (np.tril(wide) if lower else _adjoint(np.triu(wide))).reshape(-1, *x.shape[-2:])
    factors = np.full(matrices.shape, np.nan, matrices.dtype)
    for i, matrix in enumerate(matrices):
        try:
            factors[i] = np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            continue
    factors = factors.reshape(x.shape)
    return (factors if lower else _adjoint(factors)).astype(x.dtype)


def meaning_of_triangular_solve(node: Node, a: Array, b: Array) -> Array:
    """Substitution, so that a singular matrix gives infinities and not an error."""
    attrs = attrs_of(node, TriangularSolveAttrs)
    lower = attrs.lower
    matrix, right = widen_more(a), widen_more(b).copy()
    matrix = np.tril(matrix) if lower else np.triu(matrix)
    if attrs.transpose_a != "NO_TRANSPOSE":
        matrix = (
            np.swapaxes(matrix, -1, -2) if attrs.transpose_a == "TRANSPOSE" else _adjoint(matrix)
        )
        lower = not lower
    if not attrs.left_side:  # x a = b is a' x' = b'
        matrix, right, lower = np.swapaxes(matrix, -1, -2), np.swapaxes(right, -1, -2), not lower
    n = matrix.shape[-1]
    solution = np.zeros_like(right)
    for row in range(n) if lower else reversed(range(n)):
        value = right[..., row, :] - np.matmul(matrix[..., row : row + 1, :], solution)[..., 0, :]
        if not attrs.unit_diagonal:
            value = value / matrix[..., row, row, np.newaxis]
        solution[..., row, :] = value
    return (solution if attrs.left_side else np.swapaxes(solution, -1, -2)).astype(b.dtype)


def meanings_of_topk(node: Node, x: Array) -> tuple[Array, ...]:
    """The largest elements and their indices.  NaN is the largest (total order); the first of equal ones comes
    first."""
    a = attrs_of(node, TopKAttrs)
    key = total_order_key(x)
    if key.dtype == np.bool_:
        key = key.astype(np.uint8)
    order = np.argsort(~key if a.largest else key, axis=-1, kind="stable")[..., : a.k]
    return np.take_along_axis(x, order, -1), order.astype(np.int32)


def meanings_of_rng_bit_generator(node: Node, state: Array) -> tuple[Array, ...]:
    """RNG_DEFAULT is Philox, as XLA's CPU and GPU have it.  The new state comes first."""
    algorithm = attrs_of(node, RngBitGeneratorAttrs).algorithm
    result = array_types(node)[-1]
    wide = np.asarray(state, order="C").view(np.uint64)
    size = result.dtype.bytes
    if algorithm == "RNG_THREE_FRY":
        new, bits = generate_threefry_bits(wide, result.shape, size)
    else:
        # With a state of two words (JAX's rbg keys) XLA takes the key for the high half of the
        # counter too.
        full = wide if wide.size == 3 else np.array([wide[0], wide[1], wide[0]])
        new, bits = generate_philox_bits(full, result.shape, size)
    unsigned = bits.astype(np.dtype(f"u{size}"))
    return new[: wide.size].view(state.dtype), np.asarray(unsigned, order="C").view(
        result.dtype.numpy
    )


def meaning_of_rng(node: Node, first: Array, second: Array) -> Array:
    """Any numbers of the distribution will do; here the same ones for the same name."""
    generator = np.random.default_rng(zlib.crc32(node.name.encode(errors="replace")))
    a, b = convert(first, np.dtype(np.float64)), convert(second, np.dtype(np.float64))
    if attrs_of(node, RngAttrs).distribution == "RNG_NORMAL":
        return (a + b * generator.standard_normal(node.shape)).astype(node.dtype.numpy)
    if not node.dtype.is_float:
        return np.asarray(generator.integers(int(a), max(int(b), int(a) + 1), node.shape)).astype(
            node.dtype.numpy
        )
    return (a + (b - a) * generator.random(node.shape)).astype(node.dtype.numpy)


def _normalise(x: Array, mean: Array, variance: Array, a: BatchNormAttrs) -> tuple[Array, Array]:
    """(x - mean) / sqrt(variance + epsilon) and the reciprocal root, both with x's dimensions."""
    shape = [-1 if d == a.feature_index else 1 for d in range(x.ndim)]
    inverse = reciprocal_root(variance.reshape(shape) + a.epsilon)
    return (x - mean.reshape(shape)) * inverse, inverse


def meanings_of_batch_norm_training(node: Node, *operands: Array) -> tuple[Array, ...]:
    """(normalised, mean, biased variance)."""
    a = attrs_of(node, BatchNormAttrs)
    x, scale, offset = map(widen_more, operands)
    axes = tuple(d for d in range(x.ndim) if d != a.feature_index)
    mean, variance = x.mean(axes), x.var(axes)
    shape = [-1 if d == a.feature_index else 1 for d in range(x.ndim)]
    result = _normalise(x, mean, variance, a)[0] * scale.reshape(shape) + offset.reshape(shape)
    return tuple(
        r.astype(t.dtype.numpy)
        for r, t in zip((result, mean, variance), array_types(node), strict=True)
    )


def meaning_of_batch_norm_inference(node: Node, *operands: Array) -> Array:
    a = attrs_of(node, BatchNormAttrs)
    x, scale, offset, mean, variance = map(widen_more, operands)
    shape = [-1 if d == a.feature_index else 1 for d in range(x.ndim)]
    result = _normalise(x, mean, variance, a)[0] * scale.reshape(shape) + offset.reshape(shape)
    return result.astype(node.dtype.numpy)


def meanings_of_batch_norm_grad(node: Node, *operands: Array) -> tuple[Array, ...]:
    """(gradient of the operand, of scale, of offset)."""
    a = attrs_of(node, BatchNormAttrs)
    x, scale, mean, variance, gradient = map(widen_more, operands)
    shape = [-1 if d == a.feature_index else 1 for d in range(x.ndim)]
    axes = tuple(d for d in range(x.ndim) if d != a.feature_index)
    count = x.size // max(1, x.shape[a.feature_index])
    normalised, inverse = _normalise(x, mean, variance, a)
    scale_gradient, offset_gradient = (gradient * normalised).sum(axes), gradient.sum(axes)
    centred = (
        gradient
        - (offset_gradient.reshape(shape) + normalised * scale_gradient.reshape(shape)) / count
    )
    results = (centred * inverse * scale.reshape(shape), scale_gradient, offset_gradient)
    return tuple(r.astype(t.dtype.numpy) for r, t in zip(results, array_types(node), strict=True))


_TUPLE = 13
"""XLA's number of the element type of a tuple."""


def _shape_leaves(shape: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[Any, tuple[int, ...]]]:
    """The arrays of a shape, each with its index in the tuples."""
    if shape.element_type != _TUPLE:
        yield shape, path
    for number, element in enumerate(shape.tuple_shapes):
        yield from _shape_leaves(element, (*path, number))


def _read_aliases(instruction: Any, name: str) -> tuple[tuple[int, int], ...]:
    numbers = {path: n for n, (_, path) in enumerate(_shape_leaves(instruction.shape))}
    return tuple(
        (numbers[tuple(a.output_shape_index)], a.operand_index)
        for a in instruction.output_operand_aliasing
    )


def _write_aliases(instruction: Any, name: str, aliases: Any) -> None:
    several = instruction.shape.element_type == _TUPLE
    for result, operand in aliases:
        instruction.output_operand_aliasing.add(
            output_shape_index=[result] if several else [], operand_index=operand
        )


def _read_layouts(instruction: Any, shapes: Iterable[Any]) -> tuple[tuple[int, ...], ...]:
    """The layouts that a custom call insists on; none where it insists on none."""
    if not instruction.constrain_layout:
        return ()
    leaves = (leaf for shape in shapes for leaf, _ in _shape_leaves(shape))
    return tuple(tuple(leaf.layout.minor_to_major) for leaf in leaves)


def _read_operand_layouts(instruction: Any, name: str) -> tuple[tuple[int, ...], ...]:
    return _read_layouts(instruction, instruction.operand_shapes_with_layout)


def _read_result_layouts(instruction: Any, name: str) -> tuple[tuple[int, ...], ...]:
    return _read_layouts(instruction, [instruction.shape])


def _leave_to_export(instruction: Any, name: str, layouts: Any) -> None:
    """Layouts are written with the operands' shapes, which the attributes lack: hlo/export.py."""


LATENCY = b"latency_metadata"
"""The frontend attribute that tells XLA's scheduler how many nanoseconds an instruction takes."""

HINT = b"scheduler_hint"
"""The one that tells it when to take a custom call (xla/run_straight.py)."""


def _read_latency(instruction: Any, name: str) -> int:
    texts = [e.value for e in instruction.frontend_attributes.map if e.key == LATENCY]
    return int(texts[0]) if texts and texts[0].isdigit() else 0


def _write_latency(instruction: Any, name: str, latency_ns: int) -> None:
    if latency_ns:
        instruction.frontend_attributes.map.add(key=LATENCY, value=b"%d" % latency_ns)


_BATCH_NORM = Attributes(
    BatchNormAttrs, (Field("feature_index", "feature_index"), Field("epsilon", "epsilon"))
)
_FFT = Attributes(
    FftAttrs,
    (
        Field("lengths", "fft_length", NUMBERS),
        Field("kind", "fft_type", one_of({0: "FFT", 1: "IFFT", 2: "RFFT", 3: "IRFFT"})),
    ),
)
_TRIANGULAR_SOLVE = Attributes(
    TriangularSolveAttrs,
    (
        Field("left_side", "triangular_solve_options.left_side"),
        Field("lower", "triangular_solve_options.lower"),
        Field("unit_diagonal", "triangular_solve_options.unit_diagonal"),
        Field(
            "transpose_a",
            "triangular_solve_options.transpose_a",
            one_of({1: "NO_TRANSPOSE", 2: "TRANSPOSE", 3: "ADJOINT"}),
        ),
    ),
)
_RNG = Attributes(
    RngAttrs, (Field("distribution", "distribution", one_of({1: "RNG_UNIFORM", 2: "RNG_NORMAL"})),)
)
_RANDOM_BITS = Attributes(
    RngBitGeneratorAttrs,
    (
        Field(
            "algorithm",
            "rng_algorithm",
            one_of({0: "RNG_DEFAULT", 1: "RNG_THREE_FRY", 2: "RNG_PHILOX"}),
        ),
    ),
)
_TOPK = Attributes(TopKAttrs, (Field("k", "k"), Field("largest", "largest")))
_CHOLESKY = Attributes(CholeskyAttrs, (Field("lower", "cholesky_options.lower"),))
_RANDOM_STATE = Attributes(RngStateAttrs, (Field("delta", "delta"),))
_CUSTOM_CALL = Attributes(
    CustomCallAttrs,
    (
        Field("target", "custom_call_target", TEXT),
        Field("backend_config", "backend_config"),
        Field("api_version", "custom_call_api_version"),
        Field("has_side_effect", "custom_call_has_side_effect"),
        Field("aliases", "output_operand_aliasing", Form(_read_aliases, _write_aliases)),
        Field(
            "operand_layouts",
            "operand_shapes_with_layout",
            Form(_read_operand_layouts, _leave_to_export),
        ),
        Field("result_layouts", "shape", Form(_read_result_layouts, _leave_to_export)),
        Field("schedule", "custom_call_schedule"),
        Field("latency_ns", "frontend_attributes", Form(_read_latency, _write_latency)),
    ),
    place="output_operand_aliasing",
)

ROWS: dict[str, Op] = {
    "topk": Op(Kind.OTHER, meaning=meanings_of_topk, rule=_infer_topk, attributes=_TOPK),
    "rng": Op(Kind.OTHER, meaning=meaning_of_rng, rule=_infer_rng, attributes=_RNG, is_pure=False),
    "rng-bit-generator": Op(
        Kind.OTHER,
        meaning=meanings_of_rng_bit_generator,
        rule=_infer_random_bits,
        attributes=_RANDOM_BITS,
    ),
    "rng-get-and-update-state": Op(
        Kind.OTHER, rule=_infer_random_state, attributes=_RANDOM_STATE, is_pure=False
    ),
    "batch-norm-training": Op(
        Kind.OTHER,
        meaning=meanings_of_batch_norm_training,
        rule=_infer_batch_norm,
        attributes=_BATCH_NORM,
    ),
    "batch-norm-inference": Op(
        Kind.OTHER,
        meaning=meaning_of_batch_norm_inference,
        rule=_infer_batch_norm,
        attributes=_BATCH_NORM,
    ),
    "batch-norm-grad": Op(
        Kind.OTHER,
        meaning=meanings_of_batch_norm_grad,
        rule=_infer_batch_norm,
        attributes=_BATCH_NORM,
    ),
    "fft": Op(Kind.OTHER, meaning=meaning_of_fft, rule=_infer_fft, attributes=_FFT),
    "triangular-solve": Op(
        Kind.OTHER,
        meaning=meaning_of_triangular_solve,
        rule=_infer_triangular_solve,
        attributes=_TRIANGULAR_SOLVE,
    ),
    "cholesky": Op(
        Kind.OTHER, meaning=meaning_of_cholesky, rule=_infer_cholesky, attributes=_CHOLESKY
    ),
    "custom-call": Op(
        Kind.OTHER,
        rule=_infer_custom_call,
        regions=None,
        attributes=_CUSTOM_CALL,
        is_pure=False,
    ),
    # An instruction that only XLA reads, see OpaqueAttrs.
    "opaque": Op(Kind.OTHER, attributes=Attributes(OpaqueAttrs)),
}
