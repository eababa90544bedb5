"""Functions through astitch without the shim: values, gradients, variables, inside of graphs, what is left to XLA."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import tf_addon  # noqa: E402
from tests.tf_support import assert_equal  # noqa: E402
from tf_addon import python_tier  # noqa: E402
from tf_addon.enabling import Wishes, takeover  # noqa: E402
from tf_addon.errors import UnsupportedSignature  # noqa: E402

function = tf_addon.function(tier="python")


@pytest.fixture(autouse=True)
def emulated() -> Iterator[None]:
    before = takeover.wishes
    takeover.set(Wishes(engine="host"))
    tf_addon.report(reset=True)
    yield
    takeover.set(before)


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

    def derive_twice(x: Any) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(x)
            slope = derive(x)
        return outer.gradient(slope, x)

    def derive(x: Any) -> Any:
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = cube(x)
        return inner.gradient(y, x)

    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as idle:
        idle.watch(x)
        assert_equal(derive(x), tf.constant([3.0, 12.0]))
    for twice in (derive_twice, tf.function(derive_twice)):
        with pytest.raises(UnsupportedSignature, match="second derivatives"):
            twice(x)


def test_forward_mode_is_refused() -> None:
    square = function(lambda x: x * x)
    x = normal(3)
    with (
        pytest.raises(UnsupportedSignature, match="second derivatives"),
        tf.autodiff.ForwardAccumulator(x, tf.ones([3])),
    ):
        square(x)


def test_persistent_tapes() -> None:
    square = function(lambda x: x * x)
    outer = tf.function(lambda x: square(x) + 1.0)
    x = normal(3)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = square(x)
        z = y * 2.0
    assert_equal([tape.gradient(y, x), tape.gradient(z, x)], [2 * x, 4 * x])
    with pytest.raises(LookupError, match="XlaCallModule"):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = outer(x)
        tape.gradient(y, x)


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


def test_threads_lose_no_update() -> None:
    total, other = tf.Variable(0.0), tf.Variable(0.0)

    @function
    def count(x: Any) -> Any:
        total.assign_add(1.0)
        other.assign(other + 2.0)
        return tf.nn.softmax(x)

    @function
    def swap(x: Any) -> Any:
        """The same variables the other way round."""
        other.assign_sub(1.0)
        total.assign_add(tf.reduce_sum(x) * 0.0)
        return x + 1.0

    @tf.function
    def inside(x: Any) -> Any:
        return count(x) + swap(x)

    inputs = [normal(n, 8) for n in (1, 2, 3, 5)]
    start = threading.Barrier(64)

    def run(number: int) -> None:
        start.wait()
        for turn in range(4):
            x = inputs[(number + turn) % len(inputs)]
            if number % 2:
                inside(x)
            else:
                assert_equal(count(x), tf.nn.softmax(x))
                swap(x)

    with ThreadPoolExecutor(64) as pool:
        list(pool.map(run, range(64), timeout=120))
    assert (float(total), float(other)) == (256.0, 256.0)


# ---- gradients ---------------------------------------------------------------------------------------------------


def check_gradients(fn: Callable[..., Any], given: list[Any], watched: list[Any]) -> None:
    """The function's gradients are tf.function's, those that are None too."""

    def derive(call: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(watched)
            results = tf.nest.flatten(call(*given))
            floats = [y for y in results if y.dtype.is_floating or y.dtype.is_complex]
            loss = tf.add_n([tf.reduce_sum(tf.abs(y) ** 2) for y in floats])
        return tape.gradient(loss, watched)

    ours, theirs = derive(function(fn)), derive(tf.function(fn))
    assert [g is None for g in ours] == [g is None for g in theirs]
    kept = [[tf.convert_to_tensor(g) for g in found if g is not None] for found in (ours, theirs)]
    for a, b in zip(*kept, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert tf_addon.report().fallbacks == 0, str(tf_addon.report())


def test_gradients_of_captured_tensors() -> None:
    weight, x = normal(5), normal(3, 5)
    check_gradients(lambda x: tf.tanh(x * weight), [x], [x, weight])


def test_gradients_of_complex_tensors() -> None:
    x = tf.complex(normal(6), normal(2, 6)[1])
    scale = tf.complex(normal(1), normal(1, 1)[0])
    check_gradients(lambda x, y: (x * y * x, tf.math.real(x)), [x, scale], [x, scale])


def test_gradients_of_variables_that_are_not_trainable() -> None:
    moving, weight = tf.Variable(normal(4), trainable=False), tf.Variable(normal(4))
    x = normal(3, 4)
    check_gradients(lambda x: tf.sin(x * moving) * weight, [x], [x, moving, weight])


@pytest.mark.parametrize("buckets", [None, [4]], ids=["whole", "buckets"])
def test_gradients_of_variables_that_are_arguments(buckets: list[int] | None) -> None:
    decorate = tf_addon.function(tier="python", buckets=buckets)
    square = decorate(lambda x: x * x)
    nested = decorate(lambda given, x: tf.tanh(given["w"] * x) + given["more"][0])
    weight, more = tf.Variable([1.0, 2.0, 3.0]), tf.Variable(normal(3), trainable=False)
    x = normal(2, 3)
    for _ in range(2):
        with tf.GradientTape() as tape:
            y = square(weight)
        assert_equal(tape.gradient(y, [weight]), [2 * weight])
        weight.assign_add([1.0, 1.0, 1.0])

    def derive(fn: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, more])
            y = fn({"w": weight, "more": (more,)}, x)
        return y, tape.gradient(y, [weight, more, x])

    ours = derive(nested)
    middle = tf.tanh(weight * x)
    slope = 1 - middle**2
    slopes = [tf.reduce_sum(slope * x, 0), tf.fill([3], 2.0), slope * weight]
    assert_equal(ours, (middle + more, slopes), atol=1e-5)
    assert tf_addon.report().fallbacks == 0


def test_what_is_not_connected_has_no_gradient() -> None:
    x, y, z = normal(3), normal(3), normal(3)
    idle = tf.Variable(normal(3))

    def some(x: Any, y: Any, z: Any) -> Any:
        return tf.stop_gradient(x * idle) * y, tf.argmax(z)

    check_gradients(some, [x, y, z], [x, y, z, idle])


def test_no_gradient_at_all() -> None:
    def rank(x: Any) -> Any:
        return tf.argmax(x), tf.stop_gradient(x) * 2.0

    x = normal(5)
    check_gradients(rank, [x], [x])
    assert [f.title for f in tf_addon.report().functions] == ["rank"]


def test_gradients_through_a_value_of_the_caller() -> None:
    x = normal(4)

    def derive(decorate: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            middle = tf.exp(x)
            loss = tf.reduce_sum(decorate(lambda z: z * middle)(x) ** 2)
        return tape.gradient(loss, x)

    assert_equal(derive(function), derive(tf.function))
    assert tf_addon.report().fallbacks == 0


def test_a_tensor_of_the_function_around_it_is_refused() -> None:
    @tf.function
    def outer(x: Any) -> Any:
        middle = tf.exp(x)

        @function
        def inner(z: Any) -> Any:
            return z * middle

        with tf.GradientTape() as tape:
            tape.watch(middle)
            y = inner(x)
        return y, tape.gradient(y, middle)

    x = normal(4)
    assert_equal(outer(x), (x * tf.exp(x), x))
    (refused,) = [r for f in tf_addon.report().functions for r in f.refused]
    assert "the function that is being traced around it" in refused.reason


# ---- inside of graphs and classes --------------------------------------------------------------------------------


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


def test_methods_in_a_graph_and_its_gradient() -> None:
    class Scale:
        weight = tf.Variable(2.0)

        @tf_addon.function(tier="python")
        def apply(self, x: Any) -> Any:
            return tf.sin(x) * self.weight

        @tf.function
        def outer(self, x: Any) -> Any:
            return self.apply(x) + 1.0

    scale, x = Scale(), normal(4)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = scale.outer(x)
    assert_equal(y, tf.sin(x) * 2.0 + 1.0)
    assert_equal(tape.gradient(y, [x, scale.weight]), [tf.cos(x) * 2.0, tf.reduce_sum(tf.sin(x))])
    assert tf_addon.report().fallbacks == 0


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
    assert tf_addon.report().fallbacks == 1
    found = {f.title: f for f in tf_addon.report().functions}
    assert found["total"].stitched_runs == 1 and not found["total"].refused
    assert "compile-time constant" in found["turn"].refused[0].reason


def test_a_bug_of_the_compiler_s_is_no_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise KeyError("a scope")

    @function
    def soften(x: Any) -> Any:
        return tf.nn.softmax(x)

    monkeypatch.setattr(python_tier, "compile_module", fail)
    x = normal(3)
    assert_equal(soften(x), tf.nn.softmax(x))
    assert "a bug in astitch: soften is left to XLA" in caplog.text
    (found,) = tf_addon.report().functions
    assert (found.xla_runs, found.refused[0].reason) == (1, "KeyError: 'a scope'")


def test_an_error_of_the_function_s_is_the_user_s(caplog: pytest.LogCaptureFixture) -> None:
    @function
    def fail(x: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail(normal(3))
    assert not caplog.text


def test_signatures_beyond_the_cap_are_xla_s(caplog: pytest.LogCaptureFixture) -> None:
    @function
    def soften(x: Any) -> Any:
        return tf.nn.softmax(x)

    takeover.set(Wishes(engine="host", max_signatures=2))
    for size in (1, 2, 3, 4, 3, 1):
        x = normal(size)
        assert_equal(soften(x), tf.nn.softmax(x))
    (found,) = tf_addon.report().functions
    assert (len(found.compiled), found.stitched_runs, found.xla_runs) == (2, 3, 3)
    assert [r.signatures for r in found.refused] == [1]
    assert caplog.text.count("more than 2 signatures") == 1


def test_refused_signatures_count_too(caplog: pytest.LogCaptureFixture) -> None:
    @function
    def some(x: Any) -> Any:
        return tf.boolean_mask(x, x > 0)

    for size in range(1, 41):
        x = tf.ones([size])
        assert_equal(some(x), x)
    assert len(some._made) == 32
    (found,) = tf_addon.report().functions
    assert (found.stitched_runs, found.xla_runs) == (0, 40)
    assert caplog.text.count("more than 32 signatures") == 1
    assert sum(record.name == "tf_addon" for record in caplog.records) == 33


def test_a_call_that_fails_keeps_no_arguments() -> None:
    class Option:
        pass

    @function
    def fail(x: Any, option: Option) -> Any:
        raise KeyError("mine")

    option = Option()
    gone = weakref.ref(option)
    with pytest.raises(KeyError, match="mine"):
        fail(normal(3), option)
    assert not fail._made and not fail._kept
    del option
    gc.collect()
    assert gone() is None


def test_methods_and_what_they_keep() -> None:
    class Scale:
        def __init__(self, factor: float) -> None:
            self.factor = tf.Variable(factor)

        @tf_addon.function(tier="python", input_signature=[tf.TensorSpec([None], tf.float32)])
        def apply(self, x: Any) -> Any:
            return tf.nn.softmax(x * self.factor)

    x = normal(4)
    one, two = Scale(2.0), Scale(3.0)
    for scale in (one, two):
        assert_equal(scale.apply(x), tf.nn.softmax(x * scale.factor))
    assert_equal(one.apply([1, 2]), tf.nn.softmax([2.0, 4.0]))
    assert_equal(one.apply(x=x), tf.nn.softmax(x * 2.0))
    found = tf_addon.report()
    assert (found.compiles, found.runs, found.fallbacks) == (3, 4, 0), str(found)
    with pytest.raises(TypeError, match="TensorSpec"):
        one.apply(normal(4, 4))
    gone = weakref.ref(one)
    del one, scale
    gc.collect()
    assert gone() is None
