"""A learned controller by itself: kept in a folder, and made for the slots of any host.

controller.safetensors  the weights of its policy
controller.json         what they mean: sizes, blueprints, features and heads by name, its origin
CARD.md                 the same for people, and what it was shown to do
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from esper.config import PolicyConfig
from esper.config.growth import Budget, GrowthConfig
from esper.errors import ControllerError, EsperError, StorageError
from esper.lifecycle.factored_actions import (
    ALPHA_CURVES,
    ALPHA_SPEED_EPOCHS,
    ALPHA_TARGETS,
    STYLES,
    TEMPO_EPOCHS,
    Op,
)
from esper.lifecycle.slot_config import SlotConfig
from esper.storage.files import write_atomic
from esper.tamiyo.controllers.controller import Controller
from esper.tamiyo.controllers.learned import (
    LearnedController,
    TranslatedController,
    with_blueprints,
)
from esper.tamiyo.policy.observations import HOST_FEATURES, SLOT_FEATURES
from esper.tamiyo.policy.slot_network import SlotPolicy
from esper.version import __version__


@dataclass(frozen=True, kw_only=True, eq=False)
class SavedController:
    """A trained policy, with all that is needed to steer hosts of any number of slots by it."""

    name: str
    """What it is called in comparisons."""
    weights: Mapping[str, Tensor]
    """Of its :class:`SlotPolicy`, by name."""
    policy: PolicyConfig
    """The sizes of the policy."""
    blueprints: tuple[str, ...]
    """What it can grow, in the order of its blueprint head's choices."""
    deterministic: bool = False
    """Whether it takes the likeliest action instead of drawing one."""
    budget: Budget = field(default_factory=Budget)
    """The budget of the hosts that it learned with."""
    growth: GrowthConfig | None = None
    """How long seeds stayed in their stages while it learned; None for the usual."""
    origin: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Where it comes from, in plain values by name."""

    def make(self, slot_config: SlotConfig, *, deterministic: bool | None = None) -> Controller:
        """Return the controller, ready for hosts with these slots.

        Blueprints are known by name. One that the controller does not know, it never grows; one
        that the hosts do not have, it never sees offered.

        Args:
            slot_config: The slots of the hosts, and what fits them.
            deterministic: Whether it takes the likeliest action; None for its own way.

        Raises:
            ControllerError: If the weights are not those of such a policy, or it knows no
                blueprint that fits any of the slots.
        """
        own = with_blueprints(slot_config, self.blueprints)
        if not any(own.fits[slot] for slot in own.slot_ids):
            raise ControllerError(
                f"controller {self.name!r} knows no blueprint that fits a slot of this host; it "
                f"knows {', '.join(self.blueprints)}. Train one with what the host can grow."
            )
        is_greedy = self.deterministic if deterministic is None else deterministic
        controller = LearnedController(
            self.make_policy(own), deterministic=is_greedy, name=self.name
        )
        if own.blueprints == slot_config.blueprints:
            return controller
        return TranslatedController(controller, own, slot_config)

    def make_policy(self, slot_config: SlotConfig) -> SlotPolicy:
        """Return its policy for slots whose blueprints are numbered as its own.

        Raises:
            ControllerError: If the weights are not those of such a policy.
        """
        with torch.random.fork_rng(devices=[]):  # layers draw first weights, which are replaced
            policy = SlotPolicy(slot_config, self.policy)
        try:
            policy.load_state_dict(dict(self.weights))
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise ControllerError(
                f"the weights of controller {self.name!r} are not those of a policy with "
                f"{len(self.blueprints)} blueprints and its sizes ({reason}); export it again."
            ) from error
        if not all(torch.isfinite(tensor).all() for tensor in policy.state_dict().values()):
            raise ControllerError(
                f"the weights of controller {self.name!r} are not all finite; export it again."
            )
        return policy


FORMAT = 1
WEIGHTS_FILE = "controller.safetensors"
FACTS_FILE = "controller.json"
CARD_FILE = "CARD.md"
SHIPPED_FOLDER = Path(__file__).parent / "shipped"
"""Where the controller is that comes with Esper."""


def save_controller(
    controller: SavedController, folder: str | os.PathLike[str], *, card: str = ""
) -> Path:
    """Save a controller and return the folder.

    Args:
        controller: What to save.
        folder: Where; a controller that is there is replaced.
        card: The text of CARD.md; without one the file is left as it is.

    Raises:
        ControllerError: If the controller could not be used again.
        StorageError: If it cannot be written.
    """
    place = Path(folder)
    _try(controller, str(place))
    weights = {name: t.detach().cpu().contiguous() for name, t in controller.weights.items()}
    content = safetensors.torch.save(weights)
    facts = json.dumps(facts_of(controller) | {"sha256": _hash(content)}, indent=1) + "\n"
    try:
        place.mkdir(parents=True, exist_ok=True)
        write_atomic(place / WEIGHTS_FILE, content)
        write_atomic(place / FACTS_FILE, facts)
        if card:
            write_atomic(place / CARD_FILE, card)
    except OSError as error:
        raise StorageError(
            f"{place} cannot be written: {error.strerror or error}; choose another folder."
        ) from error
    return place


def load_saved(folder: str | os.PathLike[str]) -> SavedController:
    """Return a controller that was saved.

    Raises:
        ControllerError: If there is none, it is damaged, or it is of another version of Esper.
    """
    place = Path(folder)
    facts = read_facts(place)
    try:
        content = (place / WEIGHTS_FILE).read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise ControllerError(
            f"{place / WEIGHTS_FILE} cannot be read: {reason}; {_AGAIN}"
        ) from error
    if facts.get("sha256") != _hash(content):
        raise ControllerError(
            f"{place / WEIGHTS_FILE} is not the file that {FACTS_FILE} was written for; {_AGAIN}"
        )
    try:
        weights = safetensors.torch.load(content)
        controller = _controller_from(facts, weights)
    except (SafetensorError, EsperError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ControllerError(f"{place} holds no controller ({reason}); {_AGAIN}") from error
    _try(controller, str(place))
    return controller


def load_shipped() -> SavedController:
    """Return the controller that comes with Esper.

    Raises:
        ControllerError: If this installation has none, or it is damaged.
    """
    if not holds_controller(SHIPPED_FOLDER):
        raise ControllerError(
            f"this installation of Esper has no controller in {SHIPPED_FOLDER}; install it again, "
            "or name another: a run's folder, a saved controller's, or heuristic."
        )
    return load_saved(SHIPPED_FOLDER)


def holds_controller(folder: str | os.PathLike[str]) -> bool:
    """Return whether a controller was saved in a folder."""
    return (Path(folder) / FACTS_FILE).is_file()


def read_facts(folder: Path) -> dict[str, Any]:
    """Return what ``controller.json`` says, if this version of Esper can use it.

    Raises:
        ControllerError: If it cannot be read, or is of another version.
    """
    path = folder / FACTS_FILE
    try:
        facts = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ControllerError(f"{path} cannot be read ({error}); {_AGAIN}") from error
    if not isinstance(facts, dict):
        raise ControllerError(f"{path} is not a table of facts; {_AGAIN}")
    found = cast(dict[str, Any], facts)
    if found.get("format") != FORMAT:
        raise ControllerError(
            f"{path} has format {found.get('format')!r}; this version of Esper reads {FORMAT}."
        )
    for name, wanted in _meanings().items():
        if found.get(name) != wanted:
            raise ControllerError(
                f"the {name.replace('_', ' ')} of {path} are not those of this version of Esper "
                f"({__version__}; it was saved by {found.get('esper')}); train a controller again."
            )
    return found


def facts_of(controller: SavedController) -> dict[str, Any]:
    """Return what is known of a controller as plain values, without its weights."""
    return {
        "format": FORMAT,
        "esper": __version__,
        "name": controller.name,
        "deterministic": controller.deterministic,
        "policy": asdict(controller.policy),
        "budget": asdict(controller.budget),
        "growth": None if controller.growth is None else asdict(controller.growth),
        "origin": dict(controller.origin),
        "blueprints": list(controller.blueprints),
        **_meanings(),
    }


_AGAIN = "save the controller again."


def _meanings() -> dict[str, Any]:
    """Return what the numbers of observations and actions mean, apart from slots and blueprints."""
    heads = {
        "style": [style.name.lower() for style in STYLES],
        "tempo": list(TEMPO_EPOCHS),
        "alpha_target": list(ALPHA_TARGETS),
        "alpha_speed": list(ALPHA_SPEED_EPOCHS),
        "alpha_curve": [curve.name.lower() for curve in ALPHA_CURVES],
        "op": [op.name.lower() for op in Op],
    }
    return {
        "heads": heads,
        "host_features": list(HOST_FEATURES),
        "slot_features": list(SLOT_FEATURES),
    }


def _controller_from(facts: Mapping[str, Any], weights: dict[str, Any]) -> SavedController:
    name, blueprints, is_greedy = (facts[k] for k in ("name", "blueprints", "deterministic"))
    origin = facts["origin"]
    kinds = isinstance(name, str), isinstance(is_greedy, bool), isinstance(origin, dict)
    if not all(kinds):
        raise ValueError(f"name is {name!r}, deterministic {is_greedy!r} and origin {origin!r}")
    growth = facts["growth"]
    return SavedController(
        name=name,
        weights=weights,
        policy=PolicyConfig(**_settings(PolicyConfig, facts["policy"])),
        blueprints=SlotConfig(("slot",), blueprints=tuple(blueprints)).blueprints,
        deterministic=is_greedy,
        budget=Budget(**_settings(Budget, facts["budget"])),
        growth=None if growth is None else GrowthConfig(**_settings(GrowthConfig, growth)),
        origin=origin,
    )


def _settings(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a dataclass; refuse if some are missing or too many."""
    known = {each.name for each in fields(kind)}
    if set(values) != known:
        names = ", ".join(sorted(known.symmetric_difference(values)))
        raise ValueError(f"settings that are missing or unknown: {names}")
    return dict(values)


def _try(controller: SavedController, place: str) -> None:
    """Refuse a controller whose weights do not fit what is said of it."""
    try:
        controller.make_policy(SlotConfig(("slot",), blueprints=controller.blueprints))
    except ControllerError as error:
        raise ControllerError(f"{place}: {error}") from error


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
