"""Hand-edited kernels run in the place of emitted ones, of the same plan only."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import astitch
from astitch.toolchain import override
from astitch.toolchain.override import OverrideWarning


@pytest.fixture
def folder(host_engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASTITCH_OVERRIDE", str(tmp_path / "kernels"))
    override._told.clear()
    return tmp_path / "kernels"


X = np.linspace(1, 2, 8 * 32, dtype=np.float32).reshape(8, 32)


def run(x: np.ndarray = X) -> np.ndarray:
    return np.asarray(astitch.jit(lambda x: x / x.sum(-1, keepdims=True) + 1.0)(x))


def edit(folder: Path, old: str, new: str) -> Path:
    (file,) = folder.glob("*.cu")
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    return file


def test_each_kernel_is_written_and_an_edited_one_runs(folder: Path) -> None:
    before = run()
    file = edit(folder, "1.0f)", "3.0f)")
    assert "its plan" not in file.read_text()
    with pytest.warns(OverrideWarning, match="a hand-edited kernel runs"):
        after = run()
    np.testing.assert_allclose(after, before + 2, rtol=1e-6)


def test_files_as_they_were_written_change_nothing(folder: Path) -> None:
    before = run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(run(), before)


def test_another_plan_does_not_take_it(folder: Path) -> None:
    run()
    edit(folder, "1.0f)", "3.0f)")
    wider = np.concatenate([X, X], axis=1)
    np.testing.assert_allclose(run(wider), wider / wider.sum(-1, keepdims=True) + 1, rtol=1e-6)
    assert len(list(folder.glob("*.cu"))) == 2


def test_other_parameters_are_refused(folder: Path) -> None:
    before = run()
    edit(folder, "const float* __restrict__ p_x_1", "const double* __restrict__ p_x_1")
    with pytest.warns(OverrideWarning, match="is not used: it declares .*double"):
        np.testing.assert_array_equal(run(), before)


def test_text_that_does_not_compile_is_refused(folder: Path) -> None:
    before = run()
    edit(folder, "1.0f)", "nonsense)")
    with pytest.warns(OverrideWarning, match=r"(?s)is not used: .*nonsense"):
        np.testing.assert_array_equal(run(), before)


def test_an_edit_is_part_of_the_keys(folder: Path) -> None:
    run()
    file = edit(folder, "1.0f)", "3.0f)")
    first = override.fingerprint()
    assert first
    file.write_text(file.read_text().replace("3.0f)", "4.0f)"))
    assert override.fingerprint() not in ("", first)
