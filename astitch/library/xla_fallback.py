"""Runs HLO through XLA: what no emitted kernel and no library computes is a *fallback subgraph* of a program.

Takes a serialized HloModuleProto and a device of JAX, hands on a function of JAX arrays.  XLA compiles a module once
in a process for each device; the engines say how their buffers become JAX arrays and back.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from astitch.errors import EngineUnavailable, FallbackRefused, OutOfMemory, first_line
from astitch.hlo.schema import CompileOptionsProto
from astitch.hlo.stablehlo import to_stablehlo

CompilerOptions = Mapping[str, bool | int | str]
"""Settings of XLA's compiler by name, as jax.jit takes them."""

MOST_COMPILED = 256
"""Fallbacks whose code a process keeps for engines that are made later."""

EXACT = MappingProxyType({"xla_allow_excess_precision": False})
"""How XLA compiles what stands beside our kernels: 16-bit values are rounded where HLO rounds them, as everywhere."""

AROUND_KERNELS = MappingProxyType({**EXACT, "xla_gpu_dot_merger_threshold_mb": 0})
"""For a program with kernels.  Its products are merged already where that pays (products.py).  If XLA merged more of
them, each slice of the result would be a copy in front of a kernel."""

REPEATABLE = MappingProxyType({**EXACT, "xla_gpu_exclude_nondeterministic_ops": True})
"""Besides, equal calls give equal bits, as in emitted kernels."""

BY_LIBRARIES = MappingProxyType({**REPEATABLE, "xla_gpu_enable_triton_gemm": False})
"""Besides, products by libraries only: XLA's own have no form for some, s8 of odd sizes among them."""


@functools.cache
def adds_products() -> bool:
    """Does XLA add a product to another one as it multiplies?  That of JAX 0.11 has a kernel for the sum."""
    return not (has_jax() and importlib.metadata.version("jax").startswith("0.11."))


def has_jax() -> bool:
    """Is JAX installed?  It is not imported for that."""
    return importlib.util.find_spec("jax") is not None


def find_device(platform: str, number: int = 0) -> Any | None:
    """JAX's device: the CPU, or the GPU with CUDA's number.  None where JAX is not installed or has no such device."""
    try:
        import jax

        devices = jax.local_devices(backend=platform)
    except (ImportError, RuntimeError):
        return None
    if platform == "cpu":
        return devices[0]
    return next((d for d in devices if d.local_hardware_id == number), None)


def default_gpu() -> Any | None:
    """JAX's GPU on which it computes unless told otherwise; None where JAX is not installed or has none."""
    try:
        import jax

        devices = jax.local_devices(backend="gpu")
    except (ImportError, RuntimeError):
        return None
    settings: Any = jax.config
    wanted = settings.jax_default_device
    return wanted if wanted in devices else devices[0]


def host_device() -> Any:
    """JAX's CPU.  Raises EngineUnavailable."""
    device = find_device("cpu")
    if device is None:
        raise EngineUnavailable(
            "the program has parts that XLA computes, and JAX with a CPU device is not there\n"
            "  install astitch[jax], and name cpu in JAX_PLATFORMS if that is set"
        )
    return device


@dataclass(frozen=True, slots=True)
class FallbackSubgraph:
    """A module compiled for one device.  what: its name in messages."""

    what: str
    device: Any
    executable: Any

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """The results, JAX arrays that are ready and row-major.

        operands: JAX arrays on the fallback's device, one for each parameter; they are only read, and no longer in use
        when this returns.  Raises OutOfMemory, and JAX's own error for what else goes wrong while it runs.
        """
        import jax

        try:
            outputs = self.executable.execute_sharded(list(operands))
            shards = outputs.disassemble_into_single_device_arrays()
            # JAX's streams and ours know nothing of each other: whoever comes next finds the results finished.
            return [shard[0].block_until_ready() for shard in shards]
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise OutOfMemory(
                f"{self.what}: XLA found no room: {first_line(error)}\n"
                "  free arrays, or set XLA_PYTHON_CLIENT_MEM_FRACTION so that JAX may take more"
            ) from None


def compile_fallback(
    hlo: bytes, device: Any, what: str, compiler_options: CompilerOptions = MappingProxyType({})
) -> FallbackSubgraph:
    """Compiles a serialized HloModuleProto for a device of JAX.  Raises FallbackRefused with XLA's words.

    compiler_options: the user's settings of XLA, which come before ours.
    """
    import jax

    try:
        return FallbackSubgraph(
            what, device, _compile(hlo, device, tuple(compiler_options.items()))
        )
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        raise FallbackRefused(
            f"{what}: XLA refuses to compile it for {device}: {first_line(error)}\n"
            "  rewrite that part of the program; with strict=True the compilation lists every op that is left to XLA"
        ) from error


@functools.lru_cache(maxsize=MOST_COMPILED)
def _compile(hlo: bytes, device: Any, wished: tuple[tuple[str, bool | int | str], ...] = ()) -> Any:
    import jax

    try:
        return compile_module(hlo, device, {**REPEATABLE, **dict(wished)})
    except jax.errors.JaxRuntimeError as error:
        if device.platform != "gpu" or "RESOURCE_EXHAUSTED" in str(error):
            raise
        return compile_module(hlo, device, {**BY_LIBRARIES, **dict(wished)})


def compile_module(
    hlo: bytes,
    device: Any,
    settings: CompilerOptions,
    *,
    tilings: int | None = None,
) -> Any:
    """A serialized HloModuleProto as XLA's executable for a device of JAX.  settings, tilings: see choose_options."""
    from jax._src.lib import _jax  # type: ignore[attr-defined]

    options = choose_options(device.id, settings, tilings)
    return device.client.compile_and_load(to_stablehlo(hlo), _jax.DeviceList((device,)), options)


def choose_options(device: int, settings: CompilerOptions, tilings: int | None = None) -> Any:
    """XLA's CompileOptions for JAX's device of a number.

    settings: of XLA's compiler, by name.  tilings: how many of its own kernels XLA measures for a product, beside the
    libraries'.  It takes those that its cost model puts first, unless XLA_FLAGS say otherwise; None: all that it has.
    """
    from jax._src.lib import xla_client  # type: ignore[attr-defined]

    options = xla_client.CompileOptions()
    options.device_assignment = xla_client.DeviceAssignment.create(np.array([[device]]))
    options.env_option_overrides = list(settings.items())
    if tilings is None:
        return options
    # A table of strings, which no setting can hold.  Messages one behind the other are one, in which the later has the
    # last word.
    both = _choose_tilings(tilings) + options.SerializeAsString()
    return xla_client.CompileOptions.ParseFromString(both)


UNTUNED = MappingProxyType({"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False})
"""Nothing is measured, and libraries compute all products."""


def leave_untuned(options: Any) -> Any:
    """XLA's CompileOptions with UNTUNED."""
    found = type(options).ParseFromString(options.SerializeAsString())
    found.env_option_overrides = [*options.env_option_overrides, *UNTUNED.items()]
    return found


def _choose_tilings(count: int) -> bytes:
    """A serialized CompileOptionsProto with this choice alone.  Its keys are those of
    cost_model_config_optimization.cc."""
    options = CompileOptionsProto()
    debug = options.executable_build_options.debug_options
    for key, value in (("top", count), ("top_from_default", 1)):
        debug.xla_gpu_experimental_cost_model_gemm_tiling_options.add(
            key=key.encode(), value=str(value).encode()
        )
    return bytes(options.SerializeToString())


def put_array(array: np.ndarray, device: Any) -> Any:
    """A host array as a JAX array of exactly its dtype; on the CPU it may share its memory."""
    import jax

    with jax.enable_x64(True):
        return jax.device_put(array, device)
