"""Programs on disk: what one process planned the next one finds.

Takes a module's content and the device, hands on the program that an earlier process made of them.  Beside the module
the key has astitch and the add-on themselves, and the versions of what they compile with.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass
from pathlib import Path

from astitch import options
from astitch.device.gpu import Gpu
from astitch.directives import fingerprint as fingerprint_directives
from astitch.errors import KernelCompileError
from astitch.program.file import pack_program, unpack_program
from astitch.program.steps import Program
from astitch.search.travelling_plans import fingerprint as fingerprint_plans
from astitch.toolchain import nvrtc
from astitch.xla.module_cache import (
    LONGEST_WAIT_S,
    ModuleCache,
    cache_at,
    fingerprint,
    hash_sources,
)

log = logging.getLogger("tf_addon")


@dataclass(frozen=True, slots=True)
class Kept:
    """aliases: results that are the new values of parameters, both by number.

    stitched_us, left_us: projected memory-intensive time, in kernels and outside of them.
    """

    program: Program
    aliases: tuple[tuple[int, int], ...]
    stitched_us: float = 0.0
    left_us: float = 0.0


def key_of(content: bytes, gpu: Gpu, *, strict: bool) -> str | None:
    """Hash of all that decides a program; None where something else does.  content: the module without its names.

    What is printed or dumped, and what is measured, wants a compilation; a custom call may hold addresses of this
    process.
    """
    if options.shows() or b"custom-call" in content:
        return None
    import jax
    import jaxlib.version

    versions = (jax.__version__, jaxlib.version.__version__, _compiler_version(gpu))
    switches = (strict, fingerprint_directives(), fingerprint_plans(), *versions)
    parts = [content, fingerprint(), _own_sources(), repr(astuple(gpu)).encode()]
    digest = hashlib.sha256()
    for part in (*parts, repr(switches).encode()):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def load(key: str) -> Kept | None:
    """What is kept under a key."""
    data = _open_cache().load(key)
    if data is None:
        return None
    head, _, rest = data.partition(b"\n")
    program = unpack_program(rest)
    noted = json.loads(head)
    aliases = tuple((result, parameter) for result, parameter in noted["aliases"])
    if program is None:
        return None
    return Kept(program, aliases, noted["stitched_us"], noted["left_us"])


def store(key: str, kept: Kept) -> None:
    """For the next process; nothing is kept of a program with a part that has no written form."""
    try:
        packed = pack_program(kept.program)
    except TypeError as error:
        log.info("a program is not kept on disk: %s", error)
        return
    noted = {
        "aliases": kept.aliases,
        "stitched_us": kept.stitched_us,
        "left_us": kept.left_us,
    }
    head = json.dumps(noted).encode()
    _open_cache().store(key, head + b"\n" + packed)


def turn(key: str) -> AbstractContextManager[None]:
    """For what makes a program: of several processes one does.  It is to be looked for again inside."""
    return _open_cache().turn(key, LONGEST_WAIT_S)


def _open_cache() -> ModuleCache:
    return cache_at(options.cache_dir() / "programs")


@functools.cache
def _own_sources() -> bytes:
    return hash_sources(Path(__file__).parent)


def _compiler_version(gpu: Gpu) -> tuple[int, int] | None:
    try:
        return nvrtc.choose_nvrtc(gpu.arch).nvrtc.version
    except KernelCompileError:
        return None  # without one, plans are made without what it says
