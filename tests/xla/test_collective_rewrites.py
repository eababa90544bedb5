"""What XLA makes of collectives behind the hook, it makes with kernels beside them too."""

from __future__ import annotations

from typing import Any

import pytest

from astitch.graph.collectives import find_joined
from astitch.hlo_import import import_from_compiler
from astitch.xla.hook import read_module
from tests.ahead_of_time import compile_ahead, devices, hooked, needs_hook
from tests.exchanges import count_collectives, count_exchanges

pytestmark = needs_hook

DEVICES, ROWS, WIDTH = 4, 64, 256


def soften(x: Any) -> Any:
    """Something that is worth a kernel."""
    import jax

    return jax.nn.softmax(x * 2, -1)


def add_sums(lax: Any, x: Any, y: Any) -> Any:
    return lax.psum(soften(x), "d") + lax.psum(soften(y), "d")


def add_converted_sums(lax: Any, x: Any, y: Any) -> Any:
    """Three, since two of the narrow type are as many bytes as one of the wide."""
    sums = (lax.psum(soften(z).astype("bfloat16"), "d") for z in (x, y, x * y))
    one, two, three = (found.astype("float32") for found in sums)
    return one + two + three


def add_gathered(lax: Any, x: Any, y: Any) -> Any:
    return lax.all_gather(soften(x), "d") + lax.all_gather(soften(y), "d")


def add_scattered(lax: Any, x: Any, y: Any) -> Any:
    one, other = (lax.psum_scatter(soften(z), "d", tiled=True) for z in (x, y))
    return one + other


def narrow_gathered(lax: Any, x: Any, y: Any) -> Any:
    return lax.all_gather(soften(x), "d", tiled=True).astype("bfloat16") * y[:1].astype("bfloat16")


def narrow_permuted(lax: Any, x: Any, y: Any) -> Any:
    moved = lax.ppermute(soften(x), "d", [(i, (i + 1) % DEVICES) for i in range(DEVICES)])
    return moved.astype("bfloat16") * y.astype("bfloat16")


def gather_widened(lax: Any, x: Any, y: Any) -> Any:
    wide = soften(x).astype("bfloat16").astype("float32")
    return lax.all_gather(wide, "d", tiled=True) * y[:1]


def quantize_gathered(lax: Any, x: Any, y: Any) -> Any:
    import jax.numpy as jnp

    gathered = lax.all_gather(soften(x), "d", tiled=True)
    return jnp.clip(gathered / 0.25, -448.0, 448.0).astype("float8_e4m3fn").astype("float32")


def gather_broadcast(lax: Any, x: Any, y: Any) -> Any:
    import jax.numpy as jnp

    row = jnp.broadcast_to(soften(x).sum(0), (ROWS, WIDTH))
    return lax.all_gather(row, "d") * soften(y)


def accumulate_in_a_loop(lax: Any, x: Any, y: Any) -> Any:
    """What `total` sums over the devices can be added up before it is exchanged; what `other` sums cannot."""
    import jax.numpy as jnp

    def turn(state: Any, z: Any) -> Any:
        total, other = state
        one, two = (lax.psum(soften(v @ y.T) @ y, "d") for v in (z, other))
        return (total + one, soften(two) + z), None

    state, _ = lax.scan(turn, (jnp.zeros_like(x), y), jnp.stack([x, y, x + 1, y + 1]))
    return state[0] * state[1]


@pytest.mark.parametrize(
    "exchange",
    [
        add_sums,
        add_converted_sums,
        add_gathered,
        add_scattered,
        narrow_gathered,
        narrow_permuted,
        gather_widened,
        quantize_gathered,
        gather_broadcast,
        accumulate_in_a_loop,
    ],
    ids=lambda fn: fn.__name__,
)
def test_xla_rewrites_a_collective_beside_kernels(exchange):
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(devices(DEVICES)), ("d",))
    parts = PartitionSpec("d")

    def compute(x: Any, y: Any) -> Any:
        return soften(exchange(jax.lax, x, y))

    fn = jax.shard_map(compute, mesh=mesh, in_specs=parts, out_specs=parts, check_vma=False)
    placed = NamedSharding(mesh, parts)
    x = jax.ShapeDtypeStruct((ROWS * DEVICES, WIDTH), np.float32, sharding=placed)
    with hooked(stitches=False) as seen:
        plain = compile_ahead(fn, x, x)
    module = read_module(max(seen.modules, key=len))
    with hooked() as seen:
        stitched = compile_ahead(fn, x, x)
    assert sum(s.kernels for s in seen.stitchings) >= 2
    wanted = count_exchanges(plain)
    assert count_exchanges(stitched) == wanted
    assert count_collectives(module) != wanted, "XLA rewrites nothing, so that this shows nothing"
    if exchange is not accumulate_in_a_loop:  # there it is in the body
        assert find_joined(import_from_compiler(module))
