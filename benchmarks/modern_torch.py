"""GPT-2, Llama, ViT and ResNet-50 in PyTorch at the sizes of benchmarks.modern_programs, for torch.compile.

Plain code of a user of PyTorch: its own attention (scaled_dot_product_attention), autocast to bf16, fused AdamW.
Imports torch: imported only where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor, nn

from benchmarks.modern_programs import gpt2, llama, resnet, vit
from benchmarks.modern_programs.program import BF16, MIXED, Draw


@dataclass(frozen=True, slots=True)
class Step:
    """step: one call.  wait: until it is done."""

    step: Callable[[], Any]

    @staticmethod
    def wait(_: Any) -> None:
        torch.cuda.synchronize()

    @staticmethod
    def most_mb() -> float:
        return torch.cuda.max_memory_allocated() / 1e6


def make_step(name: str, *, small: bool, seed: int) -> Step | None:
    """None for a program that has no form here."""
    family, _, entry = name.partition("/")
    draw = Draw(seed, small, family)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True  # as XLA does by default
    torch.backends.cudnn.allow_tf32 = True
    match name:
        case "gpt2/train":
            c = gpt2.choose_config(draw, MIXED)
            return train_language(GPT(c), c, 6e-4)
        case "llama/train":
            made = llama.choose_config(entry, draw, MIXED)
            return train_language(Llama(made), made, 3e-4)
        case "llama/decode":
            return decode(llama.choose_config(entry, draw, BF16))
        case "vit/train" | "vit/infer":
            config = vit.choose_config(entry, draw, MIXED)
            return run_images(ViT(config), config, entry, low=True)
        case _ if family == "resnet":
            mode, _, dtype = entry.partition("-")
            images = resnet.choose_config(entry, draw, None)
            return run_images(ResNet(images), images, mode, low=dtype == "bf16")
    return None


def optimize(model: nn.Module, loss: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def train_language(model: nn.Module, c: Any, rate: float) -> Step:
    model = model.cuda()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(
        model.parameters(), rate, (0.9, 0.95), weight_decay=0.1, fused=True
    )
    words = torch.randint(0, c.words, (c.batch, c.length + 1), device="cuda")

    def step() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            logits = compiled(words[:, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), words[:, 1:].flatten())
        return optimize(model, loss, optimizer)

    return Step(step)


# ---- GPT-2 -------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Of GPT-2 and, not causal, of a ViT."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, c: gpt2.Config) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(c.words, c.width), nn.Embedding(c.length, c.width)
        self.blocks = nn.Sequential(*(Block(c.width, c.heads, True) for _ in range(c.layers)))
        self.norm = nn.LayerNorm(c.width)

    def forward(self, words: Tensor) -> Tensor:
        places = torch.arange(words.shape[1], device=words.device)
        x = self.blocks(self.words(words) + self.places(places))
        return F.linear(self.norm(x), self.words.weight)


# ---- Llama -------------------------------------------------------------------------------------------------------


def rotate(x: Tensor, places: Tensor) -> Tensor:
    """x: [batch, heads, length, size]."""
    size = x.shape[-1]
    rates = 10000.0 ** (-torch.arange(0, size, 2, device=x.device) / size)
    angles = places[:, None] * rates
    a, b = x.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class LlamaBlock(nn.Module):
    def __init__(self, c: llama.Config) -> None:
        super().__init__()
        self.c = c
        self.norm1, self.norm2 = nn.RMSNorm(c.width), nn.RMSNorm(c.width)
        self.query = nn.Linear(c.width, c.width, bias=False)
        self.key = nn.Linear(c.width, c.groups * c.size, bias=False)
        self.value = nn.Linear(c.width, c.groups * c.size, bias=False)
        self.out = nn.Linear(c.width, c.width, bias=False)
        self.gate = nn.Linear(c.width, c.hidden, bias=False)
        self.up = nn.Linear(c.width, c.hidden, bias=False)
        self.down = nn.Linear(c.hidden, c.width, bias=False)

    def forward(self, x: Tensor, places: Tensor, cache: Any = None) -> Tensor:
        batch, length, width = x.shape
        h = self.norm1(x)
        parts = (self.query, self.key, self.value)
        q, k, v = (p(h).view(batch, length, -1, self.c.size).transpose(1, 2) for p in parts)
        q, k = rotate(q, places), rotate(k, places)
        mask = None
        if cache is not None:
            k, v = cache[0].index_copy_(2, places, k), cache[1].index_copy_(2, places, v)
            mask = (torch.arange(k.shape[2], device=x.device) <= places[:, None])[None, None]
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=cache is None, enable_gqa=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, c: llama.Config) -> None:
        super().__init__()
        self.words = nn.Embedding(c.words, c.width)
        self.blocks = nn.ModuleList(LlamaBlock(c) for _ in range(c.layers))
        self.norm, self.head = nn.RMSNorm(c.width), nn.Linear(c.width, c.words, bias=False)

    def forward(self, words: Tensor, places: Tensor | None = None, caches: Any = None) -> Tensor:
        x = self.words(words)
        places = torch.arange(words.shape[1], device=x.device) if places is None else places
        for number, block in enumerate(self.blocks):
            x = block(x, places, caches[number] if caches else None)
        return self.head(self.norm(x))


def decode(c: llama.Config) -> Step:
    """The most likely next word; CUDA graphs, as XLA has its command buffers."""
    model = Llama(c).cuda().bfloat16().eval()
    shape = (c.batch, c.groups, c.length, c.size)
    caches = [
        tuple(torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        for _ in range(c.layers)
    ]
    places = torch.tensor([c.length // 2], device="cuda")
    words = torch.arange(c.batch, device="cuda")[:, None]

    @torch.compile(mode="reduce-overhead")
    def choose(words: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(words, places, caches)[:, -1]
        return logits.argmax(-1, keepdim=True), logits

    @torch.no_grad()
    def step() -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return choose(words, places)[0]

    return Step(step)


# ---- images ------------------------------------------------------------------------------------------------------


class ViT(nn.Module):
    def __init__(self, c: vit.Config) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, c.width, c.patch, c.patch)
        self.first = nn.Parameter(torch.zeros(1, 1, c.width))
        count = (c.side // c.patch) ** 2 + 1
        self.places = nn.Parameter(0.02 * torch.randn(1, count, c.width))
        self.blocks = nn.Sequential(*(Block(c.width, c.heads, False) for _ in range(c.layers)))
        self.norm, self.head = nn.LayerNorm(c.width), nn.Linear(c.width, c.classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1).to(x.dtype), x], 1) + self.places
        return self.head(self.norm(self.blocks(x)[:, 0]))


class Bottleneck(nn.Module):
    def __init__(self, given: int, filters: int, strides: int) -> None:
        super().__init__()
        wide = 4 * filters
        self.body = nn.Sequential(
            nn.Conv2d(given, filters, 1, bias=False),
            nn.BatchNorm2d(filters),
            nn.ReLU(),
            nn.Conv2d(filters, filters, 3, strides, 1, bias=False),
            nn.BatchNorm2d(filters),
            nn.ReLU(),
            nn.Conv2d(filters, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
        )
        skip: nn.Module = nn.Identity()
        if strides > 1 or given != wide:
            convolve = nn.Conv2d(given, wide, 1, strides, bias=False)
            skip = nn.Sequential(convolve, nn.BatchNorm2d(wide))
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.skip(x) + self.body(x))


class ResNet(nn.Module):
    def __init__(self, c: resnet.Config) -> None:
        super().__init__()
        width = c.filters
        parts: list[nn.Module] = [
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        ]
        for stage, blocks in enumerate(c.stages):
            filters = c.filters * 2**stage
            for block in range(blocks):
                parts.append(Bottleneck(width, filters, 2 if stage and not block else 1))
                width = 4 * filters
        self.body, self.head = nn.Sequential(*parts), nn.Linear(width, c.classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images).mean((2, 3)))


def run_images(model: nn.Module, c: Any, mode: str, *, low: bool) -> Step:
    """Training with the optimizer of the JAX program, or classifying.  low: autocast to bf16."""
    model = model.cuda().to(memory_format=torch.channels_last)
    model = model.train() if mode == "train" else model.eval()
    compiled = torch.compile(model)
    images = torch.randn(c.batch, 3, c.side, c.side, device="cuda")
    images = images.to(memory_format=torch.channels_last)
    labels = torch.arange(c.batch, device="cuda") % c.classes
    optimizer: torch.optim.Optimizer
    if isinstance(model, ViT):
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05, fused=True)
    else:
        optimizer = torch.optim.SGD(
            model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=1e-4, fused=True
        )

    def train() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=low):
            loss = F.cross_entropy(compiled(images).float(), labels)
        if isinstance(model, ViT):
            return optimize(model, loss, optimizer)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def classify() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=low):
            return F.softmax(compiled(images).float(), -1)

    return Step(train if mode == "train" else classify)
