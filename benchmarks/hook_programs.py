"""Programs of other kinds than the five workloads, for benchmarks.hook.

Each is a Program: a function, its arguments as shapes, and which of those are donated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass(frozen=True, slots=True)
class Program:
    """arguments: trees of jax.ShapeDtypeStruct.  donated: numbers of arguments."""

    fn: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: tuple[int, ...] = ()


def shaped(shape: tuple[int, ...], dtype: Any = jnp.float32) -> Any:
    make: Any = jax.ShapeDtypeStruct
    return make(shape, dtype)


# ---- a language model in bf16, layers in a scan, checkpointed, Adam, donated -----------------------------------------


def normalise(x: Any, gain: Any, bias: Any) -> Any:
    wide = x.astype(jnp.float32)
    mean, variance = wide.mean(-1, keepdims=True), wide.var(-1, keepdims=True)
    return ((wide - mean) * lax.rsqrt(variance + 1e-5) * gain + bias).astype(x.dtype)


def gpt_layer(heads: int, x: Any, w: Mapping[str, Any]) -> Any:
    batch, length, width = x.shape
    h = normalise(x, w["gain1"], w["bias1"])
    qkv = (h @ w["qkv"].astype(x.dtype)).reshape(batch, length, 3, heads, width // heads)
    q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * (width // heads) ** -0.5
    mask = jnp.tril(jnp.ones((length, length), bool))
    shares = jax.nn.softmax(jnp.where(mask, scores, -1e9)).astype(x.dtype)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(batch, length, width)
    x = x + mixed @ w["out"].astype(x.dtype)
    h = normalise(x, w["gain2"], w["bias2"])
    return x + jax.nn.gelu(h @ w["up"].astype(x.dtype)) @ w["down"].astype(x.dtype)


def gpt_loss(heads: int, p: Any, words: Any) -> Any:
    x = p["embedding"].astype(jnp.bfloat16)[words[:, :-1]]
    layer = jax.checkpoint(functools.partial(gpt_layer, heads))
    x, _ = lax.scan(lambda x, w: (layer(x, w), None), x, p["layers"])
    x = normalise(x, p["gain"], p["bias"])
    logits = (x @ p["embedding"].astype(x.dtype).T).astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, words[:, 1:, None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - chosen).mean()


def adam(state: Any, gradients: Any) -> Any:
    p, m, v, count = state
    count = count + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, gradients)
    v = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, v, gradients)
    time = count.astype(jnp.float32)
    a, b = 1 - 0.9**time, 1 - 0.95**time
    p = jax.tree.map(lambda p, m, v: p - 3e-4 * (m / a / (jnp.sqrt(v / b) + 1e-8)), p, m, v)
    return p, m, v, count


def gpt_step(heads: int, state: Any, words: Any) -> Any:
    loss, gradients = jax.value_and_grad(lambda p: gpt_loss(heads, p, words))(state[0])
    return adam(state, gradients), loss


def gpt(tiny: bool) -> Program:
    layers, width, heads, words, batch, length = (
        (2, 32, 2, 64, 2, 16) if tiny else (4, 768, 12, 50304, 8, 512)
    )
    layer = {
        name: shaped((layers, *shape))
        for name, shape in {
            "gain1": (width,),
            "bias1": (width,),
            "qkv": (width, 3 * width),
            "out": (width, width),
            "gain2": (width,),
            "bias2": (width,),
            "up": (width, 4 * width),
            "down": (4 * width, width),
        }.items()
    }
    p = {
        "embedding": shaped((words, width)),
        "layers": layer,
        "gain": shaped((width,)),
        "bias": shaped((width,)),
    }
    state = (p, p, p, shaped((), jnp.int32))
    given = shaped((batch, length + 1), jnp.int32)
    return Program(functools.partial(gpt_step, heads), (state, given), (0,))


# ---- convolutions ----------------------------------------------------------------------------------------------------


def conv_net(form: str, weights: Any, x: Any) -> Any:
    """Two residual blocks with batch norms, pooled."""
    channel = form.index("C")
    rest = tuple(a for a in range(4) if a != channel)
    shape = tuple(-1 if a == channel else 1 for a in range(4))

    def convolve(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=(form, "HWIO", form)
        )

    def norm(x: Any, gain: Any, bias: Any) -> Any:
        wide = x.astype(jnp.float32)
        mean, variance = wide.mean(rest, keepdims=True), wide.var(rest, keepdims=True)
        y = (wide - mean) * lax.rsqrt(variance + 1e-5)
        return (y * gain.reshape(shape) + bias.reshape(shape)).astype(x.dtype)

    for w1, w2, gain, bias in weights:
        y = jax.nn.relu(norm(convolve(x, w1), gain, bias))
        x = jax.nn.relu(x + norm(convolve(y, w2), gain, bias))
    return x.astype(jnp.float32).mean(tuple(a for a in range(1, 4) if a != channel))


def conv_step(form: str, weights: Any, x: Any) -> Any:
    return jax.grad(lambda w: jnp.square(conv_net(form, w, x)).mean())(weights)


def convolutions(form: str, dtype: Any, trains: bool, tiny: bool) -> Program:
    batch, side, channels = (2, 8, 8) if tiny else (32, 32, 64)
    kernel = shaped((3, 3, channels, channels), dtype)
    weights = [(kernel, kernel, shaped((channels,)), shaped((channels,)))] * 2
    sizes = {"N": batch, "H": side, "W": side, "C": channels}
    x = shaped(tuple(sizes[a] for a in form), dtype)
    return Program(functools.partial(conv_step if trains else conv_net, form), (weights, x))


# ---- loops -----------------------------------------------------------------------------------------------------------


def gru(w: Mapping[str, Any], xs: Any) -> Any:
    """xs: [time, batch, width]."""
    given = xs @ w["given"] + w["bias"]

    def turn(h: Any, given: Any) -> Any:
        width = h.shape[-1]
        gates = jax.nn.sigmoid(given[:, : 2 * width] + h @ w["gates"])
        reset, update = gates[:, :width], gates[:, width:]
        new = jnp.tanh(given[:, 2 * width :] + (reset * h) @ w["new"])
        h = update * h + (1 - update) * new
        return h, h

    start = jnp.zeros((xs.shape[1], w["new"].shape[0]), xs.dtype)
    return lax.scan(turn, start, given)[1]


def gru_step(w: Any, xs: Any) -> Any:
    return jax.grad(lambda w: jnp.square(gru(w, xs)).mean())(w)


def recurrent(trains: bool, tiny: bool) -> Program:
    time, batch, width = (5, 4, 16) if tiny else (64, 64, 256)
    w = {
        "given": shaped((width, 3 * width)),
        "bias": shaped((3 * width,)),
        "gates": shaped((width, 2 * width)),
        "new": shaped((width, width)),
    }
    return Program(gru_step if trains else gru, (w, shaped((time, batch, width))))


def decode(turns: int, w: Mapping[str, Any], caches: Any, words: Any, start: Any) -> Any:
    """So many words, each by the one before; caches: keys and values [layer, batch, head, time, size]."""

    def turn(i: Any, state: Any) -> Any:
        (keys, values), words, at = state
        x = w["embedding"][words]
        batch, width = x.shape
        layers, _, heads, time, size = keys.shape
        for n in range(layers):
            h = normalise(x, w["gain"][n], w["bias"][n])
            q, k, v = jnp.split((h @ w["qkv"][n]).reshape(batch, 3 * heads, 1, size), 3, axis=1)
            keys = lax.dynamic_update_slice(keys, k[None], (n, 0, 0, at, 0))
            values = lax.dynamic_update_slice(values, v[None], (n, 0, 0, at, 0))
            scores = jnp.einsum("bhqd,bhkd->bhqk", q, keys[n]) * size**-0.5
            scores = jnp.where(jnp.arange(time) <= at, scores.astype(jnp.float32), -jnp.inf)
            shares = jax.nn.softmax(scores).astype(x.dtype)
            mixed = jnp.einsum("bhqk,bhkd->bhqd", shares, values[n]).reshape(batch, width)
            x = x + mixed @ w["out"][n]
        logits = x @ w["embedding"].T
        return (keys, values), jnp.argmax(logits, -1).astype(words.dtype), at + 1

    return lax.fori_loop(0, turns, turn, (caches, words, start))


def decoding(tiny: bool) -> Program:
    layers, batch, heads, time, size, vocabulary = (
        (2, 2, 2, 16, 8, 32) if tiny else (4, 8, 16, 1024, 64, 32000)
    )
    dtype, width = jnp.bfloat16, heads * size
    w = {
        "embedding": shaped((vocabulary, width), dtype),
        "gain": shaped((layers, width)),
        "bias": shaped((layers, width)),
        "qkv": shaped((layers, width, 3 * width), dtype),
        "out": shaped((layers, width, width), dtype),
    }
    cache = shaped((layers, batch, heads, time, size), dtype)
    words = shaped((batch,), jnp.int32)
    given = (w, (cache, cache), words, shaped((), jnp.int32))
    return Program(functools.partial(decode, 4 if tiny else 32), given, (1,))


# ---- others ----------------------------------------------------------------------------------------------------------


def embed_step(table: Any, words: Any) -> Any:
    """The gradient of an embedding is a scatter."""
    return jax.grad(lambda t: jnp.square(jax.nn.softmax(t[words])).mean())(table)


def embedding(tiny: bool) -> Program:
    words, width, batch = (50, 8, 16) if tiny else (30000, 512, 4096)
    return Program(embed_step, (shaped((words, width)), shaped((batch,), jnp.int32)))


def sample(logits: Any, key: Any) -> Any:
    """Nucleus sampling: top_k, cumsum, noise."""
    best, at = lax.top_k(logits, 40)
    shares = jax.nn.softmax(best)
    kept = jnp.where(jnp.cumsum(shares, -1) - shares < 0.9, best, -jnp.inf)
    noise = -jnp.log(-jnp.log(key + 1e-9))
    return jnp.take_along_axis(at, jnp.argmax(kept + noise, -1, keepdims=True), -1)


def sampling(tiny: bool) -> Program:
    rows, words = (4, 100) if tiny else (64, 32000)
    return Program(sample, (shaped((rows, words)), shaped((rows, 40))))


def running(x: Any) -> Any:
    return jnp.cumsum(jnp.tanh(x), axis=-1) / (1 + jnp.abs(x).sum(-1, keepdims=True))


def with_constant(tiny: bool) -> Program:
    """A table of 2 MB in the program."""
    rows, width = (16, 600) if tiny else (1024, 512)
    table = np.random.default_rng(3).standard_normal((rows, width)).astype(np.float32)

    def fn(x: Any) -> Any:
        return jax.nn.softmax(x + table) @ jnp.asarray(table).T

    return Program(fn, (shaped((rows, width)),))


def mlp_step(state: Any, x: Any) -> Any:
    def loss(p: Any) -> Any:
        h = x
        for w, gain, bias in p:
            h = normalise(jax.nn.gelu(h @ w) + h, gain, bias)
        return jnp.square(h).mean()

    value, gradients = jax.value_and_grad(loss)(state[0])
    return adam(state, gradients), value


def donated_adam(tiny: bool) -> Program:
    width, rows = (32, 8) if tiny else (1024, 2048)
    p = [(shaped((width, width)), shaped((width,)), shaped((width,)))] * 4
    return Program(mlp_step, ((p, p, p, shaped((), jnp.int32)), shaped((rows, width))), (0,))


def rope_attention(x: Any, w: Any) -> Any:
    """Grouped heads, rotary positions, RMS norm, SwiGLU."""
    batch, length, width = x.shape
    size = 64 if width > 64 else 8
    h = x * lax.rsqrt(jnp.square(x.astype(jnp.float32)).mean(-1, keepdims=True) + 1e-6)
    h = (h * w["gain"]).astype(x.dtype)
    q = (h @ w["q"]).reshape(batch, length, -1, size)
    k = (h @ w["k"]).reshape(batch, length, -1, size)
    v = (h @ w["v"]).reshape(batch, length, -1, size)
    turns = jnp.arange(length)[:, None] / 10000 ** (jnp.arange(size // 2) * 2 / size)
    cos, sin = jnp.cos(turns)[:, None], jnp.sin(turns)[:, None]

    def rotate(y: Any) -> Any:
        a, b = jnp.split(y.astype(jnp.float32), 2, axis=-1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(y.dtype)

    groups = q.shape[2] // k.shape[2]
    q = rotate(q).reshape(batch, length, -1, groups, size)
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", q, rotate(k)).astype(jnp.float32) * size**-0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    shares = jax.nn.softmax(scores).astype(x.dtype)
    mixed = jnp.einsum("bhgqk,bkhd->bqhgd", shares, v).reshape(batch, length, -1)
    x = x + mixed @ w["out"]
    return x + (jax.nn.silu(x @ w["gate"]) * (x @ w["up"])) @ w["down"]


def llama(tiny: bool) -> Program:
    batch, length, width = (2, 8, 32) if tiny else (4, 1024, 1024)
    d = jnp.bfloat16
    w = {
        "gain": shaped((width,)),
        "q": shaped((width, width), d),
        "k": shaped((width, width // 2), d),
        "v": shaped((width, width // 2), d),
        "out": shaped((width, width), d),
        "gate": shaped((width, 2 * width), d),
        "up": shaped((width, 2 * width), d),
        "down": shaped((2 * width, width), d),
    }
    return Program(rope_attention, (shaped((batch, length, width), d), w))


PROGRAMS: Mapping[str, Callable[[bool], Program]] = {
    "gpt/train": gpt,
    "llama/infer": llama,
    **{
        f"conv-{form}-{name}/{mode}": functools.partial(convolutions, form, dtype, mode == "train")
        for form in ("NCHW", "NHWC")
        for name, dtype in (("f32", jnp.float32), ("bf16", jnp.bfloat16))
        for mode in ("infer", "train")
    },
    "gru/infer": functools.partial(recurrent, False),
    "gru/train": functools.partial(recurrent, True),
    "decode": decoding,
    "embedding/train": embedding,
    "sample": sampling,
    "cumsum": lambda tiny: Program(running, (shaped((4, 50) if tiny else (256, 8192)),)),
    "constant": with_constant,
    "adam": donated_adam,
}
"""By name; each takes whether it is to be tiny."""
