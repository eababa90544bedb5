"""Hand-edited kernels: files in the folder of ASTITCH_OVERRIDE run in the place of what astitch emits.

Takes the text of a kernel, hands on the text to compile.  A file belongs to the text whose hash its name ends with: so
it is used for the plan that it was written for, and for no other.  Kernels without a file get one, to be edited.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from pathlib import Path

from astitch import options
from astitch.system.forks import ForkLock

HEAD = """\
// Edit what is below: with ASTITCH_OVERRIDE={folder} it runs in this kernel's place.
// The name, the parameters and the launch stay: {launch}.
"""

_KEY = 12
_ENTRY = re.compile(r'extern "C" __global__[^{;]*?(\w+)\s*\(([^{;]*)\)\s*\{', re.DOTALL)


class OverrideWarning(UserWarning):
    """A hand-edited kernel runs, or cannot."""


_told: set[str] = set()
_lock = ForkLock()


def key_of(source: str) -> str:
    """The signature of a plan: a hash of the text that is emitted for it."""
    return hashlib.sha256(source.encode()).hexdigest()[:_KEY]


def offer(program: str, name: str, source: str, launch: str) -> None:
    """Writes the text of a kernel into the folder, if there is one and it has no such file yet.  launch: in words."""
    folder = options.override_dir()
    if folder is None or _find_file(folder, source) is not None:
        return
    words = re.sub(r"[^\w.-]", "_", program)[:60]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{words}.{name}-{key_of(source)}.cu"
        file.write_text(HEAD.format(folder=folder, launch=launch) + source, "utf-8")
    except OSError as error:
        _tell(
            f"no kernel is written to {folder}: {error}\n  ASTITCH_OVERRIDE names a folder of yours"
        )


def replace_source(source: str) -> str:
    """The hand-edited text of a kernel, where there is one with the same name and parameters; else the text itself."""
    folder = options.override_dir()
    file = None if folder is None else _find_file(folder, source)
    if file is None:
        return source
    try:
        edited = _strip_head(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        _tell(f"{file} is not used: {error}")
        return source
    if edited == source:
        return source
    ours, theirs = (_list_entries(text) for text in (source, edited))
    if ours != theirs:
        _tell(
            f"{file} is not used: it declares {'; '.join(theirs) or 'no kernel'}\n"
            f"  the plan launches {'; '.join(ours)}"
        )
        return source
    _tell(f"a hand-edited kernel runs: {file}")
    return edited


def tell_refused(source: str, error: Exception) -> None:
    """Says that the compiler refuses the hand-edited text of a kernel, and that the emitted one runs."""
    folder = options.override_dir()
    file = _find_file(folder, source) if folder else None
    _tell(f"{file} is not used: {error}")


def fingerprint() -> str:
    """A hash of the folder's kernels, for the keys of caches; the empty string: there is no folder."""
    folder = options.override_dir()
    if folder is None:
        return ""
    digest = hashlib.sha256(str(folder).encode())
    for file in sorted(folder.glob("*.cu")):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _find_file(folder: Path, source: str) -> Path | None:
    return next(iter(sorted(folder.glob(f"*-{key_of(source)}.cu"))), None)


def _strip_head(text: str) -> str:
    lines = text.splitlines(keepends=True)
    count = HEAD.count("\n")
    has_head = lines and lines[0].startswith("// Edit what is below")
    return "".join(lines[count:]) if has_head else text


def _list_entries(text: str) -> list[str]:
    """The kernels that a text declares, without line breaks and repeated spaces."""
    return [f"{name}({' '.join(given.split())})" for name, given in _ENTRY.findall(text)]


def _tell(text: str) -> None:
    """Once in a process each."""
    with _lock:
        new = text not in _told
        _told.add(text)
    if new:
        warnings.warn(f"astitch: {text}", OverrideWarning, stacklevel=4)
