"""astitch.jit inside of JAX's transformations, and these inside of it: results, and how many kernels there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

import astitch
from astitch.api import transformation
from tests.ahead_of_time import devices, needs_hook
from tests.hook_evaluation import stitch_through_hook

pytestmark = needs_hook

Fn = Callable[..., Any]


@pytest.fixture(autouse=True)
def only_the_hook_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """astitch's own would put kernels for an H100 into what has marks."""
    monkeypatch.setattr(transformation, "transform", lambda data, compiling: None)


def layer(x: Any, gain: Any) -> Any:
    """[rows, 128] and [128] -> [rows, 128]: one kernel."""
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return jax.nn.softmax(scaled * gain)


def loss(x: Any, gain: Any) -> Any:
    return (layer(x, gain) ** 2).sum()


def nest(fn: Fn) -> Fn:
    return lambda x, gain: jax.jit(fn)(x, gain)


def differentiate(fn: Fn) -> Fn:
    return jax.grad(lambda x, gain: (fn(x, gain) ** 2).sum(), argnums=(0, 1))


def vectorise(fn: Fn) -> Fn:
    return lambda x, gain: jax.vmap(fn, (0, None))(x.reshape(4, -1, x.shape[-1]), gain)


def push_forward(fn: Fn) -> Fn:
    return lambda x, gain: jax.jvp(lambda y: fn(y, gain), (x,), (x,))


def compute_again(fn: Fn) -> Fn:
    return differentiate(jax.checkpoint(fn))


def scan(fn: Fn) -> Fn:
    return lambda x, gain: lax.scan(lambda h, _: (fn(h, gain), None), x, None, length=3)[0]


def choose(fn: Fn) -> Fn:
    return lambda x, gain: lax.cond(x[0, 0] > 0, lambda: fn(x, gain), lambda: x)


def spread(fn: Fn) -> Fn:
    """Over a mesh of one device, that of the argument."""
    rows = PartitionSpec("rows")

    def spread_fn(x: Any, gain: Any) -> Any:
        here = isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
        place = jax.devices("cpu")[0] if here else devices()[0]
        mesh = Mesh(np.array([place]), ("rows",))
        specs = {"in_specs": (rows, PartitionSpec()), "out_specs": rows}
        return jax.shard_map(fn, mesh=mesh, check_vma=False, **specs)(x, gain)

    return spread_fn


MATRIX: dict[str, tuple[Fn, tuple[int, int, int]]] = {
    "jit": (nest, (1, 1, 1)),
    "vmap": (vectorise, (1, 1, 1)),
    "jvp": (push_forward, (1, 1, 1)),
    "scan": (scan, (1, 1, 1)),
    "shard_map": (spread, (1, 1, 1)),
    "cond": (choose, (1, 2, 2)),  # the predicate, which is outside of the function, has a kernel
    "grad": (
        differentiate,
        (3, 1, 1),
    ),  # the loss is outside, between what is kept and what it is read by
    "checkpoint": (compute_again, (2, 1, 1)),  # likewise; nothing is kept
}
"""Transformations of a function that has one kernel alone: kernels where the function is marked, where what is
transformed is marked, and where all is stitched."""


def draw() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    return random.normal(size=(64, 128)).astype("float32"), random.normal(size=128).astype(
        "float32"
    )


@pytest.mark.parametrize("side", ["around", "within"])
@pytest.mark.parametrize("name", MATRIX)
def test_transformations(name: str, side: str) -> None:
    transform, (around, within, whole) = MATRIX[name]
    plain = transform(layer)
    marked = transform(astitch.jit(layer)) if side == "around" else astitch.jit(plain)
    x, gain = draw()
    hooked = stitch_through_hook(marked, x, gain, only_marked=True)
    want = jax.tree.leaves(plain(jnp.asarray(x), jnp.asarray(gain)))
    for got, wanted in zip(hooked.run((x, gain)), want, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)
    everything = stitch_through_hook(plain, x, gain)
    assert hooked.kernels == (around if side == "around" else within)
    assert everything.kernels == whole
