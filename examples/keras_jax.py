"""Trains a Keras Transformer block on JAX through astitch: python examples/keras_jax.py"""

import astitch

astitch.enable()

import os

os.environ["KERAS_BACKEND"] = "jax"
import keras
import numpy as np
from keras import layers


def make_model() -> keras.Model:
    """Attention and a perceptron over sequences [batch, 128, 64], each with a residual and a LayerNorm; ten classes."""
    given = keras.Input((128, 64))
    x = layers.LayerNormalization()(given + layers.MultiHeadAttention(4, 16)(given, given))
    wide = layers.Dense(256, activation="gelu")(x)
    x = layers.LayerNormalization()(x + layers.Dense(64)(wide))
    x = layers.GlobalAveragePooling1D()(x)
    model = keras.Model(given, layers.Dense(10, activation="softmax")(x))
    model.compile(keras.optimizers.AdamW(1e-3), "sparse_categorical_crossentropy")
    return model


def make_data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(32, 128, 64)).astype("float32")
    return x, np.arange(32) % 10


def main(steps: int = 20) -> list[float]:
    keras.utils.set_random_seed(0)
    x, y = make_data()
    losses = make_model().fit(x, y, batch_size=32, epochs=steps, verbose=2).history["loss"]
    print("loss", losses[-1])
    print(astitch.report())
    return losses


if __name__ == "__main__":
    main()
