"""Convolutions in the order of memory in which libraries convolve fastest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from astitch.compile import compile_graph, compile_hlo
from astitch.device.gpu import preset
from astitch.graph.check import check_graph
from astitch.graph.convolution import CanonicalConvolution, canonical_convolution
from astitch.graph.ir import ConvolutionAttrs, Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.pipeline import Launcher, Target
from astitch.program.steps import KernelStep, LibraryStep
from astitch.rewrite.convolution_layouts import arrange_convolutions
from astitch.rewrite.simplify import simplify
from astitch.scope.remote_stitch import lays_out
from astitch.show.compilation import Compilation
from astitch.stitch_scope import Scope, Scopes
from astitch.xla.left_to_products import find_moves
from astitch.xla.library_tuning import find_layouts
from tests.hlo_runner import lower

H100 = preset("h100")

JAXS, FIRST, OWN = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("NHWC", "OHWI", "NHWC")


def whole(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Small whole numbers: sums of their products are exact."""
    return np.random.default_rng(sum(shape)).integers(-2, 3, shape).astype(dtype)


def convolve(x: Any, k: Any, layout: Any = JAXS, stride: int = 1, **options: Any) -> Any:
    strides = (stride,) * (x.ndim - 2)
    return lax.conv_general_dilated(x, k, strides, "SAME", dimension_numbers=layout, **options)


def graph_of(fn: Any, *arguments: Any) -> Graph:
    return simplify(import_hlo(lower(fn, *arguments)))


def count_copied(graph: Graph) -> int:
    """Arrays that a library would copy."""
    copied = 0
    for node in graph:
        if isinstance(node.attrs, ConvolutionAttrs):
            arrays = [graph[operand].array for operand in node.operands]
            found = canonical_convolution(node.attrs, *arrays, node.array)
            if isinstance(found, CanonicalConvolution):
                copied += sum(tensor.copied is not None for tensor in found.tensors)
    return copied


def ops_of(graph: Graph) -> list[str]:
    return [node.op for node in graph if node.op != "parameter"]


X, K = whole(2, 6, 5, 4), whole(3, 3, 4, 8)


def test_a_filter_is_transposed_in_front() -> None:
    graph = graph_of(convolve, X, K)
    rules: list[tuple[str, str]] = []
    arranged = arrange_convolutions(graph, H100, lambda rule, node: rules.append((rule, node)))
    (name,) = graph.outputs
    assert rules == [("arrange_convolution", name)] and arranged.outputs == (name,)
    assert ops_of(arranged) == ["transpose", "convolution"]
    assert [arranged[o].shape for o in arranged[name].operands] == [(2, 6, 5, 4), (8, 3, 3, 4)]
    assert (count_copied(graph), count_copied(arranged)) == (1, 0)


def test_what_lies_right_stays() -> None:
    graph = graph_of(lambda x, k: convolve(x, k, OWN), X, whole(8, 3, 3, 4))
    assert ops_of(arrange_convolutions(graph, H100)) == ["convolution"]
    other = graph_of(jnp.exp, X)
    assert arrange_convolutions(other, H100) is other


def test_a_transpose_of_the_users_own_is_taken_back() -> None:
    def fn(x: Any, k: Any) -> Any:
        return convolve(x, k.transpose(1, 2, 3, 0))

    arranged = arrange_convolutions(graph_of(fn, X, whole(8, 3, 3, 4)), H100)
    assert ops_of(arranged) == ["convolution"]


def test_all_of_a_model_with_its_channels_first() -> None:
    def fn(x: Any, k: Any, l: Any) -> Any:
        return jnp.tanh(convolve(jnp.tanh(convolve(x, k, FIRST)), l, FIRST))

    x, k, last = whole(2, 4, 6, 5), whole(8, 4, 3, 3), whole(8, 8, 3, 3)
    graph = arrange_convolutions(graph_of(fn, x, k, last), H100)
    for node in graph:
        if node.op == "convolution":
            assert isinstance(node.attrs, ConvolutionAttrs)
            assert node.attrs.input_feature == node.attrs.output_feature == 3
    program = compile_hlo(lower(fn, x, k, last), gpu="h100").program
    # Only the first kernel is there for the transposes alone.
    kinds = [type(step) for step in program.steps]
    assert kinds == [KernelStep, LibraryStep, KernelStep, LibraryStep, KernelStep]


def normalize(x: Any, axes: tuple[int, ...]) -> Any:
    mean, square = x.mean(axes, keepdims=True), (x * x).mean(axes, keepdims=True)
    return (x - mean) * lax.rsqrt(square - mean * mean + 1)


def block(x: Any, k: Any, b: Any) -> Any:
    """A batch norm, a bias for each channel, a ReLU, twice, and what skips them."""
    for _ in range(2):
        h = normalize(convolve(x, k, FIRST), (0, 2, 3)) + b[:, None, None]
        x = x + jnp.where(h > 0, h, 0.1 * h)
    return x


def modulated(x: Any, k: Any, b: Any) -> Any:
    """Noise for all channels, and a factor for each channel of each image."""
    for _ in range(2):
        h = convolve(x * (b + x[:, 0, 0, :4]).reshape(2, 4, 1, 1), k, FIRST)
        x = jnp.tanh(h + x.mean(1, keepdims=True))
    return x


def lines(x: Any, k: Any, b: Any) -> Any:
    x = x.reshape(2, 4, 72)
    for _ in range(2):
        h = convolve(x, k[:, :, 0], ("NCW", "OIW", "NCW"))
        x = jax.nn.gelu(normalize(h, (0, 2)) * b[:, None]) + x
    return x


def halves(x: Any, k: Any, b: Any) -> Any:
    x, k, b = (a.astype(jnp.bfloat16) for a in (x, k, b))
    return block(x, k, b).astype(jnp.float32)


@pytest.mark.parametrize("fn, most", [(block, 1), (modulated, 2), (lines, 1), (halves, 1)])
def test_gradients_with_channels_first_are_computed_as_convolutions_lie(fn: Any, most: int) -> None:
    """Images are transposed where the program reads and gives them, not between convolutions."""

    def derive(x: Any, k: Any, b: Any) -> Any:
        return jax.grad(lambda *a: (fn(*a) ** 2).mean(), (1, 2))(x, k, b)

    x, k, b = (np.asarray(a, np.float32) for a in (whole(2, 4, 8, 9), whole(4, 4, 3, 3), whole(4)))
    graph = graph_of(derive, x, k, b)
    arranged = check_graph(arrange_convolutions(graph, H100))
    images = 0
    for node in arranged:
        if node.op == "transpose" and node.array.shape[0] == 2:
            around = [*node.operands, *arranged.users[node.name]]
            images += any(arranged[name].op == "convolution" for name in around)
    assert images <= most
    for got, want in zip(run_graph(arranged, [x, k, b]), run_graph(graph, [x, k, b]), strict=True):
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), atol=3e-2 if fn is halves else 1e-4
        )


def test_an_optimizer_computes_as_parameters_lie() -> None:
    """Only the gradient of the filter is transposed, not the filter's momentum."""

    def step(x: Any, k: Any, m: Any) -> Any:
        m = 0.9 * m + jax.grad(lambda k: (convolve(jnp.tanh(convolve(x, k)), k) ** 2).mean())(k)
        return k - 0.1 * m, m

    x, k = np.asarray(whole(2, 6, 5, 4), np.float32), np.asarray(whole(3, 3, 4, 4), np.float32)
    arranged = arrange_convolutions(graph_of(step, x, k, k), H100)
    transposed = [node.operands[0] for node in arranged if node.op == "transpose"]
    assert arranged.parameters[2] not in transposed


def test_a_filter_and_both_gradients_share_one_order() -> None:
    def step(x: Any, k: Any, dy: Any) -> Any:
        y, pull = jax.vjp(convolve, x, k)
        return y, *pull(dy)

    graph = graph_of(step, X, K, whole(2, 6, 5, 8))
    assert "reverse" not in ops_of(graph)  # the window is
    arranged = arrange_convolutions(graph, H100)
    assert sorted(ops_of(arranged)) == ["convolution"] * 3 + ["transpose"] * 2
    assert count_copied(arranged) == 0


@pytest.mark.parametrize(
    "fn, arguments",
    [
        (lambda x, k: convolve(x, k, ("NDHWC", "DHWIO", "NDHWC")), (whole(1, 4, 4, 4, 2), whole(3, 3, 3, 2, 4))),
        (convolve, (X.astype(np.int32), K.astype(np.int32))),
    ],
    ids=["three spatial dimensions", "integers"],
)  # fmt: skip
def test_what_libraries_have_with_channels_first_stays(fn: Any, arguments: Any) -> None:
    assert ops_of(arrange_convolutions(graph_of(fn, *arguments), H100)) == ["convolution"]


def test_gpus_before_hopper_have_channels_last_for_images_of_16_bits_only() -> None:
    a100 = preset("a100")
    assert ops_of(arrange_convolutions(graph_of(convolve, X, K), a100)) == ["convolution"]
    halves = graph_of(convolve, X.astype(jnp.bfloat16), K.astype(jnp.bfloat16))
    assert ops_of(arrange_convolutions(halves, a100)) == ["transpose", "convolution"]

    def lines(x: Any, k: Any) -> Any:
        return convolve(x, k, ("NWC", "WIO", "NWC"))

    along = graph_of(
        lines, whole(2, 6, 4).astype(jnp.bfloat16), whole(3, 4, 8).astype(jnp.bfloat16)
    )
    assert ops_of(arrange_convolutions(along, a100)) == ["convolution"]
    assert ops_of(arrange_convolutions(along, H100)) == ["transpose", "convolution"]


def test_a_product_of_matrices_is_a_convolution_itself() -> None:
    """As XLA reads it, though a gradient's filter would need no transpose."""
    graph = graph_of(convolve, X, whole(1, 1, 4, 8))
    arranged = arrange_convolutions(graph, H100)
    assert ops_of(arranged) == ["transpose", "convolution"]
    (name,) = arranged.outputs
    assert arranged[arranged[name].operands[1]].shape == (8, 1, 1, 4)


def test_a_window_of_one_element_with_a_dilation_is_a_gradient() -> None:
    """In a filter, of a layer that skips every other element: it is no convolution itself."""

    def back(x: Any, dy: Any) -> Any:
        def layer(k: Any) -> Any:
            return convolve(x, k, ("NHC", "HIO", "NHC"), stride=2)

        return jax.vjp(layer, whole(1, 3, 4))[1](dy)

    graph = graph_of(back, whole(2, 2, 3), whole(2, 1, 4))
    assert count_copied(graph) == 1
    assert count_copied(arrange_convolutions(graph, H100)) == 0


def test_the_filter_of_a_gradient_with_groups_stays() -> None:
    """Its groups stand in the middle of the filter's order."""

    def back(k: Any, dy: Any) -> Any:
        _, pull = jax.vjp(lambda x: convolve(x, k, stride=2, feature_group_count=2), X)
        return pull(dy)

    arranged = arrange_convolutions(graph_of(back, whole(3, 3, 2, 8), whole(2, 3, 3, 8)), H100)
    (node,) = (node for node in arranged if node.op == "convolution")
    assert isinstance(node.attrs, ConvolutionAttrs) and node.attrs.feature_group_count == 2
    assert arranged[node.operands[1]].op != "transpose"


def test_double_precision_stays() -> None:
    with jax.enable_x64(True):
        graph = graph_of(convolve, X.astype(np.float64), K.astype(np.float64))
    assert ops_of(arrange_convolutions(graph, H100)) == ["convolution"]


@dataclass(frozen=True)
class Planned:
    """A program as XLA gets it.  before_planning: its scopes before any was planned."""

    compilation: Compilation
    before_planning: Scopes


def plan_for_xla(fn: Any, *arguments: Any) -> Planned:
    seen: list[Scopes] = []
    compilation = compile_graph(
        import_hlo(lower(fn, *arguments)),
        H100,
        Target(launcher=Launcher.XLA, after={"stitch_remotely": seen.append}),
    )
    return Planned(compilation, seen[-1])


def scope_of(scopes: Scopes, parameter: str) -> Scope:
    (scope,) = (scope for scope in scopes.scopes if parameter in scope.inputs)
    return scope


def test_filters_are_laid_out_by_us_and_operands_of_products_by_xla() -> None:
    """XLA's products read through transposes, its convolutions do not."""

    def fn(x: Any, k: Any, m: Any, n: Any) -> Any:
        y = jnp.tanh(convolve(x, k))
        return y, jnp.tanh(m @ n.transpose(0, 2, 1).reshape(16, 8))

    planned = plan_for_xla(fn, X, K, whole(8, 16), whole(4, 8, 4))
    graph = planned.before_planning.graph
    kernel, matrix = graph.parameters[1], graph.parameters[3]
    filters, matrices = (scope_of(planned.before_planning, name) for name in (kernel, matrix))
    assert not lays_out(graph, filters) and lays_out(graph, matrices)
    assert find_layouts(planned.before_planning) == set(matrices.members)
    moved = find_moves(planned.compilation)
    (name,) = moved
    (plan,) = (plan for plan in planned.compilation.plans if plan.kernel.name == name)
    assert plan.scope.members == matrices.members


def test_what_a_convolution_reads_too_is_laid_out_by_us() -> None:
    def fn(x: Any, m: Any, k: Any) -> Any:
        product = (m @ m).reshape(2, 4, 4, 8)
        return convolve(jnp.concatenate([product, product], axis=3), k, OWN)

    planned = plan_for_xla(fn, X, whole(16, 16), whole(8, 3, 3, 16))
    assert not find_layouts(planned.before_planning) and not find_moves(planned.compilation)
    assert len(planned.compilation.plans) == 1


def test_a_kernel_of_moves_with_a_barrier_is_known_before_it_is_planned() -> None:
    def fn(m: Any, n: Any) -> Any:
        product = (m @ n).reshape(64, 8, 8).transpose(2, 0, 1).reshape(64, 64)
        return product @ jnp.concatenate([product, n], axis=1)

    planned = plan_for_xla(fn, whole(64, 64), whole(64, 64))
    early = find_layouts(planned.before_planning)
    members = {p.kernel.name: p.scope.members for p in planned.compilation.plans}
    moved = {member for name in find_moves(planned.compilation) for member in members[name]}
    assert moved and moved <= early


@st.composite
def layers(draw: st.DrawFn) -> tuple[Any, list[np.ndarray]]:
    """A layer with its gradients, in any order of dimensions."""
    spatial = draw(st.integers(1, 2))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    sizes = {"N": draw(st.integers(1, 3)), "C": groups * draw(st.integers(1, 3))}
    sizes |= {s: draw(st.integers(1, 6)) for s in "HW"[:spatial]}
    kernel = {"O": groups * draw(st.integers(1, 3)), "I": sizes["C"] // groups}
    kernel |= {s: draw(st.integers(1, 3)) for s in "HW"[:spatial]}
    orders = [
        "".join(draw(st.permutations(names)))
        for names in ("NC" + "HW"[:spatial], "OI" + "HW"[:spatial], "NC" + "HW"[:spatial])
    ]
    options = {
        "window_strides": draw(st.tuples(*[st.integers(1, 2)] * spatial)),
        "padding": "SAME",
        "rhs_dilation": draw(st.tuples(*[st.integers(1, 2)] * spatial)),
        "dimension_numbers": tuple(orders),
        "feature_group_count": groups,
    }

    def layer(x: Any, k: Any) -> Any:
        return lax.conv_general_dilated(x, k, **options)

    x, k = whole(*(sizes[d] for d in orders[0])), whole(*(kernel[d] for d in orders[1]))
    dy = whole(*jax.eval_shape(layer, x, k).shape)

    def step(x: Any, k: Any, dy: Any) -> Any:
        y, pull = jax.vjp(layer, x, k)
        return y, *pull(dy)

    return step, [x, k, dy]


@settings(max_examples=60, deadline=None)
@given(layers())
def test_any_layer_and_its_gradients_are_the_same(drawn: tuple[Any, list[np.ndarray]]) -> None:
    step, arguments = drawn
    imported = import_hlo(lower(step, *arguments))
    graph = simplify(imported)
    arranged = check_graph(arrange_convolutions(graph, H100))
    # Only groups in the middle of a filter are left to the library.
    assert count_copied(arranged) <= sum(
        isinstance(node.attrs, ConvolutionAttrs) and node.attrs.feature_group_count > 1
        for node in graph
    )
    for found, want in zip(
        run_graph(arranged, arguments), run_graph(imported, arguments), strict=True
    ):
        np.testing.assert_array_equal(found, want)
