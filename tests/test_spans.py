"""GPU time of short calls from recorded launches: what is counted, what held the GPU back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from astitch.profiling.kernel_trace import Launch
from astitch.profiling.timing import Runner
from benchmarks import spans
from benchmarks.spans import MARK, Spans, split_at_marks, time_of_call
from benchmarks.timing import SPIN_NAME


def launch(name: str, start: float, us: float) -> Launch:
    return Launch(name, us, start)


def test_batches_lie_between_pairs_of_marks() -> None:
    names = ["warm", MARK, "a", "b", MARK, "between", MARK, MARK, "after"]
    launches = [launch(name, float(i), 0.5) for i, name in enumerate(names)]
    assert [[l.name for l in group] for group in split_at_marks(launches)] == [["a", "b"], []]


@pytest.mark.parametrize("holding", [SPIN_NAME, "nvjet_hsh_128x256", "gemm_fusion_dot_1"])
def test_calls_take_from_the_first_start_to_the_last_end(holding: str) -> None:
    """Two calls of two kernels each, with gaps, behind what keeps the GPU busy."""
    own = [launch("fusion", 100.0, 2.0), launch("fusion_1", 103.0, 1.0)]
    again = [launch("fusion", 105.0, 2.0), launch("fusion_1", 108.0, 1.0)]
    group = [launch("memset", -1.0, 0.5), launch(holding, 0.0, 99.0), *own, *again]
    assert time_of_call(group, 2) == (109.0 - 100.0) / 2
    assert time_of_call(group[:2], 2) is None
    ends_with_a_copy = [*group[:2], launch("copy", 99.2, 0.5), *group[2:]]
    assert time_of_call(ends_with_a_copy, 2) == (109.0 - 100.0) / 2


def test_a_call_that_fails_leaves_the_others_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Launch] = []

    def add(name: str, us: float) -> None:
        recorded.append(launch(name, 1000.0 * len(recorded), us))

    def record_launches(measure: Callable[[], object]) -> list[Launch]:
        measure()
        return recorded

    monkeypatch.setattr(spans, "_mark", lambda: lambda: add(MARK, 0.1))
    monkeypatch.setattr(spans, "hold_cupy", lambda: add(SPIN_NAME, 9.0))
    monkeypatch.setattr(spans, "record_launches", record_launches)
    issued: list[float] = []

    def work(us: float, most: int) -> Runner:
        def call() -> None:
            issued.append(us)
            if issued.count(us) > most:
                raise MemoryError
            add("stitch_0", us)

        return Runner("astitch", call, lambda _: None, list)

    batches = Spans()

    def measure() -> None:
        with pytest.raises(MemoryError):
            batches.run("fails", work(7.0, most=2), 3)
        batches.run("works", work(5.0, most=9), 1)

    assert batches.record(measure) == {"works": 5.0}
