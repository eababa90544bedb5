"""Reductions of a few elements that lie nowhere in memory: what is written out, and that nothing changes."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.compile import compile_hlo
from astitch.device.gpu import preset
from astitch.graph.check import check_graph
from astitch.graph.ir import Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.short_reductions import FEW, write_out_short_reductions
from astitch.rewrite.simplify import simplify
from astitch.run.host_engine import HostEngine

Function = Callable[..., jax.Array]


def read(fn: Function, *arguments: np.ndarray) -> bytes:
    module: bytes = (
        jax.jit(fn).lower(*arguments).compiler_ir("hlo").as_serialized_hlo_module_proto()
    )
    return module


def written_out(graph: Graph) -> list[str]:
    heard: list[str] = []
    write_out_short_reductions(
        graph, lambda rule, node: heard.append(node) if rule == "write_out_reduction" else None
    )
    return heard


def points(n: int, d: int, dtype: object = np.float32) -> np.ndarray:
    return np.random.default_rng(n + d).standard_normal((n, d)).astype(dtype)


def whole(n: int) -> np.ndarray:
    return np.arange(3 * n, dtype=np.int32).reshape(n, 3)


def distances(x: jax.Array) -> jax.Array:
    return jnp.sqrt(((x[:, None] - x[None]) ** 2).sum(-1) + 1e-3)


def energy(x: jax.Array) -> jax.Array:
    return (1 / (distances(x) + 1)).sum(1)


def forces(x: jax.Array) -> jax.Array:
    d = x[None] - x[:, None]
    r = jnp.sum(d * d, axis=2, keepdims=True) + 0.01
    return jnp.sum(d / (r * jnp.sqrt(r)), axis=1)


def farthest(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.max(jnp.abs(x[:, :, None] - y.T[None]), axis=1).min(-1)


def nearest(x: jax.Array, y: jax.Array) -> jax.Array:
    """A reduction of values and their places."""
    return jnp.argmin(((x[:, None] - y[None]) ** 2).sum(-1), 1)


def angles(x: jax.Array) -> jax.Array:
    return jax.vmap(lambda a: jax.vmap(lambda b: (a * b).sum())(x).max())(x)


def numbers(*shape: int, dtype: object = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def normalise_pairs(x: jax.Array) -> jax.Array:
    """The larger of each two numbers, by their norm."""
    largest = x.reshape(len(x), -1, 2).max(-1)
    return largest / jnp.linalg.norm(largest, axis=-1, keepdims=True)


def soften_magnitudes(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(jnp.sqrt((x**2).sum(-1)))


def mean_entropy(x: jax.Array) -> jax.Array:
    """Of the mean of several distributions."""
    p = jax.nn.softmax(x).mean(0)
    return -(p * jnp.log(p)).sum(-1)


def mix_experts(y: jax.Array, w: jax.Array) -> jax.Array:
    h = (y.astype(jnp.float32) * w[..., None]).sum(1)
    return h * jax.lax.rsqrt(jnp.square(h).mean(-1, keepdims=True) + 1e-6)


PROGRAMS = {
    "pairs": (normalise_pairs, (numbers(5, 160),)),
    "pairs bf16": (lambda x: normalise_pairs(x).sum(-1), (numbers(5, 160, dtype=jnp.bfloat16),)),
    "magnitudes": (soften_magnitudes, (numbers(3, 2, 70, 3),)),
    "entropy": (mean_entropy, (numbers(4, 6, 90),)),
    "experts": (mix_experts, (numbers(6, 2, 80, dtype=jnp.bfloat16), numbers(6, 2))),
    "energy": (energy, (points(40, 3),)),
    "forces": (forces, (points(40, 3),)),
    "farthest": (farthest, (points(40, 2), points(24, 2))),
    "nearest": (nearest, (points(40, 8), points(24, 8))),
    "angles f16": (angles, (points(40, 4, np.float16),)),
    "energy bf16": (energy, (points(24, 3, jnp.bfloat16),)),
    "counts": (
        lambda a, b: (a[:, None] == b[None]).astype(jnp.int32).sum(-1).max(0),
        (whole(20) % 5, whole(30) % 4),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_those_of_the_reduction(name: str) -> None:
    fn, arguments = PROGRAMS[name]
    graph = simplify(import_hlo(read(fn, *arguments)))
    changed = check_graph(write_out_short_reductions(graph))
    assert written_out(graph)
    (wanted,), (found,) = run_graph(graph, arguments), run_graph(changed, arguments)
    close = 2e-2 if jnp.result_type(wanted.dtype).itemsize == 2 else 1e-5
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=close)


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_compute_them(name: str) -> None:
    fn, arguments = PROGRAMS[name]
    compilation = compile_hlo(read(fn, *arguments), gpu=preset("host"))
    (found,) = HostEngine(compilation.program).run(arguments)
    wanted = np.asarray(jax.jit(fn)(*arguments), np.float64)
    close = 2e-2 if jnp.result_type(arguments[0].dtype).itemsize == 2 else 1e-5
    np.testing.assert_allclose(np.asarray(found, np.float64), wanted, rtol=close, atol=close)


def test_what_lies_in_memory_is_read_as_rows() -> None:
    x = points(4096, 3)
    for fn in (lambda x: x.sum(-1), lambda x: jnp.exp(x * 2).max(-1), lambda x: (x - x[0]).sum(1)):
        assert not written_out(simplify(import_hlo(read(fn, x))))


def test_what_meets_rows_is_written_out_where_few_lie_side_by_side() -> None:
    half = jnp.bfloat16
    for fn, x, written in (
        (soften_magnitudes, numbers(8, 64, 4), True),
        (soften_magnitudes, numbers(8, 64, 5), False),
        (soften_magnitudes, numbers(8, 64, 2, dtype=half), True),
        (soften_magnitudes, numbers(8, 64, 3, dtype=half), False),
        (soften_magnitudes, numbers(8, 63, 2), False),  # the rows are short
        (soften_magnitudes, numbers(64, 2), False),  # there is one row
        (mean_entropy, numbers(FEW, 8, 64), True),
        (mean_entropy, numbers(FEW + 1, 8, 64), False),
        (lambda x: jax.nn.softmax(x.sum(0) - x.sum((0, 2))[:, None]), numbers(4, 8, 64), False),
        (lambda x: (x.sum(0), x.sum(0).T.sum(-1)), numbers(4, 64, 64), False),
        (lambda x: (x.sum(0), jax.nn.softmax(x.sum(0))), numbers(4, 8, 64), False),  # it is stored
        (lambda x: jax.nn.softmax(x.sum(0) + x.max(0)), numbers(4, 8, 64), True),
    ):
        assert bool(written_out(simplify(import_hlo(read(fn, x))))) is written


def test_many_elements_are_a_reduction() -> None:
    assert written_out(simplify(import_hlo(read(energy, points(80, FEW)))))
    assert not written_out(simplify(import_hlo(read(energy, points(80, FEW + 1)))))


def test_what_is_stored_is_summed_as_a_row() -> None:
    def both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        d = distances(x)
        return d, d.sum(0)

    for fn in (distances, both):
        assert not written_out(simplify(import_hlo(read(fn, points(80, 3)))))


def test_all_pairs_of_points_are_never_in_memory() -> None:
    """The distances are computed where the sum of forces reads them, once for its three columns."""
    compilation = compile_hlo(read(forces, points(2048, 3)), gpu=preset("h100"))
    (plan,) = compilation.plans
    (loop,) = plan.arrangement.loops
    assert loop.mapping.col_threads == 1
    assert loop.mapping.col_tile == 3
    assert compilation.program.arena_bytes == 0
