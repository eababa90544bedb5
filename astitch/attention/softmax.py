"""Is a function of rows a softmax of scaled scores, or the gradient of one?

Random rows tell: see rows.py.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from astitch.attention.masks import as_seen
from astitch.attention.rows import RowFunctions, Source

TOLERANCE = 1e-8
"""Two functions of f64 are one if they agree to this, relatively."""

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

FAR_DRAWS = (_Draw(2.0, 1e4), _Draw(2.0, -1e4))
"""Scores that expose wide clips.  A softmax without its maximum is not finite there."""

ABSORBS = -1e30
"""A number that, added to a score in f64, is all that is left of it, as -1e9 is in f32."""


@dataclass(frozen=True)
class Softmax:
    """softmax(scale * scores + bias) of the scores that the mask keeps; without a mask of all.

    keeps_true: of a condition, whether it names what is kept.  is_uniform: a row of which all scores are left out has
    equal probabilities, as the library gives.
    """

    scale: float
    mask: Source | None
    keeps_true: bool
    bias: Source | None = None
    is_uniform: bool = True

    def evaluate(self, scores: np.ndarray, drawn: Mapping[str, np.ndarray]) -> np.ndarray:
        logits = self.scale * scores
        if self.bias:
            logits = logits + drawn[self.bias.name]
        if self.mask:
            given = np.broadcast_to(drawn[self.mask.name], logits.shape)
            logits = np.where(as_seen(given) == self.keeps_true, logits, -np.inf)
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))


def fit_softmax(rows: RowFunctions, name: str, masks: Container[str]) -> Softmax | None:
    """The softmax that an op gives; None where it is none.  masks: the sources that are some."""
    read = [rows.sources[n] for n in sorted(rows.reads[name])]
    own = [source for source in read if source.name in masks]
    biases = [source for source in read if source.name not in masks]
    if len(own) > 1 or len(biases) > 1 or rows.resolved(name) is None:
        return None
    fits: list[tuple[float, bool]] = []
    for seed, draw in enumerate((*DRAWS, *FAR_DRAWS)):
        # Of what the softmax multiplies by, once it is known.
        unit = 1 / fits[0][0] if fits else 1.0
        drawn = rows.draw(seed, masks, draw.deviation * unit, draw.mean * unit)
        scores = drawn[rows.product.name]
        p = np.broadcast_to(rows.evaluate(name, drawn), scores.shape)
        if draw in FAR_DRAWS and not np.any(np.isfinite(p)):
            continue
        seen = [np.broadcast_to(as_seen(drawn[m.name]), scores.shape) for m in own]
        added = [np.broadcast_to(drawn[b.name], scores.shape) for b in biases]
        fit = _fit_scale(p, scores, seen, added)
        if fit is None:
            return None
        fits.append(fit)
    scale, keeps_true = fits[0]
    if any(abs(s - scale) > TOLERANCE * scale or one is not keeps_true for s, one in fits):
        return None
    mask, bias = (some[0] if some else None for some in (own, biases))
    if mask and not keeps_true and drawn[mask.name].dtype != np.bool_:
        return None  # it leaves out where a number is 0
    is_uniform = mask is None or _gives_equal(rows, name, masks, mask, keeps_true)
    return Softmax(float(np.float32(scale)), mask, keeps_true, bias, is_uniform)


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
    """(dp, factor): the op gives factor * scale * p * (dp - sum(p * dp)).  None where it does not."""
    known = {source.name for source in (softmax.mask, softmax.bias) if source}
    others = [rows.sources[n] for n in sorted(rows.reads[name] - known)]
    if len(others) != 1 or others[0].name in masks or rows.resolved(name) is None:
        return None
    (source,) = others
    same = [alias for alias, name in rows.aliases.items() if name == source.name]
    factors: list[float] = []
    for seed, draw in enumerate(DRAWS):
        drawn = rows.draw(seed, masks, draw.deviation / softmax.scale, draw.mean / softmax.scale)
        drawn |= dict.fromkeys((source.name, *same), drawn[source.name] * draw.gradient)
        p = softmax.evaluate(drawn[rows.product.name], drawn)
        dp = np.broadcast_to(drawn[source.name], p.shape)
        wanted = softmax.scale * p * (dp - (p * dp).sum(1, keepdims=True))
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
