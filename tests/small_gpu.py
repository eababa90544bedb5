"""An H100 of few SMs, for tests: blocks then have many tasks, and block groups meet, on data small enough to emulate.

run_on(few_sms(4), jax.nn.softmax, x, check=True)   # a list of arrays, from the emulated kernels
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from astitch.device.gpu import Gpu, preset
from astitch.device.schedule import Schedule
from astitch.faults import FaultLog
from astitch.graph.ir import Graph
from astitch.hlo_import import import_hlo
from astitch.kernel import kernel_ir as k
from astitch.program.steps import Program
from astitch.rewrite.expand import expand
from astitch.rewrite.reassociate import reassociate
from astitch.rewrite.simplify import simplify
from astitch.run.emulate import HostModule, Order
from astitch.run.host_engine import HostEngine
from astitch.scope.remote_stitch import stitch_remotely
from astitch.search.build_program import build_program
from astitch.search.check_plan import check_plan
from astitch.search.plan import Plan, plan_scope
from astitch.search.plan_scopes import check_plans, plan_scopes
from tests.hlo_runner import lower
from tests.scopes import find_scopes


def few_sms(sms: int, gpu: str = "h100") -> Gpu:
    return dataclasses.replace(preset(gpu), sms=sms, name=f"{gpu} of {sms} SMs")


Found = TypeVar("Found", bound=k.Statement)


def find_statements(body: Iterable[k.Statement], kind: type[Found]) -> list[Found]:
    """The statements of a kind, also those inside of others."""
    found = [s for s in body if isinstance(s, kind)]
    for inside in (b for statement in body for b in statement.bodies):
        found += find_statements(inside, kind)
    return found


@dataclasses.dataclass(frozen=True)
class Planned:
    """A function's plans for one GPU, and the program that runs their kernels."""

    plans: tuple[Plan, ...]
    program: Program

    @property
    def plan(self) -> Plan:
        (plan,) = self.plans
        return plan

    @property
    def text(self) -> str:
        return "\n".join(kernel.source for kernel in self.program.kernels)

    @property
    def block_groups(self) -> tuple[int, ...]:
        """Blocks in a block group, for each task loop whose blocks meet so."""
        loops = [loop.mapping for plan in self.plans for loop in plan.arrangement.loops]
        return tuple(m.parts for m in loops if m.cooperative)

    @property
    def notes(self) -> str:
        return "; ".join(note for plan in self.plans for note in plan.notes)

    def engine(
        self, *, check: bool = False, order: Order = Order.FORWARD, seed: int = 0
    ) -> HostEngine:
        """check: see HostEngine.  order, seed: in which order ready threads run."""
        engine = HostEngine(self.program, check=check)
        if order is not Order.FORWARD:
            modules = engine._modules
            engine._modules = {s: _Ordered(m, order, seed) for s, m in modules.items()}  # type: ignore[misc]
        return engine

    def run(self, *arguments: Any, check: bool = False) -> list[np.ndarray]:
        return self.engine(check=check).run([np.asarray(a) for a in arguments])


@dataclasses.dataclass(frozen=True)
class _Ordered:
    """A HostModule whose threads run in another order."""

    module: HostModule
    order: Order
    seed: int

    def launch(self, name: str, *shape: Any, **options: Any) -> None:
        self.module.launch(name, *shape, order=self.order, seed=self.seed, **options)


def stitched_graph(fn: Callable[..., Any], *arguments: Any) -> Graph:
    """What the planner sees of a function."""
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arguments]
    return reassociate(expand(simplify(import_hlo(lower(fn, *specs, keep_unused=True)))))


def plan_for(
    gpu: Gpu, fn: Callable[..., Any], *arguments: Any, schedule: Schedule | None = None
) -> Planned:
    """arguments: arrays or jax.ShapeDtypeStruct.  schedule: None: as compile_hlo plans it, else this one, unsplit."""
    scopes = stitch_remotely(find_scopes(stitched_graph(fn, *arguments)))
    plans: Sequence[Plan]
    if schedule is None:
        planned = check_plans(plan_scopes(scopes, gpu), FaultLog())
        scopes, plans = planned.scopes, planned.plans
    else:
        found = [plan_scope(scopes.graph, scope, gpu, schedule) for scope in scopes.scopes]
        plans = [check_plan(plan) for plan in found if plan is not None]
    return Planned(tuple(plans), build_program(scopes.graph, scopes, plans))


def by_jax(fn: Callable[..., Any], *arguments: Any) -> list[np.ndarray]:
    """What JAX computes on the CPU."""
    with jax.default_device(jax.devices("cpu")[0]):
        return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(fn)(*arguments))]


def assert_close(
    got: Sequence[np.ndarray],
    want: Sequence[np.ndarray],
    tolerance: float | Mapping[Any, float] = 1e-5,
) -> None:
    """Equal NaNs and infinities; elsewhere the error is below `tolerance` of the element, or of the mean size of its
    array where that is larger."""
    assert len(got) == len(want)
    for number, (g, w) in enumerate(zip(got, want, strict=True)):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        limit = tolerance if isinstance(tolerance, float) else tolerance[w.dtype]
        a, b = g.astype(np.float64), w.astype(np.float64)
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b), f"result {number}: NaNs")
        infinite = np.isinf(a) | np.isinf(b)
        np.testing.assert_array_equal(a[infinite], b[infinite], f"result {number}: infinities")
        finite = np.isfinite(b)
        size = np.abs(b[finite])
        error = np.abs(a[finite] - b[finite])
        bound = limit * np.maximum(size, size.mean() if size.size else 0.0)
        worst = np.max(error - bound, initial=0.0)
        assert worst <= 0, f"result {number}: errors up to {error.max():.2e}, {worst:.2e} too large"
