"""The host emulation as its callers see it: launches, errors, the cache, bits in any order."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from astitch.errors import ArgumentMismatch, KernelCompileError, KernelFault, LaunchRefused
from astitch.run import emulate
from astitch.run.emulate import Order, compile_host, compile_many
from astitch.system import private_files
from astitch.system.kept_libraries import FORM, is_whole, run_compiler
from astitch.system.private_files import seal

ADD_ONE = """#include "astitch.cuh"
extern "C" __global__ void __launch_bounds__(64) add_one(
    const float* __restrict__ x, float* __restrict__ y)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i] + 1.f;
}
"""

ROWS = """#include "astitch.cuh"
extern "C" __global__ void __launch_bounds__(256, 2) normalise(
    const float* __restrict__ x, float* __restrict__ y, float* __restrict__ sums, unsigned* word)
{
    ASTITCH_SHARED_ARENA(1024);
    ASTITCH_SHARED(float, partial, 0, 256);
    float sum = 0.f;
    for (int row = blockIdx.x; row < 37; row += gridDim.x) {
        float v = x[row * 256 + threadIdx.x];
        for (int lanes = 16; lanes; lanes >>= 1) v += __shfl_xor_sync(0xffffffffu, v, lanes);
        partial[threadIdx.x] = v;
        __syncthreads();
        sum += partial[(threadIdx.x * 32) & 255];
        for (int i = 1; i < 8; ++i) sum += partial[(threadIdx.x * 32 + 32 * i) & 255];
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
    ASTITCH_GLOBAL_BARRIER(word);
    float all = 0.f;
    for (int i = 0; i < int(gridDim.x); ++i) all += sums[i];
    for (int row = blockIdx.x; row < 37; row += gridDim.x)
        y[row * 256 + threadIdx.x] = expf(x[row * 256 + threadIdx.x]) / all;
}
extern "C" __global__ void __launch_bounds__(256) row_sums(
    const float* __restrict__ x, float* __restrict__ y)
{
    float v = x[blockIdx.x * 256 + threadIdx.x];
    for (int lanes = 16; lanes; lanes >>= 1) v += __shfl_xor_sync(0xffffffffu, v, lanes);
    ASTITCH_SHARED_ARENA(32);
    ASTITCH_SHARED(float, partial, 0, 8);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
    __syncthreads();
    float sum = 0.f;
    for (int i = 0; i < 8; ++i) sum += partial[i];
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
"""


def kernel(parameters: str, body: str, name: str = "k") -> str:
    return (
        f'#include "astitch.cuh"\nextern "C" __global__ void {name}({parameters})\n{{\n{body}\n}}\n'
    )


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, and nothing loaded in this process."""
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(emulate, "_modules", {})
    return tmp_path / "host"


def modules_in(cache: Path) -> list[Path]:
    return sorted(path for path in cache.glob("*.so") if not path.name.startswith("runtime"))


# ---- launching -----------------------------------------------------------------------------------


@pytest.mark.parametrize("check", [False, True])
def test_a_launch_works_in_place(check: bool) -> None:
    x, y = numbers(4, 64), np.zeros((4, 64), np.float32)
    compile_host(ADD_ONE, check=check).launch("add_one", 4, 64, [x, y])
    np.testing.assert_array_equal(y, x + 1)


@pytest.mark.parametrize("check", [False, True])
def test_read_only_arrays_may_be_read(check: bool) -> None:
    x, y = numbers(64), np.zeros(64, np.float32)
    x.flags.writeable = False
    compile_host(ADD_ONE, check=check).launch("add_one", 1, 64, [x, y])
    np.testing.assert_array_equal(y, x + 1)


@pytest.mark.parametrize("check", [False, True])
def test_an_array_that_is_not_aligned_is_copied(check: bool) -> None:
    source = kernel(
        "const float* x, float* y",
        """const Vec<float, 4> v = *reinterpret_cast<const Vec<float, 4>*>(x + 4 * threadIdx.x);
        *reinterpret_cast<Vec<float, 4>*>(y + 4 * threadIdx.x) = v;""",
    )
    x = np.arange(65, dtype=np.float32)[1:]
    y = np.zeros(67, np.float32)
    compile_host(source, check=check).launch("k", 1, 16, [x, y[3:]])
    np.testing.assert_array_equal(y, [0, 0, 0, *range(1, 65)])


@pytest.mark.parametrize("check", [False, True])
def test_overlapping_arrays_stay_overlapping(check: bool) -> None:
    source = kernel(
        "const float* x, float* y",
        """y[threadIdx.x] = x[threadIdx.x] + 1.f;
        __syncthreads();
        y[16 + threadIdx.x] = x[16 + threadIdx.x] + 1.f;""",
    )
    memory = np.arange(48, dtype=np.float32)
    compile_host(source, check=check).launch("k", 1, 16, [memory[:32], memory[16:]])
    np.testing.assert_array_equal(
        memory.reshape(3, 16) - np.arange(16), [[0] * 16, [1] * 16, [2] * 16]
    )


def test_overlap_across_threads_is_a_race() -> None:
    memory = np.arange(96, dtype=np.float32)
    with pytest.raises(KernelFault, match=r"race on 'arg0/arg1'\[\d+\]"):
        compile_host(ADD_ONE, check=True).launch("add_one", 1, 64, [memory[:64], memory[16:80]])


@pytest.mark.parametrize("check", [False, True])
def test_empty_arrays(check: bool) -> None:
    source = kernel(
        "const float* x, float* y, const float* unused",
        "for (int i = threadIdx.x; i < 0; i += 32) y[i] = x[i] + unused[i];",
    )
    nothing = np.zeros((3, 0), np.float32)
    compile_host(source, check=check).launch("k", 2, 32, [nothing, nothing.copy(), np.zeros(0)])


@pytest.mark.parametrize("check", [False, True])
def test_pointer_table(check: bool) -> None:
    source = kernel(
        "unsigned char* const* table",
        """const float* x = reinterpret_cast<const float*>(table[0]);
        reinterpret_cast<float*>(table[blockIdx.x + 1])[threadIdx.x] = x[threadIdx.x] * 2.f;""",
    )
    x = numbers(64)
    outputs = [np.zeros(64, np.float32) for _ in range(300)]
    compile_host(source, check=check).launch("k", 300, 64, [x, *outputs], pointer_table=True)
    for output in outputs:
        np.testing.assert_array_equal(output, 2 * x)


def test_names_of_a_pointer_table_appear_in_faults() -> None:
    source = kernel(
        "unsigned char* const* table", "reinterpret_cast<float*>(table[1])[threadIdx.x] = 0.f;"
    )
    with pytest.raises(KernelFault, match=r"past the end of 'grads\.b' \(16 elements\)"):
        compile_host(source, check=True).launch(
            "k", 1, 32, [numbers(32), numbers(16)], pointer_table=True, names=["x", "grads.b"]
        )


def test_a_read_only_array_of_a_pointer_table_must_not_be_written() -> None:
    source = kernel(
        "unsigned char* const* table", "reinterpret_cast<float*>(table[0])[threadIdx.x] = 0.f;"
    )
    x = numbers(32)
    x.flags.writeable = False
    with pytest.raises(KernelFault, match=r"write to const: 'arg0'\[0\]"):
        compile_host(source, check=True).launch("k", 1, 32, [x], pointer_table=True)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("check", [False, True])
def test_narrow_floats(dtype: type, check: bool) -> None:
    word = {ml_dtypes.bfloat16: "bf16", np.float16: "f16"}[dtype]
    source = kernel(
        f"const {word}* x, {word}* y",
        f"y[threadIdx.x] = store_as<{word}>(load_as<float>(x[threadIdx.x]) * 1.5f);",
    )
    x = numbers(64).astype(dtype)
    y = np.zeros_like(x)
    compile_host(source, check=check).launch("k", 1, 64, [x, y], uninitialised=[1])
    np.testing.assert_array_equal(y, (x.astype(np.float32) * 1.5).astype(dtype))


def test_nothing_is_contracted_to_fused_multiply_add() -> None:
    source = kernel(
        "const float* x, float* y",
        "y[0] = x[0] * x[1] + x[2]; y[1] = __fmaf_rn(x[0], x[1], x[2]);",
    )
    x = np.array([1 + 2**-12, 1 + 2**-12, -1 - 2**-11], np.float32)
    y = np.zeros(2, np.float32)
    compile_host(source).launch("k", 1, 1, [x, y])
    np.testing.assert_array_equal(y, np.array([0, 2.0**-24], np.float32))


def test_intrinsics() -> None:
    source = kernel(
        "const unsigned* x, unsigned* y",
        """y[0] = __popc(x[0]); y[1] = __clz(int(x[0])); y[2] = __clz(0); y[3] = __brev(x[0]);
        y[4] = __umulhi(x[0], x[0]); y[5] = __float_as_uint(1.f); y[6] = max(x[0], 5u);
        y[7] = __popcll(0xffull << 40); y[8] = __clzll(1ll); y[9] = __funnelshift_l(x[0], 1u, 4);
        y[10] = min(-1, 3) == -1; y[11] = rsqrtf(4.f) == 0.5f; y[12] = exp(0.f) == 1.f;""",
    )
    x, y = np.array([0x00F00001], np.uint32), np.zeros(13, np.uint32)
    compile_host(source).launch("k", 1, 1, [x, y])
    value = 0x00F00001
    assert y.tolist() == [
        5, 8, 32, int(f"{value:032b}"[::-1], 2), value * value >> 32, 0x3F800000, value,
        8, 63, 0x10, 1, 1, 1,
    ]  # fmt: skip


def test_shared_memory_starts_as_nan() -> None:
    source = kernel(
        "float* y",
        """ASTITCH_SHARED_ARENA(256); ASTITCH_SHARED(float, t, 0, 64);
        y[blockIdx.x * 64 + threadIdx.x] = t[threadIdx.x]; t[threadIdx.x] = 0.f;""",
    )
    y = np.zeros(4 * 64, np.float32)
    compile_host(source).launch("k", 4, 64, [y], shared_bytes=256)
    assert np.isnan(y).all()


def test_many_resident_blocks_of_full_size() -> None:
    """What a large GPU holds: the stacks of 135,168 threads must fit into memory."""
    source = kernel(
        "unsigned* counts, unsigned* word",
        """const unsigned i = blockIdx.x * 1024 + threadIdx.x, next = (blockIdx.x + 1) % gridDim.x;
        counts[i] = blockIdx.x;
        ASTITCH_GLOBAL_BARRIER(word);
        const unsigned other = counts[next * 1024 + threadIdx.x];
        ASTITCH_GLOBAL_BARRIER(word);
        counts[i] = other;""",
    )
    counts, word = np.zeros((132, 1024), np.uint32), np.zeros(1, np.uint32)
    compile_host(source).launch("k", 132, 1024, [counts, word], cooperative=True)
    np.testing.assert_array_equal(counts[:, 5], np.roll(np.arange(132), -1))
    assert word[0] == 0


def test_a_global_barrier_flips_its_word_as_on_the_gpu() -> None:
    source = kernel("unsigned* word", "ASTITCH_GLOBAL_BARRIER(word);")
    word = np.zeros(1, np.uint32)
    module = compile_host(source)
    for expected in (1 << 31, 0, 1 << 31):
        module.launch("k", 3, 32, [word], cooperative=True)
        assert word[0] == expected


# ---- the same bits -------------------------------------------------------------------------------


def test_any_order_and_any_number_of_workers_give_the_same_bits() -> None:
    module, checked = compile_many([ROWS, ROWS])[0], compile_host(ROWS, check=True)
    x = numbers(37, 256)

    def normalised(module: emulate.HostModule, **launch: object) -> bytes:
        y, sums, word = np.zeros_like(x), np.zeros(8, np.float32), np.zeros(1, np.uint32)
        module.launch(
            "normalise", 8, 256, [x, y, sums, word],
            shared_bytes=1024, cooperative=True, uninitialised=[1, 2], **launch,
        )  # fmt: skip
        return y.tobytes()

    def summed(module: emulate.HostModule, **launch: object) -> bytes:
        y = np.zeros(37, np.float32)
        module.launch("row_sums", 37, 256, [x, y], shared_bytes=32, **launch)
        np.testing.assert_allclose(y, x.sum(1), atol=1e-4)
        return y.tobytes()

    launches = [
        {},
        {"workers": 1},
        {"workers": 4},
        {"order": Order.REVERSE},
        *({"order": Order.RANDOM, "seed": seed} for seed in range(4)),
    ]
    for run in (normalised, summed):
        assert len({run(each, **launch) for each in (module, checked) for launch in launches}) == 1


# ---- what is refused -----------------------------------------------------------------------------


def test_limits_of_cuda_are_enforced() -> None:
    module = compile_host(ADD_ONE)
    arrays = [numbers(64), numbers(64)]
    with pytest.raises(LaunchRefused, match=r"a block of 1025 threads\n  CUDA allows 1 to 1024"):
        module.launch("add_one", 1, 1025, arrays)
    with pytest.raises(LaunchRefused, match=r"128 threads\n  its __launch_bounds__ allow 64"):
        module.launch("add_one", 1, 128, arrays)
    with pytest.raises(LaunchRefused, match="a grid of 0 blocks"):
        module.launch("add_one", 0, 64, arrays)
    with pytest.raises(LaunchRefused, match="232449 bytes of shared memory"):
        module.launch("add_one", 1, 64, arrays, shared_bytes=227 * 1024 + 1)


def test_arguments_that_do_not_fit_are_refused() -> None:
    module = compile_host(ADD_ONE)
    x, y = numbers(64, 2), numbers(64)
    with pytest.raises(ArgumentMismatch, match="has 2 parameters, the launch gives 1 arrays"):
        module.launch("add_one", 1, 64, [x])
    with pytest.raises(ArgumentMismatch, match="argument 'arg0' is not C-contiguous"):
        module.launch("add_one", 1, 64, [x[:, 0], y])
    y.flags.writeable = False
    with pytest.raises(ArgumentMismatch, match="argument 'out' is read-only"):
        module.launch("add_one", 1, 64, [x, y], names=["in", "out"])
    with pytest.raises(ArgumentMismatch, match="no kernel 'add_two'; it has add_one"):
        module.launch("add_two", 1, 64, [x, y])
    with pytest.raises(ArgumentMismatch, match="a pointer table is for a kernel with one"):
        module.launch("add_one", 1, 64, [x, y], pointer_table=True)


def test_syntax_error_quotes_the_line() -> None:
    source = kernel("float* y", "y[threadIdx.x] = undeclared + 1.f;")
    with pytest.raises(KernelCompileError) as error:
        compile_host(source)
    message = str(error.value)
    assert message.startswith("g++ refuses the kernel text (kernel.cu):\n  kernel.cu:4:")
    assert "undeclared" in message
    assert "y[threadIdx.x] = undeclared + 1.f;" in message


@pytest.mark.parametrize(
    ("parameters", "body", "message"),
    [
        ("float* y, int n", "y[0] = n;", "kernel parameters are pointers only"),
        ("float* y", "__shared__ float t[4]; y[0] = t[0];", "declare slots with ASTITCH_SHARED"),
        (
            "float* y",
            "ASTITCH_SHARED_ARENA(16); ASTITCH_SHARED(float, t, 0, 5); y[0] = t[0];",
            "shared slot t does not fit in the arena",
        ),
        (
            "float* y",
            "ASTITCH_SHARED_ARENA(16); ASTITCH_SHARED(float, t, 2, 2); y[0] = t[0];",
            "shared slot t is misaligned",
        ),
        (
            "float* y",
            "volatile float a[12000]; a[threadIdx.x] = 1.f; y[0] = a[0];",
            "the frame size of",
        ),
    ],
)
def test_text_outside_the_dialect_is_refused(parameters: str, body: str, message: str) -> None:
    with pytest.raises(KernelCompileError, match=message):
        compile_host(kernel(parameters, body))


def test_missing_compiler(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(empty_cache))
    with pytest.raises(KernelCompileError) as error:
        compile_host(ADD_ONE)
    assert str(error.value) == (
        "no host C++ compiler: g++ was not found on PATH; install g++ (Debian: apt-get install "
        "g++) or run on a machine with a GPU"
    )


def test_faults_without_addr2line_still_say_what(monkeypatch: pytest.MonkeyPatch) -> None:
    source = kernel("float* y", "y[threadIdx.x] = 0.f;")
    module = compile_host(source, check=True)
    monkeypatch.setattr(emulate.shutil, "which", lambda name: None)
    with pytest.raises(KernelFault, match=r"out of bounds(.|\n)*at address 0x[0-9a-f]+"):
        module.launch("k", 1, 32, [numbers(16)])


def test_a_module_works_after_a_fault() -> None:
    source = kernel(
        "float* y, unsigned* word",
        "if (y[0] > 0.f) { if (threadIdx.x) __syncthreads(); else __syncthreads(); } y[1] = 2.f;",
    )
    module = compile_host(source)
    y, word = np.array([1, 0], np.float32), np.zeros(1, np.uint32)
    with pytest.raises(KernelFault, match=r"divergent barrier: .* at kernel\.cu:4"):
        module.launch("k", 2, 64, [y, word])
    y[0] = 0
    module.launch("k", 2, 64, [y, word])
    assert y[1] == 2


# ---- the cache -----------------------------------------------------------------------------------


def test_a_text_is_compiled_once(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = compile_host(ADD_ONE)
    assert compile_host(ADD_ONE) is module
    (cached,) = modules_in(empty_cache)
    assert stat.S_IMODE(empty_cache.stat().st_mode) == 0o700

    monkeypatch.setattr(emulate, "_modules", {})

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(emulate, "build_module", refuse)
    again = compile_host(ADD_ONE)
    assert again is not module and again.library == cached


def test_mode_and_text_make_the_key(empty_cache: Path) -> None:
    texts = [ADD_ONE, ADD_ONE.replace("1.f", "2.f")]
    modules = [*compile_many(texts), *compile_many(texts, check=True)]
    assert len(modules_in(empty_cache)) == 4
    x = numbers(64)
    for module, more in zip(modules, (1, 2, 1, 2), strict=True):
        y = np.zeros(64, np.float32)
        module.launch("add_one", 1, 64, [x, y])
        np.testing.assert_array_equal(y, x + np.float32(more))


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "garbage"])
def test_a_damaged_entry_is_replaced(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    compile_host(ADD_ONE)
    (cached,) = modules_in(empty_cache)
    good = cached.read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 3] ^= 1
    bad = {"cut": good[:-1000], "flipped": bytes(flipped), "empty": b"", "garbage": b"x" * 99}
    # Another file, as a crash would leave it: the loaded one must not change under the process.
    (empty_cache / "bad").write_bytes(bad[damage])
    os.replace(empty_cache / "bad", cached)
    monkeypatch.setattr(emulate, "_modules", {})
    x, y = numbers(64), np.zeros(64, np.float32)
    compile_host(ADD_ONE).launch("add_one", 1, 64, [x, y])
    np.testing.assert_array_equal(y, x + 1)
    assert is_whole(cached)
    assert sorted(empty_cache.glob("*.so")) == sorted(empty_cache.iterdir())


def add_one_afresh(text: str = ADD_ONE) -> float:
    """What ADD_ONE makes of ones, 128 in sum, by a module that this process has not loaded yet."""
    emulate._modules.clear()
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    compile_host(text).launch("add_one", 1, 64, [x, y])
    return float(y.sum())


def plant(text: str, cache: Path, folder: Path) -> tuple[Path, Path]:
    """Puts a library in the place of a text's, whole and under its name; with the file that it leaves when loaded.

    The text must be one that this process has not loaded: the loader knows libraries by name.
    """
    marker, source, planted = folder / "was loaded", folder / "planted.c", folder / "planted.so"
    source.write_text(
        "#include <stdio.h>\n__attribute__((constructor)) static void begin(void)"
        f'{{ fclose(fopen("{marker}", "w")); }}\n'
    )
    subprocess.run(["g++", "-shared", "-fPIC", str(source), "-o", str(planted)], check=True)
    flags = (*emulate.COMMON_FLAGS, *emulate.FAST_FLAGS)
    library = cache / emulate.name_module(text, emulate.find_compiler(), flags)
    cache.mkdir(mode=0o700)
    library.write_bytes(seal(planted.read_bytes(), FORM, library.name))
    library.chmod(0o600)
    return library, marker


@pytest.mark.parametrize("what", ["owner", "folder's owner", "mode", "folder's mode", "link"])
def test_a_planted_library_is_not_loaded(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Whole and under the right name, but where somebody else could have put it."""
    text = f"{ADD_ONE}// planted: {what}"
    library, marker = plant(text, empty_cache, tmp_path)
    match what:
        case "owner":
            make_anothers(library, monkeypatch)
        case "folder's owner":
            make_anothers(empty_cache, monkeypatch)
        case "mode":
            library.chmod(0o722)
        case "folder's mode":
            empty_cache.chmod(0o777)
        case "link":
            library.rename(tmp_path / "elsewhere")
            library.symlink_to(tmp_path / "elsewhere")
    kept = stat.S_IMODE(empty_cache.stat().st_mode)
    with pytest.warns(RuntimeWarning, match="is not used(.|\\n)*ASTITCH_CACHE_DIR"):
        assert add_one_afresh(text) == 128
    assert not marker.exists()
    assert stat.S_IMODE(empty_cache.stat().st_mode) == kept


def make_anothers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's, in the eyes of the process at least: only the superuser can give files away."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
        return
    number, ask = path.stat().st_ino, os.fstat

    def tell(file: int) -> os.stat_result:
        status = ask(file)
        changed = [*status[:4], 12345, *status[5:]] if status.st_ino == number else status
        return os.stat_result(changed)

    monkeypatch.setattr(private_files.os, "fstat", tell)


def test_a_planted_library_of_this_user_is_loaded(empty_cache: Path, tmp_path: Path) -> None:
    """That the test above can fail."""
    text = f"{ADD_ONE}// planted"
    _, marker = plant(text, empty_cache, tmp_path)
    with pytest.raises(ValueError, match="astitch_kernel_add_one"):
        add_one_afresh(text)
    assert marker.exists()


def test_a_module_under_anothers_name_is_compiled_again(empty_cache: Path) -> None:
    compile_host(ADD_ONE.replace("1.f", "2.f"))
    (other,) = modules_in(empty_cache)
    text = f"{ADD_ONE}// swapped"
    flags = (*emulate.COMMON_FLAGS, *emulate.FAST_FLAGS)
    other.rename(empty_cache / emulate.name_module(text, emulate.find_compiler(), flags))
    assert add_one_afresh(text) == 128


@pytest.mark.parametrize("what", ["file", "link", "directory", "full"])
def test_a_folder_that_cannot_be_used_costs_only_the_cache(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    elsewhere = tmp_path / "elsewhere"
    match what:
        case "file":
            empty_cache.write_text("")
        case "link":
            elsewhere.mkdir(mode=0o755)
            empty_cache.symlink_to(elsewhere)
        case "directory":
            add_one_afresh()
            (library,) = modules_in(empty_cache)
            library.unlink()
            library.mkdir()
        case "full":
            monkeypatch.setattr(os, "replace", refuse)
    with pytest.warns(RuntimeWarning, match="is not used(.|\\n)*ASTITCH_CACHE_DIR") as told:
        assert add_one_afresh() == 128
        assert add_one_afresh() == 128
    assert len(told) == 1
    if what == "link":
        assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o755
        assert list(elsewhere.iterdir()) == []


def test_a_new_process_builds_the_runtime_and_runs(tmp_path: Path) -> None:
    """Two processes at once in one empty cache, each with everything to compile."""
    program = (
        "import numpy as np\nfrom astitch.run.emulate import compile_host\n"
        f"source = {ADD_ONE!r}\n"
        "x, y = np.ones(64, np.float32), np.zeros(64, np.float32)\n"
        "compile_host(source).launch('add_one', 1, 64, [x, y])\nprint(y.sum())\n"
    )
    environment = {**os.environ, "ASTITCH_CACHE_DIR": str(tmp_path)}
    folder = Path(emulate.__file__).parents[2]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program], cwd=folder, env=environment,
            stdout=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    assert [process.communicate(timeout=120)[0] for process in processes] == ["128.0\n"] * 2
    assert len(list((tmp_path / "host").iterdir())) == 2
    shutil.rmtree(tmp_path / "host")


def test_compilers_are_apart_from_the_terminal_s_signals() -> None:
    """Ctrl-C goes to the whole group: a compiler that it ends would look like one that refuses a kernel."""
    group = run_compiler([sys.executable, "-c", "import os; print(os.getpgrp())"]).stdout
    assert int(group) != os.getpgrp()


def test_an_interrupted_compiler_is_ended_with_its_children(tmp_path: Path) -> None:
    script = "echo $$ > shell; sleep 60 & echo $! > child; sleep 0.3; kill -INT $PPID; wait"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_compiler(["sh", "-c", script], tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    for name in ("shell", "child"):
        process = Path("/proc") / (tmp_path / name).read_text().strip() / "status"
        for _ in range(200):
            if not process.exists() or "State:\tZ" in process.read_text():
                break
            time.sleep(0.01)
        else:
            pytest.fail(f"the {name} goes on")
