"""Functions through astitch without the shim: values, gradients, variables, inside of graphs, what is left to XLA."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import tf_addon  # noqa: E402
from tests.tf_support import assert_equal  # noqa: E402
from tf_addon.errors import UnsupportedSignature  # noqa: E402
from tf_addon.switch import Wishes, the_switch  # noqa: E402

function = tf_addon.function(tier="python")


@pytest.fixture(autouse=True)
def emulated() -> Iterator[None]:
    before = the_switch.wishes
    the_switch.set(Wishes(engine="host"))
    tf_addon.report(reset=True)
    yield
    the_switch.set(before)


def normal(*shape: int) -> Any:
    return tf.random.stateless_normal(shape, [1, len(shape)])


def test_values_of_any_structure() -> None:
    @function
    def mixed(x: Any, scale: float, *, flip: bool) -> Any:
        y = tf.nn.softmax(x * scale)
        return {"y": y, "more": (tf.reduce_sum(x) if flip else x, tf.shape(x))}

    x = normal(3, 5)
    for scale, flip in ((2.0, True), (3.0, False), (2.0, True)):
        wanted = {
            "y": tf.nn.softmax(x * scale),
            "more": (tf.reduce_sum(x) if flip else x, tf.shape(x)),
        }
        assert_equal(mixed(x, scale, flip=flip), wanted)
    found = tf_addon.report()
    assert (found.compiles, found.runs) == (2, 3)
    assert [f.title for f in found.functions] == ["mixed"]


def test_gradients_take_what_the_forward_kept() -> None:
    weight, table = tf.Variable(normal(8, 8)), tf.Variable(normal(10, 8))

    def layer(x: Any, ids: Any) -> Any:
        return tf.nn.softmax(tf.tanh(x @ weight) + tf.gather(table, ids)), ids + 1

    ours = function(layer)
    x, ids = normal(4, 8), tf.constant([1, 2, 2, 7])

    def run(fn: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, after = fn(x, ids)
            loss = tf.reduce_sum(y**2)
        found = tape.gradient(loss, [x, weight, table])
        return y, after, [tf.convert_to_tensor(gradient) for gradient in found]

    assert_equal(run(ours), run(layer))
    parts = {f.title: f for f in tf_addon.report().functions}
    assert set(parts) == {"layer (forward)", "layer (backward)"}
    (backward,) = parts["layer (backward)"].compiled
    assert not {node.op for node in backward.compilation.graph} & {"tanh", "exponential", "exp"}


def test_second_derivatives_are_refused() -> None:
    @function
    def cube(x: Any) -> Any:
        return x**3

    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = cube(x)
        with pytest.raises(UnsupportedSignature, match="second derivatives"):
            inner.gradient(y, x)


def test_variables_are_updated() -> None:
    weight, count = tf.Variable(normal(4, 4)), tf.Variable(0)

    @function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weight) ** 2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        count.assign_add(1)
        return loss

    x = normal(3, 4)
    expected = weight.numpy()
    losses = []
    for _ in range(3):
        y = x.numpy() @ expected
        losses.append((y**2).mean())
        expected = expected - 0.1 * (2 / y.size) * x.numpy().T @ y
    assert_equal([step(x) for _ in range(3)], losses)
    assert_equal(weight, expected)
    assert int(count) == 3


def test_inside_of_a_graph() -> None:
    weight = tf.Variable(normal(5))

    @function
    def soften(x: Any) -> Any:
        if tf.reduce_sum(x) < -1e6:  # for autograph
            x = x + 1.0
        return tf.nn.softmax(x * weight)

    @tf.function
    def outer(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(soften(x) ** 2 + soften(x + 1.0))
        return loss, tape.gradient(loss, weight)

    def plain(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.softmax(x * weight) ** 2 + tf.nn.softmax((x + 1.0) * weight))
        return loss, tape.gradient(loss, weight)

    x = normal(3, 5)
    assert_equal(outer(x), plain(x))


def test_a_function_of_this_tier_stays_it_where_all_are_taken_over() -> None:
    @function
    def squash(x: Any) -> Any:
        return tf.tanh(x) * 2.0

    x = normal(4, 5)
    with tf_addon.enabled():
        assert_equal(squash(x), np.tanh(x) * 2)
    (refused,) = [r for f in tf_addon.report().functions for r in f.refused]
    assert "it is astitch's already" in refused.reason


def test_what_it_cannot_is_xla_s_and_told() -> None:
    @function
    def total(x: Any) -> Any:
        return tf.reduce_sum(tf.boolean_mask(x, x > 0))

    @function
    def turn(x: Any, shape: Any) -> Any:
        return tf.reshape(x, shape)

    x = normal(12)
    assert_equal(total(x), np.maximum(x, 0).sum())
    assert turn(x, tf.constant([3, 4])).shape == (3, 4)
    assert tf_addon.report().fallbacks == 2
    reasons = {f.title: f.refused[0].reason for f in tf_addon.report().functions}
    assert "dynamic shape" in reasons["total"]
    assert "compile-time constant" in reasons["turn"]
