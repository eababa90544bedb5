"""The wheel, used from an environment that knows nothing of the checkout: `python -P tests/wheel.py`.

Every file of the packages is in it, and a program compiles and runs; `make test-wheel` builds the wheel and calls this.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np

import astitch
from astitch.run.host_engine import HostEngine

CHECKOUT = Path(__file__).parents[1]


def main() -> int:
    installed = Path(astitch.__file__).parents[1]
    if installed == CHECKOUT:
        print(f"astitch is imported from the checkout, {installed}", file=sys.stderr)
        return 2
    command = ["git", "-C", str(CHECKOUT), "ls-files", "astitch", "tf_addon"]
    files = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    if missing := [file for file in files if not (installed / file).exists()]:
        print("not in the wheel:", *missing, sep="\n  ", file=sys.stderr)
        return 1
    module = gzip.decompress((CHECKOUT / "tests/data/corpus/softmax_last.hlo.pb.gz").read_bytes())
    program = astitch.compile_hlo(module).program
    shapes = [view.type.shape for view in program.parameters]
    arguments = [np.random.default_rng(0).normal(size=shape).astype("f") for shape in shapes]
    (result,) = HostEngine(program).run(arguments)
    np.testing.assert_allclose(result.sum(-1), 1, rtol=1e-5)
    print(f"the wheel has {len(files)} files and runs {len(program.kernels)} kernel")
    return 0


if __name__ == "__main__":
    sys.exit(main())
