"""Facts about the supported architectures that every service needs, and that a checkpoint's config.json may lack."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LLADA21_EDIT_THRESHOLD = 0.5  # of its authors' quality mode
MAX_SIZE = (
    1 << 24
)  # of the numbers in a checkpoint's files: tokens, rows, columns; up to it, positions are exact floats
MAX_CANVAS_STEPS = (1 << 16) - 1


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture. `defaults`: the keys that its published files leave out, with the values of their authors'
    decoding."""

    defaults: Mapping[str, int] = field(default_factory=dict)
    # True: its files, or `defaults`, have a `block_size`. None: it has both kinds, those with a `block_size` are.
    is_block_causal: bool | None = False
    can_edit: bool = False  # whether its decoding may change tokens of the block
    max_length: int | None = None  # as its model card states, where its files have a larger one
    text_key: str = ""  # where its files keep the keys of the language model, if apart
    renamed: Mapping[str, str] = field(default_factory=dict)  # its files' keys, by the usual ones
    begins_at_prompt: bool = False  # blocks begin at the prompt's end, and not on a grid of absolute positions
    canvas_steps: int = 0  # the most steps of a block that is drawn again in each of them; 0: its tokens are unmasked


STABLE_DIFFCODER = Architecture({"mask_token_id": 5, "block_size": 4}, is_block_causal=True)
LLADA_MOE = Architecture(
    {"mask_token_id": 156895},
    renamed={"intermediate_size": "dense_intermediate_size", "moe_intermediate_size": "expert_intermediate_size"},
)
ARCHITECTURES: Mapping[str, Architecture] = {
    "LLaDAModelLM": Architecture(),
    "DreamModel": Architecture(max_length=2048),  # its files have that of the model it began from
    "SDARForCausalLM": Architecture({"mask_token_id": 151669, "block_size": 4}, is_block_causal=True),
    "LLaDA2MoeModelLM": Architecture(
        {"mask_token_id": 156895, "eos_token_id": 156892, "block_size": 32}, is_block_causal=True, can_edit=True
    ),
    # It has no mask: a token that is not decided has the first id after the vocabulary. Its files allow 262,144
    # tokens, whose keys and values do not fit beside its weights.
    "DiffusionGemmaForBlockDiffusion": Architecture(
        {"canvas_length": 256},
        is_block_causal=True,
        max_length=65536,
        text_key="text_config",
        renamed={"block_size": "canvas_length", "mask_token_id": "vocab_size"},
        begins_at_prompt=True,
        canvas_steps=48,
    ),
    "SDARMoeForCausalLM": Architecture(
        {"mask_token_id": 151669, "block_size": 4},
        is_block_causal=True,
        renamed={"num_experts": "num_local_experts"},  # as transformers 5 writes it
    ),
    "LLaDAMoEModelLM": LLADA_MOE,
    "LLaDAMoEModel": LLADA_MOE,
    "StableDiffcoderForCausalLM": STABLE_DIFFCODER,
    "SeedDiffcoderForCausalLM": STABLE_DIFFCODER,  # the name of its first version
    "Fast_dLLM_QwenForCausalLM": Architecture(
        {"mask_token_id": 151665, "bd_size": 32}, is_block_causal=True, renamed={"block_size": "bd_size"}
    ),
    # Its files allow 262,144 tokens, but from this length on they scale queries.
    "NemotronLabsDiffusionModel": Architecture(
        {"mask_token_id": 100, "block_size": 32}, is_block_causal=True, max_length=16384, begins_at_prompt=True
    ),
    "A2DQwen3LMHeadModel": Architecture({"mask_token_id": 151669}, is_block_causal=None),
    "A2DQwen2LMHeadModel": Architecture({"mask_token_id": 151665}, is_block_causal=None),
}


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """The architecture that a config.json names, or else its authors' class. Raises: ValueError if it names no
    supported one."""
    names = config.get("architectures") or []
    names = list(names) if isinstance(names, list) else [names]
    auto_map = config.get("auto_map") if names else None
    if own := auto_map.get("AutoModelForCausalLM") if isinstance(auto_map, Mapping) else None:
        names.append(own)
    for name in names:
        if found := ARCHITECTURES.get(str(name).rpartition(".")[2]):
            return found
    raise ValueError(f"architecture: {', '.join(map(str, names)) or 'none'}; supported: {', '.join(ARCHITECTURES)}")


def whole(config: Mapping[str, Any], key: str, least: int = 1, most: int = MAX_SIZE) -> int:
    """A number of a checkpoint's file, which is checked before anything of its size is made. Raises: KeyError if it is
    missing; ValueError unless it is a whole number in `least`..`most`."""
    value = config[key]
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if type(number) is not int or not least <= number <= most:
        raise ValueError(f"{key} must be a whole number in {least}..{most}, got {value!s:.50}")
    return number


def refuse_by_name(config: Mapping[str, Any], name: str) -> None:
    """Refuse a checkpoint whose name states another decoding than its files do. `config`: without defaults. Raises:
    ValueError that names the difference."""
    architecture, blocks = architecture_of(config), re.search(r"-b(\d+)$", name)
    for published in ("LLaDA2.2", "DreamOn"):
        if published.lower() in name.lower():
            raise ValueError(f"{published} inserts and deletes tokens, which is not implemented")
    usual = architecture.defaults.get("block_size")
    if blocks and usual and not config.get("block_size") and int(blocks[1]) != usual:
        raise ValueError(
            f"the name {name} has blocks of {blocks[1]}, and the file has no block_size, which means {usual}: "
            f'add "block_size": {blocks[1]}'
        )
    if architecture.is_block_causal is None and "bd3lm" in name.lower() and not config.get("block_size"):
        raise ValueError(f'the name {name} is of a model with blocks, and the file has none: add "block_size": 32')


def with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of config.json under their usual names, with the values that its published files leave out."""
    architecture = architecture_of(config)
    given = {key: value for key, value in config.items() if value is not None}
    found = {**architecture.defaults, **given.get(architecture.text_key, {}), **given}
    found = {key: value for key, value in found.items() if value is not None}
    return found | {usual: found[own] for usual, own in architecture.renamed.items() if own in found}


def block_length_of(config: Mapping[str, Any]) -> int:
    """The usual block length of a block-causal checkpoint; 0 for others. `config` has its defaults. Raises: ValueError
    if it is below 1 or above the maximum length."""
    is_block_causal = architecture_of(config).is_block_causal
    if not ("block_size" in config if is_block_causal is None else is_block_causal):
        return 0
    return whole(config, "block_size", most=max_length_of(config))


def canvas_steps_of(config: Mapping[str, Any], generation: Mapping[str, Any]) -> int:
    """The most steps of a canvas, by generation_config.json; 0 for a model without canvases."""
    usual = architecture_of(config).canvas_steps
    is_given = usual and generation.get("max_denoising_steps") is not None
    return whole(generation, "max_denoising_steps", most=MAX_CANVAS_STEPS) if is_given else usual


def usual_edit_threshold(config: Mapping[str, Any], name: str) -> float | None:
    """The usual edit threshold of a checkpoint whose decoding may change tokens of the block (1: none changes); None:
    no decoding of its family does. The files of LLaDA2.0 and LLaDA2.1 are alike; only the names differ."""
    if not architecture_of(config).can_edit:
        return None
    return LLADA21_EDIT_THRESHOLD if "llada2.1" in name.lower() else 1.0


def vocab_size_of(config: Mapping[str, Any]) -> int:
    """The rows of the embedding. Raises: KeyError if config.json does not have them."""
    return whole(config, "embedding_size" if config.get("embedding_size") else "vocab_size")


def max_length_of(config: Mapping[str, Any]) -> int:
    """The most tokens of prompt and output together. Raises: KeyError if config.json has no limit."""
    if config.get("max_sequence_length"):
        return whole(config, "max_sequence_length")
    limit = whole(config, "max_position_embeddings")
    return min(limit, architecture_of(config).max_length or limit)
