"""Plans that were tuned on one machine are used on others, and by later releases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from test_tune import SOFTMAX, measure_as

import astitch
from astitch.compile import compile_hlo
from astitch.device.schedule import DEFAULT
from astitch.errors import AstitchError, InvalidOption
from astitch.search import travelling_plans, tune
from astitch.search.travelling_plans import PlansWarning, forget_plans
from astitch.system.private_files import NotPrivate, read_shared


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path / "cache"))
    yield
    forget_plans()


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file with the tuned plan of a softmax, exported; this machine knows nothing of it any more."""
    with monkeypatch.context() as gpu:
        measure_as(gpu, lambda s: 50.0 if s != DEFAULT else 100.0)
        compile_hlo(SOFTMAX, gpu="h100", tune=True)
    assert astitch.export_plans(tmp_path / "plans.json") == 1
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path / "another"))
    return tmp_path / "plans.json"


def test_a_plan_is_used_where_it_is_imported(file: Path) -> None:
    (before,) = compile_hlo(SOFTMAX, gpu="h100").plans
    assert before.schedule == DEFAULT
    assert astitch.import_plans(file) == 1
    (plan,) = compile_hlo(SOFTMAX, gpu="h100").plans
    assert plan.schedule != DEFAULT
    assert plan.notes[-1] == "imported: tuned on h100: 50.0 us there, 100.0 us by the rules"


def test_another_gpu_plans_for_itself(file: Path) -> None:
    (before,) = compile_hlo(SOFTMAX, gpu="a100").plans
    astitch.import_plans(file)
    (plan,) = compile_hlo(SOFTMAX, gpu="a100").plans
    assert plan.schedule == before.schedule


def test_a_plan_outlives_its_release(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "sources", lambda: "newer")
    astitch.import_plans(file)
    (plan,) = compile_hlo(SOFTMAX, gpu="h100").plans
    assert "imported: tuned on h100, by other sources of astitch: " in plan.notes[-1]


def test_a_plan_that_cannot_be_made_any_more_is_none(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AstitchError("no kernel fits")

    astitch.import_plans(file)
    monkeypatch.setattr(travelling_plans, "plan_scope", refuse)
    (plan,) = compile_hlo(SOFTMAX, gpu="h100").plans
    assert plan.schedule == DEFAULT
    assert plan.notes[-1].startswith("imported: the plan that was tuned cannot be made any more")


def test_choices_that_are_not_known_are_left_out(file: Path) -> None:
    kept = json.loads(file.read_text())
    body = json.loads(kept["body"])
    for entry in body["plans"].values():
        entry["schedule"]["clusters"] = 4
    text = json.dumps(body)
    file.write_text(json.dumps({"sha256": travelling_plans._sign(text), "body": text}))
    with pytest.warns(PlansWarning, match="1 of 1 plans in .* have choices that this version"):
        assert astitch.import_plans(file) == 0


@pytest.mark.parametrize("damage", ["", "{}", "[1]", None])
def test_a_damaged_file_is_refused(file: Path, damage: str | None) -> None:
    text = file.read_text()
    file.write_text(text.replace("50.0", "5.0") if damage is None else damage)
    with pytest.raises(InvalidOption, match="is no file of plans"):
        astitch.import_plans(file)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="cannot be read: No such file or directory"):
        astitch.import_plans(tmp_path / "plans.json")


def test_nothing_to_export_is_told(tmp_path: Path) -> None:
    with pytest.warns(PlansWarning, match="nothing was tuned on this machine"):
        assert astitch.export_plans(tmp_path / "plans.json") == 0
    assert astitch.import_plans(tmp_path / "plans.json") == 0


def test_imported_plans_are_part_of_the_keys(file: Path) -> None:
    assert travelling_plans.fingerprint() == ""
    astitch.import_plans(file)
    assert travelling_plans.fingerprint()


PRINT_KEY = """
from astitch.device.gpu import preset
from astitch.compile import compile_hlo
from astitch.search.tune import key_of_structure
from tests.programs import load
compilation = compile_hlo(load("layer_norm_backward"), gpu="h100")
(plan,) = compilation.plans
print(key_of_structure(plan.arrangement.graph, plan.scope, preset("h100")))
"""


def test_keys_are_the_same_in_every_process() -> None:
    found = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        ran = subprocess.run(
            [sys.executable, "-c", PRINT_KEY], env=environment, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
        found.add(ran.stdout)
    assert len(found) == 1


# ---- shared caches -------------------------------------------------------------------------------


def test_a_shared_folder_is_read_and_never_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = measure_as(monkeypatch, lambda s: 50.0 if s != DEFAULT else 100.0)
    compile_hlo(SOFTMAX, gpu="h100", tune=True)
    asked.clear()
    shared = tmp_path / "cache"
    before = sorted(path.name for path in shared.rglob("*"))
    monkeypatch.setenv("ASTITCH_CACHE_DIR", f"{tmp_path / 'own'}:{shared}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (plan,) = compile_hlo(SOFTMAX, gpu="h100", tune=True).plans
    assert not asked and plan.schedule != DEFAULT
    compile_hlo(SOFTMAX, gpu="a100", tune=True)
    assert asked
    assert sorted(path.name for path in shared.rglob("*")) == before


@pytest.mark.parametrize("writable", [".", "plans"])
def test_a_shared_folder_that_all_may_write_is_not_trusted(
    writable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Who may write the whole could put a folder of theirs in the place of `plans`."""
    asked = measure_as(monkeypatch, lambda s: 50.0 if s != DEFAULT else 100.0)
    compile_hlo(SOFTMAX, gpu="h100", tune=True)
    first = len(asked)
    (tmp_path / "cache" / writable).chmod(0o777)
    monkeypatch.setenv("ASTITCH_CACHE_DIR", f"{tmp_path / 'own'}:{tmp_path / 'cache'}")
    with pytest.warns(RuntimeWarning, match="shared cache .* is not used: .* can be written by"):
        compile_hlo(SOFTMAX, gpu="h100", tune=True)
    assert len(asked) == 2 * first


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize(("whole", "trusted"), [(0, True), (1000, True), (1001, False)])
def test_a_shared_folder_is_its_files_owner_s_or_the_system_s(
    whole: int, trusted: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "shared" / "plans"
    folder.mkdir(parents=True)
    (folder / "one").write_bytes(b"it")
    for path in (folder, folder / "one"):
        path.chmod(0o755)
        os.chown(path, 1000, 1000)
    folder.parent.chmod(0o755)
    os.chown(folder.parent, whole, whole)
    if trusted:
        assert read_shared(folder.parent, "plans", "one") == b"it"
    else:
        with pytest.raises(NotPrivate, match="by others than the owner of its files"):
            read_shared(folder.parent, "plans", "one")
