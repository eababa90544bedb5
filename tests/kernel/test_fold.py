"""Equal sections of a long kernel are printed once, and compute what they compute when each is printed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_arguments, random_graphs

from astitch.compile import compile_graph
from astitch.device.gpu import Gpu, preset
from astitch.emit_cuda import emit_cuda
from astitch.graph.index import Symbol, of_symbol
from astitch.graph.ir import DType, Graph, ParameterAttrs
from astitch.hlo_import import import_hlo
from astitch.kernel import fold
from astitch.kernel import kernel_ir as k
from astitch.run.host_engine import HostEngine
from astitch.search.plan import count_statements
from tests.hlo_runner import lower
from tests.small_gpu import few_sms

F32 = DType.F32
Arrays = Sequence[np.ndarray]


@pytest.fixture
def folding(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Folds whatever is equal, or nothing."""

    def set_limits(folds: bool) -> None:
        monkeypatch.setattr(fold, "LONG_KERNEL", 0 if folds else 1 << 30)
        monkeypatch.setattr(fold, "LEAST_SAVED", 0)
        monkeypatch.setattr(fold, "LINES_OF_A_CHOICE", 0)

    return set_limits


def update(w: jax.Array, g: jax.Array, m: jax.Array) -> list[jax.Array]:
    m = 0.9 * m + 0.1 * g.astype(m.dtype)
    return [w - (0.01 * m * jax.lax.rsqrt(m * m + 1e-6)).astype(w.dtype), m]


def updates(*arrays: jax.Array) -> list[jax.Array]:
    """Element-wise, of many tensors."""
    return [x for n in range(0, len(arrays), 3) for x in update(*arrays[n : n + 3])]


def norms(*arrays: jax.Array) -> list[jax.Array]:
    """Each tensor with its own norm, so that blocks meet."""
    found = []
    for x in arrays:
        scale = jax.lax.rsqrt(jnp.square(x).sum() + 1)
        found += [x * scale, jnp.tanh(x).sum(-1)]
    return found


def clipped(*arrays: jax.Array) -> list[jax.Array]:
    """All tensors with the norm of all."""
    scale = jax.lax.rsqrt(sum((jnp.square(x).sum() for x in arrays), jnp.zeros(())) + 1)
    return [x * jnp.minimum(scale, 0.5) for x in arrays]


def updates_if_finite(*arrays: jax.Array) -> list[jax.Array]:
    """Updates by gradients clipped by the norm of all, where these are finite, and the norm of the updates."""
    gradients = arrays[1::3]
    norm = jnp.sqrt(sum((jnp.square(g).sum() for g in gradients), jnp.zeros(())))
    finite = jnp.array([jnp.isfinite(g).all() for g in gradients]).all()
    found, squares = [], jnp.zeros(())
    for w, g, m in zip(arrays[::3], gradients, arrays[2::3], strict=True):
        new, m = update(w, g / jnp.maximum(norm, 1), m)
        step = jnp.where(finite, new - w, 0)
        squares += jnp.square(step).sum()
        found += [w + step, m]
    return [*found, jnp.sqrt(squares)]


def softmaxes(*arrays: jax.Array) -> list[jax.Array]:
    return [jax.nn.softmax(x, -1) for x in arrays]


def columns(*arrays: jax.Array) -> list[jax.Array]:
    return [x.sum(0) for x in arrays]


def meeting(*arrays: jax.Array) -> list[jax.Array]:
    """Rows so long that several blocks meet for each, between tensors of other rows and equal updates."""
    first, second, *others = arrays
    return [
        jax.nn.softmax(first, -1),
        *columns(*others[:3]),
        jax.nn.softmax(second, -1),
        *updates(*others),
    ]


def draw(*shapes: tuple[int, ...], dtype: Any = np.float32) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


EQUAL = [(24, 64)] * 6
SIZES = [(8, 64), (640, 64), (16, 64), (1000,), (24, 64), (3, 7), (1600, 64), (3, 7), (3, 7)]
PROGRAMS: dict[str, tuple[Callable[..., Any], Arrays]] = {
    "equal": (updates, draw(*EQUAL * 3)),
    "sizes": (updates, draw(*[s for shape in SIZES for s in [shape] * 3])),
    "f16": (updates, draw(*[s for shape in SIZES for s in [shape] * 3], dtype=np.float16)),
    "norms": (norms, draw(*[(40, 64)] * 4, *[(8, 64)] * 4)),
    "clipped": (clipped, draw(*SIZES)),
    "softmaxes": (softmaxes, draw(*[(40, 64)] * 3, *[(400, 64)] * 3, (24, 80), (7, 64))),
    "columns": (columns, draw(*[(500, 64)] * 4, *[(30, 64)] * 3)),
    "meeting": (
        meeting,
        draw((2, 30_000), (2, 30_000), *EQUAL * 6, *[s for shape in SIZES for s in [shape] * 3]),
    ),
}
GPUS = {"two SMs": few_sms(2), "forty": few_sms(40)}


def run(
    graph: Graph, gpu: Gpu, arrays: Arrays, check: bool = False
) -> tuple[list[np.ndarray], list[str]]:
    program = compile_graph(graph, gpu).program
    results = HostEngine(program, check=check).run(arrays)
    return list(results), [kernel.source for kernel in program.kernels]


def is_folded(source: str) -> bool:
    return "form ==" in source or "int section =" in source


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        *((name, "two SMs") for name in PROGRAMS),
        *((name, "forty") for name in ("sizes", "clipped", "meeting")),
    ],
)
def test_bits_are_those_of_sections_printed_one_by_one(
    name: str, gpu: str, folding: Callable[[bool], None]
) -> None:
    fn, arrays = PROGRAMS[name]
    graph = import_hlo(lower(fn, *arrays))
    folding(False)
    expected, long = run(graph, GPUS[gpu], arrays)
    folding(True)
    found, short = run(graph, GPUS[gpu], arrays)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not any(map(is_folded, long)) and any(map(is_folded, short))


def test_blocks_without_a_task_stay_out_of_equal_sections() -> None:
    """Behind sections that give each block a task, in which blocks meet."""
    shapes = [shape for shape in [(131_072,), (4096,), (1024,)] * 6 for _ in range(3)]
    arrays = draw(*shapes)
    found, sources = run(
        import_hlo(lower(updates_if_finite, *arrays)), few_sms(4), arrays, check=True
    )
    assert any("int section =" in s and "::publish(" in s for s in sources)
    for one, other in zip(found, updates_if_finite(*arrays), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(random_graphs(max_ops=8), st.integers(0, 99))
def test_copies_of_any_graph_fold(graph: Graph, seed: int) -> None:
    """Three copies of a graph in one kernel."""
    many = repeat(graph, 3)
    arrays = random_arguments(many, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fold, "LEAST_SAVED", 0)
        patch.setattr(fold, "LONG_KERNEL", 1 << 30)
        expected, _ = run(many, few_sms(2), arrays)
        patch.setattr(fold, "LONG_KERNEL", 0)
        found, _ = run(many, few_sms(2), arrays)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)


def repeat(graph: Graph, times: int) -> Graph:
    nodes = {}
    for number in range(times):
        for node in graph:
            name, attrs = f"{node.name}.copy{number}", node.attrs
            if isinstance(attrs, ParameterAttrs):
                attrs = ParameterAttrs(attrs.index + number * len(graph.parameters))
            operands = tuple(f"{operand}.copy{number}" for operand in node.operands)
            nodes[name] = replace(node, name=name, operands=operands, attrs=attrs)
    parameters, outputs = (
        tuple(f"{name}.copy{number}" for number in range(times) for name in names)
        for names in (graph.parameters, graph.outputs)
    )
    return Graph(graph.name, nodes, parameters, outputs)


def test_an_optimizer_has_one_text_for_all_tensors() -> None:
    """Text grows by some lines a tensor, by pointers and the choice of them."""
    sources = []
    for tensors in (20, 40):
        shapes = [
            jax.ShapeDtypeStruct((256, 64 * (1 + n % 3)), jnp.float32) for n in range(tensors)
        ]
        graph = import_hlo(lower(updates, *[s for shape in shapes for s in [shape] * 3]))
        (kernel,) = compile_graph(graph, preset("h100")).program.kernels
        sources.append(kernel.source)
    assert [source.count("hlo_rsqrt") for source in sources] == [1, 1]
    assert len(sources[1]) - len(sources[0]) < 20 * 900


def test_other_ops_have_another_text(folding: Callable[[bool], None]) -> None:
    functions = [jnp.tanh, jnp.exp, jnp.sin] * 3

    def fn(*arrays: jax.Array) -> list[jax.Array]:
        return [function(x) for function, x in zip(functions, arrays, strict=True)]

    arrays = draw(*[(24, 64)] * 9)
    folding(True)
    graph = import_hlo(lower(fn, *arrays))
    found, (source,) = run(graph, few_sms(40), arrays)
    assert source.count("form ==") == 3
    for one, x, function in zip(found, arrays, functions, strict=True):
        np.testing.assert_allclose(one, function(x), rtol=1e-5, atol=1e-6)


# ---- which sections may change places


def section(number: int, slot: str = "") -> k.Section:
    task = of_symbol(Symbol("task", 8))
    store = k.Store(f"p_{number}", task, F32, k.Element(slot or "p_0", task, F32, True))
    return k.Section(number, "loop", 0, 1, 1, 32, (k.TaskLoop(8, True, (store,)),))


def kernel(*body: k.Statement, slots: tuple[k.Slot, ...] = ()) -> k.Kernel:
    parameters = tuple(k.Parameter(f"p_{n}", F32, f"{n}", True, False) for n in range(9))
    return k.Kernel("k", parameters, (), (), slots, body, 8, 32, 0, 0, 0, 0, False, False, 0, 0, ())


def test_a_barrier_of_the_grid_parts_stretches() -> None:
    wait, parted = k.Barrier("global", ""), k.Barrier("block", "")
    body = section(1), parted, section(2), parted, wait, section(3)
    first, *between, last = fold.find_stretches(kernel(*body))
    assert isinstance(first, fold.Stretch) and first.parted
    assert [s.number for s in first.sections] == [1, 2]
    assert between == [parted, wait]
    assert isinstance(last, fold.Stretch) and not last.parted


def test_what_hands_on_shared_memory_stays_in_its_place() -> None:
    kept = k.Slot("kept", F32, None, 32, 4, (1, 0), (3, 1))
    own = k.Slot("own", F32, None, 32, 4, (2, 0), (2, 1))
    body = section(0), section(1, "kept"), section(2, "own"), section(3, "kept"), section(4)
    parts = list(fold.find_stretches(kernel(*body, slots=(kept, own))))
    assert [isinstance(part, fold.Stretch) for part in parts] == [True, False, True, False, True]


def test_a_barrier_parts_what_handed_on_shared_memory_from_sections_that_came_later(
    folding: Callable[[bool], None],
) -> None:
    """Of four sections the later ones, which touch shared memory, may now come first."""
    folding(True)
    kept = k.Slot("kept", F32, None, 32, 4, (1, 0), (9, 1))
    own = [k.Slot(f"own_{n}", F32, None, 32, 4, (n, 0), (n, 1)) for n in (3, 4, 5)]
    wait = k.Barrier("block", "the next task loop takes over the shared memory")
    later = [s for n in (3, 4, 5) for s in (wait, section(n, f"own_{n}"))]
    source = emit_cuda(kernel(section(1, "kept"), section(2), *later, slots=(kept, *own)))
    before, _, after = source.partition("form = -1")
    assert before.index("loop 1:") < before.rindex("__syncthreads();")
    assert after.count("form ==") == 2


def test_other_widths_are_counted_as_they_are_printed() -> None:
    """How long a kernel is says whether it is compiled at all."""
    counts = []
    for step in (0, 2):
        arrays = [np.zeros((64, 65 + step * n), np.float32) for n in range(24)]
        compilation = compile_graph(import_hlo(lower(softmaxes, *arrays)), preset("h100"))
        (plan,) = compilation.plans
        printed = count_statements(plan.kernel.body)
        assert printed >= fold.LONG_KERNEL
        counts.append(fold.count_folded(plan.kernel) / printed)
    equal, different = counts
    assert equal < 0.5 and different > 0.9


def test_sections_in_which_blocks_meet_keep_their_order() -> None:
    fn, arrays = PROGRAMS["meeting"]
    plans = compile_graph(import_hlo(lower(fn, *arrays)), GPUS["forty"]).plans
    (kernel,) = (plan.kernel for plan in plans if plan.kernel.block_groups)
    met = [s.number for s in kernel.body if isinstance(s, k.Section) and fold.meets(s)]
    assert len(met) > 1
    source = emit_cuda(kernel)
    assert is_folded(source)
    titles = re.findall(r"{  // loop (\d+):", source)
    assert [int(n) for n in titles if int(n) in met] == met


def test_few_equal_sections_stay_as_they_are() -> None:
    """Of a short kernel, and of a long one in which they would save little."""
    few = kernel(*map(section, range(1, 9)))
    assert "form" not in emit_cuda(few)
    assert fold.count_folded(few) == 8 * 3
