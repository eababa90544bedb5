"""cuda/complex.cuh: emitted kernels in the emulation, against NumPy with more digits and against XLA.

XLA says what zeros, infinities and NaN give.  Its CPU compiler takes subnormal numbers for zeros: none are here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from astitch.compile import compile_hlo
from astitch.device.gpu import preset
from astitch.program.steps import KernelStep
from astitch.run.host_engine import HostEngine
from tests.hlo_runner import parse_hlo_text

UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "exp": (jnp.exp, np.exp),
    "expm1": (jnp.expm1, np.expm1),
    "log": (jnp.log, np.log),
    "log1p": (jnp.log1p, np.log1p),
    "sqrt": (jnp.sqrt, np.sqrt),
    "rsqrt": (lax.rsqrt, lambda z: 1 / np.sqrt(z)),
    "sin": (jnp.sin, np.sin),
    "cos": (jnp.cos, np.cos),
    "tan": (lax.tan, np.tan),
    "tanh": (jnp.tanh, np.tanh),
    "logistic": (lax.logistic, lambda z: 1 / (1 + np.exp(-z))),
    "abs": (jnp.abs, np.abs),
    "sign": (jnp.sign, lambda z: z / np.abs(z)),
    "negate": (lambda z: -z, lambda z: -z),
    "parts": (lambda z: lax.complex(z.imag, z.real), lambda z: z.imag + 1j * z.real),
    "to_pred": (lambda z: z.astype(bool), lambda z: z != 0),
}
BINARY: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "add": (lambda x, y: x + y, np.add),
    "subtract": (lambda x, y: x - y, np.subtract),
    "multiply": (lambda x, y: x * y, np.multiply),
    "divide": (lambda x, y: x / y, np.divide),
    "power": (lambda x, y: x ** (y / 8), lambda x, y: x ** (y / 8)),
    "equal": (lambda x, y: x == y, np.equal),
    "differ": (lambda x, y: x != y, np.not_equal),
    "select": (lambda x, y: jnp.where(x.real > y.real, x, y), lambda x, y: np.where(x.real > y.real, x, y)),
    "of_real": (lambda x, y: x.real.astype(y.dtype) + y, lambda x, y: x.real + y),
}  # fmt: skip
DTYPES = (np.complex64, np.complex128)


def run(fn: Callable[..., Any], *arguments: np.ndarray) -> list[np.ndarray]:
    """The results of fn, all of which kernels compute."""
    with jax.enable_x64(True):
        lowered = jax.jit(fn, keep_unused=True).lower(*arguments)
    module = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()  # type: ignore[union-attr]
    program = compile_hlo(module, gpu=preset("host")).program
    assert {type(step) for step in program.steps} == {KernelStep}
    return HostEngine(program).run(arguments)


def run_xla(fn: Callable[..., Any], *arguments: np.ndarray) -> list[np.ndarray]:
    with jax.enable_x64(True):
        return jax.device_get(jax.tree.leaves(jax.jit(fn)(*arguments)))


def draw(dtype: Any, seed: int, count: int = 4096) -> np.ndarray:
    """Numbers of sizes from 1e-3 to 20 in all directions, on both axes and close to 1 in size."""
    rng = np.random.default_rng(seed)
    size = 10 ** rng.uniform(-3, 1.3, count)
    size[: count // 8] = 1 + rng.uniform(-1e-4, 1e-4, count // 8)
    angle = rng.uniform(-np.pi, np.pi, count)
    angle[::16] = rng.choice([0.0, np.pi / 2, np.pi, -np.pi / 2], len(angle[::16]))
    return (size * np.exp(1j * angle)).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ops_are_as_near_as_their_type_allows(dtype: Any) -> None:
    x, y = draw(dtype, 1), draw(dtype, 2)
    names = [*UNARY, *BINARY]

    def all_of_them(x: Any, y: Any) -> list[Any]:
        return [UNARY[n][0](x) if n in UNARY else BINARY[n][0](x, y) for n in names]

    wide = np.clongdouble if dtype is np.complex128 else np.complex128
    for name, got in zip(names, run(all_of_them, x, y), strict=True):
        given = [a.astype(wide) for a in ((x,) if name in UNARY else (x, y))]
        exact = (UNARY if name in UNARY else BINARY)[name][1](*given)
        # The exponent of a power is rounded, and grows with the result.
        units = 400 if name == "power" else 12
        allowed = units * np.finfo(dtype).eps * np.abs(exact)
        distance = np.abs(got.astype(wide) - exact)
        wrong = np.flatnonzero(distance > allowed)
        shown = [(x[k], y[k], got[k], exact[k]) for k in wrong[:4]]
        assert not wrong.size, f"{name}: {wrong.size} wrong: {shown}"


SPECIAL = (
    0.0, -0.0, 1.0, -1.0, 0.5, 3.0, 1e-29, 1e30, 3e38, -3e38, 88.9, -120.0, np.inf, -np.inf, np.nan,
)  # fmt: skip
"""Parts at which a function changes its meaning, or overflows."""


def is_class_of(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Is each a NaN, an infinity of this sign, a zero or a finite number where the other is?"""
    got, want = (np.asarray(a, np.float64) for a in (got, want))
    near = np.abs(got - want) <= 1e-4 * np.abs(want) + 1e-30
    return near | (got == want) | (np.isnan(got) & np.isnan(want))


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values_are_those_of_xla(dtype: Any) -> None:
    z = np.array([[complex(a, b) for a in SPECIAL] for b in SPECIAL], dtype)
    # What is finite but has parts that only one of the two keeps apart from zero: the angle of -1 is pi, rounded.
    names = [n for n in UNARY if n != "rsqrt"]
    operations: dict[str, Callable[[Any], Any]] = {n: UNARY[n][0] for n in names}
    operations["reciprocal"] = lambda z: 1 / z
    operations["power"] = lambda z: z**z

    def all_of_them(z: Any) -> list[Any]:
        return [operation(z) for operation in operations.values()]

    with np.errstate(all="ignore"):
        for name, got, want in zip(
            operations, run(all_of_them, z), run_xla(all_of_them, z), strict=True
        ):
            agree = is_class_of(got.real, want.real) & is_class_of(got.imag, want.imag)
            wrong = list(zip(*np.nonzero(~agree), strict=True))
            shown = [(z[k], got[k], want[k]) for k in wrong[:5]]
            assert not wrong, f"{name}: {len(wrong)} wrong: {shown}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_principal_cube_root(dtype: Any) -> None:
    """JAX has no cube root of complex numbers; HLO has."""
    name = f"c{np.dtype(dtype).itemsize * 8}[4096]"
    module = parse_hlo_text(
        f"HloModule m\nENTRY e {{ x = {name} parameter(0)\n ROOT r = {name} cbrt(x) }}"
    )
    z = draw(dtype, 4)
    (got,) = HostEngine(compile_hlo(module, gpu=preset("host")).program).run([z])
    exact = z.astype(np.clongdouble) ** (np.longdouble(1) / 3)
    assert np.all(np.abs(got - exact) <= 12 * np.finfo(dtype).eps * np.abs(exact))


def recurrence(a: Any, b: Any) -> Any:
    def both(x: Any, y: Any) -> Any:
        return x[0] * y[0], y[0] * x[1] + y[1]

    return lax.associative_scan(both, (a, b), axis=1)


def rotary(x: Any, y: Any) -> Any:
    """Pairs of features as complex numbers, turned by an angle that grows with the position."""
    z = lax.complex(x.real, y.real)
    turn = jnp.exp(1j * jnp.arange(z.shape[0])[:, None] / 7).astype(z.dtype)
    z = z * turn
    return jnp.concatenate([z.real, z.imag], axis=-1), jnp.abs(z).max(1)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "row sums": lambda x, y: (x * y.conj()).sum(1),
    "column sums": lambda x, y: (x * y.conj()).sum(0),
    "one sum": lambda x, y: (x * y.conj()).sum(),
    "products": lambda x, y: (x / jnp.abs(x)).prod(1),
    "running sums": lambda x, y: jnp.cumsum(x + y, axis=1),
    "normalized": lambda x, y: x / jnp.sqrt((jnp.abs(x) ** 2).mean(1, keepdims=True)) + y,
    "exponentials": lambda x, y: jnp.exp(x - x.real.max(1, keepdims=True)) / jnp.exp(y).sum(1, keepdims=True),
    "moved": lambda x, y: jnp.concatenate([x.T[:, ::-1], jnp.pad(y.T, ((0, 0), (1, 2)))], 1)[1::2] * 2j,
    "gathered": lambda x, y: x[jnp.array([3, 1, 2, 1])] * y[:4],
    "recurrence": recurrence,
    "rotary": rotary,
}  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "dtype"), [*(((5, 7), dtype) for dtype in DTYPES), ((40, 1030), DTYPES[0])]
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_compute_programs_of_complex_numbers(
    name: str, shape: tuple[int, int], dtype: Any
) -> None:
    rng = np.random.default_rng(3)
    x, y = (
        (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype) / 2 for _ in range(2)
    )
    units = 40 * shape[1] ** 0.5
    for got, want in zip(run(PROGRAMS[name], x, y), run_xla(PROGRAMS[name], x, y), strict=True):
        assert got.dtype == want.dtype
        largest = max(float(np.abs(want).max()), 1.0)
        np.testing.assert_allclose(got, want, rtol=0, atol=units * np.finfo(dtype).eps * largest)
