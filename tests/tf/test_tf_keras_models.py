"""Models of jit_compile="auto", which Keras does not compile where TensorFlow knows no GPU."""

from __future__ import annotations

import gc
import html
import json
import logging
import pickle
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import tf_addon  # noqa: E402
from astitch.api import installation  # noqa: E402
from astitch.errors import EngineUnavailable, InvalidOption  # noqa: E402
from tf_addon import enabling, programs, uncompiled  # noqa: E402
from tf_addon.errors import AddonWarning, ShimUnavailable  # noqa: E402

keras, layers = tf.keras, tf.keras.layers

pytestmark = pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="there 'auto' means compiled"
)


@pytest.fixture(autouse=True)
def _on_the_host(host_engine: None) -> Iterator[None]:
    tf_addon.report(reset=True)
    yield
    tf_addon.disable()
    tf_addon.report(reset=True)


def make(name: str) -> Any:
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(8, "gelu"), layers.LayerNormalization(), layers.Dense(1)],
        name=name,
    )
    model.compile("adam", "mse")
    return model


def fit(name: str) -> Any:
    model = make(name)
    x = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")
    model.fit(x, x[:, :1], batch_size=16, verbose=0)
    return model


def test_the_report_names_models_that_are_not_compiled() -> None:
    tf_addon.enable()
    model = fit("plain_one")
    found = tf_addon.report()
    assert model.jit_compile is False
    (note,) = (note for note in found.notes if "plain_one" in note)
    assert "tf_addon.enable(keras='jit')" in note
    assert "note: Keras runs " in str(found)


def test_the_report_names_functions_that_are_not_compiled() -> None:
    """A training loop of one's own, with tf.function alone."""
    tf_addon.enable()
    x = tf.random.normal((4, 8))

    @tf.function
    def plain_step(x: Any) -> Any:
        return tf.nn.softmax(x * 2.0)

    @tf.function
    def never_called(x: Any) -> Any:
        return x

    @tf.function(jit_compile=True)
    def compiled_step(x: Any) -> Any:
        return tf.nn.softmax(x * 3.0)

    plain_step(x)
    found = tf_addon.report()
    (note,) = (note for note in found.notes if "plain_step" in note)
    assert "tf.function(jit_compile=True) or tf_addon.function" in note
    assert "never_called" not in note
    assert str(found).startswith("no function was compiled\nnote: ")
    compiled_step(x)
    marked = tf_addon.function(plain_step)
    marked(x)
    found = tf_addon.report()
    assert not any("compiled_step" in note for note in found.notes)
    assert [f.title for f in found.functions] == ["compiled_step", "plain_step"]
    assert "stitched" in str(found).splitlines()[0]


def test_functions_of_libraries_are_no_news() -> None:
    """Nor of Keras, whose models are told of, nor of tf.data."""
    tf_addon.enable()
    data = tf.data.Dataset.range(4).map(lambda n: n * 2)
    assert [int(n) for n in data] == [0, 2, 4, 6]
    fit("not_compiled")
    assert not any("one_step" in note or "lambda" in note for note in tf_addon.report().notes)


def test_auto_means_compiled_where_that_is_asked_for() -> None:
    assert tf_addon.enable(keras="jit")
    model = fit("compiled_one")
    assert model.jit_compile is True
    found = tf_addon.report()
    assert not any("compiled_one" in note for note in found.notes)
    assert found.runs == 2
    tf_addon.disable()
    assert fit("after").jit_compile is False


@pytest.mark.parametrize("steps", [1, 2])
def test_training_testing_and_predicting_are_told_apart(steps: int) -> None:
    tf_addon.enable(keras="jit")
    model, x = make("three_steps"), np.zeros((32, 8), np.float32)
    model.compile("adam", "mse", steps_per_execution=steps)
    model.fit(x, x[:, :1], batch_size=16, verbose=0)
    model.evaluate(x, x[:, :1], batch_size=16, verbose=0)
    model.predict(x, batch_size=16, verbose=0)
    titles = {f.title for f in tf_addon.report().functions if f.title.startswith("one_step")}
    assert titles == {f"one_step_on_data ({phase})" for phase in ("train", "test", "predict")}


def test_a_report_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    report = sys.modules["tf_addon.report"]
    monkeypatch.setattr(report, "MOST_FUNCTIONS", 3)
    records = report.Records()
    for number in range(10):
        records.note_refused(f"f{number}", "CPU:0", "why", 1)
    names = [f.name for f in records.make_report((), lambda *_: 0).functions]
    assert names == ["f7", "f8", "f9"]


def test_another_word_is_refused() -> None:
    with pytest.raises(InvalidOption, match="keras='all' is not known"):
        tf_addon.enable(keras="all")


def test_what_is_not_required_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(wishes: object) -> None:
        raise ShimUnavailable("tf_addon: TensorFlow 9.9 is not known")

    monkeypatch.setattr(enabling, "prepare", refuse)
    with pytest.warns(AddonWarning, match=r"astitch is not on: tf_addon: TensorFlow 9\.9 is not"):
        assert tf_addon.enable(required=False) is False
    with pytest.raises(ShimUnavailable):
        tf_addon.enable()


def test_a_driver_that_is_too_old_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "driver_version", lambda: (12, 2))
    installation.warn_of_installation.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", installation.InstallationWarning)
        tf_addon.enable(engine="host")
    monkeypatch.setattr("astitch.api.engines.DEFAULT", None)
    monkeypatch.setattr(enabling, "count_gpus", lambda: 0)
    with pytest.warns(installation.InstallationWarning, match=r"the driver is of CUDA 12\.2"):
        tf_addon.enable()
    installation.warn_of_installation.cache_clear()


def test_auto_clustering_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config.optimizer, "get_jit", lambda: "autoclustering")
    (note,) = (note for note in uncompiled.find_notes() if "clustering" in note)
    assert "jit_compile=True" in note and "(tf.config.optimizer.set_jit)" in note


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit", "--tf_xla_auto_jit=2"),
        ("--tf_xla_cpu_global_jit --tf_xla_auto_jit=fusible", "--tf_xla_auto_jit=fusible"),
        ("--tf_xla_auto_jit=single-gpu(1)", "--tf_xla_auto_jit=single-gpu(1)"),
        ("--tf_xla_auto_jit=0", None),
        ("--tf_xla_auto_jit=-1 --tf_xla_cpu_global_jit", None),
        ("", None),
    ],
)
def test_auto_clustering_by_the_environment_is_named(
    flags: str, named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_XLA_FLAGS", flags)
    notes = [note for note in uncompiled.find_notes() if "clustering" in note]
    assert len(notes) == (named is not None)
    assert all(f"(TF_XLA_FLAGS={named})" in note for note in notes)


def test_a_report_is_plain_values() -> None:
    tf_addon.enable(keras="jit")
    fit("written_one")
    found = tf_addon.report()
    read = json.loads(found.to_json())
    assert read["runs"] == 2 and read["compile_seconds"] > 0
    assert read["functions"][0]["compiled"][0]["kernels"] >= 1
    assert pickle.loads(pickle.dumps(found.to_dict())) == found.to_dict()


def test_a_report_is_pickled() -> None:
    tf_addon.enable(keras="jit")
    fit("pickled_one")
    found = tf_addon.report()
    copy = pickle.loads(pickle.dumps(found))
    assert copy._repr_html_() == f"<pre>{html.escape(str(found))}</pre>"
    assert copy == found
    assert str(copy) == str(found) and copy.to_dict() == found.to_dict()
    assert "kernel" in found.functions[0].explain()
    with pytest.raises(EngineUnavailable, match="compiled by another process"):
        copy.functions[0].explain()


def test_a_report_says_how_much_runs_in_kernels() -> None:
    tf_addon.enable(keras="jit")
    fit("shared_out")
    found = tf_addon.report()
    assert found.share == 1.0
    assert "100 %" in str(found)
    assert found.to_dict()["functions"][0]["phase"] == "train"
    row = found.functions[0].compiled[0]
    half = replace(found.functions[0], compiled=(replace(row, left_us=row.stitched_us),))
    assert half.share == 0.5


def test_a_callback_logs_the_report(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tf_addon")
    tf_addon.enable(keras="jit")
    model, x = make("logged_one"), np.ones((32, 8), np.float32)
    told = tf_addon.report_callback()
    history = model.fit(
        x,
        x[:, :1],
        batch_size=16,
        epochs=2,
        validation_data=(x, x[:, :1]),
        verbose=0,
        callbacks=[told],
    ).history
    assert history["astitch_runs"] == [4, 4]  # two batches of training, two of the validation
    assert history["astitch_compiles"] == [2, 0]
    assert history["astitch_fallbacks"] == [0, 0]
    lines = [record.getMessage() for record in caplog.records if record.name == "tf_addon"]
    assert any(line.startswith("epoch 2: 4 calls through astitch, 0 by XLA") for line in lines)
    assert sum(line.startswith("fit has ended\nfunction") for line in lines) == 1
    assert not any(line.startswith("evaluate has ended") for line in lines)
    model.evaluate(x, x[:, :1], verbose=0, callbacks=[told])
    assert "evaluate has ended" in caplog.text


def test_errors_of_a_function_are_no_fallbacks() -> None:
    @tf.function(jit_compile=True)
    def product(x: Any, y: Any) -> Any:
        return tf.exp(tf.reshape(x, tf.shape(y)))

    tf_addon.enable()
    traced = product.get_concrete_function(
        tf.TensorSpec([None], tf.float32), tf.TensorSpec([None, None], tf.float32)
    )
    traced(tf.ones([6]), tf.ones([2, 3]))
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError):
            traced(tf.ones([5]), tf.ones([2, 3]))
    found = tf_addon.report()
    assert (found.runs, found.fallbacks, found.errors) == (1, 0, 2)
    assert "product: an error of its own: " in str(found)
    assert found.to_dict()["functions"][0]["runs"]["failed"] == 2


@pytest.mark.slow
def test_functions_that_are_gone_leave_the_report() -> None:
    """The shim counts the latest 1,000: a process may make new ones for weeks."""
    tf_addon.enable()
    for _ in range(1100):
        tf.function(tf.exp, jit_compile=True)(tf.ones([3]))
    gc.collect()
    found = tf_addon.report()
    assert len(found.functions) <= 1100
    called = enabling.takeover.install().list_functions()
    assert len(called) <= 1000


def test_of_many_modules_few_compilations_stay() -> None:
    programs._compile_recent.cache_clear()
    tf_addon.enable()
    for size in range(programs.MOST_COMPILATIONS + 3):
        tf.function(tf.nn.softmax, jit_compile=True)(tf.ones([3, size + 2]))
    functions = tf_addon.report().functions
    assert len(functions) == programs.MOST_COMPILATIONS + 3
    assert "kernel" in functions[0].explain()  # compiled again
    assert programs._compile_recent.cache_info().currsize <= programs.MOST_COMPILATIONS
