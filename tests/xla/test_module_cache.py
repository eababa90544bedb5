"""Whole programs on disk: what decides the key, that a later process neither plans nor compiles, damaged entries."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from astitch.device.gpu import preset
from astitch.hlo import schema
from astitch.hlo_import import import_hlo
from astitch.xla import module_cache, stitched_call
from astitch.xla.module_cache import ModuleCache, hash_sources, key_of
from astitch.xla.stitched_call import Stitched

H100 = preset("h100")
X = np.ones((4, 300), np.float32)


def softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x)


def trace(
    fn: Callable[..., Any] = softmax, *, donated: bool = False, strict: bool = False
) -> Stitched:
    traced = jax.jit(fn, keep_unused=True).trace(X)
    lowered = traced.lower(lowering_platforms=("cuda",))
    return Stitched(lowered, traced.jaxpr, (donated,), H100, None, strict)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The caches of this test; no name asks for something to be shown."""
    for name in (
        "ASTITCH_DEBUG",
        "ASTITCH_DUMP",
        "ASTITCH_STITCHES",
        "ASTITCH_OVERRIDE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))
    return tmp_path / "modules"


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("it is compiled again")


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.module")) if folder.exists() else []


def test_a_later_process_neither_plans_nor_compiles(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = trace().module
    assert len(entries(folder)) == 1
    monkeypatch.setattr(stitched_call, "compile_for_xla", refuse)
    later = trace()
    assert later.module == first
    assert later.module == first, "asked for twice"
    with pytest.raises(AssertionError, match="compiled again"):
        later.compilation.explain()  # what explains itself is compiled


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_entry_does_not_exist(folder: Path, damage: bytes | None) -> None:
    module = trace().module
    (entry,) = entries(folder)
    whole = entry.read_bytes()
    entry.write_bytes(whole[:-1] if damage is None else damage)
    assert trace().module == module
    assert entry.read_bytes() == whole


def key(stitched: Stitched, **changed: Any) -> str | None:
    known = {"hlo": stitched.hlo, "graph": stitched.graph, "donated": stitched.donated}
    known |= {"gpu": stitched.gpu, "strict": False, "code": "PTX"}
    return key_of(**known | changed)


def test_all_that_decides_is_in_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stitched = trace()
    keys = [
        key(stitched),
        key(trace(lambda x: jax.nn.softmax(x) * 2)),
        key(stitched, donated=(True,)),
        key(stitched, gpu=dataclasses.replace(H100, sms=100)),
        key(stitched, strict=True),
        key(stitched, code="CUBIN"),
        key(stitched, stitch="leave-loops"),
        key(stitched, stitch="in-any-order"),
    ]
    (tmp_path / "stitches").write_text("leave all")
    monkeypatch.setenv("ASTITCH_STITCHES", str(tmp_path / "stitches"))
    keys.append(key(stitched))
    monkeypatch.delenv("ASTITCH_STITCHES")
    monkeypatch.setattr(module_cache, "fingerprint", lambda: b"another version")
    keys.append(key(stitched))
    monkeypatch.undo()
    assert None not in keys and len(set(keys)) == len(keys)


def test_the_order_of_a_map_is_not_in_the_key() -> None:
    """XLA writes the attributes of an instruction in another order in each process."""
    stitched = trace()
    keys = set()
    for names in ((b"grad_x", b"grad_y"), (b"grad_y", b"grad_x")):
        module = schema.HloModuleProto.FromString(stitched.hlo)
        attributes = module.computations[-1].instructions[-1].frontend_attributes
        for name in names:
            attributes.map.add(key=name, value=b"false")
        keys.add(key(stitched, hlo=module.SerializeToString()))
    assert len(keys) == 1 and key(stitched) not in keys


@pytest.mark.parametrize(
    "name", [("ASTITCH_DEBUG", "1"), ("ASTITCH_DUMP", "shown"), ("ASTITCH_OVERRIDE", "shown")]
)
def test_what_is_shown_or_measured_is_compiled(
    name: tuple[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    option, value = name
    monkeypatch.setenv(option, str(tmp_path / value) if value == "shown" else value)
    assert key(trace()) is None


def test_a_module_that_calls_something_is_not_kept() -> None:
    """What a custom call holds may be an address of this process."""

    def factor(x: jax.Array) -> jax.Array:
        return jax.numpy.linalg.cholesky(x @ x.T)

    text = jax.jit(factor).lower(X).compiler_ir("hlo").as_serialized_hlo_module_proto()
    graph = import_hlo(text)
    assert any(node.op == "custom-call" for node in graph)
    assert key_of(text, graph, (False,), H100, strict=False, code="PTX") is None


def test_every_source_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "cuda").mkdir()
    (tmp_path / "plan.py").write_text("a = 1")
    (tmp_path / "cuda" / "part.cuh").write_text("int a;")
    seen = {hash_sources(tmp_path)}
    for file, text in (("plan.py", "a = 2"), ("cuda/part.cuh", "int b;"), ("new.py", "")):
        (tmp_path / file).write_text(text)
        seen.add(hash_sources(tmp_path))
    (tmp_path / "notes.txt").write_text("decides nothing")
    seen.add(hash_sources(tmp_path))
    assert len(seen) == 4


def test_the_cache_keeps_within_its_limit(tmp_path: Path) -> None:
    cache = ModuleCache(tmp_path / "small", limit_bytes=3000, suffix=".module")
    for number in range(5):
        cache.store(f"{number:064}", bytes(1000))
    assert sum(file.stat().st_size for file in entries(tmp_path / "small")) <= 3000
    assert cache.load(f"{4:064}") == bytes(1000)


def test_one_of_several_compiles_what_all_ask_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As several processes do: each has a program of its own, and shares nothing with the others but the folder."""
    compile_for_xla, compiled = stitched_call.compile_for_xla, []

    def compile_slowly(*given: Any, **options: Any) -> Any:
        compiled.append(given)
        time.sleep(0.3)
        return compile_for_xla(*given, **options)

    monkeypatch.setattr(stitched_call, "compile_for_xla", compile_slowly)
    asked = [trace() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        modules = list(pool.map(lambda one: one.module, asked))
    assert len(compiled) == 1 and len(set(modules)) == 1
    assert [file.suffix for file in folder.iterdir()] == [".module"]
