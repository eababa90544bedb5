"""Attention by kernels of our own: found in every spelling in f32; its calls compute what the graph does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from astitch.attention import find
from astitch.attention.choose import Projection
from astitch.attention.fuse import fuse_attention
from astitch.device.gpu import preset
from astitch.graph.check import check_graph
from astitch.graph.ir import AttentionAttrs, DType, Graph
from astitch.graph.reference import run_graph
from astitch.hlo.export import export_nodes
from astitch.hlo_import import import_hlo
from astitch.rewrite.simplify import simplify
from tests import emulated_xla
from tests.attention.spellings import (
    BATCH,
    BIAS,
    FEATURES,
    GIVEN,
    GROUPS,
    HEADS,
    KEPT,
    LENGTHS,
    MASK,
    OTHERS,
    PARTLY_SHARED,
    PLAIN,
    QUERIES,
    SEGMENTS,
    SHARED,
    SINK,
    SINKS,
    VECTORS,
    attend,
    by_hand,
    causal,
    columns_of,
    dropped,
    lengths,
    make_gradient,
    of_flax,
    rows_of,
)
from tests.hlo_runner import lower
from tests.tile_calls import recorded

F32, BF16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)
GPU = preset("h100")
ADDED_IN_F32 = {"f32_bias", "one_far_bias"}
CAPPED = "capped"
TAKEN = ADDED_IN_F32 | {CAPPED, "with_sink", "rows_without_scores"}
"""Of OTHERS what only the library does not take."""


@pytest.fixture(autouse=True)
def _small_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "LEAST_SCORES", 1)
    monkeypatch.setattr(find, "project", lambda *given, **named: Projection(0.0, 1.0))


def draw(dtype: np.dtype = F32, features: int = FEATURES) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    shape = (BATCH, QUERIES, HEADS, features)
    return [random.standard_normal(shape).astype(dtype) for _ in range(3)]


def draw_shared(dtype: np.dtype = F32) -> list[np.ndarray]:
    q, *others = draw(dtype)
    return [q, *(x[:, :, :GROUPS] for x in others)]


def fuse(function: Callable[..., Any], arrays: list[np.ndarray]) -> tuple[Graph, Graph]:
    """(the graph of a function, the same with attention as ops)."""
    graph = simplify(import_hlo(lower(function, *arrays)))
    return graph, simplify(check_graph(fuse_attention(graph, GPU)))


def list_attention(graph: Graph) -> list[AttentionAttrs]:
    return [n.attrs for n in graph if isinstance(n.attrs, AttentionAttrs)]


def run_as_xla(graph: Graph, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """What XLA gets of the graph, with the calls of tile programs interpreted."""
    names = [node.name for node in graph if not node.is_parameter]
    with recorded():
        exported = export_nodes(graph, names, graph.outputs)
    given = dict(zip(graph.parameters, arrays, strict=True))
    return emulated_xla.run_module(exported.hlo, [given[name] for name in exported.operands])


def check_both(
    function: Callable[..., Any],
    arrays: list[np.ndarray],
    *,
    tolerance: float = 3e-3,
    arguments: int = 3,
    others: tuple[int, int] = (0, 0),
) -> Graph:
    """A function and its gradient have no product left; the ops and their kernels compute the same.

    arguments: so many have a gradient.  others: so many products of the function, and
    of its gradient, are none of attention."""
    for which, count in ((function, 1), (make_gradient(function, arguments), 2)):
        graph, fused = fuse(which, arrays)
        assert [a.tiles != "" for a in list_attention(fused)] == [True] * count
        assert sum(node.op == "dot" for node in fused) == others[count - 1]
        wanted = run_graph(graph, arrays)
        for results in (run_graph(fused, arrays), run_as_xla(fused, arrays)):
            for found, expected in zip(results, wanted, strict=True):
                compare(found, expected, tolerance)
    return fused


def compare(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    x, y = found.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(x), np.isnan(y))
    x, y = np.nan_to_num(x), np.nan_to_num(y)
    assert np.linalg.norm(x - y) <= tolerance * np.linalg.norm(y)


@pytest.mark.parametrize("name", PLAIN)
def test_every_spelling_is_found(name: str) -> None:
    function, mask = PLAIN[name]
    fused = check_both(function, draw())
    attrs = list_attention(fused)[0]
    assert (attrs.tiles, attrs.causal, attrs.window) == {
        "all": ("tf32", False, 0),
        "causal": ("tf32", True, 0),
        "window": ("tf32", True, 5),
    }[mask]


@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float16)])
def test_16_bits(dtype: np.dtype) -> None:
    check_both(PLAIN["where"][0], draw(dtype), tolerance=2e-2)


@pytest.mark.parametrize("name", [*SHARED, *PARTLY_SHARED])
def test_heads_share_keys(name: str) -> None:
    check_both((SHARED | PARTLY_SHARED)[name][0], draw_shared())


@pytest.mark.parametrize("name", GIVEN)
def test_masks_and_biases_that_are_given(name: str) -> None:
    function, given = GIVEN[name]
    array = given if given.dtype == np.bool_ else given.astype(F32)
    fused = check_both(function, [*draw(), array])
    (node,) = (node for node in fused if node.op == "attention")
    bias = fused[node.operands[3]]
    # Nothing is repeated.
    assert (bias.dtype, bias.shape) == {
        "mask": (DType.PRED, (BATCH, 1, 1, QUERIES)),
        "added_mask": (DType.PRED, (BATCH, 1, 1, QUERIES)),
        "mask_of_both": (DType.PRED, (BATCH, 1, 1, QUERIES)),
        "bias": (DType.F32, (1, HEADS, QUERIES, QUERIES)),
    }[name]


@pytest.mark.parametrize("name", VECTORS)
def test_masks_that_vectors_give_are_read_as_vectors(name: str) -> None:
    """No array of them has an element for each score, and a band stays one."""
    function, given, arrays, is_causal = VECTORS[name]
    fused = check_both(attend(function), [*draw(), given])
    forward, gradient = list_attention(fused)
    assert (forward.arrays, forward.causal) == (arrays, is_causal)
    assert gradient.arrays == (*arrays, "empty") if is_causal else arrays
    (node,) = (node for node in fused if node.op == "attention")
    shapes = [fused[o].shape for o in node.operands[3:]]
    assert all(1 in shape[2:] for shape in shapes)


def of_library(q: Any, k: Any, v: Any, lengths: Any) -> Any:
    return jax.nn.dot_product_attention(
        q, k, v, is_causal=True, query_seq_lengths=lengths, key_value_seq_lengths=lengths
    )


def of_library_by_mask(q: Any, k: Any, v: Any, ids: Any) -> Any:
    mask = rows_of(ids) == columns_of(ids)
    return jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=True)


def one_document_at_a_time(q: Any, k: Any, v: Any, ids: Any) -> Any:
    def one(q: Any, k: Any, v: Any, ids: Any) -> Any:
        s = jnp.where(ids[:, None] == ids, q @ k.T / 4, -1e9)
        return jax.nn.softmax(s, -1) @ v

    heads = jax.vmap(one, in_axes=(1, 1, 1, None), out_axes=1)
    return jax.vmap(heads)(q, k, v, ids)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (of_library, LENGTHS),
        (of_library_by_mask, SEGMENTS),
        (one_document_at_a_time, SEGMENTS),
        (one_document_at_a_time, SEGMENTS.astype(np.uint8)),
        (of_library_by_mask, SEGMENTS.astype(np.int16)),
    ],
)
def test_vectors_in_other_spellings(function: Callable[..., Any], given: np.ndarray) -> None:
    fused = check_both(function, [*draw(), given])
    (node, *_) = (node for node in fused if node.op == "attention")
    assert all(1 in fused[o].shape[2:] for o in node.operands[3:])
    check_both(function, [*draw(BF16), given], tolerance=2e-2)


def test_vectors_beside_shared_heads_sinks_dropout_and_biases() -> None:
    def shared(q: Any, k: Any, v: Any, ids: Any) -> Any:
        k, v = (jnp.repeat(x, HEADS // GROUPS, 2) for x in (k, v))
        return attend(VECTORS["that_are_padded"][0])(q, k, v, ids)

    check_both(shared, [*draw_shared(), SEGMENTS])

    def with_sink(s: Any, ids: Any, sink: Any) -> Any:
        seen = causal(s) & (rows_of(ids) == columns_of(ids)) & columns_of(ids != 0)
        return SINKS["in_the_sum"](jnp.where(seen, s, -1e9), sink)

    check_both(attend(with_sink), [*draw(), SEGMENTS, SINK.astype(F32)])

    def dropped_out(s: Any, ids: Any, kept: Any) -> Any:
        return of_flax(VECTORS["that_are_padded"][0](s, ids), kept)

    check_both(attend(dropped_out), [*draw(), SEGMENTS, KEPT])

    def biased(s: Any, ids: Any, bias: Any) -> Any:
        seen = causal(s) & (rows_of(ids) == columns_of(ids)) & columns_of(ids != 0)
        return by_hand(jnp.where(seen, s + bias, -1e9))

    fused = check_both(attend(biased), [*draw(), SEGMENTS, BIAS.astype(F32)])
    assert not any(a.causal for a in list_attention(fused))


def test_what_a_barrier_hands_on_is_one_array() -> None:
    def behind(q: Any, k: Any, v: Any, ids: Any) -> Any:
        q, seen = jax.lax.optimization_barrier((q, rows_of(ids) == columns_of(ids)))
        return attend(lambda s: by_hand(jnp.where(seen, s, -1e9)))(q, k, v)

    arrays = [*draw(), SEGMENTS]
    graph, fused = fuse(behind, arrays)
    assert [a.arrays for a in list_attention(fused)] == [("mask",)]
    for one, other in zip(run_graph(fused, arrays), run_graph(graph, arrays), strict=True):
        compare(one, other, 3e-3)


def test_one_row_of_numbers_is_small_beside_one_head() -> None:
    """Of one batch and one head, or a row for each head: no array has an element for each score."""
    q, k, v = (x[:1] for x in draw())
    function = attend(lambda s, b: by_hand(s + b))
    for heads in (1, HEADS):
        arrays = [x[:, :, :heads] for x in (q, k, v)]
        fused = check_both(function, [*arrays, BIAS[None, :heads, :1].astype(F32)])
        (node,) = (node for node in fused if node.op == "attention")
        assert fused[node.operands[3]].array.size == heads * QUERIES


def test_conditions_of_all_scores_are_read_as_bytes() -> None:
    """They take half of what 16 bits do at the most."""
    for dtype, tolerance in ((F32, 3e-3), (BF16, 2e-2)):
        function = attend(lambda s, m: by_hand(jnp.where(m, s, -1e9)))
        fused = check_both(function, [*draw(dtype), KEPT], tolerance=tolerance)
        assert list_attention(fused)[0].arrays == ("mask",)


def test_what_compares_more_than_rows_with_columns_is_an_array() -> None:
    def near(s: Any, ids: Any) -> Any:
        return by_hand(jnp.where(abs(rows_of(ids) - columns_of(ids)) < 2, s, -1e9))

    fused = check_both(attend(near), [*draw(), SEGMENTS])
    assert list_attention(fused)[0].arrays == ("mask",)

    def either(s: Any, ids: Any) -> Any:
        return by_hand(jnp.where((rows_of(ids) == columns_of(ids)) | causal(s), s, -1e9))

    fused = check_both(attend(either), [*draw(), SEGMENTS])
    assert list_attention(fused)[0].arrays == ("mask",)


def test_rows_that_are_masked_as_a_whole() -> None:
    """By where their scores have no gradient, by addition they have that of equal probabilities."""
    mask = MASK.copy()
    mask[0] = False
    for name, passes in (("mask", False), ("added_mask", True)):
        fused = check_both(GIVEN[name][0], [*draw(), mask])
        assert [a.through_masks for a in list_attention(fused)] == [passes] * 2


def test_a_mask_in_f16() -> None:
    """No f16 number is all that is left of a score to which it is added, but a condition is no number."""
    check_both(GIVEN["mask"][0], [*draw(np.dtype(np.float16)), MASK], tolerance=5e-3)


@pytest.mark.parametrize("name", sorted(ADDED_IN_F32))
def test_a_bias_in_f32_beside_16_bits(name: str) -> None:
    check_both(OTHERS[name], draw(BF16), tolerance=2e-2)


LOWEST = [-1e9, float(np.finfo(np.float32).min), -np.inf]


@pytest.mark.parametrize("lowest", LOWEST)
@pytest.mark.parametrize("side", ["left", "right"])
def test_numbers_that_leave_scores_out(lowest: float, side: str) -> None:
    """More of them than a tile has, on either side; with finite ones also a row without any other score."""
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((2, 160, 4, 16)).astype(F32) for _ in range(3))
    bias = np.zeros((2, 1, 1, 160), F32)
    bias[0, ..., slice(0, 100) if side == "left" else slice(100, 160)] = lowest
    if np.isfinite(lowest):
        bias[1] = lowest

    def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
        p = by_hand(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4 + bias)
        return jnp.einsum("bhqk,bkhd->bqhd", p, v)

    check_both(biased, [q, k, v, bias])


@pytest.mark.parametrize("name", SINKS)
def test_sinks(name: str) -> None:
    fused = check_both(attend(SINKS[name]), [*draw(), SINK.astype(F32)], arguments=4)
    assert [a.arrays for a in list_attention(fused)] == [("sink",)] * 2
    check_both(attend(SINKS[name]), [*draw(), SINK.astype(F32)])  # without the sink's gradient


def test_sinks_of_other_forms() -> None:
    """A number of the program; in 16 bits; of one head, beside heads that share keys; with dropout or a bias."""
    fused = check_both(OTHERS["with_sink"], draw())
    assert [a.arrays for a in list_attention(fused)] == [("sink",)] * 2
    sink = SINK.astype(F32)
    narrow = [*draw(BF16), SINK.astype(BF16)]
    check_both(attend(SINKS["beside_scores"]), narrow, tolerance=2e-2, arguments=4)

    def shared(q: Any, k: Any, v: Any, sink: Any) -> Any:
        k, v = (jnp.repeat(x, HEADS // GROUPS, 2) for x in (k, v))
        return attend(SINKS["causal"])(q, k, v, sink)

    check_both(shared, [*draw_shared(), sink], arguments=4)

    def dropped_out(s: Any, sink: Any, kept: Any) -> Any:
        return jnp.where(kept, SINKS["in_the_sum"](s, sink) / 0.8, 0)

    check_both(attend(dropped_out), [*draw(), sink, KEPT], arguments=4)

    def biased(s: Any, sink: Any, bias: Any) -> Any:
        return SINKS["beside_scores"](s + bias, sink)

    check_both(attend(biased), [*draw(), sink, BIAS.astype(F32)], arguments=4)

    def masked(s: Any, sink: Any, mask: Any) -> Any:
        return SINKS["in_the_maximum"](jnp.where(lengths(s, mask), s, -1e9), sink)

    mask = MASK.copy()
    mask[1] = False
    check_both(attend(masked), [*draw(), sink, mask], arguments=4)


def test_what_only_looks_like_a_sink_stays() -> None:
    for function in (
        lambda s, sink: by_hand(s) * (1 + 0 * sink.sum()) / (1 + jnp.exp(sink)[:, None, None]),
        lambda s, sink: jnp.exp(s) / (jnp.exp(s).sum(-1, keepdims=True) + (s + sink.sum()) ** 2),
        lambda s, sink: SINKS["in_the_sum"](s, jnp.square(sink)) * 2 + 0 * s,
        lambda s, sink: SINKS["in_the_sum"](s, sink) * (sink[:, None, None] < 1),
    ):
        graph, fused = fuse(attend(function), [*draw(), SINK.astype(F32)])
        found = [n for n in fused if n.op == "attention"]
        assert not any("sink" in n.attrs.arrays and not n.attrs.gain for n in found)
        for one, other in zip(
            run_graph(fused, [*draw(), SINK.astype(F32)]),
            run_graph(graph, [*draw(), SINK.astype(F32)]),
            strict=True,
        ):
            compare(one, other, 3e-3)


def by_exponentials(x: Any) -> Any:
    """The hyperbolic tangent."""
    return 1 - 2 / (1 + jnp.exp(2 * x))


CAPS: dict[str, tuple[Callable[..., Any], float]] = {
    "plain": (lambda s: by_hand(30 * jnp.tanh(s / 30)), 30.0),
    "strong": (lambda s: by_hand(2 * jnp.tanh(s / 2)), 2.0),
    "by exponentials": (lambda s: by_hand(5 * by_exponentials(s / 5)), 5.0),
    "causal": (
        lambda s: by_hand(
            jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), jnp.tanh(s / 50) * 50, -1e9)
        ),
        50.0,
    ),
}
"""Functions of scores, with their cap."""


@pytest.mark.parametrize("name", CAPS)
def test_capped_scores(name: str) -> None:
    function, cap = CAPS[name]
    fused = check_both(attend(function), draw())
    assert [a.cap for a in list_attention(fused)] == pytest.approx([cap] * 2, rel=1e-5)
    assert list_attention(fused)[0].scale == pytest.approx(0.25, rel=1e-5)


def test_caps_of_masked_scores_and_in_16_bits() -> None:
    def masked(s: Any, m: Any) -> Any:
        return by_hand(jnp.where(lengths(s, m), 20 * jnp.tanh(s / 20), -1e9))

    check_both(attend(masked), [*draw(), MASK])
    check_both(OTHERS[CAPPED], draw(BF16), tolerance=2e-2)


DROPOUTS: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    "select": (lambda p, kept: jnp.where(kept, p / 0.8, 0), KEPT),
    "left out": (lambda p, dropped: jnp.where(dropped, 0, p * 1.25), ~KEPT),
    "multiplied": (of_flax, KEPT),
    "the same for all heads": (of_flax, KEPT[:1, :1]),
    "selected": (lambda p, kept: p * jnp.where(kept, 1.25, 0.0).astype(p.dtype), KEPT),
    "numbers": (lambda p, numbers: p * numbers, np.float32(2 * KEPT)),
}
"""Functions of probabilities and an array, with it."""


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout(name: str) -> None:
    function, given = DROPOUTS[name]

    def causal(s: Any, array: Any) -> Any:
        seen = jnp.tril(jnp.ones(s.shape[-2:], bool))
        return function(by_hand(jnp.where(seen, s, -1e9)), array)

    fused = check_both(attend(causal), [*draw(), given])
    (node,) = (node for node in fused if node.op == "attention")
    assert fused[node.operands[3]].shape == given.shape
    assert all(a.causal and a.gain > 0 for a in list_attention(fused))


def test_a_condition_is_read_in_the_place_of_its_numbers() -> None:
    fused = check_both(
        attend(lambda s, kept: of_flax(jax.nn.softmax(s, -1), kept)), [*draw(), KEPT]
    )
    (node,) = (node for node in fused if node.op == "attention")
    assert fused[node.operands[3]].dtype is DType.PRED
    # What leaves scores out is no multiplier, nor what is negative or nowhere 0.
    for number in (-1e9, 1e9, -0.5):
        _, fused = fuse(
            attend(lambda s, kept, n=number: jax.nn.softmax(s, -1) * (kept.astype(s.dtype) * n)),
            [*draw(), KEPT],
        )
        found = [fused[n.operands[3]] for n in fused if n.op == "attention"]
        assert all(node.dtype is not DType.PRED for node in found)


def test_dropout_by_random_bits_of_jax() -> None:
    check_both(dropped, draw())
    check_both(dropped, draw(BF16), tolerance=2e-2)


def test_dropout_with_a_factor_in_front_of_one_reader_alone() -> None:
    """As XLA leaves the gradient behind its own rewrites: the sum over a row has the factor in another place."""
    factor = 1 / 0.8

    def gradients(q: Any, k: Any, v: Any, kept: Any, given: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4
        raised = jnp.exp(scores - scores.max(-1, keepdims=True))
        total = raised.sum(-1, keepdims=True)
        dropped = jnp.where(kept, raised / total * factor, 0)
        dp = jnp.where(kept, jnp.einsum("bqhd,bkhd->bhqk", given, v), 0)
        mean = (dp * (factor / (total * total)) * raised).sum(-1, keepdims=True)
        ds = (dp * factor / total - mean) * raised / 4
        dq, dk = jnp.einsum("bhqk,bkhd->bqhd", ds, k), jnp.einsum("bhqk,bqhd->bkhd", ds, q)
        o = jnp.einsum("bhqk,bkhd->bqhd", dropped, v)
        return o, dq, dk, jnp.einsum("bhqk,bqhd->bkhd", dropped, given)

    arrays = [*draw(), KEPT, draw()[0] + 1]
    graph, fused = fuse(gradients, arrays)
    assert [a.gain > 0 for a in list_attention(fused)] == [True, True]
    assert not any(node.op == "dot" for node in fused)
    for one, other in zip(run_graph(fused, arrays), run_graph(graph, arrays), strict=True):
        compare(one, other, 3e-3)


def test_dropout_beside_a_bias_and_in_front_of_the_softmax() -> None:
    def biased(s: Any, bias: Any, kept: Any) -> Any:
        return jnp.where(kept, jax.nn.softmax(s + bias, -1) / 0.8, 0)

    check_both(attend(biased), [*draw(), BIAS.astype(F32), KEPT])
    # Scores that are dropped out before the softmax are no dropout of probabilities.
    graph, fused = fuse(
        attend(lambda s, kept: jax.nn.softmax(jnp.where(kept, s / 0.8, 0), -1)), [*draw(), KEPT]
    )
    assert str(graph) == str(fused)


@pytest.mark.parametrize("name", CAPS)
def test_caps_beside_dropout(name: str) -> None:
    function, cap = CAPS[name]
    fused = check_both(
        attend(lambda s, kept: jnp.where(kept, function(s) / 0.8, 0)), [*draw(), KEPT]
    )
    assert [a.cap for a in list_attention(fused)] == pytest.approx([cap] * 2, rel=1e-4)
    assert all(a.gain > 0 for a in list_attention(fused))


def test_what_only_looks_like_a_cap_stays() -> None:
    for function in (
        lambda s: by_hand(3 * jnp.tanh(s / 3) + 0.01 * s),
        lambda s: by_hand(3 * jnp.tanh(s / 3 + 0.1)),
        lambda s: by_hand(3 * jnp.arctan(s / 3)),
        lambda s: by_hand(jnp.clip(3 * jnp.tanh(s / 3), -2, 2)),
    ):
        for which in (attend(function), make_gradient(attend(function))):
            graph, fused = fuse(which, draw())
            assert str(graph) == str(fused)


def test_a_bias_beside_a_causal_mask() -> None:
    def biased(s: Any, bias: Any) -> Any:
        seen = jnp.tril(jnp.ones(s.shape[-2:], bool))
        return by_hand(jnp.where(seen, s + bias, -1e9))

    check_both(attend(biased), [*draw(), BIAS.astype(F32)])


def join_outside(low: float) -> Callable[..., Any]:
    return lambda s, bias, mask: by_hand(jnp.where(lengths(s, mask), s + bias, low))


def join_inside(s: Any, bias: Any, mask: Any) -> Any:
    return by_hand(jnp.where(lengths(s, mask), s, -1e9) + bias)


def join_added(s: Any, bias: Any, mask: Any) -> Any:
    return jax.nn.softmax(s + bias + jnp.where(lengths(s, mask), 0.0, -1e9), -1)


def join_both(s: Any, bias: Any, mask: Any) -> Any:
    """A band too, which is then part of the mask."""
    return by_hand(jnp.where(causal(s), jnp.where(lengths(s, mask), s + bias, -1e9), -1e9))


JOINED: dict[str, Callable[..., Any]] = {
    "outside": join_outside(-1e9),
    "the lowest number": join_outside(float(np.finfo(np.float32).min)),
    "infinity": join_outside(-np.inf),
    "inside": join_inside,
    "added": join_added,
    "with a band": join_both,
}
"""Functions of scores, a bias and a mask."""


@pytest.mark.parametrize("name", JOINED)
def test_a_mask_beside_a_bias(name: str) -> None:
    """Also in rows that one of them leaves out as a whole, or both together."""
    mask = MASK.copy()
    bias = BIAS.astype(F32)
    fused = check_both(attend(JOINED[name]), [*draw(), bias, mask])
    assert {a.arrays[0] for a in list_attention(fused)} == {"bias"}
    bias[:, 3], bias[:, 5, :7], bias[:, 6, 7:] = -1e9, -1e9, -1e9
    check_both(attend(JOINED[name]), [*draw(), bias, mask])
    mask[0] = False
    check_both(attend(JOINED[name]), [*draw(), bias, mask])


def test_a_mask_beside_a_bias_and_dropout() -> None:
    """In 16 bits; a bias of one row for all queries; a mask of all scores."""

    def dropped_out(s: Any, bias: Any, mask: Any, kept: Any) -> Any:
        return of_flax(JOINED["outside"](s, bias, mask), kept)

    check_both(attend(dropped_out), [*draw(), BIAS.astype(F32), MASK, KEPT])
    check_both(
        attend(JOINED["outside"]),
        [*draw(BF16), BIAS[:, :1].astype(BF16), MASK],
        tolerance=2e-2,
    )

    def whole(s: Any, bias: Any, mask: Any) -> Any:
        return by_hand(jnp.where(mask, s + bias, -1e9))

    check_both(attend(whole), [*draw(), BIAS.astype(F32), KEPT[:, :1]])


@pytest.mark.parametrize("mask", ["padding", "rows", "all"])
def test_rows_without_a_score_by_infinity(mask: str) -> None:
    """They are NaN."""
    given = KEPT[:, :1].copy()
    if mask == "rows":
        given[0, :, 2:4] = False
    if mask == "all":
        given[0] = False
    fused = check_both(attend(lambda s, m: by_hand(jnp.where(m, s, -jnp.inf))), [*draw(), given])
    assert {a.low for a in list_attention(fused)} == {-np.inf}
    check_both(OTHERS["rows_without_scores"], draw())


def masked_twice(s: Any, m: Any) -> Any:
    return jnp.where(m, by_hand(jnp.where(m, s, -1e9)), 0)


def masked_by_a_product(s: Any, m: Any) -> Any:
    seen = m & causal(s)
    return jax.nn.softmax(jnp.where(seen, s, -1e9), -1) * seen


def guarded(s: Any, m: Any) -> Any:
    p = jax.nn.softmax(jnp.where(m, s, -jnp.inf), -1)
    return jnp.where(jnp.isnan(p), 0.0, p)


@pytest.mark.parametrize("function", [masked_twice, masked_by_a_product])
def test_rows_without_a_score_that_give_nothing(function: Callable[..., Any]) -> None:
    given = KEPT[:, :1].copy()
    given[0, :, 2:4] = False
    fused = check_both(attend(function), [*draw(), given])
    if function is masked_twice:  # a product is found as dropout is
        assert {a.low for a in list_attention(fused)} == {np.inf}


def test_rows_without_a_score_that_are_guarded() -> None:
    """Their gradient is NaN by JAX's rules, so that only the forward pass is like the others."""
    given = KEPT[:, :1].copy()
    given[0, :, 2:4] = False
    graph, fused = fuse(attend(guarded), [*draw(), given])
    assert [a.low for a in list_attention(fused)] == [np.inf]
    arrays = [*draw(), given]
    for one, other in zip(run_as_xla(fused, arrays), run_graph(graph, arrays), strict=True):
        compare(one, other, 3e-3)


def test_a_mask_beside_dropout() -> None:
    """As BERT is trained, with a row that is left out as a whole."""
    mask = MASK.copy()
    for _ in range(2):
        for low in (-1e9, float(np.finfo(np.float32).min)):

            def masked(s: Any, m: Any, kept: Any, low: float = low) -> Any:
                return of_flax(jax.nn.softmax(jnp.where(lengths(s, m), s, low), -1), kept)

            check_both(attend(masked), [*draw(), mask, KEPT])
        mask[1] = False


@pytest.mark.parametrize("name", sorted(set(OTHERS) - TAKEN))
def test_what_is_no_attention_stays(name: str) -> None:
    for function in (OTHERS[name], make_gradient(OTHERS[name])):
        graph, fused = fuse(function, draw())
        assert str(graph) == str(fused)


@pytest.mark.parametrize(
    "precision, tiles", [("default", "tf32"), ("high", "tf32x3"), ("highest", "tf32x3")]
)
def test_the_precision_of_the_products_decides(precision: str, tiles: str) -> None:
    with jax.default_matmul_precision(precision):
        fused = check_both(PLAIN["heads_first"][0], draw(), tolerance=3e-3)
    assert {a.tiles for a in list_attention(fused)} == {tiles}


def test_f64_and_other_gpus_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(find, "LEAST_SCORES", 1)
    graph, _ = fuse(PLAIN["softmax"][0], draw())
    for gpu in ("v100", "a100", "b200"):
        assert str(fuse_attention(graph, preset(gpu))) == str(graph)
    with jax.enable_x64(True):
        graph, fused = fuse(PLAIN["softmax"][0], draw(np.dtype(np.float64)))
    assert str(graph) == str(fused)


@pytest.mark.parametrize("features", [3, 20])
def test_any_number_of_features(features: int) -> None:
    check_both(PLAIN["where"][0], draw(features=features))


@pytest.mark.parametrize(
    ("name", "projected", "why"),
    [
        ("bias", Projection(70.0, 50.0), "50 us are projected, and 70 us of kernels"),
        ("bias", None, find.NOT_MEASURED),
        ("wide values", Projection(0.0, 1.0), find.NO_FORM),
    ],
)
def test_what_stays_is_named(
    name: str, projected: Projection | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "project", lambda *given, **named: projected)

    def function(s: Any) -> Any:
        return by_hand(s + 0.1 * jnp.arange(s.shape[-1]))

    q, k, v = draw()
    if name == "wide values":
        v = np.concatenate([v, v], -1)
    graph, _ = fuse(attend(function), [q, k, v])
    left: list[str] = []
    assert fuse_attention(graph, GPU, left=left) is graph
    (line,) = left
    assert why in line and line.startswith("%") and line[1:].split(":")[0] in graph.nodes


@pytest.mark.parametrize("queries", [4 * QUERIES, 1])
def test_few_scores_are_named(queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one query against a cache."""
    monkeypatch.setattr(find, "LEAST_SCORES", 1 << 20)
    monkeypatch.setattr(find, "LEAST_NAMED", 1)
    q, k, v = draw()
    q = np.concatenate([q] * 4, axis=1)[:, :queries]
    graph, _ = fuse(PLAIN["softmax"][0], [q, k, v])
    left: list[str] = []
    assert fuse_attention(graph, GPU, left=left) is graph
    (line,) = left
    few = f"{BATCH * HEADS * queries * QUERIES:,} scores" if queries > 1 else "bytes of keys"
    assert f"{few} are few" in line


@pytest.mark.parametrize(
    "backward",
    [lambda g, d: jnp.where(d != 0, g, 0), lambda g, d: g * d * d, lambda g, d: clip(g) * d],
    ids=["straight through", "twice", "clipped"],
)
def test_another_gradient_behind_dropout_stays(backward: Callable[..., Any]) -> None:
    @jax.custom_vjp
    def drop(p: Any, d: Any) -> Any:
        return p * d

    drop.defvjp(lambda p, d: (p * d, d), lambda d, g: (backward(g, d), jnp.zeros_like(d)))
    kept = np.where(KEPT, np.float32(1.25), np.float32(0))
    function = make_gradient(attend(lambda s, d: drop(jax.nn.softmax(s, -1), d)))
    graph, fused = fuse(function, [*draw(), kept])
    assert str(graph) == str(fused)


def clip(x: Any) -> Any:
    return jnp.clip(x, -10, 10)
