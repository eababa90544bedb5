"""Tuning beside calls: a later call takes what won; what cannot be measured leaves the rules' plans."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import astitch
from astitch.api import stages
from astitch.api.background import TuningWarning
from astitch.device.schedule import DEFAULT
from astitch.errors import InvalidOption
from astitch.search import tune
from astitch.search.measure import Measurement

X = np.random.default_rng(0).normal(size=(64, 512)).astype(np.float32)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[threading.Event]:
    """The emulation as an engine that can be timed, when the gate opens: other plans than the rules' win."""
    opened = threading.Event()

    def measure(graph: Any, plans: Any, *, compiled: Any, progress: Any) -> list[Measurement]:
        assert opened.wait(60)
        return [Measurement(9.0 if p.schedule == DEFAULT else 5.0, None, 1) for p in plans]

    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tune, "measure_plans", measure)
    monkeypatch.setattr(tune, "compile_plans", lambda plans, arch: [None] * len(plans))
    monkeypatch.setattr(tune, "_require_device", lambda gpu: None)
    for module in (stages, sys.modules["astitch.jit"]):
        monkeypatch.setattr(module, "can_measure", lambda engine: True)
    yield opened
    opened.set()
    wait()


def wait() -> None:
    for thread in threading.enumerate():
        if thread.name == "astitch-tune":
            thread.join(60)


def make(**options: Any) -> Any:
    return astitch.jit(lambda x: jax.nn.softmax(x, -1), engine="host", **options)


def notes(fn: Any) -> list[str]:
    """Of the program that the latest call ran."""
    return [note for plan in fn._signatures.latest[2].compilation.plans for note in plan.notes]


def test_a_later_call_takes_what_won(gate: threading.Event) -> None:
    fn = make(tune="background")
    first = fn(X)  # returns before anything is measured
    assert not any(note.startswith("tuned") for note in notes(fn))
    fn(X)
    gate.set()
    wait()
    found = fn(X)
    (note,) = (note for note in notes(fn) if note.startswith("tuned"))
    assert note.endswith("plans measured, 5.0 us; 9.0 us by the rules")
    np.testing.assert_allclose(found, first, rtol=1e-6)
    assert fn._cache_size() == 1


def test_each_signature_is_tuned(gate: threading.Event) -> None:
    fn = make(tune="background")
    gate.set()
    fn(X), fn(X[:32])
    wait()
    for x in (X, X[:32]):
        fn(x)
        assert any(note.startswith("tuned") for note in notes(fn))


def test_ahead_of_time_all_is_measured_first(gate: threading.Event) -> None:
    gate.set()
    compiled = make(tune="background").lower(X).compile()
    assert "tuned:" in compiled.explain()


def test_what_was_forgotten_meanwhile_stays_forgotten(gate: threading.Event) -> None:
    fn = make(tune="background")
    fn(X)
    fn.clear_cache()
    gate.set()
    wait()
    assert fn._cache_size() == 0


def test_what_cannot_be_measured_stays_by_the_rules(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no timer\nno more")

    monkeypatch.setattr(tune, "measure_plans", refuse)
    monkeypatch.setenv("ASTITCH_FAULTS", "raise")
    fn = make(tune="background")
    with pytest.warns(TuningWarning, match="not measured beside its calls: RuntimeError: no timer"):
        fn(X)
        wait()
    np.testing.assert_allclose(fn(X), jax.nn.softmax(X, -1), rtol=1e-5)


def test_the_emulation_measures_nothing() -> None:
    make(tune="background")(X)
    assert not any(thread.name == "astitch-tune" for thread in threading.enumerate())


def test_other_wishes_are_refused() -> None:
    with pytest.raises(InvalidOption, match="tune='later' is not known"):
        make(tune="later")
    with pytest.raises(InvalidOption, match="measured before the first call: tune=True"):
        astitch.enable(tune="background")  # type: ignore[arg-type]
