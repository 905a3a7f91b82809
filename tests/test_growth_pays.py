"""The benchmark of growth: regrets worked by hand, its verdicts, its search, its results file."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.errors import BadDataError, MissingDataError

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    return load("growth_report", monkeypatch)


@pytest.fixture
def campaign(monkeypatch: pytest.MonkeyPatch) -> Any:
    return load("growth_campaign", monkeypatch)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Any:
    return load("growth_runs", monkeypatch)


@pytest.fixture
def widening(monkeypatch: pytest.MonkeyPatch) -> Any:
    return load("widening_pilot", monkeypatch)


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(name)


def comparison(report: Any, grown: dict[float, float]) -> Any:
    """Two fixed sizes that cross, and a growing network; each of two seeds is 0.1 off its mean."""
    means = {
        "L2": {10.0: 2.0, 20.0: 1.8, 40.0: 1.7},
        "L6": {10.0: 2.4, 20.0: 1.9, 40.0: 1.5},
        "2>6": grown,
    }
    losses = {
        arm: {budget: [mean - 0.1, mean + 0.1] for budget, mean in by_budget.items()}
        for arm, by_budget in means.items()
    }
    return report.Comparison({arm: losses[arm] for arm in ("L2", "L6")}, {"2>6": losses["2>6"]})


def test_regrets_and_flops_worked_by_hand(report: Any) -> None:
    found = comparison(report, {10.0: 2.1, 20.0: 1.7, 40.0: 1.5})
    assert [found.best_fixed(budget) for budget in found.budgets] == ["L2", "L2", "L6"]
    assert found.regrets("L2") == pytest.approx([0.0, 0.0, 0.2])
    assert found.regrets("L6") == pytest.approx([0.4, 0.1, 0.0])
    assert found.regrets("2>6") == pytest.approx([0.1, -0.1, 0.0])
    assert found.best_single() == "L2"
    # It falls from 2.1 to 1.7 between 10 and 20 GF, and has the 2.0 of L2 after a quarter of that.
    assert found.flops_to_reach("2>6", 10.0) == pytest.approx(10.0 * 2.0**0.25)
    assert found.flops_to_reach("L2", 10.0) == 10.0
    assert found.flops_to_reach("L2", 40.0) is None


@pytest.mark.parametrize(
    ("grown", "word"),
    [
        ({10.0: 2.04, 20.0: 1.75, 40.0: 1.5}, "Growth pays"),
        ({10.0: 2.06, 20.0: 1.75, 40.0: 1.5}, "Not shown"),  # 0.06 is more than 0.2 / 4
        ({10.0: 2.04, 20.0: 1.8, 40.0: 1.5}, "Not shown"),  # never better than L2 and L6
    ],
)
def test_the_verdict_needs_a_small_regret_and_a_win(
    report: Any, grown: dict[float, float], word: str
) -> None:
    assert word in comparison(report, grown).verdict()


def test_a_size_that_is_always_best_leaves_nothing_to_gain(report: Any) -> None:
    found = report.Comparison({"L1": {1.0: [1.0]}, "L2": {1.0: [2.0]}}, {"1>2": {1.0: [1.5]}})
    assert "L1" in found.verdict()
    assert "pays" not in found.verdict()


@pytest.mark.parametrize("best", [0, 1, 2, 3, 4, 5])
def test_the_search_finds_the_best_rate_of_a_valley(campaign: Any, best: int) -> None:
    rates = (1, 2, 4, 8, 16, 32)
    losses: dict[float, float] = {}
    for _ in rates:
        found, missing = campaign.search_rate(losses, rates, (8, 16))
        losses |= {rate: abs(math.log2(rate) - best) for rate in missing}
    assert found == rates[best]


def test_results_survive_a_kill_while_one_is_written(
    campaign: Any, runs: Any, tmp_path: Path
) -> None:
    path = tmp_path / "runs.jsonl"
    done = runs.Run("text", runs.Arm(2, 6, "identity"), 66.0, 0.01, 3, 0.4)
    after = runs.Run("text", runs.Arm(2, 2), 6.6, 0.01, 3, base=runs.Base(66.0, 0.02))
    campaign.Results(path).add(done, {"validation": 1.5})
    whole = path.read_text()
    path.write_text(whole + whole[: len(whole) // 2])
    results = campaign.Results(path)
    assert list(results) == [done]
    results.add(after, {"validation": None})
    found = campaign.Results(path)
    assert found.loss(done) == 1.5
    assert found.loss(after) == math.inf


def test_results_on_other_data_are_computed_again(
    campaign: Any, runs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = campaign.Results(tmp_path / "runs.jsonl")
    mine, other = (runs.Run("text", runs.Arm(2, 2), 66.0, 0.01, seed) for seed in range(2))
    results.add(mine, {"validation": 1.5, "data": "here"})
    results.add(other, {"validation": 1.6, "data": "elsewhere"})
    results.drop_other_data("text", "here")
    assert list(results) == [mine]
    assert "ignored 1" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "n_tuning_seeds"), [("text", 1), ("digits-mlp", 3)])
def test_a_campaign_reports_other_seeds_than_it_tunes_on(
    campaign: Any, tmp_path: Path, name: str, n_tuning_seeds: int
) -> None:
    problem = importlib.import_module("growth_problems").PROBLEMS[name]
    results = campaign.Results(tmp_path / "runs.jsonl")
    whole = campaign.Campaign(problem, results)

    def best_rate(budget: float) -> float:
        return 1e-2 if budget < problem.budgets[2] else 5e-3

    while planned := whole.plan():
        for run in planned:
            # Growing at 0.2 is best.
            loss = abs(math.log(run.rate / best_rate(run.budget))) + (run.grow_at or 0.0)
            results.add(run, {"validation": loss, "test": loss})
    tuning = {campaign.TUNING_SEED + number for number in range(n_tuning_seeds)}
    assert {run.seed for run in results} == {*tuning, *range(5)}
    for arm in campaign.arms_of(problem):
        for budget in problem.budgets:
            reported = whole.reported(arm, budget)
            assert [run.seed for run in reported] == [0, 1, 2, 3, 4]
            assert {run.rate for run in reported} == {best_rate(budget)}
            assert {run.grow_at for run in reported} == {None if arm.how == "fixed" else 0.2}


def test_a_budget_with_a_diverged_run_has_no_verdict(
    campaign: Any, report: Any, tmp_path: Path
) -> None:
    problem = importlib.import_module("growth_problems").SMALL_PROBLEMS["digits-mlp-small"]
    whole = campaign.Campaign(problem, campaign.Results(tmp_path / "runs.jsonl"), n_seeds=2)
    while planned := whole.plan():
        for run in planned:
            is_lost = run.seed == 1 and run.budget == problem.budgets[1]
            loss = None if is_lost else 1.0 + run.rate
            whole.results.add(run, {"validation": loss, "test": loss})
    assert report.compare(whole).budgets == [problem.budgets[0]]
    assert "1 of 2 budgets" in report.report([whole])
    report.draw([whole], tmp_path / "loss.png")
    assert (tmp_path / "loss.png").stat().st_size > 0


@pytest.mark.parametrize("problem", ["text", "digits-cnn", "digits-mlp"])
def test_new_blocks_change_nothing_and_learn_from_the_first_step(runs: Any, problem: str) -> None:
    problems = importlib.import_module("growth_problems")
    config = problems.PROBLEMS[problem].host_of(2)
    hosts = importlib.import_module("esper.growth.hosts")
    model, x = hosts.build_host(config), hosts.sample_input(config, 4)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.0)
    model(x).square().mean().backward()
    optimizer.step()
    model.eval()
    before, old = model(x).detach(), dict(model.named_parameters())
    settings = runs.Settings(moments="copied")
    runs.deepen(model, optimizer, 3, settings, seed=0, sample=x)
    assert len(model.blocks) == 5
    torch.testing.assert_close(model(x), before, rtol=0.0, atol=1e-6)
    new = [p for p in model.parameters() if not any(p is known for known in old.values())]
    first = list(model.blocks[0].parameters())
    for known, copied in zip(first, model.blocks[1].parameters(), strict=True):
        state, expected = optimizer.state[copied], optimizer.state[known]
        torch.testing.assert_close(state["exp_avg"], expected["exp_avg"], rtol=0.0, atol=0.0)
    model(x).square().mean().backward()
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert held == {id(parameter) for parameter in model.parameters()}
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in new)


def test_a_run_spends_its_budget_and_no_more(runs: Any) -> None:
    run = runs.Run("digits-mlp-small", runs.Arm(1, 4, "identity"), 0.004, 0.01, 0, 0.4)
    first, second = runs.train(run), runs.train(run)
    assert 0.0035 < first["gigaflops"] <= 0.004
    assert first["jump"] == pytest.approx(0.0, abs=1e-6)
    assert {**first, "seconds": 0} == {**second, "seconds": 0}


def test_a_warm_start_continues_from_a_trained_network(
    runs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "BASES", tmp_path)
    base = runs.Base(0.008, 0.01)
    scratch = runs.Run("digits-mlp-small", runs.Arm(1, 1), 0.0008, 0.01, 0)
    warm = runs.Run("digits-mlp-small", runs.Arm(1, 1), 0.0008, 0.01, 0, base=base)
    grown = runs.Run("digits-mlp-small", runs.Arm(1, 4, "identity"), 0.002, 0.01, 0, 0.0, base=base)
    first, again = runs.train(warm), runs.train(warm)
    assert len(list(tmp_path.iterdir())) == 1
    assert {**first, "seconds": 0} == {**again, "seconds": 0}
    assert first["gigaflops"] <= 0.0008
    assert first["validation"] < runs.train(scratch)["validation"]
    assert runs.train(grown)["jump"] == pytest.approx(0.0, abs=1e-6)


def test_a_warm_start_compares_three_arms_at_four_budgets(campaign: Any, tmp_path: Path) -> None:
    problem = importlib.import_module("growth_problems").PROBLEMS["text"]
    results = campaign.Results(tmp_path / "runs.jsonl")
    warm = campaign.WarmStartCampaign(problem, results)
    while planned := warm.plan():
        for run in planned:
            loss = abs(math.log(run.rate / 5e-3))
            results.add(run, {"validation": loss, "test": loss})
    start, final = problem.growths[0]
    for extra in campaign.EXTRA:
        found = [warm.warm(arm, extra) for arm in warm.arms()]
        assert [[run.seed for run in arm] for arm in found] == [[0, 1, 2]] * 3
        assert {run.budget for arm in found for run in arm} == {extra * problem.budgets[-1]}
        assert [arm[0].base is None for arm in found] == [False, False, True]
        assert [arm[0].arm.final for arm in found] == [start, final, final]
        assert {run.rate for arm in found for run in arm} == {5e-3}


@pytest.mark.parametrize(
    ("part", "start", "final"),
    [("text-heads", 1, 4), ("text-heads", 2, 4), ("text-stream", 8, 16), ("text-stream", 16, 24)],
)
def test_widening_changes_nothing_and_what_is_new_learns(
    widening: Any, part: str, start: int, final: int
) -> None:
    model = widening.build(widening.config_of(part, start), seed=0)
    x = torch.randint(90, (4, 32), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.0, fused=True)
    for _ in range(3):
        model(x).square().mean().backward()
        optimizer.step()
    before, kept = model(x).detach(), optimizer.state[model.head.weight]["exp_avg"].clone()
    config = widening.config_of(part, final)
    grown, larger = widening.widen(model, optimizer, config, seed=1)
    torch.testing.assert_close(grown(x), before, rtol=0.0, atol=2e-6)
    moment = larger.state[grown.head.weight]["exp_avg"]
    torch.testing.assert_close(moment[:, : kept.shape[1]], kept, rtol=0.0, atol=0.0)
    assert moment.count_nonzero() == kept.count_nonzero()
    fixed = widening.build(config, seed=2)
    shapes = [parameter.shape for parameter in grown.parameters()]
    assert shapes == [parameter.shape for parameter in fixed.parameters()]
    # After one step nothing of the new heads, units and channels is dead or without an effect.
    for _ in range(2):
        larger.zero_grad()
        grown(x).square().mean().backward()
        larger.step()
    project = grown.blocks[0].attention.project.weight
    assert project.count_nonzero() == project.numel()
    rows = grown.blocks[0].attention.query_key_value.weight.grad.abs().sum(1)
    assert rows.count_nonzero() == len(rows)


def test_heads_as_wide_as_the_stream_are_those_of_the_host(widening: Any) -> None:
    seeds = importlib.import_module("esper.growth.blueprints.seeds")
    ours, host = widening.HeadAttention(16, 2), seeds.CausalAttention(16, 2)
    ours.load_state_dict(host.state_dict())
    x = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(x), host(x))


def test_fashion_mnist_is_read_from_idx_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASHION_MNIST", str(tmp_path))
    module = load("fashion_mnist", monkeypatch)
    with pytest.raises(MissingDataError, match="train-images-idx3-ubyte"):
        module.load_fashion_mnist()
    for part, n in (("train", 60), ("t10k", 30)):
        for name, item in module.NAMES.items():
            values = torch.arange(n, dtype=torch.uint8) % 10
            array = values.view(n, *(1 for _ in item)).expand(n, *item).numpy()
            header = bytes([0, 0, 8, array.ndim])
            sizes = b"".join(size.to_bytes(4) for size in array.shape)
            (tmp_path / f"{part}-{name}").write_bytes(header + sizes + array.tobytes())
    data = module.load_fashion_mnist(n_train=40, n_validation=20)
    shapes = [tuple(samples.inputs.shape) for _, samples in data.splits()]
    assert shapes == [(n, 1, 14, 14) for n in (40, 20, 30)]
    # A pixel is its class here: equally distant after standardizing, with deviation 1.
    expected = (torch.arange(30) % 10 - 4.5) / torch.arange(10.0).repeat(4 * 196).std()
    torch.testing.assert_close(data.test.inputs[:, 0, 3, 3], expected, atol=1e-4, rtol=0.0)
    assert data.train.targets.bincount().tolist() == [4] * 10
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(b"\0\0\x08\1\0\0\0\3ab")
    with pytest.raises(BadDataError, match="t10k-labels-idx1-ubyte"):
        module.load_fashion_mnist()
