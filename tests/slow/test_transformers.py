"""`esper.integrations.transformers` in a real `Trainer`, with small GPT-2 and BERT models."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import esper
from esper.errors import ConfigError, SavedModelError
from esper.growth.host_slots import slots
from esper.integrations.grown_states import rebuild_on_load

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

pytestmark = pytest.mark.slow

EPOCHS = 12
LENGTH = 16


class Tokens(torch.utils.data.Dataset):
    """Sequences that count upwards by a step of their own; the step is the class of a sequence."""

    def __init__(self, n: int, seed: int, *, is_classified: bool) -> None:
        drawn = torch.Generator().manual_seed(seed)
        steps = torch.randint(1, 4, (n, 1), generator=drawn)
        starts = torch.randint(0, 32, (n, 1), generator=drawn)
        self.tokens = (starts + steps * torch.arange(LENGTH)) % 32
        self.labels = steps[:, 0] - 1 if is_classified else self.tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


def make_gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=32, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, n_inner=16
    )
    return transformers.GPT2LMHeadModel(config)


def make_bert() -> Any:
    config = transformers.BertConfig(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=LENGTH,
        num_labels=3,
    )
    return transformers.BertForSequenceClassification(config)


def accuracy(found: Any) -> dict[str, float]:
    return {"accuracy": float((np.argmax(found.predictions, -1) == found.label_ids).mean())}


MODELS: dict[str, Any] = {
    "gpt2": (make_gpt2, {}, {}),
    "bert": (make_bert, {"score": "eval_accuracy"}, {"compute_metrics": accuracy}),
}


def make(
    kind: str, folder: Path, *, growth: dict[str, Any] | None = None, **options: Any
) -> tuple[Any, Any]:
    """Return a trainer and its callback."""
    from esper.integrations.transformers import GrowthCallback

    build, decided_by, trained_with = MODELS[kind]
    values: dict[str, Any] = {
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": 16,
        "learning_rate": 3e-3,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "logging_strategy": "epoch",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 3,
    }
    transformers.set_seed(3)
    args = transformers.TrainingArguments(str(folder), **{**values, **options})
    model = build()
    data = [Tokens(n, n, is_classified=kind == "bert") for n in (96, 48)]
    trainer = transformers.Trainer(
        model, args, train_dataset=data[0], eval_dataset=data[1], **trained_with
    )
    if growth is None:
        return trainer, None
    return trainer, GrowthCallback(**{"controller": "fixed", **decided_by, **growth}).attach(
        trainer
    )


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return {n: t.clone() for n, t in model.state_dict().items() if not n.endswith("esper_growth")}


def assert_same(first: nn.Module, second: nn.Module) -> None:
    ours, theirs = tensors(first), tensors(second)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.fixture(scope="module", params=list(MODELS))
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a whole training with a checkpoint of each epoch."""
    folder = tmp_path_factory.mktemp(request.param)
    trainer, growth = make(request.param, folder, growth={})
    trainer.train()
    return request.param, folder, trainer, growth


def test_growth_runs_a_whole_life_and_its_metrics_are_logged(whole: Any) -> None:
    _, _, trainer, growth = whole
    stages = {stage for each in growth.grower.trace for stage in each.stages.values()}
    assert "fossilized" in stages
    logged = [row for row in trainer.state.log_history if "growth/parameters" in row]
    assert [row["growth/parameters"] for row in logged] == [
        each.parameters for each in growth.grower.trace
    ]
    assert not trainer.model._forward_hooks
    plain, tokens = growth.grower.export().eval(), Tokens(8, 1, is_classified=False).tokens
    trainer.model.eval()
    torch.testing.assert_close(
        plain(tokens).logits, trainer.model(tokens).logits, atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("epoch", [1, 4, 7, 10])
def test_a_training_resumes_bit_for_bit_in_the_middle_of_a_life(
    whole: Any, tmp_path: Path, epoch: int
) -> None:
    kind, folder, trainer, growth = whole
    checkpoint = folder / f"checkpoint-{6 * epoch}"
    assert not (checkpoint / "optimizer.pt").exists()
    again, resumed = make(kind, tmp_path, growth={"resume_from": checkpoint}, save_strategy="no")
    again.train(resume_from_checkpoint=str(checkpoint))
    assert str(resumed.grower.trace) == str(growth.grower.trace)
    assert_same(again.model, trainer.model)


def test_a_grown_checkpoint_is_loaded_with_its_structure(whole: Any) -> None:
    from esper.integrations.transformers import from_pretrained

    _, folder, trainer, _ = whole
    cls, sizes = type(trainer.model), set()
    for epoch in (1, 4, 8, EPOCHS):
        loaded = from_pretrained(cls, folder / f"checkpoint-{6 * epoch}")
        assert type(loaded) is cls
        sizes.add(loaded.num_parameters())
    assert len(sizes) >= 2
    assert_same(loaded, trainer.model)


def test_modules_beside_blocks_are_loaded_though_the_configuration_has_grown_too(
    tmp_path: Path,
) -> None:
    from esper.integrations.transformers import from_pretrained

    model, tokens = make_gpt2().eval(), Tokens(8, 1, is_classified=False).tokens
    rebuild_on_load(model)
    names = ["transformer.h.*.mlp", "transformer.h.*", "transformer.ln_f"]
    esper.add_slots(model, names, {"input_ids": tokens})
    for name, blueprint in zip(names, ("widen_small", "deepen", "mlp_small"), strict=True):
        slots(model).germinate(name, blueprint)
    for parameter in model.parameters():
        parameter.data += 0.05
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(type(model), tmp_path)
    assert_same(loaded, model)
    assert loaded.config.n_layer == model.config.n_layer == len(loaded.transformer.h)
    assert loaded.num_parameters() > transformers.GPT2LMHeadModel(model.config).num_parameters()
    torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits)


def test_a_training_resumes_within_an_epoch(tmp_path: Path) -> None:
    options = {"num_train_epochs": 7, "save_strategy": "steps", "save_steps": 27}
    trainer, growth = make("bert", tmp_path, growth={}, **options)
    trainer.train()
    again, resumed = make("bert", tmp_path, growth={}, **options)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-27"))
    ops = [[each.op for each in one.grower.trace] for one in (growth, resumed)]
    assert ops[0] == ops[1]
    assert again.model.num_parameters() == trainer.model.num_parameters()


def test_other_ways_to_load_a_grown_model_say_that_they_leave_something_out(
    whole: Any, caplog: pytest.LogCaptureFixture
) -> None:
    _, folder, trainer, _ = whole
    with caplog.at_level(logging.WARNING):
        type(trainer.model).from_pretrained(folder / f"checkpoint-{6 * EPOCHS}")
    assert "esper_growth" in caplog.text


@pytest.mark.parametrize("kind", list(MODELS))
def test_the_best_model_is_loaded_at_the_end(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer, growth = make(
        kind, tmp_path, growth={}, load_best_model_at_end=True, metric_for_best_model="eval_loss"
    )
    trainer.add_callback(transformers.EarlyStoppingCallback(2, 10.0))  # no epoch is that good
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert trainer.state.best_model_checkpoint
    assert growth.grower.epoch == 3
    # Trainer says the same of a tied weight of a model that does not grow.
    told = caplog.text.replace(
        "missing keys in the checkpoint model loaded: ['lm_head.weight']", ""
    )
    assert "keys in the checkpoint" not in told
    from esper.integrations.transformers import from_pretrained

    best = from_pretrained(type(trainer.model), trainer.state.best_model_checkpoint)
    assert_same(best, trainer.model)


@pytest.mark.parametrize("kind", list(MODELS))
def test_a_controller_that_waits_leaves_training_as_it_is(kind: str, tmp_path: Path) -> None:
    options = {"num_train_epochs": 2, "gradient_accumulation_steps": 4, "save_strategy": "no"}
    trainer, growth = make(kind, tmp_path, growth={"controller": "no-growth"}, **options)
    trainer.train()
    plain, _ = make(kind, tmp_path, **options)
    plain.train()
    assert_same(plain.model, trainer.model)
    losses = [row["loss"] for row in plain.state.log_history if "loss" in row]
    assert [each.train_loss for each in growth.grower.trace] == pytest.approx(losses, rel=1e-3)


@pytest.mark.parametrize("kind", list(MODELS))
def test_autocast_works(kind: str, tmp_path: Path) -> None:
    trainer, growth = make(kind, tmp_path, growth={}, bf16=True, save_strategy="no")
    trainer.train()
    stages = {stage for each in growth.grower.trace for stage in each.stages.values()}
    assert "fossilized" in stages


def test_a_bad_batch_is_rolled_back(tmp_path: Path) -> None:
    trainer, growth = make("bert", tmp_path, growth={}, num_train_epochs=6, save_strategy="no")
    calls = 0

    def poison(module: Any, args: Any, output: Any) -> Any:
        nonlocal calls
        calls += module.training
        return output * float("nan") if module.training and calls == 28 else output

    trainer.model.classifier.register_forward_hook(poison)
    trainer.train()
    assert any("nan" in each.why for each in growth.grower.trace)
    assert all(
        torch.isfinite(t).all() for t in tensors(trainer.model).values() if t.is_floating_point()
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"eval_strategy": "steps", "save_strategy": "no"}, "eval_strategy is 'steps'"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
    ],
)
def test_what_cannot_work_is_said_before_training(
    tmp_path: Path, options: dict[str, Any], named: str
) -> None:
    trainer, _ = make("gpt2", tmp_path, growth={}, **options)
    with pytest.raises(ConfigError, match=named):
        trainer.train()


def test_other_mistakes_are_named(whole: Any, tmp_path: Path) -> None:
    from esper.integrations.transformers import GrowthCallback

    kind, folder, _, _ = whole
    trainer, _ = make(kind, tmp_path)
    trainer.add_callback(GrowthCallback())
    with pytest.raises(ConfigError, match="attach"):
        trainer.train()
    trainer, _ = make(kind, tmp_path, growth={"score": "eval_f1"}, num_train_epochs=1)
    with pytest.raises(ConfigError, match=r"'eval_f1'.*eval_loss"):
        trainer.train()
    trainer, _ = make(kind, tmp_path / "other", growth={})
    with pytest.raises(SavedModelError, match=r"grower\.esper.*missing"):
        trainer.train(resume_from_checkpoint=str(folder / "checkpoint-24"))


SCRIPT = """
import sys, torch
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.slow.test_transformers import *
trainer, growth = make("gpt2", Path(sys.argv[2]), growth={}, per_device_train_batch_size=8,
                       ddp_backend="gloo")
trainer.train(resume_from_checkpoint=sys.argv[3] if len(sys.argv) > 3 else None)
assert trainer.args.max_grad_norm == 1.0
torch.save(tensors(trainer.model), f"{sys.argv[2]}/rank{trainer.args.process_index}.pt")
"""


def run_two(folder: Path, *arguments: str) -> list[dict[str, Tensor]]:
    """Train with two processes and return the tensors of both."""
    root = str(Path(__file__).parents[2])
    (folder / "ddp.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command += [str(folder / "ddp.py"), root, str(folder), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, cwd=root, env=environment
    )
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


def test_two_processes_grow_the_same_model_and_resume(tmp_path: Path) -> None:
    first, second = run_two(tmp_path)
    assert sum(map(torch.numel, first.values())) > sum(
        map(torch.numel, tensors(make_gpt2()).values())
    )
    again, _ = run_two(tmp_path, str(tmp_path / "checkpoint-24"))
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
        torch.testing.assert_close(tensor, again[name], msg=name)


@pytest.mark.parametrize("damage", [os.mkfifo, lambda path: path.write_bytes(b"x" * 100)])
def test_weights_that_cannot_be_read_are_named(damage: Any, tmp_path: Path) -> None:
    from esper.integrations.transformers import from_pretrained

    damage(tmp_path / "model-1.safetensors")
    with pytest.raises(SavedModelError, match=r"model-1\.safetensors cannot be read"):
        from_pretrained(transformers.GPT2LMHeadModel, tmp_path)
