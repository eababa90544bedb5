"""Persistent task loops on few SMs: what is loaded before a task's turn and where it lies, and where loops end.

The race checker watches every kernel here.  A circular buffer one place short, or a vector taken before its copy has
come, is a fault or a wrong result.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astitch.device.schedule import DEFAULT, Keep, Schedule
from astitch.kernel import kernel_ir as k
from astitch.run.emulate import Order
from tests.small_gpu import Planned, assert_close, by_jax, few_sms, find_statements, plan_for

F32, BF16, F16 = np.dtype(np.float32), np.dtype(jnp.bfloat16), np.dtype(np.float16)
TOLERANCE = {F32: 1e-4, BF16: 3e-2, F16: 4e-3}
PERSISTENT = Schedule(persistent=True)


def softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x.astype(jnp.float32), -1).astype(x.dtype)


def layer_norm(x: jax.Array, gamma: jax.Array, beta: jax.Array) -> jax.Array:
    y = x.astype(jnp.float32)
    gap = y - y.mean(-1, keepdims=True)
    variance = jnp.square(gap).mean(-1, keepdims=True)
    return (gap * jax.lax.rsqrt(variance + 1e-5) * gamma + beta).astype(x.dtype)


def layer_norm_backward(x: jax.Array, gamma: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
    """Gradients of x, gamma and beta; beta itself is not needed."""
    return jax.vjp(layer_norm, x, gamma, jnp.zeros_like(gamma))[1](dy)


def rms_norm(x: jax.Array, gamma: jax.Array) -> jax.Array:
    y = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-5)
    return (y * scale * gamma).astype(x.dtype)


def rms_norm_backward(x: jax.Array, gamma: jax.Array, dy: jax.Array) -> tuple[jax.Array, ...]:
    return jax.vjp(rms_norm, x, gamma)[1](dy)


def softmax_of_centered_columns(x: jax.Array) -> jax.Array:
    """Reads x once for the means, after a global barrier, again for the softmax."""
    y = x.astype(jnp.float32)
    return jax.nn.softmax(y - y.mean(0), -1).astype(x.dtype)


def normal(*shape: int, dtype: np.dtype = F32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def norm_arguments(rows: int, cols: int, dtype: np.dtype = F32) -> tuple[np.ndarray, ...]:
    x, dy = (normal(rows, cols, dtype=dtype, seed=s) for s in (1, 2))
    return x, normal(cols, seed=3), dy


@dataclasses.dataclass(frozen=True)
class Case:
    """stages: what the notes say of the places where vectors wait for their task."""

    fn: Callable[..., Any]
    arguments: tuple[np.ndarray, ...]
    stages: frozenset[str]
    schedule: Schedule = DEFAULT
    sms: int = 2


STILL, STILL_SHARED, PREFETCHED, CIRCULAR = (
    "loaded once",
    "copied to shared memory once",
    "of the next task are prefetched",
    "in a circular buffer",
)


def case(
    fn: Callable[..., Any], arguments: tuple[np.ndarray, ...], *stages: str, **options: Any
) -> Case:
    return Case(fn, arguments, frozenset(stages), **options)


CASES = {
    "softmax": case(softmax, (normal(50, 512),), schedule=PERSISTENT),
    "softmax of long rows": case(softmax, (normal(20, 9000),), CIRCULAR, schedule=PERSISTENT),
    "layer norm": case(layer_norm, (normal(60, 512), normal(512), normal(512)), STILL, schedule=PERSISTENT),
    "layer norm of odd rows": case(layer_norm, (normal(61, 500), normal(500), normal(500)), STILL, schedule=PERSISTENT),
    "layer norm backward": case(layer_norm_backward, norm_arguments(70, 512), STILL, PREFETCHED),
    "layer norm backward of bf16": case(layer_norm_backward, norm_arguments(100, 768, BF16), STILL_SHARED, PREFETCHED),
    "layer norm backward of f16": case(layer_norm_backward, norm_arguments(67, 1016, F16), PREFETCHED),
    "layer norm backward of long rows": case(layer_norm_backward, norm_arguments(17, 4096), STILL, CIRCULAR),
    "rms norm backward": case(rms_norm_backward, norm_arguments(50, 1024), STILL, PREFETCHED),
    "rms norm backward of long rows": case(rms_norm_backward, norm_arguments(17, 8192, BF16), STILL, CIRCULAR),
    "centered columns": case(softmax_of_centered_columns, (normal(60, 1024),), PREFETCHED),
}  # fmt: skip


@functools.cache
def planned(name: str) -> Planned:
    what = CASES[name]
    return plan_for(few_sms(what.sms), what.fn, *what.arguments, schedule=what.schedule)


def task_loops(found: Planned) -> list[k.TaskLoop]:
    return [loop for p in found.plans for loop in find_statements(p.kernel.body, k.TaskLoop)]


@pytest.mark.parametrize("name", CASES)
def test_vectors_wait_where_the_plan_says(name: str) -> None:
    what, found = CASES[name], planned(name)
    stages = {s for s in (STILL, STILL_SHARED, PREFETCHED, CIRCULAR) if s in found.notes}
    assert what.stages <= stages
    text = found.text
    assert ("copy_async(" in text) == bool(stages & {CIRCULAR, STILL_SHARED})
    assert ("next_turn" in text) == (CIRCULAR in stages)
    assert any(not loop.once and loop.tasks > 1 for loop in task_loops(found))
    assert_close(
        found.run(*what.arguments, check=True), by_jax(what.fn, *what.arguments), TOLERANCE
    )


@pytest.mark.parametrize("name", CASES)
def test_the_order_of_threads_changes_no_bit(name: str) -> None:
    arguments, found = CASES[name].arguments, planned(name)
    wanted = [a.tobytes() for a in found.run(*arguments)]
    for order, seed in ((Order.REVERSE, 0), (Order.RANDOM, 3)):
        engine = found.engine(order=order, seed=seed)
        for _ in range(2):
            assert [a.tobytes() for a in engine.run(arguments)] == wanted


@pytest.mark.parametrize(
    "name", ["softmax", "layer norm backward", "rms norm backward of long rows"]
)
def test_prefetching_changes_no_bit(name: str) -> None:
    what = CASES[name]
    without = dataclasses.replace(what.schedule, prefetch=False)
    plain = plan_for(few_sms(what.sms), what.fn, *what.arguments, schedule=without)
    assert not any(s in plain.notes for s in (STILL, STILL_SHARED, PREFETCHED, CIRCULAR))
    for got, wanted in zip(
        plain.run(*what.arguments), planned(name).run(*what.arguments), strict=True
    ):
        assert got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("rows", [1, 4, 5, 8, 9, 13])
def test_rings_end_with_the_tasks(rows: int) -> None:
    """Blocks without a task, with one, with two, with as many as places, and where the last round is not full."""
    x = normal(rows, 9000)
    found = plan_for(few_sms(2), softmax, x, schedule=Schedule(persistent=True, split=1))
    assert_close(found.run(x, check=True), by_jax(softmax, x), 2e-5)
    (loop,) = task_loops(found)
    assert (loop.tasks, loop.once) == (rows, rows <= found.plan.kernel.grid)
    assert (CIRCULAR in found.notes) == (loop.buffers > 0)
    first, later = [
        [p for p in find_statements(found.plan.kernel.body, k.Prefetch) if p.first is where]
        for where in (True, False)
    ]
    if loop.buffers:  # no block waits for others: two places, the next task is on its way
        assert (loop.buffers, loop.delay) == (2, 0)
        assert [p.distance for p in first] == [0] and [p.distance for p in later] == [1]
        (wait,) = find_statements(loop.body, k.CopyWait)
        assert wait.pending == 1


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.data())
def test_any_rows_and_columns(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 70), "rows")
    cols = data.draw(
        st.one_of(st.integers(1, 600), st.sampled_from((509, 1000, 1021, 1500, 2049, 4099, 5000))),
        "cols",
    )
    dtype = data.draw(st.sampled_from((F32, BF16, F16)), "dtype")
    keep = data.draw(st.sampled_from((Keep.REGISTERS, Keep.SHARED, Keep.NOTHING)), "keep")
    block = data.draw(st.sampled_from((None, 32, 128)), "block")
    schedule = Schedule(block=block, keep=keep, prefetch=True, persistent=True)
    fn, arguments = data.draw(
        st.sampled_from(
            (
                (softmax, lambda: (normal(rows, cols, dtype=dtype),)),
                (layer_norm_backward, lambda: norm_arguments(rows, cols, dtype)),
                (rms_norm_backward, lambda: norm_arguments(rows, cols, dtype)),
            )
        ),
        "fn",
    )
    values = arguments()
    found = plan_for(few_sms(1), fn, *values, schedule=schedule)
    if cols > 1:  # of one column nothing is left but roundings
        assert_close(found.run(*values, check=True), by_jax(fn, *values), TOLERANCE)


def test_nans_stay_in_their_rows() -> None:
    """A vector of the next task that is taken too early would move them."""
    x = normal(50, 512)
    x[3, 7], x[11], x[12, 500], x[40, 0] = np.nan, -np.inf, np.inf, -np.inf
    found = planned("softmax")
    assert_close(found.run(x), by_jax(softmax, x), 2e-5)


# ---- a second reading


LONG = Schedule(block=256, blocks_per_sm=2)


@pytest.mark.parametrize(
    ("shape", "dtype", "schedule", "circular"),
    [
        ((40, 8706), F32, LONG, True),
        ((24, 17_410), BF16, DEFAULT, True),
        ((9, 40_000), F32, Schedule(keep=Keep.NOTHING, prefetch=False), False),
        ((9, 39_998), F32, Schedule(keep=Keep.SHARED, prefetch=False), False),
        ((40, 8707), F32, Schedule(block=128, keep=Keep.NOTHING), False),
    ],
)
def test_a_second_reading_runs_backward(
    shape: tuple[int, int], dtype: np.dtype, schedule: Schedule, circular: bool
) -> None:
    """The end of what was read last is still in L2.  The buffer holds steps in the order in which they are taken."""
    x = normal(*shape, dtype=dtype)
    found = plan_for(few_sms(2), softmax_of_centered_columns, x, schedule=schedule)
    assert (CIRCULAR in found.notes) == circular
    loops = [loop.mapping for loop in found.plan.arrangement.loops]
    assert max(m.row_steps * m.col_steps for m in loops) > 16, "such loops are not unrolled"
    assert re.search(r"\(l \* -1 \+|-1 \* l|l_end - 1|l \* -\d+", found.text), (
        "no loop runs backward"
    )
    assert_close(found.run(x, check=True), by_jax(softmax_of_centered_columns, x), TOLERANCE)


# ---- where loops end


def bounds(found: Planned) -> list[k.Loop]:
    loops = [loop for p in found.plans for loop in find_statements(p.kernel.body, k.Loop)]
    return [loop for loop in loops if loop.bound is not None]


@pytest.mark.parametrize("rows", [4097, 5000, 4999])
@pytest.mark.parametrize("cols", [9, 33, 64])
def test_long_loops_over_rows_end_early(rows: int, cols: int) -> None:
    """The body has no guard, so that its loads run ahead."""
    x = normal(rows, cols)
    found = plan_for(few_sms(1), lambda v: v.sum(0), x, schedule=Schedule(split=2))
    assert found.plan.kernel.grid < 16
    for loop in bounds(found):
        assert not any(isinstance(s, k.If) for s in loop.body)
        assert f"{loop.variable}_end = " in found.text
    assert bounds(found)
    assert_close(found.run(x, check=True), [x.astype(np.float64).sum(0).astype(np.float32)], 2e-5)


@pytest.mark.parametrize("rows", [9, 127, 200, 257, 4097])
@pytest.mark.parametrize("cols", [3, 33, 64])
def test_all_loads_of_a_column_run_ahead_of_its_sum(rows: int, cols: int) -> None:
    """No load stands behind a guard; of the rows only the last, which some threads lack, is counted behind one."""
    x = normal(rows, cols)
    found = plan_for(few_sms(1), lambda v: v.sum(0), x, schedule=Schedule(split=1))
    assert not bounds(found)
    guarded = find_statements(found.plan.kernel.body, k.If)
    assert not any(find_statements(s.body, k.Load) for s in guarded)
    sums = [s for s in guarded if "row_raw" in str(s.guards)]
    threads = found.plan.arrangement.loops[0].mapping.row_threads
    assert len(sums) == (1 if rows % threads else 0)
    assert_close(found.run(x, check=True), [x.astype(np.float64).sum(0).astype(np.float32)], 2e-5)


def test_exact_loops_have_no_bound_and_unrolled_ones_a_guard() -> None:
    exact = plan_for(few_sms(1), lambda v: v.sum(0), normal(8192, 64), schedule=DEFAULT)
    assert not bounds(exact) and "_end" not in exact.text
    short = plan_for(few_sms(1), softmax, normal(50, 500), schedule=DEFAULT)
    assert not bounds(short) and "if (col < 500)" in short.text


@pytest.mark.parametrize("shape", [(3, 50_001), (2, 70_003), (1, 131_071)])
def test_long_rows_end_early_in_each_part(shape: tuple[int, int]) -> None:
    """Split rows: the last part of a row is shorter, by whole steps and by some threads."""
    x = normal(*shape)
    for schedule in (Schedule(split=3, block=64), Schedule(split=1, keep=Keep.NOTHING)):
        found = plan_for(few_sms(2), lambda v: (v.sum(-1), v.max(-1)), x, schedule=schedule)
        assert bounds(found)
        wanted = [x.astype(np.float64).sum(-1).astype(np.float32), x.max(-1)]
        assert_close(found.run(x, check=True), wanted, 5e-4)


# ---- what a later phase reads


def find_fetches(found: Planned) -> list[k.Fetch]:
    return find_statements(found.plan.kernel.body, k.Fetch)


@pytest.mark.parametrize(("rows", "cols"), [(100, 768), (7, 500), (130, 64)])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_where_all_blocks_run_at_once_the_first_phase_loads_for_all(
    rows: int, cols: int, dtype: np.dtype
) -> None:
    arguments = normal(rows, cols, dtype=dtype), normal(cols, seed=1), normal(cols, seed=2)
    found = plan_for(few_sms(132), layer_norm, *arguments)
    assert "are loaded in the first phase" in found.notes
    assert {f.array for f in find_fetches(found)} == {"p_gamma_1", "p_beta_1"}
    before, *_ = re.split(r"reduce_(?:lanes|warps)<", found.text)
    assert before.count("_now_0[k + l] =") == 2, (
        "gamma and beta are on their way before any thread waits"
    )
    assert_close(found.run(*arguments, check=True), by_jax(layer_norm, *arguments), TOLERANCE)


def test_where_blocks_follow_each_other_their_phases_load_for_themselves() -> None:
    arguments = normal(100, 768), normal(768, seed=1), normal(768, seed=2)
    found = plan_for(few_sms(2), layer_norm, *arguments)
    assert not find_fetches(found)


SECOND: dict[str, Callable[[jax.Array, int, int], jax.Array]] = {
    "itself": lambda w, rows, cols: w[:rows, :cols],
    "later rows": lambda w, rows, cols: w[3 : rows + 3, :cols],
    "later columns": lambda w, rows, cols: w[:rows, 8 : cols + 8],
    "a column on": lambda w, rows, cols: w[:rows, 1 : cols + 1],
    "every other column": lambda w, rows, cols: w[:rows, : 2 * cols : 2],
    "every other row": lambda w, rows, cols: w[: 2 * rows : 2, :cols],
    "rows from the end": lambda w, rows, cols: w[:rows][::-1, :cols],
    "columns from the end": lambda w, rows, cols: w[:rows, :cols][:, ::-1],
    "one row": lambda w, rows, cols: jnp.broadcast_to(w[:1, :cols], (rows, cols)),
    "one column": lambda w, rows, cols: jnp.broadcast_to(w[:rows, :1], (rows, cols)),
    "columns behind padding": lambda w, rows, cols: jnp.pad(w[:rows, : cols // 2], ((0, 0), (cols - cols // 2, 0))),
    "rows before padding": lambda w, rows, cols: jnp.pad(w[: rows // 2, :cols], ((0, rows - rows // 2), (0, 0))),
    "cut by negative padding": lambda w, rows, cols: jax.lax.pad(
        w[: rows + 4, : cols + 8], jnp.zeros((), w.dtype), ((-4, 0, 0), (-8, 0, 0))
    ),
    "halves exchanged": lambda w, rows, cols: jnp.roll(w[:rows, :cols], cols // 2, 1),
    "both orders": lambda w, rows, cols: w[:rows, :cols] + w[:rows, :cols][::-1],
    "masked": lambda w, rows, cols: jnp.where(
        jax.lax.broadcasted_iota(jnp.int32, (rows, cols), 1)
        <= jax.lax.broadcasted_iota(jnp.int32, (rows, cols), 0),
        w[:rows, :cols],
        0,
    ),
    "rows by number": lambda w, rows, cols: w[(jnp.arange(rows) * 7) % (rows + 3), :cols],
    "start known at run time": lambda w, rows, cols: jax.lax.dynamic_slice(
        w, (w[0, 0].astype(jnp.int32), 8), (rows, cols)
    ),
}  # fmt: skip
"""What only the second phase reads of a larger array w, as an array of rows x cols."""


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    st.integers(1, 140),
    st.sampled_from([8, 15, 16, 64, 100, 250, 256, 520, 768]),
    st.sampled_from(sorted(SECOND)),
    st.sampled_from(sorted(SECOND)),
    st.sampled_from([F32, BF16]),
    st.sampled_from([F32, BF16]),
)
def test_what_the_first_phase_loads_for_others_lies_inside(
    rows: int, cols: int, one: str, other: str, dtype: np.dtype, second: np.dtype
) -> None:
    """Whatever of an array a later phase reads, and wherever the last rows and columns of a block end."""

    def normalise(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
        y = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1)
        return (y * scale + SECOND[one](w, rows, cols) - SECOND[other](v, rows, cols)).astype(dtype)

    shape = (2 * rows + 4, 2 * cols + 8)
    x, w = normal(rows, cols, dtype=dtype), normal(*shape, dtype=second, seed=1)
    v = normal(*shape, dtype=dtype, seed=2)
    found = plan_for(few_sms(132), normalise, x, w, v)
    inside = {n for plan in found.plans for n in plan.scope.members}
    for plan in found.plans:
        sources = {p.name: p.source for p in plan.kernel.parameters}
        fetched = find_statements(plan.kernel.body, k.Fetch)
        assert not {sources[f.array].partition("#")[0] for f in fetched} & inside
    assert_close(found.run(x, w, v, check=True), by_jax(normalise, x, w, v), TOLERANCE[BF16])


# ---- reductions side by side


def test_independent_reductions_of_a_row_share_a_block_barrier() -> None:
    def several(x: jax.Array) -> tuple[jax.Array, ...]:
        return x.sum(-1), jnp.abs(x).max(-1), jnp.square(x).sum(-1), x.min(-1)

    x = normal(40, 3000)
    found = plan_for(few_sms(2), several, x, schedule=PERSISTENT)
    steps = [s for loop in task_loops(found) for s in loop.body if isinstance(s, k.ReduceAcross)]
    (step,) = [s for s in steps if s.threads > 32]
    assert len(step.parts) == 4 and all(p.slot for p in step.parts)
    (exchange,) = re.findall(r"reduce_warps.*?combine_warps", found.text, re.DOTALL)
    assert exchange.count("__syncthreads()") == 1
    assert_close(found.run(x, check=True), by_jax(several, x), 2e-5)


def test_reductions_that_wait_do_not_share() -> None:
    found = planned("softmax of long rows")
    steps = [s for loop in task_loops(found) for s in loop.body if isinstance(s, k.ReduceAcross)]
    assert [len(s.parts) for s in steps if s.threads > 32] == [1, 1]


# ---- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_staged_vectors_on_a_gpu(name: str) -> None:
    import astitch

    what = CASES[name]
    compiled = astitch.jit(what.fn)
    for _ in range(2):
        got = [np.asarray(leaf) for leaf in jax.tree.leaves(compiled(*what.arguments))]
        assert_close(got, by_jax(what.fn, *what.arguments), TOLERANCE)
