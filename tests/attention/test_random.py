"""Random attention programs: found or not, the graph computes the same before and behind, and so do our kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astitch.attention import find
from astitch.attention.choose import Projection
from astitch.graph.reference import run_graph
from tests.attention.test_tiles import fuse, list_attention, run_as_xla

BF16 = np.dtype(ml_dtypes.bfloat16)
TOLERANCES = {np.dtype(np.float32): 5e-3, np.dtype(np.float16): 1e-2, BF16: 4e-2}
LOW = (-1e9, float(np.finfo(np.float32).min), -np.inf)


@dataclass(frozen=True)
class Program:
    """An attention as somebody may write it.

    layout: heads first, positions first, or vmap.  masks: names, joined by `joins` (and, one where behind another,
    added).  bias: along which of batch, heads, queries, keys it varies; None without one.  unit: what scores and bias
    are multiplied by.  row: has it numbers beside, for each key?
    """

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    features: int
    dtype: np.dtype
    layout: str
    cap: float
    bias: tuple[bool, bool, bool, bool] | None
    masks: tuple[str, ...]
    joins: str
    low: float
    bias_first: bool
    unit: float
    row: bool
    sink: str
    softmax: str
    drop: str
    gradients: bool
    remat: bool

    def draw(self) -> dict[str, np.ndarray]:
        random = np.random.default_rng(0)

        def normal(*shape: int) -> np.ndarray:
            return random.standard_normal(shape).astype(self.dtype)

        found = {
            "q": normal(self.batch, self.queries, self.heads, self.features),
            "k": normal(self.batch, self.keys, self.groups, self.features),
            "v": normal(self.batch, self.keys, self.groups, self.features),
        }
        if self.bias:
            whole = (self.batch, self.heads, self.queries, self.keys)
            shape = (n if v else 1 for n, v in zip(whole, self.bias, strict=True))
            found["bias"] = normal(*shape)
        if self.row:
            found["row"] = normal(self.batch, 1, 1, self.keys)
        if self.sink == "learned":
            found["sink"] = normal(self.heads)
        read = set(self.masks)
        for name, extent in (("rows", self.queries), ("columns", self.keys)):
            if read & {"segments", "positions", *(["lengths"] if name == "rows" else [])}:
                found[name] = np.sort(random.integers(0, 3, (self.batch, extent))).astype(np.int32)
        if "padding" in read:
            found["there"] = random.random((self.batch, self.keys)) < 0.8
        if "array" in read:
            found["seen"] = random.random((self.batch, 1, self.queries, self.keys)) < 0.7
        shape = (self.batch, self.heads, self.queries, self.keys)
        if self.drop:
            found["kept"] = random.random(shape) < 0.8
        return found

    def list_masks(self, x: dict[str, Any]) -> list[Any]:
        i, j = jnp.arange(self.queries)[:, None], jnp.arange(self.keys)
        made: dict[str, Callable[[], Any]] = {
            "causal": lambda: i >= j,
            "window": lambda: (i >= j) & (i - j < 4),
            "padding": lambda: x["there"][:, None, None, :],
            "segments": lambda: x["rows"][:, None, :, None] == x["columns"][:, None, None, :],
            "positions": lambda: ~(x["rows"][:, None, :, None] < x["columns"][:, None, None, :]),
            "lengths": lambda: j < x["rows"][:, -1:, None, None] + 2,
            "array": lambda: x["seen"],
        }
        return [made[name]() for name in self.masks]

    def leave_out(self, scores: Any, masks: list[Any]) -> Any:
        low = jnp.asarray(self.low, scores.dtype)
        if not masks:
            return scores
        if self.joins == "where":
            for mask in masks:
                scores = jnp.where(mask, scores, low)
            return scores
        seen = masks[0]
        for mask in masks[1:]:
            seen = seen & mask
        if self.joins == "added":
            return scores + jnp.where(seen, 0, jnp.asarray(-1e9, scores.dtype))
        return jnp.where(seen, scores, low)

    def weigh(self, scores: Any, x: dict[str, Any]) -> Any:
        """Probabilities."""
        if self.cap:
            scores = self.cap * jnp.tanh(scores / self.cap)
        if self.bias and self.bias_first:
            scores = (scores + x["bias"].astype(scores.dtype)) * self.unit
        scores = self.leave_out(scores, self.list_masks(x))
        if self.bias and not self.bias_first:
            scores = (scores + x["bias"].astype(scores.dtype)) * self.unit
        if self.row:
            scores = scores + x["row"].astype(scores.dtype)
        if self.sink:
            zero = jnp.zeros((self.heads,), scores.dtype)
            sink = x["sink"].astype(scores.dtype) if "sink" in x else zero
            column = jnp.broadcast_to(sink[None, :, None, None], (*scores.shape[:3], 1))
            scores = jnp.concatenate([scores, column], -1)
        if self.softmax == "library":
            p = jax.nn.softmax(scores, -1)
        elif self.softmax == "logarithm":
            p = jnp.exp(jax.nn.log_softmax(scores, -1))
        else:
            raised = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
            p = raised / raised.sum(-1, keepdims=True)
        p = p[..., : self.keys]
        if self.drop == "where":
            p = jnp.where(x["kept"], p / 0.8, 0)
        if self.drop == "multiplied":
            p = p * (x["kept"].astype(p.dtype) / 0.8)
        return p

    def attend(self, x: dict[str, Any]) -> Any:
        q, k, v = (x[name] for name in "qkv")
        k, v = (jnp.repeat(y, self.heads // self.groups, 2) for y in (k, v))
        if self.layout == "heads first":
            q, k, v = (jax.lax.optimization_barrier(y.swapaxes(1, 2)) for y in (q, k, v))
            scores = jnp.einsum("bhqd,bhkd->bhqk", q, k)
        else:
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        scores = scores.astype(jnp.promote_types(q.dtype, jnp.float32)) * 0.3
        p = self.weigh(scores, x).astype(q.dtype)
        if self.layout == "heads first":
            return jnp.einsum("bhqk,bhkd->bhqd", p, v)
        return jnp.einsum("bhqk,bkhd->bqhd", p, v)

    def make(self) -> tuple[Callable[..., Any], list[np.ndarray]]:
        """(a function of arrays, these)."""
        arrays = self.draw()
        names = list(arrays)
        learned = [name for name in ("q", "k", "v", "bias", "sink") if name in arrays]
        attend = jax.checkpoint(self.attend) if self.remat else self.attend

        def forward(*given: Any) -> Any:
            return attend(dict(zip(names, given, strict=True)))

        def loss(*given: Any) -> Any:
            return jnp.sum(jnp.sin(forward(*given).astype(jnp.float32)))

        numbers = tuple(names.index(name) for name in learned)
        made = jax.grad(loss, argnums=numbers) if self.gradients else forward
        return made, list(arrays.values())


MASKS = ("causal", "window", "padding", "segments", "positions", "lengths", "array")


@st.composite
def programs(draw: Callable[..., Any]) -> Program:
    groups = draw(st.integers(1, 2))
    square = draw(st.booleans())
    queries = draw(st.integers(2, 20))
    masks = draw(st.lists(st.sampled_from(MASKS), max_size=3, unique=True))
    drop = draw(st.sampled_from(("", "", "where", "multiplied")))
    # Which numbers are NaN beside dropout depends on how it is written.
    lows = LOW[:2] if drop else LOW
    return Program(
        batch=draw(st.integers(1, 3)),
        heads=groups * draw(st.integers(1, 3)),
        groups=groups,
        queries=queries,
        keys=queries if square else draw(st.integers(2, 20)),
        features=draw(st.sampled_from((4, 16, 5))),
        dtype=draw(st.sampled_from(list(TOLERANCES))),
        layout=draw(st.sampled_from(("heads first", "positions first"))),
        cap=draw(st.sampled_from((0.0, 0.0, 2.0))),
        bias=draw(
            st.none() | st.tuples(st.booleans(), st.booleans(), st.booleans(), st.just(True))
        ),
        masks=tuple(masks),
        joins=draw(st.sampled_from(("and", "where", "added"))),
        low=draw(st.sampled_from(lows)),
        bias_first=draw(st.booleans()),
        unit=draw(st.sampled_from((1.0, 0.25, 0.7))),
        row=draw(st.sampled_from((False, False, True))),
        sink=draw(st.sampled_from(("", "", "learned", "constant"))),
        softmax=draw(st.sampled_from(("library", "logarithm", "by hand"))),
        drop=drop,
        gradients=draw(st.booleans()),
        remat=draw(st.booleans()),
    )


def compare(found: np.ndarray, expected: np.ndarray, tolerance: float, least: float) -> None:
    """least: of a size that the errors of smaller results are measured by."""
    x, y = found.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(x), np.isnan(y))
    x, y = np.nan_to_num(x), np.nan_to_num(y)
    assert np.linalg.norm(x - y) <= tolerance * max(np.linalg.norm(y), least)


def check(program: Program) -> bool:
    """Was it found?"""
    function, arrays = program.make()
    graph, fused = fuse(function, arrays)
    if not list_attention(fused):
        return False
    wanted = run_graph(graph, arrays)
    for results in (run_graph(fused, arrays), run_as_xla(fused, arrays)):
        largest = max(np.linalg.norm(np.nan_to_num(x.astype(np.float64))) for x in wanted)
        for found, expected in zip(results, wanted, strict=True):
            compare(found, expected, TOLERANCES[program.dtype], max(float(largest) / 10, 0.2))
    return True


@pytest.mark.parametrize("part", range(2))
def test_random_programs(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "LEAST_SCORES", 1)
    monkeypatch.setattr(find, "project", lambda *given, **named: Projection(0.0, 1.0))
    found: list[bool] = []

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(programs())
    def run(program: Program) -> None:
        found.append(check(program))
        # The others are found mostly; how many of 25 differs, since draws are alike.
        assert found[-1] or program.bias or program.row or program.drop or program.sink

    run()
    assert sum(found) > len(found) / 3
