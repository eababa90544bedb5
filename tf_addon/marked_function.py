"""A tf.function with a mark by which the shim knows it, whether or not the add-on is enabled.

Takes a tf.function, hands on one of the same options.  TensorFlow carries the mark into forward and backward functions;
a SavedModel gets the function without it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.saved_model import save_context

MARK = {"api_preferred_device": "astitch"}
"""An attribute that tf.function accepts and keeps, and that means nothing to TensorFlow without another one."""


NEVER = {"api_preferred_device": "xla"}
"""The same of a function that is XLA's, whatever is enabled."""


class MarkedFunction(tf.__internal__.function.Function):  # type: ignore[misc]
    """Methods of classes are MarkedFunctions too: TensorFlow makes them of the type and the attributes of this one."""

    @functools.cached_property
    def _unmarked(self) -> Any:
        """What stands in a SavedModel."""
        options = options_of(self)
        kept = {k: v for k, v in options["experimental_attributes"].items() if k not in MARK}
        return tf.__internal__.function.Function(
            self.python_function, self._name, **{**options, "experimental_attributes": kept}
        )

    def _clone(self, python_function: Any) -> Any:
        """TensorFlow's own would be no MarkedFunction, but have the mark, also in a SavedModel."""
        clone = super()._clone(python_function)
        marked = MarkedFunction(clone.python_function, clone._name, **options_of(clone))
        marked._shared_rendezvous = clone._shared_rendezvous
        return marked

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if save_context.in_save_context():
            return self._unmarked(*args, **kwargs)
        return super()._call(*args, **kwargs)

    def _get_concrete_function_garbage_collected(self, *args: Any, **kwargs: Any) -> Any:
        # TensorFlow traces what it saves anew.
        if save_context.in_save_context():
            return self._unmarked._get_concrete_function_garbage_collected(*args, **kwargs)
        return super()._get_concrete_function_garbage_collected(*args, **kwargs)


def mark(function: Any, attribute: Mapping[str, str] = MARK) -> Any:
    """The same tf.function with the mark, MARK or NEVER."""
    options = options_of(function)
    attributes = {**options["experimental_attributes"], **attribute}
    marked = MarkedFunction(
        function.python_function,
        function._name,
        **{**options, "experimental_attributes": attributes},
    )
    return tf.__internal__.decorator.make_decorator(function.python_function, marked)


def options_of(function: Any) -> dict[str, Any]:
    """The options that a tf.function was made with."""
    return {
        "input_signature": function.input_signature,
        "autograph": function._autograph,
        "jit_compile": function._jit_compile,
        "reduce_retracing": function._reduce_retracing,
        "experimental_autograph_options": function._experimental_autograph_options,
        "experimental_attributes": dict(function._attributes),
    }
