"""Print files over 500 lines, and functions over 60 lines or with more than 8 parameters."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS = 500, 60, 8


def large_functions(path: Path) -> list[str]:
    """Return one line for each function of a file that is over a limit."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        names = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        count = sum(name.arg not in ("self", "cls") for name in names)
        if lines > MAX_FUNCTION_LINES or count > MAX_PARAMETERS:
            found.append(f"{path}:{node.lineno} {node.name}: {lines} lines, {count} parameters")
    return found


def main(root: str) -> None:
    """Print the report on all Python files below a folder. It never fails."""
    files = sorted(Path(root).rglob("*.py"))
    sizes = {path: len(path.read_text().splitlines()) for path in files}
    large = [f"{path}: {size} lines" for path, size in sizes.items() if size > MAX_FILE_LINES]
    large += [line for path in files for line in large_functions(path)]
    print(f"{len(files)} files, {sum(sizes.values())} lines, {len(large)} over the limits")
    for line in large:
        print("  " + line)


if __name__ == "__main__":
    main(sys.argv[1])
