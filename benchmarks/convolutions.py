"""GPU time of convolutions by cuDNN, as programs that CuPy launches call it, beside XLA's.

`python -m benchmarks.convolutions [--json FILE] [--dtypes f32 ...] [NAME ...]` on a GPU with nvidia-cudnn-frontend.
Each layer three ways, forward and the gradients in its image and in its filter, by the same function: XLA compiles it,
and the executor of astitch's runs it.  All kernels of a call count, copies to another order of the dimensions too.
Images are NHWC and filters HWIO, as JAX's libraries and TensorFlow have them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import astitch
from astitch.profiling.kernel_trace import record_launches, sum_launches

CALLS = 20
DTYPES = {"f32": jnp.float32, "f16": jnp.float16, "bf16": jnp.bfloat16}
TOLERANCES = {"f32": 2e-3, "f16": 5e-3, "bf16": 3e-2}
"""Of the largest element; f32 by tensor cores rounds what it multiplies to ten bits."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution of square images.  groups: of channels; dilation: of the filter; transposed: it makes images
    larger by its stride."""

    name: str
    batch: int
    height: int
    width: int
    channels: tuple[int, int]
    filter: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    groups: int = 1
    dilation: int = 1
    transposed: bool = False
    padding: str = "SAME"

    def apply(self, image: Any, weights: Any) -> Any:
        """The layer."""
        order = ("NHWC", "HWIO", "NHWC")
        if self.transposed:
            return lax.conv_transpose(
                image, weights, self.stride, self.padding, dimension_numbers=order
            )
        return lax.conv_general_dilated(
            image,
            weights,
            window_strides=self.stride,
            padding=self.padding,
            rhs_dilation=(self.dilation, self.dilation),
            dimension_numbers=order,
            feature_group_count=self.groups,
        )

    def draw(self, dtype: Any) -> tuple[Any, Any]:
        """Image and filter."""
        random = np.random.default_rng(0)
        given, made = self.channels
        image = random.normal(size=(self.batch, self.height, self.width, given))
        weights = random.normal(size=(*self.filter, given // self.groups, made))
        fan = math.prod(self.filter) * given // self.groups
        return jnp.asarray(image, dtype), jnp.asarray(weights / math.sqrt(fan), dtype)


LAYERS = (
    # CRNN's (benchmarks/workloads/crnn.py) from the second on.
    Layer("crnn 2", 64, 16, 50, (64, 128), (3, 3)),
    Layer("crnn 3", 64, 8, 25, (128, 256), (3, 3)),
    Layer("crnn 4", 64, 8, 25, (256, 256), (3, 3)),
    Layer("crnn 6", 64, 4, 26, (512, 512), (3, 3)),
    Layer("crnn 7", 64, 2, 27, (512, 512), (2, 2), padding="VALID"),
    # ResNet-50 (He et al., 2015), of each kind one.
    Layer("resnet stem", 64, 224, 224, (3, 64), (7, 7), (2, 2)),
    Layer("resnet 1x1", 64, 56, 56, (256, 64), (1, 1)),
    Layer("resnet 3x3", 64, 28, 28, (128, 128), (3, 3)),
    Layer("resnet 3x3 /2", 64, 28, 28, (256, 256), (3, 3), (2, 2)),
    Layer("resnet 1x1 /2", 64, 28, 28, (512, 1024), (1, 1), (2, 2)),
    Layer("depthwise", 64, 28, 28, (192, 192), (3, 3), groups=192),
    Layer("32 groups", 64, 28, 28, (256, 256), (3, 3), groups=32),
    Layer("dilated", 32, 32, 32, (256, 256), (3, 3), dilation=2),
    Layer("transposed", 32, 16, 16, (256, 128), (4, 4), (2, 2), transposed=True),
)


@dataclass(frozen=True, slots=True)
class Row:
    """GPU microseconds of a call: all kernels of it.  by: whose kernels the executor launched.  error: largest
    difference over largest element."""

    layer: str
    form: str
    dtype: str
    xla_us: float
    astitch_us: float
    by: str
    error: float

    def __str__(self) -> str:
        return (
            f"{self.layer:14} {self.form:7} {self.dtype:5} {self.xla_us:9.1f} {self.astitch_us:9.1f} "
            f"{self.xla_us / self.astitch_us:6.2f} {self.error:8.0e}  {self.by}"
        )


def make_forms(layer: Layer) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The layer and its gradients, each of (image, filter, gradient of the result)."""

    def forward(image: Any, weights: Any, _: Any) -> Any:
        return layer.apply(image, weights)

    def image_gradient(image: Any, weights: Any, given: Any) -> Any:
        return jax.vjp(lambda image: layer.apply(image, weights), image)[1](given)[0]

    def filter_gradient(image: Any, weights: Any, given: Any) -> Any:
        return jax.vjp(lambda weights: layer.apply(image, weights), weights)[1](given)[0]

    yield "forward", forward
    yield "image", image_gradient
    yield "filter", filter_gradient


def measure_layer(layer: Layer, dtype: str, rounds: int) -> Iterator[Row]:
    """Medians of rounds in which the sides take turns."""
    image, weights = layer.draw(DTYPES[dtype])
    result = jax.eval_shape(layer.apply, image, weights)
    given = jnp.asarray(np.random.default_rng(1).normal(size=result.shape), result.dtype)
    for form, function in make_forms(layer):
        jitted = astitch.jit(function, engine="executor")
        sides: dict[str, Callable[..., Any]] = {"xla": jax.jit(function), "astitch": jitted}
        results = {
            name: np.asarray(side(image, weights, given), np.float64)
            for name, side in sides.items()
        }
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, side in sides.items():

                def issue(calls: int, side: Callable[..., Any] = side) -> None:
                    import cupy

                    for _ in range(calls):
                        out = side(image, weights, given)
                    cupy.cuda.get_current_stream().synchronize()
                    jax.block_until_ready(out)

                issue(2)
                launches = record_launches(lambda: issue(CALLS))
                times[name].append(sum_launches(launches, CALLS).total_us)
        # The sides take turns, the last to be recorded is astitch.
        by_xla = any(launch.module for launch in launches)
        gap = np.abs(results["xla"] - results["astitch"]).max()
        yield Row(
            layer.name,
            form,
            dtype,
            statistics.median(times["xla"]),
            statistics.median(times["astitch"]),
            "XLA" if by_xla else "cuDNN",
            float(gap / np.abs(results["xla"]).max()),
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convolutions")
    parser.add_argument("names", nargs="*", help="layers whose name contains one of these; or all")
    parser.add_argument("--dtypes", nargs="+", choices=sorted(DTYPES), default=["f32", "bf16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the rows there")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    print(
        f"{'layer':14} {'form':7} {'dtype':5} {'XLA us':>9} {'astitch':>9} {'over':>6} {'error':>8}"
    )
    for layer in LAYERS:
        if not options.names or any(name in layer.name for name in options.names):
            for dtype in options.dtypes:
                for row in measure_layer(layer, dtype, options.rounds):
                    rows.append(row)
                    wrong = row.error > TOLERANCES[dtype]
                    print(row, "WRONG" if wrong else "", flush=True)
    for dtype in options.dtypes:
        ratios = [row.xla_us / row.astitch_us for row in rows if row.dtype == dtype]
        if ratios:
            print(
                f"{dtype}: geometric mean of XLA over astitch {statistics.geometric_mean(ratios):.2f}"
            )
    if options.json:
        device = jax.devices()[0].device_kind
        found = {"device": device, "jax": jax.__version__, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
