"""Searching the settings of a study with Optuna. Only this module needs it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from statistics import mean
from typing import Any, cast

from esper.errors import ConfigError, EsperError, message_of, shown, summarize_error
from esper.evidence.study import Study, complete_runs, evaluations_of, run_study
from esper.storage.run_folder import require_own
from esper.telemetry.damage import require_own_logs
from esper.telemetry.schema import distrust

STORAGE_FILE = "optuna.db"


def search_study(
    study: Study,
    folder: Path,
    *,
    n_trials: int,
    on_progress: Callable[[str, float], None] = lambda _work, _share: None,
    **options: Any,
) -> Study:
    """Search a study's settings, and return it with the base and the best configuration.

    A configuration is worth the mean over seeds of the best evaluation on hosts for tuning; the
    hosts of the final comparison decide nothing. Trials that were cut short are continued first.

    Args:
        study: The study; its only configuration is the base.
        folder: Its folder, with Optuna's storage.
        n_trials: Configurations to try, with those of earlier calls.
        on_progress: Called with what is done and its share.
        **options: See :func:`esper.evidence.study.run_study`.

    Raises:
        ConfigError: If Optuna is not installed, or the study has nothing to search.
    """
    optuna = _import_optuna()
    if not study.search or len(study.configurations) > 1:
        raise ConfigError(
            f"{study.source} needs a table [search] and no grid or configurations; give each "
            "setting a list of choices, or low and high."
        )
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / STORAGE_FILE
    space = {path: _distribution(optuna, path, range_) for path, range_ in study.search.items()}
    with _storage_errors(file):
        _require_plain(file)
        found = optuna.create_study(
            storage=f"sqlite:///{file}",
            study_name=study.name,
            direction="maximize",
            load_if_exists=True,
            sampler=optuna.samplers.TPESampler(seed=0),
        )
        states = optuna.trial.TrialState
        cut_short = [one for one in found.trials if one.state == states.RUNNING]
        for one in cut_short:
            found.tell(one.number, state=states.FAIL)
            found.enqueue_trial(one.params)
        n_done = sum(one.state == states.COMPLETE for one in found.trials)
    for number in range(n_done, n_trials):
        with _storage_errors(file):
            trial = found.ask(space)
        one = _configured(study, trial.params)
        run_study(one, folder, **options)
        on_progress(f"{number + 1} of {n_trials} trials", (number + 1) / n_trials)
        with _storage_errors(file):
            found.tell(trial, _worth(one, folder))
    with _storage_errors(file):
        best = _configured(study, found.best_params)
    both = replace(
        study,
        configurations={**best.configurations, **study.configurations},
        changes={**best.changes, **study.changes},
    )
    run_study(both, folder, **options)
    return both


@contextmanager
def _storage_errors(file: Path) -> Generator[None]:
    """Turn what Optuna raises about its storage into one line."""
    try:
        yield
    except EsperError:
        raise
    except Exception as error:  # of Optuna, SQLAlchemy and SQLite
        raise ConfigError(
            f"Optuna cannot use {file} ({summarize_error(error)}); move it away to start "
            "a new search."
        ) from error


def _require_plain(file: Path) -> None:
    """Reject a storage that would change another place, or run statements of someone else."""
    require_own(file)
    require_own_logs(file)
    if file.exists():
        place = f"{file.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(place, uri=True)) as connection:
            distrust(connection)
            for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_master"):
                if kind in ("trigger", "view") or "virtual" in str(sql).lower():
                    raise ConfigError(
                        f"{file} has a {kind} {shown(name)}, which Optuna does not make; move the "
                        "file away."
                    )


def _import_optuna() -> Any:
    try:
        optuna: Any = import_module("optuna")
    except ImportError as error:
        raise ConfigError(
            'optuna is not installed; pip install "esper-lite[optuna]" to search.'
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _distribution(optuna: Any, path: str, range_: Any) -> Any:
    kinds = optuna.distributions
    choices = cast("list[object]", range_) if isinstance(range_, list) else []
    if choices and not any(isinstance(one, (list, dict)) for one in choices):
        return kinds.CategoricalDistribution(choices)
    given = cast("dict[str, Any]", range_) if isinstance(range_, dict) else {}
    if {"low", "high"} <= given.keys() <= {"low", "high", "log"}:
        is_whole = isinstance(given["low"], int) and isinstance(given["high"], int)
        kind = kinds.IntDistribution if is_whole else kinds.FloatDistribution
        try:
            return kind(**given)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"search.{path} is {range_!r}: {message_of(error)}") from error
    raise ConfigError(
        f"search.{path} is {range_!r}; it must be a list of choices, or a table with low, high and "
        "perhaps log = true."
    )


def _configured(study: Study, params: Mapping[str, Any]) -> Study:
    """Return a study of one configuration, the base with the parameters of a trial."""
    (base,) = study.configurations.values()
    name = ", ".join(
        f"{path.rpartition('.')[2]}={value:.4g}"
        if isinstance(value, float)
        else f"{path.rpartition('.')[2]}={value}"
        for path, value in params.items()
    )
    changed = base.change(params, "optuna")
    return replace(study, configurations={name: changed}, changes={name: dict(params)})


def _worth(study: Study, folder: Path) -> float:
    return mean(max(evaluations_of(run).values()) for run in complete_runs(study, folder).values())
