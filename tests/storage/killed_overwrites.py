"""Overwrite saved things in processes that are killed at each system call; a script of test_kills.

killed_overwrites.py FOLDER        prints how many moments there were, by kind
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gymnasium
from torch import nn

from esper.growing import grown
from esper.growth.saved_models import load, save
from esper.simic import PPO
from esper.tamiyo import load_saved, save_controller
from tests.growth.helpers import HOSTS, make_host
from tests.storage.killed_saves import die_at, run_forked
from tests.tamiyo.fresh_controllers import fresh_controller

Pair = tuple[Callable[[Path, int], object], Callable[[Path], object]]


def save_grown(folder: Path, number: int) -> None:
    """Save a grown model whose program is a number, which takes no seconds to export."""
    grown._save_program = lambda _, path: path.write_text(str(number))  # type: ignore[assignment]
    made = SimpleNamespace(model=nn.Linear(1, 1), to_json=lambda: {"timeline": number})
    made.model.weight.data.fill_(number)
    grown.check = lambda *_: made  # type: ignore[assignment]
    grown.save_grown(cast(Any, made), folder)


def read_grown(folder: Path) -> int:
    """Return the number of the program, which all files that say something belong to."""
    number = int((folder / "model.pt2").read_text())
    growth = folder / "growth.json"
    assert json.loads(growth.read_text()) in ({}, {"timeline": number})
    return number


def make_kinds() -> dict[str, Pair]:
    controller, host = fresh_controller(), make_host("mlp")[0]
    models = [PPO(gymnasium.make("CartPole-v1"), n_steps=8, seed=k) for k in (1, 2)]
    first = host.head.bias.data.clone()

    def save_host(folder: Path, number: int) -> None:
        host.head.bias.data.copy_(first + number)
        save(host, folder)

    def read_host(folder: Path) -> int:
        return round(float((load(folder, HOSTS["mlp"][0]).head.bias - first)[0]))

    return {
        "controller": (
            lambda folder, k: save_controller(replace(controller, name=str(k)), folder),
            lambda folder: int(load_saved(folder).name),
        ),
        "growing model": (save_host, read_host),
        "PPO model": (
            lambda folder, k: models[k].save(folder),
            lambda folder: PPO.load(folder).seed - 1,
        ),
        "grown model": (save_grown, read_grown),
    }


def overwrite(folder: Path, write: Callable[[Path, int], object], read: Any) -> int:
    """Kill processes that overwrite 0 by 1 at every moment; return how many moments there are."""
    moment, seen = 0, set[int]()
    while True:
        write(folder, 0)

        def job(moment: int = moment) -> None:
            die_at(moment)
            write(folder, 1)

        _, status = os.waitpid(run_forked(job), 0)
        found = read(folder)
        if os.WIFEXITED(status):
            assert (os.WEXITSTATUS(status), found) == (0, 1)
            assert seen == {0, 1}
            return moment
        assert found in (0, 1)
        seen.add(found)
        moment += 1


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    place = Path(sys.argv[1])
    counts = {name: overwrite(place / name, *pair) for name, pair in make_kinds().items()}
    print(json.dumps(counts))
