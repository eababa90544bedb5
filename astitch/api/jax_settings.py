"""What JAX's settings ask of a call: no execution, no tracing, guarded transfers, a search for NaNs.

Takes the arrays of a call, hands them on as the settings allow, or raises what jax.jit raises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

_ALLOW = (None, "allow")


def jax_settings() -> Hashable:
    """Every JAX setting that decides what a function lowers to (64-bit types, random numbers, precision ...)."""
    from jax._src import config  # what jax.jit itself keys its cache by; there is no public name

    key: Hashable = config.trace_context()
    return key


def is_jit_disabled() -> bool:
    import jax

    config: Any = jax.config  # its types do not name what it holds
    return bool(config.jax_disable_jit)


def may_not_run() -> bool:
    """Does jax.no_execution forbid the call, or jax_no_tracing the trace that a new signature needs?"""
    config = _config()
    return bool(config.no_execution.value or config.no_tracing.value)


def refuse_execution(name: str) -> None:
    """Raises JAX's RuntimeError where jax.no_execution forbids a call."""
    if _config().no_execution.value:
        raise RuntimeError(
            f"JAX tried to execute function {name}, but the no_execution config option is set"
        )


def reuses_keys_checked() -> bool:
    """Does JAX look for random keys that are used twice (jax.debug_key_reuse)?"""
    return bool(_config().debug_key_reuse.value)


def is_guarded() -> bool:
    """Does jax.transfer_guard log or forbid that arguments are moved to the device?"""
    return _config().transfer_guard_host_to_device.value not in _ALLOW


def transfer(leaves: Sequence[Any]) -> list[Any]:
    """The arguments as JAX arrays.  JAX moves them as jax.jit does, so that its guard logs it or raises its error."""
    import jax

    others = iter(_transfer()([leaf for leaf in leaves if not isinstance(leaf, jax.Array)]))
    return [leaf if isinstance(leaf, jax.Array) else next(others) for leaf in leaves]


@functools.cache
def _transfer() -> Callable[[list[Any]], list[Any]]:
    import jax

    move: Callable[[list[Any]], list[Any]] = jax.jit(lambda leaves: leaves)
    return move


def check_numbers(name: str, results: Sequence[Any]) -> None:
    """Raises bad_number() where jax.debug_nans or jax.debug_infs is set and a result has such a number."""
    config = _config()
    if config.debug_nans.value or config.debug_infs.value:
        import jax
        from jax._src import dispatch

        numbers = [
            result
            for result in results
            if isinstance(result, jax.Array)
            and not jax.numpy.issubdtype(result.dtype, jax.dtypes.extended)
        ]
        dispatch.check_special(name, numbers)


@functools.cache
def bad_number() -> type[Exception]:
    """What check_numbers raises."""
    from jax._src.api_util import InternalFloatingPointError

    return InternalFloatingPointError


def logs_compiles() -> bool:
    """Does jax.log_compiles ask for a line about each compilation?"""
    return bool(_config().log_compiles.value)


@functools.cache
def _config() -> Any:
    from jax._src import config  # thread-local values have no public name

    return config


def forget_with_jax(cache: Any) -> None:
    """Calls cache.cache_clear() when jax.clear_caches() is called, for as long as the object lives."""
    from jax._src import util

    util.register_cache(cache, "astitch.jit")
