"""Random graphs through the whole compiler: what the emulated kernels give is what the reference gives.

Two kinds: graphs of any op on small arrays (strategies.py), and row-wise and column-wise graphs on
large ones, whose plans use every mapping and scheme.  A graph that failed once is written out below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import pytest
from graphs import GraphBuilder
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from strategies import random_arguments, random_graphs

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.graph.ir import ArrayType, DType, Graph
from astitch.graph.reference import run_graph
from astitch.run.host_engine import HostEngine
from astitch.show.compilation import Compilation

T = TypeVar("T")

HOST = preset("host")

MAX_WIDE_ELEMENTS = 200_000
"""No value of a wide graph has more."""

_EPSILON = {DType.F64: 2.0**-52, DType.F32: 2.0**-23, DType.F16: 2.0**-10, DType.BF16: 2.0**-7}


# ---- wide graphs ---------------------------------------------------------------------------------


@st.composite
def wide_graphs(draw: st.DrawFn, max_ops: int = 14) -> Graph:
    """Matrices up to 3000 a side with row, column and whole reduces, broadcasts back, products.

    Every value stays within a few units: sums are divided by their count.
    """
    b = GraphBuilder("wide")
    dtype = draw(st.sampled_from((DType.F32, DType.F32, DType.F32, DType.BF16, DType.F16)))
    rows, columns = draw(_extents())
    split = draw(st.sampled_from([n for n in (1, 2, 3, 4, 5, 7, 8, 16) if columns % n == 0]))
    full = (rows, columns) if draw(st.booleans()) else (rows, split, columns // split)
    values = [b.parameter(ArrayType(dtype, full)) for _ in range(draw(st.integers(1, 3)))]
    integers: list[str] = []

    def choose(options: Sequence[T]) -> T:
        return options[draw(st.integers(0, len(options) - 1))]

    def of_shape(shape: tuple[int, ...]) -> list[str]:
        return [v for v in values if b.shape(v) == shape and b.array(v).dtype is dtype]

    def bring_to(x: str, shape: tuple[int, ...]) -> str | None:
        """x broadcast to `shape`, its dimensions matched in order; None where they do not fit."""
        kept, start = [], 0
        for extent in b.shape(x):
            found = [d for d in range(start, len(shape)) if shape[d] == extent]
            if not found:
                return None
            kept.append(choose(found))
            start = kept[-1] + 1
        return b.broadcast(x, shape, kept)

    def mean(x: str, dimensions: Sequence[int]) -> str:
        total = b.reduce(x, dimensions, "add")
        count = max(1, math.prod(b.shape(x)[d] for d in dimensions))
        return b.same("multiply", total, b.splat(1.0 / count, str(b.array(total))))

    def add_reduce() -> None:
        x = choose([v for v in values if b.shape(v)] or values)
        dimensions = [d for d in range(len(b.shape(x))) if draw(st.booleans())]
        op = choose(("add", "add", "maximum", "minimum"))
        values.append(mean(x, dimensions) if op == "add" else b.reduce(x, dimensions, op))

    def add_binary() -> None:
        x = choose(values)
        y = bring_to(choose(values), b.shape(x))
        if y is None:
            y = choose(of_shape(b.shape(x)))
        op = choose(("add", "subtract", "multiply", "maximum"))
        z = b.same(op, x, y)
        low, high = (b.splat(bound, str(b.array(z))) for bound in (-4.0, 4.0))
        values.append(b.same("clamp", low, z, high))

    def add_unary() -> None:
        x = choose(values)
        values.append(b.same(choose(("tanh", "negate", "abs", "logistic", "exponential")), x))
        if b.nodes[values[-1]].op == "exponential":
            values[-1] = b.same("tanh", values[-1])

    def add_reshape() -> None:
        x = choose(values)
        size = math.prod(b.shape(x))
        options = [(rows, columns), (columns, rows), (size,), (rows, split, columns // split)]
        options += [(rows * split, columns // split), (1, size), (size, 1)]
        values.append(b.reshape(x, choose([o for o in options if math.prod(o) == size])))

    def add_transpose() -> None:
        x = choose(values)
        values.append(b.transpose(x, draw(st.permutations(range(len(b.shape(x)))))))

    def add_slice() -> None:
        x = choose(values)
        limits = [draw(st.integers(max(1, n // 2), n)) if n else 0 for n in b.shape(x)]
        starts = [draw(st.integers(0, n // 2)) for n in limits]
        strides = [choose((1, 1, 1, 2)) for _ in limits]
        values.append(b.slice(x, starts, limits, strides))

    def add_parameter() -> None:
        kind = choose((full, (columns,), (rows,)))
        values.append(b.parameter(ArrayType(dtype, kind)))

    def add_concatenate() -> None:
        x = choose(values)
        if b.shape(x) and math.prod(b.shape(x)) * 2 <= MAX_WIDE_ELEMENTS:
            d = draw(st.integers(0, len(b.shape(x)) - 1))
            values.append(b.concatenate([x, choose(of_shape(b.shape(x)))], d))

    def add_pad() -> None:
        x = choose(values)
        low = [choose((0, 0, 1, 5, -1)) if n > 2 else 0 for n in b.shape(x)]
        high = [choose((0, 0, 2, -1)) if n > 2 else 0 for n in b.shape(x)]
        interior = [choose((0, 0, 0, 1)) if n <= 256 else 0 for n in b.shape(x)]
        padded = b.pad(x, b.constant(0.5, dtype.value), low, high, interior)
        if math.prod(b.shape(padded)) <= MAX_WIDE_ELEMENTS:
            values.append(padded)

    def add_reverse() -> None:
        x = choose(values)
        values.append(b.reverse(x, [d for d in range(len(b.shape(x))) if draw(st.booleans())]))

    def add_arg_max() -> None:
        """Of an argument: computed values may tie in one implementation and not in the other."""
        x = choose([v for v in values if v in b.parameters])
        d = draw(st.integers(0, len(b.shape(x)) - 1))
        positions = b.iota(str(ArrayType(DType.S32, b.shape(x))), d)
        both = b.arg_max(x, positions, [d])
        values.append(b.element(both, 0))
        integers.append(b.element(both, 1))

    def add_product() -> None:
        """What stays outside of every kernel, so that there are several of them."""
        x = choose(values)
        if len(b.shape(x)) != 2 or math.prod(b.shape(x)) > 20_000:
            return
        y = b.parameter(ArrayType(dtype, (b.shape(x)[1], draw(st.integers(1, 40)))))
        product = b.dot(x, y, (1,), (0,))
        scale = b.splat(1.0 / max(1, 4 * b.shape(x)[1]), str(b.array(product)))
        values.append(b.same("multiply", product, scale))

    adders = (
        *(add_reduce, add_reduce, add_reduce, add_binary, add_binary, add_binary, add_unary),
        *(add_reshape, add_transpose, add_slice, add_parameter, add_concatenate),
        *(add_pad, add_reverse, add_arg_max, add_product),
    )
    for _ in range(draw(st.integers(1, max_ops))):
        choose(adders)()
    more = [choose(values) for _ in range(draw(st.integers(0, 3)))]
    return b.build(values[-1], *more, *integers)


@st.composite
def _extents(draw: st.DrawFn) -> tuple[int, int]:
    """Rows and columns, short and long, odd and even."""
    usual = st.sampled_from(
        (1, 2, 3, 5, 8, 16, 31, 32, 33, 64, 100, 127, 256, 257, 512, 1000, 1024)
    )
    side = st.one_of(usual, st.integers(1, 3000), st.sampled_from((2048, 2999, 3000)))
    rows = draw(side)
    columns = min(draw(side), MAX_WIDE_ELEMENTS // rows)
    return rows, columns


# ---- the comparison ------------------------------------------------------------------------------


def assert_emulated_is_reference(graph: Graph, drawn: int, *, check: bool) -> Compilation:
    """Compiles for the host, runs, compares: integers to the bit, floats to their tolerance."""
    compiled = compile_graph(graph, HOST)
    arguments = random_arguments(graph, drawn)
    with np.errstate(all="ignore"):
        got = HostEngine(compiled.program, check=check).run(arguments)
        want = run_graph(graph, arguments)
    epsilon = max(
        [
            _EPSILON[t.dtype]
            for n in graph
            if isinstance(t := n.type, ArrayType) and t.dtype in _EPSILON
        ],
        default=0.0,
    )
    for number, (g, w) in enumerate(zip(got, want, strict=True)):
        assert g.shape == w.shape and g.dtype == w.dtype, number
        if DType.of(w.dtype) not in _EPSILON:
            np.testing.assert_array_equal(g, w, err_msg=f"result {number}")
            continue
        a, b = g.astype(np.float64), w.astype(np.float64)
        finite = np.isfinite(b)
        largest = max(1.0, float(np.abs(b[finite]).max(initial=0.0)))
        np.testing.assert_allclose(
            a, b, rtol=0.0, atol=64 * epsilon * largest, err_msg=f"result {number}"
        )
    return compiled


# ---- graphs that failed once ---------------------------------------------------------------------


def reverse_of_a_reshape() -> Graph:
    """A quotient whose dividend is negative where the constant is split off it."""
    b = GraphBuilder()
    return b.build(b.reverse(b.reshape(b.parameter("u16[8,6,8]"), (48, 8)), (0, 1)))


def sum_of_column_minima() -> Graph:
    """A value without rows in a loop whose threads have several rows each: it was counted 4 times."""
    b = GraphBuilder()
    x = b.parameter("f32[1062,24]")
    return b.build(b.reduce(b.reduce(x, (0,), "minimum"), (0,), "add"))


def reduce_of_a_reduce_with_one_row_of_partials() -> Graph:
    """The loop that combines the partials has one row, and so no index of rows."""
    b = GraphBuilder()
    x = b.parameter("bf16[2,4,321]")
    return b.build(b.reduce(b.reduce(x, (1,), "maximum"), (0,), "maximum"))


FAILED_ONCE = (
    reverse_of_a_reshape,
    sum_of_column_minima,
    reduce_of_a_reduce_with_one_row_of_partials,
)


@pytest.mark.parametrize("make", FAILED_ONCE)
def test_graphs_that_failed_once(make: Callable[[], Graph]) -> None:
    assert_emulated_is_reference(make(), 0, check=True)


# ---- random graphs -------------------------------------------------------------------------------


def program_text(compiled: Compilation) -> str:
    """Everything an engine reads of a program."""
    return "\n".join([*(k.source for k in compiled.program.kernels), repr(compiled.program)])


def run_examples(test: Callable[..., object], part: int, count: int, *drawn: Any) -> None:
    """Runs `test` on `count` examples that only `part` decides.

    Examples of one run resemble each other, so there are several runs of few.
    """
    chosen = settings(
        max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    seed(part)(chosen(given(*drawn)(test)))()


SEEDS = st.integers(0, 999)


@pytest.mark.parametrize("part", range(8))
def test_random_graphs(part: int) -> None:
    def test(graph: Graph, arguments: int) -> None:
        assert_emulated_is_reference(graph, arguments, check=False)

    run_examples(test, part, 30, random_graphs(16), SEEDS)


@pytest.mark.parametrize("part", range(3))
def test_random_graphs_checked(part: int) -> None:
    def test(graph: Graph, arguments: int) -> None:
        assert_emulated_is_reference(graph, arguments, check=True)

    run_examples(test, part, 12, random_graphs(12), SEEDS)


@pytest.mark.parametrize("part", range(8))
def test_wide_graphs(part: int) -> None:
    def test(graph: Graph, arguments: int) -> None:
        assert_emulated_is_reference(graph, arguments, check=False)

    run_examples(test, part, 15, wide_graphs(), SEEDS)


@pytest.mark.parametrize("part", range(3))
def test_wide_graphs_checked(part: int) -> None:
    def test(graph: Graph, arguments: int) -> None:
        assert_emulated_is_reference(graph, arguments, check=True)

    run_examples(test, part, 10, wide_graphs(10), SEEDS)


@pytest.mark.parametrize("part", range(4))
def test_compiling_twice_gives_the_same_bytes(part: int) -> None:
    def test(graph: Graph) -> None:
        assert program_text(compile_graph(graph, HOST)) == program_text(compile_graph(graph, HOST))

    run_examples(test, part, 25, st.one_of(random_graphs(16), wide_graphs()))
