"""Kernels compiled as XLA launches them, for a GPU that is not there."""

from __future__ import annotations

import dataclasses
import re
import struct
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from astitch.compile import compile_graph
from astitch.errors import IllegalProduct
from astitch.graph.ir import DType
from astitch.hlo_import import import_hlo
from astitch.kernel.in_place import InPlace
from astitch.pipeline import Target
from astitch.profiling.kernel_trace import classify_kernel
from astitch.profiling.report import PRODUCT
from astitch.program.steps import KernelStep
from astitch.show.compilation import Compilation
from astitch.tile.narrow_fragments import FragmentTiling, write_fragment_kernel
from astitch.tile.narrow_product import NarrowShape
from astitch.toolchain import nvrtc
from astitch.toolchain.kernel_cache import compile_cached
from astitch.toolchain.nvrtc import CompiledKernel, Request, Resources
from astitch.toolchain.override import OverrideWarning
from astitch.xla import prepare_kernels as preparing
from astitch.xla.memory_reuse import find_in_place
from astitch.xla.prepare_kernels import (
    Code,
    KernelRefusal,
    XlaKernel,
    choose_code,
    emit_for_xla,
    emit_plan_for_xla,
    name_entry,
    prepare_kernels,
)
from tests.emulated_xla import (
    H100,
    ROWS,
    compile_case,
    compile_meeting,
    planned_kernels,
    two_batch_norms,
)
from tests.hlo_runner import lower


@pytest.fixture(scope="module")
def meeting() -> Compilation:
    return compile_meeting()


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
    render = partial(emit_plan_for_xla, donated=[True] * len(graph.parameters))
    compilation = compile_graph(graph, H100, Target(render=render))
    in_place = find_in_place(compilation, [True] * len(graph.parameters))
    prepare_kernels(compilation, H100, in_place)
    assert len(compiled) == len(set(compiled)) == len(compilation.program.kernels)


def test_text_of_another_form_is_refused() -> None:
    (kernel,) = planned_kernels(compile_case("layer_norm"))
    with pytest.raises(IllegalProduct, match=r"kernel stitch_0: parameter 4 .* the kernel has 4$"):
        emit_for_xla(kernel, [InPlace(0, 4)])


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


def test_xla_gives_no_shared_memory_that_a_kernel_may_have_itself() -> None:
    """To a kernel that it gives some XLA leaves little L1 cache."""
    rows = np.ones((4096, 8192), np.float32)
    compilation = compile_graph(import_hlo(lower(jax.nn.softmax, rows)), H100)
    (kernel,) = prepare_kernels(compilation, H100).values()
    (planned,) = planned_kernels(compilation)
    assert isinstance(kernel, XlaKernel) and planned.shared_bytes > 0
    assert not kernel.ordered and kernel.shared_bytes == 0
    assert re.search(rf"\.shared .*\[{planned.shared_bytes}\]", kernel.code.decode())


def test_what_blocks_that_meet_share_is_given_where_it_is_much(meeting: Compilation) -> None:
    (kernel,) = prepare_kernels(meeting, H100).values()
    (planned,) = planned_kernels(meeting)
    waiting = planned.waiting_blocks
    assert isinstance(kernel, XlaKernel) and kernel.ordered and waiting > 0
    assert waiting * (planned.shared_bytes + 1024) > 8192
    assert kernel.shared_bytes == planned.shared_bytes


def test_shared_memory_of_a_hand_edited_kernel_s_own_comes_beside_what_is_given(
    meeting: Compilation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTITCH_OVERRIDE", str(tmp_path))
    (before,) = prepare_kernels(meeting, H100).values()
    (file,) = tmp_path.glob("*.cu")
    own = (
        r"\1\n  __shared__ volatile int own[8];\n  own[threadIdx.x & 7] = 1;\n"
        r"  if (own[blockIdx.x & 7] == 2) return;"
    )
    edited, count = re.subn(r"(ASTITCH_SHARED_ARENA\(\d+\);)", own, file.read_text())
    assert count == 1
    file.write_text(edited)
    with pytest.warns(OverrideWarning, match="a hand-edited kernel runs"):
        (kernel,) = prepare_kernels(meeting, H100).values()
    assert isinstance(before, XlaKernel) and isinstance(kernel, XlaKernel)
    assert re.search(r"\.shared .*own\[32\]", kernel.code.decode())
    assert kernel.shared_bytes == before.shared_bytes > 0


def test_a_cubin_has_the_kernel_under_its_own_name(meeting: Compilation) -> None:
    (kernel,) = prepare_kernels(meeting, H100, code=Code.CUBIN).values()
    assert isinstance(kernel, XlaKernel) and kernel.symbol == kernel.name
    symbols = read_strings(kernel.code, b".strtab")
    assert kernel.name.encode() in symbols
    assert any(re.fullmatch(rb"stitch_[0-9a-f]{32}_words", symbol) for symbol in symbols)
    assert f".text.{kernel.name}".encode() in read_strings(kernel.code, b".shstrtab")
    assert not re.search(rb"stitch_[0-9a-f]{32}\0", kernel.code)


def test_a_cubin_has_a_product_of_few_rows_under_its_own_name() -> None:
    """Profilers tell by it that it is a product; what a block shares belongs to it."""
    bf16, extents = DType.BF16, (1, 1, 8, 131072, (131072,))
    shape = NarrowShape(bf16, DType.S8, DType.F32, *extents, bf16, share=131072)
    kernel = write_fragment_kernel(shape, FragmentTiling(8, 8, 1))
    compiled = compile_cached(Request(kernel.text, H100.arch))
    symbol, cubin = name_entry(compiled, kernel.name, Code.CUBIN)
    assert symbol == kernel.name and classify_kernel(symbol) == PRODUCT
    sections = {f"{kind}.{symbol}".encode() for kind in (".text", ".nv.shared")}
    assert sections <= read_strings(cubin, b".shstrtab")
    assert not re.search(rb"stitch_[0-9a-f]{32}\0", cubin)


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
    preparing._warn_of_newer_nvrtc.cache_clear()
    for module in (nvrtc, preparing):
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
    monkeypatch.setattr("astitch.xla.prepare_kernels.compile_cached", None)
    (name,) = (kernel.name for kernel in meeting.program.kernels)
    kernels = prepare_kernels(meeting, H100, left={name: "XLA does it as well"})
    assert kernels == {name: KernelRefusal(name, "XLA does it as well")}


def test_too_many_arrays_are_refused(meeting: Compilation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astitch.xla.prepare_kernels.MAX_POINTERS", 4)
    (refusal,) = prepare_kernels(meeting, H100).values()
    assert isinstance(refusal, KernelRefusal) and "XLA passes 4" in refusal.reason
