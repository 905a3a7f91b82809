"""Proximal policy optimization for factored, masked, recurrent policies.

Shapes: ``E`` environments, ``N`` steps of a minibatch, ``H`` heads, ``K`` choices of the widest.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from esper.config import PPOConfig
from esper.errors import ActionSpecError, DtypeError, ShapeError
from esper.simic.agent.losses import (
    clipped_surrogate,
    entropy_bonus,
    relevant_log_ratio,
    value_loss,
)
from esper.simic.agent.minibatches import Minibatch, PreparedRollout
from esper.simic.agent.rollout_buffer import TamiyoRolloutBuffer
from esper.simic.agent.update_report import EpochMeasures, UpdateReport, measure
from esper.simic.policy.action_spec import ActionSpec
from esper.simic.policy.normalizers import ReturnNormalizer
from esper.simic.policy.protocol import Decision, Policy


class PPOAgent:
    """Acts with a policy, and improves it from what it collected.

    It knows tensors and an action specification, so it serves any environment whose action is a
    few discrete choices, some of which may be masked.
    """

    def __init__(
        self, spec: ActionSpec, policy: Policy, config: PPOConfig | None = None, *, seed: int = 0
    ) -> None:
        if policy.spec != spec:
            raise ActionSpecError(
                f"the policy was built for heads {policy.spec.names} of sizes {policy.spec.sizes}; "
                f"the agent's are {spec.names} of sizes {spec.sizes}."
            )
        self.spec = spec
        self.policy = policy
        self.config = config or PPOConfig()
        parameters = list(policy.parameters())
        self.device = parameters[0].device
        self.normalizer = ReturnNormalizer(self.device)
        # Fused: one call for all parameters, and on the CPU half the time of the default form.
        self.optimizer = torch.optim.Adam(
            parameters, self.config.learning_rate, eps=1e-5, fused=True
        )
        self._generator = torch.Generator(self.device).manual_seed(seed)
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
            observation_size=self.policy.observation_size,
            state_size=self.policy.state_size,
            device=self.device,
        )

    @torch.no_grad()
    def act(
        self,
        observations: Tensor,
        masks: Any,
        state: Tensor,
        episode_starts: Tensor | None = None,
        *,
        deterministic: bool = False,
    ) -> Decision:
        """Choose an action for each environment.

        Args:
            observations: ``[E, observation size]`` float.
            masks: The legal choices: a padded bool tensor ``[E, H, K]``, a mask ``[E, size]`` for
                each head (by name or in order), growth's ``ActionMasks``, or None for all.
            state: ``[E, state size]`` from :meth:`initial_state` or the last decision.
            episode_starts: ``[E]`` bool, environments whose state is to be reset first.
            deterministic: Take the likeliest action instead of drawing one.

        Raises:
            ShapeError: If a tensor does not fit the policy.
            NoLegalActionError: If a head has no legal choice, naming head and environment.
            NonFiniteError: If the policy's output is not finite.
        """
        if episode_starts is not None:
            _check_starts(episode_starts, state)
            state = state.masked_fill(episode_starts.unsqueeze(-1), 0.0)
        generator = None if deterministic else self._generator
        actions, log_probs, values, legal, next_state = self.policy.act(
            observations, masks, state, generator
        )
        values = self.normalizer.denormalize(values)
        return Decision(actions, log_probs, values, legal, state, next_state)

    @torch.no_grad()
    def value(self, observations: Tensor, state: Tensor) -> Tensor:
        """Return the value ``[E]`` of observations ``[E, observation size]`` in units of reward."""
        return self.normalizer.denormalize(self.policy.value(observations, state))

    def update(self, buffer: TamiyoRolloutBuffer) -> UpdateReport:
        """Improve the policy from a buffer whose environments' last values are given.

        Each epoch is one pass over all steps. The host reads one small tensor per epoch, before
        the epoch's last gradient step; if ``approx_kl`` is then beyond its limit, that step is not
        taken and the update ends.

        Raises:
            ActionSpecError: If the buffer was made for another agent.
            RolloutError: If the buffer is empty, a bootstrap value is missing, a return is not
                finite or an action is one that its mask forbids.
            ConfigError: If there are fewer sequences than minibatches.
            NonFiniteError: If an observation or the loss is not finite.
        """
        config = self.config
        if buffer.spec != self.spec or buffer.device != self.device:
            raise ActionSpecError(
                f"the buffer was made for other actions, or is on {buffer.device} while the policy "
                f"is on {self.device}; use this agent's make_buffer()."
            )
        buffer.compute_advantages_and_returns(config.gamma, config.gae_lambda)
        rollout = PreparedRollout(buffer, self.policy, self.normalizer, config)
        norms: list[Tensor] = []
        epoch = 0
        while True:
            epoch += 1
            measures, stopped_early = self._run_epoch(rollout, norms)
            if stopped_early or epoch == config.n_epochs:
                break
        return measures.report(
            self.spec,
            explained_variance=float(rollout.explained_variance),
            gradient_norm=float(torch.stack(norms).mean()) if norms else 0.0,
            epochs_run=epoch,
            gradient_steps=len(norms),
            stopped_early=stopped_early,
        )

    def set_rates(self, *, learning_rate: float, ent_coef: float) -> None:
        """Change the step size and the weight of the entropy bonus, as schedules do."""
        self.config = replace(self.config, learning_rate=learning_rate, ent_coef=ent_coef)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of everything that the next action and the next update depend on."""
        state = {
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "normalizer": self.normalizer.state_dict(),
            "generator": self._generator.get_state(),
            "shuffler": self._shuffler.get_state(),
        }
        return copy.deepcopy(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave; what follows is then the same."""
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.normalizer.load_state_dict(state["normalizer"])
        self._generator.set_state(state["generator"])
        self._shuffler.set_state(state["shuffler"])

    def _run_epoch(
        self, rollout: PreparedRollout, norms: list[Tensor]
    ) -> tuple[EpochMeasures, bool]:
        """Take the gradient steps of one pass and add their gradient norms to ``norms``.

        Return what was measured, and whether the policy has moved too far for the last step.
        """
        sums = torch.zeros((), device=self.device)
        for minibatch, is_last in rollout.minibatches(self._shuffler):
            loss, measured = self._loss(minibatch)
            sums = sums + measured
            if not is_last:
                norms.append(self._descend(loss))
                continue
            measures = EpochMeasures.read(sums, self.spec)
            is_too_far = measures.approx_kl > self.config.kl_limit
            if not is_too_far:
                norms.append(self._descend(loss))
            return measures, is_too_far
        raise AssertionError("an epoch has a last minibatch")

    def _loss(self, batch: Minibatch) -> tuple[Tensor, Tensor]:
        """Return the loss of a minibatch and its measures."""
        config, grid = self.config, batch.grid
        log_probs, entropies, values = self.policy.evaluate(
            batch.observations, grid.resets, batch.state, grid.cells, batch.legal, batch.actions
        )
        log_ratio = relevant_log_ratio(log_probs, batch.old_log_probs, batch.relevant)
        policy = clipped_surrogate(
            log_ratio, batch.advantages, batch.relevant, batch.weight, config.clip_range
        )
        value = value_loss(values, batch.returns, batch.old_values, config.clip_range_vf)
        entropy = entropy_bonus(entropies, batch.available)
        loss = policy + config.vf_coef * value - config.ent_coef * entropy
        measures = measure(
            (policy, value, entropy),
            log_ratio,
            entropies,
            batch.available,
            batch.counts,
            config.clip_range,
        )
        return loss, measures

    def _descend(self, loss: Tensor) -> Tensor:
        """Take one gradient step; return the norm that the gradient had before clipping."""
        parameters = list(self.policy.parameters())
        for parameter in parameters:
            parameter.grad = None
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm)
        self.optimizer.step()
        return norm


def _check_starts(episode_starts: Tensor, state: Tensor) -> None:
    """Refuse flags that are not one bool for each environment."""
    if not isinstance(episode_starts, Tensor):
        kind = type(episode_starts).__name__
        raise DtypeError(f"episode_starts is a {kind}; a torch.Tensor is needed.")
    if episode_starts.dtype is not torch.bool:
        raise DtypeError(f"episode_starts has dtype {episode_starts.dtype}; torch.bool is needed.")
    if episode_starts.shape != state.shape[:1]:
        shape, needed = tuple(episode_starts.shape), list(state.shape[:1])
        raise ShapeError(f"episode_starts has shape {shape}; {needed} is needed.")
