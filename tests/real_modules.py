"""Whole modules, as JAX and TensorFlow gave them, by the reference and by XLA.

`python -m tests.real_modules [NAME ...]`: all of them, for three minutes.  The tests leave the training steps out:
their ops are compared one by one, and steps of the same models at small sizes.
"""

from __future__ import annotations

import argparse
import gzip
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from tests.hlo_runner import parse_hlo_text, random_arguments, run_xla

MODULES = Path(__file__).parent / "data" / "hlo"

# name: nodes, parameters, outputs, and how many of some ops the entry computation has
COUNTS = {
    "bert_layer_fwd": (174, 18, 1, {"dot": 8, "reduce": 6}),
    "bert_infer": (431, 44, 2, {"dot": 18, "gather": 2}),
    "bert_infer_bf16_erfgelu": (647, 44, 2, {"logistic": 0, "convert": 49}),
    "bert_train": (4290, 146, 140, {"scatter": 5, "while": 0}),
    "crnn_infer": (272, 43, 2, {"convolution": 7, "reduce-window": 4, "while": 4}),
    "crnn_train": (1703, 112, 110, {"convolution": 20, "select-and-scatter": 4, "while": 10}),
    "dien_infer": (343, 35, 1, {"while": 2, "gather": 5}),
    "dien_train": (1866, 115, 107, {"while": 4, "scatter": 7}),
    "tf_keras_infer": (372, 25, 1, {"convolution": 1, "while": 2}),
}


def read_module(name: str) -> bytes:
    """A module's proto."""
    (path,) = MODULES.glob(f"{name}.hlo.*.gz")
    data = gzip.decompress(path.read_bytes())
    return parse_hlo_text(data.decode()) if ".txt" in path.name else data


def compare_with_xla(name: str) -> None:
    """Floats up to 0.1, positive where some parameters are variances.  Raises AssertionError."""
    narrow = "bf16" in name
    proto, tolerance = read_module(name), 0.03 if narrow else 1e-4
    graph = import_hlo(proto)
    arguments = [
        (a if narrow else np.abs(a)) * a.dtype.type(0.1) if graph[p].dtype.is_float else a
        for p, a in zip(graph.parameters, random_arguments(graph), strict=True)
    ]
    wanted = run_xla(proto, arguments, optimise=True)
    for got, want in zip(run_graph(graph, arguments), wanted, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        scale = np.abs(want.astype(np.float64)).max(initial=1e-30)
        np.testing.assert_allclose(
            got.astype(np.float64) / scale, want.astype(np.float64) / scale, 0, tolerance
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line.  Returns 1 where a module differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.real_modules", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*COUNTS, []], metavar="NAME")
    failed = 0
    for name in parser.parse_args(arguments).names or COUNTS:
        try:
            compare_with_xla(name)
        except AssertionError as error:
            failed += 1
            print(f"{name}: {error}")
        else:
            print(f"{name}: agrees", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
