"""What an environment promises, checked while random legal actions are taken.

Gymnasium's own checkers judge what ``reset`` and ``step`` return; what they do not know of is
checked here: masks, legal actions, and whether a policy can learn from what Gymnasium remarks on.
"""

from __future__ import annotations

import copy
import math
import re
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.utils.passive_env_checker import (
    env_reset_passive_checker,
    env_step_passive_checker,
)

from esper.errors import EsperError, EsperWarning, shown
from esper.formatting import html_table, many
from esper.simic.policy.action_spec import ActionSpec, action_parts, is_box
from esper.simic.policy.heads import ActionHeads
from esper.simic.policy.mask_reader import as_choice_masks
from esper.simic.policy.masks import ChoiceMasks
from esper.simic.policy.observations import ObservationSpec, leaves_of
from esper.simic.rollout.environments import LocalEnvironments
from esper.simic.rollout.mask_sources import Env

Level = Literal["ok", "note", "problem"]

ILLEGAL_FLAGS = ("illegal_action", "invalid_action")
"""Keys of ``info`` by which an environment says that it did not accept an action."""

SUBJECTS = {"The obs": "observations", "The reward": "rewards", "Expects `t": "ends"}
"""How remarks of Gymnasium begin, and which check they belong to."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    level: Level
    check: str
    """What was checked."""
    message: str
    """What was found, and what to do about it."""

    def __str__(self) -> str:
        """Return the line that the command prints."""
        return f"{self.level:<8} {self.check}: {self.message}"


class Findings(list[Finding]):
    """The outcomes of all checks, in their order. Printing them gives a line for each.

    Only the first problem of each check is kept.
    """

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    def __repr__(self) -> str:
        return f"{many(len(self), 'finding')}\n{self}"

    def _repr_html_(self) -> str:
        rows = ((one.level, one.check, one.message) for one in self)
        return html_table(("", "check", "found"), rows, n_left=3)

    def problem(self, check: str, message: str) -> None:
        """Report that something is wrong, in place of what was found before."""
        if not self.has_problem(check):
            self[:] = [found for found in self if found.check != check]
            self.append(Finding("problem", check, message))

    def note(self, check: str, message: str) -> None:
        """Report something that a user may want to know, once."""
        finding = Finding("note", check, message)
        if not self.has_problem(check) and finding not in self:
            self.append(finding)

    def ok(self, check: str, message: str) -> None:
        """Report that a check passed."""
        if not self.has_problem(check):
            self.append(Finding("ok", check, message))

    def has_problem(self, *checks: str) -> bool:
        """Return whether one of these checks found a problem."""
        return any(found.check in checks and found.level == "problem" for found in self)


# -- random play ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a step led to."""

    observation: Any
    reward: Any
    terminated: bool
    truncated: bool
    first: Any
    """The first observation of the next episode, if this one ended."""


class RandomGame:
    """Plays random legal actions, and reports what breaks the contract."""

    def __init__(self, env: Env, spec: ActionSpec, report: Findings, seed: int) -> None:
        self.env, self.spec, self.report = env, spec, report
        self.observation: Any = None
        self.actions, self.outcomes = list[Any](), list[Outcome]()
        self.episodes: list[tuple[int, bool]] = []
        """Length of each finished episode, and whether it was truncated."""
        self.n_steps, self.seconds = 0, 0.0
        self._length = 0
        self._given: Any = None
        self._reuses_arrays = False
        self._converted: str | None = None
        """How observations differ from the space, in Gymnasium's words."""
        self._seen = ObservationSpec.from_space(env.observation_space)
        self._info: dict[str, Any] = {}
        self._heads, self._generator = ActionHeads(spec), torch.Generator().manual_seed(seed)
        parts = [cast(Any, part) for _, part in action_parts(env.action_space)]
        self._boxes: list[spaces.Box[Any]] = [one for one in parts if isinstance(one, spaces.Box)]
        for number, box in enumerate(self._boxes):
            box.seed(seed + number)
        self._n_forbidden = 0
        self._local: LocalEnvironments | None = None
        """Reads masks as PPO does; None if it cannot."""
        try:
            self._local = LocalEnvironments([env], spec)
        except EsperError as error:
            report.problem("masks", str(error))

    @property
    def where(self) -> str:
        """Where in the game this is."""
        after = f"step {self.n_steps}" if self.n_steps else "the first reset"
        return f"at {after}" if self._length or not self.n_steps else f"at the reset after {after}"

    def reset(self, seed: int | None = None) -> bool:
        """Start an episode; return whether that worked."""
        call = "reset()" if seed is None else f"reset(seed={seed})"
        self._length = 0
        try:
            result = self.env.reset() if seed is None else self.env.reset(seed=seed)
        except Exception as error:
            self.report.problem("reset", f"{call} {self.where} raised {describe_error(error)}")
            return False
        if not self._check("reset", result):
            return False
        observation, self._info = result
        self.observation = copy.deepcopy(observation)
        return True

    def step(self) -> bool:
        """Take a random legal action; return whether the game can go on."""
        action = self._choose()
        if action is None:
            return False
        started = time.perf_counter()
        try:
            result: Any = self.env.step(copy.deepcopy(action))
        except Exception as error:
            self.report.problem(
                "legal actions",
                f"step({shown(action)}) {self.where} raised {describe_error(error)}",
            )
            return False
        self.seconds += time.perf_counter() - started
        self.n_steps, self._length = self.n_steps + 1, self._length + 1
        if not self._check("step", result):
            return False
        return self._take(action, cast("tuple[Any, ...]", result))

    def summarize(self) -> None:
        """Report what was found to be right."""
        steps = f"{self.n_steps} random steps"
        self.report.ok("reset", f"worked {many(1 + len(self.episodes), 'time')}")
        if self._reuses_arrays:
            self.report.note(
                "observations",
                "the same array is returned again and again; return a copy, because Gymnasium's "
                "SyncVectorEnv may keep an episode's last observation while the next one is "
                "written to it.",
            )
        elif self._converted is not None:
            self.report.note("observations", f"{self._converted}. Each is converted.")
        else:
            self.report.ok("observations", f"in the observation space during {steps}")
        self._summarize_masks(steps)
        self.report.ok("legal actions", f"accepted during {steps}")
        rewards = [outcome.reward for outcome in self.outcomes]
        self.report.ok("ends", "terminated and truncated are booleans")
        if not self.report.has_problem("rewards"):
            low, high = min(map(float, rewards)), max(map(float, rewards))
            if low == high == 0.0:
                self.report.note(
                    "rewards", f"all 0 during {steps}; exploration may never find one."
                )
            else:
                self.report.ok("rewards", f"finite numbers from {low:.4g} to {high:.4g}")

    def _choose(self) -> Any:
        """Draw uniformly among the legal actions; None if it is not known which are."""
        if self._local is None:
            return None
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", EsperWarning)
                masks = self._local.read_masks(self._info)
            choices = as_choice_masks(self.spec, masks, 1, torch.device("cpu"))
            wrong = None if masks is None else self._find_wrong(choices)
            if wrong is not None:
                self.report.problem("masks", f"{wrong} {self.where}.")
                return None
            outputs = torch.zeros(1, self._heads.n_outputs)
            with torch.no_grad():
                actions = self._heads.draw(outputs, choices, self._generator)[0]
        except EsperError as error:
            self.report.problem("masks", f"{self.where}: {error}")
            return None
        except Exception as error:
            self.report.problem(
                "masks", f"reading them raised {describe_error(error)} {self.where}"
            )
            return None
        for one in caught:
            self.report.note("masks", str(one.message))
        numbers = None
        if self._boxes:
            drawn = [np.asarray(box.sample(), np.float32).ravel() for box in self._boxes]
            numbers = np.concatenate(drawn)[None]
        return self._local.codec.each(actions.numpy(), numbers)[0]

    def _find_wrong(self, choices: ChoiceMasks) -> str | None:
        """Return what is wrong with masks that can be read, in words."""
        assert self._local is not None, "it has read them"
        self._n_forbidden += (
            sum(self.spec.sizes)
            - int(choices.legal.sum())
            + sum(int((~condition.table).sum()) for condition in choices.conditions)
        )
        source = self._local.mask_source
        if source.kind not in (None, "method") and source.ask is not None:
            asked = source.reader.read_batch(source.ask())
            if not torch.equal(asked.legal, choices.legal):
                return f"info[{source.kind!r}] differs from action_masks()"
        dead = _dead_end(self.spec, choices)
        return None if dead is None else f"they leave {dead}"

    def _summarize_masks(self, steps: str) -> None:
        """Report that masks are right, or that there are none."""
        assert self._local is not None, "it has played"
        kind = self._local.mask_source.kind
        if kind is None:
            if self.spec.sizes and not any(found.check == "masks" for found in self.report):
                self.report.ok("masks", "none; every action is legal")
            return
        sources = [f"info[{kind!r}]"] * (kind != "method")
        sources += ["action_masks()"] * self._local.has_mask_method
        text = f"{' and '.join(sources)} at every reset and step"
        if self._n_forbidden:
            self.report.ok("masks", text)
        else:
            never = f"{text}, but nothing was ever illegal during {steps}."
            self.report.note("masks", never)

    def _take(self, action: Any, result: tuple[Any, ...]) -> bool:
        """Check and record a step; reset if it ended the episode."""
        observation, reward, terminated, truncated, self._info = result
        for flag in ILLEGAL_FLAGS:
            if np.any(self._info.get(flag, False)):
                self.report.problem(
                    "legal actions",
                    f"info[{flag!r}] is true after step({shown(action)}) {self.where}, but the "
                    "masks allow it. Where one choice rules out another, give a conditional mask, "
                    "such as 'door|move'.",
                )
        last, first, can_go_on = copy.deepcopy(observation), None, True
        # Whatever they are, so that a wrong type is reported and not raised.
        ends = bool(np.any(terminated)), bool(np.any(truncated))
        if any(ends):
            self.episodes.append((self._length, ends[1]))
            can_go_on = self.reset()
            first = self.observation
        self.actions.append(action)
        self.outcomes.append(Outcome(last, reward, *ends, first))
        return can_go_on

    def _check(self, method: Literal["reset", "step"], result: Any) -> bool:
        """Report what Gymnasium remarks on a result; return whether its parts can be read."""
        remarks = ask_gymnasium(self.env, method, result)
        size = 2 if method == "reset" else 5
        if not (
            isinstance(result, tuple)
            and len(cast("tuple[Any, ...]", result)) == size
            and isinstance(result[-1], dict)
        ):
            self.report.problem(method, f"{self.where}: {' '.join(map(str.strip, remarks))}")
            return False
        on_observations = list[str]()
        for remark in remarks:
            check = next((SUBJECTS[start] for start in SUBJECTS if remark.startswith(start)), None)
            if check is None:
                self.report.note(method, remark)
            elif check == "observations":
                on_observations.append(remark)
            elif check == "ends" or not _is_finite_number(result[1]):
                self.report.problem(check, f"{remark.rstrip('.')} {self.where}.")
        self._check_observation(result[0], on_observations)
        return True

    def _check_observation(self, observation: Any, remarks: list[str]) -> None:
        """Report an observation that a policy cannot read or should not see."""
        space, are_finite = self.env.observation_space, True
        try:
            seen = leaves_of(self._seen.read_list([observation])).values()
            are_finite = all(bool(torch.isfinite(leaf).all()) for leaf in seen)
            is_inside = _is_inside(space, observation)
        except (EsperError, LookupError, TypeError, ValueError):
            is_inside = False
        if not are_finite:
            remarks = ["The obs holds a number that is not finite", *remarks]
        if not (is_inside and are_finite):
            wrong = remarks[0] if remarks else "The obs is not within the observation space"
            self.report.problem(
                "observations",
                f"{wrong.rstrip('.')} {self.where}: {shown(observation)}; the space is {space}.",
            )
        elif remarks:
            self._converted = self._converted or remarks[0].rstrip(".")
        is_mutable = isinstance(observation, (np.ndarray, dict))
        self._reuses_arrays |= is_mutable and observation is self._given
        self._given = observation


def _dead_end(spec: ActionSpec, choices: ChoiceMasks) -> str | None:
    """Return what has no legal choice, in words."""
    legal = choices.legal[0]
    for head, name in enumerate(spec.names[: spec.n_discrete]):
        if not legal[head].any():
            return f"head {name!r} without a legal choice"
    for condition in choices.conditions:
        # Given another head than the op, it only binds where the op reads the child.
        if not (spec.is_independent or condition.parent == spec.op_index):
            continue
        child, parent = spec.names[condition.child], spec.names[condition.parent]
        table = condition.table if condition.table.ndim == 2 else condition.table[0]
        left = (table & legal[condition.child, : table.shape[1]]).any(1)
        for choice in torch.nonzero(legal[condition.parent, : len(table)] & ~left).flatten():
            return (
                f"head {child!r} without a legal choice when {parent!r} is {int(choice)}, "
                "which is legal"
            )
    return None


# -- values in words ------------------------------------------------------------------------------


def ask_gymnasium(env: Env, method: Literal["reset", "step"], result: Any) -> list[str]:
    """Return what Gymnasium's checker of a method remarks on a result of it."""

    @wraps(env.reset)  # whose signature the checker looks at
    def give(*_: Any, **__: Any) -> Any:
        return result

    given: Any = SimpleNamespace(reset=give, step=give, observation_space=env.observation_space)
    if method == "reset":
        return remarks_of(lambda: env_reset_passive_checker(given))
    return remarks_of(lambda: env_step_passive_checker(given, None))


def remarks_of(check: Callable[[], object]) -> list[str]:
    """Return what a checker of Gymnasium warns of, and why it fails, if it does."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check()
            failure = list[str]()
        except Exception as error:
            failure = [str(error)]
    # Gymnasium writes warnings in colour.
    said = [re.sub(r"\x1b\[\d+m|WARN: ", "", str(one.message)) for one in caught]
    return said + failure


def _is_inside(space: Any, value: Any) -> bool:
    """Return whether a value is in a space, if numbers may be of another precision."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts: Any = cast(Any, space).spaces
        keys = parts if hasattr(parts, "keys") else range(len(parts))
        return all(_is_inside(parts[key], value[key]) for key in keys)
    if is_box(space):
        array: Any = np.asarray(value)
        is_same_kind = np.can_cast(array.dtype, space.dtype, "same_kind")
        return is_same_kind and space.contains(array.astype(space.dtype))
    return bool(space.contains(value))


def _is_finite_number(reward: Any) -> bool:
    try:
        return np.ndim(reward) == 0 and math.isfinite(float(reward))
    except (TypeError, ValueError):
        return False


def describe_error(error: BaseException) -> str:
    """Return what was raised, and where."""
    lines = str(error).strip().splitlines()
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{': ' + lines[0] if lines else ''}{place}."
