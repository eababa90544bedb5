"""A BERT encoder layer through astitch: python examples/bert_layer.py

The model is plain JAX and lives in astitch/demo.py.  With a GPU the kernels run there; without one
the same CUDA text runs through the host emulation.
"""

import jax.numpy as jnp

import astitch
from astitch.demo import layer, make_inputs, make_layer

params = make_layer(seed=0)  # 768 wide, 3072 inside
x, mask = make_inputs(seed=1, batch=2, seq=32)

encode = astitch.jit(layer)  # where jax.jit stood
y = encode(params, x, mask)
print(y.shape, y.dtype, "mean", float(jnp.mean(y)))

compiled = encode.lower(params, x, mask).compile()  # ahead of time, like JAX
print(compiled.explain())
for kernel in compiled.program.kernels:
    moved_kb = (kernel.reads_bytes + kernel.writes_bytes) / 1000
    print(f"{kernel.name}: {kernel.grid} blocks of {kernel.block} threads, {moved_kb:.0f} kB moved")
