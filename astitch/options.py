"""Every environment name that astitch reads, in one place.

Takes the environment, hands on values; a name set to nothing counts as not set.  They choose where things are kept
and what is shown, and name files of the owner's decisions.  They are for who runs a program and does not edit it.
What is an option of a call is no variable.
"""

from __future__ import annotations

import functools
import os
import tempfile
import warnings
from pathlib import Path

from astitch.errors import InvalidOption

NAMES = {
    "ASTITCH_CACHE_DIR": "folder of the caches of kernels and programs (default ~/.cache/astitch); after colons "
    "others that are only read",
    "ASTITCH_DEBUG": "1: one line a kernel; 2: decisions and refusals; 3: the simplified graph; 4: the CUDA text",
    "ASTITCH_DUMP": "folder for module, graph, explanation, CUDA and repro.py of each compilation by astitch.jit",
    "ASTITCH_FAULTS": "raise: an error inside astitch is raised; without it XLA computes what the error keeps from us",
    "ASTITCH_GRAPHS": "0: programs outside of XLA run step by step, not as CUDA graphs",
    "ASTITCH_LOG": "file, or stderr: gets a line of JSON for each compile, fallback and tune",
    "ASTITCH_OVERRIDE": "folder of hand-edited kernels, which run in the place of those of the same plan",
    "ASTITCH_STITCHES": "file of directives: what shares a kernel, what is left to XLA, which plan is taken",
}
"""The names and what they mean.  At most ten."""

REPLACED = {
    "ASTITCH_CHECK": "astitch.enable(check=True)",
    "ASTITCH_DETERMINISTIC": "the option deterministic= of astitch.enable and astitch.jit",
    "ASTITCH_ENGINE": "the option engine= of astitch.jit and tf_addon.enable (for the emulation also an empty "
    "CUDA_VISIBLE_DEVICES)",
    "ASTITCH_STITCH_LOOPS": "a directive (leave-loops or stitch-bodies, docs/directives.md)",
    "ASTITCH_TUNE": "the option tune= of astitch.enable and astitch.jit",
}
"""Names of earlier versions, and what stands in their place: what is an option of a call is no variable."""

_shared_by_program: list[Path] = []

DEBUG_LEVELS = 4
ENGINES = ("gpu", "xla", "executor", "host")


def list_set() -> dict[str, str]:
    """The names that are set, and to what."""
    return {name: value for name in NAMES if (value := _read(name))}


def cache_dir() -> Path:
    """Where caches live, whether or not the folder exists; among the temporary files for a user without a home."""
    own = _read("ASTITCH_CACHE_DIR").split(os.pathsep)[0]
    if own:
        return Path(own)
    try:
        folder = Path.home() / ".cache" / "astitch"
    except RuntimeError:  # a container's user, who is in no list
        folder = None
    if folder is not None and _can_be_made(folder):
        return folder
    return Path(tempfile.gettempdir()) / f"astitch-{os.geteuid()}"


def _can_be_made(folder: Path) -> bool:
    """Is there a folder that this user may read, or may one be made?  A container's user may have the home of another,
    or one that does not exist."""
    for place in (folder, *folder.parents):
        if os.path.lexists(place):
            needed = os.R_OK | os.X_OK if place == folder else os.W_OK | os.X_OK
            return os.access(place, needed, effective_ids=True)
    return False


def shared_cache_dirs() -> tuple[Path, ...]:
    """Folders of caches that others fill, and that are only read: of the environment, then of the program."""
    _, *shared = _read("ASTITCH_CACHE_DIR").split(os.pathsep)
    return (*(Path(folder) for folder in shared if folder), *_shared_by_program)


def share_cache(folder: Path) -> None:
    """One more folder of caches that is only read, from now on."""
    if folder not in _shared_by_program:
        _shared_by_program.append(folder)


def debug_level() -> int:
    """0 (silent) to 4.  Raises InvalidOption."""
    given = _read("ASTITCH_DEBUG")
    if not given:
        return 0
    if not given.isdecimal() or int(given) > DEBUG_LEVELS:
        raise _invalid("ASTITCH_DEBUG", given)
    return int(given)


def dump_dir() -> Path | None:
    """Where each compilation by astitch.jit is written; None to write nothing."""
    given = _read("ASTITCH_DUMP")
    return Path(given) if given else None


def shows() -> bool:
    """Is anything of a compilation printed, dumped or edited by hand, so that no earlier one will do?"""
    return bool(debug_level()) or dump_dir() is not None or override_dir() is not None


def log_file() -> str:
    """Where events are written: a file, or "stderr"; nothing: the empty string."""
    return _read("ASTITCH_LOG")


def override_dir() -> Path | None:
    """Where hand-edited kernels are; None: there are none."""
    given = _read("ASTITCH_OVERRIDE")
    return Path(given) if given else None


def stitches_file() -> Path | None:
    """The file of directives; None: there is none."""
    given = _read("ASTITCH_STITCHES")
    return Path(given) if given else None


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
