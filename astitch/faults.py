"""The safety net: an error inside astitch costs a kernel, a pass or a loop, never the program.

Takes pieces of the compiler's work, hands on their results, or what the program does without them.  Each error is kept
as a Fault.  Whoever compiled the module shows the faults once, with a folder in which `repro.py` makes them again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from astitch import options
from astitch.device.gpu import PRESETS
from astitch.errors import (
    AstitchError,
    CompilerMissing,
    DynamicShape,
    FallbackRefused,
    IllegalProduct,
    KernelCompileError,
    KernelFault,
    LaunchRefused,
    MalformedHlo,
    UnsupportedOp,
    UnsupportedType,
)
from astitch.events import note_fallback
from astitch.system.callbacks import is_interrupt
from astitch.system.private_files import PrivateFolder

Product = TypeVar("Product")

INTERNAL = (IllegalProduct, FallbackRefused, KernelCompileError, KernelFault, LaunchRefused)
"""The errors raised on purpose that nobody but astitch is to blame for."""

ONLY_XLA = (DynamicShape, MalformedHlo, UnsupportedOp, UnsupportedType)
"""What a function of JAX's may hold that XLA computes and astitch does not."""

MOST_DUMPS = 32
"""Folders of faults that are kept in the cache; the oldest goes first."""

REPRO = """\
\"\"\"Compiles the module beside this file again{what}.\"\"\"
{environment}
from pathlib import Path

{imports}

module = Path(__file__).with_name("{module}").{read}()
{call}
"""


class FaultWarning(RuntimeWarning):
    """An error inside astitch left a part of a program, or all of it, to XLA."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An error inside astitch.

    stage: the pass or stage that raised it.  subject: the stitch op, loop or graph that it worked on.
    error: the error's type and first line.  cost: what became of the subject.  trace: the whole traceback.
    """

    stage: str
    subject: str
    error: str
    cost: str
    trace: str = field(repr=False)

    def __str__(self) -> str:
        return f"{self.stage}: {self.subject}: {self.error}; {self.cost}"


def is_fault(error: BaseException) -> bool:
    """Is it a bug in astitch?  What a user, a module or an installation is to blame for is not, nor an interrupt."""
    if isinstance(error, CompilerMissing) or is_interrupt(error):
        return False
    return isinstance(error, INTERNAL) or not isinstance(error, AstitchError)


class FaultLog:
    """The faults of one compilation; safe to use from several threads.

    raises: the net is off, and a fault is raised as it is (None: as ASTITCH_FAULTS says).
    """

    def __init__(self, raises: bool | None = None) -> None:
        self.raises = options.raise_faults() if raises is None else raises
        self._found: list[Fault] = []

    @property
    def found(self) -> tuple[Fault, ...]:
        """The faults so far, the earliest first."""
        return tuple(self._found)

    def attempt(
        self,
        work: Callable[[], Product],
        otherwise: Callable[[], Product],
        *,
        stage: str,
        subject: str,
        cost: str,
    ) -> Product:
        """What `work` gives; what `otherwise` gives where a fault stops it.  Raises all that is no fault."""
        try:
            return work()
        except Exception as error:
            self.note(error, stage=stage, subject=subject, cost=cost)
        return otherwise()

    def note(self, error: Exception, *, stage: str, subject: str, cost: str) -> Fault:
        """Keeps a fault.  Raises the error itself where it is none, or where the net is off."""
        if self.raises or not is_fault(error):
            error.add_note(f"in stage {stage}, {subject}")
            raise error
        fault = Fault(stage, subject, show_error(error), cost, _show_trace(error))
        self._found.append(fault)
        return fault


def show_error(error: BaseException) -> str:
    """An error's type and the first line of its text."""
    first, *_ = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _show_trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def report_faults(
    name: str,
    module: bytes | str,
    gpu: str,
    faults: Sequence[Fault],
    *,
    inside_xla: bool = False,
    stacklevel: int = 2,
) -> None:
    """Warns once (FaultWarning) of the faults of a program, and writes a folder that makes them again.

    name: the program's.  module: its serialized HloModuleProto or HLO text.  gpu: the name of its Gpu.
    inside_xla: was it compiled for a program of XLA's?  Does nothing without faults.
    """
    if not faults:
        return
    for fault in faults:
        note_fallback(name, cause="fault", reason=fault.error, stage=fault.stage, cost=fault.cost)
    try:
        where = f"a dump with repro.py is in {dump_faults(name, module, gpu, faults, inside_xla)}"
    except OSError as error:
        where = f"no dump could be written ({error}); ASTITCH_DUMP names a folder for it"
    first, *others = faults
    more = f"\n  and {len(others)} more, which explain() lists" if others else ""
    warnings.warn(
        f"astitch: {name}: an error inside astitch, for which XLA makes up: {first}{more}\n"
        f"  {where}; please report it; strict=True raises the error",
        FaultWarning,
        stacklevel=stacklevel + 1,
    )


def leave_to_xla(name: str, reason: str, strict: bool | float = False, stacklevel: int = 2) -> None:
    """Warns that a function is not stitched.  Raises UnsupportedOp where strict forbids it."""
    text = (
        f"astitch: XLA computes all of {name}: {reason}\n"
        "  take callbacks, prints and what astitch cannot read out of the function, and pass it arrays of one device, "
        "to have it stitched"
    )
    if strict:
        raise UnsupportedOp(text)
    note_fallback(name, cause="unsupported", reason=reason)
    warnings.warn(text, RuntimeWarning, stacklevel=stacklevel + 1)


def leave_whole(
    name: str,
    module: bytes | str,
    gpu: str,
    error: Exception,
    *,
    strict: bool | float = False,
    inside_xla: bool = False,
) -> None:
    """Says that XLA computes all of a function for what stopped its compilation.

    module, gpu, inside_xla: see report_faults.  Raises UnsupportedOp for what only XLA computes where strict forbids
    it, and a fault where strict or ASTITCH_FAULTS asks for it.  Always raises what is neither: an interrupt, or what
    the user can mend.
    """
    if isinstance(error, ONLY_XLA):
        leave_to_xla(name, str(error).partition("\n")[0], strict)
        return
    faults = FaultLog(bool(strict) or None)
    faults.note(error, stage="compile", subject=name, cost="XLA computes all of it")
    report_faults(name, module, gpu, faults.found, inside_xla=inside_xla)


def dump_faults(
    name: str, module: bytes | str, gpu: str, faults: Sequence[Fault], inside_xla: bool = False
) -> Path:
    """The folder with module, faults and repro.py: the same one for the same module and faults.  Raises OSError.

    It is in the folder that ASTITCH_DUMP names, else in the cache, which keeps the newest MOST_DUMPS.
    """
    data = module.encode() if isinstance(module, str) else module
    listed = "\n\n".join(f"{fault}\n{fault.trace}" for fault in faults)
    digest = hashlib.sha256(data + gpu.encode() + "\n".join(map(str, faults)).encode()).hexdigest()
    asked = options.dump_dir()
    parent = asked or options.cache_dir() / "faults"
    if not asked:
        PrivateFolder(parent).make()
    folder = parent / f"fault_{file_name(name)}_{digest[:12]}"
    files = PrivateFolder(folder)
    try:
        files.read("repro.py")  # nobody else's, which is not to be run
    except FileNotFoundError:
        files.write("faults.txt", listed.encode())
        write_repro(folder, module, gpu, raises=True, inside_xla=inside_xla)
    if not asked:
        _forget_oldest(parent)
    return folder


def file_name(name: str) -> str:
    """A name from an HLO module as part of a file name: no separators, bounded."""
    return re.sub(r"[^\w.-]", "_", name)[:60]


def write_repro(
    folder: Path, module: bytes | str, gpu: str, *, raises: bool = False, inside_xla: bool = False
) -> None:
    """Writes a module into a folder, and beside it repro.py, which compiles it for a GPU: a preset, else the device
    that it runs on.  Only this user may read and write them.

    raises: an error inside astitch is raised, else the explanation is printed.  inside_xla: compile it for a program of
    XLA's.  Raises OSError.
    """
    named = gpu in PRESETS
    if inside_xla:
        imports = [
            "from astitch.device.gpu import from_device, preset",
            "from astitch.hlo_import import import_hlo",
            "from astitch.xla.compile_module import compile_for_xla",
        ]
        device = f"preset({gpu!r})" if named else "from_device()"
        call = f"compilation, _ = compile_for_xla(import_hlo(module), {device})\nprint(compilation.explain())"
    else:
        imports = [
            "import astitch",
            *([] if named else ["from astitch.device.gpu import from_device"]),
        ]
        device = repr(gpu) if named else "from_device()"
        call = f"print(astitch.compile_hlo(module, gpu={device}).explain())"
    if isinstance(module, str):
        file, read, data = "module.hlo.txt", "read_text", module.encode()
    else:
        file, read, data = "module.hlo.pb", "read_bytes", module
    files = PrivateFolder(folder)
    files.write(file, data)
    raising = '\nimport os\n\nos.environ["ASTITCH_FAULTS"] = "raise"'
    text = REPRO.format(
        what=": an error inside astitch is raised" if raises else ", and prints what became of it",
        environment=raising if raises else "",
        imports="\n".join(imports),
        module=file,
        read=read,
        call=call,
    )
    files.write("repro.py", text.encode())


def _forget_oldest(parent: Path) -> None:
    """Removes folders of faults beyond MOST_DUMPS; another process may do so at the same time."""
    folders = [entry for entry in os.scandir(parent) if entry.name.startswith("fault_")]
    with contextlib.suppress(OSError):
        folders.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns)
        for entry in folders[:-MOST_DUMPS]:
            shutil.rmtree(entry.path, ignore_errors=True)
