"""A flipped bit in a file that decides something is refused, or changes nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from esper.errors import EvidenceError, RunError
from esper.evidence.cache import ResultCache
from esper.evidence.files import EvidenceFile
from esper.growth.saved_models import load, save
from esper.reports.views.comparison import comparison_view
from esper.simic import PPO
from esper.storage.checkpoint import CheckpointWarning
from esper.storage.files import with_checksum
from esper.tamiyo import load_saved, save_controller
from esper.tamiyo.controllers.saved import facts_of
from esper.training.comparison import read_summary, write_summary
from tests.evidence.examples import make_arm, make_evidence, make_hosts
from tests.flipped_bits import flip_bits
from tests.growth.helpers import HOSTS, make_host, state_of
from tests.reports.views.test_comparison import make_summary
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


def grown_model(folder: Path) -> Reader:
    save(make_host("mlp")[0], folder)
    return lambda: exact(state_of(load(folder, HOSTS["mlp"][0])))


def summary(folder: Path) -> Reader:
    write_summary(folder / "summary.json", make_summary())
    return lambda: read_summary(folder / "summary.json")


def shown_summary(folder: Path) -> Reader:
    summary(folder)
    return lambda: shown(folder)


def evaluation(folder: Path) -> Reader:
    learned = make_arm("learned", make_hosts(2, 4, gain=0.1), kind="learned")
    evidence = make_evidence(learned, make_arm("wait", make_hosts(1, 4, seed=1)))
    (folder / "evaluation.json").write_text(EvidenceFile(entries=(evidence,)).to_text())

    def read() -> Any:
        file = EvidenceFile.from_text((folder / "evaluation.json").read_bytes())
        return [entry.to_json() for entry in file.entries]

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
    "growth.json": (grown_model, "growth.json"),
    "summary.json": (summary, "summary.json"),
    "summary.json as shown": (shown_summary, "summary.json"),
    "evaluation.json": (evaluation, "evaluation.json"),
    "evaluation.json as shown": (shown_evaluation, "evaluation.json"),
    "PPO manifest": (saved_ppo, "*/manifest.json"),
    "PPO facts": (saved_ppo, "*/state.json"),
    "PPO tensors": (saved_ppo, "*/state.safetensors"),
    "cached results": (cached_results, "*.npz"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_flipped_bit_is_accepted_with_changed_facts(kind: str, tmp_path: Path) -> None:
    make, pattern = KINDS[kind]
    read = make(tmp_path)
    (path,) = tmp_path.glob(pattern)
    outcomes = flip_bits(path, read, n_flips=N_FLIPS)
    assert outcomes["changed"] == 0
    # White space and the spelling of a number carry no facts.
    assert outcomes["refused"] > 0.7 * N_FLIPS


def test_the_checksum_is_that_of_the_values_in_any_order_and_layout(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    values = with_checksum({"format": 1, **make_summary().to_json()})
    assert with_checksum(dict(reversed(list(values.items())[:-1]))) == values
    write_summary(path, make_summary())
    text = path.read_text()
    path.write_text(text.replace("\n", " "))
    assert read_summary(path) == make_summary()
    path.write_text(text.replace('"n_hosts": 20', '"n_hosts": 21'))
    with pytest.raises(RunError, match=r"summary.json is damaged"):
        read_summary(path)
    path.write_text(text.replace('"format": 1', '"format": 2'))
    with pytest.raises(RunError, match=r"summary.json"):
        read_summary(path)
