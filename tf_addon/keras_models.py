"""Keras models that TensorFlow does not compile: which they are, and how "auto" is to mean compiled.

Takes the Keras that is imported, if one is.  Hands on sentences for the report, or changes what jit_compile="auto"
means: on a TensorFlow that knows no GPU Keras takes it for False.
"""

from __future__ import annotations

import functools
import gc
import os
import re
import sys
from collections.abc import Callable
from typing import Any

_before: dict[type, Callable[[Any], bool]] = {}
"""Keras' own answers, by the class that gives them."""


def find_notes() -> tuple[str, ...]:
    """A sentence for each kind of function that astitch does not get, and what to do."""
    return (*_list_models(), *_find_clustering())


def _list_models() -> list[str]:
    trainer = _find_trainer()
    if trainer is None:
        return []
    names = []
    for model in gc.get_objects():
        if (
            isinstance(model, trainer)
            and getattr(model, "compiled", False)
            and not model.jit_compile
        ):
            names.append(str(getattr(model, "name", type(model).__name__)))
    shown = ", ".join(sorted(names)[:8]) + (" ..." if len(names) > 8 else "")
    if not names:
        return []
    return [
        f"Keras runs {shown} without compiling: jit_compile is False, as which Keras takes 'auto' where TensorFlow "
        "knows no GPU\n    compile with model.compile(..., jit_compile=True), or call tf_addon.enable(keras='jit') "
        "before model.compile"
    ]


def _find_clustering() -> list[str]:
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return []
    if tensorflow.config.optimizer.get_jit() == "autoclustering":
        how = "tf.config.optimizer.set_jit"
    elif flag := _FLAG.search(os.environ.get("TF_XLA_FLAGS", "")):
        how = f"TF_XLA_FLAGS={flag[0]}"
    else:
        return []
    return [
        f"auto-clustering is on ({how}): XLA computes what it clusters, and astitch does not see it\n"
        "    decorate functions with tf.function(jit_compile=True)"
    ]


_FLAG = re.compile(r"--tf_xla_auto_jit=(?!0\b|-1\b)[^\s,]+")
"""What turns it on from outside, which TensorFlow's `get_jit` does not see.  0: off; -1: as the program says."""


def _find_trainer() -> Any | None:
    """Keras' base class of what is compiled; None where Keras 3 is not imported or runs on another backend."""
    module = sys.modules.get("keras.src.trainers.trainer")
    if module is None or module.backend.backend() != "tensorflow":
        return None
    return module.Trainer


def compile_auto() -> bool:
    """From now on Keras compiles models of jit_compile="auto" that support it.  Is there a Keras to be told?"""
    import tensorflow as tf

    _ = tf.keras.Model  # tensorflow imports it when it is first asked for
    trainer = _find_trainer()
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
