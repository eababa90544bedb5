"""Which results take over the memory of an argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.compile import compile_graph
from astitch.graph.ir import CustomCallAttrs
from astitch.hlo_import import import_hlo
from astitch.kernel import kernel_ir as k
from astitch.kernel.in_place import InPlace
from astitch.run.emulate import Order
from astitch.show.compilation import Compilation
from astitch.xla.memory_reuse import count_copied, find_in_place, find_temporaries_in_place
from astitch.xla.prepare_kernels import KernelRefusal, XlaKernel, emit_for_xla, emit_plan_for_xla
from astitch.xla.write_module import export_program
from tests.emulated_xla import (
    H100,
    ROWS,
    is_kernel,
    normal,
    planned_kernels,
    run_graph,
    run_module,
    two_batch_norms,
    with_text,
)
from tests.hlo_runner import lower
from tests.small_gpu import few_sms, find_statements


def clip_and_move(params, moments, gradients):
    """An optimizer's step: what is donated is read once, where its successor is written."""
    norm = jnp.sqrt(sum(jnp.square(g).sum() for g in gradients))
    scaled = [g / jnp.maximum(norm, 1) for g in gradients]
    moments = [0.9 * m + 0.1 * g for m, g in zip(moments, scaled, strict=True)]
    moved = [p - 0.1 * m / (1 + p * p) for p, m in zip(params, moments, strict=True)]
    return moved, moments, jnp.square(moments[0]).sum()


def compile_donated(
    fn: Callable[..., Any], donated: int, *arguments: Any
) -> tuple[Compilation, dict[str, list[InPlace]]]:
    """A function for a GPU of few SMs, and which results take over memory if its first leaves are donated."""
    compilation = compile_graph(import_hlo(lower(fn, *arguments, keep_unused=True)), few_sms(4))
    count = len(compilation.program.parameters)
    return compilation, find_in_place(compilation, [i < donated for i in range(count)])


def test_donated_parameters_are_written_over() -> None:
    arguments = [[normal(64, 96), normal(50), normal(7, 3)] for _ in range(3)]
    compilation, in_place = compile_donated(clip_and_move, 6, *arguments)
    (kernel,), (pairs,) = planned_kernels(compilation), in_place.values()
    assert len(pairs) == 6
    text = emit_for_xla(kernel, pairs)
    assert emit_for_xla(kernel).count("__restrict__") - text.count("__restrict__") == 12
    hlo = export_program(compilation, {kernel.name: with_text(kernel, pairs)})
    (node,) = [node for node in import_hlo(hlo) if is_kernel(node)]
    assert isinstance(node.attrs, CustomCallAttrs) and len(node.attrs.aliases) == 6
    got = run_module(hlo, jax.tree.leaves(arguments))
    for a, b in zip(got, jax.tree.leaves(jax.jit(clip_and_move)(*arguments)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("fn", "arguments"),
    [
        (lambda x: x[::-1] * 2, (normal(64, 96),)),  # written elsewhere
        (lambda x: jnp.tanh(x) + x.T, (normal(64, 64),)),  # also read elsewhere
        (lambda x: (x * 2).astype(jnp.bfloat16), (normal(64, 96),)),  # of another size
        (lambda x: (jnp.tanh(x) + 1, x @ (jnp.tanh(x) + 1)), (normal(64, 64),)),  # read later
        (lambda x: jnp.sort(x), (normal(64, 96),)),  # by XLA
    ],
    ids=["reverse", "transpose", "size", "product", "sort"],
)
def test_what_is_not_written_where_it_was_read(
    fn: Callable[..., Any], arguments: tuple[np.ndarray, ...]
) -> None:
    _, in_place = compile_donated(fn, 1, *arguments)
    assert in_place == {}


def trust(p, g):
    """A step as long as the weights are: LAMB's rule, or Adafactor's."""
    return p - 0.1 * jnp.linalg.norm(p) / (1 + jnp.linalg.norm(g + 0.01 * p)) * (g + 0.01 * p)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    ("fn", "arguments", "pairs"),
    [
        (lambda x: x - x.sum(0), (normal(640, 96),), 1),
        (lambda x: x - x.sum(0), (normal(2560, 96),), 1),
        (lambda x: x - x.sum(0), (normal(2560, 500),), 1),
        (lambda x: x[::-1] - x.sum(0), (normal(2560, 500),), 0),  # then read elsewhere
        (lambda x: x - x.mean() * x[:, ::-1].max(), (normal(640, 512),), 1),
        (lambda x: x / jnp.square(x.T @ jnp.ones(256, x.dtype)).sum(), (normal(256, 257),), 1),
        (trust, (normal(640, 384), normal(640, 384)), 1),
    ],
    ids=["part", "ahead", "columns", "reverse", "whole", "weighted", "trust"],
)
def test_what_is_read_before_all_meet_may_be_read_anywhere(
    fn: Callable[..., Any], arguments: tuple[np.ndarray, ...], pairs: int, dtype: Any
) -> None:
    """Before a barrier of the grid by any thread; without one, by the thread that stores it in any of its steps."""
    arguments = tuple(a.astype(dtype) for a in arguments)
    compilation, in_place = compile_donated(fn, 1, *arguments)
    assert sum(map(len, in_place.values())) == pairs
    kernels: dict[str, XlaKernel | KernelRefusal] = {}
    for kernel in planned_kernels(compilation):
        kernels[kernel.name] = with_text(kernel, in_place.get(kernel.name, ()))
    graph = import_hlo(export_program(compilation, kernels))
    want = np.asarray(jax.jit(fn)(*arguments), np.float32)
    tolerance = 1e-4 if dtype is np.float32 else 2**-6
    for order in Order:
        (got,) = run_graph(graph, arguments, order)
        atol = tolerance * float(np.abs(want).max())
        np.testing.assert_allclose(np.asarray(got, np.float32), want, rtol=tolerance, atol=atol)


def move_weights(weights, x):
    """Products read the weights before they are written over, as in a training step; one reads them after."""

    def loss(weights):
        return jnp.square(jnp.tanh(x @ weights[0]) @ weights[1]).mean()

    gradients = jax.grad(loss)(weights)
    moved = [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]
    return moved, moved[1] @ weights[1].T


@pytest.mark.parametrize(
    ("fn", "arguments", "pairs"),
    [
        (clip_and_move, [[normal(64, 96), normal(50), normal(7, 3)] for _ in range(3)], 6),
        (move_weights, [[normal(16, 32), normal(32, 8)], normal(40, 16)], 1),
        (two_batch_norms, ROWS, 0),
    ],
    ids=["optimizer", "weights", "meetings"],
)
def test_what_is_observed_is_what_will_be_compiled(
    fn: Callable[..., Any], arguments: Any, pairs: int
) -> None:
    compilation, in_place = compile_donated(fn, 6, *arguments)
    donated = [i < 6 for i in range(len(compilation.program.parameters))]
    assert sum(map(len, in_place.values())) >= pairs
    for plan, kernel in zip(compilation.plans, planned_kernels(compilation), strict=True):
        assert plan.kernel.name == kernel.name
        assert emit_plan_for_xla(plan, donated) == emit_for_xla(
            kernel, in_place.get(kernel.name, ())
        )


def softmax_of_product(x, w):
    """Each thread reads again, and then writes over, what it read for the sums."""
    return jax.nn.softmax(x @ w, -1)


def softmax_and_sums_of_product(x, w):
    product = x @ w
    return jax.nn.softmax(product, -1), jnp.tanh(product) * product.mean(-1, keepdims=True)


@pytest.mark.parametrize(
    ("fn", "width", "pairs"),
    [
        (softmax_of_product, 96, 1),
        (softmax_of_product, 4000, 1),
        (lambda x, w: jnp.tanh(x @ w) + 1, 96, 1),
        (lambda x, w: (jnp.tanh(x @ w), jnp.sin(x @ w)), 96, 1),  # one of two results
        (softmax_and_sums_of_product, 4000, 1),
        (lambda x, w: (x @ w, jnp.tanh(x @ w) + 1), 96, 0),  # a result itself
        (lambda x, w: (jnp.tanh(x @ w) + 1) @ (x @ w).T, 96, 0),  # read by a product
        (lambda x, w: jnp.tanh(x @ w).astype(jnp.bfloat16), 96, 0),  # of another size
        (lambda x, w: (x @ w)[::-1] + 1, 96, 0),  # written elsewhere
        (lambda x, w: jnp.tanh(w) + 1, 96, 0),  # a parameter
    ],
)
def test_temporary_arrays_are_written_over(
    fn: Callable[..., Any], width: int, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astitch.xla.memory_reuse.LEAST_BYTES_AGAIN", 0)
    arguments = normal(64, 8), normal(8, width)
    compilation, in_place = compile_donated(fn, 0, *arguments)
    assert sum(map(len, in_place.values())) == pairs
    kernels: dict[str, XlaKernel | KernelRefusal] = {}
    for kernel in planned_kernels(compilation):
        kernels[kernel.name] = with_text(kernel, in_place.get(kernel.name, ()))
    for plan, kernel in zip(compilation.plans, compilation.program.kernels, strict=True):
        rendered = emit_plan_for_xla(plan, (False, False)).encode()
        assert rendered == kernels[kernel.name].code  # type: ignore[union-attr]
    got = run_module(export_program(compilation, kernels), arguments)
    for a, b in zip(got, jax.tree.leaves(jax.jit(fn)(*arguments)), strict=True):
        rtol = 1e-5 if a.dtype == np.float32 else 2**-7  # a tie may be rounded the other way
        # A product's sums are rounded as their largest terms are, in an order that follows the machine.
        largest = float(np.abs(np.asarray(b, np.float32)).max())
        atol = max(1e-5, 4 * largest * float(np.finfo(np.float32).eps))
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def test_branches_write_over_what_they_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astitch.xla.memory_reuse.LEAST_BYTES_AGAIN", 0)
    compilation, donated = compile_donated(softmax_of_product, 2, normal(64, 8), normal(8, 96))
    assert find_temporaries_in_place(compilation) == donated != {}
    moves, donated = compile_donated(lambda x: jnp.tanh(x) + 1, 1, normal(64, 96))
    assert find_temporaries_in_place(moves) == {} != donated  # its operand may be another's


def test_smaller_arrays_are_written_over_where_memory_is_short() -> None:
    compilation, in_place = compile_donated(softmax_of_product, 0, normal(64, 8), normal(8, 96))
    assert not in_place
    assert find_in_place(compilation, [False] * 2, least_bytes=64 * 96 * 4)
    assert not find_in_place(compilation, [False] * 2, least_bytes=64 * 96 * 4 + 1)


def after_turns(x: Any, w: Any) -> Any:
    turned = jax.lax.fori_loop(0, 3, lambda _, s: jnp.sin(s @ w), x)
    return jax.nn.softmax(turned)


def after_a_while(x: Any, w: Any) -> Any:
    def goes_on(state: Any) -> Any:
        return (state[0] < 3) & (jnp.abs(state[1]).max() > 1e-3)

    _, turned = jax.lax.while_loop(goes_on, lambda s: (s[0] + 1, jnp.cos(s[1] @ w)), (0, x))
    return turned / jnp.linalg.norm(turned, axis=1, keepdims=True)


def after_a_scan(x: Any, w: Any) -> Any:
    """Its stack is read; what it carries is the program's result too."""
    turned, stack = jax.lax.scan(lambda s, r: (jnp.tanh(s @ w), s * r), x, jnp.arange(4.0))
    return turned, jnp.exp(stack)


def after_a_sort(x: Any, w: Any) -> Any:
    keys, values = jax.lax.sort((x @ w, x), dimension=0, num_keys=2)
    return keys.sum(0), values * 2 + 1


def handed_on(x: Any, w: Any) -> Any:
    """The loop does not change the first value of its state: it may be the argument."""
    _, turned = jax.lax.while_loop(
        lambda s: jnp.abs(s[1]).max() > 1e-3, lambda s: (s[0], s[1] @ s[0] / 99), (w, x)
    )
    return jnp.exp(w), turned.sum()


@pytest.mark.parametrize(
    ("fn", "shares"),
    [
        (after_turns, True),
        (after_a_while, True),
        (after_a_scan, True),
        (after_a_sort, True),
        (handed_on, False),
    ],
)
def test_results_of_loops_and_sorts_are_written_over(fn: Any, shares: bool) -> None:
    arguments = normal(96, 96), normal(96, 96) / 10
    compilation, _ = compile_donated(fn, 0, *arguments)
    found = find_in_place(compilation, [False] * 2, least_bytes=96 * 96 * 4)
    assert sum(map(len, found.values())) == shares
    kernels: dict[str, XlaKernel | KernelRefusal] = {}
    for kernel in planned_kernels(compilation):
        kernels[kernel.name] = with_text(kernel, found.get(kernel.name, ()))
    got = run_module(export_program(compilation, kernels), arguments)
    for a, b in zip(got, jax.tree.leaves(jax.jit(fn)(*arguments)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def scaled_by_a_product(x: Any, w: Any, v: Any) -> Any:
    """The product is read by two kernels, and the second waits for the first."""
    y = x @ w
    return y * jnp.tanh(jnp.exp(y) @ v).sum(1, keepdims=True)


def scaled_beside_a_product(x: Any, w: Any, v: Any) -> Any:
    """So it is here, but another product reads it too, and may come later."""
    y = x @ w
    return y * jnp.tanh(jnp.exp(y) @ v).sum(1, keepdims=True), y @ v


@pytest.mark.parametrize(
    ("fn", "shares"), [(scaled_by_a_product, True), (scaled_beside_a_product, False)]
)
def test_earlier_readers_may_be_other_kernels(fn: Any, shares: bool) -> None:
    arguments = normal(64, 80), normal(80, 96), normal(96, 32)
    compilation, _ = compile_donated(fn, 0, *arguments)
    assert len(compilation.program.kernels) == 2
    found = find_in_place(compilation, [False] * 3, least_bytes=64 * 96 * 4)
    assert bool(found) == shares


def test_scratch_takes_over_no_temporary_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partials of a row over several blocks are written, too."""
    monkeypatch.setattr("astitch.xla.memory_reuse.LEAST_BYTES_AGAIN", 0)
    compilation, in_place = compile_donated(softmax_of_product, 0, normal(4, 8), normal(8, 200_000))
    (plan,) = compilation.plans
    assert plan.kernel.scratch
    for pair in in_place.get(plan.kernel.name, []):
        assert pair.written < len(plan.kernel.arguments)  # behind them is the pointer to scratch


@pytest.mark.parametrize(
    ("fn", "arguments"),
    [
        (lambda b, g: b - 0.1 * g.sum(1), (normal(64), normal(64, 96))),  # by one thread of a row
        (lambda b, g: b - 0.1 * g.sum(0), (normal(96), normal(64, 96))),  # by the last of a column
        (lambda b, x: (b * 0.9, x + b), (normal(96), normal(64, 96))),  # used by every row
        (lambda b, x: (b * 0.9, (x * b).sum(1)), (normal(96), normal(64, 96))),
        (lambda s, x: (s * 0.9, x * s), (normal(), normal(64, 96))),
    ],
    ids=["row", "column", "bias", "scale", "scalar"],
)
def test_written_over_or_not_the_results_are_right(
    fn: Callable[..., Any], arguments: tuple[np.ndarray, ...], request: pytest.FixtureRequest
) -> None:
    compilation, in_place = compile_donated(fn, 1, *arguments)
    kernels: dict[str, XlaKernel | KernelRefusal] = {}
    for kernel in planned_kernels(compilation):
        kernels[kernel.name] = with_text(kernel, in_place.get(kernel.name, ()))
    if request.node.callspec.id in ("row", "column"):
        assert sum(map(len, in_place.values())) == 1
    got = run_module(export_program(compilation, kernels), arguments)
    for a, b in zip(got, jax.tree.leaves(jax.jit(fn)(*arguments)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cols", [96, 500])
def test_what_is_loaded_for_a_later_phase_is_written_over(cols: int) -> None:
    """The residual, which the first phase loads although only the second needs it."""

    def norm_and_add(residual: jax.Array, x: jax.Array) -> jax.Array:
        return residual + x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5)

    arguments = normal(40, cols), normal(40, cols)
    graph = import_hlo(lower(norm_and_add, *arguments, keep_unused=True))
    compilation = compile_graph(graph, H100)
    (plan,) = compilation.plans
    fetched = [s.array for s in find_statements(plan.kernel.body, k.Fetch)]
    assert fetched == ["p_residual_1"]
    in_place = find_in_place(compilation, (True, False))
    ((pair,),) = in_place.values()
    assert plan.kernel.arguments[pair.read].name == "p_residual_1"
    (kernel,) = planned_kernels(compilation)
    kernels = {kernel.name: with_text(kernel, in_place[kernel.name])}
    (got,) = run_module(export_program(compilation, kernels), arguments)
    np.testing.assert_allclose(got, jax.jit(norm_and_add)(*arguments), rtol=1e-5, atol=1e-5)


def test_a_parameter_that_is_not_donated_is_not_written_over() -> None:
    assert compile_donated(lambda x: x * 2, 0, normal(64, 96))[1] == {}
    ((pair,),) = compile_donated(lambda x: x * 2, 1, normal(64, 96))[1].values()
    assert pair == InPlace(read=0, written=1)


ALIASED = """HloModule shares, input_output_alias={{ {{0}}: (0, {{}}, may-alias) }}
ENTRY main {{
  x = f32[64,96] parameter(0)
  y = {0}[64,96] {1}(x)
  z = {0}[6144] reshape(y)
  ROOT results = ({0}[6144]) tuple(z)
}}"""


@pytest.mark.parametrize(("dtype", "shares"), [("f64", False), ("s32", False), ("f32", True)])
def test_what_shares_memory_has_one_element_type(dtype: str, shares: bool) -> None:
    text = ALIASED.format(dtype, "exponential" if shares else "convert")
    compilation = compile_graph(import_hlo(text), few_sms(4))
    assert bool(find_in_place(compilation, [True])) == shares


@pytest.mark.parametrize(
    ("fn", "copied"),
    [
        (lambda x: jnp.tanh(x) * 2, 0),
        (lambda x: jnp.tanh(x) + x.T, 64 * 64 * 4),  # also read elsewhere
        (lambda x: (x * 2).astype(jnp.bfloat16), 0),  # no result gets its memory
        (lambda x: (jnp.tanh(x) + 1, x @ (jnp.tanh(x) + 1)), 64 * 64 * 4),  # read later
        (lambda x: (jnp.tanh(x) + (x @ x).sum(), x.sum(0)), 0),  # read before
    ],
    ids=["in place", "transpose", "size", "later", "before"],
)
def test_what_is_not_written_where_it_was_read_is_copied(
    fn: Callable[..., Any], copied: int
) -> None:
    compilation, _ = compile_donated(fn, 1, normal(64, 64))
    assert sum(count_copied(plan, [True]) for plan in compilation.plans) == copied
    assert sum(count_copied(plan, [False]) for plan in compilation.plans) == 0


def count_up(x: Any) -> tuple[Any, Any]:
    """A loop of two results, and what is computed of one."""
    _, made, other = jax.lax.while_loop(
        lambda state: state[0] < 3,
        lambda state: (state[0] + 1, jnp.sort(state[1] * 2, 0), state[2] + state[1]),
        (0, x, x),
    )
    return jnp.tanh(made) + 1, other


def count_up_and_keep(x: Any) -> tuple[Any, Any]:
    moved, other = count_up(x)
    return moved + other, other


@pytest.mark.parametrize(("fn", "pairs"), [(count_up, 1), (count_up_and_keep, 1)])
def test_what_a_loop_hands_on_is_written_over(
    fn: Callable[..., Any], pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what is a result itself."""
    monkeypatch.setattr("astitch.xla.memory_reuse.LEAST_BYTES_AGAIN", 0)
    compilation, in_place = compile_donated(fn, 0, normal(64, 96))
    assert sum(map(len, in_place.values())) == pairs
    (kernel,) = (p.kernel for p in compilation.plans if p.kernel.name in in_place)
    (pair,) = in_place[kernel.name]
    assert kernel.arguments[pair.read].source.endswith("#1")
