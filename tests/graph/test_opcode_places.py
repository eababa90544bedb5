"""How often astitch asks a node for its opcode, on the syntax tree of its sources.

An op is one row of graph/ops.  What a pass wants to know of an op is a property there, so that a new op needs no other
edit.  A place is a comparison or a membership of `.op`, or of a name bound to it, or one case of a `match` on either.
The rows, hlo/ and rules that a table files under their opcodes do not count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import astitch
from astitch.graph.ops import OPS

MOST_PLACES = 70

ROOT = Path(astitch.__file__).parent

_NAMES = frozenset({"op", "opcode"})
"""Parameters of these names hold an opcode too."""


def test_few_places_ask_for_the_opcode() -> None:
    sources = {path: path.read_text() for path in sorted(ROOT.rglob("*.py"))}
    filed = frozenset[str]().union(*(_filed_rules(ast.parse(text)) for text in sources.values()))
    places = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path, source in sources.items()
        if not path.is_relative_to(ROOT / "hlo") and not path.is_relative_to(ROOT / "graph/ops")
        for line, text in find_places(source, filed)
    ]
    assert len(places) <= MOST_PLACES, "\n".join([f"{len(places)} places:", *places])


def test_places_are_found() -> None:
    source = """
def f(node, other):
    op = node.op
    if node.op == "a" or op in {"b"} or other.op not in NAMES or node.name == "c":
        pass
    match node.op, node.attrs:
        case "d", _:
            pass
        case _:
            pass
def filed(node):
    return node.op == "a"
RULES = {"add": (filed,)}
"""
    found = find_places(source, _filed_rules(ast.parse(source)))
    assert [line for line, _ in found] == [4, 4, 4, 7]


def find_places(source: str, filed: frozenset[str]) -> Iterator[tuple[int, str]]:
    """(line, text) of each place in a source, outside of the functions called `filed`."""
    return _visit(ast.parse(source), frozenset(), filed)


def _filed_rules(tree: ast.Module) -> frozenset[str]:
    """The functions that a module's tables name under opcodes."""
    found: set[str] = set()
    for statement in tree.body:
        match statement:
            case ast.Assign(value=ast.Dict() as table) | ast.AnnAssign(value=ast.Dict() as table):
                for key, value in zip(table.keys, table.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value in OPS:
                        found |= {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
    return frozenset(found)


def _visit(
    node: ast.AST, bound: frozenset[str], filed: frozenset[str]
) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.FunctionDef):
        if node.name in filed:
            return
        bound |= {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)} & _NAMES
        bound |= _bound_names(node)
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        asks = isinstance(node.ops[0], (ast.Eq, ast.NotEq, ast.In, ast.NotIn))
        if asks and any(_is_opcode(side, bound) for side in sides):
            yield node.lineno, ast.unparse(node)
    if isinstance(node, ast.Match) and _is_opcode(node.subject, bound):
        for case in node.cases:
            if not isinstance(case.pattern, ast.MatchAs) or case.pattern.pattern is not None:
                yield case.pattern.lineno, f"case {ast.unparse(case.pattern)}"
    for child in ast.iter_child_nodes(node):
        yield from _visit(child, bound, filed)


def _is_opcode(node: ast.AST, bound: frozenset[str]) -> bool:
    """`x.op`, a name bound to it, or a tuple or set with one of them."""
    match node:
        case ast.Attribute(attr="op"):
            return True
        case ast.Name(id=name):
            return name in bound
        case ast.NamedExpr(value=value):
            return _is_opcode(value, bound)
        case ast.Tuple(elts=elements) | ast.Set(elts=elements):
            return any(_is_opcode(element, bound) for element in elements)
    return False


def _bound_names(function: ast.FunctionDef) -> frozenset[str]:
    """Names that the function binds to the `.op` of something, or to a set or a list of them."""
    found = set()
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _holds_opcode(value):
                found.add(name)
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                for target, value in zip(names, values, strict=False):
                    if isinstance(target, ast.Name) and _holds_opcode(value):
                        found.add(target.id)
            case ast.NamedExpr(target=ast.Name(id=name), value=value) if _holds_opcode(value):
                found.add(name)
    return frozenset(found)


def _holds_opcode(value: ast.AST) -> bool:
    match value:
        case ast.Attribute(attr="op"):
            return True
        case ast.SetComp(elt=element) | ast.ListComp(elt=element) | ast.GeneratorExp(elt=element):
            return _holds_opcode(element)
        case ast.Call(func=ast.Name(id="set" | "frozenset" | "list" | "tuple"), args=[argument]):
            return _holds_opcode(argument)
    return False
