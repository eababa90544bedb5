"""Kernels whose scratch takes a program's memory above what XLA alone would need."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.graph.ir import Graph
from astitch.hlo_import import import_hlo
from astitch.run.host_engine import HostEngine
from astitch.search import split_scopes as module
from astitch.search.bound_memory import MARGIN, most_of_memory
from astitch.search.peak_memory import MemoryStep, list_steps, schedule
from astitch.search.split_scopes import Split, Symptom
from astitch.show.compilation import Compilation
from tests.hlo_runner import lower

H100 = preset("h100")


def assign(x: jax.Array, means: jax.Array, spreads: jax.Array) -> object:
    """How far each of some points belongs to each of some normal distributions, and what their sums are."""
    log = -0.5 * ((x[:, None] - means) ** 2 / spreads + jnp.log(spreads)).sum(-1)
    part = jax.nn.softmax(log, -1)
    return part, jnp.concatenate([x, x * x], 1), part.sum(0), jax.nn.logsumexp(log, -1).mean()


def points(count: int, groups: int = 32) -> list[np.ndarray]:
    rng = np.random.default_rng(count)
    centres = rng.standard_normal((groups, 16)).astype(np.float32)
    x = rng.standard_normal((count, 16)).astype(np.float32)
    return [x, centres, np.abs(centres) + 0.5]


def graph_of(count: int) -> Graph:
    return import_hlo(lower(assign, *points(count)))


def peak_of(compiled: Compilation) -> float:
    scratch = {p.scope.name: p.kernel.scratch_bytes for p in compiled.plans}
    return schedule(list_steps(compiled.scopes, scratch)).peak


def splits_for_memory(compiled: Compilation) -> list[Split]:
    return [s for s in compiled.splits if s.reason.symptom is Symptom.MEMORY]


def test_a_kernel_of_much_scratch_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(200_000)
    monkeypatch.setattr(module, "MOST_SAVED", 0)
    whole = compile_graph(graph, H100)
    monkeypatch.undo()
    parts = compile_graph(graph, H100)
    limit = MARGIN * most_of_memory(graph)
    assert peak_of(whole) > limit + module.MUCH_MEMORY
    assert peak_of(parts) <= limit
    (split,) = splits_for_memory(parts)
    assert len(split.parts) > 1
    assert "MB of scratch at a peak of" in str(split) and split.reason.symptom.value in str(split)


@pytest.mark.parametrize(
    ("worth", "share", "taken"), [(1.1, 1.0, True), (0.9, 1.0, False), (0.9, 0.1, True)]
)
def test_little_memory_is_worth_little_time(
    monkeypatch: pytest.MonkeyPatch, worth: float, share: float, taken: bool
) -> None:
    """A tenth of the points: 2.6 MB of scratch, and parts that take as long as the whole.

    share: how much of the program's memory would be much."""
    monkeypatch.setattr(module, "MEMORY_WORTH", worth)
    monkeypatch.setattr(module, "MUCH_SHARE", share)
    (split,) = splits_for_memory(compile_graph(graph_of(20_000), H100))
    assert bool(split.parts) is taken
    assert 0.9 < split.parts_us / split.whole_us < 1.1


def test_memory_that_fits_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(200_000)
    monkeypatch.setattr("astitch.pipeline.most_of_memory", lambda plain: math.inf)
    assert not splits_for_memory(compile_graph(graph, H100))


def test_the_parts_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_SAVED", 1)
    monkeypatch.setattr(module, "MUCH_MEMORY", -(1 << 40))
    monkeypatch.setattr("astitch.pipeline.most_of_memory", lambda plain: 1.0)
    compiled = compile_graph(graph_of(3000), preset("host"))
    arguments = points(3000)
    found = HostEngine(compiled.program, check=True).run(arguments)
    for one, wanted in zip(found, jax.tree.leaves(jax.jit(assign)(*arguments)), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=2e-4, atol=1e-5)
    assert any(split.parts for split in splits_for_memory(compiled))


def test_what_is_alive_at_the_peak_is_looked_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another kernel has more scratch, but the peak stays whatever becomes of that."""
    mega = 1 << 20
    steps = [
        MemoryStep(name, frozenset(), (), scratch=scratch * mega)
        for name, scratch in (("much", 30), ("peak", 20), ("low", 10))
    ]
    program = SimpleNamespace(steps=steps)
    use = SimpleNamespace(order=(0, 1, 2), alive=(50 * mega, 60 * mega, 10 * mega), peak=60 * mega)
    monkeypatch.setattr(module, "list_steps", lambda *_: program)
    monkeypatch.setattr(module, "schedule", lambda _: use)
    plans = {s.name: SimpleNamespace(scope=SimpleNamespace(name=s.name)) for s in steps}
    splitter: Any = SimpleNamespace(
        scopes=None,
        list_scratch=dict,
        regions={},
        plans=[*plans.values()],
        most_bytes=20 * mega,
    )
    tried: set[str] = set()
    for expected in ("peak", "much", None):
        _, plan = module._Splitter.find_heaviest(splitter, tried)
        assert plan is plans.get(expected or "")
        tried.add(expected or "")


DIRECTIONS = tuple(itertools.product((0, 1, -1), repeat=2))


def stream_and_collide(f: jax.Array) -> jax.Array:
    """A step of a lattice of nine directions."""
    rolled = [jnp.roll(x, c, (0, 1)) for x, c in zip(f, DIRECTIONS, strict=True)]
    density = sum(rolled)
    u, v = (
        sum(c[d] * x for c, x in zip(DIRECTIONS, rolled, strict=True)) / density for d in (0, 1)
    )
    along = [3 * (c[0] * u + c[1] * v) for c in DIRECTIONS]
    square = 1.5 * (u * u + v * v)
    rest = [density / 9 * (1 + a + 0.5 * a * a - square) for a in along]
    return jnp.stack([0.4 * x + 0.6 * e for x, e in zip(rolled, rest, strict=True)])


@pytest.mark.slow
def test_parts_are_no_shorter_than_memory_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps fit in few parts, which take less time than one for each of XLA's fusions."""

    def steps(f: jax.Array) -> jax.Array:
        for _ in range(3):
            f = stream_and_collide(f)
        return f

    graph = import_hlo(lower(steps, np.zeros((9, 1024, 1024), np.float32)))
    monkeypatch.setattr(module, "propose_steps", lambda *_: None)  # which are faster still
    found = {}
    for lengths in (module.SAVING_STATEMENTS[:1], module.SAVING_STATEMENTS):
        monkeypatch.setattr(module, "SAVING_STATEMENTS", lengths)
        compiled = compile_graph(graph, H100)
        first = splits_for_memory(compiled)[0]
        found[len(lengths)] = len(first.parts), first.parts_us
    (many, long_us), (few, short_us) = found.values()
    assert 1 < few < many
    assert short_us < 0.9 * long_us
