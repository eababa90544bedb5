"""Small products, written out: which, in what form, and that kernels compute what they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astitch.compile import compile_graph, compile_hlo
from astitch.device.gpu import preset
from astitch.directives import parse
from astitch.graph.check import check_graph
from astitch.graph.ir import DotAttrs, Graph, TransposeAttrs
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.simplify import simplify
from astitch.rewrite.small_dots import FEW, decompose_small_dots
from astitch.run.host_engine import HostEngine
from astitch.xla.compile_module import compile_for_xla
from tests.graph.test_matmul import dots
from tests.hlo_runner import lower, run_xla

Function = Callable[..., Any]
H100 = preset("h100")
RNG = np.random.default_rng(0)
POINTS = np.asarray(RNG.standard_normal((20_000, 3)), np.float32)


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape) * 3, dtype)


def graph_of(fn: Function, *arguments: Any) -> Graph:
    return simplify(check_graph(import_hlo(lower(fn, *arguments))))


def ops_of(fn: Function, *arguments: Any) -> list[str]:
    written = check_graph(decompose_small_dots(graph_of(fn, *arguments), H100))
    return [node.op for node in written if node.op != "parameter"]


# ---- which -------------------------------------------------------------------------------------------------------


def times(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.tanh(x @ y)


@pytest.mark.parametrize(
    ("x", "y", "small"),
    [
        ((4096, 4096), (4096,), True),
        ((4096,), (4096, 4096), True),
        ((4096,), (4096,), True),
        ((4096, 1), (1, 4096), True),
        ((4096, FEW), (FEW, 4096), True),
        ((4096, FEW + 1), (FEW + 1, 4096), False),
        ((64, 768), (768, FEW), True),
        ((256, 768), (768, 2), False),  # 786 KB would be read twice
        ((64, 768), (768, FEW + 1), False),
        ((4096, 768), (768, 2), False),  # 12 MB would be read twice
        ((64, 512, 64), (64, 64, 1), True),
        ((128, 768), (768, 768), False),
        ((64, 0), (0, 64), False),
    ],
)
def test_a_product_is_small_if_its_operands_are_most_of_it(
    x: tuple[int, ...], y: tuple[int, ...], small: bool
) -> None:
    arguments = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (x, y))
    assert ("dot" in ops_of(times, *arguments)) is not small


@pytest.mark.parametrize(
    ("subscripts", "x", "y", "written"),
    [
        ("ki,kj->ij", (50_000, 3), (50_000, 4), True),
        ("bki,bkj->bij", (8, 20_000, 3), (8, 20_000, 3), True),
        ("kbi,kbj->bij", (20_000, 8, 3), (20_000, 8, 2), True),
        ("ik,jk->ij", (2, 40_000), (2, 40_000), True),
        ("ki,kj->ij", (2_000_000, 3), (2_000_000, 3), True),  # rows lie side by side
        ("ik,jk->ij", (3, 2_000_000), (3, 2_000_000), True),  # nine sums, one reading
        ("ki,jk->ij", (2_000_000, 3), (3, 2_000_000), False),  # 24 MB would be read three times
        ("btid,btjd->ij", (8, 512, 4, 512), (8, 512, 4, 512), True),
        ("btid,tbjd->ij", (8, 512, 4, 512), (512, 8, 4, 512), False),  # in two orders
        ("bidt,bjdt->ij", (512, 4, 512, 8), (512, 4, 512, 8), True),
        ("bidt,bjdt->ij", (512, 5, 512, 8), (512, 5, 512, 8), False),
        ("ki,kj->ij", (50_000, 3), (50_000, 5), False),
        ("bki,bkj->bij", (2_000, 50, 3), (2_000, 50, 3), False),  # no long sums
    ],
)
def test_few_rows_and_columns_of_long_sums_are_written_out(
    subscripts: str, x: tuple[int, ...], y: tuple[int, ...], written: bool
) -> None:
    """A library would add up each of them in one block."""

    def fn(x: Any, y: Any) -> Any:
        return jnp.tanh(jnp.einsum(subscripts, jnp.exp(x), y))

    arguments = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (x, y))
    assert ("dot" in ops_of(fn, *arguments)) is not written


def attend_by_groups(q: Any, keys: Any) -> Any:
    """[batch, heads of keys, rows, size], [batch, words, heads of keys, size] -> [batch, heads of keys, rows, words]"""
    return jnp.tanh(jnp.einsum("bgrd,bgdl->bgrl", q, keys.transpose(0, 2, 3, 1)))


def mix_by_groups(p: Any, values: Any) -> Any:
    return jnp.tanh(jnp.einsum("bgrl,bgld->bgrd", jnp.abs(p), values.transpose(0, 2, 1, 3)))


@pytest.mark.parametrize(
    ("rows", "words", "written"),
    [(3, 2048, True), (4, 2048, True), (8, 2048, False), (4, 256, False)],
)
def test_few_rows_beside_a_large_transposed_matrix_are_written_out(
    rows: int, words: int, written: bool
) -> None:
    """In the order of the cache, with the rows side by side: it is neither transposed nor read several times."""
    cache = jax.ShapeDtypeStruct((8, words, 4, 64), jnp.bfloat16)
    q = jax.ShapeDtypeStruct((8, 4, rows, 64), jnp.bfloat16)
    p = jax.ShapeDtypeStruct((8, 4, rows, words), jnp.bfloat16)
    for fn, left in ((attend_by_groups, q), (mix_by_groups, p)):
        graph = check_graph(decompose_small_dots(graph_of(fn, left, cache), H100))
        assert any(node.op == "dot" for node in graph) is not written
        if written:
            (total,) = (graph[node.operands[0]] for node in graph if node.op == "reduce")
            assert total.shape == (8, words, 4, rows, 64)
            turned = (node for node in graph if isinstance(node.attrs, TransposeAttrs))
            assert all(node.array.size * 8 <= 8 * words * 4 * 64 for node in turned)


def test_a_matrix_that_a_kernel_computes_is_written_in_any_order() -> None:
    def fn(q: Any, keys: Any) -> Any:
        return attend_by_groups(q, jnp.tanh(keys))

    arrays = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((8, 4, 4, 64), (8, 2048, 4, 64))]
    assert "dot" in ops_of(fn, *arrays)


def test_few_terms_need_no_sum_of_a_kernel() -> None:
    assert "reduce" not in ops_of(times, normal(64, FEW), normal(FEW, 64))
    assert "reduce" in ops_of(times, normal(64, 64), normal(64, 1))


def test_terms_that_no_vector_has_stay_where_the_result_is_large() -> None:
    """x @ y.T: neighbours in the result are multiplied by elements of y that lie FEW apart."""

    def distances(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.tanh(x @ y.T)

    small, large = ((normal(n, FEW), normal(n, FEW)) for n in (64, 1024))
    assert "dot" not in ops_of(distances, *small)
    assert "dot" in ops_of(distances, *large)
    assert "dot" not in ops_of(distances, normal(1024, 1), normal(1024, 1))


def test_a_result_no_larger_than_its_operands_may_read_terms_that_lie_apart() -> None:
    def squares(x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ x.swapaxes(-1, -2))

    for rows, size in ((100_000, 2), (30_000, 3), (20_000, 4)):
        assert "dot" not in ops_of(squares, jax.ShapeDtypeStruct((rows, size, size), jnp.float32))


def test_what_takes_longer_to_compute_than_to_move_stays() -> None:
    """A T4 has two lanes of f64 in a multiprocessor."""
    with jax.enable_x64(True):
        graph = graph_of(
            times, normal(2048, 4, dtype=np.float64), normal(4, 2048, dtype=np.float64)
        )
    for gpu, small in (("h100", True), ("t4", False)):
        written = decompose_small_dots(graph, preset(gpu))
        assert any(node.op == "dot" for node in written) is not small


def spread_of(weights: jax.Array, points: jax.Array) -> jax.Array:
    """[points, groups], [points, 3] -> [groups, 3, 3]"""
    apart = points[:, None] - jnp.arange(1.0, weights.shape[1] + 1)[:, None]
    return jnp.einsum("kb,kbi,kbj->bij", weights, apart, apart)


def count_in_body(turn: Function, state: Any, xs: Any) -> int:
    """Products that are left in the body of a scan."""

    def scan(state: Any, xs: Any) -> Any:
        return jax.lax.scan(turn, state, xs)[0]

    compilation, _ = compile_for_xla(
        graph_of(scan, state, xs), H100, directives=parse("stitch-bodies", "")
    )
    (body,) = compilation.bodies
    return [node.op for node in body.compilation.graph].count("dot")


def test_loop_bodies_keep_what_xla_adds_to_what_they_carry() -> None:
    def turn(state: Any, x: jax.Array) -> Any:
        total, h = state
        return (total + h.T @ x, jnp.tanh(h * jnp.max(total)) + x), None

    assert count_in_body(turn, (normal(512, 512), normal(3, 512)), normal(50, 3, 512)) == 1


def test_loop_bodies_keep_a_matrix_times_a_vector() -> None:
    def turn(h: jax.Array, w: jax.Array) -> Any:
        return jnp.tanh(h - jnp.max(h)) @ w, None

    assert count_in_body(turn, normal(600), normal(4, 600, 600)) == 1


def test_loop_bodies_write_out_few_terms_and_long_sums_of_few() -> None:
    def deform(state: Any, x: jax.Array) -> Any:
        f, c = state
        c = jnp.tanh(c - jnp.max(f, (1, 2), keepdims=True)) + jnp.sum(jnp.sort(x))
        return ((jnp.eye(2) + c) @ f, c), None

    def spread(state: Any, x: jax.Array) -> Any:
        weights, covariance = state
        weights = jax.nn.softmax(weights + jnp.sort(x)[0] * jnp.sum(covariance), 0)
        return (weights, spread_of(weights, POINTS) + jnp.eye(3)), None

    matrices = normal(4096, 2, 2), normal(4096, 2, 2)
    assert count_in_body(deform, matrices, normal(10, 100)) == 0
    assert count_in_body(spread, (normal(20_000, 8), normal(8, 3, 3)), normal(10, 100)) == 0


def test_a_product_without_a_kernel_beside_it_stays() -> None:
    x, y = normal(64, 64), normal(64)
    assert "dot" in ops_of(lambda x, y: x @ y, x, y)
    assert "dot" in ops_of(lambda x, y: (x.T @ y)[:7], x, y)
    assert "dot" not in ops_of(lambda x, y: jnp.exp(x).T @ y, x, y)
    assert "dot" not in ops_of(lambda x, y: jnp.exp((x @ y)[:7]), x, y)


@pytest.mark.parametrize("dtype", [np.complex64, jnp.float8_e4m3fn, np.bool_])
def test_types_without_a_sum_of_ours_stay(dtype: Any) -> None:
    shapes = (jax.ShapeDtypeStruct(shape, dtype) for shape in ((64, 64), (64,)))

    def fn(x: jax.Array, y: jax.Array) -> jax.Array:
        product = jax.lax.dot(x, y, preferred_element_type=dtype)
        return jnp.where(product == 0, product, 1 + product.astype(jnp.float32).astype(dtype))

    assert "dot" in ops_of(fn, *shapes)


def test_an_algorithm_that_was_asked_for_stays() -> None:
    def fn(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.tanh(jax.lax.dot(x, y, precision="F32_F32_F32"))

    shapes = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 64), (64,)))
    assert "dot" in ops_of(fn, *shapes)


# ---- what they compute -------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(dots(), st.sampled_from([np.float32, np.float64, jnp.bfloat16, np.int32]))
def test_any_product_computes_the_same(
    case: tuple[DotAttrs, tuple[int, ...], tuple[int, ...]], dtype: Any
) -> None:
    attrs, *shapes = case
    dimensions = (
        (attrs.lhs_contracting, attrs.rhs_contracting),
        (attrs.lhs_batch, attrs.rhs_batch),
    )

    def fn(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.lax.dot_general(x + x, y, dimensions) * dtype(2)

    with jax.enable_x64(True):
        x, y = arguments = [normal(*shape, dtype=dtype) for shape in shapes]
        graph = graph_of(fn, x, y)
    written = check_graph(decompose_small_dots(graph, H100))
    (got,), (want,) = run_graph(written, arguments), run_graph(graph, arguments)
    assert got.dtype == want.dtype
    tolerance = 2e-2 if dtype == jnp.bfloat16 else 1e-5
    size = np.abs(np.asarray(want, np.float64)).max(initial=1e-3)
    np.testing.assert_allclose(
        np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=0, atol=tolerance * size
    )


def attend(scores: jax.Array, states: jax.Array, w: jax.Array) -> jax.Array:
    """Scores by a vector, a softmax of them, and a sum of states by its weights."""
    weights = jax.nn.softmax((jnp.tanh(states) @ w)[..., 0] + scores, axis=-1)
    return jnp.einsum("bt,btd->bd", weights, states) * 2


def loss(w: jax.Array, x: jax.Array, labels: jax.Array) -> jax.Array:
    logits = jnp.tanh(x) @ w
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1))


CASES: dict[str, tuple[Function, tuple[Any, ...]]] = {
    "scores of a group": (attend_by_groups, (normal(2, 3, 4, 8), normal(2, 40, 3, 8))),
    "values of a group": (
        mix_by_groups,
        (normal(2, 3, 4, 40, dtype=jnp.bfloat16), normal(2, 40, 3, 8, dtype=jnp.bfloat16)),
    ),
    "attention": (attend, (normal(8, 33), normal(8, 33, 20), normal(20, 1))),
    "gradients of a head of two": (
        jax.value_and_grad(loss, (0, 1)),
        (normal(20, 2), normal(64, 20), RNG.integers(0, 2, 64).astype(np.int32)),
    ),
    "half, summed in f32": (
        lambda x, y: jnp.abs(x) @ y * 2,
        (normal(40, 3000, dtype=jnp.bfloat16), np.ones(3000, jnp.bfloat16)),
    ),
    "few terms, in another order": (
        lambda x, y: jnp.tanh(jnp.einsum("kbm,bnk->bmn", x, y)),
        (normal(3, 5, 17), normal(5, 33, 3)),
    ),
    "few rows of a matrix by rows": (
        lambda x, y: jnp.tanh(jnp.einsum("km,kn->mn", x, y)),
        (normal(300, 3), normal(300, 65)),
    ),
    "covariances": (
        lambda r, x: spread_of(jax.nn.softmax(r), x) / 1500 + jnp.eye(3),
        (normal(1500, 5), normal(1500, 3)),
    ),
    "covariances by rows, half": (
        lambda x: jnp.einsum("bik,bjk->bij", jnp.tanh(x), x) * 2,
        (normal(3, 4, 1100, dtype=jnp.bfloat16),),
    ),
    "gradients of a mix of streams of a group": (
        lambda x, y: jnp.einsum("btnd,btmd->nm", jnp.tanh(x), y) * 2,
        (normal(3, 20, 4, 40), normal(3, 20, 3, 40)),
    ),
    "streams, half, by rows, of a group": (
        lambda x, y: jnp.einsum("nbd,bmd->mn", x, jnp.tanh(y)[:, 1:]) * 2,
        (normal(2, 40, 48, dtype=jnp.bfloat16), normal(40, 4, 48, dtype=jnp.bfloat16)),
    ),
    "streams beside a dimension of one, of a group": (
        lambda x, y: jnp.einsum("anc,mc->anm", jnp.tanh(x), y[:, 0]) * 2,
        (normal(1, 3, 1500), normal(4, 1, 1500)),
    ),
    "squares of small matrices": (
        lambda x: jnp.tanh(x @ x.swapaxes(-1, -2) / 10),
        (normal(30_000, 2, 2),),
    ),
    "integers": (
        lambda x, y: jax.lax.dot(x, y, preferred_element_type=np.int32) * 2,
        (RNG.integers(-9, 9, (33, 50)).astype(np.int8), RNG.integers(-9, 9, 50).astype(np.int8)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.endswith("of a group"):  # as if caches were large
        monkeypatch.setattr("astitch.rewrite.small_dots.LEAST_TRANSPOSED_BYTES", 0)
        monkeypatch.setattr("astitch.rewrite.small_dots.READ_AGAIN_BYTES", 1024)
        monkeypatch.setattr("astitch.rewrite.small_dots.READ_AGAIN_SHARE", 1 << 40)
    fn, arguments = CASES[name]
    hlo = lower(fn, *arguments)
    compilation = compile_hlo(hlo)
    if "streams" in name:  # a sum for each number
        sums = [node for node in compilation.graph if node.op == "reduce"]
        assert len(sums) == np.prod(jax.eval_shape(fn, *arguments).shape) > 4
    assert not compilation.program.outside
    assert not any(node.op == "dot" for node in compilation.graph)
    found = HostEngine(compilation.program, check=True).run(list(arguments))
    for got, want in zip(found, run_xla(hlo, arguments), strict=True):
        tolerance = 2e-2 if want.dtype == jnp.bfloat16 else 1e-4
        np.testing.assert_allclose(
            np.asarray(got, np.float64), np.asarray(want, np.float64), tolerance, tolerance
        )


def test_what_reads_a_vector_product_shares_its_kernel() -> None:
    """Scores, softmax and weighted sum are one launch, where there were two products and two kernels."""
    fn, arguments = CASES["attention"]
    compilation = compile_graph(graph_of(fn, *arguments), H100)
    assert len(compilation.program.kernels) == len(compilation.program.steps) == 1
