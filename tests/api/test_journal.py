"""What a process keeps of the programs that it compiled."""

from __future__ import annotations

import numpy as np

from astitch.api.transformation import MOST_EXPLAINED, Entry, Journal
from astitch.compile import compile_hlo
from tests.hlo_runner import lower


def test_old_programs_are_explained_no_more() -> None:
    compilation = compile_hlo(
        lower(lambda x: (x * 2).sum(-1), np.ones((8, 8), np.float32)), gpu="h100"
    )
    journal = Journal()
    for number in range(MOST_EXPLAINED + 5):
        journal.add(Entry(f"program_{number}", 1, "", 0.1, compilation=compilation))
    programs = journal.report().programs
    assert len(programs) == journal.report().stitched == MOST_EXPLAINED + 5
    assert [entry.is_old for entry in programs] == [True] * 5 + [False] * MOST_EXPLAINED
    assert not any(entry.compilation for entry in programs[:5])
    assert "ask for it earlier" in programs[0].explain()
    assert programs[5].explain() == compilation.explain()


def test_an_empty_report_says_why() -> None:
    journal = Journal()
    why = "\n  JAX has compiled nothing for an NVIDIA GPU"
    assert str(journal.report()) == "0 programs with stitched kernels" + why
    journal.add(Entry("jit_add", 0, "nothing in it is worth a kernel", 0.0))
    assert why not in str(journal.report())
