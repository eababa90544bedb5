"""What XLA makes of programs that went through its hook, beside what it makes of them alone."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import SingleDeviceSharding

from astitch.device.gpu import preset
from astitch.profiling.report import COPY, MEMORY
from astitch.profiling.xla_kernels import read_xla_kernels
from astitch.xla.hook import read_module
from benchmarks.hook_programs import PROGRAMS
from tests.ahead_of_time import GPU, compile_ahead, devices, hooked, needs_hook

pytestmark = needs_hook


def put(tree):
    place = SingleDeviceSharding(devices()[0])
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place), tree)


def compile_both(fn, *arguments, **options):
    """(alone, through the hook, what was seen there)."""
    given = put(arguments)
    alone = compile_ahead(fn, *given, **options)
    with hooked() as seen:
        return alone, compile_ahead(fn, *given, **options), seen


def launches_of(compiled):
    module = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    return read_xla_kernels(module, preset(GPU)).kernels


def count(compiled, *, kind=None, word=""):
    found = [k for k in launches_of(compiled) if kind in (None, k.kind)]
    return sum(k.launches for k in found if word in k.name and not (word and k.ours))


CONVOLUTIONS = ("conv-NCHW-f32/train", "conv-NCHW-bf16/infer", "conv-NHWC-bf16/train")


@pytest.mark.parametrize("name", [*CONVOLUTIONS, "gru/infer", "adam"])
def test_less_is_launched_and_no_more_is_moved(name):
    program = PROGRAMS[name](True)
    alone, stitched, _ = compile_both(
        program.fn, *program.arguments, donate_argnums=program.donated
    )
    assert count(stitched, kind=MEMORY) < count(alone, kind=MEMORY) / 2
    assert count(stitched, kind=COPY) <= count(alone, kind=COPY)
    assert count(stitched, word="transpose") <= count(alone, word="transpose")
    sizes = [c.memory_analysis().alias_size_in_bytes for c in (alone, stitched)]
    assert sizes[0] == sizes[1] and (sizes[0] > 0) == bool(program.donated)


def test_a_large_constant_is_kept():
    program = PROGRAMS["constant"](True)
    _, _, seen = compile_both(program.fn, *program.arguments)
    (stitching,) = seen.stitchings
    table = np.random.default_rng(3).standard_normal((16, 600)).astype(np.float32)
    literals = [
        np.array(i.literal.f32s, np.float32)
        for c in read_module(stitching.module).computations
        for i in c.instructions
        if len(i.literal.f32s) == table.size
    ]
    assert literals and all(
        any((found == form.ravel()).all() for form in (table, table.T)) for found in literals
    )


def decode_with_attention(w, keys, xs):
    """An LSTM-like decoder that looks at keys [batch, time, width] by its state."""

    def turn(h, x):
        h = jnp.tanh(x + h @ w)
        shares = jax.nn.softmax(jnp.einsum("bd,btd->bt", h, keys))
        seen = jnp.einsum("bt,btd->bd", shares, keys)
        return jnp.tanh(h + seen), h

    return lax.scan(turn, jnp.zeros(xs.shape[1:]), xs)[1]


def test_a_loop_whose_products_xla_wrote_out_is_one_kernel():
    make = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    given = make((256, 256)), make((8, 32, 256)), make((32, 8, 256))
    alone, stitched, seen = compile_both(decode_with_attention, *given)
    module = read_module(seen.modules[0])
    opcodes = [i.opcode for c in module.computations for i in c.instructions]
    assert opcodes.count(b"dot") == 1, "XLA's simplifier writes products with vectors out no more"
    assert count(alone, kind=MEMORY) > 64
    assert len(launches_of(stitched)) == 1


WINDOWS = {
    "cumsum": (lambda x: jnp.cumsum(x, -1), (8, 1000)),
    "cumsum of columns": (lambda x: jnp.cumsum(x, 0), (3000, 32)),
    "cummax from behind": (lambda x: lax.cummax(x, 1, reverse=True), (8, 300)),
    "cumlogsumexp": (lambda x: lax.cumlogsumexp(x, 1), (8, 5000)),
    "gradient of a pooling": (
        jax.grad(
            lambda x: jnp.sum(
                lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME") ** 2
            )
        ),
        (4, 28, 28, 64),
    ),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_that_xla_wrote_out_are_in_kernels(name):
    fn, shape = WINDOWS[name]
    _, stitched, _ = compile_both(fn, jax.ShapeDtypeStruct(shape, jnp.float32))
    launches = launches_of(stitched)
    assert launches and all(k.ours for k in launches)
    assert sum(k.launches for k in launches) <= 2


@pytest.mark.parametrize(
    "accuracy", [lax.AccuracyMode.HIGHEST, lax.Tolerance(1e-3, 1e-2, 0)], ids=["highest", "bounds"]
)
def test_an_op_that_asks_for_an_accuracy_is_xla_s(accuracy):
    def fn(x):
        y = lax.exp(x @ x, accuracy=accuracy)
        return jax.nn.softmax(lax.tanh(y / y.sum(-1, keepdims=True)))

    _, stitched, seen = compile_both(fn, jax.ShapeDtypeStruct((256, 256), jnp.float32))
    (stitching,) = seen.stitchings
    asking = [
        i.opcode
        for c in read_module(stitching.module).computations
        for i in c.instructions
        if i.HasField("result_accuracy")
    ]
    assert asking == [b"exponential"]
    assert "asks for an accuracy" in stitching.compilation.explain()
    assert any(k.ours for k in launches_of(stitched))
