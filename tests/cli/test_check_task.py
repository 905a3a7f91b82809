"""A task's hosts are compiled whoever wrote them; where not, the reason is printed."""

import sys
from pathlib import Path

import pytest

from esper.cli.main import main

OWN = """
import torch, esper
from torch import nn

def make(activation=False):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(192, 4, generator=g)
    def host(seed):
        torch.manual_seed(seed)
        act = nn.Softplus() if activation else nn.ReLU()
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), act, nn.Linear(8, 2))
        return esper.add_slots(model, ["1"], torch.zeros(2, 4))
    return esper.Task(name="own", make_host=host, n_classes=2,
                      data=esper.TaskData.cut(x, (x[:, 0] > 0).long(), (64, 64, 64)))
"""


@pytest.mark.parametrize("is_odd", [False, True])
def test_an_own_network_of_known_layers_is_compiled(
    is_odd: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_hosts_to_check.py").write_text(OWN)
    words = ["check-task", "own_hosts_to_check:make", "--hosts", "2", "--epochs", "1"]
    assert main([*words, "--task-options", f"activation={str(is_odd).lower()}"]) == 0
    printed = capsys.readouterr().out
    assert "host-epochs per second" in printed
    assert ("2 of 2 hosts  compiled" in printed) != is_odd
    assert ("torch: the engine has no Softplus" in printed) == is_odd
    assert ("BatchNorm2d" in printed) == is_odd
