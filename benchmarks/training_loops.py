"""The training loops of `examples/`, by jax.jit alone and behind their line `astitch.enable()`.

`python -m benchmarks.training_loops` prints a row for each library: microseconds a step as its user waits for it, with
the loss read after each step, and the losses of all steps beside each other.  Each side has a process of its own.
Wants a GPU, JAX 0.11.2 and the extra `examples`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence

EXAMPLES = ("flax_nnx", "flax_linen", "equinox_train", "optax_train", "keras_jax")
SIDES = ("plain", "stitched")
WARM, STEPS = 20, 420  # a training of each length: the difference leaves out compilation


def measure(name: str, side: str) -> dict[str, object]:
    """In this process: microseconds a step, the first losses, and kernels of the program that has most."""
    example = importlib.import_module(f"examples.{name}")

    import jax

    import astitch

    if side == "plain":
        astitch.disable()
    losses: list[float] = []
    seconds: dict[int, float] = {}
    with contextlib.redirect_stdout(sys.stderr):
        example.main(1)  # fills JAX's cache: the two trainings that are timed compile alike
        for steps in (WARM, STEPS):
            start = time.perf_counter()
            losses = example.main(steps)
            seconds[steps] = time.perf_counter() - start
    return {
        "us": (seconds[STEPS] - seconds[WARM]) / (STEPS - WARM) * 1e6,
        "losses": losses[:WARM],
        "kernels": max((program.kernels for program in astitch.report().programs), default=0),
        "device": jax.devices()[0].device_kind,
    }


def measure_apart(name: str, side: str) -> dict[str, object]:
    """In a process of its own.  Products are f32 on both sides: else XLA rounds large ones to TF32, kernels none."""
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.training_loops", "--alone", name, side],
        env={"JAX_DEFAULT_MATMUL_PRECISION": "highest", **os.environ},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise SystemExit(f"{name}, {side}: exit status {run.returncode}\n{run.stderr[-2000:]}")
    found: dict[str, object] = json.loads(run.stdout.splitlines()[-1])
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training_loops")
    parser.add_argument("--only", nargs="+", default=EXAMPLES, choices=EXAMPLES)
    parser.add_argument("--alone", nargs=2, metavar=("NAME", "SIDE"), help="in this process")
    options = parser.parse_args(arguments)
    if options.alone:
        print(json.dumps(measure(*options.alone)))
        return
    print(
        f"{'example':14} {'plain us':>9} {'ours us':>9} {'ratio':>6} {'kernels':>7} {'losses apart':>12}"
    )
    for name in options.only:
        plain, ours = (measure_apart(name, side) for side in SIDES)
        apart = max(
            abs(a - b) / abs(a) for a, b in zip(plain["losses"], ours["losses"], strict=True)
        )
        print(
            f"{name:14} {plain['us']:9.0f} {ours['us']:9.0f} {plain['us'] / ours['us']:6.2f} {ours['kernels']:7} "
            f"{apart:12.1e}   {ours['device']}",
            flush=True,
        )


if __name__ == "__main__":
    main()
