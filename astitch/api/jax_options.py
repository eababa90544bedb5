"""The options of jax.jit that astitch.jit hands on, and which of them an engine cannot honour.

Takes what a user gave, hands on what jax.jit is to get, and the reason why XLA has to compute a function as a whole.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from astitch.errors import JaxMissing, UnknownOption

DEFAULTS: Mapping[str, Any] = {
    "in_shardings": None,
    "out_shardings": None,
    "static_argnums": None,
    "static_argnames": None,
    "donate_argnums": None,
    "donate_argnames": None,
    "keep_unused": False,
    "device": None,
    "backend": None,
    "inline": False,
    "compiler_options": None,
}
"""The options of jax.jit with values that mean the same as leaving them out."""

PLACES = ("in_shardings", "out_shardings", "device", "backend")
"""The options that say on which devices a function runs."""

OF_ARGUMENTS = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")
"""The options that say what an argument is."""


def import_jax() -> Any:
    """JAX.  Raises JaxMissing."""
    try:
        import jax
    except ModuleNotFoundError as error:
        if error.name != "jax":
            raise
        raise JaxMissing(
            "astitch.jit compiles functions of JAX, which is not installed\n"
            "  pip install 'astitch[jax]'; on a GPU also jax[cuda13] or jax[cuda12]"
        ) from None
    return jax


def keep_given(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options with another value than the default."""
    return {name: value for name, value in given.items() if not _is_default(name, value)}


def _is_default(name: str, value: object) -> bool:
    default = DEFAULTS.get(name, inspect.Parameter.empty)
    # Shardings are compared by identity: some are arrays of devices, whose == is an array.
    return value is default or (type(value) is type(default) and value == default)


def check_others(others: Mapping[str, Any], own: Iterable[str]) -> dict[str, Any]:
    """Options that only the installed JAX knows, those with its defaults left out.

    own: the names that astitch.jit takes.  Raises UnknownOption for what jax.jit does not take either.
    """
    if not others:
        return {}
    known = inspect.signature(import_jax().jit).parameters
    for name, value in others.items():
        if name not in known or known[name].kind is not inspect.Parameter.KEYWORD_ONLY:
            raise UnknownOption(
                f"astitch.jit: it does not take {name}={value!r}\n  it takes {', '.join(own)}"
            )
    return {name: value for name, value in others.items() if value is not known[name].default}


def list_shardings(options: Mapping[str, Any]) -> list[Any]:
    """What in_shardings and out_shardings name: shardings, formats, partition specs."""
    import jax
    from jax._src.sharding_impls import UnspecifiedValue  # type: ignore[attr-defined]

    spec: Any = jax.sharding.PartitionSpec  # a tuple where JAX is old
    leaves = jax.tree_util.tree_leaves(
        [options.get("in_shardings"), options.get("out_shardings")],
        is_leaf=lambda leaf: isinstance(leaf, spec),
    )
    return [leaf for leaf in leaves if not isinstance(leaf, UnspecifiedValue)]


def find_place_option(options: Mapping[str, Any]) -> str:
    """Why an engine of ours, which runs on one device of its own choice, cannot honour the options; nothing: the empty
    string."""
    shardings = list_shardings(options)
    for name in PLACES:
        if name in options and (shardings or not name.endswith("shardings")):
            return f"{name} was given, and only XLA runs it there"
    if unknown := sorted(options.keys() - DEFAULTS.keys()):
        return f"{unknown[0]} was given, which only jax.jit knows"
    return ""


def find_spread_option(options: Mapping[str, Any]) -> str:
    """Which options spread a function over several devices; nothing: the empty string."""
    for sharding in list_shardings(options):
        devices = getattr(getattr(sharding, "sharding", sharding), "device_set", None)
        if devices is None or len(devices) > 1:
            return "its in_shardings or out_shardings name several devices"
    return ""


def check_compiler_options(options: Mapping[str, Any] | None) -> None:
    """Raises what JAX raises for settings that XLA does not know.

    An engine of ours may have nothing for XLA to compile, so that nobody else would ask.
    """
    if options:
        import jax

        jax.jit(lambda x: x, compiler_options=dict(options)).lower(0.0).compile()
