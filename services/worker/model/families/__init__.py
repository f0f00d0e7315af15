"""The supported families of models, chosen by the architecture that `config.json` names.

Every shape, id, epsilon and rope base is read from the file; settings that the decoder does not implement are rejected.
"""

from pathlib import Path

from services.worker.model.families.a2d import A2D_QWEN2, A2D_QWEN3
from services.worker.model.families.config import ModelConfig
from services.worker.model.families.diffusion_gemma import DIFFUSION_GEMMA
from services.worker.model.families.dream import DREAM
from services.worker.model.families.family import Family, RawConfig
from services.worker.model.families.fast_dllm import FAST_DLLM
from services.worker.model.families.llada import LLADA
from services.worker.model.families.llada2 import LLADA2
from services.worker.model.families.llada_moe import LLADA_MOE
from services.worker.model.families.nemotron_labs import NEMOTRON_LABS
from services.worker.model.families.sdar import SDAR, SDAR_MOE
from services.worker.model.families.stable_diffcoder import STABLE_DIFFCODER
from shared.model_families import ARCHITECTURES, architecture_of, with_defaults
from shared.model_files import naming, read_model_config

__all__ = ["FAMILIES", "ModelConfig", "parse_config", "read_config"]

FAMILIES: dict[str, Family] = {
    "llada": LLADA,
    "dream": DREAM,
    "sdar": SDAR,
    "llada2": LLADA2,
    "diffusion_gemma": DIFFUSION_GEMMA,
    "sdar_moe": SDAR_MOE,
    "llada_moe": LLADA_MOE,
    "stable_diffcoder": STABLE_DIFFCODER,
    "fast_dllm": FAST_DLLM,
    "nemotron_labs": NEMOTRON_LABS,
    "a2d_qwen3": A2D_QWEN3,
    "a2d_qwen2": A2D_QWEN2,
}

QUANTIZED = ("quantization_config", "quantization", "compression_config")  # the keys of transformers, MLX, and others


def read_config(directory: Path) -> ModelConfig:
    """Read `config.json` of a model directory.

    Raises: BadInput, one line, if the file is missing or unreadable, names an unknown architecture, lacks a key, or
    has a setting that the decoder does not implement.
    """
    with naming(directory / "config.json"):
        raw = read_model_config(directory)
        return parse_config({**raw, "eos_token_id": raw["eos_token_id"][0]})


def parse_config(raw: RawConfig) -> ModelConfig:
    """The ModelConfig of the published keys. Raises: ValueError where `read_config` refuses; KeyError for a missing
    key."""
    config, architecture = with_defaults(raw), architecture_of(raw)
    if quantized := next(filter(config.get, QUANTIZED), None):
        raise ValueError(f"{quantized}: quantized checkpoints are not supported, only bfloat16 and float32 ones")
    family = next(each for each in FAMILIES.values() if ARCHITECTURES[each.architecture] is architecture)
    given = {**config.get("generation", {}), **config}
    for key, value in family.required.items():
        if given.get(key, value) != value:
            accepted = "models without it are" if value is None else f"{value!r} is"
            raise ValueError(f"{key} is {given[key]!r}, only {accepted} implemented")
    return family.parse(config)
