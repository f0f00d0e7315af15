"""Finds a model's files: in a directory, or by downloading a public repository of the Hugging Face hub."""

import re
from pathlib import Path

from shared.errors import BadInput

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
TEXT_FILES = ("*.json", "*.txt", "*.jinja", "*.model")  # configuration and tokenizer; never code
WEIGHTS = "*.safetensors"  # never pickles


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
