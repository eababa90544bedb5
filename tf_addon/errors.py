"""Errors of the TensorFlow add-on.

Each message says where, what, and what to do next, like those of astitch.errors.
"""

from __future__ import annotations

from astitch.errors import AstitchError, EngineUnavailable


class ShimUnavailable(EngineUnavailable):
    """The library that hands TensorFlow's functions to astitch cannot be built or loaded."""


class UnsupportedSignature(AstitchError):
    """A call whose arguments the pure-Python way cannot take over."""


class AddonWarning(RuntimeWarning):
    """astitch is not on where it was asked for, and need not be."""
