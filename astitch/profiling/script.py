"""A script -> the programs that JAX compiles while it runs, each as a Target.

Runs the script as `python FILE` would, and listens where JAX hands modules to its compiler.  What it hands on is
profiled afterwards.
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from astitch.errors import AstitchError
from astitch.graph.ir import ArrayType
from astitch.hlo.schema import name_of_module
from astitch.hlo_import import import_hlo
from astitch.profiling.target import HOOK, Target
from astitch.xla.hook import is_worth, read_module

MOST_PROGRAMS = 5
"""Programs of a script that are profiled unless --programs says otherwise."""


SHORT_WAY = "_get_fastpath_data"
"""Of jax._src.pjit: what makes JAX's short way from a function to its executable."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A program as JAX handed it to its compiler.  bytes: of all results of its ops, each computed once.

    calls: how often the script called it; 0 where this JAX does not tell.
    """

    name: str
    hlo: bytes
    bytes: int
    calls: int = 0

    @property
    def weight(self) -> int:
        """Bytes in the whole run."""
        return self.bytes * max(self.calls, 1)


def is_script(text: str) -> bool:
    """Is a target a file to run: Python without a function behind a colon and without a hook?"""
    path = Path(text)
    if path.suffix != ".py" or not path.is_file():
        return False
    return not re.search(
        rf"^(?:async )?def {HOOK}\b|^{HOOK} *=", path.read_text("utf-8"), re.MULTILINE
    )


def read_script(
    text: str, arguments: Sequence[str] = (), most: int = MOST_PROGRAMS
) -> list[Target]:
    """The programs of a script that work most in its whole run, the first one most.  Raises AstitchError for a script
    that fails or that compiles nothing worth a look."""
    found = run_script(Path(text), arguments)
    if not found:
        raise AstitchError(
            f"{text}: JAX compiles nothing in it in which something could be stitched\n"
            "  let the script call its jitted functions, or give module:function"
        )
    largest = sorted(found, key=lambda program: -program.weight)
    left = [program.name for program in largest[most:]]
    more = f"{len(left)} smaller programs were left out: {', '.join(left[:8])}"

    def describe(program: Captured) -> tuple[str, ...]:
        times = {0: "", 1: ", called once"}.get(program.calls, f", called {program.calls} times")
        whole = f"one of {len(found)} programs that {text} compiled{times}"
        return (whole, *([more] if left else []))

    return [
        replace(
            Target(program.name, program.hlo),
            notes=describe(program),
            typed=(text, program.name),
        )
        for program in largest[:most]
    ]


def run_script(path: Path, arguments: Sequence[str]) -> list[Captured]:
    """Runs a script, and hands on what JAX compiled of several ops, each program once.  Raises AstitchError."""
    found: dict[bytes, Captured] = {}
    calls: Counter[bytes] = Counter()
    argv, folder = sys.argv, str(path.resolve().parent)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, folder)
    try:
        with _listening(found, calls):
            runpy.run_path(str(path), run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0) and not found:
            raise AstitchError(f"{path}: it ended with status {error.code}\n  mend that") from error
    except Exception as error:
        first = (str(error).splitlines() or ["no message"])[0]
        raise AstitchError(
            f"{path}: {type(error).__name__}: {first}\n  the script must run by itself: python {path}"
        ) from error
    finally:
        sys.argv = argv
        if folder in sys.path:
            sys.path.remove(folder)
    return [replace(program, calls=calls[program.hlo]) for program in found.values()]


@contextlib.contextmanager
def _listening(found: dict[bytes, Captured], calls: Counter[bytes]) -> Iterator[None]:
    """Within the block, each module that JAX compiles is added to `found`, and each call of it to `calls`."""
    try:
        from jax._src import compiler
    except ImportError:
        raise AstitchError(
            "a script's programs are JAX's, and JAX is missing\n  pip install 'astitch[profile]'"
        ) from None
    parts: Any = compiler
    before = parts.compile_or_get_cached

    # By its address, with the executable itself so that no other one gets it.
    compiled: dict[int, tuple[Any, bytes]] = {}

    def compile_or_get_cached(backend: Any, computation: Any, *rest: Any, **named: Any) -> Any:
        hlo = b""
        # What cannot be read is none of the profile's; the script goes on.
        with contextlib.suppress(Exception):
            hlo = _read_hlo(computation)
            if is_worth(read_module(hlo)) and hlo not in found:
                found[hlo] = Captured(name_of_module(hlo), hlo, _count_bytes(hlo))
        executable = before(backend, computation, *rest, **named)
        if hlo in found:
            compiled[id(executable)] = executable, hlo
        return executable

    def note_call(executable: Any) -> None:
        if known := compiled.get(id(executable)):
            calls[known[1]] += 1

    parts.compile_or_get_cached = compile_or_get_cached
    try:
        with _counting(note_call):
            yield
    finally:
        parts.compile_or_get_cached = before


@contextlib.contextmanager
def _counting(note: Callable[[Any], None]) -> Iterator[None]:
    """Within the block, each call of a compiled program is noted, with its executable; nothing where JAX has changed.

    JAX's short way from a jitted function to its executable passes by no Python, so it is closed meanwhile.
    """
    try:
        from jax._src import pjit
        from jax._src.interpreters import pxla

        ways: Any = pjit
        runner: Any = pxla.ExecuteReplicated
        short, call = getattr(ways, SHORT_WAY), runner.__call__
    except (ImportError, AttributeError):
        yield
        return

    def counted(self: Any, *arguments: Any) -> Any:
        note(self.xla_executable)
        return call(self, *arguments)

    setattr(ways, SHORT_WAY, lambda *_, **__: None)
    runner.__call__ = counted
    try:
        yield
    finally:
        setattr(ways, SHORT_WAY, short)
        runner.__call__ = call


def _read_hlo(module: Any) -> bytes:
    """A module of MLIR's as a serialized HloModuleProto."""
    from jax._src.lib import _jax  # type: ignore[attr-defined]

    written = io.BytesIO()
    module.operation.write_bytecode(file=written)
    made = _jax.mlir.mlir_module_to_xla_computation(
        written.getvalue(), use_tuple_args=False, return_tuple=False
    )
    # In a profile nothing is donated, on either side.
    proto = read_module(bytes(made.as_serialized_hlo_module_proto()))
    proto.ClearField("input_output_alias")
    proto.ClearField("buffer_donor")
    return bytes(proto.SerializeToString(deterministic=True))


def _count_bytes(hlo: bytes) -> int:
    graph = import_hlo(hlo, trusted=True)
    return sum(
        node.type.bytes
        for node in graph
        if isinstance(node.type, ArrayType) and not node.is_parameter and not node.is_constant
    )
