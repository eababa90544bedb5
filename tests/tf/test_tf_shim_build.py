"""Finding and building the shim, and what its errors say; no TensorFlow is needed."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from astitch.system.kept_libraries import is_whole
from tf_addon import shim_build
from tf_addon.errors import ShimUnavailable
from tf_addon.report import clean_reason, title_of
from tf_addon.shim_build import Target, find_cache, name_library, open_library

COMPILER = """#!/bin/sh
echo "$@" > "{folder}/arguments"
[ -n "{error}" ] && {{ echo "{error}" >&2; exit 1; }}
while [ "$1" != -o ]; do shift; done
echo "int astitch_shim = 7;" | /usr/bin/g++ -x c -shared -o "$2" -
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """A TensorFlow to build for, an empty cache, and a compiler that makes another library."""
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


def library_of(target: Target) -> Path:
    """Where the cache has the shim."""
    return find_cache().path / name_library(target)


def is_shim(library: ctypes.CDLL) -> bool:
    return ctypes.c_int.in_dll(library, "astitch_shim").value == 7


def test_built_once_and_told(target: Target, tmp_path: Path) -> None:
    lines: list[str] = []
    assert is_shim(open_library(lines.append))
    library = library_of(target)
    assert library == tmp_path / "cache" / "tensorflow" / name_library(target)
    assert is_whole(library)
    assert "building the shim for TensorFlow 2.21.0" in lines[0] and str(library) in lines[0]
    assert len(lines) == 2
    words = (tmp_path / "arguments").read_text().split()
    assert f"-I{target.folder}/include" in words
    # The libraries come after what needs them.
    assert words.index(str(shim_build.SOURCE)) < words.index("-l:libtensorflow_cc.so.2")
    (tmp_path / "arguments").unlink()
    assert is_shim(open_library(lines.append))
    assert len(lines) == 2 and not (tmp_path / "arguments").exists()
    assert [file.name for file in library.parent.iterdir()] == [library.name]


def test_a_damaged_library_is_built_again(target: Target) -> None:
    open_library(lambda _: None)
    library = library_of(target)
    data = library.read_bytes()
    library.unlink()  # the loaded one must not change
    library.write_bytes(data[:-3])
    assert is_shim(open_library(lambda _: None))
    assert is_whole(library)


@pytest.mark.parametrize("what", ["open to others", "file"])
def test_a_folder_that_cannot_be_used_costs_only_the_cache(target: Target, what: str) -> None:
    folder = find_cache().path
    folder.parent.mkdir()
    if what == "file":
        folder.write_text("")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="is not used(.|\\n)*ASTITCH_CACHE_DIR"):
        assert is_shim(open_library(lambda _: None))


def test_a_full_disk_names_what_to_set(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_compiler(tmp_path, monkeypatch, error="ld: final link failed: No space left on device")
    with pytest.raises(ShimUnavailable) as caught:
        open_library(lambda _: None)
    assert "No space left on device" in str(caught.value)
    assert "TMPDIR" in str(caught.value) and "ASTITCH_CACHE_DIR" in str(caught.value)


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
    open_library(lambda _: None)
    library_of(target).rename(tmp_path / "prebuilt" / name_library(target))
    put_compiler(tmp_path, monkeypatch, error="built again")
    assert is_shim(open_library(lambda _: None))


def test_the_package_gets_one_for_each_tensorflow(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was built of an earlier source goes, and what is for another TensorFlow stays."""
    folder = tmp_path / "prebuilt"
    monkeypatch.setattr(shim_build, "PREBUILT", folder)
    folder.mkdir()
    for name in ("astitch_tf-2.21.0-0123.so", "astitch_tf-2.20.0-4567.so"):
        (folder / name).touch()
    assert shim_build.main() == 0
    found = sorted(path.name for path in folder.iterdir())
    assert found == ["astitch_tf-2.20.0-4567.so", name_library(target)]


def test_without_a_compiler(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(ShimUnavailable) as caught:
        open_library(lambda _: None)
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
        open_library(lambda _: None)
    assert not library_of(target).exists()


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
