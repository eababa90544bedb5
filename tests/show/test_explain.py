"""What `--explain` says of thread mapping: the strategy of each task loop, and why others do not apply."""

from __future__ import annotations

from dataclasses import replace

from astitch.compile import compile_hlo
from astitch.show.explain import show_strategies
from astitch.tiling.space import NotTaken
from tests.programs import load


def test_explain_names_strategies_and_why_others_are_not_taken() -> None:
    text = compile_hlo(load("layer_norm"), gpu="h100").explain()
    assert (
        "  thread mapping:\n"
        "    loop 0: row reduction within a block\n"
        "      not two-dimensional tiles: no array lies along another dimension than the last\n"
        "      not cooperative row reduction, split row reduction: one block reads a row of 3072 B in less time than a "
        "barrier takes\n"
        "      not short rows, few threads each: a row takes 192 accesses of 16 B, which coalesce\n"
    ) in text


def test_every_loop_is_explained() -> None:
    for name in ("layer_norm_backward", "column_sum", "running_sums"):
        for plan in compile_hlo(load(name), gpu="h100").plans:
            text = "\n".join(show_strategies(plan))
            for loop in plan.arrangement.loops:
                assert loop.mapping.strategy
                assert f"    loop {loop.number}: {loop.mapping.strategy}" in text
                assert all(
                    f"{n.strategy}" in text and n.why in text for n in loop.mapping.not_taken
                )


def test_one_reason_against_several_strategies_is_said_once() -> None:
    (plan,) = compile_hlo(load("layer_norm"), gpu="h100").plans
    (loop,) = plan.arrangement.loops
    refused = (NotTaken("a", "too long"), NotTaken("b", "too short"), NotTaken("c", "too long"))
    mapping = replace(loop.mapping, strategy="d", not_taken=refused)
    arrangement = replace(plan.arrangement, loops=(replace(loop, mapping=mapping),))
    assert show_strategies(replace(plan, arrangement=arrangement)) == [
        "  thread mapping:",
        "    loop 0: d",
        "      not a, c: too long",
        "      not b: too short",
    ]
