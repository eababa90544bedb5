"""The shared buffers of a task: values of a root that other threads of the block read (Regional)."""

from __future__ import annotations

from astitch.graph import index as ix
from astitch.graph.dimensions import array_of
from astitch.graph.index import Linear, Symbol
from astitch.graph.ir import ArrayType, Graph
from astitch.graph.ops.access import Index
from astitch.graph.storage import storage_name, storage_type
from astitch.kernel.loop_nest import LoopNest
from astitch.mapping.stitch_scheme import Placement, shared_elements


def name_result(graph: Graph, root: str, number: int) -> str:
    """The storage name of a root's result of that number."""
    several = not isinstance(graph[root].type, ArrayType)
    return f"{root}#{number}" if several else storage_name(graph, root)


class SharedBuffers:
    """The slots of a loop's roots.  slots_of: by root and number of the result."""

    def __init__(self, nest: LoopNest) -> None:
        self.nest, self.declarations = nest, nest.declarations
        self.graph, self.mapping = nest.graph, nest.mapping
        self.slots_of: dict[str, str] = {}

    def find_slot(self, place: Placement, number: int) -> str:
        """The slot that was declared for a result."""
        return self.slots_of[f"{place.root.name}#{number}"]

    def declare(self, place: Placement, number: int) -> str:
        """The slot of a result, declared once."""
        key = f"{place.root.name}#{number}"
        if key not in self.slots_of:
            dtype = storage_type(self.graph, name_result(self.graph, place.root.name, number)).dtype
            count = shared_elements(place, self.mapping)
            name = self.nest.fresh(f"{place.root.name}_shared")
            last = max((p.phase for p in self.nest.places), default=0) + 1
            self.declarations.add_slot(
                name,
                dtype,
                None,
                count,
                dtype.bytes,
                (self.nest.loop.number, place.phase),
                (self.nest.loop.number, last),
            )
            self.slots_of[key] = name
        return self.slots_of[key]

    def position(self, place: Placement, index: Index) -> Linear:
        """Position of an element among those of its packed row: the dimensions inside the task."""
        outer = frozenset(self.mapping.outer)
        shape = array_of(self.graph[place.root.name]).shape
        form = ix.ZERO
        for mine, theirs, extent in zip(place.root.result_index, index, shape, strict=True):
            if extent != 1 and not any(s in outer for s in ix.symbols(mine)):
                form = ix.add(ix.scale(form, extent), theirs)
        return form

    def with_packed_row(self, place: Placement, position: Linear) -> Linear:
        """The position with the thread's packed outer row in front."""
        inner = shared_elements(place, self.mapping) // self.mapping.outer_threads
        row = Symbol("to", self.mapping.outer_threads)
        return ix.add(position, ix.scale(ix.of_symbol(row), inner))
