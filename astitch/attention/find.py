"""Finds attention and its gradient in a Graph.

They are told by what they compute, not by how it is written.  Between the two products of attention stands a function
of one row of scores; it is attention if that function is a softmax of the scaled scores, with some of them left out or
shifted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from astitch.attention.biases import BiasGradient, find_bias_gradients, fit_bias_gradient
from astitch.attention.biases import passes_masks as passes_to_bias
from astitch.attention.choose import project
from astitch.attention.conditions import (
    follows_from_indices,
    read_comparison,
    take_apart,
)
from astitch.attention.dropped import read_dropped
from astitch.attention.few import Stays, choose_few
from astitch.attention.form import Attention, MaskForm, choose_precision, describe
from astitch.attention.layout import choose_split, count_added
from astitch.attention.masks import Masks
from astitch.attention.operands import (
    Reader,
    count_features,
    find_repeated,
    query_parts,
    read_gradient,
    read_operands,
    read_product,
)
from astitch.attention.rows import Label, RowFunctions, Source
from astitch.attention.softmax import (
    EQUAL,
    OTHER,
    Drop,
    Gradient,
    SinkGradient,
    Softmax,
    fit_gradient,
    fit_sink_gradient,
    fit_softmax,
    passes_masks,
)
from astitch.device.gpu import Gpu
from astitch.directives import FOLLOWED, NOTHING, Directives
from astitch.graph.edit import waits_for
from astitch.graph.ir import DotAttrs, DType, Graph, Node
from astitch.graph.matmul import free_dimensions
from astitch.tile.few_queries import MOST_QUERIES

LEAST_SCORES = 1 << 20
"""Scores below which the products and the softmax between them stay as they are: a kernel of ours takes longer."""

LEAST_NAMED = 1 << 10
"""Scores from which attention is named that stays."""

LEAST_OF_LIBRARY = 8 << 20
"""Scores below which the library is not called.  XLA's graphs of launches hold no call of it, so that each costs the
host 40 us: what the scores of 8 heads of 1,024 positions cost the GPU."""

NO_FORM = "no kernel has its form (docs/attention.md)"
NOT_MEASURED = "no such kernel was measured on this GPU"

MOST_FEATURES, MOST_FEATURES_OF_HOPPER, FEATURES_MULTIPLE = 128, 256, 8
"""The features that cuDNN's kernels take."""

AMPERE, HOPPER = 80, 90
"""The compute capabilities from which cuDNN has these kernels, and has them for more features."""

ABSORBING = (DType.BF16,)
"""The types with a number that is all that is left of a score to which it is added, in f32."""

_OF_TILES = (DType.F16, DType.BF16, DType.F32)
"""The types that our own kernels read."""

LEAST_SAVED = 2
"""The scores must take so many times the bytes of a mask, and of a bias that the library reads."""


class Search:
    """Looks for attention in a graph.

    in_order: all sums have a fixed order, which cuDNN's gradient has not.  told: directives, which may keep attention
    whatever it is projected to take.  names: what the program calls products that it has as sums.
    """

    def __init__(
        self,
        graph: Graph,
        gpu: Gpu,
        *,
        in_order: bool = False,
        told: Directives = NOTHING,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.graph, self.gpu, self.in_order = graph, gpu, in_order
        self.told, self.names = told, names or {}
        self.order = graph.order
        self.masks = Masks(graph)
        self.stays = Stays()  # the softmax at hand has no kernel
        self.kept = False  # it is to have one
        self.left: list[str] = []  # those without, each with the reason

    def run(self) -> Iterator[Attention]:
        """All that share no product, in the order of their scores."""
        taken: set[str] = set()
        for node in self.graph:
            if not may_be_scores(self.graph, node, self.gpu):
                continue
            name = self.names.get(node.name, node.name)
            keep = self.told.find("keep", [name])
            self.stays, self.kept = Stays(), bool(keep)
            outcome = FOLLOWED
            for key in _key_dimensions(node, self.graph):
                attention = self.find(node, key)
                if attention and not taken & attention.products:
                    taken |= attention.products
                    yield attention
                    break
            else:
                if not self.stays.why:
                    continue
                undo = f"\n    to reverse it: keep %{name}" if self.stays.is_choice else ""
                self.left.append(f"%{name}: attention stays as it is: {self.stays.why}{undo}")
                outcome = f"not followed: {self.stays.why}"
            for line in keep:
                self.told.note(line, outcome)

    def find(self, scores: Node, key: int) -> Attention | None:
        """The attention of which a product gives the scores, the keys lying along a dimension of them."""
        given = self.graph, scores, key, self.order, self.masks.lows
        rows = RowFunctions(*given, self.masks.is_mask)
        found = self.find_in(rows)
        if found or not rows.takes_apart:
            return found
        # The gradient of a sum of a bias and a mask may be read as a whole.
        return self.find_in(RowFunctions(*given))

    def find_in(self, rows: RowFunctions) -> Attention | None:
        """The attention that rows are of."""
        graph = self.graph
        readers = _find_readers(graph, rows)
        products = {r.product.name for r in readers}
        # The gradients of a bias of several layers are added up: what others give is none of these rows.
        rows.leave_out({name for reader in readers for name in rows.reads[reader.value]})
        rows.keep_leading_to([reader.value for reader in readers])
        sums: list[BiasGradient] = []
        for name in _find_escaping(graph, rows, products) if readers else ():
            if rows.varies(name):
                found = find_bias_gradients(rows, name, products)
                if found is None:
                    return None
                sums += found
        if not readers:
            return None
        masks = self.masks.find(rows)
        softmax, kinds = None, dict[str, str]()
        values = list(dict.fromkeys(reader.value for reader in readers))
        for value in values:
            fitted = fit_softmax(rows, value, masks)
            if fitted and softmax in (None, fitted):
                softmax = fitted
                kinds[value] = "softmax"
        if softmax is None:
            return None
        self.stays = Stays(NO_FORM)
        gradient: Gradient | None = None
        for value in values:
            if value in kinds:
                continue
            fit = fit_gradient(rows, value, softmax, masks)
            if fit is None or (gradient and not gradient.agrees(fit)):
                return None
            gradient = fit
            kinds[value] = "gradient"
        by_kind: dict[tuple[str, bool], list[Reader]] = {}
        for reader in readers:
            by_kind.setdefault((kinds[reader.value], reader.over_keys), []).append(reader)
        if any(len(same) > 1 for same in by_kind.values()):
            return None
        forward = by_kind.get(("softmax", True), [None])[0]
        wanted = (("gradient", True), ("gradient", False), ("softmax", False))
        gradients = tuple(by_kind[w][0] for w in wanted if w in by_kind)
        if len(gradients) not in (0, 3) or not (forward or gradients):
            return None
        given = (rows, softmax, forward, gradients, gradient, tuple(sums))
        joined = self.assemble(*given, apart=False)
        apart = self.assemble(*given, apart=True) if softmax.masks else joined
        return self.choose(apart, joined)

    def assemble(
        self,
        rows: RowFunctions,
        softmax: Softmax,
        forward: Reader | None,
        gradients: tuple[Reader, ...],
        gradient: Gradient | None,
        sums: Sequence[BiasGradient],
        *,
        apart: bool,
    ) -> Attention | None:
        """Attention, if the operands of all products are the same q, k, v and gradient.  apart: see split_masks."""
        graph, parts, scores = self.graph, rows.parts, rows.product
        left, right = read_operands(rows, scores, rows.resolved(scores.name) or ())
        of_keys = set(parts.resolve(rows.key))
        q, k = (right, left) if of_keys & {*left.resolve(parts).parts} else (left, right)
        v = forward.other if forward else None
        sinks = self.read_sinks(rows, softmax, forward, gradients, gradient)
        if sinks is None:
            return None
        bias_gradients = self.read_bias_gradients(rows, softmax, gradient, sums)
        if bias_gradients is None:
            return None
        given, factor = None, 1.0
        if gradients:
            dq, dk, dv = gradients
            product = self.read_product_of_gradient(rows, softmax, gradient) if gradient else None
            read = read_gradient(graph, rows, product[0]) if product else None
            if product is None or read is None:
                return None
            factor = product[1]
            given, values = read
            v = v or values
            same = ((values, v), (dq.other, k), (dk.other, q), (dv.other, given))
            if any(one.resolve(parts) != other.resolve(parts) for one, other in same):
                return None
            if waits_for(graph, v.name, dv.product.name):
                return None  # the gradient needs v
        assert v is not None
        narrow = graph[scores.operands[0]].dtype
        tensors = [q, k, v, *([given] if given else [])]
        if any(tensor.dtype is not narrow for tensor in tensors):
            return None
        if count_features(graph, v) != count_features(graph, q):
            return None
        form = self.split_masks(rows, softmax, apart=apart, is_learned=bool(bias_gradients))
        if form.others and softmax.empty == OTHER:
            return None
        drop = softmax.drop.source if softmax.drop else None
        if drop and graph[drop.name].dtype not in (*_OF_TILES, DType.PRED):
            return None
        compared = [side for c in form.comparisons for side in (c.left, c.right)]
        biases = [bias.source for bias in softmax.biases]
        added = [*biases, *(mask.source for mask in form.masks), *compared]
        varying = [find_repeated(rows, source)[1] for source in added]
        queries = [q, *([given] if given else [])]
        split = choose_split(rows, form.positions, queries, [k, v], varying)
        return Attention(
            rows=rows,
            q=q,
            k=k,
            v=v,
            softmax=softmax,
            causal=form.causal,
            window=form.window,
            masks=form.masks,
            comparisons=form.comparisons,
            split=split,
            forward=forward,
            gradients=gradients,
            given=given,
            factor=factor,
            gradient=gradient,
            sinks=sinks,
            bias_gradients=bias_gradients,
        )

    def read_bias_gradients(
        self,
        rows: RowFunctions,
        softmax: Softmax,
        gradient: Gradient | None,
        sums: Sequence[BiasGradient],
    ) -> tuple[BiasGradient, ...] | None:
        """What gives the gradient of a bias, with its factor; None where one gives something else."""
        masks = self.masks.find(rows)
        found: list[BiasGradient] = []
        for one in sums:
            fit = fit_bias_gradient(rows, one.value, softmax, gradient, masks) if gradient else None
            if fit is None:
                return None
            found.append(replace(one, factor=fit))
        return tuple(found)

    def choose_gradient_of_bias(self, attention: Attention) -> Attention | None:
        """With what our kernels give for the gradients of biases; None where that is not what is read.

        A bias whose gradient they sum is put first.  Else they give that of all scores, in the type of q: the product
        that it follows from is rounded to that too.
        """
        sums, softmax = attention.bias_gradients, attention.softmax
        if not sums:
            return attention
        rows = attention.rows
        if attention.masks or attention.comparisons:
            masks = self.masks.find(rows)
            through = softmax.low_first or attention.through_masks
            if {passes_to_bias(rows, one.value, softmax, masks) for one in sums} != {through}:
                return None
        for bias in softmax.biases:
            shared = self.find_shared(attention, bias.source)
            if shared and all(shared <= {*rows.parts.resolve(one.over)} for one in sums):
                biases = (bias, *(other for other in softmax.biases if other is not bias))
                return replace(attention, softmax=replace(softmax, biases=biases), gives="bias")
        return replace(attention, gives="scores")

    def find_shared(self, attention: Attention, source: Source) -> set[int]:
        """The parts of the batch and the heads that our kernel sums the gradient of a bias over: all that share it.

        There are none where the bias is that of rows or of columns.
        """
        rows, split = attention.rows, attention.split
        labels = find_repeated(rows, source)[1]
        varying = {p for label in labels for p in rows.parts.resolve(label)}
        batch, heads, queries, keys = (
            rows.parts.resolve(label)
            for label in (split.batch, split.heads, split.positions, split.keys)
        )
        if not varying >= {*queries, *keys}:
            return set()
        return {p for label in (batch, heads) if varying.isdisjoint(label) for p in label}

    def split_masks(
        self, rows: RowFunctions, softmax: Softmax, *, apart: bool, is_learned: bool
    ) -> MaskForm:
        """What masks leave: a band if there is one, and others.

        apart: these taken apart as far as they go.  is_learned: a bias has a gradient, so that it is no mask.
        """
        masks = list(softmax.masks)
        if apart:
            masks = [part for mask in masks for part in take_apart(rows, mask)]
        by_position = [mask for mask in masks if follows_from_indices(rows, mask.source)]
        for some in (
            ([masks] if len(masks) > 1 else [])
            + [by_position] * (len(by_position) > 1)
            + [[m] for m in masks]
        ):
            band = self.masks.find_band(rows, [(m.source, m.keeps_true) for m in some])
            if band:
                break
        else:
            some, band = [], None
        others = [mask for mask in masks if mask not in some]
        if band and softmax.biases:
            # Rows that a band and a mask or bias leave out together are those of one array.
            names = () if is_learned else [bias.name for bias in softmax.biases]
            if others or any(map(self.masks.may_leave_out, names)):
                band, others = None, masks
        (causal, window), positions = band or ((False, 0), _choose_positions(rows))
        read = [(mask, read_comparison(rows, mask) if apart else None) for mask in others]
        return MaskForm(
            causal,
            window,
            positions,
            tuple(mask for mask, comparison in read if comparison is None),
            tuple(comparison for _, comparison in read if comparison),
        )

    def read_sinks(
        self,
        rows: RowFunctions,
        softmax: Softmax,
        forward: Reader | None,
        gradients: tuple[Reader, ...],
        gradient: Gradient | None,
    ) -> tuple[SinkGradient, ...] | None:
        """The nodes that give the gradient of a sink for each row; None where something else is read of the rows."""
        readers = [*gradients, *([forward] if forward else [])]
        found: list[SinkGradient] = []
        masks = self.masks.find(rows)
        for name in _find_escaping(self.graph, rows, {r.product.name for r in readers}):
            if rows.varies(name):
                continue  # a bias's
            share = fit_sink_gradient(rows, name, softmax, gradient, masks) if gradient else None
            if share is None:
                return None
            found.append(share)
        return tuple(found)

    def read_product_of_gradient(
        self, rows: RowFunctions, softmax: Softmax, gradient: Gradient
    ) -> tuple[Source, float] | None:
        """(the product that gives the gradient of the result times the values, the factor behind it)."""
        drops = []
        if drop := softmax.drop:
            if drop.source.name not in rows.reads[gradient.name]:
                drops.append(drop)
        elif not isinstance(self.graph[gradient.source.name].attrs, DotAttrs):
            # Probabilities that a mask leaves out once more, behind the softmax.
            conditions = (m for m in softmax.masks if self.graph[m.source.name].dtype is DType.PRED)
            drops += [Drop(mask.source, 1.0, mask.keeps_true) for mask in conditions]
        for drop in drops:
            if dropped := read_dropped(rows, gradient.source, drop):
                return dropped[0], gradient.factor * dropped[1]
        is_needed = bool(softmax.drop and drops)
        return None if is_needed else (gradient.source, gradient.factor)

    def choose(self, apart: Attention | None, joined: Attention | None) -> Attention | None:
        """As our own kernels or the library have it; None where the plain ops are projected to take the least time.

        apart, joined: with masks taken apart, which our own kernels read, and as they are.
        """
        either = apart or joined
        few = choose_few(self.graph, self.gpu, either, self.kept) if either else Stays()
        if isinstance(few, Attention):
            return few
        scores = either.rows.product.array.size if either else LEAST_SCORES
        if scores < LEAST_SCORES and not self.kept:
            why = f"{scores:,} scores are few: a kernel takes longer"
            self.stays = Stays(few.why or why, is_choice=True)
            return None
        own = self.prepare_for_tiles(apart) if apart else None
        if own is None and joined is not apart:
            own = self.prepare_for_tiles(joined) if joined else None
        library = joined if joined and self.fits_library(joined) else None
        attention = own or joined
        if attention is None:
            return None
        shape = describe(replace(attention, tiles=choose_precision(attention)), self.graph)
        projection = project(shape, self.gpu, gradient=bool(attention.gradients))
        if projection is None:
            if own:
                self.stays = Stays(NOT_MEASURED)
            return library
        if library and library is not attention:
            shape = describe(library, self.graph)
            of_library = project(shape, self.gpu, gradient=bool(library.gradients))
            projection = replace(
                projection, library_us=of_library.library_us if of_library else math.inf
            )
        known = [(projection.tiles_us, own), (projection.library_us, library)]
        found = [(us, form) for us, form in known if form]
        if not found:
            return None
        us, chosen = min(found, key=lambda pair: pair[0])
        if us < projection.plain_us or self.kept:
            return chosen
        plain = f"{projection.plain_us:.0f} us are projected"
        self.stays = Stays(f"{plain}, and {us:.0f} us of kernels of attention", is_choice=True)
        return None

    def fits_library(self, attention: Attention) -> bool:
        """Has cuDNN such a kernel?"""
        added = attention.added
        narrow, features = attention.q.dtype, count_features(self.graph, attention.q)
        if not self.saves_memory(attention, of_library=True):
            return False
        hopper = self.gpu.compute_capability >= HOPPER
        if (
            narrow not in (DType.F16, DType.BF16)
            or attention.rows.product.array.size < LEAST_OF_LIBRARY
            or features % FEATURES_MULTIPLE
            or features > (MOST_FEATURES_OF_HOPPER if hopper else MOST_FEATURES)
            or (self.in_order and attention.gradients)
            or attention.softmax.cap
            or attention.softmax.drop
            or attention.softmax.sink
            or attention.bias_gradients
            or len(added) > 1
            or (attention.masks and narrow not in ABSORBING)
            or (attention.masks and attention.softmax.empty != EQUAL)
        ):
            return False
        if not added:
            return True
        split, rows = attention.split, attention.rows
        queries, keys = (rows.parts.extent(label) for label in (split.positions, split.keys))
        if attention.gradients and (queries % 2 or keys % 2):
            return False
        return bool(attention.masks) or find_repeated(rows, added[0])[0].dtype is narrow

    def prepare_for_tiles(self, attention: Attention) -> Attention | None:
        """As our own kernels have it; None where they lack its form."""
        biases = attention.softmax.biases
        masks = bool(attention.masks or attention.comparisons)
        if any(self.graph[b.name].dtype not in _OF_TILES for b in biases):
            return None
        if not self.saves_memory(attention, of_library=False):
            return None
        found = replace(attention, tiles=choose_precision(attention))
        if not (masks and attention.gradients):
            return self.choose_gradient_of_bias(found)
        assert attention.gradient
        known = self.masks.find(attention.rows)
        passes = passes_masks(attention.rows, attention.softmax, attention.gradient, known)
        if passes is None:
            return None
        return self.choose_gradient_of_bias(replace(found, through_masks=passes))

    def saves_memory(self, attention: Attention, *, of_library: bool) -> bool:
        """Are arrays of scores far smaller than these?

        Our own kernels may also read a bias as large: the plain ops write scores and probabilities beside it.
        Numbers are taken to be of the scores' type; the library has numbers for masks too.
        """
        rows, narrow = attention.rows, attention.q.dtype.bytes
        of_masks = narrow if of_library else DType.PRED.bytes
        whole = rows.product.array.size * narrow
        masks = [mask.source for mask in attention.masks]
        biases = [] if of_library else [bias.source for bias in attention.softmax.biases]
        for source in attention.added:
            labels = find_repeated(rows, source)[1]
            size = count_added(rows, attention.split, labels, of_library=of_library)
            most = whole if source in biases else whole // LEAST_SAVED
            if size * (of_masks if source in masks else narrow) > most:
                return False
        return True


def _choose_positions(rows: RowFunctions) -> Label:
    """Where no mask tells, the largest part of the queries is their position: the others are groups of heads.  Few
    queries are one tile, whatever they are."""
    queries = query_parts(rows)
    if prod(rows.parts.extents[part] for part in queries) <= MOST_QUERIES:
        return queries
    return (max(queries, key=lambda part: rows.parts.extents[part]),) if queries else ()


def may_be_scores(graph: Graph, node: Node, gpu: Gpu) -> bool:
    """Is a node a product of types and sizes of which there may be kernels of attention?"""
    attrs = node.attrs
    if not isinstance(attrs, DotAttrs) or len(attrs.lhs_contracting) != 1:
        return False
    if node.array.size < min(LEAST_NAMED, LEAST_SCORES) or node.dtype not in _OF_TILES:
        return False
    if node.array.size < LEAST_SCORES and not attrs.lhs_batch:
        # Products without a batch are rarely scores, but for few queries.
        if node.array.size > MOST_QUERIES * max(node.shape):
            return False
    operands = [graph[o] for o in node.operands]
    features = operands[0].shape[attrs.lhs_contracting[0]]
    known = operands[0].dtype in _OF_TILES
    return known and operands[0].dtype is operands[1].dtype and features <= MOST_FEATURES_OF_HOPPER


def _key_dimensions(node: Node, graph: Graph) -> Iterator[int]:
    """The dimensions of the scores that may be those of the keys: all that one operand has for itself."""
    attrs = node.attrs
    assert isinstance(attrs, DotAttrs)
    left, right = (graph[o].array for o in node.operands)
    lefts = free_dimensions(left.rank, attrs.lhs_batch, attrs.lhs_contracting)
    rights = free_dimensions(right.rank, attrs.rhs_batch, attrs.rhs_contracting)
    if len(rights) == 1 and node.shape[-1] > 1:
        yield node.array.rank - 1
    if len(lefts) == 1 and node.shape[len(attrs.lhs_batch)] > 1:
        yield len(attrs.lhs_batch)


def _find_readers(graph: Graph, rows: RowFunctions) -> list[Reader]:
    """The products of what is computed from the scores; those of another form read rows as a whole."""
    found: list[Reader] = []
    keys = rows.parts.resolve(rows.key)
    for value in rows.labels:
        for user in graph.users[value]:
            product = graph[user]
            if user in rows.labels or not isinstance(product.attrs, DotAttrs):
                continue
            reader = read_product(graph, rows, product, value, keys)
            if reader:
                found.append(reader)
    return found


def _find_escaping(graph: Graph, rows: RowFunctions, products: Iterable[str]) -> list[str]:
    """What is computed from the scores and read by anything but these products."""
    inside = {*rows.labels, *products}
    outputs = set(graph.outputs)
    return [
        name for name in rows.labels if name in outputs or not inside.issuperset(graph.users[name])
    ]
