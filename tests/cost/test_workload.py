"""What is counted of a kernel: bytes, sectors, trips, waits, registers."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hlo_runner import lower

from astitch.cost.instructions import Unit, price_op
from astitch.cost.workload import LATE_SHARE, PRICES, Access, Workload, count_workload
from astitch.device.gpu import preset
from astitch.device.schedule import DEFAULT, Keep, Schedule
from astitch.graph.ir import DType
from astitch.hlo_import import import_hlo
from astitch.kernel import kernel_ir as k
from astitch.rewrite.simplify import simplify
from astitch.search.plan import Plan, plan_scope
from tests.scopes import find_scopes
from tests.small_gpu import find_statements

F32, BF16 = np.float32, ml_dtypes.bfloat16


def plan(function, *arrays, schedule: Schedule) -> Plan:
    graph = simplify(import_hlo(lower(function, *(np.zeros(s, d) for s, d in arrays))))
    (scope,) = find_scopes(graph).scopes
    found = plan_scope(graph, scope, preset("h100"), schedule)
    assert found is not None
    return found


def count(function, *arrays, schedule: Schedule = DEFAULT) -> Workload:
    return count_workload(plan(function, *arrays, schedule=schedule).kernel)


def softmax(x):
    return jax.nn.softmax(x, axis=-1)


def reads(work: Workload) -> list[Access]:
    return [a for a in work.accesses if not a.write]


def test_elementwise_bytes_are_those_of_the_arrays():
    work = count(lambda x, b: jax.nn.relu(x + b), ((4096, 4096), F32), ((4096,), F32))
    size = 4096 * 4096 * 4
    x, b = sorted(reads(work), key=lambda a: -a.range_bytes)
    (y,) = (a for a in work.accesses if a.write)
    assert x.bytes == x.sector_bytes == x.range_bytes == y.bytes == size
    assert b.bytes == size
    assert b.unique_bytes == b.range_bytes == pytest.approx(4096 * 4, rel=0.01)
    assert x.vector_bytes == 16
    assert x.wavefronts == size / 128


def test_narrow_accesses_take_more_instructions_for_the_same_bytes():
    def units(access_bytes):
        schedule = Schedule(access_bytes=access_bytes, elementwise_steps=1)
        work = count(lambda x: x + 1, ((1 << 22,), F32), schedule=schedule)
        return work.total(Unit.MEMORY, work.loops[0].tasks, 256), reads(work)[0].sector_bytes

    wide, narrow = units(16), units(4)
    assert narrow[0] == 4 * wide[0]
    assert narrow[1] == wide[1] == 4 << 22


def test_a_transposed_read_touches_a_sector_for_each_element():
    work = count(lambda x, y: (x.T + y).max(1), ((4096, 4096), F32), ((4096, 4096), F32))
    across, along = sorted(reads(work), key=lambda a: -a.sector_bytes)
    assert across.sector_bytes == 8 * along.sector_bytes
    assert across.wavefronts == 32 * along.wavefronts
    assert across.unique_bytes == pytest.approx(along.unique_bytes, rel=0.01)


def test_a_kept_row_is_read_once_and_a_forgotten_one_in_each_phase():
    def row_reads(keep):
        work = count(softmax, ((4096, 4096), F32), schedule=Schedule(block=512, keep=keep))
        return sum(a.bytes for a in reads(work)) / (4096 * 4096 * 4)

    assert row_reads(Keep.REGISTERS) == row_reads(Keep.SHARED) == 1
    assert row_reads(Keep.NOTHING) > 1


def test_shared_memory_is_counted_where_the_row_stays_there():
    def shared(keep):
        work = count(softmax, ((4096, 4096), F32), schedule=Schedule(block=512, keep=keep))
        return work.loops[0].mix[Unit.SHARED]

    assert shared(Keep.SHARED) > shared(Keep.REGISTERS) + 8


def test_loops_without_unrolling_wait_once_for_eight_steps():
    work = count(lambda x: x.sum(0), ((1 << 16, 1024), F32), schedule=Schedule(split=32))
    steps = (1 << 16) / 32 / (512 / 32)
    assert work.loops[0].batches == steps / k.PARTLY
    assert work.loops[0].load_bytes == k.PARTLY * 16


def test_guarded_loads_wait_for_each_turn_of_a_loop():
    """A nest that stores has its guards around all that it does."""

    def loop(columns):
        x = ((1 << 16, columns), F32)
        both = jax.jit(lambda x: (jnp.tanh(x).sum(0), jnp.tanh(x)))
        return count(both, x, schedule=Schedule(split=16)).loops[0]

    assert loop(24).batches == k.PARTLY * loop(32).batches
    assert loop(24).load_bytes == loop(32).load_bytes / k.PARTLY


def test_loads_of_sums_run_ahead_of_what_guards_them():
    def loop(rows, columns):
        x = ((rows, columns), F32)
        return count(lambda x: x.sum(0), x, schedule=Schedule(split=16)).loops[0]

    assert loop(1 << 16, 24).batches == loop(1 << 16, 32).batches == loop((1 << 16) - 5, 32).batches


def test_statements_without_a_price_are_refused():
    kernel = plan(softmax, ((1024, 1024), F32), schedule=DEFAULT).kernel
    with pytest.raises(AssertionError, match="Kernel"):
        count_workload(dataclasses.replace(kernel, body=(*kernel.body, kernel)))


def test_every_statement_has_a_price():
    """Some cost no more than what they say that they compute, load and store."""
    described = {k.Value, k.VectorVariable, k.StoreVector, k.Store, k.BatchSet, k.Fetch}
    assert set(k.STATEMENTS) - PRICES.keys() == described


def test_block_barriers_are_those_of_the_reductions():
    warp = count(softmax, ((65536, 128), F32))
    block = count(softmax, ((1024, 4096), F32), schedule=Schedule(block=512, max_steps=1))
    assert warp.loops[0].barriers == 0
    assert block.loops[0].barriers >= 1
    assert block.loops[0].chain_cycles > warp.loops[0].chain_cycles


def test_only_the_share_of_warps_that_passes_a_guard_counts():
    work = count(lambda x: x.sum(-1), ((4096, 4096), F32), schedule=Schedule(block=512))
    (result,) = (a for a in work.accesses if a.write)
    assert result.bytes == 4096 * 4
    # One warp of each row's stores a sector.
    assert result.sector_bytes == 4096 * 32


def test_a_choice_of_vectors_reads_vectors_of_what_it_takes():
    def join(a, b):
        return jnp.concatenate([a, b], 1)

    work = count(join, ((4096, 1024), F32), ((4096, 3072), F32))
    assert all(a.vector_bytes == 16 for a in work.accesses)
    first = min(reads(work), key=lambda a: a.bytes)
    assert first.bytes == pytest.approx(4096 * 1024 * 4, rel=0.01)
    unaligned = count(join, ((4096, 1023), F32), ((4096, 3073), F32))
    assert {a.vector_bytes for a in reads(unaligned)} == {4}


@pytest.mark.parametrize("delay", [0, 1, 2, 3])
def test_who_waits_tasks_later_waits_less(delay):
    """The meeting itself: a delay of its own, as the rest of the kernel has."""
    found = plan(softmax, ((60, 100_000), F32), schedule=DEFAULT)
    parts = found.arrangement.loops[0].mapping.parts

    def with_delay(body):
        inside = [
            dataclasses.replace(s, body=with_delay(s.body)) if hasattr(s, "body") else s
            for s in body
        ]
        return tuple(
            dataclasses.replace(s, delay=delay) if isinstance(s, k.Meeting) else s for s in inside
        )

    kernel = dataclasses.replace(found.kernel, body=with_delay(found.kernel.body))
    (loop,) = count_workload(kernel).loops
    meetings = len(find_statements(kernel.body, k.Meeting))
    assert loop.group_blocks == parts > 1
    assert loop.meetings == meetings * LATE_SHARE**delay


def test_parts_that_more_blocks_exchange_cost_more():
    def gathering(split):
        """Of the one task of a block, what does not grow with its elements."""
        found = plan(softmax, ((8, 1 << 20), F32), schedule=Schedule(split=split)).kernel
        without = dataclasses.replace(found, body=drop_collects(found.body))
        return sum(count_workload(found).loops[0].mix.values()) - sum(
            count_workload(without).loops[0].mix.values()
        )

    assert 0 < gathering(128) == gathering(160) < gathering(200)


def drop_collects(body):
    kept = [s for s in body if not isinstance(s, k.Collect)]
    return tuple(
        dataclasses.replace(s, body=drop_collects(s.body)) if hasattr(s, "body") else s
        for s in kept
    )


def test_levels_are_counted_by_global_barriers():
    work = count(lambda x: x.sum(0), ((1 << 16, 1024), F32))
    assert [loop.level for loop in work.loops] == sorted(loop.level for loop in work.loops)
    assert work.loops[-1].level > 0
    assert {a.section for a in work.accesses} == set(range(len(work.loops)))


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_instructions_grow_with_the_work(dtype):
    def total(function):
        work = count(function, ((1 << 20,), dtype))
        return sum(sum(loop.mix.values()) for loop in work.loops)

    add, gelu = total(lambda x: x + x), total(jax.nn.gelu)
    assert gelu > 3 * add


def test_prices():
    assert price_op("add", DType.F32, [DType.F32]) == {Unit.FP32: 1}
    assert price_op("add", DType.BF16, [DType.BF16]) == {
        Unit.FP32: 1,
        Unit.CONVERSION: 1,
        Unit.INTEGER: 1,
    }
    assert price_op("convert", DType.F32, [DType.BF16]) == {Unit.INTEGER: 1}
    assert price_op("convert", DType.F32, [DType.F32]) == {}
    assert price_op("exponential", DType.F32, [DType.F32])[Unit.SPECIAL] == 1
    assert price_op("add", DType.F64, [DType.F64]) == {Unit.FP64: 1}
    assert price_op("add", DType.S64, [DType.S64]) == {Unit.INTEGER: 3}
    assert price_op("divide", DType.S32, [DType.S32])[Unit.INTEGER] > 10


def test_registers_grow_with_what_is_kept():
    def registers(steps):
        one = Schedule(block=512, access_bytes=4, max_steps=steps)
        return count(softmax, ((65536, 4096), F32), schedule=one).needed_registers

    assert registers(16) > registers(4) + 8


@pytest.mark.parametrize(
    ("function", "arrays"),
    [
        (softmax, [((8192, 1024), F32)]),
        (softmax, [((8192, 4096), BF16)]),
        (lambda x: x.sum(0), [((65536, 1024), F32)]),
        (lambda x, b: jax.nn.relu(x + b), [((4096, 4096), F32), ((4096,), F32)]),
        (lambda x: jnp.cumsum(x[:, :4], 1), [((4096, 8), F32)]),
    ],
)
def test_registers_are_near_the_compilers(function, arrays):
    nvrtc = pytest.importorskip("astitch.toolchain.nvrtc")
    if not nvrtc.find_nvrtcs():
        pytest.skip("no NVRTC is installed")
    from astitch.search.build_program import make_cuda_kernel
    from astitch.toolchain.kernel_cache import compile_cached

    found = plan(function, *arrays, schedule=DEFAULT)
    kernel = make_cuda_kernel(found.kernel)
    compiled = compile_cached(nvrtc.Request(kernel.source, "sm_90"))
    used = compiled.kernels[kernel.name].registers
    work = count_workload(found.kernel)
    assert work.needed_registers / 2 <= used <= 2 * work.registers


@pytest.mark.parametrize("axis", [0, 1])
def test_threads_that_agree_pass_a_guard_together(axis: int):
    """Padding between rows leaves whole warps without a load, padding between columns every other thread of each."""

    def spread(x, y):
        inner = [(0, 0, 0)] * 2
        inner[axis] = (0, 1, 1)
        return jax.lax.pad(x, jnp.float32(0), inner) + y

    small = [2048, 2048]
    small[axis] = 1024
    work = count(spread, (tuple(small), F32), ((2048, 2048), F32))
    x, _ = sorted(reads(work), key=lambda a: a.range_bytes)
    assert x.bytes == pytest.approx(2048 * 1024 * 4, rel=0.01)
    assert x.sector_bytes == pytest.approx(2048 * 1024 * 4, rel=0.01)
