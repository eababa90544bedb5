"""Products of matrices and vectors that were written out are products again; other sums stay sums."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from astitch.graph.ir import DotAttrs
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.restore_dots import EXACT, restore_dots
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
