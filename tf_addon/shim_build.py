"""Builds the shim, the library by which TensorFlow hands its functions to astitch.

Takes the TensorFlow that is installed, hands on the path of a library that fits it.  It came with the package, is in
the user's cache, or is made now by g++ from `shim/astitch_tf.cc` and the headers in TensorFlow's wheel.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from astitch.options import cache_dir
from astitch.system.kept_libraries import (
    FORM,
    compile_apart,
    load_library,
    refuse_full_disk,
    run_compiler,
)
from astitch.system.private_files import ADVICE, PrivateFolder
from tf_addon.errors import ShimUnavailable

SOURCE = Path(__file__).parent / "shim" / "astitch_tf.cc"
STANDINS = Path(__file__).parent / "shim" / "include"
PREBUILT = Path(__file__).parent / "prebuilt"

FIRST, LAST = (2, 18), (2, 21)
"""The versions of TensorFlow whose headers and classes the shim is written for and was built against."""

LONGEST_WAIT_S = 900.0
"""For another process that builds the shim."""

WITHOUT = "  or decorate with @tf_addon.function(tier='python'), which needs no compiler"

FLAGS = ("-O1", "-fPIC", "-shared", "-w", "-fvisibility=hidden")
LIBRARIES = (
    "-Wl,--no-as-needed",
    "-l:libtensorflow_framework.so.2",
    "-l:libtensorflow_cc.so.2",
)
INCLUDES = ("external/highwayhash", "external/farmhash_archive/src", "tensorflow/compiler")
"""Folders in the wheel's include folder that some versions' headers leave out of their paths."""


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
    digest.update(repr((FORM, target.version, target.flags, FLAGS, INCLUDES, LIBRARIES)).encode())
    return f"astitch_tf-{target.version}-{digest.hexdigest()[:16]}.so"


def open_library(say: Callable[[str], None] | None = None) -> ctypes.CDLL:
    """The library for the TensorFlow that is installed, loaded.  It came with the package, or is in the user's cache,
    where it is built if it is missing.

    say: gets a line when it is built and one when it is done; standard error if not given.  Raises ShimUnavailable.
    """
    target = find_target()
    name = name_library(target)
    try:
        if (PREBUILT / name).exists():
            return ctypes.CDLL(str(PREBUILT / name))
        folder = find_cache()
        return load_library(
            folder,
            name,
            lambda: build_library(target, folder.path / name, say or _say),
            longest_s=LONGEST_WAIT_S,
        )
    except OSError as error:
        raise ShimUnavailable(
            f"tf_addon: the shim does not load: {error}\n"
            f"  it was built for another TensorFlow: remove {name} and try again\n{WITHOUT}"
        ) from error


def find_cache() -> PrivateFolder:
    """The folder of the libraries that were built here."""
    return PrivateFolder(cache_dir() / "tensorflow")


def build_library(target: Target, library: Path, say: Callable[[str], None]) -> bytes:
    """The compiled shim; takes half a minute and 2 GB of memory.

    library: where it will be.  say: gets a line when it begins and one when it is done.  Raises ShimUnavailable without
    g++, where it refuses, with its words, and without room.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise ShimUnavailable(
            "tf_addon: TensorFlow's functions are taken over by a small library that has to be compiled once, and "
            f"g++ was not found on PATH\n  install it (Debian: apt-get install g++)\n{WITHOUT}"
        )
    say(
        f"tf_addon: building the shim for TensorFlow {target.version}, once, about half a minute: {library}"
    )
    start = time.perf_counter()

    def build(folder: Path) -> bytes:
        files = [str(SOURCE), "-o", str(folder / "shim.so")]
        links = [f"-L{target.folder}", *LIBRARIES]
        _run([compiler, *compile_flags(target), *files, *links], target, folder)
        return (folder / "shim.so").read_bytes()

    try:
        content = compile_apart(build)
    except OSError as error:
        raise ShimUnavailable(
            f"tf_addon: the shim cannot be built: {error}\n"
            f"  make room in the folder of temporary files, or point TMPDIR at another one; {ADVICE}\n{WITHOUT}"
        ) from error
    say(f"tf_addon: built in {time.perf_counter() - start:.0f} s")
    return content


def compile_flags(target: Target) -> list[str]:
    """How g++ compiles it.  Standins come last: they are for what a wheel lacks."""
    include = target.folder / "include"
    includes = [f"-I{include}", *(f"-I{include / part}" for part in INCLUDES)]
    return [*target.flags, *FLAGS, *includes, "-idirafter", str(STANDINS)]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _run(command: Sequence[str], target: Target, folder: Path) -> None:
    result = run_compiler(command, folder)
    if result.returncode:
        refuse_full_disk(result.stderr)
        lines = result.stderr.splitlines()
        first = next((i for i, line in enumerate(lines) if "error" in line), 0)
        shown = (
            "\n  ".join(lines[first : first + 8]) or f"g++ ended with status {result.returncode}"
        )
        raise ShimUnavailable(
            f"tf_addon: g++ cannot build the shim for TensorFlow {target.version}:\n  {shown}\n"
            f"  it needs g++ 9 or newer and 2 GB of memory\n{WITHOUT}"
        )


def main() -> int:
    """`make tf-shim`: builds the library into the package, from where wheels take it."""
    try:
        target = find_target()
        PREBUILT.mkdir(exist_ok=True)
        library = PREBUILT / name_library(target)
        if not library.exists():
            partial = library.with_suffix(f".{os.getpid()}.tmp")
            partial.write_bytes(build_library(target, library, _say))
            os.replace(partial, library)
        for other in PREBUILT.glob(f"astitch_tf-{target.version}-*.so"):
            if other != library:  # of an earlier source
                other.unlink()
    except (ShimUnavailable, OSError, ImportError) as error:
        print(error, file=sys.stderr)
        return 2
    print(library)
    return 0


if __name__ == "__main__":
    sys.exit(main())
