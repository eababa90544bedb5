"""The kernel cache: hits, damage, concurrent processes, privacy, size, folders that cannot be used."""

from __future__ import annotations

import multiprocessing
import os
import stat
import time
import warnings
from pathlib import Path
from types import MappingProxyType

import pytest

from astitch import kernel_cache, nvrtc
from astitch.kernel_cache import KernelCache, compile_cached, key_of, pack_kernel, unpack_kernel
from astitch.nvrtc import CompiledKernel, Request, Resources

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
            "other version": data.replace(b"kernel 2", b"kernel 0", 1),
        }[damage]
    )
    assert cache.load("k") is None
    cache.store("k", _kernel(mark=2))
    assert cache.load("k") == _kernel(mark=2)


@pytest.mark.parametrize("length", range(0, 60, 7))
def test_every_truncation_is_seen(length: int) -> None:
    assert unpack_kernel(pack_kernel(_kernel())[:length]) is None


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
    monkeypatch.setattr(nvrtc, "read_headers", lambda: {"types.cuh": "// changed"})
    keys.append(key_of(request, (13, 5)))
    assert len(set(keys)) == len(keys)
    assert key_of(Request(SOURCE, "sm_90"), (13, 5)) == keys[-1]


def test_the_folder_is_private(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "cache")
    cache.store("k", _kernel())
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((cache.folder / "k.kernel").stat().st_mode) == 0o600
    cache.folder.chmod(0o777)
    cache.load("k")
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700


def test_the_longest_unused_entries_go_first(tmp_path: Path) -> None:
    size = len(pack_kernel(_kernel()))
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
    with pytest.warns(RuntimeWarning, match="is not used: .*\n  kernels are compiled anew") as seen:
        for _ in range(3):
            cache.store("k", _kernel())
            assert cache.load("k") is None
    assert len(seen) == 1


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kernel_cache.os, "replace", refuse)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        KernelCache(tmp_path).store("k", _kernel())
    assert list(tmp_path.iterdir()) == []


def test_someone_elses_folder_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    KernelCache(tmp_path).store("k", _kernel())
    owner = os.geteuid()
    monkeypatch.setattr(kernel_cache.os, "geteuid", lambda: owner + 1)
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
