"""Measuring: what is made up for a kernel's arguments, and what is said without a GPU."""

import numpy as np
import pytest

from astitch import executor
from astitch.errors import EngineUnavailable
from astitch.ir import ArrayType, DType
from astitch.measure import import_cupy, make_values

needs_no_gpu = pytest.mark.skipif(executor.count_gpus() > 0, reason="a GPU is there")


@pytest.mark.parametrize("dtype", [d for d in DType if d not in (DType.C64, DType.C128)])
def test_values_are_safe_for_logarithms_and_for_indices(dtype: DType) -> None:
    values = make_values(ArrayType(dtype, (1000,)), 0)
    assert values.dtype == dtype.numpy
    wide = values.astype(np.float64)
    assert np.isfinite(wide).all()
    if dtype is DType.PRED or dtype.is_integer:
        assert (wide >= 0).all()
        assert wide.max() < 8
    else:
        assert wide.min() > 0.08
        assert wide.max() <= 1


def test_equal_seeds_give_equal_values() -> None:
    array = ArrayType(DType.F32, (10,))
    assert (make_values(array, 3) == make_values(array, 3)).all()
    assert (make_values(array, 3) != make_values(array, 4)).any()


@needs_no_gpu
def test_without_a_gpu_measuring_says_what_to_do() -> None:
    with pytest.raises(EngineUnavailable, match="leave out tune=True"):
        import_cupy()
