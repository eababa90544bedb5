"""Biases of attention and their gradients, by our own kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from astitch.attention import find, masks
from astitch.attention.choose import Projection
from astitch.device.gpu import preset
from astitch.graph.ir import AttentionAttrs, DType
from astitch.graph.reference import run_graph
from astitch.tile.attention_shape import AttentionShape, Layout
from astitch.tile.rates import project_us
from tests.attention.biased import (
    LEARNED,
    WHOLE,
    joined_for_two_layers,
    of_library_with_bias,
    of_one_bias,
    of_two_layers,
    without_a_bias,
)
from tests.attention.spellings import (
    BATCH,
    BIAS,
    GROUPS,
    HEADS,
    MASK,
    QUERIES,
    attend,
    by_hand,
    causal,
    make_gradient,
)
from tests.attention.test_tiles import (
    BF16,
    F32,
    check_both,
    compare,
    draw,
    draw_shared,
    fuse,
    list_attention,
    run_as_xla,
)
from tests.graphs import GraphBuilder


@pytest.fixture(autouse=True)
def _small_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "LEAST_SCORES", 1)
    monkeypatch.setattr(find, "project", lambda *given, **named: Projection(0.0, 1.0))


def check_same(
    function: Callable[..., Any], arrays: list[np.ndarray], tolerance: float = 3e-3
) -> list[AttentionAttrs]:
    """Found or not, the graph computes the same before and behind, and so do our kernels.  What was found."""
    graph, fused = fuse(function, arrays)
    wanted = run_graph(graph, arrays)
    for results in (run_graph(fused, arrays), run_as_xla(fused, arrays)):
        for found, expected in zip(results, wanted, strict=True):
            compare(found, expected, tolerance)
    return list_attention(fused)


OTHER_PRODUCTS = {"of another product": (1, 3), "of pairs": (1, 2)}
"""Of a function and its gradient."""


@pytest.mark.parametrize("name", LEARNED)
def test_the_gradient_of_a_bias(name: str) -> None:
    function, given = LEARNED[name]
    others = OTHER_PRODUCTS.get(name, (0, 0))
    fused = check_both(function, [*draw(), given.astype(F32)], arguments=4, others=others)
    assert [bool(a.gives) for a in list_attention(fused)] == [False, True]


@pytest.mark.parametrize("function", [of_two_layers, joined_for_two_layers])
@pytest.mark.parametrize("given", [BIAS, WHOLE])
def test_layers_that_share_a_bias(function: Callable[..., Any], given: np.ndarray) -> None:
    """The gradients that they give it are added up."""
    arrays = [*draw(), given.astype(F32)]
    for which, count in ((function, 2), (make_gradient(function, 4), 4)):
        assert len(check_same(which, arrays, 6e-3)) == count


def test_a_bias_that_is_subtracted_is_one() -> None:
    for given in (BIAS, WHOLE):
        fused = check_both(without_a_bias, [*draw(), given.astype(F32)])
        assert list_attention(fused)[0].arrays == ("bias",)


def test_the_gradient_of_a_bias_in_16_bits_and_of_shared_heads() -> None:
    def shared(q: Any, k: Any, v: Any, bias: Any) -> Any:
        k, v = (jnp.repeat(x, HEADS // GROUPS, 2) for x in (k, v))
        return of_one_bias(q, k, v, bias)

    fused = check_both(shared, [*draw_shared(), BIAS.astype(F32)], arguments=4)
    assert list_attention(fused)[1].gives == "bias"
    for bias in (BIAS.astype(BF16), BIAS.astype(F32)):
        check_both(
            of_library_with_bias, [*draw(BF16), bias.astype(BF16)], tolerance=3e-2, arguments=4
        )


@pytest.mark.parametrize("name", LEARNED)
def test_the_gradient_of_a_bias_in_16_bits(name: str) -> None:
    """Also of what the program adds up in f32."""
    function, given = LEARNED[name]
    found = check_same(make_gradient(function, 4), [*draw(BF16), given.astype(BF16)], 4e-2)
    assert [bool(a.gives) for a in found] == [False, True]


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_a_bias_as_large_as_the_scores(dtype: np.dtype) -> None:
    """Also in f32 beside 16 bits."""
    for of_bias in (F32, dtype):
        given = [*draw(dtype), WHOLE.astype(of_bias)]
        tolerance = 3e-3 if dtype == F32 else 2e-2
        fused = check_both(attend(lambda s, b: by_hand(s + b)), given, tolerance=tolerance)
        assert list_attention(fused)[0].arrays == ("bias",)
    given = [*draw(dtype), WHOLE.astype(dtype)]
    fused = check_both(of_one_bias, given, tolerance=3e-2, arguments=4)
    gradient = next(node for node in fused if node.op == "attention-gradient")
    assert gradient.type.elements[3].dtype.numpy == dtype


def perturbed(q: Any, k: Any, v: Any) -> Any:
    """Also the gradient of the scores themselves, as of numbers that are all 0."""
    zeros = jnp.zeros((BATCH, HEADS, QUERIES, QUERIES))
    return make_gradient(of_one_bias, 4)(q, k, v, zeros)


def test_the_gradient_of_scores_without_a_bias() -> None:
    assert [a.gives for a in check_same(perturbed, draw())] == ["", "scores"]


@pytest.mark.parametrize("low", [-1e9, float(np.finfo(np.float32).min), -np.inf])
@pytest.mark.parametrize("kind", ["band", "joined"])
def test_numbers_that_leave_out_all_that_a_mask_shows(kind: str, low: float) -> None:
    """Padding that the program is given as numbers, of which nobody knows that they are a mask."""

    def function(q: Any, k: Any, v: Any, padding: Any) -> Any:
        def weigh(s: Any) -> Any:
            if kind == "band":
                return by_hand(jnp.where(causal(s), s + padding, -1e9))
            kept = jnp.arange(s.shape[-1]) < 5
            return by_hand(s + (padding + jnp.where(kept, 0.0, np.finfo(np.float32).min)))

        return attend(weigh)(q, k, v)

    padding = np.where(np.arange(QUERIES) < 5, low, 0.0).astype(F32)
    assert check_same(function, [*draw(), np.broadcast_to(padding, (BATCH, 1, 1, QUERIES)).copy()])


@pytest.mark.parametrize("most", [1 << 24, QUERIES * QUERIES, 1])
def test_distances_times_slopes_leave_a_band(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many numbers the factors tell that none is low; of more nobody looks."""
    monkeypatch.setattr(masks, "MOST_EVALUATED", most)
    slope = (0.5 ** np.arange(1, HEADS + 1)).astype(F32)[:, None, None]

    def function(q: Any, k: Any, v: Any) -> Any:
        distance = jnp.arange(k.shape[1]) - jnp.arange(q.shape[1])[:, None]
        bias = slope * distance.astype(F32)
        return attend(lambda s: by_hand(jnp.where(causal(s), s + bias, -1e9)))(q, k, v)

    (found,) = check_same(function, draw())
    assert found.causal == (most > 1)


@pytest.mark.parametrize("most", [1 << 24, 8, 1])
@pytest.mark.parametrize(("factor", "is_low"), [(2.0, False), (-1e9, True), (-np.inf, True)])
def test_numbers_that_are_no_numbers_may_be_low(
    factor: float, is_low: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0 times an infinite number is among them.  The factors tell of more than 8, and of more than 1 nothing."""
    monkeypatch.setattr(masks, "MOST_EVALUATED", most)
    g = GraphBuilder()
    row, column = (g.convert(g.iota("s32[4,8]", d), "f32") for d in (0, 1))
    scaled = g.op("multiply", "f32[4,8]", row, g.splat(factor, "f32[4,8]"))
    bias = g.op("multiply", "f32[4,8]", scaled, column)
    assert masks.Masks(g.build(bias)).may_leave_out(bias) == (is_low or most == 1)


def test_bounds_that_are_no_numbers_warn_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least of the distances is 0, and the slopes are infinite."""
    monkeypatch.setattr(masks, "MOST_EVALUATED", 8)
    g = GraphBuilder()
    row, column = (g.convert(g.iota("s32[4,8]", d), "f32") for d in (0, 1))
    slope = g.op("add", "f32[4,8]", row, g.splat(-np.inf, "f32[4,8]"))
    bias = g.op("multiply", "f32[4,8]", slope, column)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert masks.Masks(g.build(bias)).may_leave_out(bias)


@pytest.mark.parametrize("low", [-1e9, float(np.finfo(np.float32).min)])
def test_a_sum_with_a_mask_that_is_narrowed(low: float) -> None:
    """In f16 these numbers are -inf."""

    def function(q: Any, k: Any, v: Any, bias: Any) -> Any:
        kept = jnp.where(MASK[:, None, None, :], 0.0, low)
        return attend(lambda s: by_hand(s + (bias + kept).astype(jnp.float16)))(q, k, v)

    assert check_same(function, [*draw(), BIAS[None].astype(F32)])


def test_rows_with_a_sink_whose_gradient_is_read_as_a_whole() -> None:
    def function(q: Any, k: Any, v: Any, bias: Any) -> Any:
        def weigh(s: Any) -> Any:
            longer = jnp.concatenate([s + bias, jnp.zeros((*s.shape[:3], 1))], -1)
            return by_hand(longer)[..., :-1]

        return attend(weigh)(q, k, v)

    assert check_same(make_gradient(function, 4), [*draw(), WHOLE.astype(F32)])


def test_more_scores_than_offsets_of_32_bits_reach_are_not_written() -> None:
    layout = Layout(DType.BF16, 1, (0, 0, 0, 1), 64)

    def project_of(keys: int) -> float | None:
        shape = AttentionShape(
            batch=16,
            heads=8,
            groups=8,
            queries=4096,
            keys=keys,
            scale=1.0,
            causal=False,
            window=0,
            q=layout,
            k=layout,
            v=layout,
            o=layout,
            gives="scores",
        )
        return project_us(shape, preset("h100"), gradient=True)

    assert project_of(2048) and project_of(4096) is None


@pytest.mark.parametrize("low", [-1e9, float(np.finfo(np.float32).min), -np.inf])
def test_rows_of_which_an_added_mask_leaves_out_all(low: float) -> None:
    """They have equal probabilities, or are NaN."""

    def function(q: Any, k: Any, v: Any, seen: Any) -> Any:
        return attend(lambda s: by_hand(s + jnp.where(seen, 0.0, low)))(q, k, v)

    seen = np.ones((BATCH, 1, 1, QUERIES), np.bool_)
    seen[1] = False
    assert check_same(function, [*draw(), seen])
