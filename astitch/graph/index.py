"""Index algebra: the position that a thread reads, as a linear form over dimension symbols.

A Linear is `constant + sum(coefficient * symbol)`.  Symbols have known ranges, so that the quotients and
remainders which reshapes introduce vanish wherever the dimensions allow it; what cannot be simplified
stays as a Quotient or Remainder symbol.  Nothing here knows of threads or CUDA.

A kernel's candidates ask for the same forms some hundred times.  So each form keeps what was computed from it, under
its identity: equal forms may differ in the order of their terms, which is seen in the emitted text.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

UNBOUNDED = 1 << 62
"""Extent of a symbol of which only the name is known where a form is made."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A non-negative integer below `extent`: the index along one atomic dimension, or one known at run time."""

    name: str
    extent: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Quotient:
    """floor(dividend / divisor); the dividend may be negative only where a guard keeps the value unused."""

    dividend: Linear
    divisor: int

    def __str__(self) -> str:
        return f"(({self.dividend}) / {self.divisor})"


@dataclass(frozen=True, slots=True)
class Remainder:
    """dividend - divisor * floor(dividend / divisor)."""

    dividend: Linear
    divisor: int

    def __str__(self) -> str:
        return f"(({self.dividend}) % {self.divisor})"


Term = Symbol | Quotient | Remainder


class _Kept:
    """What is computed once of a form; an attribute is missing until it is asked for."""

    __slots__ = ("_bounds", "_derived", "_hash", "_symbols")
    _hash: int
    _bounds: tuple[int, int]
    _symbols: frozenset[Symbol]
    _derived: dict[tuple[Callable[..., Linear], object], Linear]


@dataclass(frozen=True, slots=True, eq=False)
class Linear(_Kept):
    """constant + sum of coefficient * term; terms are distinct and have coefficients other than 0.

    Forms are equal whatever the order of their terms, which depends on the reshapes that led to them.
    """

    constant: int = 0
    terms: tuple[tuple[Term, int], ...] = ()

    def __hash__(self) -> int:
        """Computed once: forms are keys of caches, and their trees are deep."""
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash((self.constant, frozenset(self.terms))))
            return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Linear):
            return NotImplemented
        if self is other:
            return True
        if self.constant != other.constant or len(self.terms) != len(other.terms):
            return False
        return self.terms == other.terms or dict(self.terms) == dict(other.terms)

    def __str__(self) -> str:
        parts = [str(t) if c == 1 else f"{t} * {c}" for t, c in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts)

    @property
    def is_constant(self) -> bool:
        return not self.terms

    def coefficient(self, term: Term) -> int:
        return next((c for t, c in self.terms if t == term), 0)


ZERO = Linear()

MOST_KEPT = 1 << 16
"""Sums, and forms of symbols, that are kept; then all are forgotten."""

_of_symbols: dict[Symbol, Linear] = {}
_constants: dict[int, Linear] = {}
_sums: dict[tuple[int, ...], tuple[tuple[Linear, ...], Linear]] = {}
"""By the identities of the forms, which the entry keeps alive."""

Derive = TypeVar("Derive", bound=Callable[..., Linear])
Kept = TypeVar("Kept", bound=Hashable)
Value = TypeVar("Value")


def _kept_with_form(derive: Derive) -> Derive:
    """The function of a form and one more argument, whose results the form keeps."""

    @functools.wraps(derive)
    def find(form: Linear, by: object) -> Linear:
        try:
            return form._derived[derive, by]
        except AttributeError:
            object.__setattr__(form, "_derived", {})
        except KeyError:
            pass
        found = form._derived[derive, by] = derive(form, by)
        return found

    return cast(Derive, find)


def _keep(kept: dict[Kept, Value], key: Kept, value: Value) -> Value:
    if len(kept) >= MOST_KEPT:
        kept.clear()
    kept[key] = value
    return value


def of_symbol(symbol: Term) -> Linear:
    if not isinstance(symbol, Symbol):
        return Linear(0, ((symbol, 1),))  # equal dividends may be written in another order
    found = _of_symbols.get(symbol)
    return found or _keep(_of_symbols, symbol, Linear(0, ((symbol, 1),)))


def constant(value: int) -> Linear:
    return _constants.get(value) or _keep(_constants, value, Linear(value))


@_kept_with_form
def quotient(dividend: Linear, divisor: int) -> Linear:
    """The form of a Quotient, which is not simplified."""
    return of_symbol(Quotient(dividend, divisor))


@_kept_with_form
def remainder(dividend: Linear, divisor: int) -> Linear:
    """The form of a Remainder, which is not simplified."""
    return of_symbol(Remainder(dividend, divisor))


@_kept_with_form
def leave_out(form: Linear, symbol: Symbol) -> Linear:
    """The form where the symbol is 0; a term that divides by something keeps it inside."""
    return Linear(form.constant, tuple((t, c) for t, c in form.terms if t != symbol))


def _collect(value: int, pairs: Iterable[tuple[Term, int]]) -> Linear:
    sums: dict[Term, int] = {}
    for term, coefficient in pairs:
        sums[term] = sums.get(term, 0) + coefficient
    return Linear(value, tuple((t, c) for t, c in sums.items() if c))


def add(*forms: Linear) -> Linear:
    key = tuple(map(id, forms))
    found = _sums.get(key)
    return found[1] if found else _keep(_sums, key, (forms, _add(forms)))[1]


def _add(forms: tuple[Linear, ...]) -> Linear:
    total = _collect(sum(f.constant for f in forms), (pair for f in forms for pair in f.terms))
    for term, coefficient in total.terms:
        if not isinstance(term, Quotient):
            continue
        # a / d and a % d in the ratio of their digits are a again, as when a reshape is undone.
        rest, least = Remainder(term.dividend, term.divisor), coefficient // term.divisor
        if coefficient % term.divisor == 0 and total.coefficient(rest) == least:
            gone = ((term, -coefficient), (rest, -least))
            return add(
                Linear(0, (*total.terms, *gone)),
                scale(term.dividend, least),
                constant(total.constant),
            )
    return total


@_kept_with_form
def scale(form: Linear, factor: int) -> Linear:
    if factor == 0:
        return ZERO
    return Linear(form.constant * factor, tuple((t, c * factor) for t, c in form.terms))


@_kept_with_form
def offset(form: Linear, by: int) -> Linear:
    return Linear(form.constant + by, form.terms)


def term_bounds(term: Term) -> tuple[int, int]:
    """Smallest and largest value, both included."""
    match term:
        case Symbol(_, extent):
            return 0, max(extent - 1, 0)
        case Quotient(dividend, divisor):
            low, high = bounds(dividend)
            return low // divisor, high // divisor
        case Remainder(dividend, divisor):
            low, high = bounds(dividend)
            return (low, high) if low >= 0 and high < divisor else (0, divisor - 1)


def bounds(form: Linear) -> tuple[int, int]:
    """Smallest and largest value that the form can take, both included."""
    try:
        return form._bounds
    except AttributeError:
        low = high = form.constant
        for term, coefficient in form.terms:
            a, b = term_bounds(term)
            low += min(a * coefficient, b * coefficient)
            high += max(a * coefficient, b * coefficient)
        object.__setattr__(form, "_bounds", (low, high))
        return form._bounds


def _split(form: Linear, divisor: int) -> tuple[Linear, Linear]:
    """form = quotient * divisor + rest with rest >= 0, taking whole multiples out of every coefficient."""
    quotient: list[tuple[Term, int]] = []
    rest: list[tuple[Term, int]] = []
    for term, coefficient in form.terms:
        (quotient if coefficient % divisor == 0 else rest).append((term, coefficient))
    whole = Linear(form.constant // divisor, tuple((t, c // divisor) for t, c in quotient))
    rest_form = Linear(form.constant % divisor, tuple(rest))
    # C's / and % truncate, ours floor: they agree only where the dividend is not negative.
    steps = -(bounds(rest_form)[0] // divisor)
    return offset(whole, -steps), offset(rest_form, steps * divisor)


@_kept_with_form
def divide(form: Linear, divisor: int) -> Linear:
    """floor(form / divisor)."""
    if divisor == 1:
        return form
    whole, rest = _split(form, divisor)
    low, high = bounds(rest)
    if low // divisor == high // divisor:
        return offset(whole, low // divisor)
    common = math.gcd(divisor, *(c for _, c in rest.terms))
    if common > 1:  # floor((g a + c) / (g d)) = floor((a + floor(c / g)) / d)
        rest = Linear(rest.constant // common, tuple((t, c // common) for t, c in rest.terms))
        divisor //= common
        if divisor == 1:
            return add(whole, rest)
    if len(rest.terms) == 1 and rest.constant == 0:
        term, coefficient = rest.terms[0]
        if coefficient == 1 and isinstance(term, Quotient):
            return add(whole, divide(term.dividend, term.divisor * divisor))
    return add(whole, quotient(rest, divisor))


@_kept_with_form
def modulo(form: Linear, divisor: int) -> Linear:
    """form - divisor * floor(form / divisor)."""
    if divisor == 1:
        return ZERO
    _, rest = _split(form, divisor)
    low, high = bounds(rest)
    if low // divisor == high // divisor:
        return offset(rest, -(low // divisor) * divisor)
    return remainder(rest, divisor)


def linearize(index: Sequence[Linear], shape: Sequence[int]) -> Linear:
    """Row-major position of `index` in an array of `shape`."""
    total, stride = ZERO, 1
    for position, extent in zip(reversed(index), reversed(shape), strict=True):
        total = add(total, scale(position, stride))
        stride *= extent
    return total


def delinearize(position: Linear, shape: Sequence[int]) -> tuple[Linear, ...]:
    """The index in an array of `shape` whose row-major position is `position`."""
    index: list[Linear] = []
    stride = math.prod(shape)
    for number, extent in enumerate(shape):
        stride //= extent
        quotient = divide(position, stride)
        index.append(ZERO if extent == 1 else quotient if number == 0 else modulo(quotient, extent))
    return tuple(index)


def symbols(form: Linear) -> frozenset[Symbol]:
    """Every symbol that the form depends on."""
    try:
        return form._symbols
    except AttributeError:
        found: set[Symbol] = set()
        for term, _ in form.terms:
            if isinstance(term, Symbol):
                found.add(term)
            else:
                found |= symbols(term.dividend)
        object.__setattr__(form, "_symbols", frozenset(found))
        return form._symbols


def substitute(form: Linear, values: Mapping[Symbol, Linear]) -> Linear:
    """The form with symbols replaced."""
    parts = [constant(form.constant)]
    for term, coefficient in form.terms:
        match term:
            case Symbol():
                value = values.get(term, of_symbol(term))
            case Quotient(dividend, divisor):
                value = divide(substitute(dividend, values), divisor)
            case Remainder(dividend, divisor):
                value = modulo(substitute(dividend, values), divisor)
        parts.append(scale(value, coefficient))
    return add(*parts)


def evaluate(form: Linear, values: Mapping[Symbol, int]) -> int:
    """The value of the form.  Raises KeyError for a symbol without a value."""
    total = form.constant
    for term, coefficient in form.terms:
        match term:
            case Symbol():
                value = values[term]
            case Quotient(dividend, divisor):
                value = evaluate(dividend, values) // divisor
            case Remainder(dividend, divisor):
                value = evaluate(dividend, values) % divisor
        total += coefficient * value
    return total
