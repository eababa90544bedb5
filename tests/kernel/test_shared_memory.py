"""Placing slots in the shared arena: never two that are live together, and little wasted."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from astitch.graph.ir import DType
from astitch.kernel.kernel_ir import Slot
from astitch.kernel.shared_memory import SLOT_ALIGNMENT_BYTES, place_shared


def slot(name: str, size: int, first: tuple[int, int], last: tuple[int, int]) -> Slot:
    return Slot(name, DType.U8, None, size, size, first, last)


def offsets(*slots: Slot) -> tuple[dict[str, int], int]:
    placed, total = place_shared(slots)
    return {s.name: s.offset for s in placed}, total


def overlap(a: Slot, b: Slot) -> bool:
    return a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes


def test_nothing_needs_nothing() -> None:
    assert place_shared(()) == ((), 0)


def test_slots_of_one_loop_stay_apart() -> None:
    """The next task writes the first slot while a slow warp of this one may still read the second."""
    where, total = offsets(slot("a", 100, (0, 0), (0, 0)), slot("b", 50, (0, 1), (0, 2)))
    assert where == {"a": 0, "b": 112}
    assert total == 176


def test_slots_of_different_loops_share() -> None:
    where, total = offsets(
        slot("a", 100, (0, 0), (0, 1)), slot("b", 50, (1, 0), (1, 1)), slot("c", 60, (2, 0), (2, 3))
    )
    assert where == {"a": 0, "b": 0, "c": 0}
    assert total == 112


def test_a_slot_that_lives_across_loops_keeps_its_place() -> None:
    where, total = offsets(
        slot("long", 64, (0, 0), (2, 0)),
        slot("b", 100, (1, 0), (1, 1)),
        slot("c", 60, (3, 0), (3, 3)),
    )
    assert where == {"b": 0, "long": 112, "c": 0}
    assert total == 176


def test_gaps_are_filled() -> None:
    # `gone` leaves a hole below `b` that `small` fits.
    where, _ = offsets(
        slot("gone", 96, (0, 0), (0, 1)),
        slot("b", 64, (0, 0), (1, 1)),
        slot("small", 32, (1, 0), (1, 1)),
    )
    assert where == {"gone": 0, "b": 96, "small": 0}


def test_the_order_of_the_slots_is_kept() -> None:
    slots = [slot(f"s{i}", 16 * (i % 3 + 1), (i, 0), (i, 0)) for i in range(6)]
    placed, _ = place_shared(slots)
    assert [s.name for s in placed] == [s.name for s in slots]


@st.composite
def random_slots(draw: st.DrawFn) -> list[Slot]:
    found = []
    for number in range(draw(st.integers(1, 9))):
        first = (draw(st.integers(0, 3)), draw(st.integers(0, 2)))
        last = (draw(st.integers(first[0], 3)), draw(st.integers(0, 3)))
        if last < first:
            last = first
        found.append(slot(f"s{number}", draw(st.integers(1, 300)), first, last))
    return found


@settings(max_examples=200, deadline=None, derandomize=True)
@given(random_slots())
def test_slots_that_are_live_together_never_overlap(slots: list[Slot]) -> None:
    placed, total = place_shared(slots)
    assert total % SLOT_ALIGNMENT_BYTES == 0
    for number, a in enumerate(placed):
        assert a.offset % SLOT_ALIGNMENT_BYTES == 0
        assert a.offset >= 0 and a.offset + a.bytes <= total
        for b in placed[:number]:
            # Task loops repeat their phases: within a loop all slots are live together.
            together = a.first[0] <= b.last[0] and b.first[0] <= a.last[0]
            assert not (together and overlap(a, b))
    assert place_shared(slots) == (placed, total)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(random_slots())
def test_the_arena_is_no_larger_than_all_slots_and_no_smaller_than_a_loop(
    slots: list[Slot],
) -> None:
    _, total = place_shared(slots)

    def rounded(size: int) -> int:
        return -(-size // SLOT_ALIGNMENT_BYTES) * SLOT_ALIGNMENT_BYTES

    assert total <= sum(rounded(s.bytes) for s in slots)
    for loop in range(4):
        live = [rounded(s.bytes) for s in slots if s.first[0] <= loop <= s.last[0]]
        assert total >= sum(live)
