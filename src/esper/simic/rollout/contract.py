"""What an environment promises, checked while random legal actions are taken."""

from __future__ import annotations

import copy
import math
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from esper.errors import EsperError, type_of
from esper.formatting import html_table, many
from esper.simic.policy.action_spec import ActionSpec, action_parts
from esper.simic.policy.heads import ActionHeads
from esper.simic.policy.masks import ChoiceMasks, as_choice_masks
from esper.simic.rollout.actions import ActionCodec, MaskReader
from esper.simic.rollout.mask_sources import (
    MASK_KEYS,
    OBSERVED_MASK,
    Env,
    mask_method,
    reject_unread_masks,
)

Level = Literal["ok", "note", "problem"]

ILLEGAL_FLAGS = ("illegal_action", "invalid_action")
"""Keys of ``info`` by which an environment says that it did not accept an action."""


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
    """The outcomes of all checks, in their order. Printing them gives a line for each."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    def __repr__(self) -> str:
        return f"{many(len(self), 'finding')}\n{self}"

    def _repr_html_(self) -> str:
        rows = ((one.level, one.check, one.message) for one in self)
        return html_table(("", "check", "found"), rows, n_left=3)


@dataclass
class Report:
    """Findings so far; only the first problem of each check is kept."""

    findings: list[Finding] = field(default_factory=list[Finding])

    def add(self, level: Level, check: str, message: str) -> None:
        """Keep a finding, unless the check has a problem already."""
        if self.has_problem(check):
            return
        if level == "problem":
            self.findings = [found for found in self.findings if found.check != check]
        self.findings.append(Finding(level, check, message))

    def problem(self, check: str, message: str) -> None:
        """Report that something is wrong."""
        self.add("problem", check, message)

    def note(self, check: str, message: str) -> None:
        """Report something that a user may want to know."""
        self.add("note", check, message)

    def ok(self, check: str, message: str) -> None:
        """Report that a check passed."""
        self.add("ok", check, message)

    def has_problem(self, check: str) -> bool:
        """Return whether a check found a problem."""
        return any(found.check == check and found.level == "problem" for found in self.findings)


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

    def __init__(self, env: Env, spec: ActionSpec, report: Report, seed: int) -> None:
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
        """How observations differ in type from the space, in words."""
        self._info: dict[str, Any] = {}
        self._draw = _ActionDrawer(env.action_space, spec, seed)
        self._masks = _MaskWatch(env, spec, report)

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
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            self.report.problem(
                "reset", f"{call} returned {_kind(result)}; (observation, info dict) is needed."
            )
            return False
        observation, self._info = result
        self._check_observation(observation)
        self.observation = copy.deepcopy(observation)
        return True

    def step(self) -> bool:
        """Take a random legal action; return whether the game can go on."""
        choices = self._masks.read(self._info, self.where)
        action = None if self._masks.is_broken else self._choose(choices)
        if action is None:
            return False
        started = time.perf_counter()
        try:
            result: Any = self.env.step(copy.deepcopy(action))
        except Exception as error:
            self.report.problem(
                "legal actions",
                f"step({shorten(action)}) {self.where} raised {describe_error(error)}",
            )
            return False
        self.seconds += time.perf_counter() - started
        self.n_steps, self._length = self.n_steps + 1, self._length + 1
        if not (isinstance(result, tuple) and len(cast("tuple[Any, ...]", result)) == 5):
            self.report.problem(
                "step",
                f"step() returned {_kind(result)}; (observation, reward, terminated, truncated, "
                "info) is needed.",
            )
            return False
        return self._take(action, cast("tuple[Any, ...]", result))

    def summarize(self) -> None:
        """Report what was found to be right."""
        steps = f"{self.n_steps} random steps"
        self.report.ok("reset", f"worked {count(1 + len(self.episodes), 'time')}")
        if self._reuses_arrays:
            self.report.note(
                "observations",
                "the same array is returned again and again; return a copy, because Gymnasium's "
                "SyncVectorEnv may keep an episode's last observation while the next one is "
                "written to it.",
            )
        elif self._converted is not None:
            self.report.note("observations", f"{self._converted}, so each is converted.")
        else:
            self.report.ok("observations", f"in the observation space during {steps}")
        self._masks.summarize(steps)
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

    def _choose(self, choices: ChoiceMasks | None) -> Any:
        try:
            return self._draw(choices)
        except EsperError as error:
            self.report.problem("masks", f"{self.where}: {error}")
            return None

    def _take(self, action: Any, result: tuple[Any, ...]) -> bool:
        """Check and record a step; reset if it ended the episode."""
        observation, reward, terminated, truncated, info = result
        if not isinstance(info, dict):
            self.report.problem("step", f"info is {_kind(info)} {self.where}; a dict is needed.")
            return False
        self._info = cast("dict[str, Any]", info)
        self._check_observation(observation)
        self._check_reward(reward)
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(value, (bool, np.bool_)):
                self.report.problem(
                    "ends", f"{name} is {value!r} {self.where}; True or False is needed."
                )
        for flag in ILLEGAL_FLAGS:
            if np.any(self._info.get(flag, False)):
                self.report.problem(
                    "legal actions",
                    f"info[{flag!r}] is true after step({shorten(action)}) {self.where}, but the "
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

    def _check_observation(self, observation: Any) -> None:
        wrong = _misfit(self.env.observation_space, observation, "the observation")
        if wrong is not None:
            self.report.problem("observations", f"{wrong} {self.where}.")
        elif self._converted is None:
            self._converted = _conversion(self.env.observation_space, observation, "observation")
        is_mutable = isinstance(observation, (np.ndarray, dict))
        self._reuses_arrays |= is_mutable and observation is self._given
        self._given = observation

    def _check_reward(self, reward: Any) -> None:
        is_scalar = isinstance(reward, (bool, int, float, np.generic)) or (
            isinstance(reward, np.ndarray) and reward.ndim == 0
        )
        if not is_scalar:
            self.report.problem(
                "rewards", f"the reward is {_kind(reward)} {self.where}; a number is needed."
            )
        elif not math.isfinite(float(cast(Any, reward))):
            self.report.problem(
                "rewards", f"the reward is {reward} {self.where}; it must be finite."
            )


class _ActionDrawer:
    """Draws uniformly among the legal actions."""

    def __init__(self, space: spaces.Space[Any], spec: ActionSpec, seed: int) -> None:
        self._spec, self._heads = spec, ActionHeads(spec)
        self._codec = ActionCodec(space, spec)
        self._generator = torch.Generator().manual_seed(seed)
        parts = [cast(Any, part) for _, part in action_parts(space)]
        self._boxes: list[spaces.Box[Any]] = [one for one in parts if isinstance(one, spaces.Box)]
        for number, box in enumerate(self._boxes):
            box.seed(seed + number)

    def __call__(self, choices: ChoiceMasks | None) -> Any:
        legal = as_choice_masks(self._spec, choices, 1, torch.device("cpu"))
        with torch.no_grad():
            outputs = torch.zeros(1, self._heads.n_outputs)
            actions = self._heads.draw(outputs, legal, self._generator)[0]
        numbers = None
        if self._boxes:
            drawn = [np.asarray(box.sample(), np.float32).ravel() for box in self._boxes]
            numbers = np.concatenate(drawn)[None]
        return self._codec.each(actions.numpy(), numbers)[0]


# -- masks ----------------------------------------------------------------------------------------


class _MaskWatch:
    """Reads what an environment says is legal, and reports what is wrong with it."""

    def __init__(self, env: Env, spec: ActionSpec, report: Report) -> None:
        self.spec, self.report = spec, report
        self._reader = MaskReader(spec, torch.device("cpu"), env.action_space)
        self._env = env
        self._method: Callable[[], Any] | None = None
        try:
            self._method = mask_method(env)
        except EsperError as error:
            report.problem("masks", str(error))
        self._key: str | None = None
        """Where ``info`` says what is legal; None if it does not."""
        self._is_first = True
        self._n_forbidden = 0

    @property
    def is_broken(self) -> bool:
        """Whether the legal actions are unknown."""
        return self.report.has_problem("masks")

    def read(self, info: dict[str, Any], where: str) -> ChoiceMasks | None:
        """Return the legal choices; None if all are, or if it cannot be known."""
        key = next((key for key in MASK_KEYS if key in info), None)
        if self._is_first:
            self._is_first, self._key = False, key
            self._find_unread()
        if key != self._key:
            gone = "is missing" if self._key else "appears for the first time"
            self._reject(
                f"info[{self._key or key!r}]", f"{gone} {where}; give it at every reset and step."
            )
            return None
        found: list[ChoiceMasks] = []
        if key is not None:
            found += self._parse(f"info[{key!r}]", info[key], where)
        if self._method is not None and not self.is_broken:
            try:
                mask = self._method()
            except Exception as error:
                self._reject("action_masks()", f"raised {describe_error(error)} {where}")
                return None
            found += self._parse("action_masks()", mask, where)
        if self.is_broken or not found:
            return None
        if len(found) == 2 and not torch.equal(found[0].legal, found[1].legal):
            self._reject(f"info[{key!r}]", f"differs from action_masks() {where}.")
        return found[0]

    def summarize(self, steps: str) -> None:
        """Report that masks are right, or that there are none."""
        if not self.spec.sizes:
            return
        if self._key is None and self._method is None:
            if not any(found.check == "masks" for found in self.report.findings):
                self.report.ok("masks", "none; every action is legal")
            return
        sources = [f"info[{self._key!r}]"] * (self._key is not None)
        sources += ["action_masks()"] * (self._method is not None)
        text = f"{' and '.join(sources)} at every reset and step"
        if self._n_forbidden:
            self.report.ok("masks", text)
        else:
            self.report.note("masks", f"{text}, but nothing was ever illegal during {steps}.")

    def _find_unread(self) -> None:
        """Report masks that PPO would not read."""
        if self._key is not None or self._method is not None:
            return
        try:
            reject_unread_masks(self._env.has_wrapper_attr("action_mask"))
        except EsperError as error:
            self.report.problem("masks", str(error))
        space = self._env.observation_space
        if isinstance(space, spaces.Dict) and set(cast(Any, space)) & set(MASK_KEYS):
            self.report.note("masks", OBSERVED_MASK)

    def _parse(self, source: str, mask: Any, where: str) -> list[ChoiceMasks]:
        """Return the masks in a list, or nothing if they are wrong."""
        try:
            choices = self._reader.read_each([mask])
            as_choice_masks(self.spec, choices, 1, torch.device("cpu"))
        except EsperError as error:
            self._reject(source, f"{where}: {error}")
            return []
        except Exception as error:
            self._reject(source, f"cannot be read {where}: {describe_error(error)}")
            return []
        self._n_forbidden += (
            sum(self.spec.sizes)
            - int(choices.legal.sum())
            + sum(int((~condition.table).sum()) for condition in choices.conditions)
        )
        dead = self._dead_end(choices)
        if dead is not None:
            self._reject(source, f"leaves {dead} {where}.")
            return []
        return [choices]

    def _dead_end(self, choices: ChoiceMasks) -> str | None:
        """Return what has no legal choice, in words."""
        spec, legal = self.spec, choices.legal[0]
        for head, name in enumerate(spec.names[: spec.n_discrete]):
            if not legal[head].any():
                return (
                    f"head {name!r} without a legal choice"
                    if spec.n_heads > 1
                    else "no legal action"
                )
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

    def _reject(self, source: str, message: str) -> None:
        self.report.problem("masks", f"{source} {message}")


# -- values in words ------------------------------------------------------------------------------


def _misfit(space: spaces.Space[Any], value: Any, name: str) -> str | None:
    """Return in words why a value does not belong to a space; None if it does."""
    parts = _parts(space, value)
    if parts is None:
        return f"{name} is {_kind(value)} with other keys or length than the space {shorten(space)}"
    if parts:
        each = ((part, one, f"{name}[{key!r}]") for key, part, one in parts)
        return next((wrong for part in each if (wrong := _misfit(*part)) is not None), None)
    if not isinstance(space, spaces.Box):
        return None if space.contains(value) else f"{name} is {shorten(value)}, outside {space}"
    try:
        array: NDArray[Any] = np.asarray(value)
    except ValueError:
        return f"{name} is {_kind(value)} whose parts differ in shape; a NumPy array is needed"
    if array.shape != space.shape:
        return f"{name} has shape {array.shape}; the space has {space.shape}"
    if not np.can_cast(array.dtype, cast(Any, space.dtype), "same_kind"):
        return f"{name} has dtype {array.dtype}; the space has {space.dtype}"
    if not np.isfinite(array).all():
        return f"{name} holds {array[~np.isfinite(array)].flat[0]}, which is not finite,"
    outside = (array < space.low) | (array > space.high)
    if outside.any():
        at = tuple(int(i) for i in np.argwhere(outside)[0])
        low, high = space.low[at], space.high[at]
        return f"{name} is {array[at]} at {list(at)}, outside {low} to {high},"
    return None


def _conversion(space: spaces.Space[Any], value: Any, name: str) -> str | None:
    """Return in words which ``Box`` a fitting value is no array of, or of another dtype."""
    for key, part, one in _parts(space, value) or ():
        wrong = _conversion(part, one, f"{name}[{key!r}]")
        if wrong is not None:
            return wrong
    if not isinstance(space, spaces.Box):
        return None
    if not isinstance(value, (np.ndarray, np.generic)):
        return f"the {name} is {_kind(value)} and not a NumPy array"
    if value.dtype != space.dtype:
        return f"the {name} has dtype {value.dtype} and the space {space.dtype}"
    return None


def _parts(space: spaces.Space[Any], value: Any) -> list[tuple[Any, spaces.Space[Any], Any]] | None:
    """Return key, space and value of each part of a ``Dict`` or ``Tuple``; None if they differ."""
    if isinstance(space, spaces.Dict):
        named = cast("dict[str, spaces.Space[Any]]", space.spaces)
        if not isinstance(value, Mapping) or set(cast(Any, value)) != set(named):
            return None
        return [(key, part, cast(Any, value)[key]) for key, part in named.items()]
    if isinstance(space, spaces.Tuple):
        several = cast("tuple[spaces.Space[Any], ...]", space.spaces)
        if not isinstance(value, tuple) or len(cast(Any, value)) != len(several):
            return None
        return list(zip(range(len(several)), several, cast(Any, value), strict=True))
    return []


def is_same(value: Any, other: Any) -> bool:
    """Return whether two observations, rewards or ends are equal."""
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        first, second = cast("Mapping[Any, Any]", value), cast("Mapping[Any, Any]", other)
        return set(first) == set(second) and all(is_same(first[key], second[key]) for key in first)
    if isinstance(value, (tuple, list)) and isinstance(other, (tuple, list)):
        one, two = cast("list[Any]", value), cast("list[Any]", other)
        return len(one) == len(two) and all(map(is_same, one, two))
    first, second = np.asarray(value), np.asarray(other)
    are_numbers = all(np.issubdtype(one.dtype, np.number) for one in (first, second))
    return np.array_equal(first, second, equal_nan=are_numbers)


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    if isinstance(value, tuple):
        return f"a tuple of {len(cast('tuple[Any, ...]', value))}"
    return type_of(value)


def count(number: int, thing: str) -> str:
    """Return a number of things, such as ``"1 note"`` and ``"2 notes"``."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def shorten(value: Any) -> str:
    """Return a value in one short line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def describe_error(error: BaseException) -> str:
    """Return what was raised, and where."""
    lines = str(error).strip().splitlines()
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{': ' + lines[0] if lines else ''}{place}."
