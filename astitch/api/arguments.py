"""The arguments of a call, as jax.jit takes them: static ones, donated ones, tracers, where they lie.

Takes a function's options and a call's arguments, hands on what decides which compiled signature runs.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Statics:
    """Which arguments are values at compile time, or donated: positions (negative from the end) and names."""

    numbers: tuple[int, ...]
    names: frozenset[str]

    def mark(self, count: int) -> list[bool]:
        """For each of `count` positional arguments, whether it is one of these."""
        positions = {n + count if n < 0 else n for n in self.numbers}
        return [i in positions for i in range(count)]

    def split(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[tuple[Any, ...], dict[str, Any]], Hashable]:
        """The arrays, as JAX flattens them; and the static values with where they stand."""
        if not self.numbers and not self.names:
            return (tuple(args), dict(kwargs)), ()
        meant = self.mark(len(args))
        dynamic = tuple(x for x, static in zip(args, meant, strict=True) if not static)
        rest = {name: x for name, x in kwargs.items() if name not in self.names}
        # With their types: 1, 1.0 and True are equal, and trace to different programs.
        static = tuple((i, type(x), x) for i, x in enumerate(args) if meant[i])
        named = tuple((n, type(kwargs[n]), kwargs[n]) for n in sorted(kwargs) if n in self.names)
        return (dynamic, rest), (static, named)


def find_statics(
    fn: Callable[..., Any],
    numbers: int | Sequence[int] | None,
    names: str | Iterable[str] | None,
) -> Statics:
    """The static arguments, by number and by name.  If only one of the two is given, the other follows from the
    signature, as in jax.jit."""
    given = _list_numbers(numbers)
    named = {names} if isinstance(names, str) else set(names or ())
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return Statics(given, frozenset(named))
    both = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    positional = [
        p.name
        for p in parameters
        if p.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    ]
    if numbers is not None and names is None:
        inside = [n for n in given if -len(positional) <= n < len(positional)]
        named = {positional[n] for n in inside if positional[n] in both}
    elif names is not None and numbers is None:
        given = tuple(i for i, name in enumerate(positional) if name in named and name in both)
    return Statics(given, frozenset(named))


def _list_numbers(numbers: int | Sequence[int] | None) -> tuple[int, ...]:
    if numbers is None:
        return ()
    try:
        return (operator.index(numbers),)  # type: ignore[arg-type]  # as JAX asks
    except TypeError:
        return tuple(map(operator.index, numbers))  # type: ignore[arg-type]


def is_traced(leaves: Sequence[Any]) -> bool:
    """Whether a JAX transformation is under way in the arguments of a call."""
    import jax

    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


@functools.cache
def array_type() -> type:
    """JAX's class of arrays of numbers on devices, neither tracers nor random keys."""
    from jax._src.array import ArrayImpl

    return ArrayImpl


def are_same(avals: Sequence[Any], others: Sequence[Any]) -> bool:
    """Are the types of arrays equal?  Those of arrays that came before are the same objects: equality takes longer."""
    return len(avals) == len(others) and all(
        a is b or a == b for a, b in zip(avals, others, strict=True)
    )


def find_place(leaves: Sequence[Any]) -> Any | None:
    """Where a call's results are committed to: the sharding of its first committed argument, for arrays of any shape.

    leaves: the arrays of the call, or their jax.ShapeDtypeStruct.  None: no argument is committed, nor are the results.
    """
    import jax

    kind: Any = array_type()
    for leaf in leaves:
        if type(leaf) is kind and not leaf._committed:  # committed, at half its time
            continue
        sharding = _find_sharding(leaf)
        if isinstance(sharding, jax.sharding.NamedSharding):
            spec: Any = jax.sharding.PartitionSpec
            return jax.sharding.NamedSharding(sharding.mesh, spec())
        if sharding is not None:
            return sharding
    return None


def _find_sharding(leaf: Any) -> Any | None:
    """Where an argument is committed to, or is to be."""
    import jax

    if isinstance(leaf, jax.core.Tracer):
        return None
    if isinstance(leaf, jax.ShapeDtypeStruct) or getattr(leaf, "committed", False):
        return leaf.sharding
    return None


def find_elsewhere(leaves: Sequence[Any], device: Any) -> str:
    """Which argument is committed to another device than an engine's; nothing: the empty string."""
    for number, leaf in enumerate(leaves):
        place = find_place([leaf])
        if place is not None and place.device_set != {device}:
            places = ", ".join(sorted(map(str, place.device_set)))
            return f"argument {number} lies on {places}; the engine runs on {device}"
    return ""


def lies_at(array: Any, place: Any) -> bool:
    """Is a JAX array committed to a place, and says so in the same words?"""
    return bool(array.committed and array.sharding == place)


def is_key(type_: Any) -> bool:
    """Whether an array is one of random keys, which a program takes and gives as their words."""
    import jax

    return bool(jax.numpy.issubdtype(type_.dtype, jax.dtypes.prng_key))
