"""Libraries that a compiler of the host makes once, and every later process loads from a private folder.

Takes a library's name, a hash of all its sources, and a function that makes it; hands on the library, loaded.  A folder
that cannot be used costs the next process the compilation: the library is then loaded from memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import subprocess
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from astitch import options
from astitch.system.forks import fork_waits
from astitch.system.private_files import (
    ADVICE,
    PrivateFolder,
    load_from_memory,
    read_shared,
    seal,
    temporary_folder,
    unseal,
    warn_of_shared,
)

FORM = "astitch library 2"

MEMORY_FOLDER = "/dev/shm"
"""Where a compiler may work if the disk is full."""

_told: set[Path] = set()


def load_library(
    folder: PrivateFolder,
    name: str,
    make: Callable[[], bytes],
    *,
    longest_s: float,
    mode: int = ctypes.DEFAULT_MODE,
) -> ctypes.CDLL:
    """The library kept under a name, made by `make` if there is none; of several processes one makes it.

    name: a hash of all that it is made of is in it.  longest_s: seconds to wait for another process that makes it.
    Where the folder cannot be used a RuntimeWarning says so, once a process.  Raises what `make` raises, and OSError
    for a library that the loader refuses.
    """
    if (library := find_library(folder, name, mode)) is not None:
        return library
    with folder.turn(name, longest_s):
        if (library := find_library(folder, name, mode)) is not None:
            return library
        content = make()
        try:
            folder.write(name, seal(content, FORM, name))
            folder.list_entries(name)  # removes what crashed writers left
        except OSError as error:
            _tell(folder, error)
    library = find_library(folder, name, mode)
    return load_from_memory(content, mode) if library is None else library


def find_library(
    folder: PrivateFolder, name: str, mode: int = ctypes.DEFAULT_MODE
) -> ctypes.CDLL | None:
    """The library kept under a name, loaded; None where there is none that is whole and private.

    What a folder of the cache lacks is looked for in those that are only read.
    """
    try:
        return folder.load_library(name, FORM, mode)
    except FileNotFoundError:
        pass
    except OSError as error:
        _tell(folder, error)
    if folder.path.parent != options.cache_dir():
        return None
    return _find_shared(folder.path.name, name, mode)


def _find_shared(kind: str, name: str, mode: int) -> ctypes.CDLL | None:
    for shared in options.shared_cache_dirs():
        try:
            content = unseal(read_shared(shared, kind, name), FORM, name)
        except FileNotFoundError:
            continue
        except OSError as error:
            warn_of_shared(shared, error)
            continue
        if content is not None:
            return load_from_memory(content, mode)
    return None


def is_whole(path: Path) -> bool:
    """Is the file a library as it was written, under the name that it has?"""
    try:
        return unseal(path.read_bytes(), FORM, path.name) is not None
    except OSError:
        return False


def _tell(folder: PrivateFolder, error: OSError) -> None:
    if folder.path not in _told:
        _told.add(folder.path)
        warnings.warn(
            f"the cache of compiled libraries {folder.path} is not used: {error}\n"
            f"  the next process compiles them anew; {ADVICE}",
            RuntimeWarning,
            stacklevel=4,
        )


# ---- compilers -------------------------------------------------------------------------------------------------------


def run_compiler(
    command: Sequence[str], folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """A compiler's status and words, in English; it works in `folder`, and keeps its own files there.

    A Ctrl-C at the terminal does not reach it.  A handler of this process may go on, and a killed compiler would look
    like one that refuses the text.
    """
    own: Mapping[str, str] = {} if folder is None else {"TMPDIR": str(folder)}
    with fork_waits():
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=folder,
            env={**os.environ, "LC_ALL": "C", **own},
            process_group=0,
        )
    with process:
        try:
            out, words = process.communicate()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, words)


def compile_apart(build: Callable[[Path], bytes]) -> bytes:
    """What `build` makes in a temporary folder; where the disk is full, in one that lies in memory.

    Raises OSError where there is room in neither, and what `build` raises.
    """
    try:
        with temporary_folder() as folder:
            return build(folder)
    except OSError as error:
        try:
            with temporary_folder(MEMORY_FOLDER) as folder:
                return build(folder)
        except OSError:
            raise error from None


def refuse_full_disk(words: str) -> None:
    """Raises OSError for what a compiler says of a disk without room."""
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        if os.strerror(number) in words:
            raise OSError(number, os.strerror(number), "of the compiler")
