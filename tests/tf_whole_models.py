"""keras.applications at their real depth and width: training steps by astitch's emulation, by XLA, and by XLA in f64.

`python -m tests.tf_whole_models [NAME ...] --steps 20 --size 32 --batch 4`.  Printed is how far losses and weights are
from those in f64, relative.  Rounding grows from step to step; astitch must be no further away than twice XLA.
A model with dropout draws other numbers in f64: of it astitch and XLA are compared alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tf_addon

keras, applications = tf.keras, tf.keras.applications
CLASSES = 10
TIMES_XLA = 2
SAME = 1e-3
"""How far astitch and XLA may be apart where there is no judge."""

MODELS: dict[str, Callable[[int], Any]] = {
    "MobileNetV2": lambda size: applications.MobileNetV2(
        (size, size, 3), 1.0, weights=None, classes=CLASSES
    ),
    "EfficientNetB0": lambda size: applications.EfficientNetB0(
        weights=None, input_shape=(size, size, 3), classes=CLASSES
    ),
    "ResNet50": lambda size: applications.ResNet50(
        weights=None, input_shape=(size, size, 3), classes=CLASSES
    ),
}


WITH_DROPOUT = {"EfficientNetB0"}


def train(name: str, asked: argparse.Namespace, floats: str) -> tuple[list[float], list[Any]]:
    """Losses of the steps and the weights behind them.  floats: Keras' type of all weights."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(0)
    images = random.normal(size=(asked.batch, asked.size, asked.size, 3)).astype("float32")
    labels = random.integers(0, CLASSES, asked.batch)
    model = MODELS[name](asked.size)  # in f32 also for f64, so that all begin with the same weights
    if floats == "float64":
        weights = model.get_weights()
        keras.config.set_floatx(floats)
        try:
            keras.backend.clear_session()
            model = MODELS[name](asked.size)
        finally:
            keras.config.set_floatx("float32")
        model.set_weights(weights)
    model.compile(
        keras.optimizers.SGD(asked.rate, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(),
        jit_compile=True,
    )
    keras.utils.set_random_seed(2)
    losses = [float(model.train_on_batch(images, labels)) for _ in range(asked.steps)]
    return losses, model.get_weights()


def apart(found: Sequence[Any], exact: Sequence[Any]) -> float:
    """The distance of all arrays together, relative."""
    squares = [
        (np.sum((np.asarray(a, "f8") - b) ** 2), np.sum(np.asarray(b, "f8") ** 2))
        for a, b in zip(found, exact, strict=True)
    ]
    return float(np.sqrt(sum(d for d, _ in squares) / sum(n for _, n in squares)))


def compare(name: str, asked: argparse.Namespace) -> bool:
    """Prints a line a model.  Is astitch no further from f64 than XLA, to a factor?"""
    start = time.perf_counter()
    tf_addon.report(reset=True)
    with tf_addon.enabled(engine="host"):
        ours = train(name, asked, "float32")
    report = tf_addon.report(reset=True)
    theirs = train(name, asked, "float32")
    between = [apart(one, other) for one, other in zip(ours, theirs, strict=True)]
    said = f"between astitch and XLA: losses {between[0]:.1e}, weights {between[1]:.1e}"
    right = max(between) < SAME
    if name not in WITH_DROPOUT:
        exact = train(name, asked, "float64")
        found = [apart(one, right) for one, right in zip(ours, exact, strict=True)]
        wanted = [apart(one, right) for one, right in zip(theirs, exact, strict=True)]
        said += f"; from f64: losses {found[0]:.1e} and {wanted[0]:.1e}, weights {found[1]:.1e} and {wanted[1]:.1e}"
        right = all(a <= max(TIMES_XLA * b, 1e-5) for a, b in zip(found, wanted, strict=True))
    print(
        f"{name}: {report.runs} steps, {report.fallbacks} by XLA; losses {ours[0][0]:.4f} to {ours[0][-1]:.4f}; "
        f"{said} ({time.perf_counter() - start:.0f} s)",
        flush=True,
    )
    return right and report.runs == asked.steps and not report.fallbacks


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line.  Returns 1 where a model is further away."""
    parser = argparse.ArgumentParser(prog="python -m tests.tf_whole_models", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--size", type=int, default=32, help="height and width of the images")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rate", type=float, default=0.001, help="of learning")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.names) - set(MODELS):
        parser.error(f"there is no {min(unknown)}; there are {', '.join(MODELS)}")
    right = [compare(name, asked) for name in asked.names or MODELS]
    return int(not all(right))


if __name__ == "__main__":
    sys.exit(main())
