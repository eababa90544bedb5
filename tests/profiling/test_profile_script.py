"""A script's programs, and what changed between two reports, each as one page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jax._src import pjit

from astitch.errors import AstitchError
from astitch.profiling import script
from astitch.profiling.command import main
from astitch.profiling.report import SCRIPT_SCHEMA

TRAIN = """
import sys
import jax, jax.numpy as jnp

@jax.jit
def step(w, x):
    y = jax.nn.softmax(x @ w, -1)
    return w - 0.1 * jnp.square(y).sum(), y.sum(0)

@jax.jit
def evaluate(x):
    return x / x.sum(-1, keepdims=True)

w, x = jnp.ones((64, 32)), jnp.ones((16, 64))
for _ in range(2):
    w, _ = step(w, x)
evaluate(x)
assert sys.argv[1:] == ["--steps", "2"], sys.argv
"""


@pytest.fixture
def train(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text(TRAIN)
    return file


def test_what_is_a_script(train: Path, tmp_path: Path) -> None:
    assert script.is_script(str(train))
    assert not script.is_script(f"{train}:step")
    assert not script.is_script("examples/bert_layer.py")
    assert not script.is_script(str(tmp_path / "missing.py"))


def test_each_program_once_the_largest_first(train: Path) -> None:
    targets = script.read_script(str(train), ["--steps", "2"])
    assert [target.name for target in targets] == ["jit_step", "jit_evaluate"]
    (only,) = script.read_script(str(train), ["--steps", "2"], most=1)
    assert "one of 2 programs that" in only.notes[0]
    assert only.notes[1] == "1 smaller programs were left out: jit_evaluate"


OFTEN = """
import jax, jax.numpy as jnp

@jax.jit
def draw(key):
    w = jax.random.normal(key, (64, 512))
    return w / jnp.square(w).sum(0)

@jax.jit
def step(w, x):
    return jax.nn.softmax(x @ w, -1).sum(0), {"w": w - 0.1}

w, x = draw(jax.random.key(0)), jnp.ones((16, 64))
for turn in range(40):
    if turn == 20:
        eager = jnp.ones(3) + turn
    loss, state = step(w, x)
    w = state["w"]
step(w, jnp.ones((8, 64)))
"""


def test_what_is_called_often_comes_first(tmp_path: Path) -> None:
    """The weights are drawn once, by more work than a step is."""
    file = tmp_path / "often.py"
    file.write_text(OFTEN)
    short = pjit._get_fastpath_data
    found = {f"{p.name} {p.calls}": p for p in script.run_script(file, [])}
    assert {"jit_draw 1", "jit_step 40", "jit_step 1"} <= set(found)
    assert found["jit_draw 1"].bytes > found["jit_step 40"].bytes
    first, *_ = script.read_script(str(file), most=1)
    assert first.name == "jit_step" and first.notes[0].endswith(", called 40 times")
    assert pjit._get_fastpath_data is short


def test_where_jax_does_not_tell_the_largest_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "often.py"
    file.write_text(OFTEN)
    monkeypatch.setattr(script, "SHORT_WAY", "another name")
    assert {program.calls for program in script.run_script(file, [])} == {0}


def test_a_script_that_fails(train: Path) -> None:
    with pytest.raises(AstitchError, match="AssertionError: .*\n  the script must run by itself"):
        script.read_script(str(train))


def test_a_script_without_programs(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("print(1)")
    with pytest.raises(AstitchError, match="compiles nothing in it"):
        script.read_script(str(tmp_path / "empty.py"))


def test_a_page_of_programs(
    train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, data = tmp_path / "programs.html", tmp_path / "programs.json"
    arguments = [str(train), "--script-args=--steps 2", "--gpu", "h100", "--no-ablation"]
    assert main([*arguments, "--html", str(page), "--json", str(data)]) == 0
    text = page.read_text()
    assert text.count("<details") >= 2 and 'href="#program-1"' in text
    reports = json.loads(data.read_text())["reports"]
    assert [report["target"] for report in reports] == ["jit_step", "jit_evaluate"]
    assert "astitch-profile  jit_step" in capsys.readouterr().out


def test_a_page_of_what_changed(train: Path, tmp_path: Path) -> None:
    arguments = [str(train), "--script-args=--steps 2", "--gpu", "h100", "--no-ablation"]
    page, base = str(tmp_path / "page.html"), str(tmp_path / "base.json")
    assert main([*arguments, "--programs", "1", "--json", base, "--html", page]) == 0
    assert "<iframe" not in Path(page).read_text()  # of one program, its own page
    assert main([*arguments, "--programs", "1", "--compare", base, "--tolerance", "50"]) == 0
    report = json.loads(Path(base).read_text())
    for kernel in report["astitch"]["kernels"]:
        kernel["projected_us"] = kernel["projected_us"] and 2 * kernel["projected_us"]
    (tmp_path / "now.json").write_text(json.dumps(report))
    now, diff = str(tmp_path / "now.json"), str(tmp_path / "diff.html")
    assert main([now, "--compare", base, "--diff", diff]) == 1
    text = (tmp_path / "diff.html").read_text()
    assert " regressions</b> since " in text
    assert 'class="bad">+100.0%' in text


def test_a_comparison_wants_one_program(train: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(train), "--compare", "base.json"]) == 2
    assert "give --programs 1 for the largest" in capsys.readouterr().err


def test_several_reports_are_not_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "all.json"
    file.write_text(json.dumps({"schema": SCRIPT_SCHEMA, "reports": []}))
    assert main([str(file)]) == 2
    assert "--programs 1 saves that of the largest alone" in capsys.readouterr().err


def test_a_diff_wants_a_base(train: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(train), "--diff", "diff.html"]) == 2
    assert "name the base with --compare" in capsys.readouterr().err


def test_nothing_is_donated(tmp_path: Path) -> None:
    """On neither side, so that both have the same copies."""
    (tmp_path / "train.py").write_text(
        TRAIN.replace("@jax.jit\ndef step", "@jax.jit(donate_argnums=0)\ndef step")
        .replace("@jax.jit(", "@__import__('functools').partial(jax.jit, ")
        .replace("assert ", "# ")
    )
    target = script.read_script(str(tmp_path / "train.py"), most=1)[0]
    assert isinstance(target.hlo, bytes)
    module = script.read_module(target.hlo)
    assert not module.HasField("input_output_alias") and not module.HasField("buffer_donor")
