"""Compilation -> which results of its kernels go straight into slices of larger arrays.

A loop that stacks what its turns compute updates a slice of each stack (`dynamic-update-slice`), and a step of decoding
one of each cache that it was given.  XLA does that in place, but by a copy behind the kernel.  Here the kernel writes
the slice: it takes the array, whose memory its result shares, and where the slice starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import prod

from astitch.graph.dimensions import array_of
from astitch.graph.ir import ArrayType, DType, GetTupleElementAttrs, Graph, Node
from astitch.graph.ops import OPS, Kind
from astitch.graph.storage import storage_name, storage_type, stored_value
from astitch.kernel import kernel_ir as k
from astitch.kernel.cuda_text import STORAGE
from astitch.kernel.entry import Slice, SliceStart
from astitch.kernel.in_place import find_uses
from astitch.kernel.pieces import ACCESSES
from astitch.program.steps import KernelStep
from astitch.show.compilation import Compilation
from astitch.xla.updates import find_turned_states

ALIGNED_BYTES = 16
"""Where a kernel stores more than an element at once, slices and their pieces must start at multiples of it."""

MOST_POSITIONS = 1 << 31
"""An array whose slices lie in pieces has fewer elements: kernels count them in 32 bits."""

MOST_TOLD = 64
"""The starts of slices are computed from arrays of at most so many elements: a vector has one for each dimension."""

_STARTS = (DType.S32, DType.U32, DType.S64, DType.U64)


@dataclass(frozen=True, slots=True)
class SliceWrite:
    """A result of a kernel that is a slice of a larger array.

    update: the op that it makes superfluous.  whole: what that updates.  starts: the values that say where the slice
    is, the outer dimension first.  slice: what the kernel's entry makes of them.
    run: so many elements lie side by side, and step is from one piece to the next; both 0 where it is one piece.
    """

    update: str
    whole: str
    starts: tuple[str, ...]
    slice: Slice
    run: int = 0
    step: int = 0

    @property
    def written(self) -> int:
        """The result's number among the kernel's parameters."""
        return self.slice.parameter


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a slice is in its array.  names: the values of the starts.  Else see Slice and SliceWrite."""

    names: tuple[str, ...]
    starts: tuple[SliceStart, ...]
    run: int
    step: int

    def jumps(self) -> Iterator[int]:
        """Of each, a multiple is how far an element or vector may lie from the array's first."""
        yield from (start.stride for start in self.starts)
        yield from (self.run, self.step)


def find_slices(compilation: Compilation, *, loop: bool) -> dict[str, list[SliceWrite]]:
    """By kernel, what it writes into slices of the parameters.

    The update must be XLA's, and only it may read the parameter, only it and the kernel the kernel's result.  A loop's
    state of which a product reads a transpose is XLA's, see find_turned_states.  loop: is it a loop's body?
    """
    graph = compilation.scopes.graph
    if compilation.scopes.barriers:
        return {}
    kept = {name for plan in compilation.plans for name in plan.scope.members}
    if loop:
        kept |= {stored_value(graph, graph[n].operands[0]) for n in find_turned_states(graph)}
    kernels = {plan.kernel.name: plan.kernel for plan in compilation.plans}
    members = {plan.kernel.name: frozenset(plan.scope.members) for plan in compilation.plans}
    written = {
        view.buffer: (step.kernel.name, number)
        for step in compilation.program.steps
        if isinstance(step, KernelStep) and not kernels[step.kernel.name].pointer_table
        for number, view in enumerate(step.arguments)
        if number in step.written
    }
    found: dict[str, list[SliceWrite]] = {}
    for node in graph:
        if not OPS[node.op].writes_into or node.regions or node.name in kept:
            continue  # a scatter has a region
        buffer = storage_name(graph, node.operands[1])
        place = _find_place(graph, node)
        if buffer not in written or place is None:
            continue
        kernel, number = written[buffer]
        if not _is_alone(graph, node, buffer, members[kernel]):
            continue
        size = array_of(node).dtype.bytes
        aligned = all(jump * size % ALIGNED_BYTES == 0 for jump in place.jumps())
        if not aligned and not _takes(kernels[kernel], number, (k.Load, k.Store)):
            continue
        is_apart = kernels[kernel].arguments[number].source in kernels[kernel].wholes
        if place.run and (is_apart or not _takes(kernels[kernel], number, ACCESSES)):
            continue
        cut = Slice(number, place.starts)
        found.setdefault(kernel, []).append(
            SliceWrite(node.name, node.operands[0], place.names, cut, place.run, place.step)
        )
    return found


def _takes(kernel: k.Kernel, number: int, statements: tuple[type, ...]) -> bool:
    """Do only such statements of a kernel access a parameter, or its pieces?"""
    parameter = kernel.arguments[number]
    pieces = {p.name for p in kernel.parameters if p.whole == parameter.source}
    uses = find_uses(kernel.body, pieces or {parameter.name}).values()
    return all(isinstance(use[-1].statement, statements) for each in uses for use in each)


def _is_alone(graph: Graph, update: Node, buffer: str, inside: Collection[str]) -> bool:
    """Does an update write a parameter that nothing else reads, and read a buffer that nothing else reads?

    inside: the ops of the kernel that writes the buffer, which find it where they left it.
    """
    readers = _list_readers(graph, buffer.partition("#")[0], buffer)
    whole = stored_value(graph, update.operands[0])
    return (
        graph[whole].is_parameter
        and storage_type(graph, buffer).dtype is array_of(update).dtype
        and _list_readers(graph, whole) == [update.name]
        and [name for name in readers if name not in inside] == [update.name]
    )


def _list_readers(graph: Graph, base: str, buffer: str = "") -> list[str]:
    """What reads a value, or of an op with several results the one in a buffer; outputs read too."""
    found: list[str] = []
    pending = [base]
    while pending:
        name = pending.pop()
        found += [""] * graph.outputs.count(name)
        for user in map(graph.__getitem__, graph.users[name]):
            if isinstance(user.attrs, GetTupleElementAttrs):
                if storage_name(graph, user.name) == buffer:
                    pending.append(user.name)
            elif OPS[user.op].is_view:
                pending.append(user.name)
            else:
                found += [user.name] * user.operands.count(name)
    return found


def _find_place(graph: Graph, update: Node) -> _Place | None:
    """Where an update writes; None where its pieces do not lie at equal distances, or a start is not told."""
    whole, part = (graph[o].array for o in update.operands[:2])
    cut = [d for d, (n, m) in enumerate(zip(whole.shape, part.shape, strict=True)) if n != m]
    if not cut:
        return None
    run = step = 0
    repeated = [d for d in range(cut[-1]) if part.shape[d] != 1]
    if repeated:
        first, last = repeated[0], repeated[-1]
        if any(d in cut for d in range(first + 1, last + 1)):
            return None
        run, step = (prod(array.shape[last + 1 :]) for array in (part, whole))
        if whole.size >= MOST_POSITIONS:
            return None
    names: list[str] = []
    places: list[SliceStart] = []
    for d in cut:
        name = update.operands[2 + d]
        stride = prod(whole.shape[d + 1 :])
        start = graph[name]
        if not _is_told(graph, start):
            return None
        names.append(name)
        places.append(SliceStart(STORAGE[start.dtype], whole.shape[d] - part.shape[d], stride))
    return _Place(tuple(names), tuple(places), run, step)


def _is_told(graph: Graph, start: Node) -> bool:
    """Is it one number, computed from parameters and constants by ops on single elements or small vectors alone?"""
    if start.dtype not in _STARTS or start.array.size != 1:
        return False
    pending, seen = [start.name], set[str]()
    while pending:
        node = graph[pending.pop()]
        if node.name in seen:
            continue
        seen.add(node.name)
        if not isinstance(node.type, ArrayType) or node.type.size > MOST_TOLD:
            return False
        if OPS[node.op].kind not in (Kind.SOURCE, Kind.ELEMENTWISE, Kind.BROADCAST, Kind.INDEX):
            return False
        pending += node.operands
    return True
