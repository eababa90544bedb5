"""The order in which meeting kernels follow each other."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from astitch.xla.order_meetings import _order_kernels, _sort


def test_a_kernel_that_no_collective_waits_for_comes_last():
    assert _order_kernels({3: 0b111, 5: 0, 8: 0b11, 9: 0b1}) == [3, 8, 9, 5]


def test_kernels_of_different_collectives_keep_their_order():
    assert _order_kernels({1: 0b100, 2: 0b011, 4: 0b001, 7: 0b010}) == [1, 2, 4, 7]


@pytest.mark.parametrize("seed", range(20))
def test_no_collective_waits_for_a_kernel_that_fewer_wait_for(seed):
    rng = np.random.default_rng(seed)
    masks = {number: int(rng.integers(0, 16)) for number in range(12)}
    order = _order_kernels(masks)
    assert sorted(order) == list(masks)
    for first, second in combinations(order, 2):
        assert not (masks[first] | masks[second] == masks[second] != masks[first])


def test_steps_follow_what_they_read_and_stay_in_order_otherwise():
    assert _sort([set(), {3}, {0}, set(), {1}]) == [0, 2, 3, 1, 4]
