"""HLO as StableHLO, the form in which XLA takes modules: takes and hands on serialized modules.

XLA's own translation leaves some instructions in MHLO, a dialect that XLA's plugins do not read.  What JAX writes in
CHLO is written so here.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from typing import Any

from astitch.system.forks import fork_waits

_DOT_NUMBERS = re.compile(r"dot_dimension_numbers = #mhlo\.dot<([^<>]*)>")


def hlo_of(jax_lowered: Any) -> bytes:
    """The serialized HloModuleProto of a function that JAX lowered."""
    return bytes(jax_lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())


def to_stablehlo(hlo: bytes) -> bytes:
    """A serialized HloModuleProto as serialized StableHLO.

    Raises RuntimeError or ValueError (XLA's and MLIR's) for an instruction that has no such form.
    """
    from jax._src.lib import _jax  # type: ignore[attr-defined]

    module = bytes(_jax.mlir.hlo_to_stablehlo(hlo))
    return _rewrite(module) if b"ragged-dot" in hlo else module


_TRANSLATE = """
import sys
sys.path[:] = sys.argv[1:]
from jaxlib import _jax
try:
    _jax.mlir.hlo_to_stablehlo(sys.stdin.buffer.read())
except Exception:
    pass
"""


def ends_process(hlo: bytes) -> bool:
    """Does XLA end the process that has it translate a serialized HloModuleProto?  It does for some that break HLO's
    rules, so a process of its own is asked, which takes a quarter of a second."""
    with fork_waits():
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _TRANSLATE, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
    with process:
        try:
            process.communicate(hlo)
        except BaseException:
            process.kill()
            raise
    return process.returncode != 0


def find_foreign(module: bytes) -> str:
    """The first op of serialized StableHLO that no plugin of XLA's reads; the empty string where there is none.

    Raises ValueError where an op breaks StableHLO's rules.
    """
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir  # type: ignore[attr-defined]

    found: list[str] = []

    def note(operation: Any) -> Any:
        if operation.name.startswith("mhlo."):
            found.append(operation.name)
        return ir.WalkResult.ADVANCE

    with mlir.make_ir_context():
        try:
            parsed = ir.Module.parse(module)
        except ir.MLIRError as error:
            raise ValueError(" ".join(str(error).splitlines()[:2])) from None
        parsed.operation.walk(note)
    return next(iter(found), "")


def _rewrite(module: bytes) -> bytes:
    """The module with its ragged products in CHLO."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir  # type: ignore[attr-defined]

    found: list[Any] = []

    def collect(operation: Any) -> Any:
        if operation.name == "mhlo.ragged_dot":
            found.append(operation)
        return ir.WalkResult.ADVANCE

    with mlir.make_ir_context():
        parsed = ir.Module.parse(module)
        parsed.operation.walk(collect)
        for operation in found:
            held = [operation.attributes[i] for i in range(len(operation.attributes))]
            attributes = {
                attribute.name: ir.Attribute.parse(_render_in_chlo(str(attribute.attr)))
                for attribute in held
            }
            product = ir.Operation.create(
                "chlo.ragged_dot",
                results=[result.type for result in operation.results],
                operands=list(operation.operands),
                attributes=attributes,
                loc=operation.location,
                ip=ir.InsertionPoint(operation),
            )
            for before, after in zip(operation.results, product.results, strict=True):
                before.replace_all_uses_with(after)
            operation.erase()
        written = io.BytesIO()
        parsed.operation.write_bytecode(file=written)
        return written.getvalue()


def _render_in_chlo(attribute: str) -> str:
    """An attribute's text: CHLO names the dimensions of the product beside the ragged ones."""
    return _DOT_NUMBERS.sub(r"\1", attribute).replace("<, ", "<").replace("#mhlo", "#chlo")
