"""Input that cannot be used is rejected in one line, by name and value."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import esper
from esper.cli.main import main
from esper.config import memory
from esper.config.growth import Budget
from esper.config.learning import NetworkConfig
from esper.config.run import RunConfig
from esper.config.toml import read_toml, write_toml
from esper.dashboard.views.comparison import read_final_verdict
from esper.errors import (
    ConfigError,
    DeviceError,
    DtypeError,
    EsperError,
    RunError,
    SlotError,
    TaskError,
    UnsupportedHostError,
)
from esper.growth.blueprints import registry
from esper.growth.blueprints.registry import Blueprint, SeedForm, register_blueprint
from esper.growth.host_slots import slots
from esper.growth.sites import SlotSite, TensorKind
from esper.lifecycle.stages import Stage
from esper.simic.agent import PPOAgent, TamiyoRolloutBuffer
from esper.simic.agent.advantages import estimate_advantages
from esper.simic.policy.action_spec import ActionSpec
from esper.simic.policy.networks import Towers
from esper.simic.policy.recurrent import RecurrentPolicy
from esper.simic.rollout.factory import make_members
from esper.storage.run_folder import RunFolder, list_folders
from esper.tamiyo import save_controller
from esper.tamiyo.policy.action_masks import SlotConfig, SlotMaskState, compute_batch_masks
from esper.tasks import make_task, register_task
from esper.tasks import registry as task_registry
from esper.training.run import Run, list_runs
from esper.training.setup import require_room
from tests.cli.test_run_commands import refused
from tests.storage.forging import forge_json
from tests.tamiyo.fresh_controllers import fresh_controller

LONG = "a" * 5000
DEEP = "x/" * 3000
SPEC = ActionSpec(names=("op",), sizes=(3,), op_head="op", relevance=((True,),) * 3)
X, Y = torch.randn(8, 4), torch.arange(8) % 3


def net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 6), nn.ReLU()), nn.Linear(6, 3)
    )


def empty_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(write_toml(RunConfig()))
    return folder


# Names and files


@pytest.mark.parametrize(
    "name", [LONG, DEEP, "a" * 256, "nul\0"], ids=["long", "deep", "256", "nul"]
)
@pytest.mark.parametrize(
    "words",
    [
        ["show"],
        ["resume"],
        ["report"],
        ["runs"],
        ["dashboard"],
        ["export-controller"],
        ["evaluate"],
    ],
    ids=lambda words: words[0],
)
def test_names_that_the_system_does_not_allow_are_rejected(
    words: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(refused([*words, name], capsys)) < 400


@pytest.mark.parametrize("name", [LONG, DEEP], ids=["long", "deep"])
@pytest.mark.parametrize("words", [["grow", "--out"], ["train", "--run-dir"]], ids=lambda w: w[0])
def test_new_folders_with_names_that_the_system_does_not_allow_are_rejected(
    words: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, name, "--quiet"]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("esper: error: ")


@pytest.mark.parametrize("name", [LONG, DEEP], ids=["long", "deep"])
def test_no_controller_has_a_name_that_the_system_does_not_allow(name: str) -> None:
    with pytest.raises(RunError, match=name[:20]):
        esper.grow(net(), (X, Y), (X, Y), epochs=1, controller=name)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Return a function that closes a folder to this user, also where that is root."""
    real_stat, real_open, real_os_open = os.stat, open, os.open
    shut: list[str] = []

    def check(path: Any) -> None:
        if isinstance(path, (str, os.PathLike)) and any(
            str(path).startswith(place) for place in shut
        ):
            raise PermissionError(13, "Permission denied", str(path))

    def stat(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        check(path)
        return real_stat(path, *args, **kwargs)

    def open_file(path: Any, *args: Any, **kwargs: Any) -> Any:
        check(path)
        return real_open(path, *args, **kwargs)

    def open_handle(path: Any, *args: Any, **kwargs: Any) -> int:
        check(path)
        return real_os_open(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "open", open_handle)
    monkeypatch.setattr("io.open", open_file)
    return lambda folder: shut.append(f"{folder}/")


def test_a_folder_that_may_not_be_read_does_not_hide_other_runs(
    tmp_path: Path, closed: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    empty_run(runs / "open")
    closed(empty_run(runs / "shut"))
    assert {folder.name for folder in list_folders(runs)} == {"open", "shut"}
    assert main(["runs", str(runs), "--json"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["open"]["state"] == "empty"
    assert found["shut"]["state"] == "unreadable"
    assert "Permission denied" in found["shut"]["problem"]
    with pytest.warns(UserWarning, match="shut"):
        assert [run.name for run in list_runs(runs)] == ["open"]
    assert "Permission denied" in refused(["show", str(runs / "shut")], capsys)


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied", "/x/y"), OSError(40, "x", "/x/y")]
)
def test_an_error_of_the_system_is_one_line_with_the_file(
    error: OSError, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr("esper.cli.listings.run_tasks", fail)
    assert "/x/y" in refused(["tasks"], capsys)


@pytest.mark.parametrize(
    "error",
    [MemoryError("no more"), RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes")],
)
def test_a_lack_of_memory_is_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr("esper.cli.listings.run_tasks", fail)
    assert "memory" in refused(["tasks"], capsys, code=1)


@pytest.mark.parametrize("content", [None, "[" * 100_000, '{"a":' * 100_000, "{}", "1"])
def test_a_summary_that_is_none_is_named(content: str | None, tmp_path: Path) -> None:
    folder = RunFolder(empty_run(tmp_path / "run"))
    if content is None:
        folder.summary_file.mkdir()
    else:
        folder.summary_file.write_text(content)
    with pytest.raises(RunError, match=r"summary\.json"):
        _ = Run(folder).summary
    problems: list[str] = []
    assert read_final_verdict(folder.path, problems) is None
    assert len(problems) == 1


@pytest.mark.parametrize(
    "text",
    [
        "a." * 20_000 + "a = 1",
        "[" + "a." * 20_000 + "a]",
        '"a" . ' * 20_000 + "a = 1",
        "x = {" + "a." * 20_000 + "a = 1}",
        "[task_options]\nx = " + "[" * 20_000,
        "[task_options]\nx = " + "{a=" * 20_000,
        "# " + "x" * 2_000_000,
    ],
    ids=["key", "section", "quoted", "inline", "lists", "tables", "large"],
)
def test_settings_nested_too_deeply_are_rejected_at_once(text: str) -> None:
    start = time.perf_counter()
    with pytest.raises(ConfigError, match=r"^it is not valid TOML"):
        read_toml(text, source="it")
    assert time.perf_counter() - start < 5


def test_long_strings_with_dots_are_settings() -> None:
    value = "word. " * 1000 + "a.b.c"
    config = read_toml(f'[task_options]\nx = "{value}"', source="it")
    assert config.task_options["x"] == value


def test_a_deep_option_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--print-config", "--task-options", "x=" + "[" * 20_000]) == 0
    capsys.readouterr()


# Sizes


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: require_room(RunConfig(envs=0x7FFFFFFF)), "envs is 2147483647"),
        (lambda: esper.train(task="spirals", envs=0x7FFFFFFF), "envs is 2147483647"),
        (
            lambda: esper.train(task="spirals", evaluation={"n_eval_episodes": 10**12}),
            r"evaluation\.n_eval_episodes is 1000000000000",
        ),
        (lambda: esper.make_env("spirals", 10**12), "num_envs is 1000000000000"),
        (
            lambda: TamiyoRolloutBuffer(4, 10**14, SPEC, observation_size=3),
            "n_steps is 100000000000000",
        ),
        (
            lambda: TamiyoRolloutBuffer(4, 2, SPEC, observation_size=10**15),
            "n_envs is 4",
        ),
        (
            lambda: RecurrentPolicy(SPEC, 3, NetworkConfig(lstm_size=10**9)),
            "lstm_size is 1000000000",
        ),
        (
            lambda: RecurrentPolicy(SPEC, 3, NetworkConfig(feature_size=10**13)),
            "feature_size is 10000000000000",
        ),
        (lambda: Towers(3, (10**14,), "tanh"), "hidden_sizes is"),
        (lambda: make_members("CartPole-v1", 10**12), "n_envs is 1000000000000"),
    ],
)
def test_sizes_that_cannot_fit_say_what_they_need_and_what_there_is(
    make: Callable[[], object], name: str
) -> None:
    with pytest.raises(
        ConfigError, match=rf"{name}.*needs at least .* [PTGM]B .* [PTGM]B is avail"
    ):
        make()


def test_hosts_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 6e4)
    with pytest.raises(ConfigError, match=r"hosts is 1 and parameters is \d+"):
        esper.grow(
            net().append(nn.Linear(3, 1500)), (X, Y), (X, Y), 1, at=["1"], controller="no-growth"
        )


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Budget(n_epochs=10**30), "n_epochs is 1" + "0" * 30),
        (lambda: esper.grow("spirals", epochs=10**30), "epochs is 1" + "0" * 30),
        (lambda: RunConfig(rounds=10**30), "rounds is 1" + "0" * 30),
        (lambda: RunConfig(threads=10**6), "threads is 1000000"),
        (lambda: NetworkConfig(lstm_size=2**63), "lstm_size is 9223372036854775808"),
    ],
)
def test_numbers_beyond_64_bits_are_rejected(make: Callable[[], object], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        make()


FOREVER: dict[str, tuple[dict[str, Any], str]] = {
    "batches": (
        {"origin": {"task": "spirals", "task_options": {"batches_per_epoch": 10**15}}},
        "batches_per_epoch is 1000000000000000; .*at most 1000000",
    ),
    "epochs": ({"budget": 10**15}, "budget.n_epochs is 1000000000000000; .*at most 100000"),
    "both": (
        {
            "budget": 100_000,
            "origin": {"task": "spirals", "task_options": {"batches_per_epoch": 10_000}},
        },
        "n_epochs 100000 and batches_per_epoch 10000; .*at most 100000000 batches",
    ),
    "blocks": (
        {"origin": {"task": "text", "task_options": {"n_blocks": 10**7}}},
        "n_blocks is 10000000; .*at most 1000",
    ),
    "width": (
        {"origin": {"task": "text", "task_options": {"width": 10**10}}},
        "width is 10000000000 .*memory",
    ),
}


@pytest.mark.parametrize("kind", FOREVER)
def test_a_controller_cannot_ask_for_work_without_end(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changes, words = FOREVER[kind]
    path = save_controller(fresh_controller(), tmp_path / "c")
    facts = json.loads((path / "controller.json").read_text())
    facts["budget"]["n_epochs"] = changes.get("budget", 3)
    forge_json(path, "controller.json", facts | {"origin": changes.get("origin", {})})
    assert re.search(words, refused(["grow", "--controller", "c"], capsys))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "task = 'spirals'\n[task_options]\nbatches_per_epoch = 1000000000",
            "batches_per_epoch is",
        ),
        ("[budget]\nn_epochs = 1000000000", r"budget\.n_epochs is 1000000000"),
        ("[ppo]\nn_epochs = 1000000000", r"ppo\.n_epochs is 1000000000; .*at most 10000"),
    ],
)
def test_a_settings_file_cannot_ask_for_work_without_end(
    text: str,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("big.toml").write_text(text)
    assert re.search(words, refused(["train", "--config", "big.toml"], capsys))


def test_available_memory_is_the_least_of_all_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable: 1000 kB\nSwapFree: 24 kB\nHugePages: 3\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert memory.available_memory() == 1024 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_memory() == 1024 * 1024
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert memory.available_memory() == 2000
    with pytest.raises(ConfigError, match="a is 5 and b is 6"):
        memory.require_memory(2001, a=5, b=6)
    memory.require_memory(2000, a=5)


# Arguments


@pytest.mark.parametrize("name", ["rewards", "values", "next_values", "terminated", "truncated"])
@pytest.mark.parametrize(
    "value",
    [np.zeros((2, 3), np.float32), [[0.0] * 3] * 2, None, "x", torch.zeros(2, 3).to_sparse()],
    ids=["array", "list", "None", "string", "sparse"],
)
def test_advantages_of_what_is_no_tensor(name: str, value: object) -> None:
    flags = torch.zeros(2, 3, dtype=torch.bool)
    tensors: dict[str, Any] = dict.fromkeys(("rewards", "values", "next_values"), torch.zeros(2, 3))
    tensors |= {"terminated": flags, "truncated": flags, name: value}
    with pytest.raises(DtypeError, match=f"^{name} "):
        estimate_advantages(**tensors, gamma=0.9, gae_lambda=0.9)


@pytest.mark.parametrize("value", [None, "x", float("nan"), 2])
def test_advantages_with_a_discount_that_is_no_number(value: Any) -> None:
    flags, zeros = torch.zeros(2, 3, dtype=torch.bool), torch.zeros(2, 3)
    with pytest.raises(ConfigError, match=f"gamma is {value!r}"):
        estimate_advantages(
            zeros, zeros, zeros, terminated=flags, truncated=flags, gamma=value, gae_lambda=0.9
        )


def test_an_agent_needs_a_specification_and_a_policy() -> None:
    with pytest.raises(ConfigError, match="spec is None"):
        PPOAgent(None)  # type: ignore[arg-type]
    for policy in (None, nn.Linear(2, 2)):
        with pytest.raises(ConfigError, match="policy is"):
            PPOAgent(SPEC, policy)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="config is 5"):
        PPOAgent(SPEC, RecurrentPolicy(SPEC, 3), 5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="spec is None"):
        TamiyoRolloutBuffer(1, 1, None, observation_size=3)  # type: ignore[arg-type]


class SparseOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 3), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x).to_sparse()


def sparse_net() -> nn.Module:
    model = net()
    model.register_buffer("table", torch.eye(3).to_sparse())
    return model


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (lambda: None, "NoneType"),
        (lambda: nn.Linear, "type"),
        (lambda: net().to("meta"), "0.weight .* meta"),
        (lambda: torch.jit.trace(net(), X), "TorchScript"),
        (lambda: torch.jit.freeze(torch.jit.trace(net(), X).eval()), "TorchScript"),
        (sparse_net, "table .* sparse"),
    ],
    ids=["None", "class", "meta", "traced", "frozen", "sparse"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_models_without_slots_for_a_reason(model: Callable[[], Any], name: str) -> None:
    made = model()
    for use in (
        lambda: esper.add_slots(made, ["1"], X),
        lambda: esper.find_slots(made, X),
        lambda: esper.grow(made, (X, Y), (X, Y), epochs=1),
    ):
        with pytest.raises((SlotError, ConfigError), match=name):
            use()


def test_samples_that_no_slot_can_be_found_with() -> None:
    for sample in (X[:0], (X[:0],), {"input": X[:0]}):
        with pytest.raises(SlotError, match=r"\[0, 4\]"):
            esper.add_slots(net(), ["1"], sample)
        with pytest.raises(SlotError, match=r"\[0, 4\]"):
            esper.find_slots(net(), sample)
    with pytest.raises(SlotError, match=r"SparseOutput .*sparse"):
        esper.find_slots(SparseOutput(), X)
    with pytest.raises(ConfigError, match="growth_config is 5"):
        esper.add_slots(net(), ["1"], X, growth_config=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [X.to_sparse(), X.to("meta")], ids=["sparse", "meta"])
def test_data_that_no_model_can_learn(bad: torch.Tensor) -> None:
    with pytest.raises(EsperError, match="inputs of train_data"):
        esper.grow(net(), (bad, Y), (X, Y), epochs=1)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("controller", 5), ("controller", None), ("on_step", 5), ("epochs", float("nan"))],
)
def test_growing_with_what_is_no_argument(argument: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{argument} is {value!r}"):
        esper.grow(net(), (X, Y), (X, Y), **{"epochs": 1, argument: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ((Stage.TRAINING, float("nan"), True), "age_epochs is nan"),
        ((Stage.TRAINING, float("inf"), True), "age_epochs is inf"),
        ((Stage.TRAINING, None, True), "age_epochs is None"),
        ((Stage.TRAINING, "1", True), "age_epochs is '1'"),
        ((Stage.TRAINING, 1.5, True), "age_epochs is 1.5"),
        ((None, 1, True), "stage is None"),
        ((1.5, 1, True), "stage is 1.5"),
        ((Stage.TRAINING, 1, None), "alpha_at_rest is None"),
        ((Stage.TRAINING, 1, torch.tensor([True, False])), "alpha_at_rest is tensor"),
    ],
)
def test_slot_states_of_what_is_no_number(values: tuple[Any, ...], name: str) -> None:
    with pytest.raises(SlotError, match=name):
        SlotMaskState(*values)
    assert SlotMaskState(Stage.TRAINING, np.int64(3), np.bool_(True)).code  # type: ignore[arg-type]


def test_masks_of_what_are_no_slot_states() -> None:
    config = SlotConfig(("a", "b"))
    for states in (5, [5, 5], [[5, 5]], [None]):
        with pytest.raises(SlotError, match="slot states are"):
            compute_batch_masks(states, config)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="slot_config is None"):
        compute_batch_masks([[None]], None)  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="nowhere"):
        compute_batch_masks([[None, None]], config, "nowhere")


# Code of users


class Leaving(BaseException):
    """An exception that is not an error."""


@pytest.fixture
def own_task(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], str]:
    monkeypatch.setattr(task_registry, "_REGISTRY", dict(task_registry._REGISTRY))  # type: ignore[attr-defined]

    def register(make: Callable[..., Any]) -> str:
        register_task("own", make, summary="a task")
        return "own"

    return register


@pytest.mark.parametrize("kind", [Leaving, SystemExit, GeneratorExit, ZeroDivisionError])
def test_a_task_that_raises_anything_is_named(
    kind: type[BaseException], own_task: Callable[[Callable[..., Any]], str]
) -> None:
    def make() -> Any:
        raise kind("why")

    with pytest.raises(TaskError, match=rf"own.*{kind.__name__} \(why\)"):
        make_task(own_task(make))


def test_an_interrupted_task_is_interrupted(own_task: Callable[[Callable[..., Any]], str]) -> None:
    def make() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_task(own_task(make))


class FailingSeed(nn.Module):
    """A seed that fails after a number of calls."""

    def __init__(self, width: int, n_calls: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.n_left = n_calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n_left -= 1
        if self.n_left < 0:
            raise ZeroDivisionError("in its forward")
        return self.layer(x)


@pytest.fixture
def own_blueprint(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[SlotSite], Any]], None]:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))  # type: ignore[attr-defined]

    def register(build: Callable[[SlotSite], Any]) -> None:
        kinds = frozenset({TensorKind.VECTOR})
        register_blueprint(
            Blueprint(name="own", kinds=kinds, form=SeedForm.SERIAL, build=build, summary="")
        )

    return register


def test_a_blueprint_that_raises_is_named(
    own_blueprint: Callable[[Callable[[SlotSite], Any]], None],
) -> None:
    calls: list[SlotSite] = []

    def build(site: SlotSite) -> Any:
        calls.append(site)
        if len(calls) > 1:
            raise ZeroDivisionError("in its builder")
        return FailingSeed(site.width, 1)

    own_blueprint(build)
    model = esper.add_slots(net(), ["1"], X)
    host = slots(model)
    host.germinate("1", "own")
    host.advance("1")
    model.train()
    with pytest.raises(SlotError, match=r"own seed in slot '1'.*ZeroDivisionError"):
        model(X)
    with pytest.raises(SlotError, match=r"'own' raised ZeroDivisionError"):
        registry.find_blueprint("own").build_seed(calls[0])


def test_a_blueprint_that_makes_no_module_is_named(
    own_blueprint: Callable[[Callable[[SlotSite], Any]], None],
) -> None:
    own_blueprint(lambda _: None)
    model = esper.add_slots(net(), ["1"], X)
    with pytest.raises(SlotError, match="'own' returned a NoneType"):
        slots(model).germinate("1", "own")


class FailingHost(nn.Module):
    """A model that fails in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            raise ZeroDivisionError("in training")
        return self.layers(x)


def test_a_model_that_raises_in_training_is_named() -> None:
    with pytest.raises(UnsupportedHostError, match=r"ZeroDivisionError \(in training\)"):
        esper.grow(FailingHost(), (X, Y), (X, Y), epochs=1)
