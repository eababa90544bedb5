"""What benchmarks.several_devices says of two programs' collectives, and what one waits for."""

from __future__ import annotations

import math
from typing import Any

import pytest

from astitch.device.gpu import preset
from benchmarks.several_devices import compare_exchanges
from tests.ahead_of_time import GPU, compile_ahead, devices, hooked, needs_hook
from tests.exchanges import Exchange, read_exchanges, sum_covered
from tests.waits import Exchanged, Launch, Waits, compare_waits, read_waits, share_out

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
    prices = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 8.0}
    plain = Waits((wait("a", "d"),), prices)
    stitched = Waits((wait("a b", "d", hidden),), dict.fromkeys(prices, 100.0))
    found = compare_waits(plain, stitched)
    assert found.room == (6.0, 4.0)
    assert (found.longer, found.later) == (2.0, later)


def wait(before: str, behind: str, hidden: str = "", launches: str = "") -> Exchanged:
    """A collective of 5 us."""
    ops = (frozenset(text.split()) for text in (before, behind, "", hidden, launches))
    return Exchanged("all-reduce", frozenset({"sum"}), *ops, 5.0)


def launch(computes: str, stores: str, us: float, turns: int = 1) -> Launch:
    return Launch(frozenset(computes.split()), frozenset(stores.split()), us, turns)


def test_the_plain_programs_kernels_are_the_price_of_both():
    fusions = {"norm": launch("a b", "b", 6.0), "sum": launch("a c", "c", 3.0)}
    copy = {"copy": launch("", "", 2.0)}
    plain = Waits((wait("", "", launches="norm copy"),), {}, fusions | copy)
    # One kernel in place of both, which takes less; and one that computes an op of it again.
    both = {"stitch": launch("a b c", "b c", 1.0), "again": launch("a", "a", 1.0)}
    one, other = (
        compare_waits(plain, Waits((wait("", "", launches=name),), {}, both)) for name in both
    )
    assert (one.beside, one.covered) == ((6.0, 9.0), (5.0, 5.0))
    assert (other.beside, other.covered) == ((6.0, 0.0), (5.0, 0.0))


def test_a_kernel_of_each_turn_has_its_part_of_one_before_the_loop():
    plain = Waits((wait("", "", launches="norm"),), {}, {"norm": launch("b", "b", 8.0)})
    turns = {"body": launch("b", "b", 1.0, 4)}
    found = compare_waits(plain, Waits((wait("", "", launches="body"),) * 4, {}, turns))
    assert found.beside == (8.0, 8.0)


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
    # What the plain program's kernels store, kernels store too.
    shares = [share_out(found[0], waits, found[1]) for waits in found]
    assert math.isclose(*(sum(shared.values()) for shared in shares))
    assert sum(shares[0].values()) > 0
