"""Teams of blocks on few SMs: rows and groups whose parts stay with the blocks that meet, lagged by a task or not."""

from __future__ import annotations

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

from astitch.emulate import Order
from astitch.gpu import Gpu, preset
from astitch.kernel_ir import BARRIER_STRIDE
from astitch.schedule import DEFAULT
from tests.small_gpu import Planned, assert_close, by_jax, few_sms, plan_for

F32, BF16, F16 = np.dtype(np.float32), np.dtype(jnp.bfloat16), np.dtype(np.float16)
TOLERANCE = {F32: 2e-5, BF16: 2e-2, F16: 3e-3}


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


def normal(*shape: int, dtype: np.dtype = F32, seed: int = 0, mean: float = 0.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) + mean).astype(dtype)


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...], int]] = {
    # name: function, arguments, SMs.  Prime and odd columns have vectors of one element or two.
    "softmax": (softmax, (normal(8, 60_000),), 8),
    "softmax of odd rows": (softmax, (normal(7, 59_999),), 11),
    "softmax of even rows": (softmax, (normal(5, 33_002, dtype=BF16),), 8),
    "softmax and logsumexp": (softmax_and_logsumexp, (normal(6, 40_004, dtype=F16),), 8),
    "layer norm": (layer_norm, (normal(9, 40_000, mean=3),), 16),
    "softmax of halves": (softmax, (normal(6, 40_004, dtype=F16),), 8),
    "rms norm of bf16": (rms_norm_sum, tuple(normal(*s, 40_960, dtype=BF16) for s in ((7,), (7,), ())), 8),
    "layer norm of two rows": (layer_norm, (normal(2, 70_001),), 16),
    "sum and rms norm": (rms_norm_sum, (*(normal(6, 32_768, seed=s) for s in (1, 2)), normal(32_768)), 8),
    "softmax backward": (softmax_backward, (normal(5, 30_000), normal(5, 30_000, seed=1)), 8),
    "group norm": (group_norm, (normal(6, 64, 40, 32, mean=3),), 8),
    "group norm of two channels": (functools.partial(group_norm, groups=5), (normal(5, 61, 53, 10),), 8),
    "group norm of bf16": (group_norm, (normal(6, 32, 40, 64, dtype=BF16),), 8),
}  # fmt: skip


@functools.cache
def planned(name: str) -> Planned:
    """By the rules alone: which plan a search takes is a matter of projections."""
    fn, arguments, sms = CASES[name]
    return plan_for(few_sms(sms), fn, *arguments, schedule=DEFAULT)


def assert_legal_teams(found: Planned, gpu: Gpu) -> None:
    """All blocks are resident, each belongs to one team of the one size, and every team has its two words."""
    kernel = found.plan.kernel
    (parts,) = set(found.teams)
    assert kernel.cooperative and parts > 1
    assert kernel.grid % parts == 0 and kernel.teams == kernel.grid // parts
    assert kernel.barrier_words >= (1 + 2 * kernel.teams) * BARRIER_STRIDE
    blocks_per_sm = gpu.blocks_per_sm(kernel.block, 64, found.program.kernels[0].shared_bytes)
    assert kernel.grid <= gpu.sms * max(blocks_per_sm, 1)


@pytest.mark.parametrize("name", CASES)
def test_teams_compute_what_jax_computes(name: str) -> None:
    fn, arguments, sms = CASES[name]
    found = planned(name)
    assert_legal_teams(found, few_sms(sms))
    assert "astitch_team_" in found.text and "ASTITCH_GLOBAL_BARRIER" not in found.text
    assert_close(found.run(*arguments), by_jax(fn, *arguments), TOLERANCE)


RACES = [
    "softmax",
    "softmax of halves",
    "sum and rms norm",
    "group norm of bf16",
    "group norm of two channels",
]


@pytest.mark.parametrize("name", RACES)
def test_nothing_races(name: str) -> None:
    fn, arguments, _ = CASES[name]
    assert_close(planned(name).run(*arguments, check=True), by_jax(fn, *arguments), TOLERANCE)


@pytest.mark.parametrize("name", ["softmax", "softmax of halves", "group norm of two channels"])
def test_any_order_of_threads_and_any_launch_gives_the_same_bits(name: str) -> None:
    """Barrier words carry over from launch to launch; parts are added in a fixed order."""
    _, arguments, _ = CASES[name]
    found = planned(name)
    wanted = [a.tobytes() for a in found.run(*arguments)]
    for order, seed in ((Order.REVERSE, 0), (Order.RANDOM, 1), (Order.RANDOM, 2)):
        engine = found.engine(order=order, seed=seed)
        for _ in range(2):
            assert [a.tobytes() for a in engine.run(arguments)] == wanted


@pytest.mark.parametrize("name", ["softmax", "layer norm", "group norm"])
def test_a_program_runs_again_with_other_arguments(name: str) -> None:
    fn, arguments, _ = CASES[name]
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
    found = plan_for(few_sms(8), softmax_and_logsumexp, x, schedule=DEFAULT)
    assert found.teams
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
    found = plan_for(few_sms(8), layer_norm, x, schedule=DEFAULT)
    assert found.teams
    _, mean, variance = found.run(x)
    np.testing.assert_allclose(mean, value, rtol=1e-6)
    assert np.all(variance <= (value * 1e-6) ** 2) and np.all(variance >= 0)


# ---- what is emitted


def test_a_team_meets_once_a_task() -> None:
    """Max and sum, mean and variance are one reduction each: one meeting, and each element is loaded once."""
    for name in ("softmax", "softmax of halves", "layer norm", "group norm"):
        text = planned(name).text
        meetings = len(re.findall(r"astitch_team_barrier\(|astitch_team_arrive\(", text))
        assert meetings == 1, name
        assert text.count("astitch_team_arrive(") == text.count("astitch_team_wait(")


def lagging(name: str) -> bool:
    return "astitch_team_wait(" in planned(name).text


def test_blocks_with_many_tasks_wait_a_task_later() -> None:
    """The parts of a task are published, the next task is begun, then the sums of the first are read."""
    assert any(lagging(name) for name in CASES) and not all(lagging(name) for name in CASES)
    for name in filter(lagging, CASES):
        found = planned(name)
        text = found.text
        assert found.plan.kernel.grid < max(
            loop.mapping.tasks for loop in found.plan.arrangement.loops
        )
        assert text.index("astitch_team_arrive(") < text.index("if (task != first)")
        assert text.index("if (task != first)") < text.index("astitch_team_wait(")
        assert "blocks wait for a team a task later" in found.notes


def test_kernels_of_one_task_a_block_do_not_lag() -> None:
    found = plan_for(few_sms(8), softmax, normal(2, 60_000), schedule=DEFAULT)
    assert found.teams and "astitch_team_barrier(" in found.text
    assert "task != first" not in found.text


# ---- more than one reduction in a kernel


def test_rows_of_different_lengths_do_not_share_barrier_words() -> None:
    """The blocks of a team of one loop are not those of a team of the other."""

    def both(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.nn.softmax(x, -1), jax.nn.softmax(y, -1)

    for rows, sms in (((3, 3), 11), ((2, 5), 8), ((1, 4), 16)):
        x, y = normal(rows[0], 60_000), normal(rows[1], 90_000, seed=1)
        found = plan_for(few_sms(sms), both, x, y)
        assert len(set(found.teams)) <= 1
        assert_close(found.run(x, y, check=True), by_jax(both, x, y), 2e-5)


@pytest.mark.parametrize(
    ("rows", "columns"), [((4, 4), (60_000, 150_000)), ((4, 16), (60_000, 60_000)), ((16, 64), (60_000, 150_000))]
)  # fmt: skip
def test_an_h100_has_one_team_size_in_a_kernel(
    rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    def both(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.nn.softmax(x, -1), jax.nn.softmax(y, -1)

    shapes = [jax.ShapeDtypeStruct(s, np.float32) for s in zip(rows, columns, strict=True)]
    for plan in plan_for(preset("h100"), both, *shapes).plans:
        sizes = {loop.mapping.parts for loop in plan.arrangement.loops if loop.mapping.team}
        assert len(sizes) <= 1
        assert plan.kernel.teams == (plan.kernel.grid // max(sizes) if sizes else 0)


def test_a_sum_that_keeps_the_channels_is_no_matter_of_the_team() -> None:
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
    """Columns are summed over the tasks of all teams."""

    def norm_and_columns(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = layer_norm(x)[0]
        return y, y.sum(0)

    x = normal(7, 20_011)
    found = plan_for(few_sms(8), norm_and_columns, x)
    assert_close(found.run(x, check=True), by_jax(norm_and_columns, x), 1e-4)


# ---- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_teams_on_a_gpu(name: str) -> None:
    """On the device as it is: the plan may have other teams, the results are the same."""
    import astitch

    fn, arguments, _ = CASES[name]
    compiled = astitch.jit(fn)
    for _ in range(2):
        got = [np.asarray(leaf) for leaf in jax.tree.leaves(compiled(*arguments))]
        assert_close(got, by_jax(fn, *arguments), TOLERANCE | {F32: 1e-4})
