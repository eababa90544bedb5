"""Training steps over several devices, each written as its users write it: GSPMD, shard_map, Flax NNX, Equinox.

`python -m benchmarks.several_devices --written` compiles each for GPUs that are not here, with kernels and without.
Planned memory is some tens to some hundreds of MB a device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Tree = Any
"""A tree of arrays, shardings or shapes."""

P = PartitionSpec


@dataclass(frozen=True, slots=True)
class Sharded:
    """arguments: trees of jax.ShapeDtypeStruct with shardings.  donated: numbers of arguments.  results: shardings,
    or None where XLA chooses."""

    fn: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: tuple[int, ...] = ()
    results: Any = None


Devices = Sequence[Any]


def split_devices(devices: Devices, *names: str) -> Mesh:
    """A mesh of one axis, or of two, of which the second has two devices where there are as many."""
    if len(names) == 1:
        return Mesh(np.array(devices), names)
    inner = 2 if len(devices) % 2 == 0 else 1
    return Mesh(np.array(devices).reshape(-1, inner), names)


def shape(mesh: Mesh, spec: PartitionSpec, *dimensions: int, dtype: Any = np.float32) -> Any:
    make: Any = jax.ShapeDtypeStruct
    return make(dimensions, dtype, sharding=NamedSharding(mesh, spec))


def shape_like(mesh: Mesh, specs: Tree, shapes: Tree) -> Tree:
    """specs: a PartitionSpec for each of the shapes."""
    return jax.tree.map(lambda a, spec: shape(mesh, spec, *a.shape, dtype=a.dtype), shapes, specs)


def norm(x: Any, gain: Any) -> Any:
    x32 = x.astype(jnp.float32)
    centred = x32 - x32.mean(-1, keepdims=True)
    return (
        centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * gain
    ).astype(x.dtype)


def adamw(state: Tree, gradients: Tree) -> Tree:
    """state: weights, both moments, the number of steps."""
    weights, first, second, number = state
    number = number + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)

    def update(w: Any, m: Any, v: Any) -> Any:
        m, v = m / (1 - 0.9**number), v / (1 - 0.999**number)
        return w - 1e-3 * (m / (jnp.sqrt(v) + 1e-8) + 0.01 * w)

    return jax.tree.map(update, weights, first, second), first, second, number


def with_moments(mesh: Mesh, weights: Tree) -> Tree:
    return weights, weights, weights, shape(mesh, P())


def descend(weights: Tree, gradients: Tree) -> Tree:
    return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradients)


def keep_shardings(state: Tree) -> Tree:
    return jax.tree.map(lambda a: a.sharding, state)


# ---- GSPMD: shardings of arguments, and with_sharding_constraint ----------------------------------------------------


def make_mesh_adamw(devices: Devices) -> Sharded:
    """Blocks of norm, product, GELU, product and residual; the batch over one axis, columns over the other; AdamW."""
    mesh = split_devices(devices, "data", "model")
    width, inner, layers, rows = 1024, 4096, 4, 512 * mesh.shape["data"]

    def loss(weights: Tree, x: Any, y: Any) -> Any:
        for w in weights:
            x = x + jax.nn.gelu(norm(x, w["gain"]) @ w["up"] + w["bias"]) @ w["down"]
        return jnp.square(x - y).mean()

    def step(state: Tree, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(state[0], x, y)
        return adamw(state, gradients), value

    layer = {
        "gain": shape(mesh, P(), width),
        "up": shape(mesh, P(None, "model"), width, inner),
        "bias": shape(mesh, P("model"), inner),
        "down": shape(mesh, P("model", None), inner, width),
    }
    state = with_moments(mesh, [layer] * layers)
    batch = shape(mesh, P("data"), rows, width)
    results = keep_shardings(state), NamedSharding(mesh, P())
    return Sharded(step, (state, batch, batch), (0,), results)


def make_constrained_transformer(devices: Devices) -> Sharded:
    """A Transformer in bf16 with heads over one axis; between blocks constraints split values over the sequence."""
    mesh = split_devices(devices, "data", "model")
    width, heads, layers, length, batch = 1024, 16, 2, 512, 4 * mesh.shape["data"]

    def place(x: Any, *spec: Any) -> Any:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    def attend(w: Tree, x: Any) -> Any:
        parts = (*x.shape[:2], heads, width // heads)
        q, k, v = (place((x @ w[n]).reshape(parts), "data", None, "model", None) for n in "qkv")
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * (width // heads) ** -0.5
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(x.dtype), v)
        return mixed.reshape(x.shape) @ w["o"]

    def loss(weights: Tree, x: Any) -> Any:
        x = given = x.astype(jnp.bfloat16)
        for raw in weights:
            w = jax.tree.map(lambda a: a.astype(jnp.bfloat16), raw)
            x = place(x + attend(w, norm(x, raw["gain"])), "data", "model", None)
            y = jax.nn.silu(norm(x, raw["gain2"]) @ w["up"])
            x = place(x + place(y, "data", None, "model") @ w["down"], "data", "model", None)
        return jnp.square((x - given).astype(jnp.float32)).mean()

    def step(state: Tree, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(state[0], x)
        return adamw(state, gradients), value

    columns, rows = P(None, "model"), P("model", None)
    layer = {n: shape(mesh, columns, width, width) for n in "qkv"}
    layer |= {"o": shape(mesh, rows, width, width), "up": shape(mesh, columns, width, 4 * width)}
    layer |= {"down": shape(mesh, rows, 4 * width, width)}
    layer |= {n: shape(mesh, P(), width) for n in ("gain", "gain2")}
    state = with_moments(mesh, [layer] * layers)
    results = keep_shardings(state), NamedSharding(mesh, P())
    x = shape(mesh, P("data"), batch, length, width)
    return Sharded(step, (state, x), (0,), results)


def make_mixed_fsdp(devices: Devices) -> Sharded:
    """Weights and moments split over all devices, products in bf16, gradients clipped by their norm."""
    mesh = split_devices(devices, "d")
    width, layers, rows = 1024, 6, 1024 * len(devices)

    def loss(weights: Tree, x: Any) -> Any:
        x = x.astype(jnp.bfloat16)
        for w in weights:
            y = norm(x, w["gain"])
            gate, value = (y @ w[n].astype(jnp.bfloat16) for n in ("gate", "value"))
            x = x + (jax.nn.silu(gate) * value) @ w["down"].astype(jnp.bfloat16)
        return jnp.square(x.astype(jnp.float32)).mean()

    def step(state: Tree, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(state[0], x)
        size = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(gradients)))
        scale = jnp.minimum(1, 1 / size)
        return adamw(state, jax.tree.map(lambda g: g * scale, gradients)), value

    layer = {n: shape(mesh, P("d"), width, 2 * width) for n in ("gate", "value")}
    layer |= {"down": shape(mesh, P("d"), 2 * width, width), "gain": shape(mesh, P(), width)}
    state = with_moments(mesh, [layer] * layers)
    results = keep_shardings(state), NamedSharding(mesh, P())
    return Sharded(step, (state, shape(mesh, P("d"), rows, width)), (0,), results)


def make_experts_top2(devices: Devices) -> Sharded:
    """Experts split over the devices; each word goes to two of them by einsum, as far as there is room (GShard)."""
    mesh = split_devices(devices, "d")
    count = len(devices)
    width, inner, words, experts = 512, 2048, 1024, 2 * count
    room = 2 * words // experts

    def place(x: Any, *spec: Any) -> Any:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    def route(logits: Any) -> tuple[Any, Any]:
        """logits: [groups, words, experts] -> what is sent and with which weight, [groups, words, experts, room]."""
        chances = jax.nn.softmax(logits)
        values, chosen = jax.lax.top_k(chances, 2)
        sent = jax.nn.one_hot(chosen, experts)  # [groups, words, 2, experts]
        place_in = jnp.cumsum(sent.reshape(sent.shape[0], -1, experts), 1).reshape(sent.shape) - 1
        slot = jax.nn.one_hot(place_in.astype(jnp.int32), room) * sent[..., None]
        return slot.sum(2), (slot * values[..., None, None]).sum(2)

    def loss(w: Tree, x: Any) -> Any:
        y = norm(x, w["gain"])
        dispatch, combine = route(jnp.einsum("gwd,de->gwe", y, w["router"]))
        given = place(jnp.einsum("gwer,gwd->egrd", jax.lax.stop_gradient(dispatch), y), "d")
        made = jax.nn.gelu(jnp.einsum("egrd,edi->egri", given, w["up"]))
        made = place(jnp.einsum("egri,eid->egrd", made, w["down"]), "d")
        x = x + place(jnp.einsum("gwer,egrd->gwd", combine, made), "d")
        return jnp.square(x).mean()

    def step(state: Tree, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(state[0], x)
        return adamw(state, gradients), value

    weights = {
        "gain": shape(mesh, P(), width),
        "router": shape(mesh, P(), width, experts),
        "up": shape(mesh, P("d"), experts, width, inner),
        "down": shape(mesh, P("d"), experts, inner, width),
    }
    state = with_moments(mesh, weights)
    results = keep_shardings(state), NamedSharding(mesh, P())
    return Sharded(step, (state, shape(mesh, P("d"), count, words, width)), (0,), results)


def make_lora(devices: Devices) -> Sharded:
    """Frozen bf16 weights split over the devices, small matrices beside them trained by Adam; layers in a scan."""
    mesh = split_devices(devices, "d")
    width, inner, layers, rank, rows = 1024, 4096, 6, 16, 512 * len(devices)

    def loss(small: Tree, frozen: Tree, x: Any) -> Any:
        def layer(x: Any, w: Tree) -> tuple[Any, None]:
            one, other = w
            y = norm(x, 1.0)
            up = y @ other["up"] + (y @ one["a"].astype(x.dtype)) @ one["b"].astype(x.dtype)
            return x + jax.nn.gelu(up) @ other["down"], None

        x, _ = jax.lax.scan(layer, x, (small, frozen))
        return jnp.square(x.astype(jnp.float32)).mean()

    def step(state: Tree, frozen: Tree, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(state[0], frozen, x)
        return adamw(state, gradients), value

    half = jnp.bfloat16
    frozen = {
        "up": shape(mesh, P(None, "d"), layers, width, inner, dtype=half),
        "down": shape(mesh, P(None, "d"), layers, inner, width, dtype=half),
    }
    small = {
        "a": shape(mesh, P(), layers, width, rank),
        "b": shape(mesh, P(), layers, rank, inner),
    }
    x = shape(mesh, P("d"), rows, width, dtype=half)
    return Sharded(step, (with_moments(mesh, small), frozen, x), (0,))


def make_recomputed_layers(devices: Devices) -> Sharded:
    """A Transformer in bf16 on a mesh of two axes: a scan over layers that are computed again in the gradient; Lion."""
    mesh = split_devices(devices, "data", "model")
    width, heads, layers, length, batch = 1024, 8, 4, 512, 2 * mesh.shape["data"]
    half = jnp.bfloat16

    def place(x: Any, *spec: Any) -> Any:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    def layer(x: Any, w: Tree) -> tuple[Any, None]:
        qkv = jnp.einsum("btd,dchk->cbthk", norm(x, w["gain"]), w["qkv"].astype(half))
        q, k, v = place(qkv, None, "data", None, "model", None)
        scores = jnp.einsum("bthk,bshk->bhts", q, k).astype(jnp.float32) * (width // heads) ** -0.5
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e30)
        mixed = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores).astype(half), v)
        made = jnp.einsum("bthk,hkd->btd", mixed, w["o"].astype(half))
        x = x + place(made, "data", None, None)
        y = jax.nn.gelu(norm(x, w["gain2"]) @ w["up"].astype(half))
        y = place(y, "data", None, "model") @ w["down"].astype(half)
        return x + place(y, "data", None, None), None

    def loss(weights: Tree, x: Any, y: Any) -> Any:
        made, _ = jax.lax.scan(jax.checkpoint(layer), x, weights)
        return jnp.square(made.astype(jnp.float32) - y.astype(jnp.float32)).mean()

    def step(weights: Tree, moments: Tree, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x, y)

        def update(w: Any, m: Any, g: Any) -> Any:
            return w - 1e-4 * (jnp.sign(0.9 * m + 0.1 * g) + 0.1 * w)

        weights = jax.tree.map(update, weights, moments, gradients)
        return weights, jax.tree.map(lambda m, g: 0.99 * m + 0.01 * g, moments, gradients), value

    part = width // heads
    weights = {n: shape(mesh, P(), layers, width) for n in ("gain", "gain2")}
    weights |= {
        "qkv": shape(mesh, P(None, None, None, "model"), layers, width, 3, heads, part),
        "o": shape(mesh, P(None, "model"), layers, heads, part, width),
        "up": shape(mesh, P(None, None, "model"), layers, width, 4 * width),
        "down": shape(mesh, P(None, "model"), layers, 4 * width, width),
    }
    results = *keep_shardings((weights, weights)), NamedSharding(mesh, P())
    x = shape(mesh, P("data"), batch, length, width, dtype=half)
    return Sharded(step, (weights, weights, x, x), (0, 1), results)


# ---- shard_map: collectives by hand ---------------------------------------------------------------------------------


def map_shards(mesh: Mesh, fn: Callable[..., Any], given: Any, made: Any) -> Any:
    return jax.shard_map(fn, mesh=mesh, in_specs=given, out_specs=made, check_vma=False)


def make_experts_exchanged(devices: Devices) -> Sharded:
    """An expert a device; words go to the best one and back by all_to_all, as many as there is room for."""
    mesh = split_devices(devices, "d")
    count = len(devices)
    width, inner, words = 1024, 4096, 2048
    room = 2 * words // count

    def layer(w: Tree, x: Any) -> Any:
        y = norm(x, w["gain"])
        chances = jax.nn.softmax(y @ w["router"])
        best = chances.argmax(-1)
        sent = jax.nn.one_hot(best, count, dtype=jnp.int32)
        slot = ((jnp.cumsum(sent, 0) - 1) * sent).sum(-1)
        box = jnp.zeros((count, room, width)).at[best, slot].set(y, mode="drop")
        got = jax.lax.all_to_all(box, "d", 0, 0, tiled=True).reshape(-1, width)
        made = jax.nn.gelu(got @ w["up"][0]) @ w["down"][0]
        back = jax.lax.all_to_all(made.reshape(box.shape), "d", 0, 0, tiled=True)
        taken = back.at[best, slot].get(mode="fill", fill_value=0)
        return x + taken * jnp.take_along_axis(chances, best[:, None], 1)

    def step(weights: Tree, x: Any) -> Any:
        def loss(weights: Tree) -> Any:
            made = x
            for w in weights:
                made = layer(w, made)
            return jnp.square(made).mean()

        gradients = jax.grad(loss)(weights)
        shared = ("gain", "router")
        gradients = [
            {n: jax.lax.pmean(g, "d") if n in shared else g for n, g in of.items()}
            for of in gradients
        ]
        return descend(weights, gradients)

    specs = [{"gain": P(), "router": P(), "up": P("d"), "down": P("d")}] * 2
    weights = {
        "gain": shape(mesh, P(), width),
        "router": shape(mesh, P(), width, count),
        "up": shape(mesh, P("d"), count, width, inner),
        "down": shape(mesh, P("d"), count, inner, width),
    }
    x = shape(mesh, P("d"), words * count, width)
    return Sharded(map_shards(mesh, step, (specs, P("d")), specs), ([weights] * 2, x), (0,))


def make_pipeline_checkpoint(devices: Devices) -> Sharded:
    """Two layers a device, computed again in the gradient; parts of the batch go from one device to the next."""
    mesh = split_devices(devices, "d")
    count = len(devices)
    width, inner, rows, parts = 1024, 4096, 512, count
    ring = [(i, (i + 1) % count) for i in range(count)]

    @jax.checkpoint  # type: ignore[untyped-decorator]
    def stage(weights: Tree, x: Any) -> Any:
        for number in range(2):
            w = jax.tree.map(lambda a, n=number: a[n], weights)
            x = x + jax.nn.gelu(norm(x, w["gain"]) @ w["up"]) @ w["down"]
        return x

    def step(weights: Tree, x: Any, y: Any) -> Any:
        def loss(weights: Tree) -> Any:
            mine = jax.tree.map(lambda a: a[0], weights)
            place = jax.lax.axis_index("d")

            def turn(state: Any, number: Any) -> Any:
                part = jax.lax.dynamic_index_in_dim(x, jnp.minimum(number, parts - 1), 0, False)
                made = stage(mine, jnp.where(place == 0, part, state))
                return jax.lax.ppermute(made, "d", ring), made

            _, made = jax.lax.scan(turn, jnp.zeros((rows, width)), jnp.arange(parts + count - 1))
            error = jnp.square(made[count - 1 :] - y).mean()
            return jax.lax.psum(jnp.where(place == count - 1, error, 0.0), "d")

        value, gradients = jax.value_and_grad(loss)(weights)
        return descend(weights, gradients), value

    weights = {
        "gain": shape(mesh, P("d"), count, 2, width),
        "up": shape(mesh, P("d"), count, 2, width, inner),
        "down": shape(mesh, P("d"), count, 2, inner, width),
    }
    batch = shape(mesh, P(), parts, rows, width)
    fn = map_shards(mesh, step, (P("d"), P(), P()), (P("d"), P()))
    return Sharded(fn, (weights, batch, batch), (0,))


def make_accumulated(devices: Devices) -> Sharded:
    """Gradients of parts of the batch are summed in a scan, and their mean over the devices behind it; momentum."""
    mesh = split_devices(devices, "d")
    width, inner, layers, rows, parts = 1024, 2048, 3, 1024, 4

    def loss(weights: Tree, x: Any) -> Any:
        for w in weights:
            x = x + jnp.tanh(norm(x, w["gain"]) @ w["up"] + w["bias"]) @ w["down"]
        return jnp.square(x).mean()

    def step(weights: Tree, speed: Tree, x: Any) -> Any:
        def turn(total: Tree, part: Any) -> Any:
            value, gradients = jax.value_and_grad(loss)(weights, part)
            return jax.tree.map(jnp.add, total, gradients), value

        zeros = jax.tree.map(jnp.zeros_like, weights)
        total, values = jax.lax.scan(turn, zeros, x.reshape(parts, rows, width))
        mean = jax.lax.pmean(jax.tree.map(lambda g: g / parts, total), "d")
        speed = jax.tree.map(lambda v, g: 0.9 * v + g, speed, mean)
        return descend(weights, speed), speed, jax.lax.pmean(values.mean(), "d")

    layer = {
        "gain": shape(mesh, P(), width),
        "bias": shape(mesh, P(), inner),
        "up": shape(mesh, P(), width, inner),
        "down": shape(mesh, P(), inner, width),
    }
    weights = [layer] * layers
    x = shape(mesh, P("d"), parts * rows * len(devices), width)
    fn = map_shards(mesh, step, (P(), P(), P("d")), P())
    return Sharded(fn, (weights, weights, x), (0, 1))


def make_gathered_layers(devices: Devices) -> Sharded:
    """FSDP by hand: a scan over layers gathers each one's weights; what is inside is computed again in the gradient."""
    mesh = split_devices(devices, "d")
    width, inner, layers, rows = 1024, 4096, 6, 1024

    @jax.checkpoint  # type: ignore[untyped-decorator]
    def layer(x: Any, w: Tree) -> tuple[Any, None]:
        up, down = (jax.lax.all_gather(w[n], "d", tiled=True) for n in ("up", "down"))
        return x + jax.nn.gelu(norm(x, w["gain"]) @ up) @ down, None

    def step(weights: Tree, x: Any, y: Any) -> Any:
        def loss(weights: Tree) -> Any:
            made, _ = jax.lax.scan(layer, x, weights)
            return jnp.square(made - y).mean()

        value, gradients = jax.value_and_grad(loss)(weights)
        gradients["gain"] = jax.lax.pmean(gradients["gain"], "d")
        return descend(weights, gradients), jax.lax.pmean(value, "d")

    specs = {"gain": P(), "up": P(None, "d"), "down": P(None, "d")}
    shapes = {"gain": (layers, width), "up": (layers, width, inner), "down": (layers, inner, width)}
    weights = {n: shape(mesh, specs[n], *dimensions) for n, dimensions in shapes.items()}
    batch = shape(mesh, P("d"), rows * len(devices), width)
    fn = map_shards(mesh, step, (specs, P("d"), P("d")), (specs, P()))
    return Sharded(fn, (weights, batch, batch), (0,))


def make_tensor_by_hand(devices: Devices) -> Sharded:
    """A network with columns and rows of its weights split by hand, psum behind each pair of products; Adam; bf16."""
    mesh = split_devices(devices, "d")
    width, inner, layers, rows = 2048, 8192, 4, 1024

    @jax.custom_vjp
    def copy_to_all(x: Any) -> Any:
        return x

    copy_to_all.defvjp(lambda x: (x, None), lambda _, g: (jax.lax.psum(g, "d"),))

    @jax.custom_vjp
    def sum_from_all(x: Any) -> Any:
        return jax.lax.psum(x, "d")

    sum_from_all.defvjp(lambda x: (jax.lax.psum(x, "d"), None), lambda _, g: (g,))

    def loss(weights: Tree, x: Any) -> Any:
        half = jnp.bfloat16
        for w in weights:
            y = copy_to_all(norm(x, w["gain"]).astype(half))
            y = jax.nn.gelu(y @ w["up"].astype(half) + w["bias"].astype(half))
            x = x + sum_from_all(y @ w["down"].astype(half)).astype(x.dtype)
        return jnp.square(x).mean()

    def step(state: Tree, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(state[0], x)
        return adamw(state, gradients), value

    specs = [{"gain": P(), "up": P(None, "d"), "bias": P("d"), "down": P("d")}] * layers
    layer = {
        "gain": shape(mesh, P(), width),
        "up": shape(mesh, P(None, "d"), width, inner),
        "bias": shape(mesh, P("d"), inner),
        "down": shape(mesh, P("d"), inner, width),
    }
    state = with_moments(mesh, [layer] * layers)
    states = (specs, specs, specs, P())
    fn = map_shards(mesh, step, (states, P()), (states, P()))
    return Sharded(fn, (state, shape(mesh, P(), rows, width)), (0,))


def make_zero1(devices: Devices) -> Sharded:
    """Weights are whole on each device, the moments split: gradients are scattered, and new weights gathered."""
    mesh = split_devices(devices, "d")
    count = len(devices)
    width, inner, layers, rows = 1024, 4096, 3, 1024

    def loss(weights: Tree, x: Any, y: Any) -> Any:
        for w in weights:
            x = x + jax.nn.relu(norm(x, w["gain"]) @ w["up"]) @ w["down"]
        return jnp.square(x - y).mean()

    def step(weights: Tree, first: Tree, second: Tree, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x, y)
        place = jax.lax.axis_index("d")

        def update(w: Any, m: Any, v: Any, g: Any) -> Any:
            g = jax.lax.psum_scatter(g, "d", tiled=True) / count
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            mine = jax.lax.dynamic_slice_in_dim(w, place * m.shape[0], m.shape[0])
            mine = mine - 1e-3 * m / (jnp.sqrt(v) + 1e-8)
            return jax.lax.all_gather(mine, "d", tiled=True), m, v

        made = jax.tree.map(update, weights, first, second, gradients)
        weights, first, second = jax.tree.transpose(
            jax.tree.structure(weights), jax.tree.structure((0, 0, 0)), made
        )
        return weights, first, second, jax.lax.pmean(value, "d")

    dimensions = {"gain": (width,), "up": (width, inner), "down": (inner, width)}
    whole = [{n: shape(mesh, P(), *d) for n, d in dimensions.items()}] * layers
    split = [{n: shape(mesh, P("d"), *d) for n, d in dimensions.items()}] * layers
    batch = shape(mesh, P("d"), rows * count, width)
    fn = map_shards(mesh, step, (P(), P("d"), P("d"), P("d"), P("d")), (P(), P("d"), P("d"), P()))
    return Sharded(fn, (whole, split, split, batch, batch), (0, 1, 2))


def make_sequence_attention(devices: Devices) -> Sharded:
    """Words of a sequence split over the devices; attention gathers the keys and values of all of them."""
    mesh = split_devices(devices, "d")
    count = len(devices)
    width, heads, layers, mine, batch = 512, 8, 2, 256, 2

    def attend(w: Tree, x: Any) -> Any:
        parts = (batch, -1, heads, width // heads)
        q, k, v = ((x @ w[n]).reshape(parts) for n in "qkv")
        k, v = (jax.lax.all_gather(a, "d", axis=1, tiled=True) for a in (k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (width // heads) ** -0.5
        place = jax.lax.axis_index("d") * mine + jnp.arange(mine)
        scores = jnp.where(place[:, None] >= jnp.arange(mine * count), scores, -1e9)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape) @ w["o"]

    def step(weights: Tree, x: Any) -> Any:
        def loss(weights: Tree) -> Any:
            made = x
            for w in weights:
                made = made + attend(w, norm(made, w["gain"]))
                made = made + jax.nn.gelu(norm(made, w["gain2"]) @ w["up"]) @ w["down"]
            return jnp.square(made).mean()

        value, gradients = jax.value_and_grad(loss)(weights)
        return descend(weights, jax.lax.pmean(gradients, "d")), jax.lax.pmean(value, "d")

    layer = {n: shape(mesh, P(), width, width) for n in "qkvo"}
    layer |= {n: shape(mesh, P(), width) for n in ("gain", "gain2")}
    layer |= {"up": shape(mesh, P(), width, 4 * width), "down": shape(mesh, P(), 4 * width, width)}
    x = shape(mesh, P(None, "d"), batch, mine * count, width)
    fn = map_shards(mesh, step, (P(), P(None, "d")), (P(), P()))
    return Sharded(fn, ([layer] * layers, x), (0,))


def make_scattered(devices: Devices) -> Sharded:
    """Weights split over all devices, gathered in bf16 by hand, their gradients scattered in bf16; momentum."""
    mesh = split_devices(devices, "d")
    count = len(devices)
    width, inner, layers, rows = 1024, 4096, 3, 1024
    half = jnp.bfloat16

    def loss(weights: Tree, x: Any, y: Any) -> Any:
        made = x
        for w in weights:
            made = made + jax.nn.silu(norm(made, 1.0) @ w["up"]) @ w["down"]
        return jnp.square((made - y).astype(jnp.float32)).mean()

    def step(weights: Tree, speed: Tree, x: Any, y: Any) -> Any:
        whole = jax.tree.map(lambda w: jax.lax.all_gather(w.astype(half), "d", tiled=True), weights)
        value, gradients = jax.value_and_grad(loss)(whole, x, y)
        mine = jax.tree.map(lambda g: jax.lax.psum_scatter(g, "d", tiled=True), gradients)
        speed = jax.tree.map(lambda v, g: 0.95 * v + g.astype(v.dtype) / count, speed, mine)
        return descend(weights, speed), speed, jax.lax.pmean(value, "d")

    layer = {"up": shape(mesh, P("d"), width, inner), "down": shape(mesh, P("d"), inner, width)}
    weights = [layer] * layers
    batch = shape(mesh, P("d"), rows * count, width, dtype=half)
    fn = map_shards(mesh, step, (P("d"),) * 4, (P("d"), P("d"), P()))
    return Sharded(fn, (weights, weights, batch, batch), (0, 1))


def make_line_pipeline(devices: Devices) -> Sharded:
    """A gated layer a device in bf16; parts of the batch go from one to the next, none from the last; momentum."""
    mesh = split_devices(devices, "d")
    count = len(devices)
    width, inner, rows, parts = 1024, 2048, 256, 2 * count
    half = jnp.bfloat16
    line = [(i, i + 1) for i in range(count - 1)]

    def layer(w: Tree, x: Any) -> Any:
        y = norm(x, w["gain"]) + w["bias"].astype(half)
        gate, value = jnp.split(y @ w["up"].astype(half), 2, -1)
        return x + (jax.nn.sigmoid(gate) * value) @ w["down"].astype(half)

    def step(weights: Tree, speed: Tree, x: Any, y: Any) -> Any:
        place = jax.lax.axis_index("d")

        def loss(weights: Tree) -> Any:
            mine = jax.tree.map(lambda a: a[0], weights)

            def turn(state: Any, number: Any) -> Any:
                given, error = state
                made = layer(mine, jnp.where(place == 0, x[jnp.clip(number, 0, parts - 1)], given))
                ready = number - (count - 1)
                apart = (made - y[jnp.clip(ready, 0, parts - 1)]).astype(jnp.float32)
                last = (place == count - 1) & (ready >= 0)
                error = error + jnp.where(last, jnp.square(apart).mean(), 0.0)
                return (jax.lax.ppermute(made, "d", line), error), None

            start = jnp.zeros((rows, width), half), jnp.float32(0)
            (_, error), _ = jax.lax.scan(turn, start, jnp.arange(parts + count - 1))
            return jax.lax.psum(error, "d") / parts

        value, gradients = jax.value_and_grad(loss)(weights)
        speed = jax.tree.map(lambda v, g: 0.9 * v + g, speed, gradients)
        return descend(weights, speed), speed, value

    weights = {n: shape(mesh, P("d"), count, width) for n in ("gain", "bias")}
    weights |= {
        "up": shape(mesh, P("d"), count, width, 2 * inner),
        "down": shape(mesh, P("d"), count, inner, width),
    }
    batch = shape(mesh, P(), parts, rows, width, dtype=half)
    fn = map_shards(mesh, step, (P("d"), P("d"), P(), P()), (P("d"), P("d"), P()))
    return Sharded(fn, (weights, weights, batch, batch), (0, 1))


# ---- libraries ------------------------------------------------------------------------------------------------------


def make_nnx_fsdp(devices: Devices) -> Sharded:
    """Flax NNX: a network with LayerNorm and dropout, its parameters and Optax's AdamW split over all devices."""
    import optax
    from flax import nnx

    mesh = split_devices(devices, "d")
    width, layers, rows = 1024, 3, 512 * len(devices)

    class Block(nnx.Module):  # type: ignore[misc]
        def __init__(self, rngs: Any) -> None:
            self.norm = nnx.LayerNorm(width, rngs=rngs)
            self.up = nnx.Linear(width, 4 * width, rngs=rngs)
            self.down = nnx.Linear(4 * width, width, rngs=rngs)
            self.dropout = nnx.Dropout(0.1, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return x + self.dropout(self.down(nnx.gelu(self.up(self.norm(x)))))

    class Network(nnx.Module):  # type: ignore[misc]
        def __init__(self, rngs: Any) -> None:
            self.blocks = nnx.List([Block(rngs) for _ in range(layers)])
            self.head = nnx.Linear(width, 1024, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    def make() -> Any:
        model = Network(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)

    definition, state = nnx.split(nnx.eval_shape(make))

    def loss(model: Any, x: Any, labels: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(model(x), labels).mean()

    def step(state: Tree, x: Any, labels: Any) -> Any:
        model, optimizer = nnx.merge(definition, state)
        value, gradients = nnx.value_and_grad(loss)(model, x, labels)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), value

    given = jax.tree.map(functools.partial(_split_first, mesh), state)
    batch = shape(mesh, P("d"), rows, width), shape(mesh, P("d"), rows, dtype=np.int32)
    results = keep_shardings(given), NamedSharding(mesh, P())
    return Sharded(step, (given, *batch), (0,), results)


def _split_first(mesh: Mesh, a: Any) -> Any:
    """Split over its first dimension where this is possible, as FSDP does."""
    if not isinstance(a.dtype, np.dtype) or not a.ndim or a.shape[0] % mesh.size:
        return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=NamedSharding(mesh, P()))
    return shape(mesh, P("d"), *a.shape, dtype=a.dtype)


def make_equinox_mesh(devices: Devices) -> Sharded:
    """Equinox: an MLP by vmap, batch over one axis and columns of its weights over the other; Optax's Adam."""
    import equinox as eqx
    import optax

    mesh = split_devices(devices, "data", "model")
    width, rows = 2048, 1024 * mesh.shape["data"]
    optimizer = optax.adam(1e-3)

    def make() -> Any:
        key = jax.random.key(0)
        return eqx.nn.MLP(width, width, width, 3, activation=jax.nn.silu, key=key)

    model = eqx.filter_eval_shape(make)
    weights, static = eqx.partition(model, lambda a: isinstance(a, jax.ShapeDtypeStruct))

    def loss(weights: Tree, x: Any, y: Any) -> Any:
        made = jax.vmap(eqx.combine(weights, static))(x)
        return jnp.square(made - y).mean()

    def step(weights: Tree, moments: Tree, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x, y)
        updates, moments = optimizer.update(gradients, moments, weights)
        return eqx.apply_updates(weights, updates), moments, value

    def place(a: Any) -> Any:
        spec = P("model") if a.ndim else P()
        return shape(mesh, spec, *a.shape, dtype=a.dtype)

    given = jax.tree.map(place, (weights, jax.eval_shape(optimizer.init, weights)))
    batch = shape(mesh, P("data"), rows, width)
    results = (*keep_shardings(given), NamedSharding(mesh, P()))
    return Sharded(step, (*given, batch, batch), (0, 1), results)


PROGRAMS: Mapping[str, Callable[[Devices], Sharded]] = {
    "mesh/adamw": make_mesh_adamw,
    "mesh/constraints": make_constrained_transformer,
    "mesh/equinox": make_equinox_mesh,
    "mesh/recomputed": make_recomputed_layers,
    "fsdp/mixed": make_mixed_fsdp,
    "fsdp/nnx": make_nnx_fsdp,
    "fsdp/gathered": make_gathered_layers,
    "fsdp/lora": make_lora,
    "fsdp/scattered": make_scattered,
    "experts/top2": make_experts_top2,
    "experts/exchanged": make_experts_exchanged,
    "pipeline/checkpoint": make_pipeline_checkpoint,
    "pipeline/line": make_line_pipeline,
    "data/accumulated": make_accumulated,
    "data/zero1": make_zero1,
    "tensor/by_hand": make_tensor_by_hand,
    "sequence/attention": make_sequence_attention,
}
