"""Interrupts a piece of work at one of its lines, as a signal handler does that raises there."""

from __future__ import annotations

import itertools
import linecache
import sys
from collections.abc import Callable, Iterable
from types import FrameType, ModuleType
from typing import Any


def interrupt_at(
    number: int, modules: Iterable[ModuleType], work: Callable[[], Any], apart: Any = None
) -> bool:
    """Runs the work, with a KeyboardInterrupt at the line of the modules that this thread comes to as the number-th.

    apart: a function whose own lines are not counted.  Was it raised?  It is not where the work has fewer lines.
    """
    lines = itertools.count()
    files = {module.__file__ for module in modules}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        if apart is not None and frame.f_code is apart.__code__:
            return None
        # Where no signal is looked for: `try`, and the end of a `with`, which is traced once more before its __exit__.
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if text.startswith("with ") or text == "try:":
            return trace
        if event in ("call", "line") and next(lines) == number:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
