"""The on-disk cache of compiled kernels: text but for names + headers + flags + NVRTC version -> cubin and resources.

Takes a Request, hands on the CompiledKernel that an earlier process made of it, or compiles and keeps it.
The idea: one file an entry, named by the hash of everything that the result depends on, written under another
name and moved into place; an entry that does not match its own checksum does not exist.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import stat
import tempfile
import threading
import time
import warnings
import weakref
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType

from astitch import nvrtc, options
from astitch.kernel_text import share_text
from astitch.nvrtc import CompiledKernel, Request, Resources

MAGIC = b"astitch kernel 2\n"
SUFFIX = ".kernel"
LIMIT_BYTES = 512 * 1024 * 1024
"""Size that the cache shrinks back to, oldest use first."""

MEMORY_BYTES = 64 * 1024 * 1024
"""What a process keeps in memory of entries that the folder did not take; the first come stay."""

_CHECKSUM_BYTES = hashlib.sha256().digest_size
_LENGTH_BYTES = 4
_ABANDONED_AFTER_S = 3600.0


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
    digest = hashlib.sha256(MAGIC)
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def pack_kernel(kernel: CompiledKernel) -> bytes:
    """An entry's bytes: magic, checksum of the rest, length of the JSON header, header, cubin, PTX."""
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
    body = len(header).to_bytes(_LENGTH_BYTES, "little") + header + kernel.cubin + kernel.ptx
    return MAGIC + hashlib.sha256(body).digest() + body


def unpack_kernel(data: bytes) -> CompiledKernel | None:
    """The kernel of an entry's bytes; None if they are truncated, damaged or of another version."""
    start = len(MAGIC) + _CHECKSUM_BYTES
    body = data[start:]
    if data[: len(MAGIC)] != MAGIC or hashlib.sha256(body).digest() != data[len(MAGIC) : start]:
        return None
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

    Where the folder cannot be used (read-only, full, someone else's) what is stored is kept for this process alone: the
    first time that happens a RuntimeWarning says why.  suffix: of the entries' file names.
    """

    lost = "the next process compiles its kernels anew"

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES, suffix: str = SUFFIX) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.suffix = suffix
        self._warned = False
        self._refused: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def load_bytes(self, key: str) -> bytes | None:
        """What is kept under `key`, or None.  Marks the entry as used now."""
        if key in self._refused:
            return self._refused[key]
        path = self._path(key)
        try:
            self._check_private()
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(error)
            return None
        try:
            os.utime(path)
        except OSError:
            pass  # a read-only cache still serves; it only forgets the order of use
        return data

    def store_bytes(self, key: str, data: bytes) -> None:
        """Keep `data` under `key`, replacing what is there, and shrink the cache to its limit."""
        temporary = ""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_private()
            descriptor, temporary = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.replace(temporary, self._path(key))
            temporary = ""
            self._shrink()
        except OSError as error:
            self._warn(error)
            self._keep(key, data)
        finally:
            if temporary:
                _remove(temporary)

    def _keep(self, key: str, data: bytes) -> None:
        """In memory what the folder refuses: a kernel is looked for when it is observed and again when it is loaded."""
        with self._lock:
            if sum(map(len, self._refused.values())) + len(data) <= MEMORY_BYTES:
                self._refused[key] = data

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{self.suffix}"

    def _check_private(self) -> None:
        """A cubin is code that this process will run: the folder must be ours, and nobody else may write to it."""
        status = os.stat(self.folder)
        if status.st_uid != os.geteuid():
            raise PermissionError(f"{self.folder} belongs to another user")
        if stat.S_IMODE(status.st_mode) & 0o022:
            os.chmod(self.folder, 0o700)

    def _shrink(self) -> None:
        """Remove the entries used longest ago until the rest fits, and what crashed writers left."""
        entries: list[tuple[float, int, str]] = []
        for file in os.scandir(self.folder):
            try:
                status = file.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # another process shrinks too
            if not stat.S_ISREG(status.st_mode):
                continue  # not ours
            if file.name.endswith(self.suffix):
                entries.append((status.st_mtime, status.st_size, file.path))
            elif file.name.endswith(".tmp") and time.time() - status.st_mtime > _ABANDONED_AFTER_S:
                _remove(file.path)
        excess = sum(size for _, size, _ in entries) - self.limit_bytes
        for _, size, path in sorted(entries):
            if excess <= 0:
                break
            _remove(path)
            excess -= size

    def _warn(self, error: OSError) -> None:
        with self._lock:
            warned, self._warned = self._warned, True
        if not warned:
            warnings.warn(
                f"kernel cache {self.folder} is not used: {error}\n"
                f"  {self.lost}; point ASTITCH_CACHE_DIR at a folder of your own with room",
                RuntimeWarning,
                stacklevel=5,
            )


def _remove(path: str) -> None:
    """Removes a file if it is still there and may go; if not, the cache is only larger than it should be."""
    try:
        os.unlink(path)
    except OSError:
        pass


class KernelCache(ByteCache):
    """Compiled kernels by the hash of what they are made from."""

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
    cache: the one at cache_folder() when not given.  Raises KernelCompileError.
    """
    cache = cache or _cache_at(cache_folder())
    shared = share_text(request.source)
    key = key_of(request, nvrtc.choose_nvrtc(request.arch).nvrtc.version)
    with _turn_of(key):
        kernel = cache.load(key)
        if kernel is None:
            kernel = nvrtc.compile_request(replace(request, source=shared.source))
            cache.store(key, kernel)
    names = {symbol: name for name, symbol in shared.symbols.items()}
    kernels = {names.get(symbol, symbol): used for symbol, used in kernel.kernels.items()}
    return replace(kernel, kernels=MappingProxyType(kernels), symbols=shared.symbols)


_turns: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()
_turns_lock = threading.Lock()


def _turn_of(key: str) -> threading.Lock:
    """Held by the thread that compiles an entry, so that others of the same form find it in the cache."""
    with _turns_lock:
        return _turns.setdefault(key, threading.Lock())
