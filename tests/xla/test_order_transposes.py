"""The order in which a program transposes what its loop carries: in memory that is free by then."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from astitch.compile import compile_graph
from astitch.graph.ir import Graph
from astitch.hlo_import import import_hlo
from astitch.pipeline import Launcher, Target
from astitch.rewrite.simplify import simplify
from astitch.xla.hook import read_module
from astitch.xla.order_transposes import order_transposes
from astitch.xla.updates import find_carried_transposes
from astitch.xla.write_module import export_program
from tests.emulated_xla import as_text, run_graph
from tests.hlo_runner import lower
from tests.small_gpu import few_sms

SHAPES = [(2, 6, 3, 4), (2, 8, 3, 4), (2, 5, 3, 4)]
_RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return (_RANDOM.standard_normal(shape) / 2).astype(np.float32)


def generate(caches: Any, x: Any) -> Any:
    def turn(state: Any, place: Any) -> Any:
        caches, x = state
        made = []
        for cache in caches:
            new = jnp.tanh(x[:, :, :1]).transpose(0, 2, 1, 3)
            cache = lax.dynamic_update_slice_in_dim(cache, new, place, 1)
            scores = jnp.einsum("bgrd,blgd->bgrl", x, cache)
            x = jnp.tanh(x + scores.sum(-1, keepdims=True))
            made.append(cache)
        return (tuple(made), x), ()

    return lax.scan(turn, (caches, x), jnp.arange(5))[0]


ARGUMENTS = [tuple(normal(*shape) for shape in SHAPES), normal(2, 3, 5, 4)]


def write(donated: tuple[bool, ...]) -> tuple[Graph, Any]:
    """(the program's graph, the module that XLA would get)."""
    graph = simplify(import_hlo(lower(generate, *ARGUMENTS)))
    updates: Callable[[Graph], dict[str, str]] = partial(find_carried_transposes, donated=donated)
    made = compile_graph(graph, few_sms(4), Target(launcher=Launcher.XLA, updates=updates))
    return graph, read_module(export_program(made, dict(as_text(made)), {}))


def list_transposes(entry: Any) -> list[Any]:
    return [i for i in entry.instructions if i.opcode == b"transpose"]


@pytest.fixture(autouse=True)
def small_arrays_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astitch.loops.carry.LEAST_BYTES", 0)


def test_each_waits_for_the_one_whose_memory_it_takes() -> None:
    """The largest first, and last when they go back."""
    graph, module = write((True, True, True, False))
    (entry,) = (c for c in module.computations if c.id == module.entry_computation_id)
    assert len(list_transposes(entry)) == 6
    order_transposes(entry)
    by_id = {i.id: i for i in entry.instructions}
    number = {i.id: number for number, i in enumerate(entry.instructions)}
    for instruction in entry.instructions:
        for before in (*instruction.operand_ids, *instruction.control_predecessor_ids):
            assert number[before] < number[instruction.id]
    before = [i for i in list_transposes(entry) if by_id[i.operand_ids[0]].opcode == b"parameter"]
    after = [i for i in list_transposes(entry) if i not in before]
    assert [list(i.shape.dimensions) for i in before] == [[2, 3, n, 4] for n in (8, 6, 5)]
    assert [list(i.shape.dimensions) for i in after] == [[2, n, 3, 4] for n in (5, 6, 8)]
    for chain in (before, after):
        waits = [list(i.control_predecessor_ids) for i in chain]
        assert waits == [[], [chain[0].id], [chain[1].id]]
    arguments = [*ARGUMENTS[0], ARGUMENTS[1]]
    results = run_graph(import_hlo(bytes(module.SerializeToString())), arguments)
    for got, wanted in zip(results, run_graph(graph, arguments), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)


def test_kernels_transpose_what_is_not_donated() -> None:
    """The transposes back are results of a loop in any case."""
    _, module = write((False,) * 4)
    (entry,) = (c for c in module.computations if c.id == module.entry_computation_id)
    by_id = {i.id: i for i in entry.instructions}
    read = [by_id[i.operand_ids[0]].opcode for i in list_transposes(entry)]
    assert b"parameter" not in read


def test_a_program_without_such_a_loop_is_as_it_was() -> None:
    def fn(x: Any) -> Any:
        return lax.fori_loop(0, 9, lambda i, x: jnp.tanh(x @ x), x.T).T

    graph = simplify(import_hlo(lower(fn, normal(4, 4))))
    made = compile_graph(graph, few_sms(4), Target(launcher=Launcher.XLA))
    module = read_module(export_program(made, dict(as_text(made)), {}))
    (entry,) = (c for c in module.computations if c.id == module.entry_computation_id)
    before = entry.SerializeToString()
    order_transposes(entry)
    assert entry.SerializeToString() == before


def turn(_: Any, state: Any) -> Any:
    a, b, x = state
    return a + jnp.tanh(b).sum(), b * 1.1, x + 1


def one_array_twice(k: Any, x: Any) -> Any:
    return lax.fori_loop(0, 6, turn, (k.T, k.T, x))


def two_loops(k: Any, v: Any, x: Any) -> Any:
    return lax.fori_loop(0, 6, turn, (k.T, v.T, x)), lax.fori_loop(0, 6, turn, (v.T, k.T, x))


@pytest.mark.parametrize(
    ("fn", "arguments"),
    [
        (one_array_twice, (normal(8, 6), np.float32(1))),
        (two_loops, (normal(8, 6), normal(8, 6), np.float32(1))),
    ],
)
def test_equal_transposes_wait_for_none_of_themselves(
    fn: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    graph = simplify(import_hlo(lower(fn, *arguments)))
    updates = partial(find_carried_transposes, donated=(True,) * len(arguments))
    made = compile_graph(graph, few_sms(4), Target(launcher=Launcher.XLA, updates=updates))
    module = read_module(export_program(made, dict(as_text(made)), {}))
    entry = next(c for c in module.computations if c.id == module.entry_computation_id)
    before = sorted(i.name for i in entry.instructions)
    order_transposes(entry)
    assert sorted(i.name for i in entry.instructions) == before
    place = {i.id: number for number, i in enumerate(entry.instructions)}
    for i in entry.instructions:
        for other in (*i.operand_ids, *i.control_predecessor_ids):
            assert place[other] < place[i.id]


def test_a_transposed_result_of_a_loop_without_donation_is_a_kernels() -> None:
    """From one place for each turn to one for each sequence."""

    def fn(x: Any) -> Any:
        def step(x: Any, _: None) -> Any:
            return jnp.tanh(x * 1.01), x

        return lax.scan(step, x, None, length=5)[1].swapaxes(0, 1)

    graph = simplify(import_hlo(lower(fn, normal(8, 6))))
    assert not find_carried_transposes(graph, (False,))
    assert not find_carried_transposes(graph, (True,))
