"""Programs as XLA's hook gives them back, computed without a GPU.

Takes a function, has XLA compile it for a GPU that is not here up to the hook, and stitches the module with kernels as
CUDA text.  Hands on what the stitched module computes: calls of kernels run in the emulation, calls of tile programs in
their interpreter, every other op in the reference interpreter.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from astitch.device.gpu import Gpu
from astitch.graph.ir import Graph
from astitch.hlo_import import import_hlo
from astitch.run.emulate import Order
from astitch.xla.hook import Stitching, is_worth, read_module, stitch_module
from tests.ahead_of_time import devices
from tests.emulated_xla import kernels_of, run_graph
from tests.small_gpu import few_sms
from tests.snapshots import stand_in_compiler
from tests.tile_calls import recorded

SMALL = few_sms(4)
"""Kernels whose blocks meet have few of them, which the emulation can run."""


@dataclass(frozen=True)
class Hooked:
    """What one program became.  handed: the serialized module that XLA handed over.  stitching: None where the module
    is not worth a look."""

    handed: bytes
    stitching: Stitching | None

    @property
    def module(self) -> bytes:
        """What XLA compiles."""
        made = self.stitching.module if self.stitching else None
        return self.handed if made is None else made

    @property
    def kernels(self) -> int:
        return self.stitching.kernels if self.stitching else 0

    @property
    def graph(self) -> Graph:
        return import_hlo(self.module)

    @property
    def in_place(self) -> int:
        """Results of kernels that take over an operand's memory."""
        return sum(len(node.attrs.aliases) for node in kernels_of(self.graph))  # type: ignore[union-attr]

    def run(
        self, arguments: Sequence[Any], order: Order = Order.FORWARD, check: bool = False
    ) -> list[np.ndarray]:
        """Its results.  order: in which ready threads of a kernel run.  check: every access of a kernel is watched."""
        return run_graph(self.graph, [np.asarray(a) for a in arguments], order, check)


def put(tree: Any) -> Any:
    """The shapes of arrays, on a GPU that is not here."""
    place = SingleDeviceSharding(devices()[0])
    make: Any = jax.ShapeDtypeStruct

    def on_gpu(leaf: Any) -> Any:
        weak = bool(getattr(leaf, "weak_type", isinstance(leaf, int | float)))
        array = leaf if hasattr(leaf, "dtype") else jax.numpy.asarray(leaf)
        return make(array.shape, array.dtype, sharding=place, weak_type=weak)

    return jax.tree.map(on_gpu, tree)


class CannotCompile(Exception):
    """XLA does not compile a program for a GPU that is not here, with or without astitch."""


def stitch_through_hook(
    fn: Callable[..., Any],
    *arguments: Any,
    gpu: Gpu = SMALL,
    only_marked: bool = False,
    **options: Any,
) -> Hooked:
    """What comes of a function that XLA compiles for a GPU that is not here.

    arguments: arrays.  only_marked: see stitch_module.  options: of jax.jit.
    Raises what the hook raises, what XLA says of the module with kernels, and CannotCompile.
    """
    found: list[Hooked] = []
    errors: list[Exception] = []

    def transform(data: bytes) -> bytes | None:
        try:
            module = read_module(data)
            worth = is_worth(module)
            made = stitch_module(module, gpu, only_marked=only_marked) if worth else None
            found.append(Hooked(data, made))
            return made.module if made else None
        except Exception as error:
            errors.append(error)
            return None

    if not jax.tree.leaves(arguments):  # then they do not name the device
        options["out_shardings"] = SingleDeviceSharding(devices()[0])
    # A function of its own: of one that it has compiled before, JAX keeps what came of it.
    jitted = jax.jit(functools.wraps(fn)(lambda *a, **k: fn(*a, **k)), keep_unused=True, **options)
    with stand_in_compiler(), recorded(), _hook(transform):
        _compile(jitted, arguments, found)
    if errors:
        raise errors[0]
    (hooked,) = found
    return hooked


def _compile(jitted: Any, arguments: Sequence[Any], found: Sequence[Hooked]) -> None:
    lowered = jitted.trace(*put(arguments)).lower(lowering_platforms=("cuda",))
    try:
        lowered.compile()
    except Exception as error:
        if not found or found[-1].stitching is None or found[-1].stitching.module is None:
            raise CannotCompile((str(error).splitlines() or [""])[0][:200]) from error
        raise


@contextlib.contextmanager
def _hook(transform: Callable[[bytes], bytes | None]) -> Iterator[None]:
    from jax.extend import xla

    devices()  # JAX loads XLA's plugin
    xla.register_hlo_module_transformation(transform, name="astitch_test", platforms="cuda")
    try:
        yield
    finally:
        xla.clear_hlo_module_transformation("astitch_test", platforms="cuda")
