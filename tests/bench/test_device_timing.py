"""GPU time of short calls from recorded launches: what counts, what held the GPU back, what the host was late for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from astitch.profiling.kernel_trace import Launch, NothingRecorded
from astitch.profiling.timing import Runner
from benchmarks import device_timing
from benchmarks.device_timing import (
    MARK,
    DeviceTimes,
    GpuTime,
    measure_gpu,
    split_at_marks,
    time_of_call,
)
from benchmarks.timing import PLUG_NAME, SPIN_NAME


def launch(name: str, start: float, us: float, module: str = "") -> Launch:
    return Launch(name, us, start, module=module)


def test_batches_lie_between_pairs_of_marks() -> None:
    names = ["warm", MARK, "a", "b", MARK, "between", MARK, MARK, "after"]
    launches = [launch(name, float(i), 0.5) for i, name in enumerate(names)]
    assert [[l.name for l in group] for group in split_at_marks(launches)] == [["a", "b"], []]


@pytest.mark.parametrize(
    ("holding", "module"),
    [
        (SPIN_NAME, ""),
        ("nvjet_hsh_128x256", ""),
        ("gemm_fusion_dot_1", ""),
        ("loop_fusion", f"jit_{PLUG_NAME}"),
    ],
)
def test_calls_take_from_the_first_start_to_the_last_end(holding: str, module: str) -> None:
    """Two calls of two kernels each, with gaps, behind what keeps the GPU busy."""
    own = [launch("fusion", 100.0, 2.0), launch("fusion_1", 103.0, 1.0)]
    again = [launch("fusion", 105.0, 2.0), launch("fusion_1", 108.0, 1.0)]
    group = [launch("memset", -1.0, 0.5), launch(holding, 0.0, 99.0, module), *own, *again]
    wanted = GpuTime((109.0 - 100.0) / 2, (2.0 + 1.0) * 2 / 2, 2.0)
    assert time_of_call(group, 2) == wanted
    assert time_of_call(group[:2], 2) is None
    ends_with_a_copy = [*group[:2], launch("copy", 99.2, 0.5), *group[2:]]
    assert time_of_call(ends_with_a_copy, 2) == wanted


def test_a_product_of_the_calls_own_is_not_taken_for_what_held_them_back() -> None:
    group = [
        launch("nvjet_a", 0.0, 50.0, f"jit_{PLUG_NAME}"),
        launch("gemm_fusion", 60.0, 3.0, "jit_f"),
        launch("loop_fusion", 64.0, 1.0, "jit_f"),
    ]
    assert time_of_call(group, 1) == GpuTime(5.0, 4.0, 2.0)


class Recording:
    """A GPU on which a launch begins a microsecond after the one before it has ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launches: list[Launch] = []
        self.held: list[float] = []
        self.now = 0.0
        monkeypatch.setattr(device_timing, "_mark", lambda: lambda: self.add(MARK, 0.1))
        monkeypatch.setattr(device_timing, "record_launches", self.record)

    def add(self, name: str, us: float) -> None:
        self.launches.append(launch(name, self.now, us))
        self.now += us + 1.0

    def hold(self, us: float) -> float:
        self.held.append(us)
        self.add(SPIN_NAME, us)
        return us

    def record(self, measure: Callable[[], object]) -> list[Launch]:
        measure()
        return self.launches

    def runner(self, *kernels_us: float, name: str = "astitch", most: int = 10**6) -> Runner:
        """Each call launches these kernels; the call after `most` fails."""
        left = [most]

        def call() -> None:
            left[0] -= 1
            if left[0] < 0:
                raise MemoryError
            for number, us in enumerate(kernels_us):
                self.add(f"{name}_{number}", us)

        return Runner(name, call, lambda _: None, list, self.hold)


def test_a_call_that_fails_leaves_the_others_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording(monkeypatch)
    batches = DeviceTimes()

    def measure() -> None:
        with pytest.raises(MemoryError):
            batches.run("fails", recording.runner(7.0, most=2), 3)
        batches.run("works", recording.runner(5.0), 1)

    assert batches.record(measure) == {"works": GpuTime(5.0, 5.0, 1.0)}


def test_gaps_between_kernels_are_in_the_span_and_not_in_their_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recording = Recording(monkeypatch)
    runners = [recording.runner(4.0, name="astitch"), recording.runner(2.0, 2.0, name="xla")]
    runners.append(Runner("host", lambda: None, lambda _: None, list))  # has nothing to hold
    wall_us = {"astitch": 300.0, "xla": 300.0, "host": 300.0}
    found, notes = measure_gpu(runners, wall_us, 3)
    assert found == {
        "astitch": GpuTime((10 * 4.0 + 9) / 10, 4.0, 1.0),
        "xla": GpuTime((20 * 2.0 + 19) / 10, 4.0, 2.0),
    }
    assert notes == {}


def test_calls_that_the_host_was_late_for_are_queued_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that each call moves on by 2 ms. 10 calls need 20 ms, and the GPU is held back for 3 at first."""
    recording = Recording(monkeypatch)
    clock = [0.0]
    monkeypatch.setattr(device_timing.time, "perf_counter", lambda: clock[0])

    def slow(runner: Runner) -> Runner:
        def call() -> None:
            clock[0] += 2e-3
            runner.call()

        return Runner(runner.name, call, runner.wait, list, runner.hold)

    batches = DeviceTimes()
    runner = slow(recording.runner(5.0))
    found = batches.record(lambda: batches.run("slow", runner, 10))
    assert found["slow"].kernel_us == 5.0 and batches.exposed == set()
    assert [calls for _, calls in batches.runs] == [0, 5]
    assert recording.held[1] >= 5 * 2000.0

    short = Runner("short", runner.call, runner.wait, list, lambda us: runner.hold(us) and 100.0)
    recording.launches.clear()
    again = DeviceTimes()
    again.record(lambda: again.run("short", short, 4))
    assert again.exposed == {"short"}
    assert [calls for _, calls in again.runs] == [0, 0, 0, 1]


def test_without_a_recording_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording(monkeypatch)
    monkeypatch.setattr(device_timing, "record_launches", lambda measure: measure() or [])
    with pytest.raises(NothingRecorded, match="CUPTI"):
        measure_gpu([recording.runner(1.0)], {"astitch": 10.0}, 1)
