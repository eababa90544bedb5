"""Which arguments of a call are arrays, and which are values at compile time."""

from __future__ import annotations

from typing import Any

import pytest

from astitch.api.arguments import Statics, find_statics


def fn(a: Any, b: Any, /, c: Any, d: Any = 1, *, e: Any = 2) -> Any:
    return a, b, c, d, e


@pytest.mark.parametrize(
    ("numbers", "names", "want"),
    [
        (None, None, Statics((), frozenset())),
        (2, None, Statics((2,), frozenset({"c"}))),  # the name follows from the number
        (0, None, Statics((0,), frozenset())),  # positional only
        ((-1, 9), None, Statics((-1, 9), frozenset({"d"}))),
        (None, "d", Statics((3,), frozenset({"d"}))),
        (None, ["e"], Statics((), frozenset({"e"}))),  # named only
        (1, "e", Statics((1,), frozenset({"e"}))),  # both given: nothing follows
    ],
)
def test_one_of_numbers_and_names_follows_from_the_other(
    numbers: Any, names: Any, want: Statics
) -> None:
    assert find_statics(fn, numbers, names) == want


def test_static_values_are_told_apart_by_place_and_type() -> None:
    statics = Statics((-1,), frozenset({"k"}))
    dynamic, static = statics.split((1, 2), {"k": 3, "m": 4})
    assert dynamic == ((1,), {"m": 4})
    assert static != statics.split((1, 2.0), {"k": 3, "m": 4})[1]
    assert static == statics.split((5, 2), {"m": 6, "k": 3})[1]
    assert Statics((), frozenset()).split((1,), {"k": 2}) == (((1,), {"k": 2}), ())
