"""The measured report without a GPU: the profiler's launches are made up, everything else is real."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from astitch.device.gpu import preset
from astitch.errors import AstitchError
from astitch.profiling import command, counters, measured, profiler, terminal
from astitch.profiling.kernel_trace import Launch
from astitch.profiling.profiler import Options
from astitch.profiling.report import MEASURED, MEMORY, PRODUCT, Kernel, Report, Side
from astitch.profiling.target import trace_function
from astitch.profiling.xla_kernels import Launches
from astitch.run.host_engine import HostEngine

DETAILS = "regs:32 static_shared:16 dynamic_shared:1024 grid:12,2,1 block:256,1,1 occ_pct:50"
CALLS = 4


def soft(x: jax.Array, w: jax.Array) -> jax.Array:
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)) @ w


def step(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    new = state * 0.5 + x
    return new, new.sum()


def make_launches(names: list[str]) -> Callable[[Callable[[], object]], list[Launch]]:
    def record(issue: Callable[[], object]) -> list[Launch]:
        issue()
        return [
            Launch(name, 2.0 + number, 100.0 * call + 10.0 * number, DETAILS, module)
            for call in range(CALLS)
            for number, (name, module) in enumerate(
                [(n, "jit_soft") for n in names] + [("loop_add_fusion", "jit_flush_l2")]
            )
        ]

    return record


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that CuPy would see; astitch's kernels run in the emulation."""
    monkeypatch.setattr("astitch.run.executor.count_gpus", lambda: 1)
    monkeypatch.setattr("astitch.run.executor.current_gpu", lambda: 0)
    monkeypatch.setattr(measured, "from_device", lambda number: preset("h100"))
    monkeypatch.setattr(measured, "wait_for_cupy", measured.wait_for_jax)
    monkeypatch.setattr(measured, "choose_calls", lambda us, work, most: CALLS)
    monkeypatch.setattr(
        measured, "describe_machine", lambda gpu, flush_l2: profiler.describe_preset(gpu)
    )
    monkeypatch.setattr(measured, "record_launches", make_launches(["stitch_0", "nvjet_tst"]))
    monkeypatch.setattr(profiler, "name_engine", lambda target, asked: "host")


def measure(fn: Any, *args: Any, carries: bool = False, flush: bool = False) -> measured.Measured:
    target = replace(trace_function(fn.__name__, fn, args), carries=carries)
    return measured.measure_sides(
        target, "host", 3, flush_l2=flush, strict=False, progress=lambda what: None
    )


@pytest.mark.usefixtures("on_a_gpu")
def test_launches_are_joined_to_what_is_known_of_their_kernels() -> None:
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 128), (128, 16))]
    found = measure(soft, *shapes, flush=True)
    assert found.astitch.count(MEMORY) == found.astitch.count(PRODUCT) == 1
    (kernel,) = found.astitch.stitched
    assert kernel.us == 2.0 and kernel.launches == 1.0
    assert kernel.bound_us is not None and kernel.projected_us is not None
    assert (kernel.grid, kernel.block, kernel.registers, kernel.shared_bytes) == (24, 256, 32, 1040)
    assert kernel.occupancy == pytest.approx(
        24 * 256 / (132 * 2048)
    )  # CUPTI says 50 % of a full grid
    assert kernel.sm_efficiency == pytest.approx(24 / 132)
    gpu = found.astitch.gpu
    assert gpu is not None and (gpu.median, gpu.runs) == (5.0, CALLS)
    assert [e.start_us for e in found.astitch.timeline] == [0.0, 10.0]
    assert (
        found.xla.wall is None and found.xla.overhead_us is None
    )  # calls were timed with the L2 warm
    warm = measure(soft, *shapes).xla
    assert warm.wall is not None and warm.wall.runs == 3
    assert found.xla.planned_bytes


def test_a_librarys_kernel_has_the_work_of_the_ops_that_called_it() -> None:
    def call(name: str, us: float, lines: str) -> Kernel:
        work: Any = {"bound_us": us, "flops": 10, "read_bytes": 4, "written_bytes": 2}
        return Kernel(name, PRODUCT, 1.0, limit="DRAM", source=(lines,), **work)

    launches = [
        Launch("sm90_gemm", 5.0, 0.0, DETAILS, "jit_f", "custom-call.1"),
        Launch("splitK_reduce", 1.0, 6.0, DETAILS, "jit_f", "custom-call.1"),
        Launch("sm90_gemm", 7.0, 8.0, DETAILS, "jit_f", "custom-call.2"),
        Launch("loop_add", 1.0, 16.0, DETAILS, "jit_f", "loop_add"),
    ]
    known = [
        call("custom-call.1", 2.0, "a.py:1"),
        call("custom-call.2", 3.0, "a.py:2"),
        Kernel("loop_add", MEMORY, 1.0, bound_us=0.5),
    ]
    rows = measured.join_traced(
        measured.sum_calls(launches, 1), Launches(tuple(known)), preset("h100")
    )
    found = {row.name: row for row in rows}
    gemm = found["sm90_gemm"]
    assert (gemm.us, gemm.launches, gemm.bound_us, gemm.flops) == (12.0, 2.0, 5.0, 20)
    assert gemm.kind == PRODUCT and gemm.source == ("a.py:1", "a.py:2")
    assert found["splitK_reduce"].bound_us is None  # no work of its own
    assert found["loop_add"].bound_us == 0.5


# ---- products in a CUDA graph, where the profiler names no instruction ---------------------------------------------


def schedule(*names: str) -> Launches:
    """In this order: library calls `gemm.N` with a bound of N us, else kernels of XLA's own; `*` marks a loop's."""
    kernels = []
    for name in names:
        kind, number = (PRODUCT, name[5:]) if name.startswith("gemm.") else (MEMORY, "0.5")
        turns = 3.0 if name.endswith("*") else 1.0
        us = float(number.rstrip("*")) * turns
        kernels.append(Kernel(name.rstrip("*"), kind, turns, bound_us=us, flops=2))
    return Launches(
        tuple(kernels),
        once=frozenset(name for name in names if not name.endswith("*")),
        libraries=frozenset(kernel.name for kernel in kernels if kernel.kind == PRODUCT),
    )


def bounds(known: Launches, *names: str, calls: int = 1) -> dict[str, float | None]:
    """Of the libraries' kernels, where calls launch these."""
    launches = [Launch(name, 20.0, 30.0 * n, DETAILS) for n, name in enumerate(names * calls)]
    rows = measured.join_traced(measured.sum_calls(launches, calls), known, preset("h100"))
    return {row.name: row.bound_us for row in rows if row.name.startswith("sm90")}


def test_products_in_a_cuda_graph_are_known_by_their_place() -> None:
    """What an H100's profiler says of two layers: equal fusions are one kernel, under the name of one of them."""
    known = schedule("gemm.8", "gemm_fusion_dot.23", "loop_add", "gemm.9", "gemm_fusion_dot.25")
    names = ["sm90_a", "gemm_fusion_dot_23", "loop_add", "sm90_a", "gemm_fusion_dot_23"]
    launches = [Launch(name, 20.0, 30.0 * n, DETAILS) for n, name in enumerate(names)]
    rows = measured.join_traced(measured.sum_calls(launches, 1), known, preset("h100"))
    gemm, fusion, _ = rows
    assert (gemm.name, gemm.us, gemm.launches) == ("sm90_a", 40.0, 2.0)
    assert (gemm.bound_us, gemm.flops) == (17.0, 4)
    assert (fusion.launches, fusion.bound_us) == (2.0, 1.0)
    assert bounds(known, *names, calls=3) == {"sm90_a": pytest.approx(17.0)}


def test_two_kernels_for_one_call_leave_out_their_stretch_only() -> None:
    known = schedule("gemm.1", "stitch_0", "gemm.2", "gemm.3", "stitch_1", "gemm.4", "stitch_2")
    names = ["sm90_a", "stitch_0", "sm90_b", "sm90_split", "sm90_c", "stitch_1", "sm90_d"]
    found = bounds(known, *names, "stitch_2")
    assert found == {
        "sm90_a": 1.0,
        "sm90_b": None,
        "sm90_split": None,
        "sm90_c": None,
        "sm90_d": 4.0,
    }
    # A kernel that is known in part has no work: its row is of all its launches.
    names[4] = "sm90_a"
    assert bounds(known, *names, "stitch_2")["sm90_a"] is None


def test_a_kernel_without_a_name_and_copies_between_products() -> None:
    known = schedule("gemm.1", "stitch_0", "gemm.2", "copy.7", "gemm.3")
    copied = ("sm90_a", "Memset 0", "stitch_0", "sm90_b", "memcpy32_post", "sm90_c")
    assert bounds(known, *copied) == {"sm90_a": 1.0, "sm90_b": 2.0, "sm90_c": 3.0}
    transposed = ("sm90_a", "stitch_0", "void transpose<float>", "sm90_b", "sm90_c")
    assert bounds(known, *transposed) == {"sm90_a": 1.0, "sm90_b": None, "sm90_c": None}


def test_a_loop_between_products_leaves_out_what_is_beside_it() -> None:
    known = schedule("gemm.1", "stitch_0", "row*", "gemm.2*", "stitch_1", "gemm.3")
    turn = ("row", "sm90_b")
    names = ("sm90_a", "stitch_0", *turn * 3, "stitch_1", "sm90_c")
    assert bounds(known, *names) == {"sm90_a": 1.0, "sm90_b": None, "sm90_c": 3.0}
    beside = schedule("gemm.1", "row*", "gemm.2*", "stitch_1", "gemm.3")
    assert bounds(beside, *(name for name in names if name != "stitch_0"))["sm90_a"] is None
    empty = schedule("gemm.1", "row*", "stitch_1", "gemm.3")  # nothing of a library turns
    names = ("sm90_a", "row", "row", "row", "stitch_1", "sm90_c")
    assert bounds(empty, *names) == {"sm90_a": 1.0, "sm90_c": 3.0}


def test_as_many_products_at_other_places_are_not_taken_for_each_other() -> None:
    known = schedule("gemm.1", "stitch_0", "gemm.2", "stitch_1", "gemm.3")
    shifted = ("stitch_0", "sm90_a", "sm90_b", "stitch_1", "sm90_c")
    assert bounds(known, *shifted) == {"sm90_a": None, "sm90_b": None, "sm90_c": 3.0}
    # The GPU exchanges two landmarks: no stretch beside them is the same.
    exchanged = ("sm90_a", "stitch_1", "sm90_b", "stitch_0", "sm90_c")
    assert bounds(known, *exchanged) == {"sm90_a": None, "sm90_b": None, "sm90_c": None}


def test_nothing_named_is_one_stretch() -> None:
    known = schedule("gemm.1", "gemm.2", "gemm.3")
    assert bounds(known, "sm90_a", "sm90_b", "sm90_a") == {"sm90_a": 4.0, "sm90_b": 2.0}
    assert bounds(known, "sm90_a", "sm90_b") == {"sm90_a": None, "sm90_b": None}
    assert bounds(Launches(()), "sm90_a") == {"sm90_a": None}


def test_names_that_only_one_side_has_are_no_landmarks() -> None:
    known = schedule("gemm.1", "wrapped_slice", "gemm.2", "stitch_0", "gemm.3", "loop_add.1")
    names = ("sm90_a", "sm90_b", "stitch_0", "sm90_c", "loop_add")  # a slice became a copy
    found = bounds(known, *names)
    assert (found["sm90_a"], found["sm90_b"]) == (1.0, 2.0)
    assert found["sm90_c"] is None  # whatever loop_add is, it may be of the call


def test_calls_that_differ_have_no_ends() -> None:
    known = schedule("gemm.1", "stitch_0", "gemm.2", "stitch_1", "gemm.3")
    call = ["sm90_a", "stitch_0", "sm90_b", "stitch_1", "sm90_c"]
    launches = [
        Launch(name, 20.0, 30.0 * n, DETAILS) for n, name in enumerate([*call, *call, "memcpy"])
    ]
    rows = measured.join_traced(measured.sum_calls(launches, 2), known, preset("h100"))
    found = {row.name: row.bound_us for row in rows}
    # The part that is taken for a call begins one launch too early or ends one too late.
    assert (found["sm90_a"], found["sm90_b"], found["sm90_c"]) == (None, 2.0, None)


def test_a_timeline_of_many_thousand_launches() -> None:
    """As ASR's training by XLA: between products loops, whose kernels they share."""
    scheduled: list[str] = []
    launched: list[str] = []
    wanted = {}
    for n in range(1, 501):
        scheduled += [f"gemm.{n}", f"stitch_{n}", f"row.{n}*"]
        launched += [f"sm90_{n}", f"stitch_{n}", *["row_1"] * 100]
        wanted[f"sm90_{n}"] = float(n)
    assert len(launched) > 50_000
    assert bounds(schedule(*scheduled), *launched) == wanted


@pytest.mark.usefixtures("on_a_gpu")
def test_a_training_step_carries_its_state() -> None:
    x = jnp.ones((16, 128))
    found = measure(step, x, x, carries=True)
    assert found.astitch.wall is not None and found.astitch.wall.median > 0


@pytest.mark.usefixtures("on_a_gpu")
def test_a_measured_report_goes_to_json_and_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "measure_ablation", lambda compilation: iter(()))
    x, w = jnp.ones((8, 128)), jnp.ones((128, 16))
    target = trace_function("soft", soft, (x, w))
    told: list[str] = []
    asked = Options(engine="host", runs=3)
    report = profiler.compare_measured(target, asked, told.append)
    assert len(told) + 1 == command.count_stages(asked, measured=True)
    assert report.measured and report.astitch.overhead_us is not None
    back = Report.from_dict(json.loads(json.dumps(report.to_dict())))
    assert back.to_dict() == report.to_dict()
    assert "a call, pipelined" in report.to_text()
    assert 'class="badge measured"' in report.to_html()


@pytest.mark.usefixtures("on_a_gpu")
def test_an_hlo_module_runs_on_values_made_up_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "astitch.library.xla_fallback.find_device", lambda kind, number: jax.devices("cpu")[0]
    )
    monkeypatch.setattr("astitch.run.executor.GpuExecutor", HostEngine)
    shapes = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((8, 128), (128, 16))]
    module = replace(trace_function("soft", soft, tuple(shapes)), function=None, args=())
    found = measured.measure_sides(
        module, None, 3, flush_l2=False, strict=False, progress=lambda what: None
    )
    assert found.xla.wall is not None and found.astitch.wall is not None
    assert found.astitch.planned_bytes == found.stitched.planned_bytes
    assert found.astitch.stitched[0].us == 2.0


@pytest.mark.usefixtures("on_a_gpu")
def test_what_does_not_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "record_launches", lambda issue: [])
    with pytest.raises(AstitchError, match="the profiler saw no kernel"):
        measure(soft, jnp.ones((8, 128)), jnp.ones((128, 16)))


def test_calls_that_differ_are_only_averaged() -> None:
    launches = [Launch("a", 3.0, float(i)) for i in range(3)]
    traced = measured.sum_calls(launches, 2)
    assert traced.gpu.median == 4.5 and traced.gpu.runs == 1


# ---- hardware counters -----------------------------------------------------------------------------------------

HEAD = """\
==PROF== Connected to process 1
"ID","Kernel Name","dram__sectors_read.sum","dram__sectors_write.sum","smsp__inst_executed.sum",\
"sm__warps_active.avg.pct_of_peak_sustained_active","smsp__cycles_active.avg.pct_of_peak_sustained_elapsed"
"","","sector","sector","inst","%","%"
"""

RAW = {
    "xla": HEAD + '"0","loop_fusion","7","8","90","40","80"\n',
    "astitch": HEAD
    + """\
"0","stitch_0","1,024","512","9000","40","80"
"1","stitch_0(float*)","1,000","500","9000","60","90"
"2","nvjet_tst(Params)","10","n/a","20","50","50"
""",
}

NCU = """#!{python}
import sys
side = sys.argv[sys.argv.index("-c") + 2]
log = next(a for a in sys.argv if a.startswith("--log-file=")).partition("=")[2]
open(log, "w").write({texts!r}[side])
name = dict(xla="loop_fusion", astitch="stitch_0")[side]
assert f"--kernel-name=regex:^({{name}})$" in sys.argv, sys.argv
assert "--filter-mode=per-launch-config" in sys.argv
"""

BOTH = (
    Side("xla", kernels=(Kernel("loop_fusion", MEMORY, 1.0, us=3.0),)),
    Side("astitch", kernels=(Kernel("stitch_0", MEMORY, 4.0, us=2.0), Kernel("slow", "copy", 1.0))),
)


def count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: dict[str, str], program: str = NCU
) -> Any:
    """texts: by side what Nsight Compute writes."""
    fake = tmp_path / "ncu"
    fake.write_text(program.format(python=sys.executable, texts=texts))
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    target = trace_function("soft", soft, (jnp.ones((8, 128)), jnp.ones((128, 16))))
    return counters.count_kernels(replace(target, typed=("soft.py",)), BOTH, None, 10, {})


def test_the_first_of_many_launches_does_not_count_for_all() -> None:
    rows = [
        ("turn", {"instructions": 4.0, "DRAM read transactions": reads}) for reads in (900, 2, 1)
    ]
    of_many = counters.sum_up_rows(rows, {"turn": 104.0})["turn"]
    assert of_many == {"DRAM read transactions": 2, "instructions": 4.0}
    of_all = counters.sum_up_rows(rows, {"turn": 3.0})["turn"]
    assert of_all["DRAM read transactions"] == 301  # of a call: the three as they were counted


def test_counters_are_averaged_and_told_for_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = count(tmp_path, monkeypatch, RAW)
    assert found["xla"]["loop_fusion"]["instructions"] == 90.0
    assert found["astitch"]["stitch_0"] == {
        "DRAM read transactions": 1012.0,
        "DRAM write transactions": 506.0,
        "instructions": 9000.0,
        "achieved occupancy": 50.0,
        "SM efficiency": 85.0,
    }
    assert "DRAM write transactions" not in found["astitch"]["nvjet_tst"]
    kernel, copy = counters.add_counters(BOTH[1], found["astitch"]).kernels
    assert kernel.occupancy == 0.5 and kernel.sm_efficiency == 0.85
    assert kernel.counters["instructions"] == 36000.0
    assert copy == BOTH[1].kernels[1]
    table = terminal.tabulate_counters(SimpleNamespace(sides=(Side("astitch", kernels=(kernel,)),)))
    assert [column.header for column in table.columns][2:] == [
        "DRAM read transactions",
        "DRAM write transactions",
        "instructions",
        "occ",
        "SM",
    ]
    assert list(table.columns[4].cells) == ["36,000"]


def test_counters_that_cannot_be_had_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        AstitchError, match="ncu counted nothing of xla: ==ERROR== ERR_NVGPUCTRPERM"
    ):
        text = "==ERROR== ERR_NVGPUCTRPERM: no permission\n"
        count(tmp_path, monkeypatch, {"xla": text, "astitch": text})
    slow = {"xla": '==PROF== Profiling "slow"\n', "astitch": ""}
    monkeypatch.setattr(counters, "MOST_SECONDS", 3)
    with pytest.raises(AstitchError, match=r'longer than 3 s; it said last: ==PROF== .* "slow"'):
        count(tmp_path, monkeypatch, slow, NCU + "import time; time.sleep(30)\n")
    target = trace_function("soft", soft, (jnp.ones((8, 128)), jnp.ones((128, 16))))
    with pytest.raises(AstitchError, match="a target that can be read again"):
        counters.count_kernels(target, BOTH, None, 10, {})


def test_what_was_measured_is_what_is_watched(tmp_path: Path) -> None:
    before = jax.config.jax_compilation_cache_dir
    with counters.keep_compiled() as shared:
        jax.jit(lambda x: x * 3 + 1).lower(jnp.ones(7)).compile()
        folder = Path(shared["JAX_COMPILATION_CACHE_DIR"])
        assert any(folder.iterdir())
    assert not folder.exists()
    assert jax.config.jax_compilation_cache_dir == before


def test_the_watched_process_can_be_started() -> None:
    code = counters.ENTRY.replace("main(sys.argv[1:])", "assert callable(main)")
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- the machine -----------------------------------------------------------------------------------------------

BUS = "00000000:4B:00.0"


@pytest.mark.parametrize(
    ("script", "found"),
    [
        (None, ("", {})),
        (f"import sys; print('{BUS}, 580.1, 1980, [N/A], 1980, 700.00'); sys.exit(9)", ("", {})),
        ("print('00000000:3B:00.0, 580.1, 1980, 1593, 1980, 700.00')", ("", {})),  # another GPU
        ("print(end='')", ("", {})),
        (
            "print('00000000:3B:00.0, 580.1, 210, 1593, 1980, 700.00');"
            f"print('{BUS}, 580.1, 1755, [N/A], 1980, 700.00')",
            ("580.1", {"SM clock": 1755.0, "most SM clock": 1980.0, "power limit (W)": 700.0}),
        ),
    ],
)
def test_what_nvidia_smi_does_not_say_is_left_out(
    script: str | None, found: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script is not None:
        fake = tmp_path / "nvidia-smi"
        fake.write_text(f"#!{sys.executable}\n{script}\n")
        fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert measured.ask_nvidia_smi("0000:4b:00.0") == found


# ---- on a GPU --------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_report_on_a_gpu() -> None:
    x, w = jnp.ones((1024, 512)), jnp.ones((512, 512))
    report = profiler.profile(soft, x, w, runs=2, ablation=True)
    for side in (report.xla, report.astitch):
        assert side.missing == "" and side.basis == MEASURED
        assert side.count(PRODUCT) == pytest.approx(1, abs=0.1)
        assert 0 < side.kernel_us(MEMORY) < 1000 and 0 < side.kernel_us(PRODUCT) < 1000
        assert side.wall is not None and side.wall.median > 0
        (product,) = (k for k in side.kernels if k.kind == PRODUCT)
        assert product.us and product.bound_us, "XLA says which instruction launched it"
    assert report.machine is not None and report.machine.driver and report.machine.clocks
    assert report.ablation
    assert "<html" in report.to_html() and report.to_text()
