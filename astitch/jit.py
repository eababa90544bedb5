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
from dataclasses import replace
from typing import Any, overload

from astitch import options
from astitch.api.arguments import (
    are_same,
    array_type,
    find_elsewhere,
    find_place,
    find_statics,
    is_traced,
)
from astitch.api.background import BACKGROUND, check_tune, tune_beside_calls
from astitch.api.engines import choose_engine
from astitch.api.inside_xla import call_directly, find_obstacle, name_of
from astitch.api.inside_xla import stitch as trace_stitched
from astitch.api.jax_options import (
    OF_ARGUMENTS,
    check_compiler_options,
    check_others,
    find_place_option,
    import_jax,
    keep_given,
)
from astitch.api.jax_settings import (
    bad_number,
    forget_with_jax,
    is_jit_disabled,
    jax_settings,
    may_not_run,
    reuses_keys_checked,
)
from astitch.api.settings import OFF, Settings, check_strict, current, mark
from astitch.api.stages import Compiled, Lowered, LoweredByXla, LoweredForXla, can_measure
from astitch.directives import check_option
from astitch.errors import (
    IllegalProduct,
    InvalidOption,
    KernelFault,
    LaunchRefused,
    OtherDevice,
)
from astitch.faults import leave_to_xla, leave_whole
from astitch.system.forks import ForkLock, cached_property


@overload
def jit(
    fn: None = None,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    device: Any = None,
    backend: str | None = None,
    inline: Any = False,
    compiler_options: Mapping[str, Any] | None = None,
    tune: bool | str | None = None,
    strict: bool | float = False,
    engine: str | None = None,
    stitch: str | Sequence[str] | None = None,
    deterministic: bool | None = None,
    memory_limit: str | float | None = None,
) -> Callable[[Callable[..., Any]], JitFunction]: ...


@overload
def jit(
    fn: Callable[..., Any],
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    device: Any = None,
    backend: str | None = None,
    inline: Any = False,
    compiler_options: Mapping[str, Any] | None = None,
    tune: bool | str | None = None,
    strict: bool | float = False,
    engine: str | None = None,
    stitch: str | Sequence[str] | None = None,
    deterministic: bool | None = None,
    memory_limit: str | float | None = None,
) -> JitFunction: ...


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    device: Any = None,
    backend: str | None = None,
    inline: Any = False,
    compiler_options: Mapping[str, Any] | None = None,
    tune: bool | str | None = None,
    strict: bool | float = False,
    engine: str | None = None,
    stitch: str | Sequence[str] | None = None,
    deterministic: bool | None = None,
    memory_limit: str | float | None = None,
    **others: Any,
) -> JitFunction | Callable[[Callable[..., Any]], JitFunction]:
    """Compile a JAX function with astitch.  The arguments are those of jax.jit; `@astitch.jit` and
    `@astitch.jit(static_argnums=1)` both decorate.  docs/jit.md compares it with jax.jit.

    donate_argnums, donate_argnames: a permission to reuse memory, which XLA uses as in jax.jit; with the engines other
    than xla donated arrays stay valid unless the function is left to XLA.  keep_unused: as in jax.jit; a program takes
    every array, used or not.
    in_shardings, out_shardings, device, backend: with the engine xla as in jax.jit; with the others, and where they
    name several devices, XLA computes the function, with a warning.  compiler_options: for what XLA compiles.
    tune: measure the best plans of each kernel on the GPU, once, and take the fastest, which is remembered on
    disk.  Only speed and the order of sums depend on it.  "background": beside the calls of the engine executor, which
    take what won from the next call on; with the engine xla as True.
    strict: raise UnsupportedOp for what no stitched kernel and no library computes; else it is left to XLA.  A number
    is a share: 0.9 raises if less of the projected memory-intensive time runs in stitched kernels.  Inside a JAX
    transformation (jax.grad, jax.vmap, an outer jax.jit ...) nothing is raised.
    engine: "xla" (kernels inside an XLA program), "executor" (CuPy), "gpu" (xla where JAX can, else executor) or "host"
    (the emulation); None: gpu where there is one, else host.  It is chosen at the first call, which raises
    EngineUnavailable where it cannot be had.
    stitch: directives, lines or a sequence of them: what shares a kernel, what is left to XLA, which plan is taken
    (docs/directives.md).  deterministic: inside XLA, scatters and gradients of attention add in a fixed order (None:
    scatters do); False: as is fastest.
    memory_limit: the bytes that the program is planned to take at most, arguments and results too, or text as "8GB".
    Where it would take more, more is computed again in place of being kept.  A warning says if it does not fit.

    Raises InvalidOption for an engine or a directive that is not known, UnknownOption for an option that is not taken,
    JaxMissing.
    """
    parameters = inspect.signature(jit).parameters.values()
    taken = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    given = {
        "in_shardings": in_shardings,
        "out_shardings": out_shardings,
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
        "keep_unused": keep_unused,
        "device": device,
        "backend": backend,
        "inline": inline,
        "compiler_options": compiler_options,
    }
    jax_options = {**keep_given(given), **check_others(others, taken)}
    if fn is None:
        return lambda fn: jit(
            fn,
            **jax_options,
            tune=tune,
            strict=strict,
            engine=engine,
            stitch=stitch,
            deterministic=deterministic,
            memory_limit=memory_limit,
        )
    if engine not in (None, *options.ENGINES):
        raise InvalidOption(
            f"astitch.jit: engine={engine!r} is not known\n  it is one of {', '.join(options.ENGINES)}"
        )
    check_strict(strict, "astitch.jit")
    check_tune(tune, "astitch.jit", background=True)
    told = check_option(stitch, "astitch.jit", deterministic, memory_limit)
    return JitFunction(fn, jax_options, tune, strict, engine, told)


class Signatures:
    """What was compiled for an engine of ours.

    compiled: by what decides it; None: left to XLA.  latest: what decided the latest call, the types of its arrays,
    what ran it, and how often one was exchanged until then.  exchanges: for another that is tuned.
    """

    def __init__(self) -> None:
        self.compiled: dict[Hashable, Compiled | None] = {}
        self.latest: tuple[Hashable, list[Any], Compiled, int] | None = None
        self.exchanges = 0

    def exchange(self, key: Hashable, before: Compiled, after: Compiled) -> None:
        """Has later calls run `after`, unless `before` was forgotten meanwhile."""
        if self.compiled.get(key) is before:
            self.compiled[key] = after
            self.exchanges += 1

    def cache_clear(self) -> None:
        """Forgets all of them; jax.clear_caches calls it."""
        self.compiled.clear()
        self.latest = None


class JitFunction:
    """A function compiled once for each signature; safe to call from several threads.

    Inside a JAX transformation (jax.grad, jax.vmap, an outer jax.jit ...) it is jax.jit of that function with marks.
    Where XLA compiles that for a GPU, astitch stitches what is marked.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        jax_options: Mapping[str, Any],
        tune: bool | str | None = None,
        strict: bool | float = False,
        engine: str | None = None,
        stitch: str = "",
    ) -> None:
        jax = import_jax()
        from jax._src.core import trace_state_clean

        functools.update_wrapper(self, fn)
        # What fn has of an astitch.jit that it wraps, as jax.grad of one does, is not this one's.
        for name in ("engine", "_stitched_jit"):
            self.__dict__.pop(name, None)
        self._fn, self._options = fn, jax_options
        self._tune = None if tune is None else bool(tune)
        self._tunes_beside = tune == BACKGROUND
        self._strict, self._asked = strict, engine
        self._stitch = stitch
        if not callable(fn):
            jax.jit(fn)  # raises JAX's own words
        marked = mark(fn, Settings(None, self._tune, strict, stitch=stitch))
        # As the user asked for it: what runs whatever is left to XLA.
        self._jax_jit: Any = jax.jit(marked, **jax_options)
        of_arguments = {name: jax_options[name] for name in OF_ARGUMENTS if name in jax_options}
        # Unused parameters are kept, so that the program's parameters are the flat arguments one to one.
        self._traced_jit: Any = jax.jit(fn, keep_unused=True, **of_arguments)
        self._is_untraced = trace_state_clean
        self._statics = find_statics(
            fn, jax_options.get("static_argnums"), jax_options.get("static_argnames")
        )
        self._signatures = Signatures()
        forget_with_jax(self._signatures)
        # Reentrant: tracing runs the user's function, which may call this one on other arrays.
        self._lock = ForkLock()

    def __repr__(self) -> str:
        return f"<astitch.jit of {self._fn!r}>"

    @cached_property
    def engine(self) -> str:
        """ "xla", "executor" or "host".  Raises EngineUnavailable."""
        return choose_engine(self._asked)

    @cached_property
    def _stitched_jit(self) -> Any:
        """For the engine xla."""
        from astitch.library.xla_fallback import AROUND_KERNELS

        wished = self._options.get("compiler_options", {})
        jax_options = {**self._options, "compiler_options": {**AROUND_KERNELS, **wished}}
        stitched = trace_stitched(self._fn, self._options, self._tune, self._strict, self._stitch)
        return import_jax().jit(stitched, **jax_options)

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
            with self._lock:
                self.__class__ = self._make_direct_class()
            return self(*args, **kwargs)
        try:
            avals = [leaf.aval if all_arrays else jax.typeof(leaf) for leaf in leaves]
            decided: Hashable = (tree, static, jax_settings())
            latest, exchanges = self._signatures.latest, self._signatures.exchanges
            key: Hashable = None
            if (
                latest is not None
                and latest[3] == exchanges
                and latest[0] == decided
                and are_same(latest[1], avals)
            ):
                compiled: Compiled | None = latest[2]
            else:
                key = (decided, tuple(avals))
                compiled = self._signatures.compiled.get(key)
        except Exception:
            # A leaf that is no array or too large, a static value that has no hash or that does not compare.
            self._jax_jit.trace(*args, **kwargs)  # raises JAX's own words
            raise
        if compiled is None:
            if may_not_run():
                return self._jax_jit(*args, **kwargs)  # raises JAX's own words
            if not all_arrays and reuses_keys_checked():
                leave_to_xla(name_of(self), "jax.debug_key_reuse is set", self._strict)
                return self._jax_jit(*args, **kwargs)
            with self._lock:
                if key not in self._signatures.compiled:
                    self._signatures.compiled[key] = self._compile_alone(key, args, kwargs)
                compiled = self._signatures.compiled[key]
            if compiled is None:
                return self._jax_jit(*args, **kwargs)
        self._signatures.latest = decided, avals, compiled, exchanges
        try:
            return compiled.run_flat(leaves, find_place(leaves), all_arrays=all_arrays)
        except OtherDevice as error:
            leave_to_xla(name_of(self), str(error).splitlines()[0], self._strict)
            return self._jax_jit(*args, **kwargs)
        except (IllegalProduct, KernelFault, LaunchRefused) as error:
            # Nothing that was computed is handed on, and the arguments are as they were.
            if self._strict:
                raise
            lowered = self._lower_traced(self._traced_jit.trace(*args, **kwargs))
            leave_whole(name_of(self), lowered.hlo, lowered.gpu.name, error)
            self._signatures.latest = None
            self._signatures.compiled[key or (decided, tuple(avals))] = None
            return self._jax_jit(*args, **kwargs)
        except TypeError:
            if not all_arrays:  # a leaf that has a type and no value
                self._jax_jit(*args, **kwargs)  # raises JAX's own words
            raise
        except bad_number() as error:
            self._jax_jit(*args, **kwargs)  # raises JAX's own words, which name the op
            raise FloatingPointError(
                f"invalid value encountered in what astitch computes of {name_of(self)}, and not in what XLA does: "
                f"{error}\n  please report it"
            ) from None

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
        """Binds the function to an instance, as methods are bound."""
        return self if instance is None else types.MethodType(self, instance)

    def lower(self, /, *args: Any, **kwargs: Any) -> Lowered | LoweredForXla | LoweredByXla:
        """Trace and lower to HLO for these arguments; each array may be a jax.ShapeDtypeStruct.

        What XLA computes as a whole has JAX's stages, with a warning.  Raises UnsupportedOp for it where strict.
        """
        if self.engine == "xla":
            from astitch.xla.stitched_call import find_stitched

            traced = self._stitched_jit.trace(*args, **kwargs)
            stitched = find_stitched(traced.jaxpr)
            if stitched is None:
                return LoweredByXla(name_of(self), "what the warning names", traced.lower())
            return LoweredForXla(traced, stitched)
        traced = self._traced_jit.trace(*args, **kwargs)
        reason = self._find_reason(traced)
        if not reason:
            leaves = import_jax().tree_util.tree_leaves(self._statics.split(args, kwargs)[0])
            lowered = self._lower_traced(traced, find_place(leaves))
            device = lowered.jax_device
            reason = "" if device is None else find_elsewhere(leaves, device)
            if not reason:
                return lowered
        leave_to_xla(name_of(self), reason, self._strict)
        return LoweredByXla(name_of(self), reason, self._jax_jit.lower(*args, **kwargs))

    def trace(self, /, *args: Any, **kwargs: Any) -> Any:
        """JAX's own: the function as it is, of which XLA computes all; lower shows what astitch makes of it."""
        return self._jax_jit.trace(*args, **kwargs)

    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """The types of the result, as jax.eval_shape."""
        shapes: Any = self._jax_jit.eval_shape(*args, **kwargs)
        return shapes

    def _find_reason(self, traced: Any) -> str:
        """Why an engine of ours leaves a function to XLA; nothing: the empty string."""
        return find_place_option(self._options) or find_obstacle(traced)

    def _compile_alone(
        self, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Compiled | None:
        """For an engine of ours; None, with a warning, for what only XLA computes."""
        traced = self._traced_jit.trace(*args, **kwargs)
        if reason := self._find_reason(traced):
            leave_to_xla(name_of(self), reason, self._strict)
            return None
        wished = self._options.get("compiler_options", {})
        check_compiler_options(wished)
        lowered = self._lower_traced(traced)
        beside = self._tunes_beside and can_measure(self.engine)
        try:
            first = replace(lowered, tune=False) if beside else lowered
            compiled = first.compile_stitched(wished)
        except Exception as error:
            if self._strict:
                raise
            leave_whole(name_of(self), lowered.hlo, lowered.gpu.name, error)
            return None
        if beside:
            tune_beside_calls(first, wished, lambda tuned: self._take_tuned(key, compiled, tuned))
        return compiled

    def _take_tuned(self, key: Hashable, before: Compiled, tuned: Compiled) -> None:
        with self._lock:
            self._signatures.exchange(key, before, tuned)

    def _lower_traced(self, traced: Any, place: Any | None = None) -> Lowered:
        """Lowered for an engine of ours.  place: of an ahead-of-time call's results, see find_place."""
        platforms = None if self.engine == "host" else ("cuda",)
        lowered = traced.lower(lowering_platforms=platforms)
        return Lowered(
            traced,
            lowered,
            self.engine,
            self._tune,
            self._strict,
            self._options.get("compiler_options"),
            place,
            self._stitch,
        )

    def clear_cache(self) -> None:
        """Forget every compiled signature, and which engine runs them."""
        with self._lock:
            self._signatures.cache_clear()
            self._jax_jit.clear_cache()
            if "_stitched_jit" in self.__dict__:
                self._stitched_jit.clear_cache()
            self.__class__ = JitFunction
            self.__dict__.pop("engine", None)

    def _cache_size(self) -> int:
        """How many signatures are compiled."""
        direct = type(self).__dict__.get("__call__")
        if type(self) is JitFunction or not isinstance(direct, staticmethod):
            return len(self._signatures.compiled)
        size: Any = getattr(direct.__func__, "_cache_size", self._stitched_jit._cache_size)
        return int(size())
