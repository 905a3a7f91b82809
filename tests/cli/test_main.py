"""The command finds its commands, is quick, and says what is wrong in one line."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

import esper
from esper.cli import main as main_module
from esper.cli.main import COMMANDS, main
from esper.errors import ConfigError, StorageError


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "esper", *words]


def test_help_lists_every_command_and_imports_nothing_large() -> None:
    script = (
        "import sys\nfrom esper.cli.main import main\ncode = main(['--help'])\n"
        "large = {'torch', 'numpy', 'gymnasium', 'rich', 'tyro'} & set(sys.modules)\n"
        "print(sorted(large), file=sys.stderr)\nsys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr == "[]\n"
    for name, command in COMMANDS.items():
        assert f"  {name}" in done.stdout
        assert command.summary in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_settings_are_printed_without_importing_torch() -> None:
    script = (
        "import sys\nfrom esper.cli.main import main\ncode = main(['train', '--print-config'])\n"
        "sys.exit(code or sorted({'torch', 'numpy', 'gymnasium'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_takes_less_than_half_a_second_of_cpu() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command("--help"), check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no command is given; there are train,"),
        (["trian"], "there is no command 'trian'; there are train, "),
        (["trian"], "Did you mean 'train'?"),
        (["xyz"], "See esper --help."),
        (["--verison"], "there is no command '--verison'"),
        (["tasks", "--jsn"], "--jsn is not an option of esper tasks. Did you mean '--json'?"),
        (["tasks", "more"], "'more' is one word too many for esper tasks"),
        (["completion"], "no shell is given; it must be one of bash, zsh, tcsh, fish."),
        (["completion", "fsh"], "Did you mean 'fish'?"),
        (["completion", "bash", "zsh"], "'zsh' is one word too many for esper completion"),
        (["doctor", "--runs-dir"], "--runs-dir has no value; it must be a text"),
    ],
)
def test_mistakes_are_told_in_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    told = capsys.readouterr()
    assert told.err.startswith("esper: error: ")
    assert message in told.err
    assert len(told.err.splitlines()) == 1
    assert told.out == ""


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"esper {esper.__version__}\n"


def test_the_help_of_a_command_is_a_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--help"]) == 0
    assert "--runs-dir" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ConfigError("rounds is\n0"), 2, "esper: error: rounds is 0\n"),
        (StorageError("the disk is full"), 1, "esper: error: the disk is full\n"),
        (KeyboardInterrupt(), 130, "esper: interrupted; nothing was saved\n"),
    ],
)
def test_exit_codes_say_what_happened(
    error: BaseException,
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: Sequence[str]) -> int:
        raise error

    monkeypatch.setattr(main_module, "find_command", lambda _: fail)
    assert main(["train"]) == code
    assert capsys.readouterr().err == told


def test_an_error_of_our_own_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Sequence[str]) -> int:
        raise AssertionError("a defect")

    monkeypatch.setattr(main_module, "find_command", lambda _: fail)
    with pytest.raises(AssertionError, match="a defect"):
        main(["train"])


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_no_error(unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        command("--help"), stdout=writing, stderr=subprocess.PIPE, text=True, env=environment
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_tasks_and_blueprints_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    from esper.growth.blueprints import blueprint_names, find_blueprint
    from esper.tasks import task_names

    assert main(["tasks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(task_names())
    assert main(["tasks", "--json"]) == 0
    assert [task["name"] for task in json.loads(capsys.readouterr().out)] == list(task_names())
    assert main(["blueprints"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(blueprint_names())
    assert main(["blueprints", "--json"]) == 0
    for facts in json.loads(capsys.readouterr().out):
        blueprint = find_blueprint(facts["name"])
        assert (facts["form"], facts["summary"]) == (blueprint.form.value, blueprint.summary)
        assert len(facts["kinds"]) == len(blueprint.kinds)


def test_a_list_is_wrapped_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from esper.cli.output import print_columns

    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("esper.cli.output.sys", SimpleNamespace(stdout=_Terminal()))
    print_columns([("name", "many words " * 6), ("other", "[bold]not markup[/bold]")])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    assert len(lines) == 3
    assert "[bold]not markup[/bold]" in lines[-1]


class _Terminal:
    def isatty(self) -> bool:
        return True
