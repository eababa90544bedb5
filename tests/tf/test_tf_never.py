"""A function that stays XLA's where the add-on is enabled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import tf_addon  # noqa: E402
from astitch.errors import InvalidOption  # noqa: E402


def normalise(x: Any) -> Any:
    return x / tf.reduce_sum(x, -1, keepdims=True)


X = tf.constant(np.arange(1, 13, dtype=np.float32).reshape(3, 4))


def count_runs(name: str) -> list[int]:
    return [f.stitched_runs for f in tf_addon.report().functions if f.title.startswith(name)]


def test_it_is_xlas_and_its_gradient_too() -> None:
    @tf.function(jit_compile=True)
    def mine(x: Any) -> Any:
        return normalise(x)

    kept = tf_addon.never(normalise)
    tf_addon.report(reset=True)
    with tf_addon.enabled(engine="host"):
        np.testing.assert_allclose(kept(X), mine(X), rtol=1e-6)
        with tf.GradientTape() as tape:
            tape.watch(X)
            y = tf.reduce_sum(kept(X) ** 2)
        assert tape.gradient(y, X).shape == X.shape
    assert count_runs("mine") == [1]
    assert sum(count_runs("normalise")) == 0


def test_a_tf_function_keeps_its_options() -> None:
    kept = tf_addon.never(tf.function(normalise, input_signature=[tf.TensorSpec((3, 4))]))
    assert kept.input_signature == (tf.TensorSpec((3, 4)),)
    with pytest.raises(InvalidOption, match="tf_addon.never: jit_compile=False"):
        tf_addon.never(normalise, jit_compile=False)
