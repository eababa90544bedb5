"""Loops whose turn is one kernel turn by themselves: what they compute in the emulation, and which of them do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from astitch.compile import compile_graph
from astitch.cost.projected_latency import project
from astitch.device.gpu import Gpu, preset
from astitch.directives import read_directives
from astitch.graph.index import Linear
from astitch.graph.ir import DType
from astitch.hlo_import import import_hlo
from astitch.kernel.kernel_ir import Fetch, Slot
from astitch.loops.analysis import Invariant, loop_key
from astitch.loops.emit_turns import TurnsPlan, emit_turns, keep_on_chip
from astitch.loops.plan import LoopPlanner
from astitch.loops.turn_rows import find_rows, take_rows
from astitch.loops.turns import Turns, find_turns
from astitch.pipeline import Target
from astitch.program.steps import KernelStep
from astitch.run.emulate import Order
from astitch.run.host_engine import HostEngine
from astitch.show.compilation import Compilation
from astitch.xla import plan_turns
from astitch.xla.loop_steps import take_loops
from astitch.xla.prepare_kernels import LoopCall, emit_loop_for_xla
from astitch.xla.stitch_loops import find_loops
from astitch.xla.write_module import export_program
from tests.emulated_xla import as_text, run_graph
from tests.hlo_runner import lower
from tests.loops.test_loops import as_call, loops_of
from tests.small_gpu import few_sms

H100 = preset("h100")


def normal(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


MATRIX = normal(1, 12, 12) @ normal(1, 12, 12).T / 12 + np.eye(12, dtype=np.float32)
LAYERS = [
    (normal(i, a, b, scale=0.3), normal(9 + i, b)) for i, (a, b) in enumerate([(4, 16), (16, 4)])
]


def apply(layers: Any, x: Any) -> Any:
    for w, b in layers[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = layers[-1]
    return x @ w + b


def noisy_layers(layers: Any, x: Any, seed: Any) -> Any:
    def turn(state: Any) -> Any:
        count, x, seed = state
        seed, own = jax.random.split(seed)
        return count + 1, apply(layers, x) + 0.01 * jax.random.normal(own, x.shape), seed

    return lax.while_loop(lambda state: state[0] < 5, turn, (0, x, seed))[1]


def descend(layers: Any, x: Any, y: Any) -> Any:
    def turn(layers: Any, _: Any) -> Any:
        loss, found = jax.value_and_grad(lambda w: jnp.square(apply(w, x) - y).mean())(layers)
        return jax.tree.map(lambda a, b: a - 0.1 * b, layers, found), loss

    return lax.scan(turn, layers, None, length=7)


def solve(b: Any) -> Any:
    def turn(state: Any) -> Any:
        x, _, count = state
        rest = MATRIX @ x - b
        return x - 0.2 * rest, jnp.linalg.norm(rest), count + 1

    start = jnp.zeros(12), jnp.float32(1e9), 0
    return lax.while_loop(lambda s: (s[1] > 1e-2) & (s[2] < 40), turn, start)


def ask_arrays(b: Any) -> Any:
    def far(x: Any) -> Any:
        return jnp.linalg.norm(MATRIX @ x - b) > 1e-1

    return lax.while_loop(far, lambda x: x - 0.2 * (MATRIX @ x - b), jnp.zeros(12))


def conjugate_gradients(b: Any) -> Any:
    return jax.scipy.sparse.linalg.cg(lambda x: MATRIX @ x, b, maxiter=8)[0]


def farthest_points(points: Any) -> Any:
    def turn(i: Any, state: Any) -> Any:
        least, chosen = state
        least = jnp.minimum(least, jnp.square(points - points[chosen[i - 1]]).sum(-1))
        return least, chosen.at[i].set(jnp.argmax(least).astype(jnp.int32))

    return lax.fori_loop(1, 8, turn, (jnp.full(70, 1e10), jnp.zeros(8, jnp.int32)))[1]


def bandit(means: Any, noise: Any) -> Any:
    rows = jnp.arange(means.shape[0])

    def turn(state: Any, noise: Any) -> Any:
        value, count, time = state
        arm = jnp.argmax(value + jnp.sqrt(2 * jnp.log(time) / count), 1)
        reward = means[rows, arm] + noise
        count = count.at[rows, arm].add(1.0)
        value = value.at[rows, arm].add((reward - value[rows, arm]) / count[rows, arm])
        return (value, count, time + 1), reward

    start = jnp.zeros(means.shape), jnp.ones(means.shape), 1.0
    return lax.scan(turn, start, noise)


def forward_probabilities(moves: Any, seen: Any, words: Any) -> Any:
    def turn(state: Any, word: Any) -> Any:
        state = jax.nn.logsumexp(state[:, None] + moves, axis=0) + seen[:, word]
        return state, state

    return lax.scan(turn, seen[:, 0], words)


def adaptive_steps(y: Any) -> Any:
    def turn(state: Any) -> Any:
        t, y, h, count = state
        one, two = jnp.sin(y) * t, jnp.sin(y + h * jnp.sin(y) * t) * t
        error = jnp.sqrt(jnp.square(one - two).mean()) * h
        good = error < 0.1
        longer = h * jnp.clip(0.9 * jnp.sqrt(0.1 / error), 0.2, 5.0)
        next_ = jnp.where(good, t + h, t), jnp.where(good, y + h * (one + two) / 2, y)
        return *next_, longer, count + 1

    start = jnp.float32(0.1), y, jnp.float32(0.05), 0
    return lax.while_loop(lambda s: (s[0] < 2) & (s[3] < 60), turn, start)


def hand_on(a: Any, b: Any) -> Any:
    """States that are others' of the turn before, the same as others, one number, or not read in the loop."""

    def turn(i: Any, state: Any) -> Any:
        a, b, _, d, _ = state
        new = a + jnp.roll(b, 1) * a.sum() * 0.01
        return b, new, new, jnp.zeros_like(d), a + d.sum() + i

    return lax.fori_loop(0, 6, turn, (a, b, a * 2, b + 1, b))


def handed_out(x: Any, w: Any) -> Any:
    """A carried value is also what is stacked, from the last turn to the first."""

    def turn(x: Any, row: Any) -> Any:
        x = jnp.tanh(x @ w + row * x.sum())
        return x, (x, row * 2 + x.max())

    return lax.scan(turn, x, jnp.arange(7.0), reverse=True)


def count_down(x: Any) -> Any:
    """A counter is read, and what it is in the end."""

    def turn(state: Any) -> Any:
        return state[0] - 3, MATRIX @ state[1] / (state[0] + 1)

    return lax.while_loop(lambda s: (s[0] > 2) & (s[1].sum() > -1e9), turn, (20, x))


def collatz(n: Any, x: Any) -> Any:
    def turn(state: Any) -> Any:
        n, count, x = state
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), count + 1, jnp.sort(x + n)

    return lax.while_loop(lambda s: (s[0] != 1) & (s[1] < 100), turn, (n, 0, x))


def never(x: Any) -> Any:
    return lax.while_loop(lambda s: s[0].sum() > 1e6, lambda s: (s[0] @ MATRIX, s[1] + 1), (x, 0))


def read_table(x: Any) -> Any:
    table = jnp.asarray(np.random.default_rng(3).permutation(600).astype(np.int32).reshape(6, 100))

    def turn(i: Any, x: Any) -> Any:
        return (x + table[i]) % 97 + x.sum() % 7

    return lax.fori_loop(0, 6, turn, x)


def until(rows: Any, turns: Any) -> Any:
    """Slices where a counter says that nobody knows the end of; beyond the last one it is the last one."""

    def turn(i: Any, x: Any) -> Any:
        return jnp.tanh(x + rows[i]) - x.mean()

    return lax.fori_loop(0, turns, turn, rows[0])


def hand_slice(rows: Any) -> Any:
    """A slice becomes a part of the state as it is."""

    def turn(i: Any, state: Any) -> Any:
        last, total = state
        return rows[i], jnp.tanh(total + last) - last.mean()

    return lax.fori_loop(0, 6, turn, (rows[0] * 2, rows[1]))


def stack_old(x: Any) -> Any:
    """Stacks of what the turn began with, of one value twice, and of a number."""

    def turn(x: Any, row: Any) -> Any:
        new = x * 0.5 + jnp.roll(x, 1).sum() * 0.1
        return new, (x, new, new, row, jnp.zeros(3))

    return lax.scan(turn, x, jnp.arange(14.0).reshape(7, 2))


def branch(x: Any) -> Any:
    def turn(i: Any, state: Any) -> Any:
        x, y = state
        x, y = lax.cond(
            x.sum() > 0,
            lambda x, y: (MATRIX @ x, y + 1),
            lambda x, y: (x - 1, lax.cond(y[0] > 2, jnp.cumsum, jnp.sin, y)),
            x,
            y,
        )
        return lax.switch(i % 4 - 1, [lambda x: x, lambda x: x * 2, lambda x: x - x.sum()], x), y

    return lax.fori_loop(0, 8, turn, (x, x * 2))


def half(x: Any, w: Any) -> Any:
    return lax.fori_loop(0, 5, lambda _, x: jax.nn.relu(x @ w) / (1 + jnp.abs(x).max()), x)


LOOPS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "noisy_layers": (noisy_layers, (LAYERS, normal(5, 1, 4), jax.random.PRNGKey(3))),
    "noisy_layers of a batch": (noisy_layers, (LAYERS, normal(5, 9, 4), jax.random.PRNGKey(3))),
    "descend": (descend, (LAYERS, normal(6, 20, 4), normal(7, 20, 4))),
    "solve": (solve, (normal(2, 12),)),
    "ask_arrays": (ask_arrays, (normal(2, 12),)),
    "conjugate_gradients": (conjugate_gradients, (normal(2, 12),)),
    "farthest_points": (farthest_points, (normal(3, 70, 3),)),
    "bandit": (bandit, (normal(3, 6, 5), normal(4, 9, 6))),
    "forward_probabilities": (
        forward_probabilities,
        (normal(3, 9, 9), normal(4, 9, 7), np.arange(8, dtype=np.int32) % 7),
    ),
    "adaptive_steps": (adaptive_steps, (normal(3, 300),)),
    "hand_on": (hand_on, (normal(3, 2, 40), normal(4, 2, 40))),
    "handed_out": (handed_out, (normal(3, 33), normal(4, 33, 33, scale=0.2))),
    "count_down": (count_down, (normal(3, 12),)),
    "collatz": (collatz, (np.int32(27), np.arange(9)[::-1].astype(np.int32))),
    "never": (never, (normal(3, 12),)),
    "read_table": (read_table, (np.arange(100, dtype=np.int32),)),
    "until": (until, (normal(3, 5, 40), np.int32(8))),
    "hand_slice": (hand_slice, (normal(3, 6, 21),)),
    "stack_old": (stack_old, (normal(3, 33),)),
    "branch": (branch, (normal(3, 12, scale=0.1),)),
    "half": (half, (normal(3, 8, 32).astype(jnp.bfloat16), normal(4, 32, 32).astype(jnp.bfloat16))),
}


def forward_in_batch(moves: Any, seen: Any, words: Any) -> Any:
    def turn(state: Any, word: Any) -> Any:
        state = jax.nn.logsumexp(state[:, :, None] + moves, axis=1) + seen[:, word].T
        return state, state

    return lax.scan(turn, jnp.broadcast_to(seen[:, 0], (6, seen.shape[0])), words)


def farthest_in_batch(points: Any) -> Any:
    def turn(i: Any, state: Any) -> Any:
        least, chosen = state
        last = jnp.take_along_axis(points, chosen[:, i - 1][:, None, None], axis=1)
        least = jnp.minimum(least, jnp.square(points - last).sum(-1))
        return least, chosen.at[:, i].set(jnp.argmax(least, 1).astype(jnp.int32))

    start = jnp.full(points.shape[:2], 1e10), jnp.zeros((points.shape[0], 7), jnp.int32)
    return lax.fori_loop(1, 7, turn, start)[1]


def descend_apart(layers: Any, x: Any, y: Any) -> Any:
    return jax.vmap(descend)(layers, x, y)


def delta_rule(q: Any, k: Any, v: Any, strength: Any) -> Any:
    def turn(state: Any, now: Any) -> Any:
        q, k, v, strength = now
        rest = v - jnp.einsum("bij,bj->bi", state, k)
        state = state + strength[:, None, None] * rest[:, :, None] * k[:, None, :]
        return state, jnp.einsum("bij,bj->bi", state, q)

    return lax.scan(turn, jnp.zeros((6, 16, 16)), (q, k, v, strength))


def delta_rule_of_heads(q: Any, k: Any, v: Any) -> Any:
    def turn(state: Any, now: Any) -> Any:
        q, k, v = now
        rest = v - jnp.einsum("bhde,bhd->bhe", state, k)
        state = state + jnp.einsum("bhd,bhe->bhde", k, rest) * 0.1
        return state, jnp.einsum("bhde,bhd->bhe", state, q)

    return lax.scan(turn, jnp.zeros((*q.shape[1:3], 8, 8)), (q, k, v))


def normalize(w: Any, x: Any) -> Any:
    def turn(i: Any, state: Any) -> Any:
        x, shared = state
        x = jnp.tanh(x @ w) * shared
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True) + i, shared * 0.9

    return lax.fori_loop(0, 7, turn, (x, jnp.float32(1)))


def sort_apart(x: Any, turns: Any) -> Any:
    def turn(state: Any) -> Any:
        i, x, shared = state
        return i + 1, jnp.sort(x, -1)[:, ::-1] * 0.9 + x * 0.3 + shared, shared * 0.5

    return lax.while_loop(lambda s: s[0] < turns, turn, (0, x, jnp.float32(1)))


def number_rows(x: Any) -> Any:
    rows, columns = x.shape
    number = jnp.arange(rows)[:, None]

    def turn(_: Any, x: Any) -> Any:
        x = jnp.sin(x + number * 0.1) + x.max(1, keepdims=True) * (number % 2 == 0)
        return x + jnp.arange(rows * columns).reshape(rows, columns) * 1e-3

    return lax.fori_loop(0, 5, turn, x)


def stack_shared(x: Any, shared: Any) -> Any:
    """What has no rows is read again and stacked: each block has its own, one writes the stack."""

    def turn(state: Any, row: Any) -> Any:
        x, shared = state
        shared = jnp.roll(shared, 1) * 0.9 + row
        return (jnp.tanh(x + shared.sum()) + x.max(1, keepdims=True), shared), (shared, x[:, 0])

    return lax.scan(turn, (x, shared), jnp.arange(6.0))


def best_paths(moves: Any, seen: Any) -> Any:
    def turn(state: Any, seen: Any) -> Any:
        found = state[:, :, None] + moves
        return found.max(1) + seen, (found.argmax(1).astype(jnp.int32), state.sum(1))

    state, (before, sums) = lax.scan(turn, seen[0], seen[1:])

    def back(place: Any, before: Any) -> Any:
        place = jnp.take_along_axis(before, place[:, None], 1)[:, 0]
        return place, place

    last = state.argmax(1).astype(jnp.int32)
    return lax.scan(back, last, before, reverse=True)[1], state, sums


APART = [
    (normal(i, 5, a, b, scale=0.3), normal(9 + i, 5, b))
    for i, (a, b) in enumerate([(4, 16), (16, 4)])
]
ROWS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "forward": (
        forward_in_batch,
        (normal(1, 16, 16), normal(2, 16, 9), np.arange(48, dtype=np.int32).reshape(8, 6) % 9),
    ),
    "farthest": (farthest_in_batch, (normal(1, 4, 60, 3),)),
    "descend": (descend_apart, (APART, normal(6, 5, 12, 4), normal(7, 5, 12, 4))),
    "delta": (
        delta_rule,
        (*tuple(normal(i, 8, 6, 16, scale=0.3) for i in range(3)), np.abs(normal(4, 8, 6))),
    ),
    "normalize": (normalize, (normal(1, 20, 20, scale=0.3), normal(3, 12, 20))),
    "sort": (sort_apart, (normal(1, 6, 30), np.int32(5))),
    "numbers": (number_rows, (normal(1, 6, 30),)),
    "shared": (stack_shared, (normal(1, 4, 12), normal(2, 6))),
    "paths": (best_paths, (normal(1, 24, 24), normal(2, 9, 4, 24))),
}
"""Loops whose rows never meet."""


@pytest.fixture(autouse=True)
def _only_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """No loop is a kernel of another kind."""
    monkeypatch.setattr(
        "astitch.loops.plan.LoopPlanner._plan",
        lambda self, graph, node, used, kept: plan_turns.LoopRefusal(node.name, "asked for"),
    )


def compile_loops(
    fn: Callable[..., Any], arguments: Any, gpu: Gpu = H100, told: str = ""
) -> Compilation:
    planner = LoopPlanner(gpu, directives=read_directives(told))
    graph = import_hlo(lower(fn, *arguments, keep_unused=True))
    compilation = compile_graph(graph, gpu, Target(loops=planner))
    return take_loops(compilation, planner)


def assert_computes(
    compilation: Compilation, fn: Callable[..., Any], arguments: Any, order: Order = Order.FORWARD
) -> None:
    engine = HostEngine(compilation.program, check=order is Order.FORWARD)
    flat = [np.asarray(x) for x in jax.tree.leaves(arguments)]
    for a, b in zip(engine.run(flat), jax.tree.leaves(jax.jit(fn)(*arguments)), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        close = 3e-2 if a.dtype == jnp.bfloat16 else 2e-4
        np.testing.assert_allclose(
            a.astype(np.float64), np.asarray(b, np.float64), rtol=close, atol=close
        )


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_turns_in_one_block(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_turns, "CLUSTERS_FROM", 1000)
    fn, arguments = LOOPS[name]
    compilation = compile_loops(fn, arguments)
    (note,) = compilation.loops
    assert "in one kernel of a block" in note
    assert_computes(compilation, fn, arguments)


@pytest.mark.parametrize("name", ["descend", "ask_arrays", "bandit", "hand_on", "handed_out"])
def test_blocks_meet_after_each_turn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, arguments = LOOPS[name]
    listed = plan_turns._list_kernels
    monkeypatch.setattr(plan_turns, "GAIN", 100.0)
    monkeypatch.setattr(
        plan_turns,
        "_list_kernels",
        lambda *a: (t for t in listed(*a) if t[1].grid > 1 and not t[2]),
    )
    monkeypatch.setattr(plan_turns, "BLOCK_OF_SEVERAL", 32)
    compilation = compile_loops(fn, arguments, few_sms(4))
    (note,) = compilation.loops
    assert "in one kernel of" in note and "a block of" not in note
    assert_computes(compilation, fn, arguments)


@pytest.mark.parametrize(
    "name", ["descend", "handed_out", "noisy_layers of a batch", "farthest_points"]
)
def test_blocks_of_a_cluster_meet_by_the_hardware(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fn, arguments = LOOPS[name]
    listed = plan_turns._list_kernels
    monkeypatch.setattr(plan_turns, "GAIN", 100.0)
    monkeypatch.setattr(plan_turns, "_list_kernels", lambda *a: (t for t in listed(*a) if t[2]))
    monkeypatch.setattr(plan_turns, "_list_parts", lambda turns, gpu: [turns])
    graph = import_hlo(lower(fn, *arguments, keep_unused=True))
    compilation = compile_graph(graph, H100, Target(loops=LoopPlanner(H100)))
    found, _ = find_loops(compilation, LoopPlanner(H100))
    (made,) = found.values()
    text = emit_loop_for_xla(made)
    assert f"__cluster_dims__({made.plan.grid}, 1, 1)" in text
    assert "ASTITCH_GLOBAL_BARRIER" not in text and "ASTITCH_CLUSTER_BARRIER" in text
    assert "__cluster_dims__" not in made.kernel.source
    assert_module_computes(compilation, found, fn, arguments)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", ROWS)
def test_rows_have_blocks_of_their_own(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fn, arguments = ROWS[name]
    if find_rows_of(fn, arguments) % rows:
        pytest.skip("rows of all blocks alike")
    monkeypatch.setattr(plan_turns, "GAIN", 100.0)
    monkeypatch.setattr(plan_turns, "_list_parts", lambda turns, gpu: [take_rows(turns, rows)])
    compilation = compile_loops(fn, arguments)
    assert compilation.loops
    for note in compilation.loops:
        assert f"blocks, each with {rows} of the rows," in note
    assert_computes(compilation, fn, arguments)


def in_memory(plan: TurnsPlan, _: Gpu) -> TurnsPlan:
    return plan


@pytest.mark.parametrize("name", ["farthest", "descend", "delta", "sort", "normalize"])
def test_what_blocks_of_rows_keep_may_lie_in_memory(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fn, arguments = ROWS[name]
    monkeypatch.setattr(plan_turns, "GAIN", 100.0)
    monkeypatch.setattr(plan_turns, "keep_on_chip", in_memory)
    monkeypatch.setattr(plan_turns, "_list_parts", lambda turns, gpu: [take_rows(turns, 1)])
    compilation = compile_loops(fn, arguments)
    texts = [s.kernel.source for s in compilation.program.steps if isinstance(s, KernelStep)]
    assert any("scratch += blockIdx.x" in text for text in texts)
    assert_computes(compilation, fn, arguments)


def plan_rows(name: str) -> TurnsPlan:
    fn, arguments = ROWS[name]
    graph = import_hlo(lower(fn, *arguments, keep_unused=True))
    planner = LoopPlanner(H100)
    found, _ = find_loops(compile_graph(graph, H100, Target(loops=planner)), planner)
    (made,) = found.values()
    assert isinstance(made.plan, TurnsPlan)
    return made.plan


def test_what_a_block_keeps_lies_on_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no memory then; a loop that would take too much of it is no kernel else."""
    monkeypatch.setattr(plan_turns, "_list_parts", lambda turns, gpu: [take_rows(turns, 1)])
    monkeypatch.setattr(plan_turns, "GAIN", 100.0)
    plan = plan_rows("descend")
    on_chip, beside = emit_turns(plan, "loop"), emit_turns(replace(plan, on_chip=False), "loop")
    assert plan.on_chip and not on_chip.scratch_bytes and beside.scratch_bytes
    assert on_chip.kernel.shared_bytes > beside.kernel.shared_bytes
    assert "scratch += blockIdx.x" in beside.kernel.source
    assert "scratch += blockIdx.x" not in on_chip.kernel.source
    monkeypatch.setattr(plan_turns, "_allow_bytes", lambda *_: 0)
    fn, arguments = ROWS["descend"]
    assert "in one kernel of" in compile_loops(fn, arguments).loops[0]
    monkeypatch.setattr(plan_turns, "keep_on_chip", in_memory)
    assert "B besides" in compile_loops(fn, arguments).loops[0]


def test_fewer_blocks_of_an_sm_or_a_copy_of_scratch_keep_it_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan_turns, "_list_parts", lambda turns, gpu: [take_rows(turns, 1)])
    monkeypatch.setattr(plan_turns, "GAIN", 100.0)
    plan = replace(plan_rows("descend"), on_chip=False)
    assert keep_on_chip(plan, H100).on_chip
    assert not keep_on_chip(plan, replace(H100, shared_per_sm_bytes=2048)).on_chip
    kernel = plan.kernel
    slot = Slot("copied", DType.F32, None, 4, 16, (0, 0), (0, 0))
    written = next(p.name for p in kernel.arguments if p.written)
    fixed = next(
        p.name
        for p in kernel.arguments
        if isinstance(plan.loop.roles[plan.graph.parameters.index(p.source)], Invariant)
    )
    for array, stays in ((written, False), (fixed, True)):
        fetch = Fetch("copied", Linear(), DType.F32, array, Linear(), 4)
        body, slots = (*kernel.body, fetch), (*kernel.slots, slot)
        copying = replace(plan, kernel=replace(kernel, body=body, slots=slots))
        assert keep_on_chip(copying, H100).on_chip is stays


@pytest.mark.parametrize("heads", [3, 2])
def test_two_dimensions_of_rows(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = tuple(normal(i, 6, 2, heads, 8, scale=0.5) for i in range(3))
    monkeypatch.setattr(plan_turns, "GAIN", 100.0)
    monkeypatch.setattr(
        plan_turns, "_list_parts", lambda turns, gpu: [take_rows(take_rows(turns, 1), 1)]
    )
    compilation = compile_loops(delta_rule_of_heads, arguments)
    (note,) = compilation.loops
    assert f"{2 * heads} blocks, each with 1 of the rows," in note
    assert_computes(compilation, delta_rule_of_heads, arguments)


def gated_rule(q: Any, k: Any, v: Any, gate: Any) -> Any:
    """The sum of what a gated delta rule of 64 x 64 numbers a head puts out."""

    def turn(state: Any, now: Any) -> Any:
        q, k, v, gate = now
        state = state * gate[..., None, None]
        rest = v - jnp.einsum("bhvk,bhk->bhv", state, k)
        state = state + rest[..., :, None] * k[..., None, :]
        return state, jnp.einsum("bhvk,bhk->bhv", state, q)

    return jnp.square(lax.scan(turn, jnp.zeros((1, 2, 64, 64)), (q, k, v, gate))[1]).sum()


def test_a_block_alone_adds_up_what_several_would_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over a state on one block: of columns, of rows, and of all its numbers."""
    rows = tuple(normal(i, 5, 1, 2, 64, scale=0.1) for i in range(3))
    arguments = (*rows, np.abs(normal(4, 5, 1, 2, scale=0.3)))
    monkeypatch.setattr(plan_turns, "GAIN", 100.0)
    gradients = jax.grad(gated_rule, (0, 1, 2, 3))
    compilation = compile_loops(gradients, arguments)
    assert any("2 blocks, each with 1 of the rows" in note for note in compilation.loops)
    assert_computes(compilation, gradients, arguments)


def test_a_turn_of_xlas_loop_has_a_kernel_that_counts() -> None:
    """Beside those of its body."""
    graph = import_hlo(lower(delta_rule, *ROWS["delta"][1], keep_unused=True))
    (node,) = loops_of(graph)
    body = compile_graph(node.regions[1], H100)
    whole: Any = SimpleNamespace(
        gpu=H100, bodies=[SimpleNamespace(region=node.regions[1], compilation=body)]
    )
    least_us = sum(project(plan.kernel, H100, work=plan.work).time_us for plan in body.plans)
    counting_us = plan_turns.COUNTER_CYCLES / H100.clock_ghz / 1e3
    assert counting_us == pytest.approx(1.2, abs=0.1)
    assert plan_turns.estimate_turn(whole, graph, node, True) >= least_us + counting_us > 2.5


def find_rows_of(fn: Callable[..., Any], arguments: Any) -> int:
    graph = import_hlo(lower(fn, *arguments, keep_unused=True))
    (node, *_) = loops_of(graph)
    turns = find_turns(graph, node, loop_key(graph, node).used)
    assert isinstance(turns, Turns)
    return find_rows(turns)


@pytest.mark.parametrize("name", ["solve", "descend", "read_table", "adaptive_steps"])
def test_what_meets_has_no_rows(name: str) -> None:
    assert find_rows_of(*LOOPS[name]) == 1


@pytest.mark.parametrize("name", LOOPS)
def test_a_program_of_xlas_calls_the_kernel(name: str) -> None:
    fn, arguments = LOOPS[name]
    graph = import_hlo(lower(fn, *arguments, keep_unused=True))
    compilation = compile_graph(graph, H100, Target(loops=LoopPlanner(H100)))
    found, _ = find_loops(compilation, LoopPlanner(H100))
    assert all(isinstance(made.plan, TurnsPlan) for made in found.values())
    assert_module_computes(compilation, found, fn, arguments)


def assert_module_computes(compilation: Any, found: Any, fn: Any, arguments: Any) -> None:
    calls = {key: LoopCall(made, as_call(made)) for key, made in found.items()}
    module = import_hlo(export_program(compilation, as_text(compilation), loops=calls))
    assert calls and not loops_of(module)
    got = run_graph(module, [np.asarray(x) for x in jax.tree.leaves(arguments)])
    for a, b in zip(got, jax.tree.leaves(jax.jit(fn)(*arguments)), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        close = 3e-2 if a.dtype == jnp.bfloat16 else 2e-4
        np.testing.assert_allclose(
            np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=close, atol=close
        )


REFUSED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "factors": (
        lambda x: lax.fori_loop(0, 5, lambda _, y: jnp.linalg.solve(MATRIX, y), x),
        (normal(3, 12),),
        "a call of 'lapack_sgetrf_ffi'",
    ),
    "eigenvalues": (
        lambda x: lax.fori_loop(0, 5, lambda _, y: y + jnp.linalg.eigvalsh(MATRIX * y), x),
        (normal(3, 12),),
        "may do more than give a value",
    ),
    "few turns": (
        lambda x: lax.fori_loop(0, 3, lambda _, y: MATRIX @ y, x),
        (normal(3, 12),),
        "3 times",
    ),
    "products": (
        lambda x: lax.fori_loop(0, 5, lambda _, y: jnp.tanh(y @ y), x),
        (normal(3, 128, 128),),
        "a turn is not one kernel",
    ),
    "large": (
        lambda x: lax.fori_loop(0, 5, lambda _, y: y / jnp.square(y).sum(), x),
        (normal(3, 300_000),),
        "as XLA's loop",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_turn_says_why(name: str) -> None:
    fn, arguments, reason = REFUSED[name]
    compilation = compile_loops(fn, arguments)
    (note,) = compilation.loops
    assert reason in note
    assert not any(
        isinstance(step, KernelStep) and step.kernel.name.startswith("loop_")
        for step in compilation.program.steps
    )


@pytest.mark.parametrize("name", ["few turns", "large"])
def test_the_line_below_a_refusal_makes_a_kernel(name: str) -> None:
    fn, arguments, _ = REFUSED[name]
    (note,) = compile_loops(fn, arguments).loops
    _, undo = note.split("\n    to reverse it: ")
    compilation = compile_loops(fn, arguments, told=undo)
    assert compilation.loops[0].startswith("loop_0 = %")
    assert_computes(compilation, fn, arguments)


def test_a_loop_that_cannot_be_kept_says_why() -> None:
    fn, arguments, _ = REFUSED["products"]
    (note,) = compile_loops(fn, arguments).loops
    assert "to reverse it" not in note
    name = note.split(":")[0]
    told = read_directives(f"keep {name}")
    planner = LoopPlanner(H100, directives=told)
    graph = import_hlo(lower(fn, *arguments, keep_unused=True))
    take_loops(compile_graph(graph, H100, Target(loops=planner)), planner)
    (outcome,) = told.list_outcomes()
    assert outcome.startswith(f"keep {name}: not followed: ") and "not one kernel" in outcome


def test_a_directive_leaves_it() -> None:
    graph = import_hlo(lower(solve, normal(2, 12), keep_unused=True))
    told = read_directives("leave-loops")
    planner = LoopPlanner(H100, directives=told)
    compilation = compile_graph(graph, H100, Target(loops=planner))
    assert not find_loops(compilation, planner)[0]
