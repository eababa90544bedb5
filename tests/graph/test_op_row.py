"""A new op is one row: with nothing but its row it is imported, checked, folded, compiled, run and exported again."""

from __future__ import annotations

import numpy as np
import pytest

from astitch.compile import compile_hlo
from astitch.errors import IllegalProduct, MalformedHlo
from astitch.graph import index as ix
from astitch.graph.check import check_graph
from astitch.graph.ir import DimensionAttrs, Graph, Node
from astitch.graph.ops import OPS, Kind, Op
from astitch.graph.ops.access import Access, Index, forward
from astitch.graph.ops.hlo_fields import ONLY, Attributes, Field
from astitch.graph.ops.row import Shape
from astitch.graph.ops.rules import Type, array_of_result, arrays_of, attrs_of, check_distinct
from astitch.graph.reference import run_graph
from astitch.hlo import schema
from astitch.hlo.export import export_nodes
from astitch.hlo_import import import_hlo
from astitch.kernel import kernel_ir
from astitch.run.host_engine import HostEngine
from tests.hlo_runner import parse_hlo_text


def soft_sign_type(node: Node, operands: list[Type]) -> Type:
    (x,) = arrays_of(operands, 1)
    return x


SOFT_SIGN = Op(
    Kind.ELEMENTWISE,
    cuda="({0} / (1.0f + fabsf({0})))",
    flops=3,
    meaning=lambda node, x: x / (1 + np.abs(x)),
    rule=soft_sign_type,
    pairs=lambda node, source, target, number: [(d, d) for d in range(len(source))],
)


def swap_type(node: Node, operands: list[Type]) -> Type:
    (x,) = arrays_of(operands, 1)
    check_distinct("dimension", (attrs_of(node, DimensionAttrs).dimension,), x.rank)
    return x


def swap_pairs(node: Node, source: Shape, target: Shape, number: int) -> list[tuple[int, int]]:
    swapped = attrs_of(node, DimensionAttrs).dimension
    return [(d, d) for d in range(len(source)) if d != swapped]


def swap_index(graph: Graph, node: Node, index: Index) -> Access:
    d = attrs_of(node, DimensionAttrs).dimension
    extent = array_of_result(node).shape[d]
    moved = ix.modulo(ix.offset(index[d], extent // 2), extent)
    return forward(node.operands[0], (*index[:d], moved, *index[d + 1 :]))


def swap_halves(node: Node, x: np.ndarray) -> np.ndarray:
    d = attrs_of(node, DimensionAttrs).dimension
    return np.roll(x, -(x.shape[d] // 2), d)


SWAP_HALVES = Op(
    Kind.INDEX,
    meaning=swap_halves,
    rule=swap_type,
    attributes=Attributes(DimensionAttrs, (Field("dimension", "dimensions", ONLY),)),
    pairs=swap_pairs,
    index_map=swap_index,
)

TEXT = """HloModule m
add { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT c = f32[] add(a, b) }
ENTRY e { x = f32[24,32] parameter(0)
 t = f32[24,32] tanh(x)
 y = f32[24,32] OP
 zero = f32[] constant(0)
 s = f32[24] reduce(y, zero), dimensions={1}, to_apply=add
 b = f32[24,32] broadcast(s), dimensions={0}
 ROOT r = f32[24,32] add(y, b) }"""


def module_with(stand_in: str, opcode: str) -> bytes:
    """The module above with an op that XLA does not have: XLA's parser reads another in its place."""
    proto = schema.HloModuleProto.FromString(parse_hlo_text(TEXT.replace("OP", stand_in)))
    for computation in proto.computations:
        for instruction in computation.instructions:
            if instruction.opcode == stand_in.partition("(")[0].encode():
                if instruction.name.startswith(b"y"):
                    instruction.opcode = opcode.encode()
    return bytes(proto.SerializeToString())


CASES = {
    "soft-sign": (SOFT_SIGN, "logistic(t)", lambda t: t / (1 + np.abs(t))),
    "swap-halves": (SWAP_HALVES, "reverse(t), dimensions={1}", lambda t: np.roll(t, -16, 1)),
}


@pytest.mark.parametrize("opcode", CASES)
def test_a_row_is_all_that_an_op_needs(opcode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row, stand_in, compute = CASES[opcode]
    monkeypatch.setitem(OPS, opcode, row)
    module = module_with(stand_in, opcode)
    graph = check_graph(import_hlo(module))
    assert [node.name for node in graph if node.op == opcode] == ["y"]
    part = export_nodes(graph, [n.name for n in graph if not n.is_parameter], graph.outputs)
    assert import_hlo(part.hlo) == graph

    x = np.random.default_rng(0).normal(size=(24, 32)).astype(np.float32)
    y = compute(np.tanh(x))
    want = y + y.sum(1, keepdims=True)
    np.testing.assert_allclose(run_graph(graph, [x])[0], want, rtol=1e-5, atol=1e-5)
    compilation = compile_hlo(module)
    assert len(compilation.program.kernels) == 1
    got = HostEngine(compilation.program).run([x])
    np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-5)


def test_a_new_row_checks_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "swap-halves", SWAP_HALVES)
    module = schema.HloModuleProto.FromString(
        module_with("reverse(t), dimensions={1}", "swap-halves")
    )
    for instruction in module.computations[-1].instructions:
        if instruction.opcode == b"swap-halves":
            instruction.dimensions[:] = [2]
    with pytest.raises(MalformedHlo, match=r"%y, field dimensions: dimension \(2,\) are not"):
        import_hlo(module.SerializeToString())
    graph = import_hlo(module_with("logistic(t)", "tanh"))
    odd = Node("odd", "swap-halves", graph["y"].type, ("y",))
    with pytest.raises(IllegalProduct, match="needs DimensionAttrs, not NoAttrs"):
        check_graph(Graph("g", {**graph.nodes, "odd": odd}, graph.parameters, ("odd",)))


def test_kernels_round_as_the_rows_say() -> None:
    assert {
        *("maximum", "minimum", "select", "negate", "abs", "clamp", "copy", "sign", "convert"),
        *("bitcast-convert", "floor", "ceil", "round-nearest-even", "round-nearest-afz"),
    } == kernel_ir.EXACT
