"""Every draw of the prior is valid, within its ranges, learnable and determined by its seed."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from functools import lru_cache

import numpy as np
import pytest
import torch

from esper.config.growth import GPTHostConfig, HostConfig, MLPHostConfig, PopulationConfig
from esper.environment.draws import make_host_data, split_in_half
from esper.errors import ConfigError
from esper.growth.host_slots import slots
from esper.growth.hosts import HostMaker
from esper.populations import HostSpec, make_population
from esper.tasks import TaskDraw, make_task
from esper.tasks.prior import KINDS, draw_prior, family, nuisances, teachers
from esper.tasks.prior.hosts import catalogue
from esper.tasks.prior.teachers import CLASSIFYING, REGRESSING

PRIOR = make_task("prior")
N_DRAWS = 300
RANGES = {
    "learning_rate": (3e-4, 3e-2),
    "batch_size": (16, 128),
    "batches_per_epoch": (1, 12),
    "n_epochs": (8, 64),
    "flop_price": (0.0, 0.3),
    "n_samples": (60, 20_000),
    "n_classes": (0, 26),
    "label_noise": (0.0, 0.5),
    "input_noise": (0.0, 0.5),
    "n_features": (2, 64),
    "n_informative": (2, 64),
    "n_irrelevant": (0, 62),
    "heaviness": (0.0, 1.2),
    "teacher_depth": (1, 6),
    "teacher_width": (2, 64),
    "teacher_trees": (1, 8),
    "teacher_order": (1, 4),
    "host_hidden": (2, 64),
    "host_width": (3, 32),
    "host_blocks": (1, 4),
}


@lru_cache(maxsize=1)
def draws() -> tuple[TaskDraw, ...]:
    return tuple(PRIOR.sample(seed) for seed in range(N_DRAWS))


def kind_of(draw: TaskDraw) -> str:
    return KINDS[int(draw.facts["kind"])]


def config_of(draw: TaskDraw) -> HostConfig:
    assert isinstance(draw.make_host, HostMaker)
    return draw.make_host.config


def make_rng(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def test_draws_are_within_their_ranges_and_recorded() -> None:
    for draw in draws():
        for name, (minimum, maximum) in RANGES.items():
            if name in draw.facts:
                assert minimum <= draw.facts[name] <= maximum, name
        for name in ("learning_rate", "batch_size", "batches_per_epoch", "n_epochs", "flop_price"):
            assert getattr(draw, name) == draw.facts[name]
        assert draw.n_classes == draw.facts["n_classes"]
        assert len(draw.data.train) == draw.facts["n_samples"]
        assert draw.batch_size is not None
        assert draw.batches_per_epoch is not None
        assert draw.batch_size % 16 == 0
        one_pass = max(len(draw.data.train) // draw.batch_size, 1)
        assert draw.batches_per_epoch == min(one_pass, 4 if kind_of(draw) == "markov" else 12)
        assert catalogue().designs[int(draw.facts["design"])] is draw.make_host
        assert f"{len(draw.data.train):,} samples" in draw.title
    assert {name for name in RANGES if not any(name in draw.facts for draw in draws())} == set()


@pytest.mark.parametrize("name", ["learning_rate", "n_epochs", "n_samples"])
def test_ranges_are_used_evenly_on_a_logarithmic_scale(name: str) -> None:
    minimum, maximum = RANGES[name]
    numbers = [draw.facts[name] for draw in draws() if kind_of(draw) in (*CLASSIFYING, *REGRESSING)]
    places = [math.log(number / minimum) / math.log(maximum / minimum) for number in numbers]
    assert min(places) < 0.05
    assert max(places) > 0.95
    assert np.mean(places) == pytest.approx(0.5, abs=0.07)


def test_every_kind_occurs_as_often_as_it_should() -> None:
    assert sum(family.SHARES.values()) == pytest.approx(1.0)
    counts = Counter(kind_of(draw) for draw in draws())
    assert set(counts) == set(KINDS)
    for kind, share in family.SHARES.items():
        assert counts[kind] == pytest.approx(N_DRAWS * share, abs=4 * math.sqrt(N_DRAWS * share))


def test_half_of_the_prices_are_zero_and_the_rest_are_spread() -> None:
    prices = np.array([draw.facts["flop_price"] for draw in draws()])
    assert np.mean(prices == 0.0) == pytest.approx(0.5, abs=0.12)
    paid = np.log(prices[prices > 0.0])
    assert paid.min() >= math.log(0.01) - 1e-12
    assert paid.mean() == pytest.approx(math.log(math.sqrt(0.01 * 0.3)), abs=0.3)


def test_splits_have_the_promised_sizes_and_all_classes() -> None:
    for draw in draws():
        kind, data = kind_of(draw), draw.data
        if kind == "markov":
            assert (len(data.validation), len(data.test)) == (100, 150)
            continue
        if not kind.startswith("digit"):
            assert (len(data.validation), len(data.test)) == (400, 600)
        if kind in REGRESSING:
            assert draw.n_classes == 0
            continue
        for samples in (data.train, *split_in_half(data.validation), data.test):
            assert samples.targets.unique().tolist() == list(range(draw.n_classes))


def test_no_sample_is_in_two_splits() -> None:
    for draw in draws()[60:100]:
        if kind_of(draw) != "markov":
            inputs = torch.cat([samples.inputs.flatten(1) for _, samples in draw.data.splits()])
            assert len(inputs.unique(dim=0)) == len(inputs)


def test_hosts_fit_their_data_and_have_one_to_four_slots() -> None:
    seen = set[HostMaker]()
    for draw in draws()[:60]:
        if draw.make_host in seen:
            continue
        assert isinstance(draw.make_host, HostMaker)
        seen.add(draw.make_host)
        host = draw.make_host(3)
        assert 1 <= len(slots(host)) <= PRIOR.max_slots == 4
        outputs = host(draw.data.train.inputs[:5])
        assert outputs.shape[-1] >= max(draw.n_classes, 1)
        if isinstance(config_of(draw), GPTHostConfig):
            assert outputs.shape[:2] == draw.data.train.targets[:5].shape
    assert len(seen) > 40


def test_the_catalogue_has_160_different_designs_of_every_form() -> None:
    configs = [maker.config for maker in catalogue().designs]
    assert len(configs) == 160
    mlps = [config for config in configs if isinstance(config, MLPHostConfig)]
    assert len(set(mlps)) == len(mlps) == 148
    assert {mlp.n_classes for mlp in mlps} == {1, 2, 3, 5, 10, 26}
    assert {mlp.n_blocks for mlp in mlps} == {1, 2, 3, 4}
    forms = {(mlp.activation, mlp.has_norm, mlp.has_skips) for mlp in mlps}
    assert len(forms) == 12
    assert np.median([mlp.hidden for mlp in mlps]) <= 8


def digest(draw: TaskDraw) -> str:
    parts = [repr(sorted(draw.facts.items())), draw.title]
    for _, samples in draw.data.splits():
        parts += [repr(each.numpy().tobytes()) for each in (samples.inputs, samples.targets)]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def test_the_same_seed_gives_the_same_draw() -> None:
    for seed in range(12):
        one, other = PRIOR.sample(seed), draw_prior(seed)
        assert digest(one) == digest(other)
        assert one.make_host is other.make_host
        assert digest(one) != digest(PRIOR.sample(seed + 1000))


def test_products_are_exact_in_any_order() -> None:
    rng = make_rng()
    left, right = rng.normal(size=(50, 64)) * 100.0, rng.normal(size=(64, 20))
    order = rng.permutation(64)
    product = teachers.multiply(left, right)
    assert np.array_equal(product, teachers.multiply(left[:, order], right[order]))
    np.testing.assert_allclose(product, left @ right, atol=2.0)


def test_options_fix_what_they_name_and_nothing_else() -> None:
    free = make_task("prior")
    fixed = make_task("prior", price=0.05, n_epochs=9)
    assert free.draws_price
    assert not fixed.draws_price
    assert free.draws_designs
    assert fixed.budget.flop_price == 0.05
    assert (free.budget.n_epochs, free.budget.parameter_rent) == (64, 0.0)
    for seed in range(10):
        one, other = free.sample(seed), fixed.sample(seed)
        assert (other.flop_price, other.n_epochs) == (0.05, 9)
        changed = {"flop_price", "n_epochs"}
        assert {k: v for k, v in one.facts.items() if k not in changed} == {
            k: v for k, v in other.facts.items() if k not in changed
        }
        assert torch.equal(one.data.train.inputs, other.data.train.inputs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_can_be_fixed(kind: str) -> None:
    task = make_task("prior", kind=kind)
    assert {kind_of(task.sample(seed)) for seed in range(4)} == {kind}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "rnigs"}, "rnigs"),
        ({"price": -0.1}, "-0.1"),
        ({"n_epochs": 65}, "65"),
    ],
)
def test_invalid_options_are_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_task("prior", **options)


def test_only_the_digits_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("real data were read")

    monkeypatch.setattr(family, "draw_digits", refuse)
    monkeypatch.setattr("builtins.open", refuse)
    for kind in KINDS:
        if not kind.startswith("digit"):
            draw_prior(1, kind=kind)


def test_regression_targets_are_standardized_by_the_training_split() -> None:
    for kind in REGRESSING:
        draw = draw_prior(5, kind=kind)
        train = draw.data.train.targets
        assert train.dtype == torch.float32
        assert float(train.mean()) == pytest.approx(0.0, abs=1e-4)
        assert float(train.var(correction=0)) == pytest.approx(1.0, abs=1e-3)


def test_inputs_are_standardized_unless_they_are_noisy_or_heavy_tailed() -> None:
    n_plain = 0
    for draw in draws():
        if "heaviness" not in draw.facts or draw.facts["heaviness"] or draw.facts["input_noise"]:
            continue
        if draw.facts["n_samples"] > 2000:
            continue
        n_plain += 1
        inputs = draw.data.train.inputs.double()
        torch.testing.assert_close(
            inputs.mean(0), torch.zeros(inputs.shape[1], dtype=torch.float64), atol=1e-4, rtol=0
        )
        deviation = inputs.std(0, correction=0)
        assert ((deviation - 1.0).abs() < 1e-3).all()
    assert n_plain > 40


# Nuisances


def test_a_rotation_keeps_distances() -> None:
    inputs = teachers.draw_normal(make_rng(), 40, 7)
    turned = nuisances.rotate(make_rng(1), inputs)
    assert not np.allclose(turned, inputs, atol=0.1)
    distances = [torch.pdist(torch.from_numpy(each)) for each in (inputs, turned)]
    torch.testing.assert_close(*distances, atol=0.02, rtol=0.01)


def test_redundant_inputs_are_functions_of_the_others() -> None:
    inputs = teachers.draw_normal(make_rng(), 200, 5)
    redundant = nuisances.combine_inputs(make_rng(1), inputs, 3)
    fitted = inputs @ np.linalg.lstsq(inputs, redundant, rcond=None)[0]
    np.testing.assert_allclose(fitted, redundant, atol=1e-6)


def test_irrelevant_inputs_carry_no_information() -> None:
    facts: dict[str, float] = {}
    rng = make_rng(3)
    while not facts.get("n_irrelevant") or facts["is_rotated"] or facts["input_noise"]:
        inputs = teachers.draw_normal(make_rng(4), 4000, 2)
        spoilt = family._spoil(rng, inputs, 8, 3000, facts)
    # Whatever is a function of the two informative inputs is explained by them.
    fitted = inputs @ np.linalg.lstsq(inputs, spoilt, rcond=None)[0]
    unexplained = ((spoilt - fitted) ** 2).mean(0) / spoilt.var(0)
    is_irrelevant = unexplained > 0.5
    assert is_irrelevant.sum() == facts["n_irrelevant"]
    correlations = np.corrcoef(spoilt[:, is_irrelevant].T, inputs.T)
    n = int(facts["n_irrelevant"])
    assert np.abs(correlations[:n, n:]).max() < 4.5 / math.sqrt(4000)


def test_the_share_of_wrong_labels_is_exact_and_the_first_are_right() -> None:
    labels = np.concatenate([np.arange(5), make_rng().integers(5, size=1995)])
    noisy = nuisances.mislabel(make_rng(1), labels, 5, share=0.3)
    is_wrong = noisy != labels
    assert is_wrong.sum() == 600
    assert not is_wrong[:5].any()
    assert noisy.min() >= 0
    assert noisy.max() <= 4
    shifts = Counter(((noisy - labels) % 5)[is_wrong].tolist())
    assert all(count == pytest.approx(150, abs=50) for count in shifts.values())
    assert set(shifts) == {1, 2, 3, 4}


def test_rare_classes_are_merged() -> None:
    labels = np.repeat(np.arange(6), [1, 20, 0, 2, 30, 3])
    merged, n_classes = nuisances.merge_rare_classes(labels, minimum=5)
    assert n_classes == 2
    assert np.bincount(merged).tolist() == [21, 35]


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_every_split_gets_every_class_once_and_imbalance_drops_samples(share: float) -> None:
    labels = make_rng().integers(3, size=3000)
    labels[labels == 2] = 1
    labels[:8] = 2  # A rare class.
    shares = np.array([1.0, share, 1.0])
    sizes = (500, 100, 200)
    parts = nuisances.choose_rows(make_rng(1), labels, shares, sizes)
    assert tuple(len(part) for part in parts) == sizes
    assert len(np.unique(np.concatenate(parts))) == sum(sizes)
    assert sorted(labels[parts[0][:3]]) == [0, 1, 2]
    for part, minimum in zip(parts, (1, 2, 1), strict=True):
        assert np.bincount(labels[part], minlength=3).min() >= minimum
    # Class 1 has 2/3 of all samples before, and as many of those kept.
    expected = 2 * share / (2 * share + 1)
    assert np.mean(labels[parts[0]] == 1) == pytest.approx(expected, abs=0.08)


def test_heavy_tails_keep_the_order_and_the_centre() -> None:
    values = np.linspace(-4.0, 4.0, 101, dtype=np.float32)[:, None]
    stretched = nuisances.stretch_tails(values, heaviness=1.2)
    assert (np.diff(stretched[:, 0]) > 0.0).all()
    near = np.abs(values) < 0.2
    np.testing.assert_allclose(stretched[near], values[near], atol=0.005)
    assert stretched.max() > 40.0


# Teachers


def test_tokens_follow_their_context() -> None:
    lesson = teachers.teach_markov(make_rng(1), 3000, 17, 16)
    tokens = lesson.inputs
    assert tokens.min() >= 0
    assert tokens.max() < 16
    order = int(lesson.facts["teacher_order"])
    contexts = tokens[:, order - 1 : -1].ravel()
    if order == 2:
        contexts = contexts + 16 * tokens[:, :-2].ravel()
    counts = np.zeros((16**order, 16))
    np.add.at(counts, (contexts, tokens[:, order:].ravel()), 1)
    # The best guess after each context, against the most frequent token.
    assert counts.max(1).sum() / counts.sum() > 1.5 * counts.sum(0).max() / counts.sum()


def test_a_tree_is_one_class_on_each_side_of_its_thresholds() -> None:
    lesson = teachers.teach_tree(make_rng(2), 3000, 1, 2)
    order = np.argsort(lesson.inputs[:, 0], kind="stable")
    changes = np.count_nonzero(np.diff(lesson.targets[order].astype(np.int64)))
    assert 0 < changes <= 2 ** int(lesson.facts["teacher_depth"])


@pytest.mark.parametrize("kind", KINDS)
def test_the_hosts_of_each_kind_train(kind: str) -> None:
    for seed in range(2):
        draw = draw_prior(seed, kind=kind)
        assert draw.make_host is not None
        assert draw.metric is not None
        spec = HostSpec(
            seed=1,
            data=make_host_data(draw, "validation"),
            learning_rate=3e-3,
            batch_size=draw.batch_size,
            batches_per_epoch=draw.batches_per_epoch,
        )
        population = make_population(
            draw.make_host,
            [spec],
            PopulationConfig(),
            objective=draw.metric.objective,
            growth_config=PRIOR.growth,
        )
        assert (list(population.forms()) == ["compiled"]) == (kind != "markov")
        losses = [float(population.train_epoch().losses[0]) for _ in range(5)]
        assert np.isfinite(losses).all()
        assert min(losses[1:]) < losses[0]
