"""Nemotron-Labs-Diffusion: Ministral 3's layers. Finished text attends to earlier tokens only, as in an autoregressive
model, and its last token predicts the first one of the next block; a block attends to itself and the text before it.

Source: the published modelling file of NVIDIA's Nemotron-Labs-Diffusion, decoding with a causal context.
"""

from services.worker.model.families.config import ModelConfig, Yarn
from services.worker.model.families.family import QWEN_LAYER_NAMES, Family, RawConfig, qwen_fields, real
from shared.model_families import whole

DEFAULT_BETAS = {"beta_fast": 32, "beta_slow": 1}


def _parse(raw: RawConfig) -> ModelConfig:
    rope, yarn = raw.get("rope_parameters") or {}, None
    if rope.get("rope_type") == "yarn":
        yarn = _yarn(DEFAULT_BETAS | rope)
        raw = {**raw, "rope_parameters": {"rope_theta": rope["rope_theta"]}}
    config = ModelConfig(family="nemotron_labs", **qwen_fields(raw), causal_text=True, yarn=yarn)
    if yarn is not None and rope.get("llama_4_scaling_beta") and config.max_length > yarn.original_length:
        raise ValueError(f"queries are scaled from position {yarn.original_length} on, which is not implemented")
    return config


def _yarn(rope: RawConfig) -> Yarn:
    if rope.get("mscale", 1) != rope.get("mscale_all_dim", 1) or not rope.get("truncate", True):
        raise ValueError("yarn with other values of mscale and mscale_all_dim, or of truncate, is not implemented")
    return Yarn(
        factor=real(rope, "factor"),
        original_length=whole(rope, "original_max_position_embeddings"),
        beta_fast=real(rope, "beta_fast"),
        beta_slow=real(rope, "beta_slow"),
    )


NEMOTRON_LABS = Family(
    architecture="NemotronLabsDiffusionModel",
    required={"attention_bias": False, "hidden_act": "silu", "mlp_bias": False, "sliding_window": None},
    outer_names={"embed": "encoder.embed_tokens", "norm": "encoder.norm", "head": "diffusion_head"},
    layer_prefix="encoder.layers",
    layer_names=QWEN_LAYER_NAMES,
    parse=_parse,
)
