"""Attention through XLA's hook: cuDNN computes it, in both halves and in loops, and no scores are in memory."""

from __future__ import annotations

import contextlib
import re
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import SingleDeviceSharding

import astitch
from astitch.attention import find
from astitch.faults import FaultWarning
from astitch.hlo.attention import FORWARD, GRADIENT
from tests.ahead_of_time import GPU, compile_ahead, devices, hooked, needs_hook

pytestmark = needs_hook


@pytest.fixture(autouse=True)
def _calls_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "LEAST_OF_LIBRARY", 1)
    monkeypatch.setattr(find, "project", lambda *given, **named: None)  # no kernels of our own


BATCH, POSITIONS, HEADS, FEATURES = 2, 512, 8, 64
WIDTH = HEADS * FEATURES
PTX = "xla.gpu.ptx"
SCORES_BYTES = BATCH * HEADS * POSITIONS * POSITIONS * 2
ARRAY_BYTES = BATCH * HEADS * POSITIONS * FEATURES * 2
STATISTICS_BYTES = BATCH * HEADS * POSITIONS * 4


def array(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=SingleDeviceSharding(devices()[0]))


def attend(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / 8
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1).astype(q.dtype), v)


def layer(x: Any, weights: Any) -> Any:
    parts = jnp.split(x @ weights["in"], 3, -1)
    q, k, v = (part.reshape(*x.shape[:2], HEADS, FEATURES) for part in parts)
    return x + attend(q, k, v).reshape(x.shape) @ weights["out"]


def loss_of_layers(weights: Any, x: Any) -> Any:
    """Layers in a scan, each computed again for the gradient."""
    body = jax.checkpoint(lambda x, w: (layer(x, w), None))
    return jnp.sum(lax.scan(body, x, weights)[0].astype(jnp.float32) ** 2)


def count_calls(compiled: Any) -> dict[str, int]:
    found = re.findall(r'custom_call_target="(__cudnn\$[^"]+)"', compiled.as_text())
    return {target: found.count(target) for target in set(found)}


def test_forward_and_gradient_are_a_call_each() -> None:
    def loss(*arrays: Any) -> Any:
        return jnp.sum(attend(*arrays).astype(jnp.float32) ** 2)

    arrays = [array(BATCH, POSITIONS, HEADS, FEATURES)] * 3
    plain = compile_ahead(jax.grad(loss, argnums=(0, 1, 2)), *arrays)
    with hooked() as seen:
        ours = compile_ahead(jax.grad(loss, argnums=(0, 1, 2)), *arrays)
    assert count_calls(ours) == {FORWARD[0]: 1, GRADIENT[0]: 1}
    assert not re.search(r" (dot|copy)\(", ours.as_text())
    assert plain.memory_analysis().temp_size_in_bytes > SCORES_BYTES
    # The result, its gradient and the statistics, aligned.
    kept = 2 * ARRAY_BYTES + STATISTICS_BYTES
    assert ours.memory_analysis().temp_size_in_bytes < kept + 4096
    assert seen.stitchings[-1].kernels == 3


def test_heads_that_share_keys_read_them_where_they_lie() -> None:
    """k and v are repeated nowhere, and their gradients are not summed: cuDNN does both."""

    def shared(q: Any, k: Any, v: Any) -> Any:
        return attend(q, *(jnp.repeat(x, HEADS // 2, axis=2) for x in (k, v)))

    def pull(q: Any, k: Any, v: Any, given: Any) -> Any:
        return jax.vjp(shared, q, k, v)[1](given)

    q, k = (array(BATCH, POSITIONS, heads, FEATURES) for heads in (HEADS, 2))
    for function, arrays, calls in ((shared, (q, k, k), 1), (pull, (q, k, k, q), 2)):
        with hooked():
            ours = compile_ahead(function, *arrays)
        assert sum(count_calls(ours).values()) == calls
        # Nothing else is computed.
        entry = ours.as_text().partition("\nENTRY")[2]
        ops = set(re.findall(r"= [^=]*? ([a-z-]+)\(", entry))
        assert ops <= {"parameter", "custom-call", "get-tuple-element", "bitcast", "tuple"}
        assert entry.count(" custom-call(") == calls


def test_a_call_alone_is_worth_it() -> None:
    with hooked():
        ours = compile_ahead(attend, *[array(BATCH, POSITIONS, HEADS, FEATURES)] * 3)
    assert count_calls(ours) == {FORWARD[0]: 1}


def test_layers_in_a_scan() -> None:
    weights = {"in": array(3, WIDTH, 3 * WIDTH), "out": array(3, WIDTH, WIDTH)}
    x = array(BATCH, POSITIONS, WIDTH)
    plain = compile_ahead(jax.grad(loss_of_layers), weights, x)
    with hooked():
        ours = compile_ahead(jax.grad(loss_of_layers), weights, x)
    # The forward loop, and the backward loop, which computes the statistics again.
    assert count_calls(ours) == {FORWARD[0]: 2, GRADIENT[0]: 1}
    before, after = (c.memory_analysis().temp_size_in_bytes for c in (plain, ours))
    assert after < before - SCORES_BYTES


def test_the_report_names_what_is_compiled_and_it_is_on_by_default() -> None:
    arrays = [array(BATCH, POSITIONS, HEADS, FEATURES)] * 3
    with astitch.enabled(gpu=GPU, attention=False):
        assert not count_calls(compile_ahead(attend, *arrays))
    with warnings.catch_warnings(), astitch.enabled(gpu=GPU):
        warnings.simplefilter("error")
        assert count_calls(compile_ahead(attend, *arrays)) == {FORWARD[0]: 1}
    entry = astitch.report().programs[-1]
    assert (entry.kernels, entry.reason) == (1, "")


@pytest.mark.parametrize("marked", [False, True])
def test_what_xla_refuses_it_compiles_without_calls(
    marked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that cannot be read stands for what a version of XLA does not take."""
    monkeypatch.setattr("astitch.hlo.attention._write_config", lambda *given: {"no": "config"})
    arrays = [array(BATCH, POSITIONS, HEADS, FEATURES)] * 3
    enabled = contextlib.nullcontext() if marked else astitch.enabled(gpu=GPU)
    fn = astitch.jit(attend) if marked else attend
    with (
        enabled,
        pytest.warns(FaultWarning, match="attention and narrow products of .* stay as they are"),
    ):
        compiled = compile_ahead(lambda *given: jax.nn.standardize(fn(*given)), *arrays)
    assert not count_calls(compiled)
    assert PTX in compiled.as_text()
