"""A flipped bit in a file that decides something is refused; in others it gives no traceback."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from esper.dashboard.views.comparison import comparison_view
from esper.errors import EvidenceError, RunError
from esper.evidence.cache import ResultCache
from esper.growth.saved_models import load, save
from esper.results.files import (
    EVIDENCE_VERSION,
    evidence_text,
    read_evidence_file,
    read_summary,
    write_summary,
)
from esper.simic import PPO
from esper.storage.checkpoint_folder import CheckpointWarning
from esper.storage.files import write_hashed
from esper.tamiyo import load_saved, save_controller
from esper.tamiyo.controllers.saved import facts_of
from tests.dashboard.views.test_comparison import make_summary
from tests.evidence.examples import make_arm, make_evidence, make_hosts
from tests.flipped_bits import flip_bits
from tests.growth.helpers import HOSTS, make_host, state_of
from tests.storage.states import exact
from tests.tamiyo.fresh_controllers import fresh_controller

Reader = Callable[[], Any]
N_FLIPS = 120


def controller(folder: Path) -> Reader:
    save_controller(fresh_controller(), folder)

    def read() -> Any:
        loaded = load_saved(folder)
        return exact([facts_of(loaded), dict(loaded.weights)])

    return read


def growing_model(folder: Path) -> Reader:
    save(make_host("mlp")[0], folder)
    return lambda: exact(state_of(load(folder, HOSTS["mlp"][0])))


def summary(folder: Path) -> Reader:
    write_summary(folder / "summary.json", make_summary())
    return lambda: read_summary(folder / "summary.json").to_json()


def shown_summary(folder: Path) -> Reader:
    summary(folder)
    return lambda: shown(folder)


def evaluation(folder: Path) -> Reader:
    learned = make_arm("learned", make_hosts(2, 4, gain=0.1), kind="learned")
    evidence = make_evidence(learned, make_arm("no-growth", make_hosts(1, 4, seed=1)))
    write_hashed(folder / "evaluation.json", evidence_text([evidence]))

    def read() -> Any:
        return [entry.to_json() for entry in read_evidence_file(folder / "evaluation.json")]

    return read


def shown_evaluation(folder: Path) -> Reader:
    evaluation(folder)
    return lambda: shown(folder)


def shown(folder: Path) -> Any:
    """Return what reports and the dashboard show, which name a damaged file instead."""
    view = comparison_view(folder)
    assert view is not None
    if view["problems"]:
        raise RunError(view["problems"][0])
    return view


def saved_ppo(folder: Path) -> Reader:
    model = PPO(gymnasium.make("CartPole-v1"), n_steps=8, seed=1)
    model.save(folder)

    def read() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CheckpointWarning)
            loaded = PPO.load(folder)
        return exact([loaded.settings(), loaded.agent.state_dict()])

    return read


def cached_results(folder: Path) -> Reader:
    values = {"scores": np.arange(50.0), "names": np.array(["a", "b"])}
    ResultCache(folder, {}).get({"arm": "wait"}, lambda: values)

    def make_again() -> Any:
        raise EvidenceError("computed again")

    def read() -> Any:
        found = ResultCache(folder, {}).get({"arm": "wait"}, make_again)
        return {name: array.tolist() for name, array in found.items()}

    return read


KINDS: dict[str, tuple[Callable[[Path], Reader], str]] = {
    "controller.json": (controller, "controller.json"),
    "controller.safetensors": (controller, "controller.safetensors"),
    "manifest of a controller": (controller, "manifest.json"),
    "growing.json": (growing_model, "growing.json"),
    "growing.safetensors": (growing_model, "growing.safetensors"),
    "PPO manifest": (saved_ppo, "*/manifest.json"),
    "PPO facts": (saved_ppo, "*/state.json"),
    "PPO tensors": (saved_ppo, "*/state.safetensors"),
    "cached results": (cached_results, "*.npz"),
    "summary.json": (summary, "summary.json"),
    "summary.json as shown": (shown_summary, "summary.json"),
    "hash of a summary": (summary, "summary.json.sha256"),
    "evaluation.json": (evaluation, "evaluation.json"),
    "evaluation.json as shown": (shown_evaluation, "evaluation.json"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_flipped_bit_is_accepted_with_changed_facts(kind: str, tmp_path: Path) -> None:
    make, pattern = KINDS[kind]
    read = make(tmp_path)
    (path,) = tmp_path.glob(pattern)
    outcomes = flip_bits(path, read, n_flips=N_FLIPS)
    assert outcomes == {"refused": N_FLIPS}


def test_a_summary_of_another_version_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_summary(path, make_summary())
    text = path.read_text()
    assert read_summary(path).to_json() == make_summary().to_json()
    older = text.replace(f'"evidence_version": {EVIDENCE_VERSION}', '"evidence_version": 2')
    path.write_text(older)
    path.with_name("summary.json.sha256").unlink()  # a copy of the file alone
    with pytest.raises(RunError, match=rf"summary.json .*format 2, not {EVIDENCE_VERSION}"):
        read_summary(path)
