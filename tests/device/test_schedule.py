"""Schedules: what each choice does to a plan, and that the default does nothing."""

import jax
import numpy as np
import pytest
from hlo_runner import lower

from astitch.device.gpu import preset
from astitch.device.schedule import DEFAULT, Keep, Schedule, schedule_from_json, schedule_to_json
from astitch.hlo_import import import_hlo
from astitch.rewrite.simplify import simplify
from astitch.search.check_plan import check_plan
from astitch.search.plan import Plan, plan_scope
from tests.scopes import find_scopes


def plan(function, *shapes, schedule: Schedule | None = None, dtype=np.float32) -> Plan:
    graph = simplify(import_hlo(lower(function, *(np.zeros(s, dtype) for s in shapes))))
    (scope,) = find_scopes(graph).scopes
    found = plan_scope(graph, scope, preset("h100"), schedule)
    assert found is not None
    return check_plan(found)


def softmax(x):
    return jax.nn.softmax(x, axis=-1)


def gelu(x):
    return jax.nn.gelu(x)


def test_the_default_schedule_is_what_the_rules_choose():
    assert plan(softmax, (512, 4096)) == plan(softmax, (512, 4096), schedule=DEFAULT)
    assert plan(softmax, (512, 4096)).schedule == DEFAULT


@pytest.mark.parametrize("block", [128, 256, 512, 1024])
def test_block(block):
    assert plan(softmax, (512, 4096), schedule=Schedule(block=block)).kernel.block == block


def test_blocks_per_sm_become_launch_bounds():
    found = plan(softmax, (512, 4096), schedule=Schedule(block=512, blocks_per_sm=4))
    assert found.kernel.blocks_per_sm == 4
    assert found.launch.registers == 32
    assert plan(softmax, (512, 4096)).kernel.blocks_per_sm == 0


@pytest.mark.parametrize(("access_bytes", "vector"), [(16, 4), (8, 2), (4, 1)])
def test_access_bytes(access_bytes, vector):
    found = plan(gelu, (1 << 20,), schedule=Schedule(access_bytes=access_bytes))
    assert found.arrangement.loops[0].mapping.vector == vector


def test_max_steps_takes_fewer_threads_a_row():
    def threads(steps):
        one = Schedule(max_steps=steps, access_bytes=4)
        found = plan(lambda x: x.sum(-1), (100_000, 1024), schedule=one)
        return found.arrangement.loops[0].mapping.col_threads

    assert (threads(4), threads(8), threads(16)) == (256, 128, 64)


def test_split_rows():
    def tiles(split):
        found = plan(softmax, (64, 30_000), schedule=Schedule(split=split))
        return found.arrangement.loops[0].mapping.col_tiles, found.kernel.cooperative

    assert tiles(1) == (1, False)
    assert tiles(2)[0] == 2
    assert tiles(4) == (4, True)


def test_split_of_a_column_sum():
    def parts(split):
        found = plan(lambda x: x.sum(0), (65536, 1024), schedule=Schedule(split=split))
        return found.arrangement.loops[0].mapping.row_tiles

    assert parts(1) == 1
    assert parts(16) == 16


def test_keep_says_where_a_row_stays():
    def notes(keep):
        return " ".join(plan(softmax, (512, 4096), schedule=Schedule(keep=keep)).notes)

    assert "registers" in notes(Keep.REGISTERS)
    assert "shared memory" in notes(Keep.SHARED)
    assert "stay in" not in notes(Keep.NOTHING)


def test_elementwise_steps():
    found = plan(gelu, (1 << 16,), schedule=Schedule(elementwise_steps=4))
    assert found.arrangement.loops[0].mapping.col_steps == 4


def test_persistent_grid_is_one_wave():
    found = plan(softmax, (100_000, 4096), schedule=Schedule(persistent=True))
    assert found.kernel.grid == found.launch.wave
    assert plan(softmax, (100_000, 4096)).kernel.grid >= 25_000


def test_a_schedule_shows_what_differs_from_the_rules():
    assert str(DEFAULT) == "default"
    some = Schedule(block=512, keep=Keep.SHARED, persistent=True)
    assert str(some) == "block 512, keep shared memory, persistent"
    assert "schedule: split 1" in str(plan(softmax, (64, 30_000), schedule=Schedule(split=1)))


def test_schedules_survive_json():
    some = Schedule(block=512, keep=Keep.SHARED, split=4, persistent=True)
    assert schedule_to_json(some) == {
        "block": 512,
        "keep": "shared memory",
        "split": 4,
        "persistent": True,
    }
    assert schedule_from_json(schedule_to_json(some)) == some
    assert schedule_to_json(DEFAULT) == {}
    with pytest.raises(TypeError):
        schedule_from_json({"of another version": 1})
