"""Studies train what is left, pair what shares hosts, and survive any kill."""

from __future__ import annotations

import csv
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import esper
from esper.cli.main import main
from esper.config.toml import write_toml
from esper.errors import ConfigError, EsperError, RunError, TaskError
from esper.evidence import study as studies
from esper.evidence.study import check_study, read_study, run_study, study_evidence, study_rows
from esper.results.findings import weigh
from esper.statistics import paired_interval
from esper.storage.run_folder import RunFolder
from esper.telemetry.records import RoundRecord
from tests.training.tiny import run_digests, tiny_config

TINY: dict[str, Any] = {
    "seeds": 2,
    "settings": {
        "task": "spirals",
        "first_policy": "cautious",
        "task_options": {"batches_per_epoch": 2},
        "rounds": 2,
        "envs": 4,
        "envs_per_shard": "none",
        "n_steps": 4,
        "budget": {"n_epochs": 4, "flop_price": 0.1},
        "policy": {"feature_size": 12, "lstm_size": 8},
        "ppo": {"n_minibatches": 1},
        "evaluation": {"eval_freq": 1, "n_eval_episodes": 2, "n_final_episodes": 12},
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a study of two learning rates and another task."""
    folder = tmp_path_factory.mktemp("studies") / "tiny"
    run_study(three_configurations(), folder, workers=0)
    return folder


def three_configurations() -> studies.Study:
    listed = [
        {"name": "fast", "ppo.learning_rate": 0.03},
        {"name": "slow", "ppo": {"learning_rate": 0.0003}},
        {"name": "other hosts", "task_options": {"batches_per_epoch": 1}},
    ]
    return read_study({**TINY, "configurations": listed})


def test_a_grid_has_every_combination_and_changes_nothing_else() -> None:
    grid = {"ppo.ent_coef": [0.0, 0.01], "rewards": {"reward": ["dense", "sparse"]}}
    study = read_study({**TINY, "seeds": [7, 3], "grid": grid})
    assert list(study.configurations) == [
        f"ent_coef={coef}, reward={reward}"
        for coef in (0.0, 0.01)
        for reward in ("dense", "sparse")
    ]
    runs = study.runs(Path("f"))
    assert [(one.seed, one.settings.config.seed) for one in runs] == [(7, 7)] * 4 + [(3, 3)] * 4
    first, last = runs[0].settings.config, runs[3].settings.config
    changed = set(write_toml(first).splitlines()) ^ set(write_toml(last).splitlines())
    lines = {"ent_coef = 0.0", "ent_coef = 0.01", 'reward = "dense"', 'reward = "sparse"'}
    assert changed == lines
    assert runs[0].settings.source_of("rewards.reward") == "study"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 3}, "a study has no argument 'seed'"),
        ({"seeds": []}, "name at least one seed"),
        ({"seeds": [1, 1]}, "each once"),
        ({"grid": {"ppo.gama": [1.0]}}, "ppo.gama"),
        ({"grid": {"seed": 1}}, r"grid\.seed is 1; it must be a list"),
        ({"configurations": [{"rounds": 1}]}, r"configurations\[0\]\.name is None"),
        ({"configurations": [{"name": "a"}, {"name": "a"}]}, "two configurations are called 'a'"),
        ({"configurations": [], "grid": {}}, "both given"),
        ({"preset": "quik"}, "quick"),
    ],
)
def test_a_wrong_study_is_rejected(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_study({**TINY, **changes})


def test_the_first_configuration_is_paired_with_those_that_share_its_hosts(folder: Path) -> None:
    study = three_configurations()
    evidence = study_evidence(study, folder)
    assert evidence is not None
    assert [arm.name for arm in evidence.arms][:3] == ["fast", "slow", "no-growth"]
    assert evidence.notes == (
        "Configuration other hosts has other hosts or returns than fast, so they are not compared.",
    )
    summaries = {
        (name, seed): esper.load_run(folder / f"{name}-s{seed}").summary
        for name in ("fast", "slow")
        for seed in (0, 1)
    }
    returns = {
        name: np.stack([summaries[name, seed].arm("learned").returns[0] for seed in (0, 1)])  # type: ignore[union-attr]
        for name in ("fast", "slow")
    }
    assert weigh(evidence)[0].returns == paired_interval(returns["fast"], returns["slow"])
    assert evidence.arm("fast").n_runs == 2


def test_what_is_done_is_not_trained_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("nothing is left")

    monkeypatch.setattr(studies, "train_run", fail)
    run_study(three_configurations(), folder)
    other = read_study({**TINY, "configurations": [{"name": "fast", "ppo.learning_rate": 0.01}]})
    with pytest.raises(RunError, match=r"another ppo\.learning_rate than the study"):
        run_study(other, folder)


def test_a_study_that_is_stopped_anywhere_ends_with_the_same_results(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = read_study({**TINY, "configurations": [{"name": "fast", "ppo.learning_rate": 0.03}]})
    n_stops, write = 0, studies._Watcher.write  # pyright: ignore[reportPrivateUsage]

    def stop_at_rounds(watcher: Any, record: Any) -> None:
        nonlocal n_stops
        write(watcher, record)
        if isinstance(record, RoundRecord) and n_stops < 3:
            n_stops += 1
            raise KeyboardInterrupt

    monkeypatch.setattr(studies._Watcher, "write", stop_at_rounds)  # pyright: ignore[reportPrivateUsage]
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            run_study(study, tmp_path / "again", workers=0)
    run_study(study, tmp_path / "again", workers=0)
    for seed in (0, 1):
        name = f"fast-s{seed}"
        assert (
            run_digests(tmp_path / "again" / name)["summary"]
            == (run_digests(folder / name)["summary"])
        )


def test_rows_hold_the_results_of_each_run(folder: Path) -> None:
    rows = study_rows(three_configurations(), folder)
    assert [(row["configuration"], row["seed"]) for row in rows][:2] == [("fast", 0), ("slow", 0)]
    summary = esper.load_run(folder / "slow-s1").summary
    assert summary is not None
    (row,) = [row for row in rows if (row["configuration"], row["seed"]) == ("slow", 1)]
    assert row["ppo.learning_rate"] == 0.0003
    assert row["ep_rew_mean"] == pytest.approx(summary.own.returns.mean())
    assert row["best_round"] in (1, 2)
    with esper.load_run(folder / "slow-s1").telemetry() as telemetry:
        (kept, *_) = telemetry.select(
            "SELECT round FROM evaluations WHERE arm = 'learned' AND purpose = 'tuning' "
            "ORDER BY ep_rew_mean DESC, round"
        )
    assert row["best_round"] == kept[0]
    assert row["score_gain"] == pytest.approx(
        summary.own.score.mean() - summary.arm("no-growth").score.mean()
    )


def test_the_command_writes_a_page_a_table_and_the_comparison(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(
        'seeds = 2\n[settings]\ntask = "spirals"\nfirst_policy = "cautious"\nrounds = 2\nenvs = 4\n'
        'envs_per_shard = "none"\n'
        "n_steps = 4\ntask_options.batches_per_epoch = 2\nppo.n_minibatches = 1\n"
        "budget = {n_epochs = 4, flop_price = 0.1}\npolicy = {feature_size = 12, lstm_size = 8}\n"
        "evaluation = {eval_freq = 1, n_eval_episodes = 2, n_final_episodes = 12}\n"
        "[grid]\nppo.learning_rate = [0.03, 0.0003]\n"
    )
    for old, new in (("fast", "learning_rate=0.03"), ("slow", "learning_rate=0.0003")):
        for seed in (0, 1):
            shutil.copytree(folder / f"{old}-s{seed}", tmp_path / "out" / f"{new}-s{seed}")
    assert main(["study", str(file), "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    assert capsys.readouterr().out.count("done") == 4
    assert main(["study", str(file), "--out", str(tmp_path / "out")]) == 0
    assert "Configuration learning_rate=0.03" in capsys.readouterr().out
    page = (tmp_path / "out" / "study.html").read_text("utf-8")
    assert "learning_rate=0.0003-s1" in page
    assert "Configuration learning_rate=0.03" in page
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "out" / "study.csv").open() as text:
        assert len(list(csv.DictReader(text))) == 4


def test_settings_of_rows_can_be_grouped_by(tmp_path: Path) -> None:
    listed: list[dict[str, Any]] = [
        {"name": "full"},
        {"name": "blind", "ablation.hidden": ["error*", "slots"]},
        {"name": "free", "ppo.target_kl": "none", "task_options": {"batches_per_epoch": 1}},
    ]
    rows = study_rows(read_study({**TINY, "seeds": 1, "configurations": listed}), tmp_path)
    assert [row["ablation.hidden"] for row in rows] == ["[]", '["error*", "slots"]', "[]"]
    assert rows[2]["ppo.target_kl"] == "none"
    assert [row["task_options"] for row in rows] == [
        *["{batches_per_epoch = 2}"] * 2,
        "{batches_per_epoch = 1}",
    ]
    assert len({value for row in rows for value in row.values()}) > len(rows)  # all are hashable


def test_a_study_names_code_only_if_allowed(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[settings]\ntask = "os:mkdir"\n')
    with pytest.raises(TaskError, match="names code to run"):
        run_study(read_study(file), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_records_and_studies_are_data_frames(done_run: esper.Run, folder: Path) -> None:
    pytest.importorskip("pandas")
    assert list(done_run.rounds["round"]) == [1, 2, 3]
    assert len(done_run.steps) == 18 * 4
    assert {"env", "episode", "round"} <= set(done_run.episodes.columns)


def test_without_pandas_one_line_says_what_to_install(
    done_run: esper.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"pip install \"esper-lite\[pandas\]\" for DataFrames"):
        _ = done_run.rounds
    with pytest.raises(ConfigError, match="pandas is not installed"):
        esper.study({**TINY})


def test_a_search_continues_and_keeps_the_best_configuration(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    from esper.evidence.search import search_study

    study = read_study({**TINY, "seeds": 1, "search": {"ppo.learning_rate": [0.03, 0.0003]}})
    search_study(study, tmp_path / "out", n_trials=1, workers=0)
    found = search_study(study, tmp_path / "out", n_trials=2, workers=0)
    assert list(found.configurations)[1] == "base"
    assert tiny_config().task == found.configurations["base"].config.task
    assert (tmp_path / "out" / "optuna.db").exists()
    evidence = study_evidence(found, tmp_path / "out")
    assert evidence is not None
    assert [arm.name for arm in evidence.arms][1] == "base"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return a storage of Optuna."""
    optuna = pytest.importorskip("optuna")
    file = tmp_path_factory.mktemp("storage") / "optuna.db"
    optuna.create_study(storage=f"sqlite:///{file}", study_name="study")
    return file.read_bytes()


def put_trigger(file: Path, storage: bytes) -> None:
    file.write_bytes(storage)
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("CREATE TRIGGER t AFTER INSERT ON trials BEGIN DELETE FROM studies; END")


HOSTILE_STORAGES: dict[str, Callable[[Path, bytes], object]] = {
    "link": lambda file, _: file.symlink_to(file.with_name("elsewhere")),
    "hard link": lambda file, s: (
        file.with_name("elsewhere").write_bytes(s),
        file.hardlink_to(file.with_name("elsewhere")),
    ),
    "not a file": lambda file, _: os.mkfifo(file),
    "not a database": lambda file, _: file.write_bytes(b"hello" * 1000),
    "trigger": put_trigger,
}


@pytest.mark.parametrize("kind", HOSTILE_STORAGES)
def test_a_hostile_storage_is_refused_and_changes_no_other_file(
    kind: str, storage: bytes, tmp_path: Path
) -> None:
    from esper.evidence.search import search_study

    HOSTILE_STORAGES[kind](tmp_path / "optuna.db", storage)
    other = tmp_path / "elsewhere"
    before = other.read_bytes() if other.exists() else None
    study = read_study({"preset": "spirals", "search": {"rounds": {"low": 1, "high": 2}}})
    with pytest.raises(EsperError, match=kind):
        search_study(study, tmp_path, n_trials=1, workers=0)
    assert (other.read_bytes() if other.exists() else None) == before


@pytest.mark.parametrize(
    "range_", [{"low": 5, "high": 1}, {"low": "a", "high": 1}, [[1]], [], {"low": 1}]
)
def test_a_range_that_cannot_be_searched_is_named(range_: Any, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    from esper.evidence.search import search_study

    study = read_study({"preset": "spirals", "search": {"rounds": range_}})
    with pytest.raises(ConfigError, match=r"search\.rounds is"):
        search_study(study, tmp_path, n_trials=1, workers=0)


@pytest.mark.parametrize(
    "values",
    [
        {"seeds": 10**9},
        {"grid": {key: list(range(1, 1000)) for key in ("rounds", "envs", "n_steps")}},
    ],
)
def test_a_study_cannot_ask_for_runs_without_end(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="at most 10000"):
        read_study(values)


def test_rows_hold_the_value_of_what_a_configuration_leaves_unchanged(tmp_path: Path) -> None:
    tables = [{"name": "full"}, {"name": "stopping only", "ablation": {"grows": False}}]
    study = read_study({"preset": "spirals", "seeds": 1, "configurations": tables})
    assert [row["ablation.grows"] for row in study_rows(study, tmp_path)] == [True, False]


def test_a_run_that_was_stopped_is_to_be_resumed(tmp_path: Path) -> None:
    study = read_study({"preset": "spirals", "seeds": 1})
    (one,) = study.runs(tmp_path)
    assert one.state == "to be trained"
    config = one.settings.config
    RunFolder.create(one.path, config)
    assert one.state == f"to be resumed, 0 of {config.rounds} rounds done"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task_options": {"noise": 2}}, "configuration 'odd': task 'spirals' has no option"),
        ({"ablation": {"hidden": ["gradiant_*"]}}, r"configuration 'odd': .*gradiant_\*"),
    ],
)
def test_a_configuration_that_cannot_be_trained_is_named(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    check_study(read_study({"preset": "spirals"}))
    tables = [{"name": "full"}, {"name": "odd", **changes}]
    study = read_study({"preset": "spirals", "configurations": tables})
    with pytest.raises(ConfigError, match=words):
        check_study(study)
    with pytest.raises(ConfigError, match=words):
        run_study(study, tmp_path / "out", workers=0)
    assert not (tmp_path / "out").exists()
