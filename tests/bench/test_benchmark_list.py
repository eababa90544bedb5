"""`python -m benchmarks` names every command among the benchmarks, and nothing that is none."""

from __future__ import annotations

import pytest

from benchmarks import __main__ as listing


def test_every_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    listing.main()
    lines = capsys.readouterr().out.splitlines()
    named = [line.split()[0] for line in lines]
    assert {"benchmarks.models", "benchmarks.kernels", "benchmarks.hook"} <= set(named)
    assert not {"benchmarks.peers", "benchmarks.patterns", "benchmarks.timing"} & set(named)
    assert all(len(line.split()) > 3 for line in lines), "each says what it measures"
