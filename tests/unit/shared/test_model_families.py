"""The architectures that the services know."""

import json
from pathlib import Path

import pytest

from services.worker.model.families import FAMILIES, read_config
from shared.errors import BadInput
from shared.model_card import read_model_card
from shared.model_families import ARCHITECTURES

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 4096,
    "vocab_size": 32_000,
    "eos_token_id": 2,
}
REAL = json.loads((Path(__file__).parents[2] / "golden" / "real_configs.json").read_text())
LLADA, DREAM, SDAR = (REAL[name]["config"] for name in ("llada-8b-instruct", "dream-7b", "sdar-4b"))
LLADA2 = REAL["llada2.0-mini"]["config"]
# Published keys of relatives, beside those of the checkpoint whose architecture they name; None: the key is absent.
DIFFU_CODER = DREAM | {"use_cache": False, "transformers_version": "4.51.3"}
DREAM_CODER = DREAM | {"bos_token_id": 151665, "max_position_embeddings": 32768, "use_mrope": None}
SDAR_SIBLING = SDAR | {"block_size": None, "mask_token_id": None}
RELATIVES = (  # their layers or their decoding differ from those of the families
    "SDARMoeForCausalLM",
    "Fast_dLLM_QwenForCausalLM",
    "NemotronLabsDiffusionModel",
    "DiffEncoderModel",
    "StableDiffcoderForCausalLM",
)


def write(directory: Path, config: dict[str, object]) -> Path:
    kept = {key: value for key, value in config.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(kept))
    return directory


def test_they_are_those_that_the_worker_decodes() -> None:
    assert {family.architecture for family in FAMILIES.values()} == ARCHITECTURES.keys()


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (LLAMA, "LlamaForCausalLM"),
        ({}, "none"),
        ({"architectures": 3}, "3"),
        *[(LLAMA | {"architectures": [name]}, name) for name in RELATIVES],
    ],
)
def test_another_one_is_refused_by_name(config: dict[str, object], named: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    supported = "LLaDAModelLM, DreamModel, SDARForCausalLM, LLaDA2MoeModelLM"
    with pytest.raises(BadInput, match=f"config.json: architecture: {named}; supported: {supported}"):
        read_model_card(tmp_path, "m")


@pytest.mark.parametrize(
    ("name", "config", "expected"),
    [
        ("LLaDA-1.5", LLADA, ("llada", 0, 126336, 4096)),
        ("DiffuCoder-7B-Instruct", DIFFU_CODER, ("dream", 0, 151666, 2048)),
        ("Dream-Coder-v0-Instruct-7B", DREAM_CODER, ("dream", 0, 151666, 2048)),
        ("SDAR-4B-Chat", SDAR_SIBLING, ("sdar", 4, 151669, 32768)),
        ("SDAR-4B-Chat-b4", SDAR_SIBLING, ("sdar", 4, 151669, 32768)),
        ("SDAR-4B-Chat-b64", SDAR_SIBLING | {"block_size": 64}, ("sdar", 64, 151669, 32768)),
        ("LLaDA2.0-mini-CAP", LLADA2, ("llada2", 32, 156895, 16384)),
    ],
)
def test_a_relative_with_the_same_layers_is_served_as_its_family(
    name: str, config: dict[str, object], expected: tuple[object, ...], tmp_path: Path
) -> None:
    card, model = read_model_card(write(tmp_path, config), name), read_config(tmp_path)
    assert (model.family, card.block_length, card.mask_token_id, card.max_length) == expected
    assert model.block_length == card.block_length


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("SDAR-4B-Chat-b64", SDAR_SIBLING, 'no block_size, which means 4: add "block_size": 64'),
        ("SDAR-8B-Chat-b16", SDAR_SIBLING, 'no block_size, which means 4: add "block_size": 16'),
        ("LLaDA2.2-flash", LLADA2, "LLaDA2.2 inserts and deletes tokens"),
    ],
)
def test_a_relative_with_another_decoding_is_refused_by_its_name(
    name: str, config: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=message):
        read_model_card(write(tmp_path, config), name)


@pytest.mark.parametrize("key", ["delete_token_id", "split_token_id"])
def test_tokens_that_insert_or_delete_are_refused_under_any_name(key: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{key} is 156930, only None is implemented"):
        read_config(write(tmp_path, LLADA2 | {key: 156930}))


def test_a_refusal_names_the_class_of_the_authors_code(tmp_path: Path) -> None:
    own = {"AutoModelForCausalLM": "modeling_seed_diffcoder.SeedDiffcoderForCausalLM"}
    with pytest.raises(BadInput, match=f"architecture: LlamaForCausalLM, {own['AutoModelForCausalLM']}; supported"):
        read_model_card(write(tmp_path, LLAMA | {"auto_map": own}), "Stable-DiffCoder-8B-Instruct")
