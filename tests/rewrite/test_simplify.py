"""simplify: each rule before and after, the whole on random graphs and on the corpus."""

from __future__ import annotations

import collections
import gzip
import importlib
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphs import GraphBuilder, combiner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import random_arguments, random_graphs

from astitch.errors import UnsupportedOp
from astitch.graph.check import check_graph
from astitch.graph.ir import (
    ArrayType,
    ConditionalAttrs,
    ConvolutionAttrs,
    CustomCallAttrs,
    DimensionsAttrs,
    DType,
    DynamicSliceAttrs,
    GetTupleElementAttrs,
    Graph,
    Node,
    RngAttrs,
    WindowDimension,
)
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.draft import FOLD_RESULT_ELEMENTS
from astitch.rewrite.elementwise_rules import fold_empty
from astitch.rewrite.simplify import RULES, simplify

module = importlib.import_module("astitch.rewrite.simplify")

# ---- each rule: a graph, and the lines that are left of it


Build = Callable[[GraphBuilder], "str | tuple[str, ...]"]
CASES: dict[str, tuple[Build, str]] = {}


def case(expected: str) -> Callable[[Build], Build]:
    """The function builds a graph and returns its outputs; `expected` is the simplified graph."""

    def enter(build: Build) -> Build:
        CASES[build.__name__] = (build, expected)
        return build

    return enter


@case("""
%p0 = f32[4] parameter() (index=0)
%exponential.1 = f32[4] exponential(%p0)
%add.3 = f32[4] add(%exponential.1, %exponential.1)
return %add.3
""")
def merge_equal_nodes(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.parameter("f32[4]")
    a, b = g.same("exponential", x), g.same("exponential", x)
    return g.same("add", a, b)


@case("""
%p0 = f32[4,8] parameter() (index=0)
%constant.1 = f32[] constant() 0.0
%reduce.2 = f32[4] reduce(%p0, %constant.1) (dimensions=(1,)) region=add_f32
%constant.5 = f32[] constant() -inf
%reduce.6 = f32[4] reduce(%p0, %constant.5) (dimensions=(1,)) region=maximum_f32
return %reduce.2, %reduce.2, %reduce.6
| graph add_f32 (parameters: %a, %b)
|   %a = f32[] parameter() (index=0)
|   %b = f32[] parameter() (index=1)
|   %add = f32[] add(%a, %b)
|   return %add
| graph maximum_f32 (parameters: %a, %b)
|   %a = f32[] parameter() (index=0)
|   %b = f32[] parameter() (index=1)
|   %maximum = f32[] maximum(%a, %b)
|   return %maximum
""")
def merge_equal_regions(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.parameter("f32[4,8]")
    return g.reduce(x, (1,), "add"), g.reduce(x, (1,), "add"), g.reduce(x, (1,), "maximum")


@case("""
%p0 = f32[4,8] parameter() (index=0)
%constant.1 = f32[] constant() 0.0
%reduce.2 = f32[4] reduce(%p0, %constant.1) (dimensions=(1,)) region=add_f32
%reshape.3 = f32[2,2] reshape(%reduce.2)
%broadcast.4 = f32[2,2,3] broadcast(%reshape.3) (dimensions=(0, 1))
return %reduce.2, %broadcast.4
| graph add_f32 (parameters: %a, %b)
|   %a = f32[] parameter() (index=0)
|   %b = f32[] parameter() (index=1)
|   %add = f32[] add(%a, %b)
|   return %add
""")
def drop_zero_beside_sum(g: GraphBuilder) -> str | tuple[str, ...]:
    total = g.reduce(g.parameter("f32[4,8]"), (1,), "add")
    spread = g.broadcast(g.reshape(total, (2, 2)), (2, 2, 3), (0, 1))
    return (
        g.same("add", g.splat(0.0, "f32[4]"), total),
        g.same("add", spread, g.splat(0.0, "f32[2,2,3]")),
    )


@case("""
%p0 = f32[4,8] parameter() (index=0)
%constant.1 = f32[] constant() 0.0
%broadcast.2 = f32[4] broadcast(%constant.1) (dimensions=())
%constant.3 = f32[] constant() -0.0
%reduce.4 = f32[4] reduce(%p0, %constant.3) (dimensions=(1,)) region=add_f32
%add.5 = f32[4] add(%reduce.4, %broadcast.2)
%constant.6 = f32[] constant() -inf
%reduce.7 = f32[4] reduce(%p0, %constant.6) (dimensions=(1,)) region=maximum_f32
%add.8 = f32[4] add(%reduce.7, %broadcast.2)
%constant.9 = f32[] constant() 1.0
%reduce.10 = f32[4] reduce(%p0, %constant.9) (dimensions=(1,)) region=multiply_f32
%add.11 = f32[4] add(%reduce.10, %broadcast.2)
return %add.5, %add.8, %add.11
| graph add_f32 (parameters: %a, %b)
|   %a = f32[] parameter() (index=0)
|   %b = f32[] parameter() (index=1)
|   %add = f32[] add(%a, %b)
|   return %add
| graph maximum_f32 (parameters: %a, %b)
|   %a = f32[] parameter() (index=0)
|   %b = f32[] parameter() (index=1)
|   %maximum = f32[] maximum(%a, %b)
|   return %maximum
| graph multiply_f32 (parameters: %a, %b)
|   %a = f32[] parameter() (index=0)
|   %b = f32[] parameter() (index=1)
|   %multiply = f32[] multiply(%a, %b)
|   return %multiply
""")
def keep_zero_beside_what_may_be_negative_zero(g: GraphBuilder) -> str | tuple[str, ...]:
    """-0.0 + 0.0 is 0.0: the zero changes products, maxima and sums that start at -0.0."""
    x, zero = g.parameter("f32[4,8]"), g.splat(0.0, "f32[4]")
    return (
        g.same("add", g.reduce(x, (1,), "add", g.constant(-0.0, "f32")), zero),
        g.same("add", g.reduce(x, (1,), "maximum"), zero),
        g.same("add", g.reduce(x, (1,), "multiply"), zero),
    )


@case("""
%constant.0 = f32[] constant() 0.0
%constant.1 = f32[] constant() -0.0
return %constant.0, %constant.1, %constant.0
""")
def keep_distinct_zeros(g: GraphBuilder) -> str | tuple[str, ...]:
    return g.constant(0.0, "f32"), g.constant(-0.0, "f32"), g.constant(0.0, "f32")


@case("""
%p0 = f32[4] parameter() (index=0)
%p1 = f32[4] parameter() (index=1)
%custom-call.3 = f32[4] custom-call(%p0) (target='note')
%negate.4 = f32[4] negate(%p0)
return %negate.4
""")
def drop_dead_nodes_but_no_parameter_or_effect(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.parameter("f32[4]")
    g.same("tanh", g.parameter("f32[4]"))
    g.op("custom-call", "f32[4]", x, attrs=CustomCallAttrs("note"))
    return g.same("negate", x)


@case("""
%p0 = f32[] parameter() (index=0)
%p1 = f32[] parameter() (index=1)
%rng.2 = f32[8] rng(%p0, %p1) (distribution='RNG_UNIFORM')
%rng.3 = f32[8] rng(%p0, %p1) (distribution='RNG_UNIFORM')
%add.4 = f32[8] add(%rng.2, %rng.3)
return %add.4
""")
def keep_two_draws(g: GraphBuilder) -> str | tuple[str, ...]:
    low, high = g.parameter("f32[]"), g.parameter("f32[]")
    draws = [g.op("rng", "f32[8]", low, high, attrs=RngAttrs("RNG_UNIFORM")) for _ in range(2)]
    return g.same("add", *draws)


@case("""
%p0 = f32[4,0] parameter() (index=0)
%reshape.1 = f32[0,2] constant() []
return %reshape.1
""")
def fold_empty_result(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.parameter("f32[4,0]")
    return g.same("tanh", g.reshape(x, (0, 2)))


@case("""
%p0 = f32[4] parameter() (index=0)
%add.3 = f32[] constant() 2.0
%broadcast.4 = f32[4] broadcast(%add.3) (dimensions=())
%multiply.5 = f32[4] multiply(%p0, %broadcast.4)
return %multiply.5
""")
def fold_scalars(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.parameter("f32[4]")
    two = g.same("add", g.constant(1.0, "f32"), g.constant(1.0, "f32"))
    return g.same("multiply", x, g.broadcast(two, (4,)))


@case("""
%slice.3 = s32[2] constant() [10, 18]
return %slice.3
""")
def fold_small_arrays(g: GraphBuilder) -> str | tuple[str, ...]:
    a = g.constant([1, 2, 3], "s32")
    return g.slice(g.same("multiply", a, g.constant([4, 5, 6], "s32")), (1,), (3,))


@case("""
%reduce.2 = f32[] constant() 10.0
return %reduce.2
""")
def fold_reduce(g: GraphBuilder) -> str | tuple[str, ...]:
    return g.reduce(g.constant([[1, 2], [3, 4]], "f32"), (0, 1), "add")


@case("""
%p0 = bf16[64,1024] parameter() (index=0)
%convert.3.constant = bf16[] constant() 1.5
%convert.3 = bf16[64,1024] broadcast(%convert.3.constant) (dimensions=())
%add.4 = bf16[64,1024] add(%p0, %convert.3)
return %add.4
""")
def fold_splats_of_any_size(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.parameter("bf16[64,1024]")
    one = g.convert(g.splat(1.5, "f32[64,1024]"), "bf16")
    return g.same("add", x, one)


@case("""
%p0 = s32[3] parameter() (index=0)
%constant.1.constant = s32[] constant() 7
%constant.1 = s32[3] broadcast(%constant.1.constant) (dimensions=())
%add.2 = s32[3] add(%p0, %constant.1)
return %add.2
""")
def spread_splat_constant(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.parameter("s32[3]")
    return g.same("add", x, g.constant([7, 7, 7], "s32"))


@case("""
%broadcast.1 = f32[1,1] constant() [[2.0]]
return %broadcast.1
""")
def leave_constant_of_one_element(g: GraphBuilder) -> str | tuple[str, ...]:
    return g.broadcast(g.constant([2.0], "f32"), (1, 1), (1,))


@case("""
%broadcast.1.reshape = f32[2] constant() [1.0, 2.0]
%broadcast.1 = f32[1,2,3] broadcast(%broadcast.1.reshape) (dimensions=(1,))
return %broadcast.1
""")
def squeeze_broadcast_constant(g: GraphBuilder) -> str | tuple[str, ...]:
    return g.broadcast(g.constant([[1.0, 2.0]], "f32"), (1, 2, 3), (0, 1))


@case("""
%iota.0.constant = s32[] constant() 0
%iota.0 = s32[4,1] broadcast(%iota.0.constant) (dimensions=())
%iota.1 = s32[4,1] iota() (dimension=0)
return %iota.0, %iota.1
""")
def zero_short_iota(g: GraphBuilder) -> str | tuple[str, ...]:
    return g.iota("s32[4,1]", 1), g.iota("s32[4,1]", 0)


@case("""
%p0 = f32[2] parameter() (index=0)
%negate.22 = f32[2] negate(%p0)
return %negate.22
""")
def drop_float_neutral(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.parameter("f32[2]")
    x = g.same("multiply", x, g.splat(1.0, "f32[2]"))
    x = g.same("multiply", g.splat(1.0, "f32[2]"), x)
    x = g.same("divide", x, g.splat(1.0, "f32[2]"))
    x = g.same("add", x, g.splat(-0.0, "f32[2]"))
    x = g.same("subtract", x, g.splat(0.0, "f32[2]"))
    x = g.same("maximum", x, g.splat(float("-inf"), "f32[2]"))
    x = g.same("minimum", g.splat(float("inf"), "f32[2]"), x)
    return g.same("negate", x)


@case("""
%p0 = f32[2] parameter() (index=0)
%constant.1 = f32[] constant() 0.0
%broadcast.2 = f32[2] broadcast(%constant.1) (dimensions=())
%add.3 = f32[2] add(%p0, %broadcast.2)
%constant.4 = f32[] constant() -0.0
%broadcast.5 = f32[2] broadcast(%constant.4) (dimensions=())
%subtract.6 = f32[2] subtract(%p0, %broadcast.5)
%subtract.7 = f32[2] subtract(%broadcast.2, %p0)
%multiply.8 = f32[2] multiply(%p0, %broadcast.2)
%constant.9 = f32[] constant() 1.0
%broadcast.10 = f32[2] broadcast(%constant.9) (dimensions=())
%divide.11 = f32[2] divide(%broadcast.10, %p0)
%subtract.12 = f32[2] subtract(%p0, %p0)
return %add.3, %subtract.6, %subtract.7, %multiply.8, %divide.11, %subtract.12
""")
def keep_what_is_not_neutral(g: GraphBuilder) -> str | tuple[str, ...]:
    x, zero = g.parameter("f32[2]"), g.splat(0.0, "f32[2]")
    return (
        g.same("add", x, zero),
        g.same("subtract", x, g.splat(-0.0, "f32[2]")),
        g.same("subtract", zero, x),
        g.same("multiply", x, zero),
        g.same("divide", g.splat(1.0, "f32[2]"), x),
        g.same("subtract", x, x),
    )


@case("""
%p0 = u8[2] parameter() (index=0)
%not.28 = u8[2] not(%p0)
return %not.28
""")
def drop_integer_neutral(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.parameter("u8[2]")
    for op, value in (("add", 0), ("or", 0), ("xor", 0), ("and", 255), ("shift-left", 0)):
        x = g.same(op, x, g.splat(value, "u8[2]"))
    for op, value in (("maximum", 0), ("minimum", 255), ("divide", 1), ("multiply", 1)):
        x = g.same(op, x, g.splat(value, "u8[2]"))
    return g.same("not", x)


@case("""
%p0 = s32[2] parameter() (index=0)
%p1 = pred[2] parameter() (index=1)
%constant.2 = s32[] constant() 0
%broadcast.3 = s32[2] broadcast(%constant.2) (dimensions=())
%constant.8 = pred[] constant() True
%broadcast.9 = pred[2] broadcast(%constant.8) (dimensions=())
return %broadcast.3, %broadcast.3, %broadcast.9
""")
def take_absorbing_operand(g: GraphBuilder) -> str | tuple[str, ...]:
    x, p = g.parameter("s32[2]"), g.parameter("pred[2]")
    return (
        g.same("multiply", x, g.splat(0, "s32[2]")),
        g.same("and", x, g.splat(0, "s32[2]")),
        g.same("or", p, g.splat(True, "pred[2]")),
    )


@case("""
%p0 = f32[2] parameter() (index=0)
%p1 = pred[2] parameter() (index=1)
return %p0, %p0, %p1
""")
def merge_equal_operands(g: GraphBuilder) -> str | tuple[str, ...]:
    x, p = g.parameter("f32[2]"), g.parameter("pred[2]")
    return g.same("maximum", x, x), g.same("minimum", x, x), g.same("and", p, p)


@case("""
%p0 = f32[2] parameter() (index=0)
%p1 = pred[2] parameter() (index=1)
return %p0, %p1
""")
def cancel_involutions(g: GraphBuilder) -> str | tuple[str, ...]:
    x, p = g.parameter("f32[2]"), g.parameter("pred[2]")
    return g.same("negate", g.same("negate", x)), g.same("not", g.same("not", p))


@case("""
%p0 = f32[2] parameter() (index=0)
%negate.2 = f32[2] negate(%p0)
return %negate.2
""")
def drop_copies(g: GraphBuilder) -> str | tuple[str, ...]:
    return g.same("negate", g.same("copy", g.parameter("f32[2]")))


@case("""
%p0 = f32[2] parameter() (index=0)
%negate.1 = f32[2] negate(%p0)
%optimization-barrier.2 = f32[2] optimization-barrier(%negate.1)
%negate.3 = f32[2] negate(%optimization-barrier.2)
%optimization-barrier.4 = f32[2] optimization-barrier(%negate.1)
return %negate.3, %optimization-barrier.4
""")
def keep_barriers(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.same("negate", g.parameter("f32[2]"))
    return (
        g.same("negate", g.same("optimization-barrier", x)),
        g.same("optimization-barrier", x),
    )


@case("""
%p0 = f32[2] parameter() (index=0)
%p1 = f32[2] parameter() (index=1)
%p2 = pred[2] parameter() (index=2)
%select.10 = f32[2] select(%p2, %p0, %p1)
return %p0, %p1, %p1, %select.10
""")
def choose_branch(g: GraphBuilder) -> str | tuple[str, ...]:
    x, y, p = g.parameter("f32[2]"), g.parameter("f32[2]"), g.parameter("pred[2]")
    return (
        g.same("select", g.splat(True, "pred[2]"), x, y),
        g.same("select", g.splat(False, "pred[2]"), x, y),
        g.same("select", p, y, y),
        g.same("select", p, x, y),
    )


@case("""
%iota.0 = s32[4] iota() (dimension=0)
%reshape.1 = s32[4,1] reshape(%iota.0)
%compare.4.constant = pred[] constant() False
%compare.4 = pred[4,1] broadcast(%compare.4.constant) (dimensions=())
%constant.7 = s32[] constant() 3
%compare.9.constant = pred[] constant() True
%compare.9 = pred[4,1] broadcast(%compare.9.constant) (dimensions=())
%compare.27.reshape = s32[4] broadcast(%constant.7) (dimensions=())
%compare.27.compare = pred[4] compare(%iota.0, %compare.27.reshape) (direction='LT')
%compare.27 = pred[4,1] reshape(%compare.27.compare)
%iota.28 = s8[300] iota() (dimension=0)
%constant.29 = s8[] constant() 0
%broadcast.30 = s8[300] broadcast(%constant.29) (dimensions=())
%compare.31 = pred[300] compare(%iota.28, %broadcast.30) (direction='LT')
return %reshape.1, %compare.9, %compare.9, %compare.9, %compare.4, %compare.4, %compare.4, %compare.27, %compare.31
""")
def decide_by_range(g: GraphBuilder) -> str | tuple[str, ...]:
    i = g.reshape(g.iota("s32[4]", 0), (4, 1))
    wrapped = g.same("select", g.compare("LT", i, g.splat(0, "s32[4,1]")), g.same("negate", i), i)
    told = [("LE", 3), ("GE", 0), ("NE", 4), ("LT", 0), ("GT", 3), ("EQ", -1), ("LT", 3)]
    compared = [g.compare(how, i, g.splat(n, "s32[4,1]")) for how, n in told]
    narrow = g.compare("LT", g.iota("s8[300]", 0), g.splat(0, "s8[300]"))  # some are negative
    return (wrapped, *compared, narrow)


@case("""
%p0 = s32[2] parameter() (index=0)
%constant.1 = s32[] constant() 0
%broadcast.2 = s32[2] broadcast(%constant.1) (dimensions=())
%constant.3 = s32[2] constant() [7, 0]
%clamp.4 = s32[2] clamp(%broadcast.2, %p0, %constant.3)
%constant.13 = s32[] constant() 6
%broadcast.14 = s32[2] broadcast(%constant.13) (dimensions=())
%minimum.15 = s32[2] minimum(%clamp.4, %broadcast.14)
return %clamp.4, %clamp.4, %clamp.4, %minimum.15
""")
def drop_wide_bounds(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.parameter("s32[2]")
    zero = g.splat(0, "s32[2]")
    x = g.same("clamp", zero, x, g.constant([7, 0], "s32"))
    return (
        g.same("clamp", g.splat(-1, "s32[2]"), x, g.splat(7, "s32[2]")),
        g.same("maximum", zero, x),
        g.same("minimum", x, g.constant([7, 1], "s32")),
        g.same("minimum", x, g.splat(6, "s32[2]")),
    )


@case("""
%p0 = s32[] parameter() (index=0)
%constant.2 = s32[] constant() 0
%dynamic-slice.3.constant.2 = s32[] constant() 5
%dynamic-slice.3.clamp = s32[] clamp(%constant.2, %p0, %dynamic-slice.3.constant.2)
%dynamic-slice.3 = s32[1,2] broadcast(%dynamic-slice.3.clamp) (dimensions=())
return %dynamic-slice.3
""")
def start_iota_at_index(g: GraphBuilder) -> str | tuple[str, ...]:
    i, iota, zero = g.parameter("s32[]"), g.iota("s32[6,4]", 0), g.constant(0, "s32")
    attrs = DynamicSliceAttrs((1, 2))
    return g.op("dynamic-slice", "s32[1,2]", iota, i, zero, attrs=attrs)


@case("""
%p0 = s32[1] parameter() (index=0)
%p1 = f32[8,4] parameter() (index=1)
%p2 = f32[1,4] parameter() (index=2)
%constant.3 = s32[] constant() 0
%pad.4 = s32[2] pad(%p0, %constant.3) (low=(0,), high=(1,), interior=(0,))
%constant.5 = s32[2] constant() [7, 0]
%broadcast.7 = s32[2] broadcast(%constant.3) (dimensions=())
%clamp.8 = s32[2] clamp(%broadcast.7, %pad.4, %constant.5)
%reshape.9 = s32[1,2] reshape(%clamp.8)
%slice.10 = s32[1,1] slice(%reshape.9) (starts=(0, 0), limits=(1, 1), strides=(1, 1))
%reshape.23 = s32[] reshape(%slice.10)
%dynamic-update-slice.29 = f32[8,4] dynamic-update-slice(%p1, %p2, %reshape.23, %constant.3)
return %dynamic-update-slice.29
""")
def decide_bounds_of_an_update(g: GraphBuilder) -> str | tuple[str, ...]:
    """A scatter of one slice whose start was held inside, as XLA writes it out."""
    place, x, new = g.parameter("s32[1]"), g.parameter("f32[8,4]"), g.parameter("f32[1,4]")
    zero = g.constant(0, "s32")
    index = g.pad(place, zero, [0], [1])
    limits = g.constant([7, 0], "s32")
    index = g.same("clamp", g.splat(0, "s32[2]"), index, limits)
    row = g.reshape(index, (1, 2))
    pieces = [g.slice(row, [0, d], [1, d + 1]) for d in range(2)]
    index = g.concatenate([g.reshape(piece, (1,)) for piece in pieces], 0)
    inside = g.same(
        "and", g.compare("LE", g.splat(0, "s32[2]"), index), g.compare("GE", limits, index)
    )
    inside = g.reduce(inside, (0,), "and")
    starts = [g.reshape(g.slice(index, [d], [d + 1]), ()) for d in range(2)]
    old = g.op("dynamic-slice", "f32[1,4]", x, *starts, attrs=DynamicSliceAttrs((1, 4)))
    kept = g.same("select", g.broadcast(inside, (1, 4)), new, old)
    return g.op("dynamic-update-slice", "f32[8,4]", x, kept, *starts)


def random_number(g: GraphBuilder, bits: str, shape: str) -> str:
    """As jax.random.uniform makes it."""
    upper = g.same("shift-right-logical", bits, g.splat(9, f"u32{shape}"))
    joined = g.same("or", upper, g.splat(0x3F800000, f"u32{shape}"))
    number = g.op("bitcast-convert", ArrayType(DType.F32, g.shape(bits)), joined)
    moved = g.same("subtract", number, g.splat(1.0, f"f32{shape}"))
    moved = g.same("add", moved, g.splat(0.0, f"f32{shape}"))
    return g.same("maximum", g.splat(0.0, f"f32{shape}"), moved)


@case("""
%p0 = u32[4] parameter() (index=0)
%compare.19.constant = u32[] constant() 3865470464
%compare.19.broadcast = u32[4] broadcast(%compare.19.constant) (dimensions=())
%compare.19 = pred[4] compare(%p0, %compare.19.broadcast) (direction='LT')
return %compare.19
""")
def compare_random_bits(g: GraphBuilder) -> str | tuple[str, ...]:
    number = random_number(g, g.parameter("u32[4]"), "[4]")
    return g.compare("LT", number, g.splat(0.9, "f32[4]"))


@case("""
%p0 = bf16[2] parameter() (index=0)
%p1 = s16[2] parameter() (index=1)
%p2 = pred[2] parameter() (index=2)
%convert.6 = f16[2] convert(%p0)
%convert.8 = u8[2] convert(%p1)
%convert.10 = f64[2] convert(%p1)
%convert.12 = f32[2] convert(%p2)
return %p0, %convert.6, %convert.8, %convert.10, %convert.12
""")
def merge_exact_converts(g: GraphBuilder) -> str | tuple[str, ...]:
    x, i, p = g.parameter("bf16[2]"), g.parameter("s16[2]"), g.parameter("pred[2]")
    return (
        g.convert(g.convert(x, "f32"), "bf16"),
        g.convert(g.convert(x, "f32"), "f16"),
        g.convert(g.convert(i, "s64"), "u8"),
        g.convert(g.convert(i, "f32"), "f64"),
        g.convert(g.convert(p, "s32"), "f32"),
    )


@case("""
%p0 = f32[2] parameter() (index=0)
%p1 = s16[2] parameter() (index=1)
%convert.2 = bf16[2] convert(%p0)
%convert.3 = f32[2] convert(%convert.2)
%convert.4 = s8[2] convert(%p1)
%convert.5 = s16[2] convert(%convert.4)
%convert.6 = u32[2] convert(%p1)
%convert.7 = s64[2] convert(%convert.6)
%convert.8 = f32[2] convert(%p1)
%convert.9 = u8[2] convert(%convert.8)
%convert.10 = bf16[2] convert(%p1)
%convert.11 = f32[2] convert(%convert.10)
%convert.12 = pred[2] convert(%p1)
%convert.13 = s16[2] convert(%convert.12)
return %convert.3, %convert.5, %convert.7, %convert.9, %convert.11, %convert.13
""")
def keep_converts_that_change_values(g: GraphBuilder) -> str | tuple[str, ...]:
    x, i = g.parameter("f32[2]"), g.parameter("s16[2]")
    return (
        g.convert(g.convert(x, "bf16"), "f32"),
        g.convert(g.convert(i, "s8"), "s16"),
        g.convert(g.convert(i, "u32"), "s64"),
        g.convert(g.convert(i, "f32"), "u8"),
        g.convert(g.convert(i, "bf16"), "f32"),
        g.convert(g.convert(i, "pred"), "s16"),
    )


@case("""
%p0 = f32[2] parameter() (index=0)
%bitcast-convert.3 = s32[2] bitcast-convert(%p0)
return %p0, %bitcast-convert.3
""")
def merge_bitcast_converts(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.parameter("f32[2]")
    bits = g.op("bitcast-convert", "u32[2]", x)
    return g.op("bitcast-convert", "f32[2]", bits), g.op("bitcast-convert", "s32[2]", bits)


@case("""
%p0 = f32[8,128,768] parameter() (index=0)
%p1 = f32[768] parameter() (index=1)
%broadcast.5 = f32[8,128,768] broadcast(%p1) (dimensions=(2,))
%multiply.6 = f32[8,128,768] multiply(%p0, %broadcast.5)
return %multiply.6
""")
def normalise_the_broadcasts_of_jax(g: GraphBuilder) -> str | tuple[str, ...]:
    x, y = g.parameter("f32[8,128,768]"), g.parameter("f32[768]")
    z = g.broadcast(g.reshape(y, (1, 1, 768)), (1, 1, 768), (0, 1, 2))
    return g.same("multiply", x, g.broadcast(g.reshape(z, (768,)), (8, 128, 768), (2,)))


@case("""
%p0 = f32[3] parameter() (index=0)
%broadcast.2 = f32[2,4,3] broadcast(%p0) (dimensions=(2,))
return %broadcast.2
""")
def merge_broadcasts(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.parameter("f32[3]")
    return g.broadcast(g.broadcast(x, (2, 3), (1,)), (2, 4, 3), (0, 2))


@case("""
%p0 = f32[2,3] parameter() (index=0)
%broadcast.1.transpose = f32[3,2] transpose(%p0) (permutation=(1, 0))
%broadcast.1 = f32[3,4,2] broadcast(%broadcast.1.transpose) (dimensions=(0, 2))
return %broadcast.1
""")
def sort_broadcast_dimensions(g: GraphBuilder) -> str | tuple[str, ...]:
    return g.broadcast(g.parameter("f32[2,3]"), (3, 4, 2), (2, 0))


@case("""
%p0 = f32[2,3] parameter() (index=0)
%broadcast.1 = f32[2,1,3] reshape(%p0)
return %broadcast.1
""")
def turn_broadcast_by_one_into_reshape(g: GraphBuilder) -> str | tuple[str, ...]:
    return g.broadcast(g.parameter("f32[2,3]"), (2, 1, 3), (0, 2))


@case("""
%p0 = f32[4,1] parameter() (index=0)
%p1 = f32[12] parameter() (index=1)
%broadcast.3.reshape = f32[4] reshape(%p0)
%broadcast.3 = f32[1,5,4] broadcast(%broadcast.3.reshape) (dimensions=(2,))
%broadcast.5.reshape = f32[3,4] reshape(%p1)
%broadcast.5 = f32[1,3,2,4] broadcast(%broadcast.5.reshape) (dimensions=(1, 3))
return %broadcast.3, %broadcast.5
""")
def squeeze_reshaped_broadcast(g: GraphBuilder) -> str | tuple[str, ...]:
    x, y = g.parameter("f32[4,1]"), g.parameter("f32[12]")
    return (
        g.broadcast(g.reshape(x, (1, 4)), (1, 5, 4), (0, 2)),
        g.broadcast(g.reshape(y, (1, 3, 4)), (1, 3, 2, 4), (0, 1, 3)),
    )


@case("""
%p0 = f32[12] parameter() (index=0)
%reshape.2 = f32[2,6] reshape(%p0)
return %reshape.2
""")
def merge_reshapes(g: GraphBuilder) -> str | tuple[str, ...]:
    return g.reshape(g.reshape(g.parameter("f32[12]"), (3, 4)), (2, 6))


@case("""
%p0 = f32[6,4] parameter() (index=0)
%broadcast.1 = f32[6,10,4] broadcast(%p0) (dimensions=(0, 2))
%reshape.2.reshape = f32[2,3,4] reshape(%p0)
%reshape.2 = f32[2,3,1,5,2,4] broadcast(%reshape.2.reshape) (dimensions=(0, 1, 5))
%reshape.3 = f32[60,4] reshape(%broadcast.1)
return %reshape.2, %reshape.3
""")
def sink_reshape_below_broadcast(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.parameter("f32[6,4]")
    wide = g.broadcast(x, (6, 10, 4), (0, 2))
    return g.reshape(wide, (2, 3, 1, 5, 2, 4)), g.reshape(wide, (60, 4))


@case("""
%reshape.1 = s32[2,1000] constant() <8000 bytes>
return %reshape.1
""")
def reshape_constants(g: GraphBuilder) -> str | tuple[str, ...]:
    return g.reshape(g.constant(np.arange(2000), "s32"), (2, 1000))


@case("""
%p0 = f32[8,64] parameter() (index=0)
%constant.1 = f32[] constant() 0.0
%reduce.2 = f32[8] reduce(%p0, %constant.1) (dimensions=(1,)) region=add_f32
%constant.4 = f32[] constant() 64.0
%divide.6.reshape = f32[8] broadcast(%constant.4) (dimensions=())
%divide.6.divide = f32[8] divide(%reduce.2, %divide.6.reshape)
%broadcast.8 = f32[8,64] broadcast(%divide.6.divide) (dimensions=(0,))
return %broadcast.8
| graph add_f32 (parameters: %a, %b)
|   %a = f32[] parameter() (index=0)
|   %b = f32[] parameter() (index=1)
|   %add = f32[] add(%a, %b)
|   return %add
""")
def lift_reshape_over_elementwise(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.reduce(g.parameter("f32[8,64]"), (1,), "add")
    mean = g.same("divide", g.reshape(x, (8, 1)), g.splat(64.0, "f32[8,1]"))
    return g.broadcast(g.reshape(mean, (8,)), (8, 64), (0,))


@case("""
%p0 = f32[2,3,4] parameter() (index=0)
%transpose.2 = f32[4,3,2] transpose(%p0) (permutation=(2, 1, 0))
return %transpose.2, %p0
""")
def merge_transposes(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.parameter("f32[2,3,4]")
    return g.transpose(g.transpose(x, (1, 2, 0)), (1, 0, 2)), g.transpose(
        g.transpose(x, (1, 2, 0)), (2, 0, 1)
    )


@case("""
%p0 = f32[2,1,3] parameter() (index=0)
%transpose.1 = f32[1,2,3] reshape(%p0)
return %transpose.1
""")
def turn_transpose_of_ones_into_reshape(g: GraphBuilder) -> str | tuple[str, ...]:
    return g.transpose(g.parameter("f32[2,1,3]"), (1, 0, 2))


@case("""
%p0 = f32[2,3] parameter() (index=0)
%transpose.2 = f32[4,2,3] broadcast(%p0) (dimensions=(1, 2))
%transpose.3.transpose = f32[3,2] transpose(%p0) (permutation=(1, 0))
%transpose.3 = f32[3,4,2] broadcast(%transpose.3.transpose) (dimensions=(0, 2))
return %transpose.2, %transpose.3
""")
def absorb_transpose_into_broadcast(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.broadcast(g.parameter("f32[2,3]"), (2, 4, 3), (0, 2))
    return g.transpose(x, (1, 0, 2)), g.transpose(x, (2, 1, 0))


@case("""
%p0 = f32[2,3] parameter() (index=0)
%p1 = f32[2,4] parameter() (index=1)
%transpose.5.broadcast = f32[2,4,3] broadcast(%p0) (dimensions=(0, 2))
%transpose.5.broadcast.2 = f32[2,4,3] broadcast(%p1) (dimensions=(0, 1))
%transpose.5 = f32[2,4,3] multiply(%transpose.5.broadcast, %transpose.5.broadcast.2)
return %transpose.5
""")
def sink_transpose_below_outer(g: GraphBuilder) -> str | tuple[str, ...]:
    """With an outer product that keeps a dimension of both."""
    x = g.broadcast(g.parameter("f32[2,3]"), (2, 3, 4), (0, 1))
    y = g.broadcast(g.parameter("f32[2,4]"), (2, 3, 4), (0, 2))
    return g.transpose(g.same("multiply", x, y), (0, 2, 1))


@case("""
%p0 = f32[20] parameter() (index=0)
%slice.2 = f32[3] slice(%p0) (starts=(5,), limits=(18,), strides=(6,))
return %slice.2
""")
def merge_slices(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.parameter("f32[20]")
    return g.slice(g.slice(x, (2,), (20,), (3,)), (1,), (6,), (2,))


@case("""
%p0 = f32[3,4] parameter() (index=0)
%negate.2 = f32[3,4] negate(%p0)
return %negate.2
""")
def drop_full_slice(g: GraphBuilder) -> str | tuple[str, ...]:
    return g.same("negate", g.slice(g.parameter("f32[3,4]"), (0, 0), (3, 4)))


@case("""
%p0 = f32[9] parameter() (index=0)
%slice.1 = f32[2] slice(%p0) (starts=(1,), limits=(5,), strides=(3,))
%slice.3 = f32[1] slice(%p0) (starts=(2,), limits=(3,), strides=(1,))
return %slice.1, %slice.1, %slice.3
""")
def tighten_slice(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.parameter("f32[9]")
    return g.slice(x, (1,), (6,), (3,)), g.slice(x, (1,), (5,), (3,)), g.slice(x, (2,), (4,), (5,))


@case("""
%p0 = f32[6] parameter() (index=0)
%slice.2.slice = f32[4] slice(%p0) (starts=(1,), limits=(5,), strides=(1,))
%slice.2 = f32[3,4] broadcast(%slice.2.slice) (dimensions=(1,))
%slice.3 = f32[1,6] reshape(%p0)
return %slice.2, %slice.3
""")
def sink_slice_below_broadcast(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.broadcast(g.parameter("f32[6]"), (8, 6), (1,))
    return g.slice(x, (2, 1), (8, 5), (2, 1)), g.slice(x, (3, 0), (4, 6))


@case("""
%p0 = f32[3,2] parameter() (index=0)
%p1 = f32[5,2] parameter() (index=1)
%concatenate.2 = f32[8,2] concatenate(%p0, %p1) (dimension=0)
%slice.4 = f32[4,1] slice(%p1) (starts=(1, 1), limits=(5, 2), strides=(1, 1))
%slice.5 = f32[2,2] slice(%concatenate.2) (starts=(2, 0), limits=(4, 2), strides=(1, 1))
return %p0, %slice.4, %slice.5
""")
def slice_one_piece(g: GraphBuilder) -> str | tuple[str, ...]:
    x, y = g.parameter("f32[3,2]"), g.parameter("f32[5,2]")
    both = g.concatenate((x, y), 0)
    return (
        g.slice(both, (0, 0), (3, 2)),
        g.slice(both, (4, 1), (8, 2)),
        g.slice(both, (2, 0), (4, 2)),
    )


@case("""
%p0 = f32[3] parameter() (index=0)
%constant.1 = f32[] constant() 0.0
%p1 = f32[1] parameter() (index=1)
%p2 = f32[0] parameter() (index=2)
%pad.6 = f32[3] broadcast(%constant.1) (dimensions=())
%pad.7 = f32[5] pad(%p0, %constant.1) (low=(0,), high=(0,), interior=(1,))
return %p0, %p1, %pad.6, %pad.7
""")
def drop_empty_pad(g: GraphBuilder) -> str | tuple[str, ...]:
    x, zero = g.parameter("f32[3]"), g.constant(0.0, "f32")
    return (
        g.pad(x, zero, (0,), (0,)),
        g.pad(g.parameter("f32[1]"), zero, (0,), (0,), (2,)),
        g.pad(g.parameter("f32[0]"), zero, (1,), (2,)),
        g.pad(x, zero, (0,), (0,), (1,)),
    )


@case("""
%p0 = f32[3] parameter() (index=0)
%p1 = f32[2] parameter() (index=1)
%p2 = f32[0] parameter() (index=2)
%concatenate.4 = f32[5] concatenate(%p0, %p1) (dimension=0)
return %p0, %concatenate.4
""")
def drop_empty_pieces(g: GraphBuilder) -> str | tuple[str, ...]:
    x, y, e = g.parameter("f32[3]"), g.parameter("f32[2]"), g.parameter("f32[0]")
    return g.concatenate((e, x), 0), g.concatenate((x, e, y), 0)


@case("""
%p0 = f32[1,3,4] parameter() (index=0)
%reverse.1 = f32[1,3,4] reverse(%p0) (dimensions=(1,))
%reverse.4 = f32[1,3,4] reverse(%p0) (dimensions=(1, 2))
return %p0, %reverse.1, %p0, %reverse.4
""")
def drop_trivial_reverse(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.parameter("f32[1,3,4]")
    turned = g.reverse(x, (0, 1))
    return g.reverse(x, (0,)), turned, g.reverse(turned, (1,)), g.reverse(turned, (2,))


@case("""
%p0 = f32[8,4] parameter() (index=0)
%p1 = s32[] parameter() (index=1)
%constant.4 = s32[] constant() 7
%dynamic-slice.5 = f32[2,4] slice(%p0) (starts=(3, 0), limits=(5, 4), strides=(1, 1))
%dynamic-slice.6 = f32[2,4] slice(%p0) (starts=(0, 0), limits=(2, 4), strides=(1, 1))
%dynamic-slice.7 = f32[2,4] slice(%p0) (starts=(6, 0), limits=(8, 4), strides=(1, 1))
%dynamic-slice.8 = f32[2,4] dynamic-slice(%p0, %p1, %constant.4) (sizes=(2, 4))
return %dynamic-slice.5, %dynamic-slice.6, %dynamic-slice.7, %dynamic-slice.8
""")
def slice_statically(g: GraphBuilder) -> str | tuple[str, ...]:
    x, i = g.parameter("f32[8,4]"), g.parameter("s32[]")
    at = [g.constant(n, "s32") for n in (-1, 3, 7)]
    attrs = DynamicSliceAttrs((2, 4))
    return (
        g.op("dynamic-slice", "f32[2,4]", x, at[1], i, attrs=attrs),
        g.op("dynamic-slice", "f32[2,4]", x, at[0], at[2], attrs=attrs),
        g.op("dynamic-slice", "f32[2,4]", x, at[2], at[2], attrs=attrs),
        g.op("dynamic-slice", "f32[2,4]", x, i, at[2], attrs=attrs),
    )


@case("""
%p0 = f32[8] parameter() (index=0)
%p1 = f32[8] parameter() (index=1)
%p2 = s32[] parameter() (index=2)
%p3 = f32[0] parameter() (index=3)
return %p1, %p0
""")
def drop_full_update(g: GraphBuilder) -> str | tuple[str, ...]:
    x, y, i = g.parameter("f32[8]"), g.parameter("f32[8]"), g.parameter("s32[]")
    return (
        g.op("dynamic-update-slice", "f32[8]", x, y, i),
        g.op("dynamic-update-slice", "f32[8]", x, g.parameter("f32[0]"), i),
    )


@case("""
%p0 = f32[4,1] parameter() (index=0)
%reduce.2.reshape = f32[4] reshape(%p0)
return %reduce.2.reshape, %reduce.2.reshape
""")
def drop_reduce_of_one(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.parameter("f32[4,1]")
    return g.reduce(x, (1,), "maximum"), g.reduce(x, (1,), "add", g.constant(-0.0, "f32"))


@case("""
%p0 = f32[4,1] parameter() (index=0)
%constant.1 = f32[] constant() 0.0
%reduce.2.reshape.2 = f32[4,1] broadcast(%constant.1) (dimensions=())
%reduce.2.add = f32[4,1] add(%reduce.2.reshape.2, %p0)
%reduce.2 = f32[4] reshape(%reduce.2.add)
return %reduce.2
""")
def keep_the_addition_of_zero_in_a_reduce_of_one(g: GraphBuilder) -> str | tuple[str, ...]:
    return g.reduce(g.parameter("f32[4,1]"), (1,), "add")


@case("""
%p0 = s32[4,3] parameter() (index=0)
return %p0
""")
def drop_reduce_over_nothing(g: GraphBuilder) -> str | tuple[str, ...]:
    return g.reduce(g.parameter("s32[4,3]"), (), "add")


@case("""
%p0 = f32[4,0] parameter() (index=0)
%p1 = f32[] parameter() (index=1)
%reduce.2 = f32[4] broadcast(%p1) (dimensions=())
return %reduce.2
""")
def start_empty_reduce(g: GraphBuilder) -> str | tuple[str, ...]:
    return g.reduce(g.parameter("f32[4,0]"), (1,), "add", g.parameter("f32[]"))


@case("""
%p0 = f32[0,4] parameter() (index=0)
%p1 = s32[0,4] parameter() (index=1)
%p2 = f32[] parameter() (index=2)
%p3 = s32[] parameter() (index=3)
%get-tuple-element.5 = s32[4] broadcast(%p3) (dimensions=())
%get-tuple-element.6 = f32[4] broadcast(%p2) (dimensions=())
return %get-tuple-element.5, %get-tuple-element.6
""")
def start_empty_reduce_of_two(g: GraphBuilder) -> str | tuple[str, ...]:
    values, places = g.parameter("f32[0,4]"), g.parameter("s32[0,4]")
    starts = g.parameter("f32[]"), g.parameter("s32[]")
    r = GraphBuilder("both")
    a, b, c, d = (r.parameter(t) for t in ("f32[]", "s32[]") * 2)
    region = r.build(r.op("maximum", "f32[]", a, c), r.op("add", "s32[]", b, d))
    found = g.op(
        "reduce",
        "(f32[4], s32[4])",
        values,
        places,
        *starts,
        attrs=DimensionsAttrs((0,)),
        regions=[region],
    )
    second = g.op("get-tuple-element", "s32[4]", found, attrs=GetTupleElementAttrs(1))
    return second, g.op("get-tuple-element", "f32[4]", found, attrs=GetTupleElementAttrs(0))


@case("""
%p0 = f32[2,3,4] parameter() (index=0)
%constant.2 = f32[] constant() 0.0
%reduce.3 = f32[2,4] reduce(%p0, %constant.2) (dimensions=(1,)) region=add_f32
%reduce.6 = f32[2,3] reduce(%p0, %constant.2) (dimensions=(2,)) region=add_f32
return %reduce.3, %reduce.6
| graph add_f32 (parameters: %a, %b)
|   %a = f32[] parameter() (index=0)
|   %b = f32[] parameter() (index=1)
|   %add = f32[] add(%a, %b)
|   return %add
""")
def absorb_transpose_into_reduce(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.parameter("f32[2,3,4]")
    return g.reduce(g.transpose(x, (1, 0, 2)), (0,), "add"), g.reduce(
        g.transpose(x, (2, 0, 1)), (0,), "add"
    )


@case("""
%p0 = f32[2,3,4] parameter() (index=0)
%transpose.1 = f32[4,3,2] transpose(%p0) (permutation=(2, 1, 0))
%constant.2 = f32[] constant() 0.0
%reduce.3 = f32[2] reduce(%transpose.1, %constant.2) (dimensions=(0, 1)) region=add_f32
%transpose.4 = f32[2,4,3] transpose(%p0) (permutation=(0, 2, 1))
%reduce.6 = f32[4,3] reduce(%transpose.4, %constant.2) (dimensions=(0,)) region=add_f32
return %reduce.3, %reduce.6
| graph add_f32 (parameters: %a, %b)
|   %a = f32[] parameter() (index=0)
|   %b = f32[] parameter() (index=1)
|   %add = f32[] add(%a, %b)
|   return %add
""")
def keep_transpose_that_reorders_a_reduce(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.parameter("f32[2,3,4]")
    return g.reduce(g.transpose(x, (2, 1, 0)), (0, 1), "add"), g.reduce(
        g.transpose(x, (0, 2, 1)), (0,), "add"
    )


@case("""
%p0 = f32[4,2,8] parameter() (index=0)
%constant.2 = f32[] constant() 0.0
%reduce.3.reduce = f32[4,2] reduce(%p0, %constant.2) (dimensions=(2,)) region=add_f32
%reduce.3 = f32[2,4] transpose(%reduce.3.reduce) (permutation=(1, 0))
return %reduce.3
| graph add_f32 (parameters: %a, %b)
|   %a = f32[] parameter() (index=0)
|   %b = f32[] parameter() (index=1)
|   %add = f32[] add(%a, %b)
|   return %add
""")
def transpose_the_small_result_of_a_reduce(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.parameter("f32[4,2,8]")
    return g.reduce(g.transpose(x, (1, 2, 0)), (1,), "add")


@case("""
%p0 = f32[8,16] parameter() (index=0)
%p1 = f32[16] parameter() (index=1)
%broadcast.2 = f32[16,8] broadcast(%p1) (dimensions=(0,))
%transpose.3 = f32[16,8] transpose(%p0) (permutation=(1, 0))
%subtract.4 = f32[16,8] subtract(%transpose.3, %broadcast.2)
%exponential.5 = f32[16,8] exponential(%subtract.4)
%p2 = f32[16,8] parameter() (index=2)
%add.8 = f32[16,8] add(%transpose.3, %p2)
%constant.9 = f32[] constant() 0.0
%reduce.10.transpose = f32[8,16] broadcast(%p1) (dimensions=(1,))
%reduce.10.subtract = f32[8,16] subtract(%p0, %reduce.10.transpose)
%reduce.10.exponential = f32[8,16] exponential(%reduce.10.subtract)
%reduce.10 = f32[16] reduce(%reduce.10.exponential, %constant.9) (dimensions=(0,)) region=add_f32
%reduce.12 = f32[16] reduce(%add.8, %constant.9) (dimensions=(1,)) region=add_f32
return %reduce.10, %exponential.5, %reduce.12
| graph add_f32 (parameters: %a, %b)
|   %a = f32[] parameter() (index=0)
|   %b = f32[] parameter() (index=1)
|   %add = f32[] add(%a, %b)
|   return %add
""")
def sum_below_transposes(g: GraphBuilder) -> str | tuple[str, ...]:
    x, most = g.parameter("f32[8,16]"), g.parameter("f32[16]")
    rows = g.broadcast(most, (16, 8), (0,))
    shares = g.same("exponential", g.same("subtract", g.transpose(x, (1, 0)), rows))
    large = g.same("add", g.transpose(x, (1, 0)), g.parameter("f32[16,8]"))
    return g.reduce(shares, (1,), "add"), shares, g.reduce(large, (1,), "add")


@case("""
%p0 = f32[2,3,4] parameter() (index=0)
%constant.1 = f32[] constant() 0.0
%reduce.2 = f32[3] reduce(%p0, %constant.1) (dimensions=(0, 2)) region=add_f32
return %reduce.2
| graph add_f32 (parameters: %a, %b)
|   %a = f32[] parameter() (index=0)
|   %b = f32[] parameter() (index=1)
|   %add = f32[] add(%a, %b)
|   return %add
""")
def sort_reduced_dimensions(g: GraphBuilder) -> str | tuple[str, ...]:
    return g.reduce(g.parameter("f32[2,3,4]"), (2, 0), "add")


@case("""
%p0 = f32[2,3] parameter() (index=0)
%p1 = f32[4,3] parameter() (index=1)
%dot.3 = f32[2,4] dot(%p0, %p1) (lhs_contracting=(1,), rhs_contracting=(1,))
return %dot.3, %dot.3
""")
def absorb_transpose_into_dot(g: GraphBuilder) -> str | tuple[str, ...]:
    x, y = g.parameter("f32[2,3]"), g.parameter("f32[4,3]")
    return g.dot(x, g.transpose(y, (1, 0)), (1,), (0,)), g.dot(
        g.transpose(x, (1, 0)), g.transpose(y, (1, 0)), (0,), (0,)
    )


@case("""
%p0 = f32[5,6] parameter() (index=0)
%p1 = f32[7,2,3] parameter() (index=1)
%p2 = f32[2,3,5] parameter() (index=2)
%p3 = f32[2,5,3] parameter() (index=3)
%transpose.8 = f32[5,2,3] transpose(%p3) (permutation=(1, 0, 2))
%reshape.9 = f32[5,6] reshape(%transpose.8)
%dot.10.reshape = f32[7,6] reshape(%p1)
%dot.10 = f32[5,7] dot(%p0, %dot.10.reshape) (lhs_contracting=(1,), rhs_contracting=(1,))
%dot.11.reshape = f32[6,5] reshape(%p2)
%dot.11 = f32[5,5] dot(%dot.11.reshape, %p0) (lhs_contracting=(0,), rhs_contracting=(1,))
%dot.12 = f32[5,5] dot(%reshape.9, %p0) (lhs_contracting=(1,), rhs_contracting=(1,))
return %dot.10, %dot.11, %dot.12
""")
def absorb_merged_transpose_into_dot(g: GraphBuilder) -> str | tuple[str, ...]:
    x, w, v = g.parameter("f32[5,6]"), g.parameter("f32[7,2,3]"), g.parameter("f32[2,3,5]")
    heads = g.reshape(g.transpose(w, (1, 2, 0)), (6, 7))
    turned = g.reshape(g.transpose(v, (2, 0, 1)), (5, 6))
    stays = g.reshape(g.transpose(g.parameter("f32[2,5,3]"), (1, 0, 2)), (5, 6))
    return g.dot(x, heads, (1,), (0,)), g.dot(turned, x, (1,), (1,)), g.dot(stays, x, (1,), (1,))


def _convolution(*window: WindowDimension) -> ConvolutionAttrs:
    """NHWC, HWIO."""
    return ConvolutionAttrs(window, 0, 3, (1, 2), 2, 3, (0, 1), 0, 3, (1, 2))


def _show(attrs: ConvolutionAttrs) -> str:
    return str(Node("c", "convolution", ArrayType(DType.F32, ()), (), attrs)).partition("() ")[2]


WINDOW = WindowDimension(3, padding_low=1, padding_high=1)
TURNED = replace(WINDOW, reversed=True)
ONE, TWO = WindowDimension(1), WindowDimension(2)
ALONG, WIDE = _convolution(WINDOW, ONE), _convolution(WINDOW, TWO)


@case(f"""
%p0 = f32[2,8,4,3] parameter() (index=0)
%p1 = f32[3,1,3,5] parameter() (index=1)
%convolution.3 = f32[2,8,4,5] convolution(%p0, %p1) {_show(_convolution(TURNED, ONE))}
%p2 = f32[3,2,3,5] parameter() (index=2)
%reverse.5 = f32[3,2,3,5] reverse(%p2) (dimensions=(0,))
%convolution.6 = f32[2,8,3,5] convolution(%p0, %reverse.5) {_show(WIDE)}
%convolution.8 = f32[2,8,3,5] convolution(%p0, %p2) {_show(_convolution(TURNED, replace(TWO, reversed=True)))}
%reverse.9 = f32[3,1,3,5] reverse(%p1) (dimensions=(0, 2))
%convolution.10 = f32[2,8,4,5] convolution(%p0, %reverse.9) {_show(ALONG)}
return %convolution.3, %convolution.6, %convolution.8, %convolution.10
""")
def absorb_reverse_into_convolution(g: GraphBuilder) -> str | tuple[str, ...]:
    x, k = g.parameter("f32[2,8,4,3]"), g.parameter("f32[3,1,3,5]")
    mirrored = g.op("convolution", "f32[2,8,4,5]", x, g.reverse(k, (0,)), attrs=ALONG)
    # Of one reversed dimension libraries have nothing, nor of reversed features.
    wide = g.parameter("f32[3,2,3,5]")
    one = g.op("convolution", "f32[2,8,3,5]", x, g.reverse(wide, (0,)), attrs=WIDE)
    both = g.op("convolution", "f32[2,8,3,5]", x, g.reverse(wide, (0, 1)), attrs=WIDE)
    features = g.op("convolution", "f32[2,8,4,5]", x, g.reverse(k, (0, 2)), attrs=ALONG)
    return mirrored, one, both, features


@case("""
%p0 = f32[5,3,2] parameter() (index=0)
%p1 = f32[3,5,4] parameter() (index=1)
%dot.4 = f32[5,2,4] dot(%p0, %p1) (lhs_contracting=(1,), rhs_contracting=(0,), lhs_batch=(0,), rhs_batch=(1,))
return %dot.4
""")
def absorb_batched_transpose_into_dot(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.transpose(g.parameter("f32[5,3,2]"), (0, 2, 1))
    y = g.transpose(g.parameter("f32[3,5,4]"), (1, 0, 2))
    return g.dot(x, y, (2,), (1,), (0,), (0,))


@case("""
%p0 = f32[2,5,3,4] parameter() (index=0)
%transpose.1 = f32[2,3,5,4] transpose(%p0) (permutation=(0, 2, 1, 3))
%p1 = f32[2,3,5,4] parameter() (index=1)
%p2 = f32[3,2,4] parameter() (index=2)
%transpose.4 = f32[2,3,4] transpose(%p2) (permutation=(1, 0, 2))
%dot.5 = f32[2,3,5,5] dot(%transpose.1, %p1) (lhs_contracting=(3,), rhs_contracting=(3,), lhs_batch=(0, 1), rhs_batch=(0, 1))
%p3 = f32[4,6] parameter() (index=3)
%dot.7 = f32[2,3,6] dot(%transpose.4, %p3) (lhs_contracting=(2,), rhs_contracting=(0,))
return %dot.5, %dot.7
""")  # noqa: E501
def keep_transpose_that_no_strided_batch_reads(g: GraphBuilder) -> str | tuple[str, ...]:
    heads = g.transpose(g.parameter("f32[2,5,3,4]"), (0, 2, 1, 3))
    other = g.parameter("f32[2,3,5,4]")
    free = g.transpose(g.parameter("f32[3,2,4]"), (1, 0, 2))
    return (
        g.dot(heads, other, (3,), (3,), (0, 1), (0, 1)),
        g.dot(free, g.parameter("f32[4,6]"), (2,), (0,)),
    )


@case("""
%p0 = f32[4] parameter() (index=0)
%constant.1 = s32[] constant() 5
return %constant.1, %p0
""")
def drop_loop_that_never_runs(g: GraphBuilder) -> str | tuple[str, ...]:
    x, i = g.parameter("f32[4]"), g.constant(5, "s32")
    condition = GraphBuilder("condition")
    condition.parameter("s32[]")
    condition.parameter("f32[4]")
    never = condition.compare("LT", condition.constant(3, "s32"), condition.constant(3, "s32"))
    body = GraphBuilder("body")
    n, v = body.parameter("s32[]"), body.parameter("f32[4]")
    loop = g.op(
        "while",
        "(s32[], f32[4])",
        i,
        x,
        regions=[condition.build(never), body.build(n, body.same("negate", v))],
    )
    return g.element(loop, 0), g.element(loop, 1)


@case("""
%p0 = f32[4] parameter() (index=0)
%p1 = f32[4] parameter() (index=1)
%while.2 = (f32[4], f32[4]) while(%p1, %p0) region=condition region=body
%get-tuple-element.4 = f32[4] get-tuple-element(%while.2) (index=1)
return %p1, %get-tuple-element.4
| graph condition (parameters: %p0, %p1)
|   %p0 = f32[4] parameter() (index=0)
|   %p1 = f32[4] parameter() (index=1)
|   %constant.2 = f32[] constant() 0.0
|   %reduce.3 = f32[] reduce(%p1, %constant.2) (dimensions=(0,)) region=add_f32
|   %constant.4 = f32[] constant() 100.0
|   %compare.5 = pred[] compare(%reduce.3, %constant.4) (direction='LT')
|   return %compare.5
|   | graph add_f32 (parameters: %a, %b)
|   |   %a = f32[] parameter() (index=0)
|   |   %b = f32[] parameter() (index=1)
|   |   %add = f32[] add(%a, %b)
|   |   return %add
| graph body (parameters: %p0, %p1)
|   %p0 = f32[4] parameter() (index=0)
|   %p1 = f32[4] parameter() (index=1)
|   %exponential.3 = f32[4] exponential(%p0)
|   %add.5 = f32[4] add(%exponential.3, %exponential.3)
|   %add.6 = f32[4] add(%p1, %add.5)
|   return %p0, %add.6
""")
def hand_on_what_a_loop_leaves(g: GraphBuilder) -> str | tuple[str, ...]:
    x, w = g.parameter("f32[4]"), g.parameter("f32[4]")
    condition = GraphBuilder("condition")
    condition.parameter("f32[4]")
    v = condition.parameter("f32[4]")
    total = condition.reduce(v, (0,), "add")
    going = condition.compare("LT", total, condition.constant(100.0, "f32"))
    body = GraphBuilder("body")
    c, v = body.parameter("f32[4]"), body.parameter("f32[4]")
    kept = body.same("copy", c)
    more = body.same("add", body.same("exponential", c), body.same("exponential", kept))
    loop = g.op(
        "while",
        "(f32[4], f32[4])",
        w,
        x,
        regions=[condition.build(going), body.build(kept, body.same("add", v, more))],
    )
    return g.element(loop, 0), g.element(loop, 1)


@case("""
%p0 = f32[4] parameter() (index=0)
%p1 = f32[4] parameter() (index=1)
%conditional.3.y = f32[4] add(%p0, %p0)
%conditional.5.y = f32[4] multiply(%p1, %p1)
return %conditional.3.y, %conditional.5.y
""")
def inline_known_branch(g: GraphBuilder) -> str | tuple[str, ...]:
    x, y = g.parameter("f32[4]"), g.parameter("f32[4]")
    double, square = GraphBuilder("double"), GraphBuilder("square")
    a, b = double.parameter("f32[4]"), square.parameter("f32[4]")
    branches = [double.build(double.same("add", a, a, name="y"))]
    branches += [square.build(square.same("multiply", b, b, name="y"))]
    attrs = ConditionalAttrs((1, 1))
    return (
        g.op("conditional", "f32[4]", g.constant(True), x, y, attrs=attrs, regions=branches),
        g.op("conditional", "f32[4]", g.constant(9, "s32"), x, y, attrs=attrs, regions=branches),
    )


@case("""
%p0 = f32[4] parameter() (index=0)
%conditional.2.negate.1 = f32[4] negate(%p0)
return %p0, %conditional.2.negate.1
""")
def project_known_branch(g: GraphBuilder) -> str | tuple[str, ...]:
    x = g.parameter("f32[4]")
    pair = GraphBuilder("pair")
    a = pair.parameter("f32[4]")
    region = pair.build(a, pair.same("negate", a))
    both = g.op(
        "conditional",
        "(f32[4], f32[4])",
        g.constant(0, "s32"),
        x,
        attrs=ConditionalAttrs((1,)),
        regions=[region],
    )
    return g.element(both, 0), g.element(both, 1)


def _build(name: str) -> tuple[Graph, str]:
    build, expected = CASES[name]
    g = GraphBuilder()
    outputs = build(g)
    outputs = (outputs,) if isinstance(outputs, str) else outputs
    return check_graph(g.build(*outputs)), expected


def _show(graph: Graph) -> str:
    """The printed graph without its head and the precision of dots, less indented."""
    lines = (line[2:] for line in str(graph).splitlines()[1:])
    return "\n".join(lines).replace(_PRECISION, "")


_PRECISION = ", precision=('DEFAULT', 'DEFAULT')"


@pytest.mark.parametrize("name", CASES)
def test_rule(name: str) -> None:
    graph, expected = _build(name)
    assert _show(check_graph(simplify(graph))) == expected.strip()


_EFFECTS = {"keep_two_draws", "drop_dead_nodes_but_no_parameter_or_effect"}


@pytest.mark.parametrize("name", [name for name in CASES if name not in _EFFECTS])
def test_rule_keeps_every_bit(name: str) -> None:
    graph, _ = _build(name)
    for seed in range(3):
        arguments = _special_arguments(graph, seed)
        _assert_same_bits(run_graph(simplify(graph), arguments), run_graph(graph, arguments))


def _special_arguments(graph: Graph, seed: int) -> list[np.ndarray]:
    """Every third float is NaN, infinite or a zero of either sign."""
    rng = np.random.default_rng(seed)
    arguments = random_arguments(graph, seed)
    for argument in arguments:
        dtype = DType.of(argument.dtype)
        if dtype.is_float:
            special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0]).astype(argument.dtype)
            chosen = rng.integers(0, 15, argument.shape)
            argument[...] = np.where(chosen < 5, special[chosen % 5], argument)
    return arguments


def _assert_same_bits(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    """Equal types and bits; a NaN is a NaN, whatever its payload."""
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if DType.of(a.dtype).is_float:
            nan = np.isnan(b)
            np.testing.assert_array_equal(np.isnan(a), nan)
            a, b = a[~nan], b[~nan]
        assert a.tobytes() == b.tobytes(), f"{a} != {b}"


def test_every_rule_has_a_case() -> None:
    fired = collections.Counter[str]()
    for name in CASES:
        simplify(_build(name)[0], lambda rule, _: fired.update([rule]))
    rules = {rule.__name__ for rules in RULES.values() for rule in rules}
    assert rules <= set(fired), f"no case fires {sorted(rules - set(fired))}"


LIMITS = (0.9, 0.1, 0.5, 1e-7, 2.0**-23, 3e-8, 1 - 2.0**-24, 1.0, 0.0, -1.0, 2.0, np.inf, np.nan)


@pytest.mark.parametrize("direction", ["LT", "LE", "GT", "GE", "EQ", "NE"])
@pytest.mark.parametrize("limit", LIMITS)
def test_random_bits_are_compared_as_their_numbers_are(direction: str, limit: float) -> None:
    """Around the limit, at both ends, and anywhere; the number as the first operand and as the second."""
    count = 4096
    g = GraphBuilder()
    number = random_number(g, g.parameter(f"u32[{count}]"), f"[{count}]")
    c = g.splat(limit, f"f32[{count}]")
    scaled = g.same("multiply", number, g.splat(3.0, f"f32[{count}]"))
    outputs = (g.compare(direction, number, c), g.compare(direction, c, number))
    graph = g.build(*outputs, g.compare(direction, scaled, c))
    around = int(min(max(np.nan_to_num(limit), 0), 1) * 2**23)
    near = np.clip(np.arange(around - 9, around + 9), 0, 2**23 - 1).astype(np.uint32)
    third = np.clip(np.arange(around // 3 - 9, around // 3 + 9), 0, 2**23 - 1).astype(np.uint32)
    upper = np.concatenate([near, third, np.array([0, 1, 2**23 - 2, 2**23 - 1], np.uint32)])
    drawn = np.random.default_rng(3).integers(0, 1 << 32, count, np.uint32)
    bits = np.concatenate([upper << 9, upper << 9 | 511, drawn])[:count]
    simpler = simplify(graph)
    for got, want in zip(run_graph(simpler, [bits]), run_graph(graph, [bits]), strict=True):
        np.testing.assert_array_equal(got, want)
    if 0 < limit < 0.99 and direction not in ("EQ", "NE"):
        assert not {"bitcast-convert", "maximum"} & {node.op for node in simpler}


# ---- names, parameters, regions


def test_survivors_keep_name_and_origin() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[8]")
    y = g.op("copy", "f32[8]", x)
    z = g.op("tanh", "f32[8]", y, name="activation", op_name="jit(f)/tanh", source="f.py:3")
    node = simplify(g.build(z))["activation"]
    assert (node.operands, node.op_name, node.source) == (("p0",), "jit(f)/tanh", "f.py:3")


def test_new_nodes_say_where_they_come_from_and_avoid_taken_names() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[6]")
    taken = g.op("negate", "f32[6]", x, name="s.slice")
    wide = g.broadcast(x, (8, 6), (1,))
    s = g.slice(wide, (0, 1), (8, 5), name="s")
    graph = g.build(s, taken)
    named = Graph(graph.name, {**graph.nodes}, graph.parameters, graph.outputs)
    assert list(simplify(named).nodes) == ["p0", "s.slice", "s.slice.2", "s"]


def test_dead_parameters_outputs_and_aliases_stay() -> None:
    g = GraphBuilder()
    x, unused = g.parameter("f32[8]"), g.parameter("f32[8]")
    same = g.same("copy", x)
    graph = simplify(g.build(same, x, same, aliases=[(1, 0)]))
    assert graph.parameters == (x, unused)
    assert graph.outputs == (x, x, x)
    assert graph.aliases == ((1, 0),)


def test_regions_are_simplified() -> None:
    region = GraphBuilder("sum")
    a, b = region.parameter("f32[]"), region.parameter("f32[]")
    total = region.same("add", region.same("copy", a), region.same("copy", b))
    g = GraphBuilder()
    x = g.parameter("f32[4,8]")
    attrs = DimensionsAttrs((1,))
    zero = g.constant(0.0, "f32")
    first = g.op("reduce", "f32[4]", x, zero, attrs=attrs, regions=[region.build(total)])
    second = g.reduce(x, (1,), "add")
    graph = simplify(g.build(first, second))
    assert graph.outputs == (first, first)
    assert graph[first].regions == (combiner("add", DType.F32),)


def test_a_large_result_is_not_folded() -> None:
    g = GraphBuilder()
    small, large = (g.constant(np.arange(n), "s32") for n in (FOLD_RESULT_ELEMENTS, 1025))
    graph = simplify(g.build(g.same("negate", small), g.same("negate", large)))
    assert [graph[o].op for o in graph.outputs] == ["constant", "negate"]


def test_an_iota_is_not_turned_into_memory() -> None:
    g = GraphBuilder()
    doubled = g.same("add", *[g.iota("s32[16]", 0)] * 2)
    assert [n.op for n in simplify(g.build(doubled))] == ["iota", "add"]


def test_a_fold_that_the_reference_refuses_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise UnsupportedOp("constant folding of add")

    monkeypatch.setattr("astitch.rewrite.elementwise_rules.eval_node", refuse)
    g = GraphBuilder()
    total = g.same("add", g.constant(1, "s32"), g.constant(2, "s32"))
    assert [n.op for n in simplify(g.build(total))] == ["constant", "constant", "add"]


# ---- properties

_FUZZ = settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@_FUZZ
@given(random_graphs(16), st.integers(0, 999))
def test_simplified_graphs_give_the_same_bits(graph: Graph, seed: int) -> None:
    check_graph(graph)
    arguments = random_arguments(graph, seed)
    simple = check_graph(simplify(graph))
    _assert_same_bits(run_graph(simple, arguments), run_graph(graph, arguments))


@_FUZZ
@given(random_graphs(16))
def test_simplifying_again_changes_nothing(graph: Graph) -> None:
    once = simplify(graph)
    fired: list[tuple[str, str]] = []
    assert str(simplify(once, lambda *event: fired.append(event))) == str(once)
    assert fired == []
    assert str(simplify(graph)) == str(once)


@_FUZZ
@given(random_graphs(16), st.integers(0, 999))
def test_the_order_of_the_rules_does_not_matter(graph: Graph, seed: int) -> None:
    chance = random.Random(seed)
    wanted = _strip_names(simplify(graph))
    # An empty result is a constant, whatever else it might be: that rule stays first.
    shuffled = {
        op: tuple(sorted(chance.sample(rules, len(rules)), key=lambda r: r is not fold_empty))
        for op, rules in RULES.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RULES", shuffled)
        assert _strip_names(simplify(graph)) == wanted


def _strip_names(graph: Graph) -> list[object]:
    """A hash of what each output computes; names and the order of nodes do not count."""
    terms: dict[str, int] = {}
    for node in graph:
        operands = tuple(terms[o] for o in node.operands)
        regions = tuple(r.key for r in node.regions)
        terms[node.name] = hash((node.op, node.type, operands, node.attrs, regions))
    return [terms[o] for o in graph.outputs]


# ---- real modules, and size

_CORPUS = sorted((Path(__file__).parents[1] / "data" / "corpus").glob("*.hlo.pb.gz"))


@pytest.mark.parametrize("path", _CORPUS, ids=lambda p: p.name.split(".")[0])
def test_corpus(path: Path) -> None:
    graph = check_graph(import_hlo(gzip.decompress(path.read_bytes())))
    simple = check_graph(simplify(graph))
    assert str(simplify(simple)) == str(simple)
    assert _find_leftovers(simple) == []
    arguments = random_arguments(graph, 0)
    wanted, found = run_graph(graph, arguments), run_graph(simple, arguments)
    if any(node.op == "dot" for node in simple):  # the host's BLAS sums in the order of the layout
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a.astype(np.complex128), b.astype(np.complex128), rtol=1e-4)
    else:
        _assert_same_bits(found, wanted)


def _find_leftovers(graph: Graph) -> list[str]:
    """Broadcasts, reshapes and transposes that are not in canonical form, in regions too."""
    found = []
    for node in graph:
        below = graph[node.operands[0]] if node.operands else node
        pair = (node.op, below.op)
        if pair in (
            ("broadcast", "broadcast"),
            ("reshape", "reshape"),
            ("transpose", "transpose"),
            ("transpose", "broadcast"),
        ):
            found.append(f"{below}; {node}")
        if node.op in ("broadcast", "reshape") and node.type == below.type:
            found.append(str(node))
        if pair == ("broadcast", "reshape") and 1 in below.shape:
            found.append(f"{below}; {node}")
        found += [line for region in node.regions for line in _find_leftovers(region)]
    return found


LINEAR_S = 5.0
"""Of a processor, for 10,000 ops: ten times what it takes to see each once."""


def test_a_long_chain_is_fast() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[64]")
    one = g.splat(1.0, "f32[64]")
    y = x
    for _ in range(2500):
        y = g.reshape(g.reshape(g.same("multiply", g.same("tanh", y), one), (1, 64)), (64,))
    graph = g.build(y)
    start = time.process_time()
    simple = simplify(graph)
    assert time.process_time() - start < LINEAR_S
    assert len(graph) == 10_003
    assert [n.op for n in simple] == ["parameter"] + ["tanh"] * 2500


def test_a_wide_graph_is_fast() -> None:
    g = GraphBuilder()
    pieces = []
    for i in range(2500):
        x = g.parameter("f32[4]")
        y = g.same("add", x, g.splat(float(i % 7), "f32[4]"))
        pieces.append(g.same("multiply", y, g.same("copy", y)))
    graph = g.build(g.concatenate(pieces, 0), *pieces)
    start = time.process_time()
    simple = simplify(graph)
    assert time.process_time() - start < LINEAR_S
    # Seven splats and their constants are left of 2,500; the addition of 0.0 is not for free.
    assert len(simple) == 2500 * 3 + 7 * 2 + 1
