"""The engines that run a program for astitch.jit: which one, and what calls it.

Takes what a user asked for and what this machine has.  Hands on an engine's name, or a function from flat arrays to
flat JAX arrays.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from astitch.api.arguments import lies_at
from astitch.errors import EngineUnavailable, OtherDevice

if TYPE_CHECKING:  # importing astitch must stay cheap
    from astitch.device.gpu import Gpu
    from astitch.library.xla_fallback import CompilerOptions
    from astitch.program.steps import Program
    from astitch.run.executor import GpuExecutor
    from astitch.run.host_engine import HostEngine

NO_GPU = "astitch: no GPU found; kernels run in the CPU emulation"

DEFAULT: str | None = None
"""The engine where a call names none; None: a GPU's where JAX or CuPy can use one.  Tests and benchmarks set it."""


class Engine(Protocol):
    """What runs a Program: flat arguments in, flat JAX arrays out."""

    @property
    def runner(self) -> HostEngine | GpuExecutor:
        """What holds the loaded kernels."""
        ...

    def __call__(self, arguments: Sequence[Any], place: Any | None) -> Sequence[Any]:
        """The results; place: see find_place."""
        ...


def choose_engine(asked: str | None = None) -> str:
    """The engine, "xla", "executor" or "host": as asked, else DEFAULT, else a GPU's if there is one that JAX or
    CuPy can use.

    Warns once in a process that the host was taken for want of a GPU.  Raises EngineUnavailable.
    """
    from astitch.api.installation import warn_of_installation

    wanted = name_wanted(asked)
    if wanted != "host":
        warn_of_installation()
    if wanted not in ("host", "executor"):
        missing = miss_for_xla()
        if not missing:
            return "xla"
        if wanted == "xla":
            raise EngineUnavailable(f"the engine xla was asked for, but {missing}")
    return choose_launcher(asked)


def name_wanted(asked: str | None) -> str | None:
    """The engine that a call wants; None: it leaves that to what the machine has."""
    return asked or DEFAULT


def choose_launcher(asked: str | None = None) -> str:
    """The engine, "executor" or "host", where astitch launches kernels by itself.  The request decides, then
    DEFAULT, then whether CuPy can use a GPU.  "gpu" and "xla" ask for "executor" here.

    Warns once in a process that the host was taken for want of a GPU.  Raises EngineUnavailable.
    """
    from astitch.run.executor import count_gpus

    wanted = name_wanted(asked)
    if wanted == "host":
        return wanted
    if not count_gpus():
        if wanted is None:
            _warn_no_gpu()
            return "host"
        raise EngineUnavailable(
            f"engine={wanted!r}, but CuPy sees no GPU\n"
            "  install astitch[cuda13] or astitch[cuda12] and a driver, or ask for engine='host', the emulation"
        )
    return "executor"


def miss_for_xla() -> str:
    """What keeps programs from running inside XLA here, and what to do; nothing: the empty string."""
    from astitch.device.cuda_driver import count_devices
    from astitch.library.xla_fallback import default_gpu
    from astitch.xla.stitched_call import FIRST_JAX, has_target

    if not count_devices():
        return "CUDA's driver sees no GPU\n  check nvidia-smi, or use the engine host"
    if not has_target():
        return f"JAX is older than {'.'.join(map(str, FIRST_JAX))}\n  install a newer one, or use the engine executor"
    if default_gpu() is None:
        return (
            "JAX has no GPU here\n  install jax[cuda13] or jax[cuda12], or use the engine executor"
        )
    return ""


@functools.cache
def _warn_no_gpu() -> None:
    """Says once in a process that everything runs on the CPU."""
    warnings.warn(NO_GPU, RuntimeWarning, stacklevel=2)


def make_engine(
    program: Program, device: int | None, compiler_options: CompilerOptions | None = None
) -> Engine:
    """A function from flat NumPy, CuPy or JAX arrays to flat JAX arrays.

    device: number of the CUDA device; None for the host emulation.  compiler_options: for the parts that XLA computes.
    """
    wished = compiler_options or {}
    if device is not None:
        from astitch.run.executor import GpuExecutor

        return _OnGpu(
            GpuExecutor(program, device, moves=False, compiler_options=wished),
        )

    from astitch.run.host_engine import HostEngine

    return _OnHost(HostEngine(program, compiler_options=wished), find_jax_device(None))


@dataclass(frozen=True, slots=True)
class _OnGpu:
    """The engine executor."""

    runner: GpuExecutor

    def __call__(self, arguments: Sequence[Any], place: Any | None) -> Sequence[Any]:
        results = self.runner.run_to_jax(arguments, committed=place is not None)
        if place is None:
            return results
        return [result if lies_at(result, place) else _put(result, place) for result in results]


@dataclass(frozen=True, slots=True)
class _OnHost:
    """The engine host.  cpu: JAX's device that stands for it."""

    runner: HostEngine
    cpu: Any

    def __call__(self, arguments: Sequence[Any], place: Any | None) -> Sequence[Any]:
        import jax

        for number, array in enumerate(arguments):
            if isinstance(array, jax.Array) and array.committed and array.devices() != {self.cpu}:
                places = ", ".join(sorted(map(str, array.devices())))
                raise OtherDevice(
                    f"argument {number} lies on {places}; the engine host runs on {self.cpu}\n"
                    "  bring it there with jax.device_put"
                )
        return [_put(array, place) for array in self.runner.run(arguments)]


def _put(array: Any, place: Any | None) -> Any:
    """A JAX array, committed to a place where there is one."""
    import jax

    return jax.device_put(array, place)


def find_jax_device(gpu: int | None) -> Any | None:
    """JAX's name for an engine's device: the GPU with CUDA's number, or the CPU.  None: JAX has no such."""
    from astitch.library.xla_fallback import find_device

    return find_device("cpu") if gpu is None else find_device("gpu", gpu)


def target_gpu() -> Gpu:
    """The GPU that programs inside XLA are planned for."""
    from astitch.device.gpu import from_device
    from astitch.library.xla_fallback import default_gpu

    device = default_gpu()
    return from_device(0 if device is None else device.local_hardware_id)
