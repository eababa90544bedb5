"""Kernels that are a product's epilogue: which are, in whose terms, and why others are not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.compile import compile_graph, compile_hlo
from astitch.graph.reference import eval_node
from astitch.hlo_import import import_hlo
from astitch.pipeline import Launcher, Target
from astitch.program.file import pack_program, unpack_program
from astitch.program.steps import Activation, Epilogue, KernelStep, LibraryStep, Program, Space
from tests.hlo_runner import lower, run_xla

F32, F16, BF16 = jnp.float32, jnp.float16, jnp.bfloat16
NONE, RELU, GELU = Activation


def arrays(*shapes: tuple[int, ...], dtype: Any = F32) -> list[Any]:
    rng = np.random.default_rng(0)
    return [np.asarray(rng.standard_normal(shape), np.float32).astype(dtype) for shape in shapes]


def compile_function(fn: Callable[..., Any], arguments: list[Any]) -> Program:
    return compile_hlo(lower(fn, *arguments), gpu="h100").program


def tanh_gelu(x: Any) -> Any:
    return jax.nn.gelu(x, approximate=True)


def written_out(x: Any) -> Any:
    """The same, in other words."""
    inner = 0.7978845608028654 * x * (1 + 0.044715 * jnp.square(x))
    return 0.5 * x + 0.5 * x * jnp.tanh(inner)


def in_f32(x: Any, w: Any) -> Any:
    return jnp.matmul(x, w, preferred_element_type=F32)


XW = ((6, 8), (8, 16))
FOUND: dict[str, tuple[Callable[..., Any], list[Any], Activation, str]] = {
    "bias": (lambda x, w, b: x @ w + b, arrays(*XW, (16,)), NONE, "bias"),
    "relu": (lambda x, w: jax.nn.relu(x @ w), arrays(*XW), RELU, ""),
    "bias relu": (lambda x, w, b: jnp.maximum(0, b + x @ w), arrays(*XW, (16,)), RELU, "bias"),
    "bias gelu": (lambda x, w, b: tanh_gelu(x @ w + b), arrays(*XW, (16,)), GELU, "bias"),
    "gelu": (lambda x, w: written_out(x @ w), arrays(*XW), GELU, ""),
    "residual": (lambda x, w, r: r + x @ w, arrays(*XW, (6, 16)), NONE, "residual"),
    "residual bias gelu": (
        lambda x, w, r, b: tanh_gelu((x @ w + r) + b),
        arrays(*XW, (6, 16), (16,)),
        GELU,
        "residual bias",
    ),
    "many dimensions": (
        lambda x, w, b: jax.nn.relu(jnp.einsum("abk,khd->abhd", x, w) + b).reshape(6, 16),
        arrays((2, 3, 8), (8, 2, 8), (2, 8)),
        RELU,
        "bias",
    ),
    "batches": (
        lambda x, w, r: jnp.einsum("abk,akd->abd", x, w) + r,
        arrays((2, 6, 8), (2, 8, 16), (2, 6, 16)),
        NONE,
        "residual",
    ),
    "transposed": (
        lambda x, w, b: jnp.einsum("ka,dk->ad", x, w) + b,
        arrays((8, 6), (16, 8), (1, 16)),
        NONE,
        "bias",
    ),
    "bf16": (
        lambda x, w, b: jax.nn.relu(in_f32(x, w) + b).astype(BF16),
        arrays(*XW, (16,), dtype=BF16),
        RELU,
        "bias",
    ),
    "f16 residual": (
        lambda x, w, r: (in_f32(x, w) + r.astype(F32)).astype(F16),
        arrays(*XW, (6, 16), dtype=F16),
        NONE,
        "residual",
    ),
    "rounded": (lambda x, w: in_f32(x, w).astype(BF16), arrays(*XW, dtype=BF16), NONE, ""),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_kernel_that_is_an_epilogue(name: str) -> None:
    """Its product finished so is what XLA computes."""
    fn, arguments, activation, terms = FOUND[name]
    program = compile_function(fn, arguments)
    (epilogue,) = program.epilogues
    assert epilogue.activation is activation
    found = [word for word in ("residual", "bias") if getattr(epilogue, word)]
    assert " ".join(found) == terms
    assert program.no_epilogues == ()
    got = finish(program, epilogue, arguments)
    (want,) = run_xla(lower(fn, *arguments), arguments)
    assert got.dtype == want.dtype
    tolerance = 1e-2 if got.itemsize == 2 else 1e-5
    np.testing.assert_allclose(
        np.float32(got), np.float32(want).reshape(got.shape), rtol=tolerance, atol=tolerance
    )


def finish(program: Program, epilogue: Epilogue, arguments: list[Any]) -> np.ndarray:
    """The result as a library computes it: from the product's operands, in row-major order."""
    values = {view.buffer: array for view, array in zip(program.parameters, arguments, strict=True)}
    step = next(s for s in program.steps if isinstance(s, LibraryStep))
    assert step.node.name == epilogue.product
    (total,) = eval_node(step.node, [values[view.buffer] for view in step.operands])
    rows = total.reshape(-1, total.shape[-1] if epilogue.bias is None else epilogue.bias.type.size)
    if epilogue.residual:
        rows = rows + values[epilogue.residual.buffer].reshape(rows.shape).astype(np.float32)
    if epilogue.bias:
        rows = rows + values[epilogue.bias.buffer].reshape(-1).astype(np.float32)
    if epilogue.activation is RELU:
        rows = np.maximum(rows, 0)
    if epilogue.activation is GELU:
        rows = 0.5 * rows * (1 + np.tanh(np.sqrt(2 / np.pi) * (rows + 0.044715 * rows**3)))
    type_ = epilogue.result.type
    return rows.reshape(type_.shape).astype(type_.dtype.numpy)


STEPS: dict[str, Callable[..., Any]] = {
    "residual": lambda y, r, b: y + r,
    "bias": lambda y, r, b: b + y,
    "part": lambda y, r, b: (y.reshape(6, 4, 4) + b.reshape(4, 4)).reshape(6, 16),
    "backwards": lambda y, r, b: y + b[::-1],
    "rows": lambda y, r, b: y + r[:, :1],
    "relu": lambda y, r, b: jax.nn.relu(y),
    "gelu": lambda y, r, b: tanh_gelu(y),
    "once": lambda y, r, b: y * 1.0,
    "above": lambda y, r, b: jnp.maximum(y, 1e-3),
    "negated": lambda y, r, b: -y,
}


@pytest.mark.parametrize("seed", range(40))
def test_what_is_found_behind_products_is_what_xla_computes(seed: int) -> None:
    """Any steps in any order, most of which are no epilogue."""
    rng = np.random.default_rng(seed)
    names = rng.choice(list(STEPS), rng.integers(1, 5))
    dtype = (F32, BF16)[seed % 2]
    arguments = arrays(*XW, (6, 16), (16,), dtype=dtype)

    def fn(x: Any, w: Any, r: Any, b: Any) -> Any:
        y = in_f32(x, w)
        for name in names:
            y = STEPS[name](y, r, b)
        return y.astype(dtype)

    hlo = lower(fn, *arguments, keep_unused=True)
    program = compile_hlo(hlo, gpu="h100").program
    assert len(program.epilogues) + len(program.no_epilogues) <= 1
    for epilogue in program.epilogues:
        got = finish(program, epilogue, arguments)
        (want,) = run_xla(hlo, arguments, optimise=False)
        loose = 1e-5 if dtype is F32 else 1e-2
        np.testing.assert_allclose(
            np.float32(got).ravel(), np.float32(want).ravel(), rtol=loose, atol=loose
        )


def erf_gelu(x: Any) -> Any:
    return jax.nn.gelu(x, approximate=False)


REFUSED: dict[str, tuple[Callable[..., Any], list[Any], str]] = {
    "bias first": (
        lambda x, w, r, b: (x @ w + b) + r,
        arrays(*XW, (6, 16), (16,)),
        "adds %.* behind the bias",
    ),
    "by rows": (
        lambda x, w, b: x @ w + b[:, None],
        arrays(*XW, (6,)),
        "neither a bias for each column nor a residual",
    ),
    "erf": (lambda x, w: erf_gelu(x @ w), arrays(*XW), "neither ReLU nor GELU by tanh"),
    "clipped": (lambda x, w: jnp.clip(x @ w, 0, 6), arrays(*XW), "neither ReLU nor GELU by tanh"),
    "other constants": (
        lambda x, w: 0.5 * (y := x @ w) * (1 + jnp.tanh(0.7979 * (y + 0.0447 * y**3))),
        arrays(*XW),
        "neither ReLU nor GELU by tanh",
    ),
    "twice": (lambda x, w: (y := x @ w) + y, arrays(*XW), "neither ReLU nor GELU by tanh"),
    "masked": (lambda x, w, r: x @ w * r, arrays(*XW, (6, 16)), "computes with %.* besides"),
    "also read": (lambda x, w: ((y := x @ w), jax.nn.relu(y)), arrays(*XW), "has 2 readers"),
    "two results": (
        lambda x, w: (jax.nn.relu(y := x @ w), jnp.tanh(y)),
        arrays(*XW),
        "writes 2 arrays",
    ),
    "softmax": (lambda x, w: jax.nn.softmax(x @ w), arrays(*XW), "is a reduce"),
    "transposed": (lambda x, w: jax.nn.relu(x @ w).T, arrays(*XW), "is a transpose"),
    "bf16": (
        lambda x, w, b: x @ w + b,
        arrays(*XW, (16,), dtype=BF16),
        "is rounded to bf16 before",
    ),
    "bf16 bias": (
        lambda x, w, b: in_f32(x, w) + b,
        arrays(*XW, (16,), dtype=BF16),
        "neither a bias|whose type is not the result's f32",
    ),
    "f64": (
        lambda x, w, r: x.astype(jnp.float64) @ w + r,
        arrays(*XW, (6, 16), dtype=np.float64),
        "makes f64 of f64",
    ),
    "computed bias": (
        lambda x, w, b: x @ w + jnp.exp(b),
        arrays(*XW, (16,)),
        "which it adds, is computed in it|writes 3 arrays",
    ),
    "f32 to bf16": (
        lambda x, w: (x @ w).astype(BF16),
        arrays(*XW),
        "no library makes bf16 of f32",
    ),
    "batched bias": (
        lambda x, w, b: jnp.einsum("abk,akd->abd", x, w) + b,
        arrays((2, 6, 8), (2, 8, 16), (16,)),
        "a bias to a batched product",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_kernel_that_is_more(name: str) -> None:
    fn, arguments, reason = REFUSED[name]
    with jax.enable_x64(name == "f64"):
        program = compile_function(fn, arguments)
    assert program.epilogues == ()
    (told,) = program.no_epilogues
    assert re.search(rf"^stitch_0 is no epilogue: .*({reason})", told)


def test_a_product_added_to_a_product_is_its_residual() -> None:
    arguments = arrays(*XW, (6, 8), (8, 16))
    program = compile_function(lambda x, w, y, v: x @ w + y @ v, arguments)
    (epilogue,) = program.epilogues
    products = [s.node.name for s in program.steps if isinstance(s, LibraryStep)]
    assert epilogue.residual is not None
    assert {epilogue.product, epilogue.residual.buffer} == set(products)


def mlp(x: Any, *layers: Any) -> Any:
    """layers: a matrix and a bias for each."""
    for w, b in zip(layers[::2], layers[1::2], strict=True):
        x = tanh_gelu(x @ w + b)
    return x


MLP = arrays((64, 32), (32, 128), (128,), (128, 32), (32,), (32, 64), (64,))


def test_operands_stay_until_the_kernel() -> None:
    """Nothing that lives between a product and its kernel shares memory with the product's operands or the result."""
    program = compile_function(mlp, MLP)
    assert len(program.epilogues) == 3
    numbers = {
        s.kernel.name if isinstance(s, KernelStep) else s.node.name: i
        for i, s in enumerate(program.steps)
        if isinstance(s, KernelStep | LibraryStep)
    }
    for epilogue in program.epilogues:
        first, last = numbers[epilogue.product], numbers[epilogue.kernel]
        operands = program.steps[first].operands
        written = {epilogue.result.buffer}
        for step in program.steps[first:last]:
            written |= {view.buffer for view in step.results}
        places = [program.buffers[name] for name in written]
        for view in operands:
            held = program.buffers[view.buffer]
            for other in places:
                if held.space is other.space is Space.ARENA:
                    ends = held.offset + held.type.bytes, other.offset + other.type.bytes
                    assert ends[0] <= other.offset or ends[1] <= held.offset


def test_the_program_and_its_explanation_name_them() -> None:
    compilation = compile_hlo(lower(mlp, *MLP), gpu="h100")
    program = compilation.program
    text = compilation.explain()
    assert "epilogues, where cuBLASLt is there and faster: 3\n  stitch_0 = GELU(%" in text
    packed = unpack_program(pack_program(program))
    assert packed is not None
    assert packed.epilogues == program.epilogues
    assert all(isinstance(e, Epilogue) for e in packed.epilogues)


def test_programs_inside_xla_have_none() -> None:
    from astitch.device.gpu import preset
    from astitch.xla.compile_module import compile_for_xla

    compilation, _ = compile_for_xla(import_hlo(lower(mlp, *MLP)), preset("h100"))
    assert compilation.program.epilogues == () == compilation.program.no_epilogues
    assert "epilogue" not in compilation.explain()


@pytest.mark.parametrize(("activation", "kernels"), [(jax.nn.relu, 0), (tanh_gelu, 1)])
def test_xla_finishes_its_products_itself(activation: Any, kernels: int) -> None:
    """But for what takes the sum more than once."""
    from astitch.device.gpu import preset

    hlo = lower(lambda x, w, b: activation(x @ w + b), *arrays((64, 128), (128, 16), (16,)))
    compilation = compile_graph(import_hlo(hlo), preset("h100"), Target(launcher=Launcher.XLA))
    assert len(compilation.plans) == kernels
