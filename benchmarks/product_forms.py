"""Products of few rows with what is around them, and chains of products with few columns: Forms -> arrays, formulas.

One formula serves all sides: it is written over Exact (NumPy, f64), Jax, Apart (a jax.jit for each call) and the class
of benchmarks.product_torch.  Weights lie as [depth, columns].
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

ROWS = (1, 2, 4, 8, 16, 32, 64)

FLOATS = ("f32", "bf16", "f16")

INTEGERS = tuple(
    f"{n} {scaling}" for n in ("s8", "s4") for scaling in ("column", "row", "group", "after")
)
"""By where the scale stands: one for each column, row of the weights or GROUP of rows, or behind the product."""

TYPES = (*FLOATS, "f8", *(t for t in INTEGERS if t != "s4 row"))
"""f8: e4m3, a scale for each column behind the product.  The factors of f8 and integers are bf16."""

GROUP, HEAD = 128, 64
"""Rows of the weights with the same scale; columns of a head that is rotated."""

EXACT_ROWS = 4
"""So many rows, or images, are compared with f64."""

DTYPES: dict[str, Any] = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f8": ml_dtypes.float8_e4m3fn,
    "s8": np.int8,
    "s4": ml_dtypes.int4,
}


@dataclass(frozen=True, slots=True)
class Form:
    """One program.  dtype: of TYPES, that of the weights.  widths: of x, then of each result; of a convolution x's
    image too, in front.  experts: matrices, of which each has its own rows."""

    kind: str
    dtype: str
    rows: int
    widths: tuple[int, ...]
    experts: int = 1

    @property
    def name(self) -> str:
        experts = f"{self.experts} of " if self.experts > 1 else ""
        return (
            f"{self.kind}: {self.dtype}, {self.rows} x {experts}{'x'.join(map(str, self.widths))}"
        )

    @property
    def group(self) -> str:
        """Forms that are summed up together."""
        return f"{self.kind}, {self.dtype}"

    @property
    def factor(self) -> str:
        """Type of what the weights are multiplied by."""
        return self.dtype if self.dtype in FLOATS else "bf16"

    @property
    def scaling(self) -> str:
        """Of integers; "after" for f8, "" for other floats."""
        return "after" if self.dtype == "f8" else self.dtype.partition(" ")[2]

    @property
    def is_chain(self) -> bool:
        return self.kind in CHAINS

    @property
    def is_product(self) -> bool:
        """Is there nothing around the product?"""
        return self.kind in ("plain", "experts") and not self.scaling

    @property
    def along(self) -> int:
        """The dimension of x and of the result that has the rows."""
        return int(self.experts > 1)


@dataclass(frozen=True, slots=True)
class Given:
    """An argument.  draw: how its numbers are distributed, times `scale`.  rows: the dimension of the rows, None for
    what all rows share, which is also what lies in memory several times."""

    shape: tuple[int, ...]
    dtype: str
    draw: str = "normal"
    scale: float = 1.0
    rows: int | None = None

    @property
    def bytes(self) -> float:
        half = 0.5 if self.dtype == "s4" else np.dtype(DTYPES[self.dtype]).itemsize
        return math.prod(self.shape) * half


# ---- formulas --------------------------------------------------------------------------------------------------------


class Exact:
    """The ops of the formulas in NumPy, for arrays of f64."""

    def cast(self, a: Any, dtype: str) -> Any:
        return a

    def matmul(self, x: Any, w: Any) -> Any:
        return x @ w

    def sigmoid(self, a: Any) -> Any:
        return 1 / (1 + np.exp(-a))

    def silu(self, a: Any) -> Any:
        return a * self.sigmoid(a)

    def relu(self, a: Any) -> Any:
        return np.maximum(a, 0)

    def gelu(self, a: Any) -> Any:
        return 0.5 * a * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))

    def none(self, a: Any) -> Any:
        return a

    def rms_norm(self, x: Any, gain: Any) -> Any:
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-6) * gain

    def join(self, a: Any, b: Any) -> Any:
        """Along the last dimension."""
        return np.concatenate([a, b], -1)

    def dense(self, x: Any, w: Any, b: Any, act: str) -> Any:
        return getattr(self, act)(self.matmul(x, w) + b)

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def average(self, images: Any) -> Any:
        """Over the pixels."""
        return np.mean(images, (1, 2))

    def weigh(self, images: Any, channels: Any) -> Any:
        return images * channels[:, None, None, :]

    def convolve(self, images: Any, w: Any, b: Any, act: str) -> Any:
        """1 x 1: images [images, height, width, channels] with w [channels, results]."""
        return getattr(self, act)(images @ w + b)


class Jax(Exact):
    """As a user of JAX writes them."""

    sigmoid = staticmethod(jax.nn.sigmoid)  # type: ignore[assignment]
    silu = staticmethod(jax.nn.silu)  # type: ignore[assignment]
    relu = staticmethod(jax.nn.relu)  # type: ignore[assignment]
    gelu = staticmethod(jax.nn.gelu)  # type: ignore[assignment]

    def cast(self, a: Any, dtype: str) -> Any:
        return a.astype(DTYPES[dtype])

    def rms_norm(self, x: Any, gain: Any) -> Any:
        wide = x.astype(jnp.float32)
        scale = lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
        return (wide * scale).astype(x.dtype) * gain

    def join(self, a: Any, b: Any) -> Any:
        return jnp.concatenate([a, b], -1)

    def average(self, images: Any) -> Any:
        return jnp.mean(images, (1, 2))

    def convolve(self, images: Any, w: Any, b: Any, act: str) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        made = lax.conv_general_dilated(
            images, w[None, None], (1, 1), "VALID", dimension_numbers=numbers
        )
        return getattr(self, act)(made + b)


class Apart(Jax):
    """Each call of a layer is a program of its own."""

    def __init__(self) -> None:
        whole = Jax()
        for name in ("matmul", "add", "average", "weigh"):
            setattr(self, name, jax.jit(getattr(whole, name)))
        for name in ("dense", "convolve"):
            setattr(self, name, jax.jit(getattr(whole, name), static_argnums=3))


def multiply(ops: Any, form: Form, x: Any, given: Iterator[Any]) -> Any:
    """x times the next weights, which are scaled as the form says."""
    w = next(given)
    if not form.scaling:
        return ops.matmul(x, w)
    scales, wide = next(given), ops.cast(w, form.factor)
    if form.scaling == "after":
        return ops.matmul(x, wide) * scales
    if form.scaling == "group":
        shape = wide.shape
        wide = (wide.reshape(*shape[:-2], -1, GROUP, shape[-1]) * scales).reshape(shape)
    else:
        wide = wide * scales
    return ops.matmul(x, wide)


def rotate(ops: Any, a: Any, cos: Any, sin: Any) -> Any:
    """Each row's heads [rows, heads * HEAD] by the angles of its position [rows, 1, HEAD / 2]."""
    heads = a.reshape(a.shape[0], -1, HEAD)
    left, right = heads[..., : HEAD // 2], heads[..., HEAD // 2 :]
    return ops.join(left * cos - right * sin, right * cos + left * sin).reshape(a.shape)


def compute_plain(ops: Any, form: Form, x: Any, given: Iterator[Any]) -> Any:
    return multiply(ops, form, x, given)


def compute_bias(ops: Any, form: Form, x: Any, given: Iterator[Any]) -> Any:
    return ops.gelu(multiply(ops, form, x, given) + next(given))


def compute_norm(ops: Any, form: Form, x: Any, given: Iterator[Any]) -> Any:
    return ops.silu(multiply(ops, form, ops.rms_norm(x, next(given)), given))


def compute_gate(ops: Any, form: Form, x: Any, given: Iterator[Any]) -> Any:
    h = x if form.experts > 1 else ops.rms_norm(x, next(given))
    return ops.silu(multiply(ops, form, h, given)) * multiply(ops, form, h, given)


def compute_residual(ops: Any, form: Form, x: Any, given: Iterator[Any]) -> Any:
    return multiply(ops, form, x, given) + next(given)


def compute_rope(ops: Any, form: Form, x: Any, given: Iterator[Any]) -> Any:
    made = multiply(ops, form, ops.rms_norm(x, next(given)), given)
    return rotate(ops, made, next(given), next(given))


def compute_casts(ops: Any, form: Form, x: Any, given: Iterator[Any]) -> Any:
    made = multiply(ops, form, ops.cast(x, form.factor), given)
    return ops.cast(made, "f32") + next(given)


def compute_network(ops: Any, form: Form, x: Any, given: Iterator[Any]) -> Any:
    """Layers with relu, the last one without."""
    for layer in range(len(form.widths) - 1):
        last = layer == len(form.widths) - 2
        x = ops.dense(x, next(given), next(given), "none" if last else "relu")
    return x


def compute_lora(ops: Any, form: Form, x: Any, given: Iterator[Any]) -> Any:
    whole = multiply(ops, form, x, given)
    return ops.add(whole, ops.matmul(ops.matmul(x, next(given)), next(given)))


def compute_squeeze(ops: Any, form: Form, x: Any, given: Iterator[Any]) -> Any:
    inner = ops.dense(ops.average(x), next(given), next(given), "relu")
    return ops.weigh(x, ops.dense(inner, next(given), next(given), "sigmoid"))


def compute_convolutions(ops: Any, form: Form, x: Any, given: Iterator[Any]) -> Any:
    for _ in form.widths[3:]:
        x = ops.convolve(x, next(given), next(given), "relu")
    return x


KINDS: dict[str, Callable[..., Any]] = {
    "plain": compute_plain,
    "bias+gelu": compute_bias,
    "norm+silu": compute_norm,
    "gate": compute_gate,
    "residual": compute_residual,
    "rope": compute_rope,
    "casts": compute_casts,
    "experts": compute_plain,
    "experts+gate": compute_gate,
    "network": compute_network,
    "lora": compute_lora,
    "squeeze": compute_squeeze,
    "convolutions": compute_convolutions,
}

CHAINS = ("network", "lora", "squeeze", "convolutions")
"""Several products one after another."""


def compute(ops: Any, form: Form, arrays: Sequence[Any]) -> Any:
    """The form's result of the arguments of list_given."""
    x, *given = arrays
    return KINDS[form.kind](ops, form, x, iter(given))


# ---- arguments -------------------------------------------------------------------------------------------------------


def list_given(form: Form) -> list[Given]:
    """The arguments, x first, in the order of the formula."""
    return [_give_x(form), *_give_rest(form)]


def _give_x(form: Form) -> Given:
    if form.kind in ("squeeze", "convolutions"):
        return Given((form.rows, *form.widths[:3]), form.factor, rows=0)
    dtype = "f32" if form.kind == "casts" else form.factor
    outer = (form.experts,) if form.experts > 1 else ()
    return Given((*outer, form.rows, form.widths[0]), dtype, rows=form.along)


def _give_rest(form: Form) -> Iterator[Given]:
    depth, columns, factor = form.widths[0], form.widths[-1], form.factor
    gain = Given((depth,), factor, "gain")
    match form.kind:
        case "plain" | "experts":
            yield from give_weights(form, depth, columns)
        case "bias+gelu":
            yield from (*give_weights(form, depth, columns), Given((columns,), factor))
        case "norm+silu":
            yield from (gain, *give_weights(form, depth, columns))
        case "gate" | "experts+gate":
            yield from [gain] if form.experts == 1 else []
            yield from (*give_weights(form, depth, columns), *give_weights(form, depth, columns))
        case "residual" | "casts":
            dtype = "f32" if form.kind == "casts" else factor
            yield from (
                *give_weights(form, depth, columns),
                Given((form.rows, columns), dtype, rows=0),
            )
        case "rope":
            yield from (gain, *give_weights(form, depth, columns))
            for draw in ("cos", "sin"):
                yield Given((form.rows, 1, HEAD // 2), factor, draw, rows=0)
        case "network":
            yield from _give_layers(factor, form.widths)
        case "lora":
            rank = form.widths[1]
            yield from give_weights(form, depth, columns)
            yield Given((depth, rank), factor, scale=depth**-0.5)
            yield Given((rank, columns), factor, scale=rank**-0.5)
        case "squeeze":
            channels = form.widths[2]
            yield from _give_layers(factor, (channels, form.widths[3], channels))
        case "convolutions":
            yield from _give_layers(factor, form.widths[2:])


def _give_layers(factor: str, widths: Sequence[int]) -> Iterator[Given]:
    for depth, columns in itertools.pairwise(widths):
        yield Given((depth, columns), factor, scale=depth**-0.5)
        yield Given((columns,), factor)


def give_weights(form: Form, depth: int, columns: int) -> Iterator[Given]:
    """A matrix, or one of each expert, and the scales."""
    outer = (form.experts,) if form.experts > 1 else ()
    dtype, width = form.dtype.split()[0], depth**-0.5
    shape = (*outer, depth, columns)
    if not form.scaling:
        yield Given(shape, dtype, scale=width)
        return
    yield Given(shape, dtype, "normal" if dtype == "f8" else "integer")
    scales = {
        "column": (*outer, 1, columns),
        "row": (*outer, depth, 1),
        "group": (*outer, depth // GROUP, 1, columns),
        "after": (*outer, 1, columns) if outer else (columns,),
    }
    spread = {"f8": 1.0, "s8": 74.0, "s4": 4.3}[dtype]
    yield Given(scales[form.scaling], form.factor, "scale", width / spread)


@functools.cache
def _draw(name: str, dtype: str) -> np.ndarray:
    """A million numbers, of which each array of the type is made."""
    random = np.random.default_rng(len(name))
    count = 1_000_003
    if name == "integer":
        bound = 127 if dtype == "s8" else 7
        return random.integers(-bound, bound + 1, count).astype(np.int8).astype(DTYPES[dtype])
    numbers = random.standard_normal(count, np.float32)
    made = {
        "normal": numbers,
        "gain": 1 + 0.1 * numbers,
        "scale": 0.5 + np.abs(np.tanh(numbers)),
        "cos": np.cos(numbers),
        "sin": np.sin(numbers),
    }[name]
    return made.astype(DTYPES[dtype]) if dtype == "f8" else made


def make_arrays(form: Form) -> list[np.ndarray]:
    """The arguments; int4 has a byte for each number."""
    return [make_array(given, number) for number, given in enumerate(list_given(form))]


def make_array(given: Given, number: int = 0) -> np.ndarray:
    """number: arguments with other numbers differ."""
    block = np.roll(_draw(given.draw, given.dtype), 12345 * number)
    if block.dtype == np.float32:
        block = (block * np.float32(given.scale)).astype(DTYPES[given.dtype])
    return np.resize(block, given.shape)


def evaluate_exactly(form: Form, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The first EXACT_ROWS rows of the result in f64."""
    wide = []
    for given, array in zip(list_given(form), arrays, strict=True):
        if given.rows is not None:
            array = cut_rows(array, given.rows)
        narrow = array.astype(np.float32) if array.dtype.kind == "V" else array
        wide.append(narrow.astype(np.float64))
    return np.asarray(compute(Exact(), form, wide))


def cut_rows(array: Any, along: int) -> Any:
    """The first EXACT_ROWS rows."""
    return array[(slice(None),) * along + (slice(EXACT_ROWS),)]


def distance_from(exact: np.ndarray, result: np.ndarray) -> float:
    """Norm of the difference over the norm."""
    return float(np.linalg.norm(result.astype(np.float64) - exact) / np.linalg.norm(exact))


# ---- which there are -------------------------------------------------------------------------------------------------

LLAMA_1B = ((2048, 2048), (2048, 512), (2048, 8192), (8192, 2048), (2048, 128256))
LLAMA_8B = ((4096, 4096), (4096, 1024), (4096, 14336), (14336, 4096))
GPT2 = ((768, 2304), (768, 3072), (3072, 768), (768, 50257))
OTHERS = ((512, 256), (256, 128), (1024, 1024), (1024, 512), (768, 1000), (46, 46), (767, 3071))
"""Of recommendation models, of ViT's head, odd ones."""

AROUND: dict[str, Sequence[tuple[int, int]]] = {
    "norm+silu": ((2048, 8192), (4096, 14336), (2048, 2048), (768, 3072)),
    "gate": ((2048, 8192), (4096, 14336), (768, 3072)),
    "residual": ((8192, 2048), (14336, 4096), (4096, 4096), (3072, 768)),
    "bias+gelu": ((768, 3072), (3072, 768), (1024, 1024), (512, 256)),
    "rope": ((2048, 2048), (4096, 4096), (4096, 1024)),
}

AROUND_TYPES = ("f32", "bf16", "f8", "s8 column", "s4 group")

EXPERTS = ((8, 2048, 1024), (8, 4096, 1792), (16, 1024, 2048))


def list_forms() -> list[Form]:
    return list(dict.fromkeys((*_list_products(), *_list_chains())))


def _list_products() -> Iterator[Form]:
    shapes = (*LLAMA_1B, *LLAMA_8B, *GPT2, *OTHERS)
    for dtype, shape, rows in itertools.product(TYPES, shapes, ROWS):
        if dtype in FLOATS or (shape[0] % GROUP == 0 and shape[1] % 2 == 0):
            yield Form("plain", dtype, rows, shape)
    for (kind, around), dtype, rows in itertools.product(AROUND.items(), AROUND_TYPES, ROWS):
        yield from (Form(kind, dtype, rows, shape) for shape in around)
    for dtype, shape, rows in itertools.product(
        ("bf16", "f16", "s8 column"), ((2048, 8192), (4096, 4096)), ROWS
    ):
        yield Form("casts", dtype, rows, shape)
    for dtype, (experts, *widths), rows in itertools.product(
        ("f32", "bf16", "s8 column", "s4 group"), EXPERTS, ROWS
    ):
        yield Form("experts", dtype, rows, tuple(widths), experts)
        yield Form("experts+gate", dtype, rows, tuple(widths), experts)


NETWORKS = (
    (131072, (64, 64, 64)),
    (131072, (64, 32, 64)),
    (131072, (64, 16, 64)),
    (131072, (64, 64, 32, 16)),
    (131072, (46, 46, 46)),
    (32768, (64, 256, 64)),
    (2048, (13, 512, 256, 128)),
    (64, (13, 512, 256, 128)),
    (16384, (13, 512, 256, 128)),
    (1, (1024, 1024, 512, 256, 1)),
    (64, (1024, 1024, 512, 256, 1)),
    (2048, (1024, 1024, 512, 256, 1)),
    (16, (768, 3072, 768)),
    (8, (2048, 8192, 2048)),
)
"""Rows and widths."""


def _list_chains() -> Iterator[Form]:
    for dtype in ("f32", "bf16", "f16"):
        for rows, widths in NETWORKS:
            yield Form("network", dtype, rows, widths)
    for dtype in ("f32", "bf16"):
        for images in (1, 32):
            yield Form("squeeze", dtype, images, (28, 28, 256, 16))
            yield Form("squeeze", dtype, images, (14, 14, 512, 32))
            yield Form("convolutions", dtype, images, (56, 56, 64, 16, 64))
            yield Form("convolutions", dtype, images, (56, 56, 64, 64, 32, 16))
            yield Form("convolutions", dtype, images, (28, 28, 46, 46, 46))
    for dtype, rows in itertools.product(("f32", "bf16", "s8 column", "s4 group"), (1, 8, 64)):
        yield Form("lora", dtype, rows, (4096, 16, 4096))
        yield Form("lora", dtype, rows, (2048, 8, 8192))


def order(forms: Sequence[Form]) -> list[Form]:
    """A cross-section first: one form of each group, in each group by strides that visit all its forms."""
    groups: dict[str, list[Form]] = {}
    for form in forms:
        groups.setdefault(form.group, []).append(form)
    turns = [_stride(group, number) for number, group in enumerate(groups.values())]
    return [form for turn in itertools.zip_longest(*turns) for form in turn if form is not None]


def _stride(forms: Sequence[Form], number: int) -> list[Form]:
    """number: groups of the same sizes begin elsewhere."""
    count, golden = len(forms), 0.618
    step = max(1, round(golden * count))
    while math.gcd(step, count) > 1:
        step += 1
    first = int(number * golden * count)
    return [forms[(first + step * turn) % count] for turn in range(count)]
