"""Requests for block-causal models: the model's usual block length, and outputs in whole blocks of the grid."""

import pytest

from shared.errors import TooLong
from shared.text import TextModel
from tests.support.planned import planned
from tests.support.tiny_model import MAX_LENGTH, write_tiny_sdar


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return TextModel(write_tiny_sdar(tmp_path_factory.mktemp("models") / "tiny-sdar"), "m")


@pytest.mark.parametrize(
    ("prompt", "fields", "block_length", "output"),
    [
        (6, {"max_tokens": 9}, 4, 10),
        (8, {"max_tokens": 9}, 4, 12),
        (6, {"max_tokens": 9, "block_length": 16}, 16, 10),
        (MAX_LENGTH - 3, {"max_tokens": 9}, 4, 3),
    ],
)
async def test_outputs_are_whole_blocks_of_the_grid(
    text: TextModel, prompt: int, fields: dict[str, int], block_length: int, output: int
) -> None:
    request = await planned(text, prompt="a" * prompt, **fields)
    assert (request.block_length, request.output_tokens) == (block_length, output)
    assert request.max_tokens == min(9, output)


async def test_a_prompt_without_room_for_its_first_block_is_refused(text: TextModel) -> None:
    with pytest.raises(TooLong, match=f"prompt has {MAX_LENGTH} tokens"):
        await planned(text, prompt="a" * MAX_LENGTH)
