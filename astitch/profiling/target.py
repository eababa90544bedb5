"""TARGET as it is typed -> Target: an HLO module, and the JAX function that it came from if there is one.

Takes `module:function`, a Python file, an HLO file or a folder that XLA dumped.  Every way in which that can go wrong
is an AstitchError of one sentence and what to do.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from astitch.compile import read_module
from astitch.errors import AstitchError
from astitch.graph.ir import DType

HLO_SUFFIXES = (".pb", ".txt", ".hlo")

HOOK = "profile_target"
"""What a Python file defines so that it is a target by itself: () -> (function, its arguments)."""

SHAPE = re.compile(r"\s*([a-z]\w*)\[([\d,\s]*)\]\s*")

DTYPES = {dtype.value: dtype.numpy for dtype in DType}
"""NumPy's types by HLO's names of element types."""


@dataclass(frozen=True)
class Target:
    """hlo: the module, serialized or as text.  function, args: what JAX traced it from; None for an HLO file.
    carries: each call takes over its first argument and gives the next call's as its first result, as a training step
    does.  notes: what was chosen where there was a choice.  typed: what read_target was given.
    """

    name: str
    hlo: bytes | str = field(repr=False)
    function: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    carries: bool = False
    notes: tuple[str, ...] = ()
    typed: tuple[str, ...] = ()


def read_target(text: str, args: Sequence[str] = (), *, carries: bool = False) -> Target:
    """Raises AstitchError, which says what to type instead.  args: shapes, or one attribute that builds them.
    carries: see Target."""
    return replace(_read(text, args), carries=carries, typed=(text, *args))


def _read(text: str, args: Sequence[str]) -> Target:
    path = Path(text)
    if path.is_dir():
        return read_dump(path)
    if path.suffix in HLO_SUFFIXES:
        if args:
            raise AstitchError(
                f"{text}: an HLO module has its own shapes\n  leave --args out, or give module:function"
            )
        return Target(text, read_module(text))
    place, colon, name = text.rpartition(":")
    if not colon:
        place, name = text, ""
    if not place.endswith(".py") and not name:
        raise AstitchError(
            f"{text}: no such HLO file or folder, and no module:function\n"
            "  give module:function, FILE.py, FILE.py:function, an HLO file (.pb, .txt, .hlo) or an XLA dump folder"
        )
    module = load_file(Path(place)) if place.endswith(".py") else load_module(place)
    if not name:
        function, values = call_hook(module, place)
        if args:
            values = build_args(args, module)
        return trace_function(place, function, values)
    function = find_attribute(module, name, place)
    if not callable(function):
        kind = type(function).__name__
        raise AstitchError(
            f"{text}: {name} is no function, but a {kind}\n  name a function of JAX arrays"
        )
    if not args and hasattr(module, HOOK):
        own, values = call_hook(module, place)
        if unwrap(own) is unwrap(function):
            return trace_function(text, function, values)
    return trace_function(text, function, build_args(args, module))


def read_dump(folder: Path) -> Target:
    """The largest module before XLA's optimizations in a folder that --xla_dump_to made."""
    found = [
        file
        for file in sorted(folder.iterdir())
        if file.name.endswith(HLO_SUFFIXES) and "before_optimizations" in file.name
    ]
    found = found or [f for f in sorted(folder.iterdir()) if f.name.endswith((".hlo.pb", ".hlo"))]
    if not found:
        raise AstitchError(
            f"{folder}: no *before_optimizations* file in it\n"
            "  dump with XLA_FLAGS='--xla_dump_to=FOLDER --xla_dump_hlo_as_proto'"
        )
    # A proto holds what text leaves out (large constants), so it is taken where there are both.
    protos = [file for file in found if file.suffix == ".pb"]
    chosen = max(protos or found, key=lambda file: file.stat().st_size)
    others = len({file.name.split(".")[0] for file in found}) - 1
    notes = (f"{others} smaller modules in {folder} were left out",) if others else ()
    return Target(str(chosen), read_module(str(chosen)), notes=notes)


# ---- functions -------------------------------------------------------------------------------------------------


def load_file(path: Path) -> ModuleType:
    """A Python file as a module that is not __main__."""
    if not path.is_file():
        raise AstitchError(f"{path}: no such file\n  give the path of a Python file")
    spec = importlib.util.spec_from_file_location(f"astitch_profile_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # as when it is run
        sys.path.insert(0, folder)
    _run(str(path), lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    return module


def load_module(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    module: ModuleType = _run(name, lambda: importlib.import_module(name))
    return module


def _run(what: str, action: Callable[[], Any]) -> Any:
    """The user's own code: whatever it raises is told in one line."""
    try:
        return action()
    except AstitchError:
        raise
    except ModuleNotFoundError as error:
        raise AstitchError(
            f"{what}: {error}\n  install it, or run where Python finds it (PYTHONPATH)"
        ) from error
    except (Exception, SystemExit) as error:
        raise AstitchError(
            f"{what}: {type(error).__name__}: {_first_line(error)}\n  it must import without that"
        ) from error


def find_attribute(module: ModuleType, name: str, where: str) -> Any:
    """The attribute `name`, dots allowed."""
    value: Any = module
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            own = (
                (name, value)
                for name, value in vars(module).items()
                if callable(value) and getattr(value, "__module__", "") == module.__name__
            )
            others = [name for name, _ in own if not name.startswith("_")]
            listed = ", ".join(others[:8]) + (" ..." if len(others) > 8 else "")
            raise AstitchError(
                f"{where}: there is no {name}\n  functions in it: {listed or 'none'}"
            ) from None
    return value


def call_hook(module: ModuleType, where: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """What the file's own profile_target() says."""
    if not hasattr(module, HOOK):
        raise AstitchError(
            f"{where}: which function?  it defines no {HOOK}()\n"
            f"  give {where}:function with --args, or define {HOOK}() -> (function, arguments)"
        )
    made = _run(f"{where}: {HOOK}()", getattr(module, HOOK))
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0])):
        raise AstitchError(f"{where}: {HOOK}() must return (function, arguments)\n  mend that")
    return made[0], tuple(made[1])


def build_args(args: Sequence[str], module: ModuleType) -> tuple[Any, ...]:
    """Shapes like f32[8,128], apart by spaces or commas, or the name of an attribute that is or builds a tuple."""
    text = " ".join(args).strip()
    if re.fullmatch(r"[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?", text):
        place, _, name = text.rpartition(":")
        owner = load_module(place) if place else module
        value = find_attribute(owner, name, place or module.__name__)
        made = _run(f"--args {text}", value) if callable(value) else value
        return tuple(made) if isinstance(made, tuple | list) else (made,)
    return parse_shapes(text)


def parse_shapes(text: str) -> tuple[Any, ...]:
    """jax.ShapeDtypeStructs.  Raises AstitchError for what is no shape."""
    import jax

    found = []
    rest = text
    while rest.strip(", "):
        rest = rest.lstrip(", ")
        match = SHAPE.match(rest)
        if match is None or match[1] not in DTYPES:
            raise AstitchError(
                f"--args {rest.split()[0]}: no shape like f32[8,128]\n"
                f"  element types: {', '.join(DTYPES)}; or name an attribute that builds the arguments"
            )
        shape = tuple(int(extent) for extent in match[2].replace(" ", "").split(",") if extent)
        make: Any = jax.ShapeDtypeStruct
        found.append(make(shape, DTYPES[match[1]]))
        rest = rest[match.end() :]
    return tuple(found)


def unwrap(function: Any) -> Any:
    """The plain function of an astitch.jit."""
    from astitch.jit import JitFunction

    return inspect.unwrap(function) if isinstance(function, JitFunction) else function


def trace_function(name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Target:
    """The function as JAX lowers it for a GPU.  Raises AstitchError with the first line of JAX's error."""
    try:
        import jax
    except ImportError:
        raise AstitchError(
            f"{name}: a function needs JAX\n  pip install 'astitch[profile]', or give an HLO file"
        ) from None
    plain = unwrap(function)
    jitted = plain if hasattr(plain, "trace") else jax.jit(plain, keep_unused=True)
    try:
        lowered = jitted.trace(*args).lower(lowering_platforms=("cuda",))
        hlo = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    except Exception as error:  # whatever the function raises for these arguments
        given = ", ".join(show_argument(a) for a in args) or "no arguments"
        raise AstitchError(
            f"{name}: JAX cannot trace it with {given}: {_first_line(error)}\n"
            "  give its arguments by --args: shapes like f32[8,128], or an attribute that builds them"
        ) from error
    return Target(name, bytes(hlo), plain, args)


def show_argument(value: Any) -> str:
    """Short: f32[8,128], or how many arrays are in it."""
    import jax

    leaves = jax.tree.leaves(value)
    if len(leaves) == 1 and hasattr(leaves[0], "shape"):
        names = {str(dtype): short for short, dtype in DTYPES.items()}
        dtype = str(leaves[0].dtype)
        return f"{names.get(dtype, dtype)}[{','.join(map(str, leaves[0].shape))}]"
    return f"{len(leaves)} arrays"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["no message"])[0]
