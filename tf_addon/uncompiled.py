"""What TensorFlow does not compile, so that astitch does not get it: sentences for the report, with what to do.

Takes the TensorFlow and the Keras that are imported, and the objects of this process.  Nothing of TensorFlow's is
patched: what is not compiled says nothing of itself, so it is looked for.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Iterable
from typing import Any

from tf_addon.keras_models import find_trainer

MOST_NAMES = 8
"""That a sentence lists."""

_FLAG = re.compile(r"--tf_xla_auto_jit=(?!0\b|-1\b)[^\s,]+")
"""What turns clustering on from outside; TensorFlow's `get_jit` does not see it.  0: off; -1: as the program says."""

_NOT_THE_USERS = "tensorflow", "keras", "tf_addon"
"""Packages whose own functions are no news: Keras' steps are told of by their models."""


def find_notes() -> tuple[str, ...]:
    """A sentence for each kind of function that astitch does not get, and what to do."""
    return (*_list_uncompiled(), *_find_clustering())


def _list_uncompiled() -> list[str]:
    trainer, function = find_trainer(), _find_function()
    models, functions = [], []
    for each in gc.get_objects():
        kind = type(each)  # not isinstance: a proxy may answer for what it stands for, or raise
        if trainer is not None and issubclass(kind, trainer):
            if getattr(each, "compiled", False) and not each.jit_compile:
                models.append(str(getattr(each, "name", kind.__name__)))
        elif function is not None and issubclass(kind, function):
            if _is_users(each) and not _is_compiled(each) and each.experimental_get_tracing_count():
                functions.append(str(getattr(each.python_function, "__name__", "a function")))
    notes = []
    if models:
        notes.append(
            f"Keras runs {_list(models)} without compiling: jit_compile is False, as which Keras takes 'auto' where "
            "TensorFlow knows no GPU\n    compile with model.compile(..., jit_compile=True), or call "
            "tf_addon.enable(keras='jit') before model.compile"
        )
    if functions:
        notes.append(
            f"TensorFlow runs {_list(functions)} without compiling, unless a compiled function calls it: its "
            "tf.function has no jit_compile=True\n    decorate with tf.function(jit_compile=True) or tf_addon.function"
        )
    return notes


def _list(names: Iterable[str]) -> str:
    each = sorted(set(names))
    return ", ".join(each[:MOST_NAMES]) + (" ..." if len(each) > MOST_NAMES else "")


def _is_compiled(function: Any) -> bool:
    """Also where a TensorFlow does not say, so that nothing false is told."""
    return bool(getattr(function, "_jit_compile", True))


def _is_users(function: Any) -> bool:
    module = getattr(function.python_function, "__module__", None) or ""
    return module.partition(".")[0] not in _NOT_THE_USERS


def _find_function() -> Any | None:
    """The class of what tf.function makes; None where TensorFlow is not imported or has another."""
    name = "tensorflow.python.eager.polymorphic_function.polymorphic_function"
    found = getattr(sys.modules.get(name), "Function", None)
    needed = "python_function", "experimental_get_tracing_count"
    return found if all(hasattr(found, each) for each in needed) else None


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
