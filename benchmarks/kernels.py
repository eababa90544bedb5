"""Memory-bound patterns: the generated kernels beside XLA's, in one run, on one GPU.

`python -m benchmarks.kernels [NAME ...] [--json FILE]` prints microseconds, GB/s by least possible traffic, percent of
the device-to-device copy measured in the same run, kernels, and the largest error against XLA relative to the largest
result.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from astitch.compile import compile_hlo
from astitch.executor import GpuExecutor
from astitch.gpu import from_device

F32, BF16 = jnp.float32, jnp.bfloat16


@dataclass(frozen=True, slots=True)
class Pattern:
    """fn on arrays of `specs` (shape, dtype)."""

    name: str
    fn: Callable[..., Any]
    specs: tuple[tuple[tuple[int, ...], Any], ...]


def layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
    y = x.astype(F32)
    mean = y.mean(-1, keepdims=True)
    var = jnp.square(y - mean).mean(-1, keepdims=True)
    return ((y - mean) * jax.lax.rsqrt(var + 1e-5) * gamma + beta).astype(x.dtype)


def rms_norm(x: Any, gamma: Any) -> Any:
    y = x.astype(F32)
    return (y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-6) * gamma).astype(x.dtype)


def backward(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Gradients of `fn` for all its arguments, given the gradient of its result last."""

    def gradients(*arguments: Any) -> Any:
        *inputs, upstream = arguments
        return jax.vjp(fn, *inputs)[1](upstream)

    return gradients


def cross_entropy(logits: Any, labels: Any) -> Any:
    def loss(z: Any) -> Any:
        z = z.astype(F32)
        picked = jnp.take_along_axis(z, labels[:, None], -1)[:, 0]
        return (jax.nn.logsumexp(z, -1) - picked).mean()

    return jax.value_and_grad(loss)(logits)


def batch_norm_relu(x: Any, gamma: Any, beta: Any) -> Any:
    mean = x.mean((0, 1, 2))
    var = jnp.square(x - mean).mean((0, 1, 2))
    y = jax.nn.relu((x - mean) * jax.lax.rsqrt(var + 1e-5) * gamma + beta)
    return y, mean, var


def group_norm(x: Any, gamma: Any, beta: Any) -> Any:
    n, h, w, c = x.shape
    g = x.reshape(n, h, w, 32, c // 32)
    mean = g.mean((1, 2, 4), keepdims=True)
    var = jnp.square(g - mean).mean((1, 2, 4), keepdims=True)
    return ((g - mean) * jax.lax.rsqrt(var + 1e-5)).reshape(x.shape) * gamma + beta


def softmax(x: Any) -> Any:
    return jax.nn.softmax(x, -1)


def clip_adam(tensors: int) -> Callable[..., Any]:
    """Global-norm clip and Adam over `tensors` parameters: arguments p..., g..., m..., v..., step."""

    def update(*arguments: Any) -> Any:
        n = tensors
        p, g, m, v = (arguments[i * n : (i + 1) * n] for i in range(4))
        step = arguments[-1]
        norm = jnp.sqrt(sum(jnp.square(x).sum() for x in g))
        scale = jnp.minimum(1.0, 1.0 / (norm + 1e-6))
        results: list[Any] = []
        for pi, gi, mi, vi in zip(p, g, m, v, strict=True):
            gs = gi * scale
            mn = 0.9 * mi + 0.1 * gs
            vn = 0.999 * vi + 0.001 * gs * gs
            results += [
                pi - 1e-3 * (mn / (1 - 0.9**step)) / (jnp.sqrt(vn / (1 - 0.999**step)) + 1e-8),
                mn,
                vn,
            ]
        return tuple(results)

    return update


BERT_LAYER = (
    ((768, 768),) * 4 + ((768,),) * 4 + ((768, 3072), (3072,), (3072, 768), (768,)) + ((768,),) * 4
)
PATTERNS = (
    Pattern("softmax f32 8192x8192", softmax, (((8192, 8192), F32),)),
    Pattern("softmax bf16 32768x4096", softmax, (((32768, 4096), BF16),)),
    Pattern("softmax f32 64x1048576", softmax, (((64, 1048576), F32),)),
    Pattern("softmax f32 750000x32", softmax, (((750000, 32), F32),)),
    Pattern("softmax f32 64x30000", softmax, (((64, 30000), F32),)),
    Pattern("layer norm bf16 32768x4096", layer_norm, (((32768, 4096), BF16), ((4096,), F32), ((4096,), F32))),
    Pattern(
        "layer norm backward bf16 32768x4096",
        backward(layer_norm),
        (((32768, 4096), BF16), ((4096,), F32), ((4096,), F32), ((32768, 4096), BF16)),
    ),
    Pattern("rms norm bf16 32768x4096", rms_norm, (((32768, 4096), BF16), ((4096,), F32))),
    Pattern(
        "rms norm backward bf16 32768x4096",
        backward(rms_norm),
        (((32768, 4096), BF16), ((4096,), F32), ((32768, 4096), BF16)),
    ),
    Pattern("cross-entropy bf16 8192x50304", cross_entropy, (((8192, 50304), BF16), ((8192,), jnp.int32))),
    Pattern(
        "batch-norm + relu f32 64x56x56x256",
        batch_norm_relu,
        (((64, 56, 56, 256), F32), ((256,), F32), ((256,), F32)),
    ),
    Pattern("column sum bf16 65536x1024", lambda x: x.astype(F32).sum(0), (((65536, 1024), BF16),)),
    Pattern("bias + gelu bf16 8192x16384", lambda x, b: jax.nn.gelu(x + b), (((8192, 16384), BF16), ((16384,), BF16))),
    Pattern("group-norm f32 32x64x64x512", group_norm, (((32, 64, 64, 512), F32), ((512,), F32), ((512,), F32))),
    Pattern(
        "clip + adam, 192 tensors",
        clip_adam(192),
        (*(((shape, F32)) for shape in BERT_LAYER * 12 * 4), ((), F32)),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One measured pattern; times in microseconds, medians."""

    name: str
    kernels: int
    barriers: int
    astitch_us: float
    xla_us: float
    gbs: float
    percent_of_copy: float
    error: float


def make_arguments(pattern: Pattern, seed: int = 0) -> list[Any]:
    key = jax.random.key(seed)
    made = []
    for number, (shape, dtype) in enumerate(pattern.specs):
        sub = jax.random.fold_in(key, number)
        if dtype == jnp.int32:
            made.append(jax.random.randint(sub, shape, 0, 1000, dtype))
        elif shape == ():
            made.append(jnp.asarray(3.0, dtype))
        else:
            made.append(jax.random.uniform(sub, shape, F32, 0.1, 1.0).astype(dtype))
    return made


def time_us(
    run: Callable[[], Any], finish: Callable[[Any], None], repeats: int = 7, inner: int = 10
) -> float:
    """Median over `repeats` of the mean of `inner` calls issued back to back."""
    finish(run())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(inner):
            last = run()
        finish(last)
        times.append((time.perf_counter() - start) / inner * 1e6)
    return statistics.median(times)


def measure_copy_gbs() -> float:
    """Device-to-device copy of 1 GiB: bytes read plus written, 1e9 a second."""
    import cupy

    a = cupy.zeros(1 << 28, cupy.float32)
    b = cupy.empty_like(a)
    us = time_us(
        lambda: b.data.copy_from_device_async(a.data, a.nbytes, cupy.cuda.Stream.null),
        lambda _: cupy.cuda.Device().synchronize(),
    )
    return 2 * a.nbytes / us / 1e3


def measure(pattern: Pattern, copy_gbs: float) -> Row:
    import cupy

    arguments = make_arguments(pattern)
    jitted = jax.jit(pattern.fn, keep_unused=True)
    lowered = jitted.lower(*arguments)
    program = compile_hlo(
        lowered.compiler_ir("hlo").as_serialized_hlo_module_proto(), gpu=from_device()
    ).program
    want = [np.asarray(x, np.float64) for x in jax.tree.leaves(jitted(*arguments))]
    xla_us = time_us(lambda: jitted(*arguments), lambda out: jax.block_until_ready(out))
    executor = GpuExecutor(program)
    got = [x.to_numpy().astype(np.float64) for x in executor.run(arguments)]
    error = max(
        float(np.abs(a - b).max() / (np.abs(b).max() + 1e-30))
        for a, b in zip(got, want, strict=True)
    )
    us = time_us(lambda: executor.run(arguments), lambda _: cupy.cuda.Device().synchronize())
    traffic = sum(math.prod(s) * np.dtype(d).itemsize for s, d in pattern.specs)
    traffic += sum(v.type.bytes for v in program.outputs)
    gbs = traffic / us / 1e3
    barriers = sum(k.global_barriers for k in program.kernels)
    return Row(
        pattern.name, len(program.kernels), barriers, us, xla_us, gbs, 100 * gbs / copy_gbs, error
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("names", nargs="*", help="only patterns whose name contains one of these")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    copy_gbs = measure_copy_gbs()
    print(f"{from_device().name}, jax {jax.__version__}, copy {copy_gbs:.0f} GB/s")
    print(
        f"{'pattern':38} {'kernels':>7} {'astitch us':>10} {'XLA us':>9} {'x':>5} {'GB/s':>6} {'%copy':>6} {'error':>8}"
    )
    rows = []
    for pattern in PATTERNS:
        if options.names and not any(n in pattern.name for n in options.names):
            continue
        try:
            row = measure(pattern, copy_gbs)
        except Exception as error:
            print(f"{pattern.name:38} {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        rows.append(row)
        print(
            f"{row.name:38} {row.kernels:3}+{row.barriers:<3} {row.astitch_us:10.1f} {row.xla_us:9.1f} "
            f"{row.xla_us / row.astitch_us:5.2f} {row.gbs:6.0f} {row.percent_of_copy:6.1f} {row.error:8.1e}",
            flush=True,
        )
    if rows:
        mean = math.exp(statistics.fmean(math.log(r.xla_us / r.astitch_us) for r in rows))
        print(f"geometric mean over XLA: {mean:.2f}x")
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in rows], indent=2))


if __name__ == "__main__":
    main()
