"""The kernel cache: hits, damage, concurrent processes, privacy, size, folders that cannot be used."""

from __future__ import annotations

import errno
import gzip
import multiprocessing
import os
import resource
import stat
import time
import warnings
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from astitch.system import private_files
from astitch.system.private_files import seal
from astitch.toolchain import kernel_cache, nvrtc
from astitch.toolchain.kernel_cache import FORM, KernelCache, compile_cached, key_of, pack_kernel
from astitch.toolchain.nvrtc import CompiledKernel, Request, Resources

SOURCE = 'extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= 2.0f; }'


def _kernel(size: int = 100, mark: int = 1) -> CompiledKernel:
    return CompiledKernel(
        cubin=bytes([mark]) * size,
        ptx=b".version 8.0",
        kernels=MappingProxyType({"scale": Resources(32, 8, 4, 16, 1024)}),
        log="ptxas info : 'scale' é",
        nvrtc_version=(13, 5),
    )


def test_a_kernel_survives_the_round_trip(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "cache")
    assert cache.load("k") is None
    cache.store("k", _kernel())
    assert cache.load("k") == _kernel()
    assert KernelCache(tmp_path / "cache").load("k") == _kernel()


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "other version"])
def test_a_damaged_entry_is_ignored_and_replaced(tmp_path: Path, damage: str) -> None:
    cache = KernelCache(tmp_path)
    cache.store("k", _kernel())
    entry = tmp_path / "k.kernel"
    data = entry.read_bytes()
    entry.write_bytes(
        {
            "truncated": data[:-1],
            "flipped": data[:-20] + bytes([data[-20] ^ 1]) + data[-19:],
            "empty": b"",
            "other version": seal(pack_kernel(_kernel()), "astitch kernel 0", "k"),
        }[damage]
    )
    assert cache.load("k") is None
    cache.store("k", _kernel(mark=2))
    assert cache.load("k") == _kernel(mark=2)


def test_the_key_depends_on_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(SOURCE, "sm_90")
    keys = [
        key_of(request, (13, 5)),
        key_of(request, (13, 0)),
        key_of(Request(SOURCE.replace("2.0f", "3.0f"), "sm_90"), (13, 5)),
        key_of(Request(SOURCE, "sm_80"), (13, 5)),
        key_of(Request(SOURCE, "sm_90", 64), (13, 5)),
        key_of(Request(SOURCE, "sm_90", extra=("-DN=1",)), (13, 5)),
        key_of(Request(SOURCE, "sm_90", extra=("-DN=", "1")), (13, 5)),
    ]
    # An older astitch, or a newer one, has entries of its own.
    monkeypatch.setattr(kernel_cache, "FORM", "astitch kernel 2")
    keys.append(key_of(request, (13, 5)))
    monkeypatch.setattr(nvrtc, "read_headers", lambda: {"types.cuh": "// changed"})
    keys.append(key_of(request, (13, 5)))
    assert len(set(keys)) == len(keys)
    assert key_of(Request(SOURCE, "sm_90"), (13, 5)) == keys[-1]


def test_the_folder_is_private(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "cache")
    cache.store("k", _kernel())
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((cache.folder / "k.kernel").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_folder_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    KernelCache(tmp_path).store("k", _kernel())
    tmp_path.chmod(mode)
    cache = KernelCache(tmp_path)
    with pytest.warns(
        RuntimeWarning, match="others may write to .*: remove it\n.*ASTITCH_CACHE_DIR"
    ):
        assert cache.load("k") is None
        cache.store("k", _kernel(mark=2))
    assert cache.load("k") == _kernel(mark=2)  # in memory
    assert stat.S_IMODE(tmp_path.stat().st_mode) == mode
    tmp_path.chmod(0o700)
    assert KernelCache(tmp_path).load("k") == _kernel()


def test_swapped_entries_are_none(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    for mark, key in enumerate("ab"):
        cache.store(key, _kernel(mark=mark))
    for old, new in ("ac", "ba", "cb"):
        (tmp_path / f"{old}.kernel").rename(tmp_path / f"{new}.kernel")
    assert [cache.load(key) for key in "ab"] == [None, None]
    cache.store("a", _kernel(mark=3))
    assert cache.load("a") == _kernel(mark=3)


def test_the_longest_unused_entries_go_first(tmp_path: Path) -> None:
    size = len(seal(pack_kernel(_kernel()), FORM, "a"))
    cache = KernelCache(tmp_path, limit_bytes=3 * size)
    now = time.time()
    for age, key in enumerate(["d", "c", "b"]):
        cache.store(key, _kernel())
        os.utime(tmp_path / f"{key}.kernel", (now - 100 + age, now - 100 + age))
    assert cache.load("d") is not None  # used just now, so "c" is the oldest
    cache.store("a", _kernel())
    assert sorted(p.stem for p in tmp_path.glob("*.kernel")) == ["a", "b", "d"]


def test_what_a_crashed_writer_left_is_removed(tmp_path: Path) -> None:
    abandoned, fresh = tmp_path / "old.tmp", tmp_path / "new.tmp"
    for file in (abandoned, fresh):
        file.write_bytes(b"half")
    os.utime(abandoned, (1, 1))
    KernelCache(tmp_path).store("k", _kernel())
    assert not abandoned.exists()
    assert fresh.exists()


def test_a_folder_that_cannot_be_made_warns_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    cache = KernelCache(tmp_path / "file" / "cache")
    with pytest.warns(
        RuntimeWarning, match="is not used: .*\n  the next process compiles its kernels anew"
    ) as seen:
        assert cache.load("k") is None
        for _ in range(3):
            cache.store("k", _kernel())
            assert cache.load("k") == _kernel()  # in memory
    assert len(seen) == 1
    with pytest.warns(RuntimeWarning):
        assert KernelCache(cache.folder).load("k") is None


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(private_files.os, "replace", refuse)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        KernelCache(tmp_path).store("k", _kernel())
    assert list(tmp_path.iterdir()) == []


def test_what_is_kept_in_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    size = len(pack_kernel(_kernel()))
    monkeypatch.setattr(kernel_cache, "MEMORY_BYTES", 2 * size)
    cache = KernelCache(tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning, match="is not used"):
        for key in "abc":
            cache.store(key, _kernel())
    assert [cache.load(key) is not None for key in "abc"] == [True, True, False]


def test_a_folder_that_may_only_be_read_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    KernelCache(tmp_path).store("k", _kernel())
    tmp_path.chmod(0o755)  # others may read it

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    def open_to_read(path: Any, flags: int, *given: Any, **options: Any) -> int:
        return refuse() if flags & os.O_CREAT else opened(path, flags, *given, **options)

    opened = os.open
    monkeypatch.setattr(private_files.os, "open", open_to_read)
    for name in ("utime", "replace", "unlink"):
        monkeypatch.setattr(private_files.os, name, refuse)
    cache = KernelCache(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.load("k") == _kernel()
    with pytest.warns(RuntimeWarning, match="Read-only file system"):
        cache.store("new", _kernel(mark=2))
    assert cache.load("new") == _kernel(mark=2)


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    """Folders, links to nothing, an entry's name for a folder: whatever else is there."""
    (tmp_path / "taken.kernel").mkdir()
    (tmp_path / "old.tmp").mkdir()
    os.utime(tmp_path / "old.tmp", (1, 1))
    (tmp_path / "nowhere.kernel").symlink_to(tmp_path / "nothing")
    cache = KernelCache(tmp_path, limit_bytes=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.store("k", _kernel())  # and goes at once: it is larger than the limit
        assert cache.load("k") is None
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "nowhere.kernel",
        "old.tmp",
        "taken.kernel",
    ]
    with pytest.warns(RuntimeWarning, match="Is a directory: '.*/taken.kernel'"):
        assert cache.load("taken") is None
        cache.store("taken", _kernel())
    assert cache.load("taken") == _kernel()
    with pytest.warns(RuntimeWarning, match="nowhere.kernel is a link"):
        assert KernelCache(tmp_path).load("nowhere") is None


def test_someone_elses_folder_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    KernelCache(tmp_path).store("k", _kernel())
    owner = os.geteuid()
    monkeypatch.setattr(private_files.os, "geteuid", lambda: owner + 1)
    with pytest.warns(RuntimeWarning, match="belongs to another user"):
        assert KernelCache(tmp_path).load("k") is None


def _write_many(folder: str, mark: int) -> None:
    cache = KernelCache(Path(folder))
    for _ in range(60):
        cache.store("k", _kernel(200_000, mark))


def test_readers_never_see_half_an_entry(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_write_many, args=(str(tmp_path), mark)) for mark in (1, 2)]
    for writer in writers:
        writer.start()
    whole = (_kernel(200_000, 1), _kernel(200_000, 2))
    cache, seen = KernelCache(tmp_path), 0
    while any(writer.is_alive() for writer in writers):
        kernel = cache.load("k")
        assert kernel is None or kernel in whole
        seen += kernel is not None
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert seen > 0
    assert [p.name for p in tmp_path.iterdir()] == ["k.kernel"]


MODEL = Path(__file__).parents[1] / "data" / "corpus" / "bert_layer.hlo.pb.gz"


def _compile_model(folder: str, start: Any, most_file_bytes: int, results: Any) -> None:
    """A process of its own: the whole way from HLO to cubins; puts what came out and what it was warned of."""
    os.environ["ASTITCH_CACHE_DIR"] = folder
    from astitch.compile import compile_hlo, compile_resources
    from astitch.search.plan_scopes import render_kernel

    if most_file_bytes:  # what a full disk does: the next byte is refused
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_file_bytes, most_file_bytes))
    compiled: list[str] = []
    compile_request = nvrtc.compile_request

    def count(request: Request) -> CompiledKernel:
        compiled.append(request.source)
        return compile_request(request)

    nvrtc.compile_request = count
    data = gzip.decompress(MODEL.read_bytes())
    start.wait(60)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        compilation = compile_hlo(data, gpu="h100", render=render_kernel)
        used = compile_resources(compilation.program, compilation.gpu)
    told = [str(w.message) for w in warned if "kernel cache" in str(w.message)]
    results.put((repr(compilation.program), sorted(used.items()), len(compiled), told))


def compile_side_by_side(folder: Path, processes: int, most_file_bytes: int = 0) -> list[Any]:
    spawn = multiprocessing.get_context("spawn")
    start, results = spawn.Barrier(processes), spawn.Queue()
    given = str(folder), start, most_file_bytes, results
    started = [spawn.Process(target=_compile_model, args=given) for _ in range(processes)]
    for process in started:
        process.start()
    found = [results.get(timeout=60) for _ in started]  # before they end: a pipe holds little
    for process in started:
        process.join(60)
        assert process.exitcode == 0
    return found


def check_entries(folder: Path) -> set[str]:
    """The names of the entries, all of them whole, and nothing else there."""
    for file in folder.iterdir():
        assert file.suffix == ".kernel" and KernelCache(folder).load(file.stem) is not None
    return {file.name for file in folder.iterdir()}


def test_four_processes_compile_one_model_into_one_folder(tmp_path: Path) -> None:
    found = compile_side_by_side(tmp_path, 4)
    entries = check_entries(tmp_path / "kernels")
    assert 0 < len(entries) <= len(found[0][1])
    assert [(program, used, told) for program, used, _, told in found] == [
        (found[0][0], found[0][1], [])
    ] * 4
    # Each form was compiled by one of the four.
    assert sum(count for _, _, count, _ in found) == len(entries)

    # Filled with garbage, it is filled anew; what nobody asks for stays until there is no room.
    garbage = [b"", b"\0" * 100_000, os.urandom(3000), FORM.encode(), b"[" * 5000]
    for number, name in enumerate(sorted(entries)):
        (tmp_path / "kernels" / name).write_bytes(garbage[number % len(garbage)])
    (tmp_path / "kernels" / "other").write_bytes(garbage[2])
    again = compile_side_by_side(tmp_path, 2)
    (tmp_path / "kernels" / "other").unlink()
    assert check_entries(tmp_path / "kernels") == entries
    assert [x[:2] for x in again] == [x[:2] for x in found[:2]]
    assert sum(count for _, _, count, _ in again) >= len(entries)

    ((_, _, count, _),) = compile_side_by_side(tmp_path, 1)
    assert count == 0


def test_a_model_is_compiled_once_where_the_disk_is_full(tmp_path: Path) -> None:
    ((_, used, count, told),) = compile_side_by_side(tmp_path, 1, most_file_bytes=2000)
    assert len(used) >= count > 0
    (words,) = told
    assert "is not used: [Errno 27] File too large" in words
    assert "point ASTITCH_CACHE_DIR at a folder of your own with room" in words
    assert list((tmp_path / "kernels").iterdir()) == []


def test_the_second_compilation_reads_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))
    assert kernel_cache.cache_folder() == tmp_path / "kernels"
    first = compile_cached(Request(SOURCE, "sm_90"))

    def refuse(_: Request) -> CompiledKernel:
        raise AssertionError("compiled again")

    monkeypatch.setattr(nvrtc, "compile_request", refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compile_cached(Request(SOURCE, "sm_90")) == first
    with pytest.raises(AssertionError, match="compiled again"):
        compile_cached(Request(SOURCE, "sm_90", 32))


def test_without_a_variable_the_cache_is_in_the_home_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ASTITCH_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert kernel_cache.cache_folder() == tmp_path / ".cache" / "astitch" / "kernels"
