"""A Keras model through astitch: python examples/tf_keras.py

Two lines more than with XLA: the import and enable().  With a GPU the kernels run there; without one the same CUDA text
runs through the host emulation.  The first run builds the shim for the TensorFlow that is installed.
"""

import numpy as np
import tensorflow as tf

import tf_addon

keras, layers = tf.keras, tf.keras.layers


def make_model() -> keras.Model:
    """Convolution, LSTM and attention over 24 steps of 8 numbers; three classes."""
    given = keras.Input((24, 8))
    x = layers.Conv1D(16, 3, padding="same", activation="relu")(given)
    x = layers.BatchNormalization()(x)
    x = layers.LSTM(16, return_sequences=True)(x)
    x = layers.MultiHeadAttention(2, 8)(x, x)
    x = layers.Dropout(0.1)(layers.LayerNormalization()(x))
    x = layers.GlobalAveragePooling1D()(x)
    model = keras.Model(given, layers.Dense(3, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=True)
    return model


def make_data(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose class is where their first channel is largest: early, in the middle, late."""
    x = np.random.default_rng(0).normal(size=(count, 24, 8)).astype("float32")
    return x, x[:, :, 0].reshape(count, 3, 8).mean(-1).argmax(-1)


def main() -> None:
    tf_addon.enable()
    keras.utils.set_random_seed(0)
    model = make_model()
    x, y = make_data(64)
    model.fit(x, y, epochs=2, batch_size=32, verbose=2)
    print("accuracy", model.evaluate(x, y, verbose=0)[1])
    print("classes", model.predict(x[:5], verbose=0).argmax(-1))
    print(tf_addon.report())


if __name__ == "__main__":
    main()
