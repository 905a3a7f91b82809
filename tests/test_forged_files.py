"""Files with right checksums and wrong contents are refused in one line."""

from __future__ import annotations

import hashlib
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from torch import nn

import esper
from esper.cli.main import main
from esper.config.growth import CNNHostConfig, GPTHostConfig, GrowthConfig, MLPHostConfig
from esper.dashboard.runs import RunReader
from esper.dashboard.views.comparison import comparison_view
from esper.errors import CheckpointError, EsperError
from esper.growth.host_slots import slots
from esper.growth.hosts import build_host
from esper.growth.hosts import make_host as make_own_host
from esper.growth.saved_models import load, save
from esper.simic import PPO
from esper.storage.checkpoint_folder import CheckpointFolder
from esper.storage.saved_folder import MANIFEST_FILE
from esper.training.run import Run
from tests.forged import ODD, count_forged, forged_contents, is_refused
from tests.storage.forging import forge_json
from tests.test_damaged_files import KINDS, Reader, evaluation

N_CASES = 30
"""Forged contents of each file; tests/slow/test_damage.py tries more."""

pytestmark = pytest.mark.filterwarnings("ignore")


def grown(config: Any, folder: Path) -> Reader:
    """Save a host with new units, a new block, and a module that is being blended in."""
    model = make_own_host(config, growth_config=GrowthConfig(commits_at_once=True))
    units, blocks = list(slots(model))[:2]
    slots(model).germinate(units, "widen_large")
    slots(model).germinate(blocks, "deepen")
    save(model, folder)
    return lambda: load(folder, lambda: build_host(config))


def checkpoint(folder: Path) -> Reader:
    state = {"a": 1, "b": [(1, 2.5), {"c": None}], 3: "x", "n": {"s": 0}}
    CheckpointFolder(folder).save(state, step=1)
    return lambda: CheckpointFolder(folder).latest()


def growing_run(controller: str, folder: Path) -> Reader:
    """Save a training of esper.grow after its last epoch, so that resuming only reads it."""
    x = torch.linspace(-1, 1, 64).reshape(16, 4)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))

    def run() -> object:
        data = (x, (x[:, 0] > 0).long())
        options: dict[str, Any] = {} if controller == "race" else {"controller": controller}
        return esper.grow(model, data, data, 1, resume=folder, progress=False, **options)

    run()
    return run


FORGED: dict[str, tuple[Callable[[Path], Reader], str]] = {
    name: (make, pattern)
    for name, (make, pattern) in KINDS.items()
    if name.startswith(("controller.", "growing.", "PPO facts", "PPO tensors"))
}
for kind, config in {"MLP": MLPHostConfig, "CNN": CNNHostConfig, "GPT": GPTHostConfig}.items():
    FORGED[f"grown {kind}"] = (lambda folder, c=config: grown(c(), folder), "growing.json")
    FORGED[f"weights of a grown {kind}"] = (FORGED[f"grown {kind}"][0], "growing.safetensors")
FORGED["checkpoint"] = (checkpoint, "*/state.json")
for name in ("race", "heuristic"):
    make_run = partial(growing_run, name)
    FORGED[f"{name} of esper.grow"] = (make_run, "*/state.json")
FORGED["facts of a checkpoint"] = (checkpoint, "*/checkpoint.json")


def forge_and_read(kind: str, folder: Path, *, n_cases: int, seed: int = 0) -> Counter[str]:
    """Forge a file of a kind again and again; return how often it was read or refused."""
    make, pattern = FORGED[kind]
    read = make(folder)
    (path,) = folder.glob(pattern)
    outcomes = count_forged(path.parent, path.name, read, n_cases=n_cases, seed=seed)
    assert outcomes["refused"] > n_cases / 3, outcomes
    return outcomes


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_file_is_read_or_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    forge_and_read(kind, tmp_path, n_cases=N_CASES)


@pytest.mark.parametrize(
    ("name", "value"), [("n_steps", "x"), ("n_steps", 0), ("n_envs", 1.5), ("seed", None)]
)
def test_a_ppo_model_with_a_wrong_setting_is_refused(
    name: str, value: object, tmp_path: Path
) -> None:
    PPO(gymnasium.make("CartPole-v1"), n_steps=8, seed=1).save(tmp_path)
    (manifest,) = tmp_path.glob(f"*/{MANIFEST_FILE}")
    state = CheckpointFolder(tmp_path).latest().state
    state["settings"][name] = value
    shutil.rmtree(manifest.parent)
    CheckpointFolder(tmp_path).save(state, step=0)
    with pytest.raises(EsperError, match=name):
        PPO.load(tmp_path)


def test_a_checkpoint_of_something_else_is_no_ppo_model(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="something else than a PPO model"):
        PPO.load(tmp_path)


@pytest.mark.parametrize("has_hash", [True, False])
def test_forged_evidence_is_shown_or_named_in_one_line(has_hash: bool, tmp_path: Path) -> None:
    read = evaluation(tmp_path)
    path, hashed = (tmp_path / f"evaluation.json{end}" for end in ("", ".sha256"))
    whole, chance = path.read_bytes(), random.Random(0)
    for _ in range(N_CASES):
        content = forged_contents(whole, path.name, chance)
        path.write_bytes(content)
        hashed.unlink(missing_ok=True)
        if has_hash:
            hashed.write_text(f"{hashlib.sha256(content).hexdigest()}  {path.name}\n")
        for reader in (read, lambda: comparison_view(tmp_path)):
            is_refused(reader)


def forge_values(file: Path, chance: random.Random) -> None:
    """Set some values of a run's records to anything that their columns can hold."""
    texts = ["", "x", "[" * 100_000, "{}", "[]", "[1]", '{"a": [1]}', "null", "1e999", "NaN"]
    numbers = [0, -1, 7, 2**40, 2**62, -(2**62)]
    odd = {
        "INTEGER": numbers,
        "TEXT": texts,
        "REAL": [1e308, -1.0, None, "NaN"],
        "BLOB": [b"", b"x"],
    }
    with closing(sqlite3.connect(file)) as database, database:
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        tables = [name for (name,) in database.execute(query)]
        for _ in range(chance.randint(1, 3)):
            table = chance.choice(tables)
            columns = database.execute(f'PRAGMA table_info("{table}")').fetchall()
            _, column, kind, *_ = chance.choice(columns[1:])
            where = chance.choice(["1", "rowid = (SELECT max(rowid) FROM x)", "rowid % 2"])
            change = f'UPDATE OR IGNORE "{table}" SET "{column}" = ? WHERE {where}'
            database.execute(change.replace("x)", f'"{table}")'), (chance.choice(odd[kind]),))


def test_forged_records_are_shown_or_named_in_one_line(
    done_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, chance = Path(shutil.copytree(done_run.path, tmp_path / "run")), random.Random(0)
    whole = (run / "telemetry.sqlite").read_bytes()
    reader = RunReader(tmp_path)
    reader.view("run", 0, look)
    for _ in range(N_CASES):
        (run / "telemetry.sqlite").write_bytes(whole)
        forge_values(run / "telemetry.sqlite", chance)
        reader.rows()
        for read in (lambda: reader.detail("run"), lambda: reader.view("run", 0, look)):
            is_refused(read)
        for words in (["show", str(run)], ["report", str(run)]):
            assert main(words) in (0, 2)
            lines = capsys.readouterr().err.splitlines()
            assert len([line for line in lines if not line.startswith("esper: ")]) == 0, lines


def look(telemetry: Any) -> None:
    """Make every view of the dashboard."""
    from esper.dashboard import views

    views.metric_series(telemetry)
    views.health(telemetry)
    views.learned(telemetry)
    views.environments(telemetry)
    for episode in views.episode_list(telemetry, order="recent")["episodes"][:2]:
        views.episode_detail(telemetry, episode["env"], episode["episode"])


def test_every_odd_value_can_stand_in_a_manifest(tmp_path: Path) -> None:
    read = KINDS["controller.json"][0](tmp_path)
    for value in ODD:
        forge_json(tmp_path, "controller.json", value)
        with pytest.raises(EsperError):
            read()
