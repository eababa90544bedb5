"""Is a function of rows a softmax of scaled scores, or the gradient of one?

Random rows tell: see rows.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from astitch.attention.masks import as_seen
from astitch.attention.rows import KEYS, LEFT_OUT, ROWS, RowFunctions, Source
from astitch.graph.ir import DType

TOLERANCE = 1e-8
"""Two functions of f64 are one if they agree to this, relatively."""

BEND_TOLERANCE = 1e-6
"""Likewise of arguments of tanh, which lose digits where it is near to 1."""

GRADIENT_TOLERANCE = 1e-5
"""Likewise of the gradient, as the softmax's scale was rounded to f32."""


NOTHING = 1e-9
"""Gradients of scores that are so small beside those of probabilities tell nothing: they are differences."""


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


EQUAL, NAN, NONE, OTHER = "equal", "nan", "none", "other"
"""Probabilities of rows without a score: the same for all keys, with a sink none at all; NaN; none; others."""

LOW_OF_EMPTY = {EQUAL: 0.0, NAN: -np.inf, NONE: np.inf}
"""How AttentionAttrs.low says so."""


@dataclass(frozen=True)
class Mask:
    """keeps_true: of a condition, whether it names what is kept."""

    source: Source
    keeps_true: bool

    def read(self, drawn: Mapping[str, np.ndarray]) -> np.ndarray:
        """Which scores it keeps."""
        return np.asarray(as_seen(drawn[self.source.name]) == self.keeps_true)


@dataclass(frozen=True)
class Sink:
    """A number that the sum of exponentials has beside those of scores: that of a source, or `weight`."""

    source: Source | None
    weight: float = 1.0

    def read(self, drawn: Mapping[str, np.ndarray]) -> np.ndarray:
        """Its logarithm, [ROWS or 1, 1]."""
        if self.source is None:
            return np.full((1, 1), np.log(self.weight))
        return drawn[self.source.name]


@dataclass(frozen=True)
class Bias:
    """factor: what its numbers are multiplied by before scores are added."""

    source: Source
    factor: float = 1.0

    @property
    def name(self) -> str:
        return self.source.name

    def read(self, drawn: Mapping[str, np.ndarray]) -> np.ndarray:
        return self.factor * drawn[self.name]


@dataclass(frozen=True)
class Softmax:
    """softmax(scale * scores + biases) of the scores that all masks keep.

    cap: not scale * scores but cap * tanh(scale * scores / cap); 0: none.  sink: None without one.
    empty: of rows of which masks leave out all scores: EQUAL, NAN, NONE or OTHER.  low: see LOW_OF_EMPTY; beside
    biases, what a score is that masks leave out, in f32.  low_first: biases are added to that too.
    drop: what the probabilities are multiplied by behind it, as dropout does.
    """

    scale: float
    masks: tuple[Mask, ...] = ()
    biases: tuple[Bias, ...] = ()
    empty: str = EQUAL
    low: float = 0.0
    low_first: bool = False
    cap: float = 0.0
    drop: Drop | None = None
    sink: Sink | None = None

    @property
    def sources(self) -> frozenset[str]:
        """What it reads, by name, but for what drops probabilities."""
        own = [mask.source.name for mask in self.masks] + [bias.name for bias in self.biases]
        return frozenset(own + ([self.sink.source.name] if self.sink and self.sink.source else []))

    def bend(self, scores: np.ndarray) -> np.ndarray:
        """tanh(scale * scores / cap)."""
        return np.asarray(np.tanh(self.scale / self.cap * scores))

    def add_logits(self, scores: np.ndarray, drawn: Mapping[str, np.ndarray]) -> np.ndarray:
        """What the exponentials are of, without masks."""
        logits = self.cap * self.bend(scores) if self.cap else self.scale * scores
        for bias in self.biases:
            logits = logits + bias.read(drawn)
        return logits

    def evaluate_both(
        self, scores: np.ndarray, drawn: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """(probabilities, the logarithm of the sum of exponentials of each row)."""
        logits = self.add_logits(scores, drawn)
        for mask in self.masks:
            logits = np.where(mask.read(drawn), logits, -np.inf)
        most = logits.max(axis=1, keepdims=True)
        if self.sink:
            most = np.maximum(most, self.sink.read(drawn))
        with np.errstate(invalid="ignore", divide="ignore"):  # rows without a score
            exponentials = np.exp(logits - most)
            total = exponentials.sum(axis=1, keepdims=True)
            if self.sink:
                total = total + np.exp(self.sink.read(drawn) - most)
            return exponentials / total, most + np.log(total)

    def evaluate(self, scores: np.ndarray, drawn: Mapping[str, np.ndarray]) -> np.ndarray:
        return self.evaluate_both(scores, drawn)[0]

    def evaluate_in_f32(self, scores: np.ndarray, drawn: Mapping[str, np.ndarray]) -> np.ndarray:
        """Probabilities beside biases, of which some may be as low as what masks leave out."""
        narrow = np.dtype(np.float32)
        logits: np.ndarray = self.cap * self.bend(scores) if self.cap else self.scale * scores
        kept = np.ones(scores.shape, np.bool_)
        for mask in self.masks:
            kept &= mask.read(drawn)
        with np.errstate(all="ignore"):
            biases = sum((b.read(drawn) for b in self.biases), np.zeros((1, 1))).astype(narrow)
            if self.low_first:
                logits = np.where(kept, logits, self.low).astype(narrow) + biases
            else:
                logits = np.where(kept, logits.astype(narrow) + biases, narrow.type(self.low))
            most = logits.max(1, keepdims=True)
            if self.sink:
                most = np.maximum(most, self.sink.read(drawn).astype(narrow))
            raised = np.exp(logits - most)
            total = raised.sum(1, keepdims=True)
            if self.sink:
                total = total + np.exp(self.sink.read(drawn).astype(narrow) - most)
            return np.asarray(raised / total)

    def list_full(self, drawn: Mapping[str, np.ndarray]) -> np.ndarray:
        """The rows that have a score, by their numbers."""
        kept = np.ones((ROWS, KEYS), np.bool_)
        for mask in self.masks:
            kept &= mask.read(drawn)
        return np.flatnonzero(kept.any(axis=1))


def fit_softmax(rows: RowFunctions, name: str, masks: Container[str]) -> Softmax | None:
    """The softmax that an op gives, multiplied by an array or not; None where it is none.

    masks: the sources that are some.
    """
    if name not in rows.reduced or rows.resolved(name) is None:
        return None
    found = _fit_alone(rows, name, masks)
    if found:
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
    kept = rows.fixing(source, value)
    gain = 0.0
    for mean in (FAR_DRAWS[0].mean, 0.0):  # beside large scores a sink is nothing
        sums = kept.evaluate(name, rows.draw(0, masks, mean=mean)).sum(axis=1)
        if np.all(np.isfinite(sums)) and sums.min() > 0 and np.ptp(sums) <= TOLERANCE * sums.max():
            gain = float(sums[0])
            break
    if gain <= 0:
        return None
    softmax = _fit_alone(rows.fixing(source, value, gain), name, masks)
    if softmax is None:
        return None
    drop = Drop(source, gain, value == 1)
    for seed in (0, 1):
        drawn = rows.draw(seed, masks, 1 / softmax.scale)
        wanted = softmax.evaluate(drawn[rows.product.name], drawn) * drop.read(drawn)
        off = abs(rows.evaluate(name, drawn) - wanted)[softmax.list_full(drawn)]
        if not np.all(off <= GRADIENT_TOLERANCE):
            return None
    return replace(softmax, drop=drop)


def _fit_alone(rows: RowFunctions, name: str, masks: Container[str]) -> Softmax | None:
    read = [rows.sources[n] for n in sorted(rows.reads[name])]
    own = [source for source in read if source.name in masks]
    others = [source for source in read if source.name not in masks]
    if len(own) > MOST_MASKS:
        return None
    # What is the same along a row can be a sink; so can a constant.
    candidates = [source for source in others if not rows.varies_along_key(source)]
    drawn = rows.draw(0, masks)
    p = _evaluate(rows, name, drawn, own)
    if not np.all(np.isfinite(p)) or np.any(p < 0):
        return None
    is_whole = bool(np.all(abs(p.sum(1) - 1) <= TOLERANCE))
    for sink in (None,) if is_whole else (*candidates, CONSTANT):
        biases = [source for source in others if source is not sink]
        if len(biases) > MOST_BIASES or (sink and set(candidates) & set(biases)):
            continue
        fit = _fit_draws(rows, name, masks, own, biases, sink)
        if fit is None:
            slope = find_bend(rows)
            fit = _fit_draws(rows, name, masks, own, biases, sink, slope) if slope else None
        if fit:
            return _finish_fit(rows, name, masks, own, biases, fit)
    return None


def _evaluate(
    rows: RowFunctions, name: str, drawn: Mapping[str, np.ndarray], masks: Sequence[Source]
) -> np.ndarray:
    """Probabilities; equal ones in the place of NaN, as rows may have of which masks leave out all scores."""
    p = np.broadcast_to(rows.evaluate(name, drawn), (ROWS, KEYS))
    empty = np.isnan(p).all(1, keepdims=True)
    return np.where(empty, 1 / KEYS, p) if masks else p


def _finish_fit(
    rows: RowFunctions,
    name: str,
    masks: Container[str],
    own: Sequence[Source],
    biases: Sequence[Source],
    fit: _Fit,
) -> Softmax | None:
    found = tuple(Mask(source, keeps) for source, keeps in zip(own, fit.keeps_true, strict=True))
    for mask in found:
        if not mask.keeps_true and rows.graph[mask.source.name].dtype is not DType.PRED:
            return None  # it leaves out where a number is 0
    scale = float(np.float32(fit.scale))
    added = tuple(map(Bias, biases, fit.factors))
    softmax = Softmax(scale, found, added, EQUAL, 0.0, False, fit.cap, None, fit.sink)
    empty = _read_empty(rows, name, masks, softmax)
    if not (found and biases):
        return replace(softmax, empty=empty, low=LOW_OF_EMPTY.get(empty, 0.0))
    softmax = replace(softmax, empty=empty)
    for number in rows.list_low():
        for first in (False, True):
            model = replace(softmax, low=number, low_first=first)
            if _leaves_out_as(rows, name, masks, model):
                return model
    return replace(softmax, empty=OTHER)


def _leaves_out_as(rows: RowFunctions, name: str, masks: Container[str], softmax: Softmax) -> bool:
    """Are masks and biases joined as the softmax says, where biases are as low as what masks leave out?"""
    for seed, low in enumerate((-1e9, float(np.finfo(np.float32).min), softmax.low, -np.inf)):
        random = np.random.default_rng(seed)
        drawn = rows.draw(seed, masks, 1 / softmax.scale)
        for bias in softmax.biases:
            given = drawn[bias.name]
            chosen = random.random(given.shape) < 0.5
            chosen[4:8] = True  # all that the mask keeps is as low
            drawn = rows.replace_drawn(drawn, bias.source, np.where(chosen, low, given))
        for mask in softmax.masks:
            given = np.array(drawn[mask.source.name])
            is_condition = given.dtype == np.bool_
            given[:4] = not mask.keeps_true if is_condition else LEFT_OUT
            if not is_condition:
                given = np.where(given == 0, 0.0, rows.lows.get(mask.source.name, LEFT_OUT))
            drawn = rows.replace_drawn(drawn, mask.source, given)
        found = rows.in_f32().evaluate(name, drawn)
        wanted = softmax.evaluate_in_f32(drawn[rows.product.name], drawn)
        if not np.allclose(found, wanted, atol=1e-4, rtol=0, equal_nan=True):
            return False
    return True


MOST_MASKS, MOST_BIASES = 3, 2
"""Of one softmax; random rows tell more of them apart too seldom."""

CONSTANT = Source("", ())
"""In the place of a sink: a number of the program."""


@dataclass(frozen=True)
class _Fit:
    scale: float
    factors: tuple[float, ...]
    keeps_true: tuple[bool, ...]
    sink: Sink | None
    cap: float = 0.0


def _fit_draws(
    rows: RowFunctions,
    name: str,
    masks: Container[str],
    own: Sequence[Source],
    biases: Sequence[Source],
    sink: Source | None,
    slope: float = 0.0,
) -> _Fit | None:
    """What all draws agree on.  slope: of scores that are capped, of the tanh's argument."""
    first: _Fit | None = None
    draws: tuple[_Draw, ...] = (*DRAWS, *FAR_DRAWS)
    for seed in range(len(draws)):
        draw = draws[seed]
        # Of what the softmax multiplies by, once it is known.
        unit = 1 / (first.scale * (slope or 1.0)) if first else 1.0
        drawn = rows.draw(seed, masks, draw.deviation * unit, draw.mean * unit)
        if sink and sink is not CONSTANT and first:
            drawn = rows.replace_drawn(
                drawn, sink, draw.mean + draw.deviation * drawn[sink.name] / 2
            )
        scores = drawn[rows.product.name]
        p = _evaluate(rows, name, drawn, own)
        if draw in FAR_DRAWS and not np.any(np.isfinite(p)):
            continue
        seen = [np.broadcast_to(as_seen(drawn[m.name]), scores.shape) for m in own]
        factors = first.factors if first else (1.0,) * len(biases)
        added = [
            np.broadcast_to(factor * drawn[b.name], scores.shape)
            for b, factor in zip(biases, factors, strict=True)
        ]
        x = np.tanh(slope * scores) if slope else scores
        if first and first.sink and draw in FAR_DRAWS:
            if not _has_sink(p, first, x, seen, added, drawn):
                return None
            continue
        fit = _fit_scale(p, x, seen, added, None if first else sink)
        if fit is None:
            return None
        first = first or fit
        tolerance = GRADIENT_TOLERANCE if slope else TOLERANCE
        if abs(fit.scale - first.scale) > tolerance * first.scale:
            return None
        if fit.keeps_true != first.keeps_true:
            return None
        if fit is not first and any(abs(factor - 1) > tolerance for factor in fit.factors):
            return None
        if fit is first:
            added = [factor * bias for factor, bias in zip(fit.factors, added, strict=True)]
        if first.sink and not _has_sink(p, first, x, seen, added, drawn):
            return None
        if not first.sink and np.any(abs(p.sum(1) - 1) > TOLERANCE):
            return None
        if slope and seed == 0:
            draws = list_draws(fit.scale)
        if seed + 1 == len(draws):
            break
    if first is None:
        return None
    return replace(first, scale=first.scale * slope, cap=first.scale) if slope else first


def _fit_scale(
    p: np.ndarray,
    scores: np.ndarray,
    masks: Sequence[np.ndarray],
    biases: Sequence[np.ndarray],
    sink: Source | None,
) -> _Fit | None:
    """The scale and the factors for which p is in each row a multiple of the softmax of scale * scores + factor * bias
    of each, of those that the masks leave.  sink: what may take the rest, see CONSTANT."""
    if not np.all(np.isfinite(p)) or np.any(p < 0):
        return None
    sums = p.sum(1, keepdims=True)
    there = p > 0
    for keeps_true in itertools.product((True, False), repeat=len(masks)):
        kept = np.ones_like(there)
        for mask, keeps in zip(masks, keeps_true, strict=True):
            kept &= mask == keeps
        full = kept.any(1)
        if full.sum() >= LEAST_FULL and np.array_equal(there[full], kept[full]):
            break
    else:
        return None

    def centre(x: np.ndarray) -> np.ndarray:
        x, kept = x[full], there[full]
        mean = np.where(kept, x, 0).sum(1, keepdims=True) / kept.sum(1, keepdims=True)
        return np.where(kept, x - mean, 0)

    given = centre(np.log(np.where(there, p, 1.0)))
    columns = np.stack([centre(x).ravel() for x in (scores, *biases)], 1)
    solved = np.linalg.lstsq(columns, given.ravel(), rcond=None)[0]
    solved = np.where(columns.any(0), solved, 1.0)  # what is the same along a row adds nothing
    scale, *factors = map(float, solved)
    agrees = np.max(abs(given.ravel() - columns @ solved)) <= TOLERANCE * np.max(abs(given))
    if not agrees or scale <= 0:
        return None
    factors = [_round_factor(factor) for factor in factors]
    found = None
    if sink is CONSTANT:
        added = sum((f * b for f, b in zip(factors, biases, strict=True)), np.zeros_like(scores))
        exponentials = np.exp(scale * scores + added)
        total = np.where(kept, exponentials, 0).sum(1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            weights = (total * (1 - sums) / sums)[full]
        found = Sink(None, float(np.median(weights)))
        if not found.weight > 0:
            return None
    elif sink is not None:
        found = Sink(sink)
    return _Fit(scale, tuple(factors), keeps_true, found)


def _round_factor(factor: float) -> float:
    """To the digits of f32, in which programs have such numbers; to a whole number where it is one but for rounding."""
    nearest = round(factor)
    is_whole = nearest and abs(factor - nearest) <= TOLERANCE
    return float(nearest) if is_whole else float(np.float32(factor))


LEAST_FULL = 3
"""So many rows must have a score for a function of masks to be told."""


def _has_sink(
    p: np.ndarray,
    fit: _Fit,
    scores: np.ndarray,
    masks: Sequence[np.ndarray],
    biases: Sequence[np.ndarray],
    drawn: Mapping[str, np.ndarray],
) -> bool:
    """Do the probabilities leave as much as the sink takes?"""
    assert fit.sink
    logits = fit.scale * scores + sum(biases, np.zeros_like(scores))
    for mask, keeps in zip(masks, fit.keeps_true, strict=True):
        logits = np.where(mask == keeps, logits, -np.inf)
    own = fit.sink.read(drawn)
    most = np.maximum(logits.max(1, keepdims=True), own)
    raised = np.exp(logits - most)
    model = raised / (raised.sum(1, keepdims=True) + np.exp(own - most))
    return bool(np.max(abs(p - model)) <= SINK_TOLERANCE)


SINK_TOLERANCE = 1e-7
"""Of probabilities beside a sink, of 1: those of large scores lose digits with the scale."""


SATURATES = 1e12
"""Scores of this size are beyond every cap."""


def find_bend(rows: RowFunctions) -> float | None:
    """a, where an op gives tanh(a * score) of the scores alone; None where none does."""
    rows = rows.without_gain()
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


def _read_empty(rows: RowFunctions, name: str, masks: Container[str], softmax: Softmax) -> str:
    """What probabilities rows have of which all scores are left out."""
    answers: set[str] = set()
    for drawn in draw_empty_rows(rows, masks, softmax):
        # In f32, where what leaves scores out absorbs what is added to it.
        found = rows.in_f32().evaluate(name, drawn)
        p = np.broadcast_to(found, drawn[rows.product.name].shape)
        wanted = 0.0 if softmax.sink else 1 / p.shape[1]
        is_equal = np.all(abs(p - wanted) <= EQUAL_TOLERANCE)
        others = NAN if np.all(np.isnan(p)) else OTHER if p.any() else NONE
        answers.add(EQUAL if is_equal else others)
    return answers.pop() if len(answers) == 1 else OTHER if answers else EQUAL


EQUAL_TOLERANCE = 1e-6
"""Of equal probabilities in f32."""


def draw_empty_rows(
    rows: RowFunctions, masks: Container[str], softmax: Softmax
) -> Iterator[dict[str, np.ndarray]]:
    """Rows of which all scores are left out: by one mask, by each, and a part by each."""
    count = len(softmax.masks)
    random = np.random.default_rng(0)
    owner = random.integers(0, max(count, 1), (ROWS, KEYS))
    ways: list[list[np.ndarray]] = [[owner >= 0] * count] if count else []
    if count > 1:
        ways += [[np.full_like(owner, i == j, bool) for j in range(count)] for i in range(count)]
        ways.append([owner == i for i in range(count)])
    for seed, way in enumerate(ways):
        drawn = rows.draw(seed, masks)
        for mask, out in zip(softmax.masks, way, strict=True):
            shape = drawn[mask.source.name].shape
            if shape[1] == 1:
                out = np.asarray(out.all(1, keepdims=True))
            is_condition = drawn[mask.source.name].dtype == np.bool_
            low = rows.lows.get(mask.source.name, ABSORBS)
            array = out != mask.keeps_true if is_condition else np.where(out, low, 0.0)
            drawn = rows.replace_drawn(drawn, mask.source, np.broadcast_to(array, shape))
        if not softmax.list_full(drawn).size:
            yield drawn


@dataclass(frozen=True)
class Gradient:
    """An op that gives factor * scale * p * (dp - sum(p * dp)), the gradient of scores.

    source: dp, the gradient of the softmax; where the op itself multiplies it as dropout does, of what comes behind.
    """

    name: str
    source: Source
    factor: float

    def agrees(self, other: Gradient) -> bool:
        return (self.source, self.factor) == (other.source, other.factor)


def passes_masks(
    rows: RowFunctions, softmax: Softmax, gradient: Gradient, masks: Container[str]
) -> bool | None:
    """Has a score that is left out a gradient, in a row where all are?  None where neither yes nor no describes it."""
    name, source, factor = gradient.name, gradient.source, gradient.factor
    answers: set[bool | None] = set()
    for drawn in draw_empty_rows(rows, masks, softmax):
        shape = drawn[rows.product.name].shape
        dp = np.broadcast_to(drawn[source.name], shape)
        if softmax.drop and softmax.drop.source.name in rows.reads[name]:
            dp = dp * softmax.drop.read(drawn)
        given = np.broadcast_to(rows.in_f32().evaluate(name, drawn), shape)
        if not given.any():
            answers.add(False)
            continue
        wanted = factor * softmax.scale * (dp - dp.mean(1, keepdims=True)) / shape[1]
        if softmax.cap:
            wanted = wanted * (1 - softmax.bend(drawn[rows.product.name]) ** 2)
        agrees = np.max(abs(given - wanted)) <= GRADIENT_TOLERANCE * np.max(abs(given))
        answers.add(True if agrees else None)
    return answers.pop() if len(answers) == 1 else None


def draw_near(
    rows: RowFunctions, softmax: Softmax, masks: Container[str], seed: int, draw: _Draw
) -> dict[str, np.ndarray]:
    """Random rows in units of what the softmax multiplies scores by; a sink is as large as they are."""
    drawn = rows.draw(seed, masks, draw.deviation / softmax.scale, draw.mean / softmax.scale)
    if softmax.sink and softmax.sink.source:
        source = softmax.sink.source
        near = draw.mean + draw.deviation * drawn[source.name] / 2
        drawn = rows.replace_drawn(drawn, source, near)
    return drawn


def fit_gradient(
    rows: RowFunctions, name: str, softmax: Softmax, masks: Container[str]
) -> Gradient | None:
    """None where an op does not give the gradient of scores."""
    known = set(softmax.sources)
    drop = softmax.drop
    is_dropped_here = drop is not None and drop.source.name in rows.reads[name]
    known |= {drop.source.name} if drop else set()
    others = [rows.sources[n] for n in sorted(rows.reads[name] - known)]
    if len(others) != 1 or others[0].name in masks or rows.resolved(name) is None:
        return None
    (source,) = others

    def evaluate() -> Iterator[tuple[np.ndarray, np.ndarray, float]]:
        for drawn, p, dp in draw_gradients(rows, softmax, masks, source, drops=is_dropped_here):
            wanted = softmax.scale * p * (dp - (p * dp).sum(1, keepdims=True))
            if softmax.cap:
                wanted = wanted * (1 - softmax.bend(drawn[rows.product.name]) ** 2)
            full = softmax.list_full(drawn)
            given = np.broadcast_to(rows.evaluate(name, drawn), p.shape)
            yield given[full], wanted[full], NOTHING * softmax.scale * np.max(abs(dp))

    factor = fit_factor(evaluate())
    if factor is None:
        return None
    nearest = round(factor)
    exact = nearest and abs(factor - nearest) < GRADIENT_TOLERANCE
    return Gradient(name, source, float(nearest) if exact else factor)


def draw_gradients(
    rows: RowFunctions, softmax: Softmax, masks: Container[str], source: Source, *, drops: bool
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]]:
    """(what is drawn, p, dp) of random rows; with `drops` dp is multiplied as the softmax's dropout multiplies."""
    for seed, draw in enumerate(list_draws(softmax.cap)):
        drawn = draw_near(rows, softmax, masks, seed, draw)
        drawn = rows.replace_drawn(drawn, source, drawn[source.name] * draw.gradient)
        p = softmax.evaluate(drawn[rows.product.name], drawn)
        dp = np.broadcast_to(drawn[source.name], p.shape)
        if softmax.drop and drops:
            dp = dp * softmax.drop.read(drawn)
        yield drawn, p, dp


def fit_factor(
    samples: Iterator[tuple[np.ndarray, np.ndarray, float]], *, signed: bool = False
) -> float | None:
    """The factor, positive unless `signed`, by which all that is given is what is wanted; None where there is none.

    samples: (given, wanted, what is too small to tell), of one shape.
    """
    factors: list[float] = []
    for given, wanted, floor in samples:
        if not np.all(np.isfinite(given)):
            return None
        if factors and np.max(abs(wanted)) <= floor:  # of large scores one has all: rounding
            if np.max(abs(given)) > 2 * max(map(abs, factors)) * floor:
                return None
            continue
        factor = float((given * wanted).sum() / (wanted * wanted).sum())
        if np.max(abs(given - factor * wanted)) > GRADIENT_TOLERANCE * np.max(abs(given)):
            return None
        factors.append(factor)
    low, high = min(factors), max(factors)
    is_one = high - low <= GRADIENT_TOLERANCE * max(abs(high), abs(low))
    return high if is_one and (high > 0 or (signed and high < 0)) else None


@dataclass(frozen=True)
class SinkGradient:
    """An op that gives -factor times the sink's probability times sum(p * dp) for each row.

    of_weight: divided by the exponential of the sink.
    """

    name: str
    factor: float
    of_weight: bool


def fit_sink_gradient(
    rows: RowFunctions, name: str, softmax: Softmax, gradient: Gradient, masks: Container[str]
) -> SinkGradient | None:
    """None where an op does not give a sink's gradient for each row, nor 0 but for rounding."""
    drop = softmax.drop
    known = {*softmax.sources, gradient.source.name, *([drop.source.name] if drop else [])}
    if not softmax.sink or not rows.reads[name] <= known:
        return None
    for of_weight in (False, True):
        factors = [
            _fit_one_sink(rows, name, softmax, gradient, masks, seed, draw, of_weight)
            for seed, draw in enumerate(list_draws(softmax.cap))
        ]
        real = [factor for factor in factors if factor is not None]
        if len(real) < len(factors):
            continue
        low, high = min(real), max(real)
        if (low > 0 or high == 0) and high - low <= GRADIENT_TOLERANCE * high:
            return SinkGradient(name, high, of_weight)
    return None


def _fit_one_sink(
    rows: RowFunctions,
    name: str,
    softmax: Softmax,
    gradient: Gradient,
    masks: Container[str],
    seed: int,
    draw: _Draw,
    of_weight: bool,
) -> float | None:
    """The factor for one draw; 0 for what is rounding alone."""
    drop, source = softmax.drop, gradient.source
    drawn = draw_near(rows, softmax, masks, seed, draw)
    drawn = rows.replace_drawn(drawn, source, drawn[source.name] * draw.gradient)
    full = softmax.list_full(drawn)
    p, total = softmax.evaluate_both(drawn[rows.product.name], drawn)
    dp = np.broadcast_to(drawn[source.name], p.shape)
    if drop and drop.source.name in rows.reads[gradient.name]:
        dp = dp * drop.read(drawn)
    own = softmax.sink.read(drawn) if softmax.sink and not of_weight else 0.0
    wanted = (-np.exp(own - total) * (p * dp).sum(1, keepdims=True))[full]
    given = np.broadcast_to(rows.evaluate(name, drawn), (ROWS, 1))[full]
    if not np.all(np.isfinite(given)):
        return None
    if np.max(abs(given)) <= TOLERANCE * np.max(abs(wanted)):
        return 0.0
    factor = float((given * wanted).sum() / (wanted * wanted).sum())
    agrees = np.max(abs(given - factor * wanted)) <= GRADIENT_TOLERANCE * np.max(abs(given))
    return factor if agrees else None
