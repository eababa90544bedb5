"""What an earlier process made of a module in XLA's hook: it is neither planned nor compiled again.

Takes the module that XLA hands over and how it is to be stitched, hands on what was made, from the cache of programs
(module_cache.py) or from the compiler.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from astitch import options
from astitch.device.gpu import Gpu
from astitch.directives import fingerprint as fingerprint_directives
from astitch.errors import AstitchError
from astitch.search.travelling_plans import fingerprint as fingerprint_plans
from astitch.show.compilation import Compilation
from astitch.show.memory import estimate_bytes
from astitch.toolchain import nvrtc
from astitch.xla.agreement import digest_module
from astitch.xla.hook import Stitching, read_module
from astitch.xla.module_cache import LONGEST_WAIT_S, fingerprint, open_cache

FORM = "astitch hook 4"

_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Made:
    """What became of a module.

    module: what XLA compiles; None: the module as it was, for the reason.  kernels: calls of them.  compilation: None
    where an earlier process made it.  share: how much is stitched, in words.
    estimated, plain_bytes: what it and what XLA's own version is estimated to take, the latter at the least.
    stored_bytes: the latter, if XLA's products compute nothing of what they read.  0: they are not known.
    light_us: its memory-intensive time, as projected; spared_us: what XLA's loops would take more.
    """

    module: bytes | None
    kernels: int
    reason: str
    share: str = ""
    compilation: Compilation | None = field(default=None, compare=False)
    estimated: int = 0
    plain_bytes: int = 0
    stored_bytes: int = 0
    light_us: float = 0.0
    spared_us: float = 0.0

    @staticmethod
    def of(stitching: Stitching) -> Made:
        found = stitching.compilation
        share = found.share
        return Made(
            stitching.module,
            stitching.kernels,
            stitching.reason,
            share.headline,
            found,
            _estimate(found) if stitching.module else 0,
            found.plain_bytes,
            found.stored_bytes,
            share.stitched_us + share.left_us,
            found.spared_us,
        )


def _estimate(compilation: Compilation) -> int:
    try:
        return estimate_bytes(compilation)
    except AstitchError:
        return 0


def key_of(
    module: Any,
    gpu: Gpu,
    *,
    only_marked: bool,
    strict: bool | float,
    tune: bool,
    timed: bool,
    attention: bool,
    stitch: str = "",
) -> str | None:
    """Hash of all that decides what is made; None where something else does.

    module: an HloModuleProto.  timed: are kernels compared with XLA's?  The other arguments: see stitch_module.
    A call of the host's functions holds addresses of this process.  What is printed or dumped, and measured plans, want
    a compilation.
    """
    if options.shows() or tune or _calls_host(module):
        return None
    import jax

    compiler = nvrtc.choose_nvrtc(gpu.arch).nvrtc.version
    switches = (
        only_marked,
        strict,
        timed,
        attention,
        fingerprint_directives(stitch),
        fingerprint_plans(),
    )
    parts = FORM, digest_module(module), fingerprint(), astuple(gpu), switches
    return hashlib.sha256(repr((*parts, jax.__version__, compiler)).encode()).hexdigest()


def _calls_host(module: Any) -> bool:
    return any(
        b"callback" in i.custom_call_target for c in module.computations for i in c.instructions
    )


def take_or_make(module: Any, key: str | None, make: Callable[[], Stitching]) -> Made:
    """What is kept under a key, else what is made now, which is then kept.  Raises what `make` raises.

    Processes that want the same wait for the first of them.
    """
    if key is None:
        return Made.of(make())
    if kept := _load(key, module):
        return kept
    with open_cache().turn(key, LONGEST_WAIT_S):
        if kept := _load(key, module):
            return kept
        made = Made.of(make())
        # Another process may have no faults, and says so if it has.
        if made.compilation is not None and not made.compilation.faults:
            open_cache().store(key, pack(made))
        return made


def _load(key: str, module: Any) -> Made | None:
    """What is kept, with the number of the module that XLA handed over."""
    data = open_cache().load(key)
    if data is None:
        return None
    kept = unpack(data)
    if kept.module is None:
        return kept
    return replace(kept, module=with_number(kept.module, module.id))


def with_number(module: bytes, number: int) -> bytes:
    """A serialized module with the number of the one that XLA handed over."""
    numbered = read_module(module)
    numbered.id = number
    return bytes(numbered.SerializeToString())


def pack(made: Made) -> bytes:
    """An entry's content: length of the JSON header, header, module."""
    sizes = made.estimated, made.plain_bytes, made.stored_bytes
    numbers = *sizes, made.light_us, made.spared_us
    told = made.module is not None, made.kernels, made.reason, made.share, *numbers
    header = json.dumps(told).encode()
    return len(header).to_bytes(_LENGTH_BYTES, "little") + header + (made.module or b"")


def unpack(data: bytes) -> Made:
    """What was packed, without its compilation."""
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    stitched, kernels, reason, share, *numbers = json.loads(data[_LENGTH_BYTES:end])
    return Made(data[end:] if stitched else None, kernels, reason, share, None, *numbers)


# ---- what keeps a program to XLA's memory ------------------------------------------------------------------------


ONLY_TURNS = "only turns"
"""Kept for a program that takes more memory with kernels: several turns of its loops are one, and that is all."""

ALONE = "alone"
"""Kept for a program that would take more memory in this way too: it is XLA's own version."""


def load_fit(key: str | None) -> str | None:
    """The directives by which an earlier process had a program of this key take no more memory than XLA's own version
    does, or ONLY_TURNS, or ALONE; the empty string: none are needed, or none help.  None: nobody looked."""
    data = open_cache().load(_fit_of(key)) if key else None
    return None if data is None else data.decode()


def keep_fit(key: str | None, told: str) -> None:
    """For load_fit of another process."""
    if key:
        open_cache().store(_fit_of(key), told.encode())


def _fit_of(key: str) -> str:
    return hashlib.sha256(f"{key} fit".encode()).hexdigest()
