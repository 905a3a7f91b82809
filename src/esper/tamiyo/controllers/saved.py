"""Learned controllers in a folder, usable for hosts with any slots.

controller.safetensors  the weights of the policy
controller.json         its sizes, blueprints, features, heads and origin
manifest.json           sizes and hashes of both
CARD.md                 the model card
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from esper.config import PolicyConfig
from esper.config.ablation import AblationConfig
from esper.config.checks import check, types_of
from esper.config.growth import Budget, GrowthConfig, RewardForm
from esper.config.run import OptionValue
from esper.errors import ConfigError, ControllerError, SlotError, shown
from esper.lifecycle.factored_actions import (
    ALPHA_CURVES,
    ALPHA_SPEED_EPOCHS,
    ALPHA_TARGETS,
    STYLES,
    TEMPO_EPOCHS,
    Op,
)
from esper.lifecycle.slot_config import SlotConfig
from esper.storage.controller_folder import CONTROLLER, FACTS_FILE, WEIGHTS_FILE, holds_controller
from esper.storage.files import MALFORMED, parse_json, storage_errors, write_atomic
from esper.tamiyo.controllers.controller import Controller
from esper.tamiyo.controllers.learned import (
    LearnedController,
    TranslatedController,
    with_blueprints,
)
from esper.tamiyo.policy.observations import HOST_FEATURES, SLOT_FEATURES, VERSION
from esper.tamiyo.policy.slot_network import SlotPolicy
from esper.version import __version__

Section = TypeVar("Section")


@dataclass(frozen=True, kw_only=True, eq=False)
class SavedController:
    """A trained policy and everything needed to use it for hosts with any slots.

    Examples:
        >>> saved = esper.load_saved("controllers/mine")
        >>> esper.grow("spirals", controller=saved, seed=0).summary.n_epochs  # doctest: +SKIP
    """

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
    ablation: AblationConfig = field(default_factory=AblationConfig)
    """What was taken away from it."""
    rewards: RewardForm = "dense"
    """The form of the rewards it was trained with."""
    origin: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """How it was trained, as plain values by name."""
    esper: str = __version__
    """The version of Esper that trained it."""
    is_shipped: bool = False
    """Whether it ships with Esper."""

    @property
    def learned_price(self) -> float | None:
        """The price that it learned at; None if each of its hosts had one of its own."""
        return None if self.origin.get("draws_price") else self.budget.flop_price

    @property
    def label(self) -> str:
        """Its name as users see it, such as ``learned (universal, 0.2)``."""
        if not self.is_shipped:
            return self.name
        return f"learned ({self.name}, {'.'.join(self.esper.split('.')[:2])})"

    def __repr__(self) -> str:
        n_weights = sum(tensor.numel() for tensor in self.weights.values())
        learned = self.origin.get("task")
        task = f", learned on {learned}" if isinstance(learned, str) else ""
        mode = "takes the most likely action" if self.deterministic else "samples actions"
        return (
            f"SavedController({self.label!r}, {n_weights:,} weights{task}, "
            f"{len(self.blueprints)} blueprints, {mode})"
        )

    def make(self, slot_config: SlotConfig, *, deterministic: bool | None = None) -> Controller:
        """Return the controller for hosts with these slots.

        Blueprints are matched by name. The controller never uses blueprints that it does not know
        or that the hosts do not have, nor those that it never met in training if others fit.

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
        met: set[str] = set(self.origin.get("met_blueprints", ()))
        limited = {slot: frozenset(own.fits[slot]) & met for slot in own.slot_ids}
        # Hosts of several designs have no fits of their own.
        is_limited = bool(slot_config.fits) and any(limited.values()) and limited != own.fits
        if is_limited:
            own = replace(own, fits=limited)
        is_greedy = self.deterministic if deterministic is None else deterministic
        controller = LearnedController(
            self.make_policy(own),
            deterministic=is_greedy,
            name=self.label,
            return_scale=self._return_scale,
            rewards=self.rewards,
        )
        if own.blueprints == slot_config.blueprints and not is_limited:
            return controller
        return TranslatedController(controller, own, slot_config)

    def make_policy(self, slot_config: SlotConfig) -> SlotPolicy:
        """Return its policy for slots with the same blueprints.

        Raises:
            ControllerError: If the weights do not fit the policy.
        """
        largest = max((max(t.shape, default=0) for t in self.weights.values()), default=0)
        for name, size in asdict(self.policy).items():
            if size > largest:  # found before a network of that size is made
                raise self._misfit(f"{name} is {size}, but no weight is larger than {largest}")
        with torch.random.fork_rng(devices=[]):  # initial weights are drawn, then replaced
            policy = SlotPolicy(slot_config, self.policy, ablation=self.ablation)
        try:
            policy.load_state_dict(dict(self.weights))
        except RuntimeError as error:
            raise self._misfit(str(error).splitlines()[-1].strip()) from error
        if not all(torch.isfinite(tensor).all() for tensor in policy.state_dict().values()):
            raise ControllerError(
                f"the weights of controller {self.name!r} are not all finite; export it again."
            )
        return policy

    @property
    def _return_scale(self) -> tuple[float, float] | None:
        mean, std = self.origin.get("return_mean"), self.origin.get("return_std")
        return None if mean is None or std is None else (float(mean), float(std))

    def _misfit(self, reason: str) -> ControllerError:
        return ControllerError(
            f"the weights of controller {self.name!r} do not fit a policy of its sizes with "
            f"{len(self.blueprints)} blueprints ({reason}); export it again."
        )


CARD_FILE = "CARD.md"
SHIPPED_FOLDER = Path(__file__).parent / "shipped"
"""The folder of the controller that ships with Esper."""


def save_controller(
    controller: SavedController, folder: str | os.PathLike[str], *, card: str = ""
) -> Path:
    """Save a controller and return the folder.

    A process that is killed leaves the controller that the folder held before, or the new one.

    Args:
        controller: The controller.
        folder: The folder; a controller in it is replaced.
        card: The text of CARD.md; if empty, the file is left unchanged.

    Raises:
        ControllerError: If the controller is invalid.
        StorageError: If it cannot be written.

    Examples:
        >>> saved = esper.load_saved("controllers/mine")
        >>> esper.save_controller(saved, "controllers/copy").name
        'copy'
    """
    path = Path(folder)
    _validate(controller, path)
    weights = {name: t.detach().cpu().contiguous() for name, t in controller.weights.items()}
    facts = json.dumps(facts_of(controller), indent=1) + "\n"
    contents = {WEIGHTS_FILE: safetensors.torch.save(weights), FACTS_FILE: facts.encode()}
    with storage_errors(path):
        CONTROLLER.write(path, contents)
        if card:
            write_atomic(path / CARD_FILE, card)
    return path


def load_saved(folder: str | os.PathLike[str]) -> SavedController:
    """Load a saved controller.

    Raises:
        ControllerError: If there is none, it is damaged, or its observations or choices are those
            of another version of Esper.
        OtherVersionError: If its files are.

    Examples:
        >>> saved = esper.load_saved("controllers/mine")
        >>> saved.budget.n_epochs > 0
        True
    """
    path = Path(folder)
    files = CONTROLLER.read(path)
    try:
        facts = cast("dict[str, Any]", parse_json(files[FACTS_FILE]))
        require_observations(facts, str(facts.get("name", path)))
        _require_meanings(facts, path)
        controller = _controller_from(facts, safetensors.torch.load(files[WEIGHTS_FILE]))
    except (ConfigError, SlotError) as error:
        raise ControllerError(f"in {path / FACTS_FILE}, {str(error).rstrip('.')}.") from error
    except (*MALFORMED, SafetensorError) as error:
        raise CONTROLLER.damaged(path, error) from error
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
    return replace(load_saved(SHIPPED_FOLDER), is_shipped=True)


def require_observations(facts: Mapping[str, Any], name: str) -> None:
    """Reject a controller whose facts name other observations than those of this version.

    Raises:
        ControllerError: Naming the controller and both versions.
    """
    version = facts["observations"]
    if version != VERSION:
        raise ControllerError(
            f"controller {name!r} was trained by another version of Esper whose observations "
            f"differ (version {version!r}, not {VERSION}); {_TRAIN_ANOTHER}"
        )


def _require_meanings(facts: Mapping[str, Any], path: Path) -> None:
    """Reject a controller whose features or choices are not those of this version."""
    for name, expected in _meanings().items():
        if facts[name] != expected:
            raise ControllerError(
                f"the {name.replace('_', ' ')} of {path / FACTS_FILE}, trained by Esper "
                f"{facts['esper']}, are not those of this version ({__version__}); {_TRAIN_ANOTHER}"
            )


_TRAIN_ANOTHER = "train a controller with `esper train`, or use the shipped one."


def facts_of(controller: SavedController) -> dict[str, Any]:
    """Return a controller as plain values, without its weights."""
    return {
        "esper": controller.esper,
        "observations": VERSION,
        "name": controller.name,
        "deterministic": controller.deterministic,
        "policy": asdict(controller.policy),
        "budget": asdict(controller.budget),
        "growth": None if controller.growth is None else asdict(controller.growth),
        "ablation": asdict(controller.ablation),
        "rewards": controller.rewards,
        "origin": dict(controller.origin),
        "blueprints": list(controller.blueprints),
        **_meanings(),
    }


_ORIGIN: dict[str, Any] = {
    "task": str,
    "task_options": dict[str, OptionValue],
    "seed": int,
    "rounds": int,
    "episodes": int,
    "envs": int,
    "n_steps": int,
    "command": str,
    "comparison": tuple[str, ...],
    "settings": dict[str, str],
    "unfinished": str,
    "changed": str,
    "draws_price": bool,
    "met_blueprints": tuple[str, ...],
    "return_mean": float,
    "return_std": float,
}
"""Types of what is read from a controller's origin; all of it is optional."""


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
    origin = facts["origin"]
    if not isinstance(origin, dict):
        raise ConfigError(f"origin is {shown(origin)}; it must be an object.")
    given = cast("dict[str, Any]", origin)
    for name, hint in _ORIGIN.items():
        if name in given:
            check(f"origin.{name}", given[name], hint)
    blueprints = check("blueprints", facts["blueprints"], tuple[str, ...])
    return SavedController(
        name=check("name", facts["name"], str),
        weights=weights,
        policy=_section(PolicyConfig, facts, "policy"),
        blueprints=SlotConfig(("slot",), blueprints=blueprints).blueprints,
        deterministic=check("deterministic", facts["deterministic"], bool),
        budget=_section(Budget, facts, "budget"),
        growth=None if facts["growth"] is None else _section(GrowthConfig, facts, "growth"),
        ablation=_section(AblationConfig, facts, "ablation"),
        rewards=check("rewards", facts["rewards"], RewardForm),
        origin=given,
        esper=check("esper", facts["esper"], str),
    )


def _section(kind: type[Section], facts: Mapping[str, Any], name: str) -> Section:
    """Return the dataclass of settings under a name; they must be exactly its fields.

    What an ablation does not name was not taken away.
    """
    values, hints = facts[name], types_of(kind)
    if not isinstance(values, dict):
        raise ConfigError(f"{name} is {shown(values)}; it must be an object of settings.")
    given = cast("dict[str, Any]", values)
    wrong = given.keys() ^ hints.keys()
    if kind is AblationConfig:
        wrong = given.keys() - hints.keys()
    if wrong:
        names = ", ".join(sorted(wrong))
        raise ConfigError(f"{name} has missing or unknown settings: {names}")
    try:
        return kind(**given)
    except ConfigError as error:
        raise ConfigError(f"{name}.{error}") from error


def _validate(controller: SavedController, path: Path) -> None:
    """Reject a controller whose weights do not fit its description."""
    try:
        controller.make_policy(SlotConfig(("slot",), blueprints=controller.blueprints))
    except ControllerError as error:
        raise ControllerError(f"{path}: {error}") from error
