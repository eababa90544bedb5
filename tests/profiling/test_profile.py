"""astitch-profile without a GPU: targets, the static report, what the terminal says, comparison, bad input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import astitch
from astitch.compile import compile_hlo
from astitch.device.gpu import preset
from astitch.errors import AstitchError
from astitch.hlo_import import import_hlo
from astitch.profiling import command, profiler, xla_ahead
from astitch.profiling.ablation import cut_like_xla, plan_variants
from astitch.profiling.command import main
from astitch.profiling.compare import compare_reports
from astitch.profiling.report import MEMORY, PRODUCT, SCHEMA, Event, Kernel, Report, Side, Spread
from astitch.profiling.stitched import describe_program, find_separations
from astitch.profiling.target import parse_shapes, read_target, trace_function
from astitch.profiling.wording import describe_name, shorten_names
from astitch.run.host_engine import HostEngine
from astitch.search.build_program import build_program
from astitch.search.check_plan import check_plan
from astitch.xla.compile_module import compile_for_xla

pytestmark = pytest.mark.usefixtures("sorts_left")

MODULE = """\
import jax.numpy as jnp

SIZES = "f32[8,128]"

def soft(x, w):
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)) @ w

def arguments():
    return jnp.ones((8, 128)), jnp.ones((128, 16))

def profile_target():
    return soft, arguments()

not_callable = 3
"""

SHAPES = ("f32[8,128]", "f32[128,16]")


def soft(x: jax.Array, w: jax.Array) -> jax.Array:
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)) @ w


@pytest.fixture(scope="module")
def report() -> Report:
    x, w = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 128), (128, 16)))
    return astitch.profile(soft, x, w, gpu="h100")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "profiled_model.py"
    file.write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "profiled_model", raising=False)
    return file


# ---- the report ------------------------------------------------------------------------------------------------


def test_kernels_products_and_their_least_times_are_counted(report: Report) -> None:
    ours = report.astitch
    assert ours.count(MEMORY) == 1 and ours.count(PRODUCT) == 1
    (kernel,) = [k for k in ours.kernels if k.kind == MEMORY]
    assert kernel.read_bytes == kernel.written_bytes == 8 * 128 * 4
    assert kernel.us is None and kernel.projected_us > kernel.bound_us > 0
    assert 0 < report.light_share < 1
    (product,) = [k for k in ours.kernels if k.kind == PRODUCT]
    assert product.flops == 2 * 8 * 128 * 16
    assert not report.measured and report.engine == "static"


def test_a_kernel_tells_its_groups_schemes_text_and_source(report: Report) -> None:
    stitch = report.astitch.kernels[0].stitch
    assert stitch is not None
    assert sum(stitch.schemes.values()) == len(stitch.values)
    assert {v.scheme for v in stitch.values} == set(stitch.schemes)
    assert any("reduce" in member for group in stitch.groups for member in group.members)
    assert "__global__" in stitch.cuda
    assert any("test_profile.py" in line for line in report.astitch.kernels[0].source)


def test_a_report_comes_back_from_json(report: Report) -> None:
    saved = json.loads(json.dumps(report.to_dict()))
    assert saved["schema"] == SCHEMA
    assert Report.from_dict(saved).to_dict() == report.to_dict()


def test_a_timeline_is_columns_in_a_file_and_an_older_file_is_read(report: Report) -> None:
    events = (Event("a", "memory", 0.0, 1.0625), Event("b", "product", 2.0, 3.0))
    events += (Event("a", "memory", 5.5, 1.0),)
    timed = replace(report, xla=replace(report.xla, timeline=events))
    saved = json.loads(json.dumps(timed.to_dict()))
    columns = saved["xla"]["timeline"]
    assert columns["names"] == ["a", "b"] and columns["row"] == [0, 1, 0]
    found = Report.from_dict(saved).xla.timeline
    assert [(e.name, e.kind, e.start_us) for e in found] == [
        (e.name, e.kind, e.start_us) for e in events
    ]
    assert found[0].us == pytest.approx(1.0625, abs=1e-3)
    for side in ("xla", "astitch"):
        saved[side]["timeline"] = [asdict(e) for e in getattr(timed, side).timeline]
    older = Report.from_dict(saved | {"schema": "astitch-profile 1"})
    assert older.xla.timeline == events and older.schema == SCHEMA


def test_a_loop_that_is_one_kernel_tells_its_turns_and_its_text() -> None:
    def rnn(x: jax.Array, w: jax.Array) -> jax.Array:
        def turn(h: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            h = jnp.tanh(h @ w + row)
            return h, h

        soft_x = jnp.exp(x - x.max(-1, keepdims=True))
        return jax.lax.scan(turn, jnp.zeros((8, 64)), soft_x)[1] * 2

    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((40, 8, 64), (64, 64))]
    hlo = jax.jit(rnn).lower(*shapes).compiler_ir("hlo").as_serialized_hlo_module_proto()
    compilation, _ = compile_for_xla(import_hlo(hlo), preset("h100"))
    found = describe_program(compilation, None)
    (loop,) = [k for k in found.kernels if k.stitch and k.stitch.turns]
    assert loop.ours and loop.limit == "turns" and loop.name == "loop_0"
    assert loop.stitch is not None and loop.stitch.turns == 40
    assert "__global__" in loop.stitch.cuda
    assert loop.flops == 40 * 2 * 8 * 64 * 64
    assert loop.projected_us > loop.bound_us > 0
    (step,) = [s for s in found.steps if s.name == "loop_0"]
    assert (step.kind, step.label) == ("kernel", "a loop of 40 turns")
    reasons = [r.reason for r in find_separations(compilation, found.steps)]
    assert reasons == ["%loop_0 (a loop of 40 turns) runs in between: a kernel of its own"]
    # Left to XLA, it is an op of XLA's.
    left = compile_hlo(hlo, gpu="h100")
    labels = [s.label for s in describe_program(left, None).steps if s.kind == "xla"]
    assert len(labels) == 1 and labels[0].endswith("left to XLA") and labels[0] != "0 ops"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: d | {"schema": "astitch-profile 0"}, "has the schema 'astitch-profile 0'"),
        (lambda d: [], "is no report of astitch-profile"),
        (lambda d: d | {"xla": 3}, "is damaged"),
        (lambda d: {k: v for k, v in d.items() if k != "machine"}, "is damaged"),
        (lambda d: d | {"date": 5}, "str was expected, 5 was found"),
    ],
)
def test_a_file_that_is_no_report_is_refused(report: Report, damage: Any, message: str) -> None:
    with pytest.raises(AstitchError, match=message):
        Report.from_dict(damage(report.to_dict()))


def test_the_ablation_goes_from_xla_to_all_of_it(report: Report) -> None:
    rows = report.ablation
    assert [row.name for row in rows] == [
        "XLA",
        "+ thread mapping",
        "+ stitching",
        "+ dominant merging",
        "+ search and splits",
    ]
    assert rows[1].kernels == 3  # the maximum, the sum of exponentials, the quotient
    assert rows[-1].kernels == 1
    assert rows[-1].us < rows[1].us


# ---- the terminal ----------------------------------------------------------------------------------------------


def test_the_terminal_fits_100_columns_without_colours(report: Report) -> None:
    text = report.to_text()
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text
    assert "nothing was run" in text
    assert "launches, memory-intensive" in text
    assert str(report) == text


# ---- comparison ------------------------------------------------------------------------------------------------


def test_no_two_kernels_are_called_alike() -> None:
    long = "sm90_xmma_fprop_implicit_gemm_f32_tilesize{}_warpgroupsize1x1x1_execute_kernel"
    names = [long.format(size) for size in ("128x128x32", "64x256x32")]
    found = shorten_names([*names, "stitch_0", "loop_dynamic_update_slice_fusion_11"], 24)
    assert list(found.values()) == [
        "sm90_xmma_fpr…128x128x32",
        "sm90_xmma_fpro…64x256x32",
        "stitch_0",
        "loop_dynamic_update_…_11",
    ]
    alike = ["x" * 40 + "_1_2", "x" * 40 + "_2_1"]
    assert len(set(shorten_names(alike, 24).values())) == 2
    many = [f"void library::kernel<{n}, float>(Parameters<{n}>)" for n in range(30)]
    shown = shorten_names(many, 24)
    assert len(set(shown.values())) == 30 and max(map(len, shown.values())) <= 24


def test_a_number_is_told_with_the_ops_it_came_from() -> None:
    sources = "f.py:3 jit(f)/exp", "f.py:4 jit(f)/while/body/add", "f.py:9 jit(f)/exp"
    assert describe_name(Kernel("fusion_160", MEMORY, 1.0, source=sources)) == "fusion_160 exp, add"
    assert (
        describe_name(Kernel("loop_exp_fusion", MEMORY, 1.0, source=sources)) == "loop_exp_fusion"
    )
    assert describe_name(Kernel("loop_0", MEMORY, 1.0, source=sources)) == "loop_0"


def test_equal_names_of_both_sides_have_the_ops_of_their_own(report: Report) -> None:
    def side(name: str, op: str) -> Side:
        kernel = Kernel("fusion_3", MEMORY, 1.0, bound_us=1.0, source=(f"f.py:1 jit(f)/{op}",))
        return Side(name, kernels=(replace(kernel, counters={"instructions": 1.0}),))

    both = replace(report, xla=side("xla", "exp"), astitch=side("astitch", "tanh"))
    for text in (both.to_text(), both.to_html()):
        assert text.count("fusion_3 exp") == text.count("fusion_3 tanh") == 2


def slower(report: Report, factor: float) -> Report:
    kernels = tuple(
        replace(k, projected_us=k.projected_us and k.projected_us * factor)
        for k in report.astitch.kernels
    )
    return replace(report, astitch=replace(report.astitch, kernels=kernels))


def test_slower_beyond_the_tolerance_is_a_regression(report: Report) -> None:
    found = compare_reports(report, slower(report, 1.2), 0.05)
    assert [c.what for c in found.regressions] == [
        "stitched kernels, projected",
        "stitch_0, projected",
    ]
    assert compare_reports(report, slower(report, 1.02), 0.05).regressions == ()
    assert compare_reports(report, slower(report, 0.5), 0.05).regressions == ()


def test_launches_of_traced_calls_have_a_tolerance_and_of_compiled_ones_none(
    report: Report,
) -> None:
    def count(times: float, basis: str) -> Report:
        kernels = tuple(replace(k, us=1.0, launches=times) for k in report.astitch.kernels)
        return replace(report, astitch=replace(report.astitch, kernels=kernels, basis=basis))

    def regressed(basis: str, times: float) -> list[str]:
        found = compare_reports(count(1.0, basis), count(times, basis), 0.05).regressions
        return [change.what for change in found if change.what.startswith("launches")]

    assert regressed("measured", 1.04) == []
    assert "launches, memory-intensive" in regressed("measured", 1.2)
    assert "launches, memory-intensive" in regressed("projected", 1.04)


def test_noise_is_no_regression(report: Report) -> None:
    def timed(median: float, low: float, high: float) -> Report:
        kernels = tuple(replace(k, us=1.0) for k in report.astitch.kernels)
        side = replace(report.astitch, basis="measured", wall=Spread(median, low, high, 9))
        return replace(report, astitch=replace(side, kernels=kernels))

    base = timed(100.0, 95.0, 125.0)
    assert compare_reports(base, timed(120.0, 115.0, 130.0), 0.05).regressions == ()
    assert compare_reports(base, timed(140.0, 130.0, 150.0), 0.05).regressions
    with pytest.raises(AstitchError, match="the base is measured, this report is projected"):
        compare_reports(base, report, 0.05)


# ---- targets ---------------------------------------------------------------------------------------------------


def test_targets_of_every_kind(module: Path, tmp_path: Path) -> None:
    by_file = read_target(str(module))
    by_name = read_target("profiled_model:soft", SHAPES)
    assert by_name.function is not None
    assert len(read_target(f"{module}:soft").args) == 2  # the file's own
    assert len(read_target("profiled_model:soft", ["arguments"]).args) == 2
    assert len(read_target("profiled_model:soft", ["profiled_model:arguments"]).args) == 2
    dump = tmp_path / "dump"
    dump.mkdir()
    assert isinstance(by_file.hlo, bytes)
    (dump / "module_0001.jit_soft.before_optimizations.hlo.pb").write_bytes(by_file.hlo)
    (dump / "module_0002.jit_small.before_optimizations.hlo.pb").write_bytes(b"x")
    found = read_target(str(dump))
    assert found.hlo == by_file.hlo
    assert found.notes == (f"1 smaller modules in {dump} were left out",)


def test_shapes_are_read_as_hlo_writes_them() -> None:
    shapes = parse_shapes("f32[8,128], bf16[] s32[3] pred[2,2]")
    assert [s.shape for s in shapes] == [(8, 128), (), (3,), (2, 2)]
    assert [str(s.dtype) for s in shapes] == ["float32", "bfloat16", "int32", "bool"]


# ---- bad input -------------------------------------------------------------------------------------------------

BAD = {
    "no such target": (["nowhere.x"], "no such HLO file or folder, and no module:function"),
    "missing module": (["no_such_module:f"], "No module named 'no_such_module'"),
    "missing file": (["no_such.py:f"], "no_such.py: no such file"),
    "missing function": (["{py}:hard"], "there is no hard; functions in it: soft"),
    "no function": (["{py}:not_callable"], "not_callable is no function, but a int"),
    "broken file": (["{broken}"], "SyntaxError"),
    "wrong shapes": (
        ["{py}:soft", "--args", "f32[8,128]", "f32[64,16]"],
        "JAX cannot trace it with",
    ),
    "missing shapes": (["{plain}:f"], "JAX cannot trace it with no arguments"),
    "no shape": (["{py}:soft", "--args", "float[3]"], "no shape like f32[8,128]"),
    "missing HLO": (["missing.pb"], "missing.pb: No such file or directory"),
    "HLO that does not parse": (["{hlo}"], "HLO text: "),
    "proto that does not parse": (["{pb}"], "HLO module: "),
    "shapes of a module": (["{hlo}", "--args", "f32[1]"], "an HLO module has its own shapes"),
    "empty dump": (["{folder}"], "no *before_optimizations* file in it"),
    "one file": (
        ["{py}", "--html", "both", "--json", "./both"],
        "--json and --html both name both",
    ),
    "no number": (["{py}", "--runs", "many"], "argument --runs: invalid int value: 'many'"),
    "no such option": (["{py}", "--bogus"], "unrecognized arguments: --bogus"),
    "no target": ([], "the following arguments are required: TARGET"),
    "preset": (["{py}", "--gpu", "h900"], "no GPU preset 'h900'"),
    "emulation": (["{py}", "--gpu", "host"], "--gpu host is the emulation"),
    "no Nsight": (["{py}", "--ncu"], "--ncu needs Nsight Compute"),
    "runs": (["{py}", "--runs", "0"], "--runs 0: give 1 or more"),
    "no folder": (["{py}", "--json", "nowhere/x.json"], "there is no folder nowhere"),
    "folder": (["{py}", "--html", "{folder}"], "is a folder"),
    "pipe": (["{py}", "--html", "pipe"], "is no ordinary file"),
    "base": (["{py}", "--compare", "{py}"], "not JSON"),
    "no base": (["{py}", "--compare", "no.json"], "no.json: No such file"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_status_2(
    case: str,
    module: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    files = {
        "plain": "def f(x):\n    return x\n",
        "broken": "def f(:\n",
        "hlo": "HloModule nonsense {\n",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.{'txt' if name == 'hlo' else 'py'}").write_text(text)
    (tmp_path / "module.pb").write_bytes(b"\x0a\xff\xff nothing")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    places = {"py": module, "plain": "plain.py", "broken": "broken.py", "hlo": "hlo.txt"}
    places |= {"pb": "module.pb", "folder": "folder"}
    typed, message = BAD[case]
    before = sorted(tmp_path.iterdir())
    words = [word.format(**places) if "[" not in word else word for word in typed]
    try:
        status = main(words)
    except SystemExit as left:  # argparse's own
        status = left.code
    assert status == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("astitch-profile: ") and message in line
    assert [p for p in sorted(tmp_path.iterdir()) if p.name != "__pycache__"] == before


def test_a_gpu_that_jax_does_not_see_is_told(
    module: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("astitch.run.executor.count_gpus", lambda: 1)
    monkeypatch.setattr("astitch.run.executor.current_gpu", lambda: 0)
    monkeypatch.setattr("astitch.library.xla_fallback.find_device", lambda platform, number: None)
    assert main([str(module)]) == 2
    assert "CuPy sees a GPU, JAX does not" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (KeyboardInterrupt(), "interrupted; nothing was written"),
    ],
)
def test_an_output_that_cannot_be_written_leaves_nothing(
    fault: BaseException,
    told: str,
    module: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    replace = os.replace

    def refuse(source: str, target: str | Path, **folders: int) -> None:
        if Path(target).name == "report.json":
            raise fault
        replace(source, target, **folders)

    monkeypatch.setattr(os, "replace", refuse)
    folder = tmp_path / "out"
    folder.mkdir()
    old = folder / "report.json"
    old.write_text("old")
    assert main([str(module), "--gpu", "h100", "--no-ablation", "--json", str(old)]) == 2
    assert told in capsys.readouterr().err
    assert old.read_text() == "old" and [p.name for p in folder.iterdir()] == ["report.json"]


def test_a_file_system_that_refuses_is_found_before_anything_takes_time(
    module: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert main([str(module), "--gpu", "h100", "--json", "report.json"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and "report.json cannot be written" in shown.err


def test_a_page_that_cannot_be_made_leaves_no_json_either(
    module: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(report: Report) -> str:
        raise AstitchError("no page")

    monkeypatch.setattr(Report, "to_html", fail)
    outputs = ["--json", str(tmp_path / "a.json"), "--html", str(tmp_path / "a.html")]
    assert main([str(module), "--gpu", "h100", "--no-ablation", *outputs]) == 2
    assert "no page" in capsys.readouterr().err
    assert not [*tmp_path.glob("a.*")]


# ---- the command -----------------------------------------------------------------------------------------------


def test_the_command_writes_compares_and_says_so_by_its_status(
    module: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, page = tmp_path / "base.json", tmp_path / "page.html"
    typed = [str(module), "--gpu", "h100", "--json", str(base), "--html", str(page)]
    assert main(typed) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert page.read_text().startswith("<!doctype html>")
    assert main([str(base), "--compare", str(base)]) == 0
    assert "no regression" in capsys.readouterr().out
    worse = tmp_path / "worse.json"
    report = Report.load(base)
    worse.write_text(json.dumps(slower(report, 2.0).to_dict()))
    assert main([str(worse), "--compare", str(base)]) == 1
    assert "REGRESSION" in capsys.readouterr().out


def test_open_shows_the_page(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda uri: shown.append(uri) or True)
    assert main([str(module), "--gpu", "h100", "--no-ablation", "--open"]) == 0
    (uri,) = shown
    assert Path(uri.removeprefix("file://")).read_text().startswith("<!doctype html>")
    monkeypatch.setattr("webbrowser.open", lambda uri: False)
    assert main([str(module), "--gpu", "h100", "--no-ablation", "--open"]) == 2


@pytest.mark.parametrize("ablation", [True, False])
def test_progress_tells_every_stage(module: Path, ablation: bool) -> None:
    told: list[str] = []
    asked = profiler.Options(gpu="h100", ablation=ablation)
    profiler.profile_target(read_target(str(module)), asked, told.append)
    assert len(told) + 1 == command.count_stages(asked, measured=False)  # and the target's reading


def test_strict_names_what_is_left_to_xla(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sorts.py"
    file.write_text("import jax.numpy as jnp\ndef f(x):\n    return jnp.sort(x)\n")
    typed = [f"{file}:f", "--args", "f32[64]", "--gpu", "h100"]
    assert main([*typed, "--strict"]) == 2
    assert "strict was asked for" in capsys.readouterr().err
    assert main([*typed, "--no-ablation"]) == 0
    assert "Left to XLA" in capsys.readouterr().out


def test_the_example_is_a_target(capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[2] / "examples" / "bert_layer.py"
    assert main([str(example), "--gpu", "h100", "--no-ablation"]) == 0
    # Which stitch ops there are, and so their numbers, depends on what XLA's compiler makes of the products.
    said = capsys.readouterr().out
    assert re.search(r"runs in \d+ stitched kernels", said)
    assert re.search(r"^stitch_\d+ ", said, re.MULTILINE)


# ---- XLA's compiler for a GPU that is not here -----------------------------------------------------------------


def test_without_the_compiler_the_count_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "find_plugin", lambda: None)
    x = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    report = astitch.profile(jnp.tanh, x, gpu="a100", ablation=False)
    assert (
        report.xla.missing
        == f"XLA's compiler for NVIDIA GPUs is not installed: {xla_ahead.INSTALL}"
    )
    assert report.xla.count(MEMORY) is None and report.xla.launches is None
    assert report.xla.missing in report.to_text()


@pytest.mark.skipif(
    xla_ahead.find_plugin() is None, reason="XLA's compiler for NVIDIA GPUs is not installed"
)
def test_xla_for_a_gpu_that_is_not_here_says_its_kernels(report: Report) -> None:
    assert report.xla.missing == ""
    assert report.xla.count(PRODUCT) == 1
    assert 1 <= report.xla.count(MEMORY) <= 3
    assert report.xla.planned_bytes > 0


def test_a_compiler_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla_ahead.sys, "executable", "false")
    found = xla_ahead.AheadOfTime(b"", profiler.preset("h100"), {}).result()
    assert found == "XLA's compiler failed: it said nothing"


def test_the_target_config_has_the_presets_numbers() -> None:
    text = xla_ahead.write_target_config(profiler.preset("b200"))
    assert "core_count: 148" in text and "{ major: 10 minor: 0 }" in text


def test_importing_astitch_imports_no_profiler() -> None:
    code = "import sys, astitch; assert 'astitch.profiling' not in sys.modules; assert callable(astitch.profile)"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- the ablation ----------------------------------------------------------------------------------------------


def test_kernels_end_where_xla_fuses_no_further() -> None:
    def twice(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        best, place = x.max(-1), jnp.argmax(x, -1)  # a reduce of two results
        y = jnp.exp(x - best[:, None]) + place[:, None]
        return y / y.sum(-1, keepdims=True), jnp.tanh(w)

    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((64, 256), (7, 3))]
    found = compile_hlo(trace_function("twice", twice, tuple(shapes)).hlo, gpu="h100")
    graph = found.scopes.graph
    for scope in found.scopes.scopes:
        parts = cut_like_xla(graph, scope)
        assert sorted(m for part in parts for m in part.members) == sorted(scope.members)
        for part in parts:
            reduces = [m for m in part.members if graph[m].op == "reduce"]
            inside = set(part.members)
            for reduce in reduces:  # nobody in the same kernel reads what it sums
                readers = [u for u in graph.users[reduce] if graph[u].op != "get-tuple-element"]
                assert inside.isdisjoint(readers)
    for variant in plan_variants(found):
        assert variant.failures == (), variant.name
        for plan in variant.plans:
            check_plan(plan)


def test_variants_compute_the_same() -> None:
    x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)

    def norm(x: jax.Array) -> jax.Array:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)

    found = compile_hlo(trace_function("norm", norm, (x,)).hlo, gpu="host")
    want = np.asarray(norm(x))
    for variant in plan_variants(found):
        scopes = replace(found.scopes, scopes=tuple(plan.scope for plan in variant.plans))
        program = build_program(scopes.graph, scopes, variant.plans)
        (got,) = HostEngine(program).run([x])
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
