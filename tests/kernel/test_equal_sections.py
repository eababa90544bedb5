"""Kernels of many sections, written by hand: whatever is printed once, each block does its own tasks and no others.

No planner comes between, so that any ratio of tasks to blocks stands next to any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from astitch.emit_cuda import emit_cuda
from astitch.graph import index as ix
from astitch.graph.index import Linear, Symbol
from astitch.graph.ir import DType, Literal, NoAttrs
from astitch.graph.ops.access import Within
from astitch.kernel import fold
from astitch.kernel import kernel_ir as k
from astitch.kernel.check_kernel import check_kernel
from astitch.kernel.shared_memory import place_shared
from astitch.run.emulate import HostModule, compile_host
from astitch.run.host_engine import allocate_aligned

F32 = DType.F32
BLOCK = 32
SCALE = 3
KERNELS = 12
"""Kernels that are compiled together: the headers take longer than one of them."""


@dataclass(frozen=True)
class Equal:
    """Sections that are equal but for their arrays.

    tasks: of each section.  once: a block has one at most.  turns: how often they add their input to itself; so kinds
    differ.  held: a value stands before the loop.  partial: each block stores something behind its last task.  shared:
    a task goes through shared memory.
    """

    copies: int
    tasks: int
    once: bool
    turns: int
    held: bool
    partial: bool
    shared: bool


@dataclass(frozen=True)
class Drawn:
    """levels: between which the grid meets.  mixed: copies take turns.  aside: the first task of a section is for the
    block behind the last one's."""

    grid: int
    levels: tuple[tuple[Equal, ...], ...]
    mixed: bool
    aside: bool


@st.composite
def draw_equal(draw: st.DrawFn, grid: int, copies: int) -> Equal:
    """Of several mostly with partial results, of one mostly without, and mostly with one task a block."""
    tasks = draw(st.sampled_from([grid, grid - 1, 1, 2 * grid + 1]))
    once = tasks <= grid and draw(st.sampled_from([True, True, True, False]))
    partial = draw(st.sampled_from([True, True, False] if copies > 1 else [False, False, True]))
    turns = draw(st.integers(1, 3))
    return Equal(copies, tasks, once, turns, draw(st.booleans()), partial, draw(st.booleans()))


@st.composite
def draw_level(draw: st.DrawFn, grid: int) -> tuple[Equal, ...]:
    """Sections of which there is one, and others."""
    single = draw(st.lists(draw_equal(grid, 1), min_size=1, max_size=2))
    equal = draw(st.lists(draw_equal(grid, 3), min_size=1, max_size=2))
    return (*single, *equal)


@st.composite
def draw_kernels(draw: st.DrawFn) -> Drawn:
    grid = draw(st.sampled_from([3, 2, 5]))
    levels = draw(st.lists(draw_level(grid), min_size=1, max_size=2))
    return Drawn(grid, tuple(levels), draw(st.booleans()), draw(st.booleans()))


def form(**factors: int) -> Linear:
    """The sum of these symbols times these factors."""
    terms = (ix.scale(ix.of_symbol(Symbol(n, 1 << 20)), f) for n, f in factors.items())
    return ix.add(*terms)


def call(op: str, *operands: k.Expr) -> k.Expr:
    return k.Call(op, F32, operands, (F32,) * len(operands), NoAttrs())


@dataclass
class Builder:
    """Makes a kernel, and what it computes.  given, expected: its arguments and results by name."""

    drawn: Drawn
    given: dict[str, np.ndarray] = field(default_factory=dict)
    expected: dict[str, np.ndarray] = field(default_factory=dict)
    slots: list[k.Slot] = field(default_factory=list)
    sections: int = 0

    def build(self, name: str) -> k.Kernel:
        levels = self.drawn.levels
        if any(equal.held for level in levels for equal in level):
            self.given["scale_0"] = np.full(1, SCALE, np.float32)
        body = [*self.level(levels[0])]
        for level in levels[1:]:
            body += [k.Barrier("global", ""), *self.level(level)]
        parameters = [k.Parameter(n, F32, n, False, True) for n in self.given]
        parameters += [k.Parameter(n, F32, n, True, False) for n in self.expected]
        slots, size = place_shared(self.slots)
        launch = self.drawn.grid, BLOCK, size, 0, len(levels) - 1
        kernel = k.Kernel(
            name, tuple(parameters), (), (), slots, tuple(body), *launch, 0, False, False, 0, 0, ()
        )
        return check_kernel(kernel)

    def level(self, level: Sequence[Equal]) -> Iterator[k.Statement]:
        """Its sections, with the barriers that lowering puts between them."""
        copies = [(copy, n) for n, equal in enumerate(level) for copy in range(equal.copies)]
        if self.drawn.mixed:
            copies.sort()
        end, shared = 0, False
        for _, number in copies:
            equal = level[number]
            if equal.shared and shared:
                yield k.Barrier("block", "")
            shared |= equal.shared
            yield self.section(equal, end % self.drawn.grid if self.drawn.aside else 0)
            end += equal.tasks

    def section(self, equal: Equal, offset: int) -> k.Section:
        number = self.sections = self.sections + 1
        source, result, part = f"source_{number}", f"result_{number}", f"part_{number}"
        loaded, taken, scale = f"loaded_{number}", f"taken_{number}", f"scale_{number}"
        values = np.arange(equal.tasks * BLOCK, dtype=np.float32) + number
        self.given[source] = values
        position = form(task=BLOCK, tx=1)
        body: list[k.Statement] = [k.Load(loaded, F32, source, position)]
        value: k.Expr = k.Name(loaded)
        for _ in range(equal.turns):
            value = call("add", value, k.Name(loaded))
        values = values * (1 + equal.turns)
        if equal.held:
            value, values = call("multiply", value, k.Name(scale)), values * SCALE
        if equal.shared:
            slot = f"slot_{number}"
            self.slots.append(k.Slot(slot, F32, None, BLOCK, 4 * BLOCK, (number, 0), (number, 1)))
            body += [k.Store(slot, form(tx=1), F32, value), k.Barrier("block", "")]
            body.append(k.Load(taken, F32, slot, ix.offset(form(tx=-1), BLOCK - 1)))
            value, values = k.Name(taken), values.reshape(-1, BLOCK)[:, ::-1].ravel()
        self.expected[result] = values
        body.append(k.Store(result, position, F32, value))
        if equal.shared and not equal.once:
            body.append(k.Barrier("block", ""))
        before = (k.Load(scale, F32, "scale_0", ix.ZERO),) if equal.held else ()
        behind: tuple[k.Statement, ...] = ()
        if equal.partial:
            parts = min(equal.tasks, self.drawn.grid)
            self.expected[part] = np.full(parts * BLOCK, SCALE, np.float32)
            store = k.Store(
                part,
                form(first=BLOCK, tx=1),
                F32,
                k.Number(Literal.of(np.array(SCALE, np.float32))),
            )
            own = Within(form(first=1), 0, parts)
            behind = (k.If((own,), (store,)) if parts < self.drawn.grid else store,)
        loop = k.TaskLoop(equal.tasks, equal.once, tuple(body))
        return k.Section(number, "", offset, 1, 1, BLOCK, (*before, loop, *behind))


def launch(module: HostModule, kernel: k.Kernel, made: Builder) -> None:
    """Runs a kernel in check mode and compares what it stored."""
    arrays = {
        n: allocate_aligned(a.nbytes).view(np.float32)
        for n, a in (made.given | made.expected).items()
    }
    for name, array in arrays.items():
        array[:] = made.given.get(name, np.nan)
    words = {"barrier": np.zeros(kernel.barrier_words, np.uint32)} if kernel.cooperative else {}
    module.launch(
        kernel.name,
        kernel.grid,
        BLOCK,
        [*arrays.values(), *words.values()],
        shared_bytes=kernel.shared_bytes,
        cooperative=kernel.cooperative,
        uninitialised=range(len(made.given), len(arrays)),
        names=[*arrays, *words],
    )
    for name, array in made.expected.items():
        np.testing.assert_array_equal(arrays[name], array, name)


@settings(max_examples=12, deadline=None, phases=(Phase.reuse, Phase.generate))  # smaller: minutes
@given(st.lists(draw_kernels(), min_size=KERNELS, max_size=KERNELS))
def test_each_block_does_its_own_tasks(drawn: list[Drawn]) -> None:
    made = [Builder(one) for one in drawn]
    kernels = [builder.build(f"kernel_{n}") for n, builder in enumerate(made)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fold, "LONG_KERNEL", 0)
        patch.setattr(fold, "LEAST_SAVED", -(1 << 30))
        texts = [emit_cuda(kernel) for kernel in kernels]
    assert all("int section =" in text or "form ==" in text for text in texts)
    module = compile_host("\n".join(texts), check=True)
    for kernel, builder in zip(kernels, made, strict=True):
        launch(module, kernel, builder)
