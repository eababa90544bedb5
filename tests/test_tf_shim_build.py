"""Finding and building the shim, and what its errors say; no TensorFlow is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from astitch.emulate import is_sealed
from tf_addon import shim_build
from tf_addon.errors import ShimUnavailable
from tf_addon.report import clean_reason, title_of
from tf_addon.shim_build import Target, build_library, find_library, get_library, name_library

COMPILER = """#!/bin/sh
echo "$@" > "{folder}/arguments"
[ -n "{error}" ] && {{ echo "{error}" >&2; exit 1; }}
while [ "$1" != -o ]; do shift; done
echo library > "$2"
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """A TensorFlow to build for, an empty cache, and a compiler that does nothing."""
    target = Target("2.21.0", tmp_path / "tensorflow", ("-D_GLIBCXX_USE_CXX11_ABI=1",))
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(shim_build, "find_target", lambda: target)
    put_compiler(tmp_path, monkeypatch)
    return target


def put_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, error: str = "") -> None:
    compiler = folder / "g++"
    compiler.write_text(COMPILER.format(folder=folder, error=error))
    compiler.chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_built_once_and_told(target: Target, tmp_path: Path) -> None:
    lines: list[str] = []
    library = get_library(lines.append)
    assert library == tmp_path / "cache" / "tensorflow" / name_library(target)
    assert is_sealed(library)
    assert "building the shim for TensorFlow 2.21.0" in lines[0]
    assert len(lines) == 2
    words = (tmp_path / "arguments").read_text().split()
    assert f"-I{target.folder}/include" in words
    # The libraries come after what needs them.
    assert words.index(str(shim_build.SOURCE)) < words.index("-l:libtensorflow_cc.so.2")
    (tmp_path / "arguments").unlink()
    assert get_library(lines.append) == find_library(target) == library
    assert len(lines) == 2 and not (tmp_path / "arguments").exists()


def test_a_damaged_library_is_built_again(target: Target, tmp_path: Path) -> None:
    library = get_library(lambda _: None)
    library.write_bytes(library.read_bytes()[:-3])
    assert find_library(target) is None
    assert is_sealed(get_library(lambda _: None))


def test_the_name_tells_all_that_it_is_made_of(target: Target) -> None:
    names = {
        name_library(target),
        name_library(Target("2.20.0", target.folder, target.flags)),
        name_library(Target("2.21.0", target.folder, ())),
    }
    assert len(names) == 3


def test_one_that_came_with_the_package_comes_first(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shim_build, "PREBUILT", tmp_path / "prebuilt")
    (tmp_path / "prebuilt").mkdir()
    (tmp_path / "prebuilt" / name_library(target)).touch()
    assert get_library(lambda _: None) == tmp_path / "prebuilt" / name_library(target)


def test_without_a_compiler(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(ShimUnavailable) as caught:
        get_library(lambda _: None)
    assert str(caught.value) == (
        "tf_addon: TensorFlow's functions are taken over by a small library that has to be compiled once, and g++ was "
        "not found on PATH\n  install it (Debian: apt-get install g++)\n"
        "  or decorate with @tf_addon.function(tier='python'), which needs no compiler"
    )


def test_what_the_compiler_says(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_compiler(tmp_path, monkeypatch, error="file.h:3: error: no such thing")
    with pytest.raises(ShimUnavailable, match="for TensorFlow 2.21.0:\n  file.h:3: error: no such"):
        build_library(target, tmp_path, lambda _: None)
    assert find_library(target) is None


def test_importing_the_add_on_imports_neither_tensorflow_nor_jax() -> None:
    script = "import sys, tf_addon; print([m for m in ('tensorflow', 'jax', 'cupy') if m in sys.modules])"
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "[]"


def test_enable_without_tensorflow_says_so() -> None:
    script = """
import sys
sys.modules["tensorflow"] = None
import tf_addon
try:
    tf_addon.enable()
except ImportError as error:
    print(error)
"""
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "install astitch[tensorflow]" in told.stdout


@pytest.mark.parametrize(
    "name, title",
    [
        ("__inference_step_17", "step"),
        ("__inference_step_2_17", "step_2"),
        ("__forward_step_19", "step (forward)"),
        ("__inference___backward_step_17_20", "step (backward)"),
        ("odd", "odd"),
    ],
)
def test_titles(name: str, title: str) -> None:
    assert title_of(name) == title


def test_reasons_are_cleaned() -> None:
    told = (
        "Detected unsupported operations when trying to compile graph __inference_s_11"
        "[_XlaMustCompile=true,config_proto=1356,executor_type=1116] on XLA_CPU_JIT: AsString\n"
        'The op is created at: \nFile "x.py", line 3, in s\n'
        "\ttf2xla conversion failed while converting __inference_s_11. Run with TF_DUMP_GRAPH_PREFIX ..."
    )
    assert clean_reason(told).splitlines() == [
        "Detected unsupported operations when trying to compile graph __inference_s_11 on XLA_CPU_JIT: AsString",
        "The op is created at:",
        'File "x.py", line 3, in s',
    ]
    assert clean_reason(" ") == ""
