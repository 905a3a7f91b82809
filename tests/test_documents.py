"""The code that the documents show runs as it stands."""

import re
from pathlib import Path

import pytest

from esper.growth.blueprints import registry as blueprint
from esper.lifecycle.slot_config import SlotConfig
from esper.tamiyo.policy.observations import ObservationLayout

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _forget_blueprints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a document register a blueprint without other tests seeing it."""
    monkeypatch.setattr(blueprint, "_REGISTRY", dict(blueprint._REGISTRY))


DOCUMENTS = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
WITHOUT_CODE = ("docs/dashboard.md", "docs/findings.md", "docs/how-it-works.md")
ELSEWHERE = ("docs/tutorial.md",)
"""Run by tests of their own."""


def test_the_table_of_observations_is_that_of_the_code() -> None:
    table = ObservationLayout(SlotConfig(("early", "late"))).table()
    assert table in (ROOT / "docs/environment.md").read_text()


@pytest.mark.usefixtures("fresh_shipped")
@pytest.mark.parametrize(
    "name", [name for name in DOCUMENTS if name not in (*WITHOUT_CODE, *ELSEWHERE)]
)
def test_the_python_of_a_document_runs(
    name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)
    assert blocks
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, name, "exec"), scope)
    if name == "README.md":
        printed = capsys.readouterr().out
        assert re.search(r"return \d+\.\d  kl \d", printed)
        assert "torch.Size([1, 7, 3])" in printed
