"""A small decoder with random weights, confident enough that thresholds matter."""

from collections.abc import Mapping
from typing import Any

import torch

from services.worker.model.decoder import PackedDecoder
from services.worker.model.families import parse_config
from tests.support.tiny_model import BLOCK_CAUSAL

MASK_ID = 60
LLADA = {
    "architectures": ["LLaDAModelLM"],
    "vocab_size": 64,
    "max_sequence_length": 128,
    "mask_token_id": MASK_ID,
    "eos_token_id": 1,
    "n_layers": 2,
    "d_model": 32,
    "n_heads": 4,
    "mlp_hidden_size": 64,
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-5,
}
SDAR = BLOCK_CAUSAL | {
    "architectures": ["SDARForCausalLM"],
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "mask_token_id": MASK_ID,
    "eos_token_id": 1,
}

FAST_DLLM = SDAR | {"architectures": ["Fast_dLLM_QwenForCausalLM"]}
NEMOTRON_LABS = SDAR | {"architectures": ["NemotronLabsDiffusionModel"]}


def random_decoder(dtype: torch.dtype = torch.float32, config: Mapping[str, Any] = LLADA) -> PackedDecoder:
    """A decoder with the same weights at each call. `config`: as a config.json."""
    torch.manual_seed(0)
    decoder = PackedDecoder(parse_config(config)).eval()
    for parameter in decoder.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    return decoder.to(dtype)
