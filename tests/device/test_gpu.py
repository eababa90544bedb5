"""Presets, CUDA's occupancy rule, and the device as a stand-in for CUDA's driver describes it."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from astitch.device import cuda_driver, gpu
from astitch.device.gpu import Gpu, from_device, preset
from astitch.errors import AstitchError
from astitch.toolchain.nvrtc import compile_cuda


@pytest.mark.parametrize("name", gpu.PRESETS)
def test_preset_is_consistent(name: str) -> None:
    device = preset(name)
    assert device.name == name
    assert (
        device.shared_per_block_bytes + device.shared_reserved_bytes <= device.shared_per_sm_bytes
    )
    assert device.max_threads_per_sm % device.warp_size == 0
    assert device.blocks_per_sm(device.max_threads_per_block, 32, 0) >= 1
    assert device.l2_bytes > device.shared_per_sm_bytes
    assert device.launch_us < device.barrier_us


def test_host_is_a_small_h100() -> None:
    assert dataclasses.replace(preset("host"), name="h100", sms=132) == preset("h100")


def test_peak_arithmetic_is_the_data_sheets() -> None:
    assert preset("v100").fp32_gflops == pytest.approx(15_700, rel=0.01)
    assert preset("h100").fp32_gflops == pytest.approx(67_000, rel=0.01)


def test_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(AstitchError) as error:
        preset("h1000")
    assert str(error.value) == (
        "no GPU preset 'h1000'\n  choose one of v100, t4, a100, h100, h200, b200, host, "
        "or call astitch.device.gpu.from_device() on a machine with a GPU"
    )


# device, threads of a block, registers of a thread, shared bytes of a block, blocks on an SM
OCCUPANCY = [
    ("v100", 1024, 32, 0, 2),
    ("v100", 1024, 33, 0, 1),  # 40 registers are allocated
    ("v100", 256, 32, 48 * 1024, 2),
    ("v100", 256, 32, 96 * 1024, 1),
    ("v100", 256, 32, 96 * 1024 + 1, 0),
    ("t4", 1024, 64, 0, 1),
    ("t4", 32, 16, 0, 16),  # blocks an SM
    ("t4", 256, 32, 0, 4),  # threads an SM
    ("a100", 256, 32, 163 * 1024, 1),
    ("a100", 256, 32, 81 * 1024, 2),  # 1 KB a block is reserved
    ("a100", 256, 32, 81 * 1024 + 1, 1),
    ("h100", 512, 64, 0, 2),
    ("h100", 512, 65, 0, 1),
    ("h100", 512, 64, 113 * 1024, 2),
    ("h100", 512, 64, 114 * 1024, 1),
    ("h100", 1024, 64, 227 * 1024, 1),
    ("h100", 1024, 65, 0, 0),
    ("h100", 96, 33, 0, 16),  # 12 warps a sub-partition
    ("h100", 64, 255, 0, 4),
    ("h100", 288, 96, 0, 2),  # 5 warps a sub-partition, 20 in all, blocks of 9
    ("h100", 32, 32, 0, 32),
    ("h100", 1025, 16, 0, 0),
]


@pytest.mark.parametrize(("name", "block", "registers", "shared", "blocks"), OCCUPANCY)
def test_occupancy_is_cudas(
    name: str, block: int, registers: int, shared: int, blocks: int
) -> None:
    device = preset(name)
    assert device.blocks_per_sm(block, registers, shared) == blocks
    assert device.wave(block, registers, shared) == blocks * device.sms


def test_the_papers_wave_on_v100() -> None:
    """Resource-aware launch, step 2: 32 registers and the largest block give 160 blocks."""
    assert preset("v100").wave(1024, 32, 0) == 160


@pytest.mark.parametrize("block", [32, 96, 128, 256, 288, 512, 1024])
@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 8, 32])
def test_max_registers_is_the_last_that_fits(block: int, blocks: int) -> None:
    device = preset("h100")
    most = device.max_registers(block, blocks)
    if most:
        assert device.blocks_per_sm(block, most, 0) >= blocks
    if most < device.max_registers_per_thread:
        assert device.blocks_per_sm(block, most + 1, 0) < blocks


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Gpu, int, int], None]]:
    """Puts a driver in place whose device 0 has the attributes of a Gpu."""

    def put(device: Gpu, memory_clock_khz: int, memory_bus_bits: int) -> None:
        arch = int(device.arch[3:])
        answers = {
            "major": arch // 10,
            "minor": arch % 10,
            "clock_khz": round(device.clock_ghz * 1e6),
            "memory_clock_khz": memory_clock_khz,
            "memory_bus_bits": memory_bus_bits,
        }
        by_number = {
            number: answers[key] if key in answers else getattr(device, key)
            for key, number in gpu._ATTRIBUTE.items()
        }
        monkeypatch.setattr(cuda_driver, "open_driver", lambda: make_driver(by_number))

    cuda_driver.count_devices.cache_clear()
    yield put
    cuda_driver.count_devices.cache_clear()


def make_driver(attributes: Mapping[int, int]) -> Any:
    """libcuda with one device, compiled, so that what is passed to it is what the real one gets."""
    cases = "".join(f"case {n}: *value = {v}; return 0;" for n, v in attributes.items())
    text = f"""
    int cuInit(unsigned flags) {{ return flags; }}
    int cuDeviceGetCount(int* count) {{ *count = 1; return 0; }}
    int cuDeviceGet(int* device, int number) {{ *device = number + 7; return number != 0; }}
    int cuDeviceGetAttribute(int* value, int attribute, int device) {{
      if (device != 7) return 101;
      switch (attribute) {{ {cases} default: return 1; }}
    }}
    int cuGetErrorName(int status, const char** name) {{
      *name = status == 1 ? "CUDA_ERROR_INVALID_VALUE" : 0;
      return 0;
    }}
    int cuDriverGetVersion(int* version) {{ *version = 13000; return 0; }}
    """
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libcuda.so"
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
        subprocess.run(command, input=text, text=True, check=True)
        return ctypes.CDLL(str(library))


Say = Callable[[Gpu, int, int], None]


def test_from_device_recognises_a_preset(say: Say) -> None:
    say(preset("h100"), 2_619_000, 5120)
    assert from_device() == preset("h100")


def test_from_device_tells_h200_from_h100(say: Say) -> None:
    say(preset("h200"), 3_201_000, 6144)
    assert from_device() == preset("h200")


def test_from_device_of_an_unknown_device(say: Say) -> None:
    l4 = dataclasses.replace(
        preset("a100"), arch="sm_89", sms=58, max_threads_per_sm=1536, max_blocks_per_sm=24,
        shared_per_sm_bytes=100 * 1024, shared_per_block_bytes=99 * 1024,
    )  # fmt: skip
    say(l4, 6_251_000, 192)
    found = from_device()
    assert found.name == "sm_89x58"
    assert found.bandwidth_gbs == pytest.approx(270, rel=0.01)
    assert found.fp32_lanes_per_sm == 128
    assert found.blocks_per_sm(256, 32, 0) == 6


def test_from_device_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, say: Say) -> None:
    monkeypatch.setattr(cuda_driver, "open_driver", lambda: None)
    with pytest.raises(AstitchError, match=r"no driver: libcuda.*\n  check nvidia-smi"):
        from_device()
    cuda_driver.count_devices.cache_clear()
    say(preset("h100"), 2_619_000, 5120)
    for number in (3, -1):
        with pytest.raises(AstitchError, match=f"device {number} cannot be asked: .*sees 1 dev"):
            from_device(number)
    with pytest.raises(AstitchError, match="^CUDA_ERROR_INVALID_VALUE$"):
        cuda_driver.read_attributes(0, {"nothing": 9999})


@pytest.mark.parametrize("driver", [None, "refuses"])
def test_no_devices_are_counted(driver: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    refuses = SimpleNamespace(cuInit=lambda flags: 100)
    monkeypatch.setattr(cuda_driver, "open_driver", lambda: refuses if driver else None)
    cuda_driver.count_devices.cache_clear()
    assert cuda_driver.count_devices() == 0
    cuda_driver.count_devices.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize("bound", [16, 32, 40, 64, 72, 96, 128, 168, 255])
def test_occupancy_is_the_drivers(bound: int) -> None:
    import cupy
    from cupy_backends.cuda.api import driver

    device = from_device()
    loads = "".join(f"float v{i} = x[{i} * n];" for i in range(260))
    total = " + ".join(f"v{i} * v{259 - i}" for i in range(260))
    stores = "".join(f"x[{i}] = v{i} * s;" for i in range(260))
    compiled = compile_cuda(
        'extern "C" __global__ void k(float* x, int n)'
        f"{{ extern __shared__ float most[]; {loads} float s = {total} + most[0]; {stores} }}",
        device.arch,
        max_registers=bound,
    )
    module = cupy.cuda.function.Module()
    module.load(compiled.cubin)
    function = module.get_function("k").ptr
    driver.funcSetAttribute(
        function, 8, device.shared_per_block_bytes
    )  # most dynamic shared memory
    registers = compiled.kernels["k"].registers
    blocks = (32, 64, 96, 128, 160, 224, 256, 288, 384, 416, 512, 544, 736, 768, 960, 1024)
    shared = (0, 1, 100, 5000, 32767, 48 << 10, 75 << 10, 113 << 10, (113 << 10) + 1, 227 << 10)
    for block, bytes_ in itertools.product(blocks, shared):
        if bytes_ <= device.shared_per_block_bytes:
            expected = driver.occupancyMaxActiveBlocksPerMultiprocessor(function, block, bytes_)
            assert device.blocks_per_sm(block, registers, bytes_) == expected, (block, bytes_)
