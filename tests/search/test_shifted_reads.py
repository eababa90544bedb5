"""Steps of stencils are kernels of their own: no barrier between them, nothing beside what they read and write."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from astitch.compile import compile_graph
from astitch.cost.projected_latency import project
from astitch.device.gpu import preset
from astitch.hlo_import import import_hlo
from astitch.rewrite.simplify import simplify
from astitch.scope.remote_stitch import stitch_remotely
from astitch.search import split_scopes as module
from astitch.search.patterns import FusionGraph, each_vertex, make_fusion_graph
from astitch.search.shifted_reads import propose_steps
from astitch.search.xla_fusions import Proposal, Vertex, read_vertices
from astitch.show.compilation import Compilation
from tests.hlo_runner import lower
from tests.scopes import find_scopes

H100 = preset("h100")
DIRECTIONS = tuple(itertools.product((0, 1, -1), repeat=2))
SIDE = 2048


def collide(moved: list[jax.Array]) -> list[jax.Array]:
    """What a lattice of nine directions does at each place."""
    density = sum(moved)
    u, v = (sum(c[d] * x for c, x in zip(DIRECTIONS, moved, strict=True)) / density for d in (0, 1))
    along = [3 * (c[0] * u + c[1] * v) for c in DIRECTIONS]
    square = 1.5 * (u * u + v * v)
    rest = [density / 9 * (1 + a + 0.5 * a * a - square) for a in along]
    return [0.4 * x + 0.6 * e for x, e in zip(moved, rest, strict=True)]


def by_roll(f: Any) -> Any:
    return jnp.stack(list_rolled(f))


def list_rolled(f: Any) -> Any:
    return collide([jnp.roll(x, c, (0, 1)) for x, c in zip(f, DIRECTIONS, strict=True)])


def by_pad(f: Any) -> Any:
    wide = jnp.pad(f, ((0, 0), (1, 1), (1, 1)), mode="wrap")
    n, m = f.shape[1:]
    moved = [wide[i, 1 - a : 1 - a + n, 1 - b : 1 - b + m] for i, (a, b) in enumerate(DIRECTIONS)]
    return jnp.stack(collide(moved))


def by_edge(f: Any) -> Any:
    """With walls, on which the outermost elements are repeated."""
    wide = jnp.pad(f, ((0, 0), (1, 1), (1, 1)), mode="edge")
    moved = [
        jax.lax.dynamic_slice(wide[i], (1 - a, 1 - b), f.shape[1:])
        for i, (a, b) in enumerate(DIRECTIONS)
    ]
    return jnp.stack(collide(moved))


def repeat(step: Callable[[Any], Any], times: int) -> Callable[[Any], Any]:
    def fn(f: Any) -> Any:
        for _ in range(times):
            f = step(f)
        return f

    return fn


CASES: dict[str, tuple[Callable[[Any], Any], int, Any]] = {
    "roll": (by_roll, 3, np.zeros((9, SIDE, SIDE), np.float32)),
    "roll, 16 bits": (by_roll, 4, np.zeros((9, 1024, 4096), ml_dtypes.bfloat16)),
    "a list": (list_rolled, 3, [np.zeros((SIDE, SIDE), np.float32)] * 9),
    "pad": (by_pad, 3, np.zeros((9, SIDE, SIDE), np.float32)),
    "edge": (by_edge, 2, np.zeros((9, SIDE, SIDE), np.float32)),
}


def time_us(compiled: Compilation) -> float:
    return sum(project(plan.kernel, H100, work=plan.work).time_us for plan in compiled.plans)


def compile_both(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Compilation, Compilation]:
    """With steps proposed, and without."""
    step, times, given = CASES[name]
    graph = import_hlo(lower(repeat(step, times), given))
    compiled = compile_graph(graph, H100)
    assert len(compiled.plans) <= times + 1
    monkeypatch.setattr(module, "propose_steps", lambda *_: None)
    return compiled, compile_graph(graph, H100)


@pytest.mark.parametrize("name", ["roll", "roll, 16 bits", "a list"])
def test_each_step_is_a_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, without = compile_both(name, monkeypatch)
    for plan in compiled.plans:
        assert plan.kernel.global_barriers == plan.kernel.scratch_bytes == 0
    assert time_us(compiled) < 0.8 * time_us(without)


@pytest.mark.parametrize("name", ["pad", "edge"])
def test_steps_cost_nothing_where_one_kernel_has_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written in pieces, a kernel of several steps projects as much as one for each."""
    compiled, without = compile_both(name, monkeypatch)
    assert time_us(compiled) < 1.05 * time_us(without)


def propose_of(function: Callable[..., Any], *given: Any) -> tuple[FusionGraph, Proposal | None]:
    fusion, vertices = read(function, *given)
    return fusion, propose_steps(fusion, vertices, H100)


def read(function: Callable[..., Any], *given: Any) -> tuple[FusionGraph, tuple[Vertex, ...]]:
    scopes = stitch_remotely(find_scopes(simplify(import_hlo(lower(function, *given)))))
    (scope,) = scopes.scopes
    fusion = make_fusion_graph(scopes.graph, scope, H100)
    return fusion, read_vertices(scopes.graph, scope, fusion)


@pytest.mark.parametrize("times", [2, 3])
def test_steps_are_read_by_later_ones_only(times: int) -> None:
    given = np.zeros((9, 64, 64), np.float32)
    fusion, vertices = read(repeat(by_roll, times), given)
    proposal = propose_steps(fusion, vertices, H100)
    assert proposal is not None and len(proposal.fusions) == times
    step_of = {v: n for n, part in enumerate(proposal.fusions) for v in each_vertex(part)}
    assert sorted(step_of) == list(range(len(fusion)))
    assert sum(part.bit_count() for part in proposal.fusions) == len(fusion)
    for v, vertex in enumerate(vertices):
        for edge in vertex.edges:
            assert edge.producer < 0 or step_of[edge.producer] <= step_of[v]
    assert proposal.least_us > 0


def rotate(q: Any, angle: Any) -> Any:
    """Cheap values may be computed again at both places."""
    q = q * 0.125
    half = q.shape[-1] // 2
    turned = jnp.concatenate([-q[:, half:], q[:, :half]], -1)
    return q * jnp.cos(angle) + turned * jnp.sin(angle)


def square(x: Any) -> Any:
    """16 operations, however often each value is read."""
    for _ in range(8):
        x = x * x + x
    return jnp.roll(x, 1, 0) + jnp.roll(x, 1, 1)


def normalize(x: Any) -> Any:
    x = x - x.mean(-1, keepdims=True)
    return jax.nn.softmax(x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5), -1)


@pytest.mark.parametrize("function", [rotate, square, normalize])
def test_cheap_values_and_broadcasts_end_no_step(function: Callable[..., Any]) -> None:
    x = np.zeros((512, 128), np.float32)
    assert propose_of(function, *([x] * function.__code__.co_argcount))[1] is None
