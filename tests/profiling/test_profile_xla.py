"""What astitch-profile reads off an optimized module of XLA's: launches, classes, turns of loops, least traffic."""

from __future__ import annotations

from astitch.cost.product_bounds import bound_product, peak_gflops
from astitch.cost.speed_of_light import Work
from astitch.device.gpu import preset
from astitch.hlo_import import serialize_module
from astitch.profiling.report import COPY, MEMORY, PRODUCT, Kernel
from astitch.profiling.xla_kernels import read_xla_kernels

MODULE = """\
HloModule jit_f, is_scheduled=true

%fused_slice (p0: f32[100,64], p1: s32[]) -> f32[1,64] {
  %p0 = f32[100,64]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %part = f32[1,64]{1,0} dynamic-slice(%p0, %p1, %zero), dynamic_slice_sizes={1,64}
  ROOT %e = f32[1,64]{1,0} exponential(%part), metadata={op_name="jit(f)/exp" source_file="f.py" source_line=7}
}

%fused_update (p2: f32[100,64], p3: f32[1,64], p4: s32[]) -> f32[100,64] {
  %p2 = f32[100,64]{1,0} parameter(0)
  %p3 = f32[1,64]{1,0} parameter(1)
  %p4 = s32[] parameter(2)
  %zero = s32[] constant(0)
  ROOT %u = f32[100,64]{1,0} dynamic-update-slice(%p2, %p3, %p4, %zero)
}

%body (state: (s32[], f32[100,64])) -> (s32[], f32[100,64]) {
  %state = (s32[], f32[100,64]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %x = f32[100,64]{1,0} get-tuple-element(%state), index=1
  %row = f32[1,64]{1,0} fusion(%x, %i), kind=kLoop, calls=%fused_slice
  %new = f32[100,64]{1,0} fusion(%x, %row, %i), kind=kLoop, calls=%fused_update
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  ROOT %out = (s32[], f32[100,64]{1,0}) tuple(%next, %new)
}

%condition (s: (s32[], f32[100,64])) -> pred[] {
  %s = (s32[], f32[100,64]{1,0}) parameter(0)
  %n = s32[] get-tuple-element(%s), index=0
  %most = s32[] constant(100)
  ROOT %more = pred[] compare(%n, %most), direction=LT
}

ENTRY %main (x: f32[100,64], w: f32[64,32], start: s32[]) -> f32[100,32] {
  %x = f32[100,64]{1,0} parameter(0)
  %w = f32[64,32]{1,0} parameter(1)
  %start = s32[] parameter(2)
  %first = (s32[], f32[100,64]{1,0}) tuple(%start, %x)
  %loop = (s32[], f32[100,64]{1,0}) while(%first), condition=%condition, body=%body, WHILE
  %y = f32[100,64]{1,0} get-tuple-element(%loop), index=1
  %ours = f32[100,64]{1,0} custom-call(%y), custom_call_target="__gpu$xla.gpu.ptx", BROUGHT
  %c = f32[100,64]{1,0} copy(%ours)
  %call = (f32[100,32]{1,0}, s8[64]{0}) custom-call(%c, %w), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  ROOT %z = f32[100,32]{1,0} get-tuple-element(%call), index=0
}
"""  # noqa: E501

KNOWN = 'backend_config={"known_trip_count":{"n":"100"}}'
BROUGHT = 'backend_config="{block_x = 256 : i32, name = \\"stitch_7\\", grid_x = 1 : i32}"'


def read(turns: str) -> tuple[dict[str, Kernel], int]:
    text = MODULE.replace(", WHILE", turns).replace("BROUGHT", BROUGHT)
    found = read_xla_kernels(serialize_module(text), preset("h100"))
    return {kernel.name: kernel for kernel in found.kernels}, found.unknown_loops


def test_kernels_of_a_loop_count_as_often_as_it_turns() -> None:
    kernels, unknown = read(f", {KNOWN}")
    assert unknown == 0
    assert kernels["row"].launches == kernels["new"].launches == 100.0
    assert kernels["c"].launches == 1.0
    kernels, unknown = read("")
    assert unknown == 1 and kernels["row"].launches == 1.0


def test_classes_come_from_what_is_inside() -> None:
    kernels, _ = read("")
    assert {name: k.kind for name, k in kernels.items() if name not in ("next", "more")} == {
        "row": MEMORY,
        "new": MEMORY,
        "stitch_7": MEMORY,
        "c": COPY,
        "call": PRODUCT,
    }
    assert [name for name, k in kernels.items() if k.ours] == ["stitch_7"]
    assert kernels["call"].flops == 2 * 100 * 64 * 32


def test_only_what_is_needed_is_read_and_what_is_new_is_written() -> None:
    row, new = (read("")[0][name] for name in ("row", "new"))
    assert (row.read_bytes, row.written_bytes) == (64 * 4 + 4, 64 * 4)
    assert (new.read_bytes, new.written_bytes) == (64 * 4 + 4, 64 * 4)  # in place
    assert row.flops == 20 * 64  # an exponential is 20
    assert row.source == ("f.py:7 jit(f)/exp",)


APART = """\
HloModule jit_h, is_scheduled=true

%one (a: f32[64,64]) -> f32[64,64] {
  %a = f32[64,64]{1,0} parameter(0)
  ROOT %n = f32[64,64]{1,0} negate(%a)
}

%two (b: f32[64,64]) -> f32[64,64] {
  %b = f32[64,64]{1,0} parameter(0)
  ROOT %e = f32[64,64]{1,0} exponential(%b)
}

ENTRY %main (x: f32[64,64]) -> (f32[64,64], f32[64,64], f32[64,64]) {
  %x = f32[64,64]{1,0} parameter(0)
  %third = f32[64,64]{1,0} fusion(%x), kind=kLoop, calls=%two
  %first = f32[64,64]{1,0} fusion(%x), kind=kLoop, calls=%one
  %second = f32[64,64]{1,0} custom-call(%x, %x), custom_call_target="__cublas$gemm"
  ROOT %all = (f32[64,64]{1,0}, f32[64,64]{1,0}, f32[64,64]{1,0}) tuple(%first, %second, %third)
}
"""


def test_kernels_are_in_the_order_in_which_they_run() -> None:
    module = serialize_module(APART)
    found = read_xla_kernels(module, preset("h100"))
    assert [kernel.name for kernel in found.kernels] == ["third", "first", "second"]
    unscheduled = serialize_module(APART.replace(", is_scheduled=true", ""))
    found = read_xla_kernels(unscheduled, preset("h100"))
    assert [kernel.name for kernel in found.kernels] == ["first", "second", "third"]
    assert found.once == {"first", "second", "third"} and found.libraries == {"second"}


def test_what_may_run_more_or_less_often_than_once_is_told_apart() -> None:
    text = MODULE.replace(", WHILE", f", {KNOWN}").replace("BROUGHT", BROUGHT)
    assert read_xla_kernels(serialize_module(text), preset("h100")).once == {
        "stitch_7",
        "c",
        "call",
    }
    assert read_xla_kernels(serialize_module(UPDATES), preset("h100")).once == {"made"}


UPDATES = """\
HloModule jit_g, is_scheduled=true

%fused (p0: f32[10,64], p1: f32[64], p2: s32[]) -> (f32[10,64], f32[64]) {
  %p0 = f32[10,64]{1,0} parameter(0)
  %p1 = f32[64]{0} parameter(1)
  %p2 = s32[] parameter(2)
  %zero = s32[] constant(0)
  %flat = f32[640]{0} bitcast(%p0)
  %shaped = f32[10,64]{1,0} bitcast(%flat)
  %row = f32[1,64]{1,0} bitcast(%p1)
  %update = f32[10,64]{1,0} dynamic-update-slice(%shaped, %row, %p2, %zero)
  %e = f32[64]{0} exponential(%p1)
  ROOT %both = (f32[10,64]{1,0}, f32[64]{0}) tuple(%update, %e)
}

%one (a: f32[64]) -> f32[64] {
  %a = f32[64]{0} parameter(0)
  ROOT %n = f32[64]{0} negate(%a)
}

ENTRY %main (x: f32[10,64], y: f32[64], i: s32[]) -> f32[64] {
  %x = f32[10,64]{1,0} parameter(0)
  %y = f32[64]{0} parameter(1)
  %i = s32[] parameter(2)
  %made = (f32[10,64]{1,0}, f32[64]{0}) fusion(%x, %y, %i), kind=kLoop, calls=%fused
  %e = f32[64]{0} get-tuple-element(%made), index=1
  ROOT %z = f32[64]{0} conditional(%i, %e, %e), branch_computations={%one, %one}
}
"""


def test_a_fusion_writes_slices_in_place_and_its_other_results_whole() -> None:
    found = read_xla_kernels(serialize_module(UPDATES), preset("h100"))
    made = next(kernel for kernel in found.kernels if kernel.name == "made")
    assert made.read_bytes == 64 * 4 + 4  # nothing of x
    assert made.written_bytes == 64 * 4 + 64 * 4
    assert found.conditionals == 1 and [k.name for k in found.kernels] == ["made", "n"]


def test_products_are_bounded_by_memory_arithmetic_or_launch() -> None:
    gpu = preset("h100")
    assert bound_product(Work(10**9, 0, 1), gpu, "f32")[1] == "DRAM"
    us, limit = bound_product(Work(1, 1, 10**13), gpu, "bf16")
    assert limit == "tensor cores" and us > 10_000
    assert bound_product(Work(1, 1, 1), gpu, "f32")[1] == "launch"
    assert peak_gflops(gpu, "f8e4m3fn") == 1979e3
    assert peak_gflops(gpu, "s32") == gpu.fp32_gflops
