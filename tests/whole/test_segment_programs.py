"""Random programs around segments, scatters and the few largest: values as JAX's (tests/segment_programs.py)."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")

from tests.segment_programs import run


@pytest.mark.parametrize("seed", range(4))
def test_random_programs(seed: int) -> None:
    """2,000 by command."""
    assert run(10, seed) == []
