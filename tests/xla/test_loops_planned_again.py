"""A program that is compiled again, for less memory: its loops are not planned again."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.device.gpu import preset
from astitch.hlo_import import import_hlo
from astitch.loops.analysis import LoopRefusal
from astitch.loops.plan import LoopPlanner
from astitch.xla.compile_module import Found, compile_for_xla
from tests.hlo_runner import lower

H100 = preset("h100")


def filters(x: jax.Array, starts: jax.Array) -> jax.Array:
    """A loop that is one kernel, and one of large sums that is none."""

    def turn(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = 0.9 * state + jnp.sin(x)
        return state, state

    kept = jax.lax.scan(turn, starts, x)[1]
    return jax.lax.fori_loop(0, 100, lambda _, y: y / jnp.sum(y * y), kept)


GRAPH = import_hlo(lower(filters, np.ones((200, 4096), np.float32), np.zeros((4096,), np.float32)))


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The loops that are planned, as they are."""
    names: list[str] = []
    plan = LoopPlanner._plan

    def note(planner: LoopPlanner, graph: Any, node: Any, *rest: Any) -> Any:
        names.append(node.name)
        return plan(planner, graph, node, *rest)

    monkeypatch.setattr(LoopPlanner, "_plan", note)
    return names


def compile_again(found: Found) -> tuple[Any, bytes]:
    return compile_for_xla(GRAPH, H100, simplified=True, found=found)


def test_loops_are_planned_once(planned: list[str]) -> None:
    found = Found()
    first, module = compile_again(found)
    count = len(planned)
    again, same = compile_again(found)
    assert count >= 2 and len(planned) == count
    assert same == module and again.loops == first.loops
    assert any(isinstance(plan, LoopRefusal) for plan in found.loops.values())
    assert any(not isinstance(plan, LoopRefusal) for plan in found.loops.values())
    compile_again(Found())
    assert len(planned) == 2 * count


def test_what_an_error_left_is_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASTITCH_FAULTS")
    found, plan = Found(), LoopPlanner._plan
    monkeypatch.setattr(LoopPlanner, "_plan", lambda *args: 1 / 0)
    left, _ = compile_again(found)
    assert left.faults and not found.loops
    monkeypatch.setattr(LoopPlanner, "_plan", plan)
    made, _ = compile_again(found)
    assert found.loops and not made.faults and made.loops != left.loops
