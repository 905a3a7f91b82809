"""Growth in Lightning: a callback of ``Trainer``, and loading of grown checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from torch import Tensor, nn

from esper.errors import ConfigError
from esper.growing.grower import Grower
from esper.integrations.adapters import (
    GrowerOptions,
    MetricNames,
    check_gradients,
    import_library,
    metrics_of,
    require_options,
)
from esper.integrations.grown_states import (
    GrownState,
    find_grown,
    rebuild_on_load,
)

_lightning = import_library("lightning.pytorch", "lightning")
_callbacks = import_library("lightning.pytorch.callbacks", "lightning")
_strategies = import_library("lightning.pytorch.strategies", "lightning")

_AVERAGING = (_callbacks.WeightAveraging, _callbacks.StochasticWeightAveraging)


class GrowthCallback(_lightning.Callback):  # pyright: ignore[reportUntypedBaseClass]
    """Grows the model of a ``LightningModule`` while a ``Trainer`` trains it.

    .. code-block:: python

        growth = GrowthCallback(score="val_acc")
        trainer = Trainer(max_epochs=30, callbacks=[growth])
        trainer.fit(model, train_loader, val_loader)
        plain = growth.grower.export()
    """

    grower: Grower
    """The Grower, from the start of ``fit``."""

    def __init__(
        self,
        *,
        score: str | None = None,
        val_loss: str | None = "val_loss",
        module: str = "",
        validate: Callable[[Any], float] | None = None,
        **options: Unpack[GrowerOptions],
    ) -> None:
        """Make the callback.

        Args:
            score: The logged metric to decide by, where more is better, such as ``"val_acc"``.
            val_loss: The logged validation loss; ignored if there is a score and it is not logged.
            module: The submodule to grow, such as ``"net"``; empty for the module itself, whose
                ``forward`` must then be what ``training_step`` calls.
            validate: Returns the score of the module as it is; see :meth:`esper.Grower.end_epoch`.
            options: Options of :class:`esper.Grower`: ``controller``, ``at``, ``sample_input``,
                ``price``, ``ema`` and ``seed``.
        """
        require_options(options)
        self.names = MetricNames(score, val_loss)
        self.module, self.validate = module, validate
        self._options = options
        self._state: GrownState | None = None
        self._saved: dict[str, Any] = {}
        self._loss: Tensor | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Reject what cannot work, and let checkpoints hold the structure of the model."""
        if stage == "fit":
            _require_supported(trainer, pl_module)
            self._saved = {}
        model: nn.Module = pl_module.get_submodule(self.module)
        if self._state is None or self._state.model is not model:
            self._state = GrownState(model)
        self._state.is_waiting = stage == "fit"

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Make the Grower, or resume it from the checkpoint that was loaded."""
        assert self._state is not None, "setup was not called"
        self._state.is_waiting = False
        sample = getattr(pl_module, "example_input_array", None)
        given: GrowerOptions = {} if sample is None or self.module else {"sample_input": sample}
        self.grower = Grower(
            self._state.model,
            trainer.optimizers,
            epochs=trainer.max_epochs,
            scheduler=[each.scheduler for each in trainer.lr_scheduler_configs],
            scaler=getattr(trainer.precision_plugin, "scaler", None),
            **given | self._options,
        )
        if self._saved:
            self._state.resume(self.grower, self._saved)
            self._saved = {}

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """Keep the loss until its gradients are there."""
        scale = 1.0 if self.grower.scaler is None else self.grower.scaler.get_scale()
        self._loss = loss.detach() * (trainer.accumulate_grad_batches / scale)

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """Check the loss; a rollback drops the gradients, so that nothing is updated."""
        assert self._loss is not None, "on_before_backward was not called"
        self.grower.check_loss(self._loss)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Check the gradients before they are clipped."""
        if check_gradients(self.grower):
            self.grower.commit()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Let the controller decide, and log what growth has come to."""
        validate = self.validate
        decision = self.grower.end_epoch(
            **self.names.read(trainer.callback_metrics),
            validate=None if validate is None else lambda: validate(pl_module),
        )
        pl_module.log_dict(metrics_of(decision), sync_dist=trainer.world_size > 1)
        trainer.should_stop = trainer.should_stop or decision.op == "finish"

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the Grower; the weights are in the checkpoint already."""
        return self.grower.state_dict(weights=False) if hasattr(self, "grower") else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of the Grower until ``fit`` starts."""
        self._saved = state_dict

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Leave the optimizers to the Grower, whose state goes by name instead of by order."""
        if hasattr(self, "grower"):
            checkpoint["optimizer_states"] = []


def load_grown(cls: type[Any], checkpoint_path: Any, **options: Any) -> Any:
    """Return a grown module; like ``cls.load_from_checkpoint``, with the same arguments."""

    def on_load_checkpoint(self: Any, checkpoint: dict[str, Any]) -> None:
        for name in find_grown(checkpoint["state_dict"]):
            rebuild_on_load(self.get_submodule(name))
        cls.on_load_checkpoint(self, checkpoint)

    loading: Any = type(cls.__name__, (cls,), {"on_load_checkpoint": on_load_checkpoint})
    model = loading.load_from_checkpoint(checkpoint_path, **options)
    model.__class__ = cls
    return model


def _require_supported(trainer: Any, pl_module: Any) -> None:
    strategy = trainer.strategy
    is_known = isinstance(strategy, (_strategies.SingleDeviceStrategy, _strategies.DDPStrategy))
    if not is_known or isinstance(strategy, _strategies.DeepSpeedStrategy):
        raise ConfigError(
            f"strategy is {type(strategy).__name__}; GrowthCallback works with one device and DDP."
        )
    if not pl_module.automatic_optimization:
        raise ConfigError(
            "automatic_optimization is False; GrowthCallback needs automatic optimization. Use "
            "esper.Grower in training_step instead."
        )
    for each in trainer.callbacks:
        if isinstance(each, _AVERAGING):
            raise ConfigError(
                f"{type(each).__name__} copies the model before it grows; remove it, and give "
                "GrowthCallback an AveragedModel as ema= that you update yourself."
            )
    if trainer.max_epochs is None or trainer.max_epochs < 1:
        raise ConfigError(
            f"max_epochs is {trainer.max_epochs}; a controller plans with the number of epochs, so "
            "give Trainer(max_epochs=...)."
        )
    if trainer.check_val_every_n_epoch != 1:
        raise ConfigError(
            f"check_val_every_n_epoch is {trainer.check_val_every_n_epoch}; it must be 1, because "
            "the controller decides after every epoch."
        )
