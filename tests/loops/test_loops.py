"""Loops as one kernel: what a while does, how it is cut, and that the emulated kernel computes what XLA does."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import astitch
from astitch.compile import compile_graph, main
from astitch.device.gpu import preset
from astitch.directives import read_directives
from astitch.errors import KernelCompileError, UnsupportedOp
from astitch.graph.check import check_graph
from astitch.graph.ir import DotAttrs, Graph, Node
from astitch.graph.reference import run_graph as run_reference
from astitch.hlo_import import import_hlo
from astitch.kernel.kernel_ir import FIRST_TAGGED_WORD
from astitch.loops import plan as planning
from astitch.loops.analysis import (
    Affine,
    Carried,
    Counter,
    Invariant,
    Loop,
    Stack,
    analyse_loop,
)
from astitch.loops.axes import find_live
from astitch.loops.cuts import Cut, try_cut
from astitch.loops.emit import LoopKernel, emit_loop
from astitch.loops.hoist import hoist, hoist_loops
from astitch.loops.merge import merge_loops
from astitch.loops.plan import (
    LoopPlan,
    LoopPlanner,
    LoopRefusal,
    hoist_planned,
    leave_starts,
)
from astitch.loops.row_dimensions import NotSpelled
from astitch.loops.spell_out import find_rows, spell_out
from astitch.pipeline import Target
from astitch.program.steps import FallbackStep, KernelStep, Step, View
from astitch.rewrite.simplify import simplify
from astitch.run.emulate import Order
from astitch.scope.structure import structure_of
from astitch.toolchain.driver_assembly import Unit
from astitch.toolchain.kernel_cache import compile_cached
from astitch.toolchain.kernel_text import share_text
from astitch.toolchain.nvrtc import CompiledKernel, Request, read_headers
from astitch.xla import compile_module
from astitch.xla import prepare_kernels as preparing
from astitch.xla.compile_module import compile_for_xla
from astitch.xla.prepare_kernels import (
    Code,
    LoopCall,
    XlaKernel,
    emit_loop_for_xla,
    prepare_kernels,
    prepare_loops,
)
from astitch.xla.stitch_loops import find_loops
from astitch.xla.write_module import export_program
from tests.emulated_xla import (
    _as_if_there_was_a_gpu,  # noqa: F401
    as_text,
    is_kernel,
    lower_for_cuda,
    parse_config,
    run_graph,
)
from tests.hlo_runner import lower
from tests.loop_runner import assert_as_xla, evaluate, launch, loops_of, plan, read
from tests.small_gpu import few_sms

RNG = np.random.default_rng(0)
H100 = preset("h100")


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# ---- loops -----------------------------------------------------------------------------------------------------------


def lstm(w: Any, z: Any, h: Any, c: Any, *, reverse: bool = False) -> Any:
    def turn(state: Any, z: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(z + h @ w, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    return lax.scan(turn, (h, c), z, reverse=reverse)


def lstm_arguments(width: int, batch: int = 6, turns: int = 5, dtype: Any = np.float32) -> Any:
    shapes = (width, 4 * width), (turns, batch, 4 * width), (batch, width), (batch, width)
    w, *others = (normal(*shape).astype(dtype) for shape in shapes)
    return (w / np.asarray(2 * width**0.5, dtype), *others)


def attention_gru(gates: Any, candidate: Any, x: Any, within: Any, scores: Any, h: Any) -> Any:
    """Two products that wait for each other, columns side by side, values of whole rows."""

    def turn(h: Any, inputs: Any) -> Any:
        x, kept, score = inputs
        both = jnp.concatenate([x, h], -1)
        reset, update = jnp.split(jax.nn.sigmoid(both @ gates + 1.0), 2, -1)
        new = jnp.tanh(jnp.concatenate([x, reset * h], -1) @ candidate)
        update = score[:, None] * update
        h = jnp.where(kept[:, None] > 0, (1.0 - update) * h + update * new, h)
        return h, h

    return lax.scan(turn, h, (x, within, scores))[1]


def gru_arguments(width: int, batch: int = 6, turns: int = 5) -> Any:
    gates, candidate = normal(2 * width, 2 * width) / 4, normal(2 * width, width) / 4
    rows = normal(turns, batch), abs(normal(turns, batch))
    return gates, candidate, normal(turns, batch, width), *rows, normal(batch, width)


def transposed(w: Any, x: Any, h: Any, gain: Any) -> Any:
    """A matrix read by its rows, a bias, an integer of the turn, a mask that is kept."""

    def turn(state: Any, x: Any) -> Any:
        t, h = state
        h = jnp.tanh(lax.dot_general(h, w, (((1,), (1,)), ((), ()))) + x * gain)
        late = h > t.astype(jnp.float32) / 8
        h = jnp.where(late, h, -h)
        return (t + 1, h), late

    return lax.scan(turn, (jnp.int32(0), h), x)


def transposed_arguments() -> Any:
    return normal(16, 16) / 4, normal(6, 4, 16), normal(4, 16), normal(16)


def speller(weights: Any, keys: Any, memory: Any, x: Any, h: Any, context: Any) -> Any:
    """Attention in each turn: products by a matrix of each row, a softmax over few places."""
    inner, outer, query = weights

    def turn(state: Any, x: Any) -> Any:
        h, context = state
        h = jnp.tanh(x + h @ inner + context @ outer)
        energies = jnp.einsum("ba,bta->bt", h @ query, keys)
        context = jnp.einsum("bt,btw->bw", jax.nn.softmax(energies, -1), memory)
        return (h, context), jnp.concatenate([h, context], -1)

    return lax.scan(turn, (h, context), x)[1]


def speller_arguments(width: int = 16, places: int = 5, batch: int = 3, turns: int = 4) -> Any:
    weights = tuple(normal(width, width) / 4 for _ in range(3))
    known = normal(batch, places, width), normal(batch, places, width)
    return weights, *known, normal(turns, batch, width), *(normal(batch, width) for _ in range(2))


def align(emitted: Any, start: Any, skips: Any) -> Any:
    """The sums of CTC over a word's states: columns move by one and two, and there is no product."""

    def shift(x: Any, count: int) -> Any:
        return jnp.pad(x, ((0, 0), (count, 0)), constant_values=-9.0)[:, :-count]

    def turn(alpha: Any, emission: Any) -> Any:
        moved = jnp.logaddexp(alpha, shift(alpha, 1))
        skipped = jnp.where(skips, shift(alpha, 2), -9.0)
        return jnp.logaddexp(moved, skipped) + emission, moved

    return lax.scan(turn, start, emitted)


def align_arguments(states: int = 11, batch: int = 3, turns: int = 6) -> Any:
    return normal(turns, batch, states), normal(batch, states), normal(batch, states) > 0


def vector(w: Any, xs: Any, h: Any) -> Any:
    """A state without a batch, behind its matrix."""

    def turn(h: Any, x: Any) -> Any:
        h = jnp.tanh(w @ h + x)
        return h, h * 2

    return lax.scan(turn, h, xs)


def upright(w: Any, xs: Any, h: Any) -> Any:
    """Rows in columns: [width, batch]."""

    def turn(h: Any, x: Any) -> Any:
        h = jnp.tanh(w @ h) * x
        return h, h.T

    return lax.scan(turn, h, xs)


def unread(w: Any, xs: Any, h: Any, states: Any) -> Any:
    """States that no turn reads, as an LSTM's last output is that is returned beside its state."""

    def turn(state: Any, x: Any) -> Any:
        h, _ = state
        new = jnp.tanh(h @ w + x)
        return (new, (new[None], h, new.T, (x * 2)[:, None], new > 0)), None

    return lax.scan(turn, (h, states), xs)[0]


def unread_arguments(width: int = 8, batch: int = 6) -> Any:
    shapes = (1, batch, width), (batch, width), (width, batch), (batch, 1, width)
    states = (*(normal(*shape) for shape in shapes), normal(batch, width) > 0)
    return normal(width, width) / 3, normal(5, batch, width), normal(batch, width), states


def decay(x: Any, kept: Any, c: Any) -> Any:
    """What advantages and discounted returns are: nothing is multiplied by a matrix, no element meets another."""

    def turn(c: Any, inputs: Any) -> Any:
        x, kept = inputs
        c = x + 0.9 * kept * c
        return c, c

    return lax.scan(turn, c, (x, kept), reverse=True)


def decay_arguments(*shape: int, turns: int = 5) -> Any:
    return normal(turns, *shape), normal(turns, *shape), normal(*shape)


def weighted(rate: Any, bonus: Any, k: Any, v: Any) -> Any:
    """A running softmax, as of RWKV: three states, rates of each channel, all from constants."""

    def turn(state: Any, inputs: Any) -> Any:
        total, weight, most = state
        k, v = inputs
        top = jnp.maximum(most, bonus + k)
        old, new = jnp.exp(most - top), jnp.exp(bonus + k - top)
        y = (old * total + new * v) / (old * weight + new)
        top = jnp.maximum(most - rate, k)
        old, new = jnp.exp(most - rate - top), jnp.exp(k - top)
        return (old * total + new * v, old * weight + new, top), y

    zeros = jnp.zeros(k.shape[1:])
    return lax.scan(turn, (zeros, zeros, zeros - 9.0), (k, v))[1]


def weighted_arguments(width: int = 40) -> Any:
    return abs(normal(width)), normal(width), normal(5, 3, width), normal(5, 3, width)


def neurons(current: Any) -> Any:
    """Truths and integers among the states."""

    def turn(state: Any, current: Any) -> Any:
        level, rest = state
        level = level * 0.9 + current
        fires = level > 1
        rest = jnp.where(fires, 3, jnp.maximum(rest - 1, 0))
        return (jnp.where(fires | (rest > 0), 0.0, level), rest), fires

    start = jnp.zeros(current.shape[1:]), jnp.zeros(current.shape[1:], jnp.int32)
    return lax.scan(turn, start, current)


def gated(x: Any, gates: Any, c: Any) -> Any:
    """A gate for each head; columns in two parts, side by side."""

    def turn(c: Any, inputs: Any) -> Any:
        x, gate = inputs
        kept, new = jnp.split(x, 2, -1)
        c = c * gate[..., None] * jax.nn.sigmoid(kept) + new
        return c, jnp.concatenate([c, -c], -1)

    return lax.scan(turn, c, (x, gates))


def summed(x: Any, c: Any) -> Any:
    """Sums over all elements and over rows, of which the turns add up two."""

    def turn(state: Any, x: Any) -> Any:
        c, total, columns = state
        c = jnp.sin(c) + x
        return (c, total + (c * c).sum(), columns + c.sum(0) + (c * x).sum(0)), None

    return lax.scan(turn, (c, jnp.float32(1), jnp.ones(x.shape[-1])), x)[0]


def rotating(x: Any, c: Any) -> Any:
    """Columns one by one."""

    def turn(c: Any, x: Any) -> Any:
        one, other = c[:, :1], c[:, 1:]
        c = jnp.concatenate([jnp.sin(one) + other, 0.5 * one], 1) + x
        return c, c

    return lax.scan(turn, c, x)


def led(w: Any, x: Any, h: Any) -> Any:
    """One column of a product that all others read."""

    def turn(h: Any, x: Any) -> Any:
        h = jnp.tanh(h @ w + x)
        return h + h[:, 3:4], h[:, 2]

    return lax.scan(turn, h, x)


def normed(x: Any, alpha: Any) -> Any:
    """One of columns that a turn adds up, which no lane of a warp has for the others."""

    def turn(alpha: Any, x: Any) -> Any:
        alpha = x + alpha / alpha.max(1, keepdims=True) + alpha[:, 2:3]
        return alpha, alpha

    return lax.scan(turn, alpha, x)


def parted(x: Any, alpha: Any) -> Any:
    """The first of columns goes its own way, the others move by one."""

    def turn(alpha: Any, x: Any) -> Any:
        alpha = alpha * x
        first, others = jnp.split(alpha, [1], 1)
        alpha = jnp.pad(first, ((0, 0), (0, 11))) + jnp.pad(others * 2, ((0, 0), (0, 1)))
        return alpha, alpha

    return lax.scan(turn, alpha, x)


def unread_elements(x: Any, h: Any) -> Any:
    """States of other shapes that no turn reads."""

    def turn(state: Any, x: Any) -> Any:
        h = state[0]
        return (jnp.sin(x) + h, h[None], h * 2 > 0), None

    return lax.scan(turn, (h, h[None], h > 0), x)[0]


def kalman(y: Any, f: Any, q: Any) -> Any:
    """Matrices of each row that meet in products, an identity, an inverse of two by two numbers."""
    h = jnp.eye(2, 3)

    def turn(state: Any, y: Any) -> Any:
        m, p = state
        m, p = m @ f.T, jnp.einsum("ij,bjk,lk->bil", f, p, f) + q * jnp.eye(3)
        (a, b), (c, d) = jnp.moveaxis(h @ p @ h.T + 2 * jnp.eye(2), 0, 2)
        inverse = jnp.moveaxis(jnp.array([[d, -b], [-c, a]]) / (a * d - b * c), 2, 0)
        gain = p @ h.T @ inverse
        m = m + jnp.einsum("bij,bj->bi", gain, y - m @ h.T)
        p = p - gain @ h @ p
        return (m, p), (m, p, jnp.trace(p, axis1=1, axis2=2))

    rows = y.shape[1]
    return lax.scan(turn, (jnp.ones((rows, 3)), jnp.tile(jnp.eye(3), (rows, 1, 1))), y)


def rotated(x: Any, p: Any) -> Any:
    """Matrices without a batch, or before it; columns the other way around and moved by one."""

    def turn(p: Any, x: Any) -> Any:
        p = jnp.einsum("ij...,kj...->ik...", p, p) / 4 + x
        p = jnp.roll(p, 1, 0)[::-1] - jnp.pad(p[1:], ((1, 0), *((0, 0),) * (p.ndim - 1)))
        return p, p.sum(0)

    return lax.scan(turn, p, x)


def two_by_two(x: Any, p: Any) -> Any:
    """Two dimensions of rows; what has none is the same for all."""

    def turn(state: Any, x: Any) -> Any:
        p, shared = state
        shared = jnp.tanh(shared @ shared.T) + 0.1
        p = jnp.sin(p @ p) + x[..., None, None] * shared
        return (p, shared), (p[..., 0, 1], shared)

    return lax.scan(turn, (p, jnp.eye(2)), x)


def sampler(x: Any) -> Any:
    """Numbers of a row's own, drawn from its place; the best of a few coordinates."""

    def turn(i: Any, state: Any) -> Any:
        x, taken = state
        rows, columns = x.shape
        bits = jnp.arange(rows * columns, dtype=jnp.uint32).reshape(rows, columns)
        bits = (bits + i.astype(jnp.uint32)) * jnp.uint32(2654435761)
        drawn = ((bits ^ (bits >> 15)) >> 8).astype(jnp.float32) / 2**24
        best = jnp.argmax(drawn - x, 1)
        moved = jnp.where(jnp.arange(columns) == best[:, None], drawn, x)
        better = (moved**2).sum(1) < 1 + (x**2).sum(1)
        return jnp.where(better[:, None], moved, x), taken + better

    return lax.fori_loop(0, 7, turn, (x, jnp.zeros(x.shape[0], jnp.int32)))


def placed(x: Any, p: Any) -> Any:
    """Tables of a few numbers, and places of a state that a turn writes by number."""
    table = np.array([0.5, -1.0, 2.0, 0.25], np.float32)

    def turn(p: Any, x: Any) -> Any:
        p = p.at[:, 1].set(p[:, 0] * table[2] + x)
        p = jnp.cumsum(p.at[:, 2:].multiply(0.5), 1, dtype=p.dtype)
        return jnp.sin(p + table), p @ table

    return lax.scan(turn, p, x)


def chosen(x: Any, q: Any) -> Any:
    """Places that a row computes, or that are the turn's: beyond the ends too."""
    table = jnp.array([[0.5, -1.0, 2.0], [0.25, 1.5, -0.5]], jnp.float32)

    def turn(i: Any, state: Any) -> Any:
        q, last, seen = state
        best = jnp.argmax(q, 1)
        value = jnp.take_along_axis(q, best[:, None], 1)[:, 0]
        last = (last + best) % 3
        q = q.at[:, i % 5].multiply(0.5) + jnp.sin(q) * table[i % 2][last][:, None]
        q = jax.vmap(lambda q, best: q.at[best].add(-0.3, mode="drop"))(q, best + last)
        q = lax.dynamic_update_slice_in_dim(q, 0.1 * q[:, :2], i - 1, 1)
        return q + x * lax.dynamic_slice_in_dim(q, i, 1, 1), last, seen + value

    zeros = jnp.zeros(q.shape[0], jnp.int32), jnp.zeros(q.shape[0])
    return lax.fori_loop(0, 6, turn, (q, *zeros))


def remembered(x: Any, q: Any) -> Any:
    """The last few values, each in the place of the oldest."""

    def turn(state: Any, x: Any) -> Any:
        i, q = state
        q = lax.dynamic_update_slice_in_dim(q, (x + q.mean(1))[:, None], i % 3, 1)
        return (i + 1, q), None

    return lax.scan(turn, (0, q), x)[0]


def transduced(x: Any, alpha: Any) -> Any:
    """A loop over columns in a loop over turns, as of RNN-T's sums."""

    def turn(alpha: Any, x: Any) -> Any:
        def cell(c: Any, inputs: Any) -> Any:
            c = jnp.logaddexp(inputs[0], c + inputs[1])
            return c, c

        start = jnp.full(x.shape[:1], -9.0)
        alpha = lax.scan(cell, start, ((alpha + x).T, alpha.T))[1].T
        return alpha, alpha

    return lax.scan(turn, alpha, x)


def integrated(u: Any, q: Any) -> Any:
    """Short steps in each turn, of a few numbers, or of one."""

    def turn(state: Any, u: Any) -> Any:
        coupled = jnp.array([[1.0, 0.5], [0.2, 1.0]])

        def step(i: Any, state: Any) -> Any:
            q, v = state
            return q + 0.1 * v, v + 0.1 * (u[:, None] - jnp.sin(q) @ coupled) * i

        root = lax.fori_loop(0, 4, lambda _, y: y - (y * y - abs(u)) / (2 * y + 1), u)
        state = lax.fori_loop(0, 5, step, state)
        return state, (state[0].max(1), root)

    return lax.scan(turn, (q, jnp.zeros_like(q)), u)


def escape(c: Any, z: Any) -> Any:
    """Mandelbrot's iteration, with a count of each number."""

    def turn(state: Any, _: Any) -> Any:
        z, count = state
        inside = abs(z) < 2
        return (jnp.where(inside, z * z + c, z), count + inside.astype(count.dtype)), z.real

    return lax.scan(turn, (z, jnp.zeros(c.shape, jnp.int8)), None, length=7)


def escape_arguments(*shape: int, dtype: Any = np.complex64) -> Any:
    c = (normal(*shape) + 1j * normal(*shape)).astype(dtype)
    return c, np.zeros(shape, dtype)


def registers(x: Any) -> Any:
    """Linear-feedback shift registers."""
    tap = jnp.asarray(0b1011, x.dtype)
    return lax.fori_loop(0, 9, lambda i, x: (x >> 1) ^ jnp.where(x & 1, tap, 0), x)


def shares(x: Any) -> Any:
    """Sums of few columns, which threads tell each other if they are f32, and compute row by row if not."""
    return lax.fori_loop(0, 9, lambda i, x: jnp.sqrt(x / x.sum(1, keepdims=True)) + i, x)


LOOPS: dict[str, tuple[Callable[..., Any], Any]] = {
    "lstm": (lstm, lstm_arguments(16)),
    "reverse": (lambda *a: lstm(*a, reverse=True), lstm_arguments(12)),
    "bfloat16": (lstm, lstm_arguments(16, dtype=jnp.bfloat16)),
    "attention_gru": (attention_gru, gru_arguments(12)),
    "transposed": (transposed, transposed_arguments()),
    "speller": (speller, speller_arguments()),
    "align": (align, align_arguments()),
    "one_row": (lstm, lstm_arguments(8, batch=1)),
    "vector": (vector, (normal(8, 8) / 3, normal(5, 8), normal(8))),
    "upright": (upright, (normal(8, 8) / 3, normal(5, 8, 3), normal(8, 3))),
    "square": (lstm, lstm_arguments(8, batch=8, turns=8)),
    "unread": (unread, unread_arguments()),
    "decay": (decay, decay_arguments(300)),
    "decay_rows": (decay, decay_arguments(9, 70)),
    "decay_heads": (decay, decay_arguments(2, 3, 1, 7)),
    "decay_bfloat16": (decay, tuple(x.astype(jnp.bfloat16) for x in decay_arguments(40))),
    "decay_number": (decay, decay_arguments()),
    "decay_inside": (
        lambda x, kept, c: decay(x.swapaxes(0, 1), kept, c),
        (normal(4, 6, 3, 5), normal(6, 4, 3, 5), normal(4, 3, 5)),
    ),
    "weighted": (weighted, weighted_arguments()),
    "neurons": (neurons, (normal(6, 2, 33) + 1,)),
    "gated": (gated, (normal(6, 2, 3, 10), normal(6, 2, 3), normal(2, 3, 5))),
    "rotating": (rotating, (normal(5, 9, 2), normal(9, 2))),
    "led": (led, (normal(6, 6) / 3, normal(5, 9, 6), normal(9, 6))),
    "kalman": (kalman, (normal(5, 40, 2), normal(3, 3) / 3, normal(3, 3) ** 2)),
    "kalman_rows": (kalman, (normal(5, 3, 2), normal(3, 3) / 3, normal(3, 3) ** 2)),
    "kalman_bfloat16": (
        lambda *a: jax.tree.map(lambda x: x.astype(jnp.bfloat16), kalman(*a)),
        (normal(4, 20, 2), normal(3, 3) / 3, normal(3, 3) ** 2),
    ),
    "one_matrix": (rotated, (normal(6), normal(4, 4) / 2)),
    "matrices_before": (rotated, (normal(6, 40), normal(4, 4, 40) / 2)),
    "two_by_two": (two_by_two, (normal(5, 3, 20), normal(3, 20, 2, 2) / 2)),
    "sampler": (sampler, (normal(70, 5),)),
    "placed": (placed, (normal(5, 33), normal(33, 4))),
    "chosen": (chosen, (normal(40, 1), normal(40, 5))),
    "remembered": (remembered, (normal(7, 40), normal(40, 3))),
    "transduced": (transduced, (normal(6, 20, 5), normal(20, 5))),
    "integrated": (integrated, (abs(normal(5, 40)), normal(40, 2))),
    "normed": (normed, (normal(6, 3, 12), normal(3, 12) + 9)),
    "parted": (parted, (normal(6, 3, 12), normal(3, 12))),
    "unread_elements": (unread_elements, (normal(5, 2, 3, 5), normal(2, 3, 5))),
    "escape": (escape, escape_arguments(3, 70)),
    "escape_rows": (escape, escape_arguments(5)),
    "registers_u8": (registers, (np.arange(300).astype(np.uint8),)),
    "registers_s16": (registers, (np.arange(300).reshape(3, 100).astype(np.int16),)),
    "counted": (lambda x: lax.fori_loop(0, 9, lambda i, x: jnp.sin(x) * i, x), (normal(5, 7),)),
}


def assert_computes(name: str, cut: Sequence[int] | None = None, **how: Any) -> None:
    tolerance = 2e-2 if name.endswith("bfloat16") else 1e-5
    assert_as_xla(*LOOPS[name], cut, tolerance, **{"check": False, **how})


# ---- what a while does -----------------------------------------------------------------------------------------------


def test_the_roles_of_a_scan() -> None:
    graph = read(*LOOPS["reverse"])
    (node,) = loops_of(graph)
    loop = analyse_loop(graph, node)
    assert isinstance(loop, Loop)
    assert loop.trips == 5
    counter, h, c, stack, z, w = loop.roles
    assert counter == Counter(Affine(1, 0))
    assert isinstance(h, Carried) and isinstance(c, Carried)
    assert isinstance(stack, Stack) and stack.place.index == Affine(-1, 4)
    assert z == w == Invariant()
    assert [place.index for place in loop.slices.values()] == [Affine(-1, 4)]


@pytest.mark.parametrize(
    "stop, step, trips", [(7, 1, 7), (7, 2, 4), (0, 1, 0), (-3, 1, 0), (1, 5, 1)]
)
def test_trips_are_counted(stop: int, step: int, trips: int) -> None:
    def fn(x: jax.Array) -> jax.Array:
        return lax.while_loop(lambda s: s[0] < stop, lambda s: (s[0] + step, s[1] * 2), (0, x))[1]

    graph = import_hlo(lower(fn, np.float32(1)))
    (node,) = loops_of(graph)
    loop = analyse_loop(graph, node)
    assert isinstance(loop, Loop)
    assert loop.trips == trips


def tell(turn: Any, x: Any) -> Any:
    jax.debug.callback(lambda *_: None, turn)
    return x


def refuse(fn: Callable[..., Any], *arguments: Any) -> str:
    graph = read(fn, arguments)
    (node,) = loops_of(graph)
    refusal = LoopPlanner(H100).plan(graph, node)
    assert isinstance(refusal, LoopRefusal), refusal
    return str(refusal)


def test_what_is_no_kernel_says_why() -> None:
    w, x = normal(8, 8), normal(4, 8)
    until = lambda w, x: lax.while_loop(lambda x: x.sum() < 9, lambda x: x @ w + 1, x)  # noqa: E731
    assert refuse(until, w, x).endswith("how often it turns is not known")
    total = lambda x: lax.fori_loop(0, 9, lambda _, x: x * x.sum(), x)  # noqa: E731
    assert "adds up or shifts 300 columns" in refuse(total, normal(300))
    turned = lambda x: lax.fori_loop(0, 9, lambda _, x: x.T * 2, x)  # noqa: E731
    assert "holds both rows and columns" in refuse(turned, w)
    short = lambda w, x: lax.fori_loop(0, 3, lambda _, x: x @ w, x)  # noqa: E731
    assert refuse(short, w, x).endswith("it turns 3 times only\n    to reverse it: keep %while.6")
    square = lambda x: lax.fori_loop(0, 9, lambda _, x: x @ x, x)  # noqa: E731
    assert "no product of rows and a matrix that no turn changes" in refuse(square, normal(9, 9))
    sort = lambda w, x: lax.fori_loop(0, 9, lambda _, x: jnp.sort(x @ w), x)  # noqa: E731
    assert "is a sort" in refuse(sort, normal(20, 20), normal(4, 20))
    large = (
        jax.ShapeDtypeStruct((8192, 8192), np.float32),
        jax.ShapeDtypeStruct((4, 8192), np.float32),
    )
    many = lambda w, x: lax.fori_loop(0, 9, lambda _, x: jnp.tanh(x @ w), x)  # noqa: E731
    assert "do not fit" in refuse(many, *large)
    wide = lambda x, y: lax.fori_loop(0, 9, lambda _, x: jnp.roll(x, 1, 1) * y, x)  # noqa: E731
    assert "parts for each thread" in refuse(wide, normal(8, 4096), normal(8, 1))


def test_a_loop_is_kept_though_it_takes_more_time() -> None:
    def layers(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 4, lambda _, x: jnp.tanh(x @ w), x)

    graph = read(layers, (normal(8_000, 128), normal(128, 128)))
    (node,) = loops_of(graph)
    refusal = LoopPlanner(H100).plan(graph, node)
    assert isinstance(refusal, LoopRefusal) and "us projected, XLA's loop takes" in refusal.reason
    told = read_directives(str(refusal).split("to reverse it: ")[1])
    planner = LoopPlanner(H100, directives=told)
    found, _ = find_loops(compile_graph(graph, H100, Target(loops=planner)), planner)
    (kernel,) = found.values()
    assert isinstance(kernel.plan, LoopPlan) and not kernel.plan.is_faster
    assert told.list_outcomes()[0].endswith(": followed")


# ---- out of the loop -------------------------------------------------------------------------------------------------


def gradients(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Of the sum of the sines of all that a function gives, by all that it takes."""

    def loss(*arguments: Any) -> Any:
        return sum(jnp.sin(x).sum() for x in jax.tree.leaves(fn(*arguments)))

    return lambda *arguments: jax.grad(loss, argnums=tuple(range(len(arguments))))(*arguments)


def biased(w: Any, b: Any, x: Any, h: Any) -> Any:
    """The gradient of the bias is a sum over rows and turns."""

    def turn(h: Any, x: Any) -> Any:
        h = jnp.tanh(h @ w + b) * x
        return h, h

    return lax.scan(turn, h, x)[1]


def accumulated(x: Any) -> Any:
    """Nothing is left of either loop."""
    total = lax.scan(lambda s, x: (s + jnp.tanh(x).sum(0), None), jnp.zeros(8), x)[0]
    return lax.scan(lambda s, x: (s + x.T @ x, None), jnp.zeros((8, 8)), x * total)[0]


HOISTED: dict[str, tuple[Callable[..., Any], Any, int]] = {
    "attention_gru": (*LOOPS["attention_gru"], 2),
    "lstm": (gradients(lstm), lstm_arguments(16), 1),
    "reverse": (gradients(LOOPS["reverse"][0]), lstm_arguments(12), 1),
    "gru": (gradients(attention_gru), gru_arguments(12), 5),
    "speller": (
        lambda *a: gradients(lambda *b: speller(a[0], *b))(*a[1:]),
        speller_arguments(),
        2,
    ),
    "align": (
        lambda e, s, k: gradients(lambda e, s: align(e, s, k))(e, s),
        align_arguments(),
        0,
    ),
    "biased": (gradients(biased), (normal(8, 8) / 3, normal(8), normal(5, 3, 8), normal(3, 8)), 2),
    "accumulated": (accumulated, (normal(5, 3, 8),), 2),
    "weighted": (gradients(weighted), weighted_arguments(), 2),
    "decay_heads": (gradients(decay), decay_arguments(2, 3, 7), 0),
    "summed": (summed, (normal(6, 5, 12), normal(5, 12)), 2),
}
"""With the number of products and sums that leave the loops."""


@pytest.mark.parametrize("name", HOISTED)
def test_what_waits_for_no_turn_leaves_the_loop(name: str) -> None:
    fn, arguments, moved = HOISTED[name]
    graph = read(fn, arguments)
    made, count = graph, 0
    for node in loops_of(graph):
        if (found := hoist(made, made[node.name])) is not None:
            made, count = check_graph(found.graph), count + len(found.moved)
    assert count == moved
    flat = [np.asarray(x) for x in jax.tree.leaves(arguments)]
    for a, b in zip(run_reference(made, flat), run_reference(graph, flat), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def heads_of_cells(x: Any, weights: Any, recurrent: Any) -> Any:
    """A recurrent net whose state is multiplied head by head."""
    heads, width, _ = recurrent.shape

    def turn(state: Any, x: Any) -> Any:
        h = jnp.einsum("bhd,hde->bhe", state.reshape(-1, heads, width), recurrent)
        state = jnp.tanh(x + h.reshape(state.shape))
        return state, state

    gates = x @ weights
    return jnp.sum(lax.scan(turn, jnp.zeros_like(gates[0]), gates)[1] ** 2)


def test_sums_leave_loops_that_are_no_kernels() -> None:
    """The gradient of a recurrent matrix, of what the loops read and write anyway: no stack more."""
    fn = jax.grad(heads_of_cells, (1, 2))
    arguments = normal(6, 5, 10), normal(10, 12), normal(3, 4, 4)
    graph = read(fn, arguments)
    made = check_graph(hoist_loops(graph, lambda *_: False))
    before, after = loops_of(graph)[-1], loops_of(made)[-1]
    assert len(after.operands) <= len(before.operands)
    assert not any(
        isinstance(node.attrs, DotAttrs) and node.shape == (3, 4, 4) for node in after.regions[1]
    )
    stacks = [type_ for type_ in after.type.elements if type_.rank == 3 and type_.shape[0] == 6]
    assert len(stacks) <= len([t for t in before.type.elements if t.rank == 3 and t.shape[0] == 6])
    for a, b in zip(run_reference(made, arguments), run_reference(graph, arguments), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_sum_of_what_is_computed_stays_in_a_loop_that_is_no_kernel() -> None:
    """Outside, sin of all turns would be a new array."""

    def fn(x: Any) -> Any:
        def turn(state: Any, x: Any) -> Any:
            total, y = state
            return (total + jnp.sin(x).T @ x, jnp.tanh(y + x)), None

        return lax.scan(turn, (jnp.zeros((4, 4)), x[0]), x)[0]

    graph = read(fn, (normal(6, 5, 4),))
    (node,) = loops_of(hoist_loops(graph, lambda *_: False))
    assert any(isinstance(inner.attrs, DotAttrs) for inner in node.regions[1])


def test_no_large_stack_is_written_for_a_sum() -> None:
    def norms(x: Any) -> Any:
        return lax.scan(lambda x, _: (jnp.sin(x), (x * x).sum()), x, None, length=100)[1]

    def lengths_of(width: int) -> list[int]:
        graph = hoist_planned(
            read(norms, (jax.ShapeDtypeStruct((width,), np.float32),)), LoopPlanner(H100)
        )
        return [node.array.size for node in graph if node.op == "get-tuple-element"]

    assert lengths_of(1000) == [100_000]  # the squares' stack, and their sums behind the loop
    assert lengths_of(100_000) == [100]


def test_elements_that_never_meet_have_blocks_everywhere() -> None:
    shape = jax.ShapeDtypeStruct((512, 4096), np.float32)
    graph = read(decay, (shape, shape, jax.ShapeDtypeStruct((4096,), np.float32)))
    (node,) = loops_of(graph)
    made = plan(graph, node)
    assert made.grid * made.block >= 4096 and made.grid > H100.sms / 2
    assert made.us < made.xla_us / 4
    assert not emit_loop(made, "loop_0").kernel.barrier_words


def test_a_loop_from_which_nothing_leaves_stays() -> None:
    graph = read(*LOOPS["lstm"])
    assert hoist_loops(graph, lambda *_: True) is graph
    assert (
        hoist_loops(read(*HOISTED["gru"][:2]), lambda *_: False).key
        == read(*HOISTED["gru"][:2]).key
    )


# ---- kernels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOOPS)
def test_the_kernel_computes_what_the_loop_does(name: str) -> None:
    assert_computes(name, check=True)


@pytest.mark.parametrize(
    "fn, arguments",
    [
        (decay, tuple(x.astype(np.float64) for x in decay_arguments(9, 7))),
        (two_by_two, (normal(5, 3, 20).astype(float), normal(3, 20, 2, 2).astype(float))),
        (escape, escape_arguments(40, dtype=np.complex128)),
        (shares, (normal(9, 12).astype(float) ** 2,)),
        (shares, (normal(40, 20).astype(float) ** 2,)),
        (
            lambda x: lax.fori_loop(0, 5, lambda _, x: x / (x.conj() + 2), x),
            escape_arguments(33, dtype=np.complex128)[:1],
        ),
    ],
)
def test_wide_numbers(fn: Callable[..., Any], arguments: Any) -> None:
    with jax.enable_x64(True):
        assert_as_xla(fn, arguments, tolerance=1e-12, check=True)


def test_places_are_no_complex_numbers() -> None:
    (c, _) = escape_arguments(5, 40)

    def turn(_: Any, x: Any) -> Any:
        return x * 0.5 + lax.broadcasted_iota(np.complex64, x.shape, 1)

    assert "numbers places by complex numbers" in refuse(lambda x: lax.fori_loop(0, 9, turn, x), c)


@pytest.mark.parametrize("name", HOISTED)
def test_the_kernels_of_gradients(name: str) -> None:
    fn, arguments, _ = HOISTED[name]
    graph = simplify(hoist_loops(read(fn, arguments), lambda *_: True))
    values = evaluate(graph, arguments)
    for node in loops_of(graph):
        made = emit_loop(plan(graph, node), "loop_0")
        results = launch(made, [values[o][0] for o in node.operands], check=True)
        for state, result in zip(made.results, results, strict=True):
            np.testing.assert_allclose(result, values[node.name][state], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    "name, cut",
    [
        ("lstm", (4, 2, 1, 4)),  # members, rows, width, lanes
        ("lstm", (2, 4, 4, 8)),
        ("lstm", (16, 1, 1, 32)),
        ("reverse", (3, 4, 1, 4)),
        ("attention_gru", (4, 2, 1, 8)),
        ("transposed", (2, 2, 2, 2)),
        ("speller", (4, 2, 1, 8)),
        ("speller", (8, 4, 2, 32)),
        ("speller", (16, 1, 1, 4)),
    ],
)
def test_groups_of_blocks_tell_each_other_rows(name: str, cut: Sequence[int]) -> None:
    assert_computes(name, cut, launches=2)


@pytest.mark.parametrize("name", ["lstm", "attention_gru", "speller"])
@pytest.mark.parametrize("order", [Order.REVERSE, Order.RANDOM])
def test_one_group_has_no_races(name: str, order: Order) -> None:
    assert_computes(name, (4, 8, 1, 4), check=True, order=order)


@pytest.mark.parametrize("name", ["kalman", "two_by_two", "sampler", "placed", "transduced"])
@pytest.mark.parametrize("order", [Order.REVERSE, Order.RANDOM])
def test_rows_of_numbers_have_no_races(name: str, order: Order) -> None:
    assert_computes(name, check=True, order=order)


def test_the_first_small_column_may_be_padded() -> None:
    """As in the gradient of CTC: no other lane asks for it, so the columns stay lanes."""
    graph = read(*LOOPS["parted"])
    (node,) = loops_of(graph)
    assert plan(graph, node).shares[0].axes.small == 12


def test_rows_are_the_lanes_of_warps() -> None:
    """Each lane has a row, and all its numbers."""
    graph = read(kalman, (normal(5, 4000, 2), normal(3, 3), normal(3, 3)))
    (node,) = loops_of(graph)
    found = plan(graph, node)
    assert found.grid * found.block == 4000
    assert not any(share.axes.products for share in found.shares)


@pytest.mark.parametrize(
    "columns, turn, reason",
    [
        (300, lambda i, x: jnp.sin(x[:, ::-1]), "has 300 numbers that meet"),
        (20, lambda i, x: jnp.sort(x), "sorts 20 numbers"),
        (64, lambda i, x: jnp.sin(x[:, ::-1] @ jnp.outer(x[0], x[0])), "numbers that meet"),
    ],
)
def test_what_is_not_spelled_out_says_why(
    columns: int, turn: Callable[..., Any], reason: str
) -> None:
    graph = read(lambda x: lax.fori_loop(0, 9, turn, x), (normal(100, columns),))
    (node,) = loops_of(graph)
    loop = analyse_loop(graph, node)
    assert isinstance(loop, Loop)
    with pytest.raises(NotSpelled, match=reason):
        live = find_live(loop, range(len(loop.roles)))
        spell_out(loop, live, find_rows(loop, live, 17))


def test_matrices_beyond_the_registers_are_in_shared_memory() -> None:
    fn, arguments = LOOPS["lstm"]
    graph = read(fn, arguments)
    (node,) = loops_of(graph)
    values = evaluate(graph, arguments)
    whole = plan(graph, node, (2, 2, 1, 2))
    (share,) = whole.shares
    part = dataclasses.replace(whole, shares=(dataclasses.replace(share, held=(1,)),))
    assert share.held == (2,)
    operands = [values[o][0] for o in node.operands]
    found = [launch(emit_loop(p, "loop_0"), operands, check=False) for p in (whole, part)]
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_loop_that_starts_with_zeros_reads_none() -> None:
    def from_zero(w: Any, z: Any) -> Any:
        zeros = jnp.zeros((6, 16))
        return lstm(w, z, zeros, zeros)[1]

    w, z, _, _ = lstm_arguments(16)
    graph = import_hlo(lower(from_zero, w, z))
    compilation = compile_graph(graph, few_sms(8), Target(loops=LoopPlanner(few_sms(8))))
    found, _ = find_loops(compilation)
    (made,) = found.values()
    assert [made.plan.loop.types[i].shape for i in made.operands] == [(5, 6, 64), (16, 64)]
    written = [view.type.shape for step in compilation.program.steps for view in writes_of(step)]
    assert (5, 6, 16) not in written[:-1]
    calls = {key: LoopCall(made, as_call(made)) for key, made in found.items()}
    module = import_hlo(export_program(compilation, as_text(compilation), loops=calls))
    (got,) = run_graph(module, [w, z])
    np.testing.assert_allclose(got, jax.jit(from_zero)(w, z), rtol=2e-5, atol=2e-5)


def test_loops_that_follow_each_other_have_their_own_starts() -> None:
    """The second loop is in another part for XLA than the first, since a kernel stands between them."""

    def layers(w: Any, z: Any) -> Any:
        zeros = jnp.zeros((6, 16))
        first = lstm(w, z, zeros, zeros)[1]
        scaled = first / (1 + jnp.abs(first).sum(-1, keepdims=True))
        return lstm(w, jnp.concatenate([scaled] * 4, -1), zeros, zeros)[1]

    w, z, _, _ = lstm_arguments(16)
    compilation = compile_graph(
        import_hlo(lower(layers, w, z)), few_sms(8), Target(loops=LoopPlanner(few_sms(8)))
    )
    assert len([step for step in compilation.program.steps if isinstance(step, FallbackStep)]) == 2
    for found in (find_loops(compilation)[0], {}):
        calls = {key: LoopCall(made, as_call(made)) for key, made in found.items()}
        module = import_hlo(export_program(compilation, as_text(compilation), loops=calls))
        assert len(loops_of(module)) == (0 if calls else 2)
        (got,) = run_graph(module, [w, z])
        np.testing.assert_allclose(got, jax.jit(layers)(w, z), rtol=5e-5, atol=5e-5)


def writes_of(step: Step) -> list[View]:
    if isinstance(step, KernelStep):
        return [step.arguments[i] for i in sorted(step.written)]
    return list(step.results)


def test_equal_loops_are_one_kernel() -> None:
    def twice(w: Any, z: Any, h: Any, c: Any) -> Any:
        return lstm(w, z, h, c), lstm(w, z + 1, c, h), lstm(w, z, h, c, reverse=True)

    graph = import_hlo(lower(twice, *lstm_arguments(16)))
    found, notes = find_loops(compile_graph(graph, H100))
    assert [made.kernel.name for made in found.values()] == ["loop_0", "loop_1"]
    assert len(notes) == 3 and sum(note.endswith("the same loop as loop_0") for note in notes) == 1


def test_padded_rows_are_zero_before_anybody_writes_them() -> None:
    """Widths that fill no whole vectors of a group of lanes: the gradient's loop has no rows before its first turn."""
    fn, arguments, _ = HOISTED["reverse"]
    graph = simplify(hoist_loops(read(fn, arguments), lambda *_: True))
    values = evaluate(graph, arguments)
    node = loops_of(graph)[-1]
    for cut in ((1, 8, 1, 8), (2, 8, 1, 4), (6, 8, 1, 8)):
        made = emit_loop(plan(graph, node, cut), "loop_0")
        assert made.plan.shares[0].cut.stride > 12
        results = launch(made, [values[o][0] for o in node.operands], check=True)
        for state, result in zip(made.results, results, strict=True):
            np.testing.assert_allclose(result, values[node.name][state], rtol=2e-5, atol=2e-5)


# ---- two loops in one kernel -----------------------------------------------------------------------------------------


def both_ways(w: Any, z: Any, h: Any, c: Any) -> Any:
    """Two loops of which one runs down; of their final states only one is read."""
    (_, last), up = lstm(w, z, h, c)
    return jnp.concatenate([up, lstm(w, z, c, h, reverse=True)[1]], -1), last


def merge_both(fn: Callable[..., Any], arguments: Any) -> Graph | None:
    graph = read(fn, arguments)
    first, second = (node.name for node in loops_of(graph))
    return merge_loops(graph, first, second)


def test_two_loops_become_one() -> None:
    arguments = lstm_arguments(16)
    merged = merge_both(both_ways, arguments)
    assert merged is not None
    (node,) = loops_of(check_graph(merged))
    flat = [np.asarray(x) for x in arguments]
    got, want = run_reference(merged, flat), run_reference(read(both_ways, arguments), flat)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(plan(merged, node).shares) == 2


def test_loops_that_wait_or_turn_more_often_stay_two() -> None:
    def wait(w: Any, z: Any, h: Any, c: Any) -> Any:
        return lstm(w, z, *lstm(w, z, h, c)[0])

    def longer(w: Any, z: Any, h: Any, c: Any) -> Any:
        return lstm(w, z, h, c), lstm(w, jnp.concatenate([z, z]), c, h)

    assert merge_both(wait, lstm_arguments(16)) is None
    assert merge_both(longer, lstm_arguments(16)) is None


@pytest.mark.parametrize("cuts", [((2, 4, 1, 4), (2, 4, 1, 4)), ((4, 2, 1, 8), (1, 1, 1, 2))])
def test_shares_have_blocks_of_their_own(cuts: Sequence[Sequence[int]]) -> None:
    arguments = lstm_arguments(16)
    merged = merge_both(both_ways, arguments)
    assert merged is not None
    (node,) = loops_of(merged)
    whole = plan(merged, node)
    shares = []
    for share, (members, rows, width, lanes) in zip(whole.shares, cuts, strict=True):
        cut = Cut(members, rows, width, lanes, -(-6 // rows), 16, 1)
        found = try_cut(whole.loop, share.axes, share.steps, share.used, H100, cut)
        assert found is not None
        shares.append(found)
    values = evaluate(merged, arguments)
    made = emit_loop(dataclasses.replace(whole, shares=tuple(shares)), "loop_0")
    operands = [values[o][0] for o in node.operands]
    for state, result in zip(
        made.results, launch(made, operands, check=False, launches=2), strict=True
    ):
        np.testing.assert_allclose(result, values[node.name][state], rtol=1e-5, atol=1e-5)


# ---- in a program of XLA's -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["both_ways", "attention_gru", "gradients"])
def test_a_program_calls_the_kernels_of_its_loops(name: str) -> None:
    cases = {
        "both_ways": (both_ways, lstm_arguments(16)),
        "gradients": HOISTED["lstm"][:2],
        **LOOPS,
    }
    fn, arguments = cases[name]
    graph = import_hlo(lower(fn, *arguments, keep_unused=True))
    compilation = compile_graph(graph, few_sms(8), Target(loops=LoopPlanner(few_sms(8))))
    found, _ = find_loops(compilation)
    calls = {key: LoopCall(made, as_call(made)) for key, made in found.items()}
    module = import_hlo(export_program(compilation, as_text(compilation), loops=calls))
    assert not loops_of(module)
    assert len(calls) == (2 if name == "gradients" else 1)
    got = run_graph(module, jax.tree.leaves(arguments))
    for a, b in zip(got, jax.tree.leaves(jax.jit(fn)(*arguments)), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def as_call(made: LoopKernel) -> XlaKernel:
    """The kernel with CUDA text for the emulation where XLA would find its code."""
    k = made.kernel
    text = emit_loop_for_xla(made).encode()
    return XlaKernel(k.name, k.name, text, k.grid, k.block, k.shared_bytes, k.cooperative)


@pytest.mark.usefixtures("_as_if_there_was_a_gpu")
def test_jax_lowers_a_loop_as_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = lstm_arguments(16)
    stitched, text = lower_for_cuda(astitch.jit(lambda *a: lstm(*a)), *arguments)
    assert "stablehlo.while" not in text
    assert text.count('name = "loop_0"') == 1
    (note,) = stitched.compilation.loops
    assert stitched.compilation.program.outside == ()
    assert (
        note.startswith("loop_0 = %while")
        and f"\nloops:\n  {note}" in stitched.compilation.explain()
    )
    (undo,) = re.findall(r"to reverse it: (leave-loops .*)", stitched.compilation.explain())
    left, text = lower_for_cuda(astitch.jit(lambda *a: lstm(*a), stitch=undo), *arguments)
    assert "stablehlo.while" in text
    assert left.compilation.directives == (f"{undo}: followed",)
    left = astitch.jit(lambda *a: lstm(*a), stitch="leave-loops")
    stitched, text = lower_for_cuda(left, *arguments)
    assert "stablehlo.while" in text and not stitched.compilation.loops
    assert [op.op for op in stitched.compilation.program.outside] == ["while"]


def test_a_kernel_that_does_not_fit_leaves_its_loop_to_xla() -> None:
    compilation = compile_graph(read(*LOOPS["lstm"]), H100, Target(loops=LoopPlanner(H100)))
    found, _ = find_loops(compilation)
    calls, notes = prepare_loops(found, H100)
    assert len(calls) == 1 and notes == ()
    tight = dataclasses.replace(H100, registers_per_sm=1024)
    calls, (note,) = prepare_loops(found, tight)
    assert not calls and note.startswith("loop_0 is left to XLA: no block fits")
    module = import_hlo(export_program(compilation, as_text(compilation), loops=calls))
    assert len(loops_of(module)) == 1


def test_strict_counts_a_loop_that_is_a_kernel_as_one() -> None:
    graph = read(
        lambda w, z: lstm(w, z, jnp.zeros((6, 16)), jnp.ones((6, 16)))[1], lstm_arguments(16)[:2]
    )
    compile_graph(graph, H100, Target(loops=LoopPlanner(H100)), strict=True)
    with pytest.raises(UnsupportedOp, match="while"):
        compile_graph(graph, H100, strict=True)


def test_the_command_line_tells_of_loops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lstm.pb"
    file.write_bytes(lower(gradients(lstm), *lstm_arguments(16)))
    assert main([str(file), "--json"]) == 0
    loops = json.loads(capsys.readouterr().out)["loops"]
    assert len(loops) == 2 and all(" turns in one kernel of " in loop for loop in loops)
    assert main([str(file)]) == 0
    assert "\nloops, inside a program of XLA's:\n  %while" in capsys.readouterr().out


def test_loops_are_compiled_while_others_are_planned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))
    made: list[str] = []

    def compile_one(request: Request) -> CompiledKernel:
        made.append(share_text(request.source).form)
        return compile_cached(request)

    monkeypatch.setattr(preparing, "compile_cached", compile_one)
    compile_for_xla(read(both_ways, lstm_arguments(16)), H100)
    loops = [form for form in made if "receive_rows" in form or "add_product" in form]
    assert len(loops) == 2 and len(set(loops)) == 1


def test_loops_of_which_one_waits_for_the_other_do_not_merge_either_way() -> None:
    """Two branches of 200 and 300 turns and of 300 and 200: the outer two merge, the inner two then wait for them."""
    w, h = normal(64, 64), normal(8, 64)

    def run(w: Any, h: Any, turns: int) -> Any:
        return lax.scan(lambda h, _: (jnp.tanh(h @ w), None), h, None, length=turns)[0]

    def two(w: Any, h: Any) -> Any:
        return run(w, run(w, h, 200) + 1, 300), run(w, run(w, h * 2, 300) + 1, 200)

    graph = read(two, (w, h))
    chain = read(lambda w, h: run(w, run(w, h, 9), 9), (w, h))
    one, other = (node.name for node in loops_of(chain))
    assert merge_loops(chain, one, other) is None
    assert merge_loops(chain, other, one) is None
    assert len(loops_of(hoist_planned(graph, LoopPlanner(H100)))) == 3


@pytest.mark.parametrize("step", [1, 100])
def test_a_counter_that_wraps_around_ends_no_loop(step: int) -> None:
    """Each thread counts by itself, in the counter's type."""

    def counts(w: jax.Array, x: jax.Array) -> jax.Array:
        def turn(state: Any, _: Any) -> Any:
            h, count = state
            return (jnp.tanh(h @ w), count + np.uint8(step)), None

        return lax.scan(turn, (x, np.uint8(0)), None, length=300)[0][1]

    ends = lambda x: lax.while_loop(  # noqa: E731
        lambda s: s[0] < np.uint8(250), lambda s: (s[0] + np.uint8(100), s[1] * 2), (np.uint8(0), x)
    )[1]
    for fn, arguments in ((counts, (normal(8, 8), normal(4, 8))), (ends, (normal(4, 8),))):
        graph = read(fn, arguments)
        (node,) = loops_of(graph)
        refused = analyse_loop(graph, node)
        assert isinstance(refused, LoopRefusal) and "counts beyond its type" in str(refused)
        values = evaluate(graph, arguments)
        operands = [values[o][0] for o in node.operands]
        (found,) = launch(emit_loop(plan(graph, node), "loop_0"), operands, check=True)
        np.testing.assert_array_equal(found.reshape(np.shape(fn(*arguments))), fn(*arguments))


def test_strict_hears_of_a_loop_whose_kernel_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The projection took it, the compiled kernel does not fit: XLA would run the loop."""

    def refuse_all(loops: Any, gpu: Any, code: Any, faults: Any) -> Any:
        return {}, tuple(f"{loop.kernel.name}: too few registers" for loop in loops.values())

    monkeypatch.setattr(compile_module, "prepare_loops", refuse_all)
    compilation, _ = compile_for_xla(read(lstm, lstm_arguments(16)), H100)
    assert any("too few registers" in note for note in compilation.loops)
    with pytest.raises(UnsupportedOp, match="XLA runs a loop\n.*too few registers"):
        compile_for_xla(read(lstm, lstm_arguments(16)), H100, strict=True)


def test_loops_whose_names_were_not_predicted_are_handed_out_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preparing, "name_loop", lambda number: f"early_{number}")
    handed: list[Unit] = []
    graph = read(lstm, lstm_arguments(16))
    compile_for_xla(graph, H100, code=Code.PTX, hand_out=handed.extend)
    assert handed[-1].name == "loop_0" and b"loop_0(" in handed[-1].ptx


@pytest.mark.parametrize("code", list(Code))
def test_only_ptx_is_handed_out(code: Code) -> None:
    handed: list[Unit] = []
    graph = read(loops_around_kernels, lstm_arguments(16))
    compile_for_xla(graph, H100, code=code, hand_out=handed.extend)
    assert bool(handed) == (code is Code.PTX)


def test_start_values_take_names_that_no_node_has() -> None:
    graph = simplify(read(lstm_from_zeros, lstm_arguments(16)[:2]))
    first, *_ = leave_starts(graph)[1]
    taken = replace_name(graph, graph.parameters[0], first)
    again, reasons = leave_starts(taken)
    assert first not in reasons and len(reasons) >= 1
    check_graph(again)


def loops_around_kernels(w: Any, z: Any, h: Any, c: Any) -> Any:
    """Two loops, and before them two kernels of one structure and one of another."""

    def centre(x: Any) -> Any:
        return x - x.mean(-1, keepdims=True)

    square = w.T @ w
    first = lstm(w, centre(centre(z @ square) @ square) @ square, h, c)[1]
    return lstm(w, jax.nn.softmax(first, -1) @ w, h, c, reverse=True)[1]


def test_kernels_are_handed_out_while_others_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the very code that XLA gets; of equal ones only one before all are planned."""
    handed: list[Unit] = []
    early: list[Unit] = []

    def prepare(*arguments: Any) -> Any:
        pool.shutdown()
        early.extend(handed)
        return prepare_kernels(*arguments)

    pool = ThreadPoolExecutor(1)
    monkeypatch.setattr(pool, "shutdown", partial(pool.shutdown, wait=True))
    monkeypatch.setattr(compile_module, "ThreadPoolExecutor", lambda *_: pool)
    monkeypatch.setattr(compile_module, "prepare_kernels", prepare)
    graph = read(loops_around_kernels, lstm_arguments(16))
    compilation, module = compile_for_xla(graph, H100, code=Code.PTX, hand_out=handed.extend)
    called: Any = [node.attrs for node in import_hlo(module) if is_kernel(node)]
    configs = [parse_config(attrs.backend_config) for attrs in called]
    calls = {config["name"]: config["kernel_data"].encode() for config in configs}
    assert calls == {unit.name: unit.ptx for unit in handed}
    loops = {"loop_0", "loop_1"}
    assert loops < calls.keys() and len(compilation.plans) == len(calls) - len(loops)
    structures = {structure_of(p.arrangement.graph, p.scope) for p in compilation.plans}
    assert len(structures) == len(compilation.plans) - 1
    assert len(early) == len(structures) + len(loops)


def lstm_from_zeros(w: Any, z: Any) -> Any:
    h = jnp.zeros((z.shape[1], w.shape[0]), z.dtype)
    return lstm(w, z, h, h)


def replace_name(graph: Graph, old: str, new: str) -> Graph:
    """The same graph with another name for a parameter."""

    def named(name: str) -> str:
        return new if name == old else name

    nodes = {
        named(n.name): dataclasses.replace(
            n, name=named(n.name), operands=tuple(map(named, n.operands))
        )
        for n in graph
    }
    parameters = tuple(map(named, graph.parameters))
    return Graph(graph.name, nodes, parameters, graph.outputs, graph.aliases)


def test_whiles_that_compute_the_same_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[str] = []

    def count(graph: Graph, node: Node) -> Any:
        planned.append(node.name)
        return analyse_loop(graph, node)

    monkeypatch.setattr(planning, "analyse_loop", count)
    graph = simplify(
        read(lambda w, z, h, c: lstm(w, z, h, c)[1] + lstm(w, z, c, h)[1], lstm_arguments(16))
    )
    planner = LoopPlanner(H100)
    plans = planner.find_plans(graph)
    assert len(plans) == 2 and len(planned) == 1
    assert [plan.loop.node.name for plan in plans] == [node.name for node in loops_of(graph)]
    assert [plan.loop.node.operands for plan in plans] == [n.operands for n in loops_of(graph)]
    assert (
        emit_loop(plans[0], "x").kernel.source.split("{", 1)[1]
        == (emit_loop(plans[1], "x").kernel.source.split("{", 1)[1])
    )


def test_a_refusal_names_the_while_that_is_asked_for() -> None:
    def once(x: Any) -> Any:
        return lax.scan(lambda h, _: (jnp.sin(h @ h), None), x, None, length=9)[0]

    graph = read(lambda x, y: (once(x), once(y)), (normal(9, 9), normal(9, 9)))
    planner = LoopPlanner(H100)
    refusals = [planner.plan(graph, node) for node in loops_of(graph)]
    assert [r.name for r in refusals if isinstance(r, LoopRefusal)] == [
        node.name for node in loops_of(graph)
    ]


def test_plans_follow_the_clock_of_the_device() -> None:
    graph = simplify(read(*LOOPS["lstm"]))
    (node,) = loops_of(graph)
    slow = dataclasses.replace(H100, clock_ghz=H100.clock_ghz / 2)
    fast, late = (LoopPlanner(gpu).plan(graph, node) for gpu in (H100, slow))
    assert isinstance(fast, LoopPlan) and isinstance(late, LoopPlan)
    assert late.xla_us == pytest.approx(2 * fast.xla_us)
    assert late.us > fast.us


def test_a_loop_of_which_the_state_is_read_as_a_whole_merges_with_none() -> None:
    w, h = normal(16, 16), normal(4, 16)
    turn = lambda h, _: (jnp.tanh(h @ w), None)  # noqa: E731
    graph = read(
        lambda h, k: (
            lax.scan(turn, h, None, length=9)[0],
            lax.scan(turn, k, None, length=9)[0],
        ),
        (h, h),
    )
    first, second = loops_of(graph)
    assert merge_loops(graph, first.name, second.name) is not None
    whole = dataclasses.replace(graph, outputs=(*graph.outputs, second.name))
    assert merge_loops(whole, first.name, second.name) is None


def test_an_error_does_not_wait_for_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def compile_slowly(request: Request) -> CompiledKernel:
        begun.set()
        go_on.wait(60)
        raise KernelCompileError("too late")

    def fail(*_: Any, **__: Any) -> Any:
        assert begun.wait(60)
        raise UnsupportedOp("no plan")

    monkeypatch.setattr(preparing, "compile_cached", compile_slowly)
    monkeypatch.setattr("astitch.pipeline.plan_scopes", fail)
    try:
        with pytest.raises(UnsupportedOp, match="no plan"):
            compile_for_xla(read(lstm, lstm_arguments(16)), H100)
        assert not go_on.is_set()
    finally:
        go_on.set()


def test_tagged_words_begin_where_the_device_library_says() -> None:
    text = read_headers()["astitch.cuh"]
    body = text[text.index("astitch_tagged_words(unsigned* words)") :]
    assert f"(words + {FIRST_TAGGED_WORD});" in body[: body.index("}")]
