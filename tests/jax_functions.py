"""The functions of JAX that random programs call: a table of names, each with what writes a call of it.

A row takes a Scope (tests/jax_programs.py), picks operands among its values and hands on the text of an expression, or
None where nothing fits.  JAX itself decides whether a text is a program: the builder drops what JAX refuses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.jax_programs import Scope, Value

Write = Callable[["Scope", str], "str | None"]


@dataclass(frozen=True, slots=True)
class Function:
    """name: as a program spells it.  write: the text of one call with drawn operands and options."""

    name: str
    write: Write


FLOAT, INT, BOOL = "f", "i", "b"
NUMBER, DISCRETE, ANY = FLOAT + INT, INT + BOOL, FLOAT + INT + BOOL

SMALL = "jnp.clip({}, -4, 4)"
POSITIVE = "(jnp.abs({}) + 0.5)"
INSIDE = "jnp.clip({}, -0.9, 0.9)"
NOT_ZERO = "jnp.where(jnp.abs({0}) < 0.1, 1, {0})"

RAW = 0.15
"""How often a function gets what its domain leaves out: NaN, infinities and overflow are results too."""


def rows(names: str, write: Write) -> tuple[Function, ...]:
    return tuple(Function(name, write) for name in names.split())


# ---- elementwise ---------------------------------------------------------------------------------


def unary(kinds: str, domain: str = "{}") -> Write:
    """domain: brings an operand to where the function is defined and small."""

    def write(s: Scope, name: str) -> str | None:
        x = s.pick(kinds)
        if x is None:
            return None
        return f"{name}({x if s.chance(RAW) else domain.format(x)})"

    return write


def binary(kinds: str, second: str = "{}", first: str = "{}") -> Write:
    def write(s: Scope, name: str) -> str | None:
        x = s.pick(kinds)
        y = x and s.partner(x, kinds)
        if x is None or y is None:
            return None
        raw = s.chance(RAW)
        left, right = (str(x), y) if raw else (first.format(x), second.format(y))
        if s.chance(0.2) and first == second:
            left, right = right, left
        return f"{name}({left}, {right})"

    return write


def same_types(kinds: str) -> Write:
    """Two operands of one type and shape, as lax wants them."""

    def write(s: Scope, name: str) -> str | None:
        x = s.pick(kinds)
        y = x and (s.pick_like(x) or f"jnp.flip({x})")
        return x and f"{name}({x}, {y})"

    return write


def _where(s: Scope, name: str) -> str | None:
    x = s.pick(ANY)
    y = x and s.partner(x, ANY)
    c = x and s.condition(x)
    return c and f"{name}({c}, {x}, {y})"


def _clip(s: Scope, name: str) -> str | None:
    x = s.pick(NUMBER)
    low = x and s.partner(x, NUMBER)
    return x and f"{name}({x}, {low if s.chance(0.5) else -1}, {s.choose((1, 2, None))})"


def _astype(s: Scope, name: str) -> str | None:
    x = s.pick(ANY)
    return x and f"{x}.{name}({s.dtype()})"


def _select_list(s: Scope, name: str) -> str | None:
    x = s.pick(NUMBER)
    if x is None:
        return None
    y = s.pick_like(x) or f"-{x}"
    return f"{name}([{x} > 1, {x} < 0], [{x}, {y}], {s.choose((0, 1))})"


def _nan_to_num(s: Scope, name: str) -> str | None:
    x = s.pick(FLOAT)
    return x and f"{name}({x}, nan=0.5, posinf=3, neginf=-3)"


def _power_of(s: Scope, name: str) -> str | None:
    x = s.pick(FLOAT)
    return x and f"{name}({SMALL.format(x)}, {s.choose((-2, 2, 3, 5))})"


def _shift(s: Scope, name: str) -> str | None:
    x = s.pick(INT)
    return x and f"{name}({x}, {s.choose((0, 1, 3, 7))})"


def _bitcast(s: Scope, name: str) -> str | None:
    x = s.pick(INT)
    if x is None:
        return None
    sign = "int" if x.dtype.kind == "u" else "uint"
    return f"{name}({x}, jnp.{sign}{8 * x.dtype.itemsize})"


def _polyval(s: Scope, name: str) -> str | None:
    x = s.pick(FLOAT)
    return x and f"{name}(jnp.array([0.5, -1.0, 0.25]), jnp.tanh({x}))"


def _interp(s: Scope, name: str) -> str | None:
    x = s.pick(FLOAT)
    return x and f"{name}({x}, jnp.linspace(-2, 2, 5), jnp.array([0.0, 1, -1, 2, 0.5]))"


# ---- reductions ----------------------------------------------------------------------------------


def reduction(kinds: str, domain: str = "{}", *, empty: bool = True, one: bool = False) -> Write:
    """empty: has a value for no elements.  one: takes one axis at most."""

    def write(s: Scope, name: str) -> str | None:
        x = s.pick(kinds, lambda v: empty or 0 not in v.shape)
        if x is None:
            return None
        options = s.axis_option(x, one=one)
        if s.chance(0.4):
            options += ", keepdims=True"
        return f"{name}({domain.format(x)}{options})"

    return write


def _masked_reduction(s: Scope, name: str) -> str | None:
    x = s.pick(NUMBER)
    c = x and s.condition(x)
    return c and x and f"{name}({x}{s.axis_option(x)}, where={c}, initial=0)"


def _norm(s: Scope, name: str) -> str | None:
    x = s.pick(FLOAT, lambda v: len(v.shape) >= 1 and v.size > 0)
    return x and f"{name}({x}, axis={s.axis(x)}, keepdims={s.chance(0.5)})"


def _quantile(s: Scope, name: str) -> str | None:
    x = s.pick(FLOAT, lambda v: len(v.shape) >= 1 and 0 not in v.shape)
    return x and f"{name}({x}, 0.3, axis={s.axis(x)})"


def _along_axis(kinds: str, domain: str = "{}", *, empty: bool = True) -> Write:
    def write(s: Scope, name: str) -> str | None:
        x = s.pick(kinds, lambda v: len(v.shape) >= 1 and (empty or 0 not in v.shape))
        return x and f"{name}({domain.format(x)}, axis={s.axis(x)})"

    return write


def _lax_cumulative(s: Scope, name: str) -> str | None:
    kinds = FLOAT if name.endswith("logsumexp") else NUMBER
    x = s.pick(kinds, lambda v: len(v.shape) >= 1)
    if x is None:
        return None
    operand = f"1 + 0.1 * jnp.tanh({x})" if name.endswith("prod") and x.kind == FLOAT else x
    return f"{name}({operand}, axis={s.axis(x, negative=False)}, reverse={s.chance(0.5)})"


def _scan_with(s: Scope, name: str) -> str | None:
    x = s.pick(NUMBER, lambda v: len(v.shape) >= 1 and max(v.shape) <= 20)
    if x is None:
        return None
    combine = s.choose(("jnp.add", "jnp.maximum", "jnp.minimum", "jnp.multiply"))
    operand = f"jnp.cos({x})" if combine == "jnp.multiply" else str(x)
    return f"{name}({combine}, {operand}, axis={s.axis(x)}, reverse={s.chance(0.5)})"


def _reduce(s: Scope, name: str) -> str | None:
    x = s.pick(NUMBER)
    if x is None:
        return None
    axes = s.axes(x)
    # A start that is no identity may count once, or not at all.
    least = "-jnp.inf" if x.kind == FLOAT else f"jnp.iinfo({x.dtype_text}).min"
    operator, start = s.choose((("lax.add", "0"), ("lax.max", least), ("lax.mul", "1")))
    operand = f"jnp.cos({x})" if operator == "lax.mul" and x.kind == FLOAT else str(x)
    return f"{name}({operand}, {x.dtype_text}({start}), {operator}, {axes})"


def _reduce_two(s: Scope, name: str) -> str | None:
    x = s.pick(FLOAT, lambda v: len(v.shape) >= 1 and v.size > 0)
    if x is None:
        return None
    combine = "lambda p, q: (jnp.maximum(p[0], q[0]), p[1] + q[1])"
    init = f"({x.dtype_text}(-jnp.inf), {x.dtype_text}(0))"
    return f"{name}(({x}, jnp.tanh({x})), {init}, {combine}, ({s.axis(x, negative=False)},))"


def _reduce_window(s: Scope, name: str) -> str | None:
    x = s.pick(FLOAT, lambda v: 1 <= len(v.shape) <= 4 and v.size > 0)
    if x is None:
        return None
    window = tuple(s.choose((1, 2, 3)) for _ in x.shape)
    strides = tuple(s.choose((1, 1, 2)) for _ in x.shape)
    start, operator = s.choose((("0", "lax.add"), ("-jnp.inf", "lax.max"), ("jnp.inf", "lax.min")))
    padding = s.choose(("SAME", "VALID"))
    return f"{name}({x}, {x.dtype_text}({start}), {operator}, {window}, {strides}, {padding!r})"


# ---- shapes --------------------------------------------------------------------------------------


def _reshape(s: Scope, name: str) -> str | None:
    x = s.pick(ANY)
    if x is None:
        return None
    sizes = list(x.shape)
    if len(sizes) >= 2 and s.chance(0.5):
        place = s.number(0, len(sizes) - 2)
        sizes[place : place + 2] = [sizes[place] * sizes[place + 1]]
    elif sizes:
        place = s.number(0, len(sizes) - 1)
        factors = [f for f in range(1, sizes[place] + 1) if sizes[place] % f == 0] or [1]
        factor = s.choose(factors)
        sizes[place : place + 1] = [factor, sizes[place] // factor]
    else:
        sizes = [1] * s.number(0, 2)
    return f"{name}({x}, {tuple(sizes)})"


def _transpose(s: Scope, name: str) -> str | None:
    x = s.pick(ANY)
    return x and f"{name}({x}, {tuple(s.shuffle(range(len(x.shape))))})"


def _two_axes(s: Scope, name: str) -> str | None:
    x = s.pick(ANY, lambda v: len(v.shape) >= 2)
    return x and f"{name}({x}, {s.axis(x)}, {s.axis(x)})"


def _flip(s: Scope, name: str) -> str | None:
    x = s.pick(ANY, lambda v: len(v.shape) >= 1)
    return x and f"{name}({x}, {s.axes(x)})"


def _roll(s: Scope, name: str) -> str | None:
    x = s.pick(ANY, lambda v: len(v.shape) >= 1)
    return x and f"{name}({x}, {s.number(-3, 5)}, {s.axis(x)})"


def _join(s: Scope, name: str) -> str | None:
    x = s.pick(ANY, lambda v: len(v.shape) >= 1)
    if x is None:
        return None
    others = [s.pick_like(x, dtype=False) or f"{x}[::-1]" for _ in range(s.number(1, 3))]
    return f"{name}([{', '.join(map(str, [x, *others]))}], axis={s.axis(x)})"


def _pad(s: Scope, name: str) -> str | None:
    x = s.pick(ANY, lambda v: len(v.shape) >= 1 and all(n > 2 for n in v.shape))
    if x is None:
        return None
    widths = tuple((s.number(0, 2), s.number(0, 2)) for _ in x.shape)
    mode = s.choose(("constant", "edge", "reflect", "wrap", "symmetric"))
    return f"{name}({x}, {widths}, mode={mode!r})"


def _lax_pad(s: Scope, name: str) -> str | None:
    x = s.pick(ANY, lambda v: len(v.shape) >= 1)
    if x is None:
        return None
    widths = tuple((s.number(-1, 3), s.number(0, 2), s.choose((0, 0, 1))) for _ in x.shape)
    return f"{name}({x}, {x.dtype_text}({s.choose((0, 1))}), {widths})"


def _tile(s: Scope, name: str) -> str | None:
    x = s.pick(ANY)
    return x and f"{name}({x}, {tuple(s.number(1, 3) for _ in x.shape)})"


def _repeat(s: Scope, name: str) -> str | None:
    x = s.pick(ANY, lambda v: len(v.shape) >= 1)
    return x and f"{name}({x}, {s.number(0, 3)}, axis={s.axis(x)})"


def _broadcast_to(s: Scope, name: str) -> str | None:
    x = s.pick(ANY)
    if x is None:
        return None
    shape = [s.extent(5) if n == 1 else n for n in x.shape]
    return f"{name}({x}, {(*(s.extent(5) for _ in range(s.number(0, 2))), *shape)})"


def _expand(s: Scope, name: str) -> str | None:
    x = s.pick(ANY)
    return x and f"{name}({x}, {s.number(0, len(x.shape))})"


def _slice(s: Scope, name: str) -> str | None:
    """name: what follows the operand."""
    x = s.pick(ANY, lambda v: len(v.shape) >= 1)
    if x is None:
        return None
    cuts = []
    for n in x.shape:
        start = s.number(0, n)
        cut = (":", f"{start}:", f":{start}", "::2", "::-1", "1:-1", "None, :", "-1" if n else ":")
        cuts.append(s.choose(cut))
    return f"{x}[{', '.join(cuts)}]"


def _triangle(s: Scope, name: str) -> str | None:
    x = s.pick(ANY, lambda v: len(v.shape) >= 2)
    return x and f"{name}({x}, {s.number(-2, 2)})"


def _square(s: Scope, name: str) -> str | None:
    x = s.pick(NUMBER, lambda v: len(v.shape) == 2)
    return x and f"{name}({x})"


def _like(s: Scope, name: str) -> str | None:
    x = s.pick(NUMBER)
    return x and f"{name}({x})"


def _arange(s: Scope, name: str) -> str | None:
    dtype = s.dtype(NUMBER)
    return f"{name}({s.number(0, 3)}, {s.choose((5, 16, 33, 64))}, {s.number(1, 2)}, dtype={dtype})"


def _linspace(s: Scope, name: str) -> str | None:
    return f"{name}(-1, {s.choose((1, 2.5))}, {s.choose((1, 5, 17, 100))})"


def _iota(s: Scope, name: str) -> str | None:
    x = s.pick(ANY, lambda v: len(v.shape) >= 1)
    dtype = s.dtype(NUMBER)
    return x and f"{name}({dtype}, {x.shape}, {s.axis(x, negative=False)})"


# ---- indexing ------------------------------------------------------------------------------------


def _take(s: Scope, name: str) -> str | None:
    x = s.pick(ANY, lambda v: len(v.shape) >= 1 and 0 not in v.shape)
    if x is None:
        return None
    axis = s.number(0, len(x.shape) - 1)
    mode = s.choose(("", ', mode="clip"', ', mode="wrap"', ', mode="fill"'))
    indices = s.indices(s.shape(2), x.shape[axis], beyond=True)
    return f"{name}({x}, {indices}, axis={axis}{mode})"


def _take_along(s: Scope, name: str) -> str | None:
    x = s.pick(ANY, lambda v: len(v.shape) >= 1 and 0 not in v.shape)
    if x is None:
        return None
    axis = s.number(0, len(x.shape) - 1)
    return f"{name}({x}, jnp.argsort({x}, axis={axis}), axis={axis})"


def _gather(s: Scope, name: str) -> str | None:
    x = s.pick(ANY, lambda v: len(v.shape) >= 1 and 0 not in v.shape)
    if x is None:
        return None
    shape = s.shape(2)
    count = s.number(1, len(x.shape))
    places = [s.indices(shape, n, beyond=True) for n in x.shape[:count]]
    if count < len(x.shape) and s.chance(0.3):
        places.insert(0, ":")
        places[1:] = [s.indices(shape, n) for n in x.shape[1 : count + 1]]
    return f"{x}[{', '.join(places)}]"


def update(method: str, *, unique: bool) -> Write:
    """unique: two updates of one element have no order."""

    def write(s: Scope, name: str) -> str | None:
        x = s.pick(NUMBER, lambda v: len(v.shape) >= 1 and 0 not in v.shape)
        if x is None:
            return None
        n = x.shape[0]
        count = s.number(1, min(n, 9)) if unique else s.number(1, 12)
        places = f"jnp.arange({count})[::-1]" if unique else s.indices((count,), n, beyond=True)
        whole = (count, *x.shape[1:])
        fitting = s.pick(NUMBER, lambda v: v.shape in (whole, x.shape[1:], ()))
        # Of one type, so that nothing is rounded or cut off on the way into the array.
        value = f"{fitting}.astype({x.dtype_text})" if fitting else "1"
        if method == "multiply":
            value = f"(1 + jnp.sign({value}))" if fitting else "2"
        mode = s.choose(("", ', mode="drop"', ', mode="clip"')) if not unique else ""
        return f"{x}.at[{places}].{method}({value}{mode})"

    return write


def _get_filled(s: Scope, name: str) -> str | None:
    x = s.pick(NUMBER, lambda v: len(v.shape) >= 1 and 0 not in v.shape)
    if x is None:
        return None
    places = s.indices(s.shape(1), x.shape[0], beyond=True)
    return f'{x}.at[{places}].get(mode="fill", fill_value=7)'


def _dynamic_slice(s: Scope, name: str) -> str | None:
    x = s.pick(ANY, lambda v: len(v.shape) >= 1 and 0 not in v.shape)
    if x is None:
        return None
    sizes = tuple(s.number(1, n) for n in x.shape)
    starts = ", ".join(s.indices((), n, beyond=True) for n in x.shape)
    return f"{name}({x}, ({starts},), {sizes})"


def _dynamic_update(s: Scope, name: str) -> str | None:
    x = s.pick(ANY, lambda v: len(v.shape) >= 1 and 0 not in v.shape)
    if x is None:
        return None
    cut = ", ".join(f":{s.number(1, n)}" for n in x.shape)
    starts = ", ".join(s.indices((), n, beyond=True) for n in x.shape)
    source = s.pick_like(x) or x
    return f"{name}({x}, {source}[{cut}], ({starts},))"


def _in_dim(s: Scope, name: str) -> str | None:
    x = s.pick(ANY, lambda v: len(v.shape) >= 1 and 0 not in v.shape)
    if x is None:
        return None
    axis = s.number(0, len(x.shape) - 1)
    start = s.indices((), x.shape[axis], beyond=True)
    return f"{name}({x}, {start}, {s.number(1, x.shape[axis])}, axis={axis})"


def _segments(s: Scope, name: str) -> str | None:
    x = s.pick(NUMBER, lambda v: len(v.shape) >= 1 and v.size > 0)
    if x is None:
        return None
    operand = f"jnp.cos({x})" if name.endswith("prod") else str(x)
    count = s.choose((1, 3, 8, 20))
    ids = s.indices((x.shape[0],), count, beyond=True)
    return f"{name}({operand}, {ids}, num_segments={count})"


def _one_hot(s: Scope, name: str) -> str | None:
    x = s.pick(INT)
    return x and f"{name}({x}, {s.choose((1, 5, 17))}, dtype={s.dtype(FLOAT)})"


def _bincount(s: Scope, name: str) -> str | None:
    return f"{name}({s.indices((s.extent(64),), 9)}, length={s.choose((1, 9, 12))})"


# ---- sorts ---------------------------------------------------------------------------------------


def _sort(s: Scope, name: str) -> str | None:
    x = s.pick(NUMBER, lambda v: len(v.shape) >= 1)
    return x and f"{name}({x}, axis={s.axis(x)}, descending={s.chance(0.3)})"


def _sort_two(s: Scope, name: str) -> str | None:
    x = s.pick(NUMBER, lambda v: len(v.shape) >= 1)
    if x is None:
        return None
    y = s.pick_like(x, dtype=False) or f"-{x}"
    axis, keys = s.axis(x, negative=False), s.number(1, 2)
    return f"{name}(({x}, {y}), dimension={axis}, num_keys={keys})"


def _top_k(s: Scope, name: str) -> str | None:
    x = s.pick(NUMBER, lambda v: len(v.shape) >= 1 and v.shape[-1] > 0)
    return x and f"{name}({x}, {s.number(1, min(x.shape[-1], 8))})"


def _searchsorted(s: Scope, name: str) -> str | None:
    x = s.pick(FLOAT, lambda v: len(v.shape) == 1 and v.size > 0)
    y = s.pick(FLOAT)
    return x and y and f"{name}(jnp.sort({x}), {y})"


# ---- products ------------------------------------------------------------------------------------


def _matrix(s: Scope, contracted: int) -> str:
    return s.array((contracted, s.choose((1, 2, 5, 8, 17))))


def _dot(s: Scope, name: str) -> str | None:
    x = s.pick(NUMBER, lambda v: 1 <= len(v.shape) <= 3 and v.size > 0)
    return x and f"{name}({x}, {_matrix(s, x.shape[-1])})"


def _einsum(s: Scope, name: str) -> str | None:
    x = s.pick(FLOAT, lambda v: 1 <= len(v.shape) <= 3 and v.size > 0)
    if x is None:
        return None
    letters = "abc"[: len(x.shape)]
    other = f"{letters[-1]}d"
    result = s.choose((letters[:-1] + "d", "d" + letters[:-1], letters[:-1], letters, "d", ""))
    return f'{name}("{letters},{other}->{result}", {x}, {_matrix(s, x.shape[-1])})'


def _einsum_with_itself(s: Scope, name: str) -> str | None:
    x = s.pick(FLOAT, lambda v: len(v.shape) == 2)
    pattern = s.choose(("ab,cb->ac", "ab,ac->bc", "ab,ab->a", "ab,ab->", "ab,cb->abc", "ab,ab->ba"))
    return x and f'{name}("{pattern}", {x}, {x})'


def _vectors(s: Scope, name: str) -> str | None:
    x = s.pick(FLOAT, lambda v: v.size <= 100)
    y = s.pick(FLOAT, lambda v: v.size <= 100)
    return x and y and f"{name}({x}, {y})"


def _vdot(s: Scope, name: str) -> str | None:
    x = s.pick(FLOAT)
    y = x and (s.pick_like(x, dtype=False) or x)
    return x and f"{name}({x}, {y})"


def _batched_dot(s: Scope, name: str) -> str | None:
    x = s.pick(FLOAT, lambda v: len(v.shape) == 3)
    preferred = s.choose(("", ", preferred_element_type=jnp.float32"))
    return x and f"{name}({x}, {x}, (((2,), (2,)), ((0,), (0,))){preferred})"


def _convolve(s: Scope, name: str) -> str | None:
    x = s.pick(FLOAT, lambda v: len(v.shape) == 1 and v.size > 0)
    mode = s.choose(("full", "same", "valid"))
    return x and f"{name}({x}, {s.array((s.number(1, 5),))}, mode={mode!r})"


def _conv(s: Scope, name: str) -> str | None:
    x = s.pick(FLOAT, lambda v: 2 <= len(v.shape) <= 4 and 0 < v.size <= 4000)
    if x is None:
        return None
    features, height, width = s.choose((1, 2, 4)), s.number(1, 3), s.number(1, 3)
    image = {2: f"{x}[None, None]", 3: f"{x}[:, None]", 4: str(x)}[len(x.shape)]
    channels = x.shape[1] if len(x.shape) == 4 else 1
    kernel = s.array((features, channels, height, width))
    strides, padding = s.choose(((1, 1), (2, 1), (2, 2))), s.choose(("SAME", "VALID"))
    return f"{name}({image}, {kernel}.astype({x.dtype_text}), {strides}, {padding!r})"


# ---- functions of functions ----------------------------------------------------------------------


def _differentiate(s: Scope, name: str) -> str | None:
    x = s.pick(FLOAT, lambda v: v.size > 0)
    if x is None:
        return None
    y = s.pick(FLOAT, lambda v: v.size > 0) if s.chance(0.5) else None
    given = [x] if y is None else [x, y]
    f = s.define(given, scalar=True)
    positions = "" if y is None else ", argnums=(0, 1)"
    return f"{name}({f}{positions})({', '.join(map(str, given))})"


def _jvp(s: Scope, name: str) -> str | None:
    x = s.pick(FLOAT)
    if x is None:
        return None
    return f"{name}({s.define([x])}, ({x},), (jnp.cos({x}),))"


def _vjp(s: Scope, name: str) -> str | None:
    x = s.pick(FLOAT)
    if x is None:
        return None
    f = s.define([x], like=x)
    return f"{name}({f}, {x})[1](jnp.cos({x}))"


def _jacobian(s: Scope, name: str) -> str | None:
    x = s.pick(FLOAT, lambda v: 0 < v.size <= 12)
    if x is None:
        return None
    return f"{name}({s.define([x], scalar=name.endswith('hessian'))})({x})"


def _vmap(s: Scope, name: str) -> str | None:
    x = s.pick(ANY, lambda v: len(v.shape) >= 1 and 0 not in v.shape)
    if x is None:
        return None
    axis = s.number(0, len(x.shape) - 1)
    given, axes = [x], [str(axis)]
    y = s.pick(ANY)
    if y is not None and s.chance(0.7):
        found = [d for d, n in enumerate(y.shape) if n == x.shape[axis]]
        given.append(y)
        axes.append(str(s.choose(found)) if found else "None")
    inner = [v if a == "None" else v.without(int(a)) for v, a in zip(given, axes, strict=True)]
    f = s.define(inner)
    return f"{name}({f}, in_axes=({', '.join(axes)},))({', '.join(map(str, given))})"


def _called(s: Scope, name: str) -> str | None:
    x, y = s.pick(ANY), s.pick(ANY)
    if x is None or y is None:
        return None
    return f"{name}({s.define([x, y])})({x}, {y})"


MAX_TURNS = 9


def _rows_of(s: Scope) -> Value | None:
    x = s.pick(ANY, lambda v: len(v.shape) >= 1 and v.size > 0)
    return x and x.first(MAX_TURNS)


def _scan(s: Scope, name: str) -> str | None:
    xs, carry = _rows_of(s), s.pick(ANY, lambda v: v.size <= 2000)
    if xs is None or carry is None:
        return None
    f = s.define([carry.strong(), xs.without(0)], carry=True)
    options = s.choose(("", "", ", reverse=True", ", unroll=2"))
    return f"{name}({f}, jnp.asarray({carry}, {carry.dtype_text}), {xs}{options})"


def _map(s: Scope, name: str) -> str | None:
    xs = _rows_of(s)
    return xs and f"{name}({s.define([xs.without(0)])}, {xs})"


def _fori_loop(s: Scope, name: str) -> str | None:
    carry = s.pick(ANY, lambda v: v.size <= 2000)
    if carry is None:
        return None
    f = s.define([s.index(), carry.strong()], like=carry.strong())
    return f"{name}(0, {s.number(0, 5)}, {f}, jnp.asarray({carry}, {carry.dtype_text}))"


def _while_loop(s: Scope, name: str) -> str | None:
    carry = s.pick(FLOAT, lambda v: v.size <= 2000)
    if carry is None:
        return None
    f = s.define([carry.strong()], like=carry.strong())
    start = f"(jnp.int32(0), jnp.asarray({carry}, {carry.dtype_text}))"
    return f"{name}(lambda c: c[0] < {s.number(0, 5)}, lambda c: (c[0] + 1, {f}(c[1])), {start})"


def _cond(s: Scope, name: str) -> str | None:
    x, y = s.pick(ANY), s.pick(ANY)
    if x is None or y is None:
        return None
    f, g = (s.define([x, y], like=x.strong()) for _ in "fg")
    return f"{name}({s.predicate()}, {f}, {g}, {x}, {y})"


def _switch(s: Scope, name: str) -> str | None:
    x = s.pick(ANY)
    if x is None:
        return None
    branches = [s.define([x], like=x.strong()) for _ in range(s.number(1, 3))]
    return f"{name}({s.indices((), 3, beyond=True)}, [{', '.join(branches)}], {x})"


# ---- the table -----------------------------------------------------------------------------------

ELEMENTWISE = (
    *rows("jnp.sin jnp.cos jnp.tanh jnp.arctan jnp.arcsinh jnp.cbrt jnp.sinc", unary(FLOAT)),
    *rows("jnp.exp jnp.exp2 jnp.expm1 jnp.sinh jnp.cosh jnp.square", unary(FLOAT, SMALL)),
    *rows("jnp.log jnp.log2 jnp.log10 jnp.sqrt lax.rsqrt", unary(FLOAT, POSITIVE)),
    *rows("jnp.log1p jnp.arcsin jnp.arccos jnp.arctanh lax.erf_inv", unary(FLOAT, INSIDE)),
    *rows("lax.lgamma lax.digamma jnp.reciprocal", unary(FLOAT, POSITIVE)),
    *rows("lax.erf lax.erfc lax.logistic", unary(FLOAT)),
    *rows("jnp.abs jnp.negative jnp.sign jnp.floor jnp.ceil jnp.trunc jnp.rint", unary(NUMBER)),
    *rows("jnp.isnan jnp.isfinite jnp.isinf jnp.signbit", unary(FLOAT)),
    *rows("jnp.invert jnp.bitwise_count lax.clz", unary(INT)),
    *rows("jnp.logical_not", unary(ANY)),
    *rows("jax.nn.relu jax.nn.relu6 jax.nn.gelu jax.nn.silu jax.nn.softplus", unary(FLOAT)),
    *rows("jax.nn.elu jax.nn.selu jax.nn.celu jax.nn.leaky_relu jax.nn.mish", unary(FLOAT)),
    *rows("jax.nn.log_sigmoid jax.nn.soft_sign jax.nn.hard_tanh", unary(FLOAT)),
    *rows("jax.nn.hard_sigmoid jax.nn.hard_silu jax.nn.squareplus", unary(FLOAT)),
    *rows("jnp.add jnp.subtract jnp.maximum jnp.minimum", binary(NUMBER)),
    *rows("jnp.multiply", binary(NUMBER, SMALL, SMALL)),
    *rows("jnp.divide jnp.arctan2", binary(FLOAT, NOT_ZERO)),
    *rows("jnp.remainder jnp.fmod jnp.floor_divide", binary(NUMBER, NOT_ZERO)),
    *rows("jnp.power", binary(FLOAT, INSIDE, POSITIVE)),
    *rows("jnp.logaddexp jnp.hypot jnp.copysign jnp.heaviside", binary(FLOAT)),
    *rows("jnp.less jnp.greater_equal jnp.equal jnp.not_equal", binary(NUMBER)),
    *rows("jnp.logical_and jnp.logical_or jnp.logical_xor", binary(ANY)),
    *rows("jnp.bitwise_and jnp.bitwise_or jnp.bitwise_xor", binary(DISCRETE)),
    *rows("lax.max lax.min lax.sub", same_types(NUMBER)),
    *rows("lax.integer_pow", _power_of),
    *rows("jnp.left_shift jnp.right_shift lax.shift_right_logical", _shift),
    *rows("jnp.where", _where),
    *rows("jnp.clip", _clip),
    *rows("astype", _astype),
    *rows("jnp.select", _select_list),
    *rows("jnp.nan_to_num", _nan_to_num),
    *rows("lax.bitcast_convert_type", _bitcast),
    *rows("jnp.polyval", _polyval),
    *rows("jnp.interp", _interp),
)

REDUCTIONS = (
    *rows("jnp.sum jnp.mean jnp.nansum", reduction(NUMBER)),
    *rows("jnp.prod", reduction(FLOAT, "jnp.cos({})")),
    *rows("jnp.max jnp.min jnp.ptp", reduction(NUMBER, empty=False)),
    *rows("jnp.var jnp.std jax.nn.logsumexp", reduction(FLOAT, empty=False)),
    *rows("jnp.any jnp.all jnp.count_nonzero", reduction(ANY)),
    *rows("jnp.argmax jnp.argmin", reduction(NUMBER, empty=False, one=True)),
    *rows("jnp.median", reduction(FLOAT, empty=False, one=True)),
    *rows("jnp.quantile", _quantile),
    *rows("jnp.sum jnp.max", _masked_reduction),
    *rows("jnp.linalg.norm", _norm),
    *rows("jax.nn.softmax jax.nn.log_softmax jax.nn.standardize", _along_axis(FLOAT, empty=False)),
    *rows("jnp.cumsum", _along_axis(NUMBER)),
    *rows("jnp.cumprod", _along_axis(FLOAT, "jnp.cos({})")),
    *rows("jnp.diff jnp.gradient", _along_axis(FLOAT)),
    *rows("jnp.trapezoid", _along_axis(FLOAT, empty=False)),
    *rows("lax.cumsum lax.cumprod lax.cummax lax.cummin lax.cumlogsumexp", _lax_cumulative),
    *rows("lax.associative_scan", _scan_with),
    *rows("lax.reduce", _reduce),
    *rows("lax.reduce", _reduce_two),
    *rows("lax.reduce_window", _reduce_window),
)

SHAPES = (
    *rows("jnp.reshape", _reshape),
    *rows("jnp.transpose", _transpose),
    *rows("jnp.swapaxes jnp.moveaxis", _two_axes),
    *rows("jnp.flip", _flip),
    *rows("jnp.roll", _roll),
    *rows("jnp.concatenate jnp.stack", _join),
    *rows("jnp.pad", _pad),
    *rows("lax.pad", _lax_pad),
    *rows("jnp.tile", _tile),
    *rows("jnp.repeat", _repeat),
    *rows("jnp.broadcast_to", _broadcast_to),
    *rows("jnp.expand_dims", _expand),
    *rows("[slice]", _slice),
    *rows("jnp.tril jnp.triu", _triangle),
    *rows("jnp.rot90 jnp.trace jnp.diagonal", _square),
    *rows("jnp.zeros_like jnp.ones_like", _like),
    *rows("jnp.arange", _arange),
    *rows("jnp.linspace", _linspace),
    *rows("lax.broadcasted_iota", _iota),
)

INDEXING = (
    *rows("jnp.take", _take),
    *rows("jnp.take_along_axis", _take_along),
    *rows("[gather]", _gather),
    *rows(".at.set", update("set", unique=True)),
    *rows(".at.add", update("add", unique=False)),
    *rows(".at.max", update("max", unique=False)),
    *rows(".at.min", update("min", unique=False)),
    *rows(".at.multiply", update("multiply", unique=True)),
    *rows(".at.get", _get_filled),
    *rows("lax.dynamic_slice", _dynamic_slice),
    *rows("lax.dynamic_update_slice", _dynamic_update),
    *rows("lax.dynamic_slice_in_dim", _in_dim),
    *rows("jax.ops.segment_sum jax.ops.segment_max jax.ops.segment_prod", _segments),
    *rows("jax.nn.one_hot", _one_hot),
    *rows("jnp.bincount", _bincount),
    *rows("jnp.sort jnp.argsort", _sort),
    *rows("lax.sort", _sort_two),
    *rows("lax.top_k", _top_k),
    *rows("jnp.searchsorted", _searchsorted),
)

PRODUCTS = (
    *rows("jnp.matmul jnp.dot", _dot),
    *rows("jnp.einsum", _einsum),
    *rows("jnp.einsum", _einsum_with_itself),
    *rows("jnp.outer jnp.kron", _vectors),
    *rows("jnp.vdot", _vdot),
    *rows("lax.dot_general", _batched_dot),
    *rows("jnp.convolve", _convolve),
    *rows("lax.conv_general_dilated", _conv),
)

OF_FUNCTIONS = (
    *rows("jax.grad jax.grad jax.value_and_grad", _differentiate),
    *rows("jax.jvp", _jvp),
    *rows("jax.vjp", _vjp),
    *rows("jax.jacfwd jax.jacrev jax.hessian", _jacobian),
    *rows("jax.vmap jax.vmap", _vmap),
    *rows("jax.jit jax.checkpoint", _called),
    *rows("lax.scan lax.scan", _scan),
    *rows("lax.map", _map),
    *rows("lax.fori_loop", _fori_loop),
    *rows("lax.while_loop", _while_loop),
    *rows("lax.cond", _cond),
    *rows("lax.switch", _switch),
)


FAMILIES: tuple[tuple[Sequence[Function], int], ...] = (
    (ELEMENTWISE, 8),
    (REDUCTIONS, 4),
    (SHAPES, 4),
    (INDEXING, 4),
    (PRODUCTS, 1),
    (OF_FUNCTIONS, 2),
)
"""Each with how often it is drawn."""

FUNCTIONS = tuple(function for family, _ in FAMILIES for function in family)

MAX_ELEMENTS = 70_000
"""No value of a program has more."""


def is_small(shape: Sequence[int]) -> bool:
    return math.prod(shape) <= MAX_ELEMENTS and len(shape) <= 5
