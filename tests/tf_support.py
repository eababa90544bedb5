"""What the tests of the TensorFlow add-on share: a function beside XLA's, and what the report says of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tf_addon
from tf_addon.report import FunctionReport, Report


def both(call: Callable[[], Any], engine: str = "host") -> tuple[Any, Any, Report]:
    """What `call` gives through astitch, in the emulation, and through XLA, and the report of the first."""
    tf_addon.report(reset=True)
    with tf_addon.enabled(engine=engine):
        ours = call()
    found = tf_addon.report(reset=True)
    return ours, call(), found


def flatten(value: Any) -> list[np.ndarray[Any, Any]]:
    """Tensors, arrays and numbers of any structure as float64 arrays, integers and truths as they are."""
    import tensorflow as tf

    arrays = [np.asarray(leaf) for leaf in tf.nest.flatten(value)]
    return [a if a.dtype.kind in "biuSO" else a.astype(np.float64) for a in arrays]


def assert_equal(ours: Any, theirs: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Both structures hold the same values, to a tolerance where they are floats."""
    first, second = flatten(ours), flatten(theirs)
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert a.shape == b.shape
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
        else:
            np.testing.assert_array_equal(a, b)


def check_stitched(
    call: Callable[[], Any], rtol: float = 1e-5, atol: float = 1e-6, engine: str = "host"
) -> Sequence[FunctionReport]:
    """`call` gives what XLA gives and runs through astitch alone; the functions that did."""
    ours, theirs, found = both(call, engine)
    assert_equal(ours, theirs, rtol, atol)
    assert found.runs > 0 and found.fallbacks == 0, str(found)
    return found.functions
