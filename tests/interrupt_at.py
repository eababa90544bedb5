"""Interrupts a piece of work at one of its lines, as a signal handler does that raises there."""

from __future__ import annotations

import dis
import functools
import itertools
import linecache
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FrameType, ModuleType
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

    return _is_interrupted(trace, work)


_LOOKED_AFTER = frozenset({"RESUME", "CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD"})
"""Instructions of CPython after which it looks for signals."""


def interrupt_after(number: int, modules: Iterable[ModuleType], work: Callable[[], Any]) -> bool:
    """Runs the work, with a KeyboardInterrupt after the number-th of the modules' instructions after which a signal is
    looked for.  Was it raised?"""
    places = itertools.count()
    files = {module.__file__ for module in modules}
    last: dict[int, str] = {}  # by the frame's id: what a frame holds shall go with it

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "call":
            last[id(frame)] = ""
        elif event == "opcode":
            before = last[id(frame)]
            last[id(frame)] = _names_of(frame.f_code)[frame.f_lasti]
            if before in _LOOKED_AFTER and next(places) == number:
                raise KeyboardInterrupt
        return trace

    return _is_interrupted(trace, work)


@functools.cache
def _names_of(code: CodeType) -> dict[int, str]:
    """The instructions of a function by their offsets."""
    return {instruction.offset: instruction.opname for instruction in dis.get_instructions(code)}


def _is_interrupted(trace: Callable[..., Any], work: Callable[[], Any]) -> bool:
    """Runs the work under a trace function that may raise KeyboardInterrupt.  Was it raised?"""
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
