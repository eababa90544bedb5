"""Scopes and plans -> which arrays are alive where a program needs the most memory, and which steps keep them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from astitch.graph.storage import storage_type
from astitch.search.peak_memory import MemorySteps, find_alive, list_steps, schedule
from astitch.search.plan import Plan
from astitch.stitch_scope import Scopes

if TYPE_CHECKING:
    from astitch.show.compilation import Compilation

LEAST_SHOWN = 1 << 20
"""Bytes of a peak that is worth a word."""

MOST_SHOWN = 12
MOST_WARNED = 5
"""Arrays that a warning names."""


def show_memory(
    scopes: Scopes, plans: Sequence[Plan], memory_limit: int | None = None, most: int = MOST_SHOWN
) -> list[str]:
    """The arrays alive at the peak by the model of search/peak_memory.py, the largest first.

    Arguments, and results over donated ones, are not among them.  memory_limit: of the program, which is told too.
    """
    program = list_steps(scopes, {p.scope.name: p.kernel.scratch_bytes for p in plans})
    use = schedule(program)
    told = []
    if memory_limit is not None:
        given = _count_arguments(scopes)
        told = [
            f"memory limit: {memory_limit / 1e6:.1f} MB; estimated {(given + use.peak) / 1e6:.1f} MB, "
            f"of which {given / 1e6:.1f} MB are arguments"
        ]
    if use.peak < LEAST_SHOWN:
        return told
    at = program.steps[use.order[use.peak_place]]
    lines = [
        *told,
        f"memory at its peak: {use.peak / 1e6:.1f} MB beside the arguments, in {at.name}",
    ]
    if at.scratch:
        lines.append(f"  {at.scratch / 1e6:.1f} MB of scratch")
    alive = [b for b in find_alive(program, use) if b not in program.over]
    alive.sort(key=lambda buffer: -program.sizes[buffer])
    lines += [f"  {_describe(scopes, program, buffer)}" for buffer in alive[:most]]
    if rest := alive[most:]:
        total = sum(program.sizes[buffer] for buffer in rest)
        lines.append(f"  {total / 1e6:.1f} MB in {len(rest)} others")
    return lines


def list_written(compilation: Compilation) -> list[tuple[str, int]]:
    """The ops whose results kernels keep alive at the peak by the model, and their bytes; the largest first."""
    scopes, plans = compilation.scopes, compilation.plans
    program = list_steps(scopes, {p.scope.name: p.kernel.scratch_bytes for p in plans})
    use = schedule(program)
    kernels = {plan.scope.name for plan in plans}
    written = {b for step in program.steps if step.name in kernels for b in step.writes}
    alive = (b for b in find_alive(program, use) if b in written and b not in program.over)
    found = ((name, program.sizes[name]) for name in alive if name in scopes.graph.nodes)
    return sorted(found, key=lambda pair: -pair[1])


def estimate_bytes(compilation: Compilation) -> int:
    """What a program is estimated to take: its arguments, results and temporary arrays."""
    scopes, plans = compilation.scopes, compilation.plans
    program = list_steps(scopes, {p.scope.name: p.kernel.scratch_bytes for p in plans})
    return _count_arguments(scopes) + schedule(program).peak


def _count_arguments(scopes: Scopes) -> int:
    return sum(scopes.graph[name].array.bytes for name in scopes.graph.parameters)


class MemoryLimitWarning(UserWarning):
    """A program takes more memory than its limit."""


def warn_of_estimate(name: str, compilation: Compilation, stacklevel: int = 2) -> None:
    """Says that a program is estimated to take more than its limit."""
    limit = compilation.memory_limit
    if limit is None:
        return
    estimated = estimate_bytes(compilation)
    if estimated > limit:
        warn_of_memory(name, limit, estimated, compilation, stacklevel + 1)


def warn_of_memory(
    name: str, limit: int, planned: int, compilation: Compilation | None, stacklevel: int = 2
) -> None:
    """Says that a program takes more than its limit, which arrays are alive then, and what else would help.

    name: the function's.  planned: what it takes.  compilation: None where another process planned it.
    """
    lines = [
        f"astitch: {name}: {planned / 1e6:.1f} MB are planned, where memory_limit asks for {limit / 1e6:.1f} MB"
    ]
    if compilation is not None:
        alive = show_memory(compilation.scopes, compilation.plans, None, MOST_WARNED)
        lines += [f"  {line}" for line in alive]
    lines.append(
        "  no more can be computed again: results of products, convolutions and reductions stay, and what loops hand "
        "on; jax.checkpoint of a layer, a smaller batch or more donated arguments would need less"
    )
    warnings.warn("\n".join(lines), MemoryLimitWarning, stacklevel=stacklevel + 1)


def _describe(scopes: Scopes, program: MemorySteps, buffer: str) -> str:
    writer = next(step.name for step in program.steps if buffer in step.writes)
    readers = [step.name for step in program.steps if buffer in step.reads]
    kept = f"read by {', '.join(readers)}" if readers else "a result"
    type_ = storage_type(scopes.graph, buffer)
    return f"{program.sizes[buffer] / 1e6:.1f} MB %{buffer} = {type_}: of {writer}, {kept}"
