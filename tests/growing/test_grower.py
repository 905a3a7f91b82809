"""`esper.Grower` in loops like those of users, compared with the same loops without it."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import esper
from esper.config.growth import GrowthConfig
from esper.errors import ConfigError, EsperError, GrowerError
from esper.growth.modules import count_parameters
from esper.lifecycle.factored_actions import Op
from esper.tamiyo.controllers.simple import RandomController
from tests.tamiyo.fresh_controllers import fresh_controller

torch.manual_seed(0)
X = torch.randn(160, 8)
Y = (X[:, :3] ** 2).argmax(1)
TRAIN, VALIDATION = slice(0, 96), slice(96, None)
BATCH = 24
EPOCHS = 14


def make_model(seed: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(8, 12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3)
    )


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 1e-2)


def validate(model: nn.Module) -> tuple[float, float]:
    model.eval()
    with torch.no_grad():
        logits = model(X[VALIDATION])
    model.train()
    loss = cross_entropy(logits, Y[VALIDATION])
    return loss.item(), (logits.argmax(1) == Y[VALIDATION]).float().mean().item()


class Loop:
    """A training loop with a Grower."""

    def __init__(
        self,
        controller: Any = "fixed",
        epochs: int = EPOCHS,
        *,
        blends: bool = False,
        **options: Any,
    ) -> None:
        self.model = make_model()
        if blends:  # new units, instead of being committed at once
            config = GrowthConfig(commits_at_once=False)
            esper.add_slots(self.model, ["0>3", "3>5"], X[:2], growth_config=config)
        self.optimizer = make_optimizer(self.model)
        torch.manual_seed(3)
        self.grower = esper.Grower(
            self.model, self.optimizer, epochs=epochs, controller=controller, **options
        )

    def run_epoch(self, poison: Callable[[int, Tensor], Tensor] | None = None) -> esper.Decision:
        for number, start in enumerate(range(0, 96, BATCH)):
            rows = slice(start, start + BATCH)
            loss = cross_entropy(self.model(X[rows]), Y[rows])
            loss = loss if poison is None else poison(number, loss)
            loss.backward()
            self.grower.step(loss)
        loss, score = validate(self.model)
        return self.grower.end_epoch(
            val_loss=loss, score=score, validate=lambda: validate(self.model)[1]
        )

    def tensors(self) -> dict[str, Tensor]:
        return {name: t.clone() for name, t in self.model.state_dict().items()}


def assert_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def test_a_controller_that_waits_leaves_training_as_it_is() -> None:
    loop = Loop("no-growth", epochs=3)
    for _ in range(3):
        loop.run_epoch()
    model = make_model()
    optimizer = make_optimizer(model)
    torch.manual_seed(3)
    for _ in range(3):
        for start in range(0, 96, BATCH):
            rows = slice(start, start + BATCH)
            optimizer.zero_grad()
            cross_entropy(model(X[rows]), Y[rows]).backward()
            optimizer.step()
    assert_equal(loop.tensors(), dict(model.state_dict()))


@pytest.mark.parametrize("blends", [False, True])
def test_the_decisions_are_carried_out_and_the_export_computes_the_same(blends: bool) -> None:
    loop = Loop(blends=blends)
    stages = set[str]()
    for _ in range(EPOCHS):
        decision = loop.run_epoch()
        stages |= set(decision.stages.values())
        assert str(decision).count("\n") == 0
        assert decision.op in str(decision)
    assert stages == ({"blending", "holding", "fossilized"} if blends else {"fossilized"})
    assert type(loop.model) is nn.Sequential
    assert [type(module) for module in loop.model] == [type(module) for module in make_model()]
    plain = loop.grower.export()
    assert not any(type(module).__module__.startswith("esper") for module in plain.modules())
    loop.model.eval()
    plain.eval()
    torch.testing.assert_close(plain(X), loop.model(X), atol=1e-5, rtol=1e-5)
    assert sum(p.numel() for p in plain.parameters()) > sum(
        p.numel() for p in make_model().parameters()
    )


@pytest.mark.parametrize(
    ("controller", "blends"),
    [("fixed", False), ("fixed", True), pytest.param("learned", False, marks=pytest.mark.slow)],
)
def test_a_run_resumes_bit_for_bit_after_every_epoch(controller: str, blends: bool) -> None:
    whole = Loop(controller, blends=blends)
    states, tensors = [], []
    for _ in range(EPOCHS):
        whole.run_epoch()
        file = io.BytesIO()
        torch.save(whole.grower.state_dict(), file)
        states.append(file)
        tensors.append(whole.tensors())
    for epoch, file in enumerate(states[:-1], start=1):
        file.seek(0)
        loop = Loop(controller, blends=blends)
        loop.grower.load_state_dict(torch.load(file, weights_only=True))
        assert_equal(loop.tensors(), tensors[epoch - 1])
        for expected in tensors[epoch : epoch + 2]:
            loop.run_epoch()
            assert_equal(loop.tensors(), expected)
        again, before = loop.grower.trace[epoch], whole.grower.trace[epoch]
        assert again == before
    lives = [life for _, life in whole.grower.slots.lives.items()]
    assert any(life.committed for life in lives)


@settings(max_examples=4, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), share=st.sampled_from([2.0, 3.0, 5.0]))
def test_no_sequence_of_decisions_exceeds_the_limit_of_parameters(seed: int, share: float) -> None:
    model = make_model()
    config = GrowthConfig(min_training_epochs=0, min_holding_epochs=0, embargo_epochs=1)
    esper.add_slots(model, ["0>3", "3>5"], X[:2], growth_config=config)
    limit = round(share * count_parameters(model))
    weights = {Op.WAIT: 0.0, Op.GERMINATE: 9.0, Op.ADVANCE: 9.0, Op.FOSSILIZE: 3.0, Op.PRUNE: 0.3}
    controller = RandomController(op_weights=weights)
    grower = esper.Grower(
        model,
        make_optimizer(model),
        epochs=25,
        controller=controller,
        max_parameters=limit,
        seed=seed,
        sample_input=X[:2],
    )
    for _ in range(25):
        loss = cross_entropy(model(X[:8]), Y[:8])
        loss.backward()
        grower.step(loss)
        grower.end_epoch(score=0.5)
        assert count_parameters(grower.export()) <= limit
    grower.slots.end_growth(keep=True)
    assert count_parameters(model) == count_parameters(grower.export()) <= limit


def test_it_says_how_far_it_is_and_what_its_controller_expected() -> None:
    fresh = fresh_controller()
    scale = {"return_mean": 0.5, "return_std": 0.0}
    controller = replace(fresh, origin=scale, is_shipped=True, name="universal", esper="0.2.0")
    for begins in (True, False):
        loop = Loop(controller, epochs=2, sample_input=X[:BATCH])
        assert loop.grower.trace.expected is None
        if begins:
            loop.grower.begin(score=0.3)
        loop.run_epoch()
        # After an epoch, what is to come is not the whole return.
        assert loop.grower.trace.expected == (0.5 if begins else None)
        assert loop.grower.trace[-1].value == 0.5
        wanted = "Grower(Sequential, 1 of 2 epochs, controller learned (universal, 0.2))"
        assert repr(loop.grower) == wanted
    mine = esper.Grower(loop.model, loop.optimizer, epochs=2, controller="no-growth")
    assert repr(mine) == "Grower(Sequential, 0 of 2 epochs, controller no-growth)"


def test_a_misspelt_argument_is_answered_with_the_right_one() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ConfigError, match=r"argument 'epoch'\. Did you mean 'epochs'"):
        esper.Grower(model, optimizer, epoch=2)  # pyright: ignore[reportCallIssue]
    with pytest.raises(ConfigError, match="Did you mean 'max_parameters'"):
        esper.Grower(model, optimizer, epochs=2, max_params=9)  # pyright: ignore[reportCallIssue]


def test_a_bad_batch_is_rolled_back_and_said() -> None:
    loop = Loop(blends=True)
    for _ in range(2):
        loop.run_epoch()
    kept = loop.tensors()
    assert "blending" in loop.grower.trace[-1].stages.values()
    decision = loop.run_epoch(lambda number, loss: loss * math.nan if number == 0 else loss)
    assert "nan" in decision.why
    assert all(torch.isfinite(tensor).all() for tensor in loop.tensors().values())
    now = loop.tensors()  # the growing seed was pruned
    assert sum(map(torch.numel, now.values())) < sum(map(torch.numel, kept.values()))


def test_accumulated_gradients_give_the_update_of_the_whole_batch() -> None:
    results = []
    for parts in (1, 4):
        loop = Loop("no-growth", epochs=1)
        loop.model.eval()  # without dropout
        for part in torch.arange(96).chunk(parts):
            loss = cross_entropy(loop.model(X[part]), Y[part])
            (loss / parts).backward()
            loop.grower.step(loss, accumulate=parts)
        results.append(loop.tensors())
    for name, tensor in results[0].items():
        torch.testing.assert_close(tensor, results[1][name])


def test_checks_by_hand_are_the_same_as_step() -> None:
    loop, other = Loop(epochs=4), Loop(epochs=4)
    for _ in range(4):
        state = torch.get_rng_state()
        loop.run_epoch()
        torch.set_rng_state(state)
        for start in range(0, 96, BATCH):
            rows = slice(start, start + BATCH)
            loss = cross_entropy(other.model(X[rows]), Y[rows])
            loss.backward()
            if other.grower.check_loss(loss) is None and other.grower.check_gradients() is None:
                other.grower.commit()
                other.optimizer.step()
            other.optimizer.zero_grad()
        val_loss, score = validate(other.model)
        other.grower.end_epoch(
            val_loss=val_loss, score=score, validate=lambda: validate(other.model)[1]
        )
    assert_equal(loop.tensors(), other.tensors())


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({}, "neither score nor val_loss"),
        ({"score": math.nan}, "score is nan"),
        ({"val_loss": math.inf}, "val_loss is inf"),
    ],
)
def test_an_epoch_without_a_usable_score_is_refused_and_nothing_is_lost(
    values: dict[str, float], named: str
) -> None:
    loop = Loop(epochs=2)
    loop.run_epoch()
    kept = copy.deepcopy(loop.tensors())
    with pytest.raises(GrowerError, match=named):
        loop.grower.end_epoch(**values)
    assert_equal(kept, loop.tensors())
    assert loop.grower.epoch == 1
    loop.run_epoch()
    with pytest.raises(GrowerError, match="budget of 2 epochs"):
        loop.grower.end_epoch(score=0.5)


def test_a_model_changed_behind_the_growers_back_is_noticed() -> None:
    loop = Loop(epochs=3)
    loop.run_epoch()
    loop.model[3] = nn.Linear(12, 12)
    with pytest.raises(GrowerError, match=r"'3\.weight'.*replaced"):
        loop.grower.end_epoch(score=0.5)


def test_the_model_must_have_been_run() -> None:
    loop = Loop()
    with pytest.raises(GrowerError, match="sample_input"):
        loop.grower.end_epoch(score=0.5)


def test_a_validation_in_inference_mode_before_training_does_no_harm() -> None:
    loop = Loop(epochs=2)
    with torch.inference_mode():
        loop.model(X[VALIDATION])
    assert loop.run_epoch().flops > 0.0


def test_a_call_with_the_arguments_of_another_method_is_not_taken_as_a_sample() -> None:
    class Parallel(nn.Sequential):
        """Runs a training step through its own call, as Lightning does."""

        def run_step(self, batch: Any, number: int) -> Tensor:
            self.forward = lambda batch, number: nn.Sequential.forward(self, batch[0])
            try:
                return self(batch, number)
            finally:
                del self.forward

    model = Parallel(*make_model())
    grower = esper.Grower(model, make_optimizer(model), epochs=1, controller="no-growth")
    model.run_step((X, Y), 0)
    cross_entropy(model(X), Y).backward()
    grower.step(cross_entropy(model(X), Y).detach())
    assert grower.end_epoch(score=0.5).flops > 0.0


def test_a_copy_of_the_model_does_not_copy_the_grower() -> None:
    loop = Loop()
    twin = copy.deepcopy(loop.model)
    twin(X[:2])
    with pytest.raises(GrowerError, match="sample_input"):
        loop.grower.end_epoch(score=0.5)


def test_a_step_without_gradients_is_refused() -> None:
    loop = Loop()
    with pytest.raises(GrowerError, match="backward"):
        loop.grower.step(cross_entropy(loop.model(X), Y))


@pytest.mark.parametrize(
    ("options", "named"),
    [({"accumulate": 0}, "accumulate is 0"), ({"max_grad_norm": -1.0}, "-1.0")],
)
def test_settings_of_a_step_that_cannot_work_are_refused(
    options: dict[str, Any], named: str
) -> None:
    loop = Loop()
    loss = cross_entropy(loop.model(X), Y)
    loss.backward()
    with pytest.raises(ConfigError, match=named):
        loop.grower.step(loss, **options)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"score": "0.5"}, "score is a str"),
        ({"score": 0.5, "validate": 3}, "validate is an int"),
        ({"score": torch.ones(2)}, "score is a"),
    ],
)
def test_scores_that_are_no_numbers_are_refused(values: dict[str, Any], named: str) -> None:
    loop = Loop()
    loop.run_epoch()
    with pytest.raises(EsperError, match=named):
        loop.grower.end_epoch(**values)


def test_a_state_of_another_optimizer_is_refused() -> None:
    loop = Loop()
    loop.run_epoch()
    state = loop.grower.state_dict()
    model = make_model()
    other = esper.Grower(model, torch.optim.SGD(model.parameters(), 0.1), epochs=EPOCHS)
    with pytest.raises(EsperError, match=r"AdamW.*SGD"):
        other.load_state_dict(state)


def test_a_frozen_model_is_refused() -> None:
    model = make_model().requires_grad_(False)
    with pytest.raises(ConfigError, match="no trainable parameter"):
        esper.Grower(model, torch.optim.SGD(model.parameters(), 0.1), epochs=2)


def test_a_state_does_not_change_as_training_goes_on() -> None:
    loop = Loop("no-growth")
    loop.run_epoch()
    state = loop.grower.state_dict()
    kept = copy.deepcopy(state)
    loop.run_epoch()
    for name, values in state["optimizers"]["state"].items():
        assert_equal(values, kept["optimizers"]["state"][name])
    assert_equal(state["model"], kept["model"])


@pytest.mark.parametrize("value", [None, "high", math.nan])
def test_a_validation_that_gives_no_number_is_refused_before_anything_changes(value: Any) -> None:
    loop = Loop(blends=True)
    while "holding" not in loop.run_epoch().stages.values():
        pass
    epoch, kept = loop.grower.epoch, loop.tensors()
    with pytest.raises(EsperError, match=r"validate\(\)"):
        loop.grower.end_epoch(score=0.5, validate=lambda: value)
    assert loop.grower.epoch == epoch
    assert_equal(kept, loop.tensors())
    loop.run_epoch()


def run_ruined_epoch(loop: Loop, batch: int, **given: Any) -> esper.Decision:
    """Train an epoch with a step that is far too long, and end it with the values given."""
    (group,) = loop.optimizer.param_groups
    for number, start in enumerate(range(0, 96, BATCH)):
        rows = slice(start, start + BATCH)
        group["lr"] = 1e6 if number == batch else 1e-2
        loss = cross_entropy(loop.model(X[rows]), Y[rows])
        loss.backward()
        loop.grower.step(loss)
    group["lr"] = 1e-2
    loss, score = validate(loop.model)
    values = {"val_loss": loss, "score": score}
    return loop.grower.end_epoch(**{name: values[name] for name in given.get("names", values)})


@pytest.mark.parametrize("batch", range(4))
@pytest.mark.parametrize("names", [("val_loss",), ("score",), ("val_loss", "score")])
def test_a_ruined_model_is_never_a_good_state(batch: int, names: tuple[str, ...]) -> None:
    """Whichever step ruins it, it trains on from where it was, and what is exported is good."""
    loop = Loop("no-growth", epochs=6)
    for _ in range(3):
        loop.run_epoch()
    usual, _ = validate(loop.model)
    kept = loop.tensors()
    decision = run_ruined_epoch(loop, batch, names=names)
    if batch == 3 and "val_loss" in names:
        assert "the validation loss is" in decision.why
        assert_equal(kept, loop.tensors())
    decision = loop.run_epoch()
    assert loop.grower.was_rolled_back == (batch == 3 and names == ("score",))
    assert validate(loop.grower.export())[0] < 2.0 * usual
    assert decision.val_loss is not None
    assert decision.val_loss < 2.0 * usual
    assert not loop.run_epoch().why.startswith("the model was rolled back")


def test_a_validation_loss_that_is_not_finite_rolls_back_what_had_one() -> None:
    loop = Loop("no-growth", epochs=4)
    loop.run_epoch()
    kept = loop.tensors()
    loss = cross_entropy(loop.model(X[:BATCH]), Y[:BATCH])
    loss.backward()
    loop.grower.step(loss)
    decision = loop.grower.end_epoch(val_loss=math.inf, score=0.1)
    assert "the validation loss is inf" in decision.why
    assert decision.val_loss is None
    assert_equal(kept, loop.tensors())


def test_a_validation_that_never_gives_a_finite_loss_is_no_reason_to_roll_back() -> None:
    loop = Loop("no-growth", epochs=2)
    for _ in range(2):
        loss = cross_entropy(loop.model(X[:BATCH]), Y[:BATCH])
        loss.backward()
        loop.grower.step(loss)
        assert "rolled back" not in loop.grower.end_epoch(val_loss=math.nan, score=0.1).why
