"""Models that people train with Keras: 20 steps of each through astitch's emulation, beside XLA's.

Small sizes of the real thing: layers of keras.applications and keras_hub, with fewer blocks where XLA would compile for
minutes.  The images stay large enough for the norms over a batch: where these see few values, and their variance is
rounding, XLA's own steps are as far from those in f64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.tf_support import assert_equal, both  # noqa: E402

keras, layers, applications = tf.keras, tf.keras.layers, tf.keras.applications

STEPS = 20
CLASSES = 4

pytestmark = pytest.mark.slow


def draw(*shape: int) -> Any:
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def number(below: int, *shape: int) -> Any:
    return np.random.default_rng(1).integers(0, below, shape).astype("int32")


def classify(model: Any, optimizer: Any) -> Any:
    model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=True)
    return model


def make_mobilenet() -> Any:
    """The first six blocks of MobileNetV2, depthwise convolutions and ReLU6 among them."""
    whole = applications.MobileNetV2((32, 32, 3), 0.35, weights=None, include_top=False)
    x = layers.GlobalAveragePooling2D()(whole.get_layer("block_5_add").output)
    model = keras.Model(whole.input, layers.Dense(CLASSES, "softmax")(x))
    return classify(model, keras.optimizers.SGD(0.01, momentum=0.9)), draw(8, 32, 32, 3)


def make_efficientnet() -> Any:
    """EfficientNet's first two stages: squeeze and excitation, Swish, a dropped block."""
    module = __import__("keras.src.applications.efficientnet", fromlist=["EfficientNet"])
    stages = [dict(stage) for stage in module.DEFAULT_BLOCKS_ARGS[:2]]
    model = module.EfficientNet(
        0.5, 1.0, 32, blocks_args=stages, weights=None, input_shape=(32, 32, 3), classes=CLASSES
    )
    return classify(model, keras.optimizers.SGD(0.01, momentum=0.9)), draw(8, 32, 32, 3)


def make_resnet() -> Any:
    """ResNet50's stem, bottleneck blocks and head, in two stages."""
    module = __import__("keras.src.applications.resnet", fromlist=["ResNet"])

    def stack(x: Any) -> Any:
        x = module.stack_residual_blocks_v1(x, 16, 2, stride1=1, name="conv2")
        return module.stack_residual_blocks_v1(x, 32, 1, name="conv3")

    model = module.ResNet(
        stack, False, True, weights=None, input_shape=(32, 32, 3), classes=CLASSES
    )
    return classify(model, keras.optimizers.SGD(0.003, momentum=0.9)), draw(8, 32, 32, 3)


def make_unet() -> Any:
    given = keras.Input((16, 16, 2))
    kept, x = [], given
    for width in (8, 16):
        x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
        kept.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(32, 3, padding="same", activation="relu")(x)
    for width, beside in zip((16, 8), reversed(kept), strict=True):
        x = layers.Conv2DTranspose(width, 2, strides=2)(x)
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(
            layers.Concatenate()([x, beside])
        )
    model = keras.Model(given, layers.Conv2D(1, 1, activation="sigmoid")(x))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"], jit_compile=True)
    return model, draw(4, 16, 16, 2), (draw(4, 16, 16, 1) > 0).astype("float32")


def make_seq2seq() -> Any:
    """An encoder whose state is the decoder's first one."""
    source, target = keras.Input((7,), dtype="int32"), keras.Input((6,), dtype="int32")
    *_, h, c = layers.LSTM(16, return_state=True)(layers.Embedding(20, 8, mask_zero=True)(source))
    x = layers.LSTM(16, return_sequences=True)(layers.Embedding(20, 8)(target), [h, c])
    model = keras.Model([source, target], layers.Dense(20, "softmax")(x))
    given = [number(20, 8, 7), number(20, 8, 6)]
    return classify(model, "rmsprop"), given, number(20, 8, 6)


def make_dlrm() -> Any:
    """Embeddings, the products of every two of them, Adagrad."""
    dense, *sparse = keras.Input((5,)), *(keras.Input((), dtype="int32") for _ in range(3))
    bottom = layers.Dense(8, "relu")(layers.Dense(16, "relu")(dense))
    rows = [layers.Embedding(50, 8)(each) for each in sparse]
    stacked = keras.ops.stack([bottom, *rows], axis=1)
    pairs = keras.ops.matmul(stacked, keras.ops.transpose(stacked, (0, 2, 1)))
    x = layers.Concatenate()([bottom, layers.Flatten()(pairs)])
    model = keras.Model([dense, *sparse], layers.Dense(1, "sigmoid")(layers.Dense(16, "relu")(x)))
    model.compile(keras.optimizers.Adagrad(0.05), "binary_crossentropy", jit_compile=True)
    given = [draw(32, 5), *(number(50, 32) for _ in range(3))]
    return model, given, number(2, 32, 1)


SIZE = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}


def make_bert() -> Any:
    hub = pytest.importorskip("keras_hub")
    backbone = hub.models.BertBackbone(30, max_sequence_length=12, dropout=0.1, **SIZE)
    x = layers.Dense(CLASSES, "softmax")(backbone.output["pooled_output"])
    model = classify(keras.Model(backbone.input, x), "adam")
    words, ones = number(30, 4, 12), np.ones((4, 12), np.int32)
    return model, {"token_ids": words, "segment_ids": 0 * ones, "padding_mask": ones}


def make_gpt2() -> Any:
    """The words that come next, by the table of words turned around."""
    hub = pytest.importorskip("keras_hub")
    backbone = hub.models.GPT2Backbone(30, max_sequence_length=12, dropout=0.1, **SIZE)
    scores = backbone.token_embedding(backbone.output, reverse=True)
    model = keras.Model(backbone.input, layers.Softmax()(scores))
    words, ones = number(30, 4, 12), np.ones((4, 12), np.int32)
    given = {"token_ids": words, "padding_mask": ones}
    return classify(model, keras.optimizers.AdamW(1e-3)), given, np.roll(words, -1, 1)


ZOO: dict[str, Callable[[], Any]] = {
    "MobileNetV2": make_mobilenet,
    "EfficientNet": make_efficientnet,
    "ResNet50": make_resnet,
    "U-Net": make_unet,
    "seq2seq": make_seq2seq,
    "DLRM": make_dlrm,
    "BERT": make_bert,
    "GPT-2": make_gpt2,
}


def train(name: str, weights: Any = None) -> tuple[list[Any], Any, Any]:
    """Losses of the steps, a prediction, and the weights before the first step.  weights: others to begin with."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    model, given, *labels = ZOO[name]()
    (wanted,) = labels or [number(CLASSES, len(tf.nest.flatten(given)[0]))]
    before = model.get_weights()
    if weights is not None:
        model.set_weights(weights)
    losses = [model.train_on_batch(given, wanted) for _ in range(STEPS)]
    return losses, model.predict_on_batch(given), before


def train_in_f64(name: str, weights: Any) -> tuple[list[Any], Any]:
    """The same by XLA in f64; of a model without random numbers."""
    keras.config.set_floatx("float64")
    try:
        losses, found, _ = train(name, weights)
    finally:
        keras.config.set_floatx("float32")
    return losses, found


NUDGES, BY_CHANCE = 3, 2
"""Where both drift, when a ReLU opens is chance.  So XLA starts from so many other roundings of the weights too, and
results may be so many times as far from f64 as the furthest of its own."""


def nudge(weights: Any, seed: int) -> Any:
    """Weights whose last bit is another one for half of the numbers."""
    rng = np.random.default_rng(seed)
    return [
        np.where(rng.random(w.shape) < 0.5, np.nextafter(w, np.float32(np.inf)), w)
        if w.dtype == np.float32
        else w
        for w in weights
    ]


@pytest.mark.parametrize("name", ZOO)
def test_20_steps_of_training_are_xla_s(name: str) -> None:
    (losses, found, weights), (wanted, expected, _), report = both(lambda: train(name))
    assert report.fallbacks == 0 and report.runs == STEPS + 1, str(report)
    assert np.ptp(wanted) > 1e-3, "nothing is learnt"
    try:
        assert_equal(losses, wanted, rtol=1e-4, atol=1e-5)
        assert_equal(found, expected, rtol=1e-3, atol=1e-4)
    except AssertionError:
        # A ReLU whose input is nothing but rounding may be open for one of them only, and steps make more of it.
        exact = train_in_f64(name, weights)
        runs = [(wanted, expected)]
        runs += [train(name, nudge(weights, seed))[:2] for seed in range(NUDGES)]
        for ours, theirs, right in zip(
            (losses, found), zip(*runs, strict=True), exact, strict=True
        ):
            mine, *its = (np.abs(np.subtract(some, right)).max() for some in (ours, *theirs))
            assert mine <= BY_CHANCE * max(its), (mine, its)
