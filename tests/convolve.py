"""What cuDNN is told of a convolution, computed by NumPy on flat memory as its definition says."""

from __future__ import annotations

from itertools import product

import numpy as np

from astitch.graph.convolution import CanonicalConvolution, Form, Tensor


def view(flat: np.ndarray, extents: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """A writable view of memory; fails where it would leave it."""
    last = sum((n - 1) * s for n, s in zip(extents, strides, strict=True))
    assert 0 <= last < flat.size, f"{extents} by {strides} in {flat.size} elements"
    steps = tuple(s * flat.itemsize for s in strides)
    return np.lib.stride_tricks.as_strided(flat, extents, steps)


def fetch(flat: np.ndarray, tensor: Tensor) -> np.ndarray:
    """The packed memory of a tensor: the array's own, or its copy."""
    return flat if tensor.copied is None else view_copied(flat, tensor).reshape(-1).copy()


def view_copied(flat: np.ndarray, tensor: Tensor) -> np.ndarray:
    assert tensor.copied is not None
    extents, strides = zip(*tensor.copied, strict=True)
    return view(flat, extents, strides)


def convolve(
    conv: CanonicalConvolution, image: np.ndarray, filter_: np.ndarray, response: np.ndarray
) -> None:
    """Writes that one of the three which the form names; all as packed memory."""
    tensors = conv.image, conv.filter, conv.response
    x, w, y = (
        view(flat, t.shape, t.strides)
        for flat, t in zip((image, filter_, response), tensors, strict=True)
    )
    computed = {Form.FORWARD: y, Form.INPUT_GRADIENT: x, Form.FILTER_GRADIENT: w}
    computed[conv.form][...] = 0
    around = [(0, 0), (0, 0), *zip(conv.pre_padding, conv.post_padding, strict=True)]
    groups = x.shape[1] // w.shape[1]
    # Copies, with a dimension for the groups; what the form names goes back at the end.
    images = np.pad(x, around)
    split = images.reshape(x.shape[0], groups, -1, *images.shape[2:])
    filters = w.copy().reshape(groups, -1, *w.shape[1:])
    responses = y.copy().reshape(y.shape[0], groups, -1, *y.shape[2:])
    for r in product(*map(range, w.shape[2:])):
        at = tuple(
            slice(i * d, i * d + (n - 1) * s + 1, s)
            for i, d, n, s in zip(r, conv.dilation, y.shape[2:], conv.stride, strict=True)
        )
        k = tuple(n - 1 - i for i, n in zip(r, w.shape[2:], strict=True)) if conv.mirrored else r
        patch, tap = split[(..., *at)], filters[(..., *k)]
        match conv.form:
            case Form.FORWARD:
                responses += np.einsum("ngc...,gkc->ngk...", patch, tap)
            case Form.INPUT_GRADIENT:
                patch += np.einsum("ngk...,gkc->ngc...", responses, tap)
            case Form.FILTER_GRADIENT:
                spatial = "xyz"[: len(r)]
                tap += np.einsum(f"ngc{spatial},ngk{spatial}->gkc", patch, responses)
    match conv.form:
        case Form.FORWARD:
            y[...] = responses.reshape(y.shape)
        case Form.INPUT_GRADIENT:
            inside = tuple(
                slice(p, p + n) for p, n in zip(conv.pre_padding, x.shape[2:], strict=True)
            )
            x[...] = images[(..., *inside)]
        case Form.FILTER_GRADIENT:
            w[...] = filters.reshape(w.shape)


def interpret(
    conv: CanonicalConvolution, lhs: np.ndarray, rhs: np.ndarray, result: np.ndarray
) -> None:
    """The convolution of HLO's arrays, by what cuDNN is told of it."""
    flats = [np.ascontiguousarray(a).reshape(-1) for a in (lhs, rhs)] + [result.reshape(-1)]
    packed = [fetch(flat, tensor) for flat, tensor in zip(flats, conv.tensors, strict=True)]
    by_name = {id(t): p for t, p in zip(conv.tensors, packed, strict=True)}
    convolve(conv, *(by_name[id(t)] for t in (conv.image, conv.filter, conv.response)))
    if conv.tensors[2].copied is not None:
        copied = view_copied(flats[2], conv.tensors[2])
        copied[...] = packed[2].reshape(copied.shape)
