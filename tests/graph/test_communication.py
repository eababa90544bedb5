"""Which ops XLA's later passes join to collectives or move past them."""

from __future__ import annotations

import pytest

from astitch.graph import collectives
from astitch.graph.collectives import (
    COMBINED_BYTES,
    find_awaited,
    find_awaiting,
    find_combined,
    find_joined,
)
from astitch.graph.ir import DynamicSliceAttrs, OpaqueAttrs
from astitch.stitch_scope import Left, choose_stages
from tests.graphs import GraphBuilder


def exchange(g: GraphBuilder, opcode: str, value: str, name: str, kin: str = "") -> str:
    attrs = OpaqueAttrs(opcode, "", b"", (None,), has_effect=True, kin=kin)
    return g.op("opaque", g.array(value), value, attrs=attrs, name=name)


@pytest.mark.parametrize("opcode", ["all-reduce", "all-gather", "reduce-scatter"])
def test_a_chain_of_sums_is_one_collective(opcode):
    g = GraphBuilder()
    one, two, three = (exchange(g, opcode, g.parameter("f32[8,4]"), f"sum.{i}") for i in range(3))
    flat = g.op("reshape", "f32[32]", two, name="flat")
    whole = g.op("reshape", "f32[32]", one, name="whole")
    both = g.op("add", "f32[32]", whole, flat, name="both")
    last = g.op("reshape", "f32[32]", three, name="last")
    total = g.op("add", "f32[32]", both, last, name="total")
    found = find_joined(g.build(g.op("tanh", "f32[32]", total)))
    assert set(found) == {"whole", "flat", "both", "last", "total"}
    assert found["total"] == f"XLA makes one {opcode} of it, %both and %sum.2"


@pytest.mark.parametrize("opcode", ["all-reduce", "all-gather"])
def test_a_sum_of_the_parts_that_devices_read_is_one_collective(opcode):
    g = GraphBuilder()
    place, attrs = g.parameter("s32[]"), DynamicSliceAttrs((2,))
    sums = [exchange(g, opcode, g.parameter("f32[8]"), f"sum.{i}") for i in range(2)]
    parts = [g.op("dynamic-slice", "f32[2]", s, place, attrs=attrs) for s in sums]
    total = g.op("add", "f32[2]", *parts, name="total")
    found = find_joined(g.build(g.op("tanh", "f32[2]", total)))
    assert ("total" in found) == (opcode == "all-reduce")


def test_a_sum_whose_parts_are_read_otherwise_stays():
    g = GraphBuilder()
    one, two = (exchange(g, "all-reduce", g.parameter("f32[8]"), f"sum.{i}") for i in range(2))
    total = g.op("add", "f32[8]", one, two)
    assert find_joined(g.build(total, g.op("tanh", "f32[8]", one))) == {}


def test_a_sum_of_two_kinds_stays():
    g = GraphBuilder()
    one = exchange(g, "all-reduce", g.parameter("f32[8]"), "one")
    two = exchange(g, "all-gather", g.parameter("f32[8]"), "two")
    assert find_joined(g.build(g.op("add", "f32[8]", one, two))) == {}


def test_a_difference_stays():
    g = GraphBuilder()
    one, two = (exchange(g, "all-reduce", g.parameter("f32[8]"), f"sum.{i}") for i in range(2))
    assert find_joined(g.build(g.op("subtract", "f32[8]", one, two))) == {}


@pytest.mark.parametrize(("before", "behind"), [("f32", "bf16"), ("bf16", "f32")])
def test_only_a_conversion_that_sends_less_is_moved(before, behind):
    g = GraphBuilder()
    gathered = exchange(g, "all-gather", g.parameter(f"{before}[8]"), "gathered")
    narrow = g.op("convert", f"{behind}[8]", gathered, name="narrow")
    found = find_joined(g.build(g.op("negate", f"{behind}[8]", narrow)))
    assert set(found) == ({"narrow"} if behind == "bf16" else set())


def test_a_factor_before_what_is_sent_is_moved_with_its_conversion():
    g = GraphBuilder()
    wide = g.op("convert", "f32[8]", g.parameter("bf16[8]"), name="wide")
    scale = g.broadcast(g.parameter("f32[]"), (8,), name="scale")
    scaled = g.op("multiply", "f32[8]", wide, scale, name="scaled")
    sent = exchange(g, "all-gather", scaled, "sent")
    assert set(find_joined(g.build(sent))) == {"wide", "scale", "scaled"}


def test_what_waits_for_one_of_a_group_waits_for_all_of_it():
    g = GraphBuilder()
    one, other = g.parameter("f32[8]", "one"), g.parameter("f32[8]", "other")
    first = exchange(g, "all-reduce", g.op("tanh", "f32[8]", one), "first", "max")
    a, b = (exchange(g, "all-reduce", v, n, "f32") for v, n in ((first, "a"), (other, "b")))
    behind = exchange(g, "all-reduce", g.op("negate", "f32[8]", a), "behind", "min")
    read = g.op("negate", "f32[8]", b, name="read")
    graph = g.build(behind, read)
    groups = {name: n for n, group in enumerate(find_combined(graph)) for name in group}
    assert groups["a"] == groups["b"]
    assert find_awaited(graph)["other"] == 1 << groups["a"] | 1 << groups["behind"]
    assert find_awaiting(graph)["read"] == 1 << groups["a"] | 1 << groups["first"]


def test_without_collectives_nothing_is_left():
    g = GraphBuilder()
    x = g.parameter("f32[8]")
    total = g.op("add", "f32[8]", x, g.splat(1, "f32[8]"))
    assert find_joined(g.build(total)) == {}


def test_collectives_that_do_not_wait_for_each_other_are_combined():
    g = GraphBuilder()
    one, other, last = (g.parameter("f32[8]") for _ in range(3))
    for name, value, kin in (("a", one, "f32"), ("b", other, "max"), ("c", last, "f32")):
        exchange(g, "all-reduce", value, name, kin)
    exchange(g, "all-reduce", one, "d")
    graph = g.build("a", "b", "c", "d")
    assert sorted(find_combined(graph)) == [["a", "c"], ["b"], ["d"]]
    awaited = find_awaited(graph)
    assert awaited[one] & awaited[last] and not awaited[one] & awaited[other]


def test_what_waits_for_one_of_the_group_begins_another():
    g = GraphBuilder()
    a = exchange(g, "all-reduce", g.parameter("f32[8]"), "a", "f32")
    b = exchange(g, "all-reduce", g.op("tanh", "f32[8]", a), "b", "f32")
    c = exchange(g, "all-reduce", g.parameter("f32[8]"), "c", "f32")
    assert find_combined(g.build(b, c)) == [["a"], ["b", "c"]]


def test_the_graph_is_walked_once_for_all_groups(monkeypatch):
    """Groups of two kinds that wait for each other are many in FSDP; a compile asks several times."""
    walks = []
    find_before = collectives._find_before
    monkeypatch.setattr(collectives, "_find_before", lambda *a: walks.append(a) or find_before(*a))
    g = GraphBuilder()
    value = g.parameter("f32[8]")
    for number in range(12):
        kin = ("f32", "gathered")[number % 2]
        beside = exchange(g, "all-reduce", g.parameter("f32[8]"), f"beside.{number}", kin)
        value = g.op("add", "f32[8]", value, beside)
        value = exchange(g, "all-reduce", value, f"sent.{number}", kin)
    graph = g.build(value)
    walks.clear()
    assert len(find_combined(graph)) < 24
    assert len(walks) == 1


@pytest.mark.parametrize("kins", [("f32", "gathered"), ("f32", "bf16"), ("max", "f32")])
def test_no_groups_wait_for_each_other(kins):
    """Each kind's second waits for the other's first: one of the pairs stays two."""
    g = GraphBuilder()
    one, other = kins
    a1 = exchange(g, "all-reduce", g.parameter("f32[8]"), "a1", one)
    b2 = exchange(g, "all-reduce", g.parameter("f32[8]"), "b2", other)
    b1 = exchange(g, "all-reduce", g.op("tanh", "f32[8]", a1), "b1", other)
    a2 = exchange(g, "all-reduce", g.op("tanh", "f32[8]", b2), "a2", one)
    graph = g.build(b1, a2)
    assert sorted(find_combined(graph)) == [["a1", "a2"], ["b1"], ["b2"]]
    stage = choose_stages(Left(graph, dict.fromkeys((a1, a2, b1, b2), "a collective"))).stage
    assert stage["b1"] > stage["a1"] and stage["a2"] > stage["b2"]


def test_what_xla_scatters_is_not_combined_with_what_all_devices_read():
    g = GraphBuilder()
    sums = [exchange(g, "all-reduce", g.parameter("f32[8,4]"), f"sum.{i}", "f32") for i in range(4)]
    start = (g.parameter("s32[]"), g.parameter("s32[]"))
    attrs = DynamicSliceAttrs((2, 4))
    parts = [g.op("dynamic-slice", "f32[2,4]", s, *start, attrs=attrs) for s in sums[1:3]]
    flat = g.op("reshape", "f32[4,8]", sums[3])
    parts.append(g.op("dynamic-slice", "f32[1,8]", flat, *start, attrs=DynamicSliceAttrs((1, 8))))
    groups = find_combined(g.build(sums[0], *parts))
    assert sorted(groups) == [["sum.0"], ["sum.1", "sum.2", "sum.3"]]
    whole = g.op("tanh", "f32[8,4]", sums[1])
    assert sorted(find_combined(g.build(sums[0], *parts, whole))) == [
        ["sum.0", "sum.1"],
        ["sum.2", "sum.3"],
    ]


@pytest.mark.parametrize("large", [COMBINED_BYTES // 4, COMBINED_BYTES // 4 + 1])
def test_a_group_sends_no_more_than_xla_combines(large):
    g = GraphBuilder()
    for name, size in (("a", 1), ("b", large), ("c", COMBINED_BYTES // 4 - 1), ("d", 1)):
        exchange(g, "all-reduce", g.parameter(f"f32[{size}]"), name, "f32")
    groups = find_combined(g.build("a", "b", "c", "d"))
    # "b" is too large for any other, or alone with "a" above the limit.
    wanted = (
        [["a"], ["b"], ["c", "d"]] if large * 4 <= COMBINED_BYTES else [["b"], ["a", "c"], ["d"]]
    )
    assert sorted(groups) == sorted(wanted)


@pytest.mark.parametrize("reads", [1, 2])
def test_collectives_whose_results_xla_adds_up_are_combined_as_one(reads):
    """One of them alone could go with the next; the sum waits for what both wait for."""
    g = GraphBuilder()
    x = g.parameter("f32[8]")
    one = exchange(g, "all-reduce", x, "one", "kin")
    between = exchange(g, "all-reduce", g.op("tanh", "f32[8]", x), "between", "kin")
    behind = exchange(g, "all-reduce", g.op("negate", "f32[8]", between), "behind", "kin")
    total = g.op("add", "f32[8]", one, behind)
    also = [g.op("exp", "f32[8]", one)] if reads == 2 else []
    graph = g.build(total, *also)
    wanted = [["between"], ["one", "behind"]] if reads == 1 else [["one", "between"], ["behind"]]
    assert find_combined(graph) == wanted


@pytest.mark.parametrize("scattered", [False, True])
def test_of_a_reduce_scatter_to_come_its_part_counts(scattered):
    """A device has an eighth of each result: XLA combines eight times as many."""
    g = GraphBuilder()
    place, attrs = g.parameter("s32[]"), DynamicSliceAttrs((1 << 19,))
    count = COMBINED_BYTES // (1 << 24)
    made = []
    for number in range(3 * count):
        given = g.parameter(f"f32[{1 << 22}]")
        received = exchange(g, "all-reduce", given, f"sum.{number}", "kin")
        if scattered:
            received = g.op("dynamic-slice", f"f32[{1 << 19}]", received, place, attrs=attrs)
        made.append(received)
    groups = find_combined(g.build(*made))
    assert len(groups) == (1 if scattered else 3)
