"""Finds a model's files: in a directory, or by downloading a public repository of the Hugging Face hub."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.errors import BadInput

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
TEXT_FILES = ("*.json", "*.txt", "*.jinja", "*.model")  # configuration and tokenizer; never code
WEIGHTS = "*.safetensors"  # never pickles
LLADA2 = "LLaDA2MoeModelLM"
# Block-causal families, with the values that their published files leave out: the defaults of their authors' decoding.
BLOCK_CAUSAL_DEFAULTS: dict[str, dict[str, int]] = {
    "SDARForCausalLM": {"mask_token_id": 151669, "block_size": 4},
    LLADA2: {"mask_token_id": 156895, "eos_token_id": 156892, "block_size": 32},
}
LLADA21_EDIT_THRESHOLD = 0.5  # of its authors' quality mode
DREAM_MAX_LENGTH = 2048  # as its model card states; its `max_position_embeddings` is that of the model it began from


def find_model(model: str, *, weights: bool = True) -> Path:
    """The directory of `model`. A hub id such as GSAI-ML/LLaDA-8B-Instruct is downloaded once, without its weights if
    `weights` is false.

    Raises: BadInput if it is neither a directory nor an available hub id.
    """
    directory = Path(model)
    if directory.is_dir():
        return directory
    if directory.exists() or not HUB_ID.fullmatch(model):
        raise BadInput(
            f"no model in {model}: neither a directory nor a hub id such as GSAI-ML/LLaDA-8B-Instruct", "model"
        )
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - slow to import, rarely needed

    patterns = [*TEXT_FILES, WEIGHTS] if weights else list(TEXT_FILES)
    try:
        return Path(snapshot_download(model, allow_patterns=patterns))
    except Exception as error:  # the hub's errors have no common base class
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise BadInput(f"no directory {model}, and the download by hub id failed: {reason}", "model") from None


def default_model_name(model: str) -> str:
    """The model name in the API if none is configured: the last part of the directory or hub id."""
    return Path(model).resolve().name


def with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of config.json, with the values that its family's published files leave out. Only block-causal families
    have a `block_size`."""
    families = [BLOCK_CAUSAL_DEFAULTS.get(name, {}) for name in config.get("architectures") or ()]
    defaults = next((family for family in families if family), {})
    return defaults | {key: value for key, value in config.items() if key not in defaults or value is not None}


def block_length_of(config: Mapping[str, Any]) -> int:
    """The usual block length of a block-causal checkpoint; 0 for others. `config` has its defaults."""
    is_block_causal = any(name in BLOCK_CAUSAL_DEFAULTS for name in config.get("architectures") or ())
    return int(config["block_size"]) if is_block_causal else 0


def usual_edit_threshold(config: Mapping[str, Any], name: str) -> float | None:
    """The usual edit threshold of a checkpoint whose decoding may change tokens of the block (1: none changes); None:
    no decoding of its family does. The files of LLaDA2.0 and LLaDA2.1 are alike; only the names differ."""
    if LLADA2 not in (config.get("architectures") or ()):
        return None
    return LLADA21_EDIT_THRESHOLD if "llada2.1" in name.lower() else 1.0


def max_length_of(config: Mapping[str, Any]) -> int:
    """The most tokens of prompt and output together, from config.json. Raises: KeyError if it has no limit."""
    if config.get("max_sequence_length"):
        return int(config["max_sequence_length"])
    limit = int(config["max_position_embeddings"])
    return min(limit, DREAM_MAX_LENGTH) if "DreamModel" in (config.get("architectures") or []) else limit
