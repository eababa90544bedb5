"""Programs compiled by XLA for NVIDIA GPUs that are not here, with astitch's hook and without it.

Wants JAX with XLA's compiler for NVIDIA GPUs (`pip install -e '.[dev,xla-cuda13]'`) and Python 3.12; `make test-xla`
makes that environment.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from astitch.device.gpu import preset
from astitch.profiling.xla_ahead import write_target_config
from astitch.xla.hook import Stitching, is_worth, read_module, stitch_module
from tests.waits import label_kernels, label_ops

GPU = "h100"


needs_hook = pytest.mark.xla_hook
"""Of a test: without the hook it is skipped."""


@functools.cache
def devices(count: int = 1) -> tuple[Any, ...]:
    """So many GPUs of one host, none of which is here."""
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    from jax.experimental import topologies

    config = write_target_config(preset(GPU))
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=config, topology=f"1x1x{count}"
    )
    return tuple(topology.devices)


@dataclass
class Seen:
    """What went through the hook: modules as XLA handed them over, and what became of each."""

    modules: list[bytes] = field(default_factory=list)
    stitchings: list[Stitching] = field(default_factory=list)


@contextlib.contextmanager
def hooked(
    *, stitches: bool = True, attention: bool = True, labels: bool = False
) -> Iterator[Seen]:
    """Programs that are compiled here go through astitch; with stitches=False they are only looked at.

    attention: see astitch.enable.  labels: instructions carry their names through the compilation, see waits.py."""
    from jax.extend import xla

    seen = Seen()
    errors: list[BaseException] = []

    def transform(data: bytes) -> bytes | None:
        seen.modules.append(data)
        try:
            given = label_ops(data) if labels else data
            module = read_module(given)
            if not stitches or not is_worth(module):
                return given if labels else None
            stitching = stitch_module(module, preset(GPU), attention=attention)
            seen.stitchings.append(stitching)
            if labels:
                return label_kernels(stitching) if stitching.module else given
            return stitching.module
        except BaseException as error:
            errors.append(error)
            return None

    devices()  # JAX loads XLA's plugin
    xla.register_hlo_module_transformation(transform, name="astitch_test", platforms="cuda")
    try:
        yield seen
    finally:
        xla.clear_hlo_module_transformation("astitch_test", platforms="cuda")
    if errors:
        raise errors[0]


def compile_ahead(fn: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What JAX and XLA make of a function for GPUs that are not here: a jax.stages.Compiled.

    arguments: trees of jax.ShapeDtypeStruct with shardings over `devices`.  options: of jax.jit.
    """
    import jax

    jax.clear_caches()
    return jax.jit(fn, **options).trace(*arguments).lower(lowering_platforms=("cuda",)).compile()


@contextlib.contextmanager
def calls_of_the_host() -> Iterator[None]:
    """Within the block, programs with callbacks and prints can be compiled ahead of time: they hold no functions."""
    from jax._src import compiler
    from jax._src.interpreters import mlir

    lowers, compiles = mlir.ModuleContext, compiler.backend_compile_and_load

    def compile_without(backend: Any, module: Any, places: Any, options: Any, _: Any) -> Any:
        return compiles(backend, module, places, options, ())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowers, "get_backend", lambda self, optional=False: None)
        patch.setattr(compiler, "backend_compile_and_load", compile_without)
        yield
