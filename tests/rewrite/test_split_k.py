"""Split-K, products in parts: how many, which, and that kernels add them to what the product is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.graph.collectives import COLLECTIVE_BLOCKS
from astitch.graph.ir import DotAttrs, DType, Graph, OpaqueAttrs
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.pipeline import Launcher, RegionRules, Target
from astitch.program.steps import KernelStep, LibraryStep
from astitch.rewrite.simplify import simplify
from astitch.rewrite.split_k import (
    MOST_PARTS,
    choose_split_k,
    count_parts_of_xla,
    split_products,
)
from astitch.run.host_engine import HostEngine
from astitch.stitch_scope import Left
from tests.graphs import GraphBuilder

Function = Callable[..., Any]
H100 = preset("h100")


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def graph_of(fn: Function, *arguments: Any) -> Graph:
    lowered = jax.jit(fn).lower(*arguments)
    return simplify(import_hlo(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()))


def products(graph: Graph) -> list[tuple[int, ...]]:
    return [node.shape for node in graph if isinstance(node.attrs, DotAttrs)]


def test_as_many_parts_as_fill_the_device() -> None:
    assert choose_split_k(128, 768, 768, H100.sms) == 8
    assert choose_split_k(512, 512, 1024, H100.sms) == 4
    assert choose_split_k(1024, 768, 768, H100.sms) == 1  # fills it alone
    assert choose_split_k(128, 128, 64, H100.sms) == 1  # too short
    assert choose_split_k(8, 64, 1 << 16, H100.sms) > MOST_PARTS


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "parts"),
    [
        (8, 4096, 14336, 8),
        (8, 14336, 4096, 4),
        (8, 8192, 2048, 4),
        (8, 2048, 2048, 8),
        (64, 8192, 8192, 4),
        (64, 14336, 4096, 2),
        (64, 2048, 1024, 4),
    ],
)
def test_few_rows_are_cut_as_xla_cuts_them(rows: int, columns: int, depth: int, parts: int) -> None:
    """With fewer parts XLA would cut once more, and add its own in a kernel in front of ours."""
    assert choose_split_k(rows, columns, depth, H100.sms) == parts
    assert choose_split_k(columns, rows, depth, H100.sms) == parts


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "parts"),
    [
        (1024, 1024, 2048, 2),
        (512, 1024, 4096, 4),
        (256, 256, 1024, 8),
        (2048, 1024, 1024, 1),
        (4096, 4096, 1024, 1),
    ],
)
def test_xla_cuts_into_as_many_parts(rows: int, columns: int, depth: int, parts: int) -> None:
    """As it does with jax 0.12 on an H100, where a quarter of the multiprocessors is left to collectives."""
    left = dataclasses.replace(H100, sms=H100.sms - COLLECTIVE_BLOCKS)
    assert count_parts_of_xla(rows, columns, depth, 2, left) == parts


@pytest.mark.parametrize(("sends", "parts"), [(True, 2), (False, 1)])
def test_beside_communication_xla_cuts_no_product_again(sends: bool, parts: int) -> None:
    """A product that only XLA cuts tells its scheduler no time."""
    g = GraphBuilder()
    left, right = g.parameter("bf16[1024,2048]"), g.parameter("bf16[2048,1024]")
    made = g.op("tanh", "bf16[1024,1024]", g.dot(left, right, (1,), (0,)))
    if sends:
        attrs = OpaqueAttrs("all-reduce", "", b"", (None,), has_effect=True)
        made = g.op("opaque", g.array(made), made, attrs=attrs)
    left_to_us = dataclasses.replace(H100, sms=H100.sms - COLLECTIVE_BLOCKS)
    graph = split_products(simplify(g.build(made)), left_to_us)
    (shape,) = products(graph)
    assert (shape[0] if len(shape) > 2 else 1) == parts


def relu(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.maximum(x @ w, 0)


def gradient(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.tanh(jnp.einsum("btm,btn->mn", x, y))


def of_heads(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.nn.softmax(jnp.einsum("thd,hdn->tn", x, w), -1)


def batched(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.exp(jnp.einsum("bmk,bnk->bmn", x, w) * 0.01)


def turned(x: jax.Array, w: jax.Array) -> jax.Array:
    y = x @ w
    return jnp.sin(y.T), (y * y).sum()


CASES: dict[str, tuple[Function, tuple[Any, ...], tuple[int, ...]]] = {
    "relu": (relu, (normal(64, 512), normal(512, 96)), (16, 64, 96)),
    "long": (relu, (normal(64, 1024), normal(1024, 256)), (16, 64, 256)),
    "bf16": (
        relu,
        (normal(64, 512, dtype=jnp.bfloat16), normal(512, 96, dtype=jnp.bfloat16)),
        (16, 64, 96),
    ),
    "two dimensions": (gradient, (normal(4, 128, 64), normal(4, 128, 96)), (16, 64, 96)),
    "heads": (of_heads, (normal(64, 8, 64), normal(8, 64, 96)), (16, 64, 96)),
    "no power of two": (relu, (normal(64, 600), normal(600, 96)), (15, 64, 96)),
    "graph": (relu, (normal(128, 6000), normal(6000, 128)), (30, 128, 128)),
    "graph in bf16": (
        gradient,
        (normal(3, 2000, 64, dtype=jnp.bfloat16), normal(3, 2000, 96, dtype=jnp.bfloat16)),
        (30, 64, 96),
    ),
    "two readers": (turned, (normal(64, 512), normal(512, 96)), (16, 64, 96)),
}


@pytest.mark.parametrize("name", CASES)
def test_parts_add_up(name: str) -> None:
    fn, arguments, shape = CASES[name]
    graph = graph_of(fn, *arguments)
    cut = split_products(graph, H100)
    assert products(cut) == [shape]
    (dot,) = (node for node in cut if isinstance(node.attrs, DotAttrs))
    assert dot.dtype is DType.F32
    assert [node.type for node in map(cut.nodes.get, cut.outputs) if node] == [
        graph[name].type for name in graph.outputs
    ]
    for got, want in zip(run_graph(cut, arguments), run_graph(graph, arguments), strict=True):
        tolerance = 2e-2 if got.dtype != np.float32 else 1e-4
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance
        )


def handed_out(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = x @ w
    return y, jnp.tanh(y)


def multiplied_on(x: jax.Array, w: jax.Array) -> jax.Array:
    return x @ w @ w.T


def precise(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(jnp.dot(x, w, precision="highest"))


def by_integers(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.dot(x, w, preferred_element_type=jnp.int32) + 1


X, W = normal(64, 512), normal(512, 96)


@pytest.mark.parametrize(
    ("fn", "arguments"),
    [
        (handed_out, (X, W)),
        (multiplied_on, (X, W)),
        (precise, (X, W)),
        (by_integers, (X.astype(np.int8), W.astype(np.int8))),
        (batched, (normal(2, 64, 1024), normal(2, 96, 1024))),  # both operands would be copied
        (relu, (normal(4, 512), W)),  # XLA has other kernels for few rows
        (relu, (normal(64, 36), normal(36, 96))),  # too short
        (relu, (normal(64, 510), normal(510, 96))),  # parts would not begin at whole words
        (relu, (normal(64, 1 << 14), normal(1 << 14, 16))),  # more parts than a kernel adds
        (relu, (normal(64, 8 * 997), normal(8 * 997, 16))),  # no even parts
    ],
)
def test_others_stay(fn: Function, arguments: tuple[Any, ...]) -> None:
    graph = graph_of(fn, *arguments)
    assert split_products(graph, H100) is graph


REGION = RegionRules("body_", lambda graph: Left(graph, {}))


@pytest.mark.parametrize(
    "target",
    [Target(launcher=Launcher.XLA), Target(launcher=Launcher.REGION, region=REGION)],
    ids=["program", "turn of a loop"],
)
def test_the_kernel_that_reads_a_product_adds_its_parts(target: Target) -> None:
    fn, arguments, shape = CASES["heads"]
    graph = graph_of(fn, *arguments)
    compilation = compile_graph(graph, H100, target)
    dot, kernel = compilation.program.steps
    assert isinstance(dot, LibraryStep)
    assert dot.node.shape == shape
    assert isinstance(kernel, KernelStep)
    (got,) = HostEngine(compilation.program).run(arguments)
    (want,) = run_graph(graph, arguments)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    plain = compile_graph(graph, H100)
    assert [step.node.shape for step in plain.program.steps if isinstance(step, LibraryStep)] == [
        shape[1:]
    ]


@pytest.mark.parametrize(
    ("rows", "depth", "sent", "parts"),
    [
        (1024, 8192, True, 4),
        (1024, 8192, False, 1),  # of 2 MB each; it reads 25 MB
        (256, 8192, True, 16),
        (256, 8192, False, 1),  # of half a MB each; it reads 13 MB
        (1024, 32768, False, 8),  # it reads 101 MB
    ],
)
def test_there_are_no_large_parts_where_they_may_be_kept(
    rows: int, depth: int, sent: bool, parts: int
) -> None:
    """A product that a collective waits for, or none, beside one."""
    g = GraphBuilder()
    left, right = (g.parameter(f"bf16[{depth},{n}]") for n in (rows, 512))
    product = g.op("tanh", f"bf16[{rows},512]", g.dot(left, right, (0,), (0,)))
    attrs = OpaqueAttrs("all-reduce", "", b"", (None,), has_effect=True)
    given = product if sent else g.op("tanh", f"bf16[{depth},512]", right)
    received = g.op("opaque", g.array(given), given, attrs=attrs)
    graph = split_products(simplify(g.build(received, *[product][sent:])), H100)
    (shape,) = products(graph)
    assert (shape[0] if len(shape) > 2 else 1) == parts
