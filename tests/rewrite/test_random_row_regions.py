"""Random networks on rows: whatever becomes a kernel computes what the graph says.

`ASTITCH_ROW_PROGRAMS=500` draws so many.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from astitch.graph.reference import run_graph
from astitch.rewrite import row_regions
from tests.rewrite.test_row_regions import regions, rewrite, run_tiles

COUNT = int(os.environ.get("ASTITCH_ROW_PROGRAMS", "24"))
ROWS = 4096
WIDTHS = (1, 3, 8, 16, 20, 32, 48)
DTYPES = (np.float32, ml_dtypes.bfloat16, np.float16)

UNARY = (
    jnp.tanh,
    jax.nn.relu,
    jax.nn.silu,
    jnp.negative,
    jnp.abs,
    lambda x: jnp.exp(-x * x),
    lambda x: jnp.log1p(jnp.abs(x)),
    lambda x: jnp.clip(x, -1, 0.5),
    lambda x: jnp.where(x > 0.1, x, 0.3 * x),
    lambda x: jnp.sqrt(1 + x * x),
)
BINARY = (jnp.add, jnp.subtract, jnp.multiply, jnp.maximum, lambda x, y: x / (2 + jnp.abs(y)))


class Draw:
    """A network that is drawn while it is traced: the same each time."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.seed = seed
        self.dtype = DTYPES[rng.integers(len(DTYPES))]
        self.rows = ROWS + int(rng.choice([0, 0, 7, 64]))
        self.leading = (2, self.rows // 2) if self.rows % 2 == 0 and rng.random() < 0.5 else None
        self.width = int(rng.choice(WIDTHS[2:]))
        self.steps = int(rng.integers(3, 9))
        self.gradient = rng.random() < 0.4
        self.values: list[Any] = []

    def arguments(self) -> tuple[Any, Any]:
        rng = np.random.default_rng(self.seed + 1)
        weights = [rng.standard_normal((48, 48)) / 7 for _ in range(self.steps)]
        shape = (*(self.leading or (self.rows,)), self.width)
        cast = [w.astype(self.dtype) for w in weights]
        return cast, rng.standard_normal(shape).astype(self.dtype)

    def network(self, weights: Any, x: Any) -> Any:
        rng = np.random.default_rng(self.seed + 2)
        values = [x]
        for w in weights:
            values.append(self._step(rng, values, w))
        self.values = values
        total = values[-1]
        return total.sum(-1) if rng.random() < 0.3 else total

    def read_outside(self) -> Any:
        """What lies between, read by ops that no region takes in: some as they are, some reshaped, some both."""
        rng = np.random.default_rng(self.seed + 3)
        found = []
        for value in self.values[1:]:
            if rng.random() < 0.3:
                found.append(jnp.cumsum(value, 0))
            if rng.random() < 0.3:
                found.append(jnp.sort(value.reshape(self.rows, -1), 0))
        return found

    def _step(self, rng: np.random.Generator, values: list[Any], w: Any) -> Any:
        x = values[-1] if rng.random() < 0.8 else values[rng.integers(len(values))]
        columns = x.shape[-1]
        match int(rng.integers(9)):
            case 0 | 1 | 2 | 3:
                out = int(rng.choice(WIDTHS))
                turned = rng.random() < 0.3
                matrix = w[:out, :columns].T if turned else w[:columns, :out]
                y = x @ matrix + (w[0, :out] if rng.random() < 0.7 else 0)
                return UNARY[rng.integers(len(UNARY))](y)
            case 4:
                return UNARY[rng.integers(len(UNARY))](x)
            case 5:
                like = [v for v in values if v.shape[-1] in (1, columns)]
                other = like[rng.integers(len(like))] if like else x
                return BINARY[rng.integers(len(BINARY))](x, other)
            case 6:
                reduce = (jnp.sum, jnp.max, jnp.min, jnp.mean)[rng.integers(4)]
                return x - reduce(x, -1, keepdims=True)
            case 7 if columns > 1:
                start = int(rng.integers(columns // 2 + 1))
                return x[..., start : start + max(1, columns // 2)]
            case _:
                other = values[rng.integers(len(values))]
                joined = jnp.concatenate([x, other], -1)
                return joined if joined.shape[-1] <= 48 else x
        return x

    def __call__(self, weights: Any, x: Any) -> Any:
        """The results, and the arguments, which JAX would drop where nothing reads them."""
        return self._compute(weights, x), weights, x

    def _compute(self, weights: Any, x: Any) -> Any:
        if not self.gradient:
            return self.network(weights, x), self.read_outside()

        def loss(weights: Any) -> Any:
            return jnp.mean(self.network(weights, x).astype(jnp.float32) ** 2)

        return jax.value_and_grad(loss)(weights)


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_random_network(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_regions, "GAIN", np.inf)
    draw = Draw(seed)
    arguments = draw.arguments()
    graph, changed = rewrite(draw, *arguments)
    if not regions(changed):
        pytest.skip("no two products")
    leaves = jax.tree.leaves(arguments)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda array: array.astype(np.float64), arguments)
        exact = [np.asarray(x) for x in jax.tree.leaves(jax.jit(draw)(*wide))]
    plain = run_graph(graph, leaves)
    for found in (run_graph(changed, leaves), run_tiles(changed, leaves)):
        for want, one, other in zip(exact, plain, found, strict=True):
            assert one.shape == other.shape and one.dtype == other.dtype
            far, distance = (np.linalg.norm(np.float64(v) - want) for v in (one, other))
            assert distance <= 2 * far + 1e-2 * np.linalg.norm(want) + 1e-6
