"""Every draw of the family is valid, within its ranges and determined by its seed."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from esper.errors import BadDataError, ConfigError
from esper.growth.host_slots import slots
from esper.tasks import TaskDraw, digits_family, load_digits, make_task
from esper.tasks.digits import digit_splits, standard_digits
from esper.tasks.digits_family import HOST_KINDS, draw_digits

FAMILY = make_task("digits-family")
KIND = HOST_KINDS["mlp"]
SEEDS = st.integers(0, 2**63)


def rows_shown(inputs: Tensor, *, noise: float) -> Tensor:
    """Return which of the 1,797 digits each image is nearest to: its own, if noise is small."""
    assert noise < 0.1
    return torch.cdist(inputs, standard_digits()[0]).argmin(1)


@given(seed=SEEDS)
def test_facts_are_within_their_ranges_and_describe_the_data(seed: int) -> None:
    draw = FAMILY.sample(seed)
    facts = draw.facts
    assert set(facts) == {
        *("n_digits", "n_classes", "n_samples", "label_noise", "input_noise"),
        *("learning_rate", "width"),
    }
    assert 4 <= facts["n_digits"] <= 10
    assert 2 <= facts["n_classes"] <= facts["n_digits"]
    assert 60 <= facts["n_samples"] <= 1000
    assert 0.0 <= facts["label_noise"] <= 0.4
    assert 0.0 <= facts["input_noise"] <= 0.3
    assert 1e-3 <= facts["learning_rate"] <= 3e-2
    assert facts["width"] in KIND.widths
    assert draw.learning_rate == facts["learning_rate"]
    assert draw.n_classes == facts["n_classes"]
    assert len(draw.data.train) == facts["n_samples"]
    n_digits, n_classes, hidden = (int(facts[k]) for k in ("n_digits", "n_classes", "width"))
    assert draw.title.startswith(f"{n_digits} digits in {n_classes} classes, ")
    assert draw.title.endswith(f"% input noise; MLP of {hidden}")


@given(seed=SEEDS)
def test_every_split_has_exactly_the_classes(seed: int) -> None:
    draw = draw_digits(seed)
    for _, samples in draw.data.splits():
        assert samples.targets.unique().tolist() == list(range(draw.n_classes))
        assert samples.inputs.shape == (len(samples.targets), 64)
        assert samples.inputs.isfinite().all()


@given(seed=SEEDS)
def test_the_same_seed_gives_the_same_draw(seed: int) -> None:
    one, other = draw_digits(seed), draw_digits(seed)
    assert one.facts == other.facts
    assert one.make_host is other.make_host
    for (_, mine), (_, theirs) in zip(one.data.splits(), other.data.splits(), strict=True):
        assert torch.equal(mine.inputs, theirs.inputs)
        assert torch.equal(mine.targets, theirs.targets)


def quiet_draws(count: int) -> list[tuple[int, TaskDraw]]:
    """Return draws with so little noise that each image can be recognised."""
    draws = ((seed, draw_digits(seed)) for seed in range(1000))
    quiet = ((seed, draw) for seed, draw in draws if draw.facts["input_noise"] < 0.05)
    return [next(quiet) for _ in range(count)]


def test_all_draws_share_three_disjoint_pools() -> None:
    pools = [set(part.tolist()) for part in digit_splits()]
    digits = load_digits()[1]
    for _, draw in quiet_draws(8):
        shown = [
            rows_shown(samples.inputs, noise=draw.facts["input_noise"])
            for _, samples in draw.data.splits()
        ]
        for rows, pool in zip(shown, pools, strict=True):
            assert set(rows.tolist()) <= pool
            assert len(set(rows.tolist())) == len(rows)
            assert len(digits[rows].unique()) == draw.facts["n_digits"]
        drawn_digits = digits[shown[1]].unique()
        # Validation and test hold every sample of the digits that were drawn.
        for rows, pool in zip(shown[1:], pools[1:], strict=True):
            everyone = {row for row in pool if digits[row] in drawn_digits}
            assert set(rows.tolist()) == everyone


def test_labels_follow_the_grouping_and_only_training_labels_are_wrong() -> None:
    digits = load_digits()[1]
    for _, draw in quiet_draws(8):
        noise = draw.facts["input_noise"]
        validation, test, train = draw.data.validation, draw.data.test, draw.data.train
        of_validation = digits[rows_shown(validation.inputs, noise=noise)]
        classes = torch.full((10,), -1)
        classes[of_validation] = validation.targets
        assert torch.equal(classes[of_validation], validation.targets)
        assert torch.equal(classes[digits[rows_shown(test.inputs, noise=noise)]], test.targets)
        right = classes[digits[rows_shown(train.inputs, noise=noise)]]
        is_wrong = right != train.targets
        expected = round(draw.facts["label_noise"] * len(right))
        assert int(is_wrong.sum()) == expected
        # Every class keeps a sample whose label is right.
        assert right[~is_wrong].unique().tolist() == list(range(draw.n_classes))


def test_wrong_labels_are_uniform_over_samples_and_classes() -> None:
    digits = load_digits()[1]
    places: list[float] = []
    shifts: Counter[int] = Counter()
    for _, draw in quiet_draws(30):
        if draw.n_classes < 4:
            continue
        train, validation = draw.data.train, draw.data.validation
        classes = torch.full((10,), -1)
        rows = rows_shown(validation.inputs, noise=draw.facts["input_noise"])
        classes[digits[rows]] = validation.targets
        right = classes[digits[rows_shown(train.inputs, noise=draw.facts["input_noise"])]]
        wrong = (right != train.targets).nonzero().flatten()
        places += (wrong / len(right)).tolist()
        if draw.n_classes == 4:
            shifts.update(((train.targets - right) % 4)[wrong].tolist())
    assert len(places) > 300
    assert np.mean(places) == pytest.approx(0.5, abs=0.06)
    assert set(shifts) == {1, 2, 3}


def test_every_digit_keeps_a_right_label_in_small_draws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(digits_family, "N_SAMPLES", (12, 12))
    monkeypatch.setattr(digits_family, "INPUT_NOISE", (0.0, 0.0))
    monkeypatch.setattr(digits_family, "LABEL_NOISE", (0.4, 0.4))
    digits = load_digits()[1]
    for seed in range(60):
        draw = draw_digits(seed)
        train, validation = draw.data.train, draw.data.validation
        classes = torch.full((10,), -1)
        classes[digits[rows_shown(validation.inputs, noise=0.0)]] = validation.targets
        of_train = digits[rows_shown(train.inputs, noise=0.0)]
        clean = of_train[classes[of_train] == train.targets]
        assert clean.unique().tolist() == (classes >= 0).nonzero().flatten().tolist()


def test_noise_has_the_deviation_in_the_facts() -> None:
    pixels, labels, unit = standard_digits()
    for seed in range(40):
        draw = draw_digits(seed)
        if draw.facts["n_digits"] < 10:
            continue
        # With all ten digits the test split is the whole pool, in its order.
        rows = digit_splits()[2]
        added = (draw.data.test.inputs - pixels[rows]) * unit
        assert float(added.std()) == pytest.approx(draw.facts["input_noise"], rel=0.05)
        assert len(labels[rows]) == len(added)
        return
    pytest.fail("no draw of all ten digits among 40")


def test_draws_are_uniform_over_the_ranges() -> None:
    facts = [draw_digits(seed).facts for seed in range(600)]

    def values(name: str) -> np.ndarray:
        return np.array([fact[name] for fact in facts])

    for name, choices in (("n_digits", range(4, 11)), ("width", KIND.widths)):
        counts = Counter(values(name).tolist())
        assert set(counts) == set(choices)
        expected = 600 / len(choices)
        # Five deviations of a binomial count.
        assert all(abs(count - expected) < 5 * math.sqrt(expected) for count in counts.values())
    assert np.mean(values("label_noise")) == pytest.approx(0.2, abs=0.025)
    assert np.mean(values("input_noise")) == pytest.approx(0.15, abs=0.02)
    middle = math.log(math.sqrt(1e-3 * 3e-2))
    assert np.mean(np.log(values("learning_rate"))) == pytest.approx(middle, abs=0.14)
    # Half of the draws are below the geometric middle of 60 and 1,000.
    assert np.mean(values("n_samples") < math.sqrt(60 * 1000)) == pytest.approx(0.5, abs=0.1)
    assert values("n_samples").max() > 900


def test_hosts_have_the_widths_that_were_drawn_and_slots() -> None:
    makers = {}
    for seed in range(60):
        draw = draw_digits(seed)
        makers[int(draw.facts["width"])] = draw.make_host or FAMILY.make_host
    assert set(makers) == set(KIND.widths)
    assert makers[KIND.largest] is FAMILY.make_host
    for width, make in makers.items():
        host = make(0)
        assert host.get_submodule("blocks.0.first").out_features == width
        assert host.get_submodule("blocks.1.first").out_features == width
        kinds = {slot.site.what: slot.site.size for slot in slots(host).values()}
        assert kinds == {"units": width, "module": 0}  # without skips, blocks cannot be copied


def test_invalid_draws_are_rejected_with_the_task_name(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = draw_digits(0)
    draw.data.test.inputs[3, 5] = math.nan
    monkeypatch.setitem(FAMILY.__dict__, "draw", lambda seed: draw)
    with pytest.raises(BadDataError, match="'digits-family', test split: 1 inputs"):
        FAMILY.sample(0)


@pytest.mark.parametrize("host", ["mlp", "cnn"])
def test_a_given_width_does_not_change_the_data(host: str) -> None:
    drawn, fixed = make_task("digits-family", host=host), None
    for width in HOST_KINDS[host].widths:
        fixed = make_task("digits-family", host=host, width=width)
        mine, theirs = fixed.sample(3), drawn.sample(3)
        assert mine.facts == {**theirs.facts, "width": width}
        assert torch.equal(mine.data.train.inputs, theirs.data.train.inputs)
        assert torch.equal(mine.data.train.targets, theirs.data.train.targets)
        made = (mine.make_host or fixed.make_host)(0)
        assert made.get_submodule("blocks.0.first").weight.shape[0] == width
    assert fixed is not None


def test_both_kinds_of_hosts_see_the_same_images() -> None:
    flat, maps = (make_task("digits-family", host=host).sample(5) for host in ("mlp", "cnn"))
    assert maps.data.test.inputs.shape[1:] == (1, 8, 8)
    assert torch.equal(maps.data.test.inputs.flatten(1), flat.data.test.inputs)


@pytest.mark.parametrize(("option", "value"), [("host", "rnn"), ("width", 3)])
def test_unknown_hosts_and_widths_are_rejected(option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"{option} is .*{value}"):
        make_task("digits-family", **{option: value})
