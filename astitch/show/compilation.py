"""What a compilation produced, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from astitch.device.gpu import Gpu
from astitch.errors import KernelCompileError
from astitch.faults import Fault
from astitch.graph.ir import AttentionAttrs, Graph
from astitch.program.steps import Program
from astitch.search.plan import Plan
from astitch.search.split_scopes import Split
from astitch.show.explain import (
    compile_resources,
    explain,
    name_of,
    show_directives,
    show_faults,
    show_loops,
)
from astitch.show.share import Share, measure_share
from astitch.stitch_scope import Scopes
from astitch.system.forks import cached_property
from astitch.toolchain.nvrtc import Resources


@dataclass(frozen=True)
class Compilation:
    """What a compilation produced.

    graph: simplified, expanded and reassociated.  scopes: what has a kernel each; where stitch ops were split, their
    graph has copies of some broadcasts.  seconds: time of each stage.  splits: kernels that were looked at twice.
    loops: which loops are one kernel, and why others are not.
    left: stitch ops that XLA computes in place of a kernel, by name, each with the reason.
    refused: kernels that were planned and are left to XLA, likewise.  loop_us: of each loop that is one kernel, as
    projected.  spared_us: how many fewer these are than as XLA's loops.
    faults: the errors inside astitch, see faults.py.  directives: what came of each, a line for each.
    memory_limit: the bytes that the program is to take at most; None: nobody says.
    doubled: which loops of XLA's take several turns in one.
    plain_bytes: what XLA alone is estimated to take, at the least: arguments, results and temporaries.
    stored_bytes: the same, if its products compute nothing of what they read; 0: it is not known.
    bodies: the regions of loops and conditionals that were compiled as well, where that was asked for.
    """

    gpu: Gpu
    graph: Graph
    scopes: Scopes
    plans: tuple[Plan, ...]
    program: Program
    seconds: dict[str, float]
    splits: tuple[Split, ...] = ()
    bodies: tuple[Body, ...] = ()
    loops: tuple[str, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    loop_us: tuple[float, ...] = ()
    spared_us: float = 0.0
    directives: tuple[str, ...] = ()
    memory_limit: int | None = None
    doubled: tuple[str, ...] = ()
    plain_bytes: int = 0
    stored_bytes: int = 0

    @cached_property
    def share(self) -> Share:
        """How much of the memory-intensive time is stitched, and what is left, as projected."""
        return measure_share(self)

    def list_parts(self) -> dict[str, list[Any]]:
        """Its kernels, each with an op that it computes, and what else can be left to XLA: for events."""
        ops = [[plan.scope.name, name_of(plan)] for plan in self.plans]
        others = []
        if any(isinstance(node.attrs, AttentionAttrs) for node in self.scopes.graph):
            others.append("attention")
        if self.loop_us or self.doubled:
            others.append("loops")
        for body in self.bodies:
            inner = body.compilation.list_parts()
            ops += inner["stitch_ops"]
            others += [other for other in inner["others"] if other not in others]
        return {"stitch_ops": ops, "others": others}

    def explain(self) -> str:
        """How much is stitched; kernels, schemes, barriers and everything that was refused, for people; the bodies of
        loops last."""
        return "\n".join([*self.share.lines, "", self.explain_parts()])

    def explain_parts(self) -> str:
        """The same without how much is stitched."""
        whole = explain(
            self.scopes,
            self.plans,
            self.program,
            self.gpu,
            self.resources(),
            self.splits,
            self.memory_limit,
        )
        notes = (*self.loops, *self.doubled)
        loops = ["\n".join(["loops:", *show_loops(notes)])] if notes else []
        parts = [whole, *loops, *show_directives(self.directives), *show_faults(self.faults)]
        return "\n\n".join([*parts, *(body.explain() for body in self.bodies)])

    def resources(self) -> dict[str, Resources] | None:
        """Registers and spills of each kernel by the CUDA compiler; None where no NVRTC is installed."""
        try:
            return compile_resources(self.program, self.gpu)
        except KernelCompileError:
            return None


@dataclass(frozen=True)
class Body:
    """A region of a loop or conditional that was compiled by itself (see stitch_regions.py).

    owner, op: the node that runs it.  region: as it was handed to XLA.  runs: how often in one run of the program
    around it, by the nodes that run it; those that are one kernel do not.
    """

    owner: str
    op: str
    region: Graph
    compilation: Compilation
    runs: Mapping[str, float] = field(default_factory=dict)

    def explain(self) -> str:
        """All of the region's compilation, under the node that runs it."""
        return f"in %{self.owner} ({self.op}):\n{self.compilation.explain_parts()}"
