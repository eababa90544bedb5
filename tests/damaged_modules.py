"""Damages real HLO modules and compiles them: only named errors may come of it.

Takes a seed, hands on a module with damaged bytes or fields, and what became of it.  Cases run in processes with
limits of memory and time, so that one that aborts, hangs or fills the memory is a fault like another.

    python -m tests.damaged_modules --count 5000            # 0 .. 4999; exit status 1 after a fault
    python -m tests.damaged_modules --seed 17 --write x.pb  # one case, alone, with its traceback
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import functools
import gzip
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.errors import AstitchError, IllegalProduct
from astitch.graph.ir import Graph, TupleType
from astitch.graph.ops import OPS
from astitch.graph.reference import run_graph
from astitch.hlo import schema
from astitch.hlo_import import import_hlo
from astitch.library.xla_fallback import compile_fallback, host_device, put_array
from astitch.program.steps import FallbackStep, Program
from tests.hlo_runner import parse_hlo_text, random_arguments, random_array

DATA = Path(__file__).parent / "data"

MOST_BYTES = 16_000
"""Of a module that is damaged: a small one is compiled in a tenth of a second."""

MOST_ELEMENTS = 100_000
"""Of all results of a graph that is run."""

MEMORY_BYTES = 12 << 30
"""Address space of a process; XLA alone reserves some of it."""

COMPILE_S = 60
"""For a case to be compiled, beside other work on the machine; the modules as they are take 2 s at most."""

HANGS_S = 2 * COMPILE_S
"""After which a process ends that no alarm stops: the main thread is not in Python."""

RUN_S = 5
"""For one to be run.  Longer is no fault: a damaged loop need not end."""

# ---- modules -------------------------------------------------------------------------------------

EVERY_OP = """HloModule every_op, input_output_alias={ {0}: (0, {}) }
add { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT c = f32[] add(a, b) }
most { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT c = f32[] maximum(a, b) }
above { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT c = pred[] compare(a, b), direction=GE }
below { a = f32[] parameter(0)
 b = f32[] parameter(1)
 i = s32[] parameter(2)
 j = s32[] parameter(3)
 ROOT c = pred[] compare(a, b), direction=LT, type=TOTALORDER }
both { a = f32[] parameter(0)
 i = s32[] parameter(1)
 b = f32[] parameter(2)
 j = s32[] parameter(3)
 c = f32[] add(a, b)
 k = s32[] maximum(i, j)
 ROOT t = (f32[], s32[]) tuple(c, k) }
goes_on { s = (s32[], (f32[4], f32[])) parameter(0)
 i = s32[] get-tuple-element(s), index=0
 n = s32[] constant(3)
 ROOT c = pred[] compare(i, n), direction=LT }
step { s = (s32[], (f32[4], f32[])) parameter(0)
 i = s32[] get-tuple-element(s), index=0
 r = (f32[4], f32[]) get-tuple-element(s), index=1
 x = f32[4] get-tuple-element(r), index=0
 y = f32[] get-tuple-element(r), index=1
 one = s32[] constant(1)
 j = s32[] add(i, one)
 f = f32[] convert(j)
 z = f32[] add(y, f)
 w = f32[4] broadcast(z), dimensions={}
 v = f32[4] add(x, w)
 q = (f32[4], f32[]) tuple(v, z)
 ROOT t = (s32[], (f32[4], f32[])) tuple(j, q) }
first { p = (f32[4,4], f32[4,4]) parameter(0)
 ROOT r = f32[4,4] get-tuple-element(p), index=0 }
second { p = (f32[4,4], f32[4,4]) parameter(0)
 x = f32[4,4] get-tuple-element(p), index=1
 ROOT r = f32[4,4] negate(x) }
third { p = f32[4,4] parameter(0)
 ROOT r = f32[4,4] tanh(p) }
inlined { a = f32[4,4] parameter(0)
 b = f32[4,4] parameter(1)
 c = f32[4,4] multiply(a, b)
 ROOT t = (f32[4,4], f32[4,4]) tuple(c, a) }
"""

ENTRIES = {
    "transforms": """ x = f32[4,4] parameter(0)
 z = c64[4,4] parameter(1)
 c = c64[4,4] fft(z), fft_type=FFT, fft_length={4,4}
 i = c64[4,4] fft(c), fft_type=IFFT, fft_length={4}
 r = c64[4,3] fft(x), fft_type=RFFT, fft_length={4}
 b = f32[4,4] fft(r), fft_type=IRFFT, fft_length={4}
 e = f32[4,4] real(i)
 g = f32[4,4] imag(i)
 ROOT t = (f32[4,4], f32[4,4], f32[4,4]) tuple(b, e, g)""",
    "linear_algebra": """ x = f32[4,4] parameter(0)
 y = f32[4,2] parameter(1)
 l = f32[4,4] cholesky(x), lower=true
 s = f32[4,2] triangular-solve(l, y), left_side=true, lower=true, unit_diagonal=false, transpose_a=NO_TRANSPOSE
 p = f32[4,2] dot(l, s), lhs_contracting_dims={1}, rhs_contracting_dims={0}, operand_precision={highest,default}
 v = (f32[4,2], s32[4,2]) topk(x), k=2, largest=true
 a = f32[4,2] get-tuple-element(v), index=0
 k = s32[4,2] get-tuple-element(v), index=1
 ROOT t = (f32[4,4], f32[4,2], f32[4,2], s32[4,2]) tuple(l, p, a, k)""",
    "orders": """ x = f32[4,4] parameter(0)
 n = s32[4,4] iota(), iota_dimension=1
 s = (f32[4,4], s32[4,4]) sort(x, n), dimensions={1}, is_stable=true, to_apply=below
 a = f32[4,4] get-tuple-element(s), index=0
 k = s32[4,4] get-tuple-element(s), index=1
 z = f32[] constant(0)
 m = s32[] constant(1)
 r = (f32[4], s32[4]) reduce(x, n, z, m), dimensions={0}, to_apply=both
 u = f32[4] get-tuple-element(r), index=0
 w = f32[2,2] reduce-window(x, z), window={size=2x2 stride=2x2}, to_apply=most
 o = f32[4,4] select-and-scatter(x, w, z), window={size=2x2 stride=2x2}, select=above, scatter=add
 p = f32[4,4] map(x, o), dimensions={0,1}, to_apply=add
 ROOT t = (f32[4,4], s32[4,4], f32[4], f32[4,4]) tuple(a, k, u, p)""",
    "moves": """ x = f32[4,4] parameter(0)
 i = s32[2,1] parameter(1)
 j = s32[] parameter(2)
 z = f32[] constant(0)
 g = f32[2,4] gather(x, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1,
   slice_sizes={1,4}
 h = f32[4,4] scatter(x, i, g), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0},
   index_vector_dim=1, to_apply=add
 d = f32[2,2] dynamic-slice(h, j, j), dynamic_slice_sizes={2,2}
 u = f32[4,4] dynamic-update-slice(h, d, j, j)
 p = f32[7,6] pad(u, z), padding=1_2x-1_0_1
 s = f32[3,3] slice(p), slice={[0:6:2], [1:4]}
 c = f32[6,3] concatenate(s, s), dimensions={0}
 b = f32[18]{0} bitcast(c)
 v = f32[18] reverse(b), dimensions={0}
 m = s32[18] bitcast-convert(v)
 q = f32[18] reduce-precision(v), exponent_bits=5, mantissa_bits=7
 e = s32[] get-dimension-size(q), dimensions={0}
 a = f32[4,4] copy(u)
 k = f32[4,4]{1,0} transpose(a), dimensions={1,0}
 l = f32[16] reshape(k)
 ROOT t = (f32[4,4], s32[18], f32[18], s32[], f32[16]) tuple(u, m, q, e, l)""",
    "controls": """ x = f32[4,4] parameter(0)
 y = (f32[4], f32[]) parameter(1)
 j = s32[] parameter(2)
 b = pred[] parameter(3)
 z = f32[] get-tuple-element(y), index=1
 o = (s32[], (f32[4], f32[])) tuple(j, y)
 w = (s32[], (f32[4], f32[])) while(o), condition=goes_on, body=step
 r = (f32[4], f32[]) get-tuple-element(w), index=1
 v = f32[4] get-tuple-element(r), index=0
 p = (f32[4,4], f32[4,4]) call(x, x), to_apply=inlined
 c = f32[4,4] conditional(b, p, p), true_computation=first, false_computation=second
 d = f32[4,4] conditional(j, p, c, p), branch_computations={first, third, second}
 q = f32[4,4] get-tuple-element(p), index=0
 k = (f32[4,4], f32[4]) tuple(d, v)
 s = (f32[4,4], f32[4]) opt-barrier(k)
 u = f32[4,4] get-tuple-element(s), index=0
 t = (f32[4,4], f32[4,4]) fusion(u, q), kind=kLoop, calls=inlined
 l = f32[4,4] get-tuple-element(t), index=0
 h = f32[4,4] custom-call(l), custom_call_target="Sharding"
 ROOT g = (f32[4,4], f32[4], f32[]) tuple(h, v, z)""",
    "samples": """ x = f32[2,4,4,6] parameter(0)
 k = f32[3,3,3,4] parameter(1)
 s = f32[6] parameter(2)
 e = u64[2] parameter(3)
 c = f32[2,4,4,4] convolution(x, k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, feature_group_count=2
 n = (f32[2,4,4,6], f32[6], f32[6]) batch-norm-training(x, s, s), epsilon=0.001, feature_index=3
 y = f32[2,4,4,6] get-tuple-element(n), index=0
 m = f32[6] get-tuple-element(n), index=1
 i = f32[2,4,4,6] batch-norm-inference(y, s, s, m, s), epsilon=0.001, feature_index=3
 g = (f32[2,4,4,6], f32[6], f32[6]) batch-norm-grad(i, s, s, m, y), epsilon=0.001, feature_index=3
 h = f32[6] get-tuple-element(g), index=1
 b = (u64[2], u32[8]) rng-bit-generator(e), algorithm=rng_philox
 w = u32[8] get-tuple-element(b), index=1
 z = f32[] constant(0)
 o = f32[] constant(1)
 r = f32[4] rng(z, o), distribution=rng_uniform
 q = f32[4] clamp(r, r, r)
 u = c64[4] complex(q, r)
 a = f32[4] abs(u)
 f = pred[4] is-finite(a)
 d = f32[4] select(f, q, a)
 p = f32[2,4] constant({{1,2,3,4},{5,6,7,8}})
 ROOT t = (f32[2,4,4,4], f32[6], u32[8], f32[4], f32[2,4]) tuple(c, h, w, d, p)""",
}  # fmt: skip
"""Entry computations that together have every op that astitch knows, beside element-wise ones."""


@functools.cache
def load_modules() -> dict[str, bytes]:
    """The modules that are damaged, serialized, by name: small ones of the corpus, and those of every op."""
    files = sorted((DATA / "corpus").glob("*.hlo.pb.gz"))
    found = {
        path.name.removesuffix(".hlo.pb.gz"): gzip.decompress(path.read_bytes()) for path in files
    }
    found["cumsum_scan"] = (DATA / "cumsum_scan.hlo.pb").read_bytes()
    small = {name: data for name, data in found.items() if len(data) <= MOST_BYTES}
    return small | {
        name: parse_hlo_text(f"{EVERY_OP}ENTRY e {{\n{body} }}") for name, body in ENTRIES.items()
    }


# ---- damage --------------------------------------------------------------------------------------

EXTREMES = (0, 1, 2, 3, 4, 5, 7, 16, 100, -1, -2, 2**20, 2**31 - 1, 2**31, -(2**31), 2**32, 2**40)
EXTREMES += (2**62, 2**63 - 1, -(2**63))

OPCODES = sorted({op.encode() for op in OPS} | {b"opt-barrier", b"tuple", b"bitcast", b"fusion"})
OPCODES += [b"get-dimension-size", b"after-all", b"set-dimension-size", b"scan", b"add-dependency"]
OPCODES += [b"domain", b"dynamic-reshape", b"all-reduce", b"partition-id", b"infeed", b""]


def damage(seed: int) -> tuple[str, bytes]:
    """(what was damaged and how, the module) of a seed: always the same."""
    draw = random.Random(seed)
    modules = load_modules()
    names = sorted(modules)
    # The few with every op have more to be damaged than any of the corpus.
    name = draw.choice(draw.choice((names, sorted(ENTRIES))))
    if draw.random() < 0.2:
        how, data = _damage_bytes(draw, modules[name])
        return f"{name}: {how}", data
    module = schema.HloModuleProto.FromString(modules[name])
    steps = []
    if draw.random() < 0.2:
        steps.append(_change_everywhere(draw, module))
    for _ in range(draw.choice((1, 1, 1, 2, 3)) - len(steps)):
        steps.append(_damage_field(draw, module))
    return f"{name}: {'; '.join(steps)}", bytes(module.SerializeToString())


def _damage_bytes(draw: random.Random, data: bytes) -> tuple[str, bytes]:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(changed))
        changed[at : at + draw.randrange(3)] = draw.randbytes(draw.randrange(3))
    if draw.random() < 0.1:
        del changed[draw.randrange(len(changed)) :]
    return "bytes", bytes(changed)


_UNREAD = frozenset(
    ("name", "metadata", "host_program_shape", "program_shape", "stack_frame_index")
)
_UNREAD_MESSAGES = frozenset(
    ("OpMetadata", "FileLocation", "StackFrame", "StackFrameIndexProto", "ProgramShapeProto")
)
"""Fields that only messages show, or that say a second time what instructions say.  Damaged bytes reach them, too."""


def _damage_field(draw: random.Random, module: Any) -> str:
    """Damages one field of one message of the module; how."""
    messages = list(_find_messages(module))
    # Names, metadata and stack frames are most of a module, and nothing reads much of them.
    kinds = {type(m).DESCRIPTOR.name for _, m in messages} - _UNREAD_MESSAGES
    often = [k for k in ("HloInstructionProto", "ShapeProto") for _ in range(4) if k in kinds]
    kind = draw.choice([*sorted(kinds), *often, *often[:4]])
    path, message = draw.choice([(p, m) for p, m in messages if type(m).DESCRIPTOR.name == kind])
    fields = [f for f in type(message).DESCRIPTOR.fields if f.name not in _UNREAD]
    present = [f for f, _ in message.ListFields() if f.name not in _UNREAD]
    field = draw.choice(present if present and draw.random() < 0.9 else fields)
    change = _damage_list if _is_list(message, field) else _damage_value
    return f"{path}.{field.name} {change(draw, message, field, messages)}"


_EXTENTS = {
    "ShapeProto": ("dimensions",),
    "HloInstructionProto": ("dynamic_slice_sizes", "gather_slice_sizes", "fft_length"),
    "SliceDimensions": ("limit",),
    "WindowDimension": ("size",),
}
"""The fields that say how long a dimension is."""


def _change_everywhere(draw: random.Random, module: Any) -> str:
    """An element type or an extent becomes another wherever it stands: what comes of it is often a legal module."""
    shapes = [m for _, m in _find_messages(module) if type(m).DESCRIPTOR.name == "ShapeProto"]
    if draw.random() < 0.5:
        old = draw.choice([s.element_type for s in shapes])
        new = draw.choice(sorted(schema.ELEMENT_TYPES))
        for shape in shapes:
            shape.element_type = new if shape.element_type == old else shape.element_type
        return f"element type {old} becomes {new}"
    old = draw.choice([n for s in shapes for n in s.dimensions] or [1])
    new = draw.choice((0, 1, 2, 3, 5, 7, 2**16, 2**20, 2**31, 2**40, 2**62))
    for _, message in _find_messages(module):
        for name in _EXTENTS.get(type(message).DESCRIPTOR.name, ()):
            value = getattr(message, name)
            if not hasattr(value, "extend"):
                setattr(message, name, new if value == old else value)
            else:
                value[:] = [new if n == old else n for n in value]
    return f"extent {old} becomes {new}"


def _find_messages(message: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        items = list(value) if _is_list(message, field) else [value]
        for number, item in enumerate(items):
            yield from _find_messages(item, f"{path}.{field.name}[{number}]")


def _is_list(message: Any, field: Any) -> bool:
    return hasattr(getattr(message, field.name), "extend")


def _damage_list(draw: random.Random, message: Any, field: Any, messages: Sequence[Any]) -> str:
    items = getattr(message, field.name)
    how = draw.choice(("clear", "drop", "repeat", "swap", "add", "change", "change", "change"))
    if not items and how != "add":
        how = "add"
    if how == "clear":
        message.ClearField(field.name)
    elif how == "drop":
        del items[draw.randrange(len(items))]
    elif how == "repeat":
        items.append(draw.choice(list(items)))
    elif how == "swap":
        _swap(draw, items, field)
    elif field.message_type is not None:
        alike = [m for _, m in messages if type(m).DESCRIPTOR.name == field.message_type.name]
        other = type(alike[0])() if alike else None
        if other is None:
            return "has nothing to take"
        other.CopyFrom(draw.choice(alike))
        if how == "add":
            items.append(other)
        else:
            items[draw.randrange(len(items))].CopyFrom(other)
    elif how == "add":
        items.append(_draw_scalar(draw, field, messages, None))
    else:
        at = draw.randrange(len(items))
        items[at] = _draw_scalar(draw, field, messages, items[at])
    return how


def _swap(draw: random.Random, items: Any, field: Any) -> None:
    a, b = draw.randrange(len(items)), draw.randrange(len(items))
    if field.message_type is None:
        items[a], items[b] = items[b], items[a]
        return
    kept = type(items[a])()
    kept.CopyFrom(items[a])
    items[a].CopyFrom(items[b])
    items[b].CopyFrom(kept)


def _damage_value(draw: random.Random, message: Any, field: Any, messages: Sequence[Any]) -> str:
    if field.message_type is None:
        value = _draw_scalar(draw, field, messages, getattr(message, field.name))
        setattr(message, field.name, value)
        return f"= {value!r}"
    alike = [m for _, m in messages if type(m).DESCRIPTOR.name == field.message_type.name]
    if not alike or draw.random() < 0.3:
        message.ClearField(field.name)
        return "clear"
    other = type(alike[0])()
    other.CopyFrom(draw.choice(alike))
    getattr(message, field.name).CopyFrom(other)
    return "another's"


def _draw_scalar(draw: random.Random, field: Any, messages: Sequence[Any], old: Any) -> Any:
    """A value that the field can hold: an extreme one, a near one, or one that another message has there."""
    if field.name == "opcode":
        return draw.choice(OPCODES)
    others = [
        value
        for _, m in messages
        if field.name in type(m).DESCRIPTOR.fields_by_name
        for value in (_items_of(m, field.name) or [])
    ]
    if others and draw.random() < 0.5:
        return draw.choice(others)
    if field.name == "element_type":
        return draw.choice(sorted(schema.ELEMENT_TYPES))
    kind = type(field.default_value) if old is None else type(old)
    if field.cpp_type == field.CPPTYPE_BOOL:
        return draw.random() < 0.5
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return draw.choice((0.0, -1.0, float("nan"), float("inf"), 1e30))
    if field.cpp_type == field.CPPTYPE_STRING:
        return draw.choice((b"", b"x", b"\xff\0", draw.randbytes(3)))
    near = [old + d for d in (-1, 1)] if kind is int and old is not None else []
    bits = 32 if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 64
    signed = field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return min(high, max(low, draw.choice([*near * 8, *EXTREMES])))


def _items_of(message: Any, name: str) -> list[Any]:
    value = getattr(message, name)
    return list(value) if hasattr(value, "extend") else [value]


# ---- one case ------------------------------------------------------------------------------------


class TimeIsUp(BaseException):
    """A stage took longer than it may."""


@contextmanager
def limit_seconds(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeIsUp

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """seed, what: see damage().  stage: the last one that was begun.  end: the error that it raised, or `done`.

    fault: why that must not be; empty: it may.
    """

    seed: int
    what: str
    stage: str
    end: str
    fault: str = ""
    seconds: float = 0


def try_case(seed: int) -> Outcome:
    """Compiles a damaged module, by turns for the host and for an H100, and runs it where it is small."""
    what, data = damage(seed)
    return try_module(data, seed, what)


def try_module(data: bytes, seed: int = 0, what: str = "") -> Outcome:
    stage, end, fault = "import", "done", ""
    start = time.perf_counter()
    try:
        faulthandler.dump_traceback_later(HANGS_S, exit=True)
        with limit_seconds(COMPILE_S):
            graph = import_hlo(data)
            stage = "compile"
            compilation = compile_graph(graph, preset("h100" if seed % 8 == 0 else "host"))
            small = _count_elements(graph) <= MOST_ELEMENTS
            if small:
                stage = "fallbacks"
                _try_fallbacks(compilation.program)
        if small:
            stage = "run"
            try:
                with limit_seconds(RUN_S):
                    run_graph(graph, random_arguments(graph))
            except TimeIsUp:
                end = "stopped"
    except IllegalProduct as error:
        end, fault = "IllegalProduct", str(error)
    except AstitchError as error:
        end = type(error).__name__
    except TimeIsUp:
        end = "TimeIsUp"
        fault = f"{stage} takes longer than {COMPILE_S} s\n{traceback.format_exc()}"
    except Exception as error:
        end, fault = type(error).__name__, traceback.format_exc()
    finally:
        faulthandler.cancel_dump_traceback_later()
    return Outcome(seed, what, stage, end, fault, time.perf_counter() - start)


def _try_fallbacks(program: Program) -> None:
    """Compiles them through XLA, and runs those without loops: XLA lets nobody stop one."""
    rng = np.random.default_rng(0)
    for step in program.steps:
        if isinstance(step, FallbackStep):
            fallback = compile_fallback(step.hlo, host_device(), step.name)
            if not any(op.op in ("while", "conditional") for op in step.ops):
                arrays = [random_array(rng, view.type, 2) for view in step.operands]
                fallback.run([put_array(array, fallback.device) for array in arrays])


def _count_elements(graph: Graph) -> int:
    """Of the results of all nodes, those of regions too."""
    total = 0
    for node in graph:
        types = node.type.elements if isinstance(node.type, TupleType) else (node.type,)
        total += sum(t.size for t in types) + sum(map(_count_elements, node.regions))
    return total


# ---- many cases ----------------------------------------------------------------------------------


def run_cases(seeds: Sequence[int], workers: int = 2) -> Iterator[Outcome]:
    """The outcome of each seed, in any order: each worker is a process, replaced once a case has ended it."""
    with ThreadPoolExecutor(workers) as pool:
        for outcomes in pool.map(_run_share, [seeds[i::workers] for i in range(workers)]):
            yield from outcomes


def _run_share(seeds: Sequence[int]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    while len(outcomes) < len(seeds):
        left = seeds[len(outcomes) :]
        command = [sys.executable, "-m", "tests.damaged_modules", "--worker", *map(str, left)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
        out, err = process.communicate()
        outcomes += [Outcome(**json.loads(line)) for line in out.splitlines() if line[:1] == "{"]
        if len(outcomes) < len(seeds):
            seed = seeds[len(outcomes)]
            fault = f"the process ended with {process.returncode}\n{err[-2000:]}"
            outcomes.append(Outcome(seed, damage(seed)[0], "process", "ended", fault))
    return outcomes


def _work(seeds: Sequence[int]) -> None:
    """What a worker does: a line of JSON for each seed."""
    os.environ["ASTITCH_FAULTS"] = "raise"
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for seed in seeds:
        print(json.dumps(asdict(try_case(seed))), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.damaged_modules", description=__doc__)
    parser.add_argument("--count", type=int, default=5000, help="how many cases")
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, help="one case in this process")
    parser.add_argument("--write", type=Path, help="with --seed: where the damaged module goes")
    parser.add_argument("--worker", type=int, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _work(options.worker)
        return 0
    if options.seed is not None:
        if options.write:
            options.write.write_bytes(damage(options.seed)[1])
        outcome = try_case(options.seed)
        print(outcome.what, outcome.stage, outcome.end, outcome.fault, sep="\n")
        return bool(outcome.fault)
    outcomes = list(run_cases(range(options.first, options.first + options.count), options.workers))
    for outcome in outcomes:
        if outcome.fault:
            print(f"seed {outcome.seed}: {outcome.what}\n  {outcome.stage}: {outcome.fault}")
    counts = collections.Counter((o.stage, o.end) for o in outcomes)
    for (stage, end), count in sorted(counts.items()):
        print(f"{count:6} {stage}: {end}")
    print(f"slowest: {max(o.seconds for o in outcomes):.1f} s")
    return any(o.fault for o in outcomes)


if __name__ == "__main__":
    sys.exit(main())
