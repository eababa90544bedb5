"""Stages that collectives cut."""

from __future__ import annotations

import pytest

from astitch.graph.ir import Graph, OpaqueAttrs
from astitch.rewrite.cut_stages import cut_stages
from astitch.rewrite.recompute import recompute
from astitch.stitch_scope import Left, choose_stages
from tests.graphs import GraphBuilder


def send(g: GraphBuilder, value: str, name: str, kin: str = "") -> str:
    attrs = OpaqueAttrs("all-reduce", "", b"", (None,), has_effect=True, kin=kin)
    return g.op("opaque", g.array(value), value, attrs=attrs, name=name)


def cut(graph: Graph) -> dict[str, int]:
    """The stages of a graph whose ops outside are its collectives: one stage before them, one behind."""
    outside = {node.name for node in graph if node.op == "opaque"}
    stage = dict(cut_stages(graph, dict.fromkeys(graph.nodes, 0), outside))
    for node in graph:
        if node.op != "opaque":
            assert all(stage[o] <= stage[node.name] for o in node.operands), node.name
    return stage


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("to", ["f32[256]", "f32[]"])
@pytest.mark.parametrize("rows", [64, 32768])
def test_a_sum_of_what_is_sent_is_apart(rows, to, awaited):
    """A kernel with both would end later, by a wait between its blocks."""
    g = GraphBuilder()
    x = g.parameter(f"f32[{rows},256]", "x")
    sent = g.op("tanh", f"f32[{rows},256]", x, name="sent")
    received = send(g, sent, "received")
    total = g.reduce(sent, (0,) if to == "f32[256]" else (0, 1), "add", name="total")
    if awaited:
        summed = g.op("tanh", f"f32[{rows},256]", received, name="later")
        total = send(g, total, "totals")
        stage = cut(g.build(total, summed))
    else:
        stage = cut(g.build(received, total))
    assert stage["total"] > stage["sent"]


@pytest.mark.parametrize(
    ("case", "is_together"),
    [
        ({}, True),
        ({"type_": "bf16"}, True),
        ({"steps": 2}, True),
        ({"rows": 256}, False),  # memory holds little
        ({"is_sent": False}, False),  # XLA runs it beside a collective (run_beside.py)
        ({"is_result": True}, False),  # memory holds it anyway
        ({"dimensions": (1,)}, False),  # the sums are many
    ],
)
def test_a_value_is_not_kept_for_a_sum_alone(case, is_together):
    graph = write_loss(**case)
    stage = cut(graph)
    assert (stage["total"] == stage["error"] == stage["gradient"]) == is_together


def write_loss(
    rows: int = 4096,
    type_: str = "f32",
    dimensions: tuple[int, ...] = (0, 1),
    steps: int = 1,
    *,
    is_sent: bool = True,
    is_result: bool = False,
) -> Graph:
    """The sum of squares of what a gradient is computed from; it is sent with the norm of all devices' gradient.

    steps: by which it is squared.
    """
    g = GraphBuilder()
    shape, left = f"{type_}[{rows},256]", "" if len(dimensions) == 2 else f"{rows}"
    x, y = g.parameter(shape, "x"), g.parameter(shape, "y")
    error = g.op("subtract", shape, x, y, name="error")
    gradient = g.op("tanh", shape, error, name="gradient")
    square = g.op("multiply", shape, error, error)
    for _ in range(steps - 1):
        square = g.op("abs", shape, square)
    total = g.reduce(square, dimensions, "add", name="total")
    assert g.array(total) == g.array(g.parameter(f"{type_}[{left}]"))
    received = send(g, gradient, "received", "f32")
    norm = send(g, g.reduce(received, dimensions, "add"), "norm", "max")
    if is_sent:
        total = send(g, total, "totals", "max")
    return g.build(norm, total, *([error] if is_result else []))


@pytest.mark.parametrize(
    ("labels", "is_together"),
    [
        ("read", True),
        ("read.0 read.1", False),  # the collective would wait for more bytes than are stored
        ("logits read", True),  # the kernel reads the logits anyway
        ("received", False),  # the collective would wait for another one
    ],
)
def test_a_loss_is_summed_where_its_logits_are_read(labels, is_together):
    """It reads sums of rows too, and labels that were there before."""
    g = GraphBuilder()
    shape = "f32[4096,1024]"
    logits = g.parameter(shape, "logits")
    near = g.op("subtract", shape, logits, g.parameter(shape, "bias"), name="near")
    raised = g.op("exponential", shape, near)
    rows = g.reduce(raised, (1,), "add", name="rows")
    spread = g.broadcast(rows, (4096, 1024), (0,))
    sent = send(g, g.op("divide", shape, raised, spread, name="gradient"), "gradients", "f32")
    logs = g.broadcast(g.op("log", "f32[4096]", rows, name="log"), (4096, 1024), (0,))
    picked = g.op("subtract", shape, near, logs)
    for name in labels.split():
        if name == "received":
            send(g, g.parameter(shape, "elsewhere"), name)
        value = name if name in g.nodes else g.parameter(shape, name)
        picked = g.op("multiply", shape, picked, value)
    loss = g.reduce(picked, (1,), "add", name="loss")
    norm = send(g, g.reduce(sent, (0, 1), "add"), "norm", "max")
    stage = cut(g.build(norm, send(g, loss, "losses", "max")))
    assert (stage["loss"] == stage["gradient"]) == is_together
    assert stage["log"] == stage["near"] == stage["gradient"]  # few bytes


@pytest.mark.parametrize("is_read", [False, True])
def test_sums_of_one_value_move_together(is_read):
    """The gradients of a normalization's gain and bias; is_read: another op of their part reads the value too."""
    g = GraphBuilder()
    shape = "f32[8192,256]"
    x, y = g.parameter(shape, "x"), g.parameter(shape, "y")
    slope = g.op("multiply", shape, x, g.op("tanh", shape, y), name="slope")
    received = send(g, g.op("abs", shape, slope, name="sent"), "received", "f32")
    bias = g.reduce(slope, (0,), "add", name="bias")
    gain = g.reduce(g.op("multiply", shape, slope, x), (0,), "add", name="gain")
    norm = send(g, g.reduce(received, (0, 1), "add"), "norm", "max")
    totals = [send(g, total, f"sent.{total}", "max") for total in (bias, gain)]
    if is_read:
        totals.append(send(g, g.op("negate", shape, slope), "others", "max"))
    stage = cut(g.build(norm, *totals))
    assert (stage["bias"] == stage["gain"] == stage["slope"]) != is_read


@pytest.mark.parametrize(("rows", "is_together"), [(512, True), (32768, False)])
def test_a_few_ops_of_statistics_take_no_launch_of_their_own(rows, is_together):
    g = GraphBuilder()
    shape = f"f32[{rows},256]"
    x = g.parameter(shape, "x")
    variance = g.reduce(g.op("tanh", shape, x), (1,), "add", name="variance")
    scale = g.op("rsqrt", f"f32[{rows}]", variance, name="scale")
    sent = g.op("multiply", shape, x, g.broadcast(scale, (rows, 256), (0,)), name="sent")
    received = send(g, sent, "received")
    slope = g.op("divide", f"f32[{rows}]", scale, variance, name="slope")
    late = g.op("multiply", shape, received, g.broadcast(slope, (rows, 256), (0,)))
    stage = cut(g.build(late))
    assert (stage["slope"] == stage["variance"]) == is_together


@pytest.mark.parametrize("waits", [False, True])
def test_a_few_ops_join_no_kernels_that_wait_for_different_collectives(waits):
    """Of two sums the first would be sent later, if it shared a kernel with the other."""
    g = GraphBuilder()
    x, y = g.parameter("f32[512,64]", "x"), g.parameter("f32[512,64]", "y")
    other = send(g, y, "received") if waits else y
    sums = [g.reduce(v, (1,), "add", name=f"sum.{n}") for n, v in enumerate((x, other))]
    for name in sums:
        send(g, name, f"sent.{name}", "f32")
    both = g.op("multiply", "f32[512]", *sums, name="both")
    stage = cut(g.build("sent.sum.0", "sent.sum.1", both))
    assert stage["sum.0"] == stage["sum.1"]
    assert (stage["both"] == stage["sum.0"]) == (not waits)


def test_without_collectives_nothing_changes():
    g = GraphBuilder()
    y = g.op("tanh", "f32[64,256]", g.parameter("f32[64,256]"))
    graph = g.build(g.reduce(y, (0,), "add"))
    stages = {name: number for number, name in enumerate(graph.nodes)}
    assert cut_stages(graph, stages, ()) is stages


def update(
    g: GraphBuilder,
    name: str,
    shape: str,
    behind: str | None,
    rate: str,
    old: str = "",
    kin: str = "",
) -> str:
    """A weight less its gradient, which devices exchange behind another collective's result."""
    gradient = g.parameter(shape, f"{name}_gradient")
    if behind is not None:
        gradient = g.op("add", shape, gradient, g.broadcast(behind, g.shape(gradient), ()))
    received = send(g, gradient, f"{name}_received", kin)
    scaled = g.op(
        "multiply", shape, received, g.broadcast(rate, g.shape(gradient), ()), name=f"{name}_scaled"
    )
    weight = old or g.parameter(shape, f"{name}_weight")
    return g.op("subtract", shape, weight, scaled, name=name)


def cut_updates(one: str, other: str, *, shared: bool = False) -> dict[str, int]:
    """Of two updates, the second of which waits for more collectives."""
    g = GraphBuilder()
    rate = g.op("negate", "f32[]", g.parameter("f32[]", "rate"), name="rate_")
    first = update(g, "first", one, None, rate)
    total = send(g, g.reduce("first_received", tuple(range(one.count(",") + 1)), "add"), "total")
    second = update(g, "second", other, total, rate, "first_scaled" if shared else "")
    return cut(g.build(first, second))


LONG, LARGE, SMALL = "f32[4096,1024]", "f32[1024,1024]", "f32[1024]"


def test_long_updates_wait_for_their_own_collectives_only():
    stage = cut_updates(LARGE, LARGE)
    assert stage["first"] == stage["first_scaled"] < stage["second"] == stage["second_scaled"]


def test_a_short_update_is_apart_from_a_long_one_that_waits_for_less():
    stage = cut_updates(LARGE, SMALL)
    assert stage["first"] < stage["second"]


@pytest.mark.parametrize("other", [LARGE, SMALL])
def test_a_short_update_waits_for_what_others_wait_for(other):
    stage = cut_updates(SMALL, other)
    assert stage["first"] == stage["second"]


def test_updates_that_share_an_array_have_one_kernel():
    stage = cut_updates(LARGE, LARGE, shared=True)
    assert stage["first"] == stage["second"]


@pytest.mark.parametrize("combined", [False, True])
def test_short_updates_are_apart_where_xla_combines_what_each_waits_for(combined):
    """One kernel would bring two groups together: XLA puts them together in the order in which they are reached."""
    g = GraphBuilder()
    updates = []
    for number, kin in enumerate(("f32", "f32", "max", "max")):
        given = g.parameter("f32[64]", f"given.{number}")
        sent = send(g, given, f"sent.{number}", kin if combined else "")
        updates.append(g.op("negate", "f32[64]", sent, name=f"update.{number}"))
    stage = cut(g.build(*updates))
    assert stage["update.0"] == stage["update.1"]
    assert stage["update.2"] == stage["update.3"]
    assert (stage["update.1"] == stage["update.2"]) == (not combined)


@pytest.mark.parametrize("communicates", [False, True])
def test_a_count_that_is_a_result_waits_for_no_collective(communicates):
    """It lies over the donated count, so that all updates read it: else they would wait for the first one's."""
    g = GraphBuilder()
    count = g.parameter("f32[]", "count")
    new = g.op("add", "f32[]", count, g.constant(1.0), name="new")
    spread = g.broadcast(new, (512, 512), name="spread")
    updates = []
    for number in range(2):
        w = g.parameter("f32[512,512]", f"w.{number}")
        grad = g.dot(w, w, (1,), (0,), name=f"grad.{number}")
        if communicates:
            grad = send(g, grad, f"sent.{number}")
        updates.append(g.op("multiply", "f32[512,512]", grad, spread, name=f"update.{number}"))
    graph = g.build(*updates, new, aliases=[(2, 0)])
    staged = recompute(choose_stages(Left(graph)))
    first = min(staged.stage[u] for u in updates)
    assert (staged.stage["new"] < first) == communicates


@pytest.mark.parametrize(
    ("one", "other", "apart"), [(LONG, LONG, True), (LONG, SMALL, True), (LARGE, LARGE, False)]
)
def test_long_updates_have_kernels_of_their_own(one, other, apart):
    """XLA puts as many beside a collective as fit."""
    g = GraphBuilder()
    rate = g.op("negate", "f32[]", g.parameter("f32[]", "rate"), name="rate_")
    made = [
        update(g, name, shape, None, rate, kin="kin")
        for name, shape in (("one", one), ("other", other))
    ]
    stage = cut(g.build(*made))
    assert (stage["one"] != stage["other"]) == apart
    assert stage["one"] == stage["one_scaled"]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("reshaped", [False, True])
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("awaited", [False, True])
def test_long_sums_that_share_a_large_array_have_one_kernel(dtype, reshaped, large, awaited):
    """As those for the gain and bias of a norm: two kernels would read the gradient twice.

    Those that no collective waits for are apart, so that they fit beside one.
    """
    g = GraphBuilder()
    shape = f"{dtype}[16384,1024]"
    shared = g.parameter(shape if large else f"{dtype}[1024]", "shared")
    sums = []
    for number in range(2):
        read = g.reshape(shared, (1024, 16384) if large else (1, 1024)) if reshaped else shared
        if reshaped:
            read = g.reshape(read, g.shape(shared))
        if not large:
            read = g.broadcast(read, (16384, 1024), (1,))
        own = g.op("tanh", shape, g.parameter(shape, f"x.{number}"))
        sums.append(g.reduce(g.op("multiply", shape, own, read), (0,), "add", name=f"sum.{number}"))
    total = send(g, g.parameter("f32[1]", "other"), "sent")
    if awaited:
        sums = [send(g, one, f"sent.{one}", "kin") for one in sums]
    stage = cut(g.build(total, *sums))
    assert (stage["sum.0"] == stage["sum.1"]) == (large and awaited)


@pytest.mark.parametrize("shared", [True, False])
def test_long_updates_that_read_one_gradient_have_one_kernel(shared):
    """Two kernels would read it twice, and neither result could lie over it."""
    g = GraphBuilder()
    gradients = [send(g, g.parameter(LONG, f"g.{i}"), f"sent.{i}") for i in range(2)]
    made = [
        g.op(op, LONG, g.parameter(LONG, f"x.{op}"), gradient, name=op)
        for op, gradient in zip(
            ("add", "subtract"), gradients[:1] * 2 if shared else gradients, strict=True
        )
    ]
    stage = cut(g.build(*made, gradients[1]))
    assert (stage["add"] == stage["subtract"]) == shared


@pytest.mark.parametrize("towers", [2, 3])
def test_long_sums_of_different_arrays_are_apart(towers):
    """One kernel for the gain and bias of each norm, and none for those of several."""
    g = GraphBuilder()
    shape = "f32[16384,1024]"
    sums = []
    for tower in range(towers):
        shared = g.parameter(shape, f"shared.{tower}")
        for number in range(2):
            own = g.op("tanh", shape, g.parameter(shape, f"x.{tower}.{number}"))
            product = g.op("multiply", shape, own, shared)
            sums.append(g.reduce(product, (0,), "add", name=f"sum.{tower}.{number}"))
    total = send(g, g.parameter("f32[1]", "other"), "sent")
    stage = cut(g.build(total, *(send(g, one, f"sent.{one}", "kin") for one in sums)))
    found = [{stage[f"sum.{tower}.{number}"] for number in range(2)} for tower in range(towers)]
    assert all(len(stages) == 1 for stages in found)
    assert len(set().union(*found)) == towers


def test_long_updates_follow_the_number_that_they_share():
    """The sum of one gradient's squares scales both: the kernel that computes it comes first."""
    g = GraphBuilder()
    gradients = [send(g, g.parameter(LONG, f"g.{i}"), f"sent.{i}") for i in range(2)]
    square = g.op("multiply", LONG, gradients[0], gradients[0], name="square")
    size = g.reduce(square, (0, 1), "add", name="size")
    updates = [
        g.op("multiply", LONG, gradient, g.broadcast(size, (4096, 1024), ()), name=f"update.{i}")
        for i, gradient in enumerate(gradients)
    ]
    stage = cut(g.build(*updates))
    assert stage["size"] < stage["update.1"]


def test_a_result_stays_where_what_it_is_computed_from_is():
    """What is stored for a kernel of the last stage takes a kernel more, and saves nothing."""
    g = GraphBuilder()
    w, v = g.parameter("f32[256]", "w"), g.parameter("f32[256]", "v")
    early = send(g, g.op("tanh", "f32[256]", v), "early")
    moment = g.op("add", "f32[256]", early, v, name="moment")
    scaled = g.op("sqrt", "f32[256]", moment, name="scaled")
    new = g.op("subtract", "f32[256]", w, scaled, name="new")
    late = send(
        g, g.op("tanh", "f32[256]", send(g, g.op("negate", "f32[256]", v), "middle")), "late"
    )
    last = g.op("negate", "f32[256]", late, name="last")
    staged = choose_stages(Left(g.build(moment, new, last)))
    assert staged.stage["new"] == staged.stage["moment"] < staged.stage["last"]


@pytest.mark.parametrize("kin", ["", "f32"])
def test_what_reads_combined_collectives_has_one_stage(kin):
    """They end at once, however many products are in front of each.  What is sent first is ready first."""
    g = GraphBuilder()
    x = g.parameter("f32[512,512]", "x")
    sums = []
    for number in range(2):
        x = g.dot(x, x, (1,), (0,), name=f"product.{number}")
        received = send(g, x, f"sent.{number}", kin)
        square = g.op("multiply", "f32[512,512]", received, received, name=f"square.{number}")
        sums.append(g.reduce(square, (0, 1), "add", name=f"size.{number}"))
    total = send(g, g.op("add", "f32[]", *sums), "total")
    staged = choose_stages(Left(g.build(total)))
    assert (staged.stage["square.0"] == staged.stage["square.1"]) == bool(kin)
    assert staged.stage["sent.0"] < staged.stage["sent.1"]
