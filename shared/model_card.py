"""Reads the facts about a model that services need from its config.json."""

import json
from pathlib import Path

from shared.errors import BadInput
from shared.messages.instances import ModelCard
from shared.model_families import block_length_of, max_length_of, usual_edit_threshold, with_defaults


def read_model_card(directory: Path, name: str) -> ModelCard:
    """The card from config.json. Raises: BadInput if the file or a value is missing, or the architecture is not
    supported."""
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read {path}: {error}", field="model") from None
    try:
        config = with_defaults(config)
        return ModelCard(
            name=name,
            max_length=max_length_of(config),
            mask_token_id=int(config["mask_token_id"]),
            eos_token_id=int(config["eos_token_id"]),
            vocab_size=int(config.get("embedding_size") or config["vocab_size"]),
            block_length=block_length_of(config),
            edit_threshold=usual_edit_threshold(config, name),
        )
    except KeyError as error:
        raise BadInput(f"{path} lacks the key {error}", field="model") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise BadInput(f"{path}: {error}", field="model") from None
