"""find_narrow_ends: which f32 functions may be approximated, and how far off the results are then."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graphs import GraphBuilder
from hypothesis import given, settings
from strategies import random_graphs

from astitch.graph.ir import DType, Graph
from astitch.graph.ops import OPS
from astitch.graph.precision import find_narrow_ends
from tests.small_gpu import by_jax, few_sms, plan_for

FUNCTIONS = frozenset(op for op, row in OPS.items() if row.is_approximate)


def narrow_ends(graph: Graph) -> set[str]:
    return set(find_narrow_ends(graph, tuple(graph.nodes)))


def silu(to: str) -> Graph:
    """x * logistic(x), computed in f32 from bf16."""
    g = GraphBuilder()
    x = g.convert(g.parameter("bf16[64,32]"), "f32")
    return g.build(g.convert(g.same("multiply", x, g.same("logistic", x, name="gate")), to))


@pytest.mark.parametrize(
    ("to", "found"), [("bf16", {"gate"}), ("f16", {"gate"}), ("f64", set()), ("s32", set())]
)
def test_a_function_that_ends_in_16_bits_is_narrow(to: str, found: set[str]) -> None:
    assert narrow_ends(silu(to)) == found


@pytest.mark.parametrize("op", sorted(FUNCTIONS))
@pytest.mark.parametrize("carrier", ["multiply", "add", "subtract", "maximum", "minimum", "divide"])
def test_light_arithmetic_carries_the_narrow_end(op: str, carrier: str) -> None:
    g = GraphBuilder()
    x, y = g.parameter("f32[8]"), g.parameter("f32[8]")
    value = g.same(carrier, g.same(op, x, name="f"), y)
    wide = g.reshape(g.same("negate", value), (2, 4))
    assert narrow_ends(g.build(g.convert(wide, "bf16"))) == {"f"}


def test_every_use_must_end_narrow() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[8]")
    both = g.same("tanh", x, name="both")
    compared = g.same("exponential", x, name="compared")
    once = g.same("logistic", x, name="once")
    picked = g.op("select", "f32[8]", g.compare("LT", compared, x), once, compared)
    graph = g.build(both, g.convert(both, "bf16"), g.convert(picked, "f16"))
    assert narrow_ends(graph) == {"once"}


def test_a_value_that_a_sum_or_a_function_takes_is_not_narrow() -> None:
    """Errors of an exponential's argument grow with it, those of a sum's elements add up."""
    g = GraphBuilder()
    x = g.parameter("f32[8,64]")
    e = g.same("exponential", x, name="e")
    total = g.reduce(e, (1,), "add")
    inner = g.same("tanh", x, name="inner")
    outer = g.same("exponential", inner, name="outer")
    graph = g.build(g.convert(total, "bf16"), g.convert(outer, "bf16"))
    assert narrow_ends(graph) == {"outer"}


def test_a_softmax_sums_what_is_exact() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[8,64]")
    e = g.same("exponential", x)
    total = g.broadcast(g.reduce(e, (1,), "add"), (8, 64), (0,))
    gate = g.same("logistic", x, name="gate")
    y = g.same("divide", g.same("multiply", e, gate), total)
    assert narrow_ends(g.build(g.convert(y, "bf16"))) == {"gate"}


def test_a_quotient_of_f32_is_exact() -> None:
    """Divisors of f32 may be subnormal, whose approximate reciprocal is infinite."""
    x, y = np.float32([0, 1e-40, 3e-39, 1]), np.float32([1e-40, 1e-40, 1e-39, 1e-40])
    planned = plan_for(few_sms(2), lambda a, b: (a / b).astype(jnp.bfloat16), x, y)
    (got,) = planned.run(x, y)
    np.testing.assert_array_equal(got.astype(np.float32), [0, 1, 3, np.inf])
    assert "narrow_divide" not in planned.text


def test_outputs_other_members_and_other_types_are_left_alone() -> None:
    g = GraphBuilder()
    x, d = g.parameter("f32[8]"), g.parameter("f64[8]")
    out = g.same("tanh", x, name="out")
    outside = g.same("logistic", x, name="outside")
    wide = g.same("tanh", d, name="wide")
    half = g.same("multiply", outside, x, name="half")
    ends = [g.convert(v, "bf16") for v in (out, half, wide)]
    graph = g.build(out, *ends)
    members = [n for n in graph.nodes if n not in ("half", ends[1])]
    assert find_narrow_ends(graph, members) == frozenset()
    assert narrow_ends(graph) == {"outside"}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(random_graphs(20))
def test_narrow_ends_are_f32_functions_inside(graph: Graph) -> None:
    found = narrow_ends(graph)
    for name in found:
        node = graph[name]
        assert node.op in FUNCTIONS and node.dtype is DType.F32 and name not in graph.outputs
        assert graph.users[name]


# ---- what the approximations do to results


def activations(x: jax.Array, gate: jax.Array) -> tuple[jax.Array, ...]:
    y, z = x.astype(jnp.float32), gate.astype(jnp.float32)
    values = (
        jax.nn.silu(y) * z,
        jax.nn.gelu(y) + z,
        jnp.tanh(y) - z,
        jnp.exp(y) / (1 + jnp.exp(z)),
        y / z,
    )
    return tuple(v.astype(x.dtype) for v in values)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16])
def test_approximated_functions_round_like_exact_ones(dtype: np.dtype) -> None:
    """At most the neighbouring 16-bit value, and that rarely: the approximation only moves near-ties.  Where a sum
    cancels, the difference is one of its terms' roundings."""
    rng = np.random.default_rng(3)
    x, gate = (rng.normal(0, 3, (64, 512)).astype(dtype) for _ in range(2))
    planned = plan_for(few_sms(4), activations, x, gate)
    for function in ("exp", "tanh"):
        assert f"narrow_{function}<" in planned.text
    terms = np.abs(x.astype(np.float64)) + np.abs(gate.astype(np.float64))
    step = float(jnp.finfo(dtype).eps)
    for got, want in zip(planned.run(x, gate), by_jax(activations, x, gate), strict=True):
        other = got != want
        a, b = got[other].astype(np.float64), want[other].astype(np.float64)
        assert np.all(np.abs(a - b) <= step * np.abs(b) + 2.0**-20 * terms[other])
        assert np.mean(other) < 0.01
