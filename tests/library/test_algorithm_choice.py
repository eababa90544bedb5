"""What cuBLASLt and cuDNN share: bindings that may be missing, choices on disk, the fastest of candidates."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astitch.library.algorithm_choice import (
    ChoiceCache,
    Fastest,
    choose_fastest,
    hash_problem,
    load_bindings,
)


class NumberCache(ChoiceCache):
    form = "astitch number 1"
    lost = "the next process counts anew"


class Refused(Exception):
    pass


def raising(error: Exception) -> Callable[[], Any]:
    def load() -> Any:
        raise error

    return load


def test_bindings_that_are_not_installed_are_no_news() -> None:
    missing = ModuleNotFoundError("No module named 'maths'", name="maths")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_bindings(raising(missing), "maths", "py-maths", "Maths", "NumPy adds") is None
        assert load_bindings(lambda: 3, "maths", "py-maths", "Maths", "NumPy adds") == 3


@pytest.mark.parametrize(
    "error",
    [OSError("no driver"), ModuleNotFoundError("no driver", name="maths.native")],
    ids=["library", "part"],
)
def test_bindings_that_do_not_work_are_told(error: Exception) -> None:
    text = "py-maths is installed, but Maths does not work: no driver; NumPy adds"
    with pytest.warns(RuntimeWarning, match=text):
        assert load_bindings(raising(error), "maths", "py-maths", "Maths", "NumPy adds") is None


def test_a_choice_is_found_again_and_nothing_of_another_format(tmp_path: Path) -> None:
    cache = NumberCache(tmp_path, 1 << 20, ".json")
    key = hash_problem({"b": 1, "a": [2]})
    assert key == hash_problem({"a": [2], "b": 1}) != hash_problem({"a": [2], "b": 2})
    assert cache.load_choice(key) == {}
    cache.store_choice(key, {"number": 7})
    again = NumberCache(tmp_path, 1 << 20, ".json")
    assert again.load_choice(key) == {"format": "astitch number 1", "number": 7}
    for entry in (b"{", b"[]", json.dumps({"format": "astitch number 0"}).encode()):
        cache.store_bytes(key, entry)
        assert cache.load_choice(key) == {}


@pytest.mark.parametrize(
    ("times", "want"),
    [
        ((5.0, 3.0, 4.0), Fastest(1, 3.0, 5.0)),
        ((5.0, 4.99), Fastest(0, 5.0, 5.0)),  # as fast as measurements scatter
        ((None, 3.0), Fastest(1, 3.0, float("inf"))),
        ((None, None), None),
        ((), None),
    ],
)
def test_the_fastest_of_those_that_run(
    times: tuple[float | None, ...], want: Fastest | None
) -> None:
    coming = iter(times)

    def time_launch(launch: Callable[[int], None], stream: int) -> float:
        launch(stream)
        found = next(coming)
        if found is None:
            raise Refused
        return found

    launched: list[int] = []
    found = choose_fastest([launched.append] * len(times), 7, time_launch, (Refused,))
    assert found == want and launched == [7] * len(times)
    if found is not None:
        first = None if times[0] is None else times[0]
        assert found.measured == {"time_us": found.time_us, "first_us": first}
