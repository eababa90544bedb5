"""The engine without a GPU: runs emitted CUDA text on the CPU, and checks it.

Takes the text that also goes to NVRTC, hands on a HostModule whose kernels run in place on NumPy
arrays.  g++ compiles the text with cuda/host.h; cuda/host_runtime.cpp runs one fibre a CUDA thread.
In check mode every memory access is watched: races, bounds, barriers, uninitialised reads.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from astitch.errors import (
    ArgumentMismatch,
    CompilerMissing,
    KernelCompileError,
    KernelFault,
    LaunchRefused,
)
from astitch.options import cache_dir
from astitch.system.forks import ForkLock, fork_waits
from astitch.system.kept_libraries import (
    FORM,
    compile_apart,
    load_library,
    refuse_full_disk,
    run_compiler,
)
from astitch.system.private_files import ADVICE, PrivateFolder
from astitch.toolchain.override import replace_source, tell_refused

HEADERS = Path(__file__).parents[1] / "cuda"

MAX_THREADS = 1024
"""Threads of a block, on every CUDA device."""

MAX_SHARED_BYTES = 227 * 1024
"""Dynamic shared memory of a block on the largest devices (H100, opt-in)."""

MAX_BLOCKS = 2**31 - 1
"""Blocks of a one-dimensional grid."""

DEVICE_ALIGNMENT = 256
"""The alignment of cudaMalloc; checked launches align every argument so."""

GUARD_BYTES = 64 << 10
"""Room between the arguments of a checked launch, so that an index a little off hits nothing."""

VECTOR_ALIGNMENT = 16
"""The widest access of a kernel: g++ uses instructions that fault below this alignment."""

COMMON_FLAGS = (
    "-x", "c++", "-std=c++17", "-fPIC", "-g1",
    # One rounding an operation, wrap-around integers, values through other types: as on the GPU.
    "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing", "-fno-math-errno", "-fno-trapping-math",
    "-fno-exceptions", "-fno-rtti",
    # Modules are loaded side by side: nothing of theirs may be shared.
    "-fvisibility=hidden", "-fno-gnu-unique", "-fno-semantic-interposition",
    "-fno-threadsafe-statics",
    # A call keeps its return address, which is how a fault finds its line; frames fit the stacks.
    "-fno-optimize-sibling-calls", "-Werror=frame-larger-than=32768",
    "-Wno-unknown-pragmas",
)  # fmt: skip
FAST_FLAGS = ("-O2",)
CHECK_FLAGS = (
    "-O1", "-DASTITCH_CHECK", "-fsanitize=thread", "--param=tsan-distinguish-volatile=1",
    "--param=tsan-instrument-func-entry-exit=0",
    "-fsanitize=bounds-strict,alignment,shift-exponent,integer-divide-by-zero",
    "-fno-sanitize-recover=all",
)  # fmt: skip
LINK_FLAGS = ("-shared", "-nostdlib", "-lm", "-lgcc")
RUNTIME_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-pthread")

WORDS = re.compile(r"^__device__ __align__\(256\) unsigned int (\w+)_words\[", re.MULTILINE)
KERNEL = re.compile(
    r"__global__\s+void\s+(?:__cluster_dims__\s*\([^)]*\)\s*)?(?:__launch_bounds__\s*\(\s*(\d*)[^)]*\)\s*)?([A-Za-z_]\w*)\s*\("
)
STATIC = re.compile(r"^\s*ASTITCH_STATIC_ARENA\((\d+)\)", re.MULTILINE)
"""Shared memory that a kernel has without its launch's doing."""


class Order(enum.Enum):
    """The order in which ready threads run.  A correct kernel gives the same bits in each."""

    FORWARD = 0
    REVERSE = 1
    RANDOM = 2


@dataclass(frozen=True, slots=True)
class HostKernel:
    """One entry of a module: the runtime's description of it, and its bound on the block size.

    words: the address and bytes of the array of the module at which its blocks meet, if it has one.
    static_bytes: shared memory that the launch does not give.
    """

    name: str
    address: int
    const_parameters: tuple[bool, ...]
    max_threads: int
    words: tuple[int, int] | None = None
    static_bytes: int = 0


@dataclass(frozen=True, slots=True)
class HostModule:
    """Compiled kernel text, loaded.

    check: every access is watched (2 to 10 times slower, the first fault ends the launch).  Without
    it a kernel that writes out of bounds may crash the process, like any machine code; barriers,
    warp operations and deadlocks are checked all the same.
    """

    source: str = field(repr=False)
    library: Path
    kernels: Mapping[str, HostKernel]
    check: bool

    def launch(
        self,
        name: str,
        grid: int,
        block: int,
        arguments: Sequence[np.ndarray[Any, Any]],
        *,
        shared_bytes: int = 0,
        cooperative: bool = False,
        order: Order = Order.FORWARD,
        seed: int = 0,
        workers: int = 2,
        pointer_table: bool = False,
        uninitialised: Collection[int] = (),
        names: Sequence[str] | None = None,
    ) -> None:
        """Runs kernel `name` with `grid` blocks of `block` threads, in place on `arguments`.

        arguments: C-contiguous arrays, one for each pointer parameter (read-only ones only where
        the parameter points to const); any may be empty.  pointer_table: the kernel's one parameter is `unsigned char*
        const*`, an array of the addresses.  (A checked module then lets the kernel write no read-only array.)
        shared_bytes: dynamic shared memory of a block.  cooperative: all blocks are resident together, which a global
        barrier needs.  workers: OS threads that blocks are spread on (one if cooperative, checked or in random order).
        uninitialised: indices of arguments whose contents mean nothing before the launch (checked modules refuse to
        read them unwritten).  names: of the arguments in messages, else arg0, arg1 ...

        Raises ArgumentMismatch (arrays that do not fit the parameters), LaunchRefused (beyond
        CUDA's limits), KernelFault (what the kernel did wrong, with lines of its text).
        """
        kernel = self.kernels.get(name)
        if kernel is None:
            raise ArgumentMismatch(
                f"the module has no kernel {name!r}; it has {', '.join(self.kernels) or 'none'}"
            )
        if names is None:
            names = tuple(f"arg{i}" for i in range(len(arguments)))
        shared_bytes = max(shared_bytes, kernel.static_bytes)
        check_limits(kernel, grid, block, shared_bytes)
        constness = check_arguments(kernel, arguments, names, pointer_table)
        with PlacedArguments(arguments, constness, guarded=self.check) as placed:
            described = (Argument * (len(arguments) + 2))()
            for i, array in enumerate(arguments):
                described[i] = Argument(
                    placed.addresses[i], array.nbytes, array.itemsize, constness[i],
                    i in uninitialised, names[i].encode(),
                )  # fmt: skip
            count = len(arguments)
            pointers = (ctypes.c_void_p * (count + 1))(*placed.addresses)
            passed = pointers
            if pointer_table:
                table_address = ctypes.addressof(pointers)
                passed = (ctypes.c_void_p * 1)(table_address)
                described[count] = Argument(table_address, 8 * count, 8, 1, 0, b"pointer table")
                count += 1
            if kernel.words:
                described[count] = Argument(*kernel.words, 4, 0, 0, b"barrier words")
                count += 1
            message = ctypes.create_string_buffer(8192)
            runtime = load_runtime()
            with fork_waits():  # a launch has locks and threads of its own
                failed = runtime.astitch_launch(
                    kernel.address, passed, grid, block, shared_bytes, cooperative, self.check,
                    order.value, seed, workers, described, count, message, len(message),
                )  # fmt: skip
        if failed:
            text = self.resolve_lines(message.value.decode(errors="replace"))
            raise KernelFault(f"kernel {name!r}: {text}")

    def resolve_lines(self, text: str) -> str:
        """A fault's text with every @hex, an address in the module, as lines of the kernel text."""
        offsets = sorted(set(re.findall(r"@([0-9a-f]+)", text)))
        places = find_lines(self.library, offsets)
        lines = self.source.splitlines()

        def place(match: re.Match[str]) -> str:
            found = []
            quoted = ""
            for file, number in places.get(match[1], ()):
                found.append(f"{file}:{number}")
                if file == "kernel.cu" and number <= len(lines):
                    quoted = f" `{lines[number - 1].strip()}`"
            # The innermost line first; its callers up to the kernel follow.
            return ", called from ".join(found) + quoted if found else f"address 0x{match[1]}"

        return re.sub(r"@([0-9a-f]+)", place, text)


def compile_host(source: str, *, check: bool = False) -> HostModule:
    """Compiles kernel text for this machine, or takes it from the cache on disk, and loads it.

    A hand-edited text comes in its place, if g++ takes it.
    Raises KernelCompileError: no g++, or the text as g++ sees it is wrong.
    """
    edited = replace_source(source)
    if edited is not source:
        try:
            return _compile_host(edited, check)
        except KernelCompileError as error:
            tell_refused(source, error)
    return _compile_host(source, check)


def _compile_host(source: str, check: bool) -> HostModule:
    with _modules_lock:
        module = _modules.get((source, check))
    if module is None:
        try:
            module = load_module(source, check)
        except KernelCompileError as error:
            error.source = source
            raise
        with _modules_lock:
            module = _modules.setdefault((source, check), module)
    return module


def compile_many(sources: Iterable[str], check: bool = False) -> list[HostModule]:
    """compile_host of each text, two compilers at a time."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(lambda source: compile_host(source, check=check), sources))


_modules: dict[tuple[str, bool], HostModule] = {}
_modules_lock = ForkLock()
_runtime_lock = ForkLock()


# ---- launching -----------------------------------------------------------------------------------


class Argument(ctypes.Structure):
    """One argument, as cuda/host_runtime.cpp declares it."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("element_bytes", ctypes.c_uint32),
        ("is_const", ctypes.c_uint32),
        ("uninitialised", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
    )


class KernelDescription(ctypes.Structure):
    """What a module exports for a kernel, as cuda/host.h declares it."""

    _fields_ = (
        ("call", ctypes.c_void_p),
        ("parameters", ctypes.c_uint32),
        ("parameter_is_const", ctypes.POINTER(ctypes.c_bool)),
    )


class Words(ctypes.Structure):
    """The barrier words that a module has for a kernel, as cuda/host.h declares them."""

    _fields_ = (("address", ctypes.c_void_p), ("bytes", ctypes.c_uint64))


def check_limits(kernel: HostKernel, grid: int, block: int, shared_bytes: int) -> None:
    """Refuses what a CUDA launch would refuse."""

    def refuse(what: str, then: str) -> LaunchRefused:
        return LaunchRefused(f"kernel {kernel.name!r}: {what}\n  {then}")

    if not 1 <= grid <= MAX_BLOCKS:
        raise refuse(f"a grid of {grid} blocks", f"CUDA allows 1 to {MAX_BLOCKS}")
    if not 1 <= block <= MAX_THREADS:
        raise refuse(f"a block of {block} threads", f"CUDA allows 1 to {MAX_THREADS}")
    if block > kernel.max_threads:
        raise refuse(
            f"a block of {block} threads", f"its __launch_bounds__ allow {kernel.max_threads}"
        )
    if not 0 <= shared_bytes <= MAX_SHARED_BYTES:
        raise refuse(
            f"{shared_bytes} bytes of shared memory", f"a block has at most {MAX_SHARED_BYTES}"
        )


def check_arguments(
    kernel: HostKernel,
    arguments: Sequence[np.ndarray[Any, Any]],
    names: Sequence[str],
    pointer_table: bool,
) -> tuple[bool, ...]:
    """Which arguments the kernel must not write; refuses arrays that it cannot be given."""
    constness = kernel.const_parameters
    if pointer_table:
        if len(constness) != 1:
            raise ArgumentMismatch(
                f"kernel {kernel.name!r} has {len(constness)} parameters; a pointer table is for a "
                "kernel with one, `unsigned char* const*`"
            )
        constness = tuple(not array.flags.writeable for array in arguments)
    if len(arguments) != len(constness) or len(names) != len(arguments):
        raise ArgumentMismatch(
            f"kernel {kernel.name!r} has {len(constness)} parameters, the launch gives "
            f"{len(arguments)} arrays and {len(names)} names"
        )
    for array, argument, is_const in zip(arguments, names, constness, strict=True):
        if not array.flags.c_contiguous:
            problem = "is not C-contiguous; pass np.ascontiguousarray(...)"
        elif not array.flags.writeable and not is_const:
            problem = "is read-only, but the kernel may write it; pass a copy"
        else:
            continue
        raise ArgumentMismatch(f"kernel {kernel.name!r}: argument {argument!r} {problem}")
    return constness


class PlacedArguments:
    """The arguments' addresses during a launch: their own, or those of copies better placed.

    Checked launches use copies aligned as a GPU allocates and with room between them; others only
    where an array is not aligned for vectors.  Arrays that overlap stay as they overlap.
    """

    def __init__(
        self,
        arguments: Sequence[np.ndarray[Any, Any]],
        constness: Sequence[bool],
        *,
        guarded: bool,
    ) -> None:
        self.addresses = [int(array.__array_interface__["data"][0]) for array in arguments]
        # From where, to where, how many bytes, whether to copy them back.
        self._copies: list[tuple[int, int, int, bool]] = []
        if guarded or any(
            address % VECTOR_ALIGNMENT and array.nbytes
            for address, array in zip(self.addresses, arguments, strict=True)
        ):
            self._place(arguments, constness)

    def _place(self, arguments: Sequence[np.ndarray[Any, Any]], constness: Sequence[bool]) -> None:
        writeable = [
            array.flags.writeable and not is_const
            for array, is_const in zip(arguments, constness, strict=True)
        ]
        # Address ranges of arrays that overlap: low, high, may be written, the arrays.
        groups: list[tuple[int, int, bool, list[int]]] = []
        for index in sorted(range(len(arguments)), key=self.addresses.__getitem__):
            low = self.addresses[index]
            high = low + arguments[index].nbytes
            if low == high:
                continue
            if groups and low < groups[-1][1]:
                start, end, written, members = groups[-1]
                groups[-1] = (start, max(end, high), written or writeable[index], [*members, index])
            else:
                groups.append((low, high, writeable[index], [index]))
        room = GUARD_BYTES + DEVICE_ALIGNMENT
        total = sum(high - low + room for low, high, _, _ in groups) + GUARD_BYTES
        self._arena = np.empty(total, np.uint8)
        target = int(self._arena.__array_interface__["data"][0]) + GUARD_BYTES
        for low, high, written, members in groups:
            target += -target % DEVICE_ALIGNMENT
            self._copies.append((low, target, high - low, written))
            for index in members:
                self.addresses[index] += target - low
            target += high - low + GUARD_BYTES

    def __enter__(self) -> PlacedArguments:
        for source, target, size, _ in self._copies:
            ctypes.memmove(target, source, size)
        return self

    def __exit__(self, *_: object) -> None:
        for source, target, size, writes in self._copies:
            if writes:
                ctypes.memmove(source, target, size)


def find_lines(library: Path, offsets: Sequence[str]) -> dict[str, list[tuple[str, int]]]:
    """For each code offset (hex) the files and lines it comes from, innermost first.

    Lines of host.h are left out: they are the words of the dialect, not the kernel's text.
    """
    program = shutil.which("addr2line")
    if program is None or not offsets:
        return {}
    result = run_compiler([program, "-a", "-i", "-e", str(library), *offsets])
    places: dict[str, list[tuple[str, int]]] = {}
    current: list[tuple[str, int]] = []
    for line in result.stdout.splitlines():
        if line.startswith("0x"):
            current = places.setdefault(f"{int(line, 16):x}", [])
        elif match := re.match(r"(.+):(\d+)", line):
            file = os.path.basename(match[1])
            if file != "host.h" and (file, int(match[2])) not in current:
                current.append((file, int(match[2])))
    return places


# ---- compiling -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compiler:
    """The host compiler: where it is, and what must differ for its products to differ."""

    path: str
    identity: str


def find_compiler() -> Compiler:
    """g++ on PATH; raises CompilerMissing if there is none."""
    path = shutil.which("g++")
    if path is None:
        raise CompilerMissing(
            "no host C++ compiler: g++ was not found on PATH; install g++ (Debian: apt-get install "
            "g++) or run on a machine with a GPU"
        )
    return Compiler(path, identify_compiler(path, os.stat(path).st_mtime_ns))


@functools.cache
def identify_compiler(path: str, changed_ns: int) -> str:
    """Version and target of a compiler; changed_ns: an upgrade in place asks again."""
    answers = [run_compiler([path, flag]).stdout for flag in ("--version", "-dumpmachine")]
    return "\n".join((path, *answers))


LONGEST_WAIT_S = 120.0
"""For another process that compiles the same text."""


def find_cache() -> PrivateFolder:
    """The folder of compiled modules."""
    return PrivateFolder(cache_dir() / "host")


@functools.cache
def read_headers() -> str:
    """All text that an emitted kernel can include."""
    files = sorted([*HEADERS.glob("*.cuh"), HEADERS / "host.h"])
    return "\0".join(f"{file.name}\0{file.read_text()}" for file in files)


def hash_text(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def build_module(source: str, compiler: Compiler, flags: Sequence[str]) -> bytes:
    """The compiled text.  Raises KernelCompileError."""
    exports = "".join(f"ASTITCH_EXPORT_KERNEL({name})\n" for _, name in KERNEL.findall(source))
    exports += "".join(f"ASTITCH_EXPORT_WORDS({name})\n" for name in WORDS.findall(source))

    def build(folder: Path) -> bytes:
        (folder / "kernel.cu").write_text(f'{source}\n#line 1 "exports"\n{exports}')
        # Two steps: with -fsanitize=thread the linker would bring in a library of its own.
        compile_step = [
            compiler.path, *flags, f"-ffile-prefix-map={folder}=.", "-I", str(HEADERS),
            "-include", str(HEADERS / "host.h"), "-c", "kernel.cu", "-o", "kernel.o",
        ]  # fmt: skip
        link_step = [compiler.path, "kernel.o", *LINK_FLAGS, "-o", "kernel.so"]
        for step in (compile_step, link_step):
            result = run_compiler(step, folder)
            if result.returncode:
                refuse_full_disk(result.stderr)
                raise KernelCompileError(explain_refusal(result.stderr))
        return (folder / "kernel.so").read_bytes()

    return compile_with_room(build)


def compile_with_room(build: Callable[[Path], bytes]) -> bytes:
    """compile_apart; a disk without room is no fault of the text.  Raises CompilerMissing."""
    try:
        return compile_apart(build)
    except OSError as error:
        raise CompilerMissing(
            f"g++ has no folder to work in: {error}\n"
            f"  make room in the folder of temporary files, or point TMPDIR at another one; {ADVICE}"
        ) from error


def explain_refusal(messages: str) -> str:
    """The first errors of g++, which quote the lines of kernel.cu, the emitted text."""
    lines = messages.splitlines()
    first = next((i for i, line in enumerate(lines) if "error:" in line), 0)
    shown = "\n  ".join(lines[first : first + 12])
    return f"g++ refuses the kernel text (kernel.cu):\n  {shown}"


def name_module(source: str, compiler: Compiler, flags: Sequence[str]) -> str:
    """The file name of a compiled text: by all that it is made of."""
    return f"{hash_text(FORM, source, read_headers(), compiler.identity, *flags, *LINK_FLAGS)}.so"


def load_module(source: str, check: bool) -> HostModule:
    """Loads the compiled text, from the cache where it is there, and reads what it says of its kernels."""
    load_runtime()
    compiler, cache = find_compiler(), find_cache()
    flags = (*COMMON_FLAGS, *(CHECK_FLAGS if check else FAST_FLAGS))
    file = name_module(source, compiler, flags)
    library = load_library(
        cache, file, lambda: build_module(source, compiler, flags), longest_s=LONGEST_WAIT_S
    )
    kernels, waiting = {}, {*WORDS.findall(source)}
    static = max(map(int, STATIC.findall(source)), default=0)
    for bound, name in KERNEL.findall(source):
        description = KernelDescription.in_dll(library, f"astitch_kernel_{name}")
        words = Words.in_dll(library, f"astitch_words_{name}") if name in waiting else None
        kernels[name] = HostKernel(
            name,
            ctypes.addressof(description),
            tuple(description.parameter_is_const[i] for i in range(description.parameters)),
            int(bound) if bound else MAX_THREADS,
            (words.address, words.bytes) if words else None,
            static,
        )
    return HostModule(source, cache.path / file, kernels, check)


_loaded_runtime: list[ctypes.CDLL] = []


def load_runtime() -> ctypes.CDLL:
    """The runtime, compiled on first use; one for the process, its symbols open to the modules."""
    with _runtime_lock:
        if not _loaded_runtime:
            library = open_runtime()
            library.astitch_launch.argtypes = [
                ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_uint32] * 6, ctypes.c_uint64,
                ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint32,
            ]  # fmt: skip
            library.astitch_launch.restype = ctypes.c_int
            _loaded_runtime.append(library)
        return _loaded_runtime[0]


def open_runtime() -> ctypes.CDLL:
    """The compiled runtime, from the cache where it is there."""
    compiler = find_compiler()
    source = HEADERS / "host_runtime.cpp"
    header = (HEADERS / "host.h").read_text()
    key = hash_text(FORM, source.read_text(), header, compiler.identity, *RUNTIME_FLAGS)
    name = f"runtime-{key}.so"

    def build(folder: Path) -> bytes:
        command = [compiler.path, *RUNTIME_FLAGS, str(source), "-o", "runtime.so"]
        result = run_compiler(command, folder)
        if result.returncode:
            refuse_full_disk(result.stderr)
            raise KernelCompileError(f"g++ refuses the host runtime:\n{result.stderr[:2000]}")
        return (folder / "runtime.so").read_bytes()

    return load_library(
        find_cache(),
        name,
        lambda: compile_with_room(build),
        longest_s=LONGEST_WAIT_S,
        mode=ctypes.RTLD_GLOBAL,
    )
