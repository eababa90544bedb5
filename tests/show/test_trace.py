"""What ASTITCH_DEBUG and ASTITCH_DUMP show of a compilation."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import astitch
from astitch.show.trace import dump

X = jnp.ones((8, 16))


def layer(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x @ x.T)


@pytest.fixture(autouse=True)
def _on_the_host(host_engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASTITCH_DUMP", raising=False)


@pytest.mark.parametrize("level", range(5))
def test_each_level_shows_more(
    level: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ASTITCH_DEBUG", str(level))
    compiled = astitch.jit(layer).lower(X).compile()
    shown = capsys.readouterr()
    (kernel,) = compiled.program.kernels
    marks = [
        f"kernel {kernel.name}: grid {kernel.grid}, block {kernel.block}",
        compiled.explain(),
        str(compiled.compilation.graph),
        kernel.source,
    ]
    assert [mark in shown.err for mark in marks] == [number < level for number in range(4)]
    assert shown.out == ""


def test_a_dump_can_be_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTITCH_DUMP", str(tmp_path / "dump"))
    compiled = [astitch.jit(layer).lower(X[:rows]).compile() for rows in (8, 4)]
    folders = sorted((tmp_path / "dump").iterdir())
    assert [folder.name[:4] for folder in folders] == ["000_", "001_"]
    for one, folder in zip(compiled, folders, strict=True):
        (kernel,) = one.program.kernels
        assert (folder / f"00_{kernel.name}.cu").read_text("utf-8") == kernel.source
        assert str(one.compilation.graph) in (folder / "graph.txt").read_text("utf-8")
    done = subprocess.run(
        [sys.executable, str(folders[1] / "repro.py")],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert done.stdout == compiled[1].explain() + "\n"


@pytest.mark.parametrize(
    ("name", "gpu"), [("h200", "gpu='h200'"), ("sm_99x7", "gpu=from_device()")]
)
def test_a_dump_names_a_preset_or_asks_the_device(name: str, gpu: str, tmp_path: Path) -> None:
    lowered = astitch.jit(layer).lower(X)
    compilation = astitch.compile_hlo(lowered.hlo)
    compilation = replace(compilation, gpu=replace(compilation.gpu, name=name))
    text = (dump(lowered.hlo, compilation, tmp_path) / "repro.py").read_text("utf-8")
    compile(text, "repro.py", "exec")
    assert gpu in text
    assert ("import from_device" in text) == ("from_device()" in text)


def test_a_dump_is_this_users_alone_and_costs_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTITCH_DUMP", str(tmp_path / "dump"))
    astitch.jit(layer).lower(X).compile()
    (folder,) = (tmp_path / "dump").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ASTITCH_DUMP", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="is not dumped: .*\n  point ASTITCH_DUMP at"):
        compiled = astitch.jit(layer).lower(X).compile()
    assert compiled.program.kernels
