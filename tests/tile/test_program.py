"""Tile programs: what cannot be written, and what the interpreter finds."""

from __future__ import annotations

import numpy as np
import pytest

from astitch.errors import IllegalProduct
from astitch.graph.ir import DType
from astitch.tile.interpret import WrongAccess, interpret, round_factor
from astitch.tile.program import Builder, Parameter, TileProgram, TileType
from astitch.tile.triton_ir import write_triton_ir


def scale_by_two(extent: int, tile: int, *, masked: bool = True, step: int | None = None):
    """y = 2 x, a tile a block."""
    b = Builder()
    places = b.program_id(0) * (tile if step is None else step) + b.range(tile)
    mask = places < extent if masked else None
    x = b.load(0, DType.F32, places, mask)
    b.store(1, places, x * 2.0, mask)
    array = Parameter(DType.F32, extent)
    blocks = -(-extent // tile)
    return TileProgram("twice", (array, array), 1, b.statements(), (blocks, 1, 1), 4, 1)


def test_a_program_computes() -> None:
    x = np.arange(20, dtype=np.float32)
    (y,) = interpret(scale_by_two(20, 8), [x])
    np.testing.assert_array_equal(y, 2 * x)


@pytest.mark.parametrize(
    "program, said",
    [
        (scale_by_two(20, 8, masked=False), "reads or writes 16 to 23 of parameter 0 of 20"),
        (scale_by_two(16, 8, step=4), "writes an element again"),
        (scale_by_two(24, 8, step=9), "leaves out elements of its result 0"),
    ],
)
def test_wrong_accesses_are_found(program: TileProgram, said: str) -> None:
    x = np.zeros(program.parameters[0].size, np.float32)
    with pytest.raises(WrongAccess, match=said):
        interpret(program, [x])


def test_operands_have_the_types_of_the_parameters() -> None:
    with pytest.raises(WrongAccess, match="takes"):
        interpret(scale_by_two(20, 8), [np.zeros(20)])


def test_what_is_no_tile_cannot_be_written() -> None:
    b = Builder()
    x, y = b.full((4, 8), 1.0), b.full((8, 8), 1.0)
    with pytest.raises(IllegalProduct, match="no powers of two"):
        TileType(DType.F32, (3,))
    with pytest.raises(IllegalProduct, match="no product"):
        b.dot(x, x, x, "tf32")
    with pytest.raises(IllegalProduct, match="not repeated"):
        b.broadcast(x, (8, 8))
    with pytest.raises(IllegalProduct, match="one op on"):
        b.elementwise("add", x, b.convert(x, DType.BF16))
    with pytest.raises(IllegalProduct, match="other types"):
        b.loop(b.scalar(0), b.scalar(2), 1, (x,), lambda at, x: (y,))


def test_a_loop_hands_on_what_a_turn_makes() -> None:
    b = Builder()
    one, two = b.loop(
        b.scalar(1), b.scalar(6), 2, (b.scalar(0), b.scalar(1)), lambda at, x, y: (x + at, y * 2)
    )
    b.store(0, b.scalar(0), one)
    b.store(0, b.scalar(1), two)
    program = TileProgram("sums", (Parameter(DType.S32, 2),), 0, b.statements(), (1, 1, 1), 4, 1)
    (found,) = interpret(program, [])
    assert list(found) == [1 + 3 + 5, 8]
    text = write_triton_ir(program)
    assert "scf.for" in text and "#0" in text and "#1" in text


def test_tf32_keeps_ten_bits() -> None:
    x = np.float32([1 + 2**-10, 1 + 2**-11, 1 + 3 * 2**-11, -np.inf, np.nan, 3.0e38])
    found = round_factor(x, "tf32")
    np.testing.assert_array_equal(found[:4], np.float32([1 + 2**-10, 1, 1 + 2**-9, -np.inf]))
    assert np.isnan(found[4])
    assert round_factor(x, "tf32x3") is x
