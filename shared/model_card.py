"""Reads the facts about a model that services need from its files."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shared.errors import BadInput
from shared.messages.instances import ModelCard
from shared.model_families import (
    block_length_of,
    canvas_steps_of,
    max_length_of,
    refuse_by_name,
    usual_edit_threshold,
    vocab_size_of,
    whole,
    with_defaults,
)
from shared.model_files import read_json, refuse_other_forms


def read_model_card(directory: Path, name: str) -> ModelCard:
    """The card from config.json. Raises: BadInput if the file or a value is missing, or the architecture is not
    supported."""
    return read_card_and_ends(directory, name)[0]


def read_card_and_ends(directory: Path, name: str) -> tuple[ModelCard, list[int]]:
    """The card, and all tokens that end a text by the model's files. Raises: BadInput as `read_model_card`."""
    path = directory / "config.json"
    try:
        with naming(path):
            config = read_model_config(directory)
            refuse_by_name(read_json(path), name)
            ends = config["eos_token_id"]
            card = ModelCard(
                name=name,
                max_length=max_length_of(config),
                vocab_size=vocab_size_of(config),
                mask_token_id=whole(config, "mask_token_id", least=0),
                eos_token_id=ends[0],
                block_length=block_length_of(config),
                edit_threshold=usual_edit_threshold(config, name),
                canvas_steps=canvas_steps_of(config, config["generation"]),
            )
    except ValueError as error:
        raise BadInput(str(error), field="model") from None
    return card, ends


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Raises: ValueError, one line that names the file, for a missing or unusable value of it."""
    try:
        yield
    except KeyError as error:
        raise ValueError(f"{path} lacks the key {error}") from error
    except (AttributeError, TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{path}: {error}") from error


def read_model_config(directory: Path) -> dict[str, Any]:
    """The keys of config.json, with the defaults of its architecture; `eos_token_id` lists all ends of text, and
    `generation` has the keys of generation_config.json. Raises: ValueError, one line, if the file is missing or
    unreadable, the directory has another form of a model, the architecture is not supported, or no file names an
    end."""
    path = directory / "config.json"
    refuse_other_forms(directory)
    config = with_defaults(read_json(path))
    generation = read_json(directory / "generation_config.json")
    return config | {"eos_token_id": _end_ids(directory, config, generation), "generation": generation}


def _end_ids(directory: Path, config: Mapping[str, Any], generation: Mapping[str, Any]) -> list[int]:
    """The ends of text that config.json and generation_config.json name, each a number, a list or null; if neither
    names one, that of the tokenizer. Raises: ValueError if a value is something else, or no file names an end among the
    model's tokens."""
    found: dict[int, None] = {}  # in this order
    for name, values in (
        ("config.json", config.get("eos_token_id")),
        ("generation_config.json", generation.get("eos_token_id")),
    ):
        listed = values if isinstance(values, list) else [values] if values is not None else []
        if not all(type(value) is int and value >= 0 for value in listed):
            raise ValueError(f"eos_token_id of {name} must be a token id, a list of them or null, got {values!r}")
        found |= dict.fromkeys(listed)
    if not found:
        found |= dict.fromkeys(_tokenizer_end(directory))
    if not found:
        raise ValueError("neither config.json nor generation_config.json nor the tokenizer names an end of text")
    size = vocab_size_of(config)
    if not (ends := [end for end in found if end < size]):
        raise ValueError(f"eos_token_id {', '.join(map(str, found))} is outside the {size} embedding rows")
    return ends


def _tokenizer_end(directory: Path) -> list[int]:
    """The end-of-text token that tokenizer_config.json names."""
    named = read_json(directory / "tokenizer_config.json").get("eos_token")
    text = named.get("content") if isinstance(named, Mapping) else named
    added = read_json(directory / "tokenizer.json").get("added_tokens", ())
    return [token["id"] for token in added if text is not None and token.get("content") == text]
