"""Through the hook products and convolutions are launched with what `jax.jit` launches them with."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from astitch.device.gpu import preset
from astitch.profiling.xla_kernels import read_xla_kernels
from tests.ahead_of_time import GPU, compile_ahead, devices, hooked, needs_hook

pytestmark = needs_hook

BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32


def put(*shapes: tuple[int, ...], dtype: Any) -> list[Any]:
    place = jax.sharding.SingleDeviceSharding(devices()[0])
    return [jax.ShapeDtypeStruct(shape, dtype, sharding=place) for shape in shapes]


def count_launches(compiled: Any) -> int:
    module = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    return sum(kernel.launches for kernel in read_xla_kernels(module, preset(GPU)).kernels)


def count_both(fn: Any, *arguments: Any) -> tuple[int, int, list[Any]]:
    """Launches alone and through the hook, and the compilations there."""
    alone = count_launches(compile_ahead(fn, *arguments))
    with hooked() as seen:
        stitched = count_launches(compile_ahead(fn, *arguments))
    return alone, stitched, [stitching.compilation for stitching in seen.stitchings]


def relu_layers(x: Any, *given: Any) -> Any:
    for w, b in zip(given[::2], given[1::2], strict=True):
        x = jax.nn.relu(x @ w + b)
    return x


def by_einsum(x: Any, *given: Any) -> Any:
    """With dimensions of batches."""
    x = x.reshape(4, -1, x.shape[-1])
    for w, b in zip(given[::2], given[1::2], strict=True):
        x = jnp.maximum(jnp.einsum("bij,jk->bik", x, w) + b[None, None], 0)
    return x


def by_vmap(x: Any, *given: Any) -> Any:
    """As Equinox' Linear: the bias is along columns."""

    def apply(row: Any) -> Any:
        for w, b in zip(given[::2], given[1::2], strict=True):
            row = jax.nn.relu(w @ row + b)
        return row

    return jax.vmap(apply)(x)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("fn", [relu_layers, by_einsum, by_vmap])
def test_layers_are_a_launch_each(fn: Any, dtype: Any) -> None:
    given = put((4096, 768), *[(768, 768), (768,)] * 3, dtype=dtype)
    alone, stitched, _ = count_both(fn, *given)
    assert alone == stitched == 3


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_gradients_launch_no_more(dtype: Any) -> None:
    def loss(given: Any, x: Any) -> Any:
        return relu_layers(x, *given).astype(F32).sum()

    x, *given = put((4096, 768), *[(768, 768), (768,)] * 3, dtype=dtype)
    alone, stitched, _ = count_both(jax.grad(loss), given, x)
    assert stitched <= alone


BEFORE = {
    "function": lambda x, w, c: jnp.tanh(x) @ w,
    "scale of rows": lambda x, w, c: (x * c[:, None]) @ w,
    "cast": lambda x, w, c: x @ w.astype(x.dtype),
    "for two products": lambda x, w, c: (jax.nn.relu(x) @ w, jax.nn.relu(x).T @ jax.nn.relu(x)),
    "softmax": lambda x, w, c: jax.nn.softmax(x) @ w,
}


@pytest.mark.parametrize("name", BEFORE)
def test_nor_do_ops_in_front_of_products(name: str) -> None:
    x, c = put((4096, 768), (4096,), dtype=BF16)
    (w,) = put((768, 1024), dtype=F32 if name == "cast" else BF16)
    alone, stitched, _ = count_both(BEFORE[name], x, w, c)
    assert stitched <= alone


EPILOGUES = {
    "residual": lambda x, w, b, r: r + (x @ w + b),
    "scaled gate": lambda x, w, b, r: (x @ w) * 0.125 * r,
    "narrowed": lambda x, w, b, r: jnp.matmul(x, w, preferred_element_type=F32).astype(BF16),
    "stream": lambda x, w, b, r: (r + x @ w, jnp.tanh(r + x @ w).sum(0)),
    "gelu": lambda x, w, b, r: jax.nn.gelu(x @ w + b),
    "silu": lambda x, w, b, r: jax.nn.silu(x @ w + b) * r,
    "norm": lambda x, w, b, r: jax.nn.softmax(r + x @ w + b),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_no_more_is_launched_than_alone(name: str) -> None:
    given = put((4096, 768), (768, 1024), (1024,), (4096, 1024), dtype=BF16)
    alone, stitched, _ = count_both(EPILOGUES[name], *given)
    assert stitched <= alone


def convolve(x: Any, k: Any) -> Any:
    return lax.conv_general_dilated(
        x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_convolutions_take_in_bias_and_residual(dtype: Any) -> None:
    given = put((8, 28, 28, 64), (1, 1, 64, 64), (64,), (8, 28, 28, 64), dtype=dtype)
    alone, stitched, _ = count_both(lambda x, k, b, r: jax.nn.relu(convolve(x, k) + b + r), *given)
    assert alone == stitched


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("size", [1, 3])
def test_convolutions_take_in_norms_of_inference(dtype: Any, size: int) -> None:
    """Two blocks of a residual network: but for what multiplies filters nothing is launched beside convolutions."""

    def norm(x: Any, w: Any, g: Any, b: Any, m: Any, v: Any) -> Any:
        y = convolve(x, w.astype(x.dtype))
        return ((y - m) * (lax.rsqrt(v + 1e-5) * g) + b).astype(x.dtype)

    def blocks(x: Any, *given: Any) -> Any:
        for _ in range(2):
            x = jax.nn.relu(x + norm(jax.nn.relu(norm(x, *given)), *given))
        return x

    (x,) = put((8, 28, 28, 64), dtype=dtype)
    given = put((size, size, 64, 64), *[(64,)] * 4, dtype=F32)
    with hooked() as seen:
        text = compile_ahead(blocks, x, *given).as_text()
    assert text.count('"__cudnn$convBiasActivationForward"') == 4
    (stitching,) = seen.stitchings
    assert len(stitching.compilation.program.kernels) == 1
    assert " fusion(" not in text[text.index("ENTRY") :]


def test_what_products_take_in_is_named_and_does_not_count() -> None:
    """Beside a softmax: it is stitched, and nothing of the program counts as left."""

    def fn(x: Any, w: Any, b: Any) -> Any:
        y = jax.nn.relu(x @ w + b)
        return jax.nn.softmax(y, axis=-1) @ w, y

    *_, (compilation,) = count_both(fn, *put((4096, 768), (768, 768), (768,), dtype=BF16))
    taken = [op for op in compilation.program.outside if op.product]
    assert {op.op for op in taken} >= {"add", "maximum"}
    assert all(op.reason == f"XLA computes it with %{op.product}" for op in taken)
    assert compilation.share.value == 1.0 and taken[0].reason in compilation.explain()


@functools.cache
def make_dense() -> tuple[Any, Any]:
    nn = pytest.importorskip("flax.linen")

    class Dense(nn.Module):  # type: ignore[misc, name-defined]
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for _ in range(3):
                x = nn.relu(nn.Dense(768, dtype=BF16, param_dtype=BF16)(x))
            return x

    model = Dense()
    return model, jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((4096, 768), BF16))


def test_layers_of_flax() -> None:
    model, parameters = make_dense()
    place = jax.sharding.SingleDeviceSharding(devices()[0])
    given = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place), parameters
    )
    alone, stitched, _ = count_both(model.apply, given, *put((4096, 768), dtype=BF16))
    assert alone == stitched == 3
