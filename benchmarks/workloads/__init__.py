"""The five workloads of the AStitch paper (section 5), each as its own paper describes the model, in plain JAX.

A module has SIZES ("tiny" for a test, "full" for a measurement); make_parameters and make_batch, which draw NumPy
arrays from a key and a Size of its own; infer(parameters, batch) and train_step(state, batch) -> (state, loss).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from benchmarks.workloads import asr, bert, crnn, dien, transformer

WORKLOADS: Mapping[str, ModuleType] = {
    "bert": bert,
    "transformer": transformer,
    "crnn": crnn,
    "asr": asr,
    "dien": dien,
}
