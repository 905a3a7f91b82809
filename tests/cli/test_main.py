"""``esper`` runs its commands, starts quickly and reports errors in one line."""

import json
import os
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

import esper
from esper.cli import main as main_module
from esper.cli.main import COMMANDS, main
from esper.errors import ConfigError, StorageError


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "esper", *words]


def test_help_lists_every_command_without_heavy_imports() -> None:
    script = (
        "import sys\nfrom esper.cli.main import main\ncode = main(['--help'])\n"
        "large = {'torch', 'numpy', 'gymnasium', 'rich', 'argparse'} & set(sys.modules)\n"
        "print(sorted(large), file=sys.stderr)\nsys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr == "[]\n"
    for name, (_, summary) in COMMANDS.items():
        assert f"  {name}" in done.stdout
        assert summary in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_the_reference_lists_every_command() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
    rows = [
        row.split("|")[1] for row in page.read_text().splitlines() if row.startswith("| `esper ")
    ]
    listed = {name for row in rows for name in re.findall(r"[a-z-]+", row)}
    assert set(COMMANDS) <= listed


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
        ([], "no command; choose one of grow,"),
        (["trian"], "unknown command 'trian'"),
        (["trian"], "Did you mean 'train'?"),
        (["xyz"], "See esper --help."),
        (["--verison"], "unknown command '--verison'"),
        (["tasks", "--jsn"], "--jsn is not an option of esper tasks. Did you mean '--json'?"),
        (["tasks", "--json=yes"], "--json takes no value"),
        (["tasks", "more"], "unexpected argument 'more' for esper tasks"),
        (["show"], "RUN is missing"),
        (["show", "--bogus"], "--bogus is not an option of esper show"),
        (["grow", "--baseline", "yess"], "Did you mean 'yes'?"),
        (["doctor", "a", "b"], "unexpected argument 'a'"),
        (["doctor", "--runs-dir"], "--runs-dir has no value"),
    ],
)
def test_usage_errors_are_reported_in_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("esper: error: ")
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""


def test_version_is_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"esper {esper.__version__}\n"


def test_help_of_a_command_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--help"]) == 0
    assert "--runs-dir" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_fits_80_columns_and_has_no_empty_defaults(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    for ugly in ("(default: )", "None"):  # users type none
        assert ugly not in printed


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("rounds is\n0"), 2, "esper: error: rounds is 0\n"),
        (StorageError("the disk is full"), 1, "esper: error: the disk is full\n"),
        (KeyboardInterrupt(), 130, "esper: interrupted; nothing was saved\n"),
    ],
)
def test_exit_codes_tell_usage_errors_failures_and_interrupts_apart(
    error: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: Sequence[str]) -> int:
        raise error

    monkeypatch.setattr(main_module, "find_command", lambda _: fail)
    assert main(["train"]) == code
    assert capsys.readouterr().err == message


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Sequence[str]) -> int:
        raise AssertionError("a bug")

    monkeypatch.setattr(main_module, "find_command", lambda _: fail)
    with pytest.raises(AssertionError, match="a bug"):
        main(["train"])


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_is_not_reported_as_an_error(unbuffered: str) -> None:
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


@pytest.mark.parametrize("name", ["tasks", "blueprints"])
def test_lists_are_printed_without_importing_torch(name: str) -> None:
    script = (
        f"import sys\nfrom esper.cli.main import main\ncode = main(['{name}', '--json'])\n"
        "sys.exit(code or sorted({'torch', 'numpy', 'gymnasium'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)


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


def test_a_name_too_long_for_a_table_goes_on_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from esper.cli.output import print_table

    monkeypatch.setattr("esper.cli.output.line_width", lambda: 20)
    print_table([("name", "score"), ("a", "0.5"), ("/a/long/name/of/a/run", "12.25")])
    assert capsys.readouterr().out.splitlines() == [
        "name  score",
        "a       0.5",
        "/a/long/name/of/a/run",
        "      12.25",
    ]


class _Terminal:
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "words", ["grow --task spirals --out g", "study s.toml", "check-task spirals", "doctor"]
)
def test_a_small_address_space_is_refused_before_pytorch_aborts(words: str, tmp_path: Path) -> None:
    shell = f"ulimit -v 500000; exec {shlex.join([sys.executable, '-m', 'esper'])} "
    done = subprocess.run(["sh", "-c", shell + words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(r"esper: error: out of memory: .*ulimit -v.* 800 MB\n", done.stderr)
    assert subprocess.run(["sh", "-c", f"{shell} tasks"], capture_output=True).returncode == 0
