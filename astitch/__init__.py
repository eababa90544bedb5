"""astitch: a just-in-time stitching compiler for the memory-intensive parts of ML programs on NVIDIA GPUs.

    astitch.enable       every program that JAX compiles for an NVIDIA GPU; disable, enabled(), disabled(), report
    astitch.jit          where jax.jit stands: one function
    astitch.compile_hlo  any HLO module, proto or text -> what was made of it
    astitch.profile      XLA and astitch side by side -> a Report
    astitch.export_plans what was tuned here, for other machines: astitch.import_plans
    astitch.status       versions, settings and counters of this process; metrics() for Prometheus

Importing it imports neither JAX nor CuPy: each comes in when it is first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Bound here at once: were the module astitch.jit first imported later, it would take the function's place.
from astitch.jit import jit

if TYPE_CHECKING:
    from astitch.api.enabling import disable, disabled, enable, enabled, report
    from astitch.api.status import status
    from astitch.compile import compile_hlo
    from astitch.events import metrics
    from astitch.profiling import profile
    from astitch.search.travelling_plans import export_plans, import_plans

__all__ = [
    "compile_hlo",
    "disable",
    "disabled",
    "enable",
    "enabled",
    "export_plans",
    "import_plans",
    "jit",
    "metrics",
    "profile",
    "report",
    "status",
]


def __getattr__(name: str) -> Any:
    if name in ("disable", "disabled", "enable", "enabled", "report"):
        from astitch.api import enabling

        return getattr(enabling, name)
    if name == "compile_hlo":
        from astitch.compile import compile_hlo

        return compile_hlo
    if name == "status":
        from astitch.api.status import status

        return status
    if name == "metrics":
        from astitch.events import metrics

        return metrics
    if name in ("export_plans", "import_plans"):
        from astitch.search import travelling_plans

        return getattr(travelling_plans, name)
    if name == "profile":
        from astitch.profiling import profile

        return profile
    raise AttributeError(f"module 'astitch' has no attribute {name!r}")
