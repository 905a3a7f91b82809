"""Where environments say which actions are legal: in ``info``, or by a method.

Shapes: ``E`` environments.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from esper.errors import (
    EsperError,
    EsperWarning,
    RolloutError,
    UnsupportedEnvironmentError,
    type_of,
)
from esper.simic.policy.mask_reader import MaskReader
from esper.simic.policy.masks import ChoiceMasks
from esper.simic.policy.observations import ObservationSpec

Env = gymnasium.Env[Any, Any]

MASK_KEYS = ("action_mask", "action_masks")
"""Where ``info`` may say what is legal; the first that is given counts."""


OBSERVED_MASK = (
    "the observations hold an action mask, which the network sees but which restricts nothing; to "
    "restrict actions, give it in info['action_mask'] as well."
)
"""Advice for users whose only masks are in observations."""


@dataclass
class MaskSource:
    """Where environments say what is legal, found at the first reset and required ever after."""

    reader: MaskReader
    ask: Callable[[], Any] | None
    """Asks all environments by their method; None if they have none."""
    kind: str | None = None
    """A key of ``info``, ``"method"``, or None if everything is legal."""
    steps: int = -1

    @property
    def where(self) -> str:
        """The reset or step that masks were last given at."""
        return f"step {self.steps}" if self.steps else "the first reset"

    def read(self, offered: Mapping[str, tuple[Any, Sequence[bool]]]) -> ChoiceMasks | None:
        """Return what is legal after a reset or step; None for everything.

        Args:
            offered: By key, the masks that ``info`` has, and which environments gave one.

        Raises:
            EsperError: If a mask cannot be read or is missing, with the step.
        """
        key = next(iter(offered), None)
        if self.steps < 0:
            self.kind = key or ("method" if self.ask is not None else None)
        self.steps += 1
        if self.kind is None:
            if key is not None:
                raise RolloutError(
                    f"info[{key!r}] appeared at {self.where} but not at the first reset; give it "
                    "at every reset and every step."
                )
            return None
        if self.kind == "method":
            assert self.ask is not None, "the method was found at the first reset"
            masks = self.ask()
        else:
            masks, is_given = offered.get(self.kind, (None, [False]))
            if not all(is_given):
                before = "others did" if any(is_given) else "it did at the first reset"
                raise RolloutError(
                    f"environment {list(is_given).index(False)} gave no info[{self.kind!r}] at "
                    f"{self.where}, but {before}; give it at every reset and every step."
                )
        try:
            return self.reader.read_batch(masks)
        except EsperError as error:
            raise type(error)(f"at {self.where}, {error}") from error


def mask_method(env: Env) -> Callable[[], Any] | None:
    """Return the method with which an environment gives masks, through all wrappers.

    Raises:
        UnsupportedEnvironmentError: If ``action_masks`` is not a method.
    """
    if not env.has_wrapper_attr("action_masks"):
        return None
    method = env.get_wrapper_attr("action_masks")
    if not callable(method):
        raise UnsupportedEnvironmentError(
            f"action_masks of the environment is {type_of(method)}; it must be a method, "
            "because it is asked at every step."
        )
    return method


def reject_unread_masks(has_attribute: bool) -> None:
    """Raise UnsupportedEnvironmentError for environments whose only masks nothing reads."""
    if has_attribute:
        raise UnsupportedEnvironmentError(
            "the environment has an attribute action_mask, which is not read; give masks by a "
            "method action_masks(), or in info['action_mask'] at every reset and step."
        )


def warn_of_observed_masks(spec: ObservationSpec) -> None:
    """Warn of masks that are part of the observations and restrict nothing."""
    if spec.leaves.keys() & set(MASK_KEYS):
        warnings.warn(OBSERVED_MASK, EsperWarning, stacklevel=2)


def find_vector_method(envs: VectorEnv[Any, Any, Any]) -> Callable[[], Any] | None:
    """Return what asks a vector environment, or its members, for masks; None if none has any."""
    layer: Any = envs
    while not hasattr(layer, "action_masks"):
        if layer is layer.unwrapped:
            # Asking a worker process for an attribute that it does not have would end it.
            call = getattr(layer, "call", None)
            has_one = call is not None and all_or_none(call("has_wrapper_attr", "action_masks"))
            return partial(layer.call, "action_masks") if has_one else None
        layer = layer.env
    return layer.action_masks


def all_or_none(has_method: Sequence[bool]) -> bool:
    """Return whether all environments have a method ``action_masks``; some alone are an error."""
    if any(has_method) and not all(has_method):
        raise UnsupportedEnvironmentError(
            f"environment {list(has_method).index(False)} has no method action_masks, but others "
            "do; all or none need it."
        )
    return all(has_method)
