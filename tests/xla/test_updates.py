"""Which updates XLA computes in the memory of a donated argument or of a loop's state, and what kernels then do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.sharding import SingleDeviceSharding

import astitch
from astitch.compile import compile_graph
from astitch.graph.ir import Graph
from astitch.hlo_import import import_hlo
from astitch.pipeline import Launcher, Target
from astitch.rewrite.simplify import simplify
from astitch.xla.slices import find_slices
from astitch.xla.updates import find_donated_updates, find_turned_states
from astitch.xla.write_module import export_program
from tests.ahead_of_time import compile_ahead, devices, hooked, needs_hook
from tests.emulated_xla import as_text, run_graph, with_text
from tests.hlo_runner import lower
from tests.small_gpu import few_sms

BATCH, WORDS, HEADS, SIZE = 3, 16, 2, 8
WIDTH = HEADS * SIZE
_RANDOM = np.random.default_rng(0)
Arrays = list[np.ndarray]


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (_RANDOM.standard_normal(shape) / 2).astype(dtype)


def attend(q: Any, keys: Any, values: Any, mask: Any) -> Any:
    """[batch, heads, size], caches [batch, words, heads, size]."""
    scores = jnp.einsum("bhd,blhd->bhl", q, keys).astype(jnp.float32)
    p = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1).astype(q.dtype)
    return jnp.einsum("bhl,blhd->bhd", p, values).reshape(len(q), -1)


def split(x: Any, w: Any) -> Any:
    q, k, v = jnp.split(jnp.tanh(x @ w), 3, -1)
    return (a.reshape(len(a), HEADS, -1) for a in (q, k, v))


def at_one_place(keys: Any, values: Any, x: Any, w: Any, place: Any) -> Any:
    q, k, v = split(x, w)
    keys = lax.dynamic_update_slice(keys, k[:, None], (0, place, 0, 0))
    values = lax.dynamic_update_slice(values, v[:, None], (0, place, 0, 0))
    mask = (jnp.arange(keys.shape[1]) <= place)[None, None]
    return keys, values, x + attend(q, keys, values, mask)


def heads_first(keys: Any, values: Any, x: Any, w: Any, place: Any) -> Any:
    """Caches that lie [batch, heads, words, size]."""
    q, k, v = split(x, w)
    keys = lax.dynamic_update_slice_in_dim(keys, k[:, :, None], place, 2)
    values = lax.dynamic_update_slice_in_dim(values, v[:, :, None], place, 2)
    mask = (jnp.arange(keys.shape[2]) <= place)[None, None]
    turned = keys.transpose(0, 2, 1, 3), values.transpose(0, 2, 1, 3)
    return keys, values, x + attend(q, *turned, mask)


def layers_in_one(keys: Any, values: Any, x: Any, w: Any, place: Any) -> Any:
    """One cache of all layers, which each layer updates."""
    for layer in range(2):
        q, k, v = split(x, w)
        keys = lax.dynamic_update_slice(keys, k[None, :, None], (layer, 0, place, 0, 0))
        values = lax.dynamic_update_slice(values, v[None, :, None], (layer, 0, place, 0, 0))
        mask = (jnp.arange(keys.shape[2]) <= place)[None, None]
        x = x + attend(q, keys[layer], values[layer], mask)
    return keys, values, x


def places_of_their_own(keys: Any, values: Any, x: Any, w: Any, places: Any) -> Any:
    q, k, v = split(x, w)
    rows = jnp.arange(len(x))
    keys, values = keys.at[rows, places].set(k), values.at[rows, places].set(v)
    mask = (jnp.arange(keys.shape[1])[None] <= places[:, None])[:, None]
    return keys, values, x + attend(q, keys, values, mask)


def held_inside(keys: Any, values: Any, x: Any, w: Any, place: Any) -> Any:
    """A scatter of one slice whose start was held inside, as XLA writes it out: vmap of dynamic_update_slice."""
    q, k, v = split(x, w)
    limits = jnp.array([0, keys.shape[1] - 1, 0, 0], place.dtype)
    start = lax.clamp(0 * limits, jnp.pad(place[None], (1, 2)), limits)
    inside = ((start >= 0) & (start <= limits)).all()

    def write(cache: Any, new: Any) -> Any:
        old = lax.dynamic_slice(cache, tuple(start), new.shape)
        return lax.dynamic_update_slice(cache, jnp.where(inside, new, old), tuple(start))

    keys, values = write(keys, k[:, None]), write(values, v[:, None])
    mask = (jnp.arange(keys.shape[1]) <= place)[None, None]
    return keys, values, x + attend(q, keys, values, mask)


def mapped(keys: Any, values: Any, x: Any, w: Any, place: Any) -> Any:
    """The function for one sequence over all of them."""
    q, k, v = split(x, w)
    write = jax.vmap(partial(lax.dynamic_update_slice_in_dim, axis=0), (0, 0, None))
    keys, values = write(keys, k[:, None], place), write(values, v[:, None], place)
    mask = (jnp.arange(keys.shape[1]) <= place)[None, None]
    return keys, values, x + attend(q, keys, values, mask)


PLACE, PLACES = np.int32(5), np.asarray([5, 0, 15], np.int32)
CACHE = (BATCH, WORDS, HEADS, SIZE)

DECODING: dict[str, tuple[Callable[..., Any], tuple[int, ...], np.ndarray, int, int]] = {
    "one place": (at_one_place, CACHE, PLACE, 2, 2),
    "heads first": (heads_first, (BATCH, HEADS, WORDS, SIZE), PLACE, 2, 2),
    "layers in one": (layers_in_one, (2, *CACHE), PLACE, 4, 2),
    "held inside": (held_inside, CACHE, PLACE, 2, 2),
    "mapped": (mapped, CACHE, PLACE, 2, 0),
    "places of their own": (places_of_their_own, CACHE, PLACES, 2, 0),
}
"""Functions with the shape of their caches, the place, how many updates there are, and how many kernels write."""


@pytest.fixture
def small_arrays_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astitch.xla.updates.LEAST_UPDATED_BYTES", 0)


def draw(name: str, dtype: Any = np.float32) -> Arrays:
    _, cache, place, _, _ = DECODING[name]
    shapes = (cache, cache, (BATCH, WIDTH), (WIDTH, 3 * WIDTH))
    return [*(normal(*shape, dtype=dtype) for shape in shapes), np.asarray(place)]


def graph_of(fn: Callable[..., Any], *arguments: Any) -> Graph:
    return simplify(import_hlo(lower(fn, *arguments)))


def stitch(graph: Graph, donated: tuple[bool, ...]) -> tuple[Graph, int]:
    """(the module's graph, how many slices its kernels write)."""
    updates = partial(find_donated_updates, donated=donated)
    compilation = compile_graph(graph, few_sms(4), Target(launcher=Launcher.XLA, updates=updates))
    found = find_slices(compilation, loop=False)
    kernels = dict(as_text(compilation))
    for plan in compilation.plans:
        kernels[plan.kernel.name] = with_text(plan.kernel, (), found.get(plan.kernel.name, ()))
    module = import_hlo(export_program(compilation, kernels, {}))
    return module, sum(map(len, found.values()))


@pytest.mark.usefixtures("small_arrays_count")
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", DECODING)
def test_kernels_write_what_is_new_in_a_cache(name: str, dtype: Any) -> None:
    fn, _, _, updates, slices = DECODING[name]
    arguments = draw(name, dtype)
    graph = graph_of(fn, *arguments)
    donated = (True, True, False, False, False)
    assert len(find_donated_updates(graph, donated)) == updates
    module, written = stitch(graph, donated)
    assert written == slices
    results = run_graph(module, arguments)
    tolerance = 2e-5 if dtype is np.float32 else 5e-2
    for got, wanted in zip(results, jax.jit(fn)(*arguments), strict=True):
        got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


def test_a_small_cache_is_a_kernel_s() -> None:
    graph = graph_of(at_one_place, *draw("one place"))
    assert find_donated_updates(graph, (True, True, False, False, False)) == {}


@pytest.mark.usefixtures("small_arrays_count")
@pytest.mark.parametrize("donated", [(), (False, False, True, True, False)])
def test_what_is_not_donated_is_not_updated(donated: tuple[bool, ...]) -> None:
    """Kernels compute the updates then, whole: none writes a slice for another."""
    arguments = draw("one place")
    graph = graph_of(at_one_place, *arguments)
    assert find_donated_updates(graph, donated or (False,) * 5) == {}
    module, written = stitch(graph, donated or (False,) * 5)
    assert written == 0
    for got, wanted in zip(
        run_graph(module, arguments), jax.jit(at_one_place)(*arguments), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)


def test_an_update_that_a_kernel_computes_is_no_slice_of_another() -> None:
    """The new row is ready before the product, behind which a kernel writes the updated array."""

    def fn(cache: Any, x: Any, w: Any, place: Any) -> Any:
        new = jax.nn.softmax(x, -1).sum(0)[None]
        return lax.dynamic_update_slice(cache, new, (place, 0)) + x @ w

    arguments = [normal(16, 16), normal(16, 16), normal(16, 16), np.asarray(PLACE)]
    module, written = stitch(graph_of(fn, *arguments), (False,) * 4)
    assert written == 0
    (got,), wanted = run_graph(module, arguments), jax.jit(fn)(*arguments)
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.usefixtures("small_arrays_count")
def test_a_cache_stays_a_scatter_beside_sums_that_are_ordered() -> None:
    def fn(keys: Any, x: Any, places: Any) -> Any:
        table = jnp.zeros((4, x.shape[-1]), x.dtype).at[places % 4].add(x)
        new = jnp.tanh(x).reshape(len(x), HEADS, -1)
        return keys.at[jnp.arange(len(x)), places].set(new), table

    graph = graph_of(fn, normal(*CACHE), normal(BATCH, WIDTH), PLACES)
    for donated, left in (((True, False, False), 1), ((False, False, False), 0)):
        updates = partial(find_donated_updates, donated=donated)
        target = Target(launcher=Launcher.XLA, updates=updates)
        made = compile_graph(graph, few_sms(4), target).scopes.graph
        scatters = [node for node in made if node.op == "scatter"]
        assert sum(node.shape == CACHE for node in scatters) == left


def most_of_it(x: Any, y: Any) -> Any:
    return lax.dynamic_update_slice(x, jnp.tanh(y), (1, 0))


def of_something_else(x: Any, y: Any) -> Any:
    return lax.dynamic_update_slice(jnp.exp(x), jnp.tanh(y[:1]), (1, 0))


def behind_which_more_is_done(x: Any, y: Any) -> Any:
    return lax.dynamic_update_slice(x, jnp.tanh(y[:1]), (1, 0)) + 1


@pytest.mark.usefixtures("small_arrays_count")
@pytest.mark.parametrize("fn", [most_of_it, of_something_else, behind_which_more_is_done])
def test_kernels_write_whole_arrays_where_they_must(fn: Callable[..., Any]) -> None:
    graph = graph_of(fn, normal(8, 16), normal(6, 16))
    assert find_donated_updates(graph, (True, False)) == {}


def test_a_product_reads_a_state_as_xla_carries_it() -> None:
    """Eight queries of one head: a product, for which XLA may carry the cache transposed."""

    def turn(keys: Any, q: Any, k: Any, place: Any) -> Any:
        keys = lax.dynamic_update_slice(keys, k[:, None], (0, place, 0, 0))
        return keys, jnp.einsum("bhrd,bhdl->bhrl", q, keys.transpose(0, 2, 3, 1))

    keys, q, k = normal(*CACHE), normal(BATCH, HEADS, 8, SIZE), normal(BATCH, HEADS, SIZE)
    graph = graph_of(turn, keys, q, k, PLACE)
    found = find_turned_states(graph)
    assert found
    assert all(graph[name].op == "transpose" for name in found)
    kernels_only = graph_of(lambda k, x: (k, jnp.tanh(k.transpose(1, 0, 2, 3)) + x), keys, 1.0)
    assert find_turned_states(kernels_only) == {}


@needs_hook
@pytest.mark.parametrize("name", DECODING)
def test_xla_copies_no_cache(name: str) -> None:
    """The arguments are planned once, and what a step needs besides is smaller than a cache."""
    fn, cache, place, _, _ = DECODING[name]
    larger = {WORDS: 32 * WORDS, SIZE: 8 * SIZE}
    cache, width = tuple(larger.get(extent, extent) for extent in cache), 8 * WIDTH
    put = partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(devices()[0]))
    arrays = [put(s, jnp.bfloat16) for s in (cache, cache, (BATCH, width), (width, 3 * width))]
    with hooked() as seen:
        compiled = compile_ahead(
            partial(fn), *arrays, put(np.shape(place), jnp.int32), donate_argnums=(0, 1)
        )
    assert seen.stitchings[-1].kernels
    stats = compiled.memory_analysis()
    one = int(np.prod(cache)) * 2
    assert stats.alias_size_in_bytes >= 2 * one
    assert stats.temp_size_in_bytes < one


LENGTH, GROUPS, QUERIES, FEATURES = 512, 2, 4, 32


def turn_of(write: Callable[..., Any], turns: int = 16) -> Callable[..., Any]:
    """Some steps of a decoder whose queries share keys: products read the caches."""

    def generate(keys: Any, values: Any, x: Any, w: Any, place: Any) -> Any:
        def turn(state: Any, _: Any) -> Any:
            keys, values, x, place = state
            own = GROUPS * FEATURES
            q, k, v = jnp.split(jnp.tanh(x @ w), [QUERIES * own, (QUERIES + 1) * own], -1)
            k, v = (a.reshape(len(a), 1, GROUPS, FEATURES) for a in (k, v))
            keys, values = write(keys, k, place), write(values, v, place)
            q = q.reshape(len(x), GROUPS, QUERIES, FEATURES)
            scores = jnp.einsum("bgrd,blgd->bgrl", q, keys).astype(jnp.float32)
            mask = jnp.arange(LENGTH) <= place
            p = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1).astype(q.dtype)
            mixed = jnp.einsum("bgrl,blgd->bgrd", p, values).reshape(len(x), -1)
            return (keys, values, x + jnp.tanh(mixed), (place + 1) % LENGTH), ()

        return lax.scan(turn, (keys, values, x, place), None, length=turns)[0]

    return generate


def write_mapped(cache: Any, new: Any, place: Any) -> Any:
    write = partial(lax.dynamic_update_slice_in_dim, axis=0)
    return jax.vmap(write, (0, 0, None))(cache, new, place)


def write_clipped(cache: Any, new: Any, place: Any) -> Any:
    return cache.at[:, place].set(new[:, 0], mode="clip")


def write_at_once(cache: Any, new: Any, place: Any) -> Any:
    return lax.dynamic_update_slice(cache, new, (0, place, 0, 0))


@needs_hook
@pytest.mark.parametrize("write", [write_mapped, write_clipped, write_at_once])
def test_a_turn_moves_no_cache(write: Callable[..., Any]) -> None:
    """In the loop XLA neither copies nor transposes one, and reads no old row of it but for products."""
    put = partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(devices()[0]))
    cache = (8, LENGTH, GROUPS, FEATURES)
    width = GROUPS * QUERIES * FEATURES
    shapes = (cache, cache, (8, width), (width, width + 2 * GROUPS * FEATURES))
    arrays = [put(shape, jnp.bfloat16) for shape in shapes]
    with hooked() as seen:
        compiled = compile_ahead(turn_of(write), *arrays, put((), jnp.int32), donate_argnums=(0, 1))
    assert [body.compilation.plans for body in seen.stitchings[-1].compilation.bodies]
    moved = [op for op, shape in list_body(compiled.as_text()) if np.prod(shape) == np.prod(cache)]
    assert set(moved) <= {"dynamic-update-slice", "custom-call", "bitcast"}


@needs_hook
def test_memory_holds_few_caches_twice() -> None:
    """Four caches are transposed one after the other, each into the memory of the one before."""

    def generate(caches: Any, x: Any, w: Any, place: Any) -> Any:
        def turn(state: Any, _: Any) -> Any:
            caches, x, place = state
            made = []
            for keys, values in caches:
                one = turn_of(write_mapped, 1)
                keys, values, x, _ = one(keys, values, x, w, place)
                made.append((keys, values))
            return (made, x, (place + 1) % LENGTH), ()

        return lax.scan(turn, (caches, x, place), None, length=16)[0]

    put = partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(devices()[0]))
    cache = put((8, LENGTH, GROUPS, FEATURES), jnp.bfloat16)
    width = GROUPS * QUERIES * FEATURES
    x, w = ((8, width), (width, width + 2 * GROUPS * FEATURES))
    arrays = [[(cache, cache)] * 2, put(x, jnp.bfloat16), put(w, jnp.bfloat16)]
    with hooked():
        compiled = compile_ahead(generate, *arrays, put((), jnp.int32), donate_argnums=0)
    one = 2 * int(np.prod(cache.shape))
    stats = compiled.memory_analysis()
    assert stats.alias_size_in_bytes >= 4 * one
    assert stats.temp_size_in_bytes < 2 * one


def list_body(text: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(op, shape) of each instruction of the loop's body in an optimized module; of a fusion's root."""
    computations = {
        found[1]: found[2].splitlines()
        for found in re.finditer(r"^%?([\w.\-]+) \(.*?\{\n(.*?)^\}", text, re.M | re.S)
    }
    form = re.compile(r"(?:ROOT )?%?[\w.\-]+ = \w+\[([\d,]*)\]\S* ([\w\-]+)\(")

    def read(line: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        if not (found := form.match(line.strip())):
            return
        if called := re.search(r"calls=%?([\w.\-]+)", line):
            inner = computations[called[1]]
            yield from read(next(each for each in inner if each.strip().startswith("ROOT")))
        elif found[2] not in ("get-tuple-element", "parameter"):
            yield found[2], tuple(map(int, filter(None, found[1].split(","))))

    (body,) = {found[1] for found in re.finditer(r"body=%?([\w.\-]+)", text)}
    for line in computations[body]:
        yield from read(line)


@pytest.mark.gpu
@pytest.mark.usefixtures("small_arrays_count")
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", DECODING)
def test_caches_on_a_gpu_hold_what_xla_s_do(name: str, dtype: Any) -> None:
    fn = DECODING[name][0]
    arguments = draw(name, dtype)
    results = []
    for enabled in (astitch.enabled(), astitch.disabled()):
        with enabled, jax.default_matmul_precision("highest"):
            step = jax.jit(lambda *given: fn(*given), donate_argnums=(0, 1))
            results.append(step(*map(jnp.asarray, arguments)))
    tolerance = 2e-5 if dtype is np.float32 else 5e-2
    for got, wanted in zip(*results, strict=True):
        got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)
