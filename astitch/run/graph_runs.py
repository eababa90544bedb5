"""Runs of a program's steps: launched one by one, or as one CUDA graph where their addresses are those of an earlier
call.

Takes prepared steps and the buffers that they use, hands on runs, and replays them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from astitch import options
from astitch.errors import OutOfMemory
from astitch.program.steps import Program
from astitch.run.cuda_graph import CapturedRun, GraphCache, GraphCounts, Key, capture, split_runs
from astitch.run.device_memory import DeviceMemory, is_shortage
from astitch.run.gpu_call import Call, Launch, PreparedStep
from astitch.run.program_binding import name_step, views_of
from astitch.system.callbacks import pass_interrupt


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive steps.  read: the addresses of its steps that calls change.  graphs: None where they
    cannot be a graph."""

    launches: tuple[Launch, ...]
    read: Callable[[Mapping[str, int]], Key]
    graphs: GraphCache | None


def make_runs(
    program: Program,
    steps: Sequence[PreparedStep],
    still: Collection[str],
    read_besides: Mapping[str, Sequence[str]],
    counts: GraphCounts,
) -> list[Run]:
    """The steps in parts that are launched as one graph, or one by one.

    still: the buffers that lie at the same address in each call.  read_besides: by the name of a step, buffers that its
    launch reads and the step itself does not.
    """
    runs = []
    allowed = options.graphs()
    for first, end, able in split_runs([step.can_capture for step in steps]):
        used: dict[str, None] = {}
        for step in program.steps[first:end]:
            used.update(dict.fromkeys(view.buffer for view in views_of(step)))
        for step in program.steps[first:end]:
            used.update(dict.fromkeys(read_besides.get(name_step(step), ())))
        moving = [name for name in used if name not in still]
        read = itemgetter(*moving) if moving else _no_addresses
        name = f"{program.name}, steps {first} to {end - 1}"
        graphs = GraphCache(name, counts) if able and allowed else None
        runs.append(Run(tuple(step.launch for step in steps[first:end]), read, graphs))
    return runs


def _no_addresses(_: Mapping[str, int]) -> Key:
    """The key of a run that works on nothing that calls change."""
    return ()


class GraphReplay:
    """Launches runs as graphs, which it captures on a stream of its own.  Not safe between threads."""

    def __init__(self, cupy: Any, memory: DeviceMemory, counts: GraphCounts) -> None:
        self._memory, self._counts = memory, counts
        self._stream = cupy.cuda.Stream(non_blocking=True)

    def replay(self, run: Run, graphs: GraphCache, call: Call, stream: Any) -> bool:
        """The run as a graph, if there is one for these addresses, or if it is time for one."""
        key = run.read(call.addresses)
        captured = graphs.find(key)
        if captured is None:
            captured = self._capture(run, graphs, key, call, stream) if graphs.is_due(key) else None
        if captured is not None:
            try:
                captured.graph.launch(stream)
            except Exception as error:
                pass_interrupt(error)
                call.in_use.extend(graphs.refuse(error))
            else:
                self._counts.replayed += 1
                call.step += len(run.launches)
                return True
        self._counts.direct += 1
        return False

    def _capture(
        self, run: Run, graphs: GraphCache, key: Key, call: Call, stream: Any
    ) -> CapturedRun | None:
        """A graph of the run for the addresses of this call; None where it cannot be, which is told once."""
        tables: list[Any] = []
        captured_call = replace(call, stream=self._stream.ptr, tables=tables)
        try:
            with self._stream, capture(self._stream) as found:
                for launch in run.launches:
                    with self._memory.working_in_rooms(stream):
                        launch(captured_call)
        except Exception as error:
            pass_interrupt(error)
            if not isinstance(error, OutOfMemory) and not is_shortage(error):
                call.in_use.extend(graphs.refuse(error))
            return None
        for table, pointers in tables:
            self._memory.write(int(table.ptr), pointers, call.stream)
        captured = CapturedRun(found[0], tuple(table for table, _ in tables))
        dropped = graphs.keep(key, captured)
        if dropped is not None:
            call.in_use.append(dropped)
        return captured
