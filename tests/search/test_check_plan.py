"""Every rule of check_plan: a legal plan, broken in one place, is refused with the sentence for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from graphs import GraphBuilder

from astitch.device.gpu import preset
from astitch.errors import IllegalProduct
from astitch.graph.index import Linear, Symbol, add, divide, modulo, of_symbol
from astitch.graph.ir import ArrayType, DType
from astitch.graph.ops.access import Within
from astitch.kernel import kernel_ir as k
from astitch.kernel.check_kernel import check_kernel
from astitch.kernel.reducers import make_reducer
from astitch.mapping.stitch_scheme import Arrangement, Placement, Scheme
from astitch.scope.remote_stitch import stitch_remotely
from astitch.search.check_plan import check_plan
from astitch.search.plan import Plan, plan_scope
from tests.scopes import find_scopes

Body = tuple[k.Statement, ...]


def normalised() -> Plan:
    """Rows over their sum, over the total of the reciprocals: two levels, shared memory, scratch."""
    g = GraphBuilder()
    x = g.parameter("f32[48,2048]", "x")
    total = g.reduce(x, (1,), "add", name="total")
    y = g.same("divide", x, g.broadcast(total, (48, 2048), (0,)), name="y")
    largest = g.reduce(total, (0,), "maximum", name="largest")
    z = g.same("multiply", g.broadcast(largest, (48, 2048), ()), g.reverse(y, (1,)), name="z")
    graph = g.build(y, z)
    (scope,) = stitch_remotely(find_scopes(graph)).scopes
    plan = plan_scope(graph, scope, preset("host"))
    assert plan is not None
    return plan


PLAN = normalised()
KERNEL = PLAN.kernel


def with_placement(name: str, **changes: object) -> Plan:
    placements = dict(PLAN.arrangement.placements)
    placements[name] = replace(placements[name], **changes)
    return with_placements(placements)


def with_placements(placements: dict[str, Placement]) -> Plan:
    arrangement: Arrangement = replace(PLAN.arrangement, placements=placements)
    return replace(PLAN, arrangement=arrangement)


def with_loop(place: int, **changes: object) -> Plan:
    loops = list(PLAN.arrangement.loops)
    loops[place] = replace(loops[place], **changes)
    return replace(PLAN, arrangement=replace(PLAN.arrangement, loops=tuple(loops)))


def with_kernel(**changes: object) -> Plan:
    return replace(PLAN, kernel=replace(KERNEL, **changes))


def test_a_legal_plan_comes_back() -> None:
    assert check_plan(PLAN) is PLAN
    assert check_kernel(KERNEL) is KERNEL
    schemes = {n: p.scheme for n, p in PLAN.arrangement.placements.items()}
    assert schemes["y"] is Scheme.GLOBAL or schemes["y"] is Scheme.REGIONAL
    assert KERNEL.global_barriers > 0
    assert KERNEL.scratch


def without(name: str) -> Plan:
    return with_placements({n: p for n, p in PLAN.arrangement.placements.items() if n != name})


BROKEN_PLANS: list[tuple[Callable[[], Plan], str]] = [
    (lambda: without("y"), "candidate %y has no placement"),
    (lambda: with_placement("z", loop=99), "%z is placed in loop 99, which does not exist"),
    (lambda: with_placement("z", stored=False), "output %z is not stored"),
    (lambda: with_placement("total", scheme=Scheme.INDEPENDENT), "%total is independent and read by %"),
    (lambda: with_placement("y", phase=0), "%y of phase 0 reads %total, which phase 0 of the same task computes"),
    (lambda: with_loop(0, level=1), "the first loop is of level 1"),
    (lambda: with_loop(1, level=3), "loop 1 of level 3 follows level 0"),
    (lambda: with_loop(1, number=0), "loop 0 stands in place 1"),
    (lambda: with_kernel(grid=10_000), "10000 blocks meet at a global barrier, 16 fit the device"),
    (lambda: with_kernel(blocks_per_sm=0), "launch bounds of 0 blocks an SM do not promise the 2"),
    (lambda: with_kernel(blocks_per_sm=1), "launch bounds of 1 blocks an SM do not promise the 2"),
    (lambda: with_kernel(global_barriers=7), "7 global barriers in the kernel, "),
    (lambda: with_kernel(block=64), "blocks of 512, 512 and 64 threads"),
]  # fmt: skip


@pytest.mark.parametrize(("broken", "sentence"), BROKEN_PLANS, ids=[s for _, s in BROKEN_PLANS])
def test_a_broken_plan_is_refused(broken: Callable[[], Plan], sentence: str) -> None:
    with pytest.raises(IllegalProduct) as caught:
        check_plan(broken())
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("plan stitch_0: ")
    assert str(caught.value).endswith("has a bug; print its input and report both")


def test_a_reader_in_another_loop_needs_a_global_value() -> None:
    readers = [n for n, p in PLAN.arrangement.placements.items() if p.loop > 0]
    assert readers
    written = [n for n, p in PLAN.arrangement.placements.items() if p.scheme is Scheme.GLOBAL]
    with pytest.raises(
        IllegalProduct, match="reads it from another task|not stored|split over tasks"
    ):
        check_plan(with_placement(written[0], scheme=Scheme.LOCAL, stored=False))


# ---- kernels, by hand

F32 = DType.F32
VECTOR = ArrayType(F32, (64,))
THREAD = of_symbol(Symbol("thread", 32))
ONE = k.Name("value")
READ = k.Parameter("x", F32, "x", False, True)
WRITTEN = k.Parameter("y", F32, "y", True, False)
BOTH = k.Parameter("s", F32, "s", True, True)
LOAD = k.Load("value", F32, "x", THREAD)
STORE = k.Store("y", THREAD, F32, ONE)
BLOCK = k.Barrier("block", "why")
GUARD = Within(THREAD, 0, 5)


def section(*body: k.Statement, number: int = 0) -> k.Section:
    return k.Section(number, "title", 0, 1, 1, 32, body)


def task_loop(*body: k.Statement, once: bool = True) -> k.TaskLoop:
    return k.TaskLoop(1, once, body)


def kernel(
    *body: k.Statement, parameters: tuple[k.Parameter, ...] = (READ, WRITTEN), **changes: object
) -> k.Kernel:
    made = k.Kernel(
        name="kernel", parameters=parameters, scratch=(), reducers=(), slots=(), body=body, grid=1,
        block=32, shared_bytes=0, blocks_per_sm=0, global_barriers=0, block_barriers=0,
        wide_index=False, pointer_table=False, reads_bytes=0, writes_bytes=0, sources=(),
    )  # fmt: skip
    return replace(made, **changes)


def slot(name: str, offset: int = 0, loop: int = 0) -> k.Slot:
    return k.Slot(name, F32, None, 32, 128, (loop, 0), (loop, 1), offset)


def shared_kernel(*body: k.Statement, **changes: object) -> k.Kernel:
    slots = changes.pop("slots", (slot("a"),))
    return kernel(*body, slots=slots, shared_bytes=512, **changes)


PUT, GET = k.Store("a", THREAD, F32, ONE), k.Load("got", F32, "a", Linear(31))


def test_small_legal_kernels() -> None:
    check_kernel(kernel(section(task_loop(LOAD, STORE))))
    check_kernel(kernel(section(task_loop(LOAD, k.If((GUARD,), (STORE,))))))
    check_kernel(shared_kernel(section(task_loop(LOAD, PUT, BLOCK, GET, STORE))))
    check_kernel(shared_kernel(section(task_loop(LOAD, PUT, BLOCK, GET, STORE, BLOCK, once=False))))
    one_after_the_other = (slot("a"), slot("b", loop=1))
    put, get = k.Store("b", THREAD, F32, ONE), k.Load("got", F32, "b", Linear(31))
    check_kernel(
        shared_kernel(
            section(task_loop(LOAD, PUT, BLOCK, GET, STORE)),
            BLOCK,
            section(task_loop(LOAD, put, BLOCK, get), number=1),
            slots=one_after_the_other,
        )
    )


SCRATCH = (k.Scratch("s", VECTOR),)
KEEP = k.Store("s", THREAD, F32, ONE)
FETCH = k.Load("fetched", F32, "s", THREAD)
ALL = (READ, WRITTEN, BOTH)
GLOBAL = k.Barrier("global", "why")

BROKEN_KERNELS: list[tuple[k.Kernel, str]] = [
    (kernel(section(task_loop(STORE))), "loop 0: value is used before it is defined"),
    (kernel(section(task_loop(LOAD, LOAD, STORE))), "value is defined twice in one scope"),
    (
        kernel(section(task_loop(LOAD, k.If((GUARD,), (LOAD,)), STORE))),
        "value is defined twice in one scope",
    ),
    (
        kernel(section(task_loop(k.If((GUARD,), (LOAD,)), STORE))),
        "value is used before it is defined",
    ),
    (
        kernel(section(task_loop(k.Index("value", THREAD), STORE))),
        "value is used as value, it is integer",
    ),
    (kernel(section(task_loop(k.Load("x", F32, "x", THREAD)))), "x is a variable and an array"),
    (kernel(section(task_loop(replace(LOAD, name="a b")))), "'a b' is not an identifier"),
    (
        kernel(section(task_loop(replace(LOAD, position=of_symbol(Symbol("nowhere", 4)))))),
        "nowhere is used before it is defined",
    ),
    (
        kernel(section(task_loop(replace(LOAD, array="nothing")))),
        "array nothing is read and does not exist",
    ),
    (kernel(section(task_loop(replace(LOAD, dtype=DType.S32)))), "x of f32 is read as s32"),
    (
        kernel(section(task_loop(replace(LOAD, array="y")))),
        "y is read, though it is declared as only written",
    ),
    (
        kernel(section(task_loop(LOAD, replace(STORE, array="x")))),
        "x is written, though it is declared as only read",
    ),
    (kernel(section(task_loop(LOAD))), "y is stored by 0 statements, not by one"),
    (kernel(section(task_loop(LOAD, STORE, STORE))), "y is stored by 2 statements, not by one"),
    (
        kernel(
            section(task_loop(LOAD, STORE)),
            parameters=(READ, WRITTEN, replace(READ, name="z", source="z")),
        ),
        "z is declared as read and never is",
    ),
    (
        kernel(section(task_loop(LOAD, STORE)), parameters=(READ, WRITTEN, READ)),
        "two things are named x",
    ),
    (
        kernel(
            section(task_loop(LOAD, STORE)), parameters=(READ, WRITTEN, replace(READ, name="z"))
        ),
        "%x is passed twice",
    ),
    (kernel(section(task_loop(LOAD, STORE)), name="k;"), "'k;' is not an identifier"),
    (kernel(section(task_loop(LOAD, STORE)), scratch=SCRATCH), "scratch %s has no name"),
    (
        kernel(
            section(task_loop(LOAD, KEEP, FETCH, STORE)),
            parameters=ALL,
            scratch=(replace(SCRATCH[0], offset=4),),
        ),
        "scratch %s at byte 4",
    ),
    (kernel(k.Common((STORE,)), section(task_loop(LOAD, STORE))), "Store outside a section"),
    (
        kernel(section(k.Common((LOAD,)), task_loop(LOAD, STORE))),
        "values of all sections inside a section",
    ),
    (
        kernel(section(task_loop(LOAD, STORE, k.If((GUARD,), (BLOCK,))))),
        "a barrier where not all threads come by: why",
    ),
    (
        kernel(section(task_loop(LOAD, STORE, k.Loop("l", 4, True, (BLOCK,))))),
        "a barrier where not all threads come by: why",
    ),
    (kernel(section(task_loop(LOAD, STORE, GLOBAL))), "a global barrier inside a section: why"),
    (
        kernel(section(task_loop(LOAD, STORE)), GLOBAL),
        "1 global barriers are written, 0 are declared",
    ),
    (kernel(section(section(task_loop(LOAD, STORE)))), "section 0 inside a section"),
    (kernel(task_loop(LOAD, STORE)), "TaskLoop outside a section"),
    (
        kernel(replace(section(task_loop(LOAD, STORE)), col_threads=64)),
        "64 threads in a block of 32",
    ),
    (kernel(section(replace(task_loop(LOAD, STORE), tasks=9))), "9 tasks at once on 1 blocks"),
    (
        kernel(section(task_loop(LOAD, STORE, k.Choose("c", F32, (k.Branch((GUARD,), (), ONE),))))),
        "c may be left without a value",
    ),
    (
        kernel(section(task_loop(LOAD, KEEP, FETCH, STORE)), parameters=ALL, scratch=SCRATCH),
        "s is written at level 0 and read at level 0: no global barrier",
    ),
    (
        kernel(
            section(task_loop(FETCH, k.Load("value", F32, "x", THREAD), STORE)),
            GLOBAL,
            section(task_loop(LOAD, KEEP), number=1),
            parameters=ALL,
            global_barriers=1,
        ),
        "s is written at level 1 and read at level 0",
    ),
    (
        shared_kernel(section(task_loop(LOAD, PUT, GET, STORE))),
        "shared a (write) and a (read) meet in one place",
    ),
    (
        shared_kernel(section(task_loop(LOAD, PUT, BLOCK, GET, STORE, once=False))),
        "shared a (read) and a (write) meet in one place",
    ),
    (
        shared_kernel(section(task_loop(LOAD, STORE)), slots=(slot("a"), slot("b", 64))),
        "slots a and b overlap and are live together",
    ),
    (shared_kernel(section(task_loop(LOAD, STORE)), slots=(slot("a", 500),)), "slot a at byte 500"),
    (
        shared_kernel(section(task_loop(LOAD, STORE)), slots=(slot("a", 496),)),
        "slot a ends at byte 624 of 512",
    ),
    (
        shared_kernel(
            section(task_loop(LOAD, PUT, STORE)),
            section(task_loop(LOAD, k.Store("b", THREAD, F32, ONE)), number=1),
            slots=(slot("a"), slot("b", 64, 1)),
        ),
        "shared a (write) and b (write) meet in one place",
    ),
    (
        kernel(section(task_loop(LOAD, STORE, k.StoreLane("v", F32, ONE)))),
        "lane is used before it is defined",
    ),
    (
        kernel(section(task_loop(LOAD, STORE, k.VectorVariable("v", F32, 3)))),
        "v is a vector of 3 f32",
    ),
]


@pytest.mark.parametrize(("broken", "sentence"), BROKEN_KERNELS, ids=[s for _, s in BROKEN_KERNELS])
def test_a_broken_kernel_is_refused(broken: k.Kernel, sentence: str) -> None:
    with pytest.raises(IllegalProduct) as caught:
        check_kernel(broken)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith(f"kernel {broken.name}")


# ---- block groups, by hand


def sum_reducer(dtype: str = "f32") -> k.Reducer:
    g = GraphBuilder()
    total = g.reduce(g.parameter(f"{dtype}[4]"), (0,), "add")
    return make_reducer(g.build(total), total, 0)


SUM = sum_reducer()
TASK, TO = of_symbol(Symbol("task", 12)), of_symbol(Symbol("to", 1))
AREA = k.Area(0, 3, 4, 1)
ROW = divide(TASK, 4)
MEETS = k.Slot("met", None, 0, 1, 4, (0, 0), (0, 1), 0)
PLACES = k.Slot("places", F32, None, 160, 640, (0, 0), (0, 1), 128)
TOTAL = k.Total("found", "total", 0, "met")
FIRST_OF_WARP = Within(THREAD, 0, 1)


def publish(**changes: object) -> Body:
    statement = replace(k.Publish(AREA, ROW, modulo(TASK, 4), "mine", Linear(0), 0), **changes)
    return (
        k.States("mine", 0, 1),
        k.Accumulate("mine", Linear(0), 0, (ONE,)),
        k.ReduceAcross((k.Part("mine", 1, 0, ""),), 32, 1),
        k.If((FIRST_OF_WARP,), (statement,)),
    )


def meeting(
    *, body: Body | None = None, area: k.Area = AREA, members: int = 32, **changes: object
) -> k.Meeting:
    gather = (
        k.Index("row", add(ROW, TO)),
        k.States("found", 0, 1),
        k.Collect(area, of_symbol(Symbol("row", 3)), "found", Linear(0), 0, members, THREAD),
        k.ReduceAcross((k.Part("found", 1, 0, ""),), 32, 1),
    )
    made = k.Meeting(4, 0, 1, gather if body is None else body, (TOTAL,))
    return replace(made, **changes)


PUT_TOTAL = k.Store("y", THREAD, F32, k.Field("total", Linear(0), 0))


def block_group_kernel(
    *body: k.Statement, loop: k.TaskLoop | None = None, **changes: object
) -> k.Kernel:
    """Three rows of four tasks each, four blocks."""
    made = kernel(
        section(loop or k.TaskLoop(12, False, body)), reducers=(SUM,), slots=(MEETS, PLACES), grid=4,
        shared_bytes=1024, blocks_per_sm=1, block_groups=1, tagged_words=12,
    )  # fmt: skip
    return replace(made, **changes)


def delayed_kernel(
    *, delay: int = 2, buffers: int = 5, distance: int = 2, first: int = 1, back: int = 2
) -> k.Kernel:
    """Blocks meet `delay` tasks late; vectors are loaded `distance` tasks early."""
    next_turn, turn = (of_symbol(Symbol(name, 5)) for name in ("next_turn", "turn"))
    fetch = (k.Fetch("places", next_turn, F32, "x", THREAD, 4),)
    take = k.TakeVector("taken", F32, "places", turn, 4)
    states, accumulate, *publishing = publish()
    lanes = k.Loop("lane", 4, True, (k.Value("value", F32, k.Lane("taken", F32)), accumulate))
    current = k.Current(12, (k.CopyWait(1), take, states, lanes, *publishing, BLOCK))
    previous = k.Previous(buffers, (meeting(delay=delay), PUT_TOTAL), back)
    later = k.Prefetch(False, 12, fetch, distance, buffers)
    loop = k.TaskLoop(12, False, (current, previous, later), buffers, delay)
    body = (*(k.Prefetch(True, 12, fetch, number, buffers) for number in (0, first)), loop)
    made = block_group_kernel()
    return replace(made, body=(section(*body),))


def test_legal_block_groups() -> None:
    check_kernel(block_group_kernel(LOAD, *publish(), meeting(), PUT_TOTAL, BLOCK))
    check_kernel(delayed_kernel())
    inside = replace(AREA, elements_inside=True)
    check_kernel(
        block_group_kernel(LOAD, *publish(area=inside), meeting(area=inside), PUT_TOTAL, BLOCK)
    )
    case = k.If((FIRST_OF_WARP,), (k.Index("at", THREAD),))
    check_kernel(kernel(section(task_loop(LOAD, STORE, k.Switch((case, k.If((), ())))))))


def block_group_task(*body: k.Statement) -> k.Kernel:
    return block_group_kernel(LOAD, *body)


BROKEN_BLOCK_GROUPS: list[tuple[Callable[[], k.Kernel], str]] = [
    (lambda: delayed_kernel(delay=5), "5 tasks of delay with 5 buffers"),
    (lambda: delayed_kernel(back=5), "5 tasks of delay with 5 buffers"),
    (lambda: delayed_kernel(back=0), "0 tasks of delay with 5 buffers"),
    (lambda: delayed_kernel(distance=5), "a prefetch distance of 5 with 5 buffers"),
    (lambda: delayed_kernel(first=7), "a prefetch distance of 7 with 5 buffers"),
    (lambda: delayed_kernel(distance=0), "a prefetch of the task itself"),
    (lambda: delayed_kernel(delay=0, buffers=1), "a prefetch distance of 1 with 1 buffers"),
    (
        lambda: block_group_kernel(loop=k.TaskLoop(12, False, (LOAD, STORE), 0, 1)),
        "1 tasks of delay with 0 buffers",
    ),
    (
        lambda: block_group_task(*publish(), meeting(body=()), PUT_TOTAL, BLOCK),
        "a total that no warp gathers",
    ),
    (
        lambda: block_group_task(*publish(), meeting(totals=()), PUT_TOTAL, BLOCK),
        "total is used before it is defined",
    ),
    (
        lambda: block_group_task(*publish(), meeting(blocks=3), PUT_TOTAL, BLOCK),
        "a meeting of 3 blocks",
    ),
    (
        lambda: block_group_task(*publish(), meeting(totals=(replace(TOTAL, slot="places"),)), PUT_TOTAL, BLOCK),
        "total comes through places, which holds no such states",
    ),
    (
        lambda: block_group_task(*publish(), meeting(totals=(replace(TOTAL, slot="none"),)), PUT_TOTAL, BLOCK),
        "total comes through none, which holds no such states",
    ),
    (
        lambda: block_group_task(*publish(), k.If((FIRST_OF_WARP,), (meeting(),)), STORE),
        "a meeting of blocks where not all threads come by",
    ),
    (
        lambda: block_group_task(*publish(), meeting(), PUT_TOTAL),
        "shared met (read) and met (write) meet in one place",
    ),
    (lambda: block_group_task(*publish(), meeting(members=0), PUT_TOTAL, BLOCK), "0 threads collect"),
    (
        lambda: replace(block_group_task(*publish(), meeting(), PUT_TOTAL, BLOCK), tagged_words=11),
        "does not lie in 11 tagged words",
    ),
    (
        lambda: block_group_task(*publish(area=replace(AREA, offset=1)), meeting(), PUT_TOTAL, BLOCK),
        "does not lie in 12 tagged words",
    ),
    (
        lambda: block_group_task(*publish(), meeting(area=replace(AREA, results=4)), PUT_TOTAL, BLOCK),
        "does not lie in 12 tagged words",
    ),
    (
        lambda: block_group_task(*publish(area=replace(AREA, parts=2, words=2)), meeting(), PUT_TOTAL, BLOCK),
        "does not lie in 12 tagged words",
    ),
    (
        lambda: replace(
            block_group_task(*publish(area=replace(AREA, offset=1, words=2)), meeting(), PUT_TOTAL, BLOCK),
            reducers=(sum_reducer("f64"),), tagged_words=30,
        ),
        "does not lie in whole pairs of tagged words",
    ),
    (
        lambda: block_group_task(*publish(state="other"), meeting(), PUT_TOTAL, BLOCK),
        "other is used before it is defined",
    ),
    (
        lambda: block_group_task(*publish(part=of_symbol(Symbol("nowhere", 4))), meeting(), PUT_TOTAL, BLOCK),
        "nowhere is used before it is defined",
    ),
    (lambda: block_group_task(k.Barrier("team", "why"), STORE), "a team barrier inside a section: why"),
    (lambda: block_group_task(k.Switch(()), STORE), "a choice of nothing"),
    (
        lambda: block_group_task(k.Switch((k.If((FIRST_OF_WARP,), (BLOCK,)), k.If((), ()))), STORE),
        "a barrier where not all threads come by: why",
    ),
    (
        lambda: kernel(
            section(task_loop(k.Switch((k.If((GUARD,), (LOAD,)), k.If((), (LOAD,)))), STORE))
        ),
        "value is used before it is defined",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("broken", "sentence"),
    BROKEN_BLOCK_GROUPS,
    ids=[f"{i} {s}" for i, (_, s) in enumerate(BROKEN_BLOCK_GROUPS)],
)
def test_a_broken_block_group_is_refused(broken: Callable[[], k.Kernel], sentence: str) -> None:
    with pytest.raises(IllegalProduct) as caught:
        check_kernel(broken())
    assert sentence in str(caught.value)


# ---- kernels of the planner


def replace_statements(body: Body, change: Callable[[k.Statement], Body]) -> Body:
    """The body with every statement put through `change`, innermost first."""
    found: list[k.Statement] = []
    for statement in body:
        if isinstance(statement, k.Section | k.TaskLoop | k.Loop | k.If | k.Prefetch):
            statement = replace(statement, body=replace_statements(statement.body, change))
        found += change(statement)
    return tuple(found)


def drop(kind: type[k.Statement]) -> Callable[[k.Statement], Body]:
    return lambda s: () if isinstance(s, kind) else (s,)


def in_a_guard(kind: type[k.Statement]) -> Callable[[k.Statement], Body]:
    return lambda s: (k.If((GUARD,), (s,)),) if isinstance(s, kind) else (s,)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (drop(k.Barrier), "no (global|block) barrier lies between"),
        (drop(k.States), "is used before it is defined"),
        (drop(k.Index), "is used before it is defined"),
        (drop(k.Load), "is used before it is defined"),
        (drop(k.Fetch), "declared as read and never is"),
        (drop(k.TakeVector), "is used before it is defined"),
        (drop(k.PrefetchRegisters), "is used before it is defined"),
        (drop(k.StoreVector), "is stored by 0 statements"),
        (in_a_guard(k.ReduceAcross), "is reduced across threads where not all of them come by"),
        (in_a_guard(k.TaskLoop), "a task loop where not all threads come by"),
    ],
)
def test_a_planned_kernel_without_a_kind_of_statement(
    change: Callable[[k.Statement], Body], sentence: str
) -> None:
    broken = replace(KERNEL, body=replace_statements(KERNEL.body, change))
    if "barrier lies" in sentence:
        broken = replace(broken, global_barriers=0)
    with pytest.raises(IllegalProduct, match=sentence):
        check_kernel(broken)
