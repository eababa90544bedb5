"""Keys and values that a table finds in pages: Tensor -> the pages, and the table.

A cache is [pages, positions of a page, ...]; a table names the pages of each sequence.  A program gathers them, and XLA
writes what it gathers to memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from astitch.attention.layout import Split
from astitch.attention.operands import FEATURES, Tensor
from astitch.attention.rows import Label, Parts
from astitch.graph.ir import GatherAttrs, Graph, Order


@dataclass(frozen=True, slots=True)
class Pages:
    """array: of all pages.  shape: of four dimensions, in which it lies so; order: which of them are pages, heads,
    positions and features.  table: its name.  labels: the parts of the gathered pages, as the table lies.  size:
    positions of a page."""

    array: str
    shape: tuple[int, ...]
    order: Order
    table: str
    labels: Label
    size: int


def find_pages(graph: Graph, parts: Parts, split: Split, tensor: Tensor) -> Pages | None:
    """None where a tensor is not gathered so.  Its pages need not be moved."""
    node, attrs = graph[tensor.name], graph[tensor.name].attrs
    if not isinstance(attrs, GatherAttrs) or len(attrs.start_index_map) != 1:
        return None
    array, indices = (graph[name].array for name in node.operands)
    (page,) = attrs.start_index_map
    whole = tuple(1 if d == page else extent for d, extent in enumerate(array.shape))
    is_column = indices.shape[attrs.index_vector_dim :] in ((), (1,))
    if attrs.operand_batching_dims or attrs.slice_sizes != whole or not is_column:
        return None
    split, labels = split.resolve(parts), tensor.resolve(parts).labels
    own = iter(attrs.offset_dims)
    lie = {d: next(own) for d in range(array.rank) if d not in attrs.collapsed_slice_dims}
    batch, heads, keys, _ = split.of_keys.parts
    outer = tuple(p for d, label in enumerate(labels) if d not in attrs.offset_dims for p in label)
    inner = tuple(p for p in keys if p not in outer)
    gathered = (*batch, *(p for p in keys if p in outer))
    if sorted(outer) != sorted(gathered) or keys != (*gathered[len(batch) :], *inner):
        return None
    of_classes = {heads: 1, inner: 2, FEATURES: 3}
    found: list[tuple[int, int]] = []  # (class, extent) of each dimension that has one
    for d, extent in enumerate(array.shape):
        label = (0,) if d == page else labels[lie[d]]
        if d == page:
            found.append((0, extent))
        elif label in of_classes and label:
            found.append((of_classes[label], extent))
        elif label or extent > 1:
            return None
    classes = [c for c, _ in found]
    if len(set(classes)) != len(classes) or classes[-1:] != [3] or 0 not in classes:
        return None
    missing = [(c, 1) for c in range(4) if c not in classes]
    if any(parts.extent(split.of_keys.parts[1]) > 1 for c, _ in missing if c == 1):
        return None
    found = [*missing, *found]
    places = [c for c, _ in found]
    order: Order = (places.index(0), places.index(1), places.index(2), places.index(3))
    size = prod(parts.extents[part] for part in inner)
    shape = tuple(extent for _, extent in found)
    return Pages(node.operands[0], shape, order, node.operands[1], outer, size)
