"""The tasks of the learning benchmark: four of Gymnasium's and nine small ones.

The environments with masks raise an error if an illegal action is taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

STEP_COST = 0.01
MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])


class MaskedGrid(gymnasium.Env[np.ndarray, int]):
    """Four rooms of 3x3 cells: walk from a random cell to another; walls are masked.

    Reaching the goal is worth 1, every step costs 0.01, and an episode ends after 60 steps.
    """

    SIZE = 7
    DOORS = ((1, 3), (5, 3), (3, 1), (3, 5))

    observation_space = spaces.Box(0.0, 1.0, (4 * SIZE,), np.float32)
    action_space = spaces.Discrete(len(MOVES))

    def __init__(self) -> None:
        middle = self.SIZE // 2
        is_free = np.ones((self.SIZE, self.SIZE), np.bool_)
        is_free[middle, :] = is_free[:, middle] = False
        for door in self.DOORS:
            is_free[door] = True
        self.cells = np.argwhere(is_free)
        # [row, column, move]: whether the cell that a move leads to is free.
        around = np.pad(is_free, 1)
        self.legal = np.stack(
            [around[:-2, 1:-1], around[2:, 1:-1], around[1:-1, :-2], around[1:-1, 2:]], -1
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Draw a start and a goal."""
        super().reset(seed=seed, options=options)
        self.position, self.goal = self.np_random.choice(self.cells, 2, replace=False)
        self.time = 0
        return self._observe(), {}

    def action_masks(self) -> np.ndarray:
        """Return the moves that do not end in a wall or outside."""
        return self.legal[tuple(self.position)]

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move by one cell."""
        if not self.action_masks()[int(action)]:
            raise ValueError(f"move {action} from {self.position} is illegal")
        self.position = self.position + MOVES[int(action)]
        self.time += 1
        is_there = bool((self.position == self.goal).all())
        return self._observe(), is_there - STEP_COST, is_there, self.time >= 60, {}

    def _observe(self) -> np.ndarray:
        seen = np.zeros((4, self.SIZE), np.float32)
        seen[range(4), [*self.position, *self.goal]] = 1.0
        return seen.ravel()


class Knapsack(gymnasium.Env[np.ndarray, np.ndarray]):
    """Pack items of random weights and values into bags: an action is an item and a bag.

    An item is masked once it is used or fits in no bag, a bag if no item fits in it. An item that
    does not fit in the bag it is put into is lost. The return is the share of the best possible
    value.
    """

    N_ITEMS, N_BAGS = 8, 2
    ASSIGNMENTS = np.array(list(itertools.product(range(N_BAGS + 1), repeat=N_ITEMS)))
    """``[6561, 8]`` the bag of each item; the last number is none."""
    IN_BAG = (np.arange(N_BAGS)[:, None, None] == ASSIGNMENTS).astype(np.float64)

    observation_space = spaces.Box(0.0, 1.0, (3 * N_ITEMS + N_BAGS,), np.float32)
    action_space = spaces.MultiDiscrete([N_ITEMS, N_BAGS])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Draw items and bags."""
        super().reset(seed=seed, options=options)
        self.weights = self.np_random.uniform(0.1, 0.6, self.N_ITEMS)
        self.values = self.np_random.uniform(0.1, 1.0, self.N_ITEMS) ** 2
        self.room = self.np_random.uniform(0.3, 0.7, self.N_BAGS)
        self.is_left = np.ones(self.N_ITEMS, np.bool_)
        self.best = self._best_value()
        # At least one item must fit, or there is nothing to decide.
        return (self._observe(), {}) if self.best > 0 else self.reset()

    def action_masks(self) -> np.ndarray:
        """Return which items and which bags can be chosen, side by side."""
        fits = self._fits()
        return np.concatenate([fits.any(1), fits.any(0)])

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Put an item into a bag."""
        item, bag = (int(choice) for choice in action)
        fits = self._fits()
        if not (fits[item].any() and fits[:, bag].any()):
            raise ValueError(f"action {action} is illegal")
        self.is_left[item] = False
        reward = 0.0
        if fits[item, bag]:
            self.room[bag] -= self.weights[item]
            reward = float(self.values[item] / self.best)
        return self._observe(), reward, not self._fits().any(), False, {}

    def _fits(self) -> np.ndarray:
        """Return which of the items fits in which bag, ``[8, 2]``."""
        return (self.weights[:, None] <= self.room) & self.is_left[:, None]

    def _best_value(self) -> float:
        loads = self.IN_BAG @ self.weights
        is_possible = (loads <= self.room[:, None]).all(0)
        packed = (self.ASSIGNMENTS < self.N_BAGS) @ self.values
        return float(packed[is_possible].max())

    def _observe(self) -> np.ndarray:
        left = self.is_left
        parts = (self.weights * left, self.values * left, left, self.room)
        return np.concatenate(parts).astype(np.float32)


class Recall(gymnasium.Env[np.ndarray, int]):
    """See one of four symbols, wait for four steps of noise, then name it: worth 1 if right."""

    N_SYMBOLS, DELAY = 4, 4

    observation_space = spaces.Box(-1.0, 1.0, (N_SYMBOLS + 3,), np.float32)
    action_space = spaces.Discrete(N_SYMBOLS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Draw a symbol and show it."""
        super().reset(seed=seed, options=options)
        self.symbol = int(self.np_random.integers(self.N_SYMBOLS))
        self.time = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Wait, or answer at the end."""
        is_over = self.time > self.DELAY
        reward = float(is_over and int(action) == self.symbol)
        self.time += 1
        return self._observe(), reward, is_over, False, {}

    def _observe(self) -> np.ndarray:
        seen = np.zeros(self.N_SYMBOLS + 3, np.float32)
        if self.time == 0:
            seen[self.symbol] = 1.0
        seen[self.N_SYMBOLS] = self.time > self.DELAY
        seen[-2:] = self.np_random.uniform(-1.0, 1.0, 2)
        return seen


class MaskedRecall(gymnasium.Env[np.ndarray, int]):
    """See one of eight symbols, wait for four steps, then name it among four that are legal.

    While waiting, waiting and two random symbols are legal; a symbol named too early costs 0.1.
    The right answer is worth 1.
    """

    N_SYMBOLS, DELAY, N_OFFERED = 8, 4, 4
    WAIT = N_SYMBOLS

    observation_space = spaces.Box(0.0, 1.0, (N_SYMBOLS + 1,), np.float32)
    action_space = spaces.Discrete(N_SYMBOLS + 1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Draw a symbol and show it."""
        super().reset(seed=seed, options=options)
        self.symbol = int(self.np_random.integers(self.N_SYMBOLS))
        self.time = 0
        self._draw_masks()
        return self._observe(), {}

    def action_masks(self) -> np.ndarray:
        """Return the actions that are legal now."""
        return self.legal.copy()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Wait, or name a symbol."""
        if not self.legal[int(action)]:
            raise ValueError(f"action {action} is illegal")
        is_over = self.time > self.DELAY
        if is_over:
            reward = float(int(action) == self.symbol)
        else:
            reward = 0.0 if int(action) == self.WAIT else -0.1
        self.time += 1
        self._draw_masks()
        return self._observe(), reward, is_over, False, {}

    def _draw_masks(self) -> None:
        self.legal = np.zeros(self.N_SYMBOLS + 1, np.bool_)
        if self.time > self.DELAY:
            others = [number for number in range(self.N_SYMBOLS) if number != self.symbol]
            offered = self.np_random.choice(others, self.N_OFFERED - 1, replace=False)
            self.legal[[self.symbol, *offered]] = True
        else:
            self.legal[self.np_random.choice(self.N_SYMBOLS, 2, replace=False)] = True
            self.legal[self.WAIT] = True

    def _observe(self) -> np.ndarray:
        seen = np.zeros(self.N_SYMBOLS + 1, np.float32)
        if self.time == 0:
            seen[self.symbol] = 1.0
        seen[-1] = self.time > self.DELAY
        return seen


class Sequence(gymnasium.Env[np.ndarray, int]):
    """See three of four symbols, one after another, then name them in order: worth 1 each."""

    N_SYMBOLS, LENGTH = 4, 3

    observation_space = spaces.Box(0.0, 1.0, (N_SYMBOLS + 1,), np.float32)
    action_space = spaces.Discrete(N_SYMBOLS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Draw the symbols and show the first."""
        super().reset(seed=seed, options=options)
        self.symbols = self.np_random.integers(self.N_SYMBOLS, size=self.LENGTH)
        self.time = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Watch, or name a symbol."""
        place = self.time - self.LENGTH
        reward = float(place >= 0 and int(action) == self.symbols[place])
        self.time += 1
        return self._observe(), reward, self.time == 2 * self.LENGTH, False, {}

    def _observe(self) -> np.ndarray:
        seen = np.zeros(self.N_SYMBOLS + 1, np.float32)
        seen[self.symbols[self.time] if self.time < self.LENGTH else self.N_SYMBOLS] = 1.0
        return seen


class Corridor(gymnasium.Env[np.ndarray, int]):
    """See a sign, walk ten steps to the end of a corridor, then turn as the sign said.

    The right turn is worth 1, and every step costs 0.01; an episode ends after 60 steps.
    """

    LENGTH = 10
    FORWARD, BACK = 0, 1

    observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
    action_space = spaces.Discrete(4)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Draw the sign and show it."""
        super().reset(seed=seed, options=options)
        self.turn = int(self.np_random.integers(2))
        self.place = self.time = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Walk, or turn: a turn before the end of the corridor does nothing."""
        has_turned = self.place == self.LENGTH and int(action) > self.BACK
        is_right = has_turned and int(action) - 2 == self.turn
        if int(action) <= self.BACK:
            way = 1 if int(action) == self.FORWARD else -1
            self.place = min(max(self.place + way, 0), self.LENGTH)
        self.time += 1
        return self._observe(), is_right - STEP_COST, has_turned, self.time >= 60, {}

    def _observe(self) -> np.ndarray:
        seen = np.zeros(3, np.float32)
        if self.time == 0:
            seen[self.turn] = 1.0
        seen[2] = self.place == self.LENGTH
        return seen


class HiddenVelocities(gymnasium.ObservationWrapper[np.ndarray, Any, Any]):
    """CartPole whose observations are the position of the cart and the angle of the pole."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1", disable_env_checker=True))
        space = self.env.observation_space
        assert isinstance(space, spaces.Box)
        self.observation_space = spaces.Box(space.low[::2], space.high[::2], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Leave out the velocities."""
        return observation[::2]


class Corners(gymnasium.Env[dict[str, Any], int]):
    """Walk to one of four corners of an open grid; the observation is a ``Dict``.

    Rewards are those of :class:`MaskedGrid`. A step against the border stays in place.
    """

    SIZE = 7

    observation_space = spaces.Dict(
        {
            "position": spaces.Box(-1.0, 1.0, (2,), np.float32),
            "corner": spaces.Discrete(4),
            "time_left": spaces.Box(0.0, 1.0, (1,), np.float32),
        }
    )
    action_space = spaces.Discrete(len(MOVES))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Draw a start and a corner."""
        super().reset(seed=seed, options=options)
        self.corner = int(self.np_random.integers(4))
        self.goal = np.array(divmod(self.corner, 2)) * (self.SIZE - 1)
        self.position = self.np_random.integers(1, self.SIZE - 1, 2)
        self.time = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Move by one cell."""
        self.position = (self.position + MOVES[int(action)]).clip(0, self.SIZE - 1)
        self.time += 1
        is_there = bool((self.position == self.goal).all())
        return self._observe(), is_there - STEP_COST, is_there, self.time >= 60, {}

    def _observe(self) -> dict[str, Any]:
        return {
            "position": (self.position / (self.SIZE // 2) - 1.0).astype(np.float32),
            "corner": self.corner,
            "time_left": np.array([1.0 - self.time / 60], np.float32),
        }


class Catch(gymnasium.Env[np.ndarray, int]):
    """Catch a falling ball with a paddle: 36x36 images in bytes, 1 if caught and -1 if not."""

    SIZE, SCALE = 9, 4

    observation_space = spaces.Box(0, 255, (SIZE * SCALE, SIZE * SCALE, 1), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Drop a ball."""
        super().reset(seed=seed, options=options)
        self.row, self.column = 0, int(self.np_random.integers(self.SIZE))
        self.paddle = self.SIZE // 2
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move the paddle left, not at all, or right."""
        self.paddle = min(max(self.paddle + int(action) - 1, 0), self.SIZE - 1)
        self.row += 1
        is_over = self.row == self.SIZE - 1
        reward = (1.0 if self.paddle == self.column else -1.0) if is_over else 0.0
        return self._observe(), reward, is_over, False, {}

    def _observe(self) -> np.ndarray:
        image = np.zeros((self.SIZE, self.SIZE), np.uint8)
        image[-1, self.paddle] = 128
        image[self.row, self.column] = 255
        return image.repeat(self.SCALE, 0).repeat(self.SCALE, 1)[..., None]


class ReplaceIllegal(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Replaces an illegal action by a random legal one, for algorithms that know no masks."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take the action, or a legal one."""
        legal = self.get_wrapper_attr("action_masks")()
        if not legal[int(action)]:
            action = int(self.unwrapped.np_random.choice(np.flatnonzero(legal)))
        return self.env.step(action)


@dataclass(frozen=True, kw_only=True)
class Task:
    """An environment of the benchmark and how long to train on it."""

    make: Callable[[], gymnasium.Env[Any, Any]]
    steps: int
    """Environment steps of training, a multiple of 2048: whole rollouts for every library."""
    best: float
    """Expected return of a perfect policy; for Gymnasium's environments, of well-tuned agents."""
    kind: Literal["vector", "image", "dict"] = "vector"
    has_masks: bool = False
    needs_memory: bool = False


def _gym(name: str) -> Callable[[], gymnasium.Env[Any, Any]]:
    return lambda: gymnasium.make(name, disable_env_checker=True)


TASKS = {
    "CartPole-v1": Task(make=_gym("CartPole-v1"), steps=24_576, best=500.0),
    "Acrobot-v1": Task(make=_gym("Acrobot-v1"), steps=24_576, best=-75.0),
    "Pendulum-v1": Task(make=_gym("Pendulum-v1"), steps=49_152, best=-150.0),
    "MountainCarContinuous-v0": Task(
        make=_gym("MountainCarContinuous-v0"), steps=49_152, best=94.0
    ),
    "masked grid": Task(make=MaskedGrid, steps=40_960, best=0.947, has_masks=True),
    "masked knapsack": Task(make=Knapsack, steps=24_576, best=1.0, has_masks=True),
    "recall": Task(make=Recall, steps=24_576, best=1.0, needs_memory=True),
    "sequence": Task(make=Sequence, steps=49_152, best=3.0, needs_memory=True),
    "corridor": Task(make=Corridor, steps=49_152, best=0.89, needs_memory=True),
    "hidden velocities": Task(make=HiddenVelocities, steps=49_152, best=500.0, needs_memory=True),
    "masked recall": Task(
        make=MaskedRecall, steps=24_576, best=1.0, has_masks=True, needs_memory=True
    ),
    "dict": Task(make=Corners, steps=24_576, best=0.94, kind="dict"),
    "images": Task(make=Catch, steps=24_576, best=1.0, kind="image"),
}
