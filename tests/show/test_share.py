"""How much of a program is stitched: what is counted, what is said of it, and what strict asks for."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import astitch
from astitch.compile import compile_graph
from astitch.cost.projected_latency import project
from astitch.device.gpu import preset
from astitch.errors import InvalidOption, UnsupportedOp
from astitch.hlo_import import import_hlo
from astitch.pipeline import Launcher, Target
from astitch.show.compilation import Compilation
from astitch.show.share import (
    ONE_SIZE,
    WORTH_SAYING_US,
    LeftPart,
    LittleStitchedWarning,
    Share,
    measure_regions,
    warn_of_little,
)
from astitch.xla.compile_module import compile_for_xla
from tests.programs import lower

pytestmark = pytest.mark.usefixtures("sorts_left")

H100 = preset("h100")


def shape(*extents: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(extents, dtype)


def compile_(fn: Callable[..., Any], *specs: jax.ShapeDtypeStruct) -> Compilation:
    return astitch.compile_hlo(lower(fn, specs, "cuda"), gpu="h100")


def sorted_and_normal(x: jax.Array) -> jax.Array:
    return lax.sort(jax.nn.softmax(x), dimension=1) * 2 + x


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("rows", [64, 3000])
def test_a_program_of_kernels_is_stitched_whole(rows: int, dtype: Any) -> None:
    compilation = compile_(lambda x: jax.nn.softmax(x) + 1, shape(rows, 1000, dtype=dtype))
    share = compilation.share
    (plan,) = compilation.plans
    assert (share.value, share.kernels, share.left) == (1.0, 1, ())
    assert share.stitched_us == project(plan.kernel, H100).time_us
    assert compilation.explain().startswith("100 % of the projected memory-intensive time (")


def test_products_are_no_part_of_it() -> None:
    share = compile_(lambda x: x @ x, shape(512, 512)).share
    assert (share.value, share.left) == (1.0, ())
    assert share.headline == "no memory-intensive time"


@pytest.mark.parametrize("rows", [512, 4096])
def test_what_is_left_takes_its_bytes_over_the_bandwidth(rows: int) -> None:
    share = compile_(sorted_and_normal, shape(rows, 2048)).share
    (part,) = share.left
    assert "sort" in part.reason and len(part.ops) == 1
    traffic = 2 * 4 * rows * 2048
    assert part.us == pytest.approx(traffic / H100.bandwidth_gbs / 1e3 + H100.launch_us)
    assert share.kernels == 2
    assert 0.3 < share.value < 0.9


def test_the_largest_part_is_listed_first() -> None:
    def fn(x: jax.Array, y: jax.Array) -> Any:
        return lax.sort(x + 1), lax.top_k(y * 2, 50), jnp.fft.fft(x).real

    share = compile_(fn, shape(1024, 1024), shape(256, 256)).share
    times = [part.us for part in share.left]
    assert times == sorted(times, reverse=True) and len(times) >= 3
    lines = compile_(fn, shape(1024, 1024), shape(256, 256)).explain().splitlines()
    assert lines[1].startswith(f"  left to XLA: {times[0]:.1f} us: ")


def test_a_loop_counts_as_often_as_it_turns() -> None:
    found = []
    for turns in (2, 14):

        def fn(x: jax.Array, turns: int = turns) -> jax.Array:
            return lax.fori_loop(0, turns, lambda i, h: lax.sort(jnp.sin(h) + i, dimension=1), x)

        graph = import_hlo(lower(fn, [shape(256, 256)], "cuda"))
        (loop,) = (node for node in graph if node.op == "while")
        found.append(measure_regions(graph, loop, H100))
        share = compile_(fn, shape(256, 256)).share
        assert share.left_us == pytest.approx(found[-1])
    assert found[1] == pytest.approx(7 * found[0]) and found[0] > 0


def test_kernels_of_bodies_count_as_often_as_they_run() -> None:
    def layers(weights: jax.Array, x: jax.Array) -> Any:
        def layer(h: jax.Array, w: jax.Array) -> Any:
            h = jax.nn.softmax(h @ w) + h
            return h, h.sum()

        return lax.scan(layer, x, weights)

    found = {}
    for count in (3, 12):
        graph = import_hlo(lower(layers, [shape(count, 1024, 1024), shape(1024, 1024)], "cuda"))
        compilation, _ = compile_for_xla(graph, H100, simplified=True)
        (body,) = compilation.bodies
        assert list(body.runs.values()) == [count]
        found[count] = compilation.share
    assert found[3].kernels == found[12].kernels >= 1
    assert found[12].stitched_us == pytest.approx(4 * found[3].stitched_us)


def test_a_loop_that_is_one_kernel_is_stitched() -> None:
    def recurrence(w: jax.Array, xs: jax.Array) -> Any:
        def turn(h: jax.Array, x: jax.Array) -> Any:
            h = jnp.tanh(h @ w + x)
            return h, h

        return lax.scan(turn, xs[0], xs)

    graph = import_hlo(lower(recurrence, [shape(128, 128), shape(32, 8, 128)], "cuda"))
    compilation, _ = compile_for_xla(graph, H100)
    assert len(compilation.loop_us) == 1
    assert compilation.share.value > 0.9
    assert compilation.share.stitched_us >= compilation.loop_us[0]


def test_calls_of_others_are_not_light_work() -> None:
    share = compile_(lambda x: jnp.linalg.cholesky(x @ x.T) * 2, shape(1024, 1024)).share
    assert not any("custom-call" in part.reason for part in share.left)


# ---- what is said --------------------------------------------------------------------------------------------------


def little(x: jax.Array) -> jax.Array:
    for dimension in (1, 0, 1, 0):
        x = lax.sort(x, dimension=dimension)
    return x + jax.nn.softmax(x[:8]).sum()


def test_it_is_said_once_for_a_function_and_says_what_to_do() -> None:
    compilation = compile_(little, shape(4096, 4096))
    assert compilation.share.value < 0.5
    with pytest.warns(LittleStitchedWarning) as said:
        for _ in range(3):
            warn_of_little("a function that is mostly sorted", compilation)
    (warning,) = said
    text = str(warning.message)
    assert text.startswith("astitch: a function that is mostly sorted: ")
    assert "left to XLA: " in text and "strict=0.9" in text and "explain()" in text


@pytest.mark.parametrize(
    ("fn", "spec"),
    [
        (little, shape(16, 16)),  # it takes no time
        (lambda x: lax.sort(x), shape(4096, 4096)),  # an op
        (lambda x: jnp.median(x, axis=1), shape(4096, 4096)),  # hardly more
        (lambda x: x @ x, shape(1024, 1024)),  # nothing memory-intensive
        (lambda x: jax.nn.softmax(x), shape(4096, 4096)),
    ],
)
def test_of_other_programs_nothing_is_said(fn: Callable[..., Any], spec: Any) -> None:
    compilation = compile_(fn, spec)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_little(f"{fn} {spec}", compilation)
    share = compilation.share
    assert share.value > 0.5 or share.left_us < WORTH_SAYING_US or not share.kernels


def test_what_xla_computes_as_well_is_not_missed() -> None:
    part = LeftPart(ONE_SIZE, 900.0, ("a", "b", "c"))
    sorts = LeftPart("a sort", 90.0, ("d", "e", "f"))
    share = Share(1, 10.0, (part, sorts))
    assert share.lost_us == 90 and share.value == 0.01
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_little("a stencil", SimpleNamespace(share=share))  # type: ignore[arg-type]
    with pytest.warns(LittleStitchedWarning):
        few = SimpleNamespace(share=Share(1, 10.0, (sorts,)))
        warn_of_little("sorts", few)  # type: ignore[arg-type]


def test_a_narrow_network_s_kernel_is_stitched() -> None:
    def network(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(3):
            x = jax.nn.relu(x @ w)
        return x

    graph = import_hlo(lower(network, [shape(32768, 64), shape(64, 64)], "cuda"))
    share = compile_graph(graph, H100, Target(launcher=Launcher.XLA, attention=True)).share
    assert share.kernels == 1 and share.value == 1 and share.stitched_us > 5


# ---- strict --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("host_engine")
def test_strict_takes_a_share() -> None:
    x = jnp.linspace(0, 1, 64 * 64).reshape(64, 64)
    share = astitch.jit(sorted_and_normal).lower(x).compile().compilation.share.value
    assert 0.2 < share < 0.95
    lenient = astitch.jit(sorted_and_normal, strict=share - 0.05)
    assert jnp.allclose(lenient(x), sorted_and_normal(x), atol=1e-5)
    wanted = share + 0.02
    for act in (lambda f: f(x), lambda f: f.lower(x).compile()):
        with pytest.raises(
            UnsupportedOp, match=rf"strict={wanted:g} was asked for, and \d+ %"
        ) as error:
            act(astitch.jit(sorted_and_normal, strict=wanted))
        assert "sort" in str(error.value)
    assert astitch.jit(lambda x: jax.nn.softmax(x), strict=1.0)(x).shape == (64, 64)


@pytest.mark.parametrize("strict", [0.0, -0.5, 1.5, "yes", None])
def test_other_values_of_strict_are_refused(strict: Any) -> None:
    with pytest.raises(InvalidOption, match="share of the memory-intensive time"):
        astitch.jit(sorted_and_normal, strict=strict)
