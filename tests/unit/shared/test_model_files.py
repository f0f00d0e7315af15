"""Finding a model's files."""

from pathlib import Path

import pytest

from shared.errors import BadInput
from shared.model_files import default_model_name, find_model


def test_an_existing_directory_is_used(tmp_path: Path) -> None:
    assert find_model(str(tmp_path)) == tmp_path


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


@pytest.mark.parametrize("model", ["GSAI-ML/LLaDA-8B-Instruct", "/models/LLaDA-8B-Instruct", "LLaDA-8B-Instruct/"])
def test_the_default_model_name_is_the_last_part_of_the_path(model: str) -> None:
    assert default_model_name(model) == "LLaDA-8B-Instruct"
