"""The stages of one signature, by the names of jax.stages: lowered to HLO, compiled, called.

Takes what JAX traced, hands on stages that show what astitch makes of it.  A signature runs inside XLA (ForXla) or
through an engine of ours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from astitch.api.arguments import array_type, is_key, is_traced
from astitch.api.engines import Engine, make_engine
from astitch.errors import ArgumentMismatch, IllegalProduct, KernelCompileError, LaunchRefused
from astitch.faults import FaultLog, report_faults
from astitch.hlo.stablehlo import hlo_of
from astitch.system.forks import cached_property

if TYPE_CHECKING:  # importing astitch must stay cheap
    from astitch.device.gpu import Gpu
    from astitch.graph.ir import Graph
    from astitch.program.steps import Program
    from astitch.show.compilation import Compilation
    from astitch.xla.stitched_call import Stitched


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


# ---- inside XLA ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoweredForXla(Stage):
    """A function traced for one signature, with what it becomes inside XLA."""

    jax_traced: Any = field(repr=False)
    stitched: Stitched
    engine: str = "xla"

    @property
    def _of_jax(self) -> Any:
        return self.jax_traced

    @property
    def hlo(self) -> bytes:
        """The serialized HloModuleProto that astitch compiles."""
        return self.stitched.hlo

    @property
    def graph(self) -> Graph:
        """The module as astitch reads it."""
        return self.stitched.graph

    def as_text(self) -> str:
        """The module as HLO text."""
        return str(self.stitched.lowered.compiler_ir("hlo").as_hlo_text())

    def compiler_ir(self, dialect: str | None = None) -> Any:
        """The module in a dialect of JAX's: "stablehlo" where none is named, or "hlo"."""
        return self.stitched.lowered.compiler_ir(dialect)

    def cost_analysis(self) -> Any:
        """XLA's estimate of the module as it stands, before anything is fused."""
        return self.stitched.lowered.cost_analysis()

    def compile(self) -> CompiledForXla:
        """Compile with astitch, then with XLA.  Raises AstitchError for what astitch cannot compile."""
        return CompiledForXla(self.stitched.compilation, self.jax_traced.lower().compile())


@dataclass(frozen=True)
class CompiledForXla(Stage):
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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result, its leaves JAX arrays.  Raises the TypeError that JAX raises for other arguments."""
        return self.jax_compiled(*args, **kwargs)

    def as_text(self) -> str:
        """XLA's module after its own passes, as HLO text."""
        return str(self.jax_compiled.as_text())

    def cost_analysis(self) -> Any:
        """XLA's estimate; it knows nothing of what is inside stitched kernels."""
        return self.jax_compiled.cost_analysis()

    def memory_analysis(self) -> Any:
        """XLA's buffers: arguments, outputs, temporaries and code, in bytes."""
        return self.jax_compiled.memory_analysis()


# ---- through an engine of ours ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lowered(Stage):
    """A function lowered to HLO for one signature.  engine: "executor" or "host", what it was lowered for.
    tune, strict: see jit."""

    jax_traced: Any = field(repr=False)
    jax_lowered: Any = field(repr=False)
    engine: str
    tune: bool | None = None
    strict: bool = False

    @property
    def _of_jax(self) -> Any:
        return self.jax_traced

    @cached_property
    def hlo(self) -> bytes:
        """The serialized HloModuleProto."""
        return hlo_of(self.jax_lowered)

    @cached_property
    def graph(self) -> Graph:
        """The module as astitch reads it."""
        from astitch.hlo_import import import_hlo

        return import_hlo(self.hlo, trusted=True)

    def as_text(self) -> str:
        """The module as HLO text."""
        return str(self.jax_lowered.compiler_ir("hlo").as_hlo_text())

    def compiler_ir(self, dialect: str | None = None) -> Any:
        """The module in a dialect of JAX's: "stablehlo" where none is named, or "hlo"."""
        return self.jax_lowered.compiler_ir(dialect)

    def cost_analysis(self) -> Any:
        """XLA's estimate of the module as it stands, before anything is fused."""
        return self.jax_lowered.cost_analysis()

    def compile(self) -> Compiled:
        """Compile for the engine.  Raises AstitchError for what astitch cannot compile."""
        from astitch.compile import compile_hlo
        from astitch.search.plan_scopes import render_kernel
        from astitch.show.trace import trace_compilation

        # In the emulation there is nothing to measure.
        tune = self.tune if self.engine == "executor" else False
        compilation = compile_hlo(
            self.hlo,
            gpu=self.gpu,
            tune=tune,
            strict=self.strict,
            render=render_kernel,
            trusted=True,
        )
        compilation, engine = self._start(compilation)
        trace_compilation(self.hlo, compilation)
        return Compiled(compilation, self.jax_lowered, self.out_info, engine)

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

    def _start(self, compilation: Compilation) -> tuple[Compilation, Engine]:
        """The engine of a compilation, and what is left of the latter: kernels that their compiler or the device
        refuses are left to XLA, with a warning."""
        from astitch.compile import leave_kernels

        faults = FaultLog(self.strict or None)
        left: dict[str, str] = {}
        while True:
            try:
                engine = make_engine(compilation.program, self._device)
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


class Compiled:
    """A compiled signature: call it with arguments of the types that it was lowered for, without static ones.

    in_tree, out_tree, args_info, out_info, donate_argnums: see Lowered.
    """

    def __init__(
        self, compilation: Compilation, jax_lowered: Any, out_info: Any, engine: Engine
    ) -> None:
        import jax

        self.compilation = compilation
        # Not jax_lowered itself, which holds the module.
        self.in_tree = jax_lowered.in_tree
        self.out_tree = jax_lowered.out_tree
        self.args_info = jax_lowered.args_info
        self.out_info = out_info
        self.donate_argnums: tuple[int, ...] = jax_lowered.donate_argnums
        paths, _ = jax.tree_util.tree_flatten_with_path(jax_lowered.in_avals)
        self._argument_names = [jax.tree_util.keystr(path) for path, _ in paths]
        self._in_avals = [aval for _, aval in paths]
        self._is_key = [is_key(aval) for aval in self._in_avals]
        self._takes_keys = any(self._is_key)
        self._finishes = [_choose_finish(type_) for type_ in jax.tree_util.tree_leaves(out_info)]
        if len(self.program.parameters) != len(self._in_avals):
            raise IllegalProduct(
                f"program {self.program.name} has {len(self.program.parameters)} parameters for "
                f"{len(self._in_avals)} arrays"
            )
        self._engine = engine

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
        return self.run_flat(leaves, all_arrays=all_arrays)

    def run_flat(self, leaves: Sequence[Any], *, all_arrays: bool = False) -> Any:
        """The result for the flat arguments, whose types were checked.  all_arrays: are all of them JAX's own?"""
        import jax

        arguments: Sequence[Any] = leaves
        if not all_arrays or self._takes_keys:
            arguments = self._make_arguments(leaves)
        results = self._engine(arguments)
        outputs = [
            array if finish is None else finish(array)
            for array, finish in zip(results, self._finishes, strict=True)
        ]
        return jax.tree_util.tree_unflatten(self.out_tree, outputs)

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
