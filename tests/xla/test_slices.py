"""Kernels that write into slices of a loop's stacks: which results they are; the stacks hold what they should."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.sharding import SingleDeviceSharding

import astitch
from astitch.compile import compile_graph
from astitch.graph.ir import CustomCallAttrs, Graph
from astitch.hlo_import import import_hlo
from astitch.xla.compile_module import export_bodies
from astitch.xla.slices import find_slices
from astitch.xla.stitch_regions import stitch_bodies
from astitch.xla.write_module import export_program
from tests.ahead_of_time import compile_ahead, devices, hooked, needs_hook
from tests.emulated_xla import as_text, is_kernel, run_graph, with_text
from tests.hlo_runner import lower
from tests.small_gpu import few_sms

_RANDOM = np.random.default_rng(0)
X = _RANDOM.standard_normal((12, 16)).astype(np.float32)
W = _RANDOM.standard_normal((16, 16)).astype(np.float32) / 4
BF16 = ml_dtypes.bfloat16


def centre(h: Any, w: Any) -> Any:
    h = jnp.tanh(h @ w)
    return h - h.mean(-1, keepdims=True)


def stacks(x: Any, w: Any) -> Any:
    """Several results of a turn, of other shapes and types."""

    def turn(h: Any, _: Any) -> Any:
        h = centre(h, w)
        return h, (h * 2, h.max(-1), h.sum(0) > 0, (h.max(-1) > 0.5).astype(jnp.int32))

    return lax.scan(turn, x, None, length=5)


def backwards(x: Any, w: Any) -> Any:
    def turn(h: Any, y: Any) -> Any:
        h = centre(h + y, w)
        return h, (jnp.exp(h), h.sum(0))

    return lax.scan(turn, x, jnp.stack([x, x * 2, x - 1, x * x]), reverse=True)


def kept_for_a_gradient(x: Any, w: Any) -> Any:
    def loss(x: Any, w: Any) -> Any:
        return (lax.scan(lambda h, _: (centre(h, w), None), x, None, length=4)[0] ** 2).sum()

    return jax.grad(loss, (0, 1))(x, w)


def at_two_indices(x: Any, w: Any) -> Any:
    def turn(i: Any, state: Any) -> Any:
        table, h = state
        h = centre(h, w)
        return lax.dynamic_update_slice(table, h.sum(0)[None, None], (i // 3, i % 3, 0)), h

    return lax.fori_loop(0, 6, turn, (jnp.zeros((2, 3, 16), x.dtype), x))


def beyond_the_end(x: Any, w: Any) -> Any:
    """The start is held inside, at both ends."""

    def turn(i: Any, state: Any) -> Any:
        table, h = state
        h = centre(h, w)
        return lax.dynamic_update_slice(table, h[:4] - h.max(), (i * 4 - 7, 0)), h

    return lax.fori_loop(0, 8, turn, (jnp.zeros((16, 16), x.dtype), x))


def in_a_loop_of_loops(x: Any, w: Any) -> Any:
    def outer(h: Any, _: Any) -> Any:
        h, rows = lax.scan(lambda g, _: (centre(g, w), g.sum(0) * 3), h, None, length=3)
        return h, (rows.sum(0) - h.max(), h.min(-1))

    return lax.scan(outer, x, None, length=2)


def in_pieces(x: Any, w: Any) -> Any:
    """A column of each row: 12 pieces of memory."""

    def turn(i: Any, state: Any) -> Any:
        table, h = state
        h = centre(h, w)
        return lax.dynamic_update_slice(table, h[:, None] * 2, (0, i, 0)), h

    return lax.fori_loop(0, 3, turn, (jnp.zeros((12, 3, 16), x.dtype), x))


def read_by_its_kernel(x: Any, w: Any) -> Any:
    """The kernel that stores a value reads it too: one in registers, one behind a barrier of all blocks."""

    def turn(h: Any, _: Any) -> Any:
        kept = jnp.exp(centre(h, w))
        apart = kept - kept.sum(0)
        spread = jnp.tile(apart, (40, 8))
        return spread[:12, :16] / (spread.sum() + spread.max(0)[:16]), (kept, apart)

    return lax.scan(turn, x, None, length=4)


TAKEN: dict[str, tuple[Callable[..., Any], int]] = {
    "stacks": (stacks, 3),
    "backwards": (backwards, 2),
    "kept_for_a_gradient": (kept_for_a_gradient, 1),
    "at_two_indices": (at_two_indices, 1),
    "beyond_the_end": (beyond_the_end, 1),
    "in_a_loop_of_loops": (in_a_loop_of_loops, 2),
    "in_pieces": (in_pieces, 1),
    "read_by_its_kernel": (read_by_its_kernel, 1),
}
"""Functions with the least number of slices that kernels write."""


def in_planes(x: Any, w: Any) -> Any:
    """Two rows and two columns of each: pieces of pieces."""

    def turn(i: Any, state: Any) -> Any:
        table, h = state
        h = centre(h, w)
        part = (h[:, None, None] * 2).repeat(2, 1).repeat(2, 2)
        return lax.dynamic_update_slice(table, part, (0, i, i, 0)), h

    return lax.fori_loop(0, 3, turn, (jnp.zeros((12, 6, 6, 16), x.dtype), x))


def transposed_for_a_product(x: Any, w: Any) -> Any:
    """XLA may carry the table in the order in which the product reads it."""

    def turn(i: Any, state: Any) -> Any:
        table, h = state
        h = centre(h, w)
        new = (h * 2).reshape(12, 1, 2, 8)
        table = lax.dynamic_update_slice(table, new, (0, i, 0, 0))
        turned = table.reshape(4, 3, 3, 2, 8).transpose(0, 1, 3, 4, 2)
        scores = jnp.einsum("bkhrd,bkhdl->bkhrl", h.reshape(4, 3, 2, 1, 8).repeat(9, 3), turned)
        return table, h + scores.sum((2, 3, 4)).reshape(12, 1)

    return lax.fori_loop(0, 3, turn, (jnp.zeros((12, 3, 2, 8), x.dtype), x))


def handed_on_too(x: Any, w: Any) -> Any:
    def turn(h: Any, _: Any) -> Any:
        h = centre(h, w)
        return h, h

    return lax.scan(turn, x, None, length=3)


def where_data_say(x: Any, w: Any) -> Any:
    def turn(_: Any, state: Any) -> Any:
        table, h = state
        h = centre(h, w)
        start = jnp.argmax(h.sum(0)).astype(jnp.int32)
        return lax.dynamic_update_slice(table, h.sum(0)[None] * 2, (start, 0)), h

    return lax.fori_loop(0, 3, turn, (jnp.zeros((16, 16), x.dtype), x))


def read_besides(x: Any, w: Any) -> Any:
    def turn(i: Any, state: Any) -> Any:
        table, h = state
        h = centre(h + table.sum(0), w)
        return lax.dynamic_update_slice(table, h.sum(0)[None] * 2, (i, 0)), h

    return lax.fori_loop(0, 3, turn, (jnp.zeros((16, 16), x.dtype), x))


NOT_TAKEN = (in_planes, transposed_for_a_product, handed_on_too, where_data_say, read_besides)


def stitch(
    fn: Callable[..., Any], arguments: list[np.ndarray], *, cuts: bool = True
) -> tuple[Graph, int]:
    """(the module's graph, how many slices its kernels write).  cuts: may they write any?"""
    slices = 0

    def prepare(body: Any, loop: bool) -> Any:
        nonlocal slices
        found = find_slices(body, loop=True) if loop and cuts else {}
        kernels = dict(as_text(body))
        for plan in body.plans:
            own = found.get(plan.kernel.name, ())
            kernels[plan.kernel.name] = with_text(plan.kernel, (), own)
            slices += len(own)
        return kernels

    whole = stitch_bodies(compile_graph(import_hlo(lower(fn, *arguments)), few_sms(4)))
    compilation, regions = export_bodies(whole, prepare)
    return import_hlo(export_program(compilation, as_text(compilation), regions)), slices


def check(fn: Callable[..., Any], arguments: list[np.ndarray], graph: Graph) -> None:
    compare(run_graph(graph, arguments), jax.jit(fn)(*arguments))


def compare(got: Any, wanted: Any) -> None:
    """The first result says how exact they are."""
    wide = jax.tree.leaves(wanted)[0].dtype == np.float32
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if a.dtype.kind in "bi":  # rounding in 16 bits decides a few
            assert np.mean(a != b) <= (0 if wide else 0.2)
            continue
        a, b = (np.asarray(v, np.float64) for v in (a, b))
        np.testing.assert_allclose(a, b, rtol=2e-4 if wide else 0.1, atol=2e-5 if wide else 0.3)


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("name", TAKEN)
def test_slices_are_written_by_kernels(name: str, dtype: Any) -> None:
    fn, least = TAKEN[name]
    arguments = [X.astype(dtype), W.astype(dtype)]
    graph, slices = stitch(fn, arguments)
    assert slices >= least
    check(fn, arguments, graph)
    apart, _ = stitch(fn, arguments, cuts=False)
    for one, other in zip(run_graph(graph, arguments), run_graph(apart, arguments), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("fn", NOT_TAKEN)
def test_what_a_kernel_cannot_write_xla_updates(fn: Callable[..., Any]) -> None:
    graph, slices = stitch(fn, [X, W])
    assert slices == 0
    check(fn, [X, W], graph)


def test_a_slice_that_is_not_aligned_is_written_by_elements() -> None:
    """Rows of 7 numbers start anywhere: only a kernel that stores one element at a time may write them."""

    def fn(x: Any, w: Any) -> Any:
        def turn(state: Any, _: Any) -> Any:
            table, h, i = state
            h = centre(h, w)
            table = lax.dynamic_update_slice(table, h.max(-1)[:, None, None], (0, i, 0))
            return (table, h, i + 1), (h[:, :7].sum(0), h.sum(-1)[:3])

        return lax.scan(turn, (jnp.zeros((12, 5, 1), x.dtype), x, 0), None, length=5)

    graph, slices = stitch(fn, [X, W])
    assert slices == 3
    check(fn, [X, W], graph)


def test_a_stack_is_the_memory_of_its_slice() -> None:
    graph, slices = stitch(stacks, [X, W])
    (loop,) = (node for node in graph if node.op == "while")
    body = loop.regions[1]
    shared = sum(
        len(node.attrs.aliases)
        for node in filter(is_kernel, body)
        if isinstance(node.attrs, CustomCallAttrs)
    )
    assert shared == slices
    updates = [node for node in body if node.op == "dynamic-update-slice"]
    assert len(updates) <= 4 - slices


@needs_hook
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_xla_copies_no_slice_behind_a_kernel(dtype: Any) -> None:
    arrays = [jax.ShapeDtypeStruct(a.shape, dtype, sharding=place()) for a in (X, W)]
    with hooked() as seen:
        text = compile_ahead(backwards, *arrays).as_text()
    assert seen.stitchings[-1].kernels
    assert "xla.gpu.ptx" in text
    assert not re.search(r"dynamic[-_]update[-_]slice", text)


def place() -> Any:
    return SingleDeviceSharding(devices()[0])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("name", TAKEN)
def test_stacks_on_a_gpu_hold_what_xla_s_do(name: str, dtype: Any) -> None:
    fn, _ = TAKEN[name]
    results = []
    for enabled in (astitch.enabled(), astitch.disabled()):
        with enabled, jax.default_matmul_precision("highest"):
            compiled = (
                jax.jit(lambda *given: fn(*given)).lower(X.astype(dtype), W.astype(dtype)).compile()
            )
        results.append(compiled(X.astype(dtype), W.astype(dtype)))
    compare(*results)
