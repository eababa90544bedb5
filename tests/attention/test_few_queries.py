"""Attention of few queries against many keys: found in every spelling; parts and their join compute what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from astitch.attention import few, find
from astitch.attention.fuse import fuse_attention
from astitch.device.gpu import preset
from astitch.directives import read_directives
from astitch.graph.check import check_graph
from astitch.graph.ir import AttentionAttrs, Graph
from astitch.graph.reference import run_graph
from astitch.hlo.export import export_nodes
from astitch.hlo_import import import_hlo
from astitch.rewrite import sums_as_products
from astitch.rewrite.layer_updates import update_rows_of_layers
from astitch.rewrite.simplify import simplify
from tests import emulated_xla
from tests.attention.few_spellings import (
    BATCH,
    BF16,
    F32,
    FEATURES,
    GROUPS,
    HEADS,
    KEYS,
    LATE,
    OF_GROUPS,
    PAGE,
    PAGED,
    PAGES,
    SCALE,
    SPELLINGS,
    attend_to_groups,
    by_sums,
    draw,
    gather_by_default,
    gather_pages,
    heads_first,
    make,
    make_integers,
    make_pages,
    one_head_each,
    positions_one_by_one,
    repeated,
    scaled_in_16_bits,
    scaled_in_f32,
    scaled_late,
    scaled_late_by_keys,
    shared,
    softmax,
    take_pages,
    without_a_mask,
)
from tests.hlo_runner import lower
from tests.tile_calls import recorded

GPU = preset("h100")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small caches are taken, in parts of one tile or two."""
    monkeypatch.setattr(few, "LEAST_BYTES", 1)
    monkeypatch.setattr(sums_as_products, "LEAST_NUMBERS", 1)
    monkeypatch.setattr(few, "project_plain_us", lambda *given, **named: float("inf"))
    monkeypatch.setattr("astitch.tile.few_queries.MOST_PARTS", 2)


def fuse(function: Callable[..., Any], arrays: list[np.ndarray]) -> tuple[Graph, Graph]:
    graph = simplify(import_hlo(lower(function, *arrays, keep_unused=True)))
    given = update_rows_of_layers(graph)
    return graph, simplify(check_graph(fuse_attention(given, GPU)))


def check(
    function: Callable[..., Any], arrays: list[Any], tolerance: float, count: int = 1
) -> Graph:
    graph, fused = fuse(function, arrays)
    found = [n.attrs for n in fused if isinstance(n.attrs, AttentionAttrs)]
    assert len(found) == count and all(attrs.share for attrs in found)
    assert not any(node.op == "dot" for node in fused)
    arrays = jax.tree.leaves(arrays)
    wanted = run_graph(graph, arrays)
    names = [node.name for node in fused if not node.is_parameter]
    with recorded():
        exported = export_nodes(fused, names, fused.outputs)
    given = dict(zip(fused.parameters, arrays, strict=True))
    by_kernel = emulated_xla.run_module(exported.hlo, [given[n] for n in exported.operands])
    for results in (run_graph(fused, arrays), by_kernel):
        for found, expected in zip(results, wanted, strict=True):
            x, y = found.astype(np.float64), expected.astype(np.float64)
            np.testing.assert_array_equal(np.isnan(x), np.isnan(y))
            x, y = np.nan_to_num(x), np.nan_to_num(y)
            assert np.linalg.norm(x - y) <= tolerance * np.linalg.norm(y)
    return fused


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_is_found(name: str, dtype: np.dtype) -> None:
    function = SPELLINGS[name]
    arrays = make(dtype, heads=OF_GROUPS.get(function, HEADS))
    check(function, arrays, 3e-3 if dtype == F32 else 2e-2)


@pytest.mark.parametrize("scaled", [scaled_in_16_bits, scaled_in_f32])
@pytest.mark.parametrize("name", SPELLINGS)
def test_caches_of_8_bits_are_read_as_they_lie(name: str, scaled: Callable[..., Any]) -> None:
    function = SPELLINGS[name]
    dtype = F32 if scaled is scaled_in_f32 else BF16
    arrays = make_integers(OF_GROUPS.get(function, HEADS), dtype=dtype)
    assert read_types(check(scaled(function), arrays, 2e-2)) == ("s8", "s8")


def read_types(fused: Graph) -> tuple[str, ...]:
    """Of the keys and values that attention reads."""
    (node,) = (n for n in fused if isinstance(n.attrs, AttentionAttrs))
    return tuple(fused[name].dtype.value for name in node.operands[1:3])


@pytest.mark.parametrize("attend", LATE)
def test_scales_may_stand_behind_the_products(attend: Callable[..., Any]) -> None:
    assert read_types(check(attend, make_integers(LATE[attend]), 2e-2)) == ("s8", "s8")


@pytest.mark.parametrize("attend", LATE)
def test_late_scales_of_what_is_no_attention_stay(
    attend: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few, "project_plain_us", lambda *given, **named: 0.0)
    arrays = make_integers(LATE[attend])
    graph = simplify(import_hlo(lower(attend, *arrays, keep_unused=True)))
    assert fuse_attention(graph, GPU) is graph


def test_late_scales_stay_beside_attention_that_is_taken() -> None:
    """Of two attentions one has scales that differ from query to query, which belong to no key."""

    def attend(q: Any, k: Any, v: Any, length: Any) -> Any:
        other = jnp.einsum("bhd,bthd->bht", q, k[0].astype(q.dtype)) * jnp.swapaxes(k[1], 1, 2)
        p = softmax(other * length[:, None, None].astype(q.dtype), q.dtype)
        return scaled_late_by_keys(q, k, v, length), jnp.einsum(
            "bht,bthd->bhd", p * p, v[0].astype(q.dtype)
        )

    q, k, v, lengths = make_integers(HEADS)
    graph = simplify(import_hlo(lower(attend, q, k, v, lengths, keep_unused=True)))
    fused = simplify(check_graph(fuse_attention(graph, GPU)))
    assert read_types(fused) == ("s8", "s8")
    given = jax.tree.leaves([q, k, v, lengths])
    for found, expected in zip(run_graph(fused, given), run_graph(graph, given), strict=True):
        x, y = found.astype(np.float64), expected.astype(np.float64)
        assert np.linalg.norm(x - y) <= 2e-2 * np.linalg.norm(y)


SCALES: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
    "with a dimension of features": ((BATCH, KEYS, GROUPS, 1), lambda s: s),
    "heads first": ((BATCH, GROUPS, KEYS), lambda s: jnp.swapaxes(s, 1, 2)[..., None]),
    "of positions": ((BATCH, KEYS), lambda s: s[:, :, None, None]),
    "of heads": ((GROUPS,), lambda s: s[:, None]),
    "one": ((), lambda s: s),
}


@pytest.mark.parametrize("name", SCALES)
def test_scales_may_be_shared(name: str) -> None:
    shape, widen = SCALES[name]

    def attend(q: Any, k: Any, v: Any, length: Any) -> Any:
        wide = (n.astype(q.dtype) * widen(s) for n, s in (k, v))
        return shared(q, *wide, length)

    fused = check(attend, make_integers(GROUPS, shape), 2e-2)
    assert read_types(fused) == ("s8", "s8")


def test_a_layer_of_caches_of_8_bits_is_read_where_it_lies() -> None:
    def of_layer(q: Any, ks: Any, vs: Any, length: Any, number: Any) -> Any:
        rows = [[lax.dynamic_index_in_dim(x, number, 0, False) for x in of] for of in (ks, vs)]
        return scaled_in_16_bits(shared)(q, *rows, length)

    q, *pairs, length = make_integers(GROUPS)
    stacks = [tuple(np.stack([x, x[::-1], x]) for x in pair) for pair in pairs]
    fused = check(of_layer, [q, *stacks, length, np.int32(1)], 2e-2)
    (attention,) = [node for node in fused if isinstance(node.attrs, AttentionAttrs)]
    assert attention.attrs.arrays[-3:] == ("k-scale", "v-scale", "layer")
    assert read_types(fused) == ("s8", "s8")


def test_integers_may_have_no_scale() -> None:
    def attend(q: Any, k: Any, v: Any, length: Any) -> Any:
        wide = (n.astype(q.dtype) for n, _ in (k, v))
        return shared(q * jnp.asarray(0.01, q.dtype), *wide, length)

    assert read_types(check(attend, make_integers(GROUPS), 2e-2)) == ("s8", "s8")


@pytest.mark.parametrize("kind", ["features", "f32"])
def test_what_is_scaled_otherwise_stays(kind: str) -> None:
    """A scale for each feature belongs to q, and products of f32 read f32."""

    def attend(q: Any, k: Any, v: Any, length: Any) -> Any:
        wide = (n.astype(q.dtype) * s for n, s in (k, v))
        return shared(q, *wide, length)

    shape = (FEATURES,) if kind == "features" else ()
    q, k, v, lengths = make_integers(GROUPS, shape, F32 if kind == "f32" else BF16)
    left: list[str] = []
    arrays = [q.astype(F32) if kind == "f32" else q, k, v, lengths]
    graph = simplify(import_hlo(lower(attend, *arrays, keep_unused=True)))
    assert fuse_attention(graph, GPU, left=left) is graph
    assert "would be written to memory first" in left[0]


def test_a_row_is_written_into_caches_of_8_bits() -> None:
    def step(q: Any, k: Any, v: Any, length: Any) -> Any:
        at = (0, length[0], 0)
        rows = [
            (
                lax.dynamic_update_slice(
                    n, jnp.ones((BATCH, 1, GROUPS, FEATURES), n.dtype), (*at, 0)
                ),
                lax.dynamic_update_slice(s, jnp.ones((BATCH, 1, GROUPS), s.dtype), at),
            )
            for n, s in (k, v)
        ]
        return scaled_in_16_bits(shared)(q, *rows, length), rows

    assert read_types(check(step, make_integers(GROUPS), 2e-2)) == ("s8", "s8")


def compare(function: Callable[..., Any], arrays: list[Any], tolerance: float) -> Graph:
    """The graph with attention, whose results are those of the one without."""
    graph, fused = fuse(function, arrays)
    given = jax.tree.leaves(arrays)
    for found, expected in zip(run_graph(fused, given), run_graph(graph, given), strict=True):
        x, y = found.astype(np.float64), expected.astype(np.float64)
        assert np.linalg.norm(x - y) <= tolerance * np.linalg.norm(y)
    return fused


WIDTH = 24


def make_weights() -> list[Any]:
    """x of a word each, integers and scales of a projection to heads."""
    rng = np.random.default_rng(7)
    shape = (WIDTH, HEADS, FEATURES)
    weights = rng.integers(-127, 128, shape).astype(np.int8)
    return [draw((BATCH, WIDTH), 8, BF16), weights, rng.uniform(1e-3, 5e-3, shape[1:]).astype(BF16)]


@pytest.mark.parametrize("attend", [scaled_late, scaled_in_16_bits(shared)], ids=["late", "early"])
def test_queries_keep_the_scales_of_their_own_weights(attend: Callable[..., Any]) -> None:
    """They are a product of integers too, whose scales stand behind it."""

    def step(x: Any, w: Any, s: Any, k: Any, v: Any, length: Any) -> Any:
        q = jnp.einsum("bm,mhd->bhd", x, w.astype(x.dtype)) * s
        return attend(q, k, v, length), q

    _, *caches = make_integers(GROUPS)
    assert read_types(compare(step, [*make_weights(), *caches], 2e-2)) == ("s8", "s8")


def test_keys_of_many_queries_keep_the_scales_of_their_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(find, "LEAST_SCORES", 1)
    monkeypatch.setattr(find, "project", lambda *given, **named: None)
    monkeypatch.setattr(find, "LEAST_OF_LIBRARY", 1)

    def attend(x: Any, w: Any, s: Any) -> Any:
        q, k, v = (jnp.einsum("btm,mhd->bthd", x * n, w.astype(x.dtype)) * s for n in (1, 2, 3))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * SCALE
        return jnp.einsum("bhqk,bkhd->bqhd", softmax(scores, q.dtype), v)

    _, w, s = make_weights()
    fused = compare(attend, [draw((BATCH, 48, WIDTH), 9, BF16), w, s], 3e-2)
    assert any(isinstance(node.attrs, AttentionAttrs) for node in fused)


def test_products_that_multiply_each_other_stay() -> None:
    def square(x: Any, w: Any, other: Any) -> Any:
        one, two = (jnp.einsum("m,mn->n", x, of.astype(x.dtype)) for of in (w, other))
        again = jnp.einsum("n,mn->m", two, other.astype(x.dtype))
        return one * one, two * jnp.tanh(two), one * two, again * again

    rng = np.random.default_rng(2)
    w, other = (rng.integers(-9, 9, (WIDTH, 40)).astype(np.int8) for _ in "ab")
    compare(square, [draw((WIDTH,), 1), w, other], 1e-5)


@pytest.mark.parametrize("dtype", [np.dtype(np.float64), F32], ids=str)
def test_scales_of_a_type_that_no_kernel_reads_stay(dtype: np.dtype) -> None:
    def attend(q: Any, k: Any, v: Any, length: Any) -> Any:
        wide = ((n.astype(s.dtype) * s[..., None]).astype(q.dtype) for n, s in (k, v))
        return shared(q, *wide, length)

    with jax.enable_x64(True):
        fused = compare(attend, make_integers(GROUPS, dtype=dtype), 2e-2)
    found = [node for node in fused if isinstance(node.attrs, AttentionAttrs)]
    assert bool(found) == (dtype == F32)


def test_small_scales_of_values_in_f16() -> None:
    """A weight of 1e-4 times a scale of 2e-4 is nothing in f16."""
    half = np.dtype(np.float16)
    q, k, (numbers, scales), lengths = make_integers(HEADS)
    scales = np.full_like(scales, 2e-4, half)
    numbers[:, 0], scales[:, 0] = 0, 1e-7  # the key that has almost all weight
    keys = (k[0], k[1].astype(half))
    keys[0][:, 0] = np.sign(q.astype(np.float32)).astype(np.int8)[:, :HEADS] * 127
    keys[1][:, 0] = 0.02
    check(
        scaled_in_16_bits(one_head_each),
        [q.astype(half), keys, (numbers, scales), lengths],
        2e-2,
    )


def test_pages_in_another_type_are_converted_first() -> None:
    def attend(q: Any, k: Any, v: Any, table: Any, length: Any) -> Any:
        shape = BATCH, KEYS, GROUPS, FEATURES
        own = (jnp.take(x, table, axis=0).astype(q.dtype).reshape(shape) for x in (k, v))
        return attend_to_groups(q, *own, length)

    q, k, v, *others = make_pages(take_pages)
    compare(attend, [q, k.astype(F32), v.astype(F32), *others], 2e-2)


def test_a_result_in_which_the_batch_is_cut() -> None:
    def attend(*given: Any) -> Any:
        return gather_pages(*given).reshape(2, 1, -1)

    assert read_attributes(check(attend, make_pages(gather_pages), 2e-2)).page == PAGE


def test_a_table_of_bytes() -> None:
    def attend(q: Any, k: Any, v: Any, table: Any, length: Any) -> Any:
        dims = lax.GatherDimensionNumbers((2, 3, 4), (0,), (0,))

        def find(x: Any) -> Any:
            own = lax.gather(x, table[..., None], dims, (1, PAGE, GROUPS, FEATURES), mode="clip")
            return own.reshape(BATCH, KEYS, GROUPS, FEATURES)

        return attend_to_groups(q, find(k), find(v), length)

    q, k, v, table, lengths = make_pages(gather_by_default)
    k, v = (np.concatenate([x] * 3) for x in (k, v))  # more than a byte can number
    fused = check(attend, [q, k, v, table.astype(np.uint8), lengths], 2e-2)
    assert read_attributes(fused).page == PAGE


def read_attributes(fused: Graph) -> AttentionAttrs:
    (attrs,) = (node.attrs for node in fused if isinstance(node.attrs, AttentionAttrs))
    return attrs


@pytest.mark.parametrize("attend", PAGED)
def test_pages_are_read_as_they_lie(attend: Callable[..., Any]) -> None:
    fused = check(attend, make_pages(attend), 2e-2)
    assert read_attributes(fused).page == (1 if attend is positions_one_by_one else PAGE)
    assert not any(node.op == "gather" and node.array.rank > 3 for node in fused)


def test_a_page_that_is_not_there_is_nan() -> None:
    arrays = make_pages(take_pages)
    arrays[3][0, 4] = PAGES
    check(take_pages, arrays, 2e-2)


def test_a_table_of_wide_numbers_is_bounded_first() -> None:
    q, k, v, table, lengths = make_pages(gather_by_default)
    fused = check(gather_by_default, [q, k, v, table.astype(np.uint32), lengths], 2e-2)
    assert read_attributes(fused).page == PAGE


def test_pages_of_a_layer() -> None:
    def of_layer(q: Any, k: Any, v: Any, table: Any, length: Any, number: Any) -> Any:
        own = (lax.dynamic_index_in_dim(x, number, 0, False) for x in (k, v))
        return gather_pages(q, *own, table, length)

    q, k, v, *others = make_pages(gather_pages)
    stacks = [np.stack([x, -x, 2 * x]) for x in (k, v)]
    fused = check(of_layer, [q, *stacks, *others, np.int32(2)], 2e-2)
    assert read_attributes(fused).arrays[-3:] == ("k-pages", "v-pages", "layer")


def test_pages_of_8_bits() -> None:
    def attend(q: Any, k: Any, v: Any, table: Any, length: Any) -> Any:
        found = ([x.at[table].get(mode="clip") for x in of] for of in (k, v))
        wide = (n.astype(q.dtype) * s[..., None] for n, s in found)
        return attend_to_groups(
            q, *(x.reshape(BATCH, KEYS, GROUPS, FEATURES) for x in wide), length
        )

    q, k, v, *others = make_pages(gather_pages)
    rng = np.random.default_rng(5)
    pairs = [
        (
            rng.integers(-127, 128, x.shape).astype(np.int8),
            rng.uniform(0.005, 0.03, x.shape[:3]).astype(BF16),
        )
        for x in (k, v)
    ]
    fused = check(attend, [q, *pairs, *others], 2e-2)
    assert read_attributes(fused).arrays[-4:] == ("k-scale", "v-scale", "k-pages", "v-pages")
    assert read_types(fused) == ("s8", "s8")


def test_a_row_is_written_into_a_page() -> None:
    def step(q: Any, k: Any, v: Any, table: Any, length: Any) -> Any:
        rows = jnp.ones((BATCH, GROUPS, FEATURES), k.dtype)
        k, v = (x.at[table[:, 2], length % PAGE].set(rows) for x in (k, v))
        return gather_by_default(q, k, v, table, length), k, v

    assert read_attributes(check(step, make_pages(gather_by_default), 2e-2)).page == PAGE


@pytest.mark.parametrize("kind", ["two sizes", "part of a page"])
def test_what_is_not_gathered_by_whole_pages_stays(kind: str) -> None:
    def attend(q: Any, k: Any, v: Any, table: Any, length: Any) -> Any:
        if kind == "two sizes":
            v = v.reshape(PAGES * 2, PAGE // 2, GROUPS, FEATURES)
            halves = jnp.stack([2 * table, 2 * table + 1], -1).reshape(BATCH, -1)
            of_v = v.at[halves].get(mode="clip").reshape(BATCH, KEYS, GROUPS, FEATURES)
            of_k = k.at[table].get(mode="clip").reshape(BATCH, KEYS, GROUPS, FEATURES)
        else:
            of_k, of_v = (
                x.at[table].get(mode="clip")[:, :, ::2].reshape(BATCH, -1, GROUPS, FEATURES)
                for x in (k, v)
            )
            of_k, of_v = (jnp.concatenate([x, x], 1) for x in (of_k, of_v))
        return attend_to_groups(q, of_k, of_v, length)

    graph, _ = fuse(attend, make_pages(gather_by_default))
    left: list[str] = []
    assert fuse_attention(graph, GPU, left=left) is graph
    assert "would be written to memory first" in left[0]


def test_blocks_that_are_enough_have_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astitch.tile.few_queries.MOST_PARTS", 1)
    fused = check(shared, make(F32, heads=GROUPS), 3e-3)
    (attrs,) = [node.attrs for node in fused if isinstance(node.attrs, AttentionAttrs)]
    assert attrs.share >= KEYS


def test_rows_of_few_keys_are_of_many_queries() -> None:
    """As windows of an image are: they have as many queries as keys."""

    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * SCALE
        return jnp.einsum("bhqk,bkhd->bqhd", softmax(scores, q.dtype), v)

    windows = [draw((BATCH, 48, HEADS, FEATURES), number) for number in range(3)]
    graph, _ = fuse(attend, windows)
    left: list[str] = []
    assert fuse_attention(graph, GPU, left=left) is graph
    assert f"{BATCH * HEADS * 48 * 48:,} scores are few" in left[0]


@pytest.mark.parametrize("low", [-np.inf, -1e9])
def test_rows_and_parts_without_a_key(low: float) -> None:
    def attend(q: Any, k: Any, v: Any, length: Any) -> Any:
        scores = jnp.einsum("bhd,bthd->bht", q, k) * SCALE
        seen = jnp.arange(KEYS)[None, None] < length[:, None, None]
        return jnp.einsum("bht,bthd->bhd", softmax(jnp.where(seen, scores, low), q.dtype), v)

    check(attend, make(F32, (0, 3)), 3e-3)


@pytest.mark.parametrize("of", [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("attend", [shared, by_sums, heads_first])
@pytest.mark.parametrize("layer", [0, 2, 9])
def test_a_layer_of_caches_is_read_where_it_lies(
    attend: Callable[..., Any], layer: int, of: np.dtype
) -> None:
    def of_layer(q: Any, ks: Any, vs: Any, length: Any, number: Any) -> Any:
        k, v = (jax.lax.dynamic_index_in_dim(x, number, 0, keepdims=False) for x in (ks, vs))
        return attend(q, k, v, length)

    q, k, v, length = make(of, heads=OF_GROUPS.get(attend, HEADS))
    stacks = [np.stack([x, -x, 2 * x]).astype(of) for x in (k, v)]
    fused = check(of_layer, [q, *stacks, length, np.int32(layer)], 3e-3 if of == F32 else 2e-2)
    assert not any(node.op == "dynamic-slice" for node in fused)


def step_of_layers(q: Any, ks: Any, vs: Any, length: Any, number: Any) -> Any:
    """One row of a layer's caches is written, then all of them are read."""
    rows = jnp.broadcast_to(q[:, None, :GROUPS], (BATCH, 1, GROUPS, FEATURES))
    zero = jnp.int32(0)

    def write(x: Any, row: Any) -> tuple[Any, Any]:
        own = jax.lax.dynamic_index_in_dim(x, number, 0, keepdims=False)
        own = jax.lax.dynamic_update_slice(own, row, (zero, length[1], zero, zero))
        starts = (number, zero, length[1], zero, zero)
        return own, jax.lax.dynamic_update_slice(x, row[None], starts)

    (k, ks), (v, vs) = write(ks, rows), write(vs, 2 * rows)
    return shared(q, k, v, length), ks, vs


def test_a_layer_of_which_a_row_was_written() -> None:
    q, k, v, length = make(F32, heads=GROUPS)
    arrays = [q, np.stack([k, -k]), np.stack([v, -v]), length, np.int32(1)]
    fused = check(step_of_layers, arrays, 3e-3)
    (attention,) = [node for node in fused if isinstance(node.attrs, AttentionAttrs)]
    assert "layer" in attention.attrs.arrays
    assert all(name in fused.outputs for name in attention.operands[1:3])


def steps_of_layers(q: Any, ks: Any, vs: Any, length: Any) -> Any:
    """The layers one after the other; each puts all of its caches back."""
    for layer in range(2):
        rows = jnp.broadcast_to(q[:, None, :GROUPS], (BATCH, 1, GROUPS, FEATURES))
        at = (0, length[1], 0, 0)
        k = jax.lax.dynamic_update_slice(ks[layer], rows, at)
        v = jax.lax.dynamic_update_slice(vs[layer], 2 * rows, at)
        ks = jax.lax.dynamic_update_index_in_dim(ks, k, layer, 0)
        vs = jax.lax.dynamic_update_index_in_dim(vs, v, layer, 0)
        q = shared(q, ks[layer], vs[layer], length).reshape(q.shape)
    return q, ks, vs


def test_layers_that_are_put_back_as_a_whole() -> None:
    q, k, v, length = make(F32, heads=GROUPS)
    # Two layers, each rounded to TF32: what one is off by goes through the other.
    fused = check(steps_of_layers, [q, np.stack([k, -k]), np.stack([v, -v]), length], 6e-3, 2)
    updates = [node for node in fused if node.op == "dynamic-update-slice"]
    assert len(updates) == 4 and all(node.array.rank == 5 for node in updates)


def test_a_row_that_is_written_in_another_shape() -> None:
    """The same place in the layer and in the stack, but not the same numbers."""

    def attend(q: Any, ks: Any, vs: Any, length: Any, number: Any) -> Any:
        zero, place = jnp.int32(0), jnp.clip(length[1], 0, 50)

        def write(x: Any, row: Any) -> tuple[Any, Any]:
            own = jax.lax.dynamic_index_in_dim(x, number, 0, keepdims=False)
            own = own.reshape(BATCH, KEYS // 2, 2 * GROUPS, FEATURES)
            own = jax.lax.dynamic_update_slice(own, row, (zero, place, zero, zero))
            new = jax.lax.dynamic_update_slice(x, row[None], (number, zero, place, zero, zero))
            return own.reshape(BATCH, KEYS, GROUPS, FEATURES), new

        row = q[:, None, :1]
        (k, ks), (v, vs) = write(ks, row), write(vs, row)
        return shared(q, k, v, length), ks, vs

    q, k, v, length = make(F32, (150, 5), heads=GROUPS)
    arrays = [q, np.stack([k, -k]), np.stack([v, -v]), length, np.int32(1)]
    graph, fused = fuse(attend, arrays)
    found = [node.attrs for node in fused if isinstance(node.attrs, AttentionAttrs)]
    assert not any("layer" in attrs.arrays for attrs in found)
    for one, other in zip(run_graph(fused, arrays), run_graph(graph, arrays), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_layers_that_are_rounded_stay() -> None:
    def attend(q: Any, ks: Any, vs: Any, length: Any) -> Any:
        k, v = (x[1].astype(q.dtype) for x in (ks, vs))
        return repeated(q, k, v, length)

    q, k, v, length = make(F32, heads=GROUPS)
    arrays = [q.astype(BF16), np.stack([k, -k]), np.stack([v, -v]), length]
    _, fused = fuse(attend, arrays)
    assert not any(isinstance(node.attrs, AttentionAttrs) for node in fused)


def test_sums_in_f64_stay() -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = (q[:, None].astype(jnp.float64) * k.astype(jnp.float64)).sum(-1)
        p = jax.nn.softmax(scores, 1)
        return (p[..., None] * v.astype(jnp.float64)).sum(1)

    with jax.enable_x64(True):
        graph, fused = fuse(attend, make(F32)[:3])
    assert fused is graph or not any(isinstance(n.attrs, AttentionAttrs) for n in fused)


def test_a_layer_that_is_overwritten_stays() -> None:
    def overwrite(q: Any, ks: Any, vs: Any, length: Any, number: Any) -> Any:
        k, v = (jax.lax.dynamic_index_in_dim(x, number, 0, keepdims=False) for x in (ks, vs))
        return shared(q, k, v, length), ks.at[0].set(0), vs

    q, k, v, length = make(F32, heads=GROUPS)
    arrays = [q, np.stack([k, -k]), np.stack([v, -v]), length, np.int32(1)]
    _, fused = fuse(overwrite, arrays)
    assert not any(isinstance(node.attrs, AttentionAttrs) for node in fused)


def test_a_bias() -> None:
    def attend(q: Any, k: Any, v: Any, bias: Any) -> Any:
        scores = jnp.einsum("bhd,bthd->bht", q, k) * SCALE + bias[:, None]
        return jnp.einsum("bht,bthd->bhd", softmax(scores, q.dtype), v)

    bias = draw((BATCH, KEYS), 5)
    bias[0, :140] = -np.inf
    bias[1, 100:] = -1e9
    check(attend, [*make(F32)[:3], bias], 3e-3)


def test_sums_that_are_no_attention_stay() -> None:
    def weigh(q: Any, k: Any, v: Any, length: Any) -> Any:
        return (q[:, None] * k).sum(-1), one_head_each(q, k, v, length)

    graph, fused = fuse(weigh, make(F32))
    sums = [node for node in graph if node.op == "reduce" and node.array.rank == 3]
    assert next(fused[n.name] for n in sums if n.name in fused.nodes).op == "reduce"
    assert sum(isinstance(node.attrs, AttentionAttrs) for node in fused) == 1


def from_bytes(q: Any, k: Any, v: Any, scale: Any) -> Any:
    return without_a_mask(q, k.astype(q.dtype) * scale, v, None)


def test_keys_that_are_computed_stay() -> None:
    q, k, v, _ = make(F32)
    arrays = [q, (30 * k).astype(np.int8), v, np.float32(0.03)]
    graph, fused = fuse(from_bytes, arrays)
    assert not any(isinstance(node.attrs, AttentionAttrs) for node in fused)
    left: list[str] = []
    fuse_attention(graph, GPU, left=left)
    (line,) = left
    reason, undo = line.split("\n    to reverse it: ")
    assert "would be written to memory first" in reason
    kept = fuse_attention(graph, GPU, told=read_directives(undo))
    assert any(isinstance(node.attrs, AttentionAttrs) for node in kept)


@pytest.mark.parametrize("attend", [shared, by_sums])
@pytest.mark.parametrize("few_for", ["size", "time"])
def test_the_line_below_a_refusal_makes_a_kernel(
    attend: Callable[..., Any], few_for: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if few_for == "size":
        monkeypatch.setattr(few, "LEAST_BYTES", 1 << 20)
    else:
        monkeypatch.setattr(few, "project_plain_us", lambda *given, **named: 0.0)
    graph, _ = fuse(attend, make(F32, heads=OF_GROUPS.get(attend, HEADS)))
    left: list[str] = []
    assert fuse_attention(graph, GPU, left=left) is graph
    (line,) = left
    _, undo = line.split("\n    to reverse it: ")
    assert undo.removeprefix("keep %") in graph.nodes
    told = read_directives(undo)
    fused = check_graph(fuse_attention(graph, GPU, told=told))
    assert sum(isinstance(node.attrs, AttentionAttrs) for node in fused) == 1
    assert told.list_outcomes() == (f"{undo}: followed",)
