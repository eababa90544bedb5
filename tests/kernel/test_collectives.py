"""cuda/collectives.cuh in the checked emulation.  Each way to reduce over threads gives every thread its set's total,
and what the members of a block group publish arrives."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest
from graphs import GraphBuilder

from astitch.emit_cuda import emit_cuda
from astitch.graph import index as ix
from astitch.graph.index import Symbol, of_symbol
from astitch.graph.ir import Graph
from astitch.graph.ops.access import Within
from astitch.kernel import kernel_ir as k
from astitch.kernel.check_kernel import check_kernel
from astitch.kernel.kernel_ir import STRIDED_CHUNK, count_lines
from astitch.kernel.reducers import make_reducer
from astitch.run.emulate import HostModule, Order, compile_host
from astitch.toolchain.nvrtc import compile_cuda
from tests.small_gpu import stitched_graph

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
        Kind("Moments", "float", 4, "0, 0, 0, 0", "join_moments(a, b)", "MOMENTS", exact=False),
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


TOLERANCE = {"Moments": 5e-7, "Exponentials": 2e-6}


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
        if not self.how.startswith("strided"):
            return BLOCK // 32 * self.count
        return min(self.count, STRIDED_CHUNK) * count_lines(BLOCK, self.stride)

    @property
    def threads_served(self) -> int:
        """The first so many threads of a block get the totals of their sets."""
        return 32 if self.how == "strided_alone" else BLOCK

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
        together = ", ".join(str(self.how == f"strided_{w}").lower() for w in ("lanes", "alone"))
        return (
            f"reduce_strided<{kind}, {sizes}, {BLOCK}, {STRIDED_CHUNK}, {together}>(states, slot);"
        )

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


STRIDED = ((64, 2), (16, 8), (8, 8), (8, 16), (4, 32), (2, 32), (2, 64))
"""(threads, stride) of sets that span warps: a block of them and, where it may be, half a block."""


def ways() -> list[Way]:
    found: list[Way] = []
    for kind, count in itertools.product(KINDS, (1, 3)):
        lanes = [(2, 1), (32, 1), (4, 8), (8, 2)]
        found += [Way(kind, *sizes, count, "lanes") for sizes in lanes]
        for threads, how in itertools.product((64, 128), ("warps", "butterfly")):
            found.append(Way(kind, threads, 1, count, how))
    for kind, count in itertools.product(KINDS, (1, 6)):  # more states than are exchanged at once
        for sizes in STRIDED:
            found.append(Way(kind, *sizes, count, "strided"))
            found.append(Way(kind, *sizes, count, "strided_lanes"))
            if math.prod(sizes) == BLOCK:
                found.append(Way(kind, *sizes, count, "strided_alone"))
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


def draw_moments(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Of up to eight elements of mean 1e6 and deviation 2, a quarter of what f32 tells apart there; some of none."""
    count = rng.integers(0, 9, shape).astype(np.float64)
    mean = rng.normal(1e6, 2, shape)
    spread = rng.uniform(0, 8, shape) * np.maximum(count - 1, 0)
    total = count * mean
    return np.stack([count, total, total - total.astype(np.float32), spread], -1)


def told(kind: str, states: np.ndarray) -> np.ndarray:
    """What states say: the two numbers of a sum are one mean."""
    if kind != "Moments":
        return states
    count, total, lost, spread = np.moveaxis(states.astype(np.float64), -1, 0)
    return np.stack([count, (total + lost) / np.maximum(count, 1), spread], -1)


def draw(kind: str, count: int) -> np.ndarray:
    """(thread, state, field)"""
    rng = np.random.default_rng(count)
    match kind:
        case "Sum":
            return rng.integers(-1000, 1000, (BLOCK, count, 1)).astype(np.int32)
        case "Affine":
            return rng.integers(0, 1 << 32, (BLOCK, count, 2), dtype=np.uint32)
        case "Moments":
            states = draw_moments(rng, (BLOCK, count))
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
            counts, means, spreads = told(kind, members).T
            count = counts.sum()
            mean = counts @ means / max(count, 1)
            return np.array([count, mean, spreads.sum() + counts @ (means - mean) ** 2])
    largest = float(members[:, 0].max())
    center = largest if math.isfinite(largest) else 0.0
    sizes = members.astype(np.float64)
    return np.array([largest, np.sum(sizes[:, 1] * np.exp(sizes[:, 0] - center))])


def sets_of(way: Way) -> list[np.ndarray]:
    """The threads of each set of which one is served, in order."""
    first = [t for t in range(BLOCK) if t // way.stride % way.threads == 0]
    return [
        np.arange(f, f + way.threads * way.stride, way.stride)
        for f in first
        if f < way.threads_served
    ]


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
                mine = got[threads[threads < way.threads_served], state]
                assert len({row.tobytes() for row in mine}) == 1, f"{way.name}: threads differ"
                wanted = total(kind, states[threads, state])
                if KINDS[kind].exact:
                    np.testing.assert_array_equal(mine[0], wanted, way.name)
                else:
                    found = told(kind, mine[0])
                    np.testing.assert_allclose(found, wanted, TOLERANCE[kind], 1e-6, way.name)


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_threads_changes_no_bit(kind: str) -> None:
    for way in [way for way in WAYS.values() if way.kind == kind][::4]:
        states = draw(kind, way.count)
        wanted = run(way, states).tobytes()
        for order in (Order.REVERSE, Order.RANDOM):
            assert run(way, states, order).tobytes() == wanted, way.name


SCANS = tuple(itertools.product((1, 2, 3, 4, 5, 9), (1, 2), (64, 128), ("false", "true")))
"""(steps, width, threads, backward): totals of few and of many warps, which are gone through and scanned."""


@functools.cache
def scans() -> HostModule:
    kernels = "".join(
        f"""
extern "C" __global__ void __launch_bounds__({BLOCK}) scan_{s}_{w}_{t}_{backward}(const unsigned* in, unsigned* out) {{
  ASTITCH_SHARED_ARENA({BLOCK // 32 * s * 8});
  ASTITCH_SHARED(Affine::State, slot, 0, {BLOCK // 32 * s});
  Affine::State states[{s * w}];
  const unsigned *from = in + threadIdx.x * {s * w * 2};
  for (int i = 0; i < {s * w}; ++i) states[i] = Affine::State{{from[2 * i], from[2 * i + 1]}};
  scan_row<Affine, {s}, {w}, {t}, {backward}>(states, slot, no_carry());
  for (int i = 0; i < {s * w}; ++i) {{
    out[threadIdx.x * {s * w * 2} + 2 * i] = states[i].f0;
    out[threadIdx.x * {s * w * 2} + 2 * i + 1] = states[i].f1;
  }}
}}"""
        for s, w, t, backward in SCANS
    )
    return compile_host(f'#include "astitch.cuh"\n{KINDS["Affine"].struct}{kernels}\n', check=True)


@pytest.mark.parametrize("order", [Order.FORWARD, Order.REVERSE, Order.RANDOM])
def test_rows_are_scanned_in_order(order: Order) -> None:
    """Step by step, thread by thread: what does not commute shows each that is out of place."""
    for steps, width, threads, backward in SCANS:
        states = draw("Affine", steps * width)
        out = np.empty_like(states)
        name = f"scan_{steps}_{width}_{threads}_{backward}"
        slot_bytes = BLOCK // 32 * steps * 8
        scans().launch(
            name, 1, BLOCK, [states, out], shared_bytes=slot_bytes, uninitialised=[1], order=order, seed=1
        )  # fmt: skip
        rows = (-1, threads, steps, width, 2)
        for row, got in zip(states.reshape(rows), out.reshape(rows), strict=True):
            members = row.transpose(1, 0, 2, 3).reshape(-1, 2)
            found = got.transpose(1, 0, 2, 3).reshape(-1, 2)
            count = len(members)
            for place in range(0, count, 7):
                part = members[place:] if backward == "true" else members[: place + 1]
                np.testing.assert_array_equal(found[place], total("Affine", part), name)


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
            got = run(way, states)[: way.threads_served]
            expected = np.broadcast_to(np.float32(wanted), got.shape)
            np.testing.assert_array_equal(got, expected, way.name)


def moments_ways() -> list[Way]:
    return [way for way in WAYS.values() if way.kind == "Moments"]


@pytest.mark.parametrize("value", [3e19, -1e30, 0.0, 1e-30, 5e37])
def test_moments_of_one_value_among_idle_threads(value: float) -> None:
    """Threads without an element hold zeros: no product of theirs may be 0 * inf."""
    for way in moments_ways():
        states = np.zeros((BLOCK, way.count, 4), np.float32)
        for threads in sets_of(way):
            states[threads[way.threads // 2]] = (4, 4 * np.float32(value), 0, 0)
        got = run(way, states)[: way.threads_served]
        wanted = np.float32((4, 4 * np.float32(value), 0, 0))
        np.testing.assert_array_equal(got, np.broadcast_to(wanted, got.shape), way.name)


@pytest.mark.parametrize("value", [1 / 3, 1e6, -1e35])
def test_moments_of_equal_values_have_no_spread(value: float) -> None:
    for way in moments_ways():
        states = np.zeros((BLOCK, way.count, 4), np.float32)
        x, total = np.float32(value), np.float32(3 * np.float32(value))
        states[...] = (3, total, 3 * x.astype(np.float64) - total, 0)
        got = run(way, states)[: way.threads_served]
        np.testing.assert_array_equal(got[..., 3], 0, way.name)
        np.testing.assert_allclose(told("Moments", got)[..., 1], x, rtol=1e-12)


@pytest.mark.parametrize(
    ("means", "wanted"),
    [
        ((np.inf,), np.inf),
        ((-np.inf, -np.inf), -np.inf),
        ((np.inf, -np.inf), np.nan),
        ((np.nan,), np.nan),
        ((np.nan, np.inf), np.nan),
    ],
)
def test_infinite_sums_add_up(means: tuple[float, ...], wanted: float) -> None:
    for way in moments_ways():
        if way.threads < 4:
            continue
        states = np.zeros((BLOCK, way.count, 4), np.float32)
        states[...] = (2, 2e6, 0.01, 3)
        for threads in sets_of(way):
            states[threads[0]] = 0
            for number, mean in enumerate(means):
                states[threads[-1 - 2 * number]] = (1, mean, np.nan, np.nan)
        got = run(way, states)[: way.threads_served]
        np.testing.assert_array_equal(got[..., 1], np.full(got.shape[:2], np.float32(wanted)))
        assert np.isnan(got[..., 3]).all(), way.name


# ---- states of the members of a block group ----------------------------------------------------------------------


def sum_of(kind: str) -> Graph:
    g = GraphBuilder()
    return g.build(g.reduce(g.parameter(f"{kind}[4,6]", "x"), (1,), "add", name="root"))


def largest_with_position(value: str, index: str) -> Graph:
    g = GraphBuilder()
    x = g.parameter(f"{value}[4,6]")
    best = g.arg_max(x, g.iota(f"{index}[4,6]", 1), (1,), name="root")
    return g.build(g.element(best, 0))


def moments() -> Graph:
    return stitched_graph(
        lambda x: (x.mean(0), jnp.square(x - x.mean(0)).mean(0)), np.empty((40, 6), np.float32)
    )


def exchanged(graph: Graph) -> k.Reducer:
    """The reducer of the graph's one reduce."""
    (root,) = (name for name, node in graph.nodes.items() if node.op == "reduce")
    return make_reducer(graph, root, 0)


REDUCERS = {
    "f32": exchanged(sum_of("f32")),
    "f64": exchanged(sum_of("f64")),
    "bf16": exchanged(sum_of("bf16")),
    "s8": exchanged(sum_of("s8")),
    "u64": exchanged(sum_of("u64")),
    "f32 and s32": exchanged(largest_with_position("f32", "s32")),
    "s64 and u8": exchanged(largest_with_position("s64", "u8")),
    "s32 and f64": exchanged(largest_with_position("s32", "f64")),
    "moments": exchanged(moments()),
}


@dataclass(frozen=True)
class Exchange:
    """`parts` blocks of a warp; `members` neighbouring threads share a result and gather its parts.

    meets: a warp gathers the one result for all.
    """

    reducer: k.Reducer
    parts: int
    members: int
    elements_inside: bool = False
    meets: bool = False

    def kernel(self) -> k.Kernel:
        """Block p publishes, for each result, what its threads hold together; every thread stores the total."""
        fields, number = self.reducer.fields, self.reducer.number
        results = 32 // self.members
        area = k.Area(4, results, self.parts, self.reducer.words, self.elements_inside)
        thread, task = of_symbol(Symbol("thread", 32)), of_symbol(Symbol("task", self.parts))
        element, rank = ix.divide(thread, self.members), ix.modulo(thread, self.members)
        place = ix.add(ix.scale(task, 32), thread)
        inputs = [k.Parameter(f"x{i}", d, f"x{i}", False, True) for i, d in enumerate(fields)]
        outputs = [k.Parameter(f"y{i}", d, f"y{i}", True, False) for i, d in enumerate(fields)]
        lanes = (self.members, 1)
        body: list[k.Statement] = [k.States("mine", number, 1)]
        body += [k.Load(f"v{i}", d, f"x{i}", place) for i, d in enumerate(fields)]
        values = tuple(k.Name(f"v{i}") for i, _ in enumerate(fields))
        body += [
            k.Accumulate("mine", ix.ZERO, number, values),
            k.ReduceAcross((k.Part("mine", 1, number, ""),), *lanes),
            k.If((Within(rank, 0, 1),), (k.Publish(area, element, task, "mine", ix.ZERO, number),)),
        ]
        gather: tuple[k.Statement, ...] = (
            k.States("found", number, 1),
            k.Collect(area, element, "found", ix.ZERO, number, self.members, rank),
            k.ReduceAcross((k.Part("found", 1, number, ""),), *lanes),
        )
        slots: tuple[k.Slot, ...] = ()
        if self.meets:
            total = k.Total("found", "total", number, "slot")
            body.append(k.Meeting(self.parts, 0, 1, gather, (total,)))
            size = self.reducer.state_bytes
            slots = (k.Slot("slot", None, number, 1, size, (0, 0), (0, 0), 0),)
        else:
            body += gather
        held = "total" if self.meets else "found"
        body += [
            k.Store(f"y{i}", place, d, k.Field(held, ix.ZERO, i)) for i, d in enumerate(fields)
        ]
        loop = k.TaskLoop(self.parts, True, tuple(body))
        made = k.Kernel(
            name="exchange", parameters=(*inputs, *outputs), scratch=(), reducers=(self.reducer,), slots=slots,
            body=(k.Section(0, "exchange", 0, 1, 1, 32, (loop,)),), grid=self.parts, block=32, shared_bytes=256,
            blocks_per_sm=1, global_barriers=0, block_barriers=0, wide_index=False, pointer_table=False,
            reads_bytes=0, writes_bytes=0, sources=(), block_groups=1, tagged_words=4 + results * self.parts *
            area.words,
        )  # fmt: skip
        return check_kernel(made)

    def draw(self, seed: int) -> list[np.ndarray]:
        """(part, thread) of each field."""
        rng = np.random.default_rng(seed)
        shape = (self.parts, 32)
        if self.reducer.joint:
            states = draw_moments(rng, shape).astype(np.float32)
            return [np.ascontiguousarray(states[..., i]) for i in range(4)]
        return [rng.integers(-50, 50, shape).astype(d.numpy) for d in self.reducer.fields]

    def wanted(self, held: list[np.ndarray]) -> list[np.ndarray]:
        """(result) of each field: over the parts and the members."""
        together = [
            h.reshape(self.parts, -1, self.members).transpose(1, 0, 2).reshape(32 // self.members, -1)
            for h in held
        ]  # fmt: skip
        if self.reducer.joint:
            return [np.stack([total("Moments", s) for s in np.stack(together, -1)])]
        if len(together) == 1:
            return [together[0].sum(-1, dtype=held[0].dtype)]
        values, positions = together  # of equal values the one at the first position
        best = np.lexsort((positions, -values.astype(np.float64)), -1)[:, :1]
        return [np.take_along_axis(f, best, -1)[:, 0] for f in together]


EXCHANGES = {
    f"{name}, {parts} parts, {members} members, {layout}": Exchange(
        REDUCERS[name], parts, members, layout == "elements inside", layout == "meeting"
    )
    for (name, (parts, members, layout)) in [
        *itertools.product(REDUCERS, [(21, 4, "elements inside"), (5, 32, "meeting")]),
        *itertools.product(
            ("f32 and s32", "moments", "u64"),
            [(40, 32, "meeting"), (3, 8, "parts inside"), (7, 1, "parts inside")],
        ),
    ]
}


@pytest.mark.parametrize("name", EXCHANGES)
def test_what_blocks_publish_arrives(name: str) -> None:
    """Also where a thread takes many parts, and in a second launch, whose tag is the next."""
    exchange = EXCHANGES[name]
    kernel = exchange.kernel()
    built = compile_host(emit_cuda(kernel), check=True)
    words = np.zeros(kernel.barrier_words, np.uint32)
    for launch in range(2):
        held = exchange.draw(launch)
        got = [np.empty_like(h) for h in held]
        built.launch(
            "exchange", kernel.grid, 32, [*held, *got, words], shared_bytes=256, cooperative=True,
            order=(Order.FORWARD, Order.RANDOM)[launch], seed=3,
        )  # fmt: skip
        assert words[64] == launch + 1 and words[65] == 0
        if exchange.reducer.joint:
            (wanted,) = exchange.wanted(held)
            assert all(len({row.tobytes() for row in field}) == 1 for field in got), "blocks differ"
            found = told("Moments", np.stack(got, -1))[0]
            repeated = np.repeat(wanted, exchange.members, 0)
            np.testing.assert_allclose(found, repeated, TOLERANCE["Moments"], 1e-6)
            continue
        for mine, wanted in zip(got, exchange.wanted(held), strict=True):
            everywhere = np.broadcast_to(np.repeat(wanted, exchange.members), mine.shape)
            np.testing.assert_array_equal(mine, everywhere)


def test_a_device_compiles_exchanges() -> None:
    for exchange in list(EXCHANGES.values())[::5]:
        (built,) = compile_cuda(emit_cuda(exchange.kernel()), "sm_90").kernels.values()
        assert not built.spill_store_bytes


# ---- on a device -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_compiles_all_ways(kind: str) -> None:
    built = compile_cuda(source(kind), "sm_90").kernels
    assert set(built) == {way.name for way in WAYS.values() if way.kind == kind}
    assert not any(kernel.spill_store_bytes for kernel in built.values())
