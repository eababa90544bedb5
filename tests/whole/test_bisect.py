"""Seeded bugs, found by running a script under directives."""

from __future__ import annotations

import contextlib
import io
import random
import runpy
import subprocess
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest

import astitch.pipeline
import astitch.search.build_program
from astitch import bisect
from astitch.bisect import Part, find_culprits
from astitch.toolchain import override

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
import astitch

def step(x, w):
    h = x - x.mean(-1, keepdims=True)
    y = h * jax.lax.rsqrt(jnp.square(h).mean(-1, keepdims=True) + 1e-6)
    z = jax.nn.softmax(y @ w, -1)
    return jnp.square(jnp.tanh(z @ w).sum(0)).sum(), jnp.square(y).sum(0)[:3]

x = np.linspace(-1, 1, 64 * 32, dtype=np.float32).reshape(64, 32)
w = np.linspace(-1, 1, 32 * 32, dtype=np.float32).reshape(32, 32)
result = astitch.jit(step, engine="host")(x, w)
"""

WRONG_PASS = """
from dataclasses import replace
import astitch.pipeline as pipeline
right = pipeline.reassociate

def wrong(graph):
    graph = right(graph)
    nodes = {n: replace(v, op="exponential-minus-one") if v.op == "exponential" else v for n, v in graph.nodes.items()}
    return replace(graph, nodes=nodes)

pipeline.reassociate = wrong
"""

WRONG_TEXT = """
import astitch.search.build_program as build
right = build.emit_cuda
build.emit_cuda = lambda *a, **k: right(*a, **k).replace("tanh(", "tanh(0.5f * ")
"""


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts run here, each with the compiler as it was: a process of its own takes three seconds to import JAX."""

    def run(
        command: list[str], *, env: dict[str, str], **_: Any
    ) -> subprocess.CompletedProcess[str]:
        said = io.StringIO()
        with (
            monkeypatch.context() as changed,
            contextlib.redirect_stdout(said),
            warnings.catch_warnings(record=True) as warned,
        ):
            warnings.simplefilter("always")
            override._told.clear()
            for name in ("ASTITCH_STITCHES", "ASTITCH_LOG", "ASTITCH_OVERRIDE"):
                changed.setenv(name, env[name])
            # What a script exchanges comes back.
            changed.setattr(astitch.pipeline, "reassociate", astitch.pipeline.reassociate)
            build = astitch.search.build_program
            changed.setattr(build, "emit_cuda", build.emit_cuda)
            try:
                runpy.run_path(command[1])
            except AssertionError as error:
                return subprocess.CompletedProcess(command, 1, said.getvalue(), repr(error))
        told = "\n".join(str(warning.message) for warning in warned)
        return subprocess.CompletedProcess(command, 0, said.getvalue(), told)

    monkeypatch.setattr(bisect.subprocess, "run", run)


def write(folder: Path, *parts: str) -> str:
    file = folder / "repro.py"
    file.write_text("\n".join(map(textwrap.dedent, parts)))
    return str(file)


@pytest.mark.usefixtures("in_this_process")
def test_a_wrong_pass_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = write(tmp_path, WRONG_PASS, PROGRAM, "print(*result)")
    assert bisect.main([script]) == 0
    said = capsys.readouterr().out
    assert "bad: prints" in said
    assert "\npass: reassociate\n" in said
    assert "\n  without reassociate\n" in said


@pytest.mark.slow
def test_a_wrong_kernel_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check = "assert abs(float(result[0]) - 42.69171) < 0.1"
    assert bisect.main([write(tmp_path, WRONG_TEXT, PROGRAM, check)]) == 0
    said = capsys.readouterr().out
    assert "\nstitch op: stitch_2 of jit_step, which computes %" in said
    assert "\npass: none that can be left out" in said
    assert "\n  [jit_step]\n  leave %" in said


@pytest.mark.usefixtures("in_this_process")
def test_a_slow_kernel_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The time that a script prints is made up: so many units for each kernel with a tanh."""
    time = """
    compiled = astitch.jit(step, engine="host").lower(x, w).compile()
    print(10 + 5 * sum("tanh" in kernel.source for kernel in compiled.program.kernels))
    """
    assert bisect.main(["--slower", "1.2", write(tmp_path, PROGRAM, time)]) == 0
    assert "\nstitch op: stitch_2 of jit_step" in capsys.readouterr().out


@pytest.mark.usefixtures("in_this_process")
def test_a_kernel_that_is_edited_by_hand_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No pass is blamed, though without any of many the kernel is another one, which nobody edited."""
    folder = tmp_path / "kernels"
    monkeypatch.setenv("ASTITCH_OVERRIDE", str(folder))
    script = write(tmp_path, PROGRAM, "print(*result)")
    runpy.run_path(script)
    before = sorted(folder.glob("*.cu"))
    (file,) = (one for one in before if "stitch_2" in one.name)
    file.write_text(file.read_text().replace("tanh(", "tanh(0.5f * "))
    assert bisect.main([script]) == 0
    said = capsys.readouterr().out
    assert "\nstitch op: stitch_2 of jit_step" in said
    assert f"\nedited by hand: {file}\n" in said
    assert "\npass:" not in said
    assert sorted(folder.glob("*.cu")) == before  # no others were added


@pytest.mark.usefixtures("in_this_process")
def test_edits_that_are_not_to_blame_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ASTITCH_OVERRIDE", str(tmp_path / "kernels"))
    script = write(tmp_path, WRONG_PASS, PROGRAM, "print(*result)")
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "main.1.stitch_0-0123456789ab.cu").write_text("// of another plan")
    assert bisect.main([script]) == 0
    said = capsys.readouterr().out
    assert ": without ASTITCH_OVERRIDE: bad" in said and "\npass: reassociate\n" in said


def test_a_good_script_has_no_culprit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bisect.main([write(tmp_path, "print(1.5)")]) == 1
    assert "there is nothing to find" in capsys.readouterr().out


def test_a_script_that_fails_without_astitch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bisect.main([write(tmp_path, "raise ValueError('of its own')")]) == 2
    assert "fails as well: ValueError: of its own" in capsys.readouterr().out


@pytest.mark.parametrize("seed", range(20))
def test_culprits_are_found_in_few_runs(seed: int) -> None:
    draw = random.Random(seed)
    parts = [Part("*", f"leave %{n}", str(n)) for n in range(draw.randint(1, 200))]
    wrong = set(draw.sample(parts, min(len(parts), draw.randint(1, 3))))
    runs = 0

    def is_bad(left: object) -> bool:
        nonlocal runs
        runs += 1
        return not wrong <= set(left)  # type: ignore[call-overload]

    assert set(find_culprits(parts, is_bad)) == wrong
    assert runs <= len(wrong) * 10 + 1
