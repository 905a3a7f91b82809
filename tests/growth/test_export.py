"""An exported model computes what the grown model computes and does not depend on Esper."""

from __future__ import annotations

import copy
import functools
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from esper.config.growth import CNNHostConfig, GPTHostConfig, GrowthConfig, MLPHostConfig
from esper.errors import UnsupportedHostError
from esper.growth.blueprints.seeds import MLPSeed
from esper.growth.export import export
from esper.growth.host_slots import ATTRIBUTE, HostSlots, slots
from esper.growth.hosts import build_host, sample_input
from esper.growth.hosts import make_host as make_own_host
from esper.growth.placement import add_slots
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.stages import Stage
from tests.growth.helpers import HOSTS, grads_of, lead_to, make_host, randomize, state_of

SLOTS = [(host, slot) for host, (_, at, _) in HOSTS.items() for slot in at]
TOLERANCES = {torch.float32: 1e-6, torch.float64: 1e-12}


def grow(
    host: HostSlots, slot: str, blueprint: str, stage: Stage = Stage.HOLDING, **choices: object
) -> None:
    """Bring a seed with random weights to a stage."""
    before = Stage.HOLDING if stage == Stage.FOSSILIZED else stage
    place = lead_to(host, slot, before, blueprint=blueprint, **choices)
    assert place.seed is not None
    randomize(place.seed, seed=1)
    if place.gate is not None:
        randomize(place.gate, seed=2)
    if stage == Stage.FOSSILIZED:
        host.tick()
        assert host.fossilize(slot).was_done


def set_statistics(model: nn.Module) -> None:
    """Give batch norms running statistics, as if they had seen data."""
    generator = torch.Generator().manual_seed(3)
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(generator=generator)
            module.running_var.uniform_(0.5, 2.0, generator=generator)
            nn.init.constant_(module.bias, 1.0)  # so that most units are active


def assert_same(given: Tensor, wanted: Tensor) -> None:
    scale = wanted.abs().max().item()
    assert given.dtype == wanted.dtype
    assert (given - wanted).abs().max().item() <= TOLERANCES[wanted.dtype] * scale


def esper_in(root: nn.Module) -> list[str]:
    """Return the paths of all objects reachable from a module that Esper defines."""
    found: list[str] = []
    seen: set[int] = set()
    stack: list[tuple[str, object]] = [("", root)]
    while stack:
        path, value = stack.pop()
        if id(value) in seen or isinstance(value, (str, int, float, Tensor, types.ModuleType)):
            continue
        seen.add(id(value))
        homes = [getattr(value, "__module__", None)]
        homes += [cls.__module__ for cls in type(value).__mro__]
        if any(str(home).split(".")[0] == "esper" for home in homes):
            found.append(path)
        if isinstance(value, dict):
            stack += [(f"{path}[{key!r}]", part) for key, part in value.items()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            stack += [(f"{path}[{n}]", part) for n, part in enumerate(value)]
        elif isinstance(value, torch.fx.Graph):
            stack += [(f"{path}.{node}", (node.target, node.meta)) for node in value.nodes]
        elif not isinstance(value, (type, types.FunctionType)):
            stack += [(f"{path}.{k}", part) for k, part in getattr(value, "__dict__", {}).items()]
            stack += [(f"{path}.{k}", getattr(value, k, None)) for k in ("__func__", "__self__")]
    return found


@pytest.mark.parametrize(
    ("name", "slot", "style"),
    [
        # Each slot with one style, and each style often; all pairs in the slow tests.
        pytest.param(name, slot, style, marks=() if (i + j) % 4 == 0 else pytest.mark.slow)
        for i, (name, slot) in enumerate(SLOTS)
        for j, style in enumerate(BlendStyle)
    ],
)
def test_every_seed_exports_to_the_same_function(name: str, slot: str, style: BlendStyle) -> None:
    fitting = make_host(name)[1].slot_config.fits[slot]
    assert len(fitting) >= 5
    for blueprint in sorted(fitting):
        for dtype in TOLERANCES:
            model, host, x = make_host(name)
            x = x.to(dtype) if x.is_floating_point() else x
            model.to(dtype)
            grow(host, slot, blueprint, Stage.BLENDING, style=style, alpha_target=0.7)
            set_statistics(model)
            model.eval()
            plain = export(model)
            assert_same(plain(x), model(x))
            assert not esper_in(plain), blueprint
            with host[slot].switched_off():
                is_seen = not torch.equal(model(x), plain(x))
            assert is_seen == (blueprint != "noop")


@pytest.mark.parametrize("stage", [Stage.GERMINATED, Stage.TRAINING])
def test_a_seed_that_is_not_blended_yet_is_left_out(stage: Stage) -> None:
    model, host, x = make_host("mlp")
    names = {name for name, _ in HOSTS["mlp"][0]().named_parameters()}
    grow(host, "blocks.0", "mlp_small", stage)
    plain = export(model)
    assert {name for name, _ in plain.named_parameters()} == names
    assert torch.equal(plain(x), model(x))


def test_only_committed_seeds_are_kept_on_request() -> None:
    model, host, x = make_host("mlp")
    grow(host, "blocks.0", "mlp_small", Stage.FOSSILIZED)
    grow(host, "blocks.1", "mlp_small", Stage.HOLDING)
    with host["blocks.1"].switched_off():
        committed = model(x)
    assert_same(export(model)(x), model(x))
    assert_same(export(model, committed_only=True)(x), committed)
    assert (committed - model(x)).abs().max() > 1e-2


def test_a_fading_seed_is_exported_at_its_alpha_and_a_removed_one_is_not() -> None:
    model, host, x = make_host("mlp")
    grow(host, "blocks.0", "mlp_small")
    host.tick()
    host.prune("blocks.0", speed_epochs=3)
    assert 0.0 < host["blocks.0"].alpha < 1.0
    assert_same(export(model)(x), model(x))
    while host["blocks.0"].seed is not None:
        host.tick()
    assert type(export(model).blocks[0]) is type(model.blocks[0])


def test_a_disabled_seed_is_left_out() -> None:
    model, host, x = make_host("mlp")
    grow(host, "blocks.0", "mlp_small")
    with host["blocks.0"].switched_off():
        plain = export(model)
        assert torch.equal(plain(x), model(x))
    assert not torch.equal(plain(x), model(x))


def test_exporting_does_not_change_the_grown_model() -> None:
    model, host, x = make_host("conv")
    grow(host, "block_1", "conv_light")
    before, output, parts = state_of(model), model.eval()(x), list(map(type, model.modules()))
    plain = export(model)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.zero_()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert list(map(type, model.modules())) == parts
    assert torch.equal(model(x), output)
    assert host["block_1"].stage == Stage.HOLDING


def test_nested_seeds_are_both_exported() -> None:
    for inner, outer in [("mlp_large", "self_attention"), ("lora_large", "lora_small")]:
        model, host, x = make_host("transformer")
        grow(host, "blocks.0.mlp", inner)
        grow(host, "blocks.0", outer)
        plain = export(model.eval())
        assert_same(plain(x), model(x))
        assert not esper_in(plain)


def test_requires_grad_and_modes_are_kept() -> None:
    model, host, _ = make_host("mlp")
    grow(host, "blocks.0", "mlp_small")
    model.stem.weight.requires_grad_(False)
    seed = host["blocks.0"].seed
    assert seed is not None
    seed[0].weight.requires_grad_(False)
    model.eval()
    model.blocks[1].train()
    plain = export(model)
    frozen = {name for name, p in plain.named_parameters() if not p.requires_grad}
    assert frozen == {"stem.weight", "blocks.0.seed.0.weight"}
    modes = {name: module.training for name, module in plain.named_modules()}
    on = {name for name, is_training in modes.items() if is_training}
    assert on == {"blocks.1", "blocks.1.up", "blocks.1.down"}


def test_an_exported_model_can_be_copied_and_trained() -> None:
    model, host, x = make_host("conv")
    grow(host, "block_1", "conv_heavy", style=BlendStyle.LEARNED_GATE)
    twin = copy.deepcopy(export(model.eval()))
    assert_same(twin(x), model(x))
    wanted, given = grads_of(model.train(), x), grads_of(twin.train(), x)
    assert given.keys() == wanted.keys() == dict(twin.named_parameters()).keys()
    for name, grad in wanted.items():
        torch.testing.assert_close(given[name], grad)


def test_a_model_without_seeds_is_copied() -> None:
    model, _, x = make_host("mlp")
    for original in (model, HOSTS["mlp"][0]()):
        plain = export(original)
        assert ATTRIBUTE not in plain.__dict__
        assert list(map(type, plain.modules())) == list(map(type, original.modules()))
        assert torch.equal(plain(x), original(x))
        assert plain.head.weight is not original.head.weight


@pytest.mark.parametrize("config", [MLPHostConfig(), CNNHostConfig(), GPTHostConfig()])
def test_grown_hosts_become_torch_modules_with_the_names_of_larger_ones(config: object) -> None:
    model = make_own_host(config, growth_config=GrowthConfig(commits_at_once=True))  # type: ignore[arg-type]
    x = sample_input(config, 3)  # type: ignore[arg-type]
    units, blocks = list(slots(model))[:2]
    slots(model).germinate(units, "widen_large")
    slots(model).germinate(blocks, "deepen")
    set_statistics(model)
    plain = export(model.eval())
    assert_same(plain(x), model(x))
    assert not esper_in(plain)
    larger = replace(config, hidden=2 * config.hidden, n_blocks=config.n_blocks + 1)  # type: ignore[type-var, attr-defined]
    built = build_host(larger).state_dict()
    assert {key: t.shape for key, t in plain.state_dict().items()} == {
        key: t.shape for key, t in built.items()
    }
    assert type(plain).__name__ == type(model).__name__


class TwoTensors(nn.Module):
    """Takes every kind of argument that Python has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.label = "plain"

    def forward(
        self,
        x: Tensor,
        scale: float = 2.0,
        *more: Tensor,
        mask: Tensor,
        sign: int = 1,
        **rest: Tensor,
    ) -> Tensor:
        y = scale * self.layer(x) * mask * sign
        return y + sum(more) + sum(rest.values())


class KeywordOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, *, hidden: Tensor, gain: float = 1.5) -> Tensor:
        return gain * self.layer(hidden) + x


class Caller(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(getattr(self.block, "label", None), str):
            return self.block(x, 0.5, x.cos(), mask=x.sign(), other=x.sin())
        return self.block(x[:, :1].cos(), hidden=x)


@pytest.mark.parametrize("blueprint", ["mlp_small", "low_rank"])
@pytest.mark.parametrize("block", [TwoTensors, KeywordOnly])
def test_an_exported_block_takes_all_of_its_arguments(
    block: type[nn.Module], blueprint: str
) -> None:
    model, x = Caller(block()), torch.randn(3, 4)
    add_slots(model, ["block"], x)
    grow(slots(model), "block", blueprint)
    plain = copy.deepcopy(export(model))
    assert_same(plain(x), model(x))
    assert_same(torch.export.export(plain, (x,)).module()(x), model(x))


def test_an_exported_block_forwards_attributes() -> None:
    # The encoder also reads layers[0].self_attn.batch_first.
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    model, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(3, 5, 8)
    add_slots(model, ["layers.0"], x)
    grow(slots(model), "layers.0", "mlp_small")
    for plain in (export(model), copy.deepcopy(export(model))):
        assert_same(plain(x), model(x))
        assert plain.layers[0].linear1.out_features == 16
        names = {name.replace("layers.0.block.", "layers.0.") for name in plain.state_dict()}
        assert {name for name, _ in layer.named_parameters(prefix="layers.0")} <= names
        assert len(plain.state_dict()) == len(model.state_dict())


class OddDefault(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, how: object = functools.partial(torch.add)) -> Tensor:
        return self.layer(x)


def test_a_block_may_have_any_default() -> None:
    model, x = nn.Sequential(OddDefault()), torch.randn(3, 4)
    add_slots(model, ["0"], x)
    grow(slots(model), "0", "mlp_small")
    assert_same(export(model)(x), model(x))


def test_an_attribute_that_refers_to_esper_is_rejected_by_name() -> None:
    model, _, _ = make_host("mlp")
    model.head.note = [BlendStyle.ADD_LINEAR]
    with pytest.raises(UnsupportedHostError, match=r"'note' .*'head'"):
        export(model)


def test_user_hooks_are_kept() -> None:
    model, calls = make_own_host(MLPHostConfig()), []
    model.blocks[0].register_forward_hook(lambda module, args, output: calls.append(output))
    model.head.register_forward_pre_hook(lambda module, args: calls.append(args[0]))
    x = sample_input(MLPHostConfig())
    wanted = (model(x), list(calls))
    calls.clear()
    assert torch.equal(export(model)(x), wanted[0])
    assert len(calls) == 2
    assert all(torch.equal(given, there) for given, there in zip(calls, wanted[1], strict=True))


class Shifted(MLPSeed):
    """A user's subclass of an Esper class, with a buffer that is sliced."""

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.register_buffer("shift", torch.arange(9.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.shift[: x.shape[-1]]


def test_buffers_of_a_traced_module_stay_buffers() -> None:
    model, x = nn.Sequential(Shifted()), torch.randn(3, 4)
    randomize(model)
    plain = export(model)
    assert_same(plain(x), model(x))
    assert list(plain.state_dict()) == list(model.state_dict())
    plain[0].shift.zero_()
    assert_same(plain(x), model(x) - torch.arange(4.0))


class Branching(MLPSeed):
    """A user's subclass of an Esper class that cannot be traced."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else x


def test_a_subclass_that_cannot_be_traced_is_rejected_by_name() -> None:
    with pytest.raises(UnsupportedHostError, match="Branching at '0'"):
        export(nn.Sequential(Branching(4, 2)))
    plain = export(nn.Sequential(type("Named", (MLPSeed,), {})(4, 2)))
    assert type(plain[0]) is nn.Sequential


_RELOAD = """
import pathlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("esper", "tests"):
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocker())
import torch
for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    program = torch.export.load(folder / "model.pt2").module()
    for x, y in torch.load(folder / "cases.pt", weights_only=True):
        assert (program(x) - y).abs().max() <= 1e-6 * y.abs().max(), "outputs differ"
    print(folder.name)
assert not [name for name in sys.modules if name.split(".")[0] == "esper"]
"""

PROGRAMS = {
    "mlp": ("blocks.0", "low_rank", BlendStyle.ADD_LINEAR),
    "conv": ("block_2", "attention", BlendStyle.MULTIPLY_LINEAR),
    "transformer": ("blocks.0", "self_attention", BlendStyle.LEARNED_GATE),
}


@pytest.mark.slow  # a grown model is saved and loaded without Esper in growing/test_tasks.py
def test_exported_programs_run_where_esper_cannot_be_imported(tmp_path: Path) -> None:
    for name, (slot, blueprint, style) in PROGRAMS.items():
        model, host, x = make_host(name)
        grow(host, slot, blueprint, style=style)
        plain = export(model.eval())
        batch = torch.export.Dim("batch", min=2, max=64)
        program = torch.export.export(plain, (x,), dynamic_shapes=({0: batch},))
        (tmp_path / name).mkdir()
        torch.export.save(program, tmp_path / name / "model.pt2")
        cases = [(x, model(x).detach()) for x in (x, torch.cat([x, x.flip(0)]))]
        torch.save(cases, tmp_path / name / "cases.pt")
    command = [sys.executable, "-c", _RELOAD, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted(PROGRAMS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "conv", "gpt"])
@pytest.mark.filterwarnings("ignore")
def test_an_exported_model_can_be_converted_to_onnx(name: str) -> None:
    pytest.importorskip("onnxscript")
    reference = pytest.importorskip("onnx.reference")
    if name == "gpt":  # ONNX supports attention with heads only
        model, x = make_own_host(GPTHostConfig()), sample_input(GPTHostConfig(), 3)
        slot, blueprint, style = PROGRAMS["transformer"]
    else:
        model, _, x = make_host(name)
        slot, blueprint, style = PROGRAMS[name]
    grow(slots(model), slot, blueprint, style=style)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.onnx.export(
        export(model.eval()), (x,), dynamo=True, dynamic_shapes=({0: batch},), verbose=False
    )
    assert program is not None
    session = reference.ReferenceEvaluator(program.model_proto)
    for case in (x, torch.cat([x, x.flip(0)])):
        (output,) = session.run(None, {session.input_names[0]: case.numpy()})
        wanted = model(case).detach()
        assert (torch.from_numpy(output) - wanted).abs().max() <= 1e-5 * wanted.abs().max()
