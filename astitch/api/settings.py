"""How programs are to be stitched: what a user says for a process, a block or a function, and marks that carry it.

A function's settings travel in marks on its instructions (xla/marks.py), the others in a context of JAX's.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from astitch.directives import fingerprint as fingerprint_directives
from astitch.errors import InvalidOption
from astitch.system.forks import once
from astitch.toolchain.override import fingerprint as fingerprint_overrides

OFF = "off"
"""What holds where astitch was disabled."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How programs are stitched.

    gpu: the name of a preset for GPUs that are not here; None: the device that a program is compiled for.
    tune, strict: see astitch.jit; of strict a number is the least share of the memory-intensive time.
    check, attention: see astitch.enable.  stitch: directives, in one form.
    """

    gpu: str | None = None
    tune: bool | None = None
    strict: bool | float = False
    check: bool = False
    attention: bool = True
    stitch: str = ""


@functools.cache
@once
def context() -> Any:
    """The value of JAX's that holds Settings, OFF, or None where nobody has said anything.

    It is global, or of a thread; JAX's caches in memory tell functions apart by it.
    """
    import jax

    make: Any = jax.make_user_context  # it has no types
    return make(None)


def current() -> Settings | str | None:
    """What holds in this thread: Settings, OFF, or None where nobody has said anything."""
    if not context.cache_info().currsize:
        return None
    value: Settings | str | None = context().value
    return value


def check_strict(strict: bool | float, where: str) -> None:
    """Raises InvalidOption for what is neither a truth value nor a share."""
    if isinstance(strict, bool):
        return
    if not isinstance(strict, (int, float)) or not 0 < strict <= 1:
        raise InvalidOption(
            f"{where}: strict={strict!r} is not known\n"
            "  it is True, False, or the share of the memory-intensive time that must be stitched: 0.9"
        )


def write_mark(settings: Settings) -> str:
    """How a function is to be stitched, as the value of its mark.

    The sources of astitch and its options are in it: so JAX's caches tell what other versions made apart.
    """
    from astitch.xla.module_cache import fingerprint

    made_by = hashlib.sha256(b"".join([fingerprint(), repr(switches()).encode()])).hexdigest()[:16]
    stitch = base64.urlsafe_b64encode(settings.stitch.encode()).decode()
    told = f" stitch={stitch}" if stitch else ""
    return f"{made_by} tune={settings.tune} strict={settings.strict}{told}"


def switches() -> tuple[str, str, str]:
    """What the environment says that decides what is made of a program."""
    from astitch.search.travelling_plans import fingerprint as fingerprint_plans  # imports NumPy

    return fingerprint_directives(), fingerprint_overrides(), fingerprint_plans()


def read_settings(marks: Iterable[str]) -> Settings:
    """The settings of a module with marked functions: it gets what one of them asks for. marks: the values of the
    marks."""
    found = list(marks)
    asked = [wish for wish in (True, False) if any(f" tune={wish}" in mark for mark in found)]
    tune = asked[0] if asked else None
    # A program around a strict function may hold what only XLA computes.
    told = (re.search(r" stitch=(\S+)", mark) for mark in found)
    texts = [base64.urlsafe_b64decode(match[1]).decode() for match in told if match]
    return Settings(tune=tune, stitch="\n[*]\n".join(dict.fromkeys(texts)))


def mark(fn: Callable[..., Any], settings: Settings) -> Callable[..., Any]:
    """The function with marks on its instructions, where the hook is there and nobody has said anything else."""

    @functools.wraps(fn)
    def marked(*args: Any, **kwargs: Any) -> Any:
        from astitch.api.enabling import install

        if current() is not None or not install():
            return fn(*args, **kwargs)
        from jax.experimental.xla_metadata import set_xla_metadata

        set_metadata: Any = set_xla_metadata  # it has no types
        with set_metadata(astitch=write_mark(settings)):
            return fn(*args, **kwargs)

    return marked
