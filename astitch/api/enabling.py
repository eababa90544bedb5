"""enable() and disable(): every program that JAX compiles for an NVIDIA GPU goes through astitch, or none.

Takes the user's wish, hands on nothing; the work is done in XLA's transformation hook (transformation.py).  Five seams
of JAX's carry it.  The hook stands in XLA's compiler.  A context of the user's is part of the key under which JAX keeps
what it has compiled in memory; a function of JAX's adds to the key of its cache on disk.  What writes that cache is
told what not to keep.  enable() wraps the function by which JAX has a module compiled.  That function knows the
devices, and compiles once more without us where XLA refuses our module.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from astitch.api.background import check_tune
from astitch.api.fitting import fit_memory
from astitch.api.installation import warn_of_installation
from astitch.api.settings import OFF, Settings, check_strict, context, current, switches
from astitch.device.gpu import PRESETS
from astitch.directives import check_option
from astitch.errors import EngineUnavailable, InvalidOption
from astitch.faults import FaultWarning, show_error
from astitch.system.callbacks import Callback, pass_interrupt
from astitch.system.forks import once

if TYPE_CHECKING:  # importing astitch must stay cheap
    from astitch.api.transformation import Compiling, Report

NAME = "astitch"
"""The transformation's name in XLA's list."""


def enable(
    *,
    gpu: str | None = None,
    tune: bool | None = None,
    strict: bool | float = False,
    check: bool = False,
    attention: bool = True,
    stitch: str | Sequence[str] | None = None,
    deterministic: bool | None = None,
    memory_limit: str | float | None = None,
) -> None:
    """From now on every program that JAX compiles for an NVIDIA GPU in this process is stitched.

    Functions that were compiled before are compiled anew at their next call.  It may be the first line of a program:
    it starts no backend of JAX's.  Programs for other devices are compiled as ever.

    gpu: the preset to plan for, where programs are compiled for a GPU that is not here; None: as the device says.
    tune, strict: see astitch.jit; what strict refuses is raised from the call that compiles.
    check: compare each call of a stitched program with XLA's own version of it.
    attention: give attention to cuDNN or our own kernels, so that no scores are written to memory (docs/attention.md);
    cuDNN's gradient of q differs from run to run in its last bits.  False leaves products of few rows and narrow
    networks to XLA too (docs/decisions/0047-narrow-products.md, 0049-narrow-networks.md).
    stitch: directives, lines or a sequence of them (docs/directives.md).
    deterministic: scatters and gradients of attention add in a fixed order; None and False: as is fastest.
    memory_limit: the bytes that each program is planned to take at most, see astitch.jit.
    Raises InvalidOption for an unknown preset or directive, EngineUnavailable where JAX has no hook.
    """
    settings = _make_settings(
        gpu, tune, strict, check, attention, stitch, deterministic, memory_limit
    )
    _install()
    warn_of_installation()
    context().set_global(settings)


def disable() -> None:
    """From now on XLA compiles every program alone, functions of astitch.jit among them."""
    if _has_seams():
        context().set_global(OFF)


@contextmanager
def enabled(
    *,
    gpu: str | None = None,
    tune: bool | None = None,
    strict: bool | float = False,
    check: bool = False,
    attention: bool = True,
    stitch: str | Sequence[str] | None = None,
    deterministic: bool | None = None,
    memory_limit: str | float | None = None,
) -> Iterator[None]:
    """Within the block, in this thread, programs are compiled as after enable()."""
    settings = _make_settings(
        gpu, tune, strict, check, attention, stitch, deterministic, memory_limit
    )
    _install()
    with context()(settings):
        yield


@contextmanager
def disabled() -> Iterator[None]:
    """Within the block, in this thread, programs are compiled as after disable()."""
    if not _has_seams():
        yield
        return
    with context()(OFF):
        yield


def report() -> Report:
    """What became of the programs that JAX compiled while astitch was enabled, and of those with marked functions."""
    from astitch.api.transformation import journal

    return journal.report()


def _make_settings(
    gpu: str | None,
    tune: bool | None,
    strict: bool | float,
    check: bool,
    attention: bool,
    stitch: str | Sequence[str] | None,
    deterministic: bool | None,
    memory_limit: str | float | None,
) -> Settings:
    if gpu is not None and gpu not in PRESETS:
        raise InvalidOption(
            f"astitch.enable: gpu={gpu!r} is not known\n  it is one of {', '.join(PRESETS)}"
        )
    check_strict(strict, "astitch.enable")
    check_tune(tune, "astitch.enable", background=False)
    return Settings(
        gpu,
        tune,
        strict,
        check,
        attention,
        check_option(stitch, "astitch.enable", deterministic, memory_limit),
    )


# ---- JAX's seams -------------------------------------------------------------------------------------------------


@functools.cache
def _has_seams() -> bool:
    return not why_no_hook()


@functools.cache
def why_no_hook() -> str:
    """Why programs cannot go through astitch in XLA's hook here, and what to do; nothing: the empty string."""
    try:
        import jax
        from jax._src import cache_key, compiler
        from jax.extend import xla
    except ImportError:
        return "JAX is missing, or has no hook in XLA\n  install a newer one: pip install 'astitch[jax]'"
    seams = (
        (jax, "make_user_context"),
        (xla, "register_hlo_module_transformation"),
        (compiler, "backend_compile_and_load"),
        (cache_key, "custom_hook"),
    )
    missing = [name for module, name in seams if not hasattr(module, name)]
    if missing:
        advice = "install a newer one, or decorate functions with astitch.jit"
        return f"JAX {jax.__version__} has no {missing[0]}\n  {advice}"
    return ""


def install() -> bool:
    """Takes the seams, once in a process; no backend is started.  Is there a hook?"""
    if not _has_seams():
        return False
    _take_seams()
    return True


def _install() -> None:
    if not install():
        raise EngineUnavailable(f"astitch.enable: {why_no_hook()}")


@once
def _take_seams() -> None:
    from jax._src import cache_key, compilation_cache, compiler

    context()
    # Its types do not let anybody replace them.
    parts: Any = compiler
    parts.backend_compile_and_load = _wrap_compile(parts.backend_compile_and_load)
    files: Any = compilation_cache
    if hasattr(files, "put_executable_and_time"):
        files.put_executable_and_time = _wrap_keeping(files.put_executable_and_time)
    keys: Any = cache_key
    keys.custom_hook = _wrap_key(keys.custom_hook)


def _wrap_key(before: Callable[[], str]) -> Callable[[], str]:
    @functools.wraps(before)
    def custom_hook() -> str:
        """What the key of JAX's cache on disk holds besides: how programs are stitched, and by which astitch."""
        from astitch.xla.module_cache import fingerprint

        settings = current()
        if settings == OFF:
            return before()
        mark = _mark_checked(settings)
        if not isinstance(settings, Settings):
            return f"{before()}{mark}"
        return f"{before()}{NAME} {fingerprint().hex()} {settings} {switches()}{mark}"

    return custom_hook


def _wrap_keeping(before: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(before)
    def put_executable_and_time(key: str, name: str, executable: Any, *rest: Any) -> None:
        """JAX's own; what lacks kernels for a reason that may pass is not written: a later process tries anew."""
        passing, _now.passing = _now.passing, None
        if executable is not passing or passing is None:
            before(key, name, executable, *rest)

    return put_executable_and_time


def _mark_checked(settings: Settings | str | None) -> str:
    """What keeps a program that is to be checked from coming out of the cache on disk.

    Processes of one program must have one key; their programs are checked only where they run on one process alone.
    """
    from astitch.api.checking import process_mark
    from astitch.xla.agreement import find_group

    wanted = isinstance(settings, Settings) and settings.check
    return f" checked {process_mark()}" if wanted and find_group() is None else ""


class _Now(threading.local):
    """The compile of JAX's that this thread is in."""

    compiling: Compiling | None = None
    passing: Any = None  # the executable that JAX's cache on disk is not to keep


_now = _Now()


def _answer(data: bytes) -> bytes | None:
    from astitch.api.transformation import transform

    compiling = _now.compiling
    if compiling is None:
        return None
    with _hook().deaf(_ignore):  # what astitch itself compiles
        return transform(data, compiling)


def _ignore(data: bytes) -> None:
    return None


def _fail(data: bytes, error: Exception) -> None:
    """transform has caught what may be caught; nothing may reach XLA."""
    warnings.warn(
        f"astitch: a program is left to XLA: {show_error(error)}", FaultWarning, stacklevel=2
    )


@once
def _hook() -> Callback:
    return Callback(_answer, _fail)


@once
def _register() -> str:
    """Makes XLA call us when a program is compiled, once in a process.  Returns why it cannot; the empty string: it
    can."""
    from jax.extend import xla

    try:
        xla.register_hlo_module_transformation(_hook(), name=NAME, platforms="cuda")
    except Exception as error:
        pass_interrupt(error)
        return show_error(error)
    return ""


def _wrap_compile(compile_: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compile_)
    def backend_compile_and_load(
        backend: Any,
        module: Any,
        executable_devices: Any,
        compile_options: Any,
        *rest: Any,
        **named: Any,
    ) -> Any:
        """JAX's own, with astitch in XLA's hook; once more without it where XLA refuses what astitch made."""
        from astitch.api.loop_graphs import prefer_graphs_in_loops
        from astitch.api.transformation import Compiling, Entry, journal

        wish = current()

        def compile_with(options: Any) -> Any:
            return compile_(backend, module, executable_devices, options, *rest, **named)

        def again() -> Any:
            return compile_with(compile_options)

        def untuned() -> Any:
            from astitch.library.xla_fallback import leave_untuned

            return compile_with(leave_untuned(compile_options))

        if wish == OFF or _now.compiling is not None:
            return again()
        settings = wish if isinstance(wish, Settings) else None
        devices = tuple(executable_devices)
        if not devices or devices[0].platform not in ("gpu", "cuda"):
            return again()
        if why := _register():
            journal.add(Entry(_name_of(module), 0, f"XLA's hook cannot be had: {why}", 0.0))
            return again()
        try:
            everything = settings is not None
            prefer_graphs_in_loops(module, compile_options, everything=everything)
        except Exception as error:
            pass_interrupt(error)
            warnings.warn(
                f"astitch: short loops get no CUDA graphs: {show_error(error)}\n  please report it",
                FaultWarning,
                stacklevel=2,
            )
        _now.compiling = compiling = Compiling(settings, devices)
        _now.passing = None
        try:
            made = _compile(again, compiling, untuned)
        finally:
            _now.compiling = None
        _now.passing = made if compiling.is_passing else None
        return made

    return backend_compile_and_load


def _compile(
    compile_: Callable[[], Any],
    compiling: Compiling,
    compile_untuned: Callable[[], Any] | None = None,
) -> Any:
    """The executable.  compile_untuned: see fit_memory."""
    from astitch.api.transformation import journal

    try:
        made = compile_()
    except Exception as error:
        pass_interrupt(error)
        if not compiling.stitched or compiling.is_strict:
            raise
        if compiling.leave_attention():
            journal.replace(compiling, f"XLA refuses our calls: {show_error(error)}")
            warnings.warn(
                f"astitch: attention and narrow products of {compiling.name} stay as they are: with calls of them "
                f"XLA fails: {show_error(error)}\n"
                "  please report it",
                FaultWarning,
                stacklevel=4,
            )
            return _compile(compile_, compiling, compile_untuned)
        compiling.off = compiling.is_passing = True
        made = compile_()
        journal.replace(compiling, f"XLA refuses the module with kernels: {show_error(error)}")
        warnings.warn(
            f"astitch: XLA computes all of {compiling.name}: with astitch's kernels XLA fails: {show_error(error)}\n"
            "  please report it",
            FaultWarning,
            stacklevel=4,
        )
    made = fit_memory(made, compile_, compiling, compile_untuned)
    if compiling.refusal is not None:
        raise compiling.refusal
    if compiling.stitched and not compiling.off and compiling.is_checked:
        _check(made, compile_, compiling)
    return made


def _check(made: Any, compile_: Callable[[], Any], compiling: Compiling) -> None:
    """Has the calls of what was compiled checked, or says in the report why not."""
    from astitch.api.checking import Check, check_compiled, why_unchecked
    from astitch.api.transformation import journal

    compiling.off = True
    check = Check(compiling.name, str(compiling.entry), None, raises=compiling.is_strict)
    try:
        check.reason = why_unchecked(compiling.handed, compiling.devices)
        check_compiled(made, compile_, compiling.handed, check)
    except Exception as error:
        pass_interrupt(error)
        check.reason = f"an error inside astitch: {show_error(error)}"
    journal.add_check(check)


def _name_of(module: Any) -> str:
    """What JAX calls a module of MLIR's."""
    return str(module.operation.attributes["sym_name"]).strip('"')
