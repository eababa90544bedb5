"""The sizes that keep a house one can find one's way in: of functions, classes and modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("astitch", "tf_addon", "benchmarks")

MAX_FUNCTION, MAX_CLASS, MAX_MODULE = 100, 500, 900
"""Lines."""

TABLES: dict[str, str] = {}
"""Modules of more lines, each with the reason: tables, and text of another language."""


def dispatches_only(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Is the body one match, besides a docstring?"""
    first, *others = function.body
    if others and isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        first, *others = others
    return not others and isinstance(first, ast.Match)


def count_lines(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def list_sizes(path: Path) -> Iterator[tuple[str, int]]:
    """What of a module is above the limits: its path and name, and its lines."""
    name, text = path.relative_to(ROOT).as_posix(), path.read_text()
    lines = len(text.splitlines())
    if lines > MAX_MODULE and name not in TABLES:
        yield name, lines
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ClassDef() if count_lines(node) > MAX_CLASS:
                yield f"{name} {node.name}", count_lines(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef() if count_lines(node) > MAX_FUNCTION:
                if not dispatches_only(node):
                    yield f"{name} {node.name}", count_lines(node)


def test_nothing_is_larger_than_one_can_read() -> None:
    paths = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))
    found = dict(size for path in paths for size in list_sizes(path))
    assert found == {}, f"above {MAX_FUNCTION}, {MAX_CLASS} or {MAX_MODULE} lines"


def test_a_function_that_only_dispatches_is_exempt() -> None:
    text = 'def f(x):\n    """Doc."""\n    match x:\n        case 1:\n            return 2\n'
    more = text.replace("match", "y = x\n    match")
    (alone,), (other,) = ast.parse(text).body, ast.parse(more).body
    assert isinstance(alone, ast.FunctionDef)
    assert isinstance(other, ast.FunctionDef)
    assert dispatches_only(alone)
    assert not dispatches_only(other)
