"""Hardware counters of each kernel, by Nsight Compute where it is installed.

Takes a command that runs both sides once, hands on counters by kernel: DRAM transactions, instructions, occupancy.
"""

from __future__ import annotations

import shutil

from astitch.errors import AstitchError


def find_ncu() -> str:
    """The path of Nsight Compute.  Raises AstitchError."""
    found = shutil.which("ncu")
    if found is None:
        raise AstitchError(
            "--ncu needs Nsight Compute, and there is no ncu on the PATH\n  install it, or leave --ncu out"
        )
    return found
