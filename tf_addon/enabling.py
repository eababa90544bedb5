"""On and off: which functions the shim takes over, for the whole process.

Takes the user's wishes, hands them to the shim, which is built and installed when the first one comes.  Nothing of
TensorFlow's is patched: once installed, each call of a compiled function asks whether it is wanted.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from astitch.api.engines import choose_launcher, name_wanted
from astitch.api.installation import warn_of_installation
from astitch.errors import EngineUnavailable, InvalidOption
from astitch.run.executor import count_gpus
from tf_addon.errors import AddonWarning
from tf_addon.keras_models import compile_auto, leave_auto, phase_of
from tf_addon.programs import Programs, check_cublas
from tf_addon.report import Records, Report
from tf_addon.shim_build import open_library
from tf_addon.shim_library import Settings, Shim
from tf_addon.uncompiled import find_notes

MAX_SIGNATURES = 32
"""Signatures of one function that are compiled unless enable() says otherwise."""


ENGINES = (None, "host", "gpu")


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is asked of the add-on.  taken: every function that must be compiled; else only decorated ones."""

    taken: bool = False
    strict: bool = False
    uncompiled: bool = True
    max_signatures: int = MAX_SIGNATURES
    engine: str | None = None
    dry: bool = False


@dataclass(slots=True)
class Layer:
    """Wishes from the begin of a `with enabled()` block to its end.  thread: the one that began it; None: no block."""

    thread: int | None
    wishes: Wishes


class Takeover:
    """What runs through astitch in this process: the wishes of each block, and the shim once it is installed."""

    def __init__(self) -> None:
        # The first outlasts all blocks.  Blocks of several threads end in any order.
        self._layers = [Layer(None, Wishes())]
        self.records = Records()
        self._lock = threading.RLock()
        self._programs = Programs(self.records)
        self._shim: Shim | None = None

    @property
    def wishes(self) -> Wishes:
        """The wishes of the block that began last among those that have not ended."""
        return self._layers[-1].wishes

    def install(self) -> Shim:
        """The shim, which decorated functions go through from now on.  Raises ShimUnavailable."""
        with self._lock:
            if self._shim is None:
                shim = Shim(open_library(), self._programs.handlers)
                self._programs.attach(shim)
                self._shim = shim
                self._tell()
                forget_kernels()
            return self._shim

    def set(self, wishes: Wishes) -> None:
        """Calls that begin from now on follow these wishes, until the innermost block that this thread is in ends.

        They hold in later blocks of other threads too, not in earlier ones.
        """
        self.change(lambda _: wishes)

    def change(self, update: Callable[[Wishes], Wishes]) -> None:
        """Changes wishes as set does, each block's own: the wishes of one block must not outlast it in another."""
        thread = threading.get_ident()
        with self._lock:
            own = [i for i, layer in enumerate(self._layers) if layer.thread == thread]
            for layer in self._layers[own[-1] if own else 0 :]:
                layer.wishes = update(layer.wishes)
            self._tell()

    def begin(self, wishes: Wishes) -> Layer:
        """A block of this thread's."""
        layer = Layer(threading.get_ident(), wishes)
        with self._lock:
            self._layers.append(layer)
            self._tell()
        return layer

    def end(self, layer: Layer) -> None:
        """Wishes are those of the blocks that are left."""
        with self._lock:
            self._layers = [other for other in self._layers if other is not layer]
            self._tell()

    def _tell(self) -> None:
        """The shim what is wished now."""
        wishes = self.wishes
        self._programs.engine, self._programs.strict = wishes.engine, wishes.strict
        if self._shim is not None:
            self._shim.set(
                Settings(
                    wishes.taken,
                    wishes.strict,
                    wishes.uncompiled,
                    wishes.dry,
                    wishes.max_signatures,
                    ENGINES.index(wishes.engine),
                )
            )

    def make_report(self) -> Report:
        """What was noted since the last reset."""
        shim = self._shim
        if shim is None:
            return self.records.make_report((), lambda *_: 0)
        notes = find_notes() if self.wishes.taken else ()
        return self.records.make_report(shim.list_functions(), shim.count_runs, notes, phase_of)

    def reset(self) -> None:
        """Begin the report anew."""
        self.records.clear()
        if self._shim is not None:
            self._shim.reset_runs()


def forget_kernels() -> None:
    """Makes TensorFlow create the kernels of functions anew, also of those that ran before the shim came."""
    from tensorflow.python.eager import context

    context.context().clear_kernel_cache()


takeover = Takeover()


def enable(
    *,
    strict: bool = False,
    uncompiled: bool = True,
    max_signatures: int = MAX_SIGNATURES,
    engine: str | None = None,
    keras: str | None = None,
    required: bool = True,
) -> bool:
    """From now on every function that must be compiled (`jit_compile=True`) runs through astitch, in all threads.

    strict: what astitch cannot take over raises UnimplementedError; else XLA runs it, and report() says why.
    uncompiled: what XLA cannot compile either (strings, for one) TensorFlow runs op by op; False: XLA's error.
    max_signatures: how many shapes, types and constant values of one function are compiled; XLA gets the others.
    engine: "host" (the emulation), "gpu", or None, a GPU where there is one.
    keras: "jit": Keras compiles models of jit_compile="auto", also where TensorFlow knows no GPU; until disable().
    required: False: where astitch cannot be had a warning says why, and the program runs as without it.
    Inside of a `with enabled()` block it lasts as long as the block.
    Returns whether astitch is on.
    Raises ShimUnavailable where the shim cannot be built, EngineUnavailable where there is no GPU or TensorFlow hides
    CuPy's cuBLAS, InvalidOption.
    """
    if keras not in (None, "jit"):
        raise InvalidOption(f"tf_addon.enable: keras={keras!r} is not known\n  it is 'jit' or None")
    try:
        takeover.set(prepare(Wishes(True, strict, uncompiled, max_signatures, engine)))
    except (EngineUnavailable, ImportError) as error:
        if required:
            raise
        warnings.warn(
            f"tf_addon: astitch is not on: {error}\n  the program runs as without it",
            AddonWarning,
            stacklevel=2,
        )
        return False
    if keras == "jit":
        compile_auto()
    return True


def disable() -> None:
    """From now on compiled functions are XLA's again, in all threads; decorated ones stay astitch's.

    Inside of a `with enabled()` block it lasts as long as the block.
    """
    leave_auto()
    takeover.change(lambda wishes: replace(wishes, taken=False, strict=False))


@contextmanager
def enabled(
    *,
    strict: bool = False,
    uncompiled: bool = True,
    max_signatures: int = MAX_SIGNATURES,
    engine: str | None = None,
) -> Iterator[None]:
    """enable() for the calls inside of `with`, of all threads; afterwards it is as it was.

    Where blocks of several threads overlap, the options of the one that began last hold.
    """
    layer = takeover.begin(prepare(Wishes(True, strict, uncompiled, max_signatures, engine)))
    try:
        yield
    finally:
        takeover.end(layer)


def prepare(wishes: Wishes) -> Wishes:
    """The same wishes, with all there that they need.  Raises as enable() does."""
    if wishes.max_signatures < 1:
        raise InvalidOption(
            f"tf_addon.enable: max_signatures={wishes.max_signatures}\n  it is at least 1"
        )
    if wishes.engine not in ENGINES:
        raise InvalidOption(
            f"tf_addon.enable: engine={wishes.engine!r} is not known\n  it is gpu or host"
        )
    # What is wrong is told now, not as a reason for each function.
    if name_wanted(wishes.engine) != "host":
        warn_of_installation()
    if wishes.engine == "gpu":
        choose_launcher(wishes.engine)
    if name_wanted(wishes.engine) != "host" and count_gpus():
        check_cublas()
    takeover.install()
    return wishes


def report(*, reset: bool = False) -> Report:
    """What was compiled, run, and left to XLA or TensorFlow and why, since the last reset.  Print it.

    reset: begin anew after this report.
    """
    found = takeover.make_report()
    if reset:
        takeover.reset()
    return found
