"""`python -m astitch.doctor`: what is installed, which engines work, and what to install.

Prints a line for each part and each engine.  Each engine compiles and runs one kernel in a process of its own, so that
one that dies takes no other along.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from astitch.api.installation import Finding, check_installation
from astitch.faults import show_error

LONGEST_S = 300.0
"""For one engine, whose libraries are loaded from a cold disk at worst."""

ROWS, COLUMNS = 64, 512
TOLERANCE = 1e-5

WHAT = {
    "hook": "astitch.enable(): kernels in every program that JAX compiles for a GPU",
    "xla": "astitch.jit, kernels inside a program of XLA's",
    "executor": "astitch.jit and compile_hlo, launched by CuPy",
    "host": "the emulation, without a GPU",
}
"""The engines, and what each is for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line.  Returns the exit status: 0 where an engine works and nothing that is installed is bad."""
    parser = argparse.ArgumentParser(
        prog="python -m astitch.doctor",
        description="Says what is installed and which engines work; compiles and runs a kernel with each.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--engine", choices=WHAT, help="try this engine alone, in this process")
    given = parser.parse_args(arguments)
    if given.engine:
        print(json.dumps(_try_here(given.engine)))
        return 0
    parts = check_installation()
    if not given.json:
        print("\n".join(map(str, parts)), flush=True)
    engines = []
    for name in WHAT:
        engines.append(try_engine(name))
        if not given.json:
            print(engines[-1], flush=True)
    findings = [*parts, *engines]
    has_gpu = any(p.part == "GPUs" and p.good for p in parts)
    works = any(e.good for e in engines if e.part != "host" or not has_gpu)
    bad = [finding for finding in findings if finding.good is False]
    if given.json:
        shown = {"works": works, "findings": [asdict(finding) for finding in findings]}
        print(json.dumps(shown, indent=2))
    else:
        print(_advise(findings, works, has_gpu))
    return 0 if works and not bad else 1


def _advise(findings: Sequence[Finding], works: bool, has_gpu: bool) -> str:
    """What to do, first what is bad."""
    wanted = sorted((f for f in findings if f.advice), key=lambda f: f.good is None)
    lines = [f"  {f.part}: {f.advice}" for f in wanted]
    emulated = "" if has_gpu else ", in the emulation: there is no GPU"
    head = f"astitch works here{emulated}." if works else "astitch does not work here."
    todo = ["To have more of it:" if works else "What to do:"] if lines else []
    return "\n".join(["", head, *todo, *lines])


def try_engine(name: str) -> Finding:
    """Whether an engine compiles and runs a kernel, tried in a process of its own."""
    command = [sys.executable, "-m", "astitch.doctor", "--engine", name]
    environment = {
        **os.environ,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "ASTITCH_FAULTS": "raise",
    }
    environment |= {"ASTITCH_DEBUG": "", "ASTITCH_DUMP": "", "ASTITCH_LOG": ""}
    try:
        ran = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding(name, False, f"no answer within {LONGEST_S:.0f} s", "see nvidia-smi")
    try:
        said = json.loads(ran.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        lines = ran.stderr.strip().splitlines() or [f"it ended with status {ran.returncode}"]
        advice = f"run it alone: python -m astitch.doctor --engine {name}"
        return Finding(name, False, lines[-1], advice)
    return Finding(name, said["good"], f"{said['says']} ({WHAT[name]})", said.get("advice", ""))


# ---- one engine, in its own process --------------------------------------------------------------


def _try_here(name: str) -> dict[str, Any]:
    try:
        return TRIES[name]()
    except Exception as error:
        first, *rest = show_error(error), *str(error).splitlines()[1:]
        alone = f"run it alone: python -m astitch.doctor --engine {name}"
        return {"good": False, "says": first, "advice": " ".join(map(str.strip, rest)) or alone}


def _try_hook() -> dict[str, Any]:
    import jax

    import astitch
    from astitch.api.enabling import why_no_hook

    if why := why_no_hook() or _miss_jax_gpu():
        return _miss(why)
    astitch.enable(tune=False)
    return _run(jax.jit(_normalise), lambda: sum(e.kernels for e in astitch.report().programs))


def _try_xla() -> dict[str, Any]:
    from astitch.api.engines import miss_for_xla

    if why := miss_for_xla():
        return _miss(why)
    return _run_jit("xla")


def _try_executor() -> dict[str, Any]:
    from astitch.run.executor import count_gpus

    if not count_gpus():
        return _miss("CuPy sees no GPU")
    return _run_jit("executor")


def _try_host() -> dict[str, Any]:
    from astitch.library.xla_fallback import has_jax

    if not has_jax():
        return _miss("JAX is missing\npip install 'astitch[jax]'")
    return _run_jit("host")


TRIES: dict[str, Callable[[], dict[str, Any]]] = {
    "hook": _try_hook,
    "xla": _try_xla,
    "executor": _try_executor,
    "host": _try_host,
}


def _run_jit(engine: str) -> dict[str, Any]:
    import astitch

    stitched = astitch.jit(_normalise, engine=engine, tune=False)
    return _run(stitched, lambda: len(stitched.lower(_example()).compile().program.kernels))


def _run(function: Callable[[Any], Any], count: Callable[[], int]) -> dict[str, Any]:
    """Calls a function that is to have a kernel, and compares its result with NumPy's."""
    import numpy as np

    x = _example()
    start = time.perf_counter()
    found = np.asarray(function(x))
    seconds = time.perf_counter() - start
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    error = float(np.abs(found - expected).max())
    kernels = count()
    if not kernels:
        return {"good": False, "says": "runs, but made no kernel"}
    if not error < TOLERANCE:
        return {
            "good": False,
            "says": f"its kernel is wrong by {error:.1e}",
            "advice": "please report it",
        }
    return {
        "good": True,
        "says": f"compiled and ran a kernel in {seconds:.1f} s, right to {error:.0e}",
    }


def _miss(why: str) -> dict[str, Any]:
    says, _, advice = why.partition("\n")
    return {"good": None, "says": f"not tried: {says}", "advice": advice.strip()}


def _miss_jax_gpu() -> str:
    from astitch.library.xla_fallback import default_gpu

    return "" if default_gpu() is not None else "JAX has no GPU here"


def _example() -> Any:
    import numpy as np

    return np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)


def _normalise(x: Any) -> Any:
    """A LayerNorm without weights: two row sums, so that it is worth a kernel."""
    import jax
    import jax.numpy as jnp

    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-6)


if __name__ == "__main__":
    sys.exit(main())
