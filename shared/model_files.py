"""Where a model's files are: a directory, or the id of a public repository, which is then fetched."""

import re
from pathlib import Path

from shared.errors import BadInput

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
TEXT_FILES = ("*.json", "*.txt", "*.jinja", "*.model")  # configuration and tokenizer; never code
WEIGHTS = "*.safetensors"  # never pickles


def find_model(model: str, *, weights: bool = True) -> Path:
    """The directory of `model`. A hub id such as GSAI-ML/LLaDA-8B-Instruct is fetched, or found in the local cache;
    without its weights if they are not wanted.

    Raises: BadInput, one line, if there is no such directory and nothing can be fetched.
    """
    directory = Path(model)
    if directory.is_dir():
        return directory
    if directory.exists() or not HUB_ID.fullmatch(model):
        raise BadInput(f"no model in {model}: not a directory, nor a hub id such as GSAI-ML/LLaDA-8B-Instruct", "model")
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - slow to import, rarely needed

    wanted = [*TEXT_FILES, WEIGHTS] if weights else list(TEXT_FILES)
    try:
        return Path(snapshot_download(model, allow_patterns=wanted))
    except Exception as error:  # the hub's errors have no base of their own
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise BadInput(f"no directory {model}, and it cannot be fetched as a hub id: {reason}", "model") from None


def default_model_name(model: str) -> str:
    """What clients call a model that is given no name: the last part of its directory or of its hub id."""
    return Path(model).resolve().name
