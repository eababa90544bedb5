"""Choices between operands by the index: pad, concatenate, dynamic-update-slice, and what loads in their branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from astitch.graph import index as ix
from astitch.graph.index import Symbol
from astitch.graph.ops.access import Choice, Guard, Index, Within
from astitch.kernel import kernel_ir as k
from astitch.kernel.loop_nest import Conditional, Frame, LoopNest
from astitch.kernel.nest import LANE, Depth, Key, at_first_lane


class Choices:
    """Emits choices, of which only the branch that applies touches memory.  value: Values.value of the loop."""

    def __init__(self, nest: LoopNest, value: Callable[[str, Index], tuple[k.Expr, Depth]]) -> None:
        self.nest, self.value = nest, value
        self.graph, self.mapping = nest.graph, nest.mapping

    def choose(self, key: Key, choices: Sequence[Choice]) -> tuple[k.Expr, Depth]:
        """pad, concatenate, dynamic-update-slice: only the branch that applies touches memory."""
        guards_of = [[self.guard_of_vector(g) for g in choice.guards] for choice in choices]
        if self.is_whole(key) and all(g is not None for guards in guards_of for g in guards):
            return self.choose_vector(key, choices, guards_of)
        node = self.graph[key[0]]
        depth = Depth.KERNEL
        branches = []
        for choice in choices:
            guards = [self.nest.express_guard(g) for g in choice.guards]
            frame = Frame()
            self.nest.conditionals.append(Conditional(frame, frame, False))
            read = choice.reads[0]
            expr, where = self.value(read.operand, read.index)
            self.nest.conditionals.pop()
            depth = max(depth, where, *(known for _, known in guards), Depth.KERNEL)
            branches.append(k.Branch(tuple(g for g, _ in guards), tuple(frame.statements), expr))
        variable = self.nest.fresh(key[0])
        self.nest.emit(depth, k.Choose(variable, node.dtype, tuple(branches)))
        return k.Name(variable), depth

    def choose_vector(
        self, key: Key, choices: Sequence[Choice], guards_of: Sequence[Sequence[Guard | None]]
    ) -> tuple[k.Expr, Depth]:
        """The same where all lanes of a vector take the same branch: its loads are vectors too."""
        dtype, width = self.graph[key[0]].dtype, self.mapping.vector
        chosen = self.nest.fresh(f"{key[0]}_lanes")
        cases: list[k.If] = []
        for choice, guards in zip(choices, guards_of, strict=True):
            branch = Conditional(Frame(), Frame(), True, self.loads_to_share(cases))
            self.nest.conditionals.append(branch)
            read = choice.reads[0]
            expr, _ = self.value(read.operand, read.index)
            self.nest.conditionals.pop()
            put = k.KeepSet(chosen, ix.of_symbol(LANE), dtype, expr, False)
            lanes = k.Loop("lane", width, True, (*branch.lanes.statements, put))
            known = tuple(g for g in guards if g is not None)
            cases.append(k.If(known, (*branch.outside.statements, lanes)))
        self.nest.emit(Depth.COLUMN, k.Keep(chosen, dtype, width, False))
        self.nest.emit(Depth.COLUMN, k.Switch(tuple(self.load_before(cases))))
        return k.Element(chosen, ix.of_symbol(LANE), dtype, False), Depth.LANE

    def loads_to_share(self, cases: Sequence[k.If]) -> list[k.LoadVector]:
        """What a further case of a choice may load into the variables of the first."""
        if self.nest.conditionals or not cases:
            return []
        return [s for s in cases[0].body if isinstance(s, k.LoadVector)]

    def load_before(self, cases: Sequence[k.If]) -> list[k.If]:
        """The cases of a choice.  If each case loads as many vectors from the same arrays, the loads stand before the
        choice and only their positions are chosen.  Else threads of a warp that part would wait for each case's loads
        in turn."""
        loads = [[s for s in c.body if isinstance(s, k.LoadVector)] for c in cases]
        first, *others = ({load.name: load for load in of} for of in loads)
        plain = (k.LoadVector, k.Index)
        inner = [s for c in cases for s in c.body[:-1] if not isinstance(s, plain)]
        alike = all(other.keys() == first.keys() for other in others)
        if self.nest.conditionals or cases[-1].guards or inner or not first or not alike:
            return list(cases)
        for case in cases:
            for statement in case.body:
                if isinstance(statement, k.Index):
                    self.nest.emit(Depth.COLUMN, statement)
        for name, load in first.items():
            positions = [load.position, *(other[name].position for other in others)]
            if any(position != load.position for position in positions):
                at = Symbol(self.nest.fresh("at"), ix.UNBOUNDED)
                starts = zip((case.guards for case in cases), positions, strict=True)
                self.nest.emit(Depth.COLUMN, k.ChooseIndex(at.name, tuple(starts)))
                load = replace(load, position=ix.of_symbol(at))
            self.nest.emit(Depth.COLUMN, load)
        return [k.If(case.guards, case.body[-1:]) for case in cases]

    def is_whole(self, key: Key) -> bool:
        """May the lanes of a vector choose together?  They must be different elements, and stand in no branch of a
        single one; and no start index may be known in the loop over the lanes only, which stands behind the choice."""
        together = all(conditional.vector for conditional in self.nest.conditionals)
        if self.mapping.vector == 1 or not self.mapping.col or not together:
            return False
        symbols = {symbol for form in key[1] for symbol in ix.symbols(form)}
        starts = [self.nest.recall(("symbol", s)) for s in symbols if s not in self.nest.axis_of]
        if any(isinstance(start, tuple) and start[1] >= Depth.LANE for start in starts):
            return False
        return self.mapping.col[-1] in symbols

    def guard_of_vector(self, guard: Guard) -> Guard | None:
        """A guard that holds for all lanes of a vector or for none, as one of the first lane; None where it may part
        them."""
        if not self.mapping.col:
            return None
        if self.mapping.col[-1] in ix.symbols(guard.form):
            width = self.mapping.vector
            if not isinstance(guard, Within) or guard.low % width or guard.high % width:
                return None
            if not self.nest.is_vector(guard.form):
                return None
        elif self.nest.express_base(guard.form)[1] > Depth.COLUMN:
            return None
        expressed, _ = self.nest.express_base(guard.form)
        return replace(guard, form=at_first_lane(expressed))
