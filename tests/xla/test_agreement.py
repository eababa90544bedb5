"""All processes of a program compile the same module, whatever each of them made of it."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from ahead_of_time import needs_hook

from astitch.device.gpu import preset
from astitch.hlo import schema
from astitch.xla.agreement import (
    Agreed,
    AgreementWarning,
    Group,
    agree,
    find_group,
    key_of,
)

H100 = preset("h100")


class SharedStore:
    """JAX's key-value store for threads in place of processes."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def key_value_set_bytes(self, key: str, value: bytes, allow_overwrite: bool = False) -> None:
        with self._lock:
            if key in self.values and not allow_overwrite:
                raise RuntimeError(f"ALREADY_EXISTS: key {key} already exists.")
            self.values[key] = value

    def key_value_try_get_bytes(self, key: str) -> bytes:
        with self._lock:
            if key not in self.values:
                raise RuntimeError(f"NOT_FOUND: Config key {key} not found.")
            return self.values[key]


def module(number: int = 1, op: bytes = b"add", name: bytes = b"jit_f") -> Any:
    """An HloModuleProto of one op.  number: as what the process counts it."""
    made = schema.HloModuleProto(name=name, id=number)
    made.computations.add(name=b"main", id=3).instructions.add(name=b"a", opcode=op, id=5)
    return made


def stitched(kernel: bytes, number: int = 1) -> bytes:
    return bytes(module(number, kernel).SerializeToString())


def computed(data: bytes | None) -> bytes | None:
    """A module without the number, which is the process's own."""
    if data is None:
        return None
    proto = schema.HloModuleProto.FromString(data)
    proto.ClearField("id")
    return bytes(proto.SerializeToString(deterministic=True))


@dataclass(frozen=True)
class Device:
    process_index: int


def take_part(store: Any, process: int, own: bytes | None, **more: Any) -> Agreed:
    """What a process ends with; its warnings are dropped."""
    more.setdefault("handed", module(number=10 + process))
    group = Group(process, store, longest_wait_s=more.pop("longest_wait_s", 5.0))
    return agree(own=own, gpu=more.pop("gpu", H100), group=group, **more)


OUTCOMES = {"same": b"kernel_1", "other": b"kernel_2", "failed": None}
pytestmark = pytest.mark.filterwarnings("ignore::astitch.xla.agreement.AgreementWarning")


def outcome(kind: str, process: int) -> bytes | None:
    kernel = OUTCOMES[kind]
    return None if kernel is None else stitched(kernel, 10 + process)


@pytest.mark.parametrize("kinds", list(itertools.product(OUTCOMES, repeat=3)), ids="-".join)
def test_one_after_the_other_they_take_what_the_first_made(kinds):
    store = SharedStore()
    ends = [take_part(store, p, outcome(kind, p)) for p, kind in enumerate(kinds)]
    assert {computed(end.module) for end in ends} == {computed(outcome(kinds[0], 0))}
    for process, (kind, end) in enumerate(zip(kinds, ends, strict=True)):
        assert bool(end.reason) == (kind != kinds[0])
        if end.module is not None:
            assert schema.HloModuleProto.FromString(end.module).id == 10 + process
        if kind == kinds[0]:
            assert end.module == outcome(kind, process)


@pytest.mark.parametrize("kinds", list(itertools.product(OUTCOMES, repeat=3)), ids="-".join)
def test_at_once_they_end_equal(kinds):
    for _ in range(5):
        store, gate = SharedStore(), threading.Barrier(3)

        def run(process, store=store, gate=gate):
            gate.wait()
            return take_part(store, process, outcome(kinds[process], process))

        with ThreadPoolExecutor(3) as pool:
            ends = list(pool.map(run, range(3)))
        (end,) = {computed(end.module) for end in ends}
        assert end in {computed(outcome(kind, 0)) for kind in kinds}


def test_nobody_waits_for_a_process_that_does_not_compile():
    """It has the program in its cache, or another one compiles for it; when it comes later it takes the same."""
    store = SharedStore()
    assert take_part(store, 1, stitched(b"kernel_1"), longest_wait_s=0.0).reason == ""
    late = take_part(store, 0, None, longest_wait_s=0.0)
    assert computed(late.module) == computed(stitched(b"kernel_1"))


def test_a_module_that_comes_after_the_decision_is_waited_for():
    """The first process is between its two writes."""
    store = SharedStore()
    take_part(store, 0, stitched(b"kernel_1"))
    (key,) = (key for key in store.values if key.endswith("/module"))
    data = store.values.pop(key)
    timer = threading.Timer(0.2, store.values.__setitem__, (key, data))
    timer.start()
    assert computed(take_part(store, 1, None).module) == computed(stitched(b"kernel_1"))
    timer.join()


@pytest.mark.filterwarnings("default")
def test_a_module_that_never_comes_leaves_it_to_xla_and_says_so():
    store = SharedStore()
    take_part(store, 0, stitched(b"kernel_1"))
    (key,) = (key for key in store.values if key.endswith("/module"))
    del store.values[key]
    said = "jit_f: the processes could not agree: process 0 decided and sent no module in 0 s; XLA computes all of it"
    with pytest.warns(AgreementWarning, match=said):
        end = take_part(store, 1, stitched(b"kernel_2"), longest_wait_s=0.0)
    assert end.module is None
    same = take_part(store, 2, stitched(b"kernel_1"), longest_wait_s=0.0)
    assert same == Agreed(stitched(b"kernel_1")), "who made the same needs no module"


@pytest.mark.filterwarnings("default")
def test_a_damaged_module_is_not_taken():
    store = SharedStore()
    take_part(store, 0, stitched(b"kernel_1"))
    (key,) = (key for key in store.values if key.endswith("/module"))
    other = SharedStore()
    take_part(other, 0, stitched(b"kernel_2"))
    store.values[key] = other.values[key]
    with pytest.warns(AgreementWarning, match="process 0 sent another module than it decided for"):
        assert take_part(store, 1, None, longest_wait_s=0.0).module is None


@pytest.mark.filterwarnings("default")
def test_who_differs_and_why_is_said():
    store = SharedStore()
    take_part(store, 0, None, reason="no NVRTC")
    with pytest.warns(
        AgreementWarning, match=r"jit_f: process 0 leaves it to XLA \(no NVRTC\); XLA computes all"
    ):
        take_part(store, 1, stitched(b"kernel_1"))
    store = SharedStore()
    take_part(store, 0, stitched(b"kernel_1"))
    said = r"jit_f: process 0 decided for another version than process 1 made \(no NVRTC\); its module is taken"
    with pytest.warns(AgreementWarning, match=said):
        take_part(store, 1, None, reason="no NVRTC")


@pytest.mark.filterwarnings("default")
def test_other_settings_are_said_and_the_first_process_decides():
    store = SharedStore()
    first = take_part(store, 0, stitched(b"kernel_1"), settings="tune=True")
    said = r"with other settings of astitch \(there tune=True, here tune=False; give all"
    with pytest.warns(AgreementWarning, match=said):
        second = take_part(store, 1, stitched(b"kernel_2", 11), settings="tune=False")
    assert computed(second.module) == computed(first.module)


@pytest.mark.filterwarnings("error")
def test_a_module_is_decided_anew_for_other_settings():
    """As where blocks of a program have settings of their own, the same on all processes."""
    store = SharedStore()
    for settings, kernel in [("a", b"kernel_1"), ("b", b"kernel_2"), ("a", b"kernel_1")]:
        for process in (0, 1):
            own = stitched(kernel, 10 + process)
            assert take_part(store, process, own, settings=settings) == Agreed(own)


class BrokenStore(SharedStore):
    def key_value_set_bytes(self, key: str, value: bytes, allow_overwrite: bool = False) -> None:
        raise RuntimeError("UNAVAILABLE: failed to connect")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("own", [stitched(b"kernel_1"), None], ids=["stitched", "plain"])
def test_a_store_that_fails_leaves_it_to_xla(own):
    with pytest.warns(AgreementWarning, match="UNAVAILABLE: failed to connect"):
        assert take_part(BrokenStore(), 0, own).module is None


class LosesAnswers(SharedStore):
    """The connection breaks behind a write, and the client writes again."""

    def key_value_set_bytes(self, key: str, value: bytes, allow_overwrite: bool = False) -> None:
        super().key_value_set_bytes(key, value, allow_overwrite)
        super().key_value_set_bytes(key, value, allow_overwrite)


def test_a_decision_written_twice_is_ones_own():
    store = LosesAnswers()
    assert take_part(store, 0, stitched(b"kernel_1")) == Agreed(stitched(b"kernel_1"))
    assert computed(take_part(store, 1, None).module) == computed(stitched(b"kernel_1"))


@pytest.mark.parametrize("method", ["key_value_set_bytes", "key_value_try_get_bytes"])
def test_an_interrupt_goes_through(method, monkeypatch):
    store = SharedStore()
    take_part(store, 0, stitched(b"kernel_1"))

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, method, interrupt)
    with pytest.raises(KeyboardInterrupt):
        take_part(store, 1, None)


def test_programs_on_devices_of_one_process_ask_nobody():
    own = stitched(b"kernel_1")
    assert take_part(BrokenStore(), 1, own, devices=[Device(1), Device(1)]) == Agreed(own)
    store = SharedStore()
    take_part(store, 1, own, devices=[Device(0), Device(1)])
    assert store.values


def test_a_program_of_one_process_has_no_group():
    assert find_group() is None
    assert agree(module(), stitched(b"kernel_1"), H100) == Agreed(stitched(b"kernel_1"))


def test_what_processes_number_or_order_as_they_like_is_in_no_key():
    one, other = module(1), module(7)
    for made, order in ((one, (b"a", b"b")), (other, (b"b", b"a"))):
        instruction = made.computations[0].instructions[0]
        for key in order:
            instruction.frontend_attributes.map.add(key=key, value=b"v" + key)
    one.stack_frame_index.file_names.append(b"/home/a/train.py")
    other.stack_frame_index.file_names.append(b"/home/b/train.py")
    assert key_of(one, H100) == key_of(other, H100)
    instruction.frontend_attributes.map[0].value = b"another"
    assert key_of(one, H100) != key_of(other, H100)
    assert key_of(module(op=b"multiply"), H100) != key_of(module(), H100)


def test_gpus_that_cannot_run_each_others_kernels_do_not_meet():
    assert key_of(module(), replace(H100, sms=114)) != key_of(module(), H100)
    assert key_of(module(), preset("a100")) != key_of(module(), H100)
    assert key_of(module(), replace(H100, bandwidth_gbs=3000.0)) == key_of(module(), H100)


# ---- two real processes --------------------------------------------------------------------------------------------

PROCESS = """
import os, sys, warnings
from pathlib import Path

process, port, folder, fails = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4]
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

jax.distributed.initialize(f"localhost:{port}", 2, process)
jax.config.update("jax_enable_compilation_cache", False)
from ahead_of_time import compile_ahead, hooked
from jax.experimental import topologies
from astitch.device.gpu import preset
from astitch.profiling.xla_ahead import write_target_config
from astitch.xla import hook
from astitch.xla.agreement import AgreementWarning, agree, find_group

for number in range(process):  # what only one process compiles does not keep them from meeting
    jax.jit(lambda x: x + number)(1.0)
os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
topology = topologies.get_topology_desc(
    platform="cuda", target_config=write_target_config(preset("h100")), topology="1x2x1"
)
assert [device.process_index for device in topology.devices] == [0, 1]
mesh = Mesh(np.array(topology.devices), ("x",))

def array(shape, *spec):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))

def norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

def step(x, w):
    p = jax.nn.softmax(norm(x) @ w)
    return jax.lax.with_sharding_constraint(norm(p).sum(0), NamedSharding(mesh, P()))

with hooked(stitches=False) as seen:
    compile_ahead(step, array((64, 256), "x"), array((256, 512)))
(data,) = seen.modules
module = hook.read_module(data)
assert any(i.opcode.startswith(b"all-reduce") for c in module.computations for i in c.instructions)
assert find_group().process == process
client = find_group().store
# The processes decide in turn, so that the test knows who is first.
for turn in range(2):
    if turn == process:
        own, reason = None, "a fault"
        if fails != str(process):
            own, reason = hook.stitch_module(module, preset("h100")).module, ""
            assert own is not None
            (folder / f"own_{process}").write_bytes(own)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            agreed = agree(module, own, preset("h100"), reason=reason, devices=topology.devices)
        (folder / f"module_{process}").write_bytes(agreed.module or b"plain")
        words = [str(w.message) for w in said if w.category is AgreementWarning]
        (folder / f"said_{process}").write_text("\\n".join(words))
    client.wait_at_barrier(f"turn {turn}", 120_000)
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


def run_two(folder: Path, fails: str) -> list[bytes | None]:
    """What two processes end with.  fails: the number of the one that plans nothing."""
    port = free_port()
    root = Path(__file__).parents[2]
    running = []
    for process in range(2):
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": f"{root}:{root / 'tests'}",
            "PYTHONHASHSEED": str(17 + process),
            "ASTITCH_CACHE_DIR": str(folder / f"cache_{process}"),
        }
        command = [sys.executable, "-c", PROCESS, str(process), str(port), str(folder), fails]
        running.append(
            subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        )
    try:
        for one in running:
            _, said = one.communicate(timeout=240)
            assert one.returncode == 0, said
    finally:
        for one in running:
            one.kill()
    ends = [(folder / f"module_{process}").read_bytes() for process in range(2)]
    return [None if end == b"plain" else computed(end) for end in ends]


@needs_hook
@pytest.mark.slow
@pytest.mark.parametrize("fails", ["0", "1", "none"])
def test_two_processes_end_with_equal_modules(tmp_path, fails):
    first, second = run_two(tmp_path, fails)
    assert first == second
    said = [(tmp_path / f"said_{process}").read_text() for process in range(2)]
    if fails == "0":
        assert first is None
        assert "process 0 leaves it to XLA (a fault); XLA computes all of it here" in said[1]
    elif fails == "1":
        assert first == computed((tmp_path / "own_0").read_bytes())
        assert "process 0 decided for another version than process 1 made (a fault)" in said[1]
    else:
        assert said == ["", ""]
        own = [(tmp_path / f"own_{process}").read_bytes() for process in range(2)]
        assert computed(own[0]) == computed(own[1]) == first
