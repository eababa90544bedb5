"""Block groups on few SMs: rows, groups and columns whose parts stay with the blocks that meet, delayed by up to
three tasks or not."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astitch.device.gpu import Gpu, preset
from astitch.device.schedule import DEFAULT, Schedule
from astitch.kernel import kernel_ir as k
from astitch.kernel.kernel_ir import BARRIER_STRIDE
from astitch.kernel.on_chip import MAX_DELAY
from astitch.mapping.stitch_scheme import ReductionScope
from astitch.program.steps import KernelStep
from astitch.run.emulate import Order
from astitch.run.host_engine import HostEngine
from astitch.search.build_program import make_cuda_kernel
from astitch.toolchain.nvrtc import compile_cuda
from tests.small_gpu import Planned, assert_close, by_jax, few_sms, find_statements, plan_for

F32, BF16, F16 = np.dtype(np.float32), np.dtype(jnp.bfloat16), np.dtype(np.float16)
TOLERANCE = {F32: 2e-5, BF16: 2e-2, F16: 3e-3}
EXACT_NUMBERS = {F32: 1e-4, np.dtype(np.int32): 0.0, np.dtype(bool): 0.0}


def softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x.astype(jnp.float32), -1).astype(x.dtype)


def softmax_and_logsumexp(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = x.astype(jnp.float32)
    return jax.nn.softmax(y, -1).astype(x.dtype), jax.nn.logsumexp(y, -1)


def layer_norm(x: jax.Array) -> tuple[jax.Array, ...]:
    y = x.astype(jnp.float32)
    mean = y.mean(-1, keepdims=True)
    variance = jnp.square(y - mean).mean(-1, keepdims=True)
    return ((y - mean) * jax.lax.rsqrt(variance + 1e-5)).astype(x.dtype), mean, variance


def rms_norm_sum(x: jax.Array, y: jax.Array, gamma: jax.Array) -> tuple[jax.Array, jax.Array]:
    s = x + y
    scale = jax.lax.rsqrt(jnp.square(s.astype(jnp.float32)).mean(-1, keepdims=True) + 1e-5)
    return s, (s * scale * gamma).astype(x.dtype)


def softmax_backward(x: jax.Array, dy: jax.Array) -> jax.Array:
    return jax.vjp(lambda v: jax.nn.softmax(v, -1), x)[1](dy)[0]


def group_norm(x: jax.Array, groups: int = 8) -> tuple[jax.Array, ...]:
    n, h, w, c = x.shape
    y = x.astype(jnp.float32).reshape(n, h, w, groups, c // groups)
    mean = y.mean((1, 2, 4), keepdims=True)
    variance = jnp.square(y - mean).mean((1, 2, 4), keepdims=True)
    scaled = (y - mean) * jax.lax.rsqrt(variance + 1e-5)
    return scaled.reshape(x.shape).astype(x.dtype), mean, variance


def group_norm_by_moments(x: jax.Array) -> jax.Array:
    """Two reductions of strided threads, one after the other, in front of one meeting."""
    n, _, _, c = x.shape
    y = x.astype(jnp.float32).reshape(n, -1, 8, c // 8)
    mean = y.mean((1, 3), keepdims=True)
    variance = jnp.mean(y * y, (1, 3), keepdims=True) - mean * mean
    return ((y - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape).astype(x.dtype)


def group_norm_of_five(x: jax.Array) -> tuple[jax.Array, ...]:
    return group_norm(x, 5)


def instance_norm(x: jax.Array) -> tuple[jax.Array, ...]:
    """Columns are the channels: each is a sum over the rows of an image, which are read again."""
    y = x.astype(jnp.float32)
    mean = y.mean((1, 2), keepdims=True)
    variance = jnp.square(y - mean).mean((1, 2), keepdims=True)
    return ((y - mean) * jax.lax.rsqrt(variance + 1e-5)).astype(x.dtype), mean, variance


def batch_norm(x: jax.Array) -> jax.Array:
    y = x.astype(jnp.float32)
    mean = y.mean(0)
    variance = jnp.square(y - mean).mean(0)
    return ((y - mean) * jax.lax.rsqrt(variance + 1e-5)).astype(x.dtype)


def batch_norm_of_rows(x: jax.Array) -> jax.Array:
    """Channels are not last: each is a run of every image."""
    y = x.astype(jnp.float32)
    mean = y.mean((0, 2, 3), keepdims=True)
    variance = jnp.square(y - mean).mean((0, 2, 3), keepdims=True)
    return ((y - mean) * jax.lax.rsqrt(variance + 1e-5)).astype(x.dtype)


def group_norm_of_four(x: jax.Array) -> tuple[jax.Array, ...]:
    return group_norm(x, 4)


def softmax_of_columns(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x, 0)


def normal(*shape: int, dtype: np.dtype = F32, seed: int = 0, mean: float = 0.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) + mean).astype(dtype)


FOURTHS, FIFTHS = Schedule(split=4), Schedule(split=5)
"""For rows that one block could keep: the rules split those only where most of the GPU were idle."""

Case = tuple[Callable[..., Any], tuple[np.ndarray, ...], int, Schedule]

CASES: dict[str, Case] = {
    # name: function, arguments, SMs, schedule.  Prime and odd columns have vectors of one element or two.
    "softmax": (softmax, (normal(8, 60_000),), 8, DEFAULT),
    "softmax of odd rows": (softmax, (normal(7, 59_999),), 11, DEFAULT),
    "softmax of even rows": (softmax, (normal(5, 33_002, dtype=BF16),), 8, FIFTHS),
    "softmax and logsumexp": (softmax_and_logsumexp, (normal(6, 40_004, dtype=F16),), 8, FIFTHS),
    "layer norm": (layer_norm, (normal(9, 40_000, mean=3),), 16, FIFTHS),
    "softmax of halves": (softmax, (normal(6, 40_004, dtype=F16),), 8, FIFTHS),
    "rms norm of bf16": (rms_norm_sum, tuple(normal(*s, 40_960, dtype=BF16) for s in ((7,), (7,), ())), 8, FIFTHS),
    "layer norm of two rows": (layer_norm, (normal(2, 70_001),), 16, DEFAULT),
    "sum and rms norm": (rms_norm_sum, (*(normal(6, 32_768, seed=s) for s in (1, 2)), normal(32_768)), 8, FOURTHS),
    "softmax backward": (softmax_backward, (normal(5, 30_000), normal(5, 30_000, seed=1)), 8, FOURTHS),
    "group norm": (group_norm, (normal(6, 64, 40, 32, mean=3),), 8, DEFAULT),
    "group norm of two channels": (group_norm_of_five, (normal(5, 61, 53, 10),), 8, DEFAULT),
    "group norm of bf16": (group_norm, (normal(6, 32, 40, 64, dtype=BF16),), 8, DEFAULT),
    "instance norm": (instance_norm, (normal(6, 20, 20, 64, mean=3),), 4, DEFAULT),
    "instance norm of odd channels": (instance_norm, (normal(5, 19, 23, 21, mean=3),), 4, DEFAULT),
    "instance norm of bf16": (instance_norm, (normal(4, 20, 25, 96, dtype=BF16),), 4, DEFAULT),
    "batch norm": (batch_norm, (normal(1500, 64, mean=2),), 4, DEFAULT),
    "batch norm of rows": (batch_norm_of_rows, (normal(40, 6, 28, 28, mean=3),), 8, DEFAULT),
    "batch norm of odd rows": (batch_norm_of_rows, (normal(37, 3, 31, 29, mean=3),), 8, DEFAULT),
    "batch norm of rows of bf16": (batch_norm_of_rows, (normal(40, 5, 28, 28, dtype=BF16),), 8, DEFAULT),
    "group norm of wide groups": (group_norm_of_four, (normal(3, 40, 40, 256),), 8, DEFAULT),
    "softmax of columns": (softmax_of_columns, (normal(500, 100),), 4, FOURTHS),
}  # fmt: skip


@functools.cache
def planned(name: str) -> Planned:
    """By the rules and the schedule alone: which plan a search takes is a matter of projections."""
    fn, arguments, sms, schedule = CASES[name]
    return plan_for(few_sms(sms), fn, *arguments, schedule=schedule)


def assert_legal_block_groups(found: Planned, gpu: Gpu) -> None:
    """All blocks are resident, each belongs to one block group of the one size, and all parts have words of their
    own."""
    kernel = found.plan.kernel
    (parts,) = set(found.block_groups)
    assert kernel.cooperative and parts > 1
    assert kernel.grid % parts == 0 and kernel.block_groups == kernel.grid // parts
    assert kernel.barrier_words == 2 * BARRIER_STRIDE + 2 * kernel.tagged_words
    blocks_per_sm = gpu.blocks_per_sm(kernel.block, 64, found.program.kernels[0].shared_bytes)
    assert kernel.grid <= gpu.sms * max(blocks_per_sm, 1)


@pytest.mark.parametrize("name", CASES)
def test_block_groups_compute_what_jax_computes(name: str) -> None:
    fn, arguments, sms, _ = CASES[name]
    found = planned(name)
    assert_legal_block_groups(found, few_sms(sms))
    assert "collect_parts" in found.text and "ASTITCH_GLOBAL_BARRIER" not in found.text
    assert_close(found.run(*arguments), by_jax(fn, *arguments), TOLERANCE)


RACES = [
    "softmax",
    "softmax of halves",
    "sum and rms norm",
    "group norm of bf16",
    "group norm of two channels",
    "instance norm of odd channels",
    "instance norm of bf16",
    "softmax of columns",
]


@pytest.mark.parametrize("name", RACES)
def test_nothing_races(name: str) -> None:
    fn, arguments, *_ = CASES[name]
    assert_close(planned(name).run(*arguments, check=True), by_jax(fn, *arguments), TOLERANCE)


@pytest.mark.parametrize(
    "name",
    ["softmax", "softmax of halves", "group norm of two channels", "instance norm of odd channels"],
)
def test_any_order_of_threads_and_any_launch_gives_the_same_bits(name: str) -> None:
    """Launch numbers and old parts carry over from launch to launch; parts are added in a fixed order."""
    _, arguments, *_ = CASES[name]
    found = planned(name)
    wanted = [a.tobytes() for a in found.run(*arguments)]
    for order, seed in ((Order.REVERSE, 0), (Order.RANDOM, 1), (Order.RANDOM, 2)):
        engine = found.engine(order=order, seed=seed)
        for _ in range(2):
            assert [a.tobytes() for a in engine.run(arguments)] == wanted


@pytest.mark.parametrize("name", ["softmax", "layer norm", "group norm", "instance norm"])
def test_a_program_runs_again_with_other_arguments(name: str) -> None:
    fn, arguments, *_ = CASES[name]
    engine = planned(name).engine()
    for turn in range(3):
        moved = [(a * (turn + 1)).astype(a.dtype) for a in arguments]
        assert_close(engine.run(moved), by_jax(fn, *moved), TOLERANCE)


# ---- edges


def edge_rows(columns: int) -> np.ndarray:
    """Rows without a finite element, with a NaN, with infinities in the first or the last part."""
    x = normal(7, columns, seed=3)
    x[0] = -np.inf
    x[1, columns // 2] = np.nan
    x[2, -1] = np.inf
    x[3, : columns - 5] = -np.inf
    x[4, ::3] = -np.inf
    x[5, 0], x[5, -1] = np.inf, -np.inf
    return x


@pytest.mark.parametrize("columns", [40_000, 40_009])
def test_nans_and_infinities_are_where_jax_has_them(columns: int) -> None:
    x = edge_rows(columns)
    found = plan_for(few_sms(8), softmax_and_logsumexp, x, schedule=FIFTHS)
    assert found.block_groups
    assert_close(found.run(x), by_jax(softmax_and_logsumexp, x), 2e-5)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.data())
def test_rows_of_any_length_on_any_gpu(data: st.DataObject) -> None:
    sms = data.draw(st.sampled_from((4, 6, 8, 11, 16)), "sms")
    rows = data.draw(st.integers(1, sms), "rows")
    columns = data.draw(st.integers(16_385, 70_000), "columns")
    dtype = data.draw(st.sampled_from((F32, BF16, F16)), "dtype")
    fn = data.draw(st.sampled_from((softmax_and_logsumexp, layer_norm)), "fn")
    x = normal(rows, columns, dtype=dtype, seed=columns)
    found = plan_for(few_sms(sms), fn, x)
    assert_close(found.run(x), by_jax(fn, x), TOLERANCE | {F32: 1e-4})


@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.data())
def test_groups_of_any_shape_on_any_gpu(data: st.DataObject) -> None:
    sms = data.draw(st.sampled_from((4, 8, 11)), "sms")
    groups, channels = data.draw(
        st.sampled_from(((1, 3), (2, 8), (5, 2), (8, 4), (3, 1))), "groups"
    )
    shape = (
        *(data.draw(st.integers(low, high)) for low, high in ((1, 4), (20, 70), (20, 50))),
        groups * channels,
    )
    x = normal(*shape, dtype=data.draw(st.sampled_from((F32, BF16)), "dtype"), seed=shape[1])
    fn = functools.partial(group_norm, groups=groups)
    assert_close(plan_for(few_sms(sms), fn, x).run(x), by_jax(fn, x), TOLERANCE | {F32: 1e-4})


# ---- accuracy


def two_pass(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(mean, variance) of each row in f32, elements added one after the other."""
    count = np.float32(x.shape[1])
    mean = np.add.accumulate(x, 1, dtype=np.float32)[:, -1:] / count
    return mean[:, 0], np.add.accumulate(np.square(x - mean), 1, dtype=np.float32)[:, -1] / count


def batch_statistics(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    mean = x.mean(0)
    return mean, jnp.square(x - mean).mean(0)


@pytest.mark.parametrize("mean", [0.0, 1e4])
@pytest.mark.parametrize(
    ("fn", "shape", "as_rows"),
    [
        (layer_norm, (5, 40_000), lambda x: x),
        (group_norm, (4, 64, 40, 32), lambda x: x.reshape(4, -1, 8, 4).transpose(0, 2, 1, 3).reshape(32, -1)),
        (batch_statistics, (9973, 24), lambda x: np.ascontiguousarray(x.T)),
    ],
    ids=["layer norm", "group norm", "batch norm"],
)  # fmt: skip
def test_statistics_are_no_worse_than_two_passes(
    fn: Callable[..., Any], shape: tuple[int, ...], as_rows: Callable[..., Any], mean: float
) -> None:
    """Sums of squares alone would lose all of a variance of 1 beside a mean of 1e4."""
    x = normal(*shape, mean=mean)
    found = plan_for(few_sms(16), fn, x)
    assert "moments" in found.text
    means, variances = (r.ravel().astype(np.float64) for r in found.run(x)[-2:])
    rows = as_rows(x)
    exact = rows.astype(np.float64)
    plain_mean, plain_variance = two_pass(rows)
    for got, plain, wanted in (
        (means, plain_mean, exact.mean(1)),
        (variances, plain_variance, exact.var(1)),
    ):
        error = np.max(np.abs(got - wanted))
        assert error <= np.max(np.abs(plain - wanted)) + 1e-6
    assert np.max(np.abs(variances - exact.var(1))) < 2e-4


@pytest.mark.parametrize("value", [3e19, -2e-22])
def test_equal_elements_have_no_variance(value: float) -> None:
    """Their squares would overflow, or vanish; joining with the identity of idle threads must not."""
    x = np.full((3, 40_001), value, np.float32)
    found = plan_for(few_sms(8), layer_norm, x, schedule=FIFTHS)
    assert found.block_groups
    _, mean, variance = found.run(x)
    np.testing.assert_allclose(mean, value, rtol=1e-6)
    assert np.all(variance <= (value * 1e-6) ** 2) and np.all(variance >= 0)


# ---- what is emitted


def loop_of(found: Planned) -> k.TaskLoop:
    (loop,) = find_statements(found.plan.kernel.body, k.TaskLoop)
    return loop


@pytest.mark.parametrize(
    "name", ["softmax", "softmax of halves", "layer norm", "group norm", "instance norm", "softmax of columns"]
)  # fmt: skip
def test_a_block_group_meets_once_a_task(name: str) -> None:
    """Max and sum, mean and variance are one reduction each: one meeting, and each element is read once."""
    found = planned(name)
    body = found.plan.kernel.body
    (publish,), (collect,) = find_statements(body, k.Publish), find_statements(body, k.Collect)
    assert publish.area == collect.area
    columns = found.plan.arrangement.loops[0].mapping.rows_last
    assert len(find_statements(body, k.Meeting)) == (0 if columns else 1)
    source = found.plan.kernel.parameters[0].name
    reads = [s for kind in (k.Fetch, k.Load, k.LoadVector) for s in find_statements(body, kind)]
    early = loop_of(found).buffers and 2 + (
        loop_of(found).delay > 0
    )  # of the first tasks and the next
    assert sum(s.array == source for s in reads) == (early or 1)


@pytest.mark.parametrize("name", CASES)
def test_every_part_has_words_of_its_own(name: str) -> None:
    """For each result one of each block; what the areas of several reductions take adds up."""
    found = planned(name)
    areas = {s.area for s in find_statements(found.plan.kernel.body, k.Publish)}
    assert {a.parts for a in areas} == set(found.block_groups)
    end = 0
    for area in sorted(areas, key=lambda a: a.offset):
        assert area.offset == (end if area.words == 1 else end + end % 2)
        places = {
            e * area.strides[0] + p * area.strides[1] + w
            for e in range(area.results)
            for p in range(area.parts)
            for w in range(area.words)
        }
        assert places == set(range(len(places)))
        assert len(places) == area.results * area.parts * area.words
        end = area.offset + len(places)
    assert found.plan.kernel.tagged_words == end


# ---- blocks that go on while they wait


@dataclasses.dataclass(frozen=True)
class Delayed:
    """A plan whose blocks wait `delay` tasks after they have published."""

    fn: Callable[..., Any]
    argument: np.ndarray
    sms: int
    schedule: Schedule
    delay: int


DELAYED = {
    "rows, 1": Delayed(softmax, normal(8, 17_000), 6, Schedule(block=256, blocks_per_sm=4, split=6), 1),
    "rows, 2": Delayed(layer_norm, normal(8, 20_000, mean=3), 6, Schedule(block=256, blocks_per_sm=4, split=9), 2),
    "rows, 3": Delayed(softmax, normal(7, 16_999), 6, Schedule(block=128, blocks_per_sm=4, split=9), 3),
    "groups, 1": Delayed(group_norm_of_five, normal(6, 21, 23, 10), 2, Schedule(block=128, blocks_per_sm=4), 1),
    "groups, 2": Delayed(group_norm, normal(6, 24, 20, 32, mean=3), 4, Schedule(block=128, blocks_per_sm=4), 2),
    "groups, 3": Delayed(group_norm, normal(6, 24, 20, 32, mean=3), 2, Schedule(block=256, blocks_per_sm=2), 3),
    "moments, 3": Delayed(group_norm_by_moments, normal(6, 24, 20, 160), 4, Schedule(block=256, blocks_per_sm=2), 3),
    "columns, 1": Delayed(softmax_of_columns, normal(500, 100), 4, Schedule(split=4), 1),
    "columns, 2": Delayed(instance_norm, normal(5, 40, 23, 21, mean=3), 4, Schedule(split=5), 2),
    "columns, 3": Delayed(instance_norm, normal(5, 40, 25, 96, mean=3), 4, Schedule(split=8), 3),
}  # fmt: skip
"""Some blocks of the second and the third have a task more than others."""


@functools.cache
def delayed(name: str) -> Planned:
    what = DELAYED[name]
    return plan_for(few_sms(what.sms), what.fn, what.argument, schedule=what.schedule)


@pytest.mark.parametrize("name", DELAYED)
def test_blocks_with_many_tasks_wait_tasks_later(name: str) -> None:
    """The parts of a task are published, and the next ones are begun.  Then the sums of the first are read, and its
    place in the circular buffer is free for the task after the next."""
    what, found, loop = DELAYED[name], delayed(name), loop_of(delayed(name))
    assert_legal_block_groups(found, few_sms(what.sms))
    assert (loop.delay, loop.buffers) == (what.delay, what.delay + 2)
    assert loop.delay <= -(-loop.tasks // found.plan.kernel.grid)
    current, previous, fetch = loop.body
    assert isinstance(current, k.Current) and isinstance(previous, k.Previous)
    assert isinstance(fetch, k.Prefetch)
    assert (previous.delay, previous.buffers, fetch.distance) == (what.delay, loop.buffers, 2)
    assert find_statements(current.body, k.Publish) and not find_statements(current.body, k.Collect)
    assert find_statements(previous.body, k.Collect) and not find_statements(
        previous.body, k.Publish
    )
    assert {m.delay for m in find_statements(previous.body, k.Meeting)} <= {what.delay}
    first = [s for s in find_statements(found.plan.kernel.body, k.Prefetch) if s.first]
    assert [s.distance for s in first] == [0, 1]
    (wait,) = find_statements(current.body, k.CopyWait)
    assert wait.pending == 1, "the next task's may be on their way"
    assert f"blocks wait for a block group {what.delay} tasks later" in found.notes
    engine = found.engine()
    for turn in range(2):
        argument = (what.argument * (turn + 1)).astype(what.argument.dtype)
        assert_close(engine.run([argument]), by_jax(what.fn, argument), TOLERANCE)


@pytest.mark.parametrize("name", DELAYED)
def test_no_lag_changes_a_bit(name: str) -> None:
    """Of the same parts in the same order: one task after the other, or as many threads in another order."""
    what = DELAYED[name]
    wanted = [a.tobytes() for a in delayed(name).run(what.argument)]
    at_once = dataclasses.replace(what.schedule, prefetch=False)
    plain = plan_for(few_sms(what.sms), what.fn, what.argument, schedule=at_once)
    assert plain.block_groups == delayed(name).block_groups and loop_of(plain).delay == 0
    assert [a.tobytes() for a in plain.run(what.argument)] == wanted
    engine = delayed(name).engine(order=Order.RANDOM, seed=1)
    assert [a.tobytes() for a in engine.run([what.argument])] == wanted


@pytest.mark.parametrize(
    "name", ["rows, 2", "rows, 3", "groups, 3", "moments, 3", "columns, 2", "columns, 3"]
)
def test_nothing_races_while_blocks_wait(name: str) -> None:
    what = DELAYED[name]
    engine = delayed(name).engine(check=True)
    for _ in range(2):
        assert_close(engine.run([what.argument]), by_jax(what.fn, what.argument), TOLERANCE)


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 6, 7, 9, 11])
def test_lags_end_with_the_tasks(rows: int) -> None:
    """Blocks with fewer tasks than the largest delay, with as many, and where the last round is not full."""
    x = normal(rows, 17_000)
    schedule = Schedule(block=256, blocks_per_sm=2, split=6)
    found = plan_for(few_sms(6), softmax, x, schedule=schedule)
    assert found.block_groups == (6,) and found.plan.kernel.grid == 12
    tasks = -(-rows // 2)  # of a block: there are two block groups
    assert loop_of(found).delay == (min(max(tasks - 1, 1), MAX_DELAY) if tasks > 1 else 0)
    assert_close(found.run(x, check=True), by_jax(softmax, x), TOLERANCE)


def test_a_lagging_kernel_of_large_arrays_compiles() -> None:
    """Its task numbers are long long."""
    found = delayed("rows, 3")
    wide = dataclasses.replace(found.plan.kernel, wide_index=True)
    (step,) = found.program.steps
    assert isinstance(step, KernelStep)
    step = dataclasses.replace(step, kernel=make_cuda_kernel(wide))
    program = dataclasses.replace(found.program, steps=(step,))
    x = DELAYED["rows, 3"].argument
    assert_close(HostEngine(program).run([x]), by_jax(softmax, x), TOLERANCE)
    assert list(compile_cuda(step.kernel.source, "sm_90").kernels) == [wide.name]


def test_a_tile_too_large_for_a_circular_buffer_of_three_has_no_delay() -> None:
    x = normal(4, 50_000)
    schedule = Schedule(block=1024, blocks_per_sm=2, split=4)
    found = plan_for(few_sms(2), softmax, x, schedule=schedule)
    loop = loop_of(found)
    assert found.block_groups and loop.tasks > found.plan.kernel.grid and loop.delay == 0
    assert_close(found.run(x, check=True), by_jax(softmax, x), TOLERANCE)


def test_kernels_of_one_task_a_block_have_no_delay() -> None:
    found = plan_for(few_sms(8), softmax, normal(2, 60_000), schedule=DEFAULT)
    (meeting,) = find_statements(found.plan.kernel.body, k.Meeting)
    loop = loop_of(found)
    assert found.block_groups and (meeting.delay, loop.once, loop.delay, loop.buffers) == (
        0,
        True,
        0,
        0,
    )
    assert "tasks ago" not in found.text


# ---- states of all kinds


def largest_and_where(axis: int, x: jax.Array) -> tuple[jax.Array, ...]:
    return x - x.max(axis, keepdims=True), x.argmax(axis), x.min(axis)


def any_and_all(axis: int, x: jax.Array) -> tuple[jax.Array, ...]:
    some = (x > 3).any(axis, keepdims=True)
    return jnp.where(some, x, -x), (x > 0).all(axis)


def whole_numbers(axis: int, x: jax.Array) -> jax.Array:
    y = jnp.round(x * 9).astype(jnp.int32)
    return y * y.sum(axis, keepdims=True)


def three_sums(axis: int, x: jax.Array) -> tuple[jax.Array, ...]:
    y = x[::-1]
    total, squares, gap = x.sum(axis), jnp.square(y).sum(axis), jnp.abs(x - y).max(axis)
    spread = [jnp.expand_dims(s, axis) for s in (total, squares, gap)]
    return x * spread[0] + y * spread[1] + spread[2], total, squares, gap


def one_after_the_other(axis: int, x: jax.Array) -> jax.Array:
    """Three meetings a task: each needs what the one before gave."""
    y = jax.nn.softmax(x, axis)
    z = y - y.mean(axis, keepdims=True)
    return z / jnp.sqrt(jnp.square(z).sum(axis, keepdims=True) + 1)


@pytest.mark.parametrize("axis", [-1, 0], ids=["rows", "columns"])
@pytest.mark.parametrize(
    "fn", [largest_and_where, any_and_all, whole_numbers, three_sums, one_after_the_other]
)
def test_block_groups_exchange_states_of_all_kinds(fn: Callable[..., Any], axis: int) -> None:
    x = normal(5, 30_000) if axis else normal(1000, 72)
    schedule = Schedule(block=512, blocks_per_sm=2, split=8)
    found = plan_for(few_sms(4), functools.partial(fn, axis), x, schedule=schedule)
    assert set(found.block_groups) == {8} and found.plan.kernel.block_groups > 0
    wanted = by_jax(functools.partial(fn, axis), x)
    engine = found.engine(check=True)
    for _ in range(2):
        assert_close(engine.run([x]), wanted, EXACT_NUMBERS)


# ---- more than one reduction in a kernel


def test_rows_of_different_lengths_do_not_share_words() -> None:
    """The block groups of one loop have other members than those of the other."""

    def both(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.nn.softmax(x, -1), jax.nn.softmax(y, -1)

    for rows, sms in (((3, 3), 11), ((2, 5), 8), ((1, 4), 16)):
        x, y = normal(rows[0], 60_000), normal(rows[1], 90_000, seed=1)
        found = plan_for(few_sms(sms), both, x, y)
        assert len(set(found.block_groups)) <= 1
        assert_close(found.run(x, y, check=True), by_jax(both, x, y), 2e-5)


@pytest.mark.parametrize(
    ("rows", "columns"), [((4, 4), (60_000, 150_000)), ((4, 16), (60_000, 60_000)), ((16, 64), (60_000, 150_000))]
)  # fmt: skip
def test_an_h100_has_one_block_group_size_in_a_kernel(
    rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    def both(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.nn.softmax(x, -1), jax.nn.softmax(y, -1)

    shapes = [jax.ShapeDtypeStruct(s, np.float32) for s in zip(rows, columns, strict=True)]
    for plan in plan_for(preset("h100"), both, *shapes).plans:
        sizes = {loop.mapping.parts for loop in plan.arrangement.loops if loop.mapping.cooperative}
        assert len(sizes) <= 1
        assert plan.kernel.block_groups == (plan.kernel.grid // max(sizes) if sizes else 0)


def test_a_sum_that_keeps_the_channels_is_no_matter_of_the_block_group() -> None:
    """Group norm's blocks hold all channels of a group for some pixels; a sum over pixels only has another end."""

    def norm_and_pool(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return group_norm(x)[0], x.mean((1, 2))

    for shape, sms in (((4, 64, 40, 32), 8), ((3, 61, 50, 8), 8), ((5, 32, 8, 24), 2)):
        x = normal(*shape)
        assert_close(
            plan_for(few_sms(sms), norm_and_pool, x).run(x, check=True),
            by_jax(norm_and_pool, x),
            1e-4,
        )


def test_a_row_sum_beside_a_column_sum() -> None:
    """Columns are summed over the tasks of all block groups."""

    def norm_and_columns(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = layer_norm(x)[0]
        return y, y.sum(0)

    x = normal(7, 20_011)
    found = plan_for(few_sms(8), norm_and_columns, x)
    assert_close(found.run(x, check=True), by_jax(norm_and_columns, x), 1e-4)


# ---- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_block_groups_on_a_gpu(name: str) -> None:
    """On the device as it is: the plan may have other block groups, the results are the same."""
    import astitch

    fn, arguments, *_ = CASES[name]
    compiled = astitch.jit(fn)
    for _ in range(2):
        got = [np.asarray(leaf) for leaf in jax.tree.leaves(compiled(*arguments))]
        assert_close(got, by_jax(fn, *arguments), TOLERANCE | {F32: 1e-4})


def test_only_blocks_of_whole_block_groups_leave_partials() -> None:
    """A sum over all rows beside a block group: blocks beyond the last whole block group have no part of it."""

    def loss_and_softmax(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        spread = jnp.exp(x - x.max(-1, keepdims=True))
        total = spread.sum(-1, keepdims=True)
        return jnp.log(total).sum(), spread / total

    x = normal(11, 36_000)
    found = plan_for(few_sms(8), loss_and_softmax, x, schedule=Schedule(split=5))
    arrangement = found.plan.arrangement
    assert arrangement.group_blocks == 5 and found.plan.kernel.grid % 5 == 0
    split = [p for p in arrangement.placements.values() if p.reduction_scope is ReductionScope.LOOP]
    assert split and all(place.partials == found.plan.kernel.grid for place in split)
    assert_close(found.run(x, check=True), by_jax(loss_and_softmax, x), TOLERANCE)


def test_where_no_number_of_blocks_is_whole_block_groups_there_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fewer blocks may make other block groups, and so on: at some point there are none."""
    monkeypatch.setattr("astitch.mapping.stitch_scheme.MAX_WAVES", 1)
    x = normal(11, 36_000)
    found = plan_for(few_sms(8), softmax, x, schedule=Schedule(split=5))
    assert found.plan.arrangement.group_blocks == 1 and not found.block_groups
    assert_close(found.run(x), by_jax(softmax, x), TOLERANCE)
