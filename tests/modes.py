"""Processes that modes of files bind, whoever runs the tests.

`python tests/modes.py COMMAND ...` runs a command so.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

PR_CAPBSET_DROP = 24
OVERRIDES = 1, 2
"""The capabilities by which root reads and writes what modes forbid: CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH."""

STRANGER = 12345
"""Nobody's number."""


def obeying(*command: str) -> list[str]:
    """The command that runs another one which obeys modes, as root too."""
    return [sys.executable, str(Path(__file__)), *command]


def give_away(folder: Path) -> None:
    """All in a folder becomes another user's, where this one may give it away."""
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, STRANGER, STRANGER)


if __name__ == "__main__":
    if os.geteuid() == 0:
        for capability in OVERRIDES:
            ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.execvp(sys.argv[1], sys.argv[1:])
