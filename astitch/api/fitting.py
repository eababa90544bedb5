"""A program compiled again until what XLA plans for it keeps to its memory limit, or comes as near as it gets.

astitch plans by an estimate of what XLA will need.  Only XLA's compiled program says how much that is.  So where it is
above the limit, the program is compiled again for as much less.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from astitch.faults import FaultWarning, show_error
from astitch.show.memory import warn_of_memory
from astitch.system.callbacks import pass_interrupt

if TYPE_CHECKING:
    from astitch.api.transformation import Compiling

MOST_TRIES = 3
"""How often a program is compiled again."""

CLOSER = 0.01
"""The share of the limit by which a next try asks for less than the last one missed: estimates are not exact."""


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
    for _ in range(MOST_TRIES if compiling.is_alone else 0):
        if planned <= limit:
            break
        asked -= planned - limit + CLOSER * limit
        if asked <= 0:
            break
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
        if planned is None or planned >= best[2] or not compiling.stitched:
            break
        best = compiling.keep(), other, planned
    kept, made, planned = best
    compiling.go_back(kept)
    entry = compiling.entry
    if planned > limit and entry is not None:
        warn_of_memory(entry.name, limit, planned, entry.compilation, stacklevel=6)
    return made


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
