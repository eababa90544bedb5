"""Library calls, tuned by XLA while the kernels around them are planned.

Takes Scopes, has XLA compile their products and convolutions alone, each kind once.  The idea: XLA measures by which
algorithm each runs best, which takes most of its time, and remembers the answers while the process lives.  When XLA
comes to the whole program they are known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from astitch.graph.dimensions import is_embedded
from astitch.graph.ir import ArrayType, ConvolutionAttrs, DotAttrs, Graph, Node, TransposeAttrs
from astitch.graph.ops import OPS, Kind
from astitch.graph.storage import storage_name
from astitch.hlo.export import ModuleBuilder
from astitch.library.xla_fallback import AROUND_KERNELS, compile_module
from astitch.stitch_scope import Scopes
from astitch.system.private_files import temporary_folder
from astitch.toolchain.nvrtc import count_threads

LEAST_CORES = 4
"""Processors from which it pays: XLA works beside the planner and the CUDA compiler."""

TILINGS, TILINGS_OF_MANY, MANY = 4, 2, 16
"""The tilings of a product that XLA measures beside the libraries' algorithms.  It takes those that its cost model puts
first, fewer where a program has more than MANY kinds of products.  Most of a first call went into compiling all that it
has, and these are as fast; but where kinds are used often, as in many layers, each has as many tilings as a kind has
uses in the mean.  That is worth the time."""

WRITES_TO = "xla_gpu_dump_autotune_logs_to"
"""XLA's setting that names a file for its measurements.  XLA writes it before it compiles its choice."""

LOOKS_EVERY_S = 0.005
"""How often it is asked whether that file is there."""


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """A library call with what XLA may do as it reads its operands or writes its result.  It holds the products in
    front of it too, whose layouts XLA chooses.

    nodes: in order, the result last; they go by numbers.  parameters: what they read from elsewhere.
    """

    nodes: tuple[Node, ...]
    parameters: tuple[tuple[str, ArrayType], ...]


def find_library_calls(scopes: Scopes) -> Counter[LibraryCall]:
    """The kinds of library calls, in order, with how often the program has each.

    A product that only products read, in another order, comes with those: XLA chooses a layout for what is between.
    """
    graph, layouts, taken = scopes.graph, find_layouts(scopes), find_taken_in(scopes)
    turned = {
        n.name
        for n in graph
        if isinstance(n.attrs, DotAttrs) and _is_turned(graph, n.name, layouts)
    }
    found = Counter[LibraryCall]()
    for node in graph:
        if OPS[node.op].kind is Kind.COMPUTE and node.name not in turned:
            inside = taken.get(node.name, [node.name])
            found[_isolate(graph, inside[-1], {*inside, *layouts, *turned})] += 1
    return found


def _is_turned(
    graph: Graph, name: str, layouts: Collection[str], *, transposed: bool = False
) -> bool:
    """Do only products read a value, each through layouts that transpose it?  transposed: it was on the way here."""
    if name in graph.outputs or not graph.users[name]:
        return False
    for user in graph.users[name]:
        attrs = graph[user].attrs
        if isinstance(attrs, DotAttrs) and transposed:
            continue
        if not OPS[graph[user].op].is_view and user not in layouts:
            return False
        if not _is_turned(
            graph, user, layouts, transposed=transposed or isinstance(attrs, TransposeAttrs)
        ):
            return False
    return True


def find_taken_in(scopes: Scopes) -> dict[str, list[str]]:
    """Products and convolutions with what XLA computes with each (graph/finished_products.py), in order."""
    found: dict[str, list[str]] = {product: [] for product in scopes.products.values()}
    for node in scopes.graph:
        product = scopes.products.get(node.name, node.name)
        if product in found:
            found[product].append(node.name)
    return found


def find_layouts(scopes: Scopes) -> set[str]:
    """The ops that only lay out operands or results of products.  XLA computes them with the products."""
    graph = scopes.graph
    taken, convolved = set[str](), set[str]()
    others = {storage_name(graph, name) for name in graph.outputs}
    for refusal in scopes.outside:
        node = graph[refusal.producer]
        read = {storage_name(graph, operand) for operand in node.operands}
        if isinstance(node.attrs, DotAttrs):
            taken |= {*read, node.name}
        else:
            others |= read
        if isinstance(node.attrs, ConvolutionAttrs):
            convolved |= read
    for scope in scopes.scopes:
        others |= {storage_name(graph, name) for name in scope.inputs}
    found: set[str] = set()
    for scope in scopes.scopes:
        if all(OPS[graph[name].op].lays_out for name in scope.members):
            read = {storage_name(graph, name) for name in scope.inputs}
            written = {storage_name(graph, name) for name in scope.outputs}
            between = read <= taken or (written <= taken and not written & others)
            if between and not written & convolved:
                found.update(scope.members)
    return found


def _isolate(graph: Graph, result: str, inside: set[str]) -> LibraryCall:
    """What computes a result from what is not inside, through views; calls of one kind are equal."""
    names: dict[str, str] = {}
    nodes: list[Node] = []
    parameters: list[tuple[str, ArrayType]] = []

    def add(node: Node) -> str:
        for name in node.operands:
            operand = graph[name]
            if name in names:
                continue
            if OPS[operand.op].is_view or name in inside or is_embedded(graph, name):
                add(operand)
            else:
                names[name] = f"operand.{len(parameters)}"
                parameters.append((names[name], operand.array))
        names[node.name] = f"value.{len(nodes)}"
        operands = tuple(names[name] for name in node.operands)
        nodes.append(Node(names[node.name], node.op, node.type, operands, node.attrs))
        return names[node.name]

    add(graph[result])
    return LibraryCall(tuple(nodes), tuple(parameters))


def export_library_calls(calls: Iterable[LibraryCall]) -> bytes:
    """The calls as a module of their own.

    Each has parameters of its own, as it mostly has in the program, where kernels that XLA cannot look into make its
    operands.  Where XLA does fuse something else into it there, it measures again.
    """
    builder = ModuleBuilder("library_calls")
    results = []
    for number, call in enumerate(calls):
        for name, type_ in call.parameters:
            builder.add_parameter(f"call.{number}/{name}", type_)
        for node in call.nodes:
            operands = tuple(f"call.{number}/{name}" for name in node.operands)
            builder.add_node(replace(node, name=f"call.{number}/{node.name}", operands=operands))
        results.append(f"call.{number}/{call.nodes[-1].name}")
    return builder.finish(results)


@contextmanager
def tune_in_background(device: Any) -> Iterator[Callable[[Scopes], None]]:
    """Hands on what begins to tune the library calls around scopes; the end of the block waits until all is measured.

    So nothing else is measured on the GPU at that time: one pass of XLA's measures products and what is fused (jaxlib
    0.11).  What XLA makes of its choice then, a second's work of which nothing is wanted, goes on behind the block's
    end.  An error in the block does not wait.  An error of the tuning is not told: the program compiles without it, and
    what XLA refuses it refuses again.  device: JAX's; with None nothing is tuned.  Nor is it where JAX runs in several
    processes: XLA has them share the measurements, and not all of them need compile.
    """
    import jax

    begun: list[Future[Any]] = []
    pool = ThreadPoolExecutor(1, "astitch-tune")

    # XLA may write while the folder goes: that is an error of its own, which is not told.
    with temporary_folder() as folder:
        measured = folder / "measured.pb"

        def begin(scopes: Scopes) -> None:
            if device is None or count_threads() < LEAST_CORES or jax.process_count() > 1:
                return
            # One module: XLA measures several no faster, and each has a second of its own.
            assert not begun, "scopes come once"
            if calls := find_library_calls(scopes):
                begun.append(pool.submit(_tune, calls, device, measured))

        try:
            yield begin
            for job in begun:
                _wait(job, measured)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _tune(calls: Counter[LibraryCall], device: Any, measured: Path) -> None:
    import jax

    settings: dict[str, bool | int | str] = {**AROUND_KERNELS, WRITES_TO: str(measured)}
    module = export_library_calls(calls)
    try:
        compile_module(module, device, settings, tilings=_choose_tilings(calls))
    except jax.errors.JaxRuntimeError:
        # The cost model may have no tiling of a product that only XLA's own kernels compute.
        compile_module(module, device, settings)


def _choose_tilings(calls: Counter[LibraryCall]) -> int:
    """How many tilings of each product XLA shall measure."""
    uses = math.ceil(calls.total() / len(calls))
    return max(uses, TILINGS_OF_MANY if len(calls) > MANY else TILINGS)


def _wait(job: Future[Any], measured: Path) -> None:
    """Waits until a job has written what it measured, or is done."""
    if job.cancel():
        return
    while not measured.exists():
        try:
            job.exception(LOOKS_EVERY_S)
        except NotYet:
            continue
        return
