"""Modules made to break the compiler: each ends within a second with an error that names what is wrong.

Messages are written by hand into the protos: HLO text has no spelling for most of this.
"""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from astitch.compile import compile_hlo
from astitch.errors import (
    AstitchError,
    MalformedHlo,
    OutOfMemory,
    UnsupportedOp,
    UnsupportedType,
)
from astitch.graph.reference import run_graph
from astitch.hlo import schema
from astitch.hlo.sizes import MOST_NESTED
from astitch.hlo_import import import_hlo
from astitch.loops.plan import describe_loops
from astitch.loops.stacks import straighten_stacks
from astitch.run.host_engine import HostEngine
from tests.damaged_modules import ENTRIES, load_modules, run_cases
from tests.hlo_runner import parse_hlo_text

WRITE_AGAIN = "; the dump is damaged, write it again"

Change = Callable[[Any], object]


def parse(text: str) -> Any:
    return schema.HloModuleProto.FromString(parse_hlo_text(f"HloModule m\n{text}"))


def entry_of(module: Any) -> Any:
    return next(c for c in module.computations if c.id == module.entry_computation_id)


def find(module: Any, name: str) -> Any:
    return next(i for c in module.computations for i in c.instructions if i.name == name.encode())


def refuse(module: Any, error: type[AstitchError] = MalformedHlo) -> str:
    """The message with which a module is refused, within a second and 100 MB."""
    data = bytes(module.SerializeToString())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    with pytest.raises(error) as caught:
        compile_hlo(data)
    assert time.process_time() - start < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
    assert type(caught.value) is error
    return str(caught.value)


# ---- what grows --------------------------------------------------------------------------------


def doubling_tuples(depth: int, opcode: str = "tuple", *, width: int = 2) -> Any:
    """t1 = (x, x), t2 = (t1, t1) ...; the shapes are left as they are, or they would be as large."""
    module = parse("ENTRY e { x = f32[2] parameter(0)\n ROOT t = (f32[2], f32[2]) tuple(x, x) }")
    entry = entry_of(module)
    for level in range(depth):
        last = entry.instructions[-1]
        again = entry.instructions.add()
        again.CopyFrom(last)
        again.id, again.name = last.id + 1, b"t.%d" % level
        again.operand_ids[:] = [last.id] * width
    entry.instructions[-1].opcode = opcode.encode()
    entry.root_id = entry.instructions[-1].id
    return module


@pytest.mark.parametrize("opcode", ["tuple", "opt-barrier", "custom-call", "while"])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_tuples_that_double_40_deep(opcode: str, width: int) -> None:
    message = refuse(doubling_tuples(40, opcode, width=width))
    assert message == (
        "HLO computation e, instruction %t.0, field shape: it declares a tuple of 2, which is not "
        f"what its operands give{WRITE_AGAIN}"
    )


@pytest.mark.parametrize("depth", [500, 5000])
def test_tuples_500_deep(depth: int) -> None:
    assert "%t.0, field shape: it declares a tuple of 2" in refuse(doubling_tuples(depth, width=1))


def calls_of_the_next(depth: int, opcode: str, calls: int = 2) -> Any:
    """Computation d calls computation d - 1 twice ...; the innermost negates."""
    module = schema.HloModuleProto(
        name=b"nest", entry_computation_name=b"e", entry_computation_id=depth
    )
    for level in range(depth + 1):
        computation = module.computations.add(name=b"c%d" % level, id=level, root_id=calls)
        for i in range(calls + 1):
            name = (opcode if level else "negate") if i else "parameter"
            instruction = computation.instructions.add(name=b"x%d" % i, id=i, opcode=name.encode())
            instruction.shape.element_type = 11
            if i:
                instruction.operand_ids.append(i - 1)
            if i and level:
                instruction.called_computation_ids.append(level - 1)
    return module


@pytest.mark.parametrize(("opcode", "calls"), [("call", 2), ("fusion", 2), ("map", 2), ("call", 5)])
def test_computations_that_call_the_next_one_twice_30_deep(opcode: str, calls: int) -> None:
    message = refuse(calls_of_the_next(30, opcode, calls))
    assert "with its calls unfolded it has more than 1048576 values" in message


def test_calls_that_double_a_few_times_are_read() -> None:
    graph = import_hlo(bytes(calls_of_the_next(5, "call").SerializeToString()))
    assert [n.op for n in graph] == ["parameter", *["negate"] * 64]


def test_computations_that_call_each_other() -> None:
    module = calls_of_the_next(3, "call")
    module.computations[0].instructions[1].opcode = b"call"
    module.computations[0].instructions[1].called_computation_ids.append(2)
    assert refuse(module) == "HLO computation c2 calls itself; HLO has no recursion"


def nested_maps(depth: int) -> bytes:
    return bytes(calls_of_the_next(depth, "map", calls=1).SerializeToString())


def test_regions_nest_as_deep_as_every_stage_can_follow() -> None:
    compilation = compile_hlo(nested_maps(MOST_NESTED))
    x = np.float32(2)
    assert HostEngine(compilation.program).run([x]) == [-x]
    with pytest.raises(MalformedHlo, match=f"regions nest deeper than {MOST_NESTED}, the most"):
        compile_hlo(nested_maps(MOST_NESTED + 1))
    with pytest.raises(MalformedHlo, match="regions nest deeper"):
        compile_hlo(nested_maps(3000))


# ---- fields ------------------------------------------------------------------------------------

UNARY = "ENTRY e { x = f32[4,4] parameter(0)\n ROOT y = f32[4,4] negate(x) }"
TUPLE = """ENTRY e { x = f32[4] parameter(0)
 t = (f32[4], f32[4]) tuple(x, x)
 b = (f32[4], f32[4]) opt-barrier(t)
 ROOT y = f32[4] get-tuple-element(b), index=0 }"""
SLICE = """ENTRY e { x = f32[4] parameter(0)
 i = s32[] parameter(1)
 ROOT y = f32[2] dynamic-slice(x, i), dynamic_slice_sizes={2} }"""
SIZE = "ENTRY e { x = f32[4] parameter(0)\n ROOT y = s32[] get-dimension-size(x), dimensions={0} }"
ALIAS = """ENTRY e { x = f32[4] parameter(0)
 y = f32[4] negate(x)
 ROOT t = (f32[4]) tuple(y) }"""
COMPARE = "ENTRY e { x = f32[4] parameter(0)\n ROOT y = pred[4] compare(x, x), direction=LT }"
BITCAST = "ENTRY e { x = f32[4] parameter(0)\n ROOT y = f32[2,2]{1,0} bitcast(x) }"
TOPK = "ENTRY e { x = f32[4,8] parameter(0)\n ROOT y = (f32[4,2], s32[4,2]) topk(x), k=2, largest=true }"
FFT = "ENTRY e { z = c64[4,8] parameter(0)\n ROOT y = c64[4,8] fft(z), fft_type=FFT, fft_length={4,8} }"
RFFT = "ENTRY e { z = f32[4,8] parameter(0)\n ROOT y = c64[4,5] fft(z), fft_type=RFFT, fft_length={8} }"
IRFFT = "ENTRY e { z = c64[4,5] parameter(0)\n ROOT y = f32[4,8] fft(z), fft_type=IRFFT, fft_length={8} }"
SOLVE = """ENTRY e { a = f32[3,3] parameter(0)
 b = f32[3,2] parameter(1)
 ROOT y = f32[3,2] triangular-solve(a, b), left_side=true, lower=true, transpose_a=NO_TRANSPOSE }"""
CHOLESKY = "ENTRY e { a = f32[3,3] parameter(0)\n ROOT y = f32[3,3] cholesky(a), lower=true }"
SORT = """lt { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT c = pred[] compare(a, b), direction=LT }
ENTRY e { x = f32[4,8] parameter(0)\n ROOT y = f32[4,8] sort(x), dimensions={1}, to_apply=lt }"""
CONVOLUTION = """ENTRY e { x = f32[2,4,4,6] parameter(0)
 k = f32[3,3,3,4] parameter(1)
 ROOT y = f32[2,4,4,4] convolution(x, k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f,
  feature_group_count=2 }"""
BRANCHES = """f { a = f32[4] parameter(0)
 ROOT b = f32[4] negate(a) }
g { a = f32[4] parameter(0)
 ROOT b = f32[4] tanh(a) }
ENTRY e { x = f32[4] parameter(0)
 i = s32[] parameter(1)
 ROOT y = f32[4] conditional(i, x, x), branch_computations={f, g} }"""
BITS = """ENTRY e { s = u64[2] parameter(0)
 ROOT y = (u64[2], u32[8]) rng-bit-generator(s), algorithm=rng_philox }"""
CUSTOM = """ENTRY e { x = f32[4,4] parameter(0)
 ROOT y = f32[4,4] custom-call(x), custom_call_target="f", operand_layout_constraints={f32[4,4]{1,0}} }"""


def put(name: str, field: str, *values: Any) -> Change:
    """Sets a field of an instruction, a list where it is one."""

    def change(module: Any) -> None:
        target = find(module, name)
        *path, last = field.split(".")
        for step in path:
            target = getattr(target, step)
        if hasattr(getattr(target, last), "extend"):
            getattr(target, last)[:] = values
        else:
            setattr(target, last, values[0])

    return change


def alias(output: Sequence[int], parameter: int, inner: Sequence[int] = ()) -> Change:
    def change(module: Any) -> None:
        module.input_output_alias.entries.add(
            output_shape_index=output, parameter_number=parameter, parameter_shape_index=inner
        )

    return change


def repeat_instruction(module: Any) -> None:
    entry_of(module).instructions.add().CopyFrom(entry_of(module).instructions[0])


def repeat_computation(module: Any) -> None:
    module.computations.add().CopyFrom(module.computations[0])


def give_more(module: Any) -> None:
    shapes = find(module, "b").shape.tuple_shapes
    for _ in range(3):
        shapes.add().CopyFrom(shapes[0])


def call_branches(count: int) -> Change:
    def change(module: Any) -> None:
        branches = find(module, "y").called_computation_ids
        branches[:] = list(branches)[:1] * count

    return change


Y = "HLO computation e, instruction %y, field "

FIELDS: list[tuple[str, Change, str]] = [
    (BITCAST, put("y", "operand_ids"), Y + "operand_ids: bitcast has 0 operands, 1 were expected"),
    (COMPARE, put("y", "operand_ids"), Y + "operand_ids: compare has 0 operands, 2 were expected"),
    (SIZE, put("y", "operand_ids"), Y + "operand_ids: get-dimension-size has 0 operands, 1 were"),
    (SIZE, put("y", "dimensions"), Y + "dimensions: [] is not one dimension of f32[4]"),
    (SIZE, put("y", "dimensions", 1), Y + "dimensions: [1] is not one dimension of f32[4]"),
    (SIZE, put("y", "dimensions", -1), Y + "dimensions: [-1] is not one dimension of f32[4]"),
    (SLICE, put("y", "operand_ids"), Y + "operand_ids: needs an operand"),
    (TUPLE, give_more, "%b, field operand_ids: opt-barrier has 2 operands, 5 were expected"),
    (TUPLE, put("b", "operand_ids"), "%b, field operand_ids: opt-barrier has 0 operands, 2 were"),
    (TUPLE, put("y", "shape.dimensions", 3), Y + "shape: it declares f32[3], which is not what"),
    (ALIAS, alias([-1], 0), "pairs output [-1] with parameter 0 []: one does not exist"),
    (ALIAS, alias([1], 0), "pairs output [1] with parameter 0 []: one does not exist"),
    (ALIAS, alias([0], -1), "pairs output [0] with parameter -1 []: one does not exist"),
    (ALIAS, alias([0], 0, [-1]), "with parameter 0 [-1]: one does not exist"),
    (UNARY, repeat_instruction, "%x, field id: there is a second instruction with id"),
    (SORT, repeat_computation, "HLO module m: there is a second computation with id"),
    (TOPK, put("y", "k", 2**40), Y + "k: the 1099511627776 first of 8 elements"),
    (TOPK, put("y", "k", -1), Y + "k: the -1 first of 8 elements"),
    (TOPK, put("y", "k", 3), Y + "shape: the operands give (f32[4,3], s32[4,3])"),
    (FFT, put("y", "fft_length", 8, 4), Y + "fft_length: FFT of lengths (8, 4) takes (8, 4), "),
    (FFT, put("y", "fft_length", 2**40), Y + "fft_length: FFT of lengths (1099511627776,) takes"),
    (FFT, put("y", "fft_length", -1), Y + "fft_length: lengths (-1,) over c64[4,8]"),
    (FFT, put("y", "fft_length"), Y + "fft_length: lengths () over c64[4,8]"),
    (FFT, put("y", "fft_length", 4, 4, 4, 8), Y + "fft_length: lengths (4, 4, 4, 8) over"),
    (FFT, put("y", "fft_type", 9), Y + "fft_length: fft lacks an attribute, or has an unknown"),
    (FFT, put("y", "fft_type", 2), Y + "operand_ids: RFFT of c64 has no meaning"),
    (RFFT, put("y", "fft_length", 7), Y + "fft_length: RFFT of lengths (7,) takes (7,)"),
    (RFFT, put("y", "fft_type", 0), Y + "operand_ids: FFT of f32 has no meaning"),
    (IRFFT, put("y", "fft_length", 16), Y + "fft_length: IRFFT of lengths (16,) takes (9,)"),
    (IRFFT, put("y", "fft_length", 9), Y + "shape: the operands give f32[4,9]"),
    (SOLVE, put("y", "triangular_solve_options.left_side", False), Y + "operand_ids: f32[3,3] and"),
    (SOLVE, put("y", "triangular_solve_options.transpose_a", 7), Y + "triangular_solve_options: "),
    (SOLVE, put("a", "shape.dimensions", 3, 2), Y + "operand_ids: operand 0 is f32[3,2], not squ"),
    (CHOLESKY, put("a", "shape.dimensions", 9), Y + "operand_ids: operand 0 is f32[9], not square"),
    (SORT, put("y", "dimensions", 2), Y + "dimensions: dimension (2,) are not distinct dimensions"),
    (SORT, put("y", "dimensions", -1), Y + "dimensions: dimension (-1,) are not distinct"),
    (SORT, put("y", "called_computation_ids"), Y + "called_computation_ids: sort needs 1 regions"),
    (CONVOLUTION, put("y", "feature_group_count", -2), Y + "convolution_dimension_numbers: 6 input"),
    (CONVOLUTION, put("y", "batch_group_count", 3), Y + "convolution_dimension_numbers: 4 output"),
    (CONVOLUTION, put("y", "batch_group_count", 2), "2 groups of features and 2 of images at once"),
    (BRANCHES, call_branches(3), Y + "called_computation_ids: operand_counts (1, 1) for 3 branches"),
    (BRANCHES, call_branches(0), Y + "called_computation_ids: operand_counts (1, 1) for 0 branches"),
    (BRANCHES, call_branches(2**20), "unfolded it has more than 1048576 values"),
    (BITS, put("s", "shape.dimensions", 5), Y + "operand_ids: the state is u64[5], not one of "),
    (BITS, put("y", "rng_algorithm", -1), Y + "rng_algorithm: rng-bit-generator lacks an attribute"),
    (CUSTOM, lambda m: find(m, "y").operand_shapes_with_layout[0].layout.minor_to_major.append(7),
     Y + "output_operand_aliasing: the layout (1, 0, 7) of operand 0 does not order 2 dimensions"),
    (UNARY, put("y", "shape.dimensions", 5, 4), Y + "shape: the operands give f32[4,4]"),
    (UNARY, put("y", "opcode", b"not"), Y + "operand_ids: not of f32 has no meaning"),
    (UNARY, put("y", "opcode", b"add"), Y + "operand_ids: has 1 operands, the op takes 2"),
    (UNARY, put("x", "shape.dimensions", 2**62, 4), "%x, field shape: f32[4611686018427387904,4] "
     "has more bytes than can be addressed"),
    (UNARY, put("x", "shape.dimensions", 0, 2**63 - 1), "%x, field shape: f32[0,92233720"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "change", "message"), FIELDS, ids=[f"{i}: {f[2][-40:]}" for i, f in enumerate(FIELDS)]
)
def test_a_field_that_cannot_be_is_named(text: str, change: Change, message: str) -> None:
    module = parse(text)
    compile_hlo(bytes(module.SerializeToString()))  # as it is
    change(module)
    assert message in refuse(module)


# ---- what XLA alone reads ------------------------------------------------------------------------


def test_an_instruction_that_ends_the_process_which_reads_it() -> None:
    """XLA counts the sizes of a dynamic-reshape by a CHECK."""
    module = parse(UNARY)
    put("y", "opcode", b"dynamic-reshape")(module)
    with pytest.raises(MalformedHlo) as caught:
        compile_hlo(bytes(module.SerializeToString()))
    assert str(caught.value) == (
        "HLO computation e, instruction %y, field opcode: XLA ends the process that reads this "
        f"dynamic-reshape{WRITE_AGAIN}"
    )


@pytest.mark.parametrize("text", [CHOLESKY, SOLVE, FFT])
def test_an_instruction_that_breaks_stablehlo_s_rules(text: str) -> None:
    """Of numbers of 4 bits none of these has a meaning."""
    module = parse(text)
    four_bits = next(n for n, e in schema.ELEMENT_TYPES.items() if e == "s4")
    for instruction in entry_of(module).instructions:
        instruction.shape.element_type = four_bits
    with pytest.raises(UnsupportedOp, match="only XLA computes it .* does not become StableHLO"):
        compile_hlo(bytes(module.SerializeToString()))


# ---- arrays that no memory holds -----------------------------------------------------------------

MANY = 2**40

ADD = "add { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b) }\n"

BIG = {
    "negate": f"x = f32[{MANY}] parameter(0)\n ROOT y = f32[{MANY}] negate(x)",
    "transpose": f"x = f32[{MANY},2] parameter(0)\n ROOT y = f32[2,{MANY}] transpose(x), dimensions={{1,0}}",
    "rows": f"""x = f32[{MANY},4] parameter(0)\n z = f32[] constant(0)
 ROOT y = f32[{MANY}] reduce(x, z), dimensions={{1}}, to_apply=add""",
    "broadcast": f"x = f32[] parameter(0)\n ROOT y = f32[{MANY}] broadcast(x), dimensions={{}}",
    "constant": f"""x = f32[] constant(2)\n b = f32[{MANY}] broadcast(x), dimensions={{}}
 ROOT y = f32[{MANY}] exponential(b)""",
    "iota": f"x = s32[{MANY}] iota(), iota_dimension=0\n ROOT y = s32[{MANY}] negate(x)",
    "pad": f"""x = f32[2] constant({{1,2}})\n z = f32[] constant(0)
 ROOT y = f32[{MANY}] pad(x, z), padding=0_{MANY - 2}""",
}  # fmt: skip


@pytest.mark.parametrize("gpu", ["host", "h100"])
@pytest.mark.parametrize("name", BIG)
def test_arrays_of_2_to_the_40_compile_and_find_no_room(name: str, gpu: str) -> None:
    """A kernel of theirs is legal; what allocates says so."""
    data = parse_hlo_text(f"HloModule m\n{ADD}ENTRY e {{ {BIG[name]} }}")
    compilation = compile_hlo(data, gpu=gpu)
    assert all(kernel.grid < 2**31 for kernel in compilation.program.kernels)
    graph = import_hlo(data)
    if gpu == "host" and all(graph[p].array.size == 1 for p in graph.parameters):
        arguments = [np.zeros(graph[p].shape, np.float32) for p in graph.parameters]
        with address_space_of(2 * MANY):
            with pytest.raises(OutOfMemory, match=r"no room for \d{13} bytes"):
                HostEngine(compilation.program).run(arguments)
            with pytest.raises(OutOfMemory, match=r"no room for its results of \d{13} bytes"):
                run_graph(graph, arguments)


@contextlib.contextmanager
def address_space_of(most_bytes: int) -> Iterator[None]:
    """Some machines hand out more memory than they have, and end the process that uses it."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


SMALL_PARTS = {
    "slice of an iota": (
        f"x = s64[{MANY}] iota(), iota_dimension=0\n ROOT y = s64[4] slice(x), slice={{[{MANY - 4}:{MANY}]}}",
        MANY - 4 + np.arange(4),
    ),
    "strided slice of an iota": (
        f"x = s64[{MANY}] iota(), iota_dimension=0\n ROOT y = s64[1024] slice(x), slice={{[0:{MANY}:{MANY // 1024}]}}",
        MANY // 1024 * np.arange(1024),
    ),
    "part of a broadcast": (
        f"""c = s64[] constant(3)\n x = s64[{MANY}] broadcast(c), dimensions={{}}
 ROOT y = s64[2] slice(x), slice={{[5:{MANY}:{MANY - 7}]}}""",
        np.array([3, 3]),
    ),
    "padded and cut": (
        f"""c = s64[3] constant({{1,2,3}})\n z = s64[] constant(0)
 ROOT y = s64[4] pad(c, z), padding=2_-{2 * MANY - 1}_{MANY - 1}""",
        np.array([0, 0, 1, 0]),
    ),
    "reversed iota": (
        f"""x = s64[{MANY}] iota(), iota_dimension=0\n r = s64[{MANY}] reverse(x), dimensions={{0}}
 ROOT y = s64[2] slice(r), slice={{[0:2]}}""",
        np.array([MANY - 1, MANY - 2]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL_PARTS)
def test_small_parts_of_arrays_that_no_memory_holds(name: str) -> None:
    body, wanted = SMALL_PARTS[name]
    (got,) = HostEngine(compile_hlo(f"HloModule m\nENTRY e {{ {body} }}").program).run([])
    np.testing.assert_array_equal(got, wanted)


def test_an_array_of_65_dimensions() -> None:
    module = parse(UNARY)
    for name in "xy":
        find(module, name).shape.dimensions[:] = [1] * 65
        find(module, name).shape.layout.minor_to_major[:] = range(65)
    message = refuse(module, UnsupportedType)
    assert "instruction %x: an array of 65 dimensions, astitch has 64 at most" in message


# ---- what a compiler must not wait for ------------------------------------------------------------

LONG = {
    "window": """x = f32[2] constant({1,2})\n z = f32[] constant(0)
 ROOT y = f32[2] reduce-window(x, z), window={size=1099511627776 pad=1099511627775_0}, to_apply=add""",
    "endless": "x = s32[] constant(1)\n ROOT y = s32[] while(x), condition=always, body=next",
    "endless sum": """x = s32[3] constant({1,2,3})\n z = s32[] constant(0)
 ROOT y = s32[] reduce(x, z), dimensions={0}, to_apply=endless""",
    "billions": """x = s32[] constant(0)\n t = s32[9] constant({3,1,4,1,5,9,2,6,5})
 s = (s32[], s32[], s32[9]) tuple(x, x, t)
 w = (s32[], s32[], s32[9]) while(s), condition=long, body=read
 ROOT y = s32[] get-tuple-element(w), index=1""",
}  # fmt: skip

LOOPS = """always { x = s32[] parameter(0)
 ROOT c = pred[] constant(true) }
next { x = s32[] parameter(0)
 ROOT y = s32[] add(x, x) }
endless { a = s32[] parameter(0)
 b = s32[] parameter(1)
 c = s32[] add(a, b)
 ROOT w = s32[] while(c), condition=always, body=next }
long { s = (s32[], s32[], s32[9]) parameter(0)
 i = s32[] get-tuple-element(s), index=0
 n = s32[] constant(2147483647)
 ROOT c = pred[] compare(i, n), direction=LT }
read { s = (s32[], s32[], s32[9]) parameter(0)
 i = s32[] get-tuple-element(s), index=0
 o = s32[] constant(1)
 j = s32[] add(i, o)
 t = s32[9] get-tuple-element(s), index=2
 r = s32[1] dynamic-slice(t, i), dynamic_slice_sizes={1}
 v = s32[] reshape(r)
 ROOT u = (s32[], s32[], s32[9]) tuple(j, v, t) }
"""


@pytest.mark.parametrize("name", LONG)
def test_what_takes_for_ever_is_compiled_at_once(name: str) -> None:
    start = time.process_time()
    compilation = compile_hlo(f"HloModule m\n{ADD}{LOOPS}ENTRY e {{ {LONG[name]} }}", gpu="h100")
    assert describe_loops(compilation.graph, compilation.gpu) is not None
    assert len(straighten_stacks(compilation.graph)) and time.process_time() - start < 5


# ---- many ----------------------------------------------------------------------------------------


def test_damaged_modules_end_with_named_errors() -> None:
    """`python -m tests.damaged_modules --count 5000` tries more."""
    outcomes = list(run_cases(range(120), workers=2))
    assert [o for o in outcomes if o.fault] == []
    ends = {o.end for o in outcomes}
    assert {"done", "MalformedHlo", "UnsupportedType"} <= ends and len(outcomes) == 120


def test_modules_of_every_op_are_legal() -> None:
    """Or damaging them would show nothing."""
    for name in ENTRIES:
        assert compile_hlo(load_modules()[name]).program.outputs
