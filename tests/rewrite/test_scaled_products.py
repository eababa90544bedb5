"""scale_products: a number that multiplies a product's operand multiplies the product, where a kernel reads that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from astitch.graph.check import check_graph
from astitch.graph.ir import Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.scaled_products import scale_products
from astitch.rewrite.simplify import simplify
from tests.hlo_runner import lower

RNG = np.random.default_rng(0)
A, B = (RNG.normal(size=(12, 12)).astype(np.float32) for _ in range(2))
C = np.float32(0.7)


def read(fn: Callable[..., Any], *arguments: Any) -> Graph:
    return simplify(import_hlo(lower(fn, *arguments, keep_unused=True)))


SCALED: dict[str, Callable[..., Any]] = {
    "Newton's step": lambda a, b, c: (y := a @ a.T) * 2 + (0.3 * y) @ y,
    "a computed number": lambda a, b, c: (y := a @ a.T) * 2 + (c * c * y) @ y,
    "the right side": lambda a, b, c: jnp.tanh(a @ (b * 0.5)),
    "both sides": lambda a, b, c: jnp.tanh((a * c) @ (b * 0.5)),
    "read elsewhere too": lambda a, b, c: (jnp.tanh((y := a * 3) @ b), y.sum()),
}
LEFT: dict[str, Callable[..., Any]] = {
    "no number": lambda a, b, c: jnp.tanh((a * b) @ b),
    "rows": lambda a, b, c: jnp.tanh((a * b[:, :1]) @ b),
    "a result": lambda a, b, c: (a * 2) @ b,
    "for another product": lambda a, b, c: ((a * 2) @ b) @ b,
    "of what a kernel computes": lambda a, b, c: jnp.tanh((jnp.sin(a) * 2) @ b),
    "a loss scale": lambda a, b, c: jnp.tanh((a * 1e9) @ b),
    "half": lambda a, b, c: jnp.tanh((a.astype(jnp.bfloat16) * 2) @ b.astype(jnp.bfloat16)),
    "a larger product": lambda a, b, c: jnp.tanh((a[:, :1] * 2) @ b[:1]),
}


@pytest.mark.parametrize("name", SCALED)
def test_a_number_moves_behind_the_product(name: str) -> None:
    graph = read(SCALED[name], A, B, C)
    heard: list[str] = []
    scaled = check_graph(scale_products(graph, lambda rule, node: heard.append(node)))
    assert heard
    for dot in (node for node in scaled if node.op == "dot"):
        assert not any(scaled[operand].op == "multiply" for operand in dot.operands)
    for a, b in zip(run_graph(scaled, [A, B, C]), run_graph(graph, [A, B, C]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LEFT)
def test_other_products_stay(name: str) -> None:
    graph = read(LEFT[name], A, B, C)
    assert scale_products(graph) is graph
