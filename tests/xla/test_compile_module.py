"""Bodies of loops and branches of conditionals with kernels in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import astitch
from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.graph.ir import ArrayType, CustomCallAttrs, DType, Graph, Node, TupleType
from astitch.hlo_import import import_hlo
from astitch.kernel.in_place import LEAST_BYTES_AGAIN
from astitch.pipeline import Target
from astitch.show.compilation import Compilation
from astitch.xla.compile_module import export_bodies, find_least_in_region
from astitch.xla.memory_reuse import find_carried_in_place
from astitch.xla.prepare_kernels import KernelRefusal, XlaKernel
from astitch.xla.slices import find_slices
from astitch.xla.stitch_regions import find_unworthy, stitch_bodies
from astitch.xla.write_module import export_program
from tests.emulated_xla import (
    _as_if_there_was_a_gpu,  # noqa: F401
    as_text,
    config_of,
    is_kernel,
    kernels_of,
    layer_norm,
    lower_for_cuda,
    normal,
    planned_kernels,
    run_graph,
    with_text,
)
from tests.hlo_runner import lower
from tests.small_gpu import few_sms


def lstm(weights, xs, h, c):
    """With cells centred.  xs: [time, batch, features]; the last states and those of all times."""

    def turn(state, x):
        h, c = state
        i, f, g, o = jnp.split(x @ weights[0] + h @ weights[1] + weights[2], 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c - c.mean(-1, keepdims=True))
        return (h, c), h

    return jax.lax.scan(turn, (h, c), xs)


def lstm_gradients(*arguments):
    return jax.grad(lambda *a: jnp.square(lstm(*a)[1]).sum(), argnums=(0, 1))(*arguments)


def turn_until_small(x):
    def turn(state):
        count, x = state
        x = jax.nn.softmax(x @ x, axis=-1) - 0.9 * x
        return count + 1, x

    return jax.lax.while_loop(lambda s: (jnp.abs(s[1]).max() > 0.2) & (s[0] < 5), turn, (0, x))


def nested(x):
    def inner(_, x):
        return jnp.tanh(x @ x) - x.mean(-1, keepdims=True)

    def outer(state):
        count, x = state
        return count + 1, jax.lax.fori_loop(0, count + 1, inner, x) * 0.5 + x.sum(0)

    return jax.lax.while_loop(lambda s: s[0] < 3, outer, (0, x))


def choose_in_scan(xs, w):
    def turn(h, x):
        h = jax.lax.cond(
            x.sum() > 0,
            lambda h: jnp.tanh(h @ w) * 2 + h,
            lambda h: layer_norm(h, 1.0, 0.0) - jnp.exp(h @ w),
            h,
        )
        return h, h.sum(-1)

    return jax.lax.scan(turn, xs[0], xs)


def write_rows(x, w):
    def turn(i, state):
        table, x = state
        x = jax.nn.relu(x @ w) + jnp.sin(x) * 0.1
        return table.at[i].set(x.mean(0)), x

    return jax.lax.fori_loop(0, 6, turn, (jnp.zeros((6, x.shape[1])), x))


LSTM = (
    (normal(5, 32) / 3, normal(8, 32) / 3, normal(32)),
    normal(4, 3, 5),
    normal(3, 8),
    normal(3, 8),
)
LOOPS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int]] = {
    "lstm": (lstm, LSTM, 1),
    "lstm_gradients": (lstm_gradients, LSTM, 2),
    "until_small": (turn_until_small, (normal(8, 8) / 3,), 1),
    "nested": (nested, (normal(8, 8) / 3,), 2),
    "choose_in_scan": (choose_in_scan, (normal(4, 6, 8) / 3, normal(8, 8) / 3), 3),
    "write_rows": (write_rows, (normal(5, 8), normal(8, 8) / 3), 1),
}
"""With the least number of kernels in bodies."""


def compile_loop(name: str) -> tuple[Compilation, dict[Graph, Graph]]:
    fn, arguments, _ = LOOPS[name]
    graph = import_hlo(lower(fn, *arguments, keep_unused=True))
    return export_bodies(stitch_bodies(compile_graph(graph, few_sms(4))), as_body_text)


def as_body_text(body: Compilation, loop: bool) -> dict[str, XlaKernel | KernelRefusal]:
    in_place = find_carried_in_place(body) if loop else {}
    slices = find_slices(body, loop=True) if loop else {}
    left = find_unworthy(body, slices)
    kernels = as_text(body)
    for kernel in planned_kernels(body):
        if kernel.name in left:
            kernels[kernel.name] = KernelRefusal(kernel.name, left[kernel.name])
            continue
        pairs, cuts = in_place.get(kernel.name, ()), slices.get(kernel.name, ())
        kernels[kernel.name] = with_text(kernel, pairs, cuts)
    return kernels


def test_a_body_that_would_need_more_than_xla_writes_over_smaller_arrays():
    """A softmax is as large as the product that it reads."""

    def turn(h: Any, _: Any) -> Any:
        wide = jax.nn.softmax(h @ np.ones((1024, 2048), np.float32), -1)
        return jnp.tanh(wide @ np.ones((2048, 1024), np.float32)), None

    x = np.ones((512, 1024), np.float32)
    graph = import_hlo(lower(lambda x: jax.lax.scan(turn, x, None, length=3), x))
    (body,) = stitch_bodies(compile_graph(graph, preset("h100"))).bodies
    least = find_least_in_region(body.compilation)
    assert least < LEAST_BYTES_AGAIN
    (pairs,) = find_carried_in_place(body.compilation, least).values()
    assert len(pairs) == 1
    assert not find_carried_in_place(body.compilation)


@pytest.mark.parametrize("name", LOOPS)
def test_kernels_in_bodies_compute_what_xla_does(name: str) -> None:
    fn, arguments, least = LOOPS[name]
    compilation, regions = compile_loop(name)
    graph = import_hlo(export_program(compilation, as_text(compilation), regions))
    calls = kernels_of(graph)
    inside = len(calls) - sum(map(is_kernel, graph))
    assert inside >= least
    names = [config_of(node)["name"] for node in calls]
    assert len(set(names)) == len(names)
    explained = compilation.explain()
    assert all(kernel in explained for kernel in names)
    got = run_graph(graph, jax.tree.leaves(arguments))
    for a, b in zip(got, jax.tree.leaves(jax.jit(fn)(*arguments)), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["lstm", "lstm_gradients", "write_rows"])
def test_a_loop_updates_its_stacks_in_place_and_counts_by_xla(name: str) -> None:
    _, regions = compile_loop(name)
    slices = 0
    for body in regions.values():
        updates = [n for n in body if n.op in ("dynamic-update-slice", "scatter")]
        scalars = [n for n in body if is_kernel(n) and n.type == ArrayType(DType.S32, ())]
        assert not scalars
        counters = [o for o in body.outputs if body[o].type == ArrayType(DType.S32, ())]
        assert "add" in [body[counter].op for counter in counters]
        assert {body[counter].op for counter in counters} <= {"add", "parameter"}
        stacks = {body[p].array for p in body.parameters if body[p].array.rank == 3}
        stacks |= {u.array for u in updates}
        for node in filter(is_kernel, body):
            assert isinstance(node.attrs, CustomCallAttrs)
            results = parts_of(node)
            shared = [r for r, _ in node.attrs.aliases]
            assert all(n in shared for n, t in enumerate(results) if t in stacks)
            slices += sum(t in stacks for t in results)
        slices += len(updates)
    assert slices


def parts_of(node: Node) -> tuple[ArrayType, ...]:
    return node.type.elements if isinstance(node.type, TupleType) else (node.type,)


def test_a_carried_state_is_written_over() -> None:
    """The gradient of the biases, a sum over rows that is added to what the loop carries."""
    _, regions = compile_loop("lstm_gradients")
    found = 0
    for body in regions.values():
        for call in filter(is_kernel, body):
            assert isinstance(call.attrs, CustomCallAttrs)
            for _, read in call.attrs.aliases:
                place = body.parameters.index(call.operands[read])
                assert body[body.outputs[place]].array == body[call.operands[read]].array
                maker = body[body.outputs[place]]
                assert call.name in (maker.name, *maker.operands)
                found += 1
    assert found >= 1


@pytest.mark.usefixtures("_as_if_there_was_a_gpu")
def test_bodies_have_kernels_where_that_is_turned_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astitch.xla.plan_turns.MOST_NODES", 0)  # else the loop is one kernel
    stitched, text = lower_for_cuda(astitch.jit(lstm, stitch="stitch-bodies"), *LSTM)
    (body,) = stitched.compilation.bodies
    assert (body.op, body.compilation.bodies) == ("while", ())
    assert "body_0_stitch_1" in text
    whole, inside = stitched.compilation.explain().split("\n\nin %")
    assert "\nleft to XLA:" not in whole
    assert "\nleft to XLA: " in inside
    assert inside.count("\n  body_0_stitch_0 is left to XLA: it only moves elements") == 1
    stitched, text = lower_for_cuda(astitch.jit(lambda *a: lstm(*a)), *LSTM)
    assert stitched.compilation.bodies == ()
    assert "body_0_" not in text


def test_bodies_are_tuned_where_the_whole_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def compile_region(
        graph: Graph, gpu: Any, target: Target, *, tune: bool, faults: Any
    ) -> Compilation:
        assert target.region and not target.orders_scatters
        asked.append((target.region.prefix, tune))
        return compile_graph(graph, gpu, target, faults=faults)

    monkeypatch.setattr("astitch.xla.stitch_regions.compile_graph", compile_region)
    whole = compile_graph(import_hlo(lower(nested, normal(8, 8))), few_sms(4))
    stitch_bodies(whole, tune=True)
    assert asked == [("body_0_", True), ("body_0_body_0_", True)]


def test_what_one_fusion_computes_is_left_to_xla() -> None:
    def double(x):
        return jax.lax.fori_loop(0, 4, lambda _, x: jnp.tanh(x @ x) * 2, x)

    graph = import_hlo(lower(double, normal(8, 8)))
    whole = stitch_bodies(compile_graph(graph, few_sms(4)))
    compilation, regions = export_bodies(whole, as_body_text)
    (body,) = compilation.bodies
    (note,) = body.compilation.program.notes
    assert note.endswith("is left to XLA: it has no reduction and results of one size")
    assert regions == {}
