"""benchmarks.host_overhead: rows for every engine that there is, reasons for the others, one table and one file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import host_overhead


def test_rows_reasons_and_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astitch.device.cuda_driver.count_devices", lambda: 0)
    monkeypatch.setattr(host_overhead, "ROUNDS", 2)
    monkeypatch.setattr(host_overhead, "LAYERS", 4)
    file = tmp_path / "overhead.json"
    engines = ["jax.jit", "xla", "host"]
    host_overhead.main(
        ["--arguments", "1", "3", "--calls", "3", "--json", str(file), "--engines", *engines]
    )
    rows = json.loads(file.read_text())["rows"]
    assert [(row["function"], row["arguments"], row["engine"]) for row in rows] == [
        ("sum", 1, "jax.jit"), ("sum", 1, "host"), ("sum", 3, "jax.jit"), ("sum", 3, "host"),
        ("layers", 5, "jax.jit"), ("layers", 5, "host"),
    ]  # fmt: skip
    assert all(row[name] > 0 for row in rows for name in ("idle_us", "queued_us", "kept_us"))
    *lines, missing = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(rows)
    assert missing == "xla: the engine xla was asked for, but CUDA's driver sees no GPU"
