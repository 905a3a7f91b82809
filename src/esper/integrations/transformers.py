"""Growth in Transformers: a callback of ``Trainer``, and loading of grown checkpoints."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Unpack

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from esper.errors import ConfigError, SavedModelError, message_of
from esper.growing.grower import Grower
from esper.integrations.adapters import (
    GrowerOptions,
    MetricNames,
    check_gradients,
    full_precision,
    import_library,
    metrics_of,
    require_options,
)
from esper.integrations.grown_states import (
    CONFIG,
    KEY,
    GrownState,
    find_grown,
    read_structure,
    rebuild_on_load,
)
from esper.storage.checkpoint_folder import damage_named
from esper.storage.files import open_file, read_file, write_atomic
from esper.storage.state import from_bytes, to_bytes

_transformers = import_library("transformers", "transformers")
import_library("accelerate", "transformers")

STATE_FILE = "grower.esper"
"""The state of the Grower in the folder of a checkpoint; it takes the place of ``optimizer.pt``."""


class GrowthCallback(_transformers.TrainerCallback):  # pyright: ignore[reportUntypedBaseClass]
    """Grows the model of a ``Trainer`` while it is trained.

    .. code-block:: python

        trainer = Trainer(model, TrainingArguments(eval_strategy="epoch", ...), ...)
        growth = GrowthCallback(score="eval_accuracy").attach(trainer)
        trainer.train()
        plain = growth.grower.export()
    """

    grower: Grower
    """The Grower, from the start of training."""

    def __init__(
        self,
        *,
        score: str | None = None,
        val_loss: str | None = "eval_loss",
        resume_from: str | Path | None = None,
        **options: Unpack[GrowerOptions],
    ) -> None:
        """Make the callback.

        Args:
            score: The metric of an evaluation to decide by, where more is better, such as
                ``"eval_accuracy"``; None to decide by ``val_loss``.
            val_loss: The validation loss; ignored if there is a score and it is not among the
                metrics.
            resume_from: The folder of the checkpoint that training resumes from, if it is not in
                the ``output_dir``.
            options: Options of :class:`esper.Grower`: ``controller``, ``at``, ``sample_input``,
                ``price``, ``ema`` and ``seed``.
        """
        require_options(options)
        self.names, self.resume_from = MetricNames(score, val_loss), resume_from
        self._options = options
        self._trainer: Any = None
        self._losses: list[Tensor] = []
        self._is_epoch_over = False
        self._clip: float | None = None

    def attach(self, trainer: Any) -> GrowthCallback:
        """Add the callback to a ``Trainer``, through which it also logs; returns itself."""
        self._trainer = trainer
        self._state = GrownState(trainer.model)
        self._state.is_waiting = True
        trainer.add_callback(self)
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Make the Grower, or resume it from the checkpoint that was loaded."""
        _require_supported(self._trainer, args)
        trainer, self._state.is_waiting = self._trainer, False
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        self.grower = Grower(
            trainer.model_wrapped,
            optimizer,
            epochs=math.ceil(state.num_train_epochs),
            scheduler=trainer.lr_scheduler,
            scaler=trainer.accelerator.scaler,
            **self._options,
        )
        if self._state.has_weights:
            folder = _folder(args, state) if self.resume_from is None else Path(self.resume_from)
            if not (folder / STATE_FILE).is_file():
                raise SavedModelError(
                    f"{folder / STATE_FILE} is missing, but a grown model was loaded; resume from "
                    "a checkpoint of the output_dir, or name its folder with resume_from=."
                )
            saved = read_file(folder / STATE_FILE, max_bytes=None)
            self._state.resume(self.grower, from_bytes(saved))
        # Gradients of seeds are averaged here, which has to come before clipping.
        if args.world_size > 1 and self._clip is None:
            self._clip, args.max_grad_norm = args.max_grad_norm, 0.0
        self._hook = trainer.model.register_forward_hook(self._catch_loss, with_kwargs=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Leave the model and the arguments as they were."""
        self._hook.remove()
        if self._clip is not None:
            args.max_grad_norm, self._clip = self._clip, None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Forget the losses of other calls than those of the training step that begins."""
        self._losses.clear()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Check the losses and gradients; a rollback drops them, so that nothing is updated."""
        losses, self._losses = self._losses, []
        with full_precision(self._trainer.model):
            _ = self.grower.slots  # the first step finds them
        if losses and self.grower.check_loss(torch.stack(losses).sum()) is not None:
            return
        if check_gradients(self.grower):
            if self._clip:
                trainer = self._trainer
                trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), self._clip)
            self.grower.commit()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Wait for the evaluation of the epoch."""
        self._is_epoch_over = True

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **_: Any) -> None:
        """Let the controller decide after an epoch, before a checkpoint is saved."""
        if not self._is_epoch_over:
            return
        self._is_epoch_over = False
        decision = self.grower.end_epoch(**self.names.read(metrics))
        self._trainer.log(metrics_of(decision))
        control.should_training_stop |= decision.op == "finish"

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Replace the optimizer's file, which goes by order, by the Grower's, which is by name."""
        if args.should_save and not args.save_only_model:
            content = to_bytes(self.grower.state_dict(weights=False))
            write_atomic(_folder(args, state) / STATE_FILE, content)
            (_folder(args, state) / "optimizer.pt").unlink(missing_ok=True)

    def _catch_loss(self, model: Any, _: Any, given: dict[str, Any], output: Any) -> None:
        loss = getattr(output, "loss", None)
        if loss is None or not (model.training and torch.is_grad_enabled()):
            return
        args = self._trainer.args
        share = 1.0 / self._trainer.current_gradient_accumulation_steps
        if given.get("num_items_in_batch") is not None:  # of all batches that are accumulated
            share = args.world_size if args.average_tokens_across_devices else 1.0
        self._losses.append(loss.detach() * share)


def from_pretrained(cls: type[Any], folder: str | Path) -> Any:
    """Return the grown model that a ``Trainer`` or ``save_pretrained`` saved.

    Args:
        cls: The class of the model, such as ``GPT2LMHeadModel``, or an auto class.
        folder: A checkpoint, or where the model was saved.

    Raises:
        SavedModelError: If its weights cannot be read, or are those of another model.
    """
    folder = Path(folder)
    state: dict[str, Tensor] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        try:
            with open_file(path):  # and not a pipe, which would never end
                state |= load_file(path)
        except (OSError, SafetensorError) as error:
            raise SavedModelError(f"{path} cannot be read: {message_of(error)}.") from error
    if not find_grown(state):
        return cls.from_pretrained(folder)
    with damage_named(folder):
        return _load_grown(cls, folder, state)


def _load_grown(cls: type[Any], folder: Path, state: dict[str, Tensor]) -> Any:
    config = _transformers.AutoConfig.from_pretrained(folder)
    model = _build(cls, config)
    plain = {name: t for name, t in state.items() if name.rpartition(".")[2] != KEY}
    own = model.state_dict()
    if all(name in own and own[name].shape == t.shape for name, t in plain.items()):
        state = plain  # the configuration has followed all growth
    else:
        before = read_structure(state).get(CONFIG) if KEY in state else None
        model = model if before is None else _build(cls, type(config).from_dict(before))
        rebuild_on_load(model)
    missing, unexpected = model.load_state_dict(state, strict=False)
    model.tie_weights()
    wrong = [*unexpected, *(set(missing) - set(model.all_tied_weights_keys))]
    if wrong:
        raise SavedModelError(f"{folder} holds another model than {cls.__name__}: {wrong[0]!r}.")
    return model.eval()


def _build(cls: type[Any], config: Any) -> Any:
    model = cls.from_config(config) if hasattr(cls, "from_config") else cls(config)
    return model.to(config.dtype or torch.float32)


def _folder(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _require_supported(trainer: Any, args: Any) -> None:
    if trainer is None:
        raise ConfigError(
            "GrowthCallback was given as callbacks=[...]; call GrowthCallback(...).attach(trainer) "
            "instead, because it logs through the trainer."
        )
    if args.eval_strategy != "epoch":
        raise ConfigError(
            f"eval_strategy is {str(args.eval_strategy.value)!r}; it must be 'epoch', because the "
            "controller decides after every epoch."
        )
    wrong = [name for name in ("fsdp", "deepspeed", "auto_find_batch_size") if getattr(args, name)]
    if wrong or args.n_gpu > 1:
        raise ConfigError(
            f"{wrong[0] if wrong else 'DataParallel'} is on; GrowthCallback works with one device "
            "and with DistributedDataParallel (torchrun), and a fixed batch size."
        )
