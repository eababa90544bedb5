"""What a user may hand in by mistake or on purpose: a named error that says where, or the right result.

Messages of single malformed fields are pinned in test_hlo_import; here whole modules go through the
whole compiler, the command line and the emulation.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from astitch.compile import compile_hlo, main
from astitch.errors import (
    ArgumentMismatch,
    AstitchError,
    DynamicShape,
    MalformedHlo,
    UnsupportedOp,
    UnsupportedType,
)
from astitch.graph.reference import run_graph
from astitch.hlo import schema
from astitch.hlo_import import import_hlo
from astitch.run.host_engine import HostEngine
from astitch.toolchain.nvrtc import compile_cuda
from tests.hlo_runner import parse_hlo_text, run_xla
from tests.programs import CORPUS, PROGRAMS, load

# ---- modules that cannot be compiled -------------------------------------------------------------


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_dump_is_malformed(part: float) -> None:
    data = load("layer_norm_backward")
    with pytest.raises(MalformedHlo, match="truncated; write the dump again"):
        compile_hlo(data[: int(len(data) * part)])


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (
            "x = f32[<=8,3] parameter(0)\n ROOT y = f32[<=8,3] negate(x)",
            DynamicShape,
            "HLO computation e, instruction %x: the shape f32[8, 3] has a dynamic dimension; "
            "compile for a fixed shape",
        ),
        (
            "x = opaque[] parameter(0)\n ROOT y = f32[8] iota(), iota_dimension=0",
            UnsupportedType,
            "HLO computation e, instruction %x: element type opaque is not supported; astitch knows ",
        ),
        (
            "x = f32[8] parameter(0)\n ROOT y = f32[8] collective-permute(x), "
            "source_target_pairs={{0,1}}",
            UnsupportedOp,
            "HLO computation e, instruction %y: no entry for 'collective-permute' in astitch/graph/ops"
            "\n  rewrite the program without it, or run it through XLA",
        ),
        (
            "ROOT c = f32[3,4] constant({...})",
            MalformedHlo,
            "HLO text, instruction c: the text elides large constants; dump the proto instead: "
            "XLA_FLAGS=--xla_dump_hlo_as_proto",
        ),
    ],
)
def test_what_is_not_supported_is_named(text: str, error: type[AstitchError], message: str) -> None:
    with pytest.raises(error) as raised:
        compile_hlo(f"HloModule m\nENTRY e {{\n {text}\n}}")
    assert str(raised.value).startswith(message)


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(AstitchError, match=r"no GPU preset 'h1000'\n  choose one of v100, t4, "):
        compile_hlo(load("softmax_7x13"), gpu="h1000")


# ---- arguments that do not fit -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [np.zeros((7, 13))],
            "argument 0 (%{}): f32[7,13] was compiled for, f64[7,13] was given\n"
            "  convert the argument, or compile again for this dtype",
        ),
        (
            [np.zeros((7, 12), np.float32)],
            "argument 0 (%{}): f32[7,13] was compiled for, f32[7,12] was given\n"
            "  convert the argument, or compile again for this shape",
        ),
        (
            [],
            " takes 1 arguments, 0 were given\n"
            "  pass one array for each parameter, in the order of the parameters",
        ),
        ([np.array(["a"])], "argument 0: "),
    ],
)
def test_wrong_arguments_are_named(arguments: list[np.ndarray], message: str) -> None:
    program = compile_hlo(load("softmax_7x13")).program
    with pytest.raises(ArgumentMismatch) as raised:
        HostEngine(program).run(arguments)
    assert message.format(program.parameters[0].buffer) in str(raised.value)


def test_strided_and_foreign_arguments_are_as_good_as_contiguous_ones() -> None:
    engine = HostEngine(compile_hlo(load("softmax_33x257")).program)
    x = PROGRAMS["softmax_33x257"].make_inputs()[0]
    (want,) = engine.run([x])
    spread = np.zeros((66, 514), np.float32)[::2, ::-2]
    spread[:] = x
    for same in (np.asfortranarray(x), spread, x.astype(">f4")):
        np.testing.assert_array_equal(engine.run([same])[0], want)


# ---- values at the edge --------------------------------------------------------------------------


def run_text(body: str, arguments: list[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(emulated and checked, by XLA) of the entry computation `body`."""
    proto = parse_hlo_text(f"HloModule m\n{body}")
    return HostEngine(compile_hlo(proto).program, check=True).run(arguments), run_xla(
        proto, arguments
    )


INDICES = np.array([-(2**31), -7, -1, 0, 1, 4, 5, 6, 1000, 2**31 - 1], np.int32)


def test_a_gather_clamps_its_indices_as_xla_does() -> None:
    body = """
ENTRY e {
  table = f32[5,8] parameter(0)
  rows = s32[10] parameter(1)
  ROOT y = f32[10,8] gather(table, rows), offset_dims={1}, collapsed_slice_dims={0},
    start_index_map={0}, index_vector_dim=1, slice_sizes={1,8}
}"""
    table = np.arange(40, dtype=np.float32).reshape(5, 8)
    got, want = run_text(body, [table, INDICES])
    np.testing.assert_array_equal(got[0], want[0])


@pytest.mark.parametrize("start", [-(2**31), -1, 0, 3, 4, 2**31 - 1])
def test_dynamic_slices_clamp_their_indices_as_xla_does(start: int) -> None:
    body = """
ENTRY e {
  x = f32[6,7] parameter(0)
  i = s32[] parameter(1)
  u = f32[3,4] parameter(2)
  y = f32[3,4] dynamic-slice(x, i, i), dynamic_slice_sizes={3,4}
  z = f32[6,7] dynamic-update-slice(x, u, i, i)
  ROOT t = (f32[3,4], f32[6,7]) tuple(y, z)
}"""
    x = np.arange(42, dtype=np.float32).reshape(6, 7)
    u = -np.ones((3, 4), np.float32)
    got, want = run_text(body, [x, np.int32(start), u])
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, w)


def test_nan_and_infinite_floats_become_legal_indices() -> None:
    """A float that no integer holds saturates and NaN is 0, so that no read is out of bounds."""
    body = """
ENTRY e {
  table = f32[5,3] parameter(0)
  x = f32[8] parameter(1)
  rows = s32[8] convert(x)
  first = s32[] reshape(s32[1] slice(rows), slice={[0:1]})
  zero = s32[] constant(0)
  piece = f32[2,3] dynamic-slice(table, first, zero), dynamic_slice_sizes={2,3}
  picked = f32[8,3] gather(table, rows), offset_dims={1}, collapsed_slice_dims={0},
    start_index_map={0}, index_vector_dim=1, slice_sizes={1,3}
  ROOT t = (f32[8,3], f32[2,3], s32[8]) tuple(picked, piece, rows)
}""".replace("reshape(s32[1] slice(rows), slice={[0:1]})", "reshape(head)").replace(
        "  first =", "  head = s32[1] slice(rows), slice={[0:1]}\n  first ="
    )
    table = np.arange(15, dtype=np.float32).reshape(5, 3)
    x = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 2.9, -0.5, 1e-30], np.float32)
    proto = parse_hlo_text(f"HloModule m\n{body}")
    engine = HostEngine(compile_hlo(proto).program, check=True)
    for head in (np.nan, np.inf, -np.inf, 2.0):
        x[0] = head
        picked, piece, rows = engine.run([table, x])
        with np.errstate(invalid="ignore"):
            wanted = run_graph(import_hlo(proto), [table, x])
        for got, want in zip((picked, piece, rows), wanted, strict=True):
            np.testing.assert_array_equal(got, want)
        assert rows[1:5].tolist() == [2**31 - 1, -(2**31), 2**31 - 1, -(2**31)]


# ---- names ---------------------------------------------------------------------------------------

HOSTILE = {
    "quotes": '"; }}\' "{}',
    "comment_end": "a*/ b {}",
    "line_comment": "// a {}",
    "newline": "a\n#error {}\nb",
    "trigraph": "{}??/",
    "continued_line": "{}\\",
    "continued_line_with_newline": "{}\\\n",
    "carriage_return": "{}\r#error",
    "line_separator": "{}\u2028#error\u0085\x0b\x0c",
    "unicode": "größe-漢字-{}",
    "right_to_left": "{}\u202e\u2066",
    "nul": "a\0{}",
    "very_long": "x" * 5000 + "{}",
    "digit_first": "{}9lives",
    "percent_and_braces": "%s%n${{}}{}",
    "dots_and_dashes_differ": None,
    "keywords": None,
    "same_after_sanitising": None,
    "names_of_the_emitter": None,
    "names_of_buffers": None,
}
"""How instructions are called, by their number."""

LISTS = {
    "dots_and_dashes_differ": [f"x{c}1" for c in ".-_+/:, @!~^&|=<>?;"],
    "keywords": """int float double for while if else class struct template typename operator new
        delete this const volatile register extern static __global__ __shared__ main auto void
        asm goto""".split(),
    "same_after_sanitising": [f"a{'.' * i}{'-' * (25 - i)}b" for i in range(26)],
    "names_of_the_emitter": """thread task first tx ty to row col lane barrier Vec State Reduce0
        load_as store_as stitch_0 blockIdx threadIdx gridDim row_0 col_0 at k l __syncthreads
        p_x hlo_add""".split(),
    "names_of_buffers": """stitch_0/barrier stitch_0 x#0 x#1 x x#2 stitch_0/x stitch_1 stitch_0/x#0
        #0 # // a#b#c""".split(),
}

MODULE = """
HloModule m
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
most {
  v = f32[] parameter(0)  i = s32[] parameter(1)  w = f32[] parameter(2)  j = s32[] parameter(3)
  g = pred[] compare(v, w), direction=GE
  p = f32[] select(g, v, w)  q = s32[] select(g, i, j)
  ROOT t = (f32[], s32[]) tuple(p, q)
}
ENTRY e {
  x = f32[300,40] parameter(0)
  scale = f32[40] parameter(1)
  zero = f32[] constant(0)
  nothing = s32[] constant(0)
  lowest = f32[] constant(-inf)
  table = f32[4] constant({1, 2, 3, 4})
  spread = f32[300,40] broadcast(scale), dimensions={1}
  y = f32[300,40] multiply(x, spread)
  columns = f32[40] reduce(y, zero), dimensions={0}, to_apply=add
  back = f32[300,40] broadcast(columns), dimensions={1}
  z = f32[300,40] add(y, back)
  count = s32[300,40] iota(), iota_dimension=1
  both = (f32[300], s32[300]) reduce(z, count, lowest, nothing), dimensions={1}, to_apply=most
  best = f32[300] get-tuple-element(both), index=0
  where = s32[300] get-tuple-element(both), index=1
  total = f32[] reduce(z, zero), dimensions={0,1}, to_apply=add
  product = f32[40,40] dot(x, z), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  half = f32[40,40] negate(product)
  twice = f32[4] add(table, table)
  ROOT result = (f32[300,40], f32[300], s32[300], f32[], f32[40,40], f32[4]) tuple(z, best, where, total, half, twice)
}
"""


def rename(proto: bytes, name_of: Callable[[int], str]) -> bytes:
    """The module with the names, op names and source files of everything replaced."""
    module = schema.HloModuleProto.FromString(proto)
    number = 0
    module.name = name_of(97).encode()
    for computation in module.computations:
        computation.name = name_of(98).encode()
        for instruction in computation.instructions:
            name = name_of(number).encode()
            instruction.name = instruction.metadata.op_name = name
            instruction.metadata.source_file = name
            number += 1
    return bytes(module.SerializeToString())


def name_function(kind: str) -> Callable[[int], str]:
    if kind in LISTS:
        names = LISTS[kind]
        return lambda number: names[number % len(names)]
    pattern = HOSTILE[kind]
    assert pattern is not None
    return lambda number: pattern.replace("{}", str(number))


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_names_change_no_result(kind: str) -> None:
    plain = parse_hlo_text(MODULE)
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal(s, np.float32) for s in ((300, 40), (40,))]
    compiled = compile_hlo(rename(plain, name_function(kind)))
    got = HostEngine(compiled.program).run(arguments)
    want = HostEngine(compile_hlo(plain).program).run(arguments)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, w)
    for kernel in compiled.program.kernels:
        assert kernel.source.isascii() and kernel.source.replace("\n", "").isprintable()
        assert max(map(len, kernel.source.splitlines())) < 2000
        compile_cuda(kernel.source, "sm_90")
    assert compiled.explain()


# ---- the command line ----------------------------------------------------------------------------


def run_main(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(list(arguments))
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.pb", b"", "HLO module: the input is empty; pass the contents of an HLO dump"),
        (
            "garbage.pb",
            b"\x93NUMPY\x01\x00",
            "HLO module: 8 bytes are no serialized HloModuleProto",
        ),
        ("zipped.pb", gzip.compress(b"x" * 100, mtime=0), "HLO module: "),
        ("syntax.txt", b"HloModule m\nENTRY e { ROOT c = f32[4] frobnicate() }", "HLO text: "),
        ("no.txt", b"hello\n", "HLO text: "),
        ("latin1.txt", b"HloModule m\n// gr\xf6\xdfe\nENTRY e {", "{path}: byte 17 is no UTF-8\n"),
        (
            "dynamic.txt",
            b"HloModule m\nENTRY e { x = f32[<=8] parameter(0) ROOT y = f32[<=8] negate(x) }",
            "HLO computation e, instruction %x: the shape f32[8] has a dynamic dimension",
        ),
    ],
)
def test_bad_files_end_with_status_2(
    name: str, content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    status, out, err = run_main(capsys, str(path))
    assert status == 2 and out == ""
    assert err.startswith("astitch: " + message.replace("{path}", str(path)))
    assert "Traceback" not in err


def test_a_missing_file_and_a_folder_end_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, reason in ((tmp_path / "none.pb", "No such file"), (tmp_path, "Is a directory")):
        status, out, err = run_main(capsys, str(path))
        assert (status, out) == (2, "")
        assert err.startswith(f"astitch: {path}: {reason}")


def test_unknown_options_end_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["x.pb", "--gpu", "h1000"])
    assert ended.value.code == 2
    assert "invalid choice: 'h1000'" in capsys.readouterr().err


def test_a_good_file_prints_its_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "softmax.pb"
    path.write_bytes(gzip.decompress((CORPUS / "softmax_7x13.hlo.pb.gz").read_bytes()))
    status, out, _ = run_main(capsys, str(path))
    assert status == 0
    assert re.search(r"stitch_0\b", out)
