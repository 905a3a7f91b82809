"""The code that the documents show runs as it stands."""

import re
from pathlib import Path

import pytest

from esper.growth.blueprints import blueprint

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _forget_blueprints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a document register a blueprint without other tests seeing it."""
    monkeypatch.setattr(blueprint, "_REGISTRY", dict(blueprint._REGISTRY))


@pytest.mark.parametrize("name", ["README.md", "docs/ppo.md", "docs/growth.md", "docs/tasks.md"])
def test_the_python_of_a_document_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)
    assert blocks
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, name, "exec"), scope)
    if name == "README.md":
        printed = capsys.readouterr().out
        assert re.search(r"return \d+\.\d  kl \d", printed)
        assert "torch.Size([1, 7, 3])" in printed
