"""What an environment promises, checked while random legal actions are taken."""

from __future__ import annotations

import copy
import math
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from esper.errors import EsperError, shown, type_of
from esper.formatting import html_table, many
from esper.simic.policy.action_spec import ActionSpec, action_parts
from esper.simic.policy.heads import ActionHeads
from esper.simic.policy.mask_reader import MaskReader, as_choice_masks
from esper.simic.policy.masks import ChoiceMasks
from esper.simic.rollout.actions import ActionCodec
from esper.simic.rollout.mask_sources import (
    MASK_KEYS,
    OBSERVED_MASK,
    Env,
    MaskSource,
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
        """Report something that a user may want to know."""
        if not self.has_problem(check):
            self.append(Finding("note", check, message))

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
                f"step({shown(action)}) {self.where} raised {describe_error(error)}",
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
        self.report.ok("reset", f"worked {many(1 + len(self.episodes), 'time')}")
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

    def _check_observation(self, observation: Any) -> None:
        level, wrong = _misfit(self.env.observation_space, observation, "the observation")
        if level == "problem":
            self.report.problem("observations", f"{wrong} {self.where}.")
        elif level == "note":
            self._converted = self._converted or wrong
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

    def __init__(self, env: Env, spec: ActionSpec, report: Findings) -> None:
        self.spec, self.report, self._env = spec, report, env
        self._source = MaskSource(MaskReader(spec, torch.device("cpu"), env.action_space))
        self._method: Callable[[], Any] | None = None
        self._n_forbidden = 0
        try:
            self._method = mask_method(env)
        except EsperError as error:
            self._reject(str(error))

    @property
    def is_broken(self) -> bool:
        """Whether the legal actions are unknown."""
        return self.report.has_problem("masks")

    def read(self, info: dict[str, Any], where: str) -> ChoiceMasks | None:
        """Return the legal choices; None if all are, or if it cannot be known."""
        source, found = self._source, list[ChoiceMasks]()
        offered = next((key for key in MASK_KEYS if key in info), None)
        try:
            source.find(offered, by_method=self._method is not None)
            if source.kind is None:
                self._find_unread()
                return None
            if source.kind != "method":
                source.require([source.kind in info])
                found += self._parse(f"info[{source.kind!r}]", info[source.kind], where)
        except EsperError as error:
            self._reject(str(error))
        if self._method is not None and not self.is_broken:
            try:
                found += self._parse("action_masks()", self._method(), where)
            except Exception as error:
                self._reject(f"action_masks() raised {describe_error(error)} {where}")
        if len(found) == 2 and not torch.equal(found[0].legal, found[1].legal):
            self._reject(f"info[{source.kind!r}] differs from action_masks() {where}.")
        return None if self.is_broken else found[0]

    def summarize(self, steps: str) -> None:
        """Report that masks are right, or that there are none."""
        kind = self._source.kind
        if kind is None:
            if self.spec.sizes and not any(found.check == "masks" for found in self.report):
                self.report.ok("masks", "none; every action is legal")
            return
        sources = [f"info[{kind!r}]"] * (kind != "method")
        sources += ["action_masks()"] * (self._method is not None)
        text = f"{' and '.join(sources)} at every reset and step"
        if self._n_forbidden:
            self.report.ok("masks", text)
        else:
            never = f"{text}, but nothing was ever illegal during {steps}."
            self.report.note("masks", never)

    def _find_unread(self) -> None:
        """Report masks that PPO would not read."""
        if self._source.steps > 0:
            return
        reject_unread_masks(self._env.has_wrapper_attr("action_mask"))
        space = self._env.observation_space
        if isinstance(space, spaces.Dict) and set(cast(Any, space)) & set(MASK_KEYS):
            self.report.note("masks", OBSERVED_MASK)

    def _parse(self, source: str, mask: Any, where: str) -> list[ChoiceMasks]:
        """Return the masks in a list, or nothing if they are wrong."""
        try:
            choices = self._source.reader.read_each([mask])
            as_choice_masks(self.spec, choices, 1, torch.device("cpu"))
        except EsperError as error:
            self._reject(f"{source} {where}: {error}")
            return []
        except Exception as error:
            self._reject(f"{source} cannot be read {where}: {describe_error(error)}")
            return []
        self._n_forbidden += (
            sum(self.spec.sizes)
            - int(choices.legal.sum())
            + sum(int((~condition.table).sum()) for condition in choices.conditions)
        )
        dead = self._dead_end(choices)
        if dead is not None:
            self._reject(f"{source} leaves {dead} {where}.")
        return [] if dead is not None else [choices]

    def _dead_end(self, choices: ChoiceMasks) -> str | None:
        """Return what has no legal choice, in words."""
        spec, legal = self.spec, choices.legal[0]
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

    def _reject(self, message: str) -> None:
        self.report.problem("masks", message)


# -- values in words ------------------------------------------------------------------------------


def _misfit(space: spaces.Space[Any], value: Any, name: str) -> tuple[Level, str]:
    """Return whether a value belongs to a space (a note: if it is converted), and why not."""
    parts = _parts(space, value)
    if parts is None:
        wrong = f"{name} is {_kind(value)} with other keys or length than the space {shown(space)}"
        return "problem", wrong
    if parts:
        found = [_misfit(part, one, f"{name}[{key!r}]") for key, part, one in parts]
        return min(found, key=lambda one: ("problem", "note", "ok").index(one[0]))
    if not isinstance(space, spaces.Box):
        is_inside = space.contains(value)
        return "ok" if is_inside else "problem", f"{name} is {shown(value)}, outside {space}"
    try:
        array: NDArray[Any] = np.asarray(value)
    except ValueError:
        wrong = f"{name} is {_kind(value)} whose parts differ in shape; a NumPy array is needed"
        return "problem", wrong
    if array.shape != space.shape:
        return "problem", f"{name} has shape {array.shape}; the space has {space.shape}"
    if not np.can_cast(array.dtype, cast(Any, space.dtype), "same_kind"):
        return "problem", f"{name} has dtype {array.dtype}; the space has {space.dtype}"
    if not np.isfinite(array).all():
        bad = array[~np.isfinite(array)].flat[0]
        return "problem", f"{name} holds {bad}, which is not finite,"
    outside = (array < space.low) | (array > space.high)
    if outside.any():
        at = tuple(int(i) for i in np.argwhere(outside)[0])
        low, high = space.low[at], space.high[at]
        return "problem", f"{name} is {array[at]} at {list(at)}, outside {low} to {high},"
    if not isinstance(value, (np.ndarray, np.generic)):
        return "note", f"{name} is {_kind(value)} and not a NumPy array"
    if value.dtype != space.dtype:
        return "note", f"{name} has dtype {value.dtype} and the space {space.dtype}"
    return "ok", ""


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


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    if isinstance(value, tuple):
        return f"a tuple of {len(cast('tuple[Any, ...]', value))}"
    return type_of(value)


def describe_error(error: BaseException) -> str:
    """Return what was raised, and where."""
    lines = str(error).strip().splitlines()
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{': ' + lines[0] if lines else ''}{place}."
