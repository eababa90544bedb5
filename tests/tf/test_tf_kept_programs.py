"""Programs on disk: found by what they compute, and by nothing else; what is shown or measured is compiled."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from astitch import options
from astitch.device.gpu import preset
from astitch.hlo import schema
from astitch.run.host_engine import HostEngine
from astitch.show.compilation import Compilation
from tests.hlo_runner import lower

tf = pytest.importorskip("tensorflow")

from tf_addon import kept_programs, programs  # noqa: E402
from tf_addon.programs import Place, compile_module, read_module  # noqa: E402

HOST = Place(None, staged=False)
X = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
SCRIPT = """
import sys, tensorflow as tf, tf_addon
@tf.function(jit_compile=True)
def wave(x):
    return tf.reduce_sum(tf.sin(x) ** 2, axis=1)
with tf_addon.enabled():
    found = wave(tf.ones([3, 5]))
(compiled,) = tf_addon.report().find("wave")[0].compiled
print(compiled.kept, compiled.kernels, float(found[0]))
print("wave" in tf_addon.report().find("wave")[0].explain())
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty but for the shim, which takes a minute to build."""
    shim = options.cache_dir() / "tensorflow"
    if shim.exists():
        shutil.copytree(shim, tmp_path / "tensorflow")
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))


def soften(x: Any) -> Any:
    return jnp.exp(x) / jnp.exp(x).sum(1, keepdims=True)


def count_compilations(monkeypatch: pytest.MonkeyPatch) -> list[Compilation]:
    made: list[Compilation] = []
    compile_for = programs.compile_for

    def counted(*args: Any, **options: Any) -> Compilation:
        made.append(compile_for(*args, **options))
        return made[-1]

    monkeypatch.setattr(programs, "compile_for", counted)
    return made


def test_a_second_process_plans_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = count_compilations(monkeypatch)
    module = read_module(lower(soften, X))
    first, second = (compile_module(module, HOST, strict=False) for _ in range(2))
    assert len(made) == 1
    assert (first.kept, second.kept) == (False, True)
    assert second.program == first.program
    assert second.aliases == first.aliases
    (found,) = HostEngine(second.program).run([X])
    np.testing.assert_allclose(found, soften(X), rtol=1e-5)


def test_one_of_several_compiles_what_all_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As several processes do, which share nothing but the folder."""
    made = count_compilations(monkeypatch)
    module = read_module(lower(soften, X))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: compile_module(module, HOST, strict=False), range(4)))
    assert len(made) == 1
    assert sorted(one.kept for one in found) == [False, True, True, True]


def test_what_is_explained_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = count_compilations(monkeypatch)
    module = read_module(lower(soften, X))
    compile_module(module, HOST, strict=False)
    kept = compile_module(module, HOST, strict=False)
    assert kept.compile() is kept.compile()
    assert len(made) == 2


def test_keys_differ_by_what_decides_a_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    content = read_module(lower(soften, X)).content
    other = read_module(lower(soften, X[:2])).content
    host, h100 = preset("host"), preset("h100")
    keys = [
        kept_programs.key_of(content, host, strict=False),
        kept_programs.key_of(content, host, strict=True),
        kept_programs.key_of(content, h100, strict=False),
        kept_programs.key_of(other, host, strict=False),
    ]
    (tmp_path / "stitches").write_text("leave-loops")
    monkeypatch.setenv("ASTITCH_STITCHES", str(tmp_path / "stitches"))
    keys.append(kept_programs.key_of(content, host, strict=False))
    for package in ("jax", "jaxlib.version"):
        monkeypatch.setattr(f"{package}.__version__", "another")
        keys.append(kept_programs.key_of(content, host, strict=False))
    assert None not in keys
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("name", ["ASTITCH_DEBUG", "ASTITCH_DUMP"])
def test_what_is_shown_is_not_kept(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1" if name == "ASTITCH_DEBUG" else str(tmp_path / "dump"))
    content = read_module(lower(soften, X)).content
    assert kept_programs.key_of(content, preset("host"), strict=False) is None


def test_names_decide_nothing() -> None:
    def soft_max(x: Any) -> Any:
        return soften(x)

    one, other = (read_module(lower(fn, X)) for fn in (soften, soft_max))
    assert one.hlo != other.hlo
    assert one.content == other.content


def test_the_order_of_an_instruction_s_attributes_decides_nothing() -> None:
    """TensorFlow marks products so, and each process writes the marks in another order."""
    contents = set()
    for names in ((b"grad_x", b"grad_y"), (b"grad_y", b"grad_x")):
        module = schema.HloModuleProto.FromString(lower(soften, X))
        for name in names:
            attributes = module.computations[-1].instructions[-1].frontend_attributes
            attributes.map.add(key=name, value=b"false")
        contents.add(read_module(module.SerializeToString()).content)
    assert len(contents) == 1


def test_damaged_entries_are_compiled_anew(tmp_path: Path) -> None:
    module = read_module(lower(soften, X))
    compile_module(module, HOST, strict=False)
    (entry,) = (tmp_path / "programs").iterdir()
    entry.write_bytes(entry.read_bytes()[:-7])
    assert not compile_module(module, HOST, strict=False).kept
    assert compile_module(module, HOST, strict=False).kept


def test_tensorflow_finds_them_in_the_next_process() -> None:
    found = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", SCRIPT],
            capture_output=True,
            text=True,
            check=True,
            timeout=240,
        ).stdout.split()
        for _ in range(2)
    ]
    assert [one[0] for one in found] == ["False", "True"]
    assert found[0][1:] == found[1][1:]
    assert found[1][-1] == "True"
