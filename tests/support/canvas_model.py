"""A small model with random weights that denoises canvases, as DiffusionGemma does."""

import json
from pathlib import Path
from typing import Any

import torch

from services.worker.model.canvas_decoder import CanvasDecoder
from services.worker.model.canvas_runner import CanvasRunner, new_runner
from services.worker.model.cpu_layers import pack_for_cpu
from services.worker.model.families import read_config
from services.worker.model.weights import load, new_decoder, save
from tests.support.gemma_files import CANVAS, LAYER_SIZES

SIZES: dict[str, Any] = {
    **LAYER_SIZES,
    "vocab_size": 211,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
}
RULES: dict[str, Any] = {"max_denoising_steps": 8, "eos_token_id": 1}
GAIN = 0.5  # of each layer; with more, rounding errors grow from step to step
SPREAD = 0.6  # of embeddings, so that entropies are neither all 0 nor all high
NORM_OF_KEYS = 0.4


def write_config(directory: Path, rules: dict[str, Any] | None = None, **sizes: Any) -> None:
    """The files of a checkpoint without its weights."""
    config = {
        "architectures": ["DiffusionGemmaForBlockDiffusion"],
        "model_type": "diffusion_gemma",
        "canvas_length": CANVAS,
        "text_config": SIZES | sizes,
        "vision_config": {"model_type": "gemma4_vision", "hidden_size": 16, "num_hidden_layers": 1},  # is not read
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps(RULES | (rules or {})))


def write_canvas_model(directory: Path, seed: int = 0, rules: dict[str, Any] | None = None, **sizes: Any) -> Path:
    """A checkpoint with random weights. Returns: its directory."""
    write_config(directory, rules, **sizes)
    decoder = new_decoder(read_config(directory)).eval()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            own = torch.randn(parameter.shape, generator=random)
            if parameter.ndim == 1:
                own = (1 + 0.2 * own) * (NORM_OF_KEYS if name.endswith(("q_norm.weight", "k_norm.weight")) else 1)
            else:
                own *= SPREAD if name == "embed.weight" else GAIN * parameter.shape[-1] ** -0.5
            parameter.copy_(own)
    save(decoder, directory, torch.float32)
    return directory


def open_canvas_model(directory: Path, cache_tokens: int = 512) -> CanvasRunner:
    decoder = load(directory, torch.float32, "cpu")
    assert isinstance(decoder, CanvasDecoder)
    pack_for_cpu(decoder)
    runner = new_runner(decoder, cache_tokens)
    assert isinstance(runner, CanvasRunner)
    return runner
