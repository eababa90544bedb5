"""Memory of ours that JAX reads: who writes it again waits for JAX's stream; JAX's CPU stands for its GPU."""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import stepped_programs as programs

from astitch.run import dlpack_export
from astitch.run.dlpack_export import Exported, last_released, wait_for_jax
from astitch.run.executor import GpuExecutor
from astitch.run.xla_ffi import Api, Entry, ErrorDestruction, Frame, P, StreamQuestion


def test_that_jax_let_go_is_known_before_the_memory_is_free() -> None:
    class Memory:
        def __del__(self) -> None:
            seen.append(last_released())

    seen: list[int] = []
    before, exported = last_released(), Exported(Memory())
    assert last_released() == before and not seen
    del exported
    assert seen == [last_released()] != [before]


@pytest.mark.parametrize("knows_streams", [True, False])
def test_a_stream_waits_for_what_jax_enqueued_last(
    knows_streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Last:
        def __dlpack__(self, *, stream: int) -> None:
            asked.append(stream)
            if not knows_streams:
                raise RuntimeError("UNIMPLEMENTED")

        def block_until_ready(self) -> None:
            asked.append("ready")

    class Executable:
        def execute_sharded(self, operands: list[Any]) -> Executable:
            asked.append(operands)
            return self

        def disassemble_into_single_device_arrays(self) -> list[list[Last]]:
            return [[Last()]]

    monkeypatch.setattr(dlpack_export, "_find_queue", lambda _: None)
    monkeypatch.setattr(dlpack_export, "_make_marker", lambda _: (Executable(), ["token"]))
    for stream, name in (0, 1), (77, 77):
        asked.clear()
        wait_for_jax(0, stream)
        assert asked == [["token"], name] + ([] if knows_streams else ["ready"])


@pytest.mark.parametrize("traced", [False, True])
def test_the_marker_is_computed_where_jax_computes(
    traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax

    def wait(x: Any) -> Any:
        wait_for_jax(0, 0)
        return x + 1

    cpu = find_anew(monkeypatch)
    asked: list[Any] = []
    find_stream = dlpack_export.find_stream
    monkeypatch.setattr(
        dlpack_export, "find_stream", lambda *given: asked.append(find_stream(*given))
    )
    assert (jax.jit(wait) if traced else wait)(np.float32(1)) == 2
    executable, operands = dlpack_export._make_marker(0)
    ((last,),) = executable.execute_sharded(operands).disassemble_into_single_device_arrays()
    assert last.devices() == {cpu}
    assert set(asked) == {None}  # the custom call ran there, and was told of no stream


# ---- JAX's stream ----------------------------------------------------------------------------------------------

STREAM = 0x7700


class Xla:
    """XLA's table of functions, which knows one stream or none, and an executable that calls the export's handler."""

    def __init__(self, stream: int | None, run: Callable[[Callable[[], None]], None]) -> None:
        self.stream, self.run = stream, run
        self.runs, self.destroyed = 0, list[int]()
        self.functions = Entry(self._get_stream), Entry(self._destroy)
        get, destroy = (ctypes.cast(function, P).value for function in self.functions)
        self.api = Api(stream_get=get, error_destroy=destroy)
        self.frame = Frame(api=ctypes.pointer(self.api), context=99)

    def _get_stream(self, address: int) -> int | None:
        row = StreamQuestion.from_address(address)
        assert (row.size, row.context) == (ctypes.sizeof(row), 99)
        row.stream = self.stream
        return 55 if self.stream is None else None

    def _destroy(self, address: int) -> None:
        self.destroyed.append(ErrorDestruction.from_address(address).error)

    def execute_sharded(self, _: Any) -> None:
        self.runs += 1
        self.run(lambda: dlpack_export._HANDLER(ctypes.pointer(self.frame)))


def run_elsewhere(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def run_here(work: Callable[[], None]) -> None:
    work()


def find_anew(monkeypatch: pytest.MonkeyPatch) -> Any:
    """JAX's CPU, which is its GPU for dlpack_export, of which it knows nothing yet."""
    import jax

    cpu = jax.devices("cpu")[0]
    for name in ("_make_marker", "_find_queue"):
        monkeypatch.setattr(dlpack_export, name, getattr(dlpack_export, name).__wrapped__)
    monkeypatch.setattr(dlpack_export, "find_device", lambda *_: cpu)
    return cpu


def put_in_place_of_xla(monkeypatch: pytest.MonkeyPatch, xla: Xla) -> list[Any]:
    """What CuPy is asked for from then on."""
    find_anew(monkeypatch)
    monkeypatch.setattr(dlpack_export, "_compile", lambda *_: (xla, []))
    done: list[Any] = []
    runtime = SimpleNamespace(
        eventRecord=lambda *given: done.append(("record", *given)),
        streamWaitEvent=lambda *given: done.append(("wait", *given)),
    )
    cuda = SimpleNamespace(
        Device=lambda gpu: done.append(("device", gpu)) or nullcontext(),
        Event=lambda **given: done.append(("event", given)) or SimpleNamespace(ptr=11),
        runtime=runtime,
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    return done


def test_a_stream_waits_for_an_event_on_jax_s_which_is_asked_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    xla = Xla(STREAM, run_here)
    done = put_in_place_of_xla(monkeypatch, xla)
    queue = dlpack_export._find_queue(3)
    assert done == [("device", 3), ("event", {"disable_timing": True})]
    assert queue is not None and queue.keep is xla and not xla.destroyed
    monkeypatch.setattr(dlpack_export, "_find_queue", lambda _: queue)
    done.clear()
    for stream in 0, 5:
        wait_for_jax(3, stream)
    records = [("record", 11, STREAM)] * 2
    assert done == [records[0], ("wait", 0, 11), records[1], ("wait", 5, 11)]
    assert xla.runs == 1


@pytest.mark.parametrize(
    "xla",
    [
        pytest.param(lambda: Xla(STREAM, run_elsewhere), id="another thread enqueues"),
        pytest.param(lambda: Xla(STREAM, lambda _: None), id="enqueued later"),
        pytest.param(lambda: Xla(None, run_here), id="an error"),
        pytest.param(lambda: Xla(0, run_here), id="no stream"),
    ],
)
def test_a_stream_that_may_not_hold_all_is_not_trusted(
    xla: Callable[[], Xla], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = xla()
    done = put_in_place_of_xla(monkeypatch, stand_in)
    dlpack_export._noted.stream = STREAM + 1  # of a run before
    assert dlpack_export._find_queue(0) is None and not done
    assert stand_in.runs == 1 and stand_in.destroyed == [55] * (stand_in.stream is None)


def test_a_handler_that_fails_tells_xla_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    xla = Xla(STREAM, run_here)
    put_in_place_of_xla(monkeypatch, xla)
    xla.frame.api = None
    assert dlpack_export._find_queue(0) is None and xla.runs == 1
    assert not capfd.readouterr().err


def test_where_jax_takes_no_handler_the_marker_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from jax import ffi

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such platform")

    xla = Xla(STREAM, run_here)
    done = put_in_place_of_xla(monkeypatch, xla)
    monkeypatch.setattr(ffi, "register_ffi_target", refuse)
    with caplog.at_level(logging.WARNING, "astitch"):
        assert dlpack_export._find_queue(0) is None
    assert "takes longer: no such platform" in caplog.text and not done and not xla.runs


def test_without_jax_s_gpu_there_is_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    find_anew(monkeypatch)
    monkeypatch.setattr(dlpack_export, "find_device", lambda *_: None)
    wait_for_jax(0, 0)


# ---- on a device -----------------------------------------------------------------------------------------------


def make_long_work(turns: int, size: int) -> tuple[Callable[[Any], Any], Any]:
    """A computation of JAX's that multiplies matrices of `size` rows, compiled, and what it takes."""
    import jax
    import jax.numpy as jnp

    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU")

    @jax.jit
    def work_long(a: Any) -> Any:
        return jax.lax.fori_loop(0, turns, lambda _, a: jnp.tanh(a @ a), a)

    busy = jnp.ones((size, size))
    work_long(busy).block_until_ready()
    return work_long, busy


@pytest.mark.gpu
@pytest.mark.parametrize("by_marker", [False, True])
def test_what_a_stream_writes_behind_the_wait_jax_has_read(
    by_marker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what only waits in JAX's queue: our memory is written while JAX's stream still works on what is before."""
    import cupy
    import jax

    work_long, busy = make_long_work(turns=100, size=8192)
    if by_marker:
        monkeypatch.setattr(dlpack_export, "_find_queue", lambda _: None)
    else:
        assert dlpack_export._find_queue(0) is not None  # else every wait is a computation of JAX's
    stream, ended = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event(disable_timing=True)
    ours, copy = cupy.ones(1 << 20, np.float32), cupy.zeros(1 << 20, np.float32)
    read = jax.jit(lambda y: y + 1)
    theirs = jax.dlpack.from_dlpack(ours)
    read(theirs).block_until_ready()
    wait_for_jax(0, stream.ptr)
    cupy.copyto(copy, ours)
    ours.fill(1)
    cupy.cuda.Device(0).synchronize()
    long = work_long(busy)
    found = read(theirs)  # behind it
    wait_for_jax(0, stream.ptr)
    with stream:
        cupy.copyto(copy, ours)
        ours.fill(5)
        ended.record(stream)
    # JAX's stream takes some tenths of a second more, of which ours knows by the wait alone.
    assert not ended.done
    ended.synchronize()
    long.block_until_ready()
    np.testing.assert_array_equal(np.asarray(found), 2)
    np.testing.assert_array_equal(cupy.asnumpy(copy), 1)
    np.testing.assert_array_equal(cupy.asnumpy(ours), 5)


@pytest.mark.gpu
def test_what_jax_computed_before_the_wait_is_read_behind_it() -> None:
    """The stream that is found is JAX's: a copy on ours sees what JAX's queue had still to compute."""
    import cupy
    import jax
    import jax.numpy as jnp

    work_long, busy = make_long_work(turns=100, size=8192)
    fill = jax.jit(lambda a, turn: jnp.full(1 << 20, turn, jnp.float32) + 0 * a[0, 0])
    fill(work_long(busy), 0).block_until_ready()
    stream, copy = cupy.cuda.Stream(non_blocking=True), cupy.zeros(1 << 20, np.float32)
    wait_for_jax(0, stream.ptr)
    for turn in range(1, 4):
        result = fill(work_long(busy), turn)
        wait_for_jax(0, stream.ptr)
        pointer = result.unsafe_buffer_pointer()
        cupy.cuda.runtime.memcpyAsync(
            copy.data.ptr, pointer, copy.nbytes, cupy.cuda.runtime.memcpyDeviceToDevice, stream.ptr
        )
        stream.synchronize()
        np.testing.assert_array_equal(cupy.asnumpy(copy), turn)


@pytest.mark.gpu
def test_results_that_jax_still_reads_are_written_later() -> None:
    import jax

    work_long, busy = make_long_work(turns=30, size=4096)
    read = jax.jit(lambda y: y + 1)
    executor = GpuExecutor(programs.scale_program())
    x = np.ones((10, 20), np.float32)
    read(executor.run_to_jax([x])[0])
    for turn in range(10):
        results = executor.run_to_jax([turn * x])
        long = work_long(busy)  # what reads the result comes behind it
        found = read(results[0])
        del results
        again = executor.run_to_jax([x * 1000])
        np.testing.assert_array_equal(np.asarray(found), 3 * turn * x + 1)
        np.testing.assert_array_equal(np.asarray(again[0]), 3000 * x)
        del long, again
