"""Is a function of rows a softmax of scaled scores, or the gradient of one?

Random rows tell: see rows.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from astitch.attention.indices import DependsOnData, evaluate_at
from astitch.attention.rows import LEFT_OUT, RowFunctions, Source, read_scalar
from astitch.graph.ir import ArrayType, DType, Graph, Node
from astitch.graph.ops import OPS, Kind

TOLERANCE = 1e-8
"""Two functions of f64 are one if they agree to this, relatively."""

DRAWS = ((2.0, 0.0), (2.0, 0.0), (60.0, 150.0), (60.0, -150.0))
"""The deviation and the mean of random scores: small ones, and such that a bound on scores or probabilities shows."""


MOST_STEPS = 12
"""Ops from a condition to the number that it is added as."""

LEAVES_OUT = -1e8
"""A number that, added to a score, leaves it out: no score of 16 bits in practice comes near."""

PROBES = 64
"""Elements by which a mask of numbers is told from others, before it is compared whole."""


@dataclass(frozen=True)
class Softmax:
    """softmax(scale * scores + bias) of those whose mask is `seen`; without a mask of all."""

    scale: float
    mask: Source | None
    seen: bool
    bias: Source | None = None
    takes_empty_rows: bool = True  # a row without a score has numbers, not NaN

    def evaluate(self, scores: np.ndarray, drawn: Mapping[str, np.ndarray]) -> np.ndarray:
        logits = self.scale * scores
        if self.bias:
            logits = logits + drawn[self.bias.name]
        if self.mask:
            given = np.broadcast_to(drawn[self.mask.name], logits.shape)
            logits = np.where(as_seen(given) == self.seen, logits, -np.inf)
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))


def fit_softmax(rows: RowFunctions, name: str) -> Softmax | None:
    """The softmax that an op gives; None where it is none."""
    conditions = _find_masks(rows)
    read = sorted(rows.reads[name])
    masks = [rows.sources[n] for n in read if n in conditions]
    biases = [rows.sources[n] for n in read if n not in conditions]
    if len(masks) > 1 or len(biases) > 1 or rows.resolved(name) is None:
        return None
    fits: list[tuple[float, bool]] = []
    for seed, (spread, offset) in enumerate(DRAWS):
        # Of what the softmax multiplies by, once it is known.
        unit = 1 / fits[0][0] if fits else 1.0
        drawn = rows.draw(seed, conditions, spread * unit, offset * unit)
        scores = drawn[rows.product.name]
        p = np.broadcast_to(rows.evaluate(name, drawn), scores.shape)
        seen = [np.broadcast_to(as_seen(drawn[m.name]), scores.shape) for m in masks]
        added = [np.broadcast_to(drawn[b.name], scores.shape) for b in biases]
        fit = _fit_scale(p, scores, seen, added)
        if fit is None:
            return None
        fits.append(fit)
    scale, keeps = fits[0]
    if any(abs(s - scale) > TOLERANCE * scale or one is not keeps for s, one in fits):
        return None
    empty = _evaluate_empty(rows, name, masks, keeps)
    one_mask, one_bias = (some[0] if some else None for some in (masks, biases))
    return Softmax(float(np.float32(scale)), one_mask, keeps, one_bias, empty)


def _evaluate_empty(rows: RowFunctions, name: str, masks: Sequence[Source], keeps: bool) -> bool:
    """Do rows of which all scores are left out have probabilities?"""
    drawn = rows.draw(0, _find_masks(rows))
    for mask in masks:
        array = drawn[mask.name]
        none = not keeps if array.dtype == np.bool_ else LEFT_OUT
        drawn[mask.name] = np.full_like(array, none)
        for alias, same in rows.aliases.items():
            if same == mask.name:
                drawn[alias] = drawn[mask.name]
    p = np.broadcast_to(rows.evaluate(name, drawn), drawn[rows.product.name].shape)
    return bool(np.all(np.isfinite(p)) and np.all(abs(p.sum(1) - 1) <= TOLERANCE))


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


def fit_gradient(rows: RowFunctions, name: str, softmax: Softmax) -> tuple[Source, float] | None:
    """(dp, factor): the op gives factor * scale * p * (dp - sum(p * dp)).  None where it does not."""
    known = {source.name for source in (softmax.mask, softmax.bias) if source}
    others = [rows.sources[n] for n in sorted(rows.reads[name] - known)]
    if len(others) != 1 or rows.resolved(name) is None:
        return None
    factors: list[float] = []
    conditions = _find_masks(rows)
    if others[0].name in conditions:
        return None
    for seed, (spread, offset) in enumerate(DRAWS):
        drawn = rows.draw(seed, conditions, spread / softmax.scale, offset / softmax.scale)
        p = softmax.evaluate(drawn[rows.product.name], drawn)
        dp = np.broadcast_to(drawn[others[0].name], p.shape)
        wanted = softmax.scale * p * (dp - (p * dp).sum(1, keepdims=True))
        given = np.broadcast_to(rows.evaluate(name, drawn), p.shape)
        if not np.all(np.isfinite(given)):
            return None
        factor = float((given * wanted).sum() / (wanted * wanted).sum())
        # The scale of the softmax is rounded to f32.
        if np.max(abs(given - factor * wanted)) > 1e-5 * np.max(abs(given)):
            return None
        factors.append(factor)
    low, high = min(factors), max(factors)
    if high <= 0 or high - low > 1e-5 * high:
        return None
    nearest = round(high)
    return others[0], float(nearest) if nearest and abs(high - nearest) < 1e-5 else high


def as_seen(values: np.ndarray) -> np.ndarray:
    """A mask's elements as conditions: 0 keeps a score, a very low number leaves it out.

    Raises DependsOnData for numbers that do neither.
    """
    if values.dtype == np.bool_:
        return values
    seen = values == 0
    if not np.all(seen | (values <= LEAVES_OUT)):
        raise DependsOnData
    return np.asarray(seen)


def _find_masks(rows: RowFunctions) -> frozenset[str]:
    """The sources that are conditions, or that are told by an index alone to be 0 or very low."""
    return frozenset(name for name, source in rows.sources.items() if _is_mask(rows, source))


def _is_mask(rows: RowFunctions, source: Source) -> bool:
    node = rows.graph[source.name]
    if node.dtype is DType.PRED:
        return True
    random = np.random.default_rng(0)
    index = [random.integers(0, extent, PROBES) for extent in node.shape]
    try:
        as_seen(evaluate_at(rows.graph, node.name, index))
    except DependsOnData:
        return _follows_from_condition(rows.graph, node)
    return True


def _follows_from_condition(graph: Graph, node: Node) -> bool:
    """Is a number 0 or very low, as a condition says?"""
    names: list[str] = [node.name]
    while graph[names[-1]].dtype is not DType.PRED:
        current = graph[names[-1]]
        row = OPS[current.op]
        if (
            row.kind not in (Kind.ELEMENTWISE, Kind.BROADCAST, Kind.INDEX)
            or len(names) > MOST_STEPS
        ):
            return False
        others = [o for o in dict.fromkeys(current.operands) if read_scalar(graph, o) is None]
        if len(others) != 1:
            return False
        names.append(others[0])
    found: list[float] = []
    for condition in (False, True):
        known = {names[-1]: np.array(condition)}
        for name in reversed(names[:-1]):
            current = graph[name]
            if OPS[current.op].kind is not Kind.ELEMENTWISE:
                known[name] = known[current.operands[0]]
                continue
            given = [
                known[o]
                if o in known
                else np.array(read_scalar(graph, o)).astype(graph[o].dtype.numpy)
                for o in current.operands
            ]
            meaning = OPS[current.op].meaning
            if meaning is None:
                return False
            with np.errstate(all="ignore"):
                value = meaning(replace(current, type=ArrayType(current.dtype, ())), *given)
            known[name] = np.asarray(value)
        found.append(float(known[node.name]))
    return sorted(x == 0 for x in found) == [False, True] and min(found) <= LEAVES_OUT
