"""Random input never ends in a traceback, never hangs and never changes other files.

Every fuzzer draws the same cases each time, and prints how many it tried.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.campaign import N_CASES
from tests.cli.conftest import TINY
from tests.dashboard.made_runs import make_run
from tests.dashboard.served import Served, serve
from tests.telemetry.hostile import BY_SCHEMA, nest_pages
from torch import nn

import esper
from esper.cli.main import COMMANDS, main
from esper.config.growth import Budget, PopulationConfig, RewardConfig
from esper.config.learning import NetworkConfig, PolicyConfig, PPOConfig
from esper.config.run import EvaluationConfig, RunConfig
from esper.config.schema import settings_of
from esper.config.toml import override, read_toml, write_toml
from esper.errors import EsperError
from esper.lifecycle.stages import Stage
from esper.simic.agent import PPOAgent, TamiyoRolloutBuffer
from esper.simic.agent.advantages import estimate_advantages
from esper.simic.policy.action_spec import ActionSpec
from esper.simic.policy.recurrent import RecurrentPolicy
from esper.tamiyo.policy.action_masks import SlotConfig, SlotMaskState, compute_batch_masks
from esper.tasks import make_task
from esper.training.run import list_runs, load_run

SECONDS = 10

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def fuzz(name: str) -> settings:
    """Return the settings of a fuzzer."""
    return settings(
        max_examples=N_CASES[name],
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@contextmanager
def bounded() -> Iterator[None]:
    """Fail if the block takes more than ten seconds of the processor, or a minute in all."""

    def stop(*_: object) -> None:
        pytest.fail(f"it took more than {SECONDS} s")

    limits = {signal.SIGPROF: signal.ITIMER_PROF, signal.SIGALRM: signal.ITIMER_REAL}
    before = {number: signal.signal(number, stop) for number in limits}
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, 6 * SECONDS)
    try:
        yield
    finally:
        for number, timer in limits.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


@pytest.fixture
def counts() -> Iterator[Counter[str]]:
    """Count the cases of a fuzzer; print them at the end, and check that there were enough."""
    found: Counter[str] = Counter()
    yield found
    ((name, n_cases),) = found.items()
    print(f"\n{n_cases} cases of {name}")
    assert n_cases >= 0.8 * N_CASES[name]


# Values of every kind

SPEC = ActionSpec(names=("op",), sizes=(3,), op_head="op", relevance=((True,),) * 3)
X, Y = torch.randn(8, 4), torch.arange(8) % 3
FLAGS, ZEROS = torch.zeros(2, 3, dtype=torch.bool), torch.zeros(2, 3)


def net() -> nn.Module:
    block = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    return nn.Sequential(nn.Linear(4, 6), block, nn.Linear(6, 3))


FIXED: list[Any] = [
    None,
    True,
    0,
    -1,
    2,
    999,
    2**45,
    2**63,
    10**30,
    -(10**30),
    0.5,
    -0.0,
    float("nan"),
    float("inf"),
    1e308,
    "",
    "x",
    "shipped",
    "no-growth",
    "cpu",
    "\0",
    "a" * 5000,
    "../" * 2000,
    "\ud800",
    b"x",
    [],
    [None],
    [[]],
    (),
    ("a", "b"),
    {},
    {"a": 1},
    {1: 2},
    set(),
    object(),
    int,
    print,
    Stage.TRAINING,
    np.zeros((2, 3), np.float32),
    np.float64("nan"),
    np.int64(3),
    torch.zeros(2, 3),
    torch.zeros(0, 4),
    torch.zeros(2, 3, dtype=torch.int64),
    torch.full((2, 3), float("nan")),
    torch.zeros(2, 3, dtype=torch.bool),
    torch.zeros(2, 3, device="meta"),
    torch.zeros(2, 3).to_sparse(),
    torch.tensor(1),
    nn.Linear(4, 3),
    nn.Linear(4, 3, device="meta"),
    Budget(n_epochs=1),
    SPEC,
    SlotConfig(("a",)),
    SlotMaskState(Stage.TRAINING, 1, True),
]
VALUES = st.sampled_from(range(len(FIXED))).map(FIXED.__getitem__)

Call = tuple[Callable[..., Any], dict[str, Any]]


def calls() -> dict[str, Call]:
    """Return public functions, each with arguments that it accepts."""
    policy = RecurrentPolicy(SPEC, 3, NetworkConfig(feature_size=2, lstm_size=1))
    grow = {"train_data": (X, Y), "val_data": (X, Y), "epochs": 1, "controller": "no-growth"}
    advantages = {"rewards": ZEROS, "values": ZEROS, "next_values": ZEROS, "terminated": FLAGS}
    advantages |= {"truncated": FLAGS, "gamma": 0.9, "gae_lambda": 0.9}
    return {
        "estimate_advantages": (estimate_advantages, advantages),
        "PPOAgent": (PPOAgent, {"spec": SPEC, "policy": policy, "config": None, "seed": 0}),
        "TamiyoRolloutBuffer": (
            TamiyoRolloutBuffer,
            {"n_envs": 1, "n_steps": 1, "spec": SPEC, "observation_size": 2, "state_size": 1},
        ),
        "SlotMaskState": (
            SlotMaskState,
            {"stage": Stage.TRAINING, "age_epochs": 1, "alpha_at_rest": True},
        ),
        "SlotConfig": (SlotConfig, {"slot_ids": ("a",), "seed_limit": 1, "allow_finish": True}),
        "compute_batch_masks": (
            compute_batch_masks,
            {"batch_slot_states": [[None]], "slot_config": SlotConfig(("a",)), "device": "cpu"},
        ),
        "add_slots": (
            lambda **given: esper.add_slots(given.pop("model", None) or net(), **given),
            {"at": ["1"], "sample_input": X, "growth_config": None, "seed_limit": 1, "seed": 0},
        ),
        "find_slots": (esper.find_slots, {"model": net(), "sample_input": X}),
        "grow": (esper.grow, {"model": net(), **grow, "at": ["1"], "seed": 0, "metric": None}),
        "make_task": (make_task, {"name": "spirals", "batches_per_epoch": 1}),
        "make_env": (esper.make_env, {"task": "spirals", "num_envs": 1}),
        "load_run": (load_run, {"run": "none"}),
        "list_runs": (list_runs, {"parent": None}),
    }


CALLS = calls()


def accept_or_reject(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str | None:
    """Call a function; return the message of its error, or None."""
    try:
        function(*args, **kwargs)
    except EsperError as error:
        return str(error)
    return None


def check_override(changes: dict[str, Any]) -> None:
    """Change settings; those that are accepted must be the same after reading them from a file."""
    config = override(RunConfig(), changes)
    assert read_toml(write_toml(config), source="it") == config


SECTIONS = (RunConfig, PPOConfig, PolicyConfig, NetworkConfig, Budget, RewardConfig)
SECTIONS += (PopulationConfig, EvaluationConfig)


def every_case() -> Iterator[Callable[[], str | None]]:
    """Yield a call for each argument and setting with each value, the others being good."""
    for name, (function, good) in CALLS.items():
        for argument, value in product(good, FIXED):
            is_work = argument == "epochs" and isinstance(value, int) and 2 < value < 2**63
            if not (name == "grow" and is_work):
                yield partial(accept_or_reject, function, **{**good, argument: value})
    for section in SECTIONS:
        for field, value in product(section.__dataclass_fields__, FIXED):
            yield partial(accept_or_reject, section, **{field: value})
    for setting, value in product(settings_of(), FIXED):
        yield partial(accept_or_reject, check_override, {setting.path: value})


def test_every_argument_and_setting_accepts_or_rejects_every_value(counts: Counter[str]) -> None:
    for case in every_case():
        counts["values"] += 1
        with bounded():
            message = case()
        assert message is None or message, case


@st.composite
def wrong_calls(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Draw a function and arguments, one or two of which are anything."""
    name = draw(st.sampled_from(sorted(CALLS)))
    arguments = dict(CALLS[name][1])
    for key in draw(st.sets(st.sampled_from(sorted(arguments)), min_size=1, max_size=2)):
        arguments[key] = draw(VALUES)
    return name, arguments


@fuzz("arguments")
@given(wrong_calls())
def test_functions_reject_any_argument_by_name(
    counts: Counter[str], case: tuple[str, dict[str, Any]]
) -> None:
    name, arguments = case
    if name == "grow" and isinstance(arguments["epochs"], int) and arguments["epochs"] > 2:
        arguments["epochs"] = 10**30  # anything less is work that may take this long
    counts["arguments"] += 1
    with bounded():
        accept_or_reject(CALLS[name][0], **arguments)


@fuzz("settings")
@given(st.sampled_from(SECTIONS), st.data())
def test_settings_reject_any_value_by_name(
    counts: Counter[str], section: type[Any], data: st.DataObject
) -> None:
    fields = sorted(section.__dataclass_fields__)
    given_values = data.draw(st.dictionaries(st.sampled_from(fields), VALUES, max_size=3))
    paths = st.sampled_from([setting.path for setting in settings_of()] + ["x", "ppo", "a.b.c"])
    changes = data.draw(st.dictionaries(paths | st.text(max_size=8), VALUES, max_size=3))
    counts["settings"] += 1
    with bounded():
        accept_or_reject(section, **given_values)
        accept_or_reject(check_override, changes)


TEXT = write_toml(RunConfig())
_PIECES = [
    "[",
    "]",
    "{",
    "}",
    "=",
    ".",
    '"',
    "'",
    '"""',
    "\n",
    "\\u0000",
    "\0",
    "a",
    "1e999",
    "nan",
]
_PIECES += ["0x7fffffff", "9" * 400, "[[ppo]]", "[a.b]", "true", "1979-05-27", "#", ",", "\r", "é"]
_PIECES += ["envs = 0x7fffffff\n", "a." * 100, "[" * 2000, "{a=" * 2000, "seed = -1\n"]
PIECES = st.sampled_from(_PIECES)


@st.composite
def broken_toml(draw: st.DrawFn) -> str:
    """Draw a configuration file with a few places replaced, or pieces of TOML."""
    if draw(st.booleans()):
        return "".join(draw(st.lists(PIECES | st.text(max_size=20), max_size=30)))
    text = TEXT
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = start + draw(st.integers(0, 30))
        text = text[:start] + draw(PIECES | st.text(max_size=10)) + text[end:]
    return text


@fuzz("toml")
@given(broken_toml())
def test_any_text_is_settings_or_an_error(counts: Counter[str], text: str) -> None:
    counts["toml"] += 1
    with bounded():
        message = accept_or_reject(read_toml, text, source="it")
    assert message is None or message.startswith("it")


# The command line

OPTIONS = ["--help", "--json", "--quiet", "--out", "--task", "--run-dir", "--config", "--preset"]
OPTIONS += ["--envs", "--rounds", "--seed", "--ppo.n-epochs", "--controller", "--csv", "--plot"]
OPTIONS += ["--task-options", "--evaluation.n-eval-episodes", "--policy.lstm-size", "--force", "-x"]
WORDS = ["a run", "", "-1", "0", "nan", "10000000000000", "0x7f", "x=1", "x=[[", "a" * 5000, "é"]
WORDS += ["/dev/null", "/proc/self/mem", "/", ".", "..", "spirals", "quick", "os:system", "\ud800"]
WORDS += [
    "missing",
    "a:b",
    "[",
    "{",
    "*",
    "~",
    "$HOME",
    "%s",
    "{}",
    "\x1b[31m",
    "-",
    "--",
    "=",
    ":",
]
ARGUMENTS = st.lists(st.sampled_from(OPTIONS) | st.sampled_from(WORDS), max_size=4)
# Served until it is stopped; the others would do minutes of work on good arguments.
LONG_WORK = {"dashboard", "evaluate", "compare", "grow"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a finished run."""
    place = tmp_path_factory.mktemp("runs")
    with redirect_stdout(io.StringIO()):
        assert main(["train", *TINY, "--quiet", "--run-dir", str(place / "a run")]) == 0
    return place


def run_command(words: list[str]) -> tuple[int, str]:
    """Run a command; return its exit code and what it wrote on stderr."""
    told, shown = io.StringIO(), io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")
    with redirect_stderr(told), redirect_stdout(shown):
        code = main(words)
    return code, told.getvalue()


def snapshot(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in (".sqlite-shm", ".sqlite-wal")
    }


@fuzz("commands")
@given(st.sampled_from(sorted(COMMANDS)), ARGUMENTS)
def test_any_words_are_a_command_or_an_error_in_one_line(
    counts: Counter[str], runs: Path, tmp_path_factory: Any, command: str, words: list[str]
) -> None:
    if command in LONG_WORK or command == "train":
        words = [*words, "--no-such-option"]
    before = snapshot(runs / "a run")
    counts["commands"] += 1
    with pytest.MonkeyPatch.context() as patch, bounded():
        patch.setenv("ESPER_RUNS", str(runs))
        patch.chdir(tmp_path_factory.getbasetemp())
        code, told = run_command([command, *words])
    assert code in (0, 1, 2), told
    errors = [line for line in told.splitlines() if line.startswith("esper: error: ")]
    assert len(errors) == (code != 0), told
    assert "Traceback" not in told
    after = snapshot(runs / "a run")
    assert {name: after.get(name) for name in before} == before


# Files

NAMES = ["config.toml", "summary.json", "telemetry.sqlite", "checkpoints", "manifest.json"]
NAMES += ["state.json", "state.safetensors", "lock"]
CONTENTS = [b"", b"\0" * 100, b"[" * 100_000, b"{}", b"[]", b"null", b"1", b"\xff\xfe", b'{"a":1}']


def make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**42)


STRANGE: dict[str, Callable[[Path], object]] = {
    "gone": lambda path: None,
    "folder": Path.mkdir,
    "link": lambda path: path.symlink_to("/dev/null"),
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path.name),
    "pipe": os.mkfifo,
    "huge": make_sparse,
}


@st.composite
def damages(draw: st.DrawFn) -> Callable[[Path], None]:
    """Draw a way to damage a file."""
    kind = draw(st.sampled_from(["content", "cut", "flip", *STRANGE]))
    content, share = draw(st.sampled_from(CONTENTS)), draw(st.floats(0, 1))

    def damage(path: Path) -> None:
        data = path.read_bytes() if path.is_file() else b"x"
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        place = int(share * max(0, len(data) - 1))
        if kind == "content":
            path.write_bytes(content)
        elif kind == "cut":
            path.write_bytes(data[:place])
        elif kind == "flip":
            path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        else:
            STRANGE[kind](path)

    return damage


HOSTILE = [*BY_SCHEMA, nest_pages]
ATTACKS = st.tuples(st.sampled_from(NAMES), damages())
ATTACKS |= st.tuples(st.just("telemetry.sqlite"), st.sampled_from(HOSTILE))


@fuzz("files")
@given(ATTACKS, st.sampled_from(["runs", "show", "report", "resume"]))
def test_any_damage_to_a_run_is_named_in_one_line(
    counts: Counter[str],
    runs: Path,
    tmp_path_factory: Any,
    attack: tuple[str, Callable[[Path], None]],
    command: str,
) -> None:
    (name, damage), place = attack, tmp_path_factory.mktemp("damaged")
    shutil.copytree(runs / "a run", place / "run")
    shutil.copytree(runs / "a run", place / "other")
    found = sorted((place / "run").rglob(name)) or [place / "run" / name]
    damage(found[-1])
    other = snapshot(place / "other")
    counts["files"] += 1
    with bounded():
        words = [str(place)] if command == "runs" else [str(place / "run")]
        code, told = run_command([command, *words])
    assert code in (0, 1, 2), told
    assert "Traceback" not in told
    if command == "runs":
        assert code == 0, told
    assert snapshot(place / "other") == other
    shutil.rmtree(place)


# Requests to the dashboard


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("served")
    make_run(place / "a run")
    with serve(place) as found:
        yield found
        assert found.ask("/api/runs").status == 200  # after all requests


PARTS = ["/", "api", "runs", "a%20run", "a run", "..", "%2e%2e", "%00", "%ff", "0", "-1", "9" * 30]
PARTS += ["?", "&", "=", "env", "episode", "nan", "x" * 3000, "é", "#", "%", "static", "index.html"]
LINES = [
    "Host: {host}",
    "Host: evil",
    "Authorization: Bearer {token}",
    "Origin: http://evil",
    "Content-Length: 9",
]
LINES += ["Transfer-Encoding: chunked", "Connection: close", "X: \x00", "Range: bytes=0-", "é: é"]
METHODS = ["GET", "HEAD", "POST", "OPTIONS", "DELETE", "", "G\0T", "CONNECT"]


@fuzz("requests")
@given(
    st.sampled_from(METHODS),
    st.lists(st.sampled_from(PARTS), max_size=6).map("".join),
    st.lists(st.sampled_from(LINES), max_size=5),
    st.binary(max_size=50),
)
def test_any_request_is_answered_or_dropped(
    counts: Counter[str], served: Served, method: str, path: str, lines: list[str], body: bytes
) -> None:
    known = {"host": served.host, "token": served.token}
    head = [f"{method} /{path} HTTP/1.1", *(line.format(**known) for line in lines)]
    counts["requests"] += 1
    start = time.monotonic()
    with socket.create_connection(("127.0.0.1", served.port), timeout=SECONDS) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode("utf-8") + body)
        connection.shutdown(socket.SHUT_WR)
        try:
            answer = connection.recv(200)
        except ConnectionResetError:
            answer = b""
    assert time.monotonic() - start < SECONDS
    assert not answer.startswith(b"HTTP/1.1 5"), (head, answer)
