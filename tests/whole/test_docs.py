"""What the documentation names exists, and its tables say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from astitch.pipeline import NAMES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
ROOMS = ("astitch", "benchmarks", "docs", "examples", "tests", "tf_addon")
FILES = [f"/{p.relative_to(ROOT)}" for room in ROOMS for p in (ROOT / room).rglob("*.*")]
MADE = {
    "repro.py",
    "model.py",
    "train.py",
    "plans.json",
    "base.json",
    "now.json",
    "models.json",
    "0030-short-name.md",
}
"""Files that a command of the page writes or that the reader brings; those in CAPITALS are too."""
FILE = re.compile(r"(?<![\w/.-])((?:[\w.-]+/)*[\w-]+\.(?:py|cuh|cu|cc|h|cpp|json|txt|md|toml))\b")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]*))?\)")
MODULE = re.compile(r"python -m ((?:astitch|tests|benchmarks)[\w.]*)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    assert [n for n in FILE.findall(text) if not exists(page, n)] == []
    assert [(n, at) for n, at in LINK.findall(text) if not resolves(page, n, at)] == []
    modules = [ROOT.joinpath(*name.split(".")) for name in MODULE.findall(text)]
    files = [(path.with_suffix(".py"), path / "__main__.py") for path in modules]
    assert [pair for pair in files if not any(path.exists() for path in pair)] == []


def exists(page: Path, name: str) -> bool:
    made = name in MADE or Path(name).stem.isupper()
    there = (page.parent / name).exists() or (ROOT / name).exists()
    return made or there or any(path.endswith(f"/{name}") for path in FILES)


def resolves(page: Path, name: str, heading: str) -> bool:
    path = page.parent / name if name else page
    titles = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.M) if heading else []
    slugs = {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}
    return path.exists() and (not heading or heading in slugs)


def test_the_tables_are_complete() -> None:
    parts = re.split(r"^## ", (ROOT / "docs/architecture.md").read_text("utf-8"), flags=re.M)
    tables = {part.splitlines()[0]: part for part in parts}
    assert re.findall(r"^\| `(\w+)`", tables["The pipeline"], re.M) == ["import", *NAMES]
    packages = {f"{p.parent.name}/" for p in (ROOT / "astitch").glob("*/__init__.py")}
    assert packages - set(re.findall(r"`(\w+/)`", tables["The packages"])) == set()
    index = (ROOT / "docs/decisions/README.md").read_text("utf-8")
    decisions = sorted((ROOT / "docs/decisions").glob("0*.md"))
    assert re.findall(r"^\| .*\]\((0.*\.md)\)", index, re.M) == [p.name for p in decisions]
    assert all(f"# {p.name[:4]}: " in p.read_text("utf-8")[:8] for p in decisions)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150
