"""Programs over eight devices as users write them: what is sent and what memory they need, with kernels and without."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.sharded_programs import PROGRAMS, Sharded
from tests.ahead_of_time import compile_ahead, devices, hooked, needs_hook
from tests.exchanges import count_exchanges
from tests.xla.test_several_devices import sum_planned

pytestmark = needs_hook


@pytest.mark.parametrize(
    "name", ["data/zero1", "experts/top2", "fsdp/gathered", "mesh/adamw", "mesh/constraints"]
)
def test_kernels_send_as_much_and_need_no_more_memory(name: str) -> None:
    compare(PROGRAMS[name](devices(8)))


@pytest.mark.parametrize("name", ["mesh/recomputed", "pipeline/line"])
def test_they_need_no_more_where_nothing_is_donated(name: str) -> None:
    """New weights and moments lie over gradients that a loop hands on."""
    compare(replace(PROGRAMS[name](devices(2)), donated=()))


def compare(program: Sharded) -> None:
    options = {"donate_argnums": program.donated, "out_shardings": program.results}
    plain = compile_ahead(program.fn, *program.arguments, **options)
    with hooked() as seen:
        stitched = compile_ahead(program.fn, *program.arguments, **options)
    assert sum(s.kernels for s in seen.stitchings) > 3
    assert sum_bytes(stitched) == sum_bytes(plain)
    planned = [sum_planned(c.memory_analysis()) for c in (plain, stitched)]
    assert planned[1] <= 1.02 * planned[0]


def sum_bytes(compiled: Any) -> Counter[str]:
    """What a device gives to all collectives of each kind."""
    found = Counter[str]()
    for (kind, size), count in count_exchanges(compiled).items():
        found[kind] += size * count
    return found
