"""`@tf_addon.function`: one function through astitch, whether or not the add-on is enabled.

Takes a Python function or a tf.function.  By the shim it becomes a tf.function with a mark (`marked_function.py`);
without a compiler see `python_tier.py`.
"""

from __future__ import annotations

import bisect
import functools
import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, overload

from astitch.errors import InvalidOption
from tf_addon.enabling import takeover
from tf_addon.errors import ShimUnavailable
from tf_addon.methods import Method
from tf_addon.signatures import is_tensor, list_statics, make_key

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
    and results whose first dimension follows theirs are cut.  So rows must not depend on each other (no sum or norm
    over the batch).  Which do is seen by tracing the function for two sizes for each bucket.  Nothing is padded where
    the size is not known, inside of a graph, or not the same for all tensors.  Nor where a result follows it in another
    way (twice the rows, a transpose).
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


def never(fn: Callable[..., Any] | None = None, **options: Any) -> Callable[..., Any]:
    """tf.function(jit_compile=True) that XLA compiles and runs, also where the add-on is enabled.

    Decorates with or without arguments.  options: those of tf.function; a tf.function keeps its own.
    Raises InvalidOption for jit_compile=False: such a function never goes through astitch.
    """
    if fn is None:
        return functools.partial(never, **options)
    import tensorflow as tf

    from tf_addon.marked_function import NEVER, mark, options_of

    if isinstance(fn, tf.__internal__.function.Function):
        fn, options = fn.python_function, {**options_of(fn), **options}
    if options.get("jit_compile") is False:
        raise InvalidOption(
            "tf_addon.never: jit_compile=False, and TensorFlow runs it anyway\n  use tf.function"
        )
    whole = tf.function(fn, **{**options, "jit_compile": True})
    marked: Callable[..., Any] = mark(whole, NEVER)
    return marked


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
            takeover.install()
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
        loose = {
            "jit_compile": None,
            "input_signature": None,
            "experimental_attributes": None,
            "reduce_retracing": False,  # it would make the dimensions unknown that are looked at
        }
        self._traced = tf.function(plain.python_function, **{**options_of(plain), **loose})
        self._rows: dict[Hashable, list[bool] | None] = {}
        self._kept: list[Any] = []  # static arguments: those known by their address must stay
        self._told: set[str] = set()
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
        given = padded, named
        leaves = tf.nest.flatten(given)
        places = [i for i, leaf in enumerate(leaves) if is_tensor(leaf)]
        tensors = [tf.convert_to_tensor(leaves[i]) for i in places]
        key = make_key(given, leaves, places, tensors)
        rows = self._rows[key] if key in self._rows else self._find_rows(given, wanted)
        if rows is None:
            self._tell_once(
                "not padded: for a bucket's size it fails, or a result follows the size otherwise than by rows"
            )
            found = self._fn(*args, **kwargs)
        else:
            found = self._fn(*padded, **named)
        if key not in self._rows:  # not before: a call that fails keeps no arguments
            self._kept += list_statics(leaves, places)
            self._rows[key] = rows
        if rows is None:
            return found
        results = [
            leaf[:size] if is_padded and leaf.shape[0] == wanted else leaf
            for leaf, is_padded in zip(tf.nest.flatten(found), rows, strict=True)
        ]
        return tf.nest.pack_sequence_as(found, results)

    def _find_rows(self, given: Any, size: int) -> list[bool] | None:
        """Which results have as many rows as the arguments, which are `size`?

        None where a result would hold what becomes of the padding.  Traces the function for the size and for another.
        """
        try:
            shapes = self._trace_shapes(given, size)
        except Exception:  # the call without padding may work, and else has the right words
            return None
        try:
            others = self._trace_shapes(given, size + 1)
        except Exception:  # it works for some sizes only, beside a captured tensor of as many rows
            return [
                shape.rank is None or shape[:1].as_list() in ([size], [None]) for shape in shapes
            ]
        if len(shapes) != len(others):
            return None
        rows = [_compare(*pair, size) for pair in zip(shapes, others, strict=True)]
        return None if None in rows else [bool(row) for row in rows]

    def _trace_shapes(self, given: Any, size: int) -> list[Any]:
        """The shapes of the function's results for arguments of so many rows."""
        import tensorflow as tf

        def resize(leaf: Any) -> Any:
            return tf.TensorSpec([size, *leaf.shape[1:]], leaf.dtype) if _has_rows(leaf) else leaf

        args, kwargs = tf.nest.map_structure(resize, given)
        traced = self._traced.get_concrete_function(*args, **kwargs)
        results = tf.nest.flatten(traced.structured_outputs)
        return [tf.TensorShape(getattr(leaf, "shape", [])) for leaf in results]

    def _tell_unequal(self, sizes: Iterable[int | None]) -> None:
        shown = ", ".join(sorted(map(str, sizes)))
        self._tell_once(
            "arguments with first dimensions of different sizes (%s) are not padded", shown
        )

    def _tell_once(self, message: str, *shown: str) -> None:
        if message not in self._told:
            self._told.add(message)
            log.warning(f"%s: {message}", getattr(self, "__name__", "function"), *shown)


def _compare(shape: Any, other: Any, size: int) -> bool | None:
    """Are a result's rows those of the arguments?  None where it follows the size in another way.

    shape, other: it has them where the arguments have `size` rows, and one more.  What is not known is seen when the
    result is there.
    """
    if shape.rank is None or other.rank is None:
        return True
    if shape.rank != other.rank or shape[1:].as_list() != other[1:].as_list():
        return None
    first, second = shape[:1].as_list(), other[:1].as_list()
    if None in first + second or (first, second) == ([size], [size + 1]):
        return True
    return False if first == second else None


def _has_rows(leaf: Any) -> bool:
    """Is it a tensor or array of at least one dimension?"""
    import numpy as np
    import tensorflow as tf

    return isinstance(leaf, tf.Tensor | np.ndarray) and bool(tf.TensorShape(leaf.shape).rank)
