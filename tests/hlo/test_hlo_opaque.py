"""Opaque ops: what astitch does not read is handed on to XLA as it stands, and all around it is stitched."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir

import astitch
from astitch.compile import compile_hlo
from astitch.errors import DynamicShape, MalformedHlo, UnsupportedOp
from astitch.graph.check import check_graph
from astitch.graph.ir import DType, Graph, OpaqueAttrs
from astitch.hlo import schema
from astitch.hlo.export import ModuleBuilder, export_nodes
from astitch.hlo.opaque import discard_unread_fields, is_read, outline_dynamic_shapes
from astitch.hlo.stablehlo import to_stablehlo
from astitch.hlo_import import import_from_compiler, import_hlo, serialize_module
from astitch.program.steps import KernelStep
from astitch.run.host_engine import HostEngine
from astitch.show.compilation import Compilation
from astitch.xla.prepare_kernels import KernelRefusal
from astitch.xla.write_module import export_program
from tests.hlo_runner import parse_hlo_text, run_xla

REGIONS = """HloModule m
add { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT c = f32[] add(a, b) }
"""
RAGGED_DOT = """HloModule m
ENTRY e { x = f32[4,3] parameter(0)
 y = f32[2,3,5] parameter(1)
 g = s32[2] parameter(2)
 a = f32[4,3] tanh(x)
 d = f32[4,5] ragged-dot(a, y, g), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0},
   rhs_group_dims={0}
 ROOT r = f32[4,5] exponential(d) }"""
STOCHASTIC = """HloModule m
ENTRY e { x = f32[40] parameter(0)
 u = u32[40] parameter(1)
 a = f32[40] tanh(x)
 s = s8[40] stochastic-convert(a, u)
 ROOT r = s8[40] add(s, s) }"""
MEAN_OF_SOME = """ENTRY e { x = f32[40] parameter(0)
 n = s32[] parameter(1)
 e = f32[40] exponential(x)
 s = f32[<=40] set-dimension-size(e, n), dimensions={0}
 t = f32[<=40] tanh(s)
 z = f32[] constant(0)
 r = f32[] reduce(t, z), dimensions={0}, to_apply=add
 g = s32[] get-dimension-size(t), dimensions={0}
 f = f32[] convert(g)
 m = f32[] divide(r, f)
 b = f32[40] broadcast(m), dimensions={}
 ROOT o = f32[40] subtract(x, b) }"""


def export_whole(graph: Graph) -> bytes:
    """Its parameters in order, its outputs as one tuple."""
    builder = ModuleBuilder(graph.name)
    for node in graph:
        builder.add_node(node)
    return builder.finish(graph.outputs)


def render(hlo: bytes) -> str:
    """StableHLO's text."""
    with mlir.make_ir_context():
        return str(ir.Module.parse(to_stablehlo(hlo)))


def run_kernels(compilation: Compilation, arguments: list[np.ndarray]) -> list[np.ndarray]:
    return HostEngine(compilation.program).run(arguments)


def run_inside_xla(compilation: Compilation, arguments: list[np.ndarray]) -> list[np.ndarray]:
    """The module that the engine xla would hand on, in which XLA computes the kernels' ops too."""
    steps = [step for step in compilation.program.steps if isinstance(step, KernelStep)]
    left = {step.kernel.name: KernelRefusal(step.kernel.name, "no GPU") for step in steps}
    return run_xla(export_program(compilation, left), arguments)


def opcodes_outside(compilation: Compilation) -> set[str]:
    return {op.op for op in compilation.program.outside}


# ---- opcodes -----------------------------------------------------------------------------------------------------


def test_an_opcode_that_astitch_does_not_know_is_an_op_of_xla_s() -> None:
    graph = check_graph(import_hlo(RAGGED_DOT))
    computing = [node for node in graph if node.op != "parameter"]
    assert [node.op for node in computing] == ["tanh", "opaque", "exponential"]
    assert "opcode='ragged-dot'" in str(graph["d"])
    compilation = compile_hlo(RAGGED_DOT, gpu="h100")
    assert len(compilation.program.kernels) == 2
    (op,) = compilation.program.outside
    assert str(op) == "%d = ragged-dot: astitch does not know 'ragged-dot'"
    assert str(op) in compilation.explain()
    again = import_hlo(export_whole(graph))
    assert again == graph and again["d"].attrs == graph["d"].attrs
    text = render(export_whole(graph))
    assert "#chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions" in text
    assert "lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]" in text
    with pytest.raises(UnsupportedOp, match="strict was asked for"):
        compile_hlo(RAGGED_DOT, strict=True)


REGIONS_OF_SOME = """less { a = f32[] parameter(0)
 b = f32[] parameter(1)
 c = s32[] parameter(2)
 d = s32[] parameter(3)
 ROOT r = pred[] compare(a, b), direction=LT }
twice { a = f32[6] parameter(0)
 b = f32[6] add(a, a)
 ROOT r = (f32[6], f32[6]) tuple(a, b) }
once { a = f32[6] parameter(0)
 b = f32[6] negate(a)
 ROOT r = (f32[6], f32[6]) tuple(b, a) }
turn { p = (s32[], f32[6]) parameter(0)
 i = s32[] get-tuple-element(p), index=0
 x = f32[6] get-tuple-element(p), index=1
 one = s32[] constant(1)
 j = s32[] add(i, one)
 y = f32[6] cosine(x)
 ROOT r = (s32[], f32[6]) tuple(j, y) }
again { p = (s32[], f32[6]) parameter(0)
 i = s32[] get-tuple-element(p), index=0
 n = s32[] constant(3)
 ROOT r = pred[] compare(i, n), direction=LT }
"""
AS_IF_UNKNOWN = {  # instructions on x = f32[6], what they compute of it: they take and give tuples, and call others
    "sine": "y = f32[6] sine(x)",
    "reduce": """z = f32[] constant(0)
 s = f32[] reduce(x, z), dimensions={0}, to_apply=add
 y = f32[6] broadcast(s), dimensions={}""",
    "sort": """i = s32[6] iota(), iota_dimension=0
 s = (f32[6], s32[6]) sort(x, i), dimensions={0}, to_apply=less
 v = f32[6] get-tuple-element(s), index=0
 w = s32[6] get-tuple-element(s), index=1
 u = f32[6] convert(w)
 y = f32[6] subtract(v, u)""",
    "while": """i = s32[] constant(0)
 s = (s32[], f32[6]) tuple(i, x)
 w = (s32[], f32[6]) while(s), condition=again, body=turn
 y = f32[6] get-tuple-element(w), index=1""",
    "conditional": """f = f32[] constant(0.1)
 m = f32[] reduce(x, f), dimensions={0}, to_apply=add
 q = pred[] compare(m, f), direction=GT
 c = (f32[6], f32[6]) conditional(q, x, x), true_computation=twice, false_computation=once
 d = f32[6] get-tuple-element(c), index=0
 e = f32[6] get-tuple-element(c), index=1
 y = f32[6] multiply(d, e)""",
}


@pytest.mark.parametrize("opcode", AS_IF_UNKNOWN)
def test_whatever_it_takes_gives_and_calls_goes_with_it(
    opcode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opcodes that astitch knows, as if it did not: of the others XLA's CPU computes none."""
    text = f"""{REGIONS}{REGIONS_OF_SOME}ENTRY e {{ p = f32[6] parameter(0)
 x = f32[6] tanh(p)
 {AS_IF_UNKNOWN[opcode]}
 ROOT r = f32[6] exponential(y) }}"""
    monkeypatch.setattr("astitch.hlo_import.is_read", lambda op: op != opcode and is_read(op))
    graph = check_graph(import_hlo(text))
    assert [node.opcode for node in graph if node.op == "opaque"] == [opcode]
    assert import_hlo(export_whole(graph)) == graph
    compilation = compile_hlo(text)
    assert opcodes_outside(compilation) == {opcode}
    assert compilation.program.kernels
    arguments = [np.random.default_rng(0).normal(size=6).astype("f4")]
    want = run_xla(parse_hlo_text(text), arguments)
    np.testing.assert_allclose(run_kernels(compilation, arguments), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run_inside_xla(compilation, arguments), want, rtol=1e-5, atol=1e-6)


def test_it_may_stand_in_the_body_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"""{REGIONS}{REGIONS_OF_SOME}ENTRY e {{ p = f32[6] parameter(0)
 x = f32[6] tanh(p)
 {AS_IF_UNKNOWN["while"]}
 ROOT r = f32[6] exponential(y) }}"""
    monkeypatch.setattr("astitch.hlo_import.is_read", lambda op: op != "cosine" and is_read(op))
    compilation = compile_hlo(text)
    assert opcodes_outside(compilation) == {"while"}
    arguments = [np.random.default_rng(0).normal(size=6).astype("f4")]
    want = run_xla(parse_hlo_text(text), arguments)
    np.testing.assert_allclose(run_kernels(compilation, arguments), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run_inside_xla(compilation, arguments), want, rtol=1e-5, atol=1e-6)


def change_opcode(text: str, before: bytes, opcode: bytes) -> bytes:
    module = schema.HloModuleProto.FromString(parse_hlo_text(text))
    for instruction in (i for c in module.computations for i in c.instructions):
        if instruction.opcode == before:
            instruction.opcode = opcode
    return bytes(module.SerializeToString())


@pytest.mark.parametrize("opcode", [b"frobnicate", b"opaque", b"stochastic-convert", b"async-done"])
def test_an_opcode_that_xla_does_not_take_refuses_the_module(opcode: bytes) -> None:
    """Of stochastic-convert it makes an op that its plugins do not read."""
    with pytest.raises(UnsupportedOp, match="does not become StableHLO|no entry for 'async-done'"):
        import_hlo(change_opcode(STOCHASTIC, b"stochastic-convert", opcode))


def test_what_is_no_opcode_is_malformed() -> None:
    with pytest.raises(MalformedHlo, match="instruction %s: no opcode of HLO's is spelled 'a b'"):
        import_hlo(change_opcode(STOCHASTIC, b"stochastic-convert", b"a b"))


def test_without_jax_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = parse_hlo_text(RAGGED_DOT)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedOp, match="%d: only XLA computes it: astitch does not know"):
        import_hlo(proto)


def test_fields_without_a_name_stay_where_they_decide_the_result() -> None:
    """The caches' keys are made of what is left."""
    module = schema.HloModuleProto.FromString(parse_hlo_text(RAGGED_DOT))
    whole = module.SerializeToString(deterministic=True)
    discard_unread_fields(module)
    kept = {i.name: i for c in module.computations for i in c.instructions}
    other = schema.HloModuleProto.FromString(whole)
    before = {i.name: i for c in other.computations for i in c.instructions}
    assert kept[b"d"] == before[b"d"] and len(module.SerializeToString()) < len(whole)
    before[b"d"].DiscardUnknownFields()
    assert kept[b"d"] != before[b"d"]


# ---- element types -----------------------------------------------------------------------------------------------


def assert_same(got: Any, want: Any) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(
            np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=1e-5, atol=1e-6
        )


OPAQUE = [dtype for dtype in DType if dtype.is_opaque and dtype is not DType.TOKEN]


@pytest.mark.parametrize("dtype", ["s4", "u2", "f4e2m1fn", "f8e4m3b11fnuz", "f8e8m0fnu"])
def test_element_types_that_only_xla_knows(dtype: str) -> None:
    """As arguments, results and in between."""
    narrow = DType(dtype).numpy
    x = jnp.linspace(0.2, 3, 24).reshape(6, 4)

    def fn(x: jax.Array, q: jax.Array) -> Any:
        inner = jax.nn.softmax(x).astype(narrow).astype(jnp.float32)
        return q, (x + 1).astype(narrow), jnp.exp(inner), q.T, q.astype(jnp.float32).sum(0) + x

    stitched, q = astitch.jit(fn, engine="host"), (x / 2).astype(narrow)
    assert_same(stitched(x, q), jax.jit(fn)(x, q))
    compilation = stitched.lower(x, q).compile().compilation
    assert len(compilation.program.kernels) >= 2
    assert f"convert: element type {dtype} has no emitted form" in compilation.explain()
    arguments = [np.asarray(x), np.asarray(q)]
    assert_same(run_inside_xla(compilation, arguments), jax.tree.leaves(jax.jit(fn)(x, q)))


@pytest.mark.parametrize("dtype", OPAQUE, ids=lambda d: d.value)
def test_each_of_them_goes_through_a_module(dtype: DType) -> None:
    text = (
        f"HloModule m\nENTRY e {{ x = {dtype.value}[6] parameter(0)\n y = f32[6] convert(x)\n"
        f" z = f32[6] negate(y)\n ROOT r = {dtype.value}[6] reverse(x), dimensions={{0}} }}"
    )
    graph = check_graph(import_hlo(text))
    assert graph["x"].dtype is dtype and graph["r"].op == "opaque"
    x = np.array([1, 0, 1, 1, 0, 0]).astype(dtype.numpy)
    (got,) = run_xla(export_whole(graph), [x])
    assert got.dtype == dtype.numpy and got.tobytes() == x[::-1].tobytes()


def through_loop(x: jax.Array, q: jax.Array) -> Any:
    return jax.lax.scan(lambda q, x: (jnp.roll(q, 1), x * q.astype(jnp.float32)), q, x)


def through_branch(x: jax.Array, q: jax.Array) -> Any:
    return jax.lax.cond(x.sum() > 0, lambda q: q + q, lambda q: q - q, q), jnp.tanh(x)


def from_table(x: jax.Array, q: jax.Array) -> Any:
    table = jnp.asarray(np.array([1, -2, 3, -8]).astype(ml_dtypes.int4))
    return jnp.tanh(x) + table[q.astype(jnp.int32)].astype(jnp.float32)


def without_elements(x: jax.Array, q: jax.Array) -> Any:
    return jnp.tanh(x), q[:0] + q[:0]


def largest(x: jax.Array, q: jax.Array) -> Any:
    return jnp.tanh(x) * jnp.sort(q).astype(jnp.float32) + q.max().astype(jnp.float32)


@pytest.mark.parametrize(
    "fn", [through_loop, through_branch, from_table, without_elements, largest]
)
def test_they_go_through_control_flow_tables_and_reductions(fn: Any) -> None:
    x = jnp.linspace(-1, 3, 24).reshape(6, 4)
    q = jnp.asarray(np.array([3, 1, 0, 2]).astype(ml_dtypes.int4))
    stitched = astitch.jit(fn, engine="host")
    assert_same(stitched(x, q), jax.jit(fn)(x, q))
    assert stitched.lower(x, q).compile().program.kernels


# ---- dynamic shapes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 7, 40])
def test_values_of_dynamic_shape_are_one_op_of_xla_s(n: int) -> None:
    text = REGIONS + MEAN_OF_SOME
    compilation = compile_hlo(text)
    (op,) = compilation.program.outside
    assert str(op) == "%s = call: shapes that only the run tells (set-dimension-size, tanh)"
    assert str(op) in compilation.explain()
    assert len(compilation.program.kernels) == 2
    x = np.random.default_rng(0).normal(size=40).astype("f4")
    arguments = [x, np.array(n, np.int32)]
    want = x - np.tanh(np.exp(x[:n])).mean()
    for got in (run_kernels(compilation, arguments), run_inside_xla(compilation, arguments)):
        np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-6)
    again = import_hlo(export_whole(import_hlo(text)))
    assert sum(node.op == "opaque" for node in again) == 1


INTERLEAVED = {
    # Two that do not touch each other are two ops, though their instructions alternate.
    "apart": (
        """s = f32[<=8] set-dimension-size(x, n), dimensions={0}
 t = f32[<=8] set-dimension-size(y, n), dimensions={0}
 a = f32[] reduce(s, z), dimensions={0}, to_apply=add
 b = f32[] reduce(t, z), dimensions={0}, to_apply=add
 ROOT r = f32[] subtract(a, b)""",
        2,
    ),
    # What lies between two parts of one belongs to it.
    "between": (
        """s = f32[<=8] set-dimension-size(x, n), dimensions={0}
 a = f32[] reduce(s, z), dimensions={0}, to_apply=add
 h = f32[] negate(a)
 b = f32[8] broadcast(h), dimensions={}
 t = f32[<=8] set-dimension-size(b, n), dimensions={0}
 u = f32[<=8] add(s, t)
 ROOT r = f32[] reduce(u, z), dimensions={0}, to_apply=add""",
        1,
    ),
    # Each of two waits for a part of the other.
    "crossed": (
        """s = f32[<=8] set-dimension-size(x, n), dimensions={0}
 t = f32[<=8] set-dimension-size(y, n), dimensions={0}
 a = f32[] reduce(s, z), dimensions={0}, to_apply=add
 b = f32[] reduce(t, z), dimensions={0}, to_apply=add
 c = f32[<=8] negate(s)
 d = f32[<=8] exponential(t)
 v = f32[] reduce(c, b), dimensions={0}, to_apply=add
 w = f32[] reduce(d, a), dimensions={0}, to_apply=add
 ROOT r = f32[] subtract(v, w)""",
        1,
    ),
    # A call with a dynamic argument is not inlined.
    "called": (
        """s = f32[<=8] set-dimension-size(x, n), dimensions={0}
 a = f32[] call(s), to_apply=total
 b = f32[] reduce(y, z), dimensions={0}, to_apply=add
 ROOT r = f32[] subtract(a, b)""",
        1,
    ),
    # To the whole dimension: static again.
    "filled": (
        """s = f32[<=8] set-dimension-size(x, n), dimensions={0}
 e = s32[] constant(8)
 f = f32[8] set-dimension-size(s, e), dimensions={0}
 i = s32[8] iota(), iota_dimension=0
 m = s32[8] broadcast(n), dimensions={}
 k = pred[8] compare(i, m), direction=LT
 o = f32[8] broadcast(z), dimensions={}
 g = f32[8] select(k, f, o)
 ROOT r = f32[] reduce(g, z), dimensions={0}, to_apply=add""",
        1,
    ),
}  # fmt: skip
TOTAL = """total { a = f32[<=8] parameter(0)
 z = f32[] constant(0)
 b = f32[<=8] sine(a)
 ROOT c = f32[] reduce(b, z), dimensions={0}, to_apply=add }
"""


@pytest.mark.parametrize("case", INTERLEAVED)
def test_what_dynamic_values_connect_is_one_op(case: str) -> None:
    body, count = INTERLEAVED[case]
    text = f"""{REGIONS}{TOTAL}ENTRY e {{ p = f32[8] parameter(0)
 q = f32[8] parameter(1)
 n = s32[] parameter(2)
 x = f32[8] tanh(p)
 y = f32[8] cosine(q)
 z = f32[] constant(0)
 {body} }}"""
    graph = check_graph(import_hlo(text))
    assert sum(node.op == "opaque" for node in graph) == count
    compilation = compile_hlo(text)
    assert compilation.program.kernels
    rng = np.random.default_rng(0)
    arguments = [*rng.normal(size=(2, 8)).astype("f4"), np.array(5, np.int32)]
    want = run_xla(parse_hlo_text(text), arguments)
    np.testing.assert_allclose(run_kernels(compilation, arguments), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run_inside_xla(compilation, arguments), want, rtol=1e-5, atol=1e-6)


def test_arguments_and_results_of_dynamic_shape_are_refused() -> None:
    for text in (
        "x = f32[<=8] parameter(0)\n ROOT r = f32[<=8] negate(x)",
        "x = f32[8] parameter(0)\n n = s32[] parameter(1)\n"
        " ROOT r = f32[<=8] set-dimension-size(x, n), dimensions={0}",
    ):
        with pytest.raises(DynamicShape, match="has a dynamic dimension"):
            import_hlo(f"HloModule m\nENTRY e {{ {text} }}")


def test_damaged_computations_stay_as_they_are() -> None:
    module = schema.HloModuleProto.FromString(parse_hlo_text(REGIONS + MEAN_OF_SOME))
    for change in ("missing operand", "later operand", "second id", "root"):
        damaged = schema.HloModuleProto()
        damaged.CopyFrom(module)
        (own,) = (c for c in damaged.computations if len(c.instructions) > 5)
        dynamic = next(i for i in own.instructions if i.opcode == b"tanh")
        if change == "missing operand":
            dynamic.operand_ids[0] = 12345
        elif change == "later operand":
            dynamic.operand_ids[0] = own.instructions[-1].id
        elif change == "second id":
            own.instructions[-2].id = own.instructions[0].id
        else:
            own.root_id = 12345
        before = damaged.SerializeToString(deterministic=True)
        assert not outline_dynamic_shapes(damaged)
        assert damaged.SerializeToString(deterministic=True) == before
        with pytest.raises((MalformedHlo, DynamicShape, UnsupportedOp)):
            import_hlo(before)


@pytest.mark.parametrize("effect", ["all-reduce", "callback"])
def test_what_a_carried_computation_does_beside_computing_is_refused(effect: str) -> None:
    done = {
        "all-reduce": "f32[<=8] all-reduce(a), replica_groups={}, to_apply=add",
        "callback": 'f32[<=8] custom-call(a), custom_call_target="xla_ffi_python_cpu_callback"',
    }
    text = f"""{REGIONS}total {{ a = f32[<=8] parameter(0)
 z = f32[] constant(0)
 b = {done[effect]}
 ROOT c = f32[] reduce(b, z), dimensions={{0}}, to_apply=add }}
ENTRY e {{ x = f32[8] parameter(0)
 n = s32[] parameter(1)
 s = f32[<=8] set-dimension-size(x, n), dimensions={{0}}
 ROOT r = f32[] call(s), to_apply=total }}"""
    with pytest.raises(UnsupportedOp, match="no entry for 'all-reduce'|calls a Python function"):
        import_hlo(text)


GATHERS = {
    "one array": """
  s = (f32[4], f32[8]) all-gather-start(x), channel_id=1, replica_groups={{0,1}},
    dimensions={0}, use_global_device_ids=true
  ROOT d = f32[8] all-gather-done(s)""",
    "several": """
  z = f32[6] parameter(1)
  s = ((f32[4], f32[6]), (f32[8], f32[12])) all-gather-start(x, z), channel_id=1,
    replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true
  ROOT d = (f32[8], f32[12]) all-gather-done(s)""",
}


@pytest.mark.parametrize("name", GATHERS)
def test_the_end_of_an_exchange_reads_its_start(name: str) -> None:
    """XLA refuses one that reads a copy of the tuple."""
    text = f"HloModule gather\nENTRY main {{\n  x = f32[4] parameter(0){GATHERS[name]}\n}}"
    module = schema.HloModuleProto.FromString(serialize_module(text))
    graph = import_from_compiler(module)
    names = [node.name for node in graph if not node.is_parameter]
    written = schema.HloModuleProto.FromString(export_nodes(graph, names, graph.outputs).hlo)
    (entry,) = written.computations
    start, end = (
        next(i for i in entry.instructions if i.opcode == opcode)
        for opcode in (b"all-gather-start", b"all-gather-done")
    )
    assert list(end.operand_ids) == [start.id]
    assert [i.id for i in entry.instructions if start.id in i.operand_ids] == [end.id]


ORDERED = {
    "control dependencies": "f32[4] copy(y), control-predecessors={z}",
    "lies in the host's memory": "f32[4]{0:S(5)} copy(y)",
    "orders effects": "f32[4] add-dependency(y, t)",
}


@pytest.mark.parametrize("reason", ORDERED)
def test_what_orders_or_moves_stays_in_the_compiler_s_module(reason: str) -> None:
    text = f"""HloModule copies
ENTRY main {{
  x = f32[4] parameter(0)
  y = f32[4] exponential(x)
  z = f32[4] sine(x)
  t = token[] after-all()
  c = {ORDERED[reason]}
  ROOT r = (f32[4], f32[4]) tuple(c, z)
}}"""
    module = schema.HloModuleProto.FromString(serialize_module(text))
    graph = import_from_compiler(module)
    kept = graph["c"].attrs
    assert isinstance(kept, OpaqueAttrs) and kept.has_effect
    assert kept.reason.endswith(reason)
    names = [node.name for node in graph if not node.is_parameter]
    hlo = export_nodes(graph, names, graph.outputs).hlo
    (entry,) = schema.HloModuleProto.FromString(hlo).computations
    written = {i.name.decode(): i for i in entry.instructions}
    before = [written["z"].id] if "control" in reason else []
    assert list(written["c"].control_predecessor_ids) == before
    assert written["c"].operand_ids[0] == written["y"].id
    assert import_from_compiler(schema.HloModuleProto.FromString(hlo))["c"].attrs == kept


def test_a_control_dependency_of_what_is_no_op_refuses_the_module() -> None:
    text = """HloModule copies
ENTRY main {
  x = f32[4] parameter(0)
  y = f32[4] exponential(x)
  c = (f32[4]) tuple(x), control-predecessors={y}
  ROOT r = f32[4] get-tuple-element(c), index=0
}"""
    module = schema.HloModuleProto.FromString(serialize_module(text))
    with pytest.raises(UnsupportedOp, match="control dependencies and computes nothing"):
        import_from_compiler(module)


LOOP_OVER_THE_HOST = """HloModule loop
body {
  s = (s32[], f32[8,4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  kept = f32[8,4] get-tuple-element(s), index=1
  x = f32[4] get-tuple-element(s), index=2
  zero = s32[] constant(0)
  one = s32[] constant(1)
  next = s32[] add(i, one)
  h = f32[4] custom-call(x), custom_call_target="MoveToHost"
  row = f32[1,4] reshape(h)
  update = f32[8,4] dynamic-update-slice(kept, row, i, zero)
  y = f32[4] exponential(x)
  ROOT r = (s32[], f32[8,4], f32[4]) tuple(next, update, y)
}
condition {
  s = (s32[], f32[8,4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  eight = s32[] constant(8)
  ROOT r = pred[] compare(i, eight), direction=LT
}
ENTRY main {
  x = f32[4] parameter(0)
  nothing = f32[] constant(0)
  start = f32[8,4] broadcast(nothing), dimensions={}
  zero = s32[] constant(0)
  init = (s32[], f32[8,4], f32[4]) tuple(zero, start, x)
  loop = (s32[], f32[8,4], f32[4]) while(init), condition=condition, body=body
  kept = f32[8,4] get-tuple-element(loop), index=1
  part = f32[1,4] slice(kept), slice={[2:3], [0:4]}
  flat = f32[4] reshape(part)
  back = f32[4] custom-call(flat), custom_call_target="MoveToDevice"
  zeros = f32[8,4] negate(start)
  ROOT r = (f32[4], f32[8,4]) tuple(back, zeros)
}"""


def test_what_lies_in_the_host_s_memory_is_found_through_loops() -> None:
    """The rest of the loop, and of what reads the buffer's start, is astitch's."""
    module = schema.HloModuleProto.FromString(serialize_module(LOOP_OVER_THE_HOST))
    graph = import_from_compiler(module)
    body = graph["loop"].regions[1]
    found = {n.name for g in (graph, body) for n in g if isinstance(n.attrs, OpaqueAttrs)}
    assert found == {"h", "row", "update", "start", "part", "flat", "back"}
