"""Trains a Keras Transformer block on JAX through astitch: python examples/keras_jax.py"""

import astitch

astitch.enable()

import os

os.environ["KERAS_BACKEND"] = "jax"
import keras
import numpy as np
from keras import layers


def make_model() -> keras.Model:
    given = keras.Input((128, 64))
    x = layers.LayerNormalization()(given + layers.MultiHeadAttention(4, 16)(given, given))
    x = layers.LayerNormalization()(x + layers.Dense(64, activation="gelu")(x))
    scores = layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(given, scores)
    model.compile(keras.optimizers.AdamW(1e-3), "sparse_categorical_crossentropy")
    return model


def main(steps: int = 20) -> list[float]:
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(32, 128, 64)).astype("float32")
    history = make_model().fit(x, np.arange(32) % 10, epochs=steps, verbose=2).history
    print(astitch.report())
    return history["loss"]


if __name__ == "__main__":
    print("loss", main()[-1])
