"""Random JAX programs through XLA's hook: results, kernels, no error.

More of them: `python -m tests.jax_programs --hook --count 1000 --seed 0`.
"""

from __future__ import annotations

import pytest

from tests.ahead_of_time import devices, needs_hook
from tests.jax_programs import HOOK, make_program, report_failure, try_program

pytestmark = needs_hook

PARTS, PROGRAMS = 4, 28


@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs_through_the_hook(part: int) -> None:
    """Results as near to f64 as XLA's on the CPU; a part has kernels."""
    devices()
    kernels = judged = 0
    for seed in range(part, PROGRAMS, PARTS):
        program = make_program(seed)
        outcome = try_program(program, (HOOK,))
        assert outcome.failure is None, report_failure(program, outcome.failure)
        kernels += outcome.kernels
        judged += outcome.judged is not None
    assert judged > PROGRAMS / PARTS / 2
    assert kernels >= 3
