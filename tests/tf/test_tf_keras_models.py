"""Models of jit_compile="auto", which Keras does not compile where TensorFlow knows no GPU."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import tf_addon  # noqa: E402
from astitch.errors import InvalidOption  # noqa: E402
from tf_addon import enabling, keras_models  # noqa: E402
from tf_addon.errors import AddonWarning, ShimUnavailable  # noqa: E402

keras, layers = tf.keras, tf.keras.layers

pytestmark = pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="there 'auto' means compiled"
)


@pytest.fixture(autouse=True)
def _on_the_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ASTITCH_ENGINE", "host")
    yield
    tf_addon.disable()
    tf_addon.report(reset=True)


def fit(name: str) -> Any:
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(8, "gelu"), layers.LayerNormalization(), layers.Dense(1)],
        name=name,
    )
    model.compile("adam", "mse")
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


def test_auto_means_compiled_where_that_is_asked_for() -> None:
    assert tf_addon.enable(keras="jit")
    model = fit("compiled_one")
    assert model.jit_compile is True
    found = tf_addon.report()
    assert not any("compiled_one" in note for note in found.notes)
    assert found.runs == 2
    tf_addon.disable()
    assert fit("after").jit_compile is False


def test_training_testing_and_predicting_are_told_apart() -> None:
    tf_addon.enable(keras="jit")
    model = fit("three_steps")
    x = np.zeros((32, 8), np.float32)
    model.evaluate(x, x[:, :1], verbose=0)
    model.predict(x, verbose=0)
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


def test_auto_clustering_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config.optimizer, "get_jit", lambda: "autoclustering")
    (note,) = (note for note in keras_models.find_notes() if "clustering" in note)
    assert "jit_compile=True" in note


def test_a_report_is_plain_values() -> None:
    tf_addon.enable(keras="jit")
    fit("written_one")
    found = tf_addon.report()
    read = json.loads(found.to_json())
    assert read["runs"] == 2 and read["compile_seconds"] > 0
    assert read["functions"][0]["compiled"][0]["kernels"] >= 1
    assert pickle.loads(pickle.dumps(found.to_dict())) == found.to_dict()
