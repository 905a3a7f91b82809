"""Studies: several configurations, each trained with several seeds, and what they show together.

A study's folder has the folder of each run, ``CONFIGURATION-sSEED``, and the results:

evaluation.json  every configuration on the hosts that all share, compared with the first one
study.csv        a row for each run
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import numpy as np

from esper.config.checks import (
    CodeWarning,
    PositiveInt,
    Seed,
    check,
    reject_unknown,
    require_trusted_task,
)
from esper.config.run import RunConfig
from esper.config.schema import settings_of, value_text
from esper.config.toml import DEFAULT_PRESET, SourcedConfig, load_sourced_preset, parse_toml
from esper.environment import GrowthVectorEnv
from esper.errors import ConfigError, EsperError, RunError
from esper.formatting import many
from esper.invocation import settings_of_method
from esper.results.arms import BASELINES, LEARNED, NO_GROWTH, PER_HOST, Arm
from esper.results.evidence import Evidence
from esper.storage.files import read_file, write_atomic
from esper.storage.run_folder import RunFolder, runs_folder
from esper.telemetry.records import EvaluationRecord
from esper.training.run import Run
from esper.training.runs import resume, train
from esper.training.setup import make_policy, resolve_task
from esper.training.signals import StopRequest, signals_ask
from esper.training.worker_pool import Job, OnShare
from esper.training.workers import Workload, choose_pool

TABLE_FILE = "study.csv"
MAX_RUNS = 10_000
"""The most runs, so that a file cannot ask for work without end."""
WARM_UP = "esper.evidence.study"
"""Imports everything that a worker of a study needs."""

_KEYS = ("preset", "seeds", "settings", "grid", "configurations", "search")


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """A run of a study: a configuration with a seed."""

    configuration: str
    seed: int
    settings: SourcedConfig
    path: Path

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to do.

        Raises:
            RunError: If the folder holds a run with other settings.
        """
        if not RunFolder(self.path).holds_run:
            return False
        run = Run(RunFolder(self.path))
        wanted, found = self.settings.config, run.config
        texts = settings_of_method(wanted), settings_of_method(found)
        differs = sorted(path for path in texts[0] if texts[0][path] != texts[1].get(path))
        if self.settings.needs_task:  # the run has the budget of its task
            differs = [path for path in differs if not path.startswith("budget.")]
        if differs or wanted.seed != found.seed:
            raise RunError(
                f"{self.path} has another {differs[0] if differs else 'seed'} than the study; "
                "choose another folder (--out), or move that run away."
            )
        return run.is_complete

    @property
    def state(self) -> str:
        """What is left to do, in words."""
        if self.is_complete:
            return "done"
        if not RunFolder(self.path).holds_run:
            return "to be trained"
        run = Run(RunFolder(self.path))
        return f"to be resumed, {run.rounds_done} of {run.config.rounds} rounds done"


@dataclass(frozen=True, kw_only=True)
class Study:
    """Configurations by name, the first of which is compared with each other one, and seeds."""

    name: str
    configurations: Mapping[str, SourcedConfig]
    changes: Mapping[str, Mapping[str, Any]]
    """The settings that distinguish each configuration, by path."""
    seeds: tuple[int, ...]
    search: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The range of each setting that ``--sampler`` searches."""
    source: str = "study"
    """The file, for messages."""

    @property
    def folder(self) -> Path:
        """The default folder of the study."""
        return runs_folder() / self.name

    def runs(self, folder: Path) -> list[StudyRun]:
        """Return all runs: every configuration with the first seed, then with the next."""
        return [
            StudyRun(
                configuration=name,
                seed=seed,
                settings=settings.change({"seed": seed}, "study"),
                path=folder / f"{_slug(name)}-s{seed}",
            )
            for seed in self.seeds
            for name, settings in self.configurations.items()
        ]


def read_study(study: str | os.PathLike[str] | Mapping[str, Any]) -> Study:
    """Return the study of a TOML file, or of the same values as a mapping.

    Raises:
        ConfigError: If it cannot be read, a key is unknown or a setting is invalid.
    """
    if isinstance(study, Mapping):
        return _make_study(study, "study", "study")
    path = Path(study)
    try:
        values = parse_toml(read_file(path).decode("utf-8-sig"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read the study {str(path)!r}: {reason}.") from error
    try:
        return _make_study(values, path.stem, str(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _make_study(values: Mapping[str, Any], name: str, source: str) -> Study:
    reject_unknown("a study", values, _KEYS, {"rounds": "put it below [settings]"})
    base = load_sourced_preset(check("preset", values.get("preset", DEFAULT_PRESET), str))
    base = base.change(_flat(_table("settings", values)), source)
    changes = _find_changes(values)
    seeds = values.get("seeds", 5)
    if not isinstance(seeds, list):
        n_seeds = check("seeds", seeds, PositiveInt)
        _require_few(n_seeds * len(changes))
        seeds = range(n_seeds)
    checked = tuple(check("seeds", one, Seed) for one in cast("Sequence[object]", seeds))
    if not checked or len(set(checked)) < len(checked):
        raise ConfigError(f"seeds is {list(checked)}; name at least one seed, each once.")
    if len({_slug(one) for one in changes}) < len(changes):
        raise ConfigError("two configurations have the same name; give each its own.")
    return Study(
        name=name,
        configurations={one: base.change(some, source) for one, some in changes.items()},
        changes=changes,
        seeds=checked,
        search=_flat(_table("search", values)),
        source=source,
    )


def _require_few(n_runs: int) -> None:
    """Reject more runs than a study may have."""
    if n_runs > MAX_RUNS:
        raise ConfigError(f"the study has {n_runs} runs; at most {MAX_RUNS} are allowed.")


def _table(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return check(name, values.get(name, {}), dict[str, object])


def _find_changes(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what distinguishes each configuration of a grid or a list, by its name."""
    if "grid" in values and "configurations" in values:
        raise ConfigError("grid and configurations are both given; choose one.")
    if "configurations" not in values:
        grid = _flat(_table("grid", values))
        axes = [_axis(path, values) for path, values in grid.items()]
        _require_few(math.prod(map(len, axes)))
        named = [dict(zip(grid, point, strict=True)) for point in product(*axes)]
        return {_name_of(point): point for point in named}
    found: dict[str, dict[str, Any]] = {}
    tables = check("configurations", values["configurations"], tuple[dict[str, object], ...])
    for number, table in enumerate(tables):
        given = dict(table)
        name = check(f"configurations[{number}].name", given.pop("name", None), str)
        if name in found:
            raise ConfigError(f"two configurations are called {name!r}; give each its own name.")
        found[name] = _flat(given)
    return found


def _axis(path: str, values: object) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise ConfigError(f"grid.{path} is {values!r}; it must be a list of values to try.")
    return cast("list[Any]", values)


def _name_of(point: Mapping[str, Any]) -> str:
    parts = [f"{path.rpartition('.')[2]}={_plain(value)}" for path, value in point.items()]
    return ", ".join(parts) or "base"


def _plain(value: object) -> str:
    given = tuple(cast("list[object]", value)) if isinstance(value, list) else value
    return value_text(given).strip('"')


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by their paths; tables of the user's own names stay whole."""
    found: dict[str, Any] = {}
    sections = {setting.section for setting in settings_of()}
    for name, value in table.items():
        if isinstance(value, dict) and not prefix and name in sections:
            found |= _flat(cast("dict[str, Any]", value), f"{name}.")
        else:
            found[prefix + name] = value
    return found


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.=-]+", "-", name).strip("-") or "base"


def check_study(study: Study, *, allow_code: bool = False) -> bool:
    """Check every configuration as training does; return whether none was left out.

    Args:
        study: The study.
        allow_code: Whether to make tasks by ``module:function``, which are left out otherwise.

    Raises:
        ConfigError: If a configuration cannot be trained, naming it.
    """
    configs = study.configurations
    known = {name: one for name, one in configs.items() if allow_code or ":" not in one.config.task}
    for name, settings in known.items():
        try:
            sourced, task = resolve_task(settings)
            envs = GrowthVectorEnv(task, 1, reward=sourced.config.rewards)
            make_policy(sourced.config, envs.slot_config)
        except EsperError as error:
            raise ConfigError(f"{study.source}, configuration {name!r}: {error}") from error
    return len(known) == len(configs)


def run_study(
    study: Study,
    folder: Path,
    *,
    workers: int | None = None,
    ray_address: str | None = None,
    allow_code: bool = False,
    on_progress: Callable[[str, float], None] = lambda _work, _share: None,
) -> None:
    """Train all runs of a study that are not done; what is done is left unchanged.

    Every configuration is checked before the first one is trained.

    Args:
        study: The study.
        folder: Its folder.
        workers: Runs that are trained side by side, in processes of their own; 0 for one after
            another in this one. By default as many as there are cores.
        ray_address: Address of a Ray cluster that trains them; it needs the same folder.
        allow_code: Whether the study may name its task by ``module:function``.
        on_progress: Called with what is done and the share of the study.
    """
    configs = [settings.config for settings in study.configurations.values()]
    for config in {f"{one.task} {one.task_options}": one for one in configs}.values():
        require_trusted_task(
            config.task, config.task_options, source=study.source, allow_code=allow_code
        )
    runs = study.runs(folder)
    left = [one for one in runs if not one.is_complete]
    if not left:
        return
    check_study(study, allow_code=True)
    n_done, stop = len(runs) - len(left), StopRequest()
    work = Workload(
        n_parts=len(left),
        parts=f"{len(left)} runs are left",
        env_steps=sum(_count_steps(one.settings.config) for one in left),
        threads=1,
        warm_up=WARM_UP,
    )
    jobs = [Job(f"run {one.path.name}", train_run, (one,), 1) for one in left]
    words = f"training {many(len(left), 'run')}" + (f", {n_done} were done" if n_done else "")

    def show(share: float) -> None:
        on_progress(words, (n_done + share * len(left)) / len(runs))

    pool = choose_pool(work, workers=workers, ray_address=ray_address)
    with closing(pool):
        if pool.is_local:
            pool.run(jobs, on_share=show)
            return
        with signals_ask(stop):
            pool.run(jobs, check=stop.check, on_share=show)


def _count_steps(config: RunConfig) -> int:
    return config.rounds * config.envs * config.n_steps


def train_run(on_share: OnShare, one: StudyRun) -> None:
    """Train a run of a study, or resume it if a process began it before."""
    watcher = _Watcher(on_share, one.settings.config.rounds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CodeWarning)  # the study was checked
        if RunFolder(one.path).holds_run:
            resume(one.path, watchers=[watcher], workers=0, progress=False, allow_code=True)
        else:
            train(one.settings, run_dir=one.path, watchers=[watcher], workers=0, progress=False)


class _Watcher:
    """Reports the share of a run that is done, round by round."""

    def __init__(self, on_share: OnShare, rounds: int) -> None:
        self._on_share, self._rounds = on_share, rounds + 1  # the comparison counts as a round

    def write(self, record: Any) -> None:
        """Report the round of a record."""
        self._on_share(min(getattr(record, "round", 0) / self._rounds, 1.0))

    def close(self) -> None:
        """Nothing to close."""


def complete_runs(study: Study, folder: Path) -> dict[tuple[str, int], Run]:
    """Return the runs that are done, by configuration and seed."""
    runs = study.runs(folder)
    return {
        (one.configuration, one.seed): Run(RunFolder(one.path)) for one in runs if one.is_complete
    }


def study_evidence(study: Study, folder: Path) -> Evidence | None:
    """Return the first configuration against each other one and the baselines, over all seeds.

    Only seeds count with which every configuration is done, and only configurations whose hosts
    and returns are the same as the first one's; notes name the others. None if no seed is done.
    """
    done = complete_runs(study, folder)
    names = list(study.configurations)
    seeds = [seed for seed in study.seeds if all((name, seed) in done for name in names)]
    if not seeds:
        return None
    first, *others = names
    comparable = [name for name in others if _hosts_of(done, name) == _hosts_of(done, first)]
    arms = [_joined(done, name, LEARNED, seeds, label=f"configuration {name}") for name in names]
    arms = [arm for arm in arms if arm.name in (first, *comparable)]
    arms += [_joined(done, first, baseline, seeds) for baseline in BASELINES]
    found = _summary(done[first, seeds[0]])
    notes = [
        f"Configuration {name} has other hosts or returns than {first}, so they are not compared."
        for name in others
        if name not in comparable
    ]
    missing = [seed for seed in study.seeds if seed not in seeds]
    if missing:
        notes.append(f"Not done yet with every configuration: seeds {missing}.")
    return replace(
        found,
        arms=tuple(arms),
        learned=first,
        runs=tuple(f"seed {seed}" for seed in seeds),
        notes=tuple(notes),
        best_host=None,
    )


def _summary(run: Run) -> Evidence:
    assert run.summary is not None, "a run that is done has a summary"
    return run.summary


def _hosts_of(done: Mapping[tuple[str, int], Run], name: str) -> tuple[object, ...]:
    """Return what two configurations must share for their hosts and returns to be the same."""
    config = next(run.config for (one, _), run in done.items() if one == name)
    return (
        config.task,
        config.task_options,
        config.budget,
        config.evaluation.n_final_episodes,
        config.rewards.reward in ("paired", "scheduled"),
    )


def _joined(
    done: Mapping[tuple[str, int], Run],
    configuration: str,
    arm: str,
    seeds: Sequence[int],
    *,
    label: str = "",
) -> Arm:
    """Return an arm of a configuration's runs with all seeds, ``[R, N]``."""
    parts = [_summary(done[configuration, seed]).arm(arm) for seed in seeds]
    values = {name: np.concatenate([getattr(one, name) for one in parts]) for name in PER_HOST}
    own = configuration if arm == LEARNED else arm
    return replace(parts[0], name=own, label=label or parts[0].label, **values)


def study_rows(study: Study, folder: Path) -> list[dict[str, Any]]:
    """Return a row for each run: its configuration, what distinguishes it, and its results."""
    done = complete_runs(study, folder)
    paths = list(dict.fromkeys(path for some in study.changes.values() for path in some))
    rows: list[dict[str, Any]] = []
    for one in study.runs(folder):
        row: dict[str, Any] = {"configuration": one.configuration, "seed": one.seed}
        row |= {path: _cell(attrgetter(path)(one.settings.config)) for path in paths}
        run = done.get((one.configuration, one.seed))
        row |= {"is_done": run is not None} | dict.fromkeys((*_RESULTS, "best_round"))
        if run is not None:
            row |= _results_of(_summary(run)) | {"best_round": _best_round(run)}
        rows.append(row | {"run": str(one.path)})
    return rows


def _cell(value: object) -> object:
    """Return a setting as a value that tables can be grouped by: None and lists as in TOML."""
    return value if isinstance(value, (str, int, float)) else value_text(value).strip('"')


_RESULTS = ("ep_rew_mean", "score", "score_gain", "flops", "parameters", "n_epochs", "grown_share")


def _results_of(found: Evidence) -> dict[str, float]:
    """Return the mean results of a run in its final comparison."""
    own, plain = found.arm(LEARNED), found.arm(NO_GROWTH)
    values = (
        own.returns.mean(),
        own.score.mean(),
        (own.score - plain.score).mean(),
        own.flops.mean(),
        own.parameters.mean(),
        own.n_epochs.mean(),
        own.grown_share,
    )
    return {name: float(value) for name, value in zip(_RESULTS, values, strict=True)}


def _best_round(run: Run) -> int | None:
    """Return the round after which the compared controller was kept; 0 is before PPO."""
    with run.telemetry() as telemetry:
        rows = telemetry.rows(EvaluationRecord, arm=LEARNED, purpose="tuning")
    return max((row.round for row in rows if row.is_best), default=None)


def write_table(study: Study, folder: Path) -> Path:
    """Write the rows of a study as CSV and return the file."""
    rows, text = study_rows(study, folder), io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomic(folder / TABLE_FILE, text.getvalue())
    return folder / TABLE_FILE


def evaluations_of(run: Run) -> dict[int, float]:
    """Return the mean return of each evaluation of a run on held-out hosts, by round."""
    with run.telemetry() as telemetry:
        rows = telemetry.rows(EvaluationRecord, arm=LEARNED, purpose="tuning")
    return {row.round: row.ep_rew_mean for row in rows}
