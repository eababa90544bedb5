"""The patterns that Liger-Kernel has (liger-kernel 0.8).  Imports it: imported only where it is installed.

`prepare_<pattern>` takes the pattern's torch arguments and hands on a call without arguments.  A backward pass is given
the statistics that its forward pass kept: they are computed here, outside the timed call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from liger_kernel.ops.cross_entropy import cross_entropy_forward
from liger_kernel.ops.layer_norm import layer_norm_backward, layer_norm_forward
from liger_kernel.ops.rms_norm import rms_norm_backward, rms_norm_forward
from liger_kernel.ops.rope import rope_forward
from liger_kernel.ops.softmax import LigerSoftmaxFunction
from torch import Tensor

Call = Callable[[], Any]

GEMMA = "gemma"
"""Casting mode: all in f32, rounded once at the end, as in patterns.py."""


def prepare_softmax(x: Tensor) -> Call:
    return lambda: LigerSoftmaxFunction.apply(x)


prepare_softmax_4096 = prepare_softmax_long = prepare_softmax_short = prepare_softmax
prepare_softmax_30000 = prepare_softmax


def prepare_layer_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Call:
    return lambda: layer_norm_forward(x, gamma, beta, 1e-5)[0]


def prepare_layer_norm_backward(x: Tensor, gamma: Tensor, beta: Tensor, upstream: Tensor) -> Call:
    _, _, mean, rstd, _, _ = layer_norm_forward(x, gamma, beta, 1e-5)
    return lambda: layer_norm_backward(upstream, x, gamma, beta, mean, rstd)


def prepare_rms_norm(x: Tensor, gamma: Tensor) -> Call:
    return lambda: rms_norm_forward(x, gamma, 1e-6, 0.0, GEMMA, None)[0]


def prepare_rms_norm_backward(x: Tensor, gamma: Tensor, upstream: Tensor) -> Call:
    _, _, rstd, block, warps, mode = rms_norm_forward(x, gamma, 1e-6, 0.0, GEMMA, None)
    return lambda: rms_norm_backward(upstream, x, gamma, rstd, 0.0, mode, block, warps, False, None)


def prepare_cross_entropy(logits: Tensor, labels: Tensor) -> Call:
    """Liger writes the gradient over the logits: it gets its own."""
    own = logits.clone().requires_grad_()

    def call() -> Any:
        loss, _, _, _, gradient = cross_entropy_forward(
            own, labels, None, -100, 0.0, 0.0, "mean", None, False
        )
        return loss, gradient.detach()

    return call


def prepare_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Call:
    """Liger rotates in place, heads before positions: it gets its own queries and keys."""
    own_q, own_k = (x.clone().transpose(1, 2) for x in (q, k))

    def call() -> Any:
        turned = rope_forward(own_q, own_k, cos, sin, rotary_dim=q.shape[-1])
        return tuple(x.transpose(1, 2) for x in turned[:2])

    return call
