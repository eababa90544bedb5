"""Products of matrices and vectors that were written out are products again; other sums stay sums."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from astitch.graph.ir import DotAttrs
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.restore_dots import EXACT, restore_dots, split_merged_dots
from astitch.rewrite.simplify import simplify
from tests.hlo_runner import lower

RNG = np.random.default_rng(5)


def draw(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def scores(q, keys):
    return (q[:, None, :] * keys).sum(-1)


def mixed(shares, values):
    return (values * shares[:, :, None]).sum(1)


@pytest.mark.parametrize(
    ("fn", "arguments"),
    [(scores, (draw(3, 8), draw(3, 5, 8))), (mixed, (draw(3, 5), draw(3, 5, 8)))],
)
def test_a_vector_times_a_matrix_is_a_product(fn, arguments):
    graph = import_hlo(lower(fn, *arguments))
    restored = restore_dots(graph)
    (dot,) = [node for node in restored if node.op == "dot"]
    assert isinstance(dot.attrs, DotAttrs) and dot.attrs.precision == EXACT
    assert not [node for node in restored if node.op == "reduce"]
    (result,) = run_graph(restored, arguments)
    np.testing.assert_allclose(result, fn(*arguments), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("fn", "arguments"),
    [
        (lambda x, gain: (x * gain).sum(-1), (draw(3, 8), draw(8))),  # no batch
        (lambda x, y: (x * y).sum(-1), (draw(3, 8), draw(3, 8))),  # no free dimension
        (lambda m, x: (m[:, :, None] * x).sum(-1), (draw(3, 5), draw(3, 5, 8))),  # sums x alone
        (lambda q, k: (q[:, None, :] * k).max(-1), (draw(3, 8), draw(3, 5, 8))),
        (
            lambda q, k: (q[:, None, :] * k).sum(-1),
            (jnp.asarray(draw(3, 8), jnp.float16), jnp.asarray(draw(3, 5, 8), jnp.float16)),
        ),  # multiplied in 16 bits
    ],
)
def test_other_sums_stay(fn, arguments):
    graph = import_hlo(lower(fn, *arguments))
    assert not [node for node in restore_dots(graph) if node.op == "dot"]


def test_a_product_that_others_read_stays():
    def fn(q, keys):
        terms = q[:, None, :] * keys
        return terms.sum(-1), terms

    graph = import_hlo(lower(fn, draw(3, 8), draw(3, 5, 8)))
    assert restore_dots(graph) is graph


def test_a_sum_of_what_is_summed_reads_the_product():
    def fn(shares, values):
        products = values * shares[:, :, None]
        return products.sum(1), products.sum((0, 1))

    arguments = draw(3, 5), draw(3, 5, 8)
    restored = restore_dots(simplify(import_hlo(lower(fn, *arguments))))
    assert [node.op for node in restored if node.op in ("dot", "reduce", "multiply")] == [
        "dot",
        "reduce",
    ]
    for result, want in zip(run_graph(restored, arguments), fn(*arguments), strict=True):
        np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("turned", [False, True])
def test_an_outer_product_is_a_product_without_a_sum(turned):
    def fn(x, y):
        made = x[:, :, None] * y[:, None, :]
        return 1 - (made.transpose(0, 2, 1) if turned else made)

    arguments = draw(3, 5), draw(3, 4)
    restored = restore_dots(simplify(import_hlo(lower(fn, *arguments))))
    (dot,) = [node for node in restored if node.op == "dot"]
    assert dot.attrs.lhs_contracting == () and "multiply" not in {n.op for n in restored}
    (result,) = run_graph(restored, arguments)
    np.testing.assert_allclose(result, fn(*arguments), rtol=1e-5)


def merged(x, y, z, w, cuts, *, rows=False):
    """Slices of one product of x and y, z and w side by side."""
    joined = jnp.concatenate([y, z, w])
    product = joined @ x.T if rows else x @ joined.T
    return [product[a:b] if rows else product[:, a:b] for a, b in cuts]


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(
    ("cuts", "products"),
    [
        ([(0, 4), (4, 10), (10, 12)], 3),
        ([(0, 10), (10, 12)], 2),  # of two pieces and of one
        ([(0, 2), (2, 4), (5, 9)], 2),  # parts of a piece; one piece is not read
        ([(0, 12)], 1),
        ([(0, 6), (4, 12)], 1),  # both read the second piece
    ],
)
def test_merged_products_are_taken_apart(cuts, products, rows):
    arguments = draw(3, 8), draw(4, 8), draw(6, 8), draw(2, 8)

    def fn(*arguments):
        return merged(*arguments, cuts, rows=rows)

    graph = simplify(import_hlo(lower(fn, *arguments)))
    parted = split_merged_dots(graph)
    assert len([node for node in parted if node.op == "dot"]) == products
    assert (parted is graph) == (products == 1)
    for result, want in zip(run_graph(parted, arguments), fn(*arguments), strict=True):
        np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-5)


def test_merged_products_that_are_read_whole_stay():
    arguments = draw(3, 8), draw(4, 8), draw(6, 8)

    def fn(x, y, z):
        product = x @ jnp.concatenate([y, z]).T
        return product[:, :4], product[:, 4:], product

    graph = simplify(import_hlo(lower(fn, *arguments)))
    assert split_merged_dots(graph) is graph
