"""Programs that CuPy launches as CUDA graphs: which addresses get one, what goes, and that results stay right."""

from __future__ import annotations

import ctypes
import gc
import importlib
import itertools
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import stepped_programs as programs
from fake_cupy import Fake, Here, Memory

from astitch.errors import OutOfMemory
from astitch.graph.ir import ArrayType, DimensionAttrs, DType, Node
from astitch.program.steps import (
    ALIGNMENT_BYTES,
    CudaKernel,
    KernelStep,
    Program,
    ReferenceStep,
    Space,
    Step,
    View,
)
from astitch.run import cuda_graph, device_array, gpu_fallbacks, gpu_products, result_memory
from astitch.run.cuda_graph import GraphCache, GraphCounts, WorkRooms, split_runs
from astitch.run.device_array import DeviceArray
from astitch.run.executor import GpuExecutor
from astitch.run.gpu_call import PreparedStep
from astitch.run.gpu_fallbacks import OutsideSteps
from astitch.run.gpu_kernels import KernelSteps
from astitch.run.result_memory import ResultMemory, ResultPool, follows_stream, note_array

executor_module = importlib.import_module("astitch.run.executor")

F32 = DType.F32
SIZE = 512


# ---- programs ----------------------------------------------------------------------------------------------------


def map_kernel(name: str, expression: str) -> CudaKernel:
    """y[i] = expression of x[i]."""
    source = f"""#include "astitch.cuh"
extern "C" __global__ void __launch_bounds__(128) {name}(const float* x, float* y)
{{
    const int i = blockIdx.x * 128 + threadIdx.x;
    y[i] = {expression};
}}
"""
    return CudaKernel(name, source, SIZE // 128, 128, 0, 0, 1)


ADD = CudaKernel(
    "add_two",
    f"""#include "astitch.cuh"
extern "C" __global__ void __launch_bounds__(128) add_two(unsigned char* const* table)
{{
    const int i = blockIdx.x * 128 + threadIdx.x;
    const float* a = reinterpret_cast<const float*>(table[0]);
    const float* b = reinterpret_cast<const float*>(table[1]);
    if (i < {SIZE}) reinterpret_cast<float*>(table[2])[i] = a[i] + b[i];
}}
""",
    SIZE // 128,
    128,
    0,
    0,
    1,
    pointer_table=True,
)

TOTAL = CudaKernel(
    "total",
    f"""#include "astitch.cuh"
extern "C" __global__ void __launch_bounds__(32) total(const float* x, float* y)
{{
    if (threadIdx.x) return;
    float sum = 0;
    for (int i = 0; i < {SIZE}; ++i) sum += x[i];
    y[0] = sum;
}}
""",
    1,
    32,
    0,
    0,
    1,
)

MAPS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "one_more": ("x[i] + 1.0f", lambda x: x + 1),
    "twice": ("x[i] * 2.0f", lambda x: x * 2),
    "half": ("x[i] * 0.5f", lambda x: x * np.float32(0.5)),
}


def launch(name: str, *views: View) -> KernelStep:
    """A step of one of these kernels; the last view is written."""
    made = {"add_two": ADD, "total": TOTAL}
    kernel = made.get(name) or map_kernel(name, MAPS[name][0])
    return KernelStep(kernel, views, frozenset({len(views) - 1}))


def training_program(*, interrupted: bool = False) -> Program:
    """w, x [512] -> (w + 2 (x + 1)) / 2 [512], its sum []: four kernels; interrupted: another step amid them."""
    w, x, y = (programs.view(name, SIZE) for name in "wxy")
    a, b, c = (programs.view(name, SIZE) for name in "abc")
    loss = programs.view("loss")
    steps: list[Step] = [
        launch("one_more", x, a),
        launch("twice", a, b),
        launch("add_two", w, b, c),
        launch("half", c, y),
        launch("total", y, loss),
    ]
    places = [(view, Space.ARENA, 2048 * n) for n, view in enumerate((a, b, c))]
    outputs = [(y, Space.OUTPUT, 0), (loss, Space.OUTPUT, 1)]
    if interrupted:
        d = programs.view("d", SIZE)
        same = Node("d", "concatenate", d.type, ("c",), DimensionAttrs(0))
        steps[3:4] = [ReferenceStep(same, (c,), (d,), "written by hand"), launch("half", d, y)]
        places.append((d, Space.ARENA, 3 * 2048))
    return Program(
        "training",
        programs.buffers((w, Space.PARAMETER, 0), (x, Space.PARAMETER, 1), *outputs, *places),
        (w, x),
        (),
        tuple(steps),
        (y, loss),
        max(place for _, _, place in places) + 2048 + ALIGNMENT_BYTES,
    )


def train(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    return (w + 2 * (x + 1)) * np.float32(0.5)


# ---- a GPU's stand-in --------------------------------------------------------------------------------------------


class StreamMaker:
    """CuPy's Stream."""

    def __init__(self, gpu: Streams) -> None:
        self.gpu = gpu

    def __call__(self, **_: Any) -> Queue:
        return Queue(self.gpu, next(self.gpu.numbers))

    def from_external(self, stream: Any) -> Queue:
        version, address = stream.__cuda_stream__()
        assert version == 0
        return Queue(self.gpu, address)


class Streams(Fake):
    """CuPy's stand-in with streams that capture, and kernels that are Python's."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[str] = []
        self.capturing: Queue | None = None
        self.current = [Queue(self, 0)]
        self.numbers = itertools.count(100)
        self.refused: set[str] = set()
        cuda = self.cuda
        cuda.Stream = StreamMaker(self)
        cuda.get_current_stream = lambda: self.current[-1]
        cuda.driver = SimpleNamespace(
            launchKernel=self.launch_kernel, launchCooperativeKernel=self.launch_kernel
        )
        copy = cuda.runtime.memcpyAsync
        cuda.runtime.memcpyAsync = lambda *given: self.enqueue(
            "copy", given[4] if len(given) > 4 else 0, lambda: copy(*given)
        )

    def enqueue(self, name: str, stream: int, work: Callable[[], None]) -> None:
        queue = self.capturing
        if queue is not None and stream == queue.ptr:
            if name in self.refused:
                raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
            queue.captured.append(work)
            return
        self.launches.append(name)
        work()

    def launch_kernel(self, function: int, *given: Any) -> None:
        # grid, block, shared memory, stream, parameters: read at once, as the driver does.
        stream, block = given[7], given[8]
        kernel = KERNELS[function]
        count = 1 if kernel.pointer_table else 3 if kernel is ADD else 2
        slots = (ctypes.c_uint64 * count).from_address(block)
        values = [ctypes.c_uint64.from_address(slot).value for slot in slots]

        def work() -> None:
            pointers = values
            if kernel.pointer_table:
                pointers = list((ctypes.c_uint64 * 3).from_address(values[0]))
            compute(kernel.name, pointers)

        self.enqueue(kernel.name, stream, work)


KERNELS: list[CudaKernel] = []


def compute(name: str, pointers: list[int]) -> None:
    arrays = [
        np.frombuffer((ctypes.c_float * SIZE).from_address(p), np.float32) for p in pointers[:-1]
    ]
    count = 1 if name == "total" else SIZE
    out = np.frombuffer((ctypes.c_float * count).from_address(pointers[-1]), np.float32)
    if name == "total":
        out[0] = arrays[0].sum(dtype=np.float32)
    elif name == "add_two":
        out[...] = arrays[0] + arrays[1]
    else:
        out[...] = MAPS[name][1](arrays[0])


class Queue(Here):
    """A stream."""

    def __init__(self, fake: Streams, pointer: int) -> None:
        self.fake, self.ptr = fake, pointer
        self.captured: list[Callable[[], None]] = []

    def __enter__(self) -> Queue:
        self.fake.current.append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        self.fake.current.pop()

    def wait_event(self, _: Any) -> None:
        self.fake.launches.append("wait")

    def begin_capture(self) -> None:
        assert self.ptr != 0 and self.fake.capturing is None
        self.captured, self.fake.capturing = [], self

    def end_capture(self) -> Graph:
        assert self.fake.capturing is self
        self.fake.capturing = None
        if "end" in self.fake.refused:
            raise RuntimeError("capture was invalidated")
        return Graph(self.fake, self.captured)


class Graph:
    def __init__(self, fake: Streams, work: list[Callable[[], None]]) -> None:
        self.fake, self.work = fake, work

    def launch(self, stream: Queue) -> None:
        assert self.fake.capturing is None
        if "graph" in self.fake.refused:
            raise RuntimeError("no graph")
        self.fake.launches.append("graph")
        for work in self.work:
            work()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Streams:
    fake = Streams()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(executor_module, "import_cupy", lambda: fake)
    for module in (device_array, gpu_fallbacks):
        monkeypatch.setattr(module, "find_device", lambda *_: None)
    monkeypatch.setattr(gpu_products, "find_bindings", lambda _: None)

    def load(kernels: KernelSteps) -> dict[CudaKernel, Any]:
        found = {}
        for kernel in kernels.program.kernels:
            found[kernel] = SimpleNamespace(ptr=len(KERNELS))
            KERNELS.append(kernel)
        return found

    monkeypatch.setattr(KernelSteps, "_load", load)
    return fake


def put(fake: Streams, array: np.ndarray) -> DeviceArray:
    memory = fake.cuda.alloc(array.nbytes)
    ctypes.memmove(memory.ptr, array.ctypes.data, array.nbytes)
    return DeviceArray(memory.ptr, ArrayType(F32, array.shape), memory)


W = np.arange(SIZE, dtype=np.float32)
X = np.float32(3) - np.arange(SIZE, dtype=np.float32) / 7


def check(results: list[DeviceArray], w: np.ndarray, x: np.ndarray) -> None:
    want = train(w, x)
    y, loss = (result.to_numpy() for result in results)
    np.testing.assert_array_equal(y, want)
    np.testing.assert_allclose(loss, want.sum(), rtol=1e-4)


def launches_of(fake: Streams, call: Callable[[], list[DeviceArray]]) -> tuple[list[str], Any]:
    fake.launches.clear()
    results = call()
    found = [name for name in fake.launches if name != "copy"]
    return found, results


ONE_BY_ONE = ["one_more", "twice", "add_two", "half", "total"]


def test_the_second_call_with_the_same_addresses_is_captured(fake: Streams) -> None:
    executor = GpuExecutor(training_program())
    w, x = put(fake, W), put(fake, X)
    for turn in range(5):
        found, results = launches_of(fake, lambda: executor.run([w, x]))
        assert found == (ONE_BY_ONE if turn == 0 else ["graph"])
        check(results, W, X)
        del results
    assert executor.graph_counts == GraphCounts(replayed=4, direct=1, captured=1)
    assert "1 captured, 4 launched" in str(executor.graph_counts)


def test_results_become_arguments_and_two_sets_take_turns(fake: Streams) -> None:
    executor = GpuExecutor(training_program())
    x, w, losses = put(fake, X), put(fake, W), []
    want = W
    for _ in range(10):
        w, loss = executor.run([w, x])
        losses.append(loss)  # kept, as training loops do
        want = train(want, X)
        np.testing.assert_array_equal(w.to_numpy(), want)
    assert len({loss.pointer for loss in losses}) == 10
    counts = executor.graph_counts
    assert counts.captured == 2 and counts.replayed >= 5, counts


def test_results_that_are_kept_are_never_written_again(fake: Streams) -> None:
    executor = GpuExecutor(training_program())
    w, kept = put(fake, W), []
    xs = [X * n for n in range(8)]
    placed = [put(fake, x) for x in xs]
    for x in placed:
        kept.append(executor.run([w, x]))
    for x, results in zip(xs, kept, strict=True):
        check(results, W, x)


def test_new_addresses_each_time_are_never_captured(fake: Streams) -> None:
    executor = GpuExecutor(training_program())
    w, held = put(fake, W), []
    for n in range(200):
        held.append(put(fake, X * n))
        check(executor.run([w, held[-1]]), W, X * n)
    assert executor.graph_counts == GraphCounts(direct=200)


def test_few_graphs_are_kept_the_rest_goes(fake: Streams) -> None:
    executor = GpuExecutor(training_program())
    w = put(fake, W)
    xs = [put(fake, X * n) for n in range(cuda_graph.MOST_GRAPHS + 3)]
    for _ in range(2):
        for n, x in enumerate(xs):
            check(executor.run([w, x]), W, X * n)
    counts = executor.graph_counts
    assert counts.captured == len(xs) and counts.dropped == 3
    found, results = launches_of(fake, lambda: executor.run([w, xs[-1]]))
    assert found == ["graph"]
    check(results, W, X * (len(xs) - 1))
    found, results = launches_of(fake, lambda: executor.run([w, xs[0]]))
    assert found == ONE_BY_ONE
    check(results, W, X * 0)


def test_steps_that_cannot_be_captured_part_the_graphs(fake: Streams) -> None:
    with pytest.warns(RuntimeWarning):
        executor = GpuExecutor(training_program(interrupted=True))
    w, x = put(fake, W), put(fake, X)
    for _ in range(3):
        found, results = launches_of(fake, lambda: executor.run([w, x]))
        check(results, W, X)
        del results
    assert found == ["graph", "half", "total"]  # two kernels are no graph


def test_results_of_fallbacks_are_read_where_xla_put_them(
    fake: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another place each time, and their buffers' own place in the arena is not used."""
    program = training_program(interrupted=True)
    first, *rest = program.steps
    fallback = next(step for step in rest if isinstance(step, ReferenceStep))
    w, a, b, c, d, y = (programs.view(name, SIZE) for name in "wabcdy")
    loss = programs.view("loss")
    steps = (
        first,
        replace(fallback, operands=(a,), results=(d,)),
        launch("twice", d, b),
        launch("add_two", w, b, c),
        launch("half", c, y),
        launch("total", y, loss),
    )
    made: list[Memory] = []

    def prepare(fallbacks: OutsideSteps, _: Any) -> PreparedStep:
        fallbacks.made_by_xla.add("d")

        def run(call: Any) -> None:
            made.append(Memory(fake, d.type.bytes))
            ctypes.memmove(made[-1].ptr, call.addresses["a"], d.type.bytes)
            call.addresses["d"] = made[-1].ptr

        return PreparedStep(run)

    monkeypatch.setattr(OutsideSteps, "prepare_reference", prepare)
    executor = GpuExecutor(replace(program, steps=steps))
    w_there, x_there = put(fake, W), put(fake, X)
    for turn in range(5):
        values = X + turn
        ctypes.memmove(x_there.pointer, values.ctypes.data, values.nbytes)
        check(executor.run([w_there, x_there]), W, values)


@pytest.mark.parametrize("what", ["add_two", "end", "graph"])
def test_what_cannot_be_captured_is_told_once_and_runs(
    what: str, fake: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    executor = GpuExecutor(training_program())
    w, x = put(fake, W), put(fake, X)
    fake.refused = {what}
    with caplog.at_level(logging.WARNING, "astitch"):
        for _ in range(5):
            found, results = launches_of(fake, lambda: executor.run([w, x]))
            assert found == ONE_BY_ONE
            check(results, W, X)
    assert len(caplog.records) == 1
    assert "training, steps 0 to 4" in caplog.text
    assert len(executor.graph_counts.refusals) == 1


def test_no_graphs_where_they_are_not_wanted(
    fake: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTITCH_GRAPHS", "0")
    executor = GpuExecutor(training_program())
    w, x = put(fake, W), put(fake, X)
    for _ in range(4):
        check(executor.run([w, x]), W, X)
    assert executor.graph_counts == GraphCounts()


def test_another_stream_waits_and_launches_the_same_graph(fake: Streams) -> None:
    executor = GpuExecutor(training_program())
    w, x = put(fake, W), put(fake, X)
    queues = [fake.cuda.Stream(), fake.cuda.Stream()]
    found = []
    for turn in range(8):
        with queues[turn % 2]:
            names, results = launches_of(fake, lambda: executor.run([w, x]))
        found.append(names)
        check(results, W, X)
        del results
    assert found[-2:] == [["wait", "graph"]] * 2


def test_no_room_while_capturing_is_no_failure(fake: Streams) -> None:
    executor = GpuExecutor(training_program())
    w, x = put(fake, W), put(fake, X)
    check(executor.run([w, x]), W, X)
    (y, loss) = executor.run([w, x])
    del y, loss
    executor = GpuExecutor(training_program())
    check(executor.run([w, x]), W, X)
    gc.collect()  # what the first one holds is not to make room later
    fake.room = fake.used + 8  # the loss fits, a table of pointers does not
    for _ in range(3):
        check(executor.run([w, x]), W, X)
    assert executor.graph_counts.captured == 0 and not executor.graph_counts.refusals
    fake.room = 1 << 40
    for _ in range(3):
        check(executor.run([w, x]), W, X)
    assert executor.graph_counts.captured == 1


def test_free_memory_of_results_is_given_back_when_room_is_short(fake: Streams) -> None:
    executor = GpuExecutor(training_program())
    w, x = put(fake, W), put(fake, X)
    first, second = executor.run([w, x]), executor.run([w, x])
    del first, second
    full = fake.used
    other = GpuExecutor(training_program())
    fake.room = full + 2 * SIZE * 4 + 8192 - 4096
    results = other.run([w, x])
    check(results, W, X)
    fake.room = fake.used + 100
    with pytest.raises(OutOfMemory, match="no room for y"):
        other.run([w, x])
    del results
    check(other.run([w, x]), W, X)


def test_an_executor_waits_for_the_gpu_before_it_goes(
    fake: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = []
    executor = GpuExecutor(training_program())
    executor.run([put(fake, W), put(fake, X)])
    monkeypatch.setattr(Here, "synchronize", lambda _: waited.append(True))
    del executor
    gc.collect()
    assert waited


# ---- the parts ---------------------------------------------------------------------------------------------------


def test_runs_of_steps() -> None:
    assert split_runs([True] * 4) == [(0, 4, True)]
    assert split_runs([True, True, False, False, True, True, True]) == [
        (0, 2, False),
        (2, 4, False),
        (4, 7, True),
    ]
    assert split_runs([]) == []


def test_sets_that_come_once_are_forgotten() -> None:
    cache = GraphCache("a run", GraphCounts())
    assert not cache.is_due((0,))
    for n in range(1, cuda_graph.MOST_SEEN + 1):
        assert not cache.is_due((n,))
    assert not cache.is_due((0,))
    assert cache.is_due((5,))


def test_rooms_are_the_same_for_all_launches_and_outlive_what_outgrows_them() -> None:
    fake = Fake()
    rooms = WorkRooms(lambda count: Memory(fake, count))
    first, second = rooms.take(100), rooms.take(50)
    assert first.ptr != second.ptr
    rooms.begin_launch()
    assert rooms.take(80) is first
    assert rooms.take(60) is not second
    assert fake.used == 210  # graphs may still use the second


def take(fake: Fake, pool: ResultPool, stream: int = 1) -> dict[str, ResultMemory]:
    return pool.take(stream, lambda count, _: Memory(fake, count))


def places(results: dict[str, ResultMemory]) -> list[int]:
    return [memory.ptr for memory in results.values()]


class _Array:
    """JAX's."""


def test_memory_of_results_follows_its_stream() -> None:
    fake, pool = Fake(), ResultPool([("y", 100), ("z", 50)])
    first = take(fake, pool)
    where = places(first)
    arrays = [_Array() for _ in where]
    for place, array in zip(where, arrays, strict=True):
        assert not follows_stream(array, place, 1)
        note_array(place, array)
        assert follows_stream(array, place, 1) and not follows_stream(array, place, 2)
        # What JAX makes in the memory of a donated array is written on JAX's stream.
        assert not follows_stream(_Array(), place, 1)
    first.clear()
    for place, array in zip(where, arrays, strict=True):
        note_array(place, array)
        assert not follows_stream(array, place, 1)
    assert places(take(fake, pool, 2)) != where
    assert places(take(fake, pool)) == where
    many = [take(fake, pool) for _ in range(5)]
    many.clear()
    assert fake.used == (1 + result_memory.MOST_FREE) * 150
    for stream in range(3, 3 + result_memory.MOST_STREAMS):
        take(fake, pool, stream).clear()
    assert fake.used == result_memory.MOST_STREAMS * 150
    result_memory.give_back_all()
    assert fake.used == 0


def test_results_of_which_a_part_is_kept_hold_no_more_than_a_few_sets() -> None:
    fake, pool, kept = Fake(), ResultPool([("y", 100), ("z", 5000)]), []
    for _ in range(50):
        results = take(fake, pool)
        kept.append(results["y"])
        del results
    assert len({memory.ptr for memory in kept}) == 50
    assert fake.used <= 50 * 100 + (result_memory.MOST_PARTIAL + 1) * 5000
    kept.clear()
    assert fake.used <= result_memory.MOST_FREE * 5100


def test_results_that_are_kept_for_long_are_sets_no_more() -> None:
    fake, pool, kept = Fake(), ResultPool([("y", 100), ("z", 100)]), []
    for _ in range(2 * result_memory.MOST_OPEN):
        kept.append(take(fake, pool))
    used = fake.used
    kept[0].clear()
    assert fake.used == used - 200
    kept[-1].clear()
    assert fake.used == used - 200


def test_a_set_that_is_parted_while_its_last_goes_is_not_used_again() -> None:
    fake, pool = Fake(), ResultPool([("y", 100), ("z", 100)])
    first = take(fake, pool)
    results = first["y"]._set

    class Turns(Iterator[int]):
        def __next__(self) -> int:  # here another thread calls
            results.part()
            return 2

    del first["y"]
    results._turns = Turns()
    first.clear()
    assert set(take(fake, pool)) == {"y", "z"}


def test_results_that_go_in_another_order_keep_their_sets() -> None:
    fake, pool = Fake(), ResultPool([("y", 100), ("z", 100)])
    first, second = take(fake, pool), take(fake, pool)
    sets = {tuple(places(first)), tuple(places(second))}
    del first["y"], second["z"], second["y"], first["z"]
    again = take(fake, pool), take(fake, pool)
    assert {tuple(places(results)) for results in again} == sets


# ---- on a device -------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_graphs_give_the_same_results_with_fresh_arguments() -> None:
    import cupy

    executor = GpuExecutor(training_program())
    w, x = cupy.asarray(W), cupy.asarray(X)
    for _ in range(6):
        check(executor.run([w, x]), W, X)
    for n in range(6):
        check(executor.run([w, cupy.asarray(X * n)]), W, X * n)
    counts = executor.graph_counts
    assert counts.captured >= 1 and counts.replayed >= 5, counts
    assert not counts.refusals
    before = counts.direct
    check(executor.run([w, x]), W, X)
    assert counts.direct == before  # one launch, of a graph


@pytest.mark.gpu
def test_graphs_in_a_training_loop() -> None:
    import cupy

    executor = GpuExecutor(training_program())
    x, w, losses = cupy.asarray(X), cupy.asarray(W), []
    want = W
    for _ in range(12):
        w, loss = executor.run([w, x])
        losses.append(loss)
        want = train(want, X)
    np.testing.assert_array_equal(w.to_numpy(), want)
    assert len({loss.pointer for loss in losses}) == 12
    assert executor.graph_counts.replayed >= 8, executor.graph_counts


@pytest.mark.gpu
def test_graphs_on_two_streams_and_in_two_threads() -> None:
    import cupy

    executor = GpuExecutor(training_program())
    w = cupy.asarray(W)
    xs = [cupy.asarray(X * n) for n in range(3)]
    cupy.cuda.Device().synchronize()
    failures: list[str] = []

    def work(seed: int) -> None:
        try:
            with cupy.cuda.Stream(non_blocking=True):
                for turn in range(40):
                    n = (turn + seed) % 3
                    check(executor.run([w, xs[n]]), W, X * n)
        except BaseException as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures and not executor.graph_counts.refusals
    assert executor.graph_counts.replayed > 20, executor.graph_counts


@pytest.mark.gpu
def test_an_executor_goes_while_its_graph_runs() -> None:
    import cupy

    x, results = cupy.asarray(X), []
    for n in range(5):
        executor = GpuExecutor(training_program())
        w = cupy.asarray(W + n)
        for _ in range(4):
            last = executor.run([w, x])
        results.append(last)
        del executor
        cupy.empty(1 << 16, cupy.uint8).fill(255)
    for n, last in enumerate(results):
        check(last, W + n, X)


@pytest.mark.gpu
def test_products_are_part_of_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    from astitch.library.cublaslt import find_bindings
    from tests.run.test_executor import product_arguments, product_program

    if find_bindings(0) is None:
        pytest.skip("nvmath-python is not installed")
    program = product_program()
    arguments, want = product_arguments()
    on_device = [cupy.asarray(a) for a in arguments]
    monkeypatch.setattr(cuda_graph, "LEAST_LAUNCHES", 2)
    executor = GpuExecutor(program)
    for _ in range(5):
        np.testing.assert_allclose(executor.run(on_device)[0].to_numpy(), want, rtol=1e-2)
    assert executor.graph_counts.replayed == 4, executor.graph_counts


@pytest.mark.gpu
def test_barriers_across_blocks_in_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cooperative launches can be captured."""
    import cupy

    monkeypatch.setattr(cuda_graph, "LEAST_LAUNCHES", 1)
    executor = GpuExecutor(programs.centre_program())
    values = np.arange(200, dtype=np.float32)
    x = cupy.asarray(values)
    for _ in range(5):
        (result,) = executor.run([x])
        np.testing.assert_allclose(result.to_numpy(), values - values.mean(), rtol=1e-5, atol=1e-3)
    assert executor.graph_counts.replayed == 4, executor.graph_counts


@pytest.mark.gpu
def test_a_call_in_steady_state_is_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    executor = GpuExecutor(training_program())
    w, x = cupy.asarray(W), cupy.asarray(X)
    launched: list[str] = []

    def count(module: Any, name: str) -> None:
        original = getattr(module, name)

        def counted(*given: Any) -> Any:
            launched.append(name)
            return original(*given)

        monkeypatch.setattr(module, name, counted)

    count(cupy.cuda.driver, "launchKernel")
    count(cupy.cuda.runtime, "memcpyAsync")
    for turn in range(4):
        replayed = executor.graph_counts.replayed
        launched.clear()
        executor.run([w, x])
        if turn == 0:
            assert launched.count("launchKernel") == 5
        if turn >= 2:
            assert launched == ["memcpyAsync"]  # of the small result
            assert executor.graph_counts.replayed == replayed + 1


@pytest.mark.gpu
@pytest.mark.parametrize("donated", [False, True])
def test_a_training_loop_of_jax(donated: bool) -> None:
    """New parameters each step, which are the arguments of the next; nothing waits unless the caller does."""
    import jax
    import jax.numpy as jnp

    import astitch

    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            y = x
            for weight in weights:
                y = jnp.tanh(jax.nn.softmax(y) @ weight)
            return jnp.mean((y - x) ** 2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return value, [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]

    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(64, 64)).astype("f") / 8 for _ in range(3)]
    batches = [rng.normal(size=(32, 64)).astype("f") for _ in range(3)]
    found = []
    ours = astitch.jit(step, engine="executor", donate_argnums=(0,) if donated else ())
    for fn, waits in (ours, False), (ours, True), (jax.jit(step), False):
        now, losses = [jax.device_put(w) for w in weights], []
        placed = [jax.device_put(b) for b in batches]
        for turn in range(30):
            value, now = fn(now, placed[turn % 3])
            losses.append(value)
            if waits:
                jax.block_until_ready(now)
        found.append([np.array(losses), *map(np.asarray, now)])
    for running, waiting, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(running, waiting)
        np.testing.assert_allclose(running, theirs, rtol=1e-2, atol=2e-3)
