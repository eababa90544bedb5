"""The proof that a kernel reads what is there before it writes over it."""

from __future__ import annotations

import pytest

from astitch.graph.index import Linear, Symbol
from astitch.graph.ir import DType
from astitch.kernel import kernel_ir as k
from astitch.kernel.in_place import _in_equal_nests, find_uses


@pytest.mark.parametrize(("outer", "equal"), [(k.Loop, True), (k.Rounds, False)])
def test_turns_of_the_whole_block_are_no_nest_of_a_thread(outer: type, equal: bool) -> None:
    """In a round a thread may read what another stores in a later one, whatever the positions say."""

    def around(statement: k.Statement) -> k.Statement:
        if outer is k.Loop:
            return k.Loop("i", 4, False, (statement,))
        return k.Rounds("i", 4, False, (statement,))

    position = Linear(0, ((Symbol("i", 4), 1),))
    load = around(k.Load("v", DType.F32, "x", position))
    store = around(k.Store("y", position, DType.F32, k.Name("v")))
    loop = k.TaskLoop("task", 8, (load, store))
    uses = find_uses((loop,), {"x", "y"})
    assert _in_equal_nests(uses["x"][0], uses["y"][0]) == equal
