"""Private folders: what is not trusted, seals, locks between processes, crashes, and what a full disk leaves."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from interrupt_at import interrupt_after

from astitch import options
from astitch.system import private_files
from astitch.system.kept_libraries import compile_apart
from astitch.system.private_files import (
    NotPrivate,
    PrivateFolder,
    load_from_memory,
    seal,
    unseal,
    warn_of_shared,
)
from tests.modes import obeying

ROOT = Path(private_files.__file__).parents[2]
DATA = bytes(range(256)) * 40


@pytest.fixture
def folder(tmp_path: Path) -> PrivateFolder:
    made = PrivateFolder(tmp_path / "caches" / "own")
    made.write("entry", DATA)
    return made


# ---- seals -----------------------------------------------------------------------------------------------------------


def test_a_seal_is_of_content_form_and_key() -> None:
    sealed = seal(DATA, "form 1", "key")
    assert unseal(sealed, "form 1", "key") == DATA
    assert unseal(sealed, "form 2", "key") is None
    assert unseal(sealed, "form 1", "other") is None
    assert unseal(sealed, "form 1k", "ey") is None  # the parts are told apart
    assert unseal(seal(b"", "form 1", "key"), "form 1", "key") == b""


@pytest.mark.parametrize("length", [0, 1, 40, 80, 81, 5000, len(DATA) + 79])
def test_every_truncation_is_seen(length: int) -> None:
    assert unseal(seal(DATA, "form", "key")[:length], "form", "key") is None


# ---- what is not trusted ---------------------------------------------------------------------------------------------


def test_what_is_made_is_this_users_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        PrivateFolder(tmp_path / "a" / "b").write("entry", DATA)
    finally:
        os.umask(old)
    modes = [stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "a", tmp_path / "a" / "b")]
    assert modes == [0o700, 0o700]
    assert stat.S_IMODE((tmp_path / "a" / "b" / "entry").stat().st_mode) == 0o600


def make_open(path: Path, _: Path) -> None:
    path.chmod(path.stat().st_mode | 0o022)


def make_open_to_a_group(path: Path, _: Path) -> None:
    path.chmod(path.stat().st_mode | 0o020)


def replace_by_link(path: Path, elsewhere: Path) -> None:
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def replace_by_dangling_link(path: Path, elsewhere: Path) -> None:
    path.rename(elsewhere)
    path.symlink_to(elsewhere.with_name("nowhere"))


@pytest.mark.parametrize(
    "spoil", [make_open, make_open_to_a_group, replace_by_link, replace_by_dangling_link]
)
@pytest.mark.parametrize("which", ["folder", "file"])
def test_what_others_may_have_made_is_refused(
    folder: PrivateFolder, tmp_path: Path, spoil: Any, which: str
) -> None:
    spoilt = folder.path if which == "folder" else folder.path / "entry"
    spoil(spoilt, tmp_path / "elsewhere")
    mode, target = spoilt.lstat().st_mode, (tmp_path / "elsewhere")
    before = target.stat().st_mode if target.exists() else None
    with pytest.raises(NotPrivate, match=f"{spoilt}"):
        folder.read("entry")
    if which == "folder":
        with pytest.raises(NotPrivate):
            folder.write("entry", b"new")
        with pytest.raises(NotPrivate):
            folder.list_entries("entry")
        assert not target.is_dir() or [f.name for f in target.iterdir()] == ["entry"]
    else:
        folder.write("entry", b"new")
        assert folder.read("entry") == b"new"
    assert which == "file" or spoilt.lstat().st_mode == mode
    assert before is None or (target.stat().st_mode == before)
    assert not target.is_file() or target.read_bytes() == DATA


def test_another_users_files_are_refused(folder: PrivateFolder) -> None:
    """As the superuser, who may read and write them; else it is the process that takes another number."""
    script = (
        "import os, sys\nfrom pathlib import Path\n"
        "from astitch.system.private_files import NotPrivate, PrivateFolder\n"
        f"folder = PrivateFolder(Path({str(folder.path)!r}))\n"
        "if os.geteuid():\n    owner = os.geteuid()\n    os.geteuid = lambda: owner + 1\n"
        "else:\n    os.chown(folder.path / 'entry', 12345, -1)\n"
        "try:\n    folder.read('entry')\nexcept NotPrivate as error:\n    print(error)\n"
        "if os.geteuid() == 0:\n"
        "    os.chown(folder.path / 'entry', 0, -1)\n    os.chown(folder.path, 12345, -1)\n"
        "try:\n    folder.write('entry', b'')\nexcept NotPrivate as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    refusals = done.stdout.splitlines()
    assert len(refusals) == 2
    assert all(line.endswith("belongs to another user") for line in refusals)


def test_a_pipe_in_the_place_of_a_file_stops_nobody(folder: PrivateFolder) -> None:
    (folder.path / "entry").unlink()
    os.mkfifo(folder.path / "entry", 0o600)
    with pytest.raises(NotPrivate, match="is not a file"):
        folder.read("entry")


def test_a_folder_that_is_exchanged_after_the_check_is_not_written(
    folder: PrivateFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may write the folder around it, and put a link in its place at the worst moment."""
    target = tmp_path / "target"
    target.mkdir()
    check = private_files._check_private

    def check_and_exchange(status: os.stat_result, path: Path) -> None:
        check(status, path)
        if path == folder.path:
            replace_by_link(path, tmp_path / "moved")
            path.unlink()
            path.symlink_to(target)

    monkeypatch.setattr(private_files, "_check_private", check_and_exchange)
    folder.write("new", b"data")
    assert list(target.iterdir()) == []
    assert (tmp_path / "moved" / "new").read_bytes() == b"data"


def test_a_directory_in_the_place_of_a_file(folder: PrivateFolder) -> None:
    (folder.path / "taken").mkdir()
    with pytest.raises(IsADirectoryError, match="taken"):
        folder.read("taken")
    with pytest.raises(OSError, match="taken"):
        folder.write("taken", b"")
    assert sorted(f.name for f in folder.path.iterdir()) == ["entry", "taken"]


# ---- crashes and full disks ------------------------------------------------------------------------------------------


def _write_for_ever(path: str) -> None:
    folder = PrivateFolder(Path(path))
    for number in range(1 << 30):
        folder.write("entry", seal(bytes([number % 256]) * 3_000_000, "form", "entry"))


def test_a_writer_that_is_killed_leaves_a_whole_file(folder: PrivateFolder) -> None:
    spawn = multiprocessing.get_context("spawn")
    for _ in range(2):
        folder.write("entry", seal(b"first", "form", "entry"))
        writer = spawn.Process(target=_write_for_ever, args=(str(folder.path),))
        writer.start()
        while folder.read("entry").startswith(b"first"):
            time.sleep(0.001)
        os.kill(writer.pid or 0, signal.SIGKILL)
        writer.join()
        assert unseal(folder.read("entry"), "form", "entry") is not None
    for left in folder.path.glob("*.tmp"):
        os.utime(left, (1, 1))
    folder.list_entries("entry")
    assert [f.name for f in folder.path.iterdir()] == ["entry"]


@pytest.mark.parametrize("call", ["write", "close", "replace"])
def test_a_full_disk_leaves_what_was_there(
    folder: PrivateFolder, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    plain = getattr(os, call)

    def refuse(*given: Any, **_: Any) -> None:
        if call == "close":  # a network's disk says it then
            plain(*given)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(private_files.os, call, refuse)
        with pytest.raises(OSError, match="No space left on device"):
            folder.write("entry", b"new")
    assert folder.read("entry") == DATA
    assert [f.name for f in folder.path.iterdir()] == ["entry"]


def test_a_compiler_whose_disk_is_full_works_in_memory() -> None:
    used: list[Path] = []

    def build(folder: Path) -> bytes:
        used.append(folder)
        if not str(folder).startswith("/dev/shm"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return b"built"

    assert compile_apart(build) == b"built"
    assert len(used) == 2 and not any(folder.exists() for folder in used)


def test_libraries_from_memory_are_told_apart(tmp_path: Path) -> None:
    found = []
    for number in range(3):
        library = tmp_path / f"{number}.so"
        subprocess.run(
            ["g++", "-x", "c", "-shared", "-o", str(library), "-"],
            input=f"int answer = {number};", text=True, check=True,
        )  # fmt: skip
        found.append(load_from_memory(library.read_bytes()))
    assert [ctypes.c_int.in_dll(library, "answer").value for library in found] == [0, 1, 2]


def test_a_user_without_a_home_has_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("ASTITCH_CACHE_DIR", raising=False)
    monkeypatch.setattr(Path, "home", refuse)
    assert options.cache_dir().name == f"astitch-{os.geteuid()}"


@pytest.mark.parametrize(
    "home, mode, own",
    [
        ("away/home", 0o555, False),
        ("away", 0o555, False),
        ("away", 0, False),
        ("away", 0o755, True),
    ],
    ids=["missing", "read-only", "unreadable", "writable"],
)
def test_a_home_that_cannot_be_written_has_no_cache(
    tmp_path: Path, home: str, mode: int, own: bool
) -> None:
    """As of a container that runs under any number."""
    (tmp_path / "away").mkdir(mode=mode)
    environment = {name: text for name, text in os.environ.items() if name != "ASTITCH_CACHE_DIR"}
    environment |= {"HOME": str(tmp_path / home), "TMPDIR": str(tmp_path)}
    said = subprocess.run(
        obeying(sys.executable, "-c", "from astitch import options; print(options.cache_dir())"),
        env=environment, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    folder = tmp_path / home / ".cache" / "astitch" if own else tmp_path / f"astitch-{os.geteuid()}"
    assert said == str(folder)
    (tmp_path / "away").chmod(0o755)


def test_what_keeps_a_shared_cache_from_being_used_is_told_by_its_kind(tmp_path: Path) -> None:
    for error, words in (
        (NotPrivate("others may write"), "only its owner may write it"),
        (PermissionError(13, "Permission denied"), "this user cannot read it"),
    ):
        folder = tmp_path / words.replace(" ", "_")
        with pytest.warns(RuntimeWarning, match=f"{words}(.|\n)*chmod -R go-w,go\\+rX") as told:
            warn_of_shared(folder, error)
            warn_of_shared(folder, error)  # once
        assert len(told) == 1


# ---- locks -----------------------------------------------------------------------------------------------------------


def _make_slowly(path: str, start: Any, made: Any, seconds: float) -> None:
    folder = PrivateFolder(Path(path))
    start.wait(60)
    with folder.turn("key", 60):
        try:
            folder.read("key")
        except FileNotFoundError:
            made.put(os.getpid())
            time.sleep(seconds)
            folder.write("key", DATA)


def test_one_of_four_makes_what_all_want(folder: PrivateFolder) -> None:
    spawn = multiprocessing.get_context("spawn")
    start, made = spawn.Barrier(4), spawn.Queue()
    given = str(folder.path), start, made, 0.2
    makers = [spawn.Process(target=_make_slowly, args=given) for _ in range(4)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join(60)
        assert maker.exitcode == 0
    made.get(timeout=5)
    assert made.empty()
    assert sorted(f.name for f in folder.path.iterdir()) == ["entry", "key"]


def test_the_next_goes_on_where_the_first_is_killed(folder: PrivateFolder) -> None:
    spawn = multiprocessing.get_context("spawn")
    start, made = spawn.Barrier(1), spawn.Queue()
    first = spawn.Process(target=_make_slowly, args=(str(folder.path), start, made, 600))
    first.start()
    made.get(timeout=60)
    killer = threading.Timer(0.3, lambda: os.kill(first.pid or 0, signal.SIGKILL))
    killer.start()
    began = time.monotonic()
    with folder.turn("key", 60):
        assert time.monotonic() - began > 0.2
        with pytest.raises(FileNotFoundError):
            folder.read("key")
        # It holds the lock now: another waits until it is tired.
        with PrivateFolder(folder.path).turn("key", 0.1):
            pass
    first.join()
    assert time.monotonic() - began < 10
    assert [f.name for f in folder.path.iterdir()] == ["entry"]


def test_an_interrupt_gives_the_turn_to_the_next(folder: PrivateFolder) -> None:
    """Wherever a signal is looked for, also between the lock and the block."""

    def take_turn() -> None:
        with folder.turn("key", 60):
            pass

    for number in itertools.count():
        interrupted = interrupt_after(number, (private_files, contextlib), take_turn)
        start = time.monotonic()
        with folder.turn("key", 5):
            assert time.monotonic() - start < 2, f"interrupted at place {number}"
        if not interrupted:
            break
    assert number > 40


def test_nobody_waits_for_ever(folder: PrivateFolder) -> None:
    with folder.turn("key", 60):
        start = time.monotonic()
        with folder.turn("key", 0.2):
            assert 0.2 <= time.monotonic() - start < 5
        assert [f.name for f in folder.path.iterdir() if f.suffix == ".lock"] == ["key.lock"]


def test_who_waited_for_nothing_does_not_hold_up_the_others(folder: PrivateFolder) -> None:
    """Where nothing can be stored, those that waited make it side by side."""
    inside, met = threading.Barrier(4), []

    def work() -> None:
        with folder.turn("key", 60):
            met.append(inside.wait(10))

    threads = [threading.Thread(target=work) for _ in range(4)]
    with folder.turn("key", 60):
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        assert not met
    for thread in threads:
        thread.join(20)
    assert sorted(met) == [0, 1, 2, 3]


def test_without_a_lock_there_is_no_wait(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with PrivateFolder(tmp_path / "file").turn("key", 60):
        pass
    with pytest.raises(ZeroDivisionError), PrivateFolder(tmp_path / "own").turn("key", 60):
        raise ZeroDivisionError
    assert list((tmp_path / "own").iterdir()) == []


def test_old_locks_go_unless_they_are_held(folder: PrivateFolder) -> None:
    (folder.path / "old.lock").touch()
    with folder.turn("held", 60):
        for name in ("old.lock", "held.lock"):
            os.utime(folder.path / name, (1, 1))
        folder.list_entries("entry")
        assert sorted(f.name for f in folder.path.iterdir()) == ["entry", "held.lock"]


# ---- forks -----------------------------------------------------------------------------------------------------------


def test_a_child_holds_no_lock_of_its_parent(folder: PrivateFolder) -> None:
    script = (
        "import os, sys, time\nfrom pathlib import Path\n"
        "from astitch.system.private_files import PrivateFolder\n"
        f"with PrivateFolder(Path({str(folder.path)!r})).turn('key', 1):\n"
        "    if os.fork() == 0:\n        time.sleep(8)\n        os._exit(0)\n"
        "    print('forked', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as holder:
        assert holder.stdout
        holder.stdout.readline()
        holder.kill()
        holder.stdout.close()
    start = time.monotonic()
    with folder.turn("key", 60):
        assert time.monotonic() - start < 5


def test_a_child_that_ends_removes_no_folder_of_its_parent() -> None:
    script = (
        "import os, sys\nfrom astitch.system.private_files import temporary_folder\n"
        "with temporary_folder() as made:\n"
        "    child = os.fork()\n"
        "    if child == 0:\n        sys.exit()\n"
        "    os.waitpid(child, 0)\n    print(made.exists())\n"
        "print(made.exists())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "False"]
