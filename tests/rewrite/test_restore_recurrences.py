"""Linear recurrences that programs wrote out: which trees are found, and that the kernels compute what they did."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.directives import parse
from astitch.graph.check import check_graph
from astitch.graph.ir import (
    ArrayType,
    ConstantAttrs,
    DType,
    Graph,
    Literal,
    Node,
    PadAttrs,
    ParameterAttrs,
)
from astitch.graph.reference import run_graph
from astitch.hlo.export import export_nodes
from astitch.hlo_import import import_hlo
from astitch.rewrite.restore_recurrences import restore_recurrences
from astitch.rewrite.simplify import simplify
from astitch.run.host_engine import HostEngine
from astitch.xla.compile_module import compile_for_xla
from tests.ahead_of_time import needs_hook
from tests.hlo_runner import lower, run_xla

Function = Callable[..., Any]
H100 = preset("h100")
RNG = np.random.default_rng(0)
ZERO = Literal.of(np.zeros((), np.float32))


def join(first: Any, second: Any) -> Any:
    (a1, b1), (a2, b2) = first, second
    return a1 * a2, a2 * b1 + b2


def join_otherwise(first: Any, second: Any) -> Any:
    return second[0] * first[0], second[1] + first[1] * second[0]


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape), dtype)


def graph_of(fn: Function, *arguments: Any) -> Graph:
    return simplify(check_graph(import_hlo(lower(fn, *arguments))))


def count_running(graph: Graph) -> int:
    return sum(node.op == "reduce-window" for node in graph)


def count_woven(graph: Graph) -> int:
    """Arrays with zeros between their elements: what is left of trees."""
    return sum(node.op == "pad" and any(node.attrs.interior) for node in graph)  # type: ignore[union-attr]


def gradient(fn: Function) -> Function:
    def total(*arguments: Any) -> Any:
        return (jnp.abs(fn(*arguments)).astype(jnp.float32) ** 2).sum()

    def derive(*arguments: Any) -> Any:
        return jax.grad(total, tuple(range(len(arguments))))(*arguments)

    return derive


def check(
    fn: Function, arguments: tuple[np.ndarray, ...], running: int, tolerance: float = 2e-5
) -> None:
    """So many running reductions stand for all of the program's trees, and its results are as before."""
    graph = graph_of(fn, *arguments)
    found = check_graph(restore_recurrences(graph))
    assert count_woven(graph) and not count_woven(found)
    assert count_running(found) == running
    wanted = jax.tree.leaves(jax.jit(fn)(*arguments))
    for got, want in zip(run_graph(found, arguments), wanted, strict=True):
        assert_near(got, want, tolerance)


def assert_near(got: Any, want: Any, tolerance: float) -> None:
    """Apart by a part of the largest value."""
    wide = np.complex128 if np.iscomplexobj(want) else np.float64
    got, want = np.asarray(got, wide), np.asarray(want, wide)
    assert got.shape == want.shape
    assert np.abs(got - want).max(initial=0) <= tolerance * np.abs(want).max(initial=1)


# ---- what is found -----------------------------------------------------------------------------------------------


def states(x: Any, y: Any) -> Any:
    return jnp.tanh(lax.associative_scan(join, (jax.nn.sigmoid(x), jnp.sin(y)), axis=1)[1])


def backward(x: Any, y: Any) -> Any:
    pair = (jax.nn.sigmoid(x), y)
    return lax.associative_scan(join_otherwise, pair, axis=1, reverse=True)[1] * 2


def from_a_state(x: Any, y: Any) -> Any:
    """The products of all steps carry the state that the sequence begins with."""
    products, h = lax.associative_scan(join, (jax.nn.sigmoid(x), y), axis=1)
    return h + products * y[:, :1]


def one_rate(x: Any, y: Any) -> Any:
    """The same factor at each step."""
    rate = jnp.broadcast_to(jax.nn.sigmoid(x[0, 0]), y.shape)
    return jnp.sin(lax.associative_scan(join, (rate, jnp.cos(y)), axis=1)[1])


def one_number(x: Any, y: Any) -> Any:
    """The powers of the factor are numbers too."""
    return jnp.sin(lax.associative_scan(join, (jnp.full_like(y, 0.9), 0.1 * x * y), axis=1)[1])


def a_rate_for_all_columns(x: Any, y: Any) -> Any:
    rates = jax.nn.sigmoid(x[..., :1])
    return lax.associative_scan(join, (rates, jnp.tanh(y)), axis=1)[1] ** 2


def under_vmap(x: Any, y: Any) -> Any:
    """The factors are those of all sequences: what flows back to them is a sum."""
    rates = jax.nn.sigmoid(x[0])
    return jax.vmap(lambda b: jnp.tanh(lax.associative_scan(join, (rates, b))[1]))(jnp.sin(y))


def complex_states(x: Any, y: Any) -> Any:
    """S5: one factor for each state."""
    rate = jnp.exp(lax.complex(-jnp.exp(x[0, 0]), x[0, 1]))

    def run(b: Any) -> Any:
        return lax.associative_scan(join, (jnp.broadcast_to(rate, b.shape), b))[1]

    return jnp.abs(jax.vmap(run)(lax.complex(jnp.sin(y), y)))


def running_sum(x: Any, y: Any) -> Any:
    return lax.associative_scan(jnp.add, jnp.exp(x), axis=1) * y


def last_state(x: Any, y: Any) -> Any:
    """What flows back is zero but for the last step."""
    return states(x, y)[:, -1] * 2


def mean_state(x: Any, y: Any) -> Any:
    """What flows back is the same at each step."""
    return lax.associative_scan(join, (jax.nn.sigmoid(x), jnp.sin(y)), axis=1)[1].mean(1)


def beside_its_input(x: Any, y: Any) -> Any:
    return lax.associative_scan(join, (jax.nn.sigmoid(x), y), axis=1)[1] + y


def two_of_one_rate(x: Any, y: Any) -> Any:
    rates = jax.nn.sigmoid(x)
    first, second = (
        lax.associative_scan(join, (rates, b), axis=1)[1] for b in (jnp.sin(y), jnp.cos(y))
    )
    return first * second


def half(x: Any, y: Any) -> Any:
    pair = (jax.nn.sigmoid(x).astype(jnp.bfloat16), y.astype(jnp.bfloat16))
    return jnp.tanh(lax.associative_scan(join, pair, axis=1)[1])


FOUND = {
    "states": (states, 1, 2),
    "backward": (backward, 1, 2),
    "from a state": (from_a_state, 2, 4),
    "one rate": (one_rate, 1, 2),
    "one number": (one_number, 1, 2),
    "a rate for all columns": (a_rate_for_all_columns, 1, 2),
    "under vmap": (under_vmap, 1, 2),
    "complex states": (complex_states, 1, 2),
    "running sum": (running_sum, 1, 2),
    "last state": (last_state, 1, 2),
    "mean state": (mean_state, 1, 2),
    "beside its input": (beside_its_input, 1, 2),
    "two of one rate": (two_of_one_rate, 2, 4),
}


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        *itertools.product(FOUND, [8, 37]),
        *(("states", 128), ("complex states", 128), ("one number", 800)),
    ],
)
def test_trees_are_found(name: str, steps: int) -> None:
    fn, running, _ = FOUND[name]
    check(fn, (normal(2, steps, 3), normal(2, steps, 3)), running)


def test_what_flows_back_to_a_factor_of_several_columns_is_a_sum() -> None:
    """Beside dimensions of single elements, which reshapes drop."""
    for factors, added in (
        ((1, 8, 1), (1, 8, 2)),
        ((1, 37, 1), (1, 37, 3)),
        ((1, 8, 1), (2, 8, 1)),
        ((1, 16, 1), (3, 16, 1)),
        ((1, 13, 1), (3, 13, 1)),
    ):
        check(gradient(a_rate_for_all_columns), (normal(*factors), normal(*added)), 2, 1e-4)


@pytest.mark.parametrize(
    ("name", "steps"),
    [*itertools.product(FOUND, [9, 32]), ("states", 100), ("two of one rate", 100)],
)
def test_gradients_are_found(name: str, steps: int) -> None:
    fn, _, running = FOUND[name]
    check(gradient(fn), (normal(2, steps, 3), normal(2, steps, 3)), running, 1e-4)


def shifted_products(x: Any, y: Any) -> Any:
    """What light is left in front of each sample: products of all steps before, each behind a one."""
    kept = jnp.cumprod(1 - jax.nn.sigmoid(x), 1)
    return jnp.concatenate([jnp.ones_like(kept[:, :1]), kept[:, :-1]], 1) * y


def products_of_shifted(x: Any, y: Any) -> Any:
    opaque = jax.nn.sigmoid(x)
    kept = [jnp.ones_like(opaque[:, :1]), 1 - opaque[:, :-1] + 1e-10]
    return jnp.cumprod(jnp.concatenate(kept, 1), 1) * opaque * y


def products_of_padded(x: Any, y: Any) -> Any:
    factors = jnp.pad(jnp.tanh(x)[:, :-1], ((0, 0), (1, 0), (0, 0)), constant_values=1)
    return jnp.cumprod(factors, 1) * y


def products_of_doubled(x: Any, y: Any) -> Any:
    """The first factor is another number."""
    factors = jnp.pad(jnp.tanh(x)[:, 1:], ((0, 0), (1, 0), (0, 0)), constant_values=2)
    return jnp.cumprod(factors, 1) * y


def products_from_the_end(x: Any, y: Any) -> Any:
    kept = lax.cumprod(jnp.cos(x), 1, reverse=True)
    return jnp.pad(kept[:, 1:], ((0, 0), (0, 1), (0, 0)), constant_values=1) * y


def with_what_is_left(x: Any, y: Any) -> Any:
    """The last product is the background's part."""
    return shifted_products(x, y).sum(1) + jnp.cumprod(1 - jax.nn.sigmoid(x), 1)[:, -1] * 0.1


def states_before(x: Any, y: Any) -> Any:
    h = lax.associative_scan(join, (jax.nn.sigmoid(x), jnp.sin(y)), axis=1)[1]
    return jnp.concatenate([jnp.zeros_like(h[:, :1]), h[:, :-1]], 1) * y


SHIFTED = [
    shifted_products,
    products_of_shifted,
    products_of_padded,
    products_of_doubled,
    products_from_the_end,
    states_before,
]


@pytest.mark.parametrize("steps", [9, 32, 100])
@pytest.mark.parametrize("fn", SHIFTED)
def test_gradients_of_exclusive_scans_are_found(fn: Function, steps: int) -> None:
    check(gradient(fn), (normal(2, steps, 3), normal(2, steps, 3)), 2, 1e-4)


def test_gradients_of_light_that_is_left() -> None:
    for shape in ((2, 16, 3), (5, 64, 1), (1, 33, 4)):
        check(gradient(with_what_is_left), (normal(*shape), normal(*shape)), 3, 1e-4)


def turned_under_vmap(x: Any, y: Any) -> Any:
    rates = jax.nn.sigmoid(x[0])

    def run(b: Any) -> Any:
        return lax.associative_scan(join, (rates, b), reverse=True)[1]

    return jax.vmap(run)(jnp.sin(y))


def complex_turned(x: Any, y: Any) -> Any:
    """S5 in both directions, whose factors are the same at each step."""
    rate = jnp.exp(lax.complex(-jnp.exp(x[0, 0]), x[0, 1]))
    b = lax.complex(y, x)
    pair = jnp.broadcast_to(rate, b.shape), b
    both = [lax.associative_scan(join, pair, axis=1, reverse=r)[1] for r in (False, True)]
    return jnp.concatenate(both, -1).real


@needs_hook
@pytest.mark.parametrize("fn", [shifted_products, products_of_shifted, with_what_is_left])
def test_gradients_of_exclusive_scans_as_xla_hands_them_over(fn: Function) -> None:
    """XLA cuts what flows back into steps and moves them; it pads where JAX joined."""
    check_as_handed_over(gradient(fn))


@needs_hook
@pytest.mark.parametrize("fn", [one_rate, backward, turned_under_vmap, complex_states])
def test_trees_as_xla_hands_them_over(fn: Function) -> None:
    """XLA turns slices round in place of arrays, and multiplies factors with a dimension more."""
    check_as_handed_over(fn)
    check_as_handed_over(gradient(fn))


def in_both_directions(x: Any, y: Any) -> Any:
    """What flows back is cut out of one array along two dimensions."""
    pair = jax.nn.sigmoid(x), y
    both = [lax.associative_scan(join, pair, axis=1, reverse=r)[1] for r in (False, True)]
    return jnp.sin(jnp.concatenate(both, -1))


@needs_hook
@pytest.mark.parametrize("fn", [in_both_directions, complex_turned])
def test_both_directions_as_xla_hands_them_over(fn: Function) -> None:
    check_as_handed_over(fn)
    check_as_handed_over(gradient(fn))


def check_as_handed_over(fn: Function) -> None:
    from tests.hook_evaluation import stitch_through_hook

    arguments = (normal(2, 32, 3), normal(2, 32, 3))
    hooked = stitch_through_hook(fn, *arguments)
    graph = simplify(check_graph(import_hlo(hooked.handed)))
    found = restore_recurrences(graph)
    assert count_woven(graph) and not count_woven(found)
    wanted = jax.tree.leaves(jax.jit(fn)(*arguments))
    for got, want in zip(hooked.run(arguments), wanted, strict=True):
        assert_near(got, want, 1e-4)


def test_narrow_floats_are_summed_in_f32() -> None:
    x, y = normal(2, 64, 3), normal(2, 64, 3)
    for fn in (half, gradient(half)):
        found = restore_recurrences(graph_of(fn, x, y))
        assert count_running(found) and not count_woven(found)
        wide = jax.tree.leaves(jax.jit(fn)(*(a.astype(np.float64) for a in (x, y))))
        for got, want in zip(run_graph(found, [x, y]), wide, strict=True):
            assert_near(got, want, 0.05)


def test_bodies_of_loops_with_checkpoints() -> None:
    """The forward loop has a scan, the backward one that of the layer again and what flows back through it."""

    def layers(x: Any, y: Any) -> Any:
        @jax.checkpoint
        def layer(h: Any, w: Any) -> Any:
            return states(h * w, h), None

        return lax.scan(layer, x, y[:2, 0])[0]

    graph = graph_of(gradient(layers), normal(2, 32, 3), normal(2, 32, 3))
    compilation, _ = compile_for_xla(graph, H100, directives=parse("stitch-bodies", ""))
    bodies = [body.compilation.graph for body in compilation.bodies]
    assert sorted(map(count_running, bodies)) == [1, 2]
    assert not any(map(count_woven, bodies))


# ---- what is not -------------------------------------------------------------------------------------------------


def largest(x: Any, y: Any) -> Any:
    """Sums and maxima: associative, but no polynomials."""
    return lax.associative_scan(
        lambda p, q: (p[0] + q[0], jnp.maximum(p[1] + q[0], q[1])), (x, y), axis=1
    )[1]


def turned(x: Any, y: Any) -> Any:
    """a1 * a2 and a1 * b2 + b1: the steps in the other order, to which no state is carried."""
    return lax.associative_scan(lambda p, q: (p[0] * q[0], p[0] * q[1] + p[1]), (x, y), axis=1)[1]


def not_associative(x: Any, y: Any) -> Any:
    return lax.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] - q[1]), (x, y), axis=1)[1]


def whole_states(x: Any, y: Any) -> Any:
    """Fractions are cut off at each step."""

    def step(p: Any, q: Any) -> Any:
        return p[0] * q[0], (q[0] * p[1]).astype(jnp.int32).astype(jnp.float32) + q[1]

    return lax.associative_scan(step, (x * 3, y), axis=1)[1]


def whole_factors(x: Any, y: Any) -> Any:
    """Their products wrap around."""

    def step(p: Any, q: Any) -> Any:
        return p[0] * q[0], q[0].astype(jnp.float32) * p[1] + q[1]

    return lax.associative_scan(step, ((x * 9).astype(jnp.int8), y), axis=1)[1]


def turned_states(x: Any, y: Any) -> Any:
    """By a complex number at each level."""

    def step(p: Any, q: Any) -> Any:
        return p[0] * q[0], q[0] * p[1] * (1 + 1j) + q[1]

    return lax.associative_scan(step, (x + 0j, y + 1j), axis=1)[1]


OTHERS = [largest, turned, not_associative, whole_states, whole_factors, turned_states]


def skip_a_level(x: Any, y: Any) -> Any:
    """A tree of two levels, the second with another number than the square of the first."""
    pairs = 0.9 * y[:, ::2] + y[:, 1::2]
    fours = 0.8 * pairs[:, ::2] + pairs[:, 1::2]
    back = jnp.stack([fours, 0.9 * fours], 2).reshape(y.shape[0], -1, y.shape[2])
    return jnp.stack([back, pairs], 2).reshape(y.shape) * x


def test_numbers_that_are_no_powers_of_one_stay() -> None:
    graph = graph_of(skip_a_level, *(normal(2, 16, 3) for _ in "xy"))
    assert restore_recurrences(graph) is graph


@pytest.mark.parametrize("fn", OTHERS)
def test_other_trees_stay(fn: Function) -> None:
    graph = graph_of(fn, normal(2, 32, 3), normal(2, 32, 3))
    assert restore_recurrences(graph) is graph


def test_a_factor_repeated_over_more_steps_than_the_tree_has() -> None:
    def fn(x: Any, y: Any) -> Any:
        factor = jnp.broadcast_to(x[:1, :1], (2, 64, 3))
        cut = (lax.pad(y, 0.0, ((0, 0, 0), (0, 1, 1), (0, 0, 0))) * factor)[:, :32]
        even = lax.pad(cut[:, ::2], 0.0, ((0, 0, 0), (0, 1, 1), (0, 0, 0)))
        return even + lax.pad(cut[:, 1::2], 0.0, ((0, 0, 0), (1, 0, 1), (0, 0, 0)))

    graph = graph_of(fn, normal(2, 32, 3), normal(2, 32, 3))
    assert restore_recurrences(graph) is graph


def test_long_sums_of_pads_take_little_time() -> None:
    """Each sum is looked at once, and no order is made anew."""
    array = ArrayType(DType.F32, (16,))
    nodes = {"x": Node("x", "parameter", ArrayType(DType.F32, (8,)), (), ParameterAttrs(0))}
    nodes["zero"] = Node("zero", "constant", ArrayType(DType.F32, ()), (), ConstantAttrs(ZERO))
    for low in range(2):
        attrs = PadAttrs((low,), (1 - low,), (1,))
        nodes[f"sum{low}"] = Node(f"sum{low}", "pad", array, ("x", "zero"), attrs)
    for i in range(2, 40):
        nodes[f"sum{i}"] = Node(f"sum{i}", "add", array, (f"sum{i - 1}", f"sum{i - 2}"))
    graph = check_graph(Graph("sums", nodes, ("x",), ("sum39",)))
    assert restore_recurrences(graph) is graph


def test_a_tree_that_others_read_stays() -> None:
    """Its products would be computed all the same."""

    def fn(x: Any, y: Any) -> Any:
        a, b = jax.nn.sigmoid(x), jnp.sin(y)
        pairs = a[:, :-1:2] * a[:, 1::2]
        return lax.associative_scan(join, (a, b), axis=1)[1], jnp.tanh(pairs)

    graph = graph_of(fn, normal(2, 32, 3), normal(2, 32, 3))
    assert restore_recurrences(graph) is graph


def test_a_term_that_is_added_twice() -> None:
    def fn(x: Any, y: Any) -> Any:
        b = jnp.tanh(y)
        h = lax.associative_scan(join, (jax.nn.sigmoid(x), b), axis=1)[1]
        edge = lax.pad(b[:, 1:6], 0.0, ((0, 0, 0), (3, 9, 0), (0, 0, 0)))
        return h + edge + edge

    check(fn, (normal(2, 17, 3), normal(2, 17, 3)), 1)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("first", [np.nan, np.inf])
def test_the_first_factor_may_be_no_number(first: float, reverse: bool) -> None:
    """A ratio of neighbours, of which the first has none before it."""

    def fn(x: Any, y: Any) -> Any:
        factors = jax.nn.sigmoid(x).at[:, -1 if reverse else 0].set(first)
        return lax.associative_scan(join, (factors, y), axis=1, reverse=reverse)[1] * 2

    arguments = normal(2, 40, 3), normal(2, 40, 3)
    check(fn, arguments, 1)
    compilation = compile_graph(graph_of(fn, *arguments), gpu=H100)
    (got,) = HostEngine(compilation.program, check=True).run(list(arguments))
    assert_near(got, jax.jit(fn)(*arguments), 1e-5)


# ---- what kernels make of them -----------------------------------------------------------------------------------


SCANNED = [((4, 64, 32), 1), ((3, 300), 1), ((1, 1500, 18), 1), ((700, 5), 0), ((2, 3, 4, 33), 2)]


@pytest.mark.parametrize(
    ("shape", "axis", "dtype", "reverse"),
    [
        *((*scanned, np.float32, reverse) for scanned in SCANNED for reverse in (False, True)),
        *((*scanned, np.float64, number % 2 > 0) for number, scanned in enumerate(SCANNED)),
        *((*scanned, np.complex64, number % 2 == 0) for number, scanned in enumerate(SCANNED)),
    ],
)
def test_kernels_scan(shape: tuple[int, ...], axis: int, dtype: Any, reverse: bool) -> None:
    """One kernel, in the checked emulation; and what XLA computes where it is left a recurrence."""

    def fn(x: jax.Array, y: jax.Array) -> jax.Array:
        pair = (jnp.exp(-jnp.abs(x)), y)
        return lax.associative_scan(join, pair, axis=axis, reverse=reverse)[1] * 2

    with jax.enable_x64(True):
        x, y = (
            normal(*shape).astype(np.float64 if dtype == np.float64 else np.float32),
            normal(*shape).astype(dtype),
        )
        graph = graph_of(fn, x, y.real if dtype != np.complex64 else y)
        want = np.asarray(jax.jit(fn)(x, y))
        compilation = compile_graph(graph, gpu=H100)
        assert len(compilation.program.kernels) == 1 and not compilation.program.outside
        (got,) = HostEngine(compilation.program, check=True).run([x, y])
        assert_near(got, want, 1e-12 if dtype == np.float64 else 1e-5)
        restored = restore_recurrences(graph)
        names = [node.name for node in restored if node.op != "parameter"]
        exported = export_nodes(restored, names, restored.outputs)
        (by_xla,) = run_xla(exported.hlo, [{"x": x, "y": y}[n[0]] for n in exported.operands])
        assert_near(by_xla, want, 1e-12 if dtype == np.float64 else 1e-5)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_recurrence_and_its_gradient(data: st.DataObject) -> None:
    draw = data.draw
    rank, steps = draw(st.integers(1, 3)), draw(st.integers(8, 70))
    axis = draw(st.integers(0, rank - 1))
    shape = [steps if d == axis else draw(st.integers(1, 4)) for d in range(rank)]
    factors = [n if d == axis or draw(st.booleans()) else 1 for d, n in enumerate(shape)]
    reverse, derive = draw(st.booleans()), draw(st.booleans())
    combine = draw(st.sampled_from([join, join_otherwise]))

    def fn(x: Any, y: Any) -> Any:
        pair = (jax.nn.sigmoid(x), jnp.tanh(y))
        return jnp.sin(lax.associative_scan(combine, pair, axis=axis, reverse=reverse)[1])

    arguments = normal(*factors), normal(*shape)
    check(gradient(fn) if derive else fn, arguments, 1 + derive, 1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((2, 1024, 128, 16), 1),
        ((64, 4096), 1),
        ((1, 30_001), 1),
        ((777, 5), 0),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_scans_and_gradients_on_a_gpu(shape: tuple[int, ...], axis: int, dtype: Any) -> None:
    import astitch
    from astitch.api.transformation import MORE_MEMORY

    def fn(x: Any, y: Any) -> Any:
        return jnp.sin(lax.associative_scan(join, (jax.nn.sigmoid(x), y), axis=axis)[1])

    def step_by_step(x: Any, y: Any) -> Any:
        steps = (jnp.moveaxis(jax.nn.sigmoid(x), axis, 0), jnp.moveaxis(y, axis, 0))

        def step(h: Any, pair: Any) -> Any:
            h = pair[0] * h + pair[1]
            return h, h

        return jnp.sin(jnp.moveaxis(lax.scan(step, jnp.zeros_like(steps[1][0]), steps)[1], 0, axis))

    x, y = normal(*shape), normal(*shape).astype(dtype)
    for derive in (lambda f: f, gradient):
        with jax.enable_x64(True):
            wide = (x.astype(np.float64), y.astype(np.result_type(y, np.float64)))
            want = jax.tree.leaves(jax.jit(derive(step_by_step))(*wide))
        with astitch.enabled():
            got = jax.tree.leaves(jax.jit(derive(fn))(x, y))
        entry = astitch.report().programs[-1]
        may_stay = dtype is np.complex64 and derive is gradient
        assert entry.kernels or (may_stay and entry.reason == MORE_MEMORY)
        for one, other in zip(got, want, strict=True):
            assert_near(one, other, 1e-4)
