"""Is a function of rows a softmax of scaled scores, or the gradient of one?

Random rows tell: see rows.py.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from astitch.attention.masks import as_seen
from astitch.attention.rows import RowFunctions, Source
from astitch.graph.ir import DType

TOLERANCE = 1e-8
"""Two functions of f64 are one if they agree to this, relatively."""

BEND_TOLERANCE = 1e-6
"""Likewise of arguments of tanh, which lose digits where it is near to 1."""

GRADIENT_TOLERANCE = 1e-5
"""Likewise of the gradient, as the softmax's scale was rounded to f32."""


@dataclass(frozen=True, slots=True)
class _Draw:
    """Random scores of this deviation and mean; gradients of this size."""

    deviation: float
    mean: float = 0.0
    gradient: float = 1.0


DRAWS = (_Draw(2.0), _Draw(2.0, gradient=1e-6), _Draw(60.0, 150.0, 1e6), _Draw(60.0, -150.0))
"""Small scores, and large ones that expose clips and thresholds."""


def list_draws(cap: float) -> tuple[_Draw, ...]:
    """DRAWS of a softmax; of capped scores those on both sides of where the cap bends them."""
    if not cap:
        return DRAWS
    return (_Draw(2.0), _Draw(2.0, gradient=1e-6), _Draw(cap, gradient=1e6), _Draw(3 * cap))


FAR_DRAWS = (_Draw(2.0, 1e4), _Draw(2.0, -1e4))
"""Scores that expose wide clips.  A softmax without its maximum is not finite there."""

ABSORBS = -1e30
"""A number that, added to a score in f64, is all that is left of it, as -1e9 is in f32."""


@dataclass(frozen=True)
class Drop:
    """What probabilities are multiplied by: a number, or `gain` where a condition is keeps_true, else 0."""

    source: Source
    gain: float
    keeps_true: bool

    def read(self, drawn: Mapping[str, np.ndarray]) -> np.ndarray:
        values = drawn[self.source.name]
        if values.dtype == np.bool_:
            return np.where(values == self.keeps_true, self.gain, 0.0)
        return self.gain * values


@dataclass(frozen=True)
class Softmax:
    """softmax(scale * scores + bias) of the scores that the mask keeps; without a mask of all.

    cap: not scale * scores but cap * tanh(scale * scores / cap); 0: none.  keeps_true: of a condition, whether it names
    what is kept.  is_uniform: a row of which all scores are left out has equal probabilities, as the library gives.
    drop: what the probabilities are multiplied by behind it, as dropout does.
    """

    scale: float
    mask: Source | None
    keeps_true: bool
    bias: Source | None = None
    is_uniform: bool = True
    cap: float = 0.0
    drop: Drop | None = None

    def bend(self, scores: np.ndarray) -> np.ndarray:
        """tanh(scale * scores / cap)."""
        return np.asarray(np.tanh(self.scale / self.cap * scores))

    def evaluate(self, scores: np.ndarray, drawn: Mapping[str, np.ndarray]) -> np.ndarray:
        logits = self.cap * self.bend(scores) if self.cap else self.scale * scores
        if self.bias:
            logits = logits + drawn[self.bias.name]
        if self.mask:
            given = np.broadcast_to(drawn[self.mask.name], logits.shape)
            logits = np.where(as_seen(given) == self.keeps_true, logits, -np.inf)
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))


def fit_softmax(rows: RowFunctions, name: str, masks: Container[str]) -> Softmax | None:
    """The softmax that an op gives, multiplied by an array or not; None where it is none.

    masks: the sources that are some.
    """
    found = _fit_alone(rows, name, masks)
    if found or rows.resolved(name) is None:
        return found
    for source in (rows.sources[n] for n in sorted(rows.reads[name])):
        is_condition = rows.graph[source.name].dtype is DType.PRED
        for value in (1, 0) if is_condition else (1,):
            found = _fit_dropped(rows, name, masks, source, value)
            if found:
                return found
    return None


def _fit_dropped(
    rows: RowFunctions, name: str, masks: Container[str], source: Source, value: int
) -> Softmax | None:
    """The softmax that an op multiplies by a source.  value: of the source where probabilities are kept."""
    drawn = rows.draw(0, masks)
    sums = rows.fixing(source, value).evaluate(name, drawn).sum(axis=1)
    gain = float(sums[0])
    if not np.all(np.isfinite(sums)) or gain <= 0:
        return None
    softmax = _fit_alone(rows.fixing(source, value, gain), name, masks)
    if softmax is None:
        return None
    drop = Drop(source, gain, value == 1)
    for seed in (0, 1):
        drawn = rows.draw(seed, masks, 1 / softmax.scale)
        wanted = softmax.evaluate(drawn[rows.product.name], drawn) * drop.read(drawn)
        if np.max(abs(rows.evaluate(name, drawn) - wanted)) > GRADIENT_TOLERANCE:
            return None
    return replace(softmax, drop=drop)


def _fit_alone(rows: RowFunctions, name: str, masks: Container[str]) -> Softmax | None:
    read = [rows.sources[n] for n in sorted(rows.reads[name])]
    own = [source for source in read if source.name in masks]
    biases = [source for source in read if source.name not in masks]
    if len(own) > 1 or len(biases) > 1 or rows.resolved(name) is None:
        return None
    fit = _fit_draws(rows, name, masks, own, biases)
    if fit is None:
        slope = find_bend(rows)
        fit = _fit_draws(rows, name, masks, own, biases, slope) if slope else None
    if fit is None:
        return None
    scale, keeps_true, cap = fit
    mask, bias = (some[0] if some else None for some in (own, biases))
    if mask and not keeps_true and rows.graph[mask.name].dtype is not DType.PRED:
        return None  # it leaves out where a number is 0
    is_uniform = mask is None or _gives_equal(rows, name, masks, mask, keeps_true)
    return Softmax(float(np.float32(scale)), mask, keeps_true, bias, is_uniform, cap)


def _fit_draws(
    rows: RowFunctions,
    name: str,
    masks: Container[str],
    own: Sequence[Source],
    biases: Sequence[Source],
    slope: float = 0.0,
) -> tuple[float, bool, float] | None:
    """(scale, keeps_true, cap) that all draws agree on.  slope: of scores that are capped, of the tanh's argument."""
    fits: list[tuple[float, bool]] = []
    draws: tuple[_Draw, ...] = (*DRAWS, *FAR_DRAWS)
    for seed in range(len(draws)):
        draw = draws[seed]
        # Of what the softmax multiplies by, once it is known.
        unit = 1 / (fits[0][0] * (slope or 1.0)) if fits else 1.0
        drawn = rows.draw(seed, masks, draw.deviation * unit, draw.mean * unit)
        scores = drawn[rows.product.name]
        p = np.broadcast_to(rows.evaluate(name, drawn), scores.shape)
        if draw in FAR_DRAWS and not np.any(np.isfinite(p)):
            continue
        seen = [np.broadcast_to(as_seen(drawn[m.name]), scores.shape) for m in own]
        added = [np.broadcast_to(drawn[b.name], scores.shape) for b in biases]
        fit = _fit_scale(p, np.tanh(slope * scores) if slope else scores, seen, added)
        if fit is None:
            return None
        fits.append(fit)
        if slope and seed == 0:
            draws = list_draws(fit[0])
        if seed + 1 == len(draws):
            break
    scale, keeps_true = fits[0]
    tolerance = (GRADIENT_TOLERANCE if slope else TOLERANCE) * scale
    if any(abs(s - scale) > tolerance or one is not keeps_true for s, one in fits):
        return None
    return (scale * slope, keeps_true, scale) if slope else (scale, keeps_true, 0.0)


SATURATES = 1e12
"""Scores of this size are beyond every cap."""


def find_bend(rows: RowFunctions) -> float | None:
    """a, where an op gives tanh(a * score) of the scores alone; None where none does."""
    near, far = rows.draw(0), rows.draw(0, deviation=SATURATES)
    score, large = near[rows.product.name], far[rows.product.name]
    for name in rows.labels:
        if rows.reads[name] or rows.resolved(name) is None:
            continue
        if not np.array_equal(rows.evaluate(name, far), np.sign(large)):
            continue
        with np.errstate(all="ignore"):
            slopes = np.arctanh(rows.evaluate(name, near)) / score
        slope = float(np.median(slopes))
        if slope > 0 and np.max(abs(slopes - slope)) <= BEND_TOLERANCE * slope:
            return slope
    return None


def _gives_equal(
    rows: RowFunctions, name: str, masks: Container[str], mask: Source, keeps_true: bool
) -> bool:
    """Do rows of which all scores are left out have equal probabilities?"""
    drawn = _draw_empty_rows(rows, masks, mask, keeps_true)
    p = np.broadcast_to(rows.evaluate(name, drawn), drawn[rows.product.name].shape)
    return bool(np.all(abs(p - 1 / p.shape[1]) <= TOLERANCE))


def _draw_empty_rows(
    rows: RowFunctions, masks: Container[str], mask: Source, keeps_true: bool
) -> dict[str, np.ndarray]:
    """Rows of which all scores are left out."""
    drawn = rows.draw(0, masks)
    array = drawn[mask.name]
    none = not keeps_true if array.dtype == np.bool_ else ABSORBS
    empty = np.full_like(array, none)
    same = (alias for alias, source in rows.aliases.items() if source == mask.name)
    return drawn | dict.fromkeys((mask.name, *same), empty)


def passes_masks(
    rows: RowFunctions, name: str, softmax: Softmax, factor: float, masks: Container[str]
) -> bool | None:
    """Has a score that is left out a gradient, in a row where all are?  None where neither yes nor no describes it.

    name: an op that gives the gradient of a softmax with a mask; factor: see fit_gradient.
    """
    assert softmax.mask
    drawn = _draw_empty_rows(rows, masks, softmax.mask, softmax.keeps_true)
    (source,) = (rows.sources[n] for n in rows.reads[name] - {softmax.mask.name})
    shape = drawn[rows.product.name].shape
    dp = np.broadcast_to(drawn[source.name], shape)
    given = np.broadcast_to(rows.evaluate(name, drawn), shape)
    if not given.any():
        return False
    wanted = factor * softmax.scale * (dp - dp.mean(1, keepdims=True)) / shape[1]
    if softmax.cap:
        wanted = wanted * (1 - softmax.bend(drawn[rows.product.name]) ** 2)
    agrees = np.max(abs(given - wanted)) <= GRADIENT_TOLERANCE * np.max(abs(given))
    return True if agrees else None


def _fit_scale(
    p: np.ndarray, scores: np.ndarray, masks: Sequence[np.ndarray], biases: Sequence[np.ndarray]
) -> tuple[float, bool] | None:
    """(scale, seen) for which p is the softmax of scale * scores + biases, of those that the mask leaves."""
    if not np.all(np.isfinite(p)) or np.any(p < 0) or np.any(abs(p.sum(1) - 1) > TOLERANCE):
        return None
    there, seen = p > 0, True
    for mask in masks:
        seen = bool(np.array_equal(there, mask))
        if not seen and not np.array_equal(there, ~mask):
            return None
    if not masks and not there.all():
        return None

    def centre(x: np.ndarray) -> np.ndarray:
        mean = np.where(there, x, 0).sum(1, keepdims=True) / there.sum(1, keepdims=True)
        return np.where(there, x - mean, 0)

    given = centre(np.log(np.where(there, p, 1.0)))
    rest = given - sum((centre(b) for b in biases), np.zeros_like(given))
    x = centre(scores)
    scale = float((x * rest).sum() / (x * x).sum())
    agrees = np.max(abs(rest - scale * x)) <= TOLERANCE * np.max(abs(given))
    return (scale, seen) if agrees and scale > 0 else None


def fit_gradient(
    rows: RowFunctions, name: str, softmax: Softmax, masks: Container[str]
) -> tuple[Source, float] | None:
    """(dp, factor): the op gives factor * scale * p * (dp - sum(p * dp)).  None where it does not.

    dp: the gradient of the softmax; where the op itself multiplies it as dropout does, of what comes behind.
    """
    known = {source.name for source in (softmax.mask, softmax.bias) if source}
    drop = softmax.drop
    is_dropped_here = drop is not None and drop.source.name in rows.reads[name]
    known |= {drop.source.name} if drop else set()
    others = [rows.sources[n] for n in sorted(rows.reads[name] - known)]
    if len(others) != 1 or others[0].name in masks or rows.resolved(name) is None:
        return None
    (source,) = others
    same = [alias for alias, name in rows.aliases.items() if name == source.name]
    factors: list[float] = []
    for seed, draw in enumerate(list_draws(softmax.cap)):
        drawn = rows.draw(seed, masks, draw.deviation / softmax.scale, draw.mean / softmax.scale)
        drawn |= dict.fromkeys((source.name, *same), drawn[source.name] * draw.gradient)
        p = softmax.evaluate(drawn[rows.product.name], drawn)
        dp = np.broadcast_to(drawn[source.name], p.shape)
        if drop and is_dropped_here:
            dp = dp * drop.read(drawn)
        wanted = softmax.scale * p * (dp - (p * dp).sum(1, keepdims=True))
        if softmax.cap:
            wanted = wanted * (1 - softmax.bend(drawn[rows.product.name]) ** 2)
        given = np.broadcast_to(rows.evaluate(name, drawn), p.shape)
        if not np.all(np.isfinite(given)):
            return None
        factor = float((given * wanted).sum() / (wanted * wanted).sum())
        if np.max(abs(given - factor * wanted)) > GRADIENT_TOLERANCE * np.max(abs(given)):
            return None
        factors.append(factor)
    low, high = min(factors), max(factors)
    if high <= 0 or high - low > GRADIENT_TOLERANCE * high:
        return None
    nearest = round(high)
    exact = nearest and abs(high - nearest) < GRADIENT_TOLERANCE
    return source, float(nearest) if exact else high
