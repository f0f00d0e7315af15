"""Where a model's files are found."""

from pathlib import Path

import pytest

from shared.errors import BadInput
from shared.model_files import default_model_name, find_model


def test_a_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    assert find_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("model", ["/nowhere/model", "./model", "nowhere", "a/b/c"])
def test_what_is_neither_a_directory_nor_a_hub_id_is_refused(model: str) -> None:
    with pytest.raises(BadInput, match=f"no model in {model}"):
        find_model(model)


def test_a_hub_id_without_a_network_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BadInput) as caught:
        find_model("dilaserve/no-such-model")
    assert "cannot be fetched as a hub id" in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("model", ["GSAI-ML/LLaDA-8B-Instruct", "/models/LLaDA-8B-Instruct", "LLaDA-8B-Instruct/"])
def test_a_model_is_called_by_the_last_part_of_its_place(model: str) -> None:
    assert default_model_name(model) == "LLaDA-8B-Instruct"
