"""Every environment name that astitch reads, in one place.

Takes the environment, hands on values; a name set to nothing counts as not set.  No name changes a result beyond the
order of its sums.  They choose where things are kept, what is shown, which engine runs and how plans are chosen.
"""

from __future__ import annotations

import enum
import functools
import os
import tempfile
import warnings
from pathlib import Path

from astitch.errors import InvalidOption

NAMES = {
    "ASTITCH_CACHE_DIR": "folder of the caches of kernels and programs (default ~/.cache/astitch)",
    "ASTITCH_DEBUG": "1: one line a kernel; 2: decisions and refusals; 3: the simplified graph; 4: the CUDA text",
    "ASTITCH_DETERMINISTIC": "1, 0: sums of scatters and attention's gradient inside XLA have a fixed order, or any",
    "ASTITCH_DUMP": "folder for module, graph, explanation, CUDA and repro.py of each compilation by astitch.jit",
    "ASTITCH_ENGINE": "gpu, xla, executor or host: the engine, instead of the GPU's where there is one",
    "ASTITCH_FAULTS": "raise: an error inside astitch is raised; without it XLA computes what the error keeps from us",
    "ASTITCH_GRAPHS": "0: programs outside of XLA run step by step, not as CUDA graphs",
    "ASTITCH_LOG": "file, or stderr: gets a line of JSON for each compile, fallback and tune",
    "ASTITCH_STITCH_LOOPS": "0: all loops are left to XLA; 1: bodies of those that are not one kernel get kernels too",
    "ASTITCH_TUNE": "1: measure the best plans of each kernel on the GPU and keep the fastest; 0: measure no kernel",
}
"""The names and what they mean.  At most ten."""

REPLACED = {
    "ASTITCH_CHECK": "astitch.enable(check=True)",
}
"""Names of earlier versions, and what stands in their place: an option of a call is no variable."""

DEBUG_LEVELS = 4
ENGINES = ("gpu", "xla", "executor", "host")


def list_set() -> dict[str, str]:
    """The names that are set, and to what."""
    return {name: value for name in NAMES if (value := _read(name))}


def cache_dir() -> Path:
    """Where caches live, whether or not the folder exists; among the temporary files for a user without a home."""
    given = _read("ASTITCH_CACHE_DIR")
    if given:
        return Path(given)
    try:
        return Path.home() / ".cache" / "astitch"
    except RuntimeError:  # a container's user, who is in no list
        return Path(tempfile.gettempdir()) / f"astitch-{os.geteuid()}"


def debug_level() -> int:
    """0 (silent) to 4.  Raises InvalidOption."""
    given = _read("ASTITCH_DEBUG")
    if not given:
        return 0
    if not given.isdecimal() or int(given) > DEBUG_LEVELS:
        raise _invalid("ASTITCH_DEBUG", given)
    return int(given)


def deterministic() -> bool | None:
    """Whether scatters and gradients of attention inside XLA add in a fixed order; None where nobody says.

    Raises InvalidOption.
    """
    given = _read("ASTITCH_DETERMINISTIC")
    if given not in ("", "0", "1"):
        raise _invalid("ASTITCH_DETERMINISTIC", given)
    return given == "1" if given else None


def dump_dir() -> Path | None:
    """Where each compilation by astitch.jit is written; None to write nothing."""
    given = _read("ASTITCH_DUMP")
    return Path(given) if given else None


def engine() -> str | None:
    """The engine asked for, one of ENGINES, or None to take the GPU where there is one.  Raises InvalidOption."""
    given = _read("ASTITCH_ENGINE")
    if given and given not in ENGINES:
        raise _invalid("ASTITCH_ENGINE", given)
    return given or None


def log_file() -> str:
    """Where events are written: a file, or "stderr"; nothing: the empty string."""
    return _read("ASTITCH_LOG")


def raise_faults() -> bool:
    """Whether an error inside astitch is raised in place of leaving a part of the program to XLA.  Raises
    InvalidOption."""
    given = _read("ASTITCH_FAULTS")
    if given not in ("", "raise"):
        raise _invalid("ASTITCH_FAULTS", given)
    return given == "raise"


def graphs() -> bool:
    """May launches be captured into CUDA graphs?  Raises InvalidOption."""
    given = _read("ASTITCH_GRAPHS")
    if given not in ("", "0", "1"):
        raise _invalid("ASTITCH_GRAPHS", given)
    return given != "0"


class Loops(enum.Enum):
    """What becomes of loops.  NONE: XLA runs all of them.  KERNELS: those that can be one kernel are.  BODIES: besides,
    the bodies of the others and the branches of conditionals get kernels, which no GPU has timed yet."""

    NONE = "0"
    KERNELS = ""
    BODIES = "1"


def loops() -> Loops:
    """What ASTITCH_STITCH_LOOPS says.  Raises InvalidOption."""
    given = _read("ASTITCH_STITCH_LOOPS")
    try:
        return Loops(given)
    except ValueError:
        raise _invalid("ASTITCH_STITCH_LOOPS", given) from None


def tune() -> bool | None:
    """Whether plans are measured where the caller does not say; None: nobody says.  Raises InvalidOption."""
    given = _read("ASTITCH_TUNE")
    if given not in ("", "0", "1"):
        raise _invalid("ASTITCH_TUNE", given)
    return given == "1" if given else None


def _read(name: str) -> str:
    assert name in NAMES, name
    _warn_of_replaced()
    return os.environ.get(name, "").strip()


@functools.cache
def _warn_of_replaced() -> None:
    """Says once in a process which set names do nothing any more."""
    for name, instead in REPLACED.items():
        if os.environ.get(name, "").strip():
            warnings.warn(
                f"environment: {name} is not read any more\n  {instead} stands in its place",
                RuntimeWarning,
                stacklevel=5,
            )


def _invalid(name: str, given: str) -> InvalidOption:
    return InvalidOption(
        f"environment: {name}={given!r} is not understood\n  {name} is {NAMES[name]}"
    )
