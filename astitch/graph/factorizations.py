"""Library calls that astitch knows the meaning of: factors of matrices, and systems that these solve.

| call | operands | results |
|---|---|---|
| Cholesky | a [..., n, n], one triangle of it | the factor there, the rest as it was; where a pivot is not > 0 |
| LU | a [..., m, n] | both factors in one; which rows were exchanged, from 1 on; where a pivot is 0 |
| pivots | the exchanges [..., k], from 0 on | the permutation [..., m] |
| triangular solve | a [..., n, n], b | x |

"Where" is an s32 [...]: 0 for nowhere, else the first such column, from 1 on.
JAX calls cuSOLVER on GPUs and LAPACK on CPUs; HLO has ops for Cholesky and triangular solves, whose factor is all.
"""

from __future__ import annotations

import re

import numpy as np

from astitch.graph.ir import (
    CholeskyAttrs,
    CustomCallAttrs,
    Factorization,
    LuAttrs,
    Node,
    PivotsAttrs,
    TriangularSolveAttrs,
)

_LAPACK = re.compile(r"lapack_[sd](potrf|getrf|trsm)_ffi")


def find_factorization(node: Node) -> Factorization | None:
    """What a node computes, if it is one of the calls above."""
    match node.attrs:
        case CholeskyAttrs() | TriangularSolveAttrs():
            return node.attrs
        case CustomCallAttrs(target, config, has_side_effect=False):
            return read_factorization(target, config)
    return None


def read_factorization(target: str, config: bytes) -> Factorization | None:
    """What a custom call computes, by its target and its backend_config; None for others."""
    match target:
        case "cusolver_potrf_ffi":
            return CholeskyAttrs(b"lower = true" in config)
        case "cusolver_getrf_ffi":
            return LuAttrs()
        case "cu_lu_pivots_to_permutation":
            return PivotsAttrs()
    found = _LAPACK.fullmatch(target)
    if found is None:
        return None
    letters = {name: chr(int(code)) for name, code in re.findall(r"(\w+) = (\d+)", config.decode())}
    match found[1]:
        case "getrf":
            return LuAttrs()
        case "potrf":
            return CholeskyAttrs(letters.get("uplo") == "L")
    return TriangularSolveAttrs(
        letters.get("side") == "L",
        letters.get("uplo") == "L",
        letters.get("diag") == "U",
        {"N": "NO_TRANSPOSE", "T": "TRANSPOSE", "C": "ADJOINT"}[letters.get("trans_x", "N")],
    )


# ---- what they compute ---------------------------------------------------------------------------------------------


def compute_lu(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both factors, the exchanges from 1 on, and where a pivot is 0, of matrices [..., m, n]."""
    made = a.reshape(-1, *a.shape[-2:]).copy()
    count, m, n = made.shape
    exchanged = np.empty((count, min(m, n)), np.int32)
    where, each = np.zeros(count, np.int32), np.arange(count)
    for j in range(min(m, n)):
        row = j + np.argmax(np.abs(made[:, j:, j]), 1)
        exchanged[:, j] = row + 1
        made[each, j], made[each, row] = made[each, row], made[each, j].copy()
        pivot = made[:, j, j]
        where = np.where((where == 0) & (pivot == 0), j + 1, where)
        made[:, j + 1 :, j] /= np.where(pivot == 0, 1, pivot)[:, None]
        made[:, j + 1 :, j + 1 :] -= made[:, j + 1 :, j, None] * made[:, j, None, j + 1 :]
    batch = a.shape[:-2]
    return (
        made.reshape(a.shape),
        exchanged.reshape(*batch, -1),
        where.reshape(batch).astype(np.int32),
    )


def compute_cholesky(a: np.ndarray, lower: bool) -> tuple[np.ndarray, np.ndarray]:
    """The factor in one triangle, the other as it was, and where a pivot is not positive, of matrices [..., n, n]."""
    made = (a if lower else np.swapaxes(a, -1, -2)).copy()
    where = np.zeros(a.shape[:-2], np.int32)
    for j in range(a.shape[-1]):
        made[..., j:, j] -= np.einsum("...ik,...k->...i", made[..., j:, :j], made[..., j, :j])
        pivot = made[..., j, j].copy()
        where = np.where((where == 0) & ~(pivot > 0), j + 1, where)
        made[..., j:, j] /= np.sqrt(pivot)[..., None]
    return made if lower else np.swapaxes(made, -1, -2), where.astype(np.int32)


def compute_permutation(exchanged: np.ndarray, count: int) -> np.ndarray:
    """The permutations of so many rows that exchanges [..., k], from 0 on, make."""
    flat = exchanged.reshape(-1, exchanged.shape[-1])
    made = np.tile(np.arange(count, dtype=exchanged.dtype), (len(flat), 1))
    each = np.arange(len(flat))
    for j in range(flat.shape[1]):
        made[each, j], made[each, flat[:, j]] = made[each, flat[:, j]], made[each, j].copy()
    return made.reshape(*exchanged.shape[:-1], count)
