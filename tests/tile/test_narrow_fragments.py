"""Products of few rows that are fed from registers, emulated: what the op means, for random extents."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astitch.graph.ir import DType
from astitch.graph.ops import OPS
from astitch.graph.ops.narrow_product import INTEGERS
from astitch.run.emulate import Order, compile_host
from astitch.tile.narrow_fragments import (
    FragmentTiling,
    count_step,
    fits,
    write_fragment_kernel,
)
from astitch.tile.narrow_product import NarrowShape
from astitch.tile.narrow_rates import choose_fragments, choose_share, choose_tiling
from tests.tile.test_narrow_product import GROUPED, draw_operands, make_node

ALONG = (FragmentTiling(8, 8, 1), FragmentTiling(4, 16, 2), FragmentTiling(2, 8, 3))
ACROSS = (FragmentTiling(8, 16, 1), FragmentTiling(4, 16, 2), FragmentTiling(2, 16, 1, pairs=4))
TOLERANCES = {DType.F32: 2e-6, DType.BF16: 5e-3, DType.F16: 1e-3}
"""Norm of the error, by the type of the parts: sums are in f32, and their factors exact."""


def check(s: NarrowShape, tiling: FragmentTiling, *, checked: bool = False) -> None:
    """The kernel gives what the op means."""
    operands = draw_operands(s, np.random.default_rng(0))
    node, _ = make_node(s, operands)
    assert fits(s, tiling)
    kernel = write_fragment_kernel(s, tiling)
    meaning = OPS[node.op].meaning
    assert meaning
    want = np.asarray(meaning(node, *operands)).astype(np.float64)
    parts = np.full(node.array.shape, 77, node.dtype.numpy)
    module = compile_host(kernel.text, check=checked)
    given_ = [np.ascontiguousarray(x) for x in operands]
    outputs = {len(given_)} if checked else set()
    module.launch(
        kernel.name,
        kernel.grid,
        kernel.block,
        [*given_, parts],
        order=Order.RANDOM,
        uninitialised=outputs,
    )
    error = np.linalg.norm(parts.astype(np.float64) - want) / np.linalg.norm(want)
    assert error <= TOLERANCES[s.result]


@st.composite
def cases(draw: st.DrawFn) -> tuple[NarrowShape, FragmentTiling]:
    transposed, weights = draw(st.booleans()), draw(st.sampled_from(INTEGERS))
    tiling = draw(st.sampled_from(ACROSS if transposed else ALONG))
    factor = draw(st.sampled_from((DType.BF16, DType.F16)))
    groups = draw(st.sampled_from((1, 2, 3)))
    batch, layer = draw(st.integers(1, 2)), draw(st.booleans())
    scale = groups > 1 or draw(st.booleans())
    offset = draw(st.booleans())
    shape = NarrowShape(
        factor=factor,
        weights=weights,
        result=DType.F32,
        layers=draw(st.integers(1, 3)) if layer else 1,
        batch=batch,
        rows=draw(st.integers(1, 19)),
        depth=1,
        columns=tuple(draw(st.lists(st.sampled_from((32, 96, 160)), min_size=1, max_size=3))),
        scales=draw(st.sampled_from((factor, DType.F32))) if scale else factor,
        groups=groups,
        transposed=transposed,
        offset=offset,
        scale=scale,
        scales_transposed=draw(st.booleans()) and (scale or offset),
        layer=layer,
        shared=batch > 1 and draw(st.booleans()),
    )
    step = count_step(shape, tiling)
    depth = groups * step * draw(st.integers(1, 5))
    share = step * draw(st.integers(1, depth // step))
    result = factor if share >= depth and draw(st.booleans()) else DType.F32
    return replace(shape, depth=depth, share=share, result=result), tiling


@given(cases())
@settings(max_examples=25, deadline=None)
def test_kernels_give_what_the_op_means(case: tuple[NarrowShape, FragmentTiling]) -> None:
    check(*case)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("weights", INTEGERS)
def test_no_access_goes_astray(weights: DType, transposed: bool) -> None:
    """Every access is watched; some warps have no step at all."""
    shape = replace(
        GROUPED,
        weights=weights,
        transposed=transposed,
        columns=(96, 160),
        depth=512,
        share=256,
        groups=2,
        offset=True,
    )
    check(shape, FragmentTiling(8, 16, 2), checked=True)


@pytest.mark.parametrize("transposed", [False, True])
def test_warps_without_a_step_add_nothing(transposed: bool) -> None:
    """Their scales are read all the same: what nobody wrote may be no number, and 0 times that is none."""
    shape = replace(GROUPED, transposed=transposed, groups=1, depth=128, share=128)
    check(shape, FragmentTiling(8, 16, 1), checked=True)


def test_all_integers_are_exact() -> None:
    """Each number of a type, times one."""
    for weights in INTEGERS:
        for factor in (DType.BF16, DType.F16):
            shape = NarrowShape(factor, weights, DType.F32, 1, 1, 1, 16, (256,), factor, share=16)
            kernel = write_fragment_kernel(shape, FragmentTiling(2, 8, 1))
            x = np.zeros((1, 1, 16), factor.numpy)
            x[..., 5] = 1
            stored = np.zeros((1, 1, 16, 128 if shape.is_packed else 256), shape.stored.numpy)
            numbers = np.arange(stored.shape[-1]).astype(np.uint8)
            stored[0, 0, 5] = numbers.view(stored.dtype)
            parts = np.zeros((1, 1, 1, 256), np.float32)
            module = compile_host(kernel.text)
            module.launch(kernel.name, kernel.grid, kernel.block, [x, stored, parts])
            if shape.is_packed:
                halves = np.stack([numbers & 15, numbers >> 4], -1).reshape(-1).astype(np.int64)
                want = np.where(halves > 7, halves - 16, halves) if weights is DType.S4 else halves
            else:
                want = numbers.view(shape.stored.numpy).astype(np.int64)
            np.testing.assert_array_equal(parts[0, 0, 0], want)


LLAMA = NarrowShape(
    DType.BF16, DType.S8, DType.F32, 1, 1, 8, 4096, (14336,), DType.BF16, scale=True
)


@pytest.mark.parametrize(
    ("change", "tiling", "parts"),
    [
        ({}, FragmentTiling(8, 8, 1), 2),
        ({"depth": 14336, "columns": (4096,)}, FragmentTiling(8, 8, 1), 8),
        ({"groups": 32}, FragmentTiling(8, 8, 1), 1),
        ({"groups": 112, "depth": 14336, "columns": (4096,)}, FragmentTiling(8, 8, 1), 4),
        ({"weights": DType.S4}, FragmentTiling(8, 8, 1), 4),
        ({"weights": DType.S4, "depth": 4096, "columns": (4096,)}, FragmentTiling(8, 8, 1), 8),
        ({"transposed": True}, FragmentTiling(8, 16, 2), 1),
        ({"transposed": True, "rows": 32}, FragmentTiling(8, 16, 1), 1),
        ({"weights": DType.U4, "transposed": True}, FragmentTiling(8, 16, 1), 1),
        ({"weights": DType.S4, "transposed": True, "rows": 32}, FragmentTiling(4, 16, 2), 1),
        (
            {"weights": DType.S4, "transposed": True, "columns": (2048,)},
            FragmentTiling(8, 16, 1),
            4,
        ),
    ],
    ids=str,
)
def test_tilings_of_large_shapes(
    change: dict[str, object], tiling: FragmentTiling, parts: int
) -> None:
    shape = replace(LLAMA, **change)  # type: ignore[arg-type]
    assert choose_fragments(shape) == tiling
    triton = choose_tiling(shape)
    assert triton
    shape = replace(shape, share=choose_share(shape, triton, 132))
    assert shape.parts == parts
    assert choose_fragments(shape) == tiling


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 9},
        {"rows": 33, "transposed": True},
        {"weights": DType.BF16, "scale": False},
        {"factor": DType.F32},
        {"depth": 4104},
        {"columns": (4100,)},
        {"transposed": True, "depth": 4096 + 32},
        {"transposed": True, "groups": 128},  # of 32 elements: less than a step
    ],
    ids=str,
)
def test_what_stays_tritons(change: dict[str, object]) -> None:
    assert choose_fragments(LLAMA)
    assert choose_fragments(replace(LLAMA, **change)) is None  # type: ignore[arg-type]
