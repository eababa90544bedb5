"""Groups of devices, in the forms in which XLA's instructions say them."""

from __future__ import annotations

import numpy as np
import pytest

from astitch.hlo import schema
from astitch.hlo.device_groups import read_groups

LISTS, IOTA, AXES = 87, 92, 93


def name_axes(
    axes: list[int | tuple[int, int, int]], devices: list[int] | None = None, **sizes: int
) -> bytes:
    """The field that names axes of a mesh by their numbers, or parts of axes (number, size before, size)."""
    found = schema.MeshAxesReplicaGroupListProto()
    for name, size in sizes.items():
        found.mesh.axes.add(name=name.encode(), size=size)
    found.mesh.device_ids.extend(devices or [])
    for axis in axes:
        if isinstance(axis, int):
            found.axes.add(mesh_axis_index=axis)
        else:
            added = found.axes.add(mesh_axis_index=axis[0])
            added.sub_axis_info.pre_size, added.sub_axis_info.size = axis[1:]
    return bytes(found.SerializeToString())


def list_groups(*groups: list[int]) -> bytes:
    found = schema.CollectiveDeviceListProto()
    for group in groups:
        found.replica_groups.add(replica_ids=group)
    return bytes(found.SerializeToString())


def number_groups(shape: list[int], order: list[int], groups: int, members: int) -> bytes:
    found = schema.IotaReplicaGroupListProto(
        num_replica_groups=groups,
        num_devices_per_group=members,
        iota_reshape_dims=shape,
        iota_transpose_perm=order,
    )
    return bytes(found.SerializeToString())


def test_numbered_devices_are_cut_into_groups():
    assert read_groups(IOTA, number_groups([8], [0], 2, 4)) == ((0, 1, 2, 3), (4, 5, 6, 7))
    columns = ((0, 2, 4, 6), (1, 3, 5, 7))
    assert read_groups(IOTA, number_groups([4, 2], [1, 0], 2, 4)) == columns
    assert read_groups(AXES, name_axes([0], a=4, b=2)) == columns
    pairs = ((0, 4), (1, 5), (2, 6), (3, 7))
    assert read_groups(IOTA, number_groups([2, 2, 2], [1, 2, 0], 4, 2)) == pairs


def test_names_of_axes_say_nothing():
    wanted = (tuple(range(8)),)
    assert read_groups(AXES, name_axes([0], d=8)) == wanted
    assert read_groups(AXES, name_axes([0], axis_0=8)) == wanted
    assert read_groups(AXES, name_axes([0, 1], a=2, b=4)) == wanted
    assert read_groups(LISTS, list_groups(list(range(8)))) == wanted


def test_devices_along_an_axis_are_a_group():
    rows = ((0, 1, 2, 3), (4, 5, 6, 7))
    assert read_groups(AXES, name_axes([1], a=2, b=4)) == rows
    assert read_groups(LISTS, list_groups(*map(list, rows))) == rows
    assert read_groups(AXES, name_axes([0], a=2, b=4)) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert read_groups(AXES, name_axes([1, 0], a=2, b=4)) == ((0, 4, 1, 5, 2, 6, 3, 7),)


def test_a_mesh_orders_its_devices():
    found = read_groups(AXES, name_axes([0], [3, 2, 1, 0], a=2, b=2))
    assert found == ((3, 1), (2, 0))


@pytest.mark.parametrize(
    ("axes", "shape", "order"),
    [
        ([(0, 1, 2)], (2, 4), (1, 0)),
        ([(0, 2, 4)], (2, 4), (0, 1)),
        ([(0, 2, 2)], (2, 2, 2), (0, 2, 1)),
        ([(0, 1, 2), (0, 4, 2)], (2, 2, 2), (1, 0, 2)),
        ([(0, 4, 2), (0, 1, 2)], (2, 2, 2), (1, 2, 0)),
    ],
)
def test_parts_of_an_axis_are_axes(axes, shape, order):
    members = int(np.prod([size for _, _, size in axes]))
    wanted = np.arange(8).reshape(shape).transpose(order).reshape(-1, members)
    assert read_groups(AXES, name_axes(axes, d=8)) == tuple(map(tuple, wanted.tolist()))


@pytest.mark.parametrize(
    ("number", "data"),
    [
        (AXES, b"\xff"),
        (AXES, name_axes([1], d=8)),
        (AXES, name_axes([0], d=1 << 40)),
        (AXES, name_axes([0], [0, 1], d=8)),
        (AXES, name_axes([0], d=0)),
        (AXES, name_axes([(0, 0, 3)], d=8)),
        (AXES, name_axes([(0, 3, 2)], d=8)),
        (LISTS, b""),
        (LISTS, b"\x0a\xff"),
        (5, name_axes([0], d=8)),
        (IOTA, b"\xff"),
        (IOTA, b""),
        (IOTA, number_groups([8], [0], 2, 3)),
        (IOTA, number_groups([8], [0, 1], 2, 4)),
        (IOTA, number_groups([1 << 40], [0], 1, 1 << 40)),
    ],
    ids=str,
)
def test_what_is_not_understood_is_no_group(number, data):
    assert read_groups(number, data) is None
