"""Proximal policy optimization (Schulman et al., 2017) for factored, masked, recurrent policies.

Shapes: ``E`` environments, ``N`` steps of a minibatch, ``H`` heads, ``D`` discrete heads, ``K``
choices of the widest.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from esper.config import PPOConfig
from esper.config.checks import Seed, check
from esper.errors import ActionSpecError, ShapeError
from esper.simic.agent.flat_parameters import FlatParameters
from esper.simic.agent.losses import (
    clipped_surrogate,
    entropy_bonus,
    joint_clipped_surrogate,
    relevant_log_ratio,
    value_loss,
)
from esper.simic.agent.minibatches import Minibatch, PreparedRollout
from esper.simic.agent.rollout_buffer import TamiyoRolloutBuffer
from esper.simic.agent.update_report import EpochMeasures, UpdateReport, measure
from esper.simic.policy.action_spec import ActionSpec
from esper.simic.policy.heads import LossGradient, LossGradients
from esper.simic.policy.normalizers import ReturnNormalizer
from esper.simic.policy.observations import Observations
from esper.simic.policy.policy import Decision, Policy, note_weights
from esper.simic.tensors import check_tensor


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
    ) -> None:
        """Take over a policy.

        Args:
            spec: The heads of an action.
            policy: The policy. If it was built without a generator and not changed since, its
                weights are drawn anew from ``seed``.
            config: Settings of the update.
            seed: Decides the weights, the actions drawn and the order of minibatches.
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
        self._parameters = FlatParameters(self.policy.parameters())
        self.device = self._parameters.flat.device
        self.normalizer = ReturnNormalizer(self.device)
        self.optimizer = torch.optim.Adam(
            [self._parameters.flat], self.config.learning_rate, eps=1e-5, fused=True
        )
        self.generator = torch.Generator(self.device).manual_seed(seed)
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
            masks: The legal choices: a padded bool tensor ``[E, D, K]``, a mask ``[E, size]`` for
                each head (by name or in order), growth's ``ActionMasks``, or None for all.
            state: ``[E, state size]`` from :meth:`initial_state` or the last decision.
            episode_starts: ``[E]`` bool, environments whose state is reset first.
            deterministic: Take the most likely action instead of drawing one.

        Raises:
            ShapeError: If a tensor does not fit the policy.
            NoLegalActionError: If a head has no legal choice, naming head and environment.
            NonFiniteError: If the policy's output is not finite.
        """
        if episode_starts is not None and state.shape[-1]:
            check_tensor("episode_starts", episode_starts, state.shape[:1], torch.bool)
            state = state.masked_fill(episode_starts.unsqueeze(-1), 0.0)
        generator = None if deterministic else self.generator
        decision = self.policy.act(observations, masks, state, generator)
        return Decision(
            decision.actions,
            decision.log_probs,
            self.normalizer.denormalize(decision.values),
            decision.legal,
            state,
            decision.next_state,
            decision.numbers,
            decision.outputs,
        )

    @torch.no_grad()
    def value(self, observations: Observations, state: Tensor) -> Tensor:
        """Return the value ``[E]`` of observations ``[E, ...]`` in units of reward."""
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
        self._require_own(buffer)
        self._parameters.ensure_attached()
        buffer.compute_advantages_and_returns(config.gamma, config.gae_lambda)
        rollout = PreparedRollout(buffer, self.policy, self.normalizer, config)
        norms: list[Tensor] = []
        epoch = 0
        while True:
            epoch += 1
            # Without a limit on the divergence, only the last epoch is reported.
            is_measured = config.target_kl is not None or epoch == config.n_epochs
            measures, stopped_early = self._run_epoch(rollout, norms, is_measured)
            if stopped_early or epoch == config.n_epochs:
                break
        assert measures is not None, "the last epoch is measured"
        return measures.report(
            self.spec,
            explained_variance=float(rollout.explained_variance),
            gradient_norm=float(torch.stack(norms).mean()) if norms else 0.0,
            epochs_run=epoch,
            gradient_steps=len(norms),
            stopped_early=stopped_early,
        )

    def set_rates(
        self,
        *,
        learning_rate: float | None = None,
        ent_coef: float | None = None,
        clip_range: float | None = None,
    ) -> None:
        """Change the step size, the entropy bonus or the clip range, as schedules do."""
        rates = {"learning_rate": learning_rate, "ent_coef": ent_coef, "clip_range": clip_range}
        changed = {name: value for name, value in rates.items() if value is not None}
        self.config = replace(self.config, **changed)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate

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
        """Reject moments of another size: the fused optimizer would write beyond them."""
        for moments in optimizer["state"].values():
            for name in ("exp_avg", "exp_avg_sq"):
                shape, needed = moments[name].shape, self._parameters.flat.shape
                if shape != needed:
                    raise ShapeError(
                        f"the saved {name} has shape {tuple(shape)}; {list(needed)} is needed. The "
                        "state is of another policy."
                    )

    def _require_own(self, buffer: TamiyoRolloutBuffer) -> None:
        if buffer.spec != self.spec or buffer.device != self.device:
            raise ActionSpecError(
                f"the buffer was made for other actions, or is on {buffer.device} while the policy "
                f"is on {self.device}; use this agent's make_buffer()."
            )

    def _run_epoch(
        self, rollout: PreparedRollout, norms: list[Tensor], is_measured: bool
    ) -> tuple[EpochMeasures | None, bool]:
        """Take the gradient steps of one pass and add their gradient norms to ``norms``.

        Return what was measured, and whether the policy has moved too far for the last step.
        """
        sums = torch.zeros((), device=self.device)
        with torch.no_grad():  # except where the policy leaves its gradient to autograd
            for minibatch, is_last in rollout.minibatches(self._shuffler):
                sums = sums + self._differentiate(minibatch, is_measured)
                if not is_last:
                    norms.append(self._descend())
                    continue
                measures = EpochMeasures.read(sums, self.spec)
                is_too_far = measures is not None and measures.approx_kl > self.config.kl_limit
                if not is_too_far:
                    norms.append(self._descend())
                return measures, is_too_far
        raise AssertionError("an epoch has a last minibatch")

    def _differentiate(self, batch: Minibatch, is_measured: bool = True) -> Tensor:
        """Set the gradient of the loss on a minibatch; return its measures, or else the loss.

        loss = policy loss + vf_coef * value loss - ent_coef * entropy
        """
        config, measured = self.config, list[Tensor]()

        def loss(log_probs: Tensor, entropies: Tensor, values: Tensor) -> LossGradients:
            """Return the gradients of the loss, and note what it came to."""
            log_ratio = relevant_log_ratio(log_probs, batch.old_log_probs, batch.relevant)
            surrogate = clipped_surrogate if config.clip == "per-head" else joint_clipped_surrogate
            policy, d_log_probs = surrogate(
                log_ratio, batch.advantages, batch.relevant, batch.n_free, config.clip_range
            )
            value, d_values = value_loss(
                values, batch.returns, batch.old_values, config.clip_range_vf
            )
            entropy, d_entropies = None, None
            if is_measured or config.ent_coef:
                entropy, d_entropies = entropy_bonus(entropies, batch.available, batch.n_free)
                d_entropies = -config.ent_coef * d_entropies if config.ent_coef else None
            measured.append(
                measure((policy, value, entropy), log_ratio, entropies, batch, config.clip_range)
                if is_measured and entropy is not None
                else policy + value
            )
            return d_log_probs, d_entropies, config.vf_coef * d_values

        self._backpropagate(batch, loss)
        return measured[0]

    def _backpropagate(self, batch: Minibatch, loss: LossGradient) -> None:
        """Set the gradient of a loss, by the policy's own formulas if it has them."""
        backpropagate = getattr(self.policy, "backpropagate", None)
        if backpropagate is None or not backpropagate(
            batch.observations, batch.legal, batch.actions, batch.numbers, loss
        ):
            self._backpropagate_by_autograd(batch, loss)

    def _backpropagate_by_autograd(self, batch: Minibatch, loss: LossGradient) -> None:
        """Set the gradient of a loss that is given by its own gradients."""
        self._parameters.gradient.zero_()
        with torch.enable_grad():
            log_probs, entropies, values = self.policy.evaluate(
                batch.observations,
                batch.resets,
                batch.state,
                batch.cells,
                batch.legal,
                batch.actions,
                batch.numbers,
            )
        with torch.no_grad():
            d_log_probs, d_entropies, d_values = loss(log_probs, entropies, values)
        outputs, gradients = [log_probs, values], [d_log_probs, d_values]
        if d_entropies is not None and entropies.requires_grad:
            outputs.append(entropies)
            gradients.append(d_entropies)
        torch.autograd.backward(outputs, gradients)

    def _descend(self) -> Tensor:
        """Take one gradient step; return the norm that the gradient had before clipping."""
        norm = self._parameters.clip_gradient(self.config.max_grad_norm)
        flat = self._parameters.flat
        moments = self.optimizer.state.get(flat)
        if not moments:
            self.optimizer.step()  # creates its state
            return norm
        # The function that the optimizer calls: on a small network its own bookkeeping takes as
        # long as a layer.
        group = self.optimizer.param_groups[0]
        beta1, beta2 = group["betas"]
        adam(
            [flat],
            [self._parameters.gradient],
            [moments["exp_avg"]],
            [moments["exp_avg_sq"]],
            [],
            [moments["step"]],
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=0.0,
            eps=group["eps"],
            maximize=False,
        )
        return norm
