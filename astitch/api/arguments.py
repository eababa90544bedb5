"""The arguments of a call, as jax.jit takes them: static ones, donated ones, tracers, JAX's settings.

Takes a function's options and a call's arguments, hands on what decides which compiled signature runs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Statics:
    """Which arguments are values at compile time, or donated: positions (negative from the end) and names."""

    numbers: tuple[int, ...]
    names: frozenset[str]

    def mark(self, count: int) -> list[bool]:
        """Of so many positional arguments, which are meant."""
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
    """As jax.jit: where only one of the two is given, the other follows from the function's signature."""
    given = (numbers,) if isinstance(numbers, int) else tuple(numbers or ())
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


def jax_settings() -> Hashable:
    """Every JAX setting that decides what a function lowers to (64-bit types, random numbers, precision ...)."""
    from jax._src import config  # what jax.jit itself keys its cache by; there is no public name

    key: Hashable = config.trace_context()
    return key


def is_jit_disabled() -> bool:
    import jax

    config: Any = jax.config  # its types do not name what it holds
    return bool(config.jax_disable_jit)


def is_key(type_: Any) -> bool:
    """Whether an array is one of random keys, which a program takes and gives as their words."""
    import jax

    return bool(jax.numpy.issubdtype(type_.dtype, jax.dtypes.prng_key))
