"""Numbers of four bits: unpacked from words where kernels read them, converted by XLA where a product does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from astitch.device.gpu import preset
from astitch.graph.check import check_graph
from astitch.graph.ir import ArrayType, DType, Graph, Node
from astitch.graph.ops.elementwise import meaning_of_bitcast_convert
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.packed_words import unpack_words
from astitch.rewrite.simplify import simplify
from astitch.rewrite.small_dots import decompose_small_dots
from astitch.run.host_engine import HostEngine
from astitch.xla.compile_module import compile_for_xla
from tests.hlo.test_hlo_opaque import run_inside_xla
from tests.hlo_runner import lower, run_xla

H100 = preset("h100")
RNG = np.random.default_rng(0)
TYPES = {"s4": (ml_dtypes.int4, -8), "u4": (ml_dtypes.uint4, 0)}


def four_bits(kind: str, *shape: int) -> np.ndarray:
    dtype, low = TYPES[kind]
    return RNG.integers(low, low + 16, shape).astype(np.int8).astype(dtype)


def graph_of(fn: Callable[..., Any], *arguments: Any) -> Graph:
    return simplify(check_graph(import_hlo(lower(fn, *arguments))))


def ops_of(graph: Graph) -> list[str]:
    return [node.opcode for node in graph]


@pytest.mark.parametrize("target", ["f32", "bf16", "s32"])
@pytest.mark.parametrize("kind", TYPES)
def test_words_hold_the_same_numbers(kind: str, target: str) -> None:
    dtype = {"f32": jnp.float32, "bf16": jnp.bfloat16, "s32": jnp.int32}[target]

    def fn(q: jax.Array) -> jax.Array:
        return jnp.abs(q.astype(dtype) * 3 + 1)

    q = np.resize(np.arange(16) + TYPES[kind][1], (6, 24)).astype(TYPES[kind][0])
    graph = graph_of(fn, q)
    words = check_graph(unpack_words(graph))
    assert "bitcast-convert" in ops_of(words)
    (got,), want = run_graph(words, [q]), jax.jit(fn)(q)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def scale_columns(x: Any, q: Any, s: Any) -> Any:
    return jnp.tanh((x @ q.astype(x.dtype)) * s)


def scale_groups(x: Any, q: Any, s: Any) -> Any:
    rows, columns = q.shape
    groups = q.reshape(-1, 16, columns).astype(x.dtype) * s[: rows // 16, None, None]
    return jnp.tanh(x @ groups.reshape(rows, columns))


def transposed(x: Any, q: Any, s: Any) -> Any:
    return jnp.tanh(jnp.einsum("k,nk->n", x[0, : q.shape[1]], q.astype(x.dtype))) * s.sum()


def row_sums(x: Any, q: Any, s: Any) -> Any:
    return (q.astype(jnp.float32) ** 2).sum(-1) + x.sum() * s[0]


READ = {
    "scale columns": scale_columns,
    "scale groups": scale_groups,
    "transposed": transposed,
    "row sums": row_sums,
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", READ)
def test_kernels_read_words(name: str, kind: str) -> None:
    """The kernel's operand is the buffer as words; XLA converts nothing, and the values are its own."""
    x = RNG.standard_normal((1, 64)).astype(np.float32)
    q, s = four_bits(kind, 64, 48), RNG.standard_normal(48).astype(np.float32)
    graph = graph_of(READ[name], x, q, s)
    compilation, _ = compile_for_xla(graph, H100, simplified=True)
    outside = {op.op for op in compilation.program.outside}
    assert {"bitcast-convert"} <= outside <= {"bitcast-convert", "reshape"}
    want = run_xla(lower(READ[name], x, q, s), [x, q, s])
    for found in (run_inside_xla, lambda c, arrays: HostEngine(c.program).run(arrays)):
        (got,) = found(compilation, [x, q, s])
        np.testing.assert_allclose(got, want[0], rtol=1e-4, atol=1e-4)


def test_a_thread_takes_a_word_at_a_time() -> None:
    """Its eight numbers are neighbours along the columns: one load for all of them."""
    arrays = (
        jax.ShapeDtypeStruct((1, 4096), jnp.bfloat16),
        jax.ShapeDtypeStruct((4096, 14336), jnp.int4),
        jax.ShapeDtypeStruct((14336,), jnp.bfloat16),
    )
    compilation, _ = compile_for_xla(graph_of(scale_columns, *arrays), H100, simplified=True)
    (plan,) = compilation.plans
    assert plan.arrangement.loops[0].mapping.vector == 8


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("word", "count"), [(DType.U8, 2), (DType.U32, 8)])
def test_the_reference_packs_as_xla(kind: str, word: DType, count: int) -> None:
    q = four_bits(kind, 6, 4, count)
    node = Node("words", "bitcast-convert", ArrayType(word, (6, 4)), ("q",))
    want = jax.jit(lambda q: jax.lax.bitcast_convert_type(q, word.numpy))(q)
    np.testing.assert_array_equal(meaning_of_bitcast_convert(node, q), np.asarray(want))


def many_rows(x: Any, q: Any, s: Any) -> Any:
    """XLA converts as it multiplies."""
    return jnp.tanh(jnp.tile(x, (64, 1)) @ q.astype(x.dtype))


def ragged(x: Any, q: Any, s: Any) -> Any:
    """A row is no whole number of words."""
    return jnp.tanh(x @ q[:, :45].astype(x.dtype))


@pytest.mark.parametrize("fn", [many_rows, ragged])
def test_products_of_xla_convert_for_themselves(fn: Callable[..., Any]) -> None:
    arrays = ((1, 4096), np.float32), ((4096, 48), ml_dtypes.int4), ((48,), np.float32)
    graph = graph_of(fn, *(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in arrays))
    written = unpack_words(decompose_small_dots(graph, H100))
    assert "dot" in ops_of(written) and "bitcast-convert" not in ops_of(written)
