"""What astitch is and has done in this process, as one value: for a health page, a log or a bug report."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import Any

from astitch import options
from astitch.api.installation import version_of
from astitch.api.settings import OFF, Settings, current
from astitch.device.cuda_driver import driver_version
from astitch.events import read_counters


@dataclass(frozen=True, slots=True)
class Status:
    """astitch, jax: versions; jax: empty where it is missing.  driver: CUDA's version of it, "12.8"; empty: none.

    enabled: is every program of JAX's stitched in this thread?  settings: how, by the names of astitch.enable's
    options.  environment: the ASTITCH_ names that are set.  caches: their folder.  counters: see astitch.metrics.
    """

    astitch: str
    jax: str
    driver: str
    enabled: bool
    settings: dict[str, Any]
    environment: dict[str, str]
    caches: str
    counters: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        driver = f"CUDA {self.driver}" if self.driver else "none"
        jax = self.jax or "none"
        lines = [f"astitch {self.astitch}, JAX {jax}, driver: {driver}"]
        how = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        lines.append(
            f"enabled for every program: {'yes' if self.enabled else 'no'}"
            + (f" ({how})" if how else "")
        )
        if self.enabled and not self.driver:
            lines.append(
                "  there is no GPU: XLA compiles them as ever, and only astitch.jit has kernels, in the emulation"
            )
        lines += [f"{name}={value}" for name, value in self.environment.items()]
        lines.append(f"caches: {self.caches}")
        lines += [f"{name} {value:.10g}" for name, value in self.counters.items()]
        return "\n".join(lines)


def status() -> Status:
    """What holds in this process and thread, and what was counted.  It imports nothing and starts nothing."""
    settings = current() if "jax" in sys.modules else None
    driver = driver_version()
    given = asdict(settings) if isinstance(settings, Settings) else {}
    return Status(
        version_of("astitch") or "from a folder",
        version_of("jax"),
        ".".join(map(str, driver)) if driver else "",
        settings is not None and settings != OFF,
        {name: value for name, value in given.items() if value != getattr(Settings(), name)},
        options.list_set(),
        str(options.cache_dir()),
        read_counters(),
    )
