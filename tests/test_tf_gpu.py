"""TensorFlow on a machine with a GPU, which it may know or not: kernels there give what XLA gives."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import tf_addon  # noqa: E402
from benchmarks.tf_workloads import MODELS, make_model  # noqa: E402
from tests.test_tf_functions import Trainer  # noqa: E402
from tests.test_tf_models import fit  # noqa: E402
from tests.tf_support import assert_equal, check_stitched  # noqa: E402

pytestmark = pytest.mark.gpu

TF32 = {"rtol": 1e-2, "atol": 1e-3}
"""Products may use it on a GPU; XLA's, on the host, do not."""


def test_training_by_hand() -> None:
    rng = np.random.default_rng(0)
    x, y = (tf.constant(rng.normal(size=(32, n)), tf.float32) for n in (8, 2))

    def train() -> Any:
        trainer = Trainer()
        return [trainer.step(x, y) for _ in range(20)], trainer.weights, trainer.steps

    check_stitched(train, engine="gpu", **TF32)


def test_keras_model() -> None:
    check_stitched(lambda: fit("mixed", 64, 5)[0], engine="gpu", **TF32)


@pytest.mark.parametrize("name", list(MODELS))
def test_workloads(name: str) -> None:
    def train() -> Any:
        model, batch = make_model(name, "tiny")
        return [model.train_step(batch) for _ in range(20)]

    check_stitched(train, engine="gpu", **TF32)


def test_threads() -> None:
    @tf.function(jit_compile=True, reduce_retracing=True)
    def soften(x: Any) -> Any:
        return tf.nn.softmax(tf.sin(x))

    inputs = [tf.random.stateless_normal([n, 64], [n, 1]) for n in (1, 2, 3, 5)]
    with tf_addon.enabled(engine="gpu"), ThreadPoolExecutor(64) as pool:
        found = list(pool.map(soften, inputs * 64, timeout=120))
    assert_equal(found, [tf.nn.softmax(tf.sin(x)) for x in inputs] * 64, atol=1e-5)
