"""find_host_memory: what lies in the host's memory, and what reads it, stays as it stands."""

from __future__ import annotations

import pytest

from astitch.graph.ir import IN_HOST
from astitch.hlo.host_memory import find_host_memory
from astitch.hlo.schema import HloModuleProto
from tests.hlo_runner import parse_hlo_text

TEXT = """HloModule m
ENTRY e {{
  x = f32[8] parameter(0)
  before = f32[8] tanh(x)
  call = f32[8] custom-call({operand}), custom_call_target="{target}"
  behind = f32[8] negate(call)
  ROOT apart = f32[8] add(before, behind)
}}"""


def find_kept(operand: str, target: str) -> set[str]:
    module = HloModuleProto.FromString(parse_hlo_text(TEXT.format(operand=operand, target=target)))
    (entry,) = module.computations
    kept = find_host_memory(module)
    assert set(kept.values()) <= {IN_HOST}
    return {
        i.name.decode().partition(".")[0] for i in entry.instructions if (entry.id, i.id) in kept
    }


@pytest.mark.parametrize(
    ("target", "kept"),
    [
        ("MoveToHost", {"call", "behind"}),
        ("annotate_device_placement", {"call", "behind", "apart"}),
        ("Sharding", set()),
    ],
)
def test_what_shares_memory_with_the_host_and_its_readers_stay(target: str, kept: set[str]) -> None:
    """Behind the call lies the host's memory; JAX's own form does not say on which side it is."""
    assert find_kept("before", target) == kept


def test_a_value_that_moves_to_the_device_lies_in_the_hosts_memory_before() -> None:
    assert find_kept("x", "MoveToDevice") == {"call", "before"}
