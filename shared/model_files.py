"""Where a model's files are: a directory, or the id of a public repository, which is then fetched."""

import re
from pathlib import Path

from shared.errors import BadInput

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
WANTED = ("*.json", "*.safetensors", "*.txt", "*.jinja", "*.model")  # never code, never pickles


def find_model(model: str) -> Path:
    """The directory of `model`. A hub id such as GSAI-ML/LLaDA-8B-Instruct is fetched, or found in the local cache.

    Raises: BadInput, one line, if there is no such directory and nothing can be fetched.
    """
    directory = Path(model)
    if directory.is_dir():
        return directory
    if directory.exists() or not HUB_ID.fullmatch(model):
        raise BadInput(f"no model in {model}: not a directory, nor a hub id such as GSAI-ML/LLaDA-8B-Instruct", "model")
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - slow to import, rarely needed

    try:
        return Path(snapshot_download(model, allow_patterns=list(WANTED)))
    except Exception as error:  # the hub's errors have no base of their own
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise BadInput(f"no directory {model}, and it cannot be fetched as a hub id: {reason}", "model") from None
