"""Keras models, SavedModels, distribution and decorated functions through astitch's emulation."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import tf_addon  # noqa: E402
from astitch.errors import InvalidOption  # noqa: E402
from tests.tf_support import assert_equal, both, check_stitched  # noqa: E402

keras = tf.keras
layers = tf.keras.layers


def make_model(kind: str) -> Any:
    """A small model, the same weights and seeds each time."""
    keras.utils.set_random_seed(1)
    given = keras.Input((12, 8))
    if kind == "dense":
        x = layers.Dense(16, activation="gelu")(given)
        x = layers.LayerNormalization()(x)
        x = layers.Dropout(0.2)(x)
    else:
        x = layers.Conv1D(12, 3, padding="same", activation="relu")(given)
        x = layers.BatchNormalization()(x)
        x = layers.LSTM(12, return_sequences=True)(x)
        x = layers.MultiHeadAttention(2, 6)(x, x)
        x = layers.Dropout(0.1)(x)
    x = layers.GlobalAveragePooling1D()(x)
    model = keras.Model(given, layers.Dense(3, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=True)
    return model


def make_data(count: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    return rng.normal(size=(count, 12, 8)).astype("float32"), rng.integers(0, 3, count)


def fit(kind: str, count: int, epochs: int) -> Any:
    x, y = make_data(count)
    model = make_model(kind)
    history = model.fit(x, y, epochs=epochs, batch_size=16, verbose=0)
    return (
        history.history["loss"],
        history.history["accuracy"],
        model.evaluate(x, y, verbose=0),
        model.predict(x, verbose=0),
        [w.numpy() for w in model.weights if "seed" not in w.path],
    )


def test_keras_fit_evaluate_predict() -> None:
    """Dropout, Adam, metrics, and a last batch that is smaller."""
    functions = check_stitched(lambda: fit("dense", 40, 2), rtol=1e-4, atol=1e-5)
    assert sum(f.stitched_runs for f in functions) == 6 + 2 + 2


@pytest.mark.slow
def test_cnn_lstm_attention_trains_as_with_xla() -> None:
    """20 steps."""
    ours, theirs, found = both(lambda: fit("mixed", 64, 5))
    assert found.fallbacks == 0, str(found)
    assert_equal(ours[:4], theirs[:4], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_inference_hands_on_the_states_of_recurrent_layers(kind: str) -> None:
    """The last output, which no turn of the loop reads, beside the states; and states kept from call to call."""
    x = tf.constant(np.random.default_rng(3).normal(size=(4, 7, 6)), tf.float32)

    def run() -> Any:
        keras.utils.set_random_seed(1)
        make = getattr(layers, kind)
        given = keras.Input((7, 6), batch_size=4)
        plain = make(5, return_state=True)(given)
        back = make(5, stateful=True, go_backwards=True)(given)
        model = keras.Model(given, [plain, back])
        infer = tf.function(lambda x: model(x, training=False), jit_compile=True)
        return infer(x), infer(x)

    check_stitched(run)


def test_a_saved_model_stays_plain_tensorflow(tmp_path: Path) -> None:
    class Module(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable(tf.fill([4, 3], 0.5))

        @tf.function(jit_compile=True, input_signature=[tf.TensorSpec([None, 4], tf.float32)])
        def serve(self, x: Any) -> Any:
            return {"scores": tf.nn.softmax(tf.sin(x) @ self.weight)}

    module = Module()
    x = tf.constant(np.random.default_rng(0).normal(size=(5, 4)), tf.float32)
    folder = str(tmp_path / "model")
    with tf_addon.enabled(engine="host"):
        inside = module.serve(x)
        tf.saved_model.save(module, folder, signatures=module.serve)
    loaded = tf.saved_model.load(folder)
    plain = loaded.signatures["serving_default"](x)
    assert_equal(inside, plain)
    proto = (tmp_path / "model" / "saved_model.pb").read_bytes()
    assert b"astitch" not in proto
    check_stitched(lambda: loaded.signatures["serving_default"](x))
    check_stitched(lambda: loaded.serve(x))


def test_mirrored_strategy() -> None:
    """Both replicas run through astitch; sums between them are TensorFlow's."""
    devices = [d.name.removeprefix("/physical_device:") for d in tf.config.list_logical_devices()]
    strategy = tf.distribute.MirroredStrategy(devices[-1:])
    with strategy.scope():
        weight = tf.Variable(tf.ones([4]))

    @tf.function(jit_compile=True)
    def replica(x: Any) -> Any:
        return tf.nn.softmax(x * weight)

    x = tf.constant([[1.0, 2.0, 3.0, 4.0]])

    @tf.function
    def step() -> Any:
        return strategy.reduce("SUM", strategy.run(replica, (x,)), axis=None)

    check_stitched(step)


# ---- one function ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("host_engine")
def test_a_decorated_function_is_astitch_s_when_disabled() -> None:
    tf_addon.disable()
    tf_addon.report(reset=True)
    weight = tf.Variable(tf.ones([8]))

    @tf_addon.function
    def ours(x: Any) -> Any:
        return tf.nn.softmax(x * weight)

    @tf.function(jit_compile=True)
    def theirs(x: Any) -> Any:
        return tf.nn.softmax(x * weight)

    x = tf.random.stateless_normal([3, 8], [1, 2])

    def run(fn: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(fn(x) ** 2)
        return loss, tape.gradient(loss, weight)

    assert_equal(run(ours), run(theirs))
    found = tf_addon.report()
    assert {f.title for f in found.functions} == {"ours (forward)", "ours (backward)"}
    assert (found.runs, found.fallbacks) == (2, 0)


@pytest.mark.usefixtures("host_engine")
def test_buckets_compile_once_for_many_sizes() -> None:
    tf_addon.report(reset=True)

    @tf_addon.function(buckets=[4, 8], reduce_retracing=False)
    def soften(x: Any, scale: Any) -> Any:
        return {"y": tf.nn.softmax(x * scale), "size": tf.constant(3)}

    for size in (1, 3, 4, 7, 8, 5):
        x = tf.random.stateless_normal([size, 6], [size, 2])
        found = soften(x, tf.constant(2.0))
        assert_equal(found, {"y": tf.nn.softmax(x * 2.0), "size": tf.constant(3)})
    assert tf_addon.report().compiles == 2
    # Of an unknown size it is the function itself.
    whole = tf.function(soften, input_signature=[tf.TensorSpec([None, 6]), tf.TensorSpec([])])
    assert whole(tf.ones([3, 6]), tf.constant(2.0))["y"].shape == (3, 6)


@pytest.mark.parametrize("tier", ["shim", "python"])
@pytest.mark.usefixtures("host_engine")
def test_buckets_cut_only_rows(tier: str, caplog: pytest.LogCaptureFixture) -> None:
    weight = tf.Variable(tf.ones([8, 2]))

    class Layer:
        @tf_addon.function(buckets=[4, 8], tier=tier)
        def apply(self, x: Any, bias: Any = 0.0) -> Any:
            return {"rows": x * 2.0 + bias, "weight": weight * 1.0, "size": tf.shape(weight)}

    layer = Layer()
    for size in (5, 7):
        found = layer.apply(tf.ones([size, 3]))
        assert_equal(
            found, {"rows": tf.fill([size, 3], 2.0), "weight": weight, "size": tf.constant([8, 2])}
        )
    assert not caplog.text
    for _ in range(2):
        assert layer.apply(tf.ones([5, 3]), tf.ones([1, 3]))["rows"].shape == (5, 3)
    assert caplog.text.count("first dimensions of different sizes (1, 5) are not padded") == 1
    gone = weakref.ref(layer)
    del layer
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("tier", ["shim", "python"])
@pytest.mark.usefixtures("host_engine")
def test_buckets_for_functions_of_some_sizes_only(
    tier: str, caplog: pytest.LogCaptureFixture
) -> None:
    mask, traces = tf.constant([[1.0], [0.0], [1.0], [1.0]]), []

    @tf_addon.function(buckets=[4], tier=tier)
    def cover(x: Any) -> Any:
        traces.append(x.shape)
        return x * mask

    @tf_addon.function(buckets=[4], tier=tier)
    def pair(x: Any) -> Any:
        return tf.reshape(tf.reshape(x, [x.shape[0] // 2, 2, 3]) * 2.0, [-1, 3])

    x = tf.ones([3, 3])
    for turn in range(3):
        assert_equal(cover(x), mask[:3] * x)
        if turn == 0:
            asked = len(traces)
    assert len(traces) == asked
    assert_equal(pair(x), x * 2.0)
    assert not caplog.text

    @tf_addon.function(buckets=[5], tier=tier)
    def beyond(x: Any, option: Any) -> Any:
        return x + mask[:3]

    class Option:
        pass

    for _ in range(2):
        assert_equal(beyond(x, None), mask[:3] + x)
    assert caplog.text.count("not padded") == 1
    option = Option()
    gone = weakref.ref(option)
    with pytest.raises(ValueError, match="imensions must be equal"):
        beyond(tf.ones([2, 3]), option)
    del option
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("tier", ["shim", "python"])
@pytest.mark.usefixtures("host_engine")
def test_buckets_leave_no_padding_inside_of_results(
    tier: str, caplog: pytest.LogCaptureFixture
) -> None:
    functions = [
        lambda x: tf.concat([x, -x], 0),
        lambda x: tf.repeat(x, 2, axis=0),
        lambda x: {"rows": x, "turned": tf.transpose(x)},
        lambda x: tf.unstack(x + 1.0),
    ]
    x = tf.random.stateless_normal([3, 2], [1, 2])
    for plain in functions:
        caplog.clear()
        padded = tf_addon.function(plain, buckets=[4], tier=tier)
        for _ in range(2):
            assert_equal(padded(x), plain(x))
        assert caplog.text.count("not padded") == 1


def test_a_clone_of_a_decorated_function_is_one_too() -> None:
    ours = tf_addon.function(lambda x: x + 1.0, tier="shim")
    for python, wanted in ((None, 2.0), (lambda x: x * 5.0, 5.0)):
        clone = ours._clone(python)
        assert type(clone) is type(ours)
        assert "api_preferred_device" not in clone._unmarked._attributes
        assert float(clone(tf.constant(1.0))) == wanted


class Scale(tf.Module):  # type: ignore[misc]
    """A method with a signature, one that calls it, and a TensorFlow function that does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(tf.fill([4, 3], 0.5))

    @tf_addon.function(input_signature=[tf.TensorSpec([None, 4], tf.float32)])
    def apply(self, x: Any) -> Any:
        """Of the rows."""
        return tf.nn.softmax(tf.sin(x) @ self.weight)

    @tf_addon.function
    def twice(self, x: Any) -> Any:
        return {"scores": self.apply(x) * 2.0}

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32)])
    def plain(self, x: Any) -> Any:
        return self.apply(x) + 1.0


@pytest.mark.usefixtures("host_engine")
def test_decorated_methods() -> None:
    tf_addon.report(reset=True)
    scale, x = Scale(), tf.reshape(tf.range(8.0), [2, 4])
    wanted = tf.nn.softmax(tf.sin(x) @ scale.weight)
    assert_equal(scale.apply(x.numpy().tolist()), wanted)
    assert_equal(scale.twice(x), {"scores": wanted * 2.0})
    assert_equal(scale.plain(x), wanted + 1.0)
    found = tf_addon.report()
    assert (found.runs, found.fallbacks) == (3, 0), str(found)
    gone = weakref.ref(scale)
    del scale
    gc.collect()
    assert gone() is None


@pytest.mark.usefixtures("host_engine")
def test_a_decorated_function_has_what_tf_function_has() -> None:
    scale, x = Scale(), tf.ones([2, 4])
    concrete = scale.apply.get_concrete_function()
    assert_equal(concrete(x), scale.apply(x))
    assert scale.apply.__doc__ == "Of the rows."
    assert scale.apply.function_spec.jit_compile
    assert "shape=(None, 4)" in scale.apply.pretty_printed_concrete_signatures()
    assert "HloModule" in scale.twice.experimental_get_compiler_ir(x)("hlo")
    assert scale.apply.python_function is not None


@pytest.mark.usefixtures("host_engine")
def test_decorated_functions_are_saved_as_plain_tensorflow(tmp_path: Path) -> None:
    scale, x = Scale(), tf.reshape(tf.range(8.0), [2, 4])
    wanted = scale.twice(x), scale.apply(x), scale.plain(x)
    folder = str(tmp_path / "model")
    tf.saved_model.save(scale, folder, signatures=scale.apply)
    proto = (tmp_path / "model" / "saved_model.pb").read_bytes()
    assert b"astitch" not in proto
    assert b"_XlaMustCompile" in proto
    loaded = tf.saved_model.load(folder)

    def run() -> Any:
        return loaded.twice(x), loaded.apply(x), loaded.plain(x)

    tf_addon.report(reset=True)
    assert_equal(run(), wanted)
    assert_equal(loaded.signatures["serving_default"](x), {"output_0": wanted[1]})
    assert tf_addon.report().functions == ()
    check_stitched(run)
    # What was saved is still astitch's here.
    tf_addon.report(reset=True)
    assert_equal((scale.twice(x), scale.apply(x), scale.plain(x)), wanted)
    assert tf_addon.report().runs == 3


@pytest.mark.usefixtures("host_engine")
def test_a_tf_function_keeps_its_options() -> None:

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)], autograph=False)
    def double(x: Any) -> Any:
        return x * 2.0

    for tier in ("shim", "python"):
        tf_addon.report(reset=True)
        ours = tf_addon.function(double, tier=tier)
        assert ours([1, 2]).numpy().tolist() == [2.0, 4.0]
        with pytest.raises(TypeError, match="TensorSpec"):
            ours([[1.0]])
        assert tf_addon.report().runs == 1


def test_a_function_that_must_not_be_compiled_is_an_error() -> None:
    def double(x: Any) -> Any:
        return x * 2.0

    for fn, options in (
        (double, {"jit_compile": False}),
        (tf.function(double, jit_compile=False), {}),
    ):
        with pytest.raises(InvalidOption) as told:
            tf_addon.function(fn, **options)
        assert str(told.value) == (
            "tf_addon.function: double has jit_compile=False, and only compiled functions go through astitch\n"
            "  leave jit_compile out, or use tf.function"
        )


MIRRORED = """
import tensorflow as tf
import tf_addon

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    weight = tf.Variable(tf.ones([4]))

@tf.function(jit_compile=True)
def gradient_of(x, weight):
    with tf.GradientTape() as tape:
        tape.watch(weight)
        loss = tf.reduce_sum(tf.nn.softmax(x * weight) ** 2)
    return loss, tape.gradient(loss, weight)

def replica(x):
    loss, gradient = gradient_of(x, weight.read_value())
    total = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
    weight.assign_sub(0.5 * total)
    return loss

@tf.function
def step(x):
    return strategy.reduce("SUM", strategy.run(replica, (x,)), axis=None)

def train():
    weight.assign(tf.ones([4]))
    data = tf.data.Dataset.from_tensor_slices(tf.reshape(tf.range(32.0), [8, 4])).batch(4)
    return [float(step(x)) for _ in range(3) for x in strategy.experimental_distribute_dataset(data)]

with tf_addon.enabled(engine="host"):
    ours = train()
found = tf_addon.report()
theirs = train()
assert max(abs(a - b) for a, b in zip(ours, theirs)) < 1e-5, (ours, theirs)
assert {f.device[-5:] for f in found.functions} == {"CPU:0", "CPU:1"}, str(found)
assert (found.runs, found.fallbacks) == (12, 0), str(found)

# TensorFlow's own limit: a compiled function that takes both replicas' variables.
@tf.function
def captured():
    return strategy.run(tf.function(lambda: weight * 2.0, jit_compile=True))

for _ in range(2):
    try:
        captured()
    except tf.errors.InvalidArgumentError as error:
        assert "from device" in str(error)
    else:
        raise AssertionError("TensorFlow can do it now")
    tf_addon.enable(engine="host")
assert "device:CPU:1, and a compiled function reads those of its own device only" in str(tf_addon.report())
"""


@pytest.mark.slow
def test_mirrored_strategy_on_two_devices() -> None:
    """Replicas run through astitch; sums over them are TensorFlow's own.  In a process that has two devices."""
    told = subprocess.run(
        [sys.executable, "-c", MIRRORED], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr[-3000:]
