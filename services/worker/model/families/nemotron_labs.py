"""Nemotron-Labs-Diffusion: Ministral 3's layers, whose weights have the names of Qwen's. The prompt and finished blocks
are causal, as in an autoregressive model, and their last token predicts the first one of the next block; that block
attends to itself and to all text before it.

Source: the published modelling file of NVIDIA's Nemotron-Labs-Diffusion, run with a causal context.
"""

from services.worker.model.families.config import ModelConfig, Yarn
from services.worker.model.families.family import QWEN_LAYER_NAMES, Family, RawConfig, qwen_fields, real
from shared.model_families import whole

DEFAULT_BETAS = {"beta_fast": 32, "beta_slow": 1}


def _parse(raw: RawConfig) -> ModelConfig:
    rope, yarn = raw.get("rope_parameters") or {}, None
    if rope.get("rope_type") == "yarn":
        yarn = _yarn(DEFAULT_BETAS | rope)
        # The rest of the rotation, without the stretch that `qwen_fields` refuses
        kept = {name: rope[name] for name in ("rope_theta", "partial_rotary_factor") if name in rope}
        raw = {**raw, "rope_parameters": kept}
    config = ModelConfig(family="nemotron_labs", **qwen_fields(raw), causal_text=True, yarn=yarn)
    if yarn is not None and rope.get("llama_4_scaling_beta") and config.max_length > yarn.original_length:
        length = yarn.original_length
        raise ValueError(f"llama_4_scaling_beta scales queries from position {length} on, which is not implemented")
    return config


def _yarn(rope: RawConfig) -> Yarn:
    # Otherwise transformers scales the rotated queries and keys
    is_unscaled = rope.get("mscale") and rope.get("mscale") == rope.get("mscale_all_dim")
    if not is_unscaled or rope.get("attention_factor") not in (None, 1):
        raise ValueError(
            "yarn needs equal mscale and mscale_all_dim, and no attention_factor: others are not implemented"
        )
    if not rope.get("truncate", True):
        raise ValueError("yarn without truncate is not implemented")
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
