"""recompute: what later stages compute again, that it saves traffic, and that the function stays the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_arguments, random_graphs

import astitch.rewrite.recompute as recompute_module
from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.graph.check import check_graph
from astitch.graph.ir import Graph
from astitch.graph.ops import OPS
from astitch.graph.reference import run_graph
from astitch.graph.storage import storage_name, storage_type
from astitch.hlo_import import import_hlo
from astitch.kernel import kernel_ir as k
from astitch.kernel.visit_statements import list_statements
from astitch.rewrite.expand import expand
from astitch.rewrite.recompute import FREE_VERTICES, VERTICES_PER_OP, Staged, recompute
from astitch.rewrite.simplify import simplify
from astitch.run.host_engine import HostEngine
from astitch.scope.remote_stitch import stitch_remotely
from astitch.stitch_scope import Left, Scopes, choose_stages
from tests.hlo_runner import lower, run_xla
from tests.scopes import find_scopes


def imported(fn: Callable[..., Any], *arguments: Any) -> Graph:
    return expand(simplify(import_hlo(lower(fn, *arguments))))


def count_traffic(scopes: Scopes) -> int:
    """Bytes that the stitch ops read and write."""
    graph, total = scopes.graph, 0
    for scope in scopes.scopes:
        for names in (scope.inputs, scope.outputs):
            buffers = {storage_name(graph, name) for name in names}
            total += sum(storage_type(graph, buffer).bytes for buffer in buffers)
    return total


def compare_traffic(graph: Graph) -> tuple[int, int, Scopes]:
    """(kept, computed again, the scopes of the latter)."""
    again = stitch_remotely(find_scopes(graph))
    kept = stitch_remotely(find_scopes(graph, again=False))
    return count_traffic(kept), count_traffic(again), again


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


ROWS, WIDTH = 512, 1024  # 2 MB


def dense_gelu(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    return jnp.square(jax.nn.gelu(x @ w) @ v).sum()


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jnp.square(jax.nn.softmax(q @ k.T) @ v).sum()


@pytest.mark.parametrize(
    ("fn", "arguments", "saved"),
    [
        # The backward half reads x @ w and not the four arrays that the derivative of gelu is made of.
        (
            jax.grad(dense_gelu, (0, 1, 2)),
            (normal(ROWS, 64), normal(64, WIDTH), normal(WIDTH, 64)),
            4,
        ),
        # The probabilities are the exponentials, which are read in any case, over the rows' sums.
        (
            jax.grad(attention, (0, 1, 2)),
            (normal(ROWS, 64), normal(WIDTH, 64), normal(WIDTH, 64)),
            1,
        ),
    ],
    ids=["gelu", "attention"],
)
def test_backward_halves_compute_again(
    fn: Callable[..., Any],
    arguments: tuple[np.ndarray, ...],
    saved: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = imported(fn, *arguments)
    before, after, scopes = compare_traffic(graph)
    assert before - after >= saved * ROWS * WIDTH * 4
    assert scopes.recomputed
    check_graph(scopes.graph)
    for got, wanted in zip(
        run_graph(scopes.graph, arguments), run_graph(graph, arguments), strict=True
    ):
        np.testing.assert_array_equal(got, wanted)


def test_an_op_that_only_later_stages_need_moves_there() -> None:
    """The difference is needed by both stages, the sum and their product by the later one alone."""

    def two_stages(x: jax.Array, w: jax.Array) -> jax.Array:
        a = x @ w
        low = a - 3
        return jnp.tanh(low) @ w.T @ w + low * (a + 2)

    graph = imported(two_stages, normal(ROWS, 64), normal(64, WIDTH))
    scopes = find_scopes(graph)
    (note,) = scopes.recomputed
    assert [graph[name].op for name in note.names] == ["subtract", "add", "multiply"]
    twice = [graph[name].op for name in note.names if f"{name}.again" in scopes.graph.nodes]
    assert twice == ["subtract"]
    assert f"stage {note.stage} computes" in str(scopes)
    first, last = scopes.scopes
    assert set(first.members) & set(note.names) == {note.names[0]}
    assert set(last.members) >= set(note.names[1:])


def denoise(x: jax.Array, w: jax.Array, levels: int) -> jax.Array:
    """By wavelets of four taps: details of each level, less what comes of a product, put together again."""
    details = []
    for _ in range(levels):
        taps = [jnp.roll(x, -tap, -1)[:, ::2] for tap in range(4)]
        details.append(sum(tap * (0.4 - 0.3 * n) for n, tap in enumerate(taps)))
        x = sum(tap * (0.3 + 0.1 * n) for n, tap in enumerate(taps))
    least = (x @ w).max()
    for detail in reversed(details):
        kept = jnp.maximum(jnp.abs(detail) - least, 0)
        shifted = jnp.roll(kept, 1, -1)
        pair = jnp.stack([x * 0.3 + kept + shifted, x * 0.4 - kept - shifted], -1)
        x = pair.reshape(len(x), -1)
    return x


@pytest.mark.parametrize("levels", [1, 4])
def test_chains_of_filters_are_as_dear_as_they_are_evaluated(
    levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A level reads the one before at four places, so that the first one would be evaluated 256 times."""

    def count_filters() -> int:
        """Sums of a level's taps that are computed again."""
        again = {name for note in find_scopes(graph).recomputed for name in note.names}
        return sum(graph[name].op == "add" for name in again)

    arguments = normal(64, 1 << 14), normal((1 << 14) >> levels, 8)
    graph = imported(functools.partial(denoise, levels=levels), *arguments)
    counted = count_filters()
    monkeypatch.setattr(recompute_module, "_count_efforts", lambda *_: {})
    assert (counted < count_filters()) == (levels > 1)


@pytest.mark.parametrize("summed", [False, True], ids=["read later", "read at once too"])
def test_a_donated_state_is_read_once(summed: bool) -> None:
    """Adagrad, whose step waits for a later product.  XLA would copy the state if the step read it again behind the
    kernel that writes the new one."""

    def step(s: jax.Array, p: jax.Array, x: jax.Array, d: jax.Array, w: jax.Array) -> Any:
        g = x.T @ d
        new = s + g * g
        moved = g * jnp.where(new > 0, jax.lax.rsqrt(new + 1e-6), 0)
        size = jnp.square(jnp.tanh(x @ w) @ w.T).sum()
        return new, p - moved * size, moved.astype(jnp.bfloat16).sum(0) if summed else size

    state = normal(WIDTH, WIDTH)
    others = normal(ROWS, WIDTH), normal(ROWS, WIDTH), normal(WIDTH, 64)
    graph = replace(imported(step, state, state, *others), aliases=((0, 0), (1, 1)))
    scopes = find_scopes(graph)
    (reader,) = (scope for scope in scopes.scopes if graph.parameters[0] in scope.inputs)
    assert graph.outputs[0] in reader.outputs
    assert (graph.outputs[1] in reader.outputs) != summed


@pytest.mark.parametrize("counts", [True, False], ids=["a donated count", "a rate"])
def test_numbers_are_computed_again(counts: bool) -> None:
    """Adam's correction is read in two stages, a product apart.  Only a count that is a result is read from memory:
    its own memory is the new count's by then."""

    def step(count: jax.Array, x: jax.Array, w: jax.Array) -> Any:
        new = count + 1
        scale = 1 / (1 - 0.9**new)
        a = x * scale
        b = jnp.tanh(a @ w) * jnp.broadcast_to(scale, (ROWS, ROWS))
        return (new, a, b) if counts else (a, b)

    graph = imported(step, np.float32(3), normal(ROWS, WIDTH), normal(WIDTH, ROWS))
    if counts:
        graph = replace(graph, aliases=((0, 0),))
    scopes = find_scopes(graph)
    *first, last = scopes.scopes
    numbers = {name for name in last.inputs if scopes.graph[name].array.size == 1}
    assert numbers == {graph.outputs[0] if counts else graph.parameters[0]}
    stored = [storage_type(scopes.graph, name).size for scope in first for name in scope.outputs]
    assert sorted(stored) == ([1, ROWS * WIDTH] if counts else [ROWS * WIDTH])


def adam(count: jax.Array, p: jax.Array, g: jax.Array, m: jax.Array) -> Any:
    count = count + 1
    m = 0.9 * m + 0.1 * g
    return count, p - m / (1 - 0.9**count), m


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_a_result_that_is_a_number_parts_no_loop(kind: Any) -> None:
    """What reads an optimizer's count has one of its own: the moment need not be loaded again behind a barrier."""
    arrays = [normal(ROWS, WIDTH) for _ in range(3)]
    compilation = compile_graph(imported(adam, kind(3), *arrays), preset("h100"))
    (plan,) = compilation.plans
    assert plan.kernel.global_barriers == 0
    loads = [s for s in list_statements(plan.kernel.body) if isinstance(s, k.LoadVector)]
    assert len(loads) == 3


def test_numbers_that_nothing_large_reads_stay_as_they_are() -> None:
    def fn(count: jax.Array, x: jax.Array) -> Any:
        new = count + 1
        return new, 1 - 0.9**new, jnp.tanh(x)

    graph = imported(fn, np.float32(3), normal(ROWS, WIDTH))
    assert find_scopes(graph).graph is graph


def test_a_sum_that_is_a_result_is_not_summed_again() -> None:
    def fn(x: jax.Array) -> Any:
        total = jnp.square(x).sum()
        return total + 1, x / (total + 1)

    scopes = find_scopes(imported(fn, normal(ROWS, WIDTH)))
    assert sum(OPS[node.op].is_reduce for node in scopes.graph) == 1


def test_a_number_behind_a_sum_is_kept() -> None:
    def fn(x: jax.Array, w: jax.Array) -> Any:
        scale = jax.lax.rsqrt(jnp.square(x).sum())
        return jnp.tanh((x * scale) @ w) * scale

    scopes = find_scopes(imported(fn, normal(ROWS, WIDTH), normal(WIDTH, ROWS)))
    assert scopes.recomputed == ()


def test_what_is_dear_is_kept() -> None:
    """Random bits take a hundred operations for an element: the mask is stored."""

    def dropout(x: jax.Array, w: jax.Array, key: jax.Array) -> jax.Array:
        mask = jax.random.bernoulli(key, 0.9, (ROWS, WIDTH))
        return jnp.square(jnp.where(mask, x @ w, 0) @ w.T).sum()

    graph = imported(jax.grad(dropout), normal(ROWS, 64), normal(64, WIDTH), np.zeros(2, np.uint32))
    again = {name for note in find_scopes(graph).recomputed for name in note.names}
    assert not any(graph[name].op in ("xor", "shift-left") for name in again)


@pytest.mark.parametrize("needed_twice", [False, True])
def test_what_is_dear_moves_to_the_only_stage_that_needs_it(needed_twice: bool) -> None:
    """It costs as much there, and is not stored.  What two stages need is."""

    def bend(y: jax.Array) -> jax.Array:
        for _ in range(12):
            y = jnp.sin(jnp.exp(-y))
        return y

    def fn(x: jax.Array, w: jax.Array, row: jax.Array, column: jax.Array) -> Any:
        kept = bend(row + column) > bend(row * column)  # a byte of two times four
        y = jnp.where(kept, jnp.tanh(x @ w), 0.0)
        return jnp.where(kept, jnp.sin(y @ w.T @ w), 0.0) if needed_twice else y

    rows = 4 * ROWS
    arguments = normal(rows, 64), normal(64, WIDTH), normal(WIDTH), normal(rows, 1)
    before, after, scopes = compare_traffic(imported(fn, *arguments))
    moved = {name for note in scopes.recomputed for name in note.names}
    sines = {name for name in moved if scopes.graph[name].op == "sine"}
    assert len(sines) == (0 if needed_twice else 24)
    saved = 0 if needed_twice else 2 * rows * WIDTH
    assert before - after == pytest.approx(saved, rel=0.01)


@pytest.mark.parametrize(
    ("rows", "width", "kept"), [(64, 256, False), (4096, 256, False), (1 << 20, 1, True)]
)
def test_lookups_are_done_again(rows: int, width: int, kept: bool) -> None:
    """In a table that is hardly smaller than what is looked up, each lookup reads memory: a number alone as much as
    eight side by side."""

    def fn(table: jax.Array, index: jax.Array, x: jax.Array, w: jax.Array) -> Any:
        found = table[index].reshape(x.shape) + x
        return (jnp.tanh(found) @ w) * found

    index = np.arange(4096 * 256 // width, dtype=np.int32).reshape(4096, -1) % rows
    arguments = normal(rows, width), index, normal(4096, 256)
    scopes = find_scopes(simplify(imported(fn, *arguments, normal(256, 256))))
    again = {name for note in scopes.recomputed for name in note.names}
    gathers = {node.name for node in scopes.graph if node.op == "gather"}
    assert gathers and gathers.isdisjoint(again) == kept


@pytest.mark.parametrize(
    "put",
    [
        lambda a, b: jnp.concatenate([a, b], 1),
        lambda a, b: jnp.concatenate([a[:, None], b[:, None]], 1).reshape(len(a), -1),
        lambda a, b: jnp.pad(a, ((0, 0), (0, 256))) + jnp.pad(b, ((0, 0), (256, 0))),
    ],
    ids=["concatenation", "stack", "pads"],
)
def test_rows_side_by_side_are_not_kept(put: Callable[..., jax.Array]) -> None:
    """As in graph attention: both ends of an edge are looked up, and the gradient looks them up again."""

    def fn(table: jax.Array, source: jax.Array, target: jax.Array, w: jax.Array) -> jax.Array:
        ends = put(table[source], table[target])
        return (jnp.tanh(ends) @ w) * ends

    ends = np.arange(4096, dtype=np.int32) % 64
    graph = imported(fn, normal(64, 256), ends, ends[::-1].copy(), normal(512, 512))
    assert count_kept(find_scopes(graph)) <= 2 * ends.nbytes
    assert count_kept(find_scopes(graph, again=False)) >= 4096 * 512 * 4


def test_what_is_small_is_kept() -> None:
    graph = imported(jax.grad(dense_gelu), normal(32, 64), normal(64, 128), normal(128, 64))
    assert find_scopes(graph).recomputed == ()


def test_the_search_is_linear_in_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """150 stages that could each compute the same 300 ops again: those beyond the limit keep what they read."""

    def shared(x: jax.Array, w: jax.Array) -> jax.Array:
        values = [x]
        for n in range(300):
            values.append(jnp.maximum(values[-1], values[n // 2] * (n + 2.0)))
        y = x
        for n in range(150):
            y = (y + values[n + 150] * values[n + 151]) @ w
        return y

    graph = imported(shared, normal(256, 256), normal(256, 256))
    looked_at: list[int] = []
    choose = recompute_module._choose
    monkeypatch.setattr(
        recompute_module,
        "_choose",
        lambda *given: (found := choose(*given), looked_at.append(found[2]))[0],
    )
    scopes = find_scopes(graph)
    limit = FREE_VERTICES + VERTICES_PER_OP * len(graph)
    assert sum(looked_at[:-1]) <= limit < sum(looked_at) and len(looked_at) < 150
    check_graph(scopes.graph)


def test_kernels_agree() -> None:
    arguments = normal(300, 16), normal(16, WIDTH), normal(WIDTH, 16)
    fn = jax.grad(dense_gelu, (0, 1, 2))
    hlo = lower(fn, *arguments)
    compilation = compile_graph(import_hlo(hlo), preset("h100"))
    assert compilation.scopes.recomputed and "computed again: by" in compilation.explain()
    got = HostEngine(compilation.program).run(arguments)
    for a, b in zip(got, run_xla(hlo, arguments, optimise=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6 * float(np.abs(b).max()))


def draw_aliases(graph: Graph, data: st.DataObject) -> tuple[tuple[int, int], ...]:
    """Pairs of a result and a parameter of one type, each at most once."""
    found: dict[int, int] = {}
    for output, name in enumerate(graph.outputs):
        for parameter, place in enumerate(graph.parameters):
            fits = graph[name].type == graph[place].type and parameter not in found.values()
            if fits and output not in found and data.draw(st.booleans()):
                found[output] = parameter
    return tuple(found.items())


@settings(max_examples=150, deadline=None, derandomize=True)
@given(random_graphs(25), st.integers(0, 3), st.data())
def test_any_choice_keeps_the_function(graph: Graph, seed: int, data: st.DataObject) -> None:
    """Ops of random stages, everything worth computing again."""
    simple = simplify(graph)
    outside = {
        node.name: "drawn"
        for node in simple
        if node.op not in ("parameter", "constant", "iota") and data.draw(st.integers(0, 3)) == 0
    }
    stage: dict[str, int] = {}
    for node in simple:
        stage[node.name] = max((stage[o] for o in node.operands), default=0) + (
            node.name in outside
        )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("astitch.rewrite.recompute.LEAST_BYTES", 1)
        patched.setattr("astitch.rewrite.recompute.LEAST_GAIN", 1)
        patched.setattr("astitch.rewrite.recompute.FLOPS_PER_BYTE", 1000)
        aliased = replace(simple, aliases=draw_aliases(simple, data))
        staged = recompute(Staged(aliased, stage, outside))
    after = check_graph(staged.graph)
    assert after.parameters == simple.parameters and after.outputs == simple.outputs
    assert set(staged.stage) == set(after.nodes)
    for node in after:
        before = max((staged.stage[o] for o in node.operands), default=0)
        assert staged.stage[node.name] >= before + (node.name in outside)
    arguments = random_arguments(graph, seed)
    with np.errstate(all="ignore"):
        for a, b in zip(run_graph(after, arguments), run_graph(simple, arguments), strict=True):
            np.testing.assert_array_equal(a, b)


def gate(act: Callable[[jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    def loss(x: jax.Array, w: jax.Array, u: jax.Array, d: jax.Array) -> jax.Array:
        return jnp.square((act(x @ w) * (x @ u)) @ d).sum()

    return jax.grad(loss, (0, 1, 2, 3))


SILU = {
    "library": jax.nn.silu,
    "quotient": lambda x: x / (1 + jnp.exp(-x)),
    "tanh": lambda x: 0.5 * x * (1 + jnp.tanh(0.5 * x)),
    "swish in f32": lambda x: x.astype(jnp.float32) * jax.nn.sigmoid(x.astype(jnp.float32)),
}


def count_kept(scopes: Scopes) -> int:
    """Bytes that stitch ops store for stitch ops of later stages alone."""
    graph, total = scopes.graph, 0
    stitched = {member for scope in scopes.scopes for member in scope.members}
    for scope in scopes.scopes:
        for output in scope.outputs:
            is_read = any(output in s.inputs for s in scopes.scopes if s.stage > scope.stage)
            if is_read and stitched.issuperset(graph.users[output]) and output not in graph.outputs:
                total += storage_type(graph, output).bytes
    return total


@pytest.mark.parametrize("name", SILU)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_gates_keep_nothing_but_what_products_keep(name: str, dtype: Any) -> None:
    """One layer: the backward half is two stages behind the forward half, where the most is alive."""
    shapes = [(ROWS, 64), (64, WIDTH), (64, WIDTH), (WIDTH, 64)]
    graph = imported(gate(SILU[name]), *(normal(*shape).astype(dtype) for shape in shapes))
    assert count_kept(find_scopes(graph)) == 0
    assert count_kept(find_scopes(graph, again=False)) > 0


def excite(x: jax.Array, weights: list[jax.Array]) -> jax.Array:
    """Layers whose activation is read again behind a product of its own mean (squeeze and excitation)."""
    for w, v in weights:
        y = jax.nn.silu(x @ w)
        gate = jax.nn.sigmoid(jnp.mean(y.astype(jnp.float32), 1) @ v).astype(y.dtype)
        x = x + (y * gate[:, None]) @ w.T
    return jnp.square(x.astype(jnp.float32)).sum()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_memory_is_dearer_where_too_much_is_kept(dtype: Any) -> None:
    x = normal(8, 256, 128).astype(dtype)
    weights = [(normal(128, 512).astype(dtype), normal(512, 512)) for _ in range(4)]
    graph = imported(jax.grad(excite, 1), x, weights)
    staged = choose_stages(Left(graph))
    found, dear = recompute(staged), recompute(staged, 0)
    arguments = random_arguments(graph, 0)
    for one, other in zip(
        run_graph(found.graph, arguments), run_graph(dear.graph, arguments), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert recompute(staged, recompute_module.count_kept(found)) == found
    if dtype is jnp.bfloat16:
        assert recompute_module.count_kept(dear) <= 0.9 * recompute_module.count_kept(found)
    else:
        assert recompute_module.count_kept(dear) <= recompute_module.count_kept(found)
