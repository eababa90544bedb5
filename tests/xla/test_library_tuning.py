"""Library calls that XLA tunes in the background: which, in what module, and who waits for whom."""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import astitch
from astitch.api import inside_xla
from astitch.device.gpu import preset
from astitch.errors import IllegalProduct
from astitch.graph.finished_products import find_finished
from astitch.graph.ops import OPS, Kind
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.library.xla_fallback import AROUND_KERNELS
from astitch.rewrite.recompute import recompute
from astitch.rewrite.simplify import simplify
from astitch.scope.remote_stitch import stitch_remotely
from astitch.stitch_scope import Left, Scopes, choose_stages, find_scopes
from astitch.toolchain.driver_assembly import Assemble, Unit
from astitch.xla import library_tuning, stitched_call
from astitch.xla.library_tuning import (
    TILINGS,
    TILINGS_OF_MANY,
    WRITES_TO,
    export_library_calls,
    find_library_calls,
    tune_in_background,
)
from astitch.xla.prepare_kernels import Code


def read(fn: Any, *arguments: np.ndarray) -> Scopes:
    """The scopes of a function, as the engine xla has them."""
    lowered = jax.jit(fn, keep_unused=True).lower(*arguments)
    graph = import_hlo(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    found = find_finished(simplify(graph))
    left = Left(found.graph, dict.fromkeys(found.products, "with a product"), found.products)
    return stitch_remotely(find_scopes(recompute(choose_stages(left))), layouts_apart=True)


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
    found = find_library_calls(read(fn, *arguments))
    graph = import_hlo(export_library_calls(found))
    calls = [node for node in graph if OPS[node.op].kind is Kind.COMPUTE]
    assert len(calls) == len(found) == kinds
    operands = [operand for node in calls for operand in node.operands]
    assert sorted(operands) == sorted(graph.parameters) == sorted(set(operands))
    inputs = [normal(*graph[name].shape) for name in graph.parameters]
    first = run_graph(graph, inputs)[0]
    assert first.shape == graph[calls[0].name].shape and np.isfinite(first).all()


def side_by_side(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    """A product by two parameters that are put beside each other."""
    return jnp.tanh(x @ jnp.concatenate([w, v], 1))


def heads(x: jax.Array, w: jax.Array) -> jax.Array:
    """Products of the parts of a product, whose result they read in another order."""
    y = (x @ w).reshape(4, 8, 4, 2).transpose(0, 2, 1, 3)
    return jnp.tanh(y @ y.transpose(0, 1, 3, 2))


def turned(x: jax.Array, w: jax.Array) -> jax.Array:
    """A product of what a kernel computes and writes in the order in which it is read."""
    return jnp.tanh(x).transpose(1, 0, 2).reshape(8, 12) @ w


@pytest.mark.parametrize(
    ("fn", "arguments", "before"),
    [
        (side_by_side, (normal(8, 16), normal(16, 4), normal(16, 8)), [["concatenate"]]),
        (
            heads,
            (normal(4, 8, 6), normal(6, 8)),
            [["dot", "reshape", "transpose", "transpose"]],
        ),
        (turned, (normal(2, 8, 6), normal(12, 4)), [["reshape"]]),
    ],
)
def test_calls_come_with_what_xla_reads_their_operands_through(
    fn: Any, arguments: Any, before: list[list[str]]
) -> None:
    """Layouts that no kernel computes and views; XLA fuses them into products, which it measures as a whole."""
    calls = find_library_calls(read(fn, *arguments))
    assert [[node.op for node in call.nodes[:-1]] for call in calls] == before


def dense(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
    """Two products, the first finished by what XLA does as it multiplies."""
    return jnp.maximum(x @ w + b, 0) @ w.T


def test_a_product_comes_with_what_finishes_it() -> None:
    """XLA fuses it in the program, and measures the whole."""
    arguments = (normal(8, 96), normal(96, 4), normal(4))
    finished, plain = find_library_calls(read(dense, *arguments))
    assert "dot" in [node.op for node in finished.nodes]
    assert finished.nodes[-1].op == "maximum" and plain.nodes[-1].op == "dot"
    assert [type_.shape for _, type_ in finished.parameters] == [(8, 96), (96, 4), (4,)]
    graph = import_hlo(export_library_calls([finished]))
    wanted = np.maximum(arguments[0] @ arguments[1] + arguments[2], 0)
    np.testing.assert_allclose(run_graph(graph, list(arguments))[0], wanted, rtol=1e-5, atol=1e-5)


def test_gelu_is_a_kernel_of_its_own() -> None:
    def fn(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
        return jax.nn.gelu(x @ w + b) @ w.T

    calls = find_library_calls(read(fn, normal(8, 16), normal(16, 4), normal(4)))
    assert [call.nodes[-1].op for call in calls] == ["dot", "dot"]


def attention(x: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
    """A product by the heads of another, put beside each other."""
    return jnp.einsum("bhqk,bkhd->bqhd", x, v).reshape(2, 8, 12) @ w


def test_a_product_that_only_another_reads_in_another_order_comes_with_it() -> None:
    """So XLA lays out what is between them as it does in the program."""
    arguments = normal(2, 3, 8, 8), normal(2, 8, 3, 4), normal(12, 5)
    (call,) = find_library_calls(read(attention, *arguments))
    assert [node.op for node in call.nodes].count("dot") == 2
    graph = import_hlo(export_library_calls([call]))
    by_shape = {argument.shape: argument for argument in arguments}
    (got,) = run_graph(graph, [by_shape[graph[name].shape] for name in graph.parameters])
    np.testing.assert_allclose(got, attention(*arguments), rtol=1e-5, atol=1e-5)


def attention_and_sums(x: jax.Array, v: jax.Array, w: jax.Array) -> Any:
    """The product of the heads is read by a kernel as well."""
    parts = jnp.einsum("bhqk,bkhd->bhqd", x, v)
    return parts.transpose(0, 2, 1, 3).reshape(2, 8, 12) @ w, jnp.sin(parts).sum(0)


def attention_and_parts(x: jax.Array, v: jax.Array, w: jax.Array) -> Any:
    """What is between them is a result, too."""
    parts = jnp.einsum("bhqk,bkhd->bqhd", x, v)
    return parts.reshape(2, 8, 12) @ w, parts


def attention_of_sines(x: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
    """A kernel is between them."""
    return jnp.sin(jnp.einsum("bhqk,bkhd->bqhd", x, v)).reshape(2, 8, 12) @ w


def rectified_attention(x: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
    """The first is finished by what XLA does as it multiplies."""
    parts = jnp.maximum(jnp.einsum("bhqk,bkhd->bhqd", x, v), 0)
    return parts.transpose(0, 2, 1, 3).reshape(2, 8, 12) @ w


def attention_of_one(x: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
    """The order between them is the same."""
    return jnp.einsum("bhqk,bkhd->bhqd", x, v).reshape(2, 24, 4) @ w[:4]


@pytest.mark.parametrize(
    "fn",
    [
        attention_and_sums,
        attention_and_parts,
        attention_of_sines,
        attention_of_one,
        rectified_attention,
    ],
)
def test_products_that_something_else_is_between_stand_alone(fn: Any) -> None:
    calls = find_library_calls(read(fn, normal(2, 3, 8, 8), normal(2, 8, 3, 4), normal(12, 5)))
    assert [[node.op for node in call.nodes].count("dot") for call in calls] == [1, 1]


def transposed(x: jax.Array, w: jax.Array) -> jax.Array:
    return (x @ w).reshape(8, 4, 2).transpose(1, 0, 2)


def transposed_and_sorted(x: jax.Array, w: jax.Array) -> jax.Array:
    return lax.sort((x @ w).T, dimension=1)


def transposed_and_convolved(x: jax.Array, w: jax.Array) -> jax.Array:
    return images((x @ w).reshape(2, 4, 4, 2).transpose(0, 3, 1, 2), jnp.ones((2, 2, 3, 3)))


@pytest.mark.parametrize(
    ("fn", "calls"), [(transposed, 1), (transposed_and_sorted, 1), (transposed_and_convolved, 2)]
)
def test_a_product_that_no_other_reads_is_not_lost(fn: Any, calls: int) -> None:
    found = find_library_calls(read(fn, normal(8, 16), normal(16, 8)))
    assert len(found) == calls and next(iter(found)).nodes[-1].op == "dot"


def test_a_layout_that_others_read_is_a_kernel() -> None:
    def fn(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = jnp.exp(x).T
        return y @ w, y

    (call,) = find_library_calls(read(fn, normal(8, 4), normal(8, 4)))
    assert [node.op for node in call.nodes] == ["dot"]


def test_without_library_calls_there_is_none() -> None:
    assert not find_library_calls(read(jnp.tanh, normal(8)))


@pytest.fixture
def scopes() -> Scopes:
    return read(layers, normal(8, 16), normal(16, 16), normal(16, 4))


@pytest.fixture
def _many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_tuning, "count_threads", lambda: library_tuning.LEAST_CORES)


class Compiler:
    """XLA, which waits until it may go on.  writes: before, it tells what it measured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, writes: bool = False) -> None:
        self.writes = writes
        self.begun, self.go_on, self.done = threading.Event(), threading.Event(), False
        self.given: list[tuple[bytes, Any, Mapping[str, bool | int | str]]] = []
        monkeypatch.setattr(library_tuning, "compile_module", self)

    def __call__(
        self, module: bytes, device: Any, settings: Mapping[str, bool | int | str], *, tilings: int
    ) -> None:
        assert tilings == TILINGS
        self.given.append((module, device, settings))
        self.begun.set()
        if self.writes:
            Path(str(settings[WRITES_TO])).touch()
        assert self.go_on.wait(60)
        self.done = True
        raise ValueError("XLA's words")


@pytest.mark.usefixtures("_many_cores")
def test_the_end_of_the_block_waits_and_errors_are_not_told(
    scopes: Scopes, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(monkeypatch)
    with tune_in_background("device") as begin:
        begin(scopes)
        assert compiler.begun.wait(60) and not compiler.done
        compiler.go_on.set()
    assert compiler.done
    ((module, device, settings),) = compiler.given
    assert module == export_library_calls(find_library_calls(scopes)) and device == "device"
    assert settings.items() > AROUND_KERNELS.items()


@pytest.mark.usefixtures("_many_cores")
def test_the_end_of_the_block_waits_for_measurements_only(
    scopes: Scopes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for what XLA makes of them."""
    compiler = Compiler(monkeypatch, writes=True)
    try:
        with tune_in_background("device") as begin:
            begin(scopes)
        assert len(compiler.given) == 1 and not compiler.done
    finally:
        compiler.go_on.set()
    assert not Path(str(compiler.given[0][2][WRITES_TO])).parent.exists()


@pytest.mark.usefixtures("_many_cores")
@pytest.mark.parametrize(
    ("many", "layers", "tilings"),
    [(2, 1, TILINGS), (1, 1, TILINGS_OF_MANY), (2, 8, 5), (1, 4, 3), (2, 3, TILINGS)],
)
def test_many_kinds_have_fewer_tilings_and_those_used_often_more(
    monkeypatch: pytest.MonkeyPatch, many: int, layers: int, tilings: int
) -> None:
    def fn(x, hidden, head):
        for _ in range(layers):
            x = jnp.tanh(x @ hidden)
        return x @ head

    asked: list[int] = []
    monkeypatch.setattr(library_tuning, "compile_module", lambda *_, tilings: asked.append(tilings))
    monkeypatch.setattr(library_tuning, "MANY", many)
    scopes = read(fn, normal(8, 16), normal(16, 16), normal(16, 4))
    assert [*find_library_calls(scopes).values()] == [layers, 1]
    with tune_in_background("device") as begin:
        begin(scopes)
    assert asked == [tilings]


@pytest.mark.usefixtures("_many_cores")
def test_what_the_cost_model_has_no_tiling_of_is_measured_with_all(
    scopes: Scopes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int | None] = []

    def compile_module(*_: Any, tilings: int | None = None) -> None:
        asked.append(tilings)
        if tilings is not None:
            raise jax.errors.JaxRuntimeError("INTERNAL: No supported config found for HLO")

    monkeypatch.setattr(library_tuning, "compile_module", compile_module)
    with tune_in_background("device") as begin:
        begin(scopes)
    assert asked == [TILINGS, None]


@pytest.mark.usefixtures("_many_cores")
def test_an_error_in_the_block_waits_for_nothing(
    scopes: Scopes, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(monkeypatch)
    try:
        with pytest.raises(RuntimeError, match="planning"), tune_in_background("device") as begin:
            begin(scopes)
            raise RuntimeError("planning")
        assert not compiler.done
    finally:
        compiler.go_on.set()


@pytest.mark.usefixtures("_many_cores")
def test_calls_that_cannot_be_written_down_are_not_tuned(
    scopes: Scopes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compilation goes on without."""
    asked: list[Any] = []
    refused = threading.Event()

    def refuse(calls: Any) -> bytes:
        asked.append(calls)
        refused.set()
        raise IllegalProduct("no such attribute in HLO")

    compiler = Compiler(monkeypatch)
    monkeypatch.setattr(library_tuning, "export_library_calls", refuse)
    with tune_in_background("device") as begin:
        begin(scopes)
        assert refused.wait(60)
    assert asked == [find_library_calls(scopes)] and not compiler.given


@pytest.mark.parametrize(
    ("device", "cores", "processes"),
    [(None, 64, 1), ("device", library_tuning.LEAST_CORES - 1, 1), ("device", 64, 2)],
)
def test_nothing_is_tuned_without_a_gpu_with_few_cores_or_among_processes(
    scopes: Scopes, device: Any, cores: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(monkeypatch)
    monkeypatch.setattr(library_tuning, "count_threads", lambda: cores)
    monkeypatch.setattr(jax, "process_count", lambda: processes)
    with tune_in_background(device) as begin:
        begin(scopes)
    assert not compiler.given


@pytest.mark.usefixtures("_many_cores")
@pytest.mark.parametrize(
    ("tune", "code"), [(False, Code.PTX), (True, Code.PTX), (False, Code.CUBIN)]
)
def test_a_jitted_function_has_its_products_tuned_and_its_kernels_assembled(
    tune: bool, code: Code, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither where plans are measured, which wants the GPU for itself; cubins are assembled already."""
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))
    compiler = Compiler(monkeypatch)
    compiler.go_on.set()
    jit_module = importlib.import_module("astitch.jit")
    monkeypatch.setattr(jit_module, "choose_engine", lambda asked=None: "xla")
    monkeypatch.setattr(inside_xla, "target_gpu", lambda: preset("h100"))
    monkeypatch.setattr(stitched_call, "default_gpu", lambda: "the gpu")
    monkeypatch.setattr(stitched_call, "choose_code", lambda arch: code)
    compile_for_xla = stitched_call.compile_for_xla
    monkeypatch.setattr(
        stitched_call,
        "compile_for_xla",
        lambda *args, tune, **kwargs: compile_for_xla(*args, tune=False, **kwargs),
    )
    loaded: list[Unit] = []
    devices: list[Any] = []

    @contextmanager
    def assemble_in_background(device: Any) -> Iterator[Assemble]:
        devices.append(device)
        yield loaded.extend

    monkeypatch.setattr(stitched_call, "assemble_in_background", assemble_in_background)
    arguments = normal(8, 16), normal(16, 16), normal(16, 4)
    traced: Any = astitch.jit(layers, tune=tune)
    lowered = traced._stitched_jit.trace(*arguments).lower(lowering_platforms=("cuda",))
    assert [device for _, device, _ in compiler.given] == ([] if tune else ["the gpu"])
    called = re.findall(r'backend_config = .*?name = "(\w+)"', lowered.as_text())
    assert called and devices == [None if tune else "the gpu"]
    assert {unit.name for unit in loaded} == (set(called) if code is Code.PTX else set())
    cubins = lowered.as_text().count(r'kernel_data = "\7FELF')
    assert cubins == (0 if code is Code.PTX else len(called))
