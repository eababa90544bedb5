"""Loops whose body looks numbers up in tables of one dimension, as its HLO is written: one kernel, in each type."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from astitch.graph.reference import run_graph as run_reference
from astitch.hlo_import import import_hlo
from astitch.loops.plan import LoopPlan, LoopPlanner
from astitch.xla.hook import read_module, stitch_module
from tests.emulated_xla import kernels_of
from tests.hlo_runner import parse_hlo_text
from tests.hook_evaluation import SMALL, Hooked
from tests.snapshots import stand_in_compiler

RNG = np.random.default_rng(0)
LENGTH = 64

TURNS = """
HloModule turns

condition {{
  state = (s32[], {places}[64], f32[64], f32[64], f32[64]) parameter(0)
  turn = s32[] get-tuple-element(state), index=0
  turns = s32[] constant(36)
  ROOT more = pred[] compare(turn, turns), direction=LT
}}

body {{
  state = (s32[], {places}[64], f32[64], f32[64], f32[64]) parameter(0)
  turn = s32[] get-tuple-element(state), index=0
  place = {places}[64] get-tuple-element(state), index=1
  sum = f32[64] get-tuple-element(state), index=2
  table = f32[64] get-tuple-element(state), index=3
  other = f32[64] get-tuple-element(state), index=4
  one = s32[] constant(1)
  after = s32[] add(turn, one)
  five = {places}[] constant(5)
  fives = {places}[64] broadcast(five), dimensions={{}}
  times = {places}[64] multiply(place, fives)
  next = {places}[64] add(times, fives)
{lines}
  ROOT made = (s32[], {places}[64], f32[64], f32[64], f32[64]) tuple(after, next, {results})
}}

ENTRY main {{
  place = {places}[64] parameter(0)
  sum = f32[64] parameter(1)
  table = f32[64] parameter(2)
  other = f32[64] parameter(3)
  zero = s32[] constant(0)
  quarter = f32[] constant(0.25)
  quarters = f32[64] broadcast(quarter), dimensions={{}}
  start = (s32[], {places}[64], f32[64], f32[64], f32[64]) tuple(zero, place, sum, {table}, other)
  ROOT end = (s32[], {places}[64], f32[64], f32[64], f32[64]) while(start), condition=condition, body=body
}}
"""


def gather(name: str, table: str, places: str = "place") -> str:
    """As TensorFlow writes it: the places have no dimension of vectors."""
    attrs = "offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1"
    return f"  {name} = f32[64] gather({table}, {places}), {attrs}, slice_sizes={{1}}\n"


def check(
    lines: str, results: str, places: np.ndarray | None = None, table: str = "table"
) -> Hooked:
    """The stitched module computes what the reference does, and has no while.  table: what is looked up in."""
    place = RNG.integers(-20, 90, LENGTH).astype(np.int32) if places is None else places
    type_ = f"{'u' if place.dtype.kind == 'u' else 's'}{8 * place.itemsize}"
    data = parse_hlo_text(TURNS.format(places=type_, lines=lines, results=results, table=table))
    arguments = [place, *RNG.standard_normal((3, LENGTH)).astype(np.float32)]
    with stand_in_compiler():
        hooked = Hooked(data, stitch_module(read_module(data), SMALL))
    assert not any(node.op == "while" for node in hooked.graph)
    for got, want in zip(
        hooked.run(arguments), run_reference(import_hlo(data), arguments), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    return hooked


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
)
def test_places_of_each_type(dtype: str) -> None:
    """Many are out of bounds."""
    limits = np.iinfo(dtype)
    places = RNG.integers(limits.min, limits.max, LENGTH, dtype)
    places[::2] = RNG.integers(0, LENGTH, LENGTH // 2)
    lines = gather("found", "table") + "  next_sum = f32[64] subtract(found, sum)\n"
    check(lines, "next_sum, table, other", places)


@pytest.mark.parametrize("names", [("table.1", "table_1"), ("table-1", "table.1")])
def test_constants_whose_names_are_alike(names: tuple[str, str]) -> None:
    lines = ""
    for number, name in enumerate(names):
        values = ", ".join(f"{value:.4f}" for value in RNG.standard_normal(LENGTH))
        lines += f"  {name} = f32[64] constant({{{values}}})\n" + gather(f"found.{number}", name)
    lines += "  both = f32[64] multiply(found.0, found.1)\n"
    lines += "  next_sum = f32[64] subtract(both, sum)\n"
    check(lines, "next_sum, table, other")


@pytest.mark.parametrize(
    "view",
    [
        "",
        "  line = f32[64] copy(table)\n",
        "  square = f32[8,8] reshape(table)\n  line = f32[64] reshape(square)\n",
    ],
)
def test_a_table_that_is_another_state_of_the_next_turn(view: str) -> None:
    table = "line" if view else "table"
    lines = view + gather("found", table) + "  next_sum = f32[64] subtract(found, other)\n"
    check(lines, f"next_sum, table, {table}")


def test_a_table_that_elements_read_too() -> None:
    lines = gather("found", "table") + "  more = f32[64] add(found, table)\n"
    check(lines + "  next_sum = f32[64] subtract(more, sum)\n", "next_sum, table, other")


def test_what_decides_the_cuts_knows_no_names() -> None:
    lines = gather("found", "table") + gather("more", "other")
    lines += "  both = f32[64] multiply(found, more)\n"
    lines += "  next_sum = f32[64] subtract(both, sum)\n"
    text = TURNS.format(places="s32", lines=lines, results="next_sum, table, other", table="table")
    graph = import_hlo(parse_hlo_text(text))
    (node,) = (node for node in graph if node.op == "while")
    plan = LoopPlanner(SMALL).plan(graph, node)
    assert isinstance(plan, LoopPlan)
    steps = plan.shares[0].steps
    assert len({*steps.lookups}) == 2
    renamed = replace(steps, lookups=tuple(f"{name}.other" for name in steps.lookups))
    assert renamed.shape == steps.shape
    assert replace(steps, lookups=steps.lookups[:1] * 2).shape != steps.shape


def test_a_table_of_one_number() -> None:
    """It is a number in the kernel, as a state that starts so, and no array is written for it."""
    lines = gather("found", "table") + "  next_sum = f32[64] subtract(found, sum)\n"
    hooked = check(lines, "next_sum, table, other", table="quarters")
    (loop,) = [call for call in kernels_of(hooked.graph) if len(call.operands) > 1]
    assert len(loop.operands) == 2  # the places and the sum
