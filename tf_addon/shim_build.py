"""Builds the shim, the library by which TensorFlow hands its functions to astitch.

Takes the TensorFlow that is installed, hands on the path of a library that fits it: one that came with the package,
one from the user's cache, or one that g++ makes now from `shim/astitch_tf.cc` and the headers in TensorFlow's wheel.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from astitch.emulate import is_sealed, publish
from astitch.errors import KernelCompileError
from astitch.options import cache_dir
from tf_addon.errors import ShimUnavailable

SOURCE = Path(__file__).parent / "shim" / "astitch_tf.cc"
STANDINS = Path(__file__).parent / "shim" / "include"
PREBUILT = Path(__file__).parent / "prebuilt"

FIRST, LAST = (2, 18), (2, 21)
"""The versions of TensorFlow whose headers and classes the shim is written for and was built against."""

WITHOUT = "  or decorate with @tf_addon.function(tier='python'), which needs no compiler"

FLAGS = ("-O1", "-fPIC", "-shared", "-w", "-fvisibility=hidden")
LIBRARIES = (
    "-Wl,--no-as-needed",
    "-l:libtensorflow_framework.so.2",
    "-l:libtensorflow_cc.so.2",
)
INCLUDES = ("external/highwayhash", "external/farmhash_archive/src", "tensorflow/compiler")
"""In the wheel's include folder: what some versions' headers name without these prefixes."""


@dataclass(frozen=True, slots=True)
class Target:
    """A TensorFlow to build for.  folder: of its package.  flags: those that it was compiled with."""

    version: str
    folder: Path
    flags: tuple[str, ...]

    @property
    def minor(self) -> tuple[int, int]:
        """Such as (2, 21)."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


def find_target() -> Target:
    """The TensorFlow that `import tensorflow` gives.  Raises ShimUnavailable for a version that is not known, and
    ImportError where there is none."""
    try:
        import tensorflow as tf
    except ImportError as error:
        error.msg = (
            f"tf_addon: {error.msg}\n  install astitch[tensorflow], or astitch[tensorflow-cpu]"
        )
        raise
    flags = [flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("-I")]
    target = Target(tf.__version__, Path(tf.__file__).parent, tuple(flags))
    if not FIRST <= target.minor <= LAST:
        raise ShimUnavailable(
            f"tf_addon: TensorFlow {target.version} is not known; the shim is written for "
            f"{FIRST[0]}.{FIRST[1]} to {LAST[0]}.{LAST[1]}\n  install one of these\n{WITHOUT}"
        )
    return target


def name_library(target: Target) -> str:
    """The file name of the library: by all that it is made of."""
    digest = hashlib.sha256()
    for path in (SOURCE, *sorted(STANDINS.rglob("*.h"))):
        digest.update(path.read_bytes())
    digest.update(repr((target.version, target.flags, FLAGS, INCLUDES, LIBRARIES)).encode())
    return f"astitch_tf-{target.version}-{digest.hexdigest()[:16]}.so"


def find_library(target: Target) -> Path | None:
    """The library for this TensorFlow if there is one already: in the package, or whole in the user's cache."""
    name = name_library(target)
    if (PREBUILT / name).exists():
        return PREBUILT / name
    cached = _cache_folder() / name
    return cached if is_sealed(cached) else None


def build_library(target: Target, folder: Path, say: Callable[[str], None]) -> Path:
    """Compiles the shim into `folder`; takes half a minute and 2 GB of memory.

    say: gets a line when it begins and one when it is done.  Raises ShimUnavailable without g++, and with its words
    where it refuses.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise ShimUnavailable(
            "tf_addon: TensorFlow's functions are taken over by a small library that has to be compiled once, and "
            f"g++ was not found on PATH\n  install it (Debian: apt-get install g++)\n{WITHOUT}"
        )
    library = folder / name_library(target)
    say(
        f"tf_addon: building the shim for TensorFlow {target.version}, once, about half a minute: {library}"
    )
    start = time.perf_counter()
    with _turn(folder), tempfile.TemporaryDirectory(dir=folder, prefix="build-") as name:
        if is_sealed(library):  # another process has made it meanwhile
            return library
        built = Path(name) / "shim.so"
        try:
            files = [str(SOURCE), "-o", str(built)]
            links = [f"-L{target.folder}", *LIBRARIES]
            _run([compiler, *compile_flags(target), *files, *links], target)
            publish(built, library)
        except OSError as error:
            raise ShimUnavailable(
                f"tf_addon: the shim cannot be built in {folder}: {error}\n"
                f"  set ASTITCH_CACHE_DIR to a folder with room\n{WITHOUT}"
            ) from error
    say(f"tf_addon: built in {time.perf_counter() - start:.0f} s")
    return library


def compile_flags(target: Target) -> list[str]:
    """How g++ compiles it.  Standins come last: they are for what a wheel lacks."""
    include = target.folder / "include"
    includes = [f"-I{include}", *(f"-I{include / part}" for part in INCLUDES)]
    return [*target.flags, *FLAGS, *includes, "-idirafter", str(STANDINS)]


def get_library(say: Callable[[str], None] | None = None) -> Path:
    """The library for the TensorFlow that is installed, built if there is none.  Raises ShimUnavailable.

    say: progress; standard error if not given.
    """
    target = find_target()
    found = find_library(target)
    if found is not None:
        return found
    folder = _cache_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ShimUnavailable(
            f"tf_addon: the cache folder {folder} cannot be made: {error}\n"
            f"  set ASTITCH_CACHE_DIR to a folder that can be written\n{WITHOUT}"
        ) from error
    return build_library(target, folder, say or _say)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _run(command: Sequence[str], target: Target) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = result.stderr.splitlines()
        first = next((i for i, line in enumerate(lines) if "error" in line), 0)
        shown = (
            "\n  ".join(lines[first : first + 8]) or f"g++ ended with status {result.returncode}"
        )
        raise ShimUnavailable(
            f"tf_addon: g++ cannot build the shim for TensorFlow {target.version}:\n  {shown}\n"
            f"  it needs g++ 9 or newer and 2 GB of memory\n{WITHOUT}"
        )


def _cache_folder() -> Path:
    return cache_dir() / "tensorflow"


class _turn:  # noqa: N801 - reads as a word of its own in `with`
    """Held by the process that builds into a folder: others wait, and find what it built."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "building"

    def __enter__(self) -> None:
        self._file = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


def main() -> int:
    """`make tf-shim`: builds the library into the package, from where wheels take it."""
    try:
        target = find_target()
        PREBUILT.mkdir(exist_ok=True)
        library = PREBUILT / name_library(target)
        if not library.exists():
            build_library(target, PREBUILT, _say)
    except (ShimUnavailable, KernelCompileError, ImportError) as error:
        print(error, file=sys.stderr)
        return 2
    print(library)
    return 0


if __name__ == "__main__":
    sys.exit(main())
