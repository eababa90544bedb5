"""`astitch-export DIR`: makes the programs of a SavedModel and keeps them beside it.

Takes a SavedModel and the shapes that it will be called with.  Calls each signature once on zeros, with a cache of its
own in the model's folder, so that all that a later process looks for is there.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astitch import options
from astitch.errors import AstitchError, InvalidOption
from astitch.system.kept_libraries import FORM
from astitch.system.private_files import PrivateFolder, seal
from tf_addon.enabling import enabled, report, takeover
from tf_addon.report import Report
from tf_addon.saved_models import Signatures, programs_folder

_SHAPE = re.compile(r"(?P<name>[^=]+)=(?P<extents>\d+(,\d+)*|)")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a signature.  shapes: of its inputs, by name."""

    signature: str
    shapes: dict[str, tuple[int, ...]]

    def __str__(self) -> str:
        shown = (f"{name}={list(shape)}" for name, shape in self.shapes.items())
        return f"{self.signature}({', '.join(shown)})"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where XLA or TensorFlow runs a signature, 2 for what cannot be done."""
    asked = _make_parser().parse_args(arguments)
    try:
        return _export(asked)
    except (AstitchError, ImportError, OSError, ValueError) as error:
        print(f"astitch-export: {error}", file=sys.stderr)
        return 2


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("astitch-export", description=__doc__)
    parser.add_argument("folder", metavar="DIR", type=Path, help="a SavedModel")
    parser.add_argument(
        "--batch",
        type=int,
        nargs="+",
        default=[1],
        metavar="N",
        help="sizes of the first dimension where the signature leaves it open (default 1)",
    )
    parser.add_argument(
        "--shapes",
        action="append",
        nargs="+",
        default=[],
        metavar="INPUT=8,128",
        help="shapes of one more call of the signatures that have such an input, in place of --batch; may be given "
        "several times",
    )
    parser.add_argument(
        "--signature", action="append", default=[], help="only this one; may be given several times"
    )
    parser.add_argument("--engine", choices=("gpu", "host"), help="the GPU or the emulation")
    return parser


def _export(asked: argparse.Namespace) -> int:
    folder: Path = asked.folder
    if not (folder / "saved_model.pb").exists():
        raise InvalidOption(f"{folder} is no SavedModel: there is no saved_model.pb in it")
    import tensorflow as tf

    model = tf.saved_model.load(str(folder))
    # What cannot be done is told before the programs of an earlier export go.
    calls = list(list_calls(model, asked))
    kept = programs_folder(folder)
    shutil.rmtree(kept, ignore_errors=True)
    _write_here(kept)
    signatures = Signatures(model)
    left = 0
    for call in calls:
        with enabled(engine=asked.engine):
            found = _run(signatures, call)
        left += bool(found.fallbacks)
        print(f"{call}: {tell(found)}")
        for line in _list_reasons(found):
            print(f"  {line}")
    _let_read(kept)
    files = [path for path in kept.rglob("*") if path.is_file()]
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    print(f"{kept}: {len(files)} files, {megabytes:.1f} MB")
    return 1 if left else 0


def _write_here(kept: Path) -> None:
    """From now on this process keeps all in the model's folder, the shim among it, and reads no other cache."""
    own, *shared = (str(options.cache_dir()), *map(str, options.shared_cache_dirs()))
    os.environ["ASTITCH_CACHE_DIR"] = os.pathsep.join([str(kept), own, *shared])
    takeover.install()
    os.environ["ASTITCH_CACHE_DIR"] = str(kept)
    _copy_shim([Path(own), *map(Path, shared)], kept)


def _copy_shim(sources: Sequence[Path], kept: Path) -> None:
    from tf_addon.shim_build import PREBUILT, find_target, name_library

    name = name_library(find_target())
    place = Path("tensorflow") / name
    built = PREBUILT / name
    if built.exists():
        PrivateFolder(kept / "tensorflow").write(name, seal(built.read_bytes(), FORM, name))
        return
    for source in sources:
        if (source / place).exists() and not (kept / place).exists():
            (kept / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / place, kept / place)


def list_calls(model: Any, asked: argparse.Namespace) -> Iterator[Call]:
    """What is called.  Raises InvalidOption for a signature, an input or a shape that the model does not have."""
    names = asked.signature or list(model.signatures)
    given = [dict(map(_read_shape, shapes)) for shapes in asked.shapes]
    for name in names:
        if name not in model.signatures:
            known = ", ".join(model.signatures)
            raise InvalidOption(f"there is no signature {name}\n  the model has {known}")
    inputs = {name: model.signatures[name].structured_input_signature[1] for name in names}
    known_keys = {key for specs in inputs.values() for key in specs}
    if unknown := {key for shapes in given for key in shapes} - known_keys:
        raise InvalidOption(
            f"--shapes {min(unknown)}: there is no such input\n  there are {', '.join(sorted(known_keys))}"
        )
    for name, specs in inputs.items():
        # Signatures have inputs of their own: shapes are for those that have one of them.
        own = [shapes for shapes in given if shapes.keys() & specs.keys()]
        for shapes in own:
            yield Call(name, {key: _fill(key, spec, shapes) for key, spec in specs.items()})
        if own:
            continue
        open_ones = any(None in _extents(spec)[:1] for spec in specs.values())
        for size in asked.batch if open_ones else asked.batch[:1]:
            yield Call(name, {key: _set_batch(key, spec, size) for key, spec in specs.items()})


def _read_shape(text: str) -> tuple[str, tuple[int, ...]]:
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise InvalidOption(f"--shapes {text}: it is INPUT=8,128")
    return match["name"], tuple(int(n) for n in match["extents"].split(",") if n)


def _extents(spec: Any) -> list[int | None]:
    return [] if spec.shape.rank is None else list(spec.shape)


def _fill(key: str, spec: Any, shapes: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that was given for an input, or its own where that is known."""
    shape = shapes.get(key)
    if shape is None:
        return _set_batch(key, spec, None)
    if not spec.shape.is_compatible_with(shape):
        raise InvalidOption(f"--shapes {key}: {list(shape)} is no {spec.shape}")
    return shape


def _set_batch(key: str, spec: Any, size: int | None) -> tuple[int, ...]:
    extents = _extents(spec)
    if extents[:1] == [None] and size is not None:
        extents[0] = size
    if spec.shape.rank is None or None in extents:
        raise InvalidOption(
            f"the shape of the input {key} is {spec.shape}\n  say what it will be: --shapes {key}=8,128"
        )
    return tuple(extent for extent in extents if extent is not None)


def _run(signatures: Any, call: Call) -> Report:
    """Calls it in both ways, of `load` and of TensorFlow's own loader, and says what became of the first."""
    import tensorflow as tf

    specs = signatures.model.signatures[call.signature].structured_input_signature[1]
    inputs = {key: tf.zeros(call.shapes[key], spec.dtype) for key, spec in specs.items()}
    report(reset=True)
    signatures[call.signature](**inputs)
    found = report(reset=True)
    signatures.model.signatures[call.signature](**inputs)
    return found


def tell(found: Report) -> str:
    """What a call is made of, in words."""
    rows = [one for function in found.functions for one in function.compiled]
    if not found.runs:
        return "not astitch's"
    kernels, calls = sum(row.kernels for row in rows), sum(row.library_calls for row in rows)
    others = sum(row.other_steps for row in rows)
    seconds = f"{found.compile_seconds:.1f} s"
    parts = f"{kernels} kernels, {calls} library calls, {seconds}"
    return f"{parts}; {others} parts that XLA compiles in each process" if others else parts


def _list_reasons(found: Report) -> Iterator[str]:
    for function in found.functions:
        for refused in function.refused:
            yield f"left to {refused.owner}: {refused.reason}"


def _let_read(folder: Path) -> None:
    """Others may read it, and nobody but its owner may write it."""
    for path in [folder.parent, folder, *folder.rglob("*")]:
        mode = path.stat().st_mode
        readable = stat.S_IRGRP | stat.S_IROTH
        if path.is_dir():
            readable |= stat.S_IXGRP | stat.S_IXOTH
        path.chmod((stat.S_IMODE(mode) | readable) & ~(stat.S_IWGRP | stat.S_IWOTH))


if __name__ == "__main__":
    sys.exit(main())
