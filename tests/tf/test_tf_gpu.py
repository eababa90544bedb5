"""TensorFlow on a machine with a GPU, which it may know or not: kernels there give what XLA gives.

The tests of test_tf_functions.py and test_tf_models.py run here too, on the GPU instead of in the emulation.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import tf_addon  # noqa: E402
from benchmarks.tf_workloads import MODELS, make_model  # noqa: E402
from tests.tf import test_tf_functions, test_tf_models, test_tf_workloads  # noqa: E402
from tests.tf.test_tf_functions import Trainer  # noqa: E402
from tests.tf_support import assert_equal, check_stitched  # noqa: E402

pytestmark = pytest.mark.gpu

TF32 = {"rtol": 1e-2, "atol": 2e-3}
"""Products may use it on a GPU; XLA's, on the host, do not."""

OF_THE_HOST = {
    # They begin a process of their own, or look at the engine that was asked for.
    "test_mirrored_strategy_on_two_devices",
    "test_off_keeps_the_other_options_of_each_block",
    "test_the_benchmark_measures_both",
    # They start no kernel.
    "test_gradients_of_loops_are_kernels_too",
    *(name for name in vars(test_tf_workloads) if name.startswith("test_a_model_gives")),
}
globals().update(
    (name, value)
    for module in (test_tf_functions, test_tf_models, test_tf_workloads)
    for name, value in vars(module).items()
    if name.startswith("test_")
    and callable(value)
    and name not in OF_THE_HOST
    and "host_engine" not in inspect.getsource(value)
)


@pytest.fixture(autouse=True)
def on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever engine a test asks for, it gets the GPU, whose products keep all bits."""
    enable, enabled = tf_addon.enable, tf_addon.enabled
    monkeypatch.setattr(tf_addon, "enable", lambda **o: enable(**{**o, "engine": "gpu"}))
    monkeypatch.setattr(tf_addon, "enabled", lambda **o: enabled(**{**o, "engine": "gpu"}))
    tf.config.experimental.enable_tensor_float_32_execution(False)
    yield
    tf.config.experimental.enable_tensor_float_32_execution(True)


def test_products_with_less_bits() -> None:
    """As TensorFlow has them unless told otherwise."""
    rng = np.random.default_rng(0)
    x, y = (tf.constant(rng.normal(size=(32, n)), tf.float32) for n in (8, 2))
    tf.config.experimental.enable_tensor_float_32_execution(True)

    def train() -> Any:
        trainer = Trainer()
        return [trainer.step(x, y) for _ in range(20)], trainer.weights, trainer.steps

    check_stitched(train, **TF32)


@pytest.mark.parametrize("name", list(MODELS))
def test_models_with_products_of_less_bits(name: str) -> None:
    tf.config.experimental.enable_tensor_float_32_execution(True)

    def train() -> Any:
        model, batch = make_model(name, "tiny")
        return [model.train_step(batch) for _ in range(5)]

    check_stitched(train, **TF32)


def test_threads_with_variables_that_tensorflow_reads() -> None:
    """The host reads and writes variables while kernels of other threads run."""
    tables = [tf.Variable(tf.fill([1000 + i], 1.0)) for i in range(8)]

    @tf.function(jit_compile=True, reduce_retracing=True)
    def double(number: Any) -> Any:
        table = tables[number]
        table.assign(2.0 * table)
        return tf.reduce_sum(table)

    def run(number: int) -> None:
        for turn in range(1, 11):
            assert float(double(number)) == 2.0**turn * (1000 + number)
            assert float(tables[number][0]) == 2.0**turn
        tables[number].assign(tf.zeros([1000 + number]))
        assert float(double(number)) == 0.0

    with tf_addon.enabled(), ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(8), timeout=120))


def test_threads_on_one_function() -> None:
    @tf.function(jit_compile=True, reduce_retracing=True)
    def soften(x: Any) -> Any:
        return tf.nn.softmax(tf.sin(x))

    inputs = [tf.random.stateless_normal([n, 64], [n, 1]) for n in (1, 2, 3, 5)]
    with tf_addon.enabled(), ThreadPoolExecutor(64) as pool:
        found = list(pool.map(soften, inputs * 64, timeout=120))
    assert_equal(found, [tf.nn.softmax(tf.sin(x)) for x in inputs] * 64, atol=1e-5)
