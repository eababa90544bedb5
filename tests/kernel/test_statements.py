"""Statements say what they do: a new kind needs its definition and a line of text, and all else follows from these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from astitch import emit_cuda as emission
from astitch.cost import workload
from astitch.cost.instructions import Unit
from astitch.cost.workload import count_workload
from astitch.emit_cuda import emit_cuda
from astitch.errors import IllegalProduct
from astitch.graph.index import Linear, Symbol, of_symbol
from astitch.graph.ir import DType, NoAttrs
from astitch.graph.ops.access import Within
from astitch.kernel import check_kernel as checking
from astitch.kernel import kernel_ir as k
from astitch.kernel.check_kernel import check_kernel
from astitch.kernel.cuda_text import render, render_form
from astitch.kernel.statement import Body, Compute, Define, Effect, Held, Nest, Read, Write
from astitch.kernel.visit_statements import (
    find_read,
    find_written,
    list_effects,
    list_statements,
    rename_read,
    rewrite_statements,
)
from astitch.run.emulate import compile_host

F32 = DType.F32
THREAD = of_symbol(Symbol("thread", 32))

# ---- a new statement: its definition and its text -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadSum(k.Statement):
    """const float name = array[position] + expr;"""

    name: str
    array: str
    position: Linear
    expr: k.Expr

    def effects(self) -> Iterator[Effect]:
        yield Compute(self.expr)
        yield Read(self.array, F32, self.position)
        yield Define(self.name, Held.VALUE, F32)


def emit_load_sum(printer: object, step: LoadSum) -> Iterator[str]:
    yield f"const float {step.name} = {step.array}[{render_form(step.position)}] + {render(step.expr)};"


@pytest.fixture
def emitter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only place beside the definition that has to know the statement."""
    monkeypatch.setitem(emission.EMITTERS, LoadSum, emit_load_sum)


# ---- what follows -------------------------------------------------------------------------------------------------

LOAD = k.Load("one", F32, "x", THREAD)
SUM = LoadSum("both", "y", THREAD, k.Name("one"))
STORE = k.Store("z", THREAD, F32, k.Name("both"))


def kernel(*body: k.Statement) -> k.Kernel:
    task = k.TaskLoop(1, True, body)
    section = k.Section(0, "title", 0, 1, 1, 32, (task,))
    parameters = (
        *(k.Parameter(name, F32, name, False, True) for name in "xy"),
        k.Parameter("z", F32, "z", True, False),
    )
    return k.Kernel(
        name="kernel", parameters=parameters, scratch=(), reducers=(), slots=(), body=(section,), grid=1,
        block=32, shared_bytes=0, blocks_per_sm=0, global_barriers=0, block_barriers=0,
        wide_index=False, pointer_table=False, reads_bytes=0, writes_bytes=0, sources=(),
    )  # fmt: skip


def test_no_table_but_that_of_the_text_knows_the_new_statement(emitter: None) -> None:
    tables = (emission.EMITTERS, checking.RULES, workload.PRICES)
    assert [LoadSum in table for table in tables] == [True, False, False]


def test_the_new_statement_is_printed_and_runs(emitter: None) -> None:
    text = emit_cuda(check_kernel(kernel(LOAD, SUM, STORE)))
    assert "const float both = y[thread] + one;" in text
    x, y = np.arange(32, dtype=np.float32), np.full(32, 3, np.float32)
    found = np.zeros(32, np.float32)
    compile_host(text, check=True).launch("kernel", 1, 32, [x, y, found], shared_bytes=0)
    np.testing.assert_array_equal(found, x + y)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ((SUM, STORE), "one is used before it is defined"),
        ((LOAD, STORE), "both is used before it is defined"),
        ((LOAD, SUM, SUM, STORE), "both is defined twice in one scope"),
        ((LOAD, replace(SUM, array="w"), STORE), "array w is read and does not exist"),
        ((LOAD, replace(SUM, array="z"), STORE), "declared as only written"),
        (
            (LOAD, replace(SUM, position=of_symbol(Symbol("i", 4))), STORE),
            "i is used before it is defined",
        ),
        ((LOAD, replace(SUM, name="a b"), STORE), "'a b' is not an identifier"),
    ],
)
def test_the_rules_for_all_hold_for_the_new_statement(
    body: tuple[k.Statement, ...], sentence: str
) -> None:
    with pytest.raises(IllegalProduct, match=sentence):
        check_kernel(kernel(*body))


def test_the_new_statement_has_a_price() -> None:
    tanh = k.Call("tanh", F32, (k.Name("one"),), (F32,), NoAttrs())
    plain, heavy = (count_workload(kernel(LOAD, s, STORE)) for s in (SUM, replace(SUM, expr=tanh)))
    (read,) = (access for access in plain.accesses if access.array == "y")
    assert (read.bytes, read.sector_bytes, read.write) == (128, 128, False)
    special = [work.total(Unit.SPECIAL, 1, 32) for work in (plain, heavy)]
    assert special == [0, 64]


def test_visitors_see_the_new_statement() -> None:
    guarded = k.If((Within(THREAD, 0, 5),), (SUM, STORE))
    assert list(list_statements((LOAD, guarded))) == [LOAD, guarded, SUM, STORE]
    assert find_read(LOAD, guarded) == {"one", "both"}
    assert find_written((LOAD, guarded)) == {"z"}
    assert rename_read(SUM, {"one": "two", "both": "none"}) == replace(SUM, expr=k.Name("two"))
    renamed = rewrite_statements((LOAD, guarded), lambda s: rename_read(s, {"one": "two"}))
    inside = replace(guarded, body=(replace(SUM, expr=k.Name("two")), STORE))
    assert renamed == (LOAD, inside)


# ---- descriptions of the others -----------------------------------------------------------------------------------

ONE = k.Name("one")
CASES = (k.If((Within(THREAD, 0, 5),), (LOAD,)), k.If((), (SUM,)))
CHOICE = k.Choose(
    "c", F32, (k.Branch((Within(THREAD, 0, 5),), (LOAD,), ONE), k.Branch((), (), ONE))
)


def test_bodies_can_be_replaced() -> None:
    switch = k.Switch(CASES)
    assert switch.bodies == (CASES,)
    assert switch.with_bodies([CASES[:1]]) == k.Switch(CASES[:1])
    assert CHOICE.bodies == ((LOAD,), ())
    emptied = CHOICE.with_bodies([(), ()])
    assert emptied.bodies == ((), ()) and emptied.branches[0].result == ONE
    assert LOAD.with_bodies([]) is LOAD


@pytest.mark.parametrize("statement", [k.Switch(CASES), CHOICE, *CASES, k.Common((LOAD,))])
def test_effects_and_bodies_hold_the_same_statements(statement: k.Statement) -> None:
    def leaves(statements: tuple[k.Statement, ...]) -> list[k.Statement]:
        return [s for s in list_statements(statements) if not s.bodies]

    told = [s for e in statement.effects() if isinstance(e, Body) for s in leaves(e.statements)]
    assert told == leaves((statement,))


def test_the_result_of_a_branch_is_read() -> None:
    assert find_read(CHOICE) == {"one"}
    assert Write("z", F32, THREAD) in list(list_effects(STORE))


@pytest.mark.parametrize("kind", k.STATEMENTS, ids=[kind.__name__ for kind in k.STATEMENTS])
def test_all_statements_describe_themselves(kind: type[k.Statement]) -> None:
    assert kind.effects is not k.Statement.effects
    assert issubclass(kind, Nest) == ("body" in kind.__match_args__)
