"""XLA on the CPU as the judge: HLO modules of JAX functions, arguments for them, XLA's results.

proto = lower(jnp.tanh, np.zeros(4, np.float32))
run_xla(proto, random_arguments(import_hlo(proto)))
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from astitch.graph.ir import ArrayType, DType, Graph, Node

EMITTERS = "xla_cpu_use_fusion_emitters"
OTHERWISE = (b"reduce-precision", b"power")
"""Where the emitters that tests/conftest.py chooses differ: NaN without a mantissa is infinity, and (-1)^-1 is 0."""


def lower(fn: Callable[..., Any], *args: Any, **jit_options: Any) -> bytes:
    """The serialized HloModuleProto of a JAX function.  args: arrays or jax.ShapeDtypeStruct."""
    import jax

    hlo = jax.jit(fn, **jit_options).lower(*args).compiler_ir("hlo")
    return bytes(hlo.as_serialized_hlo_module_proto())


def lower_for_gpu(fn: Callable[..., Any], *args: Any) -> bytes:
    """The same, as JAX writes it for a CUDA device: with the calls of that device's libraries."""
    import jax

    lowered = jax.jit(fn, keep_unused=True).trace(*args).lower(lowering_platforms=("cuda",))
    return bytes(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())


def parse_hlo_text(text: str) -> bytes:
    """HLO text -> serialized HloModuleProto, by XLA's own parser."""
    from jax._src.lib import xla_client

    return bytes(xla_client.hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())


def run_xla(
    proto: bytes, arguments: Sequence[np.ndarray], *, optimise: bool | None = None
) -> list[np.ndarray]:
    """Compiles a serialized HloModuleProto for the CPU and runs it: the flat list of results.

    optimise: False compiles in half the time, and the code is slow; None is quicker still where tests/conftest.py has
    chosen so, and not exact for each op and type; True is for programs that compute for long.
    """
    import jax
    from jax._src.lib import xla_client
    from jaxlib import _jax

    options = xla_client.CompileOptions()
    options.parameter_is_tupled_arguments = False
    options.env_option_overrides = [("xla_allow_excess_precision", False)]
    if optimise is not None:
        options.env_option_overrides += [("xla_backend_optimization_level", 3 if optimise else 0)]
    exact = optimise is not None or any(op in proto for op in OTHERWISE)
    if exact and EMITTERS in os.environ.get("XLA_FLAGS", ""):
        options.env_option_overrides += [(EMITTERS, True)]
    device = jax.devices("cpu")[0]
    executable = device.client.compile_and_load(
        _jax.mlir.hlo_to_stablehlo(proto), _jax.DeviceList((device,)), options
    )
    with jax.enable_x64(True):
        buffers = [jax.device_put(a, device) for a in arguments]
    results = executable.execute_sharded(buffers).disassemble_into_single_device_arrays()
    return [np.asarray(shards[0]) for shards in results]


def random_arguments(
    graph: Graph, seed: int = 0, *, index_limit: int | None = None
) -> list[np.ndarray]:
    """One array for each parameter: floats in [-1, 1], booleans, integers that are valid indices.

    An integer parameter may end up as an index of any gather in the graph.  So it stays below the smallest dimension
    that a gather indexes, or below `index_limit`.
    """
    rng = np.random.default_rng(seed)
    limit = index_limit if index_limit is not None else _smallest_indexed_extent(graph)
    return [random_array(rng, graph[p].array, limit) for p in graph.parameters]


def random_array(rng: np.random.Generator, type_: ArrayType, limit: int) -> np.ndarray:
    """Floats in [-1, 1], booleans, integers from 0 to below `limit`."""
    dtype = type_.dtype
    if dtype is DType.PRED:
        return np.asarray(rng.integers(0, 2, type_.shape), np.bool_)
    if dtype.is_integer:
        return np.asarray(rng.integers(0, limit, type_.shape), dtype.numpy)
    if dtype.is_complex:
        real, imag = rng.uniform(-1, 1, (2, *type_.shape))
        return np.asarray(real + 1j * imag, dtype.numpy)
    return np.asarray(rng.uniform(-1, 1, type_.shape).astype(np.float32), dtype.numpy)


def _smallest_indexed_extent(graph: Graph) -> int:
    extents = [100]
    for node in graph:
        extents += _indexed_extents(graph, node)
    return max(1, min(extents))


def _indexed_extents(graph: Graph, node: Node) -> list[int]:
    if node.op == "gather":
        return [graph[node.operands[0]].shape[d] for d in node.attrs.start_index_map]  # type: ignore[union-attr]
    return []
