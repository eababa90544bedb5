"""The on-disk cache of compiled kernels: text but for names + headers + flags + NVRTC version -> cubin and resources.

Takes a Request, hands on the CompiledKernel that an earlier process made of it, or compiles and keeps it.
The idea: one file an entry, named by the hash of everything that the result depends on, in a private folder
(private_files.py); an entry that is not sealed under its own name does not exist.
"""

from __future__ import annotations

import functools
import hashlib
import json
import warnings
import weakref
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType

from astitch import options
from astitch.errors import KernelCompileError
from astitch.system.forks import ForkLock
from astitch.system.private_files import (
    ADVICE,
    PrivateFolder,
    read_shared,
    seal,
    unseal,
    warn_of_shared,
)
from astitch.toolchain import nvrtc
from astitch.toolchain.kernel_text import share_text
from astitch.toolchain.nvrtc import CompiledKernel, Request, Resources
from astitch.toolchain.override import replace_source, tell_refused

FORM = "astitch kernel 4"
SUFFIX = ".kernel"
LIMIT_BYTES = 512 * 1024 * 1024
"""Size that the cache shrinks back to, oldest use first."""

MEMORY_BYTES = 64 * 1024 * 1024
"""The most bytes of refused entries that a process keeps in memory; those that come first stay."""

LONGEST_WAIT_S = 120.0
"""For another process that compiles the same kernel."""

_LENGTH_BYTES = 4


def cache_folder() -> Path:
    """Where entries live: a folder of their own in the cache's, so that only it need be private."""
    return options.cache_dir() / "kernels"


def key_of(request: Request, nvrtc_version: tuple[int, int]) -> str:
    """Hash of all that decides the cubin.  Each part goes in with its length, so that no two sets of parts agree.

    Of the text its form: what the kernel and its variables are called decides nothing.
    """
    headers = nvrtc.read_headers()
    parts = [share_text(request.source).form, nvrtc.show_version(nvrtc_version), *request.flags]
    parts += [part for name in sorted(headers) for part in (name, headers[name])]
    digest = hashlib.sha256(FORM.encode())
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def pack_kernel(kernel: CompiledKernel) -> bytes:
    """An entry's content: length of the JSON header, header, cubin, PTX."""
    header = json.dumps(
        {
            "kernels": {name: asdict(used) for name, used in kernel.kernels.items()},
            "log": kernel.log,
            "nvrtc_version": list(kernel.nvrtc_version),
            "cubin_bytes": len(kernel.cubin),
            "ptx_bytes": len(kernel.ptx),
        },
        sort_keys=True,
    ).encode()
    return len(header).to_bytes(_LENGTH_BYTES, "little") + header + kernel.cubin + kernel.ptx


def unpack_kernel(body: bytes) -> CompiledKernel:
    """The kernel of an entry's content, which is as it was packed."""
    split = _LENGTH_BYTES + int.from_bytes(body[:_LENGTH_BYTES], "little")
    header = json.loads(body[_LENGTH_BYTES:split])
    end = split + header["cubin_bytes"]
    major, minor = header["nvrtc_version"]
    return CompiledKernel(
        cubin=body[split:end],
        ptx=body[end : end + header["ptx_bytes"]],
        kernels=MappingProxyType(
            {name: Resources(**used) for name, used in header["kernels"].items()}
        ),
        log=header["log"],
        nvrtc_version=(major, minor),
    )


class ByteCache:
    """Entries in one private folder, shared by any number of processes and threads.

    What it lacks is looked for in the shared folders that ASTITCH_CACHE_DIR names after it.
    Where the folder cannot be used (read-only, full, open to others) what is stored is kept for this process alone.
    The first time that happens a RuntimeWarning says why.  suffix: of the entries' file names.
    """

    form: str
    """What the entries are, and the version of their format: one of another form does not exist."""

    lost = "the next process compiles its kernels anew"

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES, suffix: str = SUFFIX) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.suffix = suffix
        self._files = PrivateFolder(folder)
        self._warned = False
        self._refused: dict[str, bytes] = {}
        self._lock = ForkLock()

    def load_bytes(self, key: str) -> bytes | None:
        """What is kept under `key`; None where there is nothing, or nothing whole.  Marks the entry as used now."""
        if key in self._refused:
            return self._refused[key]
        try:
            data = self._files.read(key + self.suffix)
        except FileNotFoundError:
            return self._load_shared(key)
        except OSError as error:
            self._warn(error)
            return self._load_shared(key)
        return unseal(data, self.form, key)

    def _load_shared(self, key: str) -> bytes | None:
        """What is kept under a key in the folders that are only read."""
        if self.folder.parent != options.cache_dir():
            return None
        for shared in options.shared_cache_dirs():
            try:
                data = read_shared(shared, self.folder.name, key + self.suffix)
            except FileNotFoundError:
                continue
            except OSError as error:
                warn_of_shared(shared, error)
                continue
            if (content := unseal(data, self.form, key)) is not None:
                return content
        return None

    def store_bytes(self, key: str, data: bytes) -> None:
        """Keep `data` under `key`, replacing what is there, and shrink the cache to its limit."""
        try:
            self._files.write(key + self.suffix, seal(data, self.form, key))
            self._shrink()
        except OSError as error:
            self._warn(error)
            self._keep(key, data)

    def list_keys(self) -> list[str]:
        """The keys of what is kept, not of what is in shared folders."""
        try:
            entries = self._files.list_entries(self.suffix)
        except OSError:
            return []
        return sorted(entry.name.removesuffix(self.suffix) for entry in entries)

    def turn(self, key: str, longest_s: float = LONGEST_WAIT_S) -> AbstractContextManager[None]:
        """For what makes an entry: processes that want the same one wait for the first, and then find it.

        The entry is to be looked for again inside.
        """
        return self._files.turn(key, longest_s)

    def _keep(self, key: str, data: bytes) -> None:
        """Keeps in memory what the folder refuses: a kernel is looked for when it is observed and again when it is
        loaded."""
        with self._lock:
            if sum(map(len, self._refused.values())) + len(data) <= MEMORY_BYTES:
                self._refused[key] = data

    def _shrink(self) -> None:
        """Remove the entries used longest ago until the rest fits."""
        entries = self._files.list_entries(self.suffix)
        excess = sum(entry.bytes for entry in entries) - self.limit_bytes
        old = []
        for entry in sorted(entries, key=lambda entry: entry.used):
            if excess <= 0:
                break
            old.append(entry.name)
            excess -= entry.bytes
        if old:
            self._files.remove(old)

    def _warn(self, error: OSError) -> None:
        with self._lock:
            warned, self._warned = self._warned, True
        if not warned:
            warnings.warn(
                f"kernel cache {self.folder} is not used: {error}\n  {self.lost}; {ADVICE}",
                RuntimeWarning,
                stacklevel=5,
            )


class KernelCache(ByteCache):
    """Compiled kernels by the hash of what they are made from."""

    form = FORM

    def load(self, key: str) -> CompiledKernel | None:
        """The kernel kept under `key`, or None where there is none or its entry is damaged."""
        data = self.load_bytes(key)
        return None if data is None else unpack_kernel(data)

    def store(self, key: str, kernel: CompiledKernel) -> None:
        """Keep `kernel` under `key`, replacing what is there, and shrink the cache to its limit."""
        self.store_bytes(key, pack_kernel(kernel))


@functools.cache
def _cache_at(folder: Path) -> KernelCache:
    """One cache a folder, so that its warning comes once a process."""
    return KernelCache(folder)


def compile_cached(request: Request, *, cache: KernelCache | None = None) -> CompiledKernel:
    """What nvrtc.compile_request gives for `request`, from the cache where it is there.

    The cubin and the PTX are those of all texts of one form: `symbols` has the names of the kernels in them.
    A hand-edited text (override.py) comes in the place of the request's, if the compiler takes it.
    cache: the one at cache_folder() when not given.  Raises KernelCompileError.
    """
    edited = replace_source(request.source)
    if edited is not request.source:
        try:
            return _compile_cached(replace(request, source=edited), cache)
        except KernelCompileError as error:
            tell_refused(request.source, error)
    return _compile_cached(request, cache)


def _compile_cached(request: Request, cache: KernelCache | None) -> CompiledKernel:
    cache = cache or _cache_at(cache_folder())
    shared = share_text(request.source)
    key = key_of(request, nvrtc.choose_nvrtc(request.arch).nvrtc.version)
    with _turn_of(key):
        kernel = cache.load(key)
        if kernel is None:
            with cache.turn(key):
                kernel = cache.load(key)
                if kernel is None:
                    kernel = nvrtc.compile_request(replace(request, source=shared.source))
                    cache.store(key, kernel)
    names = {symbol: name for name, symbol in shared.symbols.items()}
    kernels = {names.get(symbol, symbol): used for symbol, used in kernel.kernels.items()}
    return replace(kernel, kernels=MappingProxyType(kernels), symbols=shared.symbols)


_turns: weakref.WeakValueDictionary[str, ForkLock] = weakref.WeakValueDictionary()
_turns_lock = ForkLock()


def _turn_of(key: str) -> ForkLock:
    """Held by the thread that compiles an entry, so that others of the same form find it in the cache."""
    with _turns_lock:
        return _turns.setdefault(key, ForkLock())
