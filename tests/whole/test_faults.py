"""The safety net: an error inside astitch costs a pass, a stitch op or a loop, never the program, and is not silent."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import astitch
from astitch import compile as compiling
from astitch import faults, pipeline
from astitch.api import inside_xla
from astitch.device.gpu import preset
from astitch.errors import CompilerMissing, KernelCompileError, KernelFault, UnsupportedOp
from astitch.faults import FaultLog, FaultWarning, dump_faults, is_fault
from astitch.hlo_import import import_hlo
from astitch.loops import plan as planning
from astitch.program.steps import FallbackStep
from astitch.run.host_engine import HostEngine
from astitch.xla import compile_module, prepare_kernels, stitched_call, write_module

X = jnp.linspace(-1.0, 1.0, 8 * 16).reshape(8, 16)


JOB = pipeline.Job("", preset("h100"), pipeline.OWN, tune=False, faults=faults.FaultLog())


def two_layers(x: jax.Array) -> jax.Array:
    """Two products, and stitch ops around them."""
    first = jax.nn.softmax(jnp.tanh(x) @ x.T)
    return jax.nn.softmax(jnp.sin(first) @ first, axis=0) + jnp.float32(1)


@pytest.fixture(autouse=True)
def _net(host_engine: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASTITCH_FAULTS", "")
    monkeypatch.setenv("ASTITCH_DUMP", str(tmp_path / "dumps"))


def fail(*_: object, **__: object) -> Any:
    raise AssertionError("a bug, put there by a test")


def call_with_faults(fn: Callable[..., Any], *arguments: Any) -> tuple[Any, list[str]]:
    """The result of astitch.jit, checked against jax.jit, and what FaultWarnings say."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = astitch.jit(fn)(*arguments)
    for ours, theirs in zip(
        jax.tree.leaves(result), jax.tree.leaves(jax.jit(fn)(*arguments)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    return result, [str(w.message) for w in caught if isinstance(w.message, FaultWarning)]


@pytest.mark.parametrize("name", [p.name for p in pipeline.PASSES if p.if_it_fails and p.when(JOB)])
def test_a_pass_that_fails_is_left_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, name, fail)
    _, said = call_with_faults(two_layers, X)
    assert len(said) == 1
    assert re.search(rf"{name}: \S+: AssertionError: a bug, put there by a test", said[0])
    compiled = astitch.jit(two_layers).lower(X).compile()
    assert compiled.program.kernels
    assert "errors inside astitch: 1" in compiled.explain()


@pytest.mark.parametrize("name", ["find_scopes", "plan_scopes", "build_program"])
def test_a_stage_that_fails_leaves_the_function(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, name, fail)
    _, said = call_with_faults(two_layers, X)
    assert len(said) == 1 and "XLA computes all of it" in said[0]


def break_one_scope(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[str]:
    """A stage of the compiler that fails for the first stitch op that it is given; that op's name."""
    works, broken = getattr(module, name), list[str]()

    def broken_stage(thing: Any, *more: Any, **options: Any) -> Any:
        named = next(
            (one for one in (thing, getattr(thing, "scope", None)) if hasattr(one, "name")), None
        )
        subject = more[0] if named is None else named.name
        if not broken:
            broken.append(subject)
        return (fail if subject == broken[0] else works)(thing, *more, **options)

    monkeypatch.setattr(module, name, broken_stage)
    return broken


@pytest.mark.parametrize("has_jax", [True, False])
@pytest.mark.parametrize("stage", ["check_plan", "make_cuda_kernel", "plan"])
def test_a_stitch_op_that_fails_is_left_alone(
    stage: str, has_jax: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered = astitch.jit(two_layers).lower(X)
    whole = lowered.compile().program
    monkeypatch.setattr(pipeline, "has_jax", lambda: has_jax)
    match stage:
        case "check_plan":
            break_one_scope(monkeypatch, sys.modules["astitch.search.plan_scopes"], "check_plan")
        case "make_cuda_kernel":
            break_one_scope(
                monkeypatch, sys.modules["astitch.search.build_program"], "make_cuda_kernel"
            )
        case "plan":
            lowering = sys.modules["astitch.search.plan"]
            assert hasattr(lowering, "lower")
            break_one_scope(monkeypatch, lowering, "lower")
    with pytest.warns(FaultWarning, match="its ops are left to XLA"):
        compiled = astitch.compile_hlo(lowered.hlo)
    assert len(compiled.program.kernels) == len(whole.kernels) - 1
    assert len(compiled.faults) == 1 and compiled.program.outside
    assert any(isinstance(s, FallbackStep) for s in compiled.program.steps) == has_jax
    (result,) = HostEngine(compiled.program, check=True).run([np.asarray(X)])
    np.testing.assert_allclose(result, two_layers(X), rtol=1e-5, atol=1e-6)
    assert "while its kernel" in compiled.explain() or "breaks a rule" in compiled.explain()


def refuse_text(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A host compiler that refuses the text of one kernel."""
    engine = sys.modules["astitch.run.host_engine"]
    works = engine.compile_many

    def refuse_one(sources: list[str], check: bool = False) -> Any:
        for source in sources:
            if f"{name}(" in source:
                error = KernelCompileError("g++ refuses the kernel text: 'bug' was not declared")
                error.source = source
                raise error
        return works(sources, check)

    monkeypatch.setattr(engine, "compile_many", refuse_one)


def test_text_that_the_compiler_refuses_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_text(monkeypatch, "stitch_1")
    _, said = call_with_faults(two_layers, X)
    assert len(said) == 1 and "start: kernel stitch_1: KernelCompileError" in said[0]
    compiled = astitch.jit(two_layers).lower(X).compile()
    names = [kernel.name for kernel in compiled.program.kernels]
    assert "stitch_1" not in names and names
    with pytest.raises(KernelCompileError, match="was not declared"):
        astitch.jit(two_layers, strict=True)(X)


def test_without_a_compiler_it_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is no error inside astitch: the user can install one."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys.modules["astitch.run.emulate"], "_modules", {})
    with pytest.raises(CompilerMissing, match="install g"):
        astitch.jit(two_layers)(X[:7] + 7)


def test_a_kernel_that_goes_wrong_leaves_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: object, **__: object) -> Any:
        raise KernelFault("stitch_0 reads what nobody wrote")

    monkeypatch.setattr(HostEngine, "run", fault)
    _, said = call_with_faults(two_layers, X)
    assert len(said) == 1 and "KernelFault: stitch_0 reads what nobody wrote" in said[0]
    with pytest.raises(KernelFault):
        astitch.jit(two_layers, strict=True)(X)


def scan_layers(w: jax.Array, rows: jax.Array) -> jax.Array:
    """A loop that is one kernel inside XLA."""

    def turn(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        carry = jnp.tanh(carry @ w + row)
        return carry, carry

    return jax.lax.scan(turn, jnp.zeros(rows.shape[1:]), rows)[1]


def lower(fn: Callable[..., Any], *arguments: Any) -> bytes:
    lowered = jax.jit(fn).trace(*arguments).lower(lowering_platforms=("cuda",))
    return bytes(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())


@pytest.mark.parametrize("name", ["analyse_loop", "emit_loop", "hoist_planned", "find_in_place"])
def test_inside_xla_a_fault_costs_a_loop_or_less(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = jnp.ones((40, 16, 64))
    both = lambda x, w, rows: (scan_layers(w, rows), two_layers(x))  # noqa: E731
    graph = import_hlo(lower(both, X, jnp.ones((64, 64)), rows))
    whole, _ = compile_module.compile_for_xla(graph, preset("h100"))
    assert not whole.faults and any(line.startswith("loop_0") for line in whole.loops)
    for module in (
        planning,
        pipeline,
        compiling,
        compile_module,
        prepare_kernels,
        sys.modules["astitch.xla.stitch_loops"],
    ):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, fail)
    compilation, text = compile_module.compile_for_xla(graph, preset("h100"))
    assert text and compilation.faults
    assert len(compilation.program.kernels) == len(whole.program.kernels)
    with pytest.raises(AssertionError, match="put there by a test"):
        compile_module.compile_for_xla(graph, preset("h100"), strict=True)


def test_what_xla_takes_costs_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "estimate_least_plain_peak", fail)
    compilation, module = compile_module.compile_for_xla(
        import_hlo(lower(two_layers, X)), preset("h100")
    )
    assert [fault.stage for fault in compilation.faults] == ["estimate_least_plain_peak"]
    assert module.count(write_module.TARGET.encode()) == len(compilation.program.kernels) > 0


def test_inside_xla_a_refused_text_costs_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    works = prepare_kernels.emit_for_xla

    def misspell(kernel: Any, *given: Any) -> str:
        text = works(kernel, *given)
        return text.replace("{", "{ bug;", 1) if kernel.name == "stitch_1" else text

    monkeypatch.setattr(prepare_kernels, "emit_for_xla", misspell)
    graph = import_hlo(lower(two_layers, X))
    compilation, module = compile_module.compile_for_xla(graph, preset("h100"))
    assert [fault.subject for fault in compilation.faults] == ["kernel stitch_1"]
    assert module.count(write_module.TARGET.encode()) == len(compilation.program.kernels) - 1
    assert "stitch_1 is left to XLA: an error inside astitch" in compilation.explain()


@pytest.mark.parametrize("name", ["compile_for_xla", "import_hlo", "to_stablehlo"])
def test_inside_xla_a_fault_costs_the_function_at_worst(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inside_xla, "target_gpu", lambda: preset("h100"))
    monkeypatch.setattr(stitched_call, name, fail)
    traced_fn = astitch.jit(two_layers, engine="xla")._stitched_jit
    with pytest.warns(FaultWarning, match="XLA computes all of it") as said:
        text = traced_fn.trace(X).lower(lowering_platforms=("cuda",)).as_text()
    assert len(said) == 1 and "dot_general" in text and write_module.TARGET not in text
    strict = astitch.jit(two_layers, engine="xla", strict=True)._stitched_jit
    with pytest.raises(AssertionError, match="put there by a test"):
        strict.trace(X).lower(lowering_platforms=("cuda",))


def test_a_module_with_faults_is_not_kept_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ASTITCH_DUMP", "")
    monkeypatch.setattr(inside_xla, "target_gpu", lambda: preset("h100"))
    monkeypatch.setattr(pipeline, "reshape_narrow_reductions", fail)
    for _ in range(2):
        with pytest.warns(FaultWarning, match="reshape_narrow_reductions"):
            fn = astitch.jit(two_layers, engine="xla")._stitched_jit
            fn.trace(X).lower(lowering_platforms=("cuda",)).as_text()
    for folder in (tmp_path / "cache" / "faults").iterdir():
        written = {file.name for file in folder.iterdir()}
        assert written == {"module.hlo.pb", "faults.txt", "repro.py"}


def test_strict_and_the_environment_raise_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "reshape_narrow_reductions", fail)
    with pytest.raises(AssertionError, match="put there by a test") as raised:
        astitch.jit(two_layers, strict=True)(X)
    assert any("in stage reshape_narrow_reductions" in note for note in raised.value.__notes__)
    monkeypatch.setenv("ASTITCH_FAULTS", "raise")
    with pytest.raises(AssertionError, match="put there by a test"):
        astitch.jit(two_layers)(X)


def test_an_interrupt_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "reshape_narrow_reductions", interrupt)
    with pytest.raises(KeyboardInterrupt):
        astitch.jit(two_layers)(X)
    monkeypatch.undo()
    assert not is_fault(KeyboardInterrupt()) and not is_fault(UnsupportedOp("x"))
    assert is_fault(AssertionError()) and is_fault(KeyError("d0"))


def test_what_a_signal_handler_raises_is_no_fault() -> None:
    """A time limit, for one, which is an Exception like any other."""

    def raise_timeout(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGUSR1, raise_timeout)
    try:
        with pytest.raises(TimeoutError):
            FaultLog(raises=False).attempt(
                lambda: signal.raise_signal(signal.SIGUSR1),
                lambda: None,
                stage="lower",
                subject="stitch_0",
                cost="left to XLA",
            )
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_dump_makes_the_fault_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """repro.py of a program whose text g++ refuses, which a wrong header brings about in another process too."""
    module, log = lower(two_layers, X), FaultLog(raises=False)
    log.note(KeyError("d0"), stage="plan", subject="stitch_0", cost="its ops are left to XLA")
    for gpu, inside in (("host", False), ("h100", True)):
        folder = dump_faults("main", module, gpu, log.found, inside)
        assert folder == dump_faults("main", module, gpu, log.found, inside)
        assert "KeyError: 'd0'" in (folder / "faults.txt").read_text("utf-8")
        bug = (
            "import astitch.pipeline as c\ndef fail(_): raise KeyError('d0')\n"
            "c.reshape_narrow_reductions = fail\n"
        )
        for text, status in (("", 0), (bug, 1)):
            done = subprocess.run(
                [
                    sys.executable,
                    "-c",
                    f"{text}import runpy; runpy.run_path({str(folder / 'repro.py')!r})",
                ],
                capture_output=True,
                text=True,
                cwd=Path(__file__).parents[2],
                env={**os.environ, "PYTHONPATH": "."},
            )
            assert done.returncode == status, done.stderr
            assert ("KeyError: 'd0'" in done.stderr) == bool(status)


def test_the_cache_keeps_the_newest_dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTITCH_DUMP", "")
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(faults, "MOST_DUMPS", 3)
    log = FaultLog(raises=False)
    for number in range(5):
        log.note(KeyError(number), stage="plan", subject="stitch_0", cost="XLA's")
        newest = dump_faults("main", "HloModule m", "host", log.found)
    assert len(list((tmp_path / "faults").iterdir())) == 3 and newest.exists()


def test_what_xla_refuses_with_kernels_it_runs_without_them() -> None:
    """A custom call that this XLA does not know stands for a module that it cannot compile."""
    types = jax.ShapeDtypeStruct(X.shape, X.dtype)
    stitched, other = (
        jax.jit(lambda x: jax.ffi.ffi_call("no_such_target", types)(x)) for _ in "12"
    )
    untraced = sys.modules["jax._src.core"].trace_state_clean
    with pytest.warns(RuntimeWarning, match="with astitch's kernels XLA fails: JaxRuntimeError"):
        call = inside_xla.call_directly(stitched, jax.jit(two_layers), untraced)
        np.testing.assert_allclose(call(X), two_layers(X), rtol=1e-5, atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(call(X), two_layers(X), rtol=1e-5, atol=1e-6)
    strict = inside_xla.call_directly(other, jax.jit(two_layers), untraced, strict=True)
    with pytest.raises(jax.errors.JaxRuntimeError, match="no_such_target"):
        strict(X)


def test_two_kinds_of_faults_in_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel is not emitted, another one's text is refused: both are left, and nothing reads what nobody wrote."""
    break_one_scope(monkeypatch, sys.modules["astitch.search.build_program"], "make_cuda_kernel")
    refuse_text(monkeypatch, "stitch_2")
    _, said = call_with_faults(two_layers, X)
    assert len(said) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FaultWarning)
        compiled = astitch.jit(two_layers).lower(X).compile()
    assert len(compiled.program.kernels) == 1 and len(compiled.compilation.left) == 2


def test_what_a_signal_handler_raises_is_not_left_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes from outside, whatever was under way."""
    monkeypatch.setattr(inside_xla, "target_gpu", lambda: preset("h100"))

    def ring(*_: object, **__: object) -> Any:
        os.kill(os.getpid(), signal.SIGALRM)
        raise AssertionError("the handler has raised before")

    def raise_in_handler(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(stitched_call, "compile_for_xla", ring)
    before = signal.signal(signal.SIGALRM, raise_in_handler)
    try:
        fn = astitch.jit(two_layers, engine="xla")._stitched_jit
        with pytest.raises(TimeoutError):
            fn.trace(X).lower(lowering_platforms=("cuda",))
    finally:
        signal.signal(signal.SIGALRM, before)
