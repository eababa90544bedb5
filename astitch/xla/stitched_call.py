"""A stitched function as a JAX primitive: on CUDA it lowers to the module that astitch makes of it.

Takes a function as JAX lowered it, hands on a call in JAX's own module.  Elsewhere than on CUDA the function is
computed as JAX traced it.
"""

from __future__ import annotations

import importlib.metadata
import re
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

from astitch.compile import pause_collector
from astitch.device.gpu import Gpu
from astitch.directives import read_directives
from astitch.events import note_compile
from astitch.faults import leave_whole, report_faults
from astitch.hlo.schema import name_of_module
from astitch.hlo.stablehlo import hlo_of, to_stablehlo
from astitch.hlo_import import import_hlo
from astitch.library.xla_fallback import default_gpu
from astitch.show.compilation import Compilation
from astitch.show.memory import warn_of_estimate
from astitch.show.share import is_whole, least_share, refuse_less, warn_of_little
from astitch.show.trace import trace_compilation
from astitch.system.forks import ForkLock, cached_property
from astitch.toolchain.driver_assembly import assemble_in_background
from astitch.xla.compile_module import compile_for_xla
from astitch.xla.library_tuning import tune_in_background
from astitch.xla.module_cache import LONGEST_WAIT_S, open_cache
from astitch.xla.module_cache import key_of as module_key
from astitch.xla.prepare_kernels import Code, choose_code

FIRST_JAX = (0, 11)
"""The first release of JAX whose XLA is known to launch PTX."""


def has_target() -> bool:
    """Does the installed JAX come with an XLA that launches PTX?  It is not imported for that."""
    try:
        version = importlib.metadata.version("jaxlib")
    except importlib.metadata.PackageNotFoundError:
        return False
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2]) >= FIRST_JAX


class Stitched:
    """A function traced for one signature, compiled by astitch once XLA wants its module.

    lowered: the function lowered by JAX for CUDA.  jaxpr: the same as JAX computes it elsewhere.  donated: which of its
    parameters.  gpu: the device that kernels are planned for.  tune, strict, stitch: as for compile_hlo.
    hlo: the serialized HloModuleProto.  graph: the same as astitch reads it; raises AstitchError for what it cannot.
    """

    def __init__(
        self,
        lowered: Any,
        jaxpr: Any,
        donated: Sequence[bool],
        gpu: Gpu,
        tune: bool | None,
        strict: bool | float,
        stitch: str = "",
    ) -> None:
        self.lowered, self.jaxpr, self.gpu = lowered, jaxpr, gpu
        self.donated = tuple(donated)
        self._tune, self._strict, self._stitch = tune, strict, stitch
        self._lock = ForkLock()
        self._made: tuple[Compilation, bytes] | None = None
        self._kept: bytes | None = None
        self.hlo = hlo_of(lowered)
        with pause_collector():
            self.graph = import_hlo(self.hlo, trusted=True)

    @cached_property
    def _code(self) -> Code:
        return choose_code(self.gpu.arch)

    @property
    def compilation(self) -> Compilation:
        """What astitch makes of it.  Raises AstitchError."""
        return self._make()[0]

    @property
    def module(self) -> bytes:
        """The program with its kernels, as StableHLO: what an earlier process made of it, where there is that.  Raises
        AstitchError."""
        key = None
        if not self._tune:
            key = module_key(
                self.hlo,
                self.graph,
                self.donated,
                self.gpu,
                strict=self._strict,
                code=self._code.name,
                stitch=self._stitch,
            )
        if key is None:
            return self._make()[1]
        with self._lock:
            if self._made is None and self._kept is None:
                self._kept = open_cache().load(key)
            found = self._made is None and self._kept is not None
        if found:
            name = name_of_module(self.hlo)
            note_compile(name, outcome="kept", kernels=0, seconds=0.0, engine="xla")
        if self._kept is None:
            with open_cache().turn(key, LONGEST_WAIT_S):
                kept = self._kept or open_cache().load(key)
                if kept is None:
                    compilation, kept = self._make()
                    # Another process may have no faults, and says so if it has.
                    if not compilation.faults:
                        open_cache().store(key, kept)
                self._kept = kept
        return self._kept

    def _make(self) -> tuple[Compilation, bytes]:
        with self._lock:
            if self._made is None:
                tune = bool(self._tune)
                start = time.perf_counter()
                name = name_of_module(self.hlo)
                # While plans are measured nothing else may run on the GPU.
                device = None if tune else default_gpu()
                with (
                    tune_in_background(device) as begin_to_tune,
                    assemble_in_background(device) as assemble,
                ):
                    compilation, module = compile_for_xla(
                        self.graph,
                        self.gpu,
                        self.donated,
                        tune=tune,
                        strict=is_whole(self._strict),
                        code=self._code,
                        on_scopes=begin_to_tune,
                        hand_out=assemble,
                        directives=read_directives(self._stitch, name).of(name),
                    )
                    trace_compilation(self.hlo, compilation)
                    refuse_less(compilation, least_share(self._strict))
                    self._made = compilation, to_stablehlo(module)
                    report_faults(
                        self.graph.name,
                        self.hlo,
                        self.gpu.name,
                        compilation.faults,
                        inside_xla=True,
                    )
                    warn_of_little(self.graph.name, compilation)
                    warn_of_estimate(self.graph.name, compilation)
                    note_compile(
                        name,
                        outcome="stitched" if compilation.program.kernels else "left",
                        kernels=len(compilation.program.kernels),
                        seconds=time.perf_counter() - start,
                        engine="xla",
                        share=compilation.share.headline,
                        **compilation.list_parts(),
                    )
        return self._made

    def leave(self, error: Exception) -> None:
        """Says that XLA computes all of it for this error; see leave_whole for what is raised."""
        leave_whole(
            self.graph.name,
            self.hlo,
            self.gpu.name,
            error,
            strict=self._strict,
            inside_xla=True,
        )

    def __repr__(self) -> str:
        return f"<stitched for {self.gpu.name}>"


def call_stitched(stitched: Stitched, arguments: Sequence[Any]) -> list[Any]:
    """The results, inside a JAX trace: on CUDA the program with its kernels, elsewhere the function itself."""
    return list(_primitive().bind(*arguments, stitched=stitched))


def find_stitched(jaxpr: Any) -> Stitched | None:
    """The call in a closed jaxpr that call_stitched left there."""
    for equation in jaxpr.eqns:
        if equation.primitive is _primitive():
            found: Stitched = equation.params["stitched"]
            return found
    return None


@cache
def _primitive() -> Any:
    """The primitive, made when JAX is there."""
    from jax.extend import core
    from jax.interpreters import mlir

    primitive: Any = core.Primitive("stitched_call")
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda *_, stitched: stitched.jaxpr.out_avals)

    primitive.def_impl(_compute)
    mlir.register_lowering(primitive, mlir.lower_fun(_compute, multiple_results=True))
    mlir.register_lowering(primitive, _lower_call, platform="cuda")
    return primitive


def _compute(*arguments: Any, stitched: Stitched) -> Any:
    """The function itself, as JAX traced it."""
    from jax.extend import core

    return core.jaxpr_as_fun(stitched.jaxpr)(*arguments)


def _lower_call(ctx: Any, *operands: Any, stitched: Stitched) -> Any:
    """A call of the program, which becomes a function of JAX's module."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir  # type: ignore[attr-defined]
    from jax._src.lib.mlir.dialects import func

    try:
        module = stitched.module
    except Exception as error:
        stitched.leave(error)
        inline: Any = mlir.lower_fun(_compute, multiple_results=True)
        return inline(ctx, *operands, stitched=stitched)
    into = ctx.module_context
    into.add_keepalive(stitched)  # and with it the host's functions that the module calls
    part = ir.Module.parse(module, into.context)
    name = f"stitched_{stitched.graph.name}"
    part.operation.walk(drop_tilings)
    main: Any = ir.SymbolTable(part.operation)["main"]
    types = main.type.results
    name = mlir.merge_mlir_modules(into.module, name, part, dst_symtab=into.symbol_table)
    return func.CallOp(types, ir.FlatSymbolRefAttr.get(name), operands).results


def drop_tilings(operation: Any) -> Any:
    """Tilings of layouts, all empty on a GPU: the form in which modules travel to XLA's plugin does not know them."""
    from jax._src.lib.mlir import ir  # type: ignore[attr-defined]

    if "result_tilings" in operation.attributes:
        del operation.attributes["result_tilings"]
    return ir.WalkResult.ADVANCE
