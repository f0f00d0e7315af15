"""Finds a model's files, in a directory or by downloading a public repository of the Hugging Face hub, and reads the
facts that services need from them."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shared.errors import BadInput
from shared.messages.instances import ModelCard
from shared.model_families import (
    architecture_of,
    block_length_of,
    canvas_steps_of,
    max_length_of,
    refuse_by_name,
    usual_edit_threshold,
    vocab_size_of,
    whole,
    with_defaults,
)

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
TEXT_FILES = ("*.json", "*.txt", "*.jinja", "*.model")  # configuration and tokenizer; never code
WEIGHTS = "*.safetensors"  # never pickles
LFS_POINTER = b"version https://git-lfs"
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")


def find_model(model: str, *, weights: bool = True) -> Path:
    """The directory of `model`. A hub id such as GSAI-ML/LLaDA-8B-Instruct is downloaded once, without its weights if
    `weights` is false.

    Raises: BadInput if it is neither a directory nor an available hub id, or its files cannot be read or are pointers.
    """
    patterns = [*TEXT_FILES, WEIGHTS] if weights else list(TEXT_FILES)
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            Path(model, "config.json").stat()  # which a directory that cannot be searched refuses
        directory = Path(model) if Path(model).is_dir() else _download(model, patterns)
        for pattern in patterns:
            for path in sorted(directory.glob(pattern)):
                _refuse_stand_in(path)
    except OSError as error:
        raise BadInput(f"cannot read {error.filename}: {error.strerror}", "model") from None
    return directory


def _download(model: str, patterns: list[str]) -> Path:
    if Path(model).exists() or not HUB_ID.fullmatch(model):
        raise BadInput(
            f"no model in {model}: neither a directory nor a hub id such as GSAI-ML/LLaDA-8B-Instruct", "model"
        )
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - slow to import, rarely needed

    try:
        return Path(snapshot_download(model, allow_patterns=patterns))
    except Exception as error:  # the hub's errors have no common base class
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise BadInput(f"no directory {model}, and the download by hub id failed: {reason}", "model") from None


def default_model_name(model: str) -> str:
    """The model name in the API if none is configured: the last part of the directory or hub id; of a directory of the
    hub's cache, which ends in a hash, that of its hub id."""
    path = Path(model).resolve()
    cached = re.search(r"/models--(?:[^/]*--)?([^/]+)/snapshots/[^/]+$", path.as_posix())
    return cached[1] if cached else path.name


def refuse_other_forms(directory: Path) -> None:
    """Raises: ValueError, which states what to give, if a directory has an adapter or no config.json."""
    if (directory / "adapter_config.json").is_file():
        raise ValueError("adapter_config.json is an adapter's: give a checkpoint into which it was merged")
    if (directory / "config.json").is_file():
        return
    inner = [path.parent for depth in ("*", "*/*") for path in sorted(directory.glob(f"{depth}/config.json"))]
    given = "not GGUF" if any(directory.glob("*.gguf")) else f"such as {inner[0]}" if inner else "with its config.json"
    raise ValueError(f"no such file; accepted: the directory of a safetensors checkpoint, {given}")


def chat_template_of(directory: Path) -> str:
    """The chat template in a model's files, or the JSON that holds it; empty: it has none."""
    found = (directory / name for name in TEMPLATE_FILES if (directory / name).is_file())
    text = "".join(path.read_text(encoding="utf-8") for path in found)
    return text or str(read_json(directory / "tokenizer_config.json").get("chat_template") or "")


def added_tokens_of(directory: Path) -> dict[int, str]:
    """The texts of a tokenizer's special and other added tokens, by id."""
    listed = read_json(directory / "tokenizer_config.json").get("added_tokens_decoder") or {}
    found = {int(number): token["content"] for number, token in listed.items()}
    return found | {
        each["id"]: each["content"] for each in read_json(directory / "tokenizer.json").get("added_tokens", ())
    }


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty if there is no such file. Raises: ValueError, one line, if it is not an object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold one JSON object")  # noqa: TRY004 - the file is wrong, not the call
    return found


def _refuse_stand_in(path: Path) -> None:
    """Raises: BadInput for a link to an absent file, or a Git LFS pointer."""
    if not path.exists():
        raise BadInput(f"{path} is a link to a file that is absent: a cache of the hub needs its blobs, too", "model")
    if path.is_file():
        with path.open("rb") as file:
            is_pointer = file.read(len(LFS_POINTER)) == LFS_POINTER
        if is_pointer:
            raise BadInput(f"{path} is a Git LFS pointer, not the file: fetch the files with `git lfs pull`", "model")


def read_model_card(directory: Path, name: str) -> ModelCard:
    """The card from config.json. Raises: BadInput if the file or a value is missing, or the architecture is not
    supported."""
    return read_card_and_ends(directory, name)[0]


def read_card_and_ends(directory: Path, name: str) -> tuple[ModelCard, list[int]]:
    """The card, and all tokens that end a text by the model's files. Raises: BadInput as `read_model_card`."""
    path = directory / "config.json"
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
            begins_at_prompt=architecture_of(config).begins_at_prompt,
            canvas_steps=canvas_steps_of(config, config["generation"]),
        )
    return card, ends


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Raises: BadInput, one line that names the file, for a missing or unusable value of it."""
    try:
        yield
    except KeyError as error:
        raise BadInput(f"{path} lacks the key {error}", "model") from None
    except (AttributeError, TypeError, ValueError, ArithmeticError) as error:
        raise BadInput(f"{path}: {error}", "model") from None


def read_model_config(directory: Path) -> dict[str, Any]:
    """The keys of config.json, with the defaults of its architecture; `eos_token_id` lists all ends of text, and
    `generation` has the keys of generation_config.json. Raises: ValueError, one line, if the file is missing or
    unreadable, the directory has another form of a model, the architecture is not supported, or no file names an
    end."""
    path = directory / "config.json"
    refuse_other_forms(directory)
    config = with_defaults(given := read_json(path))
    if given.get("mask_token_id") is None and "mask_token_id" in architecture_of(given).defaults:
        _refuse_other_mask(directory, config["mask_token_id"])
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
        found |= dict.fromkeys(_ids_of(directory, "eos_token"))
    if not found:
        raise ValueError("neither config.json nor generation_config.json nor the tokenizer names an end of text")
    size = vocab_size_of(config)
    if not (ends := [end for end in found if end < size]):
        raise ValueError(f"eos_token_id {', '.join(map(str, found))} is outside the {size} embedding rows")
    return ends


def _ids_of(directory: Path, role: str) -> list[int]:
    """The id of the special token that tokenizer_config.json names for this role; empty: of none."""
    named = read_json(directory / "tokenizer_config.json").get(role)
    text = named.get("content") if isinstance(named, Mapping) else named
    return [number for number, content in added_tokens_of(directory).items() if content == text]


def _refuse_other_mask(directory: Path, mask: int) -> None:
    """Raises: ValueError if the mask of the architecture is an ordinary token, and the tokenizer names another mask."""
    named = _ids_of(directory, "mask_token")
    if named and mask not in added_tokens_of(directory):
        raise ValueError(
            f'without mask_token_id, the mask is {mask}, but the tokenizer names {named[0]}: add "mask_token_id"'
        )
