"""`python -m astitch.demo`: a BERT encoder layer, stitched, beside XLA; needs no GPU.

Prints the kernels with their schemes, the number of kernels of both, the error and (on a GPU) the
times.  The layer is plain JAX that knows nothing of astitch: `astitch.jit` replaces `jax.jit`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Params = dict[str, jax.Array]

TOLERANCE = {"cpu": 1e-4, "gpu": 1e-2}
"""Largest error as a fraction of the largest result; products on a GPU may use TF32."""


# ---- the model -----------------------------------------------------------------------------------


def make_layer(seed: int, *, hidden: int = 768, inner: int = 3072) -> Params:
    """Random f32 weights of one encoder layer: name -> [in, out], [inner] or [hidden]."""
    rng = np.random.default_rng(seed)
    shapes = dict.fromkeys(("query", "key", "value", "attention_out"), (hidden, hidden))
    shapes |= {"inner": (hidden, inner), "outer": (inner, hidden)}
    params: dict[str, np.ndarray] = {}
    for name, (rows, columns) in shapes.items():
        params[name] = rng.standard_normal((rows, columns)) / np.sqrt(rows)
        params[f"{name}_bias"] = 0.1 * rng.standard_normal(columns)
    for name in ("attention_norm", "output_norm"):
        params[f"{name}_gamma"] = 1 + 0.1 * rng.standard_normal(hidden)
        params[f"{name}_beta"] = 0.1 * rng.standard_normal(hidden)
    return {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}


def layer(params: Params, x: jax.Array, mask: jax.Array, heads: int = 12) -> jax.Array:
    """Post-LN BERT encoder layer, inference.

    x: f32 [batch, seq, hidden].  mask: additive, broadcasts to [batch, heads, seq, seq].
    Returns an array like x.
    """
    batch, seq, hidden = x.shape

    def project(name: str, value: jax.Array) -> jax.Array:
        return value @ params[name] + params[f"{name}_bias"]

    def split_heads(value: jax.Array) -> jax.Array:
        return value.reshape(batch, seq, heads, hidden // heads).transpose(0, 2, 1, 3)

    query, key, value = (split_heads(project(name, x)) for name in ("query", "key", "value"))
    scores = query @ key.transpose(0, 1, 3, 2) / np.float32(np.sqrt(hidden // heads)) + mask
    context = (softmax(scores) @ value).transpose(0, 2, 1, 3).reshape(batch, seq, hidden)
    x = layer_norm(params, "attention_norm", x + project("attention_out", context))
    return layer_norm(params, "output_norm", x + project("outer", gelu(project("inner", x))))


def softmax(scores: jax.Array) -> jax.Array:
    e = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def gelu(x: jax.Array) -> jax.Array:
    """The tanh form."""
    return 0.5 * x * (1 + jnp.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def layer_norm(params: Params, name: str, x: jax.Array) -> jax.Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = jnp.square(centred).mean(axis=-1, keepdims=True)
    return centred * lax.rsqrt(variance + 1e-12) * params[f"{name}_gamma"] + params[f"{name}_beta"]


def make_inputs(
    seed: int, *, batch: int = 1, seq: int = 128, hidden: int = 768
) -> tuple[jax.Array, jax.Array]:
    """x [batch, seq, hidden] and a mask [batch, 1, 1, seq] that hides the last fifth of seq."""
    x = np.random.default_rng(seed).standard_normal((batch, seq, hidden))
    mask = np.where(np.arange(seq) < seq - seq // 5, 0.0, -1e9)
    return jnp.asarray(x, jnp.float32), jnp.broadcast_to(jnp.float32(mask), (batch, 1, 1, seq))


# ---- the demonstration ---------------------------------------------------------------------------


def main() -> int:
    """Prints the report; returns 0 if the stitched layer agrees with XLA, else 1."""
    # Imported here so that the model above can be used without the compiler.
    from astitch.jit import jit
    from astitch.profiling.measured import read_executable
    from astitch.show.explain import kernel_rows, library_steps, show_table

    backend = jax.default_backend()
    params = make_layer(seed=0)
    x, mask = make_inputs(seed=1)
    print(f"BERT encoder layer, f32, x{list(x.shape)}, on {jax.devices()[0].device_kind}")

    start = time.perf_counter()
    stitched = jit(layer).lower(params, x, mask).compile()
    compiled_s = time.perf_counter() - start
    reference = jax.jit(layer).lower(params, x, mask).compile()
    compilation = stitched.compilation
    rows = kernel_rows(compilation.plans, compilation.gpu, compilation.resources())
    print(show_table(rows))
    print(f"{len(library_steps(stitched.program))} library calls; explain() has every decision\n")

    memory, products = count_xla_kernels(read_executable(reference)[0])
    print(f"kernels that are no matrix product: astitch {len(stitched.program.kernels)}")
    print(f"{'':36}XLA for {backend} {memory} (and {products} with products)")
    print(f"compiled in {compiled_s:.1f} s")

    got = np.asarray(stitched(params, x, mask))
    want = np.asarray(reference(params, x, mask))
    error = float(np.abs(got - want).max() / np.abs(want).max())
    if backend == "gpu":
        ours_us = measure_us(lambda: stitched(params, x, mask))
        xla_us = measure_us(lambda: reference(params, x, mask))
        print(f"time of a call: astitch {ours_us:.1f} us, XLA {xla_us:.1f} us")
    else:
        start = time.perf_counter()
        stitched(params, x, mask)
        print(
            f"time of a call: {time.perf_counter() - start:.2f} s in the emulation (no GPU here: the same CUDA text "
            "ran on the CPU)"
        )

    verdict = f"largest error {error:.1e} of the largest result, tolerance {TOLERANCE[backend]:.0e}"
    if not error <= TOLERANCE[backend]:  # a NaN is wrong too
        print(f"WRONG: {verdict}")
        return 1
    print(f"OK: {verdict}")
    return 0


def count_xla_kernels(module: bytes) -> tuple[int, int]:
    """(launches without, launches with a matrix product or convolution) of an optimized module, a serialized
    HloModuleProto.
    """
    from astitch.device.gpu import preset
    from astitch.profiling.report import PRODUCT
    from astitch.profiling.xla_kernels import read_xla_kernels

    kernels = read_xla_kernels(module, preset("host")).kernels
    products = sum(kernel.kind == PRODUCT for kernel in kernels)
    return len(kernels) - products, products


def measure_us(call: Callable[[], object]) -> float:
    """Median of five means of twenty calls, in microseconds a call, after a warm-up."""
    jax.block_until_ready(call())  # type: ignore[no-untyped-call]
    means = []
    for _ in range(5):
        start = time.perf_counter()
        result: object = None
        for _ in range(20):
            result = call()
        jax.block_until_ready(result)  # type: ignore[no-untyped-call]
        means.append((time.perf_counter() - start) / 20 * 1e6)
    return statistics.median(means)


if __name__ == "__main__":
    sys.exit(main())
