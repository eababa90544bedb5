"""What a compilation produced, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from astitch.device.gpu import Gpu
from astitch.errors import KernelCompileError
from astitch.faults import Fault
from astitch.graph.ir import Graph
from astitch.program.steps import Program
from astitch.search.plan import Plan
from astitch.search.split_scopes import Split
from astitch.show.explain import compile_resources, explain, show_faults
from astitch.stitch_scope import Scopes
from astitch.toolchain.nvrtc import Resources


@dataclass(frozen=True)
class Compilation:
    """What a compilation produced.

    graph: simplified, expanded and reassociated.  scopes: what has a kernel each; where stitch ops were split, their
    graph has copies of some broadcasts.  seconds: time of each stage.  splits: kernels that were looked at twice.
    loops: which loops are one kernel, and why others are not.
    left: stitch ops that XLA computes in place of a kernel, by name, each with the reason.
    faults: the errors inside astitch, see faults.py.
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

    def explain(self) -> str:
        """Kernels, schemes, barriers and everything that was refused, for people; the bodies of loops last."""
        whole = explain(
            self.scopes, self.plans, self.program, self.gpu, self.resources(), self.splits
        )
        loops = ["\n".join(["loops:", *(f"  {note}" for note in self.loops)])] if self.loops else []
        parts = [whole, *loops, *show_faults(self.faults)]
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

    owner, op: the node that runs it.  region: as it was handed to XLA.
    """

    owner: str
    op: str
    region: Graph
    compilation: Compilation

    def explain(self) -> str:
        """All of the region's compilation, under the node that runs it."""
        return f"in %{self.owner} ({self.op}):\n{self.compilation.explain()}"
