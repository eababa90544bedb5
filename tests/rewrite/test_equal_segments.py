"""Scatters to segments of one length are reductions, and gathers that repeat rows are broadcasts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.compile import compile_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.equal_segments import reduce_equal_segments
from astitch.rewrite.expand import expand
from astitch.rewrite.simplify import simplify
from astitch.run.host_engine import HostEngine
from tests.hlo_runner import lower
from tests.small_gpu import few_sms

ROWS, LENGTH, WIDTH = 40, 6, 5
RNG = np.random.default_rng(0)
X = RNG.standard_normal((ROWS * LENGTH, WIDTH)).astype(np.float32)
Y = RNG.standard_normal((ROWS, WIDTH)).astype(np.float32)
NUMBERS = np.arange(ROWS * LENGTH) // LENGTH


def repeat(rows: int = ROWS) -> jax.Array:
    return jnp.broadcast_to(jnp.arange(rows)[:, None], (rows, LENGTH)).reshape(-1)


def mean(x: jax.Array) -> jax.Array:
    i = jnp.arange(len(x)) // LENGTH
    count = jax.ops.segment_sum(jnp.ones(len(x)), i, ROWS)
    return jax.ops.segment_sum(x, i, ROWS) / count[:, None]


def message(y: jax.Array, x: jax.Array) -> jax.Array:
    return jax.ops.segment_sum(jnp.exp(y[repeat()] + x), repeat(), ROWS)


def derive(y: jax.Array, x: jax.Array) -> Any:
    return jax.grad(lambda y, x: jnp.square(message(y, x)).sum(), (0, 1))(y, x)


EQUAL: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "sum": (lambda x: jax.ops.segment_sum(jnp.tanh(x), repeat(), ROWS), (X,)),
    "said to be sorted": (
        lambda x: jax.ops.segment_sum(x, repeat(), ROWS, indices_are_sorted=True),
        (X,),
    ),
    "a constant": (lambda x: jax.ops.segment_sum(x, NUMBERS, ROWS), (X,)),
    "more rows": (lambda x: jax.ops.segment_max(x, repeat(), ROWS + 3), (X,)),
    "least": (lambda x: jax.ops.segment_min(x, repeat(), ROWS), (X,)),
    "product": (lambda x: jax.ops.segment_prod(x, repeat(), ROWS), (X,)),
    "numbers": (lambda x: jax.ops.segment_sum(x[:, 0], repeat(), ROWS), (X,)),
    "integers": (
        lambda x: jax.ops.segment_sum((x * 9).astype(jnp.int32), repeat(), ROWS),
        (X,),
    ),
    "half precision": (
        lambda x: jax.ops.segment_sum(x.astype(jnp.bfloat16), repeat(), ROWS),
        (np.round(X),),
    ),
    "quotients": (mean, (X,)),
    "to what is there": (lambda y, x: y.at[repeat()].add(x), (Y, X)),
    "two dimensions": (
        lambda x: (
            jnp.zeros((ROWS, WIDTH))
            .at[repeat().reshape(ROWS, LENGTH)]
            .add(x.reshape(ROWS, LENGTH, WIDTH))
        ),
        (X,),
    ),
    "one each": (lambda x: jnp.zeros((len(x) + 5, WIDTH)).at[jnp.arange(len(x))].add(x * 2), (X,)),
    "repeated rows": (lambda y, x: jnp.sin(y[repeat()]) * x, (Y, X)),
    "messages": (message, (Y, X)),
    "gradients": (derive, (Y, X)),
}

OTHER: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "from the second row on": (
        lambda x: jax.ops.segment_sum(x, repeat() + 1, ROWS + 1),
        (X,),
    ),
    "a segment is shorter": (lambda x: jax.ops.segment_sum(x[:-1], NUMBERS[:-1], ROWS), (X,)),
    "in another order": (lambda x: jax.ops.segment_sum(x, NUMBERS[::-1].copy(), ROWS), (X,)),
    "beyond the rows": (lambda x: jax.ops.segment_sum(x, repeat(), ROWS - 1), (X,)),
    "given": (
        lambda x, i: jax.ops.segment_sum(x, i, ROWS),
        (X, RNG.integers(0, ROWS, len(X)).astype(np.int32)),
    ),
}


def check(fn: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    """Are all scatters and gathers reductions and broadcasts?  Results are those of JAX either way."""
    compilation = compile_graph(import_hlo(lower(fn, *arguments)), few_sms(4))
    found = HostEngine(compilation.program, check=True).run(arguments)
    for got, want in zip(found, jax.tree.leaves(jax.jit(fn)(*arguments)), strict=True):
        np.testing.assert_allclose(
            got.astype(np.float64), np.asarray(want, np.float64), rtol=2e-5, atol=2e-5
        )
    return not any(node.op in ("scatter", "gather") for node in compilation.scopes.graph)


@pytest.mark.parametrize("name", EQUAL)
def test_segments_of_one_length(name: str) -> None:
    assert check(*EQUAL[name])


@pytest.mark.parametrize("name", OTHER)
def test_other_places(name: str) -> None:
    check(*OTHER[name])


@pytest.mark.parametrize(("rows", "rewritten"), [(2 * ROWS + 1, False), (2 * ROWS, True)])
def test_a_few_rows_of_many_are_written_where_they_lie(rows: int, rewritten: bool) -> None:
    table = np.zeros((rows, WIDTH), np.float32)

    def add(table: jax.Array, x: jax.Array) -> jax.Array:
        return table.at[repeat()].add(x)

    graph = import_hlo(lower(add, table, X))
    log: list[str] = []
    reduce_equal_segments(expand(simplify(graph)), lambda rule, name: log.append(rule))
    assert ("reduce_equal_segments" in log) is rewritten


def test_no_updates() -> None:
    check(lambda x: jax.ops.segment_sum(x[:0], repeat(0), ROWS) + x[:ROWS], (X,))
