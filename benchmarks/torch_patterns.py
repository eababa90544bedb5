"""The patterns in PyTorch, for torch.compile.  Imports torch: imported only where there is one.

Each function has the name, the arguments and the results of its pattern in patterns.py, written as a user of torch
would.  Those named in EAGER run as they stand: torch has its own kernel for them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

EAGER = frozenset({"clip_adam"})


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, -1)


softmax_4096 = softmax_long = softmax_short = softmax_30000 = softmax


def causal_softmax(x: Tensor) -> Tensor:
    row = torch.arange(x.shape[-2], device=x.device)[:, None]
    column = torch.arange(x.shape[-1], device=x.device)
    return F.softmax(torch.where(column <= row, x, float("-inf")), -1)


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    var = (centred**2).mean(-1, keepdim=True)
    return (centred * torch.rsqrt(var + 1e-5) * gamma + beta).to(x.dtype)


def rms_norm(x: Tensor, gamma: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt((wide**2).mean(-1, keepdim=True) + 1e-6) * gamma).to(x.dtype)


def layer_norm_backward(x: Tensor, gamma: Tensor, beta: Tensor, upstream: Tensor) -> Any:
    return torch.func.vjp(layer_norm, x, gamma, beta)[1](upstream)


def rms_norm_backward(x: Tensor, gamma: Tensor, upstream: Tensor) -> Any:
    return torch.func.vjp(rms_norm, x, gamma)[1](upstream)


def cross_entropy(logits: Tensor, labels: Tensor) -> Any:
    def loss(z: Tensor) -> Tensor:
        return F.cross_entropy(z.float(), labels)

    gradient, value = torch.func.grad_and_value(loss)(logits)
    return value, gradient


def batch_norm_relu(x: Tensor, gamma: Tensor, beta: Tensor) -> Any:
    wide = x.float()
    mean = wide.mean((0, 1, 2))
    var = ((wide - mean) ** 2).mean((0, 1, 2))
    return F.relu((wide - mean) * torch.rsqrt(var + 1e-5) * gamma + beta).to(x.dtype), mean, var


def group_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    n, h, w, c = x.shape
    wide = x.float().reshape(n, h, w, 32, c // 32)
    centred = wide - wide.mean((1, 2, 4), keepdim=True)
    var = (centred**2).mean((1, 2, 4), keepdim=True)
    return ((centred * torch.rsqrt(var + 1e-5)).reshape(x.shape) * gamma + beta).to(x.dtype)


def instance_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    wide = x.float()
    centred = wide - wide.mean((1, 2), keepdim=True)
    var = (centred**2).mean((1, 2), keepdim=True)
    return (centred * torch.rsqrt(var + 1e-5) * gamma + beta).to(x.dtype)


def column_sum(x: Tensor) -> Tensor:
    return x.float().sum(0)


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias, approximate="tanh")


def dropout_add_layer_norm(
    key: None, x: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor
) -> Tensor:
    """torch draws the mask with its own generator (Philox): `key` is not used."""
    return layer_norm(F.dropout(x, 0.1) + residual, gamma, beta)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
    def rotate(x: Tensor) -> Tensor:
        low, high = x.float().chunk(2, -1)
        c, s = cos[:, None, :], sin[:, None, :]
        return torch.cat([low * c - high * s, high * c + low * s], -1).to(x.dtype)

    return rotate(q), rotate(k)


def cumulative_sum(x: Tensor) -> Tensor:
    return x.float().cumsum(-1).to(x.dtype)


def embedding_layer_norm(table: Tensor, ids: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return layer_norm(F.embedding(ids, table), gamma, beta)


def quantise_f8(x: Tensor) -> Any:
    wide = x.float()
    scale = wide.abs().amax().clamp(min=1e-12) / 448.0
    return (wide / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), scale


def standardise_softmax(x: Tensor) -> Tensor:
    wide = x.float()
    centred = wide - wide.mean(0)
    return F.softmax(centred * torch.rsqrt((centred**2).mean(0) + 1e-5), -1).to(x.dtype)


def small_norms(*arguments: Tensor) -> Any:
    return tuple(layer_norm(*arguments[i : i + 3]) for i in range(0, len(arguments), 3))


def clip_adam(*arguments: Tensor) -> Any:
    """The fused optimizer, in place, as torch.optim.Adam(fused=True) calls it; the clip factor enters as its
    gradient scale, so that the gradients need no pass of their own.  It overwrites p, m, v and f32 gradients.
    """
    n = len(arguments) // 4
    p, m, v, g = (list(arguments[i * n : (i + 1) * n]) for i in range(4))
    step = arguments[-1]
    if g[0].dtype != p[0].dtype:  # the fused kernel takes one dtype
        g = [x.to(p[0].dtype) for x in g]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(g)))
    divisor = (norm + 1e-6).clamp(min=1.0)
    torch._fused_adam_(
        p, g, m, v, [], [step] * n,
        lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
        grad_scale=divisor, found_inf=None,
    )  # fmt: skip
    return (*p, *m, *v)
