"""Training steps on several GPUs that are not here: what the devices exchange, with kernels and without them.

`JAX_PLATFORMS=cpu python -m benchmarks.several_devices [NAME ...]` prints for each program the collectives, the planned
memory, the projected work beside collectives, and the kernels.  A last line compares the two: see Verdict.  --written:
programs as users write them (benchmarks.sharded_programs); --kept: nothing is donated.  Wants JAX with
XLA's compiler for NVIDIA GPUs (`make test-xla`); no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from astitch.device.gpu import preset
from benchmarks.sharded_programs import PROGRAMS, Sharded
from tests.ahead_of_time import GPU, compile_ahead, devices, hooked
from tests.conftest import why_no_hook
from tests.exchanges import Exchange, read_exchanges, sum_covered, sum_hidden
from tests.reckoned_times import ask_for_times, cover, read_times
from tests.waits import Comparison, Waits, compare_waits, read_waits


@dataclass(frozen=True, slots=True)
class Row:
    """One program, plain or stitched.

    collectives: kinds with how often and how many MB of operands.  planned: bytes, what is donated counted once.
    alias: bytes.  hidden_us: projected work between starts and ends of collectives.  kernels: of astitch's.
    """

    devices: int
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
            f"{self.devices:7} {self.program:22} {self.way:8} {self.planned / 1e6:10.2f} {self.alias / 1e6:9.2f} "
            f"{self.hidden_us:10.1f} {self.kernels:7} {self.seconds:6.1f}  {self.collectives}"
        )


HEAD = (
    f"{'devices':7} {'program':22} {'way':8} {'planned MB':>10} {'alias MB':>9} {'beside us':>10} {'kernels':>7} "
    f"{'s':>6}  collectives"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of a program with kernels beside the same without.

    collectives: "as plain"; "16 for 17, the same bytes" where XLA combines them otherwise; else what is different.
    planned: the memory, as a share.  hidden: us beside collectives, without kernels and with them, each as projected.
    covered: of that what each collective takes, at most (Exchange.covered_us).  waits: the same for the same ops, which
    is what the plain program's kernels take for them on both sides, the room that their order leaves, and what
    collectives wait for longer.  reckoned: of the same ops what each collective takes by XLA's own table, at most.
    """

    devices: int
    program: str
    collectives: str
    planned: float
    hidden: tuple[float, float]
    covered: tuple[float, float]
    waits: Comparison
    reckoned: tuple[float, float]

    def __str__(self) -> str:
        pairs = (
            f"{name} {one:.1f} / {other:.1f} us"
            for name, (one, other) in (
                ("beside", self.hidden),
                ("covered", self.covered),
                ("the same ops beside", self.waits.beside),
                ("the same ops covered", self.waits.covered),
                ("by XLA's table", self.reckoned),
                ("room", self.waits.room),
            )
        )
        return (
            f"{self.devices:7} {self.program:22} {self.collectives}; memory {self.planned:.3f}; "
            f"{'; '.join(pairs)}; waits {self.waits.longer:.1f} us longer, starts {self.waits.later:.1f} us later"
        )


def compare_exchanges(plain: Sequence[Exchange], stitched: Sequence[Exchange]) -> str:
    """See Verdict.collectives."""
    one, other = (Counter((e.kind, e.operands) for e in found) for found in (plain, stitched))
    if one == other:
        return "as plain"
    sizes = [Counter[str](), Counter[str]()]
    for size, found in zip(sizes, (plain, stitched), strict=True):
        for exchange in found:
            size[exchange.kind] += exchange.operands
    numbers = f"{len(stitched)} for {len(plain)}"
    if sizes[0] == sizes[1]:
        return f"{numbers}, the same bytes"
    kinds = (
        f"{kind} {sizes[1][kind]:,} B for {sizes[0][kind]:,} B"
        for kind in sorted(sizes[0] | sizes[1])
        if sizes[0][kind] != sizes[1][kind]
    )
    return f"{numbers}, {', '.join(kinds)}"


def list_written(count: int) -> dict[str, Callable[[], Sharded]]:
    """By name, what makes a program of benchmarks.sharded_programs for so many devices."""
    return {name: lambda make=make: make(devices(count)) for name, make in PROGRAMS.items()}


def list_programs(size: str, count: int) -> dict[str, Callable[[], Sharded]]:
    """By name, what makes a program for so many devices."""
    from benchmarks.models import choose_entries

    found: dict[str, Callable[[], Sharded]] = {}
    for sharding in ("data", "tensor", "fsdp"):
        found[f"layers/{sharding}"] = lambda how=sharding: make_layers(how, count)
        found[f"transformer/{sharding}"] = lambda how=sharding: make_transformer(how, size, count)
    found["pipeline"] = lambda: make_pipeline(count)
    for entry in choose_entries([], size):
        if entry.size == size and entry.mode == "train":
            found[f"paper/{entry.workload}"] = lambda entry=entry: make_workload(entry, count)
    return found


def make_layers(sharding: str, count: int) -> Sharded:
    from tests.xla import test_several_devices as small

    return Sharded(small.step, small.arguments(count, sharding), (0, 1))


def make_transformer(sharding: str, size: str, count: int) -> Sharded:
    """The step that benchmarks.several_gpus times."""
    from benchmarks.sharded_transformer import SIZES, make_training

    training = make_training(devices(count), sharding, SIZES[size], "bfloat16")
    return Sharded(training.fn, training.shape(), (0,), training.results)


def make_pipeline(count: int) -> Sharded:
    """A layer a device; parts of the batch go from one to the next, and the gradients back."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    width, rows, parts = 512, 512, 2 * count
    mesh = Mesh(np.array(devices(count)), ("d",))
    ring = [(i, (i + 1) % count) for i in range(count)]

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

        _, made = jax.lax.scan(turn, jnp.zeros((rows, width)), jnp.arange(parts + count - 1))
        return jax.lax.psum(jnp.square(made[count - 1 :]).mean(), "d")

    def step(w: Any, x: Any) -> Any:
        gradients = jax.grad(loss)(w, x)
        return jax.tree.map(lambda a, g: a - 1e-3 * g, w, gradients)

    split, same = PartitionSpec("d"), PartitionSpec()
    fn = jax.shard_map(step, mesh=mesh, in_specs=(split, same), out_specs=split, check_vma=False)
    shapes = {"gain": (width,), "up": (width, 4 * width), "down": (4 * width, width)}
    make: Any = jax.ShapeDtypeStruct
    weights = {
        name: make((count, *shape), np.float32, sharding=NamedSharding(mesh, split))
        for name, shape in shapes.items()
    }
    x = make((parts, rows, width), np.float32, sharding=NamedSharding(mesh, same))
    return Sharded(fn, (weights, x), (0,))


def make_workload(entry: Any, count: int) -> Sharded:
    """A training step with the batch split over the devices, where its first dimension allows; `count` times as large.

    What has another first dimension than the batch is whole on each device.
    """
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from benchmarks.models import make_task

    task = make_task(entry)
    mesh = Mesh(np.array(devices(count)), ("d",))
    make: Any = jax.ShapeDtypeStruct

    def whole(a: Any) -> Any:
        return make(a.shape, a.dtype, sharding=NamedSharding(mesh, PartitionSpec()))

    def split(a: Any) -> Any:
        if not a.shape:
            return whole(a)
        shape = (a.shape[0] * count, *a.shape[1:])
        return make(shape, a.dtype, sharding=NamedSharding(mesh, PartitionSpec("d")))

    given = (jax.tree.map(whole, task.first), jax.tree.map(split, task.batch))
    return Sharded(task.fn, given, (0,))


def compile_ways(name: str, program: Sharded, count: int) -> Iterator[Row | Verdict]:
    """A row without kernels, one with them, and what they come to."""
    rows: list[Row] = []
    found: list[Sequence[Exchange]] = []
    waits: list[Waits] = []
    times: list[Mapping[str, float]] = []
    for way in ("plain", "stitched"):
        start = time.perf_counter()
        with hooked(stitches=way == "stitched", labels=True) as seen, read_times() as reckoned:
            compiled = compile_ahead(
                program.fn,
                *program.arguments,
                donate_argnums=program.donated,
                out_shardings=program.results,
            )
        seconds = time.perf_counter() - start
        times.append(reckoned)
        found.append(read_exchanges(compiled, preset(GPU)))
        waits.append(read_waits(compiled, max(seen.modules, key=len), preset(GPU)))
        memory = compiled.memory_analysis()
        results = memory.output_size_in_bytes - memory.alias_size_in_bytes
        rows.append(
            Row(
                count,
                name,
                way,
                show_exchanges([(e.kind, e.operands) for e in found[-1]]),
                memory.argument_size_in_bytes + results + memory.temp_size_in_bytes,
                memory.alias_size_in_bytes,
                sum_hidden(found[-1]),
                sum(s.kernels for s in seen.stitchings),
                seconds,
            )
        )
        yield rows[-1]
    yield Verdict(
        count,
        name,
        compare_exchanges(*found),
        rows[1].planned / rows[0].planned,
        (rows[0].hidden_us, rows[1].hidden_us),
        (sum_covered(found[0]), sum_covered(found[1])),
        compare_waits(*waits),
        cover(waits[0], waits[1], (times[0], times[1])),
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
    parser.add_argument("--written", action="store_true", help="those of sharded_programs instead")
    parser.add_argument("--kept", action="store_true", help="no argument is donated")
    parser.add_argument("--devices", type=int, nargs="+", default=[8], help="how many; default 8")
    parser.add_argument("--json", type=Path, help="write the rows there")
    options = parser.parse_args(arguments)
    if missing := why_no_hook():
        raise SystemExit(missing)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    ask_for_times()
    rows: list[Row | Verdict] = []
    print(HEAD)
    for count in options.devices:
        listed = list_written(count) if options.written else list_programs(options.size, count)
        for name, make in listed.items():
            if options.names and not any(wanted in name for wanted in options.names):
                continue
            program = replace(make(), donated=()) if options.kept else make()
            for row in compile_ways(name, program, count):
                rows.append(row)
                print(row, flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
