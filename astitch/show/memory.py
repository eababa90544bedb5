"""Scopes and plans -> which arrays are alive where a program needs the most memory, and which steps keep them."""

from __future__ import annotations

from collections.abc import Sequence

from astitch.graph.storage import storage_type
from astitch.search.peak_memory import MemorySteps, find_alive, list_steps, schedule
from astitch.search.plan import Plan
from astitch.stitch_scope import Scopes

LEAST_SHOWN = 1 << 20
"""Bytes of a peak that is worth a word."""

MOST_SHOWN = 12


def show_memory(scopes: Scopes, plans: Sequence[Plan]) -> list[str]:
    """The arrays alive at the peak by the model of search/peak_memory.py, the largest first.

    Arguments, and results over donated ones, are not among them.
    """
    program = list_steps(scopes, {p.scope.name: p.kernel.scratch_bytes for p in plans})
    use = schedule(program)
    if use.peak < LEAST_SHOWN:
        return []
    at = program.steps[use.order[use.peak_place]]
    lines = [f"memory at its peak: {use.peak / 1e6:.1f} MB beside the arguments, in {at.name}"]
    if at.scratch:
        lines.append(f"  {at.scratch / 1e6:.1f} MB of scratch")
    alive = [b for b in find_alive(program, use) if b not in program.over]
    alive.sort(key=lambda buffer: -program.sizes[buffer])
    lines += [f"  {_describe(scopes, program, buffer)}" for buffer in alive[:MOST_SHOWN]]
    if rest := alive[MOST_SHOWN:]:
        total = sum(program.sizes[buffer] for buffer in rest)
        lines.append(f"  {total / 1e6:.1f} MB in {len(rest)} others")
    return lines


def _describe(scopes: Scopes, program: MemorySteps, buffer: str) -> str:
    writer = next(step.name for step in program.steps if buffer in step.writes)
    readers = [step.name for step in program.steps if buffer in step.reads]
    kept = f"read by {', '.join(readers)}" if readers else "a result"
    type_ = storage_type(scopes.graph, buffer)
    return f"{program.sizes[buffer] / 1e6:.1f} MB %{buffer} = {type_}: of {writer}, {kept}"
