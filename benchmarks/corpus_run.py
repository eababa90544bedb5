"""Runs the kernels of the corpus on a GPU and checks the results: a program for compute-sanitizer to watch.

`JAX_PLATFORMS=cpu compute-sanitizer --tool racecheck python -m benchmarks.corpus_run [NAME ...]`
Exit status 1 if a result differs from the reference.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from astitch.compile import compile_hlo
from astitch.device.gpu import from_device
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.program.steps import FallbackStep, LibraryStep
from astitch.run.executor import GpuExecutor
from tests.programs import PROGRAMS, TF32_SCALE, assert_matches, load


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corpus_run", description=__doc__)
    parser.add_argument("names", nargs="*", help="programs of the corpus; all without any")
    names = parser.parse_args().names or list(PROGRAMS)
    gpu = from_device()
    wrong = []
    kernels = 0
    for name in names:
        program = PROGRAMS[name]
        inputs = program.make_inputs(0)
        compiled = compile_hlo(load(name), gpu=gpu).program
        kernels += len(compiled.kernels)
        got = [array.to_numpy() for array in GpuExecutor(compiled).run(inputs)]
        if any(
            isinstance(step, LibraryStep | FallbackStep) for step in compiled.steps
        ):  # f32 products round to TF32
            scale = max(program.tolerance.scale, TF32_SCALE)
            program = replace(program, tolerance=replace(program.tolerance, scale=scale))
        try:
            assert_matches(program, got, run_graph(import_hlo(load(name)), inputs))
        except AssertionError as error:
            wrong.append(name)
            print(f"{name}: {str(error).splitlines()[0]}")
    print(f"{len(names)} programs, {kernels} kernels, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
