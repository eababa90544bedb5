"""Every schedule of a list of patterns, measured on one GPU: the data that the cost models are judged by.

`python -m benchmarks.measure_plans [NAME ...] [--out tests/data/measured_plans.json]` lowers the patterns with JAX and
plans each with every schedule.  It compiles all kernels side by side and times them.  It writes what a machine without
a GPU needs to project the same plans again: the modules, the schedules, registers and spills, microseconds.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import hashlib
import json
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from astitch.compile import compile_hlo
from astitch.device.gpu import from_device, measure_copy_gbs
from astitch.device.schedule import schedule_to_json
from astitch.errors import AstitchError, KernelCompileError
from astitch.graph.ir import Graph
from astitch.search.build_program import make_cuda_kernel
from astitch.search.check_plan import check_plan
from astitch.search.measure import compile_plans, measure_plans
from astitch.search.plan import Plan, enumerate_schedules, plan_scope
from astitch.stitch_scope import Scope

F32, BF16 = jnp.float32, jnp.bfloat16

OUT = Path("tests/data/measured_plans.json")


@dataclasses.dataclass(frozen=True, slots=True)
class Pattern:
    """fn on arrays of `specs` (shape, dtype)."""

    name: str
    fn: Callable[..., Any]
    specs: tuple[tuple[tuple[int, ...], Any], ...]


def softmax(x: Any) -> Any:
    return jax.nn.softmax(x, -1)


def layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
    y = x.astype(F32)
    mean = y.mean(-1, keepdims=True)
    var = jnp.square(y - mean).mean(-1, keepdims=True)
    return ((y - mean) * jax.lax.rsqrt(var + 1e-5) * gamma + beta).astype(x.dtype)


def rms_norm(x: Any, gamma: Any) -> Any:
    y = x.astype(F32)
    return (y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-6) * gamma).astype(x.dtype)


def backward(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Gradients of `fn` for all its arguments, given the gradient of its result last."""

    def gradients(*arguments: Any) -> Any:
        *inputs, upstream = arguments
        return jax.vjp(fn, *inputs)[1](upstream)

    return gradients


def batch_norm_relu(x: Any, gamma: Any, beta: Any) -> Any:
    mean = x.mean((0, 1, 2))
    var = jnp.square(x - mean).mean((0, 1, 2))
    y = jax.nn.relu((x - mean) * jax.lax.rsqrt(var + 1e-5) * gamma + beta)
    return y, mean, var


def group_norm(x: Any, gamma: Any, beta: Any) -> Any:
    n, h, w, c = x.shape
    g = x.reshape(n, h, w, 32, c // 32)
    mean = g.mean((1, 2, 4), keepdims=True)
    var = jnp.square(g - mean).mean((1, 2, 4), keepdims=True)
    return ((g - mean) * jax.lax.rsqrt(var + 1e-5)).reshape(x.shape) * gamma + beta


def instance_norm(x: Any, gamma: Any, beta: Any) -> Any:
    mean = x.mean((1, 2), keepdims=True)
    var = jnp.square(x - mean).mean((1, 2), keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * gamma + beta


def _norm(dtype: Any, rows: int, cols: int, *, shift: bool) -> tuple[Any, ...]:
    return (((rows, cols), dtype), ((cols,), F32), *([((cols,), F32)] if shift else []))


def _adam(p: Any, g: Any, m: Any, v: Any) -> Any:
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v


def _bias_relu(x: Any, b: Any) -> Any:
    return jax.nn.relu(x + b)


def _column_sum(x: Any) -> Any:
    return x.astype(F32).sum(0)


PATTERNS = (
    Pattern("softmax f32 64x30000", softmax, (((64, 30000), F32),)),
    Pattern("softmax f32 8192x1024", softmax, (((8192, 1024), F32),)),
    Pattern("softmax f32 4096x8192", softmax, (((4096, 8192), F32),)),
    Pattern("softmax f32 750000x32", softmax, (((750000, 32), F32),)),
    Pattern("softmax f32 256x65536", softmax, (((256, 65536), F32),)),
    Pattern("softmax f32 16x1048576", softmax, (((16, 1048576), F32),)),
    Pattern("softmax bf16 16384x4096", softmax, (((16384, 4096), BF16),)),
    Pattern("layer norm f32 4096x768", layer_norm, _norm(F32, 4096, 768, shift=True)),
    Pattern("layer norm bf16 32768x4096", layer_norm, _norm(BF16, 32768, 4096, shift=True)),
    Pattern(
        "layer norm backward bf16 16384x4096",
        backward(layer_norm),
        (*_norm(BF16, 16384, 4096, shift=True), ((16384, 4096), BF16)),
    ),
    Pattern(
        "layer norm backward f32 4096x768",
        backward(layer_norm),
        (*_norm(F32, 4096, 768, shift=True), ((4096, 768), F32)),
    ),
    Pattern("rms norm bf16 8192x8192", rms_norm, _norm(BF16, 8192, 8192, shift=False)),
    Pattern(
        "rms norm backward bf16 16384x2048",
        backward(rms_norm),
        (*_norm(BF16, 16384, 2048, shift=False), ((16384, 2048), BF16)),
    ),
    Pattern("column sum f32 65536x1024", _column_sum, (((65536, 1024), F32),)),
    Pattern("column sum bf16 4096x16384", _column_sum, (((4096, 16384), BF16),)),
    Pattern("column sum f32 1000000x24", _column_sum, (((1000000, 24), F32),)),
    Pattern("sum f32 67108864", jnp.sum, (((1 << 26,), F32),)),
    Pattern(
        "bias + gelu bf16 8192x8192",
        lambda x, b: jax.nn.gelu(x + b),
        (((8192, 8192), BF16), ((8192,), BF16)),
    ),
    Pattern(
        "instance norm f32 32x64x64x512",
        instance_norm,
        (((32, 64, 64, 512), F32), ((512,), F32), ((512,), F32)),
    ),
    Pattern("bias + relu f32 16384x4096", _bias_relu, (((16384, 4096), F32), ((4096,), F32))),
    Pattern("adam f32 4096x4096", _adam, (((4096, 4096), F32),) * 4),
    Pattern("transpose add f32 8192x8192", lambda x, y: x.T + y, (((8192, 8192), F32),) * 2),
    Pattern(
        "batch-norm + relu f32 32x28x28x256",
        batch_norm_relu,
        (((32, 28, 28, 256), F32), ((256,), F32), ((256,), F32)),
    ),
    Pattern(
        "group-norm f32 16x32x32x512",
        group_norm,
        (((16, 32, 32, 512), F32), ((512,), F32), ((512,), F32)),
    ),
)


def lower_pattern(pattern: Pattern) -> bytes:
    """The pattern's serialized HloModuleProto, as JAX lowers it for CUDA."""
    specs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in pattern.specs]
    traced = jax.jit(pattern.fn, keep_unused=True).trace(*specs)
    module = traced.lower(lowering_platforms=("cuda",)).compiler_ir("hlo")
    proto: bytes = module.as_serialized_hlo_module_proto()
    return proto


def enumerate_plans(graph: Graph, scope: Scope, gpu: Any) -> list[Plan]:
    """A plan for each schedule, the default first; of plans with the same kernel the first."""
    plans: dict[Any, Plan] = {}
    for schedule in enumerate_schedules(graph, scope, gpu):
        try:
            plan = plan_scope(graph, scope, gpu, schedule)
        except AstitchError as error:
            print(f"  {schedule}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        if plan is not None:
            plans.setdefault(plan.kernel, check_plan(plan))
    return list(plans.values())


def hash_kernel(plan: Plan) -> str:
    """Tells whether a plan still gives the kernel that was measured."""
    return hashlib.sha256(make_cuda_kernel(plan.kernel).source.encode()).hexdigest()[:16]


def show_progress() -> Callable[[str, int, int], None]:
    """A bar where rich is installed, else one line a pattern."""
    try:
        from rich.progress import Progress
    except ImportError:
        seen: set[str] = set()

        def line(name: str, number: int, total: int) -> None:
            if name not in seen:
                seen.add(name)
                print(f"{number + 1}/{total} {name}", flush=True)

        return line
    bar = Progress()
    bar.start()
    task = bar.add_task("plans", total=None)

    def advance(name: str, number: int, total: int) -> None:
        bar.update(task, description=name, completed=number + 1, total=total)
        if number + 1 == total:
            bar.stop()

    return advance


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measure_plans", description=__doc__)
    parser.add_argument("names", nargs="*", help="only patterns whose name contains one of these")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    gpu = from_device()
    start = time.perf_counter()
    work: list[tuple[Pattern, bytes, Graph, list[Plan]]] = []
    for pattern in PATTERNS:
        if options.names and not any(n in pattern.name for n in options.names):
            continue
        proto = lower_pattern(pattern)
        compilation = compile_hlo(proto, gpu=gpu)
        scope = max(compilation.scopes.scopes, key=lambda s: len(s.members))
        work.append(
            (pattern, proto, compilation.graph, enumerate_plans(compilation.graph, scope, gpu))
        )
    total = sum(len(plans) for *_, plans in work)
    planned = time.perf_counter()
    print(f"{total} plans of {len(work)} patterns in {planned - start:.1f} s", flush=True)
    compiled = compile_plans([plan for *_, plans in work for plan in plans], gpu.arch)
    print(f"compiled in {time.perf_counter() - planned:.1f} s", flush=True)
    advance, done = show_progress(), 0
    stored: list[dict[str, Any]] = []
    for pattern, proto, graph, plans in work:
        mine = compiled[done : done + len(plans)]

        def count(name: str = pattern.name) -> None:
            nonlocal done
            advance(name, done, total)
            done += 1

        measured = measure_plans(graph, plans, compiled=mine, progress=count)
        rows = []
        for plan, kernel, found in zip(plans, mine, measured, strict=True):
            used = found.resources
            refused = isinstance(kernel, KernelCompileError)
            rows.append(
                {
                    "schedule": schedule_to_json(plan.schedule),
                    "us": None if found.fault else round(found.time_us, 2),
                    "registers": None if refused or used is None else used.registers,
                    "spill_bytes": 0
                    if used is None
                    else used.spill_store_bytes + used.spill_load_bytes,
                    "blocks_per_sm": found.blocks_per_sm,
                    "kernel": hash_kernel(plan),
                    **({"fault": found.fault} if found.fault else {}),
                }
            )
        packed = base64.b64encode(zlib.compress(proto, 9)).decode()
        stored.append({"name": pattern.name, "hlo": packed, "plans": rows})
    copy_gbs = round(measure_copy_gbs(), 1)
    result = {"gpu": dataclasses.asdict(gpu), "copy_gbs": copy_gbs, "patterns": stored}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"copy {copy_gbs} GB/s; all in {time.perf_counter() - start:.0f} s; wrote {options.out}")
    for entry in stored:
        times = [p["us"] for p in entry["plans"] if p["us"] is not None]
        faults = [p for p in entry["plans"] if p["us"] is None]
        best = min((p for p in entry["plans"] if p["us"]), key=lambda p: p["us"])
        default = entry["plans"][0]["us"]
        print(
            f"{entry['name']:38} {len(times):3} plans, default {default:8.1f} us, best {min(times):8.1f}"
            f" {best['schedule']}"
        )
        for fault in faults:
            print(f"    {fault['schedule']}: {fault['fault']}")


if __name__ == "__main__":
    main()
