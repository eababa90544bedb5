"""The module that is written computes what XLA does, on the host."""

from __future__ import annotations

from itertools import pairwise

import jax
import numpy as np
import pytest

from astitch.compile import compile_graph
from astitch.graph.ir import ArrayType, CustomCallAttrs, DType, TupleType
from astitch.hlo.mlir_text import quote
from astitch.hlo.stablehlo import to_stablehlo
from astitch.hlo_import import import_hlo
from astitch.pipeline import Launcher, Target
from astitch.program.steps import KernelStep
from astitch.show.compilation import Compilation
from astitch.xla.prepare_kernels import KernelRefusal, XlaKernel, prepare_kernels
from astitch.xla.write_module import TARGET, export_program, write_backend_config
from tests.emulated_xla import (
    CASES,
    H100,
    MEETING,
    as_text,
    compile_case,
    compile_meeting,
    config_of,
    is_kernel,
    parse_config,
    run_module,
)
from tests.hlo_runner import lower, run_xla
from tests.small_gpu import few_sms


@pytest.fixture(scope="module")
def meeting() -> Compilation:
    return compile_meeting()


@pytest.mark.parametrize("name", CASES)
def test_the_module_computes_what_xla_does(name: str) -> None:
    fn, arguments = CASES[name]
    compilation = compile_case(name)
    hlo = export_program(compilation, as_text(compilation))
    calls = [node for node in import_hlo(hlo) if is_kernel(node)]
    assert len(calls) == len(compilation.program.kernels)
    want = jax.tree.leaves(jax.jit(fn)(*arguments))
    for check in (False, False, True):  # the words at which blocks meet carry over
        got = run_module(hlo, arguments, check)
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


@pytest.mark.parametrize("few", [True, False])
def test_what_kernels_and_products_read_is_computed_once(
    few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XLA computes a ReLU with the product before it; it may not with the one behind it, too, unless it is small."""
    monkeypatch.setattr("astitch.xla.write_module.LEAST_KEPT_BYTES", 1 << 20 if few else 0)

    def fn(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(x @ w)
        return jax.nn.softmax(jax.nn.softmax(hidden @ v) @ w) * hidden

    rng = np.random.default_rng(0)
    shapes = (96, 128), (128, 160), (160, 128)
    arguments = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    graph = import_hlo(lower(fn, *arguments, keep_unused=True))
    compilation = compile_graph(graph, few_sms(4), Target(launcher=Launcher.XLA))
    hlo = export_program(compilation, as_text(compilation))
    written = import_hlo(hlo)
    kept = [node for node in written if node.op == "optimization-barrier"]
    assert len(kept) == (0 if few else 1)
    for node in kept:
        assert written[node.operands[0]].op == "maximum"
        assert {written[user].op for user in written.users[node.name]} >= {"dot", "custom-call"}
    (got,) = run_module(hlo, arguments)
    np.testing.assert_allclose(got, jax.jit(fn)(*arguments), rtol=2e-4, atol=2e-5)


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


def test_the_module_is_stablehlo_with_one_function_for_xla(meeting: Compilation) -> None:
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    module = to_stablehlo(export_program(meeting, prepare_kernels(meeting, H100)))
    with mlir.make_ir_context():
        text = str(ir.Module.parse(module))
    assert "func.func @main(%arg0: tensor<4096x512xf32>, %arg1: tensor<512xf32>" in text
    assert text.count(f"@{TARGET}(") == 1


def test_a_string_for_mlir_has_printable_ascii_only() -> None:
    quoted = quote('a "b"\\\n\t~é\x7f'.encode())
    assert quoted == '"a \\22b\\22\\5c\\0a\\09~\\c3\\a9\\7f"'
    assert quote(b"\x7fELF\0") == '"\\7f\\45\\4c\\46\\00"'
