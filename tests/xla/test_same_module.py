"""Processes that compile one program give XLA one module: whatever the seed of hashes, the threads, the cache of
kernels, and what the process compiled before."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.ahead_of_time import compile_ahead, hooked, needs_hook

pytestmark = needs_hook


def training(x: Any, g: Any, b: Any) -> Any:
    """Kernels of several kinds, a loop with kernels, results in place."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    from tests.emulated_xla import layer_norm

    def loss(p: Any) -> Any:
        x, g, b = p
        turns = lax.scan(lambda c, _: (layer_norm(jnp.tanh(c), g, b), c.sum(-1)), x, None, length=3)
        return jnp.square(jax.nn.softmax(turns[0] @ turns[0].T)).sum() + turns[1].mean()

    return jax.tree.map(lambda p, s: p - 1e-2 * s, (x, g, b), jax.grad(loss)((x, g, b)))


def statistics(x: Any, g: Any, b: Any) -> Any:
    """Kernels whose blocks meet."""
    from tests.emulated_xla import batch_norm

    return batch_norm(x, g, b), (x * g).mean(0), (x + b).max(0)


def with_more_before(x: Any, g: Any, b: Any) -> Any:
    """The same kernels, of ops that are called something else, and others."""
    import jax.numpy as jnp

    ordered = jnp.sort(x, axis=0) * 2 + jnp.cumsum(x, 0) - jnp.sin(x).max(0)
    return training(ordered, g, b), statistics(jnp.exp(-ordered), g + 1, b), ordered


PROGRAMS: dict[str, Callable[..., Any]] = {
    "training": training,
    "statistics": statistics,
    "with_more_before": with_more_before,
}


def compile_one(name: str) -> bytes:
    """What the hook gives back for a program."""
    import jax
    from jax.sharding import SingleDeviceSharding

    from tests.ahead_of_time import devices

    kind: Any = jax.ShapeDtypeStruct
    place = SingleDeviceSharding(devices()[0])
    given = [kind(shape, "float32", sharding=place) for shape in ((2048, 256), (256,), (256,))]
    with hooked() as seen:
        donated = (0, 1, 2) if name == "training" else ()
        compile_ahead(PROGRAMS[name], *given, donate_argnums=donated)
    (stitching,) = seen.stitchings
    assert stitching.module is not None
    return stitching.module


def main(names: str, cpus: int) -> None:
    """Prints digests of the modules, by name, and numbers of kernels."""
    from astitch.xla.agreement import digest_data
    from astitch.xla.hook import count_kernels, read_module

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cpus])
    made = {name: compile_one(name) for name in names.split(",")}
    print(json.dumps({n: [digest_data(m), count_kernels(read_module(m))] for n, m in made.items()}))


def run_process(names: str, cpus: int, seed: int, cache: Path) -> dict[str, Any]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONHASHSEED": str(seed),
        "ASTITCH_CACHE_DIR": str(cache),
    }
    code = f"from tests.xla.test_same_module import main; main({names!r}, {cpus})"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def test_processes_make_one_module(tmp_path: Path) -> None:
    """Cold and with all threads; warm by another program first, with one thread; cold with one thread."""
    first = run_process("training,statistics", 64, 1, tmp_path / "a")
    others = [
        run_process("with_more_before,statistics,training", 1, 2, tmp_path / "b"),
        run_process("statistics,training", 64, 3, tmp_path / "b"),
    ]
    assert first["training"][1] > 3 and first["statistics"][1]
    for other in others:
        assert {name: other[name] for name in first} == first


def test_names_in_a_text_leave_no_trace_in_its_ptx(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Texts of one form share what the first of them was compiled to, so its names must not be in there."""
    from astitch.toolchain import kernel_text, nvrtc

    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))
    compile_request = nvrtc.compile_request
    made: dict[nvrtc.Request, bytes] = {}

    def watch(request: nvrtc.Request) -> nvrtc.CompiledKernel:
        built = compile_request(request)
        made[request] = built.ptx
        return built

    monkeypatch.setattr(nvrtc, "compile_request", watch)
    for name in ("training", "statistics"):
        compile_one(name)
    assert len(made) > 4
    for request, ptx in made.items():
        other = rename_all(request.source)
        assert other != request.source
        assert kernel_text.share_text(other).form == kernel_text.share_text(request.source).form
        assert compile_request(replace(request, source=other)).ptx == ptx


def rename_all(text: str) -> str:
    """The text with other comments, and another name for all that a function declares.

    What stands outside of functions has names of its own kind: the entry's, that of its words, and Reduce0, Reduce1 and
    so on in the order of the text.
    """
    from astitch.toolchain.kernel_text import _ENTRY, _TOKEN, _form_of

    tokens = list(_TOKEN.finditer(text))
    words = [m for m in tokens if m.lastgroup not in ("skip", "space")]
    form = _form_of(text).split("\n")
    # A line of the preprocessor is one token that may have several lines.
    assert len(form) == len(words)
    (entry,) = set(_ENTRY.findall(text))
    declared = {m[0] for m, shown in zip(words, form, strict=True) if shown[:1] == "@"}
    outside = [m[0] for before, m in itertools.pairwise(words) if before[0] == "struct"]
    outside = [name for name in dict.fromkeys(outside) if name in declared]
    assert outside == [f"Reduce{number}" for number in range(len(outside))]
    inside = declared - {entry, f"{entry}_words", *outside}

    def change(kind: str, word: str) -> str:
        if kind == "skip":
            return "/* another */" if word.startswith("/*") else "// another"
        return f"other_{word}_here" if kind == "word" and word in inside else word

    return "".join(change(m.lastgroup or "", m[0]) for m in tokens)
