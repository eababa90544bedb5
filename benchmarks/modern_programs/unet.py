"""A diffusion UNet in Flax NNX: one denoising step in bf16, group norms, SiLU, attention at the coarse levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from benchmarks.modern_programs.program import BF16, EXACT, Draw, Precision, Program


@dataclass(frozen=True)
class Config:
    """widths: channels of each level.  attends: levels with attention.  side: of the latents."""

    widths: Sequence[int]
    attends: Sequence[int]
    blocks: int
    groups: int
    side: int
    batch: int
    precision: Precision

    @property
    def types(self) -> dict[str, Any]:
        return {"dtype": self.precision.compute, "param_dtype": self.precision.weights}


class ResBlock(nnx.Module):
    def __init__(self, c: Config, given: int, width: int, time: int, rngs: nnx.Rngs) -> None:
        self.norm1 = nnx.GroupNorm(given, num_groups=c.groups, **c.types, rngs=rngs)
        self.conv1 = nnx.Conv(given, width, (3, 3), **c.types, rngs=rngs)
        self.time = nnx.Linear(time, width, **c.types, rngs=rngs)
        self.norm2 = nnx.GroupNorm(width, num_groups=c.groups, **c.types, rngs=rngs)
        self.conv2 = nnx.Conv(width, width, (3, 3), **c.types, rngs=rngs)
        differs = given != width
        self.skip = nnx.Conv(given, width, (1, 1), **c.types, rngs=rngs) if differs else None

    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        h = self.conv1(nnx.silu(self.norm1(x)))
        h = h + self.time(nnx.silu(time))[:, None, None]
        h = self.conv2(nnx.silu(self.norm2(h)))
        return h + (x if self.skip is None else self.skip(x))


class Attention(nnx.Module):
    def __init__(self, c: Config, width: int, rngs: nnx.Rngs) -> None:
        self.heads = max(1, width // 64)
        self.norm = nnx.GroupNorm(width, num_groups=c.groups, **c.types, rngs=rngs)
        self.qkv = nnx.Linear(width, 3 * width, **c.types, rngs=rngs)
        self.out = nnx.Linear(width, width, **c.types, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        batch, height, across, width = x.shape
        h = self.qkv(self.norm(x)).reshape(batch, height * across, 3, self.heads, -1)
        mixed = jax.nn.dot_product_attention(h[:, :, 0], h[:, :, 1], h[:, :, 2])
        return x + self.out(mixed.reshape(batch, height, across, width))


class UNet(nnx.Module):
    def __init__(self, c: Config, rngs: nnx.Rngs) -> None:
        first = c.widths[0]
        time = 4 * first
        self.first = first
        self.precision = c.precision
        self.time1 = nnx.Linear(first, time, **c.types, rngs=rngs)
        self.time2 = nnx.Linear(time, time, **c.types, rngs=rngs)
        self.enter = nnx.Conv(4, first, (3, 3), **c.types, rngs=rngs)
        down, up, shrink, grow = [], [], [], []
        widths, width = [first], first
        for level, wanted in enumerate(c.widths):
            for _ in range(c.blocks):
                down.append(self.make_part(c, level, width, wanted, time, rngs))
                width = wanted
                widths.append(width)
            if level < len(c.widths) - 1:
                shrink.append(nnx.Conv(width, width, (3, 3), strides=2, **c.types, rngs=rngs))
                widths.append(width)
        self.middle1 = ResBlock(c, width, width, time, rngs)
        self.attention = Attention(c, width, rngs)
        self.middle2 = ResBlock(c, width, width, time, rngs)
        for level, wanted in reversed(list(enumerate(c.widths))):
            for _ in range(c.blocks + 1):
                up.append(self.make_part(c, level, width + widths.pop(), wanted, time, rngs))
                width = wanted
            if level:
                grow.append(nnx.Conv(width, width, (3, 3), **c.types, rngs=rngs))
        self.down, self.up = nnx.List(down), nnx.List(up)
        self.shrink, self.grow = nnx.List(shrink), nnx.List(grow)
        self.norm = nnx.GroupNorm(width, num_groups=c.groups, **c.types, rngs=rngs)
        self.leave = nnx.Conv(width, 4, (3, 3), **c.types, rngs=rngs)
        self.levels, self.blocks = len(c.widths), c.blocks

    @staticmethod
    def make_part(
        c: Config, level: int, given: int, width: int, time: int, rngs: nnx.Rngs
    ) -> nnx.List:
        attention = Attention(c, width, rngs) if level in c.attends else None
        return nnx.List([ResBlock(c, given, width, time, rngs), attention])

    def embed(self, steps: jax.Array) -> jax.Array:
        rates = jnp.exp(-jnp.log(10000.0) * jnp.arange(self.first // 2) / (self.first // 2))
        angles = steps[:, None] * rates
        sines = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], -1)
        return self.time2(nnx.silu(self.time1(sines.astype(self.precision.compute))))

    def __call__(self, x: jax.Array, steps: jax.Array) -> jax.Array:
        time = self.embed(steps)
        x = self.enter(x)
        kept = [x]
        down = iter(self.down)
        for level in range(self.levels):
            for _ in range(self.blocks):
                x = self.run_part(next(down), x, time)
                kept.append(x)
            if level < self.levels - 1:
                x = self.shrink[level](x)
                kept.append(x)
        x = self.middle2(self.attention(self.middle1(x, time)), time)
        up = iter(self.up)
        for number in range(self.levels):
            for _ in range(self.blocks + 1):
                x = self.run_part(next(up), jnp.concatenate([x, kept.pop()], -1), time)
            if number < self.levels - 1:
                shape = (x.shape[0], 2 * x.shape[1], 2 * x.shape[2], x.shape[3])
                x = self.grow[number](jax.image.resize(x, shape, "nearest"))
        return self.leave(nnx.silu(self.norm(x)))

    @staticmethod
    def run_part(part: nnx.List, x: jax.Array, time: jax.Array) -> jax.Array:
        x = part[0](x, time)
        return x if part[1] is None else part[1](x)


def make(entry: str, draw: Draw, precision: Precision = BF16) -> Program:
    c = Config(
        widths=draw.pick("widths", ((192, 384, 768), (128, 256, 512, 512)), (16, 32)),
        attends=draw.pick("attends", ((1, 2),), (1,)),
        blocks=draw.pick("blocks", (2, 1), 1),
        groups=draw.pick("groups", (32, 16), 4),
        side=draw.pick("side", (32, 64), 8),
        batch=draw.pick("batch", (8, 4, 16), 2),
        precision=precision,
    )

    def build() -> UNet:
        return UNet(c, nnx.Rngs(0))

    graphdef, _ = nnx.split(nnx.eval_shape(build))

    def denoise(latents: jax.Array, state: Any, steps: jax.Array, noise: jax.Array) -> Any:
        """One ancestral step of DDPM."""
        model = nnx.merge(graphdef, state)
        guessed = model(latents, steps)
        shares = jnp.cos(steps.astype(c.precision.sums) / 1000 * jnp.pi / 2)[:, None, None, None]
        share = jnp.clip(shares**2, 1e-3, 0.999).astype(latents.dtype)
        clean = jnp.clip((latents - jnp.sqrt(1 - share) * guessed) / jnp.sqrt(share), -4, 4)
        return jnp.sqrt(share) * clean + jnp.sqrt(1 - share) * (0.9 * guessed + 0.1 * noise)

    def arguments() -> tuple[Any, ...]:
        shape, dtype = (c.batch, c.side, c.side, 4), c.precision.compute
        latents, noise = (jax.random.normal(jax.random.key(n), shape, dtype) for n in (1, 2))
        steps = jnp.linspace(900, 100, c.batch).astype(jnp.int32)
        return latents, nnx.state(build()), steps, noise

    about = {"widths": c.widths, "batch": c.batch, "side": c.side}
    program = Program(denoise, arguments)
    return program.described(about, lambda: make(entry, draw, EXACT))
