"""`@tf_addon.function`: one function through astitch, whether or not the add-on is enabled.

Takes a Python function or a tf.function.  By the shim it becomes a tf.function with a mark (`marked_function.py`);
without a compiler see `python_tier.py`.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Sequence
from typing import Any, overload

from astitch.errors import InvalidOption
from tf_addon.errors import ShimUnavailable
from tf_addon.switch import the_switch

TIERS = ("shim", "python")


@overload
def function(
    fn: None = None,
    *,
    buckets: Sequence[int] | None = None,
    tier: str | None = None,
    **options: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...


@overload
def function(
    fn: Callable[..., Any],
    *,
    buckets: Sequence[int] | None = None,
    tier: str | None = None,
    **options: Any,
) -> Callable[..., Any]: ...


def function(
    fn: Callable[..., Any] | None = None,
    *,
    buckets: Sequence[int] | None = None,
    tier: str | None = None,
    **options: Any,
) -> Callable[..., Any]:
    """tf.function(jit_compile=True) whose compiled calls are astitch's.  Decorates with or without arguments.

    buckets: sizes of the first dimension for which it is compiled.  Tensors are padded with zeros to the next of them,
    and results of that size cut, so their rows must not depend on each other (no sum or norm over the batch).  Where
    the size is not known, inside of a graph, nothing is padded.
    tier: "shim" (see enable), "python" (no compiler needed: one step slower, and functions only), or None, the shim
    where it can be built.  options: those of tf.function; a tf.function keeps its own.  What the shim runs is a
    tf.function; it is built when the first function is decorated.  Raises InvalidOption, ShimUnavailable.
    """
    if fn is None:
        return functools.partial(function, buckets=buckets, tier=tier, **options)
    if tier not in (None, *TIERS):
        raise InvalidOption(
            f"tf_addon.function: tier={tier!r} is not known\n  it is one of {', '.join(TIERS)}"
        )
    whole = _stitch(fn, tier, options)
    return whole if buckets is None else Bucketed(whole, buckets)


def _stitch(fn: Callable[..., Any], tier: str | None, options: dict[str, Any]) -> Any:
    """The function by a tier: a tf.function, or a PythonTier."""
    import tensorflow as tf

    from tf_addon.marked_function import mark, options_of

    if isinstance(fn, tf.__internal__.function.Function):
        fn, options = fn.python_function, {**options_of(fn), **options}
    if options.get("jit_compile") is False:
        raise InvalidOption(
            f"tf_addon.function: {fn.__name__} has jit_compile=False, and only compiled functions go through astitch\n"
            "  leave jit_compile out, or use tf.function"
        )
    whole = tf.function(fn, **{**options, "jit_compile": True})
    if tier != "python":
        try:
            the_switch.install()
        except ShimUnavailable:
            if tier == "shim":
                raise
        else:
            return mark(whole)
    from tf_addon.python_tier import PythonTier

    return PythonTier(whole)


class Bucketed:
    """A function called with first dimensions of a few sizes."""

    def __init__(self, fn: Callable[..., Any], buckets: Sequence[int]) -> None:
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._buckets = sorted(set(buckets))
        if not self._buckets or self._buckets[0] < 1:
            raise InvalidOption(
                f"tf_addon.function: buckets={buckets!r}\n  they are sizes of at least 1"
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result for the rows that were given."""
        import tensorflow as tf

        leaves = tf.nest.flatten((args, kwargs))
        sizes = {leaf.shape[0] for leaf in leaves if _has_rows(leaf)}
        if len(sizes) != 1 or None in sizes:
            return self._fn(*args, **kwargs)
        (size,) = sizes
        place = bisect.bisect_left(self._buckets, size)
        if place == len(self._buckets) or self._buckets[place] == size:
            return self._fn(*args, **kwargs)
        wanted = self._buckets[place]

        def pad(leaf: Any) -> Any:
            if not _has_rows(leaf):
                return leaf
            return tf.pad(leaf, [[0, wanted - size], *([0, 0] for _ in leaf.shape[1:])])

        def cut(leaf: Any) -> Any:
            is_padded = _has_rows(leaf) and leaf.shape[0] == wanted
            return leaf[:size] if is_padded else leaf

        padded, named = tf.nest.map_structure(pad, (args, kwargs))
        return tf.nest.map_structure(cut, self._fn(*padded, **named))

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a method of a class."""
        return self if instance is None else functools.partial(self, instance)


def _has_rows(leaf: Any) -> bool:
    """Is it a tensor or array of at least one dimension?"""
    import numpy as np
    import tensorflow as tf

    return isinstance(leaf, tf.Tensor | np.ndarray) and bool(tf.TensorShape(leaf.shape).rank)
