"""Kernels whose scratch takes a program's memory above what XLA alone would need."""

from __future__ import annotations

import math

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
from astitch.search.peak_memory import list_steps, schedule
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


def denoise(x: jax.Array) -> jax.Array:
    """By a wavelet transform of five levels and its inverse, each level of which reads the one before."""
    details = []
    for _ in range(5):
        even, odd = x[:, ::2], x[:, 1::2]
        x = (even + odd) * 0.7
        details.append((even - odd) * 0.7)
    least = jnp.abs(details[0]).mean(1, keepdims=True)
    for detail in reversed(details):
        kept = jnp.sign(detail) * jnp.maximum(jnp.abs(detail) - least, 0)
        x = jnp.stack([x + kept, x - kept], -1).reshape(len(x), -1) * 0.7
    return x


def test_a_kernel_is_cut_by_its_loops_where_fusions_hold_as_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A result's memory is the loops' until it is written."""
    graph = import_hlo(lower(denoise, jax.ShapeDtypeStruct((64, 1 << 18), jnp.float32)))
    monkeypatch.setattr(module, "MOST_SAVED", 0)
    whole = compile_graph(graph, H100)
    monkeypatch.undo()
    parts = compile_graph(graph, H100)
    (split,) = splits_for_memory(parts)
    (plan,) = whole.plans
    assert len(split.parts) == len(module.cut_by_loops(plan))
    assert peak_of(parts) < peak_of(whole) - plan.kernel.scratch_bytes / 8


def test_a_kernel_that_is_cut_by_its_loops_computes_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LEAST_SAVED", 1)
    monkeypatch.setattr(module, "MEMORY_WORTH", math.inf)
    monkeypatch.setattr(module, "MEETING_WORTH", math.inf)
    monkeypatch.setattr("astitch.pipeline.most_of_memory", lambda plain: 1.0)
    monkeypatch.setattr(module._Splitter, "find_proposal", lambda *_: None)
    x = np.random.default_rng(0).standard_normal((4, 1 << 14)).astype(np.float32)
    compiled = compile_graph(import_hlo(lower(denoise, x)), preset("host"))
    assert any(split.parts for split in splits_for_memory(compiled))
    (found,) = HostEngine(compiled.program, check=True).run([x])
    np.testing.assert_allclose(found, jax.jit(denoise)(x), rtol=2e-4, atol=1e-5)
