"""TensorFlow functions through astitch's emulation: values, variables, gradients, control flow, threads, fallbacks."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import tf_addon  # noqa: E402
from astitch.errors import EngineUnavailable  # noqa: E402
from tests.tf_support import assert_equal, both, check_stitched  # noqa: E402
from tf_addon.enabling import Wishes, takeover  # noqa: E402

rng = np.random.default_rng(0)


def normal(*shape: int, dtype: str = "float32") -> Any:
    return tf.constant(rng.normal(size=shape), dtype)


# ---- values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_float_types(dtype: str) -> None:
    @tf.function(jit_compile=True)
    def soften(x: Any) -> Any:
        return tf.nn.softmax(x * 2, axis=-1)

    x = normal(6, 40, dtype=dtype)
    tolerance = 1e-6 if dtype in ("float32", "float64") else 1e-2
    (function,) = check_stitched(lambda: soften(x), rtol=tolerance)
    assert function.title == "soften"
    assert function.compiled[0].kernels == 1


def test_integers_and_truths() -> None:
    @tf.function(jit_compile=True)
    def count(x: Any, y: Any) -> Any:
        return tf.reduce_sum(x * 3, 0), x > y, tf.cast(x, tf.int64) // 2, tf.math.floormod(x, 5)

    x, y = tf.range(-8, 8), tf.constant(rng.integers(-9, 9, 16), tf.int32)
    check_stitched(lambda: count(x, y))


def test_results_that_are_constants_or_arguments() -> None:
    @tf.function(jit_compile=True)
    def mixed(x: Any) -> Any:
        return {"same": x, "shape": tf.shape(x), "sum": tf.reduce_sum(x), "again": x, "five": 5}

    x = normal(3, 4)
    check_stitched(lambda: mixed(x))


def test_empty_and_unaligned_arguments() -> None:
    @tf.function(jit_compile=True)
    def shift(x: Any, y: Any) -> Any:
        return x + 1.0, tf.exp(y)

    whole = normal(5, 3)
    # A row of a tensor lies at a multiple of 12 bytes.
    rows = [tf.constant(whole.numpy())[i] for i in range(5)]
    check_stitched(lambda: [shift(tf.zeros([0, 4]), row) for row in rows])


def test_constant_arguments_are_part_of_the_signature() -> None:
    @tf.function(jit_compile=True, reduce_retracing=True)
    def turn(x: Any, shape: Any) -> Any:
        return tf.reshape(x, shape) * 2.0

    shapes = [tf.constant(s) for s in ([3, 4], [4, 3], [2, 6])]
    x = normal(12)
    (function,) = check_stitched(lambda: [turn(x, shape) for shape in shapes])
    assert len(function.compiled) == 3


# ---- variables and gradients -------------------------------------------------------------------------------------


class Trainer:
    """Two layers and plain gradient descent, by hand."""

    def __init__(self) -> None:
        start = np.random.default_rng(7)
        self.weights = [
            tf.Variable(start.normal(size=s).astype("f") / 4) for s in ((8, 16), (16, 2))
        ]
        self.biases = [tf.Variable(tf.zeros([n])) for n in (16, 2)]
        self.steps = tf.Variable(0, dtype=tf.int64)

    @tf.function(jit_compile=True)
    def step(self, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = tf.nn.gelu(x @ self.weights[0] + self.biases[0])
            loss = tf.reduce_mean((hidden @ self.weights[1] + self.biases[1] - y) ** 2)
        variables = [*self.weights, *self.biases]
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.1 * gradient)
        self.steps.assign_add(1)
        return loss


def test_training_by_hand_updates_variables() -> None:
    x, y = normal(32, 8), normal(32, 2)

    def train() -> Any:
        trainer = Trainer()
        losses = [trainer.step(x, y) for _ in range(20)]
        return losses, trainer.weights, trainer.biases, trainer.steps

    (function,) = check_stitched(train)
    assert function.stitched_runs == 20
    assert len(function.compiled) == 1


def test_gradient_outside_runs_the_forward_once() -> None:
    """The tape of a caller: forward and backward are two functions, and the backward takes what the forward kept."""
    weight = tf.Variable(normal(8, 8))

    @tf.function(jit_compile=True)
    def layer(x: Any) -> Any:
        return tf.nn.softmax(tf.tanh(x @ weight))

    x = normal(4, 8)

    def run() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x) ** 2)
        return tape.gradient(loss, [x, weight])

    functions = check_stitched(run)
    parts = {f.title: f for f in functions}
    assert set(parts) == {"layer (forward)", "layer (backward)"}
    assert all(f.stitched_runs == 1 for f in functions)
    # tanh, exp and the product of the forward are not there again.
    backward = parts["layer (backward)"].compiled[0].compilation
    ops = {node.op for node in backward.graph}
    assert not ops & {"tanh", "exp", "exponential"}


def test_second_derivatives() -> None:
    @tf.function(jit_compile=True)
    def wave(x: Any) -> Any:
        return tf.sin(x) * x**2

    x = normal(5)

    def run() -> Any:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = wave(x)
            slope = inner.gradient(y, x)
        return slope, outer.gradient(slope, x)

    check_stitched(run)


def test_a_variable_set_by_others_is_seen() -> None:
    variable = tf.Variable([1.0, 2.0])

    @tf.function(jit_compile=True)
    def double() -> Any:
        variable.assign(variable * 2.0)
        return tf.reduce_sum(variable)

    with tf_addon.enabled(engine="host"):
        assert float(double()) == 6.0
        variable.assign([5.0, 5.0])
        assert float(double()) == 20.0
        view = variable.read_value()
        variable.assign_add([1.0, 1.0])
        assert float(double()) == 44.0
    np.testing.assert_array_equal(view, [10.0, 10.0])


# ---- control flow, random numbers, nesting -----------------------------------------------------------------------


def test_control_flow() -> None:
    @tf.function(jit_compile=True)
    def walk(x: Any, limit: Any) -> Any:
        for i in tf.range(limit):
            if tf.reduce_sum(x) > 10.0:
                x = x / 2.0
            else:
                x = x * 1.5
                x = x + tf.cast(i, tf.float32)
        return x

    x = tf.abs(normal(5))
    check_stitched(lambda: [walk(x, tf.constant(n)) for n in (3, 9)])


def test_stateless_random_numbers_are_the_same() -> None:
    @tf.function(jit_compile=True)
    def draw(seed: Any) -> Any:
        return tf.random.stateless_uniform([64], seed), tf.nn.experimental.stateless_dropout(
            tf.ones([64]), 0.3, seed, rng_alg="philox"
        )

    check_stitched(lambda: [draw([1, 2]), draw([3, 4])])


def test_a_generator_moves_on() -> None:
    @tf.function(jit_compile=True)
    def draw(generator: Any) -> Any:
        return generator.normal([32])

    def run() -> Any:
        generator = tf.random.Generator.from_seed(5)
        return draw(generator), draw(generator), generator.state

    ours, theirs, found = both(run)
    assert_equal(ours, theirs)
    assert not np.array_equal(ours[0], ours[1])
    assert found.runs + found.fallbacks == 2


def test_stateful_random_numbers_differ_from_call_to_call() -> None:
    @tf.function(jit_compile=True)
    def draw() -> Any:
        return tf.random.uniform([1000])

    with tf_addon.enabled(engine="host"):
        a, b = draw().numpy(), draw().numpy()
    assert 0.4 < a.mean() < 0.6
    assert a.min() >= 0 and a.max() < 1
    assert not np.array_equal(a, b)


def test_inside_of_another_function_and_tf_data() -> None:
    @tf.function(jit_compile=True)
    def scale(x: Any) -> Any:
        return x / tf.reduce_max(x)

    @tf.function
    def outer(x: Any) -> Any:
        return scale(x) + scale(x + 1.0)

    def run() -> Any:
        data = tf.data.Dataset.from_tensor_slices(np.arange(1, 25, dtype="f").reshape(6, 4))
        return outer(tf.constant([1.0, 2.0, 4.0])), list(data.map(scale, num_parallel_calls=2))

    check_stitched(run)


# ---- what is left to XLA or TensorFlow ---------------------------------------------------------------------------


def test_strings_run_op_by_op() -> None:
    @tf.function(jit_compile=True)
    def render(x: Any) -> Any:
        return tf.strings.join(["<", tf.strings.as_string(x), ">"])

    tf_addon.report(reset=True)
    with tf_addon.enabled(engine="host"), tf.device("CPU"):
        assert render(tf.constant([1, 20])).numpy().tolist() == [b"<1>", b"<20>"]
    (function,) = tf_addon.report().functions
    assert function.op_by_op_runs == 1 and function.stitched_runs == 0
    (refused,) = function.refused
    assert refused.owner == "TensorFlow, op by op"
    assert "AsString" in refused.reason
    with (
        tf_addon.enabled(engine="host", uncompiled=False),
        tf.device("CPU"),
        pytest.raises(tf.errors.InvalidArgumentError),
    ):
        render(tf.constant([1, 20]))


def test_strings_that_xla_wants_to_know_run_op_by_op() -> None:
    """XLA's own kernel ends the process there."""

    @tf.function(jit_compile=True)
    def fold(x: Any, extents: Any) -> Any:
        return tf.reshape(x, tf.strings.to_number(extents, tf.int32)) * 2.0

    x = normal(6)
    tf_addon.report(reset=True)
    with tf_addon.enabled(engine="host"), tf.device("CPU"):
        for extents in (["2", "3"], ["3", "2"], ["6"]):
            assert_equal(fold(x, tf.constant(extents)), tf.reshape(x, list(map(int, extents))) * 2)
    (function,) = (f for f in tf_addon.report().functions if f.op_by_op_runs > 1)
    assert "strings" in function.refused[0].reason
    with (
        tf_addon.enabled(engine="host", uncompiled=False),
        tf.device("CPU"),
        pytest.raises(tf.errors.InvalidArgumentError, match="XLA has no strings"),
    ):
        fold(x, tf.constant(["1", "6"]))


@pytest.mark.parametrize("uncompiled", [True, False])
def test_beyond_the_cap_strings_that_xla_wants_to_know_reach_no_kernel_of_its(
    uncompiled: bool,
) -> None:
    signature = [tf.TensorSpec([6], tf.float32), tf.TensorSpec([None], tf.string)]

    @tf.function(jit_compile=True, input_signature=signature)
    def fold(x: Any, extents: Any) -> Any:
        return tf.reshape(x, tf.strings.to_number(extents, tf.int32)) * 2.0

    options = {"engine": "host", "max_signatures": 1, "uncompiled": uncompiled}
    with tf_addon.enabled(**options), tf.device("CPU"):
        for extents in (["2", "3"], ["6"], ["1", "2", "3"]):
            if uncompiled:
                assert fold(normal(6), tf.constant(extents)).shape == list(map(int, extents))
                continue
            with pytest.raises(tf.errors.InvalidArgumentError):
                fold(normal(6), tf.constant(extents))


def test_beyond_the_cap_strings_still_run_op_by_op() -> None:
    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec([None], tf.int32)])
    def render(x: Any) -> Any:
        return tf.strings.as_string(x)

    tf_addon.report(reset=True)
    with tf_addon.enabled(engine="host", max_signatures=2), tf.device("CPU"):
        for count in range(1, 6):
            assert render(tf.range(count)).shape == (count,)
    (function,) = tf_addon.report().functions
    assert (function.op_by_op_runs, function.xla_runs) == (5, 0)
    assert {refused.owner for refused in function.refused} == {"TensorFlow, op by op"}


def test_an_error_of_the_user_s_leaves_nothing_behind() -> None:
    count = tf.Variable(0.0)
    signature = [tf.TensorSpec([None], tf.float32), tf.TensorSpec([None], tf.int32)]

    @tf.function(jit_compile=True, input_signature=signature)
    def turn(x: Any, shape: Any) -> Any:
        count.assign_add(1.0)
        return tf.reshape(x, shape)

    tf_addon.report(reset=True)
    with tf_addon.enabled(engine="host"):
        for _ in range(2):
            with pytest.raises(tf.errors.InvalidArgumentError, match="requested shape has 8"):
                turn(tf.ones([6]), [4, 2])
            assert float(count) == 0.0
        assert turn(tf.ones([6]), [3, 2]).shape == (3, 2)
    assert float(count) == 1.0
    (function,) = tf_addon.report().functions
    assert (function.op_by_op_runs, function.xla_runs, function.failed_runs) == (0, 0, 2)
    assert [refused.owner for refused in function.refused] == ["the function"]


def test_a_shape_that_xla_must_know_runs_op_by_op() -> None:
    @tf.function(jit_compile=True)
    def halve(x: Any) -> Any:
        turns = tf.constant(0)
        while tf.reduce_sum(x) > 1.0:
            x, turns = x / 2.0, turns + 1
        return tf.reshape(x, [turns, -1])

    tf_addon.report(reset=True)
    with tf_addon.enabled(engine="host"), tf.device("CPU"):
        assert halve(tf.ones([6])).shape == (3, 2)
    (function,) = tf_addon.report().functions
    assert function.op_by_op_runs == 1
    assert "compile-time constant" in function.refused[0].reason


def test_a_variable_may_be_a_shape() -> None:
    """Its value is part of the signature."""
    with tf.device("CPU"):
        shape, x = tf.Variable([2, 3]), normal(6)

    @tf.function(jit_compile=True)
    def turn(x: Any) -> Any:
        shape.assign(shape[::-1])
        return tf.reshape(x, shape) * 2.0

    with tf.device("CPU"):
        (function,) = check_stitched(lambda: [turn(x) for _ in range(4)])
    assert len(function.compiled) == 2


def test_values_of_dynamic_shape_are_a_fallback() -> None:
    @tf.function(jit_compile=True)
    def total(x: Any) -> Any:
        return tf.reduce_sum(tf.boolean_mask(tf.tanh(x), x > 0) ** 2)

    x = normal(50)
    (function,) = check_stitched(lambda: total(x))
    assert "shapes that only the run tells (" in function.explain()


def test_a_table_that_is_updated_by_unique_rows() -> None:
    """As Keras' optimizers but Adam update an embedding."""

    @tf.function(jit_compile=True)
    def update(table: Any, rows: Any, gradient: Any) -> Any:
        unique, places = tf.unique(rows)
        summed = tf.math.unsorted_segment_sum(gradient, places, tf.shape(unique)[0])
        return tf.tensor_scatter_nd_add(tf.nn.softmax(table), unique[:, None], summed**2)

    table, rows, gradient = normal(16, 4), tf.constant([1, 2, 1, 5, 2, 9]), normal(6, 4)
    check_stitched(lambda: update(table, rows, gradient))


@pytest.mark.usefixtures("sorts_left")
def test_an_op_without_a_kernel_is_a_fallback() -> None:
    @tf.function(jit_compile=True)
    def ordered(x: Any) -> Any:
        return tf.sort(tf.exp(x), axis=-1) + 1.0

    x = normal(8, 16)
    (function,) = check_stitched(lambda: ordered(x))
    assert function.compiled[0].other_steps == 1
    assert "sort" in function.explain()


def test_strict_raises() -> None:
    @tf.function(jit_compile=True)
    def total(x: Any) -> Any:
        return tf.reduce_sum(tf.boolean_mask(x, x > 0))

    with (
        tf_addon.enabled(engine="host", strict=True),
        pytest.raises(tf.errors.UnimplementedError, match="strict: .*total"),
    ):
        total(normal(9))
    total(normal(9))


def test_signatures_beyond_the_cap_are_xla_s() -> None:
    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec([None, 4], tf.float32)])
    def rows(x: Any) -> Any:
        return tf.nn.softmax(x)

    tf_addon.report(reset=True)
    with tf_addon.enabled(engine="host", max_signatures=2):
        for count in (1, 2, 3, 4, 1, 2):
            x = normal(count, 4)
            assert_equal(rows(x), tf.nn.softmax(x))
    (function,) = tf_addon.report().functions
    assert len(function.compiled) == 2
    assert (function.stitched_runs, function.xla_runs) == (4, 2)
    (refused,) = function.refused
    assert "more than 2 signatures" in refused.reason
    assert refused.signatures == 1


def test_call_sites_share_the_cap_and_the_rows_of_the_report() -> None:
    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec([None, 4], tf.float32)])
    def rows(x: Any) -> Any:
        return tf.nn.softmax(x)

    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec([None], tf.float32)])
    def positive(x: Any) -> Any:
        return tf.boolean_mask(x, x > 0)

    @tf.function
    def outer(x: Any, y: Any) -> Any:
        return rows(x), rows(y), positive(x[0]), positive(y[0])

    @tf.function
    def other(x: Any, y: Any) -> Any:
        return rows(y), rows(x), positive(y[0]), positive(x[0])

    sizes = (1, 2, 3, 4, 1)
    tf_addon.report(reset=True)
    with tf_addon.enabled(engine="host", max_signatures=2):
        for size in sizes:
            x = normal(size, 4)
            for ours in (*outer(x, x)[:2], *other(x, x)[:2]):
                assert_equal(ours, tf.nn.softmax(x))
    found = {f.title: f for f in tf_addon.report().functions}
    assert len(found["rows"].compiled) == 2
    assert (found["rows"].stitched_runs, found["rows"].xla_runs) == (12, 8)
    assert [refused.signatures for refused in found["rows"].refused] == [1]
    assert [refused.signatures for refused in found["positive"].refused] == [1]


@pytest.mark.usefixtures("sorts_left")
def test_a_function_refused_when_strict_is_compiled_later() -> None:
    @tf.function(jit_compile=True)
    def ordered(x: Any) -> Any:
        return tf.sort(x) * 2.0

    x = normal(9)
    with (
        tf_addon.enabled(engine="host", strict=True),
        pytest.raises(tf.errors.UnimplementedError, match="sort"),
    ):
        ordered(x)
    check_stitched(lambda: ordered(x))


def test_a_report_begun_anew_still_knows_who_runs() -> None:
    @tf.function(jit_compile=True)
    def soften(x: Any) -> Any:
        return tf.nn.softmax(x)

    tf_addon.report(reset=True)
    with tf_addon.enabled(engine="host"):
        soften(normal(3))
        assert tf_addon.report(reset=True).compiles == 1
        soften(normal(3))
    (function,) = tf_addon.report().functions
    assert (function.title, function.stitched_runs, function.compiled) == ("soften", 1, ())


# ---- on and off --------------------------------------------------------------------------------------------------


def test_on_and_off_in_the_middle() -> None:
    variable = tf.Variable(1.0)

    @tf.function(jit_compile=True)
    def bump(x: Any) -> Any:
        variable.assign_add(1.0)
        return x * variable

    tf_addon.report(reset=True)
    x = tf.constant(2.0)
    found = [float(bump(x))]
    for _ in range(2):
        tf_addon.enable(engine="host")
        found.append(float(bump(x)))
        tf_addon.disable()
        found.append(float(bump(x)))
    assert found == [4.0, 6.0, 8.0, 10.0, 12.0]
    (function,) = tf_addon.report().functions
    assert function.stitched_runs == 2
    assert len(function.compiled) == 1


@tf.function(jit_compile=True)
def soften(x: Any) -> Any:
    return tf.nn.softmax(x)


def is_taken() -> bool:
    """Does astitch run a compiled function?"""
    tf_addon.report(reset=True)
    soften(tf.ones([3]))
    return tf_addon.report().runs == 1


def test_blocks_of_two_threads_may_overlap() -> None:
    tf_addon.disable()
    steps = [threading.Event() for _ in range(4)]
    seen: list[bool] = []

    def other() -> None:
        steps[0].wait()
        with tf_addon.enabled(engine="host"):
            steps[1].set()
            steps[2].wait()
            seen.append(is_taken())
        steps[3].set()

    thread = threading.Thread(target=other)
    thread.start()
    with tf_addon.enabled(engine="host"):
        steps[0].set()
        steps[1].wait()
    steps[2].set()
    steps[3].wait()
    thread.join()
    assert seen == [True]
    assert not is_taken()


def test_on_and_off_inside_of_blocks() -> None:
    tf_addon.disable()
    with tf_addon.enabled(engine="host"):
        with tf_addon.enabled(engine="host"):
            tf_addon.disable()
            assert not is_taken()
        assert is_taken()
        # A thread outside of all blocks speaks for the whole process.
        thread = threading.Thread(target=tf_addon.disable)
        thread.start()
        thread.join()
        assert not is_taken()
        tf_addon.enable(engine="host")
        assert is_taken()
    assert not is_taken()


def test_off_keeps_the_other_options_of_each_block() -> None:
    before = takeover.wishes
    base = Wishes(max_signatures=7)
    takeover.set(base)
    try:
        with tf_addon.enabled(max_signatures=2, engine="host", uncompiled=False, strict=True):
            thread = threading.Thread(target=tf_addon.disable)
            thread.start()
            thread.join()
            assert takeover.wishes == Wishes(max_signatures=2, engine="host", uncompiled=False)
        assert takeover.wishes == base
    finally:
        takeover.set(before)


def test_a_gpu_that_is_not_there_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astitch.run.executor.count_gpus", lambda: 0)
    with pytest.raises(EngineUnavailable, match="engine='gpu', but CuPy sees no GPU"):
        tf_addon.enable(engine="gpu")
    assert not is_taken()


def test_64_threads_with_mixed_shapes() -> None:
    total = tf.Variable(tf.zeros([]))

    @tf.function(jit_compile=True, reduce_retracing=True)
    def work(x: Any) -> Any:
        total.assign_add(1.0)
        return tf.nn.softmax(tf.sin(x)), tf.linalg.matmul(x, x, transpose_b=True)

    inputs = [normal(n, 8) for n in (1, 2, 3, 5)]
    wanted = [(tf.nn.softmax(tf.sin(x)), tf.linalg.matmul(x, x, transpose_b=True)) for x in inputs]
    start = threading.Barrier(64)

    def run(number: int) -> None:
        start.wait()
        for turn in range(4):
            which = (number + turn) % len(inputs)
            assert_equal(work(inputs[which]), wanted[which])

    tf_addon.report(reset=True)
    with tf_addon.enabled(engine="host"), ThreadPoolExecutor(64) as pool:
        list(pool.map(run, range(64), timeout=120))
    assert float(total) == 256
    assert tf_addon.report().runs == 256
