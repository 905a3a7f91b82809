"""What a Grower carries through growth, compared with the same training with no growth.

A seed that trains in isolation must not change its host, so until it is blended in, both trainings
agree to the bit: parameters, buffers, moments, averages, learning rates and the scale of the loss.
When the model's own layers grow, parameters are replaced, and everything goes on with the new ones.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adafactor, Adam, AdamW, Optimizer, lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import esper
from esper.config.growth import GrowthConfig
from esper.errors import SlotError
from esper.growth.modules import count_parameters
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.stages import Stage

generator = torch.Generator().manual_seed(0)
X = torch.randn(48, 6, generator=generator)
Y = (X[:, :3] ** 2).argmax(1)
BATCH = 12
EPOCHS = 40


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 10)
        self.down = nn.Linear(10, width)
        # Not between the layers: there it would draw more numbers if these get more units.
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.down(torch.relu(self.up(self.norm(x)))))


class Model(nn.Module):
    """Residual blocks with norms and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


BLOCK, UNITS, BLOCKS = "blocks.0", "blocks.*.up>down", "blocks.*"
OWN = [(UNITS, "widen_small"), (BLOCKS, "deepen")]
"""Places where the model's own layers grow."""

Optimizers = Callable[[nn.Module], Sequence[Optimizer]]


def adam(model: nn.Module) -> list[Optimizer]:
    return [Adam(model.parameters(), 1e-2)]


class Training:
    """A training loop, with a Grower or without."""

    def __init__(
        self,
        make_model: Callable[[], nn.Module] = Model,
        optimizers: Optimizers = adam,
        *,
        at: Sequence[str] | None = None,
        schedule: Callable[[Optimizer], Any] | None = None,
        average: Callable[[nn.Module], AveragedModel] | None = None,
        scaler: Callable[[], torch.amp.GradScaler] | None = None,
        autocast: torch.dtype | None = None,
        accumulate: int = 1,
        max_grad_norm: float | None = None,
        clips_by_hand: bool = False,
    ) -> None:
        torch.manual_seed(1)
        self.model = make_model()
        self.optimizers = list(optimizers(self.model))
        self.schedulers = [schedule(each) for each in self.optimizers] if schedule else []
        self.average = average(self.model) if average else None
        self.scaler = scaler() if scaler else None
        self.autocast, self.accumulate = autocast, accumulate
        self.max_grad_norm, self.clips_by_hand = max_grad_norm, clips_by_hand
        self.host = list(self.model.parameters())
        self.host_buffers = list(self.model.buffers())
        self.epoch = 0
        self.spoils = False
        """Whether the next batch overflows."""
        self.steps_by_hand = False
        self.rates: list[list[float]] = []
        self.grower: esper.Grower | None = None
        if at is not None:
            config = GrowthConfig(commits_at_once=False)
            esper.add_slots(self.model, at, X[:2], growth_config=config)
            self.grower = esper.Grower(
                self.model,
                self.optimizers,
                epochs=EPOCHS,
                controller="no-growth",
                sample_input=X[:2],
                scheduler=self.schedulers or None,
                ema=self.average,
                scaler=self.scaler,
            )

    def run_epoch(self) -> None:
        torch.manual_seed(self.epoch)
        batches = list(range(0, len(X), BATCH))
        for number, start in enumerate(batches):
            rows = slice(start, start + BATCH)
            with torch.autocast("cpu", self.autocast, enabled=self.autocast is not None):
                loss = cross_entropy(self.model(X[rows]).float(), Y[rows])
            part = loss / self.accumulate
            if self.spoils:
                part, self.spoils = part * float("inf"), False
            (part if self.scaler is None else self.scaler.scale(part)).backward()
            if self.clips_by_hand and self.max_grad_norm is not None:
                clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
            is_last = number == len(batches) - 1
            if self.grower is None:
                self._step_plainly(is_due=(number + 1) % self.accumulate == 0 or is_last)
            elif self.steps_by_hand:
                assert self.grower.check_loss(loss) is None
                assert self.grower.check_gradients() is None
                self.grower.commit()
                self._step_plainly(is_due=True)
            else:
                limit = None if self.clips_by_hand else self.max_grad_norm
                report = self.grower.step(loss, accumulate=self.accumulate, max_grad_norm=limit)
                assert report is None
            if self.average is not None:
                self.average.update_parameters(self.model)
            for each in self.schedulers:
                if isinstance(each, lr_scheduler.OneCycleLR):
                    each.step()
        if self.grower is not None:
            self.grower.end_epoch(score=0.1 * self.epoch)
        for each in self.schedulers:
            if isinstance(each, lr_scheduler.ReduceLROnPlateau):
                each.step(1.0)
            elif not isinstance(each, lr_scheduler.OneCycleLR):
                each.step()
        self.epoch += 1
        self.rates.append([group["lr"] for each in self.optimizers for group in each.param_groups])

    def _step_plainly(self, *, is_due: bool) -> None:
        if not is_due:
            return
        if self.scaler is not None:
            for each in self.optimizers:
                self.scaler.unscale_(each)
        if self.max_grad_norm is not None and not self.clips_by_hand:
            clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
        for each in self.optimizers:
            each.step() if self.scaler is None else self.scaler.step(each)
        if self.scaler is not None:
            self.scaler.update()
        for each in self.optimizers:
            each.zero_grad()

    def live(self, slot: str, blueprint: str, plain: Training | None = None) -> None:
        """Grow a seed from germination to absorption; ``plain`` is compared until it is blended."""
        assert self.grower is not None
        places = self.grower.slots
        self.run_both(plain)
        places.germinate(slot, blueprint, tempo_epochs=2)
        if places[slot].site.what == "module":
            self.run_both(plain)
            assert places.advance(slot).was_done
            self.run_both(plain)
            self.run_both(plain)
        while places[slot].stage != Stage.HOLDING:
            places.advance(slot)
            self.run_epoch()
        assert places.fossilize(slot).was_done
        while places[slot].stage != Stage.DORMANT:
            self.run_epoch()
        assert len(places[slot].life.fossils) == 1

    def run_both(self, plain: Training | None) -> None:
        self.run_epoch()
        if plain is not None:
            plain.run_epoch()
            assert_same_host(self, plain)

    def members(self) -> Iterator[tuple[Optimizer, dict[str, Any], nn.Parameter]]:
        for each in self.optimizers:
            for group in each.param_groups:
                for parameter in group["params"]:
                    yield each, group, parameter


def assert_same_host(grown: Training, plain: Training) -> None:
    for ours, theirs in zip(
        chain(grown.host, grown.host_buffers), chain(plain.host, plain.host_buffers), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert grown.rates == plain.rates
    twins = dict(zip(grown.host, plain.host, strict=True))
    for mine, other in zip(grown.optimizers, plain.optimizers, strict=True):
        shared = {twins[p]: state for p, state in mine.state.items() if p in twins}
        assert shared.keys() == other.state.keys()
        for parameter, state in other.state.items():
            for key, value in state.items():
                found = shared[parameter][key]
                assert torch.equal(torch.as_tensor(found), torch.as_tensor(value)), key
    if grown.average is not None and plain.average is not None:
        names = {id(p): name for name, p in grown.model.named_parameters()}
        ours = dict(grown.average.module.named_parameters())
        for host, theirs in zip(grown.host, plain.average.module.parameters(), strict=True):
            assert torch.equal(ours[names[id(host)]], theirs)
    if grown.scaler is not None and plain.scaler is not None:
        assert grown.scaler.get_scale() == plain.scaler.get_scale()


def is_vector(parameter: Tensor) -> bool:
    return parameter.ndim < 2


def split_by_kind(model: nn.Module) -> list[dict[str, Any]]:
    """Return groups as they are usual: no weight decay for biases and norms."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if not is_vector(p)], "weight_decay": 0.1, "lr": 1e-2},
        {"params": [p for p in parameters if is_vector(p)], "weight_decay": 0.0, "lr": 3e-3},
    ]


def muon_and_adam(model: nn.Module) -> list[Optimizer]:
    matrices, vectors = (group["params"] for group in split_by_kind(model))
    return [torch.optim.Muon(matrices, lr=1e-2), AdamW(vectors, 1e-2)]


OPTIMIZERS: dict[str, Optimizers] = {
    "sgd with momentum": lambda model: [SGD(model.parameters(), 0.05, momentum=0.9)],
    "adam foreach": lambda model: [Adam(model.parameters(), 1e-2, foreach=True)],
    "adam fused": lambda model: [Adam(model.parameters(), 1e-2, fused=True)],
    "adamw foreach, split": lambda model: [AdamW(split_by_kind(model), foreach=True)],
    "adamw fused, split": lambda model: [AdamW(split_by_kind(model), fused=True)],
    "adafactor, split": lambda model: [Adafactor(split_by_kind(model))],
    "muon and adamw": muon_and_adam,
}


QUICK = ("adamw fused, split", "muon and adamw")


@pytest.mark.parametrize(
    ("name", "slot", "blueprint"),
    [
        *((name, BLOCK, "mlp_small") for name in OPTIMIZERS),
        *(
            pytest.param(name, *own, marks=() if name in QUICK else pytest.mark.slow)
            for name in OPTIMIZERS
            for own in OWN
        ),
    ],
)
def test_optimizers_keep_their_state_and_groups(name: str, slot: str, blueprint: str) -> None:
    grown, plain = (Training(optimizers=OPTIMIZERS[name], at=at) for at in ([slot], None))
    n_groups = [len(each.param_groups) for each in grown.optimizers]
    size = count_parameters(grown.model)
    grown.live(slot, blueprint, plain)
    grown.run_epoch()
    assert [len(each.param_groups) for each in grown.optimizers] == n_groups
    members = list(grown.members())
    assert {p for _, _, p in members} == set(grown.model.parameters())
    assert len(members) == len(set(grown.model.parameters()))
    assert count_parameters(grown.model) > size
    for optimizer, group, parameter in members:
        assert optimizer.state[parameter], "every parameter has been updated"
        if "split" in name:
            assert group["weight_decay"] == (0.0 if is_vector(parameter) else 0.1)
            assert group["lr"] == (3e-3 if is_vector(parameter) else 1e-2)
        if "muon" in name:
            assert (type(optimizer) is AdamW) is is_vector(parameter)


def test_a_group_of_its_own_for_each_block_gets_what_grows_there() -> None:
    def by_block(model: nn.Module) -> list[Optimizer]:
        names = ("stem", "blocks.0", "blocks.1", "head")
        parts = [model.get_submodule(name) for name in names]
        rates = (1e-3, 2e-3, 3e-3, 4e-3)
        return [
            AdamW(
                [
                    {"params": list(p.parameters()), "lr": r}
                    for p, r in zip(parts, rates, strict=True)
                ]
            )
        ]

    training = Training(optimizers=by_block, at=["blocks.1"])
    training.live("blocks.1", "mlp_small")
    own = {id(parameter) for parameter in training.host}
    assert {group["lr"] for _, group, p in training.members() if id(p) not in own} == {3e-3}


def test_norms_of_a_seed_join_the_norms_without_decay() -> None:
    class Convolutions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(
                nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()
            )
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.block(x.unflatten(1, (1, 2, 3))).mean((2, 3)))

    split = OPTIMIZERS["adamw foreach, split"]
    training, plain = (Training(Convolutions, split, at=at) for at in (["block"], None))
    training.live("block", "bottleneck", plain)
    for _, group, parameter in training.members():
        assert group["weight_decay"] == (0.0 if is_vector(parameter) else 0.1)


def test_muon_alone_is_refused_when_the_grower_is_made() -> None:
    model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    with pytest.raises(SlotError, match=r"Muon.*AdamW"):
        esper.Grower(model, torch.optim.Muon(model.parameters()), epochs=3)


def sequential(optimizer: Optimizer) -> Any:
    warm_up = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    return lr_scheduler.SequentialLR(
        optimizer, [warm_up, lr_scheduler.CosineAnnealingLR(optimizer, 12)], [3]
    )


def chained(optimizer: Optimizer) -> Any:
    parts = [lr_scheduler.ConstantLR(optimizer, 0.5, 2), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    return lr_scheduler.ChainedScheduler(parts, optimizer)


SCHEDULES: dict[str, Callable[[Optimizer], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 3),
    "multi-step": lambda o: lr_scheduler.MultiStepLR(o, [2, 5]),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, [lambda n: 0.9**n, lambda n: 1 / (n + 1)]),
    "multiplicative": lambda o: lr_scheduler.MultiplicativeLR(o, lambda n: 0.95),
    "warm-up": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=6),
    "sequential": sequential,
    "chained": chained,
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, [0.02, 0.01], total_steps=200),
    "cyclic": lambda o: lr_scheduler.CyclicLR(
        o, [1e-3, 2e-3], [1e-2, 2e-2], 3, cycle_momentum=False
    ),
    "warm restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, 10, power=2.0),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
}


OFTEN = ("lambda", "sequential", "chained", "one cycle", "plateau")
"""The schedules that differ from others in more than a formula."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow) for name in SCHEDULES],
)
def test_learning_rates_are_those_of_plain_training(name: str) -> None:
    options: dict[str, Any] = {
        "optimizers": OPTIMIZERS["adamw foreach, split"],
        "schedule": SCHEDULES[name],
    }
    grown, plain = (Training(**options, at=at) for at in ([BLOCK], None))
    grown.live(BLOCK, "mlp_small", plain)
    while plain.epoch < grown.epoch:
        plain.run_epoch()
    assert grown.rates == plain.rates
    resumed = resume(grown, Training(**options, at=[BLOCK]))
    for training in (grown, plain, resumed):
        training.run_epoch()
    assert grown.rates[-1] == plain.rates[-1] == resumed.rates[-1]


def resume(training: Training, other: Training) -> Training:
    """Save a training to a file and load it into another."""
    assert training.grower is not None
    assert other.grower is not None
    file = io.BytesIO()
    torch.save(training.grower.state_dict(), file)
    file.seek(0)
    other.grower.load_state_dict(torch.load(file, weights_only=True))
    other.epoch = training.epoch
    return other


def exponential(model: nn.Module) -> AveragedModel:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))


def with_buffers(model: nn.Module) -> AveragedModel:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)


class Normed(Model):
    """With batch norms, and one of them in the block that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8))
        for block in self.blocks:
            assert isinstance(block, Block)
            block.norm = nn.BatchNorm1d(8)


@pytest.mark.parametrize("average", [AveragedModel, exponential, with_buffers])
def test_averages_follow_every_change(average: Callable[[nn.Module], AveragedModel]) -> None:
    grown, plain = (
        Training(Normed, average=average, at=at) for at in ([BLOCK, UNITS, BLOCKS], None)
    )
    for slot, blueprint in OWN:
        grown.live(slot, blueprint, plain)
        plain = None
    assert grown.grower is not None
    places = grown.grower.slots
    places.germinate("blocks.0", "mlp_small", style=BlendStyle.LEARNED_GATE)
    grown.run_epoch()
    places.prune("blocks.0")
    grown.run_epoch()
    assert grown.average is not None
    names = dict(grown.model.named_parameters())
    copies = dict(grown.average.module.named_parameters())
    assert names.keys() == copies.keys()
    assert not any(names[name] is copies[name] for name in names)
    grown.average.eval()
    before = grown.average(X)
    grown.average.train()
    update_bn([X[:24], X[24:]], grown.average)
    grown.average.eval()
    assert torch.isfinite(grown.average(X)).all()
    assert not torch.equal(before, grown.average(X))


@pytest.mark.parametrize(("slot", "blueprint"), [(BLOCK, "mlp_small"), *OWN])
def test_an_average_of_the_latest_weights_alone_computes_what_the_model_does(
    slot: str, blueprint: str
) -> None:
    class Watched(Training):
        def run_epoch(self) -> None:
            super().run_epoch()
            assert self.average is not None
            self.average.update_parameters(self.model)
            self.model.eval()
            self.average.eval()
            assert torch.equal(self.average(X), self.model(X))
            self.model.train()

    def latest(model: nn.Module) -> AveragedModel:
        return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.0), use_buffers=True)

    Watched(Normed, average=latest, at=[slot]).live(slot, blueprint)


def test_old_entries_keep_their_averages_when_a_layer_grows_and_when_that_is_undone() -> None:
    training = Training(Normed, average=exponential, at=[UNITS])
    training.run_epoch()
    assert training.grower is not None
    assert training.average is not None
    name = "blocks.1.up.weight"
    before = training.average.module.get_parameter(name).clone()
    training.grower.slots.germinate(UNITS, "widen_large")
    grown, own = (m.get_parameter(name) for m in (training.average.module, training.model))
    assert torch.equal(grown[:10], before)
    assert torch.equal(grown[10:], own[10:])
    assert not torch.equal(grown[:10], own[:10])
    training.grower.check_loss(float("nan"))
    assert torch.equal(training.average.module.get_parameter(name), before)
    training.run_epoch()


@pytest.mark.parametrize("average", [AveragedModel, with_buffers])
def test_averages_resume_where_they_were(average: Callable[[nn.Module], AveragedModel]) -> None:
    grown = Training(Normed, average=average, at=[UNITS, BLOCKS])
    for slot, blueprint in OWN:
        grown.live(slot, blueprint)
    other = resume(grown, Training(Normed, average=average, at=[UNITS, BLOCKS]))
    for training in (grown, other):
        training.run_epoch()
    assert grown.average is not None
    assert other.average is not None
    states = [training.average.state_dict() for training in (grown, other)]
    torch.testing.assert_close(*states, rtol=0, atol=0)


def make_scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)


@pytest.mark.parametrize(
    ("autocast", "scaler", "max_grad_norm"),
    [
        (torch.bfloat16, None, None),
        (torch.float16, make_scaler, 0.3),
        (None, make_scaler, None),
        (None, None, 0.3),
    ],
)
def test_precision_scaling_and_clipping(
    autocast: torch.dtype | None, scaler: Any, max_grad_norm: float | None
) -> None:
    options: dict[str, Any] = {
        "autocast": autocast,
        "scaler": scaler,
        "max_grad_norm": max_grad_norm,
    }
    grown, plain = (Training(**options, at=at) for at in ([BLOCK], None))
    grown.live(BLOCK, "mlp_small", plain)


@pytest.mark.parametrize("steps_by_hand", [False, True])
def test_a_batch_that_overflows_lowers_the_scale_and_nothing_else(steps_by_hand: bool) -> None:
    grown, plain = (Training(scaler=make_scaler, at=at) for at in ([BLOCK], None))
    grown.steps_by_hand = steps_by_hand
    assert grown.scaler is not None
    grown.run_both(plain)
    before = grown.scaler.get_scale()
    grown.spoils = plain.spoils = True
    grown.run_both(plain)
    assert grown.scaler.get_scale() < before
    grown.live(BLOCK, "mlp_small", plain)


def test_clipping_by_hand_between_backward_and_step() -> None:
    options: dict[str, Any] = {"max_grad_norm": 0.3, "clips_by_hand": True}
    training, plain = (Training(**options, at=at) for at in ([BLOCK], None))
    training.run_both(plain)
    training.live(BLOCK, "mlp_small")


@pytest.mark.parametrize(
    ("max_grad_norm", "scaler"), [(None, None), (0.3, None), (0.3, make_scaler)]
)
def test_batches_left_over_when_accumulating_are_used_at_the_end_of_the_epoch(
    max_grad_norm: float | None, scaler: Any
) -> None:
    # Four batches by three: one is left over.
    options: dict[str, Any] = {"accumulate": 3, "max_grad_norm": max_grad_norm, "scaler": scaler}
    grown, plain = (Training(**options, at=at) for at in ([BLOCK], None))
    grown.live(BLOCK, "mlp_small", plain)


class Tied(Model):
    """Its stem and its head share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.head = nn.Linear(8, 6, bias=False)
        self.back = nn.Parameter(torch.randn(8, 6))
        self.stem.weight = self.back

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return nn.functional.linear(x, self.back.t())


class Frozen(Model):
    """Its stem and the block that grows are frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.stem.requires_grad_(False)
        self.blocks[0].requires_grad_(False)


class Recurrent(Model):
    """An LSTM and a GRU beside the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 4, batch_first=True)
        self.gru = nn.GRU(4, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(x.unsqueeze(-1))
        x = self.gru(states)[0][:, -1]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Twice(Model):
    """Its second block is used twice."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](self.stem(x))
        return self.head(self.blocks[1](self.blocks[1](x)))


@pytest.mark.parametrize("make_model", [Tied, Frozen, Normed, Recurrent, Twice])
@pytest.mark.parametrize(("slot", "blueprint"), [(BLOCK, "mlp_small"), (UNITS, "widen_small")])
def test_models_of_many_kinds(
    make_model: Callable[[], nn.Module], slot: str, blueprint: str
) -> None:
    if make_model is Twice:
        slot = slot.replace("*", "0")  # the other block runs twice
    grown, plain = (Training(make_model, at=at) for at in ([slot], None))
    before = {name: p.detach().clone() for name, p in grown.model.named_parameters()}
    trainable = {name: p.requires_grad for name, p in grown.model.named_parameters()}
    grown.live(slot, blueprint, plain)
    for name, parameter in grown.model.named_parameters():
        original = name.replace("blocks.0.block.", "blocks.0.")
        if original in before:
            assert parameter.requires_grad == trainable[original]
            old = before[original]
            if not parameter.requires_grad:  # new units stand behind the old ones
                own = parameter[tuple(slice(size) for size in old.shape)]
                torch.testing.assert_close(own, old, rtol=0, atol=0)
    assert grown.grower is not None
    grown.model.eval()
    torch.testing.assert_close(
        grown.grower.export().eval()(X), grown.model(X), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("make_model", [Tied, Recurrent, Twice])
def test_slots_are_found_in_models_of_many_kinds(make_model: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make_model()
    size = count_parameters(model)
    grower = esper.Grower(model, adam(model), epochs=8, controller="fixed")
    for _ in range(8):
        loss = cross_entropy(model(X), Y)
        loss.backward()
        grower.step(loss)
        grower.end_epoch(val_loss=loss.item())
    assert count_parameters(model) > size
    assert type(grower.export()) is make_model
