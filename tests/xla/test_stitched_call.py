"""A stitched function inside a program of JAX's, lowered on the host and run on a GPU."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import astitch
from astitch.api import inside_xla
from astitch.errors import EngineUnavailable, UnsupportedOp
from astitch.xla.stitched_call import find_stitched, has_target
from astitch.xla.write_module import TARGET
from tests.emulated_xla import (
    CASES,
    ROWS,
    _as_if_there_was_a_gpu,  # noqa: F401
    attention,
    batch_norm,
    convolve,
    layer_norm,
    loop,
    lower_for_cuda,
    normal,
    two_batch_norms,
)

pytestmark = pytest.mark.usefixtures("sorts_left")


@pytest.mark.parametrize(("version", "known"), [("0.10.2", False), ("0.11.0", True), ("1.0", True)])
def test_which_jax_launches_ptx(version: str, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: version)
    assert has_target() is known


@pytest.mark.usefixtures("_as_if_there_was_a_gpu")
@pytest.mark.parametrize("name", ["layer_norm_gradients", "two_batch_norms", "attention"])
def test_jax_lowers_a_call_of_the_program(name: str) -> None:
    fn, arguments = CASES[name]
    stitched, text = lower_for_cuda(astitch.jit(fn), *arguments)
    program = stitched.compilation.program
    assert text.count(f"@{TARGET}(") == len(program.kernels) - len(program.notes) > 0
    (call,) = re.findall(r"call @(stitched_\S+)\(", text)
    assert f"func.func private @{call}(" in text
    assert "result_tilings" not in text


@pytest.mark.usefixtures("_as_if_there_was_a_gpu")
def test_what_astitch_does_not_read_stands_in_the_module_beside_kernels() -> None:
    def experts(x: jax.Array, w: jax.Array, counts: jax.Array) -> jax.Array:
        mixed = jax.lax.ragged_dot(jax.nn.softmax(x), w, counts)
        return jnp.tanh(mixed.astype(jnp.int4).astype(jnp.float32))

    arguments = normal(8, 4), normal(3, 4, 5), np.array([2, 3, 3], np.int32)
    stitched, text = lower_for_cuda(astitch.jit(experts), *arguments)
    compilation = stitched.compilation
    kinds = {op.op: op.reason for op in compilation.program.outside}
    assert kinds == {
        "ragged-dot": "astitch does not know 'ragged-dot'",
        "convert": "element type s4 has no emitted form",
    }
    assert text.count(f"@{TARGET}(") == len(compilation.program.kernels) == 2
    assert "ragged_dot" in text and "xi4>" in text


@pytest.mark.usefixtures("_as_if_there_was_a_gpu")
def test_two_programs_in_one_module() -> None:
    """Names of the one do not meet those of the other."""
    fn, arguments = CASES["sort_and_scatter"]
    both = [inside_xla.stitch(fn, {}, None, False) for _ in range(2)]
    traced = jax.jit(lambda *a: [fn(*a) for fn in both]).trace(*arguments)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert len(set(re.findall(r"call @(stitched_\S+)\(", text))) == 2


@pytest.mark.usefixtures("_as_if_there_was_a_gpu")
def test_values_from_outside_are_constants_of_the_program() -> None:
    table = jnp.asarray(normal(300, 40))
    stitched, text = lower_for_cuda(astitch.jit(lambda x: jnp.tanh(x) @ table), normal(4, 300))
    program = stitched.compilation.program
    assert len(program.parameters) == 1
    assert sum(literal.shape == (300, 40) for _, literal in program.constants) == 1
    assert "func.func public @main(%arg0: tensor<4x300xf32>)" in text


@pytest.mark.usefixtures("_as_if_there_was_a_gpu")
def test_notes_name_what_was_left_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astitch.xla.prepare_kernels.MAX_POINTERS", 1)
    stitched, text = lower_for_cuda(astitch.jit(layer_norm), *ROWS)
    assert TARGET not in text
    (note,) = stitched.compilation.program.notes
    assert note == "stitch_0 is left to XLA: 4 arrays, XLA passes 1"
    assert stitched.compilation.explain().endswith(f"\n\nleft to XLA: 1\n  {note}")


@pytest.mark.usefixtures("_as_if_there_was_a_gpu")
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"donate_argnums": 0}, "p"),
        ({"donate_argnums": (0, 1)}, "pm"),
        ({"donate_argnames": ("p", "m")}, "pm"),
        ({"static_argnames": "rate", "donate_argnames": "m"}, "m"),
    ],
    ids=str,
)
def test_donations_are_found_as_jax_finds_them(options: dict[str, Any], names: str) -> None:
    def fn(p: Any, m: Any, g: Any, *, rate: float = 0.1) -> Any:
        return p - rate * m["a"], {"a": m["a"] + g}

    x = normal(8, 8)
    # Named arguments are flattened in the order of their names.
    for args, kwargs, order in (
        ((x, {"a": x}, x), {}, "pmg"),
        ((x,), {"m": {"a": x}, "g": x}, "pgm"),
    ):
        want = jax.tree.leaves(jax.jit(fn, **options).lower(*args, **kwargs).args_info)
        assert [leaf.donated for leaf in want] == [letter in names for letter in order]
        traced = astitch.jit(fn, **options)._stitched_jit.trace(*args, **kwargs)
        stitched = find_stitched(traced.jaxpr)
        assert stitched is not None
        assert stitched.donated == tuple(letter in names for letter in order)


@pytest.mark.usefixtures("_as_if_there_was_a_gpu")
def test_transposes_between_products_are_left_to_xla() -> None:
    def products(x: jax.Array, w: jax.Array) -> jax.Array:
        heads = (x @ w).reshape(64, 4, 32).transpose(1, 2, 0)
        return jax.lax.optimization_barrier(heads) @ w

    stitched, text = lower_for_cuda(astitch.jit(products), normal(64, 64), normal(64, 128))
    program = stitched.compilation.program
    assert list(program.notes) == [
        f"{kernel.name} is left to XLA: it only permutes what products give or take\n"
        f"    to reverse it: keep {kernel.name}"
        for kernel in program.kernels
    ]
    assert TARGET not in text
    stitched, text = lower_for_cuda(astitch.jit(lambda x: x.T), normal(64, 32))
    assert text.count(TARGET) == 1 and not stitched.compilation.program.notes


@pytest.mark.usefixtures("_as_if_there_was_a_gpu")
def test_strict_raises_when_jax_lowers() -> None:
    with pytest.raises(UnsupportedOp, match="strict was asked for"):
        lower_for_cuda(astitch.jit(lambda x: jnp.fft.fft(x).real + 1, strict=True), normal(64, 64))


def test_xla_is_not_there_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astitch.device.cuda_driver.count_devices", lambda: 0)
    with pytest.raises(EngineUnavailable, match="xla was asked for, but CUDA's driver sees no GPU"):
        astitch.jit(lambda x: x, engine="xla")(np.ones(3))


LARGE: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "layer norm": lambda: (layer_norm, (normal(4096, 1024), normal(1024), normal(1024))),
    "softmax of long rows": lambda: (jax.nn.softmax, (normal(64, 1 << 18),)),
    "batch norm": lambda: (batch_norm, (normal(32, 28, 28, 64), normal(64), normal(64))),
    "two batch norms": lambda: (two_batch_norms, (normal(8192, 256), normal(256), normal(256))),
    "attention": lambda: (attention, (normal(8, 128, 256), normal(256, 768) * 0.05)),
    "training step": lambda: (training_step, training_arguments()),
    "convolution": lambda: (convolve, (normal(8, 32, 32, 16), normal(3, 3, 16, 32))),
    "sort, scatter": lambda: CASES["sort_and_scatter"],
    "loop": lambda: (loop, (normal(64, 64) * 0.1,)),
}


def training_step(params, x, y):
    """Gradients, a clip by their norm, an update that the data may skip."""

    def loss(params):
        hidden = layer_norm(jax.nn.gelu(x @ params["w"]), params["gain"], params["bias"])
        return jnp.square(hidden @ params["v"] - y).mean()

    value, gradients = jax.value_and_grad(loss)(params)
    norm = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(gradients)))
    step = jnp.minimum(1e-2, 1 / norm)
    moved = jax.tree.map(lambda p, g: p - step * g, params, gradients)
    return jax.lax.cond(value < 1e6, lambda: moved, lambda: params), value


def training_arguments():
    params = {
        "w": normal(256, 512) * 0.05,
        "v": normal(512, 256) * 0.05,
        "gain": np.ones(512, np.float32),
        "bias": np.zeros(512, np.float32),
    }
    return params, normal(2048, 256), normal(2048, 256)


@pytest.fixture
def on_xla() -> Iterator[Callable[..., Any]]:
    """astitch.jit with the engine xla; skipped where JAX has none."""
    try:
        astitch.jit(lambda x: x, engine="xla").engine  # noqa: B018
    except EngineUnavailable as error:
        pytest.skip(str(error).splitlines()[0])
    yield partial(astitch.jit, engine="xla")


def assert_agrees(got: Any, want: Any, tolerance: float = 5e-3) -> None:
    """Within a share of the largest value: products may run in TF32."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max(initial=1e-3))


@pytest.mark.gpu
@pytest.mark.parametrize("name", LARGE)
def test_a_gpu_computes_what_xla_does(name: str, on_xla: Callable[..., Any]) -> None:
    fn, arguments = LARGE[name]()
    arguments = jax.device_put(arguments)
    want, stitched = jax.jit(fn)(*arguments), on_xla(fn)
    assert_agrees(stitched(*arguments), want)
    for _ in range(100):
        got = stitched(*arguments)
    assert_agrees(got, want)


@pytest.mark.gpu
def test_a_compiled_function_on_a_gpu_shows_what_it_is(on_xla: Callable[..., Any]) -> None:
    compiled = on_xla(two_batch_norms).lower(*ROWS).compile()
    assert compiled.as_text().count(TARGET) == len(compiled.program.kernels)
    assert compiled.program.kernels[0].name in compiled.explain()
    assert compiled.memory_analysis().argument_size_in_bytes > 0
    assert_agrees(compiled(*ROWS), jax.jit(two_batch_norms)(*ROWS))
    with pytest.raises(TypeError):
        compiled(ROWS[0][:3], *ROWS[1:])


@pytest.mark.gpu
def test_donated_memory_is_used_again_on_a_gpu(on_xla: Callable[..., Any]) -> None:
    def move(state: Any, g: jax.Array) -> Any:
        return jax.tree.map(lambda a: a * 0.5 + g, state), g.sum()

    stitched = on_xla(move, donate_argnums=0)
    g = jnp.asarray(normal(64, 64))
    state = want = {"a": jnp.asarray(normal(64, 64)), "b": jnp.zeros((64, 64))}
    state = jax.tree.map(jnp.copy, state)
    for _ in range(20):
        given, (want, _) = state, jax.jit(move)(want, g)
        state, _ = stitched(state, g)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given))
    assert_agrees(state, want)


@pytest.mark.gpu
def test_out_of_memory_on_a_gpu_says_what_to_do_and_the_next_call_works(
    on_xla: Callable[..., Any],
) -> None:
    """A program whose result finds no room beside what another array holds."""
    words = 1 << 28  # of a result of 1 GiB
    stitched = on_xla(lambda x: jnp.tanh(x) + jnp.zeros((words, 1)))
    x = jnp.ones(1, jnp.float32)
    jax.block_until_ready(stitched(x))
    filler: list[jax.Array] = []
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        while True:
            filler.append(jax.block_until_ready(jnp.zeros(1 << 28, jnp.uint8)))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"RESOURCE_EXHAUSTED.* \d") as caught:
        jax.block_until_ready(stitched(x))
    # An error that comes with the result, not from the call, is JAX's alone.
    assert getattr(caught.value, "__notes__", [inside_xla.NO_ROOM]) == [inside_xla.NO_ROOM]
    del filler, caught
    for _ in range(3):
        assert float(stitched(x)[-1, 0]) == pytest.approx(np.tanh(1.0))


@pytest.mark.gpu
def test_two_threads_on_a_gpu(on_xla: Callable[..., Any]) -> None:
    stitched = on_xla(batch_norm)
    arguments = jax.device_put((normal(8192, 256), normal(256), normal(256)))
    want = jax.jit(batch_norm)(*arguments)
    with ThreadPoolExecutor(2) as pool:
        for got in pool.map(lambda _: stitched(*arguments), range(100)):
            assert_agrees(got, want)


@pytest.mark.gpu
def test_transformations_on_a_gpu(on_xla: Callable[..., Any]) -> None:
    stitched, x = on_xla(lambda x: jnp.tanh(x).sum()), jnp.asarray(normal(16, 16))
    assert_agrees(stitched(x), jnp.tanh(x).sum())
    assert_agrees(jax.grad(stitched)(x), 1 - jnp.tanh(x) ** 2)
    assert_agrees(jax.vmap(stitched)(x), jnp.tanh(x).sum(axis=1))
    assert_agrees(jax.jit(lambda x: stitched(x) * 2)(x), jnp.tanh(x).sum() * 2)
    assert_agrees(stitched(np.asarray(x)), jnp.tanh(x).sum())


@pytest.mark.gpu
def test_calls_of_the_host_on_a_gpu(on_xla: Callable[..., Any]) -> None:
    def fn(x: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct((16,), jnp.float32)
        return jax.pure_callback(lambda v: np.sort(np.asarray(v)), shape, jnp.tanh(x) * 2) + 1

    x = jnp.asarray(normal(16))
    stitched = on_xla(fn)
    with pytest.warns(RuntimeWarning, match="XLA computes all of fn: .* Python"):
        stitched(x)
    for _ in range(3):
        assert_agrees(stitched(x), jnp.sort(jnp.tanh(x) * 2) + 1)


@pytest.mark.gpu
def test_both_engines_agree_on_a_gpu(on_xla: Callable[..., Any]) -> None:
    key, x = jax.random.key(3), jnp.asarray(normal(64, 64))

    def drop(key: jax.Array, x: jax.Array) -> jax.Array:
        return jax.random.bernoulli(key, 0.5, x.shape) * x

    got = on_xla(drop)(key, x)
    assert_agrees(got, astitch.jit(drop, engine="executor")(key, x))
    assert_agrees(got, jax.jit(drop)(key, x))
