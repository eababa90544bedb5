"""`where` at one place of a cache: the new rows are written, and nothing where the place is outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.graph.check import check_graph
from astitch.graph.ir import Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.loops.chosen_rows import write_chosen_rows
from astitch.rewrite.simplify import simplify
from tests.hlo_runner import lower

CACHE = np.arange(2 * 3 * 8 * 4, dtype=np.float32).reshape(2, 3, 8, 4)
ROWS = -np.arange(1, 25, dtype=np.float32).reshape(2, 3, 4)
EACH = np.asarray([7, 2], np.int32)


def words() -> Any:
    return jnp.arange(8)


@pytest.fixture(autouse=True)
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astitch.loops.chosen_rows.LEAST_BYTES", 0)


def at_one_place(cache: Any, rows: Any, place: Any, each: Any) -> Any:
    return jnp.where((words() == place)[:, None], rows[:, :, None], cache)


def at_places_of_sequences(cache: Any, rows: Any, place: Any, each: Any) -> Any:
    is_new = words() == (each + place)[:, None]
    return jnp.where(is_new[:, None, :, None], rows[:, :, None], cache)


def where_it_is_not(cache: Any, rows: Any, place: Any, each: Any) -> Any:
    stays = each[:, None] % 8 != words()
    return jnp.where(stays[:, None, :, None], cache, rows[:, :, None])


def one_row_for_all(cache: Any, rows: Any, place: Any, each: Any) -> Any:
    return jnp.where((words() == place)[:, None], rows[0, 0], cache)


def at_places_of_heads(cache: Any, rows: Any, place: Any, each: Any) -> Any:
    """The dimension of places lies between the others."""
    places = place + jnp.arange(3)
    return jnp.where((words() == places[:, None])[..., None], rows[:, :, None], cache)


def in_a_loop(cache: Any, rows: Any, place: Any, each: Any) -> Any:
    def turn(i: Any, cache: Any) -> Any:
        return at_places_of_sequences(cache, rows * i, place + 2 * i, each)

    return jax.lax.fori_loop(0, 3, turn, cache)


def of_layers(cache: Any, rows: Any, place: Any, each: Any) -> Any:
    def turn(rows: Any, cache: Any) -> Any:
        written = jnp.where((words() == place)[:, None], rows[:, None], cache)
        return rows + written.sum(1), written

    return jax.lax.scan(turn, rows[0], cache)


def of_layers_that_are_counted(cache: Any, rows: Any, place: Any, each: Any) -> Any:
    """The first dimension is that of layers, and a layer is put back where it is in bounds."""

    def turn(i: Any, cache: Any) -> Any:
        written = jnp.where((words() == place)[:, None], rows[0][:, None], cache[i])
        return cache.at[i].set(written)

    return jax.lax.fori_loop(0, 2, turn, cache)


TAKEN: list[Callable[..., Any]] = [
    at_one_place,
    at_places_of_sequences,
    where_it_is_not,
    one_row_for_all,
    at_places_of_heads,
    in_a_loop,
    of_layers,
    of_layers_that_are_counted,
]


def from_a_place_on(cache: Any, rows: Any, place: Any, each: Any) -> Any:
    return jnp.where((words() >= place)[:, None], rows[:, :, None], cache)


def other_rows_at_each_place(cache: Any, rows: Any, place: Any, each: Any) -> Any:
    return jnp.where(
        (words() == place)[:, None], jnp.sin(words())[:, None].astype(np.float32), cache
    )


def what_others_read(cache: Any, rows: Any, place: Any, each: Any) -> Any:
    return at_one_place(cache, rows, place, each), cache.sum(2)


def rewrite(function: Callable[..., Any], donates: bool = True) -> tuple[Graph, Graph]:
    """The graph, and what the pass makes of it."""
    given = (CACHE, ROWS, np.int32(0), EACH)
    graph = simplify(import_hlo(lower(function, *given, keep_unused=True)))

    def updates(graph: Graph) -> dict[str, str]:
        return {node.name: "in place" for node in graph if donates and node.op == "scatter"}

    return graph, check_graph(write_chosen_rows(graph, updates, lambda graph, node: False))


def list_ops(graph: Graph) -> list[str]:
    inner = [op for node in graph for region in node.regions for op in list_ops(region)]
    return [node.op for node in graph] + inner


@pytest.mark.parametrize("place", [0, 5, 7, 8, -1, 100])
@pytest.mark.parametrize("function", TAKEN)
def test_rows_are_written_where_the_cache_lies(function: Callable[..., Any], place: int) -> None:
    graph, changed = rewrite(function)
    assert "scatter" in list_ops(changed)
    given = [CACHE, ROWS, np.asarray(place, np.int32), EACH]
    for one, other in zip(run_graph(graph, given), run_graph(changed, given), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("function", [from_a_place_on, other_rows_at_each_place, what_others_read])
def test_what_is_no_row_or_is_read_again_stays(function: Callable[..., Any]) -> None:
    graph, changed = rewrite(function)
    assert changed is graph


def test_what_is_not_donated_stays() -> None:
    graph, changed = rewrite(at_one_place, donates=False)
    assert changed is graph


def test_small_caches_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astitch.loops.chosen_rows.LEAST_BYTES", 1 << 20)
    graph, changed = rewrite(in_a_loop)
    assert changed is graph


def test_a_loop_that_is_a_kernel_stays() -> None:
    given = (CACHE, ROWS, np.int32(0), EACH)
    graph = simplify(import_hlo(lower(in_a_loop, *given, keep_unused=True)))
    assert write_chosen_rows(graph, lambda graph: {}, lambda graph, node: True) is graph
