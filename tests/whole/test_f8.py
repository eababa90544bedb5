"""f8 values: the conversions of cuda/types.cuh to the bit, and how emitted kernels store them.

The same kernel runs in the emulation and, where there is one, on a GPU.  A GPU's conversion instruction rounds as IEEE
says but saturates and has a single NaN; both must give the bits that ml_dtypes gives, payloads of NaN aside.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hlo_runner import parse_hlo_text

from astitch.compile import compile_hlo
from astitch.device.gpu import preset
from astitch.graph.index import ZERO
from astitch.graph.ir import DType, NoAttrs
from astitch.kernel import kernel_ir as k
from astitch.kernel.store_rounding import round_at_stores
from astitch.run.emulate import compile_host
from astitch.run.host_engine import HostEngine
from astitch.show.compilation import Compilation
from astitch.toolchain.nvrtc import compile_cuda, find_nvrtcs

TYPES = {"f8e4m3fn": DType.F8E4M3FN, "f8e5m2": DType.F8E5M2}
WIDTHS = (1, 2, 4, 16)
"""Lanes that are converted at once: alone, a pair, a word, several words."""

ARCHITECTURES = ("sm_70", "sm_80", "sm_89", "sm_90", "sm_100")


def write_encoder(kind: str, width: int) -> str:
    """A kernel: n floats to f8, `width` neighbours by one thread.  width 1: as a scalar store does it."""
    store = (
        f"to[i] = store_as<{kind}>(from[i]);"
        if width == 1
        else f"Lanes<{kind}, {width}> lanes;\n"
        f"    for (int j = 0; j < {width}; ++j) lanes.v[j] = from[i + j];\n"
        "    store_lanes(to + i, lanes);"
    )
    return f"""#include "astitch.cuh"
extern "C" __global__ void __launch_bounds__(256) encode(
    const float* __restrict__ from, {kind}* __restrict__ to, const int* __restrict__ size) {{
  for (int i = (blockIdx.x * blockDim.x + threadIdx.x) * {width}; i < size[0]; i += gridDim.x * blockDim.x * {width}) {{
    {store}
  }}
}}
"""


def write_decoder(kind: str) -> str:
    return f"""#include "astitch.cuh"
extern "C" __global__ void __launch_bounds__(256) decode(const {kind}* __restrict__ from, float* __restrict__ to) {{
  to[threadIdx.x] = load_as<float>(from[threadIdx.x]);
}}
"""


# ---- floats and their codes ----------------------------------------------------------------------------------


@functools.cache
def list_floats(kind: str) -> np.ndarray:
    """f32: every f8 value, the middles of neighbours and of the largest and infinity, each with the floats around it;
    all floats whose lower half is zero; random bits.  Shuffled, so that special values meet in any lane of a vector."""
    codes = np.arange(256, dtype=np.uint8).view(TYPES[kind].numpy).astype(np.float32)
    values = np.unique(codes[np.isfinite(codes)])
    step = values[-1] - values[-2]
    values = np.concatenate([[values[0] - step], values, [values[-1] + step]]).astype(np.float32)
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2, codes]).astype(np.float32)
    near = (points.view(np.uint32)[:, None] + np.arange(-2, 3).astype(np.uint32)).ravel()
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    rng = np.random.default_rng(8)
    drawn = rng.integers(0, 1 << 32, 100_000, np.uint32)
    bits = np.concatenate([near, upper, upper | 0x8000, upper | 1, drawn])
    bits = np.concatenate([bits, np.zeros(-len(bits) % 16, np.uint32)])
    return np.asarray(rng.permutation(bits)).view(np.float32)


def encode(kind: str, floats: np.ndarray) -> np.ndarray:
    """What ml_dtypes gives; but NaN of f8e5m2 keeps the upper bits of its payload, where one is set."""
    with np.errstate(all="ignore"):
        codes = floats.astype(TYPES[kind].numpy).view(np.uint8)
    payload = (floats.view(np.uint32) >> 21 & 3).astype(np.uint8)
    kept = np.isnan(floats) & (payload != 0) & (kind == "f8e5m2")
    return np.where(kept, codes & 0xFC | payload, codes)


def assert_codes(kind: str, floats: np.ndarray, got: np.ndarray) -> None:
    want = encode(kind, floats)
    where = np.flatnonzero(got != want)
    shown = [
        f"  {floats[k]} ({floats.view(np.uint32)[k]:#010x}): {got[k]:#04x}, expected {want[k]:#04x}"
        for k in where[:8]
    ]
    assert not where.size, f"{kind}: {where.size} of {got.size} wrong\n" + "\n".join(shown)


def assert_floats(kind: str, got: np.ndarray) -> None:
    """What ml_dtypes gives; but NaN of f8e5m2 keeps its payload."""
    codes = np.arange(256, dtype=np.uint8)
    bits = codes.view(TYPES[kind].numpy).astype(np.float32).view(np.uint32)
    if kind == "f8e5m2":
        nan = codes & 0x7F > 0x7C
        bits = np.where(nan, bits & 0xFF800000 | (codes & 3).astype(np.uint32) << 21, bits)
    np.testing.assert_array_equal(got.view(np.uint32), bits)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", TYPES)
def test_encoding(kind: str, width: int) -> None:
    floats = list_floats(kind)
    codes = np.full(floats.size, 0x55, np.uint8)
    size = np.array([floats.size], np.int32)
    compile_host(write_encoder(kind, width)).launch("encode", 4, 256, [floats, codes, size])
    assert_codes(kind, floats, codes)


@pytest.mark.parametrize("kind", TYPES)
def test_decoding(kind: str) -> None:
    codes, floats = np.arange(256, dtype=np.uint8), np.empty(256, np.float32)
    compile_host(write_decoder(kind)).launch("decode", 1, 256, [codes, floats])
    assert_floats(kind, floats)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture_compiles_the_conversions(arch: str) -> None:
    """From sm_89 on two floats are converted at once."""
    if not any(library.knows(arch) for library in find_nvrtcs()):
        pytest.skip(f"no installed NVRTC knows {arch} (sm_70 needs astitch[cuda12])")
    pairs = 8 if int(arch[3:]) >= 89 else 0
    for kind, name in (("f8e4m3fn", b"e4m3x2"), ("f8e5m2", b"e5m2x2")):
        compile_cuda(write_decoder(kind), arch)
        ptx = compile_cuda(write_encoder(kind, 16), arch).ptx
        assert ptx.count(b"cvt.rn.satfinite." + name + b".f32") == pairs


# ---- on the device -------------------------------------------------------------------------------------------


def launch_on_device(source: str, name: str, grid: int, arguments: list[np.ndarray]) -> None:
    """In place on `arguments`, by blocks of 256 threads."""
    import cupy

    arch = f"sm_{cupy.cuda.Device(0).compute_capability}"
    module: Any = cupy.cuda.function.Module()
    module.load(compile_cuda(source, arch).cubin)
    on_device = [cupy.asarray(a) for a in arguments]
    module.get_function(name)((grid,), (256,), tuple(on_device))
    for argument, array in zip(arguments, on_device, strict=True):
        argument[...] = array.get()


@pytest.mark.gpu
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", TYPES)
def test_encoding_on_the_device(kind: str, width: int) -> None:
    floats = list_floats(kind)
    codes = np.full(floats.size, 0x55, np.uint8)
    size = np.array([floats.size], np.int32)
    launch_on_device(write_encoder(kind, width), "encode", 64, [floats.copy(), codes, size])
    assert_codes(kind, floats, codes)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", TYPES)
def test_decoding_on_the_device(kind: str) -> None:
    codes, floats = np.arange(256, dtype=np.uint8), np.empty(256, np.float32)
    launch_on_device(write_decoder(kind), "decode", 1, [codes, floats])
    assert_floats(kind, floats)


# ---- values that are only stored -----------------------------------------------------------------------------


def compile_body(shape: str, parameter: str, *lines: str) -> Compilation:
    text = f"HloModule m\n\nENTRY e {{\n  x = {parameter}[{shape}] parameter(0)\n"
    return compile_hlo(
        parse_hlo_text(text + "".join(f"  {line}\n" for line in lines) + "}\n"),
        gpu=preset("h100"),
    )


def run_on_host(compilation: Compilation, x: np.ndarray) -> list[np.ndarray]:
    return HostEngine(compilation.program).run([x])


def test_a_value_that_is_only_stored_is_rounded_by_the_store() -> None:
    compilation = compile_body(
        "64,48", "f32", "y = f32[64,48] add(x, x)", "ROOT z = f8e4m3fn[64,48] convert(y)"
    )
    (kernel,) = compilation.program.kernels
    assert "store_lanes(" in kernel.source and "hlo_convert<f8e4m3fn" not in kernel.source
    x = np.linspace(-300, 300, 64 * 48, dtype=np.float32).reshape(64, 48)
    (z,) = run_on_host(compilation, x)
    assert_codes("f8e4m3fn", (x + x).ravel(), z.view(np.uint8).ravel())


def test_only_reads_that_are_no_stores_make_a_value_be_rounded() -> None:
    """Also in branches; a kept float is read as it is, a kept element of memory's type is rounded when it is kept."""
    f8, zero = DType.F8E4M3FN, ZERO
    total = k.Call("add", f8, (k.Name("x"), k.Name("x")), (f8, f8), NoAttrs())

    def chosen(*read: k.Statement) -> tuple[k.Statement, ...]:
        value = k.Value("y", f8, total)
        branch = k.Branch((), (value, k.StoreLane("v", f8, k.Name("y"))), k.Name("x"))
        return (k.Choose("z", f8, (branch,)), *read)

    def rounded(body: tuple[k.Statement, ...]) -> bool:
        (choose, *_) = round_at_stores(body)
        assert isinstance(choose, k.Choose)
        return choose.branches[0].body[0] == k.Value("y", f8, total)

    name = k.Name("y")
    assert not rounded(chosen())
    assert not rounded(chosen(k.Loop("l", 4, True, (k.Store("a", zero, f8, name),))))
    assert not rounded(chosen(k.KeepSet("kept", zero, f8, name, True)))
    assert rounded(chosen(k.KeepSet("kept", zero, f8, name, False)))
    assert rounded(chosen(k.Loop("l", 4, True, (k.BatchSet("b", f8, name),))))
    assert rounded(chosen(k.Value("w", f8, k.Call("negate", f8, (name,), (f8,), NoAttrs()))))


def test_a_value_that_is_read_again_is_rounded_before() -> None:
    compilation = compile_body(
        "64,48",
        "f32",
        "y = f8e5m2[64,48] convert(x)",
        "w = f32[64,48] convert(y)",
        "ROOT t = (f8e5m2[64,48], f32[64,48]) tuple(y, w)",
    )
    (kernel,) = compilation.program.kernels
    assert "hlo_convert<f8e5m2, float>" in kernel.source
    x = np.linspace(-3, 3, 64 * 48, dtype=np.float32).reshape(64, 48)
    y, w = run_on_host(compilation, x)
    assert_codes("f8e5m2", x.ravel(), y.view(np.uint8).ravel())
    np.testing.assert_array_equal(w, y.astype(np.float32))


def test_f64_is_rounded_once() -> None:
    """Just above a middle that f32 cannot tell from the middle itself, which would go to the even value below."""
    compilation = compile_body("64,48", "f64", "ROOT z = f8e4m3fn[64,48] convert(x)")
    x = np.full((64, 48), 1 + 2.0**-4 + 2.0**-40)
    (z,) = run_on_host(compilation, x)
    np.testing.assert_array_equal(z.astype(np.float32), np.float32(1.125))


def test_integers_and_bits_become_f8() -> None:
    compilation = compile_body(
        "64,48",
        "u8",
        "y = f8e5m2[64,48] convert(x)",
        "b = f8e4m3fn[64,48] bitcast-convert(x)",
        "ROOT t = (f8e5m2[64,48], f8e4m3fn[64,48]) tuple(y, b)",
    )
    x = np.resize(np.arange(256, dtype=np.uint8), (64, 48))
    y, b = run_on_host(compilation, x)
    assert_codes("f8e5m2", x.ravel().astype(np.float32), y.view(np.uint8).ravel())
    np.testing.assert_array_equal(b.view(np.uint8), x)
