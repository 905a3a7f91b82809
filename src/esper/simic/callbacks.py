"""What happens beside training: evaluation, checkpoints, trackers, and anything of your own."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, cast

import numpy as np

from esper.config import sb3_names
from esper.config.checks import PositiveInt, check
from esper.config.sb3_names import answers_names
from esper.errors import ConfigError, UnsupportedEnvironmentError
from esper.simic.policy.factory import POLICIES
from esper.simic.schedules import takes_arguments
from esper.storage.checkpoint_folder import CheckpointFolder
from esper.telemetry.sinks import has_run, make_tracker, require_tracker

if TYPE_CHECKING:
    from esper.simic.algorithm import PPO
    from esper.simic.evaluation import Evaluated
    from esper.simic.rollout.factory import EnvLike


class Callback:
    """Methods that ``PPO.learn`` calls; override those you need.

    Each gets the model: read ``model.num_timesteps``, ``model.metrics`` and ``model.agent``; call
    ``model.log(name, value)``, ``model.set_rates(learning_rate=...)`` or ``model.stop()``.
    Returning False from any but the last two is the same as ``model.stop()``.
    """

    def on_start(self, model: PPO) -> bool | None:
        """Training starts."""

    def on_step(self, model: PPO) -> bool | None:
        """All environments took a step; ``model.last_step`` has it."""

    def on_rollout_end(self, model: PPO) -> bool | None:
        """A rollout is complete and about to be learned from."""

    def on_update_end(self, model: PPO) -> bool | None:
        """The policy was updated; ``model.metrics`` describes rollout and update."""

    def on_interrupt(self, model: PPO) -> None:
        """Ctrl-C was pressed; ``on_end`` follows."""

    def on_end(self, model: PPO) -> None:
        """Training ends, whether finished, stopped or interrupted."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must be saved for an exact resume, as plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""


class FunctionCallback(Callback):
    """Calls a function of the model after every update."""

    def __init__(self, function: Callable[[PPO], Any]) -> None:
        self._function = function

    def __str__(self) -> str:
        """Return the name of the function."""
        return str(getattr(self._function, "__name__", self._function))

    def on_update_end(self, model: PPO) -> bool | None:
        """Return what the function returns."""
        return self._function(model)


def notify(callbacks: Iterable[Callback], hook: str, model: PPO) -> None:
    """Call one method of each callback; False stops training after the current update.

    Raises:
        ConfigError: If one returns anything but True, False and None.
    """
    for callback in callbacks:
        answer = getattr(callback, hook)(model)
        if answer is None:
            continue
        if not isinstance(answer, (bool, np.bool_)):
            name = str(callback)
            if not isinstance(callback, FunctionCallback):
                name = f"{type(callback).__name__}.{hook}"
            raise ConfigError(
                f"the callback {name} returned {answer!r}; return False to stop training, and True "
                "or nothing to continue."
            )
        if not answer:
            model.stop()


def _claim_folder(model: PPO, folder: Path, kind: str, held: str | None) -> None:
    """Reject a folder that holds files of a kind from another run; remember it as the model's.

    Args:
        model: The model that is about to write to the folder.
        folder: Where.
        kind: What it writes.
        held: What the folder holds of that kind already; None for nothing.
    """
    place = (kind, folder.resolve())
    if held is not None and place not in model.folders:
        raise ConfigError(
            f"{folder} holds {held} of another run; choose another folder, delete it, or continue "
            "that run with PPO.resume(folder of its checkpoints)."
        )
    model.folders.add(place)


class _Periodic(Callback):
    """A callback that acts after the first update at or past every ``every`` steps."""

    def __init__(self, every: int) -> None:
        check("every", every, PositiveInt)
        self.every = every
        self._next: int | None = None

    def on_start(self, model: PPO) -> None:
        """Count from where training is, unless a saved state says otherwise."""
        first = model.num_timesteps + self.every
        self._next = first if self._next is None else min(self._next, first)

    def is_due(self, model: PPO) -> bool:
        """Return whether it is time to act, and plan the next time."""
        assert self._next is not None, "on_start is called first"
        if model.num_timesteps < self._next and not model.is_done:
            return False
        while self._next <= model.num_timesteps:
            self._next += self.every
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return when to act next."""
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._next = state["next"]


class Evaluate(_Periodic):
    """Evaluates the policy on environments of its own, and keeps the best model.

    The same episodes are played each time. Metrics: ``eval/mean_reward``, ``eval/std_reward``,
    ``eval/mean_ep_length``.
    """

    @answers_names("Evaluate")
    def __init__(
        self,
        every: int = 10_000,
        *others: Never,
        n_episodes: int = 10,
        env: EnvLike | None = None,
        save_best: str | Path | None = None,
        deterministic: bool = True,
        seed: int = 1_000_000,
    ) -> None:
        """Plan evaluations.

        Args:
            every: Environment steps between evaluations; the end of training is always evaluated.
            n_episodes: Episodes of each.
            env: As for :class:`PPO`; by default another of the kind that is trained on.
            save_best: Folder for the model with the best mean return.
            deterministic: Take the most likely action instead of drawing one.
            seed: Decides the episodes.
        """
        if others or not isinstance(cast(Any, every), Real):
            given = ", ".join(repr(one) for one in (every, *others))
            raise ConfigError(
                f"Evaluate({given}): the only argument without a name is the number of steps "
                "between evaluations; write Evaluate(10_000, n_episodes=10, env=...)."
            )
        super().__init__(every)
        self.n_episodes, self.env = n_episodes, env
        self.deterministic, self.seed = deterministic, seed
        self.save_best = None if save_best is None else Path(save_best)
        self.best_mean = -math.inf
        self.results: list[tuple[int, Evaluated]] = []
        """Environment steps and outcome of each evaluation."""

    def on_start(self, model: PPO) -> None:
        """Reject a folder with the best model of another run."""
        super().on_start(model)
        if self.save_best is not None:
            holds_model = bool(CheckpointFolder(self.save_best).names()) and not model.resumed_from
            _claim_folder(model, self.save_best, "best", "a model" if holds_model else None)

    def on_update_end(self, model: PPO) -> None:
        """Evaluate if it is time to."""
        from esper.simic.evaluation import evaluate

        if not self.is_due(model):
            return
        result = evaluate(
            model,
            self.env,
            self.n_episodes,
            deterministic=self.deterministic,
            seed=self.seed,
            progress=False,  # training shows its own
        )
        self.results.append((model.num_timesteps, result))
        model.last_evaluation = result
        model.log("eval/mean_reward", result.mean)
        model.log("eval/std_reward", result.std)
        model.log("eval/mean_ep_length", result.mean_length)
        if result.mean > self.best_mean:
            self.best_mean = result.mean
            if self.save_best is not None:
                model.save(self.save_best)

    def state_dict(self) -> dict[str, Any]:
        """Return when to act next, and the best mean so far."""
        best = None if math.isinf(self.best_mean) else self.best_mean
        return {**super().state_dict(), "best_mean": best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        super().load_state_dict(state)
        self.best_mean = -math.inf if state["best_mean"] is None else state["best_mean"]


class Checkpoint(_Periodic):
    """Saves everything that training depends on, so that ``PPO.resume`` continues exactly.

    When training is interrupted by Ctrl-C, what it was after the last update is saved.
    """

    @answers_names("Checkpoint")
    def __init__(
        self,
        folder: str | Path | None = None,
        every: int = 50_000,
        *,
        keep_last: int = 3,
    ) -> None:
        """Plan checkpoints.

        Args:
            folder: Where to save.
            every: Environment steps between checkpoints; the end of training is always saved.
            keep_last: Checkpoints to keep.
        """
        if folder is None:
            raise ConfigError("folder is missing; pass where checkpoints are saved.")
        if not isinstance(cast(Any, folder), (str, os.PathLike)):
            raise ConfigError(f"folder is {folder!r}; it comes first: Checkpoint(folder, every).")
        super().__init__(every)
        self.folder, self.keep_last = Path(folder), keep_last
        self._state: dict[str, Any] = {}
        """As training was after the last update."""

    def on_start(self, model: PPO) -> None:
        """Reject a folder of another run, and warn at once of what cannot be saved."""
        super().on_start(model)
        names = CheckpointFolder(self.folder).names()
        _claim_folder(model, self.folder, "checkpoints", "checkpoints" if names else None)
        model.warn_of_functions()
        try:
            model.save_environments()
        except UnsupportedEnvironmentError as error:
            model.warn(
                f"{error} Checkpoints are saved without the environments: a resumed run starts "
                "new episodes and is not identical to an uninterrupted one."
            )
        self._state = model.checkpoint_state()

    def on_update_end(self, model: PPO) -> None:
        """Save if it is time to."""
        is_due = self.is_due(model)
        self._state = model.checkpoint_state()
        if is_due:
            self._save(model)

    def on_interrupt(self, model: PPO) -> None:
        """Save what training was after the last update, and say how to continue."""
        if not self._state:
            return
        self._save(model)
        env = "" if model.settings()["env"] else ", env"
        own = "" if model.policy_name in POLICIES else f", policy={model.policy_name}"
        print(
            f"Saved the state after {self._state['num_timesteps']:,} steps to {self.folder}; "
            f"continue with PPO.resume({str(self.folder)!r}{env}{own}).learn()."
        )

    def on_end(self, model: PPO) -> None:
        """Forget the state."""
        self._state = {}

    def _save(self, model: PPO) -> None:
        model.save_checkpoint(self.folder, self._state, keep_last=self.keep_last)


class MetricsReader(Callback):
    """A callback that reads what others log, so it is called after them."""


class Tracker(MetricsReader):
    """Sends metrics to TensorBoard, Weights & Biases or a CSV file."""

    def __init__(self, name: str, folder: str | Path) -> None:
        """Choose a tracker.

        Args:
            name: ``"tensorboard"``, ``"wandb"`` or ``"csv"``, which writes ``progress.csv``.
            folder: The run's folder; its name is the name of the run.

        Raises:
            ConfigError: If there is no such tracker.
        """
        require_tracker(name)
        self.name, self.folder = name, Path(folder)
        self._tracker: Any = None

    def on_start(self, model: PPO) -> None:
        """Open the tracker; reject a folder with the metrics of another run."""
        holds_run = has_run(self.name, self.folder) and not model.resumed_from
        _claim_folder(model, self.folder, self.name, "metrics" if holds_run else None)
        # The metrics of the last update were sent before a checkpoint was saved.
        self._tracker = make_tracker(
            self.name,
            self.folder,
            model.settings(),
            first_step=model.num_timesteps + 1,
        )

    def on_update_end(self, model: PPO) -> None:
        """Send the metrics of the update."""
        self._tracker.log(model.metrics, model.num_timesteps)

    def on_end(self, model: PPO) -> None:
        """Close the tracker."""
        if self._tracker is not None:
            self._tracker.close()
            self._tracker = None


CallbackLike = Callback | Callable[["PPO"], Any]


def as_callbacks(given: CallbackLike | Sequence[CallbackLike] | None) -> list[Callback]:
    """Return callbacks in the order in which they are called: those that log come before trackers.

    Raises:
        ConfigError: If something is neither a callback nor a function.
    """
    many: list[Any] = [given]
    if given is None or isinstance(given, (list, tuple)):
        many = list(cast("Sequence[Any]", given or ()))
    found: list[Callback] = []
    for one in many:
        if isinstance(one, Callback):
            for name, instead in sb3_names.CALLBACK_METHODS.items():
                if hasattr(one, name):
                    raise ConfigError(
                        f"{type(one).__name__} has a method {name}, which is never called; write "
                        f"{instead}(self, model)."
                    )
            found.append(one)
        elif callable(one) and not isinstance(one, type):
            if not takes_arguments(one, 1):
                name = getattr(one, "__name__", repr(one))
                raise ConfigError(
                    f"callbacks has {name}, which does not take one argument; a function of the "
                    "model is needed, such as lambda model: model.num_timesteps < 1000."
                )
            found.append(FunctionCallback(one))
        else:
            raise ConfigError(
                f"callbacks has {one!r}; a Callback or a function of the model is needed."
            )
    order = (Evaluate, MetricsReader, Checkpoint)
    return sorted(found, key=lambda one: [isinstance(one, kind) for kind in reversed(order)])
