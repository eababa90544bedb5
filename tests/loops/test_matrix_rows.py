"""Factorizations of small matrices: what calls mean, number by number in loops, and outside as loops of one turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import linalg as scipy_linalg

from astitch.graph.factorizations import find_factorization, read_factorization
from astitch.graph.ir import CholeskyAttrs, Graph, LuAttrs, PivotsAttrs, TriangularSolveAttrs
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.loops.analysis import Affine, count_turns
from astitch.loops.emit import emit_loop
from astitch.loops.matrix_rows import loop_over_matrices
from astitch.loops.plan import LoopPlanner
from astitch.rewrite.simplify import simplify
from tests.hlo_runner import lower, lower_for_gpu
from tests.loop_runner import H100, assert_as_xla, evaluate, launch, loops_of, plan, read

RNG = np.random.default_rng(0)
ROWS = 40


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def definite(n: int, *batch: int, dtype: Any = np.float32) -> np.ndarray:
    root = normal(*(batch or (ROWS,)), n, n, dtype=np.float64)
    return (root @ root.swapaxes(-1, -2) + n * np.eye(n)).astype(dtype)


def singular() -> np.ndarray:
    made = normal(ROWS, 3, 3)
    made[::2, :, 1] = 0
    made[1::3] = np.eye(3)[[2, 0, 1]]
    return made


def solve_vector(a: Any, b: Any) -> Any:
    return jnp.linalg.solve(a, b[..., None])[..., 0]


def filter_step(p: Any, h: Any) -> Any:
    """A Kalman filter's gain, by Cholesky."""
    s = h @ p @ h.T + jnp.eye(2)
    return scipy_linalg.cho_solve(scipy_linalg.cho_factor(s), h @ p).T


def density(x: Any, mean: Any, covariance: Any) -> Any:
    return jax.scipy.stats.multivariate_normal.logpdf(x, mean, covariance)


def newton(x: Any) -> Any:
    def loss(x: Any) -> Any:
        return jnp.sum(x**4) + jnp.sum(x) ** 2

    return x - jnp.linalg.solve(jax.hessian(loss)(x) + jnp.eye(3), jax.grad(loss)(x))


def of_loss(fn: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(lambda *a: jnp.sum(jnp.sin(fn(*a))))


Program = tuple[Callable[..., Any], tuple[np.ndarray, ...]]

PROGRAMS: dict[str, Program] = {
    "inverse": (jnp.linalg.inv, (normal(ROWS, 4, 4),)),
    "inverse_of_two_batches": (jnp.linalg.inv, (definite(3, 2, 20),)),
    "inverse_of_one": (jnp.linalg.inv, (normal(5, 5),)),
    "inverse_of_singular": (jnp.linalg.inv, (singular(),)),
    "solve": (jnp.linalg.solve, (normal(ROWS, 6, 6), normal(ROWS, 6, 2))),
    "solve_a_vector": (solve_vector, (normal(ROWS, 3, 3), normal(ROWS, 3))),
    "one_matrix_many_columns": (jnp.linalg.solve, (normal(4, 4), normal(4, 70))),
    "cholesky": (jnp.linalg.cholesky, (definite(3),)),
    "cholesky_above": (lambda a: jnp.linalg.cholesky(a, upper=True), (definite(4),)),
    "cholesky_fails": (lambda a: jnp.linalg.cholesky(a - 5 * jnp.eye(4)), (definite(4),)),
    "determinant": (jnp.linalg.slogdet, (normal(ROWS, 5, 5),)),
    "triangle": (
        lambda a, b: 2 * scipy_linalg.solve_triangular(a, b, lower=True),
        (definite(4), normal(ROWS, 4, 2)),
    ),
    "triangle_from_the_right": (
        lambda a, b: lax.linalg.triangular_solve(a, b) + 1,
        (definite(4), normal(ROWS, 2, 4)),
    ),
    "triangle_transposed": (
        lambda a, b: 1 + scipy_linalg.solve_triangular(a, b, trans=1, unit_diagonal=True),
        (definite(4), normal(ROWS, 4, 2)),
    ),
    "factors": (jax.vmap(scipy_linalg.lu), (normal(ROWS, 4, 4),)),
    "factors_of_tall": (lax.linalg.lu, (normal(ROWS, 5, 3),)),
    "factors_of_wide": (lax.linalg.lu, (normal(ROWS, 3, 5),)),
    "filter": (jax.vmap(filter_step, (0, None)), (definite(4), normal(2, 4))),
    "density": (jax.vmap(density), (normal(ROWS, 3), normal(ROWS, 3), definite(3))),
    "newton": (jax.vmap(newton), (normal(ROWS, 3),)),
    "gradient_of_inverse": (of_loss(jnp.linalg.inv), (definite(4),)),
    "gradient_of_cholesky": (of_loss(jnp.linalg.cholesky), (definite(3),)),
    "gradient_of_density": (
        of_loss(jax.vmap(density)),
        (normal(ROWS, 3), normal(ROWS, 3), definite(3)),
    ),
}


def repeat(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same in each turn of a loop, of an operand that changes."""

    def looped(first: Any, *rest: Any) -> Any:
        def turn(first: Any, _: None) -> Any:
            found = fn(first, *rest)
            return 0.9 * first, found

        return lax.scan(turn, first, None, length=5)[1]

    return looped


def assert_loop_computes(fn: Callable[..., Any], arguments: Any) -> None:
    graph = simplify(import_hlo(lower_for_gpu(fn, *arguments)))
    assert_as_xla(fn, arguments, tolerance=2e-3, graph=graph, check=False)


def make_loops(fn: Callable[..., Any], arguments: Any) -> tuple[Graph, list[str]]:
    notes: list[str] = []
    graph = import_hlo(lower_for_gpu(fn, *arguments))
    return loop_over_matrices(graph, LoopPlanner(H100), notes), notes


# ---- what the calls mean ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lower", [lower_for_gpu, lower])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_reference_computes_what_jax_does(name: str, lower: Callable[..., bytes]) -> None:
    fn, arguments = PROGRAMS[name]
    graph = import_hlo(lower(fn, *arguments))
    wanted = jax.tree.leaves(jax.jit(fn)(*arguments))
    for got, want in zip(run_graph(graph, arguments), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_calls_are_read() -> None:
    assert read_factorization("cusolver_potrf_ffi", b"{lower = false}") == CholeskyAttrs(False)
    assert read_factorization("cusolver_getrf_ffi", b"{}") == LuAttrs()
    assert read_factorization("cu_lu_pivots_to_permutation", b"{}") == PivotsAttrs()
    config = b"{diag = 85 : ui8, side = 82 : ui8, trans_x = 84 : ui8, uplo = 76 : ui8}"
    wanted = TriangularSolveAttrs(False, True, True, "TRANSPOSE")
    assert read_factorization("lapack_strsm_ffi", config) == wanted
    assert read_factorization("lapack_dpotrf_ffi", b"{uplo = 85 : ui8}") == CholeskyAttrs(False)
    for other in ("lapack_cgetrf_ffi", "cusolver_syevd_ffi", "lapack_sgetrf"):
        assert read_factorization(other, b"{}") is None


# ---- in loops --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loop_of_factorizations_is_one_kernel(name: str) -> None:
    fn, arguments = PROGRAMS[name]
    assert_loop_computes(repeat(fn), arguments)


def test_matrices_that_a_turn_makes() -> None:
    def turn(state: Any, seen: Any) -> Any:
        p, h = state
        gain = jax.vmap(filter_step, (0, None))(p, h)
        return (p - gain @ h @ p + 0.1 * seen[:, None, None] * jnp.eye(4), h), gain

    def filters(p: Any, h: Any, seen: Any) -> Any:
        return lax.scan(turn, (p, h), seen)

    assert_loop_computes(filters, (definite(4), normal(2, 4), normal(6, ROWS)))


def test_a_row_sorts_few_numbers() -> None:
    def sorts(x: Any) -> Any:
        def turn(x: Any, _: None) -> Any:
            order = jnp.argsort(x, -1, stable=True)
            return jnp.sin(3 * x), (order.astype(jnp.float32), jnp.sort(x, -1, descending=True))

        return lax.scan(turn, x, None, length=5)

    x = np.round(normal(ROWS, 7))
    assert_as_xla(sorts, (x,), check=False)


# ---- outside of loops ------------------------------------------------------------------------------------------------


def assert_loops_compute(graph: Graph, arguments: Any, tolerance: float) -> None:
    values = evaluate(graph, arguments)
    for node in loops_of(graph):
        assert count_turns(graph, node) == (1, {0: Affine(1, 0)})
        made = emit_loop(plan(graph, node), "loop_0")
        results = launch(made, [values[o][0] for o in node.operands], check=False)
        for state, result in zip(made.results, results, strict=True):
            want = values[node.name][state]
            np.testing.assert_allclose(result, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_of_it_is_one_kernel(name: str) -> None:
    fn, arguments = PROGRAMS[name]
    graph, notes = make_loops(fn, arguments)
    assert not notes and not any(find_factorization(node) for node in graph)
    # One row is factorized, and seventy are solved with its factors.
    assert len(loops_of(graph)) == 1 + (name == "one_matrix_many_columns")
    assert_loops_compute(graph, arguments, 2e-3)


def test_in_double_precision() -> None:
    with jax.enable_x64(True):
        arguments = (definite(4, dtype=np.float64), normal(ROWS, 4, 1, dtype=np.float64))
        graph, _ = make_loops(jnp.linalg.solve, arguments)
        wanted = np.linalg.solve(*arguments)
    assert_loops_compute(graph, arguments, 1e-12)
    (got,) = run_graph(graph, arguments)
    np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_large_matrices_stay_a_librarys() -> None:
    graph, notes = make_loops(jnp.linalg.inv, (normal(ROWS, 9, 9),))
    left = [node.op for node in graph if find_factorization(node)]
    assert left == ["custom-call", "custom-call", "triangular-solve", "triangular-solve"]
    assert len(notes) == 4 and all("its matrices are too large for a thread" in n for n in notes)


def test_types_that_threads_do_not_factorize() -> None:
    graph, notes = make_loops(jnp.linalg.inv, (normal(ROWS, 3, 3).astype(np.complex64),))
    assert not loops_of(graph) and any("c64[40,3,3]" in note for note in notes)


def test_a_graph_without_matrices_stays() -> None:
    graph = read(lambda x: jnp.sin(x) @ x, (normal(4, 4),))
    assert loop_over_matrices(graph, LoopPlanner(H100), []) is graph


def test_what_is_between_two_stays_outside_if_rows_meet_there() -> None:
    """A path leaves by the mean over all rows and comes back: two loops, and the mean between them."""

    def fn(a: Any, b: Any) -> Any:
        x = jnp.linalg.solve(a, b)
        return jnp.linalg.solve(a + jnp.mean(x), x)

    arguments = (definite(3), normal(ROWS, 3, 1))
    graph, _ = make_loops(fn, arguments)
    assert len(loops_of(graph)) == 2
    for got, want in zip(run_graph(graph, arguments), [jax.jit(fn)(*arguments)], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_wide_rows_stay_with_other_kernels() -> None:
    """Forty features of a row are beside a matrix of 3 x 3, but not in its kernel."""

    def fn(a: Any, x: Any) -> Any:
        return jnp.linalg.inv(a) * jnp.tanh(x).sum(-1)[:, None, None]

    graph, _ = make_loops(fn, (definite(3), normal(ROWS, 40)))
    (node,) = loops_of(graph)
    assert any(n.op == "tanh" for n in graph) and not any(n.op == "tanh" for n in node.regions[1])
