"""Programs that users reported as slow (benchmarks.complaints): named by issue, compared, and rows like others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("jax")

from benchmarks import complaints
from benchmarks.complaints import COMPLAINTS
from benchmarks.modern_programs import make_program
from benchmarks.modern_programs.complaints import IN_ORDER, MAKE, NOT_COMPARED, WAIT_FOR_LOOPS


def test_programs_are_named_by_issue() -> None:
    assert all(re.fullmatch(r"(jax|xla)-\d+/[a-z0-9-]+", name) for name in COMPLAINTS.names)
    assert {*IN_ORDER, *NOT_COMPARED, *WAIT_FOR_LOOPS} <= MAKE.keys()


@pytest.mark.parametrize("name", COMPLAINTS.names)
def test_results_equal_jax(name: str) -> None:
    import jax

    import astitch
    from benchmarks.modern_gpu import find_error, is_floating

    program = make_program(name, small=True, seed=0)
    arguments = jax.jit(program.make)()
    wanted = jax.jit(program.fn)(*arguments)
    found = astitch.jit(program.fn)(*arguments)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    narrow = any(a.dtype.itemsize == 2 for a in jax.tree.leaves((arguments, wanted)))
    assert find_error(found, wanted) < (1e-2 if narrow else 1e-5)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert is_floating(other) or (one == other).all()


@pytest.mark.xla_hook
def test_a_complaint_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Compiled for a GPU that is not here; XLA's side in a fixed order where both are."""
    rows = tmp_path / "rows.json"
    complaints.main(["--ahead", "--size", "small", "--only", "jax-17844", "--json", str(rows)])
    (row,) = json.loads(rows.read_text())["rows"]
    assert row["xla"]["memory"] > row["astitch"]["memory"] > 0
    assert "jax-17844/vmap" in capsys.readouterr().out
