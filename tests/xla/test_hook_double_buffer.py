"""Loops of XLA's with several turns in one: kernels compute the same, XLA copies nothing and plans no more memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from astitch.xla import double_buffer, plan_turns
from astitch.xla.hook import read_module
from astitch.xla.instructions import is_kernel
from tests.ahead_of_time import compile_ahead, devices, hooked, needs_hook
from tests.hook_evaluation import stitch_through_hook

pytestmark = needs_hook


def laplacian(x: Any) -> Any:
    return sum(jnp.roll(x, by, axis) for by in (1, -1) for axis in range(x.ndim)) - 2 * x.ndim * x


def diffuse(turns: int) -> Callable[..., Any]:
    return lambda x: lax.fori_loop(0, turns, lambda i, x: x + 0.1 * laplacian(x), x)


def normalized(turns: int) -> Callable[..., Any]:
    """Kernels whose blocks meet: each turn divides by a norm.  So do kernels around the loop."""

    def turn(state: Any, _: None) -> tuple[Any, Any]:
        before, x = state
        new = 2 * x - before + 0.1 * laplacian(x)
        norm = jnp.sqrt(jnp.sum(new * new))
        return (x, new / norm), norm

    def run(x: Any) -> Any:
        x = x / jnp.sum(x * x)
        (_, x), norms = lax.scan(turn, (x, 0.5 * x), None, length=turns)
        return x / jnp.sum(x * x), norms

    return run


def wave(turns: int) -> Callable[..., Any]:
    def turn(i: Any, state: Any) -> Any:
        before, x = state
        return x, 2 * x - before + 0.1 * laplacian(x)

    return lambda a, b: lax.fori_loop(0, turns, turn, (a, b))


def edges(turns: int) -> Callable[..., Any]:
    """A stencil by pad, in bf16, that also keeps a row of each turn."""

    def turn(x: Any, _: None) -> tuple[Any, Any]:
        wide = jnp.pad(x, 1, mode="edge")
        near = wide[2:, 1:-1] + wide[:-2, 1:-1] + wide[1:-1, 2:] + wide[1:-1, :-2]
        x = (0.5 * x + 0.125 * near).astype(x.dtype)
        return x, x[0]

    return lambda x: lax.scan(turn, x, None, length=turns)


PROGRAMS: dict[str, tuple[Callable[[int], Callable[..., Any]], int, str]] = {
    "diffuse": (diffuse, 1, "float32"),
    "normalized": (normalized, 1, "float32"),
    "wave": (wave, 2, "float32"),
    "edges": (edges, 1, "bfloat16"),
}


@pytest.mark.parametrize("turns", [8, 9])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str, turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(double_buffer, "COPY_US", 1e6)
    monkeypatch.setattr(plan_turns, "GAIN", 0.0)  # no loop is one kernel
    make, count, dtype = PROGRAMS[name]
    random = np.random.default_rng(0)
    arguments = [random.random((24, 40)).astype(jnp.dtype(dtype)) for _ in range(count)]
    made = stitch_through_hook(make(turns), *arguments)
    assert made.stitching is not None
    assert len(made.stitching.compilation.doubled) == 1
    with jax.default_device(jax.devices("cpu")[0]):
        expected = jax.tree.leaves(jax.jit(make(turns))(*arguments))
    for one, other in zip(made.run(arguments), expected, strict=True):
        tolerance = 1e-5 if dtype == "float32" else 2e-2
        np.testing.assert_allclose(
            one.astype(np.float32), np.float32(other), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("donated", [True, False])
@pytest.mark.parametrize("turns", [8, 9])
@pytest.mark.parametrize("name", ["diffuse", "wave", "edges"])
def test_xla_copies_nothing(name: str, turns: int, donated: bool) -> None:
    make, count, dtype = PROGRAMS[name]
    place = jax.sharding.SingleDeviceSharding(devices()[0])
    make_shape: Any = jax.ShapeDtypeStruct
    arguments = [make_shape((2048, 2048), jnp.dtype(dtype), sharding=place)] * count
    donate = tuple(range(count)) if donated else ()
    plain = compile_ahead(make(turns), *arguments, donate_argnums=donate)
    with hooked():
        ours = compile_ahead(make(turns), *arguments, donate_argnums=donate)
    assert _count_copied(plain) > 0
    assert _count_copied(ours) == 0
    assert _count_planned(ours) <= 1.001 * _count_planned(plain)


@pytest.mark.parametrize("turns", [8, 9])
def test_kernels_that_meet_run_one_by_one(turns: int) -> None:
    place = jax.sharding.SingleDeviceSharding(devices()[0])
    make_shape: Any = jax.ShapeDtypeStruct
    with hooked() as seen:
        compile_ahead(normalized(turns), make_shape((2048, 2048), jnp.float32, sharding=place))
    (made,) = seen.stitchings
    assert made.module is not None and len(made.compilation.doubled) == 1
    counts = []
    for computation in read_module(made.module).computations:
        by_id = {i.id: i for i in computation.instructions}
        meeting = [i for i in by_id.values() if is_kernel(i) and _is_token(i.shape.tuple_shapes)]
        givers = [by_id[i.operand_ids[-1]] for i in meeting]
        before = [by_id[g.operand_ids[0]].id for g in givers if g.opcode != b"constant"]
        assert len(before) == len(set(before)), "two wait for the same one"
        assert len(givers) - len(before) == bool(givers), "only the first waits for none"
        counts.append(len(meeting))
    assert sorted(counts)[-2:] == [2, 2 + turns % 2]


def _is_token(shapes: Any) -> bool:
    return bool(shapes) and list(shapes[-1].dimensions) == [1]


def _count_copied(compiled: Any) -> int:
    """Arrays of 2,048 x 2,048 that bodies of loops copy."""
    text = compiled.as_text()
    bodies = re.findall(r"body=%([\w.-]+)", text)
    parts = {part.split(" ", 1)[0]: part for part in re.split(r"\n%", text)}
    return sum(len(re.findall(r"2048,2048\]\S* copy\(", parts[body])) for body in bodies)


def _count_planned(compiled: Any) -> int:
    stats = compiled.memory_analysis()
    return int(
        stats.argument_size_in_bytes
        + stats.output_size_in_bytes
        + stats.temp_size_in_bytes
        - stats.alias_size_in_bytes
    )
