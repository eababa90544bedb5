"""CUDA text -> cubin, through NVRTC; needs no GPU and no driver.

Takes a translation unit and an architecture, hands on the cubin, the PTX and what each kernel uses
(registers, spills, stack, shared memory).  The idea: of all NVRTC libraries on the machine take the newest that knows
the architecture and is not newer than the driver.  So the cubin can be loaded.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import importlib.util
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from astitch.device.cuda_driver import driver_version
from astitch.errors import CompilerMissing, KernelCompileError
from astitch.system.forks import ForkLock, fork_waits

Compiled = TypeVar("Compiled")

FLAGS: tuple[str, ...] = (
    "-std=c++17",
    # An HLO op rounds once: a multiply and an add must not become one (cuda/hlo_math.cuh relies on it).
    "--fmad=false",
    "--ptxas-options=-v",
)
"""The flags of every kernel, besides the architecture and the register bound."""

LEAST_VERSION = (12, 3)
"""The first NVRTC whose PTX (8.3) has accesses of 128 bits that are one to the memory (cuda/astitch.cuh)."""

SOURCE_NAME = "kernel.cu"
INSTALL = (
    "pip install astitch[cuda13], or astitch[cuda12] for drivers of CUDA 12 and for sm_70 (V100)"
)


@dataclass(frozen=True, slots=True)
class Resources:
    """What ptxas says of a kernel: registers, stack and spills of a thread, shared memory of a block."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    static_shared_bytes: int


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A loadable cubin, the PTX it came from, and the resources of its kernels by name.

    symbols: what a kernel is called in the cubin and the PTX, by its name, where that differs.  Texts that differ in
    names only share a cubin (kernel_cache.py).
    """

    cubin: bytes = field(repr=False)
    ptx: bytes = field(repr=False)
    kernels: Mapping[str, Resources]
    log: str = field(repr=False)
    nvrtc_version: tuple[int, int]
    symbols: Mapping[str, str] = field(default_factory=dict)

    def symbol(self, name: str) -> str:
        """What the kernel `name` is called in the cubin and the PTX."""
        return self.symbols.get(name, name)

    @property
    def is_given_shared(self) -> bool:
        """Does a kernel use shared memory that its launch gives (`extern __shared__`)?"""
        return b".extern .shared" in self.ptx


@dataclass(frozen=True, slots=True)
class Request:
    """One compilation: a translation unit for `arch` ("sm_90"), registers of a thread bounded or not."""

    source: str = field(repr=False)
    arch: str
    max_registers: int | None = None
    extra: tuple[str, ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """Every option that NVRTC gets, in order."""
        bound = () if self.max_registers is None else (f"--maxrregcount={self.max_registers}",)
        return (f"--gpu-architecture={self.arch}", *FLAGS, *bound, *self.extra)


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """One NVRTC library.

    architectures: the numbers it compiles for, 90 standing for sm_90.  flags: options of its own that
    every compilation gets.
    """

    path: str
    version: tuple[int, int]
    architectures: tuple[int, ...]
    library: ctypes.CDLL = field(repr=False, compare=False)
    flags: tuple[str, ...] = ()

    def knows(self, arch: str) -> bool:
        return _number_of(arch) in self.architectures


@dataclass(frozen=True, slots=True)
class Choice:
    """An NVRTC and why it was taken."""

    nvrtc: Nvrtc
    reason: str


# ---- which library -----------------------------------------------------------------------------------


def candidate_paths() -> tuple[str, ...]:
    """Files that may be NVRTC: wheels (nvidia/cu13, nvidia/cuda_nvrtc), toolkits, the loader's path."""
    folders: list[str] = []
    wheels = importlib.util.find_spec("nvidia")
    for root in (wheels.submodule_search_locations or ()) if wheels else ():
        folders += sorted(glob.glob(os.path.join(glob.escape(root), "*", "lib")))
    toolkits = [os.environ[name] for name in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(name)]
    for root in [*toolkits, *sorted(glob.glob("/usr/local/cuda*"))]:
        folders += [os.path.join(root, "lib64"), os.path.join(root, "targets/x86_64-linux/lib")]
    folders += os.environ.get("LD_LIBRARY_PATH", "").split(":")
    folders += ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"]
    found: dict[str, None] = {}
    for folder in filter(None, folders):
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), "libnvrtc.so.*"))):
            found[os.path.realpath(path)] = None
    return tuple(found)


def _open(path: str) -> Nvrtc | None:
    """The library at `path`, or None where the loader refuses it (another processor, a broken link)."""
    folder = os.path.dirname(path)
    try:
        # libnvrtc asks for its built-ins by bare name; once loaded by path they are found.
        for builtins in glob.glob(os.path.join(glob.escape(folder), "libnvrtc-builtins.so.*")):
            ctypes.CDLL(builtins)
        library = ctypes.CDLL(path)
        major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        if library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)):
            return None
        library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        architectures = (ctypes.c_int * count.value)()
        library.nvrtcGetSupportedArchs(architectures)
    except (OSError, AttributeError):
        return None
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    # Newer libraries keep cubins in ~/.nv, and what comes from there has an empty log: no resources.
    flags = ("--no-cache",) if _accepts(library, "--no-cache") else ()
    return Nvrtc(path, (major.value, minor.value), tuple(sorted(architectures)), library, flags)


def _accepts(library: ctypes.CDLL, flag: str) -> bool:
    """Whether a library knows an option: older ones refuse the compilation."""
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), b"", b"empty.cu", 0, None, None)
    status: int = library.nvrtcCompileProgram(program, 1, (ctypes.c_char_p * 1)(flag.encode()))
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return status == 0


_finding = ForkLock()


def find_nvrtcs() -> tuple[Nvrtc, ...]:
    """All NVRTC libraries of this machine, newest first."""
    with _finding, fork_waits():
        return _find_nvrtcs()


def find_in_background() -> None:
    """Begins to look for the libraries, of 100 MB each, in a thread; find_nvrtcs waits for what is left of it."""
    threading.Thread(target=find_nvrtcs, name="astitch-nvrtc", daemon=True).start()


@functools.cache
def _find_nvrtcs() -> tuple[Nvrtc, ...]:
    opened = [nvrtc for path in candidate_paths() if (nvrtc := _open(path)) is not None]
    by_version = {
        nvrtc.version: nvrtc for nvrtc in reversed(opened)
    }  # of equal ones the first found
    return tuple(by_version[version] for version in sorted(by_version, reverse=True))


def choose_nvrtc(arch: str) -> Choice:
    """The NVRTC to compile for `arch` ("sm_90") with, and why.

    The newest that knows the architecture, of LEAST_VERSION or later.  Where a driver is installed, one that is not
    newer than the driver comes first.  Next comes one of the driver's major version, whose cubins still load.
    Raises CompilerMissing.
    """
    return _choose(arch, find_nvrtcs(), driver_version())


def _choose(arch: str, libraries: Sequence[Nvrtc], driver: tuple[int, int] | None) -> Choice:
    if not re.fullmatch(r"sm_\d+[af]?", arch):
        raise CompilerMissing(f"{arch!r} is not an architecture\n  write it as sm_90 or sm_90a")
    if not libraries:
        raise CompilerMissing(f"compiling for {arch} needs NVRTC, which was not found\n  {INSTALL}")
    knowing = [n for n in libraries if n.knows(arch) and n.version >= LEAST_VERSION]
    if not knowing and any(nvrtc.knows(arch) for nvrtc in libraries):
        found = ", ".join(f"{show_version(n.version)} ({n.path})" for n in libraries)
        least = show_version(LEAST_VERSION)
        raise CompilerMissing(
            f"compiling for {arch} needs NVRTC {least} or newer; found {found}\n  {INSTALL}"
        )
    if not knowing:
        listed = "\n".join(
            f"  NVRTC {show_version(n.version)} knows {' '.join(f'sm_{a}' for a in n.architectures)} ({n.path})"
            for n in libraries
        )
        raise CompilerMissing(f"no installed NVRTC knows {arch}\n{listed}\n  {INSTALL}")
    newest = knowing[0]
    if driver is None:
        return Choice(newest, f"newest that knows {arch}; no driver to agree with")
    shown = show_version(driver)
    for nvrtc in knowing:
        if nvrtc.version <= driver:
            return Choice(nvrtc, f"newest that knows {arch}, not newer than the driver ({shown})")
    oldest = knowing[-1]
    loads = "same major version" if oldest.version[0] == driver[0] else "its cubins may not load"
    return Choice(oldest, f"oldest that knows {arch}; newer than the driver ({shown}), {loads}")


def show_version(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _number_of(arch: str) -> int:
    return int(arch.removeprefix("sm_").rstrip("af"))


# ---- compiling ---------------------------------------------------------------------------------------


@functools.cache
def read_headers() -> Mapping[str, str]:
    """The text of astitch/cuda/*.cuh by file name, as a kernel includes it: "types.cuh"."""
    folder = Path(__file__).parents[1] / "cuda"
    return MappingProxyType({p.name: p.read_text("utf-8") for p in sorted(folder.glob("*.cuh"))})


def compile_cuda(
    source: str, arch: str, *, max_registers: int | None = None, extra: tuple[str, ...] = ()
) -> CompiledKernel:
    """Compile a translation unit for `arch` ("sm_90").

    max_registers: bound for every kernel without __launch_bounds__.  extra: more NVRTC options.
    Raises KernelCompileError with the compiler's words and the lines they are about.
    """
    return compile_request(Request(source, arch, max_registers, extra))


def compile_request(request: Request) -> CompiledKernel:
    """compile_cuda of one Request."""
    nvrtc = choose_nvrtc(request.arch).nvrtc
    with fork_waits():  # NVRTC has locks of its own
        return _compile(nvrtc, request)


def _compile(nvrtc: Nvrtc, request: Request) -> CompiledKernel:
    headers = read_headers()
    library, program = nvrtc.library, ctypes.c_void_p()
    names = (ctypes.c_char_p * len(headers))(*[name.encode() for name in headers])
    texts = (ctypes.c_char_p * len(headers))(*[text.encode() for text in headers.values()])
    flags = (*request.flags, *nvrtc.flags)
    options = (ctypes.c_char_p * len(flags))(*[flag.encode() for flag in flags])
    created = library.nvrtcCreateProgram(
        ctypes.byref(program),
        request.source.encode(),
        SOURCE_NAME.encode(),
        len(headers),
        texts,
        names,
    )
    if created:
        raise KernelCompileError(f"NVRTC {show_version(nvrtc.version)}: {_error(nvrtc, created)}")
    try:
        status = library.nvrtcCompileProgram(program, len(options), options)
        log = _fetch(nvrtc, program, "ProgramLog").rstrip(b"\0").decode("utf-8", "replace").strip()
        if status:
            head = f"NVRTC {show_version(nvrtc.version)} refuses the kernel for {request.arch}"
            raise KernelCompileError(
                f"{head}: {_error(nvrtc, status)}\n{quote_errors(log, request.source)}"
            )
        cubin = _fetch(nvrtc, program, "CUBIN")
        ptx = _fetch(nvrtc, program, "PTX").rstrip(b"\0")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
    kernels = parse_resources(log)
    if unknown := sorted(set(_ENTRY_POINT.findall(ptx)) - {name.encode() for name in kernels}):
        raise KernelCompileError(
            f"NVRTC {show_version(nvrtc.version)} ({nvrtc.path}) does not say what {unknown[0].decode()} uses\n"
            f"  without registers and shared memory its residency cannot be proved; its log: {log!r}"
        )
    return CompiledKernel(cubin, ptx, MappingProxyType(kernels), log, nvrtc.version)


def count_threads() -> int:
    """Compilations that the processor can run side by side."""
    if hasattr(os, "sched_getaffinity"):  # what a container leaves of the machine
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def compile_many_cuda(
    requests: Iterable[Request],
    *,
    compile_one: Callable[[Request], CompiledKernel] = compile_request,
    threads: int | None = None,
) -> tuple[CompiledKernel, ...]:
    """Compile requests side by side (NVRTC runs without the interpreter's lock), results in their order.

    compile_one: kernel_cache.compile_cached puts the cache in front.  Every request is tried before
    the first KernelCompileError is raised.
    """
    return tuple(_compile_side_by_side(tuple(requests), compile_one, threads))


def _compile_side_by_side(
    requests: Sequence[Request], compile_one: Callable[[Request], Compiled], threads: int | None
) -> list[Compiled]:
    with ThreadPoolExecutor(threads or count_threads()) as pool:
        futures = [pool.submit(compile_one, request) for request in requests]
    return [future.result() for future in futures]


def compile_each_cuda(
    requests: Iterable[Request],
    *,
    compile_one: Callable[[Request], CompiledKernel] = compile_request,
) -> list[CompiledKernel | KernelCompileError]:
    """What compile_many_cuda gives, with the error in place of each kernel that the compiler refuses.  Raises
    CompilerMissing."""

    def compile_or_refuse(request: Request) -> CompiledKernel | KernelCompileError:
        try:
            return compile_one(request)
        except CompilerMissing:
            raise
        except KernelCompileError as error:
            return error

    return _compile_side_by_side(tuple(requests), compile_or_refuse, None)


def _error(nvrtc: Nvrtc, status: int) -> str:
    words: bytes = nvrtc.library.nvrtcGetErrorString(status)
    return words.decode()


def _fetch(nvrtc: Nvrtc, program: ctypes.c_void_p, what: str) -> bytes:
    """nvrtcGet<what> of a program."""
    size = ctypes.c_size_t()
    status = getattr(nvrtc.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    status = status or getattr(nvrtc.library, f"nvrtcGet{what}")(program, buffer)
    if status:
        raise KernelCompileError(
            f"NVRTC {show_version(nvrtc.version)} hands out no {what}: {_error(nvrtc, status)}"
        )
    return buffer.raw


# ---- reading the log ---------------------------------------------------------------------------------

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
_ENTRY_POINT = re.compile(rb"\.entry ([\w$]+)")
_PROPERTIES = re.compile(r"Function properties for '?([^'\s]+)")
_FAULT = re.compile(rf"^{re.escape(SOURCE_NAME)}\((\d+)\): .*error", re.MULTILINE)


def parse_resources(log: str) -> dict[str, Resources]:
    """The kernels in a `ptxas -v` log, by name."""
    kernels: dict[str, Resources] = {}
    entry, described, frame = "", "", (0, 0, 0)
    for line in log.splitlines():
        if found := _ENTRY.search(line):
            entry, frame = found[1], (0, 0, 0)
        elif found := _PROPERTIES.search(line):
            described = found[1]
        elif (found := _FRAME.search(line)) and described == entry:
            frame = int(found[1]), int(found[2]), int(found[3])
        elif (found := _USED.search(line)) and entry:
            stack, stores, loads = frame
            kernels[entry] = Resources(int(found[1]), stores, loads, stack, int(found[2] or 0))
            entry = ""
    return kernels


def quote_errors(log: str, source: str, *, most: int = 3) -> str:
    """The log, and under it the lines that its first errors are about, each with two around it."""
    lines = source.splitlines()
    quoted = []
    for fault in list(dict.fromkeys(int(found[1]) for found in _FAULT.finditer(log)))[:most]:
        quoted += [
            f"{'>' if number == fault else ' '} {number:5} | {lines[number - 1]}"
            for number in range(max(1, fault - 2), min(len(lines), fault + 2) + 1)
        ] + ["        ~"]
    return "\n".join([log, *quoted[:-1]])
