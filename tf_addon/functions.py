"""`@tf_addon.function`: one function through astitch, whether or not the add-on is enabled.

Takes a Python function or a tf.function.  By the shim it becomes a tf.function with a mark (`marked_function.py`);
without a compiler see `python_tier.py`.
"""

from __future__ import annotations

import bisect
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

from astitch.errors import InvalidOption
from tf_addon.errors import ShimUnavailable
from tf_addon.methods import Method
from tf_addon.switch import the_switch

log = logging.getLogger("tf_addon")

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
    and results whose first dimension follows theirs cut, so rows must not depend on each other (no sum or norm over the
    batch).  Which do is seen by tracing the function once more for each bucket.  Where the size is not known, inside of
    a graph, or not the same for all tensors, nothing is padded.
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
    if buckets is not None and (not buckets or min(buckets) < 1):
        raise InvalidOption(
            f"tf_addon.function: buckets={buckets!r}\n  they are sizes of at least 1"
        )
    whole = _stitch(fn, tier, options)
    return whole if buckets is None else Bucketed(whole, sorted(set(buckets)))


def _stitch(fn: Callable[..., Any], tier: str | None, options: dict[str, Any]) -> Any:
    """The function by a tier: a tf.function, or a PythonTier."""
    import tensorflow as tf

    from tf_addon.marked_function import mark, options_of

    if isinstance(fn, tf.__internal__.function.Function):
        fn, options = fn.python_function, {**options_of(fn), **options}
    if options.get("jit_compile") is False:
        name = getattr(fn, "__name__", "a function")
        raise InvalidOption(
            f"tf_addon.function: {name} has jit_compile=False, and only compiled functions go through astitch\n"
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


class Bucketed(Method):
    """A function called with first dimensions of a few sizes."""

    def __init__(self, fn: Any, buckets: Sequence[int]) -> None:
        """fn: a tf.function or a PythonTier.  buckets: sorted."""
        import tensorflow as tf

        from tf_addon.marked_function import options_of

        super().__init__()
        plain = getattr(fn, "plain", fn)
        functools.update_wrapper(self, plain.python_function)
        self._fn, self._buckets = fn, buckets
        loose = {"jit_compile": None, "input_signature": None, "experimental_attributes": None}
        self._traced = tf.function(plain.python_function, **{**options_of(plain), **loose})
        self._told = False
        # Autograph else rewrites our code when a graph calls it.
        self._unconverted = tf.autograph.experimental.do_not_convert(self._run)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result for the rows that were given."""
        return self._unconverted(*args, **kwargs)

    def bind(self, instance: object, owner: type | None) -> Bucketed:
        """The same buckets for an instance's method."""
        return Bucketed(self._fn.__get__(instance, owner), self._buckets)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        leaves = tf.nest.flatten((args, kwargs))
        sizes = {leaf.shape[0] for leaf in leaves if _has_rows(leaf)}
        if len(sizes) > 1:
            self._tell_unequal(sizes)
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

        padded, named = tf.nest.map_structure(pad, (args, kwargs))
        found = self._fn(*padded, **named)
        results = [
            leaf[:size] if is_padded and leaf.shape[0] == wanted else leaf
            for leaf, is_padded in zip(
                tf.nest.flatten(found), self._find_rows((padded, named), wanted + 1), strict=True
            )
        ]
        return tf.nest.pack_sequence_as(found, results)

    def _find_rows(self, given: Any, size: int) -> list[bool]:
        """Which results have as many rows as the arguments?  Found by tracing the function for another size."""
        import tensorflow as tf

        def resize(leaf: Any) -> Any:
            return tf.TensorSpec([size, *leaf.shape[1:]], leaf.dtype) if _has_rows(leaf) else leaf

        args, kwargs = tf.nest.map_structure(resize, given)
        traced = self._traced.get_concrete_function(*args, **kwargs)
        shapes = [
            tf.TensorShape(getattr(leaf, "shape", []))
            for leaf in tf.nest.flatten(traced.structured_outputs)
        ]
        return [
            shape.rank is None or (shape.rank > 0 and shape[0] in (None, size)) for shape in shapes
        ]

    def _tell_unequal(self, sizes: Iterable[int | None]) -> None:
        """Once."""
        if not self._told:
            self._told = True
            shown = ", ".join(sorted(map(str, sizes)))
            log.warning(
                "%s: arguments with first dimensions of different sizes (%s) are not padded",
                getattr(self, "__name__", "function"),
                shown,
            )


def _has_rows(leaf: Any) -> bool:
    """Is it a tensor or array of at least one dimension?"""
    import numpy as np
    import tensorflow as tf

    return isinstance(leaf, tf.Tensor | np.ndarray) and bool(tf.TensorShape(leaf.shape).rank)
