"""Run the notebooks of ``examples/`` and store what their cells print and show.

Run:  python tools/run_notebooks.py
      python tools/run_notebooks.py examples/grow_your_model.ipynb
"""

from __future__ import annotations

import ast
import base64
import io
import json
import os
import sys
import tempfile
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def run_cell(source: str, scope: dict[str, Any], name: str) -> tuple[str, Any]:
    """Run a cell and return what it printed and the value of its last expression."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(tree, name, "exec"), scope)
        value = None
        if last is not None and not source.rstrip().endswith(";"):
            value = eval(compile(ast.Expression(last.value), name, "eval"), scope)
        elif last is not None:
            exec(compile(ast.Module([last], []), name, "exec"), scope)
    return printed.getvalue(), value


def outputs_of(printed: str, value: Any, number: int) -> list[dict[str, Any]]:
    """Return the outputs of a cell in the notebook format."""
    outputs: list[dict[str, Any]] = []
    if printed:
        lines = printed.splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines})
    if value is not None:
        data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
        metadata: dict[str, Any] = {}
        html = value._repr_html_() if hasattr(value, "_repr_html_") else None
        if html is not None:
            data["text/html"] = html.splitlines(keepends=True)
        if hasattr(value, "_repr_png_"):
            picture, metadata["image/png"] = value._repr_png_()
            data["image/png"] = base64.b64encode(picture).decode()
        outputs.append(
            {
                "data": data,
                "execution_count": number,
                "metadata": metadata,
                "output_type": "execute_result",
            }
        )
    return outputs


def run_notebook(path: Path) -> dict[str, Any]:
    """Run a notebook in a folder of its own and return it with its outputs."""
    notebook = json.loads(path.read_text("utf-8"))
    scope: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for number, cell in enumerate(cells, 1):
            name = f"{path.name}[{number}]"
            cell["outputs"] = outputs_of(*run_cell("".join(cell["source"]), scope, name), number)
            cell["execution_count"] = number
    return notebook


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "100")
    for file in map(Path, sys.argv[1:]) if sys.argv[1:] else ROOT.glob("examples/*.ipynb"):
        text = json.dumps(run_notebook(file.resolve()), indent=1, ensure_ascii=False) + "\n"
        file.write_text(text, "utf-8")
        print(f"{file}: {len(text) / 1e3:.0f} kB")
