"""The ASTITCH_* names: few, documented, and refused when they make no sense."""

from __future__ import annotations

import re
from inspect import signature
from pathlib import Path

import pytest

import astitch
from astitch import options
from astitch.api.engines import choose_engine
from astitch.errors import InvalidOption

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in options.NAMES:
        monkeypatch.delenv(name, raising=False)


def test_defaults() -> None:
    assert options.debug_level() == 0
    assert options.dump_dir() is None
    assert options.cache_dir() == Path.home() / ".cache" / "astitch"


def test_values(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASTITCH_DEBUG", "3")
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("ASTITCH_DUMP", " ")  # nothing: not set
    assert options.debug_level() == 3
    assert options.cache_dir() == tmp_path
    assert options.dump_dir() is None


@pytest.mark.parametrize("value", ["5", "-1", "two"])
def test_values_that_make_no_sense(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTITCH_DEBUG", value)
    with pytest.raises(InvalidOption) as caught:
        options.debug_level()
    assert str(caught.value) == (
        f"environment: ASTITCH_DEBUG={value!r} is not understood\n"
        f"  ASTITCH_DEBUG is {options.NAMES['ASTITCH_DEBUG']}"
    )


def test_what_is_an_option_of_a_call_is_no_variable() -> None:
    calls = astitch.jit, astitch.enable, astitch.enabled
    taken = {f"ASTITCH_{name.upper()}" for call in calls for name in signature(call).parameters}
    assert not taken & {*options.NAMES}


def test_an_earlier_name_is_not_read_and_says_what_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTITCH_ENGINE", "executor")
    monkeypatch.setattr("astitch.run.executor.count_gpus", lambda: 0)
    monkeypatch.setattr("astitch.device.cuda_driver.count_devices", lambda: 0)
    options._warn_of_replaced.cache_clear()
    with pytest.warns(
        RuntimeWarning, match="environment: ASTITCH_ENGINE is not read any more"
    ) as told:
        options.cache_dir()
        assert choose_engine() == "host"
    (said,) = (str(one.message) for one in told if "environment" in str(one.message))
    assert "engine= of astitch.jit and tf_addon.enable" in said
    assert "an empty CUDA_VISIBLE_DEVICES) stands in its place" in said


def test_names_are_few_and_documented() -> None:
    assert len(options.NAMES) <= 10
    reads = re.compile(r"""(?:environ\.get\(|environ\[|getenv\(|_read\()\s*["'](ASTITCH_\w+)""")
    read: set[str] = set()
    for package in ("astitch", "tf_addon"):
        for path in (REPOSITORY / package).rglob("*"):
            if path.suffix in (".py", ".cc", ".h", ".cuh"):
                read |= {*reads.findall(path.read_text("utf-8"))}
    assert read == {*options.NAMES}
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    for name in options.NAMES:
        assert f"| `{name}` |" in readme


def test_documents_name_no_others() -> None:
    """A macro of the CUDA text stands before a bracket."""
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
    named = {
        name
        for page in pages
        for name in re.findall(r"\bASTITCH_\w+\b(?!\()", page.read_text("utf-8"))
    }
    assert named == {*options.NAMES}
