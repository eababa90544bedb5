"""Programs inside XLA: the module that is written computes what XLA does, on the host, and on a GPU as one executable.

On the host each custom call is given to the emulation as XLA would give it to a GPU: parameters by `output_indices`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import astitch
from astitch.api import inside_xla
from astitch.compile import compile_graph
from astitch.device.gpu import Gpu, preset
from astitch.errors import EngineUnavailable, IllegalProduct, UnsupportedOp
from astitch.graph.index import Linear, Symbol
from astitch.graph.ir import ArrayType, CustomCallAttrs, DType, Graph, Node, TupleType
from astitch.graph.reference import eval_node
from astitch.hlo.stablehlo import to_stablehlo
from astitch.hlo_import import import_hlo
from astitch.kernel import kernel_ir as k
from astitch.pipeline import Target
from astitch.program.steps import KernelStep
from astitch.run.emulate import compile_host
from astitch.run.host_engine import allocate_aligned
from astitch.show.compilation import Compilation
from astitch.toolchain import nvrtc
from astitch.toolchain.nvrtc import CompiledKernel, Request, Resources
from astitch.xla import xla_engine
from astitch.xla.stitch_regions import stitch_bodies
from astitch.xla.xla_engine import (
    TARGET,
    Code,
    InPlace,
    KernelRefusal,
    Stitched,
    XlaKernel,
    _find_uses,
    _in_equal_nests,
    _quote,
    choose_code,
    emit_for_xla,
    export_bodies,
    export_program,
    find_carried_in_place,
    find_in_place,
    find_stitched,
    has_target,
    name_entry,
    prepare_kernels,
    spell_plan,
    write_backend_config,
)
from tests.hlo_runner import lower, run_xla
from tests.small_gpu import few_sms, find_statements

jit_module = importlib.import_module("astitch.jit")  # the attribute of the package is the function

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# ---- functions ---------------------------------------------------------------------------------------------------


def layer_norm(x, gain, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * gain + bias


def layer_norm_gradients(x, gain, bias):
    return jax.grad(lambda *a: jnp.square(layer_norm(*a)).sum(), argnums=(0, 1, 2))(x, gain, bias)


def batch_norm(x, gain, bias):
    axes = tuple(range(x.ndim - 1))
    mean, variance = x.mean(axes), x.var(axes)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * gain + bias, mean, variance


def two_batch_norms(x, gain, bias):
    """The second one's statistics wait for a product, so there are two kernels whose blocks meet."""
    y, _, _ = batch_norm(x, gain, bias)
    return batch_norm(jax.nn.relu(y) @ jnp.eye(x.shape[-1]), gain, bias)


def attention(x, w):
    batch, length, width = x.shape
    q, k, v = jnp.split((x @ w).reshape(batch, length, 3, 2, width // 2).swapaxes(1, 3), 3, axis=2)
    scores = jnp.einsum("bhcqd,bhckd->bhcqk", q, k)
    mixed = jax.nn.softmax(scores / 4) @ v
    return mixed.reshape(batch, length, width) + x


def convolve(x, w):
    y = jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jax.nn.relu(y).mean((1, 2))


def sort_and_scatter(x, indices):
    order = jnp.sort(jnp.tanh(x))
    return order * 2, jnp.zeros(10).at[indices].add(x), jax.lax.top_k(x + 1, 3)


def loop(x):
    def turn(state):
        count, x = state
        return count + 1, jnp.tanh(x @ x) * 0.5

    return jax.lax.while_loop(lambda s: (s[0] < 4) & (s[1].sum() < 1e9), turn, (0, x))


def pass_through(x, y):
    """Outputs that are parameters, constants, the same value twice, or a view of another."""
    z = jnp.exp(y)
    return x, z, jnp.arange(3), z.reshape(-1), z, jnp.float32(2)


ROWS = normal(64, 48), normal(48), normal(48)
COLUMNS = (
    normal(2048, 256),
    normal(256),
    normal(256),
)  # statistics of columns that several blocks share
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "layer_norm": (layer_norm, ROWS),
    "layer_norm_gradients": (layer_norm_gradients, ROWS),
    "batch_norm": (batch_norm, COLUMNS),
    "two_batch_norms": (two_batch_norms, COLUMNS),
    "long_rows": (jax.nn.softmax, (normal(2, 100_000),)),
    "attention": (attention, (normal(2, 6, 16), normal(16, 48))),
    "convolve": (convolve, (normal(2, 6, 6, 3), normal(3, 3, 3, 4))),
    "sort_and_scatter": (sort_and_scatter, (normal(40), RNG.integers(0, 10, 40))),
    "loop": (loop, (normal(8, 8),)),
    "pass_through": (pass_through, (normal(3), normal(4, 5))),
    "empty": (lambda x, y: (x.sum(), y + 1), (normal(0, 4), normal(3))),
}
MEETING = {"batch_norm", "two_batch_norms", "long_rows", "layer_norm_gradients"}


def compile_case(name: str, gpu: Gpu | None = None) -> Compilation:
    fn, arguments = CASES[name]
    hlo = lower(fn, *arguments, keep_unused=True)
    return compile_graph(import_hlo(hlo), few_sms(4) if gpu is None else gpu)


def as_text(compilation: Compilation) -> dict[str, XlaKernel | KernelRefusal]:
    """The kernels with CUDA text for the emulation where XLA would find their code."""
    return {kernel.name: with_text(kernel) for kernel in planned_kernels(compilation)}


def planned_kernels(compilation: Compilation) -> list[k.Kernel]:
    """The kernels as planned, in the order of the program's."""
    planned = {plan.kernel.name: plan.kernel for plan in compilation.plans}
    return [planned[kernel.name] for kernel in compilation.program.kernels]


def with_text(kernel: k.Kernel, pairs: Sequence[InPlace] = ()) -> XlaKernel:
    shape = kernel.grid, kernel.block, kernel.shared_bytes, kernel.cooperative
    text = emit_for_xla(kernel, pairs).encode()
    return XlaKernel(kernel.name, kernel.name, text, *shape, tuple(pairs))


# ---- an XLA whose custom calls run in the emulation ----------------------------------------------------------------


def run_module(hlo: bytes, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the module computes."""
    return run_graph(import_hlo(hlo), arguments)


def run_graph(graph: Graph, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The same for the module's entry, the body of a loop or a branch."""
    values: dict[str, Sequence[np.ndarray]] = {}
    for name, argument in zip(graph.parameters, arguments, strict=True):
        values[name] = [np.asarray(argument, graph[name].array.dtype.numpy)]
    for node in graph:
        if node.op == "parameter":
            continue
        operands = [values[o] for o in node.operands]
        if node.op == "get-tuple-element":
            values[node.name] = [operands[0][node.attrs.index]]  # type: ignore[union-attr]
        elif is_kernel(node):
            values[node.name] = launch(node, [o for (o,) in operands])
        elif node.op == "while":
            state = [o for (o,) in operands]
            while run_graph(node.regions[0], state)[0]:
                state = run_graph(node.regions[1], state)
            values[node.name] = state
        elif node.op == "conditional":
            selector, *given = [o for (o,) in operands]
            last = len(node.regions) - 1
            chosen = int(not selector) if selector.dtype == bool else min(int(selector), last)
            counts = node.attrs.operand_counts  # type: ignore[union-attr]
            before = sum(counts[:chosen])
            branch = given[before : before + counts[chosen]]
            values[node.name] = run_graph(node.regions[chosen], branch)
        else:
            values[node.name] = eval_node(node, [o for (o,) in operands])
    return [values[o][0] for o in graph.outputs]


def is_kernel(node: Node) -> bool:
    return isinstance(node.attrs, CustomCallAttrs) and node.attrs.target == TARGET


def launch(node: Node, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of a custom call: new arrays full of rubbish, at the numbers that its configuration names."""
    assert isinstance(node.attrs, CustomCallAttrs)
    types = node.type.elements if isinstance(node.type, TupleType) else [node.type]
    results = [place(np.full(t.shape, 77, t.dtype.numpy)) for t in types]
    operands = [place(operand) for operand in operands]
    for result, operand in node.attrs.aliases:
        results[result] = operands[operand]
    config = parse_config(node.attrs.backend_config)
    numbers = config["output_indices"]
    assert numbers == sorted(numbers) and len(numbers) == len(results)
    rest, made = iter(operands), iter(results)
    passed = [
        next(made) if number in numbers else next(rest)
        for number in range(len(operands) + len(results))
    ]
    module = compile_host(config["kernel_data"])
    cooperative = f"{config['name']}_words" in config["kernel_data"]
    shape = config["grid_x"], config["block_x"]
    module.launch(
        config["name"],
        *shape,
        passed,
        shared_bytes=config["shared_mem_bytes"],
        cooperative=cooperative,
    )
    return results


def place(array: np.ndarray) -> np.ndarray:
    """A row-major copy where 16-byte accesses are legal."""
    room = allocate_aligned(array.nbytes).view(array.dtype).reshape(array.shape)
    room[...] = array
    return room


def parse_config(text: bytes) -> dict[str, Any]:
    """The dictionary, read by MLIR."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    def read(attribute: Any) -> Any:
        if isinstance(attribute, ir.ArrayAttr):
            return [read(a) for a in attribute]
        return attribute.value

    with mlir.make_ir_context():
        parsed = ir.DictAttr(ir.Attribute.parse(text.decode()))
        return {entry.name: read(entry.attr) for entry in parsed}


@pytest.mark.parametrize("name", CASES)
def test_the_module_computes_what_xla_does(name: str) -> None:
    fn, arguments = CASES[name]
    compilation = compile_case(name)
    hlo = export_program(compilation, as_text(compilation))
    calls = [node for node in import_hlo(hlo) if is_kernel(node)]
    assert len(calls) == len(compilation.program.kernels)
    want = jax.tree.leaves(jax.jit(fn)(*arguments))
    for _ in range(2):  # the words at which blocks meet carry over
        got = run_module(hlo, arguments)
        for a, b in zip(got, want, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", sorted(MEETING))
def test_kernels_whose_blocks_meet_own_their_words_and_follow_each_other(name: str) -> None:
    compilation = compile_case(name)
    kernels = as_text(compilation)
    graph = import_hlo(export_program(compilation, kernels))
    ordered = [
        node for node in graph if is_kernel(node) and "_words" in config_of(node)["kernel_data"]
    ]
    assert len(ordered) == sum(k.cooperative for k in compilation.program.kernels)
    assert len(ordered) >= (2 if name == "two_batch_norms" else 1)
    for node in ordered:
        (kernel,) = [k for k in kernels.values() if k.name == config_of(node)["name"]]
        assert isinstance(kernel, XlaKernel) and kernel.ordered
        assert b"unsigned int* barrier)" not in kernel.code
        assert isinstance(node.type, TupleType)
        assert node.type.elements[-1].shape == (1,)  # its token
    for before, after in pairwise(ordered):
        token = graph[after.operands[-1]]
        assert token.op == "get-tuple-element" and token.operands == (before.name,)


def config_of(node: Node) -> dict[str, Any]:
    assert isinstance(node.attrs, CustomCallAttrs)
    return parse_config(node.attrs.backend_config)


def test_a_table_of_pointers_becomes_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("layer_norm", "batch_norm"):
        with monkeypatch.context() as patch:
            patch.setattr("astitch.kernel.lower.MAX_POINTERS", 2)
            compilation = compile_case(name)
        assert all(kernel.pointer_table for kernel in compilation.program.kernels)
        fn, arguments = CASES[name]
        got = run_module(export_program(compilation, as_text(compilation)), arguments)
        for a, b in zip(got, jax.tree.leaves(jax.jit(fn)(*arguments)), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_ops_of_refused_kernels_are_left_to_xla(name: str) -> None:
    fn, arguments = CASES[name]
    compilation = compile_case(name)
    refused = {k.name: KernelRefusal(k.name, "said the test") for k in compilation.program.kernels}
    hlo = export_program(compilation, refused)
    assert not any(map(is_kernel, import_hlo(hlo)))
    arrays = [
        np.asarray(a, p.type.dtype.numpy)
        for a, p in zip(arguments, compilation.program.parameters, strict=True)
    ]
    for a, b in zip(run_xla(hlo, arrays), jax.tree.leaves(jax.jit(fn)(*arguments)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


# ---- loops -------------------------------------------------------------------------------------------------------


def lstm(weights, xs, h, c):
    """With cells centred.  xs: [time, batch, features]; the last states and those of all times."""

    def turn(state, x):
        h, c = state
        i, f, g, o = jnp.split(x @ weights[0] + h @ weights[1] + weights[2], 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c - c.mean(-1, keepdims=True))
        return (h, c), h

    return jax.lax.scan(turn, (h, c), xs)


def lstm_gradients(*arguments):
    return jax.grad(lambda *a: jnp.square(lstm(*a)[1]).sum(), argnums=(0, 1))(*arguments)


def turn_until_small(x):
    def turn(state):
        count, x = state
        x = jax.nn.softmax(x @ x, axis=-1) - 0.9 * x
        return count + 1, x

    return jax.lax.while_loop(lambda s: (jnp.abs(s[1]).max() > 0.2) & (s[0] < 5), turn, (0, x))


def nested(x):
    def inner(_, x):
        return jnp.tanh(x @ x) - x.mean(-1, keepdims=True)

    def outer(state):
        count, x = state
        return count + 1, jax.lax.fori_loop(0, count + 1, inner, x) * 0.5 + x.sum(0)

    return jax.lax.while_loop(lambda s: s[0] < 3, outer, (0, x))


def choose_in_scan(xs, w):
    def turn(h, x):
        h = jax.lax.cond(
            x.sum() > 0,
            lambda h: jnp.tanh(h @ w) * 2 + h,
            lambda h: layer_norm(h, 1.0, 0.0) - jnp.exp(h @ w),
            h,
        )
        return h, h.sum(-1)

    return jax.lax.scan(turn, xs[0], xs)


def write_rows(x, w):
    def turn(i, state):
        table, x = state
        x = jax.nn.relu(x @ w) + jnp.sin(x) * 0.1
        return table.at[i].set(x.mean(0)), x

    return jax.lax.fori_loop(0, 6, turn, (jnp.zeros((6, x.shape[1])), x))


LSTM = (
    (normal(5, 32) / 3, normal(8, 32) / 3, normal(32)),
    normal(4, 3, 5),
    normal(3, 8),
    normal(3, 8),
)
LOOPS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int]] = {
    "lstm": (lstm, LSTM, 1),
    "lstm_gradients": (lstm_gradients, LSTM, 2),
    "until_small": (turn_until_small, (normal(8, 8) / 3,), 1),
    "nested": (nested, (normal(8, 8) / 3,), 2),
    "choose_in_scan": (choose_in_scan, (normal(4, 6, 8) / 3, normal(8, 8) / 3), 3),
    "write_rows": (write_rows, (normal(5, 8), normal(8, 8) / 3), 1),
}
"""With the least number of kernels in bodies."""


def compile_loop(name: str) -> tuple[Compilation, dict[Graph, Graph]]:
    fn, arguments, _ = LOOPS[name]
    graph = import_hlo(lower(fn, *arguments, keep_unused=True))
    return export_bodies(stitch_bodies(compile_graph(graph, few_sms(4))), as_body_text)


def as_body_text(
    body: Compilation, loop: bool, left: Mapping[str, str]
) -> dict[str, XlaKernel | KernelRefusal]:
    in_place = find_carried_in_place(body) if loop else {}
    kernels = as_text(body)
    for kernel in planned_kernels(body):
        if kernel.name in left:
            kernels[kernel.name] = KernelRefusal(kernel.name, left[kernel.name])
            continue
        kernels[kernel.name] = with_text(kernel, in_place.get(kernel.name, ()))
    return kernels


def kernels_of(graph: Graph) -> list[Node]:
    """The custom calls of a graph and of its regions."""
    found = [node for node in graph if is_kernel(node)]
    for node in graph:
        for region in node.regions:
            found += kernels_of(region)
    return found


@pytest.mark.parametrize("name", LOOPS)
def test_kernels_in_bodies_compute_what_xla_does(name: str) -> None:
    fn, arguments, least = LOOPS[name]
    compilation, regions = compile_loop(name)
    graph = import_hlo(export_program(compilation, as_text(compilation), regions))
    calls = kernels_of(graph)
    inside = len(calls) - sum(map(is_kernel, graph))
    assert inside >= least
    names = [config_of(node)["name"] for node in calls]
    assert len(set(names)) == len(names)
    explained = compilation.explain()
    assert all(kernel in explained for kernel in names)
    got = run_graph(graph, jax.tree.leaves(arguments))
    for a, b in zip(got, jax.tree.leaves(jax.jit(fn)(*arguments)), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["lstm", "lstm_gradients", "write_rows"])
def test_a_loop_updates_its_stacks_and_counts_by_xla(name: str) -> None:
    _, regions = compile_loop(name)
    for body in regions.values():
        updates = [n for n in body if n.op in ("dynamic-update-slice", "scatter")]
        scalars = [n for n in body if is_kernel(n) and n.type == ArrayType(DType.S32, ())]
        assert not scalars
        counters = [o for o in body.outputs if body[o].type == ArrayType(DType.S32, ())]
        assert "add" in [body[counter].op for counter in counters]
        assert {body[counter].op for counter in counters} <= {"add", "parameter"}
        large = {u.array for u in updates}
        results = {t for n in body if is_kernel(n) for t in parts_of(n)}
        assert large.isdisjoint(results)
    assert any(n.op in ("dynamic-update-slice", "scatter") for b in regions.values() for n in b)


def parts_of(node: Node) -> tuple[ArrayType, ...]:
    return node.type.elements if isinstance(node.type, TupleType) else (node.type,)


def test_a_carried_state_is_written_over() -> None:
    """The gradient of the biases, a sum over rows that is added to what the loop carries."""
    _, regions = compile_loop("lstm_gradients")
    found = 0
    for body in regions.values():
        for call in filter(is_kernel, body):
            assert isinstance(call.attrs, CustomCallAttrs)
            for _, read in call.attrs.aliases:
                place = body.parameters.index(call.operands[read])
                assert body[body.outputs[place]].array == body[call.operands[read]].array
                maker = body[body.outputs[place]]
                assert call.name in (maker.name, *maker.operands)
                found += 1
    assert found >= 1


def clip_and_move(params, moments, gradients):
    """An optimizer's step: what is donated is read once, where its successor is written."""
    norm = jnp.sqrt(sum(jnp.square(g).sum() for g in gradients))
    scaled = [g / jnp.maximum(norm, 1) for g in gradients]
    moments = [0.9 * m + 0.1 * g for m, g in zip(moments, scaled, strict=True)]
    moved = [p - 0.1 * m / (1 + p * p) for p, m in zip(params, moments, strict=True)]
    return moved, moments, jnp.square(moments[0]).sum()


def compile_donated(
    fn: Callable[..., Any], donated: int, *arguments: Any
) -> tuple[Compilation, dict[str, list[InPlace]]]:
    """A function for a GPU of few SMs, and which results take over memory if its first leaves are donated."""
    compilation = compile_graph(import_hlo(lower(fn, *arguments, keep_unused=True)), few_sms(4))
    count = len(compilation.program.parameters)
    return compilation, find_in_place(compilation, [i < donated for i in range(count)])


def test_donated_parameters_are_written_over() -> None:
    arguments = [[normal(64, 96), normal(50), normal(7, 3)] for _ in range(3)]
    compilation, in_place = compile_donated(clip_and_move, 6, *arguments)
    (kernel,), (pairs,) = planned_kernels(compilation), in_place.values()
    assert len(pairs) == 6
    text = emit_for_xla(kernel, pairs)
    assert emit_for_xla(kernel).count("__restrict__") - text.count("__restrict__") == 12
    hlo = export_program(compilation, {kernel.name: with_text(kernel, pairs)})
    (node,) = [node for node in import_hlo(hlo) if is_kernel(node)]
    assert isinstance(node.attrs, CustomCallAttrs) and len(node.attrs.aliases) == 6
    got = run_module(hlo, jax.tree.leaves(arguments))
    for a, b in zip(got, jax.tree.leaves(jax.jit(clip_and_move)(*arguments)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("fn", "arguments"),
    [
        (lambda x: x - x.sum(0), (normal(640, 96),)),  # written by other blocks than read it
        (lambda x: x[::-1] * 2, (normal(64, 96),)),  # written elsewhere
        (lambda x: jnp.tanh(x) + x.T, (normal(64, 64),)),  # also read elsewhere
        (lambda x: (x * 2).astype(jnp.bfloat16), (normal(64, 96),)),  # of another size
        (lambda x: (jnp.tanh(x) + 1, x @ (jnp.tanh(x) + 1)), (normal(64, 64),)),  # read later
        (lambda x: jnp.sort(x), (normal(64, 96),)),  # by XLA
    ],
    ids=["phases", "reverse", "transpose", "size", "product", "sort"],
)
def test_what_is_not_written_where_it_was_read(
    fn: Callable[..., Any], arguments: tuple[np.ndarray, ...]
) -> None:
    _, in_place = compile_donated(fn, 1, *arguments)
    assert in_place == {}


def move_weights(weights, x):
    """Products read the weights before they are written over, as in a training step; one reads them after."""

    def loss(weights):
        return jnp.square(jnp.tanh(x @ weights[0]) @ weights[1]).mean()

    gradients = jax.grad(loss)(weights)
    moved = [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]
    return moved, moved[1] @ weights[1].T


@pytest.mark.parametrize(
    ("fn", "arguments", "pairs"),
    [
        (clip_and_move, [[normal(64, 96), normal(50), normal(7, 3)] for _ in range(3)], 6),
        (move_weights, [[normal(16, 32), normal(32, 8)], normal(40, 16)], 1),
        (two_batch_norms, ROWS, 0),
    ],
    ids=["optimizer", "weights", "meetings"],
)
def test_what_is_observed_is_what_will_be_compiled(
    fn: Callable[..., Any], arguments: Any, pairs: int
) -> None:
    compilation, in_place = compile_donated(fn, 6, *arguments)
    donated = [i < 6 for i in range(len(compilation.program.parameters))]
    assert sum(map(len, in_place.values())) >= pairs
    for plan, kernel in zip(compilation.plans, planned_kernels(compilation), strict=True):
        assert plan.kernel.name == kernel.name
        assert spell_plan(plan, donated) == emit_for_xla(kernel, in_place.get(kernel.name, ()))


def test_kernels_are_compiled_while_others_are_planned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No text is compiled twice: not for what a plan needs to know, and not for what becomes of it."""
    compiled: list[str] = []

    def compile_one(request: Request) -> CompiledKernel:
        compiled.append(request.source)
        (name,) = re.findall(r"(\w+)\(\n    (?:const )?\w+\*", request.source)
        used = Resources(32, 0, 0, 0, 0)
        return CompiledKernel(b"", b".visible .entry", {name: used}, "", (13, 0))

    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("astitch.search.split_scopes.OBSERVED_STATEMENTS", 0)
    monkeypatch.setattr("astitch.toolchain.nvrtc.compile_request", compile_one)
    graph = import_hlo(lower(two_batch_norms, *ROWS, keep_unused=True))
    spell = partial(spell_plan, donated=[True] * len(graph.parameters))
    compilation = compile_graph(graph, H100, Target(render=spell))
    in_place = find_in_place(compilation, [True] * len(graph.parameters))
    prepare_kernels(compilation, H100, in_place)
    assert len(compiled) == len(set(compiled)) == len(compilation.program.kernels)


def softmax_of_product(x, w):
    """Each thread reads again, and then writes over, what it read for the sums."""
    return jax.nn.softmax(x @ w, -1)


def softmax_and_sums_of_product(x, w):
    product = x @ w
    return jax.nn.softmax(product, -1), jnp.tanh(product) * product.mean(-1, keepdims=True)


@pytest.mark.parametrize(
    ("fn", "width", "pairs"),
    [
        (softmax_of_product, 96, 1),
        (softmax_of_product, 4000, 1),
        (lambda x, w: jnp.tanh(x @ w) + 1, 96, 1),
        (lambda x, w: (jnp.tanh(x @ w), jnp.sin(x @ w)), 96, 1),  # one of two results
        (softmax_and_sums_of_product, 4000, 1),
        (lambda x, w: (x @ w, jnp.tanh(x @ w) + 1), 96, 0),  # a result itself
        (lambda x, w: (jnp.tanh(x @ w) + 1) @ (x @ w).T, 96, 0),  # read by a product
        (lambda x, w: jnp.tanh(x @ w).astype(jnp.bfloat16), 96, 0),  # of another size
        (lambda x, w: (x @ w)[::-1] + 1, 96, 0),  # written elsewhere
        (lambda x, w: jnp.tanh(w) + 1, 96, 0),  # a parameter
    ],
)
def test_temporary_arrays_are_written_over(
    fn: Callable[..., Any], width: int, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astitch.xla.xla_engine.LEAST_BYTES_AGAIN", 0)
    arguments = normal(64, 8), normal(8, width)
    compilation, in_place = compile_donated(fn, 0, *arguments)
    assert sum(map(len, in_place.values())) == pairs
    kernels: dict[str, XlaKernel | KernelRefusal] = {}
    for kernel in planned_kernels(compilation):
        kernels[kernel.name] = with_text(kernel, in_place.get(kernel.name, ()))
    for plan, kernel in zip(compilation.plans, compilation.program.kernels, strict=True):
        spelled = spell_plan(plan, (False, False)).encode()
        assert spelled == kernels[kernel.name].code  # type: ignore[union-attr]
    got = run_module(export_program(compilation, kernels), arguments)
    for a, b in zip(got, jax.tree.leaves(jax.jit(fn)(*arguments)), strict=True):
        rtol = 1e-5 if a.dtype == np.float32 else 2**-7  # a tie may be rounded the other way
        # A product's sums are rounded as their largest terms are, in an order that follows the machine.
        largest = float(np.abs(np.asarray(b, np.float32)).max())
        atol = max(1e-5, 4 * largest * float(np.finfo(np.float32).eps))
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


@pytest.mark.parametrize(("outer", "equal"), [(k.Loop, True), (k.Rounds, False)])
def test_turns_of_the_whole_block_are_no_nest_of_a_thread(outer: type, equal: bool) -> None:
    """In a round a thread may read what another stores in a later one, whatever the positions say."""

    def around(statement: k.Statement) -> k.Statement:
        if outer is k.Loop:
            return k.Loop("i", 4, False, (statement,))
        return k.Rounds("i", 4, False, (statement,))

    position = Linear(0, ((Symbol("i", 4), 1),))
    load = around(k.Load("v", DType.F32, "x", position))
    store = around(k.Store("y", position, DType.F32, k.Name("v")))
    loop = k.TaskLoop("task", 8, (load, store))
    uses = _find_uses((loop,), {"x", "y"})
    assert _in_equal_nests(uses["x"][0], uses["y"][0]) == equal


def test_scratch_takes_over_no_temporary_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partials of a row over several blocks are written, too."""
    monkeypatch.setattr("astitch.xla.xla_engine.LEAST_BYTES_AGAIN", 0)
    compilation, in_place = compile_donated(softmax_of_product, 0, normal(4, 8), normal(8, 200_000))
    (plan,) = compilation.plans
    assert plan.kernel.scratch
    for pair in in_place.get(plan.kernel.name, []):
        assert pair.written < len(plan.kernel.arguments)  # behind them is the pointer to scratch


@pytest.mark.parametrize(
    ("fn", "arguments"),
    [
        (lambda b, g: b - 0.1 * g.sum(1), (normal(64), normal(64, 96))),  # by one thread of a row
        (lambda b, g: b - 0.1 * g.sum(0), (normal(96), normal(64, 96))),  # by the last of a column
        (lambda b, x: (b * 0.9, x + b), (normal(96), normal(64, 96))),  # used by every row
        (lambda b, x: (b * 0.9, (x * b).sum(1)), (normal(96), normal(64, 96))),
        (lambda s, x: (s * 0.9, x * s), (normal(), normal(64, 96))),
    ],
    ids=["row", "column", "bias", "scale", "scalar"],
)
def test_written_over_or_not_the_results_are_right(
    fn: Callable[..., Any], arguments: tuple[np.ndarray, ...], request: pytest.FixtureRequest
) -> None:
    compilation, in_place = compile_donated(fn, 1, *arguments)
    kernels: dict[str, XlaKernel | KernelRefusal] = {}
    for kernel in planned_kernels(compilation):
        kernels[kernel.name] = with_text(kernel, in_place.get(kernel.name, ()))
    if request.node.callspec.id in ("row", "column"):
        assert sum(map(len, in_place.values())) == 1
    got = run_module(export_program(compilation, kernels), arguments)
    for a, b in zip(got, jax.tree.leaves(jax.jit(fn)(*arguments)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cols", [96, 500])
def test_what_is_loaded_for_a_later_phase_is_written_over(cols: int) -> None:
    """The residual, which the first phase loads although only the second needs it."""

    def norm_and_add(residual: jax.Array, x: jax.Array) -> jax.Array:
        return residual + x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5)

    arguments = normal(40, cols), normal(40, cols)
    graph = import_hlo(lower(norm_and_add, *arguments, keep_unused=True))
    compilation = compile_graph(graph, H100)
    (plan,) = compilation.plans
    fetched = [s.array for s in find_statements(plan.kernel.body, k.Fetch)]
    assert fetched == ["p_residual_1"]
    in_place = find_in_place(compilation, (True, False))
    ((pair,),) = in_place.values()
    assert plan.kernel.arguments[pair.read].name == "p_residual_1"
    (kernel,) = planned_kernels(compilation)
    kernels = {kernel.name: with_text(kernel, in_place[kernel.name])}
    (got,) = run_module(export_program(compilation, kernels), arguments)
    np.testing.assert_allclose(got, jax.jit(norm_and_add)(*arguments), rtol=1e-5, atol=1e-5)


def test_a_parameter_that_is_not_donated_is_not_written_over() -> None:
    assert compile_donated(lambda x: x * 2, 0, normal(64, 96))[1] == {}
    ((pair,),) = compile_donated(lambda x: x * 2, 1, normal(64, 96))[1].values()
    assert pair == InPlace(read=0, written=1)


def test_operands_are_what_is_read_and_results_what_is_written() -> None:
    compilation = compile_case("layer_norm_gradients")
    graph = import_hlo(export_program(compilation, as_text(compilation)))
    steps = [s for s in compilation.program.steps if isinstance(s, KernelStep)]
    calls = [node for node in graph if is_kernel(node)]
    for step, node in zip(steps, calls, strict=True):
        ordered = step.kernel.cooperative
        arguments = step.arguments[:-1] if ordered else step.arguments
        read = [v.type for i, v in enumerate(arguments) if i not in step.written]
        types = node.type.elements if isinstance(node.type, TupleType) else (node.type,)
        token = [ArrayType(DType.U32, (1,))] if ordered else []
        assert [graph[o].array for o in node.operands] == read + token
        written = [v.type for i, v in enumerate(arguments) if i in step.written]
        assert list(types) == written + token
        attrs = node.attrs
        assert isinstance(attrs, CustomCallAttrs)
        assert attrs.operand_layouts == tuple(
            tuple(reversed(range(graph[o].array.rank))) for o in node.operands
        )


def test_any_text_survives_the_configuration() -> None:
    text = 'say "no" \\ to\n\tα\x00 {loc = [1 : i32]}'
    kernel = XlaKernel("k", "entry", text.encode(), 3, 64, 1024, ordered=False)
    config = parse_config(write_backend_config(kernel, [1, 4]))
    assert config == {
        "name": "entry",
        "kernel_type": "ptx",
        "kernel_data": text,
        "grid_x": 3,
        "grid_y": 1,
        "grid_z": 1,
        "block_x": 64,
        "block_y": 1,
        "block_z": 1,
        "shared_mem_bytes": 1024,
        "output_indices": [1, 4],
    }


def test_text_of_another_form_is_refused() -> None:
    (kernel,) = planned_kernels(compile_case("layer_norm"))
    with pytest.raises(IllegalProduct, match=r"kernel stitch_0: parameter 4 .* the kernel has 4$"):
        emit_for_xla(kernel, [InPlace(0, 4)])


# ---- compiled for a GPU that is not there ------------------------------------------------------------------------

H100 = preset("h100")
WIDE = normal(4096, 512), normal(512), normal(512)


@pytest.fixture(scope="module")
def meeting() -> Compilation:
    """A program for an H100 whose one kernel's blocks meet."""
    hlo = lower(batch_norm, *WIDE)
    compilation = compile_graph(import_hlo(hlo), H100)
    (kernel,) = compilation.program.kernels
    assert kernel.cooperative and kernel.grid >= H100.sms
    return compilation


def test_ptx_has_the_parameters_and_the_launch_bounds(meeting: Compilation) -> None:
    (kernel,) = prepare_kernels(meeting, H100).values()
    (step,) = meeting.program.steps
    assert isinstance(kernel, XlaKernel) and isinstance(step, KernelStep)
    ptx = kernel.code.decode()
    entry = ptx[ptx.index(".entry") :]
    head = entry[: entry.index("{")]
    assert head.count(".param .u64") == len(step.arguments) + 1
    assert f".maxntid {kernel.block}" in head
    assert f".minnctapersm {step.kernel.blocks_per_sm}" in head
    assert re.search(rf"\.global .*{kernel.name}_words\[", ptx)


def test_a_cubin_has_the_kernel_under_its_own_name(meeting: Compilation) -> None:
    (kernel,) = prepare_kernels(meeting, H100, code=Code.CUBIN).values()
    assert isinstance(kernel, XlaKernel) and kernel.symbol == kernel.name
    symbols = read_strings(kernel.code, b".strtab")
    assert kernel.name.encode() in symbols
    assert any(re.fullmatch(rb"stitch_[0-9a-f]{16}_words", symbol) for symbol in symbols)
    assert f".text.{kernel.name}".encode() in read_strings(kernel.code, b".shstrtab")
    assert not re.search(rb"stitch_[0-9a-f]{16}\0", kernel.code)


def read_strings(elf: bytes, table: bytes) -> set[bytes]:
    """The strings of a string table, where one may begin, after the ELF format's specification."""
    (start,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, start + i * size) for i in range(count)]
    at = headers[names][4]
    for name, _, _, _, offset, length in headers:
        if elf[at + name : elf.index(0, at + name)] == table:
            return set(elf[offset : offset + length].split(b"\0"))
    raise AssertionError(f"no section {table!r}")


def test_a_name_longer_than_that_of_its_form_stays_outside_of_the_cubin() -> None:
    compiled = CompiledKernel(
        b"..stitch_0\0.text.stitch_0\0", b".entry stitch_0(", {}, "", (13, 0), {"other": "stitch_0"}
    )
    assert name_entry(compiled, "other", Code.CUBIN) == (
        "other",
        b"..other\0\0\0\0.text.other\0\0\0\0",
    )
    assert name_entry(compiled, "other", Code.PTX) == ("other", b".entry other(")
    longer = dataclasses.replace(compiled, symbols={"longer_than_it": "stitch_0"})
    found = name_entry(longer, "longer_than_it", Code.CUBIN)
    assert found == ("stitch_0", compiled.cubin)


@pytest.mark.parametrize(
    ("folder", "enabled", "driver", "code"),
    [
        (None, True, None, Code.CUBIN),
        ("anywhere", True, None, Code.PTX),
        ("anywhere", True, (99, 0), Code.PTX),
        ("anywhere", True, (12, 0), Code.CUBIN),  # which knows the PTX of no NVRTC that is here
        ("anywhere", False, None, Code.CUBIN),
    ],
)
def test_where_jax_keeps_executables_kernels_are_ptx_that_the_driver_knows(
    folder: str | None,
    enabled: bool,
    driver: tuple[int, int] | None,
    code: Code,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = {"jax_compilation_cache_dir": folder, "jax_enable_compilation_cache": enabled}
    for name, value in settings.items():
        request.addfinalizer(partial(jax.config.update, name, getattr(jax.config, name)))
        jax.config.update(name, value)
    xla_engine._warn_of_newer_nvrtc.cache_clear()
    for module in (nvrtc, xla_engine):
        monkeypatch.setattr(module, "driver_version", lambda: driver)
    assert choose_code("sm_90") is code
    assert ("is newer than the driver (12.0)" in caplog.text) is (driver == (12, 0))


def test_blocks_that_could_not_meet_are_refused(meeting: Compilation) -> None:
    few = dataclasses.replace(H100, sms=16, name="a sixteenth")
    (refusal,) = prepare_kernels(meeting, few).values()
    assert isinstance(refusal, KernelRefusal)
    assert re.fullmatch(
        r"\w+ is left to XLA: \d+ blocks wait for each other, \d x 16 are resident", str(refusal)
    )
    small = dataclasses.replace(H100, shared_per_block_bytes=0, registers_per_sm=1024)
    (refusal,) = prepare_kernels(meeting, small).values()
    assert isinstance(refusal, KernelRefusal) and "no block fits h100" in refusal.reason


def test_what_is_left_to_xla_anyway_is_not_compiled(
    meeting: Compilation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astitch.xla.xla_engine.compile_cached", None)
    (name,) = (kernel.name for kernel in meeting.program.kernels)
    kernels = prepare_kernels(meeting, H100, left={name: "XLA does it as well"})
    assert kernels == {name: KernelRefusal(name, "XLA does it as well")}


def test_too_many_arrays_are_refused(meeting: Compilation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astitch.xla.xla_engine.MAX_POINTERS", 4)
    (refusal,) = prepare_kernels(meeting, H100).values()
    assert isinstance(refusal, KernelRefusal) and "XLA passes 4" in refusal.reason


@pytest.mark.parametrize(("version", "known"), [("0.10.2", False), ("0.11.0", True), ("1.0", True)])
def test_which_jax_launches_ptx(version: str, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: version)
    assert has_target() is known


# ---- in JAX, without a GPU ---------------------------------------------------------------------------------------


@pytest.fixture
def _as_if_there_was_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """astitch.jit takes the engine xla and plans for an H100; JAX runs the function on its CPU all the same."""
    monkeypatch.setattr(jit_module, "choose_engine", lambda asked=None: "xla")
    monkeypatch.setattr(inside_xla, "target_gpu", lambda: H100)


def lower_for_cuda(fn: Any, *arguments: Any) -> tuple[Stitched, str]:
    """What astitch.jit traced, and JAX's module for CUDA."""
    traced = fn._stitched_jit.trace(*arguments)
    stitched = find_stitched(traced.jaxpr)
    assert stitched is not None
    return stitched, traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.usefixtures("_as_if_there_was_a_gpu")
@pytest.mark.parametrize("name", ["layer_norm_gradients", "two_batch_norms", "attention"])
def test_jax_lowers_a_call_of_the_program(name: str) -> None:
    fn, arguments = CASES[name]
    stitched, text = lower_for_cuda(astitch.jit(fn), *arguments)
    program = stitched.compilation.program
    assert text.count(f"@{TARGET}(") == len(program.kernels) - len(program.notes) > 0
    (call,) = re.findall(r"call @(stitched_\S+)\(", text)
    assert f"func.func private @{call}(" in text
    assert "result_tilings" not in text


@pytest.mark.usefixtures("_as_if_there_was_a_gpu")
def test_what_astitch_does_not_read_stands_in_the_module_beside_kernels() -> None:
    def experts(x: jax.Array, w: jax.Array, counts: jax.Array) -> jax.Array:
        mixed = jax.lax.ragged_dot(jax.nn.softmax(x), w, counts)
        return jnp.tanh(mixed.astype(jnp.int4).astype(jnp.float32))

    arguments = normal(8, 4), normal(3, 4, 5), np.array([2, 3, 3], np.int32)
    stitched, text = lower_for_cuda(astitch.jit(experts), *arguments)
    compilation = stitched.compilation
    kinds = {op.op: op.reason for op in compilation.program.outside}
    assert kinds == {
        "ragged-dot": "astitch does not know 'ragged-dot'",
        "convert": "element type s4 has no emitted form",
    }
    assert text.count(f"@{TARGET}(") == len(compilation.program.kernels) == 2
    assert "ragged_dot" in text and "xi4>" in text


@pytest.mark.usefixtures("_as_if_there_was_a_gpu")
def test_two_programs_in_one_module() -> None:
    """Names of the one do not meet those of the other."""
    fn, arguments = CASES["sort_and_scatter"]
    both = [inside_xla.stitch(fn, {}, None, False) for _ in range(2)]
    traced = jax.jit(lambda *a: [fn(*a) for fn in both]).trace(*arguments)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert len(set(re.findall(r"call @(stitched_\S+)\(", text))) == 2


@pytest.mark.usefixtures("_as_if_there_was_a_gpu")
def test_values_from_outside_are_constants_of_the_program() -> None:
    table = jnp.asarray(normal(300, 40))
    stitched, text = lower_for_cuda(astitch.jit(lambda x: jnp.tanh(x) @ table), normal(4, 300))
    program = stitched.compilation.program
    assert len(program.parameters) == 1
    assert sum(literal.shape == (300, 40) for _, literal in program.constants) == 1
    assert "func.func public @main(%arg0: tensor<4x300xf32>)" in text


@pytest.mark.usefixtures("_as_if_there_was_a_gpu")
def test_bodies_have_kernels_where_that_is_turned_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTITCH_STITCH_LOOPS", "1")
    stitched, text = lower_for_cuda(astitch.jit(lstm), *LSTM)
    (body,) = stitched.compilation.bodies
    assert (body.op, body.compilation.bodies) == ("while", ())
    assert "body_0_stitch_1" in text
    whole, inside = stitched.compilation.explain().split("\n\nin %")
    assert "left to XLA:" not in whole
    assert "\nleft to XLA: " in inside
    assert inside.count("\n  body_0_stitch_0 is left to XLA: it only moves elements") == 1
    monkeypatch.delenv("ASTITCH_STITCH_LOOPS")
    stitched, text = lower_for_cuda(astitch.jit(lambda *a: lstm(*a)), *LSTM)
    assert stitched.compilation.bodies == ()
    assert "body_0_" not in text


def test_bodies_are_tuned_where_the_whole_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def compile_region(
        graph: Graph, gpu: Any, target: Target, *, tune: bool, faults: Any
    ) -> Compilation:
        assert target.region and not target.orders_scatters
        asked.append((target.region.prefix, tune))
        return compile_graph(graph, gpu, target, faults=faults)

    monkeypatch.setattr("astitch.xla.stitch_regions.compile_graph", compile_region)
    whole = compile_graph(import_hlo(lower(nested, normal(8, 8))), few_sms(4))
    stitch_bodies(whole, tune=True)
    assert asked == [("body_0_", True), ("body_0_body_0_", True)]


def test_what_one_fusion_computes_is_left_to_xla() -> None:
    def double(x):
        return jax.lax.fori_loop(0, 4, lambda _, x: jnp.tanh(x @ x) * 2, x)

    graph = import_hlo(lower(double, normal(8, 8)))
    whole = stitch_bodies(compile_graph(graph, few_sms(4)))
    compilation, regions = export_bodies(whole, as_body_text)
    (body,) = compilation.bodies
    (note,) = body.compilation.program.notes
    assert note.endswith("is left to XLA: it has no reduction and results of one size")
    assert regions == {}


@pytest.mark.usefixtures("_as_if_there_was_a_gpu")
def test_notes_name_what_was_left_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astitch.xla.xla_engine.MAX_POINTERS", 1)
    stitched, text = lower_for_cuda(astitch.jit(layer_norm), *ROWS)
    assert TARGET not in text
    (note,) = stitched.compilation.program.notes
    assert note == "stitch_0 is left to XLA: 4 arrays, XLA passes 1"
    assert stitched.compilation.explain().endswith(f"\n\nleft to XLA: 1\n  {note}")


@pytest.mark.usefixtures("_as_if_there_was_a_gpu")
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"donate_argnums": 0}, "p"),
        ({"donate_argnums": (0, 1)}, "pm"),
        ({"donate_argnames": ("p", "m")}, "pm"),
        ({"static_argnames": "rate", "donate_argnames": "m"}, "m"),
    ],
    ids=str,
)
def test_donations_are_found_as_jax_finds_them(options: dict[str, Any], names: str) -> None:
    def fn(p: Any, m: Any, g: Any, *, rate: float = 0.1) -> Any:
        return p - rate * m["a"], {"a": m["a"] + g}

    x = normal(8, 8)
    # Named arguments are flattened in the order of their names.
    for args, kwargs, order in (
        ((x, {"a": x}, x), {}, "pmg"),
        ((x,), {"m": {"a": x}, "g": x}, "pgm"),
    ):
        want = jax.tree.leaves(jax.jit(fn, **options).lower(*args, **kwargs).args_info)
        assert [leaf.donated for leaf in want] == [letter in names for letter in order]
        traced = astitch.jit(fn, **options)._stitched_jit.trace(*args, **kwargs)
        stitched = find_stitched(traced.jaxpr)
        assert stitched is not None
        assert stitched.donated == tuple(letter in names for letter in order)


@pytest.mark.usefixtures("_as_if_there_was_a_gpu")
def test_transposes_between_products_are_left_to_xla() -> None:
    def products(x: jax.Array, w: jax.Array) -> jax.Array:
        heads = (x @ w).reshape(64, 4, 32).transpose(1, 2, 0)
        return jax.lax.optimization_barrier(heads) @ w

    stitched, text = lower_for_cuda(astitch.jit(products), normal(64, 64), normal(64, 128))
    program = stitched.compilation.program
    assert list(program.notes) == [
        f"{kernel.name} is left to XLA: it only permutes what products give or take"
        for kernel in program.kernels
    ]
    assert TARGET not in text
    stitched, text = lower_for_cuda(astitch.jit(lambda x: x.T), normal(64, 32))
    assert text.count(TARGET) == 1 and not stitched.compilation.program.notes


@pytest.mark.usefixtures("_as_if_there_was_a_gpu")
def test_strict_raises_when_jax_lowers() -> None:
    with pytest.raises(UnsupportedOp, match="strict was asked for"):
        lower_for_cuda(astitch.jit(sort_and_scatter, strict=True), *CASES["sort_and_scatter"][1])


def test_the_module_is_stablehlo_with_one_function_for_xla(meeting: Compilation) -> None:
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    module = to_stablehlo(export_program(meeting, prepare_kernels(meeting, H100)))
    with mlir.make_ir_context():
        text = str(ir.Module.parse(module))
    assert "func.func @main(%arg0: tensor<4096x512xf32>, %arg1: tensor<512xf32>" in text
    assert text.count(f"@{TARGET}(") == 1


def test_xla_is_not_there_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astitch.device.cuda_driver.count_devices", lambda: 0)
    with pytest.raises(EngineUnavailable, match="xla was asked for, but CUDA's driver sees no GPU"):
        astitch.jit(lambda x: x, engine="xla")(np.ones(3))


# ---- on a GPU ----------------------------------------------------------------------------------------------------

LARGE: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "layer norm": lambda: (layer_norm, (normal(4096, 1024), normal(1024), normal(1024))),
    "softmax of long rows": lambda: (jax.nn.softmax, (normal(64, 1 << 18),)),
    "batch norm": lambda: (batch_norm, (normal(32, 28, 28, 64), normal(64), normal(64))),
    "two batch norms": lambda: (two_batch_norms, (normal(8192, 256), normal(256), normal(256))),
    "attention": lambda: (attention, (normal(8, 128, 256), normal(256, 768) * 0.05)),
    "training step": lambda: (training_step, training_arguments()),
    "convolution": lambda: (convolve, (normal(8, 32, 32, 16), normal(3, 3, 16, 32))),
    "sort, scatter": lambda: CASES["sort_and_scatter"],
    "loop": lambda: (loop, (normal(64, 64) * 0.1,)),
}


def training_step(params, x, y):
    """Gradients, a clip by their norm, an update that the data may skip."""

    def loss(params):
        hidden = layer_norm(jax.nn.gelu(x @ params["w"]), params["gain"], params["bias"])
        return jnp.square(hidden @ params["v"] - y).mean()

    value, gradients = jax.value_and_grad(loss)(params)
    norm = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(gradients)))
    step = jnp.minimum(1e-2, 1 / norm)
    moved = jax.tree.map(lambda p, g: p - step * g, params, gradients)
    return jax.lax.cond(value < 1e6, lambda: moved, lambda: params), value


def training_arguments():
    params = {
        "w": normal(256, 512) * 0.05,
        "v": normal(512, 256) * 0.05,
        "gain": np.ones(512, np.float32),
        "bias": np.zeros(512, np.float32),
    }
    return params, normal(2048, 256), normal(2048, 256)


@pytest.fixture
def on_xla() -> Iterator[Callable[..., Any]]:
    """astitch.jit with the engine xla; skipped where JAX has none."""
    try:
        astitch.jit(lambda x: x, engine="xla").engine  # noqa: B018
    except EngineUnavailable as error:
        pytest.skip(str(error).splitlines()[0])
    yield partial(astitch.jit, engine="xla")


def assert_agrees(got: Any, want: Any, tolerance: float = 5e-3) -> None:
    """Within a share of the largest value: products may run in TF32."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max(initial=1e-3))


@pytest.mark.gpu
@pytest.mark.parametrize("name", LARGE)
def test_a_gpu_computes_what_xla_does(name: str, on_xla: Callable[..., Any]) -> None:
    fn, arguments = LARGE[name]()
    arguments = jax.device_put(arguments)
    want, stitched = jax.jit(fn)(*arguments), on_xla(fn)
    assert_agrees(stitched(*arguments), want)
    for _ in range(100):
        got = stitched(*arguments)
    assert_agrees(got, want)


@pytest.mark.gpu
def test_a_compiled_function_on_a_gpu_shows_what_it_is(on_xla: Callable[..., Any]) -> None:
    compiled = on_xla(two_batch_norms).lower(*ROWS).compile()
    assert compiled.as_text().count(TARGET) == len(compiled.program.kernels)
    assert compiled.program.kernels[0].name in compiled.explain()
    assert compiled.memory_analysis().argument_size_in_bytes > 0
    assert_agrees(compiled(*ROWS), jax.jit(two_batch_norms)(*ROWS))
    with pytest.raises(TypeError):
        compiled(ROWS[0][:3], *ROWS[1:])


@pytest.mark.gpu
def test_donated_memory_is_used_again_on_a_gpu(on_xla: Callable[..., Any]) -> None:
    def move(state: Any, g: jax.Array) -> Any:
        return jax.tree.map(lambda a: a * 0.5 + g, state), g.sum()

    stitched = on_xla(move, donate_argnums=0)
    g = jnp.asarray(normal(64, 64))
    state = want = {"a": jnp.asarray(normal(64, 64)), "b": jnp.zeros((64, 64))}
    state = jax.tree.map(jnp.copy, state)
    for _ in range(20):
        given, (want, _) = state, jax.jit(move)(want, g)
        state, _ = stitched(state, g)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given))
    assert_agrees(state, want)


@pytest.mark.gpu
def test_out_of_memory_on_a_gpu_says_what_to_do_and_the_next_call_works(
    on_xla: Callable[..., Any],
) -> None:
    """A program whose result finds no room beside what another array holds."""
    words = 1 << 28  # of a result of 1 GiB
    stitched = on_xla(lambda x: jnp.tanh(x) + jnp.zeros((words, 1)))
    x = jnp.ones(1, jnp.float32)
    jax.block_until_ready(stitched(x))
    filler: list[jax.Array] = []
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        while True:
            filler.append(jax.block_until_ready(jnp.zeros(1 << 28, jnp.uint8)))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"RESOURCE_EXHAUSTED.* \d") as caught:
        jax.block_until_ready(stitched(x))
    # An error that comes with the result, not from the call, is JAX's alone.
    assert getattr(caught.value, "__notes__", [inside_xla.NO_ROOM]) == [inside_xla.NO_ROOM]
    del filler, caught
    for _ in range(3):
        assert float(stitched(x)[-1, 0]) == pytest.approx(np.tanh(1.0))


@pytest.mark.gpu
def test_two_threads_on_a_gpu(on_xla: Callable[..., Any]) -> None:
    stitched = on_xla(batch_norm)
    arguments = jax.device_put((normal(8192, 256), normal(256), normal(256)))
    want = jax.jit(batch_norm)(*arguments)
    with ThreadPoolExecutor(2) as pool:
        for got in pool.map(lambda _: stitched(*arguments), range(100)):
            assert_agrees(got, want)


@pytest.mark.gpu
def test_transformations_on_a_gpu(on_xla: Callable[..., Any]) -> None:
    stitched, x = on_xla(lambda x: jnp.tanh(x).sum()), jnp.asarray(normal(16, 16))
    assert_agrees(stitched(x), jnp.tanh(x).sum())
    assert_agrees(jax.grad(stitched)(x), 1 - jnp.tanh(x) ** 2)
    assert_agrees(jax.vmap(stitched)(x), jnp.tanh(x).sum(axis=1))
    assert_agrees(jax.jit(lambda x: stitched(x) * 2)(x), jnp.tanh(x).sum() * 2)
    assert_agrees(stitched(np.asarray(x)), jnp.tanh(x).sum())


@pytest.mark.gpu
def test_calls_of_the_host_on_a_gpu(on_xla: Callable[..., Any]) -> None:
    def fn(x: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct((16,), jnp.float32)
        return jax.pure_callback(lambda v: np.sort(np.asarray(v)), shape, jnp.tanh(x) * 2) + 1

    x = jnp.asarray(normal(16))
    stitched = on_xla(fn)
    with pytest.warns(RuntimeWarning, match="XLA computes all of fn: .* Python"):
        stitched(x)
    for _ in range(3):
        assert_agrees(stitched(x), jnp.sort(jnp.tanh(x) * 2) + 1)


@pytest.mark.gpu
def test_both_engines_agree_on_a_gpu(on_xla: Callable[..., Any]) -> None:
    key, x = jax.random.key(3), jnp.asarray(normal(64, 64))

    def drop(key: jax.Array, x: jax.Array) -> jax.Array:
        return jax.random.bernoulli(key, 0.5, x.shape) * x

    got = on_xla(drop)(key, x)
    assert_agrees(got, astitch.jit(drop, engine="executor")(key, x))
    assert_agrees(got, jax.jit(drop)(key, x))


def test_a_string_for_mlir_has_printable_ascii_only() -> None:
    quoted = _quote('a "b"\\\n\t~é\x7f'.encode())
    assert quoted == '"a \\22b\\22\\5c\\0a\\09~\\c3\\a9\\7f"'
    assert _quote(b"\x7fELF\0") == '"\\7f\\45\\4c\\46\\00"'
