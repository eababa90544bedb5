"""What two calls have in common that the same compiled function serves.

Takes the arguments of a call, hands on a key: types and shapes of tensors, values of all else.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any


def is_tensor(leaf: Any) -> bool:
    """Is it given to the compiled function, not part of its signature?"""
    import numpy as np
    import tensorflow as tf

    return isinstance(leaf, tf.Tensor | np.ndarray | np.generic)


def make_key(
    given: Any, leaves: Sequence[Any], places: Sequence[int], tensors: Sequence[Any]
) -> Hashable:
    """given: the arguments, whose leaves are tensors at the places.  The other leaves must outlive the key."""
    import tensorflow as tf

    specs = tuple((tensor.dtype, str(tensor.shape)) for tensor in tensors)
    statics = tuple(_key_of(leaf) for leaf in list_statics(leaves, places))
    structure = str(tf.nest.map_structure(lambda _: 0, given))
    return structure, tuple(places), specs, statics


def list_statics(leaves: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """The leaves that are no tensors."""
    tensors = set(places)
    return [leaf for i, leaf in enumerate(leaves) if i not in tensors]


def _key_of(leaf: Any) -> Hashable:
    """A static argument: by its value where it has one, else by what it is."""
    is_value = leaf is None or isinstance(leaf, bool | int | float | complex | str | bytes)
    return (type(leaf), repr(leaf)) if is_value else id(leaf)
