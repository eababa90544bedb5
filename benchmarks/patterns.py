"""What is measured: the memory-bound patterns of models, in plain JAX, at several sizes, in f32 and bf16.

Hands on PATTERNS; `pattern.case(size, dtype)` is a function, its arguments and the least traffic in bytes.  Each
function computes in f64 when its arguments are f64, so that it is its own reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Shape = tuple[int, ...]

F32 = np.dtype(np.float32)
BF16 = np.dtype(jnp.bfloat16)
DTYPES: Mapping[str, np.dtype] = {"f32": F32, "bf16": BF16}

SIZES = ("small", "medium", "full")
"""small: launch-bound or resident in the L2; full: far beyond the L2.  `tiny`, a fourth, is for tests."""

ON_CHIP_BYTES = 118_000_000
"""Registers, shared memory and L2 of an H100 together (132 x (256 + 228)  KiB + 50 MiB).  A program could keep so much
between two readings of a tensor.  Only the rest of it must be read again.
"""


# ---- values ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Argument:
    """An array argument.

    draw: "normal", "positive" (in (0, 1]), "index" (in [0, limit)), "key" (two threefry words) or "step" (3.0).
    must_read_bytes: what any program must read of it; None: all.
    """

    shape: Shape
    dtype: np.dtype
    draw: str = "normal"
    limit: int = 0
    must_read_bytes: int | None = None

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def read_bytes(self) -> int:
        return self.bytes if self.must_read_bytes is None else self.must_read_bytes

    @property
    def spec(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, self.dtype)


@dataclass(frozen=True, slots=True)
class Built:
    """A pattern at one shape and dtype.

    donate: arguments that an update in place may overwrite; result i replaces argument donate[i].
    random: peers draw other random numbers, so that their results are not compared.
    again_bytes: bytes of arguments that must be read twice, because all of them are needed before the first result.
    title: the shape in words, where the numbers alone do not say it.
    """

    fn: Callable[..., Any]
    arguments: tuple[Argument, ...]
    donate: tuple[int, ...] = ()
    again_bytes: int = 0
    random: bool = False
    title: str = ""


@dataclass(frozen=True)
class Case:
    """A pattern at one of its sizes in one dtype."""

    pattern: str
    size: str
    dtype: str
    shape: Shape
    built: Built

    @property
    def key(self) -> str:
        """Names the case in JSON files, as results.Row does: another shape is another case."""
        return f"{self.pattern}|{self.size}|{self.dtype}|{self.title}"

    @property
    def title(self) -> str:
        return self.built.title or "x".join(map(str, self.shape))

    @property
    def fn(self) -> Callable[..., Any]:
        return self.built.fn

    @property
    def arguments(self) -> tuple[Argument, ...]:
        return self.built.arguments

    @cached_property
    def results(self) -> list[jax.ShapeDtypeStruct]:
        """The flat results' shapes and dtypes."""
        return jax.tree.leaves(jax.eval_shape(self.fn, *(a.spec for a in self.arguments)))

    @property
    def traffic_bytes(self) -> int:
        """Least possible traffic: what must be read of the arguments, and the results once."""
        read = sum(argument.read_bytes for argument in self.arguments)
        read += max(0, self.built.again_bytes - ON_CHIP_BYTES)
        return read + sum(math.prod(r.shape) * np.dtype(r.dtype).itemsize for r in self.results)

    def make_arguments(self, seed: int = 0) -> list[jax.Array]:
        """The arguments as JAX arrays on the default device."""
        key = jax.random.key(seed)
        return [_draw(jax.random.fold_in(key, i), a) for i, a in enumerate(self.arguments)]


def _draw(key: jax.Array, argument: Argument) -> jax.Array:
    match argument.draw:
        case "index":
            return jax.random.randint(key, argument.shape, 0, argument.limit, argument.dtype)
        case "key":
            return jax.random.bits(key, argument.shape, argument.dtype)
        case "step":
            return jnp.asarray(3.0, argument.dtype)
        case "positive":
            return jax.random.uniform(key, argument.shape, F32, 0.01, 1.0).astype(argument.dtype)
        case "normal":
            return jax.random.normal(key, argument.shape, F32).astype(argument.dtype)
    raise ValueError(f"no way to draw {argument.draw!r}")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A function and where it is measured.  shapes: by size, what `build` takes."""

    name: str
    build: Callable[[Shape, np.dtype], Built]
    shapes: Mapping[str, Shape]
    about: str

    def case(self, size: str, dtype: str) -> Case:
        """Raises KeyError for a size or dtype that is not measured."""
        shape = self.shapes[size]
        return Case(self.name, size, dtype, shape, self.build(shape, DTYPES[dtype]))


# ---- functions ---------------------------------------------------------------------------------------------------


def widen(x: jax.Array) -> jax.Array:
    """At least f32, in which statistics are taken."""
    return x.astype(jnp.promote_types(x.dtype, F32))


def softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x, -1)


def causal_softmax(x: jax.Array) -> jax.Array:
    row = lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 2)
    column = lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
    return jax.nn.softmax(jnp.where(column <= row, x, -jnp.inf), -1)


def layer_norm(x: jax.Array, gamma: jax.Array, beta: jax.Array) -> jax.Array:
    wide = widen(x)
    centred = wide - wide.mean(-1, keepdims=True)
    var = jnp.square(centred).mean(-1, keepdims=True)
    return (centred * lax.rsqrt(var + 1e-5) * gamma + beta).astype(x.dtype)


def rms_norm(x: jax.Array, gamma: jax.Array) -> jax.Array:
    wide = widen(x)
    return (wide * lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-6) * gamma).astype(
        x.dtype
    )


def layer_norm_backward(
    x: jax.Array, gamma: jax.Array, beta: jax.Array, upstream: jax.Array
) -> Any:
    return jax.vjp(layer_norm, x, gamma, beta)[1](upstream)


def rms_norm_backward(x: jax.Array, gamma: jax.Array, upstream: jax.Array) -> Any:
    return jax.vjp(rms_norm, x, gamma)[1](upstream)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> Any:
    """The mean loss and its gradient for the logits."""

    def loss(z: jax.Array) -> jax.Array:
        wide = widen(z)
        picked = jnp.take_along_axis(wide, labels[:, None], -1)[:, 0]
        return (jax.nn.logsumexp(wide, -1) - picked).mean()

    return jax.value_and_grad(loss)(logits)


def batch_norm_relu(x: jax.Array, gamma: jax.Array, beta: jax.Array) -> Any:
    """Training, NHWC: the result and the statistics."""
    wide = widen(x)
    mean = wide.mean((0, 1, 2))
    var = jnp.square(wide - mean).mean((0, 1, 2))
    y = jax.nn.relu((wide - mean) * lax.rsqrt(var + 1e-5) * gamma + beta)
    return y.astype(x.dtype), mean, var


GROUPS = 32


def group_norm(x: jax.Array, gamma: jax.Array, beta: jax.Array) -> jax.Array:
    """NHWC, GROUPS groups of neighbouring channels."""
    n, h, w, c = x.shape
    wide = widen(x).reshape(n, h, w, GROUPS, c // GROUPS)
    centred = wide - wide.mean((1, 2, 4), keepdims=True)
    var = jnp.square(centred).mean((1, 2, 4), keepdims=True)
    y = (centred * lax.rsqrt(var + 1e-5)).reshape(x.shape) * gamma + beta
    return y.astype(x.dtype)


def instance_norm(x: jax.Array, gamma: jax.Array, beta: jax.Array) -> jax.Array:
    """NHWC: statistics for each image and channel."""
    wide = widen(x)
    centred = wide - wide.mean((1, 2), keepdims=True)
    var = jnp.square(centred).mean((1, 2), keepdims=True)
    return (centred * lax.rsqrt(var + 1e-5) * gamma + beta).astype(x.dtype)


def column_sum(x: jax.Array) -> jax.Array:
    return widen(x).sum(0)


def bias_gelu(x: jax.Array, bias: jax.Array) -> jax.Array:
    return jax.nn.gelu(x + bias)


KEEP = np.float32(0.9)
"""An f32 whatever JAX's default float is: its dtype chooses how the mask is drawn."""


def dropout_add_layer_norm(
    key: jax.Array, x: jax.Array, residual: jax.Array, gamma: jax.Array, beta: jax.Array
) -> jax.Array:
    kept = jax.random.bernoulli(jax.random.wrap_key_data(key), KEEP, x.shape)
    return layer_norm(jnp.where(kept, x / KEEP.item(), 0) + residual, gamma, beta)


def rope(q: jax.Array, k: jax.Array, cos: jax.Array, sin: jax.Array) -> Any:
    """Rotary embedding of queries and keys [batch, position, head, channel]; cos, sin: [position, channel / 2]."""

    def rotate(x: jax.Array) -> jax.Array:
        low, high = jnp.split(widen(x), 2, -1)
        c, s = cos[:, None, :], sin[:, None, :]
        return jnp.concatenate([low * c - high * s, high * c + low * s], -1).astype(x.dtype)

    return rotate(q), rotate(k)


def cumulative_sum(x: jax.Array) -> jax.Array:
    return jnp.cumsum(widen(x), -1).astype(x.dtype)


def embedding_layer_norm(
    table: jax.Array, ids: jax.Array, gamma: jax.Array, beta: jax.Array
) -> jax.Array:
    return layer_norm(jnp.take(table, ids, axis=0), gamma, beta)


F8_MAX = 448.0
"""The largest e4m3 number."""


def quantise_f8(x: jax.Array) -> Any:
    """Per-tensor e4m3: the quantised tensor and its scale."""
    wide = widen(x)
    scale = jnp.maximum(jnp.abs(wide).max(), 1e-12) / F8_MAX
    return jnp.clip(wide / scale, -F8_MAX, F8_MAX).astype(jnp.float8_e4m3fn), scale


def standardise_softmax(x: jax.Array) -> jax.Array:
    """Columns to mean 0 and variance 1, then softmax over rows."""
    wide = widen(x)
    centred = wide - wide.mean(0)
    return jax.nn.softmax(centred * lax.rsqrt(jnp.square(centred).mean(0) + 1e-5), -1).astype(
        x.dtype
    )


def small_norms(*arguments: jax.Array) -> Any:
    """Independent LayerNorms: arguments x, gamma, beta of each."""
    return tuple(layer_norm(*arguments[i : i + 3]) for i in range(0, len(arguments), 3))


def clip_adam(*arguments: jax.Array) -> Any:
    """Global-norm clip, then Adam.  Arguments p..., m..., v..., g..., step; results p..., m..., v..."""
    n = len(arguments) // 4
    p, m, v, g = (arguments[i * n : (i + 1) * n] for i in range(4))
    step = arguments[-1]
    norm = jnp.sqrt(sum(jnp.square(widen(x)).sum() for x in g))
    scale = jnp.minimum(1.0, 1.0 / (norm + 1e-6))
    gs = [widen(x) * scale for x in g]
    mn = [0.9 * mi + 0.1 * gi for mi, gi in zip(m, gs, strict=True)]
    vn = [0.999 * vi + 0.001 * gi * gi for vi, gi in zip(v, gs, strict=True)]
    pn = [
        pi - 1e-3 * (mi / (1 - 0.9**step)) / (jnp.sqrt(vi / (1 - 0.999**step)) + 1e-8)
        for pi, mi, vi in zip(p, mn, vn, strict=True)
    ]
    return (*pn, *mn, *vn)


# ---- functions at a shape ----------------------------------------------------------------------------------------


def over_rows(
    fn: Callable[..., Any], vectors: int = 0, *, twice: bool = False
) -> Callable[[Shape, np.dtype], Built]:
    """fn(x, vectors of the last dimension in f32 ...).  twice: no result is known before all of x is read."""

    def build(shape: Shape, dtype: np.dtype) -> Built:
        x = Argument(shape, dtype)
        again_bytes = x.bytes if twice else 0
        return Built(fn, (x, *[Argument(shape[-1:], F32)] * vectors), again_bytes=again_bytes)

    return build


def build_causal_softmax(shape: Shape, dtype: np.dtype) -> Built:
    *batch, rows, columns = shape
    seen = math.prod(batch) * sum(min(row + 1, columns) for row in range(rows))
    scores = Argument(shape, dtype, must_read_bytes=seen * dtype.itemsize)
    return Built(causal_softmax, (scores,))


def build_layer_norm_backward(shape: Shape, dtype: np.dtype) -> Built:
    x, vector = Argument(shape, dtype), Argument(shape[-1:], F32)
    unused = Argument(shape[-1:], F32, must_read_bytes=0)
    return Built(layer_norm_backward, (x, vector, unused, x))


def build_rms_norm_backward(shape: Shape, dtype: np.dtype) -> Built:
    x = Argument(shape, dtype)
    return Built(rms_norm_backward, (x, Argument(shape[-1:], F32), x))


def build_cross_entropy(shape: Shape, dtype: np.dtype) -> Built:
    labels = Argument(shape[:1], np.dtype(np.int32), "index", limit=shape[1])
    return Built(cross_entropy, (Argument(shape, dtype), labels))


def build_bias_gelu(shape: Shape, dtype: np.dtype) -> Built:
    return Built(bias_gelu, (Argument(shape, dtype), Argument(shape[-1:], dtype)))


def build_dropout_add_layer_norm(shape: Shape, dtype: np.dtype) -> Built:
    key = Argument((2,), np.dtype(np.uint32), "key")
    x, vector = Argument(shape, dtype), Argument(shape[-1:], F32)
    return Built(dropout_add_layer_norm, (key, x, x, vector, vector), random=True)


def build_rope(shape: Shape, dtype: np.dtype) -> Built:
    _, positions, _, channels = shape
    table = Argument((positions, channels // 2), F32)
    return Built(rope, (Argument(shape, dtype), Argument(shape, dtype), table, table))


def build_embedding_layer_norm(shape: Shape, dtype: np.dtype) -> Built:
    """shape: tokens, vocabulary, channels.  Of the table the rows that occur must be read.  For uniform tokens
    vocabulary * (1 - (1 - 1 / vocabulary) ** tokens) rows are expected.
    """
    tokens, vocabulary, channels = shape
    rows = round(vocabulary * (1 - (1 - 1 / vocabulary) ** tokens))
    table = Argument(
        (vocabulary, channels), dtype, must_read_bytes=rows * channels * dtype.itemsize
    )
    ids = Argument((tokens,), np.dtype(np.int32), "index", limit=vocabulary)
    vector = Argument((channels,), F32)
    title = f"{tokens} of {vocabulary}, {channels}"
    return Built(embedding_layer_norm, (table, ids, vector, vector), title=title)


def build_small_norms(shape: Shape, dtype: np.dtype) -> Built:
    """shape: norms, rows, channels."""
    norms, rows, channels = shape
    vector = Argument((channels,), F32)
    one = (Argument((rows, channels), dtype), vector, vector)
    return Built(small_norms, one * norms, title=f"{norms} of {rows}x{channels}")


def list_bert_tensors(layers: int, width: int, vocabulary: int) -> list[Shape]:
    """Shapes of the parameters of a BERT: 16 a layer, and with a vocabulary 16 around the layers."""
    square, vector, inner = (width, width), (width,), 4 * width
    layer: list[Shape] = [square] * 4 + [vector] * 4
    layer += [(width, inner), (inner,), (inner, width), vector] + [vector] * 4
    around: list[Shape] = []
    if vocabulary:
        around = [(vocabulary, width), (512, width), (2, width), vector, vector]  # embeddings
        around += [square, vector, vector, vector, (width, vocabulary), (vocabulary,)]  # words
        around += [square, vector, (width, 2), (2,), vector]  # pooler, next sentence
    return layer * layers + around


def build_clip_adam(shape: Shape, dtype: np.dtype) -> Built:
    """shape: layers, width, vocabulary.  Parameters and moments are f32, gradients of the dtype."""
    shapes = list_bert_tensors(*shape)
    state = [Argument(s, F32) for s in shapes] + [Argument(s, F32) for s in shapes]
    state += [Argument(s, F32, "positive") for s in shapes]
    gradients = [Argument(s, dtype) for s in shapes]
    millions = sum(map(math.prod, shapes)) / 1e6
    return Built(
        clip_adam,
        (*state, *gradients, Argument((), F32, "step")),
        donate=tuple(range(len(state))),
        again_bytes=sum(g.bytes for g in gradients),
        title=f"{len(shapes)} tensors, {millions:.3g} M",
    )


def _shapes(tiny: Shape, small: Shape, medium: Shape, full: Shape) -> Mapping[str, Shape]:
    return {"tiny": tiny, "small": small, "medium": medium, "full": full}


ROWS = _shapes((6, 72), (128, 768), (4096, 2048), (32768, 4096))
IMAGES = _shapes((2, 4, 4, 64), (2, 16, 16, 64), (8, 32, 32, 256), (32, 64, 64, 512))

# fmt: off
PATTERNS: tuple[Pattern, ...] = (
    Pattern("softmax", over_rows(softmax), _shapes((6, 100), (64, 8192), (1024, 8192), (8192, 8192)),
            "softmax over rows of 8192"),
    Pattern("softmax_4096", over_rows(softmax), _shapes((5, 65), (128, 4096), (4096, 4096), (32768, 4096)),
            "softmax over rows of 4096"),
    Pattern("softmax_long", over_rows(softmax), _shapes((2, 5000), (1, 1 << 20), (8, 1 << 20), (64, 1 << 20)),
            "softmax over rows of a million"),
    Pattern("softmax_short", over_rows(softmax), _shapes((70, 32), (1000, 32), (50000, 32), (750000, 32)),
            "softmax over rows of 32 (DIEN)"),
    Pattern("softmax_30000", over_rows(softmax), _shapes((2, 3000), (4, 30000), (16, 30000), (64, 30000)),
            "softmax over a vocabulary (Transformer); the full size fits the L2"),
    Pattern("causal_softmax", build_causal_softmax,
            _shapes((1, 2, 12, 12), (1, 12, 128, 128), (4, 12, 512, 512), (8, 16, 1024, 1024)),
            "softmax of scores under a causal mask; only the lower triangle must be read"),
    Pattern("layer_norm", over_rows(layer_norm, 2), ROWS, "LayerNorm, statistics in f32"),
    Pattern("layer_norm_backward", build_layer_norm_backward, ROWS, "gradients for x, gamma, beta"),
    Pattern("rms_norm", over_rows(rms_norm, 1), ROWS, "RMSNorm, statistics in f32"),
    Pattern("rms_norm_backward", build_rms_norm_backward, ROWS, "gradients for x, gamma"),
    Pattern("cross_entropy", build_cross_entropy,
            _shapes((5, 50), (64, 1000), (1024, 32000), (8192, 50304)), "mean loss and gradient for the logits"),
    Pattern("batch_norm_relu", over_rows(batch_norm_relu, 2, twice=True),
            _shapes((2, 4, 4, 16), (8, 14, 14, 64), (32, 28, 28, 256), (64, 56, 56, 256)),
            "batch-norm in training and ReLU, NHWC"),
    Pattern("group_norm", over_rows(group_norm, 2), IMAGES, "32 groups, NHWC"),
    Pattern("instance_norm", over_rows(instance_norm, 2), IMAGES, "NHWC"),
    Pattern("column_sum", over_rows(column_sum), _shapes((40, 24), (512, 256), (8192, 1024), (65536, 1024)),
            "sum over rows in f32"),
    Pattern("bias_gelu", build_bias_gelu, _shapes((5, 70), (128, 3072), (2048, 8192), (8192, 16384)),
            "bias and GELU (tanh)"),
    Pattern("dropout_add_layer_norm", build_dropout_add_layer_norm,
            _shapes((4, 64), (128, 768), (4096, 1024), (16384, 4096)), "threefry key as an argument"),
    Pattern("rope", build_rope,
            _shapes((1, 3, 2, 8), (1, 128, 8, 64), (2, 1024, 16, 128), (8, 2048, 32, 128)),
            "rotary embedding of queries and keys"),
    Pattern("cumulative_sum", over_rows(cumulative_sum), _shapes((3, 50), (64, 1024), (1024, 4096), (8192, 8192)),
            "prefix sums of rows in f32"),
    Pattern("embedding_layer_norm", build_embedding_layer_norm,
            _shapes((6, 20, 32), (128, 30522, 768), (4096, 30522, 768), (32768, 50304, 1024)),
            "rows of a table by token, then LayerNorm"),
    Pattern("quantise_f8", over_rows(quantise_f8, twice=True),
            _shapes((5, 60), (128, 3072), (4096, 4096), (8192, 16384)),
            "per-tensor e4m3: largest magnitude, scale, convert"),
    Pattern("standardise_softmax", over_rows(standardise_softmax, twice=True),
            _shapes((20, 12), (512, 256), (8192, 1024), (65536, 1024)), "columns standardised, softmax over rows"),
    Pattern("small_norms", build_small_norms,
            _shapes((8, 3, 32), (8, 32, 256), (8, 512, 768), (8, 2048, 1024)), "8 independent LayerNorms"),
    Pattern("clip_adam", build_clip_adam,
            _shapes((1, 8, 0), (6, 64, 0), (4, 768, 0), (11, 768, 46336)),
            "global-norm clip and Adam; f32 state, gradients of the dtype"),
)
# fmt: on


def choose_cases(
    names: tuple[str, ...] = (),
    sizes: tuple[str, ...] = SIZES,
    dtypes: tuple[str, ...] = tuple(DTYPES),
) -> list[Case]:
    """The cases of the patterns whose name contains one of `names` (none: all)."""
    chosen = [p for p in PATTERNS if not names or any(name in p.name for name in names)]
    return [p.case(size, dtype) for p in chosen for size in sizes for dtype in dtypes]
