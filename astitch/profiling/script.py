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
from collections.abc import Iterator, Sequence
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


@dataclass(frozen=True, slots=True)
class Captured:
    """A program as JAX handed it to its compiler.  bytes: of all results of its ops, each computed once."""

    name: str
    hlo: bytes
    bytes: int


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
    """The largest programs of a script, the largest first.  Raises AstitchError for a script that fails or that
    compiles nothing worth a look."""
    found = run_script(Path(text), arguments)
    if not found:
        raise AstitchError(
            f"{text}: JAX compiles nothing in it in which something could be stitched\n"
            "  let the script call its jitted functions, or give module:function"
        )
    largest = sorted(found, key=lambda program: -program.bytes)
    left = [program.name for program in largest[most:]]
    more = f"{len(left)} smaller programs were left out: {', '.join(left[:8])}"
    notes = (f"one of {len(found)} programs that {text} compiled", *([more] if left else []))
    return [
        replace(Target(program.name, program.hlo), notes=notes, typed=(text, program.name))
        for program in largest[:most]
    ]


def run_script(path: Path, arguments: Sequence[str]) -> list[Captured]:
    """Runs a script, and hands on what JAX compiled of several ops, each program once.  Raises AstitchError."""
    found: dict[bytes, Captured] = {}
    argv, folder = sys.argv, str(path.resolve().parent)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, folder)
    try:
        with _listening(found):
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
    return list(found.values())


@contextlib.contextmanager
def _listening(found: dict[bytes, Captured]) -> Iterator[None]:
    """Within the block, each module that JAX compiles is added to `found`."""
    try:
        from jax._src import compiler
    except ImportError:
        raise AstitchError(
            "a script's programs are JAX's, and JAX is missing\n  pip install 'astitch[profile]'"
        ) from None
    parts: Any = compiler
    before = parts.compile_or_get_cached

    def compile_or_get_cached(backend: Any, computation: Any, *rest: Any, **named: Any) -> Any:
        # What cannot be read is none of the profile's; the script goes on.
        with contextlib.suppress(Exception):
            hlo = _read_hlo(computation)
            if is_worth(read_module(hlo)) and hlo not in found:
                found[hlo] = Captured(name_of_module(hlo), hlo, _count_bytes(hlo))
        return before(backend, computation, *rest, **named)

    parts.compile_or_get_cached = compile_or_get_cached
    try:
        yield
    finally:
        parts.compile_or_get_cached = before


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
