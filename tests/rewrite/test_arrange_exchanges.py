"""All-to-alls of what kernels store cut the first dimension."""

from __future__ import annotations

import pytest

from astitch.graph.ir import Graph, OpaqueAttrs, TransposeAttrs
from astitch.hlo import schema
from astitch.rewrite.arrange_exchanges import arrange_exchanges
from tests.graphs import GraphBuilder


def exchange(shape: tuple[int, ...], cut: int, *, stored: bool = True, read: bool = True) -> Graph:
    """tanh(all-to-all(tanh(x))), or without one of both."""
    g = GraphBuilder()
    type_ = f"f32[{','.join(map(str, shape))}]"
    instruction = schema.HloInstructionProto()
    instruction.opcode = b"all-to-all"
    instruction.dimensions.append(cut)
    instruction.shape.dimensions.extend(shape)
    instruction.shape.layout.minor_to_major.extend(range(len(shape))[::-1])
    data = bytes(instruction.SerializeToString())
    attrs = OpaqueAttrs("all-to-all", "", data, (None,), has_effect=True)
    x = g.parameter(type_)
    given = g.op("tanh", type_, x) if stored else x
    received = g.op("opaque", g.array(given), given, attrs=attrs)
    return g.build(g.op("tanh", type_, received) if read else received)


@pytest.mark.parametrize(("shape", "cut"), [((6, 2, 8), 1), ((6, 8, 4), 2), ((5, 4), 1)])
def test_what_is_sent_lies_in_one_piece(shape: tuple[int, ...], cut: int) -> None:
    arranged = arrange_exchanges(exchange(shape, cut))
    (sent,) = (node for node in arranged if node.op == "opaque")
    assert isinstance(sent.attrs, OpaqueAttrs)
    turned = (shape[cut], *(n for d, n in enumerate(shape) if d != cut))
    assert sent.shape == turned
    instruction = schema.HloInstructionProto.FromString(sent.attrs.instruction)
    assert list(instruction.dimensions) == [0]
    assert tuple(instruction.shape.dimensions) == turned
    forth, back = (node for node in arranged if node.op == "transpose")
    assert forth.name in sent.operands
    assert back.operands == (sent.name,)
    assert isinstance(forth.attrs, TransposeAttrs)
    assert isinstance(back.attrs, TransposeAttrs)
    order = forth.attrs.permutation
    assert [order[d] for d in back.attrs.permutation] == list(range(len(shape)))
    assert arranged[arranged.outputs[0]].shape == shape


@pytest.mark.parametrize(
    "graph",
    [
        exchange((4, 8), 0),
        exchange((4, 8), 1, stored=False),
        exchange((4, 8), 1, read=False),
    ],
)
def test_others_stay(graph: Graph) -> None:
    assert arrange_exchanges(graph) is graph
