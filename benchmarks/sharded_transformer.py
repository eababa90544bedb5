"""A decoder-only Transformer's training step over the devices of one mesh: data-, tensor- and FSDP-sharded.

Takes a Size and a sharding, hands on the step, its state and its batch.  Products compute in a type of their own; state
and Adam are f32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

SHARDINGS = ("data", "fsdp", "tensor")

HEAD_WIDTH = 64


@dataclass(frozen=True, slots=True)
class Size:
    """batch: sequences that each device computes; with tensor sharding all devices compute the same ones."""

    layers: int
    width: int
    vocabulary: int
    batch: int
    length: int


SIZES: Mapping[str, Size] = {
    "tiny": Size(2, 128, 256, 2, 64),
    "full": Size(4, 1024, 16384, 16, 512),
}

Tree = Any
"""A tree of arrays, shardings or shapes."""


def make_weights(size: Size, key: int = 0) -> Tree:
    random = np.random.default_rng(key)

    def draw(*shape: int) -> np.ndarray[Any, Any]:
        return (random.standard_normal(shape) * shape[0] ** -0.5).astype(np.float32)

    def layer() -> dict[str, Any]:
        width = size.width
        products = {name: draw(width, width) for name in ("q", "k", "v", "o")}
        products |= {"up": draw(width, 4 * width), "down": draw(4 * width, width)}
        gains = {name: np.ones(width, np.float32) for name in ("gain", "gain2")}
        biases = {name: np.zeros(width, np.float32) for name in ("bias", "bias2", "down_bias")}
        return products | gains | biases | {"up_bias": np.zeros(4 * width, np.float32)}

    words = (random.standard_normal((size.vocabulary, size.width)) * 0.02).astype(np.float32)
    return {"words": words, "layers": [layer() for _ in range(size.layers)]}


def partition_weights(sharding: str, weights: Tree) -> Tree:
    """A PartitionSpec for each weight, over the axis d."""
    columns, rows = PartitionSpec(None, "d"), PartitionSpec("d")
    split = {
        "data": {},
        "fsdp": dict.fromkeys(("words", "q", "k", "v", "o", "up", "down"), rows),
        "tensor": dict.fromkeys(("q", "k", "v", "up"), columns)
        | dict.fromkeys(("words", "o", "down", "up_bias"), rows),
    }[sharding]

    def choose(path: Any, _: Any) -> Any:
        return split.get(path[-1].key, PartitionSpec())

    return jax.tree_util.tree_map_with_path(choose, weights)


def norm(x: Any, gain: Any, bias: Any) -> Any:
    x = x.astype(jnp.float32)
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * gain + bias


def loss(weights: Tree, words: Any, dtype: Any, place: Callable[[Any], Any]) -> Any:
    """The mean cross entropy of each next word.  words: i32[batch, length + 1].  place: says how values are sharded."""
    given, wanted = words[:, :-1], words[:, 1:]
    x = place(weights["words"][given].astype(dtype))
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    for raw in weights["layers"]:
        w = {name: a.astype(dtype) if a.ndim == 2 else a for name, a in raw.items()}
        y = norm(x, w["gain"], w["bias"]).astype(dtype)
        heads = (*x.shape[:2], x.shape[2] // HEAD_WIDTH, HEAD_WIDTH)
        q, k, v = ((y @ w[name]).reshape(heads) for name in ("q", "k", "v"))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * HEAD_WIDTH**-0.5
        weight = jax.nn.softmax(jnp.where(mask, scores, -1e9)).astype(dtype)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weight, v).reshape(x.shape)
        x = place(x + mixed @ w["o"])
        y = norm(x, w["gain2"], w["bias2"]).astype(dtype)
        inner = jax.nn.gelu(y @ w["up"] + w["up_bias"].astype(dtype))
        x = place(x + (inner @ w["down"] + w["down_bias"].astype(dtype)))
    logits = (x @ weights["words"].astype(dtype).T).astype(jnp.float32)
    right = jnp.take_along_axis(logits, wanted[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - right).mean()


def step(
    state: tuple[Tree, Tree, Tree, Any], words: Any, dtype: Any, place: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """One step of Adam.  state: weights, both moments, number of steps.  place: see loss."""
    weights, first, second, number = state
    value, gradients = jax.value_and_grad(loss)(weights, words, dtype, place)
    number = number + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, gradients)
    scales = 1 / (1 - 0.9**number), 1 / (1 - 0.99**number)

    def update(w: Any, m: Any, v: Any) -> Any:
        return w - 3e-4 * (m * scales[0]) / (jnp.sqrt(v * scales[1]) + 1e-8)

    return (jax.tree.map(update, weights, first, second), first, second, number), value


@dataclass(frozen=True, slots=True)
class Training:
    """fn: of state and words.  shardings: of the state.  place: of the words."""

    size: Size
    fn: Any
    shardings: Tree
    place: NamedSharding
    rows: int

    @property
    def results(self) -> Tree:
        """Shardings of the new state and of the loss."""
        return self.shardings, NamedSharding(self.place.mesh, PartitionSpec())

    def jit(self) -> Any:
        return jax.jit(self.fn, donate_argnums=0, out_shardings=self.results)

    def make_state(self) -> Tree:
        """On the host."""
        weights = make_weights(self.size)
        zeros = jax.tree.map(np.zeros_like, weights)
        return weights, zeros, jax.tree.map(np.zeros_like, weights), np.float32(0)

    def make_words(self) -> Any:
        """On the host: sequences in which the next word often follows from the last one."""
        random = np.random.default_rng(1)
        words = random.integers(0, self.size.vocabulary, (self.rows, self.size.length + 1))
        for place in range(1, words.shape[1]):
            follows = random.random(self.rows) < 0.7
            words[follows, place] = (words[follows, place - 1] * 5 + 3) % self.size.vocabulary
        return words.astype(np.int32)

    def shape(self) -> tuple[Tree, Any]:
        """The arguments as jax.ShapeDtypeStruct."""
        make: Any = jax.ShapeDtypeStruct
        weights = jax.tree.map(lambda a: make(a.shape, a.dtype), make_weights(self.size))
        shapes = (weights, weights, weights, make((), np.float32))
        state = jax.tree.map(
            lambda a, s: make(a.shape, a.dtype, sharding=s), shapes, self.shardings
        )
        return state, make((self.rows, self.size.length + 1), np.int32, sharding=self.place)


def make_training(devices: Sequence[Any], sharding: str, size: Size, dtype: str) -> Training:
    """sharding: of SHARDINGS.  dtype: of products, as NumPy names it."""
    mesh = Mesh(np.array(devices), ("d",))

    def place(spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(mesh, spec)

    specs = partition_weights(sharding, jax.eval_shape(lambda: make_weights(size)))
    weights = jax.tree.map(place, specs, is_leaf=lambda s: isinstance(s, PartitionSpec))
    replicated = place(PartitionSpec())
    split = sharding != "tensor"

    rows = place(PartitionSpec("d")) if split else replicated

    def fn(state: Any, words: Any) -> Any:
        def place_rows(x: Any) -> Any:
            return jax.lax.with_sharding_constraint(x, rows)

        return step(state, words, jnp.dtype(dtype), place_rows)

    fn.__name__ = f"train_{sharding}"
    return Training(
        size,
        fn,
        (weights, weights, weights, replicated),
        rows,
        size.batch * (len(devices) if split else 1),
    )
