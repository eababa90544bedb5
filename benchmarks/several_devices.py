"""Training steps on several GPUs that are not here: what the devices exchange, with kernels and without them.

`JAX_PLATFORMS=cpu python -m benchmarks.several_devices [NAME ...]` prints for each program the collectives, the planned
memory, the projected work beside collectives, and the kernels.  Wants JAX with XLA's compiler for NVIDIA GPUs
(`make test-xla`); no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from astitch.device.gpu import preset
from tests.ahead_of_time import GPU, compile_ahead, devices, hooked
from tests.conftest import why_no_hook
from tests.exchanges import read_exchanges, sum_hidden

DEVICES = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One program, plain or stitched.

    collectives: kinds with how often and how many MB of operands.  planned: bytes, what is donated counted once.
    alias: bytes.  hidden_us: projected work between starts and ends of collectives.  kernels: of astitch's.
    """

    program: str
    way: str
    collectives: str
    planned: int
    alias: int
    hidden_us: float
    kernels: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.program:22} {self.way:8} {self.planned / 1e6:10.2f} {self.alias / 1e6:9.2f} "
            f"{self.hidden_us:10.1f} {self.kernels:7} {self.seconds:6.1f}  {self.collectives}"
        )


HEAD = (
    f"{'program':22} {'way':8} {'planned MB':>10} {'alias MB':>9} {'beside us':>10} {'kernels':>7} "
    f"{'s':>6}  collectives"
)


@dataclass(frozen=True, slots=True)
class Sharded:
    """arguments: trees of jax.ShapeDtypeStruct with shardings.  donated: numbers of arguments.  results: shardings,
    or None where XLA chooses."""

    fn: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: tuple[int, ...] = ()
    results: Any = None


def list_programs(size: str) -> dict[str, Callable[[], Sharded]]:
    """By name, what makes a program for DEVICES devices."""
    from benchmarks.models import choose_entries

    found: dict[str, Callable[[], Sharded]] = {}
    for sharding in ("data", "tensor", "fsdp"):
        found[f"layers/{sharding}"] = lambda how=sharding: make_layers(how)
        found[f"transformer/{sharding}"] = lambda how=sharding: make_transformer(how, size)
    found["pipeline"] = make_pipeline
    for entry in choose_entries([], size):
        if entry.size == size and entry.mode == "train":
            found[f"paper/{entry.workload}"] = lambda entry=entry: make_workload(entry)
    return found


def make_layers(sharding: str) -> Sharded:
    from tests.xla import test_several_devices as small

    return Sharded(small.step, small.arguments(DEVICES, sharding), (0, 1))


def make_transformer(sharding: str, size: str) -> Sharded:
    """The step that benchmarks.several_gpus times."""
    from benchmarks.sharded_transformer import SIZES, make_training

    training = make_training(devices(DEVICES), sharding, SIZES[size], "bfloat16")
    return Sharded(training.fn, training.shape(), (0,), training.results)


def make_pipeline() -> Sharded:
    """A layer a device; parts of the batch go from one to the next, and the gradients back."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    width, rows, parts = 512, 512, 2 * DEVICES
    mesh = Mesh(np.array(devices(DEVICES)), ("d",))
    ring = [(i, (i + 1) % DEVICES) for i in range(DEVICES)]

    def layer(w: Any, x: Any) -> Any:
        y = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        return x + jax.nn.gelu(y * w["gain"] @ w["up"]) @ w["down"]

    def loss(w: Any, x: Any) -> Any:
        w = jax.tree.map(lambda a: a[0], w)
        first = jax.lax.axis_index("d") == 0

        def turn(state: Any, number: Any) -> Any:
            given = jnp.where(first, x[number % parts], state)
            made = layer(w, given)
            return jax.lax.ppermute(made, "d", ring), made

        _, made = jax.lax.scan(turn, jnp.zeros((rows, width)), jnp.arange(parts + DEVICES - 1))
        return jax.lax.psum(jnp.square(made[DEVICES - 1 :]).mean(), "d")

    def step(w: Any, x: Any) -> Any:
        gradients = jax.grad(loss)(w, x)
        return jax.tree.map(lambda a, g: a - 1e-3 * g, w, gradients)

    split, same = PartitionSpec("d"), PartitionSpec()
    fn = jax.shard_map(step, mesh=mesh, in_specs=(split, same), out_specs=split, check_vma=False)
    shapes = {"gain": (width,), "up": (width, 4 * width), "down": (4 * width, width)}
    make: Any = jax.ShapeDtypeStruct
    weights = {
        name: make((DEVICES, *shape), np.float32, sharding=NamedSharding(mesh, split))
        for name, shape in shapes.items()
    }
    x = make((parts, rows, width), np.float32, sharding=NamedSharding(mesh, same))
    return Sharded(fn, (weights, x), (0,))


def make_workload(entry: Any) -> Sharded:
    """A training step with the batch split over the devices, where its first dimension allows; DEVICES times as large.

    What has another first dimension than the batch is whole on each device.
    """
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from benchmarks.models import make_task

    task = make_task(entry)
    mesh = Mesh(np.array(devices(DEVICES)), ("d",))
    make: Any = jax.ShapeDtypeStruct

    def whole(a: Any) -> Any:
        return make(a.shape, a.dtype, sharding=NamedSharding(mesh, PartitionSpec()))

    def split(a: Any) -> Any:
        if not a.shape:
            return whole(a)
        shape = (a.shape[0] * DEVICES, *a.shape[1:])
        return make(shape, a.dtype, sharding=NamedSharding(mesh, PartitionSpec("d")))

    given = (jax.tree.map(whole, task.first), jax.tree.map(split, task.batch))
    return Sharded(task.fn, given, (0,))


def compile_ways(name: str, program: Sharded) -> Iterator[Row]:
    """A row without kernels and one with them."""
    for way in ("plain", "stitched"):
        start = time.perf_counter()
        with hooked(stitches=way == "stitched") as seen:
            compiled = compile_ahead(
                program.fn,
                *program.arguments,
                donate_argnums=program.donated,
                out_shardings=program.results,
            )
        exchanges = read_exchanges(compiled, preset(GPU))
        memory = compiled.memory_analysis()
        results = memory.output_size_in_bytes - memory.alias_size_in_bytes
        yield Row(
            name,
            way,
            show_exchanges([(e.kind, e.operands) for e in exchanges]),
            memory.argument_size_in_bytes + results + memory.temp_size_in_bytes,
            memory.alias_size_in_bytes,
            sum_hidden(exchanges),
            sum(s.kernels for s in seen.stitchings),
            time.perf_counter() - start,
        )


def show_exchanges(found: Sequence[tuple[str, int]]) -> str:
    """Each kind with how often it is there, and the MB that a device gives to all of them."""
    kinds = dict.fromkeys(kind for kind, _ in sorted(found))
    sizes = {kind: [size for other, size in found if other == kind] for kind in kinds}
    return ", ".join(f"{len(s)} {kind} {sum(s) / 1e6:.3f} MB" for kind, s in sizes.items())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.several_devices")
    parser.add_argument(
        "names", nargs="*", help="programs whose name contains one of these; or all"
    )
    parser.add_argument("--size", default="tiny", choices=("full", "tiny"), help="of the workloads")
    parser.add_argument("--json", type=Path, help="write the rows there")
    options = parser.parse_args(arguments)
    if missing := why_no_hook():
        raise SystemExit(missing)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    rows: list[Row] = []
    print(HEAD)
    for name, make in list_programs(options.size).items():
        if options.names and not any(wanted in name for wanted in options.names):
            continue
        for row in compile_ways(name, make()):
            rows.append(row)
            print(row, flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
