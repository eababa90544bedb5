"""Every error that astitch raises on purpose.

Each message says where (computation and instruction), what, and what to do next.
"""

from __future__ import annotations


class AstitchError(Exception):
    """Base of all errors raised on purpose by astitch."""


class MalformedHlo(AstitchError):
    """The HLO module cannot be read: truncated, inconsistent, or with elided constants."""


class UnsupportedOp(AstitchError):
    """An opcode (or a form of it) that no part of astitch can compute."""


class UnsupportedType(AstitchError):
    """An element type that astitch does not know."""


class DynamicShape(AstitchError):
    """A shape whose extents are not all known at compile time."""


class ArgumentMismatch(AstitchError, TypeError):
    """The number, shape or dtype of the arguments differs from what the program was compiled for.

    A TypeError too, which is what JAX raises for it.
    """


class OtherDevice(ArgumentMismatch, ValueError):
    """Arrays that lie on several devices, or on another one than the program's.

    A ValueError too, which is what JAX raises for it.
    """


class IllegalProduct(AstitchError):
    """A stage handed on a Graph, Plan, Kernel or Program that breaks its own rules: a bug in astitch."""


class KernelCompileError(AstitchError):
    """The CUDA or the host compiler refused emitted text.

    source: the text, kernel: the name of the kernel, where they are known.
    """

    source = kernel = ""


class CompilerMissing(KernelCompileError):
    """There is no CUDA or host compiler that emitted text could be given to, or no room for it to work in."""


class FallbackRefused(AstitchError):
    """XLA refused to compile the part of a program that no emitted kernel and no library computes."""


class KernelFault(AstitchError):
    """The emulation found a fault in a kernel: race, out of bounds, uninitialised read, deadlock."""


class ResultMismatch(AstitchError):
    """A stitched program and XLA's own version of it differ by more than rounding: a bug in astitch, or in XLA."""


class LaunchRefused(AstitchError):
    """A launch that would hang or fail: blocks that cannot be resident together, too much shared memory.

    kernel: the name of the kernel, where that is known.
    """

    kernel = ""


class OutOfMemory(AstitchError):
    """The device, or the host in its place, has no room for the arena, a kernel, an argument, a result or a copy."""


class InvalidOption(AstitchError):
    """An ASTITCH_* environment name with a value that it does not take."""


class UnknownOption(InvalidOption, TypeError):
    """An argument of astitch.jit that it does not have.

    A TypeError too, which is what Python raises for it.
    """


class EngineUnavailable(AstitchError):
    """An engine misses what it runs on: CuPy or a GPU, or JAX for what XLA computes."""


class JaxMissing(EngineUnavailable, ImportError):
    """astitch.jit was asked for where JAX is not installed.

    An ImportError too, which is what Python raises for it.
    """


def first_line(error: Exception) -> str:
    """What an error says first; its type where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]
