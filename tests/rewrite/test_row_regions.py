"""Ops on rows of narrow arrays: which become one kernel, in which spellings, and what it computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from astitch.device.gpu import preset
from astitch.graph.check import check_graph
from astitch.graph.ir import Graph, Node, RowRegionAttrs, TupleType
from astitch.graph.reference import eval_node, run_graph
from astitch.hlo.tile_call import TRITON
from astitch.hlo_import import import_hlo
from astitch.rewrite import row_regions
from astitch.rewrite.row_regions import form_row_regions
from astitch.rewrite.simplify import simplify
from astitch.tile.interpret import interpret
from astitch.tile.row_rates import choose_tiling
from astitch.tile.row_region import write_row_region
from tests.hlo_runner import lower

H100 = preset("h100")
RNG = np.random.default_rng(0)
ROWS = 4096
Layers = list[tuple[Any, Any]]
IS_LARGER = row_regions._is_larger
GAIN = row_regions.GAIN


@pytest.fixture(autouse=True)
def take_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few rows gain nothing, neither time nor memory."""
    monkeypatch.setattr(row_regions, "GAIN", np.inf)
    monkeypatch.setattr(row_regions, "_is_larger", lambda graph, group, region: False)


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def layers(*widths: int, dtype: Any = np.float32, turned: bool = False) -> Layers:
    return [
        ((normal(*((b, a) if turned else (a, b))) * a**-0.5).astype(dtype), normal(b, dtype=dtype))
        for a, b in pairwise(widths)
    ]


def network(x: Any, ps: Layers, act: Callable[[Any], Any]) -> Any:
    for w, b in ps[:-1]:
        x = act(x @ w + b)
    w, b = ps[-1]
    return x @ w + b


def rewrite(fn: Callable[..., Any], *arguments: Any) -> tuple[Graph, Graph]:
    graph = simplify(check_graph(import_hlo(lower(fn, *arguments))))
    return graph, simplify(check_graph(form_row_regions(graph, H100)))


def regions(graph: Graph) -> list[Node]:
    return [node for node in graph if isinstance(node.attrs, RowRegionAttrs)]


def run_tiles(graph: Graph, arguments: Sequence[Any]) -> list[np.ndarray]:
    """The outputs, with each row-region computed by its tile program."""
    values: dict[str, Any] = {}
    given = dict(zip(graph.parameters, arguments, strict=True))
    for node in graph:
        if node.is_parameter:
            values[node.name] = [given[node.name]]
            continue
        operands = [array for o in node.operands for array in values[o]]
        if not isinstance(node.attrs, RowRegionAttrs):
            values[node.name] = eval_node(node, operands)
            continue
        tiling = choose_tiling(node.regions[0], node.attrs)
        assert tiling is not None and isinstance(node.type, TupleType)
        results = interpret(write_row_region(node.regions[0], node.attrs, tiling), operands)
        shapes = [array.shape for array in node.type.elements]
        values[node.name] = [r.reshape(s) for r, s in zip(results, shapes, strict=True)]
    return [values[name][0] for name in graph.outputs]


def check(fn: Callable[..., Any], *arguments: Any, count: int = 1, apart: float = 1e-2) -> Graph:
    """`count` kernels compute what the function does, `apart` norms from it."""
    graph, changed = rewrite(fn, *arguments)
    assert len(regions(changed)) == count, [str(node) for node in changed]
    leaves = jax.tree.leaves(arguments)
    want = run_graph(graph, leaves)
    for found in (run_graph(changed, leaves), run_tiles(changed, leaves)):
        for one, other in zip(want, found, strict=True):
            assert one.shape == other.shape and one.dtype == other.dtype
            one, other = (np.asarray(x, np.float64) for x in (one, other))
            assert np.linalg.norm(one - other) <= apart * (np.linalg.norm(one) + 1e-9)
    return changed


ACTIVATIONS = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "erf": lambda x: jax.nn.gelu(x, approximate=False),
    "softplus": jax.nn.softplus,
    "leaky": jax.nn.leaky_relu,
    "elu": jax.nn.elu,
}
DTYPES = [np.float32, ml_dtypes.bfloat16, np.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_network_is_one_kernel(name: str, dtype: Any) -> None:
    def fn(ps: Layers, x: Any) -> Any:
        return network(x, ps, ACTIVATIONS[name])

    check(fn, layers(24, 32, 48, 5, dtype=dtype), normal(ROWS + 3, 24, dtype=dtype), apart=3e-2)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + jnp.exp(-x))


@pytest.mark.parametrize("fn", [lambda x: x * sigmoid(x), sigmoid, lambda x: sigmoid(2 * x) + x])
def test_a_sigmoid_of_16_bits_is_rounded_once(fn: Callable[..., Any]) -> None:
    arguments = layers(16, 32, 16, dtype=ml_dtypes.bfloat16), normal(ROWS, 16)
    rounded = arguments[0], arguments[1].astype(ml_dtypes.bfloat16)
    changed = check(lambda ps, x: network(x, ps, fn), *rounded, apart=2e-2)
    (region,) = regions(changed)
    ops = [node.op for node in region.regions[0]]
    assert "logistic" in ops and "exponential" not in ops


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("name", "rows"), [("relu", ROWS), ("tanh", ROWS), ("silu", ROWS), ("silu", ROWS + 40)]
)
def test_a_step_of_training_is_one_kernel(name: str, rows: int, dtype: Any) -> None:
    def step(ps: Layers, x: Any, y: Any) -> Any:
        def loss(ps: Layers) -> Any:
            return jnp.mean((network(x, ps, ACTIVATIONS[name]) - y).astype(jnp.float32) ** 2)

        return jax.value_and_grad(loss)(ps)

    arguments = layers(20, 32, 32, 3, dtype=dtype), normal(rows, 20, dtype=dtype)
    changed = check(step, *arguments, normal(rows, 3, dtype=dtype), apart=4e-2)
    assert not any(node.op == "dot" for node in changed)


def test_sums_take_no_more_memory_than_the_ops_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block has a part of each sum, and few rows are few blocks."""
    monkeypatch.setattr(row_regions, "_is_larger", IS_LARGER)

    def step(ps: Layers, x: Any) -> Any:
        return jax.grad(lambda ps: jnp.mean(network(x, ps, jax.nn.relu) ** 2))(ps)

    for widths, most in (((16,) * 4, ROWS // 32), ((64,) * 6, 0)):
        _, changed = rewrite(step, layers(*widths), normal(ROWS, widths[0]))
        parts = [r.attrs.parts for r in regions(changed) if r.attrs.sums]
        assert max(parts, default=0) == most


def trained(ps: Layers, x: Any, y: Any) -> Any:
    return jax.grad(lambda ps: jnp.mean((network(x, ps, jax.nn.relu) - y) ** 2))(ps)


def of_functions(ps: Layers, x: Any) -> Any:
    return network(x, ps, jax.nn.silu)


def without_functions(ps: Layers, x: Any) -> Any:
    return network(x, ps, jax.nn.relu)


@pytest.mark.parametrize("gpu", ["h100", "h200"])
@pytest.mark.parametrize(
    ("fn", "widths", "rows", "taken"),
    [
        (trained, (64,) * 5, 1 << 17, True),
        (trained, (32,) * 5, 1 << 18, True),
        (of_functions, (128, 64, 64), 200_000, True),
        (of_functions, (64,) * 4, 1 << 18, True),
        (without_functions, (128, 128, 128), 1 << 18, False),
    ],
)
def test_what_gains_time_is_taken_with_faster_memory_too(
    fn: Callable[..., Any],
    widths: tuple[int, ...],
    rows: int,
    taken: bool,
    gpu: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Products of XLA's do not gain all of it, and each function between them is a kernel more."""
    monkeypatch.setattr(row_regions, "GAIN", GAIN)
    ends = [jax.ShapeDtypeStruct((rows, n), np.float32) for n in (widths[0], widths[-1])]
    arguments = layers(*widths), *(ends if fn is trained else ends[:1])
    graph = simplify(check_graph(import_hlo(lower(fn, *arguments))))
    assert bool(regions(form_row_regions(graph, preset(gpu)))) is taken


def of_images(ps: Layers, x: Any) -> Any:
    return network(x.reshape(32, 128, 16), ps, jnp.tanh)


def of_vmap(ps: Layers, x: Any) -> Any:
    return jax.vmap(lambda row: network(row, ps, jnp.tanh))(x)


def of_einsum(ps: Layers, x: Any) -> Any:
    for w, b in ps:
        x = jnp.tanh(jnp.einsum("ni,io->no", x, w) + b[None])
    return x


def normed(ps: Layers, x: Any) -> Any:
    for w, b in ps:
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        x = jax.nn.relu(((x - mean) * jax.lax.rsqrt(var + 1e-5)) @ w + b)
    return jax.nn.softmax(x)


def gated(ps: Layers, x: Any) -> Any:
    for w, _ in ps:
        a, g = jnp.split(x @ w, 2, -1)
        x = jax.nn.silu(a) * g
        x = jnp.concatenate([x, x * 2], -1)
    return x


def to_numbers(ps: Layers, x: Any) -> Any:
    return network(x, ps, jnp.tanh).max(-1)


def clipped(ps: Layers, x: Any) -> Any:
    return jnp.where(x > 0, jnp.clip(network(x, ps, jnp.abs), -1, 1), x)


@pytest.mark.parametrize("fn", [of_images, of_vmap, of_einsum, normed, gated, to_numbers, clipped])
def test_spellings(fn: Callable[..., Any]) -> None:
    ps = layers(16, 32, 16)
    if fn is gated:
        ps = [(normal(16, 32), None), (normal(32, 64) * 0.2, None)]
    check(fn, ps, normal(ROWS, 16))


def test_weights_that_lie_turned() -> None:
    def fn(ps: Layers, x: Any) -> Any:
        for w, b in ps:
            x = jnp.tanh(x @ w.T + b)
        return x

    check(fn, layers(16, 32, 32, 8, turned=True), normal(ROWS, 16))


def test_matrices_of_as_many_numbers_as_there_are_rows() -> None:
    """64 x 64 numbers are no numbers of 4,096 rows."""

    def fn(ps: Layers, x: Any) -> Any:
        scaled = [(jnp.tanh(w) / jnp.linalg.norm(w), b) for w, b in ps]
        return jax.value_and_grad(lambda ps: jnp.sum(network(x, ps, jnp.tanh)))(scaled)

    changed = check(fn, layers(64, 64, 64, 64), normal(64 * 64, 64))
    (region,) = regions(changed)
    assert [changed[o].op for o in region.operands].count("parameter") < len(region.operands)


def discounted(values: Any, vector: Any) -> Any:
    return values * vector, jnp.sum(values * vector[None])


def powers(values: Any, vector: Any) -> Any:
    return values * 0.99 ** jnp.arange(256), vector


def of_lengths(values: Any, vector: Any) -> Any:
    lengths = jnp.sum(vector > 0) - jnp.arange(16)
    return jnp.where(jnp.arange(256) < lengths[:, None], values, 0), vector


def of_places(values: Any, vector: Any) -> Any:
    column, row = (jax.lax.broadcasted_iota(jnp.int32, (16, 256), d) for d in (1, 0))
    return jnp.where((column < 100) & (row > 3), values, 0) + row + column, vector


@pytest.mark.parametrize("fn", [discounted, powers, of_lengths, of_places])
def test_numbers_of_rows_that_lie_as_a_matrix(fn: Callable[..., Any]) -> None:
    """A vector or a count along its columns is none along the columns of rows."""

    def whole(ps: Layers, x: Any, vector: Any) -> Any:
        return fn(network(x, ps, jnp.tanh)[..., 0], vector)

    check(whole, layers(16, 32, 3), normal(16, 256, 16), normal(256))


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_products_with_a_vector_add_up_what_is_not_rounded(dtype: Any) -> None:
    """Pairs of products that are almost each other's negative."""

    def fn(w: Any, v: Any, x: Any) -> Any:
        h = x @ w
        return jnp.concatenate([h, -h], -1) @ v, h @ w

    v = np.concatenate([np.full(16, 1.37), np.full(16, 1.38)]).astype(dtype)
    check(fn, np.eye(16, dtype=dtype), v, 1 + abs(normal(ROWS, 16, dtype=dtype)), apart=1e-2)


def test_signs_of_zeros_stay() -> None:
    def fn(w: Any, x: Any) -> Any:
        h = -jax.nn.relu(x @ w)
        return h, h[:, 3:4].reshape(-1), h @ w

    arguments = normal(16, 16), normal(ROWS, 16)
    graph, changed = rewrite(fn, *arguments)
    assert len(regions(changed)) == 1
    for want, found in zip(run_graph(graph, arguments), run_tiles(changed, arguments), strict=True):
        zeros = (want == 0) & (found == 0)
        np.testing.assert_array_equal(np.signbit(want[zeros]), np.signbit(found[zeros]))


def halves(*shape: int, dtype: Any) -> np.ndarray:
    """Numbers whose products and sums are exact in every type."""
    return (RNG.integers(-2, 3, shape) / 2).astype(dtype)


def kinked(ps: Layers, x: Any) -> Any:
    (w, b), (v, c) = ps
    h = jnp.maximum(x @ w, x @ w[:, ::-1] + b)
    z = jnp.clip(h @ v, c - 1, c + 1)
    return z.max(-1) - jnp.minimum(z, x).min(-1) + jnp.abs(z).sum(-1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_ties(dtype: Any) -> None:
    def fn(ps: Layers, x: Any) -> Any:
        return jax.value_and_grad(lambda ps: kinked(ps, x).astype(jnp.float32).sum())(ps)

    ps = [(halves(a, b, dtype=dtype), halves(b, dtype=dtype)) for a, b in ((16, 32), (32, 16))]
    check(fn, ps, halves(ROWS + 3, 16, dtype=dtype), apart=1e-2)


def test_what_is_not_finite_stays_in_its_row() -> None:
    x = normal(ROWS + 3, 17)
    x[3, 2], x[7, 1], x[9] = np.nan, np.inf, -np.inf
    ps = layers(17, 20, 5)

    def fn(ps: Layers, x: Any) -> Any:
        y = network(x, ps, jax.nn.relu)
        return y, y.max(-1)

    graph, changed = rewrite(fn, ps, x)
    assert len(regions(changed)) == 1
    leaves = jax.tree.leaves((ps, x))
    for want, found in zip(run_graph(graph, leaves), run_tiles(changed, leaves), strict=True):
        np.testing.assert_array_equal(np.isnan(want), np.isnan(found))
        np.testing.assert_array_equal(np.isinf(want), np.isinf(found))


def test_the_gradient_of_what_goes_in() -> None:
    def fn(ps: Layers, x: Any) -> Any:
        def f(row: Any) -> Any:
            return network(row, ps, jnp.tanh)[0]

        return jax.vmap(jax.value_and_grad(f))(x)

    check(fn, layers(3, 32, 32, 1), normal(ROWS, 3))


def of_edges(ps: Layers, h: Any, e: Any, ends: Any) -> Any:
    """Messages of a graph: rows of nodes are looked up for each edge."""
    given = jnp.concatenate([h[ends[0]], h[ends[1]], e], -1)
    return jax.nn.silu(network(given, ps, jax.nn.silu))


def of_words(ps: Layers, table: Any, words: Any) -> Any:
    return network(jnp.take(table, words, axis=0, mode="clip"), ps, jnp.tanh)


def chosen_loss(ps: Layers, x: Any, chosen: Any) -> Any:
    """The gradient waits for what is looked up among the results."""

    def loss(ps: Layers) -> Any:
        logits = jax.nn.log_softmax(network(x, ps, jnp.tanh))
        return -jnp.mean(jnp.exp(jnp.take_along_axis(logits, chosen[:, None], 1)))

    return jax.grad(loss)(ps)


def test_what_follows_from_stored_arrays_is_not_stored() -> None:
    """tanh(x) is stored for the gradient of the weights, its derivative is not."""
    chosen = RNG.integers(0, 6, ROWS).astype(np.int32)
    changed = check(chosen_loss, layers(16, 32, 32, 6), normal(ROWS, 16), chosen, count=2)
    forward = regions(changed)[0].regions[0]
    matrices = [forward[o] for o in forward.outputs if forward[o].shape == (ROWS, 32)]
    assert [node.op for node in matrices] == ["tanh", "tanh"]


def test_equal_results_are_all_written() -> None:
    """A value and what it is reshaped to, or two spellings of it: one value of the region, and several results."""
    x = normal(2, ROWS // 2, 32)
    (w1, _), (w2, _) = layers(32, 32, 32)

    def views(x: Any, w1: Any, w2: Any) -> Any:
        y = jnp.tanh(x @ w1)
        return y @ w2, jnp.cumsum(y, 1), jnp.sort(y.reshape(ROWS, 32), 0)

    def sums(x: Any, w1: Any, w2: Any) -> Any:
        y = jnp.tanh(x @ w1)
        total = y.sum((0, 1))
        return (y @ w2) * 2, total, jnp.cumsum(y.reshape(ROWS, 32).sum(0)), jnp.cumsum(total * 2)

    for fn in (views, sums):
        check(fn, x, w1, w2)


def test_what_follows_from_results_is_left_to_a_reader_outside() -> None:
    """No kernel has the sort, so its operand, of three ops on a result, is in no region either."""

    def fn(ps: Layers, x: Any) -> Any:
        h = jnp.tanh(network(x, ps, jnp.tanh))
        return h, jnp.sort((1 - h) * (1 + h))

    changed = check(fn, layers(16, 32, 8), normal(ROWS, 16))
    (region,) = regions(changed)
    body = region.regions[0]
    assert [body[o].op for o in body.outputs] == ["tanh"]


def exact(function: Callable[..., Any], *arguments: Any) -> list[np.ndarray]:
    """In f32, on the processor: exact beside products in TF32."""
    with jax.default_device(jax.devices("cpu")[0]):
        wide = [
            jnp.asarray(x if np.issubdtype(x.dtype, np.integer) else x.astype(np.float32))
            for x in jax.tree.leaves(arguments)
        ]
        wide = jax.tree.unflatten(jax.tree.structure(arguments), wide)
        return [np.asarray(x, np.float64) for x in jax.tree.leaves(function(*wide))]


def compare_on_gpu(fn: Callable[..., Any], *arguments: Any) -> None:
    """At most twice as far from the exact results as jax.jit, and a thousandth of them more."""
    import astitch

    plain = jax.tree.leaves(jax.jit(fn)(*arguments))
    with astitch.enabled():
        compiled = jax.jit(lambda *given: fn(*given)).lower(*arguments).compile()
    assert TRITON in compiled.as_text()
    found = jax.tree.leaves(compiled(*arguments))
    for want, one, other in zip(exact(fn, *arguments), plain, found, strict=True):
        distances = [np.linalg.norm(np.asarray(x, np.float64) - want) for x in (one, other)]
        assert distances[1] <= 2 * distances[0] + 1e-3 * np.linalg.norm(want)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_networks_on_a_gpu(name: str, dtype: Any) -> None:
    def fn(ps: Layers, x: Any) -> Any:
        return network(x, ps, ACTIVATIONS[name])

    compare_on_gpu(fn, layers(24, 32, 48, 5, dtype=dtype), normal(ROWS + 3, 24, dtype=dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [ROWS, ROWS + 40])
def test_training_on_a_gpu(rows: int, dtype: Any) -> None:
    def step(ps: Layers, x: Any, y: Any) -> Any:
        def loss(ps: Layers) -> Any:
            return jnp.mean((network(x, ps, jnp.tanh) - y).astype(jnp.float32) ** 2)

        return jax.value_and_grad(loss)(ps)

    arguments = layers(20, 32, 32, 3, dtype=dtype), normal(rows, 20, dtype=dtype)
    compare_on_gpu(step, *arguments, normal(rows, 3, dtype=dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_looked_up_on_a_gpu(dtype: Any) -> None:
    ends = RNG.integers(-5, 100, (2, ROWS + 8)).astype(np.int32)
    nodes, edges = normal(100, 24, dtype=dtype), normal(ROWS + 8, 9, dtype=dtype)
    compare_on_gpu(of_edges, layers(57, 32, 32, dtype=dtype), nodes, edges, ends)


@pytest.mark.gpu
@pytest.mark.parametrize("fn", [of_images, of_vmap, of_einsum, normed, to_numbers, clipped])
def test_spellings_on_a_gpu(fn: Callable[..., Any]) -> None:
    compare_on_gpu(fn, layers(16, 32, 16), normal(ROWS, 16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_looked_up(dtype: Any) -> None:
    ends = RNG.integers(-5, 100, (2, ROWS + 8)).astype(np.int32)
    nodes, edges = normal(100, 24, dtype=dtype), normal(ROWS + 8, 9, dtype=dtype)
    changed = check(of_edges, layers(57, 32, 32, dtype=dtype), nodes, edges, ends, apart=3e-2)
    assert len({*regions(changed)[0].operands}) == len(regions(changed)[0].operands)
    assert not any(node.op == "gather" for node in changed)
    words = RNG.integers(-3, 60, (ROWS // 16, 16)).astype(np.int32)
    check(of_words, layers(20, 32, 4, dtype=dtype), normal(50, 20, dtype=dtype), words, apart=3e-2)


def test_offsets_in_what_is_looked_up_are_32_bits_wide() -> None:
    table = jax.ShapeDtypeStruct((1 << 27, 20), np.float32)
    words = np.zeros(ROWS, np.int32)
    _, changed = rewrite(of_words, layers(20, 32, 4), table, words)
    assert len(regions(changed)) == 1 and any(node.op == "gather" for node in changed)
