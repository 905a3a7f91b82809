"""``evaluate`` and ``compare`` print and save results, and resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from esper.cli.main import main
from esper.evidence import evaluation as evaluating
from esper.tamiyo import load_shipped
from esper.training.run import load_run
from tests.cli.test_run_commands import refused

SMALL = ["--hosts", "3", "--tuning-runs", "4", "--arms", "no-growth,fixed-size"]


def test_an_evaluation_prints_its_verdict_and_saves_its_results(
    copied_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.progress.LOG_INTERVAL", 0.001)
    assert main(["evaluate", str(copied_run), *SMALL, "--price", "0.1", "0.4"]) == 0
    said = capsys.readouterr()
    assert "At price 0.1:" in said.out
    assert "At price 0.4:" in said.out
    assert "3 hosts of spirals" in said.out
    assert "The learned controller" in said.out
    assert "too few to tell" in said.out
    assert "tuning fixed-size" in said.err
    folder = copied_run / "evaluation"
    assert {path.name for path in folder.iterdir()} == {
        "cache",
        "evaluation.json",
        "evaluation.json.sha256",
        "evaluation.md",
        "pareto.png",
    }
    stored = json.loads((folder / "evaluation.json").read_text("utf-8"))
    assert [entry["price"] for entry in stored["entries"]] == [0.1, 0.4]
    assert stored["entries"][0]["command"].startswith("esper evaluate ")
    assert [arm["name"] for arm in stored["entries"][0]["arms"]] == [
        "learned",
        "no-growth",
        "fixed-size",
    ]


def test_replacing_other_results_is_told(
    copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", str(copied_run), "--tuning-runs", "4", "--arms", "no-growth", "--quiet"]
    for n_hosts, earlier in ((3, None), (3, None), (2, 3)):
        assert main([*words, "--hosts", str(n_hosts)]) == 0
        lines = [line for line in capsys.readouterr().err.splitlines() if "replaced" in line]
        assert len(lines) == (earlier is not None)
        assert all(line.endswith(f"--hosts {earlier}") for line in lines)


def test_an_interrupted_evaluation_can_be_resumed(
    copied_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    words = ["evaluate", str(copied_run), *SMALL, "--quiet", "--out", "found here"]
    with monkeypatch.context() as patched:
        patched.setattr(evaluating, "make_named", interrupt)
        assert main(words) == 130
    line = capsys.readouterr().err.splitlines()[-1]
    assert "resume with: " in line
    assert "--out 'found here'" in line
    assert len(list(Path("found here/cache").iterdir())) == 1
    assert main(words) == 0
    (told,) = capsys.readouterr().out.splitlines()
    assert told.startswith("found here: ")
    assert main([*words, "--price", "0.1", "0.4"]) == 0
    low, high = capsys.readouterr().out.splitlines()
    assert low.startswith("found here at price 0.1: ")
    assert high.startswith("found here at price 0.4: ")


def test_results_are_printed_as_json(copied_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(copied_run), *SMALL, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["prices"][0]["price"] == load_run(copied_run).config.budget.flop_price
    assert facts["prices"][0]["findings"][0]["against"] == "no-growth"
    assert [path for path in facts["files"] if path.endswith(".json")]


def test_built_in_controllers_are_compared_on_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "no-growth", "heuristic", "--task", "spirals", "--hosts", "3", "--quiet"]
    options = ["--task-options", "n_epochs=3", "batches_per_epoch=1"]
    assert main([*words, *options]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("No growth against the heuristic: no clear difference (return ")
    assert last.startswith("vs the heuristic at price 0.2: return ")


@pytest.mark.usefixtures("fresh_shipped")
def test_the_shipped_controller_is_shown_with_its_name_and_version(
    capsys: pytest.CaptureFixture[str],
) -> None:
    label = load_shipped().label
    hosts = ["--task", "spirals", "--hosts", "2"]
    options = ["--task-options", "n_epochs=2", "batches_per_epoch=1"]
    assert main(["compare", "shipped", "no-growth", *hosts, "--quiet", *options]) == 0
    assert f"The controller {label} against " in " ".join(capsys.readouterr().out.split())
    few = ["--tuning-runs", "2", "--arms", "learned,no-growth", "--out", "found"]
    assert main(["evaluate", "shipped", *hosts, *few, *options, "--verbose"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"evaluating {label} on 2 hosts of spirals\n")
    assert f"({label})" in " ".join(printed.out.split())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["evaluate"], "RUN is missing"),
        (["evaluate", "nowhere"], "'nowhere'"),
        (["evaluate", "heuristic"], "heuristic"),
        (
            ["evaluate", "RUN", "--hosts", "1"],
            "--hosts is 1",
        ),
        (["evaluate", "RUN", "--tuning-runs", "0"], "--tuning-runs is 0"),
        (["evaluate", "RUN", "--arms", "no-grwoth"], "Did you mean 'no-growth'"),
        (["evaluate", "RUN", "--price", "-1"], "price is -1.0"),
        (["evaluate", "RUN", "--task", "digts"], "Did you mean 'digits'"),
        (["evaluate", "RUN", "--task-options", "host"], "must be NAME=VALUE"),
        (["evaluate", "RUN", "--workers", "-1"], "workers is -1"),
        (["evaluate", "RUN", "--workers", "2.5"], "--workers"),
        (
            ["evaluate", "RUN", "--hosts", "9", "--arms", "no-growth", "--workers", "2"],
            "workers is 2",
        ),
        (["compare", "no-growth", "RUN", "--workers", "9"], "workers is 9"),
        (["compare", "RUN"], "at least two controllers"),
        (["compare", "no-growth", "nowhere"], "'nowhere'"),
        (["compare", "no-growth", "random", "--task", "digts"], "Did you mean 'digits'"),
        (["compare", "no-growth", "RUN", "--hosts", "0"], "--hosts is 0"),
        (["compare", "no-growth", "no-growth", "--task", "spirals", "--hosts", "2"], "no-growth"),
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
        ["compare", "RUN", "no-growth", "--task-options", "nothing=1"],
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
    assert main(["compare", "shipped", "no-growth", *few]) == 0
    label = load_shipped().label
    announced, *_ = (told := capsys.readouterr().out).splitlines()
    assert announced == f"comparing {label}, no-growth on 2 hosts of digits-family"
    assert "2 hosts of digits-family" in told.partition(announced)[2]
    assert max(map(len, told.splitlines())) <= 80
