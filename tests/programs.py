"""The corpus: small programs in plain JAX, each a pattern that a compiler meets in models.

Hands on `PROGRAMS` (name -> Program) and `load(name)`, a program's HLO as stored in
tests/data/corpus.  HLO differs between JAX versions, so tests run on the stored modules;
`python -m tests.programs --write` lowers them again.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.lib import xla_client

from astitch import demo

CORPUS = Path(__file__).parent / "data" / "corpus"

F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
BF16 = np.dtype(jnp.bfloat16)
E4M3, E5M2 = np.dtype(jnp.float8_e4m3fn), np.dtype(jnp.float8_e5m2)
S8, S16, S32, S64 = (np.dtype(f"int{bits}") for bits in (8, 16, 32, 64))
U8, U16, U32, U64 = (np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64))
PRED = np.dtype(np.bool_)

Draw = Callable[[np.random.Generator, "tuple[int, ...]"], np.ndarray]


# ---- arguments -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arg:
    """One array argument, and how a test draws its values (the draw is cast to `dtype`)."""

    shape: tuple[int, ...]
    dtype: np.dtype
    draw: Draw

    @property
    def spec(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, self.dtype)


def normal(*shape: int, dtype: np.dtype = F32, scale: float = 1.0, shift: float = 0.0) -> Arg:
    return Arg(shape, dtype, lambda rng, s: rng.standard_normal(s) * scale + shift)


def uniform(*shape: int, low: float, high: float, dtype: np.dtype = F32) -> Arg:
    return Arg(shape, dtype, lambda rng, s: rng.uniform(low, high, s))


def integers(*shape: int, low: int, high: int, dtype: np.dtype = S32) -> Arg:
    """Integers in [low, high)."""
    return Arg(shape, dtype, lambda rng, s: rng.integers(low, high, s))


def booleans(*shape: int) -> Arg:
    return Arg(shape, PRED, lambda rng, s: rng.random(s) < 0.5)


def key() -> Arg:
    """The two words of a threefry key."""
    return Arg((2,), U32, lambda rng, s: rng.integers(0, 1 << 32, s, dtype=np.uint32))


def attention_mask(*shape: int) -> Arg:
    """An additive mask: 0 to keep a position, -1e9 to hide it; the first position is kept."""

    def draw(rng: np.random.Generator, s: tuple[int, ...]) -> np.ndarray:
        mask = np.where(rng.random(s) < 0.3, -1e9, 0.0)
        mask[..., 0] = 0.0
        return mask

    return Arg(shape, F32, draw)


def edge_floats(*shape: int, dtype: np.dtype = F32) -> Arg:
    """Floats of which a third are NaN, infinities, signed zeros, halves and very large values."""

    def draw(rng: np.random.Generator, s: tuple[int, ...]) -> np.ndarray:
        edges = [
            np.nan,
            np.inf,
            -np.inf,
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.5,
            2.5,
            -3.5,
            300.7,
            -300.7,
            60000.0,
        ]
        return np.where(rng.random(s) < 0.33, rng.choice(edges, s), rng.standard_normal(s) * 3)

    return Arg(shape, dtype, draw)


def edge_integers(*shape: int, dtype: np.dtype) -> Arg:
    """Integers of the whole range; half are the smallest, the largest, 0, 1, -1 and small ones."""
    info = np.iinfo(dtype)

    def draw(rng: np.random.Generator, s: tuple[int, ...]) -> np.ndarray:
        whole = np.frombuffer(rng.bytes(int(np.prod(s)) * dtype.itemsize), dtype).reshape(s)
        edges = np.array(
            [info.min, info.max, 0, 1, 2, 7, 31, max(-1, info.min), max(-7, info.min)], dtype
        )
        return np.where(rng.random(s) < 0.5, rng.choice(edges, s), whole)

    return Arg(shape, dtype, draw)


# ---- programs ------------------------------------------------------------------------------------

_TOLERANCE: dict[np.dtype, tuple[float, float]] = {
    F64: (1e-11, 1e-12),
    F32: (2e-5, 2e-6),
    F16: (4e-3, 1e-3),
    BF16: (2e-2, 5e-3),
    E4M3: (2.0**-3, 0.0),  # the neighbouring value
    E5M2: (2.0**-2, 0.0),
}


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What a result may differ by.

    scale: multiple of the dtype's own tolerance.  steps: units of an integer result.
    """

    scale: float = 1.0
    steps: int = 0

    def of(self, dtype: np.dtype) -> tuple[float, float]:
        """(relative error of an element, absolute error as a fraction of the largest element)."""
        relative, absolute = _TOLERANCE[dtype]
        return relative * self.scale, absolute * self.scale


@dataclass(frozen=True, slots=True)
class Program:
    """A function of flat array arguments.

    platform: whose lowering is stored ("cpu" keeps threefry as a while, "cuda" unrolls it).
    x64: traced with 64-bit types.
    """

    name: str
    fn: Callable[..., Any]
    args: tuple[Arg, ...]
    tolerance: Tolerance
    notes: str
    platform: str = "cpu"
    x64: bool = False

    @property
    def specs(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return tuple(arg.spec for arg in self.args)

    def make_inputs(self, seed: int = 0) -> list[np.ndarray]:
        """One C-contiguous array per argument; equal seeds give equal bytes."""
        rng = np.random.default_rng(seed)
        with np.errstate(invalid="ignore", over="ignore"):
            return [
                np.asarray(np.asarray(a.draw(rng, a.shape)).astype(a.dtype), order="C")
                for a in self.args
            ]

    def run_jax(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results of the function by `jax.jit` on the default device, flat."""
        with jax.enable_x64(self.x64):
            return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(self.fn)(*inputs))]

    def lower(self) -> bytes:
        """The serialized HloModuleProto: every argument kept, source paths without their root."""
        with jax.enable_x64(self.x64):
            return lower(self.fn, self.specs, self.platform)


_ABSOLUTE_PREFIX = r"^.*/(?=tests/|astitch/|examples/|site-packages/)"


def lower(fn: Callable[..., Any], specs: Sequence[jax.ShapeDtypeStruct], platform: str) -> bytes:
    """A function's serialized HloModuleProto for a platform: every argument kept, source paths without their root."""
    jax.config.update("jax_hlo_source_file_canonicalization_regex", _ABSOLUTE_PREFIX)
    traced = jax.jit(fn, keep_unused=True).trace(*specs)
    module = traced.lower(lowering_platforms=(platform,)).compiler_ir("hlo")
    assert module is not None, fn
    proto: bytes = module.as_serialized_hlo_module_proto()
    return proto


PROGRAMS: dict[str, Program] = {}


def program(
    *args: Arg,
    name: str = "",
    scale: float = 1.0,
    steps: int = 0,
    platform: str = "cpu",
    x64: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the decorated function to PROGRAMS; its docstring is the notes.

    name: its own unless given.  The rest is as in Tolerance and Program.
    """

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        title = name or fn.__name__
        assert title not in PROGRAMS, f"two programs are called {title}"
        notes = (fn.__doc__ or "").strip()
        PROGRAMS[title] = Program(title, fn, args, Tolerance(scale, steps), notes, platform, x64)
        return fn

    return register


TF32_SCALE = 500.0
"""How much wider the tolerance of a program with f32 products is on a GPU: TF32 keeps 10 bits of a factor."""


def assert_matches(prog: Program, got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> None:
    """Raises AssertionError that names the first wrong result and the first element wrong in it."""
    assert len(got) == len(want), f"{prog.name}: {len(got)} results, {len(want)} expected"
    for index, (g, w) in enumerate(zip(got, want, strict=True)):
        where = f"{prog.name}, result {index} ({w.dtype}{list(w.shape)})"
        assert g.shape == w.shape and g.dtype == w.dtype, f"{where}: got {g.dtype}{list(g.shape)}"
        wrong = _find_wrong(g, w, prog.tolerance)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise AssertionError(
                f"{where}: {int(wrong.sum())} of {w.size} differ, "
                f"first at {at}: got {g[at]}, want {w[at]}"
            )


def _find_wrong(got: np.ndarray, want: np.ndarray, tolerance: Tolerance) -> np.ndarray:
    """True where an element is outside the tolerance; NaN equals NaN, an infinity only itself."""
    if want.dtype not in _TOLERANCE:
        if tolerance.steps == 0 or want.dtype == PRED:
            return np.asarray(got != want)
        return np.asarray(np.abs(got.astype(np.int64) - want.astype(np.int64)) > tolerance.steps)
    relative, absolute = tolerance.of(want.dtype)
    g, w = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(w)
    size = np.abs(np.where(finite, w, 0.0))
    bound = relative * size + absolute * (size.max() if size.size else 0.0)
    with np.errstate(invalid="ignore"):
        close = np.abs(g - w) <= bound
    same = (g == w) | (np.isnan(g) & np.isnan(w))
    return np.asarray(~np.where(finite, close, same))


# ---- softmax and its relatives -------------------------------------------------------------------


def softmax_over(axis: int) -> Callable[[jax.Array], jax.Array]:
    def softmax(x: jax.Array) -> jax.Array:
        e = jnp.exp(x - jnp.max(x, axis=axis, keepdims=True))
        return e / jnp.sum(e, axis=axis, keepdims=True)

    return softmax


program(normal(8, 48, 96, scale=3), name="softmax_last")(softmax_over(2))
program(normal(8, 48, 96, scale=3), name="softmax_middle")(softmax_over(1))
program(normal(16, 24, 96, scale=3), name="softmax_first")(softmax_over(0))
program(normal(4, 50_000, scale=3), name="softmax_long_rows")(softmax_over(1))
program(normal(1, 200_001, scale=3), name="softmax_one_row")(softmax_over(1))
program(normal(2000, 32, scale=3), name="softmax_short_rows")(softmax_over(1))
program(normal(33, 257), name="softmax_33x257")(softmax_over(1))
program(normal(7, 13), name="softmax_7x13")(softmax_over(1))
program(normal(1, 1), name="softmax_1x1")(softmax_over(1))
program(normal(5, 1023), name="softmax_5x1023")(softmax_over(1))
program(normal(64, 512, dtype=BF16, scale=3), name="softmax_bf16")(softmax_over(1))
program(normal(64, 512, dtype=F16, scale=3), name="softmax_f16")(softmax_over(1))
program(normal(9, 1001, dtype=BF16, scale=3), name="softmax_bf16_odd_rows")(softmax_over(1))
program(normal(257, 33), name="softmax_columns_257x33")(softmax_over(0))
program(normal(24, 130, dtype=F64), name="softmax_f64", x64=True)(softmax_over(1))


@program(normal(6, 40_004, dtype=BF16, scale=3))
def softmax_long_rows_bf16(x: jax.Array) -> jax.Array:
    """Rows for block groups; on few SMs each block works on several."""
    return jax.nn.softmax(x.astype(jnp.float32), axis=1).astype(x.dtype)


@program(normal(64, 700, scale=4))
def log_softmax(x: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(x, axis=-1)


@program(normal(64, 700, scale=4), normal(64, 700))
def log_softmax_backward(x: jax.Array, dy: jax.Array) -> jax.Array:
    return jax.vjp(lambda a: jax.nn.log_softmax(a, axis=-1), x)[1](dy)[0]


@program(normal(12, 40, 64, scale=4))
def logsumexp_two_axes(x: jax.Array) -> jax.Array:
    return jax.nn.logsumexp(x, axis=(0, 2))


@program(normal(2, 4, 64, 64), attention_mask(2, 1, 1, 64))
def attention_mask_softmax(scores: jax.Array, mask: jax.Array) -> jax.Array:
    return jax.nn.softmax(scores * 0.125 + mask, axis=-1)


@program(normal(4, 96, 96))
def causal_mask_softmax(scores: jax.Array) -> jax.Array:
    keep = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jax.nn.softmax(jnp.where(keep, scores * 0.125, -jnp.inf), axis=-1)


@program(normal(2, 4, 48, 48), attention_mask(2, 1, 1, 48), normal(2, 4, 48, 48))
def attention_softmax_backward(scores: jax.Array, mask: jax.Array, dy: jax.Array) -> jax.Array:
    return jax.vjp(lambda s: jax.nn.softmax(s * 0.125 + mask, axis=-1), scores)[1](dy)[0]


@program(normal(96, 256, scale=2, shift=1))
def column_standardise_softmax(x: jax.Array) -> jax.Array:
    """Statistics over columns, then a softmax over rows: a column-reduce feeds a row-reduce."""
    centred = x - x.mean(axis=0)
    return jax.nn.softmax(centred * lax.rsqrt((centred**2).mean(axis=0) + 1e-5), axis=-1)


# ---- normalisation -------------------------------------------------------------------------------


def layer_norm(x: jax.Array, gamma: jax.Array, beta: jax.Array) -> jax.Array:
    """Statistics in f32 whatever x is, as models in bf16 do."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean = wide.mean(axis=-1, keepdims=True)
    variance = jnp.square(wide - mean).mean(axis=-1, keepdims=True)
    return ((wide - mean) * lax.rsqrt(variance + 1e-6)).astype(x.dtype) * gamma + beta


def layer_norm_backward(
    x: jax.Array, gamma: jax.Array, beta: jax.Array, dy: jax.Array
) -> tuple[jax.Array, ...]:
    """dx reduces rows, dgamma and dbeta reduce columns of the same tensors."""
    return jax.vjp(layer_norm, x, gamma, beta)[1](dy)


def rms_norm(x: jax.Array, gamma: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.square(wide).mean(axis=-1, keepdims=True) + 1e-6)
    return (wide * scale).astype(x.dtype) * gamma


def rms_norm_backward(x: jax.Array, gamma: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
    return jax.vjp(rms_norm, x, gamma)[1](dy)


# The sums of a gradient in bf16 may be kept in bf16 or wider: XLA for the CPU rounds at every step.
BF16_SUMS = 4.0

for suffix, dtype, sums in (("", F32, 1.0), ("_bf16", BF16, BF16_SUMS)):
    vector = normal(768, dtype=dtype, scale=0.2, shift=1)
    matrix = normal(64, 768, dtype=dtype)
    norm_args = (matrix, vector, vector)
    program(*norm_args, name=f"layer_norm{suffix}")(layer_norm)
    program(*norm_args, matrix, name=f"layer_norm_backward{suffix}", scale=sums)(
        layer_norm_backward
    )
    program(matrix, vector, name=f"rms_norm{suffix}")(rms_norm)
    program(matrix, vector, matrix, name=f"rms_norm_backward{suffix}", scale=sums)(
        rms_norm_backward
    )


@program(normal(64, 768, dtype=BF16), normal(768), normal(768), normal(64, 768, dtype=BF16))
def layer_norm_backward_mixed(
    x: jax.Array, gamma: jax.Array, beta: jax.Array, dy: jax.Array
) -> tuple[jax.Array, ...]:
    """bf16 activations, f32 weights and arithmetic: dx in bf16, dgamma and dbeta in f32."""

    def norm(a: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
        return layer_norm(a.astype(jnp.float32), scale, shift).astype(a.dtype)

    return jax.vjp(norm, x, gamma, beta)[1](dy)


for rows, columns in ((33, 257), (3000, 16), (4, 20_000)):
    weights = normal(columns, scale=0.2, shift=1)
    title = f"layer_norm_{rows}x{columns}"
    program(normal(rows, columns), weights, weights, name=title)(layer_norm)
program(normal(2000, 24), normal(24), normal(2000, 24), name="rms_norm_backward_2000x24")(
    rms_norm_backward
)
program(normal(3, 12_000), normal(12_000), normal(3, 12_000), name="rms_norm_backward_3x12000")(
    rms_norm_backward
)
program(
    normal(24, 100, dtype=F64),
    normal(100, dtype=F64),
    normal(100, dtype=F64),
    name="layer_norm_f64",
    x64=True,
)(layer_norm)


def batch_norm(
    x: jax.Array, gamma: jax.Array, beta: jax.Array, channel: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    axes = tuple(i for i in range(x.ndim) if i != channel)
    shape = tuple(-1 if i == channel else 1 for i in range(x.ndim))
    mean = x.mean(axis=axes)
    variance = jnp.square(x - mean.reshape(shape)).mean(axis=axes)
    scale = lax.rsqrt(variance + 1e-5) * gamma
    y = (x - mean.reshape(shape)) * scale.reshape(shape) + beta.reshape(shape)
    return jax.nn.relu(y), mean, variance


def batch_norm_training(channel: int) -> Callable[..., tuple[jax.Array, ...]]:
    def train(
        x: jax.Array,
        gamma: jax.Array,
        beta: jax.Array,
        running_mean: jax.Array,
        running_variance: jax.Array,
    ) -> tuple[jax.Array, ...]:
        """y = relu(norm(x)), batch statistics, running statistics."""
        y, mean, variance = batch_norm(x, gamma, beta, channel)
        return (
            y,
            mean,
            variance,
            0.9 * running_mean + 0.1 * mean,
            0.9 * running_variance + 0.1 * variance,
        )

    return train


def batch_norm_backward(channel: int) -> Callable[..., tuple[jax.Array, ...]]:
    def backward(
        x: jax.Array, gamma: jax.Array, beta: jax.Array, dy: jax.Array
    ) -> tuple[jax.Array, ...]:
        """dx needs two statistics of dy over the batch: two waves of column-reduces."""
        return jax.vjp(lambda *p: batch_norm(*p, channel)[0], x, gamma, beta)[1](dy)

    return backward


_channels = [normal(48, scale=0.2, shift=1), normal(48), normal(48), uniform(48, low=0.5, high=2.0)]
_nhwc, _nchw = normal(8, 10, 10, 48), normal(8, 48, 10, 10)
program(_nhwc, *_channels, name="batch_norm_training_nhwc")(batch_norm_training(3))
program(_nchw, *_channels, name="batch_norm_training_nchw")(batch_norm_training(1))
program(_nhwc, *_channels[:2], _nhwc, name="batch_norm_backward_nhwc")(batch_norm_backward(3))
program(_nchw, *_channels[:2], _nchw, name="batch_norm_backward_nchw")(batch_norm_backward(1))


@program(normal(4, 8, 8, 64), normal(64), normal(64))
def group_norm_nhwc(x: jax.Array, gamma: jax.Array, beta: jax.Array) -> jax.Array:
    """8 groups of 8 neighbouring channels: reduces over (H, W, channel in group)."""
    grouped = x.reshape(4, 8, 8, 8, 8)
    mean = grouped.mean(axis=(1, 2, 4), keepdims=True)
    variance = grouped.var(axis=(1, 2, 4), keepdims=True)
    return ((grouped - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape) * gamma + beta


@program(normal(6, 32, 40, 64, dtype=BF16, shift=2))
def group_norm_many_pixels(x: jax.Array) -> jax.Array:
    """8 groups of 8 neighbouring channels, each of more elements than a block holds."""
    grouped = x.astype(jnp.float32).reshape(6, 32, 40, 8, 8)
    mean = grouped.mean(axis=(1, 2, 4), keepdims=True)
    variance = jnp.square(grouped - mean).mean(axis=(1, 2, 4), keepdims=True)
    scaled = (grouped - mean) * lax.rsqrt(variance + 1e-5)
    return scaled.reshape(x.shape).astype(x.dtype)


@program(normal(4, 16, 20, 20))
def instance_norm(x: jax.Array) -> jax.Array:
    mean = x.mean(axis=(2, 3), keepdims=True)
    return (x - mean) * lax.rsqrt(x.var(axis=(2, 3), keepdims=True) + 1e-5)


@program(*[normal(24, 32 * (i + 1)) for i in range(8)])
def eight_small_norms(*xs: jax.Array) -> list[jax.Array]:
    """Independent tensors: one kernel only if unrelated scopes are merged."""
    return [
        (x - x.mean(axis=-1, keepdims=True)) * lax.rsqrt(x.var(axis=-1, keepdims=True) + 1e-5)
        for x in xs
    ]


@program(normal(48, 320), normal(320), normal(320), normal(48, 320))
def two_layer_norms(x: jax.Array, gamma: jax.Array, beta: jax.Array, y: jax.Array) -> jax.Array:
    """Reduces that depend on reduces of the same rows: four in one task."""
    return layer_norm(jnp.tanh(layer_norm(x, gamma, beta)) + y, gamma, beta)


@program(normal(64, 300))
def normalise_rows(x: jax.Array) -> jax.Array:
    return x / jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True))


@program(normal(64, 300))
def normalise_all(x: jax.Array) -> jax.Array:
    return x / jnp.sqrt(jnp.sum(x * x))


@program(integers(40, low=-2, high=210), normal(200, 256), normal(256), normal(256))
def embedding_layer_norm(
    ids: jax.Array, table: jax.Array, gamma: jax.Array, beta: jax.Array
) -> jax.Array:
    """Some ids are out of range: they clamp."""
    return layer_norm(jnp.take(table, ids, axis=0, mode="clip"), gamma, beta)


def dropout_add_layer_norm(
    words: jax.Array, x: jax.Array, residual: jax.Array, gamma: jax.Array, beta: jax.Array
) -> tuple[jax.Array, jax.Array]:
    keep = jax.random.bernoulli(jax.random.wrap_key_data(words, impl="threefry2x32"), 0.9, x.shape)
    return layer_norm(jnp.where(keep, x / 0.9, 0.0) + residual, gamma, beta), keep


_dropout_args = (key(), normal(32, 256), normal(32, 256), normal(256), normal(256))
program(*_dropout_args, name="dropout_add_layer_norm")(dropout_add_layer_norm)
program(*_dropout_args, name="dropout_add_layer_norm_cuda", platform="cuda")(dropout_add_layer_norm)


@program(key(), platform="cuda")
def random_normal(words: jax.Array) -> jax.Array:
    """Threefry, bits to floats, inverse error function: one long light chain."""
    return jax.random.normal(jax.random.wrap_key_data(words, impl="threefry2x32"), (40, 100))


# ---- activations ---------------------------------------------------------------------------------


def gelu_tanh(x: jax.Array) -> jax.Array:
    return 0.5 * x * (1 + jnp.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def gelu_erf(x: jax.Array) -> jax.Array:
    return 0.5 * x * (1 + lax.erf(x * 0.70710678))


def bias_and_backward(
    activation: Callable[[jax.Array], jax.Array],
) -> Callable[..., tuple[jax.Array, ...]]:
    def forward_backward(x: jax.Array, bias: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
        """y, dx and dbias of activation(x + bias): dbias is a column-reduce of dx."""
        y, pull = jax.vjp(lambda a, b: activation(a + b), x, bias)
        return y, *pull(dy)

    return forward_backward


for suffix, dtype, sums in (("", F32, 2.0), ("_bf16", BF16, BF16_SUMS)):
    gelu_args = (
        normal(48, 640, dtype=dtype),
        normal(640, dtype=dtype),
        normal(48, 640, dtype=dtype),
    )
    for form, function in (("tanh", gelu_tanh), ("erf", gelu_erf)):
        program(*gelu_args, name=f"gelu_{form}{suffix}", scale=sums)(bias_and_backward(function))
program(normal(48, 640), normal(640), normal(48, 640), name="silu")(bias_and_backward(jax.nn.silu))


@program(normal(48, 800), normal(48, 400))
def swiglu(x: jax.Array, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both halves of a projection: slices in, a concatenate (of padded halves) in the gradient."""
    y, pull = jax.vjp(lambda a: jax.nn.silu(a[:, :400]) * a[:, 400:], x)
    return y, pull(dy)[0]


@program(uniform(2000, low=0.05, high=0.95), normal(2000))
def transcendentals(u: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
    """Every heavy function once: u in (0, 1), x anywhere."""
    return (
        jnp.exp(x), jnp.expm1(x), jnp.log(u), jnp.log1p(u), jax.nn.sigmoid(x), jnp.tanh(x),
        jnp.tan(u), jnp.sin(x), jnp.cos(x), jnp.sqrt(u), lax.rsqrt(u), jnp.cbrt(x), lax.erf(x),
        jnp.arctan2(x, u), lax.pow(u, x), jnp.arcsin(u), jnp.arccos(u), jnp.arctan(x), jnp.sinh(x),
        jnp.cosh(x), jnp.arcsinh(x), jnp.arccosh(1 + u), jnp.arctanh(u), lax.rem(x, u),
        lax.erf_inv(u),
    )  # fmt: skip


# ---- losses --------------------------------------------------------------------------------------


@program(normal(64, 1000, scale=3), integers(64, low=0, high=1000))
def cross_entropy_one_hot(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Loss and its gradient; the label is found by comparing with an iota."""

    def loss(z: jax.Array) -> jax.Array:
        return -jnp.mean(
            jnp.sum(jax.nn.one_hot(labels, z.shape[1]) * jax.nn.log_softmax(z), axis=-1)
        )

    return jax.value_and_grad(loss)(logits)


@program(normal(64, 1000, scale=3), integers(64, low=0, high=1000))
def cross_entropy_gather(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Loss and its gradient; the label is gathered, so the gradient holds a scatter."""

    def loss(z: jax.Array) -> jax.Array:
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(z), labels[:, None], axis=-1))

    return jax.value_and_grad(loss)(logits)


@program(normal(16, 5000, dtype=BF16, scale=3), integers(16, low=0, high=5000))
def cross_entropy_bf16(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """bf16 logits, f32 arithmetic, a gradient in bf16."""

    def loss(z: jax.Array) -> jax.Array:
        wide = z.astype(jnp.float32)
        picked = jnp.sum(jnp.where(jnp.arange(z.shape[1]) == labels[:, None], wide, 0.0), axis=-1)
        return jnp.mean(jax.nn.logsumexp(wide, axis=-1) - picked)

    return jax.value_and_grad(loss)(logits)


@program(normal(4, 12, 700, dtype=BF16, scale=3), integers(4, 12, low=0, high=700), platform="cuda")
def cross_entropy_integer_labels(
    logits: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """As optax has it, for tokens of a batch of sequences; bf16 logits, f32 arithmetic."""

    def loss(z: jax.Array) -> jax.Array:
        wide = z.astype(jnp.float32)
        picked = jnp.take_along_axis(wide, labels[..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(wide, axis=-1) - picked)

    return jax.value_and_grad(loss)(logits)


@program(normal(64, 300), normal(64, 300))
def mean_squared_error(prediction: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jax.value_and_grad(lambda p: jnp.mean(jnp.square(p - target)))(prediction)


@program(normal(64, 300), normal(64, 300))
def huber_loss(prediction: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    def loss(p: jax.Array) -> jax.Array:
        error = jnp.abs(p - target)
        return jnp.mean(jnp.where(error < 1.0, 0.5 * error * error, error - 0.5))

    return jax.value_and_grad(loss)(prediction)


# ---- reductions ----------------------------------------------------------------------------------


@program(normal(512, 192))
def column_sum(x: jax.Array) -> jax.Array:
    return x.sum(axis=0)


@program(normal(3000, 5))
def column_sum_narrow(x: jax.Array) -> jax.Array:
    """Fewer columns than a warp has threads."""
    return x.sum(axis=0)


@program(normal(12, 9000))
def column_sum_wide(x: jax.Array) -> jax.Array:
    return jnp.square(x).sum(axis=0)


@program(normal(24, 20, 36))
def reduces_of_reduces(x: jax.Array) -> tuple[jax.Array, ...]:
    """Each result is reduced again along another axis."""
    sums = jnp.exp(x).sum(axis=2)
    return sums, sums.max(axis=1), sums.max(axis=1).sum(), jnp.sqrt(sums).sum(axis=0)


@program(normal(80, 60), normal(60, 80))
def reduce_read_transposed(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Row results read along columns: no block holds what it needs."""
    scale = 1 / (1 + jnp.abs(x).sum(axis=1))
    return y * scale, x.T * scale + y


@program(normal(96, 400))
def row_and_column_sum(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One input read once for both."""
    return jnp.exp(x).sum(axis=1), jnp.exp(x).sum(axis=0)


@program(normal(100, 777))
def full_sum(x: jax.Array) -> jax.Array:
    return x.sum()


@program(normal(100, 777))
def mean_square_and_largest(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two full reduces with different combiners over one input."""
    return jnp.mean(x * x), jnp.max(jnp.abs(x))


@program(normal(20, 30, 40))
def variance_outer_axes(x: jax.Array) -> jax.Array:
    return x.var(axis=(0, 2))


@program(normal(9, 70, 50))
def sum_middle_axis(x: jax.Array) -> jax.Array:
    return x.sum(axis=1)


@program(normal(24, 30, 50), integers(24, 30, 50, low=0, high=9))
def arg_extrema(x: jax.Array, ties: jax.Array) -> tuple[jax.Array, ...]:
    """argmax and argmin along each axis; among equals the first wins."""
    return tuple(
        f(a, axis=axis) for a in (x, ties) for f in (jnp.argmax, jnp.argmin) for axis in range(3)
    )


@program(edge_floats(16, 90), edge_floats(16, 90, dtype=F16))
def reductions_with_nan(x: jax.Array, h: jax.Array) -> tuple[jax.Array, ...]:
    """NaN and infinities through sum, max, min and argmax."""
    return (
        x.sum(axis=1), x.max(axis=1), x.min(axis=0), jnp.argmax(x, axis=1), jnp.argmin(x, axis=0),
        h.max(axis=0), h.min(axis=1), jnp.any(jnp.isnan(x), axis=1),
        jnp.all(jnp.isfinite(x), axis=0),
    )  # fmt: skip


@program(edge_integers(30, 70, dtype=S32), edge_integers(30, 70, dtype=U8), booleans(30, 70))
def integer_reductions(x: jax.Array, small: jax.Array, flags: jax.Array) -> tuple[jax.Array, ...]:
    """Sums wrap around, products too; and/or/xor combiners."""
    return (
        x.sum(axis=1), x.prod(axis=0), x.max(), x.min(axis=1),
        lax.reduce(x, np.int32(-1), lax.bitwise_and, (0,)),
        lax.reduce(x, np.int32(0), lax.bitwise_or, (1,)),
        lax.reduce(x, np.int32(0), lax.bitwise_xor, (0, 1)),
        lax.reduce(small, np.uint8(0), lax.add, (0,)), small.max(axis=1), flags.any(axis=0),
        flags.all(axis=1), flags.sum(axis=1),
    )  # fmt: skip


@program(uniform(40, 33, low=0.8, high=1.2))
def product_rows(x: jax.Array) -> jax.Array:
    return x.prod(axis=1)


@program(normal(0, 5), normal(3, 4), normal(3, 0))
def empty_arrays(empty: jax.Array, x: jax.Array, nothing: jax.Array) -> tuple[jax.Array, ...]:
    """Reduces of nothing give the initial value; a concatenate may have an empty operand."""
    joined = jnp.concatenate([x, nothing], axis=1)
    return (
        empty.sum(axis=0),
        empty.sum(axis=1),
        nothing.max(axis=1, initial=-1.0),
        joined * 2,
        empty + 1,
    )


@program(normal(), normal(), integers(low=-9, high=9))
def scalars_only(x: jax.Array, y: jax.Array, n: jax.Array) -> tuple[jax.Array, ...]:
    return jnp.exp(x) * y + n, jnp.where(n > 0, x, y), n * n - 3


# ---- training updates ----------------------------------------------------------------------------

_SHAPES = (
    (), (1,), (3,), (7, 13), (64,), (64, 48), (48,), (3, 3, 4, 16), (16,), (1, 1), (96, 33), (33,),
    (5, 5, 1, 8), (8,), (100, 20), (20,), (2, 2, 2, 2, 2), (128,), (31, 31), (257,),
)  # fmt: skip


def adam_with_clip(step: jax.Array, *flat: jax.Array) -> list[jax.Array]:
    """Gradients clipped by their global norm: 20 full reduces, then 20 element-wise updates."""
    count = len(_SHAPES)
    weights, grads, firsts, seconds = (flat[i * count : (i + 1) * count] for i in range(4))
    norm = jnp.sqrt(sum((jnp.sum(g * g) for g in grads), jnp.float32(0)))
    clip = jnp.minimum(1.0, 1.0 / (norm + 1e-6))
    t = step.astype(jnp.float32) + 1
    new: list[list[jax.Array]] = [[], [], []]
    for w, g, m, v in zip(weights, grads, firsts, seconds, strict=True):
        g = g * clip
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        w = w - 1e-3 * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)
        for column, value in zip(new, (w, m, v), strict=True):
            column.append(value)
    return new[0] + new[1] + new[2]


program(
    integers(low=0, high=100),
    *[normal(*s) for s in _SHAPES * 3],
    *[uniform(*s, low=0.01, high=1.0) for s in _SHAPES],
    name="adam_with_clip",
)(adam_with_clip)


@program(*[normal(*s) for _ in range(3) for s in ((64, 48), (48,), (100, 20), (7, 13), ())])
def sgd_momentum(*flat: jax.Array) -> list[jax.Array]:
    weights, grads, moments = flat[:5], flat[5:10], flat[10:]
    moments = tuple(0.9 * m + g + 1e-4 * w for w, g, m in zip(weights, grads, moments, strict=True))
    return [w - 0.1 * m for w, m in zip(weights, moments, strict=True)] + list(moments)


# ---- recurrent cells and products ----------------------------------------------------------------


def lstm_gates(gates: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array]:
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    c = jax.nn.sigmoid(f + 1.0) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


program(normal(32, 512), normal(32, 128), name="lstm_cell")(lstm_gates)


@program(
    normal(8, 64),
    normal(8, 64),
    normal(8, 64),
    normal(64, 256, scale=0.1),
    normal(64, 256, scale=0.1),
    normal(256),
)
def lstm_cell_dots(
    x: jax.Array, h: jax.Array, c: jax.Array, w: jax.Array, u: jax.Array, bias: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return lstm_gates(x @ w + h @ u + bias, c)


@program(
    normal(5, 4, 48),
    normal(4, 16),
    normal(4, 16),
    normal(16, 64, scale=0.2),
    normal(48, 64, scale=0.2),
)
def lstm_scan(
    xs: jax.Array, h: jax.Array, c: jax.Array, u: jax.Array, w: jax.Array
) -> tuple[jax.Array, ...]:
    """A while loop around a cell."""

    def step(
        carry: tuple[jax.Array, jax.Array], x: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        carry = lstm_gates(x @ w + carry[0] @ u, carry[1])
        return carry, carry[0]

    (h, c), ys = lax.scan(step, (h, c), xs)
    return h, c, ys


@program(normal(64, 128), normal(128), normal(64))
def small_products(a: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
    """Matrix-vector, vector-matrix, outer product, inner product: bound by memory."""
    return jax.nn.relu(a @ x), jnp.tanh(y @ a), jnp.outer(y, x) * a, jnp.vdot(x, x)


@program(normal(32, 48), normal(48, 64), normal(64), normal(32, 64), normal(64), normal(64))
def dense_residual_norm(
    x: jax.Array,
    w: jax.Array,
    bias: jax.Array,
    residual: jax.Array,
    gamma: jax.Array,
    beta: jax.Array,
) -> jax.Array:
    """A product, its epilogue, and a LayerNorm of the sum."""
    return layer_norm(jax.nn.gelu(x @ w + bias) + residual, gamma, beta)


def _bert_layer_args() -> tuple[tuple[Arg, ...], Any]:
    """x, mask and the flat parameters of a narrow layer, and the tree that they unflatten to."""
    leaves, tree = jax.tree.flatten(
        jax.eval_shape(lambda: demo.make_layer(0, hidden=64, inner=128))
    )
    x, mask = normal(2, 16, 64), attention_mask(2, 1, 1, 16)
    return (x, mask, *(normal(*leaf.shape, scale=leaf.shape[0] ** -0.5) for leaf in leaves)), tree


_bert_args, _bert_tree = _bert_layer_args()


@program(*_bert_args)
def bert_layer(x: jax.Array, mask: jax.Array, *leaves: jax.Array) -> jax.Array:
    """The layer of the demo, narrow: products, epilogues, attention, two residual LayerNorms."""
    return demo.layer(jax.tree.unflatten(_bert_tree, leaves), x, mask, heads=4)


@program(normal(2, 16, 64), *_bert_args)
def bert_layer_backward(
    dy: jax.Array, x: jax.Array, mask: jax.Array, *leaves: jax.Array
) -> tuple[jax.Array, demo.Params]:
    """Gradients of every parameter: products and stitched parts alternate."""
    params = jax.tree.unflatten(_bert_tree, leaves)
    _, pull = jax.vjp(lambda value, weights: demo.layer(weights, value, mask, heads=4), x, params)
    dx, gradients = pull(dy)
    # A softmax does not feel a shift of all keys: this gradient is rounding noise around zero.
    del gradients["key_bias"]
    return dx, gradients


# ---- data movement -------------------------------------------------------------------------------


@program(normal(2, 24, 192), normal(192))
def split_heads(x: jax.Array, bias: jax.Array) -> jax.Array:
    """[batch, seq, hidden] + bias -> [batch, head, seq, depth]."""
    return (x + bias).reshape(2, 24, 6, 32).transpose(0, 2, 1, 3)


@program(normal(70, 90), normal(12, 20, 33))
def transposes(x: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
    return (
        x.T * 2,
        y.transpose(2, 0, 1) + 1,
        y.transpose(1, 0, 2).reshape(20, -1).sum(axis=1),
        y.transpose(2, 1, 0),
    )


@program(normal(2, 40, 4, 32), normal(40, 16), normal(40, 16))
def rotary_embedding(x: jax.Array, sine: jax.Array, cosine: jax.Array) -> jax.Array:
    left, right = x[..., :16], x[..., 16:]
    sine, cosine = sine[:, None, :], cosine[:, None, :]
    return jnp.concatenate([left * cosine - right * sine, right * cosine + left * sine], axis=-1)


@program(normal(20, 30), normal(4, 5), integers(low=-3, high=25), integers(low=-3, high=35))
def dynamic_slices(
    x: jax.Array, update: jax.Array, row: jax.Array, column: jax.Array
) -> tuple[jax.Array, ...]:
    """Starts out of range clamp so that the slice fits."""
    row, column = (
        lax.convert_element_type(row, jnp.int32),
        lax.convert_element_type(column, jnp.int32),
    )
    return (
        lax.dynamic_slice(x, (row, column), (6, 7)) * 2,
        lax.dynamic_update_slice(x, update, (row, column)) + 1,
        lax.dynamic_slice(jnp.exp(x), (row, jnp.int32(0)), (1, 30)).sum(),
    )


@program(normal(9, 11), normal())
def pads(x: jax.Array, value: jax.Array) -> tuple[jax.Array, ...]:
    """Edges positive, negative and interior, alone and together."""
    return (
        lax.pad(x, value, ((2, 3, 0), (0, 1, 0))),
        lax.pad(x, value, ((-2, 1, 0), (3, -4, 0))),
        lax.pad(x, value, ((0, 0, 2), (0, 0, 1))) * 2,
        lax.pad(x, value, ((-3, -1, 2), (1, -2, 3))),
    )


@program(normal(6, 10), normal(6, 7), normal(4, 17))
def concatenate_reverse_iota(x: jax.Array, y: jax.Array, z: jax.Array) -> tuple[jax.Array, ...]:
    top = jnp.concatenate([x, y[:, ::-1]], axis=1)
    both = jnp.concatenate([top, z], axis=0)
    index = lax.broadcasted_iota(jnp.int32, both.shape, 0) * 17 + lax.broadcasted_iota(
        jnp.int32, both.shape, 1
    )
    return both[::-1, ::2], jnp.where(index % 3 == 0, both, -both), lax.rev(both, (0, 1)), index


@program(normal(30, 40), integers(25, low=-5, high=36), integers(30, 6, low=0, high=40))
def gathers(table: jax.Array, rows: jax.Array, along: jax.Array) -> tuple[jax.Array, ...]:
    """Rows with fill outside, rows that wrap, and one element per index."""
    return (
        jnp.take(table, rows, axis=0, mode="fill", fill_value=0.0),
        table[rows],
        jnp.take_along_axis(table, along, axis=1) * 2,
        table[:, 3:30:4],
    )


@program(normal(30, 16), integers(50, low=-3, high=33), normal(50, 16))
def scatter_add(table: jax.Array, rows: jax.Array, updates: jax.Array) -> jax.Array:
    """The gradient of an embedding; updates out of range are dropped."""
    return table.at[rows].add(updates, mode="drop") * 2


@program(normal(20, 30), integers(20, low=-40, high=40), normal(20), platform="cuda")
def indexed_updates(x: jax.Array, columns: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
    """Scatters that write each element at most once: one element a row, a diagonal, one row."""
    rows = jnp.arange(20)
    return (
        x.at[rows, columns].add(y, mode="drop"),
        x.at[rows[:15], columns[:15]].multiply(y[:15]),
        x.at[rows, rows + 0].set(y),
        x.at[columns[0]].max(y.mean()),
        jax.grad(lambda z: (jax.vmap(lambda r, i: r[i])(z, columns) * y).sum())(x),
    )


@program(normal(40, 50))
def many_views(x: jax.Array) -> tuple[jax.Array, ...]:
    """Outputs that are parameters, repeats and views of each other."""
    y = x * 2
    return x, y, y, y.reshape(50, 40), jnp.broadcast_to(x[0], (3, 50)), jnp.float32(7.0)


# ---- windows -------------------------------------------------------------------------------------


@program(normal(8, 1000, scale=2), platform="cuda")
def cumsum_softmax(x: jax.Array) -> jax.Array:
    """The cumulative probabilities of nucleus sampling."""
    return jnp.cumsum(jax.nn.softmax(x), axis=-1)


@program(
    normal(3, 5003),
    uniform(60, 7, low=0, high=1, dtype=BF16),
    integers(4, 90, low=0, high=2),
    uniform(40, low=0.5, high=1.5),
    platform="cuda",
)
def running_sums(
    x: jax.Array, y: jax.Array, mask: jax.Array, z: jax.Array
) -> tuple[jax.Array, ...]:
    """Long rows, columns in bf16, positions from a mask, other monoids, from the end, a gradient."""
    return (
        jnp.cumsum(x, axis=1),
        jnp.cumsum(y, axis=0),
        jnp.cumsum(mask, axis=1) - 1,
        jnp.cumprod(z),
        lax.cummax(z, reverse=True),
        lax.cumlogsumexp(z),
        jax.grad(lambda a: (jnp.cumsum(a) ** 2).sum())(z),
    )


@program(normal(700, 24), platform="cuda")
def places_of_tokens(scores: jax.Array) -> tuple[jax.Array, ...]:
    """A router's choice: which place each token takes in the queue of its expert, and whether it fits."""
    chosen = jax.nn.one_hot(scores.argmax(-1), scores.shape[-1], dtype=jnp.int32)
    place = (jnp.cumsum(chosen, axis=0) * chosen).sum(-1) - 1
    return place, jnp.where(place < 40, scores.max(-1), 0.0)


@program(normal(30_011), platform="cuda")
def long_running_sum(x: jax.Array) -> jax.Array:
    """Blocks hand on their totals."""
    return jnp.cumsum(x * x) / x.size


@program(normal(2, 13, 11, 8), normal(2, 13, 11, 8, dtype=BF16), normal(7, 50), platform="cuda")
def pooling(x: jax.Array, y: jax.Array, z: jax.Array) -> tuple[jax.Array, ...]:
    """Largest, mean of what is inside, mean of all, with holes."""
    same, inner = (1, 2, 2, 1), (1, 3, 3, 1)
    count = lax.reduce_window(jnp.ones_like(x), 0.0, lax.add, inner, same, "SAME")
    return (
        lax.reduce_window(jax.nn.gelu(x), -jnp.inf, lax.max, inner, same, "SAME"),
        lax.reduce_window(x, 0.0, lax.add, inner, same, "SAME") / count,
        lax.reduce_window(y, jnp.bfloat16(0), lax.add, inner, (1, 1, 1, 1), "VALID"),
        lax.reduce_window(x, 0.0, lax.add, (1, 13, 11, 1), (1, 1, 1, 1), "VALID") / 143,
        lax.reduce_window(z, 0.0, lax.add, (2, 3), (2, 1), ((1, 2), (0, 3)), (2, 1), (1, 3)),
    )


# ---- what is not stitched ------------------------------------------------------------------------


@program(normal(20, 90), integers(20, 30, low=0, high=50))
def sorts(x: jax.Array, n: jax.Array) -> tuple[jax.Array, ...]:
    """Along rows, along columns with a permutation, and the k largest."""
    return jnp.sort(x, axis=1) * 2, jnp.argsort(n, axis=0), *lax.top_k(jnp.exp(x), 5)


@program(normal(20, 100), normal(2, 12, 12, 8))
def windows(x: jax.Array, image: jax.Array) -> tuple[jax.Array, ...]:
    """Running sums; max-pooling and its gradient (select-and-scatter), average-pooling."""

    def pool(a: jax.Array) -> jax.Array:
        return lax.reduce_window(a, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    mean = lax.reduce_window(image, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
    return (
        jnp.cumsum(jnp.exp(x), axis=1),
        pool(image),
        jax.grad(lambda a: pool(a).sum())(image),
        mean,
    )


@program(normal(2, 10, 10, 4), normal(3, 3, 4, 8, scale=0.2), normal(8), normal(8), normal(8))
def convolution_batch_norm(
    x: jax.Array, kernel: jax.Array, bias: jax.Array, gamma: jax.Array, beta: jax.Array
) -> tuple[jax.Array, ...]:
    y = lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return batch_norm(y + bias, gamma, beta, 3)


@program(integers(low=-1, high=4), normal(10, 20), normal(10, 20))
def branches(which: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
    """A switch of three and a condition, light ops around both."""
    chosen = lax.switch(which, [lambda a: a * 2, lambda a: jnp.exp(a), lambda a: a - a.max()], x)
    return chosen + y, lax.cond(x[0, 0] > 0, lambda: (x + y).sum(axis=0), lambda: x[0] * 3)


@program(normal(4, 6), integers(low=3, high=9))
def newton_loop(x: jax.Array, count: jax.Array) -> jax.Array:
    """A loop whose trip count is an argument: square roots of 1 + |x|."""
    target = 1 + jnp.abs(x)
    return lax.fori_loop(0, count, lambda _, guess: 0.5 * (guess + target / guess), target)


@program(normal(24, 64), normal(64), normal(64), normal(24, 64))
def checkpointed_norm(x: jax.Array, gamma: jax.Array, beta: jax.Array, dy: jax.Array) -> jax.Array:
    """Rematerialisation: the forward pass appears again behind an optimization-barrier."""
    norm = jax.checkpoint(lambda a: jnp.tanh(layer_norm(a, gamma, beta)))
    return jax.vjp(lambda a: norm(norm(a)), x)[1](dy)[0]


@program(normal(16, 32), normal(16, 32))
def complex_products(x: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
    z = lax.complex(x, y)
    return (z * z).real + 1, jnp.abs(z), jnp.fft.rfft(x * 2).imag


# ---- arithmetic of every dtype -------------------------------------------------------------------


def integer_arithmetic(a: jax.Array, b: jax.Array) -> tuple[jax.Array, ...]:
    """Wrap-around, division by zero, the smallest divided by -1, shifts beyond the width."""
    signed = jnp.issubdtype(a.dtype, jnp.signedinteger)
    results = (
        a + b, a - b, a * b, -a, lax.div(a, b), lax.rem(a, b), a & b, a | b, a ^ b, ~a,
        jnp.minimum(a, b), jnp.maximum(a, b), lax.shift_left(a, b), lax.shift_right_logical(a, b),
        lax.shift_right_arithmetic(a, b), lax.population_count(a), lax.clz(a), a < b, a == b,
        lax.sign(a),
    )  # fmt: skip
    return (*results, jnp.abs(a)) if signed else results


for _dtype in (S8, S16, S32, S64, U8, U16, U32, U64):
    _short = ("s" if _dtype.kind == "i" else "u") + str(_dtype.itemsize * 8)
    program(
        edge_integers(300, dtype=_dtype),
        edge_integers(300, dtype=_dtype),
        name=f"integer_arithmetic_{_short}",
        x64=_dtype.itemsize == 8,
    )(integer_arithmetic)


def float_arithmetic(a: jax.Array, b: jax.Array) -> tuple[jax.Array, ...]:
    """NaN, infinities and signed zeros through every light op."""
    return (
        a + b, a - b, a * b, a / b, -a, jnp.abs(a), jnp.maximum(a, b), jnp.minimum(a, b),
        jnp.sign(a), jnp.floor(a), jnp.ceil(a), lax.round(a, lax.RoundingMethod.TO_NEAREST_EVEN),
        lax.round(a, lax.RoundingMethod.AWAY_FROM_ZERO),
        lax.clamp(jnp.asarray(-1, a.dtype), a, jnp.asarray(1, a.dtype)), lax.is_finite(a), a < b,
        a <= b, a == b, a != b, a > b, a >= b, jnp.where(a > b, a, b), lax.rem(a, b),
    )  # fmt: skip


for _dtype, _short in ((F32, "f32"), (BF16, "bf16"), (F16, "f16"), (F64, "f64")):
    program(
        edge_floats(400, dtype=_dtype),
        edge_floats(400, dtype=_dtype),
        name=f"float_arithmetic_{_short}",
        x64=_dtype == F64,
    )(float_arithmetic)


@program(edge_floats(20, 30), edge_floats(20, 30), booleans(20, 30), booleans(20, 30))
def predicates(a: jax.Array, b: jax.Array, p: jax.Array, q: jax.Array) -> tuple[jax.Array, ...]:
    return (
        p & q, p | q, p ^ q, ~p, p == q, p < q, jnp.where(p & (a > b), a, b),
        (p | (a < b)).astype(jnp.float32), jnp.where(jnp.isnan(a), 0.0, a), jnp.clip(a, -1.0, b),
        p.astype(jnp.int32).sum(axis=0), jnp.logical_not(a),
    )  # fmt: skip


@program(
    normal(300, scale=50),
    integers(300, low=-128, high=128),
    uniform(300, low=0, high=200),
    booleans(300),
)
def converts(
    x: jax.Array, n: jax.Array, positive: jax.Array, flag: jax.Array
) -> tuple[jax.Array, ...]:
    """Between every pair of families, values in range."""
    return (
        x.astype(jnp.int32), x.astype(jnp.int8), positive.astype(jnp.uint8),
        x.astype(jnp.bfloat16), x.astype(jnp.float16), x.astype(jnp.bool_), n.astype(jnp.int8),
        n.astype(jnp.uint8), n.astype(jnp.float32), n.astype(jnp.float16), n.astype(jnp.bfloat16),
        flag.astype(jnp.float32), flag.astype(jnp.uint8), n.astype(jnp.uint32).astype(jnp.float32),
        x.astype(jnp.float16).astype(jnp.bfloat16), lax.reduce_precision(x, 5, 7),
    )  # fmt: skip


@program(edge_floats(300), edge_floats(300, dtype=BF16))
def convert_out_of_range(x: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
    """XLA saturates float -> integer and sends NaN to 0."""
    return tuple(
        lax.convert_element_type(a, t)
        for a in (x * 1e8, y)
        for t in (jnp.int32, jnp.int8, jnp.uint8, jnp.uint32)
    )


@program(
    normal(256),
    edge_integers(256, dtype=U32),
    edge_integers(256, dtype=U16),
    normal(256, dtype=F16),
)
def bitcasts(
    x: jax.Array, words: jax.Array, halves: jax.Array, h: jax.Array
) -> tuple[jax.Array, ...]:
    """Bits reinterpreted: same width, wider to narrower (one more dimension) and back."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    return (
        bits,
        lax.bitcast_convert_type((words >> 9) | 0x3F800000, jnp.float32) - 1.0,
        lax.bitcast_convert_type(words, jnp.uint8),
        lax.bitcast_convert_type(halves.reshape(128, 2), jnp.uint32),
        lax.bitcast_convert_type(h, jnp.int16),
        lax.bitcast_convert_type(bits ^ np.uint32(0x80000000), jnp.float32),
    )


@program(normal(64, 500, scale=3), steps=1)
def quantise_int8(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The largest magnitude is a full reduce; then an element-wise pass over the same input."""
    scale = jnp.max(jnp.abs(x)) / 127.0
    return jnp.clip(jnp.round(x / scale), -127, 127).astype(jnp.int8), scale


@program(normal(64, 300, scale=30))
def quantise_f8(x: jax.Array) -> tuple[jax.Array, ...]:
    """Rows scaled to the range of f8e4m3fn, and back."""
    scale = jnp.max(jnp.abs(x), axis=1, keepdims=True) / 448
    small = (x / scale).astype(jnp.float8_e4m3fn)
    return small.astype(jnp.float32) * scale, x.astype(jnp.float8_e5m2).astype(jnp.float32)


@program(normal(64, 304, scale=9, dtype=E4M3), normal(304, dtype=BF16), normal(40, 90, dtype=E5M2))
def f8_storage(q: jax.Array, scale: jax.Array, g: jax.Array) -> tuple[jax.Array, ...]:
    """Dequantised values and their row sums; f8 arithmetic and reductions, clipped quantisation."""
    wide = q.astype(jnp.bfloat16) * scale
    total = jnp.sum(wide.astype(jnp.float32), axis=1)
    return (
        wide,
        total,
        jnp.clip(total[:, None] * scale, -448, 448).astype(jnp.float8_e4m3fn),
        lax.reduce(g.reshape(20, 2, 90), jnp.float8_e5m2(0), lax.add, (1,)),
        lax.reduce(q, jnp.float8_e4m3fn(-448), lax.max, (1,)),
        -jnp.abs(g) + jnp.where(g > 1, g * g, jnp.tanh(g)),
        lax.bitcast_convert_type(q, jnp.uint8),
    )


@program(edge_floats(30, 20), edge_floats(30, 20, dtype=BF16), edge_integers(90, dtype=U8))
def f8_converts(x: jax.Array, y: jax.Array, bits: jax.Array) -> tuple[jax.Array, ...]:
    """Out of range is NaN or infinity; every f8 value becomes f32 exactly."""
    types = jnp.float8_e4m3fn, jnp.float8_e5m2
    small = [x.astype(t) for t in types] + [y.astype(t) for t in types]
    wide = [lax.bitcast_convert_type(bits, t).astype(jnp.float32) for t in types]
    return (*small, *wide, small[0].astype(jnp.int8), bits.astype(types[1]))


@program(integers(64, 500, low=-127, high=128, dtype=S8), uniform(64, 1, low=0.01, high=0.1))
def dequantise_row_sums(q: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
    return q.astype(jnp.float32) * scale, q.astype(jnp.int32).sum(axis=1)


@program(normal(20, 60, dtype=F64), x64=True)
def double_statistics(x: jax.Array) -> tuple[jax.Array, ...]:
    return x.mean(), x.var(axis=0), jnp.exp(x).sum(axis=1), jnp.tanh(x) * jnp.log1p(jnp.abs(x))


# ---- examples of the AStitch paper ---------------------------------------------------------------


@program(
    uniform(192, 256, low=0.5, high=1.5),
    uniform(192, low=0.5, high=1.5),
    uniform(192, 192, low=0.5, high=1.5),
)
def astitch_golden(pr1: jax.Array, pr2: jax.Array, pr3: jax.Array) -> jax.Array:
    """Figures 7 and 9: Regional, Global, Local and Independent values in one kernel."""
    rows = pr2.shape[0]
    a1 = pr1 + jnp.broadcast_to(pr2[:, None], pr1.shape)
    r1 = a1.sum(axis=1)
    d1 = r1 / pr2
    pw1 = lax.pow(d1, jnp.full_like(d1, 2.0))
    b2 = jnp.broadcast_to(pw1[None, :], (rows, rows))
    r2 = (pr3 / b2).sum(axis=1)
    return b2 * jnp.broadcast_to(r2[None, :], (rows, rows))


@program(uniform(2, low=0.5, high=1.5), normal(2, 128))
def power_broadcast_add(x: jax.Array, y: jax.Array) -> jax.Array:
    """power<2> - broadcast<2,128> - add: inlined, each power is computed 128 times."""
    return lax.pow(x, jnp.float32(2.5) * jnp.ones_like(x))[:, None] + y


@program(normal(4000, 32))
def dien_reduce(x: jax.Array) -> jax.Array:
    """Many short rows (the paper's <750000,32>): a block per row would be tiny."""
    return jnp.exp(x).sum(axis=1)


@program(normal(8, 15_000), normal(15_000))
def transformer_reduce(x: jax.Array, y: jax.Array) -> jax.Array:
    """Few long rows (the paper's <64,30000>): a block per row leaves most of the GPU idle."""
    return (x * y).sum(axis=1)


# ---- stored HLO ----------------------------------------------------------------------------------


def corpus_path(name: str) -> Path:
    return CORPUS / f"{name}.hlo.pb.gz"


def load(name: str) -> bytes:
    """The stored HloModuleProto of a program.  Raises KeyError for an unknown name."""
    return gzip.decompress(corpus_path(PROGRAMS[name].name).read_bytes())


def write_corpus(names: Iterable[str]) -> int:
    """Lowers each program into CORPUS and drops stale files; returns the size of all in bytes.

    A file whose program is the same but for source lines stays as it is.
    """
    CORPUS.mkdir(parents=True, exist_ok=True)
    wanted = {corpus_path(name) for name in PROGRAMS}
    for stale in set(CORPUS.glob("*.hlo.pb.gz")) - wanted:
        stale.unlink()
    for name in names:
        proto = PROGRAMS[name].lower()
        if not corpus_path(name).exists() or show_hlo(proto) != show_hlo(load(name)):
            corpus_path(name).write_bytes(gzip.compress(proto, compresslevel=9, mtime=0))
    return sum(path.stat().st_size for path in wanted)


def show_hlo(proto: bytes) -> str:
    """HLO text without metadata: equal texts are equal programs."""
    text: str = xla_client.XlaComputation(proto).as_hlo_text()
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description="The corpus of test programs.")
    parser.add_argument(
        "--write", action="store_true", help="lower the programs into tests/data/corpus"
    )
    parser.add_argument("names", nargs="*", help="only these programs")
    options = parser.parse_args()
    names = options.names or list(PROGRAMS)
    if options.write:
        print(f"{len(names)} programs, {write_corpus(names)} bytes, jax {jax.__version__}")
        return
    for name in names:
        prog = PROGRAMS[name]
        shapes = ", ".join(f"{a.dtype}{list(a.shape)}" for a in prog.args[:4])
        more = " ..." if len(prog.args) > 4 else ""
        print(f"{name:32} {len(prog.args):3} arguments: {shapes}{more}")


if __name__ == "__main__":
    main()
