"""The on-disk cache of whole programs: module + device + astitch itself -> the program with its kernels.

Takes what a compilation depends on, hands on what an earlier process made of it: plans are not made again, and no
kernel is compiled.  A program that may depend on more is not kept.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from pathlib import Path

from astitch import options
from astitch.device.gpu import Gpu
from astitch.directives import fingerprint as fingerprint_directives
from astitch.graph.ir import Graph
from astitch.hlo import schema
from astitch.hlo.opaque import discard_unread_fields
from astitch.search.travelling_plans import fingerprint as fingerprint_plans
from astitch.toolchain import nvrtc
from astitch.toolchain.kernel_cache import ByteCache

FORM = "astitch module 2"
SUFFIX = ".module"
SOURCES = ("*.py", "*.cuh", "*.h", "*.cpp")

LONGEST_WAIT_S = 300.0
"""For another process that compiles the same module."""


def key_of(
    hlo: bytes,
    graph: Graph,
    donated: Sequence[bool],
    gpu: Gpu,
    *,
    strict: bool | float,
    code: str,
    stitch: str = "",
) -> str | None:
    """Hash of all that decides the program; None where something else does.

    hlo, graph: the module and the same as a graph.  donated: which of its parameters.  code: as what the program holds
    its kernels.  stitch: directives.  A custom call may hold addresses of this process.
    What is printed or dumped, and what is measured, wants a compilation.
    """
    told = fingerprint_directives(stitch), fingerprint_plans()
    if options.shows() or _calls_out(graph):
        return None
    import jax

    parts: list[bytes] = [_what_is_read(hlo), fingerprint()]
    switches = (tuple(donated), strict, code, told)
    compiler = nvrtc.choose_nvrtc(gpu.arch).nvrtc.version
    versions = (jax.__version__, compiler)
    parts += [repr(part).encode() for part in (astuple(gpu), switches, versions)]
    digest = hashlib.sha256(FORM.encode())
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _what_is_read(hlo: bytes) -> bytes:
    """The fields of a module that the importer reads, but for its number among what this process has traced."""
    module = schema.HloModuleProto.FromString(hlo)
    discard_unread_fields(module)
    module.ClearField("id")
    module.ClearField("schedule")
    schema.sort_maps(module)
    return bytes(module.SerializeToString(deterministic=True))


def _calls_out(graph: Graph) -> bool:
    return any(node.op == "custom-call" or any(map(_calls_out, node.regions)) for node in graph)


@functools.cache
def fingerprint() -> bytes:
    """Hash of astitch's own sources: another version may plan otherwise."""
    return hash_sources(Path(__file__).parents[1])


def hash_sources(folder: Path) -> bytes:
    digest = hashlib.sha256()
    files: Iterable[Path] = (file for pattern in SOURCES for file in folder.rglob(pattern))
    for file in sorted(files):
        data = file.read_bytes()
        name = file.relative_to(folder).as_posix().encode()
        digest.update(len(name).to_bytes(8, "little") + name)
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


class ModuleCache(ByteCache):
    """Programs as StableHLO by the hash of what they are made from."""

    lost = "the next process plans and compiles anew"

    form = FORM

    def load(self, key: str) -> bytes | None:
        """The program kept under `key`, or None where there is none or its entry is damaged."""
        return self.load_bytes(key)

    def store(self, key: str, module: bytes) -> None:
        """Keep `module` under `key`, replacing what is there, and shrink the cache to its limit."""
        self.store_bytes(key, module)


@functools.cache
def cache_at(folder: Path) -> ModuleCache:
    """The one of this process, so that what it says, it says once."""
    return ModuleCache(folder, suffix=SUFFIX)


def open_cache() -> ModuleCache:
    """The cache of modules: beside the kernels, in a folder of its own."""
    return cache_at(options.cache_dir() / "modules")
