"""Tuning beside calls: plans are measured in a thread of their own, and a later call takes what won.

Takes a function that is lowered for an engine of ours, hands on what was compiled anew once its plans are measured.
One function is tuned at a time: measurements side by side would time each other.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from astitch.errors import InvalidOption
from astitch.system.forks import ForkLock

if TYPE_CHECKING:
    from astitch.api.stages import Compiled, Lowered
    from astitch.library.xla_fallback import CompilerOptions

log = logging.getLogger("astitch")

BACKGROUND = "background"

_one_at_a_time = ForkLock()


class TuningWarning(RuntimeWarning):
    """Plans could not be measured beside the calls; the rules' plans stay."""


def check_tune(tune: object, where: str, *, background: bool) -> None:
    """Raises InvalidOption for what is no wish about tuning.  background: is "background" one?"""
    if tune is None or isinstance(tune, bool) or (background and tune == BACKGROUND):
        return
    known = "True, False or None" + (f", or {BACKGROUND!r}" if background else "")
    reason = (
        "\n  XLA compiles kernels into its program, so all is measured before the first call: tune=True"
        if tune == BACKGROUND
        else ""
    )
    raise InvalidOption(f"{where}: tune={tune!r} is not known\n  it is {known}{reason}")


def tune_beside_calls(
    lowered: Lowered, compiler_options: CompilerOptions, take: Callable[[Compiled], None]
) -> threading.Thread:
    """Begins to measure the plans of a function.  take: gets the function compiled with the plans that won.

    The process does not end before it is done: what is measured is kept on disk for the next one.
    """
    tuned = lowered.with_tuning()
    thread = threading.Thread(
        target=_tune, args=(tuned, compiler_options, take), name="astitch-tune"
    )
    thread.start()
    return thread


def _tune(
    lowered: Lowered, compiler_options: CompilerOptions, take: Callable[[Compiled], None]
) -> None:
    name = lowered.jax_traced.fun_name
    try:
        with _one_at_a_time, lowered.on_device():
            take(lowered.compile_stitched(compiler_options))
    except Exception as error:
        first = str(error).partition("\n")[0]
        warnings.warn(
            f"astitch: {name}: plans were not measured beside its calls: {type(error).__name__}: {first}\n"
            "  the plans by the rules stay",
            TuningWarning,
            stacklevel=2,
        )
    else:
        log.info("%s: its plans are measured; the next call takes them", name)
