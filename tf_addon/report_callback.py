"""A Keras callback that logs what became of a model's functions.

Takes what `tf_addon.report()` counts, hands on a line to the logger `tf_addon` and numbers to Keras' own logs, where
CSVLogger and TensorBoard find them.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import Any

from tf_addon.enabling import report
from tf_addon.report import Report, show_share

log = logging.getLogger("tf_addon")


@dataclass(frozen=True, slots=True)
class Counts:
    """What a report counts since it began."""

    compiles: int
    compile_seconds: float
    runs: int
    fallbacks: int
    errors: int

    @staticmethod
    def of(found: Report) -> Counts:
        return Counts(
            found.compiles, found.compile_seconds, found.runs, found.fallbacks, found.errors
        )

    def since(self, before: Counts) -> Counts:
        """What came after `before`; all of it where the report began anew meanwhile."""
        if self.compiles < before.compiles or self.runs < before.runs:
            return self
        return Counts(
            self.compiles - before.compiles,
            self.compile_seconds - before.compile_seconds,
            self.runs - before.runs,
            self.fallbacks - before.fallbacks,
            self.errors - before.errors,
        )


def report_callback() -> Any:
    """A callback for `fit`, `evaluate` and `predict`: model.fit(..., callbacks=[tf_addon.report_callback()]).

    After each epoch it logs a line and adds numbers named `astitch_...` to Keras' logs: calls through astitch, calls
    that XLA or TensorFlow ran instead, compilations and their seconds, and the share in kernels.  It stands before
    callbacks that write logs.  The report's table is logged where something was left to others, and in the end.
    """
    return _find_class()()


@functools.cache
def _find_class() -> type[Any]:
    import tensorflow as tf

    class ReportCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
        """See report_callback."""

        def __init__(self) -> None:
            super().__init__()
            self._before = Counts.of(report())
            self._fits = False

        def on_train_begin(self, logs: Any = None) -> None:
            self._fits = True

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._before = Counts.of(report())

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            found = report()
            new = Counts.of(found).since(self._before)
            if logs is not None:
                logs.update(name_counts(new, found.share))
            log.info("epoch %d: %s", epoch + 1, tell_counts(new, found.share))
            if new.fallbacks:
                log.warning("epoch %d: calls were left to others\n%s", epoch + 1, found)

        def on_train_end(self, logs: Any = None) -> None:
            self._fits = False
            _log_whole("fit")

        def on_test_end(self, logs: Any = None) -> None:
            if not self._fits:  # else it validates
                _log_whole("evaluate")

        def on_predict_end(self, logs: Any = None) -> None:
            _log_whole("predict")

    return ReportCallback


def name_counts(counts: Counts, share: float | None) -> dict[str, float]:
    """As Keras' logs have them."""
    named: dict[str, float] = {
        "astitch_runs": counts.runs,
        "astitch_fallbacks": counts.fallbacks,
        "astitch_compiles": counts.compiles,
        "astitch_compile_seconds": round(counts.compile_seconds, 3),
    }
    return named if share is None else {**named, "astitch_share": round(share, 3)}


def tell_counts(counts: Counts, share: float | None) -> str:
    """The same in words."""
    return (
        f"{counts.runs} calls through astitch, {counts.fallbacks} by XLA or TensorFlow, {counts.errors} errors; "
        f"{counts.compiles} compiles in {counts.compile_seconds:.1f} s; stitched: {show_share(share)}"
    )


def _log_whole(what: str) -> None:
    if log.isEnabledFor(logging.INFO):
        log.info("%s has ended\n%s", what, report())
