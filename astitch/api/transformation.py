"""What astitch does with a module that XLA hands over while JAX compiles it, and what became of each.

Takes a module's bytes in XLA's hook, hands on those of the module with kernels, or nothing: then XLA goes on with its
own.  No error leaves the hook.  Report has an entry for each program.
"""

from __future__ import annotations

import functools
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any

from astitch.api.checking import Check
from astitch.api.settings import Settings, read_settings, switches
from astitch.device.gpu import PRESETS, from_device, preset
from astitch.directives import fingerprint as fingerprint_directives
from astitch.directives import read_directives
from astitch.errors import UnsupportedOp, first_line
from astitch.events import note_compile, note_fallback, note_plain
from astitch.faults import ONLY_XLA, FaultLog, is_fault, report_faults
from astitch.hlo.attention import FORWARD, GRADIENT
from astitch.hlo.schema import decode
from astitch.hlo.tile_call import TRITON
from astitch.show.share import is_whole, least_share, refuse_less, warn_of_little
from astitch.show.trace import trace_compilation
from astitch.system.callbacks import pass_interrupt
from astitch.system.forks import ForkLock
from astitch.toolchain.driver_assembly import assemble_in_background
from astitch.xla.agreement import Agreed, agree, digest_module, find_group
from astitch.xla.compile_module import Found
from astitch.xla.device_timer import DeviceTimer
from astitch.xla.hook import (
    NOTHING,
    Stitching,
    count_kernels,
    double_buffer_alone,
    is_worth,
    read_module,
    stitch_module,
)
from astitch.xla.kept_stitchings import (
    ALONE,
    ONLY_TURNS,
    Made,
    key_of,
    load_fit,
    take_or_make,
    with_number,
)
from astitch.xla.marks import read_marks

if TYPE_CHECKING:
    from astitch.device.gpu import Gpu
    from astitch.show.compilation import Compilation

MOST_KEPT = 1000
"""Programs whose entries a report has; of older ones only the numbers are kept."""

MOST_EXPLAINED = 100
"""Programs of which all is kept that the compiler knows: some 5 KB an op."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What became of a program that JAX compiled.

    name: the module's.  kernels: stitched ones.  reason: why XLA computes all of it; empty where it does not.
    seconds: that astitch took.  share: how much of its memory-intensive time is stitched, as projected, in words.
    compilation: all that the compiler knows; None where it did not read the module, an earlier process did, or
    MOST_EXPLAINED programs came since.
    is_old: the last of these.
    """

    name: str
    kernels: int
    reason: str
    seconds: float
    share: str = ""
    compilation: Compilation | None = field(default=None, repr=False, compare=False)
    is_old: bool = field(default=False, repr=False, compare=False)

    def __str__(self) -> str:
        what = f"{self.kernels} kernels" if self.kernels else f"left to XLA: {self.reason}"
        share = f": {self.share}" if self.kernels and self.share else ""
        return f"{self.name}: {what} ({self.seconds:.2f} s){share}"

    def explain(self) -> str:
        """The kernels, their schemes, and what was not stitched and why."""
        if self.compilation:
            return self.compilation.explain()
        if self.is_old:
            return f"{self}\n  {MOST_EXPLAINED} programs came since; ask for it earlier"
        if self.kernels:
            return f"{self.name}: another process planned its kernels\n  ASTITCH_DEBUG=1 plans them anew"
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Report:
    """The programs that JAX compiled while astitch was enabled.

    programs: the latest MOST_KEPT that were worth a look, oldest first.  stitched: how many have kernels.
    left: how many XLA computes alone, by reason; eager ops are among them.
    checks: of those that were to be compared with XLA's own version, what came of it by now.
    """

    programs: tuple[Entry, ...]
    stitched: int
    left: dict[str, int]
    checks: tuple[Check, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.stitched} programs with stitched kernels"]
        if not self.stitched and not self.left:
            lines.append("  JAX has compiled nothing for an NVIDIA GPU")
        lines += [f"  {entry}" for entry in self.programs]
        lines += [f"{count} left to XLA: {reason}" for reason, count in self.left.items()]
        lines += map(str, self.checks)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """For notebooks: what print shows."""
        return f"<pre>{escape(str(self))}</pre>"


class Journal:
    """Entries as they come; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self.clear()

    def clear(self) -> None:
        self._kept: deque[Entry] = deque(maxlen=MOST_KEPT)
        self._stitched = 0
        self._left: Counter[str] = Counter()
        self._checks: deque[Check] = deque(maxlen=MOST_KEPT)

    def add_check(self, check: Check) -> None:
        with self._lock:
            self._checks.append(check)

    def add(self, entry: Entry) -> None:
        with self._lock:
            if entry.kernels:
                self._stitched += 1
            else:
                self._left[entry.reason] += 1
            if entry.reason != NOTHING:
                self._kept.append(entry)
                self._forget_oldest()
        if entry.reason == NOTHING:
            note_plain()
            return
        outcome = "stitched" if entry.compilation else "kept"
        note_compile(
            entry.name,
            outcome=outcome if entry.kernels else "left",
            kernels=entry.kernels,
            seconds=entry.seconds,
            engine="hook",
            reason=entry.reason,
            share=entry.share,
            **(entry.compilation.list_parts() if entry.compilation else {}),
        )

    def _forget_oldest(self) -> None:
        known = [place for place, entry in enumerate(self._kept) if entry.compilation]
        for place in known[:-MOST_EXPLAINED]:
            self._kept[place] = replace(self._kept[place], compilation=None, is_old=True)

    def replace(self, compiling: Compiling, reason: str) -> None:
        """The program of a compile is left to XLA after all."""
        assert compiling.entry
        with self._lock:
            if compiling.entry.kernels:
                self._stitched -= 1
            else:
                self._left[compiling.entry.reason] -= 1
            self._left[reason] += 1
            note_fallback(compiling.entry.name, cause="xla", reason=reason)
            left = replace(compiling.entry, kernels=0, reason=reason)
            self._kept = deque(
                (left if kept is compiling.entry else kept for kept in self._kept), MOST_KEPT
            )

    def drop(self, compiling: Compiling) -> None:
        """The entry of a compile counts no more: the program is compiled once more."""
        with self._lock:
            entry = compiling.entry
            if entry is not None and any(kept is entry for kept in self._kept):
                self._stitched -= bool(entry.kernels)
                self._kept = deque((k for k in self._kept if k is not entry), MOST_KEPT)

    def report(self) -> Report:
        with self._lock:
            checks = tuple(map(copy, self._checks))
            return Report(tuple(self._kept), self._stitched, dict(self._left), checks)


journal = Journal()
"""The journal of this process."""


KEPT = ("entry", "stitched", "attends", "is_passing", "refusal", "handed", "made", "only_turns")
"""The attributes of a Compiling that say what came of its last compile."""


@dataclass(slots=True)
class Compiling:
    """One compile of JAX's that XLA may hand a module of to us.

    settings: None where only marked functions are to be stitched.  devices: that it is compiled for.
    off: leave the module as it is.  attention: may it have calls of attention and of products of few rows?
    attends: it has such calls.
    called, stitched: what happened.  entry: the same for the report.
    is_passing: it may go better the next time: an error inside astitch, or none of the other processes was heard.
    memory_limit: the bytes that the program is to take at most; None: nobody says.  told: directives of a program that
    is compiled again for less memory.
    only_turns: nothing is stitched, as it would take more memory.
    made: what became of the module last.  found: what planning found.
    ahead: the digest of a module that XLA will hand over, and what it gets then.
    key: of the first one, in astitch's cache.
    is_fitted: an earlier process compared its memory with what XLA's own version takes.
    refusal: what strict forbids.  handed: the HloModuleProto as XLA handed it over, if it was stitched.
    """

    settings: Settings | None
    devices: Sequence[Any]
    off: bool = False
    attention: bool = True
    attends: bool = False
    called: bool = False
    stitched: bool = False
    is_passing: bool = False
    entry: Entry | None = None
    refusal: Exception | None = None
    handed: Any | None = None
    memory_limit: int | None = None
    told: str = ""
    only_turns: bool = False
    made: Made | None = None
    key: str | None = None
    found: Found = field(default_factory=Found)
    ahead: tuple[str, bytes | None] | None = None
    is_fitted: bool = False

    @property
    def name(self) -> str:
        return self.entry.name if self.entry else ""

    @property
    def is_strict(self) -> bool:
        return bool(self.settings and self.settings.strict)

    def leave_attention(self) -> bool:
        """Makes the next try one without such calls; False where there were none."""
        if not self.attends:
            return False
        self.attention = self.attends = self.called = self.stitched = False
        return True

    def leave_kernels(self) -> bool:
        """Makes the next compile one without kernels; False: that is XLA's own version, which counts as compiled."""
        handed, name = self.handed, self.name
        self.start_anew("")
        self.only_turns = True
        if handed is None:
            return True
        if self._doubles(handed):
            return True
        self.leave_all(name)
        return False

    def leave_all(self, name: str) -> None:
        """XLA's own version counts as compiled.  name: the program's."""
        self.start_anew("")
        self.called, self.attends, self.handed = True, False, None
        self.made = Made(None, 0, MORE_MEMORY)
        _note(self, Entry(name, 0, MORE_MEMORY, 0.0, self.made.share))

    def _doubles(self, handed: Any) -> bool:
        """Do loops of a module take several turns in one without kernels?  Where that fails it is tried in a compile,
        whose report says so."""
        if self.settings is None:
            return False
        gpu, _ = _choose_gpu(self.settings, self.devices)
        try:
            return double_buffer_alone(handed, gpu) is not None
        except Exception:
            return True

    @property
    def is_alone(self) -> bool:
        """Does this process compile for itself?  Processes of one program compile as often as each other."""
        return find_group() is None

    def start_anew(self, told: str) -> None:
        """Makes the next compile stitch once more, for less memory.  told: the directives that ask for it."""
        journal.drop(self)
        self.told, self.ahead = told, None
        self.called = self.stitched = False

    def stitch_ahead(self) -> None:
        """Stitches the module before XLA hands it over once more: what comes of it may not be worth that."""
        module = self.handed
        if module is not None:
            made = transform(module.SerializeToString(), self)
            self.ahead, self.called = (digest_module(module), made), False

    def keep(self) -> dict[str, Any]:
        """What is known of the last compile."""
        return {name: getattr(self, name) for name in KEPT}

    def go_back(self, kept: Mapping[str, Any]) -> None:
        """An earlier compile counts.  kept: what keep handed on."""
        if self.entry is not kept["entry"]:
            journal.drop(self)
            if kept["entry"] is not None:
                journal.add(kept["entry"])
        for name in KEPT:
            setattr(self, name, kept[name])

    @property
    def is_checked(self) -> bool:
        """Is the program to be compared with XLA's own version?"""
        return bool(self.settings and self.settings.check)


def transform(data: bytes, compiling: Compiling) -> bytes | None:
    """The module with kernels for it, or None: XLA goes on with its own.

    data: a serialized HloModuleProto.  Raises nothing but interrupts.
    """
    if compiling.off or compiling.called:
        return None
    compiling.called = True
    start = time.perf_counter()
    module = read_module(data)
    if compiling.ahead is not None:
        (digest, ahead), compiling.ahead = compiling.ahead, None
        if digest == digest_module(module):
            return ahead and with_number(ahead, module.id)
        journal.drop(compiling)
    marks = () if compiling.settings else read_marks(module)
    if compiling.settings is None and not marks:
        return None
    name = decode(module.name)
    if not is_worth(module):
        _note(compiling, Entry(name, 0, NOTHING, time.perf_counter() - start))
        return None
    gpu = None
    made: Made | None = None
    reason = ""
    settings = compiling.settings or read_settings(marks)
    if not compiling.attention:
        settings = replace(settings, attention=False)
    if compiling.told:
        settings = _tell(settings, compiling.told)
    else:
        compiling.memory_limit = read_directives(settings.stitch).of(name).memory_limit
    try:
        gpu, device = _choose_gpu(settings, compiling.devices)
        made = _stitch(module, data, compiling, settings, gpu, device)
        reason = made.reason
    except Exception as error:
        pass_interrupt(error)
        reason = _leave(error, name, data, compiling)
    own = made.module if made else None
    # Without a GPU no process gets so far.
    agreed = (
        agree(
            module,
            own,
            gpu,
            reason=reason,
            settings=_describe(compiling, settings),
            devices=compiling.devices,
        )
        if gpu
        else Agreed(None)
    )
    kept = made if made and agreed.module == own else None
    kernels = kept.kernels if kept else _count_kernels(agreed.module)
    seconds = time.perf_counter() - start
    said = agreed.reason or reason
    entry = (
        Entry(name, kernels, said, seconds, kept.share, kept.compilation)
        if kept
        else Entry(name, kernels, said, seconds)
    )
    _note(compiling, entry)
    compiling.stitched = agreed.module is not None
    compiling.made = kept
    compiling.is_passing |= bool(agreed.reason) and agreed.module is None
    compiling.attends = settings.attention and _has_attention(agreed.module)
    compiling.handed = module if compiling.stitched else None
    return agreed.module


def _describe(compiling: Compiling, settings: Settings) -> str:
    """By which astitch, how a program is stitched: what processes must have in common."""
    from astitch.xla.module_cache import fingerprint

    which = "all of it" if compiling.settings else "functions of astitch.jit"
    _, overrides, plans = switches()
    told = fingerprint_directives(settings.stitch)
    by_hand = f"directives={told}, overrides={overrides}, " if told or overrides else ""
    by_hand += f"imported plans={plans}, " if plans else ""
    return (
        f"{which}, tune={settings.tune}, strict={settings.strict}, attention={settings.attention}, "
        f"{by_hand}sources {fingerprint().hex()[:12]}"
    )


def _has_attention(module: bytes | None) -> bool:
    """Does a serialized module call cuDNN's attention, or Triton IR as ours is?"""
    return any(target.encode() in (module or b"") for target in (*FORWARD, *GRADIENT, TRITON))


def _count_kernels(module: bytes | None) -> int:
    """How many kernels a module has that another process made; None: 0."""
    return 0 if module is None else count_kernels(read_module(module))


def _note(compiling: Compiling, entry: Entry) -> None:
    compiling.entry = entry
    journal.add(entry)


def _stitch(
    module: Any, data: bytes, compiling: Compiling, settings: Settings, gpu: Gpu, device: Any | None
) -> Made:
    """What an earlier process made of the module, or this one makes of it now."""
    tune = bool(settings.tune)
    timer = _choose_timer(settings, device)

    def find_key() -> str | None:
        return key_of(
            module,
            gpu,
            only_marked=compiling.settings is None,
            strict=settings.strict,
            tune=tune,
            timed=timer is not None,
            attention=settings.attention,
            stitch=settings.stitch,
        )

    key = find_key()
    if not (compiling.told or compiling.only_turns) and compiling.memory_limit is None:
        compiling.key = key
        told = load_fit(key)
        compiling.is_fitted = told is not None
        if told == ALONE:
            return Made(None, 0, MORE_MEMORY)
        compiling.only_turns = told == ONLY_TURNS
        if told and told != ONLY_TURNS:
            settings = _tell(settings, told)
            key = find_key()
    if compiling.only_turns:
        stays = compiling.settings is None  # functions that are not marked are in it, too
        return Made(None if stays else double_buffer_alone(module, gpu), 0, MORE_MEMORY)
    make = functools.partial(_compile, module, data, compiling, settings, gpu, device, timer)
    return take_or_make(module, key, make)


MORE_MEMORY = "with kernels it would take more memory"


def _tell(settings: Settings, told: str) -> Settings:
    """The settings with more directives, for all programs."""
    return replace(settings, stitch=f"{settings.stitch}\n[*]\n{told}")


def _compile(
    module: Any,
    data: bytes,
    compiling: Compiling,
    settings: Settings,
    gpu: Gpu,
    device: Any | None,
    timer: DeviceTimer | None,
) -> Stitching:
    tune = bool(settings.tune)
    with assemble_in_background(device) as assemble:
        made = stitch_module(
            module,
            gpu,
            only_marked=compiling.settings is None,
            tune=tune,
            strict=is_whole(settings.strict),
            attention=settings.attention,
            stitch=settings.stitch,
            hand_out=assemble,
            time_both=timer,
            found=compiling.found,
        )
    trace_compilation(data, made.compilation)
    refuse_less(made.compilation, least_share(settings.strict))
    warn_of_little(decode(module.name), made.compilation)
    compiling.is_passing |= bool(made.compilation.faults)
    report_faults(decode(module.name), data, gpu.name, made.compilation.faults, inside_xla=True)
    return made


def _choose_timer(settings: Settings, device: Any | None) -> DeviceTimer | None:
    """What times kernels beside XLA's; None where the program is for another GPU, or the user wants nothing timed.

    What strict refuses must not depend on a measured time.
    """
    elsewhere = device is None or settings.gpu is not None
    if elsewhere or settings.strict or settings.tune is False:
        return None
    return DeviceTimer(device)


def _choose_gpu(settings: Settings, devices: Sequence[Any]) -> tuple[Gpu, Any | None]:
    """The GPU that a program is planned for, and JAX's device where it is one of this process.

    Raises UnsupportedOp where neither the device nor the settings say which GPU it is.
    """
    import jax

    mine = [d for d in devices if d.process_index == jax.process_index()]
    device = next((d for d in mine if d in _local_gpus()), None)
    if settings.gpu is not None:
        return preset(settings.gpu), device
    if device is not None:
        return from_device(device.local_hardware_id), device
    kind = devices[0].device_kind.lower() if devices else ""
    named = next((name for name in PRESETS if name != "host" and name in kind), None)
    if named is None:
        raise UnsupportedOp(
            f"astitch has no preset for {kind or 'an unknown device'!r}\n"
            f"  name the nearest with astitch.enable(gpu=...): {', '.join(PRESETS)}"
        )
    return preset(named), None


def _local_gpus() -> Sequence[Any]:
    import jax

    try:
        found: Sequence[Any] = jax.local_devices(backend="gpu")
    except RuntimeError:
        return ()
    return found


def _leave(error: Exception, name: str, data: bytes, compiling: Compiling) -> str:
    """The reason for the report why XLA computes all of a program; warns of a fault."""
    compiling.is_passing |= not isinstance(error, ONLY_XLA)
    if compiling.is_strict:
        compiling.refusal = error
    if not is_fault(error):
        return first_line(error)
    faults = FaultLog(raises=False)
    fault = faults.note(error, stage="hook", subject=name, cost="XLA computes all of it")
    report_faults(name, data, "the GPU", faults.found, inside_xla=True)
    return f"an error inside astitch: {fault.error}"
