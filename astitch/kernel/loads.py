"""Loads of a task loop: an element of an array, or a lane of a vector where the lanes lie side by side."""

from __future__ import annotations

from astitch.graph import index as ix
from astitch.graph.dimensions import array_of
from astitch.graph.index import Linear
from astitch.graph.ir import DType
from astitch.graph.ops.access import Guard, Within
from astitch.kernel import kernel_ir as k
from astitch.kernel.loop_nest import LoopNest
from astitch.kernel.masks import find_mask
from astitch.kernel.nest import LANE, Depth, Key, at_first_lane
from astitch.kernel.on_chip import Buffer, OnChip, VectorLoad, find_turn


class Loads:
    """Emits loads.  found: the vectors (of cooperating blocks: also elements) that each step of a thread loads."""

    def __init__(self, nest: LoopNest, on_chip: OnChip) -> None:
        self.nest, self.on_chip = nest, on_chip
        self.declarations = nest.declarations
        self.graph, self.mapping = nest.graph, nest.mapping
        self.found: dict[tuple[str, Linear], VectorLoad] = {}

    def load(self, key: Key, source: str, dtype: DType) -> tuple[k.Expr, Depth]:
        """An element of an array in memory: a lane of a vector access where the elements are adjacent."""
        name, index = key
        nest = self.nest
        form = ix.linearize(index, array_of(self.graph[name]).shape)
        array = self.declarations.array(source, dtype, read=True)
        if nest.is_vector(form) and all(c.vector for c in nest.conditionals):
            known = nest.recall(("vector", source, form))
            load = VectorLoad(key, source, form, dtype)
            vector = known if isinstance(known, str) else self.load_vector(load, array)
            return nest.define(key, dtype, k.Lane(vector, dtype), Depth.LANE)
        if self.is_own_element(form):
            self.found[source, form] = VectorLoad(key, source, form, dtype)
            early = self.on_chip.prefetched.get((source, form))
            if early is not None:
                at = early.position(nest, find_turn(self.mapping))
                element = k.Element(early.name, at, dtype, True)
                return nest.define(key, dtype, element, Depth.COLUMN)
        position, depth = nest.position(form)
        variable = nest.fresh(name)
        nest.emit(depth, k.Load(variable, dtype, array, position))
        return k.Name(variable), depth

    def load_vector(self, wanted: VectorLoad, array: str) -> str:
        """The variable of a vector, which is loaded here or was loaded early."""
        nest, on_chip, width = self.nest, self.on_chip, self.mapping.vector
        key, source, form, dtype = wanted.key, wanted.source, wanted.form, wanted.dtype
        position, _ = nest.position(form)
        taken = nest.conditionals[-1].take_variable(array) if nest.conditionals else None
        vector = taken or nest.fresh(f"{key[0]}_v")
        if not nest.conditionals:  # else it may lie outside of the array
            self.found[source, form] = wanted
        early = on_chip.prefetched.get((source, form))
        if early is None or (early.buffer is Buffer.FIRST_PHASE and not on_chip.first_fetched):
            needed = () if nest.conditionals else self.needed_lanes(key)
            load = k.LoadVector(vector, dtype, array, at_first_lane(position), width, needed)
            nest.emit(Depth.COLUMN, load)
            if not nest.conditionals:
                on_chip.put_vector(key, load)
                on_chip.carry_over(key, load)
        else:
            at = early.position(nest, find_turn(self.mapping))
            nest.emit(Depth.COLUMN, k.TakeVector(vector, dtype, early.name, at, width))
        nest.remember(Depth.COLUMN, ("vector", source, form), vector)
        return vector

    def needed_lanes(self, key: Key) -> tuple[Guard, ...]:
        """Guards that hold where somebody needs a lane of the vector, see masks.py."""
        inside, kept = self.declarations.inside, self.declarations.outputs
        found = []
        for guard in find_mask(self.graph, *key, inside, kept):
            form, depth = self.nest.express_base(guard.form)
            last = form.coefficient(LANE) * (self.mapping.vector - 1)
            base = at_first_lane(form)
            if depth <= Depth.COLUMN and LANE not in ix.symbols(base):
                found.append(Within(base, guard.low - max(last, 0), guard.high - min(last, 0)))
        return tuple(found)

    def is_own_element(self, form: Linear) -> bool:
        """A single element for each step of a thread, where cooperating blocks may copy it early, like a vector."""
        together = (
            self.mapping.cooperative and self.mapping.vector == 1 and not self.nest.conditionals
        )
        return together and self.nest.express_base(form)[1] is Depth.COLUMN
