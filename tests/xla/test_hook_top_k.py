"""top_k through XLA's hook, where XLA has written it as a sort: maxima in the kernel of what stands around it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jax")

from benchmarks.modern_ahead import GPU, compile_ahead
from benchmarks.modern_programs.program import Program

pytestmark = pytest.mark.xla_hook


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spelling", ["top_k", "argsort", "last", "descending"])
def test_a_router_is_one_kernel(dtype: str, spelling: str) -> None:
    import jax
    import jax.numpy as jnp

    import astitch

    def route(x: Any) -> Any:
        shares = jax.nn.softmax(x, -1)
        if spelling == "top_k":
            largest, experts = jax.lax.top_k(shares, 2)
        else:
            experts = {
                "argsort": lambda: jnp.argsort(-shares, -1)[:, :2],
                "last": lambda: jnp.argsort(shares, -1)[:, -2:],
                "descending": lambda: jnp.argsort(shares, -1, descending=True)[:, :2],
            }[spelling]()
            largest = jnp.take_along_axis(shares, experts, -1)
        return largest, jax.nn.one_hot(experts, x.shape[-1]).sum((0, 1))

    before = len(astitch.report().programs)
    with astitch.enabled(gpu=GPU):
        compiled = compile_ahead(Program(route, lambda: (jnp.zeros((8192, 64), dtype),)))
    assert "sort(" not in compiled.as_text()
    assert [e.kernels for e in astitch.report().programs[before:]] == [1]


@pytest.mark.parametrize("spelling", ["sort", "argsort", "top_k", "nucleus"])
def test_rows_are_sorted_in_the_kernel_around(spelling: str) -> None:
    import jax
    import jax.numpy as jnp

    import astitch

    def fn(x: Any) -> Any:
        shares = jax.nn.softmax(x, -1)
        if spelling == "nucleus":
            falling = jnp.sort(shares, -1, descending=True)
            return jnp.where(jnp.cumsum(falling, -1) - falling < 0.9, falling, 0)
        return {
            "sort": lambda: jnp.sort(shares, -1),
            "argsort": lambda: jnp.argsort(shares, -1),
            "top_k": lambda: jax.lax.top_k(shares, 32),
        }[spelling]()

    before = len(astitch.report().programs)
    with astitch.enabled(gpu=GPU):
        compiled = compile_ahead(Program(fn, lambda: (jnp.zeros((2048, 100)),)))
    assert "sort(" not in compiled.as_text()
    assert [e.kernels for e in astitch.report().programs[before:]] == [1]
