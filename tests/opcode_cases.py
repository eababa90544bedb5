"""Cases for tests/whole/test_opcodes.py: an op with drawn attributes and arguments, and how near its results must come.

Takes hypothesis' draws, hands on batches of cases, each one HLO module: XLA, the importer and the C++ compiler then
run once for many cases.  Values come from a NumPy generator with a drawn seed, attributes from hypothesis.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import ml_dtypes
import numpy as np

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.graph.ir import DType
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.expand import expand
from astitch.rewrite.reassociate import reassociate
from astitch.rewrite.simplify import simplify
from astitch.run.host_engine import HostEngine
from tests.hlo_runner import lower, parse_hlo_text, run_xla

PRED = np.dtype(np.bool_)
SIGNED = tuple(np.dtype(t) for t in ("i1", "i2", "i4", "i8"))
UNSIGNED = tuple(np.dtype(t) for t in ("u1", "u2", "u4", "u8"))
INTEGERS = SIGNED + UNSIGNED
BF16 = np.dtype(ml_dtypes.bfloat16)
F16, F32, F64 = (np.dtype(t) for t in ("f2", "f4", "f8"))
F8 = (np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2))
FLOATS = (F16, BF16, F32, F64)
COMPLEX = (np.dtype(np.complex64), np.dtype(np.complex128))
EVERY = (PRED, *INTEGERS, *FLOATS, *F8, *COMPLEX)


@dataclass(frozen=True, slots=True)
class Error:
    """How far a result may be from XLA's, in units of the last place of its dtype.

    of_largest: relative to the largest element of the array (sums that cancel), else to the element itself.
    floor: elements that are smaller count as this large (functions that cancel near a zero).  With 0 ulps
    the sign of a zero counts too.  Infinities and NaN must be where XLA has them; subnormal numbers are as good as
    zeros, for XLA's CPU flushes them.
    """

    ulps: float = 0
    of_largest: bool = False
    floor: float = 0.0


EXACT = Error()
ROUNDED = Error(1)
FUNCTION = Error(16)
CANCELLING = Error(32, floor=1.0)
SUM = Error(32, of_largest=True)


@dataclass(frozen=True, slots=True)
class Case:
    """A JAX function and its arguments.  name: the op with its attributes, as a failure shows it."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[np.ndarray, ...]
    error: Error = EXACT


@dataclass(frozen=True, slots=True)
class TextCase:
    """Instructions of HLO text on parameters $0, $1 ...; every name starts with `$`, which a batch replaces.

    regions: the computations called.  results: the names of what is compared.
    """

    name: str
    instructions: str
    results: tuple[str, ...]
    arguments: tuple[np.ndarray, ...]
    error: Error = EXACT
    regions: str = ""


# ---- batches -------------------------------------------------------------------------------------


def write_module(cases: Sequence[Case | TextCase]) -> bytes:
    """The HLO of all cases side by side; its parameters and results are theirs, one after another."""
    if all(isinstance(case, Case) for case in cases):

        def program(*arguments: Any) -> list[Any]:
            results, start = [], 0
            for case in cases:
                assert isinstance(case, Case)
                stop = start + len(case.arguments)
                results.append(case.function(*arguments[start:stop]))
                start = stop
            return results

        return lower(program, *_all_arguments(cases), keep_unused=True)
    regions, lines, roots, count = [], [], [], 0
    for number, case in enumerate(cases):
        assert isinstance(case, TextCase)
        prefix = f"c{number}_"
        regions.append(case.regions.replace("$", prefix))
        for i, argument in enumerate(case.arguments):
            lines.append(f"{prefix}{i} = {show_type(argument)} parameter({count})")
            count += 1
        lines.append(case.instructions.replace("$", prefix))
        roots += [name.replace("$", prefix) for name in case.results]
    body = "\n".join([*lines, f"ROOT all = tuple({', '.join(roots)})"])
    return parse_hlo_text("HloModule m\n" + "\n".join(regions) + f"\nENTRY e {{\n{body}\n}}\n")


def show_type(x: np.ndarray) -> str:
    """`f32[2,3]`, as HLO text has it."""
    return f"{DType.of(x.dtype).value}[{','.join(map(str, x.shape))}]"


def _all_arguments(cases: Sequence[Case | TextCase]) -> list[np.ndarray]:
    return [argument for case in cases for argument in case.arguments]


def _count_results(case: Case | TextCase) -> int:
    if isinstance(case, TextCase):
        return len(case.results)
    return len(jax.tree.leaves(jax.eval_shape(case.function, *case.arguments)))


def find_faults(cases: Sequence[Case | TextCase]) -> list[str]:
    """One line for each case and stage whose results are not XLA's.  The stages: the graph as it is `read` and as the
    compiler has `rewritten` it, both by the reference interpreter; and the `compiled` program with its emulated
    kernels.

    A batch that fails as a whole is tried case by case, so that the line names the one that is at fault.
    """
    try:
        return _compare_batch(cases)
    except Exception as error:
        if len(cases) == 1:
            return [f"{cases[0].name}: {type(error).__name__}: {error}"]
        return [fault for case in cases for fault in find_faults([case])] or [
            f"together {[case.name for case in cases]}: {type(error).__name__}: {error}"
        ]


def _compare_batch(cases: Sequence[Case | TextCase]) -> list[str]:
    proto, arguments = write_module(cases), _all_arguments(cases)
    want = run_xla(proto, arguments, optimise=False)
    graph = import_hlo(proto)
    found = {
        "read": run_graph(graph, arguments),
        "rewritten": run_graph(reassociate(expand(simplify(graph))), arguments),
    }
    if shutil.which("g++") is not None:
        found["compiled"] = HostEngine(compile_graph(graph, preset("host")).program).run(arguments)
    faults = []
    for stage, got in found.items():
        start = 0
        for case in cases:
            stop = start + _count_results(case)
            pairs = zip(got[start:stop], want[start:stop], strict=True)
            for number, (g, w) in enumerate(pairs):
                fault = describe_difference(g, w, case.error)
                if fault:
                    faults.append(f"{case.name}, result {number}, {stage}: {fault}")
            start = stop
        assert start == len(want) == len(got)
    return faults


def describe_difference(got: np.ndarray, want: np.ndarray, error: Error) -> str:
    """A sentence, or an empty string where `got` is near enough."""
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if not got.size:
        return ""
    if got.dtype.kind in "iub":
        wrong = got != want
    elif got.dtype.kind == "c":
        real = _is_far(got.real, want.real, error, np.abs(want))
        wrong = real | _is_far(got.imag, want.imag, error, np.abs(want))
    else:
        wrong = _is_far(got, want, error, want)
    if not np.any(wrong):
        return ""
    first = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(wrong)))
    g, w = np.atleast_1d(got)[first], np.atleast_1d(want)[first]
    return f"{int(np.sum(wrong))} of {got.size} differ, at {list(first)} {g!r}, XLA has {w!r}"


def _is_far(got: np.ndarray, want: np.ndarray, error: Error, size: np.ndarray) -> np.ndarray:
    limits = ml_dtypes.finfo(got.dtype)
    with np.errstate(all="ignore"):
        g, w, s = (x.astype(np.float64) for x in (got, want, np.abs(size)))
        same = (g == w) | (np.isnan(g) & np.isnan(w))
        tiny = float(limits.tiny)
        flushed = (np.abs(g) <= tiny) & (np.abs(w) <= tiny)
        finite = np.isfinite(w)
        scale = np.max(s, where=np.isfinite(s), initial=0.0) if error.of_largest else s
        scale = np.maximum(scale, error.floor)
        near = finite & (np.abs(g - w) <= error.ulps * float(limits.eps) * scale)
        if error.ulps:
            # The largest number and infinity are one rounding apart.
            edge = float(limits.max) * (1 - error.ulps * float(limits.eps))
            near |= (np.abs(g) >= edge) & (np.abs(w) >= edge) & (np.sign(g) == np.sign(w))
        else:
            same &= (g != 0) | (np.signbit(g) == np.signbit(w))
    return ~(same | near | flushed)


# ---- values --------------------------------------------------------------------------------------

_EDGES = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.0, 0.49999997, 127.5, -128.5, 255.9, 256.0, -300.0,
    32767.5, -32769.0, 65503.9, 65520.0, 7e4, -7e4, 449.0, 465.0, 61440.0, 2.0**31, -(2.0**31), 2.0**32, 2.0**63,
    -(2.0**63), 2.0**64, 2.0**24 + 1, 1e-5, -1e-8, 88.8, -104.0, 709.0, 1e30, -1e38, 1e300, np.pi, np.inf, -np.inf,
    np.nan,
)  # fmt: skip


def draw_bits(rng: np.random.Generator, dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
    """Any bit pattern."""
    if dtype == PRED:
        return np.asarray(rng.integers(0, 2, shape), np.bool_)
    count = math.prod(shape) * dtype.itemsize
    return np.frombuffer(rng.bytes(count), dtype).reshape(shape)


def draw_numbers(
    rng: np.random.Generator, dtype: np.dtype, shape: Sequence[int], scale: float = 1.0
) -> np.ndarray:
    """Normally distributed numbers; integers of up to +-9; booleans."""
    if dtype == PRED:
        return np.asarray(rng.integers(0, 2, shape), np.bool_)
    if dtype.kind in "iu":
        return np.asarray(rng.integers(0 if dtype.kind == "u" else -9, 10, shape), dtype)
    values = rng.standard_normal(shape) * scale
    if dtype.kind == "c":
        return np.asarray(values + 1j * rng.standard_normal(shape) * scale, dtype)
    return np.asarray(values, np.float32).astype(dtype)


def draw_edges(rng: np.random.Generator, dtype: np.dtype, count: int) -> np.ndarray:
    """`count` values: those where meanings change, in any order, among others of every magnitude."""
    if dtype == PRED:
        return draw_bits(rng, dtype, (count,))
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        near = [0, 1, 2, 3, 5, 7, info.bits - 1, info.bits, info.bits + 1, info.max, info.max - 1]
        near += [-1, -2, -3, -7, info.min, info.min + 1, info.max // 2]
        edges = np.array([v for v in near if info.min <= v <= info.max], dtype)
        others = draw_bits(rng, dtype, (count,))
        shift = rng.integers(0, info.bits, count).astype(dtype)
        return np.where(rng.random(count) < 0.5, rng.choice(edges, count), others >> shift)
    part = {8: np.float32, 16: np.float64}[dtype.itemsize] if dtype.kind == "c" else dtype
    if dtype.kind == "c":
        # Infinite complex numbers have no agreed arithmetic.
        pair = [draw_numbers(rng, np.dtype(part), (count,), 3.0) for _ in "ri"]
        for x in pair:
            x[rng.random(count) < 0.2] = 0
        return np.asarray(pair[0] + 1j * pair[1], dtype)
    spread = 10.0 ** rng.uniform(-4, 4, count) * rng.choice([-1, 1], count)
    ordinary = np.where(rng.random(count) < 0.5, spread, rng.standard_normal(count))
    with np.errstate(all="ignore"):
        edges = np.array(_EDGES).astype(dtype)
        values = np.where(rng.random(count) < 0.6, rng.choice(edges, count), ordinary.astype(dtype))
        return flush(values.astype(dtype))


def flush(x: np.ndarray) -> np.ndarray:
    """Without subnormals of its type and of f32, which XLA's CPU flushes at some ops and at others not."""
    tiny = max(float(ml_dtypes.finfo(x.dtype).tiny), 0.0)
    return np.where(np.abs(x.astype(np.float64)) < tiny, x * x.dtype.type(0), x).astype(x.dtype)
