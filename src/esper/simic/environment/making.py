"""Telling whether two environments were made alike: then one can go on with the other's state."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Any

from esper.errors import ConfigError
from esper.simic.environment.episodes import GrowthEpisodes
from esper.tasks import TaskDraw

_FACTS = ("hosts", "seeds", "episodes", "elapsed", "has_seeds")


def digest_of(draw: TaskDraw) -> str:
    """Return a number, in letters, that other data would not have."""
    digest = hashlib.sha256()
    for _, samples in draw.data.splits():
        for tensor in (samples.inputs, samples.targets):
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def describe_part(part: GrowthEpisodes) -> dict[str, Any]:
    """Return what decides the hosts of a task, as plain values."""
    task, slot_config = part.task, part.slot_config
    return {
        "task": task.name,
        "data": digest_of(task.sample(0)),
        "host": [list(p.shape) for p in part.population.template.parameters()],
        "budget": asdict(task.budget),
        "training": asdict(task.training),
        "growth": None if task.growth is None else asdict(task.growth),
        "slots": list(slot_config.slot_ids),
        "blueprints": list(slot_config.blueprints),
    }


def require_same_making(own: dict[str, Any], state: Any) -> None:
    """Refuse the state of an environment that was made otherwise.

    Raises:
        ConfigError: Naming what differs, or if it is no state at all.
    """
    try:
        theirs = dict(state["facts"]["made_with"])
        _parts = [dict(state["tensors"]), *(state["facts"][name] for name in _FACTS)]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            "this is not the state of a growth environment; load what state_dict() gave."
        ) from error
    for name, value in own.items():
        if theirs.get(name) != value:
            raise ConfigError(
                f"the state has {name} {theirs.get(name)!r}; this environment has {value!r}. "
                "Make it with the options that the other was made with."
            )
