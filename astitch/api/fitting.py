"""A program compiled again until what XLA plans for it keeps to its memory limit, or comes as near as it gets.

astitch plans by an estimate of what XLA will need.  Only XLA's compiled program says how much that is.  So where it is
above the limit, the program is compiled again for as much less.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from astitch.faults import FaultWarning, show_error
from astitch.show.memory import estimate_bytes, warn_of_memory
from astitch.system.callbacks import pass_interrupt

if TYPE_CHECKING:
    from astitch.api.transformation import Compiling

CLOSER = (0.01, 0.04, 0.1)
"""The shares of the limit by which each next try asks for less than the last one missed: estimates are not exact."""


def fit_memory(made: Any, compile_: Callable[[], Any], compiling: Compiling) -> Any:
    """The executable of XLA's, or one that takes less memory; a warning where that is more than the limit.

    made: the first one.  compile_: compiles again, with what `compiling` says.
    """
    limit = compiling.memory_limit
    if limit is None or not compiling.stitched or compiling.off:
        return made
    planned = planned_bytes(made)
    if planned is None:
        return made
    first = compiling.keep()
    best = first, made, planned
    asked = float(limit)
    for closer in CLOSER if compiling.is_alone else ():
        estimated = _estimate(compiling)
        if planned <= limit or estimated > asked:  # there is no smaller plan
            break
        missed = max(planned - limit, asked - limit + planned - estimated if estimated else 0)
        asked = max(asked - missed - closer * limit, 1)
        compiling.start_anew(int(asked))
        try:
            other = compile_()
            planned = planned_bytes(other)
        except Exception as error:
            pass_interrupt(error)
            warnings.warn(
                f"astitch: {compiling.name}: less memory cannot be had: {show_error(error)}\n  please report it",
                FaultWarning,
                stacklevel=5,
            )
            break
        if planned is None or not compiling.stitched:
            break
        if planned < best[2]:
            best = compiling.keep(), other, planned
    kept, made, planned = best
    compiling.go_back(kept)
    entry = compiling.entry
    if planned > limit and entry is not None:
        warn_of_memory(entry.name, limit, planned, entry.compilation, stacklevel=6)
    return made


def _estimate(compiling: Compiling) -> int:
    """What the last compile's plan is estimated to take; 0: it is not known."""
    made = compiling.entry.compilation if compiling.entry else None
    return 0 if made is None else estimate_bytes(made)


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
