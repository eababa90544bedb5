"""What several task loops compute alike is computed once before them all, and nothing else is."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.graph.index import Symbol, constant, of_symbol
from astitch.graph.ir import DType, Literal, NoAttrs
from astitch.kernel import kernel_ir as k
from astitch.kernel.common_values import LEAST_STATEMENTS, MOST_HELD, share_values
from tests.small_gpu import assert_close, by_jax, few_sms, find_statements, plan_for

F32 = DType.F32
BLOCKS = 4
TASK = of_symbol(Symbol("task", 100))
ARRAYS = {"s", "t", "x0", "x1", "x2", "y0", "y1", "y2"}
ONE = k.Number(Literal.of(np.float32(1)))


def load(name: str, array: str = "s", at: int = 0) -> k.Load:
    return k.Load(name, F32, array, constant(at))


def value(name: str, *operands: str, op: str = "add") -> k.Value:
    exprs = (*map(k.Name, operands), ONE)
    return k.Value(name, F32, k.Call(op, F32, exprs, (F32,) * len(exprs), NoAttrs()))


def loop(number: int, *before: k.Statement, reads: Sequence[str], tasks: int = 100) -> k.Section:
    """Stores to array y`number` what it reads, in `tasks` tasks."""
    stores = [k.Store(f"y{number}", TASK, F32, k.Name(name)) for name in reads]
    body = k.TaskLoop(tasks, tasks <= BLOCKS, tuple(stores))
    return k.Section(number, "loop", 0, 1, 1, 32, (*before, body))


def scaled(number: int, *, tasks: int = 100, array: str = "s") -> k.Section:
    """A loop that needs s + 1 + 1."""
    a, b, c = f"a{number}", f"b{number}", f"c{number}"
    before = load(a, array), value(b, a), value(c, b)
    return loop(number, *before, reads=[c], tasks=tasks)


def share(*body: k.Statement) -> tuple[k.Statement, ...]:
    return share_values(body, ARRAYS, BLOCKS)


def test_two_loops_share_a_value_and_what_it_is_computed_from() -> None:
    common, first, second = share(scaled(0), scaled(1))
    assert isinstance(common, k.Common) and isinstance(first, k.Section)
    assert [s.name for s in common.body] == ["a0", "b0", "c0"]
    assert first == loop(0, reads=["c0"])
    assert second == loop(1, k.Value("c1", F32, k.Name("c0")), reads=["c1"])


def test_a_value_of_two_that_come_from_other_loops_is_rendered_in_their_first_names() -> None:
    """c = a + b + 1 is met first in the third loop, where a and b have names of their own."""
    a = [load(f"a{i}") for i in range(4)]
    b = [load(f"b{i}", "t") for i in range(4)]
    c = [value(f"c{i}", f"a{i}", f"b{i}") for i in range(4)]
    loops = (
        loop(0, a[0], reads=["a0"]),
        loop(1, b[1], reads=["b1"]),
        loop(2, a[2], b[2], c[2], reads=["c2"]),
    )
    fourth = replace(loop(2, a[3], b[3], c[3], reads=["c3"]), number=3)
    common, *rest = share(*loops, fourth)
    assert isinstance(common, k.Common)
    assert common.body == (a[0], b[1], value("c2", "a0", "b1"))
    assert rest[:3] == [
        loop(0, reads=["a0"]),
        loop(1, reads=["b1"]),
        loop(2, reads=["c2"]),
    ]


@pytest.mark.parametrize(
    "body",
    [
        (scaled(0),),
        (scaled(0), scaled(1, array="t")),
        (scaled(0, tasks=2), scaled(1, tasks=4)),  # a block comes by one and a half of them
        (loop(0, load("a"), reads=["a"]), loop(1, load("b"), reads=["b"])),  # of little use
        (scaled(0, array="y1"), scaled(1, array="y1")),  # the second loop stores there
        (scaled(0), k.Barrier("global", "why"), scaled(1)),
        (scaled(0, array="a slot"), scaled(1, array="a slot")),
    ],
    ids=["one loop", "other arrays", "few tasks", "a load", "stored", "levels", "shared memory"],
)
def test_nothing_is_shared(body: tuple[k.Statement, ...]) -> None:
    assert share(*body) == body


def test_what_an_earlier_level_stored_is_shared_behind_the_barrier() -> None:
    barrier = k.Barrier("global", "why")
    first = scaled(2, array="t")
    body = share(first, barrier, scaled(0, array="y2"), scaled(1, array="y2"))
    assert body[:2] == (first, barrier)
    assert isinstance(body[2], k.Common)
    assert body[2].body[0] == load("a0", "y2")


def test_what_differs_from_thread_to_thread_stays() -> None:
    thread = of_symbol(Symbol("thread", 32))
    loops = []
    for number in range(2):
        own = k.Load(f"a{number}", F32, "s", thread)
        names = f"b{number}", f"c{number}"
        values = value(names[0], own.name), value(names[1], names[0])
        loops.append(loop(number, own, *values, reads=[names[1]]))
    assert share(*loops) == tuple(loops)


def test_no_more_values_are_held_than_there_are_registers_for() -> None:
    wanted = MOST_HELD + 3
    loops = []
    for number in range(2):
        before: list[k.Statement] = []
        ends = []
        for i in range(wanted):
            names = [f"v{number}_{i}_{j}" for j in range(LEAST_STATEMENTS)]
            before += [load(names[0], at=i), *map(value, names[1:], names)]
            ends.append(names[-1])
        loops.append(loop(number, *before, reads=ends))
    common, first, _ = share(*loops)
    assert isinstance(common, k.Common) and isinstance(first, k.Section)
    assert len(common.body) == MOST_HELD * LEAST_STATEMENTS
    assert len(first.body) == 1 + (wanted - MOST_HELD) * LEAST_STATEMENTS


def test_what_a_loop_renders_twice_counts_once() -> None:
    """exp(n) of two shapes is two ops to the loop, and one value."""
    twice = load("a"), value("b", "a"), value("c", "b"), value("d", "b"), value("e", "c", "d")
    alone = loop(0, *twice, reads=["e"]), loop(1, reads=[])
    assert share(*alone) == alone
    again = [replace(s, name=f"{s.name}1") for s in (load("a"), value("b", "a1"), value("c", "b1"))]
    common, first, second = share(loop(0, *twice, reads=["e"]), loop(1, *again, reads=["c1"]))
    assert isinstance(common, k.Common) and isinstance(first, k.Section)
    assert [s.name for s in common.body] == ["a", "b", "c"]
    assert first.body[:2] == (k.Value("d", F32, k.Name("c")), value("e", "c", "d"))
    assert second == loop(1, k.Value("c1", F32, k.Name("c")), reads=["c1"])


def test_where_a_value_would_hold_too_many_a_part_of_it_is_shared() -> None:
    def chain(number: int) -> k.Section:
        names = [f"v{number}_{i}" for i in range(MOST_HELD + 4)]
        before = [load(names[0]), *map(value, names[1:], names)]
        return loop(number, *before, reads=names)  # each of them is held

    common, *_ = share(chain(0), chain(1))
    assert isinstance(common, k.Common)
    assert len(common.body) == MOST_HELD


# ---- in whole kernels

SIZES = 9000, 12_000, 7000, 16_384
"""Of gradients and moments: more than the blocks of a small GPU take at once."""


def adam(count: jax.Array, *arrays: jax.Array) -> list[jax.Array]:
    """What corrects the moments is the same for all of them."""
    correction = 1 - jnp.power(0.9, count)
    return [0.9 * m / correction + g for g, m in zip(arrays[::2], arrays[1::2], strict=True)]


def clip_and_adam(count: jax.Array, *arrays: jax.Array) -> list[jax.Array]:
    """The norm of all gradients together, too, behind a barrier of the grid."""
    norm = jnp.sqrt(functools.reduce(operator.add, (jnp.sum(jnp.square(a)) for a in arrays[::2])))
    clipped = (a / jnp.maximum(norm, 1.0) if i % 2 == 0 else a for i, a in enumerate(arrays))
    return adam(count, *clipped)


@pytest.mark.parametrize(("fn", "times"), [(adam, 4), (clip_and_adam, 1)])
def test_kernels_of_many_tensors(fn: Callable[..., Any], times: int) -> None:
    """Where each tensor has blocks of its own, none computes anything twice; after a barrier all do all of them."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(size).astype(np.float32) for size in SIZES for _ in range(2)]
    arguments = (np.float32(3), *arrays)
    planned = plan_for(few_sms(1), fn, *arguments)
    kernel = planned.plan.kernel
    values = [s.expr for s in find_statements(kernel.body, k.Value)]
    ops = [expr.op for expr in values if isinstance(expr, k.Call)]
    assert ops.count("power") == times
    common = [i for i, s in enumerate(kernel.body) if isinstance(s, k.Common)]
    barriers = [
        i for i, s in enumerate(kernel.body) if isinstance(s, k.Barrier) and s.level == "global"
    ]
    assert common == [i + 1 for i in barriers]
    assert len(common) == (fn is clip_and_adam)
    assert_close(planned.run(*arguments, check=True), by_jax(fn, *arguments))


def test_one_value_of_two_shapes() -> None:
    def scale(x: jax.Array, y: jax.Array, z: jax.Array) -> tuple[jax.Array, ...]:
        norm, total = jnp.sqrt(jnp.sum(x * x)), jnp.sum(jnp.cos(x))
        spread = jnp.exp(jnp.broadcast_to(norm, y.shape))
        return y * jnp.exp(norm[None]), spread * y, jnp.sin(z) * total

    rng = np.random.default_rng(0)
    sizes = 9000 * 4, 16_000 * 4, (300 * 4, 40)
    arguments = [0.01 * rng.standard_normal(size).astype(np.float32) for size in sizes]
    planned = plan_for(few_sms(1), scale, *arguments)
    assert_close(planned.run(*arguments, check=True), by_jax(scale, *arguments))
