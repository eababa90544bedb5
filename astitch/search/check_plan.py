"""Takes a Plan; hands it on unchanged, or raises IllegalProduct with a sentence.

The idea: a plan is legal when every value is where its readers look for it.  check_kernel.py checks its kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

from astitch.errors import IllegalProduct
from astitch.graph.dimensions import is_embedded
from astitch.graph.ir import Graph
from astitch.graph.ops.access import Read
from astitch.graph.propagation import walk_reads
from astitch.graph.storage import stored_value
from astitch.kernel.check_kernel import ADVICE, check_kernel
from astitch.mapping.roots import RootKind, reduce_behind, root_starts
from astitch.mapping.stitch_scheme import (
    Arrangement,
    Placement,
    ReductionScope,
    Scheme,
    combine_name,
    why_not_block_local,
)
from astitch.search.plan import Plan


def check_plan(plan: Plan) -> Plan:
    """The same plan, if every value is computed, kept and read where its readers can find it.

    Also checks the plan's kernel.  Raises IllegalProduct with the op and the rule that it breaks.
    """
    _PlanCheck(plan).run()
    check_kernel(plan.kernel)
    return plan


# ---- plans ------------------------------------------------------------------------------------------------------


class _PlanCheck:
    def __init__(self, plan: Plan):
        self.plan = plan
        self.arrangement: Arrangement = plan.arrangement
        self.graph: Graph = plan.arrangement.graph
        self.placements: Mapping[str, Placement] = plan.arrangement.placements
        self.inside = set(plan.scope.members)

    def fault(self, sentence: str) -> IllegalProduct:
        return IllegalProduct(f"plan {self.plan.scope.name}: {sentence}{ADVICE}")

    def require(self, condition: bool, sentence: str) -> None:
        if not condition:
            raise self.fault(sentence)

    def run(self) -> None:
        self.check_loops()
        self.check_launch()
        for candidate in self.arrangement.groups.candidates:
            self.require(
                candidate.name in self.placements, f"candidate %{candidate.name} has no placement"
            )
        for key, place in self.placements.items():
            self.check_placement(key, place)
        for key, place in self.placements.items():
            self.check_reads(key, place)
        for output in (*self.plan.scope.outputs, *self.arrangement.groups.pieces):
            self.check_output(output)

    def check_launch(self) -> None:
        plan, kernel = self.plan, self.plan.kernel
        barriers = self.arrangement.levels - 1
        self.require(
            kernel.global_barriers == max(barriers, 0),
            f"{kernel.global_barriers} global barriers in the kernel, {barriers + 1} levels in the arrangement",
        )
        self.require(
            plan.launch.block == kernel.block == self.arrangement.block,
            f"blocks of {plan.launch.block}, {self.arrangement.block} and {kernel.block} threads",
        )
        parts = self.arrangement.group_blocks
        block_groups = kernel.grid // parts if parts > 1 else 0
        self.require(
            kernel.block_groups == block_groups and kernel.grid % parts == 0,
            f"{kernel.grid} blocks in {kernel.block_groups} block groups of {parts}",
        )
        if kernel.cooperative:
            self.require(
                kernel.grid <= plan.launch.wave,
                f"{kernel.grid} blocks meet at a global barrier, {plan.launch.wave} fit the device",
            )
            self.require(
                0 < plan.launch.blocks_per_sm <= kernel.blocks_per_sm,
                f"launch bounds of {kernel.blocks_per_sm} blocks an SM do not promise the "
                f"{plan.launch.blocks_per_sm} that the wave counts on",
            )

    def check_loops(self) -> None:
        level = 0
        for number, loop in enumerate(self.arrangement.loops):
            self.require(loop.number == number, f"loop {loop.number} stands in place {number}")
            self.require(
                loop.level in (level, level + 1),
                f"loop {number} of level {loop.level} follows level {level}",
            )
            self.require(number > 0 or loop.level == 0, f"the first loop is of level {loop.level}")
            self.require(
                loop.mapping.block == self.arrangement.block,
                f"loop {number} has {loop.mapping.block} threads, the block {self.arrangement.block}",
            )
            level = loop.level

    def level_of(self, place: Placement) -> int:
        return self.arrangement.loops[place.loop].level

    def check_placement(self, key: str, place: Placement) -> None:
        exists = 0 <= place.loop < len(self.arrangement.loops)
        self.require(exists, f"%{key} is placed in loop {place.loop}, which does not exist")
        expected = (
            combine_name(place.root.name)
            if place.root.kind is RootKind.COMBINE
            else place.root.name
        )
        self.require(
            key == expected, f"the placement of %{expected} is stored under the name {key!r}"
        )
        if place.reduction_scope is ReductionScope.BLOCK_GROUP:
            block_group = self.arrangement.loops[place.loop].mapping.cooperative
            self.require(block_group, f"%{key} is split over a block group, and its loop has none")
            return
        if place.reduction_scope is ReductionScope.TASK:
            stored = place.stored or place.scheme is not Scheme.GLOBAL
            self.require(stored, f"%{key} is Global and not stored")
            return
        self.require(
            place.scheme is Scheme.GLOBAL, f"%{key} is split over tasks and {place.scheme.value}"
        )
        blocks = self.plan.kernel.grid
        self.require(
            place.reduction_scope is not ReductionScope.LOOP or place.partials <= blocks,
            f"%{key} has {place.partials} partials, one of each block, and there are {blocks} blocks",
        )
        combine = self.placements.get(combine_name(key))
        self.require(place.inline or combine is not None, f"nobody adds the partials of %{key}")
        if combine is not None:
            self.require(
                self.level_of(combine) > self.level_of(place),
                f"the partials of %{key} are added at level {self.level_of(combine)}, where they are computed",
            )

    def check_output(self, output: str) -> None:
        stored = stored_value(self.graph, output)
        wholes = {piece.whole for piece in self.arrangement.groups.pieces.values()}
        if stored not in self.inside or stored in wholes:
            return  # another view of an input, or of what lies there in pieces
        name, _ = reduce_behind(self.graph, stored)
        place = self.placements.get(combine_name(name)) or self.placements.get(name)
        self.require(place is not None and place.stored, f"output %{output} is not stored")

    # -- readers

    def reads_of(self, place: Placement) -> list[Read]:
        """Reads of other roots that the computation of this one starts from."""
        own = place.root.name if place.root.kind is RootKind.POINTWISE else ""
        found: list[Read] = []

        def stops(name: str) -> bool:
            if name == own:
                return False
            kept = reduce_behind(self.graph, name)[0] in self.placements
            return name not in self.inside or kept or is_embedded(self.graph, name)

        def visit(read: Read, stopped: bool) -> None:
            root, _ = reduce_behind(self.graph, read.operand)
            kept = read.operand in self.inside and root in self.placements
            if stopped and kept and not is_embedded(self.graph, read.operand):
                found.append(Read(root, read.index))

        walk_reads(self.graph, root_starts(self.graph, place.root), stops, visit)
        return found

    def check_reads(self, key: str, place: Placement) -> None:
        for read in self.reads_of(place):
            producer = self.placements[read.operand]
            if not producer.in_task and not producer.inline:
                producer = self.placements[combine_name(read.operand)]
            if not self.finds_on_chip(producer, place, read):
                self.check_global_read(producer, key, place, read)

    def finds_on_chip(self, producer: Placement, reader: Placement, read: Read) -> bool:
        if producer.loop != reader.loop or not producer.in_task:
            return False
        own = read.index == producer.root.result_index
        mapping = self.arrangement.loops[producer.loop].mapping
        if not own and (
            not producer.shared or why_not_block_local(producer.root, mapping, read.index)
        ):
            return False
        later = reader.phase > producer.phase
        same_register = (
            own and producer.root.kind is RootKind.POINTWISE and reader.phase == producer.phase
        )
        self.require(
            later or same_register,
            f"%{reader.root.name} of phase {reader.phase} reads %{producer.root.name}, "
            f"which phase {producer.phase} of the same task computes",
        )
        allowed = (Scheme.LOCAL, Scheme.REGIONAL, Scheme.GLOBAL)
        sentence = (
            f"%{producer.root.name} is {producer.scheme.value} and read by %{reader.root.name}"
        )
        self.require(producer.scheme in allowed, sentence)
        return True

    def check_global_read(
        self, producer: Placement, key: str, reader: Placement, read: Read
    ) -> None:
        name = read.operand
        self.require(
            producer.scheme is Scheme.GLOBAL,
            f"%{name} is {producer.scheme.value}, and %{key} reads it from another task",
        )
        self.require(
            producer.stored or producer.inline, f"%{name} is not stored, and %{key} reads it"
        )
        self.require(
            self.level_of(producer) < self.level_of(reader),
            f"%{key} of level {self.level_of(reader)} reads %{name}, which level {self.level_of(producer)} writes: "
            "no global barrier lies between",
        )
