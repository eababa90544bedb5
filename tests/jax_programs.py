"""Random JAX programs through astitch.jit beside jax.jit: `python -m tests.jax_programs --count 1000 --seed 0`.

A seed decides a program: its arguments, its steps (calls of tests/jax_functions.py, with functions of their own where
they take one) and its results.  tests/rounding_model.py says how near the results must come.
A failure is reduced to few steps and printed as a script that can be run.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import random
import re
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import astitch
from astitch.compile import compile_hlo
from astitch.device.gpu import preset
from astitch.errors import CompilerMissing, DynamicShape, UnsupportedOp, UnsupportedType
from astitch.hlo_import import import_hlo
from astitch.xla.compile_module import compile_for_xla
from tests.jax_functions import ANY, BOOL, FAMILIES, FLOAT, INT, is_small
from tests.rounding_model import Judged, judge

T = TypeVar("T")

NAMESPACE = {"jax": jax, "jnp": jnp, "lax": lax, "np": np}

GPUS = ("h100", "v100", "b200")

INSIDE_XLA = "xla:"
"""Begins a stage that compiles for a GPU as astitch.jit does there: into a program of XLA's."""

HOOK = "hook"
"""The stage that compiles by jax.jit for a GPU that is not here, with astitch in XLA's hook, and runs what XLA is
given back (tests/hook_evaluation.py).  It needs XLA's compiler for NVIDIA GPUs."""


def choose_stages(seed: int) -> tuple[str, ...]:
    """All trials of a program: see try_program."""
    return ("host", *GPUS, INSIDE_XLA + GPUS[seed % len(GPUS)])


# ---- programs ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Value:
    """An array of a program.  text: an expression that has no operator outside of brackets."""

    text: str
    shape: tuple[int, ...]
    dtype: np.dtype
    weak: bool = False

    def __str__(self) -> str:
        return self.text

    @property
    def kind(self) -> str:
        if self.dtype == np.bool_:
            return BOOL
        return FLOAT if jnp.issubdtype(self.dtype, jnp.floating) else INT

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def dtype_text(self) -> str:
        return f"jnp.{self.dtype.name if self.kind != BOOL else 'bool_'}"

    @property
    def struct(self) -> Any:
        make: Any = jax.ShapeDtypeStruct
        return make(self.shape, self.dtype, weak_type=self.weak)

    def without(self, axis: int) -> Value:
        """One slice of it."""
        return replace(self, shape=self.shape[:axis] + self.shape[axis + 1 :])

    def first(self, count: int) -> Value:
        """At most `count` of its slices."""
        if self.shape[0] <= count:
            return self
        return replace(self, text=f"{self}[:{count}]", shape=(count, *self.shape[1:]))

    def strong(self) -> Value:
        return replace(self, weak=False)


@dataclass(frozen=True, slots=True)
class Argument:
    """How an argument is drawn, see `draw`.  limit: integers are indices of so many; 0: any small ones."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    limit: int = 0
    edges: bool = False

    @property
    def text(self) -> str:
        number = int(self.name[1:])
        options = f", limit={self.limit}" if self.limit else ""
        options += ", edges=True" if self.edges else ""
        return f'draw(seed, {number}, "{self.dtype}", {self.shape}{options})'


def draw(
    seed: int, number: int, dtype: str, shape: tuple[int, ...], limit: int = 0, edges: bool = False
) -> Any:
    """The argument with this number of a program: a normally distributed array, or a number of Python's.

    dtype: of jax.numpy, or "float" and "int" for numbers of Python's.  limit: integers reach from just below -limit to
    just above limit; 0: from -9 to 9.  edges: a tenth of the elements are NaN, infinite, zero, or huge.
    """
    rng = np.random.default_rng((seed, number))
    if dtype == "bool":
        return jnp.asarray(rng.integers(0, 2, shape), jnp.bool_)
    if dtype == "float":
        return round(float(rng.standard_normal()), 2)
    if dtype == "int":
        return int(rng.integers(-3, 4))
    values = rng.standard_normal(shape)
    if jnp.issubdtype(dtype, jnp.integer):
        bound = limit + 1 if limit else 9
        low = 0 if dtype.startswith("u") else -bound
        values = rng.integers(low, bound + 1, shape).astype(np.float64)
        values = np.clip(values, jnp.iinfo(dtype).min, jnp.iinfo(dtype).max)
    elif edges:
        special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -300.0, 0.5])
        values = np.where(rng.random(shape) < 0.1, rng.choice(special, shape), values)
    with np.errstate(over="ignore"):
        return jnp.asarray(np.asarray(values, np.dtype(getattr(jnp, dtype))))


@dataclass(frozen=True, slots=True)
class Inner:
    """A function that a step hands to another."""

    name: str
    parameters: tuple[Value, ...]
    steps: tuple[Step, ...]
    result: str

    def lines(self) -> Iterator[str]:
        yield f"def {self.name}({', '.join(map(str, self.parameters))}):"
        for step in self.steps:
            yield from (f"    {line}" for line in step.lines())
        yield f"    return {self.result}"


@dataclass(frozen=True, slots=True)
class Step:
    """name = expression.  function: the row of the table.  values: what it computes, named by expressions of `name`."""

    name: str
    expression: str
    function: str
    values: tuple[Value, ...]
    inner: tuple[Inner, ...] = ()

    def lines(self) -> Iterator[str]:
        for inner in self.inner:
            yield from inner.lines()
        yield f"{self.name} = {self.expression}"

    def reads(self) -> set[str]:
        """The names in its text but its own."""
        return set().union(*(_names(line) for line in self.lines())) - {self.name}


@dataclass(frozen=True, slots=True)
class Program:
    """A function of arrays and what it is called with."""

    seed: int
    x64: bool
    arguments: tuple[Argument, ...]
    steps: tuple[Step, ...]
    results: tuple[str, ...]

    def source(self) -> str:
        """The definition of `program`."""
        body = [f"    {line}" for step in self.steps for line in step.lines()]
        names = ", ".join(a.name for a in self.arguments)
        returned = f"    return {', '.join(self.results)},"
        return "\n".join([f"def program({names}):", *body, returned])

    def script(self) -> str:
        """A whole script that shows what jax.jit and astitch.jit make of it."""
        drawn = "".join(f"{a.text}, " for a in self.arguments)
        lines = [
            "import os",
            "import jax, jax.numpy as jnp, numpy as np",
            "from jax import lax",
            "import astitch",
            "from tests.jax_programs import draw",
            "",
            'os.environ["ASTITCH_FAULTS"] = "raise"',
            f'jax.config.update("jax_enable_x64", {self.x64})',
            self.source(),
            "",
            f"seed = {self.seed}",
            f"arguments = ({drawn})",
            "print(jax.jit(program)(*arguments))",
            'print(astitch.jit(program, engine="host")(*arguments))',
        ]
        return "\n".join(lines)

    def function(self) -> Callable[..., Any]:
        space = dict(NAMESPACE)
        exec(self.source(), space)
        made: Callable[..., Any] = space["program"]  # type: ignore[assignment]
        return made

    def make_arguments(self) -> tuple[Any, ...]:
        space = {"draw": draw, "seed": self.seed}
        return tuple(eval(a.text, dict(space)) for a in self.arguments)


# ---- how they are drawn --------------------------------------------------------------------------

EXTENTS = (1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 33, 64, 100, 129, 257, 1000)

LARGE_EXTENTS = (33, 128, 257, 1000, 1024, 3000, 20_011)

FLOAT_TYPES = ("float32",) * 5 + ("bfloat16", "bfloat16", "float16")
INT_TYPES = ("int32",) * 4 + ("int8", "uint8", "int16", "uint16", "uint32")


@dataclass
class Drawing:
    """What the scopes of one program share."""

    random: random.Random
    x64: bool
    arguments: list[Argument] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def name(self, letter: str) -> str:
        return f"{letter}{next(self.numbers)}"


class Scope:
    """The body of a function while it is written: the values that its next step may read."""

    def __init__(
        self, drawing: Drawing, values: Iterable[Value], depth: int, tuples: dict[str, Any]
    ) -> None:
        self.drawing, self.values, self.depth = drawing, [*values], depth
        self.tuples = dict(tuples)
        self.steps: list[Step] = []
        self._inner: list[Inner] = []

    # ---- draws

    def number(self, low: int, high: int) -> int:
        return self.drawing.random.randint(low, high)

    def chance(self, share: float) -> bool:
        return self.drawing.random.random() < share

    def choose(self, options: Sequence[T]) -> T:
        return self.drawing.random.choice(options)

    def shuffle(self, items: Iterable[T]) -> list[T]:
        shuffled = [*items]
        self.drawing.random.shuffle(shuffled)
        return shuffled

    def extent(self, high: int = 1000) -> int:
        return 0 if self.chance(0.02) else self.choose([n for n in EXTENTS if n <= high])

    def shape(self, rank: int = 4) -> tuple[int, ...]:
        """Of at most `rank` dimensions and 4,000 elements; a few have two dimensions and 60,000."""
        shape: list[int] = []
        if rank >= 2 and self.chance(0.06):
            first = self.choose(LARGE_EXTENTS)
            second = self.choose([n for n in (*EXTENTS, *LARGE_EXTENTS) if n * first <= 60_000])
            return (first, second) if self.chance(0.5) else (second, first)
        for _ in range(self.number(0, rank)):
            shape.append(self.extent(max(4000 // max(math.prod(shape), 1), 1)))
        return tuple(self.shuffle(shape))

    def type_name(self, kinds: str) -> str:
        names = [*(FLOAT_TYPES if FLOAT in kinds else ()), *(INT_TYPES if INT in kinds else ())]
        names += ["bool"] * 2 if BOOL in kinds else []
        if self.drawing.x64:
            names += ["float64"] * 4 if FLOAT in kinds else []
            names += ["int64"] * 2 if INT in kinds else []
        return self.choose(names)

    def dtype(self, kinds: str = ANY) -> str:
        name = self.type_name(kinds)
        return f"jnp.{name}_" if name == "bool" else f"jnp.{name}"

    # ---- operands

    def argument(self, shape: tuple[int, ...], dtype: str, limit: int = 0) -> Value:
        edges = self.chance(0.06)
        made = Argument(self.drawing.name("a"), shape, dtype, limit, edges)
        self.drawing.arguments.append(made)
        if dtype in ("float", "int"):
            wide = "64" if self.drawing.x64 else "32"
            value = Value(made.name, (), np.dtype(dtype + wide), True)
        else:
            value = Value(made.name, shape, np.dtype(getattr(jnp, dtype)))
        self.values.append(value)
        return value

    @property
    def takes_arguments(self) -> bool:
        return self.depth == 0 and len(self.drawing.arguments) < 7

    def pick(self, kinds: str, fits: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """A value of one of these kinds, the latest most often; else one that is converted, or a new argument."""
        found = [v for v in self.values if v.kind in kinds and fits(v)]
        if found and self.chance(0.93):
            return found[-1] if self.chance(0.4) else self.choose(found)
        if self.takes_arguments and self.chance(0.7):
            shape = self.shape()
            if fits(Value("", shape, np.dtype(np.float32))):
                return self.argument(shape, self.type_name(kinds))
        others = [v for v in self.values if fits(v)]
        if not others:
            return None
        name, x = self.type_name(kinds), self.choose(others)
        if name != "bool":
            return Value(f"{x}.astype(jnp.{name})", x.shape, np.dtype(getattr(jnp, name)))
        return Value(f"({x} > 0)", x.shape, np.dtype(np.bool_))

    def pick_like(self, x: Value, dtype: bool = True) -> Value | None:
        """Another value of the same shape, and of the same dtype if wanted."""
        found = [v for v in self.values if v.shape == x.shape and (v.dtype == x.dtype or not dtype)]
        return self.choose(found) if found and self.chance(0.8) else None

    def partner(self, x: Value, kinds: str) -> str:
        """An operand that broadcasts with x."""
        found = [v for v in self.values if v.kind in kinds and _broadcasts(v.shape, x.shape)]
        kind = x.kind if x.kind in kinds else kinds[0]
        literal = {FLOAT: ("0.5", "2", "-1.5"), INT: ("1", "2", "3"), BOOL: ("True", "False")}[kind]
        way = self.number(0, 9)
        if way <= 5 and found:
            return str(self.choose(found))
        if way <= 6 and x.shape:
            cuts = ", ".join(self.choose((":", ":", ":1")) for _ in x.shape)
            return f"{x}[{cuts}]"
        if way <= 8 and self.takes_arguments:
            kept = tuple(self.choose((n, n, 1)) for n in x.shape[self.number(0, len(x.shape)) :])
            if not kept and kind == x.kind and kind != BOOL and self.chance(0.5):
                return str(self.argument((), "float" if kind == FLOAT else "int"))
            return str(self.argument(kept, self.type_name(kind)))
        return self.choose(literal)

    def condition(self, x: Value) -> str:
        """A truth value for each element of x."""
        found = [v for v in self.values if v.kind == BOOL and _broadcasts(v.shape, x.shape)]
        found = [v for v in found if np.broadcast_shapes(v.shape, x.shape) == x.shape]
        if found and self.chance(0.5):
            return str(self.choose(found))
        return str(x) if x.kind == BOOL else f"({x} > 0)"

    def predicate(self) -> str:
        """A scalar truth value."""
        x = self.choose(self.values)
        return f"jnp.any({x})" if x.kind == BOOL else f"jnp.any({x} > 1)"

    def index(self) -> Value:
        return Value("", (), np.dtype(np.int32))

    def indices(self, shape: tuple[int, ...], limit: int, beyond: bool = False) -> str:
        """Integers from 0 to limit - 1.  beyond: a part may lie outside."""
        if beyond and self.takes_arguments and self.chance(0.6):
            return str(self.argument(shape, self.choose(("int32", "int32", "int8")), limit))
        found = [v for v in self.values if v.kind == INT and v.shape == shape]
        if found and self.chance(0.6):
            return f"{self.choose(found)} % {limit}"
        if not shape:
            return str(self.number(0, max(limit - 1, 0)))
        step = self.choose((1, 3, 7))
        return f"(jnp.arange({math.prod(shape)}) * {step} % {limit}).reshape({shape})"

    def array(self, shape: tuple[int, ...]) -> str:
        """Numbers of this shape."""
        found = [v for v in self.values if v.kind == FLOAT and v.shape == shape]
        if found and self.chance(0.5):
            return str(self.choose(found))
        if self.takes_arguments:
            return str(self.argument(shape, self.type_name(FLOAT)))
        return f"jnp.cos(jnp.arange({math.prod(shape)}.0)).reshape({shape})"

    def axis(self, x: Value, negative: bool = True) -> int:
        rank = len(x.shape)
        axis = self.number(0, rank - 1)
        return axis - rank if negative and self.chance(0.3) else axis

    def axes(self, x: Value) -> tuple[int, ...]:
        return tuple(d for d in range(len(x.shape)) if self.chance(0.5))

    def axis_option(self, x: Value, one: bool = False) -> str:
        if not x.shape or self.chance(0.2):
            return ""
        if one or self.chance(0.5):
            return f", axis={self.axis(x)}"
        return f", axis={self.axes(x)}"

    # ---- steps

    def define(
        self,
        given: Sequence[Value],
        *,
        scalar: bool = False,
        like: Value | None = None,
        carry: bool = False,
    ) -> str:
        """The name of a new function of values like these.

        scalar: its result is a float.  like: its result has this shape and dtype.  carry: its results are one like the
        first of `given`, and another.
        """
        parameters = tuple(replace(v, text=self.drawing.name("x")) for v in given)
        captured = [v for v in self.values if v.size <= 500 and self.chance(0.2)][:2]
        scope = Scope(self.drawing, (*captured, *parameters), self.depth + 1, self.structs())
        scope.write(self.number(1, 4))
        last = scope.values[-1]
        if scalar:
            floats = [v for v in scope.values if v.kind == FLOAT]
            result = f"{self.choose(('jnp.mean', 'jnp.sum'))}({floats[-1]})"
        elif like is not None:
            result = _fit(last, like)
        elif carry:
            result = f"({_fit(last, given[0])}, {self.choose(scope.values)})"
        else:
            result = str(last)
        inner = Inner(self.drawing.name("f"), parameters, tuple(scope.steps), result)
        self._inner.append(inner)
        return inner.name

    def write(self, count: int) -> None:
        """Adds up to `count` steps, those that JAX takes."""
        for _ in range(count):
            for _ in range(6):
                if self._write_step():
                    break

    def _write_step(self) -> bool:
        weights = [w if self.depth < 2 or f is not FAMILIES[-1][0] else 0 for f, w in FAMILIES]
        family = self.drawing.random.choices([f for f, _ in FAMILIES], weights)[0]
        return self.add(self.choose(family))

    def add(self, function: Any) -> bool:
        """Adds a call of a function of the table; False where nothing fits or JAX refuses it."""
        before = len(self.drawing.arguments), len(self.values)
        self._inner = []
        expression = function.write(self, function.name)
        step = None
        if expression is not None:
            name = self.drawing.name("v")
            step = self.try_step(name, expression, function.name)
        if step is None:
            del self.drawing.arguments[before[0] :], self.values[before[1] :]
            return False
        self.steps.append(step)
        self.values.extend(step.values)
        return True

    def try_step(self, name: str, expression: str, function: str) -> Step | None:
        """The step with the types that JAX gives it; None where JAX refuses it or its values do not suit."""
        step = Step(name, expression, function, (), tuple(self._inner))
        text = "\n".join(step.lines())

        def run(given: dict[str, Any]) -> Any:
            space = {**NAMESPACE, **given}
            exec(text, space)
            return space[name]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                made = jax.eval_shape(run, self.structs())
            except Exception:  # whatever JAX or Python says of a text that is no program
                return None
        leaves = jax.tree_util.tree_flatten_with_path(made)[0]
        if not leaves or not all(_is_usual(leaf) for _, leaf in leaves):
            return None
        values = (
            Value(
                name + jax.tree_util.keystr(path), leaf.shape, np.dtype(leaf.dtype), leaf.weak_type
            )
            for path, leaf in leaves
        )
        self.tuples[name] = made
        return replace(step, values=tuple(values))

    def structs(self) -> dict[str, Any]:
        """The types of everything that has a name."""
        arrays = {v.text: v.struct for v in self.values if v.text.isidentifier()}
        return {**arrays, **self.tuples}


def _is_usual(leaf: Any) -> bool:
    """Is it an array of a dtype and size that other steps take?"""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended) or leaf.dtype == jax.dtypes.float0:
        return False
    return not jnp.issubdtype(leaf.dtype, jnp.complexfloating) and is_small(leaf.shape)


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return is_small(np.broadcast_shapes(a, b))
    except ValueError:
        return False


def _fit(x: Value, like: Value) -> str:
    """x with the shape and dtype of another value."""
    if x.shape == like.shape:
        return f"{x}.astype({like.dtype_text})"
    return f"jnp.full({like.shape}, jnp.mean({x})).astype({like.dtype_text})"


def make_program(seed: int) -> Program:
    """The program that a seed decides."""
    rng = random.Random(seed)
    drawing = Drawing(rng, x64=rng.random() < 0.25)
    with jax.enable_x64(drawing.x64):
        scope = Scope(drawing, (), 0, {})
        for _ in range(rng.randint(1, 3)):
            scope.argument(scope.shape(), scope.type_name(rng.choice((FLOAT, FLOAT, FLOAT, ANY))))
        scope.write(rng.randint(2, 9))
    # What no later step reads, lest it is dropped, and some of what one does.
    read = set().union(*(step.reads() for step in scope.steps))
    unread = [v.text for step in scope.steps if step.name not in read for v in step.values]
    others = [v.text for v in rng.sample(scope.values, min(len(scope.values), rng.randint(0, 2)))]
    results = tuple(dict.fromkeys([*unread, *others]))
    arguments, steps = tuple(drawing.arguments), tuple(scope.steps)
    return drop_unused(Program(seed, drawing.x64, arguments, steps, results))


# ---- how they are tried --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Failure:
    """kind: equal for failures that look alike.  stage: of the trial, "host" or the name of a GPU."""

    kind: str
    stage: str
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """failure: the first one.  refused: the named refusals, of JAX or of astitch.  judged: see rounding_model.py.
    kernels: in the module that XLA's hook gives back."""

    failure: Failure | None = None
    refused: tuple[str, ...] = ()
    judged: Judged | None = None
    kernels: int = 0


def try_program(program: Program, stages: Sequence[str]) -> Outcome:
    """Compares astitch.jit in the emulation with jax.jit ("host"), what comes of XLA's hook with it ("hook"), and
    compiles for GPUs that need not be there ("h100", "xla:h100").  The first failure ends it."""
    fn = program.function()
    refused: list[str] = []
    judged = None
    kernels = 0
    with jax.enable_x64(program.x64), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments = program.make_arguments()
        try:
            want = jax.block_until_ready(jax.jit(fn)(*arguments))
            jaxpr = jax.make_jaxpr(fn)(*arguments)
            modules = {s: lower_for_cuda(fn, arguments) for s in stages if s not in ("host", HOOK)}
        except Exception as error:
            return Outcome(refused=(f"JAX: {type(error).__name__}",))
        for stage in stages:
            try:
                if stage in modules:
                    _compile_for(stage, modules[stage])
                    continue
                if stage == HOOK:
                    got, kernels = _run_through_hook(fn, arguments, want)
                else:
                    got, warned = _call_astitch(fn, arguments)
                    refused += warned
            except (CompilerMissing, UnsupportedOp, UnsupportedType, DynamicShape) as error:
                refused.append(str(error).splitlines()[0])
                continue
            except Exception as error:
                return Outcome(_describe_error(stage, error), tuple(refused), judged, kernels)
            judged = judge(jaxpr, arguments, want, got)
            if judged.fault:
                failure = Failure("other results", stage, judged.fault)
                return Outcome(failure, tuple(refused), judged, kernels)
    return Outcome(None, tuple(refused), judged, kernels)


def _compile_for(stage: str, module: bytes) -> None:
    if stage.startswith(INSIDE_XLA):
        compile_for_xla(import_hlo(module), preset(stage.removeprefix(INSIDE_XLA)))
    else:
        compile_hlo(module, gpu=stage)


def _call_astitch(fn: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, list[str]]:
    """The results, and the warnings that XLA computes the function."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = jax.block_until_ready(astitch.jit(fn, engine="host")(*arguments))
    texts = [str(w.message).splitlines()[0] for w in caught]
    return got, [text for text in texts if text.startswith("astitch")]


def _run_through_hook(fn: Callable[..., Any], arguments: Sequence[Any], want: Any) -> Any:
    """The results in the form of JAX's, and the number of kernels.

    Raises UnsupportedOp for a program that XLA does not compile for a GPU without astitch either, and for one that the
    reference interpreter does not compute.
    """
    from tests.hook_evaluation import CannotCompile, stitch_through_hook

    try:
        hooked = stitch_through_hook(fn, *arguments)
    except CannotCompile as error:
        raise UnsupportedOp(f"XLA: {error}") from error
    from jax._src.lax.lax import _convert_element_type  # no public name keeps a type weak

    leaves, structure = jax.tree.flatten(want)
    results = hooked.run(jax.tree.leaves(arguments))
    made = [
        _convert_element_type(r, r.dtype, getattr(w, "weak_type", False))
        for r, w in zip(results, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, made), hooked.kernels


def lower_for_cuda(fn: Callable[..., Any], arguments: Sequence[Any]) -> bytes:
    """The serialized HloModuleProto that JAX has for an NVIDIA GPU."""
    lowered = jax.jit(fn, keep_unused=True).trace(*arguments).lower(lowering_platforms=("cuda",))
    return bytes(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())


def _describe_error(stage: str, error: Exception) -> Failure:
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if "/astitch/" in f.filename] or frames
    place = f"{Path(inside[-1].filename).stem}.{inside[-1].name}"
    first = (str(error).splitlines() or [""])[0]
    shape = re.sub(r"[%\w.\[\],{}]*\d[\w.\[\],{}]*", "#", first)
    text = "".join(traceback.format_exception(error)[-6:])
    device = "host" if stage == "host" else "GPU"
    return Failure(f"{device}: {type(error).__name__} in {place}: {shape}", stage, text)


# ---- how a failure is reduced --------------------------------------------------------------------


def drop_unused(program: Program) -> Program:
    """Without steps and arguments that no result needs."""
    steps, names = _drop_unused_steps(program.steps, _names(" ".join(program.results)))
    arguments = tuple(a for a in program.arguments if a.name in names)
    return replace(program, steps=steps, arguments=arguments)


def _drop_unused_steps(
    steps: Sequence[Step], wanted: set[str]
) -> tuple[tuple[Step, ...], set[str]]:
    """The steps that are wanted, and all names that they read."""
    kept: list[Step] = []
    for step in reversed(steps):
        if step.name not in wanted:
            continue
        used = _names(step.expression)
        inner = []
        for f in step.inner:
            if f.name in used:
                body, names = _drop_unused_steps(f.steps, _names(f.result))
                inner.append(replace(f, steps=body))
                wanted = wanted | names
        kept.append(replace(step, inner=tuple(inner)))
        wanted = wanted | used
    return tuple(reversed(kept)), wanted


def _names(text: str) -> set[str]:
    return set(re.findall(r"\b[avxf]\d+\b", text))


def reduce_program(
    program: Program, still_fails: Callable[[Program], bool], attempts: int = 150
) -> Program:
    """A smaller program that fails in the same way: fewer results, steps that became arguments, and functions with
    fewer steps."""
    progress = True
    while progress:
        progress = False
        for smaller in _smaller_programs(program):
            attempts -= 1
            if attempts < 0:
                return program
            if still_fails(smaller):
                program, progress = smaller, True
                break
    return program


def _smaller_programs(program: Program) -> Iterator[Program]:
    if len(program.results) > 1:
        for result in program.results:
            yield drop_unused(replace(program, results=(result,)))
    for number, step in reversed([*enumerate(program.steps)]):
        # What it reads directly is the result instead, then what it computes is given.
        rest = program.steps[:number]
        if number == len(program.steps) - 1:
            for value in _values_read(program, step):
                yield drop_unused(replace(program, steps=rest, results=(value,)))
        yield _as_argument(program, step)
    for number, step in enumerate(program.steps):
        for smaller in _smaller_inner(step):
            steps = (*program.steps[:number], smaller, *program.steps[number + 1 :])
            yield drop_unused(replace(program, steps=steps))
    for number, argument in enumerate(program.arguments):
        if argument.edges:
            plain = replace(argument, edges=False)
            arguments = (*program.arguments[:number], plain, *program.arguments[number + 1 :])
            yield replace(program, arguments=arguments)


def _values_read(program: Program, step: Step) -> list[str]:
    return [v.text for s in program.steps for v in s.values if s.name in step.reads()]


def _as_argument(program: Program, step: Step) -> Program:
    """With the arrays that a step computes as arguments."""
    start = 1000 * int(step.name[1:])
    made = {
        v.text: Argument(f"a{start + n}", v.shape, v.dtype.name) for n, v in enumerate(step.values)
    }

    def rename(text: str) -> str:
        for value, argument in made.items():
            text = re.sub(rf"\b{re.escape(value)}(?!\d)", argument.name, text)
        return text

    arguments = (*program.arguments, *made.values())
    steps = tuple(_map_text(s, rename) for s in program.steps if s is not step)
    results = tuple(rename(r) for r in program.results)
    return drop_unused(replace(program, arguments=arguments, steps=steps, results=results))


def _map_text(step: Step, change: Callable[[str], str]) -> Step:
    inner = tuple(
        replace(f, steps=tuple(_map_text(s, change) for s in f.steps), result=change(f.result))
        for f in step.inner
    )
    values = tuple(replace(v, text=change(v.text)) for v in step.values)
    return replace(step, expression=change(step.expression), values=values, inner=inner)


def _smaller_inner(step: Step) -> Iterator[Step]:
    """The step with a constant in the place of a step of its functions."""
    for number, f in enumerate(step.inner):
        for place, inside in enumerate(f.steps):
            bodies = [(*f.steps[:place], s, *f.steps[place + 1 :]) for s in _smaller_inner(inside)]
            if inside.function and len(inside.values) == 1:
                value = inside.values[0]
                constant = f"jnp.ones({value.shape}, {value.dtype_text})"
                plain = replace(inside, expression=constant, function="", inner=())
                bodies.insert(0, (*f.steps[:place], plain, *f.steps[place + 1 :]))
            for body in bodies:
                changed = replace(f, steps=body)
                yield replace(
                    step, inner=(*step.inner[:number], changed, *step.inner[number + 1 :])
                )


# ---- the command ---------------------------------------------------------------------------------


def report_failure(program: Program, failure: Failure, reduce: bool = True) -> str:
    """The failure with a script, of the reduced program if wanted."""
    if reduce:

        def still_fails(smaller: Program) -> bool:
            again = try_program(smaller, (failure.stage,)).failure
            return again is not None and again.kind == failure.kind

        program = reduce_program(program, still_fails)
        failure = try_program(program, (failure.stage,)).failure or failure
    rule = "-" * 80
    head = f"seed {program.seed}, {failure.stage}: {failure.kind}"
    return "\n".join([rule, head, failure.text.rstrip(), rule, program.script(), rule])


@dataclass
class Tally:
    """What was seen of the programs so far."""

    programs: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    functions: set[str] = field(default_factory=set)
    checked: int = 0
    kernels: int = 0
    stitched: int = 0
    unstable: int = 0
    worst: float = 0.0

    def add(self, program: Program, outcome: Outcome) -> None:
        self.programs += 1
        self.functions.update(step.function for step in program.steps)
        self.refusals.update(outcome.refused)
        self.kernels += outcome.kernels
        self.stitched += outcome.kernels > 0
        if outcome.judged:
            self.checked += outcome.judged.checked
            self.unstable += outcome.judged.unstable
            self.worst = max(self.worst, outcome.judged.worst)
        if outcome.failure:
            self.failures[outcome.failure.kind] += 1

    def __str__(self) -> str:
        lines = [
            f"{self.programs} programs, {self.failures.total()} failures, {len(self.functions)} functions",
            f"{self.checked} elements compared, {self.unstable} too unstable; worst {self.worst:.2f} of the limit",
        ]
        if self.kernels:
            lines.append(f"{self.kernels} kernels through the hook, in {self.stitched} programs")
        for title, counts in (("failures", self.failures), ("refusals", self.refusals)):
            lines += [f"{title}: {count:4} {kind}" for kind, count in counts.most_common()]
        return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 where a program failed.  An interrupt ends it early, with the same summary."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.jax_programs",
        description="Random JAX programs through astitch.jit beside jax.jit.",
    )
    parser.add_argument("--count", type=int, default=100, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first one")
    parser.add_argument("--show", action="store_true", help="print the programs instead")
    parser.add_argument(
        "--hook", action="store_true", help="through XLA's hook; needs its compiler"
    )
    parser.add_argument("--no-reduce", action="store_true", help="print failures as they are drawn")
    options = parser.parse_args(arguments)
    seeds = range(options.seed, options.seed + options.count)
    if options.show:
        for seed in seeds:
            print(f"# seed {seed}\n{make_program(seed).source()}\n")
        return 0
    os.environ["ASTITCH_FAULTS"] = "raise"
    if options.hook:
        from tests.ahead_of_time import devices

        devices()  # before JAX starts a backend
    tally, start = Tally(), time.perf_counter()
    with contextlib.suppress(KeyboardInterrupt):
        for seed in seeds:
            program = make_program(seed)
            outcome = try_program(program, (HOOK,) if options.hook else choose_stages(seed))
            tally.add(program, outcome)
            if failure := outcome.failure:
                reduce = tally.failures[failure.kind] == 1 and not options.no_reduce
                print(report_failure(program, failure, reduce), flush=True)
            if tally.programs % 20 == 0:
                jax.clear_caches()  # thousands of executables fill the memory
                seconds = time.perf_counter() - start
                print(f"{tally.programs} programs, {seconds:.0f} s", file=sys.stderr)
    print(tally)
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
