"""Small work runs on one thread, unless the user has chosen a number of threads."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from esper import modes
from esper.modes import SMALL_STEP, THREAD_VARIABLES, default_threads, suitable_threads


@pytest.mark.usefixtures("four_threads")
@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (SMALL_STEP / 2, 1),
        (SMALL_STEP * 2, 4),
        (nn.Linear(4, 4), 1),
        (nn.Linear(1000, 1000), 4),
    ],
)
def test_only_small_work_gets_one_thread(work: nn.Module | float, expected: int) -> None:
    with suitable_threads(work):
        assert torch.get_num_threads() == expected
    assert torch.get_num_threads() == 4


@pytest.mark.usefixtures("four_threads")
def test_the_number_is_restored_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), suitable_threads(1.0):
        raise ZeroDivisionError
    assert torch.get_num_threads() == 4


@pytest.mark.usefixtures("four_threads")
def test_a_number_that_the_user_set_is_left_as_it_is() -> None:
    torch.set_num_threads(3)
    with suitable_threads(1.0):
        assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("four_threads")
@pytest.mark.parametrize("name", THREAD_VARIABLES)
def test_a_variable_that_the_user_set_is_respected(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "4")
    with suitable_threads(1.0):
        assert torch.get_num_threads() == 4


def test_processors_of_one_core_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 4, 5}, raising=False)
    monkeypatch.setattr(modes, "_core_of", lambda processor: str(processor % 4))
    assert default_threads() == {4, 2}
