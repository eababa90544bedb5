"""Comparisons of clamped values: what is changed, that nothing changes, and what a training step then keeps."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.graph.check import check_graph
from astitch.graph.ir import CompareAttrs, Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.clamped_masks import ask_clamped
from astitch.rewrite.simplify import simplify

Function = Callable[..., object]

NUMBERS = (-np.inf, -3.0, -1.0, -1e-40, -0.0, 0.0, 1e-40, 0.5, 1.0, 3.0, 6.0, 7.0, np.inf, np.nan)


def read(fn: Function, *arguments: object) -> Graph:
    module = jax.jit(fn).lower(*arguments).compiler_ir("hlo").as_serialized_hlo_module_proto()
    return simplify(import_hlo(module))


def operand_of_comparison(graph: Graph) -> str:
    (compare,) = (node for node in graph if isinstance(node.attrs, CompareAttrs))
    return next(graph[o].op for o in compare.operands if not graph[o].op.startswith("broadcast"))


def relu(x: jax.Array) -> object:
    return jnp.maximum(x, 0), x > 0


CHANGED: dict[str, tuple[Function, str]] = {
    "relu": (relu, "maximum"),
    "from the left": (lambda x: (jnp.maximum(0, x), jnp.less(0, x)), "maximum"),
    "not positive": (lambda x: (jnp.maximum(x, 0), x <= 0), "maximum"),
    "above the bound": (lambda x: (jnp.maximum(x, -1.0), x >= 0.5), "maximum"),
    "from above": (lambda x: (jnp.minimum(x, 1.0), x < 1), "minimum"),
    "at most": (lambda x: (jnp.minimum(x, 1.0), x >= 1), "minimum"),
    "ReLU6, lower": (lambda x: (jnp.minimum(jnp.maximum(x, 0), 6.0), x > 0), "minimum"),
    "ReLU6, upper": (lambda x: (jnp.minimum(jnp.maximum(x, 0), 6.0), x < 6), "minimum"),
}

KEPT: dict[str, Function] = {
    "zero is not negative": lambda x: (jnp.maximum(x, 0), x >= 0),
    "below the bound": lambda x: (jnp.maximum(x, 1.0), x > 0.5),
    "equal": lambda x: (jnp.maximum(x, 0), x == 0),
    "another value's": lambda x: (jnp.maximum(x + 1, 0), x > 0),
    "no number": lambda x: (jnp.maximum(x, 0), x > x[0]),
    "at the other bound": lambda x: (jnp.minimum(x, 1.0), x <= 1),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16])
@pytest.mark.parametrize("name", CHANGED)
def test_the_clamped_value_is_asked(name: str, dtype: object) -> None:
    fn, op = CHANGED[name]
    x = np.array(NUMBERS).astype(dtype)
    graph = read(fn, x)
    changed = check_graph(ask_clamped(graph))
    assert operand_of_comparison(graph) == "parameter"
    assert operand_of_comparison(changed) == op
    for found, wanted in zip(run_graph(changed, [x]), run_graph(graph, [x]), strict=True):
        np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


@pytest.mark.parametrize("name", KEPT)
def test_what_it_does_not_say_is_asked_of_the_value(name: str) -> None:
    graph = read(KEPT[name], np.array(NUMBERS, np.float32))
    assert ask_clamped(graph) is graph


def test_integers_too() -> None:
    x = np.arange(-3, 4, dtype=np.int32)
    changed = check_graph(ask_clamped(read(relu, x)))
    assert operand_of_comparison(changed) == "maximum"
    np.testing.assert_array_equal(run_graph(changed, [x])[1], x > 0)


def test_it_hears_what_is_changed() -> None:
    heard: list[str] = []
    ask_clamped(read(relu, np.ones(3, np.float32)), lambda rule, node: heard.append(rule))
    assert heard == ["ask_clamped"]


def test_a_relus_gradient_reads_its_result() -> None:
    """So the operand, and the condition, are kept for no later stage."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return (jax.nn.relu(jax.nn.relu(x @ w) @ w) ** 2).sum()

    graph = ask_clamped(read(jax.grad(loss), np.ones((64, 64)), np.ones((64, 64))))
    for node in graph:
        if isinstance(node.attrs, CompareAttrs):
            assert any(graph[o].op == "maximum" for o in node.operands)
