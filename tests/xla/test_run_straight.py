"""Calls that run right in front of what reads them, beside collectives."""

from __future__ import annotations

from typing import Any

import pytest

from astitch.device.gpu import preset
from astitch.graph.ops.other import HINT
from astitch.hlo.schema import decode
from astitch.xla.hook import read_module
from astitch.xla.instructions import is_kernel
from benchmarks.sharded_programs import PROGRAMS, Sharded, map_shards, shape, split_devices
from tests.ahead_of_time import GPU, Seen, compile_ahead, devices, hooked, needs_hook
from tests.waits import Comparison, compare_waits, read_waits
from tests.xla.test_several_devices import LEAST_BESIDE

pytestmark = needs_hook


def make_chain(turns: int) -> Sharded:
    """Sums behind each other, and a kernel on the first that no sum waits for.  turns: of a scan; 0 without one."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec

    mesh = split_devices(devices(2), "d")

    def send(x: Any) -> tuple[Any, Any]:
        first = jax.lax.psum(jax.nn.softmax(x), "d")
        second = jax.lax.psum(jax.nn.softmax(3 * first), "d")
        return jax.nn.softmax(5 * second), jnp.tanh(first).sum(1)

    def run(x: Any) -> Any:
        return jax.lax.scan(lambda h, _: send(h), x, None, turns) if turns else send(x)

    same = PartitionSpec()
    return Sharded(map_shards(mesh, run, same, same), (shape(mesh, same, 1024, 1024),))


def compile_labelled(program: Sharded, *, stitches: bool) -> tuple[Any, Seen]:
    with hooked(stitches=stitches, labels=True) as seen:
        compiled = compile_ahead(
            program.fn,
            *program.arguments,
            donate_argnums=program.donated,
            out_shardings=program.results,
        )
    return compiled, seen


@pytest.mark.parametrize("turns", [0, 8])
def test_a_kernel_runs_straight_unless_it_can_run_beside_a_collective(turns: int) -> None:
    _, seen = compile_labelled(make_chain(turns), stitches=True)
    (stitching,) = (s for s in seen.stitchings if s.module)
    module = read_module(stitching.module)
    kernels = [i for c in module.computations for i in c.instructions if is_kernel(i)]
    straight = [any(e.key == HINT for e in i.frontend_attributes.map) for i in kernels]
    # Neither the first nor the last kernel; nor the one that can run beside the second sum.
    assert sorted(straight) == [False, False, False, True], [decode(i.name) for i in kernels]


def compare_beside(program: Sharded) -> Comparison:
    waits = []
    for stitches in (False, True):
        compiled, seen = compile_labelled(program, stitches=stitches)
        waits.append(read_waits(compiled, max(seen.modules, key=len), preset(GPU)))
    return compare_waits(*waits)


@pytest.mark.parametrize("name", ["experts/exchanged", "tensor/by_hand"])
def test_as_much_runs_beside_collectives_as_without_kernels(name: str) -> None:
    """Products run where something is sent; behind a kernel with several results they would not."""
    waits = compare_beside(PROGRAMS[name](devices(8)))
    assert waits.beside[1] >= LEAST_BESIDE * waits.beside[0], waits
    assert waits.covered[1] >= LEAST_BESIDE * waits.covered[0], waits
