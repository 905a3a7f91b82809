"""``evaluate``, ``compare`` and ``headroom`` print and save results, and resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from esper.cli.main import main
from esper.evidence import evaluation as evaluating
from esper.tamiyo import load_shipped
from esper.training.run import load_run
from tests.cli.test_run_commands import refused

SMALL = ["--hosts", "3", "--tuning-runs", "4", "--arms", "wait,static"]


def test_an_evaluation_prints_its_verdict_and_saves_its_results(
    copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(copied_run), *SMALL, "--price", "0.1", "0.4"]) == 0
    said = capsys.readouterr()
    assert "At price 0.1:" in said.out
    assert "At price 0.4:" in said.out
    assert "3 hosts of spirals" in said.out
    assert "Nothing was shown" in said.out
    assert "tuning static" in said.err
    folder = copied_run / "evaluation"
    assert {path.name for path in folder.iterdir()} == {
        "cache",
        "evaluation.json",
        "evaluation.md",
        "pareto.png",
    }
    stored = json.loads((folder / "evaluation.json").read_text("utf-8"))
    assert [entry["price"] for entry in stored["entries"]] == [0.1, 0.4]
    assert stored["entries"][0]["command"].startswith("esper evaluate ")
    assert [arm["name"] for arm in stored["entries"][0]["arms"]] == ["learned", "wait", "static"]


def test_an_interrupted_evaluation_can_be_resumed(
    copied_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: object) -> None:
        raise KeyboardInterrupt

    words = ["evaluate", str(copied_run), *SMALL, "--quiet", "--out", "found here"]
    with monkeypatch.context() as patched:
        patched.setattr(evaluating.Evaluation, "_run_wait", interrupt)
        assert main(words) == 130
    line = capsys.readouterr().err.splitlines()[-1]
    assert "resume with: " in line
    assert "--out 'found here'" in line
    assert len(list(Path("found here/cache").iterdir())) == 1
    assert main(words) == 0
    (told,) = capsys.readouterr().out.splitlines()
    assert told.startswith("found here: ")


def test_results_are_printed_as_json_and_files_can_be_compared(
    copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(copied_run), *SMALL, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["prices"][0]["price"] == load_run(copied_run).config.budget.flop_price
    assert facts["prices"][0]["findings"][0]["against"] == "wait"
    (file,) = [path for path in facts["files"] if path.endswith(".json")]
    other = Path("other.json")
    other.write_text(Path(file).read_text("utf-8"))
    assert main(["compare", file, str(other), "--json"]) == 0
    finding = json.loads(capsys.readouterr().out)["findings"][0]
    assert finding["against"] == "other.json"
    assert finding["score"]["mean"] == 0.0


def test_built_in_controllers_are_compared_on_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "wait", "heuristic", "--task", "spirals", "--hosts", "3", "--quiet"]
    options = ["--task-options", "n_epochs=3", "batches_per_epoch=1"]
    assert main([*words, *options]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("Wait: better than heuristic at price 0.2: ")


@pytest.mark.usefixtures("fresh_shipped")
def test_the_shipped_controller_is_shown_with_its_name_and_version(
    capsys: pytest.CaptureFixture[str],
) -> None:
    label = load_shipped().label
    hosts = ["--task", "spirals", "--hosts", "2"]
    options = ["--task-options", "n_epochs=2", "batches_per_epoch=1"]
    assert main(["compare", "shipped", "wait", *hosts, "--quiet", *options]) == 0
    assert capsys.readouterr().out.startswith(f"The controller {label}: ")
    few = ["--tuning-runs", "2", "--arms", "learned,wait", "--out", "found"]
    assert main(["evaluate", "shipped", *hosts, *few, *options, "--verbose"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"evaluating {label} on 2 hosts of spirals\n")
    assert label in printed.err
    assert f"({label})" in " ".join(printed.out.split())


def test_headroom_needs_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["headroom", "--task", "spirals", "--hosts", "3", "--tuning-runs", "6"]
    options = ["--cache", "kept", "--task-options", "n_epochs=3", "batches_per_epoch=1"]
    assert main([*words, *options]) == 0
    assert "best single setting" in capsys.readouterr().out
    assert main([*words, *options, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["n_hosts"] == 3
    assert facts["optimistic"]["mean"] >= facts["headroom"]["mean"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["evaluate"], "RUN is missing"),
        (["evaluate", "nowhere"], "'nowhere'"),
        (["evaluate", "heuristic"], "heuristic"),
        (["evaluate", "RUN", "--hosts", "1"], "--hosts is 1; it must be at least 2"),
        (["evaluate", "RUN", "--tuning-runs", "0"], "--tuning-runs is 0"),
        (["evaluate", "RUN", "--arms", "wiat"], "Did you mean 'wait'"),
        (["evaluate", "RUN", "--price", "-1"], "price is -1.0"),
        (["evaluate", "RUN", "--task", "digts"], "Did you mean 'digits'"),
        (["evaluate", "RUN", "--task-options", "host"], "must be NAME=VALUE"),
        (["evaluate", "RUN", "--workers", "-1"], "workers is -1"),
        (["evaluate", "RUN", "--workers", "2.5"], "--workers"),
        (["evaluate", "RUN", "--hosts", "9", "--arms", "wait", "--workers", "2"], "workers is 2"),
        (["compare", "wait", "RUN", "--workers", "9"], "workers is 9"),
        (["headroom", "--workers", "0", "--ray-address", "auto"], "ray_address"),
        (["compare", "RUN"], "at least two controllers"),
        (["compare", "wait", "nowhere"], "'nowhere'"),
        (["compare", "wait", "random", "--task", "digts"], "Did you mean 'digits'"),
        (["compare", "wait", "RUN", "--hosts", "0"], "--hosts is 0"),
        (["compare", "wait", "wait", "--task", "spirals", "--hosts", "2"], "wait"),
        (["headroom", "--task", "nothing"], "'nothing'"),
        (["headroom", "--hosts", "1"], "--hosts is 1"),
    ],
)
def test_usage_errors_are_reported_in_one_line(
    words: list[str], told: str, finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(finished_run) if word == "RUN" else word for word in words]
    quiet = ["--quiet"] if len(words) > 1 else []
    assert told in refused([*given, *quiet], capsys)


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "nowhere"],
        ["evaluate", "RUN", "--task", "nothing"],
        ["evaluate", "RUN", "--arms", "nothing"],
        ["evaluate", "RUN", "--task-options", "nothing=1"],
        ["compare", "RUN", "nowhere"],
        ["compare", "RUN", "wait", "--task-options", "nothing=1"],
        ["headroom", "--task", "nothing"],
    ],
)
def test_wrong_arguments_are_reported_before_any_progress(
    words: list[str], finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(finished_run) if word == "RUN" else word for word in words]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert line.startswith("esper: error: ")


def test_controllers_that_no_run_trained_are_compared_on_the_digits_family(
    capsys: pytest.CaptureFixture[str],
) -> None:
    few = ["--hosts", "2", "--task-options", "n_epochs=2"]
    assert main(["compare", "shipped", "wait", *few]) == 0
    label = load_shipped().label
    announced, *_ = (told := capsys.readouterr().out).splitlines()
    assert announced == f"comparing {label}, wait on 2 hosts of digits-family"
    assert "2 hosts of digits-family" in told.partition(announced)[2]
    assert max(map(len, told.splitlines())) <= 80
