"""`esper.integrations.lightning` in a real `Trainer`, with an image classifier on the digits."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from esper.errors import ConfigError
from esper.integrations import rebuild_on_load
from esper.tasks.digits import load_digits

pl = pytest.importorskip("lightning.pytorch")

pytestmark = [
    pytest.mark.slow,
    # Lightning's own, about the machine and about data as small as this.
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*dirpath has changed.*"),
    pytest.mark.filterwarnings("ignore:.*callbacks used to create.*"),
    pytest.mark.filterwarnings("ignore:.*ended before the epoch ended.*"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty.*"),
    pytest.mark.filterwarnings("ignore:.*number of training batches.*"),
]

EPOCHS = 14


class DigitNet(pl.LightningModule):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 8, 3, 2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(128, 10),
        )
        self.is_poisoned = False

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = cross_entropy(self(x), y)
        if self.is_poisoned and self.current_epoch == 4 and batch_idx == 1:
            loss = loss * math.nan
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        logits = self(x)
        self.log("val_loss", cross_entropy(logits, y), sync_dist=True)
        self.log("val_acc", (logits.argmax(1) == y).float().mean(), sync_dist=True)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_acc", (self(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), 5e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)]


def loaders() -> tuple[Any, Any]:
    images, labels = load_digits()
    train = TensorDataset(images[:320], labels[:320])
    valid = TensorDataset(images[320:640], labels[320:640])
    return DataLoader(train, 64, shuffle=True), DataLoader(valid, 320)


def make(folder: Path, *callbacks: Any, **options: Any) -> Any:
    values = {
        "max_epochs": EPOCHS,
        "accelerator": "cpu",
        "devices": 1,
        "default_root_dir": folder,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": False,
        "log_every_n_steps": 1,
    }
    return pl.Trainer(callbacks=list(callbacks), **{**values, **options})


def callback(**options: Any) -> Any:
    from esper.integrations.lightning import GrowthCallback

    return GrowthCallback(**{"score": "val_acc", "controller": "fixed", **options})


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return {n: t.clone() for n, t in model.state_dict().items() if not n.endswith("esper_growth")}


def fit(folder: Path, *callbacks: Any, ckpt: Any = None, **options: Any) -> tuple[Any, Any, Any]:
    pl.seed_everything(1, verbose=False)
    model, growth = DigitNet(), callback(**options.pop("growth", {}))
    trainer = make(folder, growth, *callbacks, **options)
    trainer.fit(model, *loaders(), ckpt_path=ckpt)
    return model, growth, trainer


def make_saver(folder: Path) -> Any:
    return pl.callbacks.ModelCheckpoint(
        folder / "saved", "{epoch}", save_top_k=-1, monitor="val_acc", mode="max"
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a training of all epochs with a checkpoint of each, its model and its callbacks."""
    folder = tmp_path_factory.mktemp("whole")
    saver = make_saver(folder)
    csv = pl.loggers.CSVLogger(folder)
    model, growth, trainer = fit(folder, saver, logger=csv)
    return folder, model, growth, trainer, saver


def test_growth_runs_a_whole_life_and_its_metrics_are_logged(whole: Any) -> None:
    folder, model, growth, trainer, _ = whole
    stages = {stage for each in growth.grower.trace for stage in each.stages.values()}
    assert "fossilized" in stages
    logged = next(folder.rglob("metrics.csv")).read_text()
    assert "growth/seed_parameters" in logged.splitlines()[0]
    assert trainer.callback_metrics["growth/seed_parameters"] >= 1.0
    plain = growth.grower.export().eval()
    images, _ = load_digits()
    torch.testing.assert_close(plain(images[:50]), model.eval()(images[:50]), atol=1e-5, rtol=1e-5)
    torch.save(plain, folder / "plain.pt")


@pytest.mark.parametrize("epoch", range(0, EPOCHS - 1, 2))
def test_a_training_resumes_bit_for_bit_in_the_middle_of_a_life(
    whole: Any, tmp_path: Path, epoch: int
) -> None:
    _, model, growth, _, _ = whole
    ckpt = whole[0] / "saved" / f"epoch={epoch}.ckpt"
    again, resumed, _ = fit(tmp_path, make_saver(tmp_path), ckpt=ckpt)
    assert str(resumed.grower.trace) == str(growth.grower.trace)
    for name, tensor in tensors(model).items():
        assert torch.equal(tensor, tensors(again)[name]), name


def test_the_best_checkpoint_is_loaded_by_test_whatever_its_structure(whole: Any) -> None:
    folder, model, _, trainer, _ = whole
    from esper.integrations.lightning import load_grown

    kept = tensors(model)
    images, labels = load_digits()
    data = DataLoader(TensorDataset(images[640:], labels[640:]), 256)
    sizes = set()
    for epoch in (0, 5, 9, EPOCHS - 1):
        ckpt = folder / "saved" / f"epoch={epoch}.ckpt"
        loaded = load_grown(DigitNet, ckpt).eval()
        assert type(loaded) is DigitNet
        sizes.add(sum(p.numel() for p in loaded.parameters()))
        right = loaded(images[640:]).argmax(1) == labels[640:]
        (found,) = trainer.test(model, data, ckpt_path=ckpt, verbose=False)
        assert found["test_acc"] == pytest.approx(right.float().mean().item())
    assert len(sizes) >= 2
    for name, tensor in kept.items():
        assert torch.equal(tensor, tensors(model)[name]), name


def test_a_checkpoint_of_weights_alone_is_loaded_with_its_structure(
    whole: Any, tmp_path: Path
) -> None:
    from esper.integrations.lightning import load_grown

    _, model, _, trainer, _ = whole
    trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    loaded = load_grown(DigitNet, tmp_path / "weights.ckpt")
    for name, tensor in tensors(model).items():
        assert torch.equal(tensor, tensors(loaded)[name]), name


def test_a_module_that_rebuilds_on_load_needs_no_other_function(
    whole: Any,
) -> None:
    class Loadable(DigitNet):
        def __init__(self, width: int = 6) -> None:
            super().__init__(width)
            rebuild_on_load(self)

    folder, model, _, _, _ = whole
    loaded = Loadable.load_from_checkpoint(folder / "saved" / f"epoch={EPOCHS - 1}.ckpt")
    for name, tensor in tensors(model).items():
        assert torch.equal(tensor, tensors(loaded)[name]), name


def test_a_training_resumes_within_an_epoch_and_from_last_and_is_tested_at_its_best(
    tmp_path: Path,
) -> None:
    saver = pl.callbacks.ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=23, save_top_k=-1)
    _, growth, _ = fit(tmp_path, saver, max_epochs=6)
    again = pl.callbacks.ModelCheckpoint(tmp_path, "{epoch}", monitor="val_acc", save_last=True)
    _, resumed, trainer = fit(tmp_path, again, max_epochs=6, ckpt=tmp_path / "step=23.ckpt")
    assert resumed.grower.epoch == 6
    assert [each.op for each in resumed.grower.trace] == [each.op for each in growth.grower.trace]
    trainer.test(dataloaders=loaders()[1], ckpt_path="best", verbose=False)
    model = DigitNet()
    longer = make(tmp_path, callback(), again, max_epochs=8)
    longer.fit(model, *loaders(), ckpt_path="last")
    assert longer.callbacks[0].grower.epoch == 8


def test_a_controller_that_waits_leaves_training_as_it_is(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_epochs": 3, "enable_checkpointing": False}
    options |= {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}
    grown, _, _ = fit(tmp_path, growth={"controller": "no-growth"}, **options)
    pl.seed_everything(1, verbose=False)
    plain = DigitNet()
    make(tmp_path, **options).fit(plain, *loaders())
    for name, tensor in tensors(plain).items():
        assert torch.equal(tensor, tensors(grown)[name]), name


def test_a_bad_batch_is_rolled_back(tmp_path: Path) -> None:
    pl.seed_everything(1, verbose=False)
    model, growth = DigitNet(), callback(module="net")
    model.is_poisoned = True
    make(tmp_path, growth, max_epochs=6, enable_checkpointing=False).fit(model, *loaders())
    assert "nan" in growth.grower.trace[4].why
    assert all(torch.isfinite(tensor).all() for tensor in tensors(model).values())


def test_autocast_works_and_an_average_of_one_s_own_grows_with_the_model(tmp_path: Path) -> None:
    pl.seed_everything(1, verbose=False)
    model = DigitNet()
    average = torch.optim.swa_utils.AveragedModel(model.net)

    class Averaging(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            average.update_parameters(model.net)

    growth = callback(module="net", ema=average)
    options: dict[str, Any] = {"enable_checkpointing": False, "precision": "bf16-mixed"}
    make(tmp_path, growth, Averaging(), **options).fit(model, *loaders())
    sizes = [sum(p.numel() for p in net.parameters()) for net in (model.net, average.module)]
    assert sizes[0] == sizes[1] > sum(p.numel() for p in DigitNet().parameters())


def test_early_stopping_stops_growth_too(tmp_path: Path) -> None:
    stopping = pl.callbacks.EarlyStopping("val_acc", mode="max", patience=1, min_delta=1.0)
    _, growth, trainer = fit(tmp_path, stopping, enable_checkpointing=False)
    assert growth.grower.epoch == trainer.current_epoch == 2


@pytest.mark.parametrize(
    ("callbacks", "options", "named"),
    [
        (lambda: [pl.callbacks.EMAWeightAveraging()], {}, "EMAWeightAveraging"),
        (lambda: [pl.callbacks.StochasticWeightAveraging(1e-3)], {}, "StochasticWeightAveraging"),
        (list, {"check_val_every_n_epoch": 2}, "check_val_every_n_epoch is 2"),
        (list, {"max_epochs": -1, "max_steps": 9}, "max_epochs is -1"),
    ],
)
def test_what_cannot_work_is_said_before_training(
    tmp_path: Path, callbacks: Any, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        fit(tmp_path, *callbacks(), **options)


def test_a_metric_that_is_not_logged_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'val_f1'.*val_acc"):
        fit(tmp_path, growth={"score": "val_f1"}, max_epochs=1, enable_checkpointing=False)
    with pytest.raises(ConfigError, match=r"'controler'.*'controller'"):
        callback(controler="no-growth")


SCRIPT = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from tests.slow.test_lightning import *
pl.seed_everything(1, verbose=False)
model, growth = DigitNet(), callback()
saver = make_saver(Path(sys.argv[2]))
trainer = make(sys.argv[2], growth, saver, devices=2, strategy="ddp")
trainer.fit(model, *loaders())
torch.save(tensors(model), f"{sys.argv[2]}/rank{trainer.global_rank}.pt")
model, growth, saver = DigitNet(), callback(), make_saver(Path(sys.argv[2]))
trainer = make(sys.argv[2], growth, saver, devices=2, strategy="ddp")
trainer.fit(model, *loaders(), ckpt_path=sys.argv[2] + "/saved/epoch=4.ckpt")
assert growth.grower.epoch == EPOCHS
torch.save(tensors(model), f"{sys.argv[2]}/again{trainer.global_rank}.pt")
"""


def test_two_processes_grow_the_same_model_and_resume(tmp_path: Path) -> None:
    (tmp_path / "ddp.py").write_text(SCRIPT)
    root = str(Path(__file__).parents[2])
    command = [sys.executable, str(tmp_path / "ddp.py"), root, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=root)
    assert done.returncode == 0, done.stderr
    for kind in ("rank", "again"):
        first, second = (torch.load(tmp_path / f"{kind}{rank}.pt") for rank in range(2))
        size = sum(map(torch.numel, tensors(DigitNet()).values()))
        assert sum(map(torch.numel, first.values())) > size
        for name, tensor in first.items():
            if "running" not in name and "num_batches" not in name:  # of each rank's own batches
                assert torch.equal(tensor, second[name]), name
