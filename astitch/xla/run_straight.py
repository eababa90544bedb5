"""An HloModuleProto -> which of its calls run right in front of what reads them, by a hint for XLA's scheduler.

The scheduler goes from the end of a program to its start, and takes what is ready.  It reckons a microsecond from each
instruction to the next, even to a part of a tuple.  So a call with several results is ready a microsecond late.
In the meantime the scheduler puts other work behind it: a product that should have run beside a collective.
Some calls can run beside no collective: each waits for the call, or the call for it.  They are taken at once, and lose
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from astitch.graph.collectives import COLLECTIVES, find_awaited, find_awaiting, find_combined
from astitch.graph.ir import Graph
from astitch.graph.ops.other import HINT, LATENCY
from astitch.hlo.schema import decode
from astitch.hlo_import import import_from_compiler

AT_ONCE = b"force_early"
"""The hint: early on the scheduler's way from the end.  It reads it of custom calls."""

CALLS = (b"custom-call", b"dot")
"""What is a custom call where XLA schedules: kernels, and products that a library computes."""


def run_straight(module: Any) -> None:
    """Adds the hints to what tells its time.  module: an HloModuleProto; without collectives nothing changes."""
    opcodes = {decode(i.opcode) for c in module.computations for i in c.instructions}
    if not opcodes & COLLECTIVES:
        return
    straight = set(_find_straight(import_from_compiler(module)))
    for computation in module.computations:
        for instruction in computation.instructions:
            told = instruction.frontend_attributes.map
            if (
                instruction.opcode in CALLS
                and decode(instruction.name) in straight
                and any(entry.key == LATENCY for entry in told)
            ):
                told.add(key=HINT, value=AT_ONCE)


def _find_straight(graph: Graph) -> Iterator[str]:
    """The ops of a graph and of its regions that come behind some collectives there, and in front of all others."""
    for node in graph:
        for region in node.regions:
            yield from _find_straight(region)
    if count := len(find_combined(graph)):
        before, behind = find_awaiting(graph), find_awaited(graph)
        for name, mask in before.items():
            if mask and behind[name] and mask | behind[name] == (1 << count) - 1:
                yield name
