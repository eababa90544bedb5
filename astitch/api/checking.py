"""astitch.enable(check=True): XLA's own version of a program beside the stitched one, at each call.

Takes both executables of a program and JAX's call of the stitched one, hands on a call that runs both on copies and
compares their results.  JAX's fast path knows only calls of its own class, so every call comes by here.
"""

from __future__ import annotations

import functools
import uuid
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from astitch import options
from astitch.api.settings import OFF, context
from astitch.errors import ResultMismatch, first_line
from astitch.events import note_mismatch
from astitch.faults import FaultWarning
from astitch.hlo import schema
from astitch.hlo.schema import decode
from astitch.system.callbacks import pass_interrupt

# ---- which programs ----------------------------------------------------------------------------------------------

_STATEFUL = frozenset(
    {b"infeed", b"outfeed", b"send", b"recv", b"rng", b"rng-get-and-update-state"}
)


def why_unchecked(module: Any, devices: Sequence[Any]) -> str:
    """Why a program must not run twice, or cannot; the empty string: it is checked.

    module: the HloModuleProto that XLA handed over.  devices: of JAX's, that the program runs on.
    """
    import jax

    for computation in module.computations:
        for instruction in computation.instructions:
            target = decode(instruction.custom_call_target)
            if instruction.opcode in _STATEFUL:
                return f"{decode(instruction.opcode)} would happen twice"
            if instruction.custom_call_has_side_effect or "callback" in target:
                return f"the call of {target} would happen twice"
    if any(device.process_index != jax.process_index() for device in devices):
        return "it runs on several processes, and one that is not checked would leave the others waiting"
    try:
        here = set(jax.local_devices(backend=devices[0].platform))
    except RuntimeError:
        here = set()
    if not set(devices) <= here:
        return "it is compiled for devices that are not here"
    return ""


def find_donated(module: Any) -> frozenset[int]:
    """The parameters of an HloModuleProto whose memory the program may take."""
    given = (*module.input_output_alias.entries, *module.buffer_donor.entries)
    return frozenset(entry.parameter_number for entry in given)


# ---- how far results may differ ----------------------------------------------------------------------------------

_BOUNDS = {"f64": 1e-11, "c128": 1e-11, "f32": 2e-5, "c64": 2e-5, "f16": 1e-2, "bf16": 5e-2}
"""Of the largest value, by the coarsest type that a program computes in."""

_NARROWEST = 0.25
"""The bound of programs that compute in 8 bits or less."""

_TF32 = 5e-3
"""The bound of f32 where XLA may round what products take to 10 bits."""

_HIGHEST = 2  # PrecisionConfig.HIGHEST

_TRIES = 4
"""So many changes of the arguments by rounding show how far it goes."""

_NOISE = 8.0
"""So many times what such a change makes of a result, a difference may be rounding."""


def choose_bound(module: Any) -> float:
    """How far floats may differ, as a part of the largest value of the result.  module: an HloModuleProto."""
    bound = 0.0
    for computation in module.computations:
        for instruction in computation.instructions:
            name = schema.ELEMENT_TYPES.get(instruction.shape.element_type, "")
            narrow = name.startswith(("f8", "f4"))
            bound = max(bound, _NARROWEST if narrow else _BOUNDS.get(name, 0.0))
            if instruction.opcode in (b"dot", b"convolution") and name in ("f32", "c64"):
                exact = set(instruction.precision_config.operand_precision) == {_HIGHEST}
                bound = max(bound, 0.0 if exact else _TF32)
    return bound


@dataclass(frozen=True, slots=True)
class Difference:
    """Between two results of one number.

    size: the largest difference of floats, the number of elements that differ for other types; infinite where NaNs and
    infinities stand at other places.  largest: of XLA's finite values.  bound: what size may be.
    """

    number: int
    type: str
    size: float
    largest: float
    bound: float

    def __str__(self) -> str:
        return (
            f"result {self.number}, {self.type}, differs by {self.size:.3g} where {self.bound:.3g} is allowed and the "
            f"largest value is {self.largest:.3g}"
        )


def compare(
    got: Sequence[np.ndarray], want: Sequence[np.ndarray], *, bound: float, number: int = 0
) -> Difference:
    """The shards of one result against those of another.

    bound: how far floats may differ, as a part of the largest value.
    """
    size = largest = 0.0
    floats = False
    shape = " + ".join(f"{w.dtype}{list(w.shape)}" for w in want)
    for g, w in zip(got, want, strict=True):
        floats = _is_inexact(w.dtype)
        if not floats:
            size += float(np.count_nonzero(g != w))
            continue
        a, b = _widen(g), _widen(w)
        finite = np.isfinite(b)
        same = np.array_equal(finite, np.isfinite(a)) and np.array_equal(
            a[~finite], b[~finite], equal_nan=True
        )
        if not same:
            size = np.inf
            continue
        largest = max(largest, float(np.abs(b[finite]).max(initial=0.0)))
        size = max(size, float(np.abs(a[finite] - b[finite]).max(initial=0.0)))
    return Difference(number, shape, size, largest, bound * largest if floats else 0.0)


def _is_inexact(dtype: np.dtype[Any]) -> bool:
    """Of floats and complex numbers, those that NumPy does not know itself among them."""
    from jax import dtypes

    untyped: Any = dtypes
    return bool(untyped.issubdtype(dtype, np.inexact))


def _widen(array: np.ndarray) -> np.ndarray:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


# ---- one program -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Check:
    """XLA's own version of a program, and what came of calls.

    name, line: of the program, and its line in the report.  plain: the executable; None where it is not checked, for
    the reason.  donated: parameters.  bound: see choose_bound.  raises: at a difference.
    failed: why the latest call that could not be checked was not.
    calls: checked ones.  differences: those beyond the bound, of the first call of each result.
    rounded: calls whose results differ beyond the bound, and as much after a change of the arguments by rounding.
    """

    name: str
    line: str
    plain: Any | None
    reason: str = ""
    donated: frozenset[int] = frozenset()
    bound: float = 0.0
    raises: bool = False
    failed: str = ""
    calls: int = 0
    rounded: int = 0
    differences: dict[int, Difference] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.reason:
            return f"{self.name}: not checked: {self.reason}"
        noise = (
            f", {self.rounded} with differences as large as rounding makes" if self.rounded else ""
        )
        failed = f"; a call was not checked: {self.failed}" if self.failed else ""
        head = f"{self.name}: {self.calls} calls checked{noise}{failed}"
        return "\n".join([head, *(f"  {difference}" for difference in self.differences.values())])


_checks: dict[int, tuple[Any, Check]] = {}
"""By the id of a stitched executable, which is kept: JAX asks for its call when it wants."""


def add_check(executable: Any, check: Check) -> None:
    """Every call of an executable that JAX makes from now on is checked."""
    _take_call()
    _checks[id(executable)] = executable, check


@functools.cache
def _take_call() -> None:
    """Takes the seam of JAX's that makes the call of an executable, once in a process."""
    from jax._src.interpreters import pxla

    unloaded: Any = pxla.UnloadedMeshExecutable
    before = unloaded.build_unsafe_call

    @functools.wraps(before)
    def build_unsafe_call(self: Any) -> Any:
        call = before(self)
        _, check = _checks.get(id(self.xla_executable), (None, None))
        if check is None or check.plain is None:
            return call
        if call.mut is not None:
            check.reason, check.plain = "it writes to references", None
            return call
        return CheckedCall(call, before(replace(self, xla_executable=check.plain)), check)

    unloaded.build_unsafe_call = build_unsafe_call


class CheckedCall:
    """What JAX calls in place of its own ExecuteReplicated."""

    def __init__(
        self, stitched: Callable[..., Any], plain: Callable[..., Any], check: Check
    ) -> None:
        self._stitched, self._plain, self._check = stitched, plain, check

    def __call__(self, *arguments: Any) -> Any:
        """The stitched results; XLA's own where they differ.  Raises ResultMismatch where that was asked for.

        Both versions get copies of donated arguments.  So the stitched one can still run where the check fails.
        """
        try:
            results, differences = self._run_both(arguments)
        except Exception as error:
            pass_interrupt(error)
            self._check.failed = first_line(error)
            return self._stitched(*arguments)
        if differences:
            self._tell(differences)
        return results

    def _run_both(self, arguments: Sequence[Any]) -> tuple[Any, list[Difference]]:
        """What the call returns, and how the results differ by more than rounding.

        Donated arguments are deleted where the stitched program took the memory of their copies.
        """
        import jax

        kept = sorted(self._stitched.kept_var_idx)  # type: ignore[attr-defined]
        donated = {kept[n] for n in self._check.donated if n < len(kept)}
        with context()(OFF), jax.ensure_compile_time_eval(), jax.transfer_guard("allow"):
            want = self._plain(*_copy(arguments, donated))
            copies = _copy(arguments, donated)
            got = self._stitched(*copies)
            differences = self._compare(got, want)
            if differences and self._are_rounding(differences, want, arguments, donated):
                self._check.rounded += 1
                differences = []
            self._check.calls += 1
            for number in donated:
                if _is_deleted(copies[number]) and not _is_deleted(arguments[number]):
                    arguments[number].delete()
        return (want if differences else got), differences

    def _compare(self, got: Sequence[Any], want: Sequence[Any]) -> list[Difference]:
        pairs = enumerate(zip(got, want, strict=True))
        found = (
            compare(_fetch(g), _fetch(w), bound=self._check.bound, number=number)
            for number, (g, w) in pairs
        )
        return [difference for difference in found if difference.size > difference.bound]

    def _are_rounding(
        self,
        differences: Sequence[Difference],
        want: Sequence[Any],
        arguments: Sequence[Any],
        donated: Collection[int],
    ) -> bool:
        """Do XLA's own results change as much where the arguments change by a unit in their last places?

        So does a sum whose terms cancel: it has no digits that are right.
        """
        noise = dict.fromkeys((d.number for d in differences), 0.0)
        try:
            for seed in range(_TRIES):
                moved = self._plain(*_move(_copy(arguments, donated), seed))
                for n, before in noise.items():
                    again = compare(_fetch(moved[n]), _fetch(want[n]), bound=0.0).size
                    noise[n] = max(before, again)
                if all(d.size <= _NOISE * noise[d.number] < np.inf for d in differences):
                    return True
        except Exception as error:
            pass_interrupt(error)
        return False

    def _tell(self, differences: Sequence[Difference]) -> None:
        check = self._check
        new = [d for d in differences if d.number not in check.differences]
        check.differences |= {d.number: d for d in new}
        text = "\n  ".join(
            [
                f"{check.name}: the stitched program and XLA's own differ",
                *map(str, differences),
                check.line,
            ]
        )
        if new:
            note_mismatch(check.name, "; ".join(map(str, new)))
        if check.raises or options.raise_faults():
            raise ResultMismatch(
                f"{text}\n  please report it; astitch.disabled() computes it by XLA"
            )
        if new:
            warnings.warn(
                f"astitch: {text}\n  the call returns XLA's own results; please report it",
                FaultWarning,
                stacklevel=3,
            )


def _copy(arguments: Sequence[Any], donated: Collection[int]) -> list[Any]:
    """The arguments, those whose memory a program may take as copies."""
    return [
        a.copy() if n in donated and hasattr(a, "sharding") else a for n, a in enumerate(arguments)
    ]


def _is_deleted(argument: Any) -> bool:
    return hasattr(argument, "is_deleted") and bool(argument.is_deleted())


def _fetch(result: Any) -> list[np.ndarray]:
    """The shards of a result on the host; of a key of random numbers its words."""
    import jax

    untyped: Any = jax.dtypes
    if untyped.issubdtype(result.dtype, untyped.extended):
        result = jax.random.key_data(result)
    return [np.asarray(shard.data) for shard in result.addressable_shards]


def _move(arguments: Sequence[Any], seed: int) -> list[Any]:
    """The arguments with each float changed by some units in its last place."""
    import jax

    untyped: Any = jax.numpy
    random = np.random.default_rng(seed)
    common = random.uniform(-2, 2)
    moved = []
    for argument in arguments:
        if hasattr(argument, "dtype") and _is_inexact(argument.dtype):
            values = np.asarray(argument)
            units = common + random.choice([-1.0, 1.0], values.shape)
            changed = _widen(values) * (1 + units * float(untyped.finfo(argument.dtype).eps))
            place = getattr(argument, "sharding", None)
            argument = changed.astype(values.dtype)
            if place is not None:
                argument = jax.device_put(argument, place)
        moved.append(argument)
    return moved


def check_compiled(
    executable: Any, compile_plain: Callable[[], Any], module: Any, check: Check
) -> None:
    """Has a stitched executable checked against what compile_plain makes, if that can be.

    module: the HloModuleProto that XLA handed over.  check: without the fields that follow from it.
    """
    check.donated, check.bound = find_donated(module), choose_bound(module)
    if check.reason:
        return
    try:
        check.plain = compile_plain()
    except Exception as error:
        pass_interrupt(error)
        check.reason = f"XLA does not compile its own version: {first_line(error)}"
        return
    add_check(executable, check)


@functools.cache
def process_mark() -> str:
    """Another in each process: a checked program must not come from JAX's cache on disk."""
    return uuid.uuid4().hex
