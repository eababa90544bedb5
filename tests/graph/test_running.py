"""Running reductions (cumsum, cummax ..) as scans inside of stitched kernels, against XLA on the CPU.

The race checker watches the hand-made cases: a barrier that is missing between the exchange of one round and the next
is a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from astitch.device.gpu import preset
from astitch.device.schedule import Schedule
from astitch.errors import IllegalProduct
from astitch.graph.index import Symbol
from astitch.kernel import kernel_ir as k
from astitch.kernel.check_kernel import check_kernel
from astitch.run.emulate import Order
from astitch.thread_mapping import map_space
from astitch.tiling.scans import MAX_STATES, MAX_STEPS, why_not_in_order
from astitch.tiling.space import Mapping, Space
from tests.small_gpu import Planned, assert_close, by_jax, few_sms, find_statements, plan_for

F32, BF16, F16, F64 = (np.dtype(t) for t in (np.float32, jnp.bfloat16, np.float16, np.float64))
TOLERANCE = {F32: 2e-5, BF16: 1e-2, F16: 2e-3, F64: 1e-12}
FUNCTIONS = {f.__name__: f for f in (lax.cumsum, lax.cumprod, lax.cummax, lax.cummin)}
SMALL = Schedule(block=64, split=1)
"""Small blocks: rounds and several warps on data small enough to emulate."""

BLOCK_GROUPS = Schedule(block=64)
"""Blocks scan long rows together."""

ROOMY = Schedule(block=64, blocks_per_sm=4)
"""The same, with shared memory for what the next round needs."""


def numbers(*shape: int, dtype: Any = F32, seed: int = 0) -> np.ndarray:
    found = np.random.default_rng(seed).standard_normal(shape)
    wide = found * 9 if np.dtype(dtype).kind in "iu" else found
    return wide.astype(dtype)


def plan(fn: Callable[..., Any], *arguments: Any, schedule: Schedule | None = SMALL) -> Planned:
    return plan_for(few_sms(2), fn, *arguments, schedule=schedule)


def expect_as_jax(
    fn: Callable[..., Any], *arguments: Any, check: bool = True, schedule: Schedule | None = SMALL
) -> Planned:
    """In one kernel."""
    planned = plan(fn, *arguments, schedule=schedule)
    assert len(planned.plans) == 1
    assert not planned.program.outside
    want = [np.asarray(w) for w in by_jax(fn, *arguments)]
    limits = {w.dtype: TOLERANCE.get(w.dtype, 0.0) for w in want}
    assert_close(planned.run(*arguments, check=check), want, limits)
    return planned


def mappings(planned: Planned) -> list[Mapping]:
    return [loop.mapping for p in planned.plans for loop in p.arrangement.loops]


# ---- values


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_scans_agree_with_xla(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))
    axis = data.draw(st.integers(0, rank - 1))
    long = st.sampled_from([1, 2, 3, 31, 64, 100, 257, 1000, 1024, 2049])
    short = st.integers(1, 6)
    shape = tuple(data.draw(long if d == axis else short) for d in range(rank))
    name = data.draw(st.sampled_from(sorted(FUNCTIONS)))
    dtype = data.draw(st.sampled_from([F32, F16, BF16, F64, np.dtype("i4"), np.dtype("u4")]))
    reverse = data.draw(st.booleans())
    x = numbers(*shape, dtype=dtype)
    if name == "cumprod" and dtype.kind not in "iu":
        x = (1 + x.astype(F64) / shape[axis]).astype(dtype)
    block = data.draw(st.sampled_from([32, 64, 256]))
    with jax.enable_x64(True):
        planned = plan(lambda a: FUNCTIONS[name](a, axis, reverse), x, schedule=Schedule(block))
        (got,) = planned.run(x)
    function = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum}.get(
        name, np.minimum
    )
    wide = x.astype(F64) if dtype.kind not in "iu" else x
    ordered = np.flip(wide, axis) if reverse else wide
    want = function.accumulate(ordered, axis, ordered.dtype)
    want = (np.flip(want, axis) if reverse else want).astype(dtype)
    assert_close([got], [want], {dtype: TOLERANCE.get(dtype, 0.0)})


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "softmax before": (lambda x: jnp.cumsum(jax.nn.softmax(x), 1), (numbers(5, 700),)),
    "a product before": (lambda x, y: jnp.cumsum(x * y, 1), (numbers(5, 700), numbers(5, 700))),
    "a mask of it": (
        lambda x, y: jnp.where(jnp.cumsum(x, 1) > 0, y, 0.0),
        (numbers(5, 700), numbers(5, 700)),
    ),
    "divided by its row's sum": (
        lambda x: jnp.cumsum(x, 1) / (1 + jnp.square(x).sum(1, keepdims=True)),
        (numbers(5, 700),),
    ),
    "row reductions beside it": (
        lambda x: (jnp.cumsum(x, 1), x.sum(1), x.max(1)),
        (numbers(5, 700),),
    ),
    "reduced after": (lambda x: jnp.cumsum(x, 1).max(1), (numbers(5, 700),)),
    "columns summed beside it": (lambda x: (jnp.cumsum(x, 1), x.sum(0)), (numbers(5, 700),)),
    "two after each other": (
        lambda x: jnp.cumsum(jnp.tanh(jnp.cumsum(x, 1)), 1),
        (numbers(5, 700),),
    ),
    "forward and backward": (
        lambda x: jnp.cumsum(x, 1) * lax.cumsum(x, 1, reverse=True),
        (numbers(5, 700),),
    ),
    "read one to the left": (
        lambda x: jnp.pad(jnp.cumsum(x, 1), ((0, 0), (1, 0)))[:, :-1] * x,
        (numbers(5, 700),),
    ),
    "its last element": (
        lambda x: jnp.cumsum(x, 1) / (9 + jnp.abs(jnp.cumsum(x, 1)[:, -1:])),
        (numbers(5, 700),),
    ),
    "gradient": (lambda x: jax.grad(lambda a: (jnp.cumsum(a, 1) ** 2).sum())(x), (numbers(3, 90),)),
    "an associative region": (lambda x: lax.cumlogsumexp(x, 1), (numbers(5, 300),)),
    "down columns, a row's sum beside": (
        lambda x: (jnp.cumsum(x, 0) * 2, x.sum(1)),
        (numbers(90, 70),),
    ),
    "down columns of a product": (
        lambda x, y: jnp.cumsum(x * y, 0) - y,
        (numbers(300, 70), numbers(300, 70)),
    ),
    "along rows and one that all of them read": (
        lambda x, y: (jnp.cumsum(x, 1) + lax.cummax(y), lax.cummax(y)),
        (numbers(6, 700), numbers(700)),
    ),
    "short rows": (lambda x: jnp.cumsum(x, 1) * 2, (numbers(300, 3),)),
    "short columns": (lambda x: lax.cummax(x, 0, reverse=True), (numbers(2, 500),)),
    "rounds of rows": (lambda x: jnp.cumsum(x, 1) - x, (numbers(3, 5000),)),
    "rounds of rows from the end": (
        lambda x: lax.cumsum(x * 2, 1, reverse=True) - x,
        (numbers(3, 5001),),
    ),
    "rounds down columns from the end": (
        lambda x: lax.cummax(x, 0, reverse=True) - x,
        (numbers(500, 40),),
    ),
    "of ones": (lambda x: jnp.cumsum(jnp.ones_like(x), 1), (numbers(6, 100),)),
    "of positions": (lambda: jnp.cumsum(jnp.arange(64)), ()),
    "gradient of a sum": (lambda x: jax.grad(lambda a: jnp.cumsum(a).sum())(x), (numbers(300),)),
    "of columns of positions, from the end": (
        lambda x: x - lax.cumprod(lax.broadcasted_iota(F32, (60, 70), 1), 0, reverse=True),
        (numbers(60, 70),),
    ),
    "of positions of another axis": (
        lambda x: x + lax.cummax(lax.broadcasted_iota(np.int32, (6, 700), 0), 1),
        (numbers(6, 700, dtype=np.int32),),
    ),
    "of one number, in rounds": (lambda x: jnp.cumsum(jnp.full((3, 5000), x), 1), (numbers()[()],)),
    "of one number, associative": (
        lambda x: lax.cumlogsumexp(jnp.full((40, 6), x, BF16), 0),
        (numbers(dtype=BF16)[()],),
    ),
    "of ones both ways": (
        lambda x: jnp.cumsum(jnp.ones_like(x), 0) * x + lax.cumsum(jnp.ones_like(x), 1),
        (numbers(20, 30),),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_is_fused_with_its_neighbours(name: str) -> None:
    fn, arguments = CASES[name]
    expect_as_jax(fn, *arguments)


@pytest.mark.parametrize("read", [False, True])
def test_one_column_beside_many_is_scanned_by_its_own_threads(read: bool) -> None:
    """Those that have the many would each scan it, and hand each other what is not their neighbour's."""

    def fn(x: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
        one = lax.cummax(y)
        return (jnp.cumsum(x, 0) + one[:, None], *([one] if read else []))

    arguments = numbers(800, 24), numbers(800, dtype=np.int32)
    planned = plan_for(preset("h100"), fn, *arguments)
    assert len(planned.plans) == 1 and not planned.program.outside
    want = [np.asarray(w) for w in by_jax(fn, *arguments)]
    assert_close(
        planned.run(*arguments), want, {w.dtype: TOLERANCE.get(w.dtype, 0.0) for w in want}
    )


@pytest.mark.parametrize("name", ["rounds of rows", "down columns of a product"])
@pytest.mark.parametrize("order", [Order.REVERSE, Order.RANDOM])
def test_threads_may_come_in_any_order(name: str, order: Order) -> None:
    fn, arguments = CASES[name]
    planned = plan(fn, *arguments)
    (plain,) = planned.run(*arguments)
    (other,) = planned.engine(order=order, seed=3).run(list(arguments))
    np.testing.assert_array_equal(plain, other)


HANDED_ON: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...], int]] = {
    "one row": (lambda x: jnp.cumsum(x) * 2, (numbers(20_001),), 32),
    "in three rounds": (lambda x: jnp.cumsum(x, 1), (numbers(2, 40_000),), 16),
    "from the end": (lambda x: lax.cumsum(x, 1, reverse=True) - x, (numbers(2, 40_000),), 16),
    "the last round is not full": (lambda x: lax.cummax(x, 1), (numbers(2, 18_500),), 16),
    "of bf16": (
        lambda x: jnp.cumsum(x.astype(F32), 1).astype(BF16),
        (numbers(2, 9_000, dtype=BF16),),
        9,
    ),
    "of columns": (lambda x: jnp.cumsum(x, 0) - x, (numbers(9_000, 6),), 32),
    "of columns in rounds": (lambda x: jnp.cumsum(x, 0), (numbers(30_000, 14),), 16),
    "of columns from the end": (lambda x: lax.cummin(x, 0, reverse=True), (numbers(9_000, 5),), 32),
    "of columns of many": (lambda x: jnp.cumsum(x, 1), (numbers(2, 9_001, 6),), 16),
    "of integers": (lambda x: jnp.cumsum(x), (numbers(9_000, dtype=np.int32),), 9),
}
"""Function, arguments, blocks that share a row."""


@pytest.mark.parametrize("name", HANDED_ON)
def test_blocks_of_a_block_group_hand_on_their_totals(name: str) -> None:
    fn, arguments, blocks = HANDED_ON[name]
    planned = plan(fn, *arguments, schedule=BLOCK_GROUPS)
    assert planned.block_groups == (blocks,)
    assert planned.plan.kernel.global_barriers == 0
    want = by_jax(fn, *arguments)
    exact = [w.dtype for w in want if w.dtype.kind in "iu"]
    assert_close(planned.run(*arguments, check=True), want, dict.fromkeys(exact, 0.0) | TOLERANCE)


@pytest.mark.parametrize("name", HANDED_ON)
def test_rounds_are_prefetched(name: str) -> None:
    fn, arguments, _ = HANDED_ON[name]
    planned = plan(fn, *arguments, schedule=ROOMY)
    assert find_statements(planned.plan.kernel.body, k.FetchRound)
    plain = plan(fn, *arguments, schedule=replace(ROOMY, prefetch=False))
    for got, want in zip(planned.run(*arguments, check=True), plain.run(*arguments), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("order", [Order.REVERSE, Order.RANDOM])
def test_block_groups_give_the_same_bits_in_any_order(order: Order) -> None:
    fn, arguments, _ = HANDED_ON["in three rounds"]
    planned = plan(fn, *arguments, schedule=BLOCK_GROUPS)
    (plain,) = planned.run(*arguments)
    for seed in range(2):
        (other,) = planned.engine(order=order, seed=seed).run(list(arguments))
        np.testing.assert_array_equal(plain, other)


def test_a_kernel_of_block_groups_runs_again() -> None:
    fn, arguments, _ = HANDED_ON["in three rounds"]
    engine = plan(fn, *arguments, schedule=BLOCK_GROUPS).engine()
    first, second = (engine.run([x]) for x in (arguments[0], -arguments[0]))
    np.testing.assert_array_equal(first[0], -second[0])


def test_block_groups_of_two_sizes_do_not_share_a_kernel() -> None:
    fn = lambda x, y: (jnp.cumsum(x), jnp.cumsum(y, 1))  # noqa: E731
    arguments = (numbers(20_001), numbers(2, 18_500))
    planned = plan(fn, *arguments, schedule=BLOCK_GROUPS)
    assert len(set(planned.block_groups)) == 1
    assert_close(planned.run(*arguments), by_jax(fn, *arguments), TOLERANCE)


def test_an_associative_region_keeps_its_order() -> None:
    """A block group joins the parts of its members in any order, which only simple ones allow."""
    planned = plan(lambda x: lax.cumlogsumexp(x, 1), numbers(1, 9000), schedule=BLOCK_GROUPS)
    assert planned.block_groups == ()


def test_long_scans_of_a_region_go_in_pieces_of_one_kernel() -> None:
    x = numbers(3, 40_001)
    planned = plan(lambda a: lax.cumlogsumexp(a, 1), x, schedule=None)
    assert len(planned.plans) == 1
    assert planned.block_groups == ()
    want = np.logaddexp.accumulate(x.astype(F64), 1).astype(np.float32)
    assert_close(planned.run(x), [want], TOLERANCE)


def test_each_element_is_read_once_and_written_once() -> None:
    x = numbers(40, 4096)
    planned = plan(lambda a: jnp.cumsum(a, 1), x, schedule=None)
    body = planned.plan.kernel.body
    assert len(find_statements(body, k.LoadVector)) == 1
    assert len(find_statements(body, k.StoreVector)) == 1
    assert planned.plan.kernel.global_barriers == 0


def test_a_long_sum_is_as_accurate_as_a_tree() -> None:
    x = np.full((2, 30_000), 0.1, np.float32)
    (got,) = plan(lambda a: jnp.cumsum(a, 1), x, schedule=None).run(x)
    want = np.cumsum(x.astype(F64), 1)
    (xla,) = by_jax(lambda a: jnp.cumsum(a, 1), x)
    error, theirs = (np.max(np.abs(y - want) / want) for y in (got, xla))
    assert error < min(2e-6, theirs)


def test_narrow_floats_accumulate_in_f32() -> None:
    x = np.ones((2, 3000), BF16)
    (got,) = plan(lambda a: jnp.cumsum(a, 1), x).run(x)
    np.testing.assert_array_equal(got, np.cumsum(x.astype(np.float32), 1).astype(BF16))


def test_infinities_and_nans_stay_behind_their_place() -> None:
    x = numbers(3, 200)
    x[0, 70], x[1, 150], x[2, 3] = np.inf, np.nan, -np.inf
    (got,) = plan(lambda a: jnp.cumsum(a, 1), x).run(x)
    want = np.cumsum(x.astype(F64), 1)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
    np.testing.assert_allclose(got[0, :70], want[0, :70], rtol=1e-4, atol=1e-5)


# ---- what a running reduction is


def test_a_reach_that_is_too_short_is_no_running_reduction() -> None:
    def window(low: int, high: int) -> Any:
        return lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (9,), (1,), ((low, high),))

    x = jax.ShapeDtypeStruct((9,), "float32")
    found = [plan(window(*edges), x) for edges in ((8, 0), (0, 8), (4, 4))]
    kinds = [len(find_statements(f.plan.kernel.body, k.ScanAcross)) for f in found]
    assert kinds == [1, 1, 0]


def test_an_init_value_that_counts_is_left_outside() -> None:
    x = jax.ShapeDtypeStruct((100,), "float32")
    fn = lambda a: lax.reduce_window(a, 5.0, lax.add, (100,), (1,), ((99, 0),))  # noqa: E731
    (reason,) = plan(fn, x).program.outside
    assert "its init value changes the result" in str(reason)


# ---- mappings


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_every_element_has_its_place_in_order(data: st.DataObject) -> None:
    extents = data.draw(st.lists(st.integers(1, 300) | st.just(9000), min_size=1, max_size=3))
    atoms = tuple(Symbol(f"d{n}", extent) for n, extent in enumerate(extents))
    along = data.draw(st.sampled_from(atoms))
    order = data.draw(st.sampled_from(["forward", "backward"]))
    parted = data.draw(st.booleans())
    width = data.draw(st.sampled_from([1, 2, 4, 8]))
    space = Space(atoms, frozenset({along}), width, running=order, parted=parted)
    block = data.draw(st.sampled_from([32, 64]))
    mapping = map_space(space, preset("h100"), block, 8)
    assert mapping.block == block
    assert why_not_in_order(space, mapping) is None
    if mapping.row_size * mapping.col_size * mapping.outer_size > 30_000:
        return
    found = [e for t in range(mapping.tasks) for i in range(block) for e in mapping.elements(t, i)]
    whole = mapping.outer_size * mapping.row_size * mapping.col_size
    assert len(found) == len(set(found)) == whole


def test_mappings_that_cannot_scan_say_why() -> None:
    row, col = Symbol("r", 4000), Symbol("c", 1 << 20)
    space = Space((row, col), frozenset({col}), 4, running="forward")
    reduce = replace(space, running="")
    whole = Mapping((row,), (), (col,), 1, 1, 256, 4, 1, 16384)
    assert "hand on their totals" in (why_not_in_order(space, whole) or "")
    assert "vectors" in (why_not_in_order(space, map_space(reduce, preset("h100"), 256, 528)) or "")
    carried = replace(whole, carried="col")
    assert why_not_in_order(space, carried) is None
    backward = replace(space, running="backward")
    assert "the other way" in (why_not_in_order(backward, carried) or "")
    down = replace(space, reduced=frozenset({row}))
    assert "along an axis" in (why_not_in_order(down, carried) or "")
    columns = Mapping((), (row,), (col,), 1, 8, 32, 1, 128, 32)
    assert "hand on their totals" in (why_not_in_order(down, columns) or "")
    apart = replace(columns, carried="row")
    assert "neighbouring rows" in (why_not_in_order(down, apart) or "")
    assert why_not_in_order(down, replace(apart, rows_together=True)) is None
    alone = replace(down, atoms=(row,))
    assert "scan the same" in (why_not_in_order(alone, replace(apart, rows_together=True)) or "")
    block_group = replace(carried, abreast=4, cooperative=True)
    assert "in any order" in (why_not_in_order(space, block_group) or "")
    assert why_not_in_order(replace(space, parted=True), block_group) is None
    below = replace(apart, rows_together=True, abreast=4, cooperative=True)
    assert "in any order" in (why_not_in_order(down, below) or "")
    assert why_not_in_order(replace(down, parted=True), below) is None


def test_a_scan_in_a_loop_of_its_own_says_why() -> None:
    both = plan(lambda x: jnp.cumsum(x, 1) * lax.cumsum(x, 1, reverse=True), numbers(3, 5000))
    reasons = [p.reason for p in both.plan.arrangement.placements.values()]
    apart = "in a loop of its own: the rounds of the mapping run the other way"
    assert sum(apart in reason for reason in reasons) == 1


def test_rounds_carry_only_what_a_block_cannot_hold() -> None:
    short = plan(lambda a: jnp.cumsum(a, 1), numbers(4, 1000))
    long = plan(lambda a: jnp.cumsum(a, 1), numbers(4, 5000))
    assert [m.carried for m in (*mappings(short), *mappings(long))] == ["", "col"]
    for mapping in (*mappings(short), *mappings(long)):
        assert mapping.row_steps * mapping.col_steps <= MAX_STEPS
        assert mapping.elements_per_thread <= MAX_STATES


# ---- kernels


def scanning(schedule: Schedule) -> tuple[k.Kernel, k.ScanAcross]:
    kernel = plan(lambda a: jnp.cumsum(a, 1), numbers(4, 5000), schedule=schedule).plan.kernel
    (step,) = find_statements(kernel.body, k.ScanAcross)
    return kernel, step


def replaced(statement: Any, old: Any, new: tuple[Any, ...]) -> Any:
    """The statement with `old` replaced wherever it stands inside."""
    body = getattr(statement, "body", None)
    if body is None:
        return statement
    parts = [new if part == old else (replaced(part, old, new),) for part in body]
    return replace(statement, body=tuple(p for part in parts for p in part))


KERNEL, STEP = scanning(SMALL)
BLOCK_GROUP_KERNEL, HANDED = scanning(BLOCK_GROUPS)
assert HANDED.handover is not None
AREA = HANDED.handover.area
(ROUNDS,) = find_statements(KERNEL.body, k.Rounds)
END = ROUNDS.body[-1]
BROKEN: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "no slot": (STEP, (replace(STEP, slot=""),), "has no shared memory"),
    "an unknown carry": (STEP, (replace(STEP, carry="nothing"),), "nothing is used before"),
    "carried in itself": (STEP, (replace(STEP, carry=STEP.state),), "is carried along in itself"),
    "more steps than the slot holds": (STEP, (replace(STEP, steps=99),), "198 are exchanged"),
    "threads of no power of two": (STEP, (replace(STEP, threads=48),), "a scan of 48 threads"),
    "more threads than the block": (STEP, (replace(STEP, threads=128),), "a scan of 128 threads"),
    "a row of threads apart": (STEP, (replace(STEP, stride=2, threads=32),), "2 apart"),
    "not all threads": (
        STEP,
        (k.Loop("i", 1, True, (STEP,)),),
        "scanned across threads where not all of them come by",
    ),
    "no barrier between rounds": (END, (), "no block barrier lies between"),
    "no rounds": (ROUNDS, (replace(ROUNDS, count=0),), "0 rounds over col_tile"),
    "rounds of some": (
        ROUNDS,
        (k.Loop("i", 1, True, (ROUNDS,)),),
        "rounds over col_tile where not all threads come by",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_scan_is_refused(name: str) -> None:
    old, new, sentence = BROKEN[name]
    assert isinstance(END, k.Barrier)
    body = tuple(replaced(s, old, new) for s in KERNEL.body)
    assert body != KERNEL.body
    check_kernel(KERNEL)
    with pytest.raises(IllegalProduct, match=sentence):
        check_kernel(replace(KERNEL, body=body))


def handed(**changes: Any) -> k.ScanAcross:
    assert HANDED.handover is not None
    return replace(HANDED, handover=replace(HANDED.handover, **changes))


PREFETCHING = plan(lambda a: jnp.cumsum(a, 1), numbers(2, 40_000), schedule=ROOMY).plan.kernel
FETCHES = find_statements(PREFETCHING.body, k.FetchRound)
BROKEN_FETCHES: dict[str, tuple[Any, Any, str]] = {
    "no next round": (
        FETCHES[0],
        replace(FETCHES[0], count=1),
        "1 rounds over round are prefetched",
    ),
    "of other rounds": (FETCHES[1], replace(FETCHES[1], variable="turn"), "turn is used before"),
    "in a branch": (
        FETCHES[1],
        k.Loop("i", 1, True, (FETCHES[1],)),
        "a round of round is fetched where not all come by",
    ),
}


@pytest.mark.parametrize("name", BROKEN_FETCHES)
def test_a_broken_fetch_is_refused(name: str) -> None:
    old, new, sentence = BROKEN_FETCHES[name]
    check_kernel(PREFETCHING)
    body = tuple(replaced(s, old, (new,)) for s in PREFETCHING.body)
    with pytest.raises(IllegalProduct, match=sentence):
        check_kernel(replace(PREFETCHING, body=body))


def test_the_next_round_of_a_block_group_is_on_its_way() -> None:
    assert [f.first for f in FETCHES] == [True, False]
    planned = plan(lambda a: jnp.cumsum(a, 1), numbers(2, 40_000), schedule=ROOMY)
    assert "B a block of the next round are prefetched" in planned.notes
    without = plan(
        lambda a: jnp.cumsum(a, 1), numbers(2, 40_000), schedule=replace(ROOMY, prefetch=False)
    )
    assert not find_statements(without.plan.kernel.body, k.FetchRound)


BROKEN_BLOCK_GROUPS: dict[str, tuple[k.ScanAcross, str]] = {
    "no carry": (replace(HANDED, carry=""), "has more than one row, or no carry"),
    "more rows": (replace(HANDED, threads=32), "has more than one row"),
    "one slot for both": (handed(slot=HANDED.slot), "is read and written over"),
    "no slot": (handed(slot=""), "has no shared memory"),
    "other parts": (handed(area=replace(AREA, parts=3)), "is handed on in 3 blocks"),
    "outside": (handed(area=replace(AREA, offset=9)), "does not lie in"),
}


@pytest.mark.parametrize("name", BROKEN_BLOCK_GROUPS)
def test_a_broken_handover_is_refused(name: str) -> None:
    step, sentence = BROKEN_BLOCK_GROUPS[name]
    check_kernel(BLOCK_GROUP_KERNEL)
    body = tuple(replaced(s, HANDED, (step,)) for s in BLOCK_GROUP_KERNEL.body)
    with pytest.raises(IllegalProduct, match=sentence):
        check_kernel(replace(BLOCK_GROUP_KERNEL, body=body))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(3, 5), (700, 33), (64, 4096), (5, 20001), (1, 3_000_000)])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_scans_on_a_gpu(shape: tuple[int, int], axis: int, dtype: np.dtype) -> None:
    import astitch

    x = numbers(*shape, dtype=dtype)
    fn = lambda a: (lax.cumsum(a, axis) * 2, lax.cummax(a, axis, reverse=True))  # noqa: E731
    got = [np.asarray(y) for y in astitch.jit(fn)(x)]
    before = np.cumsum(x.astype(F64), axis)
    behind = np.flip(np.maximum.accumulate(np.flip(x, axis), axis), axis)
    want = [(before.astype(dtype) * 2).astype(dtype), behind]
    assert_close(got, want, TOLERANCE)
