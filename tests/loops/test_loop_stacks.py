"""Stacks of loops as TensorFlow's gradients write them: what is rewritten, what is not, and equal bits in any case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from astitch.graph.ir import Graph, Node
from astitch.graph.ops.arrays import array_types
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.loops.analysis import (
    Counter,
    Loop,
    LoopRefusal,
    Stack,
    analyse_loop,
)
from astitch.loops.stacks import straighten_stacks
from astitch.rewrite.simplify import simplify
from tests.hlo_runner import lower

TIME, BATCH, WIDTH = 5, 2, 3
ZEROS = np.zeros((TIME, BATCH, WIDTH), np.float32)


def draw(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def turn_slice(stack: Any, index: Any) -> Any:
    return lax.dynamic_slice(stack, (index, 0, 0), (1, BATCH, WIDTH))


def put_slice(stack: Any, value: Any, index: Any) -> Any:
    return lax.dynamic_update_slice(stack, value, (index, 0, 0))


def count_to(turns: int, body: Callable[..., Any], *state: Any) -> Any:
    """A while of `turns` turns whose counter is the first part of its state."""
    return lax.while_loop(lambda s: s[0] < turns, lambda s: (s[0] + 1, *body(*s)), (0, *state))


def clears_what_it_read(x: Any) -> Any:
    """A list from which a turn takes an element and sets it to zero; nobody reads the list after the loop."""

    def body(turn: Any, list_: Any, carry: Any, left: Any) -> Any:
        value = turn_slice(list_, left - 1)
        return put_slice(list_, 0 * value, left - 1), jnp.tanh(carry + value), left - 1

    return count_to(TIME, body, x, x[:1], TIME)[2]


def hands_on_what_it_wrote(x: Any) -> Any:
    """The same, and the list is read after the loop."""

    def body(turn: Any, list_: Any, carry: Any) -> Any:
        value = jnp.tanh(carry + turn_slice(list_, turn))
        return put_slice(list_, value, turn), value

    return count_to(TIME, body, x, x[:1])[1]


def adds_padded_slices(x: Any) -> Any:
    """A gradient of x[t]: zeros but for one slice, added up."""

    def body(turn: Any, total: Any, carry: Any) -> Any:
        value = jnp.tanh(carry * turn_slice(jnp.asarray(x), turn))
        return total + put_slice(jnp.asarray(ZEROS), value, turn), value

    return count_to(TIME, body, jnp.asarray(ZEROS), x[:1])[1]


def reads_numbers(x: Any) -> Any:
    """Where to read comes from a table, and may be counted from the end."""
    table = jnp.asarray(np.arange(TIME - 1, -1, -1, dtype=np.int32) - TIME)

    def body(turn: Any, carry: Any, numbers: Any, out: Any) -> Any:
        index = lax.dynamic_slice(numbers, (turn,), (1,))[0]
        index = jnp.where(index < 0, index + TIME, index)
        value = jnp.tanh(carry + turn_slice(jnp.asarray(x), index))
        return value, numbers, put_slice(out, value, index)

    return count_to(TIME, body, x[:1], table, jnp.asarray(ZEROS))[3]


STRAIGHT = (clears_what_it_read, hands_on_what_it_wrote, adds_padded_slices, reads_numbers)


def reads_by_numbers_that_wrap(x: Any, table: Any, start: Any) -> Any:
    """Where to read is counted in a type that the factors of the count leave."""
    turns = len(table)
    table = jnp.asarray(table)

    def body(state: Any) -> Any:
        counter, turn, total = state
        number = lax.dynamic_slice(table, (turn,), (1,))[0]
        return counter + 1, turn + 1, total * 3 + number + counter

    first = (table.dtype.type(start), np.int32(0), table.dtype.type(0))
    return lax.while_loop(lambda s: s[1] < turns, body, first)[2] + x


def reads_behind(x: Any) -> Any:
    """What a turn reads the one before wrote."""

    def body(turn: Any, list_: Any) -> Any:
        value = jnp.tanh(turn_slice(list_, jnp.maximum(turn - 1, 0)))
        return (put_slice(list_, value, turn),)

    return count_to(TIME, body, x)[1]


def reads_a_crooked_table(x: Any) -> Any:
    table = jnp.asarray(np.asarray([0, 2, 1, 4, 3], np.int32))

    def body(turn: Any, carry: Any, numbers: Any) -> Any:
        index = lax.dynamic_slice(numbers, (turn,), (1,))[0]
        return jnp.tanh(carry + turn_slice(jnp.asarray(x), index)), numbers

    return count_to(TIME, body, x[:1], table)[1]


def adds_to_minus_zeros(x: Any) -> Any:
    """All but one slice become +0, although none but that one is added to."""

    def body(turn: Any, total: Any) -> Any:
        return (total + put_slice(jnp.asarray(ZEROS), turn_slice(jnp.asarray(x), turn), turn),)

    return count_to(1, body, jnp.asarray(-ZEROS))[1]


def adds_slices_of_minus_zeros(x: Any) -> Any:
    """-0 is left nowhere by +0 + -0."""

    def body(turn: Any, total: Any) -> Any:
        return (total + put_slice(jnp.asarray(ZEROS), turn_slice(jnp.asarray(x), turn), turn),)

    return count_to(TIME, body, jnp.asarray(ZEROS))[1]


CROOKED = (reads_behind, reads_a_crooked_table, adds_to_minus_zeros, adds_slices_of_minus_zeros)


def import_loop(fn: Callable[..., Any], *args: Any) -> tuple[Graph, Graph, Node]:
    """As imported, straightened, and the while in that."""
    graph = simplify(import_hlo(lower(fn, *args)))
    straight = straighten_stacks(graph)
    (node,) = (node for node in straight if node.op == "while")
    return graph, straight, node


def is_straight(loop: Loop | LoopRefusal) -> bool:
    """Are all slices known that a loop reads or writes?"""
    if not isinstance(loop, Loop):
        return False
    read, written = (
        [node for node in loop.body if node.op == op]
        for op in ("dynamic-slice", "dynamic-update-slice")
    )
    stacks = [role for role in loop.roles if isinstance(role, Stack)]
    return len(read) == len(loop.slices) and len(written) == len(stacks)


@pytest.mark.parametrize("fn", STRAIGHT + CROOKED, ids=lambda fn: fn.__name__)
def test_results_have_equal_bits(fn: Callable[..., Any]) -> None:
    x = -ZEROS if "minus" in fn.__name__ else draw(TIME, BATCH, WIDTH)
    graph, straight, _ = import_loop(fn, x)
    wanted, found = (run_graph(g, [x])[0] for g in (graph, straight))
    assert wanted.tobytes() == found.tobytes()


@pytest.mark.parametrize("fn", STRAIGHT, ids=lambda fn: fn.__name__)
def test_a_straight_stack_is_read_or_written(fn: Callable[..., Any]) -> None:
    graph, straight, node = import_loop(fn, draw(TIME, BATCH, WIDTH))
    (before,) = (node for node in graph if node.op == "while")
    assert not is_straight(analyse_loop(graph, before))
    assert is_straight(analyse_loop(straight, node))


def test_what_nobody_reads_is_no_state() -> None:
    _, straight, node = import_loop(clears_what_it_read, draw(TIME, BATCH, WIDTH))
    loop = analyse_loop(straight, node)
    assert isinstance(loop, Loop)
    # The turn, what is left of the list, the carried value, the list.
    assert len(array_types(node)) == 4
    assert sum(isinstance(role, Counter) for role in loop.roles) == 2


def test_a_loop_of_unknown_turns_is_left_alone() -> None:
    def fn(x: Any) -> Any:
        return lax.while_loop(lambda s: s[0].sum() < 3, lambda s: (s[0] + 1, s[1]), (x, x))[0]

    graph, straight, _ = import_loop(fn, draw(4))
    assert straight is graph


@pytest.mark.parametrize(
    ("table", "start"),
    [
        (np.array([4, 2, 0], np.uint32), 0),
        (np.array([2**31 - 1, -5], np.int32), 0),
        (np.array([0, 100_000, 200_000], np.int32), 1 << 20),
    ],
    ids=["falling", "far apart", "far off"],
)
def test_numbers_wrap_around_as_their_type_does(table: np.ndarray, start: int) -> None:
    def fn(x: Any) -> Any:
        return reads_by_numbers_that_wrap(x, table, start)

    graph = import_hlo(lower(fn, table[:1]))
    (want,) = run_graph(graph, [table[:1]])
    (got,) = run_graph(straighten_stacks(simplify(graph)), [table[:1]])
    np.testing.assert_array_equal(got, want)
