"""The tutorial on growing a model prints what its page shows."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[1] / "docs/grow-your-model.md"


def without_times(text: str) -> str:
    """Return a text without what depends on the speed of the machine, and its line breaks."""
    return re.sub(r"\d+(\.\d+)? s\b|\d+ min \d+ s", "TIME", " ".join(text.split()))


def test_the_page_shows_what_its_code_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    scope: dict[str, object] = {}
    for code, shown in blocks:
        printed = StringIO()
        with redirect_stdout(printed), torch.random.fork_rng(devices=[]):
            exec(compile(code, PAGE.name, "exec"), scope)
        assert without_times(printed.getvalue()) == without_times(shown), printed.getvalue()
