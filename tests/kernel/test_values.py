"""Choices between operands (concatenate, pad, dynamic-update-slice ...): once for a vector where its lanes take the
same branch, whose loads are vectors then; lane by lane elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astitch.device.gpu import preset
from astitch.kernel import kernel_ir as k
from astitch.toolchain.nvrtc import compile_cuda
from tests.small_gpu import Planned, assert_close, by_jax, find_statements, plan_for

F32, BF16 = np.dtype(np.float32), np.dtype(jnp.bfloat16)
TOLERANCE = {F32: 1e-6, BF16: 2e-2}
H100 = preset("h100")


def normal(*shape: int, dtype: np.dtype = F32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def rotate_halves(x: jax.Array) -> jax.Array:
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([-second, first], -1)


def rope(x: jax.Array, cosine: jax.Array, sine: jax.Array) -> jax.Array:
    return x * cosine + rotate_halves(x) * sine


def rope_of_pairs(x: jax.Array, angle: jax.Array) -> jax.Array:
    """The halves computed apart, then joined."""
    first, second = jnp.split(x, 2, -1)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)


def join(*parts: jax.Array) -> jax.Array:
    return jnp.concatenate(parts, -1)


def join_nested(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    return jnp.concatenate([jnp.exp(jnp.concatenate([a, b], -1)), c * 2], -1) + 1


def join_rows(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.concatenate([a, jnp.tanh(b)], 0) * 3


def join_images(a: jax.Array, b: jax.Array) -> jax.Array:
    """Along an axis in the middle, whose rows and columns one thread walks over as one."""
    return jnp.concatenate([a, -b], 1)


def pad(x: jax.Array, low: int, high: int, between: int = 0) -> jax.Array:
    zero = jnp.zeros((), x.dtype)
    return jax.lax.pad(x, zero, [(0, 0, 0)] * (x.ndim - 1) + [(low, high, between)]) * 2


def padded_joint(a: jax.Array, b: jax.Array) -> jax.Array:
    return pad(join(a, jnp.tanh(b)), 8, 16)


def update_rows(x: jax.Array, update: jax.Array, start: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice(x, jnp.tanh(update), (start, 0)) * 2


def update_columns(x: jax.Array, update: jax.Array, start: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice(x, jnp.tanh(update), (0, start)) * 2


def update_at(x: jax.Array, update: jax.Array, *, column: int) -> jax.Array:
    return jax.lax.dynamic_update_slice(x, jnp.tanh(update), (1, column)) * 2


def softmax_of_joint(a: jax.Array, b: jax.Array) -> jax.Array:
    """Reads its elements twice: those of a choice are kept between."""
    return jax.nn.softmax(join(a, b).astype(jnp.float32), -1).astype(a.dtype)


def sums_of_joint(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    x = join(a, jnp.square(b))
    return x.sum(-1), x.max(-1)


def joint_twice(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What is loaded in a branch is not there for others, and what stands before it is there for both."""
    x = join(a, b)
    return x * 2, jnp.concatenate([b, a], -1) - x


def shifted_beside(x: jax.Array, row: jax.Array, other: jax.Array) -> jax.Array:
    """A choice in a branch of another one needs what the lanes around it have already: elements of the row."""
    scaled = jnp.abs(x) * row
    return join(scaled + jnp.pad(scaled, ((0, 1), (0, 0)))[1:], other)


def shifted_twice(x: jax.Array, row: jax.Array) -> jax.Array:
    """The same three choices deep."""
    scaled = jnp.abs(x) * row
    once = jnp.concatenate([scaled[:2], scaled[2:] + row], 0)
    shifted = scaled + jnp.pad(once, ((1, 0), (0, 0)))[:-1]
    return jnp.concatenate([pad(shifted, 8, 8), pad(x, 0, 16)], 0)


def take_of_padded(x: jax.Array, numbers: jax.Array) -> jax.Array:
    """Each lane has a row of its own to look for, and all lanes are beside the padding or none."""
    rows = (4 * numbers).astype(np.int32)
    return jnp.take_along_axis(pad(x, 8, 16), rows, 0, mode="clip")


def take_of_joint(a: jax.Array, b: jax.Array, numbers: jax.Array) -> jax.Array:
    rows = (4 * numbers).astype(np.int32)
    return jnp.take_along_axis(join(a, pad(b, -8, 16)), rows, 0, mode="clip") * 2


@dataclasses.dataclass(frozen=True)
class Case:
    """vectors: all choices are made for a vector at once; else all are made by each lane.  shared: the branches read
    the same arrays, so that they only choose where."""

    fn: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    vectors: bool = True
    integers: tuple[int, ...] = ()
    shared: bool = False

    def arguments(self, dtype: np.dtype) -> tuple[np.ndarray, ...]:
        made = tuple(normal(*s, dtype=dtype, seed=i) for i, s in enumerate(self.shapes))
        return (*made, *(np.array(n, np.int32) for n in self.integers))


CASES = {
    "rotary halves": Case(rope, ((6, 10, 64), (10, 64), (10, 64)), shared=True),
    "rotary halves of heads": Case(rope, ((2, 10, 3, 128), (10, 1, 128), (10, 1, 128)), shared=True),
    "rotary pairs": Case(rope_of_pairs, ((40, 64), (40, 32)), shared=True),
    "halves of 20": Case(rope, ((30, 20), (30, 20), (30, 20)), vectors=False),
    "three of different widths": Case(join, ((50, 16), (50, 64), (50, 48))),
    "unaligned": Case(join, ((50, 15), (50, 49)), vectors=False),
    "aligned to half a vector": Case(join, ((50, 18), (50, 46)), vectors=False),
    "nested": Case(join_nested, ((33, 16), (33, 24), (33, 40))),
    "nested, unaligned outside": Case(join_nested, ((33, 16), (33, 21), (33, 43)), vectors=False),
    "rows": Case(join_rows, ((7, 64), (12, 64))),
    "images": Case(join_images, ((4, 6, 32), (4, 3, 32))),
    "pad": Case(lambda x: pad(x, 16, 8), ((20, 40),)),
    "pad with less": Case(lambda x: pad(x, -8, 24), ((20, 48),)),
    "unaligned pad": Case(lambda x: pad(x, 3, 5), ((20, 40),), vectors=False),
    "pad between": Case(lambda x: pad(x, 0, 1, 1), ((20, 32),), vectors=False),
    "pad of a concatenation": Case(padded_joint, ((20, 16), (20, 24))),
    "update of rows": Case(update_rows, ((20, 64), (4, 64)), integers=(7,)),
    "update of rows, clamped": Case(update_rows, ((20, 64), (4, 64)), integers=(100,)),
    "update of columns": Case(update_columns, ((20, 64), (20, 16)), False, (8,)),
    "update of columns, clamped": Case(update_columns, ((20, 64), (20, 16)), False, (-5,)),
    "update of a known place": Case(lambda x, u: update_at(x, u, column=17), ((20, 64), (9, 32)), False),
    "softmax": Case(softmax_of_joint, ((30, 256), (30, 64))),
    "softmax of long rows": Case(softmax_of_joint, ((5, 9000), (5, 4000))),
    "sums": Case(sums_of_joint, ((30, 256), (30, 64))),
    "unaligned sums": Case(sums_of_joint, ((30, 250), (30, 70)), vectors=False),
    "twice": Case(joint_twice, ((30, 64), (30, 64))),
    "a choice in a branch": Case(shifted_beside, ((20, 64), (64,), (20, 32))),
    "choices in branches of branches": Case(shifted_twice, ((20, 48), (48,))),
    "rows of padded columns": Case(take_of_padded, ((9, 40), (7, 64)), vectors=False),
    "rows of joint columns": Case(take_of_joint, ((9, 40), (9, 16), (7, 64)), vectors=False),
}  # fmt: skip


def plan_case(name: str, dtype: np.dtype) -> tuple[Planned, tuple[np.ndarray, ...]]:
    arguments = CASES[name].arguments(dtype)
    return plan_for(H100, CASES[name].fn, *arguments), arguments


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_choices_take_what_jax_takes(name: str, dtype: np.dtype) -> None:
    found, arguments = plan_case(name, dtype)
    got = found.run(*arguments, check=dtype == F32)
    assert_close(got, by_jax(CASES[name].fn, *arguments), TOLERANCE)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_aligned_choices_load_vectors(name: str, dtype: np.dtype) -> None:
    found, _ = plan_case(name, dtype)
    body = found.plan.kernel.body
    switches, choices = find_statements(body, k.Switch), find_statements(body, k.Choose)
    if not CASES[name].vectors:
        assert choices and not switches
        return
    assert switches and not choices
    vector = found.plan.arrangement.loops[0].mapping.vector
    if CASES[name].shared:  # each choice loads from the same arrays: before it, from where it says
        assert find_statements(body, k.ChooseIndex)
        assert not find_statements(switches, k.LoadVector)
        loads = find_statements(body, k.LoadVector)
    else:
        assert not find_statements(body, k.ChooseIndex)
        loads = find_statements(switches, k.LoadVector)
    assert vector > 1 and {s.width for s in loads} == {vector}
    assert not find_statements(switches, k.Load)
    arrays = {s.array for s in find_statements(body, k.LoadVector)}
    assert not arrays & {s.array for s in find_statements(body, k.Load)}


@pytest.mark.parametrize("columns", [15, 12, 16])
@pytest.mark.parametrize("rows", [64, 33])
def test_the_first_columns_of_an_array_are_no_array(rows: int, columns: int) -> None:
    """Their index is that of the result, but a vector must not go on from one row to the next."""

    def first(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x[:rows, :columns] * 2, pad(x[:rows], 0, columns - 16)

    x = normal(64, 16, dtype=F32, seed=1)
    assert_close(plan_for(H100, first, x).run(x, check=True), by_jax(first, x))


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.data())
def test_any_parts_at_any_boundaries(data: st.DataObject) -> None:
    """Trees of concatenations, pads and slices, element-wise ops between them."""
    rows = data.draw(st.integers(1, 9), "rows")
    dtype = data.draw(st.sampled_from((F32, BF16)), "dtype")
    unit = data.draw(st.sampled_from((1, 2, 4, 8)), "unit")
    arguments: list[np.ndarray] = []

    def part(depth: int) -> Callable[[tuple[jax.Array, ...]], jax.Array]:
        """A function of the arguments."""
        kind = data.draw(st.sampled_from(("leaf", "join", "pad", "slice")[: 4 if depth else 1]))
        if kind == "leaf":
            number, width = len(arguments), unit * data.draw(st.integers(1, 6))
            arguments.append(normal(rows, width, dtype=dtype, seed=number))
            return lambda xs: jnp.tanh(xs[number])
        if kind == "join":
            parts = [part(depth - 1) for _ in range(data.draw(st.integers(2, 3)))]
            return lambda xs: jnp.concatenate([p(xs) for p in parts], -1)
        inner = part(depth - 1)
        low, high = (unit * data.draw(st.integers(0, 2)) for _ in range(2))
        if kind == "pad":
            return lambda xs: pad(inner(xs), low, high)
        return lambda xs: inner(xs)[:, min(low, inner(xs).shape[1] - 1) :] - 1

    made = part(3)

    def fn(*xs: jax.Array) -> tuple[jax.Array, jax.Array]:
        result = made(xs)
        return result * 2, result.astype(jnp.float32).sum(-1)

    found = plan_for(H100, fn, *arguments)
    wanted = by_jax(fn, *arguments)
    # XLA may leave out the rounding of what it sums.
    assert_close(found.run(*arguments), wanted, {F32: 1e-5 if dtype == F32 else 2e-2, BF16: 2e-2})


def test_a_device_compiles_choices() -> None:
    for name in ("rotary halves", "nested", "softmax", "twice", "unaligned"):
        (kernel,) = plan_case(name, BF16)[0].program.kernels
        (built,) = compile_cuda(kernel.source, "sm_90").kernels.values()
        assert not built.spill_store_bytes
