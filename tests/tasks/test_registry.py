"""Tasks are found by name, in other packages and in the user's modules."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from esper.errors import ConfigError, EsperError, TaskError, UnknownTaskError
from esper.tasks import (
    Task,
    make_task,
    register_task,
    registry,
    task_names,
    task_summaries,
)
from esper.tasks.registry import create_task
from esper.tasks.spirals import make_spirals

BUILT_IN = ("digits", "digits-family", "text", "spirals", "prior")
OFFLINE = ("digits", "digits-family", "text", "spirals")
OWN_MODULE = "own_module_of_a_user"
OWN_CODE = """
from esper.tasks.spirals import make_spirals

def make_task(n_epochs=3):
    '''Spirals of my own.'''
    return make_spirals(n_epochs=n_epochs)

def needs(size):
    return make_spirals()

def takes_all(**options):
    return make_spirals(n_epochs=options["n_epochs"])

def fails(**options):
    raise RuntimeError("no\\nluck")

def fails_by_name():
    return make_spirals(n_epochs=0)

def leaves():
    raise SystemExit

def gives_a_number():
    return 7

NUMBER = 7
"""


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a user's module in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{OWN_MODULE}.py").write_text(OWN_CODE)
    yield tmp_path
    for name in (OWN_MODULE, "their_tasks", "half_a_module"):
        sys.modules.pop(name, None)


def test_every_built_in_task_has_a_summary() -> None:
    assert task_names() == BUILT_IN
    assert tuple(task_summaries()) == BUILT_IN
    assert all(task_summaries().values())


@pytest.mark.parametrize("name", OFFLINE)
def test_every_task_takes_a_number_of_epochs(name: str) -> None:
    task = make_task(name, n_epochs=2, batches_per_epoch=3)
    assert task.name == name
    assert (task.budget.n_epochs, task.training.batches_per_epoch) == (2, 3)
    assert make_task(name).budget.n_epochs > 2


@pytest.mark.parametrize("name", OFFLINE)
def test_the_host_of_a_task_accepts_its_data_and_has_slots(name: str) -> None:
    task = make_task(name)
    drawn = task.sample(1)
    for make_host in (task.make_host, drawn.make_host or task.make_host):
        host = make_host(5)
        twin = make_host(5)
        assert all(
            torch.equal(one, other)
            for one, other in zip(host.parameters(), twin.parameters(), strict=True)
        )
        outputs = host(drawn.data.train.inputs[:3])
        assert outputs.shape[:-1] == drawn.data.train.targets[:3].shape
        assert outputs.shape[-1] >= drawn.n_classes


def test_an_unknown_name_suggests_the_closest() -> None:
    with pytest.raises(UnknownTaskError) as caught:
        make_task("digit")
    message = str(caught.value)
    assert "'digit'" in message
    assert "digits, digits-family, " in message
    assert message.endswith("Did you mean 'digits'?")
    with pytest.raises(UnknownTaskError, match="a task's name is 7"):
        make_task(7)  # type: ignore[arg-type]


def test_an_unknown_option_is_reported_with_the_valid_ones() -> None:
    with pytest.raises(TaskError) as caught:
        make_task("digits", n_epoch=3)
    assert str(caught.value) == (
        "task 'digits' has no option 'n_epoch'; its options are host, n_epochs (budget.n_epochs in "
        "a run), batches_per_epoch. "
        "Did you mean 'n_epochs'?"
    )
    with pytest.raises(TaskError, match="no option 'name'"):
        create_task("digits", {"name": "own"})
    with pytest.raises(ConfigError, match="host is 'gpt'"):
        make_task("digits", host="gpt")
    with pytest.raises(ConfigError, match="n_epochs is 0"):
        make_task("spirals", n_epochs=0)


def test_a_registered_task_is_created_with_its_options() -> None:
    register_task("mine", make_spirals, summary="my own")
    assert task_names() == (*BUILT_IN, "mine")
    assert task_summaries()["mine"] == "my own"
    assert make_task("mine", n_epochs=9).budget.n_epochs == 9


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("digits", make_spirals, "'digits' is registered already"),
        ("a:b", make_spirals, "name is 'a:b'"),
        ("", make_spirals, "name is ''"),
        ("mine", 7, "make of task 'mine' is 7"),
    ],
)
def test_invalid_registrations_are_rejected(name: str, make: object, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        register_task(name, make, summary="")  # type: ignore[arg-type]


def test_a_function_is_found_in_the_current_folder(folder: Path) -> None:
    path = list(sys.path)
    task = make_task(f"{OWN_MODULE}:make_task", n_epochs=5)
    assert isinstance(task, Task)
    assert task.budget.n_epochs == 5
    assert make_task(f"{OWN_MODULE}:takes_all", n_epochs=6, other=1).budget.n_epochs == 6
    assert sys.path == path


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("no_such_module_here:make", UnknownTaskError, "no module 'no_such_module_here'"),
        (f"{OWN_MODULE}:make_tusk", UnknownTaskError, "'make_tusk'. Did you mean 'make_ta"),
        (f"{OWN_MODULE}:", UnknownTaskError, "'my_module:make_task'"),
        (":make_task", UnknownTaskError, "'module:function'"),
        ("a/b.py:make_task", UnknownTaskError, "'module:function'"),
        (f"{OWN_MODULE}:NUMBER", TaskError, "is an int"),
        (f"{OWN_MODULE}:gives_a_number", TaskError, "returned an int"),
        (f"{OWN_MODULE}:needs", TaskError, "needs option 'size'"),
        (f"{OWN_MODULE}:fails_by_name", ConfigError, "n_epochs is 0"),
        ("half_a_module:make", TaskError, "raised SyntaxError ("),
        ("leaves:make", TaskError, "'leaves' raised SystemExit (3)"),
        (f"{OWN_MODULE}:leaves", TaskError, "leaves raised SystemExit (no message)"),
    ],
)
def test_errors_in_the_users_module_are_reported(
    folder: Path, name: str, error: type[EsperError], message: str
) -> None:
    (folder / "half_a_module.py").write_text("def make(:\n")
    (folder / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(error) as caught:
        make_task(name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_function_that_raises_is_reported_with_the_cause(folder: Path) -> None:
    with pytest.raises(TaskError) as caught:
        make_task(f"{OWN_MODULE}:fails")
    assert f"{OWN_MODULE}.fails raised RuntimeError (no luck)" in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_failing_import_inside_a_module_is_not_an_unknown_task(folder: Path) -> None:
    (folder / "half_a_module.py").write_text("import absent_helper_module\n")
    with pytest.raises(TaskError, match="'absent_helper_module'") as caught:
        make_task("half_a_module:make")
    assert not isinstance(caught.value, UnknownTaskError)
