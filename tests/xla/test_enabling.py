"""astitch.enable and its kin: what is stitched when, what a fault costs, and how JAX's caches tell programs apart."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ahead_of_time import GPU, devices, needs_hook

import astitch
from astitch.api import enabling, transformation
from astitch.api.loop_graphs import FEWEST, FLAG
from astitch.errors import InvalidOption, UnsupportedOp
from astitch.faults import FaultWarning
from astitch.show.share import LittleStitchedWarning
from astitch.xla import kept_stitchings
from astitch.xla.module_cache import cache_at

pytestmark = needs_hook

PTX = "xla.gpu.ptx"


@pytest.fixture(autouse=True)
def leave_it_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    import jax

    transformation.journal.clear()
    monkeypatch.setattr(kept_stitchings, "open_cache", lambda: cache_at(tmp_path / "modules"))
    yield
    if enabling._has_seams():
        enabling.context().set_global(None)
    jax.clear_caches()


def shape(*extents: int) -> Any:
    import jax
    import numpy as np
    from jax.sharding import SingleDeviceSharding

    kind: Any = jax.ShapeDtypeStruct
    return kind(extents, np.float32, sharding=SingleDeviceSharding(devices()[0]))


def layer_norm(x: Any, g: Any, b: Any) -> Any:
    import jax

    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * g + b


ARGUMENTS = (256, 512), (512,), (512,)


def count(fn: Any, *extents: tuple[int, ...]) -> int:
    """Kernels in what JAX compiles, ahead of time for a GPU."""
    import jax

    jitted = fn if hasattr(fn, "trace") else jax.jit(fn)
    traced = jitted.trace(*(shape(*e) for e in extents or ARGUMENTS))
    return int(traced.lower(lowering_platforms=("cuda",)).compile().as_text().count(PTX))


def test_the_wish_decides_also_for_what_was_compiled_before() -> None:
    import jax

    jitted = jax.jit(layer_norm)
    assert count(jitted) == 0
    astitch.enable()
    assert count(jitted) == 1
    with astitch.disabled():
        assert count(jitted) == 0
        with astitch.enabled():
            assert count(jitted) == 1
    astitch.disable()
    assert count(jitted) == 0
    with astitch.enabled():
        assert count(jitted) == 1
    assert count(jitted) == 0


def test_a_block_holds_for_its_thread_only() -> None:
    found: list[int] = []
    with astitch.enabled():
        thread = threading.Thread(target=lambda: found.append(count(layer_norm)))
        thread.start()
        thread.join()
        assert count(layer_norm) == 1
    assert found == [0]


def test_threads_compile_at_the_same_time() -> None:
    astitch.enable()
    found: list[int] = []

    def compile_one(rows: int) -> None:
        found.append(count(lambda x: layer_norm(x, 1, 0), (rows, 512)))

    threads = [threading.Thread(target=compile_one, args=(64 * n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 4
    assert astitch.report().stitched == 4


def test_threads_make_one_context_and_register_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two contexts one thread's enable() would say nothing to JAX."""
    import time

    import jax
    from jax.extend import xla

    from astitch.api import settings

    made: list[str] = []

    def make_slowly(name: str) -> Callable[..., None]:
        def make(*_: Any, **__: Any) -> None:
            time.sleep(0.1)
            made.append(name)

        return make

    monkeypatch.setattr(jax, "make_user_context", make_slowly("context"))
    monkeypatch.setattr(xla, "register_hlo_module_transformation", make_slowly("hook"))
    fresh: list[Any] = []
    for module, function in ((settings, settings.context), (enabling, enabling._register)):
        name = f"{module.__name__}_again"
        spec = importlib.util.spec_from_file_location(name, module.__file__)
        assert spec and spec.loader
        again = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(again)
        fresh.append(getattr(again, function.__name__))
        monkeypatch.delitem(sys.modules, name)
    threads = [threading.Thread(target=function) for function in fresh for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == ["context", "hook"]


FIRST_LINE = """
import os
import astitch
astitch.enable()
import jax
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
jax.config.update("jax_platforms", "cpu")
import socket
with socket.socket() as s:
    s.bind(("localhost", 0)); port = s.getsockname()[1]
jax.distributed.initialize(f"localhost:{port}", 1, 0)
assert not xla_bridge.backends_are_initialized()
assert float(jax.numpy.ones(3).sum()) == 3
assert jax.device_count() == 2
from astitch.api.enabling import context, _register
print("done", type(context().value).__name__)
"""


def test_as_a_first_line_it_starts_nothing() -> None:
    run = subprocess.run(
        [sys.executable, "-c", FIRST_LINE],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert run.stdout.splitlines()[-1:] == ["done Settings"], run.stderr


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(InvalidOption, match="h100"):
        astitch.enable(gpu="h1000")


@pytest.mark.parametrize(
    "fn", [lambda x: x + 1, lambda x: x.sum(), lambda x: x.T, lambda x: (x * 2).astype("int32")]
)
def test_a_single_op_is_not_worth_it(fn: Callable[[Any], Any]) -> None:
    with astitch.enabled():
        assert count(fn, (64, 128)) == 0
    assert astitch.report().left == {"nothing in it is worth a kernel": 1}
    assert astitch.report().programs == ()


def test_the_report_has_each_program() -> None:
    with astitch.enabled():
        count(layer_norm)
        count(lambda x: x + 1, (64, 512))
    report = astitch.report()
    assert [entry.kernels for entry in report.programs] == [1]
    assert "jit_layer_norm: 1 kernels" in str(report)
    assert "s): 100 % of the projected memory-intensive time (" in str(report)
    assert "1 left to XLA: nothing in it is worth a kernel" in str(report)
    assert "row" in report.programs[0].explain()


def mostly_sorted(x: Any) -> Any:
    from jax import lax, nn

    return lax.sort(lax.sort(x, dimension=1) + nn.softmax(x[:8]).sum(), dimension=0)


@pytest.mark.usefixtures("sorts_left")
def test_little_that_is_stitched_is_said_and_strict_takes_a_share() -> None:
    with astitch.enabled():
        with pytest.warns(LittleStitchedWarning, match="jit_mostly_sorted: .* of the projected"):
            assert count(mostly_sorted, (4096, 4096)) >= 1
        with warnings.catch_warnings():
            warnings.simplefilter("error", LittleStitchedWarning)
            assert count(mostly_sorted, (4096, 2048)) >= 1
    with astitch.enabled(strict=0.9):
        with pytest.raises(UnsupportedOp, match="strict=0.9 was asked for"):
            count(mostly_sorted, (4096, 1024))
        assert count(layer_norm) == 1
        assert count(lambda x: x + 1, (64, 512)) == 0
    with pytest.raises(InvalidOption, match="share of the memory"):
        astitch.enable(strict=1.5)


def attention(q: Any, k: Any, v: Any) -> Any:
    import jax

    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def attention_s_gradient(q: Any, k: Any, v: Any) -> Any:
    import jax

    return jax.grad(lambda k: (attention(q, k, v) ** 2).sum())(k)


def narrow_network(x: Any, w: Any) -> Any:
    import jax

    return jax.nn.softmax(jax.nn.relu(x @ w) @ w, -1)


def narrow_network_s_gradient(x: Any, w: Any) -> Any:
    import jax

    return jax.grad(lambda w: narrow_network(x, w).var())(w)


def last_token(x: Any, w: Any) -> Any:
    import jax

    return jax.nn.softmax(jax.nn.gelu(x @ w), -1)


@pytest.mark.parametrize(
    ("fn", "shapes", "type"),
    [
        (attention, [(2, 512, 8, 64)] * 3, "bfloat16"),
        (attention, [(2, 512, 8, 64)] * 3, "float32"),
        (attention_s_gradient, [(4, 1024, 8, 64)] * 3, "bfloat16"),
        (narrow_network, [(100_000, 64), (64, 64)], "float32"),
        (narrow_network_s_gradient, [(100_000, 64), (64, 64)], "bfloat16"),
        (last_token, [(8, 4096), (4096, 4096)], "bfloat16"),
    ],
)
def test_kernels_of_tiles_are_not_left_to_xla(fn: Any, shapes: Any, type: str) -> None:
    """Strict takes them: they are kernels of ours, or library calls."""
    import jax

    arguments = [jax.ShapeDtypeStruct(s, type, sharding=shape(1).sharding) for s in shapes]
    with astitch.enabled(strict=True):
        lowered = jax.jit(fn).trace(*arguments).lower(lowering_platforms=("cuda",))
        assert lowered.compile().as_text().count("custom-call") >= 1
    (entry,) = astitch.report().programs
    assert entry.kernels >= 1
    assert ": a kernel of its own" not in entry.explain()
    assert ": kernels of its own" not in entry.explain()


# ---- faults ------------------------------------------------------------------------------------------------------


def test_a_fault_leaves_the_program_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(transformation, "stitch_module", fail)
    with astitch.enabled(), pytest.warns(FaultWarning, match="broken"):
        assert count(layer_norm) == 0
    (entry,) = astitch.report().programs
    assert "ZeroDivisionError: broken" in entry.reason


def test_strict_raises_what_stopped_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise UnsupportedOp("of no kind")

    monkeypatch.setattr(transformation, "stitch_module", refuse)
    with astitch.enabled(strict=True), pytest.raises(UnsupportedOp, match="of no kind"):
        count(layer_norm)
    with astitch.enabled():
        assert count(layer_norm) == 0


def test_an_interrupt_is_raised_behind_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(transformation, "stitch_module", interrupt)
    with astitch.enabled(), pytest.raises(KeyboardInterrupt):
        count(layer_norm)
    monkeypatch.undo()
    with astitch.enabled():
        assert count(layer_norm) == 1


class TimeIsUp(Exception):
    """What a user's signal handler raises."""


def test_a_signal_during_xla_s_part_does_not_count_as_xla_s_refusal() -> None:
    import signal

    def handle(*_: Any) -> None:
        raise TimeIsUp

    def compile_(*_: Any) -> None:
        calls.append(1)
        compiling = enabling._now.compiling
        assert compiling is not None
        compiling.stitched = True
        compiling.entry = transformation.Entry("jit_f", 1, "", 0.0)
        signal.raise_signal(signal.SIGUSR1)

    calls: list[int] = []
    given = types.SimpleNamespace(env_option_overrides=[(FLAG, FEWEST)])
    devices()
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with astitch.enabled(), pytest.raises(TimeIsUp):
            enabling._wrap_compile(compile_)(None, None, devices(), given)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert calls == [1]


def test_a_fork_leaves_the_report_free() -> None:
    """Another thread of the parent was just writing to it."""
    run = subprocess.run(
        [sys.executable, "-c", FORK],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert run.stdout == "0\n", run.stderr


FORK = """
import os, signal, threading
from astitch.api.transformation import journal
taken, done = threading.Event(), threading.Event()
def hold():
    with journal._lock:
        taken.set()
        done.wait()
threading.Thread(target=hold, daemon=True).start()
taken.wait()
child = os.fork()
if child == 0:
    signal.alarm(5)
    journal.report()
    os._exit(0)
print(os.waitpid(child, 0)[1])
done.set()
"""


def test_what_xla_refuses_it_compiles_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    stitch = transformation.stitch_module

    def damage(*arguments: Any, **options: Any) -> Any:
        made = stitch(*arguments, **options)
        return type(made)(made.compilation, b"no module", made.kernels)

    monkeypatch.setattr(transformation, "stitch_module", damage)
    with astitch.enabled(), pytest.warns(FaultWarning, match="XLA fails"):
        assert count(layer_norm) == 0
    assert astitch.report().stitched == 0
    assert "XLA refuses the module" in astitch.report().programs[0].reason


def test_what_astitch_compiles_itself_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax

    stitch = transformation.stitch_module

    def compile_inside(*arguments: Any, **options: Any) -> Any:
        jax.clear_caches()
        assert count(lambda x: layer_norm(x, 2, 1), (128, 512)) == 0
        return stitch(*arguments, **options)

    monkeypatch.setattr(transformation, "stitch_module", compile_inside)
    with astitch.enabled():
        assert count(layer_norm) == 1


# ---- directives --------------------------------------------------------------------------------------------------


def test_directives_hold_for_whole_programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with astitch.enabled(stitch="leave all"):
        assert count(layer_norm) == 0
    with astitch.enabled(stitch="[jit_layer*]\nleave all"):
        assert count(layer_norm) == 0
        assert count(lambda x: layer_norm(x, 1, 0), (64, 512)) == 1
    file = tmp_path / "stitches"
    file.write_text("at-most 4")
    monkeypatch.setenv("ASTITCH_STITCHES", str(file))
    with astitch.enabled():
        assert count(layer_norm) > 1


def test_each_line_of_an_explanation_is_followed() -> None:
    with astitch.enabled():
        count(layer_norm)
    (entry,) = astitch.report().programs
    lines = [
        part.partition(": ")[2] for part in entry.explain().splitlines() if "to reverse it" in part
    ]
    assert lines
    for line in lines:
        with astitch.enabled(stitch=line):
            count(layer_norm)
        assert f"{line}: followed" in astitch.report().programs[-1].explain()


def test_directives_of_a_function_travel_in_its_mark() -> None:
    import jax

    plain = astitch.jit(layer_norm)
    cut = astitch.jit(layer_norm, stitch="at-most 4")
    assert count(jax.jit(lambda *a: plain(*a))) == 1
    assert count(jax.jit(lambda *a: cut(*a))) > 1


def test_unknown_directives_are_refused() -> None:
    with pytest.raises(InvalidOption, match="astitch.enable: stitch=, line 1: 'fuse a' is no dir"):
        astitch.enable(stitch="fuse a")


def test_a_hand_edited_kernel_is_compiled_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from astitch.toolchain.override import OverrideWarning

    monkeypatch.setenv("ASTITCH_OVERRIDE", str(tmp_path / "kernels"))
    with astitch.enabled():
        assert count(layer_norm) == 1
    (file,) = (tmp_path / "kernels").glob("*.cu")
    text = file.read_text()
    assert "hlo_rsqrt(" in text
    file.write_text(text.replace("hlo_rsqrt(", "hlo_sqrt("))
    with (
        pytest.warns(OverrideWarning, match="a hand-edited kernel runs"),
        astitch.enabled(tune=False),
    ):
        assert count(layer_norm) == 1


# ---- checks ------------------------------------------------------------------------------------------------------


def test_what_is_compiled_for_gpus_elsewhere_is_not_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with astitch.enabled(check=True):
        assert count(layer_norm) == 1
    assert "jit_layer_norm: not checked: it is compiled for devices" in str(astitch.report())
    with astitch.enabled(check=False):
        assert count(lambda x: layer_norm(x, 1, 0), (64, 512)) == 1
    assert len(astitch.report().checks) == 1


def break_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sum of floats in a kernel is a difference."""
    stitch = transformation.stitch_module

    def damage(*arguments: Any, **options: Any) -> Any:
        made = stitch(*arguments, **options)
        module = transformation.read_module(made.module) if made.module else None
        for computation in module.computations if module else ():
            for instruction in computation.instructions:
                config = instruction.backend_config  # with PTX in it, for a kernel
                instruction.backend_config = config.replace(b"add.rn.f32", b"sub.rn.f32")
        new = bytes(module.SerializeToString()) if module else None
        return type(made)(made.compilation, new, made.kernels, made.reason)

    monkeypatch.setattr(transformation, "stitch_module", damage)


def test_broken_kernels_are_what_xla_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU test below breaks something."""
    break_kernels(monkeypatch)
    import jax

    with astitch.enabled():
        traced = jax.jit(layer_norm).trace(*(shape(*e) for e in ARGUMENTS))
        text = traced.lower(lowering_platforms=("cuda",)).compile().as_text()
    assert text.count(PTX) == 1
    assert "sub.rn.f32" in text and "add.rn.f32" not in text


# ---- caches ------------------------------------------------------------------------------------------------------


def test_the_key_on_disk_tells_stitched_from_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src import cache_key

    enabling.install()
    plain = cache_key.custom_hook()
    keys = [plain]
    for options in (
        {},
        {"gpu": "a100"},
        {"tune": True},
        {"check": True},
        {"stitch": "leave all"},
        {"deterministic": True},
    ):
        with astitch.enabled(**options):
            keys.append(cache_key.custom_hook())
    with astitch.enabled():
        monkeypatch.setenv("ASTITCH_OVERRIDE", "/kernels")
        keys.append(cache_key.custom_hook())
        monkeypatch.delenv("ASTITCH_OVERRIDE")
    assert len(set(keys)) == len(keys)
    with astitch.disabled():
        assert cache_key.custom_hook() == plain


def test_a_later_process_plans_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's caches in memory are cleared in its place; the next test has two processes."""
    import jax

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("planned again")

    texts = []
    with astitch.enabled():
        for _ in range(2):
            jax.clear_caches()
            traced = jax.jit(layer_norm).trace(*(shape(*e) for e in ARGUMENTS))
            compiled = traced.lower(lowering_platforms=("cuda",)).compile()
            texts.append([line for line in compiled.as_text().splitlines() if PTX in line])
            monkeypatch.setattr(transformation, "stitch_module", fail)
        assert texts[0] == texts[1] and len(texts[0]) == 1
        before, after = astitch.report().programs
        assert (before.kernels, before.reason) == (after.kernels, after.reason) == (1, "")
        assert before.share == after.share != ""
        assert "row" in before.explain() and "another process planned" in after.explain()
        # What decides the kernels is part of the key.
        with astitch.enabled(gpu="a100"), pytest.warns(FaultWarning, match="planned again"):
            assert count(layer_norm) == 0
        monkeypatch.setenv("ASTITCH_DEBUG", "1")
        jax.clear_caches()
        with pytest.warns(FaultWarning, match="planned again"):
            assert count(layer_norm) == 0


IN_A_PROCESS = """
import sys
from tests.xla.test_enabling import count, loss
from astitch.api import transformation
from astitch.toolchain import nvrtc
import astitch, jax
if sys.argv[1] == "later":
    transformation.stitch_module = nvrtc.compile_request = None
count(lambda x: x + sys.argv.__len__(), (8, 8))  # it has compiled another program before
with astitch.enabled():
    print(count(jax.grad(loss, argnums=(0, 1))))
"""


def test_two_processes_plan_once(tmp_path: Path) -> None:
    for arguments in (["first"], ["later", "than", "it"]):
        run = subprocess.run(
            [sys.executable, "-W", "error::RuntimeWarning", "-c", IN_A_PROCESS, *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "ASTITCH_CACHE_DIR": str(tmp_path),
            },
            check=False,
        )
        assert run.stdout.splitlines()[-1:] == ["1"], run.stderr


def test_that_nothing_is_worth_a_kernel_is_kept_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*arguments: Any, **options: Any) -> Any:
        made = stitch(*arguments, **options)
        return type(made)(made.compilation, None, reason="nothing in it is worth a kernel")

    import jax

    stitch = transformation.stitch_module
    monkeypatch.setattr(transformation, "stitch_module", nothing)
    with astitch.enabled():
        assert count(layer_norm) == 0
    monkeypatch.setattr(transformation, "stitch_module", None)
    with astitch.enabled(strict=False):
        jax.clear_caches()
        assert count(layer_norm) == 0
    assert astitch.report().left == {"nothing in it is worth a kernel": 2}


def test_a_program_with_faults_is_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from dataclasses import replace

    from astitch.faults import Fault

    def fault(*arguments: Any, **options: Any) -> Any:
        made = stitch(*arguments, **options)
        found = (Fault("stage", "kernel", "error", "cost", "trace"),)
        return replace(made, compilation=replace(made.compilation, faults=found))

    stitch = transformation.stitch_module
    monkeypatch.setattr(transformation, "stitch_module", fault)
    monkeypatch.setattr(transformation, "report_faults", lambda *_, **__: None)
    kept = tmp_path / "modules"
    with astitch.enabled():
        assert count(layer_norm) == 1
        assert not list(kept.glob("*.module"))
        monkeypatch.setattr(transformation, "stitch_module", stitch)
        assert count(layer_norm, (128, 512), (512,), (512,)) == 1
        assert len(list(kept.glob("*.module"))) == 1


@pytest.fixture
def cache_on_disk(tmp_path: Path) -> Iterator[Path]:
    """The folder of JAX's cache, which keeps everything."""
    import jax
    from jax._src import compilation_cache

    settings = {
        "jax_compilation_cache_dir": str(tmp_path / "jax"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield tmp_path / "jax"
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_jax_s_cache_keeps_no_program_that_lacks_kernels_for_a_fault(
    cache_on_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault may pass: a later process tries anew.  What astitch cannot read is the same the next time."""
    import jax

    def fail(error: Exception) -> Any:
        def stitch(*_: Any, **__: Any) -> Any:
            raise error

        return stitch

    def files() -> int:
        return len(list(cache_on_disk.glob("*-cache")))

    stitch = transformation.stitch_module
    with astitch.enabled():
        monkeypatch.setattr(transformation, "stitch_module", fail(OSError("no room")))
        with pytest.warns(FaultWarning, match="no room"):
            assert count(layer_norm) == 0
        assert files() == 0
        jax.clear_caches()
        monkeypatch.setattr(transformation, "stitch_module", stitch)
        assert (count(layer_norm), files()) == (1, 1)
        monkeypatch.setattr(transformation, "stitch_module", fail(UnsupportedOp("what is that?")))
        assert (count(layer_norm, (64, 512), (512,), (512,)), files()) == (0, 2)


def test_an_exported_file_has_no_kernels() -> None:
    import jax
    from jax import export

    with astitch.enabled():
        kinds = [jax.ShapeDtypeStruct(e, "float32") for e in ARGUMENTS]
        exported = export.export(jax.jit(layer_norm), platforms=("cuda",))(*kinds)
    assert PTX not in exported.mlir_module()
    assert count(exported.call) == 0
    with astitch.enabled():
        assert count(exported.call) == 1


# ---- functions of astitch.jit inside others ----------------------------------------------------------------------


def loss(x: Any, g: Any, b: Any) -> Any:
    return (layer_norm(x, g, b) ** 3).sum()


def _nest(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, g, b: fn(x, g, b)


def _differentiate(fn: Callable[..., Any]) -> Callable[..., Any]:
    import jax

    return jax.grad(fn, argnums=(0, 1, 2))


def _vectorise(fn: Callable[..., Any]) -> Callable[..., Any]:
    import jax

    return lambda x, g, b: jax.vmap(fn, (0, None, None))(x.reshape(4, -1, x.shape[1]), g, b)


def _push_forward(fn: Callable[..., Any]) -> Callable[..., Any]:
    import jax

    return lambda x, g, b: jax.jvp(lambda y: fn(y, g, b), (x,), (x,))


def _compute_again(fn: Callable[..., Any]) -> Callable[..., Any]:
    import jax

    return jax.grad(jax.checkpoint(fn), argnums=(0, 1, 2))


def _scan(fn: Callable[..., Any]) -> Callable[..., Any]:
    import jax

    return lambda x, g, b: jax.lax.scan(lambda c, _: (fn(c, g, b), None), x, None, length=5)[0]


def _choose(fn: Callable[..., Any]) -> Callable[..., Any]:
    import jax

    return lambda x, g, b: jax.lax.cond(x[0, 0] > 0, lambda: fn(x, g, b), lambda: x)


TRANSFORMATIONS = [
    (_nest, layer_norm),
    (_differentiate, loss),
    (_vectorise, layer_norm),
    (_push_forward, layer_norm),
    (_compute_again, loss),
    (_scan, layer_norm),
    (_choose, layer_norm),
]


@pytest.mark.parametrize(("transform", "fn"), TRANSFORMATIONS)
def test_a_marked_function_is_stitched_inside_another(
    transform: Callable[..., Any], fn: Callable[..., Any]
) -> None:
    """As many kernels as where all is stitched, but for the predicate that chooses."""
    marked = count(transform(astitch.jit(fn)))
    with astitch.enabled():
        assert marked == count(transform(fn)) - (transform is _choose) >= 1


def test_only_the_marked_function_is_stitched() -> None:
    import jax

    inner = astitch.jit(layer_norm)
    assert count(lambda x, g, b: jax.nn.softmax(inner(jax.nn.softmax(x), g, b))) == 1
    (entry,) = astitch.report().programs
    assert "outside of astitch.jit's functions" in entry.explain()


def test_disabled_means_marked_functions_too() -> None:
    inner = astitch.jit(layer_norm)
    with astitch.disabled():
        assert count(lambda x, g, b: inner(x, g, b) + 1) == 0


def test_the_gpu_is_read_off_the_device() -> None:
    with astitch.enabled():
        count(layer_norm)
    assert astitch.report().programs[0].compilation is not None
    assert astitch.report().programs[0].compilation.gpu.name == GPU


def test_layouts_of_the_caller_are_kept() -> None:
    import jax
    from jax.experimental.layout import Format, Layout
    from jax.sharding import SingleDeviceSharding

    turned: Any = Format(Layout((1, 0)), SingleDeviceSharding(devices()[0]))
    plain = shape(512)
    kind: Any = jax.ShapeDtypeStruct
    x = kind((256, 512), "float32", sharding=turned)
    jit: Any = jax.jit
    with astitch.enabled():
        traced = jit(
            layer_norm, in_shardings=(turned, plain.sharding, plain.sharding), out_shardings=turned
        ).trace(x, plain, plain)
        compiled = traced.lower(lowering_platforms=("cuda",)).compile()
    assert compiled.as_text().count(PTX) == 1
    assert compiled.input_formats[0][0].layout.major_to_minor == (1, 0)
    assert compiled.output_formats.layout.major_to_minor == (1, 0)
