"""`esper.integrations.accelerate` in a loop of one's own, in one and in two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from esper.errors import ConfigError, GrowerError
from esper.integrations import rebuild_on_load
from esper.tasks.digits import load_digits

accelerate = pytest.importorskip("accelerate")

pytestmark = pytest.mark.slow

EPOCHS = 12
IMAGES, LABELS = load_digits()


def make_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 12),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(12, 12),
        nn.ReLU(),
        nn.Linear(12, 10),
    )


class Loop:
    """A training loop with Accelerate, and with a Grower if there is a controller."""

    def __init__(self, controller: Any = "fixed", *, grown: bool = True, **options: Any) -> None:
        from esper.integrations.accelerate import AcceleratedGrower

        accelerate.state.AcceleratorState._reset_state(True)
        # Without it, Accelerate does not save in which order two processes draw their data.
        data = accelerate.DataLoaderConfiguration(use_seedable_sampler=True)
        self.accelerator = accelerate.Accelerator(cpu=True, dataloader_config=data, **options)
        self.n_epochs = 0
        accelerate.utils.set_seed(2)
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
        loader = DataLoader(TensorDataset(IMAGES[:320], LABELS[:320]), 32, shuffle=True)
        self.model, self.optimizer, self.loader, self.scheduler = self.accelerator.prepare(
            model, optimizer, loader, scheduler
        )
        self.grower: Any = None
        if grown:
            self.grower = AcceleratedGrower(
                self.accelerator,
                self.model,
                self.optimizer,
                epochs=EPOCHS,
                scheduler=self.scheduler,
                controller=controller,
            )

    def run_epoch(self) -> Any:
        self.model.train()
        self.loader.set_epoch(self.n_epochs if self.grower is None else self.grower.epoch)
        self.n_epochs += 1
        for x, y in self.loader:
            with self.accelerator.accumulate(self.model):
                loss = cross_entropy(self.model(x), y)
                self.accelerator.backward(loss)
                if self.grower is not None:
                    self.grower.step(loss, max_grad_norm=1.0)
                else:
                    if self.accelerator.sync_gradients:
                        self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                self.scheduler.step()
        self.model.eval()
        with torch.no_grad():
            logits = self.model(IMAGES[320:640])
        loss = cross_entropy(logits, LABELS[320:640]).item()
        score = (logits.argmax(1) == LABELS[320:640]).float().mean().item()
        return None if self.grower is None else self.grower.end_epoch(val_loss=loss, score=score)

    def tensors(self) -> dict[str, Tensor]:
        state = self.accelerator.unwrap_model(self.model).state_dict()
        return {name: t.clone() for name, t in state.items() if not name.endswith("esper_growth")}


def assert_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def test_a_training_resumes_bit_for_bit_in_the_middle_of_a_life(tmp_path: Path) -> None:
    whole, kept, stages = Loop(), [], set[str]()
    for epoch in range(EPOCHS):
        stages |= set(whole.run_epoch().stages.values())
        whole.accelerator.save_state(str(tmp_path / str(epoch)))
        kept.append(whole.tensors())
    assert "fossilized" in stages
    for epoch in range(EPOCHS - 2):
        again = Loop()
        again.accelerator.load_state(str(tmp_path / str(epoch)))
        assert again.grower.epoch == epoch + 1
        assert_equal(again.tensors(), kept[epoch])
        for expected in kept[epoch + 1 : epoch + 3]:
            again.run_epoch()
            assert_equal(again.tensors(), expected)
    fresh = make_model()
    rebuild_on_load(fresh)
    accelerate.load_checkpoint_in_model(fresh, str(tmp_path / "5" / "model.safetensors"))
    with pytest.raises(GrowerError, match=f"after {EPOCHS} epochs"):
        whole.accelerator.load_state(str(tmp_path / "5"))


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 4}])
def test_a_controller_that_waits_leaves_training_as_it_is(options: dict[str, Any]) -> None:
    results = []
    for grown in (True, False):
        loop = Loop("no-growth", grown=grown, **options)
        for _ in range(2):
            loop.run_epoch()
        results.append(loop.tensors())
    assert_equal(*results)


def test_autocast_and_export_work_together() -> None:
    loop = Loop(mixed_precision="bf16")
    for _ in range(EPOCHS):
        loop.run_epoch()
    plain = loop.accelerator.unwrap_model(loop.grower.export(), keep_fp32_wrapper=False).eval()
    x = IMAGES[:32]
    torch.testing.assert_close(plain(x), loop.model(x), atol=0.1, rtol=0.1)


def test_growth_is_logged_to_the_trackers(tmp_path: Path) -> None:
    class Memory(accelerate.tracking.GeneralTracker):
        name = "memory"
        requires_logging_directory = False

        def __init__(self) -> None:
            super().__init__()
            self.rows: list[Any] = []

        @property
        def tracker(self) -> Any:
            return self.rows

        def store_init_configuration(self, values: Any) -> None: ...

        def log(self, values: Any, step: int | None = None, **_: Any) -> None:
            self.rows.append((step, values))

    memory = Memory()
    loop = Loop(log_with=[memory])
    loop.accelerator.init_trackers("growth")
    decision = loop.run_epoch()
    ((step, values),) = memory.rows
    assert step == 1
    assert values["growth/parameters"] == decision.parameters


def test_what_cannot_work_is_said() -> None:
    loop = Loop()
    with pytest.raises(ConfigError, match="accumulate is 2"):
        loop.grower.step(torch.tensor(1.0), accumulate=2)


SCRIPT = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from tests.slow.test_accelerate import *
loop = Loop(gradient_accumulation_steps=2)
for epoch in range(EPOCHS):
    loop.run_epoch()
    if epoch == 4:
        loop.accelerator.save_state(sys.argv[2] + "/saved")
torch.save(loop.tensors(), f"{sys.argv[2]}/rank{loop.accelerator.process_index}.pt")
again = Loop(gradient_accumulation_steps=2)
again.accelerator.load_state(sys.argv[2] + "/saved")
for _ in range(again.grower.epoch, EPOCHS):
    again.run_epoch()
torch.save(again.tensors(), f"{sys.argv[2]}/again{again.accelerator.process_index}.pt")
"""


def test_two_processes_grow_the_same_model_and_resume(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    (tmp_path / "ddp.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command += [str(tmp_path / "ddp.py"), root, str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, cwd=root, env=environment
    )
    assert done.returncode == 0, done.stderr
    names = ("rank0", "rank1", "again0", "again1")
    first, *others = (torch.load(tmp_path / f"{name}.pt") for name in names)
    size = sum(parameter.numel() for parameter in make_model().parameters())
    assert sum(map(torch.numel, first.values())) > size
    for other in others:
        assert_equal(first, other)
