"""Rows whose numbers are computed apart: loops of one turn, their values, and when kernels on elements stay."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.graph.ir import DimensionAttrs, Graph, Node, OpaqueAttrs
from astitch.loops import joined_rows
from astitch.loops.analysis import LoopRefusal
from astitch.loops.emit import emit_loop
from astitch.loops.joined_rows import LEAST_THREADS, loop_over_joined_rows
from astitch.loops.plan import LoopPlan, LoopPlanner
from astitch.loops.row_groups import Paths
from astitch.run.emulate import compile_host
from tests.graphs import GraphBuilder
from tests.loop_runner import H100, evaluate, launch, loops_of, plan, read

RNG = np.random.default_rng(0)
ROWS = 10 * LEAST_THREADS + 3
"""The last warp has three rows."""


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def rotate(q: Any, stack: Callable[..., Any]) -> Any:
    """Rotations of quaternions, by one of the ways to put nine numbers together."""
    q = q / jnp.linalg.norm(q, axis=-1, keepdims=True)
    w, x, y, z = (q[..., i] for i in range(4))
    return stack(
        [
            *(1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
            *(2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
            *(2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
        ]
    )


def stack_last(numbers: Any) -> Any:
    return jnp.stack(numbers, -1).reshape(*numbers[0].shape, 3, 3)


def join_columns(numbers: Any) -> Any:
    return jnp.concatenate([number[..., None] for number in numbers], -1)


def transpose_stacked(numbers: Any) -> Any:
    return jnp.array(numbers).T


def nest(numbers: Any) -> Any:
    return jnp.stack([jnp.stack(numbers[i : i + 3], -1) for i in (0, 3, 6)], -2)


SPELLINGS: dict[str, Callable[[Any], Any]] = {
    "stack": lambda q: rotate(q, stack_last),
    "concatenate": lambda q: rotate(q, join_columns),
    "transposed": lambda q: rotate(q, transpose_stacked),
    "nested": lambda q: rotate(q, nest),
    "vmap": jax.vmap(lambda q: rotate(q, jnp.array)),
}


def step_lorenz(state: Any) -> Any:
    """One of Runge and Kutta's steps."""

    def change(s: Any) -> Any:
        x, y, z = s[..., 0], s[..., 1], s[..., 2]
        return jnp.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], -1)

    a = change(state)
    b = change(state + 0.005 * a)
    c = change(state + 0.005 * b)
    return state + 0.01 / 6 * (a + 2 * b + 2 * c + change(state + 0.01 * c))


def orthonormalize(a: Any) -> Any:
    x, y = a[..., :3], a[..., 3:]
    x = x / jnp.linalg.norm(x, axis=-1, keepdims=True)
    y = y - (x * y).sum(-1, keepdims=True) * x
    y = y / jnp.linalg.norm(y, axis=-1, keepdims=True)
    return jnp.stack([x, y, jnp.cross(x, y)], -2)


def distance(a: Any, wanted: Any) -> Any:
    return jnp.sum((orthonormalize(a) - wanted) ** 2)


def balance(state: Any, action: Any) -> Any:
    """A pole's step, with results of three types."""
    x, v, angle, turn = jnp.moveaxis(state, -1, 0)
    force = jnp.where(action == 1, 10.0, -10.0)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    push = (force + 0.05 * turn * turn * sine) / 1.1
    bend = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine * cosine / 1.1))
    made = [x + 0.02 * v, v + 0.02 * push, angle + 0.02 * turn, turn + 0.02 * bend]
    done = (jnp.abs(made[0]) > 2.4) | (jnp.abs(made[2]) > 0.2)
    return jnp.where(done[:, None], 0.0, jnp.stack(made, -1)), done, action + done


def color(image: Any) -> Any:
    r, g, b = jnp.split(jnp.exp(2.2 * jnp.log(jnp.abs(image) + 0.1)), 3, -1)
    y = 0.299 * r + 0.587 * g + 0.114 * b
    return jnp.concatenate([y, 0.564 * (b - y), 0.713 * (r - y)], -1)


def light(direction: Any, weights: Any) -> Any:
    """A basis of nine functions, with weights of each row."""
    direction = direction / jnp.linalg.norm(direction, axis=-1, keepdims=True)
    x, y, z = direction[..., 0], direction[..., 1], direction[..., 2]
    basis = [jnp.full_like(x, 0.28), y, z, x, x * y, y * z, 3 * z * z - 1, x * z, x * x - y * y]
    return jax.nn.sigmoid(jnp.stack(basis, -1) * weights)


FAR = normal(ROWS, 6) + np.array([4, 0, 0, 0, 4, 0], np.float32)
"""Vectors that are not nearly parallel."""

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    **{name: (fn, (normal(ROWS, 4),)) for name, fn in SPELLINGS.items()},
    "lorenz": (step_lorenz, (normal(ROWS, 3),)),
    "frames": (orthonormalize, (FAR,)),
    "frames_gradient": (jax.grad(distance), (FAR, normal(ROWS, 3, 3))),
    "pole": (balance, (normal(ROWS, 4), RNG.integers(0, 2, ROWS).astype(np.int32))),
    "image": (color, (normal(16, 50, 53, 3),)),
    "image_bf16": (color, (normal(5, 90, 95, 3).astype(jnp.bfloat16),)),
    "basis": (light, (normal(ROWS, 3), normal(ROWS, 9))),
    "basis_gradient": (
        jax.grad(lambda d, w: jnp.sum(light(d, w) ** 2), (0, 1)),
        (normal(ROWS, 3), normal(ROWS, 9)),
    ),
}


def make_loops(fn: Callable[..., Any], arguments: Any) -> tuple[Graph, Graph]:
    """The graph before and after."""
    graph = read(fn, arguments)
    return graph, loop_over_joined_rows(graph, LoopPlanner(H100))


def assert_rows_compute(fn: Callable[..., Any], arguments: Any, check: bool = False) -> None:
    """The graph with the loop computes what JAX does, the kernel what the loop does.  check: for races and bounds."""
    _, graph = make_loops(fn, arguments)
    (node,) = loops_of(graph)
    values = evaluate(graph, arguments)
    made = emit_loop(plan(graph, node), "loop_0")
    results = launch(made, [values[o][0] for o in node.operands], check=check)
    for state, result in zip(made.results, results, strict=True):
        assert_close(result, values[node.name][state])
    wanted = jax.tree.leaves(jax.jit(fn)(*arguments))
    for name, want in zip(graph.outputs, wanted, strict=True):
        assert_close(values[name][0], np.asarray(want))


def assert_close(got: np.ndarray, want: np.ndarray, near_f32: float = 2e-5) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    near = {"bfloat16": 2e-2, "float64": 1e-11}.get(want.dtype.name, near_f32)
    np.testing.assert_allclose(
        got.astype(np.float64), want.astype(np.float64), rtol=near, atol=near
    )


@pytest.mark.parametrize("name", ["frames", "frames_gradient", "pole", "image_bf16"])
def test_warps_do_not_wait_for_each_other(name: str) -> None:
    """What one has put into shared memory no other writes."""
    fn, arguments = PROGRAMS[name]
    assert_rows_compute(fn, arguments, check=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_thread_has_a_row(name: str) -> None:
    assert_rows_compute(*PROGRAMS[name])


def test_in_double_precision() -> None:
    with jax.enable_x64(True):
        assert_rows_compute(SPELLINGS["stack"], (normal(ROWS, 4).astype(np.float64),))


@pytest.mark.parametrize("rows", [LEAST_THREADS, LEAST_THREADS + 31, LEAST_THREADS + 33])
def test_warps_that_have_few_rows(rows: int) -> None:
    assert_rows_compute(SPELLINGS["nested"], (normal(rows, 4),))


def test_arrays_of_all_widths() -> None:
    """Rows that are staged, in batches of shared memory, beside rows of whole vectors and of one number."""

    def widths(*arrays: Any) -> Any:
        total = sum(a.sum(-1) for a in arrays)
        x, y = jnp.sin(total), jnp.cos(total)
        row = jnp.stack([x, y, x * y, x - y, x / (2 + y)], -1)
        return row, total, *(a * x[:, None] + y[:, None] for a in arrays)

    assert_rows_compute(
        widths, check=True, arguments=tuple(normal(ROWS, n) for n in (1, 2, 3, 4, 6, 7, 12, 16, 20))
    )


def test_donated_arrays_are_written_where_they_were_read() -> None:
    """Rows of whole vectors, and rows that warps stage."""

    def descend(q: Any, frame: Any, weights: Any) -> Any:
        made = rotate(q, stack_last)
        return q - 0.1 * (made[:, 0, :1] * q), frame + made, weights * made[:, 0, 0]

    arguments = (normal(ROWS, 4), normal(ROWS, 3, 3), normal(ROWS))
    before = read(descend, arguments)
    donated = dataclasses.replace(before, aliases=((0, 0), (1, 1)))
    graph = loop_over_joined_rows(donated, LoopPlanner(H100))
    values = assert_in_place_computes(graph, arguments, 2)
    for name, want in zip(graph.outputs, jax.jit(descend)(*arguments), strict=True):
        assert_close(values[name][0], np.asarray(want))


def assert_in_place_computes(
    graph: Graph, arguments: Any, count: int
) -> dict[str, tuple[np.ndarray, ...]]:
    """Loops write so many results over what they read; returns the values of the graph."""
    values = evaluate(graph, arguments)
    loops = {node.name: emit_loop(plan(graph, node), "loop_0") for node in loops_of(graph)}
    assert sum(len(made.in_place) for made in loops.values()) == count
    for name, made in loops.items():
        operands, types, kernel = graph[name].operands, made.plan.loop.types, made.kernel
        given = [np.array(values[operands[i]][0]) for i in made.operands]
        results = [np.zeros(types[i].shape, types[i].dtype.numpy) for i in made.results]
        for result, operand in made.in_place:
            results[result] = given[operand]
        module = compile_host(kernel.source, check=True)
        arrays, shared_bytes = [*given, *results], kernel.shared_bytes
        module.launch(kernel.name, kernel.grid, kernel.block, arrays, shared_bytes=shared_bytes)
        for state, result in zip(made.results, results, strict=True):
            assert_close(result, values[name][state], 2e-3)
    return values


# ---- what is handed on ---------------------------------------------------------------------------------------------


def square_normals(points: Any, corners: Any, pick: Any) -> Any:
    """The loss of triangles' normals and areas, by which way a triangle's corners are picked."""
    a, b, c = pick(points, corners)
    normal = jnp.cross(b - a, c - a)
    area = jnp.sqrt((normal * normal).sum(-1) + 1e-6)
    sums = jnp.zeros_like(points)
    for i in range(3):
        sums = sums.at[corners[:, i]].add(normal / area[:, None] + 0.1 * normal)
    length = jnp.sqrt((sums * sums).sum(-1) + 1e-6)
    return (jnp.tanh(sums) ** 2).sum() + area.mean() + jnp.log(length).sum()


PICKS: dict[str, Callable[[Any, Any], Any]] = {
    "columns": lambda points, corners: [points[corners[:, i]] for i in range(3)],
    "rows": lambda points, corners: jnp.moveaxis(points[corners], 1, 0),
    "take": lambda points, corners: [jnp.take(points, c, axis=0) for c in corners.T],
    "vmap": lambda points, corners: jax.vmap(lambda c: tuple(points[c]))(corners),
}
CORNERS = RNG.integers(0, 2000, (40_003, 3)).astype(np.int32)


def differentiate(pick: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    loss = jax.value_and_grad(lambda points, corners: square_normals(points, corners, PICKS[pick]))
    return loss, (normal(2000, 3), CORNERS)


def count_given(graph: Graph) -> int:
    """Bytes that loops read: their state beside what they write."""
    given = 0
    for node in loops_of(graph):
        written = {user.attrs.index for user in map(graph.__getitem__, graph.users[node.name])}  # type: ignore[union-attr]
        read = {o for i, o in enumerate(node.operands) if i not in written}
        given += sum(graph[o].array.bytes for o in read)
    return given


def hand_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on groups compute nothing again."""
    monkeypatch.setattr(
        joined_rows, "hand_on_less", lambda graph, groups, is_planned: (graph, groups)
    )


def assert_graph_computes(graph: Graph, fn: Callable[..., Any], arguments: Any) -> None:
    values = evaluate(graph, arguments)
    wanted = jax.tree.leaves(jax.jit(fn)(*arguments))
    for name, want in zip(graph.outputs, wanted, strict=True):
        assert_close(values[name][0], np.asarray(want), 2e-3)


@pytest.mark.parametrize("pick", PICKS)
def test_a_gradient_computes_again_what_was_computed_forward(
    pick: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fn, arguments = differentiate(pick)
    _, graph = make_loops(fn, arguments)
    assert_graph_computes(graph, fn, arguments)
    hand_on_all(monkeypatch)
    _, before = make_loops(fn, arguments)
    assert count_given(graph) <= 0.85 * count_given(before)


def test_a_gradient_is_written_over_what_it_was_computed_from() -> None:
    """Only the loop reads what was gathered for it."""
    fn, arguments = differentiate("columns")
    _, graph = make_loops(fn, arguments)
    assert_in_place_computes(graph, arguments, 3)


def test_kernels_behind_a_loop_compute_again_what_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(q: Any, places: Any) -> Any:
        q = 2 * q + 1
        made = rotate(q, stack_last)
        sums = jnp.zeros((100, 4)).at[places].add(made[:, 0, :1] * made[:, 1, 1:2])
        return made, sums[places] * q

    arguments = normal(ROWS, 4), RNG.integers(0, 100, ROWS).astype(np.int32)

    def count_written(graph: Graph) -> int:
        (node,) = loops_of(graph)
        return sum(graph[user].array.bytes for user in graph.users[node.name])

    _, graph = make_loops(fn, arguments)
    assert_graph_computes(graph, fn, arguments)
    hand_on_all(monkeypatch)
    _, before = make_loops(fn, arguments)
    assert count_written(graph) == count_written(before) - 4 * 4 * ROWS


def test_a_parameter_that_others_read_is_not_written() -> None:
    before = read(lambda q: (step_lorenz(q), q.T @ q), (normal(ROWS, 3),))
    graph = loop_over_joined_rows(dataclasses.replace(before, aliases=((0, 0),)), LoopPlanner(H100))
    (node,) = loops_of(graph)
    assert not emit_loop(plan(graph, node), "loop_0").in_place


@pytest.mark.parametrize("written", [2, 3])
def test_an_array_that_is_read_twice_is_not_written(written: int) -> None:
    """A loop of one turn that a program has: what starts as one array is read as two states."""

    def turn(_: Any, state: Any) -> Any:
        row = rotate(state[0], lambda numbers: jnp.stack(numbers[:4], -1))
        return (state[1] + row, *(state[0] * row - i for i in range(written - 1)))

    q = normal(ROWS, 4)
    graph = read(lambda q: jax.lax.fori_loop(0, 1, turn, (q,) * written), (q,))
    (node,) = loops_of(graph)
    made = emit_loop(plan(graph, node), "loop_0")
    assert len(made.results) == written
    assert not made.in_place


def test_one_result_of_two_lies_where_an_array_lay() -> None:
    def turn(_: Any, state: Any) -> Any:
        row = rotate(state[0], lambda numbers: jnp.stack(numbers[:4], -1))
        return row, row + 1, row * 2

    q = normal(ROWS, 4)
    graph = read(lambda q: jax.lax.fori_loop(0, 1, turn, (q, q, q)), (q,))
    (node,) = loops_of(graph)
    made = emit_loop(plan(graph, node), "loop_0")
    assert len(made.results) == 3
    assert len(made.in_place) == 1


# ---- when kernels on elements stay -----------------------------------------------------------------------------------


def scale(x: Any) -> Any:
    return jnp.stack([x, 2 * x], -1)


def join_halves(x: Any, y: Any) -> Any:
    return jnp.concatenate([jnp.sin(x), y], -1)


def stack_first(q: Any) -> Any:
    return rotate(q, jnp.stack)


LEFT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "cheap": (scale, (normal(1_000_000),)),
    "few rows": (SPELLINGS["stack"], (normal(LEAST_THREADS - 1, 4),)),
    "large pieces": (join_halves, (normal(ROWS, 16), normal(ROWS, 16))),
    "rows are last": (stack_first, (normal(ROWS, 4),)),
    "only moved": (lambda x: jnp.stack([x[:, 1], x[:, 0], x[:, 2]], -1), (normal(ROWS, 3),)),
}


def test_rows_of_constants_are_no_loop() -> None:
    """Sines and cosines of places beside each other, as encodings of words have them."""

    def add_places(x: Any) -> Any:
        steps = jnp.arange(x.shape[0] - 1.0, -1.0, -1.0)[:, None] * 0.9 ** jnp.arange(64.0)
        return x + jnp.stack([jnp.sin(steps), jnp.cos(steps)], -1).reshape(x.shape)

    before, after = make_loops(add_places, (normal(LEAST_THREADS, 128),))
    assert after is before


@pytest.mark.parametrize("name", LEFT)
def test_kernels_on_elements_stay(name: str) -> None:
    fn, arguments = LEFT[name]
    before, after = make_loops(fn, arguments)
    assert after is before


def test_gathered_numbers_are_looked_up_once() -> None:
    """Normals of triangles: what is gathered is stored for the kernel that has a row for each."""

    def normals(points: Any, corners: Any) -> Any:
        a, b, c = (points[corners[:, i]] for i in range(3))
        normal = jnp.cross(b - a, c - a)
        length = jnp.linalg.norm(normal, axis=-1, keepdims=True)
        return normal / (length + 1e-9), 0.5 * length[:, 0]

    corners = RNG.integers(0, 1000, (ROWS, 3)).astype(np.int32)
    assert_rows_compute(normals, (normal(1000, 3), corners))


@pytest.mark.parametrize("scaled", [False, True], ids=["", "and a scalar"])
def test_look_ups_are_counted_by_rows(scaled: bool) -> None:
    """Whatever the sizes of the results: a row's three numbers, and one for all rows."""

    def fn(points: Any, places: Any, rate: Any) -> Any:
        scale = 2 * jnp.exp(rate)
        a, b, c = jnp.moveaxis(points[places], -1, 0)
        row = jnp.stack([jnp.sin(a * scale) * b, jnp.cos(b) * c, jnp.exp(c) * a], -1)
        return (row.sum(0), scale) if scaled else row.sum(0)

    places = RNG.integers(0, 1000, 1_000_000).astype(np.int32)
    _, graph = make_loops(fn, (normal(1000, 3), places, np.float32(0.1)))
    assert len(loops_of(graph)) == 1


def test_a_group_is_planned_without_the_others() -> None:
    """A plan's time does not grow with the graph: a large one has many groups that are tried."""
    seen: list[int] = []

    class Planner(LoopPlanner):
        def plan(self, graph: Graph, node: Node) -> LoopPlan | LoopRefusal:
            seen.append(len(graph))
            return super().plan(graph, node)

    def fn(state: Any, other: Any) -> Any:
        for _ in range(300):
            other = jnp.sin(other) @ other
        return step_lorenz(state), other

    graph = read(fn, (normal(ROWS, 3), normal(5, 5)))
    assert len(loops_of(loop_over_joined_rows(graph, Planner(H100)))) == 1
    assert len(graph) > 600 and 0 < max(seen) < 200


def test_who_shares_but_a_constant_is_no_neighbour() -> None:
    def fn(state: Any, other: Any) -> Any:
        return step_lorenz(state), jnp.exp(28 - other)

    _, graph = make_loops(fn, (normal(ROWS, 3), normal(ROWS, 1)))
    (node,) = loops_of(graph)
    assert graph.parameters[0] in node.operands
    assert graph.parameters[1] not in node.operands


def test_communication_is_not_held_back() -> None:
    """What is sent does not wait for what arrives: they are in no group together."""
    g = GraphBuilder()
    array = f"f32[{ROWS},4]"
    x, y = g.parameter(array, "x"), g.parameter(array, "y")

    def turn(value: str, name: str) -> str:
        for number in range(3):
            three, one = g.slice(value, (0, 1), (ROWS, 4)), g.slice(value, (0, 0), (ROWS, 1))
            parts = [g.op("sine", g.array(three), three), g.op("cosine", g.array(one), one)]
            label = f"{name}.{number}"
            value = g.op("concatenate", array, *parts, attrs=DimensionAttrs(1), name=label)
        return value

    attrs = OpaqueAttrs("all-reduce", "", b"", (None,), has_effect=True)

    def exchange(value: str, name: str) -> str:
        return g.op("opaque", g.array(value), value, attrs=attrs, name=name)

    turned = turn(x, "turned")
    arrived, sent = exchange(y, "arrived"), exchange(turned, "sent")
    last = g.op("add", array, turn(arrived, "behind"), turned)
    after = loop_over_joined_rows(g.build(last, sent), LoopPlanner(H100))
    paths = Paths(after, lambda node: False)
    assert loops_of(after) and not paths.before[sent] & paths.bit[arrived]


def test_what_would_be_stored_between_kernels_is_not_worth_it() -> None:
    """A norm over all rows reads what the rows give: one kernel computes both, and stores neither."""

    def fn(x: Any) -> Any:
        a, b, c = x[:, 0], x[:, 1], x[:, 2]
        return jnp.sum(jnp.stack([a * b, b * c, c + a], -1), 0)

    before, after = make_loops(fn, (normal(1_000_000, 3),))
    assert after is before


def test_each_number_is_computed_once() -> None:
    """The projection of the kernel beside that of kernels on elements, where each warp computes all numbers."""
    fn, arguments = PROGRAMS["lorenz"]
    _, graph = make_loops(fn, (np.tile(*arguments, (20, 1)),))
    (node,) = loops_of(graph)
    found = plan(graph, node)
    assert found.us < 0.75 * found.xla_us
    assert "row by row in one kernel" in str(found) and "as other kernels" in str(found)


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_on_a_gpu(name: str) -> None:
    import astitch

    fn, arguments = PROGRAMS[name]
    wanted = jax.tree.leaves(jax.jit(fn)(*arguments))
    with astitch.enabled():
        compiled = jax.jit(lambda *given: fn(*given)).lower(*arguments).compile()
    assert "loop_0" in compiled.as_text()
    for got, want in zip(jax.tree.leaves(compiled(*arguments)), wanted, strict=True):
        # XLA's functions on a GPU are other approximations.
        assert_close(np.asarray(got), np.asarray(want), near_f32=1e-4)
