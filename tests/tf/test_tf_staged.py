"""A TensorFlow that knows only the host on a machine with a GPU: what is copied, what stays, by a stand-in driver."""

from __future__ import annotations

import ctypes
import dataclasses
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import tf_addon  # noqa: E402
from astitch.device.gpu import preset  # noqa: E402
from astitch.errors import EngineUnavailable  # noqa: E402
from astitch.library.cublaslt import WORKSPACE_BYTES, MatmulCall  # noqa: E402
from astitch.program.steps import CudaKernel, KernelStep, LibraryStep, Program, Space  # noqa: E402
from astitch.run.gpu_call import DirectProduct  # noqa: E402
from tests.fake_cupy import Fake, OutOfMemoryError  # noqa: E402
from tests.tf_support import assert_equal  # noqa: E402
from tf_addon import enabling, launch_table, programs  # noqa: E402
from tf_addon import shim_library as rows  # noqa: E402

SOURCE = Path(__file__).parents[1] / "data" / "fake_cuda_driver.cc"


class FakeFunction(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("count", ctypes.c_int32),
        ("table", ctypes.c_int32),
    )


class FakeCuda:
    """The driver, and what it counted."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.fake_cuda_set.argtypes = [ctypes.c_void_p]
        self.library.fake_cuda_own.argtypes = [ctypes.c_uint64, ctypes.c_size_t]
        self.library.fake_cuda_fault.restype = ctypes.c_char_p
        self.library.fake_cuda_counter.restype = ctypes.c_int64
        self.library.fake_cuda_blocks.restype = ctypes.c_int64
        self.library.fake_cublas_handle.restype = ctypes.c_void_p
        self.library.fake_cuda_set(launch_table.emulation_address())
        self.functions: list[FakeFunction] = []
        self.kept: list[Any] = []

    def enqueue(self, stream: int, work: Callable[[], int]) -> None:
        """Does the work, or leaves it to a graph."""
        called = ctypes.CFUNCTYPE(ctypes.c_int)(work)
        self.kept.append(called)
        assert self.library.fake_cuda_enqueue(ctypes.c_void_p(stream), called) == 0

    @property
    def graphs(self) -> tuple[int, int]:
        """Made and launched."""
        return self.count(4), self.count(5)

    def count(self, which: int) -> int:
        return int(self.library.fake_cuda_counter(which))

    @property
    def to_device(self) -> int:
        return self.count(0)

    @property
    def to_host(self) -> int:
        return self.count(1)


class FakeCudaRunner(launch_table.HostRunner):
    """Kernels through the stand-in driver; the other steps as on the host, whose memory is the device's here."""

    kind = rows.CUDA_KERNEL
    staged = True
    stream, capture_stream = 64, 128
    direct = False
    """Are products told to the shim, once they ran?"""

    product_stream = stream

    def __init__(self, program: Program, cuda: FakeCuda) -> None:
        super().__init__(program)
        self._cuda = cuda
        self.steps_run = 0
        self._counts = {
            step.kernel: len(step.arguments)
            for step in program.steps
            if isinstance(step, KernelStep)
        }

    def constant_address(self, index: int) -> int:
        constant = self._constants[index]
        self._cuda.library.fake_cuda_own(constant.ctypes.data, max(constant.nbytes, 1))
        return int(constant.ctypes.data)

    def can_capture(self, number: int) -> bool:
        return isinstance(self._program.steps[number], LibraryStep)

    def run_step(self, number: int, addresses: Any, stream: int) -> None:
        allowed = (self.stream, self.capture_stream) if self.can_capture(number) else (self.stream,)
        assert stream in allowed
        given = list(addresses[: len(self._program.buffers)])
        run = super().run_step
        self.steps_run += 1

        def work() -> int:
            run(number, given, stream)
            return 0

        self._cuda.enqueue(stream, work)

    def find_product(self, number: int, stream: int) -> rows.ProductRow | None:
        step = self._program.steps[number]
        if not self.direct or not isinstance(step, LibraryStep):
            return None
        assert stream == self.stream
        (lhs, rhs), (result,) = step.operands, step.results
        names = (rhs.buffer, lhs.buffer, result.buffer)
        run = super().run_step

        def multiply(*arrays: int) -> int:
            given = [0] * len(self._program.buffers)
            for name, address in zip(names, arrays, strict=True):
                given[self._numbers[name]] = address
            run(number, given, stream)
            return 0

        operation = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 3)(multiply)
        sizes = (ctypes.c_int64 * 3)(rhs.type.bytes, lhs.type.bytes, result.type.bytes)
        numbers = (ctypes.c_float * 2)(1, 0)
        workspace = ctypes.create_string_buffer(512)
        self._cuda.library.fake_cuda_own(ctypes.addressof(workspace), 512)
        self._cuda.kept += [operation, sizes, numbers, workspace]
        return rows.ProductRow(
            function=ctypes.cast(self._cuda.library.fake_cublas_matmul, ctypes.c_void_p).value,
            handle=self._cuda.library.fake_cublas_handle(),
            operation=ctypes.cast(operation, ctypes.c_void_p).value,
            one=ctypes.addressof(numbers),
            a=1,
            b=2,
            zero=ctypes.addressof(numbers) + 4,
            result=3,
            algorithm=ctypes.addressof(sizes),
            workspace=ctypes.addressof(workspace),
            workspace_bytes=512,
            stream=self.product_stream,
            a_buffer=self._numbers[names[0]],
            b_buffer=self._numbers[names[1]],
            result_buffer=self._numbers[names[2]],
        )

    def function_address(self, kernel: CudaKernel) -> int:
        address = super().function_address(kernel)
        function = FakeFunction(address, self._counts[kernel], kernel.pointer_table)
        self._cuda.functions.append(function)
        return ctypes.addressof(function)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeCuda:
    path = tmp_path_factory.mktemp("driver") / "fake_cuda.so"
    subprocess.run(
        ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", str(SOURCE), "-o", str(path)], check=True
    )
    return FakeCuda(path)


@pytest.fixture
def cuda(driver: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """tf_addon finds a GPU that TensorFlow does not know."""
    place = programs.Place(gpu=99, staged=True)
    monkeypatch.setattr(programs, "choose_place", lambda *_: place)
    monkeypatch.setattr(programs, "make_runner", lambda program, _: FakeCudaRunner(program, driver))
    monkeypatch.setattr(programs, "find_cuda", lambda: launch_table.find_driver(driver.library))
    monkeypatch.setattr(programs, "from_device", lambda _: preset("host"))
    driver.library.fake_cuda_reset()
    tf_addon.report(reset=True)
    with tf_addon.enabled():
        yield driver
    found = tf_addon.report()
    assert found.fallbacks == 0, f"{found}\n{driver.library.fake_cuda_fault()!r}"
    assert driver.count(2) > 0


def test_where_programs_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "choose_launcher", lambda engine: engine or "executor")
    monkeypatch.setattr(programs, "current_gpu", lambda: 3)
    assert programs.choose_place(-1, None) == programs.Place(3, staged=True)
    assert programs.choose_place(-1, "host") == programs.Place(None, staged=False)
    assert programs.choose_place(1, None) == programs.Place(1, staged=False)
    with pytest.raises(EngineUnavailable, match="on GPU 1"):
        programs.choose_place(1, "host")


@pytest.mark.parametrize("status", [0, 14, None])
def test_a_cublas_of_tensorflow_s_without_libraries_is_told(
    status: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wheel for GPUs has functions of these names, which give 14 where there is no cuBLAS."""
    found = SimpleNamespace(**({} if status is None else {"cublasGetProperty": lambda *_: status}))
    monkeypatch.setattr(programs, "choose_launcher", lambda engine: "executor")
    monkeypatch.setattr(programs, "current_gpu", lambda: 0)
    monkeypatch.setattr(enabling, "count_gpus", lambda: 1)
    monkeypatch.setattr(programs.ctypes, "CDLL", lambda name: found)
    if not status:
        assert programs.choose_place(-1, None) == programs.Place(0, staged=True)
        return
    for choose in (lambda: programs.choose_place(0, None), lambda: tf_addon.enable()):
        with pytest.raises(EngineUnavailable, match="finds no CUDA libraries"):
            choose()


def test_tensors_are_staged_and_come_back(cuda: FakeCuda) -> None:
    @tf.function(jit_compile=True)
    def soften(x: Any, y: Any) -> Any:
        return tf.nn.softmax(tf.sin(x) + y), x, tf.matmul(x, y, transpose_b=True)

    x, y = tf.random.stateless_normal([4, 8], [1, 2]), tf.random.stateless_normal([4, 8], [3, 4])
    result = soften(x, y)
    assert cuda.to_device == 2 * 128
    assert cuda.to_host == 2 * 128 + 64
    assert_equal(result, (tf.nn.softmax(tf.sin(x) + y), x, tf.matmul(x, y, transpose_b=True)))


def test_variables_stay_on_the_gpu_between_calls(cuda: FakeCuda) -> None:
    weight = tf.Variable(np.linspace(-1, 1, 64).reshape(8, 8).astype("f"))
    offset = tf.Variable(tf.ones([8]))

    @tf.function(jit_compile=True)
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.tanh(x @ weight + offset) ** 2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    x = tf.random.stateless_normal([4, 8], [1, 2])
    losses = [step(x)]
    blocks = cuda.library.fake_cuda_blocks()
    for _ in range(3):
        cuda.library.fake_cuda_reset()
        losses.append(step(x))
        # x goes, the loss comes; the weights do neither.
        assert (cuda.to_device, cuda.to_host) == (128, 4)
    assert cuda.library.fake_cuda_blocks() - blocks <= 1
    # TensorFlow's own ops read and write them all the same.
    kept = weight.numpy()
    weight.assign_add(tf.ones([8, 8]))
    weight.assign(weight - 1.0)
    np.testing.assert_allclose(weight.numpy(), kept, atol=1e-6)
    losses.append(step(x))
    tf_addon.disable()
    weight.assign(np.linspace(-1, 1, 64).reshape(8, 8).astype("f"))
    assert_equal(losses, [step(x) for _ in range(5)])


def count_twice(weight: Any, x: Any) -> list[float]:
    @tf.function(jit_compile=True)
    def step(x: Any) -> Any:
        weight.assign_add(x)
        return tf.reduce_sum(weight)

    return [float(step(x)) for _ in range(2)]


def test_variables_travel_where_managed_memory_is_short(cuda: FakeCuda) -> None:
    weight, x = tf.Variable(tf.zeros([1000])), tf.ones([1000])
    cuda.library.fake_cuda_leave(ctypes.c_size_t(2**26))  # a 16th of all, and not a byte more
    try:
        assert count_twice(weight, x) == [1000.0, 2000.0]
    finally:
        cuda.library.fake_cuda_leave(ctypes.c_size_t(2**30))
    assert cuda.count(3) == 0
    assert (cuda.to_device, cuda.to_host) == (2 * 2 * 4000, 2 * (4000 + 4))


def test_variables_travel_where_the_host_cannot_share_memory(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = enabling.takeover.install()
    unmanaged = launch_table.find_driver(cuda.library, managed=False)
    monkeypatch.setattr(
        programs, "find_cuda", lambda: unmanaged
    )  # the process's first program asks
    shim.set_cuda(unmanaged)
    try:
        assert count_twice(tf.Variable(tf.zeros([1001])), tf.ones([1001])) == [1001.0, 2002.0]
    finally:
        shim.set_cuda(launch_table.find_driver(cuda.library))
    assert cuda.count(3) == 0


@pytest.mark.parametrize(("shares", "managed"), [((True, True), True), ((True, False), False)])
def test_managed_memory_is_for_gpus_that_all_share_it(
    shares: tuple[bool, ...], managed: bool, driver: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    monkeypatch.setattr(programs.ctypes, "CDLL", lambda name: driver.library)
    monkeypatch.setattr(programs, "count_gpus", lambda: len(shares))
    monkeypatch.setattr(programs, "shares_memory", shares.__getitem__)
    monkeypatch.setattr(programs, "keep_scratch", lambda library, gpu: kept.append(gpu))
    assert bool(programs.find_cuda().allocate_managed) == managed
    assert kept == [0, 1]


def test_a_table_of_pointers(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """More arrays than a launch takes."""
    monkeypatch.setattr("astitch.kernel.lower.MAX_POINTERS", 8)
    many = [tf.Variable(tf.fill([3], float(i))) for i in range(10)]

    @tf.function(jit_compile=True)
    def clip() -> Any:
        norm = tf.sqrt(tf.add_n([tf.reduce_sum(v**2) for v in many]))
        for v in many:
            v.assign(v / norm)
        return norm

    first = float(clip())
    assert any(function.table for function in cuda.functions)
    assert first == pytest.approx(float(np.sqrt(sum(3 * i * i for i in range(10)))), rel=1e-5)
    assert float(clip()) == pytest.approx(1.0, rel=1e-5)


def test_the_words_of_all_barriers_are_cleared_at_once() -> None:
    """They lie behind each other, and each part would be a call of the driver's."""

    @tf.function(jit_compile=True)
    def norms(x: Any, w: Any) -> Any:
        for _ in range(3):
            x = tf.sin(x / tf.reduce_sum(x * x)) @ w
        return x

    x = tf.zeros([512, 512])
    hlo = norms.experimental_get_compiler_ir(x, x)(stage="hlo_serialized")
    program = programs.compile_for(hlo, preset("h100")).program
    places = [b for b in program.buffers.values() if b.space is Space.BARRIER]
    (zero,) = launch_table._find_zeros(program)
    assert len(places) > 1
    assert zero.offset == min(b.offset for b in places)
    assert zero.bytes == sum(b.type.bytes for b in places)
    # What lies between two of them stays as it is.
    first, *_ = sorted(places, key=lambda b: b.offset)
    apart = {**program.buffers, first.name: dataclasses.replace(first, offset=1 << 20)}
    assert len(launch_table._find_zeros(dataclasses.replace(program, buffers=apart))) == 2


def test_a_step_gets_the_addresses_of_its_own_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking up all of a program's would cost each product more than its launch."""
    calls: list[tuple[int, dict[str, int], int]] = []
    chosen: MatmulCall | None = None

    class Executor:
        def __init__(self, *_: Any) -> None:
            pass

        def run_step(
            self, number: int, addresses: dict[str, int], stream: int, *, captured: bool
        ) -> None:
            assert captured == (stream == 5)
            calls.append((number, addresses, stream))

        def find_product(self, number: int) -> DirectProduct | None:
            step = program.steps[number]
            if not isinstance(step, LibraryStep):
                return None
            (lhs, rhs), (result,) = step.operands, step.results
            matmul: Any = SimpleNamespace(find_call=lambda: chosen)
            return DirectProduct(matmul, lhs.buffer, rhs.buffer, result.buffer)

    monkeypatch.setattr(launch_table, "GpuExecutor", Executor)
    streams = SimpleNamespace(ptr=2), SimpleNamespace(ptr=5)
    monkeypatch.setattr(launch_table, "open_streams", lambda _: (1, *streams))
    products = tf.function(lambda x, y: tf.sin(x @ y) @ y, jit_compile=True)
    x = tf.zeros([128, 128])
    hlo = products.experimental_get_compiler_ir(x, x)(stage="hlo_serialized")
    program = programs.compile_for(hlo, preset("h100")).program
    runner = launch_table.CudaRunner(program, 0, staged=True)
    places = {name: 100 + number for number, name in enumerate(program.buffers)}
    addresses = (ctypes.c_void_p * len(places))(*places.values())
    for number, step in enumerate(program.steps):
        if isinstance(step, LibraryStep):
            used = {view.buffer for view in (*step.operands, *step.results)}
            for stream in (3, 5):
                runner.run_step(number, addresses, stream)
                assert calls.pop() == (number, {name: places[name] for name in used}, stream)
    assert program.kernels
    first, second = (n for n, s in enumerate(program.steps) if isinstance(s, LibraryStep))

    # The product's row, once its algorithm is chosen.
    memory = {7: 1000}
    monkeypatch.setattr(launch_table, "find_workspace", lambda _, stream: memory.get(stream))
    assert runner.find_product(first, 7) is None
    chosen = MatmulCall(*range(20, 29), workspace_bytes=512)
    assert runner.find_product(first, 5) is None, "the stream captures"
    row = runner.find_product(first, 7)
    assert row is not None
    assert [getattr(row, f.name) for f in dataclasses.fields(chosen)] == [*range(20, 29), 512]
    assert (row.workspace, row.stream) == (1000, 7)
    step = program.steps[first]
    assert isinstance(step, LibraryStep)
    used = [step.operands[1], step.operands[0], step.results[0]]
    numbers = [list(program.buffers).index(view.buffer) for view in used]
    assert [row.a_buffer, row.b_buffer, row.result_buffer] == numbers
    assert runner.find_product(first, 7) is None, "it is told once"
    assert runner.find_product(second, 8) is None, "there is no room"
    kernel = next(n for n, s in enumerate(program.steps) if isinstance(s, KernelStep))
    assert runner.find_product(kernel, 7) is None


# ---- CUDA graphs -------------------------------------------------------------------------------------------------


class Network:
    """Two layers, trained: products between kernels."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.weights = [
            tf.Variable(rng.normal(size=(16, 16)).astype("f") / 4, name=f"w{i}") for i in range(2)
        ]
        self.step = tf.function(self.train, jit_compile=True)

    def train(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = x
            for weight in self.weights:
                y = tf.tanh(tf.sin(y) @ weight)
            loss = tf.reduce_mean((y - x) ** 2)
        for weight, gradient in zip(self.weights, tape.gradient(loss, self.weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss


X = np.random.default_rng(1).normal(size=(6, 16)).astype("f")
"""Products of fewer rows would be written out."""


def run_network(calls: int, feeds: Callable[[int], Any]) -> list[np.ndarray]:
    network = Network()
    losses = [float(network.step(tf.constant(feeds(n)))) for n in range(calls)]
    return [np.array(losses), *(weight.numpy() for weight in network.weights)]


def check_graphs(cuda: FakeCuda, x: np.ndarray) -> None:
    ours = run_network(20, lambda n: x + n / 10)
    made, launched = cuda.graphs
    # Two sets of memory take turns for the variables; orders of them repeat too.
    assert 1 <= made <= 8 and launched >= 8, cuda.graphs
    assert enabling.takeover.install().count_graphs()[0] >= made
    tf_addon.disable()
    assert_equal(ours, run_network(20, lambda n: x + n / 10), rtol=1e-4, atol=1e-5)


def test_calls_with_the_same_addresses_are_graphs(cuda: FakeCuda) -> None:
    check_graphs(cuda, X)


def test_a_refused_capture_is_no_failure(cuda: FakeCuda) -> None:
    cuda.library.fake_cuda_refuse(1)
    try:
        ours = run_network(10, lambda n: X[:2] * (n + 2))
    finally:
        cuda.library.fake_cuda_refuse(0)
    assert cuda.graphs == (0, 0)
    tf_addon.disable()
    assert_equal(ours, run_network(10, lambda n: X[:2] * (n + 2)), rtol=1e-4, atol=1e-5)


def test_graphs_in_several_threads(cuda: FakeCuda) -> None:
    square = tf.function(lambda x, w: tf.sin(tf.sin(tf.sin(x) @ w) @ w) @ w, jit_compile=True)
    w = tf.constant(np.eye(16, dtype="f")[::-1].copy())
    wanted = [np.sin(np.sin(np.sin(X * n) @ w.numpy()) @ w.numpy()) @ w.numpy() for n in range(4)]
    square(tf.constant(X), w)

    def work(n: int) -> list[Any]:
        return [square(tf.constant(X * n), w).numpy() for _ in range(10)]

    with ThreadPoolExecutor(4) as pool:
        for n, found in enumerate(pool.map(work, range(4))):
            for result in found:
                np.testing.assert_allclose(result, wanted[n], atol=1e-5)
    assert cuda.graphs[1] > 0


def test_tables_of_pointers_in_graphs(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astitch.kernel.lower.MAX_POINTERS", 4)
    check_graphs(cuda, X[:5])
    assert any(function.table for function in cuda.functions)


# ---- products ----------------------------------------------------------------------------------------------------


@pytest.fixture
def runners(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> list[FakeCudaRunner]:
    """Those of the programs that are made, whose products the shim launches once they ran."""
    made: list[FakeCudaRunner] = []

    def make_runner(program: Program, _: Any) -> FakeCudaRunner:
        made.append(FakeCudaRunner(program, cuda))
        return made[-1]

    monkeypatch.setattr(FakeCudaRunner, "direct", True)
    monkeypatch.setattr(programs, "make_runner", make_runner)
    return made


@pytest.mark.parametrize("graphs", [False, True])
def test_python_launches_a_product_once(
    graphs: bool,
    cuda: FakeCuda,
    runners: list[FakeCudaRunner],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And no more than that, whatever addresses come then; what it does is what Python did."""
    if not graphs:
        monkeypatch.setattr(FakeCudaRunner, "capture_stream", 0)
    before = enabling.takeover.install().count_products()
    x = np.concatenate([X, X])[: 8 + graphs]  # a module that no other test makes
    ours = run_network(20, lambda n: x * (n + 1) / 4)
    (runner,) = runners
    products = sum(isinstance(step, LibraryStep) for step in runner._program.steps)
    assert runner.steps_run == products > 2
    launched = enabling.takeover.install().count_products() - before
    assert launched == cuda.count(6) > 0
    assert (launched == 19 * products) == (cuda.graphs == (0, 0)) == (not graphs)
    tf_addon.disable()
    assert_equal(ours, run_network(20, lambda n: x * (n + 1) / 4), rtol=1e-4, atol=1e-5)


def test_a_product_of_another_stream_stays_python_s(
    cuda: FakeCuda, runners: list[FakeCudaRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workspace is not in the order of this one."""
    monkeypatch.setattr(FakeCudaRunner, "product_stream", 65)
    multiply = tf.function(lambda x, y: tf.sin(x) @ y, jit_compile=True)
    x, y = tf.constant(np.concatenate([X, X])[:7]), tf.ones([16, 16])
    for _ in range(2):
        np.testing.assert_allclose(multiply(x, y), np.sin(x) @ np.ones((16, 16)), atol=1e-5)
    assert (runners[0].steps_run, cuda.count(6)) == (2, 0)


def test_one_workspace_for_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that ask at once get the same memory, which lives on; without room there is none, until there is."""
    fake, asked = Fake(), list[int]()
    room = [False]

    def alloc(size: int) -> Any:
        asked.append(size)
        if not room[0]:
            raise OutOfMemoryError(1, 2, 3)
        time.sleep(0.01)
        return SimpleNamespace(ptr=len(asked))

    monkeypatch.setattr(fake.cuda, "alloc", alloc)
    monkeypatch.setattr(launch_table, "import_cupy", lambda: fake)
    monkeypatch.setattr(launch_table, "_workspaces", {})
    assert launch_table.find_workspace(0, 1) is None
    room[0] = True
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: launch_table.find_workspace(0, 1), range(8))) == {2}
    assert launch_table.find_workspace(0, 9) == 3
    assert asked == [WORKSPACE_BYTES] * 3


def test_products_of_threads(cuda: FakeCuda, runners: list[FakeCudaRunner]) -> None:
    square = tf.function(lambda x, w: tf.sin(tf.sin(x) @ w) @ w, jit_compile=True)
    w = tf.constant(np.eye(16, dtype="f")[::-1].copy())
    feeds = [tf.constant(X[:5] * n) for n in range(4)]
    wanted = [np.sin(np.sin(x.numpy()) @ w.numpy()) @ w.numpy() for x in feeds]
    with ThreadPoolExecutor(4) as pool:
        for n, found in enumerate(pool.map(lambda x: [square(x, w) for _ in range(20)], feeds)):
            for result in found:
                np.testing.assert_allclose(result.numpy(), wanted[n], atol=1e-5)
    assert cuda.count(6) > 0
    assert runners[0].steps_run < 4 * 20 * 2


def test_a_product_that_fails_is_told(cuda: FakeCuda, runners: list[FakeCudaRunner]) -> None:
    multiply = tf.function(lambda x, y: tf.sin(x) @ y, jit_compile=True)
    x, y = tf.zeros([6, 16]), tf.zeros([16, 16])
    multiply(x, y)
    cuda.library.fake_cublas_fail(1)
    try:
        with pytest.raises(tf.errors.InternalError, match="a product failed with cuBLAS error 13"):
            multiply(x, y)
    finally:
        cuda.library.fake_cublas_fail(0)
    assert float(tf.reduce_sum(multiply(x, y))) == 0.0
