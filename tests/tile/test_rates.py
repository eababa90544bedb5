"""Which attention is given to our own kernels on an H100: those that are faster than the plain ops."""

from __future__ import annotations

import pytest

from astitch.attention.choose import project
from astitch.device.gpu import preset
from astitch.graph.ir import DType
from astitch.tile.attention import AttentionShape, Layout
from astitch.tile.rates import count_scores, find_rates


def shape_of(
    length: int,
    features: int,
    heads: int,
    *,
    causal: bool = True,
    window: int = 0,
    dtype: DType = DType.F32,
    precision: str = "tf32",
) -> AttentionShape:
    layout = Layout(dtype, 0, (0, 0, 0, 1), features)
    layouts = [layout] * 4
    return AttentionShape(
        1, heads, heads, length, length, 1.0, causal, window, *layouts, precision=precision
    )


FASTER = {
    # (causal, gradient) of the forms that are taken
    (1024, 64, 96): {(True, False), (True, True), (False, False), (False, True)},
    (256, 64, 384): {(True, False), (True, True), (False, False), (False, True)},
    # Measured, without a band: 1,893 us with the gradient, where the plain ops take 1,544.
    (1024, 128, 64): {(True, False)},
    (256, 64, 4): set(),
}


@pytest.mark.parametrize("length, features, heads", FASTER)
def test_what_is_faster_is_taken(length: int, features: int, heads: int) -> None:
    taken = set()
    for causal in (True, False):
        for gradient in (True, False):
            shape = shape_of(length, features, heads, causal=causal)
            projection = project(shape, preset("h100"), gradient=gradient)
            assert projection
            if projection.is_faster:
                taken.add((causal, gradient))
    assert taken == FASTER[length, features, heads]


def test_what_was_not_measured_has_no_projection() -> None:
    assert project(shape_of(1024, 256, 16), preset("h100"), gradient=False) is None
    assert project(shape_of(1024, 64, 96), preset("a100"), gradient=False) is None


def test_a_projection_grows_with_the_work() -> None:
    h100, h200 = preset("h100"), preset("h200")

    def time(**changes: object) -> float:
        projection = project(shape_of(4096, 64, 16, **changes), h100, gradient=True)  # type: ignore[arg-type]
        assert projection
        return projection.tiles_us

    assert time(window=256) < time() < time(causal=False)
    assert time(dtype=DType.BF16) < time() < time(precision="tf32x3")
    for gradient in (True, False):
        found = [project(shape_of(4096, 64, 16), gpu, gradient=gradient) for gpu in (h100, h200)]
        assert all(found)


def test_tiles_of_a_band_are_counted() -> None:
    rates = find_rates(shape_of(1024, 64, 1))
    assert rates
    tiling = rates.forward.tiling
    blocks = 1024 // tiling.queries
    per_block = tiling.queries // tiling.keys
    assert count_scores(shape_of(1024, 64, 1), tiling) == sum(
        per_block * (block + 1) * tiling.queries * tiling.keys for block in range(blocks)
    )
    assert count_scores(shape_of(1024, 64, 1, causal=False), tiling) == 1024 * 1024
