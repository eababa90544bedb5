"""The NVRTC front end: choosing a library, compiling, resources from the log, errors with their lines."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import pytest

from astitch.errors import KernelCompileError
from astitch.toolchain import nvrtc
from astitch.toolchain.nvrtc import (
    Nvrtc,
    Request,
    Resources,
    choose_nvrtc,
    compile_cuda,
    compile_many_cuda,
    find_nvrtcs,
    parse_resources,
)

ARCHITECTURES = ["sm_70", "sm_75", "sm_80", "sm_90", "sm_100"]

REVERSE = """
extern "C" __global__ void reverse(float* x)
{
    __shared__ float tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = tile[63 - threadIdx.x];
}
extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }
"""


def _require(arch: str) -> None:
    if not any(library.knows(arch) for library in find_nvrtcs()):
        pytest.skip(f"no installed NVRTC knows {arch} (sm_70 needs astitch[cuda12])")


def test_every_kernel_has_its_resources() -> None:
    compiled = compile_cuda(REVERSE, "sm_90")
    assert sorted(compiled.kernels) == ["reverse", "twice"]
    assert compiled.kernels["reverse"].static_shared_bytes == 64 * 4
    assert compiled.kernels["twice"].static_shared_bytes == 0
    assert 0 < compiled.kernels["twice"].registers <= 32
    assert compiled.cubin[:4] == b"\x7fELF"
    assert b".visible .entry twice" in compiled.ptx
    assert compiled.nvrtc_version == choose_nvrtc("sm_90").nvrtc.version


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_header_compiles_for_every_architecture(arch: str) -> None:
    _require(arch)
    includes = "".join(f'#include "{name}"\n' for name in ("types.cuh", "hlo_math.cuh"))
    text = """
    extern "C" __global__ void k(float* a, bf16* b, f16* h, f8e4m3fn* e, f8e5m2* g, bool* q)
    {
        const int i = threadIdx.x;
        const float x = load_as<float>(b[i]), y = load_as<float>(h[i]);
        a[i] = hlo_maximum(hlo_erf(x), hlo_power(y, x));
        b[i] = store_as<bf16>(hlo_minimum(x, y));
        h[i] = store_as<f16>(hlo_convert<f16>(hlo_convert<double>(x)));
        e[i] = store_as<f8e4m3fn>(hlo_add(x, load_as<float>(e[i])));
        g[i] = store_as<f8e5m2>(load_as<float>(g[i]));
        q[i] = hlo_compare_lt_total(hlo_popcnt(hlo_bitcast<unsigned short, bf16>(x)), hlo_clz((unsigned short)i));
    }
    """
    assert list(compile_cuda(includes + text, arch).kernels) == ["k"]


def test_multiply_and_add_stay_two_roundings() -> None:
    source = 'extern "C" __global__ void k(float* a, double* b) { *a = *a * *a + *a; *b = *b * *b + *b; }'
    assert b"fma" not in compile_cuda(source, "sm_90").ptx


def test_the_register_bound_holds() -> None:
    body = "".join(f"float v{i} = x[{i} * n];\n" for i in range(96))
    summed = " + ".join(f"v{i} * v{95 - i}" for i in range(96))
    stores = "".join(f"x[{i}] = v{i} * s;\n" for i in range(96))
    source = (
        f'extern "C" __global__ void k(float* x, int n) {{ {body} float s = {summed}; {stores} }}'
    )
    free, bound = compile_cuda(source, "sm_90"), compile_cuda(source, "sm_90", max_registers=32)
    assert free.kernels["k"].registers > 90
    assert free.kernels["k"].spill_store_bytes == 0
    assert bound.kernels["k"].registers <= 32
    assert bound.kernels["k"].spill_store_bytes > 0
    assert bound.kernels["k"].spill_load_bytes > 0
    assert bound.kernels["k"].stack_bytes > 0


def test_extra_options_reach_the_compiler() -> None:
    source = 'extern "C" __global__ void NAME(float* x) { *x = 1.0f; }'
    assert list(compile_cuda(source, "sm_90", extra=("-DNAME=chosen",)).kernels) == ["chosen"]


def test_an_error_shows_the_lines_of_the_kernel() -> None:
    with pytest.raises(KernelCompileError) as error:
        compile_cuda(REVERSE.replace("tile[63", "title[63"), "sm_90")
    message = str(error.value)
    assert 'kernel.cu(7): error: identifier "title" is undefined' in message
    assert message.endswith(
        "      5 |     tile[threadIdx.x] = x[threadIdx.x];\n"
        "      6 |     __syncthreads();\n"
        ">     7 |     x[threadIdx.x] = title[63 - threadIdx.x];\n"
        "      8 | }\n"
        '      9 | extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }'
    )


def test_an_error_of_the_assembler_is_reported() -> None:
    source = 'extern "C" __global__ void k() { asm("no.such instruction;"); }'
    with pytest.raises(KernelCompileError, match="refuses the kernel for sm_90: .*\nptxas"):
        compile_cuda(source, "sm_90")


def test_an_unknown_architecture_lists_the_known_ones() -> None:
    with pytest.raises(
        KernelCompileError, match=r"no installed NVRTC knows sm_20\n  NVRTC \d+\.\d+ knows .*sm_90"
    ):
        compile_cuda(REVERSE, "sm_20")
    with pytest.raises(
        KernelCompileError, match="'compute_90' is not an architecture\n  write it as sm_90"
    ):
        compile_cuda(REVERSE, "compute_90")


def test_many_come_back_in_order_from_several_threads() -> None:
    requests = [
        Request(f'extern "C" __global__ void k{i}(float* x) {{ x[{i}] = {i}; }}', "sm_90")
        for i in range(6)
    ]
    compiled = compile_many_cuda(requests, threads=2)
    assert [list(each.kernels) for each in compiled] == [[f"k{i}"] for i in range(6)]


def test_one_bad_kernel_does_not_lose_the_others() -> None:
    done: list[str] = []
    lock = threading.Lock()

    def compile_one(request: Request) -> nvrtc.CompiledKernel:
        compiled = nvrtc.compile_request(request)
        with lock:
            done.extend(compiled.kernels)
        return compiled

    requests = [Request("syntax error", "sm_90"), Request(REVERSE, "sm_90")]
    with pytest.raises(KernelCompileError):
        compile_many_cuda(requests, compile_one=compile_one)
    assert sorted(done) == ["reverse", "twice"]


# ---- which library -----------------------------------------------------------------------------------

_NOTHING = ctypes.CDLL(None)
NEW = Nvrtc("new", (13, 5), (75, 90, 100), _NOTHING)
MIDDLE = Nvrtc("middle", (13, 0), (75, 90, 100), _NOTHING)
OLD = Nvrtc("old", (12, 9), (70, 75, 90), _NOTHING)


@pytest.mark.parametrize(
    ("arch", "driver", "taken", "why"),
    [
        ("sm_90", None, NEW, "no driver"),
        ("sm_90", (13, 5), NEW, "not newer than the driver (13.5)"),
        ("sm_90", (13, 0), MIDDLE, "not newer than the driver (13.0)"),
        ("sm_90a", (12, 9), OLD, "not newer than the driver (12.9)"),
        ("sm_70", (13, 5), OLD, "not newer than the driver"),
        ("sm_90", (12, 4), OLD, "same major version"),
        ("sm_100", (12, 8), MIDDLE, "its cubins may not load"),
    ],
)
def test_choice_follows_the_driver(
    arch: str, driver: tuple[int, int] | None, taken: Nvrtc, why: str
) -> None:
    choice = nvrtc._choose(arch, (NEW, MIDDLE, OLD), driver)
    assert choice.nvrtc is taken
    assert why in choice.reason


def test_without_nvrtc_the_error_says_what_to_install() -> None:
    with pytest.raises(KernelCompileError) as error:
        nvrtc._choose("sm_90", (), None)
    assert str(error.value) == (
        "compiling for sm_90 needs NVRTC, which was not found\n"
        "  pip install astitch[cuda13], or astitch[cuda12] for drivers of CUDA 12 and for sm_70 (V100)"
    )


def test_an_architecture_that_was_dropped_names_the_wheel_that_has_it() -> None:
    with pytest.raises(KernelCompileError) as error:
        nvrtc._choose("sm_70", (NEW,), None)
    assert str(error.value) == (
        "no installed NVRTC knows sm_70\n"
        "  NVRTC 13.5 knows sm_75 sm_90 sm_100 (new)\n"
        "  pip install astitch[cuda13], or astitch[cuda12] for drivers of CUDA 12 and for sm_70 (V100)"
    )


def test_what_is_too_old_is_not_taken() -> None:
    first = Nvrtc("first", (12, 3), (70, 90), _NOTHING)
    before = Nvrtc("before", (12, 2), (70, 90), _NOTHING)
    assert nvrtc._choose("sm_90", (first, before), (12, 1)).nvrtc is first
    with pytest.raises(KernelCompileError) as error:
        nvrtc._choose("sm_70", (NEW, before), None)
    assert str(error.value) == (
        "compiling for sm_70 needs NVRTC 12.3 or newer; found 13.5 (new), 12.2 (before)\n"
        "  pip install astitch[cuda13], or astitch[cuda12] for drivers of CUDA 12 and for sm_70 (V100)"
    )


def test_a_file_that_is_no_library_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "libnvrtc.so.99").write_bytes(b"not ELF")
    assert nvrtc._open(str(tmp_path / "libnvrtc.so.99")) is None


def test_libraries_of_a_toolkit_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libnvrtc.so.13").write_bytes(b"")
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    assert str(tmp_path / "lib64" / "libnvrtc.so.13") in nvrtc.candidate_paths()


def test_the_log_of_ptxas_is_read() -> None:
    log = """ptxas info    : 8 bytes gmem, 4 bytes cmem[4]
ptxas info    : Compiling entry function 'a' for 'sm_90'
ptxas info    : Function properties for a
    48 bytes stack frame, 36 bytes spill stores, 40 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 48 bytes cumulative stack size, 1024 bytes smem, 360 bytes cmem[0]
ptxas info    : Function properties for slow_path
    16 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
ptxas info    : Compiling entry function 'b' for 'sm_90'
ptxas info    : Function properties for b
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers
"""
    assert parse_resources(log) == {
        "a": Resources(40, 36, 40, 48, 1024),
        "b": Resources(8, 0, 0, 0, 0),
    }


def test_a_kernel_whose_resources_are_not_said_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "parse_resources", lambda log: {"twice": Resources(8, 0, 0, 0, 0)})
    with pytest.raises(
        KernelCompileError, match="does not say what reverse uses\n  without registers"
    ):
        compile_cuda(REVERSE, "sm_90")


def test_the_second_compilation_says_as_much_as_the_first() -> None:
    """NVRTC's own cache on disk would hand out the cubin with an empty log."""
    assert compile_cuda(REVERSE, "sm_90").kernels == compile_cuda(REVERSE, "sm_90").kernels


def test_an_option_that_a_library_does_not_know_is_not_passed() -> None:
    library = choose_nvrtc("sm_90").nvrtc.library
    assert nvrtc._accepts(library, "--std=c++17")
    assert not nvrtc._accepts(library, "--no-such-option")


WAITS = {
    "ASTITCH_GLOBAL_BARRIER(w)": "unsigned* w",
    "receive_rows<1, 32, 32, 32, 1>(f, 0, t, 7u)": "float* f, unsigned long long* t",
    "receive_words<32, 32, 1>(f, 0, t, n, 7u)": "float* f, unsigned long long* t, int n",
}


@pytest.mark.parametrize("wait", sorted(WAITS))
def test_a_wait_for_another_block_ends(wait: str) -> None:
    """By the clock, which is not asked in every round: one trap, and one reading of the clock on the way to it."""
    source = (
        '#include "astitch.cuh"\n#include "loops.cuh"\n'
        f'extern "C" __global__ void wait({WAITS[wait]}) {{ {wait}; }}\n'
    )
    ptx = compile_cuda(source, "sm_90").ptx.decode()
    assert ptx.count("%globaltimer") == ptx.count("trap;") == 1
    assert "%clock" not in ptx


def test_waits_have_one_policy() -> None:
    folder = Path(nvrtc.__file__).parents[1] / "cuda"
    texts = [file.read_text("utf-8") for file in folder.glob("*.cuh")]
    assert sum(text.count("__trap()") for text in texts) == 1
    assert sum(text.count("patience.wait()") for text in texts) == 4


def test_libraries_are_looked_for_once_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    looked: list[str] = []

    def find_paths() -> tuple[str, ...]:
        looked.append(threading.current_thread().name)
        begun.set()
        assert go_on.wait(60)
        return ()

    monkeypatch.setattr(nvrtc, "candidate_paths", find_paths)
    nvrtc._find_nvrtcs.cache_clear()
    try:
        nvrtc.find_in_background()
        assert begun.wait(60)
        threading.Timer(0.02, go_on.set).start()
        assert find_nvrtcs() == () and looked == ["astitch-nvrtc"]
    finally:
        nvrtc._find_nvrtcs.cache_clear()
