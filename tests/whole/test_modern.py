"""Programs as users write them today (benchmarks.modern): through XLA's hook, and astitch.jit beside jax.jit."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

pytest.importorskip("jax")

from astitch.xla.hook import NOTHING
from benchmarks import modern
from benchmarks.modern_ahead import GPU, AheadRow, compile_ahead
from benchmarks.modern_programs import ENTRIES, list_names, make_program
from benchmarks.modern_programs.program import Draw, Program

EMULATED = ("pde/water", "optimizers/lamb", "gnn/train")

LONG = frozenset(
    f"{family}/{entry}"
    for family in ("gpt2", "vit", "resnet", "unet", "mamba", "s5", "paper")
    for entry in ENTRIES[family]
    if entry not in ("infer", "infer-f32", "bert-infer", "dien-infer")
) | {"llama/train", "ppo/update"}
"""Of which XLA's part alone takes long."""

ELEMENTWISE = ("optimizers/lion",)
"""XLA makes one kernel of each array's update too."""

THROUGH_THE_HOOK = tuple(name for name in list_names() if name not in LONG)


def make_small(name: str) -> Program:
    family = name.partition("/")[0]
    try:
        importlib.import_module(f"benchmarks.modern_programs.{family}")
    except ModuleNotFoundError as error:
        pytest.skip(f"needs {error.name} (pip install 'astitch[bench]')")
    return make_program(name, small=True, seed=0)


@pytest.mark.xla_hook
@pytest.mark.parametrize("name", THROUGH_THE_HOOK)
def test_the_hook_stitches(name: str) -> None:
    import astitch

    program = make_small(name)
    before = astitch.report()
    with astitch.enabled(gpu=GPU):
        compile_ahead(program)
    after = astitch.report()
    entries = after.programs[len(before.programs) :]
    if name in ELEMENTWISE:
        assert entries == ()
        assert after.left[NOTHING] == before.left.get(NOTHING, 0) + 1
    else:
        assert [(entry.reason, entry.kernels > 0) for entry in entries] == [("", True)]


@pytest.mark.parametrize("name", EMULATED)
def test_the_emulation_equals_jax(name: str) -> None:
    import jax
    import numpy as np

    import astitch

    program = make_small(name)
    arguments = jax.jit(program.make)()
    wanted = jax.jit(program.fn)(*arguments)
    found = astitch.jit(program.fn)(*arguments)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", EMULATED)
def test_what_is_carried_comes_back(name: str) -> None:
    """So that the benchmark can hand it on to the next call."""
    import jax

    program = make_small(name)
    arguments = jax.eval_shape(program.make)
    results = jax.eval_shape(program.fn, *arguments)
    assert results[: program.carried] == arguments[: program.carried]


def test_seeds_draw_sizes() -> None:
    sizes = [8, 12, 16, 20, 24, 28]
    drawn = {seed: Draw(seed, False, "gpt2").pick("batch", sizes, 1) for seed in range(20)}
    assert drawn[0] == 8
    assert len(set(drawn.values())) > 3
    assert drawn == {seed: Draw(seed, False, "gpt2").pick("batch", sizes, 1) for seed in range(20)}
    assert Draw(5, True, "gpt2").pick("batch", sizes, 1) == 1


@pytest.mark.xla_hook
def test_a_program_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that fails is a row too, and says why."""
    rows = tmp_path / "rows.json"
    given = ["--ahead", "--size", "small", "--only", "pde/poisson", "--json", str(rows)]
    modern.main(given)
    row = AheadRow.read(json.loads(rows.read_text())["rows"][0])
    assert row.xla
    assert row.astitch
    assert row.xla.ours == 0 < row.astitch.ours <= row.astitch.memory < row.xla.memory
    assert 0 < row.astitch.light_ms <= row.astitch.all_light_ms
    assert 0 < row.astitch.projected_ms < row.xla.projected_ms
    assert "light ms: geometric mean" in capsys.readouterr().out
    options = modern.make_parser().parse_args(["--ahead", "--size", "small"])
    failed = modern.run_alone("pde/none", options)
    assert isinstance(failed, AheadRow)
    assert failed.xla is None
    assert "KeyError" in failed.notes[0]
    assert "KeyError" in modern.format_row(failed)
