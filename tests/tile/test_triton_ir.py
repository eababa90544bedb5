"""Triton IR as text: one kernel's whole."""

from __future__ import annotations

import difflib
from pathlib import Path

from astitch.graph.ir import DType
from astitch.tile.attention import write_forward
from astitch.tile.attention_shape import AttentionShape, Layout
from astitch.tile.program import Builder, Parameter, TileProgram
from astitch.tile.rates import find_rates
from astitch.tile.triton_ir import write_triton_ir

GOLDEN = Path(__file__).parents[1] / "golden" / "attention_forward.ttir"
HEADS, POSITIONS, FEATURES = 12, 1000, 80
ROW = HEADS * FEATURES


def test_a_forward_kernel_is_written_as_before(update_golden: bool) -> None:
    """Causal, in f32, with masks of the last tile and of features beyond 80; heads of a position lie together."""
    layout = Layout(DType.F32, 8 * POSITIONS * ROW, (POSITIONS * ROW, FEATURES, ROW, 1), FEATURES)
    shape = AttentionShape(8, HEADS, HEADS, POSITIONS, POSITIONS, 0.125, True, 0, *[layout] * 4)
    rates = find_rates(shape)
    assert rates
    text = write_triton_ir(write_forward(shape, rates.forward.tiling))
    if update_golden:
        GOLDEN.write_text(text)
    changed = difflib.unified_diff(GOLDEN.read_text().splitlines(), text.splitlines(), lineterm="")
    assert not list(changed)


def test_one_condition_is_written_without_its_type() -> None:
    builder = Builder()
    builder.store(0, builder.range(16), builder.elementwise("equal", builder.range(16) < 3, 0))
    parameters = (Parameter(DType.PRED, 16),)
    text = write_triton_ir(TileProgram("f", parameters, 0, builder.statements(), (1, 1, 1), 4, 1))
    assert "arith.constant false\n" in text
