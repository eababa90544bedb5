"""What reductions execute: combinations of states, and how threads exchange theirs."""

from __future__ import annotations

import math
from collections.abc import Mapping

from astitch.cost.instructions import NARROW, Mix, Unit, price_op
from astitch.graph.ir import DType
from astitch.graph.joint_regions import MOMENTS
from astitch.graph.ops import OPS, Kind
from astitch.kernel import kernel_ir as k

WARP = 32
SHUFFLE_CYCLES, SHARED_CYCLES = 26.0, 30.0

_F, _I, _S, _C, _D = Unit.FP32, Unit.INTEGER, Unit.SPECIAL, Unit.CONVERSION, Unit.FP64

_LATENCY = {_F: 4.0, _I: 4.0, _S: 20.0, _C: 8.0, _D: 16.0}
"""Cycles from an instruction to one that needs its result."""

CHAINED_SHARE = 0.5
"""The share of a combination's instructions that wait for each other."""

_MOMENTS: Mapping[str, Mix] = {
    "combine": {_F: 36.0, _I: 3.0, _S: 3.0},
    "element": {_F: 9.0, _I: 2.0, _S: 1.0},
    "batch": {_F: 21.0, _I: 3.0, _S: 1.0},
    "each": {_F: 3.0},
}
"""Instructions that join two states of MOMENTS, add an element, a batch, and each element of a batch
(cuda/collectives.cuh)."""


def _of_type(mix: Mix, reducer: k.Reducer) -> Mix:
    """Instructions on f32 as those on the reducer's type."""
    if reducer.fields[0] is not DType.F64:
        return mix
    return {_D: mix[_F] + 12 * mix[_S], _I: 2 * mix[_I]}


def price_combination(reducer: k.Reducer) -> Mix:
    """One combination of two states."""
    if reducer.joint == MOMENTS:
        return _of_type(_MOMENTS["combine"], reducer)
    mix: Mix = {}
    for node in reducer.region:
        if OPS[node.op].kind is Kind.ELEMENTWISE:
            dtype = reducer.fields[0] if node.dtype in NARROW else node.dtype
            for unit, count in price_op(node.op, dtype, [dtype]).items():
                mix[unit] = mix.get(unit, 0.0) + count
    return mix


def price_element(reducer: k.Reducer) -> Mix:
    """One element added to a joint state."""
    if reducer.joint == MOMENTS:
        return _of_type(_MOMENTS["element"], reducer)
    return {unit: n / 2 for unit, n in price_combination(reducer).items()}


def price_batch(reducer: k.Reducer, elements: int) -> Mix:
    """A batch added to a joint state: one combination of states, and a part of one for each element."""
    if reducer.joint == MOMENTS:
        mix = dict(_MOMENTS["batch"])
        for unit, n in _MOMENTS["each"].items():
            mix[unit] += n * elements
        return _of_type(mix, reducer)
    share = 1 + elements / 4
    return {unit: n * share for unit, n in price_combination(reducer).items()}


class Exchanges:
    """What one reduction across threads executes.  mix: of a thread, filled by of_part."""

    def __init__(self, reducer: k.Reducer) -> None:
        self.joint = bool(reducer.joint)
        self.combine = price_combination(reducer)
        self.fields = math.ceil(reducer.state_bytes / 4)
        self.mix: Mix = {}

    def add(self, unit: Unit, count: float) -> None:
        self.mix[unit] = self.mix.get(unit, 0.0) + count

    def add_combinations(self, count: float) -> None:
        for unit, instructions in self.combine.items():
            self.add(unit, instructions * count)

    @property
    def latency(self) -> float:
        """Cycles from one combination to the next."""
        found = CHAINED_SHARE * sum(_LATENCY[unit] * n for unit, n in self.combine.items())
        return max(found, _LATENCY[_F])

    def butterfly(self, rounds: float, count: float) -> float:
        """Cycles of `rounds` exchanges of `count` states each.  Joint states take two passes of plain sums or extremes,
        and one combination between them."""
        self.add(Unit.SHUFFLE, self.fields * rounds * count)
        self.add(_I, 2 * rounds * count)
        if not self.joint:
            self.add_combinations(rounds * count)
            return rounds * (SHUFFLE_CYCLES + self.latency)
        self.add(_F, self.fields * rounds * count)
        self.add_combinations(count)
        return 2 * rounds * (SHUFFLE_CYCLES + _LATENCY[_F]) + self.latency

    def of_part(self, step: k.ReduceAcross, count: int, together: int) -> tuple[float, float]:
        """(cycles, block barriers) of `count` states.  together: parts that share a slot halve the exchanges."""
        rounds = max(step.threads - 1, 0).bit_length()
        if step.stride != 1:
            return self.of_strided(step, count, rounds)
        if step.threads <= WARP:
            return self.butterfly(rounds, count), 0
        warps = step.threads // WARP
        inner = 5.0
        if together > 1:
            inner = (together - 1 + math.log2(WARP / together)) / together
        chain = self.butterfly(inner, count) * together + 2 * SHARED_CYCLES
        if together > 1:
            turns = math.ceil(together * warps / WARP)
            chain += self.butterfly(rounds - 5, turns / together) * turns + SHUFFLE_CYCLES
            self.add(Unit.SHUFFLE, self.fields)
            self.add(Unit.SHARED, 1.0 + turns / together)
        elif step.butterfly:
            chain += self.butterfly(rounds - 5, count)
            self.add(Unit.SHARED, 2.0 * count)
        else:
            self.add(Unit.SHARED, (1.0 + warps) * count)
            self.add_combinations((warps - 1) * count)
            chain += warps * self.latency
        return chain, 1

    def of_strided(self, step: k.ReduceAcross, count: int, rounds: int) -> tuple[float, float]:
        """Threads that own the same columns: through shared memory unless they are of one warp."""
        if step.threads * step.stride <= WARP:
            return self.butterfly(rounds, count), 0
        turns = math.ceil(count / k.STRIDED_CHUNK)
        members, chain = step.threads, 0.0
        if step.stride < WARP:  # the lanes of a warp combine theirs first
            members = step.threads * step.stride // WARP
            chain = self.butterfly(math.log2(WARP / step.stride), count)
        if step.butterfly:
            chain += turns * 4 * SHARED_CYCLES
            chain += turns * self.butterfly((members - 1).bit_length(), count)
            self.add(Unit.SHARED, (3.0 + 1.0 / members) * count)
            return chain, 4 * turns - 1
        # Of the block's warps one alone reads what all have written, or each does.
        share = WARP / (step.threads * step.stride) if step.alone else 1.0
        self.add(Unit.SHARED, (1.0 + members * share) * count)
        self.add_combinations((members - 1) * share * count)
        chain += turns * (2 * SHARED_CYCLES + members * (self.latency + 2))
        return chain, 2 * turns - 1
