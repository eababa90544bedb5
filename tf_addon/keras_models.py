"""Keras' models and steps: how "auto" is to mean compiled, and which of its steps a function is.

Takes the Keras that is imported, if one is.  Changes what jit_compile="auto" means: on a TensorFlow that knows no GPU
Keras takes it for False.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

_before: dict[type, Callable[[Any], bool]] = {}
"""Keras' own answers, by the class that gives them."""


def find_trainer() -> Any | None:
    """Keras' base class of what is compiled; None where Keras 3 is not imported or runs on another backend."""
    module = sys.modules.get("keras.src.trainers.trainer")
    if module is None or module.backend.backend() != "tensorflow":
        return None
    return module.Trainer


def compile_auto() -> bool:
    """From now on Keras compiles models of jit_compile="auto" that support it.  Is there a Keras to be told?"""
    import tensorflow as tf

    _ = tf.keras.Model  # tensorflow imports it when it is first asked for
    trainer = find_trainer()
    if trainer is None:
        return False
    if trainer not in _before:
        supports = sys.modules["keras.src.trainers.trainer"].model_supports_jit
        _before[trainer] = trainer._resolve_auto_jit_compile
        trainer._resolve_auto_jit_compile = supports
    return True


def leave_auto() -> None:
    """From now on "auto" means what it means without astitch."""
    for trainer, before in _before.items():
        trainer._resolve_auto_jit_compile = before  # type: ignore[attr-defined]
    _before.clear()


KERAS_STEPS = ("one_step_on_data", "multi_step_on_iterator")
"""What Keras calls the function of fit, that of evaluate and that of predict."""


@functools.lru_cache(maxsize=4096)
def phase_of(function: str) -> str:
    """train, test or predict: which of Keras' steps a function is, by TensorFlow's name of it; empty: none.

    A step that trains has a gradient; one that tests assigns its metrics; one that predicts does neither.
    """
    if not any(f"_{step}_" in function for step in KERAS_STEPS):
        return ""
    from tensorflow.python.eager import context

    try:
        nodes = context.context().get_function_def(function).node_def
    except Exception:  # it is gone
        return ""
    if any("gradient_tape" in node.name for node in nodes):
        return "train"
    return "test" if any(node.op == "AssignVariableOp" for node in nodes) else "predict"
