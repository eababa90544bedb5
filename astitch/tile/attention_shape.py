"""What kernels of attention are written for: the extents, how the arrays lie, and tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass

from astitch.graph.ir import DType

LEAST_EXTENT = 16
"""The least extent of a factor of a product."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How an array lies: elements from one batch, head, position and feature to the next; 0: the same for all.

    size: elements of the array.  features: how many there are.
    """

    dtype: DType
    size: int
    strides: tuple[int, int, int, int]
    features: int


OTHERS = ("sink", "empty", "k_scale", "v_scale", "k_pages", "v_pages")
"""The arrays of AttentionShape that are not of scores, in the order in which kernels have them."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A score is kept where left compares so with right.  direction: EQ, NE, LT, LE, GT or GE.

    left: the same for all keys.
    """

    direction: str
    left: Layout
    right: Layout


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One attention.  heads: of q.  groups: heads of k and v.

    causal, window: see AttentionAttrs.  q, k, v, o: o's layout is that of its gradient too.  bias, masks, comparisons,
    drop, sink: of the scores, by batch, head, position of q, position of k; empty: by batch and head of k.
    other_bias: beside a bias; no kernel sums its gradient.
    layers: of k and v, of which an array says which one is read; 0: there is none of it.
    k_scale, v_scale: what keys and values are multiplied by, by batch, head of k and position.
    page: positions of a page; 0: there are none.  k_pages, v_pages: tables by batch and page of a sequence; k and v are
        pages then, which they have in the place of batches, so many (page_counts).
    precision: of the products of f32: tf32, tf32x3 or ieee.  through_masks, cap, gain, low, low_first, gives,
    share: see AttentionAttrs.
    """

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    scale: float
    causal: bool
    window: int
    q: Layout
    k: Layout
    v: Layout
    o: Layout
    bias: Layout | None = None
    other_bias: Layout | None = None
    precision: str = "tf32"
    through_masks: bool = False
    cap: float = 0.0
    drop: Layout | None = None
    gain: float = 0.0
    masks: tuple[Layout, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    sink: Layout | None = None
    empty: Layout | None = None
    low: float = 0.0
    low_first: bool = False
    gives: str = ""
    share: int = 0
    layers: int = 0
    k_scale: Layout | None = None
    v_scale: Layout | None = None
    page: int = 0
    page_counts: tuple[int, int] = (0, 0)
    k_pages: Layout | None = None
    v_pages: Layout | None = None

    @property
    def parts(self) -> int:
        """Of the keys, each with results of its own."""
        return count_tiles(self.keys, self.share) if self.share else 1

    @property
    def shared(self) -> int:
        """The heads of q that read one head of k and v."""
        return self.heads // self.groups

    @property
    def of_scores(self) -> tuple[Layout, ...]:
        """The arrays of which a tile of scores has one, in the order in which kernels have them as parameters."""
        compared = [side for c in self.comparisons for side in (c.left, c.right)]
        given = (self.bias, self.other_bias, *self.masks, *compared, self.drop)
        return tuple(array for array in given if array)

    @property
    def arrays(self) -> tuple[Layout, ...]:
        """All, likewise."""
        layer = Layout(DType.S32, 1, (0, 0, 0, 0), 0) if self.layers else None
        others = [getattr(self, name) for name in OTHERS]
        return (*self.of_scores, *(array for array in (*others, layer) if array))

    @property
    def has_masks(self) -> bool:
        """Do arrays say which scores are kept?"""
        return bool(self.masks or self.comparisons)

    @property
    def has_two_statistics(self) -> bool:
        """Are the largest score of a row and the logarithm of its sum kept apart?"""
        return self.bias is not None

    @property
    def score_count(self) -> int:
        return self.batch * self.heads * self.queries * self.keys

    @property
    def has_nan_rows(self) -> bool:
        """Are probabilities NaN where masks leave a row no score?  Beside a bias they are by themselves."""
        return self.low == -math.inf and self.has_masks and not (self.bias or self.sink)

    @property
    def has_empty_rows(self) -> bool:
        """May masks and a band together leave a row no score, whose probabilities are then those of all keys?"""
        is_none = self.low == math.inf or self.bias or self.sink
        return self.has_masks and self.causal and not is_none


@dataclass(frozen=True, slots=True)
class Tiling:
    """queries, keys: extents of a tile of scores.  warps, stages: see TileProgram."""

    queries: int
    keys: int
    warps: int
    stages: int


def pad_extent(extent: int) -> int:
    """The extent of the tile that holds so many elements."""
    return max(LEAST_EXTENT, 1 << (extent - 1).bit_length())


def count_tiles(extent: int, tile: int) -> int:
    return -(-extent // tile)
