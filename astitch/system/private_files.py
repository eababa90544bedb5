"""Files that astitch keeps: in folders that only this user may write, each checked before it is used.

Takes a folder and the names in it, hands on what an earlier process put there.  The idea: a folder and a file are
opened first and checked then, and all else is done through the descriptor.  So nobody can exchange what was checked.
Nothing that is there already has its mode changed, and no link is followed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import io
import itertools
import os
import shutil
import stat
import tempfile
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from astitch.system.forks import do_in_child

ABANDONED_AFTER_S = 3600.0
"""Age from which an unfinished file counts as left by a crashed writer."""

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.002, 0.05
"""Between two looks whether another process is done."""

ADVICE = "point ASTITCH_CACHE_DIR at a folder of your own with room"

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW
_SEAL = b"\nastitch seal 1\n"
_SEAL_BYTES = len(_SEAL) + 2 * hashlib.sha256().digest_size
_PARTIAL, _LOCK = ".tmp", ".lock"


class NotPrivate(PermissionError):
    """A folder or a file that somebody else made, or that others may write: what is in it is not trusted."""


# ---- seals -----------------------------------------------------------------------------------------------------------


def seal(content: bytes, form: str, key: str) -> bytes:
    """The content with a seal behind it, where the loader of a library ignores it.

    form: what the content is and the version of its format.  key: what it is kept under.  Both are in the seal, so that
    an entry under another name, or read as something else, is none.
    """
    return content + _SEAL + _digest(content, form, key)


def unseal(data: bytes, form: str, key: str) -> bytes | None:
    """The content; None where it is not whole, or was sealed under another key or in another form."""
    content = data[:-_SEAL_BYTES]
    return content if data[-_SEAL_BYTES:] == _SEAL + _digest(content, form, key) else None


def _digest(content: bytes, form: str, key: str) -> bytes:
    digest = hashlib.sha256()
    for part in (form.encode(), key.encode(), content):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest().encode()


# ---- folders of others -----------------------------------------------------------------------------------------------


def read_shared(shared: Path, kind: str, name: str) -> bytes:
    """The file `shared/kind/name` of folders that somebody else fills and that the user has named: only their owner
    may write them.

    Who may write `shared` could put another folder in the place of `kind`, so that it counts too; it may also be the
    system's.  Raises FileNotFoundError, NotPrivate where more than the owner may write a folder or the file, and
    OSError.
    """
    with contextlib.ExitStack() as opened:

        def open_in(name: str | Path, flags: int, folder: int | None) -> tuple[int, os.stat_result]:
            file = os.open(name, os.O_RDONLY | flags, dir_fd=folder)
            opened.callback(os.close, file)
            return file, os.fstat(file)

        whole, around = open_in(shared, os.O_DIRECTORY | os.O_CLOEXEC, None)
        folder, status = open_in(kind, os.O_DIRECTORY | _OPEN, whole)
        owner = status.st_uid
        _check_owner_alone(around, {owner, SYSTEM}, shared)
        _check_owner_alone(status, {owner}, shared / kind)
        file, status = open_in(name, os.O_NONBLOCK | _OPEN, folder)
        if not stat.S_ISREG(status.st_mode):
            raise NotPrivate(f"{shared / kind / name} is not a file")
        _check_owner_alone(status, {owner}, shared / kind / name)
        return _read_all(file)


def warn_of_shared(shared: Path, error: OSError) -> None:
    """Says once in a process, for each folder, why what others keep in it is not used, and what its owner can do."""
    if shared in _told_shared:
        return
    _told_shared.add(shared)
    if isinstance(error, NotPrivate):
        what = "only its owner may write it"
    else:
        what = "this user cannot read it, so all is compiled anew"
    warnings.warn(
        f"shared cache {shared} is not used: {error}\n  {what}; its owner can mend it: chmod -R go-w,go+rX {shared}",
        RuntimeWarning,
        stacklevel=6,
    )


_told_shared: set[Path] = set()

SYSTEM = 0
"""The user who may write everywhere anyway."""


def _check_owner_alone(status: os.stat_result, owners: set[int], path: Path) -> None:
    if status.st_uid not in owners or status.st_mode & _OTHERS_MAY_WRITE:
        raise NotPrivate(f"{path} can be written by others than the owner of its files")


# ---- folders ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a folder.  used: when it was last read or written, seconds since 1970."""

    name: str
    bytes: int
    used: float


@dataclass(frozen=True, slots=True)
class PrivateFolder:
    """A folder that only this user may write, shared by any number of processes and threads.

    It is made when something is first written, readable by this user alone.  Links on the way to it are followed, but
    it must not be one.  Every method raises NotPrivate where the folder or the file is not this user's alone, and
    OSError for what the system refuses.
    """

    path: Path

    def make(self) -> None:
        """Makes the folder if there is none."""
        self._make()
        with self._opened():
            pass

    def read(self, name: str) -> bytes:
        """A file's content; marks it as used now.  Raises FileNotFoundError too."""
        with self._opened() as folder, self._opened_file(folder, name) as file:
            try:
                os.utime(file)
            except OSError:
                pass  # a read-only folder still serves; it only forgets the order of use
            return _read_all(file)

    def write(self, name: str, data: bytes) -> None:
        """Puts a whole file in place of what is there; a reader, or a crash, never finds half of it."""
        self._make()
        partial = f"{name}.{os.getpid()}.{os.urandom(4).hex()}{_PARTIAL}"
        with self._opened() as folder:
            file = os.open(
                partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=folder
            )
            try:
                try:
                    # Not buffered: a child that is forked meanwhile would write its copy of the buffer too.
                    _write_all(file, data)
                finally:
                    os.close(file)
                os.replace(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                _remove_at(folder, partial)
                raise

    def load_library(self, name: str, form: str, mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL:
        """Loads a sealed library, by the descriptor of the folder in which it was checked.

        Its name is its key: libraries of one name have one content, whichever folder they are in.  Raises
        FileNotFoundError where it is not there or not whole.
        """
        with self._opened() as folder:
            with self._opened_file(folder, name) as file:
                content = unseal(_read_all(file), form, name)
            if content is None:
                raise FileNotFoundError(errno.ENOENT, "not whole", str(self.path / name))
            try:
                return ctypes.CDLL(f"/proc/self/fd/{folder}/{name}", mode=mode)
            except OSError:  # a file system from which nothing may be run
                return load_from_memory(content, mode)

    def list_entries(self, suffix: str) -> list[Entry]:
        """The files of this suffix, in any order.  Removes what crashed writers left."""
        found = []
        with self._opened() as folder, os.scandir(folder) as files:
            for file in files:
                try:
                    status = file.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # another process removes too
                if not stat.S_ISREG(status.st_mode):
                    continue  # not astitch's
                if file.name.endswith(suffix):
                    found.append(Entry(file.name, status.st_size, status.st_mtime))
                elif time.time() - status.st_mtime > ABANDONED_AFTER_S:
                    if file.name.endswith(_PARTIAL):
                        _remove_at(folder, file.name)
                    elif file.name.endswith(_LOCK):
                        _remove_free_lock(folder, file.name)
        return found

    def remove(self, names: Iterable[str]) -> None:
        """Removes files that are still there and may go; if not, the folder is only larger than it should be."""
        with self._opened() as folder:
            for name in names:
                _remove_at(folder, name)

    @contextlib.contextmanager
    def turn(self, key: str, longest_s: float) -> Iterator[None]:
        """One thread of one process at a time makes what is kept under a key; the others wait, and find it made.

        Look again inside.  There is no lock, and so no wait, where the folder cannot hold one; and after the wait
        nobody holds it if the one who did is done.  The system frees the lock of a process that dies.  longest_s:
        seconds after which it goes on without.
        """
        name = key + _LOCK
        taken: list[io.FileIO] = []
        try:  # begun before the lock is taken: a signal may come in between
            self._lock(name, longest_s, taken)
            yield
        finally:
            self._unlock(name, taken)

    def _lock(self, name: str, longest_s: float, taken: list[io.FileIO]) -> None:
        """Adds the lock to `taken`, if this comes to hold it."""
        try:
            self._make()
            with self._opened() as folder:
                flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | _OPEN
                file = io.FileIO(os.open(name, flags, 0o600, dir_fd=folder), "r+")
        except OSError:
            return
        _locks.add(file)
        # The name of a lock goes when its holder is done: nobody makes anything after it that was not made by it.
        if _wait_for_lock(file.fileno(), longest_s) and os.fstat(file.fileno()).st_nlink:
            taken.append(file)
        else:
            _close_lock(file)

    def _unlock(self, name: str, taken: list[io.FileIO]) -> None:
        if not taken or taken[0].closed:  # in a forked child: the parent holds it
            return
        try:
            with self._opened() as folder:
                if os.path.samestat(os.fstat(taken[0].fileno()), os.stat(name, dir_fd=folder)):
                    os.unlink(name, dir_fd=folder)
        except OSError:
            pass  # removed by somebody, or for the next that removes what is old
        _close_lock(taken[0])

    def _make(self) -> None:
        for _ in range(2):
            try:
                os.mkdir(self.path, 0o700)
            except FileExistsError:
                return
            except FileNotFoundError:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            else:
                return

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """The folder's descriptor, checked; not kept, since programs close descriptors that they do not know."""
        try:
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
        except OSError:
            if self.path.is_symlink():
                raise NotPrivate(f"{self.path} is a link") from None
            raise
        try:
            _check_private(os.fstat(folder), self.path)
            yield folder
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def _opened_file(self, folder: int, name: str) -> Iterator[int]:
        """A file's descriptor, checked."""
        path = self.path / name
        try:
            # Not blocking: opening a pipe waits for somebody who writes into it.
            file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _OPEN, dir_fd=folder)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NotPrivate(f"{path} is a link") from None
            raise
        try:
            status = os.fstat(file)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            if not stat.S_ISREG(status.st_mode):
                raise NotPrivate(f"{path} is not a file")
            _check_private(status, path)
            yield file
        finally:
            os.close(file)


def _check_private(status: os.stat_result, path: Path) -> None:
    if status.st_uid != os.geteuid():
        raise NotPrivate(f"{path} belongs to another user")
    if status.st_mode & _OTHERS_MAY_WRITE:
        raise NotPrivate(
            f"others may write to {path} (mode {stat.S_IMODE(status.st_mode):o}), so it is not trusted: remove it"
        )


def _read_all(file: int) -> bytes:
    parts = []
    while part := os.read(file, 1 << 24):
        parts.append(part)
    return b"".join(parts)


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def _remove_at(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        pass


# ---- locks -----------------------------------------------------------------------------------------------------------

_locks: weakref.WeakSet[io.FileIO] = weakref.WeakSet()
"""The locks that this process waits for or holds.  One that nobody refers to any more is closed, and so free: also
where a signal came before it could be given back."""


def _wait_for_lock(file: int, longest_s: float) -> bool:
    until, pause = time.monotonic() + longest_s, SHORTEST_PAUSE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                return False
        except OSError:
            return False  # a file system without locks
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)


def _close_lock(file: io.FileIO) -> None:
    _locks.discard(file)
    try:
        fcntl.flock(file, fcntl.LOCK_UN)  # a forked child may have a copy of the descriptor
    except OSError:
        pass
    file.close()


def _remove_free_lock(folder: int, name: str) -> None:
    """Removes the lock of a process that died."""
    try:
        file = os.open(name, os.O_RDWR | os.O_NONBLOCK | _OPEN, dir_fd=folder)
    except OSError:
        return
    if _wait_for_lock(file, 0):
        _remove_at(folder, name)
    os.close(file)


def _drop_locks() -> None:
    """Close the parent's locks in a forked child: they should be free when the parent dies."""
    for file in list(_locks):
        with contextlib.suppress(OSError):
            file.close()
    _locks.clear()


do_in_child(_drop_locks)


# ---- without a folder ------------------------------------------------------------------------------------------------

_loads = itertools.count(1)


def load_from_memory(content: bytes, mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL:
    """Loads a library that no folder takes.  Raises OSError."""
    file = os.memfd_create("astitch", os.MFD_CLOEXEC)
    try:
        _write_all(file, content)
        # The loader takes libraries of one name for one library, so each load spells the path in its own way.
        steps = "".join("./" if bit == "1" else "/" for bit in f"{next(_loads):b}")
        return ctypes.CDLL(f"/proc/self/fd/{steps}{file}", mode=mode)
    finally:
        os.close(file)


@contextlib.contextmanager
def temporary_folder(parent: str | None = None) -> Iterator[Path]:
    """A new folder of this user's during the block.  parent: where; else as `tempfile` chooses.  Raises OSError.

    Not tempfile.TemporaryDirectory: a forked child that ends would remove its parent's.
    """
    made_by = os.getpid()
    path = Path(tempfile.mkdtemp(prefix="astitch_", dir=parent))
    try:
        yield path
    finally:
        if os.getpid() == made_by:
            shutil.rmtree(path, ignore_errors=True)
