"""Inputs that a Transformers model can be run with, made from its configuration."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from esper.errors import SavedModelError, summarize_error
from esper.growth.dry_run import call_model, tensors_in
from esper.modes import evaluation_mode

Inputs = dict[str, Tensor]

N_TOKENS, N_DECODER_TOKENS = 9, 5
IMAGE_SIZES, N_SAMPLES, N_FRAMES = (64, 224), 4000, 64
"""Sizes of images and audio where a configuration does not say them."""
MAX_IDS = 512
"""Token ids are drawn from the first ones of a vocabulary."""


def find_sample_input(model: Any) -> Inputs:
    """Return the first input that a model runs with.

    Raises:
        SavedModelError: If it runs with none.
    """
    problem = "no input of its kind is known"
    for inputs in _candidates(model):
        try:
            outputs = run_model(model, inputs)
        except Exception as error:  # whatever a model raises for an input that it can't take
            problem = summarize_error(error)
            continue
        if outputs and all(bool(torch.isfinite(output).any()) for output in outputs):
            return inputs
    kind = type(model).__name__
    raise SavedModelError(
        f"no input could be made for {kind} ({problem}); load it in Python and call esper.deepen "
        "or esper.widen with a sample_input of your own."
    )


@torch.no_grad()
def run_model(model: Any, inputs: Inputs) -> list[Tensor]:
    """Return copies of a model's outputs in evaluation mode."""
    with evaluation_mode(model):
        return [output.clone() for output in tensors_in(call_model(model, inputs))]


def _candidates(model: Any) -> Iterator[Inputs]:
    config = model.config
    main = str(model.main_input_name)
    accepted = inspect.signature(model.forward).parameters
    generator = torch.Generator().manual_seed(0)
    for batch in (2, 1):  # models without a padding token classify one sequence at a time
        others: Inputs = {}
        if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in accepted:
            others["decoder_input_ids"] = _tokens(config, batch, N_DECODER_TOKENS, generator)
        for tensor in _main_inputs(main, config, batch, generator):
            inputs = {main: tensor.to(model.dtype if tensor.is_floating_point() else None)}
            if main != "input_ids" and _is_dual(config):
                inputs["input_ids"] = _tokens(config, batch, N_TOKENS, generator)
            yield {**inputs, **others}
            if main == "input_ids" and "pixel_values" in accepted:
                for image in _images(config, batch, generator):
                    yield {**inputs, **others, "pixel_values": image.to(model.dtype)}


def _main_inputs(
    name: str, config: Any, batch: int, generator: torch.Generator
) -> Iterator[Tensor]:
    if name == "input_ids":
        yield _tokens(config, batch, N_TOKENS, generator)
    elif name == "pixel_values":
        yield from _images(config, batch, generator)
    elif name in ("input_values", "input_features"):
        n_bins = _setting(config, "num_mel_bins", "input_feat_per_channel", "feature_size")
        if n_bins is not None:
            n_frames = _setting(config, "max_length") or N_FRAMES
            positions = getattr(config, "max_source_positions", None)
            if positions is not None:  # Whisper halves the frames of a fixed window
                yield torch.randn(batch, n_bins, 2 * positions, generator=generator)
            yield torch.randn(batch, n_frames, n_bins, generator=generator)
        yield torch.randn(batch, N_SAMPLES, generator=generator)
        yield torch.randn(batch, 4 * N_SAMPLES, generator=generator)


def _tokens(config: Any, batch: int, length: int, generator: torch.Generator) -> Tensor:
    """Return token ids ``[batch, length]`` without special ones, except an end at the end."""
    n_ids = min(_setting(config, "vocab_size") or MAX_IDS, MAX_IDS)
    special = {
        value
        for part in _parts(config)
        for name, value in _values(part).items()
        if name.endswith("_token_id") and isinstance(value, int)
    }
    allowed = torch.tensor([k for k in range(n_ids) if k not in special] or [0])
    longest = _setting(config, "max_position_embeddings", "n_positions") or length
    length = max(1, min(length, longest))
    chosen = torch.randint(len(allowed), (batch, length), generator=generator)
    ids = allowed[chosen]
    end = _setting(config, "eos_token_id")
    if isinstance(end, int) and 0 <= end < (_setting(config, "vocab_size") or 0):
        ids[:, -1] = end
    return ids


def _images(config: Any, batch: int, generator: torch.Generator) -> Iterator[Tensor]:
    size = _setting(config, "image_size")
    channels = _setting(config, "num_channels", "in_channels", "in_chans") or 3
    sizes = [size] if size is not None else list(IMAGE_SIZES)
    for each in sizes:
        pair = tuple(cast("Any", each)) if isinstance(each, (list, tuple)) else (each, each)
        yield torch.randn(batch, channels, *pair, generator=generator)


def _is_dual(config: Any) -> bool:
    """Return whether a model takes text and images both, as CLIP does."""
    return all(hasattr(config, name) for name in ("text_config", "vision_config"))


def _setting(config: Any, *names: str) -> Any:
    """Return a setting of a configuration, or of one inside it; None if none has it."""
    for part in _parts(config):
        for name in names:
            value = getattr(part, name, None)
            if value is not None:
                return value
    return None


def _parts(config: Any) -> list[Any]:
    """Return a configuration and those inside it."""
    values = _values(config).values()
    inner = [each for each in values if callable(getattr(each, "to_dict", None))]
    return [config, *(part for each in inner for part in _parts(each))]


def _values(config: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", vars(config))
