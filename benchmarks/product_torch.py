"""The ops of benchmarks.product_forms in PyTorch, eager or compiled, and its arguments as tensors.

Plain code of a user of PyTorch; numbers of four bits in groups go to torch's own kernel for them.  Imports torch:
imported only where there is one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

from benchmarks.product_forms import GROUP, Form, compute, list_given

DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8": torch.float8_e4m3fn,
    "s8": torch.int8,
}

BITS = {"f32": np.int32, "f16": np.int16, "bf16": np.int16, "f8": np.uint8, "s8": np.int8}


class Torch:
    """Numbers of four bits are two in a byte, rows 2 i and 2 i + 1 of the weights, the first one in the lower bits."""

    matmul = staticmethod(torch.matmul)
    sigmoid = staticmethod(torch.sigmoid)
    silu = staticmethod(F.silu)
    relu = staticmethod(F.relu)

    def cast(self, a: Tensor, dtype: str) -> Tensor:
        return unpack(a).to(DTYPES[dtype])

    def gelu(self, a: Tensor) -> Tensor:
        return F.gelu(a, approximate="tanh")

    def none(self, a: Tensor) -> Tensor:
        return a

    def rms_norm(self, x: Tensor, gain: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], gain, 1e-6)

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a, b], -1)

    def dense(self, x: Tensor, w: Tensor, b: Tensor, act: str) -> Tensor:
        made: Tensor = getattr(self, act)(F.linear(x, w.T, b))
        return made

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def average(self, images: Tensor) -> Tensor:
        return images.mean((1, 2))

    def weigh(self, images: Tensor, channels: Tensor) -> Tensor:
        return images * channels[:, None, None, :]

    def convolve(self, images: Tensor, w: Tensor, b: Tensor, act: str) -> Tensor:
        """Of channels that lie last, as in memory."""
        made = F.conv2d(images.permute(0, 3, 1, 2), w.T[:, :, None, None], b)
        result: Tensor = getattr(self, act)(made).permute(0, 2, 3, 1)
        return result


def pack(numbers: np.ndarray) -> np.ndarray:
    """[..., rows, columns] of four bits -> bytes [..., rows / 2, columns]."""
    bits = numbers.astype(np.int8).view(np.uint8) & 15
    packed: np.ndarray = bits[..., 0::2, :] | (bits[..., 1::2, :] << 4)
    return packed


def unpack(a: Tensor) -> Tensor:
    """Bytes of two numbers each as the numbers; any other tensor as it is."""
    if a.dtype is not torch.uint8:
        return a
    low, high = (a << 4).view(torch.int8) >> 4, a.view(torch.int8) >> 4
    return torch.stack([low, high], -2).reshape(*a.shape[:-2], 2 * a.shape[-2], a.shape[-1])


def move(form: Form, arrays: Sequence[np.ndarray], device: str) -> list[Tensor]:
    """The arguments as tensors."""
    moved = []
    for given, array in zip(list_given(form), arrays, strict=True):
        if given.dtype == "s4":
            moved.append(torch.from_numpy(pack(array)).to(device))
        else:
            bits = torch.from_numpy(np.ascontiguousarray(array).view(BITS[given.dtype]))
            moved.append(bits.to(device).view(DTYPES[given.dtype]))
    return moved


def make_eager(form: Form) -> Callable[[Sequence[Tensor]], Tensor]:
    """The formula, op by op."""
    ops = Torch()

    def call(arguments: Sequence[Tensor]) -> Tensor:
        result: Tensor = compute(ops, form, arguments)
        return result

    return call


def make_compiled(form: Form, **options: Any) -> Callable[[Sequence[Tensor]], Tensor]:
    """options: of torch.compile.  Each has a code object of its own: of one torch compiles eight forms at most."""
    ops = Torch()

    def formula(*arguments: Tensor) -> Tensor:
        result: Tensor = compute(ops, form, arguments)
        return result

    code = formula.__code__.replace(co_name=f"formula_{next(_NUMBERS)}")
    own = FunctionType(code, formula.__globals__, code.co_name, None, formula.__closure__)
    compiled = torch.compile(own, fullgraph=True, dynamic=False, **options)
    return lambda arguments: compiled(*arguments)


_NUMBERS = itertools.count()


def make_zeros(form: Form, device: str) -> list[Tensor]:
    """Arguments of the same shapes and types, for which torch compiles."""
    made = []
    for given in list_given(form):
        *outer, last = given.shape
        if given.dtype == "s4":
            outer[-1] //= 2
        dtype = torch.uint8 if given.dtype == "s4" else DTYPES[given.dtype]
        made.append(torch.zeros((*outer, last), dtype=dtype, device=device))
    return made


def is_of_library(form: Form) -> bool:
    """Has torch a kernel of its own for the product?"""
    return form.kind == "plain" and form.dtype == "s4 group" and form.widths[1] % 64 == 0


def lay_out_for_library(arguments: Sequence[Tensor]) -> list[Tensor]:
    """x, weights and scales as _weight_int4pack_mm reads them: numbers from 0 to 15, of which 8 is zero."""
    x, packed, scales = arguments
    numbers = (unpack(packed).T.contiguous() + 8).to(torch.uint8)  # [columns, depth]
    pairs = (numbers[:, 0::2] << 4) | numbers[:, 1::2]
    laid = torch.ops.aten._convert_weight_to_int4pack(pairs.contiguous(), 8)
    both = torch.stack([scales[:, 0], torch.zeros_like(scales[:, 0])], -1)
    return [x, laid, both.contiguous()]


def call_library(arguments: Sequence[Tensor]) -> Tensor:
    x, laid, scales = arguments
    result: Tensor = torch.ops.aten._weight_int4pack_mm(x, laid, GROUP, scales)
    return result


def to_numpy(result: Tensor) -> np.ndarray:
    made: np.ndarray = result.detach().float().cpu().numpy()
    return made


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def prepare() -> str:
    """The device; f32 is multiplied as XLA does by default."""
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    return "cuda" if torch.cuda.is_available() else "cpu"
