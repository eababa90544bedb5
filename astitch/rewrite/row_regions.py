"""Graph -> Graph: products of narrow arrays and the ops between them, as kernels that keep whole rows on chip.

A network of 64 features takes as long as its arrays take to be written and read, once for each layer.  A kernel of our
own has a few rows at a time, and goes through all layers with them (tile/row_region.py).  In training it goes back
too, and sums what the weights get.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import networkx as nx

from astitch.device.gpu import Gpu
from astitch.errors import IllegalProduct
from astitch.graph.edit import free_name, keep_live_nodes, sort_nodes
from astitch.graph.ir import (
    ArrayType,
    Attrs,
    DimensionAttrs,
    DimensionsAttrs,
    DotAttrs,
    DType,
    GatherAttrs,
    GetTupleElementAttrs,
    Graph,
    NoAttrs,
    Node,
    Type,
)
from astitch.graph.ops import OPS, Kind
from astitch.graph.ops.row_region import type_of_results
from astitch.rewrite.draft import Log
from astitch.rewrite.draft_ops import number_zero, write_addition
from astitch.rewrite.merged_rows import part_rows
from astitch.rewrite.row_bodies import RegionFormer, RowRegion
from astitch.rewrite.row_ops import RowOps, is_row_product, list_whole
from astitch.rewrite.row_sinking import sink
from astitch.tile.row_rates import (
    HOPPER,
    choose_tiling,
    fit_tiling,
    is_function,
    measure_rows,
    project,
)
from astitch.tile.row_region import LEAST_EXTENT, write_row_region

MOST_PIECES = 4
"""Of a concatenation.  Narrow ones fill tiles badly."""

GAIN = 0.9
"""A kernel is to take less than this share of what the products take apart."""

_PRODUCT_MEMORY_US, _PRODUCT_OTHER_US = 0.784, 0.130
"""Microseconds that XLA's products of narrow arrays take for each microsecond of a copy, and beside it for each MB,
which faster memory does not shorten: 0.85 of a copy's bandwidth on an H100, 0.74 on an H200."""

_PRODUCT_STARTS = 2.0
"""Microseconds of each beside its work."""


def form_row_regions(graph: Graph, gpu: Gpu, log: Log | None = None) -> Graph:
    """The same function but for rounding and the order of sums.

    graph: simplified.  log: hears of every product that is taken.  Products that XLA merged along their rows are parted
    where all of them are taken.
    """
    if gpu.compute_capability != HOPPER:
        return graph
    parted = part_rows(graph)
    while True:
        formed, taken = _form(parted.graph, gpu)
        kept = [name for name, parts in parted.parts.items() if taken.issuperset(parts)]
        if len(kept) == len(parted.parts):
            break
        parted = part_rows(graph, kept)
    if log and formed is not graph:
        for name in parted.graph.nodes:
            if name in taken:
                log("row_region", name)
    return formed if taken else graph


def _form(graph: Graph, gpu: Gpu) -> tuple[Graph, set[str]]:
    """The graph with its regions, and the products in them."""
    counts = Counter(
        prod(graph[node.operands[0]].shape[:-1]) for node in graph if is_row_product(graph, node)
    )
    taken = set[str]()
    for rows, count in counts.most_common():
        if count < 2:
            continue
        for region in _find_regions(graph, rows, gpu):
            taken.update(n.name for n in region.members if isinstance(n.attrs, DotAttrs))
            graph = _Writer(graph, region).write()
    return graph, taken


# ---- which ops are one


def _find_regions(graph: Graph, rows: int, gpu: Gpu) -> Iterator[RowRegion]:
    at = RowOps(graph, rows)
    sums = {node.name for node in graph if at.is_sum(node)}
    sources = {node.name for node in graph if at.is_source(node)}
    taken = {
        node.name
        for node in graph
        if node.name in sums or (node.name not in sources and at.is_row_op(node))
    }
    taken -= {o for n in taken - sums for o in list_whole(graph[n])}
    taken -= set(_list_narrow_pieces(graph, taken))
    taken -= {
        name
        for name in taken
        if isinstance(graph[name].attrs, DimensionAttrs) and taken.isdisjoint(graph[name].operands)
    }
    while True:
        groups = _group(graph, taken, sums)
        kept = [g for g in groups if _count_products(graph, g, sums) > 0 and len(g) > 1]
        if sum(map(len, kept)) == len(taken):
            break
        taken = {name for group in kept for name in group}
    for group in sink(graph, kept):
        found = _choose(at, group, sums & set(group), gpu)
        if found:
            _prove(found)
            yield found


def _prove(region: RowRegion) -> None:
    """Raises IllegalProduct for a body that has no kernel: here that costs the pass, later the whole program."""
    tiling = choose_tiling(region.body, region.attrs)
    if tiling is None:
        raise IllegalProduct(f"no tiles fit {region.body}")
    write_row_region(region.body, region.attrs, tiling)


def _list_narrow_pieces(graph: Graph, names: Iterable[str]) -> Iterator[str]:
    """What is put side by side in pieces of a few columns: one array of them is read instead."""
    for name in names:
        node = graph[name]
        if isinstance(node.attrs, DimensionAttrs) and len(node.operands) > MOST_PIECES:
            yield from (o for o in node.operands if graph[o].shape[-1] < LEAST_EXTENT)


def _count_products(graph: Graph, group: Iterable[str], sums: set[str]) -> int:
    """Those of rows with a matrix, where there is another product."""
    products = [n for n in group if isinstance(graph[n].attrs, DotAttrs)]
    return sum(n not in sums for n in products) if len(products) > 1 else 0


def _group(graph: Graph, taken: set[str], sums: set[str]) -> list[list[str]]:
    """The ops by kernel: no path leaves one and comes back."""
    levels, places = dict[str, int](), {name: number for number, name in enumerate(graph.nodes)}
    for node in graph:
        before = (
            levels[o] + (o in sums or (o in taken and node.name not in taken))
            for o in node.operands
        )
        levels[node.name] = max(before, default=0)
    network = nx.Graph()
    network.add_nodes_from(taken)
    network.add_edges_from(
        (name, o)
        for name in taken
        for o in graph[name].operands
        if o in taken and o not in sums and levels[o] == levels[name]
    )
    groups = [sorted(part, key=places.__getitem__) for part in nx.connected_components(network)]
    return sorted(groups, key=lambda group: places[group[0]])


def _choose(at: RowOps, group: Sequence[str], sums: set[str], gpu: Gpu) -> RowRegion | None:
    """The best of: all sums in the kernel, all but the largest ..., none."""
    graph = at.graph
    hastened = _hasten(graph, group, sums)
    by_size = sorted(sums, key=lambda name: graph[name].array.size)
    best, least = None, GAIN * _project_apart(graph, group, sums, gpu)
    for count in range(len(by_size), -1, -1):
        if 0 < count < len(by_size) and graph[by_size[count]].array.rank < 2:
            continue  # sums of few numbers cost nothing
        kept = [name for name in group if name not in sums or name in by_size[:count]]
        left = by_size[count:]
        region = RegionFormer(at, kept, gpu).form()
        work = measure_rows(region.body, region.attrs)
        if fit_tiling(work, region.attrs) is None or _is_larger(graph, hastened, region):
            continue
        time = project(work, region.attrs, gpu) + _project_apart(graph, left, sums, gpu)
        if time < least:
            best, least = region, time
    return best


def _hasten(graph: Graph, group: Sequence[str], sums: set[str]) -> list[str]:
    """The ops in an order in which a sum follows what it reads at once."""
    places = {name: number for number, name in enumerate(group)}

    def place(name: str) -> float:
        read = [places[o] for o in graph[name].operands if o in places]
        return max(read) + 0.5 if name in sums and read else places[name]

    return sorted(group, key=place)


def _is_larger(graph: Graph, group: Sequence[str], region: RowRegion) -> bool:
    """Does the kernel want more memory at once than its ops apart, which forget an array after its last reader?"""
    beside = {node.name: node for node in region.beside}
    given = [
        node.array.bytes
        for name in region.given
        if not (node := beside.get(name) or graph[name]).is_parameter
    ]
    outputs = [region.body[name].array for name in region.body.outputs]
    results = (array.bytes for array in type_of_results(outputs, region.attrs).elements)
    return sum(given) + sum(results) > _find_most(graph, group)


def _find_most(graph: Graph, group: Sequence[str]) -> int:
    """Bytes of the arrays that are alive at once while these ops are computed one by one, at most.

    What products and sums read is an array, and what others read too.  What is element-wise is computed when it is
    first read.
    """
    members = set(group)
    last: dict[str, int] = {}
    for number, name in enumerate(group):
        for o in graph[name].operands:
            last[o] = len(group) if _is_read_outside(graph, o, members) else number
    alive = {
        name: graph[name].array.bytes
        for name in last
        if name not in members and OPS[graph[name].op].kind not in (*_LATE, Kind.SOURCE)
    }
    most = sum(alive.values())
    for number, name in enumerate(group):
        node = graph[name]
        for o in node.operands:
            if o not in members and OPS[graph[o].op].kind in _LATE:
                alive[o] = graph[o].array.bytes
        readers = [graph[user] for user in graph.users[name]]
        if _is_read_outside(graph, name, members) or any(map(_reads_arrays, readers)):
            alive[name] = node.array.bytes
        most = max(most, sum(alive.values()))
        for o in {*node.operands}:
            if last[o] == number:
                alive.pop(o, None)
    return most


_LATE = (Kind.ELEMENTWISE, Kind.BROADCAST, Kind.INDEX)


def _is_read_outside(graph: Graph, name: str, members: set[str]) -> bool:
    return name in graph.outputs or any(user not in members for user in graph.users[name])


def _reads_arrays(node: Node) -> bool:
    return isinstance(node.attrs, DotAttrs) or OPS[node.op].is_reduce


def _project_apart(graph: Graph, group: Iterable[str], sums: set[str], gpu: Gpu) -> float:
    """Microseconds of the products and sums as XLA computes them, each by a kernel with what is around it."""
    total, read = 0.0, set[str]()
    each_mb = _PRODUCT_MEMORY_US * 1e3 / gpu.bandwidth_gbs + _PRODUCT_OTHER_US
    for name in group:
        node = graph[name]
        arrays = [graph[o].array for o in node.operands]
        if isinstance(node.attrs, GatherAttrs):
            total += node.array.bytes / 1e6 * each_mb  # written
        if not isinstance(node.attrs, DotAttrs):
            if not OPS[node.op].is_reduce or node.operands[0] in read:
                continue
            read.add(node.operands[0])
            # A sum of each row is one kernel with what reads its operand again, and writes as much.
            arrays = arrays[:1] * (1 if name in sums else 2)
        bytes_ = sum(array.bytes for array in arrays) + node.array.bytes
        total += bytes_ / 1e6 * each_mb + _PRODUCT_STARTS
    # No product takes a function in: a kernel computes it, and reads as much as it writes.
    return (
        total + 2 * sum(graph[n].array.bytes for n in _list_functions(graph, group)) / 1e6 * each_mb
    )


def _list_functions(graph: Graph, group: Iterable[str]) -> set[str]:
    """What products read of functions, through element-wise ops: the first of each row of them."""
    behind: dict[str, set[str]] = {}
    found = set[str]()
    for name in group:
        node = graph[name]
        before = {n for o in node.operands for n in behind.get(o, ())}
        if isinstance(node.attrs, DotAttrs):
            found |= before
        elif OPS[node.op].kind in _LATE:
            is_first = is_function(node) and node.array.rank > 1 and not before
            behind[name] = {name} if is_first else before
    return found


# ---- writing it


@dataclass
class _Writer:
    graph: Graph
    region: RowRegion

    def __post_init__(self) -> None:
        self.nodes = dict(self.graph.nodes)

    def write(self) -> Graph:
        region, graph = self.region, self.graph
        origin = next(n for n in region.members if isinstance(n.attrs, DotAttrs))
        operands = []
        self.nodes |= {node.name: node for node in region.beside}
        for name, inner in zip(region.given, region.body.parameters, strict=True):
            operands.append(self._shape(origin, name, region.body[inner].array))
        outputs = [region.body[name].array for name in region.body.outputs]
        results = type_of_results(outputs, region.attrs)
        call = self._add(
            origin, "rows", "row-region", results, tuple(operands), region.attrs, (region.body,)
        )
        for number, name in enumerate((*region.stored, *region.summed)):
            array = results.elements[number]
            value = self._add(
                origin, "rows", "get-tuple-element", array, (call,), GetTupleElementAttrs(number)
            )
            self._replace(graph[name], value, summed=name in region.summed)
        live = keep_live_nodes(
            sort_nodes(self.nodes, [*graph.nodes, *graph.outputs], {}), graph.outputs
        )
        return replace(graph, nodes=live)

    def _replace(self, node: Node, value: str, *, summed: bool) -> None:
        """The node as what the kernel computes; its name stays."""
        if summed:
            value = self._add_parts(node, value)
        op = "reshape" if self.nodes[value].dtype is node.dtype else "convert"
        self.nodes[node.name] = replace(node, op=op, operands=(value,), attrs=NoAttrs(), regions=())

    def _add_parts(self, node: Node, parts: str) -> str:
        f32 = DType.F32
        zero = self._add(node, "zero", "constant", ArrayType(f32, ()), (), number_zero(f32))
        total, attrs = ArrayType(f32, self.nodes[parts].shape[1:]), DimensionsAttrs((0,))
        return self._add(
            node, "total", "reduce", total, (parts, zero), attrs, (write_addition(f32),)
        )

    def _shape(self, origin: Node, name: str, array: ArrayType) -> str:
        if self.nodes[name].type == array:
            return name
        return self._add(origin, "rows", "reshape", array, (name,))

    def _add(
        self,
        origin: Node,
        part: str,
        op: str,
        type_: Type,
        operands: tuple[str, ...],
        attrs: Attrs = NoAttrs(),
        regions: tuple[Graph, ...] = (),
    ) -> str:
        name = free_name(f"{origin.name}.{part}", self.nodes)
        self.nodes[name] = Node(
            name, op, type_, operands, attrs, regions, origin.op_name, origin.source
        )
        return name
