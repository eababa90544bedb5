"""lay_out_calls: what a library reads and writes column by column is another name for a kernel's array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import linalg as scipy_linalg

from astitch.graph.call_layouts import lay_out_calls, list_orders
from astitch.graph.check import check_graph
from astitch.graph.ir import Graph, TransposeAttrs
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.simplify import simplify
from tests.hlo_runner import lower_for_gpu

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def process(x: Any, y: Any) -> Any:
    """A Gaussian process's mean."""
    apart = jnp.square(x[:, None] - x[None]).sum(-1)
    root = scipy_linalg.cho_factor(jnp.exp(-apart) + jnp.eye(len(x)), lower=True)
    return jnp.tanh(scipy_linalg.cho_solve(root, y))


def through_a_product(x: Any) -> Any:
    """The product reads what the call reads."""
    a = jnp.exp(x) + 12 * jnp.eye(12)
    return scipy_linalg.solve_triangular(a, jnp.sin(x), lower=True) + a @ x


def of_tall(x: Any) -> Any:
    factors, _, order = lax.linalg.lu(jnp.sin(x))
    return jnp.tril(factors, -1), order


Program = tuple[Callable[..., Any], tuple[np.ndarray, ...]]

PROGRAMS: dict[str, Program] = {
    "process": (process, (normal(20, 3), normal(20))),
    "inverse": (lambda x: jnp.linalg.inv(jnp.exp(x)) * 2, (normal(3, 10, 10),)),
    "through a product": (through_a_product, (normal(12, 12),)),
    "tall": (of_tall, (normal(2, 12, 9),)),
}


def read(name: str) -> tuple[Graph, tuple[np.ndarray, ...]]:
    fn, arguments = PROGRAMS[name]
    return simplify(import_hlo(lower_for_gpu(fn, *arguments))), arguments


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_function_stays(name: str) -> None:
    graph, arguments = read(name)
    laid, reasons = lay_out_calls(graph, ())
    assert reasons and all(isinstance(laid[n].attrs, TransposeAttrs) for n in reasons)
    check_graph(laid, graph)
    for got, want in zip(run_graph(laid, arguments), run_graph(graph, arguments), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_give_and_take_rows(name: str) -> None:
    """A call reads names of arrays that lie row by row; a kernel reads no result as the call writes it."""
    laid, reasons = lay_out_calls(read(name)[0], ())
    calls = [node for node in laid if list_orders(node)[0]]
    assert calls
    for call in calls:
        for number, order in list_orders(call)[0].items():
            given = laid[call.operands[number]]
            if given.name in reasons:
                assert isinstance(given.attrs, TransposeAttrs)
                assert tuple(given.attrs.permutation[d] for d in order) == tuple(range(len(order)))


def test_a_product_reads_the_same_array() -> None:
    laid, reasons = lay_out_calls(read("through a product")[0], ())
    (product,) = (node for node in laid if node.op == "dot")
    assert product.operands[0] in reasons


def test_what_no_kernel_makes_stays() -> None:
    graph = simplify(
        import_hlo(
            lower_for_gpu(
                lambda a, b: scipy_linalg.solve_triangular(a, b), normal(12, 12), normal(12, 3)
            )
        )
    )
    assert lay_out_calls(graph, ()) == (graph, {})
    graph, _ = read("inverse")
    everything = [node.name for node in graph]
    assert lay_out_calls(graph, everything) == (graph, {})


def test_a_transpose_before_a_call_is_that_name() -> None:
    def fn(x: Any, b: Any) -> Any:
        return scipy_linalg.solve_triangular(jnp.exp(x).T, b)

    graph = simplify(import_hlo(lower_for_gpu(fn, normal(12, 12), normal(12, 3))))
    laid, reasons = lay_out_calls(graph, ())
    assert reasons and sum(node.op == "transpose" for node in laid) == len(reasons)
