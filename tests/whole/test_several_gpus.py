"""Several GPUs of one host: a program runs where its arguments lie, on some at once, and results stay there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import astitch

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def gpus() -> list[Any]:
    try:
        found = jax.local_devices(backend="gpu")
    except RuntimeError:
        found = []
    if len(found) < 2:
        pytest.skip("needs two GPUs")
    return found


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def attend(x: jax.Array, w: jax.Array) -> jax.Array:
    """Products, kernels with barriers for blocks and for all of them, and a loop."""
    scores = jax.nn.softmax((x @ w) @ x.T / 8)
    y = scores @ x / jnp.linalg.norm(x, axis=0)

    def turn(state: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jnp.tanh(state + row)
        return state, state

    return jax.lax.scan(turn, jnp.zeros(x.shape[1]), y)[1] + jnp.sum(y)


ARGUMENTS = normal(512, 96), normal(96, 96)


def place(device: Any) -> tuple[jax.Array, ...]:
    return tuple(jax.device_put(a, device) for a in ARGUMENTS)


def expect() -> np.ndarray:
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        return np.asarray(jax.jit(attend)(*ARGUMENTS))


def assert_there(found: jax.Array, device: Any, want: np.ndarray) -> None:
    assert found.devices() == {device}
    np.testing.assert_allclose(np.asarray(found), want, rtol=2e-2, atol=2e-2)


def test_one_function_runs_where_its_arguments_lie(gpus: list[Any]) -> None:
    fn, want = astitch.jit(attend), expect()
    for device in (gpus[1], gpus[0], gpus[1]):
        assert_there(fn(*place(device)), device, want)
    assert fn.lower(*place(gpus[1])).compile().program.kernels


def test_the_default_device(gpus: list[Any]) -> None:
    with jax.default_device(gpus[1]):
        assert_there(astitch.jit(attend)(*ARGUMENTS), gpus[1], expect())


def test_all_at_once(gpus: list[Any]) -> None:
    fn, want = astitch.jit(attend), expect()

    def run(number: int) -> None:
        device = gpus[number % len(gpus)]
        given = place(device)
        for _ in range(10):
            assert_there(fn(*given), device, want)

    with ThreadPoolExecutor(4 * len(gpus)) as pool:
        list(pool.map(run, range(4 * len(gpus))))


def test_training_with_donated_weights(gpus: list[Any]) -> None:
    x, w = ARGUMENTS

    def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        return w - 0.1 * gradient, loss

    def train(step: Any, device: Any) -> list[float]:
        weights, given, losses = jax.device_put(w, device), jax.device_put(x, device), []
        for _ in range(5):
            weights, loss = step(weights, given)
            losses.append(float(loss))
        assert weights.devices() == {device}
        return losses

    stitched = astitch.jit(step, donate_argnums=0)
    want = train(jax.jit(step), gpus[0])
    for device in gpus:
        np.testing.assert_allclose(train(stitched, device), want, rtol=1e-3)


def test_programs_that_cupy_launches(gpus: list[Any]) -> None:
    """They are made for CuPy's current device."""
    cupy = pytest.importorskip("cupy")
    want = expect()
    for device in (gpus[1], gpus[0]):
        with cupy.cuda.Device(device.local_hardware_id):
            fn = astitch.jit(attend, engine="executor")
            for _ in range(3):
                assert_there(fn(*place(device)), device, want)
