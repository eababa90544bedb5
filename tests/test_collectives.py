"""cuda/collectives.cuh in the checked emulation: each way to reduce over threads gives every thread its set's total."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest

from astitch.emulate import HostModule, Order, compile_host
from astitch.kernel_ir import STRIDED_CHUNK
from astitch.nvrtc import compile_cuda

BLOCK = 128


@dataclass(frozen=True)
class Kind:
    """A reducer.  combine: a, b -> State.  exact: combining in any grouping has the same bits."""

    name: str
    type: str
    fields: int
    identity: str
    combine: str
    joint: str = "NONE"
    commutative: bool = False
    exact: bool = True

    @property
    def struct(self) -> str:
        def all_fields(text: str) -> str:
            return ", ".join(text.format(i) for i in range(self.fields))

        members = " ".join(f"{self.type} f{i};" for i in range(self.fields))
        return f"""
struct {self.name} {{
  static constexpr bool commutative = {str(self.commutative).lower()};
  static constexpr Joint joint = JOINT_{self.joint};
  struct State {{ {members} }};
  static __device__ __forceinline__ State identity() {{ return State{{{self.identity}}}; }}
  static __device__ __forceinline__ State combine(const State a, const State b) {{ return {self.combine}; }}
  static __device__ __forceinline__ State take(const State s, int lane) {{
    return State{{{all_fields("value_of_lane(s.f{0}, lane)")}}};
  }}
  static __device__ __forceinline__ State shuffle(const State s, int mask) {{
    return State{{{all_fields("shuffle_value(s.f{0}, mask)")}}};
  }}
}};"""


KINDS = {
    kind.name: kind
    for kind in (
        Kind("Sum", "int", 1, "0", "State{a.f0 + b.f0}", commutative=True),
        # x -> f0 * x + f1, one after the other: associative, but the order matters.
        Kind("Affine", "unsigned", 2, "1u, 0u", "State{a.f0 * b.f0, a.f1 * b.f0 + b.f1}"),
        Kind("Moments", "float", 3, "0, 0, 0", "join_moments(a, b)", "MOMENTS", exact=False),
        Kind(
            "Exponentials",
            "float",
            2,
            "same_bits<float>(0xff800000u), 0",
            "join_exponentials(a, b)",
            "EXPONENTIALS",
            exact=False,
        ),
    )
}


@dataclass(frozen=True)
class Way:
    """A collective over sets of `threads` threads, `stride` apart, that each hold `count` states."""

    kind: str
    threads: int
    stride: int
    count: int
    how: str

    @property
    def name(self) -> str:
        return f"{self.kind}_{self.threads}_{self.stride}_{self.count}_{self.how}".lower()

    @property
    def shared_states(self) -> int:
        return BLOCK * STRIDED_CHUNK if self.how.startswith("strided") else BLOCK // 32 * self.count

    @property
    def call(self) -> str:
        kind, sizes = self.kind, f"{self.threads}, {self.stride}"
        match self.how:
            case "lanes":
                return f"reduce_lanes<{kind}, {sizes}>(states);"
            case "warps" | "butterfly":
                way = "true" if self.how == "butterfly" else "false"
                return (
                    f"reduce_warps<{kind}>(states, slot); __syncthreads(); "
                    f"combine_warps<{kind}, {self.threads}, {way}>(states, slot);"
                )
            case "together":
                parts = ", ".join(f"part{i}" for i in range(self.count))
                split = " ".join(
                    f"{kind}::State part{i}[1] = {{states[{i}]}};" for i in range(self.count)
                )
                join = " ".join(f"states[{i}] = part{i}[0];" for i in range(self.count))
                return (
                    f"{split} reduce_warps_together<{kind}>(slot, {parts}); __syncthreads(); "
                    f"combine_warps_together<{kind}, {self.threads}>(slot, {parts}); {join}"
                )
        lanes = "true" if self.how == "strided_lanes" else "false"
        return f"reduce_strided<{kind}, {sizes}, {BLOCK}, {STRIDED_CHUNK}, {lanes}>(states, slot);"

    @property
    def kernel(self) -> str:
        kind = KINDS[self.kind]
        shared = (
            ""
            if self.how == "lanes"
            else (
                f"ASTITCH_SHARED_ARENA({16 * self.shared_states}); "
                f"ASTITCH_SHARED({self.kind}::State, slot, 0, {self.shared_states});"
            )
        )
        fields = ", ".join(f"in[at * {kind.fields} + {i}]" for i in range(kind.fields))
        stores = " ".join(
            f"out[at * {kind.fields} + {i}] = states[i].f{i};" for i in range(kind.fields)
        )
        each = f"for (int i = 0, at = threadIdx.x * {self.count}; i < {self.count}; ++i, ++at)"
        return f"""
extern "C" __global__ void __launch_bounds__({BLOCK}) {self.name}(const {kind.type}* in, {kind.type}* out) {{
  {shared}
  {self.kind}::State states[{self.count}];
  {each} states[i] = {self.kind}::State{{{fields}}};
  {self.call}
  {each} {{ {stores} }}
}}"""  # fmt: skip


def ways() -> list[Way]:
    found: list[Way] = []
    for kind, count in itertools.product(KINDS, (1, 3)):
        lanes = [(2, 1), (32, 1), (4, 8), (8, 2)]
        found += [Way(kind, *sizes, count, "lanes") for sizes in lanes]
        for threads, how in itertools.product((64, 128), ("warps", "butterfly")):
            found.append(Way(kind, threads, 1, count, how))
    for kind, count in itertools.product(KINDS, (1, 6)):  # more states than are exchanged at once
        for sizes in ((4, 32), (2, 64), (8, 16), (16, 8), (2, 32)):
            found.append(Way(kind, *sizes, count, "strided"))
            found.append(Way(kind, *sizes, count, "strided_lanes"))
    for threads, count in itertools.product((64, 128), (2, 3, 4)):
        found.append(Way("Sum", threads, 1, count, "together"))
    return found


WAYS = {way.name: way for way in ways()}


def source(kind: str) -> str:
    kernels = "".join(way.kernel for way in WAYS.values() if way.kind == kind)
    return f'#include "astitch.cuh"\n{KINDS[kind].struct}{kernels}\n'


@functools.cache
def module(kind: str) -> HostModule:
    return compile_host(source(kind), check=True)


def draw(kind: str, count: int) -> np.ndarray:
    """(thread, state, field)"""
    rng = np.random.default_rng(count)
    match kind:
        case "Sum":
            return rng.integers(-1000, 1000, (BLOCK, count, 1)).astype(np.int32)
        case "Affine":
            return rng.integers(0, 1 << 32, (BLOCK, count, 2), dtype=np.uint32)
        case "Moments":
            states = rng.normal(3, 2, (BLOCK, count, 3))
            states[..., 0] = rng.integers(0, 9, (BLOCK, count))
            states[..., 2] = np.abs(states[..., 2]) * np.maximum(states[..., 0] - 1, 0)
            states[states[..., 0] == 0] = 0
        case _:
            states = np.abs(rng.normal(0, 20, (BLOCK, count, 2)))
            states[rng.random((BLOCK, count)) < 0.2] = (-np.inf, 0)
    return states.astype(np.float32)


def total(kind: str, members: np.ndarray) -> np.ndarray:
    """Of the states (member, field), in order."""
    match kind:
        case "Sum":
            return members.sum(0, dtype=np.int32)
        case "Affine":
            a, b = 1, 0
            for c, d in members.tolist():
                a, b = a * c % (1 << 32), (b * c + d) % (1 << 32)
            return np.array([a, b], np.uint32)
        case "Moments":
            counts, means, spreads = members.T.astype(np.float64)
            count = counts.sum()
            mean = counts @ means / max(count, 1)
            return np.array([count, mean, spreads.sum() + counts @ (means - mean) ** 2])
    largest = float(members[:, 0].max())
    center = largest if math.isfinite(largest) else 0.0
    sizes = members.astype(np.float64)
    return np.array([largest, np.sum(sizes[:, 1] * np.exp(sizes[:, 0] - center))])


def sets_of(way: Way) -> list[np.ndarray]:
    """The threads of each set, in order."""
    first = [t for t in range(BLOCK) if t // way.stride % way.threads == 0]
    return [np.arange(f, f + way.threads * way.stride, way.stride) for f in first]


def run(way: Way, states: np.ndarray, order: Order = Order.FORWARD) -> np.ndarray:
    out = np.empty_like(states)
    shared = 0 if way.how == "lanes" else 16 * way.shared_states
    module(way.kind).launch(
        way.name, 1, BLOCK, [states, out], shared_bytes=shared, uninitialised=[1], order=order, seed=1
    )  # fmt: skip
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_every_thread_gets_the_total_of_its_set(kind: str) -> None:
    for way in (way for way in WAYS.values() if way.kind == kind):
        states = draw(kind, way.count)
        got = run(way, states)
        for threads in sets_of(way):
            for state in range(way.count):
                mine = got[threads, state]
                assert len({row.tobytes() for row in mine}) == 1, f"{way.name}: threads differ"
                wanted = total(kind, states[threads, state])
                if KINDS[kind].exact:
                    np.testing.assert_array_equal(mine[0], wanted, way.name)
                else:
                    np.testing.assert_allclose(mine[0], wanted, 2e-6, 1e-6, err_msg=way.name)


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_threads_changes_no_bit(kind: str) -> None:
    for way in [way for way in WAYS.values() if way.kind == kind][::4]:
        states = draw(kind, way.count)
        wanted = run(way, states).tobytes()
        for order in (Order.REVERSE, Order.RANDOM):
            assert run(way, states, order).tobytes() == wanted, way.name


@pytest.mark.parametrize(
    ("members", "wanted"),
    [
        ({}, (-np.inf, 0)),
        ({3: (-np.inf, 5)}, (-np.inf, 0)),
        ({0: (2, 1), 5: (-np.inf, 0)}, (2, 1)),
        ({1: (np.inf, np.inf), 2: (3, 1)}, (np.inf, np.inf)),
        ({1: (np.nan, np.nan), 2: (np.inf, np.inf)}, (np.nan, np.nan)),
        ({0: (1e30, 1), 7: (-1e30, 4)}, (np.float32(1e30), 1)),
    ],
    ids=["nothing", "all -inf", "one", "inf", "nan", "far apart"],
)
def test_extremes_of_exponentials(
    members: dict[int, tuple[float, float]], wanted: tuple[float, float]
) -> None:
    for way in (way for way in WAYS.values() if way.kind == "Exponentials"):
        states = np.full((BLOCK, way.count, 2), (-np.inf, 0), np.float32)
        for threads in sets_of(way):
            for member, state in members.items():
                states[threads[member % way.threads]] = state
        if len({m % way.threads for m in members}) == len(members):  # each has a thread of its own
            expected = np.broadcast_to(np.float32(wanted), states.shape)
            np.testing.assert_array_equal(run(way, states), expected, way.name)


@pytest.mark.parametrize("value", [3e19, -1e30, 0.0, 1e-30])
def test_moments_of_one_value_among_idle_threads(value: float) -> None:
    """Threads without an element hold (0, 0, 0): no product of theirs may be 0 * inf."""
    for way in (way for way in WAYS.values() if way.kind == "Moments"):
        states = np.zeros((BLOCK, way.count, 3), np.float32)
        for threads in sets_of(way):
            states[threads[way.threads // 2]] = (4, value, 0)
        got = run(way, states)
        np.testing.assert_array_equal(got[..., 0], 4)
        np.testing.assert_allclose(got[..., 1], np.float32(value), rtol=1e-6)
        assert np.all(got[..., 2].astype(np.float64) <= 4 * (1e-6 * value) ** 2), way.name


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_compiles_all_ways(kind: str) -> None:
    built = compile_cuda(source(kind), "sm_90").kernels
    assert set(built) == {way.name for way in WAYS.values() if way.kind == kind}
    assert not any(kernel.spill_store_bytes for kernel in built.values())
