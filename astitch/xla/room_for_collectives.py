"""Room beside kernels whose blocks wait for each other, so that they and collectives never wait for each other.

A collective's blocks hold their places until the other devices' are there; a meeting kernel's blocks hold theirs until
all of it is resident.  Each alone ends.  Together they could hold what the other needs, on two devices the other way
round.  docs/decisions/0032-room-for-collectives.md has the proof.
"""

from __future__ import annotations

from dataclasses import replace

from astitch.device.gpu import Gpu
from astitch.graph.collectives import COLLECTIVE_BLOCKS, communicates
from astitch.graph.ir import Graph


def leave_room(gpu: Gpu, graph: Graph) -> Gpu:
    """The GPU to plan a program for: without the SMs that collectives may take, where the program communicates."""
    if not any(map(communicates, graph)):
        return gpu
    return replace(gpu, sms=max(gpu.sms - COLLECTIVE_BLOCKS, 1))
