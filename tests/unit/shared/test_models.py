"""Models: architectures, files, the cards of block-causal ones, and which requests have edits."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.model.families import FAMILIES, read_config
from shared.arrays import pack_int32
from shared.edits import edit_threshold_for
from shared.errors import BadInput
from shared.messages.requests import Request
from shared.model_families import ARCHITECTURES, usual_edit_threshold
from shared.model_files import default_model_name, find_model, read_model_card
from shared.text import round_up_to_blocks
from tests.builders import model_card
from tests.support.golden import COPY

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 4096,
    "vocab_size": 32_000,
    "eos_token_id": 2,
}
REAL = json.loads((COPY / "real_configs.json").read_text())
LLADA, DREAM, SDAR = (REAL[name]["config"] for name in ("llada-8b-instruct", "dream-7b", "sdar-4b"))
LLADA2 = REAL["llada2.0-mini"]["config"]
# Published keys of relatives, beside those of the checkpoint whose architecture they name; None: the key is absent.
DIFFU_CODER = DREAM | {"use_cache": False, "transformers_version": "4.51.3"}
DREAM_CODER = DREAM | {"bos_token_id": 151665, "max_position_embeddings": 32768, "use_mrope": None}
SDAR_SIBLING = SDAR | {"block_size": None, "mask_token_id": None}
A2D = SDAR_SIBLING | {"architectures": ["A2DQwen3LMHeadModel"]}
SDAR_MOE, LLADA_MOE = (REAL[name]["config"] for name in ("sdar-30b-a3b", "llada-moe-7b-a1b"))
FAST_DLLM, NEMOTRON_LABS = (REAL[name]["config"] for name in ("fast-dllm-v2-7b", "nemotron-labs-diffusion-3b"))
RELATIVES = (  # their layers or their decoding differ from those of the families
    "NemotronLabsDiffusionVLMModel",
    "DiffEncoderModel",
)


def write(directory: Path, config: dict[str, object]) -> Path:
    kept = {key: value for key, value in config.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(kept))
    return directory


def test_they_are_those_that_the_worker_decodes() -> None:
    decoded = [ARCHITECTURES[family.architecture] for family in FAMILIES.values()]
    assert all(any(each is one for one in decoded) for each in ARCHITECTURES.values())


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
        ("SDAR-30B-A3B-Chat", SDAR_MOE, ("sdar_moe", 4, 151669, 32768)),
        ("SDAR-30B-A3B-Chat-b32", SDAR_MOE | {"block_size": 32}, ("sdar_moe", 32, 151669, 32768)),
        (
            "Stable-DiffCoder-8B-Instruct",
            SDAR_SIBLING | {"architectures": ["StableDiffcoderForCausalLM"]},
            ("stable_diffcoder", 4, 5, 32768),
        ),
        (
            "Stable-DiffCoder-8B-Base",
            SDAR_SIBLING
            | {
                "architectures": ["LlamaForCausalLM"],
                "auto_map": {"AutoModelForCausalLM": "modeling_seed_diffcoder.SeedDiffcoderForCausalLM"},
            },
            ("stable_diffcoder", 4, 5, 32768),
        ),
        ("Qwen3-0.6B-diffusion-mdlm-v0.1", A2D, ("a2d_qwen3", 0, 151669, 32768)),
        ("Qwen3-0.6B-diffusion-bd3lm-v0.1", A2D | {"block_size": 32}, ("a2d_qwen3", 32, 151669, 32768)),
        (
            "Qwen2.5-Coder-0.5B-Instruct-diffusion-mdlm-v0.1",
            A2D | {"architectures": ["A2DQwen2LMHeadModel"], "attention_bias": True},
            ("a2d_qwen2", 0, 151665, 32768),
        ),
        ("Fast_dLLM_v2_7B", FAST_DLLM, ("fast_dllm", 32, 151665, 32768)),
        ("own-model", FAST_DLLM | {"bd_size": 16}, ("fast_dllm", 16, 151665, 32768)),
        ("Nemotron-Labs-Diffusion-3B", NEMOTRON_LABS, ("nemotron_labs", 32, 100, 16384)),
        ("LLaDA-MoE-7B-A1B-Instruct", LLADA_MOE, ("llada_moe", 0, 156895, 8192)),
        ("LLaDA-MoE-7B-A1B-Base", LLADA_MOE | {"architectures": ["LLaDAMoEModel"]}, ("llada_moe", 0, 156895, 8192)),
    ],
)
def test_a_relative_with_the_same_layers_is_served_as_its_family(
    name: str, config: dict[str, object], expected: tuple[object, ...], tmp_path: Path
) -> None:
    card, model = read_model_card(write(tmp_path, config), name), read_config(tmp_path)
    assert (model.family, card.block_length, card.mask_token_id, card.max_length) == expected
    for field in ("block_length", "mask_token_id", "eos_token_id", "vocab_size", "max_length"):
        assert getattr(card, field) == getattr(model, field), field
    assert card.begins_at_prompt == model.has_text_spans


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("SDAR-4B-Chat-b64", SDAR_SIBLING, 'no block_size, which means 4: add "block_size": 64'),
        ("SDAR-30B-A3B-Chat-b32", SDAR_MOE, 'no block_size, which means 4: add "block_size": 32'),
        ("SDAR-8B-Chat-b16", SDAR_SIBLING, 'no block_size, which means 4: add "block_size": 16'),
        *(
            ("SDAR-4B", SDAR_SIBLING | {"block_size": size}, "block_size must be a whole number in 1")
            for size in (0, -4)
        ),
        ("Qwen3-0.6B-diffusion-bd3lm-v0.1", A2D, 'add "block_size": 32'),
        ("LLaDA2.2-flash", LLADA2, "LLaDA2.2 inserts and deletes tokens"),
        ("DreamOn-v0-7B", DREAM_CODER, "DreamOn inserts and deletes tokens"),
    ],
)
def test_a_relative_with_another_decoding_is_refused_by_its_name(
    name: str, config: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=message):
        read_model_card(write(tmp_path, config), name)


@pytest.mark.parametrize(
    ("config", "file", "key"),
    [
        (LLADA2, "config.json", "delete_token_id"),
        (LLADA2, "config.json", "split_token_id"),
        (DREAM, "generation_config.json", "expand_token_id"),
    ],
)
def test_tokens_that_insert_or_delete_are_refused_under_any_name(
    config: dict[str, object], file: str, key: str, tmp_path: Path
) -> None:
    path = write(tmp_path, config) / file
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | {key: 156930}))
    with pytest.raises(BadInput, match=f"{key} is 156930, only models without it are implemented"):
        read_config(tmp_path)


def test_a_refusal_names_the_class_of_the_authors_code(tmp_path: Path) -> None:
    own = {"AutoModelForCausalLM": "modeling_other.OtherForCausalLM"}
    with pytest.raises(BadInput, match=f"architecture: LlamaForCausalLM, {own['AutoModelForCausalLM']}; supported"):
        read_model_card(write(tmp_path, LLAMA | {"auto_map": own}), "other")


@pytest.mark.parametrize("model", ["/nowhere/model", "./model", "nowhere", "a/b/c"])
def test_a_path_that_is_no_directory_and_no_hub_id_is_rejected(model: str) -> None:
    with pytest.raises(BadInput, match=f"no model in {model}"):
        find_model(model)


def test_a_failed_download_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BadInput) as caught:
        find_model("dilaserve/no-such-model")
    assert "the download by hub id failed" in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "model",
    [
        "GSAI-ML/LLaDA-8B-Instruct",
        "/models/LLaDA-8B-Instruct",
        "LLaDA-8B-Instruct/",
        "/hub/models--GSAI-ML--LLaDA-8B-Instruct/snapshots/08b83a6feb34df1a6011b80c3c00c7563e963b07",
        "/models/snapshots/LLaDA-8B-Instruct",
    ],
)
def test_the_default_model_name_is_the_last_part_of_the_path_or_hub_id(model: str) -> None:
    assert default_model_name(model) == "LLaDA-8B-Instruct"


@given(prompt=st.integers(1, 500), output=st.integers(1, 500), length=st.integers(1, 64), usual=st.sampled_from([0, 4]))
def test_an_output_ends_with_the_first_block_that_holds_it(prompt: int, output: int, length: int, usual: int) -> None:
    offset = model_card(block_length=usual).block_offset(prompt, length)
    rounded = round_up_to_blocks(output, length, offset)
    assert output <= rounded < output + length
    assert (rounded + (prompt if usual else 0)) % length == 0


EDITING, OTHER = model_card(edit_threshold=1.0), model_card()
FORMS: list[dict[str, Any]] = [{"pattern": "a+"}, {"choices": ["a", "b"]}, {"pinned": pack_int32([3])}]
FORMS += [{"presence_penalty": 1.0}, {"frequency_penalty": -1.0}, {"repetition_penalty": 1.1}, {"logit_bias": {5: 1.0}}]


def request(**fields: Any) -> Request:
    return Request(request_id="r", **fields)


@pytest.mark.parametrize(("own", "expected"), [(None, 0.4), (0.0, 0.0), (0.7, 0.7), (1.0, 1.0)])
def test_a_request_has_its_own_edit_threshold_or_the_cells(own: float | None, expected: float) -> None:
    assert edit_threshold_for(request(edit_threshold=own), EDITING, 0.4) == expected


@pytest.mark.parametrize("form", FORMS)
def test_a_text_with_a_form_has_no_edits(form: dict[str, Any]) -> None:
    assert edit_threshold_for(request(**form), EDITING, 0.4) == 1.0
    assert edit_threshold_for(request(**form, edit_threshold=1.0), EDITING, 0.4) == 1.0
    with pytest.raises(BadInput, match="penalties or logit_bias; accepted there: 1, or leave it out") as refused:
        edit_threshold_for(request(**form, edit_threshold=0.5), EDITING, 0.4)
    assert refused.value.field == "edit_threshold"


def test_a_model_that_does_not_change_tokens_refuses_edits_by_name() -> None:
    assert edit_threshold_for(request(), OTHER, 0.4) == 1.0
    with pytest.raises(BadInput, match="m does not change tokens; accepted: 1, or leave it out"):
        edit_threshold_for(request(edit_threshold=0.5), OTHER, 1.0)


@pytest.mark.parametrize(
    ("architecture", "name", "expected"),
    [
        ("LLaDA2MoeModelLM", "LLaDA2.1-mini", 0.5),
        ("LLaDA2MoeModelLM", "llada2.1-flash", 0.5),
        ("LLaDA2MoeModelLM", "LLaDA2.0-mini", 1.0),
        ("SDARForCausalLM", "LLaDA2.1-mini", None),
    ],
)
def test_a_checkpoint_made_for_edits_is_known_by_its_name(architecture: str, name: str, expected: float | None) -> None:
    assert usual_edit_threshold({"architectures": [architecture]}, name) == expected
