"""The documents are true: their code runs, their links work, the names they cite exist."""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import esper
from esper.config.run import RunConfig
from esper.config.toml import override
from esper.growth.blueprints import registry as blueprint
from esper.lifecycle.slot_config import SlotConfig
from esper.simic import PPO
from esper.tamiyo.policy.observations import ObservationLayout
from esper.training.lessons import teach
from tests import campaign

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "examples/*.md", "src/**/*.md")
    for path in ROOT.glob(pattern)
)
NOT_RUN = (
    "docs/grow-your-model.md",
    "docs/tutorial.md",
    "docs/study.md",
    "src/esper/tasks/data/README.md",
)
"""The tutorials have tests of their own; the other page needs scikit-learn."""
NEED_A_RUN = ("docs/reference/metrics.md", "docs/reference/telemetry.md")
"""Pages whose code reads ``runs/my-run``."""
MAX_EPOCHS = 3
"""Epochs for which the code of a page grows a model."""
HAS_TRANSFORMERS = find_spec("transformers") is not None
"""Whether code that needs Transformers can run; `make slow-test` installs it."""


def python_blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), flags=re.M | re.DOTALL)


@pytest.fixture(autouse=True)
def _forget_blueprints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a page register a blueprint without other tests seeing it."""
    monkeypatch.setattr(blueprint, "_REGISTRY", dict(blueprint._REGISTRY))


@pytest.fixture(autouse=True)
def _learn_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a page train for a few hundred steps where it says more, in short rollouts."""
    learn = PPO.learn

    def learn_briefly(self: PPO, total_timesteps: int | None = None, **options: Any) -> PPO:
        steps = None if total_timesteps is None else min(total_timesteps, 768)
        return learn(self, steps, **options)

    monkeypatch.setattr(PPO, "learn", learn_briefly)
    monkeypatch.setattr("esper.simic.algorithm.STEPS_PER_ROLLOUT", 256)


@pytest.fixture(autouse=True)
def _teach_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a page's first policy learn from a few hosts instead of a thousand."""

    def teach_briefly(config: RunConfig, *given: Any) -> float:
        return teach(override(config, {"lesson_hosts": 4}), *given)

    monkeypatch.setattr("esper.training.trainer.teach", teach_briefly)


@pytest.fixture(autouse=True)
def _grow_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a page grow a model for a few epochs where it says dozens."""

    def grow_briefly(*given: Any, **options: Any) -> esper.Grown:
        epochs = options.get("epochs")
        if isinstance(epochs, int):
            options["epochs"] = min(epochs, MAX_EPOCHS)
        return grow(*given, **options)

    grow = esper.grow
    monkeypatch.setattr("esper.api.grow", grow_briefly)


@pytest.mark.usefixtures("fresh_shipped")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if python_blocks(page) and page not in NOT_RUN]
)
def test_the_python_of_a_page_runs(
    page: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    if page in NEED_A_RUN:
        run = request.getfixturevalue("done_run")
        shutil.copytree(run.path, tmp_path / "runs" / "my-run")
    scope: dict[str, object] = {"__name__": "__main__"}
    for block in python_blocks(page):
        if "from transformers" in block and not HAS_TRANSFORMERS:
            continue
        exec(compile(block, page, "exec"), scope)


def test_the_readme_grows_the_model_of_the_tutorial_with_the_same_output() -> None:
    readme, tutorial = (
        (ROOT / page).read_text() for page in ("README.md", "docs/grow-your-model.md")
    )
    block = re.compile(r"```\n(Validation accuracy .*?)```", re.S)
    assert block.findall(readme) == block.findall(tutorial)[:1] != []


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, formed as GitHub forms them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading).strip().lower() for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_somewhere(page: str) -> None:
    here = ROOT / page
    for link in re.findall(r"\]\(([^)\s]+)\)", here.read_text()):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = here.parent / file if file else here
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_page_on_the_environment_lists_the_observations_of_the_code() -> None:
    table = ObservationLayout(SlotConfig(("early", "late"))).table()
    assert table in (ROOT / "docs/environment.md").read_text()


def test_the_tests_and_benchmarks_that_the_findings_cite_exist() -> None:
    text = (ROOT / "docs/findings.md").read_text()
    tests = list((ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^\s*def (test_\w+)", "\n".join(p.read_text() for p in tests), re.M))
    assert set(re.findall(r"`(test_\w+)`", text)) <= defined
    assert set(re.findall(r"`(test_\w+\.py)`", text)) <= {path.name for path in tests}
    assert all((ROOT / path).exists() for path in re.findall(r"`(benchmarks/\w+\.py)", text))


def test_the_table_of_the_campaign_is_up_to_date() -> None:
    assert campaign.PAGE.read_text("utf-8") == campaign.page(), "python -m tests.campaign"
