"""Projections: bounds that no projection may break, and orderings that were measured by hand on an H100.

The orderings come from hand-written kernels of the same patterns, each timed with and without one decision.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hlo_runner import lower

from astitch.cost.projected_latency import (
    ALL_BUT_LARGEST,
    Projection,
    _Projector,
    miss_share,
    project,
)
from astitch.cost.speed_of_light import measure_work
from astitch.cost.workload import count_workload
from astitch.device.gpu import PRESETS, preset
from astitch.device.schedule import DEFAULT, Keep, Schedule
from astitch.hlo_import import import_hlo
from astitch.rewrite.simplify import simplify
from astitch.scope.remote_stitch import stitch_remotely
from astitch.search.plan import Plan, plan_scope
from astitch.toolchain.nvrtc import Resources
from tests.scopes import find_scopes

F32, BF16 = np.float32, ml_dtypes.bfloat16
H100 = preset("h100")


def plan(function, *arrays, schedule=DEFAULT, gpu=H100) -> Plan:
    specs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in arrays]
    graph = simplify(import_hlo(lower(function, *specs)))
    (scope,) = find_scopes(graph).scopes
    found = plan_scope(graph, scope, gpu, schedule)
    assert found is not None
    return found


def us(function, *arrays, schedule=DEFAULT) -> float:
    return project(plan(function, *arrays, schedule=schedule).kernel, H100).time_us


def softmax(x):
    return jax.nn.softmax(x, axis=-1)


def layer_norm_backward(x, gamma, dy):
    def norm(x, gamma):
        y = x.astype(jnp.float32)
        mean = y.mean(-1, keepdims=True)
        var = jnp.square(y - mean).mean(-1, keepdims=True)
        return ((y - mean) * jax.lax.rsqrt(var + 1e-5) * gamma).astype(x.dtype)

    return jax.vjp(norm, x, gamma)[1](dy)


LAYER_NORM = (((16384, 4096), BF16), ((4096,), F32), ((16384, 4096), BF16))


@pytest.mark.parametrize("gpu", PRESETS)
@pytest.mark.parametrize(
    ("function", "arrays"),
    [
        (softmax, [((8192, 4096), F32)]),
        (softmax, [((128, 100), F32)]),
        (lambda x: x.sum(0), [((65536, 1024), F32)]),
        (jax.nn.gelu, [((1 << 24,), BF16)]),
        (lambda x: x + 1, [((3,), F32)]),
    ],
)
def test_nothing_is_faster_than_light(gpu, function, arrays):
    device = preset(gpu)
    found = plan(function, *arrays, gpu=device)
    projection = project(found.kernel, device)
    work = measure_work(found.arrangement.graph, found.scope.members)
    far_from_l2 = work.bytes > 2 * device.l2_bytes
    stream_us = device.stream_us(work.read_bytes, work.written_bytes)
    light_us = stream_us if far_from_l2 else work.bytes / device.l2_gbs / 1e3
    assert projection.time_us > light_us + device.launch_us
    # ... and nothing that streams is projected to crawl.
    assert projection.time_us < 20 * (work.bytes / device.bandwidth_gbs / 1e3 + device.launch_us)


def test_large_tensors_take_the_memorys_time():
    size = 4 << 28
    time_us = us(lambda x: x + 1, ((1 << 28,), F32))
    assert time_us == pytest.approx(2 * size / H100.bandwidth_gbs / 1e3, rel=0.08)


def test_small_tensors_take_the_launchs_time():
    assert us(lambda x: x + 1, ((1000,), F32)) < 4


# ---- what was measured ------------------------------------------------------------------------------------------


def test_two_blocks_of_512_beat_one():
    two = us(layer_norm_backward, *LAYER_NORM, schedule=Schedule(block=512, blocks_per_sm=2))
    one = us(layer_norm_backward, *LAYER_NORM, schedule=Schedule(block=512, blocks_per_sm=1))
    assert one > 1.03 * two


def test_prefetching_the_next_row_pays():
    prefetched = us(layer_norm_backward, *LAYER_NORM, schedule=Schedule(prefetch=True))
    without = us(layer_norm_backward, *LAYER_NORM, schedule=Schedule(prefetch=False))
    assert without > 1.03 * prefetched


def test_keeping_a_long_row_beats_reading_it_again():
    rows = ((8192, 50304), BF16)
    kept = us(softmax, rows, schedule=Schedule(block=512, keep=Keep.SHARED))
    again = us(softmax, rows, schedule=Schedule(block=512, keep=Keep.NOTHING))
    assert again > kept


def test_a_block_for_each_task_streams_faster_than_fixed_tasks():
    free = us(lambda x: x + 1, ((1 << 27,), F32))
    fixed = us(lambda x: x + 1, ((1 << 27,), F32), schedule=Schedule(persistent=True))
    assert 1.03 < fixed / free < 1.12


def test_few_long_rows_are_split():
    rows = ((16, 1 << 20), F32)
    assert us(softmax, rows, schedule=Schedule(split=1)) > 1.5 * us(softmax, rows)


def test_columns_are_split():
    columns = ((65536, 1024), F32)
    whole = us(lambda x: x.sum(0), columns, schedule=Schedule(split=1))
    assert whole > 2 * us(lambda x: x.sum(0), columns)


def test_a_transposed_read_is_slower_than_a_straight_one():
    both = [((8192, 8192), F32)] * 2
    assert us(lambda x, y: (x.T + y).max(1), *both) > 1.2 * us(lambda x, y: (x + y).max(1), *both)
    # Without rows that stay together, tiles of both orders are as good as one order.
    assert us(lambda x, y: x.T + y, *both) < 1.1 * us(lambda x, y: x + y, *both)


def test_narrow_accesses_cost_little_as_long_as_enough_are_under_way():
    # 285, 284 and 286 us with accesses of 16, 8 and 4 bytes.
    times = [
        us(layer_norm_backward, *LAYER_NORM, schedule=Schedule(block=512, access_bytes=b))
        for b in (16, 8)
    ]
    assert max(times) / min(times) < 1.1


def distances(x, y):
    return sum((x[:, None, c] - y[None, :, c]) ** 2 for c in range(3)).max(1)


def test_coordinates_of_points_are_read_together():
    """The loads of a point's coordinates touch the same lines, so the L2 is asked for them once; and lanes side by side
    read more of a line."""
    points = [((1024, 3), F32), ((8192, 3), F32)]
    apart = [((1024, 3), F32), ((3, 8192), F32)]
    narrow, wide = (us(distances, *points, schedule=Schedule(access_bytes=b)) for b in (4, 16))
    assert narrow < 0.7 * wide
    rows = us(lambda x, y: distances(x, y.T), *apart, schedule=Schedule(access_bytes=4))
    assert narrow < 2.5 * rows
    best = plan(distances, *points)
    assert plan_scope(best.arrangement.graph, best.scope, H100).schedule.access_bytes == 4


def test_a_later_pass_over_a_row_asks_the_l2_again():
    """A softmax that keeps nothing of its rows reads them three times, and the L2 answers each time."""
    size = 8192 * 8192 * 4
    asked = {}
    for keep in (Keep.SHARED, Keep.NOTHING):
        kernel = plan(softmax, ((8192, 8192), F32), schedule=Schedule(block=256, keep=keep)).kernel
        asked[keep] = _Projector(kernel, H100, count_workload(kernel), None).traffic(0, {})[2]
    assert asked[Keep.SHARED] == pytest.approx(2 * size, rel=0.05)
    assert asked[Keep.NOTHING] == pytest.approx(4 * size, rel=0.05)


# ---- the compiler's word ----------------------------------------------------------------------------------------


def test_registers_of_the_compiled_kernel_decide_residency():
    kernel = plan(softmax, ((8192, 4096), F32), schedule=Schedule(block=512)).kernel
    few = project(kernel, H100, Resources(32, 0, 0, 0, 0))
    many = project(kernel, H100, Resources(128, 0, 0, 0, 0))
    assert (few.blocks_per_sm, many.blocks_per_sm) == (4, 1)
    assert few.time_us < many.time_us
    assert few.compiled


def test_spills_are_charged():
    kernel = plan(softmax, ((8192, 1024), F32)).kernel
    clean, spilled = Resources(64, 0, 0, 0, 0), Resources(64, 400, 400, 400, 0)
    assert project(kernel, H100, spilled).time_us > 1.2 * project(kernel, H100, clean).time_us


def test_a_slower_memory_is_slower():
    kernel = plan(softmax, ((8192, 8192), F32)).kernel
    half = dataclasses.replace(H100, bandwidth_gbs=H100.bandwidth_gbs / 2)
    assert project(kernel, half).time_us > 1.8 * project(kernel, H100).time_us


def test_a_barrier_costs_more_with_more_blocks():
    assert H100.barrier_cost_us(132) == pytest.approx(1.2)
    assert 1.3 < H100.barrier_cost_us(264) < 1.6
    assert 2.0 < H100.barrier_cost_us(1056) < 3.2


def test_what_the_l2_keeps():
    size = H100.l2_bytes
    shares = [miss_share(part * size, size) for part in (0, 0.3, 0.7, 1.0, 4.0)]
    assert shares[0] == shares[1] == 0
    assert 0 < shares[2] < 1
    assert shares[3] == shares[4] == 1


def test_a_projection_says_what_it_is_made_of():
    found: Projection = project(plan(softmax, ((8192, 8192), F32)).kernel, H100)
    text = str(found)
    assert text.startswith(f"projected {found.time_us:.1f} us: launch")
    for word in (
        "registers (estimated)",
        "DRAM",
        "L2",
        "in flight",
        "level 0",
        "latency",
        "rounds",
    ):
        assert word in text
    assert found.levels[0].busiest[0] == "DRAM"
    assert found.inflight_bytes > found.needed_bytes


def test_what_every_block_loads_once_is_not_a_part_of_a_few_tasks():
    """A loop of one task beside one of 16384: the scalar that both read costs each block the same."""

    def project_scaled(*arrays) -> tuple[Plan, Projection]:
        scaled = lambda *values: tuple(value * values[-1] for value in values[:-1])  # noqa: E731
        specs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in (*arrays, ((), F32))]
        scopes = stitch_remotely(find_scopes(simplify(import_hlo(lower(scaled, *specs)))))
        found = plan_scope(scopes.graph, scopes.scopes[0], H100, DEFAULT)
        assert found is not None
        return found, project(found.kernel, H100)

    large = ((1 << 24,), F32)
    plan_of_both, both = project_scaled(large, ((8,), F32))
    assert len(plan_of_both.arrangement.loops) == 2
    assert any(not a.in_task for a in count_workload(plan_of_both.kernel).accesses)
    assert both.time_us < 1.2 * project_scaled(large)[1].time_us


def test_one_element_of_a_row_read_before_the_row_does_not_hide_it():
    """The label's logit, say: the row comes from DRAM all the same."""
    shape = (8192, 50_304)

    def relative_softmax(x, labels):
        return jax.nn.softmax(x - jnp.take_along_axis(x, labels[:, None], 1), -1)

    arrays = (shape, F32), ((8192,), np.int32)
    found = plan(relative_softmax, *arrays, schedule=Schedule(split=1))
    moved = project(found.kernel, H100).dram_bytes
    assert moved > 0.99 * 2 * 4 * np.prod(shape)


def test_a_spilled_word_belongs_to_one_loop():
    """The compiler counts spills in a kernel's code; a task of a loop executes those of its own loop alone."""
    kernel = plan(lambda x: (x - x.mean(0)) * x.std(0), ((8192, 2048), np.float32)).kernel
    work = count_workload(kernel)
    needed = [loop.needed_registers for loop in work.loops]
    assert len(needed) > 1 and max(needed) == work.needed_registers
    words = _Projector(kernel, H100, work, Resources(64, 400, 400, 400, 0)).spilled_words
    assert sum(words) == pytest.approx(200)
    small = [w for w, n in zip(words, needed, strict=True) if n < ALL_BUT_LARGEST * max(needed)]
    assert small and not any(small)
