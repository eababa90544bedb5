"""The arena: laws that every plan obeys, and a few plans by hand."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astitch.errors import IllegalProduct
from astitch.program.arena import Lifetime, align, plan_arena
from astitch.program.steps import ALIGNMENT_BYTES


@st.composite
def lifetime_lists(draw: st.DrawFn) -> list[Lifetime]:
    rows = draw(
        st.lists(
            st.tuples(st.integers(0, 3000), st.integers(0, 12), st.integers(0, 12)), max_size=25
        )
    )
    return [Lifetime(f"b{i}", size, min(a, b), max(a, b)) for i, (size, a, b) in enumerate(rows)]


@given(lifetime_lists(), st.integers(0, 3))
def test_buffers_alive_together_share_no_byte(lifetimes: list[Lifetime], barriers: int) -> None:
    words = {f"barrier{i}": 100 * (i + 1) for i in range(barriers)}
    offsets, total = plan_arena(lifetimes, barriers=words)
    assert offsets.keys() == {x.name for x in lifetimes} | set(words)
    for a, b in itertools.combinations(lifetimes, 2):
        if a.overlaps(b) and a.bytes and b.bytes:
            first, second = sorted((offsets[x.name], x.bytes) for x in (a, b))
            assert first[0] + first[1] <= second[0], (a, b)
    for x in lifetimes:
        assert offsets[x.name] % ALIGNMENT_BYTES == 0
        assert sum(map(align, words.values())) <= offsets[x.name] <= total - x.bytes
    starts = [0, *itertools.accumulate(map(align, words.values()))]
    assert [offsets[w] for w in words] == starts[: len(words)]


@given(lifetime_lists())
def test_size_is_between_the_fullest_step_and_the_sum(lifetimes: list[Lifetime]) -> None:
    total = plan_arena(lifetimes)[1]
    alive = [
        sum(align(x.bytes) for x in lifetimes if x.first_step <= step <= x.last_step)
        for step in range(13)
    ]
    assert max(alive) <= total <= sum(align(x.bytes) for x in lifetimes)


@pytest.mark.parametrize("length", [2, 3, 10])
def test_a_chain_needs_two_places(length: int) -> None:
    """Buffers of one size, each read by the next step only, take turns."""
    chain = [Lifetime(f"c{i}", 1000, i, i + 1) for i in range(length)]
    assert plan_arena(chain)[1] == 2 * align(1000)


def test_the_tightest_gap_is_taken() -> None:
    """At step 1 there are gaps of 2048 and of 512 bytes; 250 bytes go into the second."""
    lifetimes = [
        Lifetime("big", 4096, 0, 1),
        Lifetime("wide_gap", 2048, 0, 0),
        Lifetime("wall", 1024, 0, 1),
        Lifetime("narrow_gap", 512, 0, 0),
        Lifetime("end", 256, 0, 1),
        Lifetime("small", 250, 1, 1),
    ]
    offsets, total = plan_arena(lifetimes)
    assert offsets["small"] == offsets["narrow_gap"] == 4096 + 2048 + 1024
    assert total == 4096 + 2048 + 1024 + 512 + 256


def test_nothing_needs_nothing() -> None:
    assert plan_arena([]) == ({}, 0)
    assert plan_arena([Lifetime("empty", 0, 0, 3)]) == ({"empty": 0}, 0)


def test_bad_lifetimes_are_named() -> None:
    with pytest.raises(IllegalProduct, match=r"buffer a is given twice"):
        plan_arena([Lifetime("a", 1, 0, 0)], barriers={"a": 4})
    with pytest.raises(IllegalProduct, match=r"buffer b of 4 bytes lives from step 2 to 1"):
        plan_arena([Lifetime("b", 4, 2, 1)])
