"""The benchmark without a GPU: every pattern compiles and is right, traffic, merging, tables, plots, the sweep."""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from astitch.compile import compile_hlo
from astitch.errors import EngineUnavailable
from astitch.hlo_import import import_hlo
from astitch.profiling import timing as clock
from astitch.profiling.timing import Runner
from astitch.run.host_engine import HostEngine
from astitch.toolchain.nvrtc import compile_cuda
from benchmarks import irregular, kernels, peers, prepare, timing
from benchmarks.device_timing import DeviceTimes, GpuTime
from benchmarks.patterns import DTYPES, ON_CHIP_BYTES, PATTERNS, SIZES, Case, Pattern, choose_cases
from benchmarks.results import (
    NOTHING,
    Results,
    Row,
    Run,
    format_means,
    format_results,
    geometric_mean,
    load_results,
    save_results,
    tolerance,
)
from tests.hlo_runner import lower

BENCHMARKS = Path(kernels.__file__).parent
TINY = [p.case("tiny", ("f32", "bf16")[i % 2]) for i, p in enumerate(PATTERNS)]
"""Each pattern in one of the dtypes."""


def lower_for_cuda(case: Case) -> bytes:
    specs = [argument.spec for argument in case.arguments]
    traced = jax.jit(case.fn, keep_unused=True).trace(*specs)
    hlo = traced.lower(lowering_platforms=("cuda",)).compiler_ir("hlo")
    return bytes(hlo.as_serialized_hlo_module_proto())


def row_of(case: Case, astitch_us: float, run: str = "2026-01-01", **peer_us: float) -> Row:
    times = {"astitch": astitch_us, **peer_us}
    return Row(
        case.pattern,
        case.size,
        case.dtype,
        case.title,
        run,
        case.traffic_bytes,
        flops=10 * case.traffic_bytes,
        kernels=1,
        wall_us=times,
        gpu_us={name: us / 2 for name, us in times.items()},
        errors={"astitch": 1e-7},
        reference="float64",
    )


def run_of(date: str) -> Run:
    return Run(date, "a GPU", "1.2", {"jax": "1"}, 3000.0, 5000.0, 60000.0)


# ---- patterns ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", TINY, ids=lambda case: f"{case.pattern}-{case.dtype}")
def test_pattern_compiles_for_an_h100_and_agrees_with_float64(case: Case) -> None:
    arguments = case.make_arguments()
    compilation = compile_hlo(lower_for_cuda(case), gpu="h100")
    got = HostEngine(compilation.program).run([np.asarray(a) for a in arguments])
    want, kind = kernels.compute_reference(case, arguments)
    error = kernels.relative_error([jax.device_put(a) for a in got], want)
    row = dataclasses.replace(row_of(case, 1.0), reference=kind)
    assert kind == "float64"
    assert error <= tolerance(row)
    assert [(a.shape, a.dtype) for a in got] == [(r.shape, r.dtype) for r in case.results]
    # Statistics of copies and sums would be 0: every pattern computes something.
    assert kernels.count_flops(compilation.graph) > 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_pattern_has_growing_traffic_of_its_dtype(pattern: Pattern, dtype: str) -> None:
    cases = [pattern.case(size, dtype) for size in ("tiny", *SIZES)]
    traffic = [case.traffic_bytes for case in cases]
    assert traffic == sorted(set(traffic))
    assert any(a.dtype == DTYPES[dtype] for a in cases[-1].arguments)
    assert all(0 <= a.read_bytes <= a.bytes for case in cases for a in case.arguments)


@pytest.mark.parametrize(
    ("name", "dtype", "bytes_"),
    [
        ("softmax", "f32", 2 * 8192 * 8192 * 4),
        ("layer_norm", "bf16", 2 * 32768 * 4096 * 2 + 2 * 4096 * 4),
        # beta's value is not needed
        ("layer_norm_backward", "bf16", 3 * 32768 * 4096 * 2 + 3 * 4096 * 4),
        ("cross_entropy", "bf16", 2 * 8192 * 50304 * 2 + 8192 * 4 + 4),
        ("column_sum", "bf16", 65536 * 1024 * 2 + 1024 * 4),
        ("quantise_f8", "bf16", 8192 * 16384 * 3 + 4 + 8192 * 16384 * 2 - ON_CHIP_BYTES),
        ("causal_softmax", "f32", 128 * 4 * (1024 * 1025 // 2 + 1024 * 1024)),
        ("rope", "bf16", 4 * 8 * 2048 * 32 * 128 * 2 + 2 * 2048 * 64 * 4),
    ],
)
def test_traffic_of_full_size(name: str, dtype: str, bytes_: int) -> None:
    (pattern,) = [p for p in PATTERNS if p.name == name]
    assert pattern.case("full", dtype).traffic_bytes == bytes_


def test_clip_adam_is_the_bert_of_151_million() -> None:
    (pattern,) = [p for p in PATTERNS if p.name == "clip_adam"]
    case = pattern.case("full", "f32")
    assert case.title == "192 tensors, 151 M"
    assert len(case.built.donate) == 3 * 192
    results = [(r.shape, r.dtype) for r in case.results]
    assert results == [(case.arguments[i].shape, np.float32) for i in case.built.donate]


def test_arguments_are_drawn_as_said() -> None:
    for case in TINY:
        for array, argument in zip(case.make_arguments(), case.arguments, strict=True):
            assert (array.shape, array.dtype) == (argument.shape, argument.dtype)
            if argument.draw == "index":
                assert 0 <= int(array.min()) <= int(array.max()) < argument.limit


def test_names_choose_by_part() -> None:
    cases = choose_cases(("softmax_",), ("small",), ("f32",))
    assert [c.key for c in cases[:2]] == [
        "softmax_4096|small|f32|128x4096",
        "softmax_long|small|f32|1x1048576",
    ]
    assert len(choose_cases()) == len(PATTERNS) * len(SIZES) * len(DTYPES)


def test_dropout_draws_the_same_mask_in_float64() -> None:
    (pattern,) = [p for p in PATTERNS if p.name == "dropout_add_layer_norm"]
    case = pattern.case("small", "f32")
    arguments = case.make_arguments()
    want, _ = kernels.compute_reference(case, arguments)
    assert kernels.relative_error([jax.jit(case.fn)(*arguments)], want) < 1e-5


# ---- peers -------------------------------------------------------------------------------------------------------


def parameters_by_name(path: Path) -> dict[str, int]:
    """Top-level functions of a module that cannot be imported here, with their number of parameters; -1: any."""
    found: dict[str, int] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = -1 if node.args.vararg else len(node.args.args)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            for target in node.targets:
                if isinstance(target, ast.Name) and node.value.id in found:
                    found[target.id] = found[node.value.id]
    return found


def test_torch_has_every_pattern_with_its_arguments() -> None:
    torch_functions = parameters_by_name(BENCHMARKS / "torch_patterns.py")
    for case in TINY:
        assert torch_functions[case.pattern] in (-1, len(case.arguments)), case.pattern


def test_liger_functions_are_those_of_patterns_with_their_arguments() -> None:
    counts = {case.pattern: len(case.arguments) for case in TINY}
    functions = parameters_by_name(BENCHMARKS / "liger_patterns.py")
    assert {f.removeprefix("prepare_") for f in functions} <= set(counts)
    assert "prepare_cross_entropy" in functions
    for name, count in functions.items():
        assert counts[name.removeprefix("prepare_")] == count, name


@pytest.mark.parametrize("case", TINY, ids=lambda case: f"{case.pattern}-{case.dtype}")
def test_torch_function_agrees_with_the_pattern(case: Case) -> None:
    torch = pytest.importorskip("torch")
    from benchmarks import torch_patterns

    arguments = case.make_arguments()
    # Copies: the fused optimizer overwrites its arguments.
    tensors = [None if t is None else t.clone() for t in peers.hand_to_torch(case, arguments)]
    with torch.no_grad():
        got = peers.flatten_torch(getattr(torch_patterns, case.pattern)(*tensors))
    want, _ = kernels.compute_reference(case, arguments)
    assert [(a.shape, a.dtype) for a in got] == [(r.shape, r.dtype) for r in case.results]
    if not case.built.random:
        assert kernels.relative_error(got, want) <= tolerance(row_of(case, 1.0))


def test_absent_peers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    lacking = peers.missing_packages(("xla", "torch", "liger"))
    assert lacking == {"torch": "no torch here", "liger": "no torch and no liger_kernel here"}


def test_donated_state_goes_from_call_to_call() -> None:
    (case,) = choose_cases(("clip_adam",), ("tiny",), ("f32",))
    arguments = case.make_arguments()
    runner = peers.prepare_xla_donated(case, arguments)
    first = [np.asarray(a) for a in runner.call()]
    second = [np.asarray(a) for a in runner.call()]
    want = jax.tree.leaves(jax.jit(case.fn)(*first, *arguments[len(first) :]))
    for got, expected in zip(second, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    with pytest.raises(peers.NotMeasured, match="nothing to donate"):
        peers.prepare_xla_donated(TINY[0], TINY[0].make_arguments())


# ---- measuring ---------------------------------------------------------------------------------------------------


def test_flops_count_elements_and_reductions() -> None:
    graph = import_hlo(lower(lambda x: (x + 1).sum(1), np.zeros((4, 8), np.float32)))
    assert kernels.count_flops(graph) == 4 * 8 + 4 * 8


def test_error_of_nan_is_infinite() -> None:
    bad = jax.numpy.asarray([1.0, np.nan])
    assert kernels.relative_error([bad], [jax.numpy.ones(2)]) == float("inf")


def test_runners_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "choose_batch", lambda us: 5)
    log: list[str] = []

    def runner(name: str) -> Runner:
        return Runner(
            name, lambda: log.append(name), lambda _: log.append(f"{name}."), lambda _: []
        )

    times = clock.measure_wall([runner("a"), runner("b")], batches=3)
    assert set(times) == {"a", "b"}
    assert log[-36:] == [*["a"] * 5, "a.", *["b"] * 5, "b."] * 3


def test_calls_of_a_batch_are_bounded() -> None:
    assert clock.choose_calls(0.1, 4000, 200) == 200
    assert clock.choose_calls(1000, 4000, 200) == 4
    assert clock.choose_calls(1e6, 4000, 200) == 1
    assert [clock.choose_batch(us) for us in (0.1, 100, 2000, 40_000, 100_000, 1e6)] == [
        200,
        40,
        8,
        8,
        4,
        1,
    ]


@pytest.mark.parametrize("source", [timing.SPIN, timing.FMA])
def test_kernels_of_the_clock_compile(source: str) -> None:
    (resources,) = compile_cuda(source, "sm_90").kernels.values()
    assert 0 < resources.registers < 64
    assert resources.spill_store_bytes == 0


def use_host_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """astitch's runner through the emulation, and no GPU time: what `measure_case` needs a GPU for."""

    def prepare(compiled: Any, arguments: Any) -> tuple[Runner]:
        def run() -> Any:
            return compiled(*arguments)

        return (Runner("astitch", run, jax.block_until_ready, jax.tree.leaves),)

    def xla(case: Case, arguments: Any) -> Runner:
        return dataclasses.replace(prepare_xla(case, arguments), hold=None)

    prepare_xla = peers.prepare_xla
    monkeypatch.setattr("astitch.api.engines.DEFAULT", "host")
    monkeypatch.setattr(peers, "prepare_astitch", prepare)
    monkeypatch.setattr(peers, "prepare_xla", xla)


def test_case_becomes_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    use_host_engine(monkeypatch)
    (case,) = choose_cases(("column_sum",), ("tiny",), ("bf16",))
    row = kernels.measure_case(case, ("xla", "xla-donated"), "now", batches=1)
    assert set(row.wall_us) == {"astitch", "xla"}
    assert row.errors["astitch"] < 1e-5
    assert row.kernels == 1
    assert row.flops > 0
    assert row.notes == {"xla-donated": "NotMeasured: nothing to donate"}


@pytest.mark.usefixtures("sorts_left", "host_engine")
def test_a_row_names_what_xla_computes_between_the_kernels() -> None:
    case = dataclasses.replace(TINY[0], built=dataclasses.replace(TINY[0].built, fn=jax.numpy.sort))
    x = jax.numpy.arange(12.0).reshape(3, 4)
    described = kernels.describe_program(peers.compile_astitch(case, [x]))
    assert described["other_steps"] == ["sort"]


def test_command_measures_saves_and_resumes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use_host_engine(monkeypatch)
    monkeypatch.setattr(kernels, "describe_machine", lambda: run_of("2026-01-02"))
    file = tmp_path / "results.json"
    command = ["column_sum", "bias_gelu", "--sizes", "tiny", "--dtypes", "f32", "--peers", "xla"]
    kernels.main([*command, "--quick", "--json", str(file)])
    assert set(load_results(file).rows) == {"column_sum|tiny|f32|40x24", "bias_gelu|tiny|f32|5x70"}
    assert "geometric mean of" in capsys.readouterr().out
    kernels.main([*command, "--quick", "--json", str(file), "--resume"])
    assert "0 cases in" in capsys.readouterr().out
    kernels.main([*command, "--seconds", "0", "--peers", ""])
    assert "2 cases were not started" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["--sizes", "huge"], ["--dtypes", "f64"], ["--peers", "tvm"], ["no_such_pattern"]]
)
def test_command_refuses_what_it_does_not_know(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        kernels.main(arguments)
    assert caught.value.code == 2


@pytest.mark.parametrize("main", [kernels.main, irregular.main])
def test_command_without_a_gpu_says_so(main: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise EngineUnavailable("the GPU engine finds no GPU")

    monkeypatch.setattr(kernels, "import_cupy", refuse)
    with pytest.raises(SystemExit, match="finds no GPU"):
        main([])


def test_patterns_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    kernels.main(["--patterns"])
    out = capsys.readouterr().out
    for pattern in PATTERNS:
        assert f"{pattern.name}: {pattern.about}" in out
    assert "536.87 MB" in out


# ---- preparing ---------------------------------------------------------------------------------------------------


def write_span(file: Path, name: str) -> dict[str, str]:
    """Appends when it ran, on a clock that all processes share."""
    start = time.monotonic()
    time.sleep(0.1)
    with file.open("a") as out:
        print(json.dumps([name, start, time.monotonic(), os.getpid()]), file=out)
    return {}


def meet(folder: Path, mine: str, other: str) -> dict[str, str]:
    """Returns when the other has been called too, in another process."""
    (folder / mine).touch()
    end = time.monotonic() + 60
    while not (folder / other).exists():
        assert time.monotonic() < end, f"{other} does not come"
        time.sleep(0.01)
    return {}


def fail(how: str) -> dict[str, str]:
    match how:
        case "raise":
            raise MemoryError("no room")
        case "die":
            os._exit(3)
        case "hang":
            time.sleep(600)
    return {"torch": how}


def fail_job(how: str, bytes_: int = 1) -> prepare.Job:
    return prepare.Job(how, bytes_, functools.partial(fail, how))


def test_jobs_run_side_by_side(tmp_path: Path) -> None:
    jobs = [
        prepare.Job(mine, 50, functools.partial(meet, tmp_path, mine, other))
        for mine, other in (("a", "b"), ("b", "a"))
    ]
    notes, seconds = prepare.run_jobs(jobs, 2, budget_bytes=100)
    assert notes == {}
    assert set(seconds) == {"a", "b"}
    assert multiprocessing.active_children() == []


def test_bytes_in_flight_stay_within_the_budget(tmp_path: Path) -> None:
    sizes = {"a": 30, "b": 60, "c": 200, "d": 70, "e": 40, "f": 30, "g": 10}
    file = tmp_path / "spans"
    jobs = [
        prepare.Job(name, size, functools.partial(write_span, file, name))
        for name, size in sizes.items()
    ]
    notes, seconds = prepare.run_jobs(jobs, 2, budget_bytes=100)
    assert notes == {}
    assert set(seconds) == set(sizes)
    spans = [json.loads(line) for line in file.read_text().splitlines()]
    assert os.getpid() not in {pid for *_, pid in spans}
    for _, start, _, _ in spans:
        at_once = [n for n, begin, end, _ in spans if begin <= start < end]
        assert sum(sizes[name] for name in at_once) <= 100 or at_once == ["c"]


def test_next_job_is_the_first_that_fits() -> None:
    waiting = [fail_job("x", size) for size in (90, 40, 30)]
    running = [fail_job("x", 65)]
    chosen = prepare._choose_next(waiting, running, 100)
    assert chosen is waiting[2]
    assert prepare._choose_next(waiting[:2], running, 100) is None
    assert prepare._choose_next(waiting, [], 1) is waiting[0]


def test_failures_are_notes_and_the_other_jobs_go_on() -> None:
    jobs = [fail_job("die", 3), fail_job("raise", 2), fail_job("slow peer", 1)]
    notes, seconds = prepare.run_jobs(jobs, 1, budget_bytes=10)
    assert notes["die"].startswith("BrokenProcessPool: ")
    assert notes["raise"] == "MemoryError: no room"
    assert notes["slow peer"] == "torch: slow peer"
    assert set(seconds) == {"slow peer"}


def test_job_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "STALLED_S", 0.5)
    notes, seconds = prepare.run_jobs([fail_job("hang")], 1, budget_bytes=10)
    assert notes["hang"].startswith("BrokenProcessPool: ")
    assert seconds == {}
    assert multiprocessing.active_children() == []


def list_programs(folder: Path) -> set[str]:
    """What is in JAX's cache there."""
    return {path.name for path in (folder / "xla").glob("*-cache")}


@pytest.fixture
def own_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """JAX and the environment are as before afterwards."""
    names = [name for name in jax.config.values if "persistent_cache_" in name]
    settings = {name: jax.config.values[name] for name in [*names, "jax_compilation_cache_dir"]}
    environment = dict(os.environ)
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(prepare, "choose_budget", lambda workers: 1 << 30)
    compilation_cache.reset_cache()
    jax.clear_caches()  # what an earlier test compiled would not be looked for
    yield tmp_path
    for name, value in settings.items():
        jax.config.update(name, value)
    os.environ.clear()
    os.environ.update(environment)
    compilation_cache.reset_cache()


@pytest.mark.parametrize("with_xla", [False, True])
def test_measuring_finds_what_the_processes_compiled(
    with_xla: bool,
    monkeypatch: pytest.MonkeyPatch,
    own_caches: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def measure(case: Case, *arguments: Any) -> Row:
        assert multiprocessing.active_children() == []  # nobody else while clocks run
        before.append(list_programs(folder))
        return measure_case(case, *arguments)

    folder = own_caches / ("peers-side-by-side" if with_xla else "peers")
    before: list[set[str]] = []
    measure_case = kernels.measure_case
    use_host_engine(monkeypatch)
    monkeypatch.setattr(kernels, "measure_case", measure)
    monkeypatch.setattr(kernels, "describe_machine", lambda: run_of("2026-01-02"))
    command = ["column_sum", "bias_gelu", "--sizes", "tiny", "--dtypes", "f32", "--peers", "xla"]
    command += ["--quick", "--prepare", "2", *["--prepare-xla"] * with_xla]
    kernels.main(command)
    out = capsys.readouterr().out
    assert "prepared 2 of 2 in" in out
    assert "2 cases in" in out
    assert any(name.startswith("jit_reference-") for name in before[0])
    # The measuring process compiles nothing, or nothing but XLA's own programs, which are timed as they are compiled.
    # Without a GPU no result of theirs was there to be compared with the reference.
    added = {name.split("-")[0] for name in list_programs(folder) - before[0]} - {"jit__largest"}
    assert added == (set() if with_xla else {"jit_bias_gelu", "jit_column_sum"})


def test_sweep_prepares_its_points(monkeypatch: pytest.MonkeyPatch, own_caches: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # for the process that prepares
    prepare.open_caches(own_caches)
    plain = irregular.Point("chain", "slices", 31, 7)
    sliced = irregular.Point("chain", "slices", 31, 7, (1, 3))
    jobs = [*irregular.make_jobs([plain], False), *irregular.make_jobs([sliced], True)]
    notes, seconds = prepare.run_jobs(jobs, 1, 1 << 30)
    assert set(seconds) == {plain.case().key, sliced.case().key}
    # without a GPU its own runner fails, after XLA's
    assert all(note.startswith("astitch: ") for note in notes.values())
    assert {name.split("-")[0] for name in list_programs(own_caches)} == {"jit_sliced"}


def test_without_preparing_no_cache_is_opened(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("opened")

    use_host_engine(monkeypatch)
    monkeypatch.setattr(prepare, "open_caches", refuse)
    monkeypatch.setattr(prepare, "ProcessPoolExecutor", refuse)
    monkeypatch.setattr(kernels, "describe_machine", lambda: run_of("2026-01-02"))
    command = ["column_sum", "--sizes", "tiny", "--dtypes", "f32", "--peers", "", "--quick"]
    kernels.main([*command, "--prepare", "0"])
    assert "1 cases in" in capsys.readouterr().out


def test_estimate_of_memory_is_above_the_arrays() -> None:
    (case,) = choose_cases(("cross_entropy",), ("full",), ("bf16",))
    logits = 8192 * 50304
    assert kernels.peak_bytes(case) > 2 * logits * 8 + 2 * 2 * logits * 2
    point = irregular.Point("softmax", "slices", 1024, 1024, (1, 7))
    (job,) = irregular.make_jobs([point], False)
    assert job.bytes > 3 * 1024 * 1024 * 4


def test_long_jobs_come_first() -> None:
    keys = [job.key for job in kernels.make_jobs(choose_cases(dtypes=("f32",)), ())]
    assert [key.split("|")[0] for key in keys[:3]] == ["clip_adam"] * 3
    jobs = irregular.make_jobs(irregular.list_points(["softmax"]), False)
    assert [job.bytes for job in jobs] == sorted((job.bytes for job in jobs), reverse=True)
    assert len({job.key for job in jobs}) == len(irregular.list_points(["softmax"]))


@pytest.mark.parametrize("main", [kernels.main, irregular.main])
def test_dry_run_lists_and_stops(main: Any, capsys: pytest.CaptureFixture[str]) -> None:
    main(["softmax", "--dry"])
    *lines, last = capsys.readouterr().out.splitlines()
    assert all("GB  " in line and "softmax" in line for line in lines)
    assert last == f"{len(lines)} to measure"


def test_batches_end_with_their_time() -> None:
    assert len(list(clock.take_turns(9, 60.0))) == 9
    assert len(list(clock.take_turns(9, 0.0))) == clock.LEAST_BATCHES
    assert len(list(clock.take_turns(2, 0.0))) == 2


def test_seconds_are_counted_by_what_they_were_spent_on() -> None:
    seconds: Counter[str] = Counter()
    with kernels.count_seconds(seconds, "sleep"):
        time.sleep(0.02)
    with kernels.count_seconds(seconds, "nothing"):
        pass
    assert seconds["sleep"] >= 0.02 > seconds["nothing"]
    assert kernels.format_seconds({"a": 1.0, "b": 2.04}) == "seconds: b 2.0, a 1.0"


# ---- results -----------------------------------------------------------------------------------------------------


def test_speedups_take_the_better_xla_and_the_best_peer() -> None:
    row = row_of(TINY[0], 10.0, **{"xla": 30.0, "xla-donated": 20.0, "liger": 15.0})
    assert row.speedup_over_xla("wall_us") == 2.0
    assert row.speedup_over_best("wall_us") == 1.5
    assert row.best_peer("wall_us") == "liger"
    alone = row_of(TINY[0], 10.0, **{"astitch.jit": 5.0})
    assert alone.speedup_over_best("wall_us") is None
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def test_files_merge_by_case_and_keep_the_later_run(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    first, second = TINY[0], TINY[1]
    old = {
        "one": row_of(first, 10.0, "2026-01-01", xla=1.0),
        "two": row_of(second, 7.0, "2026-01-01"),
    }
    save_results(
        file, Results({"2026-01-01": run_of("2026-01-01")}, {r.key: r for r in old.values()})
    )
    new = row_of(first, 20.0, "2026-01-02")
    save_results(file, Results({"2026-01-02": run_of("2026-01-02")}, {new.key: new}))
    merged = load_results(file)
    assert merged.rows[first.key].wall_us == {"astitch": 20.0}
    assert merged.rows[second.key].wall_us == {"astitch": 7.0}
    assert set(merged.runs) == {"2026-01-01", "2026-01-02"}
    stale = Results(
        {"2025-01-01": run_of("2025-01-01")}, {first.key: row_of(first, 1.0, "2025-01-01")}
    )
    assert merged.merge(stale) == merged
    assert NOTHING.merge(merged) == merged


def test_a_file_of_the_schema_before_is_read(tmp_path: Path) -> None:
    row = row_of(TINY[0], 10.0, xla=20.0)
    old = dataclasses.asdict(row)
    del old["kernel_us"], old["launches"]
    run = dataclasses.asdict(run_of("2026-01-01"))
    del run["clock"], run["gap_us"]
    file = tmp_path / "old.json"
    file.write_text(json.dumps({"schema": 1, "runs": {run["date"]: run}, "rows": {row.key: old}}))
    found = load_results(file)
    assert found.rows[row.key].gpu_us == row.gpu_us and found.rows[row.key].kernel_us == {}
    assert found.runs[run["date"]].clock == "host"
    new = dataclasses.replace(row_of(TINY[1], 5.0, "2026-01-02"), kernel_us={"astitch": 1.0})
    timed = dataclasses.replace(
        run_of("2026-01-02"), clock="profiler", gap_us={"profiler": 1.2, "events": 0.9}
    )
    save_results(file, Results({timed.date: timed}, {new.key: new}))
    assert json.loads(file.read_text())["schema"] == 2
    both = load_results(file)
    assert both.rows[row.key].gpu_us == row.gpu_us
    assert both.rows[new.key].kernel_us == {"astitch": 1.0}
    text = format_results(both)
    assert "GPU times by host" in text
    assert "GPU times by profiler, gap by profiler 1.20 us, gap by events 0.90 us" in text


def test_foreign_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(json.dumps([1, 2]))
    with pytest.raises(ValueError, match="holds no results"):
        load_results(file)


def test_table_shows_ratios_bandwidth_and_what_is_missing() -> None:
    good = dataclasses.replace(
        row_of(TINY[0], 10.0, xla=20.0, torch=15.0), traffic_bytes=15_000_000
    )
    failed = dataclasses.replace(
        row_of(TINY[1], 10.0), wall_us={"xla": 5.0}, gpu_us={}, notes={"astitch": "Boom: no"}
    )
    good = dataclasses.replace(good, notes={"torch": "Fault: x", "liger": "NotMeasured: y"})
    wrong = dataclasses.replace(row_of(TINY[2], 10.0, xla=5.0), errors={"astitch": 0.5})
    results = Results(
        {"2026-01-01": run_of("2026-01-01")}, {r.key: r for r in (good, failed, wrong)}
    )
    text = format_results(results)
    (line,) = [s for s in text.splitlines() if s.startswith(f"{good.pattern} ")]
    assert " 1.50   2.00   1500   50.0 " in line
    assert "    astitch: Boom: no\n" in text
    assert "    torch: Fault: x\n" in text
    assert "NotMeasured" not in text
    assert "not in the means: 1 cases" in text
    assert f"{wrong.key}: astitch 5.0e-01" in text
    means = format_means([good, wrong])
    # over XLA: sqrt(2 * 0.5); over the best: sqrt(1.5 * 0.5)
    assert [cell for cell in means[1].split() if "." in cell] == ["0.866", "1.000"] * 2


def test_report_prints_and_draws_without_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.json"
    rows = [row_of(case, 10.0 + i, xla=12.0, liger=30.0) for i, case in enumerate(TINY)]
    save_results(file, Results({"2026-01-01": run_of("2026-01-01")}, {r.key: r for r in rows}))
    kernels.main(["--report", str(file), "--plots", str(tmp_path / "plots")])
    out = capsys.readouterr().out
    assert "geometric mean of" in out
    for name in ("roofline", "speedups"):
        png, svg = (tmp_path / "plots" / f"{name}.{end}" for end in ("png", "svg"))
        assert str(png) in out
        assert png.read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in svg.read_text()


# ---- irregular shapes --------------------------------------------------------------------------------------------


def test_sweep_has_two_hundred_shapes_of_all_kinds() -> None:
    points = irregular.list_points()
    shapes = {(p.rows, p.columns, p.skip) for p in points}
    assert len(shapes) >= 200
    assert len({p.case().key for p in points}) == len(points) == len(irregular.OPS) * len(shapes)
    assert {p.rows for p in points if p.group == "long rows"} == set(range(1, 11))
    assert {p.columns for p in points if p.group == "short rows"} == set(range(1, 34))
    assert all(p.rows * p.columns * 4 < 2 << 30 for p in points)


@pytest.mark.parametrize("op", irregular.OPS)
@pytest.mark.parametrize(("rows", "columns", "skip"), [(3, 517, (0, 0)), (31, 7, (1, 3))])
def test_point_computes_what_it_says(
    op: str, rows: int, columns: int, skip: tuple[int, int]
) -> None:
    case = irregular.Point(op, "slices", rows, columns, skip).case()
    (x,) = case.make_arguments()
    compilation = compile_hlo(lower_for_cuda(case), gpu="h100")
    (got,) = HostEngine(compilation.program).run([np.asarray(x)])
    want = irregular.OPS[op](x[skip[0] :, skip[1] :])
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
    assert case.traffic_bytes == 4 * rows * columns + got.nbytes
    assert x.shape == (rows + skip[0], columns + skip[1])


def test_point_becomes_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    use_host_engine(monkeypatch)
    case = irregular.Point("softmax", "primes", 7, 31).case()
    runs: list[str] = []

    class Recorder(DeviceTimes):
        def run(self, key: Hashable, runner: Runner, calls: int) -> None:
            runs.append(runner.name)

    x = case.make_arguments()[0]
    row = irregular.measure_point(case, x, "now", np.asarray, Recorder(), Counter())
    assert runs == ["xla", "astitch"] * irregular.TURNS
    keys = {(row.key, "astitch"): 2.0, (row.key, "xla"): 3.0, ("another", "xla"): 9.0}
    times = {key: GpuTime(us, us / 2, 1.0) for key, us in keys.items()}
    timed = irregular.with_times(row, times)
    assert timed.gpu_us == {"astitch": 2.0, "xla": 3.0}
    assert timed.kernel_us == {"astitch": 1.0, "xla": 1.5}
    assert row.errors["astitch"] < 1e-6
    assert row.key == "softmax|primes|f32|7x31"


def irregular_row(point: irregular.Point, astitch_us: float) -> Row:
    row = row_of(point.case(), astitch_us, xla=10.0)
    return dataclasses.replace(row, gpu_us={})


def test_sweep_report_ranks_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points = irregular.list_points(["softmax"])
    rows = [irregular_row(point, 5.0 + i) for i, point in enumerate(points[:100])]
    rows[0] = dataclasses.replace(rows[0], wall_us={"xla": 1.0}, notes={"astitch": "Boom: no"})
    file = tmp_path / "sweep.json"
    run = run_of("2026-01-01")
    save_results(file, Results({run.date: run}, {row.key: row for row in rows}))
    irregular.main(["--report", str(file), "--plots", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    worst = lines.index(irregular.POINT_HEADER) + 1
    assert lines[worst].split()[0] == "softmax"
    ratios = [float(line.split("10.0")[1].split()[0]) for line in lines[worst : worst + 20]]
    assert ratios == sorted(ratios)
    assert ratios[0] == round(10 / (5 + 99), 2)
    assert f"  {rows[0].key}: Boom: no" in lines
    assert (tmp_path / "irregular.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (tmp_path / "irregular.svg").read_text()


@pytest.mark.parametrize("arguments", [["cubic"], ["--groups", "cubes"]])
def test_sweep_refuses_what_it_does_not_know(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        irregular.main(arguments)
    assert caught.value.code == 2


# ---- on a GPU ----------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_case_and_point_are_measured_on_the_gpu() -> None:
    limits = timing.measure_limits()
    assert 50 < limits.copy_gbs < limits.l2_copy_gbs * 2
    assert limits.fma_gflops > 1000
    (case,) = choose_cases(("layer_norm_backward",), ("small",), ("bf16",))
    chosen = [p for p in peers.DEFAULT_PEERS if p not in peers.missing_packages([p])]
    row = kernels.measure_case(case, chosen, "now", batches=2)
    # What is installed takes part; nothing fails but donation, which has no meaning here.
    assert set(row.notes) == {"xla-donated"}
    assert {"astitch", "astitch.jit", "xla"} <= set(row.wall_us)
    assert all(0 < us <= 2 * row.wall_us[name] for name, us in row.gpu_us.items())
    assert max(row.errors.values()) <= tolerance(row)
    points = [irregular.Point("softmax", "primes", 127, 1021)]
    (row,) = irregular.measure_together(points, irregular.make_source(), "now", Counter())
    assert row.notes == {} and set(row.gpu_us) == {"xla", "astitch"}
    assert row.errors["astitch"] < 1e-5
