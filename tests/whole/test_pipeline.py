"""The pipeline is what its passes say: what is shown, timed, told and checked is what the compiler has."""

from __future__ import annotations

from typing import Any

import pytest

from astitch import pipeline
from astitch.compile import IMPORT, compile_graph, compile_hlo, main, show_pass
from astitch.device.gpu import preset
from astitch.errors import KernelCompileError
from astitch.faults import FaultLog
from astitch.graph.ir import Graph
from astitch.hlo_import import import_hlo
from astitch.pipeline import NAMES, PASSES, Job, Launcher, Target, run_passes
from astitch.search import plan_scopes as planning
from astitch.toolchain.nvrtc import CompiledKernel, Request
from tests.programs import corpus_path, load

PROGRAM = "layer_norm_backward"
H100 = preset("h100")


def compile_and_watch(target: Launcher = Launcher.OWN) -> tuple[dict[str, Any], Any]:
    """What each pass hands on while a program is compiled, and the compilation."""
    seen: dict[str, Any] = {}
    watch = {name: lambda product, name=name: seen.update({name: product}) for name in NAMES}
    compilation = compile_graph(
        import_hlo(load(PROGRAM)), H100, Target(launcher=target, after=watch)
    )
    return seen, compilation


@pytest.mark.parametrize("name", NAMES)
def test_until_a_pass_shows_what_the_compiler_has_there(name: str) -> None:
    seen, _ = compile_and_watch()
    shown = show_pass(load(PROGRAM), H100, name)
    if name in seen:
        assert shown == str(seen[name])
    else:  # not run for this target: what the pass before handed on
        before = (IMPORT, *NAMES)[NAMES.index(name)]
        assert shown == show_pass(load(PROGRAM), H100, before)


def test_what_is_timed_is_what_is_run() -> None:
    seen, _ = compile_and_watch()
    compilation = compile_hlo(load(PROGRAM), gpu="h100")
    assert list(compilation.seconds) == [IMPORT, *seen]
    assert list(seen) == [name for name in NAMES if name in seen]


def test_the_last_passes_hand_on_what_is_returned() -> None:
    seen, compilation = compile_and_watch()
    assert compilation.program is seen["program"]
    assert compilation.graph is seen["leave"].graph
    assert compilation.plans == seen["check_plans"].plans
    assert compilation.program.kernels == tuple(seen["emit"].kernels.values())


def test_a_target_says_which_passes_are_run() -> None:
    own, _ = compile_and_watch()
    inside, _ = compile_and_watch(Launcher.XLA)
    inside_alone = {
        "arrange_exchanges",
        "bound_arrays",
        "carry_as_read",
        "fold_scales",
        "give_operands",
        "pad_convolutions",
        "scale_late",
        "split_products",
        "unpack_words",
        "update_rows_of_layers",
        "update_stacks",
        "write_chosen_rows",
    }
    assert set(own) ^ set(inside) == inside_alone
    assert set(NAMES) - set(own) == inside_alone | {
        "carry_as_given",
        "follow_directives",
        "take_imported",
        "restore_products",
        "restore_windows",
        "fuse_attention",
        "narrow_products",
        "row_regions",
        "hoist_loops",
        "loop_over_matrices",
        "loop_over_joined_rows",
        "keep_within",
        "rename_scopes",
        "tune",
    }


def test_what_a_pass_breaks_is_found_right_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the pass is left out: here it forgets the operands of an op."""

    def forget(graph: Graph) -> Graph:
        return Graph(
            graph.name, dict(list(graph.nodes.items())[3:]), graph.parameters, graph.outputs
        )

    monkeypatch.setattr("astitch.pipeline.reassociate", forget)
    with pytest.raises(Exception, match="in stage reassociate"):
        compile_hlo(load(PROGRAM), gpu="h100")


def test_the_command_offers_the_passes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    offered = "".join(capsys.readouterr().out.split())
    assert "{" + ",".join([IMPORT, *NAMES]) + "}" in offered
    assert len(set(NAMES)) == len(PASSES)


def test_the_command_stops_at_a_pass(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "module.hlo.pb"
    path.write_bytes(load(PROGRAM))
    assert main([str(path), "--until", "emit"]) == 0
    assert capsys.readouterr().out.startswith('#include "astitch.cuh"')
    assert corpus_path(PROGRAM).exists()


def test_what_is_shown_of_a_pass_tells_of_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(graph: Graph) -> Graph:
        raise ZeroDivisionError("a broken pass")

    monkeypatch.setattr(pipeline, "reassociate", fail)
    monkeypatch.setenv("ASTITCH_FAULTS", "")
    shown = show_pass(load(PROGRAM), H100, "reassociate")
    before = show_pass(load(PROGRAM), H100, "order_scatters")
    assert shown.startswith(before) and "a broken pass" in shown.removeprefix(before)


@pytest.mark.parametrize("tune", [False, True])
def test_the_cuda_compiler_is_asked_about_what_the_engine_submits(
    monkeypatch: pytest.MonkeyPatch, tune: bool
) -> None:
    """Also where plans are measured, when none is compiled in the background."""
    asked: list[str] = []

    def refuse(request: Request) -> CompiledKernel:
        asked.append(request.source)
        raise KernelCompileError("no compiler")

    monkeypatch.setattr(planning, "compile_cached", refuse)
    monkeypatch.setattr(planning, "LEAST_THREADS", 0)  # what may be asked about is compiled too
    target = Target(render=lambda plan: f"the text of {plan.kernel.name}")
    job = Job(PROGRAM, H100, target, tune, FaultLog())
    run_passes(import_hlo(load(PROGRAM)), job, until="plan")
    assert asked and all(text.startswith("the text of ") for text in asked)
