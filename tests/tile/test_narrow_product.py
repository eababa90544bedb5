"""The kernels of products of few rows, interpreted: what the op means, for random extents, types and layouts."""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astitch.graph.ir import ArrayType, DType, NarrowProductAttrs, Node
from astitch.graph.ops import OPS
from astitch.graph.ops.narrow_product import FACTORS, INTEGERS, PACKED
from astitch.hlo.narrow_product import describe_shape
from astitch.tile.interpret import interpret
from astitch.tile.narrow_product import NarrowShape, NarrowTiling, write_narrow_product
from astitch.tile.narrow_rates import choose_share, choose_tiling
from astitch.tile.triton_ir import write_triton_ir

GOLDEN = Path(__file__).parents[1] / "golden" / "narrow_product.ttir"
TOLERANCES = {DType.F32: 2e-3, DType.BF16: 1e-2, DType.F16: 2e-3}
"""Norm of the error: factors of f32 are rounded to TF32, results of one part to the type of x."""

GROUPED = NarrowShape(
    factor=DType.BF16,
    weights=DType.S4,
    result=DType.F32,
    layers=3,
    batch=1,
    rows=5,
    depth=256,
    columns=(96, 160),
    scales=DType.BF16,
    groups=4,
    share=128,
    scale=True,
    layer=True,
)


def draw_operands(s: NarrowShape, random: np.random.Generator) -> list[np.ndarray]:
    half = 2 if s.weights in PACKED else 1

    def normal(*shape: int, dtype: DType = s.factor) -> np.ndarray:
        return random.standard_normal(shape).astype(dtype.numpy)

    def weights(columns: int) -> np.ndarray:
        inner = (columns, s.depth // half) if s.transposed else (s.depth, columns // half)
        shape = (s.layers, s.batch, *inner)
        if s.weights.is_float:
            return normal(*shape)
        return random.integers(-128, 128, shape).astype(np.int8).astype(s.stored.numpy)

    def beside(columns: int, dtype: DType) -> np.ndarray:
        inner = (columns, s.groups) if s.scales_transposed else (s.groups, columns)
        return normal(s.layers, s.batch, *inner, dtype=dtype)

    x = normal(s.given, s.rows, s.depth)
    if s.is_packed and s.transposed:
        x = np.moveaxis(x.reshape(s.given, s.rows, -1, 2), -1, 0)
    operands = [x, *map(weights, s.columns)]
    for present, dtype in ((s.offset, s.factor), (s.scale, s.scales)):
        operands += [beside(columns, dtype) for columns in s.columns if present]
    return [*operands, np.array(s.layers - 1, np.int32)] if s.layer else operands


def make_node(s: NarrowShape, operands: list[np.ndarray]) -> tuple[Node, list[ArrayType]]:
    attrs = NarrowProductAttrs(
        s.weights,
        s.share,
        len(s.columns),
        s.transposed,
        s.offset,
        s.scale,
        s.scales_transposed,
        s.layer,
    )
    types = [ArrayType(DType.of(x.dtype), x.shape) for x in operands]
    names = tuple(f"p{number}" for number in range(len(types)))
    node = Node("product", "narrow-product", ArrayType(s.result, ()), names, attrs)
    return replace(node, type=OPS[node.op].rule(node, types)), types


def check(s: NarrowShape, tiling: NarrowTiling | None = None) -> None:
    """The kernel gives what the op means, and is written as Triton IR."""
    operands = draw_operands(s, np.random.default_rng(0))
    node, types = make_node(s, operands)
    shape = describe_shape(node, types)
    assert shape == s
    tiling = tiling or choose_tiling(shape)
    assert tiling
    program = write_narrow_product(shape, tiling)
    assert "tt.func" in write_triton_ir(program)
    meaning = OPS[node.op].meaning
    assert meaning
    want = np.asarray(meaning(node, *operands)).astype(np.float64)
    got = interpret(program, operands)[0].reshape(want.shape).astype(np.float64)
    distance = float(np.linalg.norm(got - want))
    assert distance <= TOLERANCES[s.factor] * float(np.linalg.norm(want))


@st.composite
def shapes(draw: st.DrawFn) -> NarrowShape:
    factor = draw(st.sampled_from(FACTORS))
    weights = draw(st.sampled_from((factor, *INTEGERS)))
    integers = not weights.is_float
    groups = draw(st.sampled_from((1, 2, 4))) if integers else 1
    depth = groups * 32 * draw(st.integers(2, 9))
    layer = draw(st.booleans())
    shape = NarrowShape(
        factor=factor,
        weights=weights,
        result=factor,
        layers=draw(st.integers(1, 3)) if layer else 1,
        batch=draw(st.integers(1, 2)),
        rows=draw(st.integers(1, 40)),
        depth=depth,
        columns=tuple(draw(st.lists(st.sampled_from((32, 64, 96, 192)), min_size=1, max_size=3))),
        scales=draw(st.sampled_from((factor, DType.F32))),
        groups=groups,
        transposed=draw(st.booleans()),
        offset=integers and draw(st.booleans()),
        scale=integers and (groups > 1 or draw(st.booleans())),
        scales_transposed=draw(st.booleans()),
        layer=layer,
    )
    beside = shape.offset or shape.scale
    shape = replace(
        shape,
        shared=shape.batch > 1 and draw(st.booleans()),
        scales_transposed=shape.scales_transposed and beside,
        scales=shape.scales if shape.scale else factor,
    )
    tiling = choose_tiling(shape)
    assert tiling
    share = choose_share(shape, tiling, draw(st.sampled_from((1, 8, 132))))
    shape = replace(shape, share=share)
    results = (factor, DType.F32) if shape.parts == 1 else (DType.F32,)
    return replace(shape, result=draw(st.sampled_from(results)))


@settings(max_examples=60, deadline=None)
@given(shapes())
def test_kernels_give_what_the_op_means(shape: NarrowShape) -> None:
    check(shape)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rows", [32, 37, 100])
def test_rows_of_several_tiles(rows: int, turned: bool) -> None:
    shape = replace(GROUPED, rows=rows, batch=2)
    check(shape, NarrowTiling(32, 64, 4, 2, turned, rows=16))


@pytest.mark.parametrize(
    ("weights", "factor", "most"),
    [
        (DType.BF16, DType.BF16, 512),
        (DType.F16, DType.F16, 512),
        (DType.F32, DType.F32, 64),
        (DType.S8, DType.BF16, 64),
    ],
)
def test_how_many_rows_are_few(weights: DType, factor: DType, most: int) -> None:
    shape = replace(GROUPED, weights=weights, factor=factor, groups=1, scale=False, columns=(1024,))
    assert choose_tiling(replace(shape, rows=most)) is not None
    assert choose_tiling(replace(shape, rows=most + 1)) is None


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("weights", [DType.BF16, DType.S8, DType.S4])
def test_either_factor_may_be_the_left_one(weights: DType, transposed: bool, turned: bool) -> None:
    scaled = not weights.is_float
    shape = replace(
        GROUPED,
        weights=weights,
        transposed=transposed,
        scale=scaled,
        groups=GROUPED.groups if scaled else 1,
        share=64,
    )
    check(shape, NarrowTiling(32, 16, 4, 2, turned))


def test_a_layer_beyond_the_last_is_the_last() -> None:
    """As the start of a dynamic-slice is bounded."""
    operands = draw_operands(GROUPED, np.random.default_rng(0))
    node, types = make_node(GROUPED, operands)
    tiling = choose_tiling(GROUPED)
    assert tiling
    program = write_narrow_product(describe_shape(node, types), tiling)
    beyond = [*operands[:-1], np.array(9, np.int32)]
    np.testing.assert_array_equal(interpret(program, beyond)[0], interpret(program, operands)[0])


@pytest.mark.parametrize(
    "change",
    [
        {"columns": (100,)},  # rows of 50 bytes
        {"columns": (33,)},  # of four bits: half a byte
        {"transposed": True, "depth": 33, "groups": 1},
        {"depth": 24, "groups": 2},  # groups of 12
        {"transposed": True, "depth": 256, "groups": 256},  # of half a byte
        {"transposed": True, "depth": 32 * 33, "groups": 32},  # of 16 bytes and a half
        {"transposed": True, "depth": 40, "groups": 1},  # rows of 20 bytes
    ],
    ids=str,
)
def test_what_has_no_tiling(change: dict[str, int]) -> None:
    assert choose_tiling(GROUPED) is not None
    assert choose_tiling(replace(GROUPED, **change)) is None


def test_a_kernel_is_written_as_before(update_golden: bool) -> None:
    """Two matrices of four bits with scales for groups, one of three layers."""
    tiling = choose_tiling(GROUPED)
    assert tiling
    text = write_triton_ir(write_narrow_product(GROUPED, tiling))
    if update_golden:
        GOLDEN.write_text(text)
    changed = difflib.unified_diff(GOLDEN.read_text().splitlines(), text.splitlines(), lineterm="")
    assert not list(changed)
