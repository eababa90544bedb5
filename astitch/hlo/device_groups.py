"""The groups of devices within which a collective exchanges data, in whatever form its instruction says them.

Takes a field of an instruction, hands on lists of device numbers.  Within one module equal groups may be axes of
several meshes: XLA names axes anew where it makes collectives itself.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from astitch.hlo import schema

MOST_DEVICES = 1 << 20
"""No mesh with more devices is read: a damaged number would take all memory."""

Groups = tuple[tuple[int, ...], ...]
"""For each group the numbers of its devices, in the order in which they take part."""


def read_groups(number: int, data: bytes) -> Groups | None:
    """The groups that a field of a collective says; None for other fields, and for what is not understood.

    number: of the field of HloInstructionProto.  data: what is in it.
    """
    read = _READERS.get(number)
    if read is None:
        return None
    try:
        return read(data)
    except (DecodeError, ValueError, IndexError):
        return None


def _read_lists(data: bytes) -> Groups | None:
    found = schema.CollectiveDeviceListProto.FromString(data)
    return tuple(tuple(group.replica_ids) for group in found.replica_groups) or None


def _read_numbered(data: bytes) -> Groups | None:
    """All devices as an array, its dimensions in another order, cut into groups one behind the other."""
    found = schema.IotaReplicaGroupListProto.FromString(data)
    shape, order = list(found.iota_reshape_dims), list(found.iota_transpose_perm)
    count = math.prod(shape)
    groups = (found.num_replica_groups, found.num_devices_per_group)
    if not 0 < count <= MOST_DEVICES or min(groups) < 1 or math.prod(groups) != count:
        return None
    ordered = np.arange(count).reshape(shape).transpose(order).reshape(groups)
    return tuple(tuple(map(int, group)) for group in ordered)


def _read_axes(data: bytes) -> Groups | None:
    """Of a mesh: the devices along some of its axes, or along parts of them, are a group."""
    found = schema.MeshAxesReplicaGroupListProto.FromString(data)
    sizes = [axis.size for axis in found.mesh.axes]
    count = math.prod(sizes)
    spans = [_span(axis, sizes) for axis in found.axes]
    if not 0 < count <= MOST_DEVICES or min((begin for _, begin, _ in spans), default=0) < 1:
        return None
    # An axis of which parts are named becomes several dimensions.
    parts: list[tuple[int, int, int]] = []
    for axis, size in enumerate(sizes):
        ends = {1, size}.union(*({begin, end} for other, begin, end in spans if other == axis))
        parts += [(axis, begin, end) for begin, end in itertools.pairwise(sorted(ends))]
    grouped = [
        place
        for axis, begin, end in spans
        for place, (other, first, last) in enumerate(parts)
        if other == axis and begin <= first and last <= end
    ]
    rest = [place for place in range(len(parts)) if place not in grouped]
    shape = [last // first for _, first, last in parts]
    devices = np.asarray(found.mesh.device_ids or range(count)).reshape(shape)
    members = math.prod(shape[place] for place in grouped)
    ordered = devices.transpose([*rest, *grouped]).reshape(-1, members)
    return tuple(tuple(map(int, group)) for group in ordered)


def _span(axis: Any, sizes: list[int]) -> tuple[int, int, int]:
    """(the number of an axis, the size of what comes before a part of it, the size of both)."""
    number = axis.mesh_axis_index
    if not axis.HasField("sub_axis_info"):
        return number, 1, sizes[number]
    part = axis.sub_axis_info
    return number, part.pre_size, part.pre_size * part.size


_READERS = {87: _read_lists, 92: _read_numbered, 93: _read_axes}
"""By field of HloInstructionProto: collective_device_list, its form as an iota, and mesh_axes_replica_group_list."""
