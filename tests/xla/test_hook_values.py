"""What comes back from XLA's hook computes what JAX does: its kernels in the emulation, its other ops in the reference
interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from astitch.device.gpu import preset
from astitch.run.emulate import Order
from benchmarks.hook_programs import PROGRAMS
from tests.ahead_of_time import devices, needs_hook
from tests.emulated_xla import CASES, layer_norm, normal, run_module
from tests.hook_evaluation import Hooked, stitch_through_hook
from tests.xla.test_hook import WINDOWS, decode_with_attention

pytestmark = needs_hook

BOUNDS = {"float64": 1e-6, "float32": 2e-4, "bfloat16": 2e-2, "float16": 1e-2}
"""Of the Euclidean norm of a result, by its type; f32 results of programs in bf16 have the bound of that."""

OTHERS_ROUNDING = 3
"""So many times that may lie between the module and JAX on the CPU, which rounds at other places."""


def by_jax(fn: Callable[..., Any], arguments: Sequence[Any]) -> list[np.ndarray]:
    with jax.default_device(jax.devices("cpu")[0]):
        return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(fn)(*arguments))]


def assert_equal(
    got: Sequence[np.ndarray], want: Sequence[np.ndarray], coarsest: str = "", factor: float = 1
) -> None:
    assert len(got) == len(want)
    for number, (g, w) in enumerate(zip(got, want, strict=True)):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        if w.dtype.name not in BOUNDS:
            np.testing.assert_array_equal(g, w, err_msg=f"result {number}")
            continue
        a, b = g.astype(np.float64), w.astype(np.float64)
        assert np.isfinite(b).all(), "the program is no test"
        bound = factor * max(BOUNDS[w.dtype.name], BOUNDS.get(coarsest, 0))
        error, size = np.linalg.norm(a - b), np.linalg.norm(b)
        assert error <= bound * size + 1e-7, f"result {number}: {error} of {size}"


def check_values(
    fn: Callable[..., Any], *arguments: Any, coarsest: str = "", **options: Any
) -> Hooked:
    """Stitches a function through the hook and compares what both compute."""
    devices()
    hooked = stitch_through_hook(fn, *arguments, **options)
    flat = jax.tree.leaves(arguments)
    got = hooked.run(flat)
    assert_equal(got, run_module(hooked.handed, flat), coarsest)
    assert_equal(got, by_jax(fn, arguments), coarsest, OTHERS_ROUNDING)
    if hooked.in_place:
        # In place a thread may read only what no other has written yet.
        for order in (Order.REVERSE, Order.RANDOM):
            again = hooked.run(flat, order)
            assert all(a.tobytes() == b.tobytes() for a, b in zip(got, again, strict=True))
    return hooked


@pytest.mark.parametrize("name", [name for name in CASES if name != "loop"])
def test_programs(name: str) -> None:
    fn, arguments = CASES[name]
    hooked = check_values(fn, *arguments)
    assert hooked.kernels or name in ("pass_through", "empty")


def test_blocks_of_an_h100() -> None:
    """As many as a real one has."""
    for name in ("layer_norm_gradients", "batch_norm"):
        fn, arguments = CASES[name]
        assert check_values(fn, *arguments, gpu=preset("h100")).kernels


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name: str) -> None:
    fn, shape = WINDOWS[name]
    shape = tuple(min(n, 300) for n in shape)
    assert check_values(fn, np.abs(normal(*shape)) * 0.1).kernels


TINY = (
    pytest.param("gpt/train", marks=pytest.mark.slow),
    *("llama/infer", "conv-NCHW-f32/train", "conv-NHWC-bf16/train", "gru/infer"),
    *("gru/train", "decode", "embedding/train", "sample", "cumsum", "constant", "adam"),
)


@pytest.mark.parametrize("name", TINY)
def test_tiny_models(name: str) -> None:
    devices()
    program = PROGRAMS[name](True)
    random = np.random.default_rng(0)

    def draw(leaf: Any) -> Any:
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            drawn = random.standard_normal(leaf.shape) * 0.3
            # Second moments have roots.
            return jnp.asarray(np.abs(drawn) if program.donated else drawn, leaf.dtype)
        return jnp.asarray(random.integers(0, 8, leaf.shape), leaf.dtype)

    arguments = jax.tree.map(draw, program.arguments)
    narrow = ("gpt", "llama", "decode", "bf16")
    coarsest = "bfloat16" if any(word in name for word in narrow) else ""
    hooked = check_values(program.fn, *arguments, coarsest=coarsest, donate_argnums=program.donated)
    assert hooked.kernels
    assert bool(hooked.in_place) == (name in ("gpt/train", "adam"))


# ---- loops and branches ------------------------------------------------------------------------------------------

WIDE = normal(64, 512), normal(512), normal(512)


def step(x: Any, g: Any, b: Any) -> Any:
    return layer_norm(jnp.tanh(x), g, b) * 0.5


def scan(x: Any, g: Any, b: Any) -> Any:
    return lax.scan(lambda c, t: (step(c + t, g, b), c.sum(-1)), x, jnp.arange(3.0))


def turn_until(x: Any, g: Any, b: Any) -> Any:
    return lax.while_loop(
        lambda s: (s[0] < 5) & (jnp.abs(s[1]).max() < 1e9),
        lambda s: (s[0] + 1, step(s[1], g, b)),
        (0, x),
    )


def choose(x: Any, g: Any, b: Any) -> Any:
    return [
        lax.cond(x.sum() > threshold, lambda: step(x, g, b), lambda: jax.nn.softmax(x * 2))
        for threshold in (-1e9, 1e9)
    ]


def switch(x: Any, g: Any, b: Any) -> Any:
    branches = [lambda x: step(x, g, b), jax.nn.softmax, lambda x: x * 2]
    return [lax.switch(jnp.int32(x[0, 0] * 0) + n, branches, x) for n in (-1, 0, 1, 2, 3)]


def nested(x: Any, g: Any, b: Any) -> Any:
    def outer(c: Any, t: Any) -> Any:
        inner = lax.fori_loop(0, 2, lambda _, c: step(c, g, b), c)
        return lax.cond(t > 1, lambda: inner, lambda: jax.nn.softmax(inner)), inner[0]

    return lax.scan(outer, x, jnp.arange(3))


CONTROL = {"scan": scan, "while": turn_until, "cond": choose, "switch": switch, "nested": nested}


@pytest.mark.parametrize("name", CONTROL)
def test_bodies_of_loops_and_branches(name: str) -> None:
    assert check_values(CONTROL[name], *WIDE).kernels


def test_the_gradient_of_a_scan() -> None:
    def loss(x: Any, g: Any, b: Any) -> Any:
        last, sums = scan(x, g, b)
        return jnp.square(last).sum() + sums.mean()

    assert check_values(jax.grad(loss, argnums=(0, 1, 2)), *WIDE).kernels


def test_scans_of_element_wise_ops() -> None:
    """Advantages as reinforcement learning adds them up, and their gradient."""

    def advantages(rewards: Any, ends: Any, last: Any) -> Any:
        def turn(total: Any, inputs: Any) -> Any:
            reward, end = inputs
            total = reward + 0.9 * (1 - end) * total
            return total, total

        return lax.scan(turn, last, (rewards, ends), reverse=True)[1]

    arguments = normal(8, 3, 20), (normal(8, 3, 20) > 1).astype(np.float32), normal(3, 20)
    hooked = check_values(advantages, *arguments)
    assert hooked.kernels and not any(node.op == "while" for node in hooked.graph)
    hooked = check_values(jax.grad(lambda r, *a: (advantages(r, *a) ** 2).sum()), *arguments)
    assert not any(node.op == "while" for node in hooked.graph)


def test_a_decoder_that_is_one_kernel() -> None:
    given = normal(16, 16) * 0.3, normal(2, 8, 16), normal(4, 2, 16)
    check_values(decode_with_attention, *given)


# ---- donation ----------------------------------------------------------------------------------------------------


def pick_by_rows(z: Any, labels: Any) -> Any:
    rows, columns = (jnp.arange(n) for n in labels.shape)
    return jax.nn.log_softmax(z)[rows[:, None], columns, labels]


def pick_along(z: Any, labels: Any) -> Any:
    logits = z.astype(jnp.float32)
    at = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return at - jax.nn.logsumexp(logits, -1)


def pick_in_one_row(z: Any, labels: Any) -> Any:
    flat = jax.nn.log_softmax(z.reshape(-1, z.shape[-1]))
    return flat[jnp.arange(labels.size), labels.reshape(-1)]


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize("pick", [pick_by_rows, pick_along, pick_in_one_row])
def test_the_gradient_of_a_cross_entropy_is_one_kernel(
    pick: Callable[..., Any], dtype: Any
) -> None:
    """XLA writes the labels' part of the gradient as a scatter, its index vectors in one row."""
    labels = np.arange(24, dtype=np.int32).reshape(4, 6) % 40
    hooked = check_values(
        jax.grad(lambda z, labels: -pick(z, labels).mean()),
        normal(4, 6, 40).astype(dtype),
        labels,
        coarsest=np.dtype(dtype).name,
    )
    assert hooked.kernels == 1
    assert not any(node.op == "scatter" for node in hooked.graph)


def momentum(p: Any, m: Any, g: Any) -> Any:
    """A mean over rows first, so that XLA does not make one kernel of it."""
    g = g - g.mean(-1, keepdims=True)
    m = 0.9 * m + g
    return p - 1e-2 * m, m


def test_results_in_place_of_donated_arguments() -> None:
    given = normal(64, 512), normal(64, 512), normal(64, 512)
    assert check_values(momentum, *given, donate_argnums=(0, 1)).in_place == 2
    assert check_values(momentum, *given).in_place == 0


def test_a_donated_argument_that_is_read_later() -> None:
    """The kernel may not write over what another op still reads."""

    def fn(p: Any, m: Any, g: Any) -> Any:
        new, m = momentum(p, m, g)
        return new, m, jnp.sort(p, axis=-1) + new[::-1]

    given = normal(64, 512), normal(64, 512), normal(64, 512)
    check_values(fn, *given, donate_argnums=(0, 1))


def test_a_donated_argument_whose_rows_are_turned_around() -> None:
    """Each thread reads what another one writes."""

    def fn(p: Any, g: Any) -> Any:
        return jax.nn.softmax(p[::-1] + g) * 2

    check_values(fn, normal(64, 512), normal(64, 512), donate_argnums=0)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_floats(dtype: Any) -> None:
    given = [jnp.asarray(a, dtype) for a in CASES["layer_norm_gradients"][1]]
    fn = CASES["layer_norm_gradients"][0]
    assert check_values(fn, *given, coarsest=jnp.dtype(dtype).name).kernels


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """This file's tests can fail."""
    from tests import emulated_xla

    compile_host = emulated_xla.compile_host

    def damage(text: str, check: bool) -> Any:
        assert "rsqrt" in text
        return compile_host(text.replace("rsqrt", "sqrt"), check=check)

    monkeypatch.setattr(emulated_xla, "compile_host", damage)
    with pytest.raises(AssertionError, match="result 0"):
        check_values(layer_norm, *WIDE)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_sorted_rows(dtype: str) -> None:
    """A scatter of XLA's takes in the gather of the rows' elements, in the form that its kernels read."""
    x = normal(64, 128).astype(dtype)
    for turn in (lambda x: x, lambda x: -x):

        def loss(x: Any, turn: Callable[[Any], Any] = turn) -> Any:
            return jnp.square(turn(jnp.sort(turn(x), 1)).astype(jnp.float32)).sum()

        check_values(jax.grad(loss), x, coarsest=dtype)
