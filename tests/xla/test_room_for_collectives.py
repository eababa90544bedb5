"""A model of places on several devices: kernels whose blocks meet, beside collectives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from astitch.device.gpu import PRESETS, preset
from astitch.graph.collectives import find_awaited
from astitch.graph.ir import ArrayType, DType, Graph, Node, OpaqueAttrs, ParameterAttrs
from astitch.hlo_import import import_from_compiler, serialize_module
from astitch.show.share import NOT_ASKED
from astitch.xla.hook import read_module
from astitch.xla.room_for_collectives import COLLECTIVE_BLOCKS, leave_room

MEETING, COLLECTIVE = "meeting", "collective"


@dataclass(frozen=True)
class Work:
    """A kernel on a stream.  after: how many kernels of the other stream must have ended before it starts."""

    kind: str
    blocks: int
    after: int = 0


@dataclass(frozen=True)
class Device:
    """placed: the blocks of the kernel at the head of each stream that hold a place.  ended: kernels of each stream."""

    placed: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    ended: tuple[int, int] = (0, 0)


State = tuple[Device, ...]


class Machine:
    """Devices that all run the same two streams: stream 0 has kernels that meet, stream 1 collectives."""

    def __init__(self, places: int, devices: int, streams: tuple[list[Work], list[Work]]) -> None:
        self.places, self.devices, self.streams = places, devices, streams

    def start(self) -> State:
        return (Device(),) * self.devices

    def is_done(self, state: State) -> bool:
        return all(d.ended == (len(self.streams[0]), len(self.streams[1])) for d in state)

    def moves(self, state: State) -> Iterator[State]:
        """What may happen next: a block takes a free place, or a kernel's blocks end."""
        for number, device in enumerate(state):
            for stream in (0, 1):
                if device.ended[stream] == len(self.streams[stream]):
                    continue
                work = self.streams[stream][device.ended[stream]]
                if device.ended[1 - stream] < work.after:
                    continue
                used = sum(map(len, device.placed))
                if used < self.places:
                    for block in range(work.blocks):
                        if block not in device.placed[stream]:
                            taken = device.placed[stream] | {block}
                            yield self._change(state, number, stream, taken, device.ended[stream])
                            if work.kind == MEETING:
                                break  # its blocks are alike
                if len(device.placed[stream]) == work.blocks and self._may_end(state, stream, work):
                    yield self._change(state, number, stream, frozenset(), device.ended[stream] + 1)

    def _may_end(self, state: State, stream: int, work: Work) -> bool:
        """A collective ends when each device has come to it with all its blocks, or is past it."""
        if work.kind == MEETING:
            return True
        turn = max(d.ended[stream] for d in state)
        least = min(d.ended[stream] for d in state)
        return all(
            d.ended[stream] > least or len(d.placed[stream]) == work.blocks
            for d in state
            if turn - least <= 1
        )

    @staticmethod
    def _change(
        state: State, number: int, stream: int, placed: frozenset[int], ended: int
    ) -> State:
        device = state[number]
        both, ends = list(device.placed), list(device.ended)
        both[stream], ends[stream] = placed, ended
        changed = replace(device, placed=(both[0], both[1]), ended=(ends[0], ends[1]))
        return (*state[:number], changed, *state[number + 1 :])


def may_stop(machine: Machine) -> bool:
    """Does any schedule stop before all is done?"""
    seen, pending = set[State](), [machine.start()]
    while pending:
        state = pending.pop()
        if state in seen:
            continue
        seen.add(state)
        following = list(machine.moves(state))
        if not following and not machine.is_done(state):
            return True
        pending += following
    return False


def stops_at_random(machine: Machine, rng: random.Random) -> bool:
    state = machine.start()
    while not machine.is_done(state):
        following = list(machine.moves(state))
        if not following:
            return True
        state = rng.choice(following)
    return False


SMALL = [
    (places, meeting, channels)
    for places in (2, 3, 4)
    for meeting in range(1, places + 1)
    for channels in (1, 2)
    if channels <= places
]


@pytest.mark.parametrize(("places", "meeting", "channels"), SMALL)
def test_every_schedule_of_a_small_machine(places: int, meeting: int, channels: int) -> None:
    """One kernel of each kind, which need not wait for each other, on two devices."""
    machine = Machine(places, 2, ([Work(MEETING, meeting)], [Work(COLLECTIVE, channels)]))
    # One block of a collective is placed or not; it takes two to be there in part.
    in_part = channels - 1
    stops = in_part > 0 and meeting > 1 and meeting > places - in_part
    assert may_stop(machine) == stops
    if meeting <= places - channels:
        assert not stops


@pytest.mark.parametrize("seed", range(200))
def test_random_schedules_with_room_end(seed: int) -> None:
    rng = random.Random(seed)
    places, channels = rng.randint(4, 12), rng.randint(1, 3)
    kernels = [
        Work(MEETING, rng.randint(1, places - channels), rng.randint(0, i))
        for i in range(rng.randint(1, 4))
    ]
    most = len(kernels)
    collectives = [
        Work(COLLECTIVE, rng.randint(1, channels), min(i, most) if rng.random() < 0.5 else 0)
        for i in range(most)
    ]
    kernels = [replace(k, after=min(k.after, i)) for i, k in enumerate(kernels)]
    collectives = [replace(c, after=min(c.after, i)) for i, c in enumerate(collectives)]
    machine = Machine(places, rng.randint(2, 4), (kernels, collectives))
    assert not stops_at_random(machine, rng)


def test_random_schedules_without_room_stop() -> None:
    machine = Machine(6, 2, ([Work(MEETING, 6)], [Work(COLLECTIVE, 2)]))
    assert any(stops_at_random(machine, random.Random(seed)) for seed in range(50))


def _graph(op: str) -> Graph:
    array = ArrayType(DType.F32, (4,))
    nodes = {
        "x": Node("x", "parameter", array, attrs=ParameterAttrs(0)),
        "y": Node("y", "opaque", array, ("x",), OpaqueAttrs(op, "", b"")),
    }
    return Graph("g", nodes, ("x",), ("y",))


@pytest.mark.parametrize("name", [n for n in PRESETS if n != "host"])
def test_a_program_that_communicates_leaves_room(name: str) -> None:
    gpu = preset(name)
    assert leave_room(gpu, _graph("partition-id")) is gpu
    planned = leave_room(gpu, _graph("all-reduce"))
    assert planned.sms + COLLECTIVE_BLOCKS == gpu.sms


LOOP = """HloModule loop
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
body {
  state = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  v = f32[4] get-tuple-element(state), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  sum = f32[4] all-reduce(v), replica_groups={{0,1}}, channel_id=1, use_global_device_ids=true, to_apply=add
  ROOT t = (s32[], f32[4]) tuple(next, sum)
}
condition {
  state = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  end = s32[] constant(5)
  ROOT less = pred[] compare(i, end), direction=LT
}
ENTRY main {
  x = f32[4] parameter(0)
  y = f32[4] exponential(x)
  zero = s32[] constant(0)
  start = (s32[], f32[4]) tuple(zero, y)
  loop = (s32[], f32[4]) while(start), body=body, condition=condition
  ROOT result = f32[4] get-tuple-element(loop), index=1
}"""


@pytest.mark.parametrize("kept", [False, True])
def test_a_loop_that_communicates_leaves_room_also_where_it_stays_as_it_is(kept: bool) -> None:
    module = read_module(serialize_module(LOOP))
    loops = [
        (c.id, i.id) for c in module.computations for i in c.instructions if i.opcode == b"while"
    ]
    graph = import_from_compiler(module, dict.fromkeys(loops, NOT_ASKED) if kept else {})
    gpu = preset("h100")
    assert leave_room(gpu, graph).sms == gpu.sms - COLLECTIVE_BLOCKS
    exponential = next(node.name for node in graph if node.op == "exponential")
    assert find_awaited(graph)[exponential]
