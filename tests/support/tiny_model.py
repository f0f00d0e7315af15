"""A model directory in the published layout, small enough for tests: configuration, tokenizer and chat template.

The vocabulary is the 256 bytes and a few special tokens, so that any text encodes to one token per byte. Weights are
optional and random.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL_TOKENS = ("<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>", "<|eot_id|>")
MAX_LENGTH = 512  # tokens, prompt and output together
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def write_tiny_model(directory: Path) -> Path:
    """Write the model into `directory`. Returns: the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = _byte_tokenizer()
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
    config = {
        "architectures": ["LLaDAModelLM"],
        "model_type": "llada",
        "vocab_size": tokenizer.get_vocab_size(),
        "embedding_size": tokenizer.get_vocab_size(),
        "max_sequence_length": MAX_LENGTH,
        "mask_token_id": ids["<|mdm_mask|>"],
        "eos_token_id": ids["<|endoftext|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "n_layers": 2,
        "d_model": 32,
        "n_heads": 4,
        "mlp_hidden_size": 64,
        "rope_theta": 10_000.0,
        "rms_norm_eps": 1e-5,
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|startoftext|>",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "mask_token": "<|mdm_mask|>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_LENGTH,
    }
    tokenizer.save(str(directory / "tokenizer.json"))
    for name, content in (("config.json", config), ("tokenizer_config.json", tokenizer_config)):
        (directory / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    return directory


BLOCK_CAUSAL = {
    "max_position_embeddings": MAX_LENGTH,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-6,
}


def write_tiny_sdar(directory: Path) -> Path:
    """As `write_tiny_model`, of a block-causal family with blocks of 4 tokens. Returns: the directory."""
    return _write_block_causal(directory, {"architectures": ["SDARForCausalLM"], "block_size": 4})


def write_tiny_llada2(directory: Path) -> Path:
    """As `write_tiny_model`, of the family that may change tokens, with blocks of 8. Returns: the directory."""
    llada2 = {
        "architectures": ["LLaDA2MoeModelLM"],
        "block_size": 8,
        "moe_intermediate_size": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_shared_experts": 1,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.5,
    }
    return _write_block_causal(directory, llada2)


def _write_block_causal(directory: Path, family: Mapping[str, object]) -> Path:
    path = write_tiny_model(directory) / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    kept = {key: config[key] for key in ("vocab_size", "mask_token_id", "eos_token_id")}
    path.write_text(json.dumps(kept | BLOCK_CAUSAL | dict(family), indent=1), encoding="utf-8")
    return directory


def write_tiny_weights(directory: Path, seed: int = 0) -> Path:
    """Add random weights to a directory of `write_tiny_model`. Returns: the directory."""
    import torch  # noqa: PLC0415  (seconds to import, and most tests need no weights)

    from services.worker.model.decoder import PackedDecoder  # noqa: PLC0415
    from services.worker.model.families import read_config  # noqa: PLC0415
    from services.worker.model.weights import save  # noqa: PLC0415

    generator = torch.Generator().manual_seed(seed)
    decoder = PackedDecoder(read_config(directory))
    for parameter in decoder.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    save(decoder, directory, torch.float32)
    return directory


def _byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer
