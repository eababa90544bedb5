"""What the roots of a scope read, as far as a mapping depends on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from astitch.compile import compile_hlo
from astitch.device.gpu import preset
from tests.hlo_runner import lower

BIG, MORE = (8, 512, 256), (8, 512, 64)


@pytest.mark.parametrize(
    ("fn", "shapes", "tiles"),
    [
        (lambda x: jnp.pad(x.transpose(0, 2, 1), ((0, 0), (0, 0), (0, 512))), (BIG,), True),
        (lambda x: x.transpose(0, 2, 1)[:, :, 3:-1] * 2, (BIG,), True),
        (lambda *xs: jnp.concatenate([x.transpose(0, 2, 1) for x in xs], 2), (MORE,) * 6, True),
        (lambda x, y: jnp.where(x > 0, x, jnp.tile(y.T, (2, 1))), ((512, 2048), (2048, 256)), True),
        (lambda x, y: x + y.T, ((64, 512, 256), (256, 512)), False),
        (lambda x: jnp.pad(x, ((0, 0), (3, 0), (0, 0))), (BIG,), False),
    ],
    ids=["padded", "cut", "six side by side", "repeated", "a small one", "in order"],
)
def test_what_fills_a_part_of_a_space_may_lie_across(
    fn: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], tiles: bool
) -> None:
    given = [np.zeros(shape, np.float32) for shape in shapes]
    plan = compile_hlo(lower(fn, *given), gpu=preset("h100")).plans[-1]
    assert ("arrays along" in plan.arrangement.loops[-1].mapping.reason) == tiles
