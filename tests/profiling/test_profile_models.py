"""The model entries as targets of astitch-profile."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from astitch.profiling.report import Report
from astitch.profiling.target import Target, trace_function
from benchmarks import profile_models
from benchmarks.models import Entry, ModelRow


def test_entries_are_found_by_name() -> None:
    entry = profile_models.find_entry("crnn_infer")
    assert entry == Entry("crnn", "infer", "full")
    assert profile_models.find_entry("nothing_infer") is None
    assert profile_models.find_entry("crnn_nothing") is None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        profile_models.nothing  # noqa: B018


def test_reports_are_written_and_totals_shown_beside_the_models(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def read_entry(entry: Entry) -> Target:
        if entry.mode == "train":
            raise RuntimeError  # in no words
        return trace_function(entry.key, jnp.tanh, (jax.ShapeDtypeStruct((64,), jnp.float32),))

    monkeypatch.setattr(profile_models, "read_entry", read_entry)
    profile_models.main(["dien", "--gpu", "h100", "--out", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "dien/infer/full" in shown and "dien/train/full: RuntimeError:" in shown
    report = Report.load(tmp_path / "dien_infer.json")
    assert (tmp_path / "dien_infer.html").read_text().startswith("<!doctype html>")
    row = ModelRow("dien", "infer", "full", "now", {"xla": 3.0}, {"xla": {"memory": 2.0}})
    lines = profile_models.format_totals("dien", report, row).splitlines()
    assert lines[1].split() == ["models", "3", "-", "2/-/-", "-/-/-"]
    assert json.loads((tmp_path / "dien_infer.json").read_text())["target"] == "dien/infer/full"
