"""Which ops around products and convolutions XLA computes in the kernel that multiplies: what they need not store.

XLA's products take in a chain of element-wise ops, each of which alone reads the one before.  Whatever else these read
must be in memory: no fusion of XLA's computes it for them.  A chain is cut where the fewest bytes are moved: a kernel
of ours that reads the chain's end for more than that may as well begin earlier.  In front of a product XLA computes
ops of one array as it loads it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from astitch.graph.convolution import CanonicalConvolution, Form, canonical_convolution
from astitch.graph.dimensions import array_of
from astitch.graph.edit import free_name, keep_live_nodes
from astitch.graph.ir import (
    BroadcastAttrs,
    ConvolutionAttrs,
    DotAttrs,
    DType,
    Graph,
    Node,
    OpaqueAttrs,
    SliceAttrs,
)
from astitch.graph.ops import OPS, Kind
from astitch.graph.stitchable import why_not_stitchable
from astitch.graph.storage import list_readers, stored_value

LEAST_GAIN = 1 << 20
"""Bytes that must be saved where a kernel of ours is launched all the same: a third of a microsecond on an H100."""

LEAST_SIDE = 2
"""Rows and columns below which XLA multiplies without tiles."""

LEAST_SIDES = 100
"""Rows, columns and the length of sums, together, below which it does so too (xla_gpu_gemm_rewrite_size_threshold)."""

LEAST_LARGER = 64
"""What the ops behind a product read besides is written for them if the product is so many times as large."""

WRITTEN_BYTES = 4 << 20
"""What it costs to write that in front of a product of matrices, where nothing else wants it in memory: a launch."""

MEMORY = 0.5
"""Moved bytes that a byte of memory is worth: XLA writes a sum in the place of a product that it is added to."""

TOLERANCE_BYTES = 1024
"""By how much the result of an op may be larger than its operands (kIoToleranceBytes).  A larger one is computed where
it is read."""

MULTIPLIED = frozenset((DType.F32, DType.F16, DType.BF16))
"""What the tiles of a product are, before the ops behind it."""


@dataclass(frozen=True, slots=True)
class Finished:
    """graph: in which what XLA computes with a product is read by nothing else.  products: of each op that XLA computes
    so, the product, convolution or scatter."""

    graph: Graph
    products: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Link:
    """An op behind a product.  read: what it reads besides, in memory.  given: numbers and repetitions for it alone."""

    name: str
    read: tuple[str, ...] = ()
    given: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Chain:
    """What XLA may compute with a product.  ends: how many links may be taken, 0 among them."""

    product: str
    links: tuple[_Link, ...]
    ends: tuple[int, ...]

    def end(self, count: int) -> str:
        """The value after so many links."""
        return self.links[count - 1].name if count else self.product


@dataclass(frozen=True, slots=True)
class _Front:
    """Ops in front of an operand of a product, the nearest first; each reads one array, the last from memory.

    given: as of a link, for each op; the reshapes behind it among them.
    """

    product: str
    ops: tuple[str, ...]
    arrays: tuple[str, ...]
    given: tuple[tuple[str, ...], ...]


def find_finished(
    graph: Graph, left: Collection[str] = (), *, adds_products: bool = True
) -> Finished:
    """What XLA is to compute with products and convolutions.

    left: ops that XLA computes in any case.  adds_products: does XLA add a product to another one as it multiplies?
    """
    found = (_trace(graph, node, left) for node in graph if OPS[node.op].kind is Kind.COMPUTE)
    chains = _part([chain for chain in found if chain])
    behind = {link.name for chain in chains for link in chain.links}
    fronts = [front for node in graph for front in _trace_fronts(graph, node, behind | set(left))]
    if not chains and not fronts:
        return Finished(graph, {})
    cuts = _Cuts(graph, left, chains, fronts, adds_products=adds_products)
    cuts.settle()
    return set_apart(graph, list(cuts.list_units()))


def _part(chains: Sequence[_Chain]) -> list[_Chain]:
    """The chains without what another takes too: what adds two products is computed with the last of them."""
    owner = {link.name: chain.product for chain in chains for link in chain.links}
    parted = []
    for chain in chains:
        own = [owner[link.name] == chain.product for link in chain.links]
        count = max(end for end in chain.ends if all(own[:end]))
        if count:
            ends = tuple(end for end in chain.ends if end <= count)
            parted.append(_Chain(chain.product, chain.links[:count], ends))
    return parted


# ---- what XLA may take -------------------------------------------------------------------------------------------


def _trace(graph: Graph, product: Node, left: Collection[str]) -> _Chain | None:
    """The chain behind a product; None where there is none."""
    ends: Sequence[int]
    if isinstance(product.attrs, DotAttrs) and _has_tiles(graph, product):
        links = tuple(_follow(graph, product.name, left))
        ends = range(len(links) + 1)
    elif isinstance(product.attrs, ConvolutionAttrs) and takes_bias(graph, product):
        links, ends = _read_convolution(graph, product, tuple(_follow(graph, product.name, left)))
    else:
        return None
    return _Chain(product.name, links, tuple(ends)) if links else None


def _has_tiles(graph: Graph, product: Node) -> bool:
    """Does XLA multiply by tiles, on which it can go on?"""
    attrs = product.attrs
    assert isinstance(attrs, DotAttrs)
    lhs, rhs = (graph[o].array for o in product.operands)
    if not (lhs.size and rhs.size):
        return False
    batch = math.prod(lhs.shape[d] for d in attrs.lhs_batch)
    depth = math.prod(lhs.shape[d] for d in attrs.lhs_contracting)
    sides = [array.size // (batch * depth) for array in (lhs, rhs)]
    types = {lhs.dtype, rhs.dtype, product.array.dtype}
    wide = any(t in (DType.F64, DType.C64, DType.C128) for t in types)
    return not wide and min(sides) >= LEAST_SIDE and sum(sides) + depth >= LEAST_SIDES


def _follow(graph: Graph, product: str, left: Collection[str]) -> Iterator[_Link]:
    """The ops behind a product of which each alone reads the one before."""
    value = product
    while True:
        while value not in graph.outputs and len(graph.users[value]) == 1:
            (user,) = graph.users[value]
            if not OPS[graph[user].op].is_view:
                break
            value = user
        if value in graph.outputs or len(graph.users[value]) != 1:
            return
        (user,) = graph.users[value]
        if _ends_product(graph, graph[user], left):
            yield _Link(user)
            return
        link = _read_link(graph, graph[user], value, left)
        if link is None:
            return
        yield link
        value = user


def _ends_product(graph: Graph, node: Node, left: Collection[str]) -> bool:
    """Is it a slice of at most half of a product?  XLA ends the product with it and stores no more, since JAX 0.12."""
    if not isinstance(node.attrs, SliceAttrs) or node.name in left:
        return False
    (operand,) = node.operands
    return 2 * node.array.size <= graph[operand].array.size


def _read_link(graph: Graph, node: Node, value: str, left: Collection[str]) -> _Link | None:
    """An op that reads a value of a chain; None if XLA does not compute it there."""
    if not OPS[node.op].on_tiles or node.name in left or why_not_stitchable(graph, node):
        return None
    if node.operands.count(value) != 1:
        return None
    taken = sum(graph[o].array.bytes for o in node.operands)
    last = node.name in graph.outputs and not graph.users[node.name]
    if not last and node.array.bytes > taken + TOLERANCE_BYTES:
        return None
    read: list[str] = []
    given: list[str] = []
    for operand in node.operands:
        if operand != value and not _read_operand(graph, operand, left, read, given):
            return None
    return _Link(node.name, tuple(dict.fromkeys(read)), tuple(dict.fromkeys(given)))


def _read_operand(
    graph: Graph, name: str, left: Collection[str], read: list[str], given: list[str]
) -> bool:
    """Can XLA read an operand of a chain: an array in memory, repeated or reshaped, or numbers?

    Adds to what is read and given.
    """
    pending = [name]
    while pending:
        node = graph[pending.pop()]
        row = OPS[node.op]
        array = array_of(node)
        if node.is_parameter or node.is_constant:
            continue
        if row.is_view or row.is_broadcast:
            given.append(node.name)
            pending += node.operands
        elif why_not_stitchable(graph, node) or node.name in left:
            if not _is_stored(graph, node):
                return False
            read.append(node.name)
        elif array.size == 1 and row.kind is Kind.ELEMENTWISE:
            given.append(node.name)
            pending += node.operands
        elif row.kind in (Kind.ELEMENTWISE, Kind.INDEX, Kind.REDUCE, Kind.PROJECTION):
            read.append(node.name)
        else:
            return False
    return True


def _is_stored(graph: Graph, node: Node) -> bool:
    """Does XLA store what it computes here, because no fusion takes it in?"""
    while OPS[node.op].kind is Kind.PROJECTION:
        node = graph[node.operands[0]]
    opaque = node.attrs.opcode if isinstance(node.attrs, OpaqueAttrs) else node.op
    return opaque not in OPS or OPS[opaque].kind in (Kind.COMPUTE, Kind.CONTROL, Kind.OTHER)


def _trace_fronts(graph: Graph, product: Node, left: Collection[str]) -> Iterator[_Front]:
    """What XLA may compute as it loads the operands of a product."""
    if not isinstance(product.attrs, DotAttrs) or not _has_tiles(graph, product):
        return
    for operand in dict.fromkeys(product.operands):
        ops: list[str] = []
        arrays: list[str] = []
        given: list[tuple[str, ...]] = []
        at, ended = operand, False
        while not ended:
            views = []
            while OPS[graph[at].op].is_view:
                views.append(at)
                at = graph[at].operands[0]
            found = _read_loaded(graph, graph[at], left, first=not ops)
            if found is None:
                break
            array, repeated, ended = found
            ops.append(at)
            arrays.append(array)
            given.append((*views, *repeated))
            at = array
        if ops:
            yield _Front(product.name, tuple(ops), tuple(arrays), tuple(given))


def _read_loaded(
    graph: Graph, node: Node, left: Collection[str], *, first: bool
) -> tuple[str, list[str], bool] | None:
    """The array of which XLA computes an op as it loads it, what is repeated besides, and whether it must be in memory.

    first: the product reads the op itself.  A narrower result is computed so only of a parameter that nothing else
    reads.  None if XLA computes the op apart.
    """
    if not OPS[node.op].on_tiles or node.name in left or why_not_stitchable(graph, node):
        return None
    readers = list(list_readers(graph, node.name))
    if stored_value(graph, node.name) in map(partial(stored_value, graph), graph.outputs):
        return None
    if first:
        dots = (r for r in readers if isinstance(graph[r].attrs, DotAttrs))
        if not all(_has_tiles(graph, graph[r]) for r in dots) or any(
            not isinstance(graph[r].attrs, DotAttrs) for r in readers
        ):
            return None
    elif len(readers) != 1:
        return None
    arrays: list[str] = []
    read: list[str] = []
    repeated: list[str] = []
    for operand in node.operands:
        if OPS[graph[operand].op].is_broadcast or graph[operand].array.size == 1:
            if not _read_operand(graph, operand, left, read, repeated):
                return None
        else:
            arrays.append(operand)
    if len(arrays) != 1 or read:
        return None
    (array,) = arrays
    narrows = graph[array].array.bytes > node.array.bytes + TOLERANCE_BYTES
    source = graph[stored_value(graph, array)]
    alone = len(readers) == 1 and len(list(list_readers(graph, source.name))) == 1
    if narrows and not (source.is_parameter and alone):
        return None
    return array, repeated, narrows


# ---- convolutions ------------------------------------------------------------------------------------------------


def takes_bias(graph: Graph, product: Node) -> bool:
    """Does cuDNN have a form of a convolution that adds to it?"""
    attrs = product.attrs
    assert isinstance(attrs, ConvolutionAttrs)
    lhs, rhs = (graph[o].array for o in product.operands)
    grouped = attrs.feature_group_count != 1 or attrs.batch_group_count != 1
    if grouped or product.array.dtype not in MULTIPLIED or lhs.dtype is not product.array.dtype:
        return False
    form = canonical_convolution(attrs, lhs, rhs, product.array)
    # A product of matrices is all three forms, and XLA reads it as the first.
    whole = all(w.size == w.stride == w.base_dilation == 1 for w in attrs.window)
    return isinstance(form, CanonicalConvolution) and (whole or form.form is Form.FORWARD)


def _read_convolution(
    graph: Graph, product: Node, links: tuple[_Link, ...]
) -> tuple[tuple[_Link, ...], list[int]]:
    """The links of act(scale * convolution + bias + residual), and where they may end: behind the bias.

    Without a bias XLA writes an array of zeros first.
    """
    attrs = product.attrs
    assert isinstance(attrs, ConvolutionAttrs)
    order = {"multiply": 0, "add": 1, "maximum": 2}
    ends, last, added = [0], -1, set[bool]()
    for number, link in enumerate(links, 1):
        node = graph[link.name]
        place = order.get(node.op, -1)
        bias = any(repeats_feature(graph, graph[o], attrs.output_feature) for o in node.operands)
        again = bias in added if place == 1 else place == last
        if place < last or again or node.array.dtype is not product.array.dtype:
            break
        if place != 1 and not _has_number(graph, node):
            break
        if place == 1:
            added.add(bias)
        last = place
        if True in added:
            ends.append(number)
    return (links[: ends[-1]], ends)


def repeats_feature(graph: Graph, node: Node, feature: int) -> bool:
    attrs = node.attrs
    if not isinstance(attrs, BroadcastAttrs):
        return False
    source = graph[node.operands[0]].array
    return attrs.dimensions == (feature,) and source.shape == (node.array.shape[feature],)


def _has_number(graph: Graph, node: Node) -> bool:
    """Is one of an op's operands a constant number, repeated?"""
    return any(o in graph.embedded for o in node.operands)


# ---- what it is to take ------------------------------------------------------------------------------------------


class _Cuts:
    """How many links of each chain XLA computes.  All of them at first; fewer where that moves fewer bytes."""

    def __init__(
        self,
        graph: Graph,
        left: Collection[str],
        chains: Sequence[_Chain],
        fronts: Sequence[_Front],
        *,
        adds_products: bool,
    ) -> None:
        self.graph, self.chains = graph, chains
        self.adds_products = adds_products
        self.counts = {chain.product: len(chain.links) for chain in chains}
        self.fronts = {front: len(front.ops) for front in fronts}
        self.outputs = {stored_value(graph, name) for name in graph.outputs}
        self.outside = {n.name for n in graph if why_not_stitchable(graph, n)} | set(left)
        self.depth: dict[str, int] = {}
        for node in graph:
            before = max((self.depth[o] for o in node.operands), default=0)
            self.depth[node.name] = before + (node.name in self.outside)

    def settle(self) -> None:
        """Cuts until nothing changes.  What is taken only gets less."""
        while True:
            taken = {name for _, names, _ in self.list_units() for name in names}
            counts = {chain.product: self.choose(chain, taken) for chain in self.chains}
            fronts = {front: self.choose_front(front, taken) for front in self.fronts}
            if counts == self.counts and fronts == self.fronts:
                return
            self.counts, self.fronts = counts, fronts

    def list_units(self) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
        """(product, ops that XLA computes with it, what is given to these)."""
        for chain in self.chains:
            if links := chain.links[: self.counts[chain.product]]:
                given = (name for link in links for name in link.given)
                yield chain.product, tuple(link.name for link in links), tuple(given)
        for front, count in self.fronts.items():
            if count:
                given = (name for names in front.given[:count] for name in names)
                yield front.product, front.ops[:count], tuple(given)

    def choose_front(self, front: _Front, taken: Collection[str]) -> int:
        """How many ops of a front to take: as few as read from memory; none where that moves more bytes."""
        for number in range(1, self.fronts[front] + 1):
            base = stored_value(self.graph, front.arrays[number - 1])
            if self.is_loaded(base, front, taken):
                return number if self.spares(front, base, taken) else 0
        return 0

    def is_loaded(self, name: str, front: _Front, taken: Collection[str]) -> bool:
        """Is an array in memory, whatever becomes of the ops in front of products?"""
        node = self.graph[name]
        if node.is_parameter or node.is_constant or name in self.outside or name in self.outputs:
            return True
        if name in taken and name not in front.ops:
            return True
        return any(user in self.outside for user in list_readers(self.graph, name))

    def spares(self, front: _Front, base: str, taken: Collection[str]) -> bool:
        """Are fewer bytes moved if products load the array from which their operand is computed?"""
        operand, source = self.graph[front.ops[0]].array, array_of(self.graph[base])
        readers = len(list(list_readers(self.graph, front.ops[0])))
        others = list_readers(self.graph, base)
        kept = any(self.is_beside(user, front.ops[0], {*taken, *front.ops}) for user in others)
        now = operand.bytes * (1 + readers) + (0 if kept else source.bytes)
        return source.bytes * readers < now

    def choose(self, chain: _Chain, taken: Collection[str]) -> int:
        """How many links to take; at most as many as now."""
        most = self.counts[chain.product]
        for number, link in enumerate(chain.links[:most]):
            if not all(self.is_stored(name, chain, taken) for name in link.read):
                most = number
                break
        prices = {n: self.moved_bytes(chain, n, taken) for n in chain.ends if n <= most}
        best = min(prices, key=lambda count: (prices[count], count))
        whole = best == len(chain.links) and not self.is_kept(chain, taken)
        return best if prices[0] - prices[best] >= (1 if whole else LEAST_GAIN) else 0

    def is_stored(self, name: str, chain: _Chain, taken: Collection[str]) -> bool:
        """Is a value in memory, whatever becomes of its chain?  What is small beside the product is put there."""
        product = self.graph[chain.product]
        small = array_of(self.graph[name]).bytes * LEAST_LARGER <= product.array.bytes
        return small or self.is_stored_anyway(name, chain, taken)

    def is_stored_anyway(self, name: str, chain: _Chain, taken: Collection[str]) -> bool:
        """Does something else than the chain want a value in memory?"""
        if name in taken or name in self.outside or name in self.outputs:
            return True
        own = {link.name for link in chain.links}
        return any(
            user in self.outside for user in list_readers(self.graph, name) if user not in own
        )

    def is_kept(self, chain: _Chain, taken: Collection[str]) -> bool:
        """Is there a kernel of ours behind the chain that reads its end?"""
        end = chain.end(len(chain.links))
        return any(self.is_beside(user, end, taken) for user in list_readers(self.graph, end))

    def is_beside(self, name: str, end: str, taken: Collection[str]) -> bool:
        """Is an op in the kernel that would compute the end of a chain?"""
        stitched = name not in self.outside and name not in taken
        return stitched and self.depth[name] == self.depth[end]

    def moved_bytes(self, chain: _Chain, count: int, taken: Collection[str]) -> float:
        """Bytes that are written and read where XLA takes so many links, but for what is read in any case."""
        graph, end = self.graph, chain.end(len(chain.links))
        size = graph[chain.end(count)].array.bytes
        kept = self.is_kept(chain, taken)
        needed = (user in self.outside or user in taken for user in list_readers(self.graph, end))
        stored = end in self.outputs or any(needed)
        moved: float = size
        if count == len(chain.links):
            moved += size * kept
        else:
            moved += size * (kept or stored) + graph[end].array.bytes * stored
        own = {link.name for link in chain.links[:count]}
        read = {name for link in chain.links[:count] for name in link.read}
        if isinstance(graph[chain.product].attrs, DotAttrs) and not all(
            self.is_stored_anyway(name, chain, taken) for name in read
        ):
            moved += WRITTEN_BYTES
        for name in read:
            others = (user for user in list_readers(self.graph, name) if user not in own)
            bytes_ = array_of(graph[name]).bytes
            if any(self.is_beside(user, end, taken) for user in others):
                moved += bytes_  # a kernel reads it too
            elif self.is_forgotten(name, own):
                moved -= MEMORY * bytes_
        return moved

    def is_forgotten(self, name: str, own: Collection[str]) -> bool:
        """Is a value in memory for a chain alone?  own: the ops of the chain."""
        kept = name in self.outputs or name not in self.outside or self.graph[name].is_parameter
        return (
            self.adds_products
            and not kept
            and all(user in own for user in list_readers(self.graph, name))
        )


def set_apart(
    graph: Graph, units: Sequence[tuple[str, tuple[str, ...], tuple[str, ...]]]
) -> Finished:
    """The graph in which what XLA computes with a product is read by nothing else.

    units: each product with the ops that are computed with it, and the numbers and repetitions that these alone read.
    What others read too is there once for each of them.
    """
    products: dict[str, str] = {}
    renamed: dict[str, dict[str, str]] = {}  # by the op that reads them
    clones: dict[str, list[Node]] = {}  # by the op behind which they stand
    names = set(graph.nodes)
    order = graph.order
    for product, ops, given in units:
        inside = {product, *ops, *given}
        own: dict[str, str] = {}
        for old in sorted({*ops, *given}, key=order.__getitem__):
            node, name = graph[old], old
            moved = any(o in own for o in node.operands)
            shared = old in graph.outputs or any(u not in inside for u in graph.users[old])
            behind = order[old] > order[product]  # only the chain's own ops, or their repetitions
            if old in graph.embedded or (old in ops and behind):
                renamed[old] = own
            elif moved or shared:
                name = free_name(f"{old}.finish", names)
                names.add(name)
                operands = tuple(own.get(o, o) for o in node.operands)
                clones.setdefault(old, []).append(replace(node, name=name, operands=operands))
                own[old] = name
            if not OPS[node.op].is_view:
                products[name] = product
        if own:
            renamed[product] = {**renamed.get(product, {}), **own}
    nodes: dict[str, Node] = {}
    for node in graph:
        own = renamed.get(node.name, {})
        nodes[node.name] = replace(node, operands=tuple(own.get(o, o) for o in node.operands))
        nodes |= {clone.name: clone for clone in clones.get(node.name, ())}
    live = keep_live_nodes(nodes, graph.outputs)
    apart = replace(graph, nodes=live)
    return Finished(apart, {name: p for name, p in products.items() if name in live})
