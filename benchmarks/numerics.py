"""What each rewriting of astitch/rewrite/reassociate.py does to the error of results, beside XLA's.

`python -m benchmarks.numerics [--json FILE]`, on any machine.  The kernels run in the emulation, XLA on the CPU.  Both
are measured against the formula in extended precision (x87, 64 bits of mantissa).  XLA adds up in another order on a
GPU; `pairwise`, the plain formula in the type of the sums with NumPy's sums in pairs, stands for the shortest chains.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import astitch
from astitch.hlo_import import import_hlo
from astitch.rewrite.expand import expand
from astitch.rewrite.reassociate import reassociate
from astitch.rewrite.simplify import simplify

Array = Any
"""Of JAX or NumPy."""


@dataclass(frozen=True)
class Case:
    """A function that a rule rewrites.

    rule: as reassociate logs it.  draw: seed -> arguments.  plain: the same function in NumPy, of any floating-point
    type.  draws: with how many seeds it is tried.
    """

    rule: str
    name: str
    function: Callable[..., Any]
    plain: Callable[..., Any]
    draw: Callable[[np.random.Generator], Sequence[np.ndarray]]
    draws: int = 2

    @property
    def title(self) -> str:
        return f"{self.rule}: {self.name}"

    def arguments(self, seed: int) -> list[np.ndarray]:
        return [np.asarray(a) for a in self.draw(np.random.default_rng(seed))]


@dataclass(frozen=True)
class Errors:
    """The largest error of a result, of its size or of the mean size of its array where that is larger."""

    rule: str
    case: str
    result: int
    astitch: float
    xla: float
    pairwise: float
    last_place: float

    @property
    def limit(self) -> float:
        """Twice XLA's error, or two units in the last place of the result where XLA is nearer than one."""
        return 2 * max(self.xla, self.last_place)


Run = Callable[..., Any]


def measure(case: Case, run: Run | None = None) -> list[Errors]:
    """One for each result.  run: the function as astitch runs it; None: astitch.jit of it."""
    own = run or astitch.jit(case.function)
    by_xla = jax.jit(case.function)
    worst: dict[int, list[float]] = {}
    last_places: dict[int, float] = {}
    for seed in range(case.draws):
        arguments = case.arguments(seed)
        exact = _leaves(case.plain(*(_as_type(a, np.longdouble) for a in arguments)))
        sums = np.float64 if any(a.dtype == np.float64 for a in arguments) else np.float32
        pairwise = case.plain(*(_as_type(a, sums) for a in arguments))
        with jax.enable_x64(True):
            found = [_leaves(run(*arguments)) for run in (own, by_xla)]
        found.append([r.astype(f.dtype) for r, f in zip(_leaves(pairwise), found[0], strict=True)])
        for number, want in enumerate(exact):
            last_places[number] = float(jnp.finfo(found[0][number].dtype).eps)
            errors = [relative_error(results[number], want) for results in found]
            worst[number] = [
                max(pair) for pair in zip(worst.get(number, errors), errors, strict=True)
            ]
    return [
        Errors(case.rule, case.name, number, *errors, last_places[number])
        for number, errors in worst.items()
    ]  # fmt: skip


def relative_error(found: np.ndarray, exact: np.ndarray) -> float:
    size = np.abs(exact)
    bound = np.maximum(size, size.mean())
    return float(np.max(np.abs(found.astype(np.longdouble) - exact) / np.where(bound, bound, 1)))


def rules_fired(case: Case) -> set[str]:
    """What reassociate does to the case's function."""
    fired: set[str] = set()
    with jax.enable_x64(True):
        lowered = jax.jit(case.function).lower(*case.arguments(0)).compiler_ir("hlo")
    graph = expand(simplify(import_hlo(bytes(lowered.as_serialized_hlo_module_proto()))))
    reassociate(graph, lambda rule, name: fired.add(rule))
    return fired


def _leaves(results: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(results)]


def _as_type(argument: np.ndarray, dtype: Any) -> np.ndarray:
    return argument if argument.dtype.kind in "iu" else argument.astype(dtype)


def _widen(x: Array) -> Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


# ---- mean and variance

MEANS = ((0.0, 1.0), (1.0, 1.0), (1e3, 1.0), (1e5, 1.0), (1e6, 1.0), (1e6 + 0.03, 1.0), (1e7, 10.0))
NARROW_MEANS = ((0.0, 1.0), (10.0, 1.0), (200.0, 3.0))
"""16-bit types tell few numbers apart beside a large mean."""

ONE_LONG = ((2_000_000,), (0,))
MOMENTS_OF = (
    ONE_LONG,
    ((4096, 64), (0,)),
    ((12, 20001), (1,)),
    ((8, 24, 24, 64), (0, 1, 2)),
    ((16, 32, 30, 40), (0, 2, 3)),
)


def moments_case(
    shape: tuple[int, ...], axes: tuple[int, ...], mean: float, deviation: float, dtype: Any
) -> Case:
    def function(x: Array) -> Any:
        y = _widen(x)
        return jnp.mean(y, axes), jnp.var(y, axes), jnp.std(y, axes)

    def plain(x: np.ndarray) -> Any:
        kept = tuple(d for d in range(x.ndim) if d not in axes)
        rows = np.ascontiguousarray(
            x.transpose(*kept, *axes)
        )  # NumPy adds in pairs along rows only
        rows = rows.reshape(*rows.shape[: len(kept)], -1)
        center = rows.mean(-1)
        variance = np.square(rows - center[..., None]).mean(-1)
        return center, variance, np.sqrt(variance)

    def draw(rng: np.random.Generator) -> list[np.ndarray]:
        return [(rng.standard_normal(shape) * deviation + mean).astype(dtype)]

    kind = jnp.dtype(dtype).name
    name = (
        f"{kind}[{','.join(map(str, shape))}] over {axes}, mean {mean:.9g}, deviation {deviation:g}"
    )
    return Case("join_moments", name, function, plain, draw, draws=3 if shape == ONE_LONG[0] else 2)


def moments_cases() -> Iterator[Case]:
    for shape, axes in MOMENTS_OF:
        for mean, deviation in MEANS:
            yield moments_case(shape, axes, mean, deviation, np.float32)
    for shape, axes in MOMENTS_OF[1:3]:
        wider = shape if shape[0] > 12 else (12, 40001)  # rows of more than 64 KiB
        for mean, deviation in NARROW_MEANS:
            for dtype in (jnp.bfloat16, np.float16):
                yield moments_case(wider, axes, mean, deviation, dtype)
        for mean in (0.0, 1e6, 1e13):
            yield moments_case(shape, axes, mean, 1.0, np.float64)


# ---- softmax

POWERS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "wide": lambda rng, shape: 20 * rng.standard_normal(shape),
    "mean 1e4": lambda rng, shape: rng.standard_normal(shape) + 1e4,
    "one above equal ones": lambda rng, shape: _one_above(rng, shape),
    "rising": lambda rng, shape: np.sort(rng.uniform(-60, 0, shape).ravel()).reshape(shape),
}


def _one_above(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    x = np.zeros(shape)
    x -= rng.uniform(1, 12)
    x.ravel()[rng.integers(x.size)] = 0
    return x


def exponentials_case(shape: tuple[int, ...], axis: int, powers: str, dtype: Any) -> Case:
    def function(x: Array) -> Any:
        y = _widen(x)
        return jax.nn.softmax(y, axis), jax.nn.logsumexp(y, axis)

    def plain(x: np.ndarray) -> Any:
        rows = np.ascontiguousarray(np.moveaxis(x, axis, -1))
        largest = rows.max(-1, keepdims=True)
        powers = np.exp(rows - largest)
        total = powers.sum(-1, keepdims=True)
        return np.moveaxis(powers / total, -1, axis), (np.log(total) + largest)[..., 0]

    def draw(rng: np.random.Generator) -> list[np.ndarray]:
        return [POWERS[powers](rng, shape).astype(dtype)]

    kind = jnp.dtype(dtype).name
    name = f"{kind}[{','.join(map(str, shape))}] over ({axis},), {powers}"
    return Case("join_exponentials", name, function, plain, draw, draws=4)


def exponentials_cases() -> Iterator[Case]:
    for powers in POWERS:
        yield exponentials_case((4096, 32), 0, powers, np.float32)
        yield exponentials_case((3, 100_000), 1, powers, np.float32)
        yield exponentials_case((2, 3000, 20), 1, powers, np.float32)
    for dtype in (jnp.bfloat16, np.float64):
        yield exponentials_case((4096, 32), 0, "normal", dtype)


# ---- factors out of sums


def _normals(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], list[np.ndarray]]:
    return lambda rng: [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def _root_mean_square(np_: Any, x: Array) -> Array:
    return np_.sqrt(np_.square(x).mean(-1, keepdims=True) + 1e-5)


def factor_cases() -> Iterator[Case]:
    rows, long = [(64, 768)] * 2, [(24, 20_000)] * 2
    for shapes in (rows, long):
        for power in (1, 3, 8):

            def scaled(np_: Any, x: Array, y: Array, power: int = power) -> Array:
                size = _root_mean_square(np_, x)
                product = x * y
                for _ in range(power):
                    product = product * size
                return product.sum(-1)

            def divided(np_: Any, x: Array, y: Array) -> Array:
                return (-(x * y) / _root_mean_square(np_, x)).sum(-1)

            yield _of_both(f"sum(x * y * rms(x)^{power})", scaled, shapes)
        yield _of_both("sum(-x * y / rms(x))", divided, shapes)

    def softmax_backward(np_: Any, x: Array, dy: Array) -> Array:
        powers = np_.exp(x - x.max(-1, keepdims=True))
        y = powers / powers.sum(-1, keepdims=True)
        return y * (dy - (y * dy).sum(-1, keepdims=True))

    def rms_backward(np_: Any, x: Array, dy: Array) -> Array:
        size = 1 / _root_mean_square(np_, x)
        return dy * size - x * size * size * size * (x * dy).mean(-1, keepdims=True)

    yield _of_both("softmax, backward", softmax_backward, rows)
    yield _of_both("sum(dy * x / rms(x)) of RMSNorm, backward", _rms_scaled, rows)


def _rms_scaled(np_: Any, x: Array, dy: Array) -> Array:
    size = 1 / _root_mean_square(np_, x)
    normal = x * size
    return size * (dy - normal * (dy * normal).mean(-1, keepdims=True))


def _of_both(name: str, formula: Callable[..., Array], shapes: Sequence[tuple[int, ...]]) -> Case:
    def function(*arguments: Array) -> Array:
        return formula(jnp, *arguments)

    def plain(*arguments: np.ndarray) -> np.ndarray:
        return np.asarray(formula(np, *arguments))

    sizes = "x".join(map(str, shapes[0]))
    return Case("hoist_factors", f"{name}, {sizes}", function, plain, _normals(*shapes), draws=4)


# ---- scattered sums, sums of products


def scatter_case(rows: int) -> Case:
    """The gradient of a table that is read and multiplied."""

    def draw(rng: np.random.Generator) -> list[np.ndarray]:
        arrays = _normals((rows, 16), (64, rows), (64, 16), (4096, 16))(rng)
        return [*arrays, rng.integers(0, rows, 4096).astype(np.int32)]

    def function(table: Array, x: Array, dy: Array, updates: Array, places: Array) -> Array:
        scattered = jnp.zeros_like(table).at[places].add(updates)
        return jnp.tanh(table) * (x[0, 0] + dy[0, 0]) + scattered

    def plain(table: Array, x: Array, dy: Array, updates: Array, places: Array) -> Array:
        scattered = np.zeros_like(table)
        np.add.at(scattered, places, updates)
        return np.tanh(table) * (x[0, 0] + dy[0, 0]) + scattered

    name = f"tanh(table) + 4096 rows scattered into {rows}"
    return Case("scatter_into_addend", name, function, plain, draw)


def batches_case(batch: int, rows: int) -> Case:
    """The gradient of a dense layer's weights as TensorFlow has it."""

    def function(x: Array, dy: Array) -> Array:
        return jnp.einsum("bsm,bsn->bmn", x, dy, precision="highest").sum(0)

    def plain(x: np.ndarray, dy: np.ndarray) -> np.ndarray:
        products = np.einsum("bsm,bsn->bmn", x, dy)
        return np.ascontiguousarray(products.transpose(1, 2, 0)).sum(-1)

    shapes = ((batch, rows, 24), (batch, rows, 16))
    name = f"{batch} products of {rows} terms"
    return Case("contract_batches", name, function, plain, _normals(*shapes))


def cases() -> list[Case]:
    """All that the table is made of."""
    scattered = [scatter_case(rows) for rows in (8, 500)]
    batches = [batches_case(*sizes) for sizes in ((4, 8), (32, 16), (8, 20))]
    return [*moments_cases(), *exponentials_cases(), *factor_cases(), *scattered, *batches]


# ---- the table


def summarise(found: Sequence[Errors]) -> list[str]:
    """Rows of a table: for each rule the case whose error is the largest beside its limit, and the largest error."""
    rows = [
        "| rule | cases | largest error | XLA's there | pairwise there | largest share of its limit |",
        "|---|---|---|---|---|---|",
    ]
    for rule in dict.fromkeys(e.rule for e in found):
        mine = [e for e in found if e.rule == rule]
        worst = max(mine, key=lambda e: e.astitch)
        nearest = max(mine, key=lambda e: e.astitch / e.limit)
        count = len({e.case for e in mine})
        rows.append(
            f"| {rule} | {count} | {worst.astitch:.1e} | {worst.xla:.1e} | {worst.pairwise:.1e} "
            f"| {nearest.astitch / nearest.limit:.2f} |"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.numerics")
    parser.add_argument("--json", type=Path, help="write every error here")
    options = parser.parse_args()
    found: list[Errors] = []
    for case in cases():
        assert case.rule in rules_fired(case), f"{case.title}: the rule does not fire"
        for errors in measure(case):
            found.append(errors)
            mark = "" if errors.astitch <= errors.limit else "  beyond its limit"
            print(
                f"{case.title}, result {errors.result}: {errors.astitch:.1e}, XLA {errors.xla:.1e}, "
                f"pairwise {errors.pairwise:.1e}{mark}",
                flush=True,
            )
    print("\n".join(summarise(found)))
    if options.json:
        options.json.write_text(json.dumps([asdict(e) for e in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
