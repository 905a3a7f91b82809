"""Train PPO on an environment of your own: factored actions, masks, and a task that needs memory.

A courier sees a colour for one step, walks down a corridor of unknown length, and must then open
the door of that colour. One head of the action chooses between walking and opening; the other
chooses the door and matters only when a door is opened. Masks rule out what is impossible: opening
a door in the corridor, and one of the wrong doors, which is locked. Opening a door terminates the
episode. The end of the shift truncates it, and the critic's estimate stands in for the rest.

Run:  python examples/ppo_on_your_environment.py
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from esper.simic import PPO, ActionSpec, evaluate, linear

WALK, OPEN = 0, 1
N_DOORS = 4
CORRIDOR = (2, 6)
SHIFT = 12
CUT_SHORT = 0.02
STEP_COST = 0.02


class CourierEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """Remember the colour, walk down the corridor, open the right door."""

    observation_space = spaces.Box(0.0, 1.0, (N_DOORS + 2 + N_DOORS,), np.float32)
    action_space = spaces.MultiDiscrete([2, N_DOORS])
    # Optional: names for the heads, and which of them each move reads. A head then learns only
    # from the steps at which it mattered.
    action_spec = ActionSpec(
        names=("move", "door"),
        sizes=(2, N_DOORS),
        op_head="move",
        relevance=((True, False), (True, True)),  # walking reads no door
    )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Draw a colour, a corridor and a locked door."""
        super().reset(seed=seed, options=options)
        self.colour = int(self.np_random.integers(N_DOORS))
        self.locked = int((self.colour + 1 + self.np_random.integers(N_DOORS - 1)) % N_DOORS)
        self.left_to_walk = int(self.np_random.integers(CORRIDOR[0], CORRIDOR[1] + 1))
        self.time = 0
        return self._observe(), self._info()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Walk, wait at the doors, or open one."""
        move, door = int(action[0]), int(action[1])
        opens = move == OPEN
        reward = -STEP_COST + float(opens and door == self.colour)
        self.left_to_walk = max(self.left_to_walk - 1, 0)
        self.time += 1
        is_over = self.time >= SHIFT or self.np_random.random() < CUT_SHORT
        return self._observe(), reward, opens, bool(is_over and not opens), self._info()

    def _observe(self) -> np.ndarray:
        observation = np.zeros(self.observation_space.shape, np.float32)
        if self.time == 0:
            observation[self.colour] = 1.0
        observation[N_DOORS] = float(self.left_to_walk == 0)
        observation[N_DOORS + 1] = self.time / SHIFT
        if self.left_to_walk == 0:
            observation[N_DOORS + 2 + self.locked] = 1.0
        return observation

    def _info(self) -> dict[str, Any]:
        at_doors = self.left_to_walk == 0
        doors = np.ones(N_DOORS, np.int8)
        if at_doors:
            doors[self.locked] = 0
        return {"action_mask": (np.array([1, at_doors], np.int8), doors), "colour": self.colour}


def best_possible_return(n_episodes: int, seed: int) -> float:
    """Return the mean return of a player who knows the colour and walks straight to the door."""
    env, returns = CourierEnv(), []
    for episode in range(n_episodes):
        _, info = env.reset(seed=seed + episode)
        total, is_over = 0.0, False
        while not is_over:
            can_open = bool(info["action_mask"][0][OPEN])
            action = np.array([OPEN if can_open else WALK, info["colour"]])
            _, reward, terminated, truncated, info = env.step(action)
            total, is_over = total + reward, terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def main(steps: int = 50_000, n_episodes: int = 500, seed: int = 0) -> tuple[float, float, float]:
    """Train a model, then compare it with the untrained model and with the best possible play."""
    torch.set_num_threads(1)  # networks this small train faster on one thread
    started = time.monotonic()
    model = PPO(
        CourierEnv,
        "lstm",
        n_envs=32,
        n_steps=64,
        seed=seed,
        learning_rate=linear(2e-3),
        ent_coef=0.01,
    )
    before = evaluate(model, n_episodes=n_episodes)
    model.learn(steps, progress=True)
    after = evaluate(model, n_episodes=n_episodes)
    best = best_possible_return(n_episodes, seed=1_000_000)
    print(f"mean return over {n_episodes} held-out episodes, in {time.monotonic() - started:.0f} s")
    print(f"  before training  {before.mean:6.3f}  [{before.low:.3f}, {before.high:.3f}]")
    print(f"  after training   {after.mean:6.3f}  [{after.low:.3f}, {after.high:.3f}]")
    print(f"  best possible    {best:6.3f}")
    return before.mean, after.mean, best


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is too small; it must be at least 1")
    return value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=positive, default=50_000, help="environment steps")
    parser.add_argument(
        "--episodes", type=positive, default=500, help="held-out episodes for the comparison"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, actions and episodes")
    arguments = parser.parse_args()
    main(arguments.steps, arguments.episodes, arguments.seed)
