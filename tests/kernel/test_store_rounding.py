"""Which values of f16 and bf16 are rounded by the vector store that packs them, and that their bits are right."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.kernel import kernel_ir as k
from astitch.run.emulate import compile_host
from astitch.toolchain.nvrtc import compile_cuda, find_nvrtcs
from tests.small_gpu import Planned, few_sms, find_statements, plan_for
from tests.whole.test_f8 import launch_on_device

BF16, F16 = np.dtype(jnp.bfloat16), np.dtype(np.float16)

H100 = few_sms(132)

KINDS = {"f16": F16, "bf16": BF16}
WIDTHS = (2, 4, 8)


# ---- the conversions of a pair -----------------------------------------------------------------------------------


def write_encoder(kind: str, width: int) -> str:
    """A kernel: n floats to f16 or bf16, `width` neighbours by one thread."""
    return f"""#include "astitch.cuh"
extern "C" __global__ void __launch_bounds__(256) encode(
    const float* __restrict__ from, {kind}* __restrict__ to, const int* __restrict__ size) {{
  for (int i = (blockIdx.x * blockDim.x + threadIdx.x) * {width}; i < size[0]; i += gridDim.x * blockDim.x * {width}) {{
    Lanes<{kind}, {width}> lanes;
    for (int j = 0; j < {width}; ++j) lanes.v[j] = from[i + j];
    store_lanes(to + i, lanes);
  }}
}}
"""


def write_decoder(width: int) -> str:
    """A kernel: 65,536 codes of bf16 to floats, lane by lane of a vector."""
    return f"""#include "astitch.cuh"
extern "C" __global__ void __launch_bounds__(256) decode(const bf16* __restrict__ from, float* __restrict__ to) {{
  for (int i = (blockIdx.x * blockDim.x + threadIdx.x) * {width}; i < 65536; i += gridDim.x * blockDim.x * {width}) {{
    const Vec<bf16, {width}> codes = *reinterpret_cast<const Vec<bf16, {width}>*>(from + i);
    #pragma unroll
    for (int lane = 0; lane < {width}; ++lane) to[i + lane] = bf16_lane(codes, lane);
  }}
}}
"""


@functools.cache
def list_floats() -> np.ndarray:
    """f32: each upper half before the middle, at it and behind it, so that all of bf16 and its ties are there; all of
    f16, the middles of neighbours, what lies beyond its last number, each with the floats around it; random bits.
    Shuffled, so that special values meet in either lane of a pair."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    bf16 = [upper | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    codes = np.arange(1 << 16, dtype=np.uint16).view(F16).astype(np.float32)
    values = np.unique(codes[np.isfinite(codes)])
    ends = np.array([65520, -65520], np.float32)
    points = np.concatenate([codes, (values[1:] + values[:-1]) / 2, ends]).view(np.uint32)
    f16 = [points + np.uint32(step % (1 << 32)) for step in (-1, 0, 1)]
    rng = np.random.default_rng(16)
    bits = np.concatenate([*bf16, *f16, rng.integers(0, 1 << 32, 100_000, np.uint32)])
    bits = np.concatenate([bits, np.zeros(-len(bits) % 8, np.uint32)])
    return np.asarray(rng.permutation(bits)).view(np.float32)


def assert_encoded(kind: str, codes: np.ndarray) -> None:
    """What ml_dtypes gives, to the bit; of NaN only that it is one: a GPU has one code, the host keeps its payload."""
    floats = list_floats()
    with np.errstate(all="ignore"):
        want = floats.astype(KINDS[kind]).view(np.uint16)
    nan = np.isnan(floats)
    assert np.isnan(codes.view(KINDS[kind])[nan].astype(np.float32)).all()
    where = np.flatnonzero((codes != want) & ~nan)
    shown = [
        f"  {floats.view(np.uint32)[i]:#010x}: {codes[i]:#06x}, expected {want[i]:#06x}"
        for i in where[:8]
    ]
    assert not where.size, f"{kind}: {where.size} of {codes.size} wrong\n" + "\n".join(shown)


def arguments_of_encoder() -> list[np.ndarray]:
    size = list_floats().size
    return [list_floats().copy(), np.full(size, 0x5555, np.uint16), np.array([size], np.int32)]


def arguments_of_decoder() -> list[np.ndarray]:
    return [np.arange(1 << 16, dtype=np.uint16), np.zeros(1 << 16, np.float32)]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_encoded(kind: str, width: int) -> None:
    arguments = arguments_of_encoder()
    compile_host(write_encoder(kind, width)).launch("encode", 4, 256, arguments)
    assert_encoded(kind, arguments[1])


@pytest.mark.gpu
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_encoded_on_the_device(kind: str, width: int) -> None:
    arguments = arguments_of_encoder()
    launch_on_device(write_encoder(kind, width), "encode", 64, arguments)
    assert_encoded(kind, arguments[1])


@pytest.mark.parametrize("width", (1, *WIDTHS))
def test_lanes_are_decoded(width: int) -> None:
    codes, floats = arguments_of_decoder()
    compile_host(write_decoder(width)).launch("decode", 4, 256, [codes, floats])
    np.testing.assert_array_equal(floats.view(np.uint32), codes.astype(np.uint32) << 16)


@pytest.mark.gpu
@pytest.mark.parametrize("width", (1, *WIDTHS))
def test_lanes_are_decoded_on_the_device(width: int) -> None:
    codes, floats = arguments = arguments_of_decoder()
    launch_on_device(write_decoder(width), "decode", 64, arguments)
    np.testing.assert_array_equal(floats.view(np.uint32), codes.astype(np.uint32) << 16)


@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_90", "sm_100"])
def test_every_architecture_compiles_the_pairs(arch: str) -> None:
    """From sm_80 on two floats are converted at once: what comes second in memory stands first in the instruction."""
    if not any(library.knows(arch) for library in find_nvrtcs()):
        pytest.skip(f"no installed NVRTC knows {arch} (sm_70 needs astitch[cuda12])")
    for kind, name in (("f16", b"cvt.rn.f16x2.f32"), ("bf16", b"cvt.rn.bf16x2.f32")):
        ptx = compile_cuda(write_encoder(kind, 8), arch).ptx
        assert ptx.count(name) == (4 if int(arch[3:]) >= 80 else 0)


# ---- values that are only stored -----------------------------------------------------------------------------


def every_code(dtype: np.dtype) -> np.ndarray:
    """All 65,536 of a type."""
    return np.arange(1 << 16, dtype=np.uint16).view(dtype).reshape(64, 1024)


def plan_of(fn: Callable[..., Any], *arguments: np.ndarray) -> tuple[Planned, list[bool]]:
    """The plan, and of each vector that it stores: is it rounded then?"""
    found = plan_for(H100, fn, *arguments)
    stores = find_statements(found.plan.kernel.body, k.StoreVector)
    return found, [store.unrounded for store in stores]


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize(
    "fn",
    [lambda x: x + x, lambda x: x * x - x, lambda x: (x.astype(jnp.float32) / 3).astype(x.dtype)],
    ids=["sum", "several", "convert"],
)
def test_what_is_only_stored_is_rounded_in_pairs(fn: Callable[[Any], Any], dtype: np.dtype) -> None:
    x = every_code(dtype)
    found, unrounded = plan_of(fn, x)
    assert unrounded == [True]
    (got,) = found.run(x)
    with np.errstate(all="ignore"):
        want = np.asarray(fn(x))  # NumPy's: XLA's on the CPU flushes subnormal numbers
    nan = np.isnan(want.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), nan)
    np.testing.assert_array_equal(got.view(np.uint16)[~nan], want.view(np.uint16)[~nan])


@pytest.mark.parametrize(
    "fn",
    [lambda x: -x, lambda x: jnp.maximum(x, 1), lambda x: x[::-1], lambda x: jnp.abs(x)[:, :512]],
    ids=["negate", "maximum", "reverse", "slice"],
)
def test_what_is_exact_keeps_all_of_its_bits(fn: Callable[[jax.Array], jax.Array]) -> None:
    _, unrounded = plan_of(fn, every_code(BF16))
    assert not any(unrounded)


def test_a_copied_nan_keeps_its_payload() -> None:
    x = every_code(BF16)
    found, _ = plan_of(lambda x: jnp.where(x[:1, :1] == 0, x, -x), x)
    (got,) = found.run(x)
    np.testing.assert_array_equal(got.view(np.uint16), x.view(np.uint16))


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("columns", [2, 6, 62, 64])
def test_floats_of_every_kind_are_rounded_once(dtype: np.dtype, columns: int) -> None:
    """Ties, subnormal numbers, what overflows, -0.0: rows that are not whole vectors too."""
    floats = list_floats()[: 60_000 // columns * columns].reshape(-1, columns)
    found, unrounded = plan_of(lambda x: (x * 1.0 + -0.0).astype(dtype), floats)
    assert unrounded == [True]
    (got,) = found.run(floats, check=columns == 62)
    with np.errstate(all="ignore"):
        want = floats.astype(dtype)
    nan = np.isnan(floats)
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), nan)
    np.testing.assert_array_equal(got.view(np.uint16)[~nan], want.view(np.uint16)[~nan])


def test_what_is_read_again_is_rounded_before() -> None:
    def both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = x + x
        return y, jnp.exp(y.astype(jnp.float32))

    _, unrounded = plan_of(both, every_code(BF16))
    assert unrounded == [False, False]


def test_of_many_vectors_none_waits_as_floats() -> None:
    def several(x: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(x * n for n in (3, 5, 7, 9, 11))

    _, unrounded = plan_of(several, every_code(BF16))
    assert len(unrounded) == 5 and not any(unrounded)
