"""Stages -> stages: as much is computed again as a memory limit asks for, and no more.

Takes stages and the bytes that the program may take, hands on stages whose stitch ops are estimated to fit, or to come
nearest.  What is kept has a price.  It rises until the program fits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from astitch.rewrite.keep_less import Price, find_fullest, keep_less
from astitch.rewrite.recompute import Staged

PRICES = (1, 2, 4, 8, 16, 32, 64)
"""Of a byte that is kept, in bytes of traffic."""

ASKED = (*((price, False) for price in PRICES), (PRICES[-1], True))
"""What is tried, in order: a price, and whether no stage may keep another value because it saves traffic."""

MOST_HALVES = 3
"""How often the share of ops that pay the highest price is halved: layers are alike, and would all change at once."""

MOST_CUTS = 4
"""Stages behind which fewer bytes are kept: one, where a forward half ends, and others that are fullest then."""

LEAST_LESS = 0.99
"""The share of the most bytes kept that is left behind a cut at most, for the next one to be tried."""


def keep_within(
    staged: Staged,
    most_bytes: float,
    measure: Callable[[Staged], float],
) -> Staged:
    """The same function; memory holds at most so many bytes, or as few as it gets.

    measure: the bytes of a program of such stages at its peak.
    """
    best, least = staged, measure(staged)
    if least <= most_bytes:
        return staged
    measured = [(staged, least)]  # other prices often keep the same

    def fits(price: Price, is_final: bool) -> bool:
        nonlocal best, least
        found = _keep_less_everywhere(staged, price)
        if not is_final:  # what is kept may change for traffic's sake
            found = replace(found, kept=frozenset())
        peak = next((known for other, known in measured if _are_alike(found, other)), None)
        if peak is None:
            peak = measure(found)
            measured.append((found, peak))
        if peak <= most_bytes or peak < least:  # what fits is cheaper than what fitted before
            best, least = found, peak
        return peak <= most_bytes

    low, high = 0, len(ASKED)
    while low < high:  # the lowest price that fits
        middle = (low + high) // 2
        price, is_final = ASKED[middle]
        if fits(Price(price, price), is_final):
            high = middle
        else:
            low = middle + 1
    if high == len(ASKED):
        return best
    price, is_final = ASKED[high]
    lower = ASKED[high - 1][0] if high else 0
    share, step = 0.5, 0.25
    for _ in range(MOST_HALVES):  # the least share of the ops that has to pay it
        share += -step if fits(Price(price, lower, share), is_final) else step
        step /= 2
    return best


def _are_alike(one: Staged, other: Staged) -> bool:
    """Do two of one origin keep the same?"""
    same = one.kept == other.kept and one.stage == other.stage
    return same and one.graph.nodes == other.graph.nodes


def _keep_less_everywhere(staged: Staged, price: Price) -> Staged:
    """Fewer bytes are kept behind the fullest stage, and behind those that are fullest then."""
    for _ in range(MOST_CUTS):
        full = find_fullest(staged)
        found = keep_less(staged, full.stage, price)
        if found is staged:
            break
        after = find_fullest(found)
        if after.bytes > full.bytes:
            break
        staged = found
        if after.bytes > LEAST_LESS * full.bytes or after.stage == full.stage:
            break
    return staged
