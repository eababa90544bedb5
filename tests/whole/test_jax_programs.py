"""Random JAX programs through astitch.jit beside jax.jit; the table, the rounding model and the reducer.

More of them: `python -m tests.jax_programs --count 1000 --seed 0`.
"""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.errors import UnsupportedOp
from tests import jax_programs
from tests.jax_functions import FUNCTIONS, Function
from tests.jax_programs import (
    Argument,
    Drawing,
    Program,
    Scope,
    Step,
    Value,
    choose_stages,
    make_program,
    reduce_program,
    report_failure,
    try_program,
)
from tests.rounding_model import Judged, judge, judge_beside_f64

F32 = np.dtype(np.float32)


# ---- random programs -----------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(7))
def test_random_programs(part: int) -> None:
    """Results as near to f64 as XLA's, no error but named refusals, and plans for each GPU."""
    for seed in range(part, 14, 7):
        program = make_program(seed)
        outcome = try_program(program, ("host", choose_stages(seed)[1 + seed % 4]))
        assert outcome.failure is None, report_failure(program, outcome.failure)
        assert outcome.judged is not None, outcome.refused


def test_a_seed_decides_a_program() -> None:
    sources = [make_program(seed).script() for seed in (3, 4, 3)]
    assert sources[0] == sources[2] != sources[1]


def test_a_program_is_printed_as_a_script_that_runs() -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(_add_and_sum().script(), {})
    assert printed.getvalue() == "(Array([3., 5.], dtype=float32),)\n" * 2


def test_the_table_has_80_functions_and_jax_takes_each() -> None:
    assert len({f.name for f in FUNCTIONS}) >= 80
    assert [f.name for f in FUNCTIONS if not _can_be_called(f)] == []


def _can_be_called(function: Function) -> bool:
    """Is there a call of it among a few attempts?"""
    drawing = Drawing(random.Random(0), x64=False)
    for _ in range(60):
        drawing.arguments.clear()
        scope = Scope(drawing, (), 0, {})
        for shape, dtype in (((5, 5), "float32"), ((3, 4, 5), "float32"), ((7,), "int32")):
            scope.argument(shape, dtype)
        if scope.add(function):
            return True
    return False


# ---- what counts as a failure --------------------------------------------------------------------


def _add_and_sum() -> Program:
    """(a0 + 1).sum(0) of ones."""
    steps = (
        Step("v1", "jnp.add(jnp.ones_like(a0), 1)", "jnp.add", (Value("v1", (2, 2), F32),)),
        Step(
            "v2",
            "jnp.sum(v1, axis=0) + jnp.arange(2) * 2 - 1",
            "jnp.sum",
            (Value("v2", (2,), F32),),
        ),
    )
    return Program(0, False, (Argument("a0", (2, 2), "float32"),), steps, ("v2",))


@pytest.mark.parametrize("error", [AssertionError("d0 is used"), KeyError("x"), ValueError("no")])
@pytest.mark.parametrize("stage", ["host", "h100", "xla:h100"])
def test_an_internal_error_is_a_failure(
    error: Exception, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astitch.pipeline.find_scopes", _raise(error))
    outcome = try_program(_add_and_sum(), (stage,))
    assert outcome.failure is not None
    assert type(error).__name__ in outcome.failure.kind
    assert "in pipeline." in outcome.failure.kind


def test_a_named_refusal_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astitch.pipeline.find_scopes", _raise(UnsupportedOp("m, %x: no such op")))
    outcome = try_program(_add_and_sum(), ("host", "h100"))
    assert outcome.failure is None
    assert len(outcome.refused) == 2 and all("no such op" in text for text in outcome.refused)


def _raise(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


# ---- the rounding model --------------------------------------------------------------------------


def _judge(fn: Callable[..., Any], x: Any, change: Callable[[Any], Any] = lambda y: y) -> Judged:
    """XLA's results in the place of astitch's, changed."""
    want = jax.jit(fn)(x)
    return judge(jax.make_jaxpr(fn)(x), (x,), want, jax.tree.map(change, want))


def _normal(*shape: int, dtype: Any = jnp.float32) -> Any:
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape), dtype)


def _train(x: Any) -> Any:
    """Control flow, products and derivatives."""

    def turn(c: Any, row: Any) -> Any:
        c = jnp.tanh(c @ c.T / 8 + row) * jax.lax.cond(row[0] > 0, jnp.sin, jnp.cos, c)
        return c, c.sum()

    def loss(x: Any) -> Any:
        c, sums = jax.lax.scan(turn, x, x)
        return jax.nn.logsumexp(c) + sums.mean()

    return jax.value_and_grad(loss)(x)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_model_takes_what_xla_computes(dtype: Any) -> None:
    x = _normal(8, 8, dtype=dtype)
    want = jax.tree.leaves(jax.jit(_train)(x))
    judged = judge_beside_f64(jax.make_jaxpr(_train)(x), (x,), want, want)
    assert judged.fault == ""
    assert (judged.checked, judged.unstable) == (65, 0)


@pytest.mark.parametrize(
    ("fn", "share"),
    [
        (jnp.tanh, 2e-6), (lambda x: x.sum(0), 1e-5), (lambda x: x @ x, 1e-4), (_train, 1e-3),
        (jnp.sort, 1e-6), (jax.nn.softmax, 1e-5), (lambda x: jnp.cumsum(x, 1), 1e-4),
    ],
)  # fmt: skip
def test_the_model_refuses_what_is_further_away(fn: Callable[..., Any], share: float) -> None:
    """All elements by a few roundings; the shares are above what each function loses."""
    assert "too far away" in _judge(fn, _normal(16, 16), lambda y: y * (1 + share)).fault


def test_the_model_refuses_other_integers_and_other_types() -> None:
    x = _normal(6, 7)
    assert "too far away" in _judge(lambda x: jnp.argmax(x, 1), x, lambda y: y + 1).fault
    assert "too far away" in _judge(lambda x: x > 0, x, jnp.logical_not).fault
    assert (
        "instead of int32[6]"
        in _judge(lambda x: jnp.argmax(x, 1), x, lambda y: y.astype(jnp.int8)).fault
    )
    assert "instead of float32[6, 7]" in _judge(jnp.sin, x, lambda y: y[None]).fault
    assert (
        "instead of float32[] weak"
        in _judge(lambda x: jnp.asarray(2.0) * 1, x, lambda y: jnp.float32(y)).fault
    )


@pytest.mark.parametrize("other", [jnp.nan, jnp.inf, -jnp.inf, 1.0])
def test_nan_and_infinities_stay_where_they_are(other: float) -> None:
    x = jnp.array([-1.0, 0.0, 1.0, jnp.inf])
    for place in range(4):
        changed = _judge(jnp.log, x, lambda y, place=place: y.at[place].set(other))
        same = np.array_equal(jnp.log(x).at[place].set(other), jnp.log(x), equal_nan=True)
        assert (changed.fault == "") == same


def test_what_rounding_decides_may_be_either() -> None:
    """Of a sum that is 0 but for rounding, in the first element; what is exact is compared."""
    x = jnp.array([0.1, 0.25])

    def floor(x: Any) -> Any:
        return jnp.floor(x * 3 - x - x - x)

    assert _judge(floor, x, lambda y: y.at[0].set(-1)).fault == ""
    assert "too far away" in _judge(floor, x, lambda y: y.at[0].set(5)).fault
    assert "too far away" in _judge(floor, x, lambda y: y.at[1].set(-1)).fault
    signs = _judge(lambda x: floor(x) < 0, x, lambda y: y.at[0].set(True))
    assert (signs.fault, signs.checked, signs.unstable) == ("", 1, 1)


# ---- the reducer ---------------------------------------------------------------------------------


def test_a_failure_is_reduced_to_the_step_that_causes_it() -> None:
    drawing = Drawing(random.Random(0), x64=False)
    scope = Scope(drawing, (), 0, {})
    scope.argument((3, 5), "float32")

    def add(write: Callable[[Scope, Value], str]) -> None:
        assert scope.add(Function("", lambda s, name: write(s, s.values[-1])))

    add(lambda s, x: f"lax.top_k({x}, 2)")
    add(lambda s, x: f"jax.vmap({s.define([x.without(0)], like=x.without(0))})({x})")
    add(lambda s, x: f"jnp.cumsum({x}.astype(jnp.float32), axis=1)")
    add(
        lambda s, x: (
            f"lax.scan({s.define([x.without(1), x.without(0)], carry=True)}, {x}[:, 0], {x})"
        )
    )
    results = tuple(v.text for step in scope.steps for v in step.values)
    program = Program(0, False, tuple(drawing.arguments), tuple(scope.steps), results)

    def fails(smaller: Program) -> bool:
        jax.eval_shape(smaller.function(), *smaller.make_arguments())
        return "jnp.cumsum" in smaller.source()

    assert reduce_program(program, fails).source() == (
        "def program(a8000):\n"
        "    v9 = jnp.cumsum(a8000.astype(jnp.float32), axis=1)\n"
        "    return v9,"
    )


def test_the_command_counts_and_prints_failures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jax_programs, "make_program", lambda seed: _add_and_sum())
    assert jax_programs.main(["--count", "2"]) == 0
    assert "2 programs, 0 failures" in capsys.readouterr().out
    monkeypatch.setattr("astitch.pipeline.find_scopes", _raise(KeyError("x")))
    assert jax_programs.main(["--count", "2"]) == 1
    printed = capsys.readouterr().out
    assert "2 programs, 2 failures" in printed and "def program(a0):" in printed
