"""Small environments that several tests share."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Env = gymnasium.Env[Any, Any]


class Picks(Env):
    """Five steps, each of which pays ``scale`` for the one right choice of four."""

    observation_space = spaces.Box(0.0, 1.0, (5,), np.float32)
    action_space = spaces.Discrete(4)
    right = (2, 0, 3, 1, 2)

    def __init__(self, scale: float = 1.0) -> None:
        self.scale, self.time = scale, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        reward = self.scale * float(action == self.right[self.time])
        self.time += 1
        return self.observe(), reward, self.time == 5, False, {}

    def observe(self) -> np.ndarray:
        return np.eye(6, 5, k=0, dtype=np.float32)[self.time]


class Countdown(Env):
    """Counts down from ``start``, pays what is left, and ends in one of two ways."""

    observation_space = spaces.Box(0.0, 100.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, start: int = 3, ends_by: str = "termination") -> None:
        self.start, self.ends_by, self.left = start, ends_by, start

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = self.start
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        ends = self.left == 0
        is_cut = self.ends_by == "truncation"
        return self.observe(), float(self.left), ends and not is_cut, ends and is_cut, {}

    def observe(self) -> np.ndarray:
        return np.array([self.left, self.start], np.float32)


class Masked(Env):
    """Episodes of random length in which other moves are legal at every step.

    ``form`` says how the environment tells so: in ``info`` as a ``"tuple"``, ``"flat"`` array or
    ``"dict"``, or by a ``"method"`` or a ``"method of tuples"``. An illegal action is an error.
    """

    observation_space = spaces.Box(0.0, 1.0, (5,), np.float32)
    action_space = spaces.MultiDiscrete([3, 4])

    def __init__(self, form: str = "tuple") -> None:
        self.form = form
        self.masks = (np.ones(3, np.int8), np.ones(4, np.int8))
        if form == "method":
            self.action_masks = self.current_masks
        if form == "method of tuples":
            self.action_masks = lambda: self.masks

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observe(), self.info()

    def step(self, action: Any) -> Any:
        assert self.masks[0][action[0]], f"{action} is illegal in {self.masks}"
        assert self.masks[1][action[1]], f"{action} is illegal in {self.masks}"
        end = self.np_random.random()
        return self.observe(), float(action[0]), end < 0.05, 0.05 < end < 0.1, self.info()

    def observe(self) -> np.ndarray:
        self.masks = tuple(self.draw_mask(size) for size in (3, 4))  # type: ignore[assignment]
        return self.np_random.random(5).astype(np.float32)

    def draw_mask(self, size: int) -> np.ndarray:
        mask = (self.np_random.random(size) < 0.5).astype(np.int8)
        mask[self.np_random.integers(size)] = 1
        return mask

    def current_masks(self) -> np.ndarray:
        return np.concatenate(self.masks)

    def info(self) -> dict[str, Any]:
        if self.form.startswith("method"):
            return {}
        forms = {
            "tuple": self.masks,
            "flat": self.current_masks(),
            "dict": {"head_1": self.masks[1], "head_0": self.masks[0]},
        }
        return {"action_mask": forms[self.form]}


class Recall(Env):
    """Shows a bit, then nothing, then asks for it: only a memory can tell."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, delay: int = 2) -> None:
        self.delay, self.time, self.bit = delay, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time, self.bit = 0, int(self.np_random.integers(2))
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        is_last = self.time == self.delay
        reward = float(is_last and action == self.bit)
        self.time += 1
        return self.observe(), reward, is_last, False, {}

    def observe(self) -> np.ndarray:
        shown = (2.0 * self.bit - 1.0) if self.time == 0 else 0.0
        return np.array([shown, float(self.time == self.delay)], np.float32)


class Doors(Env):
    """An action of several parts; which doors may be opened depends on the move."""

    observation_space = spaces.Box(0.0, 1.0, (2,))
    action_space = spaces.Dict(
        {
            "move": spaces.Discrete(3),
            "door": spaces.Discrete(3),
            "force": spaces.Box(-2.0, 2.0, (2,)),
        }
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observe(), self.info()

    def observe(self) -> np.ndarray:
        self.table = np.eye(3, dtype=bool) | (self.np_random.random((3, 3)) < 0.3)
        self.moves = np.roll([True, True, False], self.np_random.integers(3))
        return self.np_random.random(2).astype(np.float32)

    def info(self) -> dict[str, Any]:
        return {"action_mask": {"move": self.moves, "door|move": self.table}}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        assert self.moves[action["move"]]
        assert self.table[action["move"], action["door"]]
        is_end = self.np_random.random() < 0.1
        return self.observe(), 0.0, is_end, False, self.info()
