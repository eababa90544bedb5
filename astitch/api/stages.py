"""The stages of one signature, by the names of jax.stages: lowered to HLO, compiled, called.

Takes what JAX traced, hands on stages that show what astitch makes of it.  A signature runs inside XLA (ForXla),
through an engine of ours, or is XLA's alone (ByXla).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from astitch.api.arguments import array_type, is_key, is_traced
from astitch.api.engines import Engine, find_jax_device, make_engine
from astitch.api.jax_options import check_compiler_options
from astitch.api.jax_settings import (
    check_numbers,
    is_guarded,
    logs_compiles,
    refuse_execution,
    transfer,
)
from astitch.errors import (
    ArgumentMismatch,
    IllegalProduct,
    KernelCompileError,
    LaunchRefused,
    UnsupportedOp,
    first_line,
)
from astitch.events import note_compile
from astitch.faults import FaultLog, leave_whole, report_faults
from astitch.hlo.schema import name_of_module
from astitch.hlo.stablehlo import hlo_of
from astitch.system.forks import cached_property

if TYPE_CHECKING:  # importing astitch must stay cheap
    from astitch.device.gpu import Gpu
    from astitch.graph.ir import Graph
    from astitch.library.xla_fallback import CompilerOptions
    from astitch.program.steps import Program
    from astitch.show.compilation import Compilation
    from astitch.xla.stitched_call import Stitched

log = logging.getLogger(__name__)


class Stage:
    """What JAX says of the arguments and results of one signature, by the names of jax.stages."""

    @property
    def _of_jax(self) -> Any:
        """JAX's own stage."""
        raise NotImplementedError

    @property
    def in_tree(self) -> Any:
        """The structure of the arguments, (positional, named), without static ones."""
        return self._of_jax.in_tree

    @property
    def in_avals(self) -> Any:
        """The abstract values of the arguments, in their structure."""
        return self._of_jax.in_avals

    @property
    def out_tree(self) -> Any:
        """The structure of the result."""
        return self._of_jax.out_tree

    @property
    def args_info(self) -> Any:
        """The types of the arguments, and which are donated, in their structure."""
        return self._of_jax.args_info

    @property
    def out_info(self) -> Any:
        """The types of the results, in their structure."""
        return self._of_jax.out_info

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """Which of the flat arguments are donated."""
        numbers: tuple[int, ...] = self._of_jax.donate_argnums
        return numbers


class LoweredStage(Stage):
    """What JAX says of a module before it is compiled."""

    @property
    def _module(self) -> Any:
        """JAX's stage that holds the module."""
        raise NotImplementedError

    def as_text(self, dialect: str | None = None, *, debug_info: bool = False) -> str:
        """The module as text in a dialect, "stablehlo" where none is named, or "hlo".

        debug_info: with source locations.  Raises ValueError for another dialect.
        """
        return str(self._module.as_text(dialect, debug_info=debug_info))

    def compiler_ir(self, dialect: str | None = None) -> Any:
        """The module in a dialect of JAX's: "stablehlo" where none is named, or "hlo"."""
        return self._module.compiler_ir(dialect)

    def cost_analysis(self) -> Any:
        """XLA's estimate of the module as it stands, before anything is fused."""
        return self._module.cost_analysis()


class CompiledStage(Stage):
    """What JAX says of an executable of XLA's; it knows nothing of what is inside stitched kernels."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result, its leaves JAX arrays.  Raises the TypeError that JAX raises for other arguments."""
        return self._of_jax(*args, **kwargs)

    def as_text(self) -> str:
        """XLA's module after its own passes, as HLO text."""
        return str(self._of_jax.as_text())

    def cost_analysis(self) -> Any:
        """XLA's estimate of operations and bytes."""
        return self._of_jax.cost_analysis()

    def memory_analysis(self) -> Any:
        """XLA's buffers: arguments, outputs, temporaries and code, in bytes."""
        return self._of_jax.memory_analysis()

    def runtime_executable(self) -> Any:
        """XLA's executable."""
        return self._of_jax.runtime_executable()

    @property
    def input_shardings(self) -> Any:
        """Where each argument is to lie, in their structure; None for what is not used."""
        return self._of_jax.input_shardings

    @property
    def output_shardings(self) -> Any:
        """Where each result lies, in their structure."""
        return self._of_jax.output_shardings

    @property
    def input_formats(self) -> Any:
        """Layout and sharding of each argument, in their structure."""
        return self._of_jax.input_formats

    @property
    def output_formats(self) -> Any:
        """Layout and sharding of each result, in their structure."""
        return self._of_jax.output_formats


# ---- by XLA alone ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ByXla:
    """A function that XLA computes as a whole.  name: the function's.  reason: why astitch has no program of it."""

    name: str
    reason: str

    def explain(self) -> str:
        """Why there are no kernels."""
        return f"XLA computes all of {self.name}: {self.reason}"

    @property
    def compilation(self) -> Compilation:
        """There is none.  Raises UnsupportedOp."""
        raise UnsupportedOp(
            f"astitch.jit of {self.name}: XLA computes all of it, there is no program to show\n"
            f"  call it, or take out what keeps it from being one: {self.reason}"
        )

    @property
    def program(self) -> Program:
        """There is none.  Raises UnsupportedOp."""
        return self.compilation.program


@dataclass(frozen=True)
class LoweredByXla(ByXla, LoweredStage):
    """A function lowered for one signature, by JAX for XLA."""

    jax_lowered: Any = field(repr=False)

    @property
    def _of_jax(self) -> Any:
        return self.jax_lowered

    _module = _of_jax

    def compile(
        self,
        compiler_options: CompilerOptions | None = None,
        *,
        device_assignment: tuple[Any, ...] | None = None,
    ) -> CompiledByXla:
        """Compile with XLA, as jax.stages.Lowered.compile."""
        compiled = self.jax_lowered.compile(compiler_options, device_assignment=device_assignment)
        return CompiledByXla(self.name, self.reason, compiled)


@dataclass(frozen=True)
class CompiledByXla(ByXla, CompiledStage):
    """A signature that XLA compiled.  jax_compiled: JAX's own, which runs it."""

    jax_compiled: Any = field(repr=False)

    @property
    def _of_jax(self) -> Any:
        return self.jax_compiled


# ---- inside XLA ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoweredForXla(LoweredStage):
    """A function traced for one signature, with what it becomes inside XLA."""

    jax_traced: Any = field(repr=False)
    stitched: Stitched
    engine: str = "xla"

    @property
    def _of_jax(self) -> Any:
        return self.jax_traced

    @property
    def _module(self) -> Any:
        return self.stitched.lowered

    @property
    def in_avals(self) -> Any:
        """The abstract values of the arguments, in their structure."""
        return self.jax_traced.in_tree.unflatten(self.jax_traced.jaxpr.in_avals)

    @property
    def hlo(self) -> bytes:
        """The serialized HloModuleProto that astitch compiles."""
        return self.stitched.hlo

    @property
    def graph(self) -> Graph:
        """The module as astitch reads it."""
        return self.stitched.graph

    def compile(
        self,
        compiler_options: CompilerOptions | None = None,
        *,
        device_assignment: tuple[Any, ...] | None = None,
    ) -> CompiledForXla:
        """Compile with astitch, then with XLA.  Raises AstitchError for what astitch cannot compile.

        compiler_options: settings of XLA's compiler, beside those of jit.  device_assignment: as in jax.stages.
        """
        compiled = self.jax_traced.lower().compile(
            compiler_options, device_assignment=device_assignment
        )
        return CompiledForXla(self.stitched.compilation, compiled)


@dataclass(frozen=True)
class CompiledForXla(CompiledStage):
    """A compiled signature: call it with arguments of the types that it was lowered for, without static ones.

    jax_compiled: JAX's own, which runs it and says what XLA made of it (as_text, cost_analysis, memory_analysis).
    """

    compilation: Compilation = field(repr=False)
    jax_compiled: Any = field(repr=False)

    @property
    def _of_jax(self) -> Any:
        return self.jax_compiled

    @property
    def program(self) -> Program:
        """The steps, kernels and buffers."""
        return self.compilation.program

    def explain(self) -> str:
        """The kernels, their schemes, and what was not stitched and why."""
        return self.compilation.explain()


# ---- through an engine of ours ---------------------------------------------------------------------------------


def can_measure(engine: str) -> bool:
    """Are there times to measure?  In the emulation there are none."""
    return engine == "executor"


@dataclass(frozen=True)
class Lowered(LoweredStage):
    """A function lowered to HLO for one signature.  engine: "executor" or "host", what it was lowered for.
    tune, strict, stitch, compiler_options: see jit.  place: where a compiled call commits its results, see
    find_place."""

    jax_traced: Any = field(repr=False)
    jax_lowered: Any = field(repr=False)
    engine: str
    tune: bool | None = None
    strict: bool | float = False
    compiler_options: CompilerOptions | None = None
    place: Any | None = None
    stitch: str = ""

    @property
    def _of_jax(self) -> Any:
        return self.jax_lowered

    _module = _of_jax

    @cached_property
    def hlo(self) -> bytes:
        """The serialized HloModuleProto."""
        return hlo_of(self.jax_lowered)

    @cached_property
    def graph(self) -> Graph:
        """The module as astitch reads it."""
        from astitch.hlo_import import import_hlo

        return import_hlo(self.hlo, trusted=True)

    def compile(
        self,
        compiler_options: CompilerOptions | None = None,
        *,
        device_assignment: tuple[Any, ...] | None = None,
    ) -> Compiled | CompiledByXla:
        """Compile for the engine; what astitch cannot compile is XLA's, with a warning.

        compiler_options: settings of XLA's compiler for the parts that it computes, beside those of jit.
        device_assignment: the engine's device, or None.  Raises AstitchError where strict asks for it or the user can
        mend it, ValueError for another device.
        """
        if device_assignment not in (None, (self.jax_device,)):
            raise ValueError(
                f"device_assignment {device_assignment} was given; the engine {self.engine} runs on {self.jax_device}"
            )
        wished = {**(self.compiler_options or {}), **(compiler_options or {})}
        check_compiler_options(compiler_options)
        try:
            return self.compile_stitched(wished, lowered=self)
        except Exception as error:
            if self.strict:
                raise
            name = self.jax_traced.fun_name
            leave_whole(name, self.hlo, self.gpu.name, error)
            compiled = self.jax_traced.lower().compile(wished)
            return CompiledByXla(name, first_line(error), compiled)

    def compile_stitched(
        self, compiler_options: CompilerOptions, lowered: Lowered | None = None
    ) -> Compiled:
        """Compile for the engine.  Raises AstitchError for what astitch cannot compile.

        lowered: this stage, where the compiled one is to keep it and with it the module.
        """
        from astitch.compile import compile_hlo
        from astitch.search.plan_scopes import render_kernel
        from astitch.show.memory import warn_of_estimate
        from astitch.show.share import is_whole, least_share, refuse_less, warn_of_little
        from astitch.show.trace import trace_compilation

        start = time.perf_counter()
        tune = self.tune if can_measure(self.engine) else False
        compilation = compile_hlo(
            self.hlo,
            gpu=self.gpu,
            tune=tune,
            strict=is_whole(self.strict),
            render=render_kernel,
            trusted=True,
            stitch=self.stitch,
        )
        refuse_less(compilation, least_share(self.strict))
        compilation, engine = self._start(compilation, compiler_options)
        trace_compilation(self.hlo, compilation)
        if self.engine != "host":  # the emulation is for finding faults
            warn_of_little(self.jax_traced.fun_name, compilation)
        warn_of_estimate(self.jax_traced.fun_name, compilation)
        note_compile(
            name_of_module(self.hlo),
            outcome="stitched" if compilation.program.kernels else "left",
            kernels=len(compilation.program.kernels),
            seconds=time.perf_counter() - start,
            engine=self.engine,
            share=compilation.share.headline,
            **compilation.list_parts(),
        )
        log.log(
            logging.WARNING if logs_compiles() else logging.DEBUG,
            "Finished astitch compilation of jit(%s) for the engine %s in %.9f sec",
            self.jax_traced.fun_name,
            self.engine,
            time.perf_counter() - start,
        )
        return Compiled(compilation, self, engine, self.jax_device, lowered)

    def with_tuning(self) -> Lowered:
        """The same, to be tuned, also by another thread: what this one's settings decide stays."""
        tuned = replace(self, tune=True)
        tuned.__dict__.update(hlo=self.hlo, gpu=self.gpu, _device=self._device)
        return tuned

    def on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Its device as CUDA's current one, where plans are measured."""
        if self._device is None:
            return contextlib.nullcontext()
        from astitch.run.executor import import_cupy

        device: contextlib.AbstractContextManager[Any] = import_cupy().cuda.Device(self._device)
        return device

    @cached_property
    def gpu(self) -> Gpu:
        """The device that it is planned for, on which it will run."""
        from astitch.device.gpu import from_device, preset

        return preset("host") if self._device is None else from_device(self._device)

    @cached_property
    def _device(self) -> int | None:
        """The number of the CUDA device; None for the emulation."""
        from astitch.run.executor import current_gpu

        return current_gpu() if self.engine == "executor" else None

    @property
    def jax_device(self) -> Any | None:
        """The device by JAX's name; None where JAX does not have it."""
        return find_jax_device(self._device)

    def _start(
        self, compilation: Compilation, compiler_options: CompilerOptions
    ) -> tuple[Compilation, Engine]:
        """The engine of a compilation, and the compilation that it runs.  Kernels that their compiler or the device
        refuses are left to XLA, with a warning."""
        from astitch.compile import leave_kernels

        faults = FaultLog(self.strict is True or None)
        left: dict[str, str] = {}
        while True:
            try:
                engine = make_engine(compilation.program, self._device, compiler_options)
                break
            except (KernelCompileError, LaunchRefused) as error:
                cost = "its ops are left to XLA"
                subject = f"kernel {error.kernel}"
                fault = faults.note(error, stage="start", subject=subject, cost=cost)
                if not error.kernel or error.kernel in left:
                    raise
                left[error.kernel] = f"an error inside astitch: {fault.error}"
                compilation = leave_kernels(compilation, left)
        report_faults(compilation.program.name, self.hlo, self.gpu.name, faults.found)
        return replace(compilation, faults=(*compilation.faults, *faults.found)), engine


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Bytes of a program, by the names of XLA's CompiledMemoryStats.  Constants count as generated code."""

    generated_code_size_in_bytes: int
    argument_size_in_bytes: int
    output_size_in_bytes: int
    temp_size_in_bytes: int
    alias_size_in_bytes: int = 0
    host_generated_code_size_in_bytes: int = 0
    host_argument_size_in_bytes: int = 0
    host_output_size_in_bytes: int = 0
    host_alias_size_in_bytes: int = 0
    host_temp_size_in_bytes: int = 0


class Compiled:
    """A compiled signature: call it with arguments of the types that it was lowered for, without static ones.

    in_tree, in_avals, out_tree, args_info, donate_argnums: see Lowered.  lowered: what it was compiled from, if kept.
    """

    def __init__(
        self,
        compilation: Compilation,
        source: Lowered,
        engine: Engine,
        device: Any | None,
        lowered: Lowered | None = None,
    ) -> None:
        import jax

        self.compilation = compilation
        # Not the source itself, which holds the module.
        self.in_tree = source.in_tree
        self.in_avals = source.in_avals
        self.out_tree = source.out_tree
        self.args_info = source.args_info
        self.donate_argnums: tuple[int, ...] = source.donate_argnums
        self._name = f"jit({source.jax_traced.fun_name})"
        self._engine, self._lowered, self._place = engine, lowered, source.place
        self._sharding = None if device is None else jax.sharding.SingleDeviceSharding(device)
        self._commits = _names_places(source.jax_traced.jaxpr)
        paths, _ = jax.tree_util.tree_flatten_with_path(self.in_avals)
        self._argument_names = [jax.tree_util.keystr(path) for path, _ in paths]
        self._in_avals = [aval for _, aval in paths]
        self._is_key = [is_key(aval) for aval in self._in_avals]
        self._takes_keys = any(self._is_key)
        # JAX's traced stage knows weak types.
        self._results = jax.tree_util.tree_leaves(source.jax_traced.out_info)
        self._finishes = [_choose_finish(type_) for type_ in self._results]
        if len(self.program.parameters) != len(self._in_avals):
            raise IllegalProduct(
                f"program {self.program.name} has {len(self.program.parameters)} parameters for "
                f"{len(self._in_avals)} arrays"
            )

    @property
    def program(self) -> Program:
        """The steps, kernels and buffers."""
        return self.compilation.program

    def explain(self) -> str:
        """The kernels, their schemes, and what was not stitched and why."""
        return self.compilation.explain()

    def as_text(self) -> str:
        """The kernels as CUDA text."""
        return "\n".join(kernel.source for kernel in self.program.kernels)

    def cost_analysis(self) -> Any:
        """XLA's estimate of the module as it was lowered, before anything is fused; None where it was not kept."""
        return None if self._lowered is None else self._lowered.cost_analysis()

    def memory_analysis(self) -> MemoryStats:
        """Arguments, outputs, the arena and constants, in bytes."""
        program = self.program
        return MemoryStats(
            sum(program.buffers[name].type.bytes for name, _ in program.constants),
            sum(view.type.bytes for view in program.parameters),
            sum(view.type.bytes for view in program.outputs),
            program.arena_bytes,
        )

    def runtime_executable(self) -> Any:
        """What holds the loaded kernels: a HostEngine or GpuExecutor."""
        return self._engine.runner

    @property
    def input_shardings(self) -> Any:
        """The device of each argument, in their structure.  Its leaves are None where JAX does not have the device."""
        return self.in_tree.unflatten([self._sharding] * len(self._in_avals))

    @property
    def output_shardings(self) -> Any:
        """The device of each result, in their structure.  Its leaves are None where JAX does not have the device."""
        return self.out_tree.unflatten([self._sharding] * len(self._results))

    @property
    def input_formats(self) -> Any:
        """Layout, which is row-major, and device of each argument, in their structure."""
        return self.in_tree.unflatten([self._format(aval) for aval in self._in_avals])

    @property
    def output_formats(self) -> Any:
        """Layout, which is row-major, and device of each result, in their structure."""
        return self.out_tree.unflatten([self._format(type_) for type_ in self._results])

    @property
    def out_info(self) -> Any:
        """The types of the results with their formats, in their structure."""
        import jax

        make: Any = jax.ShapeDtypeStruct
        return self.out_tree.unflatten(
            [make(t.shape, t.dtype, sharding=self._format(t)) for t in self._results]
        )

    def _format(self, type_: Any) -> Any:
        from jax.experimental.layout import Format, Layout

        if self._sharding is None:
            return None
        return Format(Layout(tuple(range(len(type_.shape))), tiling=()), self._sharding)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result, its leaves JAX arrays.

        Raises ArgumentMismatch (a TypeError) for another structure, shape or dtype than was compiled for.
        """
        import jax

        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        if tree != self.in_tree:
            raise ArgumentMismatch(
                "Function compiled with input pytree does not match the input pytree it was called with.\n"
                f"  compiled with {self.in_tree}\n  called with   {tree}\n"
                "  pass the arguments as to .lower(), static ones left out"
            )
        all_arrays = set(map(type, leaves)) <= {array_type()}
        if not all_arrays and is_traced(leaves):
            raise ArgumentMismatch(
                "Cannot apply JAX transformations to a function lowered and compiled for a particular signature.\n"
                "  call the astitch.jit function itself there, or transform before .lower()"
            )
        self._check_types([jax.typeof(leaf) for leaf in leaves])
        refuse_execution(self._name)
        return self.run_flat(leaves, self._place, all_arrays=all_arrays)

    def run_flat(
        self, leaves: Sequence[Any], place: Any | None, *, all_arrays: bool = False
    ) -> Any:
        """The result for the flat arguments, whose types were checked.

        place: where the results are committed to; None: nowhere, unless the function says so itself.  all_arrays: are
        all arguments JAX's own?  Raises what check_numbers raises.
        """
        if is_guarded():
            import jax

            leaves = transfer(leaves)
            with jax.transfer_guard(
                "allow"
            ):  # what the engine does by itself is no transfer of the user's
                return self._run(leaves, place, all_arrays=all_arrays)
        return self._run(leaves, place, all_arrays=all_arrays)

    def _run(self, leaves: Sequence[Any], place: Any | None, *, all_arrays: bool) -> Any:
        arguments: Sequence[Any] = leaves
        if not all_arrays or self._takes_keys:
            arguments = self._make_arguments(leaves)
        if place is None and self._commits:
            place = self._sharding
        results = self._engine(arguments, place)
        outputs = [
            array if finish is None else finish(array)
            for array, finish in zip(results, self._finishes, strict=True)
        ]
        check_numbers(self._name, outputs)
        return self.out_tree.unflatten(outputs)

    def _make_arguments(self, leaves: Sequence[Any]) -> list[Any]:
        """What the engine takes for the flat arguments.  Raises ArgumentMismatch for what is no array."""
        import jax
        import numpy as np

        try:
            return [
                (jax.random.key_data(x) if holds_keys else x)
                if isinstance(x, jax.Array)
                else np.asarray(x, aval.dtype)
                for x, aval, holds_keys in zip(leaves, self._in_avals, self._is_key, strict=True)
            ]
        except (TypeError, ValueError):
            arrays = (jax.Array, np.ndarray, np.generic, int, float, complex)
            mismatches = [
                f"  args{name} of type {type(x)} is not a valid JAX type"
                for name, x in zip(self._argument_names, leaves, strict=True)
                if not isinstance(x, arrays)
            ]
            if not mismatches:
                raise
            raise ArgumentMismatch("\n".join(["Arguments are no arrays.", *mismatches])) from None

    def _check_types(self, given: Sequence[Any]) -> None:
        mismatches = [
            f"  args{name}: {wanted.str_short()} was compiled for, {found.str_short()} was given"
            for name, wanted, found in zip(self._argument_names, self._in_avals, given, strict=True)
            if (wanted.shape, wanted.dtype) != (found.shape, found.dtype)
        ]
        if mismatches:
            raise ArgumentMismatch(
                "Argument types differ from the types for which this computation was compiled.\n"
                + "\n".join(mismatches)
                + "\n  convert the arguments, or lower and compile again for these types"
            )


def _names_places(jaxpr: Any) -> bool:
    """Does a function say where a value is to lie?  Then jax.jit commits its results."""
    from jax._src.dispatch import jaxpr_has_primitive

    return jaxpr_has_primitive(getattr(jaxpr, "jaxpr", jaxpr), "sharding_constraint")


def _choose_finish(type_: Any) -> Callable[[Any], Any] | None:
    """What makes an engine's result the one JAX gives; None where it is one already."""
    import jax
    import numpy as np
    from jax._src.lax.lax import _convert_element_type

    if type_.dtype == jax.dtypes.float0:  # the derivative by an integer
        return lambda _: np.zeros(type_.shape, jax.dtypes.float0)
    if is_key(type_):
        return functools.partial(jax.random.wrap_key_data, impl=type_.dtype._impl.name)
    if type_.weak_type:
        return functools.partial(
            _convert_element_type, new_dtype=type_.dtype, weak_type=type_.weak_type
        )
    return None
