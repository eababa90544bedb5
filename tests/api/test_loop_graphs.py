"""XLA is told to make CUDA graphs of few launches where a program has loops."""

from __future__ import annotations

from typing import Any

import pytest

jax = pytest.importorskip("jax")

import astitch  # noqa: E402
from astitch.api.loop_graphs import FEWEST, FLAG, prefer_graphs_in_loops  # noqa: E402


def square_often(x: Any) -> Any:
    return jax.lax.fori_loop(0, 9, lambda _, y: y * y, x)


def scan_in_another(x: Any) -> Any:
    step = jax.jit(lambda carry, _: (carry + 1, carry))
    return jax.jit(lambda y: jax.lax.scan(step, y, length=3))(x)


def tell(
    fn: Any, *, everything: bool = True, given: tuple[tuple[str, str], ...] = ()
) -> list[tuple[str, str]]:
    """What XLA is told beside what the user gave."""
    from jax._src.compiler import get_compile_options

    options = get_compile_options(num_replicas=1, num_partitions=1)
    options.env_option_overrides = list(given)
    traced = jax.jit(fn).trace(jax.ShapeDtypeStruct((4,), "float32"))
    module = traced.lower(lowering_platforms=("cuda",)).compiler_ir()
    prefer_graphs_in_loops(module, options, everything=everything)
    return [told for told in options.env_option_overrides if told not in given]


@pytest.mark.parametrize("fn", [square_often, scan_in_another])
def test_loops_get_graphs_of_few_launches(fn: Any) -> None:
    assert tell(fn) == [(FLAG, FEWEST)]


def test_without_a_loop_xla_decides() -> None:
    assert tell(lambda x: x * x + 1) == []


def test_what_the_user_says_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tell(square_often, given=((FLAG, "7"),)) == []
    assert tell(square_often, given=(("xla_gpu_autotune_level", "0"),)) == [(FLAG, FEWEST)]
    monkeypatch.setenv("XLA_FLAGS", f"--{FLAG}=7")
    assert tell(square_often) == []


@pytest.mark.xla_hook
def test_only_programs_with_marked_functions_where_astitch_is_not_enabled() -> None:
    inside = astitch.jit(square_often)
    assert tell(square_often, everything=False) == []
    assert tell(inside, everything=False) == [(FLAG, FEWEST)]
    assert tell(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: inside(y), x), everything=False)
