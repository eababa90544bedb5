"""What a program of today is to the benchmark: a function as a user jits it, and how to make its arguments."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Precision:
    """weights: dtype of parameters.  compute: of products and activations.  sums: of losses and softmaxes."""

    weights: Any = jnp.float32
    compute: Any = jnp.float32
    sums: Any = jnp.float32


F32 = Precision()
MIXED = Precision(compute=jnp.bfloat16)
"""Weights in f32, computation in bf16."""

BF16 = Precision(weights=jnp.bfloat16, compute=jnp.bfloat16)
EXACT = Precision(jnp.float64, jnp.float64, jnp.float64)
"""The reference that errors are measured against; wants jax_enable_x64."""


@dataclass(frozen=True, slots=True)
class Program:
    """fn(*arguments) as a user jits it.

    make: the arguments, a tuple of trees of arrays; jax.eval_shape of it gives their shapes.  carried: so many leading
    arguments are donated, and the first results are their next values.
    exact: the program in EXACT; None where other random numbers would be drawn.  about: the sizes, for the table.
    xla_options: what XLA alone is compiled with.
    """

    fn: Callable[..., Any]
    make: Callable[[], tuple[Any, ...]]
    carried: int = 0
    exact: Callable[[], Program] | None = None
    about: dict[str, Any] = field(default_factory=dict)
    xla_options: dict[str, Any] = field(default_factory=dict)

    def described(
        self, about: dict[str, Any], exact: Callable[[], Program] | None = None
    ) -> Program:
        return replace(self, about=about, exact=exact)

    @property
    def donated(self) -> tuple[int, ...]:
        return tuple(range(self.carried))


@dataclass(frozen=True, slots=True)
class Draw:
    """Sizes by chance.  Seed 0 takes the first of each choice: the sizes that are usual.  small: for tests."""

    seed: int
    small: bool
    family: str

    def pick(self, name: str, usual: Sequence[T], small: T) -> T:
        """One of the usual ones, the same for the same seed, family and name."""
        if self.small:
            return small
        if not self.seed:
            return usual[0]
        words = [self.seed, zlib.crc32(self.family.encode()), zlib.crc32(name.encode())]
        return usual[int(np.random.default_rng(words).integers(len(usual)))]
