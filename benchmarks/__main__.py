"""`python -m benchmarks` lists the benchmarks: the modules of this package that are commands.

Takes nothing, prints a line for each: its name, and the first line of its docstring.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent


def list_commands() -> Iterator[tuple[str, str]]:
    """(name for `python -m`, first line of the docstring) of each command, by name."""
    for path in sorted(ROOT.glob("[a-z]*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        if any(
            isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in tree.body
        ):
            doc = ast.get_docstring(tree) or ""
            yield f"benchmarks.{path.stem}", doc.partition("\n")[0]


def main() -> None:
    """Print the list."""
    commands = list(list_commands())
    width = max(len(name) for name, _ in commands)
    for name, purpose in commands:
        print(f"{name:{width}}  {purpose}")


if __name__ == "__main__":
    main()
