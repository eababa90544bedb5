"""How long kernels with a thread for each element take for what a loop of one turn computes row by row."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from astitch.device.gpu import Gpu
from astitch.graph.ir import DotAttrs, Graph, Node
from astitch.graph.ops import OPS, Cost
from astitch.loops.analysis import Carried, Loop
from astitch.loops.axes import Axes
from astitch.loops.cuts import CLOCK_SHARE, START_US, once_us
from astitch.loops.schedule import HEAVY_CYCLES, LIGHT_CYCLES, Part, Resolver, Steps


def project_elements(
    whole: Loop, loop: Loop, shares: Sequence[tuple[Axes, Steps, tuple[int, ...]]], gpu: Gpu
) -> float:
    """Microseconds.  whole: the loop before its rows were spelled out; loop: after.

    A warp has elements of each number of its rows, so it computes what all of them need, each for itself.  Or pieces
    are stored before they are put together: then each is computed once.
    """
    body = whole.body
    joined = _find_joined(body)
    gb_us = gpu.bandwidth_gbs * 1e3
    products = sum(
        gpu.launch_us + sum(body[name].array.bytes for name in (node.name, *node.operands)) / gb_us
        for node in body
        if isinstance(node.attrs, DotAttrs)
    )
    pieces = sum(body[name].array.bytes for name in joined if _is_joined(body[name]))
    us, stored_us = products, products + 2 * pieces / gb_us + gpu.launch_us
    for axes, steps, used in shares:
        apart = 0.0
        for state in used:
            before = whole.roles[state]
            costs = _list_costs(loop, axes, state)
            differ = isinstance(before, Carried) and before.value in joined
            apart += sum(costs) * (len(costs) if differ else 1)
        warps = -(-axes.rows * axes.units // 32) / gpu.sms / (gpu.clock_ghz * CLOCK_SHARE * 1e3)
        moved = once_us(loop, steps, used, gpu)
        us += max(moved, apart * warps)
        stored_us += max(moved, steps.cycles * warps)
    return gpu.launch_us + START_US + min(us, stored_us)


def _find_joined(body: Graph) -> Collection[str]:
    """Values whose numbers have formulas of their own."""
    joined: set[str] = set()
    for node in body:
        if _is_joined(node) or not joined.isdisjoint(node.operands):
            joined.add(node.name)
    return joined


def _is_joined(node: Node) -> bool:
    return node.op in ("concatenate", "pad")


def _list_costs(loop: Loop, axes: Axes, state: int) -> list[float]:
    """Cycles of an SM for a warp to compute each number of a part of the final state by itself."""
    role = loop.roles[state]
    assert isinstance(role, Carried)
    resolver = Resolver(loop, axes)
    results = resolver.parts_of(role.value)
    bits: dict[Part, int] = {}
    heavy = 0
    needs: dict[Part, int] = {}
    pending = [*results]
    while pending:
        part = pending[-1]
        node = loop.body[part.name]
        operands = (
            []
            if node.is_parameter
            else [resolver.resolve(o, part.number, part.small) for o in node.operands]
        )
        missing = [o for o in operands if o not in needs]
        if missing and part not in needs:
            pending += missing
            continue
        pending.pop()
        if part in needs:
            continue
        own = 0
        if operands:
            own = bits.setdefault(part, 1 << len(bits))
            heavy |= own if OPS[node.op].cost is Cost.HEAVY else 0
        for operand in operands:
            own |= needs[operand]
        needs[part] = own
    return [
        LIGHT_CYCLES * needs[part].bit_count() + HEAVY_CYCLES * (needs[part] & heavy).bit_count()
        for part in results
    ]
