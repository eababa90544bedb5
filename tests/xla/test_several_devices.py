"""Programs for several devices, compiled ahead of time with astitch's hook and without it."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest

from astitch.device.gpu import preset
from astitch.graph.collectives import communicates, find_combined
from astitch.graph.ir import CustomCallAttrs
from astitch.hlo_import import import_from_compiler
from astitch.xla.hook import read_module
from astitch.xla.write_module import TARGET
from tests.ahead_of_time import GPU, Seen, compile_ahead, devices, hooked, needs_hook
from tests.exchanges import count_exchanges
from tests.simulated_devices import run_on_devices, stitch_for_emulation
from tests.waits import Comparison, compare_waits, read_waits

pytestmark = needs_hook

WIDTH, ROWS, LAYERS = 256, 256, 2


def norm(x: Any, gain: Any, bias: Any) -> Any:
    import jax
    import jax.numpy as jnp

    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * gain + bias


def loss(parameters: Any, x: Any) -> Any:
    """Of a Transformer's layers: attention with one head and two products, each behind a LayerNorm."""
    import jax
    import jax.numpy as jnp

    for layer in parameters:
        y = norm(x, layer["gain"], layer["bias"])
        q, k, v = (y @ layer[name] for name in ("q", "k", "v"))
        scores = jnp.einsum("bqd,bkd->bqk", q, k) / WIDTH**0.5
        x = x + jax.nn.softmax(scores) @ v @ layer["o"]
        x = x + jax.nn.gelu(norm(x, layer["gain2"], layer["bias2"]) @ layer["up"]) @ layer["down"]
    return jnp.square(x).mean()


def step(parameters: Any, momenta: Any, x: Any) -> Any:
    import jax

    value, gradients = jax.value_and_grad(loss)(parameters, x)
    momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, gradients)
    return jax.tree.map(lambda p, m: p - 1e-3 * m, parameters, momenta), momenta, value


def arguments(count: int, sharding: str) -> tuple[Any, Any, Any]:
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(devices(count)), ("d",))

    def array(shape: tuple[int, ...], *spec: str | None) -> Any:
        partition = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, np.float32, sharding=partition)

    columns: tuple[str | None, ...] = {"tensor": (None, "d"), "fsdp": ("d",)}.get(sharding, ())
    rows: tuple[str | None, ...] = ("d",) if sharding in ("tensor", "fsdp") else ()
    layer = {name: array((WIDTH, WIDTH), *columns) for name in ("q", "k", "v", "up")}
    layer |= {name: array((WIDTH, WIDTH), *rows) for name in ("o", "down")}
    layer |= {name: array((WIDTH,)) for name in ("gain", "bias", "gain2", "bias2")}
    x = array((8, ROWS, WIDTH), *(() if sharding == "tensor" else ("d",)))
    parameters = [layer] * LAYERS
    return parameters, parameters, x


def compile_both(count: int, sharding: str) -> tuple[Any, Any, Seen, Comparison]:
    given = arguments(count, sharding)
    with hooked(stitches=False, labels=True) as seen:
        plain = compile_ahead(step, *given, donate_argnums=(0, 1))
    with hooked(labels=True) as seen:
        stitched = compile_ahead(step, *given, donate_argnums=(0, 1))
    module = max(seen.modules, key=len)
    waits = [read_waits(compiled, module, preset(GPU)) for compiled in (plain, stitched)]
    return plain, stitched, seen, compare_waits(*waits)


Waits = tuple[tuple[str, ...], tuple[int, ...], int, int, int, int]


def list_waits(data: bytes) -> Counter[Waits]:
    """Of a module: what each collective waits for, and what waits for it.  Those that XLA combines count as one.

    These are the types of its results, the parameters, products and collectives before it, and the products and
    collectives behind it.  Neither control dependencies count nor tokens: they are on what runs beside another
    collective (run_beside.py, order_meetings.py), and `Comparison.later` has them.
    """
    module = read_module(data)
    for computation in module.computations:
        for instruction in computation.instructions:
            del instruction.control_predecessor_ids[:]
    graph = import_from_compiler(module)
    counted = {n.name for n in graph if n.is_parameter or n.op == "dot" or communicates(n)}
    tokens = {n.name for n in graph if str(n.type) == "u32[1]"}
    before: dict[str, frozenset[str]] = {}
    for node in graph:
        own = {node.name} & counted
        before[node.name] = own.union(*(before[o] for o in node.operands if o not in tokens))
    behind: dict[str, frozenset[str]] = {}
    for node in reversed(list(graph)):
        own, users = {node.name} & counted, graph.users[node.name]
        behind[node.name] = own.union(*(behind[u] for u in users if node.name not in tokens))
    waits: Counter[Waits] = Counter()
    for group in find_combined(graph):
        found = frozenset[str]().union(*(before[name] for name in group)).difference(group)
        later = frozenset[str]().union(*(behind[name] for name in group)).difference(group)
        waits[
            tuple(sorted(str(graph[name].type) for name in group)),
            tuple(sorted(graph.parameters.index(n) for n in found if graph[n].is_parameter)),
            sum(graph[n].op == "dot" for n in found),
            sum(communicates(graph[n]) for n in found),
            sum(graph[n].op == "dot" for n in later),
            sum(communicates(graph[n]) for n in later),
        ] += 1
    return waits


CASES = [(1, "data"), *((n, how) for n in (2, 4) for how in ("data", "tensor", "fsdp"))]


MOST_MEMORY = {(1, "data"): 1.06, (2, "tensor"): 1.03}
"""Planned memory as a share of the plain program's, where it is above 1.02.

XLA leaves gaps between the arrays of programs that are this small (docs/decisions/0030-communication.md).
"""


MOST_LATER_US = 1.0
"""Ops for which a collective waits with kernels only, less than a launch takes: views that a kernel writes as well."""


LEAST_BESIDE = 0.99
"""Of the plain program's work beside collectives, in what its own kernels take."""


@pytest.mark.parametrize(("count", "sharding"), CASES)
def test_a_transformer_step_communicates_as_without_kernels(count, sharding):
    plain, stitched, seen, waits = compile_both(count, sharding)
    assert stitched.as_text().count(f'custom_call_target="{TARGET}"') > LAYERS
    assert count_exchanges(stitched) == count_exchanges(plain)
    before, after = plain.memory_analysis(), stitched.memory_analysis()
    assert after.alias_size_in_bytes >= before.alias_size_in_bytes
    assert sum_planned(after) <= MOST_MEMORY.get((count, sharding), 1.02) * sum_planned(before)
    (stitching,) = (s for s in seen.stitchings if s.module)
    assert list_waits(stitching.module) == list_waits(max(seen.modules, key=len))
    graph = import_from_compiler(read_module(stitching.module))
    calls = [n.attrs for n in graph if isinstance(n.attrs, CustomCallAttrs)]
    assert all((attrs.latency_ns > 0) == (count > 1) for attrs in calls if attrs.target == TARGET)
    assert waits.later <= MOST_LATER_US, waits
    # As much of the plain program's work runs beside collectives: kernels take less time for it.
    assert waits.beside[1] >= LEAST_BESIDE * waits.beside[0], waits


def sum_planned(memory: Any) -> int:
    """Bytes of arguments, results and temporaries, what is donated counted once."""
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return int(memory.argument_size_in_bytes + results + memory.temp_size_in_bytes)


@pytest.mark.parametrize("sharding", ["data", "tensor", "fsdp"])
def test_kernels_compute_on_each_device_what_the_whole_program_computes(sharding, monkeypatch):
    for name, size in (("WIDTH", 64), ("ROWS", 32), ("LAYERS", 1)):
        monkeypatch.setattr(sys.modules[__name__], name, size)
    compare_devices(lambda _: step, lambda _: arguments(8, sharding), monkeypatch)


def compare_devices(make_fn: Any, make_arguments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of each of eight devices in the emulation, beside the whole program on the host.

    make_fn, make_arguments: of the devices.
    """
    import jax
    import numpy as np

    given = make_arguments(devices(8))
    with hooked(stitches=False) as seen:
        compiled = compile_ahead(make_fn(devices(8)), *given)
    flat, tree = jax.tree.flatten(given)
    rng = np.random.default_rng(0)
    whole = [rng.standard_normal(a.shape).astype(np.float32) / 4 for a in flat]
    host = jax.local_devices(backend="cpu")[:1]
    with jax.default_device(host[0]):
        wanted = jax.tree.leaves(jax.jit(make_fn(host))(*jax.tree.unflatten(tree, whole)))
    graph = stitch_for_emulation(max(seen.modules, key=len), monkeypatch)
    places = [a.sharding.devices_indices_map(a.shape) for a in flat]
    order = list(devices(8))
    parts = [[a[place[d]] for a, place in zip(whole, places, strict=True)] for d in order]
    found = run_on_devices(graph, parts)
    shardings = jax.tree.leaves(compiled.output_shardings)
    for number, (result, sharding_) in enumerate(zip(wanted, shardings, strict=True)):
        place = sharding_.devices_indices_map(result.shape)
        for device, results in zip(order, found, strict=True):
            part = np.asarray(result)[place[device]]
            np.testing.assert_allclose(results[number], part, rtol=2e-4, atol=2e-5)


def train_on_two_axes(parameters: Any, x: Any) -> Any:
    """Rows of the batch over one axis of the mesh, columns of the products over the other."""
    import jax
    import jax.numpy as jnp

    def lose(p: Any) -> Any:
        y = x + jax.nn.silu(norm(x, p["gain"], p["bias"]) @ p["up"]) @ p["down"]
        return jnp.square(norm(y, p["gain"], p["bias"])).mean() + jnp.square(y).mean()

    value, gradients = jax.value_and_grad(lose)(parameters)
    return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients), value


def test_kernels_compute_on_a_mesh_of_two_axes(monkeypatch):
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    def make(places: Any) -> Any:
        mesh = Mesh(np.array(places).reshape(4, 2), ("rows", "columns"))

        def array(shape: tuple[int, ...], *spec: str | None) -> Any:
            sharding = NamedSharding(mesh, PartitionSpec(*spec))
            return jax.ShapeDtypeStruct(shape, np.float32, sharding=sharding)

        weights = {
            "up": array((64, 128), None, "columns"),
            "down": array((128, 64), "columns"),
            "gain": array((64,)),
            "bias": array((64,)),
        }
        return weights, array((64, 64), "rows")

    compare_devices(lambda _: train_on_two_axes, make, monkeypatch)


def test_kernels_compute_between_all_to_alls(monkeypatch):
    """Positions are split, then heads, then positions again."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    split = PartitionSpec(None, "d")

    def make_fn(places: Any) -> Any:
        def local(x: Any, gain: Any) -> Any:
            y = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True)) * gain
            turned = jax.lax.all_to_all(y, "d", 2, 1, tiled=True)
            mixed = jax.nn.softmax(turned, 1) + jax.nn.softmax(turned, -1)
            return x + jax.lax.all_to_all(mixed, "d", 1, 2, tiled=True)

        specs = (split, PartitionSpec())
        mesh = Mesh(np.array(places), ("d",))
        return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=split)

    def make(places: Any) -> Any:
        mesh = Mesh(np.array(places), ("d",))
        shapes = (((2, 64, 8, 16), split), ((16,), PartitionSpec()))
        return tuple(
            jax.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(mesh, spec))
            for shape, spec in shapes
        )

    compare_devices(make_fn, make, monkeypatch)


def test_a_loop_that_is_one_kernel_says_how_long_it_takes():
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(devices(2)), ("d",))

    def run(x: Any, w: Any) -> Any:
        def turn(h: Any, now: Any) -> tuple[Any, None]:
            return jnp.tanh(h @ w + now), None

        last, _ = jax.lax.scan(turn, jnp.zeros_like(x[0]), x)
        return jax.lax.psum(last, "d")

    split, same = PartitionSpec(None, "d"), PartitionSpec()
    fn = jax.shard_map(run, mesh=mesh, in_specs=(split, same), out_specs=same, check_vma=False)
    x, w = (
        jax.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(mesh, spec))
        for shape, spec in (((50, 16, 32), split), ((32, 32), same))
    )
    with hooked() as seen:
        compile_ahead(fn, x, w)
    (stitching,) = (s for s in seen.stitchings if s.module)
    (us,) = stitching.compilation.loop_us
    graph = import_from_compiler(read_module(stitching.module))
    (told,) = (n.attrs.latency_ns for n in graph if isinstance(n.attrs, CustomCallAttrs))
    assert told == round(us * 1e3) > 50 * 1e2
