"""Attention from its plain formula: jax.jit, JAX's call of cuDNN, torch's own, torch.compile, astitch.enable(), and our
own kernels.

`python -m benchmarks.attention --json FILE` on a GPU: one table, a row for each form and size.  Times are of a call in
microseconds, in turns, and of its kernels alone; errors are against f64, norm over norm, the worst result. `--check`
compares only, `--every N` takes each N-th form.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import astitch
from astitch.attention import find
from astitch.attention.choose import Projection
from astitch.hlo.tile_call import TRITON
from astitch.profiling.kernel_trace import record_kernels
from astitch.profiling.timing import Runner, choose_calls, measure_wall, time_batch
from benchmarks.results import describe

SIDES = ("xla", "cudnn", "torch", "compiled", "astitch", "own")
"""torch: scaled_dot_product_attention.  compiled: torch.compile of the plain formula.
own: astitch.enable() with our own kernels wherever they can be, also where cuDNN or the plain ops are chosen."""

IN_TORCH = ("torch", "compiled")

BATCHES, BUDGET_S = 9, 2.0
TRACE_US, MOST_CALLS = 20_000.0, 50
WORDS = 16384
"""Positions of all batches together; so much work has each row."""

CAP, KEPT = 30.0, 0.9
"""The bound of capped scores, and the share of weights that dropout keeps."""

DOCUMENTS = 4
"""Of each row of words with segments, on average."""

MOST_SCORES = 1 << 31
"""Beyond that the plain formula is not run: its scores alone are 4 GB."""

MOST_EXACT = 1 << 28
"""Beyond that nothing is compared with f64: each array of scores would be over 2 GB."""


@dataclass(frozen=True, slots=True)
class Form:
    """One attention.

    mask: those of none, causal, window, padding, segments, bias, learned (a bias with a gradient), whole (one as large
    as the scores, likewise), sink, dropout and cap that it has, joined by +.  groups: heads of k and v; fewer share.
    """

    length: int
    features: int
    dtype: str
    mask: str
    heads: int = 16
    groups: int = 16
    gradient: bool = False

    @property
    def name(self) -> str:
        half = "gradient" if self.gradient else "forward"
        shared = f" {self.groups} groups" if self.groups != self.heads else ""
        return f"{self.dtype} {self.length} x {self.features} {self.mask}{shared} {half}"

    @property
    def parts(self) -> frozenset[str]:
        return frozenset(self.mask.split("+"))

    @property
    def batch(self) -> int:
        return max(1, WORDS // self.length)

    @property
    def flops(self) -> float:
        """Multiplications and additions of the products; a causal mask leaves half."""
        whole = 4.0 * self.batch * self.heads * self.length**2 * self.features
        return whole * (3.5 if self.gradient else 1) * (0.5 if "causal" in self.parts else 1)


@dataclass(slots=True)
class Row:
    """us, gpu_us, errors: by side.  calls: of cuDNN's attention and of our kernels in astitch's program.

    us: a call, pipelined.  gpu_us: the kernels and copies of a call, without the gaps between them."""

    form: Form
    us: dict[str, float] = field(default_factory=dict)
    gpu_us: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    calls: int = 0
    notes: dict[str, str] = field(default_factory=dict)


def list_forms() -> Iterator[Form]:
    for length, mask in itertools.product((128, 512, 1024, 4096, 16384), ("none", "causal")):
        for gradient in (False, True):
            yield Form(length, 64, "bf16", mask, gradient=gradient)
    for gradient in (False, True):
        for features, dtype in ((128, "bf16"), (80, "bf16"), (256, "bf16"), (64, "f16")):
            yield Form(1024, features, dtype, "causal", gradient=gradient)
        yield Form(2048, 128, "bf16", "causal", groups=4, gradient=gradient)
        for mask in ("window", "padding", "bias", "dropout", "cap"):
            yield Form(1024, 64, "bf16", mask, gradient=gradient)
    for length, mask in itertools.product((256, 512, 1024, 4096), ("none", "causal")):
        for gradient in (False, True):
            yield Form(length, 64, "f32", mask, gradient=gradient)
    for gradient in (False, True):
        for features, mask in ((32, "causal"), (80, "causal"), (128, "causal"), (128, "none")):
            yield Form(1024, features, "f32", mask, gradient=gradient)
        yield Form(1024, 64, "f32", "causal", groups=4, gradient=gradient)
        for mask in ("window", "padding", "bias", "dropout", "cap"):
            yield Form(1024, 64, "f32", mask, gradient=gradient)
        for dtype in ("bf16", "f32"):
            yield Form(128, 64, dtype, "dropout", gradient=gradient)
    for mask, dtype in itertools.product(BESIDE_EACH_OTHER, ("bf16", "f32")):
        for gradient in (False, True):
            yield Form(1024, 64, dtype, mask, gradient=gradient)


BESIDE_EACH_OTHER = (
    "sink",
    "causal+sink",
    "segments",
    "causal+segments",
    "causal+padding",
    "padding+bias",
    "causal+bias",
    "learned",
    "learned+padding",
    "whole",
    "causal+whole",
    "padding+dropout",
    "cap+dropout",
)
"""Masks of forms of 1,024 positions of which libraries take few."""


BIASES = {"bias", "learned", "whole"}
"""Numbers that are added to scores; learned: with a gradient; whole: also of each batch."""


def attend(form: Form) -> Callable[..., Any]:
    """The plain formula of q, k, v [batch, positions, heads, features] and an array for padding, bias or dropout."""

    def attention(q: Any, k: Any, v: Any, *arrays: Any) -> Any:
        wide = jnp.promote_types(q.dtype, jnp.float32)
        given = dict(zip(list_given(form), arrays, strict=True))
        k, v = (jnp.repeat(x, form.heads // form.groups, axis=2) for x in (k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(wide) / math.sqrt(form.features)
        if "cap" in form.parts:
            scores = CAP * jnp.tanh(scores / CAP)
        for bias in BIASES & given.keys():
            scores = scores + given[bias].astype(wide)
        if (seen := find_seen(form, given)) is not None:
            scores = jnp.where(seen, scores, -1e9)
        if "sink" in given:
            sink = given["sink"].astype(wide)[None, :, None, None]
            sink = jnp.broadcast_to(sink, (*scores.shape[:3], 1))
            scores = jnp.concatenate([scores, sink], -1)
        weights = jax.nn.softmax(scores, -1)[..., : form.length]
        if "dropout" in given:
            key = jax.random.wrap_key_data(given["dropout"])
            kept = jax.random.bernoulli(key, np.float32(KEPT), weights.shape)
            weights = jnp.where(kept, weights / KEPT, 0)
        return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(q.dtype), v)

    return differentiate(attention, count_gradients(form)) if form.gradient else attention


def count_gradients(form: Form) -> int:
    """q, k, v and what is learned beside them."""
    return 3 + len(form.parts & {"sink", "learned", "whole"})


def list_given(form: Form) -> list[str]:
    """What the formula is given beside q, k and v."""
    arrays = ("learned", "whole", "sink", "padding", "segments", "bias", "dropout")
    return [name for name in arrays if name in form.parts]


def find_seen(form: Form, given: Mapping[str, Any], at: Any = None) -> Any:
    """Which keys a query sees: by their positions and as arrays say; None for all.

    at: the positions, by the package that computes; NumPy's, and so JAX's, where it is None.
    """
    at = np.arange(form.length) if at is None else at
    distance = at[:, None] - at
    seen: list[Any] = []
    if "causal" in form.parts:
        seen.append(distance >= 0)
    if "window" in form.parts:
        seen.append((distance >= 0) & (distance < form.length // 4))
    if "padding" in form.parts:
        seen.append(given["padding"][:, None, None, :])
    if "segments" in form.parts:
        ids = given["segments"]
        seen.append(ids[:, None, :, None] == ids[:, None, None, :])
    return functools.reduce(lambda a, b: a & b, seen) if seen else None


def differentiate(function: Callable[..., Any], count: int = 3) -> Callable[..., Any]:
    """The gradients in q, k and v, or in so many arguments, of the result times itself."""

    def loss(*given: Any) -> Any:
        result = function(*given)
        return 0.5 * jnp.sum(
            jnp.square(result.astype(jnp.promote_types(result.dtype, jnp.float32)))
        )

    return jax.grad(loss, argnums=tuple(range(count)))


def call_library(form: Form, implementation: str = "cudnn") -> Callable[..., Any]:
    """JAX's own attention, as a user writes it."""

    def attention(q: Any, k: Any, v: Any, *arrays: Any) -> Any:
        if lacks := form.parts & {"dropout", "cap", "sink"}:
            raise NotImplementedError(f"JAX's call has no {', '.join(sorted(lacks))}")
        given = dict(zip(list_given(form), arrays, strict=True))
        named: dict[str, Any] = {"is_causal": not form.parts.isdisjoint(("causal", "window"))}
        if "window" in form.parts:
            named["local_window_size"] = (form.length // 4 - 1, 0)
        if "padding" in given or "segments" in given:
            named["mask"] = find_seen(replace(form, mask="+".join(list_given(form))), given)
        for bias in BIASES & given.keys():
            named["bias"] = given[bias]
        return jax.nn.dot_product_attention(q, k, v, implementation=implementation, **named)

    return differentiate(attention, count_gradients(form)) if form.gradient else attention


def make_arguments(form: Form) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    dtype = jnp.dtype({"bf16": jnp.bfloat16, "f16": jnp.float16, "f32": jnp.float32}[form.dtype])

    def draw(heads: int) -> np.ndarray:
        shape = (form.batch, form.length, heads, form.features)
        return random.standard_normal(shape, np.float32).astype(dtype)

    arrays = [draw(form.heads), draw(form.groups), draw(form.groups)]
    for name in list_given(form):
        if name == "padding":
            lengths = random.integers(1, form.length + 1, (form.batch, 1))
            arrays.append(np.arange(form.length) < lengths)
        elif name == "segments":
            starts = random.random((form.batch, form.length)) < DOCUMENTS / form.length
            arrays.append(np.cumsum(starts, 1).astype(np.int32))
        elif name in BIASES:
            shape = (form.batch if name == "whole" else 1, form.heads, form.length, form.length)
            arrays.append(random.standard_normal(shape, np.float32).astype(dtype))
        elif name == "sink":
            arrays.append(random.standard_normal(form.heads, np.float32).astype(dtype))
        else:
            arrays.append(np.array([0, 3], np.uint32))  # a key
    return arrays


def wait_for_torch(results: Any) -> None:
    import torch

    torch.cuda.synchronize()


def measure_row(form: Form, sides: Sequence[str], *, only_check: bool) -> Row:
    row = Row(form)
    arrays = make_arguments(form)
    placed = [jax.device_put(a) for a in arrays]
    runners: list[Runner] = []
    scores = form.batch * form.heads * form.length**2
    exact = evaluate_exactly(form, arrays) if scores <= MOST_EXACT else None
    for side in sides:
        if side == "xla" and scores > MOST_SCORES:
            continue
        try:
            runner = make_runner(side, form, arrays, placed, row)
            results = runner.call()
            runner.wait(results)
            if exact is not None and side not in IN_TORCH:
                row.errors[side] = distance_from(exact, results)
            runners.append(runner)
        except Exception as error:  # what one side cannot do is a result
            row.notes[side] = describe(error)
    if not only_check:
        row.us = measure_wall(runners, BATCHES, BUDGET_S)
        for runner in runners:
            calls = choose_calls(row.us[runner.name], TRACE_US, MOST_CALLS)
            found = record_kernels(lambda n, runner=runner: time_batch(runner, n), calls)  # type: ignore[misc]
            row.gpu_us[runner.name] = found.total_us
    return row


def make_runner(
    side: str, form: Form, arrays: Sequence[np.ndarray], placed: Sequence[Any], row: Row
) -> Runner:
    if side in IN_TORCH:
        from benchmarks.attention_torch import make_call

        call = make_call(form, arrays, compiled=side == "compiled")
        return Runner(side, call, wait_for_torch, list)
    function = jax.jit((call_library if side == "cudnn" else attend)(form))
    if side in ("astitch", "own"):
        with own_kernels() if side == "own" else nullcontext(), astitch.enabled():
            compiled = function.lower(*placed).compile()
        text = compiled.as_text()
        row.calls = sum(map(text.count, ('target="__cudnn$fmha', f'target="{TRITON}"')))
    else:
        with astitch.disabled():
            compiled = function.lower(*placed).compile()
    return Runner(side, lambda: compiled(*placed), jax.block_until_ready, jax.tree.leaves)


@contextmanager
def own_kernels() -> Iterator[None]:
    """Within the block, attention is given to our own kernels wherever there are some."""

    def prefer(*given: Any, **named: Any) -> Projection:
        return Projection(0.0 if project(*given, **named) else math.inf, 1.0)

    project, kept = find.project, os.environ.get(CACHE)
    with TemporaryDirectory() as folder:  # the cache has what was chosen before
        try:
            find.project, os.environ[CACHE] = prefer, folder
            yield
        finally:
            find.project = project
            os.environ.pop(CACHE)
            if kept is not None:
                os.environ[CACHE] = kept


CACHE = "ASTITCH_CACHE_DIR"


def evaluate_exactly(form: Form, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    with jax.enable_x64(True), astitch.disabled():
        wide = [a if a.dtype.kind in "biu" else a.astype(np.float64) for a in arrays]
        return [np.asarray(x) for x in jax.tree.leaves(jax.jit(attend(form))(*wide))]


def distance_from(exact: Sequence[np.ndarray], results: Any) -> float:
    found = [np.asarray(x).astype(np.float64) for x in jax.tree.leaves(results)]
    return max(
        float(np.linalg.norm(f - e) / np.linalg.norm(e)) for f, e in zip(found, exact, strict=True)
    )


def format_row(row: Row) -> str:
    def show(values: Mapping[str, float], form: str) -> str:
        return " ".join(f"{format(values[s], form) if s in values else '-':>9}" for s in SIDES)

    ours = row.us.get("astitch")
    rate = f"{row.form.flops / ours / 1e6:6.0f}" if ours else "     -"
    notes = "".join(f"\n    {side}: {note}" for side, note in row.notes.items())
    times = f"{show(row.us, '.0f')} | {show(row.gpu_us, '.0f')}"
    return f"{row.form.name:42} {times} | {rate} {row.calls:5} | {show(row.errors, '.1e')}{notes}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="forms whose name has one of these")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--every", type=int, default=1, help="each so many forms one is taken")
    parser.add_argument("--check", action="store_true", help="compare results, measure nothing")
    parser.add_argument("--json", type=Path, help="write the rows there, after each")
    options = parser.parse_args(arguments)
    forms = [f for f in list_forms() if not options.only or any(w in f.name for w in options.only)]
    forms = forms[:: options.every]
    head = " ".join(f"{side:>9}" for side in SIDES)
    print(f"{'us a call | its kernels':42} {head} | {head} | TFLOPS calls | {head}")
    rows: list[Row] = []
    for form in forms:
        rows.append(measure_row(form, options.sides, only_check=options.check))
        print(format_row(rows[-1]), flush=True)
        if options.json:
            options.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
