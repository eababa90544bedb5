"""Programs at the sizes of models, to pin how they are planned; none of them is run.

Hands on `LARGE` (name -> Large) and `load(name)`, a program's HLO as stored in tests/data/large.  The emitted text of
small programs is pinned elsewhere (tests/golden/*.cu); what is chosen for large shapes only shows here.
`python -m tests.large_shapes --write` lowers them again.
"""

from __future__ import annotations

import argparse
import gzip
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.patterns import PATTERNS, layer_norm, softmax
from tests.programs import lower, show_hlo

STORED = Path(__file__).parent / "data" / "large"


@dataclass(frozen=True, slots=True)
class Large:
    """A function and what it takes."""

    fn: Callable[..., Any]
    specs: tuple[jax.ShapeDtypeStruct, ...]


LARGE: dict[str, Large] = {}


def _take_patterns() -> None:
    """Each pattern of the benchmarks at full size in f32, and at the medium one in bf16."""
    for pattern in PATTERNS:
        for size, dtype in (("full", "f32"), ("medium", "bf16")):
            case = pattern.case(size, dtype)
            specs = tuple(argument.spec for argument in case.arguments)
            LARGE[f"{pattern.name}_{size}_{dtype}"] = Large(case.fn, specs)


_take_patterns()

Shape = tuple[int, ...]


def large(
    *shapes: Shape, dtype: Any = jnp.float32
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function of arrays of these shapes, all of one dtype, under its name."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        specs = tuple(jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in shapes)
        LARGE[fn.__name__] = Large(fn, specs)
        return fn

    return register


# ---- shapes that are no multiples of anything ----------------------------------------------------


@large((3, 5_000_011))
def softmax_of_three_long_rows(x: jax.Array) -> jax.Array:
    return softmax(x)


@large((1_000_003, 7))
def softmax_of_many_short_rows(x: jax.Array) -> jax.Array:
    return softmax(x)


@large((16411, 2053), (2053,), (2053,), dtype=jnp.bfloat16)
def layer_norm_of_primes(x: jax.Array, gamma: jax.Array, beta: jax.Array) -> jax.Array:
    return layer_norm(x, gamma, beta)


@large((8193, 4099))
def layer_norm_of_a_slice(x: jax.Array) -> jax.Array:
    rows = x[1:, 3:]
    centred = rows - rows.mean(-1, keepdims=True)
    return centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)


# ---- sums over other dimensions than the last ----------------------------------------------------


@large((1 << 22, 16))
def column_sums_of_few_columns(x: jax.Array) -> jax.Array:
    return x.sum(0)


@large((3000, 100_003))
def column_sums_of_many_columns(x: jax.Array) -> jax.Array:
    return x.sum(0)


@large((64, 4096, 512), dtype=jnp.bfloat16)
def sums_of_the_middle(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32).sum(1)


@large((512, 64, 64, 128), (512, 64, 64, 128))
def sums_of_outer_and_inner(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    return (x * y).sum((0, 1, 2)), x.sum((1, 2, 3))


@large((1 << 26,))
def variance_of_all(x: jax.Array) -> jax.Array:
    return jnp.var(x)


@large((4096, 8192))
def rows_and_columns(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    return x.sum(0), x.sum(1), jnp.square(x).sum()


@large((8192, 50_257), dtype=jnp.bfloat16)
def largest_places(x: jax.Array) -> jax.Array:
    return jnp.argmax(x, -1)


# ---- element-wise, with other layouts ------------------------------------------------------------


@large((8192, 8192))
def transpose_and_scale(x: jax.Array) -> jax.Array:
    return jnp.tanh(x.T) * 2.0


@large((32, 1024, 12, 64), dtype=jnp.bfloat16)
def heads_to_the_front(x: jax.Array) -> jax.Array:
    return jnp.moveaxis(x, 2, 1) * jnp.bfloat16(0.125)


@large((8192, 11008), (8192, 11008), dtype=jnp.bfloat16)
def gate(x: jax.Array, y: jax.Array) -> jax.Array:
    return jax.nn.silu(x) * y


@large((256, 56, 56, 64))
def padded_and_reversed(x: jax.Array) -> jax.Array:
    return jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))[:, ::-1] + 1.0


@large((64, 112, 112, 64))
def pooled(x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


# ---- indices and scans ---------------------------------------------------------------------------


@large((1_000_000, 128), (4096, 26))
def bags_of_embeddings(table: jax.Array, places: jax.Array) -> jax.Array:
    return table[places.astype(jnp.int32)].sum(1)


@large((50_257, 768), (16384, 768), (16384,))
def gradient_of_a_table(table: jax.Array, rows: jax.Array, places: jax.Array) -> jax.Array:
    return jnp.zeros_like(table).at[places.astype(jnp.int32)].add(rows)


@large((16, 1 << 20))
def running_sums_of_long_rows(x: jax.Array) -> jax.Array:
    return jnp.cumsum(jnp.exp(x), -1)


@large((8, 4096, 1024), dtype=jnp.bfloat16)
def running_largest_of_the_middle(x: jax.Array) -> jax.Array:
    return lax.cummax(x, 1)


# ---- several patterns in one program -------------------------------------------------------------


@large((8, 1024, 768), (768,), (768,), (8, 1024, 768), dtype=jnp.bfloat16)
def gradient_of_residual_norm_gelu(
    x: jax.Array, gamma: jax.Array, beta: jax.Array, y: jax.Array
) -> Any:
    def loss(*arguments: jax.Array) -> jax.Array:
        a, b, c, d = arguments
        return jax.nn.gelu(layer_norm(a + d, b, c)).astype(jnp.float32).sum()

    return jax.grad(loss, (0, 1, 2, 3))(x, gamma, beta, y)


@large((4, 16, 1024, 1024), (4, 16, 1024, 1024), dtype=jnp.bfloat16)
def gradient_of_causal_softmax(scores: jax.Array, cotangent: jax.Array) -> jax.Array:
    def weights(s: jax.Array) -> jax.Array:
        mask = jnp.tril(jnp.ones(s.shape[-2:], bool))
        return softmax(jnp.where(mask, s.astype(jnp.float32), -1e30)).astype(s.dtype)

    return jax.vjp(weights, scores)[1](cotangent)[0]


@large((32, 28, 28, 512), (512,), (512,), (32, 28, 28, 512))
def gradient_of_batch_norm(x: jax.Array, gamma: jax.Array, beta: jax.Array, g: jax.Array) -> Any:
    def norm(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
        mean, var = a.mean((0, 1, 2)), a.var((0, 1, 2))
        return jax.nn.relu((a - mean) * lax.rsqrt(var + 1e-5) * b + c)

    return jax.vjp(norm, x, gamma, beta)[1](g)


@large((64, 8, 25, 256), (256,), (256,))
def batch_norm_of_small_images(x: jax.Array, gamma: jax.Array, beta: jax.Array) -> Any:
    """On a T4 two blocks of an SM do not find the shared memory that they exchange states in."""
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return jax.nn.relu((x - mean) * lax.rsqrt(var + 1e-5) * gamma + beta), mean, var


# ---- stored HLO ----------------------------------------------------------------------------------


def load(name: str) -> bytes:
    """The stored HloModuleProto of a program.  Raises KeyError for an unknown name."""
    if name not in LARGE:
        raise KeyError(name)
    return gzip.decompress(_path_of(name).read_bytes())


def _path_of(name: str) -> Path:
    return STORED / f"{name}.hlo.pb.gz"


def main(arguments: Sequence[str] | None = None) -> None:
    """Lists the programs; with --write lowers them, and drops what is stored of others."""
    parser = argparse.ArgumentParser(description="Programs of large shapes.")
    parser.add_argument("--write", action="store_true", help="lower them into tests/data/large")
    if not parser.parse_args(arguments).write:
        for name, program in LARGE.items():
            elements = sum(math.prod(spec.shape) for spec in program.specs)
            print(f"{name:40} {elements:12,} elements of arguments")
        return
    STORED.mkdir(parents=True, exist_ok=True)
    for stale in set(STORED.iterdir()) - set(map(_path_of, LARGE)):
        stale.unlink()
    for name, program in LARGE.items():
        proto, path = lower(program.fn, program.specs, "cuda"), _path_of(name)
        if not path.exists() or show_hlo(proto) != show_hlo(load(name)):
            path.write_bytes(gzip.compress(proto, compresslevel=9, mtime=0))
    print(f"{len(LARGE)} programs, {sum(p.stat().st_size for p in STORED.iterdir())} bytes")


if __name__ == "__main__":
    main()
