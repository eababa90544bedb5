"""Programs whose effects have an order, or whose values lie in the host's memory: only these ops are left to XLA."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import io_callback
from jax.sharding import SingleDeviceSharding

from astitch.xla.hook import read_module
from tests.ahead_of_time import calls_of_the_host, compile_ahead, devices, hooked, needs_hook
from tests.conftest import why_no_hook

pytestmark = needs_hook

if why_not := why_no_hook():
    pytest.skip(why_not, allow_module_level=True)

PTX = "xla.gpu.ptx"


@pytest.fixture(autouse=True)
def with_calls() -> Iterator[None]:
    with calls_of_the_host():
        yield


def shape(*extents: int, dtype: Any = jnp.float32) -> Any:
    return jax.ShapeDtypeStruct(extents, dtype, sharding=SingleDeviceSharding(devices()[0]))


def compile_both(fn: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, Any]:
    """(alone, through the hook)."""
    alone = compile_ahead(fn, *arguments, **options)
    with hooked() as seen:
        stitched = compile_ahead(fn, *arguments, **options)
    assert [s.reason for s in seen.stitchings] == [""]
    return alone, stitched


# ---- tokens --------------------------------------------------------------------------------------------------------


def tell(text: str, x: Any) -> None:
    jax.debug.print(text, x.sum(), ordered=True)


def ask(x: Any) -> Any:
    return io_callback(lambda v: v, jax.ShapeDtypeStruct((), x.dtype), x.sum(), ordered=True)


def two_prints(x: Any) -> Any:
    y = jax.nn.softmax(x @ x)
    tell("first {}", y)
    z = jax.nn.softmax(y @ x)
    tell("second {}", z)
    return z


def prints_and_answers(x: Any) -> Any:
    y = jax.nn.standardize(x)
    tell("before {}", y)
    y = jax.nn.softmax(y + ask(y))
    jax.debug.print("whenever {}", y.max())
    tell("after {}", y)
    return y * ask(y)


def in_a_scan(x: Any) -> Any:
    def turn(h: Any, _: Any) -> Any:
        h = jax.nn.softmax(h @ x)
        tell("in a turn {}", h)
        return h, h.sum()

    h, sums = lax.scan(turn, x + ask(x), None, length=5)
    tell("behind all {}", sums)
    return h, sums


def in_a_branch(x: Any) -> Any:
    def one(y: Any) -> Any:
        tell("one {}", y)
        return jax.nn.softmax(y * 2)

    y = jax.nn.softmax(x @ x)
    z = lax.cond(y[0, 0] > 0.5, one, lambda y: jax.nn.standardize(y), y)
    tell("behind both {}", z)
    return jax.nn.softmax(z @ x)


def in_a_while(x: Any) -> Any:
    def turn(state: Any) -> Any:
        h, _ = state
        h = jax.nn.standardize(h @ x)
        return h, ask(h)

    return lax.while_loop(lambda state: state[1] < 5, turn, (x, jnp.zeros((), x.dtype)))


TOKENS: dict[str, tuple[Callable[..., Any], int]] = {
    "two prints": (two_prints, 2),
    "prints and answers": (prints_and_answers, 2),
    "in a scan": (in_a_scan, 1),
    "in a branch": (in_a_branch, 3),
    "in a while": (in_a_while, 1),
}
"""Programs, each with the least number of its kernels."""


def list_calls(text: str) -> list[tuple[str, str]]:
    """The calls of the host in a compiled module, and those whose token each takes; by the numbers of the callbacks.

    A token that comes from elsewhere, as from a loop, has the opcode that it comes from.
    """
    lines = dict(re.findall(r"^\s*(?:ROOT )?%(\S+) = (.*)$", text, re.MULTILINE))

    def number(name: str) -> str:
        found = re.search(r"index = (\d+)", lines[name])
        return found[1] if found else ""

    def source(name: str) -> str:
        while found := re.search(r" get-tuple-element\(%([^),]+)", lines[name]):
            name = found[1]
        opcode = re.search(r"\s([a-z-]+)\(", lines[name])
        assert opcode
        return number(name) or opcode[1]

    calls = {}
    for name, line in lines.items():
        if 'python_gpu_callback"' in line:
            taken = re.search(r"custom-call\(%([^),]+)", line)
            ordered = "operand_layout_constraints={token" in line
            calls[number(name)] = source(taken[1]) if taken and ordered else ""
    return sorted(calls.items())


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", TOKENS)
def test_effects_keep_their_order(name: str, dtype: Any) -> None:
    fn, kernels = TOKENS[name]
    alone, stitched = (c.as_text() for c in compile_both(fn, shape(256, 256, dtype=dtype)))
    assert len(list_calls(alone)) >= 2 or name == "in a while"
    assert list_calls(stitched) == list_calls(alone)
    assert stitched.count(PTX) >= kernels


def test_a_gradient_with_prints_has_the_kernels_of_one_without() -> None:
    def loss(x: Any, *, speaks: bool) -> Any:
        y = jax.nn.softmax(x @ x)
        if speaks:
            tell("on the way {}", y)
        return (jax.nn.standardize(y @ x) ** 3).sum()

    counts = []
    for speaks in (False, True):
        gradient = jax.grad(functools.partial(loss, speaks=speaks))
        counts.append(compile_both(gradient, shape(128, 128))[1].as_text().count(PTX))
    assert 0 < counts[0] <= counts[1] <= counts[0] + 1


# ---- effects without an order --------------------------------------------------------------------------------------


def a_print_alone(x: Any) -> Any:
    y = jax.nn.standardize(x)
    jax.debug.print("the first is {}", y[0, 0])
    return y * 2


def a_print_of_an_argument(x: Any) -> Any:
    jax.debug.print("it is {}", x)
    return jax.nn.softmax(x)


def a_print_of_nothing(x: Any) -> Any:
    jax.debug.print("here")
    return jax.nn.softmax(x) @ x


def prints_in_turns(x: Any) -> Any:
    def turn(h: Any, _: Any) -> Any:
        h = jax.nn.softmax(h @ x)
        jax.debug.print("{}", h.sum())
        return h, None

    return jax.nn.standardize(lax.scan(turn, x, None, length=3)[0])


def a_loop_that_only_prints(x: Any) -> Any:
    y = jax.nn.softmax(x)

    def turn(i: Any, total: Any) -> Any:
        jax.debug.print("{}", total)
        return total + y[i, 0]

    lax.fori_loop(0, 5, turn, y.max())
    return y * 2


def a_print_in_a_branch(x: Any) -> Any:
    def tells(y: Any) -> Any:
        jax.debug.print("large {}", y.max())
        return jax.nn.standardize(y)

    y = jax.nn.softmax(x)
    return lax.cond(y[0, 0] > 0.5, tells, jax.nn.softmax, y)


def a_gradient_that_tells(x: Any) -> Any:
    def loss(x: Any) -> Any:
        y = jax.nn.softmax(x @ x)
        jax.debug.callback(lambda v: None, y.sum())
        return (y**2).sum()

    return jax.grad(loss)(x)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    "fn",
    [
        a_print_alone,
        a_print_of_an_argument,
        a_print_of_nothing,
        prints_in_turns,
        a_loop_that_only_prints,
        a_print_in_a_branch,
        a_gradient_that_tells,
    ],
)
def test_effects_without_an_order_stay(fn: Callable[..., Any], dtype: Any) -> None:
    alone, stitched = (c.as_text() for c in compile_both(fn, shape(256, 256, dtype=dtype)))
    assert len(list_calls(alone)) == 1
    assert list_calls(stitched) == list_calls(alone)
    assert PTX in stitched


# ---- control dependencies ------------------------------------------------------------------------------------------


def two_sorts(x: Any, w: Any) -> Any:
    a, b = jax.nn.softmax(x @ w), jax.nn.softmax(x.T @ w)
    c, d = lax.sort(a), lax.sort(b)
    return jax.nn.softmax(c) + b, jax.nn.softmax(d) * a


@pytest.mark.parametrize(("first", "second"), [("sort", "sort"), ("divide", "sort")])
def test_control_dependencies_stay(
    first: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX writes none, some passes of XLA's do."""
    import tests.ahead_of_time as ahead

    def read_and_tie(data: bytes) -> Any:
        module = read_module(data)
        entry = next(c for c in module.computations if c.id == module.entry_computation_id)
        before = next((i for i in entry.instructions if i.opcode == first.encode()), None)
        behind = [i for i in entry.instructions if i.opcode == second.encode()]
        if before is not None and behind:
            behind[-1].control_predecessor_ids.append(before.id)
        return module

    monkeypatch.setattr(ahead, "read_module", read_and_tie)
    with hooked() as seen:
        text = compile_ahead(two_sorts, shape(256, 256), shape(256, 256)).as_text()
    assert text.count("control-predecessors") == 1
    assert [s.reason for s in seen.stitchings] == [""]
    assert text.count(PTX) >= 3


# ---- memory of the host --------------------------------------------------------------------------------------------


def offload(*names: str) -> Any:
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=list(names),
        offload_src="device",
        offload_dst="pinned_host",
    )


def scanned_layers(weights: Any, x: Any) -> Any:
    @functools.partial(jax.checkpoint, policy=offload("h"))
    def layer(h: Any, w: Any) -> Any:
        h = checkpoint_name(h, "h")
        return jax.nn.softmax(h @ w) + h, None

    return (lax.scan(layer, x, weights)[0] ** 2).sum()


def unrolled_layers(weights: Any, x: Any) -> Any:
    @functools.partial(jax.checkpoint, policy=offload("h", "wide"))
    def layer(h: Any, w: Any) -> Any:
        h = checkpoint_name(h, "h")
        wide = checkpoint_name(jax.nn.gelu(h @ w), "wide")
        return jax.nn.softmax(wide @ w.T) + h

    for w in weights:
        x = layer(x, w)
    return (x**2).sum()


def optimizer_in_the_host_s_memory(p: Any, m: Any, v: Any, g: Any) -> Any:
    m, v = (jax.device_put(a, jax.memory.Space.Device) for a in (m, v))
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    p = p - m / (jnp.sqrt(v) + 1e-8) * jax.nn.softmax(g)
    return p, jax.device_put(m, jax.memory.Space.Host), jax.device_put(v, jax.memory.Space.Host)


X, WEIGHTS = shape(256, 256), shape(4, 256, 256)

HOST: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int]] = {
    "layers in a scan": (jax.grad(scanned_layers), (WEIGHTS, X), 2),
    "layers one by one": (jax.grad(unrolled_layers), (WEIGHTS, X), 12),
    "an optimizer": (optimizer_in_the_host_s_memory, (X, X, X, X), 1),
}


def traffic(compiled: Any) -> tuple[int, ...]:
    """Values in the host's memory, copies from and to it, and bytes there."""
    text, stats = compiled.as_text(), compiled.memory_analysis()
    sizes = stats.host_temp_size_in_bytes, stats.host_output_size_in_bytes
    return text.count("S(5)"), text.count(" copy-start("), *sizes


@pytest.mark.parametrize("name", HOST)
def test_as_much_lies_in_the_host_s_memory(name: str) -> None:
    fn, arguments, kernels = HOST[name]
    alone, stitched = compile_both(fn, *arguments)
    assert traffic(alone)[0] > 0
    assert traffic(stitched) == traffic(alone)
    assert stitched.as_text().count(PTX) >= kernels
