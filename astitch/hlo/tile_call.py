"""A tile program as a custom call, whose Triton IR XLA compiles.

The format is that of JAX's lowering (jax/_src/pallas/triton/pallas_call_registration.py).
"""

from __future__ import annotations

from astitch.graph.ir import CustomCallAttrs, Node, Type
from astitch.hlo.mlir_text import TYPED_FFI, quote
from astitch.tile.program import TileProgram
from astitch.tile.triton_ir import write_triton_ir

TRITON = "__gpu$xla.gpu.triton"
"""The target of the custom calls."""


def render_tile_call(origin: Node, name: str, type_: Type, program: TileProgram) -> Node:
    """The call, with the operands of the node that it stands for."""
    return Node(
        name,
        "custom-call",
        type_,
        origin.operands,
        CustomCallAttrs(TRITON, write_config(program), TYPED_FFI),
        op_name=origin.op_name,
        source=origin.source,
    )


def write_config(program: TileProgram) -> bytes:
    """The MLIR dictionary by which XLA compiles and launches a tile program."""
    numbers = {
        "num_stages": program.stages,
        "num_warps": program.warps,
        **{f"grid_{axis}": blocks for axis, blocks in zip("xyz", program.grid, strict=True)},
    }
    fields = [f"name = {quote(program.name.encode())}"]
    fields.append(f"ir = {quote(write_triton_ir(program).encode())}")
    fields += [f"{name} = {number} : i32" for name, number in numbers.items()]
    fields.append("debug = false")
    return f"{{{', '.join(fields)}}}".encode()
