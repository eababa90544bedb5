"""Kernels for compute-sanitizer: every one is found, its arguments are what it takes, and what a tool says is read."""

from __future__ import annotations

import ctypes
import pickle
import stat
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from astitch.device.gpu import preset
from astitch.run.emulate import compile_host
from benchmarks import kernel_samples, sanitize
from benchmarks.kernel_samples import Fill, KernelSample, Source, collect, list_sources
from benchmarks.patterns import PATTERNS
from benchmarks.sanitize import Log, read_log
from tests.programs import PROGRAMS

H100 = preset("h100")


def emulate(sample: KernelSample, *, check: bool) -> list[np.ndarray]:
    """The arguments after a launch; a checked one refuses to read what nobody wrote, and to leave an array."""
    kernel = sample.kernel
    arrays, unwritten = [], []
    for number, argument in enumerate(sample.arguments):
        words = argument.make()
        if words is None:
            unwritten.append(number)
            words = np.full(argument.type.bytes, 0xFF, np.uint8)
        typed = np.array(words).view(argument.type.dtype.numpy)
        arrays.append(typed.reshape(argument.type.shape))
    compile_host(kernel.source, check=check).launch(
        kernel.name,
        kernel.grid,
        kernel.block,
        arrays,
        shared_bytes=kernel.shared_bytes,
        cooperative=kernel.cooperative,
        pointer_table=kernel.pointer_table,
        uninitialised=unwritten,
    )
    return arrays


# ---- samples ---------------------------------------------------------------------------------------------------


def test_sources_are_all_patterns_programs_and_models() -> None:
    sources = list_sources()
    assert len({str(source) for source in sources}) == len(sources)
    whole = Counter(source.group for source in sources if not source.few)
    assert whole["suite"] == 2 * len(PATTERNS) and whole["corpus"] == len(PROGRAMS)
    assert whole["model"] == 10 and whole["loop"] == 6
    few = {source.group for source in sources if source.few}
    assert few == {"suite", "corpus", "scan", "sum"}


@pytest.mark.parametrize("few", [False, True])
def test_a_sum_of_columns_gets_its_arguments(few: bool) -> None:
    (sample,) = collect(Source("sum", "700x33-f32-0", few), H100)
    assert sample.symbol.startswith("stitch_") and sample.cubin
    assert sanitize.SYMBOL.fullmatch(sample.symbol)
    arrays = emulate(sample, check=True)
    filled = [a for a, b in zip(arrays, sample.arguments, strict=True) if b.fill is Fill.VALUES]
    sums = sorted((a for a in arrays if a.shape == (33,)), key=lambda a: float(a[0]))
    x = filled[0].astype(np.float64)
    np.testing.assert_allclose(sums[0], np.square(x).sum(0), rtol=1e-5)
    np.testing.assert_allclose(sums[1], x.sum(0), rtol=1e-5)


@pytest.mark.parametrize("source", ["corpus/embedding_layer_norm", "corpus/two_layer_norms"])
def test_programs_kernels_get_their_arguments(source: str) -> None:
    group, _, name = source.partition("/")
    for sample in collect(Source(group, name), H100):
        assert sample.name.startswith(f"{source} ")
        emulate(sample, check=True)


def test_a_loops_kernel_gets_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"crnn": ((2, 3, 4, 4, 6, 6, 8), 5, 7, 2, 20, 3)}
    monkeypatch.setattr(kernel_samples, "LOOPS", sizes)
    (loop,) = collect(Source("loop", "crnn-infer"), H100)
    assert loop.name == "loop/crnn-infer loop_0"
    fills = Counter(argument.fill for argument in loop.arguments)
    assert fills[Fill.VALUES] >= 2 and fills[Fill.NOTHING] >= 1
    arrays = emulate(loop, check=True)
    written = [a for a, b in zip(arrays, loop.arguments, strict=True) if b.fill is Fill.NOTHING]
    assert all(np.isfinite(array).all() for array in written)


class FakeDriver(SimpleNamespace):
    """The part of CuPy that a launch uses, on the host's memory."""

    def __init__(self, count: int, resident: int = 4) -> None:
        """count: of a launch's arguments."""
        self.count = count
        self.allocated: dict[int, Any] = {}
        self.launched: list[tuple[tuple[Any, ...], list[Any]]] = []
        driver = SimpleNamespace(
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
            funcSetAttribute=lambda *_: None,
            occupancyMaxActiveBlocksPerMultiprocessor=lambda *_: resident,
            launchKernel=self.launch,
            launchCooperativeKernel=self.launch,
        )
        runtime = SimpleNamespace(
            memcpyHostToDevice=1,
            memcpy=lambda to, source, size, _: ctypes.memmove(to, source, size),
            deviceSynchronize=lambda: None,
        )
        module = SimpleNamespace(
            load=lambda cubin: None, get_function=lambda name: SimpleNamespace(ptr=7)
        )
        self.cuda = SimpleNamespace(
            driver=driver,
            runtime=runtime,
            function=SimpleNamespace(Module=lambda: module),
            Memory=self.allocate,
            Device=lambda: SimpleNamespace(attributes={"MultiProcessorCount": 2}),
        )

    def launch(self, *how: Any) -> None:
        """Notes where and how, and the memory of each argument."""
        slots = (ctypes.POINTER(ctypes.c_uint64) * self.count).from_address(how[9])
        self.launched.append((how, [self.allocated[slot[0]] for slot in slots]))

    def allocate(self, size: int) -> Any:
        memory = (ctypes.c_uint8 * size)()
        pointer = ctypes.addressof(memory)
        self.allocated[pointer] = memory
        return SimpleNamespace(ptr=pointer)


def test_a_launch_has_arrays_of_their_own_that_are_as_large_as_they_are() -> None:
    (sample,) = collect(Source("sum", "3x5-f32-0"), H100)
    cupy = FakeDriver(len(sample.arguments))
    assert kernel_samples.launch(cupy, sample) == ""
    (((_, grid, _, _, block, _, _, shared, *_), memories),) = cupy.launched
    kernel = sample.kernel
    assert (grid, block, shared) == (kernel.grid, kernel.block, kernel.shared_bytes)
    assert [len(memory) for memory in memories] == [a.type.bytes for a in sample.arguments]
    for memory, argument in zip(memories, sample.arguments, strict=True):
        words = argument.make()
        assert bytes(memory) == (bytes(len(memory)) if words is None else words.tobytes())


def test_blocks_that_wait_for_each_other_are_not_launched_where_they_do_not_fit() -> None:
    found = collect(Source("sum", "9001x40-f32-0"), H100)
    (sample,) = [s for s in found if s.kernel.cooperative]
    cupy = FakeDriver(len(sample.arguments), resident=1)
    assert "wait for each other, 2 are resident" in kernel_samples.launch(cupy, sample)
    assert cupy.launched == []


# ---- reports -----------------------------------------------------------------------------------------------------

ONE = f"stitch_{2 * '0123456789abcdef'}"
TWO = f"stitch_{2 * 'fedcba9876543210'}_1"
NUMBERS = {ONE: 0, TWO: 1}

MEMCHECK = f"""\
========= COMPUTE-SANITIZER
== begin 0
== begin 1
========= Invalid __global__ read of size 16 bytes
=========     at {ONE}+0x1a0
=========     by thread (255,0,0) in block (3,0,0)
=========     Address 0x7f1 is out of bounds
=========
========= Invalid __global__ write of size 4 bytes
=========     at {TWO}+0x20
== end
========= ERROR SUMMARY: 2 errors
"""

RACECHECK = f"""\
========= COMPUTE-SANITIZER
== begin 1
========= Error: Race reported between Write access at {TWO}+0x1c0
=========     and Read access at {TWO}+0x1d0 [1020 hazards]
=========
== end
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""

SYNCCHECK = """\
== begin 0
== begin 1
========= Barrier error detected. Divergent thread(s) in warp
=========     by thread (5,0,0) in block (0,0,0)
== failed 1 CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure
========= Target application returned an error
========= ERROR SUMMARY: 1 error
"""


def test_findings_are_told_by_the_kernels_symbol() -> None:
    log = read_log(MEMCHECK.splitlines(), NUMBERS)
    assert log.whole and log.ended == {0, 1}
    assert [len(log.findings[n]) for n in (0, 1)] == [1, 1]
    assert log.findings[0][0].startswith("Invalid __global__ read of size 16 bytes; at stitch_")
    log = read_log(RACECHECK.splitlines(), NUMBERS)
    assert list(log.findings) == [1] and "Race reported" in log.findings[1][0]


def test_a_finding_without_a_symbol_is_of_what_was_running() -> None:
    log = read_log(SYNCCHECK.splitlines(), NUMBERS)
    assert not log.whole and log.ended == {0}
    barrier, launch = log.findings[1]
    assert barrier.startswith("Barrier error detected") and launch.startswith("the launch failed:")


def test_a_clean_report_has_no_findings() -> None:
    lines = [
        "========= COMPUTE-SANITIZER",
        "== begin 0",
        "== end",
        "========= ERROR SUMMARY: 0 errors",
    ]
    log = read_log(lines, NUMBERS)
    assert log.findings == {} and log.ended == {0} and log.whole


# ---- the command -------------------------------------------------------------------------------------------------

FAKE = """\
#!{python}
import sys
file, part, parts, after = sys.argv[-4], *map(int, sys.argv[-3:])
tool = sys.argv[sys.argv.index("--tool") + 1]
print("========= COMPUTE-SANITIZER")
for number in range(part, {count}, parts):
    if number > after:
        print("== begin", number, flush=True)
        if tool == "memcheck" and number == 1:
            print("========= Invalid __global__ write of size 4 bytes")
            print("=========     at {symbol}+0x20")
            print("== failed", number, "unspecified launch failure", flush=True)
            sys.exit(3)
        if tool == "synccheck" and number == 0:
            sys.exit(1)
        if tool == "racecheck" and number == 2:
            print("== refused", number, "8 blocks wait for each other, 4 are resident")
        if tool == "initcheck" and number == 2:
            import time
            time.sleep(60)
print("== end")
"""


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """Three samples in a file, as --collect writes them."""
    found = [
        sample
        for name in ("3x5-f32-0", "3x5-bf16-0", "700x33-f32-0")
        for sample in collect(Source("sum", name), H100)
    ]
    file = tmp_path / "kernels.pickle"
    file.write_bytes(pickle.dumps(found))
    return file


def put_sanitizer(folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> list[KernelSample]:
    found: list[KernelSample] = pickle.loads(file.read_bytes())
    fake = folder / "compute-sanitizer"
    fake.write_text(FAKE.format(python=sys.executable, count=len(found), symbol=found[1].symbol))
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder))
    return found


def test_the_table_goes_on_after_a_kernel_that_breaks_the_context(
    kernels: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = put_sanitizer(tmp_path, kernels, monkeypatch)
    command = ["--kernels", str(kernels), "--watched", "1", "--seconds", "20"]
    assert sanitize.main([*command, "--tools", "memcheck,racecheck,synccheck"]) == 1
    lines = capsys.readouterr().out.splitlines()
    (head,) = [n for n, line in enumerate(lines) if line.startswith("kernel ")]
    rows = {s.name: lines[head + 1 + n].removeprefix(s.name) for n, s in enumerate(found)}
    assert [rows[s.name].split()[2:] for s in found] == [
        ["ok", "ok", "1", "found"],
        ["2", "found", "ok", "ok"],
        ["ok", "refused", "ok"],
    ]
    text = "\n".join(lines)
    assert (
        f"memcheck, {found[1].name}: Invalid __global__ write of size 4 bytes; at stitch_" in text
    )
    assert f"memcheck, {found[1].name}: the launch failed: unspecified launch failure" in text
    assert f"synccheck, {found[0].name}: the process ended while it ran" in text
    assert f"racecheck, {found[2].name}: refused: 8 blocks wait" in text
    assert text.endswith("memcheck: 3 kernels, 1 not ok\nracecheck: 3 kernels, 1 not ok\n"
                         "synccheck: 3 kernels, 1 not ok")  # fmt: skip


def test_what_is_not_done_in_time_is_not_ok(
    kernels: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = put_sanitizer(tmp_path, kernels, monkeypatch)
    command = ["--kernels", str(kernels), "--watched", "1", "--tools", "initcheck"]
    assert sanitize.main([*command, "--seconds", "2"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines if line.startswith(found[2].name)] == ["-"]
    assert lines[-1] == "initcheck: 3 kernels, 1 not ok"


def test_a_clean_run_has_status_0(
    kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_sanitizer(tmp_path, kernels, monkeypatch)
    command = ["--kernels", str(kernels), "--watched", "2", "--tools", "racecheck"]
    monkeypatch.setattr(sanitize, "run_tool", lambda *_: Log(ended={0, 1, 2}, whole=True))
    assert sanitize.main(command) == 0


def test_without_a_sanitizer_it_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sanitize, "USUAL_PATHS", ())
    assert sanitize.main(["sum/3x5"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "there is no compute-sanitizer on the PATH" in line


@pytest.mark.parametrize("arguments", [["no_such_kernel"], ["--tools", "valgrind"]])
def test_the_command_refuses_what_it_does_not_know(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        sanitize.main(arguments)
    assert caught.value.code == 2


def test_sources_are_compiled_without_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kernels.pickle"
    command = ["sum/3x5-f32", "--gpu", "h100", "--jobs", "1", "--collect", str(file)]
    assert sanitize.main(command) == 0
    found = pickle.loads(file.read_bytes())
    # Planned for few SMs it is the same kernel.
    assert [sample.name for sample in found] == ["sum/3x5-f32-0 stitch_0"]
    assert "1 kernels of 2 programs compiled for h100" in capsys.readouterr().out
