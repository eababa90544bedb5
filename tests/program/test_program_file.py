"""Programs as bytes: what is read is what was written, and nothing else can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.hlo_import import import_hlo
from astitch.loops.plan import LoopPlanner
from astitch.pipeline import Target
from astitch.program.file import MAGIC, pack_program, unpack_program
from astitch.program.steps import FallbackStep, KernelStep, LibraryStep, Program
from astitch.run.host_engine import HostEngine
from astitch.xla.loop_steps import take_loops
from tests.hlo_runner import lower

pytestmark = pytest.mark.usefixtures("sorts_left")

X = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)


def softmax(x: Any) -> Any:
    return jnp.exp(x - x.max(1, keepdims=True)) / jnp.exp(x).sum(1, keepdims=True)


def products(x: Any) -> Any:
    """A library's, with a constant, in half precision."""
    weight = jnp.asarray(np.arange(16 * 256).reshape(16, 256), jnp.bfloat16)
    return jnp.tanh(x.astype(jnp.bfloat16) @ weight), x


def fallbacks(x: Any) -> Any:
    return jnp.sort(x * 2, axis=1) + 1, jnp.cumsum(x, axis=0), (x > 0).any(1)


def loops(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, carry: jnp.tanh(carry @ carry.T @ x), x)


def convolution(x: Any) -> Any:
    return lax.conv(x[None, None], jnp.ones((4, 1, 3, 3)), (1, 1), "SAME")


def make_program(fn: Callable[..., Any], gpu: str) -> Program:
    planner = LoopPlanner(preset(gpu))
    graph = import_hlo(lower(fn, X))
    return take_loops(compile_graph(graph, preset(gpu), Target(loops=planner)), planner).program


@pytest.mark.parametrize("gpu", ["host", "h100"])
@pytest.mark.parametrize("fn", [softmax, products, fallbacks, loops, convolution])
def test_a_program_is_read_as_it_was(fn: Callable[..., Any], gpu: str) -> None:
    program = make_program(fn, gpu)
    data = pack_program(program)
    found = unpack_program(data)
    assert found == program
    assert pack_program(found) == data
    assert [type(step) for step in found.steps] == [type(step) for step in program.steps]


def test_steps_of_each_kind_were_written() -> None:
    steps = {type(s) for fn in (products, fallbacks) for s in make_program(fn, "host").steps}
    assert steps >= {KernelStep, LibraryStep, FallbackStep}


def test_a_read_program_runs() -> None:
    program = make_program(fallbacks, "host")
    found = unpack_program(pack_program(program))
    assert found is not None
    for mine, theirs in zip(HostEngine(found).run([X]), HostEngine(program).run([X]), strict=True):
        assert np.array_equal(mine, theirs)


def test_other_bytes_are_no_program() -> None:
    assert (
        unpack_program(b"astitch program 0\n" + pack_program(make_program(softmax, "host"))) is None
    )
    number = b"[7,[]]"
    assert unpack_program(MAGIC + len(number).to_bytes(8, "little") + number) is None


def test_bytes_name_no_other_class() -> None:
    tree = b'[{"Popen":["ls"]},[]]'
    with pytest.raises(KeyError, match="Popen"):
        unpack_program(MAGIC + len(tree).to_bytes(8, "little") + tree)
