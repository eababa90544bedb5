"""Random programs around segments, scatters and the few largest, beside jax.jit.

`python -m tests.segment_programs --count 2000 --seed 1`.  Values are as JAX's: the same bits of integers, and no
further from f64 than XLA's are, but for some roundings.  Kernels are emulated.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.graph.check import check_graph
from astitch.graph.ir import Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.expand import expand
from astitch.rewrite.few_rows import reduce_few_rows
from astitch.rewrite.native_scatters import combine_natively
from astitch.rewrite.row_sorts import sort_rows
from astitch.rewrite.simplify import simplify
from astitch.rewrite.sorted_scatters import reduce_sorted_rows
from astitch.rewrite.top_k import take_largest
from astitch.run.host_engine import HostEngine

Fn = Callable[..., Any]

FLOATS = (np.float32, np.float16, jnp.bfloat16)
INTEGERS = (np.int32, np.uint8, np.int16, np.uint32)
SEGMENTS: dict[str, Fn] = {
    "sum": jax.ops.segment_sum,
    "max": jax.ops.segment_max,
    "min": jax.ops.segment_min,
    "prod": jax.ops.segment_prod,
}
ROUNDINGS = 8.0
"""Of results, by which astitch may be further from f64 than XLA is."""


@dataclass(frozen=True)
class Drawn:
    """fn(values, ids).  text: what it is, for people."""

    text: str
    fn: Fn
    arguments: tuple[np.ndarray, ...]


def draw(random: np.random.Generator) -> Drawn:
    makes = (
        draw_segments,
        draw_softmax,
        draw_update,
        draw_count,
        draw_gradient,
        draw_top_k,
        draw_sort,
        draw_search,
    )
    make = makes[int(random.integers(len(makes)))]
    return make(random)


def draw_values(random: np.random.Generator, dtype: Any, shape: Sequence[int]) -> np.ndarray:
    if jnp.issubdtype(dtype, jnp.floating):
        return random.uniform(0.9, 1.1, tuple(shape)).astype(dtype)
    return random.integers(0, 5, tuple(shape)).astype(dtype)


@dataclass(frozen=True)
class Sizes:
    rows: int
    ids: np.ndarray
    row: tuple[int, ...]
    in_order: bool

    def __str__(self) -> str:
        return f"{self.ids.size} of {self.row} into {self.rows}{', in order' * self.in_order}"


def draw_sizes(random: np.random.Generator) -> Sizes:
    """Few rows and many, rows that are empty, and such as take in nearly all."""
    rows = int(random.choice([1, 3, 16, 40, 150, 700]))
    count = int(random.choice([7, 100, 900, 3000]))
    row: tuple[int, ...] = [(), (1,), (5,), (2, 3)][int(random.integers(4))]
    ids = random.integers(-1, rows + 1, count)
    if random.random() < 0.3:
        ids[random.random(count) < 0.8] = rows // 2
    in_order = random.random() < 0.4
    return Sizes(rows, (np.sort(ids) if in_order else ids).astype(np.int32), row, in_order)


def draw_dtype(random: np.random.Generator) -> Any:
    kinds = FLOATS if random.random() < 0.7 else INTEGERS
    return kinds[int(random.integers(len(kinds)))]


def around(random: np.random.Generator) -> tuple[str, Fn, Fn]:
    """What stands before and after."""
    before: dict[str, Fn] = {"": lambda x: x, "2x": lambda x: x * 2, "x+x": lambda x: x + x[::-1]}
    after: dict[str, Fn] = {
        "": lambda y, x, i: y,
        "at ids": lambda y, x, i: y[jnp.clip(i, 0, y.shape[0] - 1)] + x,
        "sum": lambda y, x, i: (y, y.sum(0)),
    }
    first, last = str(random.choice(list(before))), str(random.choice(list(after)))
    return f"{first}; {last}", before[first], after[last]


def draw_segments(random: np.random.Generator) -> Drawn:
    sizes, dtype = draw_sizes(random), draw_dtype(random)
    name = str(random.choice(list(SEGMENTS)))
    text, before, after = around(random)

    def fn(x: Any, i: Any) -> Any:
        x = before(x)
        y = SEGMENTS[name](x, i, sizes.rows, indices_are_sorted=sizes.in_order)
        return after(y, x, i)

    x = draw_values(random, dtype, (sizes.ids.size, *sizes.row))
    if name == "prod" and not jnp.issubdtype(dtype, jnp.floating):
        x = np.maximum(x, 1)
    return Drawn(f"segment_{name} {np.dtype(dtype)} {sizes}: {text}", fn, (x, sizes.ids))


def draw_softmax(random: np.random.Generator) -> Drawn:
    sizes = draw_sizes(random)

    def fn(x: Any, i: Any) -> Any:
        hints = {"indices_are_sorted": sizes.in_order}
        i = jnp.clip(i, 0, sizes.rows - 1)
        shares = jnp.exp(x - jax.ops.segment_max(x, i, sizes.rows, **hints)[i])
        return shares / jax.ops.segment_sum(shares, i, sizes.rows, **hints)[i]

    x = draw_values(random, np.float32, (sizes.ids.size, *sizes.row)) * 4
    return Drawn(f"softmax {sizes}", fn, (x, sizes.ids))


def draw_update(random: np.random.Generator) -> Drawn:
    sizes, dtype = draw_sizes(random), draw_dtype(random)
    name = str(random.choice(["add", "max", "min"]))
    form = str(random.choice(["rows", "columns", "in a scan", "under vmap"]))

    def update(x: Any, i: Any, u: Any) -> Any:
        # A negative place would be counted from the end, and the places be in no order any more.
        places = jnp.where(i < 0, sizes.rows, i) if not sizes.in_order else jnp.maximum(i, 0)
        return getattr(x.at[places], name)(u, mode="drop", indices_are_sorted=sizes.in_order)

    def fn(u: Any, i: Any) -> Any:
        x = jnp.ones((sizes.rows, *sizes.row), u.dtype)
        if form == "columns":
            x, u = jnp.moveaxis(x, 0, -1), jnp.moveaxis(u, 0, -1)
            return getattr(x.at[..., i], name)(u, mode="drop")
        if form == "in a scan":
            return lax.scan(lambda x, u: (update(x, i, u), x.sum()), x, jnp.stack([u, u]))
        if form == "under vmap":
            stacked = jnp.stack([u, u[::-1]]), jnp.stack([i, i])
            return jax.vmap(lambda u, i: update(x, i, u))(*stacked)
        return update(x, i, u)

    u = draw_values(random, dtype, (sizes.ids.size, *sizes.row))
    return Drawn(f"{name} {np.dtype(dtype)} {form} {sizes}", fn, (u, sizes.ids))


def draw_count(random: np.random.Generator) -> Drawn:
    sizes = draw_sizes(random)

    def fn(u: Any, i: Any) -> Any:
        i = jnp.clip(i, 0, sizes.rows - 1)
        return jnp.bincount(i, u, length=sizes.rows), jnp.bincount(i, length=sizes.rows)

    return Drawn(
        f"bincount {sizes}", fn, (draw_values(random, np.float32, sizes.ids.shape), sizes.ids)
    )


def draw_gradient(random: np.random.Generator) -> Drawn:
    sizes, dtype = draw_sizes(random), FLOATS[int(random.integers(3))]

    def fn(u: Any, i: Any) -> Any:
        table = jnp.ones((sizes.rows, *sizes.row), u.dtype)
        i = jnp.clip(i, 0, sizes.rows - 1)
        return jax.grad(lambda t: (jnp.tanh(t[i]) * u).astype(jnp.float32).sum())(table)

    u = draw_values(random, dtype, (sizes.ids.size, *sizes.row))
    return Drawn(f"gradient of a table {np.dtype(dtype)} {sizes}", fn, (u, sizes.ids))


def draw_top_k(random: np.random.Generator) -> Drawn:
    dtype, columns = draw_dtype(random), int(random.choice([9, 33, 200]))
    k = min(int(random.choice([*range(1, 9), 20, 100])), columns)

    def fn(x: Any, i: Any) -> Any:
        values, places = lax.top_k(x * 2, k)
        return values, places, jnp.zeros(columns, jnp.int32).at[places].add(1), i

    x = random.permutation(columns * 6).reshape(6, columns).astype(dtype)
    return Drawn(f"top {k} of {columns} {np.dtype(dtype)}", fn, (x, np.zeros(1, np.int32)))


def draw_sort(random: np.random.Generator) -> Drawn:
    dtype, columns = draw_dtype(random), int(random.choice([2, 9, 33, 200, 700]))
    axis, descending = int(random.integers(2)), bool(random.integers(2))
    share = int(random.integers(1, columns + 1))

    def fn(x: Any, i: Any) -> Any:
        order = jnp.argsort(x, axis, descending=descending)
        _, other = lax.sort((x * 2, x + 1), dimension=axis, num_keys=1)
        first = lax.slice_in_dim(order, 0, share, axis=axis)
        sorted_ = jnp.sort(x, axis, descending=descending)
        return sorted_, order, first, other, jnp.cumsum(sorted_, axis), i

    x = random.integers(-9, 9, (5, columns)).astype(dtype)
    x = x if axis else np.ascontiguousarray(x.T)
    text = f"sort of {x.shape} {np.dtype(dtype)} along {axis}, descending: {descending}"
    return Drawn(text, fn, (x, np.zeros(1, np.int32)))


def draw_search(random: np.random.Generator) -> Drawn:
    count, side = int(random.choice([1, 10, 100, 3000])), str(random.choice(["left", "right"]))
    edges = np.sort(random.integers(-20, 20, count)).astype(np.float32)

    def fn(x: Any, i: Any) -> Any:
        found = jnp.searchsorted(jnp.asarray(edges), x, side=side)
        return found, jnp.bincount(found.reshape(-1), length=8), i

    x = random.integers(-25, 25, (5, 30)).astype(np.float32)
    return Drawn(f"search among {count}, {side}", fn, (x, np.zeros(1, np.int32)))


# ---- comparing ---------------------------------------------------------------------------------------------------


def widen(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x


def compare(drawn: Drawn) -> str:
    """What is wrong; the empty string where nothing is."""
    lowered = jax.jit(drawn.fn, keep_unused=True).lower(*drawn.arguments)
    graph = import_hlo(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    program = compile_graph(graph, preset("h100")).program
    wanted = [np.asarray(a) for a in jax.tree.leaves(jax.jit(drawn.fn)(*drawn.arguments))]
    with jax.enable_x64(True):
        exact = jax.tree.leaves(jax.jit(drawn.fn)(*map(widen, drawn.arguments)))
    ways = {
        "emulated": HostEngine(program).run(list(drawn.arguments)),
        "in any order": run_graph(rewrite_in_any_order(graph), list(drawn.arguments)),
    }
    for way, found in ways.items():
        for got, want, wide in zip(map(np.asarray, found), wanted, exact, strict=True):
            if fault := judge(got, want, np.asarray(wide)):
                return f"{way}: {fault}"
    return ""


def rewrite_in_any_order(graph: Graph) -> Graph:
    """As through XLA's hook, where scatters may combine in any order."""
    expanded = expand(simplify(graph))
    reduced = reduce_sorted_rows(reduce_few_rows(sort_rows(take_largest(expanded))))
    return check_graph(combine_natively(reduced))


def judge(got: np.ndarray, want: np.ndarray, wide: np.ndarray) -> str:
    """What is wrong with a result beside XLA's and that of the program in f64."""
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return f"{got.dtype}{got.shape} is not {want.dtype}{want.shape}"
    if not jnp.issubdtype(want.dtype, jnp.floating):
        differ = int((got != want).sum())
        return f"{differ} of {got.size} integers differ" if differ else ""
    exact, eps = wide.astype(np.float64), float(jnp.finfo(want.dtype).eps)
    with np.errstate(invalid="ignore"):  # of infinities
        ours, theirs = (np.abs(a.astype(np.float64) - exact) for a in (got, want))
    room = np.maximum(theirs, theirs.max(initial=0.0)) + ROUNDINGS * eps * np.abs(exact)
    is_same = (got == want) | ((got != got) & (want != want))
    wrong = (ours > room) & np.isfinite(exact) & ~is_same
    if not wrong.any():
        return ""
    (place, *_) = np.flatnonzero(wrong)
    values = [float(a.reshape(-1)[place]) for a in (got, want, exact)]
    return f"element {place}, ours, XLA's and f64: {values}"


def run(count: int, seed: int) -> list[str]:
    """The faults of so many programs, each with what draws it again."""
    faults = []
    for number in range(count):
        drawn = draw(np.random.default_rng([seed, number]))
        try:
            fault = compare(drawn)
        except Exception as error:  # a program that does not compile is a fault too
            fault = f"{type(error).__name__}: {error}"
        if fault:
            faults.append(f"seed {seed}, number {number}: {drawn.text}: {fault}")
    return faults


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line.  Returns 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    faults = run(options.count, options.seed)
    print(*faults, f"{options.count} programs, {len(faults)} faults", sep="\n")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
