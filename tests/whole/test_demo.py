"""The demo's own parts: the model, and the count of XLA's kernels."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch import demo
from astitch.demo import count_xla_kernels, layer, make_inputs, make_layer
from astitch.device.gpu import preset
from astitch.hlo_import import serialize_module
from astitch.profiling.measured import read_executable

OPTIMIZED = """\
HloModule jit_f, is_scheduled=true

%fused_computation (p0: f32[4,4], p1: f32[4,4]) -> f32[4,4] {
  %p0 = f32[4,4]{1,0} parameter(0)
  %p1 = f32[4,4]{1,0} parameter(1)
  ROOT %dot.1 = f32[4,4]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%fused_computation.1 (p2: f32[4,4]) -> f32[4,4] {
  %p2 = f32[4,4]{1,0} parameter(0)
  ROOT %exp = f32[4,4]{1,0} exponential(%p2)
}

ENTRY %main (x: f32[4,4]) -> (f32[4,4], f32[4,4]) {
  %x = f32[4,4]{1,0} parameter(0)
  %b = f32[16]{0} bitcast(%x)
  %product = f32[4,4]{1,0} fusion(%x, %x), kind=kCustom, calls=%fused_computation
  %gemm = (f32[4,4]{1,0}, s8[64]{0}) custom-call(%x, %x), custom_call_target="__cublas$gemm"
  %g = f32[4,4]{1,0} get-tuple-element(%gemm), index=0
  %loop = f32[4,4]{1,0} fusion(%g), kind=kLoop, calls=%fused_computation.1
  %c = f32[4,4]{1,0} copy(%loop)
  ROOT %t = (f32[4,4]{1,0}, f32[4,4]{1,0}) tuple(%c, %product)
}
"""


def test_kernels_of_an_optimized_module_are_counted_by_what_they_hold():
    assert count_xla_kernels(serialize_module(OPTIMIZED)) == (2, 2)


def test_kernels_of_what_xla_made_here_are_counted():
    x = jnp.ones((8, 8))
    compiled = jax.jit(lambda a: jnp.exp(a @ a)).lower(x).compile()
    memory, products = count_xla_kernels(read_executable(compiled)[0])
    assert products == 1
    assert memory <= 1


def test_layer_ends_in_a_layer_norm_and_hides_masked_tokens():
    params = make_layer(0, hidden=48, inner=96)
    x, mask = make_inputs(1, batch=2, seq=10, hidden=48)
    encode = jax.jit(layer, static_argnames="heads")
    y = np.asarray(encode(params, x, mask, heads=4))
    normal = (y - params["output_norm_beta"]) / params["output_norm_gamma"]
    np.testing.assert_allclose(normal.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(normal.std(-1), 1, rtol=1e-3)
    # The last two of ten tokens are masked: the others do not see them.
    changed = np.asarray(encode(params, x.at[:, 8:].add(1.0), mask, heads=4))
    np.testing.assert_allclose(changed[:, :8], y[:, :8], atol=1e-5)
    assert np.abs(changed[:, 8:] - y[:, 8:]).max() > 0.1


def test_layers_of_equal_seeds_are_equal():
    first, again, other = (make_layer(s, hidden=12, inner=24) for s in (3, 3, 4))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["query"], other["query"])


def fake_jit(error: float) -> Callable[..., Any]:
    """A stand-in for astitch.jit: XLA's own results, off by `error`."""

    class Compiled:
        program = types.SimpleNamespace(kernels=("a", "b"), steps=())
        compilation = types.SimpleNamespace(plans=(), gpu=preset("host"), resources=lambda: None)

        def __init__(self, compiled: jax.stages.Compiled) -> None:
            self.compiled = compiled

        def __call__(self, *args: Any) -> jax.Array:
            return self.compiled(*args) + error

    class Lowered:
        def __init__(self, lowered: jax.stages.Lowered) -> None:
            self.lowered = lowered

        def compile(self) -> Compiled:
            return Compiled(self.lowered.compile())

    class Jitted:
        def __init__(self, function: Callable[..., Any]) -> None:
            self.function = function

        def lower(self, *args: Any) -> Lowered:
            return Lowered(jax.jit(self.function).lower(*args))

    return Jitted


@pytest.mark.parametrize(
    ("error", "status", "verdict"),
    [
        (0.0, 0, "OK: largest error 0.0e+00 "),
        (0.5, 1, "WRONG: largest error "),
        (float("nan"), 1, "WRONG: largest error nan "),
    ],
)
def test_demo_ends_with_its_verdict(
    error: float,
    status: int,
    verdict: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setitem(sys.modules, "astitch.jit", types.SimpleNamespace(jit=fake_jit(error)))
    assert demo.main() == status
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith(verdict)
    assert lines[1].startswith("kernel ")
    assert any(line.endswith("astitch 2") for line in lines)
