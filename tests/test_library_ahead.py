"""Library calls that XLA tunes ahead: which, in what module, and who waits for whom."""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import astitch
from astitch import library_ahead, xla_engine
from astitch.errors import IllegalProduct
from astitch.gpu import preset
from astitch.hlo_import import import_hlo
from astitch.ir import Graph
from astitch.library_ahead import export_library_calls, tune_ahead
from astitch.ops import OPS, Kind
from astitch.reference import run_graph
from astitch.xla_engine import Code
from astitch.xla_island import AROUND_KERNELS


def read(fn: Any, *arguments: np.ndarray) -> Graph:
    lowered = jax.jit(fn, keep_unused=True).lower(*arguments)
    return import_hlo(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def layers(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    """Products of two kinds: x @ w three times, once with what comes out of it, and one by v."""
    y = jnp.tanh(x @ w)
    return (jnp.tanh(y @ w) + x @ w) @ v


def images(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv(jax.nn.relu(lax.conv(x, kernel, (1, 1), "SAME")), kernel, (1, 1), "SAME")


@pytest.mark.parametrize(
    ("fn", "arguments", "kinds"),
    [
        (layers, (normal(8, 16), normal(16, 16), normal(16, 4)), 2),
        (images, (normal(2, 3, 8, 8), normal(3, 3, 3, 3)), 1),
    ],
)
def test_each_kind_of_call_stands_alone(fn: Any, arguments: Any, kinds: int) -> None:
    module = export_library_calls(read(fn, *arguments))
    assert module is not None
    graph = import_hlo(module)
    calls = [node for node in graph if OPS[node.op].kind is Kind.COMPUTE]
    assert len(calls) == kinds
    operands = [operand for node in calls for operand in node.operands]
    assert sorted(operands) == sorted(graph.parameters) == sorted(set(operands))
    inputs = [normal(*graph[name].shape) for name in graph.parameters]
    first = run_graph(graph, inputs)[0]
    assert first.shape == graph[calls[0].name].shape and np.isfinite(first).all()


def test_without_library_calls_there_is_no_module() -> None:
    assert export_library_calls(read(jnp.tanh, normal(8))) is None


@pytest.fixture
def graph() -> Graph:
    return read(layers, normal(8, 16), normal(16, 16), normal(16, 4))


@pytest.fixture
def _many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_ahead, "count_threads", lambda: library_ahead.LEAST_CORES)


class Compiler:
    """XLA, which waits until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on, self.done = threading.Event(), False
        self.given: list[tuple[bytes, Any, Mapping[str, bool | int]]] = []
        monkeypatch.setattr(library_ahead, "compile_module", self)

    def __call__(self, module: bytes, device: Any, settings: Mapping[str, bool | int]) -> None:
        self.given.append((module, device, settings))
        assert self.go_on.wait(60)
        self.done = True
        raise ValueError("XLA's words")


@pytest.mark.usefixtures("_many_cores")
def test_the_end_of_the_block_waits_and_errors_are_not_told(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(monkeypatch)
    with tune_ahead("device") as begin:
        begin(graph)
        assert not compiler.done
        compiler.go_on.set()
    assert compiler.done
    assert compiler.given == [(export_library_calls(graph), "device", AROUND_KERNELS)]


@pytest.mark.usefixtures("_many_cores")
def test_an_error_in_the_block_waits_for_nothing(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(monkeypatch)
    try:
        with pytest.raises(RuntimeError, match="planning"), tune_ahead("device") as begin:
            begin(graph)
            raise RuntimeError("planning")
        assert not compiler.done
    finally:
        compiler.go_on.set()


@pytest.mark.usefixtures("_many_cores")
def test_calls_that_cannot_be_written_down_are_not_tuned(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compilation goes on without."""
    asked: list[Graph] = []

    def refuse(graph: Graph) -> bytes:
        asked.append(graph)
        raise IllegalProduct("no such attribute in HLO")

    compiler = Compiler(monkeypatch)
    monkeypatch.setattr(library_ahead, "export_library_calls", refuse)
    with tune_ahead("device") as begin:
        begin(graph)
    assert asked == [graph] and not compiler.given


@pytest.mark.parametrize(
    ("device", "cores", "processes"),
    [(None, 64, 1), ("device", library_ahead.LEAST_CORES - 1, 1), ("device", 64, 2)],
)
def test_nothing_is_tuned_without_a_gpu_with_few_cores_or_among_processes(
    graph: Graph, device: Any, cores: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(monkeypatch)
    monkeypatch.setattr(library_ahead, "count_threads", lambda: cores)
    monkeypatch.setattr(jax, "process_count", lambda: processes)
    with tune_ahead(device) as begin:
        begin(graph)
    assert not compiler.given


@pytest.mark.usefixtures("_many_cores")
@pytest.mark.parametrize(
    ("tune", "code"), [(False, Code.PTX), (True, Code.PTX), (False, Code.CUBIN)]
)
def test_a_jitted_function_has_its_products_tuned_and_its_kernels_assembled(
    tune: bool, code: Code, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not the products where plans are measured, which wants the GPU for itself; cubins are assembled."""
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))
    compiler = Compiler(monkeypatch)
    compiler.go_on.set()
    jit_module = importlib.import_module("astitch.jit")
    monkeypatch.setattr(jit_module, "choose_engine", lambda asked=None: "xla")
    monkeypatch.setattr(jit_module, "target_gpu", lambda: preset("h100"))
    monkeypatch.setattr(xla_engine, "find_device", lambda platform: f"the {platform}")
    monkeypatch.setattr(xla_engine, "choose_code", lambda: code)
    compile_for_xla = xla_engine.compile_for_xla
    monkeypatch.setattr(
        xla_engine,
        "compile_for_xla",
        lambda *args, tune, **kwargs: compile_for_xla(*args, tune=False, **kwargs),
    )
    loaded: list[str] = []
    monkeypatch.setattr(
        xla_engine,
        "assemble_ahead",
        lambda units, device: loaded.extend(f"{unit.name} for {device}" for unit in units),
    )
    arguments = normal(8, 16), normal(16, 16), normal(16, 4)
    traced: Any = astitch.jit(layers, tune=tune)
    lowered = traced._stitched_jit.trace(*arguments).lower(lowering_platforms=("cuda",))
    assert [device for _, device, _ in compiler.given] == ([] if tune else ["the gpu"])
    called = re.findall(r'backend_config = .*?name = "(\w+)"', lowered.as_text())
    asked = called if code is Code.PTX else []
    assert sorted(loaded) == sorted(f"{name} for the gpu" for name in asked) and called
    assert lowered.as_text().count(r'kernel_data = "\7FELF') == len(called) - len(asked)
