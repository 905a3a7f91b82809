"""Models that torch.compile has compiled grow like uncompiled ones, and are seldom recompiled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn.functional import cross_entropy

import esper
from esper.config.growth import GrowthConfig
from esper.errors import SlotError
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.stages import Stage
from tests.growth.helpers import ResidualMLP

# Torch's own warnings while it compiles.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]

BACKEND = "eager"
"""Graphs are captured and guarded as always, but run as they are."""
UNITS, BLOCKS = "blocks.*.up>down", "blocks.*"
generator = torch.Generator().manual_seed(0)
X = torch.randn(16, 5, generator=generator)
Y = torch.randint(3, (16,), generator=generator)

Build = Callable[[], nn.Module]
Compile = Callable[[nn.Module], nn.Module]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    logging.disable(logging.INFO)  # the compiler logs thousands of lines for pytest to capture
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield
    logging.disable(logging.NOTSET)
    torch.compiler.reset()


def leave(model: nn.Module) -> nn.Module:
    return model


def compile_whole(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend=BACKEND)  # pyright: ignore[reportReturnType]


def compile_in_place(model: nn.Module) -> nn.Module:
    model.compile(backend=BACKEND)
    return model


def compile_blocks(model: nn.Module) -> nn.Module:
    for block in model.get_submodule("blocks").children():
        block.compile(backend=BACKEND)
    return model


class Life:
    """A training with lives of seeds that are decided by hand."""

    def __init__(
        self,
        compiled: Compile,
        *at: str,
        build: Build = ResidualMLP,
        blends: bool = False,
    ) -> None:
        torch.manual_seed(0)
        self.plain = build()
        config = GrowthConfig(commits_at_once=not blends, embargo_epochs=1)
        esper.add_slots(self.plain, at, X[:2], growth_config=config)
        self.model = compiled(self.plain)
        optimizer = torch.optim.SGD(self.plain.parameters(), 0.05, momentum=0.9)
        self.grower = esper.Grower(
            self.model, optimizer, epochs=40, controller="no-growth", sample_input=X[:2]
        )
        self.losses: list[float] = []
        self.n_compiled: list[int] = []
        """Compiled frames of the training steps, and of the validation, of each epoch."""

    def train_epoch(self) -> None:
        before = counters["frames"]["ok"]
        for _ in range(2):
            loss = cross_entropy(self.model(X), Y)
            loss.backward()
            self.grower.step(loss)
            self.losses.append(loss.item())
        self.n_compiled.append(counters["frames"]["ok"] - before)
        score = self.validate()
        self.grower.end_epoch(score=score, validate=self.validate)
        self.n_compiled.append(counters["frames"]["ok"] - before - self.n_compiled[-1])

    def validate(self) -> float:
        self.model.eval()
        with torch.no_grad():
            loss = cross_entropy(self.model(X), Y).item()
        self.model.train()
        self.losses.append(loss)
        return -loss

    def live(self, slot: str, blueprint: str, style: BlendStyle = BlendStyle.ADD_LINEAR) -> None:
        """Grow one seed from germination to one epoch after its fossilization."""
        place = self.grower.slots
        assert place.germinate(slot, blueprint, style=style, tempo_epochs=3).was_done
        self.train_epoch()
        while place[slot].stage != Stage.HOLDING:
            place.advance(slot)
            self.train_epoch()
        assert place.fossilize(slot).was_done
        self.train_epoch()


def assert_alike(first: Life, second: Life) -> None:
    torch.testing.assert_close(
        torch.tensor(first.losses), torch.tensor(second.losses), atol=1e-5, rtol=1e-5
    )
    states: list[dict[str, Tensor]] = [life.plain.state_dict() for life in (first, second)]
    torch.testing.assert_close(*states, atol=1e-5, rtol=1e-5)


def make_sequential() -> nn.Sequential:
    """Return three layers as a module whose forward pass is torch's own code."""
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("build", "compiled", "slots"),
    [
        (ResidualMLP, compile_whole, {UNITS: "widen_small", BLOCKS: "deepen"}),
        pytest.param(ResidualMLP, compile_in_place, {UNITS: "widen_small"}, marks=pytest.mark.slow),
        (make_sequential, compile_whole, {"0>2": "widen_small", "2>4": "widen_small"}),
    ],
)
def test_a_change_of_structure_costs_one_graph_however_many_there_are(
    build: Build, compiled: Compile, slots: dict[str, str]
) -> None:
    with torch._dynamo.config.patch(recompile_limit=3):
        lives = [Life(how, *slots, build=build) for how in (leave, compiled)]
        for life in lives:
            life.train_epoch()
            for slot, blueprint in [*slots.items()] * 3:
                assert life.grower.slots.germinate(slot, blueprint).was_done
                life.train_epoch()
                life.train_epoch()
    training, validation = lives[1].n_compiled[0::2], lives[1].n_compiled[1::2]
    expected = [1] + [1, 0] * 3 * len(slots)
    assert training == expected
    assert validation == expected
    assert_alike(*lives)


@pytest.mark.parametrize(
    ("slot", "blueprint", "style"),
    [
        (UNITS, "widen_small", BlendStyle.ADD_LINEAR),
        pytest.param(BLOCKS, "deepen", BlendStyle.ADD_SIGMOID, marks=pytest.mark.slow),
        ("blocks.1", "mlp_small", BlendStyle.LEARNED_GATE),
        pytest.param("stem", "low_rank", BlendStyle.MULTIPLY_LINEAR, marks=pytest.mark.slow),
    ],
)
def test_a_whole_blended_life_costs_three_graphs(
    slot: str, blueprint: str, style: BlendStyle
) -> None:
    """Units have hooks while they are blended in and measured; a module also trains by itself."""
    lives = [Life(compiled, slot, blends=True) for compiled in (leave, compile_whole)]
    for life in lives:
        life.train_epoch()
        life.live(slot, blueprint, style)
    training, validation = lives[1].n_compiled[0::2], lives[1].n_compiled[1::2]
    assert training[0] == validation[0] == 1
    assert 0 < sum(training[1:]) <= 3
    assert_alike(*lives)


@pytest.mark.slow
def test_two_live_seeds_give_the_same_numbers_in_a_compiled_model() -> None:
    at = ("0>2", "2>4")
    lives = [Life(how, *at, build=make_sequential, blends=True) for how in (leave, compile_whole)]
    for life in lives:
        place = life.grower.slots
        for slot in at:
            place.germinate(slot, "widen_large", tempo_epochs=3)
            while place[slot].stage != Stage.HOLDING:
                life.train_epoch()
                place.advance(slot)
        for slot in at:
            life.train_epoch()
            assert place.fossilize(slot).was_done
        life.train_epoch()
    assert_alike(*lives)


@pytest.mark.slow
def test_compiled_blocks_follow() -> None:
    for slot, blueprint in ((UNITS, "widen_small"), ("blocks.0", "mlp_small")):
        lives = [Life(compiled, slot, blends=True) for compiled in (leave, compile_blocks)]
        for life in lives:
            life.train_epoch()
            life.live(slot, blueprint)
        assert_alike(*lives)


def test_a_block_wrapped_by_torch_compile_is_refused_at_once() -> None:
    model = ResidualMLP()
    model.blocks[1] = compile_whole(model.blocks[1])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(SlotError, match=r"'blocks\.1'.*\.compile\(\)"):
        esper.Grower(model, optimizer, epochs=3)


@pytest.mark.parametrize("compiled", [compile_whole, compile_in_place, compile_blocks])
def test_grow_compiles_what_it_trains(compiled: Compile) -> None:
    data = (X, Y), (X[:8], Y[:8])
    results = []
    for how in (leave, compiled):
        torch.manual_seed(0)
        model = how(ResidualMLP())
        before = counters["frames"]["ok"]
        grown = esper.grow(model, *data, 3, controller="fixed", batch_size=16, progress=False)
        results.append((counters["frames"]["ok"] - before, grown))
    (n_plain, plain), (n_compiled, grown) = results
    assert n_plain == 0
    assert n_compiled > 0
    assert grown.summary.after == pytest.approx(plain.summary.after)
    assert type(grown.model) is ResidualMLP
    assert not any(vars(m).get("_compiled_call_impl") for m in grown.model.modules())


@pytest.mark.slow
def test_an_export_of_a_compiled_model_is_plain() -> None:
    life = Life(compile_whole, "blocks.0", blends=True)
    life.live("blocks.0", "mlp_small")
    plain = life.grower.export()
    life.model.eval()
    torch.testing.assert_close(plain.eval()(X), life.model(X), atol=1e-5, rtol=1e-5)
    assert not any(type(module).__module__.startswith("esper") for module in plain.modules())
