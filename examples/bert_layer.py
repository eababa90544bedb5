"""A BERT encoder layer through astitch: python examples/bert_layer.py

The model is plain JAX and lives in astitch/demo.py.  With a GPU the kernels run there; without one
the same CUDA text runs through the host emulation.  `astitch-profile examples/bert_layer.py` shows it beside XLA.
"""

from typing import Any

import jax.numpy as jnp

import astitch
from astitch.demo import layer, make_inputs, make_layer


def make_arguments() -> tuple[Any, ...]:
    """Parameters (768 wide, 3072 inside), x and mask."""
    return make_layer(seed=0), *make_inputs(seed=1, batch=2, seq=32)


def profile_target() -> tuple[Any, tuple[Any, ...]]:
    """What astitch-profile looks at: a function and its arguments."""
    return layer, make_arguments()


def main() -> None:
    encode = astitch.jit(layer)  # where jax.jit stood
    arguments = make_arguments()
    y = encode(*arguments)
    print(y.shape, y.dtype, "mean", float(jnp.mean(y)))

    compiled = encode.lower(*arguments).compile()  # ahead of time, like JAX
    print(compiled.explain())
    for kernel in compiled.program.kernels:
        moved_kb = (kernel.reads_bytes + kernel.writes_bytes) / 1000
        print(
            f"{kernel.name}: {kernel.grid} blocks of {kernel.block} threads, {moved_kb:.0f} kB moved"
        )


if __name__ == "__main__":
    main()
