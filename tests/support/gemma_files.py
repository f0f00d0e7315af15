"""The files of a checkpoint with Gemma 4's special tokens: DiffusionGemma's architecture without weights, three ends of
text, a tokenizer that begins each prompt, and a chat template in its markup."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from tests.support.tiny_model import write_tiny_model

MARKUP = (
    *("<eos>", "<bos>", "<|turn>", "<turn|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>"),
    *("<|tool_response>", "<tool_response|>", '<|"|>', "<|channel>", "<channel|>", "<|think|>"),
)
ENDS = ("<eos>", "<turn|>", "<|tool_response>")
CANVAS = 16
LAYER_SIZES = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 12,
    "num_experts": 8,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
    "rms_norm_eps": 1e-6,
}
TEMPLATE = """
{{- bos_token -}}
{%- if enable_thinking %}<|think|>{% endif -%}
{%- for tool in tools or [] %}<|tool>declaration:{{ tool.function.name }}<tool|>{% endfor -%}
{%- for message in messages -%}
<|turn>{{ 'model' if message.role == 'assistant' else message.role }}
{{ message.content.split('<channel|>')[-1] }}
{%- for call in message.tool_calls or [] -%}
<|tool_call>call:{{ call.function.name }}{
{%- for key, value in call.function.arguments | dictsort %}{{ key }}:<|"|>{{ value }}<|"|>{% endfor %}}<tool_call|>
{%- endfor %}<turn|>
{% endfor -%}
{%- if add_generation_prompt %}<|turn>model
{% endif -%}
"""


def write_gemma_files(directory: Path) -> Path:
    """Write the files into `directory`. Returns: the directory."""
    write_tiny_model(directory)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in MARKUP])
    ids = {token: tokenizer.token_to_id(token) for token in MARKUP}
    begin = {"single": "<bos> $A", "pair": None, "special_tokens": [("<bos>", ids["<bos>"])]}
    tokenizer.post_processor = TemplateProcessing(**begin)
    tokenizer.save(str(directory / "tokenizer.json"))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>"}
    config = {
        "architectures": ["DiffusionGemmaForBlockDiffusion"],
        "model_type": "diffusion_gemma",
        "canvas_length": CANVAS,
        "eos_token_id": [ids[token] for token in ENDS],
        "text_config": {
            "vocab_size": tokenizer.get_vocab_size(),
            "max_position_embeddings": 4096,
            "eos_token_id": ids["<eos>"],
            **LAYER_SIZES,
        },
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer_config.json").write_text(json.dumps(named))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory
