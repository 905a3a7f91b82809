"""``esper expand`` writes checkpoints that load, compute the same and train like any other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import esper
from esper.cli.main import main
from esper.integrations.sample_inputs import find_sample_input

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

transformers = pytest.importorskip("transformers")

from tests.slow.architectures import ARCHITECTURES, outputs_of  # noqa: E402

BY_NAME = {each.model: each for each in ARCHITECTURES}
MODELS = (
    "LlamaForCausalLM",
    "GPT2LMHeadModel",
    "T5ForConditionalGeneration",
    "BertForSequenceClassification",
    "ViTForImageClassification",
)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., tuple[Path, Any]]:
    """Return a function that saves a tiny model with other files and returns both."""

    def save(name: str, dtype: torch.dtype = torch.float32, **how: Any) -> tuple[Path, Any]:
        model = BY_NAME[name].build().to(dtype)
        folder = tmp_path / "model"
        model.save_pretrained(folder, **how)
        (folder / "tokenizer.json").write_text('{"a": 1}')
        (folder / "code.py").write_text("raise SystemExit")
        return folder, model

    return save


def expand(folder: Path, *words: str) -> Path:
    out = folder.parent / "larger"
    assert main(["expand", str(folder), *words, "--out", str(out)]) == 0
    return out


def load(folder: Path, model: Any) -> Any:
    return type(model).from_pretrained(folder, dtype="auto").eval()


@pytest.mark.parametrize("name", MODELS)
def test_an_expanded_checkpoint_gives_the_same_logits(
    name: str, saved: Callable[..., tuple[Path, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, model = saved(name)
    out = expand(folder, "--deepen", "2", "--widen", "2")
    printed = capsys.readouterr().out
    assert "blocks" in printed
    assert "Not copied: code.py." in printed
    again = load(out, model)
    inputs = BY_NAME[name].inputs
    expected = outputs_of(model, inputs)
    torch.testing.assert_close(outputs_of(again, inputs), expected, atol=1e-6, rtol=0.0)
    assert (out / "tokenizer.json").read_text() == '{"a": 1}'
    growth = json.loads((out / "growth.json").read_text())
    names = dict(again.named_parameters())
    assert set(growth["new_parameters"]) <= set(names)
    old = dict(model.named_parameters())
    n_new = sum(names[key].numel() for key in growth["new_parameters"])
    for key, axes in growth["new_entries"].items():
        is_new = torch.zeros(names[key].shape, dtype=torch.bool)
        for axis, ranges in axes.items():
            for first, end in ranges:
                is_new.movedim(int(axis), 0)[first:end] = True
        n_new += int(is_new.sum())
        before = [tensor for tensor in old.values() if tensor.numel() == int((~is_new).sum())]
        assert any(torch.equal(names[key][~is_new], tensor.flatten()) for tensor in before)
    assert n_new == again.num_parameters() - model.num_parameters()
    for blocks, indices in growth["new_blocks"].items():
        assert len(indices) == 2
        assert all(f"{blocks}.{index}." in "".join(growth["new_parameters"]) for index in indices)
    assert len(names) == len(old) + len(growth["new_parameters"])


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "T5ForConditionalGeneration"])
def test_a_moving_average_grows_with_its_configuration(name: str) -> None:
    torch.manual_seed(0)
    model = BY_NAME[name].build().eval()
    average = torch.optim.swa_utils.AveragedModel(model).eval()
    sample = find_sample_input(model)
    before, config = outputs_of(average.module, sample), model.config.to_dict()
    changes = [
        esper.widen(model, 2.0, sample_input=sample, ema=average),
        esper.deepen(model, 1, sample_input=sample, ema=average),
    ]
    assert average.module.config.to_dict() == model.config.to_dict() != config
    torch.testing.assert_close(outputs_of(average.module, sample), before)
    for change in reversed(changes):
        change.undo()
    assert average.module.config.to_dict() == model.config.to_dict() == config


def test_a_configuration_cannot_ask_for_layers_without_end(
    saved: Callable[..., tuple[Path, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = saved("GPT2LMHeadModel")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "n_layer": 10**9}))
    assert main(["expand", str(folder), "--deepen", "1", "--dry-run"]) == 2
    assert "asks for far more layers than its" in capsys.readouterr().err


def test_a_link_out_of_the_folder_is_not_copied(
    saved: Callable[..., tuple[Path, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = saved("GPT2LMHeadModel")
    (tmp_path / "secret").write_text("secret")
    (folder / "notes.txt").symlink_to(tmp_path / "secret")
    (tmp_path.parent / "blobs").mkdir(exist_ok=True)  # as the Hub's cache has them
    (tmp_path.parent / "blobs" / "0a").write_text("vocabulary")
    (folder / "vocab.txt").symlink_to(tmp_path.parent / "blobs" / "0a")
    out = expand(folder, "--deepen", "1")
    assert (out / "vocab.txt").read_text() == "vocabulary"
    assert not (out / "notes.txt").exists()
    assert "notes.txt" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_shards_and_their_type_are_kept(
    dtype: torch.dtype, saved: Callable[..., tuple[Path, Any]]
) -> None:
    folder, model = saved("LlamaForCausalLM", dtype, max_shard_size=8000)
    assert len(list(folder.glob("*.safetensors"))) > 1
    out = expand(folder, "--deepen", "2")
    assert len(list(out.glob("*.safetensors"))) > 1
    again = load(out, model)
    assert {parameter.dtype for parameter in again.parameters()} == {dtype}
    inputs = BY_NAME["LlamaForCausalLM"].inputs
    assert torch.equal(outputs_of(again, inputs), outputs_of(model, inputs))


def test_an_expanded_model_that_cannot_be_loaded_again_is_not_written(
    saved: Callable[..., tuple[Path, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, model = saved("GPT2LMHeadModel")
    n_bytes = 4 * sum(tensor.numel() for tensor in model.state_dict().values())
    monkeypatch.setattr("esper.integrations.checkpoints.available_memory", lambda: 3.3 * n_bytes)
    words = ["expand", str(folder), "--out", str(folder.parent / "larger"), "--deepen"]
    assert main([*words, "30"]) == 2
    assert "loading the expanded model again needs about" in capsys.readouterr().err
    assert os.listdir(folder.parent) == ["model"]
    assert main([*words, "1"]) == 0


def test_each_change_can_be_kept_to_some_places(
    saved: Callable[..., tuple[Path, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = saved("LlamaForCausalLM")
    words = ["--deepen", "1", "--deepen-at", "model.layers", "--widen", "2"]
    expand(folder, *words, "--widen-at", "model.layers.*.mlp")
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines() if line.startswith("model.")] == [
        "model.layers.*.mlp",
        "model.layers.*",
    ]
    assert main(["expand", str(folder), "--widen", "2", "--widen-at", "lm_head", "--dry-run"]) == 2
    assert "'lm_head' cannot be widened" in capsys.readouterr().err


def test_a_dry_run_writes_nothing(
    saved: Callable[..., tuple[Path, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = saved("GPT2LMHeadModel")
    assert main(["expand", str(folder), "--widen", "2", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "transformer.h.*.mlp" in printed
    assert "would become" in printed
    assert os.listdir(folder.parent) == ["model"]


@pytest.mark.parametrize("how", ["--out", "--dry-run"])
def test_a_named_place_that_the_configuration_cannot_express_is_refused(
    saved: Callable[..., tuple[Path, Any]], capsys: pytest.CaptureFixture[str], how: str
) -> None:
    folder, _ = saved("GPT2LMHeadModel")
    out = [how, str(folder.parent / "larger")] if how == "--out" else [how]
    words = ["--widen", "2", "--widen-at", "transformer.h.0.attn", "--deepen", "1"]
    assert main(["expand", str(folder), *words, *out]) == 2
    told = capsys.readouterr()
    assert "cannot express a change of transformer.h.0.attn" in told.err
    assert "--widen-at" in told.err
    assert told.out == ""
    assert os.listdir(folder.parent) == ["model"]


@pytest.mark.parametrize("name", MODELS[:3])
def test_a_trained_expanded_decoder_generates_the_same_with_and_without_a_cache(
    name: str, saved: Callable[..., tuple[Path, Any]]
) -> None:
    folder, model = saved(name)
    again = load(expand(folder, "--deepen", "2", "--widen", "2"), model)
    inputs = {"input_ids": BY_NAME[name].inputs["input_ids"]}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    options: dict[str, Any] = {
        "max_new_tokens": 8,
        "min_new_tokens": 8,
        "do_sample": False,
        "pad_token_id": 0,
    }
    options["decoder_start_token_id"] = 0
    expected = model.generate(**inputs, **options)
    assert torch.equal(again.generate(**inputs, **options), expected)
    disturb(again)
    tokens = [again.generate(**inputs, **options, use_cache=cache) for cache in (True, False)]
    assert torch.equal(*tokens)


def disturb(model: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)


class Copies(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = torch.arange(6) + index + 3
        return {"input_ids": tokens, "labels": tokens}


def test_the_trainer_trains_only_the_new_blocks(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    architecture = BY_NAME["LlamaForCausalLM"]
    model = architecture.build()
    change = esper.deepen(model, 2, sample_input=architecture.inputs)
    change.freeze_old()
    new = set(change.new_names())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    args = transformers.TrainingArguments(
        str(tmp_path), max_steps=2, per_device_train_batch_size=2, learning_rate=0.1, report_to=[]
    )
    transformers.Trainer(model, args, train_dataset=Copies()).train()
    after = model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert changed <= new
    model.save_pretrained(tmp_path / "trained")
    again = load(tmp_path / "trained", model)
    inputs = architecture.inputs
    assert torch.equal(outputs_of(again, inputs), outputs_of(model.eval(), inputs))


def test_only_what_growth_json_names_trains(saved: Callable[..., tuple[Path, Any]]) -> None:
    folder, model = saved("LlamaForCausalLM")
    out = expand(folder, "--widen", "2")
    again, growth = load(out, model), json.loads((out / "growth.json").read_text())
    before = {name: tensor.clone() for name, tensor in again.state_dict().items()}
    news: dict[str, Tensor] = {}
    again.requires_grad_(False)
    for name, axes in growth["new_entries"].items():  # as the documentation shows
        parameter = again.get_parameter(name).requires_grad_()
        is_new = torch.zeros(parameter.shape, dtype=torch.bool)
        for axis, ranges in axes.items():
            for first, end in ranges:
                is_new.movedim(int(axis), 0)[first:end] = True
        parameter.register_hook(lambda gradient, is_new=is_new: gradient * is_new)
        news[name] = is_new
    trained = [parameter for parameter in again.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.1, weight_decay=0.0)
    inputs = BY_NAME["LlamaForCausalLM"].inputs
    for _ in range(3):
        optimizer.zero_grad()
        again(**inputs, labels=inputs["input_ids"]).loss.backward()
        optimizer.step()
    for name, tensor in again.state_dict().items():
        is_new = news.get(name, torch.zeros(tensor.shape, dtype=torch.bool))
        assert torch.equal(tensor[~is_new], before[name][~is_new])
        assert not is_new.any() or (tensor != before[name])[is_new].all()


def test_peft_adapts_an_expanded_checkpoint(
    saved: Callable[..., tuple[Path, Any]], tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    folder, model = saved("LlamaForCausalLM")
    again = load(expand(folder, "--deepen", "2", "--widen", "2"), model)
    config = peft.LoraConfig(target_modules=["q_proj", "up_proj"], r=2)
    adapted = peft.get_peft_model(again, config)
    inputs = BY_NAME["LlamaForCausalLM"].inputs
    assert torch.equal(outputs_of(adapted, inputs), outputs_of(again, inputs))
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        adapted(**inputs, labels=inputs["input_ids"]).loss.backward()
        optimizer.step()
    after = outputs_of(adapted.eval(), inputs)
    adapted.save_pretrained(tmp_path / "adapter")
    assert (after - outputs_of(model, inputs)).abs().max() > 1e-2
    base = load(tmp_path / "larger", model)
    resumed = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    torch.testing.assert_close(outputs_of(resumed, inputs), after, atol=1e-6, rtol=0.0)
    merged = resumed.merge_and_unload()
    torch.testing.assert_close(outputs_of(merged, inputs), after, atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("name", MODELS)
def test_an_expanded_checkpoint_is_exported(
    name: str, saved: Callable[..., tuple[Path, Any]]
) -> None:
    folder, model = saved(name)
    again = load(expand(folder, "--deepen", "1", "--widen", "2"), model)
    inputs: dict[str, Any] = {**BY_NAME[name].inputs}
    if hasattr(again.config, "use_cache"):
        inputs["use_cache"] = False
    program = torch.export.export(again, (), inputs, strict=False)
    expected = outputs_of(model, inputs)
    torch.testing.assert_close(program.module()(**inputs).logits, expected, atol=1e-5, rtol=0.0)


def test_a_kill_leaves_nothing_at_the_new_name(saved: Callable[..., tuple[Path, Any]]) -> None:
    folder, _ = saved("GPT2LMHeadModel")
    out = folder.parent / "larger"
    words = ["expand", str(folder), "--deepen", "1", "--out", str(out)]
    script = (
        "import os, signal\n"
        "from esper.cli.main import main\n"
        "from esper.integrations import checkpoints\n"
        "checkpoints._require_same = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"main({words!r})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True)
    assert done.returncode == -signal.SIGKILL
    assert not out.exists()
    assert len(os.listdir(folder.parent)) == 2
    assert main(words) == 0
    assert sorted(os.listdir(folder.parent)) == ["larger", "model"]


def test_what_loads_as_something_else_is_not_kept(
    saved: Callable[..., tuple[Path, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, _ = saved("GPT2LMHeadModel")
    save = transformers.GPT2LMHeadModel.save_pretrained

    def save_another(model: Any, *given: Any, **options: Any) -> None:
        disturb(model.transformer.h[0])
        save(model, *given, **options)
        disturb(model.transformer.h[0])

    monkeypatch.setattr(transformers.GPT2LMHeadModel, "save_pretrained", save_another)
    words = ["expand", str(folder), "--deepen", "1", "--out", str(folder.parent / "larger")]
    assert main(words) == 2
    assert "is loaded with another 'transformer.h.0." in capsys.readouterr().err
    assert os.listdir(folder.parent) == ["model"]


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda each: each.model)
def test_an_input_is_made_from_the_configuration(architecture: Any) -> None:
    model = architecture.build()
    inputs = find_sample_input(model)
    assert inputs.keys() == architecture.inputs.keys()
    assert outputs_of(model, inputs).isfinite().any()


def test_what_is_left_alone_comes_with_the_reason_of_its_configuration(
    saved: Callable[..., tuple[Path, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, model = saved("LlamaForCausalLM")
    n_heads = round(1.5 * model.config.num_attention_heads)
    assert main(["expand", str(folder), "--widen", "1.5", "--dry-run"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"self_attn (The hidden size ({model.config.hidden_size}) is not a multiple" in printed
    assert f"attention heads ({n_heads}))." in printed
