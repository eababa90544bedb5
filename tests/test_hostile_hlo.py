"""Modules made to break the compiler: each ends within a second with an error that names what is wrong.

Messages are written by hand into the protos: HLO text has no spelling for most of this.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from astitch import hlo_schema
from astitch.compile import compile_hlo
from astitch.errors import AstitchError, MalformedHlo
from astitch.hlo_import import MOST_NESTED, import_hlo
from astitch.host_engine import HostEngine
from tests.hlo_runner import parse_hlo_text

WRITE_AGAIN = "; the dump is damaged, write it again"

Change = Callable[[Any], object]


def parse(text: str) -> Any:
    return hlo_schema.HloModuleProto.FromString(parse_hlo_text(f"HloModule m\n{text}"))


def entry_of(module: Any) -> Any:
    return next(c for c in module.computations if c.id == module.entry_computation_id)


def find(module: Any, name: str) -> Any:
    return next(i for c in module.computations for i in c.instructions if i.name == name.encode())


def refuse(module: Any, error: type[AstitchError] = MalformedHlo) -> str:
    """The message with which a module is refused, within a second and 100 MB."""
    data = bytes(module.SerializeToString())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    with pytest.raises(error) as caught:
        compile_hlo(data)
    assert time.process_time() - start < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
    assert type(caught.value) is error
    return str(caught.value)


# ---- what grows --------------------------------------------------------------------------------


def doubling_tuples(depth: int, opcode: str = "tuple", *, width: int = 2) -> Any:
    """t1 = (x, x), t2 = (t1, t1) ...; the shapes are left as they are, or they would be as large."""
    module = parse("ENTRY e { x = f32[2] parameter(0)\n ROOT t = (f32[2], f32[2]) tuple(x, x) }")
    entry = entry_of(module)
    for level in range(depth):
        last = entry.instructions[-1]
        again = entry.instructions.add()
        again.CopyFrom(last)
        again.id, again.name = last.id + 1, b"t.%d" % level
        again.operand_ids[:] = [last.id] * width
    entry.instructions[-1].opcode = opcode.encode()
    entry.root_id = entry.instructions[-1].id
    return module


@pytest.mark.parametrize("opcode", ["tuple", "opt-barrier", "custom-call", "while"])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_tuples_that_double_40_deep(opcode: str, width: int) -> None:
    message = refuse(doubling_tuples(40, opcode, width=width))
    assert message == (
        "HLO computation e, instruction %t.0, field shape: it declares a tuple of 2, which is not "
        f"what its operands give{WRITE_AGAIN}"
    )


@pytest.mark.parametrize("depth", [500, 5000])
def test_tuples_500_deep(depth: int) -> None:
    assert "%t.0, field shape: it declares a tuple of 2" in refuse(doubling_tuples(depth, width=1))


def calls_of_the_next(depth: int, opcode: str, calls: int = 2) -> Any:
    """Computation d calls computation d - 1 twice ...; the innermost negates."""
    module = hlo_schema.HloModuleProto(
        name=b"nest", entry_computation_name=b"e", entry_computation_id=depth
    )
    for level in range(depth + 1):
        computation = module.computations.add(name=b"c%d" % level, id=level, root_id=calls)
        for i in range(calls + 1):
            name = (opcode if level else "negate") if i else "parameter"
            instruction = computation.instructions.add(name=b"x%d" % i, id=i, opcode=name.encode())
            instruction.shape.element_type = 11
            if i:
                instruction.operand_ids.append(i - 1)
            if i and level:
                instruction.called_computation_ids.append(level - 1)
    return module


@pytest.mark.parametrize(("opcode", "calls"), [("call", 2), ("fusion", 2), ("map", 2), ("call", 5)])
def test_computations_that_call_the_next_one_twice_30_deep(opcode: str, calls: int) -> None:
    message = refuse(calls_of_the_next(30, opcode, calls))
    assert "with its calls unfolded it has more than 1048576 values" in message


def test_calls_that_double_a_few_times_are_read() -> None:
    graph = import_hlo(bytes(calls_of_the_next(5, "call").SerializeToString()))
    assert [n.op for n in graph] == ["parameter", *["negate"] * 64]


def test_computations_that_call_each_other() -> None:
    module = calls_of_the_next(3, "call")
    module.computations[0].instructions[1].opcode = b"call"
    module.computations[0].instructions[1].called_computation_ids.append(2)
    assert refuse(module) == "HLO computation c2 calls itself; HLO has no recursion"


def nested_maps(depth: int) -> bytes:
    return bytes(calls_of_the_next(depth, "map", calls=1).SerializeToString())


def test_regions_nest_as_deep_as_every_stage_can_follow() -> None:
    compilation = compile_hlo(nested_maps(MOST_NESTED))
    x = np.float32(2)
    assert HostEngine(compilation.program).run([x]) == [-x]
    with pytest.raises(MalformedHlo, match=f"regions nest deeper than {MOST_NESTED}, the most"):
        compile_hlo(nested_maps(MOST_NESTED + 1))
    with pytest.raises(MalformedHlo, match="regions nest deeper"):
        compile_hlo(nested_maps(3000))
