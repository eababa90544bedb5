"""How long XLA's scheduler reckons that collectives take, read off its log.

XLA has a table of collectives measured on H100s, from which it interpolates.  Its scheduler puts as much work beside a
collective as that says.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping

from tests.waits import Waits, list_beside

_TIMES = re.compile(rb"Computed collective time for (\S+): ([\d.]+) us\n")


def ask_for_times() -> None:
    """XLA logs the times from now on.  To be called before JAX loads XLA's plugin."""
    os.environ["TF_CPP_VMODULE"] = "sol_latency_estimator=10"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"


@contextlib.contextmanager
def read_times() -> Iterator[dict[str, float]]:
    """What XLA logs here: us by the name of the instruction that starts a collective; there at the end of the block.

    Nothing else that the process writes to stderr in the block is shown.
    """
    times: dict[str, float] = {}
    sys.stderr.flush()
    shown = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            yield times
        finally:
            sys.stderr.flush()
            os.dup2(shown, 2)
            os.close(shown)
            log.seek(0)
            times |= {name.decode(): float(us) for name, us in _TIMES.findall(log.read())}


def cover(
    plain: Waits, stitched: Waits, times: tuple[Mapping[str, float], Mapping[str, float]]
) -> tuple[float, float]:
    """The work beside collectives without kernels and with them, us, as Comparison.beside has it; of each collective
    at most what XLA reckons for it.

    times: of the two programs.  A collective that XLA does not run beside others has none.
    """
    one, other = (
        sum(
            min(us, took.get(exchanged.name, 0.0))
            for us, exchanged in zip(
                list_beside(plain, waits, stitched), waits.exchanged, strict=True
            )
        )
        for waits, took in zip((plain, stitched), times, strict=True)
    )
    return one, other
