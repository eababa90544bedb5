"""An XLA whose custom calls run in the emulation, and functions to compile for it.

Each custom call gets its parameters as XLA gives them to a GPU: by `output_indices`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.api import inside_xla
from astitch.compile import compile_graph
from astitch.device.gpu import Gpu, preset
from astitch.graph.ir import CustomCallAttrs, Graph, Node, TupleType
from astitch.graph.reference import eval_node
from astitch.hlo_import import import_hlo
from astitch.kernel import kernel_ir as k
from astitch.kernel.in_place import InPlace
from astitch.run.emulate import Order, compile_host
from astitch.run.host_engine import allocate_aligned
from astitch.show.compilation import Compilation
from astitch.xla.prepare_kernels import KernelRefusal, XlaKernel, emit_for_xla
from astitch.xla.slices import SliceWrite
from astitch.xla.stitched_call import Stitched, find_stitched
from astitch.xla.write_module import TARGET
from tests.hlo_runner import lower
from tests.small_gpu import few_sms
from tests.tile_calls import is_tile_call, run_tile_call

jit_module = importlib.import_module("astitch.jit")  # the attribute of the package is the function
RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def layer_norm(x, gain, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * gain + bias


def layer_norm_gradients(x, gain, bias):
    return jax.grad(lambda *a: jnp.square(layer_norm(*a)).sum(), argnums=(0, 1, 2))(x, gain, bias)


def batch_norm(x, gain, bias):
    axes = tuple(range(x.ndim - 1))
    mean, variance = x.mean(axes), x.var(axes)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * gain + bias, mean, variance


def two_batch_norms(x, gain, bias):
    """The second one's statistics wait for a product, so there are two kernels whose blocks meet."""
    y, _, _ = batch_norm(x, gain, bias)
    return batch_norm(jax.nn.relu(y) @ jnp.eye(x.shape[-1]), gain, bias)


def attention(x, w):
    batch, length, width = x.shape
    q, k, v = jnp.split((x @ w).reshape(batch, length, 3, 2, width // 2).swapaxes(1, 3), 3, axis=2)
    scores = jnp.einsum("bhcqd,bhckd->bhcqk", q, k)
    mixed = jax.nn.softmax(scores / 4) @ v
    return mixed.reshape(batch, length, width) + x


def convolve(x, w):
    y = jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jax.nn.relu(y).mean((1, 2))


def sort_and_scatter(x, indices):
    order = jnp.sort(jnp.tanh(x))
    return order * 2, jnp.zeros(10).at[indices].add(x), jax.lax.top_k(x + 1, 3)


def loop(x):
    def turn(state):
        count, x = state
        return count + 1, jnp.tanh(x @ x) * 0.5

    return jax.lax.while_loop(lambda s: (s[0] < 4) & (s[1].sum() < 1e9), turn, (0, x))


def pass_through(x, y):
    """Outputs that are parameters, constants, the same value twice, or a view of another."""
    z = jnp.exp(y)
    return x, z, jnp.arange(3), z.reshape(-1), z, jnp.float32(2)


ROWS = normal(64, 48), normal(48), normal(48)
COLUMNS = (
    normal(2048, 256),
    normal(256),
    normal(256),
)  # statistics of columns that several blocks share
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "layer_norm": (layer_norm, ROWS),
    "layer_norm_gradients": (layer_norm_gradients, ROWS),
    "batch_norm": (batch_norm, COLUMNS),
    "two_batch_norms": (two_batch_norms, COLUMNS),
    "long_rows": (jax.nn.softmax, (normal(2, 100_000),)),
    "attention": (attention, (normal(2, 6, 16), normal(16, 48))),
    "convolve": (convolve, (normal(2, 6, 6, 3), normal(3, 3, 3, 4))),
    "sort_and_scatter": (sort_and_scatter, (normal(40), RNG.integers(0, 10, 40))),
    "loop": (loop, (normal(8, 8),)),
    "pass_through": (pass_through, (normal(3), normal(4, 5))),
    "empty": (lambda x, y: (x.sum(), y + 1), (normal(0, 4), normal(3))),
}
MEETING = {"batch_norm", "two_batch_norms", "long_rows", "layer_norm_gradients"}


def compile_case(name: str, gpu: Gpu | None = None) -> Compilation:
    fn, arguments = CASES[name]
    hlo = lower(fn, *arguments, keep_unused=True)
    return compile_graph(import_hlo(hlo), few_sms(4) if gpu is None else gpu)


def as_text(compilation: Compilation) -> dict[str, XlaKernel | KernelRefusal]:
    """The kernels with CUDA text for the emulation where XLA would find their code."""
    return {kernel.name: with_text(kernel) for kernel in planned_kernels(compilation)}


def planned_kernels(compilation: Compilation) -> list[k.Kernel]:
    """The kernels as planned, in the order of the program's."""
    planned = {plan.kernel.name: plan.kernel for plan in compilation.plans}
    return [planned[kernel.name] for kernel in compilation.program.kernels]


def with_text(
    kernel: k.Kernel, pairs: Sequence[InPlace] = (), slices: Sequence[SliceWrite] = ()
) -> XlaKernel:
    shape = kernel.grid, kernel.block, kernel.shared_bytes, kernel.cooperative
    inside = {cut.written for cut in slices}
    pairs = tuple(pair for pair in pairs if pair.written not in inside)
    text = emit_for_xla(kernel, pairs, slices).encode()
    return XlaKernel(kernel.name, kernel.name, text, *shape, pairs, tuple(slices))


def run_module(
    hlo: bytes, arguments: Sequence[np.ndarray], check: bool = False
) -> list[np.ndarray]:
    """What the module computes.  check: every access of a kernel is watched."""
    return run_graph(import_hlo(hlo), arguments, check=check)


def run_graph(
    graph: Graph,
    arguments: Sequence[np.ndarray],
    order: Order = Order.FORWARD,
    check: bool = False,
) -> list[np.ndarray]:
    """The same for the module's entry, the body of a loop or a branch.

    order: in which ready threads run.  check: every access of a kernel is watched.
    """
    values: dict[str, Sequence[np.ndarray]] = {}
    for name, argument in zip(graph.parameters, arguments, strict=True):
        values[name] = [np.asarray(argument, graph[name].array.dtype.numpy)]
    for node in graph:
        if node.op == "parameter":
            continue
        operands = [values[o] for o in node.operands]
        if node.op == "get-tuple-element":
            values[node.name] = [operands[0][node.attrs.index]]  # type: ignore[union-attr]
        elif is_kernel(node):
            values[node.name] = launch(node, [o for (o,) in operands], order, check)
        elif is_tile_call(node):
            values[node.name] = run_tile_call(node, [o for (o,) in operands])
        elif node.op == "while":
            state = [o for (o,) in operands]
            while run_graph(node.regions[0], state, order, check)[0]:
                state = run_graph(node.regions[1], state, order, check)
            values[node.name] = state
        elif node.op == "conditional":
            selector, *given = [o for (o,) in operands]
            last = len(node.regions) - 1
            chosen = int(not selector) if selector.dtype == bool else min(int(selector), last)
            counts = node.attrs.operand_counts  # type: ignore[union-attr]
            before = sum(counts[:chosen])
            branch = given[before : before + counts[chosen]]
            values[node.name] = run_graph(node.regions[chosen], branch, order, check)
        else:
            values[node.name] = eval_node(node, [o for (o,) in operands])
    return [values[o][0] for o in graph.outputs]


def is_kernel(node: Node) -> bool:
    return isinstance(node.attrs, CustomCallAttrs) and node.attrs.target == TARGET


def launch(
    node: Node,
    operands: Sequence[np.ndarray],
    order: Order = Order.FORWARD,
    check: bool = False,
) -> list[np.ndarray]:
    """The results of a custom call: new arrays full of rubbish, at the numbers that its configuration names."""
    assert isinstance(node.attrs, CustomCallAttrs)
    types = node.type.elements if isinstance(node.type, TupleType) else [node.type]
    results = [place(np.full(t.shape, 77, t.dtype.numpy)) for t in types]
    operands = [place(operand) for operand in operands]
    for result, operand in node.attrs.aliases:
        results[result] = operands[operand]
    config = parse_config(node.attrs.backend_config)
    numbers = config["output_indices"]
    assert numbers == sorted(numbers) and len(numbers) == len(results)
    rest, made = iter(operands), iter(results)
    passed = [
        next(made) if number in numbers else next(rest)
        for number in range(len(operands) + len(results))
    ]
    module = compile_host(config["kernel_data"], check=check)
    cooperative = f"{config['name']}_words" in config["kernel_data"]
    shape = config["grid_x"], config["block_x"]
    module.launch(
        config["name"],
        *shape,
        passed,
        shared_bytes=config["shared_mem_bytes"],
        cooperative=cooperative,
        order=order,
    )
    return results


def place(array: np.ndarray) -> np.ndarray:
    """A row-major copy where 16-byte accesses are legal."""
    room = allocate_aligned(array.nbytes).view(array.dtype).reshape(array.shape)
    room[...] = array
    return room


def parse_config(text: bytes) -> dict[str, Any]:
    """The dictionary, read by MLIR."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    def read(attribute: Any) -> Any:
        if isinstance(attribute, ir.ArrayAttr):
            return [read(a) for a in attribute]
        return attribute.value

    with mlir.make_ir_context():
        parsed = ir.DictAttr(ir.Attribute.parse(text.decode()))
        return {entry.name: read(entry.attr) for entry in parsed}


def config_of(node: Node) -> dict[str, Any]:
    assert isinstance(node.attrs, CustomCallAttrs)
    return parse_config(node.attrs.backend_config)


def kernels_of(graph: Graph) -> list[Node]:
    """The custom calls of a graph and of its regions."""
    found = [node for node in graph if is_kernel(node)]
    for node in graph:
        for region in node.regions:
            found += kernels_of(region)
    return found


H100 = preset("h100")
WIDE = normal(4096, 512), normal(512), normal(512)


def compile_meeting() -> Compilation:
    """A program for an H100 whose one kernel's blocks meet."""
    hlo = lower(batch_norm, *WIDE)
    compilation = compile_graph(import_hlo(hlo), H100)
    (kernel,) = compilation.program.kernels
    assert kernel.cooperative and kernel.grid >= H100.sms
    return compilation


@pytest.fixture
def _as_if_there_was_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """astitch.jit takes the engine xla and plans for an H100; JAX runs the function on its CPU all the same."""
    monkeypatch.setattr(jit_module, "choose_engine", lambda asked=None: "xla")
    monkeypatch.setattr(inside_xla, "target_gpu", lambda: H100)


def lower_for_cuda(fn: Any, *arguments: Any) -> tuple[Stitched, str]:
    """What astitch.jit traced, and JAX's module for CUDA."""
    traced = fn._stitched_jit.trace(*arguments)
    stitched = find_stitched(traced.jaxpr)
    assert stitched is not None
    return stitched, traced.lower(lowering_platforms=("cuda",)).as_text()
