"""Index algebra against brute force: every form, whatever it simplifies to, has the same values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astitch.graph import index as ix
from astitch.graph.index import Linear, Quotient, Remainder, Symbol, Term

I, J, K = Symbol("i", 6), Symbol("j", 4), Symbol("k", 1)
SYMBOLS = (I, J, K)
QUICK = settings(max_examples=150, deadline=None, derandomize=True)


def assignments(symbols: Sequence[Symbol] = SYMBOLS) -> Iterator[dict[Symbol, int]]:
    for values in itertools.product(*(range(s.extent) for s in symbols)):
        yield dict(zip(symbols, values, strict=True))


def linear_forms(lowest: int = -30) -> st.SearchStrategy[Linear]:
    """Forms over SYMBOLS, with quotients and remainders inside up to two levels deep."""
    coefficients = st.integers(-12, 12) if lowest < 0 else st.integers(0, 12)

    def forms_over(terms: st.SearchStrategy[Term]) -> st.SearchStrategy[Linear]:
        pairs = st.lists(st.tuples(terms, coefficients), max_size=4)
        return st.builds(
            lambda c, p: ix.add(Linear(c), *(ix.scale(ix.of_symbol(t), n) for t, n in p)),
            st.integers(lowest, 30),
            pairs,
        )

    plain = forms_over(st.sampled_from(SYMBOLS))
    divided = st.builds(ix.divide, plain, st.integers(1, 9))
    wrapped = st.builds(ix.modulo, plain, st.integers(1, 9))
    return st.one_of(plain, divided, wrapped, st.builds(ix.add, plain, divided, wrapped))


@QUICK
@given(linear_forms(), linear_forms())
def test_equal_forms_are_equal_whatever_the_order_of_their_terms(a: Linear, b: Linear) -> None:
    one, other = ix.add(a, b), ix.add(b, a)
    assert one == other and hash(one) == hash(other)
    assert {one: 1}[other] == 1
    moved = ix.offset(other, 1)
    assert one != moved and one != ix.add(one, ix.of_symbol(I))


@QUICK
@given(linear_forms(), st.integers(1, 24))
def test_divide_is_floor_division_and_modulo_the_rest(form: Linear, divisor: int) -> None:
    quotient, rest = ix.divide(form, divisor), ix.modulo(form, divisor)
    for at in assignments():
        value = ix.evaluate(form, at)
        assert ix.evaluate(quotient, at) == value // divisor
        assert ix.evaluate(rest, at) == value % divisor


@QUICK
@given(linear_forms(), st.integers(1, 24))
def test_a_dividend_is_never_negative(form: Linear, divisor: int) -> None:
    """The emitted / and % truncate towards zero, which is the floor only from zero up."""
    for result in (ix.divide(form, divisor), ix.modulo(form, divisor)):
        pending = [result]
        while pending:
            for term, _ in pending.pop().terms:
                if not isinstance(term, Symbol):
                    assert ix.bounds(term.dividend)[0] >= 0
                    pending.append(term.dividend)


@QUICK
@given(linear_forms(), linear_forms(), st.integers(-5, 5))
def test_sums_and_multiples(a: Linear, b: Linear, factor: int) -> None:
    total, multiple, moved = ix.add(a, b, a), ix.scale(a, factor), ix.offset(a, factor)
    for at in assignments():
        x, y = ix.evaluate(a, at), ix.evaluate(b, at)
        assert ix.evaluate(total, at) == 2 * x + y
        assert ix.evaluate(multiple, at) == factor * x
        assert ix.evaluate(moved, at) == x + factor
    assert ix.add(a, ix.scale(a, -1)) == ix.ZERO
    assert all(coefficient for _, coefficient in total.terms)


@QUICK
@given(linear_forms())
def test_bounds_hold_every_value(form: Linear) -> None:
    low, high = ix.bounds(form)
    values = [ix.evaluate(form, at) for at in assignments()]
    assert low <= min(values)
    assert max(values) <= high
    if all(isinstance(term, Symbol) for term, _ in form.terms):
        assert (low, high) == (min(values), max(values))


@QUICK
@given(linear_forms(), linear_forms(), linear_forms())
def test_substitution_replaces_the_values(form: Linear, first: Linear, second: Linear) -> None:
    swapped = ix.substitute(form, {I: first, J: second})
    for at in assignments():
        inner = {**at, I: ix.evaluate(first, at), J: ix.evaluate(second, at)}
        # Bounds of the symbols that are replaced no longer hold, so only forms without them may use bounds.
        if 0 <= inner[I] < I.extent and 0 <= inner[J] < J.extent:
            assert ix.evaluate(swapped, at) == ix.evaluate(form, inner)


@QUICK
@given(linear_forms())
def test_the_printed_form_means_the_same(form: Linear) -> None:
    text = str(form).replace("/", "//")
    for at in assignments():
        names = {symbol.name: value for symbol, value in at.items()}
        assert eval(text, {}, names) == ix.evaluate(form, at)


@QUICK
@given(linear_forms())
def test_symbols_are_those_that_are_needed(form: Linear) -> None:
    needed = ix.symbols(form)
    values = dict.fromkeys(needed, 0)
    ix.evaluate(form, values)
    for symbol in needed:
        with pytest.raises(KeyError):
            ix.evaluate(form, {s: v for s, v in values.items() if s != symbol})


SHAPES = st.lists(st.integers(1, 4), min_size=0, max_size=4).map(tuple)


@QUICK
@given(SHAPES)
def test_linearize_and_delinearize_are_row_major(shape: tuple[int, ...]) -> None:
    index = tuple(ix.of_symbol(Symbol(f"d{d}", n)) for d, n in enumerate(shape))
    symbols = tuple(Symbol(f"d{d}", n) for d, n in enumerate(shape))
    position = ix.linearize(index, shape)
    back = ix.delinearize(position, shape)
    for at in assignments(symbols):
        here = tuple(at[s] for s in symbols)
        assert ix.evaluate(position, at) == (np.ravel_multi_index(here, shape) if shape else 0)
        assert tuple(ix.evaluate(form, at) for form in back) == here


def contains_division(form: Linear) -> bool:
    return any(not isinstance(term, Symbol) for term, _ in form.terms)


@st.composite
def factored_shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A shape and a coarser one: neighbours of the first multiplied together, ones put in between."""
    fine = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=5)))
    coarse, rest = [], list(fine)
    while rest:
        count = draw(st.integers(1, len(rest)))
        coarse.append(math.prod(rest[:count]))
        rest = rest[count:]
        if draw(st.booleans()):
            coarse.append(1)
    return fine, tuple(coarse)


@QUICK
@given(factored_shapes())
def test_a_reshape_that_merges_dimensions_costs_no_division(
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    fine, coarse = shapes
    index = tuple(
        ix.of_symbol(Symbol(f"d{d}", n)) if n > 1 else ix.ZERO for d, n in enumerate(fine)
    )
    merged = ix.delinearize(ix.linearize(index, fine), coarse)
    assert not any(contains_division(form) for form in merged)
    back = ix.delinearize(ix.linearize(merged, coarse), fine)
    assert back == index


@QUICK
@given(SHAPES, st.data())
def test_a_chain_of_reshapes_is_one_reshape(shape: tuple[int, ...], data: st.DataObject) -> None:
    size = math.prod(shape)
    flat = Symbol("x", size)
    divisors = [n for n in range(1, size + 1) if size % n == 0]
    position, shapes = ix.of_symbol(flat), []
    for _ in range(3):
        minor = data.draw(st.sampled_from(divisors))
        shapes.append((size // minor, minor))
        position = ix.linearize(ix.delinearize(position, shapes[-1]), shapes[-1])
    for value in range(size):
        assert ix.evaluate(position, {flat: value}) == value


X = ix.of_symbol(Symbol("x", 24))


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (ix.divide(X, 24), "0"),
        (ix.modulo(X, 24), "x"),
        (ix.divide(ix.add(ix.scale(X, 8), ix.constant(5)), 8), "x"),
        (ix.modulo(ix.add(ix.scale(X, 8), ix.constant(5)), 8), "5"),
        (ix.divide(ix.divide(X, 2), 3), "((x) / 6)"),
        (ix.divide(ix.add(ix.scale(X, 6), ix.constant(7)), 4), "((x * 3 + 1) / 2) + 1"),
        (ix.modulo(ix.add(X, ix.constant(-1)), 5), "((x + 4) % 5)"),
        (ix.divide(ix.add(ix.scale(X, -1), ix.constant(23)), 4), "((x * -1 + 23) / 4)"),
        (ix.divide(ix.constant(-1), 5), "-1"),
        (ix.modulo(ix.constant(-1), 5), "4"),
        (ix.add(ix.of_symbol(Quotient(X, 4)), ix.of_symbol(Remainder(X, 4))), "((x) / 4) + ((x) % 4)"),
    ],
)  # fmt: skip
def test_simplified_forms(form: Linear, text: str) -> None:
    assert str(form) == text


def test_what_is_divisible_is_known_only_when_it_is() -> None:
    assert ix.constant(7).is_constant
    assert not X.is_constant
    assert ix.add(X, X).coefficient(Symbol("x", 24)) == 2
    assert ix.add(X, X).coefficient(Symbol("y", 24)) == 0
