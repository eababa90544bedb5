"""Attention in f32 through XLA's hook: XLA compiles the kernels for an H100, no scores are in memory, and what the
module computes, with the kernels interpreted, is what JAX computes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import SingleDeviceSharding

import astitch
from astitch.attention import find
from astitch.attention.choose import Projection
from astitch.faults import FaultWarning
from astitch.hlo.tile_call import TRITON
from tests.ahead_of_time import GPU, compile_ahead, devices, hooked, needs_hook
from tests.attention.spellings import OTHERS, dropped
from tests.hook_evaluation import stitch_through_hook

pytestmark = needs_hook

BATCH, POSITIONS, HEADS, FEATURES = 8, 512, 8, 64
WIDTH = HEADS * FEATURES
SCORES_BYTES = BATCH * HEADS * POSITIONS * POSITIONS * 4


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=SingleDeviceSharding(devices()[0]))


def attend(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """Causal, or as the mask [batch, keys] says."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool)) if mask is None else mask[:, None, None]
    scores = jnp.where(seen, scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)


def sum_of_squares(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: jnp.sum(function(*given) ** 2)


def gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(sum_of_squares(function), argnums=(0, 1, 2))


def layer(x: Any, weights: Any) -> Any:
    heads = weights["in"].shape[-1] // 3 // 16
    parts = jnp.split(x @ weights["in"], 3, -1)
    q, k, v = (part.reshape(*x.shape[:2], heads, 16) for part in parts)
    return x + attend(q, k, v).reshape(x.shape) @ weights["out"]


def layers(weights: Any, x: Any) -> Any:
    """In a scan, each computed again for the gradient."""
    body = jax.checkpoint(lambda x, w: (layer(x, w), None))
    return lax.scan(body, x, weights)[0]


def by_vmap(q: Any, k: Any, v: Any) -> Any:
    def one(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.softmax(q @ k.T / 4, -1) @ v

    return jax.vmap(jax.vmap(one, in_axes=1, out_axes=1))(q, k, v)


def shared(q: Any, k: Any, v: Any) -> Any:
    return attend(q, *(jnp.repeat(x[:, :, :2], q.shape[2] // 2, axis=2) for x in (k, v)))


def of_flax(q: Any, k: Any, v: Any) -> Any:
    from flax import linen

    mask = linen.make_causal_mask(jnp.ones(q.shape[:2]))
    return linen.dot_product_attention(q, k, v, mask=mask)


def of_equinox(q: Any, k: Any, v: Any) -> Any:
    import equinox

    made = equinox.nn.MultiheadAttention(4, 64, key=jax.random.key(0))
    q, k, v = (x.reshape(*x.shape[:2], -1) for x in (q, k, v))
    return jax.vmap(made)(q, k, v)


def attend_biased(q: Any, k: Any, v: Any) -> Any:
    """With numbers that leave out some scores, and all of a row."""
    random = np.random.default_rng(1).standard_normal((q.shape[2], q.shape[1], k.shape[1]))
    random[:, 3, 5:] = random[:, 4] = -1e9
    return attend_with(lambda s: s + jnp.float32(random))(q, k, v)


def attend_beside_sink(q: Any, k: Any, v: Any) -> Any:
    def join(scores: Any) -> Any:
        sink = jnp.arange(scores.shape[1], dtype=scores.dtype)[None, :, None, None]
        return jnp.concatenate([scores, jnp.broadcast_to(sink, (*scores.shape[:3], 1))], -1)

    return attend_with(join)(q, k, v)


def attend_to_documents(q: Any, k: Any, v: Any) -> Any:
    """Causal, of segments that the numbers tell, with padding: some rows have no score."""
    ids = (jnp.arange(q.shape[1]) + (q[:, 0, 0, :1] > 0) * 3) // 7 - 1

    def mask(scores: Any) -> Any:
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool)) & (ids >= 0)[:, None, None]
        return jnp.where(seen & (ids[:, None, :, None] == ids[:, None, None]), scores, -1e9)

    return attend_with(mask)(q, k, v)


def attend_with(change: Callable[..., Any]) -> Callable[..., Any]:
    """Attention whose scores are changed, and of whose probabilities those of keys are read."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = change(jnp.einsum("bqhd,bkhd->bhqk", q, k) / float(np.sqrt(q.shape[-1])))
        p = jax.nn.softmax(scores, -1)[..., : k.shape[1]]
        return jnp.einsum("bhqk,bkhd->bqhd", p, v)

    return attention


def count_calls(module: bytes) -> int:
    return module.count(TRITON.encode())


def test_no_scores_are_in_memory() -> None:
    arrays = [array(BATCH, POSITIONS, HEADS, FEATURES)] * 3
    plain = compile_ahead(gradient(attend), *arrays)
    with hooked() as seen:
        forward = compile_ahead(attend, *arrays)
        ours = compile_ahead(gradient(attend), *arrays)
    assert [s.module and count_calls(s.module) for s in seen.stitchings[-2:]] == [1, 3]
    text = ours.as_text()
    assert text.count(f'"{TRITON}"') == 3
    assert not re.search(r" (dot|copy)\(", text)
    assert plain.memory_analysis().temp_size_in_bytes > SCORES_BYTES
    assert ours.memory_analysis().temp_size_in_bytes < SCORES_BYTES / 3
    assert forward.memory_analysis().temp_size_in_bytes < SCORES_BYTES / 16


def test_padding_is_read_as_it_is() -> None:
    arrays = [array(BATCH, POSITIONS, HEADS, FEATURES)] * 3
    with hooked():
        ours = compile_ahead(attend, *arrays, array(BATCH, POSITIONS, dtype=jnp.bool_))
    assert ours.as_text().count(f'"{TRITON}"') == 1
    assert ours.memory_analysis().temp_size_in_bytes < SCORES_BYTES / 16


@pytest.fixture
def _all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "LEAST_SCORES", 1)
    monkeypatch.setattr(find, "project", lambda *given, **named: Projection(0.0, 1.0))


SPELLINGS: dict[str, tuple[Callable[..., Any], int]] = {
    "einsum": (attend, 3),
    "library": (lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True), 3),
    "vmap": (by_vmap, 3),
    "shared": (shared, 3),
    "flax": (of_flax, 3),
    "equinox": (of_equinox, 3),
    "dropout": (dropped, 3),
    "capped": (OTHERS["capped"], 3),
    "bias": (attend_biased, 3),
    "sink": (attend_beside_sink, 3),
    "documents": (attend_to_documents, 3),
}
"""With the calls of the gradient."""


@pytest.mark.usefixtures("_all_sizes")
@pytest.mark.parametrize("name", SPELLINGS)
def test_results_are_those_of_jax(name: str) -> None:
    function, calls = SPELLINGS[name]
    random = np.random.default_rng(0)
    arrays = [random.standard_normal((2, 20, 4, 16)).astype(np.float32) for _ in range(3)]
    check(gradient(function), arrays, calls)


@pytest.mark.usefixtures("_all_sizes")
def test_layers_in_a_scan() -> None:
    """The forward loop has a call, the backward loop two and the forward pass again."""
    random = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) / 4).astype(np.float32)

    weights = {"in": draw(3, 32, 96), "out": draw(3, 32, 32)}
    check(jax.grad(sum_of_squares(layers)), [weights, draw(2, 20, 32)], 4)


@pytest.mark.usefixtures("_all_sizes")
def test_documents_in_a_scan() -> None:
    """A body computes the mask from the segments, so that its kernels read these alone."""
    random = np.random.default_rng(0)
    arrays = [random.standard_normal((2, 128, 2, 16)).astype(np.float32) for _ in range(3)]
    ids = np.arange(128, dtype=np.int32) // np.array([[50], [20]], np.int32)

    def repeat(q: Any, k: Any, v: Any, ids: Any) -> Any:
        seen = (ids[:, None, :, None] == ids[:, None, None]) & jnp.tril(jnp.ones((128, 128), bool))
        one = attend_with(lambda s: jnp.where(seen, s, -1e9))
        body = jax.checkpoint(lambda q, _: (q + one(q, k, v), None))
        return lax.scan(body, q, None, length=2)[0]

    check(gradient(repeat), [*arrays, ids], 4)


@pytest.mark.usefixtures("_all_sizes")
def test_a_bias_that_is_learned() -> None:
    """Relative positions by buckets: a fourth kernel sums the gradient over the batch."""
    random = np.random.default_rng(0)
    arrays = [random.standard_normal((2, 20, 4, 16)).astype(np.float32) for _ in range(3)]
    table = random.standard_normal((9, 4)).astype(np.float32)

    def attend_near(q: Any, k: Any, v: Any, table: Any) -> Any:
        distance = jnp.arange(q.shape[1])[:, None] - jnp.arange(k.shape[1])
        bias = table[jnp.clip(distance, -4, 4) + 4].transpose(2, 0, 1)
        return attend_with(lambda s: s + bias)(q, k, v)

    check(jax.grad(sum_of_squares(attend_near), argnums=(0, 1, 2, 3)), [*arrays, table], 4)


def attend_by_distance(q: Any, k: Any, v: Any, places: Any) -> Any:
    """A causal bias as large as the scores: what another product of the queries gives, turned by one more a row."""
    count = q.shape[1]
    turned = jnp.pad(jnp.einsum("bqhd,thd->bhqt", q, places), [(0, 0)] * 3 + [(1, 0)])
    turned = turned.reshape(*turned.shape[:2], -1)[..., count:].reshape(*turned.shape[:3], -1)
    band = jnp.tril(jnp.ones((count, count), bool))
    return attend_with(lambda s: jnp.where(band, s + turned[..., :count], -1e9))(q, k, v)


@pytest.mark.usefixtures("_all_sizes")
def test_a_bias_as_large_as_the_scores() -> None:
    """The kernel of the queries writes its gradient."""
    random = np.random.default_rng(0)
    arrays = [random.standard_normal((2, 20, 4, 16)).astype(np.float32) for _ in range(3)]
    places = random.standard_normal((20, 4, 16)).astype(np.float32)
    function = jax.grad(sum_of_squares(attend_by_distance), argnums=(0, 1, 2, 3))
    check(function, [*arrays, places], 3)
    shapes = [(BATCH, POSITIONS, HEADS, FEATURES)] * 3 + [(POSITIONS, HEADS, FEATURES)]
    given = [array(*shape, dtype=jnp.bfloat16) for shape in shapes]
    plain = compile_ahead(function, *given)
    with hooked():
        ours = compile_ahead(function, *given)
    assert ours.as_text().count(f'"{TRITON}"') == 3
    bytes_of = [x.memory_analysis().temp_size_in_bytes for x in (ours, plain)]
    assert bytes_of[0] < bytes_of[1]


def check(function: Callable[..., Any], arguments: list[Any], calls: int) -> None:
    stitched = stitch_through_hook(function, *arguments)
    assert count_calls(stitched.module) == calls
    found = stitched.run(jax.tree.leaves(arguments))
    for one, other in zip(found, jax.tree.leaves(function(*arguments)), strict=True):
        distance = np.linalg.norm(one - np.asarray(other))
        assert distance <= 5e-3 * np.linalg.norm(other)


def test_what_xla_refuses_it_compiles_without_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that is no Triton IR stands for what a version of XLA does not take."""
    monkeypatch.setattr("astitch.hlo.tile_call.write_triton_ir", lambda program: "no module")
    arrays = [array(BATCH, POSITIONS, HEADS, FEATURES)] * 3
    with (
        astitch.enabled(gpu=GPU),
        pytest.warns(FaultWarning, match="attention and narrow products of .* stay as they are"),
    ):
        compiled = compile_ahead(attend, *arrays)
    assert TRITON not in compiled.as_text()
