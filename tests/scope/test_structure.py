"""Structures: scopes that differ in names only are one; anything that a kernel could tell apart makes two."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from hlo_runner import lower

from astitch.device.gpu import preset
from astitch.hlo_import import import_hlo
from astitch.rewrite.simplify import simplify
from astitch.scope.structure import structure_of
from astitch.search import plan as planning
from astitch.search.build_program import make_cuda_kernel
from astitch.search.plan import Planner, plan_scope
from astitch.stitch_scope import Scope, Scopes
from tests.scopes import find_scopes

H100 = preset("h100")
X = jax.ShapeDtypeStruct((64, 128), jnp.float32)
W = jax.ShapeDtypeStruct((128, 128), jnp.float32)


def scopes_of(function, *arguments) -> Scopes:
    return find_scopes(simplify(import_hlo(lower(function, *arguments))))


def first_of(function, *arguments):
    found = scopes_of(function, *arguments)
    return structure_of(found.graph, found.scopes[0])


def three_layers(x, w):
    for _ in range(3):
        x = jax.nn.softmax(x @ w) * 2
    return x


def test_layers_of_one_form_have_one_structure():
    found = scopes_of(three_layers, X, W)
    inner, again, last = (structure_of(found.graph, scope) for scope in found.scopes)
    assert inner == again and hash(inner) == hash(again)
    assert found.scopes[0].members != found.scopes[1].members
    # What the caller wants is stored as an output either way.
    assert last != inner


OTHERS = {
    "op": (lambda x, y: jnp.cos(x) + y, X, X),
    "shape": (lambda x, y: jnp.sin(x) + y, W, W),
    "dtype": (lambda x, y: jnp.sin(x) + y, *(jax.ShapeDtypeStruct(X.shape, jnp.bfloat16),) * 2),
    "order of operands": (lambda x, y: y + jnp.sin(x), X, X),
    "a shared input": (lambda x, y: jnp.sin(x) + x, X, X),
    "another output": (lambda x, y: ((s := jnp.sin(x)), s + y), X, X),
    "attributes": (lambda x, y: jnp.sin(x[::-1]) + y, X, X),
}


@pytest.mark.parametrize("what", OTHERS)
def test_whatever_a_kernel_shows_makes_another_structure(what):
    function, *arguments = OTHERS[what]
    assert first_of(function, *arguments) != first_of(lambda x, y: jnp.sin(x) + y, X, X)


def test_constants_that_are_part_of_the_text_count():
    assert first_of(lambda x: x * 2, X) != first_of(lambda x: x * 3, X)
    assert first_of(lambda x: x * 2, X) == first_of(lambda y: y * 2, X)


def test_two_views_of_one_buffer_are_told_from_two_buffers():
    def both(x, y):
        return x.reshape(128, 64) * y.reshape(128, 64)

    assert first_of(lambda x, y: both(x, x), X, X) != first_of(both, X, X)


def test_equal_scopes_are_searched_once_and_planned_alike(monkeypatch):
    large = jax.ShapeDtypeStruct((8192, 4096), jnp.float32)

    def norms(x, y):
        return tuple(jax.nn.softmax(z) * jnp.max(z, -1, keepdims=True) for z in (x, y))

    found = scopes_of(norms, large, large)
    first, second = found.scopes
    assert structure_of(found.graph, first) == structure_of(found.graph, second)
    ranked = []
    rank = planning.rank_plans

    def count_rankings(graph, scope: Scope, *rest, **options):
        ranked.append(scope.name)
        return rank(graph, scope, *rest, **options)

    monkeypatch.setattr(planning, "rank_plans", count_rankings)
    planner = Planner(H100)
    plans = [planner.plan(found.graph, scope) for scope in found.scopes]
    assert ranked == [first.name]
    for scope, plan in zip(found.scopes, plans, strict=True):
        alone = plan_scope(found.graph, scope, H100)
        assert make_cuda_kernel(plan.kernel) == make_cuda_kernel(alone.kernel)
        assert str(plan) == str(alone)
