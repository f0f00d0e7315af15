"""The demo models' dimensions, initial weights, and attention over rows of one length."""

import math

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.demo_model.tokenizer import EOS, MASK, number_tokens
from services.worker.model.decoder import Attend, PackedDecoder
from services.worker.model.families import parse_config

ROW_MULTIPLE = 64  # of the embedding's rows, so that the head can be split among GPUs
NUMBER_PERIODS = (2, 3, 4, 5, 10, 20, 50, 100, 200)
INIT_STD = 0.05


def published_config(tokenizer: Tokenizer) -> dict[str, object]:
    """The `config.json` of the demo model, in LLaDA's keys."""
    rows = -(-tokenizer.get_vocab_size() // ROW_MULTIPLE) * ROW_MULTIPLE
    eos_id = tokenizer.token_to_id(EOS)
    return {
        "architectures": ["LLaDAModelLM"],
        "model_type": "llada",
        "activation_type": "silu",
        "block_type": "llama",
        "d_model": 256,
        "embedding_size": rows,
        "eos_token_id": eos_id,
        "include_bias": False,
        "include_qkv_bias": False,
        "layer_norm_type": "rms",
        "mask_token_id": tokenizer.token_to_id(MASK),
        "max_sequence_length": 512,
        "mlp_hidden_size": 640,
        "n_heads": 4,
        "n_kv_heads": 4,
        "n_layers": 4,
        "pad_token_id": eos_id,
        "rms_norm_eps": 1e-5,
        "rope": True,
        "rope_full_precision": True,
        "rope_theta": 10000.0,
        "torch_dtype": "bfloat16",
        "vocab_size": rows,
        "weight_tying": False,
    }


def block_config(tokenizer: Tokenizer, block_length: int) -> dict[str, object]:
    """The `config.json` of the block-causal demo model, in SDAR's keys."""
    return {
        "architectures": ["SDARForCausalLM"],
        "model_type": "sdar",
        "attention_bias": False,
        "block_size": block_length,
        "eos_token_id": tokenizer.token_to_id(EOS),
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 256,
        "intermediate_size": 640,
        "mask_token_id": tokenizer.token_to_id(MASK),
        "max_position_embeddings": 2048,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "pad_token_id": tokenizer.token_to_id(EOS),
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
        "vocab_size": -(-tokenizer.get_vocab_size() // ROW_MULTIPLE) * ROW_MULTIPLE,
    }


def new_decoder(tokenizer: Tokenizer, seed: int, block_length: int = 0) -> PackedDecoder:
    """A decoder with random initial weights; numbers start as points on circles of several periods.

    `block_length`: that of a block-causal decoder; 0: attention in both directions.
    """
    published = block_config(tokenizer, block_length) if block_length else published_config(tokenizer)
    config = parse_config(published)
    decoder = PackedDecoder(config)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in decoder.named_parameters():
        if parameter.ndim == 2:
            std = INIT_STD if name.startswith(("embed", "head")) else config.width**-0.5
            if name.endswith(("attn_out.weight", "down.weight")):
                std /= math.sqrt(2 * config.num_layers)
            nn.init.normal_(parameter, std=std, generator=generator)
    place_numbers(decoder, number_tokens(tokenizer), generator)
    return decoder


@torch.no_grad()
def place_numbers(decoder: PackedDecoder, tokens: dict[int, int], generator: torch.Generator) -> None:
    """Initialize the embedding and head rows of the numbers so that near and congruent numbers are similar.

    Addition is then a rotation on every circle, which a small network learns much faster than a table of sums.
    """
    numbers = torch.tensor(list(tokens), dtype=torch.float32)
    angles = 2 * math.pi * numbers.unsqueeze(1) / torch.tensor(NUMBER_PERIODS)  # [N, periods]
    features = torch.cat((angles.cos(), angles.sin(), torch.ones(len(numbers), 1)), dim=1)  # [N, 2 periods + 1]
    ids = list(tokens.values())
    for matrix in (decoder.embed.weight, decoder.head_weight):
        directions = torch.randn(features.shape[1], decoder.config.width, generator=generator)
        matrix[ids] = INIT_STD * features @ directions / math.sqrt(len(NUMBER_PERIODS) + 1)


def attend_rows(num_rows: int, allowed: Tensor | None = None) -> Attend:
    """Attention within each of `num_rows` packed rows of one length, to the allowed keys only.

    Shapes: allowed bool [B, L, L]; the function takes q [B * L, H, D] and kv [B * L, 2 K, D], and returns
    [B * L, H, D].
    """
    mask = None if allowed is None else allowed.unsqueeze(1)

    def attend(layer: int, q: Tensor, kv: Tensor) -> Tensor:
        del layer
        q, k, v = (x.view(num_rows, -1, *x.shape[1:]).transpose(1, 2) for x in (q, *kv.chunk(2, dim=1)))  # [B, H, L, D]
        mixed = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=q.shape[1] != k.shape[1])
        return mixed.transpose(1, 2).flatten(0, 1)

    return attend


def hidden_rows(
    decoder: PackedDecoder, tokens: Tensor, positions: Tensor | None = None, allowed: Tensor | None = None
) -> Tensor:
    """Run rows of one length through the decoder; without `positions`, they count from 0.

    Shapes: tokens and positions [B, L], allowed bool [B, L, L] -> hidden [B * L, W].
    """
    num_rows, length = tokens.shape
    at = torch.arange(length).repeat(num_rows) if positions is None else positions.flatten()  # [B * L]
    hidden: Tensor = decoder(tokens.flatten(), at, attend_rows(num_rows, allowed))
    return hidden
