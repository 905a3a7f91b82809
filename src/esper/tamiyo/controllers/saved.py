"""Learned controllers in a folder, usable for hosts with any slots.

controller.safetensors  the weights of the policy
controller.json         its sizes, blueprints, features, heads and origin
CARD.md                 the model card
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
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
from esper.errors import ControllerError, EsperError, StorageError, message_of
from esper.lifecycle.factored_actions import (
    ALPHA_CURVES,
    ALPHA_SPEED_EPOCHS,
    ALPHA_TARGETS,
    STYLES,
    TEMPO_EPOCHS,
    Op,
)
from esper.lifecycle.slot_config import SlotConfig
from esper.storage.files import read_json, verified, with_checksum, write_atomic
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
    """A trained policy and everything needed to use it for hosts with any slots."""

    name: str
    """Its name in comparisons."""
    weights: Mapping[str, Tensor]
    """The weights of its :class:`SlotPolicy` by name."""
    policy: PolicyConfig
    """The sizes of the policy."""
    blueprints: tuple[str, ...]
    """The blueprints that it knows, in the order of its blueprint head."""
    deterministic: bool = False
    """Whether it takes the most likely action instead of sampling one."""
    budget: Budget = field(default_factory=Budget)
    """The budget it was trained with."""
    growth: GrowthConfig | None = None
    """How long seeds stayed in their stages during training; None for the defaults."""
    origin: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """How it was trained, as plain values by name."""

    def make(self, slot_config: SlotConfig, *, deterministic: bool | None = None) -> Controller:
        """Return the controller for hosts with these slots.

        Blueprints are matched by name. The controller never uses blueprints that it does not know
        or that the hosts do not have.

        Args:
            slot_config: The slots of the hosts, and the blueprints that fit them.
            deterministic: Whether to take the most likely action; None for its own setting.

        Raises:
            ControllerError: If the weights do not fit the policy, or it knows no blueprint that
                fits any of the slots.
        """
        own = with_blueprints(slot_config, self.blueprints)
        if not any(own.fits[slot] for slot in own.slot_ids):
            raise ControllerError(
                f"controller {self.name!r} knows no blueprint that fits a slot of this host; it "
                f"knows {', '.join(self.blueprints)}. Train a controller on such hosts."
            )
        is_greedy = self.deterministic if deterministic is None else deterministic
        controller = LearnedController(
            self.make_policy(own), deterministic=is_greedy, name=self.name
        )
        if own.blueprints == slot_config.blueprints:
            return controller
        return TranslatedController(controller, own, slot_config)

    def make_policy(self, slot_config: SlotConfig) -> SlotPolicy:
        """Return its policy for slots with the same blueprints.

        Raises:
            ControllerError: If the weights do not fit the policy.
        """
        with torch.random.fork_rng(devices=[]):  # initial weights are drawn, then replaced
            policy = SlotPolicy(slot_config, self.policy)
        try:
            policy.load_state_dict(dict(self.weights))
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise ControllerError(
                f"the weights of controller {self.name!r} do not fit a policy of its sizes with "
                f"{len(self.blueprints)} blueprints ({reason}); export it again."
            ) from error
        if not all(torch.isfinite(tensor).all() for tensor in policy.state_dict().values()):
            raise ControllerError(
                f"the weights of controller {self.name!r} are not all finite; export it again."
            )
        return policy


FORMAT = 2
"""The format of controller.json. Format 1, of Esper 0.1, lacks the checksum."""
WEIGHTS_FILE = "controller.safetensors"
FACTS_FILE = "controller.json"
CARD_FILE = "CARD.md"
SHIPPED_FOLDER = Path(__file__).parent / "shipped"
"""The folder of the controller that ships with Esper."""


class ControllerWarning(UserWarning):
    """A saved controller has no checksum, so damage to it cannot be detected."""


def save_controller(
    controller: SavedController, folder: str | os.PathLike[str], *, card: str = ""
) -> Path:
    """Save a controller and return the folder.

    Args:
        controller: The controller.
        folder: The folder; a controller in it is replaced.
        card: The text of CARD.md; if empty, the file is left unchanged.

    Raises:
        ControllerError: If the controller is invalid.
        StorageError: If it cannot be written.
    """
    path = Path(folder)
    _validate(controller, path)
    weights = {name: t.detach().cpu().contiguous() for name, t in controller.weights.items()}
    content = safetensors.torch.save(weights)
    facts = with_checksum(facts_of(controller) | {"sha256": _hash(content)})
    text = json.dumps(facts, indent=1) + "\n"
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_atomic(path / WEIGHTS_FILE, content)
        write_atomic(path / FACTS_FILE, text)
        if card:
            write_atomic(path / CARD_FILE, card)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror or error}; choose another folder."
        ) from error
    return path


def load_saved(folder: str | os.PathLike[str]) -> SavedController:
    """Load a saved controller.

    Raises:
        ControllerError: If there is none, it is damaged, or it is of another version of Esper.
    """
    path = Path(folder)
    facts = read_facts(path)
    try:
        content = (path / WEIGHTS_FILE).read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise ControllerError(
            f"{path / WEIGHTS_FILE} cannot be read: {reason}; {_ADVICE}"
        ) from error
    if facts.get("sha256") != _hash(content):
        raise ControllerError(
            f"{path / WEIGHTS_FILE} does not match the sha256 in {FACTS_FILE}; {_ADVICE}"
        )
    try:
        weights = safetensors.torch.load(content)
        controller = _controller_from(facts, weights)
    except (SafetensorError, EsperError, KeyError, TypeError, ValueError) as error:
        raise ControllerError(
            f"{path} holds no valid controller ({message_of(error)}); {_ADVICE}"
        ) from error
    _validate(controller, path)
    return controller


def load_shipped() -> SavedController:
    """Load the controller that ships with Esper.

    Raises:
        ControllerError: If this installation has none, or it is damaged.
    """
    if not holds_controller(SHIPPED_FOLDER):
        raise ControllerError(
            f"this installation of Esper has no controller in {SHIPPED_FOLDER}; reinstall it, or "
            "use another controller: the folder of a run or of a saved one, or heuristic."
        )
    return load_saved(SHIPPED_FOLDER)


def holds_controller(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds a saved controller."""
    return os.path.isfile(Path(folder) / FACTS_FILE)


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the content of ``controller.json``, if this version of Esper can use it.

    Emits a :class:`ControllerWarning` for a file of format 1.

    Raises:
        ControllerError: If it cannot be read, is damaged, or is of another version.
    """
    path = folder / FACTS_FILE
    try:
        facts = read_json(path)
    except (OSError, ValueError) as error:
        raise ControllerError(f"{path} cannot be read ({error}); {_ADVICE}") from error
    if not isinstance(facts, dict):
        raise ControllerError(f"{path} is not a JSON object; {_ADVICE}")
    version = cast(dict[str, Any], facts).get("format")
    if version not in (1, FORMAT):
        raise ControllerError(
            f"{path} has format {version!r}; this version of Esper reads 1 and {FORMAT}."
        )
    try:
        found = verified(facts, may_lack=version == 1)
    except ValueError as error:
        raise ControllerError(f"{path} is damaged: {error}; {_ADVICE}") from error
    if version == 1:
        warnings.warn(
            f"{path} is of Esper {found.get('esper')} and has no checksum, so damage to it cannot "
            "be detected; save it again: esper.save_controller(esper.load_saved(folder), folder)",
            ControllerWarning,
            stacklevel=3,
        )
    for name, wanted in _meanings().items():
        if found.get(name) != wanted:
            raise ControllerError(
                f"the {name.replace('_', ' ')} of {path}, saved by Esper {found.get('esper')}, "
                f"are not those of this version ({__version__}); train the controller again."
            )
    return found


def facts_of(controller: SavedController) -> dict[str, Any]:
    """Return a controller as plain values, without its weights."""
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


_ADVICE = "save the controller again."


def _meanings() -> dict[str, Any]:
    """Return the names of features and choices, which a controller's weights depend on."""
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
    task, options = origin.get("task", ""), origin.get("task_options", {})
    if not isinstance(task, str) or not isinstance(options, dict):
        raise ValueError(f"origin.task is {task!r} and origin.task_options {options!r}")
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


LATER_SETTINGS = frozenset({"deepen_start"})
"""Settings that controllers of earlier versions lack; they get their default."""


def _settings(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a dataclass, which must be exactly its fields."""
    known = {each.name for each in fields(kind)}
    wrong = known.symmetric_difference(values) - (LATER_SETTINGS & known)
    if wrong:
        names = ", ".join(sorted(wrong))
        raise ValueError(f"missing or unknown settings: {names}")
    return dict(values)


def _validate(controller: SavedController, path: Path) -> None:
    """Reject a controller whose weights do not fit its description."""
    try:
        controller.make_policy(SlotConfig(("slot",), blueprints=controller.blueprints))
    except ControllerError as error:
        raise ControllerError(f"{path}: {error}") from error


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
