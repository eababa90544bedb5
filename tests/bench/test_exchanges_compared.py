"""What benchmarks.several_devices says of two programs' collectives, and what one waits for."""

from __future__ import annotations

from typing import Any

import pytest

from astitch.device.gpu import preset
from benchmarks.several_devices import compare_exchanges
from tests.ahead_of_time import GPU, compile_ahead, devices, hooked, needs_hook
from tests.exchanges import Exchange, read_exchanges, sum_covered
from tests.waits import Exchanged, Waits, compare_waits, read_waits

PLAIN = [Exchange("all-reduce", 8, 1.0, 10.0), Exchange("all-reduce", 4, 0.0, 10.0)]


@pytest.mark.parametrize(
    ("stitched", "wanted"),
    [
        ([("all-reduce", 4), ("all-reduce", 8)], "as plain"),
        ([("all-reduce", 12)], "1 for 2, the same bytes"),
        ([("all-reduce", 8)], "1 for 2, all-reduce 8 B for 12 B"),
        (
            [("all-reduce", 8), ("all-gather", 4)],
            "2 for 2, all-gather 4 B for 0 B, all-reduce 8 B for 12 B",
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_combined_is_told_from_lost(stitched, wanted):
    assert compare_exchanges(PLAIN, [Exchange(*found, 0.0, 10.0) for found in stitched]) == wanted


def test_a_collective_is_covered_as_long_as_it_takes():
    assert sum_covered([Exchange("all-reduce", 8, us, 10.0) for us in (4.0, 40.0)]) == 14.0


@pytest.mark.parametrize(("hidden", "later"), [("", 2.0), ("b", 0.0)])
def test_ops_have_one_price(hidden, later):
    def wait(before: str, behind: str, beside: str, hidden: str = "") -> Exchanged:
        ops = (frozenset(text.split()) for text in (before, behind, beside, hidden))
        return Exchanged("all-reduce", frozenset({"sum"}), *ops)

    prices = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 8.0}
    plain = Waits((wait("a", "d", "b c"),), prices)
    stitched = Waits((wait("a b", "d", "c", hidden),), dict.fromkeys(prices, 100.0))
    found = compare_waits(plain, stitched)
    assert (found.beside, found.room) == ((6.0, 4.0), (6.0, 4.0))
    assert (found.longer, found.later) == (2.0, later)


@needs_hook
def test_kernels_and_fusions_say_their_ops():
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(devices(2)), ("d",))

    def compute(x: Any, y: Any) -> Any:
        total = jax.lax.psum(jax.nn.softmax(x), "d")
        return jax.nn.softmax(total), jax.nn.softmax(y @ y.T)

    parts = PartitionSpec("d")
    fn = jax.shard_map(compute, mesh=mesh, in_specs=parts, out_specs=parts, check_vma=False)
    x = jax.ShapeDtypeStruct((1024, 512), np.float32, sharding=NamedSharding(mesh, parts))
    found = []
    for stitches in (False, True):
        with hooked(stitches=stitches) as seen:
            bare = compile_ahead(fn, x, x)
        with hooked(stitches=stitches, labels=True) as seen:
            compiled = compile_ahead(fn, x, x)
        # Names change nothing.
        gpu = preset(GPU)
        assert read_exchanges(compiled, gpu) == read_exchanges(bare, gpu)
        found.append(read_waits(compiled, max(seen.modules, key=len), gpu))
    plain, stitched = (waits.exchanged[0] for waits in found)
    assert plain.names == stitched.names and len(plain.names) == 1
    assert plain.before and plain.behind and not plain.before & plain.behind
    assert plain.before == stitched.before and plain.behind <= stitched.behind
    comparison = compare_waits(*found)
    assert comparison.longer == 0 and comparison.room[0] > 0
