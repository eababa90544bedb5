"""memory_limit= outside of XLA: the option, plans and values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import astitch
from astitch.compile import compile_hlo
from astitch.directives import check_option, parse, read_bytes, read_directives
from astitch.errors import InvalidOption
from astitch.pipeline import PASSES
from astitch.run.host_engine import HostEngine
from astitch.show.compilation import Compilation
from astitch.show.memory import MemoryLimitWarning, estimate_bytes
from tests.hlo_runner import lower
from tests.small_gpu import assert_close, by_jax, few_sms


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (8_000_000_000, 8_000_000_000),
        (8e9, 8_000_000_000),
        ("8GB", 8_000_000_000),
        ("7.5 GiB", 15 << 29),
        ("512m", 512_000_000),
        ("1000", 1000),
        ("0", None),
        ("-1", None),
        ("8 apples", None),
        ("1.2.3", None),
        (float("inf"), None),
        (float("nan"), None),
        (True, None),
    ],
)
def test_sizes(given: Any, size: int | None) -> None:
    assert read_bytes(given) == size


def test_the_option_is_a_directive() -> None:
    assert check_option(None, "f", memory_limit="2GB") == "memory-limit 2000000000"
    text = check_option("leave all", "f", True, 10)
    assert text.splitlines() == ["leave all", "[*]", "in-order", "memory-limit 10"]
    told = read_directives(f"{text}\n[jit_f]\nmemory-limit 5 MB")
    assert told.memory_limit == 5_000_000
    assert told.of("jit_g").memory_limit == 10 and told.of("jit_f").memory_limit == 5_000_000
    assert parse(told.text, "again") == told
    with pytest.raises(InvalidOption, match="memory_limit='much' is not known"):
        astitch.jit(jnp.sin, memory_limit="much")
    with pytest.raises(InvalidOption, match="is no directive"):
        parse("memory-limit much", "here")


ROWS, WIDTH = 256, 64


def mlp(act: Callable[[Any], Any]) -> Callable[..., Any]:
    def loss(weights: list[Any], x: Any) -> Any:
        for w in weights:
            x = act(x @ w)
        return jnp.square(x.astype(jnp.float32)).mean()

    def step(weights: list[Any], x: Any) -> Any:
        gradients = jax.grad(loss)(weights, x)
        return [a - (g * 0.01).astype(a.dtype) for a, g in zip(weights, gradients, strict=True)]

    return step


def norm(x: Any) -> Any:
    y = x.astype(jnp.float32)
    y = (y - y.mean(-1, keepdims=True)) * jax.lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)
    return y.astype(x.dtype)


def drop(x: Any) -> Any:
    kept = jax.random.bernoulli(jax.random.key(1), 0.9, x.shape)
    return jnp.where(kept, jax.nn.gelu(x), 0)


def draw(dtype: Any) -> list[Any]:
    random = np.random.default_rng(0)
    weights = [(random.standard_normal((WIDTH, WIDTH)) * 0.1).astype(dtype) for _ in range(4)]
    return [weights, random.standard_normal((ROWS, WIDTH)).astype(dtype)]


def compiled(fn: Callable[..., Any], arguments: list[Any], told: str = "") -> Compilation:
    return compile_hlo(lower(fn, *arguments, keep_unused=True), gpu=few_sms(4), stitch=told)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small arrays count as large ones."""
    monkeypatch.setattr("astitch.rewrite.keep_less.LEAST_BYTES", 1024)
    monkeypatch.setattr("astitch.search.bound_memory.LEAST_PEAK", 0)
    monkeypatch.setattr("astitch.search.bound_memory.LARGE_BYTES", 1024)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("act", [jax.nn.gelu, jax.nn.silu, norm, drop])
def test_values_stay(act: Callable[[Any], Any], dtype: Any) -> None:
    step, arguments = mlp(act), draw(dtype)
    usual = compiled(step, arguments)
    least = compiled(step, arguments, "memory-limit 1")
    limited = compiled(step, arguments, f"memory-limit {estimate_bytes(usual) - 1}")
    assert estimate_bytes(least) <= estimate_bytes(limited) < estimate_bytes(usual)
    leaves = jax.tree.leaves(arguments)
    wanted = by_jax(step, *arguments)
    for compilation in (least, limited):
        got = HostEngine(compilation.program).run(leaves)
        assert_close(got, wanted, 1e-4 if dtype is np.float32 else 2e-2)


@pytest.mark.usefixtures("small")
def test_explanations_name_what_is_alive() -> None:
    arguments = draw(np.float32)
    told = compiled(mlp(jax.nn.gelu), arguments, "memory-limit 1 MB").explain()
    assert re.search(
        r"memory limit: 1\.0 MB; estimated 0\.\d MB, of which 0\.1 MB are arguments", told
    )


@pytest.mark.usefixtures("small")
def test_jit_warns_of_what_does_not_fit() -> None:
    step, arguments = mlp(jax.nn.gelu), draw(np.float32)
    with pytest.warns(MemoryLimitWarning, match="memory_limit asks for 0.0 MB"):
        got = astitch.jit(step, engine="host", memory_limit=1000)(*arguments)
    assert_close([np.asarray(x) for x in got], by_jax(step, *arguments), 1e-4)


def test_without_a_limit_the_pass_is_not_run() -> None:
    (limited,) = [step for step in PASSES if step.name == "keep_within"]
    assert limited.if_it_fails
    compilation = compiled(mlp(jax.nn.gelu), draw(np.float32))
    assert "keep_within" not in compilation.seconds
