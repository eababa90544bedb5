"""Memory that XLA plans for a program, alone and with kernels: not more than 1.02 of it, donated or not.

Decision 34 lists programs that still need more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.scipy import linalg as scipy_linalg

from tests.ahead_of_time import compile_ahead, hooked, needs_hook
from tests.hook_evaluation import put
from tests.snapshots import stand_in_compiler

pytestmark = needs_hook

SHARE = 1.02


def find_planned(compiled: Any) -> int:
    """Bytes of arguments, results and temporaries; what is donated counts once."""
    stats = compiled.memory_analysis()
    whole = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    return int(whole - stats.alias_size_in_bytes)


def compare(fn: Callable[..., Any], donated: tuple[int, ...], *arguments: Any) -> tuple[int, int]:
    """Planned bytes of XLA alone, and with kernels."""
    given = put(arguments)
    alone = find_planned(compile_ahead(fn, *given, donate_argnums=donated))
    with stand_in_compiler(), hooked() as seen:
        stitched = find_planned(compile_ahead(fn, *given, donate_argnums=donated))
    assert any(stitching.kernels for stitching in seen.stitchings)
    return alone, stitched


def arrays(*shapes: tuple[int, ...], dtype: Any = jnp.float32) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]


def factored(weights: list[Any], rows: list[Any], columns: list[Any], gradients: list[Any]) -> Any:
    """Adafactor's rule: second moments by rows and columns, updates bounded by their own norm and the weights'."""
    new = []
    for w, r, c, g in zip(weights, rows, columns, gradients, strict=True):
        square = jnp.square(g) + 1e-30
        r, c = 0.8 * r + 0.2 * square.mean(1), 0.8 * c + 0.2 * square.mean(0)
        update = g * jax.lax.rsqrt(r / r.mean())[:, None] * jax.lax.rsqrt(c)[None, :]
        update = update / jnp.maximum(1, jnp.sqrt(jnp.square(update).mean()))
        new.append((w - 1e-3 * jnp.maximum(1e-3, jnp.sqrt(jnp.square(w).mean())) * update, r, c))
    return tuple(map(list, zip(*new, strict=True)))


def trusted(weights: list[Any], first: list[Any], second: list[Any], gradients: list[Any]) -> Any:
    """LAMB's rule: each step is as long as its weights are, behind a clip by the norm of all gradients."""
    norm = jnp.sqrt(sum(jnp.square(g).sum() for g in gradients))
    new = []
    for w, m, v, g in zip(weights, first, second, gradients, strict=True):
        g = g / jnp.maximum(norm, 1)
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        update = m / (jnp.sqrt(v) + 1e-6) + 0.01 * w
        length, own = jnp.linalg.norm(w), jnp.linalg.norm(update)
        new.append((w - 1e-3 * jnp.where(length > 0, length / own, 1) * update, m, v))
    return tuple(map(list, zip(*new, strict=True)))


SHAPES = [(512, 1024), (1024, 512), (768, 512), (512, 512), (4096, 512)]


@pytest.mark.parametrize("donates", [True, False])
def test_adafactor(donates: bool) -> None:
    given = arrays(*SHAPES), arrays(*((a,) for a, _ in SHAPES)), arrays(*((b,) for _, b in SHAPES))
    alone, stitched = compare(factored, (0, 1, 2) * donates, *given, arrays(*SHAPES))
    assert stitched <= SHARE * alone


@pytest.mark.parametrize("donates", [True, False])
@pytest.mark.parametrize("shapes", [SHAPES, [(1023, 517), (129, 2049), (5000,)]])
def test_lamb(shapes: list[tuple[int, ...]], donates: bool) -> None:
    given = [arrays(*shapes) for _ in range(4)]
    alone, stitched = compare(trusted, (0, 1, 2) * donates, *given)
    assert stitched <= SHARE * alone


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_attention_and_loss_in_training(dtype: Any) -> None:
    """Two layers of attention, a loss over words, and the step of the weights."""
    width, words, heads, batch, length = 256, 8192, 4, 4, 256

    def norm(x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        return (wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-5)).astype(dtype)

    def mix(x: jax.Array, w: jax.Array) -> jax.Array:
        q, k, v = (
            part.reshape(batch, length, heads, -1).swapaxes(1, 2)
            for part in jnp.split(norm(x) @ w, 3, axis=-1)
        )
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 8
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
        share = jax.nn.softmax(scores.astype(jnp.float32)).astype(dtype)
        mixed = jnp.einsum("bhqk,bhkd->bhqd", share, v)
        return x + mixed.swapaxes(1, 2).reshape(batch, length, width)

    def loss(weights: Any, table: jax.Array, inputs: jax.Array, labels: jax.Array) -> jax.Array:
        x = table.astype(dtype)[inputs]
        for w in weights:
            x = mix(x, w.astype(dtype))
        logits = (norm(x) @ table.astype(dtype).T).astype(jnp.float32)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)
        return -chosen.mean()

    def step(weights: Any, table: jax.Array, inputs: jax.Array, labels: jax.Array) -> Any:
        gradients = jax.grad(loss, (0, 1))(weights, table, inputs, labels)
        return jax.tree.map(lambda w, g: w - 0.1 * g, (weights, table), gradients)

    weights = arrays(*[(width, 3 * width)] * 2)
    numbers = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    (table,) = arrays((words, width))
    alone, stitched = compare(step, (0, 1), weights, table, numbers, numbers)
    assert stitched <= SHARE * alone


GATES = 1.04
"""Partial sums of a product in parts wait for the kernel that adds them up, beside other operands of that kernel."""


def descend(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A step against the gradient of a loss of weights and other arguments."""

    def step(weights: Any, *others: Any) -> Any:
        gradients = jax.grad(loss)(weights, *others)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    return step


def spelled_silu(x: jax.Array) -> jax.Array:
    return x / (1 + jnp.exp(-x))


@pytest.mark.parametrize(
    ("act", "dtype"),
    [(jax.nn.silu, jnp.float32), (jax.nn.gelu, jnp.bfloat16), (spelled_silu, jnp.bfloat16)],
)
def test_gates_in_training(act: Callable[..., Any], dtype: Any) -> None:
    """XLA multiplies both weights of a gate at once; no kernel stores the parts of an operand twice."""
    rows, width, layers = 4096, 512, 3

    def loss(weights: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        x = x.astype(dtype)
        for gate, up, down in weights:
            wide = x.astype(jnp.float32)
            scale = jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-5)
            inner = (wide * scale).astype(dtype)
            inner = act(inner @ gate.astype(dtype)) * (inner @ up.astype(dtype))
            x = x + inner @ down.astype(dtype)
        return jnp.square(x - y).astype(jnp.float32).mean()

    weights = [arrays((width, 4 * width), (width, 4 * width), (4 * width, width))] * layers
    alone, stitched = compare(descend(loss), (0,), weights, *arrays((rows, width), (rows, width)))
    assert stitched <= GATES * alone


@pytest.mark.parametrize("act", [jax.nn.relu, jnp.tanh])
def test_dropout_in_training(act: Callable[..., Any]) -> None:
    rows, width = 8192, 1024

    def loss(weights: Any, x: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
        for number, w in enumerate(weights):
            x = act(x @ w)
            kept = jax.random.bernoulli(jax.random.fold_in(key, number), 0.9, x.shape)
            x = jnp.where(kept, x / 0.9, 0)
        return jnp.square(x - y).mean()

    weights = arrays(*[(width, width)] * 3)
    given = arrays((rows, width), (rows, width))
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    alone, stitched = compare(descend(loss), (0,), weights, *given, key)
    assert stitched <= SHARE * alone


@pytest.mark.parametrize("act", [jax.nn.softmax, jax.nn.standardize])
def test_a_branch_writes_over_what_it_computed(act: Callable[..., Any]) -> None:
    def step(x: jax.Array, w: jax.Array, number: jax.Array) -> jax.Array:
        return jax.lax.cond(number % 10 == 0, lambda: act(x @ w) @ w.T, lambda: x)

    number = jax.ShapeDtypeStruct((), jnp.int32)
    alone, stitched = compare(step, (), *arrays((2048, 512), (512, 8192)), number)
    assert stitched <= SHARE * alone


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_gradients_of_each_example(dtype: Any) -> None:
    """An outer product for each example, scaled by the norm of all: it is computed where it is read."""

    def step(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        def loss(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
            return jnp.square(jnp.tanh(x.astype(dtype) @ w.astype(dtype)) - y).sum()

        gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(w, x, y)
        norms = jnp.sqrt(jnp.square(gradients).sum((1, 2)))
        return w - 0.1 * jnp.einsum("b,b...->...", jnp.minimum(1, 1 / norms), gradients)

    alone, stitched = compare(step, (0,), *arrays((768, 64), (256, 768), (256, 64)))
    assert stitched <= SHARE * alone


def test_convolutions_in_training() -> None:
    """Two convolutions in bf16 with batch norms beside an identity."""
    width, dtype = 64, jnp.bfloat16

    def convolve(x: jax.Array, w: jax.Array, gain: jax.Array) -> jax.Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(
            x, w.astype(dtype), (1, 1), "SAME", dimension_numbers=numbers
        ).astype(jnp.float32)
        centred = y - y.mean((0, 1, 2))
        return centred * jax.lax.rsqrt(jnp.square(centred).mean((0, 1, 2)) + 1e-5) * gain

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        x = x.astype(dtype)
        for w, gain in weights:
            x = jax.nn.relu(convolve(x, w, gain).astype(dtype) + x)
        return jnp.square(x).astype(jnp.float32).mean()

    weights = [arrays((3, 3, width, width), (width,))] * 2
    alone, stitched = compare(descend(loss), (0,), weights, *arrays((16, 28, 28, width)))
    assert stitched <= SHARE * alone


def gaussian_process(x: jax.Array, y: jax.Array) -> jax.Array:
    apart = jnp.square(x[:, None] - x[None]).sum(-1)
    root = scipy_linalg.cho_factor(jnp.exp(-apart) + 0.01 * jnp.eye(len(x)), lower=True)
    return jnp.tanh(scipy_linalg.cho_solve(root, y))


def inverses(a: jax.Array) -> jax.Array:
    return jnp.linalg.inv(jnp.exp(a) + jnp.eye(40)) * 2


def orthogonal(a: jax.Array) -> jax.Array:
    q, r = jnp.linalg.qr(jnp.sin(a))
    return q * jnp.sign(jnp.diagonal(r, axis1=-2, axis2=-1))[..., None, :]


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (gaussian_process, ((1200, 4), (1200,))),
        (inverses, ((500, 40, 40),)),
        (orthogonal, ((128, 64, 64),)),
    ],
)
def test_what_a_library_reads_is_not_copied(
    fn: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]
) -> None:
    alone, stitched = compare(fn, (), *arrays(*shapes))
    assert stitched <= SHARE * alone


def test_small_matrices_are_not_stored_between_steps() -> None:
    def solve(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.linalg.solve(a @ a.swapaxes(1, 2) + jnp.eye(4), b)

    alone, stitched = compare(solve, (), *arrays((50_000, 4, 4), (50_000, 4, 2)))
    assert stitched <= 0.6 * alone
