"""astitch for TensorFlow: functions that must be compiled run through astitch instead of XLA's code generation.

    tf_addon.enable()    every `tf.function(jit_compile=True)`, Keras model and SavedModel signature, from now on
    tf_addon.disable()   XLA's again; `with tf_addon.enabled():` is both
    tf_addon.function    one function, enabled or not: `@tf_addon.function` where `@tf.function` stood
    tf_addon.never       one function that stays XLA's: `@tf_addon.never`
    tf_addon.load(dir)   a SavedModel's signatures, with the programs that `astitch-export` left beside it
    tf_addon.report()    what was compiled, run, and left to XLA, and why
    tf_addon.report_callback()   a Keras callback that logs it

Importing it imports neither TensorFlow nor JAX.
"""

from __future__ import annotations

from tf_addon.enabling import disable, enable, enabled, report
from tf_addon.functions import function, never
from tf_addon.report import Report
from tf_addon.report_callback import report_callback
from tf_addon.saved_models import load

__all__ = [
    "Report",
    "disable",
    "enable",
    "enabled",
    "function",
    "load",
    "never",
    "report",
    "report_callback",
]
