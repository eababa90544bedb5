"""Where the threads of a block stand: the values and bounds of index forms, and who passes a guard."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar, cast

import numpy as np

from astitch.cost.reductions import WARP
from astitch.graph.index import Linear, Quotient, Remainder, Symbol, Term
from astitch.graph.ops.access import Guard, Within
from astitch.kernel import kernel_ir as k

Found = TypeVar("Found")


@functools.lru_cache(maxsize=256)
def _list_threads(count: int, cols: int, rows: int) -> Mapping[str, np.ndarray]:
    """The coordinates of the first `count` threads of a block, by name."""
    thread = np.arange(count)
    places = {
        "thread": thread,
        "tx": thread % cols,
        "ty": thread // cols % rows,
        "to": thread // (rows * cols),
    }
    for place in places.values():
        place.flags.writeable = False
    return places


Spans = dict[str, tuple[int, int]]
"""Smallest and largest value of each name."""


class Warp:
    """values: of names, in the threads of the first warp.  spans: over the whole kernel; still: within one task.

    lanes: elements of the vector that is worked on.  steps: the variable of the short loop that is worked on, and how
    many turns it has; by_step: values in each of them.  falling: indices that fall as loops run; turning: variables of
    loops.
    """

    def __init__(self, grid: int, block: int) -> None:
        self.grid, self.block = grid, block
        self.values: dict[str, np.ndarray] = {}
        self.spans: Spans = {}
        self.still: Spans = {}
        self.threads: Mapping[str, np.ndarray] = {}
        self.lanes = 1
        self.steps: tuple[str, int] = ("", 1)
        self.by_step: dict[str, list[np.ndarray]] = {}
        self.falling: set[str] = set()
        self.turning: set[str] = set()
        self.kept: dict[Hashable, object] = {}

    def keep(self, key: Hashable, find: Callable[[], Found]) -> Found:
        """What was found under a key, until a name gets a value."""
        if key not in self.kept:
            self.kept[key] = find()
        return cast(Found, self.kept[key])

    def set_threads(self, section: k.Section) -> None:
        cols, rows = section.col_threads, section.row_threads
        self.kept.clear()
        self.values = {**_list_threads(min(WARP, self.block), cols, rows)}
        self.spans = {
            "thread": (0, self.block - 1),
            "tx": (0, cols - 1),
            "ty": (0, rows - 1),
            "to": (0, section.outer_threads - 1),
            "first": (0, self.grid - 1),
        }
        self.still = {**self.spans, "first": (0, 0)}
        self.threads = _list_threads(self.block, cols, rows)

    def set_tasks(self, count: int) -> None:
        self.kept.clear()
        self.spans["task"], self.still["task"] = (0, count - 1), (0, 0)

    def define(self, name: str, forms: Sequence[Linear], *, falls: bool = False) -> None:
        """An index that is one of the forms; their values are much alike.  falls: as loops run."""
        self.kept.clear()
        if falls:
            self.falling.add(name)
        self.values[name] = self.evaluate(forms[0])
        if self.steps[1] > 1:
            self.by_step[name] = self.evaluate_steps(forms[0])
        for known in (self.spans, self.still):
            lows, highs = zip(*(self.bounds(form, known) for form in forms), strict=True)
            known[name] = (min(lows), max(highs))

    def repeat(self, variable: str, count: int) -> None:
        """The variable of a loop."""
        self.kept.clear()
        self.spans[variable] = self.still[variable] = (0, count - 1)
        self.turning.add(variable)
        self.values[variable] = np.asarray(0)

    def enter_steps(self, variable: str, count: int) -> None:
        """A short loop begins, or with one turn ends."""
        self.kept.clear()
        self.steps = variable, count
        self.by_step = {variable: [np.asarray(turn) for turn in range(count)]} if variable else {}

    def evaluate_steps(self, form: Linear) -> list[np.ndarray]:
        """The form's values in each turn of the short loop."""
        outside, found = self.values, []
        for turn in range(self.steps[1]):
            self.values = outside | {name: values[turn] for name, values in self.by_step.items()}
            found.append(self.evaluate(form))
        self.values = outside
        return found

    def evaluate(self, form: Linear) -> np.ndarray:
        """The form's value for each lane of a vector and each thread of a warp."""
        total: np.ndarray = np.asarray(form.constant)
        for term, coefficient in form.terms:
            total = np.asarray(total + coefficient * self.evaluate_term(term))
        return total

    def evaluate_term(self, term: Term) -> np.ndarray:
        match term:
            case Quotient(dividend, divisor):
                return np.asarray(self.evaluate(dividend) // divisor)
            case Remainder(dividend, divisor):
                return np.asarray(self.evaluate(dividend) % divisor)
        if term.name == "lane":
            return np.arange(self.lanes)[:, None]
        if term.name.startswith("clamped("):
            inner = self.values.get(
                term.name.removeprefix("clamped(").partition(",")[0], np.asarray(0)
            )
            return np.asarray(np.minimum(inner, term.extent - 1))
        return self.values.get(term.name, np.asarray(0))

    def falls(self, form: Linear) -> bool:
        """Does the form's value fall as the loops around it run?"""
        for term, coefficient in form.terms:
            if isinstance(term, Symbol):
                if term.name in self.falling or (term.name in self.turning and coefficient < 0):
                    return True
            elif self.falls(term.dividend):
                return True
        return False

    def bounds(self, form: Linear, spans: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
        """Smallest and largest value of the form, names being within `spans`."""
        low = high = form.constant
        for term, coefficient in form.terms:
            match term:
                case Quotient(dividend, divisor):
                    a, b = self.bounds(dividend, spans)
                    a, b = a // divisor, b // divisor
                case Remainder(dividend, divisor):
                    a, b = self.bounds(dividend, spans)
                    a, b = (a, b) if a >= 0 and b < divisor else (0, divisor - 1)
                case Symbol(name, extent):
                    most = (self.lanes if name == "lane" else extent) - 1
                    a, b = spans.get(name, (0, most))
                    b = min(b, most)
            low += min(a * coefficient, b * coefficient)
            high += max(a * coefficient, b * coefficient)
        return low, max(high, low)

    def passing(self, guards: Sequence[Guard]) -> tuple[float, float]:
        """(share of threads, share of warps) for which the guards hold."""
        threads, warps = 1.0, 1.0
        mask: np.ndarray | None = None
        for guard in guards:
            if not isinstance(guard, Within):
                threads /= guard.by
                rests = np.unique(self.evaluate(guard.form) % guard.by)
                warps *= min(len(rests) / guard.by, 1.0)  # threads that agree pass by together
                continue
            names = {t.name for t, _ in guard.form.terms if isinstance(t, Symbol)}
            if names and names <= set(self.threads):
                position = np.full(self.block, guard.form.constant)
                for term, c in guard.form.terms:
                    if isinstance(term, Symbol):
                        position += c * self.threads[term.name]
                inside = (position >= guard.low) & (position < guard.high)
                mask = inside if mask is None else mask & inside
                continue
            low, high = self.bounds(guard.form, self.spans)
            share = (min(high + 1, guard.high) - max(low, guard.low)) / (high - low + 1)
            share = min(max(share, 0.0), 1.0)
            threads, warps = threads * share, warps * share
        if mask is None:
            return threads, warps
        padded = np.zeros(-(-self.block // WARP) * WARP, bool)
        padded[: self.block] = mask
        return threads * float(mask.mean()), warps * float(padded.reshape(-1, WARP).any(1).mean())
