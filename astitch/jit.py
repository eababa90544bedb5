"""The JAX front end: `astitch.jit` where `jax.jit` stood.

Takes a JAX function, hands on one that is compiled once for each signature (tree, shapes, dtypes, weak types, static
values).  On a GPU it is jax.jit of a function that traces to one call of our program, which runs inside XLA; the other
engines (CuPy's executor, the emulation on the host) are called from here.
"""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, overload

from astitch import options
from astitch.errors import (
    ArgumentMismatch,
    EngineUnavailable,
    IllegalProduct,
    InvalidOption,
    KernelCompileError,
    KernelFault,
    LaunchRefused,
    OtherDevice,
    UnknownOption,
    UnsupportedOp,
)
from astitch.faults import (
    FaultLog,
    FaultWarning,
    leave_to_xla,
    leave_whole,
    report_faults,
    show_error,
)
from astitch.system.callbacks import pass_interrupt
from astitch.system.forks import ForkLock, cached_property

if TYPE_CHECKING:  # importing astitch must stay cheap
    from astitch.device.gpu import Gpu
    from astitch.graph.ir import Graph
    from astitch.program.steps import Program
    from astitch.show.compilation import Compilation
    from astitch.xla.xla_engine import Stitched

NO_GPU = "astitch: no GPU found; kernels run in the CPU emulation"

NO_ROOM = (
    "astitch: the next call works once there is room: delete arrays that are no longer needed, donate arguments that a "
    "result replaces, or set XLA_PYTHON_CLIENT_MEM_FRACTION so that JAX may take more"
)
"""What an error of JAX's that names the bytes XLA wanted does not say.  The first call of a signature says it; later
ones are JAX's alone."""


STATIC_OPTIONS = ("static_argnums", "static_argnames")

OPTIONS_OF_JAX = {
    "in_shardings": "a program runs on one device; give functions over several to jax.jit",
    "out_shardings": "a program runs on one device; give functions over several to jax.jit",
    "device": "put the arguments where it is to run, with jax.device_put",
    "backend": "put the arguments where it is to run, with jax.device_put",
    "inline": "leave it out; inside an outer jax.jit use jax.jit(fn, inline=True)",
    "compiler_options": "leave it out; XLA_FLAGS sets XLA's options for the whole process",
}
"""What jax.jit takes and we do not, and what to do instead."""


class Engine(Protocol):
    """What runs a Program: flat arguments in, flat JAX arrays out."""

    def __call__(self, arguments: Sequence[Any]) -> Sequence[Any]: ...


@overload
def jit(
    fn: None = None,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    tune: bool | None = None,
    strict: bool = False,
    engine: str | None = None,
) -> Callable[[Callable[..., Any]], JitFunction]: ...


@overload
def jit(
    fn: Callable[..., Any],
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    tune: bool | None = None,
    strict: bool = False,
    engine: str | None = None,
) -> JitFunction: ...


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    tune: bool | None = None,
    strict: bool = False,
    engine: str | None = None,
    **others: object,
) -> JitFunction | Callable[[Callable[..., Any]], JitFunction]:
    """Compile a JAX function with astitch.  The arguments are those of jax.jit; `@astitch.jit` and
    `@astitch.jit(static_argnums=1)` both decorate.

    donate_argnums, donate_argnames: a permission to reuse memory, which XLA uses as in jax.jit; with the engines other
    than xla donated arrays stay valid unless the function is left to XLA.  keep_unused: as in jax.jit; a program takes
    every array, used or not.
    tune: measure the best plans of each kernel on the GPU, once, and take the fastest, which is remembered on disk
    (None: as ASTITCH_TUNE says).  Only speed and the order of sums depend on it.
    strict: raise UnsupportedOp for what no stitched kernel and no library computes; else it is left to XLA.  Inside a
    JAX transformation (jax.grad, jax.vmap, an outer jax.jit ...) it has no effect: there XLA computes the function.
    engine: "xla" (kernels inside an XLA program), "executor" (CuPy), "gpu" (xla where JAX can, else executor) or "host"
    (the emulation); None: as ASTITCH_ENGINE says, else gpu where there is one.  It is chosen at the first call, which
    raises EngineUnavailable where it cannot be had.

    Raises InvalidOption for an engine that is not known, UnknownOption for an option that is not taken.
    """
    if others:
        name, value = next(iter(others.items()))
        taken = (
            p.name for p in inspect.signature(jit).parameters.values() if p.kind is p.KEYWORD_ONLY
        )
        advice = OPTIONS_OF_JAX.get(name, f"it takes {', '.join(taken)}")
        raise UnknownOption(f"astitch.jit: it does not take {name}={value!r}\n  {advice}")
    if fn is None:
        return lambda fn: jit(
            fn,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            keep_unused=keep_unused,
            tune=tune,
            strict=strict,
            engine=engine,
        )
    if engine not in (None, *options.ENGINES):
        raise InvalidOption(
            f"astitch.jit: engine={engine!r} is not known\n  it is one of {', '.join(options.ENGINES)}"
        )
    given = {
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
    }
    jax_options = {name: value for name, value in given.items() if value is not None}
    return JitFunction(fn, jax_options, keep_unused, tune, strict, engine)


class JitFunction:
    """A function compiled once for each signature; safe to call from several threads.

    Inside a JAX transformation (jax.grad, jax.vmap, an outer jax.jit ...) and under jax.disable_jit it is jax.jit of
    the same function: XLA compiles it there.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        jax_options: Mapping[str, Any],
        keep_unused: bool = False,
        tune: bool | None = None,
        strict: bool = False,
        engine: str | None = None,
    ) -> None:
        import jax
        from jax._src.core import trace_state_clean

        from astitch.library.xla_fallback import AROUND_KERNELS

        self._tune, self._strict, self._asked = tune, strict, engine

        functools.update_wrapper(self, fn)
        # Unused parameters are kept, so that the program's parameters are the flat arguments one to one.
        self._jax_jit = jax.jit(fn, keep_unused=True, **jax_options)
        self._stitched_jit: Any = jax.jit(
            _stitch(fn, jax_options, tune, strict),
            keep_unused=keep_unused,
            compiler_options=dict(AROUND_KERNELS),
            **jax_options,
        )
        self._is_untraced = trace_state_clean
        self._statics = _find_statics(
            fn, jax_options.get("static_argnums"), jax_options.get("static_argnames")
        )
        # None: left to XLA.
        self._compiled: dict[Hashable, Compiled | None] = {}
        # What decided the latest call, the types of its arrays, and what ran it.
        self._latest: tuple[Hashable, list[Any], Compiled] | None = None
        # Reentrant: tracing runs the user's function, which may call this one on other arrays.
        self._lock = ForkLock()

    @cached_property
    def engine(self) -> str:
        """ "xla", "executor" or "host".  Raises EngineUnavailable, InvalidOption."""
        return choose_engine(self._asked)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """The function's result, its leaves JAX arrays.  Raises what jax.jit raises for wrong arguments."""
        import jax

        dynamic, static = self._statics.split(args, kwargs)
        leaves, tree = jax.tree_util.tree_flatten(dynamic)
        # Hundreds of arrays come call after call, so that whatever is asked of each counts.
        array_type = _array_type()
        all_arrays = set(map(type, leaves)) <= {array_type}
        if not self._is_untraced() or _is_jit_disabled() or (not all_arrays and _is_traced(leaves)):
            return self._jax_jit(*args, **kwargs)
        if self.engine == "xla":
            self.__class__ = self._make_direct_class()
            return self(*args, **kwargs)
        try:
            avals = [leaf.aval if all_arrays else jax.typeof(leaf) for leaf in leaves]
            decided: Hashable = (tree, static, _jax_settings())
            latest = self._latest
            key: Hashable = None
            if latest is not None and latest[0] == decided and _are_same(latest[1], avals):
                compiled: Compiled | None = latest[2]
            else:
                key = (decided, tuple(avals))
                compiled = self._compiled.get(key)
        except (TypeError, ValueError, OverflowError):
            # A leaf that is no array or too large, a static value that has no hash or that does not compare.
            self._jax_jit.trace(*args, **kwargs)  # raises JAX's own words
            raise
        if compiled is None:
            with self._lock:
                if key not in self._compiled:
                    self._compiled[key] = self._compile_alone(args, kwargs)
                compiled = self._compiled[key]
            if compiled is None:
                return self._jax_jit(*args, **kwargs)
        self._latest = decided, avals, compiled
        try:
            return compiled.run_flat(leaves, all_arrays=all_arrays)
        except OtherDevice as error:
            leave_to_xla(_name_of(self), str(error).splitlines()[0], self._strict)
            return self._jax_jit(*args, **kwargs)
        except (IllegalProduct, KernelFault, LaunchRefused) as error:
            # Nothing that was computed is handed on, and the arguments are as they were.
            if self._strict:
                raise
            lowered = self._lower_traced(self._jax_jit.trace(*args, **kwargs))
            leave_whole(_name_of(self), lowered.hlo, lowered.gpu.name, error)
            self._latest = None
            self._compiled[key or (decided, tuple(avals))] = None
            return self._jax_jit(*args, **kwargs)
        except TypeError:
            if not all_arrays:  # a leaf that has a type and no value
                self._jax_jit(*args, **kwargs)  # raises JAX's own words
            raise

    def _make_direct_class(self) -> type[JitFunction]:
        """The class of this function once it runs inside XLA: its call is jax.jit's own.

        A frame of Python's in front costs 3 us, beside jax.jit's 35 for one array.
        """
        call = _call_directly(
            self._stitched_jit, self._jax_jit, self._is_untraced, strict=self._strict
        )
        return type(JitFunction.__name__, (JitFunction,), {"__call__": staticmethod(call)})

    def __copy__(self) -> JitFunction:
        """Itself, as of Python's functions."""
        return self

    def __deepcopy__(self, memo: object) -> JitFunction:
        return self

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a method of a class."""
        return self if instance is None else types.MethodType(self, instance)

    def lower(self, /, *args: Any, **kwargs: Any) -> Lowered | LoweredForXla:
        """Trace and lower to HLO for these arguments; each array may be a jax.ShapeDtypeStruct.

        Raises UnsupportedOp for a function that XLA computes as a whole.
        """
        if self.engine == "xla":
            from astitch.xla.xla_engine import find_stitched

            traced = self._stitched_jit.trace(*args, **kwargs)
            stitched = find_stitched(traced.jaxpr)
            if stitched is None:
                raise _no_program(_name_of(self), "what the warning names")
            return LoweredForXla(traced, stitched)
        traced = self._jax_jit.trace(*args, **kwargs)
        if reason := _find_obstacle(traced.jaxpr):
            raise _no_program(_name_of(self), f"what keeps it from being one: {reason}")
        return self._lower_traced(traced)

    def trace(self, /, *args: Any, **kwargs: Any) -> Any:
        """JAX's own: the function as it is, of which XLA computes all; lower shows what astitch makes of it."""
        return self._jax_jit.trace(*args, **kwargs)

    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """The types of the result, as jax.eval_shape."""
        shapes: Any = self._jax_jit.eval_shape(*args, **kwargs)  # type: ignore[no-untyped-call]
        return shapes

    def _compile_alone(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Compiled | None:
        """For an engine of ours; None, with a warning, for what only XLA computes."""
        traced = self._jax_jit.trace(*args, **kwargs)
        if reason := _find_obstacle(traced.jaxpr):
            leave_to_xla(_name_of(self), reason, self._strict)
            return None
        lowered = self._lower_traced(traced)
        try:
            return lowered.compile()
        except Exception as error:
            if self._strict:
                raise
            leave_whole(_name_of(self), lowered.hlo, lowered.gpu.name, error)
            return None

    def _lower_traced(self, traced: Any) -> Lowered:
        """Lowered for an engine of ours."""
        if self.engine == "host":
            return Lowered(traced, traced.lower(), "host", self._tune, self._strict)
        lowered = traced.lower(lowering_platforms=("cuda",))
        return Lowered(traced, lowered, "executor", self._tune, self._strict)

    def clear_cache(self) -> None:
        """Forget every compiled signature, and which engine runs them."""
        with self._lock:
            self._compiled.clear()
            self._latest = None
            self._stitched_jit.clear_cache()
            self.__class__ = JitFunction
            self.__dict__.pop("engine", None)


class _Stage:
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


def _call_directly(
    stitched: Any, jitted: Any, is_untraced: Callable[[], bool], *, strict: bool = False
) -> Callable[..., Any]:
    """Calls `stitched`, in JAX's transformations `jitted`: two functions of jax.jit's.

    What XLA refuses to compile or to start with our kernels it runs without them, with a warning; strict raises XLA's
    error.

    A function of jax.jit's is made of parts, one of which it asks when it has no executable for a call, as in any
    trace.  One more is made of stitched's parts, that asks here.  Where JAX has no such parts each call comes here.
    """

    def with_notes(call: Callable[[Any], Callable[..., Any]]) -> Callable[..., Any]:
        def choose(*args: Any, **kwargs: Any) -> Any:
            if not is_untraced():
                return call(jitted)(*args, **kwargs)
            try:
                return call(stitched)(*args, **kwargs)
            except RuntimeError as error:
                if "RESOURCE_EXHAUSTED" in str(error):
                    error.add_note(NO_ROOM)
                    raise
                if strict or options.raise_faults() or not isinstance(error, _error_of_xla()):
                    raise
                refusal = error
            try:  # the function of jax.jit's that answers here is the one that later calls go to
                result = call(jitted)(*args, **kwargs)
            except Exception as error:  # the program is at fault, or its donated arguments are gone
                pass_interrupt(error)
                raise refusal from error
            warnings.warn(
                f"astitch: XLA computes all of {_name_of(stitched)}: with astitch's kernels XLA fails: "
                f"{show_error(refusal)}\n  please report it; strict=True raises the error",
                FaultWarning,
                stacklevel=2,
            )
            return result

        return choose

    try:
        parts = {**stitched.__getstate__(), "cache_miss": with_notes(lambda f: f._cache_miss)}
        kind: Any = type(stitched)
        one_more = kind.__new__(kind)
        one_more.__setstate__(parts)
        one_more._fun = stitched._fun  # what JAX calls to find a NaN
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return with_notes(lambda f: f)
    direct: Callable[..., Any] = one_more
    return direct


@functools.cache
def _error_of_xla() -> type[Exception]:
    import jax

    found: type[Exception] = jax.errors.JaxRuntimeError
    return found


def _stitch(
    fn: Callable[..., Any], jax_options: Mapping[str, Any], tune: bool | None, strict: bool
) -> Callable[..., Any]:
    """What jax.jit is to trace, with these options, in place of `fn`: one call of fn's program.

    A function with effects (prints, callbacks), which only JAX can order, with what astitch cannot read, or with other
    arguments than arrays of one device is traced as it is, with a warning.
    """
    import jax
    from jax._src.core import trace_state_clean

    donations = _find_statics(
        fn, jax_options.get("donate_argnums"), jax_options.get("donate_argnames")
    )
    statics = {name: jax_options[name] for name in STATIC_OPTIONS if name in jax_options}

    @functools.wraps(fn)
    def stitched(*args: Any, **kwargs: Any) -> Any:
        from astitch.toolchain.nvrtc import find_ahead
        from astitch.xla.xla_engine import Stitched, call_stitched

        if trace_state_clean():  # jax.disable_jit, and JAX's search for a NaN, call it on arrays
            return fn(*args, **kwargs)
        kwargs = dict(sorted(kwargs.items()))  # in JAX's order
        # An argument without tracers is static, or an empty tree.
        given = [*args, *kwargs.values()]
        flat = [jax.tree_util.tree_flatten(argument) for argument in given]
        taken = [any(isinstance(leaf, jax.core.Tracer) for leaf in part) for part, _ in flat]
        leaves = [
            leaf for (part, _), take in zip(flat, taken, strict=True) if take for leaf in part
        ]
        marks = [*donations.mark(len(args)), *(name in donations.names for name in kwargs)]
        name = _name_of(fn)
        if reason := _find_in_arguments(leaf.aval for leaf in leaves):
            leave_to_xla(name, reason, strict)
            return fn(*args, **kwargs)
        donated = [
            mark
            for (part, _), take, mark in zip(flat, taken, marks, strict=True)
            if take
            for _ in part
        ]
        types = [
            jax.tree_util.tree_unflatten(tree, [_type_of(leaf.aval) for leaf in part])
            if take
            else argument
            for argument, (part, tree), take in zip(given, flat, taken, strict=True)
        ]

        @functools.wraps(fn)
        def anew(*args: Any, **kwargs: Any) -> Any:
            """`fn`, of which JAX has no trace yet; its errors name `fn` and its arguments."""
            return fn(*args, **kwargs)

        find_ahead()  # while JAX traces
        anew.__name__ = name
        named = dict(zip(kwargs, types[len(args) :], strict=True))
        traced = jax.jit(anew, keep_unused=True, **statics).trace(*types[: len(args)], **named)
        if reason := _find_effects(traced.jaxpr):
            leave_to_xla(name, reason, strict)
            return fn(*args, **kwargs)
        lowered = traced.lower(lowering_platforms=("cuda",))
        gpu = target_gpu()
        try:
            call = Stitched(lowered, traced.jaxpr, donated, gpu, tune, strict)
        except Exception as error:
            leave_whole(name, _hlo_of(lowered), gpu.name, error, strict=strict, inside_xla=True)
            return fn(*args, **kwargs)
        return jax.tree_util.tree_unflatten(lowered.out_tree, call_stitched(call, leaves))

    return stitched


def _type_of(aval: Any) -> Any:
    """An aval as the argument of a function to trace."""
    import jax

    make: Any = jax.ShapeDtypeStruct
    return make(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _find_obstacle(jaxpr: Any) -> str:
    """Why a traced function is no program for an engine of ours; nothing: the empty string."""
    # Arrays that change only inside it are none any more once it is lowered.
    return _find_in_arguments(jaxpr.in_avals) or _find_effects(
        jaxpr, besides="InternalMutableArrayEffect"
    )


def _find_in_arguments(avals: Iterable[Any]) -> str:
    """What is no array of one device among the arguments of a function."""
    import jax

    for aval in avals:
        if not isinstance(aval, jax.core.ShapedArray):
            return "it changes its arguments (jax.new_ref)"
        if aval.sharding.mesh.size > 1:
            return "its arguments are spread over several devices"
    return ""


def _find_effects(jaxpr: Any, besides: str = "") -> str:
    """What a traced function does beside computing, as prints."""
    effects = sorted({type(effect).__name__ for effect in jaxpr.effects} - {besides})
    return f"it has effects ({', '.join(effects)})" if effects else ""


def _hlo_of(jax_lowered: Any) -> bytes:
    """The serialized HloModuleProto of a function that JAX lowered."""
    return bytes(jax_lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())


def _no_program(name: str, what: str) -> UnsupportedOp:
    return UnsupportedOp(
        f"astitch.jit of {name}: XLA computes all of it, there is no program to show\n"
        f"  call it, or take out {what}"
    )


def _name_of(fn: Any) -> str:
    return str(getattr(fn, "__name__", "a function"))


def target_gpu() -> Gpu:
    """The GPU that programs inside XLA are planned for."""
    from astitch.device.gpu import from_device
    from astitch.library.xla_fallback import default_gpu

    device = default_gpu()
    return from_device(0 if device is None else device.local_hardware_id)


@dataclass(frozen=True)
class LoweredForXla(_Stage):
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
class CompiledForXla(_Stage):
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
class Lowered(_Stage):
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
        return _hlo_of(self.jax_lowered)

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
        self._is_key = [_is_key(aval) for aval in self._in_avals]
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
        all_arrays = set(map(type, leaves)) <= {_array_type()}
        if not all_arrays and _is_traced(leaves):
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
                (jax.random.key_data(x) if is_key else x)
                if isinstance(x, jax.Array)
                else np.asarray(x, aval.dtype)
                for x, aval, is_key in zip(leaves, self._in_avals, self._is_key, strict=True)
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


# ---- engines ---------------------------------------------------------------------------------------------------


def choose_engine(asked: str | None = None) -> str:
    """The engine, "xla", "executor" or "host": as asked, or as ASTITCH_ENGINE says, else a GPU's if there is one that
    JAX or CuPy can use.

    Warns once in a process that the host was taken for want of a GPU.  Raises EngineUnavailable, InvalidOption.
    """
    wanted = asked or options.engine()
    if wanted not in ("host", "executor"):
        missing = _miss_for_xla()
        if not missing:
            return "xla"
        if wanted == "xla":
            raise EngineUnavailable(f"the engine xla was asked for, but {missing}")
    return choose_launcher(asked)


def choose_launcher(asked: str | None = None) -> str:
    """The engine, "executor" or "host", where astitch launches kernels by itself: as asked, or as ASTITCH_ENGINE says,
    else a GPU's if there is one that CuPy can use.  "gpu" and "xla" ask for "executor" here.

    Warns once in a process that the host was taken for want of a GPU.  Raises EngineUnavailable, InvalidOption.
    """
    from astitch.run.executor import count_gpus

    wanted = asked or options.engine()
    if wanted == "host":
        return wanted
    if not count_gpus():
        if wanted is None:
            _warn_no_gpu()
            return "host"
        name = f"engine={asked!r}" if asked else f"ASTITCH_ENGINE={wanted}"
        raise EngineUnavailable(
            f"{name}, but CuPy sees no GPU\n"
            "  install astitch[cuda13] or astitch[cuda12] and a driver, or set ASTITCH_ENGINE=host"
        )
    return "executor"


def _miss_for_xla() -> str:
    """What keeps programs from running inside XLA here, and what to do; nothing: the empty string."""
    from astitch.device.cuda_driver import count_devices
    from astitch.library.xla_fallback import default_gpu
    from astitch.xla.xla_engine import FIRST_JAX, has_target

    if not count_devices():
        return "CUDA's driver sees no GPU\n  check nvidia-smi, or use the engine host"
    if not has_target():
        return f"JAX is older than {'.'.join(map(str, FIRST_JAX))}\n  install a newer one, or use the engine executor"
    if default_gpu() is None:
        return (
            "JAX has no GPU here\n  install jax[cuda13] or jax[cuda12], or use the engine executor"
        )
    return ""


@functools.cache
def _warn_no_gpu() -> None:
    """Says once in a process that everything runs on the CPU."""
    warnings.warn(NO_GPU, RuntimeWarning, stacklevel=2)


def make_engine(program: Program, device: int | None) -> Engine:
    """A function from flat NumPy, CuPy or JAX arrays to flat JAX arrays.

    device: number of the CUDA device; None for the host emulation.
    """
    import jax

    if device is not None:
        from astitch.run.executor import GpuExecutor

        return GpuExecutor(program, device, moves=False).run_to_jax

    from astitch.library.xla_fallback import find_device
    from astitch.run.host_engine import HostEngine

    host, cpu = HostEngine(program), find_device("cpu")

    def run_on_host(arguments: Sequence[Any]) -> list[Any]:
        for number, array in enumerate(arguments):
            if isinstance(array, jax.Array) and array.committed and array.devices() != {cpu}:
                places = ", ".join(sorted(map(str, array.devices())))
                raise OtherDevice(
                    f"argument {number} lies on {places}; the engine host runs on {cpu}\n"
                    "  bring it there with jax.device_put"
                )
        return [jax.device_put(array) for array in host.run(arguments)]

    return run_on_host


# ---- arguments -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Statics:
    """Which arguments are values at compile time, or donated: positions (negative from the end) and names."""

    numbers: tuple[int, ...]
    names: frozenset[str]

    def mark(self, count: int) -> list[bool]:
        """Of so many positional arguments, which are meant."""
        positions = {n + count if n < 0 else n for n in self.numbers}
        return [i in positions for i in range(count)]

    def split(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[tuple[Any, ...], dict[str, Any]], Hashable]:
        """The arrays, as JAX flattens them; and the static values with where they stand."""
        if not self.numbers and not self.names:
            return (tuple(args), dict(kwargs)), ()
        meant = self.mark(len(args))
        dynamic = tuple(x for x, static in zip(args, meant, strict=True) if not static)
        rest = {name: x for name, x in kwargs.items() if name not in self.names}
        # With their types: 1, 1.0 and True are equal, and trace to different programs.
        static = tuple((i, type(x), x) for i, x in enumerate(args) if meant[i])
        named = tuple((n, type(kwargs[n]), kwargs[n]) for n in sorted(kwargs) if n in self.names)
        return (dynamic, rest), (static, named)


def _find_statics(
    fn: Callable[..., Any],
    numbers: int | Sequence[int] | None,
    names: str | Iterable[str] | None,
) -> Statics:
    """As jax.jit: where only one of the two is given, the other follows from the function's signature."""
    given = (numbers,) if isinstance(numbers, int) else tuple(numbers or ())
    named = {names} if isinstance(names, str) else set(names or ())
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return Statics(given, frozenset(named))
    both = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    positional = [
        p.name
        for p in parameters
        if p.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    ]
    if numbers is not None and names is None:
        inside = [n for n in given if -len(positional) <= n < len(positional)]
        named = {positional[n] for n in inside if positional[n] in both}
    elif names is not None and numbers is None:
        given = tuple(i for i, name in enumerate(positional) if name in named and name in both)
    return Statics(given, frozenset(named))


def _is_traced(leaves: Sequence[Any]) -> bool:
    """Whether a JAX transformation is under way in the arguments of a call."""
    import jax

    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


@functools.cache
def _array_type() -> type:
    """JAX's class of arrays of numbers on devices, neither tracers nor random keys."""
    from jax._src.array import ArrayImpl

    return ArrayImpl


def _are_same(avals: Sequence[Any], others: Sequence[Any]) -> bool:
    """Are the types of arrays equal?  Those of arrays that came before are the same objects: equality takes longer."""
    return len(avals) == len(others) and all(
        a is b or a == b for a, b in zip(avals, others, strict=True)
    )


def _jax_settings() -> Hashable:
    """Every JAX setting that decides what a function lowers to (64-bit types, random numbers, precision ...)."""
    from jax._src import config  # what jax.jit itself keys its cache by; there is no public name

    key: Hashable = config.trace_context()
    return key


def _is_jit_disabled() -> bool:
    import jax

    config: Any = jax.config  # its types do not name what it holds
    return bool(config.jax_disable_jit)


def _is_key(type_: Any) -> bool:
    """Whether an array is one of random keys, which a program takes and gives as their words."""
    import jax

    return bool(jax.numpy.issubdtype(type_.dtype, jax.dtypes.prng_key))


def _choose_finish(type_: Any) -> Callable[[Any], Any] | None:
    """What makes an engine's result the one JAX gives; None where it is one already."""
    import jax
    import numpy as np
    from jax._src.lax.lax import _convert_element_type

    if type_.dtype == jax.dtypes.float0:  # the derivative by an integer
        return lambda _: np.zeros(type_.shape, jax.dtypes.float0)
    if _is_key(type_):
        return functools.partial(jax.random.wrap_key_data, impl=type_.dtype._impl.name)
    if type_.weak_type:
        return functools.partial(
            _convert_element_type, new_dtype=type_.dtype, weak_type=type_.weak_type
        )
    return None
