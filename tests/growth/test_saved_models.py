"""A model saved while it grows is restored exactly, and damaged files are detected."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from esper.config.growth import GrowthConfig
from esper.errors import OtherVersionError, SavedModelError, SlotError, StorageError
from esper.growth.blueprints import Blueprint, SeedForm, register_blueprint
from esper.growth.blueprints import registry as blueprint
from esper.growth.host_slots import HostSlots, slots
from esper.growth.placement import add_slots
from esper.growth.saved_models import load, save
from esper.growth.sites import SlotSite, TensorKind
from esper.lifecycle.factored_actions import AlphaCurve, BlendStyle, GrowthAction, Op
from esper.lifecycle.stages import Stage
from tests.growth.helpers import HOSTS, lead_to, make_host, randomize, same_state, state_of
from tests.storage.forging import forge, forge_json


def take_to(host: HostSlots, slot: str, stage: Stage, blueprint: str) -> None:
    """Bring a slot to any stage, with random weights as if its seed had been trained."""
    live = min(stage, Stage.HOLDING)
    choices = {"blueprint": blueprint, "style": BlendStyle.LEARNED_GATE, "alpha_target": 0.7}
    place = lead_to(host, slot, live, **choices)
    randomize(place, seed=5)
    if stage == Stage.FOSSILIZED:
        host.tick()
        host.fossilize(slot)
    elif stage > Stage.FOSSILIZED:
        host.tick()
        host.prune(slot, speed_epochs=5, curve=AlphaCurve.COSINE)
        while host[slot].stage != stage:
            host.tick()
    assert host[slot].stage == stage


def assert_same_model(loaded: nn.Module, model: nn.Module, x: Tensor) -> None:
    assert same_state(state_of(loaded), state_of(model))
    assert torch.equal(loaded.eval()(x), model.eval()(x))
    mine, theirs = slots(loaded), slots(model)
    assert mine.lives.to_json() == theirs.lives.to_json()
    assert mine.sites == theirs.sites
    assert mine.slot_config == theirs.slot_config
    assert mine.lives.growth_config == theirs.lives.growth_config


def germinate_next(host: HostSlots, slot: str) -> dict[str, Tensor]:
    host.germinate(slot, "mlp_small")
    seed = host[slot].seed
    assert seed is not None
    return state_of(seed)


@pytest.mark.parametrize(
    ("name", "stage"),
    [("mlp", stage) for stage in Stage if stage != Stage.DORMANT]
    + [("conv", Stage.BLENDING), ("transformer", Stage.FOSSILIZED)],
)
def test_a_seed_in_any_stage_is_restored_and_continues(
    name: str, stage: Stage, tmp_path: Path
) -> None:
    model, host, x = make_host(name)
    first, second = list(host)[:2]
    take_to(host, first, stage, "norm")
    save(model, tmp_path)
    loaded = load(tmp_path, HOSTS[name][0])
    assert_same_model(loaded, model, x)
    for grown in (model, loaded):
        for _ in range(3):
            slots(grown).tick()
    assert_same_model(loaded, model, x)
    action = GrowthAction(op=Op.GERMINATE, slot=second, blueprint="norm")
    if host.lives.is_legal(action):
        host.apply(action)
        slots(loaded).apply(action)
        assert_same_model(loaded, model, x)


def test_an_alpha_ramp_continues_where_it_was_saved(tmp_path: Path) -> None:
    model, host, _ = make_host("mlp")
    lead_to(host, "blocks.0", Stage.BLENDING, blueprint="low_rank", tempo_epochs=5)
    host.tick()
    save(model, tmp_path)
    loaded = slots(load(tmp_path, HOSTS["mlp"][0]))
    alphas = []
    for _ in range(4):
        alphas.append(loaded["blocks.0"].alpha)
        loaded.tick()
    assert alphas == pytest.approx([0.4, 0.6, 0.8, 1.0])


def test_the_next_seed_of_a_loaded_model_gets_the_same_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, at = torch.randn(4, 5), ["blocks.0", "blocks.1"]
    model = add_slots(HOSTS["mlp"][0](), at, x, seed=7, seed_limit=2)
    config = GrowthConfig(embargo_epochs=9, min_training_epochs=3)
    slots(model).lives.growth_config = config
    lead_to(slots(model), "blocks.0", Stage.BLENDING, blueprint="mlp_small")
    save(model, tmp_path)
    loaded = load(tmp_path, HOSTS["mlp"][0])
    host = slots(loaded)
    assert (host.seed, host.slot_config.seed_limit, host.lives.growth_config) == (7, 2, config)
    wanted = germinate_next(slots(model), "blocks.1")
    assert same_state(germinate_next(host, "blocks.1"), wanted)
    other = add_slots(HOSTS["mlp"][0](), at, x, seed=7)
    assert not same_state(germinate_next(slots(other), "blocks.1"), wanted)


def test_nested_slots_are_restored(tmp_path: Path) -> None:
    model, host, x = make_host("transformer")
    take_to(host, "blocks.0.mlp", Stage.FOSSILIZED, "lora_small")
    take_to(host, "blocks.0", Stage.HOLDING, "self_attention")
    save(model, tmp_path)
    assert_same_model(load(tmp_path, HOSTS["transformer"][0]), model, x)


def test_loading_reuses_the_built_models_memory_and_draws_no_random_numbers(
    tmp_path: Path,
) -> None:
    model, host, _ = make_host("mlp")
    take_to(host, "blocks.0", Stage.HOLDING, "mlp_large")
    save(model, tmp_path)
    fresh = HOSTS["mlp"][0]()
    before, places = torch.random.get_rng_state(), [p.data_ptr() for p in fresh.parameters()]
    loaded = load(tmp_path, lambda: fresh)
    assert {*places} <= {p.data_ptr() for p in loaded.parameters()}
    assert torch.equal(torch.random.get_rng_state(), before)


class Tied(nn.Module):
    """Its head shares the embedding's weight, one layer has two names, two buffers are views."""

    def __init__(self, *, is_tied: bool = True) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4, bias=False)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.head = nn.Linear(4, 4, bias=False)
        self.again = self.body[2] if is_tied else nn.Linear(4, 4)
        self.register_buffer("spread", torch.zeros(1).expand(4))
        self.register_buffer("scale", torch.ones(2, 4).T[:, :1], persistent=False)
        if is_tied:
            self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.embed(x))) * self.scale[:, 0]


def test_shared_tensors_are_stored_once_and_restored_shared(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    model = add_slots(Tied(), ["body"], x)
    take_to(slots(model), "body", Stage.HOLDING, "low_rank")
    model.spread = torch.ones(1).expand(4)
    save(model, tmp_path)
    stored = load_file(next(tmp_path.glob("*.safetensors")))
    assert sum(name.endswith(("embed.weight", "head.weight")) for name in stored) == 1
    loaded = load(tmp_path, Tied)
    assert loaded.head.weight is loaded.embed.weight
    assert loaded.again is loaded.body.block[2]
    assert_same_model(loaded, model, x)
    with pytest.raises(SavedModelError, match=r"'head\.weight' and .* only in the file"):
        load(tmp_path, lambda: Tied(is_tied=False))
    save(add_slots(Tied(is_tied=False), ["body"], x), tmp_path)
    with pytest.raises(SavedModelError, match="only in the model"):
        load(tmp_path, Tied)


def test_dtypes_come_from_the_file_but_requires_grad_and_mode_from_build(tmp_path: Path) -> None:
    model, host, _ = make_host("conv")
    model.bfloat16()
    model.stem.float()
    model.head.weight.data = model.head.weight.data.T.contiguous().T
    assert not model.head.weight.is_contiguous()
    take_to(host, "block_1", Stage.HOLDING, "conv_small")

    def build() -> nn.Module:
        made = HOSTS["conv"][0]().eval()
        made.stem.requires_grad_(False)
        return made

    save(model, tmp_path)
    loaded = load(tmp_path, build)
    assert {n: t.dtype for n, t in loaded.state_dict().items()} == {
        n: t.dtype for n, t in model.state_dict().items()
    }
    assert same_state(state_of(loaded), state_of(model))
    assert not any(module.training for name, module in loaded.named_modules() if "gate" not in name)
    frozen = {name for name, p in loaded.named_parameters() if not p.requires_grad}
    assert frozen == {"stem.weight", "stem.bias"}


@pytest.mark.parametrize(
    ("function", "step"),
    [("replace", 0), ("write", 0), ("write", 1), *(("fsync", step) for step in range(4))],
)
def test_an_interrupted_save_leaves_the_previous_model(
    function: str, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, host, _ = make_host("mlp")
    take_to(host, "blocks.0", Stage.HOLDING, "mlp_small")
    save(model, tmp_path)
    old = (state_of(model), host.lives.to_json())
    randomize(model, seed=9)
    host.tick()
    new = (state_of(model), host.lives.to_json())
    assert not same_state(old[0], new[0])
    real, calls = getattr(os, function), []

    def interrupted(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == step + 1:
            raise OSError("no space left")
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, function, interrupted)
        with pytest.raises(StorageError, match="no space left"):
            save(model, tmp_path)
    loaded = load(tmp_path, HOSTS["mlp"][0])
    found = (state_of(loaded), slots(loaded).lives.to_json())
    is_old, is_new = (same_state(found[0], s) and found[1] == lives for s, lives in (old, new))
    # The last fsync comes after the manifest was put in place.
    assert is_new == (function == "fsync" and step == 3)
    assert is_old != is_new
    save(model, tmp_path)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".json", ".safetensors"]
    assert same_state(state_of(load(tmp_path, HOSTS["mlp"][0])), new[0])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model, host, _ = make_host("mlp")
    take_to(host, "blocks.0", Stage.HOLDING, "mlp_small")
    save(model, tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["manifest.json", "growing.json", "growing.safetensors"])
def test_a_flipped_bit_is_detected_anywhere(name: str, saved: Path) -> None:
    path = saved / name
    whole = path.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 97)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(bytes(damaged))
        with pytest.raises((SavedModelError, OtherVersionError)):
            load(saved, HOSTS["mlp"][0])
    path.write_bytes(whole)
    load(saved, HOSTS["mlp"][0])


def _edit(saved: Path, **changes: object) -> None:
    growth = json.loads((saved / "growing.json").read_text()) | changes
    forge_json(saved, "growing.json", growth)


BREAKAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "tensors gone": (
        lambda d: (d / "growing.safetensors").unlink(),
        "growing.safetensors: No such",
    ),
    "JSON gone": (lambda d: (d / "growing.json").unlink(), "growing.json: No such"),
    "manifest gone": (lambda d: (d / "manifest.json").unlink(), "no manifest.json; .*another"),
    "all gone": (lambda d: [file.unlink() for file in d.iterdir()], "no growing model in"),
    "no JSON": (lambda d: forge(d, "growing.json", b"{"), r"damaged: .*\(line 1"),
    "no object": (lambda d: forge(d, "growing.json", b"[1]"), "is damaged"),
    "no tensors": (lambda d: forge(d, "growing.safetensors", b"none"), "is damaged"),
    "no lives": (lambda d: _edit(d, lives={}), "is damaged"),
    "no name of a kind": (
        lambda d: _edit(d, sites=[dict.fromkeys([each.name for each in fields(SlotSite)], 3)]),
        "is damaged: it has a value of the wrong type",
    ),
    "an empty site": (lambda d: _edit(d, sites=[{}]), "is damaged: blocks is missing"),
}


@pytest.mark.parametrize("breakage", list(BREAKAGES))
def test_an_incomplete_folder_is_rejected_in_one_line(breakage: str, saved: Path) -> None:
    spoil, words = BREAKAGES[breakage]
    spoil(saved)
    with pytest.raises(SavedModelError, match=words) as caught:
        load(saved, HOSTS["mlp"][0])
    assert "\n" not in str(caught.value)
    with pytest.raises(SavedModelError, match="elsewhere does not exist"):
        load(saved / "elsewhere", HOSTS["mlp"][0])


def _narrow() -> nn.Module:
    model = HOSTS["mlp"][0]()
    model.head = nn.Linear(6, 2)
    return model


def _with_more() -> nn.Module:
    model = HOSTS["mlp"][0]()
    model.extra = nn.Linear(1, 1, bias=False)
    return model


def _with_less() -> nn.Module:
    model = HOSTS["mlp"][0]()
    model.head.bias = None
    return model


def _without_block() -> nn.Module:
    model = HOSTS["mlp"][0]()
    model.blocks = model.blocks[1:]
    return model


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (_narrow, r"'head.weight' .*\[3, 6\].*\[2, 6\]"),
        (_with_more, "'extra.weight' is missing"),
        (_with_less, "'head.bias' is in the file"),
        (_without_block, "a slot at 'blocks.1'"),
        (lambda: make_host("mlp")[0], "ResidualMLP with slots"),
        (lambda: 3, "build returned an int"),
    ],
)
def test_a_model_of_another_architecture_is_rejected_by_name(
    build: Callable[[], Any], words: str, saved: Path
) -> None:
    with pytest.raises(SavedModelError, match=words):
        load(saved, build)


@pytest.mark.parametrize("is_fossil", [False, True])
def test_an_unregistered_blueprint_is_rejected_by_name(
    is_fossil: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blueprint, "_REGISTRY", dict(blueprint._REGISTRY))
    recipe = Blueprint(
        name="foreign",
        kinds=frozenset(TensorKind),
        form=SeedForm.SERIAL,
        build=lambda site: nn.Sequential(nn.Linear(6, 6, bias=False)),
        summary="a layer",
    )
    register_blueprint(recipe)
    x = torch.randn(4, 5)
    model = add_slots(HOSTS["mlp"][0](), ["blocks.0"], x)
    host = slots(model)
    host.germinate("blocks.0", "foreign")
    if is_fossil:
        host.lives.commit("blocks.0", host)
        host.lives.absorb("blocks.0", host)
    save(model, tmp_path)
    assert_same_model(load(tmp_path, HOSTS["mlp"][0]), model, x)
    blueprint._REGISTRY.pop("foreign")
    with pytest.raises(SavedModelError, match=r"'foreign'.*register_blueprint"):
        load(tmp_path, HOSTS["mlp"][0])


@pytest.mark.parametrize("alpha", [float("nan"), float("inf"), 1.5])
def test_an_invalid_alpha_is_rejected(alpha: float, tmp_path: Path) -> None:
    model, host, _ = make_host("mlp")
    lead_to(host, "blocks.0", Stage.HOLDING, blueprint="mlp_small")
    life = host["blocks.0"].life
    life.schedule = replace(life.schedule, target=alpha)
    with pytest.raises(SavedModelError, match=rf"slot 'blocks\.0' .*{alpha}"):
        save(model, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_models_that_cannot_be_saved_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(SlotError, match="has no slots"):
        save(HOSTS["mlp"][0](), tmp_path)
    model, _, _ = make_host("mlp")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="in the way"):
        save(model, tmp_path / "file")
    model.register_buffer("sparse", torch.eye(3).to_sparse())
    with pytest.raises(SavedModelError, match=r"'sparse' .*torch\.sparse_coo"):
        save(model, tmp_path / "folder")


def test_saving_twice_leaves_one_model_and_nothing_executable(tmp_path: Path) -> None:
    model, host, x = make_host("mlp")
    for step in range(3):
        randomize(model, seed=step)
        save(model, tmp_path)
        save(model, tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    assert_same_model(load(tmp_path, HOSTS["mlp"][0]), model, x)
    assert all(b"pickle" not in path.read_bytes() for path in tmp_path.iterdir())
    assert host.n_germinated == 0


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    shard = tmp_path / "model.safetensors"
    model, host, _ = make_host("mlp")
    save(model, tmp_path)
    shard.write_text("somebody else's")
    host.tick()
    randomize(model, seed=4)
    save(model, tmp_path)
    assert shard.read_text() == "somebody else's"
    assert len(list(tmp_path.iterdir())) == 4


def test_build_must_be_callable(tmp_path: Path) -> None:
    model, _, _ = make_host("mlp")
    save(model, tmp_path)
    with pytest.raises(SavedModelError, match="build is an int"):
        load(tmp_path, 3)  # type: ignore[arg-type]
