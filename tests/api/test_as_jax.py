"""astitch.jit beside jax.jit where no GPU is needed: options, errors, devices, JAX's settings, stages."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import config

import astitch
from astitch.api import inside_xla
from astitch.api.jax_options import DEFAULTS
from astitch.device.gpu import preset
from astitch.errors import ArgumentMismatch, UnsupportedOp

pytestmark = pytest.mark.usefixtures("sorts_left")

X = jnp.arange(12.0).reshape(3, 4)
HERE = jax.sharding.SingleDeviceSharding(jax.devices()[0])
ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["host", "xla"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Inside XLA, JAX computes the function on the CPU."""
    jit_module = sys.modules["astitch.jit"]
    monkeypatch.setattr(jit_module, "choose_engine", lambda asked=None: request.param)
    monkeypatch.setattr(inside_xla, "target_gpu", lambda: preset("h100"))
    return str(request.param)


@pytest.fixture
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def work(x: Any) -> Any:
    return jnp.tanh(x) * 2 + 1


def scale(x: Any, y: Any = 2.0) -> Any:
    return x * y


def describe(value: Any) -> Any:
    """What a program can see of a result."""
    if isinstance(value, jax.Array):
        array = (
            jax.random.key_data(value)
            if jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
            else value
        )
        numbers = [f"{number:.4g}" for number in np.asarray(array, np.float64).ravel()]
        return str(value.aval), value.weak_type, value.committed, value.devices(), numbers
    if isinstance(value, (tuple, list, dict)):
        return jax.tree.map(describe, value)
    return value


def watch(call: Callable[[Any], Any], jit: Any) -> Any:
    """What becomes of a use of jit: its result or its error."""
    try:
        return describe(call(jit))
    except Exception as error:
        kinds = (
            TypeError,
            ValueError,
            RuntimeError,
            FloatingPointError,
            jax.errors.UnexpectedTracerError,
        )
        text = str(error).partition("\n")[0].partition("source info")[0]
        return [kind for kind in kinds if isinstance(error, kind)], text


def assert_as_jax(call: Callable[[Any], Any]) -> None:
    assert watch(call, astitch.jit) == watch(call, jax.jit)


# ---- options ---------------------------------------------------------------------------------------------------


def test_every_option_of_jax_jit_is_taken() -> None:
    mine, jaxs = (inspect.signature(jit).parameters for jit in (astitch.jit, jax.jit))
    wanted = {name for name, p in jaxs.items() if p.kind is p.KEYWORD_ONLY}
    assert wanted <= {*mine, *DEFAULTS}
    assert wanted == DEFAULTS.keys()


@pytest.mark.usefixtures("engine", "no_warning")
@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_mean_nothing(name: str) -> None:
    options = {name: DEFAULTS[name]}
    assert_as_jax(lambda jit: jit(work, **options)(X))
    assert_as_jax(lambda jit: jit(**options)(work)(X))


@pytest.mark.usefixtures("engine", "no_warning")
@pytest.mark.parametrize(
    "options",
    [
        {"inline": True},
        {"compiler_options": {}},
        {"compiler_options": {"xla_cpu_enable_fast_math": False}},
        {"compiler_options": {"nonsense": True}},  # raises
        {"keep_unused": True},
        {"static_argnums": np.int64(1)},
        {"donate_argnums": 5},  # raises
        {"static_argnames": "zz"},  # raises
    ],
    ids=str,
)
def test_options_are_honoured(options: dict[str, Any]) -> None:
    assert_as_jax(lambda jit: jit(scale, **options)(X + 0, 3.0))
    assert_as_jax(lambda jit: str(jax.make_jaxpr(lambda x: jit(scale, **options)(x, 3))(X)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "options",
    [
        {"in_shardings": HERE},
        {"out_shardings": HERE},
        {"device": jax.devices()[0]},
        {"backend": "cpu"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_places_are_honoured_or_left_to_xla(engine: str, options: dict[str, Any]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        assert_as_jax(lambda jit: jit(work, **options)(X))
        assert_as_jax(lambda jit: jit(work, **options).lower(X).compile()(X))
    said = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
    if engine == "xla":
        assert said == []
    else:
        assert f"XLA computes all of work: {next(iter(options))} was given" in said[0]
        with pytest.raises(UnsupportedOp, match="was given"):
            astitch.jit(work, strict=True, **options)(X)


def test_settings_of_xla_reach_the_parts_that_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    from astitch.library import xla_fallback

    compile_module, given = xla_fallback.compile_module, []

    def watch_settings(hlo: bytes, device: Any, settings: Any, **options: Any) -> Any:
        given.append(dict(settings))
        return compile_module(hlo, device, settings, **options)

    monkeypatch.setattr(xla_fallback, "compile_module", watch_settings)
    options = {"xla_cpu_enable_fast_math": False}
    sort = astitch.jit(lambda x: jnp.sort(x) + 0.25, engine="host", compiler_options=options)
    np.testing.assert_array_equal(sort(X[0, ::-1]), jnp.sort(X[0]) + 0.25)
    assert given[0] == {**xla_fallback.REPEATABLE, **options}
    sort.lower(X).compile(compiler_options={"xla_cpu_enable_fast_min_max": False})
    assert given[1] == {**given[0], "xla_cpu_enable_fast_min_max": False}
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option: 'nonsense'"):
        sort.lower(X).compile(compiler_options={"nonsense": 1})


def test_without_jax_it_is_said_what_to_install() -> None:
    code = (
        "import sys; sys.modules['jax'] = None\n"
        "import astitch\n"
        "try:\n    astitch.jit(abs)\n"
        "except ImportError as error:\n"
        "    print(type(error).__name__, isinstance(error, astitch.errors.EngineUnavailable), error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("JaxMissing True astitch.jit compiles functions of JAX, which is")
    assert "pip install 'astitch[jax]'" in done.stdout


# ---- the function object ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("engine")
def test_the_function_object() -> None:
    fn = astitch.jit(scale)
    assert repr(fn) == f"<astitch.jit of {scale!r}>"
    assert isinstance(fn, jax.stages.Wrapped)
    assert inspect.signature(fn) == inspect.signature(jax.jit(scale))
    for name in ("__name__", "__qualname__", "__module__", "__wrapped__"):
        assert getattr(fn, name) == getattr(jax.jit(scale), name)
    assert repr(astitch.jit(functools.partial(scale, y=1.0))).startswith(
        "<astitch.jit of functools"
    )


@pytest.mark.usefixtures("engine")
def test_the_size_of_the_cache() -> None:
    def sizes(jit: Any) -> list[int]:
        fn = jit(lambda x: x + 1)
        found = [fn._cache_size()]
        for x in (X, X, X[0], X):
            fn(x)
            found.append(fn._cache_size())
        jax.clear_caches()
        found.append(fn._cache_size())
        fn(X)
        fn.clear_cache()
        return [*found, fn._cache_size()]

    assert sizes(astitch.jit) == sizes(jax.jit) == [0, 1, 1, 2, 2, 0, 0]


def test_a_function_around_another_has_an_engine_of_its_own() -> None:
    inner = astitch.jit(lambda x: jnp.tanh(x).sum(), engine="host")
    inner(X)
    outer = astitch.jit(jax.grad(inner), engine="executor")
    assert inner.engine == "host" and "engine" not in vars(outer)
    assert outer._asked == "executor"


# ---- devices ---------------------------------------------------------------------------------------------------

MESH = jax.sharding.NamedSharding(
    jax.sharding.Mesh(np.array(jax.devices()[:1]), ("i",)), jax.sharding.PartitionSpec()
)


@pytest.mark.usefixtures("engine", "no_warning")
@pytest.mark.parametrize("second", [None, HERE, MESH], ids=["", "device", "mesh"])
@pytest.mark.parametrize("first", [None, HERE, MESH], ids=["", "device", "mesh"])
def test_committed_arguments_give_committed_results(first: Any, second: Any) -> None:
    def place(array: Any, where: Any) -> Any:
        return array + 0 if where is None else jax.device_put(array, where)

    def call(jit: Any) -> Any:
        fn = jit(lambda x, y: (x * y, x + 1, 2.0 * y[0, 0]))
        arguments = place(X, first), place(X, second)
        compiled = fn.lower(*arguments).compile()
        return fn(*arguments), fn(X, np.ones(X.shape, np.float32)), compiled(X, X)

    assert_as_jax(call)


@pytest.mark.usefixtures("engine", "no_warning")
def test_random_keys_and_weak_results_are_committed_too() -> None:
    key = jax.random.key(0)
    assert_as_jax(lambda jit: jit(jax.random.split)(jax.device_put(key, HERE)))
    assert_as_jax(lambda jit: jit(jax.random.split)(key))
    assert_as_jax(lambda jit: jit(lambda x: x + 1)(jax.device_put(1.0, HERE)))


def test_a_function_that_names_a_place_commits_its_results() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(x * 2, HERE)

    assert describe(astitch.jit(fn, engine="host")(X)) == describe(jax.jit(fn)(X))


def test_arrays_of_other_devices_lower_as_in_jax() -> None:
    code = """
import functools, sys, warnings
import jax, jax.numpy as jnp, numpy as np
import astitch
from astitch.device.gpu import preset

first, second = jax.devices()
x, engine = jnp.arange(4.0), "host"


def check(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got, want = call(functools.partial(astitch.jit, engine=engine)), call(jax.jit)
    assert (got.committed, got.sharding) == (want.committed, want.sharding), (got, want)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    return [str(warning.message) for warning in caught]


def work(x):
    return jnp.tanh(x) * 2


there, here = jax.device_put(x, second), jax.device_put(x, first)
(said,) = check(lambda jit: jit(work).lower(there).compile()(there))
assert "argument 0 lies on cpu:1; the engine runs on cpu:0" in said
with jax.default_device(second):
    assert not check(lambda jit: jit(work)(x))
    assert not check(lambda jit: jit(work)(np.ones(3, np.float32)))
    assert not check(lambda jit: jit(work)(here))
compiled = astitch.jit(work, engine="host").lower(x).compile()
for kind in (TypeError, ValueError):
    try:
        compiled(there)
    except kind as error:
        assert "argument 0 lies on cpu:1" in str(error)
spread = jax.sharding.NamedSharding(jax.make_mesh((2,), ("i",)), jax.sharding.PartitionSpec("i"))
(said,) = check(lambda jit: jit(work, out_shardings=spread)(x))
assert "out_shardings was given" in said
engine = "xla"
sys.modules["astitch.jit"].choose_engine = lambda asked=None: "xla"
sys.modules["astitch.api.inside_xla"].target_gpu = lambda: preset("h100")
(said,) = check(lambda jit: jit(work, out_shardings=spread)(x))
assert "its in_shardings or out_shardings name several devices" in said
print("done")
"""
    flags = "--xla_force_host_platform_device_count=2"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.stdout == "done\n", done.stderr


# ---- JAX's settings --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("called_before", [False, True])
@pytest.mark.parametrize(
    "argument", [np.ones(3, np.float32), 1.0, X], ids=["numpy", "float", "jax"]
)
@pytest.mark.parametrize("level", ["allow", "disallow", "disallow_explicit"])
def test_transfer_guards_are_obeyed(level: str, argument: Any, called_before: bool) -> None:
    def call(jit: Any) -> Any:
        fn = jit(work)
        if called_before:
            fn(argument)
        with jax.transfer_guard(level):
            return fn(argument)

    def call_compiled(jit: Any) -> Any:
        compiled = jit(work).lower(argument).compile()
        with jax.transfer_guard_host_to_device(level):
            return compiled(argument)

    assert_as_jax(call)
    assert_as_jax(call_compiled)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("called_before", [False, True])
def test_no_execution_and_no_tracing_are_obeyed(called_before: bool) -> None:
    def call(jit: Any, setting: Any) -> Any:
        fn = jit(work)
        if called_before:
            fn(X)
        with setting(True):
            return fn(X)

    def call_afterwards(jit: Any) -> Any:
        fn = jit(work)
        with jax.no_execution(), pytest.raises(RuntimeError, match="no_execution"):
            fn(X)
        return fn(X)

    def call_compiled(jit: Any) -> Any:
        compiled = jit(work).lower(X).compile()
        with jax.no_execution():
            return compiled(X)

    assert_as_jax(lambda jit: call(jit, jax.no_execution))
    assert_as_jax(call_compiled)
    assert_as_jax(call_afterwards)


@pytest.mark.parametrize("called_before", [False, True])
def test_no_tracing_is_obeyed(called_before: bool) -> None:
    fn = astitch.jit(lambda x: x * 3, engine="host")
    if called_before:
        want = fn(X)
        with config.no_tracing(True):
            assert describe(fn(X)) == describe(want)
    with config.no_tracing(True), pytest.raises(RuntimeError, match="re-tracing function"):
        fn(X[0])


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("called_before", [False, True])
def test_nans_and_infinities_are_found(called_before: bool) -> None:
    def call(jit: Any, setting: Any, fn: Any) -> Any:
        jitted = jit(fn)
        if called_before:
            jitted(X + 1)
        with setting(True):
            return jitted(X - 1)

    assert_as_jax(lambda jit: call(jit, jax.debug_nans, lambda x: jnp.log(x) + 1))
    assert_as_jax(lambda jit: call(jit, jax.debug_nans, lambda x: (x.astype(int), jnp.exp(x))))
    assert_as_jax(lambda jit: call(jit, jax.debug_infs, lambda x: 1 / (x - 1)))


def test_a_nan_that_only_astitch_computes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from astitch.run.host_engine import HostEngine

    monkeypatch.setattr(HostEngine, "run", lambda *_: [np.full(X.shape, np.nan, np.float32)])
    with (
        jax.debug_nans(True),
        pytest.raises(FloatingPointError, match="what astitch computes of work"),
    ):
        astitch.jit(work, engine="host")(X)


@pytest.mark.usefixtures("engine")
def test_settings_that_change_results() -> None:
    def in_x64(jit: Any) -> Any:
        with jax.enable_x64(True):
            return jit(work)(np.float64(0.1)), jit(work)(1.5), jit(work)(3)

    def disabled(jit: Any) -> Any:
        with jax.disable_jit():
            return jit(lambda x: x if x.sum() > 0 else -x)(X)

    def strict_types(jit: Any) -> Any:
        with jax.numpy_dtype_promotion("strict"):
            return jit(lambda x: x + jnp.int32(1))(X)

    def precise(jit: Any) -> Any:
        with jax.default_matmul_precision("float32"):
            return str(jit(lambda x: x @ x.T).lower(X).as_text())

    for call in (in_x64, disabled, strict_types, precise):
        assert_as_jax(call)


def test_random_keys_used_twice_are_found() -> None:
    def call(jit: Any) -> Any:
        fn, key = jit(jax.random.normal), jax.random.key(0)
        with jax.debug_key_reuse(True):
            return fn(key), fn(key)

    with pytest.warns(RuntimeWarning, match="XLA computes all of .*: jax.debug_key_reuse is set"):
        mine = watch(call, functools.partial(astitch.jit, engine="host"))
    assert mine == watch(call, jax.jit)
    assert "Previously-consumed key" in mine[1]


def test_compilations_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    fn = astitch.jit(lambda x: x * 5, engine="host")
    with caplog.at_level(logging.WARNING), jax.log_compiles():
        fn(X)
    assert any("Finished astitch compilation of jit(<lambda>)" in line for line in caplog.messages)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        fn(X[0])
    assert not caplog.messages


# ---- errors ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("engine")
@pytest.mark.filterwarnings("ignore:astitch. XLA computes all of")
def test_escaped_tracers() -> None:
    box: list[Any] = []

    def escape(jit: Any, use: Callable[[Any, Any], Any]) -> Any:
        def keep(x: Any) -> Any:
            box.append(x * 2)
            return x

        box.clear()
        jit(keep)(X)
        return use(jit, box[0])

    for use in (
        lambda jit, tracer: jit(work)(tracer),
        lambda jit, tracer: jit(lambda x: x + tracer)(X),
        lambda jit, tracer: jit(lambda x: {"y": tracer})(X),
        lambda jit, tracer: tracer + 1,
    ):
        with pytest.raises(jax.errors.UnexpectedTracerError, match="unexpected tracer"):
            escape(astitch.jit, use)
    astitch.jit(work).lower(box[0])  # as in JAX, which needs only its type


class Unequal:
    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not to be compared")


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    "call",
    [
        lambda jit: jit(3),
        lambda jit: jit(scale)(),
        lambda jit: jit(work)(X, zz=1),
        lambda jit: jit(work)("a"),
        lambda jit: jit(work)(object()),
        lambda jit: jit(work)(2**70),
        lambda jit: jit(work)(jax.ShapeDtypeStruct((3,), jnp.float32)),
        lambda jit: jit(scale, static_argnums=1)(X, [1]),
        lambda jit: jit(scale, static_argnums=1)(X, X),
        lambda jit: jit(scale, static_argnums=(0, 5))(X),
        lambda jit: jit(lambda x: "a")(X),
        lambda jit: jit(lambda x: 1 if x > 0 else 2)(1.0),
        lambda jit: jit(lambda x: 1 / 0)(X),
        lambda jit: jit(work).lower(X).compile()(X, X),
        lambda jit: jit(work).lower(X).compile()(X[0]),
        lambda jit: jax.jit(jit(work).lower(X).compile())(X),
        lambda jit: jit(work).lower(X).as_text("nonsense"),
        lambda jit: jit(work)(jax.block_until_ready(X + 0).delete() or X),
    ],
)
def test_wrong_uses_raise_the_same_kind_of_error(call: Callable[[Any], Any]) -> None:
    mine, jaxs = watch(call, astitch.jit), watch(call, jax.jit)
    assert mine[0] == jaxs[0]


def test_static_values_that_raise_when_they_are_compared() -> None:
    def call(jit: Any) -> Any:
        fn = jit(lambda x, _: x + 1, static_argnums=1)
        fn(X, Unequal())
        return fn(X, Unequal())

    kinds, text = watch(call, functools.partial(astitch.jit, engine="host"))
    assert (kinds, text[:40]) == (watch(call, jax.jit)[0], watch(call, jax.jit)[1][:40])


def test_an_array_without_values_is_left_to_xla() -> None:
    nothing = np.zeros(3, jax.dtypes.float0)
    with pytest.warns(RuntimeWarning, match=r"an argument has no values \(float0\)"):
        got = astitch.jit(lambda x, _: x + 1, engine="host")(X, nothing)
    np.testing.assert_array_equal(got, X + 1)


# ---- stages ----------------------------------------------------------------------------------------------------


def several(x: Any, y: Any, z: Any) -> dict[str, Any]:
    return {"o": (x @ y.T, None), "p": x.sum() + z[0]}


def lower(jit: Any) -> Any:
    types = jax.ShapeDtypeStruct((3,), jnp.int32)
    return jit(several, donate_argnums=0, keep_unused=True).lower(X, y=X, z=types)


OF_LOWERED = ("args_info", "in_avals", "in_tree", "out_tree", "donate_argnums")
OF_COMPILED = (
    *OF_LOWERED,
    "input_shardings",
    "output_shardings",
    "input_formats",
    "output_formats",
    "out_info",
)


@pytest.mark.usefixtures("engine")
@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_stages_have_all_that_jax_s_have() -> None:
    mine, jaxs = lower(astitch.jit), lower(jax.jit)
    public = {name for name in dir(jaxs) if not name.startswith("_")}
    assert public <= set(dir(mine))
    for name in OF_LOWERED:
        assert getattr(mine, name) == getattr(jaxs, name), name
    compiled, by_jax = mine.compile(), jaxs.compile()
    public = {name for name in dir(by_jax) if not name.startswith("_")} - {"call"}
    assert public <= set(dir(compiled))
    for name in OF_COMPILED:
        assert getattr(compiled, name) == getattr(by_jax, name), name
    assert compiled.runtime_executable() is not None
    assert compiled.cost_analysis()["flops"] > 0 and mine.cost_analysis()["flops"] > 0
    own, want = compiled.memory_analysis(), by_jax.memory_analysis()
    assert own.argument_size_in_bytes == want.argument_size_in_bytes
    assert own.output_size_in_bytes >= 40 and own.temp_size_in_bytes >= 0


@pytest.fixture
def _whole_paths() -> Iterator[None]:
    """JAX names source files in full, whatever a test before asked for."""
    name = "jax_hlo_source_file_canonicalization_regex"
    before = getattr(jax.config, name)
    jax.config.update(name, None)
    yield
    jax.config.update(name, before)


@pytest.mark.usefixtures("_whole_paths", "engine")
@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_the_text_of_a_lowered_function() -> None:
    mine, jaxs = lower(astitch.jit), lower(jax.jit)
    main = "func.func public @main"
    for dialect in (None, "stablehlo"):
        assert mine.as_text(dialect).count(main) == 1 == jaxs.as_text(dialect).count(main)
    assert mine.as_text("hlo").startswith("HloModule jit_several")
    assert "loc(" in mine.as_text(debug_info=True) and "loc(" not in mine.as_text()
    assert __file__ in mine.as_text(dialect="hlo", debug_info=True)


def test_the_text_is_jax_s_own() -> None:
    for dialect in (None, "stablehlo", "hlo"):
        mine = astitch.jit(scale, engine="host").lower(X, 2.0)
        assert mine.as_text(dialect) == jax.jit(scale).lower(X, 2.0).as_text(dialect)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    "options", [{}, {"compiler_options": None}, {"device_assignment": tuple(jax.devices()[:1])}]
)
def test_options_of_compile(options: dict[str, Any]) -> None:
    assert_as_jax(lambda jit: jit(work).lower(X).compile(**options)(X))


@pytest.mark.usefixtures("engine")
def test_wrong_options_of_compile() -> None:
    other = ("another device",)
    with pytest.raises((ValueError, AttributeError)):
        astitch.jit(work).lower(X).compile(device_assignment=other)
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        astitch.jit(work).lower(X).compile({"nonsense": True})


@pytest.mark.usefixtures("engine")
def test_what_xla_computes_has_jax_s_stages() -> None:
    def prints(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda _: None, x)
        return x * 2

    with pytest.warns(RuntimeWarning, match="XLA computes all of prints: it has effects"):
        lowered = astitch.jit(prints).lower(X)
    by_jax = jax.jit(prints).lower(X)
    assert {name for name in dir(by_jax) if not name.startswith("_")} <= set(dir(lowered))
    assert lowered.in_avals == by_jax.in_avals and "stablehlo" in lowered.as_text()
    compiled = lowered.compile()
    assert describe(compiled(X)) == describe(by_jax.compile()(X))
    assert compiled.memory_analysis() and "HloModule" in compiled.as_text()
    assert "XLA computes all of prints" in compiled.explain()
    with pytest.raises(UnsupportedOp, match="there is no program to show"):
        _ = compiled.program


def test_an_error_of_a_compilation_leaves_an_ahead_of_time_call_to_xla(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise UnsupportedOp("a form that nobody knows\n  what to do")

    lowered = astitch.jit(work, engine="host").lower(X)
    monkeypatch.setattr("astitch.compile.compile_hlo", refuse)
    with pytest.warns(RuntimeWarning, match="XLA computes all of work: a form that nobody knows"):
        compiled = lowered.compile()
    assert describe(compiled(X)) == describe(jax.jit(work)(X))
    assert compiled.explain() == "XLA computes all of work: a form that nobody knows"


def test_a_compiled_function_names_a_wrong_argument() -> None:
    compiled = astitch.jit(work, engine="host").lower(X).compile()
    with pytest.raises(ArgumentMismatch, match=r"args\[0\]\[0\]: float32\[3,4\] was compiled for"):
        compiled(X[0])
