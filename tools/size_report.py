"""Print what has grown large: files over 500 lines, functions over 60 lines or 8 parameters."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS = 500, 60, 8


def large_functions(path: Path) -> list[str]:
    """Return a line for each function of a file that is long or takes many parameters."""
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
    """Print the report of all Python files below a folder; it never fails a build."""
    files = sorted(Path(root).rglob("*.py"))
    sizes = {path: len(path.read_text().splitlines()) for path in files}
    large = [f"{path}: {size} lines" for path, size in sizes.items() if size > MAX_FILE_LINES]
    large += [line for path in files for line in large_functions(path)]
    print(f"{len(files)} files, {sum(sizes.values())} lines, {len(large)} large places")
    for line in large:
        print("  " + line)


if __name__ == "__main__":
    main(sys.argv[1])
