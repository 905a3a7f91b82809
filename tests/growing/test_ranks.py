"""Two processes that grow copies of one model, compared with each other and with one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import esper
from esper.errors import SlotError
from esper.growth.blueprints import Blueprint, SeedForm, registry
from esper.growth.host_slots import DDP_IGNORES, slots
from esper.growth.placement import add_slots
from esper.growth.sites import SlotSite, TensorKind
from tests.growing import rank_runs

SCENARIOS = (
    rank_runs.grow_after_wrapping,
    rank_runs.grow_before_wrapping,
    rank_runs.grow_blended,
    rank_runs.grow_by_hand,
    rank_runs.roll_back,
    rank_runs.gradients,
    rank_runs.score_on_first_rank,
    rank_runs.disagree_on_seed,
    rank_runs.disagree_on_slots,
    rank_runs.disagree_on_calls,
    rank_runs.forget_to_wrap,
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return rank_runs.run_ranks(2, SCENARIOS, tmp_path_factory.mktemp("ranks"))


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], atol: float) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=atol, rtol=0.0)


@pytest.mark.parametrize(
    "scenario", [s for s in SCENARIOS if s in rank_runs.ALIKE], ids=lambda s: s.__name__
)
def test_ranks_end_equal_to_the_bit_and_as_one_process(
    scenario: Any, ranks: list[dict[str, Any]]
) -> None:
    first, second = (found[scenario.__name__] for found in ranks)
    one = scenario()
    assert_close(second["tensors"], first["tensors"], atol=0.0)
    assert_close(first["tensors"], one["tensors"], atol=1e-6)
    for name in set(one) - {"tensors"}:
        assert first[name] == second[name] == one[name]


def test_a_life_has_all_stages_although_only_the_first_rank_decides(
    ranks: list[dict[str, Any]],
) -> None:
    assert {"blending", "holding", "fossilized"} <= {*ranks[1]["grow_blended"]["stages"]}
    assert ranks[1]["grow_after_wrapping"]["stages"] == ["fossilized"]
    for name in ("grow_after_wrapping", "grow_before_wrapping", "grow_blended"):
        assert len(ranks[1][name]["tensors"]["0.weight"]) > 12


def test_gradients_of_replaced_parameters_are_averaged(ranks: list[dict[str, Any]]) -> None:
    """Each rank has other data, so that gradients differ where nobody averages them."""
    first, second = (found["gradients"] for found in ranks)
    one = rank_runs.gradients()
    assert_close(second["gradients"], first["gradients"], atol=0.0)
    assert_close(first["gradients"], one["gradients"], atol=1e-12)
    assert first["is_same_object"]
    assert first["n_hook_calls"] == 2


def test_a_nan_on_one_rank_rolls_all_ranks_back(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert "nan" in found["roll_back"]["problems"][0]


def test_one_rank_may_give_the_score(ranks: list[dict[str, Any]]) -> None:
    assert [found["score_on_first_rank"]["score"] for found in ranks] == [0.25, 0.25]


@pytest.mark.parametrize(
    ("scenario", "named"),
    [
        ("disagree_on_seed", "seed of rank 1"),
        ("disagree_on_slots", "structure of rank 1"),
        ("disagree_on_calls", "rank 1 is in check_loss while rank 0 is in growth_action"),
        ("forget_to_wrap", "parameters of rank 1"),
    ],
)
def test_ranks_that_disagree_fail_on_all_ranks(
    scenario: str, named: str, ranks: list[dict[str, Any]]
) -> None:
    for found in ranks:
        error = found[scenario]["error"]
        assert error.startswith("RanksDisagreeError")
        assert named in error
        assert "\n" not in error


def test_what_was_grown_is_hidden_from_ddp_and_nothing_else() -> None:
    model = rank_runs.make_norm_model()
    setattr(model, DDP_IGNORES, ["4.bias"])
    add_slots(model, ["3"], rank_runs.X[:2])
    before = {*model.state_dict()}
    slots(model).germinate("3", "mlp_small")
    grown = {name for name in model.state_dict() if ".seed." in name}
    assert grown
    assert {*getattr(model, DDP_IGNORES)} == grown | {"4.bias"}
    slots(model).abandon_growing()
    assert {*model.state_dict()} == before
    assert getattr(model, DDP_IGNORES) == ["4.bias"]


def test_an_export_hides_nothing_from_ddp() -> None:
    model = rank_runs.make_model()
    add_slots(model, ["2"], rank_runs.X[:2])
    slots(model).germinate("2", "mlp_small")
    assert hasattr(model, DDP_IGNORES)
    assert not hasattr(esper.export(model), DDP_IGNORES)


def test_batch_norms_of_seeds_are_synced_if_those_of_the_host_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build(site: SlotSite) -> nn.Module:
        layer = nn.Linear(site.width, site.width)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return nn.Sequential(nn.BatchNorm1d(site.width), layer)

    kinds = frozenset(TensorKind)
    blueprint = Blueprint(
        name="normed", kinds=kinds, form=SeedForm.SERIAL, build=build, summary="a norm, a layer"
    )
    monkeypatch.setitem(registry._REGISTRY, "normed", blueprint)
    trained = []
    for is_synced in (False, True):
        model: nn.Module = rank_runs.make_norm_model()
        if is_synced:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        add_slots(model, ["3"], rank_runs.X[:2])
        slots(model).germinate("3", "normed")
        slots(model).tick()
        slots(model).advance("3")
        optimizer = rank_runs.make_optimizer(model)
        for _ in range(3):
            optimizer.zero_grad()
            cross_entropy(model(rank_runs.X), rank_runs.Y).backward()
            optimizer.step()
        norms = {type(module) for module in model.modules() if "Norm" in type(module).__name__}
        assert norms == {nn.SyncBatchNorm if is_synced else nn.BatchNorm1d}
        trained.append(dict(model.state_dict()))
    assert any("seed" in name and "running_mean" in name for name in trained[0])
    assert_close(trained[1], trained[0], atol=0.0)  # there are no other processes here


def test_data_parallel_is_rejected_at_construction() -> None:
    model = nn.DataParallel(rank_runs.make_model())
    optimizer = rank_runs.make_optimizer(model)
    with pytest.raises(SlotError, match="DistributedDataParallel"):
        esper.Grower(model, optimizer, epochs=2)
    with pytest.raises(SlotError, match="DistributedDataParallel"):
        add_slots(model, ["module.0"], rank_runs.X[:2])
