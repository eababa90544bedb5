"""Importing HLO: real modules against XLA, the constructs it resolves, every refusal's message."""

from __future__ import annotations

import collections
import random
import re
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.errors import AstitchError, DynamicShape, MalformedHlo, UnsupportedOp, UnsupportedType
from astitch.graph.check import check_graph
from astitch.graph.ir import (
    ArrayType,
    CompareAttrs,
    ConditionalAttrs,
    ConstantAttrs,
    DotAttrs,
    DType,
    GatherAttrs,
    Graph,
    Node,
    ScatterAttrs,
    TupleType,
)
from astitch.graph.reference import run_graph
from astitch.hlo import schema
from astitch.hlo_import import import_hlo
from tests.hlo_runner import lower, parse_hlo_text
from tests.real_modules import COUNTS, MODULES, compare_with_xla, read_module


def find(graph: Graph, op: str) -> Node:
    (node,) = [n for n in graph if n.op == op]
    return node


def count_ops(graph: Graph) -> collections.Counter[str]:
    return collections.Counter(node.op for node in graph)


# ---- real modules --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COUNTS)
def test_real_module_is_legal_and_complete(name):
    graph = import_hlo(read_module(name))
    check_graph(graph)
    nodes, parameters, outputs, ops = COUNTS[name]
    assert (len(graph), len(graph.parameters), len(graph.outputs)) == (nodes, parameters, outputs)
    found = count_ops(graph)
    assert {op: found[op] for op in ops} == ops
    assert not {"call", "tuple", "fusion", "copy", "bitcast"} & set(found)


@pytest.mark.parametrize("name", [name for name in COUNTS if not name.endswith("_train")])
def test_real_module_agrees_with_xla(name):
    """`python -m tests.real_modules` compares the training steps too, for two minutes."""
    compare_with_xla(name)


# ---- what the importer resolves ------------------------------------------------------------------


def test_a_wrapped_module_and_text_give_the_same_graph():
    proto = lower(lambda x: jnp.tanh(x) + 1, np.zeros(4, np.float32))
    module = schema.HloModuleProto.FromString(proto)
    wrapped = schema.HloProto(hlo_module=module).SerializeToString()
    graph = import_hlo(proto)
    text = """HloModule m
ENTRY e { x = f32[4] parameter(0)
 t = f32[4] tanh(x)
 ROOT r = f32[4] add(t, t) }"""
    assert import_hlo(wrapped) == graph
    assert import_hlo(text) == import_hlo(text.encode())
    assert [n.op for n in import_hlo(text)] == ["parameter", "tanh", "add"]


def test_metadata_names_the_op_and_the_source():
    text = """HloModule m
ENTRY e { x = f32[4] parameter(0)
 ROOT t = f32[4] tanh(x), metadata={op_name="jit(f)/tanh" source_file="model.py" source_line=7} }"""
    node = find(import_hlo(text), "tanh")
    assert (node.op_name, node.source) == ("jit(f)/tanh", "model.py:7")


def test_source_of_a_jax_function_is_found_through_the_stack_frames():
    graph = import_hlo(lower(lambda x: jnp.tanh(x), np.zeros(4, np.float32)))
    node = find(graph, "tanh")
    assert re.fullmatch(r".*test_hlo_import\.py:\d+", node.source)
    assert node.op_name.endswith("/tanh")


def test_calls_and_fusions_are_inlined_and_names_stay_unique():
    text = """HloModule m
f { a = f32[4] parameter(0)
 b = f32[4] parameter(1)
 c = f32[4] add(a, b)
 ROOT r = (f32[4], f32[4]) tuple(c, a) }
g { a = f32[4] parameter(0)
 ROOT c = f32[4] negate(a) }
ENTRY e { x = f32[4] parameter(0)
 y = f32[4] parameter(1)
 p = (f32[4], f32[4]) call(x, y), to_apply=f
 q = f32[4] get-tuple-element(p), index=0
 s = (f32[4], f32[4]) call(q, q), to_apply=f
 t = f32[4] get-tuple-element(s), index=0
 u = f32[4] get-tuple-element(s), index=1
 v = f32[4] fusion(t), kind=kLoop, calls=g
 ROOT r = (f32[4], f32[4], f32[4]) tuple(v, u, y) }"""
    graph = import_hlo(text)
    assert [n.op for n in graph] == ["parameter", "parameter", "add", "add", "negate"]
    assert len(set(graph.nodes)) == 5
    x, y = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    for got, want in zip(run_graph(graph, [x, y]), [-2 * (x + y), x + y, y], strict=True):
        np.testing.assert_array_equal(got, want)


def test_nested_tuples_become_flat_parameters_state_and_results():
    text = """HloModule m
body { s = ((f32[], s32[]), f32[2]) parameter(0)
 i = (f32[], s32[]) get-tuple-element(s), index=0
 a = f32[] get-tuple-element(i), index=0
 n = s32[] get-tuple-element(i), index=1
 v = f32[2] get-tuple-element(s), index=1
 one = s32[] constant(1)
 m = s32[] add(n, one)
 w = f32[2] add(v, v)
 j = (f32[], s32[]) tuple(a, m)
 ROOT r = ((f32[], s32[]), f32[2]) tuple(j, w) }
cond { s = ((f32[], s32[]), f32[2]) parameter(0)
 i = (f32[], s32[]) get-tuple-element(s), index=0
 n = s32[] get-tuple-element(i), index=1
 k = s32[] constant(3)
 ROOT c = pred[] compare(n, k), direction=LT }
ENTRY e { p = ((f32[], s32[]), f32[2]) parameter(0)
 w = ((f32[], s32[]), f32[2]) while(p), condition=cond, body=body
 v = f32[2] get-tuple-element(w), index=1
 ROOT r = (f32[2], ((f32[], s32[]), f32[2])) tuple(v, w) }"""
    graph = import_hlo(text)
    check_graph(graph)
    assert [graph[p].array for p in graph.parameters] == [
        ArrayType(DType.F32, ()), ArrayType(DType.S32, ()), ArrayType(DType.F32, (2,)),
    ]  # fmt: skip
    loop = find(graph, "while")
    assert isinstance(loop.type, TupleType) and loop.operands == graph.parameters
    condition, body = loop.regions
    assert (len(condition.parameters), len(condition.outputs)) == (3, 1)
    assert (len(body.parameters), len(body.outputs)) == (3, 3)
    results = run_graph(graph, [np.float32(5), np.int32(0), np.ones(2, np.float32)])
    for got, want in zip(results, [[8, 8], 5, 3, [8, 8]], strict=True):
        np.testing.assert_array_equal(got, want)


def test_loop_with_one_array_as_state_has_a_tuple_type():
    graph = import_hlo(
        lower(lambda n: jax.lax.while_loop(lambda i: i < 10, lambda i: i + 3, n), np.int32(0))
    )
    loop = find(graph, "while")
    assert loop.type == TupleType((ArrayType(DType.S32, ()),))
    assert count_ops(graph)["get-tuple-element"] == 1


def test_conditional_flattens_the_operands_of_its_branches():
    text = """HloModule m
f { p = (f32[], f32[2]) parameter(0)
 ROOT r = f32[2] get-tuple-element(p), index=1 }
g { p = f32[2] parameter(0)
 ROOT r = f32[2] negate(p) }
ENTRY e { c = pred[] parameter(0)
 a = f32[] parameter(1)
 v = f32[2] parameter(2)
 t = (f32[], f32[2]) tuple(a, v)
 ROOT r = f32[2] conditional(c, t, v), true_computation=f, false_computation=g }"""
    graph = import_hlo(text)
    check_graph(graph)
    c, a, vector = graph.parameters
    assert find(graph, "conditional").attrs == ConditionalAttrs((2, 1))
    assert find(graph, "conditional").operands == (c, a, vector, vector)
    v = np.array([1, 2], np.float32)
    for choice, want in ((True, v), (False, -v)):
        np.testing.assert_array_equal(
            run_graph(graph, [np.bool_(choice), np.float32(0), v])[0], want
        )


def test_donated_arguments_become_aliases():
    x = np.zeros((4, 4), np.float32)
    proto = lower(
        lambda a, b, c: (b + 1, c, a * 2), x, x[0], x, donate_argnums=(0, 1), keep_unused=True
    )
    assert sorted(import_hlo(proto).aliases) == [(0, 1), (1, 0)]
    text = """HloModule m, input_output_alias={ {1}: (0, {1}) }
ENTRY e { p = (f32[], f32[2]) parameter(0)
 a = f32[] get-tuple-element(p), index=0
 b = f32[2] get-tuple-element(p), index=1
 ROOT r = (f32[], f32[2]) tuple(a, b) }"""
    assert import_hlo(text).aliases == ((1, 1),)


@pytest.mark.parametrize("dtype", [d for d in DType if not d.is_opaque], ids=lambda d: d.value)
def test_literals_of_all_types(dtype):
    values = (
        np.array([[0, 1, 1], [1, 0, 1]])
        if dtype is DType.PRED
        else np.array([[0, 1, 2], [3, 100, 6]])
    )
    values = values.astype(dtype.numpy)
    if dtype.is_complex:
        values = values + values.dtype.type(0.5j)
    with jax.enable_x64(True):
        proto = lower(lambda: jnp.asarray(values))
    graph = import_hlo(proto)
    constant = find(graph, "constant")
    assert isinstance(constant.attrs, ConstantAttrs) and constant.array == ArrayType(dtype, (2, 3))
    np.testing.assert_array_equal(constant.attrs.value.numpy(), values)


def test_literal_in_another_layout_and_a_tuple_literal():
    text = """HloModule m
ENTRY e { c = f32[2,3]{0,1} constant({{1,2,3},{4,5,6}})
 t = (s32[2], (f32[], pred[])) constant(({7,8}, (2.5, true)))
 ROOT r = (f32[2,3]{0,1}, (s32[2], (f32[], pred[]))) tuple(c, t) }"""
    graph = import_hlo(parse_hlo_text(text))
    for got, want in zip(
        run_graph(graph, []), [[[1, 2, 3], [4, 5, 6]], [7, 8], 2.5, True], strict=True
    ):
        np.testing.assert_array_equal(got, want)


def test_bitcast_follows_the_layouts():
    text = """HloModule m
ENTRY e { x = f32[2,3]{0,1} parameter(0)
 a = f32[6]{0} bitcast(x)
 b = f32[3,2]{1,0} bitcast(x)
 ROOT r = (f32[6], f32[3,2]) tuple(a, b) }"""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    flat, turned = run_graph(import_hlo(parse_hlo_text(text)), [x])
    np.testing.assert_array_equal(flat, x.T.ravel())
    np.testing.assert_array_equal(turned, x.T)


def test_copies_shardings_and_sizes_are_resolved():
    text = """HloModule m
ENTRY e { x = f32[2,3] parameter(0)
 c = f32[2,3]{0,1} copy(x)
 s = f32[2,3] custom-call(c), custom_call_target="Sharding"
 n = s32[] get-dimension-size(s), dimensions={1}
 ROOT r = (f32[2,3], s32[]) tuple(s, n) }"""
    graph = import_hlo(text)
    assert [n.op for n in graph] == ["parameter", "constant"]
    x = np.ones((2, 3), np.float32)
    got = run_graph(graph, [x])
    np.testing.assert_array_equal(got[0], x)
    assert got[1] == 3


def test_attributes_of_compare_dot_gather_and_scatter():
    text = """HloModule m
add { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT c = f32[] add(a, b) }
ENTRY e { x = f32[3,5,4] parameter(0)
 i = s32[3,2] parameter(1)
 k = pred[3,5,4] compare(x, x), direction=GE, type=TOTALORDER
 l = pred[3,5,4] compare(x, x), direction=NE
 d = f32[3,5,5] dot(x, x), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2},
   rhs_contracting_dims={2},
   operand_precision={high,highest}
 g = f32[3,2,4] gather(x, i), offset_dims={2}, collapsed_slice_dims={1}, start_index_map={1},
   operand_batching_dims={0},
   start_indices_batching_dims={0}, index_vector_dim=2, slice_sizes={1,1,4}
 s = f32[3,5,4] scatter(x, i, g), update_window_dims={2}, inserted_window_dims={1},
   scatter_dims_to_operand_dims={1},
   input_batching_dims={0}, scatter_indices_batching_dims={0}, index_vector_dim=2,
   unique_indices=true, to_apply=add
 ROOT r = (pred[3,5,4], pred[3,5,4], f32[3,5,5], f32[3,5,4]) tuple(k, l, d, s) }"""
    graph = import_hlo(text)
    check_graph(graph)
    total, partial = [n.attrs for n in graph if n.op == "compare"]
    assert total == CompareAttrs("GE", total_order=True)
    assert partial == CompareAttrs("NE", total_order=False)
    assert find(graph, "dot").attrs == DotAttrs((2,), (2,), (0,), (0,), ("HIGH", "HIGHEST"))
    assert find(graph, "gather").attrs == GatherAttrs(
        (2,), (1,), (1,), 2, (1, 1, 4), (0,), (0,), False
    )
    assert find(graph, "scatter").attrs == ScatterAttrs(
        (2,), (1,), (1,), 2, (0,), (0,), False, True
    )


@pytest.mark.parametrize(
    "spelled", [{"comparison_type": b"TOTALORDER"}, {"comparison_order": b"TOTAL"}]
)
def test_a_total_order_is_read_as_each_jaxlib_writes_it_and_is_one_of_floats(spelled):
    text = """HloModule m
ENTRY e { x = f32[3] parameter(0)
 i = s32[3] parameter(1)
 k = pred[3] compare(x, x), direction=LT
 l = pred[3] compare(i, i), direction=LT
 ROOT r = (pred[3], pred[3]) tuple(k, l) }"""
    module = schema.HloModuleProto.FromString(parse_hlo_text(text))
    for instruction in module.computations[0].instructions:
        if instruction.opcode == b"compare":
            instruction.comparison_type = instruction.comparison_order = b""
            for name, value in spelled.items():
                setattr(instruction, name, value)
    graph = import_hlo(module.SerializeToString())
    found = [node.attrs for node in graph if node.op == "compare"]
    assert found == [CompareAttrs("LT", total_order=True), CompareAttrs("LT")]


def test_a_region_is_imported_once():
    text = """HloModule m
add { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT c = f32[] add(a, b) }
ENTRY e { x = f32[3,5] parameter(0)
 z = f32[] constant(0)
 s = f32[3] reduce(x, z), dimensions={1}, to_apply=add
 t = f32[] reduce(s, z), dimensions={0}, to_apply=add
 ROOT r = (f32[3], f32[]) tuple(s, t) }"""
    first, second = [n for n in import_hlo(text) if n.op == "reduce"]
    assert first.regions[0] is second.regions[0]


def test_hostile_names_become_plain_and_stay_unique():
    names = ['a"; rm */ //', "line\nbreak", "umlaut-ä-漢字", ""]
    module = schema.HloModuleProto.FromString(chain_module(len(names)))
    for instruction, name in zip(module.computations[0].instructions[1:], names, strict=True):
        instruction.name = name.encode()
    module.computations[0].instructions[0].name = b"\xff\xfe"
    graph = import_hlo(module.SerializeToString())
    assert list(graph.nodes) == ["__", "a___rm______", "line_break", "umlaut-_-__", "negate"]


def test_long_chains_deep_calls_and_shared_names_take_linear_time():
    times = []
    for length in (2_000, 20_000):
        proto = chain_module(length)
        start = time.process_time()
        graph = import_hlo(proto)
        times.append(time.process_time() - start)
        assert len(graph) == length + 1
    assert times[1] < 40 * times[0] + 0.5
    assert run_graph(import_hlo(chain_module(9)), [np.ones((), np.float32)]) == [-1]
    nested = import_hlo(nested_calls_module(3 * sys.getrecursionlimit()))
    assert [n.op for n in nested] == ["parameter", "negate"]


def chain_module(length: int) -> bytes:
    """parameter -> negate -> negate ..., all of one name."""
    module = schema.HloModuleProto(
        name=b"chain", entry_computation_name=b"e", entry_computation_id=1
    )
    entry = module.computations.add(name=b"e", id=1, root_id=length)
    for i in range(length + 1):
        instruction = entry.instructions.add(
            name=b"x", id=i, opcode=b"negate" if i else b"parameter"
        )
        instruction.shape.element_type = 11
        if i:
            instruction.operand_ids.append(i - 1)
    return bytes(module.SerializeToString())


def nested_calls_module(depth: int) -> bytes:
    """Computation d calls computation d - 1 ...; the innermost negates."""
    module = schema.HloModuleProto(
        name=b"nest", entry_computation_name=b"e", entry_computation_id=depth
    )
    for level in range(depth + 1):
        computation = module.computations.add(name=b"c%d" % level, id=level, root_id=1)
        for i, opcode in enumerate((b"parameter", b"call" if level else b"negate")):
            instruction = computation.instructions.add(name=b"x", id=i, opcode=opcode)
            instruction.shape.element_type = 11
            if i:
                instruction.operand_ids.append(0)
        if level:
            computation.instructions[1].called_computation_ids.append(level - 1)
    return bytes(module.SerializeToString())


# ---- refusals ------------------------------------------------------------------------------------


def refusal(error: type[Exception], data: bytes | str) -> str:
    with pytest.raises(error) as caught:
        import_hlo(data)
    return str(caught.value)


def changed(change, length: int = 2) -> bytes:
    """A chain whose message `change` has been applied to."""
    module = schema.HloModuleProto.FromString(chain_module(length))
    change(module)
    return bytes(module.SerializeToString())


def test_garbage_and_truncation():
    write_again = "write the dump again (XLA_FLAGS=--xla_dump_to=DIR --xla_dump_hlo_as_proto)"
    assert (
        refusal(MalformedHlo, b"")
        == "HLO module: the input is empty; pass the contents of an HLO dump"
    )
    assert refusal(MalformedHlo, b"\x93NUMPY\x01\x00") == (
        f"HLO module: 8 bytes are no serialized HloModuleProto, or it is truncated; {write_again}"
    )
    proto = read_module("bert_layer_fwd")
    for length in (1, 10, 40, 100, len(proto) // 2, len(proto) - 1):
        with pytest.raises(MalformedHlo):
            import_hlo(proto[:length])


def test_every_truncation_of_a_module_is_refused_or_legal():
    proto = chain_module(3)
    for length in range(1, len(proto)):
        try:
            check_graph(import_hlo(proto[:length]))
        except MalformedHlo as error:
            assert str(error)


def test_damaged_bytes_give_a_named_error():
    """Nothing but errors of astitch, whatever bytes are changed, lost or added."""
    draw = random.Random(0)
    modules = [read_module("bert_layer_fwd"), chain_module(4), nested_calls_module(3)]
    outcomes: collections.Counter[str] = collections.Counter()
    for _ in range(1500):
        data = bytearray(draw.choice(modules))
        at = draw.randrange(len(data))
        data[at : at + draw.randrange(3)] = draw.randbytes(draw.randrange(3))
        try:
            check_graph(import_hlo(bytes(data)))
            outcomes["legal"] += 1
        except AstitchError as error:
            outcomes[type(error).__name__] += 1
    assert {"legal", "MalformedHlo", "UnsupportedOp", "UnsupportedType"} <= set(outcomes)


def test_layout_that_is_no_permutation():
    proto = parse_hlo_text("HloModule m\nENTRY e { ROOT c = f32[2,2] constant({{1,2},{3,4}}) }")
    module = schema.HloModuleProto.FromString(proto)
    module.computations[0].instructions[0].literal.shape.layout.minor_to_major[0] = 7
    assert refusal(MalformedHlo, module.SerializeToString()) == (
        "HLO computation e, instruction %c: the layout [7, 0] does not order the 2 dimensions; "
        "the dump is damaged, write it again"
    )


def test_missing_entry_computation():
    def change(module):
        module.entry_computation_id = 99

    assert refusal(MalformedHlo, changed(change)) == (
        "HLO module chain: it has no entry computation (id 99, name 'e'); the dump is "
        "incomplete, write it again"
    )


def test_unknown_operand():
    def change(module):
        module.computations[0].instructions[2].operand_ids[0] = 77

    assert refusal(MalformedHlo, changed(change)) == (
        "HLO computation e, instruction %x: operand 0 is instruction id 77, which no earlier "
        "instruction has; "
        "the dump is damaged, write it again"
    )


def test_missing_operand_root_and_called_computation():
    def without_operand(module):
        module.computations[0].instructions[1].opcode = b"copy"
        del module.computations[0].instructions[1].operand_ids[:]

    def without_root(module):
        module.computations[0].root_id = 5

    def without_callee(module):
        module.computations[0].instructions[1].opcode = b"call"
        module.computations[0].instructions[1].called_computation_ids.append(8)

    def recursive(module):
        module.computations[0].instructions[1].opcode = b"call"
        module.computations[0].instructions[1].called_computation_ids.append(1)

    assert refusal(MalformedHlo, changed(without_operand)) == (
        "HLO computation e, instruction %x: copy has 0 operands, operand 0 is missing"
    )
    assert refusal(MalformedHlo, changed(without_root)) == (
        "HLO computation e: its root, instruction id 5, is missing; the dump is incomplete, "
        "write it again"
    )
    assert refusal(MalformedHlo, changed(without_callee)) == (
        "HLO computation e, instruction %x: it calls computation id 8, which the module does not "
        "have"
    )
    assert (
        refusal(MalformedHlo, changed(recursive))
        == "HLO computation e calls itself; HLO has no recursion"
    )


def test_elided_constants():
    text = "HloModule m\nENTRY e {\n  ROOT c.1 = f32[3,4]{1,0} constant({...})\n}"
    wanted = (
        "HLO text, instruction c.1: the text elides large constants; dump the proto instead: "
        "XLA_FLAGS=--xla_dump_hlo_as_proto"
    )
    assert refusal(MalformedHlo, text) == wanted
    assert refusal(MalformedHlo, text.encode()) == wanted


def test_literal_that_is_too_short():
    proto = parse_hlo_text("HloModule m\nENTRY e { ROOT c = f32[4] constant({1,2,3,4}) }")
    module = schema.HloModuleProto.FromString(proto)
    del module.computations[0].instructions[0].literal.f32s[2:]
    assert refusal(MalformedHlo, module.SerializeToString()) == (
        "HLO computation e, instruction %c: the literal has 2 of 4 elements; the dump elides "
        "large constants, "
        "write it again as a proto: XLA_FLAGS=--xla_dump_hlo_as_proto"
    )


def test_text_that_does_not_parse():
    message = refusal(MalformedHlo, "HloModule m\nENTRY e { ROOT c = f32[4] frobnicate() }")
    assert message.startswith("HLO text: ") and message.endswith("pass the module as a proto")


def test_text_without_jax(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax._src.lib", None)
    message = refusal(MalformedHlo, "HloModule m\nENTRY e { ROOT c = f32[] constant(1) }")
    assert message.startswith(
        "HLO text is read by jaxlib's parser, and jax is not installed: install jax, or"
    )


def test_unknown_opcode():
    def change(module):
        module.computations[0].instructions[2].opcode = b"all-reduce"
        module.computations[0].instructions[2].name = b"sum.4"

    assert refusal(UnsupportedOp, changed(change)) == (
        "HLO computation e, instruction %sum.4: no entry for 'all-reduce' in astitch/graph/ops\n"
        "  rewrite the program without it, or run it through XLA"
    )


def test_dynamic_shapes():
    text = "HloModule m\nENTRY e { x = f32[<=8,3] parameter(0)\n ROOT r = f32[<=8,3] negate(x) }"
    assert refusal(DynamicShape, text) == (
        "HLO computation e, instruction %x: the shape f32[8, 3] has a dynamic dimension; compile "
        "for a fixed shape"
    )
    text = """HloModule m
ENTRY e { x = f32[8] parameter(0)
 n = s32[] parameter(1)
 ROOT r = f32[<=8] set-dimension-size(x, n), dimensions={0} }"""
    assert refusal(DynamicShape, text) == (
        "HLO computation e, instruction %r: the shape f32[8] has a dynamic dimension; compile for "
        "a fixed shape"
    )


def test_a_dimension_set_to_its_whole_size_stays_static():
    text = """HloModule m
ENTRY e { x = f32[8] parameter(0)
 n = s32[] constant(8)
 s = f32[8] set-dimension-size(x, n), dimensions={0}
 ROOT r = f32[8] negate(s) }"""
    assert [node.op for node in import_hlo(parse_hlo_text(text)) if node.op != "constant"] == [
        "parameter",
        "negate",
    ]


def test_ids_as_tensorflow_numbers_them():
    """Its builder puts the computation's id into the upper half of an instruction's, not always into an operand's."""
    data = lower(lambda x: jnp.sum(jnp.sin(x), axis=0), jnp.ones((3, 4)))
    module = schema.HloModuleProto.FromString(data)
    for number, computation in enumerate(module.computations):
        upper = computation.id << 32
        first = min(instruction.id for instruction in computation.instructions) - 1
        computation.root_id += upper - first
        for instruction in computation.instructions:
            instruction.id += upper - first
            shift = upper - first if number % 2 else -first
            instruction.operand_ids[:] = [id_ + shift for id_ in instruction.operand_ids]
    assert str(import_hlo(module.SerializeToString())) == str(import_hlo(data))


@pytest.mark.parametrize(
    "code, name", [(17, "token"), (14, "opaque"), (30, "s1"), (99, "number 99")]
)
def test_unknown_element_types(code, name):
    def change(module):
        module.computations[0].instructions[0].shape.element_type = code

    message = refusal(UnsupportedType, changed(change))
    assert message.startswith(
        f"HLO computation e, instruction %x: element type {name} is not supported; astitch knows "
        "pred, s8, "
    )


def test_projection_of_no_tuple_and_parameters_with_gaps():
    def project(module):
        module.computations[0].instructions[1].opcode = b"get-tuple-element"
        module.computations[0].instructions[1].tuple_index = 3

    def gap(module):
        module.computations[0].instructions[0].parameter_number = 2

    assert refusal(MalformedHlo, changed(project)) == (
        "HLO computation e, instruction %x: get-tuple-element takes element 3 of an array"
    )
    assert refusal(MalformedHlo, changed(gap)) == (
        "HLO computation e: parameters are numbered [2], not 0, 1, 2 ..."
    )


def test_missing_attribute_is_malformed():
    def change(module):
        module.computations[0].instructions[1].opcode = b"iota"
        del module.computations[0].instructions[1].operand_ids[:]

    message = refusal(MalformedHlo, changed(change))
    assert message.startswith(
        "HLO computation e, instruction %x, field dimensions: iota lacks an attribute, or has an "
        "unknown value"
    )


def test_a_scan_that_is_a_running_sum_is_a_window_over_all_before():
    """What JAX 0.11 makes of jnp.cumsum(f32[4,16], 1) for CUDA; the XLA of older ones cannot parse it."""
    graph = check_graph(import_hlo((MODULES.parent / "cumsum_scan.hlo.pb").read_bytes()))
    assert [node.op for node in graph if node.op in ("scan", "reduce-window")] == ["reduce-window"]
    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    (result,) = run_graph(graph, [x])
    np.testing.assert_allclose(result, np.cumsum(x, 1), rtol=1e-5, atol=1e-6)


def test_a_scan_backward_is_a_window_over_all_after():
    """And its start may be one constant array, as it is for a single row."""
    module = schema.HloModuleProto()
    module.ParseFromString((MODULES.parent / "cumsum_scan.hlo.pb").read_bytes())
    instructions = [i for c in module.computations for i in c.instructions]
    (scan,) = [i for i in instructions if i.opcode == b"scan"]
    scan.is_reverse = True
    (start,) = [i for i in instructions if i.id == scan.operand_ids[1]]
    assert start.opcode == b"broadcast" and list(start.shape.dimensions) == [4]
    del start.operand_ids[:], start.dimensions[:]
    start.opcode = b"constant"
    start.literal.shape.CopyFrom(start.shape)
    start.literal.f32s[:] = [0] * 4
    graph = check_graph(import_hlo(module.SerializeToString()))
    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    (result,) = run_graph(graph, [x])
    wanted = np.flip(np.cumsum(np.flip(x, 1), 1), 1)
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("opcode", "start"), [(b"subtract", 0), (b"maximum", 0), (b"add", 1)])
def test_a_scan_that_is_no_plain_running_sum_is_refused(opcode, start):
    module = schema.HloModuleProto()
    module.ParseFromString((MODULES.parent / "cumsum_scan.hlo.pb").read_bytes())
    for instruction in (i for c in module.computations for i in c.instructions):
        if instruction.opcode == b"add":
            instruction.opcode = opcode
        if instruction.opcode == b"constant":
            instruction.literal.f32s[:] = [start]
    with pytest.raises(UnsupportedOp, match="only running sums"):
        import_hlo(module.SerializeToString())


@pytest.mark.parametrize("place", [0, 1])
def test_a_scan_of_which_one_result_is_another_sum_is_refused(place):
    module = schema.HloModuleProto()
    module.ParseFromString((MODULES.parent / "cumsum_scan.hlo.pb").read_bytes())
    (step,) = [c for c in module.computations if any(i.opcode == b"add" for i in c.instructions)]
    (joined,) = [i for i in step.instructions if i.opcode == b"add"]
    (pair,) = [i for i in step.instructions if i.opcode == b"tuple"]
    twice = step.instructions.add()
    twice.CopyFrom(joined)
    twice.name, twice.id = b"twice", 1 + max(i.id for i in step.instructions)
    twice.operand_ids[:] = [joined.operand_ids[0]] * 2
    pair.operand_ids[place] = twice.id
    step.instructions.add().CopyFrom(pair)  # behind what it reads
    step.instructions.remove(pair)
    with pytest.raises(UnsupportedOp, match="only running sums"):
        import_hlo(module.SerializeToString())
