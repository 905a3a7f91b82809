"""Proximal policy optimization (Schulman et al., 2017) for factored, masked, recurrent policies.

Shapes: ``E`` environments, ``N`` steps of a minibatch, ``H`` heads, ``D`` discrete heads, ``K``
choices of the widest.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from esper.config import PPOConfig
from esper.config.checks import Seed, check
from esper.errors import (
    ActionSpecError,
    ConfigError,
    NonFiniteError,
    ShapeError,
    shown,
    type_of,
)
from esper.simic import tensors
from esper.simic.agent.losses import (
    clipped_surrogate,
    entropy_bonus,
    joint_clipped_surrogate,
    kl_estimates,
    value_loss,
)
from esper.simic.agent.minibatches import EvaluatedMinibatch, PreparedRollout
from esper.simic.agent.optimizers import MakeOptimizer, make_optimizer, set_learning_rate
from esper.simic.agent.rollout_buffer import TamiyoRolloutBuffer
from esper.simic.agent.update_report import Epoch, UpdateReport, report_update
from esper.simic.policy.action_spec import ActionSpec
from esper.simic.policy.normalizers import ReturnNormalizer
from esper.simic.policy.observations import Observations
from esper.simic.policy.policy import Decision, Policy, note_weights
from esper.simic.schedules import takes_arguments

_LOSS = "a scalar tensor to minimise and a dict of terms by name"
Loss = tuple[Tensor, dict[str, Tensor]]
"""A scalar to minimise, and its terms by name, which are reported."""
LossFunction = Callable[["PPOAgent", EvaluatedMinibatch], Loss]


class PPOAgent:
    """Acts with a policy and improves it from what it collected.

    It knows tensors and an action specification, so it serves any environment whose action is a
    few discrete choices, some of them masked, and a few real numbers.
    """

    def __repr__(self) -> str:
        """Return the heads and the size of the policy."""
        sizes = (*self.spec.sizes, *self.spec.dims)
        heads = [f"{name} {n}" for name, n in zip(self.spec.names, sizes, strict=True)]
        n_parameters = sum(parameter.numel() for parameter in self.policy.parameters())
        return (
            f"PPOAgent({type(self.policy).__name__} with {n_parameters:,} parameters, heads "
            f"{', '.join(heads)})"
        )

    def __init__(
        self,
        spec: ActionSpec,
        policy: Policy | None = None,
        config: PPOConfig | None = None,
        *,
        seed: int = 0,
        device: str | torch.device | None = None,
        loss: LossFunction | None = None,
        optimizer: MakeOptimizer | None = None,
    ) -> None:
        """Take over a policy.

        Args:
            spec: The heads of an action.
            policy: The policy. If it was built without a generator and not changed since, its
                weights are initialized from ``seed``.
            config: Settings of the update.
            seed: Decides the weights, the actions drawn and the order of minibatches.
            device: Where to act and learn, such as ``"cuda"``; by default where the policy is.
            loss: A function of the agent and a minibatch that returns what to minimise and its
                terms by name, as :meth:`loss` does, which it replaces and may call.
            optimizer: A class of ``torch.optim``, or a function that makes an optimizer of
                parameters; by default Adam. The learning rate is that of ``config``.
        """
        check("spec", spec, ActionSpec)
        self.policy: Policy = check("policy", policy, Policy)
        check("config", config, PPOConfig | None)
        seed = check("seed", seed, Seed)
        if self.policy.spec != spec:
            raise ActionSpecError(
                f"the policy has heads {self.policy.spec.names} of sizes {self.policy.spec.sizes}; "
                f"the agent's are {spec.names} of sizes {spec.sizes}."
            )
        fresh = self.policy.fresh_weights
        if fresh is not None and fresh == note_weights(self.policy):
            self.policy.initialize(torch.Generator().manual_seed(seed))
        self.spec = spec
        self.config = config or PPOConfig()
        if loss is not None and not (callable(loss) and takes_arguments(loss, 2)):
            raise ConfigError(
                f"loss is {shown(loss)}; it must be a function of the agent and a minibatch that "
                f"returns {_LOSS}."
            )
        self.loss_function = cast(LossFunction, loss or type(self).loss)
        """What :meth:`update` minimises."""
        if device is not None:
            self.policy.to(tensors.choose_device(device))
        parameters = list(self.policy.parameters())
        self.device = parameters[0].device
        self.optimizer, self._rate_shares = make_optimizer(
            optimizer, parameters, self.config.learning_rate
        )
        self._parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.normalizer = ReturnNormalizer(self.device)
        # On the host whatever the device: a run draws the same numbers and resumes on any.
        self.generator = torch.Generator().manual_seed(seed)
        """Draws the actions."""
        self._shuffler = torch.Generator().manual_seed(seed)

    def initial_state(self, n_envs: int) -> Tensor:
        """Return the recurrent state ``[E, state size]`` that episodes start with."""
        return torch.zeros(n_envs, self.policy.state_size, device=self.device)

    def make_buffer(self, n_envs: int, n_steps: int) -> TamiyoRolloutBuffer:
        """Return an empty buffer that fits this agent."""
        return TamiyoRolloutBuffer(
            n_envs,
            n_steps,
            self.spec,
            observation_size=self.policy.observation_spec,
            state_size=self.policy.state_size,
            device=self.device,
        )

    @torch.no_grad()
    def act(
        self,
        observations: Observations,
        masks: Any,
        state: Tensor,
        episode_starts: Tensor | None = None,
        *,
        deterministic: bool = False,
    ) -> Decision:
        """Choose an action for each environment.

        Args:
            observations: ``[E, ...]``.
            masks: The legal choices: a bool tensor ``[E, D, K]``, growth's ``ActionMasks``, what
                :class:`~esper.simic.policy.mask_reader.MaskReader` reads (one array, a tuple or
                a dict for each environment), or None for all.
            state: ``[E, state size]`` from :meth:`initial_state` or the last decision.
            episode_starts: ``[E]`` bool, environments whose state is reset first.
            deterministic: Take the most likely action instead of drawing one.

        Raises:
            ShapeError: If a tensor does not fit the policy.
            NoLegalActionError: If a head has no legal choice, naming head and environment.
            NonFiniteError: If the policy's output is not finite.
        """
        if episode_starts is not None and state.shape[-1]:
            tensors.check_tensor("episode_starts", episode_starts, state.shape[:1], torch.bool)
            state = state.masked_fill(episode_starts.unsqueeze(-1), 0.0)
        generator = None if deterministic else self.generator
        decision = self.policy.act(observations, masks, state, generator)
        decision.values = self.normalizer.denormalize(decision.values)
        return decision

    @torch.no_grad()
    def value(self, observations: Observations, state: Tensor) -> Tensor:
        """Return the value ``[E]`` of observations ``[E, ...]`` in units of reward."""
        return self.normalizer.denormalize(self.policy.value(observations, state))

    def update(self, buffer: TamiyoRolloutBuffer) -> UpdateReport:
        """Improve the policy from a buffer whose environments' last values are given.

        Each epoch is one pass over all steps, in minibatches. The host reads one small tensor per
        epoch, before the epoch's last gradient step; if ``approx_kl`` is then beyond its limit,
        that step is not taken and the update ends. An update that fails is undone.

        Raises:
            ActionSpecError: If the buffer was made for another agent.
            RolloutError: If the buffer is empty, a bootstrap value is missing, a return is not
                finite or an action is one that its mask forbids.
            ConfigError: If there are fewer sequences than minibatches, or all weights are frozen.
            NonFiniteError: If an observation, the loss, a gradient or a new weight is not finite.
        """
        self._require_own(buffer)
        config, norms = self.config, list[Tensor]()
        n_epochs, is_too_far, epoch = 0, False, Epoch()
        with self._undo_on_error():
            buffer.compute_advantages_and_returns(config.gamma, config.gae_lambda)
            rollout = PreparedRollout(buffer, self.policy, self.normalizer, config)
            while n_epochs < config.n_epochs and not is_too_far:
                n_epochs, epoch = n_epochs + 1, Epoch()
                for minibatch, is_last in rollout.minibatches(self._shuffler):
                    batch = minibatch.evaluate(self.policy)
                    loss, terms = self._compute_loss(batch)
                    self._clear_gradient()
                    loss.backward()
                    epoch.append((batch, {"loss": loss, **terms}))
                    is_too_far = is_last and read_kl(epoch) > config.kl_limit
                    if not is_too_far:
                        norms.append(self._clip_gradient())
                        self.optimizer.step()
            return report_update(
                epoch,
                self.spec,
                config.clip_range,
                rollout.explained_variance,
                norms,
                _norm([p.detach() for p in self._parameters if p.grad is not None]),
                epochs_run=n_epochs,
                stopped_early=is_too_far,
            )

    def loss(self, batch: EvaluatedMinibatch) -> Loss:
        """Return the loss of a minibatch, and its terms by name.

        ratio = new / old probability = exp(log_ratio)
        loss  = -mean of min(ratio A, clip(ratio, 1 - clip_range, 1 + clip_range) A)
                + vf_coef * mean of (V - return)^2 - ent_coef * mean entropy
        """
        config = self.config
        surrogate = clipped_surrogate if config.clip == "per-head" else joint_clipped_surrogate
        policy = surrogate(
            batch.log_ratio, batch.advantages, batch.relevant, batch.n_free, config.clip_range
        )
        value = value_loss(batch.values, batch.returns, batch.old_values, config.clip_range_vf)
        loss, terms = policy + config.vf_coef * value, {"policy_loss": policy, "value_loss": value}
        # Without a bonus and a loss of the user's, nothing reads the entropy before the report.
        if config.ent_coef or self.loss_function is not PPOAgent.loss:
            terms["entropy"] = entropy_bonus(batch.entropies, batch.available, batch.n_free)
        if config.ent_coef:
            loss = loss - config.ent_coef * terms["entropy"]
        return loss, terms

    def _clear_gradient(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _clip_gradient(self) -> Tensor:
        """Scale the gradient down to ``max_grad_norm``; return the norm that it had."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = _norm(gradients)
        if self.config.max_grad_norm is not None:
            scale = (self.config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
            cast(Any, torch)._foreach_mul_(gradients, scale)
        return norm

    @contextmanager
    def _undo_on_error(self) -> Generator[None]:
        """Leave everything as it was if what is done inside fails or is interrupted."""
        before = self.state_dict()
        try:
            yield
        except BaseException:
            self.load_state_dict(before)
            raise

    def set_rates(
        self,
        *,
        learning_rate: float | None = None,
        ent_coef: float | None = None,
        clip_range: float | None = None,
        clip_range_vf: float | None = None,
    ) -> None:
        """Change the step size, the entropy bonus or a clip range, as schedules do."""
        rates = {
            "learning_rate": learning_rate,
            "ent_coef": ent_coef,
            "clip_range": clip_range,
            "clip_range_vf": clip_range_vf,
        }
        changed = {name: value for name, value in rates.items() if value is not None}
        self.config = replace(self.config, **changed)
        set_learning_rate(self.optimizer, self.config.learning_rate, self._rate_shares)

    def weights(self) -> dict[str, Any]:
        """Return a copy of what the next action depends on, except the random numbers."""
        weights = {"policy": self.policy.state_dict(), "normalizer": self.normalizer.state_dict()}
        return copy.deepcopy(weights)

    def load_weights(self, weights: dict[str, Any]) -> None:
        """Act with what another agent's :meth:`weights` returned."""
        self.policy.load_state_dict(weights["policy"])
        self.normalizer.load_state_dict(weights["normalizer"])

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of everything that the next action and the next update depend on."""
        config = self.config
        state = {
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "normalizer": self.normalizer.state_dict(),
            "generator": self.generator.get_state(),
            "shuffler": self._shuffler.get_state(),
            "rates": {
                "learning_rate": float(config.learning_rate),
                "ent_coef": float(config.ent_coef),
                "clip_range": float(config.clip_range),
                "clip_range_vf": config.clip_range_vf,
            },
        }
        return copy.deepcopy(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; training then continues identically."""
        self._require_fit(state["optimizer"])
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.normalizer.load_state_dict(state["normalizer"])
        self.generator.set_state(state["generator"])
        self._shuffler.set_state(state["shuffler"])
        self.set_rates(**state["rates"])

    def _require_fit(self, optimizer: dict[str, Any]) -> None:
        """Reject moments of another size: a fused optimizer would write beyond them."""
        for number, moments in optimizer["state"].items():
            for name, moment in moments.items():
                is_moment = name.startswith("exp_avg")
                needed = self._parameters[int(number)].shape
                if is_moment and moment.shape != needed:
                    raise ShapeError(
                        f"the saved {name} has shape {tuple(moment.shape)}; {list(needed)} is "
                        "needed. The state is of another policy."
                    )

    def _require_own(self, buffer: TamiyoRolloutBuffer) -> None:
        if buffer.spec != self.spec or buffer.device != self.device:
            raise ActionSpecError(
                f"the buffer was made for other actions, or is on {buffer.device} while the policy "
                f"is on {self.device}; use this agent's make_buffer()."
            )

    def _compute_loss(self, batch: EvaluatedMinibatch) -> Loss:
        """Return what the loss function says, which a user may have written."""
        found: Any = self.loss_function(self, batch)
        is_pair = isinstance(cast(object, found), tuple) and len(found) == 2
        loss, terms = found if is_pair else (found, None)
        if not (_is_scalar(loss) and isinstance(terms, dict)):
            what = f"{type_of(loss)} and {type_of(terms)}" if is_pair else type_of(loss)
            if is_pair and isinstance(loss, Tensor) and loss.ndim:
                what = f"a loss of shape {tuple(loss.shape)}"
            raise ConfigError(f"the loss function returned {what}; it must return {_LOSS}.")
        for name, term in cast("dict[str, Any]", terms).items():
            if not _is_scalar(term):
                raise ConfigError(
                    f"term {name!r} of the loss is {shown(term)}; it must be a scalar tensor."
                )
        if not loss.requires_grad:
            raise ConfigError(
                "the loss does not depend on any weight that is trained; set requires_grad of "
                "some of the policy's parameters, and compute the loss from the minibatch."
            )
        return found


@torch.no_grad()
def read_kl(epoch: Epoch) -> float:
    """Return approx_kl, the mean of ``ratio - 1 - log ratio`` over heads that mattered.

    This is where the host waits for the device, once per epoch. 0 if every step was forced.

    Raises:
        NonFiniteError: If it or a loss is not finite.
    """
    log_ratio = torch.cat([batch.log_ratio for batch, _ in epoch])
    n_relevant = torch.stack([batch.relevant.sum() for batch, _ in epoch]).sum()
    loss = torch.stack([terms["loss"] for _, terms in epoch]).sum()
    sums = torch.stack([kl_estimates(log_ratio).sum(), n_relevant, loss])
    kl, n, total = tensors.read_numbers(sums)
    if not math.isfinite(kl + total):
        raise NonFiniteError(
            "the loss of the update is not finite, so the update was undone; the observations "
            "hold NaN or infinity, or learning_rate is too high."
        )
    return kl / max(n, 1.0)


def _norm(parts: list[Tensor]) -> Tensor:
    """Return the norm of all parts together, as clip_grad_norm_ does, in a third of its time."""
    foreach = cast(Any, torch)  # on a small network that shows
    return cast(Tensor, torch.linalg.vector_norm(torch.stack(foreach._foreach_norm(parts))))


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 0
