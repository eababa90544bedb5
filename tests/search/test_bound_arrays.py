"""Stitch ops of more arrays than XLA passes are cut into parts that have fewer, and compute the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.graph.ir import Graph
from astitch.hlo_import import import_hlo
from astitch.pipeline import Launcher, Target
from astitch.run.host_engine import HostEngine
from astitch.search import bound_arrays as bounding
from astitch.search.bound_arrays import MOST_ARRAYS, bound_arrays, count_arrays
from astitch.stitch_scope import Scopes
from astitch.xla.prepare_kernels import MAX_POINTERS
from tests.hlo_runner import lower
from tests.scopes import find_scopes
from tests.small_gpu import assert_close, by_jax, few_sms

H100 = preset("h100")
MOST = 40


def adam(count: jax.Array, *arrays: jax.Array) -> Any:
    """Of parameters, gradients and moments."""
    count, found = count + 1, []
    rate = 0.01 / (1 - 0.9**count)
    for p, g, m in zip(arrays[::3], arrays[1::3], arrays[2::3], strict=True):
        m = 0.9 * m + 0.1 * g
        found += [p - rate * m, m]
    return count, found


def clipped(*arrays: jax.Array) -> Any:
    """All tensors are read for the norm first, and again."""
    norm = jnp.sqrt(sum((jnp.square(x).sum() for x in arrays), jnp.zeros(())))
    return [x * jnp.minimum(1.0, 1 / norm) for x in arrays]


def draw(count: int, columns: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((64, columns)).astype(np.float32) for _ in range(count)]


PROGRAMS: dict[str, tuple[Callable[..., Any], list[np.ndarray]]] = {
    "adam": (adam, [np.int32(3), *draw(60, 512)]),
    "small tensors": (adam, [np.int32(3), *draw(60, 8)]),
    "clipped": (clipped, draw(60, 512)),
    "clipped small tensors": (clipped, draw(60, 8)),
}


def scopes_of(name: str) -> tuple[Graph, Scopes]:
    fn, arrays = PROGRAMS[name]
    graph = import_hlo(lower(fn, *arrays))
    return graph, find_scopes(graph)


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_part_has_more_arrays(name: str) -> None:
    _, scopes = scopes_of(name)
    assert max(count_arrays(scopes.graph, scope) for scope in scopes.scopes) > MOST
    parts = bound_arrays(scopes, H100, MOST)
    counts = [count_arrays(parts.graph, scope) for scope in parts.scopes]
    assert max(counts) <= MOST
    assert len(counts) <= 2 + 1.5 * sum(counts) / MOST  # and no more parts than that takes
    assert any("would have more than" in str(refusal) for refusal in parts.refusals)


def test_few_arrays_stay_together() -> None:
    _, scopes = scopes_of("adam")
    assert bound_arrays(scopes, H100) is scopes


def test_parts_share_no_large_value() -> None:
    """Each tensor is read and written by one kernel."""
    _, scopes = scopes_of("adam")
    parts = bound_arrays(scopes, H100, MOST)
    large = [
        name for scope in parts.scopes for name in scope.inputs if parts.graph[name].array.size > 1
    ]
    assert len(large) == len(set(large)) == 60


@pytest.mark.parametrize("name", PROGRAMS)
def test_parts_compute_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astitch.pipeline.bound_arrays", partial(bounding.bound_arrays, most=MOST))
    fn, arrays = PROGRAMS[name]
    graph = import_hlo(lower(fn, *arrays))
    program = compile_graph(graph, few_sms(4), Target(launcher=Launcher.XLA)).program
    assert len(program.kernels) > 2
    assert_close(list(HostEngine(program).run(arrays)), by_jax(fn, *arrays))


def test_xla_passes_as_many_arrays() -> None:
    assert MOST_ARRAYS < MAX_POINTERS
