"""astitch.jit: the same answers as jax.jit, one compilation a signature, and errors that say what is wrong."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import astitch
import astitch.compile
from astitch.api import engines, inside_xla
from astitch.api.engines import NO_GPU, choose_engine
from astitch.api.inside_xla import NO_ROOM
from astitch.device.gpu import preset
from astitch.errors import (
    ArgumentMismatch,
    EngineUnavailable,
    IllegalProduct,
    InvalidOption,
    UnknownOption,
    UnsupportedOp,
)

jit_module = sys.modules["astitch.jit"]  # the attribute of the package is the function

pytestmark = pytest.mark.usefixtures("host_engine")

X = jnp.arange(12.0).reshape(3, 4)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the programs compiled, one entry a compilation."""
    compiled = []
    original = astitch.compile.compile_hlo

    def count(data: bytes | str, **options: Any) -> astitch.compile.Compilation:
        compilation = original(data, **options)
        compiled.append(compilation.program.name)
        return compilation

    monkeypatch.setattr(astitch.compile, "compile_hlo", count)
    return compiled


def assert_same(got: Any, want: Any) -> None:
    """The same tree of JAX arrays of the same types, values within rounding."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert isinstance(a, jax.Array)
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)


class Layer(NamedTuple):
    weight: jax.Array
    bias: jax.Array


# ---- calls -----------------------------------------------------------------------------------------------------


def test_trees_of_arguments_and_results() -> None:
    def fn(layer: Layer, extra: dict[str, Any]) -> dict[str, Any]:
        hidden = extra["x"] @ layer.weight + layer.bias
        return {"soft": jax.nn.softmax(hidden), "rest": (Layer(hidden, layer.bias), None)}

    layer = Layer(jnp.ones((4, 5)), jnp.arange(5.0))
    assert_same(astitch.jit(fn)(layer, {"x": X}), jax.jit(fn)(layer, {"x": X}))


def test_positions_and_names_are_arguments_alike() -> None:
    @astitch.jit
    def fn(x: jax.Array, y: jax.Array = X, *, scale: Any = 1.0) -> jax.Array:
        """Says what it does."""
        return x * scale + y

    assert_same(fn(X), X + X)
    assert_same(fn(X, y=2 * X), 3 * X)
    assert_same(fn(y=X, x=X, scale=jnp.float32(5)), 6 * X)
    assert (fn.__name__, fn.__doc__) == ("fn", "Says what it does.")


@pytest.mark.parametrize(
    "array",
    [np.float64(3.5), 3, 2.5, True, np.arange(4), np.ones((2, 3), np.float16), np.float32(1)],
    ids=repr,
)
def test_numbers_and_numpy_arrays_get_the_types_jax_gives_them(array: Any) -> None:
    def fn(x: Any) -> Any:
        return x + x, jnp.exp(x)

    assert_same(astitch.jit(fn)(array), jax.jit(fn)(array))


def test_arguments_that_are_not_used_and_results_that_are_not_computed() -> None:
    fn = astitch.jit(lambda x, unused, y: (y, x, jnp.float32(7), y))
    assert_same(fn(X, 2 * X, X[0]), (X[0], X, jnp.float32(7), X[0]))


def test_derivatives_of_integers_have_no_values() -> None:
    fn = jax.grad(lambda x: jnp.float32(2) * x.sum(), allow_int=True)
    got, want = astitch.jit(fn)(jnp.arange(3)), jax.jit(fn)(jnp.arange(3))
    assert (got.dtype, got.shape) == (want.dtype, want.shape) == (jax.dtypes.float0, (3,))


def test_values_from_outside_are_constants() -> None:
    table = jnp.arange(4.0)
    assert_same(astitch.jit(lambda x: x * table)(X), X * table)


needs_mulhi = pytest.mark.skipif(not hasattr(jax.lax, "mulhi"), reason="JAX before 0.11")


@needs_mulhi
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_upper_halves_of_products_in_kernels_and_in_loops_of_xla(dtype: str) -> None:
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    x, y = rng.integers(limits.min, limits.max, (2, 300), np.dtype(dtype), endpoint=True)
    x[:3], y[:3] = limits.min, [limits.min, limits.max, 1]

    def in_loop(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda _, x: jax.lax.mulhi(x, y) ^ x, x)

    def upper(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """By Python's integers: XLA of JAX 0.10 has it not in fusions for the CPU."""
        halves = [int(a) * int(b) >> limits.bits for a, b in zip(x, y, strict=True)]
        return np.array(halves, dtype)

    with jax.enable_x64(True):
        np.testing.assert_array_equal(astitch.jit(jax.lax.mulhi, strict=True)(x, y), upper(x, y))
        got, want = astitch.jit(in_loop)(x, y), x
        for _ in range(3):
            want = upper(want, y) ^ want
        np.testing.assert_array_equal(got, want)


@needs_mulhi
def test_keys_of_philox_are_made_in_kernels() -> None:
    def noise(x: jax.Array) -> jax.Array:
        return jnp.tanh(x) + jax.random.uniform(jax.random.key(3, impl="philox4x32"), x.shape)

    stitched = astitch.jit(noise, strict=True)
    assert_same(stitched(X), jax.jit(noise)(X))
    assert not stitched.lower(X).compile().program.outside


def test_random_keys_go_in_and_out() -> None:
    def fn(key: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        key, other = jax.random.split(key)
        return key, jax.random.bernoulli(other, 0.5, x.shape) * x

    key, dropped = astitch.jit(fn)(jax.random.key(3), X)
    want_key, want = jax.jit(fn)(jax.random.key(3), X)
    assert key.dtype == want_key.dtype
    assert_same(jax.random.key_data(key), jax.random.key_data(want_key))
    assert_same(dropped, want)


def test_64_bits_where_jax_has_them(compilations: list[str]) -> None:
    fn = astitch.jit(lambda x: x * 2)
    assert fn(np.float64(0.1)).dtype == jnp.float32
    with jax.enable_x64(True):
        assert fn(np.float64(0.1)).dtype == jnp.float64
        assert float(fn(np.float64(0.1))) == 0.2
    assert len(compilations) == 2


def test_methods() -> None:
    class Model:
        @partial(astitch.jit, static_argnums=0)
        def double(self, x: jax.Array) -> jax.Array:
            return x * 2

    assert_same(Model().double(X), X * 2)


def test_donated_arrays_stay_valid() -> None:
    x = X + 1
    fn = astitch.jit(lambda x: x * 2, donate_argnums=0)
    assert_same(fn(x), x * 2)


# ---- static arguments ------------------------------------------------------------------------------------------


def power(x: jax.Array, n: int, flag: bool = False) -> jax.Array:
    return -(x**n) if flag else x**n


@pytest.mark.parametrize(
    ("options", "args", "kwargs"),
    [
        ({"static_argnums": (1, 2)}, (3, True), {}),
        ({"static_argnums": (1, 2)}, (3,), {"flag": True}),
        ({"static_argnums": (-1, -2)}, (3, True), {}),  # from the end of what is passed, as in JAX
        ({"static_argnames": ("n", "flag")}, (3, True), {}),
        ({"static_argnames": ("n", "flag")}, (), {"n": 2}),
        ({"static_argnums": 1, "static_argnames": "flag"}, (3,), {"flag": True}),
    ],
    ids=str,
)
def test_static_by_number_and_by_name(
    options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    by_astitch, by_jax = astitch.jit(power, **options), jax.jit(power, **options)
    assert_same(by_astitch(X, *args, **kwargs), by_jax(X, *args, **kwargs))


def test_static_values_are_told_apart_by_type(compilations: list[str]) -> None:
    fn = astitch.jit(lambda x, n: x * n if isinstance(n, float) else x + n, static_argnums=1)
    assert_same(fn(X, 2), X + 2)
    assert_same(fn(X, 2.0), X * 2)
    assert_same(fn(X, 2), X + 2)
    assert len(compilations) == 2


# ---- the cache -------------------------------------------------------------------------------------------------


def test_one_compilation_a_signature(compilations: list[str]) -> None:
    fn = astitch.jit(lambda x, y: x + y)
    calls: list[tuple[Any, Any]] = [
        (X, X),
        (X[:2], X[:2]),  # another shape
        (X.astype(jnp.int32), X),  # another dtype
        (X, 1.0),  # weakly typed
        (X, jnp.float32(1.0)),  # not weakly typed
    ]
    for _ in range(2):
        for x, y in calls:
            assert_same(fn(x, y), x + y)
    assert len(compilations) == len(calls)
    fn.clear_cache()
    fn(X, X)
    assert len(compilations) == len(calls) + 1


def test_another_tree_is_another_signature(compilations: list[str]) -> None:
    fn = astitch.jit(lambda tree: jax.tree.leaves(tree)[0] * 2)
    assert_same(fn([X]), X * 2)
    assert_same(fn((X,)), X * 2)
    assert len(compilations) == 2


def test_threads_share_one_compilation(compilations: list[str]) -> None:
    fn = astitch.jit(lambda x: jnp.tanh(x) + 1)
    start = threading.Barrier(4)

    def call(_: int) -> jax.Array:
        start.wait()
        return fn(X)

    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(call, range(4)):
            assert_same(result, jnp.tanh(X) + 1)
    assert len(compilations) == 1


def test_a_failed_compilation_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(data: bytes, **_: Any) -> None:
        raise InvalidOption("refused")

    fn = astitch.jit(lambda x: x + 1)
    with monkeypatch.context() as patch:
        patch.setattr(astitch.compile, "compile_hlo", refuse)
        with pytest.raises(InvalidOption, match="refused"):
            fn(X)
    assert_same(fn(X), X + 1)


# ---- ahead of time ---------------------------------------------------------------------------------------------


def test_lower_and_compile_from_shapes() -> None:
    fn = astitch.jit(power, static_argnames="n")
    lowered = fn.lower(jax.ShapeDtypeStruct((3, 4), jnp.float32), n=2)
    assert "module @jit_power" in lowered.as_text()
    assert "HloModule jit_power" in lowered.as_text("hlo")
    assert [lowered.graph[p].shape for p in lowered.graph.parameters] == [(3, 4)]
    compiled = lowered.compile()
    assert_same(compiled(X), X**2)


def test_a_compiled_function_shows_what_it_is() -> None:
    compiled = astitch.jit(jax.nn.softmax).lower(X).compile()
    (kernel,) = compiled.program.kernels
    assert kernel.name in compiled.explain()
    assert_same(compiled(X), jax.nn.softmax(X))


def test_a_compiled_function_refuses_other_types() -> None:
    compiled = astitch.jit(lambda p, y: p["w"] + y).lower({"w": X}, X).compile()
    with pytest.raises(ArgumentMismatch) as caught:
        compiled({"w": X[:2]}, X.astype(jnp.int32))
    assert str(caught.value) == (
        "Argument types differ from the types for which this computation was compiled.\n"
        "  args[0][0]['w']: float32[3,4] was compiled for, float32[2,4] was given\n"
        "  args[0][1]: float32[3,4] was compiled for, int32[3,4] was given\n"
        "  convert the arguments, or lower and compile again for these types"
    )
    assert isinstance(caught.value, TypeError)


def test_a_compiled_function_refuses_another_structure() -> None:
    compiled = astitch.jit(lambda p, y: p["w"] + y).lower({"w": X}, X).compile()
    with pytest.raises(
        ArgumentMismatch, match="does not match the input pytree it was called with"
    ):
        compiled({"v": X}, X)


@pytest.mark.parametrize("engine", ["host", "xla"])
def test_stages_say_of_arguments_and_results_what_jax_says(
    engine: str, request: pytest.FixtureRequest
) -> None:
    if engine == "xla":
        request.getfixturevalue("_through_xla")
    options: dict[str, Any] = {"static_argnames": "n", "donate_argnums": 0, "keep_unused": True}
    layer, x = Layer(X, X[0]), jax.ShapeDtypeStruct((3, 4), jnp.float32)

    def fn(x: jax.Array, layer: Layer, n: int) -> dict[str, Any]:
        return {"y": x * layer.weight + n, "z": [layer.bias, 2.0]}

    ours = astitch.jit(fn, **options).lower(x, layer=layer, n=3)
    jaxs = jax.jit(fn, **options).lower(x, layer=layer, n=3)
    for stage, same in [(ours, jaxs), (ours.compile(), jaxs.compile())]:
        for name in ("in_tree", "out_tree", "args_info", "donate_argnums"):
            assert getattr(stage, name) == getattr(same, name), name
        types = [
            jax.tree.map(lambda type_: (type_.shape, type_.dtype), s.out_info)
            for s in (stage, same)
        ]
        assert types[0] == types[1]
        assert stage.as_text()
    assert "stablehlo" in str(ours.compiler_ir())
    assert ours.compiler_ir("hlo").as_hlo_text() == ours.as_text("hlo")
    assert ours.cost_analysis()["flops"] > 0


def test_shapes_and_traces_are_jax_s(compilations: list[str]) -> None:
    fn = astitch.jit(power, static_argnums=1)
    assert fn.eval_shape(X, 2) == jax.eval_shape(lambda x: power(x, 2), X)
    assert str(fn.trace(X, 2).jaxpr) == str(jax.jit(power, static_argnums=1).trace(X, 2).jaxpr)
    assert not compilations


@pytest.mark.parametrize("engine", ["host", "xla"])
def test_a_function_is_its_own_copy(engine: str, request: pytest.FixtureRequest) -> None:
    if engine == "xla":
        request.getfixturevalue("_through_xla")
    fn = astitch.jit(lambda x: x + 1)
    for _ in range(2):
        assert copy.copy(fn) is fn
        assert copy.deepcopy({"layer": [fn, 3]})["layer"][0] is fn
        assert_same(fn(X), X + 1)


# ---- errors as jax.jit's ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (("text",), {}),
        ((object(),), {}),
        ((X, X), {}),
        ((), {}),
        ((X,), {"z": 1}),
        ((jax.ShapeDtypeStruct((3,), jnp.float32),), {}),
        ((2**31,), {}),
    ],
    ids=["text", "object", "too many", "too few", "unknown name", "type", "too large"],
)
def test_wrong_calls_raise_what_jax_raises(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    def fn(x: jax.Array) -> jax.Array:
        return x

    assert caught_by(astitch.jit(fn), *args, **kwargs) == caught_by(jax.jit(fn), *args, **kwargs)


def test_a_static_value_without_a_hash_raises_what_jax_raises() -> None:
    by_astitch, by_jax = (jit(power, static_argnums=1) for jit in (astitch.jit, jax.jit))
    kind, text = caught_by(by_astitch, X, [2])
    assert (kind, text) == caught_by(by_jax, X, [2])
    assert "Non-hashable static arguments" in text


def test_a_static_value_that_does_not_compare_raises_what_jax_raises() -> None:
    def scale(x: jax.Array, by: tuple[Any, ...]) -> jax.Array:
        return x * by[0]

    by_astitch = astitch.jit(scale, static_argnums=1, engine="host")
    by_astitch(X, (2, 3))  # what the next call is compared with
    kind, text = caught_by(by_astitch, X, (2, np.array([3, 4])))
    assert (kind, text) == caught_by(jax.jit(scale, static_argnums=1), X, (2, np.array([3, 4])))
    assert "Non-hashable static arguments" in text


def test_a_compiled_function_names_what_is_no_array() -> None:
    compiled = astitch.jit(lambda p, y: p["w"] + y).lower({"w": X}, X).compile()
    with pytest.raises(TypeError, match="Cannot apply JAX transformations to a function lowered"):
        jax.grad(lambda x: compiled({"w": X}, x).sum())(X)
    with pytest.raises(
        TypeError, match=r"args\[0\]\[0\]\['w'\] of type .*ShapeDtypeStruct'> is not"
    ):
        compiled({"w": jax.ShapeDtypeStruct(X.shape, X.dtype)}, np.asarray(X))
    assert_same(compiled({"w": np.asarray(X)}, X), 2 * X)


def test_an_option_that_it_does_not_take() -> None:
    message = r"astitch.jit: it does not take turbo=1\n  it takes in_shardings, .*, memory_limit$"
    options: dict[str, Any] = {"turbo": 1}
    for args in [(), (power,)]:
        with pytest.raises(UnknownOption, match=message) as caught:
            astitch.jit(*args, **options)
        assert isinstance(caught.value, TypeError)


def caught_by(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[type, str]:
    with pytest.raises((TypeError, ValueError, OverflowError)) as caught:
        fn(*args, **kwargs)
    return caught.type, re.sub(r" at 0x\w+", "", str(caught.value))  # where the function lies


# ---- inside JAX ------------------------------------------------------------------------------------------------


def test_inside_transformations_it_is_jax_jit(compilations: list[str]) -> None:
    fn = astitch.jit(lambda x: jnp.tanh(x).sum())
    assert_same(jax.grad(fn)(X), jax.grad(lambda x: jnp.tanh(x).sum())(X))
    assert_same(jax.vmap(fn)(X), jnp.tanh(X).sum(axis=1))
    assert_same(jax.jit(lambda x: fn(x) * 2)(X), jnp.tanh(X).sum() * 2)
    assert_same(jax.lax.map(fn, X), jnp.tanh(X).sum(axis=1))
    with jax.disable_jit():
        assert_same(fn(X), jnp.tanh(X).sum())
    assert compilations == []


def test_a_closure_over_a_traced_value(compilations: list[str]) -> None:
    def outer(y: jax.Array) -> jax.Array:
        return astitch.jit(lambda x: x + y)(X)

    assert_same(jax.jit(outer)(X), 2 * X)
    assert compilations == []


def test_around_transformations(compilations: list[str]) -> None:
    def loss(w: jax.Array) -> jax.Array:
        return jnp.square(jax.nn.softmax(X * w)).sum()

    assert_same(astitch.jit(jax.value_and_grad(loss))(X), jax.value_and_grad(loss)(X))
    assert len(compilations) == 1


# ---- what only XLA computes ------------------------------------------------------------------------------------

cell = jax.new_ref(X)


def prints(x: jax.Array) -> jax.Array:
    jax.debug.print("{}", x.sum())
    return x * 2


def prints_in_order(x: jax.Array) -> jax.Array:
    jax.debug.print("{}", x.sum(), ordered=True)
    return x * 2


def calls_python(x: jax.Array) -> jax.Array:
    return jax.pure_callback(lambda x: np.asarray(x) * 2, x, x)


def calls_python_for_its_effects(x: jax.Array) -> jax.Array:
    return io_callback(lambda x: np.asarray(x) * 2, x, x)


def changes_what_it_closes_over(x: jax.Array) -> jax.Array:
    cell[...] = x
    return cell[...] * 2


ONLY_XLA = [
    (prints, r"it has effects \(DebugEffect\)"),
    (prints_in_order, r"it has effects \(OrderedDebugEffect\)"),
    (calls_python, "HLO computation main.*, instruction .*calls a Python function"),
    (calls_python_for_its_effects, r"it has effects \(IOEffect\)"),
    (changes_what_it_closes_over, r"it has effects \(.*WriteEffect\)"),
]


@pytest.mark.parametrize(("fn", "reason"), ONLY_XLA)
def test_what_only_xla_computes_is_left_to_it_with_one_warning(
    fn: Callable[[jax.Array], jax.Array], reason: str
) -> None:
    stitched = astitch.jit(fn, donate_argnums=0)
    with pytest.warns(
        RuntimeWarning, match=f"astitch: XLA computes all of {fn.__name__}: {reason}"
    ):
        assert_same(stitched(X + 1), jax.jit(fn)(X + 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert_same(stitched(X + 2), jax.jit(fn)(X + 2))
    for _ in range(2):
        with pytest.raises(UnsupportedOp, match=reason):
            astitch.jit(fn, strict=True)(X)
    with pytest.warns(RuntimeWarning, match=reason):
        compiled = stitched.lower(X).compile()
    assert_same(compiled(X + 1), jax.jit(fn)(X + 1))
    assert re.match(f"XLA computes all of {fn.__name__}: {reason}", compiled.explain())
    with pytest.raises(UnsupportedOp, match=reason):
        _ = compiled.program
    with pytest.raises(UnsupportedOp, match=reason):
        astitch.jit(fn, strict=True).lower(X).compile()


@pytest.mark.parametrize("engine", ["host", "xla"])
def test_functions_that_change_their_arguments_are_left_to_xla(
    engine: str, request: pytest.FixtureRequest
) -> None:
    if engine == "xla":
        request.getfixturevalue("_through_xla")

    def double(refs: dict[str, Any], by: jax.Array) -> jax.Array:
        refs["x"][...] = refs["x"][...] * by
        return refs["x"][...].sum()

    stitched, ref = astitch.jit(double), jax.new_ref(X)
    with pytest.warns(RuntimeWarning, match="all of double: it changes its arguments"):
        assert_same(stitched({"x": ref}, 2.0), jnp.float32(132))
    assert_same(stitched({"x": ref}, 2.0), jnp.float32(264))
    assert_same(ref[...], X * 4)
    with pytest.raises(UnsupportedOp, match="it changes its arguments"):
        astitch.jit(double, strict=True)({"x": ref}, 2.0)
    lowered = stitched.lower({"x": ref}, 2.0)
    with pytest.raises(UnsupportedOp, match="astitch.jit of double: XLA computes all of it"):
        _ = lowered.program
    with pytest.raises(UnsupportedOp, match="it changes its arguments"):
        astitch.jit(double, strict=True).lower({"x": ref}, 2.0)


def test_a_function_may_change_what_lives_only_inside_it(compilations: list[str]) -> None:
    def double(x: jax.Array) -> jax.Array:
        ref = jax.new_ref(x)
        ref[...] = ref[...] * 2
        return ref[...]

    assert_same(astitch.jit(double, strict=True)(X), X * 2)
    assert len(compilations) == 1


ELSEWHERE = """
import sys, warnings
import jax, jax.numpy as jnp
import astitch
from astitch.device.gpu import preset
from jax.sharding import AxisType, NamedSharding, PartitionSpec

engine = sys.argv[1]
if engine == "xla":
    sys.modules["astitch.jit"].choose_engine = lambda asked=None: "xla"
    sys.modules["astitch.api.inside_xla"].target_gpu = lambda: preset("h100")
warnings.simplefilter("always")
first, second = jax.devices()
x = jnp.arange(4.0)
places = [second]
for axis in (AxisType.Auto, AxisType.Explicit):
    places.append(NamedSharding(jax.make_mesh((2,), ("i",), (axis,)), PartitionSpec("i")))
one = NamedSharding(jax.make_mesh((1,), ("i",), (AxisType.Auto,)), PartitionSpec("i"))


def count(fn, *args):
    with warnings.catch_warnings(record=True) as caught:
        result, want = fn(*args), jax.jit(fn.__wrapped__)(*args)
        assert result.sharding.device_set == want.sharding.device_set, (result.sharding, args)
        assert jnp.allclose(result, want) and str(result.aval) == str(want.aval)
    for warning in caught:
        assert "XLA computes all of <lambda>: " in str(warning.message)
        assert "device" in str(warning.message) or "cpu:1; the engine host" in str(warning.message)
    return len(caught)


for place in places:
    fn = astitch.jit(lambda x, y: jnp.tanh(x) + y, engine=engine)
    there = jax.device_put(x, place)
    counts = [count(fn, there, 2.0), count(fn, x, 2.0), count(fn, there, 2.0), count(fn, 2.0, there)]
    assert counts[1] == 0 and (counts[0] or engine == "xla"), counts
    for own in (first, one):
        assert count(fn, x, jax.device_put(x, own)) == 0
    if counts[0]:
        try:
            astitch.jit(fn.__wrapped__, engine=engine, strict=True)(there, 2.0)
        except astitch.errors.UnsupportedOp:
            pass
        else:
            raise AssertionError(place)
    if engine == "host":
        assert fn.lower(x, x).compile()(x, x).devices() == {first}
print("done")
"""


@pytest.mark.parametrize("engine", ["host", "xla"])
def test_arrays_that_lie_elsewhere_stay_there(engine: str) -> None:
    flags = "--xla_force_host_platform_device_count=2"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", ELSEWHERE, engine]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout == "done\n", done.stderr


def test_errors_of_a_compilation_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(data: bytes, **_: Any) -> None:
        raise IllegalProduct("a bug")

    monkeypatch.setattr(astitch.compile, "compile_hlo", refuse)
    with pytest.raises(IllegalProduct, match="a bug"):
        astitch.jit(lambda x: x + 1)(X)


# ---- engines ---------------------------------------------------------------------------------------------------


def test_one_notice_that_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "DEFAULT", None)
    monkeypatch.setattr("astitch.run.executor.count_gpus", lambda: 0)
    engines._warn_no_gpu.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            astitch.jit(lambda x: x + 1)(X)
    assert [str(w.message) for w in caught if "astitch" in str(w.message)] == [NO_GPU]


def test_no_notice_where_the_host_was_asked_for() -> None:
    engines._warn_no_gpu.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose_engine() == "host"


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astitch.run.executor.count_gpus", lambda: 0)
    with pytest.raises(
        EngineUnavailable,
        match=r"engine='executor', but CuPy sees no GPU\n  install .*, or ask for engine='host'",
    ):
        astitch.jit(lambda x: x + 1, engine="executor")(X)


def test_the_package_alone_imports_neither_jax_nor_cupy() -> None:
    code = (
        "import sys, astitch; from astitch.jit import jit; assert astitch.jit is jit; "
        "print(sorted({'jax', 'cupy', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert astitch.compile_hlo is astitch.compile.compile_hlo
    with pytest.raises(AttributeError, match="module 'astitch' has no attribute 'stitch'"):
        _ = astitch.stitch  # type: ignore[attr-defined]


def test_a_setting_of_jax_that_changes_the_program_is_part_of_the_signature(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def noise(x: jax.Array) -> jax.Array:
        return x + jax.random.normal(jax.random.key(0), (3,))

    stitched, x = astitch.jit(noise), jnp.zeros(3)
    first = np.asarray(stitched(x))
    offset = jax.config.jax_random_seed_offset
    try:
        jax.config.update("jax_random_seed_offset", 5)
        second, want = np.asarray(stitched(x)), np.asarray(jax.jit(noise)(x))
    finally:
        jax.config.update("jax_random_seed_offset", offset)
    assert not np.allclose(first, second)
    np.testing.assert_allclose(second, want, rtol=1e-6)


# ---- the engine inside XLA, as JAX computes its programs on the CPU ----------------------------------------------


@pytest.fixture
def _through_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit_module, "choose_engine", lambda asked=None: "xla")
    monkeypatch.setattr(inside_xla, "target_gpu", lambda: preset("h100"))


def everything(layer: Layer, extra: dict[str, Any], *, n: int = 2) -> dict[str, Any]:
    """A tree with weakly typed results, a random key, an empty part and something that is not computed."""
    key, other = jax.random.split(extra["key"])
    hidden = extra["x"] @ layer.weight * n
    dropped = jax.random.bernoulli(other, 0.5, hidden.shape) * hidden
    return {"y": dropped, "key": key, "n": n, "rest": (layer, None, ()), "weak": 2.0 * n}


@pytest.mark.usefixtures("_through_xla")
def test_through_xla_the_answers_are_those_of_jax_jit() -> None:
    layer = Layer(jnp.ones((4, 5)), np.arange(5.0))
    extra = {"x": X, "key": jax.random.key(1), "none": None}
    stitched = astitch.jit(everything, static_argnames="n")
    for n in (2, 3, 2.0):
        got, want = (
            stitched(layer, extra, n=n),
            jax.jit(everything, static_argnames="n")(layer, extra, n=n),
        )
        assert got["key"].dtype == want["key"].dtype
        for result in (got, want):
            result["key"] = jax.random.key_data(result["key"])
        assert_same(got, want)


@pytest.mark.usefixtures("_through_xla")
def test_through_xla_out_of_memory_says_what_to_do_and_the_next_call_works() -> None:
    words = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 240000000000 bytes."
    errors: list[str] = []

    def double(x: jax.Array) -> jax.Array:
        if errors:
            raise jax.errors.JaxRuntimeError(errors.pop())
        return x * 2

    fn = astitch.jit(double)
    for size, (error, notes) in enumerate([(words, [NO_ROOM]), (words, [NO_ROOM]), ("other", [])]):
        errors.append(error)
        x = np.arange(float(size), dtype=np.float32)  # a new signature
        with pytest.raises(jax.errors.JaxRuntimeError) as caught:
            fn(x)
        told = getattr(caught.value, "__notes__", [])
        assert [note for note in told if note.startswith("astitch")] == notes
        np.testing.assert_array_equal(fn(x), x * 2)


@pytest.mark.usefixtures("_through_xla")
@pytest.mark.parametrize("parts", [True, False])
def test_through_xla_a_call_is_jax_jit_s_own(parts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no frame of Python's; with one where JAX's functions have no parts."""
    fn = astitch.jit(lambda x, *, n=2: jnp.tanh(x) * n)
    if not parts:
        plain = partial(fn._stitched_jit)
        plain.clear_cache = fn._stitched_jit.clear_cache  # type: ignore[attr-defined]
        monkeypatch.setattr(fn, "_stitched_jit", plain)
    frames: list[str] = []

    def trace(frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call" and "astitch" in frame.f_code.co_filename:
            frames.append(frame.f_code.co_name)

    for n in (2, 3):
        assert_same(fn(X, n=n), jnp.tanh(X) * n)
        sys.setprofile(trace)
        try:
            again = fn(X, n=n)
        finally:
            sys.setprofile(None)
        assert_same(again, jnp.tanh(X) * n)
    assert bool(frames) != parts
    assert_same(
        jax.jit(lambda y: fn(X) * y)(2.0), jnp.tanh(X) * 4
    )  # nothing traced among its arguments
    assert_same(jax.grad(lambda x: fn(x).sum())(X), jax.grad(lambda x: (jnp.tanh(x) * 2).sum())(X))
    fn.clear_cache()
    assert_same(fn(X), jnp.tanh(X) * 2)


@pytest.mark.usefixtures("_through_xla")
@pytest.mark.parametrize("called_before", [False, True])
def test_through_xla_a_nan_is_found_as_by_jax_jit(called_before: bool) -> None:
    fn = astitch.jit(lambda x: jnp.log(x) + 1)
    if called_before:
        fn(X + 1)
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="invalid value"):
        fn(X - 1)


@pytest.mark.usefixtures("_through_xla")
def test_through_xla_an_argument_may_be_called_self() -> None:
    fn = astitch.jit(lambda self, x: self - x)
    for _ in range(2):
        assert_same(fn(self=X, x=1.0), X - 1.0)


@pytest.mark.usefixtures("_through_xla")
def test_through_xla_it_traces_once_a_signature() -> None:
    traces = []

    def fn(x: jax.Array, n: Any) -> jax.Array:
        traces.append((x.shape, n))
        return x * n

    stitched = astitch.jit(fn, static_argnums=1)
    for _ in range(3):
        assert_same(stitched(X, 2), X * 2)
        assert_same(stitched(X, 2.5), X * 2.5)
        assert_same(stitched(X[:2], 2), X[:2] * 2)
    assert len(traces) == 3


@pytest.mark.usefixtures("_through_xla")
def test_through_xla_transformations_take_the_function_itself() -> None:
    fn = astitch.jit(lambda x: jnp.tanh(x).sum())
    assert_same(fn(X), jnp.tanh(X).sum())
    assert_same(jax.grad(fn)(X), jax.grad(lambda x: jnp.tanh(x).sum())(X))
    assert_same(jax.vmap(fn)(X), jnp.tanh(X).sum(axis=1))
    assert_same(jax.jit(lambda x: fn(x) * 2)(X), jnp.tanh(X).sum() * 2)
    assert_same(astitch.jit(jax.grad(fn))(X), jax.grad(lambda x: jnp.tanh(x).sum())(X))
    assert_same(jax.lax.map(fn, X), jnp.tanh(X).sum(axis=1))
    with jax.disable_jit():
        assert_same(fn(X), jnp.tanh(X).sum())


@pytest.mark.usefixtures("_through_xla")
def test_through_xla_memory_that_was_donated_is_gone() -> None:
    stitched = astitch.jit(lambda x, y: x + y, donate_argnums=0)
    given = X + 1
    assert_same(stitched(given, X), 2 * X + 1)
    assert given.is_deleted()


@pytest.mark.usefixtures("_through_xla")
def test_through_xla_methods_numbers_and_derivatives_of_integers() -> None:
    class Model:
        scale = 3

        @partial(astitch.jit, static_argnums=0)
        def double(self, x: jax.Array) -> jax.Array:
            return x * self.scale

    assert_same(Model().double(X), X * 3)
    for array in (np.float64(3.5), 3, True, np.ones((2, 3), np.float16)):
        assert_same(astitch.jit(jnp.exp)(array), jax.jit(jnp.exp)(array))
    got = astitch.jit(jax.grad(lambda x: jnp.float32(2) * x.sum(), allow_int=True))(jnp.arange(3))
    assert (got.dtype, got.shape) == (jax.dtypes.float0, (3,))
    with jax.enable_x64(True):
        assert float(astitch.jit(lambda x: x * 2)(np.float64(0.1))) == 0.2


@pytest.mark.usefixtures("_through_xla")
@pytest.mark.parametrize("args", [("text",), (X, X), ()], ids=["no array", "too many", "too few"])
def test_through_xla_wrong_calls_raise_what_jax_raises(args: tuple[Any, ...]) -> None:
    def fn(x: jax.Array) -> jax.Array:
        return x

    stitched = astitch.jit(fn)
    for _ in range(2):
        assert caught_by(stitched, *args) == caught_by(jax.jit(fn), *args)
        stitched(X)


def branch(x: jax.Array) -> jax.Array:
    return x if x > 0 else -x


@pytest.mark.usefixtures("_through_xla")
@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (branch, (1.0,)),
        (lambda layer: branch(layer["w"]), ({"w": 1.0},)),
        (lambda x: np.asarray(x), (X,)),
        (lambda x: "a", (X,)),
        (lambda x: {"y": [x, object]}, (X,)),
    ],
    ids=["if", "if in a tree", "array", "string", "type in a tree"],
)
def test_through_xla_errors_name_the_function_and_its_arguments(
    fn: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    kind, text = caught_by(astitch.jit(fn), *args)
    assert (kind, text) == caught_by(jax.jit(fn), *args)
    assert __file__ in text


@pytest.mark.usefixtures("_through_xla")
def test_through_xla_nothing_of_a_trace_is_kept() -> None:
    with jax.checking_leaks():
        assert_same(astitch.jit(lambda x: {"y": [x + 1, x]})(X), {"y": [X + 1, X]})


@pytest.mark.usefixtures("_through_xla")
def test_through_xla_a_function_with_effects_is_left_alone() -> None:
    seen = []

    def fn(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda v: seen.append(float(v)), x.sum())
        return x * 2

    stitched = astitch.jit(fn)
    with pytest.warns(RuntimeWarning, match=r"astitch: XLA computes all of fn: it has effects \("):
        assert_same(stitched(X), X * 2)
    jax.effects_barrier()
    assert seen == [66.0]
    lowered = stitched.lower(X)
    assert_same(lowered.compile()(X), X * 2)
    with pytest.raises(UnsupportedOp, match="astitch.jit of fn: XLA computes all of it"):
        _ = lowered.program
    with pytest.raises(UnsupportedOp, match="all of fn: it has effects"):
        astitch.jit(fn, strict=True)(X)


@pytest.mark.usefixtures("_through_xla")
def test_through_xla_what_cannot_be_read_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(hlo: bytes, *, trusted: bool) -> None:
        raise UnsupportedOp("HLO computation main, %c: calls a Python function\n  take it out")

    monkeypatch.setattr("astitch.xla.stitched_call.import_hlo", refuse)
    reason = "XLA computes all of power: HLO computation main, %c: calls a Python function\n"
    with pytest.warns(RuntimeWarning, match=reason):
        assert_same(astitch.jit(power, static_argnums=1)(X, 2), X**2)
    with pytest.raises(UnsupportedOp, match=reason):
        astitch.jit(power, static_argnums=1, strict=True)(X, 2)


@pytest.mark.usefixtures("_through_xla")
def test_through_xla_lowering_shows_the_module() -> None:
    lowered = astitch.jit(power, static_argnames="n").lower(
        jax.ShapeDtypeStruct((3, 4), jnp.float32), n=2
    )
    assert lowered.engine == "xla"
    assert "module @jit_power" in lowered.as_text()
    assert "HloModule jit_power" in lowered.as_text("hlo")
    assert [lowered.graph[p].shape for p in lowered.graph.parameters] == [(3, 4)]
    compiled = lowered.compile()  # JAX's part for the CPU, where the function runs as it is
    (kernel,) = compiled.program.kernels
    assert kernel.name in compiled.explain()
    assert_same(compiled(X), X**2)
    assert "HloModule" in compiled.as_text()
    assert compiled.cost_analysis() and compiled.memory_analysis()
    with pytest.raises(TypeError):
        compiled(X[:2])


@pytest.mark.usefixtures("_through_xla")
def test_through_xla_clearing_the_cache_traces_again() -> None:
    traces = []

    def fn(x: jax.Array) -> jax.Array:
        traces.append(x.shape)
        return x + 1

    stitched = astitch.jit(fn)
    stitched(X), stitched(X)
    assert len(traces) == 1
    stitched.clear_cache()
    stitched(X)
    assert len(traces) == 2


def test_an_engine_that_is_not_known() -> None:
    with pytest.raises(InvalidOption, match=r"astitch.jit: engine='tpu' is not known\n  it is one"):
        astitch.jit(lambda x: x, engine="tpu")


@pytest.mark.parametrize(
    ("asked", "target", "device", "chosen"),
    [
        (None, True, True, "xla"),
        (None, False, True, "executor"),
        (None, True, False, "executor"),
        ("gpu", True, True, "xla"),
        ("executor", True, True, "executor"),
        ("host", True, True, "host"),
        ("xla", False, True, "JAX is older than 0.11"),
        ("xla", True, False, "JAX has no GPU here"),
    ],
)
def test_which_engine_is_taken_where_there_is_a_gpu(
    asked: str | None,
    target: bool,
    device: bool,
    chosen: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines, "DEFAULT", None)
    monkeypatch.setattr("astitch.run.executor.count_gpus", lambda: 1)
    monkeypatch.setattr("astitch.device.cuda_driver.count_devices", lambda: 1)
    monkeypatch.setattr("astitch.xla.stitched_call.has_target", lambda: target)
    monkeypatch.setattr(
        "astitch.library.xla_fallback.default_gpu", lambda: "device" if device else None
    )
    if " " in chosen:
        with pytest.raises(EngineUnavailable, match=chosen):
            choose_engine(asked)
    else:
        assert choose_engine(asked) == chosen
        monkeypatch.setattr(engines, "DEFAULT", asked)
        assert choose_engine() == chosen
