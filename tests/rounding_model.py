"""How near the results of a JAX program must come: its jaxpr in f64, and again with a rounding error after each op.

Takes a jaxpr, its arguments and the results of XLA and of astitch.  Every float is computed in f64.  A few more runs
multiply what an op rounds by 1 ± some eps of the dtype that it has (Monte Carlo arithmetic; Parker, Pierce and Eggert,
2000).  How far those runs spread says how much rounding there may be; where they disagree on an integer or on a NaN,
rounding decides and nothing is compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex

RUNS = 8

MORE_RUNS = 128
"""Where eight runs find a fault, these decide.  Eight draws of signs may miss what two errors add up to, in one element
of a few thousand."""

FACTOR = 2.0
"""astitch may be so many times as far from f64 as XLA is, or as the runs spread."""

ULPS = 4.0
"""And so many units in the last place."""

EXACT = frozenset(
    """
    abs and argmax argmin bitcast_convert_type broadcast_in_dim ceil clamp clz concatenate copy
    copysign cummax cummin dynamic_slice dynamic_update_slice eq expand_dims floor gather ge gt
    iota is_finite le lt max min ne neg nextafter not optimization_barrier or pad population_count reduce_and
    reduce_max reduce_min reduce_or reduce_precision reduce_window_max reduce_window_min
    reduce_xor reshape rev round scatter scatter-max scatter-min select_and_gather_add select_n
    shift_left shift_right_arithmetic shift_right_logical sign slice sort split squeeze
    stop_gradient tile top_k transpose xor
    """.split()
)
"""These round nothing."""

CORRECTLY_ROUNDED = frozenset("add sub mul div sqrt square convert_element_type add_any".split())
"""What f32 can hold they give exactly."""

LINEAR = frozenset(
    "reduce_sum cumsum dot_general conv_general_dilated scatter-add reduce_window_sum".split()
)
"""Sums, whose error goes with the sum of their terms' magnitudes."""

CANCELLING = {
    **dict.fromkeys(("erf_inv", "cumlogsumexp", "pow", "log", "log1p"), 1),
    **dict.fromkeys(("lgamma", "digamma"), 8),
}
"""Functions that cancel near their zeros, and the size of what cancels: z + 7.5 in Lanczos' formula."""


@dataclass(frozen=True, slots=True)
class Judged:
    """fault: what is wrong, or nothing.  checked, unstable: elements that were compared, and that rounding decides.
    worst: the largest error, as a part of what is allowed."""

    fault: str
    checked: int
    unstable: int
    worst: float


# ---- the runs ------------------------------------------------------------------------------------


def run_in_f64(
    jaxpr: jex.ClosedJaxpr, arguments: Sequence[Any], runs: int = RUNS
) -> list[list[np.ndarray]]:
    """The results of a run without rounding errors, then those of so many runs with them."""
    with jax.enable_x64(True):
        given = [_widen(np.asarray(a)) for a in jax.tree.leaves(arguments)]

        def run(seed: Any, *given: Any) -> list[Any]:
            return _Run(seed).evaluate(jaxpr.jaxpr, jaxpr.consts, given)

        compiled = (
            jax.jit(run)
            .lower(np.uint32(0), *given)
            .compile(compiler_options={"xla_backend_optimization_level": 0})
        )
        return [[np.asarray(r) for r in compiled(np.uint32(n), *given)] for n in range(runs + 1)]


def _is_float(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.floating))


def _widen(x: Any) -> Any:
    return x.astype(np.float64) if _is_float(x.dtype) else x


def _wide(dtype: Any) -> Any:
    return np.dtype(np.float64) if _is_float(dtype) else dtype


@dataclass
class _Run:
    """One interpretation of a jaxpr.  seed: traced; 0 makes no errors.  count: of the ops so far."""

    seed: Any
    count: int = 0

    def evaluate(self, jaxpr: Any, consts: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        known: dict[Any, Any] = {}

        def read(atom: Any) -> Any:
            if isinstance(atom, jex.Literal):
                return _widen(np.asarray(atom.val, atom.aval.dtype))
            return known[atom]

        known.update(zip(jaxpr.constvars, (_widen(jnp.asarray(c)) for c in consts), strict=True))
        known.update(zip(jaxpr.invars, given, strict=True))
        for eqn in jaxpr.eqns:
            made = self.apply(eqn, [read(a) for a in eqn.invars])
            known.update(zip(eqn.outvars, made, strict=True))
        return [read(a) for a in jaxpr.outvars]

    def apply(self, eqn: Any, given: list[Any]) -> list[Any]:
        name = eqn.primitive.name
        if name in _CONTROL:
            return _CONTROL[name](self, eqn, given)
        for key in ("jaxpr", "call_jaxpr"):
            if key in eqn.params:
                inner = eqn.params[key]
                return self.evaluate(
                    getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), given
                )
        made = _bind(eqn, given)
        if name in EXACT:
            return made
        return [
            self.disturb(eqn, given, x, v.aval.dtype) if _is_float(v.aval.dtype) else x
            for x, v in zip(made, eqn.outvars, strict=True)
        ]

    def disturb(self, eqn: Any, given: list[Any], x: Any, dtype: Any) -> Any:
        """x with the error that an op has."""
        name, size = eqn.primitive.name, jnp.abs(x)
        if name in LINEAR and x.size:
            size = _bind(eqn, [jnp.abs(g) if _is_float(g.dtype) else g for g in given])[0]
        elif name in CANCELLING:
            size = jnp.maximum(4 * size, CANCELLING[name])
        elif name in ("reduce_prod", "cumprod"):
            size = size * math.sqrt(max(given[0].size, 1))
        elif name not in CORRECTLY_ROUNDED:
            size = 4 * size
        if name in CORRECTLY_ROUNDED:
            size = jnp.where(_round(x, dtype) == x, 0, size)
        return self.add_error(x, size, dtype)

    def add_error(self, x: Any, size: Any, dtype: Any) -> Any:
        """x and some eps of `size`; in half of the runs beyond the range of its dtype it is infinite or zero."""
        limits = jnp.finfo(dtype)
        error = self.signs(x.shape) * float(limits.eps) * size
        y = jnp.where((self.seed > 0) & jnp.isfinite(x) & jnp.isfinite(error), x + error, x)
        if dtype == np.float64:
            return y
        strict = self.seed % 2 == 1
        y = jnp.where(strict & (jnp.abs(y) > float(limits.max)), jnp.sign(y) * jnp.inf, y)
        if dtype != np.float16:  # whose small numbers no one takes for zeros
            y = jnp.where(strict & (jnp.abs(y) < float(limits.tiny)), 0, y)
        return y

    def signs(self, shape: Sequence[int]) -> Any:
        """1 or -1 for each element, in each run and op another."""
        self.count += 1
        bits = lax.iota(np.uint32, math.prod(shape)).reshape(shape) * np.uint32(0x9E3779B1)
        bits = bits + self.seed * np.uint32(0x85EBCA77) + np.uint32(self.count * 0xC2B2AE3D % 2**32)
        for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39)):
            bits = (bits ^ (bits >> np.uint32(shift))) * np.uint32(factor)
        return jnp.where(bits >> np.uint32(31) == 0, 1.0, -1.0)


def _round(x: Any, dtype: Any) -> Any:
    if dtype == np.float64:
        return jnp.full(x.shape, jnp.nan)  # f64 does not say what f64 leaves out
    limits = jnp.finfo(dtype)
    return lax.reduce_precision(x, exponent_bits=limits.nexp, mantissa_bits=limits.nmant)


def _log1p(x: Any) -> Any:
    """To a few ulps (Kahan); XLA's own for the CPU is off by 120 in f64."""
    sum_ = 1 + x
    near = jnp.log(sum_) * (x / (sum_ - 1))
    return jnp.where((sum_ == 1) | jnp.isinf(x), x, near)


def _atanh(x: Any) -> Any:
    return jnp.where(jnp.abs(x) > 1, jnp.nan, (_log1p(x) - _log1p(-x)) / 2)


_ACCURATE: dict[str, Callable[[Any], Any]] = {"log1p": _log1p, "atanh": _atanh}


def _bind(eqn: Any, given: list[Any]) -> list[Any]:
    """One op on f64 in the place of its floats."""
    name, params = eqn.primitive.name, dict(eqn.params)
    if name in _ACCURATE:
        return [_ACCURATE[name](given[0])]
    if name.startswith("scatter"):
        fn = getattr(lax, name.replace("-", "_"))
        options = ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")
        return [fn(*given, **{option: params[option] for option in options})]
    if name in ("bitcast_convert_type", "nextafter"):
        true = [g.astype(v.aval.dtype) for g, v in zip(given, eqn.invars, strict=True)]
        return [_widen(eqn.primitive.bind(*true, **params))]
    for key in ("new_dtype", "dtype", "preferred_element_type"):
        if params.get(key) is not None:
            params[key] = _wide(params[key])
    if "precision" in params:
        params["precision"] = None
    made = eqn.primitive.bind(*given, **params)
    return list(made) if eqn.primitive.multiple_results else [made]


def _scan(run: _Run, eqn: Any, given: list[Any]) -> list[Any]:
    p = eqn.params
    if "ft_in" in p:  # JAX from 0.11 on
        n, m = (len(part) for part in p["ft_in"].unpack()[:2])
    else:
        n, m = p["num_consts"], p["num_carry"]
    consts, carry, xs = given[:n], given[n : n + m], given[n + m :]
    body = p["jaxpr"]

    def turn(state: Any, x: Any) -> Any:
        seed, carried = state
        inside = _Run(seed, run.count)
        made = inside.evaluate(body.jaxpr, body.consts, [*consts, *carried, *x])
        return (_next_seed(seed), made[:m]), made[m:]

    (_, carried), ys = lax.scan(turn, (run.seed, carry), xs, p["length"], p["reverse"])
    run.count += 1000
    return [*carried, *ys]


def _next_seed(seed: Any) -> Any:
    """0 stays 0, and odd stays odd."""
    return jnp.where(seed == 0, seed, seed + np.uint32(2 * MORE_RUNS))


def _while(run: _Run, eqn: Any, given: list[Any]) -> list[Any]:
    p = eqn.params
    n, m = p["cond_nconsts"], p["body_nconsts"]
    for_cond, for_body, start = given[:n], given[n : n + m], given[n + m :]

    def goes_on(state: Any) -> Any:
        j = p["cond_jaxpr"]
        return _Run(state[0], run.count).evaluate(j.jaxpr, j.consts, [*for_cond, *state[1]])[0]

    def turn(state: Any) -> Any:
        j = p["body_jaxpr"]
        made = _Run(state[0], run.count).evaluate(j.jaxpr, j.consts, [*for_body, *state[1]])
        return _next_seed(state[0]), made

    _, made = lax.while_loop(goes_on, turn, (run.seed, start))
    run.count += 1000
    return list(made)


def _cond(run: _Run, eqn: Any, given: list[Any]) -> list[Any]:
    index, *operands = given

    def branch(j: Any) -> Callable[..., Any]:
        return lambda *x: _Run(run.seed, run.count).evaluate(j.jaxpr, j.consts, x)

    made = lax.switch(index, [branch(j) for j in eqn.params["branches"]], *operands)
    run.count += 1000
    return list(made)


def _reduce(run: _Run, eqn: Any, given: list[Any]) -> list[Any]:
    return _combine(
        run, eqn, given, lambda x, init, f: lax.reduce(x, init, f, eqn.params["dimensions"])
    )


def _reduce_window(run: _Run, eqn: Any, given: list[Any]) -> list[Any]:
    p = eqn.params
    sizes = p["window_dimensions"], p["window_strides"], p["padding"]
    dilations = p["base_dilation"], p["window_dilation"]
    return _combine(
        run, eqn, given, lambda x, init, f: lax.reduce_window(x, init, f, *sizes, *dilations)
    )


def _combine(
    run: _Run, eqn: Any, given: list[Any], reduce: Callable[[Any, Any, Any], Any]
) -> list[Any]:
    """Reduces by any function: each result with one error, of the size that the function gives magnitudes."""
    j = eqn.params["jaxpr"]
    body, consts = getattr(j, "jaxpr", j), eqn.params.get("consts", getattr(j, "consts", ()))
    half = len(given) // 2

    def combine(p: Any, q: Any) -> Any:
        return tuple(_Run(np.uint32(0)).evaluate(body, consts, [*p, *q]))

    def make(operands: Sequence[Any]) -> list[Any]:
        return list(reduce(tuple(operands[:half]), tuple(operands[half:]), combine))

    made = make(given)
    names = {inner.primitive.name for inner in body.eqns}
    if names <= EXACT:
        return made
    sizes = make([jnp.abs(g) for g in given])
    return [
        run.add_error(x, jnp.abs(size) * (1 if names <= EXACT | {"add"} else 4), v.aval.dtype)
        if _is_float(v.aval.dtype)
        else x
        for x, size, v in zip(made, sizes, eqn.outvars, strict=True)
    ]


_CONTROL: dict[str, Callable[[_Run, Any, list[Any]], list[Any]]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "reduce": _reduce,
    "reduce_window": _reduce_window,
}


# ---- the comparison ------------------------------------------------------------------------------


def judge(jaxpr: jex.ClosedJaxpr, arguments: Sequence[Any], want: Any, got: Any) -> Judged:
    """astitch's results `got` beside XLA's `want` and both beside f64."""
    if jax.tree.structure(want) != jax.tree.structure(got):
        return Judged(f"the tree {jax.tree.structure(got)}", 0, 0, math.inf)
    want, got = jax.tree.leaves(want), jax.tree.leaves(got)
    for number, (g, w) in enumerate(zip(got, want, strict=True)):
        types = [f"{x.dtype}{list(x.shape)}{' weak' * x.weak_type}" for x in (g, w)]
        if types[0] != types[1]:
            return Judged(f"result {number} is {types[0]} instead of {types[1]}", 0, 0, math.inf)
    if all(
        np.array_equal(g, w, equal_nan=_is_float(w.dtype)) for g, w in zip(got, want, strict=True)
    ):
        return Judged("", sum(w.size for w in want), 0, 0.0)
    return judge_beside_f64(jaxpr, arguments, want, got)


def judge_beside_f64(
    jaxpr: jex.ClosedJaxpr, arguments: Sequence[Any], want: Sequence[Any], got: Sequence[Any]
) -> Judged:
    """`judge` of flat results of the same types, also where they are equal."""
    judged = _compare_with(run_in_f64(jaxpr, arguments), want, got)
    if judged.fault:
        judged = _compare_with(run_in_f64(jaxpr, arguments, MORE_RUNS), want, got)
    return judged


def _compare_with(
    runs: Sequence[Sequence[np.ndarray]], want: Sequence[Any], got: Sequence[Any]
) -> Judged:
    checked = unstable = 0
    worst = 0.0
    for number, (g, w) in enumerate(zip(got, want, strict=True)):
        g, w = np.asarray(g), np.asarray(w)
        shares, is_unstable = compare(g, w, [run[number] for run in runs])
        checked += g.size - int(is_unstable.sum())
        unstable += int(is_unstable.sum())
        if not g.size:
            continue
        worst = max(worst, float(shares.max()))
        if shares.max() > 1:
            place = tuple(map(int, np.unravel_index(np.argmax(shares), g.shape)))
            fault = (
                f"result {number} ({g.dtype}{list(g.shape)}): {int((shares > 1).sum())} of {g.size} are too far away,"
                f" most of all {list(place)}, by {shares[place]:.3g} times what is allowed:"
                f" astitch {g[place]!r}, XLA {w[place]!r}, f64 {runs[0][number][place]!r}"
            )
            return Judged(fault, checked, unstable, worst)
    return Judged("", checked, unstable, worst)


def compare(
    got: np.ndarray, want: np.ndarray, runs: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """For each element the error as a part of what is allowed (infinite where nothing is).  And whether rounding
    decides it, so that the error counts as none.  runs: without errors, then with them."""
    if not _is_float(got.dtype):
        unstable = np.any([run != runs[0] for run in runs], axis=0)
        wrong = (got != want) & (got != runs[0])
        return np.where(wrong & ~unstable, np.inf, 0.0), np.asarray(unstable)
    limits = jnp.finfo(got.dtype)
    exact = runs[0]
    with np.errstate(all="ignore"):
        kinds = [_classify(run) for run in runs]
        unstable = np.any([kind != kinds[0] for kind in kinds], axis=0)
        g, w = got.astype(np.float64), want.astype(np.float64)
        # The largest number and infinity are one rounding apart.
        unstable |= np.isfinite(exact) & (np.abs(exact) > 0.99 * float(limits.max))
        spread = np.max([np.abs(run - exact) for run in runs], axis=0)
        of_xla = np.abs(w - exact)
        of_xla = np.where(np.isfinite(of_xla), of_xla, 0)
        allowed = FACTOR * np.maximum(spread, of_xla)
        allowed += ULPS * float(limits.eps) * np.abs(exact) + 2 * float(limits.tiny)
        shares = np.abs(g - exact) / allowed
        same_kind = _classify(g) == kinds[0]
        shares = np.where(np.isfinite(exact) & same_kind, shares, np.where(same_kind, 0, np.inf))
        # XLA's own infinity or NaN where f64 has none.
        shares = np.where((_classify(g) == _classify(w)) & ~np.isfinite(w), 0, shares)
    return np.where(unstable, 0.0, shares), unstable


def _classify(x: np.ndarray) -> np.ndarray:
    """0 finite, 1 and -1 infinite, 2 NaN."""
    return np.where(np.isnan(x), 2, np.where(np.isinf(x), np.sign(x), 0))
