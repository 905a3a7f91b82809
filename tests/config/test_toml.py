"""Configuration files are read strictly and round-trip."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.config.learning import PPOConfig
from esper.config.run import RunConfig
from esper.config.toml import load_sourced_preset, override, read_toml, write_toml
from esper.errors import ConfigError
from esper.storage.files import read_toml_file
from tests.config.run_configs import run_configs


@given(run_configs())
def test_settings_round_trip(config: RunConfig) -> None:
    text = write_toml(config)
    again = read_toml(text, source="it")
    assert again == config
    # repr distinguishes 1, 1.0 and True, which are equal.
    assert repr(again) == repr(config)
    assert write_toml(again) == text
    assert read_toml(text.encode().decode(), source="it") == config


def test_a_partial_file_leaves_the_rest_at_its_defaults() -> None:
    config = read_toml(
        'rounds = 7\n[ppo]\nlearning_rate = 1e-3\ngamma = 1\n[evaluation]\npatience = "none"\n',
        source="it",
    )
    ppo = replace(RunConfig().ppo, learning_rate=1e-3)
    assert config == replace(RunConfig(), rounds=7, ppo=ppo)
    assert type(config.ppo.gamma) is float
    assert read_toml("", source="it") == RunConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[ppo]\nlearning_rte = 1",
            "ppo.learning_rte is not a setting. Did you mean 'learning_rate'?",
        ),
        (
            "learning_rate_end = 1",
            "learning_rate_end is not a setting. Did you mean 'schedule.learning_rate_end'?",
        ),
        ("[pppo]\ngamma = 1", "pppo is not a section. Did you mean 'ppo'?"),
        (
            "[x]",
            "x is not a section. Choose one of task, task_options, rounds, ",
        ),
        ('"a\\nb" = 1', '"a\\u000Ab" is not a setting.'),
        ("[ppo.gamma]\nx = 1", "ppo.gamma is {'x': 1}; it must be"),
        ("ppo = 3", "ppo is 3; it must be a section [ppo]"),
        (
            "[[ppo]]\ngamma = 1",
            "ppo is [{'gamma': 1}]; it must be a section [ppo]",
        ),
        ('rounds = "3"', "rounds is '3'; it must be"),
        ("rounds = true", "rounds is True; it must be"),
        ("rounds = 1.5", "rounds is 1.5; it must be"),
        ("rounds = 2.0", "rounds is 2.0; it must be"),
        ("rounds = -1", "rounds is -1; it must be"),
        ("rounds = 1979-05-27", "rounds is datetime.date(1979, 5, 27); it must be"),
        ('rounds = "none"', "rounds is 'none'; it must be"),
        ("task = 3", "task is 3; it must be"),
        ('task = ""', "task is ''"),
        (
            '[ppo]\nlearning_rate = "fast"',
            "ppo.learning_rate is 'fast'; it must be",
        ),
        ("[ppo]\nlearning_rate = true", "ppo.learning_rate is True; it must be"),
        ("[ppo]\nlearning_rate = nan", "ppo.learning_rate is nan; it must be"),
        ("[ppo]\nlearning_rate = -inf", "ppo.learning_rate is -inf; it must be"),
        (
            "[ppo]\nlearning_rate = -1",
            "ppo.learning_rate is -1; it must be",
        ),
        (f"[ppo]\nlearning_rate = 1{'0' * 400}", "ppo.learning_rate is 1000"),
        (
            "[ppo]\ntarget_kl = false",
            "ppo.target_kl is False; it must be",
        ),
        ("[ppo]\nnormalize_returns = 1", "ppo.normalize_returns is 1; it must be"),
        (
            "[evaluation]\npatience = 0",
            "evaluation.patience is 0; it must be",
        ),
        (
            '[evaluation]\npatience = "nope"',
            "evaluation.patience is 'nope'; it must be",
        ),
        (
            '[schedule]\nent_coef = "linaer"',
            'schedule.ent_coef is \'linaer\'; it must be one of "constant", "linear", "cosine". '
            "Did you mean 'linear'?",
        ),
        ('[telemetry]\nsinks = ["wandb", "x"]', "telemetry.sinks[1] is 'x'; it must be one of"),
        (
            '[telemetry]\nsinks = "wandb"',
            "telemetry.sinks is 'wandb'; it must be a list, each one of",
        ),
        ("[task_options]\nx = nan", "task_options.x is nan; it must be"),
        ("[task_options]\nx = [1]", "task_options.x is [1]; it must be"),
        ("[task_options]\nx.y = 1", "task_options.x is {'y': 1}; it must be"),
        (
            "[ppo]\ngamma = 0.5",
            "ppo.gamma is 0.5 and rewards.gamma is 1.0;",
        ),
        (
            "rounds = 1\nenvs = 2\nrounds = 3",
            "it is not valid TOML: line 3, 'rounds = 3': a setting is given twice.",
        ),
        ("[ppo]\n[ppo]", "it is not valid TOML: line 2, '[ppo]': Cannot declare ('ppo',) twice."),
        ("rounds = \n", "it is not valid TOML: line 1, 'rounds = ': Invalid value."),
        ("rounds", "it is not valid TOML: line 1, 'rounds': Expected '=' after a key"),
        (f"rounds = {'9' * 5000}", "it is not valid TOML: Exceeds the limit"),
        (f"rounds = {'[' * 5000}", "it is not valid TOML: it is nested too deeply."),
    ],
)
def test_invalid_files_are_rejected_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_toml(text, source="it")
    shown = str(raised.value)
    assert shown.startswith("it")
    assert message in shown
    assert "\n" not in shown


@given(st.text())
def test_any_text_either_parses_or_raises_a_config_error(text: str) -> None:
    message = "it"
    try:
        read_toml(text, source="it")
    except ConfigError as error:
        message = str(error)
    assert len(message.splitlines()) == 1


def test_every_setting_has_a_comment() -> None:
    lines = write_toml(RunConfig()).splitlines()
    assert lines[lines.index("threads = 1") - 1] == "# PyTorch threads."
    assert lines[lines.index('patience = "none"') - 1].startswith("# Evaluations without")
    assert max(map(len, lines)) <= 100
    keys = [line for line in lines if line and not line.startswith(("#", "["))]
    values = tomllib.loads("\n".join(lines))
    sections = [value for value in values.values() if isinstance(value, dict)]
    plain = [one for some in (values, *sections) for one in some.values()]
    assert len(keys) == sum(not isinstance(one, dict) for one in plain)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    good = tmp_path / "run.toml"
    good.write_bytes(b"\xef\xbb\xbfrounds = 3\r\n[ppo]\r\n")
    assert read_toml_file(good).rounds == 3
    (tmp_path / "bad.toml").write_bytes(b"rounds = 3\ntask = '\xff'\n")
    (tmp_path / "wrong.toml").write_text("rounds = 0")
    for name, message in {
        "nope.toml": r"nope\.toml",
        ".": "is a folder",
        "bad.toml": r"bad.toml is not UTF-8 text \(line 2\)",
        "wrong.toml": "wrong.toml: rounds is 0",
        "a\0b": "embedded null byte",
        "run.toml/x": "Not a directory",
    }.items():
        with pytest.raises(ConfigError, match=message):
            read_toml_file(tmp_path / name)


def test_overrides_are_applied_together() -> None:
    start = read_toml("[task_options]\nhost = 'mlp'", source="it")
    config = override(
        start,
        {
            "rounds": 3,
            "ppo.gamma": 0.9,
            "rewards.gamma": 0.9,
            "ppo.target_kl": None,
            "evaluation.patience": "none",
            "task_options.n_epochs": 4,
            "telemetry.sinks": ("wandb",),
        },
    )
    assert (config.rounds, config.ppo.gamma, config.ppo.target_kl) == (3, 0.9, None)
    assert config.task_options == {"host": "mlp", "n_epochs": 4}
    assert config.telemetry.sinks == ("wandb",)
    assert start.task_options == {"host": "mlp"}
    assert override(start, {"task_options": {"x": 1}}).task_options == {"x": 1}
    assert override(start, {"ppo": PPOConfig(gamma=1.0, n_epochs=9)}).ppo.n_epochs == 9
    assert override(start, {"ppo": {"n_epochs": 9}}).ppo.n_epochs == 9
    assert override(start, {}) == start


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ppo.learning_rte": 1}, r"^ppo.learning_rte is not a setting\. Did you mean"),
        ({"rounds": True}, "^rounds is True"),
        ({"rounds": None}, "^rounds is None"),
        ({"ppo.n_epochs": 1.5}, r"^ppo.n_epochs is 1\.5"),
        ({"ppo.n_epochs.x": 1}, "^ppo.*n_epochs.x.* is not a setting"),
        ({"ppo.gamma": float("nan")}, "^ppo.gamma is nan"),
        ({"ppo": PPOConfig(gamma=1.0), "ppo.gamma": 1.0}, "ppo and ppo.gamma are both changed"),
        ({"rounds.x": 1}, "^rounds is {'x': 1}"),
        ({"task_options": {1: 2}}, "a name in task_options is 1"),
        ({"ppo": {1: 2}}, "a name in ppo is 1"),
        ({3: 1}, "a setting's path is 3"),
    ],
)
def test_invalid_overrides_are_rejected(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        override(RunConfig(), changes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x": float("inf")}, "task_options.x is inf"),
        ({"x": [1]}, r"task_options.x is \[1\]"),
        ({3: 1}, "name in task_options is 3"),
        ([1], r"task_options is \[1\]"),
    ],
)
def test_task_options_that_no_file_can_hold_are_rejected(options: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig(task_options=options)  # type: ignore[arg-type]


def test_a_lone_surrogate_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"\\ud800"):
        write_toml(RunConfig(task="\ud800"))


def test_the_nearer_of_batch_size_and_n_minibatches_counts() -> None:
    preset = load_sourced_preset("quick")
    assert preset.config.ppo.n_minibatches == 8
    smaller = preset.change({"ppo.batch_size": 32}, "command line")
    assert (smaller.config.ppo.batch_size, smaller.config.ppo.n_minibatches) == (32, None)
    assert smaller.source_of("ppo.n_minibatches") == "command line"
    assert read_toml(write_toml(smaller), source="it") == smaller.config
    assert read_toml("[ppo]\nbatch_size = 64\n", source="it").ppo.n_minibatches is None
    again = smaller.change({"ppo.n_minibatches": 2}, "arguments").config.ppo
    assert (again.batch_size, again.n_minibatches) == (PPOConfig.batch_size, 2)
    kept = smaller.change({"ppo.n_minibatches": None}, "arguments").config.ppo
    assert (kept.batch_size, kept.n_minibatches) == (32, None)


@pytest.mark.parametrize("size", [32, 64])
def test_both_on_one_level_agree(size: int) -> None:
    config = replace(RunConfig(), envs=4, n_steps=128)
    both = {"ppo.batch_size": size, "ppo.n_minibatches": 512 // size}
    with pytest.raises(ConfigError, match=r"^ppo.n_minibatches is .* at most 4"):
        override(config, both)
    config = replace(config, envs=16, n_steps=32)
    assert override(config, both).ppo.batch_size == size
    with pytest.raises(ConfigError, match=rf"^ppo.batch_size is {size} and .* 512 steps .*only"):
        override(config, both | {"ppo.n_minibatches": 3})
