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
PAIR = "blocks.0.up>blocks.0.down"
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

    def __init__(self, compiled: Compile, *at: str, build: Build = ResidualMLP) -> None:
        torch.manual_seed(0)
        self.plain = build()
        self.model = compiled(self.plain)
        optimizer = torch.optim.SGD(self.plain.parameters(), 0.05, momentum=0.9)
        self.grower = esper.Grower(
            self.model, optimizer, epochs=40, controller="no-growth", at=at, sample_input=X[:2]
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


class FlatModel(nn.Module):
    """Three layers in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x).relu()).relu())


def make_sequential() -> nn.Sequential:
    """Return the three layers as a module whose forward pass is torch's own code."""
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))


class TwoSeeds(Life):
    """Seeds that grow one after the other in two slots, both held and not committed yet."""

    def __init__(self, compiled: Compile, *at: str, build: Build) -> None:
        super().__init__(compiled, *at, build=build)
        place = self.grower.slots
        for slot in at:
            assert place.germinate(slot, "widen_large", tempo_epochs=3).was_done
            while place[slot].stage != Stage.HOLDING:
                place.advance(slot)
                self.train_epoch()

    def commit(self) -> None:
        """Commit both seeds, and train until they are part of the model's blocks."""
        for slot in self.grower.slots:
            self.train_epoch()
            assert self.grower.slots.fossilize(slot).was_done
        for _ in range(4):
            self.train_epoch()


@pytest.mark.parametrize(
    ("build", "compiled", "at"),
    [
        (FlatModel, compile_whole, ("a>b", "b>c")),
        pytest.param(make_sequential, compile_whole, ("0>2", "2>4"), marks=pytest.mark.slow),
        pytest.param(ResidualMLP, compile_whole, ("blocks.0", "blocks.1"), marks=pytest.mark.slow),
        pytest.param(ResidualMLP, compile_whole, ("blocks.1", "blocks.0"), marks=pytest.mark.slow),
    ],
)
def test_two_live_seeds_give_the_same_numbers_in_a_compiled_model(
    build: Build, compiled: Compile, at: tuple[str, str]
) -> None:
    lives = [TwoSeeds(how, *at, build=build) for how in (leave, compiled)]
    for life in lives:
        life.commit()
        if build is FlatModel:
            assert life.grower.slots["b>c"].life.fossils[-1].links == (("a>b", 6),)
    assert_alike(*lives)


@pytest.mark.slow
def test_neighbouring_seeds_are_linked_in_a_compiled_model() -> None:
    lives = [TwoSeeds(leave, "a>b", "b>c", build=FlatModel) for _ in range(2)]
    lives[1].model.compile(backend=BACKEND)
    for life in lives:
        life.commit()
        assert life.grower.slots["b>c"].life.fossils[-1].links == (("a>b", 6),)
    states: list[dict[str, Tensor]] = [life.plain.state_dict() for life in lives]
    assert states[0]["b.fossils.0.seed.links.rows.weight"].any()
    assert_alike(*lives)


@pytest.mark.parametrize(
    ("slot", "blueprint", "style"),
    [
        ("blocks.0", "widen_small", BlendStyle.ADD_LINEAR),
        pytest.param(PAIR, "widen_small", BlendStyle.ADD_SIGMOID, marks=pytest.mark.slow),
        pytest.param("blocks.0", "deepen", BlendStyle.ADD_LINEAR, marks=pytest.mark.slow),
        pytest.param("blocks.1", "mlp_small", BlendStyle.LEARNED_GATE, marks=pytest.mark.slow),
        pytest.param("stem", "low_rank", BlendStyle.MULTIPLY_LINEAR, marks=pytest.mark.slow),
    ],
)
def test_a_whole_life_costs_three_graphs(slot: str, blueprint: str, style: BlendStyle) -> None:
    lives = [Life(compiled, slot) for compiled in (leave, compile_whole)]
    for life in lives:
        life.train_epoch()
        life.live(slot, blueprint, style)
    training, validation = lives[1].n_compiled[0::2], lives[1].n_compiled[1::2]
    assert training[0] == validation[0] == 1
    assert sum(training[1:]) <= 3
    assert sum(validation[1:]) <= 2
    assert_alike(*lives)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [compile_whole, compile_in_place])
def test_a_model_stays_compiled_however_many_seeds_grow(compiled: Compile) -> None:
    # Each seed needs six graphs, those for validation and absorption included.
    with torch._dynamo.config.patch(recompile_limit=7):
        life = Life(compiled, "blocks.0", "blocks.1")
        for slot in ("blocks.0", "blocks.1", "blocks.0"):
            life.live(slot, "widen_small")
            for _ in range(3):
                life.train_epoch()
    assert len(life.grower.slots["blocks.0"].absorbed) == 2


@pytest.mark.slow
def test_a_sequential_stays_compiled_however_many_seeds_grow() -> None:
    with torch._dynamo.config.patch(recompile_limit=7):
        life = Life(compile_whole, "0>2", "2>4", build=make_sequential)
        for slot in ("0>2", "2>4", "0>2"):
            life.live(slot, "widen_small")
            for _ in range(3):
                life.train_epoch()
    assert len(life.grower.slots["0>2"].absorbed) == 2


@pytest.mark.slow
def test_compiled_blocks_are_not_compiled_again_when_seeds_grow_on_them() -> None:
    lives = [Life(compiled, "blocks.0") for compiled in (leave, compile_blocks)]
    for life in lives:
        life.train_epoch()
        life.live("blocks.0", "widen_small")
    assert sum(lives[1].n_compiled[:2]) > 0
    assert sum(lives[1].n_compiled[2:]) == 0
    assert_alike(*lives)


@pytest.mark.slow
def test_seeds_grow_inside_compiled_blocks() -> None:
    lives = [Life(compiled, PAIR) for compiled in (leave, compile_blocks)]
    for life in lives:
        life.train_epoch()
        life.live(PAIR, "widen_small")
    assert_alike(*lives)


def test_a_block_wrapped_by_torch_compile_is_refused_at_once() -> None:
    model = ResidualMLP()
    model.blocks[1] = compile_whole(model.blocks[1])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(SlotError, match=r"'blocks\.1'.*\.compile\(\)"):
        esper.Grower(model, optimizer, epochs=3)


@pytest.mark.slow
def test_a_seed_that_fades_out_leaves_the_model_as_it_was_compiled() -> None:
    lives = [Life(compiled, "blocks.0") for compiled in (leave, compile_whole)]
    for life in lives:
        places = life.grower.slots
        places.germinate("blocks.0", "widen_small", tempo_epochs=3)
        for _ in range(4):
            life.train_epoch()
            places.advance("blocks.0")
        places.prune("blocks.0", speed_epochs=3)
        for _ in range(4):
            life.train_epoch()
        assert places["blocks.0"].seed is None
    assert sum(lives[1].n_compiled[0::2]) == 4  # germinated, training, blending, without
    assert_alike(*lives)


@pytest.mark.slow
def test_an_export_of_a_compiled_model_is_plain() -> None:
    life = Life(compile_whole, "blocks.0")
    life.live("blocks.0", "widen_small")
    plain = life.grower.export()
    life.model.eval()
    torch.testing.assert_close(plain.eval()(X), life.model(X), atol=1e-5, rtol=1e-5)
    assert not any(type(module).__module__.startswith("esper") for module in plain.modules())
