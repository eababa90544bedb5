"""Choosing a library's algorithm for a problem: what cuBLASLt and cuDNN have in common.

Takes a library's bindings, a problem and launches of its candidates, hands on the fastest candidate.  The first call
times the candidates on its own arrays.  The winner is kept on disk, so that later processes neither measure nor get
other bits.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from astitch.device.launch_time import find_fastest
from astitch.toolchain.kernel_cache import ByteCache

Bindings = TypeVar("Bindings")

CANDIDATES = 8
"""How many algorithms a library's heuristic is asked for."""

LIMIT_BYTES = 4 << 20
"""Size that a cache of choices shrinks back to."""

SUFFIX = ".json"

ENDLESS = float("inf")
"""The time of a candidate that does not run."""

Launch = Callable[[int], None]
"""Enqueues a problem on the stream of an address."""

TimeLaunch = Callable[[Launch, int], float]
"""Microseconds of a launch, whose operands are there when the given stream has come to where it is."""


def load_bindings(
    load: Callable[[], Bindings], module: str, package: str, library: str, instead: str
) -> Bindings | None:
    """What `load` gives; None where the Python module is not installed, or does not work.

    The latter is told by a RuntimeWarning: package and library as a user knows them, and what is done instead.
    """
    try:
        return load()
    except Exception as error:  # no driver, no library: each has an exception of its own
        if isinstance(error, ModuleNotFoundError) and error.name == module:
            return None
        warnings.warn(
            f"{package} is installed, but {library} does not work: {error}; {instead}",
            RuntimeWarning,
            stacklevel=3,
        )
        return None


def hash_problem(fields: Mapping[str, Any]) -> str:
    """The key of a problem: a hash of all that decides how fast an algorithm is.  fields: as JSON has them."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


class ChoiceCache(ByteCache):
    """Algorithms that won, as JSON: one entry for each problem."""

    def load_choice(self, key: str) -> dict[str, Any]:
        """What was stored for a problem; empty where there is nothing, or nothing of this format."""
        try:
            entry = json.loads(self.load_bytes(key) or b"{}")
        except ValueError:
            return {}
        if not isinstance(entry, dict) or entry.get("format") != self.form:
            return {}
        return entry

    def store_choice(self, key: str, choice: Mapping[str, Any]) -> None:
        """Keep the choice for a problem, and what was measured."""
        entry = {"format": self.form, **choice}
        self.store_bytes(key, json.dumps(entry, sort_keys=True).encode())


def time_candidate(
    launch: Launch, stream: int, time_launch: TimeLaunch, errors: tuple[type[Exception], ...]
) -> float:
    """Microseconds; ENDLESS where one of these errors is raised: heuristics do not know everything."""
    try:
        return time_launch(launch, stream)
    except errors:
        return ENDLESS


@dataclass(frozen=True, slots=True)
class Fastest:
    """The candidate to take.  number: which one it is.  time_us: how long it takes; first_us: the first of all."""

    number: int
    time_us: float
    first_us: float

    @property
    def measured(self) -> dict[str, float | None]:
        """What is kept beside the choice, for readers of the cache."""
        first = round(self.first_us, 2) if self.first_us < ENDLESS else None
        return {"time_us": round(self.time_us, 2), "first_us": first}


def choose_fastest(
    launches: Iterable[Launch],
    stream: int,
    time_launch: TimeLaunch,
    errors: tuple[type[Exception], ...],
) -> Fastest | None:
    """Times the candidates one after the other; None where none runs."""
    times = [time_candidate(launch, stream, time_launch, errors) for launch in launches]
    number = find_fastest(times) if times else 0
    if not times or times[number] == ENDLESS:
        return None
    return Fastest(number, times[number], times[0])
