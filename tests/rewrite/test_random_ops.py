"""Random bits as element-wise ops: XLA's bits, and its new states."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.errors import MalformedHlo
from astitch.graph.check import check_graph
from astitch.graph.ir import Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.expand import expand
from astitch.rewrite.simplify import simplify
from astitch.run.host_engine import HostEngine

TYPES = ("u8", "s16", "u32", "s32", "u64", "s64")
LAST = 2**64 - 1


def read(state: str, algorithm: str, type_: str) -> Graph:
    text = (
        f"HloModule r\nENTRY e {{ s = {state} parameter(0)\n"
        f" ROOT r = ({state}, {type_}) rng-bit-generator(s), algorithm={algorithm} }}"
    )
    return simplify(check_graph(import_hlo(text)))


def assert_same(graph: Graph, state: np.ndarray) -> None:
    drawn = check_graph(expand(graph))
    assert all(node.op != "rng-bit-generator" for node in drawn)
    for found, want in zip(run_graph(drawn, [state]), run_graph(graph, [state]), strict=True):
        assert found.dtype == want.dtype
        np.testing.assert_array_equal(found, want)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.data())
def test_the_ops_draw_what_the_generators_draw(data: st.DataObject) -> None:
    """Which tests/graph/test_reference.py compares with XLA."""
    algorithm = data.draw(st.sampled_from(("rng_philox", "rng_default", "rng_three_fry")))
    words = 2 if algorithm == "rng_three_fry" else data.draw(st.sampled_from((2, 3)))
    number = st.one_of(st.integers(0, LAST), st.integers(LAST - 9, LAST), st.integers(0, 9))
    state = np.array(data.draw(st.lists(number, min_size=words, max_size=words)), np.uint64)
    shape = data.draw(st.lists(st.integers(1, 6), max_size=3))
    type_ = f"{data.draw(st.sampled_from(TYPES))}[{','.join(map(str, shape))}]"
    if data.draw(st.booleans()):
        assert_same(read(f"u64[{words}]", algorithm, type_), state)
    else:
        assert_same(read(f"u32[{2 * words}]", algorithm, type_), state.view(np.uint32))


def test_what_has_no_such_form_stays() -> None:
    graph = read("u64[2]", "rng_philox", "u32[0]")
    assert any(node.op == "rng-bit-generator" for node in expand(graph))


def test_threefry_has_a_state_of_two_words() -> None:
    with pytest.raises(MalformedHlo, match=r"the state is u64\[3\], not one of u64\[2\], u32\[4\]"):
        read("u64[3]", "rng_three_fry", "u32[4]")


def drop_out(state: Any, x: Any) -> tuple[Any, Any]:
    """By JAX's own generator for GPUs, as its key type rbg has it, and the state for the next time."""
    state, bits = lax.rng_bit_generator(state, x.shape, jnp.uint32)
    kept = bits < jnp.uint32(3 << 30)
    return state, jnp.where(kept, jnp.exp(x) / 0.75, 0.0)


def test_a_dropout_is_a_kernel_of_its_own_and_stores_no_bits() -> None:
    x = np.random.default_rng(0).normal(size=(37, 130)).astype(np.float32)
    state = np.array([1, 2, LAST >> 32, 4], np.uint32)
    module = jax.jit(drop_out).lower(state, x).compiler_ir("hlo")
    graph = import_hlo(module.as_serialized_hlo_module_proto())
    program = compile_graph(graph, preset("h100")).program
    assert not program.outside and len(program.kernels) == 1
    assert program.arena_bytes < x.nbytes
    want = jax.jit(drop_out)(state, x)
    new, dropped = HostEngine(program).run([state, x])
    np.testing.assert_array_equal(new, want[0])
    np.testing.assert_array_equal(dropped == 0, np.asarray(want[1]) == 0)
    np.testing.assert_allclose(dropped, want[1], rtol=1e-6)
