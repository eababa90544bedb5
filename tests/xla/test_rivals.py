"""Kernels beside XLA's own version of their ops: which are compared, with what, and what comes of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.device.gpu import preset
from astitch.graph.ir import ArrayType, DType
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo, read_part
from astitch.library.xla_fallback import compile_module
from astitch.xla import device_timer, rivals
from astitch.xla.compile_module import compile_for_xla
from astitch.xla.device_timer import BATCHES, LIMIT_S, DeviceTimer, write_arguments
from astitch.xla.rivals import Alone
from astitch.xla.write_module import TARGET
from tests.hlo_runner import lower

H100 = preset("h100")
CPU = jax.devices("cpu")[0]
CALL = TARGET.encode()


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def layers(x: jax.Array, *weights: jax.Array) -> jax.Array:
    """Equal kernels between products, each with a constant and an iota of its own."""
    for w in weights:
        places = jnp.arange(x.shape[-1])
        x = jax.nn.softmax(x * 1.5 + jnp.where(places % 3 == 0, 0.0, 0.25)) @ w
    return x.mean(-1)


GIVEN = (normal(64, 128), *(normal(128, 128) for _ in range(3)))


class Timer:
    """Says what a program with kernels takes, and one without, in each batch; keeps what it is asked."""

    def __init__(self, *batches: tuple[float, float]) -> None:
        self.batches = list(batches) * (7 if len(batches) == 1 else 1)
        self.asked: list[Alone] = []

    def __call__(self, pairs: Sequence[tuple[Alone, Alone]]) -> list[list[tuple[float, float]]]:
        self.asked += [alone for pair in pairs for alone in pair]
        assert all(CALL not in theirs.hlo and CALL in ours.hlo for theirs, ours in pairs)
        return [self.batches] * len(pairs)


@pytest.fixture(autouse=True)
def _suspect_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "SUSPECT_US", 0.0)
    monkeypatch.setattr(rivals, "SUSPECT_FACTOR", 0.0)


def compile_timed(timer: Timer | None, fn: Callable[..., Any] = layers, given: Any = GIVEN) -> Any:
    return compile_for_xla(import_hlo(lower(fn, *given)), H100, time_both=timer)


def count_calls(module: bytes) -> int:
    return module.count(CALL)


def test_what_xla_does_faster_is_left_to_it() -> None:
    timer = Timer(*[(60.0, 100.0)] * 6, (300.0, 100.0))
    compilation, module = compile_timed(timer)
    _, plain = compile_timed(None)
    assert count_calls(plain) >= 4 and count_calls(module) == 0
    assert "measured: it takes 100 us, and XLA's own kernels 60 us" in compilation.explain()
    want = run_graph(import_hlo(lower(layers, *GIVEN)), GIVEN)
    for got, wanted in zip(run_graph(read_part(module), GIVEN), want, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    "batches",
    [
        [(99.0, 100.0)] * 7,
        [(46.0, 50.0)] * 7,
        [(100.0, 50.0)] * 7,
        [],
        [(60.0, 100.0)] * 5 + [(300.0, 100.0)] * 2,
        [(60.0, 100.0), (100.0, 60.0), (20.0, 300.0), (70.0, 50.0)],
        [(60.0, 100.0)] * 2,
    ],
)
def test_a_kernel_stays_where_it_is_as_fast_or_little_is_known(
    batches: list[tuple[float, float]],
) -> None:
    timer = Timer(*batches)
    _, module = compile_timed(timer)
    assert timer.asked and count_calls(module) == count_calls(compile_timed(None)[1])


def test_equal_kernels_are_compared_once_and_few_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = Timer((10.0, 20.0))
    compile_timed(timer)
    assert (
        len(timer.asked) == 2 * 3
    )  # the first softmax reads a parameter, the last kernel is a mean
    assert len({call.hlo for call in timer.asked}) == len(timer.asked)
    monkeypatch.setattr(rivals, "MOST_TIMED", 1)
    few = Timer((10.0, 20.0))
    compile_timed(few)
    assert len(few.asked) == 2


def test_only_what_is_far_from_the_speed_of_light_is_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    timer = Timer((10.0, 20.0))
    big = jax.ShapeDtypeStruct((1 << 26,), jnp.float32)
    compile_timed(timer, lambda x: x * 2 + 1, (big,))
    assert not timer.asked
    points = jax.ShapeDtypeStruct((8192, 3), jnp.float32)
    compile_timed(timer, lambda x: 1 / jnp.square(x[None] - x[:, None]).sum(-1), (points,))
    assert len(timer.asked) == 2


def test_both_sides_compute_the_same() -> None:
    """XLA's version runs here.  Of the kernel the signature is what the ops say."""
    timer = Timer((1.0, 1.0))
    compile_timed(timer)
    for theirs, ours in zip(timer.asked[::2], timer.asked[1::2], strict=True):
        assert sorted(map(str, theirs.parameters)) == sorted(map(str, ours.parameters))
        assert sorted(map(str, theirs.results)) == sorted(map(str, ours.results))
        graph = read_part(theirs.hlo)
        made = [normal(*type_.shape) for type_ in theirs.parameters]
        executable = compile_module(theirs.hlo, CPU, {})
        got = executable.execute_sharded([jax.device_put(a, CPU) for a in made])
        shards = got.disassemble_into_single_device_arrays()
        for shard, want in zip(shards, run_graph(graph, made), strict=True):
            np.testing.assert_allclose(np.asarray(shard[0]), want, rtol=1e-5, atol=1e-6)


def test_bodies_of_loops_are_compared_too() -> None:
    def loop(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 9, lambda _, x: jax.nn.softmax(x @ w) - x.mean(-1), x)

    graph = import_hlo(lower(loop, normal(64, 64), normal(64, 64)))
    slow, fast = Timer((10.0, 20.0)), Timer((20.0, 10.0))
    _, left = compile_for_xla(graph, H100, simplified=True, time_both=slow)
    _, kept = compile_for_xla(graph, H100, simplified=True, time_both=fast)
    assert slow.asked and count_calls(left) == 0 < count_calls(kept)


def test_what_is_written_into_a_slice_is_timed_as_an_array() -> None:
    def loop(x: jax.Array, w: jax.Array) -> jax.Array:
        def turn(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            x = jax.nn.softmax(x @ w)
            return x, x * 2 - x.mean(-1, keepdims=True)

        return jax.lax.scan(turn, x, None, length=9)[1]

    graph = import_hlo(lower(loop, normal(64, 64), normal(64, 64)))
    timer = Timer((20.0, 10.0))
    _, module = compile_for_xla(graph, H100, simplified=True, time_both=timer)
    assert b"dynamic-update-slice" not in module and count_calls(module)
    written = ArrayType(DType.F32, (64, 64))
    ours = [call for call in timer.asked if CALL in call.hlo]
    assert any(written in call.results for call in ours)
    assert all(type_.size <= written.size for call in ours for type_ in call.results)


def test_memory_is_not_shared_while_a_kernel_is_timed() -> None:
    timer = Timer((20.0, 10.0))
    graph = import_hlo(lower(lambda x: jax.nn.softmax(x), normal(64, 128)))
    _, module = compile_for_xla(graph, H100, (True,), time_both=timer)
    (ours,) = (call for call in timer.asked if CALL in call.hlo)
    assert aliases_of(module) and not aliases_of(ours.hlo)


def aliases_of(module: bytes) -> list[Any]:
    calls = [node for node in read_part(module) if node.op == "custom-call"]
    return [pair for node in calls for pair in node.attrs.aliases]


# ---- the timer ---------------------------------------------------------------------------------------------------


def alone(fn: Callable[..., Any], *given: Any) -> Alone:
    hlo = lower(fn, *given)
    graph = import_hlo(hlo)
    results = tuple(graph[name].array for name in graph.outputs)
    return Alone(hlo, tuple(graph[name].array for name in graph.parameters), results)


def test_pairs_are_timed_until_the_time_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without sines, whose time differs on a busy CPU.
    monkeypatch.setattr(device_timer, "HOST_SHARE", 2.0)
    timer = DeviceTimer(CPU)
    small = alone(lambda x: jnp.sin(x @ x), normal(256, 256))
    large = alone(lambda x: jnp.sin(x @ x @ x @ x @ x @ x), normal(512, 512))
    first, again = timer([(small, large), (large, small)])
    assert len(first) == len(again) == BATCHES
    assert (
        statistics.median(a / b for a, b in first) < 1 < statistics.median(a / b for a, b in again)
    )
    assert timer.spent_s > 0
    timer.spent_s = 2 * LIMIT_S
    assert timer([(small, large)]) == [[]]


class Queue:
    """A device that works off what the host issues, on a clock of its own."""

    def __init__(self) -> None:
        self.now = self.free = 0.0

    def call(self, host_s: float, device_s: float) -> Callable[[], Any]:
        def issue() -> None:
            self.now += host_s
            self.free = max(self.free, self.now) + device_s

        return issue

    def wait(self, results: Any) -> None:
        self.now = max(self.now, self.free)


@pytest.mark.parametrize(("host_s", "device_s"), [(10e-6, 90e-6), (200e-6, 90e-6), (1e-3, 90e-6)])
def test_the_time_of_the_host_does_not_count(
    host_s: float, device_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue()
    monkeypatch.setattr(device_timer, "wait", queue.wait)
    monkeypatch.setattr(device_timer.time, "perf_counter", lambda: queue.now)
    timer = DeviceTimer(CPU)
    monkeypatch.setattr(DeviceTimer, "find_busy", lambda timer: (queue.call(10e-6, 5e-3), 5e-3))
    both = timer.time_both(queue.call(host_s, device_s), queue.call(host_s, 3 * device_s))
    assert len(both) == BATCHES
    for first, second in both:
        assert first == pytest.approx(device_s * 1e6, rel=0.1)
        assert second == pytest.approx(3 * device_s * 1e6, rel=0.1)


class Shared(Queue):
    """One that another process uses for a time: everything takes four times as long."""

    def __init__(self, begins: float, ends: float) -> None:
        super().__init__()
        self.begins, self.ends = begins, ends

    def call(self, host_s: float, device_s: float) -> Callable[[], Any]:
        def issue() -> None:
            is_shared = self.begins <= max(self.free, self.now) < self.ends
            super(Shared, self).call(host_s, device_s * (4 if is_shared else 1))()

        return issue


@pytest.mark.parametrize(("begins", "ends"), [(0.0, 1.5e-3), (10e-3, 1.0)])
@pytest.mark.parametrize("host_s", [1e-6, 200e-6])
@pytest.mark.parametrize(("ours_s", "is_outrun"), [(80e-6, False), (120e-6, True)])
def test_another_process_on_the_device_changes_no_verdict(
    ours_s: float,
    is_outrun: bool,
    host_s: float,
    begins: float,
    ends: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Shared(begins, ends)
    monkeypatch.setattr(device_timer, "wait", queue.wait)
    monkeypatch.setattr(device_timer.time, "perf_counter", lambda: queue.now)
    monkeypatch.setattr(DeviceTimer, "find_busy", lambda timer: (queue.call(10e-6, 5e-3), 5e-3))
    both = DeviceTimer(CPU).time_both(queue.call(host_s, 100e-6), queue.call(host_s, ours_s))
    assert len(both) >= BATCHES - 1
    assert bool(rivals._judge(both)) == is_outrun


def test_what_keeps_the_device_busy_is_computed() -> None:
    keep_busy, seconds = DeviceTimer(CPU, busy=(8, 1 << 12)).find_busy()
    (sums,) = device_timer.wait(keep_busy())
    np.testing.assert_allclose(sums, np.sin(np.arange(1 << 12)).sum().repeat(8), rtol=1e-3)
    assert seconds > 0


def test_what_cannot_be_run_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceTimer, "time_both", lambda timer, first, second: [(5.0, 6.0)])
    broken, small = Alone(b"no module", (), ()), alone(lambda x: x + 1, normal(64))
    pairs = [(broken, small), (small, broken), (small, small)]
    assert DeviceTimer(CPU)(pairs) == [[], [], [(5.0, 6.0)]]


def test_what_has_no_room_is_not_timed() -> None:
    class Full:
        def memory_stats(self) -> dict[str, int]:
            return {"bytes_limit": 1000, "bytes_in_use": 900}

    one, four = (alone(lambda x: x + 1, normal(size)) for size in (1, 4))
    assert DeviceTimer(Full())._has_room((four, one))
    assert not DeviceTimer(Full())._has_room((four, four))  # 32 bytes each, of 50


@pytest.mark.parametrize("says", [lambda timer, pair: False, lambda timer, pair: 1 / 0])
def test_no_room_and_no_word_of_it_leave_a_kernel(
    says: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeviceTimer, "time_both", lambda timer, first, second: [(5.0, 6.0)])
    small = alone(lambda x: x + 1, normal(64))
    assert DeviceTimer(CPU)([(small, small)]) == [[(5.0, 6.0)]]
    monkeypatch.setattr(DeviceTimer, "_has_room", says)
    assert DeviceTimer(CPU)([(small, small)]) == [[]]


@pytest.mark.parametrize(
    "dtype",
    [
        DType.PRED,
        DType.S8,
        DType.U8,
        DType.S32,
        DType.S64,
        DType.BF16,
        DType.F16,
        DType.F32,
        DType.F64,
        DType.C64,
    ],
)
def test_arguments_differ_from_place_to_place(dtype: DType) -> None:
    made = compile_module(
        write_arguments([ArrayType(dtype, (40, 50)), ArrayType(dtype, ())]), CPU, {}
    )
    array, scalar = (
        shard[0] for shard in made.execute_sharded([]).disassemble_into_single_device_arrays()
    )
    values = np.asarray(array)
    assert values.shape == (40, 50) and scalar.shape == ()
    assert (
        len(np.unique(values.astype(np.complex64))) >= 2
        and np.isfinite(values.astype(np.complex64)).all()
    )
