"""Scatters through XLA's hook: to few rows, and in types that a GPU combines in one instruction."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jax")

from benchmarks.modern_ahead import GPU, compile_ahead
from benchmarks.modern_programs.program import Program

pytestmark = pytest.mark.xla_hook


def compile_sums(dtype: Any, op: str, rows: int, count: int) -> tuple[str, int]:
    """The optimized module, and how many kernels astitch says to have put in."""
    import jax.numpy as jnp

    import astitch

    def fn(i: Any, u: Any) -> Any:
        return getattr(jnp.zeros(rows, dtype).at[i], op)(u, mode="drop")

    def make() -> Any:
        return jnp.zeros(count, jnp.int32), jnp.zeros(count, dtype)

    before = len(astitch.report().programs)
    with astitch.enabled(gpu=GPU):
        compiled = compile_ahead(Program(fn, make))
    return compiled.as_text(), sum(e.kernels for e in astitch.report().programs[before:])


@pytest.mark.parametrize(
    ("dtype", "op", "word"), [("bfloat16", "add", "f32"), ("float32", "max", "s32")]
)
def test_another_type_is_scattered(dtype: str, op: str, word: str) -> None:
    text, _ = compile_sums(dtype, op, 1000, 1 << 22)
    assert f"= {word}[1000]{{0}} scatter(" in text


@pytest.mark.parametrize("rows", [64, 4096])
def test_the_gradient_of_a_sort_is_compiled(rows: int) -> None:
    import jax
    import jax.numpy as jnp

    import astitch

    def loss(x: Any) -> Any:
        return jnp.square(jnp.sort(x, 1)).sum()

    with astitch.enabled(gpu=GPU):
        compile_ahead(Program(jax.grad(loss), lambda: (jnp.zeros((rows, 128)),)))
    assert astitch.report().programs[-1].kernels


def test_few_rows_are_a_kernel() -> None:
    text, kernels = compile_sums("float32", "add", 10, 100_000)
    assert kernels == 1
    assert "scatter(" not in text


def test_what_is_native_stays_as_it_was() -> None:
    text, _ = compile_sums("float32", "add", 1000, 1 << 22)
    assert "= f32[1000]{0} scatter(" in text


def test_a_loop_s_scatter_computes_its_updates() -> None:
    """As outside of loops: no kernel of the body writes what the edges of a graph hand on."""
    import jax
    import jax.numpy as jnp

    import astitch

    nodes, edges = 100_000, 1_000_000

    def spread(start: Any, end: Any) -> Any:
        def turn(rank: Any, _: None) -> Any:
            got = jnp.zeros(nodes).at[end].add((rank * 0.5)[start])
            new = 0.85 * got + 0.15 / nodes
            return new, jnp.abs(new - rank).sum()

        return jax.lax.scan(turn, jnp.full(nodes, 1 / nodes), None, length=20)

    def make() -> Any:
        return jnp.zeros(edges, jnp.int32), jnp.zeros(edges, jnp.int32)

    with astitch.enabled(gpu=GPU):
        compiled = compile_ahead(Program(spread, make))
    assert compiled.memory_analysis().temp_size_in_bytes < edges  # not of four bytes each
