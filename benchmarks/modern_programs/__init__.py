"""Programs as users write them today, one module a family; each has make(entry, draw, precision).

Plain code of Flax (NNX and Linen), Equinox, Optax and JAX.  No program knows of astitch.  What users reported as slow
is in complaints.py, by issue.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from benchmarks.modern_programs import complaints
from benchmarks.modern_programs.program import Draw, Program
from benchmarks.workloads import WORKLOADS

ENTRIES: Mapping[str, tuple[str, ...]] = {
    "gpt2": ("train", "train-scan"),
    "llama": ("train", "decode", "generate"),
    "decoding": ("heads", "heads-first", "groups", "places", "layers"),
    "vit": ("train", "infer"),
    "resnet": ("train-f32", "train-bf16", "infer-f32", "infer-bf16"),
    "unet": ("denoise",),
    "mamba": ("train",),
    "s5": ("train",),
    "moe": ("train",),
    "gnn": ("train",),
    "dlrm": ("train",),
    "ppo": ("update",),
    "networks": ("fit", "fit-bf16", "policy", "messages", "mixer", "radiance"),
    "pde": ("water", "poisson", "lattice"),
    "optimizers": ("adafactor", "lamb", "lion", "muon", "adamw-ema"),
    "paper": tuple(f"{w}-{mode}" for w in WORKLOADS for mode in ("infer", "train")),
}
"""By family (the module's name), its programs."""


def list_names() -> list[str]:
    """All, as family/entry."""
    return [f"{family}/{entry}" for family, entries in ENTRIES.items() for entry in entries]


def make_program(name: str, *, small: bool, seed: int) -> Program:
    """Raises KeyError for an unknown name, ImportError where its library is missing."""
    family, _, entry = name.partition("/")
    if name in complaints.MAKE:
        return complaints.make(name, Draw(seed, small, family))
    if entry not in ENTRIES[family]:
        raise KeyError(name)
    module = importlib.import_module(f"{__name__}.{family}")
    made: Program = module.make(entry, Draw(seed, small, family))
    return made
