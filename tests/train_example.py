"""Trains an example in a process of its own: python -m tests.train_example NAME STEPS stitched|plain

Prints JSON in its last line: the losses, how many programs have stitched kernels, and JAX's backend.
"""

from __future__ import annotations

import importlib
import json
import sys


def main(name: str, steps: str, how: str) -> None:
    example = importlib.import_module(f"examples.{name}")

    import jax

    import astitch

    if how == "plain":
        astitch.disable()
    losses = example.main(int(steps))
    found = {
        "losses": losses,
        "stitched": astitch.report().stitched,
        "backend": jax.default_backend(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
