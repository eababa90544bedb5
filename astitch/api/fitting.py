"""A program compiled again until what XLA plans for it keeps to its memory limit, or comes as near as it gets.

astitch plans by an estimate of what XLA will need.  Only XLA's compiled program says how much that is.  So where it is
above the limit, the program is compiled again for as much less.  Where nobody sets a limit, what XLA's own version
takes is one.  Where its estimate leaves a doubt, that version is compiled without tuning, and then, if the doubt is
left, as it is.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from astitch.faults import FaultWarning, show_error
from astitch.show.memory import list_written, warn_of_memory
from astitch.system.callbacks import pass_interrupt
from astitch.xla.kept_stitchings import ALONE, ONLY_TURNS, keep_fit

if TYPE_CHECKING:
    from astitch.api.transformation import Compiling
    from astitch.xla.kept_stitchings import Made

CLOSER = (0.01, 0.04, 0.1)
"""The shares of the limit by which each next try asks for less than the last one missed: estimates are not exact."""

CLOSER_TO_XLA = (0.0, 0.04)
"""The same where the limit is what XLA's own version takes."""

WITHOUT_LOOPS = "without loop_over_joined_rows\nwithout loop_over_matrices"
"""Directives of the second try where a loop is a kernel: what rows or small matrices read and make lies in memory at
once."""

SHARE = 1.02
"""How much of what XLA's own version takes a program may take."""

DOUBT = 1.03
"""How much of what XLA's own version is estimated to take, at the least, is in doubt."""

SURE = 0.97
"""How much of what a compile without tuning tells a program may take, so that there is no doubt left."""

CUBLAS = "__cublas$"
"""How the targets of XLA's calls of cuBLAS begin."""

WORKSPACE = 32 << 20
"""Bytes that products of libraries may work in, on Hopper."""

LEAST_PLANNED = 32 << 20
"""Bytes of a program that is worth a compilation of XLA's own version."""

LARGER = 1.05
"""How much of what XLA's own version takes the best plan may take.  Beyond, nothing is stitched: of ten programs
that were larger by 8 to 57 % three were faster by more than a tenth, three slower (an H200)."""

TIME_WORTH = 1.06
"""The share of its projected memory-intensive time that a program may take to need no more memory than XLA's own.
Ahead of time a mesh's gradient projects 1.09, and xDeepFM's training 1.06 (an H100); on an H200 plans for less memory
took 591 us where `jax.jit` takes 436, and 1,654 where it takes 1,933."""


LOOPS_WORTH = 0.5
"""The share of what its loops spare, as projected, that a program may lose for less memory.  Else it would be XLA's
own.  The projection of XLA's loops is rough."""


MOST_LEFT = 2
"""Tries in which the largest of a program's new arrays are left to XLA."""

_Fit = tuple[Any, Any, int, str]
"""What a Compiling keeps of a compile, its executable, what XLA plans for it, and the directives."""


def fit_memory(
    made: Any,
    compile_: Callable[[], Any],
    compiling: Compiling,
    compile_untuned: Callable[[], Any] | None = None,
) -> Any:
    """The executable of XLA's, or one that takes less memory; a warning where that is more than the limit.

    made: the first one.  compile_: compiles again, with what `compiling` says.
    compile_untuned: the same, but nothing is measured, and libraries compute all products, which takes less time.
    """
    if not compiling.stitched or compiling.off:
        return made
    planned = planned_bytes(made)
    if planned is None:
        return made
    if compiling.memory_limit is None:
        return _fit_xla(made, planned, compile_, compiling, compile_untuned)
    return _fit_limit(made, planned, compile_, compiling, compiling.memory_limit)


def _fit_limit(
    made: Any, planned: int, compile_: Callable[[], Any], compiling: Compiling, limit: int
) -> Any:
    best = compiling.keep(), made, planned
    last = made, planned
    asked = float(limit)
    for closer in CLOSER if compiling.is_alone else ():
        estimated = _estimate(compiling)
        if planned <= limit or estimated > asked:  # there is no smaller plan
            break
        missed = max(planned - limit, asked - limit + planned - estimated if estimated else 0)
        asked = max(asked - missed - closer * limit, 1)
        found = _compile_for(f"memory-limit {int(asked)}", compile_, compiling, last)
        if found is None:
            break
        other, planned = last = found
        if planned < best[2]:
            best = compiling.keep(), other, planned
    kept, made, planned = best
    compiling.go_back(kept)
    entry = compiling.entry
    if planned > limit and entry is not None:
        warn_of_memory(entry.name, limit, planned, entry.compilation, stacklevel=7)
    return made


def _fit_xla(
    made: Any,
    planned: int,
    compile_: Callable[[], Any],
    compiling: Compiling,
    compile_untuned: Callable[[], Any] | None,
) -> Any:
    """The same, where nobody sets a limit: XLA's own version does."""
    first = compiling.made
    if first is None or not first.plain_bytes or compiling.is_fitted or not compiling.is_alone:
        return made
    if len(compiling.devices) > 1:
        return made  # less memory may cost what runs beside collectives, which no projection tells
    if planned < LEAST_PLANNED or planned <= DOUBT * first.plain_bytes:
        return made
    untuned = _measure_untuned(compile_untuned, compiling, first) if compile_untuned else 0
    if planned <= SURE * untuned:
        keep_fit(compiling.key, "")
        return made
    plain = _compile_plain(compile_, compiling)
    if plain is None:
        return made
    own, plain_bytes = plain
    limit = SHARE * plain_bytes
    best = bearable = compiling.keep(), made, planned, ""
    asked = math.inf
    found: tuple[Any, int] | None = best[1:3]
    last = made, planned

    def is_slow() -> bool:
        return _project(compiling) > TIME_WORTH * first.light_us

    def is_bearable() -> bool:
        """Is it faster than XLA's own version all the same, for its loops?"""
        spared = min(first.spared_us, compiling.made.spared_us if compiling.made else 0.0)
        return _project(compiling) < first.light_us + LOOPS_WORTH * spared

    for closer in CLOSER_TO_XLA:
        estimated = _estimate(compiling)
        without = WITHOUT_LOOPS if closer and _has_loops(compiling) else ""
        fits_slowly = planned <= limit < min(best[2], bearable[2])
        if fits_slowly and asked < first.estimated:  # it computes too much again
            asked, without = (asked + first.estimated) / 2, ""
        elif planned <= limit or (estimated > asked and not without):  # there is no smaller plan
            break
        else:
            beside = planned - estimated if estimated and not without else 0
            asked = max((1 - closer) * limit - beside, 1)
        told = f"memory-limit {asked:.0f}\n{without}"

        def is_vain(closer: float = closer, asked: float = asked) -> bool:
            ends = _estimate(compiling) > asked and not _has_loops(compiling)
            return is_slow() and not is_bearable() and (ends or closer == CLOSER_TO_XLA[-1])

        found = _compile_for(told, compile_, compiling, last, is_vain)
        if found is None:
            break
        other, planned = last = found
        if planned < best[2] and not is_slow():
            best = compiling.keep(), other, planned, told
        elif planned < bearable[2] and is_bearable():
            bearable = compiling.keep(), other, planned, told
    if best[2] > LARGER * plain_bytes and bearable[2] <= limit:
        best = bearable
    if best[2] > LARGER * plain_bytes and found is not None and not compiling.is_strict:
        best = _leave_largest(best, limit, compile_, compiling, is_slow)
    kept, made, planned, told = best
    compiling.go_back(kept)
    if planned > LARGER * plain_bytes and found is not None and not compiling.is_strict:
        name = compiling.name
        left = _compile_planned(compile_) if compiling.leave_kernels() else (own, plain_bytes)
        if left is not None and left[1] > LARGER * plain_bytes:  # several turns in one take it
            compiling.leave_all(name)
            made, told = own, ALONE
        elif left is not None and left[1] < planned:
            made, told = left[0], ONLY_TURNS
        else:
            compiling.go_back(kept)
    if found is not None:  # else it may come right another time
        keep_fit(compiling.key, told)
    return made


def _leave_largest(
    best: _Fit,
    limit: float,
    compile_: Callable[[], Any],
    compiling: Compiling,
    is_slow: Callable[[], bool],
) -> _Fit:
    """A program that keeps to a limit since XLA computes some ops again; the given one where there is none.

    They are those whose results kernels write and keep alive at the peak, the largest first: XLA may have none of them
    in memory.
    """
    kept, made, planned, told = best
    compiling.go_back(kept)
    last = made, planned
    for _ in range(MOST_LEFT):
        compilation = compiling.entry.compilation if compiling.entry else None
        excess = last[1] - limit
        if compilation is None:
            break
        for name, size in list_written(compilation):
            line = f"leave %{name}"
            if excess > 0 and line not in told.splitlines():
                told += f"\n{line}"
                excess -= size
        found = None if excess > 0 else _compile_for(told, compile_, compiling, last)
        if found is None:
            break
        other, planned = last = found
        if planned <= limit and not is_slow():
            return compiling.keep(), other, planned, told
    return best


def _has_loops(compiling: Compiling) -> bool:
    """Is a loop one kernel in the last compile?"""
    made = compiling.entry.compilation if compiling.entry else None
    return made is not None and bool(made.loop_us)


def _compile_plain(compile_: Callable[[], Any], compiling: Compiling) -> tuple[Any, int] | None:
    """The program without kernels, and what XLA plans for it; None: XLA does not say."""
    compiling.off = True
    try:
        return _compile_planned(compile_)
    finally:
        compiling.off = False


def _measure_untuned(
    compile_untuned: Callable[[], Any], compiling: Compiling, first: Made
) -> float:
    """The bytes that XLA's own version takes about, as its compile without tuning tells; 0: it does not tell.

    Libraries need memory to work in, and the factors of products stored.
    """
    found = _compile_plain(compile_untuned, compiling) if first.stored_bytes else None
    if found is None:
        return 0
    made, planned = found
    workspace = WORKSPACE if _calls_library(made) else 0
    return first.plain_bytes / first.stored_bytes * planned - workspace


def _calls_library(made: Any) -> bool:
    """Has an executable products of cuBLAS?  Yes, where that cannot be read."""
    try:
        return any(CUBLAS in module.to_string() for module in made.hlo_modules())
    except Exception as error:
        pass_interrupt(error)
        return True


def _compile_planned(compile_: Callable[[], Any]) -> tuple[Any, int] | None:
    """An executable, and what XLA plans for it; None: XLA does not say."""
    try:
        made = compile_()
        planned = planned_bytes(made)
    except Exception as error:
        pass_interrupt(error)
        return None
    return None if planned is None else (made, planned)


def _compile_for(
    told: str,
    compile_: Callable[[], Any],
    compiling: Compiling,
    last: tuple[Any, int],
    is_vain: Callable[[], bool] = lambda: False,
) -> tuple[Any, int] | None:
    """The executable by such directives, and what XLA plans for it; None: there is none.

    last: the same of the last compile, where XLA need not compile again: no module twice, and none that is vain.
    is_vain: will the stitched program neither be taken nor lead to another try?
    """
    before = compiling.made.module if compiling.made else None
    compiling.start_anew(told)
    try:
        compiling.stitch_ahead()
        if compiling.ahead is not None:
            if not compiling.stitched:
                return None
            if (compiling.made and compiling.made.module == before) or is_vain():
                return last
        other = compile_()
        planned = planned_bytes(other)
    except Exception as error:
        pass_interrupt(error)
        warnings.warn(
            f"astitch: {compiling.name}: less memory cannot be had: {show_error(error)}\n  please report it",
            FaultWarning,
            stacklevel=7,
        )
        return None
    if planned is None or not compiling.stitched:
        return None
    return other, planned


def _estimate(compiling: Compiling) -> int:
    """What the last compile's plan is estimated to take; 0: it is not known."""
    return compiling.made.estimated if compiling.made else 0


def _project(compiling: Compiling) -> float:
    """The memory-intensive us of the last compile's plan, as projected; infinite: they are not known."""
    return compiling.made.light_us if compiling.made else math.inf


def planned_bytes(made: Any) -> int | None:
    """What XLA plans for an executable: arguments, results and temporaries; what is donated counts once.

    None: it does not say.
    """
    try:
        stats = made.get_compiled_memory_stats()
    except Exception as error:
        pass_interrupt(error)
        return None
    if stats is None:
        return None
    beside = stats.output_size_in_bytes + stats.temp_size_in_bytes - stats.alias_size_in_bytes
    return int(stats.argument_size_in_bytes + beside)
