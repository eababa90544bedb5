"""A program of today compiled for a GPU that is not here, by XLA alone and through its hook -> AheadRow.

Both modules are read in the same way: what one call launches, the least time of its memory-intensive kernels, and
the memory that XLA planned.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from astitch.device.gpu import preset
from astitch.profiling.report import COPY, MEMORY, PRODUCT
from benchmarks.modern_programs import make_program
from benchmarks.modern_programs.program import Program
from benchmarks.modern_projection import describe_launches

GPU = "h100"
MOST_REASONS = 4


@dataclass(frozen=True, slots=True)
class AheadSide:
    """What one compiler makes of a program, for one call.

    memory, products: launches.  ours: those of memory that are kernels of astitch's.  light_ms: the memory-intensive
    kernels at the speed of light.  projected_ms: the same by astitch's latency model, XLA's fusions too.  all_light_ms:
    all kernels at the speed of light, products too: what one side computes in a product's kernel is in both sums.
    copies, copied_ms: XLA's copies of arrays, also of donated ones in front of a kernel: launches, at the speed of
    light.
    planned_mb: arguments, results and temporaries, what is donated once.  compile_s: tracing and compiling.
    """

    memory: float
    ours: float
    products: float
    light_ms: float
    projected_ms: float
    all_light_ms: float
    planned_mb: float
    temporary_mb: float
    compile_s: float
    copies: float = 0.0
    copied_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class AheadRow:
    """name: family/entry.  about: its sizes.  outside: what astitch left to XLA, with the largest reasons."""

    name: str
    about: Mapping[str, Any] | None = None
    xla: AheadSide | None = None
    astitch: AheadSide | None = None
    outside: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def is_whole(self) -> bool:
        return self.xla is not None and self.astitch is not None

    def noting(self, *notes: str) -> AheadRow:
        return replace(self, notes=(*self.notes, *notes))

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> AheadRow:
        """From its asdict."""
        sides = {n: AheadSide(**data[n]) if data[n] else None for n in ("xla", "astitch")}
        return cls(**{**data, **sides})


def compile_both(
    name: str, small: bool, seed: int, out: Path, dump: Path | None, *, attention: bool = True
) -> None:
    """Writes the row to `out`, XLA's side as soon as there is one.  attention: see astitch.enable."""
    import astitch

    program = make_program(name, small=small, seed=seed)
    row = AheadRow(name, program.about)
    for way in ("xla", "astitch"):
        stitches = way == "astitch"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            # Each way takes the user's call: a decorated function, or the block around it.
            with astitch.enabled(gpu=GPU, attention=attention) if stitches else nullcontext():
                start = time.perf_counter()
                compiled = compile_ahead(program, {} if stitches else program.xla_options)
                seconds = time.perf_counter() - start
        said = sorted(
            {str(w.message).splitlines()[0] for w in caught if "astitch" in str(w.message)}
        )
        row = row.noting(*said)
        compilation = None
        if stitches:
            report = astitch.report()
            row = row.noting(*(f"left to XLA: {reason}" for reason in report.left))
            for entry in report.programs:
                compilation = entry.compilation
            if compilation is not None:
                row = replace(row, outside=tuple(list_outside(compilation)))
        if dump:
            write_dump(dump, f"{name.replace('/', '-')}.{way}", compiled, compilation)
        row = replace(row, **{way: read_side(compiled, compilation, seconds)})
        partial = out.with_suffix(".part")
        partial.write_text(json.dumps(asdict(row)))
        partial.replace(out)


def compile_ahead(program: Program, options: Mapping[str, Any] | None = None) -> Any:
    """A jax.stages.Compiled for the GPU that is not here.  options: XLA's."""
    import jax
    from jax.sharding import SingleDeviceSharding

    place = SingleDeviceSharding(find_device())

    def put(a: Any) -> Any:
        make: Any = jax.ShapeDtypeStruct
        return make(a.shape, a.dtype, sharding=place)

    given = jax.tree.map(put, jax.eval_shape(program.make))
    fn = jax.jit(program.fn, donate_argnums=program.donated, compiler_options=dict(options or {}))
    return fn.trace(*given).lower(lowering_platforms=("cuda",)).compile()


def find_device() -> Any:
    """An H100 that is not here."""
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    from jax.experimental import topologies

    from astitch.profiling.xla_ahead import write_target_config

    config = write_target_config(preset(GPU))
    topology = topologies.get_topology_desc(platform="cuda", target_config=config, topology="1x1x1")
    return topology.devices[0]


def read_side(compiled: Any, compilation: Any, seconds: float) -> AheadSide:
    gpu = preset(GPU)
    module = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    kernels = describe_launches(module, compilation, gpu)
    memory = [k for k in kernels if k.kind == MEMORY]
    stats = compiled.memory_analysis()
    planned = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    return AheadSide(
        memory=sum(k.launches for k in memory),
        ours=sum(k.launches for k in memory if k.ours),
        products=sum(k.launches for k in kernels if k.kind == PRODUCT),
        light_ms=sum(k.bound_us or 0.0 for k in memory) / 1e3,
        projected_ms=sum(k.projected_us or k.bound_us or 0.0 for k in memory) / 1e3,
        all_light_ms=sum(k.bound_us or 0.0 for k in kernels) / 1e3,
        planned_mb=(planned - stats.alias_size_in_bytes) / 1e6,
        temporary_mb=stats.temp_size_in_bytes / 1e6,
        compile_s=seconds,
        copies=sum(k.launches for k in kernels if k.kind == COPY),
        copied_ms=sum(k.bound_us or 0.0 for k in kernels if k.kind == COPY) / 1e3,
    )


def list_outside(compilation: Any) -> Iterator[str]:
    """What neither a kernel nor a library computes, by op and reason; then stitch ops that were left to XLA, by reason.

    The bodies of loops count too.
    """
    ops: Counter[tuple[str, str]] = Counter()
    left: Counter[str] = Counter()
    waiting = [compilation]
    while waiting:
        each = waiting.pop()
        ops.update((op.op, str(op.reason)) for op in each.program.outside)
        left.update(each.left.values())
        waiting += [body.compilation for body in each.bodies]
    for (op, reason), count in ops.most_common(MOST_REASONS):
        yield f"outside: {count} {op}: {reason}"
    yield from (f"left, {count}: {reason}" for reason, count in left.most_common(MOST_REASONS))


def write_dump(folder: Path, name: str, compiled: Any, compilation: Any) -> None:
    """The optimized module, and astitch's explanation."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.txt").write_text(compiled.as_text())
    module = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    (folder / f"{name}.pb").write_bytes(module)
    if compilation is not None:
        (folder / f"{name}.explain.txt").write_text(compilation.explain())
