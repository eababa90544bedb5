"""What is installed here, and whether astitch can use it: one sentence each, and what to do.

Takes the machine as it is, hands on Findings.  No backend of JAX's is started and no context of CUDA's is made.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from astitch import options
from astitch.device.cuda_driver import count_devices, driver_version
from astitch.device.gpu import PRESETS, Gpu, from_device
from astitch.errors import AstitchError, CompilerMissing
from astitch.system.private_files import PrivateFolder
from astitch.toolchain import nvrtc
from astitch.toolchain.nvrtc import LEAST_VERSION, find_nvrtcs, show_version

PLANNED_FOR = "sm_90"
"""The architecture that a machine without a GPU is asked about."""

CALLS_HOOK = (0, 11, 2)
"""The first JAX whose XLA calls the hook."""

TENSORFLOW = ((2, 19), (2, 22))
"""From which version on, and below which one, tf_addon works."""


class InstallationWarning(RuntimeWarning):
    """Something that is installed keeps astitch from making kernels."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of a part.  good: None where it is missing, and not everybody needs it.  advice: what to do."""

    part: str
    good: bool | None
    says: str
    advice: str = ""

    def __str__(self) -> str:
        mark = {True: "ok", False: "BAD", None: "-"}[self.good]
        return f"{mark:4} {self.part:12} {self.says}"


def version_of(*packages: str) -> str:
    """The version of the first that is installed, with its name where there are several; else the empty string."""
    for package in packages:
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        return f"{package} {found}" if len(packages) > 1 else found
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    """Major, minor and patch."""
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def find_gpus() -> tuple[Gpu, ...]:
    """The GPUs that CUDA's driver shows to this process."""
    return tuple(from_device(number) for number in range(count_devices()))


def check_installation() -> list[Finding]:
    """Every part, in the order in which one would mend them."""
    checks: tuple[Callable[[], Finding], ...] = (
        _check_python,
        _check_driver,
        _check_gpus,
        _check_nvrtc,
        _check_jax,
        _check_hook,
        _check_cupy,
        _check_libraries,
        _check_host_compiler,
        _check_tensorflow,
        _check_cache,
        _check_names,
    )
    return [check() for check in checks]


@functools.cache
def warn_of_installation() -> None:
    """Says once in a process, in one sentence, what keeps kernels from being made on this machine's GPU."""
    if driver_version() is None:
        return
    for finding in (_check_driver(), _check_nvrtc_files()):
        if not finding.good:
            warnings.warn(
                f"astitch: {finding.says}\n  {finding.advice}; `python -m astitch.doctor` says more",
                InstallationWarning,
                stacklevel=4,
            )


def _check_python() -> Finding:
    mine = version_of("astitch") or "from a folder"
    return Finding("astitch", True, f"{mine}, on Python {platform.python_version()}")


def _check_driver() -> Finding:
    version = driver_version()
    if version is None:
        return Finding("driver", None, "no NVIDIA driver: libcuda.so.1 is not there")
    shown, least = show_version(version), show_version(LEAST_VERSION)
    if version < LEAST_VERSION:
        says = f"the driver is of CUDA {shown}, and kernels need {least}"
        return Finding("driver", False, says, "install a newer NVIDIA driver")
    return Finding("driver", True, f"of CUDA {shown}")


def _check_gpus() -> Finding:
    if driver_version() is None:
        return Finding("GPUs", None, "none")
    try:
        gpus = find_gpus()
    except AstitchError as error:
        return Finding("GPUs", False, str(error).partition("\n")[0], "check nvidia-smi")
    if not gpus:
        advice = "check nvidia-smi, and CUDA_VISIBLE_DEVICES"
        return Finding("GPUs", False, "the driver sees no GPU", advice)
    shown = ", ".join(f"{gpu.name} ({gpu.arch}, {gpu.sms} SMs)" for gpu in gpus)
    unknown = [gpu.name for gpu in gpus if gpu.name not in PRESETS]
    nearest = f"; {', '.join(unknown)}: planned with numbers of the nearest preset"
    return Finding("GPUs", True, shown + (nearest if unknown else ""))


def _architecture() -> str:
    try:
        return from_device().arch if count_devices() else PLANNED_FOR
    except AstitchError:
        return PLANNED_FOR


def _check_nvrtc() -> Finding:
    try:
        choice = nvrtc.choose_nvrtc(_architecture())
    except CompilerMissing as error:
        first, *rest = str(error).splitlines()
        return Finding(
            "NVRTC", False if count_devices() else None, first, (rest or [""])[-1].strip()
        )
    found = [show_version(library.version) for library in find_nvrtcs()]
    chosen = show_version(choice.nvrtc.version)
    others = ", ".join(version for version in found if version != chosen)
    says = f"{chosen}: {choice.reason}" + (f"; also here: {others}" if others else "")
    if choice.reason.endswith("may not load"):
        advice = "install the NVRTC of the driver's CUDA: astitch[cuda12] or astitch[cuda13]"
        return Finding("NVRTC", False, says, advice)
    return Finding("NVRTC", True, says)


def _check_nvrtc_files() -> Finding:
    """The same without loading the libraries, which are large."""
    if nvrtc.candidate_paths():
        return Finding("NVRTC", True, "is here")
    return Finding("NVRTC", False, "NVRTC, which compiles kernels, was not found", nvrtc.INSTALL)


def _check_jax() -> Finding:
    version = version_of("jax")
    if not version:
        return Finding("JAX", None, "not installed", "pip install 'astitch[jax]'")
    plugin = version_of("jax-cuda13-plugin", "jax-cuda12-plugin")
    if plugin:
        return Finding("JAX", True, f"{version}, with {plugin}")
    says = f"{version}, without a plugin for GPUs"
    if count_devices():
        return Finding("JAX", False, says, "pip install 'jax[cuda13]', or jax[cuda12]")
    return Finding("JAX", True, says)


def _check_hook() -> Finding:
    from astitch.api.enabling import why_no_hook

    missing, _, advice = why_no_hook().partition("\n")
    if not missing and _numbers(version_of("jax")) < CALLS_HOOK:
        missing = f"JAX {version_of('jax')} does not call the hook"
        advice = f"pip install -U 'jax>={'.'.join(map(str, CALLS_HOOK))}', which needs Python 3.12"
    if not missing:
        return Finding("XLA's hook", True, "JAX has it: astitch.enable() works where JAX has a GPU")
    return Finding("XLA's hook", None, f"astitch.enable() does not work: {missing}", advice.strip())


def _check_cupy() -> Finding:
    version = version_of("cupy-cuda13x", "cupy-cuda12x", "cupy")
    if version:
        return Finding("CuPy", True, version)
    advice = "pip install 'astitch[cuda13]', or astitch[cuda12]"
    return Finding("CuPy", None, "not installed: the engine executor needs it", advice)


def _check_libraries() -> Finding:
    names = {"cuBLASLt": "nvmath-python", "cuDNN": "nvidia-cudnn-frontend"}
    versions = {name: version_of(package) for name, package in names.items()}
    here = ", ".join(f"{name} by {names[name]} {v}" for name, v in versions.items() if v)
    missing = [name.lower() for name, v in versions.items() if not v]
    if not missing:
        return Finding("libraries", True, here)
    says = f"for programs that CuPy launches, not here: {', '.join(missing)}"
    advice = (
        f"pip install 'astitch[{','.join(missing)}]'"
        if version_of("cupy-cuda13x", "cupy-cuda12x")
        else ""
    )
    return Finding("libraries", None, f"{here}; {says}" if here else says, advice)


def _check_host_compiler() -> Finding:
    found = shutil.which("g++")
    if found:
        return Finding("g++", True, f"{found}: the emulation works")
    return Finding("g++", None, "not here: the engine host needs it", "apt-get install g++")


def _check_tensorflow() -> Finding:
    version = version_of("tensorflow", "tensorflow-cpu")
    if not version:
        return Finding("TensorFlow", None, "not installed")
    first, last = TENSORFLOW
    if first <= _numbers(version.split()[1])[:2] < last:
        return Finding("TensorFlow", True, f"{version}: tf_addon works")
    says = f"{version}: tf_addon needs {first[0]}.{first[1]} to {last[0]}.{last[1] - 1}"
    return Finding("TensorFlow", False, says, "pip install 'astitch[tensorflow]'")


def _check_cache() -> Finding:
    folder = options.cache_dir()
    try:
        PrivateFolder(folder / "kernels").write("doctor", b"")
        PrivateFolder(folder / "kernels").remove(["doctor"])
    except OSError as error:
        advice = "set ASTITCH_CACHE_DIR to a folder of your own"
        return Finding("caches", False, f"{folder} is not used: {error}", advice)
    files = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
    return Finding("caches", True, f"{folder}: {len(files)} files, {sum(files) / 1e6:.0f} MB")


def _check_names() -> Finding:
    """The names of the environment that are set."""
    known = {name: os.environ[name] for name in options.NAMES if os.environ.get(name)}
    odd = sorted(n for n in os.environ if n.startswith("ASTITCH_") and n not in options.NAMES)
    if odd:
        instead = [f"{n}: {options.REPLACED[n]}" for n in odd if n in options.REPLACED]
        advice = "; ".join(instead) or "the README's table has all names"
        return Finding("environment", False, f"nothing reads {', '.join(odd)}", advice)
    shown = ", ".join(f"{name}={value}" for name, value in known.items())
    return Finding("environment", True, shown or "no ASTITCH_ name is set")
