"""The JAX front end: `astitch.jit` where `jax.jit` stood.

Takes a JAX function, hands on one that is compiled once for each signature (tree, shapes, dtypes, weak types, static
values).  On a GPU it is jax.jit of a function that traces to one call of our program, which runs inside XLA; the other
engines (CuPy's executor, the emulation on the host) are called from here.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, overload

from astitch import options
from astitch.api.arguments import (
    are_same,
    array_type,
    find_statics,
    is_jit_disabled,
    is_traced,
    jax_settings,
)
from astitch.api.engines import choose_engine
from astitch.api.inside_xla import call_directly, find_obstacle, name_of, stitch
from astitch.api.settings import OFF, Settings, current, mark
from astitch.api.stages import Compiled, Lowered, LoweredForXla
from astitch.errors import (
    IllegalProduct,
    InvalidOption,
    KernelFault,
    LaunchRefused,
    OtherDevice,
    UnknownOption,
    UnsupportedOp,
)
from astitch.faults import leave_to_xla, leave_whole
from astitch.system.forks import ForkLock, cached_property

OPTIONS_OF_JAX = {
    "in_shardings": "a program runs on one device; give functions over several to jax.jit",
    "out_shardings": "a program runs on one device; give functions over several to jax.jit",
    "device": "put the arguments where it is to run, with jax.device_put",
    "backend": "put the arguments where it is to run, with jax.device_put",
    "inline": "leave it out; inside an outer jax.jit use jax.jit(fn, inline=True)",
    "compiler_options": "leave it out; XLA_FLAGS sets XLA's options for the whole process",
}
"""What jax.jit takes and we do not, and what to do instead."""


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

    Inside a JAX transformation (jax.grad, jax.vmap, an outer jax.jit ...) it is jax.jit of that function with marks:
    where XLA compiles that for a GPU, what is marked is stitched.
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
        self._jax_jit = jax.jit(
            mark(fn, Settings(None, tune, strict)), keep_unused=True, **jax_options
        )
        self._stitched_jit: Any = jax.jit(
            stitch(fn, jax_options, tune, strict),
            keep_unused=keep_unused,
            compiler_options=dict(AROUND_KERNELS),
            **jax_options,
        )
        self._is_untraced = trace_state_clean
        self._statics = find_statics(
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
        all_arrays = set(map(type, leaves)) <= {array_type()}
        jaxs_own = not self._is_untraced() or is_jit_disabled() or current() == OFF
        if jaxs_own or (not all_arrays and is_traced(leaves)):
            return self._jax_jit(*args, **kwargs)
        if self.engine == "xla":
            self.__class__ = self._make_direct_class()
            return self(*args, **kwargs)
        try:
            avals = [leaf.aval if all_arrays else jax.typeof(leaf) for leaf in leaves]
            decided: Hashable = (tree, static, jax_settings())
            latest = self._latest
            key: Hashable = None
            if latest is not None and latest[0] == decided and are_same(latest[1], avals):
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
            leave_to_xla(name_of(self), str(error).splitlines()[0], self._strict)
            return self._jax_jit(*args, **kwargs)
        except (IllegalProduct, KernelFault, LaunchRefused) as error:
            # Nothing that was computed is handed on, and the arguments are as they were.
            if self._strict:
                raise
            lowered = self._lower_traced(self._jax_jit.trace(*args, **kwargs))
            leave_whole(name_of(self), lowered.hlo, lowered.gpu.name, error)
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
        call = call_directly(
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
            from astitch.xla.stitched_call import find_stitched

            traced = self._stitched_jit.trace(*args, **kwargs)
            stitched = find_stitched(traced.jaxpr)
            if stitched is None:
                raise _no_program(name_of(self), "what the warning names")
            return LoweredForXla(traced, stitched)
        traced = self._jax_jit.trace(*args, **kwargs)
        if reason := find_obstacle(traced.jaxpr):
            raise _no_program(name_of(self), f"what keeps it from being one: {reason}")
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
        if reason := find_obstacle(traced.jaxpr):
            leave_to_xla(name_of(self), reason, self._strict)
            return None
        lowered = self._lower_traced(traced)
        try:
            return lowered.compile()
        except Exception as error:
            if self._strict:
                raise
            leave_whole(name_of(self), lowered.hlo, lowered.gpu.name, error)
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


def _no_program(name: str, what: str) -> UnsupportedOp:
    return UnsupportedOp(
        f"astitch.jit of {name}: XLA computes all of it, there is no program to show\n"
        f"  call it, or take out {what}"
    )
