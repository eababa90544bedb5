"""A function of jax.jit's that is one call of our program inside XLA.

Takes the user's function and its options.  Hands on a function for jax.jit to trace, and one to call, which falls back
to XLA alone where XLA fails with our kernels.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from astitch import options
from astitch.api.arguments import find_statics
from astitch.api.engines import target_gpu
from astitch.api.jax_options import find_spread_option
from astitch.api.settings import current
from astitch.events import note_fallback
from astitch.faults import FaultWarning, leave_to_xla, leave_whole, show_error
from astitch.hlo.stablehlo import hlo_of
from astitch.system.callbacks import pass_interrupt

NO_ROOM = (
    "astitch: the next call works once there is room: delete arrays that are no longer needed, donate arguments that a "
    "result replaces, or set XLA_PYTHON_CLIENT_MEM_FRACTION so that JAX may take more"
)
"""What an error of JAX's that names the bytes XLA wanted does not say.  The first call of a signature says it; later
ones are JAX's alone."""


STATIC_OPTIONS = ("static_argnums", "static_argnames")


def call_directly(
    stitched: Any, jitted: Any, is_untraced: Callable[[], bool], *, strict: bool | float = False
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
            note_fallback(name_of(stitched), cause="xla", reason=show_error(refusal))
            warnings.warn(
                f"astitch: XLA computes all of {name_of(stitched)}: with astitch's kernels XLA fails: "
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


def stitch(
    fn: Callable[..., Any],
    jax_options: Mapping[str, Any],
    tune: bool | None,
    strict: bool | float,
    told: str = "",
) -> Callable[..., Any]:
    """What jax.jit is to trace, with these options, in place of `fn`: one call of fn's program.

    told: directives.
    Some functions are traced as they are, with a warning.  They have effects (prints, callbacks) that only JAX can
    order, or hold what astitch cannot read.  Calls
    whose arguments are not arrays of one device are traced so too.
    """
    import jax
    from jax._src.core import trace_state_clean

    donations = find_statics(
        fn, jax_options.get("donate_argnums"), jax_options.get("donate_argnames")
    )
    statics = {name: jax_options[name] for name in STATIC_OPTIONS if name in jax_options}
    spread = find_spread_option(jax_options)

    @functools.wraps(fn)
    def stitched(*args: Any, **kwargs: Any) -> Any:
        from astitch.toolchain.nvrtc import find_in_background
        from astitch.xla.stitched_call import Stitched, call_stitched

        if current() is not None:  # XLA's hook stitches it, or nobody does
            return fn(*args, **kwargs)
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
        name = name_of(fn)
        if reason := spread or _find_in_arguments(leaf.aval for leaf in leaves):
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

        find_in_background()  # while JAX traces
        anew.__name__ = name
        named = dict(zip(kwargs, types[len(args) :], strict=True))
        traced = jax.jit(anew, keep_unused=True, **statics).trace(*types[: len(args)], **named)
        if reason := _find_escaped(traced) or _find_effects(traced.jaxpr):
            leave_to_xla(name, reason, strict)
            return fn(*args, **kwargs)
        lowered = traced.lower(lowering_platforms=("cuda",))
        gpu = target_gpu()
        try:
            call = Stitched(lowered, traced.jaxpr, donated, gpu, tune, strict, told)
        except Exception as error:
            leave_whole(name, hlo_of(lowered), gpu.name, error, strict=strict, inside_xla=True)
            return fn(*args, **kwargs)
        return jax.tree_util.tree_unflatten(lowered.out_tree, call_stitched(call, leaves))

    return stitched


def _type_of(aval: Any) -> Any:
    """An aval as the argument of a function to trace."""
    import jax

    make: Any = jax.ShapeDtypeStruct
    return make(aval.shape, aval.dtype, weak_type=aval.weak_type)


def find_obstacle(traced: Any) -> str:
    """Why a traced function is no program for an engine of ours; nothing: the empty string."""
    return (
        _find_in_arguments(traced.jaxpr.in_avals)
        or _find_escaped(traced)
        # Arrays that change only inside it are none any more once it is lowered.
        or _find_effects(traced.jaxpr, besides="InternalMutableArrayEffect")
    )


def _find_escaped(traced: Any) -> str:
    """Whether a function uses a tracer of another trace, for which JAX raises UnexpectedTracerError."""
    is_alone = len(traced.jaxpr.in_avals) == traced.in_tree.num_leaves
    return "" if is_alone else "it uses a tracer that escaped from another function"


def _find_in_arguments(avals: Iterable[Any]) -> str:
    """What is no array of one device among the arguments of a function."""
    import jax

    for aval in avals:
        if not isinstance(aval, jax.core.ShapedArray):
            return "it changes its arguments (jax.new_ref)"
        if aval.sharding.mesh.size > 1:
            return "its arguments are spread over several devices"
        if aval.dtype == jax.dtypes.float0:
            return "an argument has no values (float0)"
    return ""


def _find_effects(jaxpr: Any, besides: str = "") -> str:
    """What a traced function does beside computing, as prints."""
    effects = sorted({type(effect).__name__ for effect in jaxpr.effects} - {besides})
    return f"it has effects ({', '.join(effects)})" if effects else ""


def name_of(fn: Any) -> str:
    return str(getattr(fn, "__name__", "a function"))
