"""SavedModels with their programs beside them: what one process exported the next neither plans nor compiles."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

tf = pytest.importorskip("tensorflow")

from astitch.system.kept_libraries import is_whole  # noqa: E402
from tests.modes import give_away, obeying  # noqa: E402
from tf_addon import export, saved_models, shim_build  # noqa: E402

SAVE = """
import sys, tensorflow as tf
keras, layers = tf.keras, tf.keras.layers
keras.utils.set_random_seed(0)
model = keras.Sequential(
    [keras.Input((8,)), layers.Dense(16, "gelu"), layers.LayerNormalization(), layers.Softmax()]
)
model.export(sys.argv[1], verbose=False)
"""
SERVE = """
import sys, numpy as np, tensorflow as tf, tf_addon
from astitch.run import emulate
from tf_addon import programs, shim_build

def refuse(*args, **options):
    raise AssertionError("something is planned or compiled")

emulate.compile_apart = shim_build.compile_apart = programs.compile_for = refuse
model = tf_addon.load(sys.argv[1])
x = np.arange(32, dtype=np.float32).reshape(4, 8)
with tf_addon.enabled(engine="host"):
    (found,) = model["serving_default"](**{sys.argv[2]: x}).values()
report = tf_addon.report()
(wanted,) = model.model.signatures["serving_default"](**{sys.argv[2]: x}).values()
(row,) = report.functions[0].compiled
print(report.runs, row.kept, row.kernels, float(np.abs(found - wanted).max()) < 1e-5)
"""


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        obeying(*command),
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment},
    )


def test_a_later_process_neither_plans_nor_compiles(tmp_path: Path) -> None:
    model = tmp_path / "model"
    made = run(sys.executable, "-c", SAVE, str(model))
    assert not made.returncode, made.stderr
    wanted = ("--signature", "serving_default", "--batch", "4", "2")
    exported = run(sys.executable, "-m", "tf_addon.export", str(model), *wanted)
    assert exported.returncode == 0, exported.stdout + exported.stderr
    first, second, last = exported.stdout.splitlines()
    assert "serving_default(" in first and "=[4, 8]): " in first and "=[2, 8]): " in second
    assert "assets.extra/astitch: " in last
    kept = saved_models.programs_folder(model)
    before = {path: path.stat().st_mtime_ns for path in kept.rglob("*")}
    assert {path.name for path in kept.iterdir()} >= {"programs", "host", "tensorflow"}
    for path in [*kept.rglob("*"), kept]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    give_away(model)
    # Nothing is in this user's own cache, and there is no home to make one in.
    own = tmp_path / "own"
    own.mkdir()
    name = first.partition("(")[2].partition("=")[0]
    served = run(
        sys.executable,
        *("-W", "error::RuntimeWarning", "-c", SERVE, str(model), name),
        ASTITCH_CACHE_DIR="",
        HOME="/nonexistent",
        TMPDIR=str(own),
    )
    assert served.stdout.split() == ["1", "True", "1", "True"], served.stdout + served.stderr
    assert before == {path: path.stat().st_mtime_ns for path in kept.rglob("*")}
    for path in [kept, *kept.rglob("*")]:
        path.chmod(0o755)


def test_what_is_not_to_be_had_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export.main([str(tmp_path)]) == 2
    assert "is no SavedModel" in capsys.readouterr().err


def test_shapes_are_those_of_the_signature(tmp_path: Path) -> None:
    class Model(tf.Module):  # type: ignore[misc]
        @tf.function(input_signature=[tf.TensorSpec([None, None], name="x")])
        def serve(self, x):  # type: ignore[no-untyped-def]
            return {"y": x}

    tf.saved_model.save(Model(), str(tmp_path))
    module = tf.saved_model.load(str(tmp_path))
    parse = export._make_parser().parse_args
    calls = list(
        export.list_calls(module, parse(["DIR", "--shapes", "x=8,16", "--shapes", "x=2,3"]))
    )
    assert [str(call) for call in calls] == [
        "serving_default(x=[8, 16])",
        "serving_default(x=[2, 3])",
    ]
    with pytest.raises(export.InvalidOption, match="--shapes x=8,128"):
        list(export.list_calls(module, parse(["DIR"])))
    with pytest.raises(export.InvalidOption, match=r"\[8\] is no"):
        list(export.list_calls(module, parse(["DIR", "--shapes", "x=8"])))
    with pytest.raises(export.InvalidOption, match="the model has serving_default"):
        list(export.list_calls(module, parse(["DIR", "--signature", "other"])))


class Two(tf.Module):  # type: ignore[misc]
    """Two signatures with inputs of their own."""

    @tf.function(input_signature=[tf.TensorSpec([None, 8], name="x")])
    def encode(self, x):  # type: ignore[no-untyped-def]
        return {"code": tf.nn.softmax(x)}

    @tf.function(input_signature=[tf.TensorSpec([None, None], name="steps")])
    def walk(self, steps):  # type: ignore[no-untyped-def]
        return {"sum": tf.reduce_sum(tf.tanh(steps), 1)}


@pytest.fixture
def two(tmp_path: Path) -> Path:
    model = Two()
    signatures = {"encode": model.encode, "walk": model.walk}
    tf.saved_model.save(model, str(tmp_path / "two"), signatures=signatures)
    return tmp_path / "two"


@pytest.mark.parametrize(
    "given, wanted",
    [
        ("--batch 2 --shapes steps=3,4", ["encode(x=[2, 8])", "walk(steps=[3, 4])"]),
        ("--shapes x=5,8 steps=3,4", ["encode(x=[5, 8])", "walk(steps=[3, 4])"]),
        (
            "--shapes steps=1,2 --shapes steps=3,4",
            ["encode(x=[1, 8])", "walk(steps=[1, 2])", "walk(steps=[3, 4])"],
        ),
    ],
)
def test_shapes_are_for_the_signatures_that_have_the_input(
    two: Path, given: str, wanted: list[str]
) -> None:
    asked = export._make_parser().parse_args(["DIR", *given.split()])
    calls = export.list_calls(tf.saved_model.load(str(two)), asked)
    assert [str(call) for call in calls] == wanted


@pytest.mark.parametrize(
    "given, words",
    [
        ("--batch 2", "the shape of the input steps is (None, None)"),
        ("--shapes stepz=1,2", "--shapes stepz: there is no such input\n  there are steps, x"),
        ("--signature walks", "the model has encode, walk"),
    ],
)
def test_what_cannot_be_exported_leaves_an_earlier_export(
    two: Path, given: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = saved_models.programs_folder(two) / "programs" / "one"
    earlier.parent.mkdir(parents=True)
    earlier.touch()
    assert export.main([str(two), *given.split()]) == 2
    assert words in capsys.readouterr().err
    assert earlier.exists()


def test_a_shim_of_the_package_is_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = shim_build.Target("2.21.0", tmp_path, ())
    name = shim_build.name_library(target)
    monkeypatch.setattr(shim_build, "find_target", lambda: target)
    monkeypatch.setattr(shim_build, "PREBUILT", tmp_path)
    (tmp_path / name).write_bytes(b"library")
    export._copy_shim([], tmp_path / "kept")
    assert is_whole(tmp_path / "kept" / "tensorflow" / name)


def test_each_signature_has_a_code_of_its_own(two: Path) -> None:
    """TensorFlow counts how often one code is traced, and warns."""
    models = [saved_models.Signatures(tf.saved_model.load(str(two))) for _ in range(2)]
    functions = [function for signatures in models for function in signatures.values()]
    assert len({function.python_function.__code__ for function in functions}) == 4
