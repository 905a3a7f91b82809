"""Architectures of Transformers at tiny sizes, and what becomes of each if it is grown."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import transformers
from torch import Tensor, nn

import esper
from esper.errors import SurgeryError

Family = Literal[
    "decoder",
    "encoder",
    "encoder-decoder",
    "vision",
    "audio",
    "text and images",
    "state space",
    "mixture of experts",
]
Inputs = dict[str, Tensor]
Sizes = dict[str, Any]

TOLERANCE = 1e-5
"""Largest difference of outputs that counts as none."""
NOISE = 0.1
"""Added to what is new before a model is saved, so that it has an effect when it is loaded."""
MAX_REASON = 220
HEADS = "(heads)"
"""Stands behind a place in the table whose units are attention heads."""

_DRAWN = torch.Generator().manual_seed(0)
TOKENS = torch.randint(3, 50, (2, 6), generator=_DRAWN)
TEXT = {"input_ids": TOKENS}
PAIR = {"input_ids": TOKENS, "decoder_input_ids": TOKENS[:, :4]}
IMAGE = {"pixel_values": torch.randn(2, 3, 32, 32, generator=_DRAWN)}
LARGER_IMAGE = {"pixel_values": torch.randn(2, 3, 64, 64, generator=_DRAWN)}
SOUND = {"input_values": torch.randn(2, 800, generator=_DRAWN)}
SPECTRUM = {
    "input_features": torch.randn(2, 8, 40, generator=_DRAWN),
    "decoder_input_ids": TOKENS[:, :4],
}

VOCABULARY: Sizes = {"vocab_size": 50}
SPECIAL: Sizes = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BLOCKS: Sizes = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
ENCODER: Sizes = {**VOCABULARY, **BLOCKS}
DECODER: Sizes = {**ENCODER, **SPECIAL, "num_key_value_heads": 2}
GPT: Sizes = {**VOCABULARY, "n_embd": 16, "n_layer": 3, "n_head": 4}
EXPERTS: Sizes = {**DECODER, "num_experts_per_tok": 2}
STATES: Sizes = {**VOCABULARY, "hidden_size": 16, "num_hidden_layers": 3, "state_size": 4}
STACKS: Sizes = {
    "d_model": 16,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20,
}
PATCHES: Sizes = {**BLOCKS, "image_size": 32, "patch_size": 8}
WAVES: Sizes = {
    **ENCODER,
    "conv_dim": (8, 8),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
STAGES: Sizes = {"hidden_sizes": [8, 16], "depths": [2, 2]}


@dataclass(frozen=True)
class Architecture:
    """A class of models, and the configuration of a tiny one."""

    model: str
    family: Family
    sizes: Sizes
    inputs: Inputs = field(default_factory=lambda: TEXT)
    config: str = ""
    """Class of the configuration, if the name of the model does not say it."""

    def build(self) -> Any:
        """Return a model with fixed weights."""
        cls = getattr(transformers, self.model)
        name = self.config or cls.config_class.__name__
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return cls(getattr(transformers, name)(**copy.deepcopy(self.sizes))).eval()


ARCHITECTURES: tuple[Architecture, ...] = (
    *(
        Architecture(f"{name}ForCausalLM", "decoder", DECODER)
        for name in (
            "Llama",
            "Mistral",
            "Qwen2",
            "Qwen3",
            "Gemma",
            "Gemma2",
            "Phi",
            "Phi3",
            "Olmo",
            "Olmo2",
            "StableLm",
            "Starcoder2",
            "Cohere",
            "Granite",
            "SmolLM3",
            "Glm",
            "Glm4",
            "Cohere2",
            "Nemotron",
            "Lfm2",
        )
    ),
    Architecture(
        "Gemma3ForCausalLM", "decoder", {**DECODER, "head_dim": 4}, config="Gemma3TextConfig"
    ),
    Architecture("GPT2LMHeadModel", "decoder", GPT),
    Architecture("GPTNeoXForCausalLM", "decoder", ENCODER),
    Architecture(
        "GPTNeoForCausalLM",
        "decoder",
        {
            **VOCABULARY,
            **SPECIAL,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_layers": 4,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 2]],
        },
    ),
    Architecture("GPTJForCausalLM", "decoder", {**GPT, **SPECIAL, "rotary_dim": 4}),
    Architecture("GPTBigCodeForCausalLM", "decoder", {**GPT, **SPECIAL}),
    Architecture(
        "OPTForCausalLM",
        "decoder",
        {**ENCODER, "ffn_dim": 24, "word_embed_proj_dim": 16},
    ),
    Architecture(
        "BloomForCausalLM", "decoder", {**VOCABULARY, "hidden_size": 16, "n_layer": 3, "n_head": 4}
    ),
    Architecture("FalconForCausalLM", "decoder", ENCODER),
    Architecture(
        "MptForCausalLM", "decoder", {**VOCABULARY, "d_model": 16, "n_layers": 3, "n_heads": 4}
    ),
    Architecture(
        "Qwen3MoeForCausalLM",
        "mixture of experts",
        {**EXPERTS, "num_experts": 4, "moe_intermediate_size": 24},
    ),
    Architecture("MixtralForCausalLM", "mixture of experts", {**EXPERTS, "num_local_experts": 4}),
    Architecture("OlmoeForCausalLM", "mixture of experts", {**EXPERTS, "num_experts": 4}),
    *(
        Architecture(
            f"{name}ForCausalLM",
            "mixture of experts",
            {**EXPERTS, "num_local_experts": 4, "head_dim": 4},
        )
        for name in ("GraniteMoe", "GptOss")
    ),
    Architecture("MambaForCausalLM", "state space", STATES),
    Architecture(
        "Mamba2ForCausalLM", "state space", {**STATES, "num_heads": 8, "head_dim": 4, "n_groups": 1}
    ),
    Architecture(
        "RwkvForCausalLM",
        "state space",
        {
            **VOCABULARY,
            "hidden_size": 16,
            "attention_hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 3,
        },
    ),
    *(
        Architecture(f"{name}ForSequenceClassification", "encoder", ENCODER)
        for name in ("Bert", "Roberta", "Electra", "Camembert", "MPNet", "Ernie", "DebertaV2")
    ),
    Architecture(
        "DistilBertForSequenceClassification",
        "encoder",
        {**VOCABULARY, "dim": 16, "hidden_dim": 24, "n_layers": 3, "n_heads": 4},
    ),
    Architecture("AlbertForSequenceClassification", "encoder", {**ENCODER, "embedding_size": 8}),
    Architecture(
        "ModernBertForMaskedLM",
        "encoder",
        {**ENCODER, **SPECIAL, "cls_token_id": 1, "sep_token_id": 2},
    ),
    *(
        Architecture(
            f"{name}ForConditionalGeneration",
            "encoder-decoder",
            {
                **VOCABULARY,
                "d_model": 16,
                "d_ff": 24,
                "num_layers": 3,
                "num_decoder_layers": 2,
                "num_heads": 4,
                "d_kv": 4,
            },
            PAIR,
        )
        for name in ("T5", "UMT5")
    ),
    Architecture("BartForConditionalGeneration", "encoder-decoder", {**VOCABULARY, **STACKS}, PAIR),
    Architecture(
        "PegasusForConditionalGeneration", "encoder-decoder", {**VOCABULARY, **STACKS}, PAIR
    ),
    *(
        Architecture(f"{name}ForImageClassification", "vision", PATCHES, IMAGE)
        for name in ("ViT", "DeiT", "Beit")
    ),
    Architecture("SiglipVisionModel", "vision", PATCHES, IMAGE),
    *(
        Architecture(
            f"{name}ForImageClassification",
            "vision",
            {key: size for key, size in PATCHES.items() if key != "intermediate_size"},
            IMAGE,
        )
        for name in ("Dinov2", "Dinov2WithRegisters")
    ),
    Architecture(
        "SwinForImageClassification",
        "vision",
        {
            "embed_dim": 8,
            "depths": [2, 2],
            "num_heads": [2, 2],
            "image_size": 32,
            "patch_size": 2,
            "window_size": 4,
        },
        IMAGE,
    ),
    Architecture("ConvNextForImageClassification", "vision", {**STAGES, "num_stages": 2}, IMAGE),
    Architecture(
        "ResNetForImageClassification",
        "vision",
        {**STAGES, "embedding_size": 8, "layer_type": "basic"},
        IMAGE,
    ),
    Architecture(
        "SegformerForImageClassification",
        "vision",
        {
            **STAGES,
            "num_encoder_blocks": 2,
            "num_attention_heads": [1, 2],
            "sr_ratios": [2, 1],
            "decoder_hidden_size": 8,
            "patch_sizes": [3, 3],
            "strides": [2, 2],
            "mlp_ratios": [2, 2],
        },
        IMAGE,
    ),
    Architecture(
        "MobileViTForImageClassification",
        "vision",
        {
            "hidden_sizes": [16, 16, 16],
            "neck_hidden_sizes": [8, 8, 8, 16, 16, 16, 16],
            "image_size": 64,
            "num_attention_heads": 2,
        },
        LARGER_IMAGE,
    ),
    Architecture(
        "ASTForAudioClassification",
        "audio",
        {
            **BLOCKS,
            "num_mel_bins": 16,
            "max_length": 32,
            "patch_size": 8,
            "frequency_stride": 8,
            "time_stride": 8,
        },
        {"input_values": torch.randn(2, 32, 16, generator=_DRAWN)},
    ),
    Architecture("Wav2Vec2ForCTC", "audio", WAVES, SOUND),
    Architecture("HubertForCTC", "audio", WAVES, SOUND),
    Architecture(
        "WhisperForConditionalGeneration",
        "audio",
        {
            **VOCABULARY,
            **STACKS,
            **SPECIAL,
            "num_mel_bins": 8,
            "max_source_positions": 20,
            "max_target_positions": 16,
            "decoder_start_token_id": 1,
        },
        SPECTRUM,
    ),
    Architecture(
        "CLIPModel",
        "text and images",
        {
            "text_config": {**ENCODER, "eos_token_id": 2},
            "vision_config": PATCHES,
            "projection_dim": 8,
        },
        {**TEXT, **IMAGE},
    ),
)


@dataclass(frozen=True)
class Outcome:
    """What became of one change of a model."""

    places: tuple[str, ...] = ()
    """What grew, as it stands in the table."""
    reason: str = ""
    """Why nothing did."""


def outputs_of(model: nn.Module, inputs: Inputs) -> Tensor:
    with torch.no_grad():
        result: Any = model(**inputs)
    return result.logits if hasattr(result, "logits") else result[0]


def try_change(
    architecture: Architecture, change: Callable[[nn.Module, Inputs], esper.Change]
) -> Outcome:
    """Change a model, save it and load it again.

    Raises:
        AssertionError: If its outputs change, or it is loaded as something else.
    """
    model, inputs = architecture.build(), architecture.inputs
    before = outputs_of(model, inputs)
    try:
        changed = change(model, inputs)
    except SurgeryError as error:
        assert torch.equal(outputs_of(model, inputs), before)
        return Outcome(reason=_short(str(error)))
    torch.testing.assert_close(outputs_of(model, inputs), before, atol=TOLERANCE, rtol=0.0)
    generator = torch.Generator().manual_seed(1)
    for parameter in changed.new_parameters():
        parameter.data += NOISE * torch.randn(parameter.shape, generator=generator)
    after = outputs_of(model, inputs)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again = type(model).from_pretrained(folder).eval()
    torch.testing.assert_close(outputs_of(again, inputs), after, atol=TOLERANCE, rtol=0.0)
    heads = {True: f" {HEADS}", False: ""}
    return Outcome(
        places=tuple(f"`{row.place}`{heads[row.unit == 'heads']}" for row in changed.places)
    )


def try_deepening(architecture: Architecture) -> Outcome:
    return try_change(architecture, lambda model, x: esper.deepen(model, 2, sample_input=x))


def try_widening(architecture: Architecture) -> Outcome:
    def widen(model: nn.Module, x: Inputs) -> esper.Change:
        generator = torch.Generator().manual_seed(0)
        return esper.widen(model, 2.0, sample_input=x, generator=generator)

    return try_change(architecture, widen)


def row_of(architecture: Architecture, deepened: Outcome, widened: Outcome) -> str:
    """Return the row of the table in ``docs/architectures.md``."""
    cells = (f"`{architecture.model}`", architecture.family, _cell(deepened), _cell(widened))
    return f"| {' | '.join(cells)} |"


def counts_of(n: int, n_deepened: int, n_widened: int, n_heads: int) -> str:
    """Return the sentence above the table."""
    return (
        f"Of {n} architectures, {n_deepened} are deepened and {n_widened} are widened, "
        f"{n_heads} of them also in attention heads."
    )


def tables(found: Iterable[tuple[Architecture, Outcome, Outcome]]) -> str:
    """Return what ``docs/architectures.md`` says about all architectures."""
    rows = list(found)
    n_deepened = sum(bool(deepened.places) for _, deepened, _ in rows)
    n_widened = sum(bool(widened.places) for _, _, widened in rows)
    n_heads = sum(HEADS in " ".join(widened.places) for _, _, widened in rows)
    lines = [
        counts_of(len(rows), n_deepened, n_widened, n_heads),
        "",
        "| architecture | family | deepened | widened |",
        "|---|---|---|---|",
        *(row_of(*row) for row in rows),
        "",
    ]
    return "\n".join(lines)


def _cell(outcome: Outcome) -> str:
    if outcome.reason:
        return f"**no:** {outcome.reason.replace('|', '/')}"
    return ", ".join(outcome.places)


def _short(text: str) -> str:
    line = " ".join(text.split()).replace("*", "\\*")
    return line if len(line) <= MAX_REASON else f"{line[: MAX_REASON - 3]}..."
