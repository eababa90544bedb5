"""The attention of benchmarks.attention in PyTorch: its own call, and the plain formula for torch.compile.

Imports torch: imported only where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import dropout, scaled_dot_product_attention

from benchmarks.attention import BIASES, CAP, KEPT, Form, count_gradients, find_seen, list_given

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}

LEFT_OUT = -1e9

Attention = Callable[..., Tensor]
"""q, k, v [batch, heads, positions, features] and the arrays that the form is given -> the result, like q."""


def make_call(
    form: Form, arrays: Sequence[np.ndarray], *, compiled: bool, device: str = "cuda"
) -> Callable[[], Any]:
    """compiled: torch.compile of the plain formula, else scaled_dot_product_attention by the backend that it chooses.

    A call gives the result, or the gradients of half its square in q, k, v and what is learned.  Raises
    NotImplementedError if torch's own call has no such form."""
    torch.backends.cuda.matmul.allow_tf32 = True  # as XLA does by default
    q, k, v = (move(a, form, device).transpose(1, 2) for a in arrays[:3])
    rest = [move(a, form, device) for a in arrays[3:]]
    leaves = [
        x.detach().requires_grad_(form.gradient and n < count_gradients(form))
        for n, x in enumerate((q, k, v, *rest))
    ]
    if compiled:
        torch._dynamo.reset()  # else forms of one benchmark count as one function of changing shapes
        attention = torch.compile(attend(form), dynamic=False)
    else:
        attention = call_library(form, dict(zip(list_given(form), rest, strict=True)), q.device)

    def call() -> Any:
        o = attention(*leaves)
        wanted = leaves[: count_gradients(form)]
        return torch.autograd.grad(o, wanted, o.detach()) if form.gradient else o

    return call


def move(array: np.ndarray, form: Form, device: str) -> Tensor:
    """As a tensor of the form's type, if it has numbers."""
    if array.dtype.kind == "b":
        return torch.from_numpy(array).to(device)
    if array.dtype.kind in "iu":
        return torch.from_numpy(array.astype(np.int64)).to(device)
    return torch.from_numpy(array.astype(np.float32)).to(device, DTYPES[form.dtype])


def call_library(form: Form, given: Mapping[str, Tensor], device: torch.device) -> Attention:
    """Masks and biases are made once, outside of what is timed."""
    if lacks := form.parts & {"cap", "sink", "learned", "whole"}:
        raise NotImplementedError(f"torch's call has no {', '.join(sorted(lacks))}")
    named: dict[str, Any] = {
        "is_causal": form.parts <= {"causal", "dropout"} and "causal" in form.parts
    }
    seen = (
        None
        if named["is_causal"]
        else find_seen(form, given, torch.arange(form.length, device=device))
    )
    if seen is not None:
        named["attn_mask"] = seen
    if "bias" in given:
        bias = given["bias"]
        named["attn_mask"] = bias if seen is None else bias.masked_fill(~seen, LEFT_OUT)
    if "dropout" in form.parts:
        named["dropout_p"] = 1 - KEPT
    if form.groups != form.heads:
        named["enable_gqa"] = True

    def attention(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, **named)

    return attention


def attend(form: Form) -> Attention:
    """The plain formula, as a user of PyTorch writes it: softmax itself computes in f32, so scores keep their type."""

    def attention(q: Tensor, k: Tensor, v: Tensor, *arrays: Tensor) -> Tensor:
        given = dict(zip(list_given(form), arrays, strict=True))
        k, v = (x.repeat_interleave(form.heads // form.groups, 1) for x in (k, v))
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(form.features)
        if "cap" in form.parts:
            scores = CAP * torch.tanh(scores / CAP)
        for bias in BIASES & given.keys():
            scores = scores + given[bias]
        seen = find_seen(form, given, torch.arange(form.length, device=scores.device))
        if seen is not None:
            scores = scores.masked_fill(~seen, LEFT_OUT)
        if "sink" in given:
            sink = given["sink"][None, :, None, None].expand(*scores.shape[:3], 1)
            scores = torch.cat([scores, sink], -1)
        weights = scores.softmax(-1)[..., : form.length]
        if "dropout" in form.parts:
            weights = dropout(weights, 1 - KEPT)
        return weights.to(q.dtype) @ v

    return attention
