"""Attention as one op: found in every spelling, with its gradient; the same function; nothing else is taken for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from astitch.attention import find, masks
from astitch.attention.fuse import fuse_attention
from astitch.device.gpu import preset
from astitch.graph.check import check_graph
from astitch.graph.ir import AttentionAttrs, Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.simplify import simplify
from tests.attention.spellings import (
    BATCH,
    FEATURES,
    GIVEN,
    GROUPS,
    HEADS,
    MASK,
    OTHERS,
    OTHERS_GIVEN,
    PARTLY_SHARED,
    PLAIN,
    QUERIES,
    SHARED,
    attend,
    by_hand,
    by_head,
    make_gradient,
    repeated,
    with_clipped_gradient,
)
from tests.hlo_runner import lower

BF16 = np.dtype(ml_dtypes.bfloat16)
GPU = preset("h100")


@pytest.fixture(autouse=True)
def _small_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "LEAST_SCORES", 1)
    monkeypatch.setattr(find, "LEAST_OF_LIBRARY", 1)
    monkeypatch.setattr(find, "project", lambda *given, **named: None)


def draw(dtype: np.dtype = BF16, features: int = FEATURES) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    shape = (BATCH, QUERIES, HEADS, features)
    return [random.standard_normal(shape).astype(dtype) for _ in range(3)]


def fuse(function: Callable[..., Any], arrays: list[np.ndarray]) -> tuple[Graph, Graph]:
    """(the graph of a function, the same with attention as ops)."""
    graph = simplify(import_hlo(lower(function, *arrays)))
    return graph, simplify(check_graph(fuse_attention(graph, GPU)))


def list_attention(graph: Graph) -> list[tuple[str, AttentionAttrs]]:
    return [(n.op, n.attrs) for n in graph if isinstance(n.attrs, AttentionAttrs)]


def measure_errors(
    function: Callable[..., Any], graphs: tuple[Graph, Graph], arrays: list[np.ndarray]
) -> list[list[float]]:
    """Of each graph the distance of its results from f64, relative."""
    with jax.enable_x64(True):
        wide = [a.astype(np.float64) if a.dtype != np.bool_ else a for a in arrays]
        exact = [np.asarray(x) for x in jax.tree.leaves(jax.jit(function)(*wide))]
    found = [run_graph(graph, arrays) for graph in graphs]
    return [
        [
            float(np.linalg.norm(r.astype(np.float64) - e) / np.linalg.norm(e))
            for r, e in zip(results, exact, strict=True)
        ]
        for results in found
    ]


def check_both(function: Callable[..., Any], arrays: list[np.ndarray]) -> Graph:
    """A function and its gradient have no product left, and are as near to f64 as before."""
    for which, count in ((function, 1), (make_gradient(function), 2)):
        graphs = fuse(which, arrays)
        assert len(list_attention(graphs[1])) == count
        assert not any(node.op == "dot" for node in graphs[1])
        # Sums in another order may differ in the last bit of 16.
        before, after = measure_errors(which, graphs, arrays)
        assert all(a <= 1.2 * b + 1e-3 for a, b in zip(after, before, strict=True)), (before, after)
    return graphs[1]


@pytest.mark.parametrize("name", PLAIN)
def test_every_spelling_is_found(name: str) -> None:
    function, mask = PLAIN[name]
    fused = check_both(function, draw())
    attrs = list_attention(fused)[0][1]
    assert (attrs.causal, attrs.window) == {
        "all": (False, 0),
        "causal": (True, 0),
        "window": (True, 5),
    }[mask]


def test_a_gradient_stays_where_sums_have_an_order() -> None:
    forward = attend(by_hand)
    for function, count in ((forward, 1), (make_gradient(forward), 0)):
        graph = simplify(import_hlo(lower(function, *draw())))
        assert len(list_attention(fuse_attention(graph, GPU, in_order=True))) == count


@pytest.mark.parametrize("name", GIVEN)
def test_masks_and_biases_that_are_given_are_added_to_scores(name: str) -> None:
    function, given = GIVEN[name]
    array = given if given.dtype == np.bool_ else given.astype(BF16)
    fused = check_both(function, [*draw(), array])
    (attention,) = (node for node in fused if node.op == "attention")
    assert fused[attention.operands[3]].shape[2:] == (QUERIES, QUERIES)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_attention_stays(name: str) -> None:
    for function in (OTHERS[name], make_gradient(OTHERS[name])):
        graph, fused = fuse(function, draw())
        assert str(graph) == str(fused)


@pytest.mark.parametrize("name", OTHERS_GIVEN)
def test_what_is_given_and_no_mask_of_the_library_stays(name: str) -> None:
    graph, fused = fuse(OTHERS_GIVEN[name], [*draw(), MASK])
    assert str(graph) == str(fused)


def test_masks_from_data_stay_in_f16() -> None:
    """No f16 number is all that is left of a score to which it is added."""
    graph, fused = fuse(GIVEN["mask"][0], [*draw(np.dtype(np.float16)), MASK])
    assert str(graph) == str(fused)


def test_a_gradient_that_is_clipped_stays() -> None:
    check = make_gradient(with_clipped_gradient)
    graph, fused = fuse(check, draw())
    assert str(graph) == str(fused)


def test_one_row_of_a_long_mask_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is evaluated together."""
    monkeypatch.setattr(masks, "AT_ONCE", 100)

    def with_a_global_position(scores: Any) -> Any:
        i, j = jnp.arange(scores.shape[-2])[:, None], jnp.arange(scores.shape[-1])
        return by_hand(jnp.where((i >= j) | (i == 13), scores, -1e9))

    _, fused = fuse(attend(with_a_global_position), draw())
    ((op, attrs),) = list_attention(fused)
    assert (op, attrs.causal) == ("attention", False)
    check_both(PLAIN["where"][0], draw())


def test_a_mask_that_varies_by_head_is_no_band() -> None:
    fused = check_both(attend(by_head), draw())
    (node,) = (node for node in fused if node.op == "attention")
    assert fused[node.operands[3]].shape == (1, HEADS, QUERIES, QUERIES)


def test_the_gradient_lies_as_the_result_does() -> None:
    """XLA reads the result as it reads the gradient; here q has heads first, v and the result positions."""

    def turned(q: Any, k: Any, v: Any) -> Any:
        q, k = jax.lax.optimization_barrier((q.swapaxes(1, 2), k.swapaxes(1, 2)))
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k).astype(jnp.float32) / 4
        return jnp.einsum("bhqk,bkhd->bqhd", by_hand(scores).astype(q.dtype), v)

    fused = fuse(make_gradient(turned), draw())[1]
    (node,) = (node for node in fused if node.op == "attention-gradient")
    *_, given, o = (fused[name].shape for name in node.operands)
    assert given == o == (BATCH, HEADS, QUERIES, FEATURES)


def test_positions_are_no_groups_of_heads() -> None:
    def grouped(q: Any, k: Any, v: Any) -> Any:
        k, v = k[:, :, 0], v[:, :, 0]
        scores = jnp.einsum("bthf,bsf->bths", q, k).astype(jnp.float32) / 4
        return jnp.einsum("bths,bsf->bthf", by_hand(scores).astype(q.dtype), v)

    fused = check_both(grouped, draw())
    (node,) = (node for node in fused if node.op == "attention")
    q, attrs = fused[node.operands[0]], node.attrs
    assert isinstance(attrs, AttentionAttrs)
    assert [q.shape[d] for d in attrs.q] == [BATCH, HEADS, QUERIES, FEATURES]
    # q and the result lie as they did.
    assert not any(node.op == "transpose" for node in fused)


def test_f16_and_other_shapes() -> None:
    function = PLAIN["where"][0]
    check_both(function, draw(np.dtype(np.float16), features=8))
    one = [x[:1, :, :1] for x in draw()]
    check_both(function, one)
    queries, keys, values = draw()
    check_both(PLAIN["softmax"][0], [queries[:, :10], keys, values])


@pytest.mark.parametrize("dtype, features", [(np.float32, 16), (BF16, 12), (BF16, 264)])
def test_what_the_library_does_not_take_stays(dtype: Any, features: int) -> None:
    graph, fused = fuse(PLAIN["softmax"][0], draw(np.dtype(dtype), features))
    assert str(graph) == str(fused)


def test_old_gpus_and_small_scores_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = fuse(PLAIN["softmax"][0], draw())
    assert fuse_attention(graph, preset("v100")) is graph
    monkeypatch.setattr(find, "LEAST_SCORES", BATCH * HEADS * QUERIES * QUERIES + 1)
    assert fuse_attention(graph, GPU) is graph


def test_operands_of_several_types_stay() -> None:
    def wide_values(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
        wide = v.astype(jnp.float32) * 1.1
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), wide).astype(q.dtype)

    for function in (wide_values, make_gradient(wide_values)):
        graph, fused = fuse(function, draw())
        assert str(graph) == str(fused)


def test_probabilities_that_somebody_else_reads_stay() -> None:
    def both(q: Any, k: Any, v: Any) -> Any:
        p = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), -1)
        return jnp.einsum("bhqk,bkhd->bqhd", p, v), p

    graph, fused = fuse(both, draw())
    assert str(graph) == str(fused)


def test_recomputation_computes_the_statistics_again() -> None:
    function = make_gradient(jax.checkpoint(PLAIN["where"][0]))
    _, fused = fuse(lambda *a: (PLAIN["where"][0](*a), function(*a)), draw())
    assert [op for op, _ in list_attention(fused)].count("attention-gradient") == 1
    assert not any(node.op == "dot" for node in fused)


def test_operands_keep_the_order_that_they_have() -> None:
    _, fused = fuse(PLAIN["softmax"][0], draw())
    assert list_attention(fused)[0][1].q == (0, 2, 1, 3)
    assert not any(node.op == "transpose" for node in fused)


def draw_shared(dtype: np.dtype = BF16, features: int = FEATURES) -> list[np.ndarray]:
    queries, *others = draw(dtype, features)
    return [queries, *(x[:, :, :GROUPS] for x in others)]


def list_heads(graph: Graph) -> list[tuple[int, int, int]]:
    """The heads of q, k and v that each op of attention reads."""
    found = []
    for node in graph:
        if isinstance(node.attrs, AttentionAttrs):
            orders = (node.attrs.q, node.attrs.k, node.attrs.v)
            operands = zip(node.operands, orders, strict=False)
            q, k, v = (graph[name].shape[order[1]] for name, order in operands)
            found.append((q, k, v))
    return found


@pytest.mark.parametrize("name", SHARED)
def test_heads_that_share_keys_read_them_as_they_lie(name: str) -> None:
    function, own = SHARED[name]
    check_shared(check_both(function, draw_shared()), own)


def check_shared(fused: Graph, own: int) -> None:
    """Nothing is repeated or added up, and nothing moves."""
    assert list_heads(fused) == [(HEADS, own, own)] * 2
    repeats = [node for node in fused if node.op == "broadcast"]
    assert not any(fused[node.operands[0]].shape for node in repeats)
    assert not any(node.op in ("transpose", "reduce") for node in fused)


def test_heads_that_share_keys_in_f16() -> None:
    check_shared(check_both(repeated, draw_shared(np.dtype(np.float16), 8)), GROUPS)


@pytest.mark.parametrize("name", PARTLY_SHARED)
def test_heads_are_repeated_where_the_library_wants_them(name: str) -> None:
    function, own, own_in_gradient = PARTLY_SHARED[name]
    fused = check_both(function, draw_shared())
    assert list_heads(fused) == [(HEADS, own, own), (HEADS, own_in_gradient, own_in_gradient)]


def test_masks_of_data_are_one_array_for_sharing_heads() -> None:
    def masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
        k, v = (jnp.repeat(x, HEADS // GROUPS, 2) for x in (k, v))
        return GIVEN["mask"][0](q, k, v, mask)

    fused = check_both(masked, [*draw_shared(), MASK])
    assert list_heads(fused) == [(HEADS, GROUPS, GROUPS)] * 2
    (node,) = (node for node in fused if node.op == "attention")
    assert fused[node.operands[3]].shape == (BATCH, 1, QUERIES, QUERIES)


def test_layers_read_the_results_of_each_other() -> None:
    """Nothing but reshapes stands between two calls."""

    def layers(q: Any, k: Any, v: Any) -> Any:
        return repeated(repeated(q, k, v), v, k)

    for which, count in ((layers, 2), (make_gradient(layers), 4)):
        graphs = fuse(which, draw_shared())
        assert len(list_attention(graphs[1])) == count
        assert not any(node.op in ("dot", "transpose") for node in graphs[1])
