"""check_graph: what every op's rule accepts, what it refuses, and how a fault is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from graphs import GraphBuilder, combiner, parse_type
from hypothesis import given, settings
from strategies import random_graphs

from astitch.errors import IllegalProduct
from astitch.graph.check import check_graph, infer_type
from astitch.graph.ir import (
    BatchNormAttrs,
    BroadcastAttrs,
    CompareAttrs,
    ConditionalAttrs,
    ConstantAttrs,
    ConvolutionAttrs,
    CustomCallAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DotAttrs,
    DType,
    DynamicSliceAttrs,
    GatherAttrs,
    GetTupleElementAttrs,
    Graph,
    IotaAttrs,
    Literal,
    NoAttrs,
    Node,
    PadAttrs,
    ParameterAttrs,
    ScatterAttrs,
    SliceAttrs,
    SortAttrs,
    TransposeAttrs,
    WindowAttrs,
    WindowDimension,
)

ADD = combiner("add", DType.F32)


def less_than() -> Graph:
    g = GraphBuilder("less")
    return g.build(g.compare("LT", g.parameter("f32[]"), g.parameter("f32[]")))


def node_of(type: str, op: str, *operands: str, attrs: object = None, regions: object = ()) -> Node:
    """A node whose operands are named by their types."""
    return Node("x", op, parse_type(type), operands, attrs or NoAttrs(), tuple(regions))  # type: ignore[arg-type]


def infer(node: Node) -> str:
    return str(infer_type(node, [parse_type(o) for o in node.operands]))


WINDOW = WindowAttrs((WindowDimension(2, stride=2), WindowDimension(3, padding_low=1)))
EMBEDDING = GatherAttrs((2,), (0,), (0,), 2, (1, 64))
CONVOLUTION = ConvolutionAttrs(
    window=(WindowDimension(3, 2, 1, 1), WindowDimension(3, 1, 0, 0, window_dilation=2)),
    input_batch=0, input_feature=3, input_spatial=(1, 2),
    kernel_input_feature=2, kernel_output_feature=3, kernel_spatial=(0, 1),
    output_batch=0, output_feature=3, output_spatial=(1, 2),
)  # fmt: skip

LEGAL = [
    node_of("f32[2]", "add", "f32[2]", "f32[2]"),
    node_of("pred[2]", "not", "pred[2]"),
    node_of("f32[2]", "abs", "c64[2]"),
    node_of("pred[2]", "is-finite", "bf16[2]"),
    node_of("pred[2]", "compare", "u8[2]", "u8[2]", attrs=CompareAttrs("LE")),
    node_of("s8[2]", "select", "pred[2]", "s8[2]", "s8[2]"),
    node_of("s8[2]", "clamp", "s8[2]", "s8[2]", "s8[2]"),
    node_of("s8[2]", "convert", "f64[2]"),
    node_of("u32[2]", "bitcast-convert", "f32[2]"),
    node_of("u8[2,4]", "bitcast-convert", "f32[2]"),
    node_of("f32[2]", "bitcast-convert", "u8[2,4]"),
    node_of("c64[2]", "complex", "f32[2]", "f32[2]"),
    node_of("f64[2]", "imag", "c128[2]"),
    node_of("f32[3,2,4]", "broadcast", "f32[4,3]", attrs=BroadcastAttrs((2, 0))),
    node_of("f32[3,4]", "reshape", "f32[2,6]"),
    node_of("f32[4,2,3]", "transpose", "f32[2,3,4]", attrs=TransposeAttrs((2, 0, 1))),
    node_of("f32[3]", "slice", "f32[9]", attrs=SliceAttrs((1,), (8,), (3,))),
    node_of("f32[7]", "pad", "f32[4]", "f32[]", attrs=PadAttrs((-1,), (1,), (1,))),
    node_of("f32[0]", "pad", "f32[0]", "f32[]", attrs=PadAttrs((0,), (0,), (3,))),
    node_of("f32[5,2]", "concatenate", "f32[3,2]", "f32[2,2]", attrs=DimensionAttrs(0)),
    node_of("f32[3,2]", "reverse", "f32[3,2]", attrs=DimensionsAttrs((1,))),
    node_of("f32[2,2]", "dynamic-slice", "f32[3,2]", "s32[]", "s32[]",
            attrs=DynamicSliceAttrs((2, 2))),
    node_of("f32[3]", "dynamic-update-slice", "f32[3]", "f32[2]", "u32[]"),
    node_of("f32[8,128,64]", "gather", "f32[1000,64]", "s32[8,128,1]", attrs=EMBEDDING),
    node_of("f32[8,128,64]", "gather", "f32[1000,64]", "s32[8,128]", attrs=EMBEDDING),
    node_of("f32[4]", "reduce", "f32[4,8]", "f32[]", attrs=DimensionsAttrs((1,)), regions=[ADD]),
    node_of("f32[2,5]", "reduce-window", "f32[4,6]", "f32[]", attrs=WINDOW, regions=[ADD]),
    node_of("f32[4,6]", "select-and-scatter", "f32[4,6]", "f32[2,5]", "f32[]", attrs=WINDOW,
            regions=[less_than(), ADD]),
    node_of("f32[9,64]", "scatter", "f32[9,64]", "s32[8,1]", "f32[8,64]",
            attrs=ScatterAttrs((1,), (0,), (0,), 1), regions=[ADD]),
    node_of("f32[4,8]", "sort", "f32[4,8]", attrs=SortAttrs(1, True), regions=[less_than()]),
    node_of("f32[4]", "map", "f32[4]", "f32[4]", attrs=DimensionsAttrs((0,)), regions=[ADD]),
    node_of("f32[5,2,4]", "dot", "f32[2,5,3]", "f32[5,3,4]",
            attrs=DotAttrs((2,), (1,), (1,), (0,))),
    node_of("f32[2,3,4,5]", "dot", "bf16[2,3]", "bf16[4,5]", attrs=DotAttrs((), ())),
    node_of("f32[8,8,12,16]", "convolution", "f32[8,16,16,4]", "f32[3,3,4,16]", attrs=CONVOLUTION),
    node_of("s32[8]", "get-tuple-element", "(f32[8], s32[8])", attrs=GetTupleElementAttrs(1)),
    node_of("(f32[8,4], f32[4], f32[4])", "batch-norm-training", "f32[8,4]", "f32[4]", "f32[4]",
            attrs=BatchNormAttrs(1e-3, 1)),
    node_of("f32[8,4]", "batch-norm-inference", "f32[8,4]", *["f32[4]"] * 4,
            attrs=BatchNormAttrs(1e-3, 1)),
    node_of("(f32[8,4], f32[4], f32[4])", "batch-norm-grad", "f32[8,4]", *["f32[4]"] * 3,
            "f32[8,4]", attrs=BatchNormAttrs(1e-3, 1)),
    node_of("f32[]", "call", "f32[]", "f32[]", regions=[ADD]),
    node_of("f32[]", "conditional", "pred[]", *["f32[]"] * 4, attrs=ConditionalAttrs((2, 2)),
            regions=[ADD, ADD]),
    node_of("f32[77]", "custom-call", "s8[3]", attrs=CustomCallAttrs("f")),
]  # fmt: skip


@pytest.mark.parametrize("node", LEGAL, ids=str)
def test_the_rule_gives_the_type(node: Node) -> None:
    assert infer(node) == str(node.type)


ILLEGAL = [
    (node_of("f32[2]", "add", "f32[2]"), "has 1 operands, the op takes 2"),
    (node_of("f32[2]", "add", "f32[2]", "f32[3]"), "operand 0 is f32[2], operand 1 is f32[3]"),
    (node_of("f32[2]", "add", "f32[2]", "f16[2]"), "operand 0 is f32[2], operand 1 is f16[2]"),
    (node_of("f32[2]", "negate", "(f32[2], f32[2])"), "operand 0 is a tuple, (f32[2], f32[2])"),
    (node_of("s32[2]", "tanh", "s32[2]"), "tanh of s32 has no meaning"),
    (node_of("f32[2]", "and", "f32[2]", "f32[2]"), "and of f32 has no meaning"),
    (node_of("pred[2]", "shift-left", "pred[2]", "pred[2]"), "shift-left of pred has no meaning"),
    (node_of("pred[2]", "negate", "pred[2]"), "negate of pred has no meaning"),
    (node_of("pred[2]", "abs", "pred[2]"), "abs of pred has no meaning"),
    (node_of("pred[2]", "is-finite", "s32[2]"), "is-finite of s32 has no meaning"),
    (node_of("pred[2]", "compare", "f32[2]", "f32[2]"), "compare needs CompareAttrs, not NoAttrs"),
    (node_of("pred[2]", "compare", "f32[2]", "f32[2]", attrs=CompareAttrs("LTE")),
     "unknown direction 'LTE'"),
    (node_of("f32[2]", "select", "pred[]", "f32[2]", "f32[2]"),
     "operand 0 is pred[], not a pred of the shape of f32[2]"),
    (node_of("f32[2]", "select", "pred[2]", "f32[2]", "f64[2]"),
     "operand 1 is f32[2], operand 2 is f64[2]"),
    (node_of("f32[2]", "clamp", "f32[]", "f32[2]", "f32[]"),
     "operands are f32[], f32[2] and f32[], not of one type"),
    (node_of("f32[2]", "bitcast-convert", "u8[2]"),
     "the last dimension of u8[2] does not hold one f32"),
    (node_of("c64[2]", "complex", "f16[2]", "f16[2]"),
     "operands are f16[2] and f16[2], not both f32 or f64"),
    (node_of("f32[3,4]", "broadcast", "f32[4]", attrs=BroadcastAttrs((0,))),
     "operand dimension 0 has 4 elements, result dimension 0 has 3"),
    (node_of("f32[3,3]", "broadcast", "f32[3,3]", attrs=BroadcastAttrs((1, 1))),
     "dimensions (1, 1) are not distinct dimensions of rank 2"),
    (node_of("f32[3,4]", "broadcast", "f32[4]", attrs=BroadcastAttrs(())),
     "0 dimensions for an operand of f32[4]"),
    (node_of("f32[5]", "reshape", "f32[6]"), "f32[6] has 6 elements, the result 5"),
    (node_of("f32[2,2]", "transpose", "f32[2,2]", attrs=TransposeAttrs((0, 0))),
     "(0, 0) is no permutation of 2 dimensions"),
    (node_of("f32[3]", "slice", "f32[2]", attrs=SliceAttrs((0,), (3,), (1,))),
     "[0:3:1] of dimension 0 of f32[2]"),
    (node_of("f32[2]", "slice", "f32[2]", attrs=SliceAttrs((), (), ())),
     "starts, limits and strides are not 1 each"),
    (node_of("f32[2]", "pad", "f32[2]", "f64[]", attrs=PadAttrs((0,), (0,), (0,))),
     "the padding value is f64[], the operand f32[2]"),
    (node_of("f32[0]", "pad", "f32[2]", "f32[]", attrs=PadAttrs((-2,), (-1,), (0,))),
     "padding leaves (-1,)"),
    (node_of("f32[2]", "pad", "f32[2]", "f32[]", attrs=PadAttrs((0,), (0,), (-1,))),
     "negative interior padding (-1,)"),
    (node_of("f32[4,3]", "concatenate", "f32[2,3]", "f32[2,2]", attrs=DimensionAttrs(0)),
     "operand 1 is f32[2,2], operand 0 is f32[2,3]: they differ beyond dimension 0"),
    (node_of("f32[2]", "dynamic-slice", "f32[4]", "f32[]", attrs=DynamicSliceAttrs((2,))),
     "index 0 is f32[], not an integer scalar"),
    (node_of("f32[5]", "dynamic-slice", "f32[4]", "s32[]", attrs=DynamicSliceAttrs((5,))),
     "sizes (5,) exceed f32[4]"),
    (node_of("f32[4]", "dynamic-update-slice", "f32[4]", "f32[5]", "s32[]"),
     "the update f32[5] does not fit into f32[4]"),
    (node_of("f32[8,64]", "gather", "f32[1000,64]", "s32[8,128,2]", attrs=EMBEDDING),
     "index vectors have 2 elements, start_index_map 1"),
    (node_of("f32[8,64]", "gather", "f32[1000,32]", "s32[8,128,1]", attrs=EMBEDDING),
     "slice size 64 of dimension 1 of f32[1000,32]"),
    (node_of("f32[4]", "reduce", "f32[4,8]", attrs=DimensionsAttrs((1,)), regions=[ADD]),
     "has 1 operands, needs as many initial values as inputs"),
    (node_of("f32[4]", "reduce", "f32[4,8]", "f32[4]", attrs=DimensionsAttrs((1,)), regions=[ADD]),
     "initial value 0 is f32[4], not a scalar"),
    (node_of("f32[4]", "reduce", "f32[4,8]", "f32[]", attrs=DimensionsAttrs((2,)), regions=[ADD]),
     "dimensions (2,) are not distinct dimensions of rank 2"),
    (node_of("f64[4]", "reduce", "f64[4,8]", "f64[]", attrs=DimensionsAttrs((1,)), regions=[ADD]),
     "region add_f32 takes (f32[], f32[]), not (f64[], f64[])"),
    (node_of("f32[4]", "reduce", "f32[4,8]", "f32[]", attrs=DimensionsAttrs((1,))),
     "reduce needs 1 regions, it has 0"),
    (node_of("f32[4,8]", "sort", "f32[4,8]", attrs=SortAttrs(1, True), regions=[ADD]),
     "region add_f32 returns (f32[]), not (pred[])"),
    (node_of("f32[4,6]", "select-and-scatter", "f32[4,6]", "f32[2,4]", "f32[]", attrs=WINDOW,
             regions=[less_than(), ADD]),
     "the source is f32[2,4], the window has (2, 5) positions"),
    (node_of("f32[9,64]", "scatter", "f32[9,64]", "s32[8,1]", "f32[8,65]",
             attrs=ScatterAttrs((1,), (0,), (0,), 1), regions=[ADD]),
     "update windows [65] do not fit into f32[9,64]"),
    (node_of("f32[2,2]", "dot", "f32[2,3]", "f32[4,2]", attrs=DotAttrs((1,), (0,))),
     "contracting dimensions (1,) of f32[2,3] and (0,) of f32[4,2] differ"),
    (node_of("f32[8,8,12,16]", "convolution", "f32[8,16,16,5]", "f32[3,3,4,16]", attrs=CONVOLUTION),
     "5 input features in 1 groups, the kernel takes 4"),
    (node_of("f32[8]", "get-tuple-element", "(f32[8], s32[8])", attrs=GetTupleElementAttrs(2)),
     "element 2 of (f32[8], s32[8])"),
    (node_of("f32[]", "conditional", "f32[]", attrs=ConditionalAttrs(())),
     "the selector is f32[], not pred[] or s32[]"),
    (node_of("f32[]", "conditional", "pred[]", *["f32[]"] * 2, attrs=ConditionalAttrs((2,)),
             regions=[ADD]), "pred chooses of 2, not 1"),
    (node_of("f32[4]", "while", "f32[4]", regions=[ADD, ADD]),
     "region add_f32 takes (f32[], f32[]), not (f32[4])"),
    (node_of("s32[3]", "iota", attrs=IotaAttrs(1)),
     "iota dimension (1,) are not distinct dimensions of rank 1"),
    (node_of("f32[]", "transmogrify", "f32[]"), "there is no op 'transmogrify' in astitch/graph/ops"),
]  # fmt: skip


@pytest.mark.parametrize(("node", "sentence"), ILLEGAL, ids=[s for _, s in ILLEGAL])
def test_the_rule_refuses(node: Node, sentence: str) -> None:
    with pytest.raises(IllegalProduct) as caught:
        infer(node)
    assert str(caught.value) == sentence


# ---- graphs


def test_a_legal_graph_comes_back() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[8,128]")
    graph = g.build(g.reduce(x, (1,), "add"), x, aliases=[(1, 0)])
    assert check_graph(graph) is graph


def test_a_fault_is_shown_among_its_neighbours() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[8]")
    y = g.op("tanh", "f32[8]", x)
    z = g.op("add", "f32[4]", y, y, name="sum")
    with pytest.raises(IllegalProduct) as caught:
        check_graph(g.build(g.op("negate", "f32[4]", z)))
    assert (
        str(caught.value)
        == """\
graph main, %sum: the operands give f32[8]
    %p0 = f32[8] parameter() (index=0)
    %tanh.1 = f32[8] tanh(%p0)
  > %sum = f32[4] add(%tanh.1, %tanh.1)
    %negate.3 = f32[4] negate(%sum)
  the stage that handed on this graph has a bug; print its input and report both"""
    )


def _negated(name: str = "y", operand: str = "x") -> Node:
    return Node(name, "negate", parse_type("f32[]"), (operand,))


_X = Node("x", "parameter", parse_type("f32[]"), (), ParameterAttrs(0))
_ONE = Literal(DType.F32, (), b"\0\0\x80\x3f")


@pytest.mark.parametrize(
    ("graph", "sentence"),
    [
        (Graph("g", {"x": _X, "y": _negated("y", "z")}, ("x",), ()), "operand %z does not exist"),
        (Graph("g", {"y": _negated(), "x": _X}, ("x",), ()), "operand %x comes after its user"),
        (Graph("g", {"x": _X, "z": _negated()}, ("x",), ()), "is stored under the name 'z'"),
        (Graph("g", {"x": _X}, (), ()), "the graph does not list it as parameter 0"),
        (Graph("g", {"x": _X}, ("x", "x"), ()), "graph g: %x is listed as parameter 0 and 1"),
        (Graph("g", {"x": _X}, ("x",), ("y",)), "graph g: output 0, %y, does not exist"),
        (Graph("g", {}, ("x",), ()), "graph g: parameter 0, %x, is not a parameter node"),
        (Graph("g", {"x": _X}, ("x",), ("x",), ((0, 1),)),
         "graph g: alias of output 0 to parameter 1 names what does not exist"),
        (Graph("g", {"x": replace(_X, type=parse_type("(f32[], f32[])"))}, ("x",), ()),
         "a parameter is an array"),
        (Graph("g", {"c": Node("c", "constant", parse_type("f32[1]"), (), ConstantAttrs(_ONE))},
               (), ("c",)), "the operands give f32[]"),
        (Graph("g", {"x": _X, "t": Node("t", "custom-call", parse_type("(f32[], f32[])"), (),
                                          CustomCallAttrs("f"))},
               ("x",), ("t",)), "graph g: output 0, %t, is a tuple; outputs are arrays"),
    ],
)  # fmt: skip
def test_a_broken_graph_is_refused(graph: Graph, sentence: str) -> None:
    with pytest.raises(IllegalProduct) as caught:
        check_graph(graph)
    assert sentence in str(caught.value)


def test_regions_are_checked() -> None:
    g = GraphBuilder("broken")
    a, b = g.parameter("f32[]"), g.parameter("f32[]")
    g.op("and", "f32[]", a, b)
    region = g.build(g.same("add", a, b))
    outer = GraphBuilder()
    x, zero = outer.parameter("f32[4]"), outer.constant(0.0, "f32")
    attrs = DimensionsAttrs((0,))
    total = outer.op("reduce", "f32[]", x, zero, attrs=attrs, regions=[region])
    with pytest.raises(IllegalProduct, match="graph broken, %and.2: and of f32 has no meaning"):
        check_graph(outer.build(total))


Break = Callable[[Node], Node]
_BREAKS: list[Break] = [
    lambda n: replace(n, operands=(*n.operands, n.operands[0])),
    lambda n: replace(n, operands=n.operands[1:]),
    lambda n: replace(n, type=parse_type("f8e5m2[13,11]")),
    lambda n: replace(n, op="transmogrify"),
]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(random_graphs(8))
def test_every_broken_node_of_a_random_graph_is_found(graph: Graph) -> None:
    check_graph(graph)
    for node in graph:
        if not node.operands or node.op == "concatenate":
            continue
        for break_node in _BREAKS:
            nodes = {**graph.nodes, node.name: break_node(node)}
            with pytest.raises(IllegalProduct, match=f"%{node.name}: "):
                check_graph(Graph(graph.name, nodes, graph.parameters, graph.outputs))
