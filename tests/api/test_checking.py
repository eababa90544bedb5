"""check=True: what differs from XLA's own version is found, whatever way JAX calls a program.

On the CPU: a program whose text was changed stands for the stitched one, and JAX compiles and calls both."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import compiler

from astitch.api import enabling, transformation
from astitch.api.checking import choose_bound, compare, find_donated, why_unchecked
from astitch.api.settings import Settings, context
from astitch.api.transformation import Compiling, Entry
from astitch.errors import ResultMismatch
from astitch.faults import FaultWarning
from astitch.hlo.stablehlo import hlo_of
from astitch.xla.hook import read_module

pytestmark = pytest.mark.skipif(
    not hasattr(jax, "make_user_context"), reason="JAX has no contexts of users"
)

Broken = Callable[..., Any]


@pytest.fixture(autouse=True)
def start_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("ASTITCH_FAULTS")
    transformation.journal.clear()
    context()  # from now on it is part of JAX's keys
    yield
    jax.clear_caches()


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Broken:
    """Has `jit_f` compiled with a change of its text as the stitched version."""

    def arrange(old: str = "", new: str = "", *, strict: bool = False) -> None:
        before = compiler.backend_compile_and_load

        def compile_(backend: Any, module: Any, devices: Any, *rest: Any, **named: Any) -> Any:
            again = functools.partial(before, backend, module, devices, *rest, **named)
            if enabling._name_of(module) != "jit_f":
                return again()
            compiling = Compiling(Settings(check=True, strict=strict), tuple(devices))
            (plain,) = again().hlo_modules()
            compiling.handed = read_module(plain.as_serialized_hlo_module_proto())
            compiling.stitched = True
            compiling.entry = Entry("jit_f", 1, "", 0.0)

            def make() -> Any:
                if compiling.off:
                    return again()
                text = str(module)
                assert old in text
                with module.context:
                    changed = type(module).parse(text.replace(old, new) if old else text)
                    return before(backend, changed, devices, *rest, **named)

            return enabling._compile(make, compiling)

        monkeypatch.setattr(compiler, "backend_compile_and_load", compile_)

    return arrange


def run(f: Callable[..., Any], *arguments: Any, **options: Any) -> list[np.ndarray]:
    f.__name__ = "f"
    return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(f, **options)(*arguments))]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


ADD, SUBTRACT = "stablehlo.add", "stablehlo.subtract"


def test_a_program_that_is_right_is_checked_at_every_call(broken: Broken) -> None:
    broken()

    def f(x: Any) -> Any:
        return jnp.tanh(x) + 1, x.sum()

    f.__name__ = "f"
    jitted = jax.jit(f)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(5):
            y, _ = jitted(jnp.full((8, 4), n, jnp.float32))
            np.testing.assert_allclose(y, np.tanh(n) + 1, rtol=1e-6)
        ahead = jitted.lower(normal(8, 4)).compile()
        for _ in range(3):
            ahead(normal(8, 4))
    (check,) = transformation.journal.report().checks
    assert str(check) == "jit_f: 8 calls checked"


@pytest.mark.parametrize(
    ("f", "old", "new"),
    [
        (lambda x: x + 1, ADD, SUBTRACT),
        (lambda x: (x * 100).astype(jnp.int32) + 1, ADD, SUBTRACT),
        (lambda x: x > 0.5, "GT", "LT"),
        (lambda x: jnp.sqrt(jnp.abs(x)), "stablehlo.abs", "stablehlo.negate"),
        (lambda x: (x.astype(jnp.bfloat16) * 3) + 1, ADD, SUBTRACT),
    ],
    ids=["float", "integer", "bool", "nan", "bf16"],
)
def test_a_wrong_result_is_told_and_replaced(
    f: Callable[..., Any], old: str, new: str, broken: Broken
) -> None:
    want = np.asarray(f(normal(8, 16)))
    broken(old, new)
    with pytest.warns(
        FaultWarning, match=r"jit_f: .*differ\n.* result 0, \w+\[8, 16\], differs by"
    ):
        (got,) = run(f, normal(8, 16))
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))
    (check,) = transformation.journal.report().checks
    assert list(check.differences) == [0] and check.calls == 1


def test_it_names_the_result(broken: Broken) -> None:
    broken("stablehlo.cosine", "stablehlo.sine")
    with pytest.warns(FaultWarning) as caught:
        run(lambda x: (x, jnp.sin(x), jnp.cos(x)), normal(4))
    (warning,) = caught
    text = str(warning.message)
    assert "result 2, float32[4]" in text and "result 1" not in text
    assert "jit_f: 1 kernels (0.00 s)" in text


def test_it_tells_of_a_result_once_and_goes_on(broken: Broken) -> None:
    broken(ADD, SUBTRACT)

    def f(x: Any) -> Any:
        return x + 1

    f.__name__ = "f"
    jitted = jax.jit(f)
    with pytest.warns(FaultWarning) as caught:
        for _ in range(4):
            np.testing.assert_array_equal(jitted(np.ones(3)), 2)
    assert len(caught) == 1
    assert transformation.journal.report().checks[0].calls == 4


def test_strict_raises(broken: Broken) -> None:
    broken(ADD, SUBTRACT, strict=True)
    with pytest.raises(ResultMismatch, match="jit_f.*differ"):
        run(lambda x: x + 1, normal(3))


@pytest.mark.parametrize("wrong", [False, True])
def test_donated_arguments_are_gone_and_were_not_changed_before(
    wrong: bool, broken: Broken
) -> None:
    broken(*((ADD, SUBTRACT) if wrong else ()))
    x, y = jnp.asarray(normal(64)), jnp.asarray(normal(64))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = run(lambda x, y: (x + y, y * 2), x, y, donate_argnums=0)
    assert len(caught) == wrong
    np.testing.assert_array_equal(got[0], normal(64) * 2)
    assert x.is_deleted() and not y.is_deleted()


def test_a_difference_as_large_as_rounding_makes_is_none(broken: Broken) -> None:
    """The mean of what is left behind its mean: no digit of it is right."""

    def f(x: Any) -> Any:
        centred = x - x.mean()
        return jax.lax.optimization_barrier(centred.sum() * 1.0), x

    broken("1.000000e+00", "-1.0000e+00")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(f, normal(10_000) + 1)
    (check,) = transformation.journal.report().checks
    assert check.rounded == 1 and not check.differences
    assert "1 with differences as large as rounding makes" in str(check)


def test_a_check_that_fails_costs_the_check(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("no room")

    broken()
    monkeypatch.setattr("astitch.api.checking.compare", fail)
    x = jnp.asarray(normal(8))
    (got,) = run(lambda x: x + 1, x, donate_argnums=0)
    np.testing.assert_array_equal(got, normal(8) + 1)
    assert x.is_deleted()
    (check,) = transformation.journal.report().checks
    assert str(check) == "jit_f: 0 calls checked; a call was not checked: no room"


def test_keys_of_random_numbers_are_compared(broken: Broken) -> None:
    broken("stablehlo.xor", "stablehlo.or")

    def f(key: Any) -> Any:
        return jax.random.split(key)

    f.__name__ = "f"
    want = jax.random.key_data(jax.random.split(jax.random.key(1)))
    with pytest.warns(FaultWarning, match="result 0, uint32"):
        got = jax.jit(f)(jax.random.key(1))
    np.testing.assert_array_equal(jax.random.key_data(got), want)


def test_constants_and_unused_arguments(broken: Broken) -> None:
    broken()
    table = jnp.asarray(normal(300, 40))
    unused, x, y = (jnp.asarray(normal(4, 300)) for _ in range(3))
    got = run(lambda a, b, c: (b @ table, c + 1), unused, x, y, donate_argnums=(2,))
    assert got[0].shape == (4, 40)
    assert y.is_deleted() and not x.is_deleted()
    assert transformation.journal.report().checks[0].calls == 1


def test_effects_do_not_happen_twice(broken: Broken) -> None:
    calls: list[int] = []

    def called(x: Any) -> Any:
        calls.append(1)
        return np.asarray(x)

    broken()
    for callback in (
        lambda x: jax.pure_callback(called, x, x),
        lambda x: jax.experimental.io_callback(called, x, x),
        lambda x: jax.debug.callback(called, x) or x + 1,
    ):
        calls.clear()
        transformation.journal.clear()
        run(callback, normal(3))
        jax.effects_barrier()
        assert calls == [1]
        (check,) = transformation.journal.report().checks
        assert "not checked" in str(check) and "twice" in str(check)


def test_references_are_not_checked(broken: Broken) -> None:
    broken()
    ref = jax.new_ref(jnp.zeros(3))

    def f(x: Any) -> Any:
        ref[...] += x
        return x * 2

    run(f, np.ones(3, np.float32))
    np.testing.assert_array_equal(ref[...], 1)
    assert "writes to references" in str(transformation.journal.report().checks[0])


class OtherProcess:
    process_index, platform = 1, "cpu"


def test_programs_of_several_processes_are_not_checked() -> None:
    module = read_module(hlo_of(jax.jit(lambda x: x).lower(1.0)))
    assert why_unchecked(module, jax.local_devices()) == ""
    assert "several processes" in why_unchecked(module, [*jax.local_devices(), OtherProcess()])


@pytest.mark.parametrize(
    ("f", "arguments", "bound"),
    [
        (lambda x: x + 1, (normal(3),), 2e-5),
        (lambda x: x @ x, (normal(3, 3),), 5e-3),
        (lambda x: jnp.dot(x, x, precision="highest"), (normal(3, 3),), 2e-5),
        (lambda x: x.astype(jnp.bfloat16), (normal(3),), 5e-2),
        (lambda x: x + 1, (np.arange(3),), 0.0),
    ],
)
def test_the_bound_is_that_of_the_coarsest_type(f: Any, arguments: Any, bound: float) -> None:
    assert choose_bound(read_module(hlo_of(jax.jit(f).lower(*arguments)))) == bound


def test_donations_are_read_off_the_module() -> None:
    lowered = jax.jit(lambda x, y: (y + x, x), donate_argnums=1).lower(normal(3), normal(3))
    assert find_donated(read_module(hlo_of(lowered))) == {1}


@pytest.mark.parametrize(
    ("got", "want", "differs"),
    [
        ([np.nan, 1], [np.nan, 1], False),
        ([np.nan, 1], [1, np.nan], True),
        ([np.inf, 1], [-np.inf, 1], True),
        ([np.inf, 1], [np.inf, 1], False),
        ([0.0, -0.0], [-0.0, 0.0], False),
        ([1, 100.0005], [1, 100], False),
        ([1, 100.05], [1, 100], True),
        ([], [], False),
    ],
)
def test_how_floats_are_compared(got: list[float], want: list[float], differs: bool) -> None:
    found = compare([np.float32(got)], [np.float32(want)], bound=1e-5)
    assert (found.size > found.bound) == differs


def test_every_shard_is_compared() -> None:
    shards = [np.zeros(3, np.int32), np.zeros(2, np.int32)]
    found = compare([shards[0], shards[1] + 1], shards, bound=1e-5)
    assert found.size == 2 > found.bound
    assert "int32[3] + int32[2]" in str(found)


SEVERAL_DEVICES = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import warnings
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from astitch.api.checking import Check, add_check, choose_bound, find_donated
from astitch.api.settings import context
from jax._src import compiler
context()
before = compiler.backend_compile_and_load
checks = []

def compile_(backend, module, devices, *rest, **named):
    plain = before(backend, module, devices, *rest, **named)
    text = str(module)
    if "@jit_step" not in text:
        return plain
    with module.context:
        other = type(module).parse(text.replace("stablehlo.sine", "stablehlo.cosine"))
        broken = before(backend, other, devices, *rest, **named)
    checks.append(Check("step", "", plain, donated=frozenset({0}), bound=1e-5))
    add_check(broken, checks[-1])
    return broken

compiler.backend_compile_and_load = compile_
place = NamedSharding(Mesh(np.array(jax.devices()), "d"), PartitionSpec("d"))
x = jax.device_put(np.ones((8, 3), np.float32), place)
y = jax.device_put(np.ones((8, 3), np.float32), place)

def step(x, y):
    return jax.numpy.sin(x) + y.sum(), y * 2

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    z, w = jax.jit(step, donate_argnums=0)(x, y)
assert x.is_deleted() and z.sharding == place, z.sharding
np.testing.assert_allclose(z, 24 + np.sin(1), rtol=1e-5)
(difference,) = checks[0].differences.values()
assert difference.number == 0 and difference.type.count("float32[2, 3]") == 4, difference
assert len(caught) == 1, caught
print("done")
"""


def test_a_program_over_several_devices() -> None:
    environment = {name: v for name, v in os.environ.items() if name != "ASTITCH_FAULTS"}
    run = subprocess.run(
        [sys.executable, "-c", SEVERAL_DEVICES],
        capture_output=True,
        text=True,
        timeout=120,
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"},
        check=False,
    )
    assert run.stdout.splitlines()[-1:] == ["done"], run.stderr
