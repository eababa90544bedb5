"""What decides a module that is kept, and what is never kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from astitch.device.gpu import preset
from astitch.hlo.stablehlo import hlo_of
from astitch.show.compilation import Compilation
from astitch.show.share import Share
from astitch.xla import kept_stitchings
from astitch.xla.hook import Stitching, read_module
from astitch.xla.kept_stitchings import (
    Made,
    keep_fit,
    key_of,
    load_fit,
    pack,
    take_or_make,
    unpack,
)
from astitch.xla.module_cache import cache_at

H100 = preset("h100")
SAME: dict[str, Any] = {
    "only_marked": False,
    "strict": False,
    "tune": False,
    "timed": False,
    "attention": False,
}


def module_of(fn: Any, *arguments: Any) -> Any:
    return read_module(hlo_of(jax.jit(fn).lower(*arguments)))


def double(x: Any) -> Any:
    return x * 2


X = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    "made",
    [Made(b"module \x00\xff", 3, ""), Made(None, 0, "nothing of é"), Made(b"", 1, "")],
)
def test_what_is_kept_comes_back(made: Made) -> None:
    assert unpack(pack(made)) == made


def test_what_decides_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of(double, X)
    key = key_of(module, H100, **SAME)
    other = module_of(double, X)
    other.id = module.id + 7
    for instruction in other.computations[0].instructions:
        instruction.metadata.source_line += 1
    assert key_of(other, H100, **SAME) == key is not None
    keys = [key, key_of(module_of(double, X[:2]), H100, **SAME)]
    keys.append(key_of(module, preset("a100"), **SAME))
    flags = ("only_marked", "strict", "attention")
    keys += [key_of(module, H100, **{**SAME, name: True}) for name in flags]
    keys.append(key_of(module, H100, **SAME, stitch="in-any-order"))
    monkeypatch.setattr(kept_stitchings, "fingerprint", lambda: b"another version")
    keys.append(key_of(module, H100, **SAME))
    assert len(set(keys)) == len(keys) and None not in keys


def test_what_has_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    called = module_of(lambda x: jax.pure_callback(lambda y: y, x, x), X)
    assert key_of(called, H100, **SAME) is None
    assert key_of(module_of(double, X), H100, **{**SAME, "tune": True}) is None
    monkeypatch.setenv("ASTITCH_DEBUG", "1")
    assert key_of(module_of(double, X), H100, **SAME) is None


def empty_compilation() -> Compilation:
    """One without faults, of which nothing else is known."""
    compilation = object.__new__(Compilation)
    object.__setattr__(compilation, "faults", ())
    object.__setattr__(compilation, "share", Share(1, 5.0, ()))
    object.__setattr__(compilation, "plain_bytes", 100)
    return compilation


def test_it_is_made_once_and_has_the_number_of_what_was_handed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kept_stitchings, "open_cache", lambda: cache_at(tmp_path))
    monkeypatch.setattr(kept_stitchings, "estimate_bytes", lambda found: 70)
    module = module_of(double, X)
    module.id = 3
    stitched = bytes(module.SerializeToString())
    made = 0

    def make() -> Stitching:
        nonlocal made
        made += 1
        compilation = empty_compilation()
        return Stitching(compilation, stitched, 2)

    assert take_or_make(module, "key", make).compilation is not None
    module.id = 8
    kept = take_or_make(module, "key", make)
    assert made == 1 and kept.module is not None and kept.compilation is None
    assert read_module(kept.module).id == 8 and kept.kernels == 2
    assert kept.share.startswith("100 % of the projected")
    assert (kept.estimated, kept.plain_bytes, kept.light_us) == (70, 100, 5.0)
    take_or_make(module, None, make)
    assert made == 2


def test_a_damaged_entry_is_made_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kept_stitchings, "open_cache", lambda: cache_at(tmp_path))
    module = module_of(double, X)
    compilation = empty_compilation()
    take_or_make(module, "key", lambda: Stitching(compilation, None, reason="first"))
    (file,) = tmp_path.glob("*.module")
    file.write_bytes(file.read_bytes()[:-3])
    made = take_or_make(module, "key", lambda: Stitching(compilation, None, reason="again"))
    assert made.reason == "again"


def test_what_fits_is_kept_by_the_key_of_the_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kept_stitchings, "open_cache", lambda: cache_at(tmp_path))
    keep_fit("one", "memory-limit 70\n")
    keep_fit("other", "")
    keep_fit(None, "memory-limit 3")
    assert load_fit("one") == "memory-limit 70\n" and load_fit("other") == ""
    assert load_fit("third") is None and load_fit(None) is None
