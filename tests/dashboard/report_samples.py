"""Folders of simulated runs for tests of reports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from esper.results.arms import LABELS
from esper.results.files import evidence_text
from tests.dashboard.views.samples import config_text, write
from tests.dashboard.views.simulation import simulate
from tests.evidence.examples import make_arm, make_evidence


def make_run(folder: Path, *, n_rounds: int = 8, seed: int = 0, **options: Any) -> Path:
    """Return a folder with a simulated run that has no comparison at its end."""
    folder.mkdir(parents=True)
    record_steps = options.get("record_steps", True)
    (folder / "config.toml").write_text(config_text(record_steps=record_steps))
    return write(folder, simulate(n_rounds=n_rounds, seed=seed, **options))


def add_summary(folder: Path, *, gain: float = 0.1) -> None:
    """Add a comparison in which the learned controller gains the same on every host."""
    rng = np.random.default_rng(0)
    common = rng.normal(0.7, 0.05, 30)

    arms = [
        make_arm(name, (common + (gain if name == "learned" else 0.0))[None], label=LABELS[name])
        for name in ("learned", "no-growth", "random", "fixed", "heuristic")
    ]
    text = evidence_text([make_evidence(*arms)])
    (folder / "summary.json").write_text(text)


def data_of(page: Path) -> dict[str, Any]:
    """Return the data in a report."""
    found = re.search(r'id="report-data">(.*?)</script>', page.read_text("utf-8"))
    assert found is not None
    return json.loads(found[1])
