"""What XLA makes of collectives behind the hook, it makes with kernels beside them too."""

from __future__ import annotations

from typing import Any

import pytest

from astitch.graph.collectives import find_combined, find_joined
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


def add_sliced(lax: Any, x: Any, y: Any) -> Any:
    """Each device reads its part; what the last one sends waits for another exchange."""
    part = ROWS // DEVICES
    start = lax.axis_index("d") * part

    def take_own(z: Any) -> Any:
        return lax.dynamic_slice_in_dim(lax.psum(z, "d"), start, part)

    z = soften(take_own(x @ y.T).sum() * x)
    return take_own(soften(x)) + take_own(soften(y)) + take_own(soften(z @ y.T) @ y)


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
        add_sliced,
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


RING = [(i, (i + 1) % DEVICES) for i in range(DEVICES)]


def send_types(lax: Any, x: Any, y: Any) -> Any:
    """Along one ring two types and two shapes together; along the other apart."""
    narrow, turned = (y * 2).astype("bfloat16"), (x - y).T
    sent = [lax.ppermute(z, "d", RING) for z in (x * 3, narrow, turned)]
    return [*sent, lax.ppermute(x + y, "d", [(j, i) for i, j in RING])]


def gather_types(lax: Any, x: Any, y: Any) -> Any:
    gathered = [lax.all_gather(z, "d") for z in (x * 3, (y * 2).astype("bfloat16"))]
    return [*gathered, lax.all_gather(x - y, "d", axis=1)]


def sum_types(lax: Any, x: Any, y: Any) -> Any:
    """Sums of each type, and maxima."""
    sums = [lax.psum(z, "d") for z in (x * 3, (y * 2).astype("bfloat16"), x - y)]
    return [*sums, lax.pmax(x * y, "d"), lax.pmax(x / y, "d")]


def sum_in_other_words(lax: Any, x: Any, y: Any) -> Any:
    """Of the same devices: all along the axis, and a list of them."""
    return [lax.psum(x * 3, "d"), lax.psum(y * 2, "d", axis_index_groups=[list(range(DEVICES))])]


def scatter_dimensions(lax: Any, x: Any, y: Any) -> Any:
    one = lax.psum_scatter(x * 3, "d", tiled=True)
    return [one, lax.psum_scatter(y * 2, "d", scatter_dimension=1, tiled=True)]


@pytest.mark.parametrize(
    ("exchange", "count"),
    [
        (send_types, 2),
        (gather_types, 1),
        (sum_types, 3),
        (sum_in_other_words, 1),
        (scatter_dimensions, 1),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_xla_combines_what_is_predicted(exchange, count):
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(devices(DEVICES)), ("d",))
    parts = PartitionSpec("d")

    def compute(x: Any, y: Any) -> Any:
        return exchange(jax.lax, x, y)

    fn = jax.shard_map(compute, mesh=mesh, in_specs=parts, out_specs=parts, check_vma=False)
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), np.float32, sharding=NamedSharding(mesh, parts))
    with hooked(stitches=False) as seen:
        compiled = compile_ahead(fn, x, x)
    assert count_exchanges(compiled).total() == count
    assert len(find_combined(import_from_compiler(read_module(seen.modules[-1])))) == count


def test_xla_names_the_axes_of_one_mesh_differently():
    """Gradients of a matrix and of a row, over the same devices: XLA sends them together."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(devices(DEVICES)), ("batch",))

    def array(shape: tuple[int, ...], *spec: str) -> Any:
        return jax.ShapeDtypeStruct(
            shape, np.float32, sharding=NamedSharding(mesh, PartitionSpec(*spec))
        )

    def loss(w: Any, b: Any, x: Any) -> Any:
        return jax.numpy.square(soften(jax.numpy.einsum("bti,hio->bhto", x, w) + b)).sum()

    given = array((2, WIDTH, WIDTH)), array((WIDTH,)), array((ROWS, 16, WIDTH), "batch")
    with hooked(stitches=False) as seen:
        plain = compile_ahead(jax.grad(loss, (0, 1)), *given)
    graph = import_from_compiler(read_module(max(seen.modules, key=len)))
    assert len(find_combined(graph)) == count_exchanges(plain).total() == 1
