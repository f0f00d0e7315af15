"""The architectures that the services know."""

import json
from pathlib import Path

import pytest

from services.worker.model.families import FAMILIES
from shared.errors import BadInput
from shared.model_card import read_model_card
from shared.model_families import ARCHITECTURES

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 4096,
    "vocab_size": 32_000,
    "eos_token_id": 2,
}
RELATIVES = (  # their layers or their decoding differ from those of the families
    "SDARMoeForCausalLM",
    "Fast_dLLM_QwenForCausalLM",
    "NemotronLabsDiffusionModel",
    "DiffEncoderModel",
)


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
