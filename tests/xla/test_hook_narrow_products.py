"""Products of few rows through XLA's hook: no layer of weights is copied, and values are those of the plain module."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from astitch.errors import KernelCompileError
from astitch.hlo.tile_call import TRITON
from astitch.tile.narrow_product import NARROW_PRODUCT
from astitch.toolchain.nvrtc import CompiledKernel, Request
from astitch.xla import prepare_products
from tests.ahead_of_time import compile_ahead, hooked, needs_hook
from tests.emulated_xla import config_of, kernels_of
from tests.hook_evaluation import Hooked, put, stitch_through_hook

pytestmark = needs_hook

WIDTH, LAYERS, ROWS, GROUP = 1536, 3, 4, 128
SHAPE = (LAYERS, WIDTH, WIDTH)


def normal(*shape: int, dtype: Any = ml_dtypes.bfloat16) -> np.ndarray:
    values = np.random.default_rng(0).standard_normal(shape) / np.sqrt(shape[-1])
    return values.astype(dtype)


def scan(product: Callable[..., Any]) -> Callable[..., Any]:
    def fn(x: Any, *weights: Any) -> Any:
        def turn(h: Any, w: Any) -> tuple[Any, None]:
            return h + jnp.tanh(product(h, *w)), None

        return lax.scan(turn, x, weights)[0]

    return fn


def counted(x: Any, ws: Any) -> Any:
    """By a number, as a loop that is not a scan."""
    return lax.fori_loop(0, LAYERS, lambda i, h: h + jnp.tanh(h @ ws[i]), x)


def of_bytes(h: Any, q: Any, s: Any) -> Any:
    return (h @ q.astype(h.dtype)) * s


def of_groups(h: Any, q: Any, s: Any) -> Any:
    w = q.reshape(-1, GROUP, WIDTH).astype(h.dtype) * s[:, None]
    return h @ w.reshape(WIDTH, WIDTH)


def sides(h: Any, *weights: Any) -> Any:
    return sum(h @ w for w in weights)


def of_heads(x: Any, w: Any) -> Any:
    """The depth stands between two dimensions of the columns, for which XLA transposes the weights."""
    return jnp.tanh(jnp.einsum("bd,hdk->bhk", x, w))


BYTES = np.random.default_rng(1).integers(-7, 8, SHAPE).astype(np.int8)
SCALES = normal(LAYERS, WIDTH // GROUP, WIDTH)

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "scan": (scan(lambda h, w: h @ w), (normal(*SHAPE),)),
    "scan of f32": (scan(lambda h, w: h @ w), (normal(*SHAPE, dtype=np.float32),)),
    "transposed": (scan(lambda h, w: h @ w.T), (normal(*SHAPE),)),
    "fori_loop": (counted, (normal(*SHAPE),)),
    "heads": (of_heads, (normal(12, WIDTH, 128),)),
    "side by side": (scan(sides), (normal(*SHAPE), normal(*SHAPE))),
    "bytes": (scan(of_bytes), (BYTES, normal(LAYERS, WIDTH))),
    "groups": (scan(of_groups), (BYTES, SCALES)),
    "groups of four bits": (scan(of_groups), (BYTES.astype(ml_dtypes.int4), SCALES)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_weights_are_read_where_they_lie(name: str) -> None:
    fn, weights = PROGRAMS[name]
    x = normal(ROWS, WIDTH, dtype=weights[0].dtype if name == "scan of f32" else weights[-1].dtype)
    arguments = put((x, *weights))
    plain = compile_ahead(fn, *arguments)
    with hooked() as seen:
        stitched = compile_ahead(fn, *arguments)
    assert seen.stitchings and TRITON in stitched.as_text()
    saved = plain.memory_analysis().temp_size_in_bytes
    saved -= stitched.memory_analysis().temp_size_in_bytes
    assert saved >= 0.9 * weights[0][0].size * (0.5 if "four" in name else weights[0].itemsize)


@pytest.mark.parametrize("name", ["scan", "fori_loop", "bytes", "groups", "heads"])
def test_values_are_those_of_the_plain_module(name: str) -> None:
    fn, weights = PROGRAMS[name]
    x = normal(ROWS, WIDTH)
    hooked_program = stitch_through_hook(fn, x, *weights)
    assert hooked_program.kernels
    (got,) = hooked_program.run([x, *weights])
    exact = [w.astype(np.float32) for w in weights]
    want = np.asarray(jax.jit(fn)(x.astype(np.float32), *exact), np.float64)
    distance = np.linalg.norm(np.asarray(got, np.float64) - want)
    assert distance <= 2e-2 * np.linalg.norm(want)


# ---- integers that are fed from registers


WIDE = 2048
"""With it a matrix has as many numbers as such a kernel needs."""


def draw_bytes(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(-7, 8, shape).astype(np.int8)


def of_wide_groups(h: Any, q: Any, s: Any) -> Any:
    w = q.reshape(-1, GROUP, WIDE).astype(h.dtype) * s[:, None]
    return h @ w.reshape(WIDE, WIDE)


def of_branches(h: Any, q: Any, s: Any) -> Any:
    return lax.cond(s[0] < 9, lambda: jnp.tanh(of_bytes(h, q, s)), lambda: h)


def of_experts(h: Any, q: Any, s: Any) -> Any:
    """h: [rows, 4 x 512]; each expert has other rows."""
    rows = h.reshape(-1, 4, WIDE // 4).swapaxes(0, 1)
    return jnp.einsum("ebd,edf->ebf", rows, q.astype(h.dtype)) * s


def of_a_gate(h: Any, *given: Any) -> Any:
    a, b = (of_bytes(h, q, s) for q, s in zip(given[::2], given[1::2], strict=True))
    return jax.nn.silu(a) * b


SQUARE, FACTORS = draw_bytes(WIDE, WIDE), normal(WIDE)
FED: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "scan": (scan(of_bytes), (draw_bytes(2, WIDE, WIDE), normal(2, WIDE))),
    "groups": (of_wide_groups, (SQUARE, normal(WIDE // GROUP, WIDE))),
    "branches": (of_branches, (SQUARE, FACTORS)),
    "experts": (of_experts, (draw_bytes(4, WIDE // 4, WIDE), normal(4, 1, WIDE))),
    "gate": (of_a_gate, (SQUARE, FACTORS, draw_bytes(WIDE, WIDE)[::-1], FACTORS)),
}


def list_products(program: Hooked) -> list[dict[str, Any]]:
    """How XLA launches the kernels of products."""
    launches = map(config_of, kernels_of(program.graph))
    return [launch for launch in launches if launch["name"].startswith(NARROW_PRODUCT)]


@pytest.mark.parametrize("name", FED)
def test_integers_are_fed_from_registers(name: str) -> None:
    """By a kernel of CUDA text, which has its shared memory itself."""
    fn, weights = FED[name]
    x = normal(ROWS, WIDE)
    program = stitch_through_hook(fn, x, *weights)
    (launch,) = list_products(program)
    assert launch["shared_mem_bytes"] == 0 and TRITON.encode() not in program.module
    (got,) = program.run([x, *weights])
    exact = [w.astype(np.float32) for w in weights]
    want = np.asarray(jax.jit(fn)(x.astype(np.float32), *exact), np.float64)
    distance = np.linalg.norm(np.asarray(got, np.float64) - want)
    assert distance <= 2e-2 * np.linalg.norm(want)


def test_a_kernel_that_does_not_compile_is_tritons(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: Request) -> CompiledKernel:
        raise KernelCompileError("no such instruction")

    monkeypatch.setenv("ASTITCH_FAULTS", "")
    monkeypatch.setattr(prepare_products, "compile_cached", refuse)
    program = stitch_through_hook(of_bytes, normal(ROWS, WIDE), SQUARE, FACTORS)
    assert not list_products(program) and program.module.count(TRITON.encode()) == 1
    assert program.stitching
    (fault,) = program.stitching.compilation.faults
    assert fault.error == "KernelCompileError: no such instruction"


def test_an_error_in_the_text_leaves_products_to_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTITCH_FAULTS", "")
    monkeypatch.setattr(prepare_products, "write_fragment_kernel", lambda *_: 1 / 0)
    fn, weights = FED["scan"]
    program = stitch_through_hook(fn, normal(ROWS, WIDE), *weights)
    assert not list_products(program) and program.module.count(TRITON.encode()) == 1
    assert program.stitching
    (fault,) = program.stitching.compilation.faults
    assert fault.stage == "prepare_products"


@pytest.mark.parametrize("rows", [2, ROWS, 33])
def test_results_lie_row_by_row(rows: int) -> None:
    """What reads them wants them turned, for which XLA once had the kernel's array read as a turned one."""

    def fn(x: Any, ws: Any) -> Any:
        def turn(x: Any, w: Any) -> tuple[Any, Any]:
            return x, of_heads(x, w).reshape(rows, -1)

        return lax.scan(turn, x, ws)[1]

    arguments = put((normal(rows, WIDTH), normal(LAYERS, 12, WIDTH, 128)))
    with hooked():
        text = compile_ahead(fn, *arguments).as_text()
    (call,) = (line for line in text.splitlines() if f'custom_call_target="{TRITON}"' in line)
    layouts = re.findall(r"\[[\d,]+\]\{([\d,]+)\}", call.split("metadata")[0])
    assert len(layouts) >= 3
    for layout in layouts:
        assert layout == ",".join(sorted(layout.split(","), reverse=True))


# ---- one row, whose products XLA turns into sums


def norm(x: Any) -> Any:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype)


def of_rows(x: Any, w: Any) -> Any:
    return x @ w


def of_columns(x: Any, w: Any) -> Any:
    return x @ w.T


def of_vector(x: Any, w: Any) -> Any:
    """As equinox has it."""
    return jax.vmap(lambda v: w @ v)(x)


ONE_ROW = {"rows": of_rows, "columns": of_columns, "vector": of_vector}
NARROW = 768
"""Columns of two of the matrices."""


def layer(product: Callable[..., Any]) -> Callable[..., Any]:
    """Three products of one row, of which one is gated, and one behind them."""

    def fn(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
        h = norm(x)
        q, k, v = (product(h, w) for w in (wq, wk, wv))
        gated = q * jax.nn.sigmoid(jnp.concatenate([k, v], -1))
        return x + product(gated, wo)

    return fn


@pytest.mark.parametrize("name", ONE_ROW)
def test_products_of_one_row_are_two_kernels(name: str) -> None:
    """Three of the same row are one, also where XLA has turned them into sums."""
    fn = layer(ONE_ROW[name])
    columns = (WIDTH, NARROW, NARROW, WIDTH)
    weights = [normal(n, WIDTH) if name != "rows" else normal(WIDTH, n) for n in columns]
    x = normal(1, WIDTH)
    with hooked() as seen:
        stitched = compile_ahead(fn, *put((x, *weights)))
    (stitching,) = seen.stitchings
    assert stitching.kernels
    calls = stitched.as_text().count(f'custom_call_target="{TRITON}"')
    assert calls == 2
    hooked_program = stitch_through_hook(fn, x, *weights)
    (got,) = hooked_program.run([x, *weights])
    exact = [w.astype(np.float32) for w in weights]
    want = np.asarray(jax.jit(fn)(x.astype(np.float32), *exact), np.float64)
    distance = np.linalg.norm(np.asarray(got, np.float64) - want)
    assert distance <= 2e-2 * np.linalg.norm(want)


def multiply_alone(x: Any, w: Any) -> Any:
    return x @ w


def multiply_columns_first(x: Any, w: Any) -> Any:
    return jnp.einsum("bk,nk->bn", x, w)


def multiply_experts(x: Any, w: Any) -> Any:
    return jnp.einsum("ebd,edf->ebf", x.reshape(2, -1, WIDTH), w)


ALONE: dict[Callable[..., Any], tuple[int, ...]] = {
    multiply_alone: (WIDTH, 1024),
    multiply_columns_first: (1024, WIDTH),
    multiply_experts: (2, WIDTH, 1024),
}


@pytest.mark.parametrize("fn", ALONE)
def test_a_product_alone_is_worth_a_kernel(fn: Callable[..., Any]) -> None:
    x, w = normal(32, WIDTH), normal(*ALONE[fn])
    hooked_program = stitch_through_hook(fn, x, w)
    assert hooked_program.stitching is not None and TRITON.encode() in hooked_program.module
    (got,) = hooked_program.run([x, w])
    want = np.asarray(jax.jit(fn)(x.astype(np.float32), w.astype(np.float32)), np.float64)
    distance = np.linalg.norm(np.asarray(got, np.float64).reshape(want.shape) - want)
    assert distance <= 2e-2 * np.linalg.norm(want)


@pytest.mark.parametrize("rows", [256, WIDTH])
def test_other_products_alone_are_not_looked_at(rows: int) -> None:
    """Of small weights, and of so many rows that they are not narrow."""
    width = 128 if rows == 256 else WIDTH
    hooked_program = stitch_through_hook(multiply_alone, normal(rows, width), normal(width, width))
    assert hooked_program.stitching is None


def scale_columns(h: Any, q: Any, s: Any) -> Any:
    return h @ (q.astype(h.dtype) * s[0])


def scale_rows(h: Any, q: Any, s: Any) -> Any:
    return h @ (q.astype(h.dtype) * s[0][:, None])


def scale_turned(h: Any, q: Any, s: Any) -> Any:
    return jnp.einsum("bk,nk->bn", h, q.astype(h.dtype) * s[0][:, None])


@pytest.mark.parametrize("dtype", [np.int8, ml_dtypes.int4, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("fn", [scale_columns, scale_rows, scale_turned])
def test_no_scaled_weights_are_written(fn: Callable[..., Any], dtype: Any) -> None:
    arguments = put((normal(ROWS, WIDTH), BYTES[0].astype(dtype), normal(2, WIDTH)))
    with hooked():
        stitched = compile_ahead(fn, *arguments)
    assert stitched.memory_analysis().temp_size_in_bytes < BYTES[0].size / 2


def test_scaled_bytes_give_the_same() -> None:
    given = normal(ROWS, WIDTH), BYTES[0], normal(2, WIDTH)
    for fn in (scale_columns, scale_rows, scale_turned):
        (got,) = stitch_through_hook(fn, *given).run(given)
        want = np.asarray(jax.jit(fn)(*(a.astype(np.float32) for a in given)), np.float64)
        distance = np.linalg.norm(np.asarray(got, np.float64) - want)
        assert distance <= 2e-2 * np.linalg.norm(want)


def test_scaled_matrices_side_by_side_are_one_kernel() -> None:
    def fn(h: Any, *given: Any) -> Any:
        first, second = (
            (q.astype(h.dtype) * s) for q, s in zip(given[::2], given[1::2], strict=True)
        )
        return jnp.tanh(h @ first) * (h @ second)

    scales = normal(2, WIDTH)
    arguments = put((normal(ROWS, WIDTH), BYTES[0], scales[0], BYTES[1], scales[1]))
    with hooked():
        stitched = compile_ahead(fn, *arguments)
    assert stitched.as_text().count(f'name = "{NARROW_PRODUCT}') == 1
    assert stitched.memory_analysis().temp_size_in_bytes < BYTES[0].size
