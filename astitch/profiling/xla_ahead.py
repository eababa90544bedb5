"""XLA's compiler for a GPU that is not here: HLO -> what XLA makes of it for a preset.

The compiler is the plugin that JAX uses on NVIDIA GPUs.  It runs in a process of its own, since it wants an environment
of its own.  What stops that process must not stop the report.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astitch.device.gpu import COPY_SHARE_OF_PEAK, Gpu
from astitch.hlo.stablehlo import to_stablehlo
from astitch.xla.stitched_call import drop_tilings

PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
INSTALL = "pip install 'astitch[xla-cuda13]'"
LONGEST_S = 600

ENTRY = f"import sys; from {__name__} import main; sys.exit(main(sys.argv[1:]))"
"""What that process runs."""

DEVICE_GB = {"v100": 16, "t4": 16, "a100": 80, "h100": 80, "h200": 141, "b200": 180}
"""Memory of the presets, 1e9 bytes (data sheets)."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """module: serialized HloModuleProto, scheduled.  seconds: of XLA alone.  planned_bytes: arguments, results and
    temporaries, what is donated counted once."""

    module: bytes
    seconds: float
    planned_bytes: int | None


def find_plugin() -> str | None:
    """The module of JAX's plugin for NVIDIA GPUs, which holds XLA's compiler for them; None if not installed."""
    if importlib.util.find_spec("jax_plugins") is None:
        return None
    return next((name for name in PLUGINS if importlib.util.find_spec(name)), None)


def write_target_config(gpu: Gpu) -> str:
    """The device as XLA wants it described: a GpuTargetConfigProto as text."""
    number = gpu.arch.removeprefix("sm_").rstrip("af")
    major, minor = number[:-1], number[-1]
    peak = round(gpu.bandwidth_gbs / COPY_SHARE_OF_PEAK * 1e9)
    return f"""\
gpu_device_info {{
  threads_per_block_limit: {gpu.max_threads_per_block}
  threads_per_warp: {gpu.warp_size}
  shared_memory_per_block: 49152
  shared_memory_per_core: {gpu.shared_per_sm_bytes}
  shared_memory_per_block_optin: {gpu.shared_per_block_bytes}
  threads_per_core_limit: {gpu.max_threads_per_sm}
  core_count: {gpu.sms}
  fpus_per_core: {gpu.fp32_lanes_per_sm}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {peak}
  l2_cache_size: {gpu.l2_bytes}
  clock_rate_ghz: {gpu.clock_ghz}
  device_memory_size: {DEVICE_GB.get(gpu.name, 80) * 10**9}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: {gpu.registers_per_sm}
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
runtime_version {{ major: 13 }}
device_description_str: "astitch preset {gpu.name}"
"""


class AheadOfTime:
    """A compilation that runs while the caller does something else.  options: see XLA's DebugOptions."""

    def __init__(self, hlo: bytes, gpu: Gpu, options: Mapping[str, bool | int]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="astitch_xla_")
        self._out = Path(self._folder.name) / "optimized.pb"
        module = Path(self._folder.name) / "module.pb"
        config = Path(self._folder.name) / "target.txtpb"
        module.write_bytes(hlo)
        config.write_text(write_target_config(gpu), "utf-8")
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
            "JAX_ENABLE_COMPILATION_CACHE": "0",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        # What is on the path here (a checkout, say) is there too.
        environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                ENTRY,
                str(module),
                str(config),
                str(self._out),
                json.dumps(dict(options)),
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def result(self) -> Compiled | str:
        """Waits for it.  A sentence where XLA did not compile it."""
        try:
            told, errors = self._process.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            return f"XLA's compiler was stopped after {LONGEST_S} s"
        else:
            if self._process.returncode:
                said = [line for line in errors.splitlines() if line.strip()]
                return f"XLA's compiler failed: {said[-1] if said else 'it said nothing'}"
            found = json.loads(told.splitlines()[-1])
            return Compiled(self._out.read_bytes(), found["seconds"], found["planned_bytes"])
        finally:
            self.close()

    def close(self) -> None:
        """Stops it if it still runs, and removes its files."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
        self._folder.cleanup()


def compile_here(hlo: bytes, config: str, overrides: Mapping[str, bool | int]) -> Compiled:
    """Compiles a module in this process, which must have been started with JAX_PLATFORMS=cpu."""
    import numpy as np
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax, xla_client  # type: ignore[attr-defined]
    from jax._src.lib.mlir import ir  # type: ignore[attr-defined]
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(platform="cuda", target_config=config, topology="1x1x1")
    device: Any = topology.devices[0]
    options = xla_client.CompileOptions()
    options.env_option_overrides = list(overrides.items())
    options.device_assignment = xla_client.DeviceAssignment.create(np.array([[device.id]]))
    with mlir.make_ir_context():
        module = ir.Module.parse(to_stablehlo(hlo))
        module.operation.walk(drop_tilings)
        start = time.perf_counter()
        compiled = device.client.compile(module, _jax.DeviceList((device,)), options)
        seconds = time.perf_counter() - start
    stats = compiled.get_compiled_memory_stats()
    planned = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    optimized = compiled.hlo_modules()[0].as_serialized_hlo_module_proto()
    return Compiled(bytes(optimized), seconds, int(planned - stats.alias_size_in_bytes))


def main(arguments: Sequence[str]) -> int:
    """The compiling process. arguments: files of the module, the device and what to write; options as JSON."""
    hlo, config, out = map(Path, arguments[:3])
    try:
        overrides = json.loads(arguments[3])
        compiled = compile_here(hlo.read_bytes(), config.read_text("utf-8"), overrides)
    except Exception as error:  # told to the process that waits
        print(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}", file=sys.stderr)
        return 1
    out.write_bytes(compiled.module)
    print(json.dumps({"seconds": compiled.seconds, "planned_bytes": compiled.planned_bytes}))
    return 0
