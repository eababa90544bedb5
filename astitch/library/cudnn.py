"""Convolutions through cuDNN, which nvidia-cudnn-frontend binds, by the plan that is the fastest on this GPU.

Takes a Problem, hands on a Convolution that launches it.  cuDNN's heuristics name plans; the first call times some of
them on its own arrays.  The winner is kept on disk, so that later processes neither measure nor get other bits.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from astitch import options
from astitch.device.cuda_driver import StreamAddress
from astitch.errors import first_line
from astitch.graph.convolution import CanonicalConvolution, ConvolutionTypes, Form, Tensor
from astitch.library.algorithm_choice import (
    CANDIDATES,
    LIMIT_BYTES,
    SUFFIX,
    ChoiceCache,
    TimeLaunch,
    choose_fastest,
    hash_problem,
    load_bindings,
)
from astitch.program.arena import align

log = logging.getLogger("astitch")

WORKSPACE_BYTES = 256 << 20
"""The workspace that a plan may use; it holds cuDNN's own transposed copies."""

ALIGNMENT_BYTES = 256
"""The alignment of the parts of the workspace."""

FORMAT = "astitch convolution 2"


class NoCudnnPlan(Exception):
    """cuDNN has nothing for a convolution of this form, these types and sizes."""


@dataclass(frozen=True, slots=True)
class Problem:
    """All that decides how fast a plan is.  device: name of the GPU."""

    convolution: CanonicalConvolution
    types: ConvolutionTypes
    device: str


class ConvolutionCache(ChoiceCache):
    """Plans that won, by convolution."""

    form = FORMAT
    lost = "the next process measures its convolutions anew"


@functools.cache
def open_cache() -> ConvolutionCache:
    """The cache at its place on disk."""
    return ConvolutionCache(options.cache_dir() / "convolutions", LIMIT_BYTES, SUFFIX)


@functools.cache
def find_bindings(device: int) -> Bindings | None:
    """cuDNN for the current device, which has this number; None where its front end is not installed, or does not
    work, which a RuntimeWarning tells."""
    return load_bindings(
        _load_bindings, "cudnn", "nvidia-cudnn-frontend", "cuDNN", instead="XLA convolves"
    )


def _load_bindings() -> Bindings:
    frontend = importlib.import_module("cudnn")
    return Bindings(frontend, frontend.create_handle())


class Bindings:
    """cuDNN with a handle of its own.  frontend: the module `cudnn`."""

    def __init__(self, frontend: Any, handle: Any) -> None:
        self.frontend, self.handle = frontend, handle
        self.version = int(frontend.backend_version())
        # cuDNN says that it cannot, or that something is missing, in one of these.
        self.errors = frontend.cudnnGraphNotSupportedError, RuntimeError, ValueError
        self._lock = threading.Lock()

    def make_graph(self, problem: Problem) -> Any:
        """The convolution with its plans, the best by the heuristics first, of which none is built."""
        frontend, conv, types = self.frontend, problem.convolution, problem.types
        io = getattr(frontend.data_type, types.tensor)
        compute = getattr(frontend.data_type, types.compute)
        graph = frontend.pygraph(
            io_data_type=io,
            intermediate_data_type=compute,
            compute_data_type=compute,
            handle=self.handle,
        )
        *operands, result = conv.tensors
        left, right = (
            graph.tensor(dim=list(t.shape), stride=list(t.strides), data_type=io).set_uid(uid)
            for uid, t in enumerate(operands, 1)
        )
        given = {
            "pre_padding": list(conv.pre_padding),
            "post_padding": list(conv.post_padding),
            "stride": list(conv.stride),
            "dilation": list(conv.dilation),
        }
        if conv.mirrored:
            given["convolution_mode"] = frontend._compiled_module.convolution_mode.CONVOLUTION
        names = {
            Form.FORWARD: ("image", "weight"),
            Form.INPUT_GRADIENT: ("loss", "filter"),
            Form.FILTER_GRADIENT: ("image", "loss"),
        }[conv.form]
        computed = getattr(graph, conv.form.value)(**{names[0]: left, names[1]: right}, **given)
        computed.set_output(True).set_data_type(io).set_uid(3)
        computed.set_dim(list(result.shape)).set_stride(list(result.strides))
        graph.validate()
        graph.build_operation_graph()
        modes = frontend.heur_mode
        graph.create_execution_plans([modes.A, modes.FALLBACK])
        notes = frontend.numerical_note
        # Equal calls give equal bits, and numbers keep the precision that they come in.
        refused = [
            notes.NONDETERMINISTIC,
            notes.DOWN_CONVERT_INPUTS,
            notes.REDUCED_PRECISION_REDUCTION,
        ]
        graph.deselect_numeric_notes([*refused, *([notes.TENSOR_CORE] if types.exact else [])])
        return graph

    def execute(self, plan: Plan, addresses: Sequence[int], workspace: int, stream: int) -> None:
        """Enqueue a plan.  addresses: of left operand, right operand and result."""
        with self._lock:  # the handle has one stream at a time
            self.frontend.set_stream(self.handle, stream)
            plan.graph.execute_plan_at_index(
                dict(enumerate(addresses, 1)), workspace, plan.index, self.handle
            )


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that is built.  index: in its graph.  name: engine and settings, the same in each process."""

    graph: Any
    index: int
    name: str
    workspace_bytes: int


class Copy(Protocol):
    """Copies a tensor between where it lies and its packed copy."""

    def __call__(self, tensor: Tensor, lies: int, packed: int, back: bool, stream: int) -> None:
        """lies, packed: addresses.  back: from the copy."""


class Convolution:
    """One convolution.  Raises NoCudnnPlan.

    time_launch: asked in the first call.  copy: for tensors that cuDNN does not take where they lie.
    """

    def __init__(
        self,
        bindings: Bindings,
        problem: Problem,
        copy: Copy,
        time_launch: TimeLaunch,
        cache: ChoiceCache | None = None,
    ) -> None:
        self._bindings, self._problem = bindings, problem
        self._copy, self._time_launch = copy, time_launch
        self._cache = open_cache() if cache is None else cache
        self._key = key_of_convolution(problem, bindings.version)
        self._tensors = problem.convolution.tensors
        self._offsets: list[int | None] = []  # of copies in the workspace
        end = 0
        width = _BYTES[problem.types.tensor]
        for tensor in self._tensors:
            self._offsets.append(end if tensor.copied else None)
            end += align(tensor.size * width) if tensor.copied else 0
        self._copies_bytes = end
        self._candidates = self._load() or self._ask()
        self._chosen = self._candidates[0] if len(self._candidates) == 1 else None

    @property
    def workspace_bytes(self) -> int:
        """What a launch needs now; less after the first."""
        plans = self._candidates if self._chosen is None else [self._chosen]
        return self._copies_bytes + max(plan.workspace_bytes for plan in plans)

    def launch(self, addresses: Sequence[int], workspace: int, stream: int) -> None:
        """Enqueue the convolution; the first call chooses the plan, and waits.

        addresses: of left operand, right operand and result.  Raises NoCudnnPlan in the first call if no candidate
        runs.
        """
        if self._chosen is None:
            self._chosen = self._choose(addresses, workspace, stream)
            self._candidates = [self._chosen]
        self._launch(self._chosen, addresses, workspace, stream)

    def _launch(self, plan: Plan, addresses: Sequence[int], workspace: int, stream: int) -> None:
        places = [
            address if offset is None else workspace + offset
            for address, offset in zip(addresses, self._offsets, strict=True)
        ]
        moves = list(zip(self._tensors, addresses, places, strict=True))
        for tensor, lies, packed in moves[:2]:
            if tensor.copied:
                self._copy(tensor, lies, packed, False, stream)
        self._bindings.execute(plan, places, workspace + self._copies_bytes, stream)
        tensor, lies, packed = moves[2]
        if tensor.copied:
            self._copy(tensor, lies, packed, True, stream)

    def _make_graph(self) -> tuple[Any, list[str]]:
        """The convolution, and the names of its plans."""
        try:
            graph = self._bindings.make_graph(self._problem)
            count = graph.get_execution_plan_count()
            return graph, [graph.get_plan_name_at_index(i) for i in range(count)]
        except self._bindings.errors as error:
            raise NoCudnnPlan(first_line(error)) from None

    def _build(self, graph: Any, index: int, name: str) -> Plan | None:
        """The plan, None where cuDNN does not build it or it needs too much room."""
        try:
            graph.build_plan_at_index(index)
            size = int(graph.get_workspace_size_plan_at_index(index))
        except self._bindings.errors:  # deselected, or the heuristics do not know everything
            return None
        return Plan(graph, index, name, size) if size <= WORKSPACE_BYTES else None

    def _ask(self) -> list[Plan]:
        """The heuristics' candidates, the best first."""
        graph, names = self._make_graph()
        found: list[Plan] = []
        for name in dict.fromkeys(names):  # some are named by both heuristics
            plan = self._build(graph, names.index(name), name)
            if plan is not None:
                found.append(plan)
            if len(found) == CANDIDATES:
                break
        if not found:
            raise NoCudnnPlan(f"none of cuDNN's {len(names)} plans can be built")
        return found

    def _load(self) -> list[Plan]:
        """The plan that won in an earlier process, if cuDNN still names it."""
        choice = self._cache.load_choice(self._key)
        return self._find(choice["plan"]) if "plan" in choice else []

    def _find(self, name: str) -> list[Plan]:
        graph, names = self._make_graph()
        plan = self._build(graph, names.index(name), name) if name in names else None
        return [] if plan is None else [plan]

    def _choose(self, addresses: Sequence[int], workspace: int, stream: int) -> Plan:
        """The plan that is kept by now, or the fastest, which is kept then."""
        room = self.workspace_bytes - self._copies_bytes
        kept = [plan for plan in self._load() if plan.workspace_bytes <= room]
        if kept:
            return kept[0]
        launches = [
            functools.partial(self._launch, plan, addresses, workspace) for plan in self._candidates
        ]
        # CuPy's errors are RuntimeErrors, which are among cuDNN's.
        fastest = choose_fastest(launches, stream, self._time_launch, self._bindings.errors)
        if fastest is None:
            raise NoCudnnPlan("none of those that cuDNN names runs")
        chosen = self._candidates[fastest.number]
        self._cache.store_choice(self._key, {"plan": chosen.name, **fastest.measured})
        # Alone in its graph: what the others hold on the GPU goes.
        return (self._find(chosen.name) or [chosen])[0]


_BYTES = {"HALF": 2, "BFLOAT16": 2, "FLOAT": 4, "DOUBLE": 8}


def find_convolution(
    cupy: Any,
    device: int,
    problem: Problem,
    time_launch: TimeLaunch,
) -> Convolution | None:
    """The convolution on the current device, which has this number; None without the bindings or a plan."""
    bindings = find_bindings(device)
    if bindings is None:
        return None
    try:
        copy = functools.partial(_copy_tensor, cupy, _BYTES[problem.types.tensor])
        return Convolution(bindings, problem, copy, time_launch)
    except NoCudnnPlan as error:
        log.info("cuDNN has no plan, so XLA convolves: %s: %s", problem.convolution, error)
        return None


def _copy_tensor(
    cupy: Any, width: int, tensor: Tensor, lies: int, packed: int, back: bool, stream: int
) -> None:
    """A Copy by CuPy.  width: bytes of an element."""
    assert tensor.copied is not None
    extents, strides = zip(*tensor.copied, strict=True)
    word = np.dtype(f"u{width}")

    def view(address: int, steps: Sequence[int] | None) -> Any:
        memory = cupy.cuda.UnownedMemory(address, tensor.size * width, None)
        return cupy.ndarray(extents, word, cupy.cuda.MemoryPointer(memory, 0), strides=steps)

    array, copy = view(lies, [n * width for n in strides]), view(packed, None)
    to, source = (array, copy) if back else (copy, array)
    with cupy.cuda.Stream.from_external(StreamAddress(stream)):
        to[...] = source


def key_of_convolution(problem: Problem, version: int) -> str:
    """Hash of the problem and of cuDNN's version, whose plans have names of its own."""
    conv = problem.convolution
    fields = {
        "convolution": {**dataclasses.asdict(conv), "form": conv.form.value},
        "types": dataclasses.asdict(problem.types),
        "device": problem.device,
        "version": version,
        "format": FORMAT,
    }
    return hash_problem(fields)
