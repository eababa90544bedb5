"""Neutral elements: for an element type the e for which op(x, e) is x, to the bit, for every x."""

from __future__ import annotations

import numpy as np

from astitch.graph.ir import DType

WIDE_FLOATS = (DType.F16, DType.BF16, DType.F32, DType.F64)
"""The types whose neutral elements are those of real numbers."""


def _is_wide_number(dtype: DType) -> bool:
    return dtype in WIDE_FLOATS or dtype.is_integer


def has_bits(dtype: DType) -> bool:
    """Do bitwise ops take it?"""
    return dtype.is_integer or dtype is DType.PRED


def neutral_of_sum(dtype: DType) -> np.ndarray | None:
    """The neutral element of addition; -0.0 for floats and both parts, since -0.0 + 0.0 is 0.0."""
    if dtype.is_complex:
        return np.asarray(complex(-0.0, -0.0), dtype.numpy)
    return (
        np.asarray(-0.0 if dtype.is_float else 0, dtype.numpy) if _is_wide_number(dtype) else None
    )


def neutral_zero(dtype: DType) -> np.ndarray | None:
    return np.asarray(0, dtype.numpy) if _is_wide_number(dtype) else None


def neutral_one(dtype: DType) -> np.ndarray | None:
    return np.asarray(1, dtype.numpy) if _is_wide_number(dtype) else None


def no_bits(dtype: DType) -> np.ndarray | None:
    return np.asarray(0, dtype.numpy) if has_bits(dtype) else None


def all_bits(dtype: DType) -> np.ndarray | None:
    return ~np.zeros((), dtype.numpy) if has_bits(dtype) else None


def least_value(dtype: DType) -> np.ndarray | None:
    return _bound(dtype, least=True) if _is_wide_number(dtype) or has_bits(dtype) else None


def largest_value(dtype: DType) -> np.ndarray | None:
    return _bound(dtype, least=False) if _is_wide_number(dtype) or has_bits(dtype) else None


def _bound(dtype: DType, least: bool) -> np.ndarray:
    if dtype is DType.PRED:
        return np.asarray(not least)
    if dtype.is_float:
        return np.asarray(-np.inf if least else np.inf, dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return np.asarray(info.min if least else info.max, dtype.numpy)
